"""`kubectl tailrace diff`: what an apply would change for callers. IO: reads files, and through kubectl what stands in the cluster; writes nothing."""

import argparse
import sys
from pathlib import Path

from tailrace_gateway.cli import EXIT_USAGE
from tailrace_gateway.commands.difference import show
from tailrace_gateway.console import Console
from tailrace_gateway.diff import differences
from tailrace_gateway.plugin.kubectl import Kubectl, Object
from tailrace_gateway.plugin.live import config_maps, file_reading, live_readings, namespaces, overlaid, state_of, without_broken_keys
from tailrace_gateway.plugin.scope import KINDS, NotFound, admitted_by, foreign_keys
from tailrace_gateway.resources.files import SUFFIXES
from tailrace_gateway.resources.manifest import SIZE_LIMIT_BYTES
from tailrace_gateway.resources.merging import FileReading
from tailrace_gateway.resources.private import read_bounded
from tailrace_gateway.resources.state import Located


def main(given: argparse.Namespace, console: Console, kubectl: Kubectl) -> int:
    """Prints the changes; 1 when someone would see more or something would break, or when a side can't be read."""
    if bool(given.files) == bool(given.kustomize):
        console.note("kubectl tailrace diff: say -f FILE, or -k DIR")
        return EXIT_USAGE
    if absent := [path for path in given.files if str(path) != "-" and not path.exists()]:
        for path in absent:
            console.note(f"kubectl tailrace diff: there is no file or directory {path}")
        return EXIT_USAGE
    current = kubectl.current_namespace()
    files = [file_reading(name, text, current) for name, text in _texts(given, kubectl)]
    items, notes = _objects(kubectl, files)
    for note in notes:
        console.note(note)
    live, broken = without_broken_keys(live_readings(items))
    for located in broken:
        _tell(located, console, "is left out")
    old = state_of(live)
    new = state_of(overlaid(live, files), old)
    if old.findings or new.findings:
        for located in dict.fromkeys((*new.findings, *old.findings)):
            _tell(located, console)
        console.note("both sides must be free of faults to be compared: see `tailrace check --offline`, `kubectl tailrace status`")
        return 1
    return show(differences(old, new, admitted_by(items)), console)


def _tell(located: Located, console: Console, what: str = "") -> None:
    finding = located.finding
    place = f"{finding.place}: " if finding.place else ""
    console.note(f"{located.where}: {place}{finding.message} ({finding.hint})" + (f": {what}" if what else ""))


def _texts(given: argparse.Namespace, kubectl: Kubectl) -> list[tuple[str, str]]:
    """Names and texts of what would be applied. NotFound when one can't be read."""
    if given.kustomize:
        return [(str(given.kustomize), kubectl.run("kustomize", str(given.kustomize)))]
    found: list[tuple[str, str]] = []
    for path in given.files:
        try:
            if str(path) == "-":
                found.append(("standard input", sys.stdin.read(SIZE_LIMIT_BYTES + 1)))
                continue
            files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
            found += [(str(each), _text(each)) for each in files if not each.name.startswith(".") or each == path]
        except OSError as error:
            raise NotFound(f"{error.filename or path}: {error.strerror}") from None
    return found


def _text(path: Path) -> str:
    try:
        return read_bounded(path, SIZE_LIMIT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotFound(f"{path} is not UTF-8 text") from None
    except ValueError:
        raise NotFound(f"{path} is over 16 MiB") from None


def _objects(kubectl: Kubectl, files: list[FileReading]) -> tuple[list[Object], list[str]]:
    """All of our kinds in the files' namespaces, keys of other namespaces for their APIs, the ConfigMaps that queries are in, before or after;
    and what is to be said of keys that the user can't read."""
    items = [item for namespace in sorted(namespaces(files)) for item in kubectl.get(KINDS, namespace=namespace)]
    foreign, notes = foreign_keys(kubectl, items)
    items += foreign
    for ref in sorted(config_maps([*files, *live_readings(items)])):
        items += kubectl.get("configmaps", ref.name, namespace=ref.namespace)
    return items, notes
