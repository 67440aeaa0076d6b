"""Golden files that both languages read (`crds/golden`), for the tests of every part. Reads files of the repository, nothing else."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "golden"


def vectors(name: str) -> Any:
    """One file of vectors."""
    return json.loads((FOLDER / "vectors" / name).read_text())


def raw(vector: dict[str, Any]) -> bytes:
    """The bytes that `text` or `hex` of a vector stand for."""
    return vector["text"].encode() if "text" in vector else bytes.fromhex(vector["hex"])
