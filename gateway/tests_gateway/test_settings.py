"""The worker's command line."""

from pathlib import Path

import pytest
from tailrace_gateway.errors import SettingsError
from tailrace_gateway.settings import Address, parse_address, parse_settings


def test_reads_everything() -> None:
    settings = parse_settings(["--data", "d", "--listen=127.0.0.1:8080", "--metrics", "[::1]:9091", "-f", "a.yaml", "-f", "b"])
    assert settings.data == Path("d")
    assert settings.listen == Address("127.0.0.1", 8080)
    assert str(settings.metrics) == "[::1]:9091"
    assert settings.files == (Path("a.yaml"), Path("b"))
    assert settings.alone


def test_all_faults_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(["--listen", "nowhere", "--bogus", "--data"])
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize("text", ["", ":1", "a", "a:b", "a:70000", "::1:80", "a:²"])
def test_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)
