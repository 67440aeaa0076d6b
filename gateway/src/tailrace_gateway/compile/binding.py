"""JSON values that the owner fixed (bindings, defaults, enums) against a declared parameter, by the grammar of docs/contract.md.

Pure. Says the first fault in the order of `Fault`, or None.
"""

import datetime
import json
import re
from decimal import Decimal, InvalidOperation

from pydantic import JsonValue
from tailrace_contract.codes import Fault
from tailrace_contract.plan import ParamPlan, ParamType

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?")
_OFFSET = re.compile(r"|Z|[+-](0[0-9]|1[0-5]):[0-5][0-9]")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def fault_of(param: ParamPlan, value: JsonValue) -> Fault | None:
    """Whether the value could be bound."""
    if value is None:
        return None if param.nullable else Fault.NULL
    if param.array:
        if not isinstance(value, list):
            return Fault.TYPE
        faults = [fault for element in value if (fault := _scalar(param, element)) is not None]
        return min(faults, key=list(Fault).index, default=None)
    return _scalar(param, value)


def _scalar(param: ParamPlan, value: JsonValue) -> Fault | None:
    if not _typed(param.type, value):
        return Fault.TYPE
    if param.enum is not None and not any(_equal(value, allowed) for allowed in param.enum):
        return Fault.ENUM
    if param.type in (ParamType.INTEGER, ParamType.NUMBER):
        number = _decimal(value)
        if param.minimum is not None and number < Decimal(param.minimum):
            return Fault.MINIMUM
        if param.maximum is not None and number > Decimal(param.maximum):
            return Fault.MAXIMUM
    if isinstance(value, str):
        if param.min_length is not None and len(value) < param.min_length:
            return Fault.MIN_LENGTH
        if param.max_length is not None and len(value) > param.max_length:
            return Fault.MAX_LENGTH
        if param.pattern is not None and re.search(param.pattern, value, re.ASCII) is None:
            return Fault.PATTERN
    return None


def _typed(type_: ParamType, value: JsonValue) -> bool:
    if type_ is ParamType.INTEGER:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if type_ is ParamType.NUMBER:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
    if type_ is ParamType.BOOLEAN:
        return isinstance(value, bool)
    if type_ is ParamType.JSON:
        return "\\u0000" not in json.dumps(value)
    if not isinstance(value, str) or "\0" in value:
        return False
    if type_ is ParamType.DATE:
        return _is_date(value)
    if type_ is ParamType.TIME:
        return _TIME.fullmatch(value) is not None
    if type_ is ParamType.TIMESTAMP:
        if len(value) < 19 or value[10] not in "T " or not _is_date(value[:10]):
            return False
        time = _TIME.match(value, 11)
        return time is not None and _OFFSET.fullmatch(value, time.end()) is not None
    if type_ is ParamType.UUID:
        return _UUID.fullmatch(value) is not None
    return True


def _finite(value: int | float) -> bool:
    return Decimal(repr(value)).is_finite()


def _decimal(value: JsonValue) -> Decimal:
    return Decimal(repr(value))


def _is_date(text: str) -> bool:
    if _DATE.fullmatch(text) is None:
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _equal(value: JsonValue, allowed: JsonValue) -> bool:
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed
    if isinstance(value, (int, float)) and isinstance(allowed, (int, float, str)):
        try:
            return Decimal(repr(value)) == Decimal(allowed if isinstance(allowed, str) else repr(allowed))
        except InvalidOperation:
            return False
    return value == allowed
