"""The pusher against a stand-in for the data plane's socket."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tailrace_contract.golden import FOLDER
from tailrace_contract.plan import Snapshot
from tailrace_contract.report import Report, StoppedReport
from tailrace_gateway.observe import Event, Observation
from tailrace_gateway.push import Pusher, Stopped
from tailrace_gateway.served import without_stopped


class StandIn:
    """Speaks `/plans`; `refuse` makes it answer 400."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        self.puts: list[bytes] = []
        self.reports: list[bytes] = []
        self.conflicts = 0
        self.refuse = False
        self.mute = False
        self.uncoalesced: list[dict[str, str]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_unix_server(self._serve, str(self.path), limit=1 << 24)

    async def stop(self) -> None:
        assert self.server
        self.server.close()
        for writer in self.writers:
            writer.close()
        self.writers.clear()
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0)
                body = await reader.readexactly(length)
                status = "200 OK"
                if head.startswith("PUT /plans "):
                    self.puts.append(body)
                    if self.refuse:
                        status = "400 Bad Request"
                    else:
                        self.version = json.loads(body)["version"]
                if head.startswith("PUT /sources "):
                    if json.loads(body)["version"] != self.version or self.conflicts:
                        self.conflicts -= 1
                        status = "409 Conflict"
                    else:
                        self.reports.append(body)
                answer = json.dumps({"version": self.version, "refused": [], "uncoalesced": self.uncoalesced}).encode()
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\n\r\n".encode())
                writer.write(answer[:5])
                await writer.drain()
                writer.write(answer[5:])


def body(version: int) -> bytes:
    return json.dumps({"version": version, "pad": "x" * 300_000}).encode()


@pytest.fixture
def seen() -> list[Observation]:
    return []


async def within(awaitable: object) -> None:
    async with asyncio.timeout(20):
        await awaitable  # type: ignore[misc]


async def test_pushes_changes_and_again_after_a_restart(tmp_path: Path, seen: list[Observation]) -> None:
    plane = StandIn(tmp_path / "s")
    pusher = Pusher(plane.path, seen.append)
    task = asyncio.create_task(pusher.run())
    try:
        pusher.offer(7, body(7))
        await plane.start()
        await within(pusher.acknowledged(7))
        pusher.offer(8, body(8))
        await within(pusher.acknowledged(8))
        assert [json.loads(put)["version"] for put in plane.puts] == [7, 8]
        await plane.stop()
        fresh = StandIn(plane.path)
        await fresh.start()
        while not fresh.puts:
            await asyncio.sleep(0.01)
        await within(pusher.acknowledged(8))
        assert fresh.version == 8
        await fresh.stop()
    finally:
        task.cancel()
    events = [observed.event for observed in seen]
    assert events.count(Event.DATA_PLANE_CONNECTED) == 2
    assert Event.DATA_PLANE_GONE in events


async def test_another_version_in_the_data_plane_is_put_right(tmp_path: Path, seen: list[Observation]) -> None:
    plane = StandIn(tmp_path / "s")
    await plane.start()
    pusher = Pusher(plane.path, seen.append)
    pusher.offer(3, body(3))
    task = asyncio.create_task(pusher.run())
    try:
        await within(pusher.acknowledged(3))
        plane.version = 0
        while len(plane.puts) < 2:
            await asyncio.sleep(0.01)
        assert plane.version == 3
    finally:
        task.cancel()
        await plane.stop()


async def test_a_refused_snapshot_is_told_and_not_sent_again(tmp_path: Path, seen: list[Observation]) -> None:
    plane = StandIn(tmp_path / "s")
    plane.refuse = True
    await plane.start()
    pusher = Pusher(plane.path, seen.append)
    pusher.offer(3, body(3))
    task = asyncio.create_task(pusher.run())
    try:
        while pusher.status.refused is None:
            await asyncio.sleep(0.01)
        assert pusher.status.refused_status == 400
        await asyncio.sleep(1.2)
        assert len(plane.puts) == 1
        plane.refuse = False
        pusher.offer(4, body(4))
        await within(pusher.acknowledged(4))
        assert pusher.status.refused is None
    finally:
        task.cancel()
        await plane.stop()
    assert [observed.fields for observed in seen if observed.event is Event.PLANS_REFUSED] == [{"version": 3, "status": 400}]


def told(version: int, more: str = "") -> bytes:
    return json.dumps({"version": version, "more": more}).encode()


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


async def test_a_report_follows_its_snapshot_and_goes_alone_when_it_alone_changes(tmp_path: Path, seen: list[Observation]) -> None:
    plane = StandIn(tmp_path / "s")
    await plane.start()
    pusher = Pusher(plane.path, seen.append)
    task = asyncio.create_task(pusher.run())
    try:
        pusher.offer(3, body(3), told(3))
        await until(lambda: plane.reports == [told(3)])
        pusher.report(3, told(3, "more"))
        await until(lambda: plane.reports == [told(3), told(3, "more")])
        pusher.report(2, told(2))
        pusher.offer(4, body(4), told(4))
        await until(lambda: plane.reports[-1] == told(4))
        assert [json.loads(put)["version"] for put in plane.puts] == [3, 4]
        assert len(plane.reports) == 3
        await plane.stop()
        fresh = StandIn(plane.path)
        await fresh.start()
        await until(lambda: fresh.reports == [told(4)])
        await fresh.stop()
    finally:
        task.cancel()


async def test_a_report_of_a_snapshot_that_is_not_in_force_pushes_it_whole(tmp_path: Path, seen: list[Observation]) -> None:
    plane = StandIn(tmp_path / "s")
    await plane.start()
    pusher = Pusher(plane.path, seen.append)
    task = asyncio.create_task(pusher.run())
    plane.conflicts = 1
    try:
        pusher.offer(3, body(3), told(3))
        await until(lambda: plane.reports)
        assert len(plane.puts) == 2
    finally:
        task.cancel()
        await plane.stop()


async def test_what_the_data_plane_no_longer_lets_share_is_told_once(tmp_path: Path, seen: list[Observation]) -> None:
    plane = StandIn(tmp_path / "s")
    await plane.start()
    told: list[tuple[Stopped, ...]] = []
    pusher = Pusher(plane.path, seen.append, told.append)
    pusher.offer(3, body(3))
    task = asyncio.create_task(pusher.run())
    try:
        await within(pusher.acknowledged(3))
        plane.uncoalesced = [{"query": "q", "version": "0123456789abcdef", "reason": "unequal"}]
        await until(lambda: told)
        plane.uncoalesced = []
        await until(lambda: len(told) == 2)
    finally:
        task.cancel()
        await plane.stop()
    assert told == [(Stopped("q", "0123456789abcdef", "unequal"),), ()]


def test_a_stopped_version_is_in_the_report_and_another_one_is_not() -> None:
    snapshot = Snapshot.model_validate_json((FOLDER / "valid" / "snapshot-full.json").read_bytes())
    report = Report.model_validate_json((FOLDER / "valid" / "report-full.json").read_bytes())
    query = next(query for query in snapshot.queries if query.coalesce is not None)
    queries = without_stopped(report, snapshot, [Stopped(query.name, query.version, "unequal")]).gateway.queries
    assert queries.coalesced == report.gateway.queries.coalesced - 1
    assert queries.stopped == (StoppedReport(name=query.name, reason="unequal"),)
    alone = next(query for query in snapshot.queries if query.coalesce is None)
    others = [Stopped(query.name, "0" * 16, "unequal"), Stopped(alone.name, alone.version, "shape"), Stopped("gone", "0" * 16, "shape")]
    assert without_stopped(report, snapshot, others) is report
