//! Readers of Ever do not wait for inserts: whenever one is about to store to the pool, to flush or to fence, somebody looks at all keys, and at all of them in
//! order, and gets through at once. Splits are inserts, too.
//!
//! What is left are stores to DRAM under the latches of a leaf and of nodes of the router, in which nothing is stored to the pool, flushed or fenced.

use everleaf_conformance::Class;
use everleaf_index::{Direction, OrderedIndex, registry};
use everleaf_pmem::schedule::{self, Scheduler, Step};
use everleaf_pmem::{Hardware, Off, Pool, PoolOptions, Word};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow, Range};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Looks on while its thread writes.
struct Onlooker<K: Class + ?Sized> {
    index: Arc<dyn OrderedIndex<K>>,
    /// Addresses of the pool's words.
    pool: Range<usize>,
    /// What is there; the last of it is just being inserted.
    keys: Mutex<Vec<(K::Owned, NonZeroU64)>>,
    is_looking: AtomicBool,
    looks: AtomicU32,
}

impl<K: Class + ?Sized> Onlooker<K> {
    fn look(&self) {
        let mut expected = self.keys.lock().unwrap().clone();
        let (coming, there) = expected.split_last().expect("somebody is inserting");
        let found = |(key, value): &(K::Owned, NonZeroU64)| self.index.get(key.borrow()).unwrap() == Some(*value);
        assert!(there.iter().all(found), "a key is not found");
        if !found(coming) {
            expected.pop();
        }
        expected.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found = Vec::new();
            let scanned = self.index.scan(Bound::Unbounded, direction, &mut |key, value| {
                found.push((key.to_owned(), value));
                ControlFlow::Continue(())
            });
            scanned.unwrap();
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert!(found == expected, "a scan shows {found:?}, not {expected:?}");
        }
    }
}

impl<K: Class + ?Sized> Scheduler for Onlooker<K> {
    fn before(&self, step: Step, at: &'static Location<'static>) {
        if self.is_looking.load(Relaxed) {
            assert!(step != Step::Wait, "a reader waits at {at} for an insert");
            return;
        }
        let concerns_the_pool = match step {
            Step::Store(address, _) => self.pool.contains(&address),
            Step::Flush(..) | Step::Fence => true,
            _ => false,
        };
        if concerns_the_pool {
            self.is_looking.store(true, Relaxed);
            self.look();
            self.is_looking.store(false, Relaxed);
            self.looks.fetch_add(1, Relaxed);
        }
    }
}

/// Inserts so many keys in random order under the eyes of an onlooker.
fn look_on<K: Class + ?Sized>(name: &str, keys: u32) {
    let options = PoolOptions { size_max: 8 << 20, ..PoolOptions::default() };
    let pool = Pool::anonymous(Hardware::page_cache(), options).unwrap();
    let entry = registry::<K, Hardware>().into_iter().find(|entry| entry.name == name).unwrap();
    let index: Arc<dyn OrderedIndex<K>> = entry.create(&pool, "index").unwrap().into();
    let first = std::ptr::from_ref(pool.words(Off::<Word>::new(64), 1).unwrap()).addr() - 64;
    let onlooker = Arc::new(Onlooker {
        index: Arc::clone(&index),
        pool: first..first + (8 << 20),
        keys: Mutex::default(),
        is_looking: AtomicBool::new(false),
        looks: AtomicU32::new(0),
    });
    let mut numbers: Vec<u32> = (1..=keys).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(0x5eed));
    let (mut splits, mut looks) = (0, 0);
    for number in numbers {
        let key = K::numbered(number);
        let value = K::value(&pool, key.borrow(), u64::from(number)).unwrap();
        onlooker.keys.lock().unwrap().push((key.clone(), value));
        let (leaves, before) = (index.stats().leaves, onlooker.looks.load(Relaxed));
        let scheduled = schedule::enter(Arc::clone(&onlooker) as Arc<dyn Scheduler>);
        assert_eq!(index.insert(key.borrow(), value).unwrap(), None);
        drop(scheduled);
        if index.stats().leaves > leaves {
            splits += 1;
            looks += onlooker.looks.load(Relaxed) - before;
        }
    }
    index.check().unwrap();
    println!("{name}, {} keys: {looks} looks in {splits} splits, {} in all", K::NAME, onlooker.looks.load(Relaxed));
    assert!(splits >= 3 && looks > splits * 8, "{looks} looks in {splits} splits");
}

#[test]
fn readers_of_ever_do_not_wait_for_inserts() {
    if !schedule::IS_BUILT_IN {
        return;
    }
    look_on::<u64>("ever-64", 40);
    look_on::<[u8]>("ever-64", 40);
    if !cfg!(miri) {
        look_on::<u64>("ever", 240);
        look_on::<[u8]>("ever", 240);
    }
}
