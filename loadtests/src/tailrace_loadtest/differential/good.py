"""Good calls of one seed: any key that works, any format, pages, bursts, the same again, several in a body. Pure."""

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tailrace_loadtest.differential.api import Api, Param, Saved, Value
from tailrace_loadtest.differential.calls import ACCEPT, FORMATS, Call, Headers, fits_url, json_text, url_text

BURST = 48
"""Calls that are sent at once."""


class GoodCalls:
    """Draws good calls."""

    def __init__(self, api: Api, seed: int) -> None:
        self.api = api
        self.random = Random(seed)  # noqa: S311
        self.reads = [query for query in api.queries if not query.write]
        self.writes = [query for query in api.queries if query.write]
        self.paged = [query for query in api.queries if query.paged]
        self.cached = [query for query in self.reads if query.cached]
        self.number = 0

    def value(self, query: Saved, param: Param) -> Value:
        """A good value, by the lists beside the YAML."""
        choice = query.choices.get(param.name)
        if choice is None:
            raise KeyError(f"no values for {query.name}.{param.name}")
        if "values" in choice:
            value: Value = self.random.choice(choice["values"])
            return value
        return str(self.random.randint(choice["from"], choice["to"]))

    def values(self, query: Saved) -> dict[Param, Value]:
        """Good values: every required parameter and most of the others."""
        return {param: self.value(query, param) for param in query.params if param.required or self.random.random() < 0.7}

    def url(self, query: Saved) -> tuple[str, ...]:
        """URL arguments; what a URL can't say is drawn again."""
        pairs = []
        for param, value in self.values(query).items():
            for _ in range(50):
                if fits_url(value):
                    break
                value = self.value(query, param)
            if fits_url(value) and value is not None:
                pairs.append(f"{param.name}={url_text(value)}")
        self.random.shuffle(pairs)
        return tuple(pairs)

    def body(self, query: Saved) -> bytes:
        """A JSON body."""
        members = [f"{json.dumps(param.name)}: {json_text(param, value)}" for param, value in self.values(query).items()]
        return ("{" + ", ".join(members) + "}").encode()

    def shaped(self, kind: str, query: Saved, key: str, extra: tuple[str, ...] = (), headers: Headers = ()) -> Call:
        """A good call, by URL or by body."""
        headers = (*self.credential(), *headers)
        body = query.write or self.random.random() < 0.25
        if body and self.random.random() < 0.9:
            kind_of_body = self.random.choice(("application/json", "application/json", "Application/JSON; charset=utf-8"))
            return Call(
                kind, query.name, "POST", extra, (*headers, ("Content-Type", kind_of_body)), self.body(query), key, stores=query.stores
            )
        pairs = self.url(query)
        if body:
            return Call(kind, query.name, "POST", (*pairs, *extra), headers, b"", key, stores=query.stores)
        return Call(kind, query.name, "GET", (*pairs, *extra), headers, None, key, stores=query.stores)

    def credential(self) -> Headers:
        """The key, in one of its two places."""
        if self.random.random() < 0.8:
            return (("X-API-Key", "{key}"),)
        return (("Authorization", self.random.choice(("Bearer {key}", "bearer {key}", "BEARER {key}"))),)

    def combination(self, query: Saved, wanted: str, role: str) -> Call:
        """One query in one format with one role's key."""
        argument = self.random.random() < 0.3
        extra: tuple[str, ...] = (f"format={wanted}",) if argument else ()
        headers: Headers = () if argument or (wanted == "json" and self.random.random() < 0.5) else (("Accept", ACCEPT[wanted]),)
        call = self.shaped("combination", query, self.api.roles[role], extra, headers)
        return replace(call, combination=(query.name, wanted, role))

    def good(self) -> Call:
        """Any key that works, any format."""
        if self.api.bound and self.random.random() < 0.1:
            return self.narrowed()
        query = self.random.choice(self.reads if self.random.random() < 0.9 else self.writes or self.reads)
        call = self.shaped("good", query, self.random.choice(list(self.api.roles.values())))
        if query.paged and self.random.random() < 0.5:
            call = replace(call, pairs=(*call.pairs, f"page_size={self.random.randint(1, 10)}"))
        return call

    def bursts(self, count: int) -> Iterator[list[Call]]:
        """`count` good calls in bursts of one query: each key, JSON, few different values and some of them twice."""
        turns = count // len(self.reads)
        for query in self.reads:
            left = max(turns, 2 * BURST)
            while left > 0:
                size = min(self.random.randint(BURST // 2, BURST), left)
                keys = [self.random.choice(list(self.api.roles.values())) for _ in range(size)]
                headers: Headers = (("Prefer", "timing"),)
                yield [replace(self.shaped("burst", query, key, headers=headers), stores=False) for key in keys]
                left -= size

    def narrowed(self) -> Call:
        """A key that fixes parameters: left out, sent all the same, or a query that lacks them."""
        key, fixed = self.random.choice(list(self.api.bound.items()))
        fitting = [query for query in self.reads if fixed <= {param.name for param in query.params}]
        query = self.random.choice(fitting if fitting and self.random.random() < 0.8 else self.reads)
        sent = self.random.random() < 0.2
        pairs = tuple(pair for pair in self.url(query) if sent or pair.partition("=")[0] not in fixed)
        return Call("narrowed", query.name, "GET", pairs, self.credential(), None, key, stores=query.stores)

    def walk(self) -> Call:
        """A list page by page."""
        if not self.paged:
            return self.good()
        query = self.random.choice(self.paged)
        extra: tuple[str, ...] = (f"page_size={self.random.choice((1, 2, 3, 5, 10))}",) if self.random.random() < 0.8 else ()
        wanted = self.random.choice(FORMATS)
        call = self.shaped("walk", query, self.random.choice(list(self.api.roles.values())), extra, (("Accept", ACCEPT[wanted]),))
        return replace(call, pages=self.random.randint(1, 6))

    def twice(self) -> Call:
        """A call whose answer may be kept, asked again at once."""
        if not self.cached:
            return self.good()
        query = self.random.choice(self.cached)
        wanted = self.random.choice(FORMATS)
        key = self.random.choice(list(self.api.roles.values()))
        return replace(self.shaped("twice", query, key, (), (("Accept", ACCEPT[wanted]),)), again=True)

    def key(self) -> str:
        """Mostly a role's key."""
        return self.random.choice(list(self.api.roles.values()) if self.random.random() < 0.9 else self.api.good())

    def idempotency(self) -> Call:
        """Idempotency-Key: new, repeated, reused with other arguments, malformed, on reads."""
        query = self.random.choice(self.writes if self.writes and self.random.random() < 0.9 else self.reads)
        key = self.random.choice((*(f"order-{n}" for n in range(40)), "", "é", "x" * 255, "x" * 256, "with blank", '"quoted"', "tab\there"))
        call = self.shaped("idempotency", query, self.key(), (), (("Idempotency-Key", key),))
        return replace(call, stores=True)

    def extras(self) -> Call:
        """Headers that a call may carry."""
        query = self.random.choice(self.reads)
        extra = self.random.choice((
            ("Prefer", "timing"), ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
            ("traceparent", "garbage"), ("If-None-Match", "*"), ("Range", "bytes=0-1"), ("X-Forwarded-For", "10.1.2.3"), ("X-Tailrace-Run-Id", "1"), ("X-Tailrace-Client", "10.0.0.1"), ("Cache-Control", "no-cache"),
            ("traceparent", "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra"), ("traceparent", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        ))  # fmt: skip
        return replace(self.shaped("extras", query, self.random.choice(list(self.api.roles.values())), (), (extra,)), stores=query.stores)

    def bulk(self) -> Call:
        """Several calls in one body: good ones, pages, faults, what is no call; or a body that only looks so, and what refuses all of them."""
        query = self.random.choice(self.reads if self.random.random() < 0.95 else self.writes or self.reads)
        items = [self.item(query) for _ in range(self.random.choice((0, 1, 2, 3, 5, 8)) if self.random.random() < 0.97 else 257)]
        blank = self.random.choice(("", " ", "\n", "\t"))
        body = "{" + blank + '"calls"' + blank + ":" + blank + "[" + f",{blank}".join(items) + "]" + blank + "}"
        if self.random.random() < 0.1:
            body = self.random.choice((
                '{"calls":[{}],"x":1}', '{"calls":null}', '{"calls":[{},]}', '{"calls":[{}]', '{"calls":[{}]}}', '{"c\\u0061lls":[{}]}', '{"calls":[{}],"calls":[]}', "[]",
            ))  # fmt: skip
        headers: Headers = (*self.credential(), ("Content-Type", "application/json"))
        if self.random.random() < 0.1:
            headers = (*headers, ("Accept", self.random.choice((*ACCEPT.values(), "*/*"))))
        pairs = (self.random.choice(("format=json", "format=csv", "x=1", "format=json&x=1")),) if self.random.random() < 0.1 else ()
        return Call("bulk", query.name, "POST", pairs, headers, body.encode(), self.key(), stores=query.stores)

    def item(self, query: Saved) -> str:
        """One of several calls."""
        if self.random.random() < 0.1:
            return self.random.choice(
                ("{}", "null", "5", "[]", '"a"', '{"format":"csv"}', '{"format":"json"}', '{"x":1}', '{"cursor":"AAAA"}', '{"calls":[]}')
            )
        text = self.body(query).decode()
        if query.paged and self.random.random() < 0.5:
            size = f'"page_size": {self.random.randint(0, 12)}'
            text = "{" + size + "}" if text == "{}" else text[:-1] + ", " + size + "}"
        return text
