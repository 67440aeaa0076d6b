//! The stages of a call, each again and again, for an instruction counter: `.ci/instructions.py` runs this under callgrind, which counts only
//! what happens inside `counted`. `tailrace-instructions STAGE COUNT`.
//! No socket and no database: the server's bytes are kept from a warm-up and told again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use tailrace_dataplane::auth::keys::Keys;
use tailrace_dataplane::cache::Cache;
use tailrace_dataplane::calls::call::{Call, Ticket};
use tailrace_dataplane::calls::core::{Admitted, Core};
use tailrace_dataplane::calls::desk::{Cost, FlatRows, lane_rows};
use tailrace_dataplane::config::Limits;
use tailrace_dataplane::encode::Format;
use tailrace_dataplane::engine::postgres::lane::Pipeline;
use tailrace_dataplane::engine::postgres::wire;
use tailrace_dataplane::engine::shared::Answer;
use tailrace_dataplane::http::client::Body;
use tailrace_dataplane::http::head;
use tailrace_dataplane::http::output::Output;
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{Durability, OnFull, Snapshot};
use tailrace_dataplane::plan::tables::Tables;
use tailrace_dataplane::runs::embedded::Embedded;
use tailrace_dataplane::runs::layout::{Kind, Record};
use tailrace_dataplane::runs::store::{Row, Store};
use tailrace_dataplane::runs::{Client, Names, Run, Spool};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Calls of a turn.
const TURN: u64 = 64;
const INT8: u32 = 20;
const TEXT: u32 = 25;
const INT8_ARRAY: u32 = 1016;

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `user` by id, coalesced; one role that sees all of it.
fn the_snapshot(keys: usize) -> Snapshot {
    let column = |name: &str| {
        let (encoding, kind) = if name == "id" { ("raw", INT8) } else { ("string", TEXT) };
        json!({"name": name, "encoding": encoding, "array": false, "delimiter": ",", "typeOid": kind, "tableOid": 0, "columnNumber": 0})
    };
    let columns: Vec<Value> = ["path", "id", "name", "tier"].into_iter().map(column).collect();
    let statement = |sql: &str, oid: u32| json!({"sql": sql, "params": [0], "oids": [oid]});
    let parameter = json!({"name": "id", "type": "integer", "array": false, "required": true, "nullable": false, "default": null,
        "enum": null, "minimum": null, "maximum": null, "minLength": null, "maxLength": null, "pattern": null});
    let query = json!({"name": "user", "version": "0123456789abcdef", "connection": 0, "write": false, "returns": "one",
        "missing": "error", "timeoutMs": 2000, "recordParams": false, "params": [parameter], "columns": columns,
        "statement": statement("single", INT8), "page": null, "shared": true, "exclusiveBecause": "", "refused": null,
        "coalesce": {"statement": statement("batch", INT8_ARRAY), "maxBatch": 256, "maxInFlight": 2, "shadow": 0}});
    let key = |n: usize| {
        json!({"id": format!("n/k{n}"), "sha256": [sha256(&text_of(n))], "role": 0, "bind": {}, "notBeforeUs": null, "notAfterUs": null,
            "cidrs": []})
    };
    let snapshot = json!({"schema": 1, "version": 1,
        "api": {"namespace": "n", "name": "a", "bigNumbers": "number", "hideForbidden": false, "trustedProxies": [],
            "spoolSizeBytes": 1_u64 << 30, "onFull": "reject", "durability": "process", "runStore": {"embedded": {}}},
        "sources": [],
        "connections": [{"name": "db", "engine": "postgres", "urlFile": "/nowhere", "caFile": null, "certificateFile": null,
            "keyFile": null, "maxConnections": 8, "statementTimeoutMs": 30000, "session": [], "pooler": "none",
            "idempotencyTable": null}],
        "queries": [query],
        "roles": [{"name": "all", "grants": [{"query": 0, "masks": [], "refused": null}]}],
        "keys": (0..keys).map(key).collect::<Vec<Value>>()});
    serde_json::from_value(snapshot).unwrap()
}

/// A folder of this process, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tailrace-instructions-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// As minted: `tlr_` and 43 characters.
fn text_of(key: usize) -> String {
    format!("tlr_{}", &sha256(&key.to_string())[..43])
}

fn request(n: u64) -> Vec<u8> {
    let key = text_of(1 + n as usize % 100);
    let id = 100_000 + n % TURN;
    format!("GET /q/user?id={id} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-API-Key: {key}\r\nAccept: application/json\r\n\r\n").into_bytes()
}

/// A row as PostgreSQL sends it; `ord` in front for a batch.
fn row(ord: Option<u64>, n: u64) -> (u16, Vec<u8>) {
    let id = 100_000 + n % TURN;
    let texts = [format!("/users/{id}"), id.to_string(), format!("User number {id}"), "gold".to_owned()];
    let ord = ord.map(|ord| ord.to_string());
    let all: Vec<&String> = ord.iter().chain(&texts).collect();
    (all.len() as u16, all.iter().flat_map(|text| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()).collect())
}

struct Stack {
    core: Core,
    output: Output,
    requests: Vec<Vec<u8>>,
    /// What is asked in a turn, and what the server that isn't there says to it.
    pipeline: Pipeline<Box<Call>>,
    asked: Vec<u8>,
    answers: Vec<u8>,
    _data: Folder,
}

impl Stack {
    fn new() -> Self {
        let data = Folder::new();
        let spool = Spool::open(&data.0).unwrap();
        spool.configure(16 << 30, OnFull::Reject, Durability::Process);
        let observer = Observer::silent();
        let tables = Tables::compile(&the_snapshot(101), None, None, &observer).unwrap();
        let mut core = Core::new(spool.recorder().unwrap(), 1, &Limits::default(), observer, Cache::new(64 << 20));
        core.pin(1, Arc::new(tables));
        let requests = (0..TURN).map(request).collect();
        Self {
            core,
            output: Output::default(),
            requests,
            pipeline: Pipeline::default(),
            asked: Vec::new(),
            answers: Vec::new(),
            _data: data,
        }
    }

    /// Head, key, plan and parameters. There is no database: the call comes back.
    fn admit(&mut self, n: u64) -> Box<Call> {
        let request = &self.requests[(n % TURN) as usize];
        let number = self.output.ask();
        let (core, output) = (&mut self.core, &mut self.output);
        let admitted = head::parse(request, 16 << 10, 100, |head| {
            core.admit(&head, Body::Whole(&[]), PEER, Ticket { connection: 0, generation: 0, number }, output)
        });
        match admitted {
            Ok(Some(Admitted::Exclusive(call))) => call,
            other => panic!("{other:?}"),
        }
    }

    /// The end of a turn, less the socket.
    fn turn_over(&mut self) {
        self.core.desk.recorder.commit().unwrap();
        let position = self.output.commit();
        self.output.release(position);
        let length = self.output.pending().len();
        self.output.took(length);
    }

    /// A turn of calls, all of them waiting together: as one statement, or each its own.
    fn turn(&mut self, batch: bool) {
        let calls: Vec<_> = (0..TURN).map(|n| self.admit(n)).collect();
        if batch {
            self.pipeline.ask_batch(calls.into_iter());
        } else {
            calls.into_iter().for_each(|call| self.pipeline.ask(call));
        }
        self.pipeline.sync();
        let out = self.pipeline.out().split();
        if self.asked != out {
            self.answers = heard(&out);
            self.asked = out.to_vec();
        }
        let Self { core, output, pipeline, answers, .. } = self;
        let cost = Cost { queue_us: 20, database_us: 150, batch: if batch { TURN as u16 } else { 1 }, ..Cost::default() };
        let mut tell = |call: Box<Call>, answer: Answer<'_>| match answer {
            Answer::Rows(rows) => core.desk.rows(call, lane_rows(rows), cost, Some(&mut *output)),
            other => panic!("{other:?}"),
        };
        pipeline.feed(answers, &mut tell).unwrap();
        pipeline.ended().for_each(drop);
        self.turn_over();
    }
}

/// What a server says to this.
fn heard(mut asked: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut say = |tag: u8, body: &[u8]| {
        out.push(tag);
        out.extend((body.len() as u32 + 4).to_be_bytes());
        out.extend(body);
    };
    let (mut bound, mut n) = ("", 0);
    while let Some(frame) = wire::frame(asked, 1 << 30).unwrap() {
        asked = &asked[frame.size()..];
        // A statement's name says its variant by its last letter; no name: one of ours.
        let batch = |name: &[u8]| name[16] == b'b';
        match frame.tag {
            b'P' => say(b'1', &[]),
            b'D' => {
                let batch = batch(&frame.body[1..]);
                let oid = if batch { INT8_ARRAY } else { INT8 };
                say(b't', &[&1u16.to_be_bytes()[..], &oid.to_be_bytes()].concat());
                let names: &[(&str, u32)] = &[("ord", INT8), ("path", 25), ("id", INT8), ("name", 25), ("tier", 25)];
                let names = &names[usize::from(!batch)..];
                let mut columns = (names.len() as u16).to_be_bytes().to_vec();
                for (name, oid) in names {
                    columns.extend(name.as_bytes());
                    columns.extend([&[0; 7][..], &oid.to_be_bytes(), &[0; 8]].concat());
                }
                say(b'T', &columns);
            }
            b'B' => {
                bound = match frame.body[1] {
                    0 => "own",
                    _ if batch(&frame.body[1..]) => "batch",
                    _ => "single",
                };
                say(b'2', &[]);
            }
            b'E' => {
                let rows = match bound {
                    "batch" => (0..TURN).map(|n| row(Some(n + 1), n)).collect(),
                    "single" => {
                        n += 1;
                        vec![row(None, n - 1)]
                    }
                    _ => vec![],
                };
                for (columns, row) in rows {
                    say(b'D', &[&columns.to_be_bytes()[..], &row].concat());
                }
                say(b'C', b"SELECT\0");
            }
            b'S' => say(b'Z', b"I"),
            _ => {}
        }
    }
    out
}

fn stored(sequence: u64) -> Row<'static> {
    let record = Record {
        kind: Kind::Run,
        client: 0,
        served_by: 0,
        status: 200,
        batch: 64,
        sequence,
        time_us: 1_700_000_000_000_000 + sequence * 12,
        duration_us: 300 + sequence % 50,
        database_us: 150 + sequence % 7,
        queue_us: 10,
        query: 1,
        key: 2,
        code: 0,
        rows: 1,
        bytes: 100,
        trace: None,
        params: None,
    };
    Row { record, query: [1, 2, 3], key: 4 + (sequence % 100) as i64, code: 0 }
}

/// Callgrind counts between its beginning and its end: it must stay a function.
#[inline(never)]
fn counted(times: u64, each: &mut impl FnMut(u64)) {
    for n in 0..times {
        each(n);
    }
}

/// Warms up, then has itself counted.
fn repeat(times: u64, mut each: impl FnMut(u64)) {
    for n in 0..times.min(64) {
        each(n);
    }
    counted(times, &mut each);
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let mut arguments = std::env::args().skip(1);
    let (stage, count) = (arguments.next().unwrap_or_default(), arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1024));
    let turns = count / TURN;
    match stage.as_str() {
        "head" => {
            let request = request(1);
            repeat(count, |_| {
                let read = head::parse(black_box(&request), 16 << 10, 100, |head| black_box(&head).length);
                assert_eq!(read, Ok(Some(request.len())));
            });
        }
        "key" => {
            let keys = Keys::compile(&the_snapshot(10_000).keys, 1, None).unwrap();
            let texts: Vec<_> = (0..TURN).map(|n| text_of(n as usize)).collect();
            repeat(count, |n| assert!(keys.admit(black_box(texts[(n % TURN) as usize].as_bytes()), 1, PEER).is_some()));
        }
        // With head and key.
        "admit" => {
            let mut stack = Stack::new();
            repeat(count, |n| {
                let call = stack.admit(n);
                stack.core.desk.recycle(call);
            });
        }
        "encode" => {
            let stack = Stack::new();
            let tables = stack.core.plan.as_ref().unwrap().tables.clone();
            let writer = &tables.sight(0).unwrap().writer;
            let (_, row) = row(None, 1);
            let mut out = Vec::new();
            repeat(count, |_| {
                out.clear();
                writer.row(Format::Json, &mut black_box(&row[..]), &mut out).unwrap();
                black_box(&out);
            });
        }
        // Admit, encode, record and the answer's head.
        "answer" => {
            let mut stack = Stack::new();
            let (_, row) = row(None, 1);
            repeat(turns, |_| {
                for n in 0..TURN {
                    let call = stack.admit(n);
                    stack.core.desk.rows(call, FlatRows { bytes: &row, count: 1 }, Cost::default(), Some(&mut stack.output));
                }
                stack.turn_over();
            });
        }
        "record" => {
            let data = Folder::new();
            let spool = Spool::open(&data.0).unwrap();
            spool.configure(16 << 30, OnFull::Reject, Durability::Process);
            let (mut recorder, names) = (spool.recorder().unwrap(), Names::of(&the_snapshot(100)));
            repeat(turns, |turn| {
                for n in 0..TURN {
                    let n = turn * TURN + n;
                    recorder.append(&Run {
                        names: &names,
                        query: Some(0),
                        key: Some((n % 100) as u32),
                        time_us: 1_700_000_000_000_000 + n * 12,
                        duration_us: 300 + n % 50,
                        queue_us: 10,
                        database_us: 150,
                        status: 200,
                        code: None,
                        rows: 1,
                        bytes: 100,
                        batch: 64,
                        trace: None,
                        client: Client::Loopback,
                        params: None,
                    });
                }
                recorder.commit().unwrap();
            });
        }
        // Whole calls, from the request's bytes to the answer's, without sockets.
        "batch" | "single" => {
            let mut stack = Stack::new();
            repeat(turns, |_| stack.turn(stage == "batch"));
        }
        "store" => {
            let data = Folder::new();
            let mut store = Embedded::new(&data.0.join("runs.sqlite"));
            let mut from = 0;
            repeat(count / 4096, |_| {
                store.begin().unwrap();
                let mut rows = (1..=4096).map(|n| stored(from + n));
                store.runs(7, &mut rows).unwrap();
                store.commit().unwrap();
                from += 4096;
            });
        }
        other => panic!("no stage {other}"),
    }
}
