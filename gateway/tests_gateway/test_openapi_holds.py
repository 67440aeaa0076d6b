"""What the OpenAPI document promises, held against the API: whatever is sent, the answer is a documented one in its documented form."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from datetime import UTC, date, datetime, time
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator
from tailrace_contract.plan import (
    ApiPlan,
    BigNumbers,
    ColumnPlan,
    ConnectionPlan,
    Encoding,
    Engine,
    Grant,
    KeyPlan,
    Mask,
    MaskPlan,
    ParamPlan,
    ParamType,
    QueryPlan,
    Returns,
    RolePlan,
    Snapshot,
    StatementPlan,
)
from tailrace_contract.run import Epoch, Run, Sequence
from tailrace_gateway.app import create_app
from tailrace_gateway.observe import silent
from tailrace_gateway.routes.description import router
from tailrace_gateway.serve.engine import Ask, Done, Row, Rows
from tailrace_gateway.serve.serving import Serving
from tailrace_gateway.serve.tables import Tables

KEY = "k"

PARAMS = tuple(
    ParamPlan(name=f"{kind.value}{'s' if array else ''}", type=kind, array=array, nullable=True)
    for kind in ParamType
    for array in (False, True)
    if not (array and kind is ParamType.JSON)
)
BOUNDED = (
    ParamPlan(name="n", type=ParamType.INTEGER, required=True, minimum="-5", maximum="100000000000000000"),
    ParamPlan(name="d", type=ParamType.NUMBER, minimum="0.1", maximum="12345678901234567890.5"),
    ParamPlan(name="word", type=ParamType.STRING, min_length=1, max_length=3, pattern="^[a-z]+$"),
    ParamPlan(name="one", type=ParamType.STRING, enum=("a", "b")),
)
VALUES: dict[Encoding, st.SearchStrategy[bytes]] = {
    Encoding.RAW: st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: str(n).encode()),
    Encoding.NUMBER: st.one_of(
        st.sampled_from([b"NaN", b"Infinity", b"-Infinity", b"1e+20", b"-0", b"1.10"]),
        st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda n: f"{n:f}".encode()),
    ),
    Encoding.QUOTED: st.integers().map(lambda n: str(n).encode()),
    Encoding.BOOLEAN: st.sampled_from([b"t", b"f"]),
    Encoding.STRING: st.text(st.characters(exclude_categories=["Cs"])).map(str.encode),
    Encoding.TIMESTAMP: st.sampled_from([b"2026-01-31 09:30:00.5", b"infinity", b"0044-03-15 00:00:00 BC"]),
    Encoding.TIMESTAMPTZ: st.sampled_from([b"2026-01-31 09:30:00+00", b"-infinity"]),
    Encoding.BASE64: st.binary().map(lambda data: b"\\x" + data.hex().encode()),
    Encoding.JSON: st.sampled_from([b"{}", b"[1,\n2]", b'"x"', b"null", b"1.5"]),
}
ENCODINGS = tuple(VALUES)
COLUMNS = tuple(ColumnPlan(name=f"c{n}", encoding=encoding) for n, encoding in enumerate(ENCODINGS))
MASKS = tuple(MaskPlan(column=n, with_=mask) for n, mask in zip((0, 2, 4, 5), Mask, strict=True))


def snapshot() -> Snapshot:
    def query(name: str, params: tuple[ParamPlan, ...], returns: Returns) -> QueryPlan:
        return QueryPlan(
            name=name,
            version=hashlib.sha256(name.encode()).hexdigest()[:16],
            connection=0,
            returns=returns,
            timeout_ms=10_000,
            params=params,
            columns=COLUMNS,
            statement=StatementPlan(sql="", params=tuple(range(len(params))), oids=(25,) * len(params)),
        )

    return Snapshot(
        version=1,
        api=ApiPlan(namespace="t", name="t", big_numbers=BigNumbers.NUMBER),
        connections=(ConnectionPlan(name="c", engine=Engine.POSTGRES, url_file="/none"),),
        queries=(query("loose", PARAMS, Returns.MANY), query("tight", BOUNDED, Returns.ONE)),
        roles=(RolePlan(name="r", grants=(Grant(query=0), Grant(query=1, masks=MASKS))),),
        keys=(KeyPlan(id="t/k", sha256=(hashlib.sha256(KEY.encode()).hexdigest(),), role=0),),
    )


class Nowhere:
    """Recorder that keeps nothing."""

    def draw(self) -> tuple[Epoch, Sequence]:
        return Epoch(1), Sequence(1)

    async def open(self, run: Run) -> None:
        return None

    async def store(self, run: Run) -> None:
        return None


class Given:
    """Executor that answers with what it is given."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.asked: list[Ask] = []

    async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
        self.asked.append(ask)
        if self.rows:
            yield Rows(self.rows[: ask.limit])
        yield Done()


def call(method: str, path: str, body: Any = None, rows: list[Row] | None = None) -> tuple[httpx.Response, dict[str, Any], list[Ask]]:
    """One call, and the document."""
    executor = Given(rows or [])
    serving = Serving(Nowhere(), silent, {Engine.POSTGRES: executor})
    serving.tables = Tables(snapshot(), bytes(32))
    app = create_app(serving, (router(),), behind_data_plane=False)

    async def both() -> tuple[httpx.Response, dict[str, Any]]:
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://t", headers={"X-API-Key": KEY}) as client:
            document = (await client.get("/openapi.json")).json()
            answer = await client.request(method, path) if body is None else await client.request(method, path, json=body)
            return answer, document

    return *asyncio.run(both()), executor.asked


def hold(answer: httpx.Response, document: dict[str, Any], path: str, method: str) -> None:
    """The answer is a documented one."""
    responses = document["paths"][path][method]["responses"]
    documented = responses[str(answer.status_code)]
    for name in documented["headers"]:
        schema = document["components"]["headers"][name]["schema"]
        value: Any = answer.headers.get(name)
        if value is not None:
            OAS31Validator(schema).validate(int(value) if schema.get("type") == "integer" else value)
    kind = answer.headers["content-type"]
    schema = documented["content"][kind]["schema"]
    if schema.get("$ref") == "#/components/schemas/Problem":
        schema = document["components"]["schemas"]["Problem"]
    OAS31Validator(schema).validate(json.loads(answer.content))


VALID: dict[ParamType, st.SearchStrategy[Any]] = {
    ParamType.INTEGER: st.integers(-(1 << 63), (1 << 63) - 1),
    ParamType.NUMBER: st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9).map(lambda n: round(n, 3)),
    ParamType.STRING: st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    ParamType.BOOLEAN: st.booleans(),
    ParamType.DATE: st.dates(date(1, 1, 1)).map(date.isoformat),
    ParamType.TIME: st.times().map(time.isoformat),
    ParamType.TIMESTAMP: st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    ParamType.UUID: st.uuids().map(str),
    ParamType.JSON: st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.just("text"), st.lists, max_leaves=5),
}


def valid_body() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            p.name: st.lists(VALID[p.type], max_size=4) if p.array else VALID[p.type] for p in PARAMS if p.type is not ParamType.JSON
        },
    )


ROWS = st.lists(st.tuples(*(st.none() | VALUES[encoding] for encoding in ENCODINGS)), max_size=3)
PACE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PACE
@given(valid_body(), ROWS)
def test_what_the_document_admits_is_admitted(body: dict[str, Any], rows: list[Row]) -> None:
    answer, document, asked = call("POST", "/q/loose", body, rows)
    assert answer.status_code == 200, answer.text
    hold(answer, document, "/q/loose", "post")
    schema = document["paths"]["/q/loose"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    OAS31Validator(schema).validate(body)
    given_names = {param.name for param, value in zip(PARAMS, asked[0].values, strict=True) if value is not None}
    assert given_names == set(body)


@PACE
@given(
    st.dictionaries(
        st.sampled_from([p.name for p in BOUNDED]) | st.text(max_size=5),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=6)
        | st.lists(st.integers(), max_size=3),
        max_size=5,
    ),
    ROWS,
)
def test_any_body_gets_a_documented_answer(body: dict[str, Any], rows: list[Row]) -> None:
    answer, document, _ = call("POST", "/q/tight", body, rows)
    assert answer.status_code in (200, 404, 406, 422), answer.text
    hold(answer, document, "/q/tight", "post")
    schema = document["paths"]["/q/tight"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if answer.status_code in (200, 404):
        OAS31Validator(schema).validate(body)


@PACE
@given(
    st.lists(
        st.tuples(st.sampled_from([p.name for p in BOUNDED]) | st.text(max_size=3), st.text(max_size=6) | st.integers().map(str)),
        max_size=5,
    ),
    ROWS,
)
def test_any_arguments_get_a_documented_answer(pairs: list[tuple[str, str]], rows: list[Row]) -> None:
    arguments = "&".join(
        f"{quote(name, safe='', errors='surrogatepass')}={quote(value, safe='', errors='surrogatepass')}" for name, value in pairs
    )
    answer, document, _ = call("GET", f"/q/tight?{arguments}", None, rows)
    assert answer.status_code in (200, 400, 404, 406, 422), answer.text
    hold(answer, document, "/q/tight", "get")
