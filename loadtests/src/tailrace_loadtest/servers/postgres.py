"""A private PostgreSQL 15: own data folder, own port, ended with its handle.

Binaries come from Debian's `postgresql` (or `PG_BIN`). As root the server runs as the user `postgres`, because it refuses root.
"""

import contextlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

INSTALL_HINT = "install PostgreSQL 15: apt-get install postgresql"
_PORTS = (12_000, 30_000)


class ServerMissing(RuntimeError):
    """The program is not installed; the message says which command brings it."""


def free_port() -> int:
    """A TCP port of loopback that is free now. Below the ports that the kernel gives to outgoing connections, so that none of these takes it meanwhile;
    at random, so that tests in several processes don't take each other's."""
    for _ in range(100):
        port = random.SystemRandom().randint(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port between {_PORTS[0]} and {_PORTS[1]}")


def binaries() -> Path:
    """Folder of initdb, postgres, pg_ctl; ServerMissing when there is none."""
    if "PG_BIN" in os.environ:
        return Path(os.environ["PG_BIN"])
    for version in ("15", "16", "17"):
        folder = Path(f"/usr/lib/postgresql/{version}/bin")
        if (folder / "initdb").exists():
            return folder
    raise ServerMissing(INSTALL_HINT)


class Postgres:
    """A running server. `with Postgres() as server:` starts and ends it; superuser `postgres`, trust on loopback."""

    def __init__(self, settings: Mapping[str, str] | None = None, hba: str | None = None) -> None:
        self.bin = binaries()
        self.port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="tailrace-pg-", dir="/var/tmp"))
        self.data = self.home / "data"
        self.settings = dict(settings or {})
        self.hba = hba
        self._process: subprocess.Popen[bytes] | None = None

    def _as_server(self, *command: str | Path) -> list[str]:
        words = [str(word) for word in command]
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *words] if os.geteuid() == 0 else words

    def __enter__(self) -> "Postgres":
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.home, user.pw_uid, user.pw_gid)
        initdb = self._as_server(self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/")
        if self.hba is not None:
            (self.data / "pg_hba.conf").write_text(self.hba)
        self.start()
        return self

    def start(self) -> None:
        """Starts the server on its data folder and waits until it answers."""
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": str(self.home), "fsync": "off"}
        options |= self.settings
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._as_server(self.bin / "postgres", "-D", self.data, *words), stdout=log, stderr=log, cwd="/"
            )
        ready = [str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(300):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"PostgreSQL did not start: {(self.home / 'log').read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        """The postmaster's process id, while it runs."""
        assert self._process is not None, "the server runs"
        return self._process.pid

    def stop(self, mode: str = "fast") -> None:
        """Ends the server (`fast`, or `immediate` for a crash) and leaves its data."""
        if self._process is None:
            return
        subprocess.run(
            self._as_server(self.bin / "pg_ctl", "-D", self.data, "-m", mode, "-w", "stop"), check=False, stdout=subprocess.DEVNULL, cwd="/"
        )
        self._process.wait(30)
        self._process = None

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """libpq URI over TCP."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def psql(self, sql: str, database: str = "postgres", *options: str, user: str = "postgres") -> str:
        """Runs SQL by the database's own client and returns what it prints (`-qAtX`); raises with its error."""
        command = [str(self.bin / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", *options, self.url(database, user)]
        done = subprocess.run(command, input=sql, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout
