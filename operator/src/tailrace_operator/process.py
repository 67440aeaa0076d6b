"""The operator's process: what is started in which order, and how it ends. IO: all of it.

Standing by → leading (watch, list, reconcile, poll pods) → SIGTERM: no new work, the Lease is given up. A lost Lease ends the process at
once. An API server that is away is waited for, never a reason to exit while standing by.
"""

import asyncio
import logging
import signal
import warnings
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tailrace_contract.resource import Kind as Custom

from tailrace_operator.acknowledgement import Deletions, Poller
from tailrace_operator.apikey import ApiKeys
from tailrace_operator.cluster import KubernetesCluster, connect
from tailrace_operator.engine import REVOCATIONS, Engine, place_of
from tailrace_operator.handlers import Watching
from tailrace_operator.health import Health, serve
from tailrace_operator.leader import Leader
from tailrace_operator.observe import Event, FrameworkLog, JsonLog, Metrics, Observer, observation, observer
from tailrace_operator.pods import Pods
from tailrace_operator.queue import Queue, Schedule
from tailrace_operator.reconcile import QueryAPIs
from tailrace_operator.render import Installation
from tailrace_operator.run_stores import RunStores
from tailrace_operator.settings import Settings
from tailrace_operator.wakeups import Key, Wakeups

LEASE_TIMEOUT_S = 4.0
"""Of calls for the Lease: several fit into the time it lasts."""


async def run(settings: Settings) -> int:
    """Runs the operator until SIGTERM or SIGINT; returns the exit status."""
    metrics = Metrics()
    tell = observer(JsonLog(settings.log_level), metrics)
    logging.lastResort = None
    logging.getLogger().addHandler(FrameworkLog(tell))
    logging.captureWarnings(True)
    warnings.simplefilter("ignore", ResourceWarning)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    health = Health()
    runner = await serve(settings.listen_host, settings.listen_port, health, metrics.registry, loop.time)
    tell(observation(Event.STARTED, version=_version(), namespaces=",".join(settings.watch_namespaces), identity=settings.identity))
    # The Lease has a connection of its own, so that no amount of work delays it.
    lease = KubernetesCluster(connect(settings.kubeconfig, 1), tell, threads=1, timeout_s=LEASE_TIMEOUT_S)
    cluster = KubernetesCluster(connect(settings.kubeconfig), tell)
    leader = Leader(lease, settings.namespace, settings.lease_name, settings.identity, tell)
    status, reason = 0, "asked to"
    try:
        if await _unless(stop, leader.acquire()):
            health.is_leading = True
            await _lead(settings, cluster, leader, health, tell, stop)
            # Nothing of ours may arrive once another leads.
            await cluster.close()
            await leader.release()
    except Exception as error:
        # A task that never ends has ended: a defect. A new process is better than one that does half of its work.
        status, reason = 1, f"{type(error).__name__} at {place_of(error)}"
    tell(observation(Event.STOPPED, reason=reason))
    await runner.cleanup()
    await cluster.close()
    await lease.close()
    return status


async def _lead(
    settings: Settings, cluster: KubernetesCluster, leader: Leader, health: Health, tell: Observer, stop: asyncio.Event
) -> None:
    queue: Queue[Key] = Queue(Schedule(), lambda waiting, running: tell(observation(Event.QUEUE_CHANGED, waiting=waiting, running=running)))
    poller, wakeups, deletions = Poller(tell), Wakeups(), Deletions(REVOCATIONS)
    pods = Pods(cluster, poller)
    engine = Engine(cluster, queue, wakeups, pods, deletions, tell, health, settings.watch_namespaces)
    installation = Installation(settings.gateway_image, settings.data_plane_image, settings.image_pull_policy, settings.namespace)
    apis = QueryAPIs(cluster, engine, pods, deletions, installation, settings.watch_namespaces, tell)
    engine.reconcilers = {
        Custom.QUERY_API: apis.reconcile,
        Custom.API_KEY: ApiKeys(cluster, pods, tell).reconcile,
        Custom.RUN_STORE: RunStores(cluster).reconcile,
    }
    watching = Watching(engine.deliver, engine.listed, tell, settings.watch_namespaces, has_kubeconfig=settings.kubeconfig is not None)
    keep = asyncio.create_task(leader.keep(), name="lease")
    work = [
        asyncio.create_task(engine.keep_relisting(), name="relist"),
        asyncio.create_task(queue.run(engine.work), name="queue"),
        asyncio.create_task(pods.run(engine.pods_changed), name="pods"),
    ]
    watching.start()
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        # None of these ends by itself: if one does, the process has a defect and is better begun anew.
        done, _ = await asyncio.wait([keep, stopped, *work], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await watching.stop()
        keep.cancel()
        stopped.cancel()
        await asyncio.gather(keep, stopped, return_exceptions=True)
        await poller.close()


async def _unless(stop: asyncio.Event, coroutine: Coroutine[Any, Any, None]) -> bool:
    """Waits for it; False when the process was asked to stop first."""
    task, stopped = asyncio.ensure_future(coroutine), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


def _version() -> str:
    try:
        return version("tailrace-operator")
    except PackageNotFoundError:
        return "unknown"
