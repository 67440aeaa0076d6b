"""The three resources → `ApiSpec`. Pure.

Rejects nothing: what the resources' own rules admit is mapped; suspended keys and keys without a digest are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from tailrace_contract.apikey import ApiKey
from tailrace_contract.plan import ApiPlan, EmbeddedStorePlan, Nothing, PostgresStorePlan, PostgresTarget, RunStorePlan, Source, SourceKind
from tailrace_contract.queryapi import Connection, Parameter, Query, QueryAPI, Role
from tailrace_contract.resource import Document, SecretKeySource
from tailrace_contract.runstore import RunStore

from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, MaskSpec, PageSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_gateway.resources.state import Digest

PlaceOf = Callable[[Document, tuple[str | int, ...]], str]
"""Where a part of a document stands (`shop.yaml:12:7`), for messages."""


def _nowhere(document: Document, path: tuple[str | int, ...]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ServedKey:
    """A key that the API admits: its bindings, with those that its namespace adds, and its texts' digests."""

    key: ApiKey
    bind: Mapping[str, JsonValue]
    digests: tuple[Digest, ...]


def api_spec(
    api: QueryAPI,
    store: RunStore | None,
    keys: Sequence[ServedKey],
    secrets: Path,
    place_of: PlaceOf = _nowhere,
    sources: tuple[Source, ...] = (),
) -> ApiSpec:
    """Everything of one API. `secrets` is the folder with NAMESPACE/SECRET/KEY; `sources` what else than the API itself was seen."""
    namespace = api.metadata.namespace
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
        keys=tuple(spec for served in keys if not served.key.spec.suspended for spec in _keys(served, place_of(served.key, ("spec",)))),
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
    )


def _keys(served: ServedKey, place: str) -> list[KeySpec]:
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
            place=place,
        )
        for (not_before_us, not_after_us), texts in by_time.items()
    ]


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
