"""The committed random vectors are what Python makes of them today, so that the data plane's tests compare with it."""

import importlib.util
from pathlib import Path

from tailrace_contract.golden import FOLDER


def test_the_random_vectors_are_current(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("random_vectors", Path(__file__).with_name("random_vectors.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(tmp_path, 400, 1)
    for file in ("params.json", "values.json", "patterns.json"):
        assert (tmp_path / file).read_text() == (FOLDER / "vectors" / "random" / file).read_text(), "run random_vectors.py again"
