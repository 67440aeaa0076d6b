"""`kubectl tailrace runs`: what is run in which container."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import FakeKubectl, items, pod, query_api

Run = Callable[..., tuple[int, str, str]]


def spool(epoch: int, **more: Any) -> dict[str, Any]:
    return {"segments": 1, "bytes": 4096, "unreadable": [], "torn": 0, "epochs": [{"epoch": epoch, "ranges": [[1, 3]]}], **more}


@pytest.fixture
def shop(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.answers("get queryapis", items(query_api()))
    kubectl.answers(
        "get pods",
        items(pod("shop-a", ready=False), pod("shop-b"), pod("shop-c", waiting="ContainerCreating", ready=False), pod("x", uid="u-0")),
    )
    return kubectl


def execs(kubectl: FakeKubectl) -> list[list[str]]:
    return [each for each in kubectl.asked() if "exec" in each]


def test_tail(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec", "a run\n")
    assert tailrace("runs", "tail", "--key", "desk", "--status", "4", "-o", "json", "-n", "retail") == (0, "a run\n", "")
    [words] = execs(shop)
    assert words == [
        "--namespace=retail", "exec", "--stdin", "shop-b", "--container=gateway", "--", "python", "-m", "tailrace_gateway", "runs", "tail",
        "--data", "/var/lib/tailrace", "--limit", "20", "--key", "retail/desk", "--status", "4", "--output", "json",
    ]  # fmt: skip


def test_follow_ends_with_us(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec", code=0)
    assert tailrace("runs", "tail", "--follow")[0] == 0
    assert execs(shop)[0][-4:] == ["--follow", "--until-eof", "--output", "text"]


def test_verify_counts_every_pods_spool(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec shop-a --container=dataplane -- /tailrace-dataplane spool-status --data /var/lib/tailrace", spool(1))
    shop.answers("exec shop-b --container=dataplane", spool(2, unreadable=["7.bad"], torn=1))
    shop.answers("exec --stdin shop-b --container=gateway -- .* runs verify .* --spool - ", stdin=True, code=1)
    assert tailrace("runs", "verify")[0] == 1
    told = json.loads(next(each[1] for each in shop.asked() if each[0] == "stdin"))
    assert told == {
        "segments": 2, "bytes": 8192, "unreadable": ["shop-b/7.bad"], "torn": 1,
        "epochs": [{"epoch": 2, "ranges": [[1, 3]]}, {"epoch": 1, "ranges": [[1, 3]]}],
    }  # fmt: skip
    assert not any(name in words for words in execs(shop) for name in ("shop-c", "x"))


def test_a_spool_that_cant_be_read_is_no_proof(shop: FakeKubectl, tailrace: Run) -> None:
    shop.answers("exec shop-a ", err="error: unable to upgrade connection\n", code=1)
    shop.answers("exec shop-b .*dataplane", "?")
    shop.answers("exec --stdin shop-b", stdin=True)
    code, _, err = tailrace("runs", "verify")
    assert code == 1
    assert "the spool of shop-a could not be read: unable to upgrade connection" in err
    assert "the spool of shop-b could not be read: its version can't be read here" in err


def test_no_pod(kubectl: FakeKubectl, tailrace: Run) -> None:
    kubectl.answers("get queryapis", items(query_api()))
    kubectl.answers("get pods", items())
    assert tailrace("runs", "tail") == (
        1,
        "",
        "kubectl tailrace runs: no pod of retail/shop runs: see kubectl tailrace status shop -n retail\n",
    )


def test_usage(shop: FakeKubectl, tailrace: Run) -> None:
    assert tailrace("runs", "tail", "--key", "a/b/c")[0] == 64
    assert tailrace("runs", "tail", "--status", "9")[0] == 64
    assert tailrace("runs")[0] == 64
