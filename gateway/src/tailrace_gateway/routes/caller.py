"""Who calls a route: put into the ASGI scope by the front door, after the key check."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from tailrace_gateway.serve.tables import Key, Tables


@dataclass(frozen=True, slots=True)
class Caller:
    """The key of a call and the tables that it is served from."""

    key: Key
    tables: Tables


def _caller(request: Request) -> Caller:
    caller = request.scope["tailrace.caller"]
    assert isinstance(caller, Caller)
    return caller


CallerOf = Annotated[Caller, Depends(_caller)]
"""Annotation of a route's parameter."""
