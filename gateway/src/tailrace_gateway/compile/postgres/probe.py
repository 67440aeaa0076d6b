"""What PostgreSQL itself says that a statement touches: its parse tree and the dependencies of a function whose body it is.

The function is made in the session's temporary schema inside a transaction that is rolled back: every name is resolved, nothing is planned and
nothing runs. Rejects (`RefusedError`) what no such function can hold; `UnavailableError` where none can be made (no TEMP right, a standby, a
server older than 14). IO through `Session`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.postgres import nodetree
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError
from tailrace_gateway.compile.postgres.session import ServerError, Session
from tailrace_gateway.compile.refusal import RefusedError

_NAME = "tailrace_probe"


class UnavailableError(Exception):
    """This session can make no probe."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One row of pg_depend: `catalog` (pg_class, pg_proc, …), OID, and the attribute number of a column."""

    catalog: str
    oid: int
    attribute: int


@dataclass(frozen=True, slots=True)
class Probed:
    """The tree of the statement and what pg_depend lists beyond what was shipped with the server."""

    query: Node
    depends: tuple[Dependency, ...]


def probe(session: Session, sql: str, params: Sequence[int]) -> Probed:
    """Probes one statement whose parameters have the given types."""
    if not available(session):
        raise UnavailableError
    types = [str(name) for (name,) in session.rows(_TYPE_NAMES, (list(params),))] if params else []
    try:
        with session.rolled_back("BEGIN READ WRITE"):
            session.command(f"CREATE FUNCTION pg_temp.{_NAME}({', '.join(types)}) RETURNS void LANGUAGE sql BEGIN ATOMIC {sql}\n; END")
            rows = session.rows(
                "SELECT oid::int8, prosqlbody::text FROM pg_proc WHERE proname = $1 AND pronamespace = pg_my_temp_schema()", (_NAME,)
            )
            oid, text = rows[0]
            depends = session.rows(_DEPENDS, (oid,))
    except ServerError as error:
        if error.sqlstate in ("25006", "42501"):
            raise UnavailableError from None
        # Describe took it, so its syntax is right: it is a statement of a kind that no function body can hold (INTO, SHOW, COPY, …).
        code = Refusal.NOT_READ_ONLY if error.sqlstate in ("0A000", "42601") else Refusal.DATABASE_REFUSED
        raise RefusedError(
            code, f"the database does not take it as one plain statement (SQLSTATE {error.sqlstate})", error.message
        ) from None
    try:
        found = nodetree.queries(text) if text else []
    except NotATreeError as error:
        raise RefusedError(Refusal.NOT_PARSED, "the server's parse tree cannot be read", str(error)) from None
    if len(found) != 1:
        raise RefusedError(Refusal.NOT_PARSED, "it is not one statement")
    return Probed(found[0], tuple(Dependency(*row) for row in depends))


def available(session: Session) -> bool:
    """Whether a probe can be made here."""
    return bool(
        session.rows(
            "SELECT has_database_privilege(current_database(), 'TEMP') AND NOT pg_is_in_recovery() AND current_setting('server_version_num')::int >= 140000"
            " AND has_language_privilege('sql', 'USAGE')"
        )[0][0]
    )


_TYPE_NAMES = (
    "SELECT quote_ident(nspname) || '.' || quote_ident(typname) FROM unnest($1::int8[]) WITH ORDINALITY AS p (type, n)"
    " JOIN pg_type t ON t.oid = p.type JOIN pg_namespace s ON s.oid = typnamespace ORDER BY n"
)
_DEPENDS = (
    "SELECT DISTINCT refclassid::regclass::text, refobjid::int8, refobjsubid FROM pg_depend"
    " WHERE classid = 'pg_proc'::regclass AND objid = $1::int8::oid AND deptype = 'n' AND NOT (refclassid = 'pg_namespace'::regclass AND refobjid = pg_my_temp_schema())"
)
