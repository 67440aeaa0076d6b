"""URL arguments of Tailrace's own routes, by the rules of docs/contract.md. Pure; rejects with `Refused`."""

import re
from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from tailrace_contract.codes import Fault

from tailrace_gateway.serve.admission import Refused

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def query_arguments(query: bytes, known: Collection[str]) -> dict[str, str]:
    """Name → value; refused: what is not percent-encoded UTF-8, names that are given twice or not known."""
    found: dict[str, str] = {}
    faults: list[tuple[str, Fault]] = []
    for pair in query.split(b"&"):
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        if _ESCAPE.search(pair):
            raise Refused("malformed_arguments")
        try:
            name_text, value_text = (unquote_to_bytes(part.replace(b"+", b" ")).decode() for part in (name, value))
        except UnicodeDecodeError:
            raise Refused("malformed_arguments") from None
        if name_text not in known:
            fault = Fault.UNKNOWN
        elif name_text in found:
            fault = Fault.DUPLICATE
        else:
            found[name_text] = value_text
            continue
        if (name_text, fault) not in faults:
            faults.append((name_text, fault))
    if faults:
        raise Refused("invalid_parameters", tuple(faults))
    return found


def refused(name: str, fault: Fault) -> Refused:
    """422 for one argument."""
    return Refused("invalid_parameters", ((name, fault),))


def integer(name: str, text: str, minimum: int, maximum: int) -> int:
    """A whole number within bounds."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", text):
        raise refused(name, Fault.TYPE)
    if int(text) < minimum:
        raise refused(name, Fault.MINIMUM)
    if int(text) > maximum:
        raise refused(name, Fault.MAXIMUM)
    return int(text)
