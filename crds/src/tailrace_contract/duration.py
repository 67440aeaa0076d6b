"""Durations, sizes, CPU amounts and exact decimals as resources write them: `1h30m`, `1Gi`, `250m`, `"0.5"`. Pure; refuses everything else with ValueError.

They are read once, at the boundary: inside, a duration is an integer of milliseconds, a size of bytes, a CPU amount of thousandths of a core.
"""

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

PATTERN = "^([0-9]+(ms|s|m|h|d))+$"
"""What a duration looks like (the same in the CRDs)."""

MAX_TEXT = 32
"""Characters that a duration or a size may have."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile("([0-9]+)(ms|s|m|h|d)", re.ASCII)
_WHOLE = re.compile("([0-9]+(ms|s|m|h|d))+", re.ASCII)
MAX_MS = 10 * 366 * 86_400_000
"""Ten years: nothing here waits longer, and sums stay far below 64 bits."""

SIZE_PATTERN = "^[1-9][0-9]*(Ki|Mi|Gi|Ti)$"
"""What a size looks like (the same in the CRDs)."""

_SIZE = re.compile("([1-9][0-9]*)(Ki|Mi|Gi|Ti)", re.ASCII)
_SIZE_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def parse_duration(text: str) -> int:
    """Milliseconds of a duration such as `1m30s`; the parts are added up.

    ValueError when it has another form, is zero or is over ten years.
    """
    if len(text) > MAX_TEXT or _WHOLE.fullmatch(text) is None:
        raise ValueError("not a duration: write a number and ms, s, m, h or d, such as 500ms or 1m30s")
    total = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total == 0:
        raise ValueError("a duration must be longer than 0: write at least 1ms")
    if total > MAX_MS:
        raise ValueError("a duration must not be longer than 3660d: shorten it")
    return total


def format_duration(ms: int) -> str:
    """Shortest text with whole units, largest first; the inverse of `parse_duration`. `ms` > 0."""
    if ms <= 0:
        raise ValueError("a duration must be longer than 0: write at least 1ms")
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, ms = divmod(ms, _UNITS_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)


def parse_size(text: str) -> int:
    """Bytes of a size such as `512Mi`. ValueError when it has another form or is over 1024Ti."""
    match = _SIZE.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError("not a size: write a whole number and Ki, Mi, Gi or Ti, such as 512Mi")
    size = int(match[1]) * _SIZE_UNITS[match[2]]
    if size > 1024 << 40:
        raise ValueError("a size must not be over 1024Ti: shrink it")
    return size


def format_size(size_bytes: int) -> str:
    """The largest unit that divides the size; the inverse of `parse_size`. ValueError below or between whole Ki."""
    if size_bytes <= 0 or size_bytes % 1024:
        raise ValueError("a size must be a positive multiple of 1Ki")
    for unit in ("Ti", "Gi", "Mi"):
        if size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes // 1024}Ki"


def _read_duration(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if info.mode == "json":
        raise ValueError("a duration is text: write a number with its unit, such as 500ms or 1m30s")
    return value


def _read_size(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        return parse_size(value)
    if info.mode == "json":
        raise ValueError("a size is text: write a number with its unit, such as 512Mi")
    return value


CPU_PATTERN = "^([1-9][0-9]*m|[0-9]+([.][0-9]{1,3})?)$"
"""What a CPU amount in text looks like (the same in the CRDs)."""

_CPU = re.compile(r"([1-9][0-9]*)m|([0-9]+)(?:\.([0-9]{1,3}))?", re.ASCII)
MAX_CPU_MILLIS = 256_000


def parse_cpu(text: str) -> int:
    """Thousandths of a core of `250m`, `2` or `0.5`. ValueError when it has another form, is zero or is over 256 cores."""
    match = _CPU.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError("not a CPU amount: write cores such as 2 or 0.5, or thousandths such as 250m")
    millis = int(match[1]) if match[1] else int(match[2]) * 1000 + int((match[3] or "").ljust(3, "0"))
    if not 0 < millis <= MAX_CPU_MILLIS:
        raise ValueError("a CPU amount must be above 0 and at most 256 cores: correct it")
    return millis


def format_cpu(millis: int) -> str:
    """As the Kubernetes API writes it: `2`, `250m`; the inverse of `parse_cpu`."""
    return f"{millis}m" if millis % 1000 else str(millis // 1000)


def _read_cpu(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        return parse_cpu(value)
    if info.mode == "json":
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError('not a CPU amount: write cores such as 2 or "0.5" in quotes, or thousandths such as 250m')
        return parse_cpu(str(value))
    return value


_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)


def read_decimal(value: object) -> str:
    """Text of an exact number: an integer as it is, a decimal from text of the parameter grammar (docs/contract.md)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and len(value) <= 400 and _DECIMAL.fullmatch(value):
        return value
    raise ValueError('is no exact number: write a whole number, or a decimal in quotes such as "0.5"')


DurationMs = Annotated[
    int,
    BeforeValidator(_read_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": PATTERN, "maxLength": MAX_TEXT}),
]
"""A model's field: text in YAML and JSON, milliseconds in Python."""

SizeBytes = Annotated[
    int,
    BeforeValidator(_read_size),
    PlainSerializer(format_size, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN, "maxLength": MAX_TEXT}),
]
"""A model's field: text in YAML and JSON, bytes in Python."""

CpuMillis = Annotated[
    int,
    BeforeValidator(_read_cpu),
    PlainSerializer(format_cpu, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": CPU_PATTERN,
            "maxLength": MAX_TEXT,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A model's field: cores or thousandths in YAML and JSON, thousandths in Python."""
