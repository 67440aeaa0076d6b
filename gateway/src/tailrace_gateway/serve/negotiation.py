"""Which format a client accepts (RFC 9110, 12.5.1). Pure. Rejects (`NotAcceptable`) a request that accepts none of ours.

The Rust twin is `dataplane-rs/src/http/negotiate.rs`; both read `crds/golden/vectors/negotiation.json`. Compression is the data plane's only.
"""

import re
from collections.abc import Iterable

from tailrace_gateway.serve.formats import Format


class NotAcceptable(ValueError):
    """None of the accepted formats can be produced (406)."""


_RANGES = {
    Format.JSON: ("application", "json"),
    Format.NDJSON: ("application", "x-ndjson"),
    Format.CSV: ("text", "csv"),
}
_WEIGHT = re.compile(r"(?:0(?:\.[0-9]{0,3})?|\.[0-9]{1,3}|1(?:\.0{0,3})?)")


def negotiate(requested: Format | None, accept: Iterable[str]) -> Format:
    """`requested` (by `format=`), or the best that the `Accept` fields admit; JSON without any."""
    if requested is not None:
        return requested
    elements = [element for field in accept for element in _parts(field, ",") if element]
    if not elements:
        return Format.JSON
    best: dict[Format, tuple[int, float]] = {}
    for element in elements:
        weighed = _weighed(element)
        if weighed is None:
            continue
        for form in Format:
            specificity = _specificity(weighed[0], form)
            if specificity:
                best[form] = max(best.get(form, (0, 0.0)), (specificity, weighed[1]))
    chosen = [(-weight, n, form) for n, form in enumerate(Format) if (weight := best.get(form, (0, 0.0))[1]) > 0]
    if not chosen:
        raise NotAcceptable
    return min(chosen)[2]


def _specificity(media_range: str, form: Format) -> int:
    """How closely a range names a format: 3 itself, 2 `type/*`, 1 `*/*`, 0 not at all."""
    if media_range in ("*/*", "*"):
        return 1
    kind, slash, subtype = media_range.lower().partition("/")
    if not slash or kind != _RANGES[form][0]:
        return 0
    return 2 if subtype == "*" else 3 if subtype == _RANGES[form][1] else 0


def _weighed(element: str) -> tuple[str, float] | None:
    """`name; parameters; q=0.5` → name and weight; None if the weight cannot be read."""
    name, *parameters = _parts(element, ";")
    weight = 1.0
    for parameter in parameters:
        if parameter[:2] in ("q=", "Q="):
            if not _WEIGHT.fullmatch(parameter[2:]):
                return None
            weight = float(parameter[2:])
    return name, weight


def _parts(text: str, separator: str) -> list[str]:
    """What stands between separators outside quoted strings, without blanks around it."""
    parts, start, quoted, escaped = [], 0, False, False
    for at, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == '"':
            quoted = not quoted
        else:
            escaped = quoted and character == "\\"
        if character == separator and not quoted:
            parts.append(text[start:at].strip(" \t"))
            start = at + 1
    parts.append(text[start:].strip(" \t"))
    return parts
