"""The Python process: resources → snapshots → served here and pushed to the data plane. `main` is `python -m tailrace_gateway worker`.

IO: everything, through the modules that it puts together. SIGTERM or SIGINT ends it: alone it finishes its calls; behind a data plane it
serves on until that has gone (bounded). Exit 64 for a wrong command line, 1 when it cannot start.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import disable_created_metrics, make_asgi_app
from pydantic import ValidationError
from tailrace_contract.plan import SNAPSHOT_LIMIT_BYTES, RunStorePlan, Snapshot
from tailrace_contract.report import Report

from tailrace_gateway.app import create_app
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.control import ControlLoop
from tailrace_gateway.errors import GatewayError, SettingsError, SnapshotRefused
from tailrace_gateway.listen import Server, make_server, tcp_socket, unix_socket
from tailrace_gateway.observe import Event, JsonLog, Metrics, Observer, observation, observer
from tailrace_gateway.push import Pusher, Stopped
from tailrace_gateway.resources.apiserver import ApiServer, in_cluster
from tailrace_gateway.resources.files import FileSource
from tailrace_gateway.resources.kubernetes import RUN_STORE_VARIABLE, KubernetesSource, run_store
from tailrace_gateway.resources.private import make_private_directory, read_bounded
from tailrace_gateway.routes.description import router as description
from tailrace_gateway.routes.history import router as history
from tailrace_gateway.routes.usage import router as usage
from tailrace_gateway.runs.place import Place, keep_plan, place_of
from tailrace_gateway.runs.recorder import StoreRecorder
from tailrace_gateway.secret import read_or_make_secret
from tailrace_gateway.serve.serving import Serving
from tailrace_gateway.serve.tables import Tables
from tailrace_gateway.served import report, without_stopped
from tailrace_gateway.settings import Settings, parse_settings

DRAIN_S = 30
"""Calls under way may take this long when the worker ends."""
DATA_PLANE_DRAIN_S = 120
"""How long the worker outlives a data plane that drains."""
FILE_POLL_S = 0.2
BESIDE_DATA_PLANE = 10
"""Added to the process's nice value when a data plane answers the calls."""

GC_THRESHOLDS = (20_000, 20, 50)
"""A change of a large API makes and frees hundreds of thousands of objects, none of them in cycles."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A snapshot to be served, how many units it refuses, and its report."""

    snapshot: Snapshot
    refused: int = 0
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """An application on a socket; `drain_s`: how long its calls may take to end."""

    name: str
    address: str
    socket: socket.socket
    app: Callable[..., Any]
    drain_s: int


async def snapshots_of_file(path: Path, observe: Observer) -> AsyncIterator[Offered]:
    """The snapshot in a JSON file, each time that it changes (for tests and gates). What is not one is told and left out."""
    seen: bytes | None = None
    while True:
        try:
            content: bytes | None = await asyncio.to_thread(read_bounded, path, SNAPSHOT_LIMIT_BYTES)
        except (OSError, ValueError):
            content = None
        if content is not None and content != seen:
            seen = content
            try:
                yield Offered(Snapshot.model_validate_json(content))
            except ValidationError:
                observe(observation(Event.SNAPSHOT_REFUSED, version=0, reason="not a snapshot"))
        await asyncio.sleep(FILE_POLL_S)


async def snapshots_of_files(settings: Settings, observe: Observer) -> AsyncIterator[Offered]:
    """What resource files say, compiled."""
    source = FileSource(settings.files, settings.data)
    loop = ControlLoop(source, Compiler(), settings.data, observe, wanted=settings.api)
    async for published in loop.snapshots():
        if published.snapshot is not None:
            yield Offered(published.snapshot, len(published.refusals), report(published))


async def snapshots_of_kubernetes(settings: Settings, observe: Observer, metrics: Metrics) -> AsyncIterator[Offered]:
    """What the cluster's resources say, compiled."""
    assert settings.api is not None, "the settings' rules hold"
    assert settings.configs is not None
    try:
        store = run_store(os.environ.get(RUN_STORE_VARIABLE, ""), settings.api.namespace)
        server = ApiServer(in_cluster())
    except ValueError as wrong:
        raise SettingsError((str(wrong),)) from None
    source = KubernetesSource(server, settings.api, store, settings.secrets_folder, settings.configs, observe)
    metrics.watch_age(source.age_s)
    loop = ControlLoop(source, Compiler(), settings.data, observe, wanted=settings.api, secrets=settings.secrets_folder)
    try:
        async for published in loop.snapshots():
            if published.snapshot is not None:
                yield Offered(published.snapshot, len(published.refusals), report(published))
    finally:
        await server.close()


class Worker:
    """The parts of one process, and how snapshots reach them."""

    def __init__(self, settings: Settings, observe: Observer, metrics: Metrics) -> None:
        self.settings = settings
        self.observe = observe
        self.metrics = metrics
        self.secret = read_or_make_secret(settings.secret_file, make=settings.secret is None)
        self.recorder = StoreRecorder(settings.data, observe, alone=settings.alone)
        self.place: Place | None = None
        """Where runs are kept: as the first snapshot says, until the process ends."""
        self.serving = Serving(self.recorder, observe)
        self.pusher = None if settings.alone else Pusher(settings.data_plane_socket, observe, self.stopped)
        self._offered: int | None = None
        self._last: Offered | None = None
        self._stopped: tuple[Stopped, ...] = ()
        """Queries whose batches the data plane gave up."""
        self.tables: Tables | None = None

    async def follow(self) -> None:
        """Applies one snapshot after the other, for ever."""
        settings = self.settings
        if settings.snapshot is not None:
            offers = snapshots_of_file(settings.snapshot, self.observe)
        elif settings.kubernetes:
            offers = snapshots_of_kubernetes(settings, self.observe, self.metrics)
        else:
            offers = snapshots_of_files(settings, self.observe)
        async for offered in offers:
            await self.apply(offered)

    def stopped(self, queries: tuple[Stopped, ...]) -> None:
        """Takes what the data plane says of batches that it gave up, and tells it in the report."""
        self._stopped = queries
        if self.pusher is not None and self._last is not None and self._last.report is not None:
            self.pusher.report(self._last.snapshot.version, self._told(self._last))

    def _told(self, offered: Offered) -> bytes:
        if offered.report is None:
            return b""
        return without_stopped(offered.report, offered.snapshot, self._stopped).to_json()

    async def apply(self, offered: Offered) -> None:
        """Offers the bytes (made once) to the data plane, then builds the tables off the event loop and swaps them in.

        The data plane comes first: a key that is taken away is gone there as soon as can be. A version that was offered already has only another
        report.
        """
        began = time.monotonic()
        snapshot = offered.snapshot
        if self.settings.alone and snapshot.api.tls is not None:
            # Keys would travel in the clear where their owner asked for TLS.
            raise SettingsError(("http.tls is served by the data plane only: run with it, or remove http.tls",))
        self._last, told = offered, self._told(offered)
        if snapshot.version == self._offered and offered.report is not None:
            if self.pusher is not None:
                self.pusher.report(snapshot.version, told)
            return
        self._offered = snapshot.version
        size = 0
        if self.pusher is not None:
            body = await asyncio.to_thread(snapshot.to_json)
            size = len(body)
            self.pusher.offer(snapshot.version, body, told)
        try:
            tables = await asyncio.to_thread(Tables, snapshot, self.secret, self.tables)
        except SnapshotRefused as refused:
            self.observe(observation(Event.SNAPSHOT_REFUSED, version=snapshot.version, reason=refused.message))
            return
        self.recorder.configure(snapshot.api.durability, snapshot.api.on_full)
        await self._keep_runs(snapshot.api.run_store)
        self.serving.swap(tables)
        if self.tables is None:
            # Most of this lives as long as the process: the collector need not walk it at every change.
            gc.freeze()
        self.tables = tables
        self.observe(
            observation(
                Event.SNAPSHOT_APPLIED,
                version=snapshot.version,
                queries=len(snapshot.queries),
                roles=len(snapshot.roles),
                keys=len(snapshot.keys),
                refused=offered.refused,
                size_bytes=size,
                duration_ms=round((time.monotonic() - began) * 1000, 1),
            )
        )

    async def _keep_runs(self, plan: RunStorePlan) -> None:
        place = place_of(plan, self.settings.data)
        if self.place is None:
            self.place = place
            self.recorder.keep_in(place)
            await asyncio.to_thread(keep_plan, self.settings.data, plan)
        elif self.place != place:
            self.observe(observation(Event.RUN_STORE_CHANGED))

    async def run(self, ending: asyncio.Event) -> None:
        """Serves until `ending` is set and calls under way have ended."""
        servers: list[Server] = []
        running: list[asyncio.Task[None]] = []
        for listener in self._listeners():
            servers.append(make_server(listener.app, listener.drain_s))
            running.append(asyncio.create_task(servers[-1].serve(sockets=[listener.socket])))
            self.observe(observation(Event.LISTENING, listener=listener.name, address=listener.address))
        background = [asyncio.create_task(self.follow())]
        if self.pusher is not None:
            background.append(asyncio.create_task(self.pusher.run()))
        stop = asyncio.create_task(ending.wait())
        try:
            await asyncio.wait([*background, *running, stop], return_when=asyncio.FIRST_COMPLETED)
            if self.pusher is not None and stop.done():
                await self._outlive(self.pusher)
            for task in [*background, *running]:
                if task.done():
                    task.result()
        finally:
            stop.cancel()
            for task in background:
                task.cancel()
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*running, *background, stop, return_exceptions=True)
            await self.serving.close()
            await self.recorder.close()

    def _listeners(self) -> list[Listener]:
        """Every socket, or none (OSError)."""
        settings = self.settings
        routers = (description(), history(lambda: self.place), usage(lambda: self.place))
        made: list[Listener] = []
        try:
            behind = create_app(self.serving, routers, behind_data_plane=True)
            made.append(Listener("gateway", "unix", unix_socket(settings.gateway_socket), behind, DRAIN_S))
            if settings.listen is not None:
                front = create_app(self.serving, routers, behind_data_plane=False)
                made.append(Listener("api", str(settings.listen), tcp_socket(settings.listen), front, DRAIN_S))
            if settings.metrics is not None:
                metrics = make_asgi_app(self.metrics.registry)
                made.append(Listener("metrics", str(settings.metrics), tcp_socket(settings.metrics), metrics, 1))
        except OSError:
            for listener in made:
                listener.socket.close()
            raise
        return made

    async def _outlive(self, pusher: Pusher) -> None:
        """The data plane forwards to us until it has gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DATA_PLANE_DRAIN_S):
                await pusher.gone()


async def run(settings: Settings, observe: Observer, metrics: Metrics) -> None:
    """Runs a worker until SIGTERM or SIGINT."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    await asyncio.to_thread(make_private_directory, settings.data / "run")
    await Worker(settings, observe, metrics).run(ending)


def main(arguments: Sequence[str]) -> int:
    """Entry point; the exit status."""
    try:
        settings = parse_settings(arguments)
    except SettingsError as wrong:
        for fault in wrong.faults:
            sys.stderr.write(f"tailrace worker: {fault}\n")
        return 64
    if not settings.alone:
        # Compiling takes seconds of CPU for a large API; the data plane's calls come first.
        os.nice(BESIDE_DATA_PLANE)
    gc.set_threshold(*GC_THRESHOLDS)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics()
    observe = observer(JsonLog(), metrics)
    observe(observation(Event.WORKER_STARTED, version="0.1.0", alone=settings.alone))
    try:
        asyncio.run(run(settings, observe, metrics))
    except SettingsError as wrong:
        for fault in wrong.faults:
            sys.stderr.write(f"tailrace worker: {fault}\n")
        observe(observation(Event.WORKER_STOPPED, reason=f"{wrong.message} {wrong.hint}".strip()))
        return 64
    except GatewayError as error:
        observe(observation(Event.WORKER_STOPPED, reason=f"{error.message} {error.hint}".strip()))
        return 1
    except OSError as error:
        observe(observation(Event.WORKER_STOPPED, reason=error.strerror or type(error).__name__))
        return 1
    observe(observation(Event.WORKER_STOPPED, reason="asked to end"))
    return 0
