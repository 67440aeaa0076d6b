"""`kubectl tailrace explain`: what a pod is asked, and that its answer is told for the real keys."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tailrace_contract.document import read
from tailrace_contract.queryapi import QueryAPI
from tailrace_gateway.plugin.question import documents, groups_of, queries_for

from .conftest import FakeKubectl, api_key, condition, items, pod, pod_says, query_api

Run = Callable[..., tuple[int, str, str]]


def admission(key: str, role: str, **more: Any) -> dict[str, Any]:
    found = {"query": "customer_by_id", "key": key, "role": role, "connection": "shop", "returns": "one", "tables": ["customers"],
             "columns": [{"name": "email", "mask": "hash"}], "lane": "shared", "because": "x", "timeout_ms": 500, "place": "f:1:1"}  # fmt: skip
    return found | more


@pytest.fixture
def shop(kubectl: FakeKubectl) -> FakeKubectl:
    bound = api_key("tenant", "support")
    bound["spec"]["bind"] = {"id": 42}
    suspended = api_key("old", "support")
    suspended["spec"]["suspended"] = True
    keys = [api_key("desk", "support"), api_key("bot", "support"), bound, suspended]
    kubectl.answers("get queryapis", items(query_api(), *keys))
    kubectl.answers("get pods", items(pod("shop-a")))
    return kubectl


def asked(kubectl: FakeKubectl) -> list[Any]:
    text = next(each[1] for each in kubectl.asked() if each[0] == "stdin")
    return [json.loads(part) for part in text.split("\n---\n")]


def test_keys_that_see_the_same_are_asked_for_once(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec", [admission("retail/k0", "support"), admission("retail/k2", "analyst")], stdin=True)
    code, out, err = tailrace("explain", "customer_by_id", "-n", "retail")
    assert code == 0
    assert "  key retail/bot, retail/desk (role support)" in out
    assert "  key (none yet) (role analyst)" in out
    assert "columns   email [hash]" in out
    assert "key retail/old sees nothing: it is suspended" in err
    assert "compiled now in pod shop-a" in err
    api, store, secret, *keys = asked(shop)
    assert [query["name"] for query in api["spec"]["queries"]] == ["customer_by_id"]
    assert "status" not in api
    assert store["spec"] == {"embedded": {}}
    assert len(set(secret["stringData"].values())) == 3
    assert [(key["spec"]["role"], key["spec"]["bind"]) for key in keys] == [("support", {}), ("support", {"id": 42}), ("analyst", {})]
    assert all(isinstance(read(each), list) is False for each in (api, store, *keys))


def test_what_pods_gave_up_is_told(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec", [admission("retail/k0", "support", coalesced=True)], stdin=True)
    report = {
        "queries": {
            "total": 2,
            "served": 2,
            "stopped": [{"name": "customer_by_id", "reason": "unequal"}, {"name": "other", "reason": "shape"}],
        }
    }
    shop.answers("port-forward .*pod/shop-a :9090", serve={"GET": [200, {}, json.dumps(pod_says(gateway=report))]})
    code, _, err = tailrace("explain", "customer_by_id", "-n", "retail")
    assert code == 0
    assert "pod retail/shop-a gave up shared statements of customer_by_id: one statement for several callers answered otherwise" in err
    assert "other" not in err.replace("otherwise", "")


def test_one_role(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec", [admission("retail/k0", "analyst")], stdin=True)
    assert tailrace("explain", "--role", "analyst")[0] == 0
    api, _, _, *keys = asked(shop)
    assert [role["name"] for role in api["spec"]["roles"]] == ["analyst"]
    assert [query["name"] for query in api["spec"]["queries"]] == ["customer_by_id"], "what the role isn't granted is not asked"
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["custmer_by_id"], "there is no query custmer_by_id: did you mean customer_by_id?"),
        (["rename", "--role", "analyst"], "no role is granted rename"),
        (["--role", "boss"], "retail/shop has no role boss: its roles are support, analyst"),
    ],
)
def test_what_is_not_there(shop: FakeKubectl, tailrace: Run, words: list[str], says: str) -> None:
    code, out, err = tailrace("explain", *words)
    assert (code, out) == (1, "")
    assert says in err


def test_without_the_right_nothing_is_guessed(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec", err='Error from server (Forbidden): pods "shop-a" is forbidden: cannot create resource "pods/exec"\n', code=1)
    code, out, err = tailrace("explain")
    assert (code, out) == (1, "")
    assert 'cannot create resource "pods/exec"' in err


def test_an_earlier_state_may_be_in_force(kubectl: FakeKubectl, tailrace: Run) -> None:
    kubectl.answers("get queryapis", items(query_api(conditions=[condition("Ready", "False", "QueryRefused", "x")])))
    kubectl.answers("get pods", items(pod("shop-a")))
    kubectl.answers("exec", [admission("retail/k0", "support")], stdin=True)
    assert "is not Ready: its pods may serve an earlier state" in tailrace("explain")[2]


def test_what_the_pod_is_asked_is_what_the_program_understands(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    database.executescript("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL)")
    database.close()
    mounted = tmp_path / "secrets/retail/shop-db"
    mounted.mkdir(parents=True)
    (mounted / "url").write_text(f"sqlite:///{tmp_path}/shop.db")
    api = read({name: value for name, value in query_api().items() if name != "status"})
    assert isinstance(api, QueryAPI)
    groups = groups_of(api, [], (), None)
    texts = iter(["0123456789abcdef", "fedcba9876543210"])
    question = documents(api, queries_for(api, api.spec.queries, groups, "customer_by_id"), groups, lambda: next(texts))
    command = [sys.executable, "-m", "tailrace_gateway", "explain", "-f", "-", "--data", str(tmp_path), "-o", "json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = [(each["key"], each["role"], [column["mask"] for column in each["columns"]]) for each in json.loads(done.stdout)]
    assert found == [("retail/k0", "support", ["", "", ""]), ("retail/k1", "analyst", ["", "", "hash"])]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["secrets", "shop.db"], "nothing stays"
