//! Several writes under one fence.
//!
//! 1. For each write in turn: find the leaf of its key, and begin to append to it, which does not affect readers, unless another thread is in the way. Nothing
//!    is stored yet: a locked instruction waits for all write-backs under way, and there would be many of them.
//! 2. Latch the leaves of keys that are present; store all entries and values, and flush their lines; then one fence for all of them.
//! 3. Publish the fingerprints of new entries, clear those of removed ones, and release the leaves.
//!
//! After a crash, each write is as a single write would be. A thread that holds leaves never waits for another that may hold leaves: if another thread is in
//! the way, the staged writes are settled first, and then the write is made alone. The batch can be in its own way, which preserves the order of writes to
//! equal keys: after settling it is not, so such a write begins the next stage. Writes to the same leaf share the hold of the first of them. A second write
//! that sets a key only changes the value that the first will store.
//!
//! A full leaf that is not held yet is split in step 1. Nothing that is staged has been stored, so the fences of the split are its own; and the split waits
//! only for the directory and a node of the router, whose holders wait for no leaf. A write that goes to the new leaf is made with it, so it is seen before the
//! staged writes.
//!
//! # Behind what is not durable yet
//!
//! If writes wait for a device, the stores of step 2 are held back ([`Pm::publish`](everleaf_pmem::Pm::publish)) until they are durable, together with what
//! they link and the caller has flushed ([`OrderedIndex::apply_behind`](crate::OrderedIndex::apply_behind)). So readers need not wait for it, and leaves are
//! latched only afterwards, for step 3: until then no reader knows of a new entry, and of a key that is set or removed readers see the old value, or what is
//! durable. No other thread stores to what is held. A split fences before its new leaf lives; a write that is made alone is preceded by a fence.
//!
//! # Without a fence
//!
//! A caller that fences itself ([`OrderedIndex::apply_unfenced`](crate::OrderedIndex::apply_unfenced)) gets step 2 without a fence: lines are flushed, and what
//! is published in step 3 is seen before it is durable. Nothing else changes. The invariants of `ever.rs` about durability concern crashes; each holds
//! nonetheless:
//!
//! - *Ranges and slots.* A crash before the caller's fence leaves of each line what it leaves of single writes to it, in the order in which they were made, by
//!   whatever thread. So an old value never stands beside a new token (invariant 3), and a key has one slot that counts, as no thread writes a removed key
//!   again before the fence.
//! - *Other threads* that write to such a line flush it, so their fence also makes durable what was there before, which does no harm. A thread that splits or
//!   merges the leaf copies what it sees to a leaf that is durable before it lives, and makes durable what it clears. So a write is never lost behind the
//!   caller's fence: it is in the line that the caller has flushed, or in a leaf that was durable before it replaced the old one.
//! - *Removed* or replaced entries may be back after a crash before the fence. So what they linked must stay in place until then (invariant 4). So must what is
//!   linked instead, since the crash can leave either.

use super::directory::{Number, handle};
use super::leaf::{Descriptor, Leaf, Place, Slot};
use super::{Ever, Near, Reached, When};
use crate::batch::{APPROACHED_MAX, Fencing, STAGED_MAX};
use crate::latch::{Appending, Change, Locked, Restart};
use crate::selective::router::{GROUP, Router, Target};
use crate::selective::structure::{is_getting_sparse, merge_sparse};
use crate::{Error, Key, Write};
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Medium, probe};
use std::num::NonZeroU64;

/// A write that has a slot, in a leaf to which no other thread writes.
struct Staged<'a, K: ?Sized, const LINES: usize> {
    key: &'a K,
    number: Number,
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
    slot: usize,
    place: Place,
    deed: Deed,
    hold: Hold<'a>,
}

/// Writes that have been staged.
struct Stage<'a, K: ?Sized, const LINES: usize> {
    writes: Vec<Staged<'a, K, LINES>>,
    held: Leaves,
    fencing: Fencing,
}

/// The set of leaves that are held: a bit for each, which leaves that are not held may share.
#[derive(Default)]
struct Leaves([u64; Self::BITS / 64]);

impl Leaves {
    /// Several for each write of the largest stage.
    const BITS: usize = 4 * STAGED_MAX;

    fn bit(leaf: Number) -> (usize, u64) {
        let bit = handle(leaf) as usize % Self::BITS;
        (bit / 64, 1 << (bit % 64))
    }

    fn may_hold(&self, leaf: Number) -> bool {
        let (word, bit) = Self::bit(leaf);
        self.0[word] & bit != 0
    }

    fn add(&mut self, leaf: Number) {
        let (word, bit) = Self::bit(leaf);
        self.0[word] |= bit;
    }
}

/// What happens to the slot.
#[derive(Clone, Copy)]
enum Deed {
    Add(NonZeroU64),
    Set(NonZeroU64),
    Remove,
}

/// The right by which a staged write is made.
enum Hold<'a> {
    /// Keys are new.
    Append(Appending<'a>),
    /// A key is present: the leaf must be latched before anything is stored.
    Latch(Appending<'a>),
    /// It is latched.
    Locked(Locked<'a>),
    /// Another write of the batch holds the same leaf.
    Shared,
}

impl<K: Key + ?Sized, const LINES: usize> Staged<'_, K, LINES> {
    /// Lets a later write to the same key replace this one, if that suffices. Returns the value that the key has before it.
    fn follow(&mut self, write: Write) -> Result<Option<NonZeroU64>, Restart> {
        match (&mut self.deed, write.sets()) {
            (Deed::Add(set) | Deed::Set(set), Some((value, when))) => {
                let old = *set;
                if when != When::Absent {
                    *set = value;
                }
                Ok(Some(old))
            }
            (Deed::Remove, None | Some((_, When::Present))) => Ok(None),
            _ => Err(Restart),
        }
    }
}

impl<K: ?Sized, const LINES: usize> Staged<'_, K, LINES> {
    /// The versions of its leaf before and after the last of `writes`. A write that shares a hold follows its holder, and finds the order where that one leads.
    fn change(writes: &[Self]) -> Change {
        let (last, before) = writes.split_last().expect("a write");
        let shared = || {
            let to = before.iter().rev().filter(|other| std::ptr::eq(other.descriptor, last.descriptor)).find_map(|other| other.hold.change());
            to.map(|Change { to, .. }| Change { from: to, to })
        };
        last.hold.change().or_else(shared).expect("the first of a leaf holds it")
    }
}

impl Hold<'_> {
    /// `None` if it is shared.
    fn change(&self) -> Option<Change> {
        match self {
            Hold::Append(appending) | Hold::Latch(appending) => Some(appending.change()),
            Hold::Locked(lock) => Some(lock.change()),
            Hold::Shared => None,
        }
    }

    fn latch_later(&mut self) {
        *self = match std::mem::replace(self, Hold::Shared) {
            Hold::Append(appending) => Hold::Latch(appending),
            hold => hold,
        };
    }

    fn latch(&mut self) {
        *self = match std::mem::replace(self, Hold::Shared) {
            Hold::Latch(appending) => Hold::Locked(appending.lock()),
            hold => hold,
        };
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// See [`OrderedIndex::apply`](crate::OrderedIndex::apply), for a part of the writes that makes one stage, unless another thread is in the way.
    pub(super) fn write_many(&self, writes: &[(&K, Write)], fencing: Fencing, returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let mut staged = Stage { writes: Vec::with_capacity(writes.len()), held: Leaves::default(), fencing };
        for writes in writes.chunks(APPROACHED_MAX) {
            self.stage_many(writes, &mut staged, returned)?;
        }
        self.settle(&mut staged);
        Ok(())
    }

    /// Step 1 for at most [`GROUP`] writes.
    fn stage_many<'a>(&'a self, writes: &[(&'a K, Write)], staged: &mut Stage<'a, K, LINES>, returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let mut keys = [K::LOWEST; GROUP];
        keys.iter_mut().zip(writes).for_each(|(to, (key, _))| *to = key);
        let keys = &keys[..writes.len()];
        let nears = self.approach(keys);
        self.approach_entries(&nears);
        for ((key, write), near) in writes.iter().zip(&nears) {
            let mut outcome = near.ok_or(Restart).and_then(|near| self.stage(*key, *write, near, staged));
            // A split, perhaps of this very leaf, may have made the way stale; the batch may be in its own way; and a leaf that it has split must be found
            // again.
            for is_in_the_way in [false, true, false] {
                if outcome.is_err() {
                    if is_in_the_way {
                        self.settle(staged);
                    }
                    outcome =
                        self.router.way(Target::At(*key)).and_then(|way| self.stage(*key, *write, self.near(Place::of::<LINES>(key.token()), way)?, staged));
                }
            }
            match outcome {
                Ok(old) => returned.push(old),
                Err(Restart) => {
                    self.settle(staged);
                    if self.pool.medium().holds_back() {
                        self.pool.fence();
                    }
                    returned.push(match write.sets() {
                        Some((value, when)) => self.set(key, value, when),
                        None => self.take(key),
                    }?);
                }
            }
        }
        Ok(())
    }

    /// Step 1 for one write, if there is anything to do. Returns the value that the key has. Damage counts as another thread in the way: the write made alone
    /// reports it.
    fn stage<'a>(&'a self, key: &'a K, write: Write, near: Near<'a, LINES>, staged: &mut Stage<'a, K, LINES>) -> Result<Option<NonZeroU64>, Restart> {
        let Near { place, way, leaf, descriptor } = near;
        // Since the first of these, no other thread has changed the leaf, and its range stands.
        let (mut taken, mut holder) = (0, None);
        let others = if staged.held.may_hold(way.leaf) { &mut staged.writes[..] } else { &mut [] };
        for other in others.iter_mut().filter(|other| std::ptr::eq(other.descriptor, descriptor)) {
            if other.place.token == place.token {
                return if other.key == key { other.follow(write) } else { Err(Restart) };
            }
            taken |= 1 << other.slot;
            if !matches!(other.hold, Hold::Shared) {
                holder = Some(&mut other.hold);
            }
        }
        let version = if holder.is_some() { 0 } else { descriptor.latch().try_read()? };
        way.validate()?;
        let found = descriptor.find(Wide::get(), &self.pool, leaf, key, place).map_err(|_| Restart)?;
        let old = found.map(|(_, old)| old);
        let (slot, deed) = match (found, write.sets()) {
            (None, Some((value, When::Absent | When::Always))) => match descriptor.room::<LINES>(Wide::get(), place, taken) {
                Some(slot) => {
                    probe::prefetch(leaf.line(slot));
                    (slot, Deed::Add(value))
                }
                None if holder.is_some() => return Err(Restart),
                // An error is reported when the write is made alone.
                None => return self.split(key, value, Reached { way, leaf, descriptor, version })?.or(Err(Restart)),
            },
            (Some((slot, _)), Some((value, When::Present | When::Always))) => (slot, Deed::Set(value)),
            (Some((slot, _)), None) => (slot, Deed::Remove),
            (Some(_), Some((_, When::Absent))) | (None, Some((_, When::Present)) | None) => {
                if holder.is_none() {
                    descriptor.latch().validate(version)?;
                }
                return Ok(old);
            }
        };
        let mut hold = match holder {
            Some(_) => Hold::Shared,
            None => Hold::Append(descriptor.latch().append_from(version)?),
        };
        if !matches!(deed, Deed::Add(_)) {
            holder.unwrap_or(&mut hold).latch_later();
        }
        staged.held.add(way.leaf);
        if !K::WHOLE {
            match deed {
                Deed::Add(_) => self.known.orders.prefetch(way.leaf),
                _ => self.known.orders.prefetch_order(way.leaf),
            }
        }
        staged.writes.push(Staged { key, number: way.leaf, leaf, descriptor, slot, place, deed, hold });
        Ok(old)
    }

    /// Steps 2 and 3.
    fn settle(&self, Stage { writes, held, fencing }: &mut Stage<'_, K, LINES>) {
        if writes.is_empty() {
            return;
        }
        let holds_back = *fencing == Fencing::Own && self.pool.medium().holds_back();
        if !holds_back {
            writes.iter_mut().for_each(|write| write.hold.latch());
        }
        let store = |writes: &[Staged<'_, K, LINES>]| {
            for Staged { leaf, slot, place, deed, .. } in writes {
                match *deed {
                    Deed::Add(value) => leaf.write(&self.pool, *slot, Slot { token: place.token, value }),
                    Deed::Set(value) => leaf.set_value(&self.pool, *slot, Some(value)),
                    Deed::Remove => leaf.set_value(&self.pool, *slot, None),
                }
                self.pool.flush(leaf.line(*slot));
            }
        };
        match fencing {
            _ if holds_back => {
                self.pool.publish(|| store(writes));
                writes.iter_mut().for_each(|write| write.hold.latch());
            }
            Fencing::Own => {
                store(writes);
                self.pool.fence();
            }
            Fencing::Callers => store(writes),
        }
        let (mut added, mut sparse) = (0, Vec::new());
        for (at, Staged { key, number, descriptor, slot, place, deed, .. }) in writes.iter().enumerate() {
            let change = || Staged::change(&writes[..=at]);
            match deed {
                Deed::Add(_) => {
                    self.show(*number, descriptor, change, *slot, *key, *place);
                    added += 1;
                }
                Deed::Set(_) => self.keep(*number, change),
                Deed::Remove => {
                    // Before the store, as in `take_from`.
                    let left = descriptor.count::<LINES>(Wide::get()) - 1;
                    self.hide(*number, descriptor, change, *slot);
                    added -= 1;
                    if is_getting_sparse(left, Leaf::<LINES>::MERGED) {
                        sparse.push((*key, left));
                    }
                }
            }
        }
        writes.clear();
        *held = Leaves::default();
        self.known.keys.add(added);
        sparse.into_iter().for_each(|(key, left)| merge_sparse(left, |side| self.merge(key, side)));
    }
}
