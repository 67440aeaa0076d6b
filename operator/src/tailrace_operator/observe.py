"""What happens in the operator, said once: an `Observation`, mapped here to a JSON log line and to metrics.

Nothing else in the operator writes a log or counts. A message is fixed per event and data stand in fields, which are checked against
the event's declaration, so that a Secret's data cannot slip in by accident. IO: the log's stream.
"""

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Field = str | int | float | bool | None


class Level(IntEnum):
    """Severity of a log line."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Event(StrEnum):
    """Everything that the operator tells about itself."""

    STARTED = "started"
    STOPPED = "stopped"
    LEADING = "leading"
    STANDING_BY = "standing_by"
    LEASE_FAILED = "lease_failed"
    LEASE_LOST = "lease_lost"
    RECONCILED = "reconciled"
    RECONCILE_FAILED = "reconcile_failed"
    RECONCILE_RACED = "reconcile_raced"
    WROTE = "wrote"
    QUEUE_CHANGED = "queue_changed"
    RELISTED = "relisted"
    RELIST_FAILED = "relist_failed"
    API_CALLED = "api_called"
    EVENT_FAILED = "event_failed"
    PODS_POLLED = "pods_polled"
    WATCHING_ENDED = "watching_ended"
    FRAMEWORK_MESSAGE = "framework_message"


@dataclass(frozen=True, slots=True)
class Declared:
    """How an event is told: level (None: metrics only, no log line), fixed message, and the only fields it may have."""

    level: Level | None
    message: str
    fields: frozenset[str] = frozenset()


def _declared(level: Level | None, message: str, *fields: str) -> Declared:
    return Declared(level, message, frozenset(fields))


DECLARED: dict[Event, Declared] = {
    Event.STARTED: _declared(Level.INFO, "The operator started", "version", "namespaces", "identity"),
    Event.STOPPED: _declared(Level.INFO, "The operator stopped", "reason"),
    Event.LEADING: _declared(Level.INFO, "This operator leads and reconciles", "identity"),
    Event.STANDING_BY: _declared(Level.INFO, "Another operator leads; this one stands by", "holder"),
    Event.LEASE_FAILED: _declared(Level.WARNING, "The Lease cannot be read or renewed", "reason"),
    Event.LEASE_LOST: _declared(Level.ERROR, "The Lease is lost; the process ends at once", "reason"),
    Event.RECONCILED: _declared(Level.DEBUG, "A resource was reconciled", "kind", "namespace", "name", "writes", "duration_s", "again_s"),
    Event.RECONCILE_FAILED: _declared(
        Level.WARNING, "A resource could not be reconciled; it is tried again", "kind", "namespace", "name", "reason", "detail", "failures"
    ),
    Event.RECONCILE_RACED: _declared(
        Level.DEBUG, "Somebody else wrote meanwhile; the resource is read again", "kind", "namespace", "name", "detail"
    ),
    Event.WROTE: _declared(Level.INFO, "An object was written", "action", "kind", "namespace", "name", "for", "reason"),
    Event.QUEUE_CHANGED: _declared(None, "The queue changed", "waiting", "running"),
    Event.RELISTED: _declared(Level.DEBUG, "All resources were listed", "resources"),
    Event.RELIST_FAILED: _declared(Level.WARNING, "Resources cannot be listed", "reason", "detail"),
    Event.API_CALLED: _declared(None, "The API server was called", "verb", "resource", "outcome", "duration_s"),
    Event.EVENT_FAILED: _declared(Level.DEBUG, "An Event could not be published", "kind", "reason"),
    Event.PODS_POLLED: _declared(None, "Pods were asked what they serve", "answered", "silent"),
    Event.WATCHING_ENDED: _declared(Level.WARNING, "Watching ended; it begins anew", "error"),
    Event.FRAMEWORK_MESSAGE: _declared(Level.WARNING, "A library reported a problem", "logger", "level", "error"),
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


def observation(event: Event, /, **fields: Field) -> Observation:
    """Short form of the constructor."""
    return Observation(event, fields)


class JsonLog:
    """One line of JSON an event: `{"level":…,"ts":…,"event":…,"message":…,FIELDS}`; `ts` is RFC 3339 in UTC with milliseconds."""

    def __init__(self, level: Level = Level.INFO, stream: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        self._level = level
        self._stream = stream or sys.stderr
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, seen: Observation) -> None:
        """Writes the line, whole, and flushes."""
        declared = DECLARED[seen.event]
        if declared.level is None or declared.level < self._level:
            return
        now = self._clock()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        line = {"level": declared.level.name.lower(), "ts": stamp, "event": seen.event, "message": declared.message, **seen.fields}
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
        with self._lock:
            self._stream.write(text)
            self._stream.flush()


class Metrics:
    """Prometheus metrics of the operator, in a registry of their own. Labels are bounded: kinds, verbs and outcomes, never names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        seconds = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self._waiting = Gauge("tailrace_operator_queue_depth", "Resources that wait to be reconciled.", registry=self.registry)
        self._running = Gauge("tailrace_operator_reconciling", "Resources that are being reconciled.", registry=self.registry)
        self._reconciles = Counter("tailrace_operator_reconciles", "Reconciles.", ("kind", "outcome"), registry=self.registry)
        self._duration = Histogram(
            "tailrace_operator_reconcile_duration_seconds", "Time a reconcile took.", ("kind",), buckets=seconds, registry=self.registry
        )
        self._writes = Counter("tailrace_operator_writes", "Objects written.", ("kind", "action"), registry=self.registry)
        self._calls = Counter(
            "tailrace_operator_api_calls", "Calls of the API server.", ("verb", "resource", "outcome"), registry=self.registry
        )
        self._call_duration = Histogram(
            "tailrace_operator_api_call_duration_seconds", "Time a call took.", ("verb",), buckets=seconds, registry=self.registry
        )
        self._polls = Counter("tailrace_operator_pods_polled", "Questions to pods what they serve.", ("outcome",), registry=self.registry)
        self._leading = Gauge("tailrace_operator_leading", "1 while this operator reconciles.", registry=self.registry)
        self._resources = Gauge("tailrace_operator_resources", "Resources at the last list.", registry=self.registry)
        self._relists = Counter("tailrace_operator_relists", "Lists of all resources.", ("outcome",), registry=self.registry)

    def __call__(self, seen: Observation) -> None:
        """Counts what was seen."""
        fields = seen.fields
        match seen.event:
            case Event.QUEUE_CHANGED:
                self._waiting.set(int(fields["waiting"] or 0))
                self._running.set(int(fields["running"] or 0))
            case Event.RECONCILED:
                self._reconciles.labels(fields["kind"], "ok").inc()
                self._duration.labels(fields["kind"]).observe(float(fields["duration_s"] or 0))
            case Event.RECONCILE_FAILED:
                self._reconciles.labels(fields["kind"], str(fields["reason"])).inc()
            case Event.RECONCILE_RACED:
                self._reconciles.labels(fields["kind"], "conflict").inc()
            case Event.WROTE:
                self._writes.labels(fields["kind"], fields["action"]).inc()
            case Event.API_CALLED:
                self._calls.labels(fields["verb"], fields["resource"], fields["outcome"]).inc()
                self._call_duration.labels(fields["verb"]).observe(float(fields["duration_s"] or 0))
            case Event.PODS_POLLED:
                self._polls.labels("answered").inc(int(fields["answered"] or 0))
                self._polls.labels("silent").inc(int(fields["silent"] or 0))
            case Event.LEADING:
                self._leading.set(1)
            case Event.RELISTED:
                self._resources.set(int(fields["resources"] or 0))
                self._relists.labels("ok").inc()
            case Event.RELIST_FAILED:
                self._relists.labels("failed").inc()
            case _:
                pass


class FrameworkLog(logging.Handler):
    """Takes what kopf and its libraries log (warnings and worse) and tells only who complained and the error's type.

    Their texts are dropped: they may quote an object's body.
    """

    def __init__(self, tell: Observer, period_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._period = period_s
        self._clock = clock
        self._told: dict[tuple[str, str, str | None], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Tells one record, and the same complaint again only after a minute: kopf retries a dozen watches at once."""
        kind = record.exc_info[0] if record.exc_info else None
        complaint = (record.name[:100], record.levelname.lower(), kind.__name__ if kind else None)
        now = self._clock()
        if now - self._told.get(complaint, -math.inf) < self._period:
            return
        self._told[complaint] = now  # Bounded: by the loggers and the types of errors that there are.
        logger, level, error = complaint
        self._tell(observation(Event.FRAMEWORK_MESSAGE, logger=logger, level=level, error=error))


def observer(*targets: Observer) -> Observer:
    """One observer that tells all of these, in order."""

    def tell(seen: Observation) -> None:
        for target in targets:
            target(seen)

    return tell


def silent(seen: Observation) -> None:
    """Observer that drops everything, for tests."""
