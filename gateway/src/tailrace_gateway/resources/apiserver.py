"""The Kubernetes API server as a client sees it: where it is, how it is trusted, who we are. IO: HTTPS to it, the service account's files.

Rejects with `ApiFailure` whatever is no good answer; it says what kind, never what was answered. The token is read again for each request and
the CA's file when it changes, for both are replaced while a pod lives. No proxy of the environment is used.
"""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_S = 5.0
ANSWER_LIMIT_BYTES = 64 << 20
"""Of one page of a list."""
LINE_LIMIT_BYTES = 8 << 20
"""Of one event of a watch: etcd keeps no object over 1.5 MiB, JSON may escape it."""
CHUNK_BYTES = 1 << 16


class Reason(StrEnum):
    """What kind of failure it was."""

    UNREACHABLE = "unreachable"
    SILENT = "silent"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    EXPIRED = "expired"
    """The resourceVersion is too old: list again."""
    THROTTLED = "throttled"
    FAILED = "failed"
    """5xx, or an answer that makes no sense."""


class ApiFailure(Exception):
    """No good answer. `retry_after_s`: what the server asks for, 0 for nothing."""

    def __init__(self, reason: Reason, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Access:
    """Where the server is, and which files say who we are and whom to trust."""

    base_url: str
    token_file: Path | None = None
    ca_file: Path | None = None


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Access:
    """As every pod finds it; ValueError when this is no pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError("KUBERNETES_SERVICE_HOST is not set: --kubernetes works in a pod only")
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", folder / "token", folder / "ca.crt")


class ApiServer:
    """Requests to one server. Each watch holds a connection of its own."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: httpx.AsyncClient | None = None
        self._trusted: object = None
        self._replaced: list[httpx.AsyncClient] = []

    async def get(self, path: str, params: Mapping[str, str], deadline_s: float) -> dict[str, Any]:
        """A JSON object, whole within the deadline."""
        body = bytearray()
        async with self._response(path, params, deadline_s) as response:
            async for chunk in response.aiter_bytes(CHUNK_BYTES):
                body += chunk
                if len(body) > ANSWER_LIMIT_BYTES:
                    raise ApiFailure(Reason.FAILED)
        return _object(bytes(body))

    @asynccontextmanager
    async def lines(self, path: str, params: Mapping[str, str], deadline_s: float) -> AsyncIterator[AsyncGenerator[dict[str, Any], None]]:
        """A stream of JSON objects, one a line; it ends as the server ends it, at latest with the deadline (SILENT)."""
        async with self._response(path, params, deadline_s) as response:
            yield _objects(response)

    async def close(self) -> None:
        """Ends every connection."""
        for client in (*self._replaced, *([self._client] if self._client is not None else [])):
            await client.aclose()
        self._replaced, self._client = [], None

    @asynccontextmanager
    async def _response(self, path: str, params: Mapping[str, str], deadline_s: float) -> AsyncIterator[httpx.Response]:
        headers = {"Accept": "application/json"}
        try:
            client = self._current()
            if self._access.token_file is not None:
                headers["Authorization"] = f"Bearer {self._access.token_file.read_text().strip()}"
        except (OSError, ValueError):
            raise ApiFailure(Reason.UNAUTHORIZED) from None
        try:
            async with (
                asyncio.timeout(deadline_s),
                _failures(),
                client.stream("GET", path, params=dict(params), headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise _failure(response)
                yield response
        except TimeoutError:
            raise ApiFailure(Reason.SILENT) from None

    def _current(self) -> httpx.AsyncClient:
        ca_file = self._access.ca_file
        stat = ca_file.stat() if ca_file is not None else None
        trusted = (stat.st_ino, stat.st_mtime_ns, stat.st_size) if stat is not None else ()
        if self._client is None or trusted != self._trusted:
            context = ssl.create_default_context(cafile=str(ca_file)) if ca_file is not None else ssl.create_default_context()
            # A server that vanishes without a word is noticed by the kernel long before the watch's deadline.
            options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
            options += [
                (socket.IPPROTO_TCP, number, value)
                for number, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
            ]
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
            transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits, socket_options=options)
            timeout = httpx.Timeout(None, connect=CONNECT_S)
            if self._client is not None:
                self._replaced.append(self._client)  # Watches may still run on it.
            self._client = httpx.AsyncClient(base_url=self._access.base_url, transport=transport, timeout=timeout, trust_env=False)
            self._trusted = trusted
        return self._client


@asynccontextmanager
async def _failures() -> AsyncIterator[None]:
    try:
        yield
    except httpx.HTTPError:
        raise ApiFailure(Reason.UNREACHABLE) from None


def _failure(response: httpx.Response) -> ApiFailure:
    by_status = {
        401: Reason.UNAUTHORIZED,
        403: Reason.FORBIDDEN,
        404: Reason.NOT_FOUND,
        410: Reason.EXPIRED,
        429: Reason.THROTTLED,
    }
    text = response.headers.get("Retry-After", "")
    after_s = min(float(text), 60.0) if text.isascii() and text.isdigit() else 0.0
    return ApiFailure(by_status.get(response.status_code, Reason.FAILED), after_s)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        raise ApiFailure(Reason.FAILED) from None
    if not isinstance(value, dict):
        raise ApiFailure(Reason.FAILED)
    return value


async def _objects(response: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    """Split at line feeds only: texts may hold every other line end that Unicode knows."""
    held = bytearray()
    async for chunk in response.aiter_bytes():
        held += chunk
        if (end := held.rfind(b"\n")) >= 0:
            whole, held = held[:end], held[end + 1 :]
            for line in whole.split(b"\n"):
                if line.strip():
                    yield _object(bytes(line))
        if len(held) > LINE_LIMIT_BYTES:
            raise ApiFailure(Reason.FAILED)
