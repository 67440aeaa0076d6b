"""What a reconcile finds in the cluster before it decides anything: all of it read now, nothing from events. IO: reads of the API server.

Secrets' data stay in the `Found` of one reconcile; nothing here or below keeps or tells them.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tailrace_contract import document
from tailrace_contract.findings import Finding
from tailrace_contract.fingerprints import config_fingerprint
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.runstore import RunStore, RunStoreSpec
from tailrace_contract.status import AdmittedNamespace

from tailrace_operator.admission import admitted, entries_of
from tailrace_operator.cluster import Cluster
from tailrace_operator.manifest import (
    CONFIG_MAP,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    NAMESPACE,
    OWNED,
    QUERY_API_UID_LABEL,
    ROLE_BINDING,
    RUN_STORE,
    SECRET,
    Manifest,
    Object,
    ObjectRef,
    ref_of,
    uid_of,
)


@dataclass(frozen=True, slots=True)
class Store:
    """The RunStore that a QueryAPI names. `spec`: None when it is not there (`is_there` False) or is not valid."""

    is_there: bool
    spec: RunStoreSpec | None


def read_query_api(live: Manifest) -> QueryAPI | list[Finding]:
    """The QueryAPI of a live object, or what is wrong with it. Its status is not read: it may be another version's."""
    found = document.read(_plain(live))
    return found if isinstance(found, QueryAPI | list) else [Finding((), "not a QueryAPI", "")]


def read_run_store(live: Manifest) -> RunStore | list[Finding]:
    """The RunStore of a live object, or what is wrong with it."""
    found = document.read(_plain(live))
    return found if isinstance(found, RunStore | list) else [Finding((), "not a RunStore", "")]


def _plain(live: Manifest) -> Object:
    metadata = {name: value for name, value in live["metadata"].items() if name != "managedFields"}
    plain: Object = json.loads(json.dumps({**{name: value for name, value in live.items() if name != "status"}, "metadata": metadata}))
    return plain


def data_of(secret: Manifest | None) -> Mapping[str, bytes] | None:
    """A Secret's data; None when there is no Secret. A value that is no base64 counts as not there."""
    if secret is None:
        return None
    data = {}
    for name, text in (secret.get("data") or {}).items():
        try:
            data[str(name)] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            continue
    return data


async def secrets_of(cluster: Cluster, namespace: str, names: Iterable[str]) -> dict[str, Mapping[str, bytes] | None]:
    """Data of Secrets by name; None: not there."""
    wanted = tuple(names)
    found = await asyncio.gather(*(cluster.get(ObjectRef(SECRET, namespace, name)) for name in wanted))
    return {name: data_of(secret) for name, secret in zip(wanted, found, strict=True)}


async def configs_of(cluster: Cluster, namespace: str, names: Iterable[str]) -> dict[str, str | None]:
    """Fingerprints of ConfigMaps by name; None: not there."""
    wanted = tuple(names)
    found = await asyncio.gather(*(cluster.get(ObjectRef(CONFIG_MAP, namespace, name)) for name in wanted))
    return {name: None if live is None else _fingerprint(live) for name, live in zip(wanted, found, strict=True)}


def _fingerprint(config: Manifest) -> str:
    files = {str(name): str(text).encode() for name, text in (config.get("data") or {}).items()}
    for name, text in (config.get("binaryData") or {}).items():
        files[str(name)] = base64.b64decode(text)
    return config_fingerprint(files)


async def store_of(cluster: Cluster, namespace: str, name: str) -> Store:
    """The RunStore of this name."""
    live = await cluster.get(ObjectRef(RUN_STORE, namespace, name))
    if live is None:
        return Store(False, None)
    found = read_run_store(live)
    return Store(True, found.spec if isinstance(found, RunStore) else None)


async def admitted_of(cluster: Cluster, api: Manifest, watched: tuple[str, ...]) -> tuple[AdmittedNamespace, ...]:
    """The other namespaces that its `allowKeysFrom` admits now. `watched`: the only ones that this operator may write into; none: all."""
    spec = api.get("spec")
    entries = entries_of(spec if isinstance(spec, dict) else {})
    namespaces: dict[str, Object] = {}
    for entry in entries:
        listing = await cluster.list(NAMESPACE, None, entry.namespaces.match_labels)
        namespaces.update({str(each["metadata"]["name"]): each for each in listing.items})
    within = [each for name, each in namespaces.items() if not watched or name in watched]
    return admitted(entries, within, str(api["metadata"]["namespace"]))


async def owned_of(cluster: Cluster, api: Manifest, *, elsewhere: bool, watched: tuple[str, ...]) -> dict[ObjectRef, Object]:
    """Every object that is labelled as the QueryAPI's, but its gateway's Secret. `elsewhere`: RoleBindings of other namespaces too."""
    labels = {MANAGED_BY_LABEL: FIELD_MANAGER, QUERY_API_UID_LABEL: uid_of(api)}
    home = str(api["metadata"]["namespace"])
    asked = [cluster.list(kind, home, labels) for kind in OWNED if kind != SECRET]
    if elsewhere:
        asked += [cluster.list(ROLE_BINDING, namespace, labels) for namespace in (watched or (None,))]
    found: dict[ObjectRef, Object] = {}
    for listing in await asyncio.gather(*asked):
        found.update({ref_of(each): each for each in listing.items})
    return found


async def named_of(cluster: Cluster, desired: Iterable[Manifest], owned: Mapping[ObjectRef, Object]) -> dict[ObjectRef, Object]:
    """Objects that have a wanted name and are not among the labelled ones: somebody else's, or ours that lost a label."""
    missing = [ref for ref in map(ref_of, desired) if ref not in owned]
    found = await asyncio.gather(*(cluster.get(ref) for ref in missing))
    return {ref: live for ref, live in zip(missing, found, strict=True) if live is not None}
