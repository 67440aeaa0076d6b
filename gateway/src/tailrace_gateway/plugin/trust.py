"""Whom `kubectl tailrace call` believes that it is the API, when that is served over TLS. IO: a file or, through kubectl, a Secret.

The forwarded port is on 127.0.0.1, of which no certificate tells anything: the server must show one for the Service's name (or `--server-name`),
that a certificate in `--ca FILE` has signed, or else the very one that the Secret of `http.tls` holds now. A key is sent to nobody else.
Rejects with `NotFound`, which names the option; there is no way to go without a check.
"""

import base64
import binascii
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from tailrace_gateway.plugin.kubectl import Kubectl, KubectlFailed
from tailrace_gateway.plugin.objects import ApiObject
from tailrace_gateway.plugin.scope import NotFound
from tailrace_gateway.resources.private import read_bounded

CA_LIMIT_BYTES = 1 << 20
_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Trust:
    """`context`: what the connection is made with; `name`: what the server's certificate must be for."""

    context: ssl.SSLContext
    name: str


def secret_of(api: ApiObject) -> str | None:
    """The Secret of the API's `http.tls`; None when callers speak plain HTTP."""
    found: object = api.document
    for name in ("spec", "http", "tls"):
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        return None
    secret = found.get("secretName") if isinstance(found, dict) else None
    if not isinstance(secret, str) or not secret:
        raise NotFound(f"http.tls of {api.ref} names no Secret")
    return secret


def trust(kubectl: Kubectl, api: ApiObject, ca: Path | None, server_name: str | None) -> Trust | None:
    """How to know the API's server; None when it speaks plain HTTP. NotFound when that can't be known, or was asked for and there is no TLS."""
    secret = secret_of(api)
    if secret is None:
        if ca is not None or server_name is not None:
            raise NotFound(f"{api.ref} has no http.tls: without --ca and --server-name it is called in the clear")
        return None
    name = server_name or f"{api.ref.name}.{api.ref.namespace}.svc"
    return Trust(_signed_by(ca) if ca is not None else _the_one_in(kubectl, api, secret), name)


def refusal(api: ApiObject, trusted: Trust, error: BaseException) -> NotFound | None:
    """What to say of a call that failed, if it failed because of the server's certificate."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message
            return NotFound(f"the certificate of {api.ref} does not hold for {trusted.name} ({why}): --ca FILE, --server-name NAME")
        cause = cause.__cause__ or cause.__context__
    return None


def _signed_by(ca: Path) -> ssl.SSLContext:
    try:
        text = read_bounded(ca, CA_LIMIT_BYTES).decode("ascii")
    except OSError as error:
        raise NotFound(f"--ca {ca}: {error.strerror}") from None
    except ValueError:
        raise NotFound(f"--ca {ca} is no PEM file of certificates") from None
    return _context(text, f"--ca {ca} is no PEM file of certificates")


def _the_one_in(kubectl: Kubectl, api: ApiObject, secret: str) -> ssl.SSLContext:
    """Only the first certificate counts, which is the server's own: what else its issuer has signed is not this API."""
    where = f"Secret {api.ref.namespace}/{secret}"
    try:
        printed = kubectl.run("get", f"secret/{secret}", r"--output=jsonpath={.data.tls\.crt}", namespace=api.ref.namespace)
    except KubectlFailed as failed:
        raise NotFound(f"no certificate to know {api.ref} by; give --ca FILE, or the right to get {where} ({failed})") from None
    try:
        text = base64.b64decode(printed, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    own = _FIRST.search(text)
    wrong = f"tls.crt of {where} holds no certificate; give --ca FILE"
    if own is None:
        raise NotFound(wrong)
    context = _context(own[0], wrong)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _context(text: str, wrong: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Checks the chain and the name.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise NotFound(wrong) from None
    if not context.cert_store_stats()["x509"]:
        raise NotFound(wrong)
    return context
