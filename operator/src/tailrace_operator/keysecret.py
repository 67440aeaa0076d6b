"""The Secret of an ApiKey: what it holds, and writing what it is to hold. IO: the API server's Secrets.

A minted key's Secret is created by POST, owned by the ApiKey, and written only as it was read (a PUT with its resourceVersion), so that of two
operators one is refused. A Secret of that name which is not ours is told and never touched. A key that was brought is only read.
Key texts go from entropy into the Secret and nowhere else: no message holds one.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tailrace_contract import keys as key_text
from tailrace_contract.apikey import ApiKey
from tailrace_contract.resource import SecretKeyRef
from tailrace_contract.status import KeyDigest

from tailrace_operator import problems
from tailrace_operator.cluster import Cluster
from tailrace_operator.conditions import Type
from tailrace_operator.errors import Conflict, Forbidden, Foreign, Invalid
from tailrace_operator.keys import Texts, next_texts
from tailrace_operator.manifest import (
    API_KEY,
    API_KEY_UID_LABEL,
    FIELD_MANAGER,
    INSTANCE_LABEL,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    SECRET,
    Manifest,
    Object,
    ObjectRef,
    controller_uid,
    is_going,
    owner_reference,
    ref_of,
    uid_of,
)
from tailrace_operator.observe import Event, Observer, observation
from tailrace_operator.problems import Problem

KEY = "key"
NEXT = "key.next"
URL = "url"


@dataclass(frozen=True, slots=True)
class Held:
    """What the Secret holds, after the writes; `problem`: why it is of no use, or could not be written."""

    texts: Texts
    problem: Problem | None = None


class KeySecrets:
    """Secrets of ApiKeys. `entropy`: a cryptographic source of so many bytes."""

    def __init__(self, cluster: Cluster, observer: Observer, entropy: Callable[[int], bytes]) -> None:
        self._cluster = cluster
        self._observer = observer
        self._entropy = entropy

    async def brought(self, key: ApiKey, source: SecretKeyRef) -> Held:
        """The text of a key that was brought."""
        secret = await self._cluster.get(ObjectRef(SECRET, key.metadata.namespace, source.name))
        kind = Type.RESOLVED_REFS
        if secret is None:
            return Held(Texts(), Problem(kind, "SecretNotFound", f"Secret {source.name} is not there", False))
        value = _decoded(secret, source.key)
        if value is None:
            return Held(Texts(), Problem(kind, "SecretKeyNotFound", f"Secret {source.name} has no key {source.key}", False))
        try:
            return Held(Texts(_read(value)))
        except ValueError as error:
            return Held(Texts(), Problem(kind, "InvalidKey", f"Secret {source.name}, key {source.key}: {error}", True))

    async def minted(
        self,
        key: ApiKey,
        live: Object,
        name: str,
        keys: tuple[KeyDigest, ...],
        now: datetime,
        *,
        address: str,
        is_loaded: bool,
        paused: bool,
    ) -> Held:
        """The texts of a minted key, after what its Secret lacks was written. `keys`: the digests in the status; `address`: the API's URL; `is_loaded`: see `next_texts`.

        Conflict when somebody else was faster: read again. What the API server refuses for good is a problem, with what the Secret has.
        """
        ref = ObjectRef(SECRET, key.metadata.namespace, name)
        secret = await self._cluster.get(ref)
        if secret is not None and controller_uid(secret) != uid_of(live):
            return Held(Texts(), _of_stranger(secret, ref, live))
        if secret is not None and is_going(secret):
            return Held(Texts(), Problem(Type.RESOLVED_REFS, "SecretTerminating", f"Secret {name} is being deleted", False))
        texts = _texts_of(secret)
        if paused:
            return Held(texts)
        wanted = next_texts(texts, keys, key.spec, now, is_loaded=is_loaded, mint=self._mint)
        if wanted.key is None:
            return Held(wanted)  # Its time is over, and a Secret is not needed.
        data = {KEY: wanted.key, NEXT: wanted.following, URL: address}
        try:
            if secret is None:
                await self._cluster.create(_manifest(key, live, name, data))
                self._tell("create", ref, key, "it was not there")
            elif (changed := _with(secret, data))["data"] != secret.get("data"):
                await self._cluster.replace(changed)
                self._tell("replace", ref, key, _reason(texts, wanted))
        except (Forbidden, Invalid) as error:
            if isinstance(error, Forbidden) and error.is_terminating:
                raise
            return Held(texts, problems.write_failed(error))
        return Held(wanted)

    async def prune(self, key: ApiKey, live: Object) -> None:
        """Removes Secrets of ours that the spec no longer names."""
        for secret in (await self._cluster.list(SECRET, key.metadata.namespace, {API_KEY_UID_LABEL: uid_of(live)})).items:
            ref = ref_of(secret)
            if ref.name == key.spec.secret_name or controller_uid(secret) != uid_of(live):
                continue
            try:
                await self._cluster.delete(ref, uid_of(secret))
            except Conflict:
                continue  # Another object has the name by now.
            self._tell("prune", ref, key, "it is no longer wanted")

    def _mint(self) -> str:
        return key_text.mint(self._entropy(key_text.ENTROPY_BYTES))

    def _tell(self, action: str, ref: ObjectRef, key: ApiKey, reason: str) -> None:
        names = {"kind": SECRET.kind, "namespace": ref.namespace, "name": ref.name, "for": f"ApiKey {key.ref}"}
        self._observer(observation(Event.WROTE, action=action, reason=reason, **names))


def _reason(before: Texts, after: Texts) -> str:
    if before.key is None:
        return "it held no usable key"
    if before.key != after.key:
        return "the next key is handed out"
    if before.following != after.following:
        return "the next key is made" if after.following else "no next key is wanted"
    return "its url changed"


def _of_stranger(secret: Manifest, ref: ObjectRef, live: Manifest) -> Problem:
    for owner in secret["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == API_KEY.kind and owner.get("name") == live["metadata"]["name"]:
            message = f"Secret {ref.name} belongs to an earlier ApiKey of this name and is about to be collected"
            return Problem(Type.PROGRAMMED, "SecretTerminating", message, False)
    return problems.foreign(Foreign(str(ref)))


def _manifest(key: ApiKey, live: Manifest, name: str, data: Mapping[str, str | None]) -> Manifest:
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": name,
            "namespace": key.metadata.namespace,
            "labels": {
                NAME_LABEL: "tailrace",
                INSTANCE_LABEL: key.metadata.name,
                MANAGED_BY_LABEL: FIELD_MANAGER,
                API_KEY_UID_LABEL: uid_of(live),
            },
            "ownerReferences": [owner_reference(live)],
        },
        "type": "Opaque",
        "data": _encoded(data),
    }


def _with(secret: Object, data: Mapping[str, str | None]) -> Object:
    """The Secret with what is ours in it as it has to be; what others put beside it stays."""
    others = {name: value for name, value in (secret.get("data") or {}).items() if name not in data}
    return {**secret, "data": {**others, **_encoded(data)}}


def _encoded(data: Mapping[str, str | None]) -> dict[str, str]:
    return {name: b64encode(value.encode()).decode() for name, value in data.items() if value is not None}


def _texts_of(secret: Manifest | None) -> Texts:
    """What callers could present of what the Secret holds."""
    found: list[str | None] = []
    for name in (KEY, NEXT):
        value = _decoded(secret, name) if secret is not None else None
        try:
            found.append(None if value is None else _read(value))
        except ValueError:
            found.append(None)
    return Texts(*found)


def _read(value: bytes) -> str:
    return key_text.read_key(value.decode("utf-8", "replace"))


def _decoded(secret: Manifest, name: str) -> bytes | None:
    value = (secret.get("data") or {}).get(name)
    if not isinstance(value, str):
        return None
    try:
        return b64decode(value, validate=True)
    except (Base64Error, ValueError):
        return None
