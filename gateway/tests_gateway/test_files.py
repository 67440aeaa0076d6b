"""Files become whole states; the last good form holds while one is wrong; changes are noticed."""

import asyncio
import base64
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tailrace_contract import keys
from tailrace_contract.ids import Ref
from tailrace_gateway.resources.files import FileSource
from tailrace_gateway.resources.private import make_private_directory
from tailrace_gateway.resources.state import Digest, ResourceState

API = """
apiVersion: tailrace.dev/v1alpha1
kind: QueryAPI
metadata: {{name: {name}}}
spec:
  connections: [{{name: db, urlFrom: {{secretKeyRef: {{name: db, key: url}}}}}}]
  queries: [{{name: one, connection: db, sql: SELECT {value} AS x}}]
  roles: [{{name: all, queries: ["*"]}}]
  runStoreRef: {{name: runs}}
"""
KEY = """
apiVersion: tailrace.dev/v1alpha1
kind: ApiKey
metadata: {{name: {name}}}
spec: {{queryApiRef: {{name: {api}}}, role: all, suspended: {suspended}, {source}}}
"""
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{url: {url}}}\n"


def key(name: str = "k", api: str = "shop", suspended: str = "false", source: str = "secretName: k") -> str:
    return KEY.format(name=name, api=api, suspended=suspended, source=source)


def api(value: int = 1, name: str = "shop") -> str:
    return API.format(name=name, value=value)


def sql(state: ResourceState, name: str = "shop") -> str:
    return state.query_apis[Ref("default", name)].spec.queries[0].sql


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> FileSource:
    return FileSource([folder], tmp_path / "data")


def test_documents_of_all_files_make_one_state(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(api() + "---" + key())
    (folder / "b.yml").write_text(SECRET.format(url="sqlite:///x.db"))
    (folder / "c.txt").write_text("not: yaml: at all")
    (folder / ".hidden.yaml").write_text("not: yaml: at all")
    (folder / "deployment.yaml").write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n")
    state = source.read()
    assert not state.stale
    assert sql(state) == "SELECT 1 AS x"
    assert state.files == 3
    assert list(state.api_keys) == [Ref("default", "k")]


def test_secrets_are_private_files_and_go_with_their_document(folder: Path, tmp_path: Path, source: FileSource) -> None:
    other = tmp_path / "data" / "secrets" / "default" / "mounted" / "url"
    other.parent.mkdir(parents=True)
    other.write_text("kept")
    encoded = base64.b64encode(b"\x00\xff").decode()
    (folder / "s.yaml").write_text(
        f"apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\ndata: {{raw: {encoded}, url: eA==}}\nstringData: {{url: why}}"
    )
    first = source.read()
    assert not first.findings
    url = tmp_path / "data" / "secrets" / "default" / "db" / "url"
    assert url.read_bytes() == b"why"
    assert (url.parent / "raw").read_bytes() == b"\x00\xff"
    assert stat.S_IMODE(url.stat().st_mode) == 0o600
    assert stat.S_IMODE(url.parent.stat().st_mode) == 0o700
    assert "x" not in repr(first.findings)
    (folder / "s.yaml").unlink()
    source.read()
    assert not url.parent.exists()
    assert other.read_text() == "kept"


def test_a_secret_that_would_leave_its_directory_is_refused_without_its_value(folder: Path, tmp_path: Path, source: FileSource) -> None:
    (folder / "s.yaml").write_text(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: ../../up}\nstringData: {url: hunter2}\n---\n"
        "apiVersion: v1\nkind: Secret\nmetadata: {name: b}\nstringData: {../x: hunter2}\ndata: {z: hunter2!}\n"
    )
    state = source.read()
    assert len(state.findings) == 3
    assert "hunter2" not in repr(state)
    assert not list(tmp_path.rglob("up")) + list(tmp_path.rglob("x"))


def test_a_minted_key_is_kept_and_a_brought_one_is_digested(folder: Path, tmp_path: Path) -> None:
    brought = "brought-key-of-some-length"
    (folder / "a.yaml").write_text(
        key("m") + "---" + key("b", source="keyFrom: {secretKeyRef: {name: mine, key: key}}") + "---" + key("none", source="keyFrom: {secretKeyRef: {name: none, key: key}}")
        + f"---\napiVersion: v1\nkind: Secret\nmetadata: {{name: mine}}\nstringData: {{key: {brought}}}\n"
    )  # fmt: skip
    state = FileSource([folder], tmp_path / "data").read()
    assert not state.findings
    file = tmp_path / "data" / "keys" / "default" / "k"
    text = file.read_text().strip()
    assert keys.is_minted(text)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert state.digests == {Ref("default", "m"): (Digest(keys.digest(text)),), Ref("default", "b"): (Digest(keys.digest(brought)),)}
    assert state.keyless == {Ref("default", "none"): "the Secret with the key is missing"}
    assert FileSource([folder], tmp_path / "data").read().digests == state.digests
    assert text not in repr(state)


@pytest.mark.parametrize("broken", ["a:\n\t- x", "{", "", "kind: [", "\udcff"])
def test_the_last_good_form_of_an_unreadable_file_holds_and_others_still_change(folder: Path, source: FileSource, broken: str) -> None:
    (folder / "a.yaml").write_text(api(1))
    (folder / "k.yaml").write_text(key(suspended="false"))
    source.read()
    (folder / "a.yaml").write_bytes(broken.encode("utf-8", "surrogateescape"))
    (folder / "k.yaml").write_text(key(suspended="true"))
    state = source.read()
    if not broken:
        assert not state.query_apis
        return
    assert state.stale
    assert sql(state) == "SELECT 1 AS x"
    assert state.api_keys[Ref("default", "k")].spec.suspended, "a narrowed grant applies at once"
    (folder / "a.yaml").write_text(api(2))
    state = source.read()
    assert not state.stale
    assert sql(state) == "SELECT 2 AS x"


def test_a_wrong_document_keeps_its_last_good_form_beside_its_changed_neighbours(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(api(1) + "---" + key())
    source.read()
    (folder / "a.yaml").write_text(api(2).replace("sql:", "sqll:") + "---" + key(suspended="true"))
    state = source.read()
    assert sql(state) == "SELECT 1 AS x"
    assert state.api_keys[Ref("default", "k")].spec.suspended
    located = state.findings[0]
    assert (located.line, located.unit) == (7, "QueryAPI default/shop")
    assert {each.finding.message for each in state.findings} == {"sqll: there is no such field here", "sql: is required"}


def test_a_wrong_document_that_was_never_good_is_absent(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(api().replace("name: shop", f"name: {'x' * 64}") + "---" + api(name="other"))
    state = source.read()
    assert list(state.query_apis) == [Ref("default", "other")]
    assert state.findings[0].finding.place == "metadata.name"
    assert "50" in state.findings[0].finding.message


def test_two_documents_of_one_name_are_both_refused(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(api(1))
    source.read()
    (folder / "b.yaml").write_text(api(2))
    state = source.read()
    assert sql(state) == "SELECT 1 AS x", "the last good form holds"
    assert state.findings[0].where.endswith("b.yaml:4:12")
    assert "a.yaml:2" in state.findings[0].finding.message
    fresh = FileSource([folder], folder / "data").read()
    assert not fresh.query_apis


def test_a_key_cannot_move_to_another_api(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(key(api="shop"))
    source.read()
    (folder / "a.yaml").write_text(key(api="other"))
    state = source.read()
    assert state.api_keys[Ref("default", "k")].spec.query_api_ref.name == "shop"
    assert "can't be changed" in state.findings[0].finding.message


def test_what_is_removed_is_gone_but_a_lost_directory_is_a_fault(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(api())
    (folder / "k.yaml").write_text(key())
    source.read()
    (folder / "k.yaml").unlink()
    assert not source.read().api_keys
    moved = folder.rename(folder.parent / "away")
    state = source.read()
    assert state.stale
    assert sql(state) == "SELECT 1 AS x"
    moved.rename(folder)
    assert not source.read().stale


async def _next(states: AsyncIterator[ResourceState]) -> ResourceState:
    return await asyncio.wait_for(anext(states), 10)


async def test_edits_in_place_by_rename_and_within_the_same_clock_tick_are_noticed(folder: Path, source: FileSource) -> None:
    file = folder / "a.yaml"
    file.write_text(api(1))
    states = source.states()
    assert sql(await _next(states)) == "SELECT 1 AS x"
    file.write_text(api(2))
    assert sql(await _next(states)) == "SELECT 2 AS x"
    (folder / "a.tmp").write_text(api(3))
    (folder / "a.tmp").rename(file)
    assert sql(await _next(states)) == "SELECT 3 AS x"
    before = file.stat()
    with file.open("r+b") as handle:
        handle.write(api(4).encode())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sql(await _next(states)) == "SELECT 4 AS x"
    await states.aclose()  # type: ignore[attr-defined]


async def test_a_changed_secret_or_key_file_is_a_change(folder: Path, tmp_path: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(api())
    (folder / "k.yaml").write_text(key())
    states = source.states()
    first = await _next(states)
    mounted = tmp_path / "data" / "secrets" / "default" / "db" / "url"
    mounted.parent.mkdir(parents=True)
    mounted.write_text("sqlite:///a.db")
    second = await _next(states)
    assert second.secrets != first.secrets
    (tmp_path / "data" / "keys" / "default" / "k").write_text("another-key-of-some-length")
    third = await _next(states)
    assert third.digests == {Ref("default", "k"): (Digest(keys.digest("another-key-of-some-length")),)}
    await states.aclose()  # type: ignore[attr-defined]


def test_a_document_that_cannot_be_parsed_does_not_keep_its_neighbours_from_changing(folder: Path, source: FileSource) -> None:
    file = folder / "all.yaml"
    file.write_text(api(1) + "---" + key("a") + "---" + key("b"))
    source.read()
    file.write_text(api(2).replace("spec:", "spec:\n\t") + "---" + key("a", suspended="true"))
    state = source.read()
    assert sql(state) == "SELECT 1 AS x", "the last good form of what can't be parsed"
    assert state.api_keys[Ref("default", "a")].spec.suspended, "a narrowed grant applies at once"
    assert Ref("default", "b") in state.api_keys, "what the unreadable document may be holds on"
    assert state.findings[0].where.endswith("all.yaml:6:1")
    file.write_text(api(1) + "---" + key("a").replace("role", "rolle"))
    assert [each.where.rpartition("/")[2] for each in source.read().findings] == ["all.yaml:14:1", "all.yaml:14:35"]


def test_lines_move_with_what_stands_above_them(folder: Path, source: FileSource) -> None:
    file = folder / "all.yaml"
    file.write_text(api() + "---" + key().replace("role", "rolle"))
    before = source.read().findings[0].line
    file.write_text("# one\n# two\n" + file.read_text())
    assert source.read().findings[0].line == before + 2


async def test_a_deleted_key_file_is_a_rotation(folder: Path, tmp_path: Path, source: FileSource) -> None:
    (folder / "k.yaml").write_text(key())
    states = source.states()
    first = await _next(states)
    file = tmp_path / "data" / "keys" / "default" / "k"
    file.unlink()
    second = await _next(states)
    assert second.digests != first.digests
    assert second.digests == {Ref("default", "k"): (Digest(keys.digest(file.read_text().strip())),)}
    await states.aclose()  # type: ignore[attr-defined]


def test_private_directories_are_private_all_the_way_down(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "data" / "keys" / "retail")
    for made in ("data", "data/keys", "data/keys/retail"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700
