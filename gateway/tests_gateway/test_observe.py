"""Logs and metrics: one line an event, declared fields only, bounded labels."""

import io
import json
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from tailrace_gateway.observe import DECLARED, LABELLED_QUERIES, Event, JsonLog, Metrics, observation, outcome


def test_every_event_is_declared() -> None:
    assert set(DECLARED) == set(Event)


def test_a_line_is_json_with_level_time_and_event() -> None:
    stream = io.StringIO()
    JsonLog(stream, clock=lambda: 1_700_000_000.25)(observation(Event.PLANS_REFUSED, version=3, status=400))
    assert json.loads(stream.getvalue()) == {
        "level": "error",
        "ts": "2023-11-14T22:13:20.250Z",
        "event": "plans_refused",
        "message": "The data plane refused a snapshot",
        "version": 3,
        "status": 400,
    }
    assert stream.getvalue().endswith("}\n")
    assert stream.getvalue().count("\n") == 1


def test_undeclared_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="sql"):
        observation(Event.CALL_FAILED, sql="SELECT 1")


def test_query_labels_are_bounded() -> None:
    metrics = Metrics()
    for n in range(LABELLED_QUERIES + 50):
        metrics(observation(Event.CALL_FINISHED, query=f"q{n}", status=200, code="", served_by="gateway", duration_s=0.1, database_s=0.05))
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith("tailrace_gateway_calls_total{")]
    assert len(lines) == LABELLED_QUERIES + 1
    assert 'tailrace_gateway_calls_total{outcome="ok",query="other",served_by="gateway"} 50.0' in lines


@pytest.mark.parametrize(
    ("status", "label"), [(200, "ok"), (404, "denied"), (422, "invalid"), (499, "closed"), (502, "failed"), (503, "unavailable")]
)
def test_outcome(status: int, label: str) -> None:
    assert outcome(status) == label


def test_every_event_and_metric_is_documented() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "metrics-gateway.md").read_text()
    for event, declared in DECLARED.items():
        if declared.level is None:
            continue
        row = next((line for line in docs.splitlines() if line.startswith(f"| `{event.value}` |")), None)
        assert row is not None, event
        assert f"| {declared.level.value} |" in row
        for name in declared.fields:
            assert f"`{name}`" in row, (event, name)
    for family in Metrics().registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"| `{name}` | {family.type} |" in docs, name
