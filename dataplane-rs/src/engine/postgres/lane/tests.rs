//! A server that speaks what the lane hears, and callers who know what they must be told.
use super::*;
use crate::plan::coalescing::{Coalesced, Verdict};
use crate::plan::snapshot::{ColumnPlan, Encoding, StatementPlan};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

const POISON: i64 = 13;
const SLOW: i64 = 99;

#[derive(Debug)]
struct Texts {
    single: StatementPlan,
    columns: Vec<ColumnPlan>,
    coalesced: Option<Coalesced>,
}

/// One caller: asks for `id`, of which there are `id % 4` rows.
#[derive(Debug)]
struct Ask {
    who: usize,
    id: i64,
    slot: u32,
    texts: Arc<Texts>,
    values: Vec<u8>,
    shares: u16,
}

impl Question for Ask {
    fn identity(&self) -> (u32, u64) {
        (self.slot, 0xabc)
    }
    fn variant(&self) -> Variant {
        Variant::Plain
    }
    fn statement(&self) -> &StatementPlan {
        &self.texts.single
    }
    fn columns(&self) -> &[ColumnPlan] {
        &self.texts.columns
    }
    fn values(&self) -> &[u8] {
        &self.values
    }
    fn limit(&self) -> u32 {
        3
    }
    fn coalesced(&self) -> Option<&Coalesced> {
        self.texts.coalesced.as_ref()
    }
    fn shares(&mut self, callers: u16) {
        self.shares = callers;
    }
    fn query_name(&self) -> Arc<str> {
        "q".into()
    }
}

fn texts(shadow: Option<u32>, array: u32) -> Arc<Texts> {
    let column = |name: &str| ColumnPlan {
        name: name.into(),
        encoding: Encoding::Raw,
        array: false,
        delimiter: ",".into(),
        type_oid: 20,
        table_oid: 0,
        column_number: 0,
    };
    let plan = |sql: &str, oid| StatementPlan { sql: sql.into(), params: vec![0], oids: vec![oid] };
    let coalesced = shadow.map(|shadow| Coalesced {
        statement: Arc::new(plan("batch", array)),
        most: 256,
        in_flight: 2,
        verdict: Arc::new(Verdict::new(shadow)),
    });
    Arc::new(Texts { single: plan("single", 20), columns: vec![column("id"), column("n")], coalesced })
}

fn ask(who: usize, id: i64, slot: u32, texts: &Arc<Texts>) -> Ask {
    let text = id.to_string();
    let values = [&(text.len() as i32).to_be_bytes()[..], text.as_bytes()].concat();
    Ask { who, id, slot, texts: texts.clone(), values, shares: 0 }
}

/// What a caller must see: the text of each row.
fn rows_of(id: i64) -> Vec<Vec<u8>> {
    (0..id % 4).map(|n| [field(&id.to_string()), field(&n.to_string())].concat()).take(3).collect()
}

fn field(text: &str) -> Vec<u8> {
    [&(text.len() as i32).to_be_bytes()[..], text.as_bytes()].concat()
}

#[derive(Default)]
struct Server {
    prepared: HashMap<Vec<u8>, (String, Vec<u32>)>,
    portal: Option<(String, Vec<u8>)>,
    failed: bool,
    /// In a transaction that BEGIN opened.
    begun: bool,
    /// Batches say something else than singles.
    lies: bool,
    /// Batches and nothing else are refused.
    refuses: bool,
    /// Knows no plan_cache_mode.
    old: bool,
    generic: bool,
    patient: bool,
    /// Rotates the rows of a batch.
    turn: usize,
    batches: usize,
    generic_batches: usize,
    out: Vec<u8>,
}

fn cstring<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let end = rest.iter().position(|&b| b == 0).unwrap();
    let (text, tail) = rest.split_at(end);
    *rest = &tail[1..];
    text
}

fn word(rest: &mut &[u8]) -> u32 {
    let (head, tail) = rest.split_first_chunk::<4>().unwrap();
    *rest = tail;
    u32::from_be_bytes(*head)
}

fn half(rest: &mut &[u8]) -> u16 {
    let (head, tail) = rest.split_first_chunk::<2>().unwrap();
    *rest = tail;
    u16::from_be_bytes(*head)
}

/// The ids of an array of int8, in either form.
fn array(binary: bool, bytes: &[u8]) -> Vec<i64> {
    if !binary {
        let text = std::str::from_utf8(bytes).unwrap().trim_matches(['{', '}']);
        return text.split(',').map(|element| element.trim_matches('"').parse().unwrap()).collect();
    }
    let mut rest = bytes;
    let (one, nulls, element, count, lower) = (word(&mut rest), word(&mut rest), word(&mut rest), word(&mut rest), word(&mut rest));
    assert_eq!((one, nulls, element, lower), (1, 0, 20, 1));
    (0..count)
        .map(|_| {
            assert_eq!(word(&mut rest), 8);
            let (head, tail) = rest.split_first_chunk::<8>().unwrap();
            rest = tail;
            i64::from_be_bytes(*head)
        })
        .collect()
}

impl Server {
    fn say(&mut self, tag: u8, body: &[u8]) {
        self.out.push(tag);
        self.out.extend((body.len() as u32 + 4).to_be_bytes());
        self.out.extend(body);
    }

    fn error(&mut self, code: &str) {
        self.failed = true;
        self.say(b'E', format!("SERROR\0VERROR\0C{code}\0Mno\0\0").as_bytes());
    }

    fn hear(&mut self, mut data: &[u8]) {
        while let Some(frame) = wire::frame(data, 1 << 30).unwrap() {
            data = &data[frame.size()..];
            if frame.tag == b'S' {
                let status = if !self.begun {
                    b'I'
                } else if self.failed {
                    b'E'
                } else {
                    b'T'
                };
                self.failed = false;
                self.say(b'Z', &[status]);
            } else if !self.failed {
                self.message(frame.tag, frame.body);
            }
        }
    }

    fn message(&mut self, tag: u8, mut body: &[u8]) {
        match tag {
            b'P' => {
                let name = cstring(&mut body).to_vec();
                let sql = String::from_utf8(cstring(&mut body).to_vec()).unwrap();
                let oids = (0..half(&mut body)).map(|_| word(&mut body)).collect();
                if !name.is_empty() && self.prepared.contains_key(&name) {
                    return self.error("42P05");
                }
                self.prepared.insert(name, (sql, oids));
                self.say(b'1', &[]);
            }
            b'C' => {
                self.prepared.remove(cstring(&mut &body[1..]));
                self.say(b'3', &[]);
            }
            b'D' => {
                let Some((sql, oids)) = self.prepared.get(cstring(&mut &body[1..])).cloned() else { return self.error("26000") };
                let mut places = (oids.len() as u16).to_be_bytes().to_vec();
                oids.iter().for_each(|oid| places.extend(oid.to_be_bytes()));
                self.say(b't', &places);
                let names: &[&str] = if sql == "batch" { &["ord", "id", "n"] } else { &["id", "n"] };
                let mut columns = (names.len() as u16).to_be_bytes().to_vec();
                for name in names {
                    columns.extend(name.as_bytes());
                    columns.extend([&[0; 7][..], &20_u32.to_be_bytes(), &[0; 8]].concat());
                }
                self.say(b'T', &columns);
            }
            b'B' => {
                cstring(&mut body);
                let Some((sql, _)) = self.prepared.get(cstring(&mut body)).cloned() else { return self.error("26000") };
                let binary = (0..half(&mut body)).map(|_| half(&mut body)).next() == Some(1);
                let mut value = Vec::new();
                if half(&mut body) == 1 {
                    let length = word(&mut body) as usize;
                    value = body[..length].to_vec();
                }
                let ids = match sql.as_str() {
                    "batch" => array(binary, &value),
                    "single" => vec![std::str::from_utf8(&value).unwrap().parse().unwrap()],
                    _ => vec![],
                };
                self.portal = Some((sql, ids.iter().flat_map(|id| id.to_be_bytes()).collect()));
                self.say(b'2', &[]);
            }
            b'E' => self.execute(),
            _ => panic!("{tag}"),
        }
    }

    fn execute(&mut self) {
        let (sql, ids) = self.portal.take().unwrap();
        let ids: Vec<i64> = ids.chunks(8).map(|id| i64::from_be_bytes(id.try_into().unwrap())).collect();
        match sql.as_str() {
            "batch" | "single" => {}
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" => self.begun = true,
            "COMMIT" | "ROLLBACK" => self.begun = false,
            _ if self.old => return self.error("42704"),
            "SET plan_cache_mode = force_generic_plan" => self.generic = true,
            "RESET plan_cache_mode" => self.generic = false,
            "SET statement_timeout = 700" => self.patient = true,
            "RESET statement_timeout" => self.patient = false,
            sql => panic!("{sql}"),
        }
        let batch = sql == "batch";
        self.batches += usize::from(batch);
        self.generic_batches += usize::from(batch && self.generic && self.patient);
        if batch && self.refuses {
            return self.error("42501");
        }
        if ids.contains(&SLOW) {
            return self.error("57014");
        }
        if ids.contains(&POISON) {
            return self.error("22012");
        }
        let mut rows = Vec::new();
        for (n, id) in ids.iter().enumerate() {
            for row in rows_of(if batch && self.lies && *id == 5 { 9 } else { *id }) {
                let ord = if batch { field(&(n + 1).to_string()) } else { vec![] };
                rows.push([&[0, if batch { 3 } else { 2 }][..], &ord, &row].concat());
            }
        }
        if batch && !rows.is_empty() {
            // Rows of one caller stay in order, callers don't: whole callers are moved.
            let at = self.turn % rows.len();
            let ord = |row: &Vec<u8>| row[2..].to_vec()[..4 + row[5] as usize].to_vec();
            let at = (0..=at).rev().find(|&at| at == 0 || ord(&rows[at]) != ord(&rows[at - 1])).unwrap();
            rows.rotate_left(at);
        }
        for row in rows {
            self.say(b'D', &row);
        }
        self.say(b'C', b"SELECT\0");
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Told {
    Rows(Vec<Vec<u8>>, u16),
    Failed,
    Slow,
    Timeout,
    Again,
}

struct Lane {
    pipeline: Pipeline<Ask>,
    server: Server,
    told: Vec<(usize, i64, Told)>,
    ends: Vec<How>,
    piece: usize,
}

impl Lane {
    fn new(piece: usize) -> Self {
        Self { pipeline: Pipeline::new(Duration::from_millis(700)), server: Server::default(), told: vec![], ends: vec![], piece }
    }

    /// Talks until the flush is over.
    fn run(&mut self) {
        self.pipeline.sync();
        for _ in 0..1000 {
            let sent = self.pipeline.out().split();
            self.server.hear(&sent);
            let heard = std::mem::take(&mut self.server.out);
            for piece in heard.chunks(self.piece) {
                let told = &mut self.told;
                let tell = &mut |ask: Ask, answer: Answer<'_>| {
                    let answer = match answer {
                        Answer::Rows(rows) => Told::Rows(rows.iter().map(<[u8]>::to_vec).collect(), ask.shares),
                        Answer::Failed(Failure::Refused(code)) => {
                            assert_eq!(&code, b"22012");
                            Told::Failed
                        }
                        Answer::Failed(failure) => panic!("{failure}"),
                        Answer::Slow => Told::Slow,
                        Answer::Timeout => Told::Timeout,
                        Answer::Again => Told::Again,
                    };
                    told.push((ask.who, ask.id, answer));
                };
                self.pipeline.feed(piece, tell).unwrap();
            }
            self.ends.extend(self.pipeline.ended().map(|ended| ended.how));
            if self.pipeline.idle() {
                assert!(self.pipeline.is_empty() && self.pipeline.out().is_empty());
                assert!(!self.server.begun);
                return;
            }
        }
        panic!("never idle: {:?}", self.pipeline);
    }

    /// Each caller was told once what it must be told.
    fn check(&mut self, asked: usize) -> Vec<(usize, i64)> {
        let mut told = std::mem::take(&mut self.told);
        told.sort_by_key(|(who, ..)| *who);
        assert_eq!(told.len(), asked, "{told:?}");
        assert!(told.windows(2).all(|pair| pair[0].0 != pair[1].0), "{told:?}");
        let slow = told.iter().any(|(_, id, _)| *id == SLOW);
        let mut again = vec![];
        for (who, id, what) in told {
            match what {
                Told::Rows(rows, _) => assert_eq!(rows, rows_of(id)),
                Told::Failed => assert_eq!(id, POISON),
                Told::Slow => assert_eq!(id, SLOW),
                Told::Timeout => assert!(slow),
                Told::Again => {
                    assert!(slow);
                    again.push((who, id));
                }
            }
        }
        again
    }
}

#[test]
fn a_batch_answers_each_caller_and_asks_the_same_once() {
    let mut lane = Lane::new(usize::MAX);
    let texts = texts(Some(0), 1016);
    lane.server.turn = 4;
    lane.pipeline.ask_batch([7, 3, 7, 4, 5, 3].into_iter().enumerate().map(|(who, id)| ask(who, id, 0, &texts)));
    lane.run();
    assert!(lane.told.iter().all(|(_, id, told)| *told == Told::Rows(rows_of(*id), 6)), "{:?}", lane.told);
    assert_eq!(lane.check(6), []);
    assert_eq!((lane.ends, lane.server.batches, lane.server.generic_batches), (vec![How::Answered], 1, 1));
}

#[test]
fn a_lone_call_has_its_own_plan() {
    let mut lane = Lane::new(usize::MAX);
    let (batched, own) = (texts(Some(0), 1231), texts(None, 0));
    lane.pipeline.ask_batch((0..4).map(|who| ask(who, 3, 0, &batched)));
    lane.run();
    assert!(lane.server.generic);
    // Of a query that is coalesced, the generic plan was compared; of another one it was not.
    lane.pipeline.ask(ask(4, 3, 0, &batched));
    lane.run();
    assert!(lane.server.generic);
    lane.pipeline.ask(ask(5, 3, 1, &own));
    lane.run();
    assert!(!lane.server.generic && !lane.server.patient);
    assert_eq!(lane.check(6), []);
}

#[test]
fn the_guilty_alone_fails() {
    for shadow in [0, 1] {
        let mut lane = Lane::new(7);
        let texts = texts(Some(shadow), 1016);
        lane.pipeline.ask_batch((0..10).map(|who| ask(who, who as i64 + 8, 0, &texts)));
        lane.pipeline.ask(ask(10, 3, 1, &texts));
        lane.run();
        assert_eq!(lane.check(11), []);
        assert_eq!(lane.ends, [How::Failed(false)]);
    }
}

#[test]
fn a_late_batch_is_not_asked_again() {
    for shadow in [0, 1] {
        let mut lane = Lane::new(usize::MAX);
        let texts = texts(Some(shadow), 1016);
        lane.pipeline.ask_batch((0..10).map(|who| ask(who, if who == 4 { SLOW } else { 5 }, 0, &texts)));
        lane.run();
        assert!(lane.told.iter().all(|(.., told)| *told == Told::Timeout), "{:?}", lane.told);
        assert_eq!((lane.told.len(), lane.ends, lane.server.batches), (10, vec![How::Timeout], 1));
    }
}

#[test]
fn the_first_batches_are_compared() {
    let mut lane = Lane::new(11);
    let texts = texts(Some(2), 1016);
    let batch = |lane: &mut Lane| {
        lane.pipeline.ask_batch((0..8).map(|who| ask(who, who as i64, 0, &texts)));
        lane.run();
        assert_eq!(lane.check(8), []);
    };
    (0..3).for_each(|_| batch(&mut lane));
    assert_eq!(lane.ends, [How::Equal, How::Equal, How::Answered]);
}

#[test]
fn a_batch_that_says_something_else_is_not_believed() {
    let mut lane = Lane::new(11);
    let texts = texts(Some(20), 1016);
    lane.server.lies = true;
    lane.pipeline.ask_batch((0..8).map(|who| ask(who, who as i64, 0, &texts)));
    lane.run();
    assert_eq!(lane.check(8), []);
    assert_eq!(lane.ends, [How::Unequal]);
    assert_eq!(texts.coalesced.as_ref().unwrap().verdict.stopped(), Some(Stopped::Unequal));
}

#[test]
fn a_batch_that_is_described_otherwise_is_not_believed() {
    let mut lane = Lane::new(11);
    let mut other = texts(Some(0), 1016);
    Arc::get_mut(&mut other).unwrap().columns.pop();
    lane.pipeline.ask_batch((0..8).map(|who| ask(who, who as i64, 0, &other)));
    let sent = lane.pipeline.out().split();
    lane.server.hear(&sent);
    lane.pipeline.sync();
    let mut stale = 0;
    for _ in 0..3 {
        let sent = lane.pipeline.out().split();
        lane.server.hear(&sent);
        let heard = std::mem::take(&mut lane.server.out);
        lane.pipeline
            .feed(&heard, &mut |_, answer| {
                assert!(matches!(answer, Answer::Failed(Failure::Stale)));
                stale += 1;
            })
            .unwrap();
    }
    assert_eq!((stale, lane.pipeline.idle()), (8, true));
    assert_eq!(other.coalesced.as_ref().unwrap().verdict.stopped(), Some(Stopped::Shape));
}

#[test]
fn a_statement_that_is_always_refused_is_given_up() {
    let mut lane = Lane::new(usize::MAX);
    let texts = texts(Some(0), 1016);
    lane.server.refuses = true;
    for _ in 0..8 {
        lane.pipeline.ask_batch((0..4).map(|who| ask(who, who as i64, 0, &texts)));
        lane.run();
        assert_eq!(lane.check(4), []);
    }
    assert_eq!(lane.ends.last(), Some(&How::Failed(true)));
}

#[test]
fn a_server_that_knows_no_such_choice_is_not_asked_for_ever() {
    let mut lane = Lane::new(usize::MAX);
    let (batched, own) = (texts(Some(1), 1016), texts(None, 0));
    lane.server.old = true;
    for _ in 0..3 {
        lane.pipeline.ask(ask(9, 3, 1, &own));
        lane.pipeline.ask_batch((0..4).map(|who| ask(who, who as i64, 0, &batched)));
        lane.run();
        assert_eq!(lane.check(5), []);
    }
}

#[test]
fn an_ord_that_nobody_has_breaks_the_connection() {
    for ord in ["0", "5", "-1", "", "x", "99999999999"] {
        let mut pipeline = Pipeline::default();
        let texts = texts(Some(0), 1016);
        pipeline.ask_batch((0..4).map(|who| ask(who, who as i64, 0, &texts)));
        pipeline.sync();
        let mut server = Server { generic: true, ..Server::default() };
        (0..2).for_each(|_| server.say(b'C', b"SET\0"));
        server.say(b'D', &[&[0, 3][..], &field(ord), &rows_of(1)[0]].concat());
        server.say(b'C', b"SELECT 1\0");
        assert_eq!(pipeline.feed(&server.out, &mut |_, _| panic!("told")), Err(Broken::Protocol), "{ord}");
        let mut again = 0;
        pipeline.abandon(Broken::Protocol, &mut |_, answer| again += u32::from(matches!(answer, Answer::Again)));
        assert_eq!(again, 4, "{ord}");
    }
}

#[test]
fn who_is_told_otherwise_is_not_told_again() {
    let mut lane = Lane::new(usize::MAX);
    let texts = texts(Some(1), 1016);
    for _ in 0..2 {
        lane.pipeline.ask_batch((0..6).map(|who| ask(who, 3, 0, &texts)));
        lane.pipeline.sync();
        let mut seen = 0;
        lane.pipeline.calls(|ask, told| {
            seen += 1;
            *told |= ask.who == 2;
        });
        assert_eq!(seen, 6);
        lane.run();
        let who: Vec<_> = std::mem::take(&mut lane.told).into_iter().map(|(who, ..)| who).collect();
        assert_eq!(who, [0, 1, 3, 4, 5]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Single(i64, bool),
    Apart(i64),
    Batch(Vec<i64>, bool),
}

fn id() -> impl Strategy<Value = i64> {
    prop_oneof![20 => 0i64..12, 1 => Just(POISON), 1 => Just(SLOW)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (id(), any::<bool>()).prop_map(|(id, own)| Step::Single(id, own)),
        1 => id().prop_map(Step::Apart),
        3 => (prop::collection::vec(id(), 1..12), any::<bool>()).prop_map(|(ids, literal)| Step::Batch(ids, literal)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn every_caller_gets_exactly_one_right_answer(
        flushes in prop::collection::vec(prop::collection::vec(step(), 1..8), 1..5),
        (shadow, piece, turn) in (0u32..4, 1usize..200, 0usize..9),
        (lies, old, forgets) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let mut lane = Lane::new(piece);
        (lane.server.turn, lane.server.old) = (turn, old);
        // Who lies now and then is found out only while batches are compared.
        lane.server.lies = lies;
        let shadow = if lies { 1000 } else { shadow };
        let own = texts(None, 0);
        let batched = [texts(Some(shadow), 1016), texts(Some(shadow), 1231)];
        for steps in flushes {
            let mut who = 0;
            let mut next = || { who += 1; who };
            for step in steps {
                match step {
                    Step::Single(id, true) => lane.pipeline.ask(ask(next(), id, 0, &own)),
                    Step::Single(id, false) => lane.pipeline.ask(ask(next(), id, 1, &batched[0])),
                    Step::Apart(id) => lane.pipeline.ask_apart(ask(next(), id, 1, &batched[0])),
                    Step::Batch(ids, literal) => {
                        let texts = &batched[usize::from(literal)];
                        let slot = 1 + u32::from(literal);
                        let stopped = texts.coalesced.as_ref().unwrap().verdict.stopped().is_some();
                        let asks: Vec<_> = ids.into_iter().map(|id| ask(next(), id, slot, texts)).collect();
                        if stopped {
                            asks.into_iter().for_each(|ask| lane.pipeline.ask(ask));
                        } else {
                            lane.pipeline.ask_batch(asks.into_iter());
                        }
                    }
                }
            }
            let mut asked = who;
            for round in 0.. {
                prop_assert!(round < 50);
                if forgets {
                    lane.server.prepared.clear();
                }
                lane.run();
                let again = lane.check(asked);
                asked = again.len();
                if asked == 0 {
                    break;
                }
                again.into_iter().for_each(|(who, id)| lane.pipeline.ask(ask(who, id, 0, &own)));
            }
        }
    }

    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..50) {
        let mut pipeline = Pipeline::default();
        let texts = texts(Some(1), 1016);
        for round in 0..2 {
            pipeline.ask_batch((0..5).map(|who| ask(who, who as i64, round, &texts)));
        }
        pipeline.sync();
        let mut told = 0;
        for piece in bytes.chunks(piece) {
            if let Err(broken) = pipeline.feed(piece, &mut |_, _| told += 1) {
                pipeline.abandon(broken, &mut |_, _| told += 1);
                break;
            }
        }
        pipeline.abandon(Broken::Closing, &mut |_, _| told += 1);
        prop_assert_eq!(told, 10);
    }
}
