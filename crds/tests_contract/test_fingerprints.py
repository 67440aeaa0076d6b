"""What the operator and the gateway compute alike stays what it is, and tells different things apart."""

from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.fingerprints import config_fingerprint, entry_fingerprint

maps = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)


def test_they_stay_the_same() -> None:
    assert entry_fingerprint({"tailrace.dev/shop": "true"}, {"tenant": "tailrace.dev/tenant"}) == "4d816d6722963c8f"
    assert config_fingerprint({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(maps, maps, maps, maps)
def test_only_the_same_entry_has_the_same(
    labels: dict[str, str], bind: dict[str, str], others: dict[str, str], another: dict[str, str]
) -> None:
    same = (labels, bind) == (others, another)
    assert (entry_fingerprint(labels, bind) == entry_fingerprint(others, another)) == same
    turned = dict(reversed(list(labels.items())))
    assert entry_fingerprint(turned, bind) == entry_fingerprint(labels, bind)


@given(
    st.dictionaries(st.text("abc.", min_size=1, max_size=3), st.binary(max_size=3), max_size=3),
    st.dictionaries(st.text("abc.", min_size=1, max_size=3), st.binary(max_size=3), max_size=3),
)
def test_only_the_same_files_have_the_same(files: dict[str, bytes], others: dict[str, bytes]) -> None:
    assert (config_fingerprint(files) == config_fingerprint(others)) == (files == others)
