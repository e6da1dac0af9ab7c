//! Moving leaves, so that free room between blocks becomes whole slabs (`crates/pmem/src/alloc/evacuation.rs`).
//!
//! To move X, with P the leaf before it (or the root block), whatever the way to split and merge:
//! 1. latch X, then P (by trying: on failure release X and start again); check that P's next is X.
//! 2. build Y with the entries, the range and the next leaf of X, and its low fence, or a new one if that is to leave; flush, fence. Nobody can reach it: a
//!    crash forgets it.
//! 3. P.next := Y, persist: the commit point. Before: the list holds X; after: Y, with the same entries.
//! 4. router: X -> Y; X obsolete. Volatile; recovery builds it from the list. Whoever was led to X finds its version changed.
//! 5. X is retired, and so is the fence that was to leave: unlinked durably in step 3, they may be used again.

use super::leaf::{self, Birth, LeafLayout};
use super::router::{Fences, Router};
use super::structure::flush;
use super::{Held, Selective};
use crate::latch::Patience;
use crate::{Error, Key, Relocated};
use everleaf_pmem::{Durable, Medium, Off, Word};
use std::borrow::Borrow;

/// How often to try a leaf that others use: so often that some tries come later than a device takes.
const ATTEMPTS: usize = 320;

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate).
    pub(super) fn relocate_leaves(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| self.relocate_leaf(key, is_leaving))
    }

    /// Moves the leaf of `key`, if it is to leave. Returns whether it has moved, and where the next one begins.
    fn relocate_leaf(&self, key: &K, is_leaving: &dyn Fn(u64) -> bool) -> Result<(bool, Option<K::Owned>), Error> {
        let (mut attempts, mut patience) = (ATTEMPTS, Patience::default());
        loop {
            let Held { off, leaf, lock } = self.hold(key);
            // The leaf is latched, so its fences do not change.
            let Fences { low, high } = self.router.fences_of(key);
            // The leaf says where its low fence lies; the fence itself need not be read.
            let link = if K::WHOLE { 0 } else { leaf.low() };
            let fence = match Off::<Word>::from_link(link) {
                Ok(fence) => Some(fence).filter(|fence| !fence.is_null() && is_leaving(fence.bytes())),
                Err(error) => {
                    lock.release_unchanged();
                    return Err(error.into());
                }
            };
            if attempts == 0 || !is_leaving(off) && fence.is_none() {
                lock.release_unchanged();
                return Ok((false, high));
            }
            let Ok((before, slot)) = self.hold_predecessor(low.borrow()) else {
                lock.release_unchanged();
                attempts -= 1;
                patience.wait();
                continue;
            };
            let copied = self.check_link(slot, off).and_then(|()| self.copy(leaf, low.borrow(), fence.is_some()));
            let copy = match copied {
                Ok(copy) => copy,
                Err(error) => {
                    before.release_unchanged();
                    lock.release_unchanged();
                    return Err(error);
                }
            };
            // This fences: others change the copy as soon as it is unlatched, and are given the retired blocks.
            let copy = self.pool.link(slot, copy).bytes();
            drop(before);
            self.router.replace(off, copy, low.borrow());
            lock.release_obsolete();
            let guard = self.pool.pin();
            self.pool.retire(Off::<L>::new(off), &guard);
            if let Some(fence) = fence {
                self.pool.retire(fence, &guard);
            }
            return Ok((true, high));
        }
    }

    /// Builds a copy of a latched leaf, durable but not linked; with a new fence if the old one `is_leaving`.
    fn copy(&self, leaf: &L, low: &K, is_leaving: bool) -> Result<Durable<'_, L, M>, Error> {
        self.examine(leaf)?;
        let mut entries = Vec::with_capacity(L::CAPACITY);
        leaf.entries(&mut entries);
        if entries.len() > L::CAPACITY {
            return Err(everleaf_pmem::Error::corrupt(self.pool.offset_of(leaf).bytes(), "a leaf with more entries than it counts").into());
        }
        leaf::sort::<K, M>(&self.pool, &mut entries)?;
        let (low, fence) = if is_leaving { low.fence(&self.pool)? } else { (leaf.low(), None) };
        let copy = self.pool.alloc::<L>()?;
        copy.build(&self.pool, &Birth { next: leaf.next().get(), low, skip: leaf.skip() }, &entries)?;
        let (copy, fence) = self.pool.fence_all((flush(copy), fence.map(|fence| fence.flush())));
        // This is the last step that can fail: what is begun is linked.
        self.latches.begin(&[copy.off().bytes()])?;
        fence.map(Durable::release);
        Ok(copy)
    }
}
