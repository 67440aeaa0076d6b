//! A server that says arbitrary bytes to the exclusive lane: whatever it says, the call gets exactly one end, and no panic.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailrace_dataplane::engine::postgres::{Budget, Limits, Pool, Source};
use tailrace_dataplane::engine::{Ask, Event, Write};
use tailrace_dataplane::observe::Observer;
use tailrace_dataplane::plan::snapshot::{ColumnPlan, ConnectionPlan, Encoding, Engine, Pooler, StatementPlan};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

struct Bench {
    runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
    listener: UnixListener,
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

fn bench() -> Bench {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let listener = runtime.block_on(async { UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap() });
    let host = folder.path().display().to_string().replace('/', "%2F");
    std::fs::write(folder.path().join("url"), format!("postgres://u:p@{host}/d")).unwrap();
    Bench { runtime, folder, listener }
}

fn plan(folder: &std::path::Path, pooler: Pooler) -> ConnectionPlan {
    ConnectionPlan {
        name: "fuzz".into(),
        engine: Engine::Postgres,
        url_file: folder.join("url").display().to_string(),
        ca_file: None,
        certificate_file: None,
        key_file: None,
        max_connections: 1,
        statement_timeout_ms: 30_000,
        session: vec![],
        pooler,
        idempotency_table: None,
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, said)) = input.split_first() else { return };
    BENCH.with_borrow_mut(|bench_slot| {
        let bench = bench_slot.get_or_insert_with(bench);
        let pooler = if mode & 1 == 0 { Pooler::None } else { Pooler::Transaction };
        let column = ColumnPlan {
            name: "a".into(),
            encoding: Encoding::String,
            array: false,
            delimiter: ",".into(),
            type_oid: 25,
            table_oid: 0,
            column_number: 0,
        };
        let ask = Ask {
            query: 0,
            version: "v".into(),
            statement: Arc::new(StatementPlan { sql: "SELECT".into(), params: vec![], oids: vec![] }),
            columns: [column].into(),
            values: vec![],
            limit: None,
            deadline: Instant::now() + Duration::from_millis(20),
            write: (mode & 2 != 0).then_some(Write { idempotency: None }),
            trace: None,
        };
        bench.runtime.block_on(async {
            let source = Arc::new(Source::new(&plan(bench.folder.path(), pooler)));
            let pool = Pool::new(
                source,
                Budget::new(1),
                Observer::silent().reach("d"),
                Limits { pause: Duration::from_secs(10), ..Limits::default() },
            );
            let mut events = pool.submit(ask);
            let mut ends = 0;
            loop {
                tokio::select! {
                    biased;
                    event = events.recv() => match event {
                        None => break,
                        Some(Event::Rows { .. }) => assert_eq!(ends, 0),
                        Some(_) => ends += 1,
                    },
                    Ok((mut server, _)) = bench.listener.accept() => {
                        let _ = server.write_all(said).await;
                        let _ = server.shutdown().await;
                        // Kept open for what the client still sends.
                        tokio::spawn(async move { let _ = tokio::time::timeout(Duration::from_millis(20), server.readable()).await; });
                    }
                }
            }
            assert_eq!(ends, 1);
        });
    });
});
