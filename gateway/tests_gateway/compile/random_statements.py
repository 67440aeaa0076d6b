"""Random statements that PostgreSQL and SQLite both understand."""

import random


class Maker:
    """Writes statements that are often valid. Deliberately mixes masked and open columns everywhere."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.depth = 0

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def number(self, t: str) -> str:
        return self.one(
            f"{t}.id", f"{t}.id", f"{t}.salary", f"length({t}.email)", f"{t}.id + 1", f"coalesce({t}.salary, 0)", "1", f"{t}.salary - 150"
        )

    def text(self, t: str) -> str:
        return self.one(
            f"{t}.email",
            f"lower({t}.email)",
            f"CAST({t}.id AS text)",
            f"CAST({t}.salary AS text)",
            "'x'",
            f"{t}.email || 'y'",
            f"substr({t}.email, 1, 2)",
        )

    def scalar(self, t: str) -> str:
        pick = self.random.randrange(9)
        if pick < 3:
            return self.number(t)
        if pick < 5:
            return self.text(t)
        if pick == 5:
            return f"CASE WHEN {self.condition(t)} THEN {self.number(t)} ELSE {self.number(t)} END"
        if pick == 6 and self.depth < 2:
            return f"(SELECT {self.one('max', 'min', 'count')}({self.number('s')}) FROM {self.table()} s WHERE {self.condition('s')})"
        if pick == 7:
            return f"nullif({self.number(t)}, {self.number(t)})"
        return f"{self.number(t)} {self.one('>', '=', '<', 'IS DISTINCT FROM')} {self.number(t)}"

    def condition(self, t: str) -> str:
        pick = self.random.randrange(8)
        if pick < 3:
            return f"{t}.id {self.one('>', '<', '=', '<>')} {self.random.randrange(6)}"
        if pick == 3:
            return f"{self.number(t)} > {self.random.randrange(400)}"
        if pick == 4:
            return f"{self.text(t)} LIKE '%a%'"
        if pick == 5 and self.depth < 2:
            self.depth += 1
            inner = f"{self.one('EXISTS', 'NOT EXISTS')} (SELECT {self.one('*', '1', 'u.salary')} FROM {self.table()} u WHERE u.id = {t}.id AND {self.condition('u')})"
            self.depth -= 1
            return inner
        if pick == 6 and self.depth < 2:
            return f"{t}.id IN (SELECT {self.number('w')} FROM {self.table()} w)"
        return f"({self.condition(t)} {self.one('AND', 'OR')} {t}.id IS NOT NULL)"

    def table(self) -> str:
        if self.depth < 2 and self.chance(0.35):
            self.depth += 1
            inner = self.sub_query()
            self.depth -= 1
            return inner
        return self.one("customers", "customers", "orders")

    def sub_query(self) -> str:
        t = self.table()
        kind = self.random.randrange(5)
        tail = f" ORDER BY {self.number('q')} LIMIT 3" if self.chance(0.2) else ""
        if kind == 0:
            return f"(SELECT * FROM {t} q WHERE {self.condition('q')}{tail})"
        if kind == 1:
            return f"(SELECT q.id, q.email AS email, q.id AS salary FROM {t} q{tail})"
        if kind == 2:
            return f"(SELECT q.salary AS id, q.id AS salary, {self.text('q')} AS email FROM {t} q{tail})"
        if kind == 3:
            return (
                f"(SELECT q.id, q.salary, q.email FROM {t} q UNION {self.one('ALL', 'ALL', '')} SELECT o.id, o.id, o.email FROM orders o)"
            )
        return f"(SELECT {self.one('DISTINCT ', '')}q.id, q.id * 2 AS salary, max(q.email) AS email FROM {t} q GROUP BY q.id)"

    def statement(self) -> str:
        columns = [f"{self.scalar('t')} AS c{n}" for n in range(self.random.randint(1, 3))]
        if self.chance(0.15):
            columns.append(
                f"{self.one('rank()', 'count(*)', 'lag(t.id)', 'max(t.salary)')} OVER ({self.one('', 'PARTITION BY t.id', 'ORDER BY t.id', 'ORDER BY t.salary')}) AS w"
            )
        if self.chance(0.1):
            columns = ["t.*"]
        source = f"{self.table()} t"
        if self.chance(0.3):
            join = self.one("JOIN", "LEFT JOIN")
            source += f" {join} {self.table()} j ON j.id = t.id AND {self.condition('j')}"
        sql = f"SELECT {self.one('', '', '', 'DISTINCT ')}{', '.join(columns)} FROM {source}"
        if self.chance(0.6):
            sql += f" WHERE {self.condition('t')}"
        if self.chance(0.3):
            sql += f" ORDER BY {self.one('1', 't.id', self.number('t'))}"
        if self.chance(0.15):
            sql = f"SELECT count(*) AS n, max(x.c0) AS m FROM ({sql}) x"
        elif self.chance(0.1):
            sql = f"WITH x AS ({sql}) SELECT x.* FROM x"
        return sql
