"""Which functions a MySQL statement calls, and which may be: plain data in, plain data out. Everything else is refused. Pure.

Decided from tokens, not from the tree: whatever the server may take for a call is a word with a parenthesis behind it. A listed name must touch its
parenthesis, because with a blank between them the server would look for a stored function of that name.
"""

from collections.abc import Callable, Sequence

from tailrace_contract.codes import Refusal

from tailrace_gateway.compile.lexer import Kind, Token
from tailrace_gateway.compile.refusal import RefusedError

_TEXT = """ascii bin bit_length char char_length character_length concat concat_ws conv elt export_set field find_in_set format from_base64 hex
insert instr lcase left length locate lower lpad ltrim make_set mid oct octet_length ord position quote repeat replace reverse right rpad rtrim soundex
space strcmp substr substring substring_index to_base64 trim ucase unhex upper weight_string regexp_instr regexp_replace regexp_substr regexp_like
sformat natural_sort_key convert cast binary"""
_NUMBERS = """abs acos asin atan atan2 ceil ceiling cos cot crc32 crc32c degrees exp floor ln log log10 log2 mod pi pow power radians rand round sign sin
sqrt tan truncate bit_count greatest least interval"""
_DATES = """adddate addtime convert_tz curdate curtime current_date current_time current_timestamp date date_add date_format date_sub datediff day dayname
dayofmonth dayofweek dayofyear extract from_days from_unixtime get_format hour last_day localtime localtimestamp makedate maketime microsecond minute
month monthname now period_add period_diff quarter sec_to_time second str_to_date subdate subtime sysdate time time_format time_to_sec timediff timestamp
timestampadd timestampdiff to_days to_seconds unix_timestamp utc_date utc_time utc_timestamp week weekday weekofyear year yearweek add_months"""
_JSON = """json_array json_array_append json_array_insert json_array_intersect json_arrayagg json_compact json_contains json_contains_path json_depth
json_detailed json_equals json_exists json_extract json_insert json_keys json_length json_loose json_merge json_merge_patch json_merge_preserve
json_normalize json_object json_object_filter_keys json_object_to_array json_objectagg json_overlaps json_pretty json_query json_quote json_remove
json_replace json_search json_set json_storage_size json_table json_type json_unquote json_valid json_value member_of"""
_OTHER = """coalesce if ifnull isnull nullif nvl nvl2 uuid inet_aton inet_ntoa inet6_aton inet6_ntoa is_ipv4 is_ipv6 is_ipv4_compat
is_ipv4_mapped is_uuid uuid_to_bin bin_to_uuid md5 sha sha1 sha2 compress uncompress uncompressed_length any_value"""
_AGGREGATES = """avg bit_and bit_or bit_xor count group_concat max min std stddev stddev_pop stddev_samp sum var_pop var_samp variance median
percentile_cont percentile_disc row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value"""
_PLACES = """st_astext st_aswkt st_asbinary st_asgeojson st_x st_y st_distance st_distance_sphere st_contains st_within st_intersects st_srid
st_geomfromtext st_pointfromtext point st_length st_area st_isvalid"""

LISTED = frozenset(" ".join((_TEXT, _NUMBERS, _DATES, _JSON, _OTHER, _AGGREGATES, _PLACES)).split())
NO_ARGUMENTS = frozenset(
    [
        "char",
        "coalesce",
        "concat",
        "curdate",
        "curtime",
        "current_date",
        "current_time",
        "current_timestamp",
        "json_array",
        "json_object",
        "localtime",
        "localtimestamp",
        "now",
        "pi",
        "rand",
        "sysdate",
        "utc_date",
        "utc_time",
        "utc_timestamp",
        "uuid",
        "unix_timestamp",
    ]
)
"""Of them those that every version has and that may be called without an argument."""
_WRONG_COUNT, _SYNTAX = 1582, 1064
VOLATILE = frozenset({"rand", "uuid", "sysdate"})
"""Another value at each call; NOW() and its like are the same within one statement."""

INFALLIBLE_NAMES = frozenset(
    [
        "ascii",
        "bit_length",
        "char_length",
        "character_length",
        "concat",
        "concat_ws",
        "crc32",
        "field",
        "find_in_set",
        "hex",
        "instr",
        "lcase",
        "left",
        "length",
        "locate",
        "lower",
        "lpad",
        "ltrim",
        "mid",
        "octet_length",
        "ord",
        "position",
        "quote",
        "replace",
        "reverse",
        "right",
        "rpad",
        "rtrim",
        "soundex",
        "strcmp",
        "substr",
        "substring",
        "substring_index",
        "trim",
        "ucase",
        "unhex",
        "upper",
        "abs_text",
        "date",
        "date_format",
        "day",
        "dayname",
        "dayofmonth",
        "dayofweek",
        "dayofyear",
        "hour",
        "last_day",
        "microsecond",
        "minute",
        "month",
        "monthname",
        "quarter",
        "second",
        "time",
        "year",
        "ifnull",
        "isnull",
        "nullif",
        "coalesce",
        "md5",
        "sha",
        "sha1",
        "sha2",
        "max",
        "min",
        "count",
        "group_concat",
        "row_number",
        "rank",
        "dense_rank",
        "percent_rank",
        "cume_dist",
        "lag",
        "lead",
        "first_value",
        "last_value",
        "is_ipv4",
        "is_ipv6",
        "json_valid",
        "now",
        "utc_timestamp",
        "utc_date",
        "utc_time",
        "datediff",
    ]
)
"""Of them those that no value makes fail: what can't be read becomes NULL with a warning."""

_RESERVED = frozenset(
    [
        "all",
        "and",
        "as",
        "between",
        "by",
        "case",
        "check",
        "collate",
        "cross",
        "default",
        "delete",
        "distinct",
        "div",
        "else",
        "except",
        "exists",
        "from",
        "group",
        "having",
        "in",
        "index",
        "inner",
        "intersect",
        "into",
        "is",
        "join",
        "key",
        "like",
        "limit",
        "mod",
        "not",
        "on",
        "or",
        "order",
        "outer",
        "over",
        "primary",
        "read",
        "regexp",
        "rlike",
        "select",
        "set",
        "straight_join",
        "then",
        "union",
        "unique",
        "update",
        "using",
        "values",
        "when",
        "where",
        "with",
        "xor",
        "exists",
        "return",
        "against",
        "match",
        "window",
        "row_alias",
    ]
) - {"row_alias", "return", "window", "check", "default"}
"""Words of SQL's grammar before a parenthesis that no function can be named after without quotes."""
_AFTER_OPERATOR = frozenset({"any", "some"})
_TYPES = frozenset(
    [
        "char",
        "binary",
        "decimal",
        "dec",
        "numeric",
        "date",
        "datetime",
        "time",
        "timestamp",
        "signed",
        "unsigned",
        "double",
        "float",
        "real",
        "varchar",
        "nchar",
        "year",
        "int",
        "bigint",
    ]
)
_WITHOUT_PARENTHESES = frozenset({"current_user", "current_role", "session_user", "system_user"})
_TYPED = frozenset({"as", ",", "returning"})


def native(objection: Callable[[str], int]) -> frozenset[str]:
    """Of the listed names those that are the server's own: a version that has not one of them would call a stored or loaded function of that name.

    `objection` prepares a statement and gives the error's number. A native function objects to having no argument, or is part of the grammar.
    JSON_TABLE is neither; the walk lets it stand in FROM only, where no function can.
    """
    return frozenset(
        name for name in LISTED if name in (*NO_ARGUMENTS, "json_table") or objection(f"SELECT {name}()") in (_WRONG_COUNT, _SYNTAX)
    )


def called(text: str, tokens: Sequence[Token], allowed: frozenset[str], *, write: bool) -> frozenset[str]:
    """Functions that the statement may call, in lower case; RefusedError for one that it may not. `allowed`: see `native`."""
    told = [token for token in tokens if token.kind is not Kind.BLANK]
    words = [text[token.start : token.end] for token in told]
    lower = [word.lower() for word in words]
    found = set()
    for n, token in enumerate(told):
        before = lower[n - 1] if n else ""
        if token.kind is Kind.WORD and lower[n] in _WITHOUT_PARENTHESES and before != ".":
            raise _not_allowed(lower[n])
        if token.kind not in (Kind.WORD, Kind.QUOTED) or n + 1 == len(told) or words[n + 1] != "(":
            continue
        name = lower[n]
        if _is_named_list(lower, n, write=write):
            continue
        if token.kind is Kind.QUOTED or before == ".":
            raise _not_allowed("of your own")
        if name in _RESERVED or (name in _AFTER_OPERATOR and before in ("=", "<", ">", "!")) or (name in _TYPES and before == "as"):
            continue
        if (name in _TYPES and _in_json_table(lower, n)) or (name == "columns" and "json_table" in lower[:n] and before.endswith("'")):
            continue
        if name not in allowed:
            raise _not_allowed(name)
        if told[n + 1].start != token.end:
            raise RefusedError(
                Refusal.FUNCTION_NOT_ALLOWED, f"write {name}( without a blank: with one the server looks for a function of your own"
            )
        found.add(name)
    return frozenset(found)


def _not_allowed(name: str) -> RefusedError:
    return RefusedError(Refusal.FUNCTION_NOT_ALLOWED, f"the function {name} is not on the list of functions that queries may use")


def _is_named_list(lower: Sequence[str], n: int, *, write: bool) -> bool:
    """`WITH q (a, b) AS (…)`, and `INSERT INTO t (a, b)`: columns, not arguments."""
    before = lower[n - 1] if n else ""
    close = _closing(lower, n + 1)
    if before in ("with", "recursive", ",") and lower[close + 1 : close + 3] == ["as", "("]:
        return True
    if not write or lower[0] != "insert":
        return False
    first = n - 2 if before == "." else n
    return lower[:first] in (["insert", "into"], ["insert", "ignore", "into"], ["insert"], ["insert", "ignore"])


def _closing(lower: Sequence[str], at: int) -> int:
    depth = 0
    for n in range(at, len(lower)):
        depth += (lower[n] == "(") - (lower[n] == ")")
        if not depth:
            return n
    return len(lower)


def _in_json_table(lower: Sequence[str], n: int) -> bool:
    """`COLUMNS (a VARCHAR(10) PATH …)`: a type behind a name, with PATH or EXISTS behind it."""
    close = _closing(lower, n + 1)
    return "json_table" in lower[:n] and lower[close + 1 : close + 2] in (["path"], ["exists"])
