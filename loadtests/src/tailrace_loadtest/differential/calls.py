"""One call, and how its values are written in a URL and in a JSON body. Pure."""

import json
import re
from dataclasses import dataclass
from urllib.parse import quote

from tailrace_contract.plan import ParamType

from tailrace_loadtest.differential.api import Param, Value

FORMATS = ("json", "ndjson", "csv")
ACCEPT = {"json": "application/json", "ndjson": "application/x-ndjson", "csv": "text/csv"}
COVERED = 50
"""Times that each query × format × role is asked in 50,000 calls."""


def times(calls: int) -> int:
    """Times that each combination is asked in so many calls."""
    return max(1, COVERED * calls // 50_000)


Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `key` names the Secret whose text fills `{key}` in header values, empty for none."""

    kind: str
    query: str
    method: str
    pairs: tuple[str, ...]
    headers: Headers = ()
    body: bytes | None = None
    key: str = ""
    path: str = ""
    """Instead of /q/QUERY."""
    pages: int = 0
    """Next pages to follow."""
    again: bool = False
    """Asked twice more: as it is, and with the ETag that the answer had."""
    combination: tuple[str, str, str] | None = None
    """(query, format, role) that it counts for."""
    stores: bool = False

    @property
    def asked(self) -> int:
        """How often it is asked, if it has as many pages as are followed."""
        return 1 + self.pages + 2 * self.again

    @property
    def target(self) -> str:
        """Path and URL arguments."""
        return (self.path or f"/q/{self.query}") + ("?" + "&".join(self.pairs) if self.pairs else "")


_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _element(kind: ParamType, text: str) -> str:
    if kind in (ParamType.INTEGER, ParamType.NUMBER) and _JSON_NUMBER.fullmatch(text):
        return text
    if (kind is ParamType.BOOLEAN and text in ("true", "false")) or kind is ParamType.JSON:
        return text
    return json.dumps(text, ensure_ascii=False)


def json_text(param: Param, value: Value) -> str:
    """A value as it stands in a JSON body."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ", ".join(_element(param.type, each) for each in value) + "]"
    return _element(param.type, value)


def url_text(value: str | list[str]) -> str:
    """A value as it stands in a URL, escaped."""
    return quote(",".join(value) if isinstance(value, list) else value, safe=",:")


def fits_url(value: Value) -> bool:
    """Whether a URL can say it: no null, no comma in an element, no list of one empty text."""
    return value is not None and not (isinstance(value, list) and (any("," in each for each in value) or value == [""]))
