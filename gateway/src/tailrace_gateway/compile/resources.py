"""The three resources → `ApiSpec`. Pure.

Rejects nothing: what the resources' own rules admit is mapped; suspended keys and keys without a digest are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue
from tailrace_contract.apikey import ApiKey
from tailrace_contract.plan import (
    ApiPlan,
    CoalesceMode,
    EmbeddedStorePlan,
    Nothing,
    PostgresStorePlan,
    PostgresTarget,
    RunStorePlan,
    Source,
    SourceKind,
    TlsPlan,
)
from tailrace_contract.queryapi import Coalesce, Connection, Parameter, Query, QueryAPI, Role
from tailrace_contract.resource import SecretKeySource
from tailrace_contract.runstore import RunStore

from tailrace_gateway.compile.spec import (
    ApiSpec,
    CoalesceSpec,
    ConnectionSpec,
    KeySpec,
    MaskSpec,
    PageSpec,
    ParamSpec,
    PlaceOf,
    QuerySpec,
    RoleSpec,
    nowhere,
)
from tailrace_gateway.resources.state import Digest, FileQuery


@dataclass(frozen=True, slots=True)
class ServedKey:
    """A key that the API admits: its bindings, with those that its namespace adds, and its texts' digests."""

    key: ApiKey
    bind: Mapping[str, JsonValue]
    digests: tuple[Digest, ...]


@dataclass(slots=True)
class Mapped:
    """What documents were mapped to the last time: the very same document is the very same spec again. Keys by their document's identity."""

    api: QueryAPI | None = None
    secrets: Path | None = None
    files: tuple[FileQuery, ...] = ()
    parts: tuple[tuple[ConnectionSpec, ...], tuple[QuerySpec, ...], tuple[RoleSpec, ...]] = ((), (), ())
    keys: dict[int, tuple[ServedKey, list[KeySpec]]] = field(default_factory=dict)


def api_spec(
    api: QueryAPI,
    store: RunStore | None,
    keys: Sequence[ServedKey],
    secrets: Path,
    place_of: PlaceOf = nowhere,
    sources: tuple[Source, ...] = (),
    mapped: Mapped | None = None,
    files: tuple[FileQuery, ...] = (),
) -> ApiSpec:
    """Everything of one API. `secrets` is the folder with NAMESPACE/SECRET/KEY; `sources` what else than the API itself was seen; `mapped` is kept by
    the caller from one state to the next; `files` are the queries of `queriesFrom`."""
    namespace = api.metadata.namespace
    mapped = mapped if mapped is not None else Mapped()
    if mapped.api is not api or mapped.secrets != secrets or mapped.files != files:
        mapped.api, mapped.secrets, mapped.files = api, secrets, files
        mapped.parts = (
            tuple(_connection(each, secrets / namespace) for each in api.spec.connections),
            _queries(api, files),
            tuple(_role(each) for each in api.spec.roles),
        )
    mapped.keys = {id(served.key): _kept(served, mapped) for served in keys if not served.key.spec.suspended}
    connections, queries, roles = mapped.parts
    plan = ApiPlan(
        namespace=namespace,
        name=api.metadata.name,
        big_numbers=api.spec.http.big_numbers,
        hide_forbidden=api.spec.http.hide_forbidden,
        trusted_proxies=api.spec.http.trusted_proxies,
        tls=_tls(api, secrets / namespace),
    )
    if store is not None:
        spool = store.spec.spool
        update = {"spool_size_bytes": spool.size_bytes, "on_full": spool.on_full, "durability": store.spec.durability}
        update |= {"run_store": _run_store(store, secrets / namespace)}
        plan = plan.model_copy(update=update)
    return ApiSpec(
        api=plan,
        connections=connections,
        queries=queries,
        roles=roles,
        keys=tuple(spec for _, specs in mapped.keys.values() for spec in specs),
        sources=(
            Source(
                kind=SourceKind.QUERY_API,
                namespace=namespace,
                name=api.metadata.name,
                uid=api.metadata.uid,
                generation=api.metadata.generation,
                resource_version=api.metadata.resource_version,
            ),
            *sources,
        ),
        place_of=place_of,
    )


def _kept(served: ServedKey, mapped: Mapped) -> tuple[ServedKey, list[KeySpec]]:
    last = mapped.keys.get(id(served.key))
    if last is None or last[0].key is not served.key or last[0].digests != served.digests:
        return served, _keys(served)
    # 1, true and 1.0 are equal in Python and differ as bindings.
    same = last[0].bind is served.bind or repr(last[0].bind) == repr(served.bind)
    return last if same else (served, _keys(served))


def _keys(served: ServedKey) -> list[KeySpec]:
    """One for the texts that are valid for the same time: while a key is replaced each of its texts has another."""
    spec = served.key.spec
    expires_us = round(spec.expires_at.timestamp() * 1_000_000) if spec.expires_at is not None else None
    by_time: dict[tuple[int | None, int | None], list[str]] = {}
    for digest in served.digests:
        ends = [each for each in (digest.not_after_us, expires_us) if each is not None]
        by_time.setdefault((digest.not_before_us, min(ends, default=None)), []).append(digest.sha256)
    return [
        KeySpec(
            id=str(served.key.ref),
            sha256=tuple(sorted(set(texts))),
            role=spec.role,
            bind=dict(served.bind),
            not_before_us=not_before_us,
            not_after_us=not_after_us,
            cidrs=spec.allowed_cidrs,
        )
        for (not_before_us, not_after_us), texts in by_time.items()
    ]


def _queries(api: QueryAPI, files: Sequence[FileQuery]) -> tuple[QuerySpec, ...]:
    """Each name once; one that several have is refused: which of them callers mean can't be told."""
    by_name: dict[str, list[tuple[QuerySpec, str]]] = {}
    for query in api.spec.queries:
        by_name.setdefault(query.name, []).append((_query(query), f"{api.ref}'s own queries"))
    for file in files:
        by_name.setdefault(file.query.name, []).append((_query(file.query), file.place))
    return tuple(
        first if not others else replace(first, twice=f"{where} and {', '.join(place for _, place in others)} have this name: rename one")
        for (first, where), *others in by_name.values()
    )


def _run_store(store: RunStore, folder: Path) -> RunStorePlan:
    if store.spec.postgres is None:
        return EmbeddedStorePlan(embedded=Nothing())
    return PostgresStorePlan(postgres=PostgresTarget(url_file=_secret(folder, store.spec.postgres.url_from)))


def _tls(api: QueryAPI, folder: Path) -> TlsPlan | None:
    if api.spec.http.tls is None:
        return None
    pair = folder / api.spec.http.tls.secret_name
    return TlsPlan(certificate_file=str(pair / "tls.crt"), key_file=str(pair / "tls.key"))


def _secret(folder: Path, source: SecretKeySource) -> str:
    return str(folder / source.secret_key_ref.name / source.secret_key_ref.key)


def _connection(connection: Connection, folder: Path) -> ConnectionSpec:
    tls = connection.tls
    pair = folder / tls.certificate_from.secret_ref.name if tls is not None and tls.certificate_from is not None else None
    return ConnectionSpec(
        name=connection.name,
        url_file=_secret(folder, connection.url_from),
        ca_file=_secret(folder, tls.ca_from) if tls is not None and tls.ca_from is not None else None,
        certificate_file=str(pair / "tls.crt") if pair is not None else None,
        key_file=str(pair / "tls.key") if pair is not None else None,
        max_connections=connection.max_connections,
        statement_timeout_ms=connection.statement_timeout_ms,
        session=tuple(connection.session.items()),
        pooler=connection.pooler,
        idempotency_table=connection.idempotency_table,
    )


def _param(name: str, param: Parameter) -> ParamSpec:
    element = param.element
    return ParamSpec(
        name=name,
        type=param.element_type,
        array=param.array,
        required=param.required,
        nullable=param.nullable,
        default=param.default,
        enum=element.enum,
        minimum=element.minimum,
        maximum=element.maximum,
        min_length=element.min_length,
        max_length=element.max_length,
        pattern=element.pattern,
    )


def _query(query: Query) -> QuerySpec:
    return QuerySpec(
        name=query.name,
        connection=query.connection,
        sql=query.sql,
        params=tuple(_param(name, param) for name, param in query.params.items()),
        returns=query.returns,
        missing=query.missing,
        write=query.write,
        timeout_ms=query.timeout_ms,
        page=PageSpec(query.page.key, query.page.default_size, query.page.max_size) if query.page is not None else None,
        coalesce=_coalesce(query.coalesce or Coalesce()),
        record_params=query.record == "params",
        unbounded=query.unbounded,
        cache_ttl_ms=query.cache.ttl_ms if query.cache is not None else None,
    )


def _coalesce(wanted: Coalesce) -> CoalesceSpec | None:
    return CoalesceSpec(wanted.max_batch, wanted.max_in_flight) if wanted.mode is CoalesceMode.AUTO else None


def _role(role: Role) -> RoleSpec:
    return RoleSpec(
        name=role.name,
        queries=role.queries,
        tables=role.tables.allow if role.tables is not None else None,
        masks=tuple(MaskSpec(mask.column, mask.with_) for mask in role.masks),
        filter_on_masked=role.filter_on_masked,
    )
