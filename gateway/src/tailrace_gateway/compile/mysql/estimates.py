"""EXPLAIN of a single and of its batch on MySQL and MariaDB: whether the batch would be planned worse. Rejects nothing. IO: EXPLAIN through `Session`."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tailrace_contract.plan import MysqlPlace

from tailrace_gateway.compile.mysql.session import Session
from tailrace_gateway.compile.postgres.session import ServerError
from tailrace_gateway.compile.spec import ParamSpec

DEARER = 4.0
"""So many times the single's rows a batch may look at for each caller."""
FEW_ROWS = 25
"""A scan of so few rows counts for no scan."""
BATCH = "tailrace_batch"
"""What the batch's own row source is called; what is derived from it begins so."""


def worse(session: Session, single: str, places: Sequence[int], params: Sequence[ParamSpec], batch: str) -> str:
    """A code for `explain` if the batch reads a table from end to end that the single reaches by an index, or looks at many more rows a caller; else "".

    `params`: one for each place of the single.
    """
    samples = [_sample(param, place) for param, place in zip(params, places, strict=True)]
    caller = "[" + ",".join(_element(sample, place) for sample, place in zip(samples, places, strict=True)) + "]"
    try:
        one = session.explained(single, places, samples)
        many = session.explained(batch, (MysqlPlace.TEXT,), [f"[{caller},{caller}]".encode()])
    except ServerError:
        return "not_explained"
    if _scans(many) - _scans(one):
        return "sequential_scan"
    return "cost" if _rows(many) > DEARER * max(_rows(one), 1.0) else ""


Explained = Sequence[Mapping[str, str | None]]


def _is_ours(row: Mapping[str, str | None]) -> bool:
    table = row["table"] or ""
    return table == BATCH or table.startswith(("<derived", f"{BATCH}_"))


def _scans(rows: Explained) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        whole = row["type"] in ("ALL", "index") and int(row["rows"] or 0) > FEW_ROWS
        if not _is_ours(row) and (whole or "Range checked" in (row["Extra"] or "")):
            found[row["table"] or ""] += 1
    return found


def _rows(rows: Explained) -> float:
    """Rows looked at for one caller, by the server's own estimate: the product over each SELECT, added up."""
    products: dict[str, float] = {}
    for row in rows:
        if not _is_ours(row):
            products[row["id"] or ""] = products.get(row["id"] or "", 1.0) * max(1.0, float(row["rows"] or 1))
    return sum(products.values())


def _sample(param: ParamSpec, place: int) -> bytes:
    if param.enum and isinstance(param.enum[0], str | int) and not isinstance(param.enum[0], bool):
        return str(param.enum[0]).encode()
    if param.minimum is not None and place == MysqlPlace.INTEGER:
        return str(int(float(param.minimum))).encode()
    return b"1" if place in (MysqlPlace.INTEGER, MysqlPlace.BOOLEAN) else b"a"


def _element(sample: bytes, place: int) -> str:
    """One value in the JSON of a batch; samples need no escapes."""
    return (
        sample.decode()
        if place in (MysqlPlace.INTEGER, MysqlPlace.BOOLEAN)
        else '"' + sample.decode().replace("\\", "").replace('"', "") + '"'
    )
