"""One saved query for many callers: the same text behind a row for each caller, with only its parameters replaced.

Rejects (`NotCoalescedError`) texts that could name something of ours, and parameters without an array type. Pure.

    SELECT ord, rows.* FROM unnest($1, $2) WITH ORDINALITY AS batch (p1, p2, ord)
    CROSS JOIN LATERAL (SELECT * FROM (<saved SQL, $1 → batch.p1>) AS one LIMIT cap) AS rows

All our names begin with `tailrace_batch`, those of columns too: a parameter that stands alone in a select list names a column of the saved
query. The inner LIMIT keeps the planner from taking the query apart: it is asked for one caller after the other, by its indexes.
"""

from collections.abc import Sequence

from tailrace_contract.plan import Engine

from tailrace_gateway.compile.identifiers import quoted
from tailrace_gateway.compile.lexer import Kind, tokens
from tailrace_gateway.compile.postgres.types import Types

RESERVED = "tailrace_batch"
TEXT_ARRAY = 1009


class NotCoalescedError(Exception):
    """Each call keeps its own statement. `code`: why, for `explain`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def rewritten(sql: str, places: Sequence[str], cap: int) -> str:
    """The batch statement of a placed single, which holds no `$n` but ours. `places`: what stands for `$1…`. A line break ends a comment that the
    text may end with."""
    lowered = sql.lower()
    if RESERVED in lowered or 'u&"' in lowered:
        raise NotCoalescedError("reserved_name")
    pieces = ((token.kind, sql[token.start : token.end]) for token in tokens(sql, Engine.POSTGRES))
    text = "".join(places[int(piece[1:]) - 1] if kind is Kind.FOREIGN else piece for kind, piece in pieces)
    arrays = ", ".join(f"${n}" for n in range(1, len(places) + 1))
    names = ", ".join([*(f"{RESERVED}_{n}" for n in range(1, len(places) + 1)), f"{RESERVED}_ord"])
    return (
        f"SELECT {RESERVED}.{RESERVED}_ord AS ord, {RESERVED}_rows.* FROM unnest({arrays}) WITH ORDINALITY AS {RESERVED} ({names})"  # noqa: S608
        f" CROSS JOIN LATERAL (SELECT * FROM (\n{text}\n) AS {RESERVED}_one LIMIT {cap}) AS {RESERVED}_rows"
    )


def places(types: Types, oids: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
    """The arrays' types and what stands for each place. unnest flattens arrays of arrays, so these come as texts and are cast inside."""
    arrays, texts = [], []
    for n, oid in enumerate(oids, 1):
        info, column = types.known.get(oid), f"{RESERVED}.{RESERVED}_{n}"
        if info is None or info.delimiter != ",":
            raise NotCoalescedError("array_type")
        if types.element(oid):
            arrays.append(TEXT_ARRAY)
            texts.append(f"(CAST({column} AS {type_name(types, oid)}))")
        elif info.array and types.element(info.array) == oid:
            arrays.append(info.array)
            texts.append(f"({column})")
        else:
            raise NotCoalescedError("array_type")
    return tuple(arrays), texts


def type_name(types: Types, oid: int) -> str:
    """As SQL has it."""
    info = types.known[oid]
    return f"{quoted(info.schema)}.{quoted(info.name)}"
