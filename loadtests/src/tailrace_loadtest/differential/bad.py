"""Calls with faults: arguments, bodies, methods, `Accept`, keys, names, cursors. Pure."""

from dataclasses import replace
from urllib.parse import quote, quote_plus

from tailrace_contract.plan import ParamType

from tailrace_loadtest.differential.api import Param, Saved
from tailrace_loadtest.differential.calls import ACCEPT, FORMATS, Call, Headers
from tailrace_loadtest.differential.good import GoodCalls


class BadCalls(GoodCalls):
    """Draws calls that are not what they should be."""

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
            (
                "HEAD",
                "HEAD",
                "HEAD",
                "HEAD",
                "PUT",
                "DELETE",
                "PATCH",
                "OPTIONS",
                "GET",
                "POST",
                "TRACE",
                "PROPFIND",
                "BREW",
                "get",
                "GETS",
                "P!",
            )
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
