"""Makes the shop's database: customers, products, orders and their lines, the same ones each time. IO: the file.

`python database.py FILE` writes a SQLite database by rename, so that a file that is there is whole;
`python database.py --postgres FILE` the same rows as a script for psql.
"""

import random
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]

CUSTOMERS = 20_000
PRODUCTS = 500
ORDERS = 60_000
FIRST_DAY = date(2024, 1, 1)

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL UNIQUE, tier TEXT NOT NULL, joined_on DATE NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, sku TEXT NOT NULL UNIQUE, name TEXT NOT NULL, category TEXT NOT NULL, price_cents INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers, placed_on DATE NOT NULL, status TEXT NOT NULL,
                     total_cents INTEGER NOT NULL);
CREATE TABLE order_lines (order_id INTEGER NOT NULL REFERENCES orders, line INTEGER NOT NULL, product_id INTEGER NOT NULL REFERENCES products,
                          quantity INTEGER NOT NULL, price_cents INTEGER NOT NULL, PRIMARY KEY (order_id, line));
"""
INDEXES = """
CREATE INDEX customers_tier ON customers (tier, id);
CREATE INDEX orders_customer ON orders (customer_id, id);
CREATE INDEX orders_placed ON orders (placed_on);
ANALYZE;
"""
FIRST = [
    "Ada",
    "Alan",
    "Barbara",
    "Claude",
    "Donald",
    "Edsger",
    "Frances",
    "Grace",
    "Hedy",
    "Jean",
    "John",
    "Joan",
    "Katherine",
    "Ken",
    "Lynn",
    "Margaret",
    "Niklaus",
    "Radia",
    "Tim",
    "Vint",
]
LAST = [
    "Allen",
    "Backus",
    "Bartik",
    "Berners-Lee",
    "Boole",
    "Cerf",
    "Clarke",
    "Dijkstra",
    "Hamilton",
    "Hopper",
    "Kay",
    "Knuth",
    "Lamarr",
    "Liskov",
    "Lovelace",
    "Perlman",
    "Shannon",
    "Turing",
]
KINDS = {"TEA": "tea", "CUP": "cups", "POT": "pots", "TIN": "tins", "BOX": "gifts"}
COLOURS = ["Amber", "Black", "Cobalt", "Green", "Ivory", "Jade", "Red", "Rose", "Silver", "White"]


def _customers(chance: random.Random) -> Iterator[tuple[int, str, str, str, str]]:
    for number in range(1, CUSTOMERS + 1):
        first, last = chance.choice(FIRST), chance.choice(LAST)
        tier = chance.choices(("bronze", "silver", "gold"), (70, 25, 5))[0]
        joined = FIRST_DAY - timedelta(days=chance.randrange(2000))
        yield number, f"{first} {last}", f"{first}.{last}.{number}@example.com".lower(), tier, joined.isoformat()


def _products(chance: random.Random) -> Iterator[tuple[int, str, str, str, int]]:
    for number in range(1, PRODUCTS + 1):
        prefix = chance.choice(list(KINDS))
        yield (
            number,
            f"{prefix}-{number:04}",
            f"{chance.choice(COLOURS)} {prefix.title()} {number}",
            KINDS[prefix],
            chance.randrange(250, 9_900, 5),
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """The shop's rows, by table, in the order in which their references allow them to be inserted."""

    customers: list[Row]
    products: list[Row]
    orders: list[Row]
    order_lines: list[Row]

    def tables(self) -> dict[str, list[Row]]:
        """Table → rows."""
        return {"customers": self.customers, "products": self.products, "orders": self.orders, "order_lines": self.order_lines}

    def count(self) -> int:
        """Of all tables together."""
        return sum(len(rows) for rows in self.tables().values())


def rows() -> Rows:
    """The same shop each time."""
    chance = random.Random(20240101)  # noqa: S311 (the same shop each time, no secrets)
    products = list(_products(chance))
    orders: list[Row] = []
    lines: list[Row] = []
    for number in range(1, ORDERS + 1):
        total = 0
        for line, product in enumerate(chance.sample(products, chance.choice((1, 1, 2, 3, 5))), 1):
            quantity = chance.choice((1, 1, 1, 2, 4))
            total += quantity * product[4]
            lines.append((number, line, product[0], quantity, product[4]))
        placed = FIRST_DAY + timedelta(days=number * 700 // ORDERS)
        status = chance.choices(("delivered", "sent", "open", "returned"), (85, 8, 5, 2))[0]
        orders.append((number, chance.randint(1, CUSTOMERS), placed.isoformat(), status, total))
    return Rows(list(_customers(chance)), list(products), orders, lines)


def fill(database: sqlite3.Connection) -> int:
    """Makes tables and rows; how many rows."""
    made = rows()
    database.executescript(SCHEMA)
    for table, each in made.tables().items():
        database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(each[0]))})", each)  # noqa: S608 (our own names)
    database.commit()
    database.executescript(INDEXES)
    return made.count()


def script(file: Path) -> int:
    """Writes the same shop as a script for psql; how many rows it holds."""
    made = rows()
    with file.open("w", encoding="utf-8") as out:
        out.write(SCHEMA)
        for table, each in made.tables().items():
            out.write(f"COPY {table} FROM stdin;\n")
            out.writelines("\t".join(map(str, row)) + "\n" for row in each)  # No value has a tab, a backslash or a line end.
            out.write("\\.\n")
        out.write(INDEXES)
    return made.count()


def make(file: Path) -> int:
    """Writes the file; how many rows it holds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    database = sqlite3.connect(temporary)
    try:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        count = fill(database)
    finally:
        database.close()
    temporary.rename(file)
    return count


if __name__ == "__main__":
    *option, name = sys.argv[1:]
    write = script if option == ["--postgres"] else make
    sys.stdout.write(f"{write(Path(name)):,} rows\n")
