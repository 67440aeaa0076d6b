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
from dataclasses import dataclass
from pathlib import Path

from tailrace_contract.findings import Finding
from tailrace_contract.ids import Ref

from tailrace_gateway.resources.manifest import SIZE_LIMIT_BYTES
from tailrace_gateway.resources.merging import FileReading, Good, Parts, merge, read_file
from tailrace_gateway.resources.private import read_bounded
from tailrace_gateway.resources.state import Digest, Located, ResourceState
from tailrace_gateway.resources.vault import Vault

SUFFIXES = (".yaml", ".yml", ".json")
POLL_S = 0.2
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
        self._key_files: dict[Ref, tuple[Signature | None, str | ValueError]] = {}
        self._watched: tuple[str, ...] = ()

    async def states(self) -> AsyncIterator[ResourceState]:
        """The state now, then one after each change, at most about half a second later."""
        state = await asyncio.to_thread(self.read)
        yield state
        looked = await asyncio.to_thread(self._look)
        while True:
            began = time.monotonic()
            now = await asyncio.to_thread(self._look)
            cost_s = time.monotonic() - began
            if now == looked and not self._racy(now):
                await asyncio.sleep(min(0.6, max(self._poll_s, 20 * cost_s)))
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
                state = changed
                yield state
            else:
                await asyncio.sleep(self._poll_s)

    def read(self) -> ResourceState:
        """Reads everything once. Blocking."""
        readings = [self._file(name) for name in self._files()]
        readings += [reading for path in self._paths if (reading := _unlisted(path)) is not None]
        self._known = {name: known for name, known in self._known.items() if any(reading.file == name for reading in readings)}
        self._good, findings = merge(self._good, readings)
        state = ResourceState(self._good.resources, findings, files=len(readings))
        if not self._keep:
            return state
        self._watched = self._to_watch(state)
        return self._with_secrets(state)

    def _with_secrets(self, state: ResourceState) -> ResourceState:
        findings = list(state.findings)
        try:
            self._vault.store(secret for secret, _ in self._good.secrets.values())
        except OSError as error:
            findings.append(
                Located("data directory", 1, 1, Finding((), f"Secrets can't be written ({error.strerror})", "make room or give access"))
            )
        minted = False
        digests: dict[Ref, tuple[Digest, ...]] = {}
        keyless: dict[Ref, str] = {}
        for ref, key in state.api_keys.items():
            path = self._vault.key_file(key)
            signature = _signature(path) if path is not None else None
            held = self._key_files.get(ref)
            if held is None or signature is None or held[0] != signature:
                try:
                    result: str | ValueError = self._vault.digest(key, sync=False)
                    minted = minted or signature is None
                except ValueError as error:
                    result = error
                except OSError as error:
                    result = ValueError(f"the key can't be written ({error.strerror})")
                self._key_files[ref] = held = (_signature(path) if path is not None else None, result)
            if isinstance(held[1], str):
                digests[ref] = (Digest(held[1]),)
            else:
                keyless[ref] = str(held[1])
        if minted:
            os.sync()  # Once for all of them: ten thousand syncs take a minute.
        self._key_files = {ref: held for ref, held in self._key_files.items() if ref in digests or ref in keyless}
        secrets = self._vault.fingerprint(state.query_apis.values(), ())
        return ResourceState(state.held, tuple(findings), digests, keyless, secrets, state.files)

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
        """Signatures of everything that a state depends on."""
        names = {name: _signature(name) for name in self._files()}
        names.update({str(path): _signature(path) for path in self._paths})
        names.update({name: _signature(name) for name in self._watched})
        return names

    def _to_watch(self, state: ResourceState) -> tuple[str, ...]:
        """Files besides the resources' own: what they refer to."""
        paths = [path for api in state.query_apis.values() for path in self._vault.referred(api)]
        paths += [path for key in state.api_keys.values() if (path := self._vault.key_file(key)) is not None]
        return tuple(map(str, paths))

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
