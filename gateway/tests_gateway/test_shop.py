"""The example's resources compile unchanged on SQLite and on PostgreSQL, to the same columns and masks for every role."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tailrace_loadtest.servers.postgres import Postgres

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/examples/shop/local"))

SHOP = ROOT / "docs/examples/shop/shop.yaml"
RUNS = ROOT / "docs/examples/shop/local/runs.yaml"


def _explained(folder: Path, url: str) -> list[dict[str, object]]:
    secret = folder / "secrets.yaml"
    secret.write_text(f"apiVersion: v1\nkind: Secret\nmetadata: {{name: shop-db, namespace: retail}}\nstringData: {{url: '{url}'}}\n")
    options = ["-f", str(SHOP), "-f", str(RUNS), "-f", str(secret), "--data", str(folder / "data"), "-o", "json"]
    checked = subprocess.run([sys.executable, "-m", "tailrace_gateway", "check", *options], capture_output=True, text=True, check=False)
    assert json.loads(checked.stdout)["faults"] == []
    done = subprocess.run([sys.executable, "-m", "tailrace_gateway", "explain", *options], capture_output=True, text=True, check=True)
    return [
        {"query": each["query"], "key": each["key"], "refused": each["refused"], "columns": each["columns"], "paged": each["paged"],
         "tables": sorted(name.rpartition(".")[2] for name in each["tables"])}
        for each in json.loads(done.stdout)
    ]  # fmt: skip


@pytest.mark.postgres
def test_the_same_file_means_the_same_on_both_engines(tmp_path: Path) -> None:
    import database

    (tmp_path / "sqlite").mkdir()
    (tmp_path / "postgres").mkdir()
    file = sqlite3.connect(tmp_path / "shop.db")
    file.executescript(database.SCHEMA)
    file.close()
    on_sqlite = _explained(tmp_path / "sqlite", f"sqlite:///{tmp_path / 'shop.db'}")
    with Postgres() as server:
        server.psql(database.SCHEMA)
        on_postgres = _explained(tmp_path / "postgres", server.url())
    assert len(on_sqlite) == 6 + 4
    assert on_postgres == on_sqlite
    masked = {column["name"]: column["mask"] for each in on_sqlite if each["key"] == "retail/analytics" and each["query"] == "customer_by_id" for column in each["columns"]}  # type: ignore[attr-defined] # fmt: skip
    assert masked == {"id": "", "name": "partial", "email": "hash", "tier": "", "joined_on": ""}
