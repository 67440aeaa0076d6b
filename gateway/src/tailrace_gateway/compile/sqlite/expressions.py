"""Expressions of a syntax tree → the columns in them, and whether they may fail. Rejects (`RefusedError`, not_parsed) what it cannot decide. Pure."""

from collections.abc import Iterator, Mapping

from sqlglot import exp

from tailrace_gateway.compile.lineage import EMPTY, Flow, Origin, computed
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.sqlite.catalog import ROWID_NAMES, Catalog, Table
from tailrace_gateway.compile.sqlite.functions import INFALLIBLE_NAMES
from tailrace_gateway.compile.sqlite.scope import Columns, Cte, Scope, Source, lower, undecided

_INFALLIBLE = (
    *(
        exp.And,
        exp.Or,
        exp.Not,
        exp.EQ,
        exp.NEQ,
        exp.GT,
        exp.GTE,
        exp.LT,
        exp.LTE,
        exp.Is,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.Between,
        exp.In,
    ),
    *(
        exp.Add,
        exp.Sub,
        exp.Mul,
        exp.Div,
        exp.Mod,
        exp.Neg,
        exp.DPipe,
        exp.Concat,
        exp.ConcatWs,
        exp.BitwiseAnd,
        exp.BitwiseOr,
        exp.BitwiseNot,
    ),
    *(
        exp.Like,
        exp.Glob,
        exp.Cast,
        exp.Tuple,
        exp.Lower,
        exp.Upper,
        exp.Length,
        exp.Trim,
        exp.Substring,
        exp.StrPosition,
        exp.Coalesce,
        exp.Nullif,
    ),
    *(
        exp.Typeof,
        exp.Hex,
        exp.Round,
        exp.Greatest,
        exp.Least,
        exp.Max,
        exp.Min,
        exp.Count,
        exp.Avg,
        exp.GroupConcat,
        exp.Date,
        exp.Unicode,
    ),
    *(exp.RowNumber, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.ParameterizedAgg, exp.DataType, exp.Distinct, exp.Interval),
)
"""Nodes that no value inside makes fail. All else is consumed."""
_STOPS_EARLY = (exp.And, exp.Or, exp.Coalesce, exp.In, exp.Between, exp.Anonymous)
SAME_VALUE = (exp.Paren, exp.Collate)
"""Nodes around a value that leave it as it is."""
_NO_COLUMNS = (
    exp.Literal,
    exp.Null,
    exp.Boolean,
    exp.Placeholder,
    exp.Parameter,
    exp.Star,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentTimestamp,
)


class ExpressionWalker:
    """What a walk gathers, and every kind of expression. Queries are the subclass's."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.consumed: set[Origin] = set()
        self.tables: set[int | str] = set()
        self.written: set[int | str] = set()
        self.seen: set[Origin] = set()
        self.risks = 0
        """How many parts so far may fail, whatever they are made of."""

    def consume(self, flow: Flow) -> None:
        """Columns whose values would tell themselves."""
        self.consumed |= flow.origins

    def query(self, node: exp.Expr, ctes: Mapping[str, Cte], parent: Scope | None) -> Columns:
        """Result columns of a whole query: of the subclass."""
        raise NotImplementedError

    def _saw(self, flow: Flow) -> Flow:
        self.seen |= flow.origins
        return flow

    def _maybe(self, node: exp.Expr, scope: Scope) -> Flow:
        try:
            return self.expression(node, scope)
        except RefusedError:
            return EMPTY

    def _stored(self, table: Table, column: str) -> Flow:
        return Flow(frozenset({(table.name, column)}))

    def expression(self, node: exp.Expr, scope: Scope) -> Flow:
        """Flow of one expression."""
        if isinstance(node, _NO_COLUMNS):
            return EMPTY
        if isinstance(node, exp.Column):
            return self._column(node, scope)
        if isinstance(node, SAME_VALUE):
            return self.expression(node.this, scope)
        if isinstance(node, (exp.Subquery, exp.Select, exp.SetOperation, exp.Values)):
            columns = self.query(node, scope.ctes, scope)
            return columns[0][1] if len(columns) == 1 else computed(flow for _, flow in columns)
        if isinstance(node, exp.Exists):
            self.query(node.this, scope.ctes, scope)
            return EMPTY
        if isinstance(node, exp.Case):
            return self._case(node, scope)
        if isinstance(node, exp.If):
            self.consume(self.expression(node.this, scope))
            return computed(self.expression(each, scope) for name in ("true", "false") if (each := node.args.get(name)) is not None)
        if isinstance(node, exp.Window):
            return self._window(node, scope)
        if isinstance(node, exp.Filter):
            self.consume(self.expression(node.expression.this, scope))
            return self.expression(node.this, scope)
        if isinstance(node, exp.Order):
            for each in node.expressions:
                self.consume(self.expression(each.this if isinstance(each, exp.Ordered) else each, scope))
            return self.expression(node.this, scope)
        if isinstance(node, exp.Distinct):
            flow = computed(self.expression(each, scope) for each in node.expressions)
            self.consume(flow)
            return flow
        if isinstance(node, (exp.Identifier, exp.Var)):
            return self._maybe(exp.column(node.name), scope)
        if isinstance(node, (exp.Table, exp.From, exp.Join, exp.With, exp.CTE, exp.Lambda)):
            raise undecided(f"a {type(node).__name__} in an expression")
        if isinstance(node, exp.In) and node.args.get("field") is not None:
            raise undecided("IN with the name of a table")
        risks = self.risks
        flow = computed(self.expression(child, scope) for child in self._children(node))
        if not self._infallible(node):
            self.risks += 1
            self.consume(flow)
        elif isinstance(node, _STOPS_EARLY) and self.risks > risks:
            self.consume(flow)  # beside a part that may fail, any other part decides whether it does
        elif isinstance(node, (exp.Like, exp.Glob)):
            self.consume(self.expression(node.expression, scope))  # a long pattern fails
        return flow

    def _children(self, node: exp.Expr) -> Iterator[exp.Expr]:
        for value in node.args.values():
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, exp.Expr):
                    yield child

    def _infallible(self, node: exp.Expr) -> bool:
        if isinstance(node, exp.Anonymous):
            return str(node.this).lower() in INFALLIBLE_NAMES
        return isinstance(node, _INFALLIBLE)

    def _case(self, node: exp.Case, scope: Scope) -> Flow:
        if node.this is not None:
            self.consume(self.expression(node.this, scope))
        results = []
        for each in node.args["ifs"]:
            self.consume(self.expression(each.this, scope))
            results.append(self.expression(each.args["true"], scope))
        if node.args.get("default") is not None:
            results.append(self.expression(node.args["default"], scope))
        return computed(results)

    def _window(self, node: exp.Window, scope: Scope) -> Flow:
        name = node.args.get("alias")
        if name is not None and lower(name) not in scope.windows:
            raise undecided("a window has no definition")
        self._window_parts(node, scope)
        return self.expression(node.this, scope).opaque()

    def _window_parts(self, node: exp.Expr, scope: Scope) -> None:
        for each in node.args.get("partition_by") or ():
            self.consume(self.expression(each, scope))
        order = node.args.get("order")
        for each in order.expressions if order is not None else ():
            self.consume(self.expression(each.this if isinstance(each, exp.Ordered) else each, scope))
        spec = node.args.get("spec")
        for part in ("start", "end"):
            if spec is not None and isinstance(spec.args.get(part), exp.Expr):
                self.consume(self.expression(spec.args[part], scope))

    def _column(self, node: exp.Column, scope: Scope) -> Flow:
        """The innermost query that knows the name decides; several tables there, or a result's name, all count."""
        if isinstance(node.this, exp.Star):
            return EMPTY
        name, table = node.name.lower(), node.table.lower()
        if node.args.get("db") is not None and node.db.lower() != "main":
            raise undecided("a column of another schema")
        around: Scope | None = scope
        while around is not None:
            flows = [flow for source in around.sources if not table or source.alias == table for flow in self._of_source(source, name)]
            if not table and name in around.aliases:
                flows.append(around.aliases[name])
            if flows:
                found = flows[0]
                for flow in flows[1:]:
                    found = found.either(flow)
                return self._saw(found)
            around = around.parent
        raise undecided("a column's name belongs to no table")

    def _of_source(self, source: Source, name: str) -> list[Flow]:
        flows = [flow for column, flow in source.columns if column == name]
        if not flows and name in ROWID_NAMES and source.table is not None and source.table.kind in ("table", "virtual"):
            return [self._stored(source.table, source.table.row_key)] if source.table.row_key else [EMPTY]
        return flows
