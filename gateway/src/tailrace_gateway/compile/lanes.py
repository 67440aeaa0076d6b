"""Which lane a query may use: the shared one, or why not. Pure."""

from tailrace_contract.plan import PagePlan, Returns

from tailrace_gateway.compile.spec import QuerySpec

SHARED_ROWS = 1000
"""More rows than this don't promise to fit 64 KiB."""


def exclusive_because(query: QuerySpec, page: PagePlan | None, volatile: bool, limit: int | None) -> str:
    """Empty: it may be promoted to the shared lane. Else a stable code for `explain`."""
    if query.write:
        return "write"
    if volatile:
        return "volatile_function"
    if query.returns is Returns.MANY and page is None and (query.unbounded or limit is None or limit > SHARED_ROWS):
        return "unbounded_rows"
    if page is not None and page.max_size > SHARED_ROWS:
        return "large_pages"
    return ""
