"""The whole HTTP API by Python: `create_app` gives the ASGI application for one listener.

Order of a call: OPTIONS, snapshot there (503), key (401), then a query by `serve.call` or one of the routers. Every answer is recorded before
it leaves; whatever goes wrong inside is a 500 without details. Frameworks' own error pages never show.
"""

import time
import traceback
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response

from tailrace_gateway.observe import Event, observation
from tailrace_gateway.routes.caller import Caller
from tailrace_gateway.serve.admission import Refused, authenticate
from tailrace_gateway.serve.answer import ALLOW_ANY, Reply, options
from tailrace_gateway.serve.call import answer_query
from tailrace_gateway.serve.exchange import ClientLeft, Exchange, Message, Receive, Send, forwarded_id
from tailrace_gateway.serve.recording import RunsUnavailable
from tailrace_gateway.serve.request import LOOPBACK, Address, Request, query_name
from tailrace_gateway.serve.serving import Serving

Scope = Message

ROUTE_ALLOW = "GET, HEAD, OPTIONS"


def create_app(serving: Serving, routers: Iterable[APIRouter] = (), *, behind_data_plane: bool) -> "FrontDoor":
    """`behind_data_plane`: the listener is the Unix socket, whose X-Tailrace-* fields are the data plane's own."""
    inner = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for router in routers:
        inner.include_router(router)
    inner.add_exception_handler(HTTPException, _http_problem)
    inner.add_exception_handler(Exception, _raise)
    return FrontDoor(serving, inner, behind_data_plane)


class _Problem(Exception):
    """A router's HTTP error on its way to the front door."""

    def __init__(self, code: str, allow: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.allow = allow


async def _http_problem(request: StarletteRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        raise _Problem("method_not_allowed", ROUTE_ALLOW)
    raise _Problem("not_found" if status == 404 else "internal_error")


async def _raise(request: StarletteRequest, error: Exception) -> Response:
    raise error


class FrontDoor:
    """ASGI application."""

    def __init__(self, serving: Serving, inner: FastAPI, behind_data_plane: bool) -> None:
        self._serving = serving
        self._inner = inner
        self._behind = behind_data_plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is served")
        request = Request(
            method=scope["method"],
            raw_path=scope.get("raw_path") or scope["path"].encode(),
            arguments=scope["query_string"],
            headers=scope["headers"],
            peer=self._peer(scope),
        )
        own = request.once(b"x-tailrace-run-id") if self._behind else None
        exchange = Exchange(request, receive, send, self._serving.recorder, self._serving.observe, forwarded_id(own))
        try:
            if request.method == "OPTIONS":
                await exchange.finish_unrecorded(options(self._allow(request), time.time()))
            else:
                await self._answer(scope, exchange)
        except ClientLeft:
            await exchange.gone()
        except Refused as refused:
            await exchange.refuse(refused.code, refused.faults, refused.allow)
        except Exception as error:
            await self._failed(exchange, error)

    def _allow(self, request: Request) -> str:
        path, tables = request.path(), self._serving.tables
        name = None if path is None else query_name(path)
        query = None if name is None or tables is None or tables.hide_forbidden else tables.query(name)
        return ALLOW_ANY if query is None else query.allow

    def _peer(self, scope: Scope) -> Address:
        """Who connected; on the Unix socket, whom the data plane saw."""
        client = scope.get("client")
        if self._behind:
            seen = next((value for name, value in scope["headers"] if name == b"x-tailrace-client"), None)
            try:
                return ip_address(seen.decode("ascii")) if seen else LOOPBACK
            except ValueError:
                return LOOPBACK
        return ip_address(client[0].partition("%")[0]) if client else LOOPBACK

    async def _answer(self, scope: Scope, exchange: Exchange) -> None:
        tables = self._serving.tables
        if tables is None:
            raise Refused("not_ready")
        request = exchange.request
        exchange.address = request.peer if self._behind else request.caller(tables.trusted_proxies)
        key = authenticate(request, tables, time.time_ns() // 1000, exchange.address, exchange.facts)
        path = request.path()
        if path is None:
            raise Refused("malformed_request")
        name = query_name(path)
        if name is not None:
            await answer_query(exchange, self._serving, tables, key, name)
            return
        inner = {
            "type": "http",
            "asgi": scope["asgi"],
            "http_version": scope["http_version"],
            "method": "GET" if request.method == "HEAD" else request.method,
            "scheme": scope["scheme"],
            "path": path,
            "raw_path": request.raw_path,
            "query_string": request.arguments,
            "root_path": "",
            "headers": [pair for pair in request.headers if not pair[0].startswith(b"x-tailrace-")],
            "client": (str(exchange.address), 0),
            "server": scope.get("server"),
            "tailrace.caller": Caller(key, tables),
        }
        await self._route(inner, exchange)

    async def _route(self, scope: Scope, exchange: Exchange) -> None:
        """Runs a router and sends what it answered, whole, once it is recorded."""
        status = 500
        fields: list[tuple[str, str]] = []
        body = bytearray()

        async def gather(message: Message) -> None:
            nonlocal status, fields
            if message["type"] == "http.response.start":
                status = message["status"]
                fields = [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in message["headers"]]
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        try:
            await self._inner(scope, nothing, gather)
        except _Problem as problem:
            raise Refused(problem.code, allow=problem.allow) from None
        kept = [(name, value) for name, value in fields if name not in ("Content-Length", "X-Run-Id", "Content-Type")]
        kind = next((value for name, value in fields if name == "Content-Type"), "application/json")
        whole: list[tuple[str, str]] = [("Content-Type", kind), ("X-Run-Id", exchange.run_id), *kept, ("Cache-Control", "private")]
        await exchange.finish(Reply(status, [*whole, ("Content-Length", str(len(body)))], bytes(body)))

    async def _failed(self, exchange: Exchange, error: Exception) -> None:
        """500 without details; where it happened goes to the log, what it said does not."""
        if not isinstance(error, RunsUnavailable):
            frames = traceback.extract_tb(error.__traceback__)
            at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            self._serving.observe(observation(Event.CALL_FAILED, run=exchange.run_id, error=type(error).__name__, at=at))
        if exchange.started:
            await exchange.gone()
            return
        await exchange.refuse("spool_full" if isinstance(error, RunsUnavailable) else "internal_error")
