"""Snapshots to the data plane: one keep-alive connection over its Unix socket, whole snapshots, the newest wins.

IO: the socket `DIR/run/dataplane.sock`. A snapshot goes out when it changes, at every reconnect, and when `GET /plans` (every 500 ms)
shows another version. One that was refused with 4xx is not sent again until it changes or the data plane comes back; anything else
that fails is tried again with back-off. The end of the connection is noticed at once. Behind each snapshot, and whenever it alone changes,
goes its report (`PUT /sources`): of a large API that is a thousandth of the bytes, and nothing is swapped for it.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace_gateway.errors import DataPlaneGone
from tailrace_gateway.observe import Event, Observer, observation

POLL_S = 0.5
DEADLINE_S = 30.0
"""Of one exchange: 64 MiB and a swap on every thread fit well into it."""
BACK_OFF_S = (0.05, 2.0)
ANSWER_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PushStatus:
    """What the data plane is known to serve. `acknowledged`: version, 0 for none; `refused`: the version it turned down, with the status."""

    connected: bool = False
    acknowledged: int = 0
    refused: int | None = None
    refused_status: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot: its version, its bytes, and those of its report (empty: none)."""

    version: int
    body: bytes
    report: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of one exchange."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Stopped:
    """A query version whose callers the data plane lets share no statement any more."""

    query: str
    version: str
    reason: str


class PlansConnection(asyncio.Protocol):
    """A minimal HTTP/1.1 client: one request at a time, answers with Content-Length. DataPlaneGone for everything else."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self._data = bytearray()
        self._arrived = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Gathers an answer; closes when it is out of bounds."""
        self._data += data
        self._arrived.set()
        if len(self._data) > ANSWER_LIMIT_BYTES:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells everyone who waits."""
        self.closed.set()
        self._arrived.set()

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.close()

    async def exchange(self, method: str, body: bytes = b"", path: str = "/plans") -> Answer:
        """Sends one request and reads its answer."""
        if self.closed.is_set() or self._transport is None:
            raise DataPlaneGone("The data plane closed its socket.")
        self._data.clear()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        if method == "PUT":
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(head.encode() + b"\r\n")
        if body:
            self._transport.write(body)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._answer()
        except TimeoutError:
            self.close()
            raise DataPlaneGone("The data plane did not answer in time.") from None

    async def _more(self) -> None:
        if self.closed.is_set():
            raise DataPlaneGone("The data plane closed its socket.")
        self._arrived.clear()
        await self._arrived.wait()

    async def _answer(self) -> Answer:
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            await self._more()
        status_line, *lines = bytes(self._data[:end]).split(b"\r\n")
        length = 0
        try:
            status = int(status_line.split(b" ")[1])
            for line in lines:
                name, _, value = line.partition(b":")
                if name.strip().lower() == b"content-length":
                    length = int(value)
        except (IndexError, ValueError):
            self.close()
            raise DataPlaneGone("The data plane did not answer with HTTP.") from None
        start = end + 4
        while len(self._data) < start + length:
            await self._more()
        return Answer(status, bytes(self._data[start : start + length]))


def served_version(answer: Answer) -> int:
    """Version in the body of a 200; DataPlaneGone when it has none."""
    try:
        version = json.loads(answer.body)["version"]
    except (ValueError, KeyError, TypeError):
        raise DataPlaneGone("The data plane did not name its version.") from None
    if answer.status != 200 or type(version) is not int:
        raise DataPlaneGone("The data plane did not name its version.")
    return version


def stopped_queries(answer: Answer) -> tuple[Stopped, ...]:
    """What the body of a 200 lists as `uncoalesced`; nothing where it has another form."""
    try:
        return tuple(
            Stopped(str(each["query"]), str(each["version"]), str(each["reason"])) for each in json.loads(answer.body)["uncoalesced"]
        )
    except (ValueError, KeyError, TypeError):
        return ()


class Pusher:
    """Keeps the data plane on the offered snapshot. `offer` at any time from the event loop; `run` is a task for the process's life.

    `on_stopped` is called in the event loop with the queries whose callers no longer share statements, whenever these change.
    """

    def __init__(self, socket: Path, observe: Observer, on_stopped: Callable[[tuple[Stopped, ...]], None] = lambda _: None) -> None:
        self._on_stopped = on_stopped
        self._stopped: tuple[Stopped, ...] = ()
        self._socket = socket
        self._observe = observe
        self._offer: Offer | None = None
        self._changed = asyncio.Event()
        self._status = PushStatus()
        self._moved = asyncio.Condition()

    @property
    def status(self) -> PushStatus:
        """What is known now."""
        return self._status

    def offer(self, version: int, body: bytes, report: bytes = b"") -> None:
        """The snapshot to be served from now on: its version, its bytes, built once, and its report."""
        self._offer = Offer(version, body, report)
        self._changed.set()

    def report(self, version: int, report: bytes) -> None:
        """Another report of the snapshot that was offered last; of any other it comes too late."""
        if self._offer is not None and self._offer.version == version:
            self._offer = replace(self._offer, report=report)
            self._changed.set()

    async def acknowledged(self, version: int) -> None:
        """Returns when the data plane serves this version (or a later one)."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._status.acknowledged >= version)

    async def gone(self) -> None:
        """Returns when there is no connection to the data plane."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._status.connected)

    async def _set(self, status: PushStatus) -> None:
        async with self._moved:
            self._status = status
            self._moved.notify_all()

    async def run(self) -> None:
        """Connects, pushes, watches; for ever, until cancelled."""
        loop = asyncio.get_running_loop()
        pause = BACK_OFF_S[0]
        told = False
        while True:
            connection: PlansConnection | None = None
            try:
                async with asyncio.timeout(DEADLINE_S):
                    _, connection = await loop.create_unix_connection(PlansConnection, str(self._socket))
                began = loop.time()
                await self._set(PushStatus(connected=True))
                self._observe(observation(Event.DATA_PLANE_CONNECTED))
                told = False
                await self._serve(connection)
            except (OSError, TimeoutError, DataPlaneGone) as error:
                if connection is not None and loop.time() - began > 1:
                    pause = BACK_OFF_S[0]
                await self._set(PushStatus())
                if not told:
                    told = True
                    reason = error.message if isinstance(error, DataPlaneGone) else "Its socket does not accept connections."
                    self._observe(observation(Event.DATA_PLANE_GONE, reason=reason))
            finally:
                if connection is not None:
                    connection.close()
            await asyncio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311
            pause = min(pause * 2, BACK_OFF_S[1])

    async def _serve(self, connection: PlansConnection) -> None:
        """Until the connection ends (DataPlaneGone)."""
        refused: int | None = None
        reported: tuple[int, bytes] | None = None
        closed = asyncio.ensure_future(connection.closed.wait())
        try:
            while True:
                self._changed.clear()
                offer = self._offer
                answer = await connection.exchange("GET")
                version = served_version(answer)
                if (stopped := stopped_queries(answer)) != self._stopped:
                    self._stopped = stopped
                    self._on_stopped(stopped)
                if offer is not None and version != offer.version and refused != offer.version:
                    refused = await self._push(connection, offer.version, offer.body)
                    reported = None
                elif version != self._status.acknowledged:
                    await self._set(PushStatus(True, version, self._status.refused, self._status.refused_status))
                due = offer is not None and offer.report and self._status.acknowledged == offer.version
                if offer is not None and due and reported != (offer.version, offer.report):
                    reported = await self._report(connection, offer)
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait((closed, changed), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if connection.closed.is_set():
                    raise DataPlaneGone("The data plane closed its socket.")
        finally:
            closed.cancel()

    async def _report(self, connection: PlansConnection, offer: Offer) -> tuple[int, bytes] | None:
        """Sends it; gives what need not be sent again. 409: the snapshot is not whole there, so that it is sent again, whole."""
        answer = await connection.exchange("PUT", offer.report, "/sources")
        if answer.status == 409:
            await self._push(connection, offer.version, offer.body)
            return None
        if answer.status != 200:
            self._observe(observation(Event.PLANS_REFUSED, version=offer.version, status=answer.status))
        return offer.version, offer.report

    async def _push(self, connection: PlansConnection, version: int, body: bytes) -> int | None:
        """Sends it; gives the version when the data plane refuses it for good."""
        began = time.monotonic()
        answer = await connection.exchange("PUT", body)
        if 400 <= answer.status < 500:
            await self._set(PushStatus(True, self._status.acknowledged, version, answer.status))
            self._observe(observation(Event.PLANS_REFUSED, version=version, status=answer.status))
            return version
        served = served_version(answer)
        refused = json.loads(answer.body).get("refused", [])
        await self._set(PushStatus(True, served))
        self._observe(
            observation(Event.PLANS_PUSHED, version=served, refused=len(refused), duration_ms=round((time.monotonic() - began) * 1000, 1))
        )
        return None
