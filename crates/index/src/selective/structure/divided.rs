//! Leaves that give entries away in place. An empty leaf is taken out of the list; others are not merged.
//!
//! Split of X at the median:
//! 1. latch X; take a log, if the layout wants one; allocate N, and make its latch ready: the last step that can fail.
//! 2. the layout moves the upper half to N, which becomes the next leaf of X, and may make the pending change. It ensures that a crash leaves all of that or
//!    nothing. See [`Divisible::divide`].
//! 3. router: N has the range from the separator on. Volatile; recovery builds it from the keys. Until X is unlatched, whoever looks for a key of X waits.
//! 4. an insert that belongs to X, whose latch is still held, is made the ordinary way: X is like any leaf whose latch is free.
//!
//! The range of X shrinks: whoever was led to X before step 3 finds its version, or the router's, changed.
//!
//! Taking X, which is empty, out of the list, with P the leaf before it (or the root block): 1. lock the node of the router above X and a neighbour, latch
//! both, and P if it is not the neighbour, all by trying; 2. P.next := X.next, persist: the commit point; 3. router: the neighbour takes over the range of X; X
//! obsolete; 4. X is retired: unlinked durably, it may be used again. After a crash before 2, recovery does the same for all empty leaves but the first.
//!
//! The last entry of X is removed by the same steps, with X latched before 1: step 2 removes entry and leaf at once. Before it the entry is there, as if
//! nothing had been done. If somebody is in the way, the layout removes the entry, and X is taken out when it is empty.

use super::super::leaf::{self, Change, Divisible, Division, Entry, Pending, Placed, Written};
use super::super::router::{Neighbours, Restart, Router};
use super::super::{Before, Held, Selective};
use super::{Room, Structure};
use crate::{Direction, Error, Key};
use everleaf_pmem::vector::{self, RANKED, Wide};
use everleaf_pmem::{Medium, Off, Pm, Word, probe};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Release;

/// See the module documentation.
pub struct Divided;

impl<K: Key + ?Sized, L: Divisible<K>> Structure<K, L> for Divided {
    const FENCED: bool = false;

    #[cold]
    fn make_room<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, pending: Pending<'_, K>, held: Held<'_, L>) -> Result<Room, Error> {
        let Held { off, leaf, lock } = held;
        let Pending { key, change } = pending;
        let (low, separator, division) = match tree.plan_division(pending, leaf) {
            Ok(plan) => plan,
            Err(error) => {
                lock.release_unchanged();
                return Err(error);
            }
        };
        let goes_right = division.goes_right;
        let (right, room) = leaf.divide(division);
        tree.router.split(off, off, low.borrow(), separator.borrow(), right.bytes());
        tree.leaves.add(1);
        tree.splits.add(1);
        tree.pass_by(right.bytes());
        let room = match change {
            // Whatever goes wrong here, there is room.
            Change::Insert(value)
                if matches!(room, Room::Made) && !goes_right && leaf.insert(&tree.pool, key, value).is_ok_and(|written| written == Written::Done) =>
            {
                Room::Applied
            }
            _ => room,
        };
        drop(lock);
        Ok(room)
    }

    #[inline(always)]
    fn is_sparse(count: usize, _capacity: usize) -> bool {
        count == 0
    }

    #[cold]
    fn remove_last<'a, R: Router<K>, M: Medium>(tree: &'a Selective<K, L, R, M>, key: &K, held: Held<'a, L>) -> Result<(), Held<'a, L>> {
        let beside = |side| tree.router.neighbours(key, side).ok().flatten();
        let Some(pair) = beside(Direction::Forward).or_else(|| beside(Direction::Reverse)) else { return Err(held) };
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
    fn merge<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, key: &K, side: Direction) -> Result<bool, Restart> {
        let Some(pair) = tree.router.neighbours(key, side)? else { return Ok(false) };
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
                return if before.is_some() { Err(Restart) } else { Ok(false) };
            };
            (Some(before), left, right)
        };
        // A damaged leaf stays.
        Ok(tree.unlink(pair, before, gone, kept).is_ok())
    }
}

/// The low of a leaf, the separator, and its division there, which can no longer fail.
type Plan<'a, K, L, M> = (<K as ToOwned>::Owned, <K as ToOwned>::Owned, Division<'a, K, L, M>);

/// The middle of a full leaf.
struct Middle {
    /// Its two sides.
    below: Entry,
    above: Entry,
    /// A bit for each slot above it.
    moved: u64,
}

/// Finds the middle of entries, each of which is in the slot of its number. `None` if equal keys keep it from being counted.
fn middle<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, entries: &[Entry]) -> Result<Option<Middle>, Error> {
    let half = entries.len() / 2;
    // Counting needs no order, and no branch that could be mispredicted; but without wide vectors it costs more than sorting.
    if K::WHOLE && entries.len() <= RANKED && Wide::get().is_some() {
        let mut heads = [0; RANKED];
        heads.iter_mut().zip(entries).for_each(|(head, entry)| *head = entry.head);
        let ranks = vector::ranks(&heads, entries.len());
        let (mut sides, mut moved) = ([None; 2], 0);
        for (slot, (entry, rank)) in entries.iter().zip(ranks).enumerate() {
            let rank = rank as usize;
            moved |= u64::from(rank >= half) << slot;
            if let side @ 0..2 = (rank + 1).wrapping_sub(half) {
                sides[side] = Some(*entry);
            }
        }
        let [Some(below), Some(above)] = sides else { return Ok(None) };
        return Ok(Some(Middle { below, above, moved }));
    }
    let mut placed: Vec<Placed> = entries.iter().enumerate().map(|(slot, &entry)| Placed { entry, slot }).collect();
    leaf::sort_by_entry::<K, M, _>(pm, &mut placed, |placed| placed.entry)?;
    let moved = placed[half..].iter().map(|placed| 1 << placed.slot).sum();
    Ok(Some(Middle { below: placed[half - 1].entry, above: placed[half].entry, moved }))
}

impl<K: Key + ?Sized, L: Divisible<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// Takes one of two neighbours, whose entries nobody wants any more, out of the list. `before` is what links it if the other does not. Returns it if it is
    /// damaged, or not linked there; whoever splits or opens it will report that.
    fn unlink<'a>(&self, pair: R::Neighbours<'_>, before: Option<(Before<'_>, &Word)>, gone: Held<'a, L>, kept: Held<'_, L>) -> Result<(), Held<'a, L>> {
        let slot = before.as_ref().map_or(kept.leaf.next(), |(_, slot)| slot);
        if self.check_link(slot, gone.off).and_then(|()| self.examine(gone.leaf)).is_err() {
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
        let off = gone.off;
        pair.join(kept.off, || {
            gone.lock.release_obsolete();
            drop(kept.lock);
        });
        self.leaves.add(-1);
        self.pool.retire(Off::<L>::new(off), &self.pool.pin());
        Ok(())
    }

    /// Does all of a split of a latched leaf that can fail.
    fn plan_division<'a>(&'a self, pending: Pending<'a, K>, leaf: &L) -> Result<Plan<'a, K, L, M>, Error> {
        const { assert!(L::CAPACITY <= 64, "a bit for each slot") };
        // What will be written is prefetched meanwhile.
        let right = self.pool.alloc::<L>()?;
        probe::prefetch_lines(&*right);
        self.router.approach(pending.key);
        self.examine(leaf)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(L::CAPACITY);
        leaf.entries(&mut entries);
        // The entries of a full leaf fill the slots from the first on.
        if entries.len() != L::CAPACITY {
            return Err(self.damage(leaf, "a full leaf with fewer entries than it counts"));
        }
        let Some(Middle { below, above, moved }) = middle::<K, M>(&self.pool, &entries)? else {
            return Err(self.damage(leaf, "a leaf with the same key twice"));
        };
        let (fences, separator) = self.separate(pending.key, leaf, &below, &above)?;
        let log = if L::LOGGED { Some(self.logs.take(&self.pool, &self.root().logs)?) } else { None };
        self.latches.begin(&[right.off().bytes()])?;
        let goes_right = *pending.key >= *separator.borrow();
        Ok((fences.low, separator, Division { pool: &self.pool, right, moved, pending, goes_right, log }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Hardware, Pool, PoolOptions};
    use std::num::NonZeroU64;

    #[test]
    fn the_middle_is_where_sorting_finds_it() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        for count in 2..=64 {
            let entries: Vec<Entry> = (1..=count).map(|n: u64| Entry { head: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), value: NonZeroU64::MIN }).collect();
            let mut heads: Vec<u64> = entries.iter().map(|entry| entry.head).collect();
            heads.sort_unstable();
            let half = heads.len() / 2;
            let Middle { below, above, moved } = middle::<u64, Hardware>(&pool, &entries).unwrap().unwrap();
            assert_eq!([below.head, above.head], [heads[half - 1], heads[half]]);
            assert!(entries.iter().enumerate().all(|(slot, entry)| (moved >> slot & 1 == 1) == (entry.head >= above.head)), "{count} entries");
        }
    }
}
