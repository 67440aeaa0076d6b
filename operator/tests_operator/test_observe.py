"""Logs and metrics of the operator."""

import io
import json
import logging
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from tailrace_operator.health import STALE_S, Health
from tailrace_operator.observe import DECLARED, Event, FrameworkLog, JsonLog, Level, Metrics, Observation, observation


def test_a_field_that_was_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="does not declare"):
        Observation(Event.LEADING, {"secret": "x"})
    assert set(DECLARED) == set(Event)


def test_a_line_is_json_and_below_its_level_there_is_none() -> None:
    stream = io.StringIO()
    log = JsonLog(Level.INFO, stream, lambda: 1.5)
    log(observation(Event.LEADING, identity="a"))
    log(observation(Event.RELISTED, resources=3))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line) == {
        "level": "info",
        "ts": "1970-01-01T00:00:01.500Z",
        "event": "leading",
        "message": "This operator leads and reconciles",
        "identity": "a",
    }


def test_what_a_library_says_is_told_without_its_text() -> None:
    told: list[Observation] = []
    logger = logging.Logger("kopf.test")
    now = [0.0]
    logger.addHandler(FrameworkLog(told.append, 60, lambda: now[0]))
    logger.warning("body was %s", {"data": "tlr_hidden"})
    logger.info("nothing")
    try:
        raise RuntimeError("tlr_hidden")
    except RuntimeError:
        logger.exception("tlr_hidden")
    logger.warning("again")
    assert [dict(each.fields) for each in told] == [
        {"logger": "kopf.test", "level": "warning", "error": None},
        {"logger": "kopf.test", "level": "error", "error": "RuntimeError"},
    ]
    now[0] = 61
    logger.warning("again")
    assert len(told) == 3


def test_metrics_count_and_are_documented() -> None:
    metrics = Metrics()
    metrics(observation(Event.QUEUE_CHANGED, waiting=3, running=1))
    metrics(observation(Event.RECONCILED, kind="QueryAPI", namespace="a", name="b", duration_s=0.1, again_s=None))
    metrics(observation(Event.RECONCILE_FAILED, kind="QueryAPI", namespace="a", name="b", reason="conflict", detail="", failures=1))
    metrics(observation(Event.API_CALLED, verb="get", resource="secrets", outcome="ok", duration_s=0.1))
    metrics(observation(Event.PODS_POLLED, answered=2, silent=1))
    text = generate_latest(metrics.registry).decode()
    assert "tailrace_operator_queue_depth 3.0" in text
    assert 'tailrace_operator_reconciles_total{kind="QueryAPI",outcome="conflict"} 1.0' in text
    assert 'tailrace_operator_pods_polled_total{outcome="silent"} 1.0' in text
    page = (Path(__file__).parents[2] / "docs" / "metrics-operator.md").read_text()
    documented = set(re.findall(r"`(tailrace_operator_[a-z_]+)`", page))
    there = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in metrics.registry.collect()}
    assert documented == there
    assert set(re.findall(r"^\| `([a-z_]+)` \| (?:debug|info|warning|error) \|", page, re.M)) == {
        event.value for event, declared in DECLARED.items() if declared.level is not None
    }


def test_a_standby_is_alive_and_a_leader_while_it_lists() -> None:
    assert Health().is_live(1e9)
    assert Health(is_leading=True).is_live(1e9), "it has not had the time yet"
    leader = Health(is_leading=True, last_list=100)
    assert leader.is_live(100 + STALE_S)
    assert not leader.is_live(101 + STALE_S)
