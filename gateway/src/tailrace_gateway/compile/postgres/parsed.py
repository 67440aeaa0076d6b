"""What a PostgreSQL statement touches by its text alone: for standbys and roles without TEMP, where no probe can be made.

Much stricter than `lineage`: a column of a touched table counts as consumed wherever its name stands, except as a plain item of the outermost
select list, whose origin the server's description tells. Rejects (`RefusedError`) what it cannot resolve: unknown names and functions, set
operations over masked columns, databases with operators or casts of their own. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import Engine

from tailrace_gateway.compile.lexer import Kind, tokens
from tailrace_gateway.compile.lineage import Flow, Lineage, Origin
from tailrace_gateway.compile.postgres.catalog import Catalog
from tailrace_gateway.compile.postgres.lineage import Walked
from tailrace_gateway.compile.refusal import RefusedError

_NOT_CALLS = frozenset(
    [
        "all",
        "and",
        "any",
        "array",
        "as",
        "between",
        "by",
        "case",
        "cast",
        "check",
        "coalesce",
        "collate",
        "cross",
        "cube",
        "current_time",
        "current_timestamp",
        "distinct",
        "else",
        "end",
        "escape",
        "except",
        "exists",
        "extract",
        "fetch",
        "filter",
        "first",
        "for",
        "from",
        "full",
        "greatest",
        "group",
        "grouping",
        "having",
        "ilike",
        "in",
        "inner",
        "intersect",
        "interval",
        "into",
        "is",
        "join",
        "lateral",
        "least",
        "left",
        "like",
        "limit",
        "localtime",
        "localtimestamp",
        "materialized",
        "natural",
        "next",
        "not",
        "nullif",
        "offset",
        "on",
        "only",
        "or",
        "order",
        "outer",
        "over",
        "overlaps",
        "overlay",
        "partition",
        "position",
        "precision",
        "range",
        "recursive",
        "right",
        "rollup",
        "row",
        "rows",
        "select",
        "sets",
        "similar",
        "some",
        "substring",
        "table",
        "tablesample",
        "then",
        "trim",
        "union",
        "using",
        "values",
        "varchar",
        "char",
        "character",
        "bit",
        "numeric",
        "decimal",
        "float",
        "time",
        "timestamp",
        "varying",
        "when",
        "where",
        "window",
        "with",
        "within",
        "bernoulli",
        "system",
        "repeatable",
    ]
)
"""Words that may stand before a parenthesis and call nothing, or call what the grammar names."""
_SESSION_WORDS = frozenset({"current_user", "session_user", "user", "current_role", "current_catalog", "current_schema", "system_user"})
_PLAIN_CASTS = frozenset(exp.DType) - {exp.DType.USERDEFINED}


@dataclass(slots=True)
class _Names:
    """Names in a part of the statement: as written folded, and whether anything in it can mean more than names show."""

    found: set[str]
    everything: bool = False


def parsed(sql: str, catalog: Catalog, columns: Sequence[tuple[str, int, int, int]]) -> Walked:
    """Lineage by text. `columns` as described: (name, type, table OID, column number)."""
    if catalog.user_operators or catalog.user_casts:
        raise _undecided("the database has operators or casts of its own")
    _functions(sql, catalog)
    try:
        tree = sqlglot.parse_one(sql, dialect="postgres")
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise RefusedError(Refusal.NOT_PARSED, "the parser does not understand the statement") from None
    if not isinstance(tree, (exp.Query, exp.Values)):
        raise RefusedError(Refusal.NOT_READ_ONLY, "a saved query is one SELECT, VALUES or TABLE")
    for node in tree.walk():
        if isinstance(node, (exp.DML, exp.DDL, exp.Lock, exp.Into, exp.Command)) and not isinstance(node, exp.Query):
            raise RefusedError(Refusal.NOT_READ_ONLY, "a query without write: true changes and locks nothing")
        if isinstance(node, exp.Cast) and (not isinstance(node.to, exp.DataType) or node.to.this not in _PLAIN_CASTS):
            raise RefusedError(Refusal.FUNCTION_NOT_ALLOWED, "a cast to a type that was not shipped with the server")
    tables = _tables(tree, catalog)
    return Walked(_lineage(tree, tables, catalog, columns), frozenset(), volatile=True)


def _undecided(why: str) -> RefusedError:
    return RefusedError(Refusal.NOT_PARSED, f"without TEMP right on the database (or on a standby) the statement cannot be decided: {why}")


def _functions(sql: str, catalog: Catalog) -> None:
    """Every word before a parenthesis must be the grammar's own or name only listed functions; all functions of that name count."""
    words = [(token.kind, sql[token.start : token.end]) for token in tokens(sql, Engine.POSTGRES) if token.kind is not Kind.BLANK]
    for n, (kind, text) in enumerate(words):
        name = text.lower() if kind is Kind.WORD else text.strip('"')
        if kind is Kind.WORD and name in _SESSION_WORDS:
            raise RefusedError(Refusal.FUNCTION_NOT_ALLOWED, "names of users, the database and schemas are session facts")
        if kind is Kind.QUOTED and not text.startswith('"'):
            raise _undecided("a name in Unicode escapes")
        if kind is Kind.OPERATOR and n and words[n - 1][1].lower() == "operator":
            raise _undecided("an operator with a schema")
        called = kind in (Kind.WORD, Kind.QUOTED) and n + 1 < len(words) and words[n + 1][1] == "("
        attribute = kind in (Kind.WORD, Kind.QUOTED) and n > 0 and words[n - 1][1] == "."
        if not called or (kind is Kind.WORD and name in _NOT_CALLS and not attribute):
            if attribute and name in catalog.user_functions:
                raise RefusedError(
                    Refusal.FUNCTION_NOT_ALLOWED, "a name behind a point may call a function that was not shipped with the server"
                )
            continue
        if name not in catalog.user_functions and name not in catalog.shipped:
            continue  # no function has this name: it is a table's or WITH query's, before its column names
        if name in catalog.user_functions or not catalog.shipped[name]:
            raise RefusedError(Refusal.FUNCTION_NOT_ALLOWED, "a function is not surely one of those that queries may use")


def _tables(tree: exp.Expr, catalog: Catalog) -> dict[int, set[str]]:
    """OIDs of all tables in the text with their column names. A WITH query's name hides a table everywhere, which may only refuse more."""
    own = {cte.alias for cte in tree.find_all(exp.CTE)}
    found: dict[int, set[str]] = {}
    for node in tree.find_all(exp.Table):
        if not isinstance(node.this, exp.Identifier):
            continue
        parts = tuple(
            part.name if part.args.get("quoted") else part.name.lower() for part in (node.args.get("db"), node.this) if part is not None
        )
        oid = catalog.find(parts)
        if oid is not None:
            found[oid] = {attribute.name for attribute in catalog.relations[oid].attributes}
        elif len(parts) > 1 or parts[0] not in {name.lower() for name in own} | own:
            raise _undecided("a table's name")
    return found


def _names(parts: Iterable[exp.Expr], aliases: set[str]) -> _Names:
    names = _Names(set())
    for part in parts:
        for node in part.walk():
            if isinstance(node, (exp.Identifier, exp.Var)):
                names.found.add(node.name)
                names.found.add(node.name.lower())
            if isinstance(node, exp.Column) and not node.table and {node.name, node.name.lower()} & aliases:
                names.everything = True  # a whole row
            if isinstance(node, exp.Column) and isinstance(node.this, exp.Star) and not isinstance(node.parent, exp.Select):
                names.everything = True
            if isinstance(node, (exp.TableAlias,)) and node.args.get("columns"):
                names.everything = True
            if isinstance(node, exp.Join) and node.args.get("method"):
                names.everything = True
            if isinstance(node, exp.SetOperation):
                names.everything = True
    return names


def _lineage(tree: exp.Expr, tables: dict[int, set[str]], catalog: Catalog, columns: Sequence[tuple[str, int, int, int]]) -> Lineage:
    every: set[Origin] = {(oid, attribute.number) for oid in tables for attribute in catalog.relations[oid].attributes}
    if not isinstance(tree, exp.Select):
        return Lineage((Flow(computed=frozenset(every)),) * len(columns), frozenset(every), frozenset(tables))
    aliases = {
        name
        for node in tree.find_all(exp.Table, exp.Subquery, exp.CTE)
        for name in (node.alias_or_name, node.alias_or_name.lower())
        if name
    }
    plain = [item for item in tree.expressions if _is_plain(item, aliases)]
    rest = [child for child in tree.iter_expressions() if not any(child is item for item in plain)]
    names = _names(rest, aliases)
    origins: list[Flow] = []
    consumed: set[Origin] = {
        (oid, attribute.number)
        for oid in tables
        for attribute in catalog.relations[oid].attributes
        if names.everything or attribute.name in names.found
    }
    described: set[Origin] = {(table, number) for _, _, table, number in columns if table}
    labels = {name for name, *_ in columns}
    ordered = {
        each
        for part in ("order", "group", "distinct")
        if (clause := tree.args.get(part)) is not None
        for each in clause.find_all(exp.Literal)
    }
    if tree.args.get("distinct") is not None or ordered or tree.args.get("windows"):
        consumed |= described
    for name, _, table, number in columns:
        if table and name in names.found & labels:
            consumed.add((table, number))
        if table:
            origins.append(Flow(frozenset({(table, number)})))
        else:
            origins.append(Flow(computed=frozenset(every)))
    return Lineage(tuple(origins), frozenset(consumed), frozenset(tables))


def _is_plain(item: exp.Expr, aliases: set[str]) -> bool:
    """A column or star of the select list, with or without a new name; not a whole row."""
    inner = item.this if isinstance(item, exp.Alias) else item
    if isinstance(inner, exp.Star):
        return not any(inner.args.values())
    if not isinstance(inner, exp.Column):
        return False
    return isinstance(inner.this, exp.Star) or bool(inner.table) or not {inner.name, inner.name.lower()} & aliases
