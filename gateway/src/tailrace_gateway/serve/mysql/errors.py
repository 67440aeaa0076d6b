"""What MySQL's errors mean to the caller (docs/contract.md). Pure."""

from tailrace_gateway.serve.engine import Failure

INTERRUPTED = frozenset({1317, 1969, 3024})
"""Our timeout, or somebody's KILL."""
_GONE = frozenset({1040, 1053, 1077, 1079, 1290, 1836, 1927, 2006, 2013})
"""Too many connections, shutting down, read-only now, killed, gone."""
DUPLICATE = 1062


def failure_of(number: int, sqlstate: str, write: bool, timed_out: bool = False) -> Failure:
    """`timed_out`: our deadline was up, so an interruption is its doing."""
    if number in _GONE or sqlstate.startswith("08") or sqlstate == "25006":
        return Failure.UNAVAILABLE
    if number in (1969, 3024) or (number in INTERRUPTED and timed_out):
        return Failure.TIMEOUT
    if write and sqlstate.startswith("23"):
        return Failure.CONSTRAINT
    return Failure.REFUSED
