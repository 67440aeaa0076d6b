"""Which file a `sqlite:///PATH` URL names. Pure; ValueError for anything else, without naming its text."""

import re
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def database_path(url: str) -> Path:
    """`sqlite:///relative.db` is relative to the working directory, `sqlite:////abs/olute.db` is not. No host, no parameters."""
    if not url.startswith("sqlite:///"):
        raise ValueError("not a sqlite:/// URL")
    text = url.removeprefix("sqlite:///")
    if not text or "?" in text or "#" in text or _ESCAPE.search(text):
        raise ValueError("not a path; SQLite URLs take no parameters")
    path = unquote_to_bytes(text).decode()
    if "\0" in path or path == ":memory:":
        raise ValueError("not a path of a file")
    return Path(path)


def driver_uri(path: Path, mode: str) -> str:
    """SQLite's own URI of that file; `mode` is `ro` or `rw`, never one that creates it."""
    return f"file:{quote(str(path.absolute()))}?mode={mode}"
