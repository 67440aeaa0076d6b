"""How calls reach the data plane besides one after the other: several in one write over HTTP/1.1, and as streams of HTTP/2.

Both ask several calls at once and give their answers in the order of the calls. What a transport can't say (a target that is no URI, a large
body), and what was not answered because a connection ended, is asked by itself. Each answer says how it came. IO: sockets on loopback.
"""

import http.client
import importlib
import importlib.util
import io
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tailrace_loadtest.differential.calls import Call
from tailrace_loadtest.differential.client import TIMEOUT_S, Answer, Side, answered, trusting

DEPTH = 8
"""Calls that are asked at once."""
LARGEST_BODY = 16 << 10
"""What a stream may send before the other end has said how much it takes, bytes; less than its window."""

_URI = re.compile(r"/[!$-;=@-_a-z|~]*(\?[!$-;=?-_a-z|~]*)?")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TOKEN = re.compile(r"[A-Z]+")


class Transport(Protocol):
    """One thread's way to a server."""

    depth: int

    def ask_all(self, calls: Sequence[Call]) -> list[Answer]:
        """Answers in the order of the calls."""
        ...

    def close(self) -> None:
        """Ends its connections."""
        ...


def connected(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """A connection to loopback, by TLS if there is a context for it. OSError."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")


class Single:
    """One call after the other."""

    depth = 1

    def __init__(self, port: int, keys: Mapping[str, str], authority: Path | None = None) -> None:
        self._side = Side(port, keys, authority)

    def ask_all(self, calls: Sequence[Call]) -> list[Answer]:
        """One after the other."""
        return [replace(self._side.ask(call), way="http1") for call in calls]

    def close(self) -> None:
        """Ends the connection."""
        self._side.close()


def headers(call: Call, keys: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Header fields as they are sent."""
    found = [(name, value.replace("{key}", keys.get(call.key, ""))) for name, value in call.headers]
    sent = [(name, value.encode("latin-1", "xmlcharrefreplace")) for name, value in found]
    if call.body is not None:
        sent.append(("Content-Length", str(len(call.body)).encode()))
    return sent


class _Open:
    """A file that several responses read one after the other."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        """Stays open."""

    def makefile(self, *_: object) -> "_Open":
        """Itself: what a response takes for its socket's file."""
        return self


class Pipelined:
    """Several calls in one write; answers come in their order."""

    depth = DEPTH

    def __init__(self, port: int, keys: Mapping[str, str], authority: Path | None = None) -> None:
        self._port = port
        self._keys = keys
        self._alone = Single(port, keys, authority)
        self._tls = trusting(authority)
        self._socket: socket.socket | None = None
        self._file: _Open | None = None

    def ask_all(self, calls: Sequence[Call]) -> list[Answer]:
        """All in one write."""
        answers = self._ask_all(calls)
        return [*answers, *self._alone.ask_all(calls[len(answers) :])]

    def _ask_all(self, calls: Sequence[Call]) -> list[Answer]:
        answers: list[Answer] = []
        way = "pipelined" if len(calls) > 1 else "http1"
        try:
            if self._socket is None:
                self._socket = connected(self._port, self._tls)
                self._file = _Open(self._socket.makefile("rb"))
            self._socket.sendall(b"".join(self._text(call) for call in calls))
            for call in calls:
                response = http.client.HTTPResponse(self._file, method=call.method)  # type: ignore[arg-type]
                response.begin()
                broken, body = False, b""
                try:
                    body = response.read()
                except http.client.IncompleteRead as error:
                    broken, body = True, error.partial
                answers.append(replace(answered(call, response.status, response.headers.get_all, body, broken=broken), way=way))
                if broken or response.will_close:
                    self._end()
                    break
        except (OSError, http.client.HTTPException):
            self._end()
        return answers

    def _text(self, call: Call) -> bytes:
        lines = [f"{call.method} {call.target} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n".encode("latin-1")]
        lines += [name.encode() + b": " + value + b"\r\n" for name, value in headers(call, self._keys)]
        return b"".join(lines) + b"\r\n" + (call.body or b"")

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._file = None, None

    def close(self) -> None:
        """Ends both connections."""
        self._end()
        self._alone.close()


def has_http2() -> bool:
    """The package `h2` is installed."""
    return importlib.util.find_spec("h2") is not None


@dataclass(slots=True)
class _Stream:
    call: Call
    status: int = 0
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    is_over: bool = False
    is_broken: bool = False

    def answer(self) -> Answer:
        def get_all(name: str) -> list[str] | None:
            values = [value.decode("latin-1") for key, value in self.fields if key == name.lower().encode()]
            return values or None

        return replace(answered(self.call, self.status, get_all, bytes(self.body), broken=self.is_broken), way="http2")


class Http2:
    """Several calls at once, as streams of one connection that speaks HTTP/2, by prior knowledge or by ALPN."""

    depth = DEPTH

    def __init__(self, port: int, keys: Mapping[str, str], authority: Path | None = None) -> None:
        self._port = port
        self._keys = keys
        self._alone = Single(port, keys, authority)
        self._tls = trusting(authority, "h2")
        self._socket: socket.socket | None = None
        # By name: the package is needed by nothing but this transport.
        self._connection: Any = None
        self._events: Any = None

    def ask_all(self, calls: Sequence[Call]) -> list[Answer]:
        """All at once."""
        streams = [_Stream(call) for call in calls]
        fitting = [stream for stream in streams if self._fits(stream.call)]
        for _attempt in (1, 2):
            asked = [stream for stream in fitting if stream.status == 0 and not stream.is_over]
            if asked:
                try:
                    self._ask(asked)
                except OSError:
                    self._end()
        return [self._alone.ask_all([each.call])[0] if not self._fits(each.call) else each.answer() for each in streams]

    def _fits(self, call: Call) -> bool:
        values = all(_VALUE.fullmatch(value.decode("latin-1")) and value == value.strip() for _, value in headers(call, self._keys))
        return bool(values and len(call.body or b"") <= LARGEST_BODY and _URI.fullmatch(call.target) and _TOKEN.fullmatch(call.method))

    def _open(self) -> None:
        if self._socket is not None:
            return
        config = importlib.import_module("h2.config").H2Configuration(
            client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._events = importlib.import_module("h2.events")
        self._connection = importlib.import_module("h2.connection").H2Connection(config)
        self._socket = connected(self._port, self._tls)
        self._connection.initiate_connection()

    def _ask(self, streams: Sequence[_Stream]) -> None:
        self._open()
        assert self._socket is not None
        by_id: dict[int, _Stream] = {}
        authority = f"127.0.0.1:{self._port}".encode()
        for stream in streams:
            call, number = stream.call, self._connection.get_next_available_stream_id()
            pseudo = [
                (b":method", call.method.encode()),
                (b":scheme", b"http" if self._tls is None else b"https"),
                (b":authority", authority),
                (b":path", call.target.encode()),
            ]
            fields = [(name.lower().encode(), value) for name, value in headers(call, self._keys)]
            self._connection.send_headers(number, [*pseudo, *fields], end_stream=not call.body)
            if call.body:
                self._connection.send_data(number, call.body, end_stream=True)
            by_id[number] = stream
        self._socket.sendall(self._connection.data_to_send())
        while not all(stream.is_over for stream in streams):
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            for event in self._connection.receive_data(data):
                self._heard(event, by_id)
            self._socket.sendall(self._connection.data_to_send())

    def _heard(self, event: Any, by_id: Mapping[int, _Stream]) -> None:
        events = self._events
        if isinstance(event, events.ConnectionTerminated):
            raise ConnectionResetError
        stream = by_id.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, events.ResponseReceived):
            stream.fields = [(bytes(name), bytes(value)) for name, value in event.headers]
            stream.status = int(next(value for name, value in stream.fields if name == b":status"))
        elif isinstance(event, events.DataReceived):
            stream.body += event.data
            self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, events.StreamEnded):
            stream.is_over = True
        elif isinstance(event, events.StreamReset):
            # After an answer that is whole it only says that no more of the request is read.
            stream.is_broken = not stream.is_over
            stream.is_over = True

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def close(self) -> None:
        """Ends both connections."""
        self._end()
        self._alone.close()


TRANSPORTS: dict[str, type[Single] | type[Pipelined] | type[Http2]] = {"http1": Single, "pipelined": Pipelined, "http2": Http2}
"""By the name that the command line takes."""
