"""JSON Schemas (2020-12) of parameters and result columns, and JSON text that keeps decimals exact. Pure; rejects nothing.

SQL, digests, hosts and database types are in none of them.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal

from pydantic import JsonValue
from tailrace_contract.plan import ColumnPlan, Encoding, Mask, ParamPlan, ParamType

Schema = dict[str, object]

_NAN = {"enum": ["NaN", "Infinity", "-Infinity"]}

_PARAMS: dict[ParamType, Schema] = {
    ParamType.INTEGER: {"type": "integer", "format": "int64", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    ParamType.NUMBER: {"type": "number"},
    ParamType.STRING: {"type": "string"},
    ParamType.BOOLEAN: {"type": "boolean"},
    ParamType.DATE: {"type": "string", "format": "date"},
    ParamType.TIME: {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,6})?$"},
    ParamType.TIMESTAMP: {
        "type": "string",
        "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?$",
    },
    ParamType.UUID: {"type": "string", "format": "uuid"},
    ParamType.JSON: {},
}

_COLUMNS: dict[Encoding, Schema] = {
    Encoding.RAW: {"type": "integer"},
    Encoding.NUMBER: {"anyOf": [{"type": "number"}, _NAN]},
    Encoding.QUOTED: {"type": "string", "pattern": "^(-?[0-9]+(\\.[0-9]+)?|NaN|-?Infinity)$"},
    Encoding.BOOLEAN: {"type": "boolean"},
    Encoding.STRING: {"type": "string"},
    Encoding.TIMESTAMP: {"type": "string", "description": "Date and time without a zone."},
    Encoding.TIMESTAMPTZ: {"type": "string", "description": "Date and time in UTC."},
    Encoding.BASE64: {"type": "string", "contentEncoding": "base64"},
    Encoding.JSON: {},
    Encoding.STORAGE: {"type": ["integer", "number", "string"]},
    Encoding.STORAGE_QUOTED: {"type": ["number", "string"]},
}

_MASKED: dict[Mask, Schema] = {
    Mask.NULL: {"type": "null"},
    Mask.REDACT: {"const": "***"},
    Mask.HASH: {"type": "string", "pattern": "^[A-Za-z0-9_-]{22}$"},
    Mask.PARTIAL: {"type": "string"},
}


def param_schema(param: ParamPlan) -> Schema:
    """What a parameter's JSON value must be."""
    one = dict(_PARAMS[param.type])
    bounds: tuple[tuple[str, object], ...] = (
        ("enum", None if param.enum is None else [_value(param, value) for value in param.enum]),
        ("minimum", None if param.minimum is None else Decimal(param.minimum)),
        ("maximum", None if param.maximum is None else Decimal(param.maximum)),
        ("minLength", param.min_length),
        ("maxLength", param.max_length),
        ("pattern", param.pattern),
    )
    one |= {name: value for name, value in bounds if value is not None}
    schema: Schema = {"type": "array", "items": one} if param.array else one
    if param.nullable:
        schema = {"anyOf": [schema, {"type": "null"}]}
    if param.default is not None:
        schema["default"] = (
            [_value(param, each) for each in param.default]
            if isinstance(param.default, list) and param.array
            else _value(param, param.default)
        )
    return schema


def _value(param: ParamPlan, value: JsonValue) -> object:
    """A value that the plan holds, as a caller would send it: numbers may stand there as text, which no reader rounds."""
    numeric = param.type in (ParamType.INTEGER, ParamType.NUMBER)
    return Decimal(value) if numeric and isinstance(value, str) else value


def column_schema(column: ColumnPlan, mask: Mask | None) -> Schema:
    """What a result column's value is. Any column may be null."""
    if mask is Mask.NULL:
        return {"type": "null", "description": "Masked."}
    if mask is not None:
        return {"anyOf": [_MASKED[mask], {"type": "null"}], "description": "Masked."}
    scalar = _COLUMNS[column.encoding]
    if column.array:
        return {"anyOf": [{"type": "array", "items": {"anyOf": [scalar, {"type": ["array", "null"]}]}}, {"type": "null"}]}
    return {"anyOf": [scalar, {"type": "null"}]} if scalar else {}


def row_schema(columns: Sequence[ColumnPlan], masks: Mapping[int, Mask]) -> Schema:
    """One row as a JSON object."""
    return {
        "type": "object",
        "properties": {column.name: column_schema(column, masks.get(n)) for n, column in enumerate(columns)},
        "required": [column.name for column in columns],
        "additionalProperties": False,
    }


def json_text(value: object) -> str:
    """Compact JSON of plain values; decimals with all their digits."""
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(str(name), ensure_ascii=False)}:{json_text(item)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(json_text, value)) + "]"
        case Decimal():
            return format(value, "f")
        case _:
            return json.dumps(value, ensure_ascii=False)
