"""Finds the data plane's program on this machine. IO: asks the file system."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

PROGRAM = "tailrace-dataplane"
ENVIRONMENT = "TAILRACE_DATAPLANE"


def find_data_plane(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The program: as given, as TAILRACE_DATAPLANE says, as cargo built it last, or from PATH; None when there is none.

    FileNotFoundError when one was named that isn't there.
    """
    named = given or (Path(environment[ENVIRONMENT]) if environment.get(ENVIRONMENT) else None)
    if named is not None:
        if not _runs(named):
            raise FileNotFoundError(f"there is no program {named}")
        return named.absolute()
    built = [path for folder in target_directories(environment) for kind in ("release", "debug") if _runs(path := folder / kind / PROGRAM)]
    if built:
        return max(built, key=lambda path: path.stat().st_mtime_ns).absolute()
    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    return Path(found) if found else None


def target_directories(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Where cargo puts what it builds: CARGO_TARGET_DIR, or `target` of this checkout."""
    if environment.get("CARGO_TARGET_DIR"):
        yield Path(environment["CARGO_TARGET_DIR"])
    for folder in Path(__file__).resolve().parents:
        if (folder / "Cargo.toml").is_file() and (folder / "dataplane-rs").is_dir():
            yield folder / "target"
            return


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
