"""A parse tree of PostgreSQL → where each column goes, and every function, operator and type that would run.

Rejects (`RefusedError`): statements that are no read (or no single write), functions and types that aren't allowed, node types that this module
doesn't know: what cannot be decided has no plan. Pure: the tree came from `probe`, names and functions from `catalog`.

PostgreSQL resolved every name already, so stars, USING, attribute notation, whole rows, casts and operators need no guessing here: a `Var` is
(range table entry, attribute, levels up). Source: parsenodes.h and primnodes.h of PostgreSQL 14 to 17.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lineage import EMPTY, Flow, Lineage, Origin, computed
from tailrace_gateway.compile.postgres.catalog import FIRST_USER_OID, Catalog
from tailrace_gateway.compile.postgres.expressions import ExpressionWalker, function_refused
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError
from tailrace_gateway.compile.postgres.scope import (
    CTE,
    FUNCTION,
    JOIN,
    RELATION,
    RESULT,
    SUBQUERY,
    TABLEFUNC,
    VALUES,
    Cte,
    Scope,
    listed,
    there,
)
from tailrace_gateway.compile.refusal import RefusedError

SELECT, UPDATE, INSERT, DELETE = 1, 2, 3, 4
_UNION = 1


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


class _Walker(ExpressionWalker):
    """Queries and their range tables."""

    # Queries

    def query(self, query: Node, parent: Scope | None) -> list[Flow]:
        """Flows of the query's visible result columns; everything else it contains is consumed or recorded on the way."""
        command = query.integer("commandType")
        if query.tag != "QUERY" or query.get("utilityStmt") is not None or (command != SELECT and (parent is not None or not self.write)):
            raise _not_read_only()
        if (query.flag("hasForUpdate") or query.items("rowMarks")) and not self.write:
            raise _not_read_only()
        scope = Scope(query, parent, query.nodes("rtable"))
        for cte in query.nodes("cteList"):
            scope.ctes[cte.text("ctename")] = Cte(cte, scope)
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

    def _write(self, query: Node, scope: Scope, flows: Sequence[Flow], conflict: Node | None) -> list[Flow]:
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

    def _targets(self, query: Node, scope: Scope) -> list[Flow]:
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

    def _set_operation(self, node: Node, scope: Scope) -> list[Flow]:
        if node.tag == "RANGETBLREF":
            columns = self._entry(scope, node.integer("rtindex"))
            if not isinstance(columns, list):
                raise NotATreeError("an arm without columns")
            return columns
        if node.tag != "SETOPERATIONSTMT":
            raise NotATreeError(f"unknown node {node.tag}")
        left, right = (self._set_operation(there(node.node(side)), scope) for side in ("larg", "rarg"))
        both = [one.either(other) for one, other in zip(left, right, strict=True)]
        for clause in node.nodes("groupClauses"):
            self._sort_operators(clause)
        if not node.flag("all") or node.integer("op") != _UNION:
            for flow in both:
                self.consume(flow)
        return both

    def _from(self, node: Node, scope: Scope) -> None:
        if node.tag == "FROMEXPR":
            for each in node.nodes("fromlist"):
                self._from(each, scope)
            self.consume(self.expression(node.get("quals"), scope))
        elif node.tag == "JOINEXPR":
            self._from(there(node.node("larg")), scope)
            self._from(there(node.node("rarg")), scope)
            self.consume(self.expression(node.get("quals"), scope))
        elif node.tag != "RANGETBLREF":
            raise NotATreeError(f"unknown node {node.tag}")

    # The range table

    def _entry(self, scope: Scope, n: int) -> list[Flow] | Flow:
        """Flows of a range table entry's columns: by position, or one for all."""
        if n not in scope.columns:
            scope.columns[n] = self._new_entry(scope, scope.entries[n - 1], n)
        return scope.columns[n]

    def _new_entry(self, scope: Scope, entry: Node, n: int) -> list[Flow] | Flow:
        kind = entry.integer("rtekind")
        if kind == RELATION:
            self.tables.add(entry.integer("relid"))
            sample = entry.node("tablesample")
            if sample is not None:
                self.volatile = True
                if sample.integer("tsmhandler") >= FIRST_USER_OID:
                    raise function_refused("a TABLESAMPLE method was not shipped with the server")
                for each in (*sample.nodes("args"), sample.get("repeatable")):
                    self.consume(self.expression(each, scope))
            return []
        if kind == SUBQUERY:
            return self.query(there(entry.node("subquery")), scope)
        if kind == JOIN:
            return []
        if kind == FUNCTION:
            flows = [self.expression(each.get("funcexpr"), scope) for each in entry.nodes("functions")]
            for flow in flows:
                self.consume(flow)
            return computed(flows)
        if kind == TABLEFUNC:
            self.volatile = True
            flow = computed(self._children(there(entry.node("tablefunc")), scope))
            self.consume(flow)
            return flow
        if kind == VALUES:
            rows = [[self.expression(each, scope) for each in listed(row)] for row in entry.items("values_lists")]
            columns = rows[0]
            for row in rows[1:]:
                columns = [one.either(other) for one, other in zip(columns, row, strict=True)]
            return columns
        if kind == CTE:
            return self._cte_reference(scope, entry)
        if kind == RESULT:
            return []
        raise NotATreeError(f"unknown range table entry {kind}")

    def _cte_reference(self, scope: Scope, entry: Node) -> list[Flow]:
        cte = scope.up(entry.integer("ctelevelsup")).ctes[entry.text("ctename")]
        flows = self._cte_columns(cte)
        if cte.node.get("search_clause") is not None or cte.node.get("cycle_clause") is not None:
            everything = computed(flows)
            self.consume(everything)
            return [*flows, everything, everything, everything]  # the columns that SEARCH and CYCLE add
        return flows

    def _cte_columns(self, cte: Cte) -> list[Flow]:
        """A recursive query is walked until its own columns no longer change: flows only ever grow, so this ends."""
        if cte.busy:
            assert cte.flows is not None
            return cte.flows
        if cte.flows is None:
            cte.busy = True
            cte.flows = [EMPTY] * len(cte.node.items("ctecolnames")) if cte.node.flag("cterecursive") else []
            query = there(cte.node.node("ctequery"))
            while True:
                found = self.query(query, cte.scope)
                if not cte.node.flag("cterecursive") or found == cte.flows[: len(found)]:
                    break
                cte.flows = [one.either(other) for one, other in zip(found, cte.flows, strict=False)]
            cte.flows = found
            cte.busy = False
        return cte.flows
