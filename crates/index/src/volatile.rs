//! The volatile baseline: a B+-tree in DRAM with sorted leaves, on the same router. The cost of persistence is measured against it.

use crate::arena::{Arena, Numbers};
use crate::counter::Counter;
use crate::latch::{Latch, Locked, Restart};
use crate::scan::{next_bound, scan_leaves, scan_target, with_key};
use crate::selective::When;
use crate::selective::leaf::Entry;
use crate::selective::router::{FANOUT, Fences, Neighbours, Olc, Route, Router, Target};
use crate::selective::structure::{are_worth_merging, is_getting_sparse, merge_sparse};
use crate::{Cause, Direction, Error, Key, OrderedIndex, Stats, Visit, Write, ascending};
use bytemuck::Zeroable;
use everleaf_pmem::schedule::{
    self,
    atomic::{AtomicU32, AtomicU64},
};
use everleaf_pmem::{Medium, Off, Pool, probe};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Entries of a leaf.
pub(crate) const CAPACITY: usize = 32;

/// See the module documentation. The pool serves only to read the records of byte-string keys.
pub(crate) struct Tree<K: Key + ?Sized, M: Medium> {
    pool: Arc<Pool<M>>,
    router: Olc<K, FANOUT>,
    leaves: Arena<Leaf, 16>,
    numbers: Numbers,
    keys: Counter,
    leaf_count: Counter,
    splits: Counter,
}

/// Entries in ascending order; changed in place under the latch.
#[derive(Zeroable)]
#[repr(align(64))]
struct Leaf {
    latch: Latch,
    count: AtomicU32,
    skip: AtomicU32,
    heads: [AtomicU64; CAPACITY],
    values: [AtomicU64; CAPACITY],
}

impl Leaf {
    #[inline(always)]
    fn count(&self) -> usize {
        (self.count.load(Relaxed) as usize).min(CAPACITY)
    }

    fn skip(&self) -> usize {
        self.skip.load(Relaxed) as usize
    }

    fn value(&self, slot: usize) -> Option<NonZeroU64> {
        NonZeroU64::new(self.values[slot].load(Relaxed))
    }

    /// The slot of `key`, or the one where it belongs.
    #[inline(always)]
    fn find<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, key: &K) -> Result<Result<usize, usize>, Error> {
        let (skip, head) = (self.skip(), key.head(self.skip()));
        let (mut slot, mut count) = (0, self.count());
        // The first slot whose head is not below.
        while count > 0 {
            let half = count / 2;
            let below = self.heads[slot + half].load(Relaxed) < head;
            slot = if below { slot + half + 1 } else { slot };
            count = if below { count - half - 1 } else { half };
        }
        while slot < self.count() && self.heads[slot].load(Relaxed) == head {
            // A disturbed leaf may show anything; the caller detects that.
            let Some(value) = self.value(slot) else { break };
            match key.compare(pool, skip, head, value)? {
                Order::Equal => return Ok(Ok(slot)),
                Order::Less => break,
                Order::Greater => slot += 1,
            }
        }
        Ok(Err(slot))
    }

    fn put(&self, slot: usize, head: u64, value: u64) {
        self.heads[slot].store(head, Relaxed);
        self.values[slot].store(value, Relaxed);
    }

    fn copy(&self, from: usize, to: usize) {
        self.put(to, self.heads[from].load(Relaxed), self.values[from].load(Relaxed));
    }

    fn insert(&self, slot: usize, head: u64, value: NonZeroU64) {
        let count = self.count();
        for from in (slot..count).rev() {
            self.copy(from, from + 1);
        }
        self.put(slot, head, value.get());
        self.count.store(count as u32 + 1, Relaxed);
    }

    fn remove(&self, slot: usize) {
        let count = self.count();
        for from in slot + 1..count {
            self.copy(from, from - 1);
        }
        self.count.store(count as u32 - 1, Relaxed);
    }

    fn entries(&self) -> Vec<(u64, NonZeroU64)> {
        (0..self.count()).filter_map(|slot| Some((self.heads[slot].load(Relaxed), self.value(slot)?))).collect()
    }

    /// Replaces all entries. The heads of `entries` leave out `skip` bytes.
    fn fill(&self, skip: usize, entries: &[(u64, NonZeroU64)]) {
        for (slot, (head, value)) in entries.iter().enumerate() {
            self.put(slot, *head, value.get());
        }
        self.skip.store(skip as u32, Relaxed);
        self.count.store(entries.len() as u32, Relaxed);
    }
}

impl<K: Key + ?Sized, M: Medium> Tree<K, M> {
    pub(crate) fn new(pool: &Arc<Pool<M>>) -> Self {
        let leaves = Arena::new();
        let first: &Leaf = leaves.get_or_make(0);
        assert!(first.latch.revive(), "a latch of zeroes has not begun");
        let (keys, leaf_count, splits) = (Counter::default(), Counter::default(), Counter::default());
        leaf_count.add(1);
        Self { pool: pool.clone(), router: Olc::build(&[(K::LOWEST.to_owned(), 0)]), leaves, numbers: Numbers::from(1), keys, leaf_count, splits }
    }

    #[inline(always)]
    fn leaf(&self, number: u64) -> Result<&Leaf, Restart> {
        self.leaves.get(number as usize).ok_or(Restart)
    }

    fn take(&self) -> (u64, &Leaf) {
        let number = self.numbers.take();
        let leaf = self.leaves.get_or_make(number as usize);
        assert!(leaf.latch.revive(), "a number serves one leaf at a time");
        (u64::from(number), leaf)
    }

    /// The leaf of `target`, the version of its latch, and how it was found.
    #[inline(always)]
    fn find(&self, target: Target<'_, K>) -> Result<(&Leaf, u64, Route), Restart> {
        let route = self.router.find(target)?;
        let leaf = self.leaf(route.leaf)?;
        probe::prefetch_lines(leaf);
        let version = leaf.latch.read()?;
        self.router.validate(&route)?;
        Ok((leaf, version, route))
    }

    fn hold(&self, key: &K) -> (&Leaf, Locked<'_>, u64) {
        loop {
            let attempt = self.find(Target::At(key)).and_then(|(leaf, version, route)| Ok((leaf, leaf.latch.lock_from(version)?, route.leaf)));
            match attempt {
                Ok(held) => return held,
                Err(Restart) => schedule::spin(),
            }
        }
    }

    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        loop {
            let (leaf, lock, number) = self.hold(key);
            match leaf.find(&self.pool, key)? {
                Ok(slot) => {
                    let old = leaf.value(slot);
                    if when.concerns(true) {
                        leaf.values[slot].store(value.get(), Relaxed);
                    }
                    return Ok(old);
                }
                Err(_) if !when.concerns(false) => return Ok(None),
                Err(slot) if leaf.count() < CAPACITY => {
                    leaf.insert(slot, key.head(leaf.skip()), value);
                    drop(lock);
                    self.keys.add(1);
                    return Ok(None);
                }
                Err(_) => self.split(key, leaf, number)?,
            }
        }
    }

    fn take_key(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let (leaf, lock, _) = self.hold(key);
        let Ok(slot) = leaf.find(&self.pool, key)? else { return Ok(None) };
        let old = leaf.value(slot);
        leaf.remove(slot);
        let count = leaf.count();
        drop(lock);
        self.keys.add(-1);
        if is_getting_sparse(count, CAPACITY) {
            merge_sparse(count, |side| self.merge(key, side));
        }
        Ok(old)
    }

    /// Moves the upper half of a full leaf, whose latch the caller holds, to a new one.
    #[cold]
    fn split(&self, key: &K, leaf: &Leaf, number: u64) -> Result<(), Error> {
        let Fences { low, high } = self.router.fences_of(key);
        let (skip, entries) = (leaf.skip(), leaf.entries());
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let (mut below, mut above) = (K::Owned::default(), K::Owned::default());
        K::read(&self.pool, lower[lower.len() - 1].0, lower[lower.len() - 1].1, &mut below)?;
        K::read(&self.pool, upper[0].0, upper[0].1, &mut above)?;
        let separator = K::separator(below.borrow(), above.borrow());
        if separator.borrow() <= low.borrow() || high.as_ref().is_some_and(|high| separator.borrow() >= high.borrow()) {
            // From then on the router would send keys elsewhere.
            let record = Off::<()>::from_link(upper[0].1.get()).map_or(0, Off::bytes);
            return Err(everleaf_pmem::Error::corrupt(record, "a record whose key lies beyond the range of its leaf").into());
        }
        let lower_skip = low.borrow().shared(separator.borrow());
        let upper_skip = separator.borrow().shared_up_to(high.as_ref().map(Borrow::borrow));
        // A damaged record is detected here, before anything has changed.
        let lower = self.rehead(skip, lower_skip, lower)?;
        let upper = self.rehead(skip, upper_skip, upper)?;
        let (right_number, right) = self.take();
        right.fill(upper_skip, &upper);
        leaf.fill(lower_skip, &lower);
        self.router.split(number, number, low.borrow(), separator.borrow(), right_number);
        self.leaf_count.add(1);
        self.splits.add(1);
        Ok(())
    }

    /// `entries`, whose heads leave out `from` bytes, with heads that leave out `to`.
    fn rehead(&self, from: usize, to: usize, entries: &[(u64, NonZeroU64)]) -> Result<Vec<(u64, NonZeroU64)>, Error> {
        let head = |head, value| if from == to { Ok(head) } else { K::rehead(&self.pool, to, head, value) };
        entries.iter().map(|&(old, value)| Ok((head(old, value)?, value))).collect()
    }

    /// Merges the leaf of `key` with the neighbour on a side, if that is worth it and no other thread is in the way. Returns whether it did.
    #[cold]
    fn merge(&self, key: &K, side: Direction) -> Result<bool, Restart> {
        let Some(pair) = self.router.neighbours(key, side)? else { return Ok(false) };
        let numbers = pair.leaves();
        let attempt = (|| {
            let [left, right] = [self.leaf(numbers[0])?, self.leaf(numbers[1])?];
            Ok::<_, Restart>((left, left.latch.try_lock()?, right, right.latch.try_lock()?))
        })();
        let Ok((left, left_lock, right, right_lock)) = attempt else {
            pair.release();
            return Err(Restart);
        };
        if !are_worth_merging(left.count(), right.count(), CAPACITY) {
            right_lock.release_unchanged();
            left_lock.release_unchanged();
            pair.release();
            return Ok(false);
        }
        let [Fences { low, .. }, Fences { high, .. }] = pair.fences();
        let high: Option<&K> = high.as_ref().map(Borrow::borrow);
        let skip = low.borrow().shared_up_to(high);
        let entries = [left, right].map(|leaf| self.rehead(leaf.skip(), skip, &leaf.entries()));
        let [Ok(mut entries), Ok(upper)] = entries else {
            // A damaged record: leave both as they are, a read will report it.
            pair.release();
            return Ok(false);
        };
        entries.extend(upper);
        left.fill(skip, &entries);
        pair.join(numbers[0], || {
            right_lock.release_obsolete();
            drop(left_lock);
        });
        self.leaf_count.add(-1);
        schedule::drain();
        self.numbers.give(numbers[1] as u32);
        Ok(true)
    }
}

impl<K: Key + ?Sized, M: Medium> OrderedIndex<K> for Tree<K, M> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        loop {
            let attempt = self.find(Target::At(key)).and_then(|(leaf, version, _)| {
                let found = leaf.find(&self.pool, key).map(|slot| leaf.value(slot.ok()?));
                leaf.latch.validate(version)?;
                Ok(found)
            });
            match attempt {
                Ok(found) => return found,
                Err(Restart) => schedule::spin(),
            }
        }
    }

    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        write.sets().map_or_else(|| self.take_key(key), |(value, when)| self.set(key, value, when))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let read = |from: &Bound<K::Owned>, entries: &mut Vec<Entry>| loop {
            let attempt = self.find(scan_target(from, direction)).and_then(|(leaf, version, route)| {
                entries.clear();
                entries.extend((0..leaf.count()).filter_map(|slot| Some(Entry { head: leaf.heads[slot].load(Relaxed), value: leaf.value(slot)? })));
                let fences = self.router.fences(&route)?;
                leaf.latch.validate(version)?;
                Ok(fences)
            });
            match attempt {
                Ok(fences) => return Ok(next_bound(fences, direction).into()),
                Err(Restart) => schedule::spin(),
            }
        };
        scan_leaves(&self.pool, from, direction, |entry| *entry, read, |_| {}, with_key(&self.pool, |entry| *entry, visit))
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, _fill: f64) -> Result<(), Error> {
        if self.keys.get() != 0 {
            return Err(Cause::NotEmpty { keys: self.keys.get() }.into());
        }
        // Collected first, so that an error leaves the index as it was.
        let entries = ascending::<K>(entries)?;
        entries.into_iter().try_for_each(|(key, value)| self.insert(key.borrow(), value).map(|_| ()))
    }

    fn check(&self) -> Result<Stats, Error> {
        let corrupt = |what| Error::from(everleaf_pmem::Error::corrupt(0, what));
        let mut routed = Vec::new();
        self.router.check(&mut |fences, leaf| routed.push((fences.low.clone(), fences.high.clone(), leaf))).map_err(corrupt)?;
        let mut keys = 0;
        for (low, high, number) in &routed {
            let leaf = self.leaf(*number).map_err(|Restart| corrupt("a leaf that does not exist"))?;
            let mut previous = None;
            for (head, value) in leaf.entries() {
                let mut key = K::Owned::default();
                K::read(&self.pool, head, value, &mut key)?;
                if key < *low || high.as_ref().is_some_and(|high| key >= *high) || previous.is_some_and(|previous| previous >= key) {
                    return Err(corrupt("a leaf with a key that does not belong there"));
                }
                previous = Some(key);
                keys += 1;
            }
        }
        let stats = self.stats();
        if (stats.keys, stats.leaves) != (keys, routed.len() as u64) {
            return Err(corrupt("counts that differ from what is there"));
        }
        Ok(stats)
    }

    fn blocks(&self, _visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        let leaves = self.leaf_count.get();
        let leaf_bytes = leaves * size_of::<Leaf>() as u64;
        Stats { keys: self.keys.get(), leaves, splits: self.splits.get(), leaf_bytes, depth: self.router.depth() + 1, ..Stats::default() }
    }
}
