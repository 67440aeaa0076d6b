"""Where runs of calls go that Python answers: the store when it is alone, the data plane's hands when the call was forwarded."""

from typing import Protocol

from tailrace_contract.run import Epoch, Run, Sequence


class RunsUnavailable(Exception):
    """The run cannot be stored; the answer must not leave (503 `spool_full`)."""


class Recorder(Protocol):
    """Stores runs before their answers leave. Every drawn id must be stored, else the epoch has a gap."""

    def draw(self) -> tuple[Epoch, Sequence]:
        """The next run id."""
        ...

    async def open(self, run: Run) -> None:
        """Stores a call that goes on; it counts as aborted unless `store` follows. RunsUnavailable when it cannot."""
        ...

    async def store(self, run: Run) -> None:
        """Stores a call that has ended. RunsUnavailable when it cannot."""
        ...
