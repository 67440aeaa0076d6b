"""Whether a query's rows are unique and never null on some of its columns: a proof over the parse tree, or no.

Rejects nothing; False means "not proven". Pure. What is followed: unique indexes, primary keys, equalities of inner joins and conditions, left
joins towards their nullable side, GROUP BY, DISTINCT, set operations that compare rows, sub-queries, WITH queries and views.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailrace_gateway.compile.postgres.catalog import FIRST_USER_OID, Catalog
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError

_RELATION, _SUBQUERY, _JOIN, _CTE = 0, 1, 2, 6
_INNER, _LEFT, _RIGHT = 0, 1, 3
_DEPTH = 16

Atom = tuple[int, int]
"""(range table position, attribute)."""

ViewQuery = Callable[[int], Node | None]
"""The parse tree of a view."""


@dataclass(slots=True)
class _Joined:
    """What a FROM clause says. `both` are equalities that hold for every row; `rightward` pairs hold only from the first to the second."""

    leaves: list[int] = field(default_factory=list)
    nullable: set[int] = field(default_factory=set)
    fixed: set[Atom] = field(default_factory=set)
    both: list[tuple[Atom, Atom]] = field(default_factory=list)
    rightward: list[tuple[Atom, Atom]] = field(default_factory=list)
    provable: bool = True


class Prover:
    """Answers for one catalog."""

    def __init__(self, catalog: Catalog, view_query: ViewQuery) -> None:
        self.catalog = catalog
        self.view_query = view_query

    def unique(self, query: Node, columns: frozenset[int], depth: int = 0) -> bool:
        """Whether no two rows agree on all of the columns (numbers from 1)."""
        try:
            return depth < _DEPTH and self._unique(query, columns, depth)
        except (NotATreeError, IndexError, ValueError):
            return False

    def not_null(self, query: Node, column: int, depth: int = 0) -> bool:
        """Whether the column is never null."""
        try:
            return depth < _DEPTH and self._not_null(query, column, depth)
        except (NotATreeError, IndexError, ValueError):
            return False

    def _unique(self, query: Node, columns: frozenset[int], depth: int) -> bool:
        targets = query.nodes("targetList")
        visible = {target.integer("resno") for target in targets if not target.flag("resjunk")}
        if query.flag("hasTargetSRFs") or query.flag("hasRecursive"):
            return False
        operation = query.node("setOperations")
        if operation is not None:
            return not operation.flag("all") and columns == visible
        by_reference = {target.integer("ressortgroupref"): target.integer("resno") for target in targets}
        distinct = {by_reference[clause.integer("tleSortGroupRef")] for clause in query.nodes("distinctClause")}
        if distinct and distinct <= columns:
            return True
        if query.nodes("groupingSets"):
            return False
        if groups := {by_reference[clause.integer("tleSortGroupRef")] for clause in query.nodes("groupClause")}:
            return groups <= columns
        if query.flag("hasAggs"):
            return True
        joined = self._joined(query)
        if not joined.provable or query.integer("commandType") != 1:
            return False
        known = set(joined.fixed)
        for target in targets:
            if target.integer("resno") in columns and (atom := _atom(query, target.get("expr"))) is not None:
                known.add(atom)
        return self._closed(query, joined, known, depth)

    def _closed(self, query: Node, joined: _Joined, known: set[Atom], depth: int) -> bool:
        """Adds what follows from what is known until every table's row is determined or nothing more follows."""
        determined: set[int] = set()
        while True:
            before = (len(known), len(determined))
            for one, other in joined.both:
                if one in known or other in known:
                    known |= {one, other}
            for one, other in joined.rightward:
                if one in known or one[0] in determined:
                    known.add(other)
            for leaf in joined.leaves:
                if leaf not in determined and self._row_of(query, leaf, {number for n, number in known if n == leaf}, depth):
                    determined.add(leaf)
            for pairs in (joined.both, [(b, a) for a, b in joined.both], joined.rightward):
                known |= {other for one, other in pairs if one[0] in determined}
            if determined.issuperset(joined.leaves):
                return True
            if before == (len(known), len(determined)):
                return False

    def _row_of(self, query: Node, leaf: int, numbers: Iterable[int], depth: int) -> bool:
        """Whether these columns of a table in FROM tell its row."""
        entry = query.nodes("rtable")[leaf - 1]
        given = frozenset(numbers)
        inner = self._inner(query, entry)
        if inner is not None:
            return self.unique(inner, given, depth + 1)
        if entry.integer("rtekind") != _RELATION:
            return False
        relation = self.catalog.relations.get(entry.integer("relid"))
        if relation is None or (relation.has_children and relation.kind != "p" and entry.flag("inh")):
            return False
        return any(key <= given and self._all_not_null(relation.oid, key) for key in relation.unique)

    def _all_not_null(self, table: int, numbers: frozenset[int]) -> bool:
        """Of a unique index with nullable columns several rows may hold nulls."""
        by_number = {attribute.number: attribute for attribute in self.catalog.relations[table].attributes}
        return all(number in by_number and by_number[number].not_null for number in numbers)

    def _inner(self, query: Node, entry: Node) -> Node | None:
        """The query that stands for a table in FROM."""
        kind = entry.integer("rtekind")
        if kind == _SUBQUERY:
            return entry.node("subquery")
        if kind == _RELATION and entry.text("relkind") == "v":
            return self.view_query(entry.integer("relid"))
        if kind == _CTE and entry.integer("ctelevelsup") == 0:
            name = entry.text("ctename")
            cte = next((each for each in query.nodes("cteList") if each.text("ctename") == name), None)
            return cte.node("ctequery") if cte is not None and not cte.flag("cterecursive") else None
        return None

    def _not_null(self, query: Node, column: int, depth: int) -> bool:
        if query.node("setOperations") is not None or query.nodes("groupingSets") or query.integer("commandType") != 1:
            return False
        target = next(each for each in query.nodes("targetList") if each.integer("resno") == column)
        atom = _atom(query, target.get("expr"))
        joined = self._joined(query)
        if atom is None or not joined.provable or atom[0] in joined.nullable or atom[0] not in joined.leaves:
            return False
        entry = query.nodes("rtable")[atom[0] - 1]
        inner = self._inner(query, entry)
        if inner is not None:
            return self.not_null(inner, atom[1], depth + 1)
        if entry.integer("rtekind") != _RELATION:
            return False
        relation = self.catalog.relations.get(entry.integer("relid"))
        if relation is None or (relation.has_children and relation.kind != "p"):
            return False
        return any(attribute.number == atom[1] and attribute.not_null for attribute in relation.attributes)

    def _joined(self, query: Node) -> _Joined:
        joined = _Joined()
        jointree = query.node("jointree")
        if jointree is not None:
            self._gather(query, jointree, joined)
        return joined

    def _gather(self, query: Node, node: Node, joined: _Joined) -> list[int]:
        """Leaves below a node of the join tree."""
        if node.tag == "RANGETBLREF":
            joined.leaves.append(node.integer("rtindex"))
            return [node.integer("rtindex")]
        if node.tag == "FROMEXPR":
            leaves = [leaf for each in node.nodes("fromlist") for leaf in self._gather(query, each, joined)]
            self._equalities(query, node.get("quals"), joined, None)
            return leaves
        left, right = (self._gather(query, side, joined) for side in (node.node("larg"), node.node("rarg")) if side is not None)
        kind = node.integer("jointype")
        if kind == _INNER:
            self._equalities(query, node.get("quals"), joined, None)
        elif kind in (_LEFT, _RIGHT):
            nullable = right if kind == _LEFT else left
            joined.nullable |= set(nullable)
            self._equalities(query, node.get("quals"), joined, set(nullable))
        else:
            joined.provable = False
        return [*left, *right]

    def _equalities(self, query: Node, quals: object, joined: _Joined, nullable: set[int] | None) -> None:
        """Conditions that all hold: `a = b`, `a = constant`. Of an outer join only what they say of its nullable side."""
        if isinstance(quals, list):
            for each in quals:
                self._equalities(query, each, joined, nullable)
        if not isinstance(quals, Node):
            return
        if quals.tag == "BOOLEXPR" and quals.text("boolop") == "and":
            self._equalities(query, quals.items("args"), joined, nullable)
        if quals.tag != "OPEXPR" or not self._is_equality(quals):
            return
        one, other = (_stripped(each) for each in quals.items("args"))
        for this, that in ((one, other), (other, one)):
            atom = _atom(query, this)
            if atom is None:
                continue
            if that.tag in ("CONST", "PARAM"):
                if nullable is None or atom[0] in nullable:
                    joined.fixed.add(atom)
            elif (source := _atom(query, that)) is not None:
                if nullable is None:
                    joined.both.append((atom, source))
                elif atom[0] in nullable and source[0] not in nullable:
                    joined.rightward.append((source, atom))

    def _is_equality(self, node: Node) -> bool:
        """An equality that was shipped with the server, under a collation that was (those are deterministic)."""
        known = self.catalog.functions.get(node.integer("opfuncid"))
        if known is None or node.integer("inputcollid") >= FIRST_USER_OID or len(node.items("args")) != 2:
            return False
        name = known.signature.partition("(")[0]
        return name.endswith("eq") and known.infallible and known.allowed


def _stripped(node: object) -> Node:
    while isinstance(node, Node) and node.tag == "RELABELTYPE":
        node = node.get("arg")
    if not isinstance(node, Node):
        raise NotATreeError("an operand is missing")
    return node


def _atom(query: Node, node: object) -> Atom | None:
    """The table column that an expression is, through joins' own names for it."""
    for _ in range(_DEPTH):
        if not isinstance(node, Node):
            return None
        if node.tag == "RELABELTYPE":
            node = node.get("arg")
            continue
        if node.tag != "VAR" or node.integer("varlevelsup") != 0 or node.integer("varattno") <= 0:
            return None
        entry = query.nodes("rtable")[node.integer("varno") - 1]
        if entry.integer("rtekind") != _JOIN:
            return node.integer("varno"), node.integer("varattno")
        node = entry.items("joinaliasvars")[node.integer("varattno") - 1]
    return None
