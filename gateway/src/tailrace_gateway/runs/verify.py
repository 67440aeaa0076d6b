"""Proof of completeness: for each epoch, count = highest sequence, with what is open and what is still in the spool counted in.

Pure but for the reader it is given; the spool is read by the data plane's program (`spool-status`), which alone knows its form.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from tailrace_gateway.runs.reading import RunReader

GAPS_LISTED = 100
"""Gaps of one epoch that are listed; `missing` counts them all."""

Range = tuple[int, int]
"""First and last sequence, both counted."""


class SpoolEpoch(BaseModel):
    """Runs of one epoch that the spool holds, whether or not the store has them too."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    epoch: int
    ranges: tuple[Range, ...]


class SpoolStatus(BaseModel):
    """What `tailrace-dataplane spool-status` prints."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    segments: int
    bytes: int
    unreadable: tuple[str, ...]
    """Names of files that are no segments, or were set aside."""
    torn: int
    """Segments whose tail is no block: a kill or power loss in the middle of a write, never answered."""
    epochs: tuple[SpoolEpoch, ...]


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch. `stored`: ended runs in the store; `open`: begun and not ended; `spooled`: in the spool only."""

    epoch: int
    stored: int
    open: int
    spooled: int
    highest: int
    missing: int
    gaps: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All epochs. `spool` None: nobody could read it, so what is only there would show as missing."""

    epochs: tuple[EpochReport, ...]
    spool: SpoolStatus | None
    problems: tuple[str, ...] = field(default=())

    @property
    def missing(self) -> int:
        """Runs that are nowhere."""
        return sum(epoch.missing for epoch in self.epochs)

    @property
    def complete(self) -> bool:
        """Nothing is missing, and nothing could not be read."""
        return self.missing == 0 and not self.problems


def _ranges(sequences: Iterable[int]) -> Iterator[Range]:
    """Rising sequences as ranges."""
    first = last = None
    for sequence in sequences:
        if last is not None and sequence == last + 1:
            last = sequence
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = sequence
    if first is not None and last is not None:
        yield first, last


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order, overlapping and adjacent ones joined."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def gaps_of(present: list[Range]) -> list[Range]:
    """What lies between 1 and the highest and is in none of the (merged) ranges."""
    gaps, expected = [], 1
    for first, last in present:
        if first > expected:
            gaps.append((expected, first - 1))
        expected = last + 1
    return gaps


def _length(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def verify(reader: RunReader | None, spool: SpoolStatus | None, problems: tuple[str, ...] = ()) -> Report:
    """Compares what is stored, open and in the spool with the sequences that were drawn."""
    spooled: Mapping[int, tuple[Range, ...]] = {each.epoch: each.ranges for each in spool.epochs} if spool is not None else {}
    known: dict[int, tuple[int, int, list[Range]]] = {}
    if reader is not None:
        counts, opened = reader.stored(), reader.opened()
        for epoch in counts.keys() | opened.keys():
            count, highest = counts.get(epoch, (0, 0))
            ranges: Iterable[Range] = [(1, highest)] if count else []
            if count != highest:
                ranges = _ranges(reader.sequences(epoch))
            known[epoch] = (count, len(opened.get(epoch, ())), merged([*ranges, *_ranges(opened.get(epoch, ()))]))
    reports = []
    for epoch in sorted(known.keys() | spooled.keys()):
        stored, open_count, in_store = known.get(epoch, (0, 0, []))
        present = merged([*in_store, *spooled.get(epoch, ())])
        gaps = gaps_of(present)
        reports.append(
            EpochReport(
                epoch=epoch,
                stored=stored,
                open=open_count,
                spooled=_length(present) - _length(in_store),
                highest=present[-1][1] if present else 0,
                missing=_length(gaps),
                gaps=tuple(gaps[:GAPS_LISTED]),
            )
        )
    unreadable = tuple(f"{name} in the spool cannot be read" for name in spool.unreadable) if spool is not None else ()
    return Report(tuple(reports), spool, (*problems, *unreadable))
