//! What happens to leaves: how often they are divided, when they are read, and that none is left behind. The suites are in `everleaf-conformance`.

use everleaf_index::record::Record;
use everleaf_index::{Direction, FILL, OrderedIndex, Recovery, registry};
use everleaf_pmem::{Hardware, Pool, PoolOptions};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};

/// Whether more come without a division, too: as arrays of a radix tree do, and nodes of a list.
fn divides_seldom(name: &str) -> bool {
    ["pf", "p-art", "roart", "skip"].iter().any(|other| name.starts_with(other))
}

/// If leaves merge, there are no more of them than before, however many were divided.
#[test]
fn divisions_are_counted_apart_from_merges() {
    const KEYS: u64 = if cfg!(miri) { 500 } else { 5_000 };
    let value = NonZeroU64::MIN;
    for entry in registry::<u64, Hardware>().into_iter().filter(|entry| !divides_seldom(entry.name)) {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let index = entry.create(&pool, "t").unwrap();
        let mut splits = 0;
        for round in 1..4 {
            (0..KEYS).for_each(|key| assert!(index.insert(&key, value).unwrap().is_none()));
            (0..2 * KEYS).for_each(|key| assert!(index.update(&(key % KEYS), value).unwrap().is_some()));
            let stats = index.stats();
            assert!(stats.splits >= splits + KEYS / entry.leaf_capacity as u64 / 2, "{}, round {round}: {stats:?} after {splits}", entry.name);
            assert!(round > 1 || stats.splits == stats.leaves - 1, "{}: {stats:?}, and nothing has merged", entry.name);
            (0..KEYS).for_each(|key| assert!(index.remove(&key).unwrap().is_some()));
            assert!(index.stats().splits >= stats.splits && index.stats().leaves < stats.leaves, "{}: {:?} after {stats:?}", entry.name, index.stats());
            splits = index.stats().splits;
        }
    }
}

/// Leaves are read when they are touched, by those who touch them and by background threads, and the count is right in the end.
#[test]
fn an_index_serves_while_its_leaves_are_read() {
    // More leaves of every size than one thread takes at a time.
    const KEYS: u64 = if cfg!(miri) { 1_500 } else { 20_000 };
    let mixed = |key: u64| key * 7919 % KEYS;
    for entry in registry::<u64, Hardware>().into_iter().filter(|entry| entry.name.starts_with("ever")) {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let index = entry.create(&pool, "t").unwrap();
        // In disorder, so that splits leave behind what has moved.
        (0..KEYS).map(mixed).for_each(|key| assert!(index.insert(&key, NonZeroU64::MIN).unwrap().is_none()));
        let mut open: Box<dyn OrderedIndex<u64>> = index;
        for life in 2..8u64 {
            drop(open);
            open = entry.open(&pool, "t", &Recovery { reach: None, trace: None, threads: life as usize / 2 }).unwrap();
            let (now, before) = (NonZeroU64::new(life).unwrap(), NonZeroU64::new(life - 1));
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let index = &*open;
                    scope.spawn(move || {
                        let own = || (thread..KEYS).step_by(3).map(mixed);
                        // Three of four keys are removed, so that leaves merge with others that nobody has read, and added again, so that leaves split.
                        for key in own() {
                            assert_eq!(index.get(&key).unwrap(), before);
                            match key % 4 {
                                1 => assert_eq!(index.update(&key, now).unwrap(), before),
                                _ => assert_eq!(index.remove(&key).unwrap(), before),
                            }
                            if key % 1024 == 0 {
                                index
                                    .scan(Bound::Included(&key), Direction::Reverse, &mut |_, value| {
                                        assert!(value == now || Some(value) == before);
                                        ControlFlow::Continue(())
                                    })
                                    .unwrap();
                            }
                        }
                        own().filter(|key| key % 4 != 1).for_each(|key| assert_eq!(index.insert(&key, now).unwrap(), None));
                    });
                }
            });
            assert_eq!(open.check().unwrap().keys, KEYS, "{}", entry.name);
            // Nobody waits for leaves that are still to be read.
            drop(open);
            open = entry.open(&pool, "t", &Recovery { reach: None, trace: None, threads: 3 }).unwrap();
        }
        assert_eq!(open.stats().keys, KEYS);
    }
}

/// A queue is filled at one end and drained at the other. Its leaves must not stay behind, empty.
#[test]
fn a_queue_does_not_leave_its_leaves_behind() {
    const LENGTH: u64 = 200;
    for entry in registry::<u64, Hardware>() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let index = entry.create(&pool, "t").unwrap();
        for key in 0..if cfg!(miri) { 1000 } else { 30_000 } {
            assert_eq!(index.insert(&key, NonZeroU64::new(key + 1).unwrap()).unwrap(), None);
            if let Some(old) = key.checked_sub(LENGTH) {
                assert_eq!(index.remove(&old).unwrap(), NonZeroU64::new(old + 1));
            }
        }
        let stats = index.check().unwrap();
        assert_eq!(stats.keys, LENGTH);
        let half = (entry.leaf_capacity as u64 / 2).max(1);
        let times = match entry.name {
            // Keys without a gap between them get an array each, once more of them begin alike than an array has room for. A list has a node for each.
            name if divides_seldom(name) => half,
            // The packed router keeps a leaf under each of its nodes until there are many of them.
            name if name.starts_with("nv") || name.ends_with("packed") => 3,
            _ => 1,
        };
        assert!(stats.leaves <= times * LENGTH / half + 3, "{}: {stats:?}", entry.name);
        // Towers are as high as the highest that a list of this length has had.
        assert!(stats.depth <= if entry.name.starts_with("skip") { 11 } else { 8 }, "{}: {stats:?}", entry.name);
    }
}

/// Each was replaced by another one, and nothing was gained.
#[test]
fn low_fences_that_are_not_to_leave_stay_when_their_leaves_move() {
    for entry in registry::<[u8], Hardware>().into_iter().filter(|entry| ["isle", "nv"].contains(&entry.name)) {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
        let index = entry.create(&pool, "t").unwrap();
        for n in 0..500 {
            let key = format!("{n:04}").into_bytes();
            let record = Record::create(&pool, &key, &[]).unwrap().release();
            assert_eq!(index.insert(&key, NonZeroU64::new(record.link()).unwrap()).unwrap(), None);
        }
        let stats = index.stats();
        let leaf_size = (stats.leaf_bytes / stats.leaves) as usize;
        // Waypoints, which stay, are as large as a leaf, too.
        let blocks = || {
            let (mut leaves, mut others) = (BTreeSet::new(), BTreeSet::new());
            let mut note = |off, size| {
                if size == leaf_size { &mut leaves } else { &mut others }.insert(off);
                Ok(())
            };
            index.blocks(&mut note).unwrap();
            (leaves, others)
        };
        let (leaves, others) = blocks();
        assert!(others.len() as u64 >= stats.leaves, "{}: {stats:?}", entry.name);
        assert_eq!(index.relocate(&[], usize::MAX, &|off| leaves.contains(&off)).unwrap().moved, stats.leaves);
        let (leaves_now, others_now) = blocks();
        assert!(others_now == others && leaves_now.intersection(&leaves).count() <= 1, "{}", entry.name);
        assert_eq!(index.relocate(&[], usize::MAX, &|off| others.contains(&off)).unwrap().moved, stats.leaves - 1, "the first has no record");
        assert!(blocks().1.intersection(&others).count() <= 1, "the root block");
        assert_eq!(index.check().unwrap().keys, 500);
    }
}

/// An empty index can be loaded in bulk, whatever it held before.
#[test]
fn an_index_that_was_emptied_is_loaded_like_a_new_one() {
    for entry in registry::<u64, Hardware>() {
        for ascending in [true, false] {
            let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
            let index = entry.create(&pool, "t").unwrap();
            let keys = if cfg!(miri) { 300 } else { 5000 };
            let load = || index.bulk_load(&mut (0..keys).map(|key| (key, NonZeroU64::new(key + 1).unwrap())), FILL);
            load().unwrap();
            assert!(load().is_err());
            for key in 0..keys {
                index.remove(&if ascending { key } else { keys - 1 - key }).unwrap().unwrap();
            }
            load().unwrap_or_else(|error| panic!("{}: {error}", entry.name));
            assert_eq!(index.check().unwrap().keys, keys);
        }
    }
}
