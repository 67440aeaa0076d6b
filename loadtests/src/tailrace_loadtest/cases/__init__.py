"""QueryAPIs over real data, as files: the gates serve them, tests and docs may too. Their Secrets are made where they are served."""

from pathlib import Path

FOLDER = Path(__file__).parent


def path(name: str) -> Path:
    """A file of this folder."""
    return FOLDER / name
