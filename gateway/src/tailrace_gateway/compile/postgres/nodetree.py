"""PostgreSQL's own parse trees (`pg_node_tree` text, as in `prosqlbody` and `pg_rewrite.ev_action`) read into plain nodes.

Rejects text that isn't one (`NotATreeError`). No IO. The text is a sequence of tokens divided by blanks and brackets; a node is
`{TAG :field value …}`, strictly alternating, so a column named ":resjunk" is a value and never a field. Format: src/backend/nodes/outfuncs.c.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

Value = "Node | list[Value] | str | None"
"""A node, a list, an atom's text, or None for `<>`."""

_TOKEN = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ATOM_LISTS = frozenset("iobx")


class NotATreeError(ValueError):
    """The text is no parse tree that this module can read."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node. Accessors are strict: a missing field means a server whose trees we don't know, which must not pass."""

    tag: str
    fields: dict[str, object]

    def get(self, name: str) -> object:
        """A field that must be there."""
        try:
            return self.fields[name]
        except KeyError:
            raise NotATreeError(f"{self.tag} without {name}") from None

    def integer(self, name: str) -> int:
        """A number or OID."""
        value = self.get(name)
        if not isinstance(value, str):
            raise NotATreeError(f"{self.tag}.{name} is no number")
        return int(value)

    def flag(self, name: str) -> bool:
        """true or false."""
        return self.get(name) == "true"

    def text(self, name: str) -> str:
        """An atom's text, empty for none."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def node(self, name: str) -> "Node | None":
        """A node or none."""
        value = self.get(name)
        if value is None or isinstance(value, Node):
            return value
        raise NotATreeError(f"{self.tag}.{name} is no node")

    def nodes(self, name: str) -> "list[Node]":
        """A list of nodes; none is the empty list."""
        value = self.get(name)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(each, Node) for each in value):
            return value
        raise NotATreeError(f"{self.tag}.{name} is no list of nodes")

    def items(self, name: str) -> list[object]:
        """A list of anything; none is the empty list."""
        value = self.get(name)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        raise NotATreeError(f"{self.tag}.{name} is no list")


def read(text: str) -> object:
    """The whole text as one value."""
    reader = _Reader(text)
    try:
        value = reader.value(reader.next())
    except (StopIteration, RecursionError, ValueError) as error:
        raise NotATreeError("the text ends too early or is nested too deeply") from error
    if next(reader.tokens, None) is not None:
        raise NotATreeError("text after the tree")
    return value


def queries(text: str) -> list[Node]:
    """The Query nodes of `prosqlbody` (a list of lists) or `ev_action` (a list)."""
    found: list[Node] = []

    def gather(value: object) -> None:
        if isinstance(value, list):
            for each in value:
                gather(each)
        elif isinstance(value, Node) and value.tag == "QUERY":
            found.append(value)
        else:
            raise NotATreeError("something else than a query")

    gather(read(text))
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: Iterator[str] = (match.group() for match in _TOKEN.finditer(text))

    def next(self) -> str:
        return next(self.tokens)

    def value(self, token: str) -> object:
        if token == "{":
            return self._node()
        if token == "(":
            return self._list()
        if token in (")", "}"):
            raise NotATreeError("an unexpected bracket")
        if token == "<>":
            return None
        return _ESCAPE.sub(r"\1", token) if "\\" in token else token

    def _list(self) -> list[object]:
        values: list[object] = []
        token = self.next()
        if token in _ATOM_LISTS:
            while (token := self.next()) != ")":
                values.append(int(token))
            return values
        while token != ")":
            value = self.value(token)
            if isinstance(value, str) and len(value) >= 2 and value[0] == value[-1] == '"':
                value = value[1:-1]
            values.append(value)
            token = self.next()
        return values

    def _node(self) -> Node:
        tag = self.next()
        fields: dict[str, object] = {}
        token = self.next()
        while token != "}":
            if token[0] != ":":
                raise NotATreeError(f"{tag}: a field was expected")
            name = token[1:]
            fields[name] = self.value(self.next())
            token = self.next()
            if token == "[" and name in ("constvalue", "constval"):
                datum = []
                while (token := self.next()) != "]":
                    datum.append(int(token) & 0xFF)
                fields[name] = [fields[name], bytes(datum)]
                token = self.next()
        return Node(tag, fields)
