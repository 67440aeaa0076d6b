"""Kubernetes quantities (`100m`, `1Gi`): whether two texts say the same, as the API server rewrites `0.5` to `500m`. Pure."""

import re
from decimal import Decimal, InvalidOperation

_SUFFIX: dict[str, Decimal] = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12, "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30, "Ti": Decimal(2) ** 40, "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip
_FORM = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))")


def read_quantity(value: object) -> Decimal | None:
    """The number that a quantity says; None when it is none."""
    match = _FORM.fullmatch(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if match is None:
        return None
    try:
        return Decimal(match[1] + (match[2] or "")) * _SUFFIX[match[3] or ""]
    except InvalidOperation:
        return None


def same_quantity(one: object, other: object) -> bool:
    """Whether both are quantities and say the same."""
    first, second = read_quantity(one), read_quantity(other)
    return first is not None and first == second
