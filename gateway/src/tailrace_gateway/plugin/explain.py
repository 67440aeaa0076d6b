"""`kubectl tailrace explain`: who sees what of the API that stands in the cluster. IO: through kubectl.

Only the databases can tell, and only the pods reach them: a gateway's container compiles there and then, with the Secrets that are mounted in it,
and answers with names. Needs the right `pods/exec` (role `edit`). What pods have in force may be of an earlier moment, which is said.
"""

import argparse
import secrets
from collections.abc import Iterator
from dataclasses import asdict, replace
from difflib import get_close_matches

from pydantic import TypeAdapter, ValidationError
from tailrace_contract.apikey import ApiKey

from tailrace_gateway.commands.explain import show
from tailrace_gateway.console import Console
from tailrace_gateway.explain import GIVEN_UP, Admission
from tailrace_gateway.plugin.kubectl import Kubectl
from tailrace_gateway.plugin.live import config_maps, live_readings, state_of
from tailrace_gateway.plugin.objects import ApiObject, KeyObject, condition
from tailrace_gateway.plugin.question import Groups, documents, groups_of, name_of, queries_for
from tailrace_gateway.plugin.runs import GATEWAY, PROGRAM
from tailrace_gateway.plugin.scope import NotFound, a_pod, choose, pods_of, read, read_foreign_keys
from tailrace_gateway.plugin.status import ask
from tailrace_gateway.resources.state import ResourceState

MEMORY = "/dev/shm"  # noqa: S108 (in the container: the mounted Secrets are copied there for the moment, and must not reach a disk)
MOUNTED = "/etc/tailrace"
_ANSWER: TypeAdapter[list[Admission]] = TypeAdapter(list[Admission])


def main(given: argparse.Namespace, console: Console, kubectl: Kubectl) -> int:
    """Prints the lineage; 1 when there is none, or something can't be read."""
    found, notes = read_foreign_keys(kubectl, read(kubectl))
    chosen = choose(found, given.api)
    state = _state(kubectl, chosen)
    api = state.query_apis[chosen.ref]
    if given.role is not None and given.role not in (names := [role.name for role in api.spec.roles]):
        raise NotFound(f"{api.ref} has no role {given.role}: its roles are {', '.join(names)}")
    keys, broken = _keys(found.keys_of(chosen.ref))
    groups = groups_of(api, keys, chosen.status.namespaces, given.role)
    queries = queries_for(api, state.queries_of(api), groups, given.query)
    if not queries:
        raise NotFound(_why_none(given.query, [query.name for query in state.queries_of(api)]))
    pod = a_pod(kubectl, chosen)
    console.progress(f"compiling {len(queries)} queries in {pod.name}…")
    question = documents(api, queries, groups, lambda: secrets.token_hex(16))
    printed = kubectl.exec(
        pod.api.namespace, pod.name, GATEWAY, "env", f"TMPDIR={MEMORY}", *PROGRAM, "explain", "-f", "-", "--data", MOUNTED, "-o", "json",
        given=question,
    )  # fmt: skip
    admissions = _answered(printed, chosen, groups)
    for note in (*notes, *broken, *(f"key {ref} sees nothing: {why}" for ref, why in groups.refused)):
        console.note(note)
    if shared := {each.query for each in admissions if each.coalesced}:
        for note in _given_up(kubectl, chosen, shared):
            console.note(note)
    ready = condition(chosen.status, "Ready")
    if ready is None or ready.status != "True" or chosen.status.observed_generation != chosen.generation:
        console.note(f"{chosen.ref} is not Ready: its pods may serve an earlier state (kubectl tailrace status {chosen.ref.name})")
    console.note(f"compiled now in pod {pod.name}, against the databases that it reaches")
    if console.json:
        console.value([asdict(admission) for admission in admissions])
    else:
        show(admissions, console)
    return 0 if admissions else 1


def _given_up(kubectl: Kubectl, chosen: ApiObject, queries: set[str]) -> Iterator[str]:
    """What to say of queries whose callers shared statements until a pod's data plane stopped it, by asking all pods."""
    for name, answer in sorted(ask(kubectl, pods_of(kubectl, chosen)).items()):
        if isinstance(answer, str):
            yield f"whether pod {name} gave up shared statements can't be told: it {answer}"
        elif answer.gateway is not None:
            for each in answer.gateway.queries.stopped:
                if each.name in queries:
                    yield f"pod {name} gave up shared statements of {each.name}: {GIVEN_UP.get(each.reason, each.reason)}"


def _state(kubectl: Kubectl, chosen: ApiObject) -> ResourceState:
    readings = live_readings([chosen.document])
    items = [item for ref in sorted(config_maps(readings)) for item in kubectl.get("configmaps", ref.name, namespace=ref.namespace)]
    state = state_of([*readings, *live_readings(items)])
    if state.findings:
        raise NotFound("; ".join(f"{each.where}: {each.finding.message}" for each in state.findings[:5]))
    return state


def _keys(found: list[KeyObject]) -> tuple[list[ApiKey], list[str]]:
    """Those that can be read, and what is to be said of the others."""
    keys: list[ApiKey] = []
    broken: list[str] = []
    for key in found:
        entry = next(entry for reading in live_readings([key.document]) for entry in reading.entries)
        if isinstance(entry.content, ApiKey):
            keys.append(entry.content)
        else:
            broken.append(f"key {key.ref} sees nothing: it is not valid")
    return keys, broken


def _answered(printed: str, chosen: ApiObject, groups: Groups) -> list[Admission]:
    """The pod's answer, told for the real keys."""
    try:
        found = _ANSWER.validate_json(printed)
    except ValidationError:
        raise NotFound("the pod answered what this version can't read") from None
    who = {f"{chosen.ref.namespace}/{name_of(n)}": group.who for n, group in enumerate(groups.groups)}
    return [replace(each, key=who.get(each.key, each.key), place=str(chosen.ref)) for each in found]


def _why_none(wanted: str | None, queries: list[str]) -> str:
    if wanted is None or wanted in queries:
        return f"no role is granted {wanted}" if wanted is not None else "no role is granted a query"
    near = get_close_matches(wanted, queries, 1)
    return f"there is no query {wanted}: " + (f"did you mean {near[0]}?" if near else f"its names are {', '.join(queries[:20]) or 'none'}")
