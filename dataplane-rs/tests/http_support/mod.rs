//! A data plane in this process on a free port, a snapshot to push to it, and a client that shows every byte.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tailrace_dataplane::config::{Config, Limits};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::process::{self, Drained};
use tokio::sync::{mpsc, oneshot};

pub const KEY: &str = "tlr_test_key";
/// Longest wait for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Plane {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub data: tempfile::TempDir,
    pub signal: mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<Drained>>,
}

impl Plane {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let data = tempfile::Builder::new().prefix("tailrace-dp-").tempdir_in("/var/tmp").unwrap();
        std::fs::write(data.path().join("gateway-secret"), "07".repeat(32)).unwrap();
        Self::start_in(data, change)
    }

    pub fn start_in(data: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config {
            listen: free,
            admin: free,
            data: data.path().to_owned(),
            secret: data.path().join("gateway-secret"),
            threads: 1,
            cache_bytes: 32 << 20,
            lame_duck: Duration::ZERO,
            drain_grace: Duration::from_secs(5),
            limits: Limits::default(),
        };
        change(&mut config);
        let (signal, signals) = mpsc::channel(4);
        let (started, addresses) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(process::run(config, signals, Observer::stderr(), started)).unwrap()
        });
        let addresses = addresses.blocking_recv().unwrap();
        Self { listen: addresses.listen, admin: addresses.admin, data, signal, thread: Some(thread) }
    }

    /// Pushes and waits for the acknowledgement; (status, body).
    pub fn push(&self, snapshot: &Value) -> (u16, String) {
        let body = snapshot.to_string();
        let mut socket = UnixStream::connect(self.data.path().join("run/dataplane.sock")).unwrap();
        write!(socket, "PUT /plans HTTP/1.1\r\nHost: dataplane\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    pub fn pushed(&self, snapshot: &Value) {
        let (status, body) = self.push(snapshot);
        assert_eq!(status, 200, "{body}");
    }

    pub fn connect(&self) -> Wire {
        Wire::new(self.listen)
    }

    /// One GET on a connection of its own.
    pub fn get(&self, target: &str) -> Answer {
        let mut wire = self.connect();
        wire.get(target);
        wire.answer()
    }

    pub fn admin(&self, path: &str) -> Answer {
        let mut wire = Wire::new(self.admin);
        wire.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        wire.answer()
    }

    pub fn signal(&self) {
        self.signal.blocking_send(()).unwrap();
    }

    pub fn join(mut self) -> Drained {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Ends it; how many runs it recorded.
    pub fn count_recorded(mut self) -> i64 {
        self.signal();
        self.thread.take().unwrap().join().unwrap();
        let store = rusqlite::Connection::open(self.data.path().join("runs.sqlite")).unwrap();
        let sql = "SELECT (SELECT count(*) FROM runs) + (SELECT coalesce(sum(count), 0) FROM run_blocks)";
        store.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Ends it; all that it recorded, unless they were so many that they stand in blocks.
    pub fn recorded(mut self) -> Vec<(String, i64, String, i64)> {
        self.signal();
        self.thread.take().unwrap().join().unwrap();
        Self::runs(self.data.path())
    }

    /// Rows of the store after a drain: (query, status, code, rows).
    pub fn runs(data: &Path) -> Vec<(String, i64, String, i64)> {
        let store = rusqlite::Connection::open(data.join("runs.sqlite")).unwrap();
        let sql = "SELECT coalesce(q.name, ''), status, coalesce(c.name, ''), rows FROM runs \
                   LEFT JOIN names q ON q.id = query LEFT JOIN names c ON c.id = code ORDER BY epoch, seq";
        let mut statement = store.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            for _ in 0..3 {
                let _ = self.signal.try_send(());
            }
            let _ = thread.join();
        }
    }
}

/// Until it is true, at most PATIENCE.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Wire {
    pub socket: TcpStream,
    input: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap().to_owned()
    }
}

impl Wire {
    pub fn new(to: SocketAddr) -> Self {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, input: Vec::new() }
    }

    pub fn send(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).unwrap();
    }

    pub fn get(&mut self, target: &str) {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\n\r\n"));
    }

    fn more(&mut self) -> bool {
        let mut chunk = [0; 65536];
        let n = loop {
            // A socket with a timeout is not restarted after a signal (signal(7)): that is no end of the connection.
            match self.socket.read(&mut chunk) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => break read.unwrap_or(0),
            }
        };
        self.input.extend_from_slice(&chunk[..n]);
        n > 0
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.input.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8(self.input.drain(..end + 2).collect()).unwrap();
                return line.trim_end().to_owned();
            }
            assert!(self.more(), "the connection ended: {:?}", String::from_utf8_lossy(&self.input));
        }
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.input.len() < count {
            assert!(self.more(), "the connection ended within a body");
        }
        self.input.drain(..count).collect()
    }

    pub fn head(&mut self) -> Answer {
        let status = self.line();
        assert!(status.starts_with("HTTP/1.1 "), "{status}");
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
            headers.push((name.to_owned(), value.to_owned()));
        }
        Answer { status: status[9..12].parse().unwrap(), headers, body: Vec::new() }
    }

    pub fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        if answer.header("Transfer-Encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend_from_slice(&chunk);
            }
            loop {
                let line = self.line();
                if line.is_empty() {
                    break;
                }
                let (name, value) = line.split_once(": ").unwrap();
                answer.headers.push((name.to_owned(), value.to_owned()));
            }
        } else if let Some(length) = answer.header("Content-Length") {
            let length = length.parse().unwrap();
            answer.body = self.take(length);
        }
        answer
    }

    /// The next chunk; None at the last (its trailers follow).
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line(), 16).unwrap();
        if size == 0 {
            return None;
        }
        let chunk = self.take(size);
        assert_eq!(self.take(2), b"\r\n");
        Some(chunk)
    }

    /// Everything up to the end of the connection.
    pub fn rest(&mut self) -> String {
        while self.more() {}
        String::from_utf8_lossy(&std::mem::take(&mut self.input)).into_owned()
    }
}

pub fn sha256(key: &str) -> String {
    Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn param(name: &str, kind: &str) -> Value {
    json!({"name": name, "type": kind, "array": false, "required": true, "nullable": false, "default": null, "enum": null,
           "minimum": null, "maximum": null, "minLength": null, "maxLength": null, "pattern": null})
}

/// (name, encoding, type OID, table OID, column number)
pub fn column(name: &str, encoding: &str, kind: u32, table: u32, number: i32) -> Value {
    json!({"name": name, "encoding": encoding, "array": false, "delimiter": ",", "typeOid": kind, "tableOid": table, "columnNumber": number})
}

pub fn statement(sql: &str, oids: &[u32]) -> Value {
    json!({"sql": sql, "params": (0..oids.len()).collect::<Vec<_>>(), "oids": oids})
}

pub fn query(name: &str, returns: &str, params: Vec<Value>, columns: Vec<Value>, statement: Value) -> Value {
    let version: String = sha256(&format!("{name}{columns:?}{statement}")).chars().take(16).collect();
    json!({"name": name, "version": version, "connection": 0, "write": false, "returns": returns, "missing": "error", "timeoutMs": 2000,
           "recordParams": false, "params": params, "columns": columns, "statement": statement, "page": null, "shared": true,
           "exclusiveBecause": "", "refused": null})
}

pub fn key(id: &str, text: &str) -> Value {
    json!({"id": id, "sha256": [sha256(text)], "role": 0, "bind": {}, "notBeforeUs": null, "notAfterUs": null, "cidrs": []})
}

/// One connection, one role that may call everything unmasked, one key.
pub fn snapshot(version: u64, url_file: &Path, queries: Vec<Value>) -> Value {
    let grants: Vec<_> = (0..queries.len()).map(|n| json!({"query": n, "masks": [], "refused": null})).collect();
    json!({"schema": 1, "version": version,
        "api": {"namespace": "n", "name": "a", "bigNumbers": "number", "hideForbidden": false, "trustedProxies": [],
                "spoolSizeBytes": 1 << 30, "onFull": "reject", "durability": "process",
                "runStore": {"embedded": {}}},
        "sources": [],
        "connections": [{"name": "db", "engine": "postgres", "urlFile": url_file, "caFile": null, "certificateFile": null, "keyFile": null,
            "maxConnections": 8, "statementTimeoutMs": 30000, "session": [], "pooler": "none", "idempotencyTable": null}],
        "queries": queries,
        "roles": [{"name": "all", "grants": grants}],
        "keys": [key("n/k", KEY)]})
}

/// `users(id, name)` of so many rows in a private server's database; its OID.
pub fn users(server: &super::postgres_server::Server, rows: u32) -> u32 {
    server.psql(&format!(
        "CREATE TABLE users(id bigint PRIMARY KEY, name text NOT NULL); \
         INSERT INTO users SELECT n, 'User ' || n FROM generate_series(1, {rows}) n; ANALYZE users"
    ));
    server.psql("SELECT 'users'::regclass::oid").parse().unwrap()
}

/// A query by `id` over `users`.
pub fn user_by_id(table: u32) -> Value {
    let columns = vec![column("id", "raw", 20, table, 1), column("name", "string", 25, table, 2)];
    query("user", "one", vec![param("id", "integer")], columns, statement("SELECT id, name FROM users WHERE id = $1", &[20]))
}

/// Writes a URL where a snapshot says that it is.
pub fn url_file(plane: &Plane, url: &str) -> std::path::PathBuf {
    let path = plane.data.path().join("db-url");
    std::fs::write(&path, url).unwrap();
    path
}
