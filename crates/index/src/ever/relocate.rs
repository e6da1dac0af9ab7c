//! Moving leaves and low fences, so that the free space between them becomes whole extents (`directory.rs`) and whole slabs
//! (`crates/pmem/src/alloc/evacuation.rs`).
//!
//! *A leaf* X, whose extent is to leave, goes to a dead one, N. The move begins to append to X, so no other thread writes there, and readers continue:
//! 1. Write N with the entries of X, flush, fence. N is dead: a crash forgets it.
//! 2. The directory entry of N: low := that of X, the same word; state := that of the next generation; flush, fence: the commit point. Before: X as it was.
//!    After: N, since X, with an equal low, has the lower generation.
//! 3. The state of X := 0, flush, fence. X must be dead before its place is reused, and before N dies.
//! 4. The router; the latch of X becomes obsolete. Volatile.
//!
//! Recovery finds one of the states that a merge leaves.
//!
//! *A low fence* whose record is to leave: one store changes the leaf's word in the directory from the link of one record to the link of another with the same
//! key, which is durable before. A crash leaves the one or the other. Then the old record is retired. This also appends: no other thread looks at the word.

use super::Ever;
use super::directory::Number;
use super::leaf::Slot;
use crate::latch::{Restart, until_done};
use crate::selective::leaf::each;
use crate::selective::router::{Fences, Router, Target};
use crate::{Error, Key, Relocated};
use everleaf_pmem::Medium;
use everleaf_pmem::vector::Wide;
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Release;

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate).
    pub(super) fn relocate_leaves(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| self.relocate_leaf(key, is_leaving))
    }

    /// Moves the leaf of `key` and its low fence, if they are to leave. Returns whether it has moved either, and where the next leaf begins.
    fn relocate_leaf(&self, key: &K, is_leaving: &dyn Fn(u64) -> bool) -> Result<(bool, Option<K::Owned>), Error> {
        let (number, appending) = until_done(|| {
            let route = self.router.find(Target::At(key))?;
            let latch = self.leaf(route.leaf)?.1.latch();
            let version = latch.read_idle();
            self.router.validate(&route)?;
            Ok((route.leaf, latch.append_from(version.map_err(|Restart| self.wake(route.leaf))?)?))
        });
        // No other thread writes to the leaf, so its fences stand.
        let Fences { low, high } = self.router.fences_of(key);
        let moved = self.relocate_fence(number, is_leaving).and_then(|fence| Ok((fence, self.move_leaf(number, is_leaving)?)));
        if let Ok((_, Some(to))) = moved {
            // Step 4.
            let lock = appending.lock();
            self.router.replace(number, to, low.borrow());
            lock.release_obsolete();
            self.directory.give_back([number], true);
        } else {
            appending.release_unchanged();
        }
        let (fence, leaf) = moved?;
        Ok((fence || leaf.is_some(), high))
    }

    /// Moves the contents of a leaf, to which no other thread writes, to a dead one, if it is to leave and there is one that stays. Returns that one.
    fn move_leaf(&self, number: Number, is_leaving: &dyn Fn(u64) -> bool) -> Result<Option<Number>, Error> {
        let directory = &self.directory;
        if !is_leaving(directory.extent_at(number)) {
            return Ok(None);
        }
        let (Ok((leaf, descriptor)), before) = (self.leaf(number), directory.entry(&self.pool, number)) else { return Ok(None) };
        let Some(generation) = before.next_generation() else { return Ok(None) };
        let Some(to) = directory.take_staying() else { return Ok(None) };
        // Step 1.
        let entries: Vec<Slot> = each(descriptor.occupied::<LINES>(Wide::get())).filter_map(|slot| leaf.read(slot)).collect();
        let fingerprints = self.write(to, &entries).fingerprints;
        self.pool.fence();
        self.begin(to.number)?.fill(&fingerprints);
        // Step 2.
        directory.entry(&self.pool, to.number).commit(&self.pool, before.low.get(), generation);
        // Step 3.
        before.kill(&self.pool);
        // persist-equivalent(fence drop): who merges the new leaf has fenced a removal, but behind writes without a fence. Others, who may come sooner, do not
        // wait for this flush.
        self.pool.fence();
        Ok(Some(to.number))
    }

    /// Moves the low fence of a leaf to another record, if it is to leave. Returns whether it was.
    fn relocate_fence(&self, number: Number, is_leaving: &dyn Fn(u64) -> bool) -> Result<bool, Error> {
        let word = &self.directory.entry(&self.pool, number).low;
        let (low, fence) = K::read_fence(&self.pool, word.get())?;
        let Some((fence, _)) = fence.filter(|(fence, _)| is_leaving(fence.bytes())) else { return Ok(false) };
        let (new, record) = low.borrow().fence(&self.pool)?;
        if let Some(record) = record {
            self.pool.seal(record).release();
        }
        self.pool.store(word, new, Release);
        // persist-equivalent(fence drop): to one thread, which fences many times before the old record's block is given out again.
        self.pool.persist(word);
        self.pool.retire(fence, &self.pool.pin());
        Ok(true)
    }
}
