"""One side of the comparison: sends a call over a keep-alive connection and keeps what must be equal. IO: HTTP to loopback, TLS if there is an authority."""

import http.client
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tailrace_loadtest.differential.calls import Call

COMPARED = (
    "Content-Type",
    "Link",
    "X-Row-Count",
    "X-Truncated",
    "WWW-Authenticate",
    "Allow",
    "Retry-After",
    "Cache-Control",
    "ETag",
    "Vary",
)
TIMEOUT_S = 30.0
_PART = re.compile(rb'"run":"([0-9a-f]{16}-[0-9a-f]{12})"')


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` 0: the connection ended without an answer; `broken`: its body broke off."""

    status: int
    headers: tuple[tuple[str, tuple[str, ...]], ...]
    body: bytes
    run_id: str
    broken: bool = False
    parts: tuple[str, ...] = ()
    """Run ids of several calls in one body."""
    etag: str = ""
    way: str = ""
    """How it was asked, by the names of `transports`."""
    batch: int = 0
    """Callers that its statement answered, by `Server-Timing`; 0 when it does not say."""

    @property
    def link(self) -> str:
        """Target of the next page, empty when there is none."""
        for name, values in self.headers:
            if name == "Link" and values:
                return values[0].partition("<")[2].partition(">")[0]
        return ""


def answered(call: Call, status: int, get_all: Callable[[str], list[str] | None], body: bytes, *, broken: bool) -> Answer:
    """What is kept of an answer. `get_all`: the values of a header."""
    run_id = (get_all("X-Run-Id") or [""])[0]
    kept = tuple((name, tuple(get_all(name) or ())) for name in COMPARED)
    parts: tuple[str, ...] = ()
    if run_id:
        # It stands in problem bodies too.
        body = body.replace(run_id.encode(), b"RUN")
    elif call.kind == "bulk":
        parts = tuple(part.decode() for part in _PART.findall(body))
        for part in parts:
            body = body.replace(part.encode(), b"RUN")
    size = (get_all("Server-Timing") or [""])[0].partition('batch;desc="')[2].partition('"')[0]
    return Answer(status, kept, body, run_id, broken, parts, (get_all("ETag") or [""])[0], batch=int(size or 0))


def trusting(authority: Path | None, *protocols: str) -> ssl.SSLContext | None:
    """What a client speaks TLS with: trusts one file of certificates, offers `protocols` by ALPN. None without a file."""
    if authority is None:
        return None
    context = ssl.create_default_context(cafile=authority)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


class Side:
    """A server and its keys, for one thread."""

    def __init__(self, port: int, keys: Mapping[str, str], authority: Path | None = None) -> None:
        self._tls = trusting(authority)
        self.port = port
        self.keys = keys
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, call: Call) -> Answer:
        """Sends it; once more on a fresh connection if the kept one had ended before a byte came back."""
        for attempt in (1, 2):
            fresh = self._connection is None
            try:
                return self._ask(call)
            except (http.client.RemoteDisconnected, ConnectionError):
                self.close()
                if fresh or attempt == 2:
                    return Answer(0, (), b"", "")
        raise AssertionError("unreachable")

    def _ask(self, call: Call) -> Answer:
        if self._connection is None:
            if self._tls is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
            else:
                self._connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=self._tls)
        connection = self._connection
        connection.putrequest(call.method, call.target, skip_accept_encoding=True)
        for name, value in call.headers:
            connection.putheader(name, value.replace("{key}", self.keys.get(call.key, "")).encode("latin-1", "xmlcharrefreplace"))
        if call.body is not None:
            connection.putheader("Content-Length", str(len(call.body)))
        connection.endheaders(call.body or None)
        response = connection.getresponse()
        broken = False
        try:
            body = response.read()
        except http.client.IncompleteRead as error:
            body, broken = error.partial, True
        except (ConnectionError, http.client.HTTPException):
            body, broken = b"", True
        if broken or response.will_close:
            self.close()
        return answered(call, response.status, response.headers.get_all, body, broken=broken)

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
