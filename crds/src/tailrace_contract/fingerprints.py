"""Fingerprints that the operator and the gateway compute alike, each from what it sees. Pure; rejects nothing."""

import hashlib
import json
from collections.abc import Mapping


def entry_fingerprint(match_labels: Mapping[str, str], bind: Mapping[str, str]) -> str:
    """16 hex digits of what an entry of `allowKeysFrom` asks of a namespace: the labels it must have, and by parameter the label that binds it.

    The operator writes it beside each namespace that it admits, and the gateway looks for an entry that has it. A position would do
    harm: after an edit that moves entries, a namespace would stand under another entry's roles until the operator has been there.
    Roles are no part of it: they are read from the spec itself, so that a role that is taken away is gone at once.
    """
    text = json.dumps([dict(match_labels), dict(bind)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def config_fingerprint(files: Mapping[str, bytes]) -> str:
    """64 hex digits of a ConfigMap's files: SHA-256 over a line `NAME SHA256` for each, by name; of `data` the UTF-8 text, of `binaryData` the bytes."""
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
