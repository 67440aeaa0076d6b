"""Resources from files and directories, watched. IO: reads the files, keeps the vault below the data directory.

A directory means its `*.yaml`, `*.yml` and `*.json`, not what is below it (as kubectl has it) and not what begins with a dot. The watch
asks for names, sizes, times and inodes a few times a second and reads again what changed, or what is so young that its time
could hide a change; edits by rename are changes like others. Nothing here raises for what stands in the files: it becomes findings.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace_contract.apikey import ApiKey
from tailrace_contract.findings import Finding
from tailrace_contract.ids import Ref

from tailrace_gateway.resources.manifest import SIZE_LIMIT_BYTES
from tailrace_gateway.resources.merging import FileReading, Good, Parts, merge, read_file
from tailrace_gateway.resources.private import read_bounded
from tailrace_gateway.resources.queryfiles import Place, QueryFiles
from tailrace_gateway.resources.state import Digest, FileQuery, Located, ResourceState
from tailrace_gateway.resources.vault import Vault

SUFFIXES = (".yaml", ".yml", ".json")
POLL_S = 0.2
MANY_POLL_S = 0.6
"""Secrets and keys are looked at as rarely as this if they are ten thousand; the resources' own files, which are few, each `poll_s`."""
SETTLE_S = 0.05
"""A change is taken when nothing more happens for this long, at latest after `SETTLE_ROUNDS` of them: half-written files are rarely seen."""
SETTLE_ROUNDS = 5
RACY_NS = 2_000_000_000
"""A file whose time is younger than this is compared by content: clocks of file systems are coarse."""

Signature = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Known:
    """A file as it was read: signature, digest of the content, what stands in it, and that by its parts."""

    signature: Signature
    digest: bytes
    reading: FileReading
    parts: Parts


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The file with an ApiKey's text as it was read: its path (None: the key names none), signature, and the text's digest or what is wrong."""

    key: ApiKey
    path: str | None
    signature: Signature | None
    result: str | ValueError


class FileSource:
    """A `ResourceSource` over files. `paths`: files and directories; `data`: where Secrets and keys are kept.

    `keep=False` writes nothing: Secrets are not stored, keys not minted or digested.
    """

    def __init__(self, paths: Sequence[Path], data: Path, *, poll_s: float = POLL_S, keep: bool = True) -> None:
        self._paths = tuple(paths)
        self._vault = Vault(data)
        self._poll_s = poll_s
        self._keep = keep
        self._known: dict[str, Known] = {}
        self._good = Good()
        self._key_files: dict[Ref, KeyFile] = {}
        self._query_files = QueryFiles()
        self._watched: tuple[str, ...] = ()

    async def states(self) -> AsyncIterator[ResourceState]:
        """The state now, then one after each change, at most about half a second later."""
        state = await asyncio.to_thread(self.read)
        looked, behind, due = await asyncio.to_thread(self._look), await asyncio.to_thread(self._look_behind), 0.0
        yield state
        while True:
            now = await asyncio.to_thread(self._look)
            changed_behind = False
            if (began := time.monotonic()) >= due:
                behind_now = await asyncio.to_thread(self._look_behind)
                changed_behind, behind = behind_now != behind, behind_now
                due = time.monotonic() + min(MANY_POLL_S, 20 * (time.monotonic() - began))
            if now == looked and not changed_behind and not self._racy(now):
                await asyncio.sleep(self._poll_s)
                continue
            for _ in range(SETTLE_ROUNDS):
                await asyncio.sleep(SETTLE_S)
                again = await asyncio.to_thread(self._look)
                if again == now:
                    break
                now = again
            looked = now
            changed = await asyncio.to_thread(self.read)
            if changed != state:
                state, due = changed, 0.0
                yield state
            else:
                await asyncio.sleep(self._poll_s)

    def read(self) -> ResourceState:
        """Reads everything once. Blocking."""
        readings = [self._file(name) for name in self._files()]
        readings += [reading for path in self._paths if (reading := _unlisted(path)) is not None]
        self._known = {name: known for name, known in self._known.items() if any(reading.file == name for reading in readings)}
        self._good, findings = merge(self._good, readings)
        state = self._with_queries(ResourceState(self._good.resources, findings, files=len(readings)))
        if not self._keep:
            return state
        return self._with_secrets(state)

    def _with_secrets(self, state: ResourceState) -> ResourceState:
        findings = list(state.findings)
        try:
            self._vault.store(secret for secret, _ in self._good.secrets.values())
        except OSError as error:
            findings.append(
                Located("data directory", 1, 1, Finding((), f"Secrets can't be written ({error.strerror})", "make room or give access"))
            )
        key_files = {ref: self._key_file(ref, key) for ref, key in state.api_keys.items()}
        if any(each is not self._key_files.get(ref) and self._is_new(ref, each) for ref, each in key_files.items()):
            os.sync()  # Once for all of them: ten thousand syncs take a minute.
        self._key_files = key_files
        digests = {ref: (Digest(each.result),) for ref, each in key_files.items() if isinstance(each.result, str)}
        keyless = {ref: str(each.result) for ref, each in key_files.items() if isinstance(each.result, ValueError)}
        self._watched = self._to_watch(state)
        secrets = self._vault.fingerprint(state.query_apis.values(), ())
        return replace(state, findings=tuple(findings), digests=digests, keyless=keyless, secrets=secrets)

    def _with_queries(self, state: ResourceState) -> ResourceState:
        """With the queries of ConfigMaps; a fault in one of them stands in the file that holds the ConfigMap."""
        configs = {config.ref: (config, Place(origin)) for config, origin in self._good.configs.values()}
        queries: dict[Ref, tuple[FileQuery, ...]] = {}
        findings = state.findings
        for ref, api in state.query_apis.items():
            if api.spec.queries_from:
                queries[ref], found = self._query_files.of(api, configs)
                findings += found
        return replace(state, findings=findings, queries=queries)

    def _key_file(self, ref: Ref, key: ApiKey) -> KeyFile:
        """Reads (or mints) a key's text, unless the same key has the same file as before."""
        last = self._key_files.get(ref)
        if last is not None and last.key is key:
            path = last.path
        else:
            found = self._vault.key_file(key)
            path = str(found) if found is not None else None
        signature = _signature(path) if path is not None else None
        if last is not None and signature is not None and last.path == path and last.signature == signature:
            return last if last.key is key else KeyFile(key, path, signature, last.result)
        try:
            result: str | ValueError = self._vault.digest(key, sync=False)
        except ValueError as error:
            result = error
        except OSError as error:
            result = ValueError(f"the key can't be written ({error.strerror})")
        return KeyFile(key, path, _signature(path) if path is not None else None, result)

    def _is_new(self, ref: Ref, file: KeyFile) -> bool:
        """Whether its text may have been minted just now: no such file was known."""
        last = self._key_files.get(ref)
        known = last is not None and last.path == file.path and last.signature is not None
        return file.key.spec.secret_name is not None and not (known and last is not None and last.signature == file.signature)

    def _files(self) -> list[str]:
        names: dict[str, None] = {}
        for path in self._paths:
            for each in _listed(path):
                names.setdefault(str(each))
        return list(names)

    def _file(self, name: str) -> FileReading:
        path = Path(name)
        signature = _signature(path)
        known = self._known.get(name)
        if known is not None and known.signature == signature and time.time_ns() - signature[2] > RACY_NS:
            return known.reading
        try:
            content = read_bounded(path, SIZE_LIMIT_BYTES)
            digest = hashlib.sha256(content).digest()
            if known is not None and known.digest == digest:
                reading, parts = known.reading, known.parts
            else:
                reading, parts = read_file(name, content.decode("utf-8-sig"), known.parts if known is not None else None)
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            return FileReading(name, (), (Located(name, line, 1, Finding((), "not UTF-8 text", "save the file as UTF-8")),))
        except OSError as error:
            return FileReading(name, (), (Located(name, 1, 1, Finding((), f"can't be read ({error.strerror})", "give access")),))
        except ValueError:
            return FileReading(name, (), (Located(name, 1, 1, Finding((), "the file is over 16 MiB", "split it")),))
        if signature is not None:
            self._known[name] = Known(signature, digest, reading, parts)
        return reading

    def _look(self) -> dict[str, Signature | None]:
        """Signatures of the resources' own files."""
        names = {name: _signature(name) for name in self._files()}
        names.update({str(path): _signature(path) for path in self._paths})
        return names

    def _look_behind(self) -> dict[str, Signature | None]:
        """Signatures of everything else that a state depends on: Secrets and keys."""
        return {name: _signature(name) for name in self._watched}

    def _to_watch(self, state: ResourceState) -> tuple[str, ...]:
        """Files besides the resources' own: what they refer to."""
        paths = [path for api in state.query_apis.values() for path in self._vault.referred(api)]
        return (*map(str, paths), *(each.path for each in self._key_files.values() if each.path is not None))

    def _racy(self, looked: dict[str, Signature | None]) -> bool:
        """Whether a file's content has to be compared although its signature is the same."""
        now = time.time_ns()
        return any(
            signature is not None and -RACY_NS < now - signature[2] < RACY_NS for name, signature in looked.items() if name in self._known
        )


def _listed(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path] if path.exists() else []
    try:
        return sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and not each.name.startswith(".") and each.is_file())
    except OSError:
        return []


def _signature(path: Path | str) -> Signature | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 (ten thousand times a second: no Path objects)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _unlisted(path: Path) -> FileReading | None:
    """The reading of a path that can't even be listed, None when it can."""
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            path.stat()
    except FileNotFoundError:
        message, hint = "there is no such file or directory", "correct the path behind -f"
    except OSError as error:
        message, hint = f"can't be read ({error.strerror})", "give access"
    else:
        return None
    return FileReading(str(path), (), (Located(str(path), 1, 1, Finding((), message, hint)),))
