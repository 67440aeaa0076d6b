"""The URL of a MySQL or MariaDB connection: `mysql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE&…`, to one normal form.

May reject: any parameter that is unknown, given twice or malformed, by one error that names it and never its value. IO: none.
Twin of `dataplane-rs/src/engine/mysql/uri.rs`; `crds/golden/vectors/mysql_uri.json` holds both to the same answers.

Host, user and database must be given. `@` stands unencoded only behind the user. A Unix socket is an absolute path, percent-encoded in the place
of the host or as `socket`; TLS and its parameters don't count there.
"""

import re
from dataclasses import dataclass, field

from tailrace_contract.uri_parts import BLANK, HOST, PORT, Files, Given, Problem, UriError, decode, is_ipv6, malformed

PARAMETERS = ("socket", "connect-timeout", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key")
"""In the order of docs/mysql.md."""
SSL_MODES = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
_SHOWN = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")


@dataclass(frozen=True, slots=True)
class MysqlUri:
    """The normal form: every parameter with its value or our default. Its repr shows nothing of it."""

    host: str = field(repr=False)
    """A name, an address, or the absolute path of a Unix socket."""
    port: int = field(repr=False)
    user: str = field(repr=False)
    password: str | None = field(repr=False)
    database: str = field(repr=False)
    connect_timeout: int = field(repr=False)
    """Seconds per address of a host; absent or 0 in the URL: 10."""
    ssl_mode: str = field(repr=False)
    ssl_ca: str | None = field(repr=False)
    """`system`, or a PEM file."""
    ssl_cert: str | None = field(repr=False)
    ssl_key: str | None = field(repr=False)

    @property
    def is_unix(self) -> bool:
        """Whether `host` is a socket."""
        return self.host.startswith("/")


def _server(text: str, given: Given) -> tuple[str, int]:
    if text.startswith("["):
        address, bracket, after = text[1:].partition("]")
        host = decode("host", address)
        if not bracket or (after and not after.startswith(":")) or not is_ipv6(host):
            raise malformed("host")
        port = after[1:]
    else:
        raw, _, port = text.partition(":")
        host = decode("host", raw)
        if "socket" in given.values and host in ("", "localhost"):
            host = given.values["socket"]
        elif "socket" in given.values:
            raise UriError("socket", Problem.DUPLICATE)
        if not host:
            raise UriError("host", Problem.MISSING)
        if host.startswith("/"):
            if len(host) < 2:
                raise malformed("host")
        elif not HOST.match(host):
            raise malformed("host")
    if port and (not PORT.match(port) or int(port) > 65535):
        raise malformed("port")
    return host, int(port) if port else 3306


def _pairs(query: str, given: Given) -> None:
    for pair in query.split("&") if query else ():
        raw, equals, value = pair.partition("=")
        name = decode("url", raw)
        if name not in PARAMETERS:
            raise UriError(name, Problem.UNKNOWN) if _SHOWN.match(name) else malformed("url")
        if not equals or not value or "=" in value:
            raise malformed(name)
        given.put(name, decode(name, value))


def parse(text: str, files: Files | None = None) -> MysqlUri:
    """Reads a URL; blanks and line ends around it are not part of it. `files` stand for the URL's own. Raises UriError."""
    files = files or Files()
    text = text.strip(" \t\r\n")
    if not text.startswith("mysql://"):
        raise malformed("url")
    rest = text.removeprefix("mysql://")
    if BLANK.search(rest):
        raise malformed("url")
    info, at, after = rest.partition("@")
    if not at:
        raise UriError("user", Problem.MISSING)
    if "@" in after or "/" in info:
        raise malformed("url")
    raw_user, _, raw_password = info.partition(":")
    if "?" in raw_user:
        raise malformed("user")
    if ":" in raw_password or "?" in raw_password:
        raise malformed("password")
    if not raw_user:
        raise UriError("user", Problem.MISSING)
    user = decode("user", raw_user)
    password = decode("password", raw_password) if raw_password else None
    front, _, query = after.partition("?")
    server, _, path = front.partition("/")
    given = Given()
    _pairs(query, given)
    if "socket" in given.values and not (given.values["socket"].startswith("/") and len(given.values["socket"]) > 1):
        raise malformed("socket")
    host, port = _server(server, given)
    if not path:
        raise UriError("database", Problem.MISSING)
    database = decode("database", path)
    return _normal(given, files, (host, port, user, password, database))


def _normal(given: Given, files: Files, who: tuple[str, int, str, str | None, str]) -> MysqlUri:
    values = given.values
    connect_timeout = given.number("connect-timeout", 3600, 0) or 10
    ca = files.ca if files.ca is not None else values.get("ssl-ca")
    if "ssl-mode" in values:
        values["ssl-mode"] = values["ssl-mode"].lower().replace("_", "-")
    mode = given.word("ssl-mode", SSL_MODES, "verify-identity" if ca == "system" else "preferred")
    if ca == "system" and mode != "verify-identity":
        raise malformed("ssl-mode")
    if ca is None and mode in ("verify-ca", "verify-identity"):
        raise UriError("ssl-ca", Problem.MISSING)
    certificate = files.certificate if files.certificate is not None else values.get("ssl-cert")
    key = files.key if files.key is not None else values.get("ssl-key")
    if (certificate is None) != (key is None):
        raise UriError("ssl-key" if key is None else "ssl-cert", Problem.MISSING)
    host, port, user, password, database = who
    return MysqlUri(host, port, user, password, database, connect_timeout, mode, ca, certificate, key)
