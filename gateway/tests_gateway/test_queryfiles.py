"""`queriesFrom`: *.sql files with a front matter, from ConfigMap documents and from what a kubelet mounts."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tailrace_contract.document import read
from tailrace_contract.ids import Ref
from tailrace_contract.queryapi import Query, QueryAPI
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.compile.resources import api_spec
from tailrace_gateway.resources.configdoc import Config, read_config
from tailrace_gateway.resources.files import FileSource
from tailrace_gateway.resources.mounted import MountedConfigs
from tailrace_gateway.resources.queryfiles import Place, QueryFiles, read_query_file

GOOD = b"""---
connection: db
params:
  id: {type: integer, required: true}
returns: one
---
-- by id
SELECT 1 AS x WHERE 1 = :id

"""


def api(*names: str, queries: list[dict[str, Any]] | None = None) -> QueryAPI:
    spec = {
        "connections": [{"name": "db", "urlFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        "queries": queries or [],
        "queriesFrom": [{"configMapRef": {"name": name}} for name in names or ("sql",)],
        "roles": [{"name": "all", "queries": ["*"]}],
        "runStoreRef": {"name": "runs"},
    }
    found = read(
        {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": {"name": "shop", "namespace": "retail"}, "spec": spec}
    )
    assert isinstance(found, QueryAPI), found
    return found


def configs(name: str = "sql", **files: bytes) -> dict[Ref, tuple[Config, Place]]:
    config = Config(Ref("retail", name), {f"{file}.sql": content for file, content in files.items()})
    return {config.ref: (config, Place())}


def test_a_file_is_a_query_named_after_it() -> None:
    query = read_query_file("by_id.sql", GOOD)
    assert isinstance(query, Query)
    assert (query.name, query.connection, query.returns.value) == ("by_id", "db", "one")
    assert query.sql == "-- by id\nSELECT 1 AS x WHERE 1 = :id"
    assert query.params["id"].required
    named = read_query_file("By-Id.sql", b"\xef\xbb\xbf\n--- \r\nname: other\r\nconnection: db\r\n---\r\nSELECT 1 AS x\r\n")
    assert isinstance(named, Query)
    assert named.name == "other"


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"SELECT 1", 1, "does not begin with its front matter"),
        (b"SELECT 1\n---\nconnection: db\n---\nSELECT 1", 1, "does not begin with its front matter"),
        (b"---\nconnection: db\n", 1, "does not end"),
        (b"---\nconnection: db\n---\n\n", 3, "sql"),
        (b"---\n---\nSELECT 1", 1, "connection: is required"),
        (b"---\n- a\n---\nSELECT 1", 2, "map of fields"),
        (b"---\nconnection: db\n\nreturns: [\n---\nSELECT 1", 5, ""),
        (b"---\nconnection: db\nconnection: db\n---\nSELECT 1", 3, "stands here twice"),
        (b"---\nconnection: db\nsql: SELECT 1\n---\nSELECT 1", 3, "behind its front matter"),
        (b"---\nconnection: db\nreturn: one\n---\nSELECT 1", 3, "return: there is no such field"),
        (b"---\nconnection: db\nparams:\n  id: {type: integer, minimum: 5, maximum: 1}\n---\nSELECT :id", 4, "minimum"),
        (b"---\nconnection: DB!\n---\nSELECT 1", 2, "connection: has the wrong form"),
        (b"---\nconnection: 7\n---\nSELECT 1", 2, "connection: must be text"),
        (b"---\nconnection: db\nname: Not A Name\n---\nSELECT 1", 3, "name: has the wrong form"),
        (b"---\nconnection: \xff\n---\nSELECT 1", 2, "not UTF-8"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(content: bytes, line: int, says: str) -> None:
    faults = read_query_file("q.sql", content)
    assert isinstance(faults, tuple)
    assert says in faults[0].finding.message
    assert faults[0].line == line, faults


def test_a_file_whose_name_is_none_needs_one() -> None:
    faults = read_query_file("Not A Name.sql", b"---\nconnection: db\n---\nSELECT 1 AS x")
    assert isinstance(faults, tuple)
    assert "name: has the wrong form" in faults[0].finding.message


def test_a_bad_file_is_alone_and_its_last_good_form_holds() -> None:
    files = QueryFiles()
    queries, findings = files.of(api(), configs(a=GOOD, b=GOOD))
    assert [each.query.name for each in queries] == ["a", "b"]
    assert not findings
    queries, findings = files.of(api(), configs(a=GOOD.replace(b"1 AS x", b"2 AS x"), b=b"SELECT", c=b"SELECT"))
    assert [(each.query.name, "2 AS x" in each.query.sql) for each in queries] == [("a", True), ("b", False)]
    assert [(each.where, each.unit) for each in findings] == [
        ("retail/sql/b.sql:1:1", "QueryAPI retail/shop"),
        ("retail/sql/c.sql:1:1", "QueryAPI retail/shop"),
    ]
    queries, findings = files.of(api(), configs(a=GOOD))
    assert [each.query.name for each in queries] == ["a"]
    assert not findings


def test_a_config_map_that_is_missing_holds_what_it_had_and_says_so() -> None:
    files = QueryFiles()
    files.of(api(), configs(a=GOOD))
    queries, findings = files.of(api(), {})
    assert [each.query.name for each in queries] == ["a"]
    assert findings[0].finding.message == "queriesFrom: there is no ConfigMap retail/sql"
    queries, findings = files.of(api("other"), configs("other", c=GOOD))
    assert [each.query.name for each in queries] == ["c"]
    assert not findings


def test_an_unknown_connection_and_too_many_queries() -> None:
    queries, findings = QueryFiles().of(api(), configs(a=GOOD.replace(b"connection: db", b"connection: nowhere"), b=GOOD))
    assert [each.query.name for each in queries] == ["b"]
    assert "no connection nowhere" in findings[0].finding.message
    many = configs(**{f"q{n:04}": GOOD for n in range(1001)})
    queries, findings = QueryFiles().of(api(), many)
    assert (len(queries), len(findings)) == (1000, 1)


def test_two_of_one_name_are_refused_by_name() -> None:
    inline = [{"name": "a", "connection": "db", "sql": "SELECT 1 AS x"}]
    whole = api(queries=inline)
    queries, findings = QueryFiles().of(whole, configs(a=GOOD, b=GOOD, c=GOOD.replace(b"connection", b"name: b\nconnection")))
    assert not findings
    spec = api_spec(whole, None, (), Path("secrets"), files=queries)
    assert [(each.name, bool(each.twice)) for each in spec.queries] == [("a", True), ("b", True)]
    assert "retail/sql/c.sql:1:1" in spec.queries[1].twice


def turn(folder: Path, name: str, version: str, **files: str) -> None:
    """As a kubelet does it: a new directory, then one link."""
    path = folder / "retail" / name
    (path / version).mkdir(parents=True)
    for file, text in files.items():
        (path / version / f"{file}.sql").write_text(text)
        if not (path / f"{file}.sql").is_symlink():
            (path / f"{file}.sql").symlink_to(f"..data/{file}.sql")
    (path / "..new").symlink_to(version)
    (path / "..new").rename(path / "..data")


def test_what_a_kubelet_mounts_changes_as_a_whole(tmp_path: Path) -> None:
    mounted = MountedConfigs(tmp_path)
    ref = Ref("retail", "sql")
    assert mounted.read(ref) is None
    turn(tmp_path, "sql", "..1", a="one", b="one")
    first = mounted.read(ref)
    assert first is not None
    assert first.files == {"a.sql": b"one", "b.sql": b"one"}
    assert mounted.read(ref) is first
    turn(tmp_path, "sql", "..2", a="two")
    second = mounted.read(ref)
    assert second is not None
    assert second.files == {"a.sql": b"two"}
    (tmp_path / "retail" / "plain").mkdir()
    (tmp_path / "retail" / "plain" / "x.sql").write_text("x")
    plain = mounted.read(Ref("retail", "plain"))
    assert plain is not None
    assert plain.files == {"x.sql": b"x"}
    (tmp_path / "retail" / "plain" / "x.sql").write_bytes(os.urandom(1 << 21))
    assert mounted.read(Ref("retail", "plain")) is None


def test_config_maps_as_documents() -> None:
    good = read_config(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "x", "labels": {}},
            "data": {"a.sql": "é"},
            "binaryData": {"b": "aGk="},
            "immutable": True,
        }
    )
    assert isinstance(good, Config)
    assert good.files == {"a.sql": "é".encode(), "b": b"hi"}
    bad = read_config(
        {"kind": "ConfigMap", "metadata": {"name": "X"}, "data": {"../a": "x", "b": 1, "c": ""}, "binaryData": {"c": "aGk=", "d": "%"}}
    )
    assert isinstance(bad, list)
    assert len(bad) == 5


RESOURCES = """
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {name: shop, namespace: retail}
spec:
  connections: [{name: db, urlFrom: {secretKeyRef: {name: db, key: url}}}]
  queriesFrom: [{configMapRef: {name: sql}}]
  roles: [{name: all, queries: ["*"]}]
  runStoreRef: {name: runs}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: sql, namespace: retail}
data:
  README: not a query
  one.sql: |
    ---
    connection: db
    ---
    SELECT 1 AS x
  two.sql: |
    ---
    connection: db
    wrong: 1
    ---
    SELECT 2 AS x
"""


def test_files_hold_config_maps_too(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(RESOURCES)
    source = FileSource([file], tmp_path / "data")
    state = source.read()
    shop = state.query_apis[Ref("retail", "shop")]
    assert [each.name for each in state.queries_of(shop)] == ["one"]
    assert state.queries[shop.ref][0].place == f"{file}:17:1"
    assert [(each.where, each.finding.message) for each in state.findings] == [(f"{file}:24:1", "wrong: there is no such field here")]
    file.write_text(RESOURCES.replace("    wrong: 1\n", "").replace("  one.sql", "  three.sql"))
    state = source.read()
    assert [each.name for each in state.queries_of(shop)] == ["three", "two"]
    assert not state.findings


def test_a_name_that_two_have_refuses_and_the_rest_is_served(tmp_path: Path) -> None:
    """Through the real compiler, on SQLite."""
    (tmp_path / "secrets" / "retail" / "db").mkdir(parents=True)
    (tmp_path / "secrets" / "retail" / "db" / "url").write_text(f"sqlite:///{tmp_path / 'x.db'}")
    sqlite3.connect(tmp_path / "x.db").close()
    plain = b"---\nconnection: db\n---\nSELECT 1 AS x"
    whole = api(queries=[{"name": "a", "connection": "db", "sql": "SELECT 1 AS x"}])
    queries, _ = QueryFiles().of(whole, configs(a=plain, b=plain))
    compiled = Compiler().compile(api_spec(whole, None, (), tmp_path / "secrets", files=queries), 1)
    assert [(each.name, each.refused) for each in compiled.assembled.snapshot.queries] == [("a", "duplicate_name"), ("b", None)]
    assert [(unit.name, unit.code) for unit in compiled.refusals if unit.unit == "query"] == [("a", "duplicate_name")]
