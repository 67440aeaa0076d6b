"""`tailrace explain` beside a running data plane: what that gave up is told, for the same version only."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tailrace_contract.plan import QueryPlan, Returns, StatementPlan
from tailrace_gateway.commands.explain import _given_up


def plans(*versions: str) -> list[QueryPlan]:
    return [
        QueryPlan(name="item", version=version, connection=0, returns=Returns.ONE, timeout_ms=500, statement=StatementPlan(sql="SELECT 1"))
        for version in versions
    ]


def told(folder: Path, body: str, queries: list[QueryPlan]) -> list[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/plans"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    (folder / "run").mkdir(exist_ok=True)
    path = folder / "run" / "dataplane.sock"
    path.unlink(missing_ok=True)
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            return list(_given_up(folder, queries))
        finally:
            server.shutdown()


def test_what_was_given_up_is_told_for_its_version(tmp_path: Path) -> None:
    body = json.dumps({"version": 1, "uncoalesced": [{"query": "item", "version": "a" * 16, "reason": "refused"}]})
    assert told(tmp_path, body, plans("b" * 16)) == []
    (note,) = told(tmp_path, body, plans("a" * 16))
    assert note.endswith("gave up shared statements of item: the database refused it again and again")


def test_nobody_there_and_nonsense(tmp_path: Path) -> None:
    assert list(_given_up(tmp_path, plans("a" * 16))) == []
    (note,) = told(tmp_path, '{"version": 1}', plans("a" * 16))
    assert "did not say" in note
