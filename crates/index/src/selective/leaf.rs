//! Leaves: what a paper contributes. One file per paper.

mod isle;

pub use isle::IsleLeaf;

use crate::{Error, Key};
use everleaf_pmem::{Medium, Pm, Resident, Word};
use std::cell::Cell;
use std::num::NonZeroU64;

/// An entry as a leaf keeps it: the head of the key, and the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// See [`Key::head`].
    pub head: u64,
    /// The value word.
    pub value: NonZeroU64,
}

/// What a leaf is told when it is made, and keeps for life.
pub struct Birth {
    /// Link of the next leaf.
    pub next: u64,
    /// Its low fence, as [`Key::fence`] writes it.
    pub low: u64,
    /// Number of leading bytes that all keys of its range share and its heads leave out.
    pub skip: usize,
}

/// The bytes of a leaf and the order in which they are written.
///
/// Readers call under no lock, and check afterwards that nothing has changed; writers hold the latch of the leaf. When a writing call returns, the change is
/// durable.
pub trait LeafLayout<K: Key + ?Sized>: Resident + Sized + Send + Sync + 'static {
    /// Largest number of entries.
    const CAPACITY: usize;

    /// The slot and value of `key`.
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error>;

    /// Asks for the memory that [`LeafLayout::find`] will read beyond the leaf. A hint.
    fn prefetch<M: Medium>(&self, _pm: &Pm<M>, _key: &K) {}

    /// Adds a key that is absent to a leaf that is not full.
    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<(), Error>;

    /// Sets the value at `slot`.
    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64);

    /// Removes the entry at `slot`.
    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<(), Error>;

    /// Number of entries.
    fn count(&self) -> usize;

    /// Appends all entries to `out`, in no order.
    fn entries(&self, out: &mut Vec<Entry>);

    /// Writes all of a leaf that nobody can reach. `entries` ascend. The caller seals the block.
    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]);

    /// The word that links the next leaf.
    fn next(&self) -> &Word;

    /// See [`Birth::low`].
    fn low(&self) -> u64;

    /// See [`Birth::skip`].
    fn skip(&self) -> usize;

    /// Finishes or takes back what a crash has interrupted, durably. Nobody else has the leaf.
    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error>;

    /// Checks what holds when no operation is under way.
    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error>;
}

/// Sorts entries by their keys; records are read only where heads are equal.
pub(crate) fn sort<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, entries: &mut [Entry]) -> Result<(), Error> {
    if K::WHOLE {
        entries.sort_unstable_by_key(|entry| entry.head);
        return Ok(());
    }
    let failure = Cell::new(None);
    let read = |entry: &Entry| {
        let mut key = K::Owned::default();
        if let Err(error) = K::read(pm, entry.head, entry.value, &mut key) {
            failure.set(Some(error));
        }
        key
    };
    entries.sort_unstable_by(|a, b| a.head.cmp(&b.head).then_with(|| read(a).cmp(&read(b))));
    failure.take().map_or(Ok(()), Err)
}
