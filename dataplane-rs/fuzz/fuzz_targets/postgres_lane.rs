//! A shared lane with batches, singles and a shadowed batch in flight, told arbitrary bytes in arbitrary pieces: no panic, and each caller is
//! told exactly once.
#![no_main]
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use tailrace_dataplane::engine::postgres::lane::Pipeline;
use tailrace_dataplane::engine::shared::{Answer, Broken, Question};
use tailrace_dataplane::plan::coalescing::{Coalesced, Verdict};
use tailrace_dataplane::plan::snapshot::{ColumnPlan, Encoding, StatementPlan};
use tailrace_dataplane::plan::tables::Variant;

struct Texts {
    single: StatementPlan,
    columns: Vec<ColumnPlan>,
    coalesced: Coalesced,
}

struct Ask(usize, u32, Arc<Texts>, Vec<u8>);

impl Question for Ask {
    fn identity(&self) -> (u32, u64) {
        (self.1, 1)
    }
    fn variant(&self) -> Variant {
        Variant::Plain
    }
    fn statement(&self) -> &StatementPlan {
        &self.2.single
    }
    fn columns(&self) -> &[ColumnPlan] {
        &self.2.columns
    }
    fn values(&self) -> &[u8] {
        &self.3
    }
    fn limit(&self) -> u32 {
        2
    }
    fn coalesced(&self) -> Option<&Coalesced> {
        Some(&self.2.coalesced)
    }
    fn shares(&mut self, _: u16) {}
    fn query_name(&self) -> Arc<str> {
        "q".into()
    }
}

fn texts(shadow: u32) -> Arc<Texts> {
    let plan = |sql: &str, oid| StatementPlan { sql: sql.into(), params: vec![0], oids: vec![oid] };
    let column = ColumnPlan {
        name: "id".into(),
        encoding: Encoding::Raw,
        array: false,
        delimiter: ",".into(),
        type_oid: 20,
        table_oid: 0,
        column_number: 0,
    };
    let coalesced = Coalesced { statement: Arc::new(plan("b", 1016)), most: 256, in_flight: 2, verdict: Arc::new(Verdict::new(shadow)) };
    Arc::new(Texts { single: plan("s", 20), columns: vec![column], coalesced })
}

// Input: the size of the pieces, which calls there are, then what the server says.
fuzz_target!(|bytes: &[u8]| {
    let &[piece, what, ref said @ ..] = bytes else { return };
    let mut pipeline = Pipeline::default();
    let mut asked = 0;
    let mut ask = |slot, texts: &Arc<Texts>, id: &[u8]| {
        asked += 1;
        Ask(asked - 1, slot, texts.clone(), [&(id.len() as i32).to_be_bytes()[..], id].concat())
    };
    let (plain, shadowed) = (texts(0), texts(1));
    if what & 1 == 1 {
        pipeline.ask(ask(0, &plain, b"1"));
    }
    if what & 2 == 2 {
        let calls = [ask(0, &plain, b"1"), ask(0, &plain, b"2"), ask(0, &plain, b"1"), ask(0, &plain, b"no number")];
        pipeline.ask_batch(calls.into_iter());
    }
    if what & 4 == 4 {
        pipeline.ask_apart(ask(1, &plain, b"3"));
    }
    if what & 8 == 8 {
        let calls = [ask(2, &shadowed, b"1"), ask(2, &shadowed, b"2"), ask(2, &shadowed, b"3")];
        pipeline.ask_batch(calls.into_iter());
    }
    pipeline.sync();
    let mut told = vec![0; asked];
    let mut tell = |call: Ask, answer: Answer<'_>| {
        told[call.0] += 1;
        if let Answer::Rows(rows) = answer {
            assert!(rows.iter().count() as u64 == rows.count());
        }
    };
    let broken = said.chunks(usize::from(piece).max(1)).find_map(|piece| pipeline.feed(piece, &mut tell).err());
    pipeline.abandon(broken.unwrap_or(Broken::Closing), &mut tell);
    assert!(pipeline.idle());
    assert!(told.iter().all(|&told| told == 1), "{told:?}");
});
