"""What keeps a resource from becoming ready, as found by a reconcile: each with the condition that it is told under. Pure.

A problem is *stalled* when only somebody's change of the resource or of what it refers to can mend it, else it is waited for. Nothing
of a Secret's value is ever in a message: URLs are judged here, and only the faulty parameter's name comes out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tailrace_contract import mysql_uri, postgres_uri
from tailrace_contract.findings import Finding
from tailrace_contract.uri_parts import Files, UriError

from tailrace_operator.conditions import Type, listed
from tailrace_operator.errors import ClusterError, Conflict, Forbidden, Foreign, Invalid
from tailrace_operator.references import References, SecretKey

_URL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Problem:
    """One of them. `reason` is one word for programs, `message` is for people."""

    type: Type
    reason: str
    message: str
    is_stalled: bool


def invalid_spec(findings: Iterable[Finding]) -> Problem:
    """The spec breaks rules that CEL can't check: what `tailrace check` would say."""
    texts = [
        f"{each.place}: {each.message.partition(': ')[2] or each.message}" + (f" ({each.hint})" if each.hint else "") for each in findings
    ]
    return Problem(Type.ACCEPTED, "InvalidSpec", listed(texts), True)


def run_store_missing(name: str) -> Problem:
    """The RunStore is not there (yet)."""
    return Problem(Type.RESOLVED_REFS, "RunStoreNotFound", f"RunStore {name} is not there", False)


def run_store_invalid(name: str) -> Problem:
    """The RunStore is there and broken: its own status says how."""
    return Problem(Type.RESOLVED_REFS, "RunStoreInvalid", f"RunStore {name} is not valid: see its status", True)


def embedded_needs_one_pod(name: str, replicas: int) -> Problem:
    """Each pod would keep its own runs, and nobody would see all."""
    message = (
        f"RunStore {name} is embedded, which is for one pod, and replicas is {replicas}: set replicas to 1 or use a RunStore with postgres"
    )
    return Problem(Type.ACCEPTED, "EmbeddedNeedsOnePod", message, True)


def config_maps_missing(names: Iterable[str]) -> tuple[Problem, ...]:
    """ConfigMaps of queriesFrom that are not there (yet)."""
    return tuple(Problem(Type.RESOLVED_REFS, "ConfigMapNotFound", f"ConfigMap {name} is not there", False) for name in sorted(names))


def foreign(error: Foreign) -> Problem:
    """An object of a name that is needed belongs to somebody else."""
    return Problem(Type.PROGRAMMED, "ForeignObject", f"{error.message}: {error.hint}", True)


def write_failed(error: ClusterError) -> Problem:
    """The API server did not take a write. It is tried again; whether that can help depends on why."""
    if isinstance(error, Forbidden):
        reason, stalled = "Forbidden", not error.is_terminating
    elif isinstance(error, Invalid):
        reason, stalled = "RefusedByServer", True
    elif isinstance(error, Conflict):
        reason, stalled = "Conflict", False
    else:
        reason, stalled = "ServerUnavailable", False
    return Problem(Type.PROGRAMMED, reason, error.message + (f": {error.hint}" if error.hint else ""), stalled)


Secrets = Mapping[str, Mapping[str, bytes] | None]
"""Data of Secrets by name; None: not there."""


def of_secrets(references: References, secrets: Secrets) -> tuple[Problem, ...]:
    """Secrets and keys that are missing, and URLs that no pod could use."""
    problems = []
    told = set()
    for each in references.keys:
        data = secrets.get(each.secret)
        if data is None:
            if each.secret not in told:
                told.add(each.secret)
                message = f"Secret {each.secret} ({each.place}) is not there"
                problems.append(Problem(Type.RESOLVED_REFS, "SecretNotFound", message, False))
        elif each.key not in data:
            message = f"Secret {each.secret} has no key {each.key} ({each.place})"
            problems.append(Problem(Type.RESOLVED_REFS, "SecretKeyNotFound", message, False))
        elif each.is_url and (problem := _of_url(each, data[each.key])) is not None:
            problems.append(problem)
    return tuple(problems)


_PARSERS: dict[str, Callable[[str, Files], object]] = {
    "postgres": postgres_uri.parse,
    "postgresql": postgres_uri.parse,
    "mysql": mysql_uri.parse,
}


def _of_url(reference: SecretKey, value: bytes) -> Problem | None:
    where = f"Secret {reference.secret}, key {reference.key} ({reference.place})"
    try:
        text = value.decode().strip(" \t\r\n") if len(value) <= _URL_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    scheme, colon, _ = text.partition(":")
    if colon and scheme == "sqlite":
        message = f"{where}: a sqlite URL is for local use only; a pod has no such file"
        return Problem(Type.RESOLVED_REFS, "SqliteInCluster", message, True)
    parse = _PARSERS.get(scheme) if colon else None
    if parse is None:
        return Problem(Type.RESOLVED_REFS, "InvalidUrl", f"{where}: not a database's URL: write postgresql://… or mysql://…", True)
    try:
        parse(text, _files(reference))
    except UriError as error:
        return Problem(Type.RESOLVED_REFS, "InvalidUrl", f"{where}: {error}", True)
    return None


def _files(reference: SecretKey) -> Files:
    """Whether they are given decides; where they are does not."""
    certificate = "/tls" if reference.has_certificate else None
    return Files("/ca" if reference.has_ca else None, certificate, certificate)
