"""Sets of run ids as bitmaps: sequences of an epoch are dense, so a million ids take a few hundred KB. IO: reads what it is given."""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from tailrace_contract.run import parse_run_id, run_id
from tailrace_contract.run_block import Block

SEQUENCE_LIMIT = 1 << 34
"""A larger sequence is no run id of ours: refused (ValueError) before it takes memory."""


class RunIds:
    """A set of run ids that counts what it is given twice."""

    def __init__(self) -> None:
        self._epochs: dict[int, bytearray] = {}
        self.given = 0
        self.doubled = 0

    def add(self, epoch: int, sequence: int) -> None:
        """Adds one."""
        if not 0 < sequence < SEQUENCE_LIMIT:
            raise ValueError("not a run id of a data plane")
        bits = self._epochs.setdefault(epoch, bytearray())
        byte, bit = divmod(sequence, 8)
        if byte >= len(bits):
            bits.extend(bytes(max(byte + 1 - len(bits), len(bits), 4096)))
        self.given += 1
        if bits[byte] >> bit & 1:
            self.doubled += 1
        bits[byte] |= 1 << bit

    def __len__(self) -> int:
        return self.given - self.doubled

    def without(self, other: "RunIds") -> int:
        """How many are here and not in `other`."""
        return sum(
            (int.from_bytes(bits, "little") & ~int.from_bytes(other._epochs.get(epoch, b""), "little")).bit_count()
            for epoch, bits in self._epochs.items()
        )

    def only_here(self, other: "RunIds", most: int = 10) -> list[str]:
        """The first few that are here and not in `other`, as texts."""
        found: list[str] = []
        for epoch, bits in self._epochs.items():
            left = int.from_bytes(bits, "little") & ~int.from_bytes(other._epochs.get(epoch, b""), "little")
            while left and len(found) < most:
                sequence = (left & -left).bit_length() - 1
                found.append(run_id(epoch, sequence))
                left &= left - 1
        return found

    def gaps(self) -> int:
        """Sequences below the highest of their epoch that are not there."""
        return sum(
            int.from_bytes(bits, "little").bit_length() - 1 - int.from_bytes(bits, "little").bit_count() for bits in self._epochs.values()
        )


def of_lines(lines: Iterable[str]) -> RunIds:
    """Ids of a generator's log; ValueError when a line is none (the log is written whole lines at a time)."""
    found = RunIds()
    for line in lines:
        found.add(*parse_run_id(line.rstrip("\n")))
    return found


def of_store(path: Path) -> RunIds:
    """Ids of every run in an embedded store."""
    found = RunIds()
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        rows: Iterator[tuple[int, int]] = connection.execute("SELECT epoch, seq FROM runs")
        for epoch, sequence in rows:
            found.add(epoch, sequence)
        for epoch, count, body in connection.execute("SELECT epoch, count, body FROM run_blocks"):
            for sequence in Block(count, body).column("seq"):
                found.add(epoch, sequence)
    connection.close()
    return found
