"""Which queries share a statement on PostgreSQL, why others don't, and that a batch gives each caller the rows of its own call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tailrace_contract.plan import ApiPlan, CoalescePlan, ParamType, QueryPlan, Returns
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.compile.postgres import plans
from tailrace_gateway.compile.postgres.catalog import load
from tailrace_gateway.compile.postgres.coalescing import _explained
from tailrace_gateway.compile.postgres.session import ServerError, Session
from tailrace_gateway.compile.spec import ApiSpec, CoalesceSpec, ConnectionSpec, PageSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_gateway.explain import ALONE
from tailrace_loadtest.servers.postgres import Postgres

pytestmark = pytest.mark.postgres

DDL = r"""
CREATE TABLE customers (id bigint PRIMARY KEY, country text NOT NULL, name text, score int, born date, tags text[]);
INSERT INTO customers SELECT n, 'c' || n % 50, 'name' || n, n % 1000, date '2000-01-01' + n % 9000, ARRAY['t' || n % 7]
  FROM generate_series(1, 60000) n;
CREATE INDEX by_name ON customers (name text_pattern_ops);
CREATE INDEX by_score ON customers (score);
CREATE TABLE orders (customer bigint NOT NULL, number int NOT NULL, amount numeric(12,2), note text, PRIMARY KEY (customer, number));
INSERT INTO orders SELECT c, n, c + n / 4.0, E'a\\b"c,{' || n FROM generate_series(1, 5000) c, generate_series(1, 4) n;
CREATE TABLE few (id int PRIMARY KEY, label text);
INSERT INTO few SELECT n, 'l' || n FROM generate_series(1, 12) n;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN score AS int CHECK (VALUE >= 0);
CREATE TABLE moods (id int PRIMARY KEY, mood mood NOT NULL, value score, key uuid, at timestamptz, doc jsonb, raw bytea, net inet);
INSERT INTO moods SELECT n, (ARRAY['sad','glad'])[1 + n % 2]::mood, n, md5(n::text)::uuid, timestamptz '2026-01-01' + n * interval '1 h',
  jsonb_build_object('n', n), decode(md5(n::text), 'hex'), '10.0.0.0'::inet + n FROM generate_series(1, 30) n;
CREATE TABLE secrets (id int PRIMARY KEY, owner text);
INSERT INTO secrets VALUES (1, 'a'), (2, 'b');
ALTER TABLE secrets ENABLE ROW LEVEL SECURITY;
CREATE VIEW plain AS SELECT id, name FROM customers WHERE score >= 0;
CREATE VIEW dice AS SELECT id, random() AS r FROM customers;
CREATE VIEW over_dice AS SELECT id, r FROM dice;
CREATE VIEW hidden AS SELECT id FROM secrets;
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql STABLE AS 'SELECT $1 * 2';
CREATE VIEW doubled AS SELECT id, twice(score) AS score FROM customers;
CREATE TABLE captured (id int PRIMARY KEY, tailrace_batch_1 int);
ANALYZE;
"""


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Postgres:
    postgres.psql("DROP DATABASE IF EXISTS shared")
    postgres.psql("CREATE DATABASE shared")
    postgres.psql(DDL, "shared")
    return postgres


@pytest.fixture
def url_of(database: Postgres, tmp_path: Path) -> Path:
    (tmp_path / "url").write_text(database.url("shared"))
    return tmp_path / "url"


def param(name: str, type_: ParamType = ParamType.INTEGER, **more: Any) -> ParamSpec:
    return ParamSpec(name, type_, **more)


COMPILER = Compiler()
"""One for all: it reads the catalog once."""
ID = (param("id"),)
TEXT_ID = (param("id", ParamType.STRING),)


def saved(sql: str, params: Sequence[ParamSpec] = ID, **more: Any) -> QuerySpec:
    return QuerySpec("q", "main", sql, tuple(params), **{"returns": Returns.ONE, "timeout_ms": 900, **more})


def compiled(url: Path, query: QuerySpec, **connection: Any) -> QueryPlan:
    api = ApiSpec(
        ApiPlan(namespace="retail", name="shop"), (ConnectionSpec("main", str(url), **connection),), (query,), (RoleSpec("all"),), ()
    )
    return COMPILER.compile(api, 1).assembled.snapshot.queries[0]


def shared(url: Path, query: QuerySpec) -> tuple[QueryPlan, CoalescePlan]:
    plan = compiled(url, query)
    assert plan.refused is None
    assert plan.coalesce is not None, plan.not_coalesced_because
    assert plan.not_coalesced_because == ""
    return plan, plan.coalesce


def why_not(url: Path, query: QuerySpec, **connection: Any) -> str:
    plan = compiled(url, query, **connection)
    assert plan.refused is None, plan.refused
    assert plan.coalesce is None
    assert plan.not_coalesced_because in ALONE
    return plan.not_coalesced_because


Value = str | None
Row = tuple[bytes | None, ...]


def literal(values: Sequence[Value]) -> str:
    def one(text: Value) -> str:
        return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(map(one, values)) + "}"


class Asker:
    """Asks as the data plane does: text parameters with the plan's types, generic plans for batches."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._wire = connection.pgconn

    def _rows(self, sql: str, oids: Sequence[int], values: Sequence[Value]) -> list[Row]:
        result = self._wire.exec_params(sql.encode(), [None if v is None else v.encode() for v in values], list(oids))
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
        return [tuple(result.get_value(n, column) for column in range(result.nfields)) for n in range(result.ntuples)]

    def single(self, plan: QueryPlan, values: Sequence[Value]) -> list[Row]:
        cap = 2 if plan.returns is Returns.ONE else 10_001
        return self._rows(plan.statement.sql, plan.statement.oids, values)[:cap]

    def batch(self, plan: QueryPlan, callers: Sequence[Sequence[Value]]) -> list[list[Row]]:
        assert plan.coalesce is not None
        self._wire.exec_(b"SET plan_cache_mode = force_generic_plan")
        columns = [literal([values[place] for values in callers]) for place in range(len(plan.statement.params))]
        found: list[list[Row]] = [[] for _ in callers]
        for ord_, *row in self._rows(plan.coalesce.statement.sql, plan.coalesce.statement.oids, columns):
            assert ord_ is not None
            found[int(ord_) - 1].append(tuple(row))
        self._wire.exec_(b"RESET plan_cache_mode")
        return found


@contextmanager
def asking(url: Path) -> Iterator[Asker]:
    with psycopg.connect(url.read_text(), autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog, public, pg_temp")
        connection.execute("SET default_transaction_read_only = on")
        yield Asker(connection)


def check_equal(url: Path, query: QuerySpec, callers: Sequence[Sequence[Value]]) -> None:
    plan, _ = shared(url, query)
    with asking(url) as asker:
        assert asker.batch(plan, callers) == [asker.single(plan, values) for values in callers]


@pytest.mark.parametrize(
    ("query", "callers"),
    [
        (saved("SELECT id, name FROM customers WHERE id = :id"), [["3"], ["60000"], ["3"], ["0"], [None]]),
        (saved("SELECT id, label FROM few WHERE id = :id", (param("id", ParamType.NUMBER),)), [["3"], ["4.0"], ["4.5"]]),
        (saved("SELECT id, label FROM few WHERE id = :id"), [["3"], ["12"], ["99"]]),
        (
            saved("SELECT number, note, amount FROM orders WHERE customer = :id ORDER BY number DESC LIMIT 50", returns=Returns.MANY),
            [["1"], ["5000"], ["5001"], ["17"]],
        ),
        (
            saved("SELECT amount FROM orders WHERE customer = :id AND number = :n", (*ID, param("n"))),
            [["1", "1"], ["1", "4"], ["2", "5"], [None, "1"]],
        ),
        (
            saved("SELECT note FROM orders WHERE (customer, number) = (:id, :n) AND :n > 0", (*ID, param("n"))),
            [["1", "1"], ["9", "-4"]],
        ),
        (saved("WITH c AS (SELECT * FROM customers WHERE id = :id) SELECT c.id, o.number FROM c JOIN orders o ON o.customer = c.id"
               " ORDER BY 2 LIMIT 9", returns=Returns.MANY), [["1"], ["2"], ["70000"]]),
        (saved("SELECT id FROM customers WHERE id = :id UNION ALL SELECT customer FROM orders WHERE customer = :id LIMIT 9",
               returns=Returns.MANY), [["1"], ["2"]]),
        (saved("SELECT number FROM orders WHERE customer = :id ORDER BY number LIMIT :n", (*ID, param("n"))), [["1", "1"], ["2", "3"]]),
        (saved("SELECT id, name FROM plain WHERE id = :id"), [["1"], ["2"]]),
        (saved("SELECT count(*) AS n, max(amount) AS most FROM orders WHERE customer = :id"), [["1"], ["7"], ["6000"]]),
        (saved("SELECT :id AS id, now() < now() AS later"), [["1"], ["2"]]),
        (saved("TABLE few", ()), []),
    ],
)  # fmt: skip
def test_what_is_shared_gives_each_caller_its_own_rows(url_of: Path, query: QuerySpec, callers: list[list[Value]]) -> None:
    if not query.params:
        assert why_not(url_of, query) == "no_parameters"
        return
    check_equal(url_of, query, callers)


@pytest.mark.parametrize(
    ("name", "type_", "sql", "values"),
    [
        ("mood", ParamType.STRING, "SELECT id FROM moods WHERE mood = :v AND id < 5 ORDER BY id LIMIT 5", ["sad", "glad"]),
        ("domain", ParamType.INTEGER, "SELECT id FROM moods WHERE value = :v::score", ["1", "30"]),
        ("uuid", ParamType.UUID, "SELECT id FROM moods WHERE key = :v", ["c4ca4238-a0b9-2382-0dcc-509a6f75849b", None]),
        ("time", ParamType.TIMESTAMP, "SELECT id FROM moods WHERE at = :v", ["2026-01-01T03:00:00Z", "2026-01-01 04:00:00+01:00"]),
        ("json", ParamType.JSON, "SELECT id FROM moods WHERE doc = :v", ['{"n": 3}', '{"n":"\\"x"}', "null"]),
        ("inet", ParamType.STRING, "SELECT id FROM moods WHERE net = :v", ["10.0.0.9", "::1"]),
        ("bytea", ParamType.STRING, "SELECT id FROM moods WHERE raw = :v", [r"\xc4ca4238a0b923820dcc509a6f75849b", r"\x"]),
        ("text", ParamType.STRING, "SELECT :v AS v, length(:v) AS n", ["", "NULL", 'a"b\\c', "{x,y}", " ", "é\n", None]),
        ("date", ParamType.DATE, "SELECT id FROM moods WHERE at >= :v ORDER BY id LIMIT 2", ["2026-01-02", "2027-01-01"]),
    ],
)
def test_values_of_every_kind_reach_their_caller(url_of: Path, name: str, type_: ParamType, sql: str, values: list[Value]) -> None:
    check_equal(url_of, saved(sql, (param("v", type_),), returns=Returns.MANY if "LIMIT" in sql else Returns.ONE), [[v] for v in values])


def test_the_text_stays_as_it_is_but_for_the_parameters(url_of: Path) -> None:
    sql = (
        "SELECT c.id::text AS \"a:id\", $x$ :id $1 $x$ AS d, E'\\':id' AS e, ':id' AS s, (ARRAY[1,2,3])[1:2] AS sl -- :id\n"
        "FROM customers c /* :id /* $1 */ */ WHERE id=:id AND :id::int8>0 -- end"
    )
    plan, coalesce = shared(url_of, saved(sql))
    kept = coalesce.statement.sql.replace("(tailrace_batch.tailrace_batch_1)", "$1")
    assert f"(\n{plan.statement.sql}\n)" in kept
    assert coalesce.statement.sql.count("(tailrace_batch.tailrace_batch_1)") == 2
    check_equal(url_of, saved(sql), [["1"], ["2"]])


def test_an_alias_of_ours_is_never_captured(url_of: Path) -> None:
    # A parameter that stands alone names a column: with a name that the text has, too, the query would mean another value.
    check_equal(url_of, saved("SELECT (SELECT p1 FROM (SELECT :id::int8) s) AS v, p1, ord FROM (VALUES (7, 8)) t(p1, ord)"), [["1"], ["2"]])
    # With a name that the text has, too, the inner one would be meant and every caller get its rows.
    check_equal(
        url_of, saved("SELECT batch.id, b.name FROM customers batch JOIN customers b ON b.id = batch.id WHERE b.id = :id"), [["1"], ["2"]]
    )
    assert compiled(url_of, saved("SELECT tailrace_batch.id FROM customers tailrace_batch WHERE id = :id")).refused == "not_parsed"
    escaped = 'SELECT t.id FROM customers U&"tailrace\\005fbatch", customers t WHERE t.id = :id AND U&"tailrace\\005fbatch".id = t.id'
    assert why_not(url_of, saved(escaped)) == "reserved_name"
    assert why_not(url_of, saved("SELECT x.id FROM captured NATURAL JOIN few x WHERE id = :id")) == "reserved_name"
    assert why_not(url_of, saved("SELECT id, 'tailrace_batch' AS t FROM few WHERE id = :id")) == "reserved_name"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, name FROM customers WHERE :id::bigint IS NULL OR id = :id ORDER BY id LIMIT 1",
        "SELECT id, name FROM customers WHERE (:id::bigint IS NULL OR id = :id)",
        "SELECT id, name FROM customers WHERE id = coalesce(:id, id)",
    ],
)
def test_an_optional_filter_that_would_lose_its_index_is_not_shared(url_of: Path, sql: str) -> None:
    assert why_not(url_of, saved(sql)) in ("sequential_scan", "cost")


def test_like_would_lose_its_index(url_of: Path) -> None:
    assert why_not(url_of, saved("SELECT id FROM customers WHERE name LIKE :id", TEXT_ID)) == "sequential_scan"


def test_without_the_comparison_three_callers_would_read_the_table_from_end_to_end(url_of: Path, database: Postgres) -> None:
    """The trap itself: what is refused above costs a batch a hundred times what the singles cost."""
    batch = (
        "SELECT tailrace_batch.o, q.* FROM unnest('{1,2,3}'::int8[]) WITH ORDINALITY AS tailrace_batch (p, o) CROSS JOIN LATERAL"
        " (SELECT * FROM (SELECT id, name FROM customers WHERE tailrace_batch.p IS NULL OR id = tailrace_batch.p) i LIMIT 2) q"
    )
    with psycopg.connect(database.url("shared")) as connection:
        row = connection.execute(f"EXPLAIN (FORMAT JSON) {batch}").fetchone()
        single = connection.execute("EXPLAIN (FORMAT JSON) SELECT id, name FROM customers WHERE 1 IS NULL OR id = 1").fetchone()
    assert row is not None
    assert single is not None
    looped = plans.batch(row[0][0]["Plan"])
    assert looped.scans == {"customers": 1}
    assert looped.peak > 100 * plans.single(single[0][0]["Plan"]).peak


def test_types_are_those_of_the_query_s_own_statement(url_of: Path) -> None:
    # numeric against bigint would be a sequential scan; the server infers bigint for the query, so the array is of bigint.
    plan, coalesce = shared(url_of, saved("SELECT name FROM customers WHERE id = :id"))
    assert (plan.statement.oids, coalesce.statement.oids) == ((20,), (1016,))
    assert why_not(url_of, saved("SELECT name FROM customers WHERE id = :id::numeric")) == "expensive"


def test_lists_go_as_the_text_of_their_literals(url_of: Path) -> None:
    query = saved("SELECT id FROM customers WHERE id = ANY(:ids) ORDER BY id LIMIT 20", (param("ids", array=True),), returns=Returns.MANY)
    _, coalesce = shared(url_of, query)
    assert coalesce.statement.oids == (1009,)
    assert '(CAST(tailrace_batch.tailrace_batch_1 AS "pg_catalog"."_int8"))' in coalesce.statement.sql
    check_equal(url_of, query, [['{"1","2"}'], ["{}"], ['{"5"}'], [None], ['{"9","9","70000"}']])
    texts = saved("SELECT cardinality(:ids::text[]) AS n, (:ids::text[])[1] AS one", (param("ids", ParamType.STRING, array=True),))
    check_equal(url_of, texts, [['{"a,b","c\\"d\\\\"}'], ["{}"], ['{"NULL"}']])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (saved("SELECT sum(:id::int) AS s FROM few"), "not_prepared"),
        (saved("SELECT id FROM few WHERE id = (SELECT max(:id::int))"), "not_prepared"),
        (saved('SELECT int8, a FROM (SELECT :id::int8, 2 AS a) s'), "not_prepared"),
        (saved("SELECT id FROM over_dice WHERE id = :id"), "volatile_function"),
        (saved("SELECT id, random() AS r FROM few WHERE id = :id"), "exclusive"),
        (saved("SELECT id FROM few TABLESAMPLE bernoulli(50) WHERE id = :id"), "exclusive"),
        (saved("SELECT id, score FROM doubled WHERE id = :id"), "own_function"),
        (saved("SELECT id FROM secrets WHERE id = :id"), "row_security"),
        (saved("SELECT id FROM hidden WHERE id = :id"), "row_security"),
        (saved("SELECT id, random() AS r FROM customers WHERE id = :id"), "exclusive"),
        (saved("SELECT id FROM customers WHERE id = :id", returns=Returns.MANY), "exclusive"),
        (saved("SELECT id FROM customers WHERE id = :id", returns=Returns.MANY, page=PageSpec(("id",))), "paged"),
        (saved("SELECT id FROM customers WHERE id = :id", coalesce=None), "off"),
        (saved("SELECT id FROM customers WHERE country = :id LIMIT 90", TEXT_ID, returns=Returns.MANY), "expensive"),
        (saved("SELECT id FROM customers WHERE id BETWEEN :id AND :id + 500 LIMIT 900", returns=Returns.MANY), "many_rows"),
        (saved("DELETE FROM few WHERE id = :id", returns=Returns.NONE, write=True), "write"),
    ],
)  # fmt: skip
def test_what_is_not_shared_says_why(url_of: Path, query: QuerySpec, code: str) -> None:
    assert why_not(url_of, query) == code


@pytest.mark.parametrize(
    "sql",
    [
        "WITH d AS (DELETE FROM few WHERE id = :id RETURNING id) SELECT id FROM d",
        "SELECT id FROM few WHERE id = :id FOR UPDATE",
        "SELECT id FROM (SELECT id FROM few WHERE id = :id FOR SHARE) x",
    ],
)
def test_what_writes_or_locks_is_no_query_at_all(url_of: Path, sql: str) -> None:
    plan = compiled(url_of, saved(sql))
    assert plan.refused == "not_read_only"
    assert (plan.coalesce, plan.not_coalesced_because) == (None, "refused")


def test_an_uncorrelated_volatile_function_would_be_evaluated_once_for_all_callers(database: Postgres) -> None:
    """The trap itself, which is why such a query is not shared."""
    with psycopg.connect(database.url("shared")) as connection:
        rows = connection.execute(
            "SELECT q.* FROM unnest('{1,2,3}'::int8[]) WITH ORDINALITY AS b (p, o)"
            " CROSS JOIN LATERAL (SELECT * FROM (SELECT (SELECT random()) AS r, b.p AS p) i LIMIT 2) q"
        ).fetchall()
    assert len({r for r, _ in rows}) == 1


def test_the_cap_keeps_a_small_table_in_a_nested_loop(url_of: Path, database: Postgres) -> None:
    _, coalesce = shared(url_of, saved("SELECT id, label FROM few WHERE id = :id"))
    without = coalesce.statement.sql.replace(" LIMIT 2)", ")")

    def joined(sql: str) -> str:
        with psycopg.connect(database.url("shared")) as connection:
            row = connection.execute("EXPLAIN (FORMAT JSON) " + sql.replace("$1", f"'{{{','.join(['1'] * 200)}}}'::int8[]")).fetchone()
        assert row is not None
        return str(row[0][0]["Plan"]["Node Type"])

    assert joined(coalesce.statement.sql) == "Nested Loop"
    assert joined(without) != "Nested Loop"


def test_of_each_caller_one_row_more_than_is_shown_is_asked_for(url_of: Path) -> None:
    plan, coalesce = shared(url_of, saved("SELECT number FROM orders WHERE customer = :id ORDER BY number"))
    assert " LIMIT 2)" in coalesce.statement.sql
    with asking(url_of) as asker:
        assert asker.batch(plan, [["1"], ["2"]]) == [[(b"1",), (b"2",)]] * 2
    many, coalesce = shared(url_of, saved("SELECT number FROM orders WHERE customer = :id LIMIT 9", returns=Returns.MANY))
    assert " LIMIT 10)" in coalesce.statement.sql
    assert many.shared


def test_the_query_s_settings_are_carried_and_its_version_does_not_depend_on_them(url_of: Path) -> None:
    query = saved("SELECT id FROM customers WHERE id = :id", coalesce=CoalesceSpec(max_batch=7, max_in_flight=3))
    plan, coalesce = shared(url_of, query)
    assert (coalesce.max_batch, coalesce.max_in_flight, coalesce.shadow) == (7, 3, 20)
    assert coalesce.statement.params == plan.statement.params
    off = compiled(url_of, saved("SELECT id FROM customers WHERE id = :id", coalesce=None))
    assert off.version == plan.version


def test_nothing_stays_in_the_session(url_of: Path) -> None:
    for pooled in (False, True):
        with Session(url_of.read_text(), pooled=pooled) as session:
            types = load(session).types
            assert len(_explained(session, types, "SELECT $1 AS x", [20], (None, ["1"]))) == 2
            for sql, value in (("SELECT 1 / $1 AS x", "0"), ("SELECT $1 AS x", "x")):
                with pytest.raises(ServerError):
                    _explained(session, types, sql, [20], ([value],))
            assert session.rows("SELECT name FROM pg_prepared_statements WHERE from_sql") == []
            assert session.rows("SHOW plan_cache_mode") == [("auto",)]


# Random saved queries over small tables: the batch gives what the singles give.

COLUMN = st.sampled_from(["c.id", "c.score", "length(c.name)", "o.number", "o.customer"])
VALUE = st.sampled_from([":a", ":b", "3", ":a + 1", "abs(:b)", "(SELECT max(number) FROM orders WHERE customer = :a)"])
CONDITION = st.builds("{} {} {}".format, COLUMN, st.sampled_from(["=", "<", ">=", "<>", "IS NOT DISTINCT FROM"]), VALUE)
ITEM = st.one_of(COLUMN, VALUE.map("{}::int8".format), st.just("(SELECT count(*) FROM few WHERE id < :a)"))


@st.composite
def statements(draw: st.DrawFn) -> str:
    items = draw(st.lists(ITEM, min_size=1, max_size=3))
    listed = ", ".join(f"{item} AS x{n}" for n, item in enumerate(items))
    join = draw(st.sampled_from(["JOIN", "LEFT JOIN"]))
    conditions = draw(st.lists(CONDITION, max_size=2))
    where = " AND ".join([f"c.id = {draw(st.sampled_from([':a', ':b']))}", *conditions])
    order = ", ".join(f"{n + 1}" for n in range(len(items)))
    text = f"SELECT {listed} FROM customers c {join} orders o ON o.customer = c.id WHERE {where}"
    if draw(st.booleans()):
        text = f"WITH w AS ({text}) SELECT DISTINCT * FROM w"
    missing = [name for name in ("a", "b") if f":{name}" not in text]
    text += "".join(f" /* {name} */" for name in missing)
    return f"{text} ORDER BY {order} LIMIT {draw(st.sampled_from(['3', '100']))}"


CALLER = st.tuples(*[st.one_of(st.integers(1, 12), st.sampled_from([None, 0, -1, 5000, 60001]))] * 2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sql=statements(), callers=st.lists(CALLER, min_size=1, max_size=9))
def test_a_batch_of_any_query_gives_what_its_singles_give(url_of: Path, sql: str, callers: list[tuple[int | None, int | None]]) -> None:
    names = [name for name in ("a", "b") if f":{name}" in sql]
    plan = compiled(url_of, saved(sql, tuple(map(param, names)), returns=Returns.MANY))
    assert plan.refused is None
    if plan.coalesce is None:
        assert plan.not_coalesced_because in ("cost", "expensive", "sequential_scan", "plan_shape", "many_rows")
        return
    order = [names[place] for place in plan.statement.params]
    values = [[None if (v := caller["ab".index(name)]) is None else str(v) for name in order] for caller in callers]
    with asking(url_of) as asker:
        assert asker.batch(plan, values) == [asker.single(plan, each) for each in values]
