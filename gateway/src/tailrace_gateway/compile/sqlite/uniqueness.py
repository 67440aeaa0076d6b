"""Whether a query's rows (SQLite's or MySQL's) are unique and never null on some result columns: a proof over the syntax tree, or no. Pure.

Proven are queries over the file's own tables with inner and left joins, and GROUP BY. Anything else: "not proven".
"""

from collections.abc import Sequence

from sqlglot import exp

from tailrace_gateway.compile.sqlite.catalog import ROWID_NAMES, Catalog, Table

Atom = tuple[int, str]
"""(position in FROM, column)."""


class Proof:
    """About one SELECT. `expressions` are its result columns by position, stars spelled out; None where it is no plain column."""

    def __init__(self, tree: exp.Expr, catalog: Catalog) -> None:
        self.tables: list[tuple[str, Table]] = []
        self.nullable: set[int] = set()
        self.both: list[tuple[Atom, Atom]] = []
        self.rightward: list[tuple[Atom, Atom]] = []
        self.fixed: set[Atom] = set()
        self.provable = isinstance(tree, exp.Select) and not any(tree.args.get(name) for name in ("with_", "distinct"))
        self.tree = tree
        if self.provable and isinstance(tree, exp.Select):
            self._from(tree, catalog)
        self.expressions: list[Atom | None] = self._result() if self.provable else []

    def _from(self, tree: exp.Select, catalog: Catalog) -> None:
        first = tree.args.get("from_")
        joins = tree.args.get("joins") or []
        if first is None:
            self.provable = False
            return
        for node in (first.this, *(join.this for join in joins)):
            table = catalog.named(node.db, node.name) if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) else None
            if table is None or table.kind != "table" or node.args.get("joins"):
                self.provable = False
                return
            self.tables.append((node.alias_or_name.lower(), table))
        for n, join in enumerate(joins, 1):
            side = str(join.args.get("side") or "").upper()
            if side not in ("", "LEFT") or join.args.get("method") or join.args.get("using"):
                self.provable = False
                return
            if side == "LEFT":
                self.nullable.add(n)
            if join.args.get("on") is not None:
                self._equalities(join.args["on"], n if side == "LEFT" else None)
        if tree.args.get("where") is not None:
            self._equalities(tree.args["where"].this, None)

    def _equalities(self, node: exp.Expr, nullable: int | None) -> None:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.And):
            self._equalities(node.this, nullable)
            self._equalities(node.expression, nullable)
        if not isinstance(node, exp.EQ):
            return
        for this, that in ((node.this, node.expression), (node.expression, node.this)):
            atom = self.atom(this)
            if atom is None:
                continue
            if isinstance(that, (exp.Literal, exp.Placeholder)):
                if nullable in (None, atom[0]):
                    self.fixed.add(atom)
            elif (source := self.atom(that)) is not None:
                if nullable is None:
                    self.both.append((atom, source))
                elif atom[0] == nullable != source[0]:
                    self.rightward.append((source, atom))

    def atom(self, node: exp.Expr | None) -> Atom | None:
        """The table's column that an expression is."""
        while isinstance(node, (exp.Paren, exp.Alias)):
            node = node.this
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None
        found = []
        for n, (alias, table) in enumerate(self.tables):
            name = node.name.lower()
            if node.table and node.table.lower() != alias:
                continue
            if table.column(name) is not None:
                found.append((n, name))
            elif name in ROWID_NAMES and table.row_key:
                found.append((n, table.row_key))
        return found[0] if len(found) == 1 else None

    def _result(self) -> list[Atom | None]:
        result: list[Atom | None] = []
        for each in self.tree.expressions:
            star = (
                each
                if isinstance(each, exp.Star)
                else each.this
                if isinstance(each, exp.Column) and isinstance(each.this, exp.Star)
                else None
            )
            if star is None:
                result.append(self.atom(each))
                continue
            wanted = each.table.lower() if isinstance(each, exp.Column) else ""
            result += [
                (n, column.name) for n, (alias, table) in enumerate(self.tables) if wanted in ("", alias) for column in table.columns
            ]
        return result

    def not_null(self, position: int) -> bool:
        """Whether the result column is never null."""
        atom = self.expressions[position] if self.provable and position < len(self.expressions) else None
        if atom is None or atom[0] in self.nullable:
            return False
        column = self.tables[atom[0]][1].column(atom[1])
        return column is not None and column.not_null

    def unique(self, positions: Sequence[int]) -> bool:
        """Whether no two rows agree on all of the result columns."""
        if not self.provable or any(position >= len(self.expressions) for position in positions):
            return False
        known = {atom for position in positions if (atom := self.expressions[position]) is not None}
        group = self.tree.args.get("group")
        if group is not None:
            groups = [self.atom(each) for each in group.expressions]
            return bool(groups) and all(atom is not None and atom in known for atom in groups)
        if any(
            each.find_ancestor(exp.Select) is self.tree and not isinstance(each.parent, exp.Window)
            for each in self.tree.find_all(exp.AggFunc)
        ):
            return False
        return self.closed(known | self.fixed)

    def closed(self, known: set[Atom]) -> bool:
        """Whether these columns, once known, tell the row of every table."""
        known = set(known)
        determined: set[int] = set()
        while True:
            before = (len(known), len(determined))
            for one, other in self.both:
                if one in known or other in known or one[0] in determined or other[0] in determined:
                    known |= {one, other}
            for one, other in self.rightward:
                if one in known or one[0] in determined:
                    known.add(other)
            for n, (_, table) in enumerate(self.tables):
                given = {column for at, column in known if at == n}
                if any(key <= given and self._all_not_null(table, key) for key in table.unique):
                    determined.add(n)
            if len(determined) == len(self.tables):
                return True
            if before == (len(known), len(determined)):
                return False

    def _all_not_null(self, table: Table, key: frozenset[str]) -> bool:
        return all((column := table.column(name)) is not None and column.not_null for name in key)
