"""Which rights were granted, which were used, and what that leaves. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace_e2e.kubectl import Object
from tailrace_e2e.testbed import Request


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource (with its subresource) of one API group; the core group is empty."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        """`patch deployments/scale.apps`."""
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def granted(roles: Iterable[Object]) -> set[Right]:
    """What the rules of Roles and ClusterRoles allow, one by one."""
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role.get("rules") or ()
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def used(requests: Iterable[Request], user: str) -> set[Right]:
    """What a user asked for and had the right to."""
    return {_right(each) for each in requests if each.user == user and each.resource and each.is_allowed}


def forbidden(requests: Iterable[Request], user: str, away: Iterable[tuple[str, str]] = ()) -> list[str]:
    """What a user asked for without having the right to, each once, with where.

    `away`: from when to when (as the log writes moments) the rights themselves were being taken away.
    """
    spans = tuple(away)
    return sorted(
        {
            f"{_right(each)} in {each.namespace or 'the cluster'}"
            for each in requests
            if each.user == user and not each.is_allowed and not any(begin <= each.at <= end for begin, end in spans)
        }
    )


def _right(request: Request) -> Right:
    return Right(request.group, request.resource, request.verb)
