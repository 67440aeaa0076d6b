"""A million narrow rows as a stream: what it adds to the memory of both processes, what it costs beside psql's COPY, ten slow readers.

IO: reads streams over sockets, runs psql, reads and resets high-water marks in /proc.
"""

import contextlib
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
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


def _slow(session: Session, rounds: int, seconds: float, details: dict[str, Any]) -> list[Verdict]:
    """Ten readers that sip, and a look-up beside them, from when all ten have their first bytes: their databases have sorted by then."""
    load = Load("user", connections=4, rate=500)
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    quiet, beside, extra, late = [], [], [], 0
    for number in range(rounds):
        quiet.append(session.run(target, load, seconds, number + 1, 500))
        over, began = threading.Event(), threading.Semaphore(0)

        def sip(connection: socket.socket, over: threading.Event = over, began: threading.Semaphore = began) -> None:
            with contextlib.closing(connection):
                first = connection.recv(SIP)
                began.release()
                while first and not over.wait(SIP_S) and connection.recv(SIP):
                    pass

        with _extra(session) as more:
            threads = [threading.Thread(target=sip, args=(_ask(session, "ndjson", SIP),)) for _ in range(READERS)]
            for thread in threads:
                thread.start()
            late += sum(not began.acquire(timeout=FIRST_S) for _ in threads)
            beside.append(session.run(target, load, seconds, number + 1, 500))
            over.set()
            for thread in threads:
                thread.join()
        extra.append(more["dataplane"] + more["gateway"])
    p50 = Range.of(two["latency_ms"]["p50"] / one["latency_ms"]["p50"] for one, two in zip(quiet, beside, strict=True))
    details["slow"] = {
        "p50_times": p50.to_json(),
        "extra_mb": extra,
        "p99_ms": [[each["latency_ms"]["p99"] for each in part] for part in (quiet, beside)],
    }
    wrong = sum(each["wrong"] + each["other_status"] + sum(each["errors"].values()) for each in beside)
    memory = at_most("stream", Range.of(extra), EXTRA_MB * READERS, f"MB extra with {READERS} slow readers")
    look_up = at_most("stream", p50, SLOWED, "× p50 of a look-up beside them")
    if late:
        look_up = Verdict("stream", look_up.value, look_up.goal, False, f"{late} slow readers had no first bytes in {FIRST_S:.0f} s")
    if wrong:
        look_up = Verdict("stream", look_up.value, look_up.goal, False, f"{wrong} look-ups were not answered right")
    return [memory, look_up]


def stream(session: Session, rounds: int, seconds: float) -> Verdict:
    """NDJSON and JSON of the whole table, then slow readers."""
    details: dict[str, Any] = {}
    _read(session, "ndjson")
    parts = [part for form in ("ndjson", "csv", "json") for part in _form(session, form, rounds, details)]
    parts += _slow(session, rounds, seconds, details)
    made = combined("stream", parts, "QueryAPIGate: ~0 MB extra, 13.0 s against 3.3 s buffered")
    return replace(made, details=details)
