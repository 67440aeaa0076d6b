"""What is watched, by kopf: every handler only passes its event on. IO: watches of the API server, in a thread and event loop of their own.

kopf is given `on.event` handlers and nothing else: it then writes no annotation and no finalizer, and what it might miss (events in a gap
of a watch) the re-list repairs. Its thread is its own because it cancels every task of its event loop when it ends.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import kopf

from tailrace_operator.manifest import (
    API_KEY,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    QUERY_API,
    QUERY_API_UID_LABEL,
    ROLE,
    ROLE_BINDING,
    RUN_STORE,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)
from tailrace_operator.observe import Event, FrameworkLog, Observer, observation

WATCHED: dict[Kind, str | None] = {
    QUERY_API: None,
    API_KEY: None,
    RUN_STORE: None,
    NAMESPACE: None,
    SECRET: f"{MANAGED_BY_LABEL}={FIELD_MANAGER}",
    **dict.fromkeys(
        (POD, DEPLOYMENT, SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, DISRUPTION_BUDGET, NETWORK_POLICY),
        f"{MANAGED_BY_LABEL}={FIELD_MANAGER},{QUERY_API_UID_LABEL}",
    ),
}
"""Each kind that is watched, and by which labels: of Secrets only our own are ever read this way."""

SERVER_TIMEOUT_S = 300
"""How long the API server keeps a watch."""

INACTIVITY_S = 90.0
"""A watch with neither event nor bookmark (one a minute) for so long is begun anew: it may be dead without a word."""

IDENTITY = "tailrace-operator"
"""kopf's name for us among peers, of which it has none here."""

AGAIN_S = 5.0
"""Pause before watching begins anew when kopf gave up."""

Deliver = Callable[[Kind, str | None, Object], None]
"""Takes one event. Called in the watching thread."""


def registry_of(deliver: Deliver, *, has_kubeconfig: bool) -> kopf.OperatorRegistry:
    """All handlers there are."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**arguments) if has_kubeconfig else kopf.login_with_service_account(**arguments)

    def watch(kind: Kind) -> None:
        group, _, version = kind.api_version.rpartition("/")

        @kopf.on.event(group, version, kind.plural, registry=registry)
        async def changed(event: Any, **_: Any) -> None:
            deliver(kind, event["type"], event["object"])

    for kind in WATCHED:
        watch(kind)
    return registry


def settings_of() -> kopf.OperatorSettings:
    """kopf's settings: watch nothing but this, write nothing, publish nothing, never be silent for long."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = SERVER_TIMEOUT_S
    settings.watching.client_timeout = SERVER_TIMEOUT_S + 60
    settings.watching.connect_timeout = 5
    settings.watching.inactivity_timeout = INACTIVITY_S
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.process.ultimate_exiting_timeout = None
    for kind, labels in WATCHED.items():
        if labels is not None:
            group, _, version = kind.api_version.rpartition("/")
            settings.watching.label_selectors[group, version, kind.plural] = labels
    return settings


class Watching:
    """Runs kopf until stopped, again whenever it ends by itself (a forbidden list, a CRD that was gone).

    `listed` is awaited each time before it begins, in the caller's event loop: it returns when all kinds can be listed. kopf looks once, at its
    start, which kinds there are.
    """

    def __init__(
        self,
        deliver: Deliver,
        listed: Callable[[], Coroutine[Any, Any, None]],
        observer: Observer,
        namespaces: tuple[str, ...] = (),
        *,
        has_kubeconfig: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listed = listed
        self._deliver = deliver
        self._observer = observer
        self._namespaces = namespaces
        self._has_kubeconfig = has_kubeconfig
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watching", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        log = logging.getLogger("kopf")
        log.addHandler(FrameworkLog(self._observer))
        log.propagate = False
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # It warns that signals are not its own here.
        self._thread.start()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the watches; returns when the thread has ended, or after the timeout (it is a daemon)."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _pass_on(self, kind: Kind, change: str | None, body: Object) -> None:
        self._loop.call_soon_threadsafe(self._deliver, kind, change, body)

    def _run(self) -> None:
        while not self._stop.is_set():
            error: str | None = None
            try:
                if not self._wait(asyncio.run_coroutine_threadsafe(self._listed(), self._loop)):
                    return
                asyncio.run(self._once())
            except BaseException as ended:  # kopf ends with whatever ended one of its tasks
                error = type(ended).__name__
            if not self._stop.is_set():
                self._observer(observation(Event.WATCHING_ENDED, error=error))
            self._stop.wait(AGAIN_S)

    def _wait(self, listed: Future[None]) -> bool:
        """Waits for it, but no longer than until stopped; False then."""
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                listed.result(0.5)
                return True
        listed.cancel()
        return False

    async def _once(self) -> None:
        await kopf.operator(
            registry=registry_of(self._pass_on, has_kubeconfig=self._has_kubeconfig),
            settings=settings_of(),
            standalone=True,
            # Else kopf asks for the user's name, and in an image 65532 has none.
            identity=IDENTITY,  # type: ignore[arg-type] # Its type has no public name.
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )
