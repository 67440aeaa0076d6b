"""A statement's syntax tree (sqlglot) over a MySQL catalog → where each column goes.

Rejects (`RefusedError`, not_parsed) what it cannot decide. Where a name could mean two things, both count. Pure. The walk is SQLite's; what differs
is how tables are named and joined, and what can fail. `database` holds the result against the columns that the server describes.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp
from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lineage import Flow, Lineage, Origin, computed
from tailrace_gateway.compile.mysql.catalog import Catalog
from tailrace_gateway.compile.mysql.functions import INFALLIBLE_NAMES
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.sqlite.lineage import Walker
from tailrace_gateway.compile.sqlite.scope import Columns, Cte, Scope, Source, lower, undecided

_INFALLIBLE = (
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.NullSafeEQ, exp.Between, exp.In, exp.Xor),
    *(exp.Concat, exp.ConcatWs, exp.Like, exp.Tuple, exp.Lower, exp.Upper, exp.Length, exp.Trim, exp.Substring, exp.StrPosition),
    *(
        exp.Coalesce,
        exp.Nullif,
        exp.Hex,
        exp.Unhex,
        exp.Max,
        exp.Min,
        exp.Count,
        exp.GroupConcat,
        exp.Greatest,
        exp.Least,
        exp.MD5,
        exp.SHA,
    ),
    *(exp.SHA2, exp.Left, exp.Right, exp.Date, exp.Year, exp.Month, exp.Day, exp.TimeToStr, exp.TsOrDsToTimestamp, exp.TsOrDsToDate),
    *(
        exp.RowNumber,
        exp.Lag,
        exp.Lead,
        exp.FirstValue,
        exp.LastValue,
        exp.DataType,
        exp.DataTypeParam,
        exp.Distinct,
        exp.Cast,
        exp.Introducer,
    ),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.HexString, exp.BitString, exp.National, exp.CharacterSet),
)
"""Nodes that no value inside makes fail: arithmetic is not among them, it goes out of range."""


def walk(tree: exp.Expr, catalog: Catalog) -> tuple[Lineage, list[str]]:
    """Lineage of a whole statement, and its result names in lower case."""
    walker = _MysqlWalker(catalog)
    try:
        if isinstance(tree, (exp.Query, exp.Values)):
            columns = walker.query(tree, {}, None)
        elif isinstance(tree, (exp.Insert, exp.Update, exp.Delete)):
            columns = walker.write(tree)
        else:
            raise RefusedError(
                Refusal.NOT_READ_ONLY, "a saved query is one SELECT or VALUES; with write: true one INSERT, UPDATE or DELETE"
            )
    except RecursionError:
        raise undecided("it is nested too deeply") from None
    lineage = Lineage(tuple(flow for _, flow in columns), frozenset(walker.consumed), frozenset(walker.tables), frozenset(walker.written))
    return lineage, [name for name, _ in columns]


class _MysqlWalker(Walker):
    """Queries and writes of MySQL."""

    catalog: Catalog

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.catalog = catalog
        self._written_as: dict[int, str] = {}
        """Names of WITH queries as they are written, by identity: the server may tell `Q` from `q`."""

    def expression(self, node: exp.Expr, scope: Scope) -> Flow:
        """As on SQLite, but that a sub-query for a value fails when it has several rows."""
        if isinstance(node, exp.JSONTable) or (isinstance(node, exp.Anonymous) and str(node.this).lower() == "json_table"):
            raise RefusedError(Refusal.FUNCTION_NOT_ALLOWED, "JSON_TABLE stands in FROM only")
        is_query = isinstance(node, (exp.Subquery, exp.Select, exp.SetOperation))
        if is_query and not isinstance(node.parent, (exp.In, exp.Any, exp.All)) and not _is_one_row(node):
            self.risks += 1
        return super().expression(node, scope)

    def _infallible(self, node: exp.Expr) -> bool:
        if isinstance(node, exp.Anonymous):
            return str(node.this).lower() in INFALLIBLE_NAMES
        return isinstance(node, _INFALLIBLE)

    def _bare_columns(self, node: exp.Select, scope: Scope, groups: Sequence[exp.Expr]) -> None:
        """MySQL takes bare columns from any row, whatever the aggregates."""

    def _with(self, node: exp.Expr, ctes: Mapping[str, Cte], parent: Scope | None) -> Mapping[str, Cte]:
        """A WITH query sees those before it; only under RECURSIVE itself: `WITH t AS (SELECT … FROM t)` reads the table."""
        clause = node.args.get("with_")
        if clause is None:
            return ctes
        recursive = bool(clause.args.get("recursive"))
        known = dict(ctes)
        mine = []
        for each in clause.expressions:
            alias = each.args["alias"]
            name = alias.this.name
            if recursive and self.catalog.named("", name) is not None:
                raise undecided("a recursive WITH query has the name of a table")
            cte = Cte(each.this, [lower(column) for column in alias.args.get("columns") or ()], known if recursive else dict(known), parent)
            self._written_as[id(cte)] = name
            known[name.lower()] = cte
            mine.append(cte)
        for cte in mine:
            self._cte(cte)
        return known

    # FROM

    def _from(self, node: exp.Expr, scope: Scope) -> None:
        first = node.args.get("from_")
        if first is None:
            if node.args.get("joins"):
                raise undecided("a join without a table")
            return
        self._joined(first.this, scope)
        for join in node.args.get("joins") or ():
            self._join(join, scope)

    def _joined(self, node: exp.Expr, scope: Scope) -> None:
        """A table and what is joined to it; views write joins in parentheses."""
        if isinstance(node, exp.Subquery) and isinstance(node.this, (exp.Table, exp.Subquery)) and not node.alias:
            self._joined(node.this, scope)
        else:
            self._add(node, scope)
        for join in node.args.get("joins") or ():
            self._join(join, scope)

    def _join(self, join: exp.Expr, scope: Scope) -> None:
        if any(value for name, value in join.args.items() if name not in ("this", "on", "using", "method", "side", "kind")):
            raise undecided("a join is not known")
        before = list(scope.sources)
        self._joined(join.this, scope)
        added = scope.sources[len(before) :]
        shared = [lower(each) for each in join.args.get("using") or ()]
        if str(join.args.get("method") or "").upper() == "NATURAL":
            mine = {name for source in added for name, _ in source.columns}
            shared = [name for each in before for name, _ in each.columns if name in mine]
        if shared and len(added) != 1:
            raise undecided("USING or NATURAL with a join in parentheses")
        if shared and str(join.args.get("side") or "").upper() == "RIGHT":
            raise undecided("USING or NATURAL in a right join: its columns stand in another order")
        for name in dict.fromkeys(shared):
            self.consume(computed([flow for each in (*before, *added) for column, flow in each.columns if column == name]))
            added[0].hidden.add(name)
        if join.args.get("on") is not None:
            self.consume(self.expression(join.args["on"], scope))

    def _add(self, node: exp.Expr, scope: Scope) -> None:
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery) and not node.args.get("view"):
            self._no_column_names(node)
            around = Scope(list(scope.sources), scope.ctes, scope.parent)
            scope.sources.append(Source(node.alias.lower(), self.query(node.this, scope.ctes, around)))
        elif isinstance(node, exp.Subquery):
            scope.sources.append(Source(node.alias.lower(), self.query(_bare(node), scope.ctes, scope.parent)))
            self._no_column_names(node)
        elif isinstance(node, exp.Table):
            scope.sources.append(self._table(node, scope))
        else:
            raise undecided(f"a {type(node).__name__} in FROM")

    def _table(self, node: exp.Table, scope: Scope) -> Source:
        self._no_column_names(node)
        if any(value for name, value in node.args.items() if name not in ("this", "alias", "db", "joins", "hints")):
            raise undecided("a table has a part that is not known")
        if isinstance(node.this, exp.JSONTable):
            return self._json_table(node, scope)
        if not isinstance(node.this, exp.Identifier):
            raise RefusedError(Refusal.TABLE_NOT_ALLOWED, "a table-valued function is not one that queries may use")
        name, schema = node.name, node.db
        alias = node.alias.lower()
        if not schema and name.lower() in scope.ctes:
            cte = scope.ctes[name.lower()]
            if self._written_as.get(id(cte)) != name:
                raise undecided("a WITH query is named in other letters")
            return Source(alias or name.lower(), list(self._cte(cte)))
        if not schema and name.lower() == "dual":
            return Source("", [])
        table = self.catalog.named(schema, name)
        if table is None:
            raise RefusedError(Refusal.TABLE_NOT_ALLOWED, "a table is none that the connection's user sees, or the server's own")
        self.tables.add(table.name)
        return Source(alias or name.lower(), [(column.name, self._stored(table, column.name)) for column in table.columns], table)

    def _json_table(self, node: exp.Table, scope: Scope) -> Source:
        """Its rows are made of its argument: how many there are tells of it, so it is consumed."""
        table = node.this
        around = Scope(list(scope.sources), scope.ctes, scope.parent)
        flow = self.expression(table.this, around)
        self.consume(flow)
        columns: Columns = []
        schema = table.args.get("schema")
        for each in schema.expressions if schema is not None else ():
            if not isinstance(each, exp.JSONColumnDef) or each.args.get("nested_schema"):
                raise undecided("a column of JSON_TABLE is not known")
            columns.append((lower(each), flow.opaque()))
        return Source(node.alias.lower(), columns)

    # Names

    def _result(self, expressions: Iterable[exp.Expr], scope: Scope) -> Columns:
        """An expression without an alias has no name that the author gave it."""
        columns: Columns = []
        for each in expressions:
            found = super()._result([each], scope)
            is_named = isinstance(each, (exp.Alias, exp.Column, exp.Star))
            columns += found if is_named else [("", flow) for _, flow in found]
        return columns

    def _column(self, node: exp.Column, scope: Scope) -> Flow:
        """`schema.table.column` is a column of that table; else as in SQLite."""
        if node.args.get("db") is None:
            return super()._column(node, scope)
        if node.args.get("catalog") is not None:
            raise undecided("a column of a catalog")
        key, name = self.catalog.key(node.db, node.table), node.name.lower()
        around: Scope | None = scope
        while around is not None:
            flows = [
                flow
                for source in around.sources
                if source.table is not None and source.table.name == key and source.alias == node.table.lower()
                for column, flow in source.columns
                if column == name
            ]
            if flows:
                return self._saw(flows[0])
            around = around.parent
        raise undecided("a column's name belongs to no table")

    # Writes

    def write(self, node: exp.Expr) -> Columns:
        """See `Walker`; the key of a written table is the catalog's."""
        if node.args.get("with_") is not None or (isinstance(node, exp.Update) and node.this.args.get("joins")):
            raise undecided("a clause of the write is not known")
        columns = super().write(node)
        target = node.this.this if isinstance(node.this, exp.Schema) else node.this
        table = self.catalog.named(target.db, target.name)
        self.written = {table.name} if table is not None else set()
        return columns

    def _insert(self, node: exp.Insert, scope: Scope, ctes: Mapping[str, Cte]) -> None:
        values = node.args.get("expression")
        if values is not None:
            for _, flow in self.query(values, ctes, None):
                self.consume(flow)
        conflict = node.args.get("conflict")
        for each in conflict.expressions if conflict is not None else ():
            self.consume(self.expression(each.expression, scope))


def _is_one_row(node: exp.Expr) -> bool:
    """Surely at most one row: an aggregate without groups, or LIMIT 1."""
    while isinstance(node, exp.Subquery):
        node = node.this
    if not isinstance(node, exp.Select):
        return False
    limit = node.args.get("limit")
    if limit is not None and isinstance(limit.expression, exp.Literal) and limit.expression.name in ("0", "1"):
        return True
    whole = node.args.get("group") is None and len(node.expressions) == 1
    return whole and any(
        each.find_ancestor(exp.Select) is node and not isinstance(each.parent, exp.Window)
        for each in node.expressions[0].find_all(exp.AggFunc)
    )


def _bare(node: exp.Subquery) -> exp.Expr:
    """The query itself: a table's alias is no part of it."""
    if any(node.args.get(name) for name in ("order", "limit", "offset", "with_", "where", "pivots")):
        raise undecided("a part stands behind a sub-query")
    return node.this if isinstance(node.this, exp.Expr) else node


def origins(schema: str, table: str, column: str, catalog: Catalog) -> Origin | None:
    """A result column's origin as the server names it; None for what is no table of ours."""
    known = catalog.named(schema, table)
    return (known.name, column.lower()) if known is not None and known.column(column.lower()) is not None else None
