"""One PostgreSQL for all tests of the compiler, and a way to write an API in a few words."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_loadtest.servers.postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def url_file(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "url"
    path.write_text(postgres.url())
    return path
