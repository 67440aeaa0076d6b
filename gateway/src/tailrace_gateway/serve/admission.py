"""Whether a call is served, and with what: the checks of docs/contract.md, "A call", in its order. Pure.

Rejects with `Refused`, which carries the error code. `Facts` fills as the checks get on, so that a refused call is recorded with what is
known of it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailrace_contract.codes import Fault
from tailrace_contract.plan import Engine, QueryPlan, Returns, StatementPlan
from tailrace_gateway.serve.arguments import ArgumentsRefused, Bound, Given, place, requested_format
from tailrace_gateway.serve.cursor import InvalidCursor, Subject, open_cursor
from tailrace_gateway.serve.engine import Idempotency, Value
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.negotiation import NotAcceptable, negotiate
from tailrace_gateway.serve.request import Address, Request
from tailrace_gateway.serve.rows import join_row
from tailrace_gateway.serve.tables import Key, Query, Sight, Tables
from tailrace_gateway.serve.values import tag

BODY_LIMIT_BYTES = 1 << 20
ROWS_LIMIT = 10_000
"""Rows of a JSON answer without `page`, unless the query is `unbounded` and the answer is not one of several."""

_IDEMPOTENCY_KEY = re.compile(rb"[\x20-\x7e]{1,255}")


class Refused(Exception):
    """The call is answered with this error code; `faults` of parameters in the order in which they are told, `allow` with 405."""

    def __init__(self, code: str, faults: tuple[tuple[str, Fault], ...] = (), allow: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.faults = faults
        self.allow = allow


@dataclass(slots=True)
class Facts:
    """What a run says of a call, as far as it is known. Times in µs, sizes in bytes."""

    key: str = ""
    query: str = ""
    query_version: str = ""
    connection: str = ""
    queue_us: int = 0
    database_us: int = 0
    rows: int = 0
    params: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body: its bytes, at most BODY_LIMIT_BYTES of them, and whether there was more."""

    data: bytes = b""
    too_large: bool = False

    @property
    def present(self) -> bool:
        """It has at least one byte."""
        return bool(self.data) or self.too_large


@dataclass(frozen=True, slots=True)
class Granted:
    """A key, a query that it may call, and what it sees of it."""

    key: Key
    query: Query
    sight: Sight
    bound: Bound


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that is to be executed.

    `shown`: rows of the answer at most, None for a stream. `limit`: what the engine is told, one more; None where the statement limits
    itself. `has_body`: the next page's request repeats it.
    """

    granted: Granted
    form: Format
    statement: StatementPlan
    values: tuple[Value, ...]
    shown: int | None
    limit: int | None
    has_body: bool
    idempotency: Idempotency | None = None

    @property
    def streamed(self) -> bool:
        """The answer has no length."""
        return self.shown is None


def authenticate(request: Request, tables: Tables, now_us: int, address: Address, facts: Facts) -> Key:
    """The key (401)."""
    key = tables.admit(request.credential(), now_us, address)
    if key is None:
        raise Refused("unauthorized")
    facts.key = key.id
    return key


def grant(request: Request, name: str, tables: Tables, key: Key, facts: Facts) -> Granted:
    """The query (404), the grant (403, or 404 when the API hides it), the method (405), a refused plan (503)."""
    query = tables.query(name)
    if query is None:
        raise Refused("query_not_found")
    facts.query, facts.query_version, facts.connection = query.name, query.plan.version, query.connection.name
    seen = tables.sight(key, query)
    if seen is None:
        raise Refused("query_not_found" if tables.hide_forbidden else "forbidden")
    if request.method != "POST" and (query.plan.write or request.method not in ("GET", "HEAD")):
        raise Refused("method_not_allowed", allow=query.allow)
    sight, bound = seen
    if refused := query.refused or sight.refused:
        raise Refused(refused)
    return Granted(key, query, sight, bound)


def screen(request: Request, body: Body) -> Format:
    """Format (406), media type (415), size of the body (413)."""
    form = _format(request)
    if body.present:
        if not _is_json(request):
            raise Refused("unsupported_media_type")
        if body.too_large:
            raise Refused("body_too_large")
    return form


def admit(request: Request, granted: Granted, tables: Tables, form: Format, body: Body, facts: Facts) -> Admitted:
    """Body (400), arguments (400), parameters (422), cursor (400), idempotency (400), of a request that was screened."""
    admitted = _admit(granted, tables, form, request.arguments, body.data if body.present else None, facts)
    idempotency = _idempotency(request, granted, admitted.given)
    return admitted.call if idempotency is None else replace(admitted.call, idempotency=idempotency)


def admit_part(granted: Granted, tables: Tables, text: str, facts: Facts) -> Admitted:
    """The same of one of several calls in a body: `text` is its object."""
    call = _admit(granted, tables, Format.JSON, b"", text.encode(), facts, part=True).call
    if call.form is not Format.JSON:
        raise Refused("not_acceptable")
    return call


@dataclass(frozen=True, slots=True)
class _Taken:
    call: Admitted
    given: Given


def _admit(
    granted: Granted, tables: Tables, form: Format, arguments: bytes, body: bytes | None, facts: Facts, *, part: bool = False
) -> _Taken:
    query = granted.query
    try:
        given = query.spec.decode(granted.bound, arguments, body)
    except ArgumentsRefused as refused:
        raise Refused(refused.code, refused.faults) from None
    form = given.form or form
    statement, values, shown, limit = _statement(granted, tables, given, form, part=part)
    if query.plan.record_params:
        facts.params = _recorded(query.plan, given)
    return _Taken(Admitted(granted, form, statement, values, shown, limit, body is not None), given)


def _format(request: Request) -> Format:
    try:
        return negotiate(requested_format(request.arguments), [value.decode("latin-1") for value in request.fields(b"accept")])
    except NotAcceptable:
        raise Refused("not_acceptable") from None


def _is_json(request: Request) -> bool:
    """Whether the body is said to be plain JSON: one that is encoded on top of it is not read."""
    kind = request.once(b"content-type")
    codings = request.fields(b"content-encoding")
    if codings and (len(codings) > 1 or codings[0].lower() != b"identity"):
        return False
    return kind is not None and kind.partition(b";")[0].strip().lower() == b"application/json"


def _statement(
    granted: Granted, tables: Tables, given: Given, form: Format, *, part: bool
) -> tuple[StatementPlan, tuple[Value, ...], int | None, int | None]:
    """Statement, values of its places, rows shown, limit of the engine."""
    query = granted.query
    plan, page, engine = query.plan, query.plan.page, query.connection.engine
    if page is not None:
        size = given.page_size or page.default_size
        statement, keys = page.first, list[bytes]()
        if given.cursor is not None:
            assert tables.cursor_key is not None
            subject = Subject(granted.key.id, query.name, plan.version)
            try:
                opened = open_cursor(tables.cursor_key, subject, given.cursor, len(page.keys), engine)
            except InvalidCursor:
                raise Refused("invalid_cursor") from None
            statement = page.next
            keys = [value if isinstance(value, bytes) and engine is not Engine.SQLITE else tag(value) for value in opened]
        beyond = b"%d" % (size + 1)
        tail = [*keys, beyond if engine is not Engine.SQLITE else b"i" + beyond]
        return statement, (*place(given.values, statement.params), *tail), size, None
    values = tuple(place(given.values, plan.statement.params))
    match plan.returns:
        case Returns.ONE:
            return plan.statement, values, 1, 2
        case Returns.NONE:
            return plan.statement, values, 0, None
        case Returns.MANY if form is Format.JSON and (part or not plan.unbounded):
            return plan.statement, values, ROWS_LIMIT, ROWS_LIMIT + 1
        case _:
            return plan.statement, values, None, None


def _idempotency(request: Request, granted: Granted, given: Given) -> Idempotency | None:
    query = granted.query
    fields = request.fields(b"idempotency-key")
    if not fields or not query.plan.write:
        return None
    if len(fields) > 1:
        raise Refused("invalid_idempotency_key")
    if query.connection.idempotency_table is None:
        raise Refused("idempotency_unavailable")
    if not _IDEMPOTENCY_KEY.fullmatch(fields[0]):
        raise Refused("invalid_idempotency_key")
    return Idempotency(granted.key.id, fields[0].decode("ascii"), query.name, arguments_digest(query.name, given.values))


def arguments_digest(query: str, values: Sequence[Value]) -> str:
    """What an Idempotency-Key stands for: hex SHA-256 of the query's name, a line feed and the values in DataRow form."""
    return hashlib.sha256(query.encode() + b"\n" + join_row(values)).hexdigest()


def _recorded(plan: QueryPlan, given: Given) -> str:
    """The call's values by parameter, as a JSON object of texts."""
    texts = {
        param.name: None if value is None else value.decode("utf-8", "replace")
        for param, value in zip(plan.params, given.values, strict=True)
    }
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def prefers_timing(request: Request) -> bool:
    """`Prefer: timing` was sent."""
    return any(one.strip().lower() == b"timing" for one in b",".join(request.fields(b"prefer")).split(b","))
