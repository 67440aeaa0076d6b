"""A private MariaDB: own data folder, own port, own socket, ended with its handle.

Programs come from Debian's `mariadb-server`. As root the server runs as the user `mysql`.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tailrace_loadtest.servers.postgres import ServerMissing, free_port

SERVER = Path("/usr/sbin/mariadbd")
CLIENT = Path("/usr/bin/mariadb")
INSTALL = Path("/usr/bin/mariadb-install-db")
INSTALL_HINT = "install MariaDB: apt-get install mariadb-server"
_SIZES = {"innodb_buffer_pool_size": "64M", "innodb_log_file_size": "8M", "aria_pagecache_buffer_size": "8M", "key_buffer_size": "1M"}
_FAST = {"innodb_flush_log_at_trx_commit": "2", "innodb_doublewrite": "0", "performance_schema": "off"}


class Mariadb:
    """A running server. `with Mariadb() as server:` starts and ends it; `root` without a password, from loopback and the socket."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        if not SERVER.exists() or not INSTALL.exists():
            raise ServerMissing(INSTALL_HINT)
        self.port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="tailrace-my-", dir="/var/tmp"))
        self.data = self.home / "data"
        self.socket = self.home / "sock"
        self.settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Mariadb":
        if os.geteuid() == 0:
            user = pwd.getpwnam("mysql")
            os.chown(self.home, user.pw_uid, user.pw_gid)
        words = [f"--datadir={self.data}", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        words += [f"--{name}={value}" for name, value in _SIZES.items()]
        made = subprocess.run([str(INSTALL), "--no-defaults", *self._user(), *words], check=False, capture_output=True, text=True, cwd="/")
        if made.returncode:
            raise RuntimeError(f"MariaDB could not make its data folder: {made.stdout[-1500:]}{made.stderr[-500:]}")
        self.start()
        return self

    def _user(self) -> list[str]:
        return ["--user=mysql"] if os.geteuid() == 0 else []

    def start(self) -> None:
        """Starts the server on its data folder and waits until it answers."""
        options = {
            "datadir": str(self.data),
            "socket": str(self.socket),
            "port": str(self.port),
            "bind_address": "127.0.0.1",
            "pid_file": str(self.home / "pid"),
            "tmpdir": str(self.home),
            "max_connections": "400",
            "character_set_server": "utf8mb4",
        }
        options |= _SIZES | _FAST | self.settings
        words = [f"--{name}={value}" for name, value in options.items()]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(SERVER), "--no-defaults", *self._user(), "--skip-log-bin", "--skip-name-resolve", *words],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        for _ in range(600):
            if self._process.poll() is not None:
                break
            try:
                self.sql("SELECT 1")
            except RuntimeError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"MariaDB did not start: {(self.home / 'log').read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        """The server's process id, while it runs."""
        assert self._process is not None, "the server runs"
        return self._process.pid

    def stop(self, *, crash: bool = False) -> None:
        """Ends the server (by SIGKILL if `crash`) and leaves its data."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if crash else signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        self._process = None

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(crash=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database: str, user: str = "root", password: str = "") -> str:
        """URL over TCP."""
        secret = f":{password}" if password else ""
        return f"mysql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def sql(self, text: str, database: str = "") -> str:
        """Runs SQL by the database's own client and returns what it prints (no header, tabs between columns); raises with its error."""
        command = [str(CLIENT), "--no-defaults", f"--socket={self.socket}", "--user=root", "--batch", "--skip-column-names", "--raw"]
        command += ["--default-character-set=utf8mb4", *([database] if database else [])]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout
