"""What is rendered, byte for byte (golden/render; run this file as a program to rewrite it), and what must never change it."""

import copy
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.document import read
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.runstore import RunStore, RunStoreSpec
from tailrace_operator.manifest import DEPLOYMENT, OWNED, kind_of
from tailrace_operator.render import Facts, Installation, render
from tailrace_operator.render.deployment import remembered_run_store, run_store_text
from tailrace_operator.render.facts import fingerprint, needs_one_pod
from tailrace_operator.render.names import volume_name

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name.removesuffix(".in.yaml") for path in (GOLDEN / "render").glob("*.in.yaml"))
RELEASES = sorted(path.stem for path in (GOLDEN / "released").glob("*.yaml"))
INSTALLATION = Installation("registry.test/gateway:1", "registry.test/dataplane:1", None, "tailrace")

Json = Any


@functools.cache
def loaded(case: str) -> list[Json]:
    return list(yaml.safe_load_all((GOLDEN / "render" / f"{case}.in.yaml").read_text()))


def documents(case: str) -> tuple[Json, RunStoreSpec, tuple[str, ...]]:
    api, store, *rest = copy.deepcopy(loaded(case))
    run_store = read(store)
    assert isinstance(run_store, RunStore), run_store
    return api, run_store.spec, tuple(rest[0]["namespaces"]) if rest else ()


def parsed(document: Json) -> QueryAPI:
    api = read(document)
    assert isinstance(api, QueryAPI), api
    return api


def rendered(case: str, document: Json | None = None) -> list[Json]:
    api, store, namespaces = documents(case)
    facts = Facts(api["metadata"]["uid"], store, fingerprint(b"fixed"), namespaces)
    return [dict(each) for each in render(parsed(document or api), facts, INSTALLATION)]


def deployment(manifests: list[Json]) -> Json:
    (found,) = (each for each in manifests if each["kind"] == "Deployment")
    return found


def as_text(documents: list[Json]) -> str:
    plain = json.loads(json.dumps(documents))  # Without YAML's anchors for lists that are shared.
    return "# Made by operator/tests_operator/test_render.py.\n" + yaml.safe_dump_all(plain, sort_keys=False, width=150)


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    assert as_text(rendered(case)) == (GOLDEN / "render" / f"{case}.out.yaml").read_text()


@pytest.mark.parametrize("release", RELEASES)
def test_an_upgrade_of_the_operator_rolls_no_pod(release: str) -> None:
    """The template that an earlier release rendered of the same QueryAPI. A difference would restart every pod of every user."""
    assert [deployment(rendered("full"))["spec"]["template"]] == list(
        yaml.safe_load_all((GOLDEN / "released" / f"{release}.yaml").read_text())
    )


def test_there_is_a_release_to_compare_with() -> None:
    assert RELEASES


@pytest.mark.parametrize(
    ("container", "source"),
    [("dataplane", "dataplane-rs/src/config.rs"), ("gateway", "gateway/src/tailrace_gateway/settings.py")],
)
def test_every_flag_is_one_that_the_program_has(container: str, source: str) -> None:
    """Both programs refuse flags that they don't know, so a mistyped one would keep every pod from starting."""
    text = (GOLDEN.parents[2] / source).read_text()
    (found,) = (each for each in deployment(rendered("full"))["spec"]["template"]["spec"]["containers"] if each["name"] == container)
    flags = [word for word in found["args"] if word.startswith("--")]
    assert flags
    assert [flag for flag in flags if f'"{flag}"' not in text] == []


NAMES = st.from_regex("[a-z][a-z0-9]{0,8}", fullmatch=True)


@st.composite
def edits(draw: st.DrawFn) -> Callable[[Json], None]:
    """Changes that concern what is served, not where it runs."""
    queries = [
        {
            "name": name,
            "connection": "orders",
            "sql": draw(st.text("abc :;", min_size=1)),
            "returns": draw(st.sampled_from(["one", "many"])),
        }
        for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    ]
    roles = [{"name": name, "queries": ["*"]} for name in draw(st.lists(NAMES, max_size=3, unique=True))]
    connection = {
        "maxConnections": draw(st.integers(1, 1000)),
        "statementTimeout": f"{draw(st.integers(1, 99))}s",
        "session": {"search_path": draw(st.text("abc", max_size=3))},
        "pooler": draw(st.sampled_from(["none", "transaction"])),
        "idempotencyTable": draw(st.text("abc", min_size=1, max_size=3)),
    }
    http = {"hideForbidden": draw(st.booleans()), "bigNumbers": draw(st.sampled_from(["number", "string"]))}
    generation = draw(st.integers(8, 10_000))
    replicas = draw(st.integers(0, 1000))
    turn = draw(st.booleans())

    def edit(document: Json) -> None:
        document["metadata"] |= {
            "generation": generation,
            "resourceVersion": str(generation),
            "labels": {"a": "b"},
            "annotations": {"c": "d"},
        }
        spec = document["spec"]
        spec["queries"] = queries
        spec["roles"] = [*roles, {"name": "support2", "queries": ["*"]}]
        spec["connections"][0] |= connection
        spec["http"] = http
        spec["replicas"] = replicas
        spec["allowKeysFrom"] = []
        if turn:
            spec["connections"].reverse()
            spec["queriesFrom"].reverse()

    return edit


@given(edits())
def test_what_is_served_rolls_no_pod(edit: Callable[[Json], None]) -> None:
    document, _, _ = documents("full")
    before = json.dumps(deployment(rendered("full"))["spec"]["template"])
    changed = copy.deepcopy(document)
    edit(changed)
    assert json.dumps(deployment(rendered("full", changed))["spec"]["template"]) == before


@pytest.mark.parametrize(
    "path",
    [
        ("connections", 0, "urlFrom", "secretKeyRef", "name"),
        ("connections", 0, "tls", "caFrom", "secretKeyRef", "name"),
        ("queriesFrom", 0, "configMapRef", "name"),
        ("runStoreRef", "name"),
    ],
    ids=str,
)
def test_another_name_rolls_pods(path: tuple[str | int, ...]) -> None:
    document, _, _ = documents("full")
    here: Any = document["spec"]
    for part in path[:-1]:
        here = here[part]
    here[path[-1]] = "another"
    assert deployment(rendered("full", document)) != deployment(rendered("full"))


def test_what_must_roll_pods() -> None:
    document, store, _ = documents("full")
    api, uid = parsed(document), document["metadata"]["uid"]
    facts = Facts(uid, store, "0" * 16)
    before = render(api, facts, INSTALLATION)
    assert before == render(api, facts, INSTALLATION)
    for other in (
        render(api, replace(facts, gateway_secret="1" * 16), INSTALLATION),
        render(api, replace(facts, run_store=RunStoreSpec.model_validate_json('{"embedded":{}}')), INSTALLATION),
        render(api, facts, replace(INSTALLATION, gateway_image="registry.test/gateway:2")),
        render(api, facts, replace(INSTALLATION, data_plane_image="registry.test/dataplane:2")),
    ):
        assert deployment([dict(each) for each in other]) != deployment([dict(each) for each in before])
    elsewhere = render(api, facts, replace(INSTALLATION, namespace="other"))
    assert deployment([dict(each) for each in elsewhere]) == deployment([dict(each) for each in before])


def test_they_come_in_the_order_of_writing_and_each_once() -> None:
    manifests = rendered("full")
    order = [OWNED.index(kind_of(each)) for each in manifests]
    assert order == sorted(order)
    assert len({(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]) for each in manifests}) == len(manifests)
    assert kind_of(manifests[-1]) == DEPLOYMENT


def test_owned_or_labelled() -> None:
    """What stands beside the QueryAPI has it as its owner; elsewhere nothing may, and the label says whose it is."""
    for each in rendered("full"):
        meta = each["metadata"]
        assert meta["labels"]["tailrace.dev/queryapi-uid"] == "66666666-7777-8888-9999-aaaaaaaaaaaa"
        if meta["namespace"] == "retail":
            (owner,) = meta["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("QueryAPI", meta["labels"]["tailrace.dev/queryapi-uid"], True)
            assert owner["blockOwnerDeletion"] is False
        else:
            assert each["kind"] == "RoleBinding"
            assert "ownerReferences" not in meta
            assert each["roleRef"]["kind"] == "ClusterRole"


@pytest.mark.parametrize(("replicas", "budgets"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_budget_only_when_a_pod_can_go(replicas: int, budgets: int) -> None:
    document, _, _ = documents("full")
    document["spec"]["replicas"] = replicas
    assert sum(each["kind"] == "PodDisruptionBudget" for each in rendered("full", document)) == budgets


@pytest.mark.parametrize("case", CASES)
def test_pod_security_restricted(case: str) -> None:
    """Each demand of the Pod Security Standards' restricted profile."""
    pod = deployment(rendered(case))["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all({"emptyDir", "secret", "configMap", "projected"} & volume.keys() for volume in pod["volumes"])
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "hostPort" not in str(container["ports"])
        assert not any("subPath" in mount for mount in container["volumeMounts"])


def test_only_the_gateway_has_a_token() -> None:
    pod = deployment(rendered("full"))["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    has = {each["name"]: "token" in [mount["name"] for mount in each["volumeMounts"]] for each in pod["containers"]}
    assert has == {"dataplane": False, "gateway": True}


@pytest.mark.parametrize("case", CASES)
def test_every_mount_has_its_volume(case: str) -> None:
    pod = deployment(rendered(case))["spec"]["template"]["spec"]
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(volumes) == len(set(volumes))
    assert all(len(name) <= 63 and "." not in name for name in volumes)
    for container in pod["containers"]:
        places = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(places) == len(set(places))
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


@given(st.lists(st.from_regex("[a-z]([-a-z0-9.]{0,80}[a-z0-9])?", fullmatch=True), max_size=30, unique=True))
def test_volume_names_never_meet(names: list[str]) -> None:
    assert len({volume_name(kind, name) for kind in ("secret", "config") for name in names}) == 2 * len(names)


def test_the_run_store_is_remembered() -> None:
    """A RunStore that was deleted: what runs stays as it is."""
    store = documents("full")[1]
    live = deployment(rendered("full"))
    assert remembered_run_store(live, "runs") == store
    assert remembered_run_store(live, "others") is None
    live["spec"]["template"]["spec"]["containers"][1]["env"][0]["value"] = "{"
    assert remembered_run_store(live, "runs") is None
    live["spec"]["template"]["spec"]["containers"][1]["env"] = []
    assert remembered_run_store(live, "runs") is None


def test_a_default_that_is_written_out_is_the_same_run_store() -> None:
    """The API server fills in defaults; a later version's new one must not roll pods."""
    short = RunStoreSpec.model_validate_json('{"embedded":{}}')
    long = RunStoreSpec.model_validate_json('{"embedded":{},"spool":{"size":"1Gi","onFull":"reject"},"durability":"process"}')
    assert run_store_text("runs", short) == run_store_text("runs", long) == '{"name":"runs","spec":{"embedded":{}}}'


def test_an_embedded_store_is_for_one_pod() -> None:
    document, postgres, _ = documents("full")
    embedded = RunStoreSpec.model_validate_json('{"embedded":{}}')
    for replicas, store, wrong in ((1, embedded, False), (2, embedded, True), (0, embedded, False), (2, postgres, False)):
        document["spec"]["replicas"] = replicas
        assert needs_one_pod(parsed(document), store) is wrong


def main() -> None:
    for case in CASES:
        (GOLDEN / "render" / f"{case}.out.yaml").write_text(as_text(rendered(case)))
    if len(sys.argv) > 1:  # The version that is being released.
        (GOLDEN / "released" / f"{sys.argv[1]}.yaml").write_text(as_text([deployment(rendered("full"))["spec"]["template"]]))


if __name__ == "__main__":
    main()
