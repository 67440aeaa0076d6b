"""Who the gateway is in the cluster and what it may read: ServiceAccount, Role, RoleBindings. Pure.

It reads its own QueryAPI, and ApiKeys of its own namespace and of those that allowKeysFrom admits; no Secret, nothing else.
"""

from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import GROUP

from tailrace_operator.manifest import API_KEY, QUERY_API, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Manifest, Object
from tailrace_operator.render.facts import Facts
from tailrace_operator.render.names import READER_ROLE, gateway_name, labels, metadata, reader_name

_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]


def render(api: QueryAPI, facts: Facts) -> tuple[Manifest, ...]:
    """In the QueryAPI's namespace, and a RoleBinding in each namespace that is admitted.

    The latter have no owner, which could not stand in another namespace: they are swept by label and UID.
    """
    name = gateway_name(api)
    account = {
        "apiVersion": SERVICE_ACCOUNT.api_version,
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": metadata(api, facts.uid, name),
        "automountServiceAccountToken": False,
    }
    role = {
        "apiVersion": ROLE.api_version,
        "kind": ROLE.kind,
        "metadata": metadata(api, facts.uid, name),
        "rules": [
            # A list or watch by field selector metadata.name=NAME is authorised by resourceNames.
            {"apiGroups": [GROUP], "resources": [QUERY_API.plural], "resourceNames": [api.metadata.name], "verbs": _READ},
            {"apiGroups": [GROUP], "resources": [API_KEY.plural], "verbs": _READ},
        ],
    }
    here = _binding(metadata(api, facts.uid, name), "Role", name, api)
    there = [
        _binding(
            {"name": reader_name(facts.uid), "namespace": namespace, "labels": labels(api, facts.uid)}, "ClusterRole", READER_ROLE, api
        )
        for namespace in sorted(set(facts.namespaces) - {api.metadata.namespace})
    ]
    return (account, role, here, *there)


def _binding(meta: Object, kind: str, role: str, api: QueryAPI) -> Manifest:
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": meta,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": SERVICE_ACCOUNT.kind, "name": gateway_name(api), "namespace": api.metadata.namespace}],
    }
