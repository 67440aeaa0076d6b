"""Starts processes, restarts those that die, ends them in order. Standard library only; IO: processes and signals.

Each child stands in its own process group, so that Ctrl-C reaches only us, and the kernel kills it when we die, however that happens.
A child that exits with a usage error (64) would only do so again: then all ends.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from tailrace_gateway.restarts import BACK_OFF_S, EXIT_USAGE, fate, next_delay

PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Child:
    """A program to keep running. `grace_s`: from SIGTERM to SIGKILL. `restarts` counts."""

    name: str
    argv: Sequence[str]
    grace_s: float
    log: IO[bytes] | None = None
    restarts: int = -1
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)


def _die_with(parent: int, prctl: Callable[..., int] | None) -> Callable[[], None]:
    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare


class Supervisor:
    """Keeps children alive until it is told to end; then ends them one after the other, the first first."""

    def __init__(self, children: Sequence[Child], tell: Callable[[str], None] = lambda text: None) -> None:
        self.children = children
        self._tell = tell
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._result = 0

    def end(self, result: int | None = None) -> None:
        """Begins the end; called again, hurries it: SIGKILL."""
        if self._ending.is_set() and result is None:
            self._hurry.set()
        self._result = self._result if result is None else result
        self._ending.set()

    async def run(self) -> int:
        """Until the end; the exit code. SIGTERM and SIGINT end it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        keepers = [asyncio.create_task(self._keep(child)) for child in self.children]
        await self._ending.wait()
        for child, keeper in zip(self.children, keepers, strict=True):
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            await self._stop(child)
        return self._result

    def _start(self, child: Child) -> subprocess.Popen[bytes]:
        prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
        child.restarts += 1
        child.process = subprocess.Popen(
            child.argv,
            stdin=subprocess.DEVNULL,
            stdout=child.log,
            stderr=child.log,
            process_group=0,
            preexec_fn=_die_with(os.getpid(), prctl),
        )
        return child.process

    async def _keep(self, child: Child) -> None:
        delay = BACK_OFF_S[0]
        while True:
            began = time.monotonic()
            try:
                code = await _exit(self._start(child))
            except OSError as error:
                self._tell(f"{child.name} can't be started: {error.strerror}")
                return self.end(1)
            if code == EXIT_USAGE:
                self._tell(f"{child.name} does not understand how it was started")
                return self.end(EXIT_USAGE)
            delay = next_delay(delay, time.monotonic() - began)
            self._tell(f"{child.name} {fate(code)}; it is started again in {delay:.1f} s")
            await asyncio.sleep(delay)

    async def _stop(self, child: Child) -> None:
        if child.process is None or child.process.poll() is not None:
            return
        child.process.terminate()
        gone = asyncio.create_task(_exit(child.process))
        await asyncio.wait({gone, hurry := asyncio.create_task(self._hurry.wait())}, timeout=child.grace_s, return_when="FIRST_COMPLETED")
        hurry.cancel()
        if not gone.done():
            self._tell(f"{child.name} did not end in time and is killed")
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
        await gone


async def _exit(process: subprocess.Popen[bytes]) -> int:
    """Waits for the end without a thread: the kernel tells through a descriptor."""
    if process.poll() is None:
        descriptor = os.pidfd_open(process.pid)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return process.wait()
