"""Seeded calls over a QueryAPI: grants, formats, good and bad parameters, paging walks, methods, keys. Pure."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from urllib.parse import quote, quote_plus

from tailrace_contract.plan import ParamType

from tailrace_loadtest.differential.api import Api, Param, Saved, Value

FORMATS = ("json", "ndjson", "csv")
ACCEPT = {"json": "application/json", "ndjson": "application/x-ndjson", "csv": "text/csv"}
COVERED = 50
"""Times that each query × format × role is asked in 50,000 calls."""


def times(calls: int) -> int:
    """Times that each combination is asked in so many calls."""
    return max(1, COVERED * calls // 50_000)


BURST = 48
"""Calls that are sent at once."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `key` names the Secret whose text fills `{key}` in header values, empty for none."""

    kind: str
    query: str
    method: str
    pairs: tuple[str, ...]
    headers: Headers = ()
    body: bytes | None = None
    key: str = ""
    path: str = ""
    """Instead of /q/QUERY."""
    pages: int = 0
    """Next pages to follow."""
    combination: tuple[str, str, str] | None = None
    """(query, format, role) that it counts for."""
    stores: bool = False

    @property
    def target(self) -> str:
        """Path and URL arguments."""
        return (self.path or f"/q/{self.query}") + ("?" + "&".join(self.pairs) if self.pairs else "")


_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _element(kind: ParamType, text: str) -> str:
    if kind in (ParamType.INTEGER, ParamType.NUMBER) and _JSON_NUMBER.fullmatch(text):
        return text
    if (kind is ParamType.BOOLEAN and text in ("true", "false")) or kind is ParamType.JSON:
        return text
    return json.dumps(text, ensure_ascii=False)


def json_text(param: Param, value: Value) -> str:
    """A value as it stands in a JSON body."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ", ".join(_element(param.type, each) for each in value) + "]"
    return _element(param.type, value)


def url_text(value: str | list[str]) -> str:
    """A value as it stands in a URL, escaped."""
    return quote(",".join(value) if isinstance(value, list) else value, safe=",:")


def fits_url(value: Value) -> bool:
    """Whether a URL can say it: no null, no comma in an element, no list of one empty text."""
    return value is not None and not (isinstance(value, list) and (any("," in each for each in value) or value == [""]))


class Generator:
    """All calls of one seed."""

    def __init__(self, api: Api, seed: int) -> None:
        self.api = api
        self.random = Random(seed)  # noqa: S311
        self.reads = [query for query in api.queries if not query.write]
        self.writes = [query for query in api.queries if query.write]
        self.paged = [query for query in api.queries if query.paged]
        self.number = 0

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
            (self.credentials, 6), (self.names, 3), (self.cursors, 3), (self.idempotency, 4), (self.extras, 2), (self.bulk, 5),
        )  # fmt: skip
        makers = [maker for maker, weight in kinds for _ in range(weight)]
        while left > 0:
            call = self.random.choice(makers)()
            if call.pages >= left:
                call = replace(call, pages=left - 1)
            left -= 1 + call.pages
            yield call

    # Good calls

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

    # Bad ones

    def bad_parameters(self) -> Call:
        """One or two faults among good arguments."""
        query = self.random.choice(self.api.queries)
        call = Call(
            "bad parameters",
            query.name,
            "POST" if query.write else "GET",
            self.url(query),
            self.credential(),
            None,
            self.key(),
            stores=query.stores,
        )
        if query.write:
            call = replace(call, body=b"")
        for _ in range(self.random.choice((1, 1, 1, 2))):
            call = replace(call, pairs=self.spoiled(query, list(call.pairs)))
        return call

    def key(self) -> str:
        """Mostly a role's key."""
        return self.random.choice(list(self.api.roles.values()) if self.random.random() < 0.9 else self.api.good())

    def spoiled(self, query: Saved, pairs: list[str]) -> tuple[str, ...]:
        """URL arguments with one fault."""
        random = self.random
        at = random.randrange(len(pairs)) if pairs else 0
        name = pairs[at].partition("=")[0] if pairs else "v"
        match random.randrange(8):
            case 0:
                pairs.insert(
                    at, random.choice(("unknown=1", "Id=1", "", "=1", "=", "a~b/c=1", "%C3%A9=1", "unknown", "__proto__=1", "format="))
                )
            case 1 if pairs:
                del pairs[at]
            case 2 if pairs:
                pairs.append(pairs[at])
            case 3:
                bad = ("%", "%4", "%zz", "%ff", "%C3", "%ED%A0%80", "%00", "a%00b", "%C0%80", "%F4%90%80%80")
                pairs.append(f"{random.choice((name, 'x'))}={random.choice(bad)}")
            case 4:
                sizes = ("0", "-1", "1", "1001", "99999999999999999999", "ten", "", "1.0", "+1", "01")
                pairs.append(f"page_size={random.choice(sizes)}")
            case 5:
                pairs.append(
                    random.choice(("format=xml", "format=JSON", "format=json&format=csv", "format=", "format=parquet", "format=csv"))
                )
            case _ if query.params:
                param = random.choice(query.params)
                pairs = [pair for pair in pairs if pair.partition("=")[0] != param.name]
                pairs.insert(min(at, len(pairs)), f"{param.name}={quote(self.wrong(param), safe='+,')}")
        return tuple(pairs)

    def wrong(self, param: Param) -> str:
        """A text that is mostly none of the type, or out of bounds."""
        wrong = {
            ParamType.INTEGER: ("", " 1", "1 ", "+1", "01", "1.0", "1e1", "0x1", "1_0", "١", "9223372036854775808", "-9223372036854775809", "--1", "-", "NaN", "9" * 500, "2147483648", "-2147483649", "32768"),
            ParamType.NUMBER: ("", ".5", "5.", "1e", "1e1000", "+1", "NaN", "Infinity", "1,5", "0x1p3", "01.5", "9" * 401, "1e9999", "-", "1" + "0" * 300),
            ParamType.STRING: ("", "x" * 70, "é" * 35, "x" * 5000, "a%b", "_", "\x01"),
            ParamType.BOOLEAN: ("", "TRUE", "t", "1", "yes", "True", "null"),
            ParamType.DATE: ("", "2026-02-30", "2025-02-29", "2026-1-1", "26-01-01", "0000-01-01", "10000-01-01", "infinity", "today", "2026-01-01 ", "2026-01-01T00:00:00"),
            ParamType.TIME: ("", "24:00:00", "23:60:00", "23:59:60", "9:30:00", "09:30", "09:30:00.", "09:30:00.1234567", "09:30:00Z"),
            ParamType.TIMESTAMP: ("", "2026-01-01", "2026-01-01t00:00:00", "2026-01-01T24:00:00", "2026-01-01T00:00:00z", "2026-01-01T00:00:00+16:00", "2026-01-01T00:00:00+0200", "2026-01-01T00:00:00 02:00", "infinity", "now", "2026-02-30T00:00:00"),
            ParamType.UUID: ("", "00112233445566778899aabbccddeeff", "{00112233-4455-6677-8899-aabbccddeeff}", "00112233-4455-6677-8899-aabbccddeef", "00112233-4455-6677-8899-aabbccddeefg"),
            ParamType.JSON: ("", "{", "nul", "{'a': 1}", "[1,]", "01", "1.", '"\\u0000"', '"\\ud800"', "[" * 129 + "]" * 129, "[" * 128 + "]" * 128, "NaN", '{"a":1}}', '"\x01"', "\ufeff1"),
        }[param.type]  # fmt: skip
        text = self.random.choice(wrong)
        if param.array and self.random.random() < 0.5:
            text = self.random.choice((f"1,{text}", f"{text},1", ",", "1,,2", ",1"))
        return text

    def bad_body(self) -> Call:
        """POST bodies that are not what they should be."""
        random, query = self.random, self.random.choice(self.api.queries)
        good = self.body(query).decode()
        first = query.params[0].name if query.params else "x"
        deep = "[" * random.choice((127, 128, 129, 1000)) + "]" * 5
        texts = (
            "", "[]", "null", "1", '"text"', "{", "{}", " {} ", good + " ", good + "x", good[:-1], good.replace(":", "=", 1), "{,}", "\ufeff" + good, '{"a": 1,}',
            f'{{"{first}": null}}', f'{{"{first}": "1"}}', f'{{"{first}": 1}}', f'{{"{first}": 1.0}}', f'{{"{first}": 1e2}}', f'{{"{first}": true}}', f'{{"{first}": [1, null]}}', f'{{"{first}": [[1]]}}', f'{{"{first}": {{}}}}',
            f'{{"{first}": 1, "{first}": 1}}', f'{{"\\u{ord(first[0]):04x}{first[1:]}": 1, "{first}": 2}}', f'{{"{first}": "\\u0000"}}', f'{{"{first}": "\\ud800"}}', f'{{"{first}": "\\ud83d\\ude00"}}', f'{{"{first}": {deep}}}',
            f'{{"{first}": 9223372036854775808}}', f'{{"{first}": -0}}', f'{{"{first}": 01}}', f'{{"{first}": +1}}', f'{{"{first}": .5}}', f'{{"{first}": NaN}}', f'{{"{first}": "{"x" * 3000}"}}', f'{{"{first}": "\x01"}}', f'{{"{first}": "tab\t"}}',
            '{"page_size": 2}', '{"page_size": "2"}', '{"cursor": "x"}', '{"cursor": 1}', '{"format": "csv"}', '{"format": "xml"}', '{"format": 1}', '{"unknown": {"a": [1]}, "other": 2}', '{"": 1}', '{"a/b~c": 1}', "{" + ", ".join(f'"k{n}": {n}' for n in range(300)) + "}",
        )  # fmt: skip
        body = random.choice(texts).encode()
        if random.random() < 0.1:
            body = random.choice(
                (b'{"\xff": 1}', b'{"a": "\xc3"}', b"\xff\xfe{}", b'{"a": "\xed\xa0\x80"}', f'{{"{first}": "'.encode() + b'\xf0\x9d\x84"}')
            )
        types = ("application/json",) * 12 + (
            "text/json",
            "application/json; charset=latin-1",
            "application/x-www-form-urlencoded",
            "application/jsonx",
            "json",
            "",
            "application/json, text/plain",
            " application/json",
        )
        kind = random.choice(types)
        headers = self.credential() if kind == "" else (*self.credential(), ("Content-Type", kind))
        pairs = self.url(query) if random.random() < 0.3 else ()
        method = "POST" if random.random() < 0.95 else "GET"
        return Call("bad body", query.name, method, pairs, headers, body, self.key(), stores=query.stores or query.write)

    def methods(self) -> Call:
        """Other methods than the query's."""
        query = self.random.choice(self.api.queries)
        method = self.random.choice(
            ("HEAD", "HEAD", "HEAD", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "GET", "POST", "TRACE", "PROPFIND")
        )
        wanted = self.random.choice(FORMATS)
        headers = (*self.credential(), ("Accept", ACCEPT[wanted]))
        body = b"" if method in ("PUT", "PATCH", "POST") else None
        return Call("methods", query.name, method, self.url(query), headers, body, self.key(), stores=query.stores)

    def accept(self) -> Call:
        """What may come in Accept."""
        accepts = (
            "*/*", "application/*", "text/*", "text/csv", "application/x-ndjson", "application/json", "image/png", "application/json;q=0", "text/csv, application/json", "application/json;q=0.5, text/csv;q=0.6",
            "application/x-ndjson;q=1.0, */*;q=0.1", "*/*;q=0", "text/csv;header=present", "application/json; charset=utf-8", "application/json;q=0.001", "text/html, application/xhtml+xml, */*;q=0.8", "", ",", "garbage", "application/json;q=abc",
            "application/json;q=1.5", "APPLICATION/JSON", "text/csv;q=0.5;x=y", "application/*;q=0.2, text/*;q=0.3", "application/json;q=0, */*", "application/vnd.ms-excel", "text/csv ; q = 0.5", "application/json,,text/csv", '*/*;q="1"', "application/problem+json",
        )  # fmt: skip
        query = self.random.choice(self.reads)
        headers = [*self.credential(), ("Accept", self.random.choice(accepts))]
        if self.random.random() < 0.1:
            headers.append(("Accept", self.random.choice(accepts)))
        pairs = self.url(query)
        if self.random.random() < 0.2:
            pairs = (*pairs, f"format={self.random.choice((*FORMATS, 'xml'))}")
        return Call("accept", query.name, "GET", pairs, tuple(headers), None, self.key(), stores=query.stores)

    def credentials(self) -> Call:
        """Keys that don't work, and keys in odd places."""
        random, query = self.random, self.random.choice(self.api.queries)
        good = self.key()
        refused = random.choice(self.api.refused) if self.api.refused else good
        made: tuple[tuple[str, Headers], ...] = (
            ("", ()),
            ("", (("X-API-Key", ""),)),
            ("", (("X-API-Key", "tlr_aaaaaaaa_" + "b" * 43 + "_000000"),)),
            ("", (("X-API-Key", "short"),)),
            ("", (("Authorization", "Basic dXNlcjpwYXNz"),)),
            ("", (("Authorization", "Bearer"),)),
            ("", (("Authorization", "Bearer a b"),)),
            (refused, (("X-API-Key", "{key}"),)),
            (refused, (("Authorization", "Bearer {key}"),)),
            (good, (("X-API-Key", "{key}"), ("Authorization", "Bearer {key}"))),
            (good, (("X-API-Key", "{key}"), ("X-API-Key", "{key}"))),
            (good, (("x-api-key", " {key} "),)),
            (good, (("X-API-Key", "{key}x"),)),
            (good, (("Authorization", "Bearer  {key}"),)),
            (good, (("X-API-Key", "{key}"), ("Authorization", "Basic dXNlcjpwYXNz"))),
        )
        key, headers = random.choice(made)
        return Call("credentials", query.name, "GET", self.url(query), headers, None, key, stores=query.stores)

    def names(self) -> Call:
        """Other paths below /q/."""
        name = self.random.choice(self.api.queries).name
        odd = (
            "unknown",
            "%2e%2e",
            "UNKNOWN",
            name.upper(),
            name + "%20",
            name + "x",
            "%" + f"{ord(name[0]):02x}" + name[1:],
            "%" + f"{ord(name[0]):02X}" + name[1:],
            "%C3%A9",
            "x" * 300,
            "%00",
        )
        path = "/q/" + self.random.choice(odd)
        return Call(
            "names",
            name,
            "GET",
            (),
            self.credential(),
            None,
            self.key(),
            path=path,
            stores=name in {q.name for q in self.api.queries if q.stores},
        )

    def cursors(self) -> Call:
        """Cursors that nobody gave out."""
        query = self.random.choice(self.paged or self.reads)
        bad = ("", "x", "AAAA", "A" * 22, "A" * 200, "%3D%3D", "a b", "é", "A" * 5000)
        return Call(
            "cursors",
            query.name,
            "GET",
            (*self.url(query), "cursor=" + quote_plus(self.random.choice(bad), safe="%")),
            self.credential(),
            None,
            self.key(),
            stores=query.stores,
        )

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
