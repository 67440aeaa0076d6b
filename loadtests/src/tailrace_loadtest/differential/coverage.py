"""What a run asked in each way, so that a way that was never taken can't pass for one without differences. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tailrace_contract.run import Run

KINDS = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "mysql": "MySQL"}
"""Databases by their URL's scheme."""


def engine(url: str) -> str:
    """Kind of a database by its URL."""
    return KINDS[url.partition(":")[0]]


class Coverage:
    """Answers of the data plane by way, engine, and what they came of. `expect` names what must not be 0 in the end."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.expected: dict[str, None] = {}

    def expect(self, names: Iterable[str]) -> None:
        """These must have been."""
        self.expected |= dict.fromkeys(names)

    def asked(self, ways: Mapping[str, int], parts: int, *, is_tls: bool) -> None:
        """Books an API's answers by how they were asked, and the calls that were one of several in a body."""
        for way, count in ways.items():
            self.counts[f"{way} over TLS" if is_tls else way] += count
        self.counts["in bulk"] += parts

    def recorded(self, run: Run, engines: Mapping[str, str]) -> None:
        """Books a run of the data plane. `engines`: by the connection's name."""
        if run.connection in engines and run.status < 300:
            self.counts[engines[run.connection]] += 1
            if run.batch > 1:
                self.counts[f"shared on {engines[run.connection]}"] += 1
        if run.cached:
            self.counts["not modified" if run.status == 304 else "kept answers"] += 1

    def missing(self) -> list[str]:
        """What is expected and never was."""
        return [name for name in self.expected if not self.counts[name]]

    def described(self) -> str:
        """Every expected count, and the others that are not 0."""
        names = [*self.expected, *sorted(set(self.counts) - set(self.expected))]
        return ", ".join(f"{name} {self.counts[name]}" for name in names if name and (name in self.expected or self.counts[name]))
