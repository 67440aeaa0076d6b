"""The API's own secret: 32 random bytes in `DIR/gateway-secret`, from which mask and cursor keys come. IO: that file."""

import secrets
from pathlib import Path

from tailrace_gateway.errors import GatewayError
from tailrace_gateway.resources.private import read_bounded, write_private

SIZE_BYTES = 32


class SecretUnusable(GatewayError):
    """The file is there and is not 64 hex digits."""

    code = "secret_unusable"


def read_or_make_secret(path: Path, *, make: bool = True) -> bytes:
    """Reads it, or (`make`) makes it once. A file that cannot be read is never replaced: masks and cursors would silently change."""
    try:
        text = read_bounded(path, 1024)
    except FileNotFoundError:
        if not make:
            raise SecretUnusable(
                "The gateway's secret is missing.", "the file behind --secret is mounted from the Secret NAME-gateway"
            ) from None
        made = secrets.token_bytes(SIZE_BYTES)
        write_private(path, made.hex().encode() + b"\n")
        return made
    except (OSError, ValueError):
        raise SecretUnusable("The gateway's secret cannot be read.", "see who may read DIR/gateway-secret") from None
    try:
        secret = bytes.fromhex(text.strip().decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SIZE_BYTES:
        raise SecretUnusable("The gateway's secret is not 64 hex digits.", "put the former DIR/gateway-secret back")
    return secret
