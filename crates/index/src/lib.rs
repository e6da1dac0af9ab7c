#![forbid(unsafe_code)]
//! Ordered indexes over persistent memory, on one interface.
//!
//! [`OrderedIndex`] is the interface of every index, for `u64` keys and for byte strings. [`registry`] lists all indexes, so everything that runs over the
//! registry (the suites, the benchmark, the store) knows every index. See `docs/papers.md` for the paper behind each.

mod arena;
mod batch;
mod bz;
mod counter;
mod error;
mod ever;
mod fair;
mod gated;
mod image;
mod key;
mod latch;
mod pf;
pub mod record;
mod registry;
mod scan;
pub mod selective;
mod shift;
mod skip;
mod strings;
mod volatile;

pub use counter::Counter;
pub use error::{Cause, Error};
pub use key::{FenceBlock, Key, NewFence};
pub use registry::{Create, Entry, Listed, Open, Recovery, Trace, instances, more_sizes, node_sizes, registry, small_variants, smallest};
pub use scan::AHEAD;

use everleaf_pmem::htm::Statistics;
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

/// How full [`OrderedIndex::bulk_load`] should make leaves by default: the first insert into each does not split it.
pub const FILL: f64 = 0.75;

/// An ordered map from keys to non-zero words, shared by any number of threads.
///
/// Every write is durable, in the sense of the pool's persistence domain, when its call returns; and no call returns what a crash could still take back
/// (durable linearizability). Readers take no lock.
///
/// For byte strings, the value word must be the link of a [`record`] that holds the key: entries keep eight bytes of the key, or a hash of it, and find the key
/// in the record. The index never frees a record: its owner gets the word back from [`OrderedIndex::upsert`], [`OrderedIndex::update`] or
/// [`OrderedIndex::remove`].
pub trait OrderedIndex<K: Key + ?Sized>: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error>;

    /// Appends the values of several keys to `values`, in their order. Faster than one by one, because all memory that they need is prefetched at once.
    fn get_many(&self, keys: &[&K], values: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        for key in keys {
            values.push(self.get(key)?);
        }
        Ok(())
    }

    /// Makes one write. Returns the value that the key had before.
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error>;

    /// Adds `key` if it is absent. Returns the existing value if there is one; then nothing has changed.
    fn insert(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        self.write(key, Write::Insert(value))
    }

    /// Sets the value of `key`, present or not. Returns the value it had.
    fn upsert(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        self.write(key, Write::Upsert(value))
    }

    /// Sets the value of `key` if it is present. Returns the value it had; `None` means that nothing has changed.
    fn update(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        self.write(key, Write::Update(value))
    }

    /// Removes `key`. Returns the value it had.
    fn remove(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.write(key, Write::Remove)
    }

    /// Makes several writes; writes to equal keys are made in order. Each is durable and visible when the call returns; none depends on another, for crashes or
    /// for concurrent readers. Appends to `returned` what each single call would have returned; after an error, the results of the writes that were made.
    /// Faster than one by one: memory is prefetched at once, and where the structure allows it, writes share their fence.
    fn apply(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        for (key, write) in writes {
            returned.push(self.write(key, *write)?);
        }
        Ok(())
    }

    /// [`OrderedIndex::apply`] for a caller that fences: each write is visible when the call returns, and durable behind the next fence of its thread. Until
    /// then a crash may take back any of them. So a reader that meets one must know, by what its value links, that it does not count yet, or no longer; and
    /// nothing that a write has replaced may be given up before that fence. No other thread may write any of the keys before it: a crash could leave a key that
    /// is removed twice, or take back a new one with what it was set to since. Nor may the caller, by these writes or by others, add a key again that one of
    /// them removes. Where the structure does not allow it, a write is durable at once.
    fn apply_unfenced(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.apply(writes, returned)
    }

    /// [`OrderedIndex::apply`] for a caller that has flushed what the values link, but not fenced: that becomes durable before a crash can leave anything of
    /// the writes. `fence` fences.
    fn apply_behind(&self, fence: &dyn Fn(), writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        fence();
        self.apply(writes, returned)
    }

    /// [`OrderedIndex::insert`] for several keys, as [`OrderedIndex::apply`] does it.
    fn insert_many(&self, pairs: &[(&K, NonZeroU64)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.apply(&made_of(pairs, |&(key, value)| (key, Write::Insert(value))), returned)
    }

    /// [`OrderedIndex::upsert`] for several keys, as [`OrderedIndex::apply`] does it.
    fn upsert_many(&self, pairs: &[(&K, NonZeroU64)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.apply(&made_of(pairs, |&(key, value)| (key, Write::Upsert(value))), returned)
    }

    /// [`OrderedIndex::update`] for several keys, as [`OrderedIndex::apply`] does it.
    fn update_many(&self, pairs: &[(&K, NonZeroU64)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.apply(&made_of(pairs, |&(key, value)| (key, Write::Update(value))), returned)
    }

    /// [`OrderedIndex::remove`] for several keys, as [`OrderedIndex::apply`] does it.
    fn remove_many(&self, keys: &[&K], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.apply(&made_of(keys, |&key| (key, Write::Remove)), returned)
    }

    /// Visits entries in order from a bound on, until `visit` breaks or there are no more.
    ///
    /// Each entry was present at some moment during the call; keys present during all of it are visited exactly once, in order.
    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error>;

    /// [`OrderedIndex::scan`] for a caller that reads the keys itself, from the records that the values link: the index does not read them unless it must.
    fn scan_values(&self, from: Bound<&K>, direction: Direction, visit: &mut VisitValues<'_>) -> Result<(), Error> {
        self.scan(from, direction, &mut |_, value| visit(&[value], 1))
    }

    /// Fills an empty index with entries in strictly ascending order of keys, faster than one by one. A crash during the call leaves it empty, or with all of
    /// them. Each leaf gets the share `fill`, from 0 to 1, of the entries that it has room for, but at least one; choose [`FILL`] unless you know better. An
    /// index that keeps nothing over a restart splits leaves as entries come, and ignores `fill`.
    ///
    /// # Errors
    /// [`Cause::NotEmpty`], [`Cause::Unsorted`], or a full pool; the index is then as before.
    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error>;

    /// Reads everything and checks every invariant that holds when no operation is under way.
    fn check(&self) -> Result<Stats, Error>;

    /// Visits every block of the pool that belongs to the index itself (not to its values): offset and size in bytes. No operation may be under way.
    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error>;

    /// Replaces the blocks that are to leave, chosen by their offsets, of the next `leaves_max` leaves, beginning with that of `from`. Values stay as they are.
    /// A leaf that other threads are using may be left out.
    fn relocate(&self, _from: &K, _leaves_max: usize, _is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Ok(Relocated { next: None, moved: 0 })
    }

    /// Gives back blocks that have room for several leaves and hold none. Then chooses the blocks that it can do without if [`OrderedIndex::relocate`] empties
    /// them, and returns their number. Blocks are retired; concurrent readers have the pool pinned.
    ///
    /// # Errors
    /// Damage.
    fn gather(&self) -> Result<usize, Error> {
        Ok(0)
    }

    /// Whether [`OrderedIndex::gather`] has chosen the block at this offset.
    fn is_spare(&self, _block: u64) -> bool {
        false
    }

    /// Leaves data in the pool that lets the index be opened fast, if the pool is closed next. Writes are refused from here on. Without this call nothing is
    /// lost. No operation may be under way.
    ///
    /// # Errors
    /// Damage; then writes remain possible.
    fn close(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Counts, read without stopping other threads: exact when no operation is under way. An index that was just opened may have to read leaves for them.
    fn stats(&self) -> Stats;
}

/// A write to one key; see [`OrderedIndex::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// As [`OrderedIndex::insert`].
    Insert(NonZeroU64),
    /// As [`OrderedIndex::upsert`].
    Upsert(NonZeroU64),
    /// As [`OrderedIndex::update`].
    Update(NonZeroU64),
    /// As [`OrderedIndex::remove`].
    Remove,
}

/// Writes made of all of `things`: the structures themselves decide how many they handle at once.
fn made_of<'a, T, K: Key + ?Sized>(things: &[T], write: impl Fn(&T) -> (&'a K, Write)) -> Vec<(&'a K, Write)> {
    things.iter().map(write).collect()
}

/// The entries of a bulk load, collected before anything is built from them.
///
/// # Errors
/// [`Cause::Unsorted`].
fn ascending<K: Key + ?Sized>(entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>) -> Result<Vec<(K::Owned, NonZeroU64)>, Error> {
    let entries: Vec<_> = entries.collect();
    match entries.windows(2).position(|pair| pair[0].0 >= pair[1].0) {
        Some(at) => Err(Cause::Unsorted { position: at as u64 + 1 }.into()),
        None => Ok(entries),
    }
}

/// How far [`OrderedIndex::relocate`] has come.
#[derive(Debug)]
pub struct Relocated<K: Key + ?Sized> {
    /// Where to continue; `None` at the end.
    pub next: Option<K::Owned>,
    /// Number of leaves that were moved, the leaf itself or blocks that belong to it.
    pub moved: u64,
}

impl<K: Key + ?Sized> Relocated<K> {
    /// Goes from leaf to leaf, at most `leaves_max` of them, beginning with that of `from`. `relocate` gets a key of each leaf; it returns whether it has moved
    /// the leaf, and where the next one begins.
    fn walk(from: &K, leaves_max: usize, mut relocate: impl FnMut(&K) -> Result<(bool, Option<K::Owned>), Error>) -> Result<Self, Error> {
        let mut relocated = Self { next: Some(from.to_owned()), moved: 0 };
        for _ in 0..leaves_max {
            let Some(key) = &relocated.next else { break };
            let (is_moved, next) = relocate(key.borrow())?;
            relocated = Self { next, moved: relocated.moved + u64::from(is_moved) };
        }
        Ok(relocated)
    }
}

/// What [`OrderedIndex::scan`] calls for each entry.
pub type Visit<'a, K> = dyn FnMut(&K, NonZeroU64) -> ControlFlow<()> + 'a;

/// What [`OrderedIndex::scan_values`] calls with the values of consecutive entries. The first `usize` of them are visited, perhaps none; those behind them are
/// about to be, unless the scan is broken off. The records of the first [`AHEAD`] of all have been prefetched; the visitor prefetches the others in time.
pub type VisitValues<'a> = dyn FnMut(&[NonZeroU64], usize) -> ControlFlow<()> + 'a;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From small keys to large ones; the bound is a lower bound.
    Forward,
    /// From large keys to small ones; the bound is an upper bound.
    Reverse,
}

/// How often and how long a router has rebuilt its inner nodes, all at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilds {
    /// Number of rebuilds.
    pub count: u64,
    /// Time of all rebuilds together.
    pub time: Duration,
    /// The first time.
    pub first: Rebuild,
    /// The last time.
    pub last: Rebuild,
    /// Time to follow the list of all leaves and to build inner nodes over them, if the index was opened without the image of a clean shutdown; otherwise zero.
    /// What recovery does with each leaf is not included.
    pub from_leaves: Duration,
}

/// One rebuild of the inner nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuild {
    /// Leaves under the new nodes.
    pub leaves: u64,
    /// Size of the new nodes in bytes.
    pub bytes: u64,
    /// Time it took.
    pub time: Duration,
}

/// The size and shape of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of keys.
    pub keys: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Leaves that were split since the index was opened, including those merged again since. Bulk loading splits none.
    pub splits: u64,
    /// Size of all leaves in bytes.
    pub leaf_bytes: u64,
    /// Levels, leaves included.
    pub depth: u32,
    /// Rebuilds of inner nodes since the index was opened.
    pub rebuilds: Rebuilds,
    /// How transactions of the processor have fared, if the index uses them.
    pub transactions: Statistics,
}
