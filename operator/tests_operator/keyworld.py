"""An ApiKey's world for tests: an API server in memory, pods that load when told, a clock that is set by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tailrace_contract import keys as key_text
from tailrace_contract.ids import Ref
from tailrace_contract.resource import Kind as Custom
from tailrace_contract.status import ApiKeyStatus, QueriesStatus
from tailrace_operator.acknowledgement import Answer, PodState
from tailrace_operator.apikey import ApiKeys
from tailrace_operator.conditions import read_status
from tailrace_operator.manifest import API_KEY, QUERY_API, SECRET, Object, ObjectRef, version_of
from tailrace_operator.queue import Done
from tailrace_operator.reports import GatewayReport, PodReport
from tailrace_operator.wakeups import Key

from .fake_cluster import FakeCluster, Killed

NAMESPACE = "retail"
KEY = Key(Custom.API_KEY, NAMESPACE, "desk")
LIVE = ObjectRef(API_KEY, NAMESPACE, "desk")
SHOP = ObjectRef(QUERY_API, NAMESPACE, "shop")
MINTED = ObjectRef(SECRET, NAMESPACE, "desk-key")
START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
ROTATION = {"every": "30d", "overlap": "24h"}


@dataclass(slots=True)
class Pod:
    """A pod's data plane: what it has loaded of the ApiKey."""

    name: str
    version: int = -1
    digests: dict[str, datetime | None] = field(default_factory=dict)
    """By digest, until when."""
    is_ready: bool = True
    answer: Answer = Answer.REPORT

    def admits(self, text: str, now: datetime) -> bool:
        """Whether a call with this text is answered."""
        digest = key_text.digest(text)
        return digest in self.digests and ((end := self.digests[digest]) is None or now < end)


class World:
    """All of it. `spec`: of the ApiKey, beside its reference and role."""

    def __init__(self, pods: int = 2, namespace: str = NAMESPACE, **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.now = START
        self.pods = [Pod(f"pod-{number}") for number in range(pods)]
        self.awaited = 0
        self.refused = ""
        self.log: list[Any] = []
        self._drawn = 0
        self.api = self.cluster.outside(
            {
                "apiVersion": "tailrace.dev/v1alpha1",
                "kind": "QueryAPI",
                "metadata": {"name": "shop", "namespace": NAMESPACE},
                "spec": {"roles": [{"name": "all", "queries": ["*"]}]},
            }
        )
        self.key = Key(Custom.API_KEY, namespace, "desk")
        self.live_ref = ObjectRef(API_KEY, namespace, "desk")
        self.secret_ref = ObjectRef(SECRET, namespace, "desk-key")
        wanted = {"queryApiRef": {"name": "shop", "namespace": NAMESPACE}, "role": "all", **spec}
        if "keyFrom" not in wanted:
            wanted.setdefault("secretName", "desk-key")
        self.cluster.outside(
            {"apiVersion": "tailrace.dev/v1alpha1", "kind": "ApiKey", "metadata": {"name": "desk", "namespace": namespace}, "spec": wanted}
        )
        self.restart()

    def restart(self) -> None:
        """A new operator, which remembers nothing."""
        self.keys = ApiKeys(self.cluster, self, self.log.append, lambda: self.now, self._entropy)

    def _entropy(self, size: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(2, "big") * (size // 2)

    # What the reconciler asks

    async def of(self, api: Ref, uid: str) -> tuple[tuple[Object, ...], tuple[PodState, ...]]:
        return (), tuple(self._state(pod) for pod in self.pods)

    def awaits(self, api: Ref) -> None:
        self.awaited += 1

    def _state(self, pod: Pod) -> PodState:
        refused = {str(self.key.ref): self.refused} if self.refused else {}
        gateway = GatewayReport(QueriesStatus(total=1, served=1), len(pod.digests), False, refused)
        report = PodReport(self.api["metadata"]["uid"], 1, {self.key.namespace: pod.version}, {}, True, gateway)
        return PodState(pod.name, pod.is_ready, False, True, pod.answer, report if pod.answer is Answer.REPORT else None)

    # What happens

    async def reconcile(self) -> float | None:
        """Once; when to look again."""
        outcome = await self.keys.reconcile(self.key, await self.cluster.get(self.live_ref))
        assert isinstance(outcome, Done)
        return outcome.again_s

    async def settle(self, *, load: bool = True, most: int = 30) -> None:
        """Reconciles, and lets pods load, until nothing is written any more."""
        for _ in range(most):
            before = len(self.cluster.writes)
            await self.reconcile()
            if load:
                self.load()
            if len(self.cluster.writes) == before:
                await self.reconcile()
                if len(self.cluster.writes) == before:
                    return
        raise AssertionError("it never comes to rest")

    def load(self, *pods: Pod) -> None:
        """Pods take in the ApiKey as it is now, as a gateway does."""
        live = self.cluster.objects.get(self.live_ref)
        for pod in pods or self.pods:
            pod.digests = {}
            if live is not None and not live["spec"].get("suspended"):
                pod.digests = {each.sha256: each.not_after for each in read_status(ApiKeyStatus, live).keys}
            pod.version = int(version_of(live)) if live is not None else 10**6

    def after(self, **delta: float) -> None:
        """Time passes."""
        self.now += timedelta(**delta)

    def edit(self, **spec: Any) -> None:
        """The owner edits the ApiKey's spec; None takes a field away."""

        def change(live: Object) -> None:
            live["spec"] = {name: value for name, value in {**live["spec"], **spec}.items() if value is not None}

        self.cluster.edit(self.live_ref, change)

    # What is there

    @property
    def status(self) -> ApiKeyStatus:
        """As it is written."""
        return read_status(ApiKeyStatus, self.cluster.objects[self.live_ref])

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason; ("", "") when it is not there."""
        return next(((each.status, each.reason) for each in self.status.conditions if each.type == kind), ("", ""))

    def text(self, name: str = "key", secret: ObjectRef | None = None) -> str | None:
        """What the Secret holds."""
        from base64 import b64decode

        live = self.cluster.objects.get(secret or self.secret_ref)
        value = (live or {}).get("data", {}).get(name)
        return b64decode(value).decode() if value is not None else None

    @property
    def told(self) -> list[str]:
        """Reasons of the Events."""
        return [event.reason for event in self.cluster.events]


async def until_killed(world: World, writes: int, work: Callable[[], Any]) -> bool:
    """Does some work in an operator that ends after so many writes; whether it did."""
    world.cluster.lives_for = writes
    try:
        await work()
    except Killed:
        return True
    finally:
        world.cluster.lives_for = None
    return False
