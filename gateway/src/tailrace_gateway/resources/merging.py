"""What files say now, together with what held before, becomes what holds from now on ("last good, or refuse"). Pure.

- A file that can't be read: everything that came from it holds on. A document that can't be parsed: whatever the file held and does
  not name now holds on, since the document may be any of it.
- A document that is wrong: its last good form holds on; one that never had a good form is absent.
- Whatever else changed applies at once, so that a fault in one place never keeps a key alive that was suspended in another.
- Two documents of one name: neither is taken; the last good form holds on.
- A resource that no file has any more is gone at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue
from tailrace_contract import rules
from tailrace_contract.apikey import ApiKey
from tailrace_contract.document import Resource, read
from tailrace_contract.findings import Finding
from tailrace_contract.resource import GROUP, Kind
from tailrace_contract.runstore import RunStore

from tailrace_gateway.resources.configdoc import Config, is_config, read_config
from tailrace_gateway.resources.manifest import SIZE_LIMIT_BYTES, ManifestError, chunks, read_manifests
from tailrace_gateway.resources.secretdoc import Secret, is_secret, read_secret
from tailrace_gateway.resources.state import Held, Located, Origin


@dataclass(frozen=True, slots=True)
class Entry:
    """One document of a file. `identity` is `KIND NAMESPACE/NAME`, None when it can't be told."""

    origin: Origin
    identity: str | None
    content: Resource | Secret | Config | None
    findings: tuple[Finding, ...] = ()

    def placed(self, file: str, before: int) -> "Entry":
        """The same, of a part of `file` that `before` lines stand before."""
        origin = self.origin
        return Entry(Origin(file, origin.index, origin.line, origin.text, before), self.identity, self.content, self.findings)


@dataclass(frozen=True, slots=True)
class FileReading:
    """One file as it is now. `broken`: it can't be read whole, so what else it may hold is unknown."""

    file: str
    entries: tuple[Entry, ...] = ()
    broken: tuple[Located, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a file (a document, rarely several) says, with lines counted from the part's own first."""

    entries: tuple[Entry, ...]
    errors: tuple[ManifestError, ...]


Parts = dict[str, Part]
"""By their text: a part that didn't change is not read again."""


@dataclass(frozen=True, slots=True)
class Good:
    """What holds: resources, Secrets and ConfigMaps by identity, each with its origin."""

    resources: Mapping[str, Held] = field(default_factory=dict)
    secrets: Mapping[str, tuple[Secret, Origin]] = field(default_factory=dict)
    configs: Mapping[str, tuple[Config, Origin]] = field(default_factory=dict)


def read_file(file: str, text: str, known: Parts | None = None) -> tuple[FileReading, Parts]:
    """Parses and checks one file's text; `known` and the second result are what it is made of, before and now."""
    if len(text) > SIZE_LIMIT_BYTES:
        return FileReading(file, (), (Located(file, 1, 1, Finding((), "the file is over 16 MiB", "split it")),)), {}
    parts: Parts = {}
    entries: list[Entry] = []
    broken: list[Located] = []
    for before, chunk in chunks(text):
        part = parts.get(chunk) or (known or {}).get(chunk) or _part(chunk)
        parts[chunk] = part
        broken += [Located(file, e.line + before, e.column, Finding((), e.message, e.hint)) for e in part.errors]
        entries += [each.placed(file, before) for each in part.entries]
    return FileReading(file, tuple(entries), tuple(broken)), parts


def _part(text: str) -> Part:
    manifests, errors = read_manifests(text)
    if errors:
        return Part((), tuple(errors))
    found = (_entry(each.value, Origin("", each.index, each.line, text)) for each in manifests)
    return Part(tuple(each for each in found if each is not None), ())


def _entry(value: JsonValue, origin: Origin) -> Entry | None:
    if is_secret(value):
        secret = read_secret(value)
        if isinstance(secret, Secret):
            return Entry(origin, f"Secret {secret.ref}", secret)
        return Entry(origin, _identity(value), None, tuple(secret))
    if is_config(value):
        config = read_config(value)
        if isinstance(config, Config):
            return Entry(origin, f"ConfigMap {config.ref}", config)
        return Entry(origin, _identity(value), None, tuple(config))
    if _foreign(value):
        return None
    resource = read(value)
    if isinstance(resource, list):
        return Entry(origin, _identity(value), None, tuple(resource))
    return Entry(origin, f"{resource.kind} {resource.ref}", resource)


def _foreign(value: JsonValue) -> bool:
    """Whether a document is another program's: a Kubernetes kind of another group."""
    if not isinstance(value, dict) or value.get("kind") in tuple(Kind):
        return False
    version = value.get("apiVersion")
    return isinstance(version, str) and not version.startswith(f"{GROUP}/") and isinstance(value.get("kind"), str)


def _identity(value: JsonValue) -> str | None:
    if not isinstance(value, dict) or not isinstance(metadata := value.get("metadata"), dict):
        return None
    kind, name, namespace = value.get("kind"), metadata.get("name"), metadata.get("namespace", "default")
    if kind not in (*Kind, "Secret", "ConfigMap") or not isinstance(name, str) or not isinstance(namespace, str):
        return None
    return f"{kind} {namespace}/{name}"


def merge(before: Good, readings: Iterable[FileReading]) -> tuple[Good, tuple[Located, ...]]:
    """What holds now, and everything that is wrong, in the order of files and lines."""
    readings = list(readings)
    findings: list[Located] = []
    resources: dict[str, Held] = {}
    secrets: dict[str, tuple[Secret, Origin]] = {}
    configs: dict[str, tuple[Config, Origin]] = {}
    kept_files: set[str] = set()
    kept: set[str] = set()
    seen: dict[str, Origin] = {}
    for reading in readings:
        findings += reading.broken
        if reading.broken:
            kept_files.add(reading.file)
        for entry in reading.entries:
            found = list(entry.findings)
            if entry.identity is None:
                kept_files.add(reading.file)
            elif entry.identity in seen:
                first = seen[entry.identity]
                found.append(
                    Finding(
                        ("metadata", "name"),
                        f"a second {entry.identity}: the first is in {first.file}:{first.first_line}",
                        "rename or remove one",
                    )
                )
                resources.pop(entry.identity, None)
                secrets.pop(entry.identity, None)
                configs.pop(entry.identity, None)
            else:
                seen[entry.identity] = entry.origin
                found += _moved(before, entry)
            if found:
                findings += [_located(entry, finding) for finding in found]
                if entry.identity is not None:
                    kept.add(entry.identity)
            elif isinstance(entry.content, Secret):
                secrets[str(entry.identity)] = (entry.content, entry.origin)
            elif isinstance(entry.content, Config):
                configs[str(entry.identity)] = (entry.content, entry.origin)
            elif entry.content is not None:
                resources[str(entry.identity)] = Held(entry.content, entry.origin)
    for identity, held in before.resources.items():
        if identity in kept or (_within(held.origin.file, kept_files) and identity not in seen):
            resources.setdefault(identity, held)
    for identity, (secret, origin) in before.secrets.items():
        if identity in kept or (_within(origin.file, kept_files) and identity not in seen):
            secrets.setdefault(identity, (secret, origin))
    for identity, (config, origin) in before.configs.items():
        if identity in kept or (_within(origin.file, kept_files) and identity not in seen):
            configs.setdefault(identity, (config, origin))
    return Good(resources, secrets, configs), tuple(findings)


def _within(file: str, places: set[str]) -> bool:
    """Whether a file is one of these, or stands in one of these directories."""
    return any(file == place or file.startswith(f"{place.rstrip('/')}/") for place in places)


def _moved(before: Good, entry: Entry) -> list[Finding]:
    old = before.resources.get(str(entry.identity))
    finding = None
    if old is not None and isinstance(entry.content, ApiKey) and isinstance(old.resource, ApiKey):
        finding = rules.moved(old.resource.api_ref, entry.content.api_ref)
    if old is not None and isinstance(entry.content, RunStore) and isinstance(old.resource, RunStore):
        finding = rules.backend_changed(old.resource.spec.embedded is not None, entry.content.spec.embedded is not None)
    return [] if finding is None else [finding]


def _located(entry: Entry, finding: Finding) -> Located:
    line, column = entry.origin.place(finding.path)
    return Located(entry.origin.file, line, column, finding, entry.identity or "")
