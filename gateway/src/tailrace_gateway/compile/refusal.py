"""Why a unit (query, role, key) has no plan: a code for machines, a reason and a fix for people. No IO."""

from dataclasses import dataclass, field

from tailrace_contract.codes import Refusal


class RefusedError(Exception):
    """Raised inside the compiler of one unit and caught at its edge; never crosses to another unit.

    `hint` says what to change. `detail` may name identifiers of the database; it goes to `tailrace check` only, never to logs or status.
    """

    def __init__(self, code: Refusal, hint: str, detail: str = "") -> None:
        super().__init__(code.value)
        self.code = code
        self.hint = hint
        self.detail = detail


@dataclass(frozen=True, slots=True)
class RefusedUnit:
    """One refusal of a snapshot. `unit` is `query`, `role`, `key` or `grant`; `role` is empty when every role is refused."""

    unit: str
    name: str
    code: str
    hint: str
    role: str = ""
    place: str = ""
    detail: str = field(default="", repr=False)

    @property
    def what(self) -> tuple[str, str, str, str]:
        """Unit, name, role and code: the same refusal, wherever it stands now."""
        return self.unit, self.name, self.role, self.code
