"""kubectl as its user set it up: kubeconfig, context, every way to log in. IO: its processes, ports on loopback that it forwards.

Rejects with `KubectlFailed`, which holds what kubectl said; what it printed as a result (a Secret's text may be in it) is never in an error.
"""

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, NoReturn

GET_S = 60.0
FORWARD_S = 30.0
"""Until a forwarded port listens."""
EXEC_S = 900.0
END_S = 5.0
MESSAGE_LENGTH = 1000

Object = dict[str, Any]
"""A Kubernetes object as JSON; `objects` makes values of it."""


class KubectlFailed(Exception):
    """kubectl did not do it. The text is for people: it names the right that is missing, if it is that."""

    @property
    def forbidden(self) -> bool:
        """Whether the user may not."""
        return "(Forbidden)" in str(self) or "is forbidden:" in str(self)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster. `flags`: which, and as whom (`--context`, …); `namespace`: empty for the context's own."""

    flags: tuple[str, ...] = ()
    namespace: str = ""
    program: str = "kubectl"

    def words(self, *words: str, namespace: str = "") -> list[str]:
        """A whole command."""
        scope = namespace or self.namespace
        return [self.program, *self.flags, *((f"--namespace={scope}",) if scope else ()), *words]

    def run(self, *words: str, namespace: str = "", given: str | None = None, timeout_s: float = GET_S) -> str:
        """What a command printed. `given`: its standard input."""
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
        try:
            done = subprocess.run(
                self.words(*words, namespace=namespace), capture_output=True, text=True, timeout=timeout_s, check=False, **source
            )
        except FileNotFoundError:
            raise KubectlFailed("kubectl is not on PATH") from None
        except subprocess.TimeoutExpired:
            raise KubectlFailed(f"kubectl {words[0]}: no answer within {timeout_s:.0f} s") from None
        if done.returncode:
            raise KubectlFailed(said(done.stderr) or f"kubectl {words[0]} ended with exit code {done.returncode}")
        printed: str = done.stdout
        return printed

    def get(self, *words: str, namespace: str = "") -> list[Object]:
        """Objects; none when there is none."""
        text = self.run("get", *words, "--output=json", "--ignore-not-found", namespace=namespace)
        if not text.strip():
            return []
        found = json.loads(text)
        if found.get("kind") == "List":
            return [each for each in found.get("items", []) if isinstance(each, dict)]
        return [found]

    def current_namespace(self) -> str:
        """What objects without a namespace belong to."""
        if self.namespace:
            return self.namespace
        found = self.run("config", "view", "--minify", "--output=jsonpath={..namespace}").split()
        return found[0] if found else "default"

    @contextmanager
    def forward(self, target: str, port: int, namespace: str = "") -> Iterator[int]:
        """A port on 127.0.0.1 that leads to a pod's or Service's (`pod/x`), as long as the context."""
        words = self.words("port-forward", "--address=127.0.0.1", target, f":{port}", namespace=namespace)
        with tempfile.TemporaryFile() as errors:
            try:
                child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
            except FileNotFoundError:
                raise KubectlFailed("kubectl is not on PATH") from None
            try:
                assert child.stdout is not None
                yield _listening(child.stdout, errors)
            finally:
                child.terminate()
                try:
                    child.wait(END_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                if child.stdout is not None:
                    child.stdout.close()

    def exec(self, namespace: str, pod: str, container: str, *words: str, given: str | None = None, timeout_s: float = EXEC_S) -> str:
        """What a program in a container printed."""
        interactive = ("--stdin",) if given is not None else ()
        command = ("exec", *interactive, pod, f"--container={container}", "--", *words)
        return self.run(*command, namespace=namespace, given=given, timeout_s=timeout_s)

    def exec_shown(self, namespace: str, pod: str, container: str, *words: str, given: str | None = None) -> int:
        """Runs a program in a container, its output going where ours goes; its exit code.

        With `given` its standard input is that text; without, it stays open until we end, by which the program can tell that nobody listens.
        """
        command = self.words("exec", "--stdin", pod, f"--container={container}", "--", *words, namespace=namespace)
        try:
            child = subprocess.Popen(command, stdin=subprocess.PIPE)
        except FileNotFoundError:
            raise KubectlFailed("kubectl is not on PATH") from None
        assert child.stdin is not None
        try:
            if given is not None:
                with suppress(BrokenPipeError):
                    child.stdin.write(given.encode())
                child.stdin.close()
            return child.wait()
        finally:
            with suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def said(errors: str) -> str:
    """What kubectl wrote, without blank lines and what a remote command's end adds."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith("command terminated with exit code")]
    return "\n".join(lines).removeprefix("error: ")[:MESSAGE_LENGTH]


def _listening(printed: IO[bytes], errors: IO[bytes]) -> int:
    """The port of `Forwarding from 127.0.0.1:40123 -> 9090`."""
    lines: queue.Queue[bytes] = queue.Queue(1)

    def first() -> None:
        with suppress(ValueError, OSError):
            lines.put(printed.readline())

    threading.Thread(target=first, daemon=True).start()
    try:
        line = lines.get(timeout=FORWARD_S)
    except queue.Empty:
        line = b""
    words = line.split()
    if len(words) > 2 and words[0] == b"Forwarding":
        return int(words[2].rpartition(b":")[2])
    _failed(errors)


def _failed(errors: IO[bytes]) -> NoReturn:
    errors.seek(0)
    raise KubectlFailed(said(errors.read(4 * MESSAGE_LENGTH).decode(errors="replace")) or "kubectl port-forward: the port did not open")


def flags_of(context: str | None, kubeconfig: str | None, user: str | None) -> Sequence[str]:
    """kubectl's own flags."""
    given = (("--context", context), ("--kubeconfig", kubeconfig), ("--as", user))
    return [f"{name}={value}" for name, value in given if value is not None]
