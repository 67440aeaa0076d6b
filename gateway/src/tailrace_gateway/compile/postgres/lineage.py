"""A parse tree of PostgreSQL → where each column goes, and every function, operator and type that would run.

Rejects (`RefusedError`): statements that are no read (or no single write), functions and types that aren't allowed, node types that this module
doesn't know: what cannot be decided has no plan. Pure: the tree came from `probe`, names and functions from `catalog`.

PostgreSQL resolved every name already, so stars, USING, attribute notation, whole rows, casts and operators need no guessing here: a `Var` is
(range table entry, attribute, levels up). Source: parsenodes.h and primnodes.h of PostgreSQL 14 to 17.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lineage import EMPTY, NOTHING, Flow, Lineage, Origin, computed
from tailrace_gateway.compile.postgres.catalog import FIRST_USER_OID, Catalog
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError
from tailrace_gateway.compile.postgres.types import BPCHAR, NAME, TEXT, VARCHAR
from tailrace_gateway.compile.refusal import RefusedError

SELECT, UPDATE, INSERT, DELETE = 1, 2, 3, 4
_RELATION, _SUBQUERY, _JOIN, _FUNCTION, _TABLEFUNC, _VALUES, _CTE, _TUPLESTORE, _RESULT = range(9)
_EXISTS, _ALL, _ANY, _ROWCOMPARE, _EXPR, _MULTIEXPR, _ARRAY = range(7)
_SUBLINK_PARAM = 2
_LAST_TIME_FUNCTION = 8
"""SQLValueFunction ops up to this are dates and times; above are names of users, the database and the schema."""
_UNION = 1
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


@dataclass(slots=True)
class _Cte:
    """A WITH query. `flows` None until analysed; of a recursive one they grow until nothing changes."""

    node: Node
    scope: "_Scope"
    flows: list[Flow] | None = None
    busy: bool = False


@dataclass(slots=True)
class _Scope:
    """One Query node: its range table, and the query around it."""

    query: Node
    parent: "_Scope | None"
    entries: list[Node]
    ctes: dict[str, _Cte] = field(default_factory=dict)
    columns: dict[int, list[Flow] | Flow] = field(default_factory=dict)
    """By position in the range table: flows of its columns, or one flow for all of them."""
    excluded: int = 0
    """Position of ON CONFLICT's EXCLUDED, whose values come from the statement itself."""

    def up(self, levels: int) -> "_Scope":
        scope: _Scope = self
        for _ in range(levels):
            if scope.parent is None:
                raise NotATreeError("a level above the outermost query")
            scope = scope.parent
        return scope


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk found. `seen` are all columns that any expression names; `relations` are tables in any range table."""

    lineage: Lineage
    seen: frozenset[Origin]
    volatile: bool


def walk(query: Node, catalog: Catalog, *, write: bool = False, owner: bool = False) -> Walked:
    """Lineage of a whole statement. `owner`: a view's own definition, whose functions are its owner's matter."""
    walker = _Walker(catalog, owner=owner)
    try:
        command = query.integer("commandType")
        if query.get("utilityStmt") is not None or command not in (SELECT, UPDATE, INSERT, DELETE):
            raise RefusedError(
                Refusal.NOT_READ_ONLY, "a saved query is one SELECT, VALUES or TABLE; with write: true one INSERT, UPDATE or DELETE"
            )
        if write != (command != SELECT):
            raise (
                _not_read_only()
                if not write
                else RefusedError(Refusal.NOT_READ_ONLY, "a query with write: true is one INSERT, UPDATE or DELETE")
            )
        walker.write = write
        columns = walker.query(query, None)
    except RefusedError as refused:
        if refused.code is Refusal.FUNCTION_NOT_ALLOWED and walker.tables & catalog.system and not owner:
            hint = f"it reads a table of the system in a way that no list can allow ({refused.hint})"
            raise RefusedError(Refusal.TABLE_NOT_ALLOWED, hint, refused.detail) from None
        raise
    except (NotATreeError, RecursionError, ValueError, IndexError) as error:
        raise RefusedError(Refusal.NOT_PARSED, "the statement has a part that cannot be decided", str(error)) from None
    lineage = Lineage(tuple(columns), frozenset(walker.consumed), frozenset(walker.tables), frozenset(walker.written))
    return Walked(lineage, frozenset(walker.seen), walker.volatile)


def _not_read_only() -> RefusedError:
    return RefusedError(
        Refusal.NOT_READ_ONLY, "a query without write: true must be one SELECT, VALUES or TABLE that changes and locks nothing"
    )


class _Walker:
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
        self.consumed |= flow.origins

    def risk(self, flow: Flow) -> Flow:
        """A part that its values can make fail."""
        self.risks += 1
        self.consume(flow)
        return flow

    # Queries

    def query(self, query: Node, parent: _Scope | None) -> list[Flow]:
        """Flows of the query's visible result columns; everything else it contains is consumed or recorded on the way."""
        command = query.integer("commandType")
        if query.tag != "QUERY" or query.get("utilityStmt") is not None or (command != SELECT and (parent is not None or not self.write)):
            raise _not_read_only()
        if (query.flag("hasForUpdate") or query.items("rowMarks")) and not self.write:
            raise _not_read_only()
        scope = _Scope(query, parent, query.nodes("rtable"))
        for cte in query.nodes("cteList"):
            scope.ctes[cte.text("ctename")] = _Cte(cte, scope)
        conflict = query.node("onConflict") if command == INSERT else None
        if conflict is not None:
            scope.excluded = conflict.integer("exclRelIndex")
        for each in scope.ctes.values():
            self._cte_columns(each)
        for n in range(1, len(scope.entries) + 1):
            self._entry(scope, n)
        jointree = query.node("jointree")
        if jointree is not None:
            self._from(jointree, scope)
        flows = self._targets(query, scope)
        for name in ("limitOffset", "limitCount", "havingQual"):
            self.consume(self.expression(query.get(name), scope))
        if command == SELECT:
            return [flow for flow, target in zip(flows, query.nodes("targetList"), strict=True) if not target.flag("resjunk")]
        return self._write(query, scope, flows, conflict)

    def _write(self, query: Node, scope: _Scope, flows: Sequence[Flow], conflict: Node | None) -> list[Flow]:
        """Values that are written anywhere could be read there: they are consumed. RETURNING is a select list."""
        for flow in flows:
            self.consume(flow)
        table = scope.entries[query.integer("resultRelation") - 1].integer("relid")
        self.written.add(table)
        targets = [*query.nodes("targetList"), *(conflict.nodes("onConflictSet") if conflict is not None else ())]
        self.seen |= {(table, target.integer("resno")) for target in targets}
        if conflict is not None:
            for name in ("arbiterElems", "onConflictSet"):
                for each in conflict.nodes(name):
                    self.consume(self.expression(each.get("expr"), scope))
            for name in ("arbiterWhere", "onConflictWhere"):
                self.consume(self.expression(conflict.get(name), scope))
        return [self.expression(target.get("expr"), scope) for target in query.nodes("returningList")]

    def _targets(self, query: Node, scope: _Scope) -> list[Flow]:
        """Flow of every target; those that order, group or compare rows are consumed."""
        targets = query.nodes("targetList")
        operation = query.node("setOperations")
        if operation is not None:
            combined = self._set_operation(operation, scope)
            flows = [combined[target.integer("resno") - 1] for target in targets]
        else:
            flows = [self.expression(target.get("expr"), scope) for target in targets]
        by_reference = {target.integer("ressortgroupref"): flow for target, flow in zip(targets, flows, strict=True)}
        clauses = [*query.nodes("groupClause"), *query.nodes("distinctClause"), *query.nodes("sortClause")]
        for window in query.nodes("windowClause"):
            clauses += [*window.nodes("partitionClause"), *window.nodes("orderClause")]
            for name in ("startOffset", "endOffset"):
                self.consume(self.expression(window.get(name), scope))
            for name in ("startInRangeFunc", "endInRangeFunc"):
                self._function(window.integer(name))
        for clause in clauses:
            self._sort_operators(clause)
            self.consume(by_reference[clause.integer("tleSortGroupRef")])
        if query.nodes("distinctClause") and not query.flag("hasDistinctOn"):
            for flow in flows:
                self.consume(flow)
        return flows

    def _sort_operators(self, clause: Node) -> None:
        for name in ("eqop", "sortop"):
            if clause.integer(name) >= FIRST_USER_OID and not self.owner:
                raise _function_refused("an ordering or grouping uses an operator that was not shipped with the server")

    def _set_operation(self, node: Node, scope: _Scope) -> list[Flow]:
        if node.tag == "RANGETBLREF":
            columns = self._entry(scope, node.integer("rtindex"))
            if not isinstance(columns, list):
                raise NotATreeError("an arm without columns")
            return columns
        if node.tag != "SETOPERATIONSTMT":
            raise NotATreeError(f"unknown node {node.tag}")
        left, right = (self._set_operation(_there(node.node(side)), scope) for side in ("larg", "rarg"))
        both = [one.either(other) for one, other in zip(left, right, strict=True)]
        for clause in node.nodes("groupClauses"):
            self._sort_operators(clause)
        if not node.flag("all") or node.integer("op") != _UNION:
            for flow in both:
                self.consume(flow)
        return both

    def _from(self, node: Node, scope: _Scope) -> None:
        if node.tag == "FROMEXPR":
            for each in node.nodes("fromlist"):
                self._from(each, scope)
            self.consume(self.expression(node.get("quals"), scope))
        elif node.tag == "JOINEXPR":
            self._from(_there(node.node("larg")), scope)
            self._from(_there(node.node("rarg")), scope)
            self.consume(self.expression(node.get("quals"), scope))
        elif node.tag != "RANGETBLREF":
            raise NotATreeError(f"unknown node {node.tag}")

    # The range table

    def _entry(self, scope: _Scope, n: int) -> list[Flow] | Flow:
        """Flows of a range table entry's columns: by position, or one for all."""
        if n not in scope.columns:
            scope.columns[n] = self._new_entry(scope, scope.entries[n - 1], n)
        return scope.columns[n]

    def _new_entry(self, scope: _Scope, entry: Node, n: int) -> list[Flow] | Flow:
        kind = entry.integer("rtekind")
        if kind == _RELATION:
            self.tables.add(entry.integer("relid"))
            sample = entry.node("tablesample")
            if sample is not None:
                self.volatile = True
                if sample.integer("tsmhandler") >= FIRST_USER_OID:
                    raise _function_refused("a TABLESAMPLE method was not shipped with the server")
                for each in (*sample.nodes("args"), sample.get("repeatable")):
                    self.consume(self.expression(each, scope))
            return []
        if kind == _SUBQUERY:
            return self.query(_there(entry.node("subquery")), scope)
        if kind == _JOIN:
            return []
        if kind == _FUNCTION:
            flows = [self.expression(each.get("funcexpr"), scope) for each in entry.nodes("functions")]
            for flow in flows:
                self.consume(flow)
            return computed(flows)
        if kind == _TABLEFUNC:
            self.volatile = True
            flow = computed(self._children(_there(entry.node("tablefunc")), scope))
            self.consume(flow)
            return flow
        if kind == _VALUES:
            rows = [[self.expression(each, scope) for each in _list(row)] for row in entry.items("values_lists")]
            columns = rows[0]
            for row in rows[1:]:
                columns = [one.either(other) for one, other in zip(columns, row, strict=True)]
            return columns
        if kind == _CTE:
            return self._cte_reference(scope, entry)
        if kind == _RESULT:
            return []
        raise NotATreeError(f"unknown range table entry {kind}")

    def _cte_reference(self, scope: _Scope, entry: Node) -> list[Flow]:
        cte = scope.up(entry.integer("ctelevelsup")).ctes[entry.text("ctename")]
        flows = self._cte_columns(cte)
        if cte.node.get("search_clause") is not None or cte.node.get("cycle_clause") is not None:
            everything = computed(flows)
            self.consume(everything)
            return [*flows, everything, everything, everything]  # the columns that SEARCH and CYCLE add
        return flows

    def _cte_columns(self, cte: _Cte) -> list[Flow]:
        """A recursive query is walked until its own columns no longer change: flows only ever grow, so this ends."""
        if cte.busy:
            assert cte.flows is not None
            return cte.flows
        if cte.flows is None:
            cte.busy = True
            cte.flows = [EMPTY] * len(cte.node.items("ctecolnames")) if cte.node.flag("cterecursive") else []
            query = _there(cte.node.node("ctequery"))
            while True:
                found = self.query(query, cte.scope)
                if not cte.node.flag("cterecursive") or found == cte.flows[: len(found)]:
                    break
                cte.flows = [one.either(other) for one, other in zip(found, cte.flows, strict=False)]
            cte.flows = found
            cte.busy = False
        return cte.flows

    # Expressions

    def expression(self, node: object, scope: _Scope) -> Flow:
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

    def _children(self, node: Node, scope: _Scope) -> Iterator[Flow]:
        for value in node.fields.values():
            if isinstance(value, (Node, list)):
                yield self._deep(value, scope)

    def _deep(self, value: object, scope: _Scope) -> Flow:
        if isinstance(value, list):
            return computed([self._deep(each, scope) for each in value])
        return self.expression(value, scope)

    def variable(self, node: Node, scope: _Scope) -> Flow:
        """A column, or with attribute 0 a whole row."""
        return self._column(scope.up(node.integer("varlevelsup")), node.integer("varno"), node.integer("varattno"))

    def _column(self, scope: _Scope, n: int, attribute: int) -> Flow:
        entry = scope.entries[n - 1]
        if n == scope.excluded:
            self.seen.add((entry.integer("relid"), attribute))
            return EMPTY
        kind = entry.integer("rtekind")
        if kind == _RELATION:
            return self._stored(entry.integer("relid"), attribute)
        if kind == _JOIN:
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

    def _arguments(self, node: Node, scope: _Scope, *names: str) -> Flow:
        return computed([self.expression(node.get(name), scope) for name in names])

    def call(self, node: Node, scope: _Scope) -> Flow:
        """A function: its arguments are consumed unless no value of theirs can make it fail or change the number of rows."""
        flow = self._arguments(node, scope, "args")
        infallible = self._function(node.integer("funcid"))
        return self.risk(flow) if node.flag("funcretset") or not infallible else flow

    def operator(self, node: Node, scope: _Scope) -> Flow:
        """An operator is the function behind it."""
        flow = self._arguments(node, scope, "args")
        if node.integer("opno") >= FIRST_USER_OID and not self.owner:
            raise _function_refused("an operator was not shipped with the server")
        infallible = self._function(node.integer("opfuncid"))
        return flow if infallible and node.fields.get("opretset") != "true" else self.risk(flow)

    def aggregate(self, node: Node, scope: _Scope) -> Flow:
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

    def window(self, node: Node, scope: _Scope) -> Flow:
        """Partition and order are the query's windowClause."""
        flow = self._arguments(node, scope, "args")
        self.consume(self.expression(node.get("aggfilter"), scope))
        return flow if self._function(node.integer("winfnoid")) else self.risk(flow)

    def sublink(self, node: Node, scope: _Scope) -> Flow:
        """A query inside an expression. EXISTS looks at no column; a scalar query passes its column on, and fails on a second row.

        ANY and ALL stop at the first row that decides, so whatever may fail in the query fails depending on the test.
        """
        kind = node.integer("subLinkType")
        risks = self.risks
        columns = self.query(_there(node.node("subselect")), scope)
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

    def parameter(self, node: Node, scope: _Scope) -> Flow:
        """A caller's value, or inside the test of ANY and ALL a column of the query that is compared."""
        if node.integer("paramkind") != _SUBLINK_PARAM or not self.compared:
            return EMPTY
        return self.compared[-1][node.integer("paramid") - 1]

    def compare_rows(self, node: Node, scope: _Scope) -> Flow:
        """(a, b) < (c, d)."""
        for operator in node.items("opnos"):
            if not isinstance(operator, int) or (operator >= FIRST_USER_OID and not self.owner):
                raise _function_refused("an operator was not shipped with the server")
        return self.may_fail(node, scope)

    def field_select(self, node: Node, scope: _Scope) -> Flow:
        """One attribute of a row: exact for a table's row, else everything in the row."""
        argument = node.get("arg")
        if isinstance(argument, Node) and argument.tag == "VAR" and argument.integer("varattno") == 0:
            return self._column(scope.up(argument.integer("varlevelsup")), argument.integer("varno"), node.integer("fieldnum"))
        return self.expression(argument, scope).opaque()

    def unchanged(self, node: Node, scope: _Scope) -> Flow:
        """The same value under another type or collation name."""
        return self.expression(node.get("arg"), scope)

    def cast_by_text(self, node: Node, scope: _Scope) -> Flow:
        """Output then input function: safe only into text."""
        flow = self.expression(node.get("arg"), scope).opaque()
        safe = self.catalog.types.resolved(node.integer("resulttype")) in _SAFE_OUTPUT_TYPES
        return flow if safe else self.risk(flow)

    def may_fail(self, node: Node, scope: _Scope) -> Flow:
        """Anything whose values can make it fail."""
        return self.risk(computed(self._children(node, scope)))

    def stops_early(self, node: Node, scope: _Scope) -> Flow:
        """AND, OR and COALESCE look at no more than they need: beside a part that may fail, any other part decides whether it does."""
        risks = self.risks
        flow = computed(self._children(node, scope))
        if self.risks > risks:
            self.consume(flow)
        return flow

    def cannot_fail(self, node: Node, scope: _Scope) -> Flow:
        """Computed from everything inside."""
        return computed(self._children(node, scope))

    def array(self, node: Node, scope: _Scope) -> Flow:
        """Sub-arrays of different lengths make it fail."""
        return self.may_fail(node, scope) if node.flag("multidims") else self.cannot_fail(node, scope)

    def case(self, node: Node, scope: _Scope) -> Flow:
        """Conditions are consumed, results are passed on."""
        self.consume(self.expression(node.get("arg"), scope))
        results = [self.expression(node.get("defresult"), scope)]
        for when in node.nodes("args"):
            self.consume(self.expression(when.get("expr"), scope))
            results.append(self.expression(when.get("result"), scope))
        return computed(results)

    def nothing(self, node: Node, scope: _Scope) -> Flow:
        """Constants, parameters, placeholders of values that are accounted for elsewhere."""
        return EMPTY

    def clock(self, node: Node, scope: _Scope) -> Flow:
        """CURRENT_DATE and its like; not CURRENT_USER and its like."""
        if node.integer("op") > _LAST_TIME_FUNCTION and not self.owner:
            raise _function_refused("names of users, the database and schemas are session facts")
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
            raise _function_refused("a function was not shipped with the server")
        self.volatile |= known.volatile
        if not known.allowed and not self.owner:
            raise _function_refused(f"the function {known.signature} is not on the list of functions that queries may use")
        return known.infallible

    def _type(self, oid: int) -> None:
        if not self.owner and not self.catalog.type_allowed(oid):
            info = self.catalog.types.known.get(oid)
            raise _function_refused(f"the type {info.name if info is not None else oid} is not one that queries may use")


def _function_refused(hint: str) -> RefusedError:
    return RefusedError(Refusal.FUNCTION_NOT_ALLOWED, hint)


def _there(node: Node | None) -> Node:
    if node is None:
        raise NotATreeError("a node is missing")
    return node


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise NotATreeError("a list is missing")
    return value


_Rule = Callable[[_Walker, Node, _Scope], Flow]

_RULES: dict[str, _Rule] = {
    "VAR": _Walker.variable,
    "FUNCEXPR": _Walker.call,
    "AGGREF": _Walker.aggregate,
    "WINDOWFUNC": _Walker.window,
    "SUBLINK": _Walker.sublink,
    "FIELDSELECT": _Walker.field_select,
    "COERCEVIAIO": _Walker.cast_by_text,
    "SQLVALUEFUNCTION": _Walker.clock,
    **dict.fromkeys(("OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR"), _Walker.operator),
    **dict.fromkeys(("RELABELTYPE", "COLLATE", "COLLATEEXPR", "NAMEDARGEXPR"), _Walker.unchanged),
    **dict.fromkeys(("CASE", "CASEEXPR"), _Walker.case),
    **dict.fromkeys(("BOOLEXPR", "COALESCE", "COALESCEEXPR"), _Walker.stops_early),
    **dict.fromkeys(("ARRAY", "ARRAYEXPR"), _Walker.array),
    "PARAM": _Walker.parameter,
    **dict.fromkeys(("ROWCOMPARE", "ROWCOMPAREEXPR"), _Walker.compare_rows),
    **dict.fromkeys(("CONST", "CASETESTEXPR", "CASETEST", "SETTODEFAULT", "COERCETODOMAINVALUE"), _Walker.nothing),
    **dict.fromkeys(
        (
            *("NULLTEST", "BOOLEANTEST", "MINMAX", "MINMAXEXPR", "ROW", "ROWEXPR"),
            *("SUBSCRIPTINGREF", "CONVERTROWTYPEEXPR", "GROUPINGFUNC", "TARGETENTRY"),
        ),
        _Walker.cannot_fail,
    ),
    **dict.fromkeys(
        ("ARRAYCOERCEEXPR", "COERCETODOMAIN", "XMLEXPR", "JSONVALUEEXPR", "JSONCONSTRUCTOREXPR", "JSONISPREDICATE", "FIELDSTORE"),
        _Walker.may_fail,
    ),
}
