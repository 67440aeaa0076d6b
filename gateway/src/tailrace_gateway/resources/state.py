"""What a source of resources gives: one whole, checked state at a time. Pure values and the interface; no IO.

A state is complete in itself: whoever gets it needs nothing of an earlier one. It holds the last good form of every resource, what is
wrong with newer forms (`findings`), and whether anything served is older than what stands in the source (`stale`).
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tailrace_contract.apikey import ApiKey
from tailrace_contract.document import Resource
from tailrace_contract.findings import Finding, Path
from tailrace_contract.ids import Ref
from tailrace_contract.plan import Source
from tailrace_contract.queryapi import Query, QueryAPI
from tailrace_contract.resource import Kind
from tailrace_contract.runstore import RunStore
from tailrace_contract.status import AdmittedNamespace

from tailrace_gateway.resources.manifest import locate


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document stands: its file, and within the part of the file that `text` is (`before` lines stand before it) its position and
    first line."""

    file: str
    index: int = 0
    line: int = 1
    text: str = field(default="", repr=False, compare=False)
    before: int = 0

    @property
    def first_line(self) -> int:
        """The document's first line in the file."""
        return self.line + self.before

    def place(self, path: Path) -> tuple[int, int]:
        """Line and column of a path within the document. Reads the text again: for messages only."""
        line, column = locate(self.text, self.index, path) if self.text else (self.line, 1)
        return line + self.before, column


@dataclass(frozen=True, slots=True)
class Located:
    """A finding with the file, line and column (from 1) it belongs to. `unit` is the resource, as `QueryAPI retail/shop`, if known."""

    file: str
    line: int
    column: int
    finding: Finding
    unit: str = ""

    @property
    def where(self) -> str:
        """`shop.yaml:12:7`."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Held:
    """The form of a resource that is in force, and where it came from."""

    resource: Resource
    origin: Origin


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query of `queriesFrom`; `place`: FILE:LINE:COLUMN of where it begins."""

    query: Query
    place: str


@dataclass(frozen=True, slots=True)
class Digest:
    """A key text that is valid: its SHA-256 in hex, and for how long (µs since 1970; None: without end)."""

    sha256: str = field(repr=False)
    not_before_us: int | None = None
    not_after_us: int | None = None


@dataclass(frozen=True)
class ResourceState:
    """Everything that is in force now. `held` is by identity: `KIND NAMESPACE/NAME`.

    `digests`: of each ApiKey's texts; `keyless`: why a key has none (a sentence without a value). `secrets` changes whenever a
    value that the resources refer to does (a digest, never the values). `files` is how many were read. `sources`: what was seen of a cluster,
    for acknowledgement, besides the QueryAPI itself. `admitted`: other namespaces whose ApiKeys may be served, within the API's ceilings.
    """

    held: Mapping[str, Held]
    findings: tuple[Located, ...] = ()
    digests: Mapping[Ref, tuple[Digest, ...]] = field(default_factory=dict)
    keyless: Mapping[Ref, str] = field(default_factory=dict)
    secrets: str = ""
    files: int = 0
    sources: tuple[Source, ...] = ()
    admitted: tuple[AdmittedNamespace, ...] = ()
    queries: Mapping[Ref, tuple[FileQuery, ...]] = field(default_factory=dict)
    """Of each QueryAPI, those of `queriesFrom`."""

    def queries_of(self, api: QueryAPI) -> tuple[Query, ...]:
        """All queries of an API: its own, then those of its ConfigMaps."""
        return (*api.spec.queries, *(each.query for each in self.queries.get(api.ref, ())))

    @property
    def stale(self) -> bool:
        """Whether something in the source could not be taken, so that an older form (or nothing) holds in its place."""
        return bool(self.findings)

    @cached_property
    def query_apis(self) -> dict[Ref, QueryAPI]:
        """By namespace and name."""
        return {each.resource.ref: each.resource for each in self.held.values() if isinstance(each.resource, QueryAPI)}

    @cached_property
    def api_keys(self) -> dict[Ref, ApiKey]:
        """By namespace and name."""
        return {each.resource.ref: each.resource for each in self.held.values() if isinstance(each.resource, ApiKey)}

    @cached_property
    def run_stores(self) -> dict[Ref, RunStore]:
        """By namespace and name."""
        return {each.resource.ref: each.resource for each in self.held.values() if isinstance(each.resource, RunStore)}

    def origin(self, kind: Kind, ref: Ref) -> Origin:
        """Where a resource stands; an empty origin when there is none."""
        held = self.held.get(f"{kind} {ref}")
        return held.origin if held is not None else Origin("")


class ResourceSource(Protocol):
    """Where resources come from: files, or the Kubernetes API."""

    def states(self) -> AsyncIterator[ResourceState]:
        """The state now, then each later one as soon as it is known. Never ends by itself and never raises for what stands in the source."""
        ...
