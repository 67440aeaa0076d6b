"""How others read a status: Flux by kstatus, Argo CD by the health script in docs/gitops, and whether the examples there are valid."""

import os
from typing import Any

import pytest
import yaml
from tailrace_contract.document import read
from tailrace_contract.status import ApiKeyStatus
from tailrace_operator.conditions import ready, stamped, status_body

from .test_status import API, GENERATION, GITOPS, NOW, TABLE, conditions, kstatus, status_of

Json = dict[str, Any]


@pytest.mark.parametrize("case", TABLE)
def test_kstatus(case: str) -> None:
    assert kstatus({**API, "status": status_of(case)}) == TABLE[case][6]


def test_kstatus_of_what_no_operator_has_seen() -> None:
    assert kstatus(API) == "InProgress"
    changed = {**API, "metadata": {**API["metadata"], "generation": GENERATION + 1}, "status": status_of("all is well")}
    assert kstatus(changed) == "InProgress"


def argo(live: Json) -> Json:
    """Runs the health script as Argo CD does: Lua 5.1 without libraries that reach out, the object as `obj`."""
    if os.environ.get("CI"):
        from lupa import lua51
    else:
        lua51 = pytest.importorskip("lupa.lua51", reason="make venv installs lupa")
    lua = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)

    def table(value: object) -> object:
        if isinstance(value, dict):
            return lua.table_from({name: table(each) for name, each in value.items()})
        return lua.table_from([table(each) for each in value]) if isinstance(value, list) else value

    lua.globals().obj = table(live)
    for name in ("io", "os", "require", "package", "debug", "python"):
        lua.globals()[name] = None
    return dict(lua.execute((GITOPS / "argocd" / "health.lua").read_text()))


@pytest.mark.parametrize("case", TABLE)
def test_argo_cd(case: str) -> None:
    live = {**API, "status": status_of(case)}
    assert argo(live) == {"status": TABLE[case][7], "message": conditions(live["status"])["Ready"]["message"]}


@pytest.mark.parametrize(
    "live",
    [
        API,
        {name: value for name, value in API.items() if name != "status"},
        {**API, "status": {}},
        {**API, "metadata": {**API["metadata"], "generation": GENERATION + 1}, "status": status_of("all is well")},
        {**API, "status": {"observedGeneration": GENERATION, "conditions": []}},
        {**API, "status": {"observedGeneration": GENERATION, "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}},
    ],
    ids=["default", "none", "empty", "older generation", "no conditions", "older condition"],
)
def test_argo_cd_of_what_no_operator_has_seen(live: Json) -> None:
    assert argo(live) == {"status": "Progressing", "message": "waiting for the operator"}


@pytest.mark.parametrize(
    ("reason", "is_reconciling", "expected"),
    [
        ("Suspended", False, "Suspended"),
        ("Suspended", True, "Progressing"),
        ("Expired", False, "Degraded"),
        ("NotAdmitted", False, "Degraded"),
    ],
)
def test_argo_cd_of_a_key_that_no_pod_admits(reason: str, is_reconciling: bool, expected: str) -> None:
    verdicts = ready("False", reason, "3/3 pods have dropped it", reconciling=is_reconciling)
    status = ApiKeyStatus(observed_generation=GENERATION, conditions=stamped((), verdicts, GENERATION, NOW))
    assert argo({**API, "kind": "ApiKey", "status": status_body(status)})["status"] == expected


def test_argo_cd_gets_this_script_for_each_kind() -> None:
    script = (GITOPS / "argocd" / "health.lua").read_text()
    data = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text())["data"]
    assert data == {f"resource.customizations.health.tailrace.dev_{kind}": script for kind in ("QueryAPI", "ApiKey", "RunStore")}


def test_the_examples_are_valid() -> None:
    documents = list(yaml.safe_load_all((GITOPS / "kustomize" / "api.yaml").read_text()))
    assert [type(read(each)).__name__ for each in documents] == ["QueryAPI", "RunStore", "ApiKey"]
    for path in (*GITOPS.glob("flux/*.yaml"), GITOPS / "argocd" / "application.yaml"):
        assert all({"apiVersion", "kind", "metadata", "spec"} == each.keys() for each in yaml.safe_load_all(path.read_text())), path
