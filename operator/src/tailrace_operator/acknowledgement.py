"""What the pods of a QueryAPI acknowledge: asks each for its `/status`, and remembers what to wait for. IO: HTTP to pods.

Refuses nothing: a pod that does not answer in a second has no report. What a revocation may claim is decided by `confirmed`, which is pure
and stricter than readiness: a pod that is on its way out still admits calls on kept connections, so it counts for as long as it answers.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
from tailrace_contract.ids import Ref

from tailrace_operator.manifest import Object, is_going, uid_of
from tailrace_operator.observe import Event, Observer, observation
from tailrace_operator.reports import PodReport, read_report

ADMIN_PORT = 9090
DEADLINE_S = 1.0
AT_ONCE = 32
"""Pods that are asked at the same time."""

BODY_LIMIT = 4 << 20
"""Bytes of a pod's answer that are read."""


class Answer(StrEnum):
    """How a pod took the question."""

    REPORT = "report"
    GONE = "gone"
    """Nobody listens: its data plane has ended or not begun, so it admits no call."""
    SILENT = "silent"
    """No answer in time, or one that can't be read: it may admit calls."""


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod: as the API server has it, and what it said."""

    uid: str
    is_ready: bool
    is_going: bool
    has_run: bool
    """Whether its data plane runs, as far as the API server knows."""
    answer: Answer
    report: PodReport | None = None

    @property
    def is_counted(self) -> bool:
        """Whether a revocation has to reach it: it is ready, or may yet admit a call. One that never had a plan admits none."""
        if self.is_ready:
            return True
        return self.has_run and self.answer is not Answer.GONE and (self.report is None or self.report.uid != "")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How many of how many pods."""

    confirmed: int
    of: int

    @property
    def is_complete(self) -> bool:
        """Whether no pod is left that could still act on what was before."""
        return self.confirmed == self.of

    def __str__(self) -> str:
        return f"{self.confirmed}/{self.of}"


def confirmed_keys(pods: Iterable[PodState], api_uid: str, namespace: str, resource_version: int) -> Confirmation:
    """Who has taken in what happened to ApiKeys of a namespace up to a resourceVersion. Zero of zero pods is complete."""
    counted = [pod for pod in pods if pod.is_counted]
    return Confirmation(sum(_has(pod.report, api_uid, namespace, resource_version) for pod in counted), len(counted))


def _has(report: PodReport | None, api_uid: str, namespace: str, resource_version: int) -> bool:
    """A pod that does not read a namespace's ApiKeys at all serves none of them."""
    if report is None or report.gateway is None or report.uid != api_uid:
        return False
    return report.has_keys(api_uid, namespace, resource_version) or namespace not in report.api_keys


def reports_of(pods: Iterable[PodState]) -> dict[str, PodReport]:
    """Reports by the pod's UID."""
    return {pod.uid: pod.report for pod in pods if pod.report is not None}


def is_pod_ready(pod: Object) -> bool:
    """Whether the API server holds it for ready and it is not on its way out."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not is_going(pod) and any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _runs(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(each.get("name") == "dataplane" and "running" in (each.get("state") or {}) for each in statuses)


def address_of(pod: Object, port: int = ADMIN_PORT) -> str | None:
    """Where its status is; None before it has an address."""
    ip = (pod.get("status") or {}).get("podIP")
    if not ip:
        return None
    return f"http://[{ip}]:{port}/status" if ":" in ip else f"http://{ip}:{port}/status"


class Poller:
    """Asks pods. One per process; belongs to one event loop."""

    def __init__(self, observer: Observer, port: int = ADMIN_PORT, deadline_s: float = DEADLINE_S) -> None:
        self._observer = observer
        self._port = port
        self._deadline = deadline_s
        self._places = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes its connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, pods: Iterable[Object]) -> tuple[PodState, ...]:
        """Each pod's state, asked now and all at once, in the order given."""
        states = tuple(await asyncio.gather(*(self._one(pod) for pod in pods)))
        answered = sum(state.answer is Answer.REPORT for state in states)
        self._observer(observation(Event.PODS_POLLED, answered=answered, silent=len(states) - answered))
        return states

    async def _one(self, pod: Object) -> PodState:
        answer, report = Answer.GONE, None
        url = address_of(pod, self._port)
        if url is not None:
            async with self._places:
                answer, report = await self._get(url)
        return PodState(uid_of(pod), is_pod_ready(pod), is_going(pod), _runs(pod), answer, report)

    async def _get(self, url: str) -> tuple[Answer, PodReport | None]:
        if self._session is None:
            # A connection of its own for each question: a pod's address may be another pod's by the next one.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=self._deadline)
            )
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                body = await response.content.read(BODY_LIMIT + 1) if response.status == 200 else b""
                while response.status == 200 and len(body) <= BODY_LIMIT and not response.content.at_eof():
                    body += await response.content.read(BODY_LIMIT + 1 - len(body))
                return Answer.REPORT, read_report(body)
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return (Answer.GONE if refused else Answer.SILENT), None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return Answer.SILENT, None


@dataclass(slots=True)
class _Mark:
    fingerprint: object
    version: int


@dataclass(slots=True)
class Versions:
    """From which resourceVersion on an object is as it is now.

    The operator's own status writes raise an object's resourceVersion without changing anything for the pods: waiting for the newest one
    would never end. A fingerprint that was not seen before counts from the version at which it is first seen, which is never too early.
    """

    _marks: dict[str, _Mark] = field(default_factory=dict)

    def since(self, uid: str, fingerprint: object, resource_version: str) -> int:
        """The resourceVersion that pods must have taken in for the object, by UID, to be with them as `fingerprint` says."""
        mark = self._marks.get(uid)
        if mark is None or mark.fingerprint != fingerprint:
            mark = self._marks[uid] = _Mark(fingerprint, int(resource_version))
        return mark.version

    def forget(self, uid: str) -> None:
        """Drops what is known of a deleted object."""
        self._marks.pop(uid, None)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deleted ApiKey, which the pods of its API have to drop."""

    key: Ref
    resource_version: int


@dataclass(slots=True)
class Deletions:
    """The last deleted ApiKeys of each QueryAPI, newest first: what `status.revocation` is made of. In memory: see docs/weaknesses.md."""

    most: int
    _by_api: dict[Ref, list[Deletion]] = field(default_factory=dict)

    def add(self, api: Ref, deletion: Deletion) -> None:
        """Notes one; known ones are kept as they are."""
        known = self._by_api.setdefault(api, [])
        if deletion not in known:
            known.append(deletion)
            known.sort(key=lambda each: -each.resource_version)
            del known[self.most :]

    def of(self, api: Ref) -> tuple[Deletion, ...]:
        """Those of one API."""
        return tuple(self._by_api.get(api, ()))

    def forget(self, api: Ref) -> None:
        """Drops those of a deleted API."""
        self._by_api.pop(api, None)
