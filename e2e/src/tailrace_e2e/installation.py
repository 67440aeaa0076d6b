"""The chart as it is installed for the tests: by README's own command. IO: helm, kubectl."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tailrace_e2e import readme
from tailrace_e2e.kubectl import Kubectl, command, eventually

NAMESPACE = "tailrace-system"
RELEASE = "tailrace"
OPERATOR = "tailrace-operator"
HEADING = "Quickstart on Kubernetes"
CRDS = "queryapis.tailrace.dev", "apikeys.tailrace.dev", "runstores.tailrace.dev"


def moment() -> str:
    """Now, as the audit log writes moments."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shell(text: str, root: Path, timeout_s: float = 600) -> str:
    """What a script printed; CommandFailed at its first line that fails."""
    return command("bash", "-c", f"set -euo pipefail; cd '{root}'\n{text}", timeout_s=timeout_s).stdout


@dataclass(frozen=True, slots=True)
class Installation:
    """The release `tailrace` in `tailrace-system`."""

    root: Path
    """The clone."""
    away: list[tuple[str, str]] = field(default_factory=list)
    """From when to when the operator was being removed: helm takes its rights before its pods have ended."""

    @contextmanager
    def going(self) -> Iterator[None]:
        """Around a removal; remembers when it was, and waits until the operator's pods have gone."""
        began = moment()
        yield
        eventually("the operator's pods have gone", lambda: not self.pods(), within_s=90)
        self.away.append((began, moment()))

    def install(self) -> str:
        """Installs by README's command. Types that kubectl applied before are made the chart's first, or helm would find conflicts."""
        everywhere = Kubectl()
        if any(everywhere.find("crd", name) is not None for name in CRDS):
            types = command("helm", "template", RELEASE, str(self.root / "charts/tailrace"), "--show-only", "templates/crds.yaml").stdout
            everywhere("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "--filename", "-", given=types)
            for name in CRDS:
                everywhere("annotate", "--overwrite", "crd", name,
                           f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={NAMESPACE}")  # fmt: skip
        return shell(self.commands()[0], self.root)

    def commands(self) -> list[str]:
        """README's lines; the first is the installation."""
        found = readme.commands(self.root / "README.md", HEADING)
        if not found[0].startswith("helm install "):
            raise LookupError("README's first command on Kubernetes is to install the chart")
        return found

    def is_there(self) -> bool:
        """Whether helm knows the release."""
        return any(
            each["name"] == RELEASE for each in json.loads(command("helm", "list", "--namespace", NAMESPACE, "--output", "json").stdout)
        )

    def uninstall(self) -> None:
        """Removes the release, and returns when the operator's pods have gone."""
        with self.going():
            if self.is_there():
                command("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "2m")

    def pods(self) -> list[str]:
        """Names of the operator's pods."""
        return [each["metadata"]["name"] for each in Kubectl(NAMESPACE).list("pod", "app.kubernetes.io/name=tailrace-operator")]

    def logs(self) -> str:
        """What the operator's pods have logged."""
        return "".join(Kubectl(NAMESPACE)("logs", name, "--tail=-1", check=False) for name in self.pods())
