"""Bars as data: rows of cases/bars.yaml as checked values. Pure but for reading that file; BadCase names what is wrong with a row."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from tailrace_loadtest import cases

MEASURES = (
    "times", "per-cpu", "database", "cache", "open", "reference-times", "forward", "governed", "write", "poison", "recorded", "memory", "alone", "p99",
)  # fmt: skip
DATABASES = ("postgres", "mariadb", "six")


class BadCase(ValueError):
    """A row that could measure something else than meant."""


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load: what is asked, how. `depth` calls a read: pipelined on h1, streams on h2, in one body as bulk. `rate`: None is a closed loop, below 1 a share of the server's own capacity."""

    query: str
    transport: str = "h1"
    depth: int = 1
    connections: int = 64
    rate: float | None = None
    keys: int | None = None

    @property
    def name(self) -> str:
        """Short, for tables."""
        words = [self.query, "" if self.transport == "h1" else self.transport, f"{self.depth} a read" if self.depth > 1 else ""]
        words += [f"{self.connections} connections" if self.connections != 64 else "", "" if self.rate is None else pace(self.rate)]
        return ", ".join(word for word in words if word)


def pace(rate: float) -> str:
    """A rate for people."""
    return f"{rate:,.0f}/s" if rate >= 1 else f"{rate:.0%} of capacity"


@dataclass(frozen=True, slots=True)
class Case:
    """One bar."""

    id: str
    measure: str
    goals: Mapping[str, float]
    reference: str
    database: str = "postgres"
    loads: tuple[tuple[Load, tuple[str, ...]], ...] = ()
    """Each with the names of the servers beside ours."""
    published: Mapping[str, float] | None = None


def _load(row: Mapping[str, Any], where: str) -> tuple[Load, tuple[str, ...]]:
    given = dict(row)
    beside = tuple(str(name) for name in given.pop("beside", ()))
    unknown = set(given) - {field.name for field in fields(Load)}
    if unknown or "query" not in given:
        raise BadCase(f"{where}: a load has a query, and no {', '.join(sorted(unknown)) or 'other field'}")
    load = Load(**given)
    if load.transport not in ("h1", "h2", "bulk") or load.depth < 1 or load.connections < 1 or (load.rate is not None and load.rate <= 0):
        raise BadCase(f"{where}: transport, depth, connections or rate is out of range")
    return load, beside


def parse(rows: object) -> list[Case]:
    """Rows of the file; BadCase on an unknown measure, a doubled id, a missing goal."""
    if not isinstance(rows, list):
        raise BadCase("the file is a list of bars")
    found: list[Case] = []
    for row in rows:
        where = str(row.get("id")) if isinstance(row, dict) else repr(row)
        if not isinstance(row, dict) or not row.get("id") or row.get("measure") not in MEASURES or not row.get("goals"):
            raise BadCase(f"{where}: a bar has an id, a known measure and goals")
        if unknown := set(row) - {field.name for field in fields(Case)}:
            raise BadCase(f"{where}: unknown {', '.join(sorted(unknown))}")
        if row.get("database", "postgres") not in DATABASES:
            raise BadCase(f"{where}: the database is one of {', '.join(DATABASES)}")
        if where in (case.id for case in found):
            raise BadCase(f"{where}: twice")
        loads = tuple(_load(each, where) for each in row.get("loads", ()))
        found.append(Case(**{**row, "loads": loads, "reference": row.get("reference", "")}))
    return found


def bars(path: Path | None = None) -> list[Case]:
    """All bars of the bench."""
    return parse(yaml.safe_load((path or cases.path("bars.yaml")).read_text()))
