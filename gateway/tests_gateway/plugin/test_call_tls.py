"""`kubectl tailrace call` of an API with `http.tls`: a key is sent to the API only, whoever else answers at the port."""

import base64
import datetime
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .conftest import SPEC, FakeKubectl, api_key, items, query_api

Run = Callable[..., tuple[int, str, str]]
KEY = "tlr_3fK9Qm2x_0123456789abcdefghijklmnopqrstuvwxyz"
SERVICE = "shop.retail.svc"
NOW = datetime.datetime.now(datetime.UTC)
WORDS = ("call", "customer_by_id", "id=1", "--api-key", "desk")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def at(self, path: Path) -> Path:
        """Both in one file, as a server loads them."""
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path.write_bytes(self.key.private_bytes(serialization.Encoding.PEM, *form) + self.pem)
        return path


def issue(name: str, by: Pair | None = None, *, authority: bool = False, days: int = 1) -> Pair:
    """Signed by itself, or by another."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=3))
        .not_valid_after(NOW + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return Pair(made.sign(key if by is None else by.key, hashes.SHA256()), key)


@pytest.fixture(scope="module")
def root() -> Pair:
    return issue("root", authority=True)


@pytest.fixture
def shop(kubectl: FakeKubectl) -> FakeKubectl:
    api: dict[str, Any] = {**query_api(), "spec": {**SPEC, "http": {"tls": {"secretName": "edge"}}}}
    kubectl.answers("get queryapis", items(api, api_key("desk", "support")))
    kubectl.answers("get secret/desk-key", base64.b64encode(KEY.encode()).decode())
    return kubectl


def serve(shop: FakeKubectl, pair: Pair) -> None:
    chain = str(pair.at(shop.folder / "served.pem"))
    shop.answers("port-forward .*service/shop :443", serve={"GET": (200, {}, '{"id":1}')}, chain=chain)


def holds(shop: FakeKubectl, *pairs: Pair) -> None:
    """What the Secret of http.tls has."""
    shop.answers(r"get secret/edge .*tls\\\.crt", base64.b64encode(b"".join(pair.pem for pair in pairs)).decode())


def requests(shop: FakeKubectl) -> list[list[Any]]:
    return [each for each in shop.asked() if each[0] == "GET"]


def test_the_one_in_the_secret_is_known(shop: FakeKubectl, tailrace: Run, root: Pair) -> None:
    own = issue(SERVICE, root)
    serve(shop, own)
    holds(shop, own, root)
    assert tailrace(*WORDS)[:2] == (0, '{"id":1}\n')
    [[_, path, headers]] = requests(shop)
    assert (path, headers["X-API-Key"]) == ("/q/customer_by_id?id=1", KEY)


def test_an_authority_needs_no_right_to_the_secret(shop: FakeKubectl, tailrace: Run, root: Pair, tmp_path: Path) -> None:
    serve(shop, issue(SERVICE, root))
    (tmp_path / "ca.pem").write_bytes(root.pem)
    assert tailrace(*WORDS, "--ca", tmp_path / "ca.pem")[:2] == (0, '{"id":1}\n')
    assert not any("secret/edge" in each for each in shop.asked())


def test_another_name_is_said(shop: FakeKubectl, tailrace: Run, root: Pair, tmp_path: Path) -> None:
    serve(shop, issue("shop.example.com", root))
    (tmp_path / "ca.pem").write_bytes(root.pem)
    code, out, err = tailrace(*WORDS, "--ca", tmp_path / "ca.pem")
    assert (code, out, requests(shop)) == (1, "", [])
    assert "shop.retail.svc" in err
    assert "--server-name NAME" in err
    assert tailrace(*WORDS, "--ca", tmp_path / "ca.pem", "--server-name", "shop.example.com")[0] == 0


@pytest.mark.parametrize("what", ["another of the same issuer", "of another issuer", "expired"])
def test_nobody_else_gets_the_key(shop: FakeKubectl, tailrace: Run, root: Pair, what: str) -> None:
    own = issue(SERVICE, root, days=-1 if what == "expired" else 1)
    other = {"another of the same issuer": issue(SERVICE, root), "of another issuer": issue(SERVICE), "expired": own}[what]
    serve(shop, other)
    holds(shop, own, root)
    code, out, err = tailrace(*WORDS)
    assert (code, out, requests(shop)) == (1, "", [])
    assert "does not hold for shop.retail.svc" in err
    assert "--ca FILE" in err


def test_an_authority_that_did_not_sign_it(shop: FakeKubectl, tailrace: Run, root: Pair, tmp_path: Path) -> None:
    serve(shop, issue(SERVICE, root))
    (tmp_path / "ca.pem").write_bytes(issue("root", authority=True).pem)
    code, _, err = tailrace(*WORDS, "--ca", tmp_path / "ca.pem")
    assert (code, requests(shop)) == (1, [])
    assert "--ca FILE" in err


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"err": 'Error from server (Forbidden): secrets "edge" is forbidden\n', "code": 1}, "give --ca FILE, or the right to get"),
        ({"out": ""}, "holds no certificate; give --ca FILE"),
        ({"out": base64.b64encode(b"secret-text").decode()}, "holds no certificate; give --ca FILE"),
    ],
)
def test_without_a_certificate_nothing_is_forwarded(shop: FakeKubectl, tailrace: Run, answer: dict[str, Any], says: str) -> None:
    shop.answers("get secret/edge", **answer)
    code, out, err = tailrace(*WORDS)
    assert (code, out) == (1, "")
    assert says in err
    assert "secret-text" not in err
    assert not any("port-forward" in each for each in shop.asked())


def test_a_file_that_is_none(shop: FakeKubectl, tailrace: Run, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("secret-text")
    code, _, err = tailrace(*WORDS, "--ca", tmp_path / "ca.pem")
    assert code == 1
    assert "is no PEM file of certificates" in err
    assert "secret-text" not in err


@pytest.mark.parametrize("option", ["--ca", "--server-name"])
def test_tls_that_was_asked_for_is_not_left_out(kubectl: FakeKubectl, tailrace: Run, option: str) -> None:
    kubectl.answers("get queryapis", items(query_api(), api_key("desk", "support")))
    kubectl.answers("get secret/desk-key", base64.b64encode(KEY.encode()).decode())
    code, _, err = tailrace(*WORDS, option, "x")
    assert code == 1
    assert "retail/shop has no http.tls" in err
