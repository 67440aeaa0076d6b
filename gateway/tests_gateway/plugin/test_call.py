"""`kubectl tailrace call`: what is sent, what is printed, and that the key goes nowhere else."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import FakeKubectl, api_key, items, query_api

Run = Callable[..., tuple[int, str, str]]
KEY = "tlr_3fK9Qm2x_0123456789abcdefghijklmnopqrstuvwxyz"
ROW: tuple[int, dict[str, str], str] = (200, {"Content-Type": "application/json", "X-Run-Id": "00ab-1"}, '{"id":1}')


@pytest.fixture
def shop(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.answers("get queryapis", items(query_api(), api_key("desk", "support"), api_key("bot", "analyst")))
    kubectl.answers("get secret/desk-key", base64.b64encode(f"{KEY}\n".encode()).decode())
    return kubectl


def serve(kubectl: FakeKubectl, **answers: tuple[int, dict[str, str], str]) -> None:
    kubectl.answers("port-forward .*service/shop :80", serve=answers)


def requests(kubectl: FakeKubectl) -> list[list[Any]]:
    return [each for each in kubectl.asked() if each[0] in ("GET", "POST")]


def test_a_row(shop: FakeKubectl, tailrace: Run) -> None:
    serve(shop, GET=ROW)
    assert tailrace("call", "customer_by_id", "id=1", "--api-key", "desk", "-n", "retail") == (
        0,
        '{"id":1}\n',
        "HTTP/1.0 200 OK  run 00ab-1\n",
    )
    [[method, path, headers]] = requests(shop)
    assert (method, path, headers["X-API-Key"]) == ("GET", "/q/customer_by_id?id=1", KEY)
    assert not any(KEY in word for each in shop.asked() if each[0] not in ("GET", "POST") for word in each)


def test_head_and_values_that_need_escapes(shop: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    serve(shop, GET=ROW)
    (tmp_path / "key").write_text(KEY + "\n")
    code, out, err = tailrace("call", "customer_by_id", "id=a=b&c ü", "-i", "--key", tmp_path / "key", "-H", "Accept: text/csv")
    assert (code, err) == (0, "")
    assert out.startswith("HTTP/1.0 200 OK\n")
    assert "\nX-Run-Id: 00ab-1\n".lower() in out.lower()
    assert out.endswith('\n\n{"id":1}\n')
    [[_, path, headers]] = requests(shop)
    assert path == "/q/customer_by_id?id=a%3Db%26c+%C3%BC"
    assert headers["Accept"] == "text/csv"


def test_a_write_is_posted(shop: FakeKubectl, tailrace: Run) -> None:
    serve(shop, POST=(200, {}, '{"affected":1}'))
    assert tailrace("call", "rename", "id=1", "name=x", "--api-key", "retail/desk", "-H", "Idempotency-Key: k")[0] == 0
    [[method, path, headers]] = requests(shop)
    assert (method, path, headers["Idempotency-Key"]) == ("POST", "/q/rename?id=1&name=x", "k")


def test_json_goes_into_the_body(shop: FakeKubectl, tailrace: Run) -> None:
    serve(shop, POST=ROW)
    assert tailrace("call", "customer_by_id", "id=1", 'tags:=["a,b", "c"]', "none:=null", "url=x:=y", "--api-key", "desk")[0] == 0
    [[method, path, headers]] = requests(shop)
    assert (method, path, headers["Content-Type"]) == ("POST", "/q/customer_by_id?id=1&url=x%3A%3Dy", "application/json")
    assert int(headers["Content-Length"]) == len('{"tags": ["a,b", "c"], "none": null}')


def test_a_refusal_is_printed_and_exits_1(shop: FakeKubectl, tailrace: Run) -> None:
    serve(shop, GET=(403, {}, '{"code":"forbidden"}'))
    assert tailrace("call", "rename2", "--api-key", "desk") == (1, '{"code":"forbidden"}\n', "HTTP/1.0 403 Forbidden\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["customer_by_id"], "say as whom: --api-key NAME, or --key FILE (retail/bot, retail/desk)"),
        (["customer_by_id", "--api-key", "nobody"], "retail/shop has no ApiKey retail/nobody"),
        (["customer_by_id", "--key", "/nowhere"], "/nowhere: No such file or directory"),
        (["customer_by_id", "--api-key", "bot"], 'secrets "bot-key" is forbidden'),
        (["customer_by_id", "--api", "shpo", "--api-key", "desk"], "there is no QueryAPI shpo (retail/shop)"),
    ],
)
def test_what_is_missing_is_said(shop: FakeKubectl, tailrace: Run, words: list[str], says: str) -> None:
    shop.answers("get secret/bot-key", err='Error from server (Forbidden): secrets "bot-key" is forbidden: User "u"\n', code=1)
    code, out, err = tailrace("call", *words)
    assert (code, out) == (1, "")
    assert says in err


@pytest.mark.parametrize(
    "words",
    [
        ["../status"],
        ["q", "secret-value"],
        ["q", "=x"],
        ["q", ":=1"],
        ["q", "x:=secret-value"],
        ["q", "-H", "X-API-Key: k"],
        ["q", "-H", "bad"],
        ["q", "--key", "f", "--api-key", "k"],
        [],
    ],
)
def test_usage(shop: FakeKubectl, tailrace: Run, words: list[str]) -> None:
    code, out, err = tailrace("call", *words)
    assert (code, out) == (64, "")
    assert "secret-value" not in err


def test_a_secret_without_a_key_is_not_repeated(kubectl: FakeKubectl, tailrace: Run) -> None:
    kubectl.answers("get queryapis", items(query_api(), api_key("desk", "support")))
    kubectl.answers("get secret/desk-key", base64.b64encode(b"two words").decode())
    code, _, err = tailrace("call", "customer_by_id")
    assert code == 1
    assert "key key of Secret retail/desk-key holds no key" in err
    assert "two words" not in err
