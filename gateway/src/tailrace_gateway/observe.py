"""What happens in the gateway, said once: an `Observation`, mapped here to a JSON log line and to metrics.

Nothing else in the gateway writes a log or counts. A message is fixed per event and data stand in fields, which are checked against
the event's declaration, so that a payload, SQL or secret cannot slip in by accident. IO: the log's stream.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Field = str | int | float | bool | None

LABELLED_QUERIES = 1000
"""At most so many query names become labels; further ones count as `other`."""


class Level(StrEnum):
    """Severity of a log line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Event(StrEnum):
    """Everything that the gateway tells about itself."""

    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    LISTENING = "listening"
    SNAPSHOT_APPLIED = "snapshot_applied"
    SNAPSHOT_REFUSED = "snapshot_refused"
    SOURCE_STALE = "source_stale"
    SOURCE_RECOVERED = "source_recovered"
    SOURCE_AWAY = "source_away"
    SOURCE_BACK = "source_back"
    UNIT_REFUSED = "unit_refused"
    COMPILE_FAILED = "compile_failed"
    DATA_PLANE_CONNECTED = "data_plane_connected"
    DATA_PLANE_GONE = "data_plane_gone"
    PLANS_PUSHED = "plans_pushed"
    PLANS_REFUSED = "plans_refused"
    DATABASE_CONNECTED = "database_connected"
    DATABASE_UNAVAILABLE = "database_unavailable"
    CALL_FINISHED = "call_finished"
    CALL_FAILED = "call_failed"
    RUN_STORE_FAILED = "run_store_failed"
    RUN_STORE_CHANGED = "run_store_changed"
    SERVER_MESSAGE = "server_message"


@dataclass(frozen=True, slots=True)
class Declared:
    """How an event is told: level (None: metrics only, no log line), fixed message, and the only fields it may have."""

    level: Level | None
    message: str
    fields: frozenset[str] = frozenset()


def _declared(level: Level | None, message: str, *fields: str) -> Declared:
    return Declared(level, message, frozenset(fields))


DECLARED: dict[Event, Declared] = {
    Event.WORKER_STARTED: _declared(Level.INFO, "The gateway worker started", "version", "alone"),
    Event.WORKER_STOPPED: _declared(Level.INFO, "The gateway worker stopped", "reason"),
    Event.LISTENING: _declared(Level.INFO, "Listening", "listener", "address"),
    Event.SNAPSHOT_APPLIED: _declared(
        Level.INFO, "A snapshot is served", "version", "queries", "roles", "keys", "refused", "size_bytes", "duration_ms"
    ),
    Event.SNAPSHOT_REFUSED: _declared(Level.ERROR, "A snapshot was refused; the last good one is served", "version", "reason"),
    Event.SOURCE_STALE: _declared(Level.WARNING, "Resources cannot be read; the last good ones hold", "reason", "file", "line"),
    Event.SOURCE_RECOVERED: _declared(Level.INFO, "Resources can be read again"),
    Event.SOURCE_AWAY: _declared(Level.WARNING, "The API server cannot be read; what was read last holds", "what", "reason"),
    Event.SOURCE_BACK: _declared(Level.INFO, "The API server can be read again", "what"),
    Event.UNIT_REFUSED: _declared(Level.WARNING, "A query, role or key is refused", "unit", "name", "role", "reason"),
    Event.COMPILE_FAILED: _declared(Level.ERROR, "Compiling failed; the last good snapshot is served", "error"),
    Event.DATA_PLANE_CONNECTED: _declared(Level.INFO, "Connected to the data plane"),
    Event.DATA_PLANE_GONE: _declared(Level.WARNING, "The data plane went away", "reason"),
    Event.PLANS_PUSHED: _declared(Level.INFO, "The data plane serves a snapshot", "version", "refused", "duration_ms"),
    Event.PLANS_REFUSED: _declared(Level.ERROR, "The data plane refused a snapshot", "version", "status"),
    Event.DATABASE_CONNECTED: _declared(Level.INFO, "A database connection was made", "connection"),
    Event.DATABASE_UNAVAILABLE: _declared(Level.WARNING, "A database cannot be reached", "connection", "reason"),
    Event.CALL_FINISHED: _declared(None, "A call was answered", "query", "status", "code", "served_by", "duration_s", "database_s"),
    Event.CALL_FAILED: _declared(Level.ERROR, "A call failed inside the gateway", "run", "error", "at"),
    Event.RUN_STORE_FAILED: _declared(Level.ERROR, "Runs cannot be stored", "reason", "runs"),
    Event.RUN_STORE_CHANGED: _declared(Level.WARNING, "Another run store is named: runs stay in the first one until a restart"),
    Event.SERVER_MESSAGE: _declared(Level.WARNING, "The HTTP server reported a problem", "logger", "level"),
}


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that happened. ValueError when it has a field that its event does not declare."""

    event: Event
    fields: Mapping[str, Field] = field(default_factory=dict)

    def __post_init__(self) -> None:
        undeclared = set(self.fields) - DECLARED[self.event].fields
        if undeclared:
            raise ValueError(f"{self.event} does not declare {sorted(undeclared)}")


Observer = Callable[[Observation], None]


def observation(event: Event, **fields: Field) -> Observation:
    """Short form of the constructor."""
    return Observation(event, fields)


class JsonLog:
    """One line of JSON an event: `{"level":…,"ts":…,"event":…,"message":…,FIELDS}`; `ts` is RFC 3339 in UTC with milliseconds."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, seen: Observation) -> None:
        """Writes the line, whole, and flushes."""
        declared = DECLARED[seen.event]
        if declared.level is None:
            return
        now = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        line = {"level": declared.level, "ts": stamp, "event": seen.event, "message": declared.message, **seen.fields}
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
        with self._lock:
            self._stream.write(text)
            self._stream.flush()


class Metrics:
    """Prometheus counters of the gateway, in a registry of their own. Labels are bounded: query names of snapshots only, never keys."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        seconds = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self._calls = Counter(
            "tailrace_gateway_calls", "Calls that Python answered.", ("query", "outcome", "served_by"), registry=self.registry
        )
        self._duration = Histogram(
            "tailrace_gateway_call_duration_seconds",
            "Time from a call's head to its end.",
            ("query",),
            buckets=seconds,
            registry=self.registry,
        )
        self._database = Counter(
            "tailrace_gateway_database_seconds", "Time that calls spent at their database.", ("query",), registry=self.registry
        )
        self._failures = Counter("tailrace_gateway_internal_errors", "Calls that failed inside the gateway.", registry=self.registry)
        self._version = Gauge(
            "tailrace_gateway_snapshot_version", "Version of the snapshot that Python serves (µs since 1970).", registry=self.registry
        )
        self._pushed = Gauge(
            "tailrace_gateway_pushed_version", "Version of the snapshot that the data plane confirmed.", registry=self.registry
        )
        self._connected = Gauge(
            "tailrace_gateway_data_plane_connected", "1 while the data plane's socket is connected.", registry=self.registry
        )
        self._refused = Gauge("tailrace_gateway_refused_units", "Queries, roles and keys that are refused.", registry=self.registry)
        self._stale = Gauge(
            "tailrace_gateway_source_stale", "1 while resources cannot be read and the last good ones hold.", registry=self.registry
        )
        self._age = Gauge(
            "tailrace_gateway_source_age_seconds",
            "Seconds since the API server was heard last, of what was heard longest ago; up to about 90 while all is well, 0 with files.",
            registry=self.registry,
        )
        self._pushes = Counter("tailrace_gateway_pushes", "Snapshots sent to the data plane.", ("outcome",), registry=self.registry)
        self._unavailable = Counter(
            "tailrace_gateway_database_failures", "Connections to a database that failed or broke.", ("connection",), registry=self.registry
        )
        self._store = Counter("tailrace_gateway_run_store_failures", "Runs that could not be stored.", registry=self.registry)
        self._names: set[str] = set()

    def watch_age(self, age_s: Callable[[], float]) -> None:
        """Where the source's age comes from."""
        self._age.set_function(age_s)

    def _query(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= LABELLED_QUERIES:
            return "other"
        self._names.add(name)
        return name

    def __call__(self, seen: Observation) -> None:
        """Counts what was seen."""
        fields = seen.fields
        match seen.event:
            case Event.CALL_FINISHED:
                query = self._query(str(fields["query"]))
                self._calls.labels(query, outcome(int(fields["status"] or 0)), str(fields["served_by"])).inc()
                self._duration.labels(query).observe(float(fields["duration_s"] or 0))
                self._database.labels(query).inc(float(fields["database_s"] or 0))
            case Event.CALL_FAILED:
                self._failures.inc()
            case Event.SNAPSHOT_APPLIED:
                self._version.set(int(fields["version"] or 0))
                self._refused.set(int(fields.get("refused") or 0))
            case Event.PLANS_PUSHED:
                self._pushes.labels("accepted").inc()
                self._pushed.set(int(fields["version"] or 0))
            case Event.PLANS_REFUSED:
                self._pushes.labels("refused").inc()
            case Event.DATA_PLANE_CONNECTED:
                self._connected.set(1)
            case Event.DATA_PLANE_GONE:
                self._connected.set(0)
            case Event.SOURCE_STALE:
                self._stale.set(1)
            case Event.SOURCE_RECOVERED:
                self._stale.set(0)
            case Event.DATABASE_UNAVAILABLE:
                self._unavailable.labels(str(fields["connection"])).inc()
            case Event.RUN_STORE_FAILED:
                self._store.inc(int(fields.get("runs") or 1))
            case _:
                pass


def outcome(status: int) -> str:
    """Bounded label of a status, the same words as the data plane's."""
    if status < 400:
        return "ok"
    known = {401: "unauthorized", 403: "denied", 404: "denied", 499: "closed", 503: "unavailable", 504: "timeout"}
    return known.get(status, "failed" if status >= 500 else "invalid")


def observer(*targets: Observer) -> Observer:
    """One observer that tells all of these, in order."""

    def tell(seen: Observation) -> None:
        for target in targets:
            target(seen)

    return tell


def silent(seen: Observation) -> None:
    """Observer that drops everything, for tests."""
