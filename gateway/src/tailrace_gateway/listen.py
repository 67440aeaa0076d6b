"""Listeners: uvicorn on sockets that are made here, with the contract's limits on a request's head. IO: sockets.

What is not HTTP gets a bare answer and the connection is closed. The Unix socket is for its owner only.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tailrace_gateway.boundaries import HEAD_LIMIT_BYTES, Boundaries, MethodTooLong
from tailrace_gateway.settings import Address

HEADERS_LIMIT = 100
HEAD_DEADLINE_S = 10.0
IDLE_S = 75
BACKLOG = 1024
BODY_SURELY_SHORTER = sys.maxsize // 2

_BARE = {400: b"400 Bad Request", 408: b"408 Request Timeout", 431: b"431 Request Header Fields Too Large"}


class BareProtocol(HttpToolsProtocol):
    """uvicorn's protocol, less its own error page, with limits of a head's size and time, and with any method."""

    _refusal = 400
    _head_bytes = 0
    _in_head = False
    _begun = False
    _over = False
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._boundaries = Boundaries()

    def send_400_response(self, msg: str) -> None:
        """Answers without a body and closes."""
        self._stop_clock()
        self.transport.write(b"HTTP/1.1 " + _BARE[self._refusal] + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Starts the clock of a head with its first byte, and hands on what came piece by piece."""
        if self._deadline is None and not self._in_head and (self.cycle is None or self.cycle.response_complete):
            self._deadline = self.loop.call_later(HEAD_DEADLINE_S, self._late)
        while data and self.parser is not None and not self.transport.is_closing():
            try:
                piece, data = self._boundaries.cut(data)
            except MethodTooLong:
                self._refusal = 431
                self.send_400_response("")
                return
            if piece:
                super().data_received(piece)
            if self._over:
                self._begun = self._over = False
                self._boundaries.message_over()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self._refusal = 408
            self.send_400_response("")

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_LIMIT_BYTES or len(self.headers) > HEADERS_LIMIT:
            self._refusal = 431
            raise ValueError("the head is too large")

    def on_message_begin(self) -> None:
        """A new head; ValueError when it does not begin where one was looked for."""
        if self._begun:
            raise ValueError("a message within another")
        self._begun = True
        super().on_message_begin()
        self._head_bytes, self._in_head = len(self._boundaries.method or b""), True

    def on_url(self, url: bytes) -> None:
        """Counts it."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts it."""
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """Refuses what could be read in two ways."""
        self._stop_clock()
        self._in_head = False
        hosts = sum(name == b"host" for name, _ in self.headers)
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1") or b"#" in self.url:
            raise ValueError("no version or target of ours")
        if any(name == b"transfer-encoding" and (version == "1.0" or value.strip().lower() != b"chunked") for name, value in self.headers):
            raise ValueError("a coding besides chunks")
        lengths = sum(name == b"content-length" for name, _ in self.headers)
        codings = sum(name == b"transfer-encoding" for name, _ in self.headers)
        if lengths + codings > 1 or hosts > 1 or (not hosts and version == "1.1"):
            raise ValueError("not to be read in one way only")
        super().on_headers_complete()
        if self._boundaries.method is not None:
            self.scope["method"] = self._boundaries.method.decode("ascii")
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        self._boundaries.head_over(None if codings else int(length))
        if version == "1.0":
            _end_by_closing(self.cycle)

    def on_message_complete(self) -> None:
        """Notes that the next one may begin, once the piece that it ends with is read."""
        self._over = True
        super().on_message_complete()


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: a body without a length ends with the connection."""
    send = cycle.send

    async def unchunked(message: Any) -> None:
        if message["type"] == "http.response.start":
            known = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not known and cycle.scope["method"] != "HEAD" and message["status"] != 204:
                cycle.chunked_encoding, cycle.expected_content_length, cycle.keep_alive = False, sys.maxsize, False
        elif cycle.expected_content_length > BODY_SURELY_SHORTER and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = unchunked  # type: ignore[method-assign]


class Server(uvicorn.Server):
    """A server that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


def make_server(app: Callable[..., Any], drain_s: int) -> Server:
    """Of one application; `serve(sockets=[…])` runs it until `should_exit` is set and calls under way have ended, or `drain_s` is over."""
    silence()
    config = uvicorn.Config(
        app,
        http=BareProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=drain_s,
    )
    return Server(config)


def silence() -> None:
    """Frameworks log nothing: their messages may hold what callers sent. What fails is told by observations."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "psycopg", "psycopg.pool"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.setLevel(logging.CRITICAL)
        logger.propagate = False


def tcp_socket(address: Address) -> socket.socket:
    """Listens on TCP; OSError when the address cannot be had."""
    family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def unix_socket(path: Path) -> socket.socket:
    """Listens on a Unix socket of mode 0600; one that is there already is replaced at once. OSError when it cannot be made."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(fresh))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        fresh.replace(path)
    except OSError:
        listener.close()
        raise
    return listener
