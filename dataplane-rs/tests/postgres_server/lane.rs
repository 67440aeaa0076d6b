//! The exclusive lane as a caller sees it.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailrace_dataplane::engine::postgres::{Budget, Limits, Pool, Source};
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
            engine: Engine::Postgres,
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

    /// Replaces the URL as the kubelet and the gateway do: by rename.
    pub fn rotate(&self, url: &str) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, url).unwrap();
        std::fs::rename(next, &self.plan.url_file).unwrap();
    }

    pub fn pool(&self) -> Pool {
        self.pool_with(Limits::default())
    }

    pub fn pool_with(&self, limits: Limits) -> Pool {
        Pool::new(Arc::new(Source::new(&self.plan)), Budget::new(self.plan.max_connections), Observer::silent().reach("d"), limits)
    }
}

pub fn column(name: &str, type_oid: u32) -> ColumnPlan {
    ColumnPlan {
        name: name.into(),
        encoding: Encoding::String,
        array: false,
        delimiter: ",".into(),
        type_oid,
        table_oid: 0,
        column_number: 0,
    }
}

/// A read of text columns named in `columns`.
pub fn ask(sql: &str, columns: &[&str]) -> Ask {
    let columns: Vec<ColumnPlan> = columns.iter().map(|name| column(name, 25)).collect();
    Ask {
        query: 0,
        version: "0123456789abcdef".into(),
        statement: Arc::new(StatementPlan { sql: sql.into(), params: vec![], oids: vec![] }),
        columns: columns.into(),
        values: vec![],
        limit: None,
        deadline: Instant::now() + Duration::from_secs(20),
        write: None,
        trace: None,
    }
}

pub fn bind(mut ask: Ask, oids: &[u32], values: &[&str]) -> Ask {
    let sql = ask.statement.sql.clone();
    ask.statement = Arc::new(StatementPlan { sql, params: (0..oids.len() as u32).collect(), oids: oids.to_vec() });
    ask.values = values.iter().flat_map(|v| (v.len() as i32).to_be_bytes().into_iter().chain(v.bytes())).collect();
    ask
}

pub fn within(mut ask: Ask, time: Duration) -> Ask {
    ask.deadline = Instant::now() + time;
    ask
}

pub fn write(sql: &str, columns: &[&str]) -> Ask {
    Ask { write: Some(Write { idempotency: None }), ..ask(sql, columns) }
}

pub fn keyed(sql: &str, columns: &[&str], table: &str, key: &str, arguments: &str) -> Ask {
    let idempotency =
        Idempotency { table: table.into(), caller: "ns/caller".into(), key: key.into(), query: "q".into(), arguments: arguments.into() };
    Ask { write: Some(Write { idempotency: Some(idempotency) }), ..ask(sql, columns) }
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
}

pub async fn collect(mut receiver: Receiver<Event>, columns: usize) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    loop {
        match receiver.recv().await.expect("a last event") {
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

/// Polls until it holds, at most 10 s.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}
