//! A server that says what it should not: real exchanges (the fuzz corpus), cut and changed at random. Whatever it says, the call
//! gets exactly one end, in time, and no panic. The fuzz target `postgres_session` looks for more of the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#[path = "postgres_server/lane.rs"]
mod lane;

use lane::{Place, ask, within, write};
use proptest::prelude::*;
use std::time::Duration;
use tailrace_dataplane::engine::postgres::Limits;
use tailrace_dataplane::engine::{Event, Failure};
use tailrace_dataplane::plan::snapshot::Pooler;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

fn seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/postgres_session");
    let names = ["error", "fatal", "login-error", "md5", "pooled", "read", "scram", "stale", "write"];
    names.iter().map(|name| std::fs::read(format!("{folder}/{name}")).unwrap()).collect()
}

/// The events of one call against a server that says `said` at once and then only listens.
fn converse(input: &[u8], time: Duration) -> (u32, Event) {
    let (mode, said) = (input[0], input[1..].to_vec());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().display().to_string().replace('/', "%2F");
    let mut place = Place::new(&format!("postgres://u:p@{host}/d"), 1);
    place.plan.pooler = if mode & 1 == 0 { Pooler::None } else { Pooler::Transaction };
    let call = if mode & 2 == 0 { ask("SELECT", &["a"]) } else { write("INSERT", &["a"]) };
    runtime.block_on(async {
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        tokio::spawn(async move {
            while let Ok((mut server, _)) = listener.accept().await {
                let said = said.clone();
                tokio::spawn(async move {
                    _ = server.write_all(&said).await;
                    _ = server.shutdown().await;
                    let mut heard = [0; 1024];
                    while server.read(&mut heard).await.is_ok_and(|n| n > 0) {}
                });
            }
        });
        let pool = place.pool_with(Limits { pause: Duration::from_secs(60), ..Limits::default() });
        let mut events = pool.submit(within(call, time));
        let (mut rows, mut end) = (0, None);
        while let Some(event) = events.recv().await {
            assert!(end.is_none(), "nothing comes after the end");
            match event {
                Event::Rows { count, .. } => rows += count,
                Event::Failed { failure, .. } => end = Some(Event::never(failure)),
                last => end = Some(last),
            }
        }
        (rows, end.expect("an end"))
    })
}

#[test]
fn the_seeds_are_real_exchanges() {
    let ends: Vec<(u32, String)> =
        seeds().iter().map(|seed| converse(seed, Duration::from_secs(20))).map(|(rows, end)| (rows, format!("{end:?}"))).collect();
    let failed = |failure: Failure| (0, format!("{:?}", Event::never(failure)));
    assert_eq!(ends[0], failed(Failure::Refused(*b"22012")));
    assert_eq!(ends[1], failed(Failure::Unavailable));
    assert_eq!(ends[2], failed(Failure::Unavailable));
    for (n, rows) in [(4, 1), (5, 2), (8, 1)] {
        assert!(ends[n].0 == rows && ends[n].1.starts_with("Done"), "{:?}", ends[n]);
    }
    assert_eq!(ends[7], failed(Failure::Stale));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn one_end_whatever_it_says(
        seed in 0usize..9,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        tail in proptest::collection::vec(any::<u8>(), 0..30),
    ) {
        let mut input = seeds().swap_remove(seed);
        for (at, byte) in edits {
            let at = at.index(input.len());
            input[at] = byte;
        }
        if let Some(cut) = cut {
            input.truncate(1 + cut.index(input.len()));
        }
        input.extend(tail);
        converse(&input, Duration::from_millis(40));
    }
}
