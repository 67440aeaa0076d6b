"""Where parts of one API's documents stand, for messages: looked up when asked, each text composed once. Pure; made anew for each state."""

from tailrace_contract.findings import Path
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import Kind

from tailrace_gateway.resources.manifest import Locator
from tailrace_gateway.resources.state import Origin, ResourceState


class Places:
    """Answers `FILE:LINE:COLUMN` for units of one API in one state: a `query`, a `role`, or the `key` of an ApiKey NAMESPACE/NAME."""

    def __init__(self, state: ResourceState, api: QueryAPI) -> None:
        self._state = state
        self._api = api
        self._locators: dict[str, Locator] = {}
        self._known: dict[tuple[str, str], str] = {}

    def __call__(self, unit: str, name: str) -> str:
        """The place, or an empty text when the unit is in no file."""
        if (unit, name) not in self._known:
            self._known[unit, name] = self._find(unit, name)
        return self._known[unit, name]

    def _find(self, unit: str, name: str) -> str:
        if unit == "key":
            # ApiKeys are many and short: their first line is near enough.
            held = self._state.held.get(f"{Kind.API_KEY} {name}")
            return f"{held.origin.file}:{held.origin.first_line}:1" if held is not None and held.origin.file else ""
        names = [each.name for each in (self._api.spec.queries if unit == "query" else self._api.spec.roles)]
        origin = self._state.origin(Kind.QUERY_API, self._api.ref)
        if name not in names:
            files = self._state.queries.get(self._api.ref, ()) if unit == "query" else ()
            return next((each.place for each in files if each.query.name == name), "")
        if not origin.file:
            return ""
        line, column = self._place(origin, ("spec", "queries" if unit == "query" else "roles", names.index(name)))
        return f"{origin.file}:{line + origin.before}:{column}"

    def _place(self, origin: Origin, path: Path) -> tuple[int, int]:
        if not origin.text:
            return origin.line, 1
        if origin.text not in self._locators:
            self._locators[origin.text] = Locator(origin.text)
        return self._locators[origin.text].place(origin.index, path)
