"""RunStore: where every run is kept. Models only. Docstrings become the CRD's descriptions."""

from typing import Annotated, Literal

from pydantic import Field

from tailrace_contract.duration import SizeBytes
from tailrace_contract.plan import Durability, OnFull
from tailrace_contract.resource import Document, Part, SecretKeySource
from tailrace_contract.status import RunStoreStatus


class Embedded(Part):
    """A SQLite file below the gateway's data directory; for one gateway."""


class Postgres(Part):
    """A PostgreSQL database; for any number of gateways."""

    url_from: SecretKeySource
    """The database's URL: a libpq URI (postgresql://…). It is re-read when it changes. The table `runs` is made there if it is missing."""


class Spool(Part):
    """Where runs wait on disk until the store has them."""

    size_bytes: Annotated[SizeBytes, Field(alias="size")] = 1 << 30
    """Most that may wait. A size, at least 16Mi."""
    on_full: OnFull = OnFull.REJECT
    """What happens when it is full: reject refuses calls (503), drop serves them unrecorded and counts what was lost."""


class RunStoreSpec(Part):
    """What is wanted."""

    embedded: Embedded | None = None
    """Keep runs in a SQLite file below the gateway's data directory, for one pod only. Write {}. Exactly one of embedded and postgres."""
    postgres: Postgres | None = None
    """Keep runs in a PostgreSQL database. Exactly one of embedded and postgres. Which of the two can't be changed later."""
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
    status: RunStoreStatus = RunStoreStatus()
    """What the operator says. Files leave it out."""
