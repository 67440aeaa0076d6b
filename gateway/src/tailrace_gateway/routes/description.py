"""`GET /catalog` and `GET /openapi.json`, for the caller's key."""

from fastapi import APIRouter, Response

from tailrace_gateway.describe.catalog import catalog
from tailrace_gateway.describe.openapi import openapi
from tailrace_gateway.describe.schemas import json_text
from tailrace_gateway.routes.caller import CallerOf


def router() -> APIRouter:
    """Both routes."""
    routes = APIRouter()

    @routes.get("/catalog")
    def show_catalog(caller: CallerOf) -> Response:
        """What the key may call."""
        return Response(json_text(catalog(caller.tables, caller.key)), media_type="application/json")

    @routes.get("/openapi.json")
    def show_openapi(caller: CallerOf) -> Response:
        """The same as an OpenAPI document."""
        return Response(json_text(openapi(caller.tables, caller.key)), media_type="application/json")

    return routes
