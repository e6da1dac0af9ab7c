//! Leaves that are replaced by new ones. The range, the low fence and the skip of a leaf never change; the latch of an old one says *obsolete* for ever.
//!
//! Split of X at the median, with P the leaf before it (or the root block, which has no latch: its link belongs to whoever has latched the leaf that it links):
//! 1. latch X, then P (by trying: on failure release X and start again; latches are taken leftwards only by trying, so there is no deadlock); check that P is
//!    not obsolete and that P's next is X.
//! 2. build A and B with the halves of what X holds after the pending change, A.next = B, B.next = X.next, and B's fence; flush all, fence. Nobody can reach
//!    them: a crash forgets them.
//! 3. P.next := A, persist: the commit point, of the change, too. Before: the list holds X; after: A and B, with the same entries but for the change.
//! 4. router: X -> A, and B from the median on; X obsolete. Volatile; recovery builds it from the list.
//! 5. X is retired: unlinked durably in step 3, it may be used again.
//!
//! If X is full and has few entries, as a leaf may that keeps what was removed, A takes all of them, and there is no B. The same is done in a pool without room
//! for two, if A can take all of them: what changes or removes an entry needs no more than one block, and gives one back.
//!
//! Merge of A and B, which have room in one leaf (see `are_worth_merging`), under one node of the router: 1. lock the node, latch A, B and P, all by trying; 2.
//! build C with both, C.next = B.next, flush, fence; 3. P.next := C, persist: the commit point; 4. router: A and B -> C; A and B obsolete; 5. both and B's
//! fence are retired.

use super::super::leaf::{self, Birth, Change, Entry, LeafLayout, Pending};
use super::super::router::{Fences, Neighbours, Restart, Router};
use super::super::{Halved, Held, Selective};
use super::{Room, Structure};
use crate::{Direction, Error, Key};
use everleaf_pmem::{Durable, Flushed, Fresh, Medium, Off, Pm};
use std::borrow::Borrow;

/// See the module documentation.
pub struct Replaced;

impl<K: Key + ?Sized, L: LeafLayout<K>> Structure<K, L> for Replaced {
    const FENCED: bool = true;

    #[cold]
    fn make_room<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, pending: Pending<'_, K>, held: Held<'_, L>) -> Result<Room, Error> {
        let Held { off, leaf, lock } = held;
        // The leaf is latched, so its low fence does not change.
        let low = tree.router.fences_of(pending.key).low;
        let Ok((before, slot)) = tree.hold_predecessor(low.borrow()) else {
            lock.release_unchanged();
            return Ok(Room::Prevented);
        };
        let built = tree.check_link(slot, off).and_then(|()| tree.build_successors(&pending, leaf));
        let Successors { left, right } = match built {
            Ok(successors) => successors,
            Err(error) => {
                before.release_unchanged();
                lock.release_unchanged();
                return Err(error);
            }
        };
        let left = tree.pool.link(slot, left).bytes();
        drop(before);
        match right {
            Some((separator, right)) => {
                tree.router.split(off, left, low.borrow(), separator.borrow(), right.bytes());
                tree.leaves.add(1);
                tree.splits.add(1);
                // If keys ascend, or descend, the half to which this one does not belong stays.
                tree.pass_by(if *pending.key < *separator.borrow() { right.bytes() } else { left });
            }
            None => tree.router.replace(off, left, low.borrow()),
        }
        lock.release_obsolete();
        tree.pool.retire(Off::<L>::new(off), &tree.pool.pin());
        Ok(Room::Applied)
    }

    #[inline(always)]
    fn is_sparse(count: usize, capacity: usize) -> bool {
        is_getting_sparse(count, capacity)
    }

    #[cold]
    fn merge<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, key: &K, side: Direction) -> Result<bool, Restart> {
        let Some(pair) = tree.router.neighbours(key, side)? else { return Ok(false) };
        let Ok([left, right]) = tree.hold_both(pair.leaves()) else {
            pair.release();
            return Err(Restart);
        };
        let Ok((before, slot)) = tree.hold_before(&pair) else {
            right.lock.release_unchanged();
            left.lock.release_unchanged();
            pair.release();
            return Err(Restart);
        };
        let [left_fences, right_fences] = pair.fences();
        let high = right_fences.high.as_ref().map(Borrow::borrow);
        let joined = tree.check_link(slot, left.off).and_then(|()| tree.build_joined(left.leaf, right.leaf, left_fences.low.borrow(), high));
        let Ok(Some(joined)) = joined else {
            // Not worth it, or no space, or damage that a read will report.
            right.lock.release_unchanged();
            left.lock.release_unchanged();
            before.release_unchanged();
            pair.release();
            return Ok(false);
        };
        let fence = K::read_fence(&tree.pool, right.leaf.low());
        // This fences: others change the joined leaf as soon as it is unlatched, and are given the retired blocks.
        let joined = tree.pool.link(slot, joined).bytes();
        drop(before);
        let offs = [left.off, right.off];
        pair.join(joined, || [left, right].into_iter().for_each(|held| held.lock.release_obsolete()));
        let guard = tree.pool.pin();
        offs.into_iter().for_each(|off| tree.pool.retire(Off::<L>::new(off), &guard));
        tree.leaves.add(-1);
        if let Ok((_, Some((fence, _)))) = fence {
            tree.pool.retire(fence, &guard);
        }
        Ok(true)
    }
}

/// The leaves that replace a leaf: one or two. The right one is durable, and linked by the left one.
struct Successors<'p, K: Key + ?Sized, L: LeafLayout<K>, M: Medium> {
    left: Durable<'p, L, M>,
    /// With its separator.
    right: Option<(K::Owned, Off<L>)>,
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// Builds what replaces a latched leaf after a change, durable but not linked.
    fn build_successors(&self, pending: &Pending<'_, K>, leaf: &L) -> Result<Successors<'_, K, L, M>, Error> {
        let entries = self.changed(pending, leaf)?;
        if entries.len() <= L::CAPACITY / 2 {
            return self.build_only(pending.key, leaf, &entries);
        }
        let fit_in_one = entries.len() <= L::CAPACITY;
        match self.build_halves(pending.key, leaf, entries) {
            Err(error) if fit_in_one && matches!(error.pmem(), Some(everleaf_pmem::Error::NoSpace { .. })) => {
                self.build_only(pending.key, leaf, &self.changed(pending, leaf)?)
            }
            built => built,
        }
    }

    fn build_only(&self, key: &K, leaf: &L, entries: &[Entry]) -> Result<Successors<'_, K, L, M>, Error> {
        let Fences { low, high } = self.router.fences_of(key);
        let only = self.pool.alloc::<L>()?;
        self.build(&only, leaf.skip(), entries, leaf.low(), leaf.next().get(), low.borrow(), high.as_ref().map(Borrow::borrow))?;
        let only = self.pool.fence_all(flush(only));
        self.latches.begin(&[only.off().bytes()])?;
        Ok(Successors { left: only, right: None })
    }

    fn build_halves(&self, key: &K, leaf: &L, entries: Vec<Entry>) -> Result<Successors<'_, K, L, M>, Error> {
        let Halved { fences: Fences { low, high }, entries, separator } = self.halve(key, leaf, entries)?;
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let high = high.as_ref().map(Borrow::borrow);
        let (right_low, fence) = separator.borrow().fence(&self.pool)?;
        let (left, right) = (self.pool.alloc::<L>()?, self.pool.alloc::<L>()?);
        self.build(&right, leaf.skip(), upper, right_low, leaf.next().get(), separator.borrow(), high)?;
        self.build(&left, leaf.skip(), lower, leaf.low(), right.off().link(), low.borrow(), Some(separator.borrow()))?;
        let (left, right, fence) = self.pool.fence_all((flush(left), flush(right), fence.map(|fence| fence.flush())));
        // This is the last step that can fail: what is begun is linked.
        self.latches.begin(&[left.off().bytes(), right.off().bytes()])?;
        fence.map(Durable::release);
        Ok(Successors { left, right: Some((separator, right.release())) })
    }

    /// The entries of a leaf after a change, in the order of their keys.
    fn changed(&self, &Pending { key, change }: &Pending<'_, K>, leaf: &L) -> Result<Vec<Entry>, Error> {
        self.examine(leaf)?;
        let head = key.head(leaf.skip());
        let mut entries = Vec::with_capacity(L::CAPACITY + 1);
        leaf.entries(&mut entries);
        if let (Change::Update(_) | Change::Remove, Some((_, value))) = (change, leaf.find(&self.pool, key)?) {
            entries.retain(|entry| *entry != Entry { head, value });
        }
        if let Change::Insert(value) | Change::Update(value) = change {
            entries.push(Entry { head, value });
        }
        leaf::sort::<K, M>(&self.pool, &mut entries)?;
        Ok(entries)
    }

    /// Writes a new leaf with entries whose heads leave out `skip` bytes.
    #[expect(clippy::too_many_arguments, reason = "a leaf is born with all of this, once")]
    fn build(&self, leaf: &L, skip: usize, entries: &[Entry], low: u64, next: u64, from: &K, to: Option<&K>) -> Result<(), Error> {
        let shared = to.map_or(0, |to| from.shared(to));
        // A head of eight bytes has some to spare: reading every record again is worthwhile only if the heads then reach much further.
        let new_skip = if shared >= skip.saturating_add(HEAD_GAIN) { shared } else { skip };
        let mut entries = entries.to_vec();
        rehead::<K, M>(&self.pool, skip, new_skip, &mut entries)?;
        leaf.build(&self.pool, &Birth { next, low, skip: new_skip }, &entries)
    }

    fn build_joined(&self, left: &L, right: &L, low: &K, high: Option<&K>) -> Result<Option<Durable<'_, L, M>>, Error> {
        if !are_worth_merging(left.count(), right.count(), L::CAPACITY) {
            return Ok(None);
        }
        [left, right].into_iter().try_for_each(|leaf| self.examine(leaf))?;
        let skip = left.skip().min(right.skip()).min(low.shared_up_to(high));
        let mut entries = Vec::with_capacity(L::CAPACITY);
        for leaf in [left, right] {
            let start = entries.len();
            leaf.entries(&mut entries);
            rehead::<K, M>(&self.pool, leaf.skip(), skip, &mut entries[start..])?;
        }
        if entries.len() > L::CAPACITY {
            return Err(everleaf_pmem::Error::corrupt(self.pool.offset_of(left).bytes(), "a leaf with more entries than it counts").into());
        }
        leaf::sort::<K, M>(&self.pool, &mut entries)?;
        let joined = self.pool.alloc::<L>()?;
        self.build(&joined, skip, &entries, left.low(), right.next().get(), low, high)?;
        let joined = self.pool.fence_all(flush(joined));
        self.latches.begin(&[joined.off().bytes()])?;
        Ok(Some(joined))
    }
}

/// Starts the write-back of what counts in a new leaf.
#[track_caller]
pub(in super::super) fn flush<'p, K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(leaf: Fresh<'p, L, M>) -> Flushed<'p, L, M> {
    let used = leaf.used();
    leaf.flush_first(used)
}

/// Whether a removal that leaves `count` of `capacity` entries is a reason to try a merge: when the leaf gets less than half full, and now and then below.
#[inline(always)]
pub(crate) fn is_getting_sparse(count: usize, capacity: usize) -> bool {
    let half = capacity / 2;
    count + 1 == half || count < half && count.is_multiple_of(4)
}

/// Whether leaves of this many entries are merged: if a quarter stays free, so that the leaf is not split at once; or if one is empty, whatever the other
/// holds. Otherwise a queue, which is filled at one end and drained at the other, would leave all its leaves behind.
pub(crate) fn are_worth_merging(left: usize, right: usize, capacity: usize) -> bool {
    left == 0 || right == 0 || left + right <= capacity * 3 / 4
}

/// Makes heads that leave out `from` bytes leave out `to`.
fn rehead<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, from: usize, to: usize, entries: &mut [Entry]) -> Result<(), Error> {
    if from != to {
        for entry in entries {
            entry.head = K::rehead(pm, to, entry.head, entry.value)?;
        }
    }
    Ok(())
}

/// By how many bytes a head must reach further to be worth reading every record of a leaf.
const HEAD_GAIN: usize = 4;
