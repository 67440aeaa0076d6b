"""Where parts of documents stand, for many look-ups: each document's text is composed once. Pure; made anew for each state."""

from tailrace_contract.findings import Path
from tailrace_contract.resource import Document, Kind

from tailrace_gateway.resources.manifest import Locator
from tailrace_gateway.resources.state import ResourceState


class Places:
    """Answers `FILE:LINE:COLUMN` for paths of resources of one state."""

    def __init__(self, state: ResourceState) -> None:
        self._state = state
        self._locators: dict[str, Locator] = {}

    def __call__(self, document: Document, path: Path) -> str:
        """The place, or an empty text when the document is in no file. ApiKeys are many and short: their first line is near enough."""
        kind = Kind(type(document).__name__)
        origin = self._state.origin(kind, document.ref)
        if not origin.file:
            return ""
        if kind is Kind.API_KEY or not origin.text:
            return f"{origin.file}:{origin.first_line}:1"
        if origin.text not in self._locators:
            self._locators[origin.text] = Locator(origin.text)
        line, column = self._locators[origin.text].place(origin.index, path)
        return f"{origin.file}:{line + origin.before}:{column}"
