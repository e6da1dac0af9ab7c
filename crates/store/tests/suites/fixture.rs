//! Helpers that suites share: stores, their visible content, and their data in the pool.

use everleaf::{Direction, Error, Namespace, Options, Store};
use everleaf_pmem::{Hardware, Memory, Off, Pool, PoolOptions, WORD, Word};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Later than the end of every test.
pub(crate) const FAR_MS: u64 = 32_503_680_000_000;

/// A namespace, and a key.
pub(crate) type Place = (String, Vec<u8>);
/// A value, and when it expires.
pub(crate) type Held = (Vec<u8>, Option<u64>);
pub(crate) type Content = BTreeMap<Place, Held>;

/// A store, and a namespace of it.
pub(crate) fn store(options: Options) -> (Store, Namespace) {
    let store = Store::anonymous(options).unwrap();
    let space = store.namespace("space").unwrap();
    (store, space)
}

/// A store, and its memory, so that tests can read and damage it.
pub(crate) fn store_in_memory(pool_options: PoolOptions, options: &Options) -> (Arc<Memory>, Store) {
    let memory = Memory::new(pool_options.size_max).unwrap();
    let store = Store::on(Pool::create_in(memory.clone(), Hardware::page_cache(), pool_options).unwrap(), options).unwrap();
    (memory, store)
}

#[track_caller]
pub(crate) fn check(store: &Store) {
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// The content by a scan, after checking that gets and a reverse scan agree.
pub(crate) fn content(store: &Store) -> Content {
    let mut content = Content::new();
    for name in store.namespaces() {
        let namespace = store.namespace(&name).unwrap();
        let (mut forward, mut reverse) = (Vec::new(), Vec::new());
        for (direction, entries) in [(Direction::Forward, &mut forward), (Direction::Reverse, &mut reverse)] {
            let visit = |key: &[u8], value: &[u8]| {
                entries.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            namespace.scan(Bound::Unbounded, direction, visit).unwrap();
        }
        reverse.reverse();
        assert!(forward == reverse);
        for (key, value) in forward {
            let entry = namespace.entry(&key).unwrap().expect("a key that a scan shows");
            assert!(entry.value == value);
            content.insert((name.clone(), key), (entry.value, entry.expiry_ms));
        }
    }
    content
}

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

pub(crate) fn bytes_of(memory: &Memory) -> Vec<u8> {
    memory.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
}

const HEADER_WORDS: usize = 4;

/// The first word of the only record with an 8-byte key and a value of this size.
fn record_of(memory: &Memory, key: [u8; 8], value_size: usize) -> usize {
    let word = |at: usize| memory.words()[at].load(Ordering::Relaxed);
    let shape = 8 | (value_size as u64) << 20;
    let record = (0..memory.words().len() - HEADER_WORDS).find(|at| word(*at) == shape && word(at + HEADER_WORDS) == u64::from_le_bytes(key));
    record.expect("a record of the key")
}

/// The size field of a tombstone, in place of a value's size.
pub(crate) const OF_TOMBSTONE: usize = 1 << 32;
/// A commit word that no batch has.
pub(crate) const OF_NO_BATCH: u64 = u64::MAX;

/// Damages such a record, so that it seems to be committed by something else.
pub(crate) fn forge_commit_of(memory: &Memory, key: [u8; 8], value_size: usize, commit: u64) {
    memory.words()[record_of(memory, key, value_size) + 1].store(commit, Ordering::Relaxed);
}

/// Damages such a record, so that it claims an impossible size.
pub(crate) fn forge_shape_of(memory: &Memory, key: [u8; 8], value_size: usize) {
    memory.words()[record_of(memory, key, value_size)].store(u64::MAX, Ordering::Relaxed);
}

/// Damages all links to such a record, so that they lead nowhere.
pub(crate) fn break_links_to(memory: &Memory, key: [u8; 8], value_size: usize) {
    let link = Off::<Word>::new((record_of(memory, key, value_size) * WORD) as u64).link();
    let links: Vec<_> = memory.words().iter().filter(|word| word.load(Ordering::Relaxed) == link).collect();
    assert!(!links.is_empty());
    links.iter().for_each(|word| word.store(link ^ 1 << 63, Ordering::Relaxed));
}

/// Damages such a record, so that it has another key.
pub(crate) fn forge_key_of(memory: &Memory, key: [u8; 8], value_size: usize, to: [u8; 8]) {
    memory.words()[record_of(memory, key, value_size) + HEADER_WORDS].store(u64::from_le_bytes(to), Ordering::Relaxed);
}

/// Whether there was room.
pub(crate) fn fits(outcome: Result<(), Error>) -> bool {
    assert!(outcome.as_ref().is_ok() || outcome.as_ref().is_err_and(Error::is_no_space), "{outcome:?}");
    outcome.is_ok()
}
