"""Expressions of a parse tree → the columns in them, and every function, operator and type that would run.

Rejects (`RefusedError`) functions and types that aren't allowed, and node types that this module doesn't know. Pure.
"""

from collections.abc import Callable, Iterator

from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lineage import EMPTY, NOTHING, Flow, Origin, computed
from tailrace_gateway.compile.postgres.catalog import FIRST_USER_OID, Catalog
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError
from tailrace_gateway.compile.postgres.scope import JOIN, RELATION, Scope, there
from tailrace_gateway.compile.postgres.types import BPCHAR, NAME, TEXT, VARCHAR
from tailrace_gateway.compile.refusal import RefusedError

_EXISTS, _ALL, _ANY, _ROWCOMPARE, _EXPR, _MULTIEXPR, _ARRAY = range(7)
_SUBLINK_PARAM = 2
_LAST_TIME_FUNCTION = 8
"""SQLValueFunction ops up to this are dates and times; above are names of users, the database and the schema."""
_TYPE_FIELDS = (
    *(
        "vartype",
        "consttype",
        "paramtype",
        "funcresulttype",
        "opresulttype",
        "aggtype",
        "wintype",
        "resulttype",
        "casetype",
        "array_typeid",
    ),
    *("element_typeid", "row_typeid", "coalescetype", "minmaxtype", "refelemtype", "refrestype"),
)
_SAFE_OUTPUT_TYPES = frozenset({TEXT, VARCHAR, BPCHAR, NAME})


class ExpressionWalker:
    """What a walk gathers, and every kind of expression. Queries and range tables are the subclass's."""

    def __init__(self, catalog: Catalog, *, owner: bool) -> None:
        self.catalog = catalog
        self.owner = owner
        self.write = False
        self.consumed: set[Origin] = set()
        self.tables: set[int | str] = set()
        self.written: set[int | str] = set()
        self.seen: set[Origin] = set()
        self.volatile = False
        self.risks = 0
        """How many parts so far may fail, whatever they are made of."""
        self.compared: list[list[Flow]] = []
        """Columns of the sub-queries whose tests are being walked, innermost last."""

    def consume(self, flow: Flow) -> None:
        """Columns whose values would tell themselves."""
        self.consumed |= flow.origins

    def risk(self, flow: Flow) -> Flow:
        """A part that its values can make fail."""
        self.risks += 1
        self.consume(flow)
        return flow

    # Of the subclass

    def query(self, query: Node, parent: Scope | None) -> list[Flow]:
        """Flows of a whole query's result columns."""
        raise NotImplementedError

    def _entry(self, scope: Scope, n: int) -> list[Flow] | Flow:
        raise NotImplementedError

    # Expressions

    def expression(self, node: object, scope: Scope) -> Flow:
        """Flow of one expression, whose functions and types are checked on the way."""
        if node is None:
            return EMPTY
        if isinstance(node, list):
            return computed([self.expression(each, scope) for each in node])
        if not isinstance(node, Node):
            return EMPTY
        rule = _RULES.get(node.tag)
        if rule is None:
            raise NotATreeError(f"unknown node {node.tag}")
        for name in _TYPE_FIELDS:
            if name in node.fields:
                self._type(node.integer(name))
        return rule(self, node, scope)

    def _children(self, node: Node, scope: Scope) -> Iterator[Flow]:
        for value in node.fields.values():
            if isinstance(value, (Node, list)):
                yield self._deep(value, scope)

    def _deep(self, value: object, scope: Scope) -> Flow:
        if isinstance(value, list):
            return computed([self._deep(each, scope) for each in value])
        return self.expression(value, scope)

    def variable(self, node: Node, scope: Scope) -> Flow:
        """A column, or with attribute 0 a whole row."""
        return self._column(scope.up(node.integer("varlevelsup")), node.integer("varno"), node.integer("varattno"))

    def _column(self, scope: Scope, n: int, attribute: int) -> Flow:
        entry = scope.entries[n - 1]
        if n == scope.excluded:
            self.seen.add((entry.integer("relid"), attribute))
            return EMPTY
        kind = entry.integer("rtekind")
        if kind == RELATION:
            return self._stored(entry.integer("relid"), attribute)
        if kind == JOIN:
            variables = entry.items("joinaliasvars")
            if attribute == 0:
                return computed([self.expression(each, scope) for each in variables])
            return self.expression(variables[attribute - 1], scope)
        columns = self._entry(scope, n)
        if isinstance(columns, Flow):
            return columns.opaque()
        if attribute == 0:
            return computed(columns)
        return columns[attribute - 1]

    def _stored(self, table: int, attribute: int) -> Flow:
        if attribute < 0:
            return EMPTY
        if attribute > 0:
            self.seen.add((table, attribute))
            return Flow(frozenset({(table, attribute)}))
        relation = self.catalog.relations.get(table)
        if relation is None:
            raise NotATreeError("a relation that the catalog has not")
        whole = frozenset[Origin]((table, each.number) for each in relation.attributes)
        self.seen |= whole | {(table, 0)}
        return Flow(NOTHING, whole)

    def _arguments(self, node: Node, scope: Scope, *names: str) -> Flow:
        return computed([self.expression(node.get(name), scope) for name in names])

    def call(self, node: Node, scope: Scope) -> Flow:
        """A function: its arguments are consumed unless no value of theirs can make it fail or change the number of rows."""
        flow = self._arguments(node, scope, "args")
        infallible = self._function(node.integer("funcid"))
        return self.risk(flow) if node.flag("funcretset") or not infallible else flow

    def operator(self, node: Node, scope: Scope) -> Flow:
        """An operator is the function behind it."""
        flow = self._arguments(node, scope, "args")
        if node.integer("opno") >= FIRST_USER_OID and not self.owner:
            raise function_refused("an operator was not shipped with the server")
        infallible = self._function(node.integer("opfuncid"))
        return flow if infallible and node.fields.get("opretset") != "true" else self.risk(flow)

    def aggregate(self, node: Node, scope: Scope) -> Flow:
        """What orders, filters or makes distinct inside is consumed."""
        arguments = node.nodes("args")
        flows = [self.expression(each.get("expr"), scope) for each in arguments]
        by_reference = {each.integer("ressortgroupref"): flow for each, flow in zip(arguments, flows, strict=True)}
        for clause in (*node.nodes("aggorder"), *node.nodes("aggdistinct")):
            self._sort_operators(clause)
            self.consume(by_reference[clause.integer("tleSortGroupRef")])
        direct = self._arguments(node, scope, "aggdirectargs")
        self.consume(direct)
        self.consume(self.expression(node.get("aggfilter"), scope))
        shown = [flow for each, flow in zip(arguments, flows, strict=True) if not each.flag("resjunk")]
        flow = computed([*shown, direct])
        return flow if self._function(node.integer("aggfnoid")) else self.risk(flow)

    def window(self, node: Node, scope: Scope) -> Flow:
        """Partition and order are the query's windowClause."""
        flow = self._arguments(node, scope, "args")
        self.consume(self.expression(node.get("aggfilter"), scope))
        return flow if self._function(node.integer("winfnoid")) else self.risk(flow)

    def sublink(self, node: Node, scope: Scope) -> Flow:
        """A query inside an expression. EXISTS looks at no column; a scalar query passes its column on, and fails on a second row.

        ANY and ALL stop at the first row that decides, so whatever may fail in the query fails depending on the test.
        """
        kind = node.integer("subLinkType")
        risks = self.risks
        columns = self.query(there(node.node("subselect")), scope)
        stops_early = self.risks > risks
        self.compared.append(columns)
        test = self.expression(node.get("testexpr"), scope)
        self.compared.pop()
        if kind == _EXISTS:
            return EMPTY
        if kind == _EXPR:
            self.risks += 1
            return columns[0]
        flow = computed([*columns, test])
        return self.risk(flow) if stops_early else flow

    def parameter(self, node: Node, scope: Scope) -> Flow:
        """A caller's value, or inside the test of ANY and ALL a column of the query that is compared."""
        if node.integer("paramkind") != _SUBLINK_PARAM or not self.compared:
            return EMPTY
        return self.compared[-1][node.integer("paramid") - 1]

    def compare_rows(self, node: Node, scope: Scope) -> Flow:
        """(a, b) < (c, d)."""
        for operator in node.items("opnos"):
            if not isinstance(operator, int) or (operator >= FIRST_USER_OID and not self.owner):
                raise function_refused("an operator was not shipped with the server")
        return self.may_fail(node, scope)

    def field_select(self, node: Node, scope: Scope) -> Flow:
        """One attribute of a row: exact for a table's row, else everything in the row."""
        argument = node.get("arg")
        if isinstance(argument, Node) and argument.tag == "VAR" and argument.integer("varattno") == 0:
            return self._column(scope.up(argument.integer("varlevelsup")), argument.integer("varno"), node.integer("fieldnum"))
        return self.expression(argument, scope).opaque()

    def unchanged(self, node: Node, scope: Scope) -> Flow:
        """The same value under another type or collation name."""
        return self.expression(node.get("arg"), scope)

    def cast_by_text(self, node: Node, scope: Scope) -> Flow:
        """Output then input function: safe only into text."""
        flow = self.expression(node.get("arg"), scope).opaque()
        safe = self.catalog.types.resolved(node.integer("resulttype")) in _SAFE_OUTPUT_TYPES
        return flow if safe else self.risk(flow)

    def may_fail(self, node: Node, scope: Scope) -> Flow:
        """Anything whose values can make it fail."""
        return self.risk(computed(self._children(node, scope)))

    def stops_early(self, node: Node, scope: Scope) -> Flow:
        """AND, OR and COALESCE look at no more than they need: beside a part that may fail, any other part decides whether it does."""
        risks = self.risks
        flow = computed(self._children(node, scope))
        if self.risks > risks:
            self.consume(flow)
        return flow

    def cannot_fail(self, node: Node, scope: Scope) -> Flow:
        """Computed from everything inside."""
        return computed(self._children(node, scope))

    def array(self, node: Node, scope: Scope) -> Flow:
        """Sub-arrays of different lengths make it fail."""
        return self.may_fail(node, scope) if node.flag("multidims") else self.cannot_fail(node, scope)

    def case(self, node: Node, scope: Scope) -> Flow:
        """Conditions are consumed, results are passed on."""
        self.consume(self.expression(node.get("arg"), scope))
        results = [self.expression(node.get("defresult"), scope)]
        for when in node.nodes("args"):
            self.consume(self.expression(when.get("expr"), scope))
            results.append(self.expression(when.get("result"), scope))
        return computed(results)

    def nothing(self, node: Node, scope: Scope) -> Flow:
        """Constants, parameters, placeholders of values that are accounted for elsewhere."""
        return EMPTY

    def clock(self, node: Node, scope: Scope) -> Flow:
        """CURRENT_DATE and its like; not CURRENT_USER and its like."""
        if node.integer("op") > _LAST_TIME_FUNCTION and not self.owner:
            raise function_refused("names of users, the database and schemas are session facts")
        return EMPTY

    def _function(self, oid: int) -> bool:
        """Checks a function; says whether it cannot fail."""
        if oid == 0:
            return True
        known = self.catalog.functions.get(oid)
        if known is None:
            self.volatile = True
            if self.owner:
                return False
            raise function_refused("a function was not shipped with the server")
        self.volatile |= known.volatile
        if not known.allowed and not self.owner:
            raise function_refused(f"the function {known.signature} is not on the list of functions that queries may use")
        return known.infallible

    def _type(self, oid: int) -> None:
        if not self.owner and not self.catalog.type_allowed(oid):
            info = self.catalog.types.known.get(oid)
            raise function_refused(f"the type {info.name if info is not None else oid} is not one that queries may use")

    def _sort_operators(self, clause: Node) -> None:
        for name in ("eqop", "sortop"):
            if clause.integer(name) >= FIRST_USER_OID and not self.owner:
                raise function_refused("an ordering or grouping uses an operator that was not shipped with the server")


def function_refused(hint: str) -> RefusedError:
    """The refusal of a function, operator or type."""
    return RefusedError(Refusal.FUNCTION_NOT_ALLOWED, hint)


_Rule = Callable[[ExpressionWalker, Node, Scope], Flow]

_RULES: dict[str, _Rule] = {
    "VAR": ExpressionWalker.variable,
    "FUNCEXPR": ExpressionWalker.call,
    "AGGREF": ExpressionWalker.aggregate,
    "WINDOWFUNC": ExpressionWalker.window,
    "SUBLINK": ExpressionWalker.sublink,
    "FIELDSELECT": ExpressionWalker.field_select,
    "COERCEVIAIO": ExpressionWalker.cast_by_text,
    "SQLVALUEFUNCTION": ExpressionWalker.clock,
    **dict.fromkeys(("OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR"), ExpressionWalker.operator),
    **dict.fromkeys(("RELABELTYPE", "COLLATE", "COLLATEEXPR", "NAMEDARGEXPR"), ExpressionWalker.unchanged),
    **dict.fromkeys(("CASE", "CASEEXPR"), ExpressionWalker.case),
    **dict.fromkeys(("BOOLEXPR", "COALESCE", "COALESCEEXPR"), ExpressionWalker.stops_early),
    **dict.fromkeys(("ARRAY", "ARRAYEXPR"), ExpressionWalker.array),
    "PARAM": ExpressionWalker.parameter,
    **dict.fromkeys(("ROWCOMPARE", "ROWCOMPAREEXPR"), ExpressionWalker.compare_rows),
    **dict.fromkeys(("CONST", "CASETESTEXPR", "CASETEST", "SETTODEFAULT", "COERCETODOMAINVALUE"), ExpressionWalker.nothing),
    **dict.fromkeys(
        (
            *("NULLTEST", "BOOLEANTEST", "MINMAX", "MINMAXEXPR", "ROW", "ROWEXPR"),
            *("SUBSCRIPTINGREF", "CONVERTROWTYPEEXPR", "GROUPINGFUNC", "TARGETENTRY"),
        ),
        ExpressionWalker.cannot_fail,
    ),
    **dict.fromkeys(
        ("ARRAYCOERCEEXPR", "COERCETODOMAIN", "XMLEXPR", "JSONVALUEEXPR", "JSONCONSTRUCTOREXPR", "JSONISPREDICATE", "FIELDSTORE"),
        ExpressionWalker.may_fail,
    ),
}
