"""Files that only the gateway's user may read: written whole by rename, mode 0600, in directories of mode 0700. IO: the file system."""

import os
import secrets
from pathlib import Path


def make_private_directory(path: Path) -> None:
    """Creates it and what is missing above it, for this user only. OSError when that fails."""
    # `parents=True` would make those above it by the umask: readable for everybody.
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Puts a file in place at once: a reader sees the old content or the new, never a part. OSError when that fails.

    Without `sync` the caller sees to it that the content outlives a power loss.
    """
    make_private_directory(path.parent)
    temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """The whole content. OSError when it can't be read, ValueError when it is larger than the limit."""
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError("the file is too large")
    return content
