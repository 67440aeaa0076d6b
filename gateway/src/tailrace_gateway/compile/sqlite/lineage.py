"""A statement's syntax tree (sqlglot) over a SQLite schema → where each column goes.

Rejects (`RefusedError`, not_parsed) what it cannot decide: names that resolve to nothing, parts it doesn't know. Where a name could mean two
things, both count. Pure. `database` holds the result against the authorizer, the opened b-trees and the column origins of SQLite itself.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp
from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lineage import EMPTY, Flow, Lineage, Origin, computed
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.sqlite.catalog import TABLE_FUNCTIONS, Catalog
from tailrace_gateway.compile.sqlite.expressions import SAME_VALUE, ExpressionWalker
from tailrace_gateway.compile.sqlite.scope import Columns, Cte, Scope, Source, lower, undecided


def walk(tree: exp.Expr, catalog: Catalog) -> tuple[Lineage, frozenset[Origin], list[str]]:
    """Lineage of a whole statement, every column that it names, and its result names."""
    walker = Walker(catalog)
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
    return lineage, frozenset(walker.seen), [name for name, _ in columns]


class Walker(ExpressionWalker):
    """Queries and writes."""

    # Queries

    def query(self, node: exp.Expr, ctes: Mapping[str, Cte], parent: Scope | None) -> Columns:
        """Result columns of SELECT, VALUES or a compound of them."""
        if isinstance(node, exp.Subquery):
            if any(node.args.get(name) for name in ("order", "limit", "offset", "with_", "joins", "where")) or node.args.get("pivots"):
                raise undecided("a part stands behind a sub-query")
            return self.query(node.this, ctes, parent)
        scope_ctes = self._with(node, ctes, parent)
        if isinstance(node, exp.SetOperation):
            columns = self._compound(node, scope_ctes, parent)
        elif isinstance(node, exp.Values):
            columns = self._values(node, scope_ctes, parent)
        elif isinstance(node, exp.Select):
            return self._select(node, scope_ctes, parent)
        else:
            raise undecided(f"a {type(node).__name__} is no query")
        scope = Scope([Source("", columns)], scope_ctes, parent)
        self._tail(node, scope, columns)
        return columns

    def _with(self, node: exp.Expr, ctes: Mapping[str, Cte], parent: Scope | None) -> Mapping[str, Cte]:
        clause = node.args.get("with_")
        if clause is None:
            return ctes
        known = dict(ctes)
        mine: list[Cte] = []
        for each in clause.expressions:
            alias = each.args["alias"]
            cte = Cte(each.this, [lower(column) for column in alias.args.get("columns") or ()], known, parent)
            known[lower(alias.this)] = cte
            mine.append(cte)
        for cte in mine:
            self._cte(cte)
        return known

    def _cte(self, cte: Cte) -> Columns:
        if cte.busy:
            if cte.columns is None:  # the first look at itself: what the first arm shows, with nothing in it
                arm = cte.node
                while isinstance(arm, exp.SetOperation):
                    arm = arm.this
                names = cte.names or [name for name, _ in self.query(arm, cte.ctes, cte.parent)]
                cte.columns = [(name, EMPTY) for name in names]
            return cte.columns
        if cte.columns is None:
            cte.busy = True
            while True:
                found = self.query(cte.node, cte.ctes, cte.parent)
                if cte.names:
                    if len(cte.names) != len(found):
                        raise undecided("a WITH query has another number of columns than names")
                    found = [(name, flow) for name, (_, flow) in zip(cte.names, found, strict=True)]
                if cte.columns is None or [flow for _, flow in cte.columns] == [flow for _, flow in found]:
                    break
                cte.columns = [(name, flow.either(old)) for (name, flow), (_, old) in zip(found, cte.columns, strict=True)]
            cte.columns = found
            cte.busy = False
        return cte.columns

    def _compound(self, node: exp.SetOperation, ctes: Mapping[str, Cte], parent: Scope | None) -> Columns:
        left, right = self.query(node.this, ctes, parent), self.query(node.expression, ctes, parent)
        if len(left) != len(right):
            raise undecided("the arms have different numbers of columns")
        both = [(name, one.either(other)) for (name, one), (_, other) in zip(left, right, strict=True)]
        if not isinstance(node, exp.Union) or node.args.get("distinct") is not False:
            for _, flow in both:
                self.consume(flow)
        return both

    def _values(self, node: exp.Values, ctes: Mapping[str, Cte], parent: Scope | None) -> Columns:
        scope = Scope([], ctes, parent)
        rows = [
            [self.expression(each, scope) for each in (row.expressions if isinstance(row, exp.Tuple) else [row])]
            for row in node.expressions
        ]
        if len({len(row) for row in rows}) != 1:
            raise undecided("rows of different lengths")
        flows = rows[0]
        for row in rows[1:]:
            flows = [one.either(other) for one, other in zip(flows, row, strict=True)]
        return [(f"column{n}", flow) for n, flow in enumerate(flows, 1)]

    def _select(self, node: exp.Select, ctes: Mapping[str, Cte], parent: Scope | None) -> Columns:
        known = {
            *(
                "with_",
                "distinct",
                "expressions",
                "limit",
                "offset",
                "from_",
                "joins",
                "where",
                "group",
                "having",
                "order",
                "windows",
                "kind",
                "hint",
            ),
            *("operation_modifiers", "into"),
        }
        if unknown := [name for name, value in node.args.items() if value and name not in known] or node.args.get("into"):
            raise undecided(f"a clause is not known ({unknown})")
        scope = Scope([], ctes, parent)
        self._from(node, scope)
        scope.windows = {lower(window.this): window for window in node.args.get("windows") or ()}
        columns = self._result(node.expressions, scope)
        scope.aliases = {each.alias.lower(): self.expression(each.this, scope) for each in node.expressions if isinstance(each, exp.Alias)}
        if node.args.get("distinct"):
            for _, flow in columns:
                self.consume(flow)
        for window in node.args.get("windows") or ():
            self._window_parts(window, scope)
        for name in ("where", "having"):
            if node.args.get(name) is not None:
                self.consume(self.expression(node.args[name].this, scope))
        group = node.args.get("group")
        if group is not None:
            if any(value for name, value in group.args.items() if name != "expressions"):
                raise undecided("a grouping is not known")
            for each in group.expressions:
                self.consume(self._by_position(each, scope, columns))
        self._bare_columns(node, scope, group.expressions if group is not None else [])
        self._tail(node, scope, columns)
        return columns

    def _bare_columns(self, node: exp.Select, scope: Scope, groups: Sequence[exp.Expr]) -> None:
        """With min() or max() SQLite takes bare columns from the row that has it: they tell which one that is."""
        inside = [*node.expressions, *(node.args[name] for name in ("having", "order") if node.args.get(name) is not None)]
        extremes = [
            each
            for part in inside
            for each in part.find_all(exp.Max, exp.Min)
            if not each.expressions and each.find_ancestor(exp.Select) is node and not isinstance(each.parent, exp.Window)
        ]
        if not extremes:
            return
        keys = {each.sql("sqlite").lower() for each in groups}
        for part in inside:
            for column in part.find_all(exp.Column, exp.Star):
                if (
                    column.find_ancestor(exp.Select) is node
                    and column.find_ancestor(exp.AggFunc) is None
                    and column.sql("sqlite").lower() not in keys
                ):
                    for extreme in extremes:
                        self.consume(self.expression(extreme.this, scope))
                    return

    def _tail(self, node: exp.Expr, scope: Scope, columns: Columns) -> None:
        """ORDER BY, LIMIT and OFFSET."""
        order = node.args.get("order")
        for each in order.expressions if order is not None else ():
            self.consume(self._by_position(each.this if isinstance(each, exp.Ordered) else each, scope, columns))
        for name in ("limit", "offset"):
            if node.args.get(name) is not None:
                clause = node.args[name]
                for part in (clause.args.get("expression"), clause.args.get("offset"), *(clause.expressions or ())):
                    if part is not None:
                        self.consume(self.expression(part, scope))

    def _by_position(self, node: exp.Expr, scope: Scope, columns: Columns) -> Flow:
        """`ORDER BY 2` is a result column; a name is the result column, the table's column, or both."""
        inner = node
        while isinstance(inner, (*SAME_VALUE, exp.Ordered)):
            inner = inner.this
        if isinstance(inner, exp.Literal) and not inner.is_string and inner.name.isdigit():
            number = int(inner.name)
            return columns[number - 1][1] if 0 < number <= len(columns) else EMPTY
        named = [flow for name, flow in columns if isinstance(inner, exp.Column) and not inner.table and name == inner.name.lower()]
        if named:
            return computed([*named, self._maybe(inner, scope)])
        return self.expression(node, scope)

    # FROM

    def _from(self, node: exp.Expr, scope: Scope) -> None:
        first = node.args.get("from_")
        if first is None:
            if node.args.get("joins"):
                raise undecided("a join without a table")
            return
        self._add(first.this, scope)
        for join in [*(first.this.args.get("joins") or ()), *(node.args.get("joins") or ())]:
            if any(value for name, value in join.args.items() if name not in ("this", "on", "using", "method", "side", "kind")):
                raise undecided("a join is not known")
            before = list(scope.sources)
            self._add(join.this, scope)
            if join.this.args.get("joins"):
                raise undecided("joins inside a join")
            source = scope.sources[-1]
            shared = [lower(each) for each in join.args.get("using") or ()]
            if str(join.args.get("method") or "").upper() == "NATURAL":
                mine = {name for name, _ in source.columns}
                shared = [name for each in before for name, _ in each.columns if name in mine]
            for name in dict.fromkeys(shared):
                self.consume(computed([flow for each in (*before, source) for column, flow in each.columns if column == name]))
                source.hidden.add(name)
            if join.args.get("on") is not None:
                self.consume(self.expression(join.args["on"], scope))

    def _add(self, node: exp.Expr, scope: Scope) -> None:
        if isinstance(node, exp.Subquery):
            if isinstance(node.this, exp.Table) or node.args.get("joins"):
                raise undecided("a join in parentheses")
            scope.sources.append(Source(node.alias.lower(), self.query(node, scope.ctes, scope.parent)))
            self._no_column_names(node)
        elif isinstance(node, exp.Values):
            scope.sources.append(Source(node.alias.lower(), self._values(node, scope.ctes, scope.parent)))
            self._no_column_names(node)
        elif isinstance(node, exp.Table):
            scope.sources.append(self._table(node, scope))
        else:
            raise undecided(f"a {type(node).__name__} in FROM")

    def _no_column_names(self, node: exp.Expr) -> None:
        alias = node.args.get("alias")
        if isinstance(alias, exp.TableAlias) and alias.args.get("columns"):
            raise undecided("names of columns behind a table")

    def _table(self, node: exp.Table, scope: Scope) -> Source:
        self._no_column_names(node)
        if any(value for name, value in node.args.items() if name not in ("this", "alias", "db", "joins")):
            raise undecided("a table has a part that is not known")
        alias = node.alias.lower()
        if isinstance(node.this, exp.Anonymous):
            name = str(node.this.this).lower()
            if name not in TABLE_FUNCTIONS:
                raise RefusedError(Refusal.TABLE_NOT_ALLOWED, "a table-valued function is not one that queries may use")
            flow = computed([self.expression(each, scope) for each in node.this.expressions])
            self.consume(flow)
            return Source(alias or name, [(column, flow) for column in TABLE_FUNCTIONS[name]])
        name, schema = lower(node.this), node.db.lower()
        if not schema and name in scope.ctes:
            cte = scope.ctes[name]
            return Source(alias or name, list(self._cte(cte)))
        if schema not in ("", "main"):
            raise RefusedError(Refusal.TABLE_NOT_ALLOWED, "only tables of the database's own file can be read")
        self.tables.add("sqlite_master" if name == "sqlite_schema" else name)
        table = self.catalog.tables.get(name)
        if table is None:
            if name.startswith("sqlite_"):
                return Source(
                    alias or name,
                    [(column, EMPTY) for column in ("type", "name", "tbl_name", "rootpage", "sql", "seq", "tbl", "idx", "stat")],
                )
            raise RefusedError(Refusal.TABLE_NOT_ALLOWED, "a table is none of the database's own file")
        return Source(alias or name, [(column.name, self._stored(table, column.name)) for column in table.columns], table)

    # Result columns

    def _result(self, expressions: Iterable[exp.Expr], scope: Scope) -> Columns:
        columns: Columns = []
        for each in expressions:
            if isinstance(each, exp.Star):
                if any(each.args.values()):
                    raise undecided("a star with exceptions")
                columns += [
                    (name, self._saw(flow)) for source in scope.sources for name, flow in source.columns if name not in source.hidden
                ]
            elif isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
                mine = [source for source in scope.sources if source.alias == each.table.lower()]
                if len(mine) != 1:
                    raise undecided("a star of no table")
                columns += [(name, self._saw(flow)) for name, flow in mine[0].columns]
            else:
                columns.append((each.alias_or_name.lower(), self.expression(each.this if isinstance(each, exp.Alias) else each, scope)))
        return columns

    # Writes

    def write(self, node: exp.Expr) -> Columns:
        """What is written anywhere could be read there: consumed. RETURNING is a select list over the written table."""
        ctes = self._with(node, {}, None)
        target = node.this.this if isinstance(node.this, exp.Schema) else node.this
        if not isinstance(target, exp.Table):
            raise undecided("a write without a table")
        source = self._table(target, Scope([], {}))
        self.written.add(lower(target.this))
        scope = Scope([source], ctes)
        if isinstance(node, exp.Insert):
            self._insert(node, scope, ctes)
        elif isinstance(node, exp.Update) and node.args.get("from_") is not None:
            self._from(node, scope)
        for each in node.expressions if isinstance(node, exp.Update) else ():
            self.consume(self.expression(each.expression, scope))
        for name in ("where",):
            if node.args.get(name) is not None:
                self.consume(self.expression(node.args[name].this, scope))
        if any(node.args.get(name) for name in ("order", "limit", "using", "tables")):
            raise undecided("a clause of the write is not known")
        returning = node.args.get("returning")
        return self._result(returning.expressions, Scope([source], ctes)) if returning is not None else []

    def _insert(self, node: exp.Insert, scope: Scope, ctes: Mapping[str, Cte]) -> None:
        values = node.args.get("expression")
        if values is not None:
            for _, flow in self.query(values, ctes, None):
                self.consume(flow)
        conflict = node.args.get("conflict")
        if conflict is None:
            return
        excluded = Source("excluded", [(name, EMPTY) for name, _ in scope.sources[0].columns])
        both = Scope([scope.sources[0], excluded], ctes)
        for each in conflict.args.get("conflict_keys") or ():
            self.consume(self.expression(each.this if isinstance(each, exp.Ordered) else each, scope))
        for each in conflict.expressions:
            self.consume(self.expression(each.expression, both))
        for name in ("where", "index_where"):
            if conflict.args.get(name) is not None:
                self.consume(self.expression(conflict.args[name].this, both))
