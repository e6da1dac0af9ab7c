//! Leaves: what a paper contributes. One file per paper.

mod fp;
mod isle;
mod lb;
mod nv;
mod wb;

pub use fp::FpLeaf;
pub(crate) use isle::IsleLeaf;
pub use lb::LbLeaf;
pub(crate) use nv::NvLeaf;
pub(crate) use wb::WbLeaf;

use super::log::{Log, Taken};
use super::structure::{Room, Structure};
use crate::key::SPREAD;
use crate::{Error, Key};
use everleaf_pmem::{Fresh, Medium, Off, Pm, Pool, Resident, Word};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Release;

/// An entry as a leaf keeps it: the head of the key, and the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// See [`Key::head`].
    pub head: u64,
    /// The value word.
    pub value: NonZeroU64,
}

impl Entry {
    /// What a slot of { head, value } holds; `None` if the value is 0, which no entry has.
    #[inline(always)]
    pub(crate) fn read([head, value]: &[Word; 2]) -> Option<Self> {
        let value = NonZeroU64::new(value.get())?;
        Some(Self { head: head.get(), value })
    }
}

/// An entry and its slot.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) entry: Entry,
    pub(crate) slot: usize,
}

/// What a new leaf is built from, besides its entries.
pub struct Birth {
    /// Link of the next leaf.
    pub next: u64,
    /// Its low fence, as [`Key::fence`] writes it. 0 unless leaves keep it: see [`Structure::FENCED`].
    pub low: u64,
    /// Number of leading bytes that all keys of its range share and its heads leave out. 0 unless leaves keep it.
    pub skip: usize,
}

/// Whether a leaf had room for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a change that found no room has not been made"]
pub enum Written {
    /// The change is durable, or has been staged.
    Done,
    /// There was no room, and nothing has changed: [`Structure::make_room`] comes next.
    NoRoom,
}

/// The bytes of a leaf and the order in which they are written.
///
/// Readers call under no lock, and check afterwards that nothing has changed. Writers hold the latch of the leaf. When a writing call returns, the change is
/// durable, or it found no room. Any change may find no room in a layout that writes it beside what was there.
///
/// Several changes are made together in steps, between which the caller fences: [`LeafLayout::stage`] for each, [`LeafLayout::arrange`] if there is such a
/// step, [`LeafLayout::publish`]. All of them flush what they store.
pub trait LeafLayout<K: Key + ?Sized>: Resident + Sized + Send + Sync + 'static {
    /// Largest number of entries.
    const CAPACITY: usize;

    /// How leaves split and merge.
    type Structure: Structure<K, Self>;

    /// The changes of a leaf that have been staged together, and that nobody sees yet.
    type Plan;

    /// Whether plans are arranged before they are published.
    const ARRANGES: bool = false;

    /// The slot and value of `key`.
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error>;

    /// Prefetches the memory that [`LeafLayout::find`] will read beyond the leaf.
    fn prefetch<M: Medium>(&self, _pm: &Pm<M>, _key: &K) {}

    /// Adds a key that is absent.
    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error>;

    /// Sets the value at `slot`.
    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error>;

    /// Removes the entry at `slot`.
    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error>;

    /// Makes a change of a key, at `slot` if it is there, together with those in `plan`, none of which is of that key. A change that a crash could leave half
    /// done is only entered in the plan, and what it needs is stored where nobody looks yet. There may be no room; a layout without plans never has any.
    fn stage<M: Medium>(&self, _: &Pm<M>, _: &mut Option<Self::Plan>, _: &K, _slot: usize, _: Change) -> Result<Written, Error> {
        Ok(Written::NoRoom)
    }

    /// An intermediate step, after staging: stores what is not valid yet, which is durable before any of a plan is published.
    fn arrange<M: Medium>(&self, _: &Pm<M>, _: &Self::Plan) {}

    /// Makes a plan take effect, after staging and arranging: wherever a crash comes, each of its changes is made or not.
    fn publish<M: Medium>(&self, _: &Pm<M>, _: &Self::Plan) {}

    /// Number of entries.
    fn count(&self) -> usize;

    /// Appends all entries to `out`, in the order of their slots.
    fn entries(&self, out: &mut Vec<Entry>);

    /// Writes all of a leaf that nobody can reach. `entries` ascend. The caller seals the block.
    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error>;

    /// Size in bytes of the part of a new leaf that counts, from its beginning: the rest need not be durable.
    fn used(&self) -> usize {
        size_of::<Self>()
    }

    /// The word that links the next leaf.
    fn next(&self) -> &Word;

    /// See [`Birth::low`].
    fn low(&self) -> u64 {
        0
    }

    /// See [`Birth::skip`].
    fn skip(&self) -> usize {
        0
    }

    /// Finishes what a log says was in progress, durably, before any leaf is read.
    ///
    /// # Errors
    /// Damage. Any log in a tree whose leaves are divided without logs is damage, too.
    fn replay<M: Medium>(pm: &Pm<M>, log: &Log) -> Result<(), Error> {
        Err(everleaf_pmem::Error::corrupt(pm.offset_of(log).bytes(), "a log of a tree that needs none").into())
    }

    /// Finishes or takes back what a crash has interrupted, durably. Stores nothing if there is no such change. No other thread has the leaf.
    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error>;

    /// Checks what holds when no operation is in progress.
    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error>;
}

/// A leaf that splits in place: it keeps its block, and gives entries away.
pub trait Divisible<K: Key + ?Sized>: LeafLayout<K> {
    /// Whether [`Divisible::divide`] needs a log.
    const LOGGED: bool = false;

    /// Moves the entries of some slots of a full leaf to a new one, which becomes the next leaf, and may make the pending change there. A crash leaves all of
    /// it or nothing.
    fn divide<M: Medium>(&self, division: Division<'_, K, Self, M>) -> (Off<Self>, Room);
}

/// What a leaf needs to know when it is divided.
pub struct Division<'a, K: ?Sized, L: Resident, M: Medium> {
    /// Where both leaves lie.
    pub pool: &'a Pool<M>,
    /// The new leaf, nothing of which has been written.
    pub right: Fresh<'a, L, M>,
    /// A bit for each slot whose entry is to move. The leaf is full.
    pub moved: u64,
    /// The change that found no room.
    pub pending: Pending<'a, K>,
    /// Whether its key belongs to the new leaf.
    pub goes_right: bool,
    /// A log, if the layout wants one.
    pub log: Option<Taken<'a>>,
}

/// A change that found no room in its leaf.
#[derive(Clone, Copy)]
pub struct Pending<'a, K: ?Sized> {
    /// The key that it is about.
    pub key: &'a K,
    /// The change.
    pub change: Change,
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key is absent, and will have this value.
    Insert(NonZeroU64),
    /// The key is there, and will have this value.
    Update(NonZeroU64),
    /// The key is there, and will be removed.
    Remove,
}

/// Sets a value in place, by one store. Other stores to its line come behind it, or it is copied to a line that is durable before the leaf is given up.
#[inline(always)]
#[track_caller]
pub(crate) fn set_value<M: Medium>(pm: &Pm<M>, word: &Word, value: NonZeroU64) {
    pm.store(word, value.get(), Release);
    pm.flush(word);
}

/// The slots whose bits are set, from the lowest.
#[inline(always)]
pub(crate) fn each(slots: impl Into<u64>) -> impl Iterator<Item = usize> {
    let mut slots = slots.into();
    std::iter::from_fn(move || {
        let slot = (slots != 0).then_some(slots.trailing_zeros() as usize);
        slots &= slots.wrapping_sub(1);
        slot
    })
}

/// Sorts entries by their keys. Records are read only if heads are equal, each once.
pub(crate) fn sort<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, entries: &mut [Entry]) -> Result<(), Error> {
    sort_by_entry::<K, M, _>(pm, entries, |entry| *entry)
}

/// Sorts items by the keys of their entries.
pub(crate) fn sort_by_entry<K: Key + ?Sized, M: Medium, T>(pm: &Pm<M>, items: &mut [T], entry: impl Fn(&T) -> Entry) -> Result<(), Error> {
    items.sort_unstable_by_key(|item| entry(item).head);
    if K::WHOLE {
        return Ok(());
    }
    let failure = Cell::new(None);
    for tied in items.chunk_by_mut(|a, b| entry(a).head == entry(b).head).filter(|tied| tied.len() > 1) {
        tied.sort_by_cached_key(|item| read::<K, M>(pm, &entry(item)).map_err(|error| failure.set(Some(error))).unwrap_or_default());
    }
    failure.take().map_or(Ok(()), Err)
}

/// The key of an entry.
pub(crate) fn read<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, entry: &Entry) -> Result<K::Owned, Error> {
    let mut key = K::Owned::default();
    K::read(pm, entry.head, entry.value, &mut key)?;
    Ok(key)
}

/// Adds check bits to a word that says what counts: the exclusive or of all its groups of `width` bits, in a group of their own that begins with bit `at` and
/// is 0 before. So if one group of the result changes, its check bits no longer match. Whoever changes a word adds, by exclusive or, this function of the bits
/// that change, without checking: the word stays as right or wrong as it was. [`LeafLayout::recover`] and [`LeafLayout::check`] check it. So does, by the
/// former, whoever gives a leaf up or divides it; whoever finishes what a log says checks the word there.
#[inline(always)]
pub(crate) const fn with_check(bits: u64, width: u32, at: u32) -> u64 {
    let (mut check, mut half) = (bits, u64::BITS / 2);
    while half >= width {
        check ^= check >> half;
        half /= 2;
    }
    bits | (check & (u64::MAX >> (u64::BITS - width))) << at
}

/// A byte that distinguishes keys, so that many can be compared at once. Part of the format of the leaves that have it.
#[inline(always)]
pub(crate) fn fingerprint<K: Key + ?Sized>(key: &K) -> u8 {
    // The upper bits of a product depend on all bits of the factor: dense keys differ as much as others.
    if K::WHOLE { (key.head(0).wrapping_mul(SPREAD) >> 56) as u8 } else { everleaf_pmem::crc32c(0, key.bytes()) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_within_a_group_makes_of_a_word_with_check_bits_another() {
        for (width, at) in [(8, 56), (8, 8), (4, 60), (2, 14), (1, 0)] {
            let own = ((1 << width) - 1) << at;
            for bits in [0, 1, 0x00ff_ffff, 0x9e37_79b9_7f4a_7c15, u64::MAX].map(|bits: u64| bits & !own) {
                let word = with_check(bits, width, at);
                assert_eq!(word & !own, bits);
                for (shift, by) in (0..64).step_by(width as usize).flat_map(|shift| (1..1_u64 << width).map(move |by| (shift, by))) {
                    let damaged = word ^ by << shift;
                    assert_ne!(with_check(damaged & !own, width, at), damaged, "{by:#x} at bit {shift} of {word:#x}, of groups of {width}");
                    if own >> shift & 1 == 0 {
                        assert_eq!(word ^ with_check(by << shift, width, at), with_check(bits ^ by << shift, width, at));
                    }
                }
            }
        }
    }
}
