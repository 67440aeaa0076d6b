"""The worker's command line."""

from pathlib import Path

import pytest
from tailrace_gateway.errors import SettingsError
from tailrace_gateway.secret import SecretUnusable, read_or_make_secret
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


CLUSTER = ["--api", "retail/shop", "--kubernetes", "--data", "d", "--secrets", "s", "--configs", "c", "--secret", "g/secret"]


def test_a_pod_names_everything() -> None:
    settings = parse_settings([*CLUSTER, "--metrics", "0.0.0.0:9091"])
    assert settings.kubernetes
    assert str(settings.api) == "retail/shop"
    assert settings.secrets_folder == Path("s").absolute()
    assert settings.secret_file == Path("g/secret")
    assert parse_settings(["-f", "x", "--data", "d"]).secrets_folder == Path("d/secrets").absolute()
    assert parse_settings(["-f", "x", "--data", "d"]).secret_file == Path("d/gateway-secret")


@pytest.mark.parametrize("flag", ["--api", "--secrets", "--configs", "--secret"])
def test_a_pod_needs_each(flag: str) -> None:
    at = CLUSTER.index(flag)
    with pytest.raises(SettingsError, match=f"--kubernetes needs {flag}"):
        parse_settings(CLUSTER[:at] + CLUSTER[at + 2 :])


@pytest.mark.parametrize("words", [["-f", "x", "--kubernetes"], ["-f", "x", "--configs", "c"], ["-f", "x", "--secrets", "s"], []])
def test_what_does_not_go_together(words: list[str]) -> None:
    with pytest.raises(SettingsError):
        parse_settings(words)


def test_a_mounted_secret_is_never_made(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="missing"):
        read_or_make_secret(tmp_path / "secret", make=False)
    assert not (tmp_path / "secret").exists()
    assert read_or_make_secret(tmp_path / "secret") == read_or_make_secret(tmp_path / "secret", make=False)
