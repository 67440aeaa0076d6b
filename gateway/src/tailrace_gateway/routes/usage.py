"""`GET /usage`: what the caller's key used, by query and day. IO: reads the run store, on a worker thread."""

from collections.abc import Callable
from datetime import UTC, date, datetime

from fastapi import APIRouter, Request, Response
from tailrace_contract.codes import Fault

from tailrace_gateway.describe.schemas import json_text
from tailrace_gateway.routes.caller import CallerOf
from tailrace_gateway.routes.query_arguments import query_arguments, refused
from tailrace_gateway.runs.place import Place
from tailrace_gateway.runs.reading import ReadTimeout, StoreUnreadable, reading_or_none
from tailrace_gateway.runs.usage import RANGE_MAX_DAYS, Usage, UsageFilter, default_range, usage_csv, usage_json
from tailrace_gateway.serve.admission import Refused


def _day(name: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise refused(name, Fault.TYPE) from None
    if len(text) != 10 or day.year < 1970:
        raise refused(name, Fault.TYPE)
    return day


def usage_filter(query: bytes, own_key: str, today: date) -> tuple[UsageFilter, str]:
    """`?from=YYYY-MM-DD &to=YYYY-MM-DD &query= &format=json|csv`; days are UTC and both counted. The last 31 days by default."""
    given = query_arguments(query, ("from", "to", "query", "format"))
    form = given.get("format", "json")
    if form not in ("json", "csv"):
        raise Refused("not_acceptable")
    last = _day("to", given["to"]) if "to" in given else today
    first = _day("from", given["from"]) if "from" in given else default_range(last)[0]
    if last < first:
        raise refused("to", Fault.MINIMUM)
    if (last - first).days >= RANGE_MAX_DAYS:
        raise refused("from", Fault.MINIMUM)
    return UsageFilter(first, last, own_key, given.get("query")), form


def router(place: Callable[[], Place | None], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> APIRouter:
    """The route. `place`: where runs are kept now; None while that is not known."""
    routes = APIRouter()

    @routes.get("/usage")
    def show_usage(caller: CallerOf, request: Request) -> Response:
        """Usage as JSON or CSV."""
        wanted, form = usage_filter(request.scope["query_string"], caller.key.id, now().date())
        rows: list[Usage] = []
        try:
            with reading_or_none(place(), timeout_s=30.0) as reader:
                if reader is not None:
                    rows = reader.usage(wanted)
        except ReadTimeout:
            raise Refused("query_timeout") from None
        except StoreUnreadable:
            raise Refused("database_unavailable") from None
        if form == "csv":
            return Response(usage_csv(rows), media_type="text/csv; charset=utf-8; header=present")
        return Response(json_text(usage_json(rows)), media_type="application/json")

    return routes
