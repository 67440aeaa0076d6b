"""One run: the record of one call, as the spool, the store and the API show it (docs/runs.md).

A run id is (epoch, sequence). Text form: 16 hex digits of the epoch, `-`, 12 hex digits of the sequence (29 characters).
An epoch is drawn by each serving thread at its start: 63 random bits, so that it fits a signed 64-bit integer and no two pods draw
the same, whatever their clocks say. Sequences of an epoch begin at 1 and have no gaps: count() = max(sequence) proves that nothing is missing.
"""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NewType

Epoch = NewType("Epoch", int)
Sequence = NewType("Sequence", int)


class ServedBy(StrEnum):
    """Which process answered."""

    DATA_PLANE = "dataplane"
    GATEWAY = "gateway"
    """Python alone (no data plane)."""
    FORWARDED = "forwarded"
    """Python answered, the data plane recorded."""


class ClientClass(StrEnum):
    """Where a call came from, without the address."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Run:
    """One call. Times in µs (`time_us` since 1970, at its end), sizes in bytes.

    `query`, `query_version`, `key`, `connection` and `code` are empty when unknown (an unauthorised call has no key).
    `query_version` and `connection` are known whenever `query` is, also when the call was refused before it reached the database.
    `bytes` are those of the body before compression (0 for HEAD). `status` is the HTTP status sent, 499 when the client left first; `code` is the error code, `aborted` for a
    stream that was open when its process died. `batch` is how many calls shared the statement (1: alone; 0: none was asked, the answer
    came from the response cache: `cached`).
    `params` holds a JSON object only when the query says `record: params`.
    """

    epoch: Epoch
    sequence: Sequence
    time_us: int
    duration_us: int
    queue_us: int
    database_us: int
    query: str
    query_version: str
    key: str
    connection: str
    status: int
    code: str
    rows: int
    bytes: int
    batch: int
    trace: str
    client: ClientClass
    served_by: ServedBy
    params: str | None = None

    @property
    def id(self) -> str:
        """Text form of the run id."""
        return run_id(self.epoch, self.sequence)

    @property
    def cached(self) -> bool:
        """It was answered from the response cache. Kept as `batch` 0, so that stores and segments made before there was a cache stay as they are."""
        return self.batch == 0


def run_id(epoch: int, sequence: int) -> str:
    """Writes a run id: `0000019f2b3c4d5e-00000000002a`."""
    return f"{epoch:016x}-{sequence:012x}"


def parse_run_id(text: str) -> tuple[Epoch, Sequence]:
    """Reads a run id; ValueError when it is not exactly of that form."""
    if len(text) != 29 or text[16] != "-" or not set(text[:16] + text[17:]) <= set("0123456789abcdef"):
        raise ValueError("not a run id")
    return Epoch(int(text[:16], 16)), Sequence(int(text[17:], 16))


PARAMS_LIMIT_BYTES = 65_536
"""Longest recorded parameters (UTF-8 bytes of the JSON object); longer ones are recorded as `{"$omitted":BYTES}`."""


def recorded_params(params: str | None) -> str | None:
    """Parameters as a run holds them."""
    if params is None or len(params) * 4 <= PARAMS_LIMIT_BYTES:
        return params
    size = len(params.encode())
    return params if size <= PARAMS_LIMIT_BYTES else f'{{"$omitted":{size}}}'


_PRIVATE = tuple(
    ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "fc00::/7", "fe80::/10")
)


def client_class(address: str | None) -> ClientClass:
    """The class of a caller's address; None (a Unix socket) and what is no address count as this machine and as public.

    An IPv4-mapped IPv6 address counts as IPv4. The data plane has the same list.
    """
    if address is None:
        return ClientClass.LOOPBACK
    try:
        parsed = ip_address(address)
    except ValueError:
        return ClientClass.PUBLIC
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return ClientClass.LOOPBACK
    return ClientClass.PRIVATE if any(parsed in net for net in _PRIVATE) else ClientClass.PUBLIC


STORE_VERSION = 2
"""`PRAGMA user_version` of the embedded store. A store of another version is refused, never changed."""

_COLUMNS = """
    epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    time_us INTEGER NOT NULL, duration_us INTEGER NOT NULL, queue_us INTEGER NOT NULL, database_us INTEGER NOT NULL,
    query INTEGER NOT NULL, query_version INTEGER NOT NULL, key INTEGER NOT NULL, connection INTEGER NOT NULL,
    status INTEGER NOT NULL, code INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, batch INTEGER NOT NULL,
    trace BLOB, client INTEGER NOT NULL, served_by INTEGER NOT NULL, params TEXT,
    PRIMARY KEY (epoch, seq)"""

STORE_DDL = f"""
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT OR IGNORE INTO names (id, name) VALUES (0, '');
CREATE TABLE IF NOT EXISTS runs ({_COLUMNS}) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (time_us, key, query, status);
CREATE TABLE IF NOT EXISTS run_blocks (
    epoch INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL,
    oldest_us INTEGER NOT NULL, newest_us INTEGER NOT NULL, lowest_status INTEGER NOT NULL, highest_status INTEGER NOT NULL,
    keys BLOB NOT NULL, queries BLOB NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS run_blocks_by_sequence ON run_blocks (epoch, first, last, count);
CREATE INDEX IF NOT EXISTS run_blocks_by_time ON run_blocks (newest_us, oldest_us);
CREATE TABLE IF NOT EXISTS open_runs ({_COLUMNS}) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursors (epoch INTEGER PRIMARY KEY, segment INTEGER NOT NULL, position INTEGER NOT NULL);
PRAGMA user_version = {STORE_VERSION};
"""  # noqa: S608
"""The embedded store (SQLite, WAL). The columns query … code hold `names.id` (0: the empty name); client and served_by the
position in their enum. The index is by time: its end is one page,
whatever the number of keys; the columns behind it let a reader walk past other keys' runs without touching them. `run_blocks` holds the runs of busy moments, many a row (docs/contract.md, "Blocks of runs");
a run is either there or in `runs`. `open_runs` holds what began and has not ended; it moves to `runs` when it ends, as `aborted` if its
process died. `cursors` says how far the spool's segments of an epoch are stored, in the same transaction as the runs."""


POSTGRES_STORE_VERSION = 1
"""`tailrace.store.version`. A store of another version is refused, never changed."""

_POSTGRES_COLUMNS = """
    epoch bigint NOT NULL, seq bigint NOT NULL, time timestamptz NOT NULL,
    duration_us bigint NOT NULL, queue_us bigint NOT NULL, database_us bigint NOT NULL, rows bigint NOT NULL, bytes bigint NOT NULL,
    batch integer NOT NULL, status smallint NOT NULL,
    query text NOT NULL, query_version text NOT NULL, key text NOT NULL, connection text NOT NULL, code text NOT NULL,
    client text NOT NULL, served_by text NOT NULL, trace bytea, params text,
    PRIMARY KEY (epoch, seq)"""

POSTGRES_STORE_DDL = f"""
SELECT pg_catalog.pg_advisory_xact_lock(7809644627822346613);
CREATE SCHEMA IF NOT EXISTS tailrace;
CREATE TABLE IF NOT EXISTS tailrace.store (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version integer NOT NULL);
CREATE TABLE IF NOT EXISTS tailrace.runs ({_POSTGRES_COLUMNS});
CREATE INDEX IF NOT EXISTS runs_by_key ON tailrace.runs (key, time);
CREATE INDEX IF NOT EXISTS runs_by_time ON tailrace.runs (time);
CREATE TABLE IF NOT EXISTS tailrace.open_runs ({_POSTGRES_COLUMNS});
INSERT INTO tailrace.store (version) VALUES ({POSTGRES_STORE_VERSION}) ON CONFLICT DO NOTHING;
"""  # noqa: S608
"""The PostgreSQL store, to be run in one transaction; changes nothing where it has been made. The lock lets pods that start together make it
once. One column for each field of a run, names as text; client and served_by are the words of their enum. `open_runs` as in the embedded
store. There are no cursors: (epoch, seq) is unique, so whoever isn't sure whether rows arrived sends them again."""
