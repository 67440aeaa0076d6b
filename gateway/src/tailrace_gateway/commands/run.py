"""`tailrace run`: starts the worker and the data plane, keeps both alive, tells what is served. IO: processes, sockets, the console."""

import argparse
import asyncio
import contextlib
import fcntl
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tailrace_gateway import console as ink
from tailrace_gateway.cli import EXIT_USAGE, VERSION
from tailrace_gateway.console import Console, columns
from tailrace_gateway.dataplane import find_data_plane
from tailrace_gateway.resources.private import make_private_directory
from tailrace_gateway.served import status_file
from tailrace_gateway.settings import Address
from tailrace_gateway.supervisor import Child, Supervisor

DRAIN_S = 30
"""Calls under way may take this long when it ends; the same as the data plane's own default."""
LOOK_S = 0.2
SHOWN = 20
"""Problems that are printed at once."""
DEATHS = 5
"""A part that was restarted this often before anything was served will not get better by itself."""


def main(given: argparse.Namespace, console: Console) -> int:
    """Serves until it is told to end."""
    missing = [path for path in given.files if not path.exists()]
    if missing:
        for path in missing:
            console.note(f"tailrace run: there is no file or directory {path}")
        return EXIT_USAGE
    binary = None
    if not given.no_data_plane:
        try:
            binary = find_data_plane(given.data_plane_binary)
        except FileNotFoundError as error:
            console.note(f"tailrace run: {error}")
            return EXIT_USAGE
        if binary is None:
            console.note(
                "the data plane is not built (cargo build --release -p tailrace-dataplane): serving from Python alone, which is slower"
            )
    addresses = [("--listen", given.listen), ("--metrics", given.metrics)] + ([("--admin", given.admin)] if binary else [])
    taken = [
        f"{name} {address} can't be used ({why}): choose another" for name, address in addresses if address and (why := _taken(address))
    ]
    for text in taken:
        console.note(f"tailrace run: {text}")
    if taken:
        return 1
    try:
        make_private_directory(given.data / "run")
        with _alone(given.data), _log(given.logs) as log:
            return asyncio.run(_serve(given, binary, log, console))
    except BlockingIOError:
        console.note(f"tailrace run: another one uses {given.data}: end it, or choose another --data")
    except OSError as error:
        console.note(f"tailrace run: {error.filename or given.data}: {error.strerror}")
    return 1


def _taken(address: Address) -> str:
    """Why an address can't be listened on; empty when it can."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
            probe.listen(1)
    except socket.gaierror:
        return "no such host"
    except OSError as error:
        return "something listens there already" if error.errno == 98 else str(error.strerror)
    return ""


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Holds the directory for this process; BlockingIOError when another one does."""
    with (data / "run" / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def _log(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        yield log


def children(given: argparse.Namespace, binary: Path | None, log: IO[bytes] | None) -> list[Child]:
    """What to start, in the order in which it is ended."""
    worker = [sys.executable, "-m", "tailrace_gateway", "worker", "--data", str(given.data)]
    for path in given.files:
        worker += ["-f", str(path)]
    if given.api is not None:
        worker += ["--api", str(given.api)]
    if given.metrics is not None:
        worker += ["--metrics", str(given.metrics)]
    if binary is None:
        return [Child("the gateway", [*worker, "--listen", str(given.listen)], 15, log)]
    plane = [str(binary), "--listen", str(given.listen), "--admin", str(given.admin), "--data", str(given.data)]
    plane += ["--lame-duck", "0s", "--drain-grace", f"{DRAIN_S}s"]
    if given.threads is not None:
        plane += ["--threads", str(given.threads)]
    return [Child("the data plane", plane, DRAIN_S + 5, log), Child("the gateway", worker, 10, log)]


async def _serve(given: argparse.Namespace, binary: Path | None, log: IO[bytes] | None, console: Console) -> int:
    status_file(given.data).unlink(missing_ok=True)
    supervisor = Supervisor(children(given, binary, log), lambda text: console.note(f"tailrace: {text}"))
    narrator = asyncio.create_task(Narrator(given, binary, console, supervisor).run())
    result = await supervisor.run()
    narrator.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await narrator
    return result


class Narrator:
    """Tells what is served, once it is, and each change of it. When the first state has nothing to serve, it ends the run."""

    def __init__(self, given: argparse.Namespace, binary: Path | None, console: Console, supervisor: Supervisor) -> None:
        self._given = given
        self._binary = binary
        self._console = console
        self._supervisor = supervisor
        self._said: set[str] = set()

    async def run(self) -> None:
        """Looks at the status file until it is cancelled."""
        seen: bytes = b""
        first = True
        began = time.monotonic()
        slow = False
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                now = status_file(self._given.data).read_bytes()
            except OSError:
                now = b""
            if first and not slow and time.monotonic() - began > 15:
                slow = True
                self._console.note("still starting: a database may be slow to answer, or can't be reached (see the log)")
            if first and (dying := next((child for child in self._supervisor.children if child.restarts >= DEATHS), None)):
                self._console.note(
                    f"tailrace run: {dying.name} ends again and again before it serves: see {self._given.logs or 'the lines above'}"
                )
                self._supervisor.end(1)
                return
            if now == seen or not now:
                continue
            status = json.loads(now)
            if not status["version"]:
                self._problems(status)
                if first:
                    self._supervisor.end(1)
                    return
            elif not await self._in_force(status["version"]):
                continue
            elif first:
                self._welcome(status)
                first = False
            else:
                self._changed(status, json.loads(seen))
            seen = now

    async def _in_force(self, version: int) -> bool:
        """Whether who answers callers has this version (or is beyond it)."""
        if self._binary is None:
            try:
                _, writer = await asyncio.open_connection(self._given.listen.host, self._given.listen.port)
            except OSError:
                return False
            writer.close()
            return True
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._given.data / "run" / "dataplane.sock"))
            try:
                writer.write(b"GET /plans HTTP/1.1\r\nHost: plans\r\nConnection: close\r\n\r\n")
                answer = await asyncio.wait_for(reader.read(65536), 2)
            finally:
                writer.close()
            return int(json.loads(answer.partition(b"\r\n\r\n")[2])["version"]) >= version
        except (OSError, ValueError, KeyError, TimeoutError):
            return False

    def _welcome(self, status: dict[str, Any]) -> None:
        line, paint = self._console.line, self._console.paint
        by = "Python alone" if self._binary is None else "the data plane"
        listen = self._given.listen
        scheme = "https" if status["tls"] else "http"
        line(paint(f"tailrace {VERSION} serves {status['api']} at {scheme}://{listen} ({by})", ink.BOLD))
        line()
        line("queries")
        for text in columns([_query(query) for query in status["queries"]]):
            line(text)
        line("keys")
        for text in columns([_key(key) for key in status["keys"]]) or ["  none: add an ApiKey"]:
            line(text)
        self._problems(status)
        line()
        line(paint("Edit the files: changes are in force within a second. Ctrl-C ends it.", ink.DIM))

    def _changed(self, status: dict[str, Any], before: dict[str, Any]) -> None:
        live = sum(key["live"] for key in status["keys"])
        self._console.line(f"changed: {len(status['queries'])} queries, {live} keys in force, {len(status['refusals'])} refusals")
        self._problems(status)
        if status["findings"] and not before["findings"]:
            held = any(key["live"] for key in status["keys"])
            self._console.line("what was good last goes on being served" if held else "nothing is served: every call gets 401")
        if before["findings"] and not status["findings"]:
            self._console.line("every file can be read again")

    def _problems(self, status: dict[str, Any]) -> None:
        """Says each problem when it is new."""
        told: list[str] = []
        for finding in status["findings"]:
            fix = f" ({finding['hint']})" if finding["hint"] else ""
            told.append(f"{finding['where']}: {finding['message']}{fix}")
        for unit in status["refusals"]:
            role = f" for role {unit['role']}" if unit["unit"] == "grant" else ""
            what = "query" if unit["unit"] == "grant" else unit["unit"]
            fix = f": {unit['hint']}" if unit["hint"] else ""
            place = f"{unit['place']}: " if unit["place"] else ""
            told.append(f"{place}{what} {unit['name']} is refused{role} ({unit['code']}){fix}")
        told += [f"warning: {text}" for text in status["warnings"]]
        news = [text for text in told if text not in self._said]
        for text in news[:SHOWN]:
            self._console.line(self._console.paint(text, ink.YELLOW))
        if len(news) > SHOWN:
            self._console.line(self._console.paint(f"and {len(news) - SHOWN} more: `tailrace check` lists them all", ink.YELLOW))
        self._said = set(told)


def _query(query: dict[str, Any]) -> tuple[str, ...]:
    arguments = "&".join(f"{name}=…" for name in query["params"]) if query["method"] == "GET" else ""
    state = f"refused: {query['refused']}" if query["refused"] else query["returns"]
    return query["method"], f"/q/{query['name']}" + (f"?{arguments}" if arguments else ""), state


def _key(key: dict[str, Any]) -> tuple[str, ...]:
    state = "suspended" if key["suspended"] else "" if key["live"] else "refused"
    return key["id"], f"role {key['role']}", key["file"] or "brought from a Secret", state
