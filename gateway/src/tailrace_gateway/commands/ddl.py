"""The SQL of each connection's idempotency table, for `tailrace check --print-ddl`. IO: reads URL files, for the engine only."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from tailrace_contract.idempotency import ddl
from tailrace_contract.queryapi import QueryAPI

from tailrace_gateway.resources.private import read_bounded
from tailrace_gateway.resources.vault import Vault


def statements(api: QueryAPI, vault: Vault) -> Iterator[str]:
    """One statement for each connection that names a table, with a comment that says whose it is."""
    for connection in api.spec.connections:
        if connection.idempotency_table is None:
            continue
        path = vault.secret_file(api.metadata.namespace, connection.url_from.secret_key_ref)
        try:
            scheme = urlsplit(read_bounded(path, 65536).decode().strip()).scheme
        except (OSError, ValueError):
            scheme = ""
        engine = {"sqlite": "SQLite", "mysql": "MySQL"}.get(scheme, "PostgreSQL")
        yield f"-- {api.metadata.namespace}/{api.metadata.name}, connection {connection.name} ({engine})\n{ddl(connection.idempotency_table, scheme)}"
