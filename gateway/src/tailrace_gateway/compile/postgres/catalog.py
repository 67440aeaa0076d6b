"""What a PostgreSQL has: types, tables, columns, indexes, who inherits from whom, and a fingerprint of all that plans depend on.

Rejects nothing. IO: reads the system catalogs through `Session`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace_gateway.compile.postgres import allowed
from tailrace_gateway.compile.postgres.session import Session
from tailrace_gateway.compile.postgres.types import TypeInfo, Types

FIRST_USER_OID = 16384
"""Smaller OIDs were shipped with the server."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A live column of a relation."""

    number: int
    name: str
    type: int
    not_null: bool
    generated: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, view, materialized view, partitioned or foreign table. `kind` is pg_class.relkind.

    `unique`: sets of attribute numbers, each unique over the whole relation (immediate, valid, total, on plain columns).
    """

    oid: int
    schema: str
    name: str
    kind: str
    owner: str
    attributes: tuple[Attribute, ...]
    unique: tuple[frozenset[int], ...] = ()
    has_children: bool = False
    row_security: bool = False

    def attribute(self, name: str) -> Attribute | None:
        """By its name."""
        return next((attribute for attribute in self.attributes if attribute.name == name), None)


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A function shipped with the server, in pg_catalog. `infallible`: no value of its arguments' types makes it fail."""

    signature: str
    volatile: bool
    allowed: bool
    infallible: bool


@dataclass(frozen=True, slots=True)
class Catalog:
    """One database at one moment, for one search path."""

    fingerprint: str
    server_version: int
    search_path: tuple[str, ...]
    """Schemas that exist, in the order in which names are looked up."""
    types: Types
    relations: Mapping[int, Relation]
    by_name: Mapping[tuple[str, str], int]
    system: frozenset[int | str]
    parents: Mapping[int, tuple[int, ...]]
    """Direct parents by inheritance or partitioning."""
    generated: Mapping[tuple[int, int], frozenset[int]]
    """Columns of the same table from which a generated column is made."""
    view_columns: Mapping[int, frozenset[tuple[int, int]]]
    """By view or materialized view: (relation, attribute) pairs that it depends on directly; attribute 0 for the whole."""
    functions: Mapping[int, FunctionInfo]
    descending: frozenset[int]
    """Operators named `>` that were shipped with the server: what DESC sorts by."""
    json_casts: frozenset[int]
    """Types with a user-defined cast to json or jsonb, which to_json would call unseen."""
    shipped: Mapping[str, bool]
    """Names of functions shipped with the server, in any schema; True if a function of the name is listed (its others take types that aren't)."""
    user_functions: frozenset[str]
    user_operators: bool
    user_casts: bool
    """Whether the database has any of its own."""
    user: str
    superuser: bool

    def type_allowed(self, oid: int, depth: int = 0) -> bool:
        """Whether a value of the type runs nothing but what was shipped: listed types, and enums, domains, rows and arrays made of them."""
        info = self.types.known.get(oid)
        if oid == 0:
            return True
        if info is None or depth > 16 or oid in self.json_casts:
            return False
        if info.element:
            return self.type_allowed(info.element, depth + 1)
        if info.kind == "d":
            return self.type_allowed(info.base, depth + 1)
        if info.kind == "c":
            return all(self.type_allowed(each, depth + 1) for each in info.subtypes)
        return info.kind == "e" or (oid < FIRST_USER_OID and info.schema == "pg_catalog" and info.name in allowed.types())

    def find(self, name: tuple[str, ...]) -> int | None:
        """OID of a table by its dotted name, in the search path."""
        if len(name) == 2:
            return self.by_name.get((name[0], name[1]))
        if len(name) == 1:
            return next((oid for schema in self.search_path if (oid := self.by_name.get((schema, name[0]))) is not None), None)
        return None


_USER = "nspname NOT IN ('pg_catalog', 'information_schema') AND nspname !~ '^pg_(toast|temp)'"

_FINGERPRINT = """
SELECT md5(concat_ws('|', current_setting('search_path'), current_user, current_schemas(true)::text, current_setting('server_version_num'),
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), has_database_privilege(current_database(), 'TEMP'), pg_is_in_recovery(),
  (SELECT string_agg(concat_ws(',', oid, nspname, has_schema_privilege(oid, 'USAGE')), ';' ORDER BY oid) FROM pg_namespace WHERE @user@),
  (SELECT md5(string_agg(concat_ws(',', c.oid, relname, nspname, relkind, relowner, relrowsecurity, relispartition), ';' ORDER BY c.oid))
     FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r','v','m','p','f') AND @user@),
  (SELECT md5(string_agg(concat_ws(',', attrelid, attnum, attname, atttypid, atttypmod, attnotnull, attgenerated, attisdropped), ';' ORDER BY attrelid, attnum))
     FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind IN ('r','v','m','p','f') AND attnum > 0 AND @user@),
  (SELECT md5(string_agg(md5(ev_action::text) || ev_class::text, ';' ORDER BY r.oid)) FROM pg_rewrite r WHERE r.oid >= 16384),
  (SELECT md5(string_agg(md5(adbin::text) || adrelid::text, ';' ORDER BY oid)) FROM pg_attrdef),
  (SELECT md5(string_agg(concat_ws(',', indexrelid, indrelid, indkey, indisunique, indisvalid, indimmediate, indpred IS NULL), ';' ORDER BY indexrelid))
     FROM pg_index WHERE indexrelid >= 16384),
  (SELECT md5(string_agg(concat_ws(',', inhrelid, inhparent), ';' ORDER BY inhrelid, inhparent)) FROM pg_inherits),
  (SELECT md5(string_agg(concat_ws(',', oid, typname, typtype, typbasetype, typelem), ';' ORDER BY oid)) FROM pg_type
    WHERE oid >= 16384 AND typnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_(toast|temp)')),
  (SELECT md5(string_agg(concat_ws(',', enumtypid, enumsortorder, enumlabel), ';' ORDER BY enumtypid, enumsortorder)) FROM pg_enum),
  (SELECT md5(string_agg(concat_ws(',', p.oid, proname, md5(prosrc), md5(prosqlbody::text), provolatile, proargtypes), ';' ORDER BY p.oid)) FROM pg_proc p
     JOIN pg_namespace n ON n.oid = pronamespace WHERE p.oid >= 16384 AND @user@),
  (SELECT md5(string_agg(concat_ws(',', oid, castsource, casttarget, castfunc), ';' ORDER BY oid)) FROM pg_cast WHERE oid >= 16384),
  (SELECT md5(string_agg(concat_ws(',', oid, oprname, oprleft, oprright, oprcode), ';' ORDER BY oid)) FROM pg_operator WHERE oid >= 16384)
))
""".replace("@user@", _USER)


def fingerprint(session: Session) -> str:
    """32 hex digits over columns, view definitions, functions, indexes, types, the path and what our role may: unequal → recompile."""
    return str(session.rows(_FINGERPRINT)[0][0])


def load(session: Session) -> Catalog:
    """Reads everything in one read-only snapshot, so that it is one moment."""
    with session.rolled_back("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"):
        return _load(session)


def _load(session: Session) -> Catalog:
    relations = _relations(session)
    functions = _functions(session)
    shipped: dict[str, bool] = {}
    for oid, name in session.rows("SELECT oid::int8, proname::text FROM pg_proc WHERE oid < 16384"):
        shipped[name] = shipped.get(name, False) or (oid in functions and functions[oid].allowed)
    version, path, user, superuser = session.rows(
        "SELECT current_setting('server_version_num')::int, current_schemas(true)::text[], current_user::text,"
        " (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
    )[0]
    parents: dict[int, tuple[int, ...]] = {}
    for child, parent in session.rows("SELECT inhrelid::int8, inhparent::int8 FROM pg_inherits ORDER BY inhrelid, inhseqno"):
        parents[child] = (*parents.get(child, ()), parent)
    generated: dict[tuple[int, int], frozenset[int]] = {}
    for table, number, source in session.rows(
        "SELECT adrelid::int8, adnum::int, refobjsubid FROM pg_attrdef d JOIN pg_attribute a ON attrelid = adrelid AND attnum = adnum"
        " JOIN pg_depend ON classid IN ('pg_attrdef'::regclass, 'pg_class'::regclass) AND refclassid = 'pg_class'::regclass AND refobjid = adrelid"
        "  AND refobjsubid > 0 AND refobjsubid <> adnum"
        "  AND ((classid = 'pg_attrdef'::regclass AND objid = d.oid) OR (classid = 'pg_class'::regclass AND objid = adrelid AND objsubid = adnum))"
        " WHERE attgenerated <> ''"
    ):
        generated[(table, number)] = generated.get((table, number), frozenset()) | {source}
    views: dict[int, frozenset[tuple[int, int]]] = {}
    for view, table, number in session.rows(
        "SELECT DISTINCT ev_class::int8, refobjid::int8, refobjsubid FROM pg_rewrite r JOIN pg_depend ON classid = 'pg_rewrite'::regclass"
        " AND objid = r.oid AND refclassid = 'pg_class'::regclass WHERE r.oid >= 16384 AND refobjid <> ev_class"
    ):
        views[view] = views.get(view, frozenset()) | {(table, number)}
    return Catalog(
        fingerprint=fingerprint(session),
        server_version=version,
        search_path=tuple(path),
        types=_types(session),
        relations=relations,
        by_name={(relation.schema, relation.name): relation.oid for relation in relations.values()},
        system=frozenset(
            relation.oid
            for relation in relations.values()
            if relation.oid < FIRST_USER_OID or relation.schema in ("pg_catalog", "information_schema", "pg_toast")
        ),
        parents=parents,
        generated=generated,
        view_columns=views,
        functions=functions,
        shipped=shipped,
        user_functions=frozenset(name for (name,) in session.rows("SELECT DISTINCT proname::text FROM pg_proc WHERE oid >= 16384")),
        user_operators=bool(session.rows("SELECT EXISTS (SELECT FROM pg_operator WHERE oid >= 16384)")[0][0]),
        user_casts=bool(session.rows("SELECT EXISTS (SELECT FROM pg_cast WHERE oid >= 16384)")[0][0]),
        descending=frozenset(oid for (oid,) in session.rows("SELECT oid::int8 FROM pg_operator WHERE oprname = '>' AND oid < 16384")),
        json_casts=frozenset(
            source
            for (source,) in session.rows(
                "SELECT castsource::int8 FROM pg_cast WHERE oid >= 16384 AND casttarget IN ('json'::regtype, 'jsonb'::regtype)"
            )
        ),
        user=user,
        superuser=bool(superuser),
    )


def _types(session: Session) -> Types:
    rows = session.rows(
        "SELECT t.oid::int8, t.typname::text, nspname::text, t.typtype::text, CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE 0 END::int8,"
        " coalesce(e.oid, 0)::int8, t.typarray::int8, t.typdelim::text, t.typrelid::int8,"
        " (SELECT array_agg(enumlabel::text ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid),"
        " CASE WHEN t.typtype = 'c' THEN (SELECT array_agg(DISTINCT atttypid::int8) FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped)"
        "  ELSE (SELECT array_agg(rngsubtype::int8) FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)) END"
        " FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid"
    )
    return Types(
        {
            oid: TypeInfo(oid, name, schema, kind, base, element, array, delimiter, relation, tuple(labels or ()), tuple(subtypes or ()))
            for oid, name, schema, kind, base, element, array, delimiter, relation, labels, subtypes in rows
        }
    )


def _functions(session: Session) -> dict[int, FunctionInfo]:
    known: dict[int, FunctionInfo] = {}
    for oid, name, arguments, result, volatility in session.rows(
        "SELECT p.oid::int8, proname::text,"
        " ARRAY(SELECT typname::text FROM unnest(proargtypes) WITH ORDINALITY AS a (type, n) JOIN pg_type t ON t.oid = type ORDER BY n),"
        " (SELECT typname::text FROM pg_type t WHERE t.oid = prorettype), provolatile::text"
        " FROM pg_proc p WHERE p.oid < 16384 AND pronamespace = 'pg_catalog'::regnamespace"
    ):
        signature = f"{name}({','.join(arguments)})"
        listed = signature in allowed.functions()
        known[oid] = FunctionInfo(signature, volatility == "v", listed, listed and allowed.is_infallible(signature, result))
    return known


def _relations(session: Session) -> dict[int, Relation]:
    attributes: dict[int, list[Attribute]] = {}
    for table, number, name, type_, not_null, generated in session.rows(
        "SELECT attrelid::int8, attnum::int, attname::text, atttypid::int8, attnotnull, attgenerated <> '' FROM pg_attribute JOIN pg_class c ON c.oid = attrelid"
        " WHERE relkind IN ('r','v','m','p','f') AND attnum > 0 AND NOT attisdropped ORDER BY attrelid, attnum"
    ):
        attributes.setdefault(table, []).append(Attribute(number, name, type_, not_null, generated))
    unique: dict[int, list[frozenset[int]]] = {}
    for table, numbers in session.rows(
        "SELECT indrelid::int8, (string_to_array(indkey::text, ' ')::int[])[1:indnkeyatts] FROM pg_index WHERE indisunique AND indisvalid AND indisready"
        " AND indimmediate AND indpred IS NULL AND indexprs IS NULL AND indislive"
    ):
        unique.setdefault(table, []).append(frozenset(numbers))
    return {
        oid: Relation(oid, schema, name, kind, owner, tuple(attributes.get(oid, ())), tuple(unique.get(oid, ())), children, security)
        for oid, schema, name, kind, owner, children, security in session.rows(
            "SELECT c.oid::int8, nspname::text, relname::text, relkind::text, pg_get_userbyid(relowner)::text,"
            " EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid), relrowsecurity"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r','v','m','p','f')"
        )
    }
