"""YAML is read strictly, with the place and the fix of everything that is refused."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tailrace_gateway.resources import manifest
from tailrace_gateway.resources.manifest import chunks, locate, read_manifests

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))

CASES = [
    ("a: 1\n\tb: 2", 2, "tab"),
    ("a:\n\t- x", 2, "tab"),
    ("a: 1\nb: 2\na: 3", 3, "twice: first in line 1"),
    ("1: x", 1, "key that is not text"),
    ("x:\n  true: x", 2, "key that is not text"),
    ("? [a]\n: 1", 1, "key that is not text"),
    ("a: yes", 1, "readers understand differently"),
    ("n: 1", 1, "the name `n` is text to some"),
    ("a: 010", 1, "readers understand differently"),
    ("a: 1:30", 1, "readers understand differently"),
    ("a: .inf", 1, "readers understand differently"),
    ("a: !!python/object:os.system x", 1, "tag"),
    ("a: !!int '3'", 1, "tag"),
    ("a: &x [*x]", 1, "contains itself"),
    ("queries: [*]", 1, "can't begin|alias|breaks off|not YAML"),
    ("a: *b", 1, "anchor does not exist"),
    ("a: b: c", 1, "colon"),
    ("x: 1\na: 'x", 2, "not YAML"),
    ("a: [1,2", 2, "breaks off"),
    ("a: \x07", 1, "character"),
    ("<<: {a: 1}", 1, "merge"),
    ("a: 1e999", 1, "too large"),
    ("a: " + "9" * 401, 1, "digits"),
    (BOMB, 1, "too many values"),
    ("[" * 2000, 1, "not YAML|deeply"),
    ("[" * 70 + "]" * 70, 1, "deeply"),
]


@pytest.mark.parametrize(("text", "line", "message"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_what_is_refused_says_where_and_how_to_mend_it(text: str, line: int, message: str) -> None:
    _, errors = read_manifests(text)
    assert errors
    assert errors[0].line == line
    assert errors[0].column >= 1
    assert any(part in errors[0].message for part in message.split("|")), errors[0].message
    assert errors[0].hint


def test_everything_that_is_wrong_with_the_values_is_listed_at_once() -> None:
    _, errors = read_manifests("a: yes\nb: 1\nb: 2\nc: {1: x}\n---\nd: 010")
    assert [error.line for error in errors] == [1, 3, 4, 6]


def test_documents_are_counted_and_empty_ones_skipped() -> None:
    found, errors = read_manifests("---\n---\na: 1\n...\n---\n# nothing\n---\nb: '2'\n")
    assert not errors
    assert [(each.value, each.index, each.line) for each in found] == [({"a": 1}, 0, 3), ({"b": "2"}, 1, 8)]


def test_dates_and_versions_stay_text() -> None:
    found, _ = read_manifests("a: 2027-01-01\nb: 2027-01-01T00:00:00Z\nc: 1.2.3\nd: '010'\ne: !!str 5\nf: -5\ng: 0.5\nh: ~\n")
    assert found[0].value == {
        "a": "2027-01-01",
        "b": "2027-01-01T00:00:00Z",
        "c": "1.2.3",
        "d": "010",
        "e": "5",
        "f": -5,
        "g": 0.5,
        "h": None,
    }


def test_a_path_is_found_by_line_and_column() -> None:
    text = "spec:\n  queries:\n    - name: a\n      params: {id: {type: x}}\n    - name: b\n"
    assert locate(text, 0, ("spec", "queries", 0, "params", "id", "type")) == (4, 21)
    assert locate(text, 0, ("spec", "queries", 1)) == (5, 7)
    assert locate(text, 0, ("spec", "queries", 1, "missing", "x")) == (5, 7)
    assert locate(text, 3, ("spec",)) == (1, 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdefgh-_ :#", min_size=1, max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_is_read_as_json_would(value: object) -> None:
    found, errors = read_manifests(json.dumps(value, ensure_ascii=False))
    assert not errors
    assert [each.value for each in found] == ([] if value is None else [value])


@given(json_values)
def test_what_a_yaml_writer_wrote_reads_back_or_is_refused(value: object) -> None:
    found, errors = read_manifests(yaml.safe_dump(value, allow_unicode=True))
    if not errors:
        assert [each.value for each in found] == ([] if value is None else [value])


@given(st.text(max_size=200))
def test_any_text_gives_documents_or_errors_with_a_place(text: str) -> None:
    _, errors = read_manifests(text)
    assert all(error.line >= 1 and error.column >= 1 and error.hint for error in errors)


def test_a_long_text_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "SIZE_LIMIT_BYTES", 10)
    assert read_manifests("a: 1\n" * 10)[1][0].message == "the file is over 16 MiB"


@given(
    st.lists(
        st.sampled_from(["---", "--- ", "----", " ---", "a: 1", "b: |", "  ---", "  text", "'x", "# c", "...", "%YAML 1.2", ""]),
        max_size=12,
    )
)
def test_the_parts_of_a_text_are_the_text_and_know_their_lines(lines: list[str]) -> None:
    text = "\n".join(lines)
    parts = chunks(text)
    assert "".join(part for _, part in parts) == text
    at = 0
    for before, part in parts:
        assert before == text.count("\n", 0, at)
        at += len(part)


@given(
    st.lists(
        st.sampled_from(["a: 1\n", "b: |\n  ---\n  x\n", "c: [1,\n  2]\n", "d: 'x\n\n  y'\n", "# nothing\n", "e: >-\n  ---\n"]), max_size=6
    )
)
def test_reading_by_parts_is_reading_the_whole(documents: list[str]) -> None:
    text = "---\n".join(documents)
    whole, errors = read_manifests(text)
    assert not errors
    by_parts = [(each.value, each.line + before) for before, part in chunks(text) for each in read_manifests(part)[0]]
    assert by_parts == [(each.value, each.line) for each in whole]
