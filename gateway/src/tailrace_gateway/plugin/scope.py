"""Which QueryAPI, and where its pods are. IO: through kubectl.

Rejects with `KubectlFailed` what kubectl rejects, and with `NotFound` what isn't there.
"""

from collections.abc import Collection, Sequence

from tailrace_contract.ids import Ref
from tailrace_contract.resource import GROUP

from tailrace_gateway.plugin.kubectl import Kubectl, KubectlFailed, Object
from tailrace_gateway.plugin.objects import ApiObject, Objects, PodObject, objects, pods

KINDS = f"queryapis.{GROUP},apikeys.{GROUP},runstores.{GROUP}"
LABEL = "tailrace.dev/queryapi"


class NotFound(Exception):
    """There is no such thing; the text is for people."""


def read(kubectl: Kubectl, *, everywhere: bool = False) -> Objects:
    """All objects of our kinds, and those keys of other namespaces that may be read."""
    return objects(kubectl.get(KINDS, *(("--all-namespaces",) if everywhere else ())))


def read_foreign_keys(kubectl: Kubectl, found: Objects) -> tuple[Objects, list[str]]:
    """Also the keys of other namespaces that an API admits, and what is to be said of those that the user can't read."""
    own = {api.ref.namespace for api in found.apis}
    others = {each.name for api in found.apis for each in api.status.namespaces} - own
    items, notes = _keys_in(kubectl, others, "not shown")
    return Objects(found.apis, (*found.keys, *objects(items).keys), found.stores), notes


def admitted_by(items: Sequence[Object]) -> dict[Ref, frozenset[str]]:
    """By QueryAPI, the other namespaces whose keys it admits."""
    return {api.ref: frozenset(each.name for each in api.status.namespaces) for api in objects(items).apis}


def foreign_keys(kubectl: Kubectl, items: Sequence[Object]) -> tuple[list[Object], list[str]]:
    """ApiKeys of other namespaces that name one of these APIs and stand where it admits them, and what is to be said of those that can't be read."""
    admitted = admitted_by(items)
    refs = set(admitted)
    others = frozenset[str]().union(*admitted.values()) - {ref.namespace for ref in refs}
    items, notes = _keys_in(kubectl, others, "left out")
    return [each for each in items if any(key.api in refs for key in objects([each]).keys)], notes


def _keys_in(kubectl: Kubectl, namespaces: Collection[str], fate: str) -> tuple[list[Object], list[str]]:
    """All ApiKeys of these namespaces, and a note of each namespace whose can't be read: what becomes of them is their `fate`."""
    items: list[Object] = []
    notes: list[str] = []
    for namespace in sorted(namespaces):
        try:
            items += kubectl.get(f"apikeys.{GROUP}", namespace=namespace)
        except KubectlFailed as failed:
            notes.append(f"keys of namespace {namespace} are {fate}: {failed}")
    return items, notes


def choose(found: Objects, name: str | None) -> ApiObject:
    """The QueryAPI of this name, or the only one."""
    if name is not None:
        chosen = next((api for api in found.apis if api.ref.name == name), None)
        if chosen is None:
            raise NotFound(f"there is no QueryAPI {name}" + _names(found.apis))
        return chosen
    if not found.apis:
        raise NotFound("there is no QueryAPI in this namespace; say -n NAMESPACE")
    if len(found.apis) > 1:
        raise NotFound(f"there are {len(found.apis)} QueryAPIs; say --api NAME" + _names(found.apis))
    return found.apis[0]


def _names(apis: Sequence[ApiObject]) -> str:
    return f" ({', '.join(str(api.ref) for api in apis[:20])})" if apis else " in this namespace; say -n NAMESPACE"


def pods_of(kubectl: Kubectl, api: ApiObject) -> list[PodObject]:
    """Its pods, ready ones first."""
    found = pods(kubectl.get("pods", f"--selector={LABEL}={api.ref.name}", namespace=api.ref.namespace))
    return sorted((pod for pod in found if pod.uid == api.uid), key=lambda pod: (not pod.ready, pod.going, pod.name))


def a_pod(kubectl: Kubectl, api: ApiObject) -> PodObject:
    """One that runs, a ready one if there is one."""
    found = [pod for pod in pods_of(kubectl, api) if pod.why == "Running"]
    if not found:
        raise NotFound(f"no pod of {api.ref} runs: see kubectl tailrace status {api.ref.name} -n {api.ref.namespace}")
    return found[0]


def ref_within(text: str, namespace: str) -> Ref:
    """[NAMESPACE/]NAME; ValueError when it is neither."""
    parts = text.split("/")
    if len(parts) > 2 or not all(parts):
        raise ValueError(f"{text!r} is not [NAMESPACE/]NAME")
    return Ref(*parts) if len(parts) == 2 else Ref(namespace, text)
