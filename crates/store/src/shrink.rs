//! Compacts a store in use: makes it as small as its contents, without stopping readers or writers.
//!
//! Removals leave free blocks all over the pool, between blocks in use. The allocator chooses slabs to be emptied (`crates/pmem/src/alloc/evacuation.rs`);
//! then, namespace by namespace and in steps of some 256 keys,
//! 1. each record in such a slab is copied elsewhere, with the same timestamp and the same previous version, and the copy replaces it in the index: *a crash
//!    finds the one or the other*, as does a reader, even one with a snapshot, and both say the same. The old record is retired. This is done under the key's
//!    stripe, so no other thread writes the key, and no batch that wrote it is undecided. Up to 256 copies share a fence, and so do their links, as far as
//!    the index can;
//! 2. the index moves its leaves elsewhere ([`OrderedIndex::relocate`](everleaf_index::OrderedIndex::relocate)), under a stripe, so that it is not cleared
//!    meanwhile; it also moves leaves that lie in blocks which it can do without ([`OrderedIndex::gather`](everleaf_index::OrderedIndex::gather)).
//!
//! In the end free slabs are given back to the file system, and the pool ends with its last slab in use.
//!
//! Not moved are: versions that only snapshots see, and cleared indexes that are still seen; tombstones, since the thread that removes one identifies it by its
//! place; and the few blocks that something other than an index entry leads to: roots, logs. Their slabs stay and are filled again. Blocks that have slabs of
//! their own are not moved.

use crate::namespace::{copy_value, link_word};
use crate::store::{Index, Shared, Space, again};
use crate::version::Age;
use crate::{Error, Store};
use everleaf_index::record::{Record, Version};
use everleaf_index::{Listed, Write};
use everleaf_pmem::{Evacuation, Flushed, Off, Reserve, Word, schedule, with_reserve};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries that are looked at in one step.
pub(crate) const ENTRIES_AT_ONCE: usize = 256;
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
pub(crate) enum Early {
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
        let are_leaving = self.shared.with_any_stripe(|| pool.evacuate(evacuation))? > 0;
        let outcome = self.shared.evacuate(are_leaving, &mut shrunk, &mut watch);
        // A writer is not pinned, and may still be on its way to a leaf that has moved: the old place must not be given back under it.
        self.shared.stripes.await_all();
        self.shared.with_any_stripe(|| pool.settle())?;
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
    pub(crate) fn evacuate(&self, are_leaving: bool, shrunk: &mut Shrunk, watch: &mut impl FnMut(&Shrunk) -> ControlFlow<()>) -> Result<(), Early> {
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
            let mut rest = &leaving[..];
            while !rest.is_empty() {
                rest = self.relocate_records(space, rest, &mut shrunk.records)?;
                go_on(shrunk)?;
            }
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
        let gathered = self.with_any_stripe(|| space.index.load_full().map_or(Ok(0), |index| index.tree.gather()))?;
        Ok(gathered?)
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

    /// Copies those of the records of `keys` elsewhere that are to leave, until the copies take [`BYTES_AT_ONCE`], and adds their number to `moved`; returns
    /// the keys that are left. The copies become durable together, and so do their links.
    pub(crate) fn relocate_records<'k>(&self, space: &Space, keys: &'k [Vec<u8>], moved: &mut u64) -> Result<&'k [Vec<u8>], Error> {
        let _stripes = self.stripes.lock_group(keys.iter().map(|key| (space.number, key.as_slice(), true)));
        self.writable()?;
        let Some(index) = space.index.load_full() else { return Ok(&[]) };
        let pool = &*self.pool;
        // Each move gives back as much as it takes.
        with_reserve(Reserve::Half, || {
            let (mut copied, mut copies, mut value, mut bytes, mut outcome) = (Vec::new(), Vec::new(), Vec::new(), 0, Ok(()));
            let mut rest = keys.iter();
            while bytes < BYTES_AT_ONCE
                && let Some(key) = rest.next()
            {
                match self.copy_if_leaving(&index, key, &mut value) {
                    Ok(Some(copy)) => {
                        copied.push(key);
                        copies.push(copy);
                    }
                    Ok(None) => {}
                    // Those before it are linked all the same.
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
                bytes += value.len();
            }
            if copies.is_empty() {
                return outcome.map(|()| rest.as_slice());
            }
            let links: Vec<_> = pool.fence_all(copies).into_iter().map(|copy| link_word(copy.release())).collect();
            let writes: Vec<_> = copied.iter().zip(&links).map(|(key, link)| (key.as_slice(), Write::Update(*link))).collect();
            let mut replaced = Vec::with_capacity(writes.len());
            let linked = again(pool, || index.tree.apply(&writes[replaced.len()..], &mut replaced));
            self.writable()?;
            let guard = pool.pin();
            for (number, copy) in links.iter().enumerate() {
                match replaced.get(number) {
                    Some(Some(old)) => {
                        *moved += 1;
                        self.retire(old.get(), &guard)?;
                    }
                    // The index no longer has the key, or has no room: then it does not have the copy either. If it is damaged, it may.
                    Some(None) => self.retire(copy.get(), &guard)?,
                    None if linked.as_ref().is_err_and(Error::is_no_space) => self.retire(copy.get(), &guard)?,
                    None => {}
                }
            }
            linked.and(outcome).map(|()| rest.as_slice())
        })
    }

    /// A copy of the record of `key`, flushed, if that is to leave; `value` is for the bytes of its value.
    fn copy_if_leaving(&self, index: &Index, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Flushed<'_, [Word], M>>, Error> {
        let pool = &*self.pool;
        value.clear();
        let Some(link) = index.tree.get(key)? else { return Ok(None) };
        if !pool.is_leaving(Off::<Word>::from_link(link.get())?) {
            return Ok(None);
        }
        let record = Record::read(pool, link.get())?;
        // A visible record without a timestamp gets one now: it must be the same in both places.
        if record.is_tombstone() || self.age(&record)? == Age::Open {
            return Ok(None);
        }
        copy_value(&record, key, value)?;
        let commit = record.commit().load(Ordering::Acquire);
        let version = Version { is_tombstone: false, commit, previous: record.previous().get(), expiry_ms: record.expiry_ms() };
        Ok(Some(Record::write(pool, key, value, version)?.flush()))
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
