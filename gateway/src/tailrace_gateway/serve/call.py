"""A call of a query, from its admission to its answer.

IO: the request's body, the database, the answer. A client who leaves cancels the statement. Whole answers are buffered (at most one page, or
10,000 rows); streams go out as the rows come and stop reading the database while the client does not read.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress

from tailrace_contract.plan import Missing, QueryPlan, Returns
from tailrace_gateway.observe import Event, observation
from tailrace_gateway.serve import bulk
from tailrace_gateway.serve.admission import Admitted, Body, Granted, Refused, admit, admit_part, grant, prefers_timing, screen
from tailrace_gateway.serve.answer import Fresh, Reply, Timing, next_link, not_modified, success_fields
from tailrace_gateway.serve.cursor import Subject, seal
from tailrace_gateway.serve.engine import Ask, Done, Failure, Row, Rows, StatementFailed
from tailrace_gateway.serve.etag import LARGEST_BYTES, etag, matches
from tailrace_gateway.serve.exchange import ClientLeft, Exchange, Part
from tailrace_gateway.serve.formats import affected
from tailrace_gateway.serve.json_scan import Item, Kind
from tailrace_gateway.serve.serving import Serving
from tailrace_gateway.serve.tables import Key, Tables
from tailrace_gateway.serve.values import Malformed

AT_ONCE = 4
"""Of several calls in one body, so many are at the database at a time."""


async def answer_query(exchange: Exchange, serving: Serving, tables: Tables, key: Key, name: str) -> None:
    """Answers one call of `/q/NAME`, or several that stand in its body; Refused for whatever the checks find."""
    request = exchange.request
    granted = grant(request, name, tables, key, exchange.facts)
    deadline_s = asyncio.get_running_loop().time() + granted.query.plan.timeout_ms / 1000
    body = await exchange.body() if request.method == "POST" else Body()
    form = screen(request, body)
    items = bulk.calls(granted, body)
    if items is not None:
        bulk.check(granted, form, request.arguments, items)
        await _Several(exchange, serving, tables, granted, deadline_s).answer(items)
        return
    admitted = admit(request, granted, tables, form, body, exchange.facts)
    ask = _ask(admitted, deadline_s, exchange.sampled_trace)
    call = _Call(exchange, serving, tables, admitted, time.monotonic())
    if ask.write:
        await exchange.open_write()
    await _unless_left(exchange, asyncio.ensure_future(call.stream(ask) if admitted.streamed else call.whole(ask)))


def _ask(admitted: Admitted, deadline_s: float, trace: str | None) -> Ask:
    query = admitted.granted.query
    return Ask(
        connection=query.connection,
        version=query.plan.version,
        statement=admitted.statement,
        columns=query.plan.columns,
        values=admitted.values,
        limit=admitted.limit,
        deadline_s=deadline_s,
        write=query.plan.write,
        idempotency=admitted.idempotency,
        trace=trace,
    )


async def _unless_left(exchange: Exchange, work: "asyncio.Future[None]") -> None:
    """Waits for the work; when the client leaves first it is cancelled, and unless it could not be, ClientLeft."""
    leaving = asyncio.ensure_future(exchange.left())
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and exchange.started and exchange.request.method == "HEAD":
            # A stream's head was all that it asked for: who has it may go.
            await asyncio.wait((work,))
        if not work.done():
            exchange.left_early = True
            work.cancel()
            await asyncio.wait((work,))
        if work.cancelled():
            raise ClientLeft
        work.result()
    finally:
        leaving.cancel()
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work


class _Several:
    """Calls in one body: each is asked, answered and recorded as if it were alone; their answers leave together."""

    def __init__(self, exchange: Exchange, serving: Serving, tables: Tables, granted: Granted, deadline_s: float) -> None:
        self._exchange = exchange
        self._serving = serving
        self._tables = tables
        self._granted = granted
        self._deadline_s = deadline_s
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def answer(self, items: Sequence[Item]) -> None:
        """Answers all of them."""
        parts = self._exchange.parts(len(items))
        try:
            await _unless_left(self._exchange, asyncio.ensure_future(self._all(parts, items)))
        finally:
            for part in parts:
                await part.gone()  # Does nothing for one that is recorded.
        await self._exchange.finish_parts(bulk.together([part.reply for part in parts if part.reply is not None]))

    async def _all(self, parts: Sequence[Part], items: Sequence[Item]) -> None:
        async with asyncio.TaskGroup() as group:
            for part, item in zip(parts, items, strict=True):
                group.create_task(self._one(part, item))

    async def _one(self, part: Part, item: Item) -> None:
        async with self._turn:
            try:
                if item.kind is not Kind.OBJECT:
                    raise Refused("malformed_body")
                admitted = admit_part(self._granted, self._tables, item.text, part.facts)
                call = _Call(part, self._serving, self._tables, admitted, time.monotonic())
                await call.whole(_ask(admitted, self._deadline_s, part.sampled_trace))
            except Refused as refused:
                await part.refuse(refused.code, refused.faults)
            except Exception as error:
                self._serving.observe(observation(Event.CALL_FAILED, run=part.run_id, error=type(error).__name__, at="bulk"))
                await part.refuse("internal_error")


class _Call:
    """One admitted call."""

    def __init__(self, exchange: Exchange, serving: Serving, tables: Tables, admitted: Admitted, checked_s: float) -> None:
        self.exchange = exchange
        self.serving = serving
        self.tables = tables
        self.admitted = admitted
        self.checked_s = checked_s

    @property
    def granted(self) -> Granted:
        return self.admitted.granted

    @property
    def plan(self) -> QueryPlan:
        return self.admitted.granted.query.plan

    def _done(self, done: Done) -> None:
        self.exchange.facts.queue_us, self.exchange.facts.database_us = done.queue_us, done.database_us

    async def whole(self, ask: Ask) -> None:
        """An answer with a length."""
        rows: list[Row] = []
        done = Done()
        try:
            async with aclosing(self.serving.executor(ask.connection.engine).stream(ask)) as events:
                async for event in events:
                    if isinstance(event, Rows):
                        rows += event.rows
                    else:
                        done = event
        except StatementFailed as failed:
            self._done(Done(queue_us=failed.queue_us, database_us=failed.database_us))
            raise Refused(failed.failure.value) from None
        self._done(done)
        encoding_s = time.monotonic()
        if self.plan.returns is Returns.NONE:
            body, shown, truncated, link = affected(self.admitted.form, done.affected), 0, None, None
        else:
            body, shown, truncated, link = self._rows(rows)
        timing = self._timing(done, time.monotonic() - encoding_s)
        fresh = self._fresh(body)
        request = self.exchange.request
        if fresh is not None and request.method in ("GET", "HEAD") and matches(fresh.tag, request.fields(b"if-none-match")):
            await self.exchange.finish(not_modified(self.exchange.run_id, fresh, time.time()))
            return
        fields = success_fields(
            self.admitted.form,
            self.exchange.run_id,
            rows=shown,
            truncated=truncated,
            link=link,
            now_s=time.time(),
            length=len(body),
            timing=timing,
            fresh=fresh,
        )
        await self.exchange.finish(Reply(200, fields, body, rows=shown))

    def _fresh(self, body: bytes) -> Fresh | None:
        """Of an answer that the data plane would keep; Python keeps none."""
        ttl_ms = self.plan.cache_ttl_ms
        return None if ttl_ms is None or len(body) > LARGEST_BYTES else Fresh(ttl_ms // 1000, etag(body))

    def _timing(self, done: Done, encode_s: float) -> Timing | None:
        if not prefers_timing(self.exchange.request):
            return None
        return Timing((self.checked_s - self.exchange.began_s) * 1000, done.queue_us / 1000, done.database_us / 1000, encode_s * 1000)

    def _rows(self, rows: list[Row]) -> tuple[bytes, int, bool, str | None]:
        """Body, rows in it, whether there are more, target of the next page."""
        returns, form, writer = self.plan.returns, self.admitted.form, self.granted.sight.writer
        more = self.admitted.shown is not None and len(rows) > self.admitted.shown
        rows = rows[: self.admitted.shown]
        if not rows and returns is Returns.ONE and self.plan.missing is Missing.ERROR:
            raise Refused("row_not_found")
        try:
            written = writer.separator(form).join([writer.row(form, row) for row in rows])
            body = writer.begin(form, returns) + written + writer.end(form, returns, len(rows), more)
            link = self._link(rows[-1]) if more and self.plan.page is not None else None
        except Malformed:
            raise Refused(Failure.REFUSED.value) from None
        return body, len(rows), more, link

    def _link(self, last: Row) -> str:
        page, query = self.plan.page, self.granted.query
        assert page is not None
        assert self.tables.cursor_key is not None
        subject = Subject(self.granted.key.id, query.name, query.plan.version)
        cursor = seal(self.tables.cursor_key, subject, [last[key.column] for key in page.keys], query.connection.engine)
        return next_link(query.name, self.exchange.request.arguments, cursor, self.admitted.has_body)

    async def stream(self, ask: Ask) -> None:
        """An answer without a length: the head leaves with the first rows, or at the end of an empty result."""
        form, returns, writer = self.admitted.form, self.plan.returns, self.granted.sight.writer
        exchange, separator = self.exchange, writer.separator(form)
        try:
            async with asyncio.timeout_at(ask.deadline_s), aclosing(self.serving.executor(ask.connection.engine).stream(ask)) as events:
                async for event in events:
                    encoded = separator.join([writer.row(form, row) for row in event.rows]) if isinstance(event, Rows) else b""
                    if encoded and exchange.facts.rows:
                        encoded = separator + encoded
                    if not exchange.started:
                        await self._start()
                        encoded = writer.begin(form, returns) + encoded
                    if isinstance(event, Rows):
                        exchange.facts.rows += len(event.rows)
                        await exchange.send_chunk(encoded)
                    else:
                        self._done(event)
                        await exchange.send_chunk(encoded + writer.end(form, returns, exchange.facts.rows, truncated=False))
        except StatementFailed as failed:
            self._done(Done(queue_us=failed.queue_us, database_us=failed.database_us))
            await self._broken(failed.failure.value)
        except TimeoutError:
            await self._broken(Failure.TIMEOUT.value)
        except Malformed:
            await self._broken(Failure.REFUSED.value)
        else:
            await exchange.end_stream(200, "")

    async def _start(self) -> None:
        fields = success_fields(
            self.admitted.form,
            self.exchange.run_id,
            rows=None,
            truncated=False,
            link=None,
            now_s=time.time(),
            length=None,
            timing=None,
        )
        await self.exchange.start_stream(fields)

    async def _broken(self, code: str) -> None:
        if not self.exchange.started:
            raise Refused(code)
        await self.exchange.end_stream(200, code)
