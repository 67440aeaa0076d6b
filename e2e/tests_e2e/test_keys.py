"""ApiKeys as their holders see them: each call is made on each pod, with the text that the Secret holds."""

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tailrace_e2e.installation import Installation
from tailrace_e2e.kubectl import Kubectl, condition, eventually, kept
from tailrace_e2e.shop import Shop

ROOT = Path(__file__).resolve().parents[2]
LABELS = {"tailrace.dev/shop": "true", "tailrace.dev/customer": "7"}
ENTRY = {
    "namespaces": {"matchLabels": {"tailrace.dev/shop": "true"}},
    "roles": ["support"],
    "bind": {"customer": {"namespaceLabel": "tailrace.dev/customer"}},
}
SEEN: set[str] = set()
"""Every text that a Secret handed out here."""


@pytest.fixture(scope="module")
def shop(cluster: Kubectl, installation: Installation) -> Iterator[Shop]:
    """A shop on two pods, which admits keys of labelled namespaces."""
    name = f"e2e-keys-{secrets.token_hex(3)}"
    cluster("create", "namespace", name)
    found = Shop(Kubectl(name))
    found.install(ROOT, allowKeysFrom=[ENTRY])
    yield found
    if not kept():
        cluster("delete", "namespace", name, "--wait=false")


def handed_out(shop: Shop, name: str, space: Kubectl | None = None) -> str:
    """The text in the Secret; remembered."""
    text = shop.text(name, space)
    SEEN.add(text)
    return text


def test_minted(shop: Shop) -> None:
    """a minted key works on every pod as soon as it is Ready, and its Secret says where"""
    shop.key("minted")
    live = shop.ready("minted")
    assert live["status"]["loadedBy"] == "2/2"
    assert shop.call(handed_out(shop, "minted")) == {200}
    assert live["status"]["url"] == f"http://shop.{shop.space.namespace}.svc"
    owner = shop.space.get("secret", "minted-key")["metadata"]["ownerReferences"][0]
    assert owner["uid"] == live["metadata"]["uid"]


def test_brought(shop: Shop) -> None:
    """a key that is brought works once its Secret is there, though the ApiKey came first"""
    text = f"brought-{secrets.token_hex(16)}"
    SEEN.add(text)
    shop.key("brought", keyFrom={"secretKeyRef": {"name": "partner", "key": "token"}})
    eventually(
        "it says what is missing", lambda: condition(shop.space.get("akey", "brought"), "ResolvedRefs").get("reason") == "SecretNotFound"
    )
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "partner", "namespace": shop.space.namespace},
        "stringData": {"token": text},
    }
    shop.space.apply(secret)
    shop.ready("brought")
    assert shop.call(text) == {200}


def test_rotation(shop: Shop) -> None:
    """whoever reads the Secret is never refused while its key rotates, and an old key ends after the overlap"""
    shop.key("rotating", rotation={"every": "20s", "overlap": "15s"})
    shop.ready("rotating")
    texts: list[str] = []

    def three() -> bool:
        text = handed_out(shop, "rotating")
        assert shop.call(text) == {200} or pytest.fail("a key that the Secret held was refused")
        if text not in texts:
            texts.append(text)
        return len(texts) > 2

    eventually("two rotations", three, within_s=180)
    shop.space.patch("akey", "rotating", {"spec": {"rotation": None}})
    eventually("the first key is refused", lambda: shop.call(texts[0]) == {401})
    eventually("one key is left", lambda: len(shop.space.get("akey", "rotating")["status"]["keys"]) == 1)
    assert shop.call(handed_out(shop, "rotating")) == {200}


def test_suspension(shop: Shop) -> None:
    """a suspended key is refused by every pod once revokedOn says so, and works again after that"""
    shop.key("suspended")
    shop.ready("suspended")
    text = handed_out(shop, "suspended")
    assert shop.call(text) == {200}
    shop.space.patch("akey", "suspended", {"spec": {"suspended": True}})
    assert shop.revoked("suspended")["status"]["revokedOn"] == "2/2"
    assert shop.call(text) == {401}
    shop.space.patch("akey", "suspended", {"spec": {"suspended": False}})
    shop.ready("suspended")
    assert shop.call(text) == {200}


def test_expiry(shop: Shop) -> None:
    """a key whose time is over is refused by every pod, and its status says so"""
    shop.key("expiring", expiresAt=(datetime.now(UTC) + timedelta(seconds=40)).strftime("%Y-%m-%dT%H:%M:%SZ"))
    shop.ready("expiring")
    text = handed_out(shop, "expiring")
    live = shop.revoked("expiring")
    assert condition(live, "Ready")["reason"] == "Expired"
    assert shop.call(text) == {401}


def test_deletion(shop: Shop) -> None:
    """a deleted key is refused by every pod once the QueryAPI's status confirms it, and its Secret goes with it"""
    shop.key("deleted")
    shop.ready("deleted")
    text = handed_out(shop, "deleted")
    shop.space.delete("akey", "deleted")
    name = f"{shop.space.namespace}/deleted"

    def confirmed() -> bool:
        found = shop.space.get("qapi", "shop")["status"].get("revocation", [])
        return any(each["key"] == name and each["confirmedBy"] == "2/2" for each in found)

    eventually("both pods confirm it", confirmed)
    assert shop.call(text) == {401}
    eventually("its Secret goes", lambda: shop.space.find("secret", "deleted-key") is None)


def test_a_deleted_secret(shop: Shop) -> None:
    """a deleted Secret is minted anew and said, and the key that it held is refused"""
    shop.key("lost")
    shop.ready("lost")
    old = handed_out(shop, "lost")
    shop.space.delete("secret", "lost-key")
    eventually("it is there again", lambda: shop.space.find("secret", "lost-key") is not None)
    eventually("it is said", lambda: condition(shop.space.get("akey", "lost"), "ResolvedRefs").get("reason") == "KeyReplaced")
    shop.ready("lost")
    new = handed_out(shop, "lost")
    assert new != old
    assert (shop.call(new), shop.call(old)) == ({200}, {401})
    assert any(each["reason"] == "KeyReplaced" for each in shop.space.list("events") if each["involvedObject"]["name"] == "lost")


def test_a_strangers_secret(shop: Shop) -> None:
    """a Secret of that name which is somebody else's is left alone, and said"""
    stranger = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "taken-key", "namespace": shop.space.namespace},
        "stringData": {"mine": "yes"},
    }
    shop.space.apply(stranger)
    shop.key("taken")
    eventually("it is said", lambda: condition(shop.space.get("akey", "taken"), "Stalled").get("reason") == "ForeignObject")
    assert set(shop.space.get("secret", "taken-key")["data"]) == {"mine"}


def test_another_namespace(shop: Shop, space: Kubectl) -> None:
    """a key of another namespace works while that is labelled, bound to the label's value, and no longer"""
    shop.key("guest", space)
    eventually("it says that it is not admitted", lambda: condition(space.get("akey", "guest"), "Accepted").get("reason") == "NotAdmitted")
    Kubectl()("label", "namespace", space.namespace, *(f"{name}={value}" for name, value in LABELS.items()))
    shop.ready("guest", space)
    text = handed_out(shop, "guest", space)
    assert shop.call(text, "/q/orders_of_customer") == {200}
    assert shop.call(text, "/q/orders_of_customer?customer=8") == {422}
    assert shop.call(text) == {403}, "a query without the bound parameter"
    Kubectl()("label", "namespace", space.namespace, "tailrace.dev/shop-")
    shop.revoked("guest", space)
    assert shop.call(text, "/q/orders_of_customer") == {401}


def test_no_key_is_shown(shop: Shop, installation: Installation) -> None:
    """no key's text is in a status, an Event or a log"""
    said = [
        shop.space("get", "akey,qapi,events,pods,deployments,replicasets", "--output", "json"),
        *(shop.space("logs", name, "--all-containers", "--tail=-1") for name in shop.space("get", "pods", "--output", "name").split()),
        installation.logs(),
    ]
    assert len(SEEN) >= 8
    found = [text[:12] for text in SEEN for each in said if text in each or json.dumps(text) in each]
    assert not found
