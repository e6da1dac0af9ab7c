//! The list of every index.

use crate::{Error, Key, OrderedIndex, volatile};
use everleaf_pmem::{Medium, Pool, Reach};
use std::num::NonZeroU64;
use std::sync::Arc;

/// How to open an index again.
pub struct Recovery<'a, M: Medium> {
    /// Where to mark every block of the index; `None` after a clean shutdown, when the allocator knows already.
    pub reach: Option<&'a Reach<'a, M>>,
    /// Called once for each value word, by several threads: its owner marks what it links, and tells whether it is sound.
    pub trace: &'a (dyn Fn(NonZeroU64) -> Result<(), Error> + Sync),
    /// Number of threads to use.
    pub threads: usize,
}

/// An index of the registry, for keys `K` on medium `M`.
pub struct Entry<K: Key + ?Sized, M: Medium> {
    /// Name by which the store, the command line and the benchmark choose it.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Whether it outlives the process.
    pub persistent: bool,
    /// Number of entries of a leaf.
    pub leaf_capacity: usize,
    /// Creates an empty index and links it as a root of the pool.
    pub create: Create<K, M>,
    /// Opens an index again, repairing what a crash left.
    pub open: Open<K, M>,
}

/// See [`Entry::create`].
pub type Create<K, M> = fn(&Arc<Pool<M>>, &str) -> Result<Box<dyn OrderedIndex<K>>, Error>;
/// See [`Entry::open`].
pub type Open<K, M> = fn(&Arc<Pool<M>>, &str, &Recovery<'_, M>) -> Result<Box<dyn OrderedIndex<K>>, Error>;

/// Every index.
pub fn registry<K: Key + ?Sized, M: Medium>() -> Vec<Entry<K, M>> {
    vec![Entry {
        name: "volatile",
        summary: "B+-tree in DRAM, the baseline",
        persistent: false,
        leaf_capacity: 64,
        create: |_, _| Ok(Box::new(volatile::Tree::<K>::new())),
        open: |_, _, _| Err(Error::Volatile("volatile")),
    }]
}
