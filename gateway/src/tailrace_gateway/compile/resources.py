"""The three resources → `ApiSpec`. Pure.

Rejects nothing: what the resources' own rules admit is mapped; suspended keys and keys without a digest are left out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tailrace_contract.apikey import ApiKey
from tailrace_contract.ids import Ref
from tailrace_contract.plan import ApiPlan, EmbeddedStorePlan, Nothing, PostgresStorePlan, PostgresTarget, RunStorePlan, Source, SourceKind
from tailrace_contract.queryapi import Connection, Parameter, Query, QueryAPI, Role
from tailrace_contract.resource import Document, SecretKeySource
from tailrace_contract.runstore import RunStore

from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, MaskSpec, PageSpec, ParamSpec, QuerySpec, RoleSpec

PlaceOf = Callable[[Document, tuple[str | int, ...]], str]
"""Where a part of a document stands (`shop.yaml:12:7`), for messages."""


def _nowhere(document: Document, path: tuple[str | int, ...]) -> str:
    return ""


def api_spec(
    api: QueryAPI,
    store: RunStore | None,
    keys: Mapping[Ref, ApiKey],
    digests: Mapping[Ref, str],
    secrets: Path,
    place_of: PlaceOf = _nowhere,
) -> ApiSpec:
    """Everything of one API. `secrets` is the folder with NAMESPACE/SECRET/KEY; `digests` the SHA-256 of each key's text."""
    namespace = api.metadata.namespace
    mine = {ref: key for ref, key in keys.items() if ref.namespace == namespace and key.api_ref == api.ref}
    plan = ApiPlan(
        namespace=namespace,
        name=api.metadata.name,
        big_numbers=api.spec.http.big_numbers,
        hide_forbidden=api.spec.http.hide_forbidden,
        trusted_proxies=api.spec.http.trusted_proxies,
    )
    if store is not None:
        spool = store.spec.spool
        update = {"spool_size_bytes": spool.size_bytes, "on_full": spool.on_full, "durability": store.spec.durability}
        update |= {"run_store": _run_store(store, secrets / namespace)}
        plan = plan.model_copy(update=update)
    return ApiSpec(
        api=plan,
        connections=tuple(_connection(each, secrets / namespace) for each in api.spec.connections),
        queries=tuple(_query(each, place_of(api, ("spec", "queries", n))) for n, each in enumerate(api.spec.queries)),
        roles=tuple(_role(each, place_of(api, ("spec", "roles", n))) for n, each in enumerate(api.spec.roles)),
        keys=tuple(
            KeySpec(
                id=f"{ref.namespace}/{ref.name}",
                sha256=(digests[ref],),
                role=key.spec.role,
                bind=dict(key.spec.bind),
                not_after_us=round(key.spec.expires_at.timestamp() * 1_000_000) if key.spec.expires_at is not None else None,
                cidrs=key.spec.allowed_cidrs,
                place=place_of(key, ("spec",)),
            )
            for ref, key in mine.items()
            if not key.spec.suspended and ref in digests
        ),
        sources=(
            Source(
                kind=SourceKind.QUERY_API,
                namespace=namespace,
                name=api.metadata.name,
                uid=api.metadata.uid,
                generation=api.metadata.generation,
                resource_version=api.metadata.resource_version,
            ),
        ),
    )


def _run_store(store: RunStore, folder: Path) -> RunStorePlan:
    if store.spec.postgres is None:
        return EmbeddedStorePlan(embedded=Nothing())
    return PostgresStorePlan(postgres=PostgresTarget(url_file=_secret(folder, store.spec.postgres.url_from)))


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


def _query(query: Query, place: str) -> QuerySpec:
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
        record_params=query.record == "params",
        place=place,
    )


def _role(role: Role, place: str) -> RoleSpec:
    return RoleSpec(
        name=role.name,
        queries=role.queries,
        tables=role.tables.allow if role.tables is not None else None,
        masks=tuple(MaskSpec(mask.column, mask.with_) for mask in role.masks),
        filter_on_masked=role.filter_on_masked,
        place=place,
    )
