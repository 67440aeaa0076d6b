"""Several calls in one body: `{"calls": [{…}, …]}` in, one JSON array of answers and problems out (docs/contract.md, "Bulk").

Rejects, as one problem for all, what is not for several calls (`bulk_unsupported`, `bulk_size`, `not_acceptable`). Pure. The twin of
`dataplane-rs/src/http/bulk.rs`.
"""

import re
import time
from collections.abc import Sequence
from email.utils import formatdate

from tailrace_gateway.serve.admission import Body, Granted, Refused
from tailrace_gateway.serve.answer import VARY, Fields, Reply, refusal
from tailrace_gateway.serve.formats import Format
from tailrace_gateway.serve.json_scan import Item, Kind, MalformedJson, elements, members

MEMBER = "calls"
"""The body's only member. A query that declares a parameter of this name is never asked so."""
CALLS_LIMIT = 256
"""Calls in a body at most."""
ANSWER_LIMIT_BYTES = 16 << 10
"""A larger body of one answer is refused."""

_BEGINS = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"calls"[ \t\n\r]*:[ \t\n\r]*\[')


def calls(granted: Granted, body: Body) -> list[Item] | None:
    """The calls of a body; None when it is that of one call."""
    if body.too_large or not _BEGINS.match(body.data) or granted.query.spec.declares(MEMBER):
        return None
    try:
        all_members = list(members(body.data.decode()))
    except (MalformedJson, UnicodeDecodeError):
        return None
    if len(all_members) != 1 or all_members[0][1].kind is not Kind.ARRAY:
        return None
    return list(elements(all_members[0][1]))


def check(granted: Granted, form: Format, arguments: bytes, items: Sequence[Item]) -> None:
    """Whether they can be answered together. Refused."""
    if form is not Format.JSON:
        raise Refused("not_acceptable")
    if granted.query.plan.write or arguments not in (b"", b"format=json"):
        raise Refused("bulk_unsupported")
    if not 1 <= len(items) <= CALLS_LIMIT:
        raise Refused("bulk_size")


def fitting(reply: Reply, run_id: str) -> Reply:
    """The answer of one call, or why it can't be one of several."""
    if reply.status == 200 and len(reply.body) > ANSWER_LIMIT_BYTES:
        return refusal("answer_too_large", run_id, time.time())
    return reply


def entry(reply: Reply) -> bytes:
    """One answer among several."""
    fields = dict(reply.fields)
    told = [f'"status":{reply.status}']
    if "X-Run-Id" in fields:
        told.append(f'"run":"{fields["X-Run-Id"]}"')
    if reply.status == 200:
        told += [f'"rows":{fields["X-Row-Count"]}', f'"truncated":{fields["X-Truncated"]}']
        if "Link" in fields:
            told.append(f'"next":"{fields["Link"][1:].partition(">")[0]}"')
    return b"{" + ",".join(told).encode() + b',"body":' + reply.body + b"}"


def together(replies: Sequence[Reply]) -> Reply:
    """The answer to all of them, in order. Its status says nothing of theirs."""
    body = b"[" + b",".join(entry(reply) for reply in replies) + b"]"
    fields: Fields = [("Content-Type", Format.JSON.content_type), ("Cache-Control", "private"), ("Vary", VARY)]
    return Reply(200, [*fields, ("Date", formatdate(time.time(), usegmt=True)), ("Content-Length", str(len(body)))], body)
