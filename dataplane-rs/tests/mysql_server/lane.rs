//! The exclusive lane to MySQL as a caller sees it.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailrace_dataplane::engine::mysql::Pool;
use tailrace_dataplane::engine::mysql::connect;
use tailrace_dataplane::engine::mysql::target::Target;
use tailrace_dataplane::engine::mysql::wire::{self, Definition};
use tailrace_dataplane::engine::pool::{Budget, Limits};
use tailrace_dataplane::engine::postgres::Source;
use tailrace_dataplane::engine::{Ask, Event, Failure, Idempotency, Write};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{ColumnPlan, ConnectionPlan, Encoding, Engine, Pooler, StatementPlan};
use tokio::sync::mpsc::Receiver;

pub struct Place {
    pub folder: tempfile::TempDir,
    pub plan: ConnectionPlan,
}

impl Place {
    pub fn new(url: &str, max_connections: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("url");
        std::fs::write(&path, format!("{url}\n")).unwrap();
        let plan = ConnectionPlan {
            name: "main".into(),
            engine: Engine::Mysql,
            url_file: path.to_str().unwrap().to_owned(),
            ca_file: None,
            certificate_file: None,
            key_file: None,
            max_connections,
            statement_timeout_ms: 30_000,
            session: vec![],
            pooler: Pooler::None,
            idempotency_table: None,
        };
        Self { folder, plan }
    }

    pub fn pool(&self) -> Pool {
        let budget = Budget::new(self.plan.max_connections);
        Pool::new(Arc::new(Source::new(&self.plan)), budget, Observer::silent().reach("d"), Limits::default())
    }

    pub fn target(&self) -> Target {
        Target::read(&Source::new(&self.plan)).unwrap()
    }

    pub async fn connect(&self) -> Result<connect::Connection, tailrace_dataplane::engine::mysql::ConnectError> {
        connect::connect(&self.target(), tokio::time::Instant::now() + Duration::from_secs(20)).await
    }

    /// A read as the compiler would plan it: its columns are those of a Prepare.
    pub async fn ask(&self, sql: &str) -> Ask {
        self.ask_with(sql, &[], &[]).await
    }

    pub async fn ask_with(&self, sql: &str, places: &[u32], values: &[Option<&str>]) -> Ask {
        let columns = describe(self, sql).await;
        let mut bound = Vec::new();
        for value in values {
            match value {
                None => bound.extend((-1i32).to_be_bytes()),
                Some(text) => {
                    bound.extend((text.len() as i32).to_be_bytes());
                    bound.extend(text.bytes());
                }
            }
        }
        Ask {
            query: 0,
            version: "0123456789abcdef".into(),
            statement: Arc::new(StatementPlan { sql: sql.into(), params: (0..places.len() as u32).collect(), oids: places.to_vec() }),
            columns: columns.into(),
            values: bound,
            limit: None,
            deadline: Instant::now() + Duration::from_secs(20),
            write: None,
            trace: None,
        }
    }
}

/// What a Prepare says of a statement.
pub async fn describe(place: &Place, sql: &str) -> Vec<ColumnPlan> {
    use bytes::{Buf, BytesMut};
    let mut connection = place.connect().await.unwrap();
    let mut out = BytesMut::new();
    assert!(wire::command(&mut out, wire::COM_STMT_PREPARE, sql.as_bytes()));
    connection.transport.write_all(&mut out).await.unwrap();
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    loop {
        while let Some(packet) = wire::packet(&connection.input, 1 << 20).unwrap() {
            bodies.push(packet.body.to_vec());
            let size = packet.size;
            connection.input.advance(size);
        }
        if bodies.first().is_some_and(|first| first[0] == 0xFF) {
            return Vec::new(); // the call itself will tell
        }
        if let Some(first) = bodies.first() {
            let prepared = wire::prepare_ok(first).unwrap();
            let packets = |count: u16| if count == 0 { 0 } else { usize::from(count) + 1 };
            if bodies.len() == 1 + packets(prepared.places) + packets(prepared.columns) {
                let from = 1 + packets(prepared.places);
                return bodies[from..].iter().take(prepared.columns.into()).map(|body| plan(&Definition::read(body).unwrap())).collect();
            }
        }
        connection.transport.read_some(&mut connection.input, 8192).await.unwrap();
    }
}

fn plan(definition: &Definition<'_>) -> ColumnPlan {
    ColumnPlan {
        name: String::from_utf8(definition.name.to_vec()).unwrap(),
        encoding: tailrace_dataplane::engine::mysql::value::Kind::of(definition).encoding(),
        array: false,
        delimiter: ",".into(),
        type_oid: definition.type_oid(),
        table_oid: definition.table_oid(),
        column_number: 0,
    }
}

pub fn column(name: &str, encoding: Encoding, type_oid: u32) -> ColumnPlan {
    ColumnPlan { name: name.into(), encoding, array: false, delimiter: ",".into(), type_oid, table_oid: 0, column_number: 0 }
}

pub fn within(mut ask: Ask, time: Duration) -> Ask {
    ask.deadline = Instant::now() + time;
    ask
}

pub fn write(mut ask: Ask) -> Ask {
    ask.write = Some(Write { idempotency: None });
    ask
}

pub fn keyed(mut ask: Ask, table: &str, key: &str, arguments: &str) -> Ask {
    let idempotency =
        Idempotency { table: table.into(), caller: "ns/caller".into(), key: key.into(), query: "q".into(), arguments: arguments.into() };
    ask.write = Some(Write { idempotency: Some(idempotency) });
    ask
}

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub rows: Vec<Vec<Option<String>>>,
    pub affected: u64,
    pub more: bool,
    pub repeated: bool,
}

impl Answer {
    pub fn one(&self) -> &str {
        self.rows[0][0].as_deref().unwrap()
    }

    pub fn row(&self) -> Vec<&str> {
        self.rows[0].iter().map(|value| value.as_deref().unwrap_or("NULL")).collect()
    }
}

pub async fn collect(mut receiver: Receiver<Event>, columns: usize) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    loop {
        match receiver.recv().await.unwrap() {
            Event::Rows { count, bytes } => {
                let mut rest = &bytes[..];
                for _ in 0..count {
                    let mut row = Vec::new();
                    for _ in 0..columns {
                        let length = i32::from_be_bytes(rest[..4].try_into().unwrap());
                        rest = &rest[4..];
                        row.push((length >= 0).then(|| {
                            let (value, after) = rest.split_at(length as usize);
                            rest = after;
                            String::from_utf8(value.to_vec()).unwrap()
                        }));
                    }
                    rows.push(row);
                }
                assert!(rest.is_empty());
            }
            Event::Done { affected, more, repeated, .. } => {
                assert!(receiver.recv().await.is_none());
                return Ok(Answer { rows, affected, more, repeated });
            }
            Event::Failed { failure, .. } => return Err(failure),
        }
    }
}

pub async fn call(pool: &Pool, ask: Ask) -> Result<Answer, Failure> {
    let columns = ask.columns.len();
    collect(pool.submit(ask), columns).await
}

/// Polls until it holds, at most 20 s.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

pub trait Again {
    /// The same question.
    fn again(&self) -> Self;
}

impl Again for Ask {
    fn again(&self) -> Self {
        Self {
            query: self.query,
            version: self.version.clone(),
            statement: self.statement.clone(),
            columns: self.columns.clone(),
            values: self.values.clone(),
            limit: self.limit,
            deadline: self.deadline,
            write: None,
            trace: None,
        }
    }
}
