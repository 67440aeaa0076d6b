"""YAML text to JSON values, strictly: what readers of YAML disagree about is refused, so that the same file means the same everywhere.

Rejects with `ManifestError`, which has line and column: syntax, tabs, duplicate and non-text keys, unknown tags, plain `yes`, `0o17`,
`1:30`, values that JSON lacks, aliases that contain themselves or blow up, deep nesting, long texts. No IO.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import JsonValue
from tailrace_contract.findings import Path

PLAIN = "plain"
"""Tag that every unquoted value without a tag of its own gets: its meaning is decided here, not by the library."""

SIZE_LIMIT_BYTES = 16 << 20
NODE_LIMIT = 500_000
"""Values of one document after its aliases were followed: 1,000 queries have about 50,000."""
DEPTH_LIMIT = 64

_PLAIN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULL = ("", "~", "null", "Null", "NULL")
_DISPUTED = re.compile(
    r"(?:[yYnN]|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"
    r"|[-+]?0[0-9_]+|[-+]?0[oxb][0-9a-fA-F_]+|[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?|[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?")


class _Loader(yaml.CSafeLoader):
    """Composes nodes; resolves nothing."""

    yaml_implicit_resolvers: dict[Any, Any] = {None: [(PLAIN, re.compile(""))]}  # noqa: RUF012 (the library looks it up on the class)


class ManifestError(ValueError):
    """Text that is not acceptable. `line` and `column` begin at 1; `hint` is the fix. Never holds a value of the text."""

    def __init__(self, line: int, column: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Manifest:
    """One document of a text: its value and where it begins. `index` counts the text's non-empty documents from 0."""

    value: JsonValue
    index: int
    line: int


def read_manifests(text: str) -> tuple[list[Manifest], list[ManifestError]]:
    """Every non-empty document in order, and everything that is wrong with the text, up to the first place where it can't be cut further.

    With an error the documents are not to be trusted.
    """
    found: list[Manifest] = []
    errors: list[ManifestError] = []
    try:
        for index, node in enumerate(_composed(text)):
            values = _Values(errors)
            found.append(Manifest(values.value(node, 0), index, node.start_mark.line + 1))
    except ManifestError as error:
        errors.append(error)
    return found, errors


_BOUNDARY = re.compile(r"^---(?=[ \t\r]|$)", re.MULTILINE)


def chunks(text: str) -> list[tuple[int, str]]:
    """The text cut before each `---` that begins a document, with how many lines stand before each part.

    In YAML such a line can be nothing else, so a fault in one document leaves the others readable, and an unchanged document need
    not be read again. Directives stay with their document.
    """
    starts = [match.start() for match in _BOUNDARY.finditer(text)]
    if not starts or starts[0] > 0:
        starts = [0, *starts]
    found: list[tuple[int, str]] = []
    line, held = 0, ""
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = held + text[start:end]
        if not held and "%" in part and any(each.startswith("%") for each in part.splitlines()) and not part.startswith("---"):
            held = part
            continue
        found.append((line, part))
        line, held = line + part.count("\n"), ""
    if held:
        found.append((line, held))
    return found


class Locator:
    """Finds places in one text, which is composed once."""

    def __init__(self, text: str) -> None:
        self._nodes = list(_composed(text))

    def place(self, index: int, path: Path) -> tuple[int, int]:
        """Line and column of a path in a document, or of its nearest parent that is there."""
        return _place(self._nodes[index], path) if index < len(self._nodes) else (1, 1)


def locate(text: str, index: int, path: Path) -> tuple[int, int]:
    """One look-up of `Locator`."""
    return Locator(text).place(index, path)


def _place(node: yaml.Node, path: Path) -> tuple[int, int]:
    mark = node.start_mark
    for part in path:
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == part), None)
            if entry is None:
                break
            mark, node = entry[0].start_mark, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
        else:
            break
    return mark.line + 1, mark.column + 1


def _composed(text: str) -> Iterator[yaml.Node]:
    if len(text) > SIZE_LIMIT_BYTES:
        raise ManifestError(1, 1, "the file is over 16 MiB", "split it")
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None and not (isinstance(node, yaml.ScalarNode) and _is_null(node)):
                yield node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise ManifestError(line, column, *_explained(str(error.problem or error.context or ""), _line(text, line))) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ManifestError(max(line, 1), 1, "a character that YAML does not allow", "remove it; the file must be UTF-8 text") from None
    except RecursionError:
        raise ManifestError(1, 1, "nested too deeply", f"stay below {DEPTH_LIMIT} levels") from None
    finally:
        loader.dispose()


def _is_null(node: yaml.ScalarNode) -> bool:
    return node.tag == PLAIN and node.value in _NULL


def _line(text: str, line: int) -> str:
    return next(iter(text.split("\n", line)[line - 1 : line]), "")


def _explained(problem: str, line: str) -> tuple[str, str]:
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab stands where YAML wants blanks", "indent with blanks only"
    if "cannot start any token" in problem:
        return "a character that can't begin a value", "put the value in quotes; indent with blanks, not tabs"
    if "undefined alias" in problem:
        return "an alias whose anchor does not exist", "define the anchor above it, or put a text that begins with * in quotes"
    if "mapping values are not allowed" in problem:
        return "a colon where none can stand", "check the indentation; put a text that contains a colon in quotes"
    if "expected <block end>" in problem or "did not find expected" in problem:
        return "the structure breaks off here", "check the indentation of this line, and quotes and brackets above it"
    return f"not YAML ({problem.split(',')[0]})" if problem.isascii() and "'" not in problem else "not YAML", "check quotes and indentation"


def _error(node: yaml.Node, message: str, hint: str) -> ManifestError:
    return ManifestError(node.start_mark.line + 1, node.start_mark.column + 1, message, hint)


class _Refused(Exception):
    """One value is at fault; the rest of the document can still be read."""

    def __init__(self, node: yaml.Node, message: str, hint: str) -> None:
        super().__init__(message)
        self.error = _error(node, message, hint)


class _Values:
    """Builds the value of one document; counts, so that aliases can't multiply without bound."""

    def __init__(self, errors: list[ManifestError]) -> None:
        self._errors = errors
        self._count = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, depth: int) -> JsonValue:
        self._count += 1
        if self._count > NODE_LIMIT:
            raise _error(node, "too many values, counting what aliases repeat", "use fewer aliases, or split the document")
        if depth > DEPTH_LIMIT:
            raise _error(node, "nested too deeply", f"stay below {DEPTH_LIMIT} levels")
        try:
            return self._value(node, depth)
        except _Refused as refused:
            self._errors.append(refused.error)
            return None

    def _value(self, node: yaml.Node, depth: int) -> JsonValue:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if id(node) in self._open:
            raise _Refused(node, "an alias that contains itself", "remove it")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                _plain_tag(node, "tag:yaml.org,2002:seq")
                return [self.value(each, depth + 1) for each in node.value]
            assert isinstance(node, yaml.MappingNode)
            _plain_tag(node, "tag:yaml.org,2002:map")
            return self._mapping(node, depth)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, depth: int) -> JsonValue:
        result: dict[str, JsonValue] = {}
        first: dict[str, int] = {}
        for key, value in node.value:
            try:
                name = _key(key)
                if name in first:
                    raise _Refused(key, f"this key stands here twice: first in line {first[name]}", "remove one")
                first[name] = key.start_mark.line + 1
                result[name] = self.value(value, depth + 1)
            except _Refused as refused:
                self._errors.append(refused.error)
        return result


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _Refused(node, "a key that is not text", "write a plain name before the colon")
    if node.tag == PLAIN and node.value == "<<":
        raise _Refused(node, "merge keys (<<) are not read the same everywhere", "repeat the fields")
    if node.tag == PLAIN and _DISPUTED.fullmatch(node.value):
        raise _Refused(node, f"the name `{node.value[:40]}` is text to some YAML readers and another value to others", "put it in quotes")
    text = _scalar(node)
    if not isinstance(text, str):
        raise _Refused(node, "a key that is not text", "put it in quotes")
    return text


def _plain_tag(node: yaml.Node, tag: str) -> None:
    if node.tag not in (tag, "!", None):
        raise _Refused(node, "a tag that means nothing here", "remove what begins with !")


def _scalar(node: yaml.ScalarNode) -> JsonValue:
    text: str = node.value
    if node.tag != PLAIN:
        _plain_tag(node, "tag:yaml.org,2002:str")
        return text
    if text in _NULL:
        return None
    if text in _PLAIN:
        return _PLAIN[text]
    if _DISPUTED.fullmatch(text):
        raise _Refused(
            node, "a value that YAML readers understand differently", "put it in quotes if it is text, else write true, false or a decimal"
        )
    if _INTEGER.fullmatch(text):
        if len(text) > 400:
            raise _Refused(node, "a number of over 400 digits", "put it in quotes if it is text")
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise _Refused(node, "a number that is too large", "put it in quotes if it is text")
        return number
    return text
