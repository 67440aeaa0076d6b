"""A kubectl that answers from a table, and objects as an API server gives them."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAKE = """#!{python}
import json, os, re, ssl, sys, http.server
words = [word for word in sys.argv[1:] if not word.startswith("--namespace=")]
scope = next((word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--namespace=")), "")
table = json.load(open({table!r}))
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
line = " ".join(([f"[{{scope}}]"] if scope else []) + words)
for pattern, answer in table:
    if re.search(pattern, line):
        if "serve" in answer:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    size = int(self.headers.get("Content-Length") or 0)
                    self.rfile.read(size)
                    with open({log!r}, "a") as log:
                        log.write(json.dumps([self.command, self.path, dict(self.headers)]) + "\\n")
                    status, headers, body = answer["serve"].get(self.command, answer["serve"].get("GET"))
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body.encode())))
                    self.end_headers()
                    self.wfile.write(body.encode())
                do_POST = do_GET
                def log_message(self, *words):
                    pass
            server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
            if "chain" in answer:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(answer["chain"])
                server.socket = context.wrap_socket(server.socket, server_side=True)
            print(f"Forwarding from 127.0.0.1:{{server.server_port}} -> 1", flush=True)
            server.serve_forever()
        if answer.get("stdin"):
            with open({log!r}, "a") as log:
                log.write(json.dumps(["stdin", sys.stdin.read()]) + "\\n")
        sys.stdout.write(answer.get("out", ""))
        sys.stderr.write(answer.get("err", ""))
        sys.exit(answer.get("code", 0))
sys.stderr.write(f"no answer for: {{line}}\\n")
sys.exit(99)
"""


class FakeKubectl:
    """What was asked, and what to answer: `table` holds (regular expression of the words, answer), the first that matches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.table: list[tuple[str, dict[str, Any]]] = []
        program = folder / "kubectl"
        program.write_text(FAKE.format(python=sys.executable, table=str(folder / "table"), log=str(self.log)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def answers(self, pattern: str, out: object = "", *, err: str = "", code: int = 0, **more: Any) -> None:
        """Another line of the table; `out`: text, or what becomes JSON."""
        text = out if isinstance(out, str) else json.dumps(out)
        self.table.append((pattern, {"out": text, "err": err, "code": code, **more}))
        (self.folder / "table").write_text(json.dumps(self.table))

    def asked(self) -> list[list[Any]]:
        """Every command, and every request to a forwarded port."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return FakeKubectl(folder)


@pytest.fixture
def tailrace(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `kubectl tailrace`; exit code, output, errors."""
    from tailrace_gateway.plugin.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 3,
        "lastTransitionTime": "2027-01-31T00:00:00Z",
    }


SPEC = {
    "connections": [{"name": "shop", "urlFrom": {"secretKeyRef": {"name": "shop-db", "key": "url"}}}],
    "queries": [
        {
            "name": "customer_by_id",
            "connection": "shop",
            "sql": "SELECT id, name, email FROM customers WHERE id = :id",
            "params": {"id": {"type": "integer", "required": True}},
            "returns": "one",
        },
        {
            "name": "rename",
            "connection": "shop",
            "sql": "UPDATE customers SET name = :name WHERE id = :id",
            "params": {"id": {"type": "integer", "required": True}, "name": {"type": "string", "required": True}},
            "returns": "none",
            "write": True,
        },
    ],
    "roles": [
        {"name": "support", "queries": ["*"], "tables": {"allow": ["customers"]}},
        {
            "name": "analyst",
            "queries": ["customer_by_id"],
            "tables": {"allow": ["customers"]},
            "masks": [{"column": "customers.email", "with": "hash"}],
        },
    ],
    "runStoreRef": {"name": "runs"},
}


def query_api(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "QueryAPI",
        "metadata": {"name": "shop", "namespace": "retail", "uid": "u-1", "generation": 3, "resourceVersion": "800", "managedFields": []},
        "spec": SPEC,
        "status": {
            "observedGeneration": 3,
            "conditions": [condition("Accepted", "True", "Accepted"), condition("Ready", "True", "Ready")],
            "url": "http://shop.retail.svc",
            "loadedBy": "2/2",
            "queries": {"total": 2, "served": 2},
            "keys": 1,
            **status,
        },
    }


def api_key(name: str, role: str, version: str = "812", namespace: str = "retail", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "ApiKey",
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "generation": 1, "resourceVersion": version},
        "spec": {"queryApiRef": {"name": "shop", "namespace": "retail"}, "role": role, "secretName": f"{name}-key"},
        "status": {
            "observedGeneration": 1,
            "conditions": [condition("Ready", "True", "Loaded")],
            "keys": [{"id": "3fK9Qm2x", "sha256": "ab" * 32, "notBefore": "2027-01-31T00:00:00Z"}],
            "loadedBy": "2/2",
            **status,
        },
    }


def run_store() -> dict[str, Any]:
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "RunStore",
        "metadata": {"name": "runs", "namespace": "retail"},
        "spec": {"postgres": {"urlFrom": {"secretKeyRef": {"name": "runs-db", "key": "url"}}}},
        "status": {"observedGeneration": 1, "conditions": [condition("Ready", "True", "Ready")]},
    }


def pod(name: str, *, ready: bool = True, uid: str = "u-1", waiting: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "retail",
            "labels": {"tailrace.dev/queryapi": "shop", "tailrace.dev/queryapi-uid": uid},
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "dataplane", "state": state}],
        },
    }


def pod_says(generation: int = 3, keys: str = "812", **more: Any) -> dict[str, Any]:
    """The data plane's `/status`, as it stands in a cluster."""
    return {
        "version": "0.1.0",
        "started": "2027-01-31T00:00:00Z",
        "ready": True,
        "draining": False,
        "gatewayUp": True,
        "gateway": {"queries": {"total": 2, "served": 2, "refused": []}, "keys": 1, "stale": False},
        "snapshot": {
            "version": 1790000000000000,
            "applied": "2027-01-31T00:00:00Z",
            "ageSeconds": 130,
            "queries": 2,
            "refused": 0,
            "keys": 1,
            "sources": [
                {"kind": "QueryAPI", "namespace": "retail", "name": "shop", "uid": "u-1", "generation": generation, "resourceVersion": "8"},
                {"kind": "ApiKeys", "namespace": "retail", "name": "", "uid": "", "generation": 0, "resourceVersion": keys},
                {"kind": "Config", "namespace": "", "name": "retail/q", "uid": "", "generation": 0, "resourceVersion": "0123456789abcdef"},
            ],
        },
        "spool": {"bytes": 0},
        "runs": {"shipped": 5, "waiting": 0, "aborted": 0, "failing": False, "epochs": []},
        **more,
    }


def items(*found: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "List", "items": list(found)}
