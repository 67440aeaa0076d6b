"""The two statements of a keyset page around the saved text, which stays as it is. Pure text; every engine understands it.

Reserved names keep the wrapper apart from the query. A line break ends a comment that the saved text may end with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace_gateway.compile.identifiers import quoted


@dataclass(frozen=True, slots=True)
class PageKey:
    """One column of the order."""

    name: str
    descending: bool
    quote: str = '"'

    @property
    def sql(self) -> str:
        """As the wrapper names it."""
        return f"tailrace_page.{quoted(self.name, self.quote)}"


def first_sql(sql: str, keys: Sequence[PageKey], limit: str) -> str:
    """The page without a cursor."""
    return f"SELECT * FROM (\n{sql}\n) AS tailrace_page ORDER BY {_order(keys)} LIMIT {limit}"  # noqa: S608


def next_sql(sql: str, keys: Sequence[PageKey], marks: Sequence[str], limit: str) -> str:
    """The page after the row whose key the marks bind."""
    return f"SELECT * FROM (\n{sql}\n) AS tailrace_page WHERE {_after(keys, marks)} ORDER BY {_order(keys)} LIMIT {limit}"  # noqa: S608


def _order(keys: Sequence[PageKey]) -> str:
    return ", ".join(f"{key.sql} DESC" if key.descending else key.sql for key in keys)


def _after(keys: Sequence[PageKey], marks: Sequence[str]) -> str:
    """Rows beyond the mark. One direction: a row comparison, which an index serves. Mixed: spelled out, with a bound on the first column for
    the index."""
    first = keys[0]
    if len(keys) == 1:
        return f"{first.sql} {_beyond(first)} {marks[0]}"
    if len({key.descending for key in keys}) == 1:
        return f"({', '.join(key.sql for key in keys)}) {_beyond(first)} ({', '.join(marks)})"
    arms = []
    for n, key in enumerate(keys):
        equal = [f"{before.sql} = {mark}" for before, mark in zip(keys[:n], marks, strict=False)]
        arms.append(" AND ".join([*equal, f"{key.sql} {_beyond(key)} {marks[n]}"]))
    return f"{first.sql} {_beyond(first)}= {marks[0]} AND ({' OR '.join(f'({arm})' for arm in arms)})"


def _beyond(key: PageKey) -> str:
    return "<" if key.descending else ">"
