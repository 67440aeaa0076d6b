"""The text of an API key: `tlr_<id>_<random>_<checksum>`. Pure: entropy is an argument; refuses with ValueError.

Leak scanners find it by its prefix and know it by its checksum, and a typing error is told from an unknown key without a
look-up. `id` (8 characters) may be shown anywhere; `random` (43 characters, 256 bits) never. The checksum is CRC-32 over
everything before it, 6 characters. All parts are base 62 without separators.
"""

import hashlib
import re
import zlib

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ENTROPY_BYTES = 38
"""6 for the id, 32 for the secret part."""

_FORM = re.compile("tlr_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")
_BROUGHT = re.compile("[!-~]{16,512}")


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def checksum(head: str) -> str:
    """The last part of a key whose text up to and with its third underscore is `head`."""
    return _base62(zlib.crc32(head.encode("ascii")), 6)


def mint(entropy: bytes) -> str:
    """A key from `ENTROPY_BYTES` bytes of a cryptographic random source."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"a key takes {ENTROPY_BYTES} random bytes")
    head = f"tlr_{_base62(int.from_bytes(entropy[:6]), 8)}_{_base62(int.from_bytes(entropy[6:]), 43)}_"
    return head + checksum(head)


def is_minted(text: str) -> bool:
    """Whether the text has the form of a minted key and its checksum holds."""
    return _FORM.fullmatch(text) is not None and checksum(text[:-6]) == text[-6:]


def read_key(text: str) -> str:
    """A key as a file or Secret holds it: one line end is taken off.

    ValueError (without the text) when callers could not send it or it is a damaged minted key.
    """
    text = text.removesuffix("\n").removesuffix("\r")
    if text.startswith("tlr_") and not is_minted(text):
        raise ValueError("the key begins with tlr_ but its checksum is wrong: it was cut or mistyped")
    if _BROUGHT.fullmatch(text) is None:
        raise ValueError("a key must be 16 to 512 printable ASCII characters without blanks")
    return text


def digest(text: str) -> str:
    """SHA-256 of the key's bytes in lower-case hex: all that leaves the Secret."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()
