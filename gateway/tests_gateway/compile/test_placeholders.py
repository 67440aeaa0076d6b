"""`:name` is found where the database's own lexer would see it, and nothing else of the text changes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_contract.codes import Refusal
from tailrace_contract.plan import Engine
from tailrace_gateway.compile.lexer import Kind, NotTokenizedError, tokens
from tailrace_gateway.compile.placeholders import place
from tailrace_gateway.compile.refusal import RefusedError

PG, LITE = Engine.POSTGRES, Engine.SQLITE


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("SELECT :a", "SELECT  $1 "),
        ("SELECT :a::int", "SELECT  $1 ::int"),
        ("SELECT x::a, :a", "SELECT x::a,  $1 "),
        ("SELECT :a, :b, :a", "SELECT  $1 ,  $2 ,  $1 "),
        ("SELECT x[1:a], :a", "SELECT x[1:a],  $1 "),
        ("SELECT x[1 : :a]", "SELECT x[1 :  $1 ]"),
        ("SELECT ARRAY[:a, :b]", "SELECT ARRAY[ $1 ,  $2 ]"),
        ("SELECT x[(:a)]", "SELECT x[( $1 )]"),
        ("SELECT ':a', :a", "SELECT ':a',  $1 "),
        ("SELECT ':a'':a', :a", "SELECT ':a'':a',  $1 "),
        (r"SELECT E'\':a', :a", r"SELECT E'\':a',  $1 "),
        (r"SELECT '\', :a", r"SELECT '\',  $1 "),
        ("SELECT E'x'\n'\\':a', :a", "SELECT E'x'\n'\\':a',  $1 "),
        ("SELECT E'x' -- c\n '\\':a', :a", "SELECT E'x' -- c\n '\\':a',  $1 "),
        ("SELECT $$:a$$, $t$ $$ :a $t$, :a", "SELECT $$:a$$, $t$ $$ :a $t$,  $1 "),
        ("SELECT foo$a$ , :a", "SELECT foo$a$ ,  $1 "),
        ('SELECT ":a", U&":a", :a', 'SELECT ":a", U&":a",  $1 '),
        ("SELECT U&':a' UESCAPE '!', :a", "SELECT U&':a' UESCAPE '!',  $1 "),
        ("SELECT -- :a\n :a", "SELECT -- :a\n  $1 "),
        ("SELECT /* :a /* :a */ :a */ :a", "SELECT /* :a /* :a */ :a */  $1 "),
        ("SELECT 1 LIMIT:a", "SELECT 1 LIMIT $1 "),
        ("SELECT f(x := :a)", "SELECT f(x :=  $1 )"),
        ("SELECT x->>:a, y ? 'k', z @> :b, @ -1", "SELECT x->> $1 , y ? 'k', z @>  $2 , @ -1"),
        ("SELECT :a;", "SELECT  $1 "),
        ("SELECT :a ; -- done\n;", "SELECT  $1  "),
        ("SELECT ';', :a", "SELECT ';',  $1 "),
        ("SELECT date'2020-01-01' + :a", "SELECT date'2020-01-01' +  $1 "),
    ],
)
def test_postgres_places(text: str, sent: str) -> None:
    names = [name for name in ("a", "b") if re.search(rf":{name}\b", text)]
    placed = place(text, names, PG)
    assert placed.sql == sent
    assert placed.params == tuple(range(len(names)))


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("SELECT [:a], `:a`, \":a\", ':a', x':a', :a", "SELECT [:a], `:a`, \":a\", ':a', x':a',  ?1 "),
        ("SELECT /* /* :a */ :a", "SELECT /* /* :a */  ?1 "),
        ("SELECT '\\', :a --:a", "SELECT '\\',  ?1  --:a"),
        ("SELECT a->>:a", "SELECT a->> ?1 "),
    ],
)
def test_sqlite_places(text: str, sent: str) -> None:
    assert place(text, ["a"], LITE).sql == sent


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SELECT :b", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT $1", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT $x", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT ?1", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT @x", Refusal.UNDECLARED_PLACEHOLDER),
        ("SELECT 1", Refusal.UNUSED_PARAMETER),
        ("SELECT ':a'", Refusal.UNUSED_PARAMETER),
        ("SELECT :a; SELECT 1", Refusal.SEVERAL_STATEMENTS),
        ("SELECT :a; ; DROP TABLE x", Refusal.SEVERAL_STATEMENTS),
        ("", Refusal.NOT_PARSED),
        (" -- :a", Refusal.NOT_PARSED),
        (";", Refusal.NOT_PARSED),
        ("SELECT ':a", Refusal.NOT_PARSED),
        ("SELECT :a /* /* */", Refusal.NOT_PARSED),
        ("SELECT $t$ :a", Refusal.NOT_PARSED),
        ("SELECT 1E'x', :a", Refusal.NOT_PARSED),
        ("SELECT :a$b", Refusal.NOT_PARSED),
        ("SELECT :aé", Refusal.NOT_PARSED),
        ("SELECT :a\0", Refusal.NOT_PARSED),
        ("SELECT :a FROM x tailrace_page", Refusal.NOT_PARSED),
        ('SELECT :a FROM x "Tailrace_Batch_1"', Refusal.NOT_PARSED),
    ],
)
def test_refusals(text: str, code: Refusal) -> None:
    with pytest.raises(RefusedError) as refused:
        place(text, ["a"], PG)
    assert refused.value.code is code
    assert "SELECT" not in refused.value.hint


@pytest.mark.parametrize("text", ["SELECT ?", "SELECT ?1", "SELECT @a", "SELECT $a", "SELECT #a"])
def test_sqlite_knows_no_other_placeholder(text: str) -> None:
    with pytest.raises(RefusedError):
        place(text, [], LITE)


FRAGMENTS = st.sampled_from(
    [
        "'",
        "''",
        '"',
        "$$",
        "$t$",
        "/*",
        "*/",
        "--",
        "\n",
        "E'",
        "\\",
        ":a",
        "::",
        ":",
        "[",
        "]",
        "(",
        ")",
        "1",
        "x",
        " ",
        ";",
        "?",
        "@",
        "$1",
        "`",
        "é",
        "U&'",
        ":=",
        "\r",
    ]
)


@given(st.lists(FRAGMENTS, max_size=25).map("".join), st.sampled_from([PG, LITE]))
def test_tokens_cover_the_text_without_gaps(text: str, engine: Engine) -> None:
    try:
        found = list(tokens(text, engine))
    except NotTokenizedError:
        return
    assert "".join(text[token.start : token.end] for token in found) == text
    assert all(token.start < token.end for token in found)


@given(st.lists(FRAGMENTS, max_size=25).map("".join), st.sampled_from([PG, LITE]))
def test_only_parameters_change(text: str, engine: Engine) -> None:
    try:
        placed = place(text, ["a"], engine)
    except RefusedError:
        return
    mark = "$1" if engine is PG else "?1"
    assert text.startswith(placed.sql.replace(f" {mark} ", ":a"))
    named = [token for token in tokens(text, engine) if token.kind is Kind.NAMED]
    assert placed.sql.count(f" {mark} ") <= len(named)
