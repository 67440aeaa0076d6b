"""`python -m tailrace_loadtest.bench.profile plain deep h2`: where the microseconds of a call go in the data plane, under the load of a bar.

`perf record` samples the process while the load runs; each sample is put to a part of the work by the source file that it stands in (of inlined
code too), or by the system call that the kernel does. Prints one Markdown table: µs of CPU a call, by part and load. IO: runs loads, perf and
addr2line. Exit 1 where one of them is missing.
"""

import argparse
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrace_loadtest.bench.case import Load, bars
from tailrace_loadtest.bench.session import OURS, Session, opened
from tailrace_loadtest.generator import LoadFailed

HERTZ = 1_999
"""Prime to whatever happens every millisecond."""
LEAST = 0.01
"""Parts below this share of every load are told together."""
PARTS: Sequence[tuple[str, str]] = (
    ("src/http/http2", "HTTP/2"), ("/h2-", "HTTP/2"), ("/http-", "HTTP/2"), ("src/http/stream", "HTTP/2"),
    ("src/http/head", "heads"), ("/httparse-", "heads"), ("/memchr-", "heads"),
    ("src/auth", "key"), ("/sha2-", "key"), ("/subtle-", "key"), ("/digest-", "key"), ("/block-buffer-", "key"), ("/generic-array", "key"),
    ("/hybrid-array-", "key"), ("src/params", "parameters"),
    ("src/plan", "admission"), ("src/calls/core", "admission"), ("src/calls/admission", "admission"), ("src/calls/call", "admission"),
    ("src/calls/kept", "response cache"), ("src/cache", "response cache"),
    ("src/lanes", "lanes"), ("src/engine", "database's protocol"), ("src/encode", "rows to text"),
    ("src/calls/desk", "ending a call"), ("src/http/response", "answers"), ("src/http/output", "answers"),
    ("src/runs", "recording"), ("src/http", "connections"), ("src/observe", "counters"),
    ("/tokio-", "runtime"), ("/mio-", "runtime"), ("/rusqlite-", "shipping"), ("sqlite3", "shipping"),
)  # fmt: skip
"""What a path holds, and which part that is; the first that fits."""
SERVING = "serve"
"""How the names of serving threads begin."""
CALLS: Mapping[str, str] = {
    "sendto": "kernel: write", "write": "kernel: write", "writev": "kernel: write", "sendmsg": "kernel: write", "recvfrom": "kernel: read",
    "read": "kernel: read", "epoll_wait": "kernel: epoll", "epoll_pwait": "kernel: epoll", "epoll_ctl": "kernel: epoll", "pwrite64": "kernel: spool and store",
    "fsync": "kernel: spool and store", "fdatasync": "kernel: spool and store", "futex": "kernel: threads",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of one thread. `frames`: (address, symbol, object), the innermost first."""

    thread: str
    frames: tuple[tuple[int, str, str], ...]


FRAME = re.compile(r"^\s+([0-9a-f]+)\s+(.*)\s+\((.*)\)$")


def samples(text: str) -> list[Sample]:
    """What `perf script -F comm,ip,sym,dso` printed."""
    found = []
    for block in text.split("\n\n"):
        lines = block.strip("\n").split("\n")
        frames = [(int(seen[1], 16), seen[2], seen[3]) for seen in map(FRAME.match, lines[1:]) if seen]
        if frames:
            found.append(Sample(lines[0].strip(), tuple(frames)))
    return found


def part_of_path(path: str) -> str | None:
    """The part of a source file."""
    return next((part for fits, part in PARTS if fits in path), None)


def system_call(sample: Sample) -> str | None:
    """The system call that a sample is in; None outside of the kernel."""
    if not sample.frames[0][2].startswith("[kernel") and "kernel" not in sample.frames[0][2]:
        return None
    names = (symbol.removeprefix("__x64_sys_") for _, symbol, _ in sample.frames if symbol.startswith("__x64_sys_"))
    name = next((each.partition("+")[0] for each in names), "")
    return CALLS.get(name, "kernel: other")


def lines_of(program: Path, addresses: Iterable[int]) -> dict[int, list[str]]:
    """Source files of addresses in a program's file, the innermost inlined first. Addresses as the file has them."""
    wanted = sorted(set(addresses))
    words = ["addr2line", "-a", "-i", "-e", str(program)]
    done = subprocess.run(words, input="\n".join(map(hex, wanted)), capture_output=True, text=True, check=True)
    found: dict[int, list[str]] = {}
    here: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            here = found.setdefault(int(line, 16), [])
        else:
            here.append(line.rpartition(":")[0])
    return found


def moved_by(program: Path) -> int:
    """What is to be added to an offset in a program's file, as perf tells it, to have the address that its debug data name (ELF, PT_LOAD)."""
    with program.open("rb") as file:
        head = file.read(64)
        start, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(start)
        for _ in range(count):
            kind, flags, offset, address = struct.unpack_from("<IIQQ", file.read(size))
            if kind == 1 and flags & 1:
                return int(address - offset)
    raise LoadFailed(f"{program} has no code")


def shares(found: Sequence[Sample], files: Mapping[int, list[str]], program: Path) -> dict[str, float]:
    """Share of each part among the samples."""
    counts: Counter[str] = Counter()
    for sample in found:
        address, _, where = sample.frames[0]
        part = system_call(sample)
        if part is None and where == str(program):
            part = next((part for each in files.get(address, []) if (part := part_of_path(each))), "other code")
        if part is None:
            part = "libc"
        side = not sample.thread.startswith(SERVING)
        counts[f"beside: {sample.thread}" if side else part] += 1
    return {part: count / len(found) for part, count in counts.items()}


def profiled(session: Session, load: Load, seconds: float, folder: Path) -> tuple[float, dict[str, float]]:
    """µs of CPU a call under a load, and how they are divided."""
    target = session.target(OURS, load)
    assert target is not None, "ours is always there"
    session.run(target, load, 1, 1)
    pid, data = target.watched["server"], folder / "perf.data"
    program = Path(f"/proc/{pid}/exe").resolve()
    words = ["perf", "record", "-q", "-F", str(HERTZ), "-g", "-o", str(data), "-p", str(pid), "--", "sleep", str(seconds)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as recording:
        report = session.run(target, load, seconds, 2)
        recording.wait(seconds + 30)
    text = subprocess.run(
        ["perf", "script", "-i", str(data), "-F", "comm,ip,sym,dso"], capture_output=True, text=True, check=True, errors="replace"
    ).stdout
    found, moved = samples(text), moved_by(program)
    if not found:
        raise LoadFailed("perf saw nothing")
    found_in = lines_of(program, (each.frames[0][0] + moved for each in found if each.frames[0][2] == str(program)))
    files = {address - moved: paths for address, paths in found_in.items()}
    return float(report["cpu"]["server"]["us_per_call"]), shares(found, files, program)


def table(columns: Mapping[str, tuple[float, Mapping[str, float]]]) -> str:
    """Parts by loads, µs a call; the dearest first."""
    parts = {part for _, found in columns.values() for part in found}
    few = {part for part in parts if all(found.get(part, 0) < LEAST for _, found in columns.values())}
    rows = sorted(parts - few, key=lambda part: -sum(us * found.get(part, 0) for us, found in columns.values()))
    lines = ["| µs a call | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines.append("| **all** | " + " | ".join(f"**{us:.2f}**" for us, _ in columns.values()) + " |")
    lines += [f"| {part} | " + " | ".join(f"{us * found.get(part, 0):.2f}" for us, found in columns.values()) + " |" for part in rows]
    rest = [f"{us * sum(found.get(part, 0) for part in few):.2f}" for us, found in columns.values()]
    return "\n".join([*lines, "| the rest | " + " | ".join(rest) + " |"])


def main() -> int:
    """Parses the command line."""
    known = {case.id: case.loads for case in bars() if case.loads and case.database == "postgres"}
    cli = argparse.ArgumentParser(prog="python -m tailrace_loadtest.bench.profile", description=(__doc__ or "").splitlines()[0])
    cli.add_argument("ids", nargs="+", choices=list(known))
    cli.add_argument("--seconds", type=float, default=5)
    cli.add_argument("--rows", type=int, default=1_000_000)
    options = cli.parse_args()
    columns: dict[str, tuple[float, Mapping[str, float]]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-profile-", dir="/var/tmp") as home, opened(options.rows, Path(home)) as session:
            for name in options.ids:
                for load in dict.fromkeys(load for load, _ in known[name] if load.rate is None or load.rate >= 1):
                    columns[load.name] = profiled(session, load, options.seconds, Path(home))
    except (FileNotFoundError, subprocess.CalledProcessError, LoadFailed) as missing:
        sys.stderr.write(f"profile: {missing}\n")
        return 1
    sys.stdout.write(table(columns) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
