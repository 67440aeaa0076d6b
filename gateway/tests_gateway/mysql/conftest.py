"""One MariaDB for all tests of the engine."""

from collections.abc import Iterator

import pytest
from tailrace_loadtest.servers.mariadb import Mariadb


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Mariadb]:
    with Mariadb() as server:
        yield server
