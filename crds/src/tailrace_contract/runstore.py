"""RunStore: where every run is kept. Models only. Docstrings become the CRD's descriptions."""

from typing import Annotated, Literal

from pydantic import Field

from tailrace_contract.duration import SizeBytes
from tailrace_contract.plan import Durability, OnFull
from tailrace_contract.resource import Document, Part


class Embedded(Part):
    """A SQLite file below the gateway's data directory; for one gateway."""


class Spool(Part):
    """Where runs wait on disk until the store has them."""

    size_bytes: Annotated[SizeBytes, Field(alias="size")] = 1 << 30
    """Most that may wait. A size, at least 16Mi."""
    on_full: OnFull = OnFull.REJECT
    """What happens when it is full: reject refuses calls (503), drop serves them unrecorded and counts what was lost."""


class RunStoreSpec(Part):
    """What is wanted."""

    embedded: Embedded
    """Keep runs in a SQLite file below the gateway's data directory. Write {}."""
    spool: Spool = Spool()
    """Where runs wait on disk until the store has them."""
    durability: Durability = Durability.PROCESS
    """When an answer may leave: process, once its run is with the operating system; disk, once it is synced."""


class RunStore(Document):
    """Where every run of a QueryAPI is kept."""

    kind: Literal["RunStore"] = "RunStore"
    """Always RunStore."""
    spec: RunStoreSpec
    """What is wanted."""
