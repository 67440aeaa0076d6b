"""Ways into a real MariaDB: sockets, TLS in every mode, authentication; and what a server must not talk us into."""

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tailrace_contract.uri_parts import Files
from tailrace_gateway.serve.mysql.connect import Connection, ConnectionLost
from tailrace_loadtest.servers.mariadb import Mariadb


def openssl(*words: str, folder: Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)


@pytest.fixture(scope="module")
def secured() -> Iterator[tuple[Mariadb, Path]]:
    """A server with TLS for the name localhost, and users of each method."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-tls-", dir="/var/tmp"))
    folder.chmod(0o755)  # the server runs as another user
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2", folder=folder)
    openssl("req", "-x509", *key, "-keyout", "other.key", "-out", "other.pem", "-subj", "/CN=other", "-days", "2", folder=folder)
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=x", folder=folder)
    (folder / "ext").write_text("subjectAltName=DNS:localhost")
    sign = ("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext")
    openssl(*sign, "-out", "server.pem", folder=folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    with Mariadb({"ssl_cert": str(folder / "server.pem"), "ssl_key": str(folder / "server.key")}) as server:
        server.sql(
            """
            CREATE DATABASE d; INSTALL SONAME 'auth_ed25519';
            CREATE USER native@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('pä ss');
            CREATE USER curve@'%' IDENTIFIED VIA ed25519 USING PASSWORD('pä ss');
            CREATE USER insists@'%' IDENTIFIED BY 'x' REQUIRE SSL;
            GRANT SELECT ON d.* TO native@'%'; GRANT SELECT ON d.* TO curve@'%'; GRANT SELECT ON d.* TO insists@'%';
            """
        )
        yield server, folder
    shutil.rmtree(folder)


def connected(url: str, **files: str) -> list[tuple[str | None, ...]]:
    connection = Connection(url, Files(**files), time.monotonic() + 20)
    try:
        connection.pin((("wait_timeout", "100"),), 1000, time.monotonic() + 20)
        return connection.query(
            "SELECT VARIABLE_VALUE <> '', @@wait_timeout FROM information_schema.session_status WHERE VARIABLE_NAME = 'Ssl_cipher'",
            time.monotonic() + 20,
        )
    finally:
        connection.quit()


@pytest.mark.parametrize("user", ["native", "curve"])
def test_methods(secured: tuple[Mariadb, Path], user: str) -> None:
    server, _ = secured
    where = f"localhost:{server.port}/d"
    assert connected(f"mysql://{user}:{quote('pä ss')}@{where}") == [("1", "100")]
    assert connected(f"mysql://{user}:{quote('pä ss')}@{where}?ssl-mode=disabled") == [("0", "100")]
    with pytest.raises(ConnectionLost):
        connected(f"mysql://{user}:wrong@{where}")


def test_a_socket_needs_no_tls(secured: tuple[Mariadb, Path]) -> None:
    server, _ = secured
    path = quote(str(server.socket), safe="")
    assert connected(f"mysql://root@{path}/d") == [("0", "100")]
    assert connected(f"mysql://root@/d?socket={path}&ssl-mode=verify-identity&ssl-ca=/nowhere") == [("0", "100")]


def test_tls_modes(secured: tuple[Mariadb, Path]) -> None:
    server, folder = secured
    url = f"mysql://insists:x@{{}}:{server.port}/d?ssl-mode={{}}"
    for mode in ("preferred", "required"):
        assert connected(url.format("127.0.0.1", mode))[0][0] == "1"
    with pytest.raises(ConnectionLost):
        connected(url.format("127.0.0.1", "disabled"))
    right, wrong = str(folder / "ca.pem"), str(folder / "other.pem")
    assert connected(url.format("127.0.0.1", "verify-ca"), ca=right)[0][0] == "1"
    assert connected(url.format("localhost", "verify-identity"), ca=right)[0][0] == "1"
    for host, mode, root in (
        ("127.0.0.1", "verify-identity", right),
        ("localhost", "verify-identity", wrong),
        ("localhost", "verify-ca", wrong),
        ("localhost", "required", wrong),
    ):
        with pytest.raises(ConnectionLost):
            connected(url.format(host, mode), ca=root)


def test_required_does_not_fall_back(mariadb: Mariadb) -> None:
    assert connected(mariadb.url("mysql"))[0][0] == "0"
    with pytest.raises(ConnectionLost):
        connected(mariadb.url("mysql") + "?ssl-mode=required")


def test_a_pinned_setting_wins(mariadb: Mariadb) -> None:
    connection = Connection(mariadb.url("mysql"), Files(), time.monotonic() + 20)
    session = (("sql_mode", "ANSI_QUOTES"), ("time_zone", "+05:00"), ("group_concat_max_len", "7"))
    connection.pin(session, 1234, time.monotonic() + 20)
    asked = "SELECT @@sql_mode, @@time_zone, @@max_statement_time, @@character_set_results, @@group_concat_max_len"
    (row,) = connection.query(asked, time.monotonic() + 20)
    assert row == ("STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION", "+00:00", "1.234000", "utf8mb4", "7")
    connection.quit()


GREETING = b"\x0a8.0.36\0\x01\0\0\0abcdefgh\0\xff\xf7\xff\x02\0\xff\xc7\x15" + bytes(10) + b"ijklmnopqrst\0"


@pytest.mark.parametrize(
    ("method", "answers"),
    [
        (b"mysql_clear_password", [b"\xfemysql_clear_password\0"]),
        (b"sha256_password", [b"\xfesha256_password\0" + b"a" * 20 + b"\0"]),
        (b"dialog", [b"\xfedialog\0\4Password: "]),
        (b"caching_sha2_password", [b"\1\4"]),
    ],
)
def test_a_server_does_not_get_the_password(method: bytes, answers: list[bytes]) -> None:
    """Without TLS it asks for the password as it is, or to have it encrypted with a key of its own."""
    seen = b""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        nonlocal seen
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(5)
            greeting = GREETING.replace(b"\xff\xf7", b"\xff\xf7") + method + b"\0"
            peer.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
            number = 2
            try:
                seen += peer.recv(65536)
                for answer in answers:
                    peer.sendall(len(answer).to_bytes(3, "little") + bytes((number,)) + answer)
                    number += 2
                while piece := peer.recv(65536):
                    seen += piece
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(ConnectionLost):
        Connection(f"mysql://u:hunter2hunter2@127.0.0.1:{listener.getsockname()[1]}/d?ssl-mode=disabled", Files(), time.monotonic() + 5)
    thread.join(10)
    listener.close()
    assert seen
    assert b"hunter2" not in seen
