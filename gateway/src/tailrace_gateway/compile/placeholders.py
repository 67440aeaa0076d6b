"""Saved SQL with `:name` → the same text with `$n`, `?n` or (MySQL) `?` at those places; every other character stays.

Rejects: several statements, placeholders of other dialects, undeclared and unused names, names that we reserve, text that has no certain tokens.
No IO.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace_contract.codes import Refusal
from tailrace_contract.plan import Engine

from tailrace_gateway.compile.lexer import Kind, NotTokenizedError, Token, tokens
from tailrace_gateway.compile.refusal import RefusedError

RESERVED_PREFIXES = ("tailrace_page", "tailrace_batch")
"""Names that the rewrites use; a query that contains one could capture them and answer with wrong rows."""

_OPERAND_KINDS = (Kind.WORD, Kind.QUOTED, Kind.STRING, Kind.NUMBER, Kind.NAMED)


@dataclass(frozen=True, slots=True)
class Placed:
    """SQL as it is sent, without a final `;`. Place n+1 binds the declared parameter `params[n]`; each parameter has one place, on MySQL one an
    occurrence."""

    sql: str = field(repr=False)
    params: tuple[int, ...]


def place(text: str, declared: Sequence[str], engine: Engine) -> Placed:
    """Numbers the parameters of one statement in order of first appearance."""
    try:
        found = list(tokens(text, engine))
    except NotTokenizedError as error:
        raise RefusedError(Refusal.NOT_PARSED, f"the SQL text cannot be cut into tokens: {error}") from None
    found = _one_statement(text, found)
    numbers: dict[str, int] = {}
    parts: list[str] = []
    mark = "$" if engine is Engine.POSTGRES else "?"
    occurrences: list[int] = []
    brackets: list[str] = []
    before: Token | None = None
    for token in found:
        piece = text[token.start : token.end]
        if token.kind is Kind.FOREIGN:
            raise RefusedError(
                Refusal.UNDECLARED_PLACEHOLDER, f"write parameters as :name (character {token.start + 1} begins another placeholder)"
            )
        if token.kind in (Kind.WORD, Kind.QUOTED) and piece.strip('"`[]').lower().startswith(RESERVED_PREFIXES):
            raise RefusedError(Refusal.NOT_PARSED, "names that begin with tailrace_page or tailrace_batch are reserved: rename it")
        if token.kind is Kind.NAMED and not _is_slice(text, brackets, before):
            name = piece[1:]
            if name not in declared:
                raise RefusedError(Refusal.UNDECLARED_PLACEHOLDER, f"declare the parameter `{name}` under params, or write the colon apart")
            number = numbers.setdefault(name, len(numbers) + 1)
            occurrences.append(declared.index(name))
            parts.append(" ? " if engine is Engine.MYSQL else f" {mark}{number} ")
        else:
            parts.append(piece)
        if token.kind is Kind.PUNCTUATION and piece in "([":
            brackets.append(piece)
        elif token.kind is Kind.PUNCTUATION and piece in ")]" and brackets:
            brackets.pop()
        if token.kind is not Kind.BLANK:
            before = token
    if unused := [name for name in declared if name not in numbers]:
        raise RefusedError(Refusal.UNUSED_PARAMETER, f"the SQL text does not use `{unused[0]}`: remove the parameter or use it")
    return Placed("".join(parts), tuple(occurrences) if engine is Engine.MYSQL else tuple(declared.index(name) for name in numbers))


def with_names(sql: str, engine: Engine) -> str:
    """Placed SQL with `:p1` in the place of `?1`, which the syntax parser understands. Never sent."""
    pieces = [(token, sql[token.start : token.end]) for token in tokens(sql, engine)]
    return "".join(f":p{piece[1:]}" if token.kind is Kind.FOREIGN else piece for token, piece in pieces)


def first_word(text: str, engine: Engine) -> str:
    """The first token that says something, in lower case; empty when there is none."""
    try:
        for token in tokens(text, engine):
            if token.kind is not Kind.BLANK:
                return text[token.start : token.end].lower()
    except NotTokenizedError as error:
        raise RefusedError(Refusal.NOT_PARSED, f"the SQL text cannot be cut into tokens: {error}") from None
    return ""


def _is_slice(text: str, brackets: Sequence[str], before: Token | None) -> bool:
    """`[1:n]`: directly inside brackets and after an operand a colon divides bounds."""
    if not brackets or brackets[-1] != "[" or before is None:
        return False
    return before.kind in _OPERAND_KINDS or text[before.start : before.end] in (")", "]")


def _one_statement(text: str, found: list[Token]) -> list[Token]:
    """Cuts final semicolons; the text before them is left whole."""
    ends = [n for n, token in enumerate(found) if text[token.start : token.end] == ";"]
    if not ends:
        if all(token.kind is Kind.BLANK for token in found):
            raise RefusedError(Refusal.NOT_PARSED, "the SQL text is empty")
        return found
    first = ends[0]
    if any(token.kind is not Kind.BLANK and text[token.start : token.end] != ";" for token in found[first:]):
        raise RefusedError(Refusal.SEVERAL_STATEMENTS, "a saved query is one statement: make a query of each")
    if all(token.kind is Kind.BLANK for token in found[:first]):
        raise RefusedError(Refusal.NOT_PARSED, "the SQL text is empty")
    return found[:first]
