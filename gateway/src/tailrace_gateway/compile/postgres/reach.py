"""What a read really touches behind its views: every table, and every function that views call. Pure.

Rejects (`NotCoalescedError`) what several callers must not share: volatile and own functions, row level security, tables of other servers.
"""

from collections.abc import Callable, Iterable, Iterator

from tailrace_gateway.compile.postgres.batch import RESERVED, NotCoalescedError
from tailrace_gateway.compile.postgres.catalog import Catalog
from tailrace_gateway.compile.postgres.nodetree import Node, NotATreeError

_FUNCTION_FIELDS = ("funcid", "opfuncid", "aggfnoid", "winfnoid", "tsmhandler")
_VOLATILE_TAGS = frozenset({"NEXTVALUEEXPR", "TABLESAMPLECLAUSE", "TABLEFUNC"})


def check_shareable(tables: Iterable[int | str], catalog: Catalog, view_query: Callable[[int], Node | None]) -> None:
    """Of a statement whose own functions are known already to be shipped and not volatile."""
    for view in _reached(tables, catalog):
        relation = catalog.relations.get(view)
        if relation is None:
            raise NotCoalescedError("undecided")
        if relation.row_security:
            raise NotCoalescedError("row_security")
        if relation.kind == "f":
            raise NotCoalescedError("foreign_table")
        if any(attribute.name.lower().startswith(RESERVED) for attribute in relation.attributes):
            raise NotCoalescedError("reserved_name")
        if relation.kind == "v":
            tree = view_query(view)
            if tree is None:
                raise NotCoalescedError("undecided")
            _check_functions(tree, catalog)


def _reached(tables: Iterable[int | str], catalog: Catalog) -> Iterator[int]:
    """The tables, what their views read, and what inherits from them. A materialized view was read before."""
    children: dict[int, list[int]] = {}
    for child, parents in catalog.parents.items():
        for parent in parents:
            children.setdefault(parent, []).append(child)
    waiting, seen = [int(table) for table in tables], set[int]()
    while waiting:
        table = waiting.pop()
        if table in seen:
            continue
        seen.add(table)
        yield table
        waiting += children.get(table, ())
        relation = catalog.relations.get(table)
        if relation is not None and relation.kind == "v":
            waiting += [other for other, _ in catalog.view_columns.get(table, ())]


def _check_functions(tree: Node, catalog: Catalog) -> None:
    for node in _nodes(tree):
        if node.tag in _VOLATILE_TAGS:
            raise NotCoalescedError("volatile_function")
        for name in _FUNCTION_FIELDS:
            try:
                oid = node.integer(name) if name in node.fields else 0
            except (NotATreeError, ValueError):
                raise NotCoalescedError("undecided") from None
            if oid == 0:
                if name == "opfuncid" and name in node.fields:
                    raise NotCoalescedError("undecided")
                continue
            function = catalog.functions.get(oid)
            if function is None:
                raise NotCoalescedError("own_function")
            if function.volatile:
                raise NotCoalescedError("volatile_function")


def _nodes(value: object) -> Iterator[Node]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Node):
            yield each
            waiting += each.fields.values()
        elif isinstance(each, list):
            waiting += each
