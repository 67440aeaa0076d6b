"""Cursors of keyset paging: AES-256-SIV (RFC 5297) over the key columns of the last row, bound to key, query and version. Pure.

Rejects (`InvalidCursor`) anything that was not sealed for the same. The Rust twin is `dataplane-rs/src/encode/cursor.rs`; both read
`crds/golden/vectors/cursors.json`.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from tailrace_contract.plan import Engine
from tailrace_gateway.serve.floats import float_text
from tailrace_gateway.serve.values import Malformed, Value, json_string, text_of

CursorKey = NewType("CursorKey", bytes)

LIMIT_BYTES = 16 * 1024
"""A longer cursor is refused unread."""


class InvalidCursor(ValueError):
    """Not a cursor of this key and this version of this query."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who and what a cursor belongs to: ApiKey id (`namespace/name`), query name, query version."""

    key: str
    query: str
    version: str

    def associated(self) -> list[bytes]:
        """The associated data."""
        return [f"{self.key}\n{self.query}\n{self.version}".encode()]


def cursor_key(secret: bytes) -> CursorKey:
    """From the 32 bytes of `DIR/gateway-secret`."""
    return CursorKey(hmac.digest(secret, b"tailrace cursor v1", hashlib.sha512))


def seal(key: CursorKey, subject: Subject, values: Sequence[Value | None], engine: Engine) -> str:
    """The cursor that continues after the row whose key columns are `values`; Malformed when one is NULL."""
    texts = [_text(value) if engine is not Engine.SQLITE else _stored(value) for value in values]
    plain = f"[{','.join(map(json_string, texts))}]".encode()
    return base64.urlsafe_b64encode(AESSIV(key).encrypt(plain, subject.associated())).decode().rstrip("=")


_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


def open_cursor(key: CursorKey, subject: Subject, cursor: str, keys: int, engine: Engine) -> list[Value]:
    """The key values of a cursor; `keys` is how many the page has."""
    if len(cursor.encode()) > LIMIT_BYTES or not _BASE64URL.fullmatch(cursor):
        raise InvalidCursor
    try:
        sealed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        if base64.urlsafe_b64encode(sealed).decode().rstrip("=") != cursor:
            raise InvalidCursor
        texts = json.loads(AESSIV(key).decrypt(sealed, subject.associated()))
    except (binascii.Error, InvalidTag, ValueError) as error:
        raise InvalidCursor from error
    if not isinstance(texts, list) or len(texts) != keys or not all(isinstance(text, str) for text in texts):
        raise InvalidCursor
    return [text.encode() if engine is not Engine.SQLITE else _restored(text) for text in texts]


def _text(value: Value | None) -> str:
    if value is None:
        raise Malformed("a page key is NULL")
    return text_of(value)


def _stored(value: Value | None) -> str:
    """A SQLite value as text: storage tag, then digits, the shortest digits of a REAL, text, or base64."""
    match value:
        case None:
            raise Malformed("a page key is NULL")
        case int():
            return f"i{value}"
        case float():
            return "r" + float_text(value)
        case str():
            return "t" + value
        case _:
            return "b" + base64.b64encode(value).decode()


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"-?(?:[0-9.]+(?:e[+-][0-9]+)?|Infinity)")


def _restored(text: str) -> Value:
    tag, rest = text[:1], text[1:]
    try:
        match tag:
            case "i" if _INTEGER.fullmatch(rest):
                return int(rest)
            case "r" if _REAL.fullmatch(rest):
                return float(rest)
            case "t":
                return rest
            case "b":
                return base64.b64decode(rest, validate=True)
    except ValueError:
        pass
    raise InvalidCursor
