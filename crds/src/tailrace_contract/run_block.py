"""Many runs of one epoch as columns: a row of `run_blocks` in the embedded store (docs/contract.md, "Blocks of runs").

Pure. Rejects with BlockUnreadable what is cut, too long or of another form. The data plane writes blocks; `pack` is what the golden vectors
and tests are made with.
"""

import struct
import sys
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Values
from dataclasses import dataclass
from itertools import accumulate, pairwise

FORM = 1
RUNS_MOST = 8192
"""Most runs in a block."""

FIELDS = (
    "seq",
    "time_us",
    "duration_us",
    "queue_us",
    "database_us",
    "query",
    "key",
    "status",
    "code",
    "rows",
    "bytes",
    "batch",
    "client",
    "served_by",
)
"""The columns, in order. `query` and `key` are places in the dictionaries."""

_DELTAS = 2
"""The first columns hold what is above the run before."""

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LOW = struct.Struct("<qB")
_FIRST = struct.Struct("<q")


Trace = bytes | None


class BlockUnreadable(ValueError):
    """A block that is damaged or of a form that this version doesn't know."""


@dataclass(frozen=True, slots=True)
class PackedRun:
    """A run as the store numbers it: `names.id` for query, version, connection, key and code; positions for client and served_by."""

    seq: int
    time_us: int
    duration_us: int
    queue_us: int
    database_us: int
    query: tuple[int, int, int]
    key: int
    status: int
    code: int
    rows: int
    bytes: int
    batch: int
    client: int
    served_by: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A row of `run_blocks` without its epoch."""

    first: int
    last: int
    count: int
    oldest_us: int
    newest_us: int
    lowest_status: int
    highest_status: int
    keys: bytes
    queries: bytes
    body: bytes


def ids(blob: bytes) -> "array[int]":
    """A dictionary's numbers."""
    if len(blob) % 4:
        raise BlockUnreadable
    return _array(4, blob)


def _array(width: int, blob: bytes) -> "array[int]":
    numbers = array(_CODES[width])
    numbers.frombytes(blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


@dataclass(frozen=True, slots=True)
class _Column:
    low: int
    width: int
    offset: int
    first: int | None


class Block:
    """The runs of a block; a column is unpacked when it is asked for, at the speed of arrays."""

    def __init__(self, count: int, body: bytes) -> None:
        if not 0 < count <= RUNS_MOST or body[:1] != bytes([FORM]):
            raise BlockUnreadable
        self.count = count
        self._body = body
        self._known: dict[str, Values[int]] = {}
        self._columns: dict[str, _Column] = {}
        at = 1
        try:
            for place, field in enumerate(FIELDS):
                first = None
                if place < _DELTAS:
                    (first,) = _FIRST.unpack_from(body, at)
                    at += _FIRST.size
                low, width = _LOW.unpack_from(body, at)
                at += _LOW.size
                if width not in (0, *_CODES):
                    raise BlockUnreadable
                self._columns[field] = _Column(low, width, at, first)
                at += width * count
            traced, self._traces = body[at], at + 1
        except (struct.error, IndexError):
            raise BlockUnreadable from None
        self._traced = traced == 1
        present = body[at + 1 : at + 1 + count] if self._traced else b""
        if traced not in (0, 1) or len(body) != at + 1 + (count + 16 * present.count(1) if self._traced else 0):
            raise BlockUnreadable

    def column(self, field: str) -> Values[int]:
        """The values of one of FIELDS, by run."""
        known = self._known.get(field)
        if known is None:
            known = self._known[field] = self._unpacked(self._columns[field])
        return known

    def _unpacked(self, column: _Column) -> Values[int]:
        low = column.low
        above: Values[int]
        if column.width == 0:
            above = [low] * self.count
        else:
            above = _array(column.width, self._body[column.offset : column.offset + column.width * self.count])
            if low:
                above = [low + number for number in above]
        return above if column.first is None else list(accumulate(above[1:], initial=column.first))

    def trace(self, at: int) -> bytes | None:
        """W3C trace id of a run."""
        if not self._traced or self._body[self._traces + at] != 1:
            return None
        before = self._body[self._traces : self._traces + at].count(1)
        start = self._traces + self.count + 16 * before
        return self._body[start : start + 16]


def unpack(row: BlockRow) -> list[PackedRun]:
    """All runs of a block."""
    block, keys, queries = Block(row.count, row.body), ids(row.keys), ids(row.queries)
    runs = []
    try:
        for at in range(row.count):
            number = {field: block.column(field)[at] for field in FIELDS}
            place, key = 3 * number.pop("query"), keys[number.pop("key")]
            triple = (queries[place], queries[place + 1], queries[place + 2])
            runs.append(PackedRun(query=triple, key=key, trace=block.trace(at), **number))
    except IndexError:
        raise BlockUnreadable from None
    return runs


def pack(runs: Values[PackedRun]) -> BlockRow:
    """A block of runs with rising sequences: at least one, at most RUNS_MOST."""
    keys = list(dict.fromkeys(run.key for run in runs))
    queries = list(dict.fromkeys(run.query for run in runs))
    body = bytearray([FORM])
    for place, field in enumerate(FIELDS):
        values: list[int]
        match field:
            case "query":
                values = [queries.index(run.query) for run in runs]
            case "key":
                values = [keys.index(run.key) for run in runs]
            case _:
                values = [getattr(run, field) for run in runs]
        if place < _DELTAS:
            body += _FIRST.pack(values[0])
            steps = [after - before for before, after in pairwise(values)]
            values = [*steps[:1], *steps] if steps else [0]
        body += _column(values)
    traced = any(run.trace is not None for run in runs)
    body.append(traced)
    if traced:
        body += bytes(run.trace is not None for run in runs) + b"".join(run.trace for run in runs if run.trace is not None)
    times, statuses = [run.time_us for run in runs], [run.status for run in runs]
    return BlockRow(
        runs[0].seq,
        runs[-1].seq,
        len(runs),
        min(times),
        max(times),
        min(statuses),
        max(statuses),
        _words(keys),
        _words(number for triple in queries for number in triple),
        bytes(body),
    )


def _words(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _column(values: list[int]) -> bytes:
    low = min(values)
    width = next(width for width in (0, 1, 2, 4, 8) if max(values) - low < 1 << 8 * width)
    return _LOW.pack(low, width) + b"".join((value - low).to_bytes(width, "little") for value in values if width)
