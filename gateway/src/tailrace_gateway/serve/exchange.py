"""One request and its answer over ASGI: the body in, the run stored, then the answer out.

IO: ASGI's receive and send, the recorder. A run is stored before its answer leaves. Forwarded calls are recorded by the data plane: their
facts go out in private header fields instead.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tailrace_contract.codes import Fault
from tailrace_contract.run import Epoch, Run, Sequence, ServedBy, client_class, parse_run_id, run_id
from tailrace_gateway.observe import Event, Observer, observation
from tailrace_gateway.serve.admission import BODY_LIMIT_BYTES, Body, Facts, Refused
from tailrace_gateway.serve.answer import Fields, Reply, refusal
from tailrace_gateway.serve.bulk import fitting
from tailrace_gateway.serve.recording import Recorder, RunsUnavailable
from tailrace_gateway.serve.request import Address, Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_DEADLINE_S = 30.0


class ClientLeft(Exception):
    """The client went away before its answer."""


class Exchange:
    """State of one exchange. `finish` or (`start_stream`, `send_chunk`…, `end_stream`) exactly once."""

    def __init__(
        self, request: Request, receive: Receive, send: Send, recorder: Recorder, observe: Observer, forwarded_id: str | None
    ) -> None:
        self.request = request
        self.facts = Facts()
        self.address: Address = request.peer
        self.began_s = time.monotonic()
        self._receive = receive
        self._send = send
        self._recorder = recorder
        self._observe = observe
        self._forwarded_id = forwarded_id
        self._id: tuple[Epoch, Sequence] | None = None
        self._trace = request.trace()
        self.started = False
        self.left_early = False
        """The client went while the call could no longer be undone."""
        self._stored = False
        self._opened = False
        self._sent_bytes = 0

    @property
    def run_id(self) -> str:
        """The run's id; drawn at its first use, and then always stored."""
        if self._forwarded_id is not None:
            return self._forwarded_id
        if self._id is None:
            self._id = self._recorder.draw()
        return run_id(*self._id)

    @property
    def sampled_trace(self) -> str | None:
        """The traceparent's text, when it is to go along with the statement."""
        return self._trace.text if self._trace is not None and self._trace.sampled else None

    async def body(self) -> Body:
        """The request's body, bounded; ClientLeft when it breaks off or does not come in time."""
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    data += message.get("body", b"")
                    if len(data) > BODY_LIMIT_BYTES:
                        return Body(too_large=True)
                    if not message.get("more_body", False):
                        return Body(bytes(data))
        except TimeoutError:
            raise ClientLeft from None

    async def left(self) -> None:
        """Returns when the client has gone."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    def _run(self, status: int, code: str, size: int) -> Run | None:
        if self._forwarded_id is not None:
            return None
        self.run_id  # noqa: B018 - drawn here at the latest
        assert self._id is not None
        facts = self.facts
        return Run(
            epoch=self._id[0],
            sequence=self._id[1],
            time_us=time.time_ns() // 1000,
            duration_us=round((time.monotonic() - self.began_s) * 1e6),
            queue_us=facts.queue_us,
            database_us=facts.database_us,
            query=facts.query,
            query_version=facts.query_version,
            key=facts.key,
            connection=facts.connection,
            status=status,
            code=code,
            rows=facts.rows,
            bytes=size,
            batch=1,
            trace=self._trace.id if self._trace is not None else "",
            client=client_class(str(self.address)),
            served_by=ServedBy.GATEWAY,
            params=facts.params,
        )

    def _tell(self, status: int, code: str) -> None:
        self._observe(
            observation(
                Event.CALL_FINISHED,
                query=self.facts.query,
                status=status,
                code=code,
                served_by=(ServedBy.GATEWAY if self._forwarded_id is None else ServedBy.FORWARDED).value,
                duration_s=time.monotonic() - self.began_s,
                database_s=self.facts.database_us / 1e6,
            )
        )

    def _private(self, code: str) -> Fields:
        """What the data plane records of a forwarded call; it takes them off."""
        if self._forwarded_id is None:
            return []
        facts = self.facts
        told = (
            ("Rows", str(facts.rows)),
            ("Database-Us", str(facts.database_us)),
            ("Code", code),
            ("Key", facts.key),
            ("Query", facts.query),
            ("Query-Version", facts.query_version),
            ("Connection", facts.connection),
        )
        return [(f"X-Tailrace-{name}", value) for name, value in told if value]

    async def finish(self, reply: Reply) -> None:
        """Stores the run and sends the whole answer."""
        reply = await self._store(reply)
        self.started = True
        await self._head(reply.status, [*reply.fields, *self._private(reply.code)])
        await self._send({"type": "http.response.body", "body": reply.body})

    async def _store(self, reply: Reply) -> Reply:
        """Stores the run; what may be sent then."""
        self.facts.rows = reply.rows
        status = 499 if self.left_early else reply.status
        run = self._run(status, reply.code, len(reply.body))
        if run is not None:
            try:
                await self._recorder.store(run)
            except RunsUnavailable:
                # Of a write that may have happened the run is there as open, and its end is owed: the caller is told the truth.
                if not self._opened:
                    reply = refusal("spool_full", None, time.time())
        self._stored = True
        self._tell(status, reply.code)
        return reply

    def parts(self, count: int) -> "list[Part]":
        """Several calls that this request holds. From here on it has no run of its own. Refused when the data plane records it: it has one id."""
        if self._forwarded_id is not None:
            raise Refused("bulk_unsupported")
        made = [Part(self) for _ in range(count)]
        self._stored = True
        return made

    async def finish_parts(self, reply: Reply) -> None:
        """Sends the answer to all of them."""
        await self.finish_unrecorded(reply)

    async def open_write(self) -> None:
        """Stores the run as open before the database is asked: a write that can't be recorded must not happen. RunsUnavailable."""
        run = self._run(0, "", 0)
        if run is not None:
            await self._recorder.open(run)
            self._opened = True

    async def finish_unrecorded(self, reply: Reply) -> None:
        """Sends an answer that has no run (OPTIONS)."""
        self.started = True
        await self._head(reply.status, reply.fields)
        await self._send({"type": "http.response.body", "body": reply.body})

    async def refuse(self, code: str, faults: tuple[tuple[str, Fault], ...] = (), allow: str = "") -> None:
        """Finishes with a problem."""
        await self.finish(refusal(code, self.run_id, time.time(), faults, allow))

    async def gone(self) -> None:
        """Records that the client left before the end of its answer. Nothing more is sent."""
        if self._stored:
            return
        run = self._run(499, "client_closed", self._sent_bytes)
        self._tell(499, "client_closed")
        self._stored = True
        if run is not None:
            with suppress(RunsUnavailable):
                await self._recorder.store(run)

    # Streams: a run that is open (`aborted`) before the head leaves, and whole at the end.

    async def start_stream(self, fields: Fields) -> None:
        """Stores the run as open and sends the head of a 200."""
        run = self._run(200, "", 0)
        if run is not None:
            await self._recorder.open(run)
        self.started = True
        await self._head(200, [*fields, *self._private("")])

    async def send_chunk(self, data: bytes) -> None:
        """Sends a part of the body; waits while the client's buffer is full."""
        if data:
            self._sent_bytes += len(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, status: int, code: str) -> None:
        """Stores the whole run; ends the body, unless it failed: then the connection is cut by not ending it."""
        run = self._run(status, code, self._sent_bytes)
        if run is not None:
            await self._recorder.store(run)
        self._stored = True
        self._tell(status, code)
        if not code:
            await self._send({"type": "http.response.body", "body": b""})

    async def _head(self, status: int, fields: Fields) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


class Part(Exchange):
    """One of several calls in a body: recorded as a call of its own; its answer is kept in `reply` instead of being sent."""

    def __init__(self, whole: Exchange) -> None:
        super().__init__(whole.request, whole._receive, whole._send, whole._recorder, whole._observe, None)
        self.facts = replace(whole.facts)
        self.address = whole.address
        self.reply: Reply | None = None

    async def finish(self, reply: Reply) -> None:
        """Stores the run and keeps the answer."""
        self.reply = await self._store(fitting(reply, self.run_id))


def forwarded_id(value: bytes | None) -> str | None:
    """The run id that the data plane sent along; None when there is none that is valid."""
    try:
        text = (value or b"").decode("ascii")
        parse_run_id(text)
    except (UnicodeDecodeError, ValueError):
        return None
    return text
