"""Doubles in the form of PostgreSQL's float8out (`extra_float_digits=1`): `1e+20`, `0.0001`, `1e-05`, `-0`. Pure; rejects nothing.

PostgreSQL writes the shortest digits strictly inside the interval of decimals that read back as the same double; Python's repr may also
stand exactly on the interval's end (1e23 for 9.999999999999999e+22).
"""

import math
import struct
from fractions import Fraction


def float_text(value: float) -> str:
    """The text that PostgreSQL gives for the same double."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    value = abs(value)
    if value == 0:
        return sign + "0"
    digits, exponent = _scientific(repr(value))
    if value >= 2.0**53 and _on_boundary(digits, exponent, value):
        digits, exponent = _inside(value)
    return sign + _printed(digits, exponent)


def _scientific(text: str) -> tuple[str, int]:
    """Any decimal text → digits without zeros around them, and the exponent of the first digit."""
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = (int(power) if power else 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    return digits.rstrip("0") or "0", exponent


def _on_boundary(digits: str, exponent: int, value: float) -> bool:
    """Whether the digits are exactly halfway to a neighbour."""
    decimal = Fraction(int(digits)) * Fraction(10) ** (exponent + 1 - len(digits))
    exact = Fraction(value)
    below, above = math.nextafter(value, 0.0), math.nextafter(value, math.inf)
    # Above the largest double the spacing goes on.
    upper = exact + (exact - Fraction(below) if math.isinf(above) else Fraction(above) - exact) / 2
    return decimal in (upper, (exact + Fraction(below)) / 2)


def _inside(value: float) -> tuple[str, int]:
    """The fewest digits strictly inside the interval; 17 always are."""
    for places in range(16):
        digits, exponent = _scientific(f"{value:.{places}e}")
        if float(f"{digits}e{exponent + 1 - len(digits)}") == value and not _on_boundary(digits, exponent, value):
            return digits, exponent
    return _scientific(f"{value:.16e}")


def single_text(value: float) -> str:
    """The text that PostgreSQL's float4out gives for the same single: shortest digits strictly inside its interval, fixed for exponents -4 … 5."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    value = abs(value)
    if value == 0:
        return sign + "0"
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    exact = Fraction(value)
    below = _single(bits - 1)
    above = _single(bits + 1) if bits + 1 < 0x7F80_0000 else exact + (exact - below)
    low, high = (exact + below) / 2, (exact + above) / 2
    power = len(str(int(exact))) - 1 if exact >= 1 else _scientific(repr(value))[1]
    for places in range(1, 10):
        unit = Fraction(10) ** (power + 1 - places)
        floor = exact // unit
        inside = [n for n in (floor, floor + 1) if low < n * unit < high]
        if inside:
            nearest = min(inside, key=lambda n: (abs(n * unit - exact), n % 2))
            digits = str(nearest)
            return sign + _printed(digits.rstrip("0"), power + len(digits) - places, 5)
    raise AssertionError("nine digits always are inside")


def _single(bits: int) -> Fraction:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return Fraction(value)


def _printed(digits: str, exponent: int, most: int = 14) -> str:
    """As printf's %g chooses: fixed for exponents -4 … `most`."""
    if not -4 <= exponent <= most:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return "0." + "0" * (-1 - exponent) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return whole + ("." + digits[exponent + 1 :] if len(digits) > exponent + 1 else "")
