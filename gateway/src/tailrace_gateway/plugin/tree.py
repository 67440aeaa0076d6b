"""The tree of `kubectl tailrace status`: an API, its pods and what each has acknowledged, its keys. Pure.

Refused are only shapes; what a pod could not be asked stands in the tree as such and is never filled in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from tailrace_contract.status import Condition, RefusedQuery, Revocation, Status

from tailrace_gateway import console as ink
from tailrace_gateway.console import Console, columns
from tailrace_gateway.plugin.objects import ApiObject, KeyObject, Objects, PodObject, PodStatus, StoreObject, condition

KEYS_SHOWN = 50
NEGATIVE = ("Reconciling", "Stalled")
"""Conditions that are there only while they are true, and then something is not done."""

Answer = PodStatus | str
"""What a pod said, or why it was not asked or did not answer."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. `generation`: of the QueryAPI that it runs on, None when it is not known; `behind`: what it has not acknowledged yet."""

    pod: PodObject
    said: PodStatus | None
    problem: str
    generation: int | None
    keys: tuple[tuple[str, str], ...]
    """Namespace and resourceVersion."""
    configs: tuple[tuple[str, str], ...]
    """ConfigMap and fingerprint."""
    behind: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ApiView:
    """One API with all that belongs to it."""

    api: ApiObject
    store: StoreObject | None
    pods: tuple[PodView, ...]
    keys: tuple[KeyObject, ...]
    asked: bool
    """Whether pods were to be asked."""

    @property
    def well(self) -> bool:
        """Ready and so are its keys, but those that are refused because that is wanted; and every pod that was asked has answered."""
        things: list[Status] = [self.api.status, *(key.status for key in self.keys if not is_revoked(key))]
        ready = all((found := condition(each, "Ready")) is not None and found.status == "True" for each in things)
        current = self.api.status.observed_generation == self.api.generation
        return ready and current and not any(view.problem for view in self.pods if self.asked and view.pod.ready)


def is_revoked(key: KeyObject) -> bool:
    """Whether it is refused by its own spec, and every pod has dropped it."""
    found = condition(key.status, "Ready")
    done, _, of = (key.status.revoked_on or "").partition("/")
    return found is not None and found.reason in ("Suspended", "Expired") and bool(done) and done == of


def view(found: Objects, pods: Sequence[PodObject], answers: Mapping[str, Answer] | None, wanted: str | None = None) -> list[ApiView]:
    """The APIs (or the one that is `wanted`). `answers`: by NAMESPACE/POD; None when no pod was to be asked."""
    stores = {store.ref: store for store in found.stores}
    views = []
    for api in found.apis:
        if wanted not in (None, api.ref.name):
            continue
        keys = tuple(found.keys_of(api.ref))
        mine = [pod for pod in pods if pod.uid == api.uid]
        shown = tuple(_pod(pod, api, keys, (answers or {}).get(f"{api.ref.namespace}/{pod.name}", "")) for pod in mine)
        store = next((one for ref, one in stores.items() if (ref.namespace, ref.name) == (api.ref.namespace, api.store)), None)
        views.append(ApiView(api, store, shown, keys, answers is not None))
    return views


def _pod(pod: PodObject, api: ApiObject, keys: Sequence[KeyObject], answer: Answer) -> PodView:
    if isinstance(answer, str):
        return PodView(pod, None, answer, None, (), (), ())
    sources = answer.snapshot.sources if answer.snapshot is not None else ()
    generation = next((each.generation for each in sources if each.kind == "QueryAPI" and each.uid == api.uid), None)
    versions = {each.namespace: each.resource_version for each in sources if each.kind == "ApiKeys"}
    configs = tuple((each.name, each.resource_version) for each in sources if each.kind == "Config")
    behind = [] if generation == api.generation else [f"generation {api.generation}"]
    behind += [
        f"key {key.ref}" for key in keys if key.ref.namespace in versions and _older(versions[key.ref.namespace], key.resource_version)
    ]
    return PodView(pod, answer, "", generation, tuple(sorted(versions.items())), configs, tuple(behind))


def _older(seen: str, version: str) -> bool:
    return seen.isdigit() and version.isdigit() and int(seen) < int(version)


def notable(status: Status) -> list[Condition]:
    """Conditions that say that something is not as it should be."""
    return [each for each in status.conditions if (each.type in NEGATIVE) == (each.status == "True")]


def show(views: Sequence[ApiView], console: Console) -> None:
    """For people."""
    for n, each in enumerate(views):
        if n:
            console.line()
        for line in _lines(each, console):
            console.line(line)


def _lines(each: ApiView, console: Console) -> Iterator[str]:
    api, status = each.api, each.api.status
    ready = condition(status, "Ready")
    state = _state(ready, console)
    seen = "" if status.observed_generation == api.generation else f" (the operator has seen {_generation(status.observed_generation)})"
    yield f"{console.paint(str(api.ref), ink.BOLD)}  {state}  generation {api.generation}{seen}" + (f"  {status.url}" if status.url else "")
    yield from _conditions(status, console, "  ")
    if each.store is not None:
        yield f"├─ runs      RunStore {each.store.ref.name} ({each.store.backend or 'unknown'})  {_state(condition(each.store.status, 'Ready'), console)}"
        yield from _conditions(each.store.status, console, "│    ")
    else:
        yield f"├─ runs      RunStore {api.store}: " + console.paint("not there", ink.YELLOW)
    if status.queries is not None:
        count = f"{status.queries.served} of {status.queries.total} served"
        yield "├─ queries   " + (count if status.queries.served == status.queries.total else console.paint(count, ink.YELLOW))
        for line in _refused(status.queries.refused):
            yield f"│    {console.paint('refused', ink.RED)}  {line}"
        more = status.queries.total - status.queries.served - len({unit.name for unit in status.queries.refused})
        if more > 0:
            yield f"│    and {more} more"
    yield f"├─ pods      loaded by {status.loaded_by or '0/0'}"
    for line in columns([_pod_row(view, each.asked) for view in each.pods], "│    "):
        yield line
    for view in each.pods:
        if view.behind:
            named = ", ".join(view.behind[:5]) + (", …" if len(view.behind) > 5 else "")
            yield f"│    {view.pod.name}: {console.paint('behind', ink.YELLOW)}: has not acknowledged {named}"
        if view.problem:
            yield f"│    {view.pod.name}: {console.paint(view.problem, ink.YELLOW)}"
    gone = status.revocation
    yield f"{'├' if gone else '└'}─ keys      {len(each.keys)}"
    edge = "│" if gone else " "
    bad = [key for key in each.keys if notable(key.status)]
    listed = (bad + [key for key in each.keys if not notable(key.status)])[:KEYS_SHOWN]
    rows = columns([_key_row(key) for key in listed], f"{edge}    ")
    for key, line in zip(listed, rows, strict=True):
        yield line
        yield from _conditions(key.status, console, f"{edge}      ")
    if len(each.keys) > len(listed):
        yield f"{edge}    and {len(each.keys) - len(listed)} more (-o json lists all)"
    if gone:
        yield "└─ deleted keys"
        yield from columns([(one.key, f"dropped by {one.confirmed_by}") for one in gone], "     ")


def _generation(observed: int) -> str:
    return "none" if observed < 0 else str(observed)


def _state(ready: Condition | None, console: Console) -> str:
    if ready is None:
        return console.paint("no status yet", ink.YELLOW)
    if ready.status == "True":
        return console.paint("Ready", ink.GREEN)
    return console.paint("not Ready" if ready.status == "False" else "Ready unknown", ink.RED if ready.status == "False" else ink.YELLOW)


def _conditions(status: Status, console: Console, indent: str) -> Iterator[str]:
    for each in notable(status):
        yield f"{indent}{console.paint(f'{each.type} {each.status} {each.reason}', ink.YELLOW)}: {each.message}"


def _refused(units: Sequence[RefusedQuery]) -> Iterator[str]:
    for unit in units:
        yield (
            f"{unit.name}"
            + (f" for role {unit.role}" if unit.role else "")
            + f": {unit.code}"
            + (f": {unit.message}" if unit.message else "")
        )


def _pod_row(view: PodView, asked: bool) -> tuple[str, ...]:
    pod = view.pod
    state = "ending" if pod.going else "ready" if pod.ready else f"not ready ({pod.why})"
    if view.said is None:
        return pod.name, state, "", "", "", "", ""
    said = view.said
    parts = [f"keys {namespace}@{version}" for namespace, version in view.keys]
    parts += [f"{name}@{version[:8]}" for name, version in view.configs]
    plan = f"for {_age(said.snapshot.age_seconds)}" if said.snapshot is not None else "no plan yet"
    notes = [] if said.gateway_up else ["Python is down"]
    notes += [f"{said.runs.waiting} runs to ship"] if said.runs.waiting else []
    return pod.name, state, said.version, f"generation {view.generation or '?'}", ", ".join(parts), plan, ", ".join(notes)


def _age(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _key_row(key: KeyObject) -> tuple[str, ...]:
    ready = condition(key.status, "Ready")
    reach = f"revoked on {key.status.revoked_on}" if key.status.revoked_on else f"loaded by {key.status.loaded_by or '0/0'}"
    return (
        str(key.ref),
        f"role {key.role}",
        ready.reason if ready is not None else "no status yet",
        reach,
        ", ".join(one.id for one in key.status.keys),
    )


def as_json(views: Sequence[ApiView]) -> JsonValue:
    """For programs."""
    return [_json(each) for each in views]


def _json(each: ApiView) -> JsonValue:
    status = each.api.status
    queries = status.queries
    return {
        "api": str(each.api.ref),
        "ready": each.well,
        "generation": each.api.generation,
        "observedGeneration": status.observed_generation,
        "url": status.url,
        "loadedBy": status.loaded_by,
        "conditions": _condition_json(status),
        "runStore": {
            "name": each.api.store,
            "backend": each.store.backend if each.store is not None else None,
            "conditions": _condition_json(each.store.status) if each.store is not None else [],
        },
        "queries": None
        if queries is None
        else {
            "total": queries.total,
            "served": queries.served,
            "refused": [{"name": one.name, "role": one.role, "code": one.code, "message": one.message} for one in queries.refused],
        },
        "pods": [_pod_json(view) for view in each.pods],
        "keys": [_key_json(key) for key in each.keys],
        "deletedKeys": [_revocation_json(one) for one in status.revocation],
    }


def _condition_json(status: Status) -> JsonValue:
    return [{"type": one.type, "status": one.status, "reason": one.reason, "message": one.message} for one in status.conditions]


def _revocation_json(one: Revocation) -> JsonValue:
    return {"key": one.key, "confirmedBy": one.confirmed_by}


def _pod_json(view: PodView) -> JsonValue:
    said = view.said
    snapshot = said.snapshot if said is not None else None
    return {
        "name": view.pod.name,
        "ready": view.pod.ready,
        "ending": view.pod.going,
        "problem": view.problem,
        "version": said.version if said is not None else None,
        "started": said.started if said is not None else None,
        "gatewayUp": said.gateway_up if said is not None else None,
        "snapshot": {"version": snapshot.version, "ageSeconds": snapshot.age_seconds} if snapshot is not None else None,
        "generation": view.generation,
        "keys": [{"namespace": namespace, "resourceVersion": version} for namespace, version in view.keys],
        "configs": [{"name": name, "fingerprint": version} for name, version in view.configs],
        "behind": list(view.behind),
        "runsWaiting": said.runs.waiting if said is not None else None,
    }


def _key_json(key: KeyObject) -> JsonValue:
    return {
        "key": str(key.ref),
        "role": key.role,
        "loadedBy": key.status.loaded_by,
        "revokedOn": key.status.revoked_on,
        "ids": [one.id for one in key.status.keys],
        "conditions": _condition_json(key.status),
    }
