"""ETags over exact bytes, and the test of `If-None-Match` (RFC 9110, 8.8.3 and 13.1.2). Pure; a list that can't be read matches nothing.

The twin of `dataplane-rs/src/cache/tag.rs`.
"""

import hashlib
import re
from base64 import urlsafe_b64encode

LARGEST_BYTES = 1 << 20
"""Larger bodies have no ETag and are not kept."""

_TAG = re.compile(rb'[,\s]*(?:W/)?("[^"]*")\s*')


def etag(body: bytes) -> str:
    """A strong entity tag with its quotes: base64url of the first 16 bytes of SHA-256."""
    return f'"{urlsafe_b64encode(hashlib.sha256(body).digest()[:16]).decode().rstrip("=")}"'


def matches(tag: str, if_none_match: list[bytes]) -> bool:
    """Whether a client that sent this `If-None-Match` has the body already. Compared weakly, as the RFC says."""
    wanted, rest = tag.encode(), b", ".join(if_none_match)
    if rest.strip() == b"*":
        return True
    while found := _TAG.match(rest):
        if found[1] == wanted:
            return True
        rest = rest[found.end() :]
        if not rest.startswith(b","):
            return False
    return False
