"""The gate itself: its calls are repeatable, whole and sendable, and it sees every kind of difference."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tailrace_contract.run import ClientClass, Epoch, Run, Sequence, ServedBy
from tailrace_loadtest import cases
from tailrace_loadtest.differential import api, compare
from tailrace_loadtest.differential.calls import FORMATS, Call, fits_url, json_text, url_text
from tailrace_loadtest.differential.client import COMPARED, Answer, answered
from tailrace_loadtest.differential.drive import Comparison
from tailrace_loadtest.differential.generator import Generator
from tailrace_loadtest.differential.transports import TRANSPORTS

NAMES = ("chinook", "types", "batches", "mariadb", "six", "crowds")


def described(name: str) -> api.Api:
    return api.read(cases.path(f"{name}.yaml"), ("notes_of_track", "notes_of_edge", "statement"))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_calls_and_every_combination_is_covered(name: str) -> None:
    asked = described(name)
    calls = list(Generator(asked, 7).calls(25_000, 50))
    assert calls == list(Generator(asked, 7).calls(25_000, 50))
    assert calls != list(Generator(asked, 8).calls(25_000, 50))
    assert sum(call.asked for call in calls) == 25_000
    seen = Counter(call.combination for call in calls)
    assert all(seen[query.name, form, role] >= 50 for query in asked.queries for form in FORMATS for role in asked.roles)
    assert {"good", "walk", "bad parameters", "bad body", "methods", "accept", "credentials", "names", "cursors", "extras", "bulk"} <= {
        call.kind for call in calls
    }
    assert any(call.again for call in calls) == any(query.cached for query in asked.queries)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_values_and_no_value_is_left_over(name: str) -> None:
    for query in described(name).queries:
        assert set(query.choices) == {param.name for param in query.params}, query.name


@pytest.mark.parametrize("name", NAMES)
def test_good_bodies_are_json_and_calls_are_never_forwarded_paths(name: str) -> None:
    for call in Generator(described(name), 1).calls(3000, 5):
        if call.kind in ("combination", "good", "walk") and call.body:
            json.loads(call.body)
        assert call.target.startswith("/q/")
        assert call.target.isascii()
        assert " " not in call.target


def test_values_in_urls_and_bodies() -> None:
    params = {param.name: param for query in described("types").queries if query.name == "say_to_sqlite" for param in query.params}
    assert json_text(params["i"], "-0") == "-0"
    assert json_text(params["n"], "1e400") == "1e400"
    assert json_text(params["a"], ["a", 'q"']) == '["a", "q\\""]'
    assert json_text(params["s"], None) == "null"
    assert url_text(["a", "b c"]) == "a,b%20c"
    assert [fits_url(value) for value in (None, ["a,b"], [""], [], ["a"], "")] == [False, False, False, True, True, True]


CALL = Call("good", "q", "GET", ("id=1",), (("X-API-Key", "{key}"),), None, "k")
ANSWER = Answer(200, tuple((name, ()) for name in COMPARED), b"[1]", "0" * 29)
RUN = Run(
    Epoch(1), Sequence(1), 1, 1, 1, 1, "q", "v", "k", "c", 200, "", 1, 3, 1, "", ClientClass.LOOPBACK, ServedBy.DATA_PLANE, None
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"status": 404}, "status"),
        ({"body": b"[2]"}, "body"),
        ({"broken": True}, "broken off"),
        ({"run_id": ""}, "X-Run-Id"),
        ({"headers": tuple((name, ("x",) if name == "Link" else ()) for name in COMPARED)}, "header Link"),
    ],
)
def test_each_part_of_an_answer_is_compared(change: dict[str, Any], where: str) -> None:
    assert compare.answers(CALL, ANSWER, ANSWER) == []
    assert [each.where for each in compare.answers(CALL, ANSWER, replace(ANSWER, **change))] == [where]


def test_a_broken_body_must_still_be_the_same_so_far() -> None:
    broken = replace(ANSWER, broken=True)
    assert compare.answers(CALL, replace(broken, body=b"ab"), replace(broken, body=b"abc")) == []
    assert [each.where for each in compare.answers(CALL, replace(broken, body=b"ab"), replace(broken, body=b"ax"))] == ["broken body"]


@pytest.mark.parametrize("field", compare.RECORD)
def test_each_field_of_a_record_is_compared(field: str) -> None:
    other: Any = ClientClass.PUBLIC if field == "client" else getattr(RUN, field) + 1 if isinstance(getattr(RUN, field), int) else "other"
    changed = replace(RUN, epoch=Epoch(9), sequence=Sequence(9), time_us=9, duration_us=9, served_by=ServedBy.GATEWAY)
    assert compare.runs(CALL, False, RUN, changed) == []
    assert [each.where for each in compare.runs(CALL, False, RUN, replace(changed, **{field: other}))] == [f"run {field}"]
    assert [each.where for each in compare.runs(CALL, False, RUN, None)] == ["run missing"]


def test_how_much_of_a_broken_stream_came_is_not_compared_even_when_nobody_saw_it() -> None:
    broken = replace(RUN, code="database_error")
    assert compare.runs(CALL, False, broken, replace(broken, rows=2, bytes=9)) == []
    assert [each.where for each in compare.runs(CALL, False, broken, replace(RUN, rows=2))] == ["run code", "run rows"]


def test_whether_a_call_was_at_the_database_is_compared() -> None:
    assert compare.runs(CALL, False, RUN, replace(RUN, database_us=99)) == []
    assert [each.where for each in compare.runs(CALL, False, RUN, replace(RUN, database_us=0))] == ["run at the database"]
    assert compare.runs(CALL, True, RUN, replace(RUN, database_us=0)) == []


def test_a_difference_comes_with_the_command_that_repeats_it() -> None:
    call = replace(CALL, method="POST", body=b'{"a": "it\'s"}', headers=(("X-API-Key", "{key}"), ("Content-Type", "application/json")))
    shown = compare.described(compare.Difference(call, "status", "200", "404"), ("http://127.0.0.1:1", "http://127.0.0.1:2"))
    assert (
        """curl -si -X POST -H "X-API-Key: $KEY" -H "Content-Type: application/json" --data-binary '{"a": "it'\\''s"}' 'http://127.0.0.1:1/q/q?id=1'   # KEY: k"""
        in shown
    )


Reply = Callable[[BaseHTTPRequestHandler, str], tuple[int, dict[str, str], bytes]]


@contextmanager
def serving(reply: Reply) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = reply(self, self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def __getattr__(self, name: str) -> Any:
            # Whatever the method is.
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def test_every_call_can_be_sent_pages_are_followed_and_a_liar_is_found() -> None:
    count = threading.local()

    def honest(handler: BaseHTTPRequestHandler, path: str) -> tuple[int, dict[str, str], bytes]:
        count.n = getattr(count, "n", 0) + 1
        run_id = f"{id(handler):016x}-{count.n:012x}"
        link = {"Link": '</q/invoices?cursor=x>; rel="next"'} if path.startswith("/q/invoices?") else {}
        return 200, {"X-Run-Id": run_id, "Content-Type": "application/json", **link}, f'{{"run": "{run_id}"}}'.encode()

    def liar(handler: BaseHTTPRequestHandler, path: str) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = honest(handler, path)
        return (404 if path.startswith("/q/media_types") else status), headers, body

    asked = described("chinook")
    keys = dict.fromkeys([*asked.good(), *asked.refused], "k" * 20)
    with serving(honest) as left, serving(honest) as right, serving(liar) as wrong:
        outcome = Comparison(left, right, keys, workers=2).run(Generator(asked, 3), 1500, 3)
        assert (outcome.asked, outcome.differing, outcome.good) == (1500, 0, 1500), outcome.differences[:3]
        assert len(outcome.pairs) == 1500
        lied = Comparison(left, wrong, keys, workers=2).run(Generator(asked, 3), 1500, 3)
        assert lied.differing > 0
        assert {each.where for each in lied.differences} == {"status"}
        assert all(each.call.target.startswith("/q/media_types") for each in lied.differences)


def test_run_ids_of_several_calls_are_found_and_hidden() -> None:
    run, call = "0123456789abcdef-0123456789ab", Call("bulk", "q", "POST", ())
    body = f'[{{"status":200,"run":"{run}","body":{{}}}},{{"status":422,"run":"{run[::-1]}","body":{{}}}}]'.encode()
    answer = answered(call, 200, lambda name: None, body, broken=False)
    assert answer.parts == (run,)
    assert run.encode() not in answer.body
    other = answered(call, 200, lambda name: None, b"[]", broken=False)
    assert {each.where for each in compare.answers(call, answer, other)} == {"body", "runs of several"}


def test_pipelined_answers_are_those_of_their_calls_and_the_rest_is_asked_again() -> None:
    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.path.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            if "last" in self.path:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = "last" in self.path

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipelined = TRANSPORTS["pipelined"](server.server_port, {})
    try:
        calls = [Call("good", name, "GET", ()) for name in ("a", "b", "last", "c", "d")]
        for _ in range(2):
            assert [answer.body for answer in pipelined.ask_all(calls)] == [call.target.encode() for call in calls]
    finally:
        pipelined.close()
        server.shutdown()
        server.server_close()
