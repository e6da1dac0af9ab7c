//! The reopen suite: a pool file keeps its content whether the pool was closed or only dropped, and however many threads recover it.

use crate::{Class, Subject};
use everleaf_index::Entry;
use everleaf_pmem::{Hardware, Pool, PoolOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::borrow::Borrow;
use std::path::Path;
use std::sync::Arc;

/// Fills a new pool at `path` with `keys` keys, removes and updates some, and reopens it repeatedly: with and without a close, recovered by 1, 2 and 4 threads.
///
/// # Panics
/// If anything differs after a reopen.
pub fn reopen<K: Class + ?Sized>(entry: &Entry<K, Hardware>, path: &Path, keys: u32) {
    let told = |number: usize| format!("{}, {} keys, opening {number}", entry.name, K::NAME);
    let options = PoolOptions { size_max: 1 << 30, ..PoolOptions::default() };
    let pool = Pool::create(path, &options).expect("a new file");
    let mut subject = Subject::create(entry, pool).expect("an empty pool");
    let mut numbers: Vec<u32> = (0..keys).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(0x5eed));
    for number in &numbers {
        subject.upsert(K::numbered(*number).borrow(), u64::from(*number) + 1).expect("a pool with room");
    }
    for (opening, (close, threads)) in [(false, 1), (false, 2), (true, 1), (false, 4), (true, 4), (true, 2)].into_iter().enumerate() {
        // Changes a few keys each time, so that no opening can rely on the state that the one before left.
        for number in &numbers[opening * 1000 % numbers.len()..][..numbers.len() / 50] {
            let key = K::numbered(*number);
            match number % 3 {
                0 => subject.remove(key.borrow()),
                _ => subject.upsert(key.borrow(), u64::from(*number) << 8 | (opening as u64 + 1)),
            }
            .expect("a pool with room");
        }
        let before = subject.content(usize::MAX).unwrap_or_else(|broken| panic!("before {}: {broken}", told(opening)));
        let pool = Arc::clone(&subject.pool);
        if close {
            subject.close().expect("an open pool");
        } else {
            drop(subject);
        }
        assert_eq!(Arc::strong_count(&pool), 1, "nothing else holds the pool");
        drop(pool);
        let pool = Pool::open(path, &options).expect("the file that was written");
        assert_eq!(pool.needs_recovery(), !close, "{}", told(opening));
        subject = Subject::open(entry, pool, threads).unwrap_or_else(|error| panic!("{}: {error}", told(opening)));
        let after = subject.content(usize::MAX).unwrap_or_else(|broken| panic!("{}: {broken}", told(opening)));
        assert!(before == after, "{}: {} keys before, {} after, or others", told(opening), before.len(), after.len());
        assert_eq!(subject.index.stats().keys, after.len() as u64);
        subject.audit().unwrap_or_else(|broken| panic!("{}: {broken}", told(opening)));
    }
}
