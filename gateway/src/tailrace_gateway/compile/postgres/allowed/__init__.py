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

_TEXT_RESULTS = (
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
)
_MEASURES = ("length", "char_length", "character_length", "octet_length", "bit_length", "ascii", "starts_with", "strpos", "position")
_JOINED = ("textcat", "textanycat", "anytextcat", "concat", "concat_ws", "byteacat")
_JSON = (
    *("to_json", "to_jsonb", "row_to_json", "array_to_json", "json_build_array", "jsonb_build_array", "json_typeof", "jsonb_typeof"),
    *(
        f"{kind}_{what}"
        for kind in ("json", "jsonb")
        for what in ("object_field", "object_field_text", "array_element", "array_element_text")
    ),
    *(
        "json_extract_path",
        "json_extract_path_text",
        "jsonb_extract_path",
        "jsonb_extract_path_text",
        "jsonb_exists",
        "jsonb_contains",
        "jsonb_contained",
    ),
)
_AGGREGATES = ("count", "min", "max", "string_agg", "bool_and", "bool_or", "every", "json_agg", "jsonb_agg", "any_value")
_WINDOWS = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "lag", "lead", "first_value", "last_value")
_INFALLIBLE_NAMES = frozenset((*_TEXT_RESULTS, *_MEASURES, *_JOINED, *_JSON, *_AGGREGATES, *_WINDOWS))
_INFALLIBLE = frozenset(
    [
        *("array_agg(anynonarray)", "sum(int2)", "sum(int4)", "sum(int8)", "avg(int2)", "avg(int4)", "avg(int8)", "avg(numeric)"),
        *(
            "text(bpchar)",
            "text(name)",
            "text(bool)",
            "text(inet)",
            "text(char)",
            "int8(int4)",
            "int8(int2)",
            "int4(int2)",
            "float8(float4)",
        ),
        *("numeric(int2)", "numeric(int4)", "numeric(int8)", "float8(int2)", "float8(int4)", "float8(int8)", "float8(numeric)"),
        *("array_length(anyarray,int4)", "cardinality(anyarray)", "array_to_string(anyarray,text)", "array_to_string(anyarray,text,text)"),
    ]
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def is_infallible(signature: str, result: str) -> bool:
    """Whether no value of the arguments' types makes the function fail: only then may a masked column be its argument."""
    name, _, arguments = signature.partition("(")
    if signature in _INFALLIBLE or name in _INFALLIBLE_NAMES:
        return True
    return result == "bool" and name.endswith(_COMPARISONS) and "regex" not in name and arguments.count(",") == 1
