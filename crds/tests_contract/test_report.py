"""Golden reports: the data plane's tests read the same files (`dataplane-rs/src/plan/report.rs`)."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from tailrace_contract.golden import FOLDER
from tailrace_contract.report import Report

INVALID = sorted(FOLDER.glob("invalid/report-*.json"))


def test_a_report_is_read_and_written_as_it_was() -> None:
    content = (FOLDER / "valid" / "report-full.json").read_bytes()
    assert Report.model_validate_json(content).to_json() + b"\n" == content


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_an_invalid_report_is_refused(file: Path) -> None:
    vector = json.loads(file.read_text())
    assert vector["reason"]
    with pytest.raises(ValidationError):
        Report.model_validate_json(json.dumps(vector["report"]))
