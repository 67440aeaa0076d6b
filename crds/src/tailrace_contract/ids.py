"""Names and references. Pure; a name that breaks the rules is refused, never shortened.

Names are at most 50 characters so that everything derived from them (`NAME-gateway`, labels, file names) stays within 63.
"""

import re
from dataclasses import dataclass
from typing import Annotated, NewType

from pydantic import Field

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""Resources, connections and roles."""

QUERY_PATTERN = "^[a-z]([-_a-z0-9]*[a-z0-9])?$"
"""Saved queries: as they stand in the URL, so an underscore is welcome."""

PARAMETER_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"
"""Parameters and columns of a page key: as they stand behind the colon in SQL."""

GLOB_PATTERN = "^[-_a-z0-9*]+$"
"""Query names of a role; `*` stands for any run of characters."""

SECRET_NAME_PATTERN = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
"""Names of Secrets and ConfigMaps, as Kubernetes has them."""

NAMESPACE_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""Names of namespaces, as Kubernetes has them."""

SECRET_KEY_PATTERN = "^[-._a-zA-Z0-9]+$"
"""Keys within a Secret, as Kubernetes has them."""

LABEL_KEY_PATTERN = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
"""Keys and values of labels, as Kubernetes has them."""

LABEL_KEY_LENGTH = 317
"""Characters that a label's key may have: a prefix of 253, a slash, a name of 63."""

NAME_LENGTH = 50
"""Characters that a name may have."""

SECRET_NAME_LENGTH = 253
"""Characters that the name of a Secret, or a key in one, may have."""

Name = Annotated[str, Field(pattern=NAME_PATTERN, min_length=1, max_length=NAME_LENGTH)]
QueryName = Annotated[str, Field(pattern=QUERY_PATTERN, min_length=1, max_length=NAME_LENGTH)]
ParameterName = Annotated[str, Field(pattern=PARAMETER_PATTERN, min_length=1, max_length=NAME_LENGTH)]
QueryGlob = Annotated[str, Field(pattern=GLOB_PATTERN, min_length=1, max_length=NAME_LENGTH)]
SecretName = Annotated[str, Field(pattern=SECRET_NAME_PATTERN, min_length=1, max_length=SECRET_NAME_LENGTH)]
SecretKey = Annotated[str, Field(pattern=SECRET_KEY_PATTERN, min_length=1, max_length=SECRET_NAME_LENGTH)]
Namespace = Annotated[str, Field(pattern=NAMESPACE_PATTERN, min_length=1, max_length=63)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=LABEL_KEY_LENGTH)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN, max_length=63)]

KeyId = NewType("KeyId", str)
"""`namespace/name` of an ApiKey: what a run records."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object: its namespace and name. Text form `namespace/name`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def is_name(text: str) -> bool:
    """Whether it may name a resource."""
    return len(text) <= NAME_LENGTH and re.fullmatch(NAME_PATTERN, text) is not None


def is_file_part(text: str) -> bool:
    """Whether a Secret's name or key may become one part of a path: nothing that could leave its directory."""
    return 0 < len(text) <= SECRET_NAME_LENGTH and re.fullmatch(r"[-._a-zA-Z0-9]+", text) is not None and text not in (".", "..")


def parse_ref(text: str, namespace: str = "default") -> Ref:
    """Reads `name` or `namespace/name`; ValueError when either part is not a name."""
    head, slash, tail = text.rpartition("/")
    ref = Ref(head if slash else namespace, tail)
    if not is_name(ref.name) or re.fullmatch(SECRET_NAME_PATTERN, ref.namespace) is None:
        raise ValueError("not a name: write NAME or NAMESPACE/NAME")
    return ref


def glob_matches(glob: str, name: str) -> bool:
    """Whether a role's entry covers a query name. Linear in both lengths (no backtracking blow-up)."""
    head, *rest = glob.split("*")
    if not rest:
        return glob == name
    if not name.startswith(head):
        return False
    position = len(head)
    *middle, tail = rest
    for part in middle:
        found = name.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(name) - position >= len(tail) and name.endswith(tail)
