"""What stands in a cluster, and what would stand there after an apply, as states that can be compared. Pure.

An apply changes only what it names: everything else that stands in the cluster stays. What is wrong comes back as findings and is for the caller
to refuse.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import JsonValue
from tailrace_contract.apikey import ApiKey
from tailrace_contract.ids import Ref
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import Kind
from tailrace_contract.runstore import RunStore

from tailrace_gateway.plugin.kubectl import Object
from tailrace_gateway.resources.configdoc import Config
from tailrace_gateway.resources.manifest import read_manifests
from tailrace_gateway.resources.merging import Entry, FileReading, Good, merge, read_file
from tailrace_gateway.resources.queryfiles import Place, QueryFiles
from tailrace_gateway.resources.state import FileQuery, Located, Origin, ResourceState

KINDS = (*Kind, "ConfigMap")


def live_readings(items: Iterable[Object]) -> list[FileReading]:
    """Each object as if a file held it, without what only the API server knows."""
    return [
        read_file(f"cluster: {_identity(item)}", json.dumps(_document(item), ensure_ascii=False))[0]
        for item in items
        if item.get("kind") in KINDS
    ]


def file_reading(file: str, text: str, namespace: str) -> FileReading:
    """A text as it would be applied: what names no namespace belongs to `namespace`."""
    reading, _ = read_file(file, text)
    return replace(reading, entries=tuple(_placed(entry, namespace) for entry in reading.entries))


def overlaid(live: Sequence[FileReading], files: Sequence[FileReading]) -> list[FileReading]:
    """What stands there after the files were applied."""
    named = {entry.identity for reading in files for entry in reading.entries}
    return [reading for reading in live if not any(entry.identity in named for entry in reading.entries)] + list(files)


def without_broken_keys(readings: Sequence[FileReading]) -> tuple[list[FileReading], list[Located]]:
    """Without ApiKeys that are wrong, which their authors must not be able to stop others with; and what is wrong with them."""
    kept, broken = list[FileReading](), list[Located]()
    for reading in readings:
        bad = [entry for entry in reading.entries if entry.findings and (entry.identity or "").startswith(f"{Kind.API_KEY} ")]
        kept += [] if bad else [reading]
        broken += [_located(reading.file, entry) for entry in bad]
    return kept, broken


def _located(file: str, entry: Entry) -> Located:
    return Located(file, 1, 1, entry.findings[0], entry.identity or "")


def state_of(readings: Sequence[FileReading], before: ResourceState | None = None) -> ResourceState:
    """The state that they make; `before`: what stood there, for what may never change."""
    good, findings = merge(Good(before.held) if before is not None else Good(), readings)
    configs = {config.ref: (config, Place(origin)) for config, origin in good.configs.values()}
    state = ResourceState(good.resources, findings, files=len(readings))
    queries: dict[Ref, tuple[FileQuery, ...]] = {}
    reader = QueryFiles()
    for ref, api in state.query_apis.items():
        if api.spec.queries_from:
            queries[ref], found = reader.of(api, configs)
            findings += found
    return replace(state, findings=findings, queries=queries)


def namespaces(readings: Iterable[FileReading]) -> set[str]:
    """Those of our kinds."""
    contents = (entry.content for reading in readings for entry in reading.entries)
    return {content.ref.namespace for content in contents if isinstance(content, QueryAPI | ApiKey | RunStore)}


def config_maps(readings: Iterable[FileReading]) -> set[Ref]:
    """ConfigMaps that QueryAPIs take queries from."""
    apis = (entry.content for reading in readings for entry in reading.entries if isinstance(entry.content, QueryAPI))
    return {Ref(api.ref.namespace, source.config_map_ref.name) for api in apis for source in api.spec.queries_from}


def _identity(item: Object) -> str:
    metadata = item.get("metadata") or {}
    return f"{item.get('kind')} {metadata.get('namespace')}/{metadata.get('name')}"


def _document(item: Object) -> Object:
    """The object without its status and what is the API server's of its metadata."""
    metadata = item.get("metadata") or {}
    kept = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
    found: Object = {name: item[name] for name in ("apiVersion", "kind", "spec", "data", "binaryData") if name in item}
    return {**found, "metadata": kept}


def _placed(entry: Entry, namespace: str) -> Entry:
    if entry.identity is None or _names_namespace(entry.origin):
        return entry
    kind, _, ref = entry.identity.partition(" ")
    content = entry.content
    if isinstance(content, Config):
        content = replace(content, ref=Ref(namespace, content.ref.name))
    elif isinstance(content, QueryAPI | ApiKey | RunStore):
        content = content.model_copy(update={"metadata": content.metadata.model_copy(update={"namespace": namespace})})
    return replace(entry, identity=f"{kind} {namespace}/{ref.partition('/')[2]}", content=content)


def _names_namespace(origin: Origin) -> bool:
    manifests, _ = read_manifests(origin.text)
    value: JsonValue = next((each.value for each in manifests if each.index == origin.index), None)
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return isinstance(metadata, dict) and "namespace" in metadata
