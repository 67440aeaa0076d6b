"""What the worker is told on its command line, parsed once into one frozen value. No IO.

Rejects with `SettingsError`, which lists all faults together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace_contract.ids import Ref, parse_ref

from tailrace_gateway.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Address:
    """Host and TCP port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The worker's settings.

    `listen` set: Python serves alone, on TCP too, and no plans are pushed. `files`, `snapshot` and `kubernetes`: where plans come from,
    exactly one. `secrets`, `configs`, `secret`: where a cluster mounts what local mode keeps below `data`.
    """

    data: Path = Path(".tailrace")
    listen: Address | None = None
    metrics: Address | None = None
    snapshot: Path | None = None
    files: tuple[Path, ...] = ()
    api: Ref | None = None
    """Which QueryAPI, when the files have several; in a cluster always."""
    kubernetes: bool = False
    """Resources come from the API server of the cluster that this runs in."""
    secrets: Path | None = None
    configs: Path | None = None
    secret: Path | None = None

    @property
    def alone(self) -> bool:
        """No data plane is in front."""
        return self.listen is not None

    @property
    def gateway_socket(self) -> Path:
        """Where the worker listens for what the data plane forwards."""
        return self.data / "run" / "gateway.sock"

    @property
    def data_plane_socket(self) -> Path:
        """Where the data plane takes plans."""
        return self.data / "run" / "dataplane.sock"

    @property
    def secret_file(self) -> Path:
        """The API's own secret, from which mask and cursor keys come. Made when it is missing, unless it was named."""
        return self.secret if self.secret is not None else self.data / "gateway-secret"

    @property
    def secrets_folder(self) -> Path:
        """Below it NAMESPACE/SECRET/KEY."""
        return (self.secrets if self.secrets is not None else self.data / "secrets").absolute()


def parse_address(text: str) -> Address:
    """Reads `HOST:PORT` or `[IPv6]:PORT`; ValueError when it is not one."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("not HOST:PORT")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("not HOST:PORT")
    return Address(host, int(port))


FLAGS = ("--data", "--listen", "--metrics", "--snapshot", "--api", "--secrets", "--configs", "--secret", "-f", "--file")
"""Those that have a value."""


def _needed(settings: Settings) -> tuple[tuple[str, object], ...]:
    return (
        ("--api NAMESPACE/NAME", settings.api),
        ("--secrets DIR", settings.secrets),
        ("--configs DIR", settings.configs),
        ("--secret FILE", settings.secret),
    )


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Reads the worker's flags (docs/contract.md); SettingsError with every fault."""
    settings = Settings()
    faults: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--kubernetes":
            settings = replace(settings, kubernetes=True)
            continue
        if name not in FLAGS:
            faults.append(f"unknown argument {name}")
            continue
        if not equals:
            if not rest:
                faults.append(f"{name} needs a value")
                continue
            value = rest.pop(0)
        match name:
            case "--data":
                settings = replace(settings, data=Path(value))
            case "--snapshot":
                settings = replace(settings, snapshot=Path(value))
            case "--secrets":
                settings = replace(settings, secrets=Path(value))
            case "--configs":
                settings = replace(settings, configs=Path(value))
            case "--secret":
                settings = replace(settings, secret=Path(value))
            case "--api":
                try:
                    settings = replace(settings, api=parse_ref(value))
                except ValueError:
                    faults.append("--api must be [NAMESPACE/]NAME")
            case "-f" | "--file":
                settings = replace(settings, files=(*settings.files, Path(value)))
            case _:
                try:
                    address = parse_address(value)
                except ValueError:
                    faults.append(f"{name} must be HOST:PORT")
                    continue
                settings = replace(settings, listen=address) if name == "--listen" else replace(settings, metrics=address)
    if (settings.snapshot is not None) + bool(settings.files) + settings.kubernetes != 1:
        faults.append("give one of -f FILE…, --snapshot FILE and --kubernetes")
    if settings.kubernetes:
        faults += [f"--kubernetes needs {name}" for name, value in _needed(settings) if value is None]
    elif settings.configs is not None:
        faults.append("--configs goes with --kubernetes only")
    if settings.secrets is not None and settings.files:
        faults.append("--secrets does not go with -f: Secrets of files are kept below --data")
    if faults:
        raise SettingsError(tuple(faults))
    return settings
