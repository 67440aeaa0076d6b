"""What the corpus runs on: loads the statements, decides them, executes them around changes of what must not be seen."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import yaml
from tailrace_contract.plan import BigNumbers, Mask, MaskPlan, ParamType, Returns
from tailrace_gateway.compile.decision import Verdict, decide
from tailrace_gateway.compile.facts import Facts, RoleOnDatabase
from tailrace_gateway.compile.postgres.database import PostgresDatabase
from tailrace_gateway.compile.spec import MaskSpec, ParamSpec, QuerySpec, RoleSpec

FOLDER = Path(__file__).parents[1] / "corpus"

ALLOWED_TABLES = (
    *("customers", "orders", "people", "employees", "events", "events_2025", "contacts", "contacts_again", "rich", "whole", "directory"),
)
MASKS = (
    *(MaskSpec(f"customers.{name}", Mask.NULL) for name in ("email", "salary", "ssn", "born", "profile")),
    *(MaskSpec(name, Mask.NULL) for name in ("people.email", "events.payload")),
)
STRICT = RoleSpec("strict", tables=ALLOWED_TABLES, masks=MASKS)
FILTERING = RoleSpec("filtering", tables=ALLOWED_TABLES, masks=MASKS, filter_on_masked=True)

CHANGES = (
    "UPDATE customers SET email = CASE id WHEN 1 THEN 'zoe@z.example.com' WHEN 4 THEN 'ann@a.example' ELSE email END",
    "UPDATE customers SET email = 'x{9}' || id WHERE id < 3",
    "UPDATE customers SET email = '[' || email",
    "UPDATE customers SET email = '\"' || email WHERE id = 1",
    'UPDATE customers SET profile = \'{"k": "x"}\' WHERE id = 3',
    "UPDATE customers SET ssn = '202601' || ssn",
    "UPDATE customers SET salary = CASE id WHEN 1 THEN 400 WHEN 4 THEN 100 ELSE salary + 100 END",
    "UPDATE customers SET salary = 500 - salary",
    "UPDATE customers SET salary = 2000000000 WHERE id = 1",
    "UPDATE customers SET salary = 100 + id",
    "UPDATE customers SET ssn = 'a' || ssn WHERE id = 3",
    "UPDATE customers SET ssn = '2026013' || ssn, born = '1990-01-01'",
    "UPDATE customers SET born = '2000-01-01'::date - born + '1990-01-01'::date, profile = '{\"k\": 2, \"l\": [1]}' WHERE id <> 2",
    "UPDATE people SET email = 'a' || email WHERE id = 2; UPDATE people SET email = 'z' WHERE id = 1",
    "UPDATE events SET payload = CASE id WHEN 1 THEN 'zzz' ELSE payload END",
    "UPDATE vault SET pin = 'other' || id WHERE id = 1",
    "UPDATE vault SET pin = 'pin99', customer_id = 3; INSERT INTO vault SELECT n, 'x', 1 FROM generate_series(10, 30) n; ANALYZE vault",
)
"""Each changes only what the strict role must not see."""


@dataclass(frozen=True, slots=True)
class Case:
    """One statement. `expect`: a refusal code, or `allowed`. `proof`: leaks, tells, acts, silent."""

    kind: str
    sql: str
    expect: str
    proof: str
    params: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""

    @property
    def label(self) -> str:
        return f"{self.kind}: {self.sql[:80]}"


@cache
def cases() -> tuple[Case, ...]:
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    for name in ("masks.yaml", "boundaries.yaml", "legitimate.yaml"):
        for group in yaml.safe_load((FOLDER / name).read_text()):
            for proof, code in (
                ("leaks", "mask_leak"),
                ("allowed", "allowed"),
                ("refused", "mask_leak"),
                ("tells", ""),
                ("silent", ""),
                ("acts", ""),
            ):
                for item in group.get(proof, ()):
                    if isinstance(item, list):
                        yield Case(group["kind"], item[0], code or group["code"], proof, check=item[1])
                    elif isinstance(item, dict):
                        yield Case(group["kind"], item["sql"], code or group["code"], proof, item["params"])
                    else:
                        yield Case(group["kind"], item, code or group["code"], proof)


def query_of(case: Case) -> QuerySpec:
    return QuerySpec("q", "main", case.sql, tuple(_param(name, value) for name, value in case.params.items()), Returns.MANY)


def _param(name: str, value: object) -> ParamSpec:
    element = value[0] if isinstance(value, list) else value
    return ParamSpec(name, ParamType.INTEGER if isinstance(element, int) else ParamType.STRING, array=isinstance(value, list))


def verdict(database: PostgresDatabase, facts: Facts, role: RoleSpec) -> Verdict:
    if (database, role) not in _RULES:
        _RULES[database, role] = database.role(role)
    return decide(facts.lineage, _RULES[database, role].rules, database.system, facts.page_columns)


_RULES: dict[tuple[PostgresDatabase, RoleSpec], RoleOnDatabase] = {}


def facts_of(database: PostgresDatabase, case: Case) -> Facts:
    return database.facts(query_of(case), BigNumbers.NUMBER)


Answer = tuple[str, list[tuple[object, ...]]]


def answer(
    connection: psycopg.Connection[Any], sql: str, values: Sequence[str], change: str = "", masks: Sequence[MaskPlan] = (), settle: str = ""
) -> Answer:
    """What a caller would get, masks applied, in a transaction that is rolled back: (SQLSTATE or empty, rows)."""
    hidden = {mask.column for mask in masks}
    try:
        with connection.transaction(force_rollback=True):
            if change:
                connection.execute(change.encode())
                if settle:
                    connection.execute(settle.encode())
                if "customers" in change and "directory" in sql:
                    connection.execute("REFRESH MATERIALIZED VIEW directory")
            with connection.transaction():
                result = connection.pgconn.exec_params(sql.encode(), [value.encode() for value in values])
                if result.error_message:
                    return (result.error_field(67) or b"").decode(), []
                rows = [
                    tuple(None if n in hidden else result.get_value(row, n) for n in range(result.nfields)) for row in range(result.ntuples)
                ]
    except psycopg.Error as error:
        return error.sqlstate or "", []
    ordered = "order by" in sql.lower()
    return "", rows if ordered else sorted(rows, key=repr)


def values_of(case: Case, facts: Facts) -> list[str]:
    def text(value: object) -> str:
        return "{" + ",".join(json.dumps(str(each)) for each in value) + "}" if isinstance(value, list) else str(value)

    names = list(case.params)
    return [text(case.params[names[n]]) for n in facts.statement.params]
