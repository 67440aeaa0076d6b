"""A pinned connection to MySQL or MariaDB. Blocking: for worker threads, and for the compiler.

IO: the server's socket, by pymysql (which does the handshake, TLS and authentication). Rejects with `RefusedConnection`, `UriError`, `OSError`.
"""

import re
import secrets
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pymysql
from pymysql.constants import CLIENT
from tailrace_contract.mysql_uri import MysqlUri, parse
from tailrace_contract.plan import StatementPlan
from tailrace_contract.uri_parts import Files
from tailrace_gateway.serve.mysql.wire import Column, Reader, column_of, execution, row_of
from tailrace_gateway.serve.values import Malformed

_COM_QUERY, _COM_PREPARE, _COM_EXECUTE, _COM_CLOSE = 0x03, 0x16, 0x17, 0x19
_EOF, _ERR, _OK, _LOCAL_INFILE = 0xFE, 0xFF, 0x00, 0xFB
SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_PINS = (
    "time_zone = '+00:00'",
    f"sql_mode = '{SQL_MODE}'",
    "autocommit = 1",
    "div_precision_increment = 4",
    "lc_time_names = 'en_US'",
    "default_week_format = 0",
    "sql_select_limit = DEFAULT",
)
"""What the parser and the texts of values depend on."""
_BARE = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")
"""Settings that the server takes as numbers only."""
LEAST_S = 0.001


class ServerError(Exception):
    """What the server said of a statement: its number and SQLSTATE; `text` is for the compiler alone, it may hold values."""

    def __init__(self, number: int, sqlstate: str, text: str = "") -> None:
        super().__init__(f"error {number} ({sqlstate})")
        self.number = number
        self.sqlstate = sqlstate
        self.text = text


class ConnectionLost(Exception):
    """The connection is not usable any more, or was never made."""


class DeadlinePassed(Exception):
    """The server was silent up to the deadline; the connection is not usable any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that the server keeps: its number there, its places, what its result looks like."""

    number: int
    places: int
    columns: tuple[Column, ...]


@dataclass(slots=True)
class Result:
    """Of an execution: its columns (none: it returned no rows), rows changed."""

    columns: tuple[Column, ...]
    affected: int


class _NotHere:
    """Stands for the authentication methods that give the password away, or are not MySQL's."""

    def __init__(self, connection: object) -> None:
        raise ConnectionLost("an authentication method that is not supported")


_REFUSED_METHODS = dict.fromkeys(("sha256_password", "mysql_clear_password", "mysql_old_password", "dialog"), _NotHere)


def _context(uri: MysqlUri) -> ssl.SSLContext:
    """TLS as the URL asks for it: `required` and `preferred` check the chain if a root is given, as PostgreSQL's do."""
    if uri.ssl_ca is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=None if uri.ssl_ca == "system" else uri.ssl_ca)
        context.check_hostname = uri.ssl_mode == "verify-identity"
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if uri.ssl_cert is not None:
        context.load_cert_chain(uri.ssl_cert, uri.ssl_key)
    return context


class Connection:
    """One connection, used by one thread at a time. After `ConnectionLost` or `DeadlinePassed` it can only be closed."""

    def __init__(self, url: str, files: Files, deadline_s: float) -> None:
        uri = parse(url, files)
        self.host, self._uri, self._files = uri.host, uri, files
        remaining_s = max(LEAST_S, min(uri.connect_timeout, deadline_s - time.monotonic()))
        plain = uri.is_unix or uri.ssl_mode == "disabled"
        try:
            self._raw = pymysql.Connection(
                user=uri.user,
                password=(uri.password or "").encode(),
                host=None if uri.is_unix else uri.host,
                unix_socket=uri.host if uri.is_unix else None,
                port=uri.port,
                database=uri.database,
                charset="utf8mb4",
                client_flag=CLIENT.FOUND_ROWS,
                connect_timeout=remaining_s,
                read_timeout=remaining_s,
                write_timeout=remaining_s,
                auth_plugin_map=_REFUSED_METHODS,
                # No key: a password is never encrypted for whoever answers without TLS.
                server_public_key=b"none",
                ssl_disabled=plain,
                ssl=None if plain else _context(uri),
                defer_connect=True,
            )
            if uri.ssl_mode == "preferred" and not plain:
                # Its own preferred mode reads the system's roots each time, 30 ms of CPU, and then checks nothing by them.
                self._raw._ssl_required = False
                self._raw.client_flag &= ~CLIENT.SSL
            self._raw.connect()
        except (pymysql.Error, OSError, ValueError, ConnectionLost, struct.error, IndexError, UnicodeError):
            raise ConnectionLost("no connection") from None
        self.version: str = self._raw.server_version
        self.is_mariadb = "mariadb" in self.version.lower()
        self.mark = f"tailrace-session-{secrets.token_hex(16)}"
        """Name of a lock that a pinned session alone holds: how KILL finds it, on the server that it is on and on no other."""

    def close(self) -> None:
        """Ends it, whatever its state."""
        if self._raw.open:
            self._raw._force_close()

    def quit(self) -> None:
        """Ends an idle one, and says so."""
        if self._raw.open:
            try:
                self._raw.close()
            except pymysql.Error:
                self._raw._force_close()

    def another(self, url: str, deadline_s: float) -> "Connection":
        """A second one to the same place, not pinned."""
        return Connection(url, self._files, deadline_s)

    def _packet(self, deadline_s: float) -> bytes:
        """The next packet; `ServerError` if it is one."""
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise DeadlinePassed
        # Set on the socket at the first packet of an answer only, while there is time: it would cost more than the rows.
        if self._raw._read_timeout > remaining_s + 0.05:
            self._raw._read_timeout = remaining_s
        try:
            data: bytes = self._raw._read_packet(_Packet).data
        except (pymysql.Error, OSError, ValueError, struct.error, IndexError) as error:
            if time.monotonic() >= deadline_s - LEAST_S:
                raise DeadlinePassed from None
            raise ConnectionLost(type(error).__name__) from None
        if data[:1] == b"\xff":
            raise _error(data)
        return data

    def _send(self, command: int, body: bytes, deadline_s: float) -> None:
        self._raw._write_timeout = self._raw._read_timeout = max(LEAST_S, deadline_s - time.monotonic())
        try:
            self._raw._execute_command(command, body)
        except (pymysql.Error, OSError) as error:
            raise ConnectionLost(type(error).__name__) from None

    def _columns(self, count: int, deadline_s: float) -> tuple[Column, ...]:
        if not count:
            return ()
        columns = tuple(column_of(self._packet(deadline_s)) for _ in range(count))
        self._end(self._packet(deadline_s))
        return columns

    @staticmethod
    def _end(packet: bytes) -> None:
        if packet[:1] != b"\xfe" or len(packet) >= 9:
            raise ConnectionLost("the protocol is not kept")

    def prepare(self, sql: str, deadline_s: float) -> Prepared:
        """COM_STMT_PREPARE."""
        self._send(_COM_PREPARE, sql.encode(), deadline_s)
        try:
            head = Reader(self._packet(deadline_s), 1)
            number, columns, places = head.integer(4), head.integer(2), head.integer(2)
            self._columns(places, deadline_s)
            return Prepared(number, places, self._columns(columns, deadline_s))
        except Malformed:
            raise ConnectionLost("the protocol is not kept") from None

    def forget(self, prepared: Prepared) -> None:
        """COM_STMT_CLOSE, which has no answer."""
        self._send(_COM_CLOSE, struct.pack("<I", prepared.number), time.monotonic() + 1)

    def execute(self, prepared: Prepared, statement: StatementPlan, values: Sequence[bytes | None], deadline_s: float) -> Result:
        """COM_STMT_EXECUTE up to the first row; Malformed (nothing was sent) for values that cannot be bound."""
        self._send(_COM_EXECUTE, execution(prepared.number, statement, values), deadline_s)
        return self._result(deadline_s)

    def _result(self, deadline_s: float) -> Result:
        try:
            head = Reader(self._packet(deadline_s))
            first = head.integer(1)
            if first == _OK:
                return Result((), head.length())
            if first == _LOCAL_INFILE:
                raise ConnectionLost("the server asks for a file")
            head.at = 0
            return Result(self._columns(head.length(), deadline_s), 0)
        except Malformed:
            raise ConnectionLost("the protocol is not kept") from None

    def rows(self, columns: Sequence[Column], deadline_s: float) -> Iterator[tuple[list[bytes | None], int]]:
        """The rows of a binary result and their size in bytes; must be read to its end before the next statement."""
        while True:
            packet = self._packet(deadline_s)
            if packet[:1] == b"\xfe" and len(packet) < 9:
                return
            try:
                yield row_of(packet, columns), len(packet)
            except Malformed:
                raise ConnectionLost("the protocol is not kept") from None

    def query(self, sql: str, deadline_s: float) -> list[tuple[str | None, ...]]:
        """A statement of our own by the text protocol, read whole."""
        self._send(_COM_QUERY, sql.encode(), deadline_s)
        result = self._result(deadline_s)
        rows: list[tuple[str | None, ...]] = []
        while result.columns:
            packet = self._packet(deadline_s)
            if packet[:1] == b"\xfe" and len(packet) < 9:
                break
            reader, row = Reader(packet), list[str | None]()
            try:
                for _ in result.columns:
                    if packet[reader.at : reader.at + 1] == b"\xfb":
                        reader.at += 1
                        row.append(None)
                    else:
                        row.append(reader.counted().decode("utf-8", "replace"))
            except Malformed:
                raise ConnectionLost("the protocol is not kept") from None
            rows.append(tuple(row))
        return rows

    def pin(self, session: Sequence[tuple[str, str]], timeout_ms: int, deadline_s: float) -> None:
        """The connection's own settings, then those that answers and governance rest on; proves that it is read-only."""
        for name, value in session:
            self.query(f"SET SESSION {_name(name)} = {value if _BARE.fullmatch(value) else literal(value)}", deadline_s)
        timeout = f"max_statement_time = {timeout_ms / 1000:.3f}" if self.is_mariadb else f"max_execution_time = {timeout_ms}"
        self.query("SET NAMES utf8mb4", deadline_s)
        self.query("SET " + ", ".join(f"SESSION {pin}" for pin in (*_PINS, timeout)), deadline_s)
        self.query("SET SESSION TRANSACTION READ ONLY", deadline_s)
        with suppress(ServerError):  # Without such locks what the session does can't be stopped, and it is closed instead.
            self.query(f"DO GET_LOCK('{self.mark}', 0)", deadline_s)
        if not self.is_read_only(deadline_s):
            raise ConnectionLost("it is not read-only")

    def kill(self, mark: str, deadline_s: float) -> None:
        """Ends the session that holds the mark. ServerError when no session of this server does (1094).

        The server looks up whose it is in the statement that kills: behind a proxy, or a name of several servers, this connection may lead
        to another one, where the session's number would be somebody else's.
        """
        self.query(f"KILL IS_USED_LOCK({literal(mark)})", deadline_s)

    def is_read_only(self, deadline_s: float) -> bool:
        """Whether the next transaction is, unless it says otherwise; and that nothing of a former one is open."""
        variable = "tx_read_only" if self.is_mariadb else "transaction_read_only"
        return self.query(f"SELECT @@session.{variable}, @@session.autocommit", deadline_s) == [("1", "1")]


class _Packet:
    """A packet as it came; pymysql makes it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes, encoding: str) -> None:
        self.data = data

    def is_error_packet(self) -> bool:
        """Errors are raised by us: pymysql's hold texts."""
        return False


def _error(packet: bytes) -> Exception:
    number = int.from_bytes(packet[1:3], "little")
    if packet[3:4] == b"#":
        return ServerError(number, packet[4:9].decode("ascii", "replace"), packet[9:].decode("utf-8", "replace"))
    return ServerError(number, "HY000", packet[3:].decode("utf-8", "replace"))


def literal(text: str) -> str:
    """A string constant under our sql_mode, where a backslash escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
