"""ConfigMaps: as documents in files (`data`, `binaryData`), and as what a kubelet mounts of them. Pure."""

import base64
import binascii
import re
from dataclasses import dataclass, field

from pydantic import JsonValue
from tailrace_contract.findings import Finding
from tailrace_contract.ids import SECRET_NAME_LENGTH, SECRET_NAME_PATTERN, Ref, is_file_part

VALUE_LIMIT_BYTES = 1 << 20
"""Of one ConfigMap, as Kubernetes has it."""


@dataclass(frozen=True, slots=True)
class Config:
    """One ConfigMap: bytes by key."""

    ref: Ref
    files: dict[str, bytes] = field(repr=False)


def is_config(document: JsonValue) -> bool:
    """Whether a document means to be one."""
    return isinstance(document, dict) and document.get("kind") == "ConfigMap" and document.get("apiVersion") in ("v1", None)


def read_config(document: JsonValue) -> Config | list[Finding]:
    """The ConfigMap, or everything that is wrong with it."""
    assert isinstance(document, dict)
    findings: list[Finding] = []
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    namespace = metadata.get("namespace", "default") if isinstance(metadata, dict) else None
    for field_name, value in (("name", name), ("namespace", namespace)):
        if not isinstance(value, str) or len(value) > SECRET_NAME_LENGTH or re.fullmatch(SECRET_NAME_PATTERN, value) is None:
            findings.append(Finding(("metadata", field_name), f"{field_name}: must be a name", "lower-case letters, digits, - and ."))
    files: dict[str, bytes] = {}
    for section in ("data", "binaryData"):
        entries = document.get(section)
        if entries is None:
            continue
        if not isinstance(entries, dict):
            findings.append(Finding((section,), f"{section}: must be a map of keys to text"))
            continue
        for key, value in entries.items():
            if not is_file_part(key):
                findings.append(Finding((section, key), "a key in a ConfigMap: letters, digits, -, _ and .", "rename it"))
            elif key in files:
                findings.append(Finding((section, key), "this key stands in data as well", "remove one"))
            elif not isinstance(value, str):
                findings.append(Finding((section, key), "the value must be text", "put it in quotes"))
            elif section == "data":
                files[key] = value.encode()
            else:
                try:
                    files[key] = base64.b64decode("".join(value.split()), validate=True)
                except (binascii.Error, ValueError):
                    findings.append(Finding((section, key), "the value must be base64", "encode it, or use data for plain text"))
    if sum(map(len, files.values())) > VALUE_LIMIT_BYTES:
        findings.append(Finding((), "a ConfigMap must not be over 1 MiB", "split it"))
    if findings:
        return findings
    assert isinstance(name, str)
    assert isinstance(namespace, str)
    return Config(Ref(namespace, name), files)
