"""A private PgBouncer in transaction mode in front of a `Postgres`, ended with its handle.

Debian's `pgbouncer` (or `PGBOUNCER`). It refuses to run as root, so as root it runs as the user `postgres`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tailrace_loadtest.servers.postgres import Postgres, ServerMissing, free_port

INSTALL_HINT = "install PgBouncer: apt-get install pgbouncer"


def program() -> str:
    """The installed program; ServerMissing when there is none."""
    found = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        raise ServerMissing(INSTALL_HINT)
    return found


class PgBouncer:
    """A running pooler: `with PgBouncer(server) as pooler:`. Every database of the server, any user, trust on loopback.

    `pool_size` is the number of server connections per database and user; `settings` are lines of its [pgbouncer] section.
    """

    def __init__(self, server: Postgres, pool_size: int = 8, settings: dict[str, str] | None = None) -> None:
        self.server = server
        self.port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="tailrace-pgb-", dir="/var/tmp"))
        values = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": str(self.home),
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
            "max_client_conn": "500",
            "logfile": str(self.home / "log"),
        }
        self.settings = values | (settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PgBouncer":
        lines = ["[databases]", f"* = host=127.0.0.1 port={self.server.port} user=postgres", "[pgbouncer]"]
        config = self.home / "pgbouncer.ini"
        config.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in self.settings.items())]) + "\n")
        command = [program(), "-q", str(config)]
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            for path in (self.home, config):
                os.chown(path, user.pw_uid, user.pw_gid)
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]
        self._process = subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ready = [str(self.server.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(100):
            if subprocess.run(ready, check=False).returncode == 0:
                return self
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        log = self.home / "log"
        raise RuntimeError(f"PgBouncer did not start: {log.read_text()[-2000:] if log.exists() else 'it wrote no log'}")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """libpq URI of a database behind the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
