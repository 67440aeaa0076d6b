"""`kubectl tailrace status`. IO: through kubectl; each pod's admin port is asked through a port that is forwarded for the moment.

Forwarded, not by the API server's proxy: the pods' NetworkPolicy lets only the operator's and Prometheus' namespaces to that port, which a
forwarded connection, made within the pod, does not meet. Both need rights of the role `edit`.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from tailrace_gateway.console import Console
from tailrace_gateway.plugin.kubectl import Kubectl, KubectlFailed
from tailrace_gateway.plugin.objects import PodObject, pod_status, pods
from tailrace_gateway.plugin.scope import LABEL, NotFound, choose, read, read_foreign_keys
from tailrace_gateway.plugin.tree import Answer, as_json, show, view

ADMIN_PORT = 9090
ANSWER_S = 10.0
AT_ONCE = 8
ANSWER_LIMIT_BYTES = 4 << 20


def main(given: argparse.Namespace, console: Console, kubectl: Kubectl) -> int:
    """Prints the tree; 1 when an API or a key in it is not Ready, or a pod could not be asked."""
    console.progress("reading the cluster…")
    found, notes = read(kubectl, everywhere=given.everywhere), list[str]()
    if given.name is not None and not given.everywhere:
        choose(found, given.name)
    if not given.everywhere:
        found, notes = read_foreign_keys(kubectl, found)
    scope = ("--all-namespaces",) if given.everywhere else ()
    there = pods(kubectl.get("pods", f"--selector={LABEL}", *scope)) if found.apis else []
    wanted = [pod for pod in there if given.name in (None, pod.api.name) and any(api.uid == pod.uid for api in found.apis)]
    views = view(found, wanted, ask(kubectl, wanted) if given.pods else None, given.name)
    if not views:
        raise NotFound("there is no QueryAPI" + ("" if given.everywhere else " in this namespace; say -n NAMESPACE or -A"))
    for note in notes:
        console.note(note)
    if console.json:
        console.value(as_json(views))
    else:
        show(views, console)
    return 0 if all(each.well for each in views) else 1


def ask(kubectl: Kubectl, wanted: Sequence[PodObject]) -> dict[str, Answer]:
    """What each running pod says, a few at once."""
    running = [pod for pod in wanted if pod.why == "Running"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(lambda pod: _ask(kubectl, pod), running)
        return {f"{pod.api.namespace}/{pod.name}": answer for pod, answer in zip(running, answers, strict=True)}


def _ask(kubectl: Kubectl, pod: PodObject) -> Answer:
    try:
        with (
            kubectl.forward(f"pod/{pod.name}", ADMIN_PORT, pod.api.namespace) as port,
            httpx.Client(trust_env=False, timeout=ANSWER_S) as client,
        ):
            answer = client.get(f"http://127.0.0.1:{port}/status")
    except KubectlFailed as failed:
        return f"could not be asked: {failed}"
    except httpx.HTTPError as error:
        return f"did not answer ({type(error).__name__})"
    found = pod_status(answer.content) if len(answer.content) <= ANSWER_LIMIT_BYTES else None
    return found if found is not None else f"answered what this version can't read (HTTP {answer.status_code})"
