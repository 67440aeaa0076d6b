"""What a data plane says of itself at `/status`, as far as the operator cares. Pure: JSON in, `PodReport` out; ValueError for anything else.

A report comes from a pod, so nothing in it is trusted further than that pod: texts and numbers are bounded, and what it acknowledges
counts for that pod alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from tailrace_contract.status import QueriesStatus, RefusedQuery

_REFUSED_READ = 1000
_SOURCES_READ = 1000
_Bounded = Annotated[str, Field(max_length=4096)]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, strict=True)


class _Source(_Part):
    kind: _Bounded = ""
    namespace: _Bounded = ""
    name: _Bounded = ""
    uid: _Bounded = ""
    generation: int = 0
    resource_version: _Bounded = ""


class _Snapshot(_Part):
    sources: Annotated[tuple[_Source, ...], Field(max_length=_SOURCES_READ)] = ()


class _Refused(_Part):
    name: _Bounded = ""
    role: _Bounded | None = None
    code: _Bounded = ""
    message: _Bounded = ""


class _Stopped(_Part):
    name: _Bounded = ""
    reason: _Bounded = ""


class _Queries(_Part):
    total: Annotated[int, Field(ge=0, lt=2**31)] = 0
    served: Annotated[int, Field(ge=0, lt=2**31)] = 0
    coalesced: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stopped: Annotated[tuple[_Stopped, ...], Field(max_length=_REFUSED_READ)] = ()
    refused: Annotated[tuple[_Refused, ...], Field(max_length=_REFUSED_READ)] = ()


class _RefusedKey(_Part):
    id: _Bounded = ""
    message: _Bounded = ""


class _Gateway(_Part):
    queries: _Queries = _Queries()
    keys: Annotated[int, Field(ge=0, lt=2**31)] = 0
    refused_keys: Annotated[tuple[_RefusedKey, ...], Field(max_length=_REFUSED_READ)] = ()
    stale: bool | Annotated[tuple[_Bounded, ...], Field(max_length=_SOURCES_READ)] = False


class _Body(_Part):
    gateway_up: bool = False
    snapshot: _Snapshot | None = None
    gateway: _Gateway | None = None


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What the gateway last said of the snapshot in force."""

    queries: QueriesStatus
    keys: int
    is_stale: bool
    """Whether it serves the last good of something that it can't read now."""
    refused_keys: Mapping[str, str] = field(default_factory=dict)
    """Why ApiKeys that have a digest are not served nevertheless, by NAMESPACE/NAME; some of them, if there are very many."""
    stopped: frozenset[tuple[str, str]] = frozenset()
    """(query, reason) of those whose callers no longer share statements, though they were compiled so; some, if there are very many."""


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod's state. What it acknowledges holds for every call that it admits from now on."""

    uid: str = ""
    """UID of the QueryAPI whose plan it runs on; "": none yet."""
    generation: int = -1
    """Generation of that QueryAPI."""
    api_keys: Mapping[str, int] = field(default_factory=dict)
    """By namespace, the highest resourceVersion of ApiKeys that the plan contains."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """By NAMESPACE/NAME, the fingerprint of the ConfigMap's files that the plan contains."""
    is_gateway_up: bool = False
    gateway: GatewayReport | None = None
    """None until the gateway has spoken of this snapshot: then nothing is acknowledged yet."""

    def has_generation(self, uid: str, generation: int, configs: Mapping[str, str]) -> bool:
        """Whether it serves this generation of this QueryAPI, with these ConfigMaps (fingerprints by NAMESPACE/NAME)."""
        return (
            self.gateway is not None
            and self.uid == uid
            and self.generation >= generation
            and all(self.configs.get(name) == wanted for name, wanted in configs.items())
        )

    def has_keys(self, uid: str, namespace: str, resource_version: int) -> bool:
        """Whether its plan contains what happened to ApiKeys of a namespace up to a resourceVersion."""
        return self.gateway is not None and self.uid == uid and self.api_keys.get(namespace, -1) >= resource_version


def read_report(body: bytes) -> PodReport:
    """Reads the body of `/status`. ValueError, without the text, when it has another form."""
    try:
        said = _Body.model_validate_json(body)
    except ValidationError as error:
        raise ValueError(f"not a data plane's status: {error.error_count()} faults") from None
    sources = said.snapshot.sources if said.snapshot is not None else ()
    api = max((each for each in sources if each.kind == "QueryAPI"), key=lambda each: each.generation, default=None)
    return PodReport(
        uid=api.uid if api is not None else "",
        generation=api.generation if api is not None else -1,
        api_keys={each.namespace: _integer(each.resource_version) for each in sources if each.kind == "ApiKeys"},
        configs={_full_name(each): each.resource_version for each in sources if each.kind == "Config"},
        is_gateway_up=said.gateway_up,
        gateway=None if said.gateway is None else _gateway(said.gateway),
    )


def _integer(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _full_name(source: _Source) -> str:
    return source.name if "/" in source.name else f"{source.namespace}/{source.name}"


def _gateway(said: _Gateway) -> GatewayReport:
    refused = tuple(
        RefusedQuery(name=each.name[:253], role=(each.role or "")[:253], code=each.code[:253], message=each.message[:512])
        for each in said.queries.refused
    )
    counts = said.queries
    queries = QueriesStatus.model_construct(total=counts.total, served=counts.served, coalesced=counts.coalesced, refused=refused)
    keys = {each.id: each.message[:512] for each in said.refused_keys}
    stopped = frozenset((each.name[:253], each.reason[:253]) for each in counts.stopped)
    return GatewayReport(queries, said.keys, bool(said.stale), keys, stopped)


def merged(reports: tuple[GatewayReport, ...], most: int) -> tuple[QueriesStatus, int] | None:
    """Queries and keys over several pods: what any refuses is refused, and only what all serve is served. None without a report."""
    if not reports:
        return None
    refused = {(each.name, each.role): each for report in reports for each in report.queries.refused}
    queries = QueriesStatus(
        total=max(report.queries.total for report in reports),
        served=min(report.queries.served for report in reports),
        coalesced=min(report.queries.coalesced for report in reports),
        refused=tuple(refused[key] for key in sorted(refused))[:most],
    )
    return queries, min(report.keys for report in reports)


def stopped(reports: Iterable[PodReport]) -> list[tuple[str, str]]:
    """(query, reason) of the queries whose callers no longer share statements on any of the pods, in order."""
    return sorted(set[tuple[str, str]]().union(*(report.gateway.stopped for report in reports if report.gateway is not None)))


Reports = Mapping[str, PodReport]
"""By the pod's UID. A pod that did not answer has none."""
