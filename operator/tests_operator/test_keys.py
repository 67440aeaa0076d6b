"""The states of a key's texts and digests, as a table, and what always holds of them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract import keys as key_text
from tailrace_contract.apikey import ApiKeySpec, Rotation
from tailrace_contract.status import KEYS_HELD, KeyDigest
from tailrace_operator.keys import Texts, next_digests, next_texts, public_id, rotation_due, wake_at

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAY = timedelta(days=1)
A, B, C = (key_text.mint(bytes([number]) * key_text.ENTROPY_BYTES) for number in (1, 2, 3))


def spec(**fields: object) -> ApiKeySpec:
    base = ApiKeySpec.model_validate_json(
        '{"queryApiRef": {"name": "shop"}, "role": "all", "secretName": "k", "rotation": {"every": "30d", "overlap": "24h"}}'
    )
    return base.model_copy(update=fields)


def digest(text: str, since: datetime = NOW, until: datetime | None = None) -> KeyDigest:
    return KeyDigest(id=public_id(text), sha256=key_text.digest(text), not_before=since, not_after=until)


OLD = NOW - 31 * DAY


@pytest.mark.parametrize(
    ("texts", "keys", "of", "is_loaded", "wanted"),
    [
        (Texts(), (), spec(), False, Texts(C)),
        (Texts(None, B), (digest(A),), spec(), True, Texts(C)),
        (Texts(A), (), spec(), True, Texts(A)),
        (Texts(A), (digest(A),), spec(), True, Texts(A)),
        (Texts(A), (digest(A, OLD),), spec(), False, Texts(A, C)),
        (Texts(A), (digest(A, OLD),), spec(suspended=True), True, Texts(A)),
        (Texts(A), (digest(A, OLD),), spec(rotation=None), True, Texts(A)),
        (Texts(A), (digest(A, OLD),), spec(expires_at=NOW), True, Texts(A)),
        (Texts(), (), spec(expires_at=NOW), True, Texts()),
        (Texts(A), (digest(B, OLD, NOW + DAY), digest(A, OLD)), spec(), True, Texts(A)),
        (Texts(A), (digest(B, OLD, NOW), digest(A, OLD)), spec(), True, Texts(A, C)),
        (Texts(A, B), (digest(A, OLD),), spec(), True, Texts(A, B)),
        (Texts(A, B), (digest(A, OLD), digest(B)), spec(), False, Texts(A, B)),
        (Texts(A, B), (digest(A, OLD), digest(B)), spec(), True, Texts(B)),
        (Texts(A, B), (digest(A, OLD), digest(B)), spec(suspended=True), True, Texts(A, B)),
        (Texts(A, B), (digest(A, OLD), digest(B)), spec(rotation=None), True, Texts(A)),
        (Texts(A, A), (digest(A, OLD),), spec(), True, Texts(A)),
    ],
)
def test_what_the_secret_is_to_hold(texts: Texts, keys: tuple[KeyDigest, ...], of: ApiKeySpec, is_loaded: bool, wanted: Texts) -> None:
    found = next_texts(texts, keys, of, NOW, is_loaded=is_loaded, mint=lambda: C)
    assert (found.key, found.following) == (wanted.key, wanted.following)


@pytest.mark.parametrize(
    ("texts", "keys", "of", "wanted", "is_replaced"),
    [
        (Texts(), (digest(A),), spec(), (), False),
        (Texts(A), (), spec(), (digest(A),), False),
        (Texts(A), (digest(A, OLD),), spec(), (digest(A, OLD),), False),
        (Texts(A, B), (digest(A, OLD),), spec(), (digest(A, OLD), digest(B)), False),
        (Texts(B), (digest(A, OLD), digest(B)), spec(), (digest(A, OLD, NOW + DAY), digest(B)), False),
        (Texts(B), (digest(A, OLD), digest(B)), spec(rotation=None), (digest(B),), False),
        (Texts(B), (digest(A, OLD, NOW + DAY), digest(B)), spec(rotation=None), (digest(A, OLD, NOW + DAY), digest(B)), False),
        (Texts(B), (digest(A, OLD, NOW), digest(B)), spec(), (digest(B),), False),
        # Deleted and minted anew, or written by somebody: everything else ends at once.
        (Texts(C), (digest(A, OLD), digest(B)), spec(), (digest(C),), True),
        (Texts(C), (digest(A, OLD, NOW + DAY), digest(B)), spec(), (digest(C),), True),
        # Somebody put the last one back.
        (Texts(A), (digest(A, OLD, NOW + DAY), digest(B)), spec(), (digest(B, NOW, NOW + DAY), digest(A, OLD)), False),
        (Texts(A), (digest(A, OLD),), spec(expires_at=NOW), (), False),
        (Texts(A), (digest(A, OLD),), spec(suspended=True), (digest(A, OLD),), False),
    ],
)
def test_which_digests_follow(
    texts: Texts, keys: tuple[KeyDigest, ...], of: ApiKeySpec, wanted: tuple[KeyDigest, ...], is_replaced: bool
) -> None:
    found = next_digests(texts, keys, of, NOW)
    assert found.keys == wanted
    assert found.is_replaced == is_replaced
    assert next_digests(texts, found.keys, of, NOW).keys == found.keys, "the same again"


def test_when_to_look_again() -> None:
    assert wake_at(Texts(A), (digest(A),), spec(rotation=None), NOW) is None
    assert wake_at(Texts(A), (digest(A),), spec(), NOW) == NOW + 30 * DAY
    assert wake_at(Texts(A), (digest(A),), spec(expires_at=NOW + DAY), NOW) == NOW + DAY
    assert wake_at(Texts(A), (digest(A),), spec(suspended=True), NOW) is None
    assert wake_at(Texts(B), (digest(A, OLD, NOW + DAY), digest(B)), spec(), NOW) == NOW + DAY
    assert rotation_due(Texts(A, B), (digest(A),), Rotation(every_ms=1, overlap_ms=1), NOW) is None


def test_a_text_is_never_shown() -> None:
    assert A not in repr(Texts(A, B))
    assert B not in repr(Texts(A, B))
    assert public_id(A) == A.split("_")[1]
    assert public_id("brought-key-of-16+") == key_text.digest("brought-key-of-16+")[:8]


moves = st.lists(
    st.tuples(
        st.sampled_from(["run", "secret", "status", "hours", "suspend", "unrotate"]), st.integers(0, 200), st.booleans(),
    ),
    max_size=60,
)  # fmt: skip


@given(moves)
def test_what_is_handed_out_is_valid_and_was_for_the_overlap(moves: list[tuple[str, int, bool]]) -> None:
    """Any sequence of half-done work: the text in the Secret has a digest from the first status on, and a text that was taken out of it by a
    rotation goes on being valid for the overlap. "secret" writes only the Secret (the process ended), "run" both; pods follow the status."""
    minted = count(1)

    def mint() -> str:
        return key_text.mint(next(minted).to_bytes(2, "big") * (key_text.ENTROPY_BYTES // 2))

    texts, keys, now, is_loaded, of = Texts(), tuple[KeyDigest, ...](), NOW, False, spec()
    promised: dict[str, datetime] = {}
    for what, amount, loads in moves:
        if what == "hours":
            now += timedelta(hours=amount)
        elif what == "suspend":
            of = of.model_copy(update={"suspended": loads})
        elif what == "unrotate":
            of = of.model_copy(update={"rotation": spec().rotation if loads else None})
        elif what == "status":
            changed = next_digests(texts, keys, of, now).keys
            is_loaded = loads if changed != keys else (is_loaded or loads)
            keys = changed
        else:
            before = texts
            texts = next_texts(texts, keys, of, now, is_loaded=is_loaded, mint=mint)
            if before.key is not None and before.key != texts.key:
                promised[before.key] = now + DAY
            if what == "run":
                changed = next_digests(texts, keys, of, now).keys
                is_loaded = loads if changed != keys else (is_loaded or loads)
                keys = changed
        valid = {each.sha256 for each in keys if each.not_after is None or now < each.not_after}
        if keys and texts.key is not None:
            assert key_text.digest(texts.key) in valid
        if of.rotation is not None and all(move[0] != "unrotate" for move in moves):
            for text, until in promised.items():
                assert now >= until or key_text.digest(text) in valid
        assert len(keys) <= KEYS_HELD
        assert len({each.sha256 for each in keys}) == len(keys)


def test_a_rotation_that_is_only_half_known_keeps_its_order() -> None:
    """`newest last` also when both became valid within one second."""
    keys = next_digests(Texts(A, B), (), spec(), NOW).keys
    assert [each.sha256 for each in keys] == [key_text.digest(A), key_text.digest(B)]
    again = next_digests(replace(Texts(A, B)), keys[::-1], spec(), NOW).keys
    assert again == keys
