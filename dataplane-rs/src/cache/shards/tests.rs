#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
use super::super::entry::tests::answer;
use super::super::flight::Waited;
use super::super::front::Front;
use super::*;
use proptest::prelude::*;

const TTL: Duration = Duration::from_millis(100);

fn ms(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

/// One call at `at`: the body that it gets, and whether it came from the cache. A leader is answered at once with `fresh`.
fn call(cache: &Arc<Cache>, key: &[u8], at: Instant, fresh: &[u8]) -> (Vec<u8>, bool) {
    match cache.begin(cache.hash(key), key, at, at, TTL) {
        Begun::Hit(entry) => {
            entry.touch();
            (entry.body.to_vec(), true)
        }
        Begun::Lead(lead) => {
            lead.keep(answer(fresh), at);
            (fresh.to_vec(), false)
        }
        begun => panic!("{begun:?}"),
    }
}

#[test]
fn nothing_is_served_past_its_time() {
    let (cache, start) = (Cache::new(1 << 20), Instant::now());
    let mut front = Front::default();
    let hash = cache.hash(b"k");
    assert_eq!(call(&cache, b"k", start, b"1"), (b"1".to_vec(), false));
    let Begun::Hit(entry) = cache.begin(hash, b"k", start, start, TTL) else { panic!() };
    front.remember(hash, entry, start);
    for (at, hit) in [(0, true), (99, true), (100, false), (101, false)] {
        assert_eq!(front.find(hash, b"k", ms(start, at)).is_some(), hit, "{at}");
    }
    assert_eq!(call(&cache, b"k", ms(start, 99), b"2"), (b"1".to_vec(), true));
    assert_eq!(call(&cache, b"k", ms(start, 100), b"3"), (b"3".to_vec(), false));
    assert_eq!(call(&cache, b"k", ms(start, 150), b"4"), (b"3".to_vec(), true));
}

#[test]
fn an_answer_is_as_old_as_its_question() {
    let (cache, start) = (Cache::new(1 << 20), Instant::now());
    let Begun::Lead(lead) = cache.begin(1, b"k", start, start, TTL) else { panic!() };
    lead.keep(answer(b"1"), ms(start, 60));
    assert!(matches!(cache.begin(1, b"k", ms(start, 99), start, TTL), Begun::Hit(_)));
    let Begun::Lead(slow) = cache.begin(1, b"k", ms(start, 100), ms(start, 100), TTL) else { panic!() };
    // It took longer than it may be kept.
    slow.keep(answer(b"2"), ms(start, 200));
    assert!(matches!(cache.begin(1, b"k", ms(start, 200), start, TTL), Begun::Lead(_)));
}

#[test]
fn a_front_serves_nothing_that_was_thrown_out() {
    let (cache, start) = (Cache::new(SHARDS * 2000), Instant::now());
    let mut front = Front::default();
    call(&cache, b"k", start, b"1");
    let hash = cache.hash(b"k");
    let Begun::Hit(entry) = cache.begin(hash, b"k", start, start, TTL) else { panic!() };
    front.remember(hash, entry, start);
    assert!(front.find(hash, b"k", start).is_some() && front.find(hash, b"other", start).is_none());
    for n in 0..2000u32 {
        call(&cache, &n.to_le_bytes(), start, &[b'x'; 100]);
    }
    assert!(front.find(hash, b"k", start).is_none());
}

#[test]
fn a_coding_counts_and_what_is_gone_does_not() {
    let (cache, start) = (Cache::new(1 << 20), Instant::now());
    call(&cache, b"k", start, b"1");
    let hash = cache.hash(b"k");
    let Begun::Hit(entry) = cache.begin(hash, b"k", start, start, TTL) else { panic!() };
    let before = cache.bytes();
    cache.grew(hash, &entry, 1000, start);
    assert_eq!(cache.bytes(), before + 1000);
    (0..SHARDS).for_each(|_| cache.tidy(ms(start, 100)));
    assert_eq!(cache.bytes(), 0);
    cache.grew(hash, &entry, 1000, start);
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn two_questions_of_one_hash_are_both_answered() {
    let (cache, start) = (Cache::new(1 << 20), Instant::now());
    let Begun::Lead(lead) = cache.begin(1, b"a", start, start, TTL) else { panic!() };
    assert!(matches!(cache.begin(1, b"b", start, start, TTL), Begun::Alone));
    lead.keep(answer(b"A"), start);
    let Begun::Lead(lead) = cache.begin(1, b"b", start, start, TTL) else { panic!() };
    lead.keep(answer(b"B"), start);
    let Begun::Hit(entry) = cache.begin(1, b"b", start, start, TTL) else { panic!() };
    assert_eq!(*entry.body, *b"B");
    assert!(matches!(cache.begin(1, b"a", start, start, TTL), Begun::Lead(_)));
}

fn poll(waiting: &mut Waiting) -> Option<Waited> {
    let mut future = std::pin::pin!(waiting.outcome());
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(waited) => Some(waited),
        std::task::Poll::Pending => None,
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A call of this key.
    Call(u8),
    /// The n-th open leader answers, fails or leaves.
    Keep(usize),
    Fail(usize),
    Leave(usize),
    /// The n-th waiter leaves.
    Lose(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..4).prop_map(Step::Call),
        3 => (0usize..8).prop_map(Step::Keep),
        1 => (0usize..8).prop_map(Step::Fail),
        1 => (0usize..8).prop_map(Step::Leave),
        1 => (0usize..8).prop_map(Step::Lose),
        1 => (1u64..80).prop_map(Step::Pass),
    ]
}

proptest! {
    /// At most one leader a key; no waiter is stranded; each gets its own key's answer, never one past its time.
    #[test]
    fn flights_under_random_leaves(steps in prop::collection::vec(step(), 1..200)) {
        let (cache, mut now) = (Cache::new(1 << 20), Instant::now());
        let mut leads: Vec<(u8, Lead)> = Vec::new();
        let mut waits: Vec<(u8, Waiting)> = Vec::new();
        let mut asked = [now; 4];
        for step in steps {
            match step {
                Step::Call(key) => match cache.begin(key.into(), &[key], now, now, TTL) {
                    Begun::Hit(entry) => {
                        prop_assert_eq!(&*entry.body, &[key]);
                        prop_assert!(now < asked[usize::from(key)] + TTL);
                    }
                    Begun::Lead(lead) => {
                        prop_assert!(leads.iter().all(|(other, _)| *other != key));
                        leads.push((key, lead));
                    }
                    Begun::Wait(waiting) => {
                        prop_assert!(leads.iter().any(|(other, _)| *other == key));
                        waits.push((key, waiting));
                    }
                    begun => panic!("{begun:?}"),
                },
                Step::Keep(n) | Step::Fail(n) | Step::Leave(n) if n < leads.len() => {
                    let (key, lead) = leads.swap_remove(n);
                    let in_time = now < lead.began + TTL;
                    match step {
                        Step::Keep(_) => {
                            asked[usize::from(key)] = lead.began;
                            lead.keep(answer(&[key]), now);
                        }
                        Step::Fail(_) => lead.fail(),
                        _ => drop(lead),
                    }
                    for (_, waiting) in waits.extract_if(.., |(other, _)| *other == key) {
                        let mut waiting = waiting;
                        match (&step, poll(&mut waiting)) {
                            (Step::Keep(_), Some(Waited::Kept(entry))) if in_time => prop_assert_eq!(&*entry.body, &[key]),
                            (Step::Keep(_), Some(Waited::Failed)) if !in_time => {}
                            (Step::Fail(_), Some(Waited::Failed)) | (Step::Leave(_), Some(Waited::Gone)) => {}
                            (step, waited) => panic!("{step:?} {waited:?}"),
                        }
                    }
                }
                Step::Lose(n) if n < waits.len() => drop(waits.swap_remove(n)),
                Step::Pass(time) => now = ms(now, time),
                _ => {}
            }
            for (_, waiting) in &mut waits {
                prop_assert!(poll(waiting).is_none());
            }
        }
    }

    /// Bytes stay within the bound and are those of what can be found; what is used stays longer than what is not.
    #[test]
    fn bytes_are_bounded(calls in prop::collection::vec((0u16..300, 0usize..1500, any::<bool>()), 1..400)) {
        let (cache, start) = (Cache::new(SHARDS * 4000), Instant::now());
        for (key, size, tidy) in calls {
            let key = key.to_le_bytes();
            call(&cache, &key, start, &vec![key[0]; size]);
            if tidy {
                cache.tidy(start);
            }
            prop_assert!(cache.bytes() <= SHARDS * 4000);
        }
        let found: usize = cache.shards.iter().map(|shard| {
            let shard = shard.lock().unwrap();
            let sizes = shard.slots.values().map(|slot| match slot { Slot::Kept(entry) => entry.size(), Slot::Flying(_) => panic!() });
            let sum: usize = sizes.sum();
            assert_eq!(sum, shard.bytes);
            sum
        }).sum();
        prop_assert_eq!(cache.bytes(), found);
    }
}

#[test]
fn what_is_used_outlives_what_is_not() {
    let (cache, start) = (Cache::new(SHARDS * 8000), Instant::now());
    call(&cache, b"hot", start, &[b'x'; 100]);
    for n in 0..5000u32 {
        call(&cache, &n.to_le_bytes(), start, &[b'x'; 100]);
        assert!(call(&cache, b"hot", start, b"").1, "{n}");
    }
    assert!(!call(&cache, &0u32.to_le_bytes(), start, b"").1);
}
