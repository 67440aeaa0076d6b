"""What becomes of the texts of one ApiKey: which its Secret is to hold, and which digests are valid. Pure; rejects nothing.

Two functions and nothing remembered: `next_texts` says what the Secret must hold, `next_digests` which digests follow from what it holds.
The Secret is written first and the digests into the status after it, so whoever ends between the two leaves a Secret from which the same
digests follow. A rotation runs through these states:

    Secret                  digests             what is waited for
    key: A                  A                   `every` since A became valid
    key: A, key.next: B     A, B                every pod has B
    key: B                  A until …, B        `overlap`
    key: B                  B

A digest that was never seen and is no `key.next` comes from outside (the Secret was deleted and minted anew, or somebody wrote it): then
all others end at once, which makes deleting the Secret the way to replace a key that has leaked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tailrace_contract import keys as key_text
from tailrace_contract.apikey import ApiKeySpec, Rotation
from tailrace_contract.status import KEYS_HELD, KeyDigest

Mint = Callable[[], str]
"""Makes a key from fresh entropy."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What the Secret holds of a key. Texts that nobody could present count as absent. Never shown: `repr` leaves them out."""

    key: str | None = field(default=None, repr=False)
    following: str | None = field(default=None, repr=False)
    """Under `key.next`: takes the place of `key` as soon as every pod has its digest."""

    @property
    def digest(self) -> str | None:
        """Of the text that is handed out."""
        return None if self.key is None else key_text.digest(self.key)


@dataclass(frozen=True, slots=True)
class Digests:
    """Which digests are valid. `is_replaced`: the text came from outside, and what was valid before ended at once."""

    keys: tuple[KeyDigest, ...]
    is_replaced: bool = False


def next_texts(texts: Texts, keys: tuple[KeyDigest, ...], spec: ApiKeySpec, now: datetime, *, is_loaded: bool, mint: Mint) -> Texts:
    """What the Secret of a minted key is to hold. Equal to `texts` when nothing has to be written.

    `keys`: the digests in the status; `is_loaded`: whether every pod that could admit a call has exactly these, and there is one at least.
    """
    if is_expired(spec, now):
        return texts
    if texts.key is None:
        return Texts(mint())
    if spec.rotation is None or texts.following == texts.key:
        return replace(texts, following=None)
    if spec.suspended:
        return texts
    if texts.following is not None:
        is_known = any(each.sha256 == key_text.digest(texts.following) for each in keys)
        return Texts(texts.following) if is_known and is_loaded else texts
    due = rotation_due(texts, keys, spec.rotation, now)
    return replace(texts, following=mint()) if due is not None and due <= now else texts


def rotation_due(texts: Texts, keys: tuple[KeyDigest, ...], rotation: Rotation, now: datetime) -> datetime | None:
    """When the next text is to be made; None while one is under way: its predecessor is still valid, or it is not yet handed out."""
    if texts.key is None or texts.following is not None:
        return None
    mine = key_text.digest(texts.key)
    if any(each.sha256 != mine and each.not_after is not None and now < each.not_after for each in keys):
        return None
    since = next((each.not_before for each in keys if each.sha256 == mine), None)
    return None if since is None else since + timedelta(milliseconds=rotation.every_ms)


def next_digests(texts: Texts, keys: tuple[KeyDigest, ...], spec: ApiKeySpec, now: datetime) -> Digests:
    """The digests that follow from what the Secret holds and from those in the status. None without a text, and none of an expired key:
    pods know the time by clocks of their own, so the end is told to them."""
    if texts.key is None or is_expired(spec, now):
        return Digests(())
    second = now.astimezone(UTC).replace(microsecond=0)
    mine = key_text.digest(texts.key)
    following = key_text.digest(texts.following) if texts.following is not None else None
    known = {each.sha256: each for each in keys if each.not_after is None or now < each.not_after}
    is_replaced = bool(keys) and mine not in {each.sha256 for each in keys}
    result = []
    for sha256, each in known.items():
        if sha256 in (mine, following):
            result.append(each.model_copy(update={"not_after": None}))
        elif is_replaced:
            continue
        elif each.not_after is not None:
            result.append(each)
        elif spec.rotation is not None:
            result.append(each.model_copy(update={"not_after": second + timedelta(milliseconds=spec.rotation.overlap_ms)}))
    for text in (texts.key, texts.following):
        if text is not None and key_text.digest(text) not in known:
            result.append(KeyDigest(id=public_id(text), sha256=key_text.digest(text), not_before=second))
    result.sort(key=lambda each: (each.sha256 in (mine, following), each.not_before, each.sha256 == following))
    return Digests(tuple(result[-KEYS_HELD:]), is_replaced)


def public_id(text: str) -> str:
    """What of a key may be shown anywhere."""
    return text.split("_")[1] if key_text.is_minted(text) else key_text.digest(text)[:8]


def is_expired(spec: ApiKeySpec, now: datetime) -> bool:
    """Whether the key's time is over."""
    return spec.expires_at is not None and spec.expires_at <= now


def wake_at(texts: Texts, keys: tuple[KeyDigest, ...], spec: ApiKeySpec, now: datetime) -> datetime | None:
    """When something changes by the clock alone; None: never. `keys`: as they are in the status now."""
    times = [each.not_after for each in keys if each.not_after is not None]
    if spec.expires_at is not None:
        times.append(spec.expires_at)
    if spec.rotation is not None and not spec.suspended and (due := rotation_due(texts, keys, spec.rotation, now)) is not None:
        times.append(due)
    return min((each for each in times if each > now), default=None)
