"""The parameter grammar of docs/contract.md over text. Pure; rejects by False. The Rust twin is `dataplane-rs/src/params/grammar.rs`."""

import re
from collections.abc import Callable

from tailrace_contract.plan import ParamType
from tailrace_gateway.serve.json_scan import MalformedJson, scan

NUMBER_LIMIT = 400
"""Longest number, in characters."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?")
_OFFSET = re.compile(r"Z|[+-](?:0[0-9]|1[0-5]):[0-5][0-9]")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_integer(text: str) -> bool:
    """`-?(0|[1-9][0-9]*)` within int64."""
    return _INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def is_number(text: str) -> bool:
    """`-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]{1,3})?`, at most 400 characters."""
    return len(text) <= NUMBER_LIMIT and _NUMBER.fullmatch(text) is not None


def is_date(text: str) -> bool:
    """`YYYY-MM-DD`, valid in the proleptic Gregorian calendar, years 0001–9999."""
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    if year < 1 or not 1 <= month <= 12:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= _MONTHS[month - 1] + (month == 2 and leap)


def is_time(text: str) -> bool:
    """`HH:MM:SS[.f{1,6}]`, hour 00–23."""
    return _TIME.fullmatch(text) is not None


def is_timestamp(text: str) -> bool:
    """Date, `T` or blank, time, then nothing, `Z` or `±HH:MM` (at most 15:59)."""
    match = _TIME.match(text, 11)
    if match is None or text[10] not in "T " or not is_date(text[:10]):
        return False
    return match.end() == len(text) or _OFFSET.fullmatch(text, match.end()) is not None


def is_uuid(text: str) -> bool:
    """8-4-4-4-12 hex digits."""
    return _UUID.fullmatch(text) is not None


def _is_json(text: str) -> bool:
    try:
        return not scan(text).nul
    except MalformedJson:
        return False


_GRAMMARS: dict[ParamType, Callable[[str], bool]] = {
    ParamType.INTEGER: is_integer,
    ParamType.NUMBER: is_number,
    ParamType.STRING: lambda text: "\0" not in text,
    ParamType.BOOLEAN: lambda text: text in ("true", "false"),
    ParamType.DATE: is_date,
    ParamType.TIME: is_time,
    ParamType.TIMESTAMP: is_timestamp,
    ParamType.UUID: is_uuid,
    ParamType.JSON: _is_json,
}


def normalised(kind: ParamType, text: str) -> str | None:
    """The bound form of a text, None if it is not of the type."""
    if not _GRAMMARS[kind](text):
        return None
    if kind is ParamType.UUID:
        return text.lower()
    return "0" if kind is ParamType.INTEGER and text == "-0" else text


def compare_decimals(a: str, b: str) -> int:
    """-1, 0 or 1 as a is below, equal to or above b, by exact value: `1.10` = `1.1` = `11e-1`."""
    (sign_a, *rest_a), (sign_b, *rest_b) = _decimal(a), _decimal(b)
    if sign_a != sign_b:
        return 1 if sign_a > sign_b else -1
    return sign_a * ((rest_a > rest_b) - (rest_a < rest_b))


def _decimal(text: str) -> tuple[int, int, str]:
    """Sign (0 for zero), power of ten just above the first digit, digits without zeros around them."""
    mantissa, _, exponent = text.lstrip("-").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return 0, 0, ""
    magnitude = len(whole) - (len(whole + fraction) - len(digits)) + (int(exponent) if exponent else 0)
    return -1 if text.startswith("-") else 1, magnitude, digits.rstrip("0")
