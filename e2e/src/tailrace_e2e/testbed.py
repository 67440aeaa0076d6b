"""The single-node cluster beside this clone, where it is the one that is tested. IO: its program `cluster` and its audit log."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace_e2e.kubectl import command


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the API server answered, from its audit log."""

    user: str
    verb: str
    group: str
    resource: str
    """With its subresource, as in `deployments/scale`; empty for paths such as /healthz."""
    namespace: str
    name: str
    code: int
    is_allowed: bool
    """Whether the user had the right; what was then refused for another reason (a namespace that goes) counts as allowed."""
    at: str
    """When it was received: RFC 3339 with microseconds."""
    agent: str


@dataclass(frozen=True, slots=True)
class Bed:
    """The testbed's program and the folder where it keeps the running cluster."""

    program: Path
    run: Path

    def node(self, *words: str, timeout_s: float = 60) -> str:
        """Runs a program in the node's network, where pods, Services and cluster DNS are in reach."""
        return command(str(self.program), "exec", "--", *words, timeout_s=timeout_s).stdout

    def requests(self, since: str = "") -> Iterator[Request]:
        """What the API server was asked and had answered, in order, from the moment `since` (RFC 3339, UTC) on."""
        log = self.run / "log"
        # What was rotated away is called audit-TIME.log.
        for part in (*sorted(log.glob("audit-*.log")), log / "audit.log"):
            yield from _read(part, since)


def _read(log: Path, since: str) -> Iterator[Request]:
    with log.open() as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # The last line may be half written.
            if event["requestReceivedTimestamp"] < since:
                continue
            target = event.get("objectRef", {})
            resource = target.get("resource", "")
            if target.get("subresource"):
                resource += f"/{target['subresource']}"
            yield Request(
                user=event["user"].get("username", ""),
                verb=event["verb"],
                group=target.get("apiGroup", ""),
                resource=resource,
                namespace=target.get("namespace", ""),
                name=target.get("name", ""),
                code=event.get("responseStatus", {}).get("code", 0),
                is_allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid",
                at=event["requestReceivedTimestamp"],
                agent=event.get("userAgent", ""),
            )


def found() -> Bed | None:
    """The testbed, when the tests run on it: `e2e/run` says so by TAILRACE_E2E_TESTBED, the path of its program."""
    program = os.environ.get("TAILRACE_E2E_TESTBED", "")
    if not program:
        return None
    return Bed(Path(program), Path(os.environ.get("TAILRACE_TESTBED", "/var/tmp/tailrace-testbed")) / "run")  # noqa: S108 (its default)
