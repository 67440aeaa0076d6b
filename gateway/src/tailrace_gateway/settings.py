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

    `listen` set: Python serves alone, on TCP too, and no plans are pushed. `files` and `snapshot`: where plans come from, exactly one.
    """

    data: Path = Path(".tailrace")
    listen: Address | None = None
    metrics: Address | None = None
    snapshot: Path | None = None
    files: tuple[Path, ...] = ()
    api: Ref | None = None
    """Which QueryAPI, when the files have several."""

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
        """The API's own secret, from which mask and cursor keys come."""
        return self.data / "gateway-secret"


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


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Reads `--data DIR --listen ADDR --metrics ADDR --snapshot FILE --api NAME -f FILE…`; SettingsError with every fault."""
    settings = Settings()
    faults: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in ("--data", "--listen", "--metrics", "--snapshot", "--api", "-f", "--file"):
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
    if (settings.snapshot is None) == (not settings.files):
        faults.append("give either -f FILE… or --snapshot FILE")
    if faults:
        raise SettingsError(tuple(faults))
    return settings
