"""`queriesFrom`: the `*.sql` files of ConfigMaps, each YAML between two lines of `---` and then one statement. Pure; remembers what was good.

A file that is wrong is a finding with its line, and the query that it was holds on; of a ConfigMap that is not there everything holds on. A
file that is gone is gone at once. Two queries of one name, wherever they stand, are left to the compiler, which refuses the name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue
from tailrace_contract.document import read
from tailrace_contract.findings import Finding
from tailrace_contract.ids import Ref
from tailrace_contract.queryapi import Query, QueryAPI
from tailrace_contract.resource import API_VERSION, Kind

from tailrace_gateway.resources.configdoc import Config
from tailrace_gateway.resources.manifest import Locator, read_manifests
from tailrace_gateway.resources.state import FileQuery, Located, Origin

SUFFIX = ".sql"
QUERIES = 1000
"""Of one API, all together: as many as the resource itself may hold."""
_FENCE = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a ConfigMap stands: the file that is named, and where each key's text begins in it. Mounted: each key is a file of its own."""

    origin: Origin | None = None

    def file(self, config: Ref, key: str) -> tuple[str, int]:
        """Name and how many lines stand before."""
        if self.origin is None:
            return f"{config}/{key}", 0
        line, _ = self.origin.place(("data", key))
        return self.origin.file, line


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in one file: line and column within it."""

    line: int
    column: int
    finding: Finding


@dataclass(slots=True)
class QueryFiles:
    """Reads the files of one source, again and again; what hasn't changed is not read twice."""

    _read: dict[tuple[str, bytes], Query | tuple[Fault, ...]] = field(default_factory=dict)
    _good: dict[tuple[Ref, Ref, str], FileQuery] = field(default_factory=dict)

    def of(self, api: QueryAPI, configs: Mapping[Ref, tuple[Config, Place]]) -> tuple[tuple[FileQuery, ...], tuple[Located, ...]]:
        """The API's queries in ConfigMaps, in the order of queriesFrom and of their files' names, and everything that is wrong."""
        unit = f"{Kind.QUERY_API} {api.ref}"
        connections = {connection.name for connection in api.spec.connections}
        held: dict[tuple[Ref, Ref, str], FileQuery] = {}
        findings: list[Located] = []
        room = QUERIES - len(api.spec.queries)
        for source in api.spec.queries_from:
            ref = Ref(api.ref.namespace, source.config_map_ref.name)
            if ref not in configs:
                findings.append(
                    Located(str(ref), 1, 1, Finding((), f"queriesFrom: there is no ConfigMap {ref}", "add it, or correct the name"), unit)
                )
                held |= {key: query for key, query in self._good.items() if key[:2] == (api.ref, ref)}
                continue
            config, place = configs[ref]
            for name in sorted(each for each in config.files if each.endswith(SUFFIX)):
                key = (api.ref, ref, name)
                file, before = place.file(ref, name)
                found = self._file(name, config.files[name])
                faults = list(found) if isinstance(found, tuple) else []
                if isinstance(found, Query) and found.connection not in connections:
                    known = ", ".join(sorted(connections))
                    faults = [
                        Fault(
                            1,
                            1,
                            Finding(
                                ("connection",), f"connection: the API has no connection {found.connection}", f"its connections are {known}"
                            ),
                        )
                    ]
                if not faults and len(held) >= room:
                    faults = [Fault(1, 1, Finding((), f"an API has at most {QUERIES:,} queries", "remove some"))]
                findings += [Located(file, fault.line + before, fault.column, fault.finding, unit) for fault in faults]
                if not faults and isinstance(found, Query):
                    held[key] = FileQuery(found, f"{file}:{1 + before}:1")
                elif key in self._good and self._good[key].query.connection in connections:
                    held[key] = self._good[key]
        self._good = {key: query for key, query in self._good.items() if key[0] != api.ref} | held
        return tuple(held.values()), tuple(findings)

    def _file(self, name: str, content: bytes) -> Query | tuple[Fault, ...]:
        key = (name, content)
        if key not in self._read:
            if len(self._read) > 4 * QUERIES:
                self._read.clear()
            self._read[key] = read_query_file(name, content)
        return self._read[key]


def read_query_file(name: str, content: bytes) -> Query | tuple[Fault, ...]:
    """One file's query, or everything that is wrong with it."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return (Fault(line, 1, Finding((), "not UTF-8 text", "save the file as UTF-8")),)
    fences = list(_FENCE.finditer(text))
    if not fences or text[: fences[0].start()].strip():
        return (
            Fault(
                1,
                1,
                Finding((), "the file does not begin with its front matter", "begin with a line of ---, then `connection: NAME`, then ---"),
            ),
        )
    if len(fences) < 2:
        return (Fault(1, 1, Finding((), "the front matter does not end", "put a line of --- between it and the SQL")),)
    front = text[fences[0].end() : fences[1].start()]
    before = text[: fences[0].end()].count("\n")
    manifests, errors = read_manifests(front)
    if errors:
        return tuple(Fault(error.line + before, error.column, Finding((), error.message, error.hint)) for error in errors)
    if len(manifests) > 1 or (manifests and not isinstance(manifests[0].value, dict)):
        return (
            Fault(manifests[-1].line + before, 1, Finding((), "the front matter must be a map of fields", "begin with `connection: NAME`")),
        )
    fields = manifests[0].value if manifests else {}
    assert isinstance(fields, dict)
    locator = Locator(front)

    def located(finding: Finding) -> Fault:
        line, column = locator.place(0, finding.path)
        return Fault(line + before, column, finding)

    if "sql" in fields:
        return (located(Finding(("sql",), "sql: the SQL of a file stands behind its front matter", "remove it here")),)
    sql = text[fences[1].end() :].strip()
    query = {"name": name.removesuffix(SUFFIX), **fields, "sql": sql}
    found = list(_findings(query))
    if found:
        end = text[: fences[1].start()].count("\n") + 1
        return tuple(Fault(end, 1, each) if each.path[:1] == ("sql",) else located(each) for each in found)
    return Query.model_validate_json(json.dumps(query))


def _findings(query: dict[str, JsonValue]) -> Iterator[Finding]:
    """What the resource's own rules say of it, in a resource that has nothing else; paths are those of the front matter."""
    connection = query.get("connection")
    source: JsonValue = {"secretKeyRef": {"name": "x", "key": "x"}}
    spec: JsonValue = {
        "connections": [{"name": connection if connection is not None else "x", "urlFrom": source}],
        "queries": [query],
        "roles": [{"name": "x", "queries": ["*"]}],
        "runStoreRef": {"name": "x"},
    }
    found = read({"apiVersion": API_VERSION, "kind": str(Kind.QUERY_API), "metadata": {"name": "x"}, "spec": spec})
    if not isinstance(found, list):
        return
    own = [each for each in found if each.path[:3] == ("spec", "queries", 0)]
    for each in own:
        yield Finding(each.path[3:], each.message, each.hint)
    if not own:
        yield Finding(("connection",), "connection: has the wrong form", "name an entry of the API's connections")
