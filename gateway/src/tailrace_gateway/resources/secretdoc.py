"""A Kubernetes Secret as a document in files (`stringData`, `data`): local mode's way to give credentials. Pure.

Findings never hold a value.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field

from pydantic import JsonValue
from tailrace_contract.findings import Finding
from tailrace_contract.ids import SECRET_NAME_LENGTH, SECRET_NAME_PATTERN, Ref, is_file_part

VALUE_LIMIT_BYTES = 1 << 20
"""Of one Secret, as Kubernetes has it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """One Secret: bytes by key."""

    ref: Ref
    values: dict[str, bytes] = field(repr=False)


def is_secret(document: JsonValue) -> bool:
    """Whether a document means to be one."""
    return isinstance(document, dict) and document.get("kind") == "Secret" and document.get("apiVersion") in ("v1", None)


def read_secret(document: JsonValue) -> Secret | list[Finding]:
    """The Secret, or everything that is wrong with it. `stringData` wins over `data`, as in Kubernetes."""
    assert isinstance(document, dict)
    findings: list[Finding] = []
    known = {"apiVersion", "kind", "metadata", "stringData", "data", "type", "immutable"}
    findings += [Finding((name,), f"{name}: a Secret has no such field", "remove it") for name in document if name not in known]
    if document.get("apiVersion") != "v1":
        findings.append(Finding(("apiVersion",), "apiVersion: a Secret needs it", "write apiVersion: v1"))
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    namespace = metadata.get("namespace", "default") if isinstance(metadata, dict) else None
    for field_name, value in (("name", name), ("namespace", namespace)):
        if not isinstance(value, str) or len(value) > SECRET_NAME_LENGTH or re.fullmatch(SECRET_NAME_PATTERN, value) is None:
            findings.append(Finding(("metadata", field_name), f"{field_name}: must be a name", "lower-case letters, digits, - and ."))
    values: dict[str, bytes] = {}
    for section in ("data", "stringData"):
        entries = document.get(section)
        if entries is None:
            continue
        if not isinstance(entries, dict):
            findings.append(Finding((section,), f"{section}: must be a map of keys to text"))
            continue
        for key, value in entries.items():
            if not is_file_part(key):
                findings.append(Finding((section, key), "a key in a Secret: letters, digits, -, _ and .", "rename it"))
            elif not isinstance(value, str):
                findings.append(Finding((section, key), "the value must be text", "put it in quotes"))
            elif section == "stringData":
                values[key] = value.encode()
            else:
                try:
                    values[key] = base64.b64decode("".join(value.split()), validate=True)
                except (binascii.Error, ValueError):
                    findings.append(Finding((section, key), "the value must be base64", "encode it, or use stringData for plain text"))
    if sum(map(len, values.values())) > VALUE_LIMIT_BYTES:
        findings.append(Finding((), "a Secret must not be over 1 MiB", "split it"))
    if findings:
        return findings
    assert isinstance(name, str)
    assert isinstance(namespace, str)
    return Secret(Ref(namespace, name), values)
