"""Seeded calls over a QueryAPI: every query × format × role first, then every kind by weight. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from tailrace_loadtest.differential.bad import BadCalls
from tailrace_loadtest.differential.calls import FORMATS, Call


class Generator(BadCalls):
    """All calls of one seed."""

    def calls(self, count: int, each: int) -> Iterator[Call]:
        """`count` calls (a page that is followed counts as one): first every combination `each` times, then everything else mixed."""
        random, left = self.random, count
        combinations = [(q, f, r) for q in self.api.queries for f in FORMATS for r in self.api.roles for _ in range(each)]
        random.shuffle(combinations)
        for query, wanted, role in combinations[:left]:
            yield self.combination(query, wanted, role)
            left -= 1
        yield from self.mixed(left)

    def mixed(self, left: int) -> Iterator[Call]:
        """Calls of every kind, by weight."""
        kinds = (
            (self.good, 30), (self.walk, 14), (self.bad_parameters, 18), (self.bad_body, 6), (self.methods, 6), (self.accept, 8),
            (self.credentials, 6), (self.names, 3), (self.cursors, 3), (self.idempotency, 4), (self.extras, 2), (self.bulk, 5), (self.twice, 4),
        )  # fmt: skip
        makers = [maker for maker, weight in kinds for _ in range(weight)]
        while left > 0:
            call = self.random.choice(makers)()
            if call.asked > left:
                call = replace(call, pages=min(call.pages, left - 1), again=False)
            left -= call.asked
            yield call
