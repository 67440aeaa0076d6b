"""What is served, told to other programs of the same machine: `DIR/run/status.json`, written once a snapshot is in force.

`tailrace run` prints it. It holds names, places and reasons; never SQL, values, digests or keys. IO: that file.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import Snapshot
from tailrace_contract.report import (
    MESSAGE_LENGTH,
    REFUSED_KEYS_SHOWN,
    REFUSED_SHOWN,
    STOPPED_SHOWN,
    GatewayReport,
    QueriesReport,
    RefusedKeyReport,
    RefusedReport,
    Report,
    StoppedReport,
)
from tailrace_contract.resource import Kind

from tailrace_gateway.compile.refusal import RefusedUnit
from tailrace_gateway.push import Stopped
from tailrace_gateway.resources.private import write_private
from tailrace_gateway.resources.state import Located, ResourceState
from tailrace_gateway.resources.vault import Vault


@dataclass(frozen=True, slots=True)
class Published:
    """What is to be served now and what is to be said about it. `snapshot` None: nothing can be served yet."""

    snapshot: Snapshot | None
    state: ResourceState
    refusals: tuple[RefusedUnit, ...] = ()
    findings: tuple[Located, ...] = ()
    warnings: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    duration_ms: int = 0

    def tells_the_same(self, other: "Published | None") -> bool:
        """Whether a reader of the status file would see no difference: only sources moved."""
        if other is None or self.snapshot is None or other.snapshot is None or self.snapshot.version != other.snapshot.version:
            return False
        mine, theirs = (replace(each, snapshot=None, state=self.state, duration_ms=0) for each in (self, other))
        return mine == theirs and self.state.held.keys() == other.state.held.keys()

    def says_the_same(self, other: "Published | None") -> bool:
        """Whether nothing but the version, the time it took and places in files differs."""
        if other is None or (self.snapshot is None) != (other.snapshot is None):
            return False
        mine, theirs = (replace(each, snapshot=None, state=self.state, duration_ms=0) for each in (self, other))
        if mine != theirs or self.snapshot is None or other.snapshot is None:
            return mine == theirs
        return self.snapshot.sources == other.snapshot.sources and self.serves_the_same(other)

    def serves_the_same(self, other: "Published | None") -> bool:
        """Whether callers would see no difference: nothing of the snapshot differs but its version and what was seen."""
        if other is None or self.snapshot is None or other.snapshot is None:
            return False
        seen = {"version": self.snapshot.version, "sources": self.snapshot.sources}
        keys = zip(self.snapshot.keys, other.snapshot.keys, strict=False)
        # Queries' versions tell 1, true and 1.0 apart, which are equal in Python; keys have none.
        return self.snapshot == other.snapshot.model_copy(update=seen) and all(a is b or repr(a.bind) == repr(b.bind) for a, b in keys)


def report(published: Published) -> Report | None:
    """What the operator is to know of it; None without a snapshot."""
    snapshot = published.snapshot
    if snapshot is None:
        return None
    units = [unit for unit in published.refusals if unit.unit in ("query", "grant")]
    refused = {unit.name for unit in units}
    shown = [
        RefusedReport(name=unit.name, role=unit.role, code=unit.code, message=unit.hint[:MESSAGE_LENGTH]) for unit in units[:REFUSED_SHOWN]
    ]
    names = {query.name for query in snapshot.queries}
    coalesced = sum(query.coalesce is not None for query in snapshot.queries)
    queries = QueriesReport(total=len(names | refused), served=len(names - refused), coalesced=coalesced, refused=tuple(shown))
    live = {key.id for key in snapshot.keys}
    refused_keys = {
        unit.name: unit.hint[:MESSAGE_LENGTH]
        for unit in published.refusals
        if unit.unit == "key" and unit.code == Refusal.INVALID_KEY and unit.name not in live
    }
    gateway = GatewayReport(
        queries=queries,
        keys=len(live),
        refused_keys=tuple(RefusedKeyReport(id=name, message=why) for name, why in sorted(refused_keys.items())[:REFUSED_KEYS_SHOWN]),
        stale=_is_stale(published),
    )
    return Report(version=snapshot.version, sources=snapshot.sources, gateway=gateway)


def without_stopped(report: Report, snapshot: Snapshot, stopped: Sequence[Stopped]) -> Report:
    """The report once the data plane has stopped the batches of these query versions."""
    versions = {query.name: query.version for query in snapshot.queries if query.coalesce is not None}
    gone = {each.query: each.reason for each in stopped if versions.get(each.query) == each.version}
    if not gone:
        return report
    queries = report.gateway.queries
    shown = tuple(StoppedReport(name=name, reason=why) for name, why in sorted(gone.items())[:STOPPED_SHOWN])
    queries = queries.model_copy(update={"coalesced": queries.coalesced - len(gone), "stopped": shown})
    return report.model_copy(update={"gateway": report.gateway.model_copy(update={"queries": queries})})


def _is_stale(published: Published) -> bool:
    """Whether a finding is about something of the API's owner. Authors of ApiKeys are not trusted: a broken one of theirs must not speak
    against the whole API, and has a status of its own."""
    return any(not located.unit.startswith(f"{Kind.API_KEY} ") for located in published.findings)


def status_file(data: Path) -> Path:
    """Where it stands."""
    return data / "run" / "status.json"


def write_status(data: Path, published: Published) -> None:
    """Writes it whole; a disk that is full only makes it old."""
    with suppress(OSError):
        write_private(status_file(data), json.dumps(status(data, published), indent=1).encode())


def status(data: Path, published: Published) -> dict[str, JsonValue]:
    """The status as JSON."""
    snapshot = published.snapshot
    return {
        "version": snapshot.version if snapshot is not None else 0,
        "api": f"{snapshot.api.namespace}/{snapshot.api.name}" if snapshot is not None else None,
        "tls": snapshot is not None and snapshot.api.tls is not None,
        "compiledMs": published.duration_ms,
        "queries": [] if snapshot is None else _queries(snapshot),
        "keys": _keys(data, published.state, snapshot),
        "refusals": [
            {"unit": each.unit, "name": each.name, "role": each.role, "code": each.code, "hint": each.hint, "place": each.place}
            for each in published.refusals
        ],
        "findings": [
            {"where": each.where, "unit": each.unit, "message": each.finding.message, "hint": each.finding.hint}
            for each in published.findings
        ],
        "warnings": list(published.warnings),
        "unreachable": list(published.unreachable),
    }


def _queries(snapshot: Snapshot) -> list[JsonValue]:
    return [
        {
            "name": query.name,
            "method": "POST" if query.write else "GET",
            "params": [param.name for param in query.params if param.required],
            "optional": [param.name for param in query.params if not param.required],
            "returns": query.returns.value,
            "refused": query.refused,
        }
        for query in snapshot.queries
    ]


def _keys(data: Path, state: ResourceState, snapshot: Snapshot | None) -> list[JsonValue]:
    if snapshot is None:
        return []
    vault = Vault(data)
    live = {key.id for key in snapshot.keys}
    found: list[JsonValue] = []
    for ref, key in state.api_keys.items():
        if ref.namespace != snapshot.api.namespace or str(key.api_ref) != f"{snapshot.api.namespace}/{snapshot.api.name}":
            continue
        path = vault.key_file(key) if key.spec.secret_name is not None else None
        found.append(
            {
                "id": str(ref),
                "role": key.spec.role,
                "file": str(path) if path is not None else None,
                "suspended": key.spec.suspended,
                "expiresAt": key.spec.expires_at.isoformat() if key.spec.expires_at is not None else None,
                "live": str(ref) in live,
            }
        )
    return found
