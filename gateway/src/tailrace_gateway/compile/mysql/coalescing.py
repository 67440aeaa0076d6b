"""One statement for many callers of a saved query on MariaDB and MySQL: the rewrite, and whether it may stand for the singles.

Callers come as one JSON array of arrays. MariaDB has no LATERAL, so only statements whose meaning survives a join are rewritten: one SELECT without
grouping over inner and left joins, which is proven to give each caller at most one row, or has a total ORDER BY and a small LIMIT. The saved text stays
as it is but for its parameters, a `*` and that end. What can't be proven, or would be planned worse, is not coalesced (`NotCoalescedError`), which
refuses nothing. IO: Prepare and EXPLAIN through `Session`; neither runs the query.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from tailrace_contract.plan import MysqlPlace, ParamType, Returns, StatementPlan

from tailrace_gateway.compile.identifiers import quoted
from tailrace_gateway.compile.lexer import Kind, Token
from tailrace_gateway.compile.mysql.catalog import Catalog
from tailrace_gateway.compile.mysql.estimates import BATCH, worse
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.placeholders import Placed
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.spec import ParamSpec, QuerySpec
from tailrace_gateway.compile.sqlite.catalog import Table
from tailrace_gateway.compile.sqlite.uniqueness import Atom, Proof
from tailrace_gateway.serve.mysql.wire import Column

MOST_ROWS = 100
LONGEST_TEXT = 1000
"""Characters of a text parameter: a longer one would not fit a row of JSON_TABLE."""

_B = BATCH
_ORD = "tailrace_batch_ord"
_INTEGERS = (1, 2, 3, 8, 9)
_JSON_TYPES = {MysqlPlace.INTEGER: "BIGINT", MysqlPlace.BOOLEAN: "TINYINT"}


class NotCoalescedError(Exception):
    """Each call keeps its own statement. `code`: why, for `explain`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Single:
    """A compiled single statement. `told` are its tokens without blanks; `typed` its columns once parameters have types."""

    placed: Placed
    places: tuple[int, ...]
    told: Sequence[Token]
    typed: tuple[Column, ...]
    exclusive_because: str


def batch(session: Session, catalog: Catalog, query: QuerySpec, single: Single) -> StatementPlan:
    """The batch statement; NotCoalescedError. Its text has one place; `params` and `oids` say what each element of a caller's array is."""
    if query.write:
        raise NotCoalescedError("write")
    if query.page is not None:
        raise NotCoalescedError("paged")
    if single.exclusive_because:
        raise NotCoalescedError("exclusive")
    if not single.placed.params:
        raise NotCoalescedError("no_parameters")
    if not _has_json_table(session):
        raise NotCoalescedError("server_version")
    sql = rewritten(catalog, query, single)
    try:
        described = session.prepare(sql, 1)
    except ServerError:
        raise NotCoalescedError("not_prepared") from None
    if len(described) != len(single.typed) + 1 or not all(map(_alike, described[1:], single.typed)):
        raise NotCoalescedError("other_shape")
    params = [query.params[n] for n in single.placed.params]
    if code := worse(session, single.placed.sql, single.places, params, sql):
        raise NotCoalescedError(code)
    return StatementPlan(sql=sql, params=single.placed.params, oids=single.places)


def _has_json_table(session: Session) -> bool:
    digits = session.version.removeprefix("5.5.5-").split("-")[0].split(".")
    least = (10, 6) if session.is_mariadb else (8, 0)
    return all(part.isdigit() for part in digits[:2]) and tuple(int(part) for part in digits[:2]) >= least


def _alike(batch: Column, single: Column) -> bool:
    """The same texts: one name and one way to write values."""
    same = batch.type == single.type or (batch.type in _INTEGERS and single.type in _INTEGERS)
    return batch.name == single.name and same and batch.encoding == single.encoding


def rewritten(catalog: Catalog, query: QuerySpec, single: Single) -> str:
    """The batch's text; NotCoalescedError."""
    tree = _numbered(single)
    if not isinstance(tree, exp.Select):
        raise NotCoalescedError("shape")
    known = {"expressions", "from_", "joins", "where", "order", "limit"}
    if any(value for name, value in tree.args.items() if name not in known) or tree.args.get("from_") is None:
        raise NotCoalescedError("shape")
    if any(node.find_ancestor(exp.Select) is tree for node in tree.find_all(exp.AggFunc, exp.Window)):
        raise NotCoalescedError("shape")
    _check_joins(tree)
    pieces = _with_columns(catalog, query, single, tree)
    words = [single.placed.sql[token.start : token.end].lower() for token in single.told]
    top = _top_level(words)
    if top.get("select") != 0 or "from" not in top or "union" in top:
        raise NotCoalescedError("shape")
    proof = Proof(tree, catalog)
    if not proof.provable or any(column.name.startswith(_B) for _, table in proof.tables for column in table.columns):
        raise NotCoalescedError("not_proven")
    known_atoms = _closure(proof, set(proof.fixed))
    listed = _listed(single, pieces, words, top["from"], tree)
    source = f"JSON_TABLE(?, '$[*]' COLUMNS ({', '.join(_json_columns(query, single))})) AS {_B}"
    order, limit = tree.args.get("order"), tree.args.get("limit")
    end = min(top.get("order", len(words)), top.get("limit", len(words)))
    rest = _text(single, pieces, top["from"] + 1, end)
    if proof.closed(set(known_atoms)):
        if limit is not None and not _number(limit):
            raise NotCoalescedError("limit")
        return f"SELECT {_B}.{_ORD} AS ord, {listed} FROM {source} STRAIGHT_JOIN {rest}"  # noqa: S608
    most = _number(limit) if limit is not None else None
    if order is None or most is None or not 0 < most <= MOST_ROWS:
        raise NotCoalescedError("many_rows")
    if not proof.closed(_closure(proof, known_atoms | _ordered(proof, tree, order))):
        raise NotCoalescedError("order_not_total")
    cap = min(most, 2) if query.returns is Returns.ONE else most
    by = _text(single, pieces, top["order"] + 2, top["limit"])
    names = ", ".join(f"{_B}_rows.{quoted(column.name, '`')}" for column in single.typed)
    return (
        f"SELECT {_B}_rows.{_ORD} AS ord, {names} FROM (SELECT {_B}.{_ORD}, {listed}, row_number() OVER (PARTITION BY {_B}.{_ORD} ORDER BY {by})"  # noqa: S608
        f" AS {_B}_n FROM {source} STRAIGHT_JOIN {rest}) AS {_B}_rows WHERE {_B}_n <= {cap} ORDER BY {_ORD}, {_B}_n"
    )


def _check_joins(tree: exp.Select) -> None:
    for join in tree.args.get("joins") or ():
        if str(join.args.get("side") or "").upper() not in ("", "LEFT") or join.args.get("method") or join.args.get("using"):
            raise NotCoalescedError("join")
        if not isinstance(join.this, exp.Table):
            raise NotCoalescedError("join")


def _top_level(words: Sequence[str]) -> dict[str, int]:
    """Where the clauses of the outermost SELECT begin."""
    depth = 0
    found: dict[str, int] = {}
    for n, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if not depth and word in ("select", "from", "where", "order", "limit", "union", "intersect", "except"):
            found.setdefault("union" if word in ("intersect", "except") else word, n)
    return found


def _text(single: Single, pieces: Mapping[int, str], first: int, end: int) -> str:
    """Tokens `first` to before `end`, without comments, parameters replaced. What touched stays together: `count(`, `->>`."""
    parts = []
    for n in range(first, end):
        token = single.told[n]
        parts.append("" if n == first or single.told[n - 1].end == token.start else " ")
        parts.append(pieces.get(n) or single.placed.sql[token.start : token.end])
    return "".join(parts)


def _listed(single: Single, pieces: Mapping[int, str], words: Sequence[str], end: int, tree: exp.Select) -> str:
    """The select list; a `*` becomes the tables' own, for the callers' columns are none of its."""
    first = tree.args["from_"].this
    names = [first.alias_or_name, *(join.this.alias_or_name for join in tree.args.get("joins") or ())]
    stars = ", ".join(f"{quoted(name, '`')}.*" for name in names)
    whole = [n for n in range(1, end) if words[n] == "*" and words[n - 1] in ("select", ",") and (n + 1 == end or words[n + 1] == ",")]
    return _text(single, {**pieces, **dict.fromkeys(whole, stars)}, 1, end)


def _number(limit: exp.Expr) -> int | None:
    node = limit.expression
    is_plain = isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit() and not limit.args.get("offset")
    return int(node.name) if is_plain else None


def _ordered(proof: Proof, tree: exp.Select, order: exp.Expr) -> set[Atom]:
    """The tables' columns in ORDER BY; a name of a result column that is no such column can't stand in a window."""
    aliases = {each.alias.lower(): each.this for each in tree.expressions if isinstance(each, exp.Alias)}
    atoms = set()
    for each in order.expressions:
        node = each.this if isinstance(each, exp.Ordered) else each
        if not isinstance(node, exp.Column):
            raise NotCoalescedError("order")
        shadow = aliases.get(node.name.lower()) if not node.table else None
        if shadow is not None and not (isinstance(shadow, exp.Column) and shadow.name.lower() == node.name.lower()):
            raise NotCoalescedError("order")
        atom = proof.atom(node)
        if atom is None:
            raise NotCoalescedError("order")
        atoms.add(atom)
    return atoms


def _closure(proof: Proof, known: set[Atom]) -> set[Atom]:
    """What follows: by equalities, and by equality with a sub-query over nothing else than what is known."""
    known = set(known)
    while True:
        before = len(known)
        for one, other in proof.both:
            if one in known or other in known:
                known |= {one, other}
        known |= {other for one, other in proof.rightward if one in known}
        for atom, needed in _from_subqueries(proof):
            if needed <= known:
                known.add(atom)
        if len(known) == before:
            return known


def _from_subqueries(proof: Proof) -> Iterator[tuple[Atom, set[Atom]]]:
    """`column = (SELECT …)` among the conditions that hold for every row, and the outer columns that the sub-query rests on."""
    where = proof.tree.args.get("where")
    conditions = [where.this] if where is not None else []
    for join in proof.tree.args.get("joins") or ():
        if str(join.args.get("side") or "").upper() == "" and join.args.get("on") is not None:
            conditions.append(join.args["on"])
    while conditions:
        node = conditions.pop()
        if isinstance(node, exp.Paren):
            conditions.append(node.this)
        elif isinstance(node, exp.And):
            conditions += [node.this, node.expression]
        elif isinstance(node, exp.EQ):
            for this, that in ((node.this, node.expression), (node.expression, node.this)):
                atom = proof.atom(this)
                if atom is not None and isinstance(that, exp.Subquery):
                    needed = _outer(proof, that)
                    if needed is not None:
                        yield atom, needed


def _outer(proof: Proof, query: exp.Subquery) -> set[Atom] | None:
    """Columns of the tables around that a sub-query names; None where that is not certain."""
    own = {table.alias_or_name.lower() for table in query.find_all(exp.Table)} | {
        each.alias.lower() for each in query.find_all(exp.Subquery)
    }
    needed = set()
    for column in query.find_all(exp.Column):
        if not column.table:
            return None
        if column.table.lower() not in own:
            atom = proof.atom(column)
            if atom is None:
                return None
            needed.add(atom)
    return needed


# Parameters


def _json_columns(query: QuerySpec, single: Single) -> Iterator[str]:
    yield f"{_ORD} FOR ORDINALITY"
    for n, (place, param) in enumerate(zip(single.places, single.placed.params, strict=True), 1):
        kind = _JSON_TYPES.get(MysqlPlace(place)) or f"VARCHAR({_length(query.params[param])}) CHARACTER SET utf8mb4"
        yield f"{_B}_p{n} {kind} PATH '$[{n - 1}]' NULL ON EMPTY ERROR ON ERROR"


def _length(param: ParamSpec) -> int:
    most = 36 if param.type is ParamType.UUID else param.max_length
    if param.array or param.type not in (ParamType.STRING, ParamType.UUID):
        raise NotCoalescedError("parameter_type")
    if most is None or most > LONGEST_TEXT:
        raise NotCoalescedError("parameter_length")
    return max(1, most)


def _with_columns(catalog: Catalog, query: QuerySpec, single: Single, tree: exp.Expr) -> dict[int, str]:
    """What stands in the place of each parameter, by token. A text takes the collation of the column that it is compared with, as a literal would."""
    places = [n for n, token in enumerate(single.told) if token.kind is Kind.FOREIGN]
    nodes = sorted(tree.find_all(exp.Placeholder), key=_number_of)
    if len(nodes) != len(places) or [_number_of(node) for node in nodes] != list(range(1, len(nodes) + 1)):
        raise NotCoalescedError("parameter_use")
    found = {}
    for n, (at, node) in enumerate(zip(places, nodes, strict=True), 1):
        if node.find_ancestor(exp.Limit, exp.Offset, exp.Interval) or _in_from(node):
            raise NotCoalescedError("parameter_use")
        name = f"{_B}.{_B}_p{n}"
        if MysqlPlace(single.places[n - 1]) not in _JSON_TYPES:
            _length(query.params[single.placed.params[n - 1]])
            name = f"({name} COLLATE {_collation(catalog, node)})"
        found[at] = name
    return found


def _numbered(single: Single) -> exp.Expr:
    """The syntax tree with a name for each place, so that it can be told which token it is."""
    parts, at, number = [], 0, 0
    for token in single.told:
        if token.kind is Kind.FOREIGN:
            number += 1
            parts += [single.placed.sql[at : token.start], f":tailrace_batch_p{number}"]
            at = token.end
    try:
        return sqlglot.parse_one("".join([*parts, single.placed.sql[at:]]), dialect="mysql")
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise NotCoalescedError("shape") from None


def _number_of(node: exp.Expr) -> int:
    name = node.name.removeprefix("tailrace_batch_p")
    return int(name) if name.isdigit() else 0


def _in_from(node: exp.Expr) -> bool:
    """Inside a table of a FROM, which does not see what stands beside it."""
    inside: exp.Expr | None = node
    while inside is not None:
        if isinstance(inside.parent, exp.From) or (isinstance(inside.parent, exp.Join) and inside.arg_key == "this"):
            return True
        inside = inside.parent
    return False


def _collation(catalog: Catalog, node: exp.Expr) -> str:
    parent = node.parent
    if not isinstance(parent, exp.EQ):
        raise NotCoalescedError("parameter_use")
    other = parent.expression if parent.this is node else parent.this
    if not isinstance(other, exp.Column):
        raise NotCoalescedError("parameter_use")
    table = _table_of(catalog, other)
    collation = catalog.collations.get((table.name, other.name.lower()), "") if table is not None else ""
    if not collation.startswith("utf8mb4_") or not collation.replace("_", "").isalnum():
        raise NotCoalescedError("collation")
    return collation


def _table_of(catalog: Catalog, column: exp.Column) -> Table | None:
    """The table of the innermost SELECT that has the column; None where that is not certain."""
    around = column.find_ancestor(exp.Select)
    while around is not None:
        first = around.args.get("from_")
        sources = [first.this] if first is not None else []
        sources += [join.this for join in around.args.get("joins") or ()]
        found = []
        for source in sources:
            table = (
                catalog.named(source.db, source.name) if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) else None
            )
            if table is None:
                return None
            named = not column.table or source.alias_or_name.lower() == column.table.lower()
            if named and table.column(column.name.lower()) is not None:
                found.append(table)
        if found:
            return found[0] if len(found) == 1 and found[0].kind == "table" else None
        around = around.find_ancestor(exp.Select)
    return None
