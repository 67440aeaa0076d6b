"""`kubectl tailrace runs tail | verify`: `tailrace runs`, run in a pod of the API, which alone reaches the run store. IO: through kubectl exec.

Needs the right `pods/exec` (role `edit`). What runs there is the pod's own version.
"""

import argparse
from collections.abc import Sequence

from pydantic import ValidationError

from tailrace_gateway.cli import EXIT_USAGE
from tailrace_gateway.console import Console
from tailrace_gateway.plugin.kubectl import Kubectl, KubectlFailed
from tailrace_gateway.plugin.objects import ApiObject, Objects, PodObject
from tailrace_gateway.plugin.scope import NotFound, a_pod, choose, pods_of, read, ref_within
from tailrace_gateway.runs.verify import SpoolStatus

DATA = "/var/lib/tailrace"
GATEWAY, DATA_PLANE = "gateway", "dataplane"
PROGRAM = ("python", "-m", "tailrace_gateway")
NOT_BEGUN = ("Pending", "ContainerCreating", "PodInitializing")
"""Of a pod that has no spool yet."""
SPOOL = ("/tailrace-dataplane", "spool-status", "--data", DATA)


def main(given: argparse.Namespace, console: Console, kubectl: Kubectl) -> int:
    """Runs one of both; the exit code is that of the command in the pod."""
    found = read(kubectl)
    api = choose(found, given.api)
    output = ("--output", given.output)
    if given.action == "verify":
        spools, problems = read_spools(kubectl, sharing(found, api), console)
        code = kubectl.exec_shown(
            api.ref.namespace, a_pod(kubectl, api).name, GATEWAY, *PROGRAM, "runs", "verify", "--data", DATA, "--spool", "-", *output,
            given=merged(spools).model_dump_json(by_alias=True),
        )  # fmt: skip
        for problem in problems:
            console.note(problem)
        return code or (1 if problems else 0)
    words = ["--limit", str(given.limit)]
    if given.query is not None:
        words += ["--query", given.query]
    if given.key is not None:
        try:
            words += ["--key", str(ref_within(given.key, api.ref.namespace))]
        except ValueError as wrong:
            console.note(f"kubectl tailrace runs tail: --key: {wrong}")
            return EXIT_USAGE
    if given.status is not None:
        words += ["--status", str(given.status)]
    if given.follow:
        words += ["--follow", "--until-eof"]
    pod = a_pod(kubectl, api).name
    return kubectl.exec_shown(api.ref.namespace, pod, GATEWAY, *PROGRAM, "runs", "tail", "--data", DATA, *words, *output)


def sharing(found: Objects, api: ApiObject) -> list[ApiObject]:
    """The APIs whose runs are in the same store: their pods' spools belong to the proof."""
    return [each for each in found.apis if each.ref.namespace == api.ref.namespace and each.store == api.store]


def read_spools(kubectl: Kubectl, apis: Sequence[ApiObject], console: Console) -> tuple[list[tuple[str, SpoolStatus]], list[str]]:
    """Each pod's spool by the pod's name, and what could not be read. Before the store is: what is shipped meanwhile is then counted once."""
    spools: list[tuple[str, SpoolStatus]] = []
    problems: list[str] = []
    for pod in (pod for api in apis for pod in pods_of(kubectl, api) if pod.why not in NOT_BEGUN):
        console.progress(f"reading the spool of {pod.name}…")
        try:
            spools.append((pod.name, read_spool(kubectl, pod)))
        except (KubectlFailed, NotFound) as failed:
            problems.append(f"the spool of {pod.name} could not be read: {failed}")
    return spools, problems


def read_spool(kubectl: Kubectl, pod: PodObject) -> SpoolStatus:
    """One pod's, by the data plane's program in it."""
    printed = kubectl.exec(pod.api.namespace, pod.name, DATA_PLANE, *SPOOL)
    try:
        return SpoolStatus.model_validate_json(printed)
    except ValidationError:
        raise NotFound("its version can't be read here") from None


def merged(spools: Sequence[tuple[str, SpoolStatus]]) -> SpoolStatus:
    """All of them as one: no two pods write one epoch."""
    return SpoolStatus(
        segments=sum(each.segments for _, each in spools),
        bytes=sum(each.bytes for _, each in spools),
        unreadable=tuple(f"{pod}/{name}" for pod, each in spools for name in each.unreadable),
        torn=sum(each.torn for _, each in spools),
        epochs=tuple(epoch for _, each in spools for epoch in each.epochs),
    )
