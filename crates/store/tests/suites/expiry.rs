//! Keys that expire, with clocks that the tests set.

use crate::fixture::{self, break_links_to, keys, store_in_memory};
use everleaf::{Act, Batch, Change, Cursor, Direction, Entry, Error, Found, Isolation, Merge, Namespace, Options, Store, Swept, Times, Transaction};
use everleaf_pmem::PoolOptions;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
    /// By how much each look at the clocks lets time pass.
    static PER_LOOK_MS: Cell<u64> = const { Cell::new(0) };
}

/// Both clocks of the test's thread, in step.
fn times() -> Times {
    pass(PER_LOOK_MS.get());
    Times { wall_ms: 1_000_000 + NOW_MS.get(), passed_ms: NOW_MS.get() }
}

fn options() -> Options {
    Options { size_max: 64 << 20, index: "isle-128".into(), times, ..Options::default() }
}

fn store() -> (Store, Namespace) {
    fixture::store(options())
}

/// Lets this many milliseconds pass.
fn pass(ms: u64) {
    NOW_MS.set(NOW_MS.get() + ms);
}

#[test]
fn what_is_loaded_expires_too() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 100;
    let entries = (0..100u8).map(|n| ([n], [n; 3], (n % 3 == 0).then_some(expiry_ms)));
    assert_eq!(space.load_until(entries).unwrap(), 100);
    assert_eq!([space.expiry_ms(&[3]).unwrap(), space.expiry_ms(&[4]).unwrap()], [Some(Some(expiry_ms)), Some(None)]);
    let snapshot = store.snapshot().unwrap();
    pass(100);
    assert_eq!(keys(&space).len(), 66);
    assert!(snapshot.get(&space, &[3]).unwrap().is_some());
    drop(snapshot);
    let swept = store.sweep(1000).unwrap();
    assert_eq!((swept.removed, space.count()), (34, 66));
    store.collect(usize::MAX).unwrap();
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn keys_that_expire_are_counted_by_sweeps() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 100;
    let sweep = || assert!(store.sweep(1000).unwrap().is_round);
    space.put(b"stays", b"v").unwrap();
    assert_eq!(space.count_expiring(), 0);
    for key in [b"a", b"a", b"b"] {
        space.put_until(key, b"v", expiry_ms).unwrap();
    }
    // The same key counts twice, because it has not been read.
    assert_eq!(space.count_expiring(), 3);
    sweep();
    assert_eq!(space.count_expiring(), 2);
    space.put_until(b"c", b"v", expiry_ms + 1000).unwrap();
    assert_eq!(space.count_expiring(), 3);
    pass(100);
    sweep();
    sweep();
    assert_eq!((space.count_expiring(), space.count()), (1, 2));
    space.delete(b"c").unwrap();
    sweep();
    assert_eq!(space.count_expiring(), 0);
}

/// A walk does not delay others for keys that it does not show. A transaction's own writes appear in their place.
#[test]
fn a_walk_passes_no_more_keys_than_it_is_to() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 100;
    space.load_until((0..100u8).map(|n| ([n], [n], (n % 25 != 7).then_some(expiry_ms)))).unwrap();
    pass(100);
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    for key in [[1].as_slice(), &[9], &[9, 9], &[10], &[33], &[99], &[100]] {
        transaction.put(&space, key, b"own").unwrap();
    }
    transaction.delete(&space, &[57]).unwrap();
    let snapshot = store.snapshot().unwrap();
    type Walk<'a> = &'a dyn Fn(&mut Cursor, &mut dyn FnMut(&[u8])) -> Result<(), Error>;
    let visit = |seen: &mut dyn FnMut(&[u8]), key: &[u8]| {
        seen(key);
        ControlFlow::Continue(())
    };
    let walks: [(Walk<'_>, usize); 4] = [
        (&|cursor, seen| space.walk_keys(cursor, |key| visit(seen, key)), 4),
        (&|cursor, seen| space.walk(cursor, |key, _| visit(seen, key)), 4),
        (&|cursor, seen| snapshot.walk(&space, cursor, |key, _| visit(seen, key)), 4),
        (&|cursor, seen| transaction.walk(&space, cursor, |key, _| visit(seen, key)), 10),
    ];
    for (walk, count) in walks {
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut all = Vec::new();
            walk(&mut Cursor::new(Bound::Unbounded, direction), &mut |key| all.push(key.to_vec())).unwrap();
            assert_eq!(all.len(), count);
            let mut cursor = Cursor::new(Bound::Unbounded, direction).passing(10);
            let (mut seen, mut turns) = (Vec::new(), 0);
            while !cursor.is_over() {
                walk(&mut cursor, &mut |key| seen.push(key.to_vec())).unwrap();
                turns += 1;
            }
            assert_eq!(seen, all, "{direction:?}");
            // Of 96 that are not there.
            assert_eq!(turns, 10);
        }
    }
}

/// Housekeeping does not go through all keys to find nothing. A full pool refuses only writes without room, wherever the expired keys are.
#[test]
fn a_full_pool_finds_what_has_expired_behind_all_that_has_not() {
    let (store, space) = fixture::store(Options { size_max: 8 << 20, index: "ever".into(), times, ..Options::default() });
    let expiry_ms = store.time_ms() + 100;
    let put = |key: String, expiry_ms: Option<u64>| match expiry_ms {
        Some(expiry_ms) => space.put_until(key.as_bytes(), &[7; 100], expiry_ms),
        None => space.put(key.as_bytes(), &[7; 100]),
    };
    (0..20_000).try_for_each(|number| put(format!("a{number:06}"), None)).unwrap();
    let full = (0..).find_map(|number| put(format!("z{number:06}"), Some(expiry_ms)).err()).unwrap();
    assert!(full.is_no_space());
    pass(100);
    (0..5_000).try_for_each(|number| put(format!("new{number:06}"), None)).unwrap();
    (0..100).for_each(|_| _ = store.keep_house());
    assert_eq!(space.count(), 25_000);
    let expired = store.expired_count();
    // Nothing expires any more, until something is set to.
    (0..100).for_each(|_| assert!(!store.keep_house()));
    space.put_until(b"a000000", b"", store.time_ms() + 10).unwrap();
    pass(10);
    (0..10).for_each(|_| _ = store.keep_house());
    assert_eq!((store.expired_count(), space.count()), (expired + 1, 24_999));
}

/// A walk reads an entry and its expiry together, as of the snapshot, whatever happened to them since.
#[test]
fn a_walk_tells_when_entries_expire() {
    let (store, space) = store();
    let now = store.time_ms();
    let expiry_of = |n: u8| (!n.is_multiple_of(3)).then_some(now + 100 * u64::from(n % 3));
    space.load_until((0..100u8).map(|n| ([n], [n; 3], expiry_of(n)))).unwrap();
    let before = store.snapshot().unwrap();
    (0..10u8).for_each(|n| space.put_until(&[n], b"new", now + 1000).unwrap());
    pass(100);
    let mut then = Vec::new();
    before
        .walk_entries(&space, &mut Cursor::new(Bound::Unbounded, Direction::Forward), |key, value, expiry_ms| {
            then.push((key[0], value.to_vec(), expiry_ms));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(then, (0..100).map(|n| (n, vec![n; 3], expiry_of(n))).collect::<Vec<_>>());
    let mut now_there = Vec::new();
    space
        .walk_entries(&mut Cursor::new(Bound::Unbounded, Direction::Reverse), |key, value, expiry_ms| {
            now_there.push((key[0], value.to_vec(), expiry_ms));
            ControlFlow::Continue(())
        })
        .unwrap();
    let new = (0..10).map(|n| (n, b"new".to_vec(), Some(now + 1000)));
    let old = (10..100).filter(|n| n % 3 != 1).map(|n| (n, vec![n; 3], expiry_of(n)));
    assert_eq!(now_there, new.chain(old).rev().collect::<Vec<_>>());
}

/// The next sweep removes keys that a reader found expired, wherever the sweep is. A snapshot from before still sees them, and does not request their removal.
#[test]
fn what_is_read_in_vain_is_removed_by_the_next_sweep() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 100;
    (0..100u8).for_each(|n| space.put_until(&[n], &[n; 3], expiry_ms).unwrap());
    let snapshot = store.snapshot().unwrap();
    pass(100);
    assert!(snapshot.get(&space, &[90]).unwrap().is_some());
    assert_eq!(store.sweep(0).unwrap().removed, 0);
    assert_eq!(space.get(&[90]).unwrap(), None);
    assert_eq!(space.get_many(&[&[91], &[92], &[200]]).unwrap(), [None, None, None]);
    assert_eq!((space.value_size(&[90]).unwrap(), space.entry(&[93]).unwrap()), (None, None));
    // One of them is set again meanwhile.
    space.put(&[92], b"new").unwrap();
    assert_eq!(store.sweep(0).unwrap(), Swept { visited: 0, removed: 3, is_round: false });
    assert_eq!((space.count(), store.expired_count()), (97, 4));
    assert_eq!(store.sweep(0).unwrap().removed, 0, "they are gone, and forgotten");
    assert!(snapshot.get(&space, &[90]).unwrap().is_some());
    assert_eq!(keys(&space), [vec![92]]);
    // However often they are read.
    (0..100_000).for_each(|n| assert_eq!(space.get(&[n as u8 % 90]).unwrap(), None));
    assert_eq!(store.sweep(0).unwrap().removed, 90);
    // The number of keys that readers report is bounded; the sweep handles the rest.
    let other = store.namespace("other").unwrap();
    let expiry_ms = store.time_ms() + 100;
    (0..1_500u32).for_each(|n| other.put_until(&n.to_be_bytes(), b"1", expiry_ms).unwrap());
    pass(100);
    (0..1_500u32).for_each(|n| assert_eq!(other.get(&n.to_be_bytes()).unwrap(), None));
    assert_eq!((store.sweep(0).unwrap().removed, other.count()), (1024, 476));
    drop(snapshot);
    store.collect(usize::MAX).unwrap();
    assert!(store.verify().unwrap().is_sound());
}

/// A write that a full pool refuses is retried after expired keys are removed.
#[test]
fn a_full_pool_gives_up_what_has_expired() {
    let full = || {
        let (store, space) = fixture::store(Options { size_max: 8 << 20, ..options() });
        let expiry_ms = store.time_ms() + 100;
        let has_room = |n: &u32| space.put_until(&n.to_be_bytes(), &[1; 900], expiry_ms).map_or_else(|error| !error.is_no_space(), |()| true);
        let count = (0..).find(|n| !has_room(n)).unwrap();
        (store, space, count)
    };
    let (store, space, count) = full();
    assert!(space.put(b"new", &[2; 900]).unwrap_err().is_no_space(), "none has expired yet");
    pass(100);
    // One that comes where a thousand consecutive keys last is refused, and the next one continues after them.
    let mut refused = 0;
    for n in 0..count {
        while let Err(error) = space.put(&[&[0xff][..], &n.to_be_bytes()].concat(), &[2; 900]) {
            refused += 1;
            assert!(error.is_no_space() && refused < 10, "{n} of {count}: {error}");
        }
    }
    assert_eq!(keys(&space).len(), count as usize);
    assert!(store.verify().unwrap().is_sound());
    // A batch of many, a value that needs the room of many, and a transaction.
    let (store, space, count) = full();
    pass(100);
    let mut batch = Batch::default();
    (0..count / 2).for_each(|n| batch.put(&space, &[&[0xff][..], &n.to_be_bytes()].concat(), &[3; 900]));
    store.write(batch).unwrap();
    space.put(b"large", &[4; 50 << 10]).unwrap();
    store.transact(Isolation::Serializable, |transaction| transaction.put(&space, b"last", &[5; 50 << 10])).unwrap();
    assert_eq!(keys(&space).len(), count as usize / 2 + 2);
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: one write went through all keys. Where each sweep found some expired keys, but not enough room, it did not return.
#[test]
fn a_write_without_room_sweeps_no_more_than_some_thousand_keys() {
    let (store, space) = fixture::store(Options { size_max: 16 << 20, ..options() });
    let expiry_ms = store.time_ms() + 100;
    let put = |n: u32| if n.is_multiple_of(500) { space.put_until(&n.to_be_bytes(), &[1; 100], expiry_ms) } else { space.put(&n.to_be_bytes(), &[1; 100]) };
    let count = (0..).find(|n| put(*n).is_err()).unwrap();
    assert!(count > 66_000, "{count}");
    let (sender, refusals) = std::sync::mpsc::channel();
    let of_thread = space.clone();
    std::thread::spawn(move || {
        pass(100);
        sender.send(of_thread.put(b"large", &[2; 150 << 10]))
    });
    let refusal = refusals.recv_timeout(std::time::Duration::from_secs(60)).expect("it is refused").unwrap_err();
    assert!(refusal.is_no_space(), "{refusal}");
    assert_eq!(store.expired_count(), 32, "two of each thousand");
    assert_eq!(space.count(), u64::from(count) - 32);
}

#[test]
fn a_key_is_absent_from_its_time_on_whoever_asks() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 100;
    space.put(b"stays", b"1").unwrap();
    space.put_until(b"goes", b"2", expiry_ms).unwrap();
    let mut batch = Batch::default();
    batch.put_until(&space, b"goes, too", b"3", Some(expiry_ms));
    batch.put(&space, b"stays, too", b"4");
    store.write(batch).unwrap();
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    transaction.put_until(&space, b"goes at last", b"5", Some(expiry_ms)).unwrap();
    transaction.commit().unwrap();
    pass(99);
    assert_eq!(keys(&space).len(), 5);
    assert_eq!(space.entry(b"goes").unwrap(), Some(Entry { value: b"2".to_vec(), expiry_ms: Some(expiry_ms) }));
    assert_eq!([&b"goes"[..], b"stays", b"absent"].map(|key| space.expiry_ms(key).unwrap()), [Some(Some(expiry_ms)), Some(None), None]);
    let snapshot = store.snapshot().unwrap();
    pass(1);
    assert_eq!(keys(&space), [&b"stays"[..], b"stays, too"]);
    for key in [&b"goes"[..], b"goes, too", b"goes at last"] {
        assert_eq!(
            (space.get(key).unwrap(), space.value_size(key).unwrap(), space.entry(key).unwrap(), space.expiry_ms(key).unwrap()),
            (None, None, None, None)
        );
        assert_eq!(space.get_many(&[key]).unwrap(), [None]);
        assert_eq!(store.snapshot().unwrap().get(&space, key).unwrap(), None);
        assert!(snapshot.get(&space, key).unwrap().is_some(), "a snapshot shows what there was");
        assert!(space.compare_and_swap(key, None, Some(b"again")).unwrap() && space.delete(key).unwrap());
        assert!(snapshot.get(&space, key).unwrap().is_some());
    }
    assert_eq!(space.count(), 2);
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: a session that was swapped for its next state lasted for ever.
#[test]
fn what_is_swapped_goes_on_to_expire() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 10;
    space.put_until(b"k", b"1", expiry_ms).unwrap();
    for _versioned in [None, Some(store.snapshot().unwrap())] {
        let (old, new) = (space.get(b"k").unwrap(), space.get(b"k").unwrap().map(|value| [&value[..], b"+"].concat()));
        assert!(space.compare_and_swap(b"k", old.as_deref(), new.as_deref()).unwrap());
        assert_eq!(space.entry(b"k").unwrap(), Some(Entry { value: new.unwrap(), expiry_ms: Some(expiry_ms) }));
    }
    pass(10);
    assert!(space.compare_and_swap(b"k", None, Some(b"2")).unwrap());
    assert_eq!(space.expiry_ms(b"k").unwrap(), Some(None), "what was absent has no time to go on with");
}

#[test]
fn writes_treat_what_has_expired_as_absent() {
    let (store, space) = store();
    let fill = || (0..8u8).for_each(|n| space.put_until(&[n], b"old", store.time_ms() + 10).unwrap());
    for (round, versioned) in [(1, false), (2, true)] {
        let snapshot = versioned.then(|| store.snapshot().unwrap());
        fill();
        pass(10);
        assert!(space.insert(&[0], b"new").unwrap());
        assert!(!space.delete(&[1]).unwrap());
        assert_eq!(space.delete_together(&[&[6], &[7], &[8]]).unwrap(), 0);
        space.modify(&[2], |old| Change::Put(if old.is_none() { b"new".to_vec() } else { b"wrong".to_vec() })).unwrap();
        space.put_many(&[(&[3], b"new"), (&[4], b"new")]).unwrap();
        assert!(!space.compare_and_swap(&[5], Some(b"old"), Some(b"wrong")).unwrap());
        assert_eq!(space.expiry_ms(&[0]).unwrap(), Some(None), "it does not inherit the time");
        assert_eq!(keys(&space), [[0], [2], [3], [4]]);
        drop(snapshot);
        while store.collect(100).unwrap() > 0 {}
        let left: Vec<_> = keys(&space);
        left.iter().for_each(|key| assert!(space.delete(key).unwrap()));
        assert_eq!(store.expired_count(), 8 * round - 1);
        store.sweep(100).unwrap();
        assert_eq!((space.count(), store.expired_count()), (0, 8 * round), "each of the eight is counted once");
        assert!(store.verify().unwrap().is_sound());
    }
    space.put_until(b"k", b"old", store.time_ms() + 10).unwrap();
    space.put(b"k", b"in time").unwrap();
    assert_eq!(store.expired_count(), 16);
    space.put_until(b"k", b"old", store.time_ms() + 10).unwrap();
    pass(10);
    let mut batch = Batch::default();
    batch.put(&space, b"k", b"new");
    store.write(batch).unwrap();
    assert_eq!(store.expired_count(), 17);
}

/// Regression: a client that watched an expired key that was still there was told that it changed when a delete or the sweep removed it.
#[test]
fn what_had_expired_may_be_removed_while_it_is_watched() {
    let (store, space) = store();
    let unchanged = |since| store.begin(Isolation::Serializable).unwrap().is_unchanged_since(since, &space, b"k").unwrap();
    let stale = || {
        space.put_until(b"k", b"v", store.time_ms() + 10).unwrap();
        pass(10);
        store.snapshot().unwrap()
    };
    let since = stale();
    assert!(unchanged(&since));
    assert!(!space.delete(b"k").unwrap() && unchanged(&since));
    let since = stale();
    assert!(store.sweep(100).unwrap().removed == 1 && unchanged(&since));
    space.put(b"k", b"w").unwrap();
    assert!(!unchanged(&since));
    assert!(space.delete(b"k").unwrap() && !unchanged(&since), "it was there meanwhile");
    let since = stale();
    space.put_until(b"k", b"w", store.time_ms() + 10).unwrap();
    pass(10);
    assert!(store.sweep(100).unwrap().removed == 1 && !unchanged(&since), "it was there meanwhile");
    // A key that is there and expires has changed.
    space.put_until(b"k", b"v", store.time_ms() + 10).unwrap();
    let since = store.snapshot().unwrap();
    pass(10);
    assert!(!unchanged(&since));
    store.sweep(100).unwrap();
    assert!(!unchanged(&since));
}

#[test]
fn a_change_keeps_the_time_or_sets_it() {
    let (store, space) = store();
    let expiry_ms = store.time_ms() + 10;
    space.put_until(b"k", b"1", expiry_ms).unwrap();
    space.modify(b"k", |old| Change::Put([old.unwrap(), b"2"].concat())).unwrap();
    assert_eq!(space.entry(b"k").unwrap(), Some(Entry { value: b"12".to_vec(), expiry_ms: Some(expiry_ms) }));
    space.modify_entry(b"k", |entry| Change::PutUntil(entry.unwrap().value.clone(), entry.unwrap().expiry_ms.map(|time| time + 5))).unwrap();
    assert_eq!(space.expiry_ms(b"k").unwrap(), Some(Some(expiry_ms + 5)));
    space.modify_entry(b"k", |_| Change::Expire(None)).unwrap();
    pass(100);
    assert_eq!(space.entry(b"k").unwrap(), Some(Entry { value: b"12".to_vec(), expiry_ms: None }));
    space.put_until(b"k", b"3", store.time_ms()).unwrap();
    assert_eq!(space.get(b"k").unwrap(), None, "over from the start");
}

#[test]
fn a_sweep_removes_what_has_expired_and_nothing_else() {
    let (store, space) = store();
    let other = store.namespace("nothing expires here").unwrap();
    for n in 0..1_000u32 {
        match n % 3 {
            0 => space.put(&n.to_be_bytes(), b"stays").unwrap(),
            _ => space.put_until(&n.to_be_bytes(), b"goes", store.time_ms() + u64::from(n)).unwrap(),
        }
        other.put(&n.to_be_bytes(), b"stays").unwrap();
    }
    pass(500);
    let mut sum = Swept::default();
    while !sum.is_round {
        let swept = store.sweep(64).unwrap();
        assert!(swept.visited <= 64);
        sum = Swept { visited: sum.visited + swept.visited, removed: sum.removed + swept.removed, is_round: swept.is_round };
    }
    let expired = (0..=500u32).filter(|n| n % 3 != 0).count();
    assert_eq!(sum, Swept { visited: 1_000, removed: expired, is_round: true });
    assert_eq!((space.count(), other.count()), (1_000 - expired as u64, 1_000));
    assert_eq!(store.sweep(10_000).unwrap(), Swept { visited: 1_000 - expired, removed: 0, is_round: true });
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: a sweep of a few keys went through all namespaces that had none left.
#[test]
fn a_namespace_without_keys_is_a_step_of_a_sweep() {
    let (store, _) = store();
    for n in 0..50 {
        let space = store.namespace(&n.to_string()).unwrap();
        space.put_until(b"k", b"v", store.time_ms() + 1).unwrap();
        space.clear().unwrap();
    }
    let sweeps: Vec<_> = (0..6).map(|_| store.sweep(10).unwrap()).collect();
    assert_eq!(sweeps.iter().map(|swept| (swept.visited, swept.is_round)).collect::<Vec<_>>()[..4], [(0, false); 4]);
    assert!(sweeps[4..].iter().all(|swept| swept.is_round), "{sweeps:?}");
}

#[test]
fn what_has_expired_stays_so_over_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    for clean in [true, false] {
        let store = Store::open(&path, options()).unwrap();
        let space = store.namespace("space").unwrap();
        for n in 0..100u64 {
            space.put_until(&n.to_be_bytes(), &[n as u8; 30], store.time_ms() + n).unwrap();
        }
        drop(space);
        if clean {
            store.close().unwrap();
        } else {
            drop(store);
        }
        pass(50);
        let store = Store::open(&path, options()).unwrap();
        let space = store.namespace("space").unwrap();
        assert_eq!((space.count(), keys(&space).len()), (100, 49));
        assert_eq!(store.sweep(1_000).unwrap(), Swept { visited: 100, removed: 51, is_round: true });
        assert_eq!(space.count(), 49);
        assert!(store.verify().unwrap().is_sound());
        space.clear().unwrap();
        drop(space);
        store.close().unwrap();
    }
}

/// What a serializable transaction has read must still be there when it commits, or the commit fails: others may have seen it gone.
#[test]
fn what_expires_under_a_serializable_transaction_is_a_conflict() {
    type Read = fn(&Transaction, &Namespace);
    let reads: [Read; 3] = [
        |transaction, space| assert!(transaction.get(space, b"goes").unwrap().is_some()),
        |transaction, space| assert_eq!(transaction.get_many(space, &[b"goes"]).unwrap(), [Some(b"1".to_vec())]),
        |transaction, space| transaction.scan(space, Bound::Unbounded, Direction::Forward, |_, _| ControlFlow::Continue(())).unwrap(),
    ];
    for (isolation, passed, is_conflict) in [(Isolation::Serializable, 9, false), (Isolation::Serializable, 10, true), (Isolation::Snapshot, 10, false)] {
        for read in reads {
            let (store, space) = store();
            space.put_until(b"goes", b"1", store.time_ms() + 10).unwrap();
            space.put_until(b"gone", b"1", store.time_ms()).unwrap();
            let mut transaction = store.begin(isolation).unwrap();
            read(&transaction, &space);
            assert!(transaction.get(&space, b"gone").unwrap().is_none());
            transaction.put(&space, b"key", b"2").unwrap();
            pass(passed);
            assert_eq!(space.get(b"goes").unwrap().is_none(), passed == 10);
            let outcome = transaction.commit();
            assert!(if is_conflict { matches!(outcome, Err(Error::Conflict { .. })) } else { outcome.is_ok() }, "{isolation:?}: {outcome:?}");
            assert_eq!(space.get(b"key").unwrap().is_some(), !is_conflict);
        }
    }
}

/// Regression: time passed between a commit's validation and its merges. A key that it had validated was gone, and the counter restarted, without expiry.
#[test]
fn what_a_commit_relies_on_does_not_expire_before_it_is_done() {
    type Commit = fn(&Store, &Namespace, Merge) -> Result<(), Error>;
    let commits: [Commit; 3] = [
        |store, space, late| {
            let mut transaction = store.begin(Isolation::Snapshot)?;
            transaction.merge(space, b"counter", Merge::Add(1))?;
            assert_eq!(transaction.get(space, b"counter")?, Some(8i64.to_le_bytes().to_vec()));
            transaction.merge(space, b"a", late)?;
            transaction.put(space, b"other", b"2")?;
            transaction.commit()
        },
        |store, space, late| {
            let mut transaction = store.begin(Isolation::Serializable)?;
            assert!(transaction.get(space, b"counter")?.is_some());
            transaction.merge(space, b"a", late)?;
            transaction.put(space, b"other", b"2")?;
            transaction.commit()
        },
        |store, space, late| {
            let mut batch = Batch::default();
            batch.expect(space, b"counter", Some(&7i64.to_le_bytes()));
            batch.merge(space, b"a", late);
            batch.merge(space, b"counter", Merge::Add(1));
            batch.put(space, b"other", b"2");
            store.write(batch)
        },
    ];
    for commit in commits {
        let (store, space) = store();
        space.put_until(b"counter", &7i64.to_le_bytes(), store.time_ms() + 10).unwrap();
        let (store, others) = (Arc::new(store), space.clone());
        let seen = Arc::downgrade(&store);
        // It reads as others may meanwhile: as long as they do not see the commit's writes, they see what the commit relies on.
        let late = Merge::With(Arc::new(move |_| {
            pass(10);
            let snapshot = seen.upgrade().unwrap().snapshot().unwrap();
            assert_eq!([&b"counter"[..], b"other"].map(|key| others.get(key).unwrap().is_some()), [true, false]);
            assert_eq!([&b"counter"[..], b"other"].map(|key| snapshot.get(&others, key).unwrap().is_some()), [true, false]);
            Ok(Some(b"1".to_vec()))
        }));
        commit(&store, &space, late).unwrap();
        assert_eq!(keys(&space), [&b"a"[..], b"other"], "time goes on when it is done");
    }
}

/// A wall clock that jumps and is corrected does not leave the store behind later, in this life or the next.
#[test]
fn a_wall_that_was_wrong_for_a_while_is_followed_back() {
    thread_local!(static JUMP_MS: Cell<u64> = const { Cell::new(0) });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let open = || {
        let times = || Times { wall_ms: times().wall_ms + JUMP_MS.get(), ..times() };
        let store = Store::open(&path, Options { times, ..options() }).unwrap();
        let space = store.namespace("space").unwrap();
        (store, space)
    };
    let (store, space) = open();
    let start_ms = store.time_ms();
    JUMP_MS.set(3_600_000);
    assert_eq!(store.time_ms(), start_ms + 3_600_000);
    JUMP_MS.set(0);
    assert_eq!(store.time_ms(), start_ms);
    space.put_until(b"a minute", b"1", store.time_ms() + 60_000).unwrap();
    space.put_until(b"a second", b"1", store.time_ms() + 1_000).unwrap();
    // A small step back of the clock is not followed.
    pass(5_000);
    JUMP_MS.set(9_000);
    assert_eq!((store.time_ms(), space.get(b"a second").unwrap()), (start_ms + 14_000, None));
    JUMP_MS.set(0);
    assert_eq!((store.time_ms(), space.get(b"a second").unwrap()), (start_ms + 14_000, None));
    drop((space, store));
    let (store, space) = open();
    assert_eq!(store.time_ms(), start_ms + 5_000);
    assert!(space.get(b"a minute").unwrap().is_some() && space.get(b"a second").unwrap().is_none());
    pass(55_000);
    assert_eq!(space.get(b"a minute").unwrap(), None);
}

/// Where a key is both in the store and in a stream, the stream wins, even if its entry has expired.
#[test]
fn an_import_removes_what_has_expired_in_the_stream() {
    let (source, space) = store();
    space.put_until(b"goes", b"new", source.time_ms() + 10).unwrap();
    space.put(b"stays", b"new").unwrap();
    let (stream, _) = source.snapshot().unwrap().export(&["space"], Vec::new()).unwrap().finish().unwrap();
    pass(10);
    let (copy, space) = store();
    [b"goes", b"kept"].iter().for_each(|key| space.put(*key, b"old").unwrap());
    copy.import(stream.as_slice()).unwrap().finish().unwrap();
    assert_eq!(keys(&space), [&b"kept"[..], b"stays"]);
}

fn scan(transaction: &Transaction, space: &Namespace) -> usize {
    let mut count = 0;
    let visit = |_: &[u8], _: &[u8]| {
        count += 1;
        ControlFlow::Continue(())
    };
    transaction.scan(space, Bound::Unbounded, Direction::Forward, visit).unwrap();
    count
}

/// Regression: expiries, and the sweep, made a transaction with a scan conflict each time.
#[test]
fn a_scan_among_keys_that_expire_all_the_time_is_done_at_last() {
    let (store, space) = store();
    (0..100u8).for_each(|n| space.put_until(&[n], b"goes", store.time_ms() + 1 + u64::from(n)).unwrap());
    let mut turns = 0;
    let begun_ms = store.time_ms();
    store
        .transact(Isolation::Serializable, |transaction| {
            turns += 1;
            assert_eq!(scan(transaction, &space), 101 - turns);
            store.sweep(1_000)?;
            pass(1);
            transaction.put(&space, &[200], b"stays")
        })
        .unwrap();
    assert_eq!((turns, store.time_ms() - begun_ms), (17, 17), "time goes on when it is done");
    assert_eq!(keys(&space).len(), 100 - 17 + 1);
    store.sweep(1_000).unwrap();
    store.collect(usize::MAX).unwrap();
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: after any sixteen conflicts time stood still for all threads, even if it had not caused them.
#[test]
fn time_stands_still_only_if_it_has_overtaken_somebody() {
    // What happens meanwhile to the key that was read, and whether the passing of time is responsible.
    type Meanwhile = fn(&Store, &Namespace);
    let cases: [(Meanwhile, bool); 5] = [
        (|_, space| space.put(b"k", b"2").unwrap(), false),
        (|_, space| assert!(space.delete(b"k").unwrap()), false),
        (|_, _| pass(10), true),
        (
            |store, _| {
                pass(10);
                store.sweep(100).unwrap();
            },
            true,
        ),
        (
            |_, space| {
                pass(10);
                space.insert(b"k", b"2").unwrap();
            },
            true,
        ),
    ];
    for (number, (act, is_late)) in cases.into_iter().enumerate() {
        let (store, space) = store();
        let (mut turns, mut stood_still) = (0, 0);
        store
            .transact(Isolation::Serializable, |transaction| {
                turns += 1;
                space.put_until(b"k", b"1", store.time_ms() + 10)?;
                // As of now.
                *transaction = store.begin(Isolation::Serializable)?;
                assert!(transaction.get(&space, b"k")?.is_some());
                let begun_ms = store.time_ms();
                if turns <= 20 {
                    act(&store, &space);
                }
                pass(1);
                stood_still += usize::from(store.time_ms() == begun_ms);
                transaction.put(&space, b"other", b"3")
            })
            .unwrap();
        assert_eq!((turns, stood_still), if is_late { (17, 1) } else { (21, 0) }, "{number}");
    }
}

/// Regression: the value of a merge lost or kept its expiry in the transaction, unlike at the commit.
#[test]
fn what_is_read_of_a_merged_key_is_what_is_committed() {
    let vanish = || Merge::With(Arc::new(|_| Ok(None)));
    let counter = 7i64.to_le_bytes();
    let merges: [&[Merge]; 5] =
        [&[Merge::Add(1)], &[vanish()], &[vanish(), Merge::Add(1)], &[Merge::Append(vec![1; 600])], &[Merge::Add(1), vanish(), Merge::Append(vec![1; 600])]];
    for (merges, isolation) in merges.into_iter().flat_map(|merges| [(merges, Isolation::Snapshot), (merges, Isolation::Serializable)]) {
        let (store, space) = store();
        let expiry_ms = store.time_ms() + 10;
        space.put_until(b"expired", &counter, store.time_ms() + 1).unwrap();
        pass(1);
        space.put_until(b"goes", &counter, expiry_ms).unwrap();
        space.put(b"stays", &counter).unwrap();
        let keys = [&b"absent"[..], b"expired", b"goes", b"stays", b"set", b"set large"];
        let mut transaction = store.begin(isolation).unwrap();
        transaction.put_until(&space, b"set", &counter, Some(expiry_ms)).unwrap();
        transaction.put_until(&space, b"set large", &[2; 600], Some(expiry_ms)).unwrap();
        let mut refused = 0;
        for key in keys {
            for merge in merges {
                refused += usize::from(transaction.merge(&space, key, merge.clone()).is_err());
            }
        }
        assert!(refused <= 1, "what is no counter");
        let entries = keys.map(|key| transaction.entry(&space, key).unwrap());
        assert_eq!(keys.map(|key| transaction.get(&space, key).unwrap()), entries.clone().map(|entry| entry.map(|entry| entry.value)));
        let sizes = entries.clone().map(|entry| entry.map(|entry| entry.value.len()));
        assert_eq!(keys.map(|key| transaction.value_size(&space, key).unwrap()), sizes);
        let mut scanned = 0;
        let visit = |key: &[u8], value: &[u8]| {
            let at = keys.iter().position(|other| *other == key).unwrap();
            assert_eq!(entries[at].as_ref().map(|entry| entry.value.as_slice()), Some(value));
            scanned += 1;
            ControlFlow::Continue(())
        };
        transaction.scan(&space, Bound::Unbounded, Direction::Forward, visit).unwrap();
        assert_eq!(scanned, entries.iter().flatten().count());
        transaction.commit().unwrap();
        assert_eq!(keys.map(|key| space.entry(key).unwrap()), entries, "{merges:?}");
    }
}

/// Regression: the sweep removed keys that were already invisible, and so caused conflicts for transactions that had passed them.
#[test]
fn what_had_expired_may_be_removed_under_a_transaction() {
    type Read = fn(&Transaction, &Namespace);
    let reads: [(Read, bool); 3] = [
        (|transaction, space| assert!(transaction.get(space, b"gone").unwrap().is_none()), true),
        (|transaction, space| assert_eq!(scan(transaction, space), 0), true),
        (|transaction, space| assert!(transaction.get(space, b"other").unwrap().is_none()), false),
    ];
    for written in [&b"gone"[..], b"key"] {
        for ((read, is_of_it), is_written_meanwhile) in reads.iter().flat_map(|read| [(read, false), (read, true)]) {
            let (store, space) = store();
            space.put_until(b"gone", b"1", store.time_ms() + 1).unwrap();
            pass(1);
            let mut transaction = store.begin(Isolation::Serializable).unwrap();
            read(&transaction, &space);
            transaction.put(&space, written, b"2").unwrap();
            assert_eq!(store.sweep(10).unwrap().removed, 1);
            if is_written_meanwhile {
                space.put(b"gone", b"3").unwrap();
                assert!(space.delete(b"gone").unwrap());
            }
            assert_eq!(transaction.commit().is_err(), is_written_meanwhile && (*is_of_it || written == b"gone"));
        }
    }
}

/// Regression: a reader that had found the key absent got no conflict.
#[test]
fn what_is_there_again_when_the_wall_is_set_back_is_a_conflict() {
    thread_local!(static AHEAD_MS: Cell<u64> = const { Cell::new(3_600_000) });
    let times = || Times { wall_ms: times().wall_ms + AHEAD_MS.get(), ..times() };
    let (store, space) = fixture::store(Options { times, ..options() });
    space.put_until(b"k", b"1", store.time_ms() - 1_000).unwrap();
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    assert!(transaction.get(&space, b"k").unwrap().is_none());
    transaction.put(&space, b"other", b"2").unwrap();
    AHEAD_MS.set(0);
    assert!(space.get(b"k").unwrap().is_some());
    assert!(matches!(transaction.commit(), Err(Error::Conflict { key, .. }) if key == b"k"));
}

/// Regression: the sweep restarted there each time, and never reached later namespaces.
#[test]
fn what_the_sweep_cannot_read_does_not_keep_it_from_other_namespaces() {
    let (memory, store) = store_in_memory(PoolOptions { size_max: 1 << 20, slab_size: 4096, ..PoolOptions::default() }, &options());
    let spaces = ["damaged", "sound"].map(|name| store.namespace(name).unwrap());
    for n in 0..100u64 {
        spaces.iter().for_each(|space| space.put_until(&n.to_be_bytes(), &[space.name().len() as u8; 30], store.time_ms() + 1).unwrap());
    }
    spaces[0].put(&7u64.to_be_bytes(), &[1; 31]).unwrap();
    break_links_to(&memory, 7u64.to_be_bytes(), 31);
    pass(1);
    let sweep = || (store.sweep(1_000).is_err(), spaces[1].count());
    assert_eq!([sweep(), sweep()], [(true, 100), (false, 0)]);
    // The sweep returns to it, and then continues.
    spaces[1].put_until(b"k", b"v", store.time_ms() + 1).unwrap();
    pass(1);
    assert_eq!([sweep(), sweep()], [(true, 1), (false, 0)]);
}

/// Regression: a removal found one key expired, although an earlier lookup in the same group had found the other.
#[test]
fn what_expires_together_is_there_or_gone_for_all_of_a_group() {
    for has_snapshot in [false, true] {
        let (store, space) = store();
        let expiry_ms = store.time_ms() + 1;
        [b"x", b"y"].iter().for_each(|key| space.put_until(&key[..], b"1", expiry_ms).unwrap());
        let _snapshot = has_snapshot.then(|| store.snapshot().unwrap());
        let acts = [(&b"x"[..], Act::Delete), (b"y", Act::Get), (b"z", Act::Put(b"1"))];
        let run = || {
            let mut found = Vec::new();
            let visit = |_, _: Option<Found<'_>>| {
                pass(1);
                Ok(ControlFlow::Continue(()))
            };
            space.act_many(&acts, &mut found, visit).unwrap();
            found.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        };
        assert_eq!([run(), run()], [[true, true, false], [false; 3]], "{has_snapshot}");
    }
}

/// Regression: each key was judged at a moment of its own.
#[test]
fn of_keys_that_expire_together_all_or_none_are_deleted_together() {
    let keys = [&b"a"[..], b"b", b"c", b"d"];
    for has_snapshot in [false, true] {
        let (store, space) = store();
        let _snapshot = has_snapshot.then(|| store.snapshot().unwrap());
        let deleted = [1, 2, 3, 4, 5, 6, 100].map(|lifetime_ms| {
            let expiry_ms = store.time_ms() + lifetime_ms;
            keys.iter().for_each(|key| space.put_until(key, b"1", expiry_ms).unwrap());
            PER_LOOK_MS.set(1);
            let deleted = space.delete_together(&keys).unwrap();
            PER_LOOK_MS.set(0);
            deleted
        });
        assert!(deleted.iter().all(|count| [0, 4].contains(count)) && deleted[0] == 0 && deleted[6] == 4, "{deleted:?}");
    }
}

#[test]
fn a_group_sets_when_keys_expire() {
    for has_snapshot in [false, true] {
        let (store, space) = store();
        let now_ms = store.time_ms();
        space.put_until(b"lasting", b"1", now_ms + 1).unwrap();
        let snapshot = has_snapshot.then(|| store.snapshot().unwrap());
        let acts =
            [(&b"long"[..], Act::PutUntil(b"2", now_ms + 20)), (b"short", Act::PutUntil(b"3", now_ms + 10)), (b"lasting", Act::Put(b"4")), (b"x", Act::Get)];
        let mut found = Vec::new();
        space.act_many(&acts, &mut found, |_, found| Ok(found.map_or(ControlFlow::Continue(()), |_| ControlFlow::Break(())))).unwrap();
        assert!(found.into_iter().all(|found| !found.unwrap()));
        let expiries = || [&b"long"[..], b"short", b"lasting"].map(|key| space.expiry_ms(key).unwrap().map(|expiry_ms| expiry_ms.map(|at| at - now_ms)));
        assert_eq!(expiries(), [Some(Some(20)), Some(Some(10)), Some(None)]);
        pass(10);
        assert_eq!(expiries(), [Some(Some(20)), None, Some(None)]);
        drop(snapshot);
        store.sweep(1000).unwrap();
        assert_eq!(space.count(), 2, "{has_snapshot}");
    }
}
