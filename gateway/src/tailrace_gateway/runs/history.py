"""Runs, newest first: by end time, then by id. Pure but for the reader it is given."""

from collections.abc import Iterator
from collections.abc import Sequence as Values
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import JsonValue
from tailrace_contract.run import Epoch, Run, Sequence

if TYPE_CHECKING:
    from tailrace_gateway.runs.reading import RunReader

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """What is asked for. None: any. `status` may be a class: 4 for all 4xx. `after`: the last run of the page before."""

    limit: int = LIMIT_DEFAULT
    key: str | None = None
    query: str | None = None
    status: int | None = None
    after: tuple[Epoch, Sequence] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Runs and whether older ones follow."""

    runs: tuple[Run, ...]
    more: bool


def page_of(found: Values[Run], wanted: HistoryFilter) -> Page:
    """A page out of one run more than wanted."""
    return Page(tuple(found[: wanted.limit]), len(found) > wanted.limit)


class Follower:
    """Runs that come in after it was made, each once, roughly in order. Streams come when they end, whatever their number."""

    def __init__(self, reader: "RunReader | None") -> None:
        self._floors: dict[int, int] = {}
        self._seen: dict[int, set[int]] = {}
        if reader is not None:
            opened = reader.opened()
            for epoch, highest in reader.highest().items():
                # What is open now is to be shown when it ends.
                self._floors[epoch] = min([highest, *(sequence - 1 for sequence in opened.get(epoch, ()))])
                self._seen[epoch] = set(reader.sequences(epoch, self._floors[epoch]))

    def news(self, reader: "RunReader", limit: int = 10_000) -> Iterator[Run]:
        """What has come in since."""
        fresh: list[Run] = []
        for epoch in reader.highest():
            seen, floor = self._seen.setdefault(epoch, set()), self._floors.get(epoch, 0)
            runs = [run for run in reader.later(epoch, floor, limit + len(seen)) if run.sequence not in seen]
            seen.update(run.sequence for run in runs)
            while floor + 1 in seen:
                floor += 1
                seen.discard(floor)
            self._floors[epoch] = floor
            fresh += runs
        yield from sorted(fresh, key=lambda run: (run.time_us, run.epoch, run.sequence))


def rfc3339(time_us: int) -> str:
    """UTC with µs."""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_us % 1_000_000:06d}Z"


def run_json(run: Run) -> dict[str, JsonValue]:
    """A run as the API shows it; times in µs, sizes in bytes."""
    return {
        "id": run.id,
        "time": rfc3339(run.time_us),
        "durationUs": run.duration_us,
        "queueUs": run.queue_us,
        "databaseUs": run.database_us,
        "query": run.query,
        "queryVersion": run.query_version,
        "key": run.key,
        "connection": run.connection,
        "status": run.status,
        "code": run.code,
        "rows": run.rows,
        "bytes": run.bytes,
        "batch": run.batch,
        "cached": run.cached,
        "trace": run.trace,
        "client": run.client.value,
        "servedBy": run.served_by.value,
        "params": run.params,
    }


def page_json(page: Page) -> dict[str, JsonValue]:
    """A page as the API shows it: `next` is what `after` of the next page is to be, null at the end."""
    runs: list[JsonValue] = [run_json(run) for run in page.runs]
    return {"runs": runs, "next": page.runs[-1].id if page.more and page.runs else None}
