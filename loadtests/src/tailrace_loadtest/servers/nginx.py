"""A private nginx that serves one static JSON answer: the yardstick of a call's CPU time on this machine. Debian's `nginx-light`."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from tailrace_loadtest.servers.postgres import ServerMissing, free_port

INSTALL_HINT = "install nginx: apt-get install nginx-light"
BODY = '{"path":"/users/123456","id":123456,"name":"User 123456","tier":"business"}'

CONFIG = """
daemon off; worker_processes 1; pid {home}/pid; error_log {home}/error.log; {user}
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; default_type application/json; tcp_nodelay on;
  client_body_temp_path {home}; proxy_temp_path {home}; fastcgi_temp_path {home}; uwsgi_temp_path {home}; scgi_temp_path {home};
  open_file_cache max=10 inactive=1h; open_file_cache_valid 1h;
  server {{ listen 127.0.0.1:{port} backlog=1024; root {home}/www; location = /q/user {{ try_files /user.json =404; }} }}
}}
"""


class Nginx:
    """`with Nginx(cpu=0) as server:`; `server.url`, `server.pid` (the master; its worker is below it)."""

    def __init__(self, cpu: int | None = None) -> None:
        found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if found is None:
            raise ServerMissing(INSTALL_HINT)
        self._program, self._cpu = found, cpu
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = Path(tempfile.mkdtemp(prefix="tailrace-nginx-", dir="/var/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The master's process id."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "Nginx":
        (self.home / "www").mkdir()
        (self.home / "www" / "user.json").write_text(BODY)
        config = self.home / "nginx.conf"
        config.write_text(CONFIG.format(home=self.home, port=self.port, user="user root;" if os.geteuid() == 0 else ""))
        pin = ["taskset", "-c", str(self._cpu)] if self._cpu is not None else []
        self._process = subprocess.Popen([*pin, self._program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                with urllib.request.urlopen(f"{self.url}/q/user", timeout=1):  # noqa: S310
                    return self
            except OSError:
                time.sleep(0.05)
        self.__exit__(None, None, None)
        raise RuntimeError("nginx did not start")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)
