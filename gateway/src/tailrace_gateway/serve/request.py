"""A request as the serving side reads it: header fields, the credential, the caller's address, the path. Pure; rejects nothing.

The twin of `dataplane-rs/src/{http/head,auth/address}.rs`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK = IPv4Address("127.0.0.1")

_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Trace:
    """A valid traceparent: the trace's id (32 hex digits), whether it is sampled, and the header's text."""

    id: str
    sampled: bool
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request less its body. Header names are lower case; `peer` is who connected (or whom the data plane saw)."""

    method: str
    raw_path: bytes
    arguments: bytes
    headers: Sequence[tuple[bytes, bytes]]
    peer: Address

    def fields(self, name: bytes) -> list[bytes]:
        """All values of a header, without blanks around them."""
        return [value.strip() for key, value in self.headers if key == name]

    def once(self, name: bytes) -> bytes | None:
        """The value of a header that stands exactly once."""
        values = self.fields(name)
        return values[0] if len(values) == 1 else None

    def credential(self) -> bytes | None:
        """The key's text; None when there is none, or more than one, or one of another kind."""
        found: list[bytes | None] = [value or None for value in self.fields(b"x-api-key")]
        for value in self.fields(b"authorization"):
            found.append(value[7:].strip() or None if value[:7].lower() == b"bearer " else None)
        return found[0] if len(found) == 1 else None

    def path(self) -> str | None:
        """The path, percent-decoded; None when an escape is not one, or when it is not UTF-8 or has a NUL."""
        path = self.raw_path
        if b"%" in path:
            if path.count(b"%") != len(_ESCAPE.findall(path)):
                return None
            path = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), path)
        try:
            text = path.decode()
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else text

    def caller(self, trusted: Sequence[Network]) -> Address:
        """The caller's address: X-Forwarded-For counts only from a trusted peer.

        It is read from the right, skipping trusted proxies; the first other address is the caller. What cannot be read ends the
        search at the last address that was sure.
        """
        sure = canonical(self.peer)
        lines = self.fields(b"x-forwarded-for")
        if not lines or not contains(trusted, sure):
            return sure
        for entry in reversed(b",".join(lines).split(b",")):
            address = parse_address(entry.strip())
            if address is None:
                return sure
            sure = address
            if not contains(trusted, address):
                break
        return sure

    def trace(self) -> Trace | None:
        """The traceparent, when there is exactly one and it is valid (W3C Trace Context, version 00)."""
        value = self.once(b"traceparent")
        match = _TRACEPARENT.fullmatch(value) if value else None
        if match is None or not match[1].strip(b"0") or not match[2].strip(b"0"):
            return None
        return Trace(match[1].decode(), bool(int(match[3], 16) & 1), match[0].decode())


def query_name(path: str) -> str | None:
    """NAME of `/q/NAME`; None for every other path."""
    name = path[3:]
    return name if path.startswith("/q/") and name and "/" not in name else None


def canonical(address: Address) -> Address:
    """An IPv4-mapped IPv6 address counts as IPv4."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def parse_address(text: bytes) -> Address | None:
    """`1.2.3.4`, `1.2.3.4:5`, `::1`, `[::1]`, `[::1]:5`; None for anything else."""
    bare = text.decode("ascii", "replace")
    if bare.startswith("["):
        bare, bracket, port = bare[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and port[1:].isdigit())):
            return None
    elif bare.count(":") == 1:
        bare, _, port = bare.partition(":")
        if not port.isdigit():
            return None
    if "%" in bare:
        return None
    try:
        return canonical(ip_address(bare))
    except ValueError:
        return None


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks of CIDR texts (host bits are ignored); a bare address counts as itself. ValueError when one is neither."""
    return tuple(ip_network(text, strict=False) for text in texts)


def contains(among: Sequence[Network], address: Address) -> bool:
    """Whether any of the networks holds it."""
    return any(address.version == network.version and address in network for network in among)
