//! Compaction of a store in use to the size of its content.

use crate::fixture::{self, check, fits};
use everleaf::{Batch, Direction, Evacuation, Isolation, Namespace, Options, Shrunk, Snapshot, Store};
use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const INDEXES: [&str; 16] =
    ["isle", "ever", "nv", "fp", "lb", "wb", "isle-packed", "fast-fair", "circ", "lcb", "cdds", "pf", "p-art", "roart", "bztree", "skip"];

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// A value of a hundred bytes that begins with a number.
fn value(n: u64) -> [u8; 100] {
    let mut value = [0x5a; 100];
    value[..8].copy_from_slice(&n.to_le_bytes());
    value
}

fn go_on(_: &Shrunk) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn content(scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>)) -> Content {
    let mut content = Content::new();
    scan(&mut |key, value| {
        content.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    content
}

fn now(space: &Namespace) -> Content {
    content(|visit| space.scan(Bound::Unbounded, Direction::Forward, visit).unwrap())
}

fn as_of(snapshot: &Snapshot, space: &Namespace) -> Content {
    content(|visit| snapshot.scan(space, Bound::Unbounded, Direction::Forward, visit).unwrap())
}

/// Four fifths are removed. Then, while two threads write half of the rest and one reads, the file's space approaches the size of the content. Only the
/// compaction moves the other half.
#[test]
fn the_file_gets_as_small_as_what_is_left() {
    const KEYS: u64 = 60_000;
    // Other file systems may keep recently written pages for a while.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for index in INDEXES {
        let path = dir.path().join(index);
        let options = || Options { index: index.into(), size_max: 1 << 30, ..Options::default() };
        let store = Store::open(&path, options()).unwrap();
        let space = store.namespace("space").unwrap();
        (0..KEYS).for_each(|n| space.put(&key(n), &value(n)).unwrap());
        (0..KEYS).filter(|n| n % 5 != 0).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
        // A late namespace lies at the end.
        let late = store.namespace("late").unwrap();
        late.put(b"late", b"late").unwrap();
        let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
        let before = taken();
        let done = AtomicBool::new(false);
        let shrunk = std::thread::scope(|scope| {
            for thread in 0..2 {
                let (space, done) = (&space, &done);
                scope.spawn(move || {
                    for round in 1.. {
                        for n in (0..KEYS).step_by(20).map(|n| n + 10 * thread) {
                            if done.load(Ordering::Relaxed) {
                                return;
                            }
                            space.put(&key(n), &value(n + KEYS * round)).unwrap();
                        }
                    }
                });
            }
            let (space, done) = (&space, &done);
            scope.spawn(move || {
                for n in (0..KEYS).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    let found = space.get(&key(n)).unwrap().map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()) % KEYS);
                    assert_eq!(found, (n % 5 == 0).then_some(n), "{index}");
                }
            });
            let shrunk = store.compact(Evacuation::Sparse, go_on);
            done.store(true, Ordering::Relaxed);
            shrunk.unwrap()
        });
        // Twice, because of blocks that threads keep ready.
        let again = store.compact(Evacuation::Sparse, go_on).unwrap();
        println!("{index}: {before} bytes before, {} after; {shrunk:?}, then {again:?}", taken());
        assert!(shrunk.is_complete && shrunk.records + again.records > KEYS / 20, "{index}: {shrunk:?}");
        let live = KEYS / 5 * 108;
        // The number of some leaves stays the same, and so does the place of some. New records of the writers lie where there was room.
        assert!(before > 6 * live && taken() < 4 * live + (1 << 20), "{index}: {} bytes for {live}, {before} before", taken());
        check(&store);
        let held = now(&space);
        assert_eq!(held.len() as u64, KEYS / 5);
        store.close().unwrap();
        drop((space, late));
        let length = std::fs::metadata(&path).unwrap().len();
        // One immovable block at the end keeps everything before it, even holes.
        assert!(length < before, "{index}: {length} bytes long, {before} before");
        let store = Store::open(&path, options()).unwrap();
        let space = store.namespace("space").unwrap();
        assert_eq!(now(&space), held);
        check(&store);
        // The store grows again into the space given back.
        (0..KEYS).for_each(|n| space.put(&key(n), &value(n)).unwrap());
        check(&store);
    }
}

/// Values of more than half a slab that share slabs are moved like small ones, also beside a snapshot.
#[test]
fn what_shares_slabs_is_moved() {
    const KEYS: u64 = 300;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let store = Store::open(&path, Options { size_max: 64 << 20, ..Options::default() }).unwrap();
    let space = store.namespace("space").unwrap();
    let value = |n: u64| vec![n as u8; 40_000 + n as usize];
    (0..KEYS).for_each(|n| space.put(&key(n), &value(n)).unwrap());
    let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let before = taken();
    assert!(before < KEYS * 40_000 * 5 / 4 + (4 << 20), "{before} bytes");
    (0..KEYS).filter(|n| n % 5 != 0).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
    let snapshot = store.snapshot().unwrap();
    let held = now(&space);
    let shrunk = store.compact(Evacuation::Sparse, go_on).unwrap();
    assert!(shrunk.is_complete && shrunk.records > KEYS / 10, "{shrunk:?}");
    let live = KEYS / 5 * 40_000;
    assert!(taken() < live * 5 / 4 + (1 << 20), "{} bytes for {live}, {before} before; {shrunk:?}", taken());
    assert!(now(&space) == held && as_of(&snapshot, &space) == held && held.len() as u64 == KEYS / 5);
    assert!((0..KEYS).step_by(5).all(|n| held[&key(n)[..]] == value(n)));
    check(&store);
    // Simulates a crash.
    drop((snapshot, space, store));
    let store = Store::open(&path, Options::default()).unwrap();
    assert!(now(&store.namespace("space").unwrap()) == held);
    check(&store);
}

/// A pool that was full of small values, few of which are left, has room for a large one, and more after a compaction: Ever's unneeded leaves do not obstruct
/// it, and the needed ones lie together.
#[test]
fn what_is_left_makes_room_in_one_piece() {
    const SIZE: usize = 32 << 20;
    const KEPT: usize = 2000;
    for compacts in [false, true] {
        let (store, space) = fixture::store(Options { index: "ever".into(), size_max: SIZE, ..Options::default() });
        let count = (0..).find(|n| space.put(&key(*n), b"small").is_err()).unwrap();
        (0..count).filter(|n| n % KEPT as u64 != 0).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
        let large = vec![7; SIZE * 2 / 5];
        if compacts {
            let shrunk = store.compact(Evacuation::Sparse, go_on).unwrap();
            println!("{count} keys; {shrunk:?}");
            assert!(shrunk.leaves > 0 && shrunk.is_complete, "{shrunk:?}");
        }
        space.put(b"large", &large).unwrap();
        assert_eq!(space.count(), count.div_ceil(KEPT as u64) + 1);
        check(&store);
        space.delete(b"large").unwrap();
        (0..count / 2).for_each(|n| space.put(&key(n), b"again").unwrap());
        check(&store);
    }
}

/// Records of every kind are moved, and all leaves; no reader sees a difference at any moment.
#[test]
fn whatever_is_moved_is_the_same() {
    for index in INDEXES {
        let store = Store::anonymous(Options { index: index.into(), size_max: 64 << 20, ..Options::default() }).unwrap();
        let (space, other) = (store.namespace("space").unwrap(), store.namespace("other").unwrap());
        (0..2000).for_each(|n| space.put(&key(n), &value(n)).unwrap());
        (0..100).for_each(|n| other.put_until(&key(n), &value(n), store.time_ms() + (1 << 40) + n).unwrap());
        other.put(b"large", &[7; 100_000]).unwrap();
        let first = store.snapshot().unwrap();
        let mut batch = Batch::default();
        (0..50).for_each(|n| batch.put(&space, &key(n), b"of a batch"));
        (50..100).for_each(|n| batch.delete(&space, &key(n)));
        store.write(batch).unwrap();
        (100..150).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
        let second = store.snapshot().unwrap();
        (150..200).for_each(|n| space.put(&key(n), b"over").unwrap());
        let seen = || [as_of(&first, &space), as_of(&second, &space), now(&space), as_of(&second, &other), now(&other)];
        let before = seen();
        let expiries = || (0..100).map(|n| other.expiry_ms(&key(n)).unwrap()).collect::<Vec<_>>();
        let expiries_before = expiries();
        let mut transaction = store.begin(Isolation::Serializable).unwrap();
        assert_eq!(transaction.get(&space, &key(500)).unwrap().as_deref(), Some(&value(500)[..]));
        for round in 0..3 {
            let shrunk = store.compact(Evacuation::All, go_on).unwrap();
            assert!(shrunk.is_complete && shrunk.records >= 1900, "{index}: {shrunk:?}");
            // Each moved record adds an entry, so most leaves have already been copied, to where there was room.
            let leaves_min = if index == "bztree" { 1 } else { 11 };
            assert!(shrunk.leaves >= leaves_min, "{index}: {shrunk:?}");
            assert!(seen() == before, "{index}, round {round}");
            assert_eq!(expiries(), expiries_before);
            check(&store);
        }
        // Nothing that the transaction has read has changed.
        transaction.put(&space, &key(501), b"after all").unwrap();
        transaction.commit().unwrap();
        assert!(store.begin(Isolation::Serializable).unwrap().is_unchanged_since(&first, &space, &key(300)).unwrap());
        drop((first, second));
        store.collect(usize::MAX).unwrap();
        check(&store);
        assert_eq!(space.count(), 1900, "{index}");
    }
}

/// New keys have room between old ones, also if their values are of another size: leaves, and records of another class, take slabs that the full pool empties
/// for them.
#[test]
fn a_pool_that_is_full_of_gaps_takes_new_keys() {
    for index in INDEXES {
        for (before, after) in [(1000, 1000), (1000, 300), (100, 100)] {
            let (store, space) = fixture::store(Options { index: index.into(), size_max: 32 << 20, ..Options::default() });
            let fill = |from: u64, size: usize| (from..).find(|n| !fits(space.put(&key(*n), &vec![*n as u8; size]))).unwrap();
            let full = fill(0, before);
            (0..full).filter(|n| n % 2 == 1).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
            let more = fill(full, after) - full;
            println!("{index}: {full} values of {before} bytes, half of them deleted, then {more} of {after}");
            assert!(more as usize * after > full as usize / 2 * before / 2, "{index}: {more} of {after} bytes for {full} of {before}");
            check(&store);
            let is_there = |n: u64, size: usize| space.get(&key(n)).unwrap().is_some_and(|value| value == vec![n as u8; size]);
            assert!((0..full).step_by(2).all(|n| is_there(n, before)) && (full..full + more).all(|n| is_there(n, after)), "{index}");
        }
    }
}

/// Several threads meet the full pool at once, while one reads, another overwrites and a third one compacts.
#[test]
fn many_threads_fill_gaps() {
    const WRITERS: u64 = 3;
    let (store, space) = fixture::store(Options { size_max: 32 << 20, ..Options::default() });
    let put = |n: u64| space.put(&key(n), &[n as u8; 1000]);
    let is_there = |n: u64| space.get(&key(n)).unwrap().is_some_and(|value| value == [n as u8; 1000]);
    let full = (0..).find(|n| !fits(put(*n))).unwrap();
    (0..full).filter(|n| n % 2 == 1).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
    let writing = AtomicU64::new(WRITERS);
    let is_over = || writing.load(Ordering::Relaxed) == 0;
    let more: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|thread| {
                let (put, writing) = (&put, &writing);
                scope.spawn(move || {
                    let more = (0..).find(|n| !fits(put(full + n * WRITERS + thread))).unwrap();
                    writing.fetch_sub(1, Ordering::Relaxed);
                    more
                })
            })
            .collect();
        scope.spawn(|| (0..full).step_by(2).cycle().take_while(|_| !is_over()).for_each(|n| assert!(is_there(n), "{n}")));
        scope.spawn(|| (0..full).step_by(20).cycle().take_while(|_| !is_over()).for_each(|n| _ = fits(put(n))));
        scope.spawn(|| {
            while !is_over() {
                store.compact(Evacuation::Sparse, go_on).unwrap();
            }
        });
        let counts: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!((0..WRITERS).all(|thread| (0..counts[thread as usize]).all(|n| is_there(full + n * WRITERS + thread))));
        counts.iter().sum()
    });
    println!("{full} values, then {more}");
    check(&store);
    // What meets a compaction is refused.
    let last = (u64::MAX / 2..).find(|n| !fits(put(*n))).unwrap() - u64::MAX / 2;
    assert!(more + last > full / 2 * 9 / 10, "{full} values, then {more} and {last}");
    assert!((0..full).step_by(2).all(is_there));
    check(&store);
}

/// What a snapshot sees is not moved, so it makes no room; when the snapshot has ended, there is room.
#[test]
fn gaps_are_not_filled_from_what_snapshots_see() {
    let (store, space) = fixture::store(Options { size_max: 16 << 20, ..Options::default() });
    let fill = |from: u64, size: usize| (from..).find(|n| !fits(space.put(&key(*n), &vec![*n as u8; size]))).unwrap();
    let full = fill(0, 1000);
    let snapshot = store.snapshot().unwrap();
    let held = as_of(&snapshot, &space);
    let deleted = (0..full).step_by(2).take_while(|n| space.delete(&key(*n)).is_ok()).count() as u64;
    let none = fill(full, 300) - full;
    assert!(deleted > full / 10 && none < full / 50, "{full}, {deleted} deleted, {none} more");
    assert!(as_of(&snapshot, &space) == held);
    drop(snapshot);
    let more = fill(full + none, 300) - full - none;
    assert!(more > deleted * 2, "{full}, {deleted} deleted, {none} more, then {more}");
    check(&store);
}

/// Large values have room where small ones were.
#[test]
fn a_pool_that_is_full_of_gaps_takes_what_is_large() {
    let (store, space) = fixture::store(Options { size_max: 16 << 20, ..Options::default() });
    let full = (0..).find(|n| !fits(space.put(&key(*n), &value(*n)))).unwrap();
    // In a pool without room compaction does what it can.
    assert!(store.compact(Evacuation::All, go_on).unwrap().records < full);
    check(&store);
    (0..full).filter(|n| n % 4 != 0).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
    let large = vec![1; 1 << 20];
    let fit = |from: u64| (from..).find(|n| !fits(space.put(&key(1 << 40 | *n), &large))).unwrap();
    let before = fit(0);
    let shrunk = store.compact(Evacuation::Sparse, go_on).unwrap();
    let after = fit(before);
    println!("{full}: {before} MiB, then {after}; {shrunk:?}");
    assert!(before >= 4 && after >= 6, "{before}, then {after} MiB");
    check(&store);
    assert!((0..full).step_by(4).all(|n| space.get(&key(n)).unwrap().as_deref() == Some(&value(n)[..])));
}

/// Keys that come in order leave an extent of leaves after every few records, which must be given back before a larger value fits. Leaves merge in whatever
/// order they become sparse.
#[test]
fn leaves_make_room_for_what_is_large() {
    type Order = fn(u64, u64) -> u64;
    const ORDERS: [(&str, Order); 3] = [("ascending", |n, _| n), ("descending", |n, full| full - 1 - n), ("scattered", |n, full| n * 7919 % full)];
    for (order, of) in ORDERS {
        let [full, fit] = large_behind_small(64 << 20, |full| (0..full).map(|n| of(n, full)).filter(|n| n % 8 != 0).collect());
        assert!(fit >= 15, "{order}: {full} values, then {fit}");
    }
}

/// Leaves that are half full do not merge. But extents are made next to each other, and leave long runs of slabs between them.
#[test]
fn what_is_large_lies_between_extents() {
    let [full, fit] = large_behind_small(256 << 20, |full| (0..full).filter(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 0).collect());
    assert!(fit >= 80, "{full} values, then {fit}");
}

/// Fills a pool of this size with small values, deletes some, and fills it with values of a megabyte. Returns how many there were of each.
fn large_behind_small(size_max: usize, deleted_of: impl Fn(u64) -> Vec<u64>) -> [u64; 2] {
    let (store, space) = fixture::store(Options { index: "ever".into(), size_max, ..Options::default() });
    let full = (0u64..).find(|n| !fits(space.put(&n.to_be_bytes(), &[1; 200]))).unwrap();
    let deleted = deleted_of(full);
    deleted.iter().for_each(|n| assert!(space.delete(&n.to_be_bytes()).unwrap()));
    let fit = (0u64..).find(|n| !fits(space.put(&(1 << 40 | n).to_be_bytes(), &vec![2; 1_000_000]))).unwrap();
    println!("{full} values, {} deleted, then {fit}", deleted.len());
    check(&store);
    let deleted: HashSet<u64> = deleted.into_iter().collect();
    let is_right = |n: &u64| space.get(&n.to_be_bytes()).unwrap().as_deref() == (!deleted.contains(n)).then_some(&[1; 200][..]);
    assert!((0..full).all(|n| is_right(&n)));
    [full, fit]
}

/// The data that an index leaves at its close, and later writes, take room again: a little, not a whole step of growth.
#[test]
fn what_was_made_small_stays_small() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = Options { size_max: 256 << 20, recovery_threads: 1, ..Options::default() };
    let length = || std::fs::metadata(&path).unwrap().len() as usize;
    let store = Store::open(&path, options.clone()).unwrap();
    let space = store.namespace("space").unwrap();
    (0..200_000).for_each(|n| space.put(&key(n), &value(n)).unwrap());
    (0..200_000).filter(|n| n % 4 != 0).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
    let shrunk = store.compact(Evacuation::Sparse, go_on).unwrap();
    assert!(shrunk.size < shrunk.size_before, "{shrunk:?}");
    (200_000..201_000).for_each(|n| space.put(&key(n), &value(n)).unwrap());
    drop(space);
    store.close().unwrap();
    assert!(length() <= shrunk.size + shrunk.size / 4, "{} bytes, {shrunk:?}", length());
    let done = everleaf::compact(&path, options.clone(), |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(length(), done.size);
    assert!(done.size <= done.size_before, "{done:?}");
    let store = Store::open(&path, options.clone()).unwrap();
    store.namespace("space").unwrap().clear().unwrap();
    store.close().unwrap();
    let done = everleaf::compact(&path, options, |_, _| ControlFlow::Continue(())).unwrap();
    assert!(done.size < 2 << 20, "nothing is left: {done:?}");
}

#[test]
fn who_watches_may_end_it() {
    let (store, space) = fixture::store(Options { size_max: 64 << 20, ..Options::default() });
    (0..5000).for_each(|n| space.put(&key(n), &value(n)).unwrap());
    let mut steps = 0;
    let shrunk = store.compact(Evacuation::All, |shrunk| {
        steps += 1;
        if shrunk.records > 1000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let shrunk = shrunk.unwrap();
    assert!(!shrunk.is_complete && shrunk.records < 2000 && shrunk.leaves == 0 && steps > 3, "{shrunk:?}");
    check(&store);
    assert_eq!(now(&space).len(), 5000);
}
