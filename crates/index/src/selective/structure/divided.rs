//! Leaves that give away entries in their place. A leaf that is left without entries is taken out of the list; others are not merged.
//!
//! Split of X at the median:
//! 1. latch X; take a log, if the layout wants one; allocate N, and make its latch ready: the last step that can fail.
//! 2. the layout moves the upper half to N, which becomes the next leaf of X, and may make the pending change. Its business is that a crash leaves all of that
//!    or nothing. See [`Divisible::divide`].
//! 3. router: from the separator on N. Volatile; recovery builds it from the keys. Until X is unlatched, whoever looks for a key in either waits for X.
//!
//! The range of X shrinks: who was led to X before step 3 finds its version changed, or the router's.
//!
//! Taking X, which is empty, out of the list, with P the leaf before it (or the root block): 1. lock the node of the router above X and a neighbour, latch
//! both, and P if it is not the neighbour, all by trying; 2. P.next := X.next, persist: the commit point; 3. router: the neighbour takes over the range of X; X
//! obsolete; 4. X is retired: unlinked durably, it may be used again. After a crash before 2, recovery does the same for all empty leaves but the first.
//!
//! The last entry of X is removed by the same, with X latched from before 1: step 2 takes entry and leaf away at once. Before it the entry is there, as if
//! nothing had been done. Where somebody is in the way, the layout removes the entry, and X is taken out when it is empty.

use super::super::leaf::{self, Divisible, Division, Entry, Pending, Placed};
use super::super::router::{Neighbours, Restart, Router};
use super::super::{Before, Halved, Held, Selective};
use super::{Room, Structure};
use crate::{Error, Key};
use everleaf_pmem::{Medium, Off, Word, probe};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Release;

/// See the module documentation.
pub struct Divided;

impl<K: Key + ?Sized, L: Divisible<K>> Structure<K, L> for Divided {
    const FENCED: bool = false;

    #[cold]
    fn make_room<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, pending: Pending<'_, K>, held: Held<'_, L>) -> Result<Room, Error> {
        let Held { off, leaf, lock } = held;
        let (halved, division) = match tree.plan_division(pending, leaf) {
            Ok(plan) => plan,
            Err(error) => {
                lock.release_unchanged();
                return Err(error);
            }
        };
        let (right, room) = leaf.divide(division);
        tree.router.split(off, off, halved.fences.low.borrow(), halved.separator.borrow(), right.bytes());
        drop(lock);
        tree.leaves.add(1);
        tree.pass_by(right.bytes());
        Ok(room)
    }

    #[inline(always)]
    fn is_sparse(count: usize, _capacity: usize) -> bool {
        count == 0
    }

    #[cold]
    fn remove_last<'a, R: Router<K>, M: Medium>(tree: &'a Selective<K, L, R, M>, key: &K, held: Held<'a, L>) -> Result<(), Held<'a, L>> {
        let Ok(Some(pair)) = tree.neighbours(key) else { return Err(held) };
        let leaves = pair.leaves();
        let is_first = leaves[0] == held.off;
        let Ok(kept) = tree.try_hold(leaves[usize::from(is_first)]) else {
            pair.release();
            return Err(held);
        };
        let Ok(before) = is_first.then(|| tree.hold_before(&pair)).transpose() else {
            kept.lock.release_unchanged();
            pair.release();
            return Err(held);
        };
        tree.unlink(pair, before, held, kept)
    }

    #[cold]
    fn merge<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, key: &K) -> Result<(), Restart> {
        let Some(pair) = tree.neighbours(key)? else { return Ok(()) };
        let Ok([left, right]) = tree.hold_both(pair.leaves()) else {
            pair.release();
            return Err(Restart);
        };
        let (before, gone, kept) = if right.leaf.count() == 0 {
            (None, right, left)
        } else {
            let before = (left.leaf.count() == 0).then(|| tree.hold_before(&pair));
            let Some(Ok(before)) = before else {
                left.lock.release_unchanged();
                right.lock.release_unchanged();
                pair.release();
                return if before.is_some() { Err(Restart) } else { Ok(()) };
            };
            (Some(before), left, right)
        };
        // Where it is damaged, it stays.
        let _ = tree.unlink(pair, before, gone, kept);
        Ok(())
    }
}

/// A division that can no longer fail.
type Plan<'a, K, L, M> = (Halved<K>, Division<'a, K, L, M>);

impl<K: Key + ?Sized, L: Divisible<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// See [`Router::neighbours`]. A leaf alone under its node may have a neighbour the second time, since the router then merges the node with another if it
    /// can.
    fn neighbours(&self, key: &K) -> Result<Option<R::Neighbours<'_>>, Restart> {
        self.router.neighbours(key)?.map_or_else(|| self.router.neighbours(key), |pair| Ok(Some(pair)))
    }

    /// Takes one of two neighbours, whose entries nobody wants any more, out of the list; `before` is what links it if that is not the other. Gives it back if
    /// it is not linked there: damage, which whoever splits or opens this will report.
    fn unlink<'a>(&self, pair: R::Neighbours<'_>, before: Option<(Before<'_>, &Word)>, gone: Held<'a, L>, kept: Held<'_, L>) -> Result<(), Held<'a, L>> {
        let slot = before.as_ref().map_or(kept.leaf.next(), |(_, slot)| slot);
        if self.check_link(slot, gone.off).is_err() {
            kept.lock.release_unchanged();
            if let Some((before, _)) = before {
                before.release_unchanged();
            }
            pair.release();
            return Err(gone);
        }
        self.pool.store(slot, gone.leaf.next().get(), Release);
        self.pool.persist(slot);
        drop(before);
        pair.join(kept.off);
        gone.lock.release_obsolete();
        drop(kept.lock);
        self.leaves.add(-1);
        self.pool.retire(Off::<L>::new(gone.off), &self.pool.pin());
        Ok(())
    }

    /// Does all of a split of a latched leaf that can fail.
    fn plan_division<'a>(&'a self, pending: Pending<'a, K>, leaf: &L) -> Result<Plan<'a, K, L, M>, Error> {
        const { assert!(L::CAPACITY <= 64, "a bit for each slot") };
        let damaged = |what| everleaf_pmem::Error::corrupt(self.pool.offset_of(leaf).bytes(), what);
        // What will be written comes closer meanwhile.
        let right = self.pool.alloc::<L>()?;
        probe::prefetch_lines(&*right);
        self.router.approach(pending.key);
        let mut entries: Vec<Entry> = Vec::with_capacity(L::CAPACITY);
        leaf.entries(&mut entries);
        // So its entries fill the slots from the first on.
        if entries.len() != L::CAPACITY {
            return Err(damaged("a full leaf with fewer entries than it counts").into());
        }
        let mut placed: Vec<Placed> = entries.iter().enumerate().map(|(slot, &entry)| Placed { entry, slot }).collect();
        leaf::sort_by_entry::<K, M, _>(&self.pool, &mut placed, |placed| placed.entry)?;
        entries.iter_mut().zip(&placed).for_each(|(to, placed)| *to = placed.entry);
        let mut halved = self.halve(pending.key, leaf, entries)?;
        let upper = halved.entries.split_off(L::CAPACITY / 2);
        let moved = placed[L::CAPACITY / 2..].iter().map(|placed| 1 << placed.slot).sum();
        let log = if L::LOGGED { Some(self.logs.take(&self.pool, &self.root().logs)?) } else { None };
        self.latches.begin(&[right.off().bytes()])?;
        let goes_right = *pending.key >= *halved.separator.borrow();
        Ok((halved, Division { pool: &self.pool, right, moved, upper, pending, goes_right, log }))
    }
}
