"""Figures as SVG on a logarithmic scale, without a dependency. Pure. Values of 0 or less have no place on it and are left out."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from tailrace_loadtest.bench.verdict import number

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 330, 130, 26, 44
LONGEST = 46
"""Characters of a row's name that have room; a longer one is cut, visibly."""
COLOURS = ("#3b6ea5", "#b5532f", "#4f8a3c", "#7b5aa6", "#8a7a2c", "#555555")


def decades(low: float, high: float) -> tuple[int, int]:
    """Powers of ten that enclose both, at least one apart."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def _short(power: int) -> str:
    return {3: "1k", 4: "10k", 5: "100k", 6: "1M", 7: "10M"}.get(power, f"{10.0**power:g}")


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _open(height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]


HALO = 'stroke="white" stroke-width="3" paint-order="stroke"'
"""Keeps a line behind a text from crossing it out."""
MET, SHORT = COLOURS[2], COLOURS[1]


def ranges(title: str, unit: str, rows: Sequence[tuple[str, float, float, float]], goal: float | None = None) -> str:
    """A row each: its lowest, median and highest as a bar with a dot, on one logarithmic axis.

    With a goal, a line stands there, and each row's colour says on which side its median is; else ours stand out by colour.
    """
    shown = [row for row in rows if row[1] > 0]
    height = TOP + ROW * len(shown) + 24
    parts = _open(height, title)
    if not shown:
        return "\n".join([*parts, "</svg>"]) + "\n"
    first, last = decades(min([row[1] for row in shown] + [goal or math.inf]), max([row[3] for row in shown] + [goal or 0.0]))

    def x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - first) / (last - first), 1)

    for power in range(first, last + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at}" y1="{TOP - 10}" x2="{at}" y2="{height - 20}" stroke="#dddddd"/>')
        parts.append(f'<text x="{at}" y="{height - 6}" text-anchor="middle" fill="#555555">{_short(power)}</text>')
        for step in (2, 5) if power < last else ():
            between = x(step * 10.0**power)
            parts.append(f'<line x1="{between}" y1="{TOP - 10}" x2="{between}" y2="{height - 20}" stroke="#f0f0f0"/>')
    if goal is not None:
        parts.append(f'<line x1="{x(goal)}" y1="{TOP - 16}" x2="{x(goal)}" y2="{height - 20}" stroke="black" stroke-width="1.5"/>')
        parts.append(f'<text x="{x(goal) + 4}" y="{TOP - 8}">goal</text>')
    for n, (name, low, median, high) in enumerate(shown):
        y = TOP + ROW * n + 4
        ours = COLOURS[0] if name.startswith("tailrace") else COLOURS[-1]
        colour = ours if goal is None else MET if median >= goal else SHORT
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(_cut(name))}</text>')
        parts.append(f'<line x1="{x(low)}" y1="{y}" x2="{x(high)}" y2="{y}" stroke="{colour}" stroke-width="6" stroke-linecap="round"/>')
        parts.append(f'<circle cx="{x(median)}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x(high) + 12}" y="{y + 4}" {HALO}>{number(median)} {escape(unit)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def curves(title: str, across: str, up: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lines over two logarithmic axes; a point with x of 0 is drawn at the left end."""
    height, bottom, left = 360, 310, 70
    parts = _open(height, title)
    points = [point for line in lines.values() for point in line if point[1] > 0]
    if not points:
        return "\n".join([*parts, "</svg>"]) + "\n"
    positive = [point[0] for point in points if point[0] > 0] or [1.0]
    x_first, x_last = decades(min(positive), max(positive))
    none = any(point[0] <= 0 for point in points)
    # Nothing has no place on the scale: it gets one of its own, a power before the first.
    x_first -= none
    y_first, y_last = decades(min(point[1] for point in points), max(point[1] for point in points))

    def x(value: float) -> float:
        share = (math.log10(value) - x_first) / (x_last - x_first) if value > 0 else 0
        return round(left + (WIDTH - left - RIGHT) * share, 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - TOP) * (math.log10(value) - y_first) / (y_last - y_first), 1)

    for power in range(x_first, x_last + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at}" y1="{TOP}" x2="{at}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{0 if none and power == x_first else _short(power)}</text>')
    for power in range(y_first, y_last + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{left}" y1="{at}" x2="{WIDTH - RIGHT}" y2="{at}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4}" text-anchor="end">{_short(power)}</text>')
    parts.append(f'<text x="{(left + WIDTH - RIGHT) / 2}" y="{bottom + 38}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="{left}" y="38" fill="#555555">{escape(up)}</text>')
    for n, (name, line) in enumerate(lines.items()):
        colour = COLOURS[n % len(COLOURS)]
        shown = [(x(one), y(two)) for one, two in line if two > 0]
        parts.append(f'<polyline points="{" ".join(f"{a},{b}" for a, b in shown)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a}" cy="{b}" r="4" fill="{colour}"/>' for a, b in shown]
        if shown:
            parts.append(f'<text x="{shown[-1][0] + 10}" y="{shown[-1][1] + 4}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
