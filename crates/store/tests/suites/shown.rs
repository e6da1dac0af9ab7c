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

const HEADER_WORDS: usize = 4;

/// In which word the only record of a key begins, of eight bytes, and a value of that size.
fn record_of(memory: &Memory, key: [u8; 8], value_size: usize) -> usize {
    let word = |at: usize| memory.words()[at].load(Ordering::Relaxed);
    let shape = 8 | (value_size as u64) << 20;
    let record = (0..memory.words().len() - HEADER_WORDS).find(|at| word(*at) == shape && word(at + HEADER_WORDS) == u64::from_le_bytes(key));
    record.expect("a record of the key")
}

/// In the place of the size of a value: the record is a tombstone.
pub(crate) const OF_TOMBSTONE: usize = 1 << 32;
/// A commit word of a batch that there cannot be.
pub(crate) const OF_NO_BATCH: u64 = u64::MAX;

/// Damages such a record, so that it says to be committed by something else.
pub(crate) fn forge_commit_of(memory: &Memory, key: [u8; 8], value_size: usize, commit: u64) {
    memory.words()[record_of(memory, key, value_size) + 1].store(commit, Ordering::Relaxed);
}

/// Damages such a record, so that it says to be larger than any.
pub(crate) fn forge_shape_of(memory: &Memory, key: [u8; 8], value_size: usize) {
    memory.words()[record_of(memory, key, value_size)].store(u64::MAX, Ordering::Relaxed);
}

/// Damages whatever links such a record, so that it leads nowhere.
pub(crate) fn break_links_to(memory: &Memory, key: [u8; 8], value_size: usize) {
    let link = Off::<Word>::new((record_of(memory, key, value_size) * WORD) as u64).link();
    let links: Vec<_> = memory.words().iter().filter(|word| word.load(Ordering::Relaxed) == link).collect();
    assert!(!links.is_empty());
    links.iter().for_each(|word| word.store(link ^ 1 << 63, Ordering::Relaxed));
}

/// Damages such a record, so that it is of another key.
pub(crate) fn forge_key_of(memory: &Memory, key: [u8; 8], value_size: usize, to: [u8; 8]) {
    memory.words()[record_of(memory, key, value_size) + HEADER_WORDS].store(u64::from_le_bytes(to), Ordering::Relaxed);
}
