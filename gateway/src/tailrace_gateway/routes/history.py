"""`GET /history`: the caller's own runs, newest first. IO: reads the run store, on a worker thread."""

import re
from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from tailrace_contract.codes import Fault
from tailrace_contract.run import parse_run_id

from tailrace_gateway.describe.schemas import json_text
from tailrace_gateway.routes.caller import CallerOf
from tailrace_gateway.routes.query_arguments import integer, query_arguments, refused
from tailrace_gateway.runs.history import LIMIT_DEFAULT, LIMIT_MAX, HistoryFilter, Page, page_json
from tailrace_gateway.runs.place import Place
from tailrace_gateway.runs.reading import ReadTimeout, StoreUnreadable, reading_or_none
from tailrace_gateway.serve.admission import Refused


def history_filter(query: bytes, own_key: str) -> HistoryFilter | None:
    """`?limit= &query= &key= &status= &after=`; None when it can match nothing, because another key's runs are asked for."""
    given = query_arguments(query, ("limit", "query", "key", "status", "after"))
    limit = integer("limit", given["limit"], 1, LIMIT_MAX) if "limit" in given else LIMIT_DEFAULT
    status, after = None, None
    if "status" in given:
        if not re.fullmatch(r"[1-5]([0-9]{2}|xx)?", given["status"]):
            raise refused("status", Fault.TYPE)
        status = int(given["status"].removesuffix("xx"))
    if "after" in given:
        try:
            after = parse_run_id(given["after"])
        except ValueError:
            raise refused("after", Fault.TYPE) from None
    if given.get("key", own_key) != own_key:
        return None
    return HistoryFilter(limit, own_key, given.get("query"), status, after)


def router(place: Callable[[], Place | None]) -> APIRouter:
    """The route. `place`: where runs are kept now; None while that is not known."""
    routes = APIRouter()

    @routes.get("/history")
    def show_history(caller: CallerOf, request: Request) -> Response:
        """One page of runs."""
        wanted = history_filter(request.scope["query_string"], caller.key.id)
        page: Page | None = Page((), False)
        if wanted is not None:
            try:
                with reading_or_none(place()) as reader:
                    if reader is not None:
                        page = reader.history(wanted)
                    elif wanted.after is not None:
                        page = None
            except ReadTimeout:
                raise Refused("query_timeout") from None
            except StoreUnreadable:
                raise Refused("database_unavailable") from None
        if page is None:
            raise refused("after", Fault.ENUM)
        return Response(json_text(page_json(page)), media_type="application/json")

    return routes
