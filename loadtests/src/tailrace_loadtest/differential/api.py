"""What the generator of calls needs to know of a QueryAPI: its queries, parameters and roles. Read from the YAML; pure past that."""

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tailrace_contract import document
from tailrace_contract.apikey import ApiKey
from tailrace_contract.plan import ParamType
from tailrace_contract.queryapi import Query, QueryAPI

Value = str | list[str] | None
"""A parameter's value: its URL text, a list's elements, or null."""

Choices = dict[str, dict[str, Any]]
"""By parameter: {from, to} or {values}."""


@dataclass(frozen=True, slots=True)
class Param:
    """One declared parameter."""

    name: str
    type: ParamType
    array: bool
    required: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved query, with what good calls say."""

    name: str
    write: bool
    paged: bool
    cached: bool
    """Its answers are kept for a while."""
    stores: bool
    """Its answers depend on earlier writes: asked in one order on both sides."""
    params: tuple[Param, ...]
    choices: Choices


@dataclass(frozen=True, slots=True)
class Api:
    """One QueryAPI under test."""

    namespace: str
    name: str
    queries: tuple[Saved, ...]
    roles: dict[str, str]
    """The plain key of every role: role → the Secret that holds it."""
    bound: dict[str, frozenset[str]]
    """Secrets of keys that fix parameters, and which."""
    refused: tuple[str, ...]
    """Secrets of keys that are expired, suspended, or for other networks."""
    secrets: dict[str, str]
    """By connection: the Secret with its URL."""

    def good(self) -> list[str]:
        """Secrets of keys that work."""
        return [*self.roles.values(), *self.bound]


def _saved(query: Query, choices: Choices, ordered: tuple[str, ...]) -> Saved:
    params = tuple(Param(name, each.element_type, each.array, each.required) for name, each in query.params.items())
    stores = query.write or any(fnmatch.fnmatch(query.name, pattern) for pattern in ordered)
    return Saved(query.name, query.write, query.page is not None, query.cache is not None, stores, params, choices)


def read(path: Path, ordered: tuple[str, ...] = ()) -> Api:
    """Reads NAME.yaml and NAME.values.yaml; `ordered` names queries (globs) that read what calls write."""
    documents = [document.read(each) for each in yaml.safe_load_all(path.read_text())]
    choices = yaml.safe_load(path.with_suffix(".values.yaml").read_text())
    spec = next(each for each in documents if isinstance(each, QueryAPI))
    keys = [each for each in documents if isinstance(each, ApiKey)]
    roles: dict[str, str] = {}
    bound: dict[str, frozenset[str]] = {}
    refused: list[str] = []
    for key in keys:
        secret = str(key.spec.secret_name)
        foreign = any(cidr.startswith("10.") for cidr in key.spec.allowed_cidrs)
        if key.spec.suspended or key.spec.expires_at is not None or foreign:
            refused.append(secret)
        elif key.spec.bind:
            bound[secret] = frozenset(key.spec.bind)
        else:
            roles[str(key.spec.role)] = secret
    queries = tuple(_saved(query, choices.get(query.name, {}), ordered) for query in spec.spec.queries)
    secrets = {each.name: each.url_from.secret_key_ref.name for each in spec.spec.connections}
    return Api(spec.metadata.namespace, spec.metadata.name, queries, roles, bound, tuple(refused), secrets)
