//! Pools that were not written in good faith: there is an error, never a panic or an endless loop.

use everleaf_index::record::Record;
use everleaf_index::{Cause, FILL, OrderedIndex, Recovery, registry};
use everleaf_pmem::{Hardware, Off, Pool, PoolOptions, Word};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const LEAF: usize = 512;
const LEAF_WORDS: usize = LEAF / 8;
const CAPACITY: u64 = 28;

fn pool() -> Arc<Pool> {
    Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 16 << 20, ..PoolOptions::default() }).unwrap()
}

fn entry() -> everleaf_index::Entry<u64, Hardware> {
    registry::<u64, Hardware>().into_iter().find(|entry| entry.name == "isle").unwrap()
}

fn value(of: u64) -> NonZeroU64 {
    NonZeroU64::new(of + 1).unwrap()
}

/// A tree of three leaves with every tenth key, and where its root block and its leaves lie.
fn three_leaves(pool: &Arc<Pool>) -> (Box<dyn OrderedIndex<u64>>, u64, Vec<u64>) {
    let index = entry().create(pool, "t").unwrap();
    index.bulk_load(&mut (0..CAPACITY * 3 / 4 * 3).map(|n| (n * 10, value(n))), FILL).unwrap();
    let mut blocks = Vec::new();
    index
        .blocks(&mut |off, size| {
            blocks.push((off, size));
            Ok(())
        })
        .unwrap();
    // The root block, then that of the waypoints, which is as large as a leaf, and the leaves.
    assert_eq!(blocks[1..].iter().map(|block| block.1).collect::<Vec<_>>(), [LEAF; 4]);
    (index, blocks[0].0, blocks[2..].iter().map(|block| block.0).collect())
}

fn words(pool: &Pool, off: u64) -> &[Word] {
    pool.words(Off::<Word>::new(off), LEAF_WORDS).unwrap()
}

fn open(pool: &Arc<Pool>) -> Result<Box<dyn OrderedIndex<u64>>, everleaf_index::Error> {
    entry().open(pool, "t", &Recovery { reach: None, trace: None, threads: 1 })
}

/// Two leaves that share a latch, since one begins a line behind the other: a split of the second would wait for itself.
#[test]
fn leaves_that_overlap_are_refused() {
    let pool = pool();
    let (index, root, _) = three_leaves(&pool);
    drop(index);
    let block = pool.alloc_words(4 * LEAF_WORDS).unwrap();
    block.iter().for_each(|word| pool.store(word, 0, Relaxed));
    let first = block.off().bytes().next_multiple_of(LEAF as u64);
    let second = first + 64;
    let header = words(&pool, first);
    // next, counters, skip and low of the first: four entries in its first line, which is the header of the second.
    pool.store(&header[0], Off::<Word>::new(second).link(), Relaxed);
    pool.store(&header[1], 4, Relaxed);
    for (word, value) in header[8..16].iter().zip([0, 1 << 56, 5, 1, 6, 1, 7, 100]) {
        pool.store(word, value, Relaxed);
    }
    pool.store(&pool.words(Off::<Word>::new(root), 1).unwrap()[0], Off::<Word>::new(first).link(), Relaxed);
    let refused = open(&pool).map(|index| index.stats()).unwrap_err();
    assert!(refused.to_string().contains("reaches into another"), "{refused}");
    // A leaf in the place of the root block is refused, too.
    pool.store(&header[0], Off::<Word>::new(root).link(), Relaxed);
    assert!(open(&pool).is_err());
}

/// The separator of such a leaf would not lie between its fences, and the router would misdirect keys from then on.
#[test]
fn a_leaf_with_keys_beyond_its_range_is_not_split() {
    let pool = pool();
    let (index, _, leaves) = three_leaves(&pool);
    drop(index);
    for entry in words(&pool, leaves[1])[8..].chunks(2) {
        pool.store(&entry[0], entry[0].get() + 1_000_000, Relaxed);
    }
    let index = open(&pool).unwrap();
    let low = CAPACITY * 3 / 4 * 10;
    let failed = (1..=CAPACITY).find_map(|n| index.insert(&(low + n), value(n)).err()).expect("the leaf is full, and cannot be split");
    assert!(failed.to_string().contains("beyond its range"), "{failed}");
    assert!(index.check().is_err());
    assert_eq!(index.insert(&1, value(1)).unwrap(), None, "other leaves go on");
}

/// A split that waited until the leaf before links its leaf would wait for ever.
#[test]
fn a_leaf_that_is_not_linked_is_not_split() {
    let pool = pool();
    let (index, _, leaves) = three_leaves(&pool);
    pool.store(&words(&pool, leaves[0])[0], Off::<Word>::new(leaves[2]).link(), Relaxed);
    let low = CAPACITY * 3 / 4 * 10;
    let failed = (1..=CAPACITY).find_map(|n| index.insert(&(low + n), value(n)).err()).expect("the leaf is full, and cannot be split");
    assert!(failed.to_string().contains("not linked"), "{failed}");
    assert_eq!(index.get(&low).unwrap(), Some(value(CAPACITY * 3 / 4)));
}

/// Counters are repaired when a tree is recovered. If they are damaged later, or while it is closed, no change may leave its line or overwrite an entry: one
/// that was not counted was overwritten by the next insert, and lost by a removal beside it.
#[test]
fn a_line_that_is_not_counted_right_is_not_changed() {
    let pool = pool();
    let (index, _, leaves) = three_leaves(&pool);
    let word = &words(&pool, leaves[0])[1];
    // Five full lines, one entry, and a vacant line.
    assert_eq!(word.get(), 0x0104_0404_0404);
    index.remove(&20).unwrap();
    for counter in [0, 1, 2, 4, 5, 0xff] {
        pool.store(word, word.get() & !0xff | counter, Relaxed);
        assert!(index.remove(&0).is_err() && index.remove(&10).is_err() && index.remove(&30).is_err(), "{counter}");
        // An insert takes the first line with room by its counter, and passes over one that is full by its counter.
        let inserted = index.insert(&(11 + counter % 8), value(11));
        assert_eq!(inserted.is_err(), counter < 4, "{counter}: {inserted:?}");
        assert!([0, 10, 30].iter().all(|key| index.get(key).unwrap() == Some(value(key / 10))), "{counter}");
        assert!(index.check().is_err());
    }
    drop(index);
    open(&pool).unwrap().check().unwrap();
}

/// The leaves behind it, which are sound, were in no list any more.
#[test]
fn a_leaf_that_has_become_zeroes_is_not_loaded() {
    let pool = pool();
    let (index, _, leaves) = three_leaves(&pool);
    words(&pool, leaves[0]).iter().for_each(|word| pool.store(word, 0, Relaxed));
    let refused = index.bulk_load(&mut (0..10).map(|n| (n, value(n))), FILL).unwrap_err();
    assert!(refused.to_string().contains("none comes behind it"), "{refused}");
    let (low, high) = (CAPACITY * 3 / 4, CAPACITY * 3 / 4 * 3);
    assert!((low..high).all(|n| index.get(&(n * 10)).unwrap() == Some(value(n))));
}

/// An open index of which nothing is left but the root block is not taken for an empty one, whatever its kind. Nor is a tree of which every node persists, if
/// its top was lost while it was closed.
#[test]
fn what_has_become_zeroes_is_not_empty() {
    let clear = |pool: &Pool, (off, size): (u64, usize)| {
        pool.words(Off::<Word>::new(off), size / 8).unwrap().iter().for_each(|word| pool.store(word, 0, Relaxed));
    };
    for entry in registry::<u64, Hardware>().into_iter().filter(|entry| entry.persistent) {
        let pool = pool();
        let index = entry.create(&pool, "t").unwrap();
        (0..3).for_each(|n| assert_eq!(index.insert(&n, value(n)).unwrap(), None));
        let mut blocks = Vec::new();
        let mut note = |off, size| {
            blocks.push((off, size));
            Ok(())
        };
        index.blocks(&mut note).unwrap();
        blocks[1..].iter().for_each(|block| clear(&pool, *block));
        let loaded = index.bulk_load(&mut (10..20).map(|n| (n, value(n))), FILL);
        assert!(loaded.is_err(), "{}", entry.name);
    }
    for name in ["fast-fair", "circ", "lcb", "cdds"] {
        let pool = pool();
        let entry = registry::<u64, Hardware>().into_iter().find(|entry| entry.name == name).unwrap();
        let index = entry.create(&pool, "t").unwrap();
        (0..100).for_each(|n| assert_eq!(index.insert(&n, value(n)).unwrap(), None));
        let mut root = None;
        let mut note = |off, _| {
            root.get_or_insert(off);
            Ok(())
        };
        index.blocks(&mut note).unwrap();
        index.close().unwrap();
        drop(index);
        let top = pool.words(Off::<Word>::new(root.unwrap()), 1).unwrap()[0].get();
        clear(&pool, (Off::<Word>::from_link(top).unwrap().bytes(), 64));
        assert!(entry.open(&pool, "t", &Recovery { reach: None, trace: None, threads: 1 }).is_err(), "{name}");
    }
}

/// The load replaced what was there.
#[test]
fn a_leaf_that_seems_to_be_empty_is_not_loaded() {
    let pool = pool();
    let index = entry().create(&pool, "t").unwrap();
    (0..3).for_each(|n| assert_eq!(index.insert(&n, value(n)).unwrap(), None));
    let mut leaf = 0;
    let mut last = |off, _| {
        leaf = off;
        Ok(())
    };
    index.blocks(&mut last).unwrap();
    let word = &words(&pool, leaf)[1];
    assert_eq!(word.get(), 3);
    pool.store(word, 0, Relaxed);
    let refused = index.bulk_load(&mut (10..20).map(|n| (n, value(n))), FILL).unwrap_err();
    assert!(matches!(refused.cause(), Cause::NotEmpty { keys: 3 }), "{refused}");
    (0..3).for_each(|n| assert_eq!(index.get(&n).unwrap(), Some(value(n))));
    index.check().unwrap();
}

/// The new tree has a leaf before it has a name. If it gets none, it must not keep the leaf.
#[test]
fn a_name_that_is_taken_costs_no_leaf() {
    let pool = pool();
    let first = entry().create(&pool, "t").unwrap();
    for _ in 0..3 {
        assert!(matches!(entry().create(&pool, "t").err().unwrap().pmem(), Some(everleaf_pmem::Error::RootExists { .. })));
    }
    let reach = pool.reach();
    first.blocks(&mut |off, size| Ok(reach.mark(Off::<Word>::new(off), size)?)).unwrap();
    pool.collect();
    assert_eq!(pool.audit(&reach).unwrap().leaked, 0);
}

/// The baseline keeps its leaves to itself, but reads its keys from records.
#[test]
fn the_baseline_does_not_split_by_damaged_records() {
    for damage in [0, 1, 2] {
        let pool = pool();
        let index = registry::<[u8], Hardware>().into_iter().find(|entry| entry.name == "volatile").unwrap().create(&pool, "t").unwrap();
        let key = |n: u64| format!("common to all, {n:06}");
        let put = |n: u64| {
            let record = Record::create(&pool, key(n).as_bytes(), b"").unwrap();
            let link = NonZeroU64::new(record.release().link()).unwrap();
            index.upsert(key(n).as_bytes(), link).map(|_| link)
        };
        let links: Vec<NonZeroU64> = (0..40).map(|n| put(n * 10).unwrap()).collect();
        // The records of the upper leaf, whose split is due, get no length, no bytes, or the bytes of another key.
        for link in &links[20..] {
            let record = pool.words(Off::<Word>::from_link(link.get()).unwrap(), 8).unwrap();
            match damage {
                0 => pool.store(&record[0], u64::MAX, Relaxed),
                1 => record.iter().for_each(|word| pool.store(word, 0, Relaxed)),
                _ => record[4..].iter().for_each(|word| pool.store(word, 0, Relaxed)),
            }
        }
        let failed = (1..40).find_map(|n| put(390 + n).err());
        assert!(failed.is_some_and(|error| matches!(error.pmem(), Some(everleaf_pmem::Error::Corrupt { .. }))), "damage {damage}");
        assert_eq!(index.get(key(10).as_bytes()).unwrap(), Some(links[1]), "other leaves go on");
    }
}

/// What happens to a leaf whose word that says what counts was damaged while the tree is open.
#[derive(Clone, Copy, Debug)]
enum Around {
    Emptied,
    Filled,
    Relocated,
}

/// Entries that such a word hides were silently lost when the leaf was taken out of the list because it looked empty, or was rewritten.
#[test]
fn a_damaged_word_that_says_what_counts_is_noticed_whatever_becomes_of_its_leaf() {
    let has_such = |entry: &everleaf_index::Entry<u64, Hardware>| {
        ["fp", "lb", "nv", "wb", "circ", "lcb", "cdds"].iter().any(|paper| entry.name.split('-').next() == Some(paper))
    };
    let entries = || registry::<u64, Hardware>().into_iter().filter(has_such);
    assert!(entries().count() > 20);
    for entry in entries() {
        // In every layout, the first bits of such a word are a part of what it says.
        for (bit, around) in (0..16).flat_map(|bit| [Around::Emptied, Around::Filled, Around::Relocated].map(|around| (bit, around))) {
            let pool = pool();
            let index = entry.create(&pool, "t").unwrap();
            let count = entry.leaf_capacity as u64 * 4;
            index.bulk_load(&mut (0..count).map(|n| (n * 10, value(n))), FILL).unwrap();
            let mut blocks = Vec::new();
            let mut list = |off, size| {
                blocks.push((off, size));
                Ok(())
            };
            index.blocks(&mut list).unwrap();
            let leaves: Vec<u64> = blocks[blocks.len() - index.stats().leaves as usize..].iter().map(|block| block.0).collect();
            let word = &pool.words(Off::<Word>::new(leaves[1]), 4).unwrap()
                [if ["circ", "lcb", "cdds"].iter().any(|paper| entry.name.starts_with(paper)) { 3 } else { 0 }];
            pool.store(word, word.get() ^ 1 << bit, Relaxed);
            let keys = 0..count * 10;
            // A change that fails has noticed the damage; later ones must not hide it.
            match around {
                Around::Emptied => keys.step_by(10).for_each(|key| _ = index.remove(&key)),
                Around::Filled => keys.for_each(|key| _ = index.upsert(&key, value(key))),
                Around::Relocated => _ = index.relocate(&0, usize::MAX, &|_| true),
            }
            drop(index);
            let again = entry.open(&pool, "t", &Recovery { reach: None, trace: None, threads: 1 });
            assert!(again.and_then(|index| index.check()).is_err(), "{}, bit {bit}, {around:?}", entry.name);
        }
    }
}
