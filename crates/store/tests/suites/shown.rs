//! What a namespace shows, and what a pool has of it.

use everleaf::{Direction, Namespace};
use everleaf_pmem::{Memory, Off, WORD, Word};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// All keys, in order.
pub(crate) fn keys(space: &Namespace) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = |key: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    space.scan_keys(Bound::Unbounded, Direction::Forward, visit).unwrap();
    keys
}

/// Damages whatever links the only record of a key, of eight bytes, and a value of that size, so that it leads nowhere.
pub(crate) fn break_links_to(memory: &Memory, key: [u8; 8], value_size: usize) {
    const HEADER_WORDS: usize = 4;
    let word = |at: usize| memory.words()[at].load(Ordering::Relaxed);
    let shape = 8 | (value_size as u64) << 20;
    let record = (0..memory.words().len() - HEADER_WORDS).find(|at| word(*at) == shape && word(at + HEADER_WORDS) == u64::from_le_bytes(key));
    let link = Off::<Word>::new((record.expect("a record of the key") * WORD) as u64).link();
    let links: Vec<_> = memory.words().iter().filter(|word| word.load(Ordering::Relaxed) == link).collect();
    assert!(!links.is_empty());
    links.iter().for_each(|word| word.store(link ^ 1 << 63, Ordering::Relaxed));
}
