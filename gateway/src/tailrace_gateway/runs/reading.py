"""A run store as a reader sees it, whichever it is: never created, never written, one snapshot, a time limit.

Rejects with `StoreUnreadable` (locked, damaged, away, of another version) and `ReadTimeout`. IO: the store.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tailrace_contract.run import Run

from tailrace_gateway.runs.history import HistoryFilter, Page
from tailrace_gateway.runs.place import EmbeddedPlace, Place, PostgresPlace
from tailrace_gateway.runs.usage import Usage, UsageFilter


class StoreUnreadable(Exception):
    """The store cannot be read; never says where it is."""


class ReadTimeout(StoreUnreadable):
    """Reading took longer than allowed."""


class RunReader(Protocol):
    """What can be asked. All answers of one reader are of one moment."""

    def history(self, wanted: HistoryFilter) -> Page | None:
        """One page, newest first: by end time, then by id. None when `after` names no run that the filter admits."""
        ...

    def usage(self, wanted: UsageFilter) -> list[Usage]:
        """By day, key and query; exact."""
        ...

    def stored(self) -> dict[int, tuple[int, int]]:
        """By epoch: how many runs, and the highest sequence."""
        ...

    def highest(self) -> dict[int, int]:
        """By epoch: the highest sequence. Fast, whatever the number of runs."""
        ...

    def opened(self) -> dict[int, list[int]]:
        """By epoch: rising sequences of runs that have begun and not ended."""
        ...

    def sequences(self, epoch: int, above: int = 0) -> Iterator[int]:
        """Rising sequences of an epoch's runs."""
        ...

    def later(self, epoch: int, above: int, limit: int) -> list[Run]:
        """The next runs of an epoch, by sequence."""
        ...


def reading(place: Place, timeout_s: float = 10.0) -> AbstractContextManager[RunReader | None]:
    """A reader, for as long as the context; None when nothing was ever recorded."""
    match place:
        case EmbeddedPlace(path):
            from tailrace_gateway.runs.embedded import reading_embedded

            return reading_embedded(path, timeout_s)
        case PostgresPlace(url_file):
            from tailrace_gateway.runs.postgres import reading_postgres

            return reading_postgres(url_file, timeout_s)


def reading_or_none(place: Place | None, timeout_s: float = 10.0) -> AbstractContextManager[RunReader | None]:
    """`reading`, of a place that may not be known yet: then nothing was recorded."""
    return nullcontext(None) if place is None else reading(place, timeout_s)
