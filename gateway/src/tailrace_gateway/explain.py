"""The admission lineage: for each query and key, what was decided ahead of the first call. Pure; never holds SQL, values or digests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace_contract.plan import KeyPlan, QueryPlan, Snapshot

from tailrace_gateway.compile.refusal import RefusedUnit
from tailrace_gateway.compile.spec import ApiSpec, QuerySpec

LANES = {
    "": "may be promoted to the shared lane once it has shown itself fast",
    "write": "a write runs on its own connection",
    "sqlite": "the database runs in process and has no shared connections",
    "unbounded_rows": "its answer has no bound",
    "large_pages": "its pages may have more than 1,000 rows",
    "volatile_function": "it calls a function whose result may differ each time",
}
"""Codes of `exclusiveBecause` for people; an unknown one is shown as it is."""

ALONE = {
    "": "callers that wait at the same moment share one statement",
    "off": "coalesce.mode is off",
    "write": "a write is never shared",
    "paged": "it has pages",
    "engine": "its engine has no shared statements",
    "pooler": "a pooler stands in front of the database",
    "exclusive": "it does not use the shared lane",
    "no_parameters": "it has no parameters",
    "not_probed": "the database's own parse tree could not be had (no TEMP right, or a standby)",
    "many_rows": "it returns many rows without a LIMIT of at most 100",
    "locks": "it locks rows",
    "row_security": "a table that it reads has row-level security",
    "array_type": "a parameter's type has no plain array type",
    "reserved_name": "the SQL or a table has a name that begins with tailrace_batch, or a name with escapes",
    "undecided": "what a view under it does can't be told",
    "volatile_function": "a view under it calls a function whose result may differ each time",
    "own_function": "a view under it calls a function that was not shipped with the server",
    "foreign_table": "a table under it is on another server",
    "plan_shape": "for several callers at once the database would not look up one after the other",
    "expensive": "one caller alone is too expensive by the planner's estimate",
    "not_prepared": "the database does not accept it for several callers at once",
    "other_shape": "for several callers at once the database describes other columns",
    "not_explained": "the database could not plan it",
    "sequential_scan": "for several callers at once the database would scan a table that one caller reaches by an index",
    "server_version": "the server is older than JSON_TABLE (MariaDB 10.6, MySQL 8.0)",
    "shape": "it is not one SELECT without grouping, DISTINCT, WITH or UNION",
    "join": "it joins otherwise than by inner and left joins of tables with ON",
    "not_proven": "its tables are not all plain tables",
    "limit": "its LIMIT is no constant of at least one row",
    "order": "its ORDER BY is not by columns of its tables",
    "order_not_total": "its ORDER BY does not tell any two rows apart, as far as can be proven",
    "parameter_type": "a parameter is neither integer, boolean, string nor uuid",
    "parameter_length": "a string has no maxLength of at most 1,000",
    "parameter_use": "a string is not just compared with a column, or a parameter stands in a LIMIT or a table of FROM",
    "collation": "a string is compared with a column that is not utf8mb4",
    "cost": "for several callers at once it would be planned far dearer",
}
"""Codes of `notCoalescedBecause` for people; an unknown one is shown as it is."""


GIVEN_UP = {
    "unequal": "one statement for several callers answered otherwise than one each",
    "shape": "its rows had another form than one caller's",
    "refused": "the database refused it again and again",
}
"""Why a data plane stopped (`uncoalesced` of docs/contract.md), for people; an unknown one is shown as it is."""


@dataclass(frozen=True, slots=True)
class Column:
    """One result column and what covers it (empty: nothing)."""

    name: str
    mask: str


@dataclass(frozen=True, slots=True)
class Admission:
    """What one key gets of one query. `refused`: the code when it gets nothing, with `hint`."""

    query: str
    key: str
    role: str
    refused: str = ""
    hint: str = ""
    connection: str = ""
    method: str = "GET"
    returns: str = ""
    tables: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    bound: tuple[str, ...] = ()
    lane: str = ""
    because: str = ""
    coalesced: bool = False
    alone: str = ""
    """Why calls share a statement, or don't."""
    timeout_ms: int = 0
    paged: bool = False
    unbounded: bool = False
    cache_ttl_ms: int | None = None
    place: str = ""


def admissions(
    snapshot: Snapshot, api: ApiSpec, refusals: tuple[RefusedUnit, ...], tables: Callable[[QuerySpec], tuple[str, ...]]
) -> Iterator[Admission]:
    """Every (query, key) that the key's role names, in the order of the files. Queries without a grant are left out: the default is refusal."""
    hints = {(unit.name, unit.role): unit.hint for unit in refusals}
    for position, query in enumerate(snapshot.queries):
        spec = api.queries[position]
        read = tables(spec)
        place = api.place_of("query", query.name)
        for key in snapshot.keys:
            role = snapshot.roles[key.role]
            grant = next((each for each in role.grants if each.query == position), None)
            if grant is None:
                continue
            refused = query.refused or grant.refused or _lacking(query, key)
            if refused:
                hint = hints.get((query.name, role.name)) or hints.get((query.name, ""), "")
                yield Admission(query.name, key.id, role.name, refused, hint, place=place)
                continue
            masks = {mask.column: mask.with_.value for mask in grant.masks}
            yield Admission(
                query.name,
                key.id,
                role.name,
                connection=snapshot.connections[query.connection].name,
                method="POST" if query.write else "GET",
                returns=query.returns.value,
                tables=read,
                columns=tuple(Column(column.name, masks.get(n, "")) for n, column in enumerate(query.columns)),
                bound=tuple(sorted(key.bind)),
                lane="shared" if query.shared else "exclusive",
                because=LANES.get(query.exclusive_because, query.exclusive_because),
                coalesced=query.coalesce is not None,
                alone=ALONE.get(query.not_coalesced_because, query.not_coalesced_because),
                timeout_ms=query.timeout_ms,
                paged=query.page is not None,
                unbounded=query.unbounded,
                cache_ttl_ms=query.cache_ttl_ms,
                place=place,
            )


def _lacking(query: QueryPlan, key: KeyPlan) -> str:
    """A query that does not declare all of a key's bound parameters is refused to it."""
    return "" if set(key.bind) <= {param.name for param in query.params} else "lacks_bound_parameter"
