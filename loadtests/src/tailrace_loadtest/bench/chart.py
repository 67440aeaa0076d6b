"""Bars as SVG, without a dependency. Pure."""

from collections.abc import Sequence
from html import escape

WIDTH, LEFT, ROW = 720, 230, 30


def bars(title: str, unit: str, rows: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars of non-negative values, the longest across the whole width."""
    most = max((value for _, value in rows), default=0) or 1
    height = 40 + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(rows):
        top = 34 + ROW * number
        length = round((WIDTH - LEFT - 130) * value / most, 1)
        parts.append(f'<text x="{LEFT - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{length}" height="22" fill="#3b6ea5"/>')
        parts.append(f'<text x="{LEFT + length + 6}" y="{top + 16}">{value:,.6g} {escape(unit)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
