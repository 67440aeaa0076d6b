"""`tailrace runs tail` and `tailrace runs verify`. IO: reads `DIR`, runs the data plane's program to read the spool; changes nothing."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

from pydantic import ValidationError
from tailrace_contract.run import Run

from tailrace_gateway import console as ink
from tailrace_gateway.console import Console, columns
from tailrace_gateway.dataplane import find_data_plane
from tailrace_gateway.resources.private import read_bounded
from tailrace_gateway.runs.history import Follower, HistoryFilter, rfc3339, run_json
from tailrace_gateway.runs.place import EmbeddedPlace, Place, kept_place
from tailrace_gateway.runs.reading import StoreUnreadable, reading
from tailrace_gateway.runs.verify import Report, SpoolStatus, verify

POLL_S = 0.2
SPOOL_TIMEOUT_S = 60
SPOOL_LIMIT_BYTES = 64 << 20


def unreadable(place: Place) -> str:
    """What to say of a store that cannot be read."""
    why = "it is locked, damaged" if isinstance(place, EmbeddedPlace) else "PostgreSQL can't be reached with the URL of its Secret"
    return f"the run store cannot be read: {why}, or of another version of Tailrace"


def tail(data: Path, console: Console, *, wanted: HistoryFilter, follow: bool = False, ended: threading.Event | None = None) -> int:
    """Prints the newest runs, oldest of them first; with `follow` also what comes, until interrupted or `ended`.

    One line a run, JSON with `-o json`.
    """
    ended = ended if ended is not None else threading.Event()
    place = kept_place(data)
    if not data.is_dir():
        console.note(f"there is no directory {data}; say --data DIR as for `tailrace run`")
        return 1
    try:
        with reading(place) as reader:
            follower = Follower(reader) if follow else None
            page = None if reader is None else reader.history(wanted)
        runs = () if page is None else page.runs
        if not runs and not follow:
            console.note("no runs are recorded here")
        for run in reversed(runs):
            _show(run, console)
        while follower is not None and not ended.wait(POLL_S):
            with reading(place) as reader:
                news = [] if reader is None else list(follower.news(reader))
            for run in news:
                if _matches(run, wanted):
                    _show(run, console)
    except StoreUnreadable:
        console.note(unreadable(place))
        return 1
    return 0


def _matches(run: Run, wanted: HistoryFilter) -> bool:
    status = wanted.status is None or run.status == wanted.status or run.status // 100 == wanted.status
    return status and wanted.key in (None, run.key) and wanted.query in (None, run.query)


def _show(run: Run, console: Console) -> None:
    if console.json:
        console.line(json.dumps(run_json(run), ensure_ascii=False, separators=(",", ":")))
        return
    colour = ink.GREEN if run.status < 400 and not run.code else ink.RED if run.status >= 500 or run.code == "aborted" else ink.YELLOW
    outcome = console.paint(f"{run.status} {run.code}".rstrip(), colour)
    name, key = run.query or "-", run.key or "-"
    times = f"{run.duration_us / 1000:.2f} ms (db {run.database_us / 1000:.2f})"
    console.line(f"{rfc3339(run.time_us)}  {run.id}  {outcome}  {name}  {key}  {run.rows} rows  {times}")


def verify_data(data: Path, console: Console, binary: Path | None = None, spool: SpoolStatus | None = None) -> int:
    """Prints the proof of completeness; 1 when something is missing or cannot be read. `spool`: instead of what `data` has."""
    if not data.is_dir():
        console.note(f"there is no directory {data}; say --data DIR as for `tailrace run`")
        return 1
    place = kept_place(data)
    kept = place.path if isinstance(place, EmbeddedPlace) else place.url_file
    if spool is None and not any(path.exists() for path in (kept, data / "recorder.lock", data / "spool")):
        console.note(f"nothing has ever been recorded in {data}; say --data DIR as for `tailrace run`")
        return 1
    try:
        report = inspect(data, binary, spool)
    except StoreUnreadable:
        console.note(unreadable(place))
        return 1
    if console.json:
        console.value(json.loads(json.dumps(report_json(report))))
    else:
        _print(report, console)
    return 0 if report.complete else 1


def inspect(data: Path, binary: Path | None = None, given: SpoolStatus | None = None) -> Report:
    """Reads the spool first (unless it is `given`) and the store after it: what is shipped meanwhile is then counted once, and nothing is missed."""
    spool, problems = spool_status(data, binary) if given is None else (given, ())
    with reading(kept_place(data), timeout_s=600.0) as reader:
        return verify(reader, spool, problems)


def spool_status(data: Path, binary: Path | None = None) -> tuple[SpoolStatus | None, tuple[str, ...]]:
    """What the spool holds, and what kept us from knowing."""
    folder = data / "spool"
    if not folder.is_dir() or not any(folder.iterdir()):
        return SpoolStatus(segments=0, bytes=0, unreadable=(), torn=0, epochs=()), ()
    if (asked := _ask_data_plane(data)) is not None:
        return asked, ()
    try:
        program = find_data_plane(binary)
    except FileNotFoundError as error:
        return None, (str(error),)
    if program is None:
        return None, ("the spool is not empty, and the data plane's program that can read it was not found (set TAILRACE_DATAPLANE)",)
    try:
        done = subprocess.run([program, "spool-status", "--data", str(data)], capture_output=True, timeout=SPOOL_TIMEOUT_S, check=False)
        if done.returncode == 0:
            return SpoolStatus.model_validate_json(done.stdout), ()
    except (OSError, subprocess.TimeoutExpired, ValidationError):
        pass
    return None, ("the data plane's program could not read the spool",)


def _ask_data_plane(data: Path) -> SpoolStatus | None:
    """What the running data plane says of its spool; None when none answers. In a pod its program is in another container."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SPOOL_TIMEOUT_S)
            line.connect(str(data / "run" / "dataplane.sock"))
            line.sendall(b"GET /spool HTTP/1.1\r\nHost: dataplane\r\nConnection: close\r\n\r\n")
            with http.client.HTTPResponse(line) as answer:
                answer.begin()
                return SpoolStatus.model_validate_json(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValidationError):
        return None


def read_spool_status(path: Path) -> SpoolStatus:
    """What `tailrace-dataplane spool-status` printed, in a file or on standard input (`-`). ValueError when it is not that."""
    try:
        content = sys.stdin.buffer.read(SPOOL_LIMIT_BYTES + 1) if str(path) == "-" else read_bounded(path, SPOOL_LIMIT_BYTES)
        if len(content) > SPOOL_LIMIT_BYTES:
            raise ValueError
        return SpoolStatus.model_validate_json(content)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{path} is not what spool-status prints") from None


def report_json(report: Report) -> dict[str, object]:
    """As `-o json` prints it."""
    return {
        "complete": report.complete,
        "missing": report.missing,
        "problems": list(report.problems),
        "spool": None if report.spool is None else report.spool.model_dump(mode="json", by_alias=True, exclude={"epochs"}),
        "epochs": [
            {
                "epoch": f"{each.epoch:016x}",
                "stored": each.stored,
                "open": each.open,
                "spooled": each.spooled,
                "highest": each.highest,
                "missing": each.missing,
                "gaps": [list(gap) for gap in each.gaps],
            }
            for each in report.epochs
        ],
    }


def _print(report: Report, console: Console) -> None:
    rows: list[tuple[str, ...]] = [("epoch", "stored", "open", "in spool only", "highest", "missing")]
    for each in report.epochs:
        numbers = (each.stored, each.open, each.spooled, each.highest, each.missing)
        rows.append((f"{each.epoch:016x}", *map(str, numbers)))
    if report.epochs:
        for line in columns(rows, indent=""):
            console.line(line)
    for each in report.epochs:
        for first, last in each.gaps:
            console.line(f"missing: {each.epoch:016x}-{first:012x}" + (f" to {each.epoch:016x}-{last:012x}" if last > first else ""))
    for problem in report.problems:
        console.line(console.paint(problem, ink.YELLOW))
    if report.spool is not None and report.spool.torn:
        console.line(f"{report.spool.torn} segments end with a torn write, which was never answered")
    served = sum(each.highest for each in report.epochs)
    found = sum(each.stored + each.open + each.spooled for each in report.epochs)
    summary = f"recorded {found} of {served}, missing: {report.missing}"
    console.line(console.paint(summary, ink.GREEN if report.complete else ink.RED))
