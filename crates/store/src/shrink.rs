//! Compacts a store in use: makes it as small as its contents, without stopping readers or writers.
//!
//! Removals leave free blocks all over the pool, between blocks in use. The allocator chooses slabs to be emptied (`crates/pmem/src/alloc/evacuation.rs`);
//! then, namespace by namespace and in steps of a few dozen keys,
//! 1. each record in such a slab is copied elsewhere, with the same timestamp and the same previous version, and the copy replaces it in the index: *a crash
//!    finds the one or the other*, as does a reader, even one with a snapshot, and both say the same. The old record is retired. This is done under the key's
//!    stripe, so no other thread writes the key, and no batch that wrote it is undecided;
//! 2. the index moves its leaves elsewhere ([`OrderedIndex::relocate`](everleaf_index::OrderedIndex::relocate)), under a stripe, so that it is not cleared
//!    meanwhile; it also moves leaves that lie in blocks which it can do without ([`OrderedIndex::gather`](everleaf_index::OrderedIndex::gather)).
//!
//! In the end free slabs are given back to the file system, and the pool ends with its last slab in use.
//!
//! Not moved are: versions that only snapshots see, and cleared indexes that are still seen; tombstones, since the thread that removes one identifies it by its
//! place; and the few blocks that something other than an index entry leads to: roots, logs. Their slabs stay and are filled again. Blocks that have slabs of
//! their own are not moved.

use crate::namespace::{copy_value, link_word};
use crate::store::{Shared, Space};
use crate::version::Age;
use crate::{Error, Store};
use everleaf_index::Listed;
use everleaf_index::record::{Record, Version};
use everleaf_pmem::{Evacuation, Off, Reserve, Word, schedule, with_reserve};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries that are looked at in one step.
const ENTRIES_AT_ONCE: usize = 256;
/// Bytes of values moved in one step, about: what the values of that many entries take unless they are large.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Leaves that are looked at in one step, with a stripe held.
const LEAVES_AT_ONCE: usize = 16;

type Keys = Vec<Vec<u8>>;

/// The result of [`Store::compact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shrunk {
    /// Size of the pool in bytes before.
    pub size_before: usize,
    /// Size in bytes now. The file is truncated to it when the pool is closed; until then it has no storage behind this size.
    pub size: usize,
    /// Number of bytes that were given back to the file system.
    pub given_back: usize,
    /// Number of records that were moved.
    pub records: u64,
    /// Number of leaves that were moved.
    pub leaves: u64,
    /// Whether all that could be moved was; `false` if `watch` stopped it or it found no room.
    pub is_complete: bool,
}

/// Why an evacuation ended early.
enum Early {
    /// It was told to.
    Stopped,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Early {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl<M: Listed> Store<M> {
    /// Moves records and leaves together and gives the space between them back to the file system, while others read and write. `watch` is called after each
    /// step, and says whether to go on; it must not verify, compact or load anything in the store, nor make other threads do so: they would wait for this call
    /// for ever. [`Evacuation::Sparse`] moves what is worth moving; [`Evacuation::All`] shows that everything can be moved.
    ///
    /// # Errors
    /// A damaged pool, [`Error::Halted`]. If room runs out, it has moved what it could.
    pub fn compact(&self, evacuation: Evacuation, mut watch: impl FnMut(&Shrunk) -> ControlFlow<()>) -> Result<Shrunk, Error> {
        let Shared { pool, compacting, .. } = &*self.shared;
        let _compacting = schedule::lock(compacting);
        self.shared.writable()?;
        let mut shrunk = Shrunk { size_before: pool.length(), ..Shrunk::default() };
        self.shared.collect(usize::MAX)?;
        let are_leaving = pool.evacuate(evacuation) > 0;
        let outcome = self.shared.evacuate(are_leaving, &mut shrunk, &mut watch);
        // A writer is not pinned, and may still be on its way to a leaf that has moved: the old place must not be given back under it.
        self.shared.stripes.await_all();
        pool.settle();
        shrunk.is_complete = match outcome {
            Ok(()) => true,
            Err(Early::Stopped) => false,
            Err(Early::Failed(error)) if error.is_no_space() => false,
            Err(Early::Failed(error)) => return Err(error),
        };
        shrunk.given_back = pool.give_back()?;
        shrunk.size = pool.length();
        Ok(shrunk)
    }
}

impl<M: Listed> Shared<M> {
    /// Empties slabs, if any `are_leaving`, and blocks for leaves that indexes can do without.
    fn evacuate(&self, are_leaving: bool, shrunk: &mut Shrunk, watch: &mut impl FnMut(&Shrunk) -> ControlFlow<()>) -> Result<(), Early> {
        let spaces: Vec<Arc<Space>> = self.spaces.read().values().cloned().collect();
        let mut go_on = |shrunk: &Shrunk| match watch(shrunk) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Early::Stopped),
        };
        for space in spaces {
            let chosen = self.gather(&space)?;
            let moved = self.evacuate_space(&space, are_leaving, chosen > 0, shrunk, &mut go_on);
            if chosen > 0 {
                // However far that has come.
                self.gather(&space)?;
            }
            moved?;
        }
        Ok(())
    }

    /// Moves records if slabs `are_leaving`, and leaves if slabs are or the index can do without some of its blocks.
    fn evacuate_space(
        &self,
        space: &Space,
        are_leaving: bool,
        has_spare: bool,
        shrunk: &mut Shrunk,
        go_on: &mut impl FnMut(&Shrunk) -> Result<(), Early>,
    ) -> Result<(), Early> {
        let mut after = are_leaving.then_some(None);
        while let Some(from) = after {
            let (leaving, last) = self.find_leaving(space, from.as_deref())?;
            let mut bytes = 0;
            for key in leaving {
                if bytes >= BYTES_AT_ONCE {
                    go_on(shrunk)?;
                    bytes = 0;
                }
                // Each move gives back as much as it takes.
                if let Some(moved) = with_reserve(Reserve::Half, || self.relocate_record(space, &key))? {
                    shrunk.records += 1;
                    bytes += moved;
                }
            }
            go_on(shrunk)?;
            after = last.map(Some);
        }
        let mut from = (are_leaving || has_spare).then(Vec::new);
        while let Some(low) = from {
            from = with_reserve(Reserve::Half, || self.relocate_leaves(space, &low, shrunk))?;
            go_on(shrunk)?;
        }
        Ok(())
    }

    /// Lets the index of a namespace choose blocks that it can do without, and give back those it no longer uses: see
    /// [`OrderedIndex::gather`](everleaf_index::OrderedIndex::gather).
    fn gather(&self, space: &Space) -> Result<usize, Error> {
        let _stripe = self.stripes.lock(space.number, &[]);
        self.writable()?;
        let index = space.index.load_full();
        Ok(index.map_or(Ok(0), |index| index.tree.gather())?)
    }

    /// Those of the next keys after `after` whose records are to leave; and the last key that was looked at, unless there are no more.
    fn find_leaving(&self, space: &Space, after: Option<&[u8]>) -> Result<(Keys, Option<Vec<u8>>), Error> {
        let _pinned = self.pool.pin();
        let mut leaving = Vec::new();
        let index = space.index.load();
        let Some(index) = index.as_deref() else { return Ok((leaving, None)) };
        let last = self.step(index, after, ENTRIES_AT_ONCE, |key, link| {
            if Off::<Word>::from_link(link.get()).is_ok_and(|off| self.pool.is_leaving(off)) {
                leaving.push(key.to_vec());
            }
        })?;
        Ok((leaving, last))
    }

    /// Copies the record of `key` elsewhere if it is to leave; returns the size of its value in bytes.
    fn relocate_record(&self, space: &Space, key: &[u8]) -> Result<Option<usize>, Error> {
        let pool = &*self.pool;
        let _stripe = self.stripes.lock(space.number, key);
        self.writable()?;
        let Some(index) = space.index.load_full() else { return Ok(None) };
        let Some(link) = index.tree.get(key)? else { return Ok(None) };
        if !pool.is_leaving(Off::<Word>::from_link(link.get())?) {
            return Ok(None);
        }
        let record = Record::read(pool, link.get())?;
        // A visible record without a timestamp gets one now: it must be the same in both places.
        if record.is_tombstone() || self.age(&record)? == Age::Open {
            return Ok(None);
        }
        let mut value = Vec::new();
        copy_value(&record, key, &mut value)?;
        let commit = record.commit().load(Ordering::Acquire);
        let version = Version { is_tombstone: false, commit, previous: record.previous().get(), expiry_ms: record.expiry_ms() };
        let copy = link_word(pool.seal(Record::write(pool, key, &value, version)?).release());
        let replaced = index.tree.update(key, copy);
        let guard = pool.pin();
        match replaced {
            Ok(Some(old)) => self.retire(old.get(), &guard)?,
            // The index has no room, or no longer has the key: then it does not have the copy either.
            Ok(None) => self.retire(copy.get(), &guard)?,
            Err(error) => {
                let error = Error::from(error);
                if error.is_no_space() {
                    self.retire(copy.get(), &guard)?;
                }
                return Err(error);
            }
        }
        self.writable()?;
        Ok(Some(value.len()))
    }

    /// Moves leaves, from that of `low` on; returns where to continue, unless that was the last.
    fn relocate_leaves(&self, space: &Space, low: &[u8], shrunk: &mut Shrunk) -> Result<Option<Vec<u8>>, Error> {
        let _stripe = self.stripes.lock(space.number, low);
        self.writable()?;
        let Some(index) = space.index.load_full() else { return Ok(None) };
        let is_leaving = |off| self.pool.is_leaving(Off::<Word>::new(off)) || index.tree.is_spare(off);
        let relocated = index.tree.relocate(low, LEAVES_AT_ONCE, &is_leaving)?;
        shrunk.leaves += relocated.moved;
        Ok(relocated.next)
    }
}
