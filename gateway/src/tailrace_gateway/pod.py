"""PID 1 of the gateway's container: keeps the worker alive and never exits while the pod lives.

A container that exits is not ready, and its pod takes no calls; a worker that keeps dying must not do that to a data plane that serves. So
every end of the worker, also one that no restart will cure, is answered with another start after a back-off of at most 5 s. Orphans are
reaped. SIGTERM and SIGINT are handed on; the worker decides when it is done (once the data plane has gone), and with it this ends.
Standard library only. IO: one process, signals, lines on standard error as the worker's own (docs/metrics-gateway.md).
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence

from tailrace_gateway.restarts import BACK_OFF_S, fate, next_delay

ENDING = (signal.SIGTERM, signal.SIGINT)
WATCHED = (*ENDING, signal.SIGCHLD)


class Pod:
    """The worker's command and what became of it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._pid: int | None = None
        self._began = 0.0
        self._delay_s = BACK_OFF_S[0]
        self._due = 0.0
        self._restarts = -1

    def run(self) -> int:
        """Until the worker has ended after a signal that asks for the end; its exit code."""
        # Blocked signals wait to be fetched: none can come between a look and the wait that follows it.
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        ending = False
        code = 0
        while self._pid is not None or not ending:
            if self._pid is None and time.monotonic() >= self._due:
                self._start()
            wait_s = 60.0 if self._pid is not None else max(0.0, self._due - time.monotonic())
            got = signal.sigtimedwait(WATCHED, wait_s)
            if got is not None and got.si_signo in ENDING:
                ending = True
                if self._pid is not None:
                    os.kill(self._pid, got.si_signo)
            code = self._reap(code, ending)
        return code

    def _start(self) -> None:
        self._restarts += 1
        self._began = time.monotonic()
        try:
            self._pid = os.posix_spawn(self._argv[0], self._argv, os.environ, setsigmask=())
        except OSError as error:
            self._again(error.strerror or type(error).__name__)

    def _reap(self, code: int, ending: bool) -> int:
        """Every process that has ended; the worker's exit code if it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return code
            if pid == 0:
                return code
            if pid == self._pid:
                self._pid = None
                ended = os.waitstatus_to_exitcode(status)
                code = ended if ended >= 0 else 128 - ended
                if not ending:
                    self._again(fate(ended))

    def _again(self, how: str) -> None:
        self._delay_s = next_delay(self._delay_s, time.monotonic() - self._began)
        self._due = time.monotonic() + self._delay_s
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        line = {"level": "error", "ts": stamp, "event": "worker_ended", "message": "The gateway worker ended; it is started again"}
        line |= {"fate": how, "restarts": str(self._restarts), "delay_ms": str(round(self._delay_s * 1000))}
        sys.stderr.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Entry point of the container: every argument is the worker's."""
    return Pod([sys.executable, "-m", "tailrace_gateway", "worker", *arguments]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
