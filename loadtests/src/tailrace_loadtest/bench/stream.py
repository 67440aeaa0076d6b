"""A million narrow rows as a stream: what it adds to the memory of both processes, what it costs beside psql's COPY, ten slow readers.

IO: reads streams over sockets, runs psql, reads and resets high-water marks in /proc.
"""

import contextlib
import os
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tailrace_loadtest.bench.case import Load
from tailrace_loadtest.bench.process import status_mb
from tailrace_loadtest.bench.session import OURS, Session
from tailrace_loadtest.bench.verdict import Range, Verdict, at_most, combined
from tailrace_loadtest.servers.users import DATABASE

SQL = "SELECT id, tier FROM users ORDER BY id"
EXTRA_MB, TIMES_COPY = 8.0, 1.5
READERS, SIP, SIP_S = 10, 64 << 10, 0.05
FIRST_S = 60.0
"""Longest that a reader waits for its first bytes."""
SLOWED = 1.5
"""A look-up beside slow readers may take so many times its p50 alone; p99 is told, because the machine's noise is all of it."""


def thread_cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far."""
    spent = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError):
            spent += int(path.read_text().split()[0])
    return spent / 1e9


def _ask(session: Session, form: str, buffer: int | None = None) -> socket.socket:
    """A connection with the whole table asked for."""
    stack = session.stack
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", stack.port))
    head = f"GET /q/narrow?format={form} HTTP/1.1\r\nHost: x\r\nX-API-Key: {stack.keys['app-key']}\r\nConnection: close\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def _read(session: Session, form: str) -> tuple[int, bytes, bytes]:
    """All of it: bytes, the first and the last kilobytes."""
    size, first, last = 0, b"", b""
    with contextlib.closing(_ask(session, form)) as connection:
        while piece := connection.recv(1 << 18):
            size += len(piece)
            first = (first + piece)[:2048] if len(first) < 2048 else first
            last = (last + piece)[-2048:]
    return size, first, last


@contextlib.contextmanager
def _extra(session: Session) -> Iterator[dict[str, float]]:
    """How much higher each process's resident memory was inside than before, in MB; filled in at the end."""
    pids = {"dataplane": session.stack.pid("dataplane"), "gateway": session.stack.pid("gateway")}
    before = {name: status_mb(pid, "VmRSS") for name, pid in pids.items()}
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    found: dict[str, float] = {}
    yield found
    found |= {name: round(max(0.0, status_mb(pid, "VmHWM") - before[name]), 1) for name, pid in pids.items()}


def _copy_s(session: Session) -> float:
    """CPU seconds of psql for the same rows."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(session.server.bin / "psql"), "-qX", "-c", f"COPY ({SQL}) TO STDOUT", session.server.url(DATABASE)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _form(session: Session, form: str, rounds: int, details: dict[str, Any]) -> list[Verdict]:
    pid = session.stack.pid("dataplane")
    extra, ratio = [], []
    for _ in range(rounds):
        began, spent = time.monotonic(), thread_cpu_s(pid)
        with _extra(session) as more:
            size, first, last = _read(session, form)
        cpu_s = thread_cpu_s(pid) - spent
        copy_s = _copy_s(session)
        extra.append(sum(more.values()))
        ratio.append(cpu_s / copy_s if copy_s else float("inf"))
        found = {"mb": size / 1e6, "seconds": time.monotonic() - began, "cpu_s": cpu_s, "copy_s": copy_s, "extra_mb": more}
        details.setdefault(form, []).append(found)
    whole = {
        "ndjson": f'{{"$complete":{{"rows":{session.rows},"truncated":false}}}}'.encode() in last,
        "csv": f"{session.rows},".encode() in last,
        "json": f'{{"id":{session.rows},'.encode() in last and b"]\r\n0\r\n" in last,
    }[form]
    bar = "stream"
    if not first.startswith(b"HTTP/1.1 200") or not whole:
        return [Verdict(bar, f"{form} ended early", "every row", False, f"{form} is not the whole table")]
    return [
        at_most(bar, Range.of(extra), EXTRA_MB, f"MB extra as {form}"),
        at_most(bar, Range.of(ratio), TIMES_COPY, f"× COPY's CPU as {form}"),
    ]


@contextlib.contextmanager
def _sipping(reads: Sequence[Callable[[], bytes]]) -> Iterator[int]:
    """Readers that sip, from when all have their first bytes: their databases have sorted by then. How many had none in `FIRST_S`."""
    over, began = threading.Event(), threading.Semaphore(0)

    def sip(read: Callable[[], bytes]) -> None:
        first = read()
        began.release()
        while first and not over.wait(SIP_S) and read():
            pass

    threads = [threading.Thread(target=sip, args=(read,)) for read in reads]
    for thread in threads:
        thread.start()
    late = sum(not began.acquire(timeout=FIRST_S) for _ in threads)
    try:
        yield late
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _through_us(session: Session) -> Iterator[int]:
    """Ten slow readers of ours; how many of them were late."""
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(contextlib.closing(_ask(session, "ndjson", SIP))) for _ in range(READERS)]
        yield opened.enter_context(_sipping([partial(connection.recv, SIP) for connection in connections]))


@contextlib.contextmanager
def _past_us(session: Session) -> Iterator[int]:
    """The same ten at the database itself, by psql: what of their cost is not ours."""
    command = [str(session.server.bin / "psql"), "-qX", "-c", f"COPY ({SQL}) TO STDOUT", session.server.url(DATABASE)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(READERS)]
    try:
        outputs = [process.stdout for process in processes if process.stdout is not None]
        with _sipping([partial(os.read, output.fileno(), SIP) for output in outputs]) as late:
            yield late
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _slow(session: Session, rounds: int, seconds: float, details: dict[str, Any]) -> list[Verdict]:
    """Ten readers that sip, and look-ups beside them: of the database and of the response cache, and beside ten readers that are not ours."""
    loads = {"asked": Load("user", connections=4, rate=500), "kept": Load("user_cached", connections=4, rate=500, keys=1000)}
    seen: dict[str, list[dict[str, Any]]] = {}
    extra: list[float] = []
    late = 0

    def look(where: str, number: int) -> None:
        for name, load in loads.items():
            target = session.target(OURS, load)
            assert target is not None, "ours is always there"
            seen.setdefault(f"{name} {where}", []).append(session.run(target, load, seconds, number + 1, load.rate))

    for number in range(rounds):
        look("alone", number)
        with _past_us(session) as slow:
            late += slow
            look("past", number)
        with _extra(session) as more, _through_us(session) as slow:
            late += slow
            look("beside", number)
        extra.append(more["dataplane"] + more["gateway"])

    def times(name: str, where: str, than: str) -> Range:
        pairs = zip(seen[f"{name} {where}"], seen[f"{name} {than}"], strict=True)
        return Range.of(one["latency_ms"]["p50"] / two["latency_ms"]["p50"] for one, two in pairs)

    spans = {
        f"{name} {where} than {than}": times(name, where, than)
        for name in loads
        for where, than in (("beside", "alone"), ("past", "alone"), ("beside", "past"))
    }
    details["slow"] = {
        "p50_times": {name: span.to_json() for name, span in spans.items()},
        "p50_ms": {name: [each["latency_ms"]["p50"] for each in reports] for name, reports in seen.items()},
        "p99_ms": {name: [each["latency_ms"]["p99"] for each in reports] for name, reports in seen.items()},
        "extra_mb": extra,
    }
    wrong = sum(each["wrong"] + each["other_status"] + sum(each["errors"].values()) for reports in seen.values() for each in reports)
    memory = at_most("stream", Range.of(extra), EXTRA_MB * READERS, f"MB extra with {READERS} slow readers")
    parts = [
        at_most("stream", spans["kept beside than alone"], SLOWED, "× p50 of a kept look-up beside them"),
        at_most("stream", spans["asked beside than alone"], SLOWED, "× p50 of a look-up beside them"),
        at_most("stream", spans["asked beside than past"], SLOWED, "× what ten such readers of the database itself make of it"),
    ]
    if late or wrong:
        why = f"{late} slow readers had no first bytes in {FIRST_S:.0f} s, {wrong} look-ups were not answered right"
        parts = [Verdict("stream", part.value, part.goal, False, why) for part in parts]
    return [memory, *parts]


def stream(session: Session, rounds: int, seconds: float) -> Verdict:
    """NDJSON and JSON of the whole table, then slow readers."""
    details: dict[str, Any] = {}
    _read(session, "ndjson")
    parts = [part for form in ("ndjson", "csv", "json") for part in _form(session, form, rounds, details)]
    parts += _slow(session, rounds, seconds, details)
    made = combined("stream", parts, "QueryAPIGate: ~0 MB extra, 13.0 s against 3.3 s buffered")
    return replace(made, details=details)
