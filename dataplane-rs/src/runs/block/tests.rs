#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
use super::super::layout::{Kind, Record};
use super::*;
use crate::golden;
use proptest::prelude::*;

type Given = ([u64; 3], [u64; 5], [i64; 3], i64, i64, [u8; 2], u16, Option<[u8; 16]>);

fn row(sequence: u64, given: &Given) -> Row<'static> {
    let ([time_us, duration_us, database_us], [queue, status, rows, bytes, _], query, key, code, [client, served_by], batch, trace) =
        *given;
    let record = Record {
        kind: Kind::Run,
        client,
        served_by,
        status: status as u16,
        batch,
        sequence,
        time_us,
        duration_us,
        database_us,
        queue_us: queue as u32,
        query: 1,
        key: 1,
        code: 1,
        rows,
        bytes,
        trace,
        params: None,
    };
    Row { record, query, key, code }
}

fn numbers(row: &Row<'_>) -> Vec<i64> {
    let r = &row.record;
    vec![
        r.sequence as i64,
        r.time_us as i64,
        r.duration_us as i64,
        r.queue_us.into(),
        r.database_us as i64,
        r.status.into(),
        row.code,
        r.rows as i64,
        r.bytes as i64,
        r.batch.into(),
        r.client.into(),
        r.served_by.into(),
    ]
}

fn packed(block: &mut Block) -> (Extent, [Vec<u8>; 3]) {
    let (extent, mut out) = (block.extent().unwrap(), [Vec::new(), Vec::new(), Vec::new()]);
    block.keys(&mut out[0]);
    block.queries(&mut out[1]);
    block.body(&mut out[2]);
    (extent, out)
}

fn given() -> impl Strategy<Value = Given> {
    let size = || prop_oneof![Just(0), 1..200u64, 0..70_000u64, any::<u32>().prop_map(u64::from), any::<u64>()];
    let time = prop_oneof![0..300u64, 0..STEP_MOST];
    (
        (time, size(), size()).prop_map(|(a, b, c)| [a, b, c]),
        [size(), size(), size(), size(), size()],
        [0..5i64, 0..3, 0..300],
        0..400i64,
        0..9i64,
        any::<[u8; 2]>(),
        any::<u16>(),
        prop_oneof![3 => Just(None), 1 => any::<[u8; 16]>().prop_map(Some)],
    )
}

proptest! {
    #[test]
    fn what_is_packed_comes_back(
        runs in prop::collection::vec((1..1000u64, given()), 1..200),
        again in prop::collection::vec((1..1_000_000_000u64, given()), 1..20),
    ) {
        let mut block = Block::default();
        // The same block serves again and again.
        for runs in [runs, again] {
            let mut sequence = 0;
            let rows: Vec<_> = runs.iter().map(|(step, given)| { sequence += step; row(sequence, given) }).collect();
            for row in &rows {
                prop_assert!(block.push(row));
            }
            let (extent, [keys, queries, body]) = packed(&mut block);
            prop_assert!(block.is_empty());
            prop_assert_eq!((extent.first, extent.last, extent.count), (rows[0].record.sequence as i64, sequence as i64, rows.len()));
            let times = rows.iter().map(|row| row.record.time_us as i64);
            prop_assert_eq!(extent.times, (times.clone().min().unwrap(), times.max().unwrap()));
            let back = decode(rows.len(), &keys, &queries, &body).unwrap();
            for (row, back) in rows.iter().zip(back) {
                let mut found = back.numbers.to_vec();
                found.drain(5..7);
                prop_assert_eq!(found, numbers(row));
                prop_assert_eq!((back.query.map(i64::from), i64::from(back.key), back.trace), (row.query, row.key, row.record.trace));
            }
        }
    }

    #[test]
    fn what_is_damaged_never_panics(count in 0..300usize, keys: Vec<u8>, queries: Vec<u8>, mut body: Vec<u8>, formed: bool) {
        if let (true, Some(first)) = (formed, body.first_mut()) {
            *first = FORM;
        }
        let _ = decode(count, &keys, &queries, &body);
    }

    #[test]
    fn what_is_cut_or_longer_is_refused(runs in prop::collection::vec(given(), 1..20), cut in any::<prop::sample::Index>()) {
        let mut block = Block::default();
        for (n, given) in runs.iter().enumerate() {
            block.push(&row(n as u64 + 1, given));
        }
        let (_, [keys, queries, mut body]) = packed(&mut block);
        prop_assert_eq!(decode(runs.len(), &keys, &queries, &body[..cut.index(body.len())]), Err(Unreadable));
        body.push(0);
        prop_assert_eq!(decode(runs.len(), &keys, &queries, &body), Err(Unreadable));
    }
}

#[test]
fn what_is_no_run_for_a_block_is_refused() {
    let plain: Given = ([5, 0, 0], [0; 5], [1, 2, 3], 4, 0, [0, 0], 1, None);
    let mut block = Block::default();
    assert!(block.push(&row(7, &plain)));
    assert!(!block.push(&row(7, &plain)));
    assert!(!block.push(&row(6, &plain)));
    assert!(!block.push(&row(STEP_MOST, &plain)));
    assert!(!block.push(&row(8, &([STEP_MOST, 0, 0], plain.1, plain.2, plain.3, plain.4, plain.5, plain.6, plain.7))));
    assert!(!block.push(&Row { key: NAMES_MOST as i64, ..row(8, &plain) }));
    assert!(!block.push(&Row { query: [1, -1, 1], ..row(8, &plain) }));
    let with_params = row(8, &plain);
    assert!(!block.push(&Row { record: Record { params: Some("{}"), ..with_params.record }, ..with_params }));
    assert!(block.push(&row(8, &plain)));
    assert_eq!(block.len(), 2);
}

/// Both languages read these; this one writes exactly them.
#[test]
fn blocks_as_the_vectors_say() {
    let vectors = golden::vectors("run_blocks.json");
    for vector in vectors.as_array().unwrap() {
        let mut block = Block::default();
        for run in vector["runs"].as_array().unwrap() {
            let n = |name: &str| run[name].as_i64().unwrap();
            let names = |name: &str| run[name].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect::<Vec<_>>();
            let trace = run["trace"].as_str().map(|text| golden::hex(text).try_into().unwrap());
            let record = Record {
                kind: Kind::Run,
                client: n("client") as u8,
                served_by: n("served_by") as u8,
                status: n("status") as u16,
                batch: n("batch") as u16,
                sequence: n("seq") as u64,
                time_us: n("time_us") as u64,
                duration_us: n("duration_us") as u64,
                database_us: n("database_us") as u64,
                queue_us: n("queue_us") as u32,
                query: 1,
                key: 1,
                code: 1,
                rows: n("rows") as u64,
                bytes: n("bytes") as u64,
                trace,
                params: None,
            };
            assert!(block.push(&Row { record, query: names("query").try_into().unwrap(), key: n("key"), code: n("code") }));
        }
        let (extent, blobs) = packed(&mut block);
        let hex = |blob: &[u8]| blob.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let got = serde_json::json!({
            "first": extent.first, "last": extent.last, "count": extent.count, "oldest_us": extent.times.0, "newest_us": extent.times.1,
            "lowest_status": extent.statuses.0, "highest_status": extent.statuses.1,
            "keys": hex(&blobs[0]), "queries": hex(&blobs[1]), "body": hex(&blobs[2]),
        });
        for (name, value) in got.as_object().unwrap() {
            assert_eq!(*value, vector[name.as_str()], "{name} of {}", vector["name"]);
        }
    }
}
