"""A proxy in front of a server that hands every byte on later, so that a database beside us seems some distance away. IO: one process."""

import subprocess
from types import TracebackType

from tailrace_loadtest.generator import program


class Delay:
    """`with Delay(port, each_way_us=250) as delay:`; `delay.port`. Round trips take twice `each_way_us` longer."""

    def __init__(self, port: int, each_way_us: int, cpu: int | None = None) -> None:
        self._command = [
            str(program("tailrace-delay", "tailrace-generator", "TAILRACE_DELAY")), "--to", f"127.0.0.1:{port}", "--delay-us", str(each_way_us),
        ]  # fmt: skip
        self._pin = ["taskset", "-c", str(cpu)] if cpu is not None else []
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> "Delay":
        self._process = subprocess.Popen([*self._pin, *self._command], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "asked for"
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            assert self._process.stdout is not None, "asked for"
            self._process.stdout.close()
