"""CPU and memory of the two containers of a pod. Models and their defaults. Pure. Docstrings become the CRD's descriptions."""

from dataclasses import dataclass

from tailrace_contract.duration import CpuMillis, SizeBytes
from tailrace_contract.resource import Part


class Amounts(Part):
    """CPU and memory."""

    cpu: CpuMillis | None = None
    """Cores (2 or "0.5") or thousandths of a core (250m). At most 256 cores."""
    memory: SizeBytes | None = None
    """A size such as 512Mi. At least 64Mi."""


class Resources(Part):
    """What a container gets. A request that is not given never exceeds a limit that is."""

    requests: Amounts = Amounts()
    """What is set aside for it."""
    limits: Amounts = Amounts()
    """What it can't exceed. Without a cpu limit it may use what the node has to spare."""


class Gateway(Part):
    """The gateway's container: Python, which decides."""

    resources: Resources = Resources()
    """What is not given: requests of 100m and 192Mi, a memory limit of 1Gi, no cpu limit."""


class DataPlane(Part):
    """The data plane's container: Rust, which answers."""

    resources: Resources = Resources()
    """What is not given: requests of 250m and 128Mi, a memory limit of 512Mi, no cpu limit."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """What a container is given in the end: CPU in thousandths of a core (None: no limit), memory in bytes."""

    cpu_request_millis: int
    memory_request_bytes: int
    memory_limit_bytes: int
    cpu_limit_millis: int | None = None


_MI = 1 << 20
GATEWAY = Allotment(100, 192 * _MI, 1024 * _MI)
DATA_PLANE = Allotment(250, 128 * _MI, 512 * _MI)
"""What the containers get when nothing is said (the same in the descriptions above)."""


def allotment(given: Resources, default: Allotment) -> Allotment:
    """What is given, completed by the default: requests are lowered to a given limit, the memory limit raised to a given request."""
    limits, requests = given.limits, given.requests
    memory_limit = limits.memory or max(default.memory_limit_bytes, requests.memory or 0)
    return Allotment(
        cpu_request_millis=requests.cpu or min(default.cpu_request_millis, limits.cpu or default.cpu_request_millis),
        memory_request_bytes=requests.memory or min(default.memory_request_bytes, memory_limit),
        memory_limit_bytes=memory_limit,
        cpu_limit_millis=limits.cpu,
    )
