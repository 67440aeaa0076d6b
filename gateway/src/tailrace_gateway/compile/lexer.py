"""Tokens of SQL text by position, as the database's own lexer would cut it, for finding parameters and nothing else.

Rejects text whose tokens cannot be told surely (`NotTokenizedError`): unterminated quotes and comments, a number that runs into a word, NUL.
No IO. Assumes `standard_conforming_strings=on`, which every session has pinned.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tailrace_contract.plan import Engine


class NotTokenizedError(ValueError):
    """The text's tokens are not certain. The message names the position, never the text."""


class Kind(StrEnum):
    """What a token is."""

    BLANK = "blank"
    """White space or a comment."""
    WORD = "word"
    """Keyword or unquoted identifier."""
    QUOTED = "quoted"
    """Quoted identifier."""
    STRING = "string"
    NUMBER = "number"
    OPERATOR = "operator"
    PUNCTUATION = "punctuation"
    """One of ( ) [ ] , ; . : and the pairs `::` and `:=`."""
    NAMED = "named"
    """`:name`, whether or not it is a parameter."""
    FOREIGN = "foreign"
    """`$1`, `$x`, `?1`, `@x`: placeholders of other dialects."""


@dataclass(frozen=True, slots=True)
class Token:
    """`text[start:end]`."""

    kind: Kind
    start: int
    end: int


_WORD_START = r"A-Za-z_\u0080-\U0010ffff"
_WORD = re.compile(rf"[{_WORD_START}][{_WORD_START}0-9$]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"0[xXoObB][0-9A-Fa-f_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?")
_DOLLAR_TAG = re.compile(rf"\$(?:[{_WORD_START}][{_WORD_START}0-9]*)?\$")
_FOREIGN_DOLLAR = re.compile(rf"\$[{_WORD_START}0-9]*")
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
_SQLITE_SPACE = re.compile(r"[ \t\n\r\f]+")
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*'")
_POSTGRES_OPERATOR = frozenset("+-*/<>=~!@#%^&|`?")
_SQLITE_OPERATOR = frozenset("+-*/<>=~!%&|")
_MYSQL_OPERATOR = frozenset("+-*/<>=~!%&|^")
_MYSQL_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|0b[01]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def tokens(text: str, engine: Engine) -> Iterator[Token]:
    """Every token of the text, gap-free and in order."""
    if "\0" in text:
        raise NotTokenizedError("NUL in the text")
    return _LEXERS[engine](text).run()


class _Lexer:
    spaces = _SPACE
    operators = _POSTGRES_OPERATOR

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def run(self) -> Iterator[Token]:
        while self.at < len(self.text):
            start = self.at
            kind = self.next()
            if self.at <= start:
                raise NotTokenizedError(f"no token at {start}")
            yield Token(kind, start, self.at)

    def next(self) -> Kind:
        text, at = self.text, self.at
        char = text[at]
        if match := self.spaces.match(text, at):
            self.at = match.end()
            return Kind.BLANK
        if text.startswith("--", at):
            self.at = self._line_end(at)
            return Kind.BLANK
        if text.startswith("/*", at):
            self.at = self.block_comment(at)
            return Kind.BLANK
        if (special := self.special(char)) is not None:
            return special
        if match := _WORD.match(text, at):
            self.at = match.end()
            return Kind.WORD
        if char.isascii() and (char.isdigit() or (char == "." and text[at + 1 : at + 2].isdigit() and text[at + 1].isascii())):
            return self._number()
        if char == '"':
            self.at = self.quoted(at, '"')
            return Kind.QUOTED
        if char == ":":
            return self._colon()
        if char in "()[],;.":
            self.at += 1
            return Kind.PUNCTUATION
        if char in self.operators:
            return self.operator()
        raise NotTokenizedError(f"an unexpected character at {at}")

    def special(self, char: str) -> Kind | None:
        raise NotImplementedError

    def block_comment(self, at: int) -> int:
        raise NotImplementedError

    def operator(self) -> Kind:
        raise NotImplementedError

    def _line_end(self, at: int) -> int:
        ends = [end for end in (self.text.find("\n", at), self.text.find("\r", at)) if end >= 0]
        return min(ends, default=len(self.text))

    def _number(self) -> Kind:
        match = _NUMBER.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        following = self.text[self.at : self.at + 1]
        if _WORD.match(following) or following in ("'", "$") or following.isdigit():
            raise NotTokenizedError(f"a number runs into a word at {self.at}")
        return Kind.NUMBER

    def _colon(self) -> Kind:
        if self.text.startswith(("::", ":="), self.at):
            self.at += 2
            return Kind.PUNCTUATION
        match = _NAME.match(self.text, self.at + 1)
        if match is None:
            self.at += 1
            return Kind.PUNCTUATION
        self.at = match.end()
        if self.at < len(self.text) and (self.text[self.at] == "$" or _WORD.match(self.text[self.at])):
            raise NotTokenizedError(f"a parameter's name at {self.at} goes on with a character that no name has")
        return Kind.NAMED

    def quoted(self, at: int, quote: str) -> int:
        """End of a quote that doubles to escape itself."""
        end = at + 1
        while True:
            end = self.text.find(quote, end)
            if end < 0:
                raise NotTokenizedError(f"the quote at {at} has no end")
            if not self.text.startswith(quote, end + 1):
                return end + 1
            end += 2


class _Postgres(_Lexer):
    def special(self, char: str) -> Kind | None:
        text, at = self.text, self.at
        if char == "'":
            self.at = self._string(at, escapes=False)
            return Kind.STRING
        if char in "eE" and text.startswith("'", at + 1):
            self.at = self._string(at + 1, escapes=True)
            return Kind.STRING
        if char in "bBxXnN" and text.startswith("'", at + 1):
            self.at = self._string(at + 1, escapes=False)
            return Kind.STRING
        if char in "uU" and text.startswith("&'", at + 1):
            self.at = self._string(at + 2, escapes=False)
            return Kind.STRING
        if char in "uU" and text.startswith('&"', at + 1):
            self.at = self.quoted(at + 2, '"')
            return Kind.QUOTED
        if char == "$":
            if match := _DOLLAR_TAG.match(text, at):
                end = text.find(match.group(), match.end())
                if end < 0:
                    raise NotTokenizedError(f"the dollar quote at {at} has no end")
                self.at = end + len(match.group())
                return Kind.STRING
            match = _FOREIGN_DOLLAR.match(text, at)
            assert match is not None
            self.at = match.end()
            return Kind.FOREIGN
        return None

    def block_comment(self, at: int) -> int:
        depth, end = 1, at + 2
        while depth:
            opens, closes = self.text.find("/*", end), self.text.find("*/", end)
            if closes < 0:
                raise NotTokenizedError(f"the comment at {at} has no end")
            depth, end = (depth + 1, opens + 2) if 0 <= opens < closes else (depth - 1, closes + 2)
        return end

    def operator(self) -> Kind:
        start, end = self.at, self.at
        text = self.text
        while end < len(text) and text[end] in self.operators and not text.startswith(("--", "/*"), end):
            end += 1
        self.at = end
        following = text[end : end + 1]
        if text[start:end].endswith("?") and following.isdigit():
            return Kind.FOREIGN
        if text[start:end] == "@" and _WORD.match(following):
            return Kind.FOREIGN
        return Kind.OPERATOR

    def _string(self, at: int, *, escapes: bool) -> int:
        """End of a string and of the parts that continue it after a line break: they keep its escapes."""
        while True:
            end = self._escaped(at) if escapes else self.quoted(at, "'")
            match = _CONTINUED.match(self.text, end)
            if match is None:
                return end
            at = match.end() - 1

    def _escaped(self, at: int) -> int:
        end = at + 1
        while end < len(self.text):
            if self.text[end] == "\\":
                end += 2
            elif self.text[end] != "'":
                end += 1
            elif self.text.startswith("''", end):
                end += 2
            else:
                return end + 1
        raise NotTokenizedError(f"the quote at {at} has no end")


class _Sqlite(_Lexer):
    spaces = _SQLITE_SPACE
    operators = _SQLITE_OPERATOR

    def special(self, char: str) -> Kind | None:
        text, at = self.text, self.at
        if char == "'" or (char in "xX" and text.startswith("'", at + 1)):
            self.at = self.quoted(text.index("'", at), "'")
            return Kind.STRING
        if char == "`":
            self.at = self.quoted(at, "`")
            return Kind.QUOTED
        if char == "[":
            end = text.find("]", at)
            if end < 0:
                raise NotTokenizedError(f"the quote at {at} has no end")
            self.at = end + 1
            return Kind.QUOTED
        if char in "?$@#":
            self.at += 1
            match = re.compile(rf"[{_WORD_START}0-9$:]*").match(text, self.at)
            assert match is not None
            self.at = match.end()
            return Kind.FOREIGN
        return None

    def _line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end

    def block_comment(self, at: int) -> int:
        end = self.text.find("*/", at + 2)
        if end < 0:
            raise NotTokenizedError(f"the comment at {at} has no end")
        return end + 2

    def operator(self) -> Kind:
        self.at += 1
        return Kind.OPERATOR


class _Mysql(_Lexer):
    """Under the pinned sql_mode: `"` quotes strings, a backslash escapes. What the parser or a server of another version would cut otherwise is
    no certain token: comments that are executed or nested, `--` without a blank."""

    operators = _MYSQL_OPERATOR

    def special(self, char: str) -> Kind | None:
        text, at = self.text, self.at
        if char in "'\"":
            self.at = self._string(at)
            return Kind.STRING
        if char in "xXbBnN" and text.startswith("'", at + 1):
            self.at = self._string(at + 1)
            return Kind.STRING
        if char == "`":
            self.at = self.quoted(at, "`")
            return Kind.QUOTED
        if char == "#":
            self.at = self._line_end(at)
            return Kind.BLANK
        if char in "?$@":
            self.at += 1
            match = re.compile(rf"[{_WORD_START}0-9$@.]*").match(text, self.at)
            assert match is not None
            self.at = match.end()
            return Kind.FOREIGN
        return None

    def _string(self, at: int) -> int:
        quote, end = self.text[at], at + 1
        while end < len(self.text):
            if self.text[end] == "\\":
                end += 2
            elif self.text[end] != quote:
                end += 1
            elif self.text.startswith(quote, end + 1):
                end += 2
            else:
                return end + 1
        raise NotTokenizedError(f"the quote at {at} has no end")

    def _number(self) -> Kind:
        match = _MYSQL_NUMBER.match(self.text, self.at)
        before = self.text[self.at - 1 : self.at]
        if match is None or (self.text[self.at] == "." and (before == "`" or before.isalnum() or before in ("_", "$"))):
            raise NotTokenizedError(f"a number that may be a name at {self.at}")
        self.at = match.end()
        following = self.text[self.at : self.at + 1]
        if _WORD.match(following) or following in ("'", "$", '"', "`") or following.isdigit():
            raise NotTokenizedError(f"a number runs into a word at {self.at}")
        return Kind.NUMBER

    def _line_end(self, at: int) -> int:
        if self.text.startswith("--", at) and self.text[at + 2 : at + 3] not in ("", " ", "\t", "\n"):
            raise NotTokenizedError(f"two dashes without a blank behind them at {at}")
        end = self.text.find("\n", at + 2 if self.text.startswith("--", at) else at + 1)
        end = len(self.text) if end < 0 else end
        if "\r" in self.text[at : end - 1]:
            raise NotTokenizedError(f"a carriage return in the comment at {at}")
        return end

    def block_comment(self, at: int) -> int:
        if self.text.startswith(("/*!", "/*M!", "/*m!", "/*+"), at):
            raise NotTokenizedError(f"the comment at {at} is executed by some servers")
        end = self.text.find("*/", at + 2)
        if end < 0:
            raise NotTokenizedError(f"the comment at {at} has no end")
        if "/*" in self.text[at + 2 : end]:
            raise NotTokenizedError(f"a comment in the comment at {at}")
        return end + 2

    def operator(self) -> Kind:
        self.at += 1
        return Kind.OPERATOR


_LEXERS: dict[Engine, type[_Lexer]] = {Engine.POSTGRES: _Postgres, Engine.SQLITE: _Sqlite, Engine.MYSQL: _Mysql}
