"""Makes `functions.txt` and `types.txt` anew from a PostgreSQL that was just initialised: `python -m … URL`. IO: reads it, writes the files."""

import re
import sys
from pathlib import Path

from tailrace_gateway.compile.postgres.allowed import VOLATILE_BUT_HARMLESS
from tailrace_gateway.compile.postgres.session import Session

TYPES = [
    "bool",
    "bytea",
    "char",
    "name",
    "int8",
    "int2",
    "int4",
    "text",
    "json",
    "xml",
    "jsonb",
    "jsonpath",
    "point",
    "lseg",
    "path",
    "box",
    "polygon",
    "line",
    "circle",
    "float4",
    "float8",
    "money",
    "macaddr",
    "macaddr8",
    "inet",
    "cidr",
    "bpchar",
    "varchar",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "interval",
    "timetz",
    "bit",
    "varbit",
    "numeric",
    "uuid",
    "tsvector",
    "tsquery",
    "oid",
    "int4range",
    "int8range",
    "numrange",
    "daterange",
    "tsrange",
    "tstzrange",
    "int4multirange",
    "int8multirange",
    "nummultirange",
    "datemultirange",
    "tsmultirange",
    "tstzmultirange",
    "regconfig",
    "record",
    "unknown",
]
POLYMORPHIC = [
    "any",
    "anyarray",
    "anyelement",
    "anynonarray",
    "anyenum",
    "anyrange",
    "anymultirange",
    "anycompatible",
    "anycompatiblearray",
    "anycompatiblenonarray",
    "anycompatiblerange",
    "anycompatiblemultirange",
]
DENIED_NAMES = re.compile(
    r"^(pg_|lo_|lo(read|write|close|open|creat|import|export|unlink|tell|seek|truncate)|has_|binary_upgrade|brin_|gin_|gist_|spg_|amvalidate|fmgr_|plpgsql_"
    r"|current_(database|schemas?|setting|query|user|role)|session_user|getpgusername|getdatabaseencoding|user$|version$|set_config|setseed"
    r"|nextval|currval|lastval|setval|currtid|txid_|inet_(client|server)_|row_security_active|format_type|col_description|s?h?obj_description"
    r"|(query|table|schema|database|cursor)_to_xml|ts_(stat|rewrite|debug|parse|token_type|lexize)|to_reg|get_current_ts_config|acl|makeacl|mxid_"
    r"|satisfies_hash_partition|dblink|crosstab|connectby|xpath_table|unique_key|suppress_|RI_|icu_|convert$|.*(send|recv)$|.*typmod.*|.*_(support|selfuncs?|handler|validator)$)"
)
OID_FUNCTIONS = frozenset({"oideq", "oidne", "oidlt", "oidle", "oidgt", "oidge", "oidlarger", "oidsmaller", "min", "max", "int8", "oid"})


def wanted(name: str, arguments: list[str], result: str, volatility: str) -> bool:
    """Whether a function is plain data in, plain data out."""
    signature = f"{name}({','.join(arguments)})"
    types = [*arguments, result]
    if DENIED_NAMES.match(name):
        return False
    if "oid" in types and name not in OID_FUNCTIONS and not {"any", "anyelement"} & set(types):
        return False
    if not all((type_.removeprefix("_") in TYPES) or type_ in POLYMORPHIC for type_ in types):
        return False
    return volatility != "v" or signature in VOLATILE_BUT_HARMLESS


def main(url: str) -> None:
    """Writes both files."""
    folder = Path(__file__).parent
    with Session(url) as session:
        version = session.rows("SHOW server_version")[0][0]
        rows = session.rows(
            "SELECT proname::text, ARRAY(SELECT typname::text FROM unnest(proargtypes) WITH ORDINALITY AS a (type, n) JOIN pg_type t ON t.oid = type ORDER BY n),"
            " (SELECT typname::text FROM pg_type WHERE oid = prorettype), provolatile::text"
            " FROM pg_proc WHERE oid < 16384 AND pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'a', 'w')"
        )
    names = sorted(f"{name}({','.join(arguments)})" for name, arguments, result, kind in rows if wanted(name, arguments, result, kind))
    head = f"# Made by `python -m tailrace_gateway.compile.postgres.allowed URL` from PostgreSQL {str(version).split()[0]}. Do not edit.\n"
    (folder / "functions.txt").write_text(head + "\n".join(names) + "\n")
    (folder / "types.txt").write_text(head + "\n".join(sorted(TYPES)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
