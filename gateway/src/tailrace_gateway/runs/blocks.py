"""Blocks of runs in the embedded store, as its reader needs them. IO: the connection that it is given.

Rejects with BlockUnreadable, and with ReadTimeout between two blocks.
"""

import heapq
import sqlite3
import time
from collections.abc import Iterator
from collections.abc import Sequence as Values
from dataclasses import dataclass

from tailrace_contract.run import ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_contract.run_block import Block, BlockUnreadable, ids

from tailrace_gateway.runs.reading import ReadTimeout
from tailrace_gateway.runs.usage import DAY_US

_CLIENTS = tuple(ClientClass)
_SERVED_BY = tuple(ServedBy)

Moment = tuple[int, int, int]
"""Where a run is in the history: time, epoch, sequence."""

Grouped = dict[tuple[int, str, str, int], list[int]]
"""By day, key, query and duration: calls, errors, rows, bytes, database time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter in the store's numbers. None: any. `statuses`: lowest and highest."""

    key: int | None = None
    query: int | None = None
    statuses: tuple[int, int] | None = None


class _Open:
    """A block with its dictionaries."""

    def __init__(self, epoch: int, count: int, keys: bytes, queries: bytes, body: bytes) -> None:
        self.epoch = epoch
        self.keys = ids(keys)
        self.queries = ids(queries)
        self.columns = Block(count, body)

    def matching(self, wanted: Wanted) -> Values[int]:
        """Which of its runs the filter admits, rising."""
        found: Values[int] = range(self.columns.count)
        if wanted.key is not None:
            if wanted.key not in self.keys:
                return ()
            place, column = self.keys.index(wanted.key), self.columns.column("key")
            found = [at for at in found if column[at] == place]
        if wanted.query is not None:
            places = {at for at, query in enumerate(self.queries[::3]) if query == wanted.query}
            column = self.columns.column("query")
            found = [at for at in found if column[at] in places]
        if wanted.statuses is not None:
            low, high = wanted.statuses
            column = self.columns.column("status")
            found = [at for at in found if low <= column[at] <= high]
        return found

    def moment(self, at: int) -> Moment:
        return self.columns.column("time_us")[at], self.epoch, self.columns.column("seq")[at]


class Blocks:
    """The blocks of an open store."""

    def __init__(self, connection: sqlite3.Connection, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._names: dict[int, str] = {0: ""}

    def newest(self, wanted: Wanted, before: Moment | None, limit: int, known: Values[Moment]) -> list[Run]:
        """The newest runs that come before a moment, newest first; no more than could be among the newest with what is `known`."""
        # A heap of the best so far: its first is what a run must beat.
        best: list[tuple[Moment, tuple[_Open, int] | None]] = [(moment, None) for moment in known[:limit]]
        heapq.heapify(best)
        for rowid, newest_us, keys, queries in self._by_time(wanted, before):
            if len(best) >= limit and newest_us < best[0][0][0]:
                break
            self._in_time()
            if (wanted.key is not None and wanted.key not in ids(keys)) or (
                wanted.query is not None and wanted.query not in ids(queries)[::3]
            ):
                continue
            opened = self._opened("rowid = ?", (rowid,))
            if opened is None:
                continue
            times, taken = opened.columns.column("time_us"), 0
            # Nearly sorted already, and stable: runs of one time stay in the order of their sequences.
            rising = sorted(opened.matching(wanted), key=times.__getitem__)
            for at in reversed(rising):
                moment = opened.moment(at)
                if before is not None and moment >= before:
                    continue
                if len(best) < limit:
                    heapq.heappush(best, (moment, (opened, at)))
                elif moment > best[0][0]:
                    heapq.heapreplace(best, (moment, (opened, at)))
                else:
                    break
                taken += 1
                if taken == limit:
                    break
        best.sort(key=lambda found: found[0], reverse=True)
        return [self._run(*place) for _, place in best if place is not None]

    def _by_time(self, wanted: Wanted, before: Moment | None) -> Iterator[tuple[int, int, bytes, bytes]]:
        conditions, values = ["1"], list[int]()
        if before is not None:
            conditions.append("oldest_us <= ?")
            values.append(before[0])
        if wanted.statuses is not None:
            conditions.append("lowest_status <= ? AND highest_status >= ?")
            values += reversed(wanted.statuses)
        return self._connection.execute(
            f"SELECT rowid, newest_us, keys, queries FROM run_blocks WHERE {' AND '.join(conditions)} ORDER BY newest_us DESC",  # noqa: S608
            values,
        )

    def time_of(self, wanted: Wanted, epoch: int, sequence: int) -> int | None:
        """The time of a run that is in a block and that the filter admits."""
        opened = self._opened("epoch = ? AND first <= ? AND last >= ?", (epoch, sequence, sequence))
        if opened is None:
            return None
        sequences = opened.columns.column("seq")
        return next((opened.columns.column("time_us")[at] for at in opened.matching(wanted) if sequences[at] == sequence), None)

    def add_usage(self, wanted: Wanted, from_us: int, until_us: int, grouped: Grouped) -> bool:
        """Adds the runs of a range of time; whether there were blocks of it."""
        any_block = False
        found = self._connection.execute(
            "SELECT epoch, count, keys, queries, body, oldest_us, newest_us FROM run_blocks WHERE newest_us >= ? AND oldest_us < ?",
            (from_us, until_us),
        )
        for *row, oldest_us, newest_us in found:
            self._in_time()
            any_block = True
            opened = _Open(*row)
            matching = opened.matching(wanted)
            columns = [opened.columns.column(name) for name in ("time_us", "key", "query", "duration_us", "code")]
            sums = [opened.columns.column(name) for name in ("rows", "bytes", "database_us")]
            times, keys, queries, durations, codes = columns
            whole = from_us <= oldest_us and newest_us < until_us
            key_names, query_names = self._all(opened.keys), self._all(opened.queries[::3])
            for at in matching:
                if not whole and not from_us <= times[at] < until_us:
                    continue
                group = (times[at] // DAY_US, key_names[keys[at]], query_names[queries[at]], durations[at])
                total = grouped.get(group)
                if total is None:
                    total = grouped[group] = [0] * 5
                total[0] += 1
                total[1] += codes[at] != 0
                total[2] += sums[0][at]
                total[3] += sums[1][at]
                total[4] += sums[2][at]
        return any_block

    def stored(self) -> dict[int, tuple[int, int]]:
        """By epoch: how many runs, and the highest sequence."""
        rows = self._connection.execute("SELECT epoch, sum(count), max(last) FROM run_blocks GROUP BY epoch")
        return {int(epoch): (int(count), int(highest)) for epoch, count, highest in rows}

    def sequences(self, epoch: int, above: int) -> Iterator[int]:
        """Rising sequences of an epoch's runs."""
        rows = self._connection.execute(
            "SELECT rowid, first, last, count FROM run_blocks WHERE epoch = ? AND last > ? ORDER BY first", (epoch, above)
        )
        for rowid, first, last, count in rows:
            self._in_time()
            if last - first + 1 == count:
                yield from range(max(first, above + 1), last + 1)
            elif (opened := self._opened("rowid = ?", (rowid,))) is not None:
                yield from (sequence for sequence in opened.columns.column("seq") if sequence > above)

    def later(self, epoch: int, above: int, limit: int) -> list[Run]:
        """The next runs of an epoch, by sequence."""
        runs = list[Run]()
        rows = self._connection.execute(
            "SELECT epoch, count, keys, queries, body FROM run_blocks WHERE epoch = ? AND last > ? ORDER BY first", (epoch, above)
        )
        for row in rows:
            if len(runs) >= limit:
                break
            self._in_time()
            opened = _Open(*row)
            later = [at for at, sequence in enumerate(opened.columns.column("seq")) if sequence > above]
            runs += (self._run(opened, at) for at in later[: limit - len(runs)])
        return runs

    def _opened(self, condition: str, values: tuple[int, ...]) -> _Open | None:
        row = self._connection.execute(
            f"SELECT epoch, count, keys, queries, body FROM run_blocks WHERE {condition}",  # noqa: S608
            values,
        ).fetchone()
        return None if row is None else _Open(*row)

    def _in_time(self) -> None:
        if time.monotonic() >= self._deadline_s:
            raise ReadTimeout

    def _name(self, number: int) -> str:
        known = self._names.get(number)
        if known is None:
            row = self._connection.execute("SELECT name FROM names WHERE id = ?", (number,)).fetchone()
            if row is None:
                raise BlockUnreadable
            known = self._names[number] = str(row[0])
        return known

    def _all(self, numbers: Values[int]) -> list[str]:
        return [self._name(number) for number in numbers]

    def _run(self, opened: _Open, at: int) -> Run:
        def number(field: str) -> int:
            return opened.columns.column(field)[at]

        place = 3 * number("query")
        query, version, connection = self._all(opened.queries[place : place + 3])
        trace = opened.columns.trace(at)
        return Run(
            epoch=Epoch(opened.epoch),
            sequence=Sequence(number("seq")),
            time_us=number("time_us"),
            duration_us=number("duration_us"),
            queue_us=number("queue_us"),
            database_us=number("database_us"),
            query=query,
            query_version=version,
            key=self._name(opened.keys[number("key")]),
            connection=connection,
            status=number("status"),
            code=self._name(number("code")),
            rows=number("rows"),
            bytes=number("bytes"),
            batch=number("batch"),
            trace="" if trace is None else trace.hex(),
            client=_CLIENTS[number("client")],
            served_by=_SERVED_BY[number("served_by")],
        )
