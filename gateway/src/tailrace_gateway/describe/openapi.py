"""`GET /openapi.json`: OpenAPI 3.1 of what one key may call. Pure.

Parameters with types and bounds, answers by columns, encodings and the key's masks, every problem, both ways to send the key. Whether big
numbers are JSON numbers or strings is stated in `info`.
"""

from collections.abc import Iterable

from tailrace_contract.codes import CODES, Code, Fault
from tailrace_contract.plan import BigNumbers, Mask, Missing, ParamPlan, ParamType, Returns

from tailrace_gateway.describe.catalog import granted, open_params
from tailrace_gateway.describe.schemas import Schema, param_schema, row_schema
from tailrace_gateway.serve import bulk
from tailrace_gateway.serve.tables import Key, Query, Tables

Object = dict[str, object]

_BIG = {
    BigNumbers.NUMBER: "64-bit integers and decimals are JSON numbers with all their digits; read them with a parser that keeps them.",
    BigNumbers.STRING: "64-bit integers and decimals are JSON strings.",
}
_NOT_OF_QUERIES = frozenset({"malformed_request", "not_found", "client_closed", "bad_gateway"})
_OF_WRITES = frozenset(
    {"constraint_violation", "idempotency_in_progress", "idempotency_mismatch", "idempotency_unavailable", "invalid_idempotency_key"}
)


_OF_SEVERAL = frozenset({"bulk_size", "answer_too_large"})


def openapi(tables: Tables, key: Key) -> Object:
    """The document."""
    api = tables.snapshot.api
    paths: Object = {f"/q/{query.name}": _path(query, masks, key) for query, masks in granted(tables, key)}
    paths |= _own_paths()
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": api.name,
            "version": str(tables.version),
            "description": f"Governed SQL queries. {_BIG[api.big_numbers]}",
            "x-big-numbers": api.big_numbers.value,
        },
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {"Problem": _problem_schema()},
            "headers": _HEADERS,
        },
    }


_HEADERS: Object = {
    "X-Run-Id": {"description": "Identifies the recorded call.", "schema": {"type": "string", "pattern": "^[0-9a-f]{16}-[0-9a-f]{12}$"}},
    "X-Row-Count": {"description": "Rows in the body; absent on streams.", "schema": {"type": "integer", "minimum": 0}},
    "X-Truncated": {"description": "true if and only if there are more rows.", "schema": {"enum": ["true", "false"]}},
    "ETag": {
        "description": "Names the body exactly; absent over 1 MiB and on streams.",
        "schema": {"type": "string", "pattern": '^"[A-Za-z0-9_-]{22}"$'},
    },
    "Link": {"description": 'The next page (rel="next").', "schema": {"type": "string"}},
    "Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer", "minimum": 0}},
    "Allow": {"description": "Methods.", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "How to send a key.", "schema": {"type": "string"}},
}


def _problem_schema() -> Schema:
    text: Schema = {"type": "string"}
    return {
        "type": "object",
        "description": "RFC 9457.",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "instance": text,
            "code": {"enum": [code.name for code in CODES]},
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["pointer", "code", "detail"],
                    "properties": {"pointer": text, "code": {"enum": [fault.value for fault in Fault]}, "detail": text},
                },
            },
        },
    }


def _problems(codes: Iterable[Code]) -> Object:
    by_status: dict[int, list[Code]] = {}
    for code in codes:
        by_status.setdefault(code.status, []).append(code)
    answers: Object = {}
    for status, those in sorted(by_status.items()):
        names = {401: ["WWW-Authenticate"], 405: ["Allow"]}.get(status, []) + (
            ["Retry-After"] if any(c.retry_after_s for c in those) else []
        )
        answers[str(status)] = {
            "description": " · ".join(f"`{code.name}`: {code.detail}" for code in those),
            "headers": _headers(["X-Run-Id", *names]),
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return answers


def _headers(names: Iterable[str]) -> Object:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _query_codes(query: Query) -> list[Code]:
    plan = query.plan
    missing = plan.returns is Returns.ONE and plan.missing is Missing.ERROR
    return [
        code
        for code in CODES
        if code.name not in _NOT_OF_QUERIES
        and (plan.write or code.name not in _OF_WRITES)
        and (not plan.write or code.name not in _OF_SEVERAL)
        and (missing or code.name != "row_not_found")
        and (plan.page or code.name != "invalid_cursor")
    ]


def _path(query: Query, masks: dict[int, Mask], key: Key) -> Object:
    plan = query.plan
    params = open_params(query, key)
    answers: Object = {"200": _answer(query, masks), **_problems(_query_codes(query))}
    path: Object = {}
    if not plan.write:
        kept: Object = {"304": {"description": "The body that If-None-Match names holds still.", "headers": _headers(["X-Run-Id", "ETag"])}}
        path["get"] = {
            "operationId": plan.name,
            "summary": plan.name,
            "parameters": [_query_parameter(param) for param in params] + _reserved_parameters(query),
            "responses": answers if plan.cache_ttl_ms is None else answers | kept,
        }
    body: Schema = {
        "type": "object",
        "properties": {param.name: param_schema(param) for param in params} | _reserved(query),
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }
    if not plan.write and not query.spec.declares(bulk.MEMBER):
        several: Schema = {"type": "array", "items": body, "minItems": 1, "maxItems": bulk.CALLS_LIMIT}
        together: Schema = {
            "type": "object",
            "properties": {bulk.MEMBER: several},
            "required": [bulk.MEMBER],
            "additionalProperties": False,
        }
        body = {"anyOf": [body, together]}
        answers = {**answers, "200": _or_several(_answer(query, masks))}
    post: Object = {
        "operationId": plan.name if plan.write else f"{plan.name}_post",
        "summary": plan.name,
        "requestBody": {"required": any(param.required for param in params), "content": {"application/json": {"schema": body}}},
        "responses": answers,
    }
    if plan.write and query.connection.idempotency_table is not None:
        post["parameters"] = [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "A repeat with the same key and arguments gets the first answer; nothing runs twice.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        ]
    path["post"] = post
    return path


def _query_parameter(param: ParamPlan) -> Object:
    told: Object = {"name": param.name, "in": "query", "required": param.required}
    schema = param_schema(param.model_copy(update={"nullable": False}))
    if param.type is ParamType.JSON and not param.array:
        return told | {"content": {"application/json": {"schema": schema}}}
    return told | ({"style": "form", "explode": False} if param.array else {}) | {"schema": schema}


def _reserved(query: Query) -> dict[str, Schema]:
    reserved: dict[str, Schema] = {"format": {"enum": ["json", "ndjson", "csv"]}}
    if query.plan.page is not None:
        size: Schema = {"type": "integer", "minimum": 1, "maximum": query.plan.page.max_size, "default": query.plan.page.default_size}
        cursor: Schema = {"type": "string", "description": "From a Link header."}
        return {"page_size": size, "cursor": cursor, **reserved}
    return reserved


def _reserved_parameters(query: Query) -> list[Object]:
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in _reserved(query).items()]


def _answer(query: Query, masks: dict[int, Mask]) -> Object:
    plan = query.plan
    row = row_schema(plan.columns, masks)
    shape: Schema
    match plan.returns:
        case Returns.ONE:
            shape = row if plan.missing is Missing.ERROR else {"anyOf": [row, {"type": "null"}]}
        case Returns.MANY:
            shape = {"type": "array", "items": row}
        case Returns.NONE:
            shape = {
                "type": "object",
                "properties": {"affected": {"type": "integer", "minimum": 0}},
                "required": ["affected"],
                "additionalProperties": False,
            }
    names = ["X-Run-Id", "X-Row-Count"] + (["X-Truncated"] if plan.returns is not Returns.NONE else []) + (["Link"] if plan.page else [])
    names += ["ETag"] if plan.cache_ttl_ms is not None else []
    lines = 'One object a line, then the line {"$complete":{…}}; without it the stream did not finish.'
    return {
        "description": "The answer.",
        "headers": _headers(names),
        "content": {
            "application/json": {"schema": shape},
            "application/x-ndjson": {"schema": {"type": "string", "description": lines}},
            "text/csv": {"schema": {"type": "string", "description": "RFC 4180 with a header line."}},
        },
    }


def _or_several(answer: Object) -> Object:
    """The answer of a POST: that of one call, or those of several."""
    content = answer["content"]
    assert isinstance(content, dict)
    entry: Schema = {
        "type": "object",
        "required": ["status", "body"],
        "properties": {
            "status": {"type": "integer"},
            "run": {"type": "string"},
            "rows": {"type": "integer", "minimum": 0},
            "truncated": {"type": "boolean"},
            "next": {"type": "string", "description": "The next page: send its cursor with the same call."},
            "body": {"anyOf": [content["application/json"]["schema"], {"$ref": "#/components/schemas/Problem"}]},
        },
    }
    entries: Schema = {"type": "array", "description": "Of several calls in one body: one entry a call, in order.", "items": entry}
    one = content["application/json"]["schema"]
    return {**answer, "content": {**content, "application/json": {"schema": {"anyOf": [one, entries]}}}}


def _own_paths() -> Object:
    own = {
        "/catalog": ("catalog", "The queries that this key may call."),
        "/openapi.json": ("openapi", "This document."),
        "/history": ("history", "This key's runs, newest first."),
        "/usage": ("usage", "This key's calls by query and day."),
    }
    codes = [code for code in CODES if code.name in ("unauthorized", "internal_error", "not_ready", "method_not_allowed")]
    return {
        path: {
            "get": {
                "operationId": f"tailrace_{name}",
                "summary": summary,
                "responses": {
                    "200": {"description": summary, "headers": _headers(["X-Run-Id"]), "content": {"application/json": {"schema": {}}}},
                    **_problems(codes),
                },
            }
        }
        for path, (name, summary) in own.items()
    }
