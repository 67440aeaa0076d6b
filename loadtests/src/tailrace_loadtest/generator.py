"""Runs the load generator (`loadtests/generator`) and reads its report. Finds the program, or builds it with cargo."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
VOID = 3
"""Exit code of a run that did not deliver its load: its figures say nothing."""


class ProgramMissing(RuntimeError):
    """The program isn't built and can't be; the message says how to get it."""


class LoadFailed(RuntimeError):
    """The generator could not run at all."""


def program(name: str, package: str, variable: str, profile: str = "release") -> Path:
    """A program of the Rust workspace: what `variable` names, or what cargo makes of it now (ProgramMissing without cargo)."""
    if variable in os.environ:
        return Path(os.environ[variable])
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = target / ("debug" if profile == "dev" else profile) / name
    if shutil.which("cargo"):
        command = ["cargo", "build", "-q", "--profile", profile, "--workspace"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProgramMissing(f"{name} does not build:\n{done.stderr[-4000:]}")
    if not built.exists():
        raise ProgramMissing(f"{name} is not there: install Rust (cargo), or name the program by {variable}")
    return built


def binary() -> Path:
    """The generator."""
    return program("tailrace-generator", "tailrace-generator", "TAILRACE_GENERATOR")


def arguments(url: str, options: Mapping[str, object], watched: Mapping[str, int] | None = None) -> list[str]:
    """Its command line: options by name without dashes, lists repeat, True is a switch."""
    words = [str(binary()), "--url", url]
    for name, value in options.items():
        values: Sequence[object] = value if isinstance(value, list | tuple) else [value]
        for each in values:
            words += [f"--{name}"] if each is True else [f"--{name}", str(each)]
    for name, pid in (watched or {}).items():
        words += ["--cpu", f"{name}={pid}"]
    return words


def start(
    url: str, options: Mapping[str, object], watched: Mapping[str, int] | None = None, cpu: int | None = None, nice: int = 0
) -> subprocess.Popen[str]:
    """Starts a load; `finish` waits for its report. `cpu` pins it to one core, `nice` has it give way to others there."""
    words = (["taskset", "-c", str(cpu)] if cpu is not None else []) + (["nice", "-n", str(nice)] if nice else [])
    words += arguments(url, options, watched)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(load: subprocess.Popen[str]) -> dict[str, Any]:
    """Its report, with `exit_code`; LoadFailed when there is none."""
    out, err = load.communicate()
    if load.returncode not in (0, 1, VOID):
        raise LoadFailed(f"exit {load.returncode}: {err.strip()}")
    report: dict[str, Any] = json.loads(out)
    return report | {"exit_code": load.returncode}


def run(
    url: str, options: Mapping[str, object], watched: Mapping[str, int] | None = None, cpu: int | None = None, nice: int = 0
) -> dict[str, Any]:
    """Starts a load and waits for its report."""
    return finish(start(url, options, watched, cpu, nice))
