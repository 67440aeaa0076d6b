"""`kubectl tailrace` as people with ordinary rights use it: the role `edit` of one namespace, and `view` where that is enough."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tailrace_e2e.installation import Installation
from tailrace_e2e.kubectl import Kubectl, eventually, kept
from tailrace_e2e.shop import Shop

ROOT = Path(__file__).resolve().parents[2]
WRAPPER = f"#!{sys.executable}\nimport sys\nfrom tailrace_gateway.plugin.cli import main\nsys.exit(main())\n"


@dataclass(frozen=True, slots=True)
class Plugin:
    """The plugin on PATH, on behalf of a service account of the namespace."""

    space: Kubectl
    folder: Path

    def __call__(self, *words: str, who: str = "editor") -> tuple[int, str, str]:
        """Exit code, output, errors."""
        environment = {**os.environ, "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
        scope = ("--namespace", self.space.namespace, "--as", f"system:serviceaccount:{self.space.namespace}:{who}")
        done = subprocess.run(
            ["kubectl", "tailrace", *words, *scope], capture_output=True, text=True, timeout=180, check=False, env=environment
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shop(cluster: Kubectl, installation: Installation) -> Iterator[Shop]:
    """A shop on two pods with two keys, and two people who may do what the roles edit and view let them."""
    name = f"e2e-cli-{secrets.token_hex(3)}"
    cluster("create", "namespace", name)
    found = Shop(Kubectl(name))
    for who, role in (("editor", "edit"), ("viewer", "view")):
        found.space("create", "serviceaccount", who)
        found.space("create", "rolebinding", who, f"--clusterrole={role}", f"--serviceaccount={name}:{who}")
    found.install(ROOT)
    found.key("desk")
    found.key("numbers", role="analyst")
    for key in ("desk", "numbers"):
        found.ready(key)
    yield found
    if not kept():
        cluster("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def tailrace(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """The plugin where kubectl finds it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "kubectl-tailrace").write_text(WRAPPER)
    (folder / "kubectl-tailrace").chmod(0o755)
    return Plugin(shop.space, folder)


def test_status(tailrace: Plugin) -> None:
    """kubectl tailrace status shows each pod with what it has acknowledged, and says with exit code 0 that all is well"""

    def well() -> list[dict[str, object]]:
        code, out, err = tailrace("status", "-o", "json")
        assert code == 0, err + out
        [told] = json.loads(out)
        assert {key["loadedBy"] for key in told["keys"]} == {"2/2"}
        found: list[dict[str, object]] = told["pods"]
        return found

    pods = eventually("all is well", well)
    assert [(pod["generation"], pod["behind"], pod["problem"]) for pod in pods] == [(1, [], ""), (1, [], "")]
    text = tailrace("status", "shop")[1]
    assert "├─ queries   6 of 6 served" in text
    assert "loaded by 2/2" in text


def test_status_with_the_role_view(tailrace: Plugin) -> None:
    """who may only view sees what the objects say, and is told which right asking the pods needs"""
    assert tailrace("status", "--no-pods", who="viewer")[0] == 0
    code, out, _ = tailrace("status", who="viewer")
    assert code == 1
    assert "pods/portforward" in out
    assert "6 of 6 served" in out


def test_call(tailrace: Plugin) -> None:
    """kubectl tailrace call answers with the key of an ApiKey's Secret, masked as that key's role is"""
    code, out, err = tailrace("call", "customer_by_id", "id=1", "--api-key", "desk")
    assert (code, json.loads(out)["id"]) == (0, 1), err
    assert "200 OK" in err
    masked = json.loads(tailrace("call", "customer_by_id", "id=1", "--api-key", "numbers")[1])
    assert masked["email"] != json.loads(out)["email"]
    code, out, _ = tailrace("call", "product_by_sku", "sku=TEA-1", "--api-key", "numbers", "-i")
    assert code == 1
    assert out.startswith("HTTP/1.1 403")
    code, _, err = tailrace("call", "customer_by_id", "id=1", "--api-key", "desk", who="viewer")
    assert code == 1
    assert "secrets" in err


def test_explain(tailrace: Plugin) -> None:
    """kubectl tailrace explain shows tables, columns and masks of a query for a role, by the databases that pods reach"""
    code, out, err = tailrace("explain", "customer_by_id", "--role", "analyst", "-o", "json")
    assert code == 0, err
    [told] = json.loads(out)
    assert told["tables"] == ["public.customers"]
    assert {column["name"]: column["mask"] for column in told["columns"]} == {
        "id": "", "name": "partial", "email": "hash", "tier": "", "joined_on": "",
    }  # fmt: skip
    assert told["key"].endswith("/numbers")
    code, out, err = tailrace("explain", "customer_by_id", who="viewer")
    assert (code, out) == (1, "")
    assert "pods/exec" in err


def test_diff(tailrace: Plugin, shop: Shop, tmp_path: Path) -> None:
    """kubectl tailrace diff tells who would see more if a file were applied to what stands there"""
    documents = [each for each in yaml.safe_load_all((ROOT / "docs/examples/shop/shop.yaml").read_text()) if each["kind"] == "QueryAPI"]
    del documents[0]["metadata"]["namespace"]
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert tailrace("diff", "-f", str(path), who="viewer") == (0, "nothing changes for callers\n", "")
    analyst = next(role for role in documents[0]["spec"]["roles"] if role["name"] == "analyst")
    analyst["masks"] = [mask for mask in analyst["masks"] if mask["column"] != "customers.email"]
    path.write_text(yaml.safe_dump_all(documents))
    code, out, _ = tailrace("diff", "-f", str(path), who="viewer")
    assert code == 1
    assert f"role analyst: customers.email is not masked any more  [{shop.space.namespace}/numbers]" in out


def test_runs(tailrace: Plugin) -> None:
    """kubectl tailrace runs shows the calls from the cluster's run store, and proves that none is missing on any pod"""
    assert tailrace("call", "customer_by_id", "id=2", "--api-key", "desk")[0] == 0

    def recorded() -> bool:
        out = tailrace("runs", "tail", "--query", "customer_by_id", "--key", "desk", "-o", "json")[1]
        return any(json.loads(line)["status"] == 200 for line in out.splitlines())

    eventually("the run is in the store", recorded)
    code, out, err = tailrace("runs", "verify", "-o", "json")
    assert code == 0, err + out
    told = json.loads(out)
    assert (told["complete"], told["missing"], told["problems"]) == (True, 0, [])
    code, out, err = tailrace("runs", "tail", who="viewer")
    assert (code, out) == (1, "")
    assert "pods/exec" in err
