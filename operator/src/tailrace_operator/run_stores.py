"""Says of one RunStore whether it may be used. IO: the API server. What uses it is the QueryAPIs' reconcile."""

from datetime import UTC, datetime

from tailrace_contract.runstore import RunStore
from tailrace_contract.status import RunStoreStatus

from tailrace_operator import observed, problems
from tailrace_operator.cluster import Cluster
from tailrace_operator.conditions import Type, is_changed, read_status, status_body
from tailrace_operator.manifest import Object, is_going
from tailrace_operator.problems import Problem
from tailrace_operator.queue import Done, Outcome
from tailrace_operator.references import of_run_store
from tailrace_operator.status import run_store_status
from tailrace_operator.wakeups import Key

MISSING_S = 10.0
"""Between two looks while its Secret is missing or of no use."""


class RunStores:
    """Reconciles RunStores."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def reconcile(self, key: Key, live: Object | None) -> Outcome:
        """One RunStore."""
        if live is None or is_going(live):
            return Done()
        store = observed.read_run_store(live)
        found: tuple[Problem, ...]
        if isinstance(store, RunStore):
            references = of_run_store(store.spec)
            found = problems.of_secrets(references, await observed.secrets_of(self._cluster, key.namespace, references.secrets))
        else:
            found = (problems.invalid_spec(store),)
        spec = store.spec if isinstance(store, RunStore) else None
        status = run_store_status(live, spec, found, read_status(RunStoreStatus, live), datetime.now(UTC))
        body = status_body(status)
        if is_changed(live, body):
            await self._cluster.patch_status(live, body)
        return Done(MISSING_S if any(each.type == Type.RESOLVED_REFS for each in found) else None)
