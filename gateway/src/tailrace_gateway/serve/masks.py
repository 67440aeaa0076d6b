"""Masks over encoded values (docs/contract.md). Pure; what cannot be shown in part becomes null.

The Rust twin is `dataplane-rs/src/encode/mask.rs`; both read `crds/golden/vectors/masks.json`.
"""

import base64
import hashlib
import hmac
import json
from typing import NewType

from tailrace_contract.plan import Mask
from tailrace_gateway.serve.values import json_string

MaskKey = NewType("MaskKey", bytes)


def mask_key(secret: bytes) -> MaskKey:
    """From the 32 bytes of `DIR/gateway-secret`."""
    return MaskKey(hmac.digest(secret, b"tailrace mask v1", hashlib.sha256))


def own_text(value: str) -> str | None:
    """The text of a JSON string; None if the value is no string, or stands for no text (a lone surrogate)."""
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return None
    if "\\" not in value:
        return value[1:-1]
    try:
        text = json.loads(value, strict=False)
        text.encode()
    except (ValueError, AttributeError):
        return None
    return str(text)


def cover(mask: Mask, key: MaskKey | None, value: str) -> str:
    """Covers one value's JSON text. NULL stays null."""
    if value == "null":
        return value
    match mask:
        case Mask.NULL:
            return "null"
        case Mask.REDACT:
            return '"***"'
        case Mask.HASH:
            if key is None:
                return "null"
            digest = hmac.digest(key, value.encode(), hashlib.sha256)
            return f'"{base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")}"'
        case Mask.PARTIAL:
            text = own_text(value)
            return "null" if text is None else json_string(_partial(text))


def _partial(text: str) -> str:
    local, at, domain = text.partition("@")
    if at and "@" not in domain and "." in domain and len(local) >= 2:
        return f"{text[0]}***@{domain}"
    return f"{text[:1]}***{text[-2:] if len(text) >= 6 else ''}"
