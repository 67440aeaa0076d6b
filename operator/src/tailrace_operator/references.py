"""What a QueryAPI or RunStore refers to: Secrets with their keys, ConfigMaps, and which keys hold a database's URL. Pure."""

from dataclasses import dataclass

from tailrace_contract.queryapi import ConnectionTls, QueryAPI
from tailrace_contract.resource import SecretKeySource
from tailrace_contract.runstore import RunStoreSpec

TLS_KEYS = ("tls.crt", "tls.key")
"""What a kubernetes.io/tls Secret holds."""


@dataclass(frozen=True, slots=True, order=True)
class SecretKey:
    """One key of a Secret that must be there, and what for."""

    secret: str
    key: str
    place: str
    """Where the reference stands, for people: `connection orders`."""
    is_url: bool = False
    """Whether it holds a database's URL."""
    has_ca: bool = False
    has_certificate: bool = False
    """Of a URL: whether files of `tls` stand for its own parameters."""


@dataclass(frozen=True, slots=True)
class References:
    """All of them, sorted, in the resource's own namespace."""

    keys: tuple[SecretKey, ...]
    config_maps: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the Secrets, each once."""
        return tuple(sorted({each.secret for each in self.keys}))


def _key(source: SecretKeySource, place: str) -> SecretKey:
    return SecretKey(source.secret_key_ref.name, source.secret_key_ref.key, place)


def _url(source: SecretKeySource, place: str, tls: ConnectionTls | None = None) -> SecretKey:
    return SecretKey(
        source.secret_key_ref.name,
        source.secret_key_ref.key,
        place,
        is_url=True,
        has_ca=tls is not None and tls.ca_from is not None,
        has_certificate=tls is not None and tls.certificate_from is not None,
    )


def of_run_store(spec: RunStoreSpec) -> References:
    """Of a RunStore: the database's URL, if it has one."""
    return References(() if spec.postgres is None else (_url(spec.postgres.url_from, "postgres"),))


def of_query_api(api: QueryAPI, run_store: RunStoreSpec | None) -> References:
    """Of a QueryAPI and, as its pods read that too, of its RunStore (None: not found)."""
    keys: list[SecretKey] = []
    for connection in api.spec.connections:
        place = f"connection {connection.name}"
        keys.append(_url(connection.url_from, place, connection.tls))
        if connection.tls is not None and connection.tls.ca_from is not None:
            keys.append(_key(connection.tls.ca_from, f"{place}, tls.caFrom"))
        if connection.tls is not None and connection.tls.certificate_from is not None:
            secret = connection.tls.certificate_from.secret_ref.name
            keys += [SecretKey(secret, key, f"{place}, tls.certificateFrom") for key in TLS_KEYS]
    if run_store is not None and run_store.postgres is not None:
        keys.append(_url(run_store.postgres.url_from, f"RunStore {api.spec.run_store_ref.name}"))
    if api.spec.http.tls is not None:
        keys += [SecretKey(api.spec.http.tls.secret_name, key, "http.tls") for key in TLS_KEYS]
    config_maps = {source.config_map_ref.name for source in api.spec.queries_from}
    return References(tuple(sorted(set(keys))), tuple(sorted(config_maps)))
