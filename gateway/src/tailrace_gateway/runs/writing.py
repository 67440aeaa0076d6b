"""What writes runs for Python alone: one transaction after the other, on one thread. IO: the store."""

from collections.abc import Sequence as Values
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailrace_contract.plan import Durability
from tailrace_contract.run import Epoch, Run

from tailrace_gateway.runs.place import EmbeddedPlace, Place, PostgresPlace


@dataclass(frozen=True, slots=True)
class Entry:
    """A run to be written. `open`: the call has not ended."""

    run: Run
    open: bool


class Writer(Protocol):
    """A store. Whatever `write` raises, the next one connects anew."""

    def write(self, entries: Values[Entry], durability: Durability) -> None:
        """Writes all in one transaction; a run that is there already is replaced. Under DISK it is synced when this returns."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


def writer_of(place: Place, data: Path, epoch: Epoch, *, alone: bool) -> Writer:
    """The writer of a store. Connects to nothing yet."""
    match place:
        case EmbeddedPlace(path):
            from tailrace_gateway.runs.embedded_writer import EmbeddedWriter

            return EmbeddedWriter(path, alone=alone)
        case PostgresPlace(url_file):
            from tailrace_gateway.runs.postgres_writer import PostgresWriter

            return PostgresWriter(url_file, data, epoch)
