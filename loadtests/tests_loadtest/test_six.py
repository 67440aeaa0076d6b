"""The six databases behind Python alone: the reference's three questions, governed."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tailrace_loadtest import cases
from tailrace_loadtest.servers import six
from tailrace_loadtest.servers.mariadb import Mariadb
from tailrace_loadtest.servers.tailrace import Tailrace

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def stack() -> Iterator[Tailrace]:
    with Mariadb() as server, Tailrace([cases.path("six.yaml")], {"six-db": six.load(server)}, data_plane=False) as running:
        yield running


def ask(stack: Tailrace, key: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{stack.url}/q/{path}", data, {"X-API-Key": stack.keys[key], "Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["code"]


def test_customer_by_id(stack: Tailrace) -> None:
    status, customer = ask(stack, "office-key", "customer_by_id?id=7")
    assert status == 200
    assert customer == {
        "id": 7, "first_name": "First7", "last_name": "Last7", "email": "c7@example.com", "phone": "+48 555 00000007", "credit": "GC",
        "balance": -3.00, "since": "2024-01-08T00:00:00",
    }  # fmt: skip
    assert ask(stack, "office-key", "customer_by_id?id=1001") == (404, "row_not_found")


def test_masks_and_tables(stack: Tailrace) -> None:
    _, customer = ask(stack, "counter-key", "customer_by_id?id=7")
    assert (customer["email"], customer["phone"], customer["balance"]) == ("c***@example.com", "***", None)
    assert ask(stack, "stores-key", "customer_by_id?id=7")[0] in (403, 503)
    assert ask(stack, "stores-key", "stock_level?district=3")[0] == 200


def test_order_status_across_two(stack: Tailrace) -> None:
    _, lines = ask(stack, "office-key", "order_status?id=7")
    assert [line["number"] for line in lines] == [1, 2, 3, 4, 5]
    assert {(line["order_number"], line["carrier"], line["delivered"]) for line in lines} == {(207, None, None)}


def test_stock_level_across_three(stack: Tailrace) -> None:
    levels = [ask(stack, "office-key", f"stock_level?district=3&threshold={threshold}")[1]["low"] for threshold in (10, 50, 100)]
    assert levels == sorted(levels)
    assert levels[0] < levels[-1]


def test_pages_meet(stack: Tailrace) -> None:
    whole = ask(stack, "office-key", "customers_of_district?district=2&page_size=100")[1]
    assert len(whole) == 100
    seen: list[Any] = []
    target = "/q/customers_of_district?district=2&page_size=7"
    while target:
        request = urllib.request.Request(stack.url + target, headers={"X-API-Key": stack.keys["office-key"]})
        with urllib.request.urlopen(request, timeout=30) as response:
            seen += json.loads(response.read())
            link = response.headers.get("Link", "")
        target = link.partition("<")[2].partition(">")[0]
    assert seen == whole


def test_a_payment_is_made_once(stack: Tailrace) -> None:
    paid = {"customer": 7, "amount": 12.5, "reference": "R-1"}
    for _ in range(2):
        assert ask(stack, "office-key", "pay", paid, **{"Idempotency-Key": "one"}) == (200, {"affected": 1})
    assert ask(stack, "office-key", "pay", paid, **{"Idempotency-Key": "two"}) == (409, "constraint_violation")
    _, statement = ask(stack, "office-key", "statement?customer=7")
    assert [row["amount"] for row in statement] == [10.0, 12.5]
