"""What the gateway says of the snapshot in force, in `PUT /sources` and so in a data plane's `/status`. Models only; read by Rust, shown by the operator.

Names, codes and sentences only: no SQL, no values.
"""

from typing import Annotated

from pydantic import Field

from tailrace_contract.plan import Plan, Source

REFUSED_SHOWN = 20
"""At most so many refused queries are named."""
STOPPED_SHOWN = 20
"""At most so many stopped queries are named."""
REFUSED_KEYS_SHOWN = 200
"""At most so many refused ApiKeys are named."""
MESSAGE_LENGTH = 1024
"""Characters of a message; what is longer is cut."""

Count = Annotated[int, Field(ge=0, lt=2**31)]


class RefusedReport(Plan):
    """A query that is not served."""

    name: str
    role: str = ""
    """The role that it is refused to; empty: to all."""
    code: str
    message: str
    """Why, and what mends it."""


class StoppedReport(Plan):
    """A query whose callers shared statements until the data plane stopped it."""

    name: str
    reason: str
    """`unequal`, `shape` or `refused` (docs/contract.md)."""


class QueriesReport(Plan):
    """How many queries there are and are served."""

    total: Count
    served: Count
    """With a plan for every role that they are granted to."""
    coalesced: Count = 0
    """Whose waiting callers share statements."""
    stopped: Annotated[tuple[StoppedReport, ...], Field(max_length=STOPPED_SHOWN)] = ()
    """Some of those that did, until the data plane stopped it; not counted in `coalesced`."""
    refused: Annotated[tuple[RefusedReport, ...], Field(max_length=REFUSED_SHOWN)] = ()
    """The first of the others."""


class RefusedKeyReport(Plan):
    """An ApiKey that has a digest and is not served."""

    id: str
    """`namespace/name`."""
    message: str
    """Why; never a value."""


class GatewayReport(Plan):
    """What became of the resources."""

    queries: QueriesReport
    keys: Count
    """ApiKeys that are served."""
    refused_keys: Annotated[tuple[RefusedKeyReport, ...], Field(max_length=REFUSED_KEYS_SHOWN)] = ()
    """Some of those that are not, though they have a digest: only compiling finds it."""
    stale: bool
    """Something of the API itself could not be taken from the source, so that an older form (or nothing) holds in its place. Not ApiKeys: theirs is
    told in their own status."""


class Report(Plan):
    """The whole body."""

    version: Annotated[int, Field(ge=1)]
    """Of the snapshot that it is about."""
    sources: tuple[Source, ...]
    """What the snapshot reflects by now: never less than what stood in the snapshot itself."""
    gateway: GatewayReport

    def to_json(self) -> bytes:
        """Canonical bytes: declared order, camelCase, defaults included, no blanks."""
        return self.model_dump_json(by_alias=True).encode()
