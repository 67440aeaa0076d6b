"""What can go wrong in the operator: one tree. Every error has a stable code, a message, a hint and says whether to try again. Pure.

Messages never hold a Secret's data: what the API server says about a Secret is not passed on (see `cluster`).
"""


class OperatorError(Exception):
    """Root of the tree."""

    code = "operator_error"
    hint = ""
    is_retryable = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.hint


class SettingsError(OperatorError):
    """The settings are wrong; `faults` are all that is, together."""

    code = "settings_invalid"

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults), "correct the operator's flags or environment")
        self.faults = faults


class ClusterError(OperatorError):
    """The API server refused a call or did not answer it. `status` is its HTTP status, 0 when there was no answer."""

    code = "cluster_error"
    is_retryable = True

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ClusterError):
    """There is no such object (or no such kind)."""

    code = "not_found"


class Conflict(ClusterError):
    """The object is not the one, or not the version, that the write was meant for: read it again."""

    code = "conflict"


class AlreadyExists(Conflict):
    """An object of that name is there already."""

    code = "already_exists"


class Forbidden(ClusterError):
    """Not allowed: by RBAC, by a quota or other admission, or because the namespace goes (`is_terminating`)."""

    code = "forbidden"
    hint = "grant what the chart's ClusterRole grants, or raise the quota"

    def __init__(self, message: str, status: int = 403, *, is_terminating: bool = False) -> None:
        super().__init__(message, status)
        self.is_terminating = is_terminating


class Invalid(ClusterError):
    """The API server holds the object for wrong: the same write will fail again."""

    code = "invalid"
    is_retryable = False


class Unavailable(ClusterError):
    """The API server did not answer in time, is overloaded or failed inside."""

    code = "unavailable"


class Foreign(OperatorError):
    """An object of the name that we need belongs to somebody else. It is never adopted."""

    code = "foreign_object"
    hint = "delete or rename that object, or rename the resource"

    def __init__(self, ref: str) -> None:
        super().__init__(f"{ref} is there already and is not ours")
        self.ref = ref
