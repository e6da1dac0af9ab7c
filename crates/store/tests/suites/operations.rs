//! Merges, ranges, cursors, bulk loads and snapshots.

use crate::fixture::{self, check, keys};
use everleaf::{Act, Batch, Change, Cursor, Direction, Domain, Error, Isolation, KEY_SIZE_MAX, Merge, Namespace, Options, Store, VALUE_SIZE_MAX};
use everleaf_pmem::{Hardware, Pool, PoolOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

fn store() -> (Store, Namespace) {
    fixture::store(Options { size_max: 64 << 20, index: "isle-128".into(), ..Options::default() })
}

fn counter(space: &Namespace, key: &[u8]) -> Option<i64> {
    space.get(key).unwrap().map(|value| i64::from_le_bytes(value.try_into().unwrap()))
}

#[test]
fn many_pairs_are_set_in_their_order_whatever_a_fence_waits_for() {
    let directory = tempfile::tempdir().unwrap();
    let too_long = vec![0; KEY_SIZE_MAX + 1];
    for domain in [Domain::PageCache, Domain::Msync] {
        let store = Store::open(directory.path().join(domain.name()), Options { domain: Some(domain), ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        let bytes: Vec<_> = (0_u16..400).map(|number| ((number % 300).to_be_bytes(), number.to_be_bytes())).collect();
        let mut pairs: Vec<(&[u8], &[u8])> = bytes.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        assert!(matches!(space.put_first(&pairs), (400, Ok(()))));
        for number in 0_u16..300 {
            let last = if number < 100 { number + 300 } else { number };
            assert_eq!(space.get(&number.to_be_bytes()).unwrap().unwrap(), last.to_be_bytes(), "{domain:?}: the later of two");
        }
        pairs.iter_mut().for_each(|(_, value)| *value = b"new");
        pairs[200].0 = &too_long;
        assert!(matches!(space.put_first(&pairs), (200, Err(Error::KeyTooLong { .. }))));
        for number in 0_u16..300 {
            let is_new = space.get(&number.to_be_bytes()).unwrap().unwrap() == b"new";
            assert_eq!(is_new, number < 200, "{domain:?}: {number}");
        }
        check(&store);
        store.close().unwrap();
    }
}

/// The machine fails when the device has nothing of the pool but its header: the journal has the rest.
#[test]
fn a_journal_brings_back_what_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let files = || std::fs::read_dir(directory.path()).unwrap().count();
    for index in crate::INDEXES {
        let options = || Options { domain: Some(Domain::Msync), index: index.into(), ..Options::default() };
        let store = Store::open(&path, options()).unwrap();
        let at_first = std::fs::read(&path).unwrap();
        let space = store.namespace("space").unwrap();
        for number in 0..300_u32 {
            space.put(&(number % 200).to_be_bytes(), &vec![number as u8; number as usize]).unwrap();
        }
        space.delete(&7_u32.to_be_bytes()).unwrap();
        let mut transaction = store.begin(Isolation::Snapshot).unwrap();
        transaction.put(&space, b"in a transaction", b"value").unwrap();
        transaction.commit().unwrap();
        drop((space, store));
        assert_eq!(files(), 3, "the pool and its journal");
        std::fs::write(&path, at_first).unwrap();
        let store = Store::open(&path, options()).unwrap();
        let space = store.namespace("space").unwrap();
        for number in (0..200_u32).filter(|number| *number != 7) {
            let last = if number < 100 { number + 200 } else { number };
            assert_eq!(space.get(&number.to_be_bytes()).unwrap().unwrap(), vec![last as u8; last as usize], "{index}: {number}");
        }
        assert_eq!(space.get(&7_u32.to_be_bytes()).unwrap(), None, "{index}");
        assert_eq!(space.get(b"in a transaction").unwrap().unwrap(), b"value", "{index}");
        check(&store);
        drop(space);
        store.close().unwrap();
        assert_eq!(files(), 1, "what was closed is one file");
        everleaf::compact(&path, options(), |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(files(), 1, "as is what was written anew");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn merges_add_up_whoever_does_them() {
    let (store, space) = store();
    let (threads, rounds) = (4i64, 200i64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, space) = (&store, &space);
            scope.spawn(move || {
                for round in 0..rounds {
                    let key = [b'c', (round % 3) as u8];
                    match round % 4 {
                        0 => drop(space.merge(&key, &Merge::Add(1)).unwrap()),
                        1 => {
                            let mut batch = Batch::default();
                            batch.merge(space, &key, Merge::Add(3));
                            batch.merge(space, b"log", Merge::Append(vec![thread as u8]));
                            batch.merge(space, &key, Merge::Add(-2));
                            store.write(batch).unwrap();
                        }
                        way => {
                            // Keys that are only merged never conflict.
                            let isolation = if way == 2 { Isolation::Snapshot } else { Isolation::Serializable };
                            let mut transaction = store.begin(isolation).unwrap();
                            transaction.merge(space, &key, Merge::Add(1)).unwrap();
                            transaction.merge(space, b"log", Merge::Append(vec![thread as u8])).unwrap();
                            transaction.commit().unwrap();
                        }
                    }
                }
            });
        }
    });
    let sum: i64 = (0..3).map(|n| counter(&space, &[b'c', n]).unwrap()).sum();
    assert_eq!(sum, threads * rounds);
    let log = space.get(b"log").unwrap().unwrap();
    assert!((0..threads).all(|thread| log.iter().filter(|by| i64::from(**by) == thread).count() as i64 == rounds / 4 * 3));
    check(&store);
}

#[test]
fn a_merge_that_was_read_conflicts_and_one_that_was_not_does_not() {
    let (store, space) = store();
    let add = |number| Merge::Add(number);
    space.merge(b"c", &add(10)).unwrap();
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        for (reads, way) in [(false, 0), (true, 1), (true, 2), (true, 3), (true, 4)] {
            let before = counter(&space, b"c").unwrap();
            let mut transaction = store.begin(isolation).unwrap();
            transaction.merge(&space, b"c", add(1)).unwrap();
            space.merge(b"c", &add(100)).unwrap();
            let read = (before + 1).to_le_bytes();
            match way {
                1 => assert_eq!(transaction.get(&space, b"c").unwrap().unwrap(), read),
                2 => assert_eq!(transaction.get_many(&space, &[b"c"]).unwrap(), [Some(read.to_vec())]),
                3 => transaction
                    .scan(&space, Bound::Unbounded, Direction::Forward, |_, value| {
                        assert_eq!(value, read);
                        ControlFlow::Continue(())
                    })
                    .unwrap(),
                4 => assert!(transaction.delete(&space, b"c").unwrap()),
                _ => {}
            }
            let outcome = transaction.commit();
            assert_eq!(matches!(outcome, Err(Error::Conflict { .. })), reads, "{isolation:?} {way} {outcome:?}");
            assert_eq!(counter(&space, b"c").unwrap(), before + 100 + i64::from(!reads));
        }
    }
    let mut reader = store.begin(Isolation::ReadOnly).unwrap();
    assert!(matches!(reader.merge(&space, b"c", add(1)), Err(Error::ReadOnly)));
}

#[test]
fn a_merge_that_fails_leaves_everything_as_it_was() {
    let (store, space) = store();
    space.put(b"text", b"no counter").unwrap();
    let refused = |outcome: Result<(), Error>| match outcome {
        Err(Error::Merge { namespace, key, reason }) => assert!(namespace == "space" && key == b"text" && reason.contains("counter"), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused(space.merge(b"text", &Merge::Add(1)).map(drop));
    let mut batch = Batch::default();
    batch.put(&space, b"other", b"1");
    batch.merge(&space, b"text", Merge::Add(1));
    refused(store.write(batch));
    let mut batch = Batch::default();
    batch.put(&space, b"text", b"x");
    batch.merge(&space, b"text", Merge::Add(1));
    refused(store.write(batch));
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    transaction.put(&space, b"other", b"1").unwrap();
    transaction.merge(&space, b"text", Merge::Add(1)).unwrap();
    refused(transaction.get(&space, b"text").map(drop));
    refused(transaction.scan(&space, Bound::Unbounded, Direction::Reverse, |_, _| ControlFlow::Continue(())));
    refused(transaction.commit());
    assert_eq!((keys(&space), space.get(b"text").unwrap().unwrap()), (vec![b"text".to_vec()], b"no counter".to_vec()));
    // A savepoint rolls back merges, too.
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    transaction.merge(&space, b"c", Merge::Add(1)).unwrap();
    let savepoint = transaction.savepoint();
    transaction.merge(&space, b"c", Merge::Add(10)).unwrap();
    transaction.put(&space, b"c", b"x").unwrap();
    transaction.merge(&space, b"c", Merge::Append(b"y".to_vec())).unwrap();
    assert_eq!(transaction.get(&space, b"c").unwrap().unwrap(), b"xy");
    transaction.rollback_to(&savepoint);
    transaction.commit().unwrap();
    assert_eq!(counter(&space, b"c"), Some(1));
    check(&store);
}

/// Transactions and batches that put, delete, merge and remove ranges, against maps.
#[test]
fn transactions_and_batches_merge_as_maps_would() {
    let seed = 0x5eed;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let (store, space) = store();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for _ in 0..1_000 {
        let mut own = model.clone();
        let mut transaction = store.begin(Isolation::Serializable).unwrap();
        let mut batch = random.random_bool(0.3).then(Batch::default);
        for _ in 0..random.random_range(1..6) {
            let key = vec![random.random_range(b'a'..b'j')];
            let tail = vec![random.random_range(b'0'..=b'9')];
            match random.random_range(0..6u32) {
                0 => {
                    own.insert(key.clone(), tail.clone());
                    if let Some(batch) = &mut batch {
                        batch.put(&space, &key, &tail);
                    }
                    transaction.put(&space, &key, &tail).unwrap();
                }
                1 => {
                    own.remove(&key);
                    if let Some(batch) = &mut batch {
                        batch.delete(&space, &key);
                    }
                    transaction.delete(&space, &key).unwrap();
                }
                2 if batch.is_none() => {
                    let high = [key[0] + 2];
                    let gone: Vec<_> = own.range(key.clone()..high.to_vec()).map(|(key, _)| key.clone()).collect();
                    gone.iter().for_each(|key| drop(own.remove(key)));
                    let removed = transaction.delete_range(&space, &key[..]..&high[..]).unwrap();
                    assert_eq!(removed, gone.len() as u64);
                }
                3 => {
                    // Removes the last byte, and the key when none is left.
                    let chop = |old: Option<&[u8]>| Ok(old.and_then(|old| old.split_last()).map(|(_, rest)| rest.to_vec()).filter(|rest| !rest.is_empty()));
                    match chop(own.get(&key).map(Vec::as_slice)).unwrap() as Option<Vec<u8>> {
                        Some(value) => drop(own.insert(key.clone(), value)),
                        None => drop(own.remove(&key)),
                    }
                    let merge = Merge::With(Arc::new(chop));
                    if let Some(batch) = &mut batch {
                        batch.merge(&space, &key, merge.clone());
                    }
                    transaction.merge(&space, &key, merge).unwrap();
                }
                _ => {
                    own.entry(key.clone()).or_default().extend_from_slice(&tail);
                    if let Some(batch) = &mut batch {
                        batch.merge(&space, &key, Merge::Append(tail.clone()));
                    }
                    transaction.merge(&space, &key, Merge::Append(tail)).unwrap();
                }
            }
            if random.random_bool(0.3) {
                let mut found = BTreeMap::new();
                let visit = |key: &[u8], value: &[u8]| {
                    found.insert(key.to_vec(), value.to_vec());
                    ControlFlow::Continue(())
                };
                transaction.scan(&space, Bound::Unbounded, Direction::Reverse, visit).unwrap();
                assert_eq!(found, own);
            }
        }
        match batch {
            Some(batch) => store.write(batch).unwrap(),
            None => transaction.commit().unwrap(),
        }
        model = own;
        assert_eq!(keys(&space), model.keys().cloned().collect::<Vec<_>>());
        assert!(model.iter().all(|(key, value)| space.get(key).unwrap().as_ref() == Some(value)));
    }
    check(&store);
}

/// Lines flushed and fences.
fn cost(pool: &Pool<Hardware>, act: impl FnOnce()) -> (u64, u64) {
    let before = pool.medium().counters().unwrap().totals();
    act();
    let after = pool.medium().counters().unwrap().totals();
    (after.lines_flushed - before.lines_flushed, after.fences - before.fences)
}

/// Counted in lines and fences. The values, and when a namespace is removed its keys, are not touched one by one in the pool.
#[test]
fn what_a_removal_costs_does_not_depend_on_the_values() {
    let costs = [10usize, 10_000].map(|size| {
        let pool = Pool::anonymous(Hardware::new(Domain::Adr).with_counters(None), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let store = Store::on(pool.clone(), &Options { index: "isle-128".into(), ..Options::default() }).unwrap();
        let spaces = ["range", "cleared"].map(|name| store.namespace(name).unwrap());
        for n in 0..500u32 {
            spaces.iter().for_each(|space| space.put(&n.to_be_bytes(), &vec![n as u8; size]).unwrap());
        }
        let (low, high) = (100u32.to_be_bytes(), 400u32.to_be_bytes());
        let range = cost(&pool, || assert_eq!(spaces[0].delete_range(&low..&high).unwrap(), 300));
        let drop = cost(&pool, || assert!(store.drop_namespace("cleared").unwrap()));
        assert_eq!((spaces[0].count(), spaces[1].count()), (200, 0));
        assert!(store.verify().unwrap().is_sound());
        (range, drop)
    });
    println!("{costs:?}");
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].1.1 <= 4, "a namespace is dropped by one word");
}

#[test]
fn a_cursor_goes_on_where_it_stands_whatever_was_written() {
    let (store, space) = store();
    (0..100u8).for_each(|n| space.put(&[n], &[n]).unwrap());
    let take = |cursor: &mut Cursor, count: usize| {
        let mut found = Vec::new();
        space
            .walk(cursor, |key, _| {
                found.push(key[0]);
                if found.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        found
    };
    let mut cursor = Cursor::new(Bound::Included(&[10]), Direction::Forward).until(Bound::Excluded(&[20]));
    assert_eq!(take(&mut cursor, 3), [10, 11, 12]);
    let kept = cursor.clone();
    space.delete(&[13]).unwrap();
    space.put(&[12, 5], b"new").unwrap();
    assert_eq!(take(&mut cursor, 3), [12, 14, 15]);
    assert_eq!((take(&mut cursor, 100), cursor.is_over(), take(&mut cursor, 100)), (vec![16, 17, 18, 19], true, vec![]));
    assert_eq!(kept.position(), Bound::Excluded(&[12][..]));
    // Backwards from the last key; an empty range; a prefix.
    let mut cursor = Cursor::new(Bound::Unbounded, Direction::Reverse).until(Bound::Included(&[97]));
    assert_eq!((take(&mut cursor, 1), take(&mut cursor, 2), take(&mut cursor, 1)), (vec![99], vec![98, 97], vec![]));
    assert!(take(&mut Cursor::new(Bound::Excluded(&[30]), Direction::Forward).until(Bound::Included(&[30])), 9).is_empty());
    assert!(take(&mut Cursor::new(Bound::Included(&[30]), Direction::Forward).until(Bound::Included(&[20])), 9).is_empty());
    let mut cursor = Cursor::prefix(&[12], Direction::Reverse);
    assert_eq!((take(&mut cursor, 1).len(), take(&mut cursor, 9).len()), (1, 1));
    // What a serializable transaction has not reached must not cause a conflict.
    for (written, conflicts) in [(40u8, true), (42, true), (43, false), (60, false)] {
        let mut transaction = store.begin(Isolation::Serializable).unwrap();
        let mut cursor = Cursor::new(Bound::Included(&[40]), Direction::Forward).until(Bound::Excluded(&[50]));
        let mut left = 3;
        let visit = |_: &[u8], _: &[u8]| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        transaction.walk(&space, &mut cursor, visit).unwrap();
        transaction.put(&space, b"result", b"").unwrap();
        space.put(&[written], b"other").unwrap();
        assert_eq!(transaction.commit().is_err(), conflicts, "{written}");
    }
}

fn pairs(count: u32) -> impl Iterator<Item = ([u8; 4], Vec<u8>)> {
    (0..count).map(|n| (n.to_be_bytes(), vec![n as u8; n as usize % 300]))
}

#[test]
fn what_is_loaded_is_there_at_once_and_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let open = || Store::open(&path, Options { size_max: 64 << 20, ..Options::default() }).unwrap();
    let store = open();
    let space = store.namespace("space").unwrap();
    space.put(b"there before", b"and gone").unwrap();
    let oldest = store.snapshot().unwrap();
    space.delete(b"there before").unwrap();
    let before = store.snapshot().unwrap();
    let mut reader = store.begin(Isolation::Serializable).unwrap();
    assert_eq!(reader.get(&space, &5u32.to_be_bytes()).unwrap(), None);
    reader.put(&space, b"other", b"").unwrap();
    let count = 5_000;
    let loaded = space.load(pairs(count).inspect(|(key, _)| {
        if *key == 3_000u32.to_be_bytes() {
            assert_eq!((space.count(), space.get(&1u32.to_be_bytes()).unwrap()), (0, None), "not yet");
            assert!(matches!(space.put(b"k", b"v"), Err(Error::Loading { namespace }) if namespace == "space"));
            // The acts before it are done.
            let mut found = Vec::new();
            let acts = [(&b"a"[..], Act::Delete), (b"k", Act::Put(b"v")), (b"b", Act::Delete)];
            let outcome = space.act_many(&acts, &mut found, |_, _| unreachable!("nothing is looked up"));
            assert!(matches!(outcome, Err(Error::Loading { .. })) && matches!(found[..], [Ok(false)]), "{found:?}, {outcome:?}");
            store.namespace("another").unwrap().put(b"k", b"v").unwrap();
        }
    }));
    assert_eq!(loaded.unwrap(), u64::from(count));
    let after = store.snapshot().unwrap();
    assert!(matches!(reader.commit(), Err(Error::Conflict { .. })), "what was absent is there");
    for (key, value) in pairs(count) {
        assert_eq!(space.get(&key).unwrap().as_ref(), Some(&value));
        assert_eq!(after.get(&space, &key).unwrap().as_ref(), Some(&value));
        assert_eq!((before.get(&space, &key).unwrap(), oldest.get(&space, &key).unwrap()), (None, None));
    }
    assert_eq!((oldest.get(&space, b"there before").unwrap(), before.get(&space, b"there before").unwrap()), (Some(b"and gone".to_vec()), None));
    // It is an index like any other: snapshots see its later changes.
    (0..count).step_by(3).for_each(|n| assert!(space.delete(&n.to_be_bytes()).unwrap()));
    space.put(&1u32.to_be_bytes(), b"new").unwrap();
    space.clear().unwrap();
    assert!(pairs(count).all(|(key, value)| after.get(&space, &key).unwrap() == Some(value)));
    let mut shown = 0;
    before
        .scan(&space, Bound::Unbounded, Direction::Forward, |_, _| {
            shown += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(shown, 0);
    check(&store);
    drop((oldest, before, after));
    while store.collect(1_000).unwrap() > 0 {}
    check(&store);
    assert_eq!(space.load(pairs(count)).unwrap(), u64::from(count));
    drop((space, store));
    let store = open();
    let space = store.namespace("space").unwrap();
    assert!(space.count() == u64::from(count) && pairs(count).all(|(key, value)| space.get(&key).unwrap() == Some(value)));
    check(&store);
}

#[test]
fn a_load_that_fails_leaves_no_trace() {
    let (store, space) = fixture::store(Options { size_max: 4 << 20, index: "isle-128".into(), ..Options::default() });
    let clean = |space: &Namespace| {
        assert_eq!((space.count(), keys(space).len()), (0, 0));
        check(&store);
        space.put(b"k", b"v").unwrap();
        space.clear().unwrap();
        check(&store);
    };
    for at in [0u32, 1, 63, 64, 65, 500, 999] {
        let long = pairs(1_000).map(|(key, value)| if key == at.to_be_bytes() { (vec![b'x'; KEY_SIZE_MAX + 1], value) } else { (key.to_vec(), value) });
        assert!(matches!(space.load(long), Err(Error::KeyTooLong { .. })), "{at}");
        clean(&space);
        let turned = pairs(1_000).map(|(key, value)| (if key == at.to_be_bytes() { (at.wrapping_sub(2)).to_be_bytes() } else { key }, value));
        assert!(matches!(space.load(turned), Err(Error::Index(error)) if matches!(error.cause(), everleaf_index::Cause::Unsorted { .. })), "{at}");
        clean(&space);
    }
    assert!(space.load(pairs(1 << 20)).unwrap_err().is_no_space());
    clean(&space);
    assert_eq!(space.load(pairs(0)).unwrap(), 0);
    space.put(b"k", b"v").unwrap();
    assert!(matches!(space.load(pairs(3)), Err(Error::Index(error)) if matches!(error.cause(), everleaf_index::Cause::NotEmpty { keys: 1 })));
    assert_eq!(keys(&space), [b"k"]);
    check(&store);
}

/// Regression: indexes that collect all entries before they build anything received the last one repeatedly, until memory was exhausted.
#[test]
fn a_load_that_fails_ends_on_every_index() {
    for index in everleaf_index::registry::<[u8], Hardware>().into_iter().filter(|index| index.persistent).map(|index| index.name) {
        let store = Store::anonymous(Options { size_max: 64 << 20, index: index.into(), ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        let long = pairs(1_000).map(|(key, value)| if key == 500_u32.to_be_bytes() { (vec![b'x'; KEY_SIZE_MAX + 1], value) } else { (key.to_vec(), value) });
        assert!(matches!(space.load(long), Err(Error::KeyTooLong { .. })), "{index}");
        assert_eq!((space.count(), store.namespaces().len(), store.pool().root("space").unwrap()), (0, 0, None), "{index}");
        check(&store);
        assert_eq!(space.load(pairs(1_000)).unwrap(), 1_000, "{index}");
        check(&store);
    }
}

/// Regression: each snapshot without a place went through all others three times. A client that watched a hundred thousand keys blocked everybody for minutes.
#[test]
fn a_snapshot_among_many_is_as_soon_there_as_one_among_few() {
    let (store, _) = store();
    let take = || store.snapshot().unwrap();
    let time = || {
        let round = |_| {
            let start = Instant::now();
            (0..100).for_each(|_| drop(take()));
            start.elapsed()
        };
        (0..20).map(round).min().unwrap()
    };
    let mut held: Vec<_> = (0..100).map(|_| take()).collect();
    let few = time();
    held.extend((0..20_000).map(|_| take()));
    let many = time();
    assert!(many < few * 10, "{few:?} among 100, {many:?} among 20 100");
}

/// Most of the snapshots have found no place.
#[test]
fn snapshots_that_end_in_any_order_hold_back_what_the_others_see() {
    const COUNT: u64 = 60;
    let (store, space) = store();
    let mut held = Vec::new();
    for n in 0..COUNT {
        space.put(b"k", &n.to_le_bytes()).unwrap();
        held.push((n, store.snapshot().unwrap()));
    }
    for step in 0..COUNT {
        space.put(b"k", b"new").unwrap();
        drop(held.swap_remove(step as usize * 7 % held.len()));
        store.collect(usize::MAX).unwrap();
        for (n, snapshot) in &held {
            assert_eq!(snapshot.get(&space, b"k").unwrap().unwrap(), n.to_le_bytes());
        }
        assert_eq!(store.held_back().snapshots, held.len());
    }
    assert_eq!(store.held_back().count, 0);
}

#[test]
fn a_verification_tells_how_far_it_is() {
    let (store, space) = store();
    (0..5000_u32).for_each(|number| space.put(&number.to_be_bytes(), b"v").unwrap());
    let mut told = Vec::new();
    let report = store.verify_with(|read, expected| {
        told.push((read, expected));
        ControlFlow::Continue(())
    });
    assert!(report.unwrap().is_some_and(|report| report.is_sound()));
    assert_eq!(told, [(1024, 5000), (2048, 5000), (3072, 5000), (4096, 5000)]);
    let mut looks = 0;
    let report = store.verify_with(|_, _| {
        looks += 1;
        ControlFlow::Break(())
    });
    assert!(report.unwrap().is_none() && looks == 1);
}

/// The iterator of entries may panic. Then nothing is loaded, and the store keeps working.
#[test]
fn a_load_whose_entries_panic_leaves_no_trace() {
    for count in [1, 100, 5_000] {
        let (store, space) = store();
        let entries = pairs(count).chain(std::iter::once_with(|| panic!("no more")));
        assert!(catch_unwind(AssertUnwindSafe(|| space.load(entries))).is_err());
        assert_eq!((space.count(), store.namespaces().len(), store.pool().root("space").unwrap()), (0, 0, None));
        check(&store);
        space.put(b"key", b"value").unwrap();
        space.clear().unwrap();
        assert_eq!(space.load(pairs(count)).unwrap(), u64::from(count));
        check(&store);
    }
}

/// Regression: the record was written without a check of the size.
#[test]
fn a_value_that_a_batch_merges_is_not_too_long_either() {
    let (store, space) = store();
    let merge = Merge::With(Arc::new(|_| Ok(Some(vec![0; VALUE_SIZE_MAX + 1]))));
    for is_known in [true, false] {
        let mut batch = Batch::default();
        if is_known {
            batch.put(&space, b"k", b"v");
        }
        batch.merge(&space, b"k", merge.clone());
        assert!(matches!(store.write(batch), Err(Error::ValueTooLong { size }) if size == VALUE_SIZE_MAX + 1));
    }
    assert_eq!(space.count(), 0);
    check(&store);
}

#[test]
fn what_is_put_together_is_there_as_a_whole_or_not() {
    let (store, space) = store();
    let too_long = vec![0; KEY_SIZE_MAX + 1];
    space.put_together(&[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]).unwrap();
    assert!(matches!(space.put_together(&[(b"a", b"4"), (&too_long, b"4")]), Err(Error::KeyTooLong { .. })));
    assert!(matches!(space.put_together(&[(b"b", b"5"), (b"c", &vec![5; 65 << 20])]), Err(error) if error.is_no_space()));
    assert_eq!(space.get_many(&[b"a", b"b", b"c"]).unwrap(), [Some(b"3".to_vec()), Some(b"2".to_vec()), None]);
    space.put_together(&[]).unwrap();
    assert_eq!(space.delete_together(&[b"b", b"c", b"a", b"b"]).unwrap(), 2);
    assert_eq!((space.count(), space.delete_together(&[]).unwrap()), (0, 0));
    check(&store);
}

/// It must not; but nothing of the store may be lost by it.
#[test]
fn a_closure_that_drops_a_snapshot_leaves_the_rest_to_others() {
    let (store, space) = store();
    space.put(b"key", b"1").unwrap();
    let mut snapshot = Some(store.snapshot().unwrap());
    assert!(space.delete(b"key").unwrap());
    let decide = |_: Option<&[u8]>| {
        drop(snapshot.take());
        Change::Keep
    };
    space.modify(b"key", decide).unwrap();
    while store.collect(100).unwrap() > 0 {}
    assert_eq!((space.count(), store.held_back().count), (0, 0));
    check(&store);
}

/// Regression: the callback was shown the key again, alone, as if the key could not be looked up.
#[test]
fn who_refuses_what_several_lookups_show_is_asked_once() {
    let (_store, space) = fixture::store(Options { size_max: 1 << 20, ..Options::default() });
    space.put(b"a", b"1").unwrap();
    for acts in [[(&b"a"[..], Act::Get), (b"b", Act::Get)], [(b"a", Act::Get), (b"b", Act::Put(b"2"))]] {
        let (mut found, mut shown) = (Vec::new(), 0);
        let outcome = space.act_many(&acts, &mut found, |_, _| {
            shown += 1;
            Err(Error::ReadOnly)
        });
        assert!(matches!(outcome, Err(Error::ReadOnly)) && found.is_empty(), "{outcome:?}");
        assert_eq!(shown, 1);
    }
    assert!(space.get(b"b").unwrap().is_none());
}

/// Regression: it waited for itself for ever.
#[test]
fn a_closure_that_writes_to_its_own_key_panics() {
    let (store, space) = store();
    space.put(b"key", b"1").unwrap();
    let batch = |expected: Option<&[u8]>| {
        let mut batch = Batch::default();
        batch.put(&space, b"other", b"2");
        expected.into_iter().for_each(|_| batch.expect(&space, b"key", expected));
        batch.put(&space, if expected.is_some() { b"another" } else { b"key" }, b"2");
        batch
    };
    let writes: [&dyn Fn(); 7] = [
        &|| space.put(b"key", b"2").unwrap(),
        &|| space.put_many(&[(b"other", b"2"), (b"key", b"2")]).unwrap(),
        &|| store.write(batch(None)).unwrap(),
        &|| store.write(batch(Some(b"1"))).unwrap(),
        &|| store.transact(Isolation::Snapshot, |transaction| transaction.put(&space, b"key", b"2")).unwrap(),
        &|| space.clear().unwrap(),
        &|| assert!(store.verify().unwrap().is_sound()),
    ];
    for write in writes {
        let nested = |_: Option<&[u8]>| {
            write();
            Change::Keep
        };
        let panic = catch_unwind(AssertUnwindSafe(|| space.modify(b"key", nested))).unwrap_err();
        assert!(panic.downcast_ref::<&str>().unwrap().contains("waited for itself"));
    }
    let next = |old: Option<&[u8]>| {
        assert_eq!(old, Some(&b"1"[..]));
        Change::Put(b"3".to_vec())
    };
    space.modify(b"key", next).unwrap();
    assert_eq!(space.get(b"key").unwrap().unwrap(), b"3");
    check(&store);
}
