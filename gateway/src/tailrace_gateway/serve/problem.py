"""RFC 9457 bodies. Pure; rejects nothing.

The Rust twin is `dataplane-rs/src/encode/problem.rs`; both read `crds/golden/vectors/problems.json`.
"""

from collections.abc import Sequence

from tailrace_contract.codes import FAULT_DETAILS, Code, Fault
from tailrace_gateway.serve.values import json_string

CONTENT_TYPE = "application/problem+json"


def problem(code: Code, run_id: str | None, faults: Sequence[tuple[str, Fault]] = ()) -> bytes:
    """The body. `faults` are (parameter name, what is wrong with it), already in order."""
    members = [
        f'"type":"urn:tailrace:problem:{code.name}"',
        f'"title":{json_string(code.title)}',
        f'"status":{code.status}',
        f'"detail":{json_string(code.detail)}',
    ]
    if run_id is not None:
        members.append(f'"instance":"urn:tailrace:run:{run_id}"')
    members.append(f'"code":"{code.name}"')
    if faults:
        members.append(f'"errors":[{",".join(_fault(name, fault) for name, fault in faults)}]')
    return ("{" + ",".join(members) + "}").encode()


def _fault(name: str, fault: Fault) -> str:
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    return f'{{"pointer":{json_string(pointer)},"code":"{fault.value}","detail":{json_string(FAULT_DETAILS[fault])}}}'
