"""ConfigMaps as a kubelet mounts them: `DIR/NAMESPACE/NAME/KEY`. IO: reads files.

The kubelet puts all keys of a new version into a directory of its own and then turns one link (`..data`), so a ConfigMap changes as a whole;
it is read from where the link points, and again if the link was turned meanwhile.
"""

from dataclasses import dataclass, field
from pathlib import Path

from tailrace_contract.ids import Ref

from tailrace_gateway.resources.configdoc import VALUE_LIMIT_BYTES, Config
from tailrace_gateway.resources.private import read_bounded

LINK = "..data"
TRIES = 5
FILES = 10_000


@dataclass(slots=True)
class MountedConfigs:
    """What is mounted below one directory. A version that was read is not read again."""

    folder: Path
    _known: dict[Ref, tuple[Path, Config]] = field(default_factory=dict)

    def read(self, ref: Ref) -> Config | None:
        """A ConfigMap as it is now; None when it is not mounted, or is none. Blocking."""
        path = self.folder / ref.namespace / ref.name
        for _ in range(TRIES):
            linked = (path / LINK).is_symlink()
            real = (path / LINK).resolve() if linked else path
            known = self._known.get(ref)
            if linked and known is not None and known[0] == real:
                return known[1]
            try:
                files = _files(real)
            except (OSError, ValueError):
                files = None
            if linked and (path / LINK).resolve() != real:
                continue  # Turned while it was read.
            if files is None:
                return None
            config = Config(ref, files)
            if linked:
                self._known[ref] = (real, config)
            return config
        return None


def _files(folder: Path) -> dict[str, bytes]:
    names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("..") and each.is_file())
    if len(names) > FILES:
        raise ValueError("too many files")
    files: dict[str, bytes] = {}
    room = VALUE_LIMIT_BYTES
    for name in names:
        files[name] = read_bounded(folder / name, room)
        room -= len(files[name])
    return files
