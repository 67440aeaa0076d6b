"""`pattern` of parameters: the portable subset of regular expressions. Pure. Rejects (`PatternError`) what is outside the subset.

In: literals, `.` (not a line feed), classes, `\\d \\w \\s` and their negations (ASCII), groups, `|`, `* + ? {n} {n,} {n,m}` (also lazy), `^` and
`$` (start and end of the text only), `\\b` (ASCII), `\\t \\n \\r \\f \\xHH \\uHHHH`, escaped punctuation. Out: look-around, back-references, inline
flags, possessive and atomic forms, named groups, class set operations, and brackets or braces that are not escaped.

`portable` rewrites a pattern so that nothing depends on an engine's own rules: every character is `\\x{…}`, every class its ranges. RE2 and
Rust's regex crate read that text alike (`\\b` needs `(?-u:\\b)` in Rust) and match in time linear in the text. The Rust twin is
`dataplane-rs/src/params/pattern.rs`; both read `crds/golden/vectors/patterns.json`.
"""

import string

LIMIT = 1000
"""Longest pattern, in characters."""
EXPANDED_LIMIT = 2000
"""Most that a pattern may be when its counts are written out, in atoms."""
COUNT_LIMIT = 1000
"""Most that counts inside each other may multiply to."""
GROUP_LIMIT = 50
"""Groups inside each other."""


class PatternError(ValueError):
    """Outside the portable subset; the message says what is not in it."""


Ranges = list[tuple[int, int]]

_DIGIT: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20)]
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX_DIGITS = frozenset(string.hexdigits)


def portable(pattern: str) -> str:
    """The rewritten pattern."""
    if len(pattern) > LIMIT:
        raise PatternError(f"is longer than {LIMIT} characters")
    reader = _Reader(pattern)
    atoms, _ = reader.alternation()
    if reader.at < len(pattern):
        raise PatternError("has a closing parenthesis without an opening one")
    if atoms > EXPANDED_LIMIT:
        raise PatternError("is too large when its counts are written out")
    return "".join(reader.out)


class _Reader:
    """Recursive descent. Sizes are (atoms when counts are written out, what counts multiply to)."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.out: list[str] = []
        self.depth = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def next(self) -> str:
        character = self.peek()
        if not character:
            raise PatternError("ends too early")
        self.at += 1
        return character

    def skip(self, wanted: str) -> bool:
        found = self.peek() == wanted
        self.at += found
        return found

    def alternation(self) -> tuple[int, int]:
        atoms, count = 0, 1
        while True:
            while self.peek() not in ("", "|", ")"):
                size = self.piece()
                atoms, count = atoms + size[0], max(count, size[1])
            if not self.skip("|"):
                return atoms, count
            self.out.append("|")

    def piece(self) -> tuple[int, int]:
        size, repeatable = (1, 1), True
        match self.next():
            case "(":
                size = self.group()
            case "[":
                self.write_class(self.class_())
            case ".":
                self.write_class(_negated([(0x0A, 0x0A)]))
            case "^":
                self.out.append("\\A")
                repeatable = False
            case "$":
                self.out.append("\\z")
                repeatable = False
            case "\\":
                repeatable = self.escaped()
            case "*" | "+" | "?" | "{" | "}" | "]" as sign:
                raise PatternError(f"has {sign!r} where nothing can be repeated or closed; escape it")
            case character:
                self.out.append(_character(character))
        return self.quantifier(size, repeatable)

    def escaped(self) -> bool:
        """Writes an escape outside a class; whether it may be repeated."""
        found = self.escape()
        if found is None:
            self.out.append("\\b")
            return False
        if isinstance(found, str):
            self.out.append(_character(found))
        else:
            self.write_class(found)
        return True

    def group(self) -> tuple[int, int]:
        self.depth += 1
        if self.depth > GROUP_LIMIT:
            raise PatternError(f"has more than {GROUP_LIMIT} groups inside each other")
        if self.skip("?") and not self.skip(":"):
            raise PatternError("has a group of a kind that is not portable (only (…) and (?:…) are)")
        self.out.append("(?:")
        atoms, count = self.alternation()
        if not self.skip(")"):
            raise PatternError("has a group without end")
        self.out.append(")")
        self.depth -= 1
        return atoms + 1, count

    def quantifier(self, size: tuple[int, int], repeatable: bool) -> tuple[int, int]:
        sign = self.peek()
        if sign not in ("*", "+", "?", "{") or not sign:
            return size
        self.at += 1
        count = 1
        if sign == "{":
            count = self.counts()
        else:
            self.out.append(sign)
        if not repeatable:
            raise PatternError("repeats what cannot be repeated")
        self.skip("?")  # greedy or not is the same when only the existence of a match matters
        if self.peek() and self.peek() in "*+?{":
            raise PatternError("repeats a repetition (possessive forms are not portable)")
        atoms, product = size[0] * count, size[1] * count
        if product > COUNT_LIMIT or atoms > EXPANDED_LIMIT:
            raise PatternError("is too large when its counts are written out")
        return atoms, product

    def counts(self) -> int:
        least = self.count()
        most: int | None = least
        if self.skip(","):
            most = None if self.peek() == "}" else self.count()
        if not self.skip("}") or (most is not None and most < least):
            raise PatternError("has a count that is none")
        if most is None:
            self.out.append(f"{{{least},}}")
        else:
            self.out.append(f"{{{least}}}" if most == least else f"{{{least},{most}}}")
        return max(least + 1 if most is None else most, 1)

    def count(self) -> int:
        start = self.at
        while self.peek() and self.peek() in string.digits:
            self.at += 1
        digits = self.text[start : self.at]
        if not 1 <= len(digits) <= 4 or int(digits) > COUNT_LIMIT:
            raise PatternError(f"has a count that is none, or above {COUNT_LIMIT}")
        return int(digits)

    def escape(self) -> str | Ranges | None:
        """A character, a class, or None for `\\b`."""
        match self.next():
            case "d":
                return _DIGIT
            case "D":
                return _negated(_DIGIT)
            case "w":
                return _WORD
            case "W":
                return _negated(_WORD)
            case "s":
                return _SPACE
            case "S":
                return _negated(_SPACE)
            case "b":
                return None
            case "x":
                return self.hex(2)
            case "u":
                return self.hex(4)
            case character if character in _CONTROLS:
                return _CONTROLS[character]
            case character if character in string.punctuation:
                return character
            case _:
                raise PatternError("has an escape that is not portable")

    def hex(self, count: int) -> str:
        digits = self.text[self.at : self.at + count]
        self.at += count
        if len(digits) != count or not set(digits) <= _HEX_DIGITS or 0xD800 <= int(digits, 16) < 0xE000:
            raise PatternError("has a hexadecimal escape that is no character")
        return chr(int(digits, 16))

    def class_(self) -> Ranges:
        """What stands behind `[`, the closing bracket included."""
        inverted = self.skip("^")
        ranges: Ranges = []
        first = True
        while True:
            low = self.next()
            if low == "]" and not first:
                break
            if low in "]^[" or (low == "-" and not first and self.peek() != "]"):
                raise PatternError(f"has {low!r} inside a class; escape it")
            first = False
            found = self.escape() if low == "\\" else low
            if found is None:
                raise PatternError("has \\b inside a class")
            ranged = self.peek() == "-" and self.text[self.at : self.at + 2] != "-]"
            if not isinstance(found, str):
                if ranged:
                    raise PatternError("has a range that begins with a class")
                ranges.extend(found)
                continue
            if not ranged:
                ranges.append((ord(found), ord(found)))
                continue
            self.at += 1
            ranges.append((ord(found), self.upper_end(ord(found))))
        return _negated(ranges) if inverted else _merged(ranges)

    def upper_end(self, low: int) -> int:
        high = self.next()
        found = self.escape() if high == "\\" else high
        if not isinstance(found, str) or high in "[^-" or ord(found) < low:
            raise PatternError("has a range that is none")
        return ord(found)

    def write_class(self, ranges: Ranges) -> None:
        if not ranges:
            raise PatternError("has a class that nothing is in")
        self.out.append("[" + "".join(_range(low, high) for low, high in ranges) + "]")


def _character(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


def _range(low: int, high: int) -> str:
    return f"\\x{{{low:X}}}" + (f"-\\x{{{high:X}}}" if high > low else "")


def _merged(ranges: Ranges) -> Ranges:
    """Sorted, without overlap or touch."""
    out: Ranges = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def _negated(ranges: Ranges) -> Ranges:
    """Every other code point; the ends are characters, never surrogates."""
    out: Ranges = []
    following = 0
    for low, high in _merged(ranges):
        if low > following:
            out.append((following, low - 1))
        following = high + 1
    if following <= 0x10FFFF:
        out.append((following, 0x10FFFF))
    ends = [(0xE000 if 0xD800 <= low < 0xE000 else low, 0xD7FF if 0xD800 <= high < 0xE000 else high) for low, high in out]
    return [(low, high) for low, high in ends if low <= high]
