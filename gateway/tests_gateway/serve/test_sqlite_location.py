"""The same file for the same URL as in the data plane."""

import json
from pathlib import Path

import pytest
from tailrace_gateway.serve.sqlite.location import database_path

VECTORS = Path(__file__).parents[3] / "crds/golden/vectors/sqlite_url.json"


@pytest.mark.parametrize("case", json.loads(VECTORS.read_text()), ids=lambda case: case["url"] or "empty")
def test_urls_as_the_vectors_say(case: dict[str, str | None]) -> None:
    url = case["url"]
    assert url is not None
    if case["path"] is None:
        with pytest.raises(ValueError, match=r"not|codec"):
            database_path(url)
    else:
        assert database_path(url) == Path(case["path"])
