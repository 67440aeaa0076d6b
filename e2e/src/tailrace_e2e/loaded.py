"""A shop under constant load, and the account of each call: answered as it should be, and its run in the store once. IO: kubectl, the load."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailrace_e2e.kubectl import Object, condition, eventually
from tailrace_e2e.load import Loader, Outcome, ledger
from tailrace_e2e.shop import Shop

STEADY_S = 3.0
"""Load before a change and after it."""
LEAST_RATE = 300
"""Calls a second."""
BEHIND = 640
"""Calls that the generator may still have had to send at the end: two seconds, in which a busy machine gave it no core."""


def queries(root: Path, **more: object) -> list[Object]:
    """The example shop's queries without their short time limits, which a busy test machine can't hold; `more`: members of the first."""
    documents = yaml.safe_load_all((root / "docs/examples/shop/shop.yaml").read_text(encoding="utf-8"))
    found: list[Object] = next(each for each in documents if each["kind"] == "QueryAPI")["spec"]["queries"]
    for each in found:
        each["timeout"] = "5s"
    found[0] |= more
    return found


def revised(root: Path, number: int) -> list[Object]:
    """The queries, whose first also says which revision it is."""
    return queries(root, sql=f"SELECT id, name, email, tier, joined_on, {number} AS revision FROM customers WHERE id = :id")  # noqa: S608 (a number)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A shop that can be loaded, with the text of a key."""

    shop: Shop
    loader: Loader
    text: str
    pods: int
    root: Path
    """The clone."""

    @contextmanager
    def unharmed(self, what: str) -> Iterator[None]:
        """A load around a change: no call of it may fail, no connection may be refused, and each answer has its run once."""
        with self.loader.loading(self.text) as outcomes:
            time.sleep(STEADY_S)
            began = time.monotonic()
            yield
            took = time.monotonic() - began
            time.sleep(STEADY_S)
        self.account(f"{what}, {took:.0f} s", outcomes)

    def account(self, what: str, outcomes: list[Outcome]) -> None:
        """Prints what became of loads, and fails if that isn't as it should be."""
        book = ledger(self.loader, self.shop.space)
        for outcome in outcomes:
            print(f"\n{what}, {self.pods} pods: {outcome}; {book}")  # noqa: T201 (the result, for `pytest -s`)
        if any(outcome.failed for outcome in outcomes):
            words = ("logs", "-l", "tailrace.dev/queryapi=shop", "--all-containers", "--prefix", "--tail=60")
            print(self.shop.space(*words, check=False))  # noqa: T201 (the namespace is gone when the testbed's logs are taken)
        for outcome in outcomes:
            assert outcome.failed == 0
            assert outcome.refused == 0
            assert outcome.calls / outcome.report["seconds"] >= LEAST_RATE
            assert outcome.unsent <= BEHIND
        assert (book.missing, book.doubled) == (0, 0)
        assert book.beyond <= self.loader.failed

    def settle(self) -> list[str]:
        """Waits until the pods are as many as wanted, all ready and none ending; their names."""

        def settled() -> list[str] | None:
            found = self.shop.space.list("pod", "tailrace.dev/queryapi=shop")
            ready = [each for each in found if condition(each, "Ready").get("status") == "True"]
            is_calm = len(found) == len(ready) == self.pods and not any("deletionTimestamp" in each["metadata"] for each in found)
            return sorted(each["metadata"]["name"] for each in ready) if is_calm else None

        return eventually("the pods have settled", settled, within_s=240)

    def lives(self) -> dict[str, Any]:
        """What would change if a pod had been unready or a data plane had started again."""
        return {
            each["metadata"]["name"]: (
                condition(each, "Ready")["lastTransitionTime"],
                [status["restartCount"] for status in each["status"]["containerStatuses"] if status["name"] == "dataplane"],
            )
            for each in self.shop.space.list("pod", "tailrace.dev/queryapi=shop")
        }

    def ready(self) -> None:
        """Waits until the status is Ready and of the last edit."""

        def current() -> bool:
            found = self.shop.space.get("qapi", "shop")
            said = condition(found, "Ready")
            return said.get("status") == "True" and said.get("observedGeneration") == found["metadata"]["generation"]

        eventually("Ready, of the last edit", current, within_s=240)

    def admin(self, sql: str) -> str:
        """Asks the database as its administrator."""
        words = ["exec", "deployment/shop-postgres", "--", "psql", "-h", "/tmp", "-U", "admin", "-d", "shop", "-Atc", sql]  # noqa: S108 (in its pod)
        return self.shop.space(*words)
