"""Where two answers, or two run records, differ. Pure."""

from dataclasses import dataclass

from tailrace_contract.run import Run

from tailrace_loadtest.differential.calls import Call
from tailrace_loadtest.differential.client import Answer

RECORD = ("query", "query_version", "key", "connection", "status", "code", "rows", "bytes", "batch", "trace", "client", "params")
"""Fields of a run that must be equal: all but times, ids and who served. Of the time at the database: whether it was there at all."""
UNSURE_WHEN_BROKEN = {"rows", "bytes"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One call whose answers or records differ; `where` groups them."""

    call: Call
    where: str
    left: str
    right: str


def _shown(data: bytes, other: bytes) -> str:
    """A body around the first place where it differs."""
    at = next((n for n, (a, b) in enumerate(zip(data, other, strict=False)) if a != b), min(len(data), len(other)))
    begin = max(0, at - 60)
    return f"{len(data)} bytes, at {at}: {'…' if begin else ''}{data[begin : at + 120].decode('utf-8', 'backslashreplace')}"


def answers(call: Call, left: Answer, right: Answer) -> list[Difference]:
    """Differences of status, headers and body."""
    found = []
    if left.status != right.status:
        found.append(Difference(call, "status", f"{left.status} {left.body[:300]!r}", f"{right.status} {right.body[:300]!r}"))
        return found
    if left.broken != right.broken:
        found.append(Difference(call, "broken off", str(left.broken), str(right.broken)))
        return found
    for (name, one), (_, two) in zip(left.headers, right.headers, strict=True):
        if one != two:
            found.append(Difference(call, f"header {name}", repr(one), repr(two)))
    if left.broken:
        size = min(len(left.body), len(right.body))
        if left.body[:size] != right.body[:size]:
            found.append(Difference(call, "broken body", _shown(left.body, right.body), _shown(right.body, left.body)))
    elif left.body != right.body:
        found.append(Difference(call, "body", _shown(left.body, right.body), _shown(right.body, left.body)))
    if bool(left.run_id) != bool(right.run_id):
        found.append(Difference(call, "X-Run-Id", repr(left.run_id), repr(right.run_id)))
    if len(left.parts) != len(right.parts):
        found.append(Difference(call, "runs of several", str(len(left.parts)), str(len(right.parts))))
    return found


def runs(call: Call, broken: bool, left: Run | None, right: Run | None) -> list[Difference]:
    """Differences of the two records of one call."""
    if left is None or right is None:
        return [Difference(call, "run missing", repr(left), repr(right))]
    found = []
    # A HEAD of a stream that broke shows nothing; its records do.
    broken = broken or all(run.status == 200 and run.code for run in (left, right))
    # Python keeps no answers.
    cached = left.cached or right.cached
    for field in RECORD:
        one, two = getattr(left, field), getattr(right, field)
        if field == "batch" and (cached or left.batch > 1):
            continue  # Python alone asks each by itself.
        if one != two and not (broken and field in UNSURE_WHEN_BROKEN):
            found.append(Difference(call, f"run {field}", repr(one), repr(two)))
    asked = [run.database_us > 0 for run in (left, right)]
    if asked[0] != asked[1] and not broken and not cached:
        found.append(Difference(call, "run at the database", *(repr(each) for each in asked)))
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def curl(call: Call, base: str) -> str:
    """The call as a command line; `$KEY` is the key that it says in the remark."""
    words = ["curl", "-si"]
    if call.method == "HEAD":
        words.append("-I")
    elif call.method != "GET":
        words += ["-X", call.method]
    for name, value in call.headers:
        words += ["-H", '"' + f"{name}: {value}".replace('"', '\\"').replace("{key}", "$KEY") + '"']
    if call.body is not None:
        text = call.body.decode("utf-8", "surrogateescape")
        plain = text.isprintable() and text.isascii()
        words += ["--data-binary", _quoted(text) if plain else "$'" + "".join(f"\\x{byte:02x}" for byte in call.body) + "'"]
        if not any(name == "Content-Type" for name, _ in call.headers):
            words += ["-H", "Content-Type:"]
    words.append(_quoted(base + call.target))
    return " ".join(words) + (f"   # KEY: {call.key}" if call.key else "")


def described(difference: Difference, bases: tuple[str, str]) -> str:
    """A difference for people."""
    call = difference.call
    lines = [f"[{call.kind}] {difference.where}"]
    lines += [f"  {curl(call, base)}" for base in bases]
    lines += [f"  data plane: {difference.left[:600]}", f"  Python:     {difference.right[:600]}"]
    return "\n".join(lines)
