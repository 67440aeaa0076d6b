"""`tailrace check`: every fault of the files at once. IO: reads files and databases; writes only below a temporary directory.

Secrets of the documents are put there as in a real data directory; what the documents lack is taken from --data.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue
from tailrace_contract.ids import Ref
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import SecretKeyRef
from tailrace_contract.runstore import RunStore

from tailrace_gateway import console as ink
from tailrace_gateway.cli import EXIT_USAGE
from tailrace_gateway.compile.compiler import Compiled, Compiler
from tailrace_gateway.compile.spec import ApiSpec
from tailrace_gateway.console import Console
from tailrace_gateway.control import choose, specified
from tailrace_gateway.resources.files import FileSource
from tailrace_gateway.resources.manifest import SIZE_LIMIT_BYTES
from tailrace_gateway.resources.references import references
from tailrace_gateway.resources.state import Located, ResourceState
from tailrace_gateway.resources.vault import Vault

STANDARD_INPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the list. `where` is FILE:LINE:COLUMN, empty when it belongs to no file."""

    where: str
    message: str
    fix: str = ""
    unit: str = ""
    code: str = ""

    def order(self) -> tuple[str, int, int, str]:
        """By file, line, column."""
        file, _, rest = self.where.rpartition(":")[0].rpartition(":")
        numbers = self.where.split(":")[-2:]
        line, column = (int(each) if each.isdigit() else 0 for each in (numbers if len(numbers) == 2 else ("", "")))
        return file, line, column, rest + self.message


@dataclass(slots=True)
class Checked:
    """Everything that was found, and each API as compiled."""

    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    compiled: dict[Ref, tuple[ApiSpec, Compiled]] = field(default_factory=dict)


def main(given: argparse.Namespace, console: Console) -> int:
    """Prints the list; 1 when something is on it."""
    if absent := [path for path in given.files if not path.exists() and path != STANDARD_INPUT]:
        for path in absent:
            console.note(f"tailrace check: there is no file or directory {path}")
        return EXIT_USAGE
    with tempfile.TemporaryDirectory(prefix="tailrace-check-") as folder:
        data = Path(folder)
        state = read(with_standard_input(given.files, data), given.data, data)
        if given.print_ddl:
            return _print_ddl(state, given.api, data, console)
        checked = check(state, data, given.api, Compiler(), None if given.offline else console)
    checked.faults.sort(key=Fault.order)
    checked.warnings.sort(key=Fault.order)
    if console.json:
        console.value({"faults": [_json(each) for each in checked.faults], "warnings": [_json(each) for each in checked.warnings]})
    else:
        _print(checked, state, console)
    return 1 if checked.faults else 0


def with_standard_input(files: Sequence[Path], folder: Path) -> list[Path]:
    """The files; what stands on standard input for `-` (once) is put into `folder`, for it is read more than once."""
    if STANDARD_INPUT not in files:
        return list(files)
    place = folder / "standard-input.yaml"
    place.write_bytes(sys.stdin.buffer.read(SIZE_LIMIT_BYTES + 1))
    return [place if path == STANDARD_INPUT else path for path in files]


def read(files: Sequence[Path], mounted: Path, data: Path) -> ResourceState:
    """The files' state with its Secrets below `data`, completed by what is mounted."""
    source = FileSource(files, data)
    state = source.read()
    real, copy = Vault(mounted), Vault(data)
    for api in state.query_apis.values():
        for path, original in zip(copy.referred(api), real.referred(api), strict=True):
            _borrow(original, path)
    for store in state.run_stores.values():
        if store.spec.postgres is not None:
            ref = store.spec.postgres.url_from.secret_key_ref
            _borrow(real.secret_file(store.metadata.namespace, ref), copy.secret_file(store.metadata.namespace, ref))
    for key in state.api_keys.values():
        path, original = copy.key_file(key), real.key_file(key)  # type: ignore[assignment]
        if key.spec.key_from is not None and path is not None and original is not None:
            _borrow(original, path)
    return source.read()


def _borrow(original: Path, path: Path) -> None:
    if not path.exists() and original.is_file():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(OSError):
            shutil.copyfile(original, path)
            path.chmod(0o600)


def check(state: ResourceState, data: Path, wanted: Ref | None, compiler: Compiler, online: Console | None) -> Checked:
    """Everything that is wrong; with the databases when there is a console to tell the progress to."""
    checked = Checked([_located(each) for each in state.findings])
    vault = Vault(data)

    def exists(namespace: str, ref: SecretKeyRef) -> bool:
        return vault.secret_file(namespace, ref).is_file()

    faults, warnings = references(state, exists)
    checked.faults += [_located(each) for each in faults]
    checked.warnings += [_located(each) for each in warnings]
    apis = [api for ref, api in state.query_apis.items() if wanted is None or ref == wanted]
    if not apis and not state.findings:
        checked.faults.append(Fault("", f"there is no QueryAPI{f' {wanted}' if wanted else ''}", "add one to the files behind -f"))
    for ref, why in state.keyless.items():
        if state.api_keys[ref].spec.key_from is None or "missing" not in why:
            origin = state.held[f"ApiKey {ref}"].origin
            checked.faults.append(Fault(f"{origin.file}:{origin.first_line}:1", why, "correct the Secret", f"ApiKey {ref}"))
    if online is not None:
        for api in apis:
            _compile(api, state, data, compiler, checked, online)
        for store in state.run_stores.values():
            if store.spec.postgres is not None:
                file = vault.secret_file(store.metadata.namespace, store.spec.postgres.url_from.secret_key_ref)
                if file.is_file():
                    checked.faults += _run_store(state, store, file)
    return checked


def _run_store(state: ResourceState, store: RunStore, url_file: Path) -> list[Fault]:
    """What keeps runs from being stored."""
    from tailrace_gateway.runs.postgres import problem_of

    if (problem := problem_of(url_file)) is None:
        return []
    unit = f"RunStore {store.ref}"
    origin = state.held[unit].origin
    line, column = origin.place(("spec", "postgres", "urlFrom"))
    return [Fault(f"{origin.file}:{line}:{column}", f"spec.postgres: {problem.message}", problem.hint, unit, problem.code)]


def _compile(api: QueryAPI, state: ResourceState, data: Path, compiler: Compiler, checked: Checked, console: Console) -> None:
    chosen = choose(state, api.ref)
    if chosen.api is None:
        return
    console.progress(f"compiling {len(state.queries_of(api))} queries of {api.ref} against their databases…")
    spec, _ = specified(state, chosen, data / "secrets")
    assert spec is not None
    compiled = compiler.compile(spec, 1)
    checked.compiled[api.ref] = (spec, compiled)
    known = {(fault.unit, fault.where) for fault in checked.faults}
    for unit in compiled.refusals:
        if unit.unit == "key" and (f"ApiKey {unit.name}", unit.place) in known:
            continue
        if unit.code == "missing_secret":
            continue  # Told by `references`, once a connection.
        what = f"query {unit.name} for role {unit.role}" if unit.unit == "grant" else f"{unit.unit} {unit.name}"
        detail = f" ({unit.detail})" if unit.detail else ""
        checked.faults.append(Fault(unit.place, f"{what} is refused: {unit.code}{detail}", unit.hint, f"QueryAPI {api.ref}", unit.code))
    checked.warnings += [Fault("", text, unit=f"QueryAPI {api.ref}") for text in compiled.warnings]


def _located(located: Located) -> Fault:
    place = located.finding.place
    return Fault(
        located.where, f"{place}: {located.finding.message}" if place else located.finding.message, located.finding.hint, located.unit
    )


def _json(fault: Fault) -> JsonValue:
    file, line, column = (*fault.where.rsplit(":", 2), "", "")[:3] if fault.where else ("", "", "")
    return {
        "file": file,
        "line": int(line) if line else None,
        "column": int(column) if column else None,
        "unit": fault.unit,
        "code": fault.code,
        "message": fault.message,
        "fix": fault.fix,
    }


def _print(checked: Checked, state: ResourceState, console: Console) -> None:
    for fault in checked.faults:
        console.line(
            f"{console.paint(fault.where + ': ' if fault.where else '', ink.BOLD)}{console.paint('error', ink.RED)}: {fault.message}"
        )
        if fault.fix:
            console.line(f"    fix: {fault.fix}")
    for fault in checked.warnings:
        console.line(f"{fault.where + ': ' if fault.where else ''}{console.paint('warning', ink.YELLOW)}: {fault.message}")
        if fault.fix:
            console.line(f"    fix: {fault.fix}")
    count = len(checked.faults)
    kinds = f"{len(state.query_apis)} QueryAPI, {len(state.api_keys)} ApiKey, {len(state.run_stores)} RunStore in {state.files} files"
    if count:
        console.line(f"{console.paint(f'{count} fault' + ('s' if count > 1 else ''), ink.RED)} ({kinds})")
    else:
        console.line(f"{console.paint('no faults', ink.GREEN)} ({kinds})")


def _print_ddl(state: ResourceState, wanted: Ref | None, data: Path, console: Console) -> int:
    from tailrace_gateway.commands.ddl import statements

    for located in state.findings:
        console.note(f"{located.where}: {located.finding.message}")
    texts = [text for ref, api in state.query_apis.items() if wanted in (None, ref) for text in statements(api, Vault(data))]
    for text in texts:
        console.line(text)
    if not texts and state.findings:
        console.note("a faulty QueryAPI may have an idempotencyTable: correct it first")
    elif not texts:
        console.note("no connection has an idempotencyTable")
    return 1 if state.findings else 0
