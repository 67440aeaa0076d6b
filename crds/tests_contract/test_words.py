"""Durations, sizes, decimals, names, keys: what is written is read back, and nothing else is read."""

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract import duration, ids, keys


@given(st.integers(1, duration.MAX_MS))
def test_a_duration_reads_back(ms: int) -> None:
    text = duration.format_duration(ms)
    assert re.fullmatch(duration.PATTERN, text)
    assert duration.parse_duration(text) == ms


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(["ms", "s", "m", "h", "d"])), min_size=1, max_size=5))
def test_the_parts_of_a_duration_are_added_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    expected = sum(number * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit] for number, unit in parts)
    if 0 < expected <= duration.MAX_MS and len(text) <= duration.MAX_TEXT:
        assert duration.parse_duration(text) == expected
    else:
        with pytest.raises(ValueError, match="duration"):
            duration.parse_duration(text)


@pytest.mark.parametrize("text", ["", "5", "s", "1 s", "1.5s", "-1s", "1S", "1s ", "\u0661s", "1s\n", "0ms", "99999999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration.parse_duration(text)


@given(st.integers(1, 1 << 40))
def test_a_size_reads_back(kib: int) -> None:
    assert duration.parse_size(duration.format_size(kib * 1024)) == kib * 1024


@pytest.mark.parametrize("text", ["", "1", "1G", "0Gi", "1.5Gi", "1gi", "1 Gi", "2048Ti"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        duration.parse_size(text)


@given(st.text(alphabet="ab*", max_size=12), st.text(alphabet="ab", max_size=12))
def test_a_glob_matches_as_a_shell_would(glob: str, name: str) -> None:
    assert ids.glob_matches(glob, name) == fnmatchcase(name, glob)


def test_a_glob_of_many_stars_is_no_attack() -> None:
    assert not ids.glob_matches("*a" * 20_000 + "b", "a" * 20_000)


@given(st.text(max_size=80))
def test_only_plain_names_may_become_files(text: str) -> None:
    if ids.is_file_part(text):
        assert "/" not in text
        assert text not in ("", ".", "..")
        assert text.isascii()


@given(st.binary(min_size=keys.ENTROPY_BYTES, max_size=keys.ENTROPY_BYTES), st.integers(0, 62), st.sampled_from(keys.ALPHABET))
def test_a_minted_key_is_known_and_one_wrong_letter_is_noticed(entropy: bytes, position: int, letter: str) -> None:
    key = keys.mint(entropy)
    assert keys.is_minted(key)
    assert keys.read_key(key + "\n") == key
    broken = key[: 4 + position % (len(key) - 4)] + letter + key[5 + position % (len(key) - 4) :]
    assert keys.is_minted(broken) == (broken == key)


def test_different_entropy_makes_different_keys() -> None:
    assert keys.mint(b"\0" * 38)[13:56] != keys.mint(b"\0" * 37 + b"\1")[13:56]
    assert keys.digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("text", ["short", "with a blank in it all", "tlr_a_b_c_much_too_wrong", "x" * 513, "ümlaut-ümlaut-ümlaut"])
def test_what_callers_could_not_send_is_no_key(text: str) -> None:
    with pytest.raises(ValueError, match="key") as error:
        keys.read_key(text)
    assert text not in str(error.value)


@given(st.integers(1, duration.MAX_CPU_MILLIS))
def test_a_cpu_amount_reads_back(millis: int) -> None:
    text = duration.format_cpu(millis)
    assert re.fullmatch(duration.CPU_PATTERN, text)
    assert duration.parse_cpu(text) == millis
    assert duration.parse_cpu(f"{millis}m") == millis
    assert duration.parse_cpu(f"{millis // 1000}.{millis % 1000:03}") == millis


@pytest.mark.parametrize("text", ["", "m", "0", "0m", "1.5m", "1.2345", "-1", "1e3", "257", "256001m", "1 ", "\u0661"])
def test_what_is_no_cpu_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPU amount"):
        duration.parse_cpu(text)
