"""`tailrace explain`: the admission lineage, compiled against the live databases. IO: reads files and databases, asks a data plane
that runs on the same directory; writes nothing that stays."""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

import httpx
from tailrace_contract.duration import format_duration
from tailrace_contract.plan import QueryPlan

from tailrace_gateway import console as ink
from tailrace_gateway.cli import EXIT_USAGE
from tailrace_gateway.commands.check import STANDARD_INPUT, check, read, with_standard_input
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.console import Console
from tailrace_gateway.explain import GIVEN_UP, Admission, admissions

ANSWER_S = 5.0


def main(given: argparse.Namespace, console: Console) -> int:
    """Prints the lineage; 1 when something can't be read or compiled at all."""
    if absent := [path for path in given.files if not path.exists() and path != STANDARD_INPUT]:
        for path in absent:
            console.note(f"tailrace explain: there is no file or directory {path}")
        return EXIT_USAGE
    compiler = Compiler()
    with tempfile.TemporaryDirectory(prefix="tailrace-explain-") as folder:
        state = read(with_standard_input(given.files, Path(folder)), given.data, Path(folder))
        checked = check(state, Path(folder), given.api, compiler, console)
        for located in state.findings:
            console.note(f"{located.where}: {located.finding.message} ({located.finding.hint})")
        for note in _given_up(
            given.data, [query for _, compiled in checked.compiled.values() for query in compiled.assembled.snapshot.queries]
        ):
            console.note(note)
        found = [
            admission
            for spec, compiled in checked.compiled.values()
            for admission in admissions(compiled.assembled.snapshot, spec, compiled.refusals, compiler.tables)
            if given.query in (None, admission.query) and (given.key is None or admission.key in (str(given.key), f"{spec.api.namespace}/{given.key.name}"))
        ]  # fmt: skip
    if console.json:
        console.value([asdict(admission) for admission in found])
    else:
        show(found, console)
    if not found:
        console.note(_why_none(given.query, [query.name for spec, _ in checked.compiled.values() for query in spec.queries]))
    return 1 if state.findings or not found else 0


def _given_up(data: Path, queries: list[QueryPlan]) -> Iterator[str]:
    """What to say of versions whose callers shared statements until the data plane that runs on this directory stopped it; nothing if none runs."""
    socket = data / "run" / "dataplane.sock"
    if not socket.exists():
        return
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=ANSWER_S) as client:
            answer = client.get("http://dataplane/plans")
        stopped = {(each["query"], each["version"]): str(each["reason"]) for each in answer.json()["uncoalesced"]}
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        yield f"the data plane on {data} did not say whether it gave up shared statements"
        return
    for query in queries:
        if (reason := stopped.get((query.name, query.version))) is not None:
            yield f"the data plane on {data} gave up shared statements of {query.name}: {GIVEN_UP.get(reason, reason)}"


def _why_none(wanted: str | None, queries: list[str]) -> str:
    if wanted is None or wanted in queries:
        return "no key is granted any of these queries"
    near = get_close_matches(wanted, queries, 1)
    return f"there is no query {wanted}: " + (f"did you mean {near[0]}?" if near else f"its names are {', '.join(queries[:20]) or 'none'}")


def show(found: list[Admission], console: Console) -> None:
    """Prints the lineage for people."""
    last = ""
    for admission in found:
        if admission.query != last:
            console.line(("\n" if last else "") + console.paint(admission.query, ink.BOLD) + console.paint(f"  {admission.place}", ink.DIM))
            last = admission.query
        console.line(f"  key {admission.key} (role {admission.role})")
        if admission.refused:
            console.line(
                f"    {console.paint('refused', ink.RED)}   {admission.refused}" + (f": {admission.hint}" if admission.hint else "")
            )
            continue
        masked = [
            f"{column.name} {console.paint(f'[{column.mask}]', ink.YELLOW)}" if column.mask else column.name for column in admission.columns
        ]
        console.line(
            f"    {admission.method}       returns {admission.returns}{', in pages' if admission.paged else ', JSON without bound' if admission.unbounded else ''}"
        )
        console.line(f"    tables    {', '.join(admission.tables) or 'none'} (connection {admission.connection})")
        console.line(f"    columns   {', '.join(masked) or 'none'}")
        if admission.bound:
            console.line(f"    fixed     {', '.join(admission.bound)}: by the key, callers can't send them")
        console.line(f"    callers   {'coalesced' if admission.coalesced else 'not coalesced'}: {admission.alone}")
        console.line(f"    lane      {admission.lane}: {admission.because}; timeout {format_duration(admission.timeout_ms)}")
        if admission.cache_ttl_ms is not None:
            console.line(f"    cached    for {format_duration(admission.cache_ttl_ms)} in each pod, for callers that ask and see the same")
