"""The HTTP API over ASGI with a stand-in for the databases: checks and their order, headers, bodies, runs."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from openapi_spec_validator import OpenAPIV31SpecValidator
from tailrace_contract.codes import CODES
from tailrace_contract.plan import (
    ApiPlan,
    ColumnPlan,
    ConnectionPlan,
    Encoding,
    Engine,
    Grant,
    KeyPlan,
    Mask,
    MaskPlan,
    Missing,
    PageKeyPlan,
    PagePlan,
    ParamPlan,
    ParamType,
    QueryPlan,
    Returns,
    RolePlan,
    Snapshot,
    StatementPlan,
)
from tailrace_contract.run import ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_gateway.app import create_app
from tailrace_gateway.errors import SnapshotRefused
from tailrace_gateway.observe import Event, Observation
from tailrace_gateway.routes.description import router as description
from tailrace_gateway.serve.engine import Ask, Done, Failure, Row, Rows, StatementFailed
from tailrace_gateway.serve.etag import LARGEST_BYTES, etag
from tailrace_gateway.serve.recording import RunsUnavailable
from tailrace_gateway.serve.serving import Serving
from tailrace_gateway.serve.tables import Tables

SECRET = bytes(32)
KEY = "tlr_test_secret"
PROBLEM = "application/problem+json"


class Memory:
    """Recorder that keeps runs in a dict; `down` refuses."""

    def __init__(self) -> None:
        self.drawn = 0
        self.runs: dict[int, Run] = {}
        self.down = False

    def draw(self) -> tuple[Epoch, Sequence]:
        self.drawn += 1
        return Epoch(7), Sequence(self.drawn)

    async def open(self, run: Run) -> None:
        await self.store(replace(run, code="open"))

    async def store(self, run: Run) -> None:
        if self.down:
            raise RunsUnavailable
        self.runs[run.sequence] = run

    @property
    def last(self) -> Run:
        return self.runs[max(self.runs)]


class Answers:
    """Executor that answers from memory and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.rows: list[Row] = [[b"1", b"ann@example.com"]]
        self.failure: Failure | None = None
        self.after: Failure | None = None

    async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
        self.asked.append(ask)
        if self.failure is not None:
            raise StatementFailed(self.failure, database_us=7)
        rows = self.rows if ask.limit is None else self.rows[: ask.limit]
        for row in rows:
            yield Rows([row])
        if self.after is not None:
            raise StatementFailed(self.after)
        yield Done(affected=3, queue_us=5, database_us=11)


ID = ParamPlan(name="id", type=ParamType.INTEGER, required=True, minimum="1")
COLUMNS = (
    ColumnPlan(name="id", encoding=Encoding.RAW, type_oid=20),
    ColumnPlan(name="email", encoding=Encoding.STRING, type_oid=25),
)
BY_ID = StatementPlan(sql="SELECT", params=(0,), oids=(20,))
PAGE = PagePlan(
    keys=(PageKeyPlan(column=0),),
    default_size=2,
    max_size=5,
    first=StatementPlan(sql="FIRST", oids=(20,)),
    next=StatementPlan(sql="NEXT", oids=(20, 20)),
)


def query(name: str, returns: Returns = Returns.ONE, **more: Any) -> QueryPlan:
    fields: dict[str, Any] = {
        "name": name,
        "version": hashlib.sha256(name.encode()).hexdigest()[:16],
        "connection": 0,
        "returns": returns,
        "timeout_ms": 5000,
        "params": (ID,),
        "columns": COLUMNS,
        "statement": BY_ID,
    } | more
    return QueryPlan(**fields)


QUERIES = (
    query("one"),
    query("maybe", missing=Missing.NULL),
    query("all", Returns.MANY, params=(), statement=StatementPlan(sql="ALL")),
    query("paged", Returns.MANY, params=(), statement=StatementPlan(sql=""), page=PAGE),
    query("change", Returns.NONE, write=True, columns=()),
    query(
        "tenants",
        params=(ID, ParamPlan(name="tenant", type=ParamType.INTEGER)),
        statement=StatementPlan(sql="T", params=(1, 0), oids=(20, 20)),
    ),
    query("refused", refused="not_parsed"),
    query("away", refused="database_unreachable"),
    query("leaky"),
    query("private"),
    query("kept", cache_ttl_ms=5500),
    query("endless", Returns.MANY, params=(), statement=StatementPlan(sql="ENDLESS"), unbounded=True),
)


def key(identity: str, text: str, role: int = 0, **more: Any) -> KeyPlan:
    return KeyPlan(id=identity, sha256=(hashlib.sha256(text.encode()).hexdigest(),), role=role, **more)


def snapshot(**api: Any) -> Snapshot:
    grants = (*(Grant(query=n) for n in range(8)), Grant(query=8, refused="mask_leak"), Grant(query=10), Grant(query=11))
    masked = (Grant(query=0, masks=(MaskPlan(column=1, with_=Mask.PARTIAL),)),)
    return Snapshot(
        version=5,
        api=ApiPlan(namespace="retail", name="shop", **api),
        connections=(ConnectionPlan(name="main", engine=Engine.POSTGRES, url_file="/none", idempotency_table="kept"),),
        queries=QUERIES,
        roles=(RolePlan(name="all", grants=grants), RolePlan(name="masked", grants=masked)),
        keys=(
            key("retail/a", KEY),
            key("retail/masked", "masked", 1),
            key("retail/bound", "bound", bind={"tenant": 42}),
            key("retail/old", "old", not_after_us=1),
            key("retail/early", "early", not_before_us=1 << 60),
            key("retail/near", "near", cidrs=("10.0.0.0/8",)),
        ),
    )


class Api:
    """Everything of one app under test."""

    def __init__(self, behind: bool = False, **api: Any) -> None:
        self.memory = Memory()
        self.answers = Answers()
        self.seen: list[Observation] = []
        self.serving = Serving(self.memory, self.seen.append, {Engine.POSTGRES: self.answers})
        self.serving.tables = Tables(snapshot(**api), SECRET)
        broken = APIRouter()

        @broken.get("/broken")
        def fail() -> None:
            raise RuntimeError("secret detail")

        self.app = create_app(self.serving, (description(), broken), behind_data_plane=behind)

    async def ask(self, method: str, path: str, *, text: str | None = KEY, peer: str = "127.0.0.1", **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if text is not None:
            headers["X-API-Key"] = text
        transport = httpx.ASGITransport(app=self.app, client=(peer, 5))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            return await client.request(method, path, headers=headers, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.ask("GET", path, **more)


@pytest.fixture
def api() -> Api:
    return Api()


def problem_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == PROBLEM
    body = answer.json()
    assert body["status"] == answer.status_code
    assert answer.headers["cache-control"] == "no-store"
    if "instance" in body:
        assert body["instance"] == f"urn:tailrace:run:{answer.headers['x-run-id']}"
    return answer.status_code, body["code"]


async def test_one_row(api: Api) -> None:
    answer = await api.get("/q/one?id=1")
    assert answer.content == b'{"id":1,"email":"ann@example.com"}'
    assert list(answer.headers) == [
        "content-type", "x-run-id", "x-row-count", "x-truncated", "cache-control", "vary", "date", "content-length",
    ]  # fmt: skip
    assert (answer.headers["x-row-count"], answer.headers["x-truncated"]) == ("1", "false")
    run = api.memory.last
    assert (run.key, run.query, run.connection, run.status, run.code, run.rows) == ("retail/a", "one", "main", 200, "", 1)
    assert (run.bytes, run.database_us, run.queue_us, run.batch) == (len(answer.content), 11, 5, 1)
    assert (run.client, run.served_by, run.id) == (ClientClass.LOOPBACK, ServedBy.GATEWAY, answer.headers["x-run-id"])
    assert api.answers.asked[0].values == (b"1",)


async def test_an_answer_that_a_client_may_keep(api: Api) -> None:
    answer = await api.get("/q/kept?id=1")
    assert list(answer.headers) == [
        "content-type", "x-run-id", "x-row-count", "x-truncated", "cache-control", "etag", "vary", "date", "content-length",
    ]  # fmt: skip
    assert (answer.headers["cache-control"], answer.headers["etag"]) == ("private, max-age=5", etag(answer.content))
    known = {"If-None-Match": f'"other", W/{answer.headers["etag"]}'}
    for method in ("GET", "HEAD"):
        again = await api.ask(method, "/q/kept?id=1", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert list(again.headers) == ["x-run-id", "cache-control", "etag", "vary", "date"]
        run = api.memory.last
        assert (run.status, run.code, run.rows, run.bytes, run.id) == (304, "", 0, 0, again.headers["x-run-id"])
    # A POST is answered, and so is whoever has another body, or asks a query that nobody may keep.
    assert (await api.ask("POST", "/q/kept?id=1", headers=known)).status_code == 200
    assert (await api.get("/q/kept?id=1&format=csv", headers=known)).status_code == 200
    assert (await api.get("/q/one?id=1", headers=known)).status_code == 200
    api.answers.rows = [[b"1", b"bob@example.com"]]
    assert (await api.get("/q/kept?id=1", headers=known)).status_code == 200


async def test_a_large_answer_has_no_tag(api: Api) -> None:
    api.answers.rows = [[b"1", b"x" * LARGEST_BYTES]]
    answer = await api.get("/q/kept?id=1", headers={"If-None-Match": "*"})
    assert (answer.status_code, answer.headers["cache-control"], "etag" in answer.headers) == (200, "private", False)


async def test_several_rows_of_one_are_the_first_and_truncated(api: Api) -> None:
    api.answers.rows = [[b"1", None], [b"2", None], [b"3", None]]
    answer = await api.get("/q/one?id=1")
    assert answer.content == b'{"id":1,"email":null}'
    assert (answer.headers["x-row-count"], answer.headers["x-truncated"]) == ("1", "true")


async def several(api: Api, name: str, calls: object, **more: Any) -> httpx.Response:
    return await api.ask("POST", f"/q/{name}", json={"calls": calls}, **more)


async def test_several_calls_in_a_body(api: Api) -> None:
    answer = await several(api, "one", [{"id": 1}, {"id": 0}, 5, {"id": 2, "format": "csv"}, {}])
    assert list(answer.headers) == ["content-type", "cache-control", "vary", "date", "content-length"]
    assert answer.status_code == 200
    entries = answer.json()
    runs = [entry["run"] for entry in entries]
    assert [entry["status"] for entry in entries] == [200, 422, 400, 406, 422]
    assert answer.content.startswith(
        b'[{"status":200,"run":"' + runs[0].encode() + b'","rows":1,"truncated":false,"body":{"id":1,"email":"ann@example.com"}},'
    )
    assert [entry["body"]["code"] for entry in entries[1:]] == [
        "invalid_parameters",
        "malformed_body",
        "not_acceptable",
        "invalid_parameters",
    ]
    assert all(entry["body"]["instance"] == f"urn:tailrace:run:{entry['run']}" for entry in entries[1:])
    assert sorted(run.id for run in api.memory.runs.values()) == sorted(runs)
    assert len(set(runs)) == 5
    assert {run.key for run in api.memory.runs.values()} == {"retail/a"}
    assert [run.code for _, run in sorted(api.memory.runs.items())].count("") == 1


async def test_pages_and_large_answers_among_several(api: Api) -> None:
    api.answers.rows = [[b"%d" % n, b"a"] for n in range(9)]
    entries = (await several(api, "paged", [{"page_size": 2}, {"page_size": 9}])).json()
    assert (entries[0]["rows"], entries[0]["truncated"], entries[0]["next"][:16]) == (2, True, "/q/paged?cursor=")
    assert entries[1]["body"]["code"] == "invalid_parameters"
    api.answers.rows = [[b"1", b"x" * 20_000]]
    entries = (await several(api, "one", [{"id": 1}])).json()
    assert (entries[0]["status"], entries[0]["body"]["code"], api.memory.last.code) == (422, "answer_too_large", "answer_too_large")


@pytest.mark.parametrize(
    ("name", "calls", "more", "code"),
    [
        ("change", [{"id": 1}], {}, (422, "bulk_unsupported")),
        ("one", [{"id": 1}], {"params": {"id": "1"}}, (422, "bulk_unsupported")),
        ("one", [{"id": 1}], {"headers": {"Accept": "text/csv"}}, (406, "not_acceptable")),
        ("one", [], {}, (422, "bulk_size")),
        ("one", [{}] * 257, {}, (422, "bulk_size")),
        ("one", {"id": 1}, {}, (422, "invalid_parameters")),
        ("none", [{"id": 1}], {}, (404, "query_not_found")),
    ],
)
async def test_what_is_not_for_several(api: Api, name: str, calls: object, more: dict[str, Any], code: tuple[int, str]) -> None:
    answer = await several(api, name, calls, **more)
    assert problem_of(answer) == code
    assert [run.id for run in api.memory.runs.values()] == [answer.headers["x-run-id"]]


async def test_a_parameter_called_calls_keeps_its_meaning(api: Api) -> None:
    named = query("named", params=(ParamPlan(name="calls", type=ParamType.INTEGER, array=True),))
    more = (named, *QUERIES[1:])
    api.serving.tables = Tables(snapshot().model_copy(update={"queries": more}), SECRET)
    answer = await several(api, "named", [5])
    assert (answer.status_code, answer.content) == (200, b'{"id":1,"email":"ann@example.com"}')
    assert api.answers.asked[-1].values == (b'{"5"}',)


async def test_several_that_can_not_be_recorded(api: Api) -> None:
    api.memory.down = True
    entries = (await several(api, "one", [{"id": 1}, {"id": 0}])).json()
    assert [(entry["status"], entry["body"]["code"], "run" in entry) for entry in entries] == [(503, "spool_full", False)] * 2


async def test_no_row(api: Api) -> None:
    api.answers.rows = []
    assert problem_of(await api.get("/q/one?id=1")) == (404, "row_not_found")
    answer = await api.get("/q/maybe?id=1")
    assert (answer.status_code, answer.content, answer.headers["x-row-count"]) == (200, b"null", "0")
    assert (await api.get("/q/all")).content == b"[]"


@pytest.mark.parametrize(
    ("form", "kind", "body"),
    [
        ("json", "application/json", b'[{"id":1,"email":"a,b"},{"id":2,"email":null}]'),
        ("ndjson", "application/x-ndjson", b'{"id":1,"email":"a,b"}\n{"id":2,"email":null}\n{"$complete":{"rows":2,"truncated":false}}\n'),
        ("csv", "text/csv; charset=utf-8; header=present", b'id,email\r\n1,"a,b"\r\n2,\r\n'),
    ],
)
async def test_formats(api: Api, form: str, kind: str, body: bytes) -> None:
    api.answers.rows = [[b"1", b"a,b"], [b"2", None]]
    for answer in (await api.get(f"/q/all?format={form}"), await api.get("/q/all", headers={"Accept": kind.split(";")[0]})):
        assert answer.content == body
        assert answer.headers["content-type"] == kind
        assert ("x-row-count" in answer.headers, "content-length" in answer.headers) == (form == "json", form == "json")
        assert answer.headers["x-truncated"] == "false"
        assert (api.memory.last.rows, api.memory.last.bytes, api.memory.last.status) == (2, len(body), 200)


async def test_empty_streams_are_whole(api: Api) -> None:
    api.answers.rows = []
    assert (await api.get("/q/all?format=ndjson")).content == b'{"$complete":{"rows":0,"truncated":false}}\n'
    assert (await api.get("/q/all?format=csv")).content == b"id,email\r\n"


async def test_a_stream_that_fails_before_its_head_is_a_problem(api: Api) -> None:
    api.answers.failure = Failure.REFUSED
    assert problem_of(await api.get("/q/all?format=ndjson")) == (502, "database_error")


async def test_json_is_cut_at_ten_thousand_rows(api: Api) -> None:
    for count, truncated in ((10_000, "false"), (10_001, "true")):
        api.answers.rows = [[b"1", None]] * count
        answer = await api.get("/q/all")
        assert (answer.headers["x-row-count"], answer.headers["x-truncated"]) == ("10000", truncated)


async def test_json_without_bound_is_a_stream_with_the_bytes_of_a_whole_answer(api: Api) -> None:
    for count in (0, 1, 2, 9_999):
        api.answers.rows = [[b"%d" % n, None if n % 3 else b'"'] for n in range(count)]
        streamed, whole = await api.get("/q/endless"), await api.get("/q/all")
        assert streamed.content == whole.content
        assert list(streamed.headers) == ["content-type", "x-run-id", "x-truncated", "cache-control", "vary", "date"]
        assert (streamed.headers["content-type"], streamed.headers["x-truncated"]) == ("application/json", "false")
    api.answers.rows = [[b"1", None]] * 10_002
    assert len((await api.get("/q/endless")).json()) == api.memory.last.rows == 10_002
    assert api.answers.asked[-1].limit is None


async def test_of_several_answers_none_is_without_bound(api: Api) -> None:
    api.answers.rows = [[b"1", None]] * 2
    assert [entry["rows"] for entry in (await several(api, "endless", [{}])).json()] == [2]
    assert api.answers.asked[-1].limit == 10_001


async def test_json_that_fails_behind_its_head_is_not_json(api: Api) -> None:
    api.answers.after = Failure.REFUSED
    with pytest.raises(AssertionError):  # httpx misses the body's end.
        await api.get("/q/endless")
    assert (api.memory.last.status, api.memory.last.code, api.memory.last.rows) == (200, "database_error", len(api.answers.rows))


async def test_who_asked_for_a_streams_head_may_go_when_it_has_it(api: Api) -> None:
    """The record says 200 and all rows, as the data plane's does."""

    class Late(Answers):
        async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
            yield Rows([[b"1", b"ann@example.com"]])
            for _ in range(10):
                await asyncio.sleep(0)
            yield Rows([[b"2", b"bob@example.com"]])
            yield Done()

    api.serving._executors = {Engine.POSTGRES: Late()}
    has_head = asyncio.Event()
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, object]:
        for message in asked:
            return message
        await has_head.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        has_head.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "HEAD", "scheme": "http", "path": "/q/endless",
        "raw_path": b"/q/endless", "query_string": b"format=csv", "root_path": "", "client": ("127.0.0.1", 5),
        "server": ("t", 80), "headers": [(b"host", b"t"), (b"x-api-key", KEY.encode())],
    }  # fmt: skip
    await api.app(scope, receive, send)
    assert (api.memory.last.status, api.memory.last.code, api.memory.last.rows) == (200, "", 2)


async def test_of_a_stream_that_nobody_reads_one_piece_is_held(api: Api) -> None:
    class Counting(Answers):
        given = 0

        async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
            if ask.statement.sql == "SELECT":
                yield Rows([[b"1", b"ann@example.com"]])
            else:
                for _ in range(1000):
                    self.given += 1
                    yield Rows([[b"1", b"x" * 1000]] * 60)
            yield Done()

    counting = Counting()
    api.serving._executors = {Engine.POSTGRES: counting}
    sent: list[int] = []

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            sent.append(len(message["body"]))
            await asyncio.Event().wait()

    readers = []
    for form in ("json", "ndjson", "csv", "json", "ndjson", "csv", "json", "ndjson", "csv", "json"):
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/q/endless",
            "raw_path": b"/q/endless", "query_string": f"format={form}".encode(), "root_path": "", "client": ("127.0.0.1", 5),
            "server": ("t", 80), "headers": [(b"host", b"t"), (b"x-api-key", KEY.encode())],
        }  # fmt: skip
        readers.append(asyncio.ensure_future(api.app(scope, receive, send)))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (counting.given, len(sent)) == (10, 10)
    assert max(sent) < 1 << 17
    assert (await api.get("/q/one?id=1")).status_code == 200
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert counting.given == 10


async def test_pages(api: Api) -> None:
    api.answers.rows = [[b"1", None], [b"2", None], [b"3", None]]
    answer = await api.get("/q/paged?&page_size=2&&cursor=&format=json".replace("cursor=&", ""))
    assert answer.content == b'[{"id":1,"email":null},{"id":2,"email":null}]'
    assert answer.headers["x-truncated"] == "true"
    link = answer.headers["link"]
    assert link.startswith("</q/paged?page_size=2&format=json&cursor=")
    assert link.endswith('>; rel="next"')
    target = link[1 : link.index(">")]
    api.answers.rows = [[b"3", None]]
    answer = await api.get(target)
    assert api.answers.asked[-1].statement.sql == "NEXT"
    assert api.answers.asked[-1].values == (b"2", b"3")
    assert answer.content == b'[{"id":3,"email":null}]'
    assert "link" not in answer.headers
    assert answer.headers["x-truncated"] == "false"
    assert problem_of(await api.get(target + "x")) == (400, "invalid_cursor")
    posted = await api.ask("POST", "/q/paged", json={"page_size": 1})
    assert posted.headers.get("link") is None
    api.answers.rows = [[b"1", None], [b"2", None]]
    posted = await api.ask("POST", "/q/paged?page_size=1")
    assert posted.headers["link"].startswith("</q/paged?page_size=1&cursor=")
    posted = await api.ask("POST", "/q/paged", json={"page_size": 1})
    assert posted.headers["link"].startswith("</q/paged?cursor=")


async def test_a_cursor_is_bound_to_its_key_and_query(api: Api) -> None:
    api.answers.rows = [[b"1", None], [b"2", None], [b"3", None]]
    target = (await api.get("/q/paged")).headers["link"][1:].partition(">")[0]
    assert problem_of(await api.get(target, text="bound")) != (200, "")


async def test_head_is_get_without_its_body(api: Api) -> None:
    got, headed = await api.get("/q/one?id=1"), await api.ask("HEAD", "/q/one?id=1")
    assert headed.headers["content-length"] == got.headers["content-length"]
    assert api.memory.last.bytes == len(got.content)


async def test_writes(api: Api) -> None:
    answer = await api.ask("POST", "/q/change?id=5", headers={"Idempotency-Key": "k 1"})
    assert answer.content == b'{"affected":3}'
    assert answer.headers["x-row-count"] == "0"
    assert "x-truncated" not in answer.headers
    asked = api.answers.asked[0]
    assert asked.write
    assert asked.idempotency is not None
    assert (asked.idempotency.caller, asked.idempotency.key, asked.idempotency.query) == ("retail/a", "k 1", "change")
    assert asked.idempotency.arguments == hashlib.sha256(b"change\n\x00\x00\x00\x015").hexdigest()
    get = await api.get("/q/change?id=5")
    assert problem_of(get) == (405, "method_not_allowed")
    assert get.headers["allow"] == "POST, OPTIONS"
    for bad in ("", "é".encode(), "x" * 256):
        refused = await api.ask("POST", "/q/change?id=5", headers={"Idempotency-Key": bad})
        assert problem_of(refused) == (400, "invalid_idempotency_key")


async def test_masks(api: Api) -> None:
    assert (await api.get("/q/one?id=1", text="masked")).content == b'{"id":1,"email":"a***@example.com"}'


async def test_bindings(api: Api) -> None:
    await api.get("/q/tenants?id=1", text="bound")
    assert api.answers.asked[-1].values == (b"42", b"1")
    assert problem_of(await api.get("/q/tenants?id=1&tenant=7", text="bound")) == (422, "bound_parameter")
    assert problem_of(await api.get("/q/one?id=1", text="bound")) == (403, "forbidden")


async def test_all_key_failures_look_alike(api: Api) -> None:
    answers = [await api.get("/q/one?id=1", text=text) for text in (None, "", "unknown", "old", "early", "near", "x" * 600)]
    answers.append(await api.get("/q/one?id=1", headers={"Authorization": f"Bearer {KEY}"}))
    answers.append(await api.get("/q/one?id=1", text=None, headers={"Authorization": f"Basic {KEY}"}))
    answers.append(await api.get("/nothing", text=None))
    shapes = set()
    for answer in answers:
        assert problem_of(answer) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == 'Bearer realm="tailrace"'
        shapes.add((tuple(sorted(answer.headers)), answer.content.replace(answer.headers["x-run-id"].encode(), b"")))
    assert len(shapes) == 1
    assert (await api.get("/q/one?id=1", text=None, headers={"Authorization": f"bearer {KEY}"})).status_code == 200
    assert all(run.key == "" for run in list(api.memory.runs.values())[: len(answers)])


async def test_addresses() -> None:
    api = Api(trusted_proxies=("127.0.0.0/8", "10.9.0.0/16"))
    assert (await api.get("/q/one?id=1", text="near", peer="10.1.2.3")).status_code == 200
    assert (await api.get("/q/one?id=1", text="near", peer="::ffff:10.1.2.3")).status_code == 200
    assert (await api.get("/q/one?id=1", text="near", headers={"X-Forwarded-For": "1.1.1.1, 10.1.2.3, 10.9.0.1"})).status_code == 200
    assert (await api.get("/q/one?id=1", text="near", headers={"X-Forwarded-For": "10.1.2.3, 1.1.1.1"})).status_code == 401
    assert (await api.get("/q/one?id=1", text="near", peer="9.9.9.9", headers={"X-Forwarded-For": "10.1.2.3"})).status_code == 401
    assert (await api.get("/q/one?id=1", text="near", headers={"X-Tailrace-Client": "10.1.2.3"})).status_code == 401
    assert api.memory.last.client is ClientClass.LOOPBACK


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/q/nothing", (404, "query_not_found")),
        ("/q/private?id=1", (403, "forbidden")),
        ("/q/refused?id=1", (503, "query_refused")),
        ("/q/away?id=1", (503, "database_unavailable")),
        ("/q/leaky?id=1", (503, "query_refused")),
        ("/q/", (404, "not_found")),
        ("/q/one/", (404, "not_found")),
        ("/q", (404, "not_found")),
        ("/", (404, "not_found")),
        ("/docs", (404, "not_found")),
        ("/q/one?id=1&format=xml", (406, "not_acceptable")),
        ("/q/one", (422, "invalid_parameters")),
        ("/q/one?id=%zz", (400, "malformed_arguments")),
        ("/broken", (500, "internal_error")),
    ],
)
async def test_refusals(api: Api, path: str, code: tuple[int, str]) -> None:
    answer = await api.get(path)
    assert problem_of(answer) == code
    assert answer.text.find("secret detail") < 0
    run = api.memory.last
    assert (run.status, run.code, run.bytes, run.rows) == (*code, len(answer.content), 0)
    known = next((known for known in CODES if known.name == code[1]), None)
    assert known is not None
    assert answer.headers.get("retry-after") == (None if known.retry_after_s is None else str(known.retry_after_s))


async def test_existence_can_be_hidden() -> None:
    api = Api(hide_forbidden=True)
    hidden, missing = await api.get("/q/private?id=1"), await api.get("/q/nothing")
    assert problem_of(hidden) == problem_of(missing) == (404, "query_not_found")
    # What needs no key doesn't tell either.
    write, nothing = [await api.ask("OPTIONS", path, text=None) for path in ("/q/change", "/q/nothing")]
    assert write.headers["allow"] == nothing.headers["allow"] == "GET, HEAD, POST, OPTIONS"


async def test_encoded_paths(api: Api) -> None:
    assert (await api.get("/q/%6fne?id=1")).status_code == 200
    assert problem_of(await api.get("/q/a%2Fb")) == (404, "not_found")


async def test_order_of_checks(api: Api) -> None:
    """Each request has every later fault too."""
    later = {"Accept": "image/png", "Content-Type": "text/plain"}
    bad = {"headers": later, "content": b"{" * (1 << 20) + b"{"}
    assert problem_of(await api.ask("POST", "/q/private?id=x", text="unknown", **bad))[1] == "unauthorized"
    assert problem_of(await api.ask("PATCH", "/q/private?id=x", **bad))[1] == "forbidden"
    assert problem_of(await api.ask("PATCH", "/q/refused?id=x", **bad))[1] == "method_not_allowed"
    assert problem_of(await api.ask("POST", "/q/refused?id=x", **bad))[1] == "query_refused"
    assert problem_of(await api.ask("POST", "/q/one?id=x&cursor=1", **bad))[1] == "not_acceptable"
    bad["headers"] = {"Content-Type": "text/plain"}
    assert problem_of(await api.ask("POST", "/q/one?id=x&cursor=1", **bad))[1] == "unsupported_media_type"
    bad["headers"] = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert problem_of(await api.ask("POST", "/q/one?id=x&cursor=1", **bad))[1] == "unsupported_media_type"
    bad["headers"] = {"Content-Type": "application/json; charset=utf-8"}
    assert problem_of(await api.ask("POST", "/q/one?id=x&cursor=1", **bad))[1] == "body_too_large"
    bad["content"] = b"{"
    assert problem_of(await api.ask("POST", "/q/one?id=x&cursor=1", **bad))[1] == "malformed_body"
    answer = await api.ask("POST", "/q/one?id=x&cursor=1&zz=1&page_size=5", json={})
    assert problem_of(answer)[1] == "invalid_parameters"
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/id", "/page_size", "/cursor", "/zz"]


async def test_options_needs_no_key_and_leaves_no_run(api: Api) -> None:
    for path, allow in (("/q/one", "GET, HEAD, POST, OPTIONS"), ("/q/change", "POST, OPTIONS"), ("/anything", "GET, HEAD, POST, OPTIONS")):
        answer = await api.ask("OPTIONS", path, text=None)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allow, b"")
    assert not api.memory.runs


@pytest.mark.parametrize("failure", list(Failure))
async def test_failures(api: Api, failure: Failure) -> None:
    api.answers.failure = failure
    answer = await api.get("/q/one?id=1")
    assert problem_of(answer)[1] == failure.value
    assert api.memory.last.database_us == 7


async def test_values_that_cannot_be_read_are_a_database_error(api: Api) -> None:
    api.answers.rows = [[b"not a number", None]]
    assert problem_of(await api.get("/q/one?id=1")) == (502, "database_error")


async def test_nothing_leaves_unrecorded(api: Api) -> None:
    api.memory.down = True
    for path in ("/q/one?id=1", "/q/all?format=ndjson", "/catalog", "/q/nothing"):
        answer = await api.get(path)
        assert problem_of(answer) == (503, "spool_full")
        assert "x-run-id" not in answer.headers
        assert "ann@" not in answer.text


async def test_a_write_that_cannot_be_recorded_does_not_happen(api: Api) -> None:
    api.memory.down = True
    assert problem_of(await api.ask("POST", "/q/change?id=1")) == (503, "spool_full")
    assert api.answers.asked == []


async def test_a_write_that_happened_is_told_when_its_end_cannot_be_recorded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = api.memory.open

    async def fills(run: Run) -> None:
        await opened(run)
        api.memory.down = True

    monkeypatch.setattr(api.memory, "open", fills)
    answer = await api.ask("POST", "/q/change?id=1")
    assert (answer.status_code, answer.content) == (200, b'{"affected":3}')
    assert api.memory.runs[1].code == "open"


async def test_every_drawn_id_is_stored(api: Api) -> None:
    for path in ("/q/one?id=1", "/q/all?format=csv", "/nothing", "/broken", "/q/one", "/openapi.json"):
        await api.get(path)
    assert sorted(api.memory.runs) == list(range(1, api.memory.drawn + 1))


async def test_before_the_first_snapshot(api: Api) -> None:
    api.serving.tables = None
    assert problem_of(await api.get("/q/one?id=1", text=None)) == (503, "not_ready")


async def test_internal_errors_are_told_without_details(api: Api) -> None:
    await api.get("/broken")
    failed = [seen for seen in api.seen if seen.event is Event.CALL_FAILED]
    assert len(failed) == 1
    assert failed[0].fields["error"] == "RuntimeError"
    assert "secret detail" not in json.dumps(dict(failed[0].fields))


async def test_forwarded_calls_are_recorded_by_the_data_plane() -> None:
    api = Api(behind=True)
    run_id = "000001a2b3c4d5e6-00000000002a"
    headers = {"X-Tailrace-Run-Id": run_id, "X-Tailrace-Client": "10.1.1.1"}
    answer = await api.get("/catalog", text="near", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-run-id"] == run_id
    assert answer.headers["x-tailrace-key"] == "retail/near"
    assert not api.memory.runs
    answer = await api.get("/nothing", headers=headers)
    assert problem_of(answer) == (404, "not_found")
    assert answer.headers["x-tailrace-code"] == "not_found"
    await api.get("/q/one?id=1")
    assert api.memory.last.served_by is ServedBy.GATEWAY


async def test_traces(api: Api) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    await api.get("/q/one?id=1", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    assert api.memory.last.trace == trace
    assert api.answers.asked[-1].trace == f"00-{trace}-b7ad6b7169203331-01"
    await api.get("/q/one?id=1", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-00"})
    assert (api.memory.last.trace, api.answers.asked[-1].trace) == (trace, None)
    for bad in (f"00-{trace}-b7ad6b7169203331-0*", f"01-{trace}-b7ad6b7169203331-01", f"00-{'0' * 32}-b7ad6b7169203331-01"):
        await api.get("/q/one?id=1", headers={"traceparent": bad})
        assert (api.memory.last.trace, api.answers.asked[-1].trace) == ("", None)


async def test_server_timing_when_asked_for(api: Api) -> None:
    answer = await api.get("/q/one?id=1", headers={"Prefer": "respond-async, timing"})
    assert [part.partition(";")[0] for part in answer.headers["server-timing"].split(", ")] == ["auth", "queue", "db", "encode"]


async def test_recorded_parameters(api: Api) -> None:
    tables = api.serving.tables
    assert tables is not None
    plans = tuple(plan.model_copy(update={"record_params": plan.name == "tenants"}) for plan in tables.snapshot.queries)
    api.serving.tables = Tables(tables.snapshot.model_copy(update={"queries": plans}), SECRET)
    await api.get("/q/tenants?id=5")
    assert api.memory.last.params == '{"id":"5","tenant":null}'
    await api.get("/q/one?id=5")
    assert api.memory.last.params is None


async def test_a_swap_leaves_calls_under_way_on_their_tables(api: Api) -> None:
    class Swapping(Answers):
        async def stream(self, ask: Ask) -> AsyncGenerator[Rows | Done, None]:
            api.serving.tables = None
            yield Rows([[b"1", b"a"]])
            yield Done()

    api.serving._executors = {Engine.POSTGRES: Swapping()}
    assert (await api.get("/q/one?id=1")).status_code == 200
    assert (await api.get("/q/one?id=1")).status_code == 503


async def test_catalog_shows_what_the_key_may_call(api: Api) -> None:
    catalog = (await api.get("/catalog")).json()
    assert [entry["name"] for entry in catalog["queries"]] == ["one", "maybe", "all", "paged", "change", "tenants", "kept", "endless"]
    assert "SELECT" not in json.dumps(catalog)
    masked = (await api.get("/catalog", text="masked")).json()
    assert [(entry["name"], entry["columns"][1]["masked"]) for entry in masked["queries"]] == [("one", True)]
    bound = (await api.get("/catalog", text="bound")).json()
    assert [(entry["name"], [param["name"] for param in entry["params"]]) for entry in bound["queries"]] == [("tenants", ["id"])]


@pytest.mark.parametrize("text", [KEY, "masked", "bound"])
async def test_openapi_is_valid_and_filtered(api: Api, text: str) -> None:
    document = (await api.get("/openapi.json", text=text)).json()
    OpenAPIV31SpecValidator(document).validate()
    catalog = (await api.get("/catalog", text=text)).json()
    assert [path for path in document["paths"] if path.startswith("/q/")] == [entry["href"] for entry in catalog["queries"]]
    assert document["info"]["x-big-numbers"] == "number"


async def test_other_paths_take_get_and_head_only(api: Api) -> None:
    answer = await api.ask("POST", "/catalog")
    assert problem_of(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    headed, got = await api.ask("HEAD", "/catalog"), await api.get("/catalog")
    assert headed.headers["content-length"] == got.headers["content-length"]


def test_a_snapshot_that_contradicts_itself_is_refused() -> None:
    good = snapshot()
    wrong = [
        {"keys": (key("a/a", "x", role=9),)},
        {"keys": (key("a/a", "x"), key("a/b", "x"))},
        {"keys": (key("a/a", "x").model_copy(update={"sha256": ("zz",)}),)},
        {"keys": (key("a/a", "x", cidrs=("nonsense",)),)},
        {"roles": (RolePlan(name="r", grants=(Grant(query=99),)),), "keys": ()},
        {"roles": (RolePlan(name="r", grants=(Grant(query=0), Grant(query=0))),), "keys": ()},
        {"roles": (RolePlan(name="r", grants=(Grant(query=3, masks=(MaskPlan(column=0, with_=Mask.NULL),)),)),), "keys": ()},
        {"queries": (query("a", connection=4),), "roles": (), "keys": ()},
        {"queries": (query("a"), query("a")), "roles": (), "keys": ()},
        {"queries": (query("a", statement=StatementPlan(sql="", params=(3,), oids=(20,))),), "roles": (), "keys": ()},
        {"queries": (query("a", page=PAGE),), "roles": (), "keys": ()},
    ]
    Tables(good, SECRET)
    for change in wrong:
        with pytest.raises(SnapshotRefused):
            Tables(good.model_copy(update=change), SECRET)
