"""kubectl as users run it, with JSON read back. IO: processes. Refuses by `CommandFailed`, which holds what was printed."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object as JSON: tests read single fields of many kinds, so it stays untyped here."""


class CommandFailed(Exception):
    """A command ended with another code than 0; the text holds the command, its output and its errors."""


def command(*words: str, given: str | None = None, timeout_s: float = 300, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end.

    `given` goes to its standard input. Raises CommandFailed on another exit code than 0 (unless `check` is off) and after `timeout_s`.
    """
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(f"{' '.join(words)}: still running after {timeout_s:.0f} s\n{late.stdout!r}\n{late.stderr!r}") from late
    if check and done.returncode:
        raise CommandFailed(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a default namespace (empty: the cluster's objects)."""

    namespace: str = ""

    def __call__(self, *words: str, given: str | None = None, timeout_s: float = 300, check: bool = True) -> str:
        """What the command printed; with `check` off also its errors."""
        scope = ("--namespace", self.namespace) if self.namespace else ()
        done = command("kubectl", *scope, *words, given=given, timeout_s=timeout_s, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def get(self, kind: str, name: str) -> Object:
        """One object; CommandFailed when it isn't there."""
        found: Object = json.loads(self("get", kind, name, "--output", "json"))
        return found

    def find(self, kind: str, name: str) -> Object | None:
        """One object, or None when it isn't there."""
        text = self("get", kind, name, "--output", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, selector: str = "") -> list[Object]:
        """All objects of a kind that the label selector takes."""
        chosen = ("--selector", selector) if selector else ()
        found: list[Object] = json.loads(self("get", kind, *chosen, "--output", "json"))["items"]
        return found

    def apply(self, *documents: Object) -> str:
        """Applies objects on the server's side, as GitOps tools do."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        return self("apply", "--server-side", "--force-conflicts", "--filename", "-", given=text)

    def patch(self, kind: str, name: str, patch: Object, *words: str) -> str:
        """Merges a patch into an object."""
        return self("patch", kind, name, "--type", "merge", "--patch", json.dumps(patch), *words)

    def delete(self, kind: str, name: str, *words: str) -> str:
        """Deletes an object if it is there."""
        return self("delete", kind, name, "--ignore-not-found", *words)


def eventually(what: str, check: Callable[[], T | None], *, within_s: float = 120, every_s: float = 0.5) -> T:
    """The first answer of `check` that is neither None nor False; fails with `what` and the last answer or error when `within_s` are over.

    An AssertionError or CommandFailed of `check` counts as not yet.
    """
    deadline = time.monotonic() + within_s
    last: object = None
    while True:
        try:
            answer = check()
            if answer is not None and answer is not False:
                return answer
            last = answer
        except (AssertionError, CommandFailed, KeyError) as failed:
            last = failed
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:.0f} s: {what}; last: {last!r}")
        time.sleep(every_s)


def condition(found: Object, kind: str) -> Object:
    """A condition of an object's status, or an empty one."""
    return next((each for each in found.get("status", {}).get("conditions", []) if each["type"] == kind), {})


def kept() -> bool:
    """Whether what a run made shall stay for a look (`KEEP=1`)."""
    return os.environ.get("KEEP", "") not in ("", "0")
