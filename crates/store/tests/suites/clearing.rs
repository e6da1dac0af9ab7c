//! What a clear leaves, and how it is freed in steps: by other operations, or by a housekeeping thread.

use crate::INDEXES;
use crate::fixture::{self, break_links_to, store_in_memory};
use everleaf::{HeldBack, Namespace, Options, Store};
use everleaf_index::registry;
use everleaf_pmem::{Hardware, PoolOptions, Usage};
use std::time::{Duration, Instant};

const KEYS: u32 = 5_000;
/// More than a leaf of any of these indexes has.
const LEAF_MAX: u64 = 64;

fn store(index: &str) -> (Store, Namespace) {
    fixture::store(Options { size_max: 64 << 20, index: index.into(), ..Options::default() })
}

fn fill(space: &Namespace) {
    (0..KEYS).for_each(|n| space.put(&n.wrapping_mul(0x9e37_79b9).to_be_bytes(), &[1; 100]).unwrap());
}

fn key(n: u64) -> [u8; 8] {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn usage(store: &Store) -> Usage {
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
    report.usage
}

#[test]
fn what_was_cleared_is_given_back_leaf_by_leaf() {
    for index in INDEXES {
        let (store, space) = store(index);
        space.put(b"first", b"1").unwrap();
        space.clear().unwrap();
        store.collect(usize::MAX).unwrap();
        let empty = usage(&store);
        fill(&space);
        let snapshot = store.snapshot().unwrap();
        space.clear().unwrap();
        let whole = store.held_back();
        assert_eq!((whole.count, whole.cleared_keys, space.count()), (1, KEYS.into(), 0), "{index}");
        assert!(whole.bytes > u64::from(KEYS) * 16, "{index}: {whole:?}");
        assert!(snapshot.get(&space, &0u32.to_be_bytes()).unwrap().is_some());
        usage(&store);
        // The end of a snapshot frees more at once than is left.
        drop(snapshot);
        fill(&space);
        space.clear().unwrap();
        // Other users of the store, and a search for leaks, see nothing of it meanwhile.
        let all = store.held_back().cleared_keys;
        let (mut steps, mut left) = (0, all);
        while store.collect(1).unwrap() > 0 {
            let held = store.held_back();
            assert!(held.cleared_keys <= left && left - held.cleared_keys <= LEAF_MAX, "{index}: {left}, then {held:?}");
            left = held.cleared_keys;
            steps += 1;
            if steps % 50 == 0 {
                usage(&store);
            }
        }
        assert!(all > 0 && all <= steps * LEAF_MAX, "{index}: {steps} steps for {all} keys");
        assert_eq!(store.held_back(), HeldBack::default(), "{index}");
        store.pool().collect();
        assert_eq!(usage(&store), empty, "{index}");
    }
}

/// Regression: on the way to a leaf, the skip list and ROART read records that had been freed, took other records for them, and freed those too.
#[test]
fn what_is_written_while_others_are_given_back_stays() {
    const COUNT: u32 = 1_500;
    for entry in registry::<[u8], Hardware>().into_iter().filter(|entry| entry.persistent) {
        let (store, space) = store(entry.name);
        // All heads are equal, and records have the same length as those that replace them.
        let key = |n: u32| format!("key:{n:012}").into_bytes();
        for round in 1..3 {
            (0..COUNT).for_each(|n| space.put(&key(n), &[0; 100]).unwrap());
            space.clear().unwrap();
            // Greater keys first: they seem to lie beyond the next ones.
            for n in (0..COUNT).rev() {
                space.put(&key(n), &[round; 100]).unwrap();
                store.pool().collect();
                if n % 100 == 0 {
                    usage(&store);
                }
            }
            for n in 0..COUNT {
                assert_eq!(space.get(&key(n)).unwrap().as_deref(), Some(&[round; 100][..]), "{}: {n}", entry.name);
            }
            store.collect(usize::MAX).unwrap();
            assert_eq!((store.held_back(), space.count()), (HeldBack::default(), COUNT.into()), "{}", entry.name);
            store.pool().collect();
            usage(&store);
            space.clear().unwrap();
        }
    }
}

#[test]
fn writes_give_back_what_was_cleared() {
    let (store, space) = store("ever");
    let other = store.namespace("other").unwrap();
    fill(&space);
    space.clear().unwrap();
    let mut writes = 0;
    while store.held_back().count > 0 {
        other.put(b"key", b"value").unwrap();
        writes += 1;
        assert!(writes < KEYS, "{:?}", store.held_back());
    }
    println!("{writes} writes");
    usage(&store);
}

/// A namespace is cleared, filled and cleared again before the first content is freed. The store is closed or dropped in the middle of freeing it.
#[test]
fn a_store_is_closed_or_dropped_in_the_middle_of_giving_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    for closes in [true, false] {
        let store = Store::open(&path, Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        for _ in 0..2 {
            fill(&space);
            space.clear().unwrap();
        }
        assert!(store.held_back().cleared_keys > 0);
        space.put(b"key", b"value").unwrap();
        drop(space);
        if closes {
            store.close().unwrap();
        } else {
            drop(store);
        }
        let store = Store::open(&path, Options::default()).unwrap();
        assert_eq!((store.namespace("space").unwrap().count(), store.held_back()), (1, HeldBack::default()));
        assert!(usage(&store).reachable < 100);
        store.close().unwrap();
    }
}

/// A snapshot that began after the clear can see nothing of the old content, so nothing is held back for it.
#[test]
fn a_snapshot_holds_back_nothing_of_what_was_cleared_before() {
    for index in INDEXES {
        let (store, space) = store(index);
        fill(&space);
        let before = store.snapshot().unwrap();
        space.clear().unwrap();
        let after = store.snapshot().unwrap();
        store.collect(usize::MAX).unwrap();
        assert_eq!(store.held_back().cleared_keys, KEYS.into(), "{index}");
        drop(before);
        store.collect(usize::MAX).unwrap();
        assert_eq!((store.held_back().count, store.held_back().snapshots), (0, 1), "{index}");
        drop(after);
        // The clear itself frees most of it if no snapshot can see it; the rest follows later.
        fill(&space);
        space.clear().unwrap();
        let _after = store.snapshot().unwrap();
        store.collect(usize::MAX).unwrap();
        assert_eq!((store.held_back().count, store.held_back().snapshots), (0, 1), "{index}");
    }
}

/// A leaf whose link to a record is damaged when it is cleared leaks what it has left. Everything else is freed, and operations go on.
#[test]
fn of_what_is_cleared_only_damaged_leaves_leak() {
    for index in INDEXES {
        let pool_options = PoolOptions { size_max: 16 << 20, ..PoolOptions::default() };
        let (memory, store) = store_in_memory(pool_options, &Options { index: index.into(), ..Options::default() });
        let (space, other) = (store.namespace("space").unwrap(), store.namespace("other").unwrap());
        (0..u64::from(KEYS)).for_each(|n| space.put(&key(n), &[1; 100]).unwrap());
        let damaged = [0, u64::from(KEYS) / 2, u64::from(KEYS) - 1].map(key);
        damaged.iter().for_each(|key| break_links_to(&memory, *key, 100));
        assert!(space.get(&damaged[0]).is_err());
        space.clear().unwrap();
        store.collect(usize::MAX).unwrap();
        assert_eq!(store.held_back(), HeldBack::default(), "{index}");
        other.put(b"key", b"value").unwrap();
        let report = store.verify().unwrap();
        let leaked_max = damaged.len() * LEAF_MAX as usize;
        assert!((damaged.len()..=leaked_max).contains(&report.usage.leaked) && report.damages.len() == 1, "{index}: {:?}", report.damages);
    }
}

#[test]
fn versions_are_held_back_by_bytes() {
    let (store, space) = store("ever");
    fill(&space);
    let snapshot = store.snapshot().unwrap();
    fill(&space);
    let held = store.held_back();
    assert_eq!(held.count, KEYS.into());
    assert!((u64::from(KEYS) * 100..u64::from(KEYS) * 200).contains(&held.bytes), "{held:?}");
    drop(snapshot);
    store.collect(usize::MAX).unwrap();
    assert_eq!(store.held_back(), HeldBack::default());
}

/// Without writes or explicit requests.
#[test]
fn a_store_keeps_house() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = Options { size_max: 64 << 20, keeps_house: true, ..Options::default() };
    let store = Store::open(&path, options.clone()).unwrap();
    let (space, cleared) = (store.namespace("space").unwrap(), store.namespace("cleared").unwrap());
    let snapshot = store.snapshot().unwrap();
    for _ in 0..2 {
        fill(&space);
    }
    fill(&cleared);
    cleared.clear().unwrap();
    (0..100u32).for_each(|n| space.put_until(&[b"e".as_slice(), &n.to_be_bytes()].concat(), b"", 1).unwrap());
    drop(snapshot);
    let begun = Instant::now();
    while store.held_back() != HeldBack::default() || space.count() != KEYS.into() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}, {} keys", store.held_back(), space.count());
        std::thread::sleep(Duration::from_millis(5));
    }
    usage(&store);
    store.close().unwrap();
    drop((space, cleared));
    // The lock of the file went with the store, so no thread still holds it.
    let store = Store::open(&path, options).unwrap();
    assert_eq!(store.namespace("space").unwrap().count(), KEYS.into());
    drop(store);
    assert!(usage(&Store::open(&path, Options::default()).unwrap()).leaked == 0);
}
