"""`GET /catalog`: the queries that a key may call. No SQL, no connection, nothing of other keys. Pure."""

from collections.abc import Iterator

from tailrace_contract.plan import Mask, ParamPlan

from tailrace_gateway.describe.schemas import column_schema, param_schema
from tailrace_gateway.serve.tables import Key, Query, Tables


def granted(tables: Tables, key: Key) -> Iterator[tuple[Query, dict[int, Mask]]]:
    """Queries that the key may call, in the snapshot's order, with the masks of its role by column."""
    masks = {grant.query: grant.masks for grant in tables.snapshot.roles[key.plan.role].grants}
    for query in tables.queries:
        sight = tables.sight(key, query)
        if sight is not None and not sight[0].refused and not query.refused:
            yield query, {mask.column: mask.with_ for mask in masks[query.index]}


def open_params(query: Query, key: Key) -> list[ParamPlan]:
    """Parameters that a caller may send: those that the key does not fix."""
    return [param for param in query.plan.params if param.name not in key.plan.bind]


def catalog(tables: Tables, key: Key) -> dict[str, object]:
    """The whole answer: `{"api", "bigNumbers", "queries": [{"name", "href", "methods", "returns", "params", "columns", "page"}]}`."""
    api = tables.snapshot.api
    return {
        "api": api.name,
        "namespace": api.namespace,
        "bigNumbers": api.big_numbers.value,
        "queries": [_entry(query, masks, key) for query, masks in granted(tables, key)],
    }


def _entry(query: Query, masks: dict[int, Mask], key: Key) -> dict[str, object]:
    plan = query.plan
    page = plan.page
    return {
        "name": plan.name,
        "version": plan.version,
        "href": f"/q/{plan.name}",
        "methods": ["POST"] if plan.write else ["GET", "HEAD", "POST"],
        "write": plan.write,
        "returns": plan.returns.value,
        "timeoutMs": plan.timeout_ms,
        "cacheTtlMs": plan.cache_ttl_ms,
        "unbounded": plan.unbounded,
        "params": [{"name": param.name, "required": param.required, "schema": param_schema(param)} for param in open_params(query, key)],
        "columns": [
            {"name": column.name, "masked": n in masks, "schema": column_schema(column, masks.get(n))}
            for n, column in enumerate(plan.columns)
        ],
        "page": None
        if page is None
        else {
            "keys": [{"name": plan.columns[one.column].name, "descending": one.descending} for one in page.keys],
            "defaultSize": page.default_size,
            "maxSize": page.max_size,
        },
    }
