"""The gateway's exceptions: one tree, translated once, at the edge. No IO.

Every error has a stable code, a message, a hint (what to do about it) and whether the same thing may succeed when tried again.
Messages never carry SQL, values, credentials or host names.
"""

from typing import ClassVar


class GatewayError(Exception):
    """Base of all. Subclasses fix `code` and `retry`; the message is a whole sentence without a value in it."""

    code: ClassVar[str] = "internal"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(GatewayError):
    """The command line is wrong; `faults` lists everything that is, so that it can be put right at once. Exit 64."""

    code = "settings"

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults), "see --help")
        self.faults = faults


class SnapshotRefused(GatewayError):
    """A snapshot is not one that this version serves: unreadable, unknown schema, an index that points nowhere."""

    code = "snapshot_refused"


class DataPlaneGone(GatewayError):
    """The data plane's socket closed, timed out or answered what is not HTTP."""

    code = "data_plane_gone"
    retry = True


class RecorderLocked(GatewayError):
    """Another process records into this data directory."""

    code = "recorder_locked"


class CredentialsMissing(GatewayError):
    """A connection's URL or certificate file cannot be read."""

    code = "credentials_missing"
    retry = True
