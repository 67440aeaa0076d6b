"""Answers as status, header fields and bytes, in the order of docs/contract.md. Pure. The twin of `dataplane-rs/src/http/response.rs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate

from tailrace_contract.codes import BY_NAME, Fault
from tailrace_gateway.serve.arguments import without_cursor
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.problem import CONTENT_TYPE, problem

Fields = list[tuple[str, str]]

VARY = "Accept, Accept-Encoding, Authorization, X-API-Key"
ALLOW_ANY = "GET, HEAD, POST, OPTIONS"
"""Of OPTIONS, which needs no key and so tells nothing of a query."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `code` is empty for a success; `rows` are those in the body."""

    status: int
    fields: Fields
    body: bytes
    code: str = ""
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a client may do with an answer of a query that is cached: keep it for `max_age_s`, and ask later whether `tag` still holds."""

    max_age_s: int
    tag: str

    def fields(self) -> Fields:
        """Cache-Control and ETag."""
        return [("Cache-Control", f"private, max-age={self.max_age_s}"), ("ETag", self.tag)]


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a call went, ms."""

    auth: float
    queue: float
    db: float
    encode: float

    def text(self) -> str:
        """Value of Server-Timing."""
        return f"auth;dur={self.auth:.3f}, queue;dur={self.queue:.3f}, db;dur={self.db:.3f}, encode;dur={self.encode:.3f}"


def success_fields(
    form: Format,
    run_id: str,
    *,
    rows: int | None,
    truncated: bool | None,
    link: str | None,
    now_s: float,
    length: int | None,
    timing: Timing | None,
    fresh: Fresh | None = None,
) -> Fields:
    """Header fields of a 200. `rows` None on streams, `truncated` None for `returns: none`, `length` None when chunked, `fresh` None without a cache."""
    fields: Fields = [("Content-Type", form.content_type), ("X-Run-Id", run_id)]
    if rows is not None:
        fields.append(("X-Row-Count", str(rows)))
    if truncated is not None:
        fields.append(("X-Truncated", "true" if truncated else "false"))
    if link is not None:
        fields.append(("Link", f'<{link}>; rel="next"'))
    fields += [("Cache-Control", "private")] if fresh is None else fresh.fields()
    fields += [("Vary", VARY), ("Date", formatdate(now_s, usegmt=True))]
    if length is not None:
        fields.append(("Content-Length", str(length)))
    if timing is not None:
        fields.append(("Server-Timing", timing.text()))
    return fields


def not_modified(run_id: str, fresh: Fresh, now_s: float) -> Reply:
    """A 304: the client has the body that a 200 would bring."""
    fields: Fields = [("X-Run-Id", run_id), *fresh.fields(), ("Vary", VARY), ("Date", formatdate(now_s, usegmt=True))]
    return Reply(304, fields, b"")


def refusal(code: str, run_id: str | None, now_s: float, faults: Sequence[tuple[str, Fault]] = (), allow: str = "") -> Reply:
    """A problem. `run_id` None when the call could not be recorded."""
    known = BY_NAME[code]
    body = problem(known, run_id, faults)
    fields: Fields = [("Content-Type", CONTENT_TYPE)]
    if run_id is not None:
        fields.append(("X-Run-Id", run_id))
    if code == "unauthorized":
        fields.append(("WWW-Authenticate", 'Bearer realm="tailrace"'))
    if allow:
        fields.append(("Allow", allow))
    if known.retry_after_s is not None:
        fields.append(("Retry-After", str(known.retry_after_s)))
    fields += [("Cache-Control", "no-store"), ("Date", formatdate(now_s, usegmt=True)), ("Content-Length", str(len(body)))]
    return Reply(known.status, fields, body, code)


def options(allow: str, now_s: float) -> Reply:
    """The answer to OPTIONS: 204, the methods, no run."""
    return Reply(204, [("Allow", allow), ("Date", formatdate(now_s, usegmt=True))], b"")


def next_link(name: str, arguments: bytes, cursor: str, has_body: bool) -> str:
    """Target of the next page: the caller's URL arguments byte for byte without `cursor`, then the cursor; behind a body only the cursor."""
    kept = b"" if has_body else without_cursor(arguments)
    return f"/q/{name}?{kept.decode('latin-1')}{'&' if kept else ''}cursor={cursor}"
