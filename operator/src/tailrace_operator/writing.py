"""Carries out what `diff` decided, in its order. IO: writes of the API server; a refusal ends the sequence and is raised.

The sequence may end after any write: the next reconcile begins from what is there.
"""

from tailrace_operator.cluster import Cluster
from tailrace_operator.diff import Action, Apply, Create, Prune, Scale, Take, applied
from tailrace_operator.errors import AlreadyExists, Conflict, Foreign, NotFound
from tailrace_operator.manifest import Manifest, Object, ObjectRef, ref_of
from tailrace_operator.observe import Event, Observer, observation
from tailrace_operator.ownership import is_posted


def target(action: Action) -> ObjectRef:
    """The object that an action writes."""
    match action:
        case Create(manifest) | Apply(manifest):
            return ref_of(manifest)
        case Take(live):
            return ref_of(live)
        case Scale(ref) | Prune(ref):
            return ref


class Writer:
    """Writes for one resource, and tells of each write. `live` has the objects as last seen, and follows the writes."""

    def __init__(self, cluster: Cluster, observer: Observer, owner: str, live: dict[ObjectRef, Object]) -> None:
        self._cluster = cluster
        self._observer = observer
        self._owner = owner
        self.live = live

    async def carry_out(self, action: Action) -> None:
        """One write. Raises Foreign when a name was taken by a stranger in between."""
        ref = target(action)
        match action:
            case Create(manifest):
                try:
                    made = await self._cluster.create(manifest)
                except AlreadyExists:
                    raise Foreign(str(ref)) from None
                self._tell("create", ref, "it was not there")
                self.live[ref] = made
                await self._take(made, applied(manifest))
            case Take(live, manifest):
                await self._take(live, manifest)
            case Apply(manifest, uid, reason):
                self.live[ref] = await self._cluster.apply(manifest, uid)
                self._tell("apply", ref, reason)
            case Scale(_, uid, replicas):
                await self._cluster.patch_scale(ref, uid, replicas)
                self._tell("scale", ref, "replicas")
                if (seen := self.live.get(ref)) is not None:
                    metadata = {**seen["metadata"], "generation": int(seen["metadata"].get("generation", 0)) + 1}
                    self.live[ref] = {**seen, "metadata": metadata, "spec": {**seen["spec"], "replicas": replicas}}
            case Prune(_, uid):
                try:
                    await self._cluster.delete(ref, uid)
                except Conflict:
                    return  # Another object has the name by now.
                self._tell("prune", ref, "it is no longer wanted")
                self.live.pop(ref, None)

    async def _take(self, live: Manifest, wanted: Manifest) -> None:
        """Not urgent: an object that changed since is taken at the next look, which its change brings about."""
        if not is_posted(live):
            return
        try:
            self.live[ref_of(live)] = await self._cluster.take_fields(live, wanted)
        except (Conflict, NotFound):
            return

    def _tell(self, action: str, ref: ObjectRef, reason: str) -> None:
        self._observer(
            observation(
                Event.WROTE,
                action=action,
                kind=ref.kind.kind,
                namespace=ref.namespace,
                name=ref.name,
                reason=reason,
                **{"for": self._owner},
            )
        )
