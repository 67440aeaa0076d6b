"""`kubectl tailrace diff`: files against what stands in the cluster."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import SPEC, FakeKubectl, api_key, items, query_api, run_store

Run = Callable[..., tuple[int, str, str]]


def file(folder: Path, *documents: dict[str, Any]) -> Path:
    path = folder / "shop.yaml"
    path.write_text("\n---\n".join(json.dumps(each) for each in documents))
    return path


def api(namespace: str | None = "retail", **spec: Any) -> dict[str, Any]:
    metadata = {"name": "shop"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "tailrace.dev/v1alpha1", "kind": "QueryAPI", "metadata": metadata, "spec": {**copy.deepcopy(SPEC), **spec}}


UNMASKED = [SPEC["roles"][0], {"name": "analyst", "queries": ["customer_by_id"], "tables": {"allow": ["customers"]}}]  # type: ignore[index]


@pytest.fixture
def live(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.answers(r"\[retail\] get queryapis", items(query_api(), api_key("desk", "support"), api_key("bot", "analyst"), run_store()))
    kubectl.answers("config view", "retail")
    return kubectl


def test_nothing_changes(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    assert tailrace("diff", "-f", file(tmp_path, api()), "-n", "retail") == (0, "nothing changes for callers\n", "")


def test_a_mask_that_goes_is_told_for_the_keys_that_stand_there(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    code, out, err = tailrace("diff", "-f", file(tmp_path, api(roles=UNMASKED)), "-n", "retail")
    assert (code, err) == (1, "")
    assert out == "who sees or may do more\n  role analyst: customers.email is not masked any more  [retail/bot]\n"


def test_what_names_no_namespace_belongs_to_the_contexts(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    code, out, _ = tailrace("diff", "-f", file(tmp_path, api(None, roles=UNMASKED)), "-o", "json")
    assert code == 1
    assert [each["who"] for each in json.loads(out)] == [["retail/bot"]]


def test_a_new_key(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    key = {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": "new"},
           "spec": {"queryApiRef": {"name": "shop"}, "role": "support", "secretName": "new-key"}}  # fmt: skip
    _, out, _ = tailrace("diff", "-f", file(tmp_path, key), "-n", "retail")
    assert "retail/new" in out
    assert "is gone" not in out


def test_queries_of_config_maps(kubectl: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    was = query_api()
    was["spec"] = {**copy.deepcopy(SPEC), "queriesFrom": [{"configMapRef": {"name": "q"}}]}
    text = "---\nconnection: shop\n---\nSELECT id FROM customers\n"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "q", "namespace": "retail"}, "data": {"all.sql": text}}
    kubectl.answers("get queryapis", items(was, api_key("desk", "support")))
    kubectl.answers("get configmaps q", config)
    more = {**config, "data": {"all.sql": text, "more.sql": text}}
    code, out, err = tailrace("diff", "-f", file(tmp_path, more, api(queriesFrom=[{"configMapRef": {"name": "q"}}])), "-n", "retail")
    assert (code, err) == (1, "")
    assert "query more: is new and may be called  [retail/desk]" in out
    assert "query all" not in out


def test_a_broken_key_stops_nobody(kubectl: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    broken = api_key("bad", "support")
    broken["spec"]["bind"] = "?"
    kubectl.answers("get queryapis", items(query_api(), broken, api_key("bot", "analyst")))
    code, out, err = tailrace("diff", "-f", file(tmp_path, api(roles=UNMASKED)), "-n", "retail")
    assert code == 1
    assert "retail/bot" in out
    assert "ApiKey retail/bad" in err
    assert "is left out" in err


def test_faults_of_a_file_have_their_place(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("apiVersion: tailrace.dev/v1alpha1\nkind: QueryAPI\nmetadata: {name: shop}\nspec:\n  quries: []\n")
    code, out, err = tailrace("diff", "-f", path, "-n", "retail")
    assert (code, out) == (1, "")
    assert f"{path}:5:3" in err


def test_a_kustomization(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    live.answers("kustomize ", json.dumps(api(roles=UNMASKED)))
    assert "not masked any more" in tailrace("diff", "-k", tmp_path)[1]


def test_usage(live: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    assert tailrace("diff")[0] == 64
    assert tailrace("diff", "-f", tmp_path / "nowhere")[0] == 64


def test_what_cant_be_read_is_no_answer(kubectl: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    kubectl.answers("get queryapis", err="Error from server (Forbidden): queryapis is forbidden\n", code=1)
    assert tailrace("diff", "-f", file(tmp_path, api()), "-n", "retail")[0] == 1


ELSEWHERE = [{"namespaces": {"matchLabels": {"team": "sales"}}, "roles": ["analyst"]}]


def test_keys_of_other_namespaces_count(kubectl: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    shop = query_api(namespaces=[{"name": "sales", "entry": "0123456789abcdef"}])
    shop["spec"] = {**shop["spec"], "allowKeysFrom": ELSEWHERE}
    other = api_key("other", "analyst", namespace="sales")
    other["spec"]["queryApiRef"] = {"name": "another", "namespace": "sales"}
    kubectl.answers(r"\[retail\] get queryapis", items(shop, api_key("desk", "support"), run_store()))
    kubectl.answers(r"\[sales\] get apikeys", items(api_key("bot", "analyst", namespace="sales"), other))
    code, out, err = tailrace("diff", "-f", file(tmp_path, api(roles=UNMASKED, allowKeysFrom=ELSEWHERE)), "-n", "retail")
    assert (code, err) == (1, "")
    assert out == "who sees or may do more\n  role analyst: customers.email is not masked any more  [sales/bot]\n"


def test_keys_that_cant_be_read_are_told(kubectl: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    shop = query_api(namespaces=[{"name": "sales", "entry": "0123456789abcdef"}])
    shop["spec"] = {**shop["spec"], "allowKeysFrom": ELSEWHERE}
    kubectl.answers(r"\[retail\] get queryapis", items(shop, run_store()))
    kubectl.answers(r"\[sales\] get apikeys", err="Error from server (Forbidden): apikeys is forbidden\n", code=1)
    code, _, err = tailrace("diff", "-f", file(tmp_path, api(allowKeysFrom=ELSEWHERE)), "-n", "retail")
    assert code == 0
    assert "keys of namespace sales are left out" in err
