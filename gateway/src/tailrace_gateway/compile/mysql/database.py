"""One MySQL or MariaDB during one compile. Rejects units (`RefusedError`). IO through `Session`.

The tokens say which functions are called; the syntax tree over the live catalog says which tables are read and where each column stands; the
server's own description of the result may only add origins. What only one of them knows is refused.
"""

from dataclasses import replace

import sqlglot
from sqlglot import exp
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import BigNumbers, CoalescePlan, Engine, StatementPlan

from tailrace_gateway.compile.facts import Facts, RoleOnDatabase, param_plan
from tailrace_gateway.compile.identifiers import quoted
from tailrace_gateway.compile.lanes import exclusive_because
from tailrace_gateway.compile.lexer import Kind, Token, tokens
from tailrace_gateway.compile.lineage import Flow, Lineage, Origin
from tailrace_gateway.compile.mysql import catalog as catalogs
from tailrace_gateway.compile.mysql import rules
from tailrace_gateway.compile.mysql.coalescing import NotCoalescedError, Single, batch
from tailrace_gateway.compile.mysql.functions import VOLATILE, called, native
from tailrace_gateway.compile.mysql.lineage import origins, walk
from tailrace_gateway.compile.mysql.page import page_plan
from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.mysql.types import column_plan, place_of
from tailrace_gateway.compile.placeholders import Placed, first_word, place
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.refusal import RefusedError
from tailrace_gateway.compile.spec import ConnectionSpec, QuerySpec, RoleSpec
from tailrace_gateway.serve.mysql.wire import Column, Type

_READS = frozenset({"select", "values", "with", "("})
_WRITES = frozenset({"insert", "update", "delete"})
_KIND_HINT = "a saved query is one SELECT or VALUES that changes nothing and locks nothing; with write: true one INSERT, UPDATE or DELETE"

_NATIVE: dict[str, frozenset[str]] = {}
"""Functions of a server's version."""


class MysqlDatabase:
    """Implements `facts.Database`. After `close` it still resolves roles from what it has read."""

    engine = Engine.MYSQL

    def __init__(self, session: Session, spec: ConnectionSpec, before: "MysqlDatabase | None") -> None:
        self._session = session
        self.session = spec.session
        self._spec = spec
        self.catalog = catalogs.load(session)
        self.fingerprint = self.catalog.fingerprint
        self.system = self.catalog.system
        same = before is not None and before.fingerprint == self.fingerprint
        self._warnings: tuple[str, ...] = before.warnings() if same and before is not None else self._asked_warnings()

    def facts(self, query: QuerySpec, big_numbers: BigNumbers) -> Facts:
        """See `facts.Database`."""
        if first_word(query.sql, Engine.MYSQL) not in (_WRITES if query.write else _READS):
            raise RefusedError(Refusal.NOT_READ_ONLY, _KIND_HINT)
        placed = place(query.sql, [param.name for param in query.params], Engine.MYSQL)
        told = [token for token in tokens(placed.sql, Engine.MYSQL) if token.kind is not Kind.BLANK]
        functions = called(placed.sql, told, self._native(), write=query.write)
        tree = _parsed(placed.sql, told)
        words = {placed.sql[token.start : token.end].lower() for token in told if token.kind is Kind.WORD}
        if tree.find(exp.Lock, exp.Command) or (not query.write and words & {"into", "procedure", "handler"}):
            raise RefusedError(Refusal.NOT_READ_ONLY, _KIND_HINT)
        places = tuple(place_of(query.params[n]) for n in placed.params)
        try:
            described = self._session.prepare(placed.sql, len(places), write=query.write)
        except ServerError as error:
            raise RefusedError(Refusal.DATABASE_REFUSED, "the database does not accept the statement", error.message) from None
        if not described and tree.args.get("returning") is not None:
            described = self._returned(placed.sql, told, tree)
        lineage = self._lineage(tree, described)
        shown = described if query.write else self._typed(placed, places, described)
        columns = tuple(column_plan(prepared, typed, big_numbers) for prepared, typed in zip(described, shown, strict=True))
        page = None
        if query.page is not None:
            page, columns = page_plan(self._session, self.catalog, query.page, tree, placed, places, described, columns)
        because = exclusive_because(query, page, bool(functions & VOLATILE), _limit(tree))
        coalesce, alone = self._coalesced(query, Single(placed, places, told, shown, because))
        return Facts(
            params=tuple(param_plan(param) for param in query.params),
            columns=columns,
            statement=StatementPlan(sql=placed.sql, params=placed.params, oids=places),
            page=page,
            lineage=lineage,
            exclusive_because=because,
            coalesce=coalesce,
            not_coalesced_because=alone,
            depends=self.fingerprint if any(self._is_view(table) for table in lineage.tables) else "",
        )

    def _returned(self, sql: str, told: list[Token], tree: exp.Expr) -> tuple[Column, ...]:
        """MariaDB describes nothing of a RETURNING before it is executed: the same list is prepared over the written table."""
        words = [sql[token.start : token.end].lower() for token in told]
        at = len(words) - 1 - words[::-1].index("returning")
        target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        table = f"{quoted(target.db or self.catalog.default, '`')}.{quoted(target.name, '`')}"
        try:
            return self._session.prepare(f"SELECT {sql[told[at].end :]}\nFROM {table}", words[at:].count("?"))
        except ServerError as error:
            raise RefusedError(Refusal.DATABASE_REFUSED, "the database does not accept the statement", error.message) from None

    def _is_view(self, table: int | str) -> bool:
        known = self.catalog.tables.get(str(table))
        return known is not None and known.kind == "view"

    def _native(self) -> frozenset[str]:
        """Asked once a process and version."""
        version = self._session.version
        if version not in _NATIVE:
            _NATIVE[version] = native(self._session.objection)
        return _NATIVE[version]

    def _lineage(self, tree: exp.Expr, described: tuple[Column, ...]) -> Lineage:
        lineage, names = walk(tree, self.catalog)
        if len(described) != len(names):
            raise RefusedError(Refusal.NOT_PARSED, "the server shows another number of columns than the text")
        shown = [column.name for column in described]
        columns = []
        for flow, name, column in zip(lineage.columns, names, described, strict=True):
            if not name:
                raise RefusedError(Refusal.UNNAMED_COLUMN, "a result column has no name: give it one with AS")
            if column.name.lower() != name:
                raise RefusedError(
                    Refusal.NOT_PARSED, "the server shows another name of a column than the text: list the columns instead of `*`"
                )
            if shown.count(column.name) > 1:
                raise RefusedError(Refusal.DUPLICATE_COLUMN, f"two result columns are named `{column.name}`: rename one with AS")
            origin = origins(column.schema, column.org_table, column.org_name, self.catalog) if column.org_table else None
            if origin is not None and origin not in flow.origins:
                flow = Flow(flow.plain | {origin}, flow.computed) if not flow.computed else Flow(flow.plain, flow.computed | {origin})
            if column.type == Type.BIT and (origin is None or self.catalog.types.get((str(origin[0]), str(origin[1]))) != "bit"):
                # Servers send the digits of a BIT that an expression makes, and describe it as bits.
                raise RefusedError(Refusal.NOT_PARSED, f"`{column.name}` is a BIT that an expression makes: CAST it AS UNSIGNED")
            columns.append(flow)
        return replace(lineage, columns=tuple(columns))

    def _typed(self, placed: Placed, places: tuple[int, ...], described: tuple[Column, ...]) -> tuple[Column, ...]:
        """A Prepare does not know what parameters are: with some, the types come from a result that is empty."""
        if not places:
            return described
        try:
            typed = self._session.typed(f"SELECT * FROM (\n{placed.sql}\n) AS tailrace_describe LIMIT 0", places)  # noqa: S608
        except ServerError:
            return described
        return typed if len(typed) == len(described) else described

    def _coalesced(self, query: QuerySpec, single: Single) -> tuple[CoalescePlan | None, str]:
        """The batch's plan, or None and why not."""
        if query.coalesce is None:
            return None, "off"
        try:
            statement = batch(self._session, self.catalog, query, single)
        except NotCoalescedError as why:
            return None, why.code
        return CoalescePlan(statement=statement, max_batch=query.coalesce.max_batch, max_in_flight=query.coalesce.max_in_flight), ""

    def role(self, role: RoleSpec) -> RoleOnDatabase:
        """See `facts.Database`."""
        return rules.resolve(role, self.catalog)

    def table_name(self, table: int | str) -> str:
        """See `facts.Database`."""
        return str(table)

    def column_name(self, origin: Origin) -> str:
        """See `facts.Database`."""
        return f"{origin[0]}.{origin[1]}"

    def warnings(self) -> tuple[str, ...]:
        """See `facts.Database`."""
        return self._warnings

    def _asked_warnings(self) -> tuple[str, ...]:
        try:
            granted = {row[0] for row in self._session.rows("SELECT privilege_type FROM information_schema.user_privileges")}
        except ServerError:
            return ()
        if granted & {"SUPER", "FILE", "CREATE USER", "SYSTEM_USER"}:
            return (
                f"connection {self._spec.name}: its user may administer the server or read its files; give it SELECT on what the API shows",
            )
        return ()

    def close(self) -> None:
        """See `facts.Database`."""
        self._session.close()


def _parsed(sql: str, told: list[Token]) -> exp.Expr:
    """The syntax tree, of the very tokens that we saw: where strings and quoted names begin and end, both must agree."""
    try:
        found = sqlglot.tokenize(sql, dialect="mysql")
        tree = sqlglot.parse_one(sql, dialect="mysql")
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise RefusedError(Refusal.NOT_PARSED, "the parser does not understand the statement") from None
    theirs = {(token.start, token.end + 1) for token in found if token.token_type.name.endswith("STRING") and sql[token.end] in "'\""}
    ours = {(token.start, token.end) for token in told if token.kind is Kind.STRING}
    if theirs != ours:
        raise RefusedError(Refusal.NOT_PARSED, "the parser cuts the statement's strings in another way")
    return tree


def _limit(tree: exp.Expr) -> int | None:
    """A constant LIMIT of the whole query."""
    limit = tree.args.get("limit")
    number = limit.expression if isinstance(limit, exp.Limit) else None
    return int(number.name) if isinstance(number, exp.Literal) and not number.is_string and number.name.isdigit() else None
