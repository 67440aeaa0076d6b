"""Functions and types shipped with PostgreSQL that a governed query may use: a list as data, decided by (name, argument types).

`functions.txt` and `types.txt` were made by `python -m tailrace_gateway.compile.postgres.allowed URL` against PostgreSQL 15 and reviewed:
every function of pg_catalog whose arguments and result are plain data, immutable or stable (and five harmless volatile ones), less what
reads files, settings, sessions, catalogs, privileges or other tables, takes locks, or runs SQL text. Operators, casts and aggregates
are decided by the function behind them. A newer server's functions are not on the list until it is made again. No IO but reading the package's own files.
"""

from functools import cache
from importlib import resources


@cache
def functions() -> frozenset[str]:
    """`name(type,type)` with pg_type names, for example `lower(text)`."""
    return frozenset(_lines("functions.txt"))


@cache
def types() -> frozenset[str]:
    """pg_type names."""
    return frozenset(_lines("types.txt"))


def _lines(name: str) -> list[str]:
    text = (resources.files(__name__) / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


VOLATILE_BUT_HARMLESS = frozenset({"random()", "clock_timestamp()", "timeofday()", "gen_random_uuid()"})
"""They keep no state and tell nothing."""

_INFALLIBLE_NAMES = frozenset(
    [
        "lower",
        "upper",
        "initcap",
        "reverse",
        "btrim",
        "ltrim",
        "rtrim",
        "md5",
        "replace",
        "translate",
        "quote_literal",
        "quote_ident",
        "length",
        "char_length",
        "character_length",
        "octet_length",
        "bit_length",
        "starts_with",
        "strpos",
        "position",
        "textcat",
        "textanycat",
        "anytextcat",
        "concat",
        "concat_ws",
        "byteacat",
        "to_json",
        "row_to_json",
        "array_to_json",
        "json_build_array",
        "json_typeof",
        "jsonb_typeof",
        "json_object_field",
        "json_array_element",
        "json_extract_path",
        "jsonb_object_field",
        "jsonb_object_field_text",
        "jsonb_array_element",
        "jsonb_array_element_text",
        "jsonb_extract_path",
        "jsonb_extract_path_text",
        "jsonb_exists",
        "jsonb_contains",
        "jsonb_contained",
        "count",
        "min",
        "max",
        "string_agg",
        "bool_and",
        "bool_or",
        "every",
        "json_agg",
        "any_value",
        "row_number",
        "rank",
        "dense_rank",
        "percent_rank",
        "cume_dist",
        "lag",
        "lead",
        "first_value",
        "last_value",
    ]
)
_INFALLIBLE = frozenset(
    [
        "array_agg(anynonarray)",
        "sum(int2)",
        "sum(int4)",
        "sum(int8)",
        "avg(int2)",
        "avg(int4)",
        "avg(int8)",
        "avg(numeric)",
        "text(bpchar)",
        "text(name)",
        "text(bool)",
        "text(inet)",
        "text(char)",
        "int8(int4)",
        "int8(int2)",
        "int4(int2)",
        "float8(float4)",
        "numeric(int2)",
        "numeric(int4)",
        "numeric(int8)",
        "float8(int2)",
        "float8(int4)",
        "float8(int8)",
        "array_length(anyarray,int4)",
        "cardinality(anyarray)",
        "array_to_string(anyarray,text)",
        "array_to_string(anyarray,text,text)",
    ]
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_GEOMETRIC = ("box_", "circle_", "lseg_", "path_", "point_", "poly_", "line_")
"""They compare areas and lengths, which can overflow."""


def is_infallible(signature: str, result: str) -> bool:
    """Whether no value of the arguments' types makes the function fail: only then may a masked column be its argument.

    Not among them, although they look harmless: what makes text or jsonb of json (`\\u0000` fails), narrower numbers, areas.
    """
    name, _, arguments = signature.partition("(")
    if signature in _INFALLIBLE or name in _INFALLIBLE_NAMES:
        return True
    if result != "bool" or "regex" in name or name.startswith(_GEOMETRIC):
        return False
    return name.endswith(_COMPARISONS) and arguments.count(",") == 1
