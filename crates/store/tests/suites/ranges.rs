//! Iterators over namespaces, snapshots and transactions: from both ends, beside writers, and at damage.

use crate::INDEXES;
use crate::fixture::{forge_shape_of, store_in_memory};
use everleaf::{Batch, Error, Isolation, Merge, Namespace, Options, Range, Store};
use everleaf_pmem::PoolOptions;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, Ordering};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn options(index: &str) -> Options {
    Options { index: index.into(), size_max: 16 << 20, ..Options::default() }
}

fn store(index: &str) -> (Store, Namespace) {
    crate::fixture::store(options(index))
}

/// Takes entries from the ends, `turns` of which are the front's, over and over.
fn check(mut range: Range<'_>, map: &Map, is_within: impl Fn(&[u8]) -> bool, turns: &[bool]) {
    let mut expected: VecDeque<_> = map.iter().filter(|(key, _)| is_within(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    for is_front in turns.iter().cycle() {
        let (found, due) = if *is_front { (range.next(), expected.pop_front()) } else { (range.next_back(), expected.pop_back()) };
        let is_last = due.is_none();
        assert_eq!(found.transpose().unwrap(), due);
        if is_last {
            break;
        }
    }
    assert!(range.next().is_none() && range.next_back().is_none());
}

fn set(map: &mut Map, key: &[u8], value: Option<&Vec<u8>>) {
    match value {
        Some(value) => drop(map.insert(key.to_vec(), value.clone())),
        None => drop(map.remove(key)),
    }
}

/// Keys that are prefixes of each other, among them the empty one, and that contain zeroes and high bytes.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0), Just(1), Just(b'a'), Just(255)], 0..5)
}

/// Some that fill a small page, and some that fill a large one.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![20 => prop::collection::vec(any::<u8>(), 0..4), 4 => (any::<u8>(), 200usize..2_000).prop_map(|(byte, size)| vec![byte; size]),
        1 => any::<u8>().prop_map(|byte| vec![byte; 70_000])]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let bound = || prop_oneof![2 => key().prop_map(Bound::Included), 2 => key().prop_map(Bound::Excluded), 1 => Just(Bound::Unbounded)];
    prop_oneof![8 => (bound(), bound()), 1 => key().prop_map(|key| (Bound::Excluded(key.clone()), Bound::Excluded(key)))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranges_have_what_those_of_maps_have(
        index in prop_oneof![Just("ever"), Just("ever-64")],
        before in prop::collection::btree_map(key(), value(), 0..200),
        expired in prop::collection::vec(key(), 0..20),
        after in prop::collection::vec((key(), prop::option::of(value())), 0..40),
        own in prop::collection::vec((key(), prop::option::of(value()), any::<bool>()), 0..40),
        ranges in prop::collection::vec((bounds(), key(), prop::collection::vec(any::<bool>(), 1..12)), 1..6),
    ) {
        let (store, space) = store(index);
        let mut then = before;
        then.iter().for_each(|(key, value)| space.put(key, value).unwrap());
        for key in expired {
            space.put_until(&key, b"expired", 1).unwrap();
            then.remove(&key);
        }
        let (snapshot, mut transaction) = (store.snapshot().unwrap(), store.begin(Isolation::Serializable).unwrap());
        let (mut now, mut shown) = (then.clone(), then.clone());
        for (key, value) in after {
            match &value {
                Some(value) => space.put(&key, value).unwrap(),
                None => drop(space.delete(&key).unwrap()),
            }
            set(&mut now, &key, value.as_ref());
        }
        for (key, value, is_merged) in own {
            match &value {
                Some(value) if is_merged => {
                    transaction.merge(&space, &key, Merge::Append(value.clone())).unwrap();
                    shown.entry(key).or_default().extend(value);
                    continue;
                }
                Some(value) => transaction.put(&space, &key, value).unwrap(),
                None => drop(transaction.delete(&space, &key).unwrap()),
            }
            set(&mut shown, &key, value.as_ref());
        }
        for (bounds, prefix, turns) in ranges {
            let is_within = |key: &[u8]| bounds.contains(&key.to_vec());
            let lent = (bounds.0.as_ref(), bounds.1.as_ref());
            check(space.range(lent), &now, is_within, &turns);
            check(snapshot.range(&space, lent), &then, is_within, &turns);
            check(transaction.range(&space, lent), &shown, is_within, &turns);
            let begins = |key: &[u8]| key.starts_with(&prefix);
            check(space.iter_prefix(&prefix), &now, begins, &turns);
            check(snapshot.iter_prefix(&space, &prefix), &then, begins, &turns);
            check(transaction.iter_prefix(&space, &prefix), &shown, begins, &turns);
            check(space.iter(), &now, |_| true, &turns);
            check(snapshot.iter(&space), &then, |_| true, &turns);
            check(transaction.iter(&space), &shown, |_| true, &turns);
        }
    }
}

#[test]
fn bounds_of_every_form_are_those_of_maps() {
    let (store, space) = store("ever");
    assert!(space.iter().next().is_none() && space.iter().next_back().is_none());
    (0..10u8).for_each(|n| space.put(&[n], &[n]).unwrap());
    let transaction = store.begin(Isolation::Snapshot).unwrap();
    let keys = |range: Range<'_>| range.map(|entry| entry.unwrap().0[0]).collect::<Vec<_>>();
    assert_eq!(keys(space.range(b"\x03"..b"\x05")), [3, 4]);
    assert_eq!(keys(space.range(&[3]..=&[5])), [3, 4, 5]);
    assert_eq!(keys(space.range(..&vec![2])), [0, 1]);
    assert_eq!(keys(space.range(&[8][..]..)), [8, 9]);
    assert_eq!(keys(space.range("\u{8}"..="\u{8}")), [8]);
    assert_eq!(keys(space.range((Bound::Excluded(&[7]), Bound::Unbounded))), [8, 9]);
    // A map would panic.
    let (low, high) = (&[3], &[5]);
    for empty in [(Bound::Included(high), Bound::Excluded(low)), (Bound::Excluded(high), Bound::Excluded(high)), (Bound::Included(high), Bound::Excluded(high))]
    {
        assert_eq!([keys(space.range(empty)), keys(transaction.range(&space, empty))].concat(), []);
        assert!(space.range(empty).next_back().is_none() && transaction.range(&space, empty).next_back().is_none());
    }
}

/// Every iterator meets permanent keys exactly once and in order, whatever is written between them and whichever ends are asked.
#[test]
fn what_stays_is_met_exactly_once_from_two_ends() {
    const STAYING: u32 = 2_000;
    for index in INDEXES {
        let (_store, space) = store(index);
        (0..STAYING).for_each(|n| space.put(&(n * 2).to_be_bytes(), b"stays").unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = StdRng::seed_from_u64(1);
                while !done.load(Ordering::Relaxed) {
                    let n = random.random_range(0..STAYING) * 2 + 1;
                    match random.random_bool(0.5) {
                        true => space.put(&n.to_be_bytes(), b"comes").unwrap(),
                        false => drop(space.delete(&n.to_be_bytes()).unwrap()),
                    }
                    space.put(&(n - 1).to_be_bytes(), b"stays").unwrap();
                }
            });
            let mut random = StdRng::seed_from_u64(2);
            for round in 0..20 {
                let (mut range, share) = (space.iter(), random.random_range(0.0..=1.0));
                let (mut front, mut back) = (Vec::new(), Vec::new());
                loop {
                    let is_front = random.random_bool(share);
                    let Some(entry) = (if is_front { range.next() } else { range.next_back() }) else { break };
                    let (key, value) = entry.unwrap();
                    let n = u32::from_be_bytes(key.try_into().unwrap());
                    assert_eq!(value, if n % 2 == 0 { b"stays" } else { b"comes" });
                    if is_front { front.push(n) } else { back.push(n) }
                }
                let seen: Vec<_> = front.into_iter().chain(back.into_iter().rev()).collect();
                assert!(seen.is_sorted_by(|a, b| a < b), "{index}, round {round}: out of order");
                assert!(seen.iter().filter(|n| *n % 2 == 0).copied().eq((0..STAYING).map(|n| n * 2)), "{index}, round {round}: a key was missed");
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn what_a_snapshot_iterates_over_is_not_what_a_writer_does_meanwhile() {
    const KEYS: u32 = 3_000;
    let (store, space) = store("ever");
    let map: Map = (0..KEYS).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; n as usize % 300])).collect();
    map.iter().for_each(|(key, value)| space.put(key, value).unwrap());
    let (snapshot, done) = (store.snapshot().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(3);
            while !done.load(Ordering::Relaxed) {
                let key = random.random_range(0..2 * KEYS).to_be_bytes();
                match random.random_range(0..5_000) {
                    0 => space.clear().unwrap(),
                    1..2_000 => drop(space.delete(&key).unwrap()),
                    2_000..3_000 => {
                        let mut batch = Batch::default();
                        batch.put(&space, &key, b"batch");
                        batch.delete(&space, &random.random_range(0..KEYS).to_be_bytes());
                        store.write(batch).unwrap();
                    }
                    _ => space.put(&key, b"other").unwrap(),
                }
            }
        });
        let mut random = StdRng::seed_from_u64(4);
        for _ in 0..30 {
            let turns: Vec<_> = (0..7).map(|_| random.random()).collect();
            check(snapshot.iter(&space), &map, |_| true, &turns);
            let [low, high] = [(); 2].map(|()| random.random_range(0..KEYS).to_be_bytes());
            let is_within = |key: &[u8]| (&low[..]..&high[..]).contains(&key);
            check(snapshot.range(&space, &low..&high), &map, is_within, &turns);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Without a snapshot, an entry is as it was when its page was read, and later pages are as they are then.
#[test]
fn pages_are_read_when_they_are_needed() {
    let (_store, space) = store("ever");
    (0..20u8).for_each(|n| space.put(&[n], b"before").unwrap());
    let mut range = space.iter();
    assert!(range.next().is_some());
    (0..20u8).for_each(|n| space.put(&[n], b"after").unwrap());
    space.delete(&[5]).unwrap();
    let found = range.map(|entry| entry.unwrap()).collect::<Vec<_>>();
    let expected = (1..20u8).filter(|n| *n != 5).map(|n| (vec![n], if n < 4 { &b"before"[..] } else { b"after" }.to_vec()));
    assert_eq!(found, expected.collect::<Vec<_>>());
}

/// What was read ahead counts as scanned, and nothing beyond.
#[test]
fn what_an_iterator_of_a_transaction_has_read_ahead_conflicts() {
    let key = |n: u32| n.to_be_bytes().to_vec();
    let behind = |n: u32| [&n.to_be_bytes()[..], b"behind"].concat();
    let cases = [
        (true, key(9), false),
        (true, key(10), true),
        (true, behind(11), true),
        (true, key(13), true),
        (true, behind(13), false),
        (true, key(50), false),
        (false, key(99), true),
        (false, key(96), true),
        (false, behind(95), false),
        (false, key(50), false),
    ];
    for (is_front, changed, conflicts) in cases {
        let (store, space) = store("ever");
        (0..120).for_each(|n| space.put(&key(n), b"").unwrap());
        let mut transaction = store.begin(Isolation::Serializable).unwrap();
        let mut range = transaction.range(&space, &key(10)..&key(100));
        let found = if is_front { range.next() } else { range.next_back() };
        assert_eq!(found.unwrap().unwrap().0, key(if is_front { 10 } else { 99 }));
        transaction.put(&store.namespace("other").unwrap(), b"key", b"value").unwrap();
        space.put(&changed, b"changed").unwrap();
        match transaction.commit() {
            Err(Error::Conflict { key, .. }) => assert!(conflicts && key == changed, "{key:?}"),
            outcome => assert!(outcome.is_ok() && !conflicts, "{changed:?}: {outcome:?}"),
        }
    }
    // A range without entries was scanned to its end.
    let (store, space) = store("ever");
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    assert!(transaction.iter_prefix(&space, b"pre").next_back().is_none());
    transaction.put(&space, b"key", b"value").unwrap();
    space.put(b"prefix", b"").unwrap();
    assert!(matches!(transaction.commit(), Err(Error::Conflict { key, .. }) if key == b"prefix"));
}

#[test]
fn an_iterator_of_a_transaction_says_what_its_walks_say() {
    let (store, space) = store("ever");
    (0..100u32).for_each(|n| space.put(&n.to_be_bytes(), b"not a number").unwrap());
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    transaction.merge(&space, &40u32.to_be_bytes(), Merge::Add(1)).unwrap();
    let mut range = transaction.iter(&space);
    assert_eq!(range.by_ref().take(40).filter(Result::is_ok).count(), 40);
    assert!(matches!(range.next(), Some(Err(Error::Merge { .. }))));
    assert!(range.next().is_none() && range.next_back().is_none());
    transaction.limit_size(0);
    assert!(matches!(transaction.iter(&space).next(), Some(Err(Error::TransactionTooLarge { .. }))));
}

/// The keys that each end shows in turn, until there is an error, which is the last item.
fn until_damage(mut range: Range<'_>, turns: &[bool]) -> (Vec<u64>, Vec<u64>) {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    for is_front in turns.iter().cycle() {
        let (item, end) = if *is_front { (range.next(), &mut front) } else { (range.next_back(), &mut back) };
        match item.expect("an error before the end") {
            Ok((key, _)) => end.push(u64::from_be_bytes(key.try_into().unwrap())),
            Err(error) => {
                assert!(error.to_string().contains("a record"), "{error}");
                break;
            }
        }
    }
    assert!(range.next().is_none() && range.next_back().is_none());
    (front, back)
}

#[test]
fn an_iterator_says_once_that_there_is_damage_and_ends() {
    const VALUE: u64 = 0xabcd_ef01_2345_6789;
    let pool_options = PoolOptions { size_max: 4 << 20, ..PoolOptions::default() };
    let (memory, store) = store_in_memory(pool_options, &options("ever"));
    let space = store.namespace("space").unwrap();
    (0..600u64).for_each(|n| space.put(&n.to_be_bytes(), &[7; 20]).unwrap());
    space.put(&300u64.to_be_bytes(), &VALUE.to_le_bytes()).unwrap();
    let words: Vec<_> = memory.words().iter().filter(|word| word.load(Ordering::Relaxed) == VALUE).collect();
    assert!(!words.is_empty());
    words.iter().for_each(|word| word.store(!VALUE, Ordering::Relaxed));
    let transaction = store.begin(Isolation::ReadOnly).unwrap();
    let ranges = || [space.iter(), transaction.snapshot().iter(&space), transaction.iter(&space)];
    for range in ranges() {
        assert_eq!(until_damage(range, &[true]), ((0..300).collect(), Vec::new()));
    }
    for range in ranges() {
        assert_eq!(until_damage(range, &[false]), (Vec::new(), (301..600).rev().collect()));
    }
    for range in ranges() {
        let (front, back) = until_damage(range, &[true, false, true]);
        assert!(front.len() > 200 && front.iter().copied().eq(0..front.len() as u64) && back.iter().copied().eq((600 - back.len() as u64..600).rev()));
        assert!(*front.last().unwrap() < 300 && *back.last().unwrap() > 300);
    }
    // Of a record that has no size, nobody knows the key.
    forge_shape_of(&memory, 100u64.to_be_bytes(), 20);
    for range in ranges() {
        let (front, _) = until_damage(range, &[true]);
        assert!(front.len() <= 100 && front.iter().copied().eq(0..front.len() as u64), "{front:?}");
    }
}

#[test]
#[should_panic(expected = "belongs to another store")]
fn an_iterator_over_a_namespace_of_another_store_is_refused() {
    let ((store, _), (_other, space)) = (store("ever"), store("ever"));
    let transaction = store.begin(Isolation::ReadOnly).unwrap();
    _ = transaction.iter(&space);
}
