"""What can be told of a state without a database: whether everything that resources refer to is there. Pure.

The control loop meets the same faults one by one and refuses the unit; `tailrace check` wants them all at once.
"""

from collections.abc import Callable, Iterator

from tailrace_contract.apikey import ApiKey
from tailrace_contract.findings import Finding, Path
from tailrace_contract.ids import Ref, glob_matches
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import Document, SecretKeyRef

from tailrace_gateway.resources.state import Located, ResourceState

Exists = Callable[[str, SecretKeyRef], bool]
"""Whether a namespace's Secret has a key."""


def references(state: ResourceState, exists: Exists) -> tuple[list[Located], list[Located]]:
    """Faults, and warnings: what is allowed but hardly meant."""
    faults: list[Located] = []
    warnings: list[Located] = []
    for api in state.query_apis.values():
        faults += [_located(state, api, finding) for finding in _api_faults(state, api, exists)]
        warnings += [_located(state, api, finding) for finding in _api_warnings(state, api)]
    for store in state.run_stores.values():
        if store.spec.postgres is not None:
            at: Path = ("spec", "postgres", "urlFrom", "secretKeyRef")
            ref = store.spec.postgres.url_from.secret_key_ref
            faults += [_located(state, store, finding) for finding in _secret(store.metadata.namespace, ref, at, exists)]
    for key in state.api_keys.values():
        faults += [_located(state, key, finding) for finding in _key_faults(state, key, exists)]
    return faults, warnings


def _located(state: ResourceState, document: Document, finding: Finding) -> Located:
    kind = type(document).__name__
    origin = state.held[f"{kind} {document.ref}"].origin
    line, column = origin.place(finding.path)
    return Located(origin.file, line, column, finding, f"{kind} {document.ref}")


def _secret(namespace: str, ref: SecretKeyRef, path: Path, exists: Exists) -> Iterator[Finding]:
    if not exists(namespace, ref):
        fix = f"add a Secret document {namespace}/{ref.name} with stringData: {{{ref.key}: …}}, or put the file below --data"
        yield Finding(path, f"{path[-2]}: there is no Secret {namespace}/{ref.name} with a key {ref.key}", fix)


def _api_faults(state: ResourceState, api: QueryAPI, exists: Exists) -> Iterator[Finding]:
    namespace = api.metadata.namespace
    for n, connection in enumerate(api.spec.connections):
        at: Path = ("spec", "connections", n)
        yield from _secret(namespace, connection.url_from.secret_key_ref, (*at, "urlFrom", "secretKeyRef"), exists)
        if connection.tls is None:
            continue
        if connection.tls.ca_from is not None:
            yield from _secret(namespace, connection.tls.ca_from.secret_key_ref, (*at, "tls", "caFrom", "secretKeyRef"), exists)
        if connection.tls.certificate_from is not None:
            for key in ("tls.crt", "tls.key"):
                ref = SecretKeyRef(name=connection.tls.certificate_from.secret_ref.name, key=key)
                yield from _secret(namespace, ref, (*at, "tls", "certificateFrom", "secretRef"), exists)
    if api.spec.http.tls is not None:
        for key in ("tls.crt", "tls.key"):
            ref = SecretKeyRef(name=api.spec.http.tls.secret_name, key=key)
            yield from _secret(namespace, ref, ("spec", "http", "tls", "secretName"), exists)
    if Ref(namespace, api.spec.run_store_ref.name) not in state.run_stores:
        name = f"{namespace}/{api.spec.run_store_ref.name}"
        yield Finding(("spec", "runStoreRef", "name"), f"runStoreRef: there is no RunStore {name}", "add it, or correct the name")


def _api_warnings(state: ResourceState, api: QueryAPI) -> Iterator[Finding]:
    for n, role in enumerate(api.spec.roles):
        for m, glob in enumerate(role.queries):
            if not any(glob_matches(glob, query.name) for query in state.queries_of(api)):
                yield Finding(("spec", "roles", n, "queries", m), f"queries: no query is called {glob}", "correct or remove it")
    used = {key.spec.role for key in state.api_keys.values() if key.api_ref == api.ref}
    if not used:
        yield Finding(("metadata", "name"), "no ApiKey belongs to this QueryAPI: nobody can call it", "add an ApiKey")
    for n, query in enumerate(state.queries_of(api)):
        if not any(glob_matches(glob, query.name) for role in api.spec.roles for glob in role.queries):
            place: Path = ("spec", "queries", n, "name") if n < len(api.spec.queries) else ("spec", "queriesFrom")
            yield Finding(place, f"no role may call {query.name}", "add it to a role's queries, or remove it")


def _key_faults(state: ResourceState, key: ApiKey, exists: Exists) -> Iterator[Finding]:
    namespace = key.metadata.namespace
    api = state.query_apis.get(key.api_ref)
    if key.spec.key_from is not None:
        yield from _secret(namespace, key.spec.key_from.secret_key_ref, ("spec", "keyFrom", "secretKeyRef"), exists)
    if key.api_ref.namespace != namespace:
        fix = "put the ApiKey into the API's namespace; keys of other namespaces work in a cluster only, where namespaces have labels"
        yield Finding(("spec", "queryApiRef", "namespace"), "queryApiRef: an API of another namespace can't be opened here", fix)
        return
    if api is None and {f"QueryAPI {key.api_ref}", ""} & {located.unit for located in state.findings}:
        return  # It is there, or may be in what can't be read, which is told already.
    if api is None:
        yield Finding(("spec", "queryApiRef", "name"), f"queryApiRef: there is no QueryAPI {key.api_ref}", "add it, or correct the name")
        return
    role = next((each for each in api.spec.roles if each.name == key.spec.role), None)
    if role is None:
        known = ", ".join(each.name for each in api.spec.roles)
        yield Finding(("spec", "role"), f"role: the API has no role {key.spec.role}", f"its roles are {known}")
        return
    granted = [query for query in state.queries_of(api) if any(glob_matches(glob, query.name) for glob in role.queries)]
    for name in key.spec.bind:
        if not any(name in query.params for query in granted):
            yield Finding(("spec", "bind", name), f"bind: no query of the role has a parameter {name}", "correct the name")
