"""As many queries, roles and keys as an API may have: one snapshot, far below the limit of its size, every pair decided."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tailrace_contract.plan import SNAPSHOT_LIMIT_BYTES, ApiPlan, Mask, ParamType, Returns
from tailrace_gateway.compile.compiler import Compiler
from tailrace_gateway.compile.spec import ApiSpec, ConnectionSpec, KeySpec, MaskSpec, ParamSpec, QuerySpec, RoleSpec
from tailrace_loadtest.servers.postgres import Postgres

QUERIES, ROLES, KEYS, TABLES = 1000, 50, 10_000, 20
ID = (ParamSpec("id", ParamType.INTEGER),)


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_the_largest_api_compiles_whole(postgres: Postgres, tmp_path: Path) -> None:
    postgres.psql("CREATE DATABASE scale")
    postgres.psql("".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, a text, b text, c int);" for n in range(TABLES)), "scale")
    (tmp_path / "url").write_text(postgres.url("scale"))
    queries = tuple(
        QuerySpec(f"q{n}", "main", f"SELECT id, a, b, {n} AS n FROM t{n % TABLES} WHERE id = :id", ID, Returns.ONE) for n in range(QUERIES)
    )
    roles = tuple(
        RoleSpec(
            f"r{n}",
            tables=tuple(f"t{table}" for table in range(TABLES) if (table + n) % 7),
            masks=(MaskSpec(f"t{n % TABLES}.a", Mask.HASH),),
        )
        for n in range(ROLES)
    )
    keys = tuple(KeySpec(f"ns/k{n}", (hashlib.sha256(str(n).encode()).hexdigest(),), f"r{n % ROLES}", {"id": n % 97}) for n in range(KEYS))
    spec = ApiSpec(ApiPlan(namespace="ns", name="large"), (ConnectionSpec("main", str(tmp_path / "url")),), queries, roles, keys)
    compiler = Compiler()
    compiled = compiler.compile(spec, 1)
    snapshot = compiled.assembled.snapshot
    assert len(snapshot.to_json()) < SNAPSHOT_LIMIT_BYTES // 8
    assert (len(snapshot.queries), len(snapshot.roles), len(snapshot.keys)) == (QUERIES, ROLES, KEYS)
    for n, role in enumerate(snapshot.roles):
        assert len(role.grants) == QUERIES
        for grant in role.grants:
            table = grant.query % TABLES
            allowed = bool((table + n) % 7)
            assert grant.refused == (None if allowed else "table_not_allowed")
            assert bool(grant.masks) == (allowed and table == n % TABLES)
    assert len(compiler.compile(replace(spec, keys=keys[1:]), 2).assembled.snapshot.keys) == KEYS - 1
