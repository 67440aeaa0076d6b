"""Instructions a call of each stage (dataplane-rs/instructions), counted by callgrind and held against committed figures.

    .ci/instructions.py            # print; exit 1 if a stage takes more than 3 % above dataplane-rs/instructions/figures.json
    .ci/instructions.py --accept   # write what is counted now: commit it together with the reason

User space only; the release profile for the target's default CPU, as the images have it. glibc's choice of functions is pinned by
GLIBC_TUNABLES; other libraries choose by what valgrind shows of the CPU (AVX2 where the machine has it, never SHA-NI). Another compiler,
valgrind or CPU gives other counts: then the difference is printed and nothing fails. Neither does a stage without a figure.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "dataplane-rs/instructions/figures.json"
ALLOWED = 1.03
STAGES = {
    "head": (1024, "parse a request's head"),
    "key": (1024, "check its key (SHA-256 without SHA-NI) among 10,000"),
    "admit": (1024, "head, key, plan, parameters: a call ready to be asked"),
    "encode": (1024, "a row of four columns to JSON"),
    "record": (4096, "append a run; a commit for each 64"),
    "answer": (1024, "admit, encode, record and the answer's head"),
    "batch": (2048, "a whole call, 64 a statement, without sockets"),
    "single": (2048, "a whole call, its own statement, without sockets"),
    "store": (65536, "a run into a block of the embedded store"),
}
"""Calls that are counted, and what of them."""

TUNABLES = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM:glibc.malloc.arena_max=1"


def built() -> Path:
    """The program, by the release profile."""
    command = ["cargo", "build", "--release", "--workspace", "--message-format", "json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(Path(m["executable"]) for m in messages if m.get("executable") and m["target"]["name"] == "tailrace-instructions")


def collected(program: Path, stage: str, count: int) -> int:
    """Instructions inside of `counted`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--toggle-collect=*tailrace_instructions::counted*",
            f"--callgrind-out-file={folder}/out",
            str(program),
            stage,
            str(count),
        ]
        environment = {**os.environ, "GLIBC_TUNABLES": TUNABLES}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"{stage}: {done.stderr[-2000:]}")
    return int(found[1])


def said(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Counts every stage; 1 if one takes too many."""
    program = built()
    avx2 = "avx2" in Path("/proc/cpuinfo").read_text()
    by = {"rustc": said("rustc", "--version"), "valgrind": said("valgrind", "--version"), "avx2": avx2}
    counted = {}
    for stage, (count, _) in STAGES.items():
        counted[stage] = round(collected(program, stage, count) / count)
    if "--accept" in sys.argv[1:]:
        FIGURES.write_text(json.dumps({"by": by, "instructions": counted}, indent=2) + "\n")
    committed = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"by": by, "instructions": {}}
    worse = []
    for stage, (_, what) in STAGES.items():
        before = committed["instructions"].get(stage)
        change = "new" if before is None else f"{100 * (counted[stage] / before - 1):+.1f} %"
        print(f"{stage:8} {counted[stage]:7,}  {change:>8}  {what}")  # noqa: T201
        if before is not None and counted[stage] > ALLOWED * before:
            worse.append(stage)
    if committed["by"] != by:
        print(f"not compared: figures are by {committed['by']}, this is {by}")  # noqa: T201
        return 0
    if worse:
        print(f"more than 3 % above {FIGURES.relative_to(ROOT)}: {', '.join(worse)}. If that is meant: .ci/instructions.py --accept")  # noqa: T201
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
