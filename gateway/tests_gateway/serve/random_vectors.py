"""Vectors drawn at random, with what Python makes of them: `python random_vectors.py FOLDER [COUNT] [SEED]`.

`crds/golden/vectors/random/` holds 400 of each kind; the data plane's tests read them, or any other folder named by TAILRACE_VECTORS. They
show that both languages agree, not that they are right: that is what the vectors written by hand are for.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import re2
from tailrace_contract.pattern import PatternError, portable
from tailrace_contract.plan import ColumnPlan, Encoding, Engine, Mask, MaskPlan, PageKeyPlan, PagePlan, ParamPlan, StatementPlan
from tailrace_gateway.serve.arguments import ArgumentsRefused, Bound, Spec
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.masks import mask_key
from tailrace_gateway.serve.rows import RowWriter
from tailrace_gateway.serve.values import Malformed, Value, untag

Draw = random.Random
SECRET = bytes(range(32))


def one(draw: Draw, *choices: Any) -> Any:
    """One of the choices, called if it can be."""
    chosen = draw.choice(choices)
    return chosen(draw) if callable(chosen) else chosen


def text(draw: Draw, longest: int = 8) -> str:
    """Any text, with what matters often in it."""
    alphabet = "ab01" * 4 + ",;\"\\{}[]()' %+&=#/\n\r\t\x1f\x7fé🜨\u2028東@.-_:TZe" + "\0" * (draw.random() < 0.05)
    return "".join(draw.choice(alphabet) for _ in range(draw.randrange(longest + 1)))


def mutated(draw: Draw, source: str) -> str:
    """The text with something changed, sometimes."""
    while source and draw.random() < 0.06:
        at = draw.randrange(len(source))
        source = source[:at] + draw.choice(["", text(draw, 1), source[at] * 2]) + source[at + 1 :]
    return source


def number(draw: Draw) -> str:
    """Mostly of the number grammar."""
    whole = one(draw, "0", "1", "9", "10", "100", "9223372036854775807", "9223372036854775808", str(draw.randrange(10**6)))
    fraction = one(draw, "", "", "", ".0", ".5", ".10", f".{draw.randrange(10**4)}")
    exponent = one(draw, *[""] * 8, "e2", "E-2", "e+10", "e400")
    return one(draw, "", "", "-") + str(whole) + str(fraction) + str(exponent)


def date(draw: Draw) -> str:
    """Mostly a date."""
    if draw.random() < 0.85:
        return f"{draw.choice([1, 1999, 2024, 9999]):04d}-{draw.randrange(1, 13):02d}-{draw.randrange(1, 29):02d}"
    year = draw.choice([1, 999, 1900, 2000, 2024, 2026, 9999, 0])
    return f"{year:04d}-{draw.randrange(14):02d}-{draw.choice([0, 1, 28, 29, 30, 31, 32]):02d}"


def time(draw: Draw) -> str:
    """Mostly a time of day."""
    if draw.random() < 0.85:
        return f"{draw.randrange(24):02d}:{draw.randrange(60):02d}:{draw.randrange(60):02d}" + draw.choice(["", "", ".5", ".123456"])
    return f"{draw.randrange(25):02d}:{draw.randrange(61):02d}:{draw.randrange(61):02d}" + str(
        one(draw, "", ".5", ".120000", ".1234567", ".")
    )


def uuid(draw: Draw) -> str:
    """A UUID in either case."""
    digits = f"{draw.getrandbits(128):032x}"
    joined = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return draw.choice([joined, joined.upper()])


def json_value(draw: Draw, depth: int = 0) -> str:
    """JSON text, mostly sound."""
    blank = draw.choice(["", "", " ", "\n", "\t "])
    kinds = ["null", "true", "false", number(draw), json.dumps(text(draw)), json.dumps(text(draw), ensure_ascii=False)]
    kinds += ['"\\u0000"', '"\\ud83d\\udf28"', '"\\ud800"', '"\\/\\b"', "01", "1.", "NaN", "'a'"] if draw.random() < 0.1 else []
    if depth < 3:
        inner = [json_value(draw, depth + 1) for _ in range(draw.randrange(3))]
        kinds.append("[" + blank + ",".join(inner) + "]")
        kinds.append("{" + blank + ",".join(json.dumps(text(draw, 3)) + blank + ":" + value for value in inner) + "}")
    return draw.choice(kinds) + blank


TYPED = {
    "integer": lambda draw: str(draw.randrange(-5, 200)) if draw.random() < 0.8 else number(draw),
    "number": number,
    "string": text,
    "boolean": lambda draw: draw.choice(["true", "false"] * 5 + ["1", "True"]),
    "date": date,
    "time": time,
    "timestamp": lambda draw: (
        date(draw) + draw.choice("TTTTTT  t") + time(draw) + draw.choice(["", "", "Z", "Z", "+00:00", "-15:59", "+02:30", "+16:00", "+2"])
    ),
    "uuid": uuid,
    "json": json_value,
}


def declaration(draw: Draw, name: str) -> dict[str, Any]:
    """One declared parameter."""
    kind = draw.choice(list(TYPED))
    plan: dict[str, Any] = {"name": name, "type": kind}
    for flag in ("array", "required", "nullable"):
        if draw.random() < 0.3:
            plan[flag] = True
    if kind in ("integer", "number"):
        if draw.random() < 0.25:
            plan["minimum"] = draw.choice(["0", "-1.5", "-1e2", "2", "9223372036854775807"])
        if draw.random() < 0.25:
            plan["maximum"] = draw.choice(["100", "99.95", "1e3", "1e9", "-0"])
        if draw.random() < 0.2:
            plan["enum"] = ["1", 10, "1.50", 100] if kind == "number" else [0, 1, 10, "100"]
    if kind == "string":
        if draw.random() < 0.25:
            plan["minLength"] = draw.randrange(3)
        if draw.random() < 0.25:
            plan["maxLength"] = draw.randrange(2, 7)
        if draw.random() < 0.3:
            plan["pattern"] = draw.choice(["^[a-z0-9]*$", "é|b", "\\d", "^.{2,4}$", "\\ba"])
    return plan


NAMES = ["a", "b", "c d", "é", "x_1", "A", "id", "page", "zz", "k&k"]


def call(draw: Draw, plans: list[dict[str, Any]]) -> dict[str, Any]:
    """URL arguments and a body."""
    pairs, members = [], []
    known = [(plan["name"], plan) for plan in plans if draw.random() < 0.8]
    extra = [(name, None) for name in ("page_size", "cursor", "format", "unknown", "") if draw.random() < 0.03]
    for name, plan in known + extra:
        for _ in range(2 if draw.random() < 0.02 else 1):
            kind = plan["type"] if plan else "string"
            values = [mutated(draw, TYPED[kind](draw)) for _ in range(draw.randrange(4) if plan and plan.get("array") else 1)]
            if name == "format" and draw.random() < 0.8:
                values = [draw.choice(["json", "csv", "ndjson"])]
            if name == "page_size":
                values = [draw.choice(["1", "50", "51", "0", "x"])]
            if draw.random() < 0.5:
                safe = draw.choice(["", ":,/", "=+"])
                pieces = [quote_from_bytes(piece.encode(), safe=safe) for piece in (name, ",".join(values))]
                pairs.append(mutated(draw, "=".join(pieces)) if draw.random() < 0.1 else "=".join(pieces))
            else:
                tokens = [value if kind in ("integer", "number", "boolean", "json") else json.dumps(value) for value in values]
                token = f"[{','.join(tokens)}]" if plan and plan.get("array") else tokens[0]
                members.append(f"{json.dumps(name)}: {one(draw, *[token] * 12, json_value)}")
    draw.shuffle(pairs)
    draw.shuffle(members)
    case: dict[str, Any] = {"query": "&".join(pairs)}
    if members or draw.random() < 0.2:
        body = "{" + ", ".join(members) + "}"
        case["body"] = mutated(draw, body) if draw.random() < 0.2 else body
    return case


def shown(values: list[bytes | None]) -> list[str | None]:
    """Values as the vectors write them."""
    return [None if v is None else f"r:{v[1:].hex()}" if v[:1] == b"r" and len(v) == 9 else v.decode() for v in values]


def calls(draw: Draw, count: int) -> list[dict[str, Any]]:
    """Groups as in params.json."""
    groups = []
    statement = StatementPlan(sql="")
    for _ in range(count // 20):
        names = draw.sample(NAMES, draw.randrange(1, 7))
        plans = [declaration(draw, name) for name in names]
        page = None
        group: dict[str, Any] = {"what": "random", "params": plans, "cases": []}
        if draw.random() < 0.5:
            group["maxSize"] = 50
            page = PagePlan(keys=(PageKeyPlan(column=0),), max_size=50, first=statement, next=statement)
        params = [ParamPlan.model_validate(plan) for plan in plans]
        specs = {"values": Spec(params, page, Engine.POSTGRES), "sqlite": Spec(params, page, Engine.SQLITE)}
        for _ in range(20):
            case = call(draw, plans)
            body = case["body"].encode() if "body" in case else None
            for way, spec in specs.items():
                try:
                    given = spec.decode(Bound(), case["query"].encode(), body)
                except ArgumentsRefused as refused:
                    case["code"] = refused.code
                    case["faults"] = [[name, fault.value] for name, fault in refused.faults]
                else:
                    rest = {"pageSize": given.page_size, "cursor": given.cursor, "format": given.form and given.form.value}
                    case |= {way: shown(given.values), "given": {name: value for name, value in rest.items() if value is not None}}
            group["cases"].append(case)
        groups.append(group)
    return groups


def array(draw: Draw) -> str:
    """PostgreSQL's text of an array, mostly sound."""
    element = lambda: draw.choice(["1", "NULL", "a", '"b,c"', '"q\\"\\\\"', "t", "-2.5", '""', "{}", f'"{text(draw, 3)}"', "x y"])  # noqa: E731
    inside = ",".join(
        element() if draw.random() < 0.8 else "{" + ",".join(element() for _ in range(2)) + "}" for _ in range(draw.randrange(4))
    )
    return str(one(draw, "", "", "", "[2:3]=", "[0:1][1:1]=")) + "{" + inside + "}"


SPECIALS = ["NaN", "Infinity", "-Infinity", "infinity", "t", "f", "\\x", "\\x00ff", "\\x0", "0044-03-15 00:00:00 BC", ""]


def column_text(draw: Draw) -> str:
    """What a database may have sent."""
    zoned = lambda d: date(d) + " " + time(d) + d.choice(["", "+00", "+02", " BC"])  # noqa: E731
    return mutated(draw, str(one(draw, *SPECIALS, number, text, zoned, json_value, array, array)))


def values(draw: Draw, count: int) -> list[dict[str, Any]]:
    """As values.json, with a mask."""
    out = []
    while len(out) < count:
        encoding = draw.choice(list(Encoding))
        storage = encoding.value.startswith("storage")
        vector: dict[str, Any] = {"encoding": encoding.value, "array": not storage and draw.random() < 0.35}
        if storage:
            raw = draw.choice(
                [b"i%d" % draw.randrange(-(2**63), 2**63), b"r" + draw.randbytes(8), b"t" + text(draw).encode(), b"b" + draw.randbytes(5)]
            )
        else:
            raw = column_text(draw).encode()
        if draw.random() < 0.05:
            raw += draw.randbytes(2)
        mask = draw.choice([None, None, None, *Mask])
        plan = ColumnPlan(name="v", encoding=encoding, array=vector["array"])
        writer = RowWriter([plan], [MaskPlan(column=0, with_=mask)] if mask else [], mask_key(SECRET))
        vector |= {"hex": raw.hex(), "mask": mask and mask.value}
        try:
            value: Value = untag(raw) if storage else raw
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                continue
            vector["row"] = writer.row(Format.JSON, [value]).decode()
            vector["line"] = writer.row(Format.CSV, [value]).decode()
        except Malformed:
            vector["malformed"] = True
        out.append(vector)
    return out


PIECES = ["a", "b", "é", ".", "\\d", "\\w", "\\s", "\\W", "[ab]", "[^a]", "[a-cé]", "[^\\d]", "\\b", "^", "$", "\\.", "\\u00e9", "0"]


def pattern(draw: Draw, depth: int = 0) -> str:
    """A pattern, mostly of the subset."""
    out = []
    for _ in range(draw.randrange(1, 5)):
        piece = (
            "(" + draw.choice(["", "?:"]) + pattern(draw, depth + 1) + ")" if depth < 3 and draw.random() < 0.25 else draw.choice(PIECES)
        )
        quantified = piece not in ("^", "$", "\\b") and draw.random() < 0.4
        out.append(piece + (draw.choice(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,}", "{0}"]) if quantified else ""))
    return "".join(out) + ("|" + pattern(draw, depth + 1) if depth < 3 and draw.random() < 0.2 else "")


def patterns(draw: Draw, count: int) -> dict[str, Any]:
    """As patterns.json."""
    options = re2.Options()
    options.log_errors = False
    found: list[dict[str, Any]] = []
    refused: list[str] = []
    while len(found) < count:
        source = mutated(draw, pattern(draw)) if draw.random() < 0.3 else pattern(draw)
        try:
            rewritten = portable(source)
        except PatternError:
            refused.append(source)
            continue
        regex = re2.compile(rewritten, options)
        texts = ["".join(draw.choice("aabbcé 0.\n_-") for _ in range(draw.randrange(7))) for _ in range(8)]
        sides: dict[bool, list[str]] = {True: [], False: []}
        for sample in texts:
            sides[regex.search(sample) is not None].append(sample)
        found.append({"pattern": source, "rewritten": rewritten, "matches": sides[True], "not": sides[False]})
    return {"portable": found, "refused": refused}


def write(folder: Path, count: int, seed: int) -> None:
    """All kinds, a case a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in (("params", calls), ("values", values), ("patterns", patterns)):
        content: Any = made(Draw(seed), count)
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=True, indent=0).replace("\n", "") + "\n")


if __name__ == "__main__":
    target, *numbers = sys.argv[1:]
    write(Path(target), *(int(n) for n in (numbers + ["400", "1"][len(numbers) :])))
