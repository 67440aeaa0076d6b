"""The Deployment: pods of two plain containers that roll without a dropped call. Pure.

Everything the API server would fill in itself is left to it. Volumes are in `volumes`.
"""

import json

from tailrace_contract import containers
from tailrace_contract.containers import Allotment, Resources, allotment
from tailrace_contract.duration import format_cpu, format_size
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.runstore import RunStoreSpec

from tailrace_operator.manifest import DEPLOYMENT, Manifest, Object
from tailrace_operator.references import of_query_api
from tailrace_operator.render import volumes
from tailrace_operator.render.facts import Facts, Installation
from tailrace_operator.render.names import gateway_name, labels, metadata, selector

RUN_STORE_VARIABLE = "TAILRACE_RUN_STORE"
SECRET_ANNOTATION = "tailrace.dev/gateway-secret"
"""Fingerprint of the gateway's own secret, which both programs read only when they start."""

USER = 65532
HTTP, ADMIN, METRICS = 8080, 9090, 9091
GRACE_S = 60
"""More than lame duck and drain below together."""

_LAME_DUCK = "15s"
_DRAIN_GRACE = "30s"


def render(api: QueryAPI, facts: Facts, installation: Installation) -> Manifest:
    """The Deployment. `replicas` is never applied, only created and scaled: once applied and then left out, it would fall back to one."""
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": metadata(api, facts.uid, api.metadata.name),
        "spec": {
            "replicas": api.spec.replicas,
            "selector": {"matchLabels": selector(facts.uid)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}},
            "minReadySeconds": 5,
            "revisionHistoryLimit": 3,
            "template": template(api, facts, installation),
        },
    }


def template(api: QueryAPI, facts: Facts, installation: Installation) -> Object:
    """The pod template. Any difference in it rolls all pods."""
    found = of_query_api(api, facts.run_store)
    return {
        "metadata": {
            "labels": labels(api, facts.uid),
            "annotations": {"kubectl.kubernetes.io/default-container": "dataplane", SECRET_ANNOTATION: facts.gateway_secret},
        },
        "spec": {
            "serviceAccountName": gateway_name(api),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [_spread(key, facts.uid) for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")],
            "containers": [_data_plane(api, found.secrets, installation), _gateway(api, facts, installation)],
            "volumes": volumes.render(gateway_name(api), found),
        },
    }


def _spread(key: str, uid: str) -> Object:
    return {
        "topologyKey": key,
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(uid)},
        # Per revision: the pods of the old one don't push those of the new one together.
        "matchLabelKeys": ["pod-template-hash"],
    }


def _data_plane(api: QueryAPI, secrets: tuple[str, ...], installation: Installation) -> Object:
    return {
        **_container("dataplane", installation.data_plane_image, installation.image_pull_policy),
        "args": [
            "--listen", f"0.0.0.0:{HTTP}",
            "--admin", f"0.0.0.0:{ADMIN}",
            "--data", volumes.DATA,
            "--secret", volumes.GATEWAY_SECRET,
            "--lame-duck", _LAME_DUCK,
            "--drain-grace", _DRAIN_GRACE,
        ],
        "ports": [_port("http", HTTP), _port("admin", ADMIN)],
        # Not /readyz at the start: a pod may wait long for its first plan (a Secret, the API server) and must not be restarted for it.
        "startupProbe": _probe("/livez", period_s=1, failures=120),
        "livenessProbe": _probe("/livez", period_s=10, failures=6),
        "readinessProbe": _probe("/readyz", period_s=2, failures=2),
        "resources": _resources(api.spec.data_plane.resources, containers.DATA_PLANE),
        "volumeMounts": volumes.mounts(api.metadata.namespace, secrets),
    }  # fmt: skip


def _gateway(api: QueryAPI, facts: Facts, installation: Installation) -> Object:
    found = of_query_api(api, facts.run_store)
    return {
        **_container("gateway", installation.gateway_image, installation.image_pull_policy),
        "args": [
            "--api", f"{api.metadata.namespace}/{api.metadata.name}",
            "--kubernetes",
            "--data", volumes.DATA,
            "--secrets", volumes.SECRETS,
            "--configs", volumes.CONFIGS,
            "--secret", volumes.GATEWAY_SECRET,
            "--metrics", f"0.0.0.0:{METRICS}",
        ],
        "env": [{"name": RUN_STORE_VARIABLE, "value": run_store_text(api.spec.run_store_ref.name, facts.run_store)}],
        "ports": [_port("metrics", METRICS)],
        "resources": _resources(api.spec.gateway.resources, containers.GATEWAY),
        "volumeMounts": volumes.mounts(api.metadata.namespace, found.secrets, found.config_maps, token=True),
    }  # fmt: skip


def _container(name: str, image: str, pull_policy: str | None) -> Object:
    return {
        "name": name,
        "image": image,
        **({} if pull_policy is None else {"imagePullPolicy": pull_policy}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _port(name: str, number: int) -> Object:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _probe(path: str, *, period_s: int, failures: int) -> Object:
    return {"httpGet": {"path": path, "port": "admin"}, "periodSeconds": period_s, "timeoutSeconds": 2, "failureThreshold": failures}


def _resources(given: Resources, default: Allotment) -> Object:
    """The API server writes quantities in one form only; this is that form, so that nothing looks changed afterwards."""
    got = allotment(given, default)
    limits = {"memory": format_size(got.memory_limit_bytes)}
    if got.cpu_limit_millis is not None:
        limits["cpu"] = format_cpu(got.cpu_limit_millis)
    return {
        "requests": {"cpu": format_cpu(got.cpu_request_millis), "memory": format_size(got.memory_request_bytes)},
        "limits": limits,
    }


def run_store_text(name: str, spec: RunStoreSpec) -> str:
    """The RunStore for the gateway. What has its default is left out, so that a default of a later version rolls no pod."""
    wanted = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps({"name": name, "spec": wanted}, sort_keys=True, separators=(",", ":"))


def remembered_run_store(live: Manifest, name: str) -> RunStoreSpec | None:
    """The RunStore that the live Deployment's pods were given, if it is the one of this name. While the RunStore itself is gone,
    what runs is rendered with it and stays as it is."""
    for container in live["spec"]["template"]["spec"]["containers"]:
        for variable in container.get("env") or ():
            if container["name"] == "gateway" and variable["name"] == RUN_STORE_VARIABLE:
                try:
                    said = json.loads(variable.get("value", ""))
                    return RunStoreSpec.model_validate_json(json.dumps(said["spec"])) if said["name"] == name else None
                except (ValueError, KeyError, TypeError):
                    return None
    return None
