"""What an SQLSTATE means to the caller (docs/contract.md). Pure."""

from tailrace_gateway.serve.engine import Failure

_GONE = ("57P01", "57P02", "57P03", "57P04", "57P05", "25006")
PLAN_CHANGED = "0A000"
QUERY_CANCELED = "57014"


def failure_of(sqlstate: str, write: bool, timed_out: bool = False) -> Failure:
    """Maps a five-character code; an empty one is a connection that broke.

    `timed_out`: our own statement_timeout was up, so 57014 is its doing; else somebody cancelled the statement.
    """
    if not sqlstate or sqlstate[:2] in ("08", "53") or sqlstate in _GONE:
        return Failure.UNAVAILABLE
    if sqlstate == QUERY_CANCELED and timed_out:
        return Failure.TIMEOUT
    if write and sqlstate[:2] == "23":
        return Failure.CONSTRAINT
    return Failure.REFUSED
