"""Where runs are kept, and how other programs of this data directory learn of it. IO: `DIR/run-store.json`, a path and never a credential."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from tailrace_contract.plan import EmbeddedStorePlan, PostgresStorePlan, RunStorePlan

from tailrace_gateway.resources.private import read_bounded, write_private

_LIMIT_BYTES = 65_536
_PLAN: TypeAdapter[RunStorePlan] = TypeAdapter(RunStorePlan)


@dataclass(frozen=True, slots=True)
class EmbeddedPlace:
    """A SQLite file."""

    path: Path


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """A PostgreSQL database; the file holds its URL and is read anew for each connection."""

    url_file: Path


Place = EmbeddedPlace | PostgresPlace


def place_of(plan: RunStorePlan, data: Path) -> Place:
    """Where a snapshot says that runs are kept."""
    match plan:
        case EmbeddedStorePlan():
            return EmbeddedPlace(data / "runs.sqlite")
        case PostgresStorePlan():
            return PostgresPlace(Path(plan.postgres.url_file))


def keep_plan(data: Path, plan: RunStorePlan) -> None:
    """Writes it down for `tailrace runs`; a disk that is full only makes it old."""
    text = plan.model_dump_json(by_alias=True).encode()
    path = data / "run-store.json"
    with suppress(OSError):
        try:
            if read_bounded(path, _LIMIT_BYTES) == text:
                return
        except ValueError:
            pass
        except OSError:
            if isinstance(plan, EmbeddedStorePlan):
                return  # What is assumed without the file.
        write_private(path, text)


def kept_place(data: Path) -> Place:
    """Where runs of this directory are kept: as written down, else its own file."""
    try:
        return place_of(_PLAN.validate_python(json.loads(read_bounded(data / "run-store.json", _LIMIT_BYTES))), data)
    except (OSError, ValueError, ValidationError):
        return EmbeddedPlace(data / "runs.sqlite")
