"""The URL of a PostgreSQL connection: libpq's URI grammar, made strict, to one normal form.

May reject: any parameter that is unknown, given twice or malformed, by one error that names it and never its value. IO: none.
Twin of `dataplane-rs/src/engine/postgres/uri.rs`; `crds/golden/vectors/postgres_uri.json` holds both to the same answers.

Stricter than libpq: host and user must be given (a pod has no sensible default); `sslmode=allow` is refused (it asks for an
unencrypted session first, so it promises nothing); `@` stands unencoded only behind the user; empty values are malformed;
verify-ca and verify-full need a root certificate that is named; a client certificate needs its key.
"""

from dataclasses import dataclass, field

from tailrace_contract.uri_parts import BLANK, HOST, PLAIN, PORT, Files, Given, Problem, UriError, decode, is_ipv6, malformed

__all__ = ["PARAMETERS", "Files", "Host", "PostgresUri", "Problem", "UriError", "parse"]

ABSENT = "/nonexistent/tailrace"
"""Given to libpq for files that it would otherwise look for in a home directory: none of those may count."""


@dataclass(frozen=True, slots=True)
class Host:
    """One server: a name or address with a port, or an absolute directory with a Unix socket."""

    name: str
    port: int

    @property
    def is_unix(self) -> bool:
        """Whether `name` is a directory."""
        return self.name.startswith("/")


@dataclass(frozen=True, slots=True)
class PostgresUri:
    """The normal form: every parameter with its value or our default. Its repr shows nothing of it."""

    hosts: tuple[Host, ...] = field(repr=False)
    user: str = field(repr=False)
    password: str | None = field(repr=False)
    dbname: str = field(repr=False)
    connect_timeout: int = field(repr=False)
    """Seconds per address of a host; absent or 0 in the URL: 10."""
    application_name: str = field(repr=False)
    sslmode: str = field(repr=False)
    sslrootcert: str | None = field(repr=False)
    """`system`, or a PEM file."""
    sslcert: str | None = field(repr=False)
    sslkey: str | None = field(repr=False)
    channel_binding: str = field(repr=False)
    target_session_attrs: str = field(repr=False)
    load_balance_hosts: str = field(repr=False)
    keepalives: int = field(repr=False)
    keepalives_idle: int = field(repr=False)
    keepalives_interval: int = field(repr=False)
    keepalives_count: int = field(repr=False)
    """Seconds, seconds, probes; 0: the system's default."""
    tcp_user_timeout: int = field(repr=False)
    """Milliseconds, 0: the system's default."""
    options: str | None = field(repr=False)

    def keywords(self) -> dict[str, str]:
        """Connection keywords for libpq, complete, so that neither environment nor home directory has a say.

        For `psycopg.connect(**uri.keywords())`. libpq 16 or later.
        """
        words = {
            "host": ",".join(host.name for host in self.hosts),
            "port": ",".join(str(host.port) for host in self.hosts),
            "user": self.user,
            "dbname": self.dbname,
            "connect_timeout": str(self.connect_timeout),
            "application_name": self.application_name,
            "client_encoding": "UTF8",
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert or ABSENT,
            "sslcert": self.sslcert or ABSENT,
            "sslkey": self.sslkey or ABSENT,
            "sslcrl": ABSENT,
            "channel_binding": self.channel_binding,
            "target_session_attrs": self.target_session_attrs,
            "load_balance_hosts": self.load_balance_hosts,
            "keepalives": str(self.keepalives),
            "tcp_user_timeout": str(self.tcp_user_timeout),
            "options": self.options or "",
            "passfile": ABSENT,
            "gssencmode": "disable",
        }
        if self.password is not None:
            words["password"] = self.password
        for name in ("keepalives_idle", "keepalives_interval", "keepalives_count"):
            words[name] = str(getattr(self, name))
        # The password as it is goes only over TLS that the URL insists on, or a Unix socket.
        if self.sslmode in ("disable", "prefer") and not all(host.is_unix for host in self.hosts):
            words["require_auth"] = "!password"
        return words


PARAMETERS = (
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "connect_timeout",
    "application_name",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "target_session_attrs",
    "load_balance_hosts",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "options",
)
"""In the order of docs/postgres.md."""
_MOST_HOSTS = 32


def _host_name(text: str) -> str:
    if text.startswith("/"):
        good = len(text) > 1 and "," not in text
    elif ":" in text:
        good = is_ipv6(text)
    else:
        good = HOST.match(text) is not None
    if not good:
        raise malformed("host")
    return text


def _port_number(text: str) -> int:
    if not text:
        return 5432
    if not PORT.match(text) or int(text) > 65535:
        raise malformed("port")
    return int(text)


def _authority(text: str, given: Given) -> None:
    if not text:
        return
    hosts, ports = [], []
    for part in text.split(","):
        if part.startswith("["):
            address, bracket, after = part[1:].partition("]")
            if not bracket:
                raise malformed("host")
            host = decode("host", address)
            if after and not after.startswith(":"):
                raise malformed("host")
            port = after[1:]
            if not is_ipv6(host):
                raise malformed("host")
        else:
            raw, _, port = part.partition(":")
            host = decode("host", raw)
        if host or "," in text:
            _host_name(host)
        hosts.append(host)
        ports.append(decode("port", port))
    if any(hosts):
        given.put("host", ",".join(hosts))
    if any(ports):
        given.put("port", ",".join(ports))


def _pairs(query: str, given: Given) -> None:
    query = query.removesuffix("&")
    if not query:
        return
    for pair in query.split("&"):
        raw, equals, value = pair.partition("=")
        name = decode("url", raw)
        if name not in PARAMETERS:
            raise UriError(name, Problem.UNKNOWN) if PLAIN.match(name) else malformed("url")
        if not equals or not value or "=" in value:
            raise malformed(name)
        given.put(name, decode(name, value))


def _hosts(given: Given) -> tuple[Host, ...]:
    if "host" not in given.values:
        raise UriError("host", Problem.MISSING)
    names = [_host_name(name) for name in given.values["host"].split(",")]
    if len(names) > _MOST_HOSTS:
        raise malformed("host")
    ports = [_port_number(port) for port in given.values.get("port", "").split(",")]
    if len(ports) not in (1, len(names)):
        raise malformed("port")
    if len(ports) == 1:
        ports *= len(names)
    return tuple(Host(name, port) for name, port in zip(names, ports, strict=True))


def _userinfo(rest: str, given: Given) -> str:
    """Reads `user:password@`; an `@` anywhere else would mean an unencoded password, of which nothing may be named."""
    info, at, after = rest.partition("@")
    if not at:
        return rest
    if "@" in after or "/" in info:
        raise malformed("url")
    user, _, password = info.partition(":")
    if "?" in user:
        raise malformed("user")
    if ":" in password or "?" in password:
        raise malformed("password")
    if user:
        given.put("user", decode("user", user))
    if password:
        given.put("password", decode("password", password))
    return after


def parse(text: str, files: Files | None = None) -> PostgresUri:
    """Reads a URL; blanks and line ends around it are not part of it. `files` stand for the URL's own. Raises UriError."""
    text = text.strip(" \t\r\n")
    for scheme in ("postgresql://", "postgres://"):
        if text.startswith(scheme):
            rest = text.removeprefix(scheme)
            break
    else:
        raise malformed("url")
    if BLANK.search(rest):
        raise malformed("url")
    given = Given()
    rest = _userinfo(rest, given)
    front, _, query = rest.partition("?")
    servers, _, path = front.partition("/")
    _authority(servers, given)
    if path:
        given.put("dbname", decode("dbname", path))
    _pairs(query, given)
    return _normal(given, files or Files())


def _normal(given: Given, files: Files) -> PostgresUri:
    values = given.values
    hosts = _hosts(given)
    if "user" not in values:
        raise UriError("user", Problem.MISSING)
    user = values["user"]
    connect_timeout = given.number("connect_timeout", 3600, 0) or 10
    application_name = values.get("application_name", "tailrace")
    if len(application_name) > 63 or not all(" " <= c <= "~" for c in application_name):
        raise malformed("application_name")
    root = files.ca if files.ca is not None else values.get("sslrootcert")
    modes = ("disable", "prefer", "require", "verify-ca", "verify-full")
    sslmode = given.word("sslmode", modes, "verify-full" if root == "system" else "prefer")
    if root == "system" and sslmode != "verify-full":
        raise malformed("sslmode")
    if root is None and sslmode in ("verify-ca", "verify-full"):
        raise UriError("sslrootcert", Problem.MISSING)
    certificate = files.certificate if files.certificate is not None else values.get("sslcert")
    key = files.key if files.key is not None else values.get("sslkey")
    if (certificate is None) != (key is None):
        raise UriError("sslkey" if key is None else "sslcert", Problem.MISSING)
    attrs = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
    return PostgresUri(
        hosts=hosts,
        user=user,
        password=values.get("password"),
        dbname=values.get("dbname", user),
        connect_timeout=connect_timeout,
        application_name=application_name,
        sslmode=sslmode,
        sslrootcert=root,
        sslcert=certificate,
        sslkey=key,
        channel_binding=given.word("channel_binding", ("disable", "prefer", "require"), "prefer"),
        target_session_attrs=given.word("target_session_attrs", attrs, "any"),
        load_balance_hosts=given.word("load_balance_hosts", ("disable", "random"), "disable"),
        keepalives=given.number("keepalives", 1, 1),
        keepalives_idle=given.number("keepalives_idle", 32767, 30),
        keepalives_interval=given.number("keepalives_interval", 32767, 10),
        keepalives_count=given.number("keepalives_count", 127, 3),
        tcp_user_timeout=given.number("tcp_user_timeout", 2**31 - 1, 30000),
        options=values.get("options"),
    )
