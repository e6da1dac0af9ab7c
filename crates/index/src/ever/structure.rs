//! Splits and merges. The comments number the steps of the protocols in `ever.rs`.

use super::directory::{Dead, Directory, Number, handle};
use super::leaf::{Built, Descriptor, Leaf, Place, SLOTS_MAX, Slot};
use super::order::{ByHeads, Frame, Sorted, lost, tell_apart};
use super::{Ever, Reached};
use crate::latch::{Appending, Change, Restart};
use crate::record::Record;
use crate::selective::leaf::{self, Placed, each};
use crate::selective::router::{Fences, Neighbours, Route, Router};
use crate::selective::structure::are_worth_merging;
use crate::{Direction, Error, Key};
use everleaf_pmem::vector::{self, RANKED, Wide};
use everleaf_pmem::{Durable, Medium, Pm, probe};
use std::borrow::Borrow;
use std::num::NonZeroU64;

/// Which entries of a leaf go to a new one.
struct Halves<K: Key + ?Sized> {
    low: K::Owned,
    separator: K::Owned,
    /// All entries in the order of their keys, and how many of them stay.
    placed: Vec<Placed>,
    at: usize,
    /// If keys are in records.
    heads: Option<Heads>,
}

/// The heads of the halves of a leaf, by the slots of the whole, and their frames.
struct Heads {
    by_slot: [u32; SLOTS_MAX],
    right: Frame,
    /// `None` if the lower half keeps the frame of the whole.
    left: Option<Frame>,
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// Prefetches what slots of a leaf are sorted by, from byte `skip` on, if keys are in records. A hint.
    #[inline(always)]
    pub(super) fn prefetch_heads(&self, leaf: &Leaf<LINES>, slots: u64, skip: usize) {
        each(slots).filter_map(|slot| leaf.value(slot)).for_each(|value| Record::prefetch_head(&self.pool, value.get(), skip));
    }

    /// Sorts slots of a leaf by their keys, which share `skip` bytes, as all keys of its range do.
    pub(super) fn sort(&self, leaf: &Leaf<LINES>, slots: u64, skip: usize, placed: &mut Vec<Placed>) -> Result<(), Error> {
        if !K::WHOLE {
            // The keys are in the records: all are prefetched at once.
            self.prefetch_heads(leaf, slots, skip);
        }
        let (mut found, mut heads, mut count) = ([Placed { entry: leaf::Entry { head: 0, value: NonZeroU64::MIN }, slot: 0 }; RANKED], [0; RANKED], 0);
        for slot in each(slots) {
            let Some(Slot { token, value }) = leaf.read(slot) else { continue };
            let head = K::rehead(&self.pool, skip, token, value)?;
            found[count] = Placed { entry: leaf::Entry { head, value }, slot };
            heads[count] = head;
            count += 1;
        }
        let found = &found[..count];
        if place_by_rank(found, &heads, placed) {
            return Ok(());
        }
        placed.clear();
        placed.extend_from_slice(found);
        leaf::sort_by_entry::<K, M, _>(&self.pool, placed, |placed| placed.entry)
    }

    /// Chooses where to split a full leaf to which no other thread writes. If keys are being added at the end of all, the leaf is left full.
    fn halve(&self, key: &K, number: Number, version: u64, leaf: &Leaf<LINES>, occupied: u64) -> Result<Halves<K>, Error> {
        let damaged = |what| Error::from(everleaf_pmem::Error::corrupt(self.pool.offset_of(leaf).bytes(), what));
        let fences = self.router.fences_of(key);
        let mut placed = Vec::with_capacity(Leaf::<LINES>::CAPACITY);
        // Then no record is read, except those beside the separator.
        let orders = &self.known.orders;
        let sorted = if K::WHOLE { None } else { self.by_heads(number, version, occupied) };
        let frame = match &sorted {
            Some(sorted) => {
                placed.extend(
                    sorted.slots().filter_map(|(head, slot)| Some(Placed { entry: leaf::Entry { head: head.into(), value: leaf.value(slot)? }, slot })),
                );
                orders.frame(number)
            }
            None => {
                self.sort(leaf, occupied, fences.skip(), &mut placed)?;
                None
            }
        };
        if placed.len() != Leaf::<LINES>::CAPACITY {
            return Err(damaged("a full leaf with fewer values than entries"));
        }
        let key_of = |at: usize| {
            let key = leaf::read::<K, M>(&self.pool, &placed[at].entry)?;
            // Other keys are where they belong, whatever has become of their records.
            match frame.as_ref().is_some_and(|frame| u64::from(frame.head_of(key.borrow())) != placed[at].entry.head) {
                true => Err(damaged("a leaf with a record of which the key has changed")),
                false => Ok(key),
            }
        };
        // Read for the last leaf only.
        let last = if fences.high.is_none() { Some(key_of(placed.len() - 1)?) } else { None };
        let (at, separator) = match last.filter(|last| *key > *last.borrow()) {
            Some(last) => (placed.len(), K::separator(last.borrow(), key)),
            None => {
                let half = placed.len() / 2;
                (half, K::separator(key_of(half - 1)?.borrow(), key_of(half)?.borrow()))
            }
        };
        if separator <= fences.low || fences.high.as_ref().is_some_and(|high| separator >= *high) {
            return Err(damaged("a leaf with keys beyond its range"));
        }
        let heads = if K::WHOLE { None } else { Some(self.heads_of(frame, &fences, separator.borrow(), &placed, at, key)?) };
        Ok(Halves { low: fences.low, separator, placed, at, heads })
    }

    /// A full leaf in the order of its heads, if they tell all keys apart. A division by heads is permanent, so even a known order is checked.
    fn by_heads(&self, number: Number, version: u64, occupied: u64) -> Option<ByHeads> {
        let (orders, tell_apart) = (&self.known.orders, |heads: &ByHeads| heads.tell_apart(Leaf::<LINES>::CAPACITY));
        orders.by_order(number, version).filter(tell_apart).or_else(|| orders.by_heads(number, occupied).filter(tell_apart))
    }

    /// The heads of the halves of a leaf; the upper half begins with entry `at`. Heads are those that it was sorted by if they had a frame, else new ones, for
    /// which all keys are read. If nothing moves, `key` is the first of the upper half, and others are expected to follow it as it follows those of the leaf.
    fn heads_of(&self, frame: Option<Frame>, fences: &Fences<K>, separator: &K, placed: &[Placed], at: usize, key: &K) -> Result<Heads, Error> {
        let (lower, upper) = placed.split_at(at);
        let high = fences.high.as_ref().map(Borrow::borrow);
        let mut by_slot = [0; SLOTS_MAX];
        let (left, right) = match frame {
            Some(whole) => {
                placed.iter().for_each(|placed| by_slot[placed.slot] = placed.entry.head as u32);
                (None, whole)
            }
            None => {
                let mut frame_anew = |low: &K, high, half| {
                    let (frame, heads) = self.frame_of(low, high, half)?;
                    heads.into_iter().for_each(|(slot, head)| by_slot[slot] = head);
                    Ok::<_, Error>(frame)
                };
                (Some(frame_anew(fences.low.borrow(), Some(separator), lower)?), frame_anew(separator, high, upper)?)
            }
        };
        let right = match upper {
            [] => Frame::around(separator, high, leaf::read::<K, M>(&self.pool, &placed[0].entry)?.borrow(), key),
            _ => right,
        };
        Ok(Heads { by_slot, right, left })
    }

    /// The frame for these entries of a leaf, in the order of their keys, and their heads by slots. The frame is that of the range, or one of the keys if the
    /// former tells too little. All keys are read.
    pub(super) fn frame_of(&self, low: &K, high: Option<&K>, placed: &[Placed]) -> Result<(Frame, Vec<(usize, u32)>), Error> {
        let heads = |frame: &Frame| {
            let head = |Placed { entry, slot }: &Placed| Ok((*slot, frame.head(K::rehead(&self.pool, frame.skip(), entry.head, entry.value)?)));
            placed.iter().map(head).collect::<Result<Vec<_>, Error>>()
        };
        let range = Frame::new(low, high);
        let heads_of_range = heads(&range)?;
        let of_range = (range, heads_of_range);
        let (Some(first), Some(last)) = (placed.first(), placed.last()) else { return Ok(of_range) };
        if tell_apart(of_range.1.iter().map(|(_, head)| *head)) || high.is_some() && placed.len() == 1 {
            return Ok(of_range);
        }
        let [first, last] = [first, last].map(|placed| leaf::read::<K, M>(&self.pool, &placed.entry));
        let around = Frame::around(low, high, first?.borrow(), last?.borrow());
        let of_keys = heads(&around)?;
        Ok(if differ(&of_keys) { (around, of_keys) } else { of_range })
    }

    /// Splits a full leaf, and inserts the key if it belongs in the new one. If not, the insert is retried.
    #[cold]
    pub(super) fn split(&self, key: &K, value: NonZeroU64, reached: Reached<'_, LINES>) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        // Prefetched while the write before is at its fence.
        probe::prefetch_lines(reached.leaf);
        self.router.approach_behind(&reached.way);
        let appending = reached.descriptor.latch().append_from(reached.version)?;
        let is_done = match self.divide(key, value, &reached, appending) {
            Ok(is_done) => is_done,
            Err(error) => return Ok(Err(error)),
        };
        self.leaves.add(1);
        self.splits.add(1);
        if !is_done {
            return Err(Restart);
        }
        self.known.keys.add(1);
        Ok(Ok(None))
    }

    /// Divides a leaf to which no other thread writes. Returns whether the key went to the new one.
    fn divide(&self, key: &K, value: NonZeroU64, reached: &Reached<'_, LINES>, appending: Appending<'_>) -> Result<bool, Error> {
        let Reached { way, leaf, descriptor, .. } = reached;
        let occupied = descriptor.occupied::<LINES>(Wide::get());
        let Halves { low, separator, placed, at, heads } = self.halve(key, way.leaf, appending.change().from, leaf, occupied)?;
        let goes_right = *key >= *separator.borrow();
        let (staying, moving) = placed.split_at(at);
        let moved = moving.iter().fold(0, |moved, placed| moved | 1 << placed.slot);
        let mut upper = Vec::with_capacity(moving.len() + 1);
        upper.extend(moving.iter().filter_map(|placed| leaf.read(placed.slot)));
        upper.extend(goes_right.then(|| Slot { token: key.token(), value }));
        let (word, fence) = separator.borrow().fence(&self.pool)?;
        let right = self.directory.take(&self.pool, &self.root().first)?;
        let entry = self.directory.entry(&self.pool, right.number);
        probe::prefetch(entry);
        probe::prefetch(self.known.descriptors.get(handle(right.number)));
        // Step 1.
        let built = self.write(right, &upper);
        let fence = self.pool.fence_all(fence.map(|fence| fence.flush()));
        // The last step that can fail; from here on the low fence is linked.
        let new = self.begin(right.number)?;
        fence.map(Durable::release);
        new.fill(&built.fingerprints);
        let orders = &self.known.orders;
        if let Some(Heads { by_slot, right: frame, .. }) = &heads {
            let slots = built.slots.iter().map(|slot| usize::from(*slot));
            let heads = moving.iter().map(|placed| by_slot[placed.slot]).chain(goes_right.then(|| frame.head_of(key)));
            orders.set(right.number, frame, slots.clone().zip(heads));
            // The version at which the leaf will be found.
            if let Ok(version) = new.latch().try_read() {
                // The pending entry was built last.
                let pending = slots.clone().nth(moving.len()).filter(|_| goes_right);
                let before = if pending.is_some() { lost(version) } else { version };
                orders.leave(right.number, before, &Sorted::of(slots.take(moving.len())));
                if let Some(slot) = pending {
                    orders.add(right.number, Change { from: before, to: version }, slot, key);
                }
            }
        }
        // Step 2.
        entry.commit(&self.pool, word, 1);
        // Step 3.
        let _pinned = (!K::WHOLE).then(|| self.pool.pin());
        // Readers of the leaf need not wait for a thread that merges two others under its node.
        let (mut appending, mut lock) = (Some(appending), None);
        let mut lock_leaf = || lock = appending.take().map(|appending| appending.lock());
        self.router.split_behind(&mut lock_leaf, way.leaf, way.leaf, low.borrow(), separator.borrow(), right.number);
        let lock = lock.expect("the router has begun");
        descriptor.clear(moved);
        if let Some(Heads { by_slot, left: Some(frame), .. }) = &heads {
            orders.set(way.leaf, frame, each(occupied & !moved).map(|slot| (slot, by_slot[slot])));
        }
        // Step 4.
        let appending = lock.append();
        if !K::WHOLE {
            orders.leave(way.leaf, appending.change().to, &Sorted::of(staying.iter().map(|placed| placed.slot)));
            // persist-equivalent(store early): each for itself.
            // persist-equivalent(fence drop): who comes here next fences before he lets the leaf reach further. Others, who may come sooner, do not wait for
            // these flushes.
            scrub(&self.pool, leaf, moved);
        }
        Ok(goes_right)
    }

    /// Writes a dead leaf. The caller fences.
    pub(super) fn write(&self, Dead { number, is_known }: Dead, entries: &[Slot]) -> Built {
        let leaf = Directory::<LINES, LEAVES>::leaf(&self.pool, number).expect("a leaf that was taken");
        let built = leaf.build(&self.pool, entries, is_known);
        for line in leaf.lines_of(built.written) {
            self.pool.flush(line);
        }
        built
    }

    /// The descriptors of the neighbours that the leaf of a route has under its node of the router. If it has none, a merge may give it one.
    pub(super) fn descriptors_beside(&self, route: &Route) -> [Option<&Descriptor>; 2] {
        [Direction::Forward, Direction::Reverse].map(|side| Some(self.leaf(self.router.beside(route, side)?.leaf).ok()?.1))
    }

    /// Merges the leaf of `key` with the neighbour on a side under the same node of the router, if that is worth it and no other thread is in the way. Returns
    /// whether it did.
    pub(super) fn merge(&self, key: &K, side: Direction) -> Result<bool, Restart> {
        let Some(pair) = self.router.neighbours(key, side)? else { return Ok(false) };
        let [left, right] = pair.leaves();
        let held = self.hold(left).and_then(|one| match self.hold(right) {
            Ok(other) => Ok([one, other]),
            Err(Restart) => {
                one.release_unchanged();
                Err(Restart)
            }
        });
        let Ok(held) = held else {
            pair.release();
            // For the next attempt.
            self.wake(left);
            return Err(self.wake(right));
        };
        let Some(moved) = self.join([left, right]) else {
            // Not worth it: nothing has changed.
            held.into_iter().for_each(Appending::release_unchanged);
            pair.release();
            return Ok(false);
        };
        // Step 4.
        let [lock_of_left, lock_of_right] = held.map(|appending| appending.lock());
        if let Ok((_, descriptor)) = self.leaf(right) {
            moved.into_iter().for_each(|(slot, fingerprint)| descriptor.set(slot, fingerprint));
        }
        // The orders are of a range that began further up.
        self.known.orders.forget(right);
        pair.join(right, || {
            lock_of_left.release_obsolete();
            drop(lock_of_right);
        });
        self.directory.give_back([left], true);
        self.leaves.add(-1);
        Ok(true)
    }

    /// Begins to append to a leaf, if no other thread is in the way.
    fn hold(&self, number: Number) -> Result<Appending<'_>, Restart> {
        let latch = self.leaf(number)?.1.latch();
        latch.append_from(latch.try_read()?)
    }

    /// Moves the entries of the left leaf to the right one, for all but concurrent readers; no other thread writes to either. Returns the slots and
    /// fingerprints of what has moved, or `None`, with nothing changed, if that is not worth it.
    fn join(&self, [left, right]: [Number; 2]) -> Option<Vec<(usize, u8)>> {
        let wide = Wide::get();
        let [(from, moved), (into, descriptor)] = [self.leaf(left).ok()?, self.leaf(right).ok()?];
        let moved = moved.occupied::<LINES>(wide);
        let counts = [moved, descriptor.occupied::<LINES>(wide)].map(|slots| slots.count_ones() as usize);
        if !are_worth_merging(counts[0], counts[1], Leaf::<LINES>::MERGED) {
            return None;
        }
        from.lines_of(moved).for_each(probe::prefetch);
        let [left, right] = [left, right].map(|number| self.directory.entry(&self.pool, number));
        let generation = left.next_generation()?.max(right.generation()?);
        // Step 1.
        let (mut written, mut fingerprints) = (0, Vec::with_capacity(counts[0]));
        for entry in each(moved).filter_map(|slot| from.read(slot)) {
            let place = Place::of::<LINES>(entry.token);
            let slot = descriptor.room::<LINES>(wide, place, written).expect("two leaves fill no more than one");
            into.write(&self.pool, slot, entry);
            written |= 1 << slot;
            fingerprints.push((slot, place.fingerprint_at(slot)));
        }
        if written != 0 {
            for line in into.lines_of(written) {
                self.pool.flush(line);
            }
            self.pool.fence();
        }
        // Step 2.
        let fence = K::read_fence(&self.pool, right.low.get());
        right.reach_down(&self.pool, left.low.get(), generation);
        // Step 3.
        left.kill(&self.pool);
        self.pool.fence();
        if let Ok((_, Some((fence, _)))) = fence {
            self.pool.retire(fence, &self.pool.pin());
        }
        Some(fingerprints)
    }
}

/// Whether heads, in the order of their keys, all differ.
pub(super) fn differ(heads: &[(usize, u32)]) -> bool {
    heads.is_sorted_by(|left, right| left.1 < right.1)
}

/// Sorts what was found by heads, without an unpredictable branch. Returns false if two heads are equal, which a changing leaf may also cause.
fn place_by_rank(found: &[Placed], heads: &[u64; RANKED], placed: &mut Vec<Placed>) -> bool {
    let ranks = vector::ranks(heads, found.len());
    placed.clear();
    placed.extend_from_slice(found);
    let mut taken = 0u64;
    for (item, rank) in found.iter().zip(ranks) {
        placed[rank as usize] = *item;
        taken |= 1 << rank;
    }
    taken.count_ones() as usize == found.len()
}

/// Makes the values of slots that do not count 0, durably.
#[track_caller]
pub(super) fn scrub<M: Medium, const LINES: usize>(pm: &Pm<M>, leaf: &Leaf<LINES>, slots: u64) {
    if slots == 0 {
        return;
    }
    for slot in each(slots) {
        leaf.set_value(pm, slot, None);
    }
    for line in leaf.lines_of(slots) {
        pm.flush(line);
    }
    pm.fence();
}
