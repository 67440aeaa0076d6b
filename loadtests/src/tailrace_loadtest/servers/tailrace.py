"""Tailrace itself on files: the gateway's worker and the data plane, started as docs/contract.md says, restarted when they die.

Every path is below one private data directory, so several can run at once. The keys are minted here, so that two stacks can share them.
"""

import contextlib
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import yaml
from tailrace_contract import keys as key_text

from tailrace_loadtest.generator import program
from tailrace_loadtest.servers.postgres import free_port

READY_S = 60.0
STOP_S = 60.0


def data_plane_program() -> Path:
    """The data plane, built if cargo is there; `TAILRACE_DATAPLANE` names another."""
    return program("tailrace-dataplane", "tailrace-dataplane", "TAILRACE_DATAPLANE", os.environ.get("TAILRACE_PROFILE", "release"))


def _private(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)


class Identity:
    """What two stacks must share to give equal answers: the API's own secret and every key's text."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.gateway_secret = secrets.token_hex(32)
        self.keys: dict[str, str] = {}
        self.namespace = "default"
        for path in files:
            for each in yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                if each and each.get("kind") == "ApiKey" and "secretName" in each["spec"]:
                    self.namespace = each["metadata"].get("namespace", "default")
                    self.keys[each["spec"]["secretName"]] = key_text.mint(os.urandom(key_text.ENTROPY_BYTES))


class Tailrace:
    """A running stack: `with Tailrace(files, urls) as stack:`; `stack.url`, `stack.keys`.

    `urls`: Secret name → database URL; `secrets`: further Secrets. `authority`: the API has TLS, with a certificate that this file trusts. `data_plane` false: Python alone on the same port. `threads` and `options` go to the data plane.
    """

    def __init__(
        self,
        files: Iterable[Path],
        urls: Mapping[str, str],
        *,
        data_plane: bool = True,
        identity: Identity | None = None,
        threads: int | None = None,
        options: Iterable[str] = (),
        taskset: str | None = None,
        ready_s: float = READY_S,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        authority: Path | None = None,
    ) -> None:
        self.files = list(files)
        self.identity = identity or Identity(self.files)
        self.keys = self.identity.keys
        self.home = Path(tempfile.mkdtemp(prefix="tailrace-", dir="/var/tmp"))
        self.data = self.home / "data"
        self.port, self.admin, self.metrics = free_port(), free_port(), free_port()
        self.url = f"{'http' if authority is None else 'https'}://127.0.0.1:{self.port}"
        self._tls = None if authority is None else ssl.create_default_context(cafile=authority)
        self.has_data_plane = data_plane
        self._threads, self._options, self._taskset = threads, list(options), taskset
        self._ready_s = ready_s
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self.restarts = 0
        self.probes: list[str] = []
        """Run ids of our own calls in `wait_ready`."""
        self.unheard = 0
        """Our own calls that got no answer."""
        for name, text in self.keys.items():
            _private(self.data / "keys" / self.identity.namespace / name, text + "\n")
        _private(self.data / "gateway-secret", self.identity.gateway_secret)
        self.data.chmod(0o700)
        self.secrets = self.home / "secrets.yaml"
        documents = [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": self.identity.namespace},
                "stringData": data,
            }
            for name, data in (
                {name: {"url": url} for name, url in urls.items()} | {name: dict(data) for name, data in (secrets or {}).items()}
            ).items()
        ]
        self.secrets.write_text(yaml.safe_dump_all(documents))

    def commands(self) -> dict[str, list[str]]:
        """Command line of each process."""
        worker = [sys.executable, "-m", "tailrace_gateway", "worker", "--data", str(self.data), "--metrics", f"127.0.0.1:{self.metrics}"]
        for path in (*self.files, self.secrets):
            worker += ["-f", str(path)]
        if not self.has_data_plane:
            return {"gateway": [*worker, "--listen", f"127.0.0.1:{self.port}"]}
        plane = [
            str(data_plane_program()),
            "--listen",
            f"127.0.0.1:{self.port}",
            "--admin",
            f"127.0.0.1:{self.admin}",
            "--data",
            str(self.data),
        ]
        plane += ["--lame-duck", "0s", *self._options]
        if self._threads is not None:
            plane += ["--threads", str(self._threads)]
        pin = ["taskset", "-c", self._taskset] if self._taskset else []
        return {"gateway": worker, "dataplane": [*pin, *plane]}

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __enter__(self) -> "Tailrace":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        """Starts what isn't running and waits until calls are answered; then dead processes are started again at once."""
        for name, command in self.commands().items():
            self._spawn(name, command)
        self.wait_ready()
        self._stopping.clear()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._stopping.wait(0.02):
            for name, process in list(self.processes.items()):
                if process.poll() is not None and not self._stopping.is_set():
                    self.restarts += 1
                    self._spawn(name, self.commands()[name])

    def wait_ready(self) -> None:
        """Waits for an answer that is not 503 not_ready."""
        key = next(iter(self.keys.values()), "")
        request = urllib.request.Request(f"{self.url}/q/no_such_query", headers={"X-API-Key": key})  # noqa: S310
        end = time.monotonic() + self._ready_s
        last = "nothing"
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(request, timeout=5, context=self._tls):  # noqa: S310
                    return
            except urllib.error.HTTPError as error:
                self.probes += [run_id for run_id in (error.headers.get("X-Run-Id"),) if run_id]
                if error.code in (404, 403):
                    return
                last = f"{error.code} {error.read()[:200]!r}"
            except (OSError, TimeoutError) as error:
                self.unheard += 1
                last = type(error).__name__
            for name, process in self.processes.items():
                if process.poll() is not None and self._keeper is None:
                    raise RuntimeError(f"{name} ended with {process.returncode}:\n{self.log(name)[-3000:]}")
            time.sleep(0.05)
        raise RuntimeError(f"not ready after {self._ready_s} s ({last}):\n" + "\n".join(self.log(name)[-2000:] for name in self.processes))

    def log(self, name: str) -> str:
        """What a process wrote."""
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pid(self, name: str) -> int:
        """Process id now: `dataplane` or `gateway`."""
        return self.processes[name].pid

    def kill(self, name: str) -> int:
        """kill -9; it is started again within 20 ms. Returns the pid that died."""
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        return process.pid

    def stop(self) -> None:
        """Ends the data plane first, so that its runs are in the store, then Python."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None
        for name in ("dataplane", "gateway"):
            process = self.processes.pop(name, None)
            if process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if value is None or "TAILRACE_KEEP" not in os.environ:
            shutil.rmtree(self.home, ignore_errors=True)
