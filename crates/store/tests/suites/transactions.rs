//! Snapshots and transactions: provokes each known anomaly by name and checks what each isolation level allows, and tests other promises of transactions.

use crate::INDEXES;
use crate::fixture::{self, forge_commit_of, store_in_memory};
use everleaf::{Batch, Cursor, Direction, Error, HeldBack, Isolation, Merge, Namespace, Options, Snapshot, Store, Transaction};
use everleaf_pmem::{Found, Hardware, Pool, PoolOptions};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

const WRITING: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];
const ALL: [Isolation; 3] = [Isolation::ReadOnly, Isolation::Snapshot, Isolation::Serializable];

fn pool() -> Arc<Pool<Hardware>> {
    Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap()
}

fn open(pool: &Arc<Pool<Hardware>>, index: &str) -> Store {
    Store::on(pool.clone(), &Options { index: index.into(), recovery_threads: 2, ..Options::default() }).unwrap()
}

/// A store with `x` = 10 and `y` = 20 in a namespace.
fn store_on(index: &str) -> (Store, Namespace) {
    let store = open(&pool(), index);
    let space = store.namespace("space").unwrap();
    space.put(b"x", b"10").unwrap();
    space.put(b"y", b"20").unwrap();
    (store, space)
}

fn store() -> (Store, Namespace) {
    store_on("isle-128")
}

/// Such a store for each of these, on each index.
fn stores<T: Copy>(cases: &[T]) -> impl Iterator<Item = (T, Store, Namespace)> {
    INDEXES.into_iter().flat_map(move |index| {
        cases.iter().map(move |case| {
            let (store, space) = store_on(index);
            (*case, store, space)
        })
    })
}

fn values(space: &Namespace) -> [Option<Vec<u8>>; 2] {
    [b"x", b"y"].map(|key| space.get(key).unwrap())
}

fn texts<const N: usize>(values: [&str; N]) -> [Option<Vec<u8>>; N] {
    values.map(|value| Some(value.as_bytes().to_vec()))
}

fn keys(transaction: &Transaction, space: &Namespace) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    transaction.scan(space, Bound::Unbounded, Direction::Forward, visit).unwrap();
    keys
}

/// Checks for a conflict on this key.
#[track_caller]
fn assert_conflict(outcome: Result<(), Error>, wanted: &[u8]) {
    match outcome {
        Err(Error::Conflict { namespace, key }) => assert_eq!((namespace.as_str(), key.as_slice()), ("space", wanted)),
        outcome => panic!("{outcome:?} instead of a conflict"),
    }
}

#[test]
fn no_dirty_write() {
    for (isolation, store, space) in stores(&WRITING) {
        let mut transactions = ["1", "2"].map(|value| (store.begin(isolation).unwrap(), value));
        for key in [b"x", b"y"] {
            for (transaction, value) in &mut transactions {
                transaction.put(&space, key, value.as_bytes()).unwrap();
            }
        }
        let [(first, _), (second, _)] = transactions;
        second.commit().unwrap();
        assert_conflict(first.commit(), b"x");
        assert_eq!(values(&space), texts(["2", "2"]), "{isolation:?}");
    }
}

#[test]
fn no_dirty_read() {
    for (isolation, store, space) in stores(&ALL) {
        let mut writer = store.begin(Isolation::Snapshot).unwrap();
        writer.put(&space, b"x", b"dirty").unwrap();
        let reader = store.begin(isolation).unwrap();
        assert_eq!(reader.get(&space, b"x").unwrap().as_deref(), Some(&b"10"[..]));
        assert_eq!(values(&space), texts(["10", "20"]));
        drop(writer);
        assert_eq!(reader.get(&space, b"x").unwrap().as_deref(), Some(&b"10"[..]));
        reader.commit().unwrap();
        assert_eq!(values(&space), texts(["10", "20"]), "what was aborted is seen by nobody");
    }
}

#[test]
fn no_fuzzy_read() {
    for (isolation, store, space) in stores(&ALL) {
        let reader = store.begin(isolation).unwrap();
        assert_eq!(reader.get(&space, b"x").unwrap().as_deref(), Some(&b"10"[..]));
        for change in [Some(&b"11"[..]), None, Some(b"12")] {
            space.compare_and_swap(b"x", space.get(b"x").unwrap().as_deref(), change).unwrap();
            assert_eq!(reader.get(&space, b"x").unwrap().as_deref(), Some(&b"10"[..]), "{isolation:?}");
        }
    }
}

#[test]
fn no_phantom() {
    for (isolation, store, space) in stores(&ALL) {
        let mut reader = store.begin(isolation).unwrap();
        let before = keys(&reader, &space);
        space.put(b"phantom", b"").unwrap();
        space.delete(b"y").unwrap();
        assert_eq!(keys(&reader, &space), before);
        // Changes that it has not seen matter only to a transaction that claims to have seen all as of its commit.
        match isolation {
            Isolation::ReadOnly => assert!(matches!(reader.put(&space, b"z", b""), Err(Error::ReadOnly))),
            _ => reader.put(&space, b"z", b"").unwrap(),
        }
        match isolation {
            Isolation::Serializable => assert_conflict(reader.commit(), b"phantom"),
            _ => reader.commit().unwrap(),
        }
    }
}

#[test]
fn no_lost_update() {
    for (isolation, store, space) in stores(&WRITING) {
        let increment = |transaction: &mut Transaction| {
            let old: u64 = String::from_utf8(transaction.get(&space, b"x").unwrap().unwrap()).unwrap().parse().unwrap();
            transaction.put(&space, b"x", (old + 1).to_string().as_bytes()).unwrap();
        };
        let [mut first, mut second] = [isolation; 2].map(|isolation| store.begin(isolation).unwrap());
        increment(&mut first);
        increment(&mut second);
        first.commit().unwrap();
        assert_conflict(second.commit(), b"x");
        // Nor can a write outside of transactions.
        let mut third = store.begin(isolation).unwrap();
        increment(&mut third);
        space.put(b"x", b"100").unwrap();
        assert_conflict(third.commit(), b"x");
        assert_eq!(values(&space), texts(["100", "20"]));
    }
}

#[test]
fn no_read_skew() {
    for (isolation, store, space) in stores(&ALL) {
        let reader = store.begin(isolation).unwrap();
        assert_eq!(reader.get(&space, b"x").unwrap().as_deref(), Some(&b"10"[..]));
        let mut batch = Batch::default();
        batch.put(&space, b"x", b"15");
        batch.put(&space, b"y", b"15");
        store.write(batch).unwrap();
        assert_eq!(reader.get(&space, b"y").unwrap().as_deref(), Some(&b"20"[..]), "{isolation:?}");
    }
}

#[test]
fn write_skew_is_possible_with_snapshots_and_not_if_serializable() {
    for (isolation, store, space) in stores(&WRITING) {
        let [mut first, mut second] = [isolation; 2].map(|isolation| store.begin(isolation).unwrap());
        for transaction in [&first, &second] {
            assert!([b"x", b"y"].map(|key| transaction.get(&space, key).unwrap()).iter().all(Option::is_some));
        }
        first.delete(&space, b"x").unwrap();
        second.delete(&space, b"y").unwrap();
        first.commit().unwrap();
        match isolation {
            Isolation::Serializable => assert_conflict(second.commit(), b"x"),
            _ => second.commit().unwrap(),
        }
        assert_eq!(values(&space), [None, (isolation == Isolation::Serializable).then(|| b"20".to_vec())]);
    }
}

/// Each transaction adds a key to those that the other has counted.
#[test]
fn write_skew_by_phantoms_is_possible_with_snapshots_and_not_if_serializable() {
    for (isolation, store, space) in stores(&WRITING) {
        let [mut first, mut second] = [isolation; 2].map(|isolation| store.begin(isolation).unwrap());
        let counted = [&first, &second].map(|transaction| keys(transaction, &space).len());
        assert_eq!(counted, [2, 2]);
        first.put(&space, b"a", b"the third").unwrap();
        second.put(&space, b"b", b"the third").unwrap();
        second.commit().unwrap();
        match isolation {
            Isolation::Serializable => assert_conflict(first.commit(), b"b"),
            _ => first.commit().unwrap(),
        }
    }
}

/// A range counts as far as it was scanned, and no farther.
#[test]
fn a_scan_conflicts_with_what_it_has_come_by() {
    for (direction, harmful, harmless) in [(Direction::Forward, b"b", b"n"), (Direction::Reverse, b"t", b"d")] {
        for ((changed, conflicts), store, space) in stores(&[(harmful, true), (harmless, false)]) {
            [b"a", b"m", b"s", b"v"].iter().for_each(|key| space.put(*key, b"").unwrap());
            let mut transaction = store.begin(Isolation::Serializable).unwrap();
            let mut left = 2;
            let visit = |_: &[u8], _: &[u8]| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let from = if direction == Direction::Forward { Bound::Unbounded } else { Bound::Excluded(&b"x"[..]) };
            transaction.scan(&space, from, direction, visit).unwrap();
            transaction.put(&space, b"z", b"").unwrap();
            space.put(changed, b"").unwrap();
            match conflicts {
                true => assert_conflict(transaction.commit(), changed),
                false => transaction.commit().unwrap(),
            }
        }
    }
}

/// The anomaly of Fekete, O'Neil and O'Neil: two writers are serializable, until a reader has seen only one of them.
#[test]
fn the_read_only_anomaly_is_possible_with_snapshots_and_not_if_serializable() {
    for (isolation, store, space) in stores(&WRITING) {
        let mut fee = store.begin(isolation).unwrap();
        assert_eq!(fee.get(&space, b"y").unwrap().as_deref(), Some(&b"20"[..]));
        fee.put(&space, b"x", b"-1").unwrap();
        space.put(b"y", b"40").unwrap();
        let reader = store.begin(Isolation::ReadOnly).unwrap();
        assert_eq!([b"x", b"y"].map(|key| reader.get(&space, key).unwrap()), texts(["10", "40"]));
        match isolation {
            Isolation::Serializable => assert_conflict(fee.commit(), b"y"),
            _ => fee.commit().unwrap(),
        }
    }
}

#[test]
fn a_transaction_conflicts_with_deletes_and_clears() {
    type Disturb = fn(&Store, &Namespace);
    let disturbances: [Disturb; 4] = [
        |_, space| assert!(space.delete(b"x").unwrap()),
        |_, space| space.clear().unwrap(),
        |store, _| assert!(store.drop_namespace("space").unwrap()),
        // Removed and restored with the same value.
        |_, space| {
            space.delete(b"x").unwrap();
            space.put(b"x", b"10").unwrap();
        },
    ];
    for isolation in WRITING {
        for (disturb, store, space) in stores(&disturbances) {
            let mut transaction = store.begin(isolation).unwrap();
            transaction.put(&space, b"x", b"11").unwrap();
            disturb(&store, &space);
            assert_conflict(transaction.commit(), b"x");
            store.collect(usize::MAX).unwrap();
            assert_eq!(store.held_back(), HeldBack::default());
            assert!(store.verify().unwrap().is_sound());
        }
    }
}

#[test]
fn a_transaction_is_all_or_nothing_over_namespaces_and_restarts() {
    let pool = pool();
    let store = open(&pool, "isle-128");
    let spaces = ["a", "b", "c"].map(|name| store.namespace(name).unwrap());
    spaces[0].put(b"gone", b"").unwrap();
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    for space in &spaces {
        (0..100u8).for_each(|n| transaction.put(space, &[n], &[n; 50]).unwrap());
    }
    transaction.delete(&spaces[0], b"gone").unwrap();
    let mut aborted = store.begin(Isolation::Serializable).unwrap();
    aborted.put(&spaces[1], b"aborted", b"").unwrap();
    transaction.commit().unwrap();
    drop((aborted, spaces, store));
    let store = open(&pool, "isle-128");
    for name in ["a", "b", "c"] {
        let space = store.namespace(name).unwrap();
        assert_eq!(space.count(), 100);
        assert!((0..100u8).all(|n| space.get(&[n]).unwrap() == Some(vec![n; 50])));
    }
    assert!(store.verify().unwrap().is_sound());
}

/// After a store is not closed, although snapshots held back tombstones, versions and a cleared namespace, none of these is left.
#[test]
fn nothing_that_was_held_back_outlives_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("pool"), directory.path().join("copy"));
    let options = Options { size_max: 64 << 20, index: "isle-128".into(), ..Options::default() };
    let store = Store::open(&path, options.clone()).unwrap();
    let spaces = ["kept", "cleared"].map(|name| store.namespace(name).unwrap());
    for space in &spaces {
        (0..500u32).for_each(|n| space.put(&n.to_be_bytes(), b"first").unwrap());
    }
    let snapshot = store.snapshot().unwrap();
    for n in 0..500u32 {
        match n % 3 {
            0 => drop(spaces[0].delete(&n.to_be_bytes()).unwrap()),
            1 => spaces[0].put(&n.to_be_bytes(), b"second").unwrap(),
            _ => {}
        }
    }
    let mut batch = Batch::default();
    batch.delete(&spaces[0], &2u32.to_be_bytes());
    batch.put(&spaces[0], b"last", b"batch");
    store.write(batch).unwrap();
    spaces[1].clear().unwrap();
    assert!(spaces.iter().all(|space| snapshot.get(space, &3u32.to_be_bytes()).unwrap().as_deref() == Some(b"first")));
    let held = store.held_back();
    // 167 versions and as many tombstones of deletes, 167 of puts, 2 of the batch, an index.
    assert_eq!((held.snapshots, held.count), (1, 167 * 3 + 2 + 1));
    assert!(held.age >= 334, "{held:?}");
    assert!(store.verify().unwrap().is_sound());
    // What a crash would leave now.
    std::fs::copy(&path, &copy).unwrap();
    let store = Store::open(&copy, options).unwrap();
    assert_eq!(store.namespaces(), ["kept"]);
    let space = store.namespace("kept").unwrap();
    assert_eq!(space.count(), 500 - 167 - 1 + 1);
    for n in 3..500u32 {
        let wanted = [None, Some(&b"second"[..]), Some(b"first")][n as usize % 3];
        assert_eq!(space.get(&n.to_be_bytes()).unwrap().as_deref(), wanted, "{n}");
    }
    assert_eq!(store.held_back(), HeldBack::default());
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Regression: the handle was lost, and with it the way to close the store.
#[test]
fn a_store_that_is_not_closed_yet_is_handed_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = Options { size_max: 64 << 20, keeps_house: true, ..Options::default() };
    let store = Store::open(&path, options.clone()).unwrap();
    let space = store.namespace("space").unwrap();
    space.put(b"k", b"v").unwrap();
    let snapshot = store.snapshot().unwrap();
    space.delete(b"k").unwrap();
    let store = store.close().unwrap_err().store;
    space.put_until(b"l", b"w", store.time_ms() + 1).unwrap();
    // Its thread goes on; it counts after it has removed.
    while store.expired_count() == 0 {
        std::thread::yield_now();
    }
    assert_eq!((space.count(), store.expired_count()), (0, 1));
    drop((snapshot, space));
    store.close().unwrap();
    assert_eq!(Store::open(&path, options).unwrap().pool().info().found, Found::Clean);
}

/// Regression: after an own entry that could not be shown, a transaction continued after the next entry of its snapshot.
#[test]
fn a_cursor_goes_on_behind_an_entry_of_its_own_that_cannot_be_shown() {
    let (store, space) = store();
    for (direction, expected) in [(Direction::Forward, ["", "a!", "x", "xx!", "y", "z", "z!"]), (Direction::Reverse, ["z!", "z", "y", "xx!", "x", "a!", ""])] {
        let mut transaction = store.begin(Isolation::Snapshot).unwrap();
        ["", "z"].iter().for_each(|key| transaction.put(&space, key.as_bytes(), b"own").unwrap());
        for key in ["a!", "xx!", "z!"] {
            transaction.merge(&space, key.as_bytes(), Merge::With(Arc::new(|_| Err("a test".into())))).unwrap();
        }
        let mut cursor = Cursor::new(Bound::Unbounded, direction);
        let mut shown = Vec::new();
        while !cursor.is_over() {
            let walked = transaction.walk(&space, &mut cursor, |key, _| {
                shown.push(String::from_utf8(key.to_vec()).unwrap());
                ControlFlow::Continue(())
            });
            match walked {
                Err(Error::Merge { key, .. }) => shown.push(String::from_utf8(key).unwrap()),
                walked => walked.unwrap(),
            }
        }
        assert_eq!(shown, expected);
    }
}

#[test]
fn a_store_is_closed_when_nothing_is_held_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = Options { size_max: 64 << 20, ..Options::default() };
    for (holds_back, is_clean) in [(false, true), (true, false)] {
        let store = Store::open(&path, options.clone()).unwrap();
        let space = store.namespace("space").unwrap();
        space.put(b"k", b"v").unwrap();
        let snapshot = store.snapshot().unwrap();
        if holds_back {
            space.delete(b"k").unwrap();
        }
        let unclosed = store.close().err();
        assert!(unclosed.as_ref().map(|unclosed| &unclosed.error).is_none_or(|error| matches!(error, Error::SnapshotsOpen { count: 1 })), "{unclosed:?}");
        assert_eq!(unclosed.is_some(), holds_back);
        drop(unclosed);
        assert_eq!(snapshot.get(&space, b"k").unwrap().as_deref(), Some(&b"v"[..]));
        drop((snapshot, space));
        let store = Store::open(&path, options.clone()).unwrap();
        assert_eq!(store.pool().info().found == Found::Clean, is_clean);
        assert_eq!(store.namespace("space").unwrap().count(), u64::from(!holds_back));
        assert!(store.verify().unwrap().is_sound());
    }
}

/// As many versions as there is room for are held back, and only their space is missing until the snapshot ends.
#[test]
fn what_a_snapshot_held_back_is_used_again() {
    let (store, space) = fixture::store(Options { size_max: 4 << 20, index: "isle-128".into(), ..Options::default() });
    const COUNT: u32 = 10_000;
    (0..COUNT).for_each(|n| space.put(&n.to_be_bytes(), b"as of the snapshot").unwrap());
    let snapshot = store.snapshot().unwrap();
    let mut writes = 0u32;
    let refused = loop {
        match space.put(&writes.to_be_bytes(), &[7; 500]) {
            Ok(()) => writes += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.is_no_space() && (1_000..COUNT).contains(&writes), "{refused}");
    assert!((0..COUNT).all(|n| snapshot.get(&space, &n.to_be_bytes()).unwrap().as_deref() == Some(b"as of the snapshot")));
    assert_eq!(store.held_back().count, u64::from(writes));
    assert!(store.verify().unwrap().is_sound());
    drop(snapshot);
    // Deletes need room as long as versions are kept; the store makes room.
    (0..50u32).for_each(|n| assert!(space.delete(&n.to_be_bytes()).unwrap()));
    (0..3 * writes).for_each(|n| space.put(&(n % 100).to_be_bytes(), &[8; 500]).unwrap());
    assert_eq!((store.held_back(), space.count()), (HeldBack::default(), u64::from(COUNT)));
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: a version seen by a short snapshot was held back until the oldest one ended, however long ago the short one had: one version for each.
#[test]
fn what_a_snapshot_held_back_is_given_back_beside_an_older_one() {
    const WRITES: u32 = 1_000;
    const KEYS: u8 = 3;
    for index in ["ever", "isle", "nv"] {
        let (store, space) = store_on(index);
        // A replaced tombstone leaves an entry in the list, although its space in the pool is freed.
        let tombstones = Cell::new(0);
        let put = |n: u32| {
            for key in 0..KEYS {
                match n % 7 {
                    // The key also comes and goes.
                    6 if key == 2 => {
                        assert!(space.delete(&[key]).unwrap());
                        tombstones.set(tombstones.get() + 1);
                    }
                    _ => space.put(&[key], &n.to_le_bytes()).unwrap(),
                }
            }
        };
        let bound = |idle: &[(u32, Snapshot)]| idle.len() as u64 * u64::from(KEYS) + tombstones.get();
        put(0);
        let mut idle: Vec<(u32, Snapshot)> = vec![(0, store.snapshot().unwrap())];
        let mut most = 0;
        for n in 1..=WRITES {
            // Each snapshot sees what the write before it has left. Two end in the order of queues, and some in that of stacks.
            let before = store.snapshot().unwrap();
            put(n);
            let between = store.snapshot().unwrap();
            put(n + WRITES);
            if n % 2 == 0 {
                drop(before);
                drop(between);
            } else {
                drop(between);
                let transaction = store.begin(Isolation::Serializable).unwrap();
                drop((before, transaction));
            }
            if n % 300 == 0 {
                idle.push((n + WRITES, store.snapshot().unwrap()));
            }
            // For each key, what each idle snapshot sees.
            most = most.max(store.held_back().count);
            assert!(store.held_back().count <= bound(&idle), "{index}: {n}: {:?}, at most {}", store.held_back(), bound(&idle));
        }
        assert!(most >= u64::from(KEYS), "{index}: {most}");
        for (n, snapshot) in &idle {
            let values = (0..KEYS).map(|key| snapshot.get(&space, &[key]).unwrap());
            let expected = (0..KEYS).map(|key| (n % 7 != 6 || key != 2).then(|| n.to_le_bytes().to_vec()));
            assert!(values.eq(expected), "{index}: {n}");
        }
        assert!(store.verify().unwrap().is_sound());
        // From the middle, the end and the beginning.
        for place in [1, 2, 0, 0] {
            drop(idle.remove(place));
            assert!(store.held_back().count <= bound(&idle), "{index}: {:?}, at most {}", store.held_back(), bound(&idle));
            for (n, snapshot) in &idle {
                assert_eq!(snapshot.get(&space, &[0]).unwrap(), Some(n.to_le_bytes().to_vec()), "{index}");
            }
        }
        assert_eq!(store.held_back(), HeldBack::default(), "{index}");
        assert!(store.verify().unwrap().is_sound());
    }
}

/// Versions that a long snapshot has held and an older one does not need are freed in steps, however many they are.
#[test]
fn what_a_long_snapshot_held_back_is_given_back_in_steps() {
    const KEYS: u32 = 5_000;
    let (store, space) = store_on("ever");
    let put = |value: u8| (0..KEYS).for_each(|n| space.put(&n.to_be_bytes(), &[value; 40]).unwrap());
    put(0);
    let idle = store.snapshot().unwrap();
    put(1);
    let long = store.snapshot().unwrap();
    put(2);
    put(3);
    assert_eq!(store.held_back().count, 2 * u64::from(KEYS));
    drop(long);
    let left = store.held_back();
    assert!((u64::from(KEYS)..2 * u64::from(KEYS)).contains(&left.count), "{left:?}");
    // Each write frees a little.
    (0..100).for_each(|_| space.put(b"other", b"1").unwrap());
    assert!(store.held_back().count < left.count, "{left:?}, {:?}", store.held_back());
    while store.collect(100).unwrap() > 0 {}
    assert_eq!(store.held_back().count, u64::from(KEYS));
    assert!((0..KEYS).all(|n| idle.get(&space, &n.to_be_bytes()).unwrap() == Some(vec![0; 40])));
    assert!(store.verify().unwrap().is_sound());
    drop(idle);
    while store.collect(100).unwrap() > 0 {}
    assert_eq!(store.held_back(), HeldBack::default());
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_closure_is_retried_until_it_is_alone() {
    let (store, space) = store();
    let mut attempts = 0;
    let sum = store.transact(Isolation::Serializable, |transaction| {
        attempts += 1;
        let old = transaction.get(&space, b"x")?.unwrap_or_default();
        if attempts < 4 {
            space.put(b"x", format!("meanwhile {attempts}").as_bytes())?;
        }
        transaction.put(&space, b"y", &old)?;
        Ok::<_, Error>(old)
    });
    assert_eq!((attempts, sum.unwrap()), (4, b"meanwhile 3".to_vec()));
    assert_eq!(values(&space), texts(["meanwhile 3", "meanwhile 3"]));
    let failed = store.transact(Isolation::Snapshot, |transaction| {
        transaction.put(&space, b"x", b"never seen")?;
        Err::<(), _>(Error::ReadOnly)
    });
    assert!(matches!(failed, Err(Error::ReadOnly)));
    assert_eq!(space.get(b"x").unwrap().as_deref(), Some(&b"meanwhile 3"[..]));
}

#[test]
fn savepoints_are_gone_back_to_more_than_once() {
    let (store, space) = store();
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    transaction.put(&space, b"x", b"11").unwrap();
    let outer = transaction.savepoint();
    transaction.put(&space, b"x", b"12").unwrap();
    let inner = transaction.savepoint();
    for value in [&b"13"[..], b"14"] {
        transaction.put(&space, b"x", value).unwrap();
        transaction.delete(&space, b"y").unwrap();
        transaction.rollback_to(&inner);
        assert_eq!([b"x", b"y"].map(|key| transaction.get(&space, key).unwrap()), texts(["12", "20"]));
    }
    transaction.rollback_to(&outer);
    assert_eq!([b"x", b"y"].map(|key| transaction.get(&space, key).unwrap()), texts(["11", "20"]));
    transaction.commit().unwrap();
    assert_eq!(values(&space), texts(["11", "20"]));
}

#[test]
fn what_a_savepoint_keeps_is_given_back_with_it() {
    let (store, space) = store();
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    let large = vec![1; 10_000];
    let [outer, inner] = std::array::from_fn(|_| {
        transaction.put(&space, b"x", &large).unwrap();
        transaction.savepoint()
    });
    transaction.put(&space, b"x", &large).unwrap();
    let drafts = || store.held_back().draft_bytes as usize / large.len();
    transaction.release(inner);
    assert_eq!(drafts(), 3, "may be gone back to");
    transaction.release(outer);
    assert_eq!(drafts(), 1);
    transaction.put(&space, b"x", b"11").unwrap();
    assert_eq!(drafts(), 0);
    let savepoint = transaction.savepoint();
    transaction.put(&space, b"x", b"12").unwrap();
    transaction.rollback_to(&savepoint);
    transaction.commit().unwrap();
    assert_eq!(values(&space), texts(["11", "20"]));
}

#[test]
#[should_panic(expected = "a savepoint of which nothing is left")]
fn a_savepoint_after_one_that_was_given_up_is_refused() {
    let (store, space) = store();
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    let [first, second] = std::array::from_fn(|_| transaction.savepoint());
    transaction.release(first);
    transaction.put(&space, b"x", b"1").unwrap();
    transaction.rollback_to(&second);
}

#[test]
fn a_large_transaction_is_one_too() {
    const COUNT: u32 = 100_000;
    let (store, space) = fixture::store(Options { size_max: 512 << 20, ..Options::default() });
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    (0..COUNT).for_each(|n| transaction.put(&space, &n.to_be_bytes(), &n.to_le_bytes()).unwrap());
    let before = store.snapshot().unwrap();
    transaction.commit().unwrap();
    assert_eq!((space.count(), before.get(&space, &7u32.to_be_bytes()).unwrap()), (u64::from(COUNT), None));
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    (0..COUNT).step_by(2).for_each(|n| assert!(transaction.delete(&space, &n.to_be_bytes()).unwrap()));
    transaction.commit().unwrap();
    assert_eq!(space.count(), u64::from(COUNT / 2));
    drop(before);
    while store.collect(1_000).unwrap() > 0 {}
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: for a key of another store's namespace, a transaction returned what it had written in its own namespace of the same number.
#[test]
fn a_namespace_of_another_store_is_refused() {
    let ((store, space), (_, other)) = (self::store(), self::store());
    let (snapshot, mut transaction) = (store.snapshot().unwrap(), store.begin(Isolation::Snapshot).unwrap());
    transaction.put(&space, b"x", b"11").unwrap();
    let cursor = || Cursor::prefix(b"", Direction::Forward);
    let calls: [&dyn Fn(); 8] = [
        &|| drop(snapshot.get(&other, b"x")),
        &|| drop(snapshot.entry(&other, b"x")),
        &|| drop(snapshot.get_many(&other, &[b"x"])),
        &|| drop(snapshot.walk(&other, &mut cursor(), |_, _| ControlFlow::Continue(()))),
        &|| drop(transaction.get(&other, b"x")),
        &|| drop(transaction.entry(&other, b"x")),
        &|| drop(transaction.value_size(&other, b"x")),
        &|| drop(transaction.walk_keys(&other, &mut cursor(), |_| ControlFlow::Continue(()))),
    ];
    for call in calls {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("belongs to another store"));
    }
}

#[test]
fn keys_are_walked_over_without_their_values() {
    let (store, space) = store();
    for key in [b"a", b"b", b"c"] {
        space.put(key, b"stored").unwrap();
    }
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    transaction.delete(&space, b"b").unwrap();
    transaction.put(&space, b"bb", b"own").unwrap();
    let mut cursor = Cursor::new(Bound::Included(b"a"), Direction::Forward).until(Bound::Excluded(b"d"));
    let mut take = |limit: usize| {
        let mut keys = Vec::new();
        let visit = |key: &[u8]| {
            keys.push(key.to_vec());
            if keys.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        transaction.walk_keys(&space, &mut cursor, visit).unwrap();
        keys
    };
    assert_eq!(take(1), [b"a"]);
    assert_eq!(take(9), [&b"bb"[..], b"c"]);
}

#[test]
fn what_was_cleared_and_loaded_has_changed() {
    let (store, space) = store();
    let value = space.get(b"x").unwrap().unwrap();
    let before = store.snapshot().unwrap();
    let transaction = store.begin(Isolation::Serializable).unwrap();
    assert!(transaction.is_unchanged_since(&before, &space, b"x").unwrap());
    space.clear().unwrap();
    space.load([(b"x", value)]).unwrap();
    let transaction = store.begin(Isolation::Serializable).unwrap();
    assert!(!transaction.is_unchanged_since(&before, &space, b"x").unwrap());
    let (before, transaction) = (store.snapshot().unwrap(), store.begin(Isolation::Serializable).unwrap());
    assert!(transaction.is_unchanged_since(&before, &space, b"x").unwrap());
}

#[test]
fn what_came_and_went_with_a_clear_has_changed() {
    let (store, space) = store();
    let before = store.snapshot().unwrap();
    let unchanged = |key: &[u8]| store.begin(Isolation::Serializable).unwrap().is_unchanged_since(&before, &space, key).unwrap();
    space.clear().unwrap();
    assert!(unchanged(b"absent") && !unchanged(b"x"));
    space.put(b"absent", b"1").unwrap();
    assert!(!unchanged(b"absent"));
    space.clear().unwrap();
    assert!(!unchanged(b"absent") && unchanged(b"other"));
    space.put(b"other", b"1").unwrap();
    space.delete(b"other").unwrap();
    space.clear().unwrap();
    assert_eq!([&b"absent"[..], b"other", b"third"].map(unchanged), [false, false, true]);
}

#[test]
#[should_panic(expected = "a savepoint of another transaction")]
fn a_savepoint_of_another_transaction_is_refused() {
    let (store, space) = store();
    let [mut one, mut other] = [Isolation::Snapshot; 2].map(|isolation| store.begin(isolation).unwrap());
    let savepoint = one.savepoint();
    other.put(&space, b"x", b"1").unwrap();
    other.savepoint();
    other.rollback_to(&savepoint);
}

#[test]
#[should_panic(expected = "a savepoint of which nothing is left")]
fn a_savepoint_that_was_taken_back_is_refused_whatever_was_written_since() {
    let (store, space) = store();
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    let first = transaction.savepoint();
    transaction.put(&space, b"x", b"1").unwrap();
    let second = transaction.savepoint();
    transaction.rollback_to(&first);
    transaction.put(&space, b"x", b"2").unwrap();
    transaction.put(&space, b"y", b"2").unwrap();
    transaction.rollback_to(&second);
}

/// Regression: it conflicted with every transaction that wrote the key, so that [`Store::transact`] never ended.
#[test]
fn a_record_with_a_timestamp_to_come_is_damage_and_no_conflict() {
    let (memory, store) = store_in_memory(PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }, &Options::default());
    let space = store.namespace("space").unwrap();
    let key = [7; 8];
    space.put(&key, &[1; 33]).unwrap();
    forge_commit_of(&memory, key, 33, 1 << 50);
    for isolation in WRITING {
        let mut transaction = store.begin(isolation).unwrap();
        transaction.put(&space, &key, b"over").unwrap();
        let refused = transaction.commit().unwrap_err();
        assert!(refused.to_string().contains("a timestamp that the clock has still to give"), "{refused}");
    }
    space.put(&key, b"over").unwrap();
    store.transact(Isolation::Serializable, |transaction| transaction.put(&space, &key, b"and over")).unwrap();
    assert_eq!(space.get(&key).unwrap().unwrap(), b"and over");
}

/// What it had seen by then is part of what it relies on.
#[test]
fn a_scan_whose_visitor_panics_counts_as_read() {
    let (store, space) = store();
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    let scan = || transaction.scan(&space, Bound::Unbounded, Direction::Forward, |_, _| panic!("the visitor"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(scan)).is_err());
    space.delete(b"y").unwrap();
    transaction.put(&space, b"x", b"11").unwrap();
    assert!(matches!(transaction.commit(), Err(Error::Conflict { .. })));
}
