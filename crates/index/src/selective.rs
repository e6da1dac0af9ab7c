//! The tree of the selective-persistence family: a volatile router over persistent leaves.
//!
//! ```text
//!                 router (DRAM): ranges of keys -> leaves               latches (DRAM): one a leaf
//!      root block: first -> leaf -> leaf -> leaf -> ... (PM)            low fences of byte strings: one record a leaf (PM)
//!                  logs -> log -> log -> ... (PM), of leaves that need them to be divided
//!                  waypoints -> links of leaves here and there in the list (PM): hints
//! ```
//!
//! A paper contributes a [`LeafLayout`] (bytes, write order, recovery of one leaf) and perhaps a [`Router`]. The tree owns routing, latching, the order of
//! splits and merges, scans, recovery.
//!
//! Invariants:
//! 1. The persistent list from the root block holds every leaf once. The ranges `[low, next leaf's low)` ascend and tile the key space; the first low is the
//!    lowest key.
//! 2. A leaf in the list is durable as a whole. Every leaf that the router knows is in the list, or latched.
//! 3. The range of a leaf changes only under its latch. The latch of a leaf that was taken out of the list stays *obsolete* until its place is reused.
//! 4. A leaf changes only under its latch, and the latch is free only when everything in the leaf is durable. So no crash can take back what a reader has read
//!    between two equal versions of the latch (durable linearizability), and no thread depends on what a crash could take back. The exception is what was
//!    written for a caller that fences behind it (`batch.rs`).
//!
//! How leaves split and merge is the layout's choice among the [`structure`]s: they are replaced by new ones (Isle-Tree, NV-Tree), or divided in place
//! (LB+-Tree, FPTree, wB+-Tree).
//!
//! Recovery walks the list, from many of its leaves at once (`waypoints.rs`), then several threads repair the leaves, each on its own. The router is built from
//! the low fences or, where leaves keep none, from the keys that are there. All reads of the list are bounded by the number of leaves that the pool could hold,
//! so a cycle ends in an error. If a tree was closed (`image.rs`) before its pool, opening it reads no leaf.

pub mod leaf;
pub mod log;
pub mod router;
pub mod structure;

mod batch;
mod image;
mod open;
mod relocate;
mod scan;
mod waypoints;

use crate::batch::{Fencing, STAGED_MAX, at_once};
use crate::counter::Counter;
use crate::latch::{Latch, Latches, Locked, OUTRUN, Patience, Restart, until_done};
use crate::{Direction, Error, Key, OrderedIndex, Rebuilds, Relocated, Stats, Visit, Write};
use everleaf_pmem::{Medium, Off, Pool, Word, probe, resident};
use leaf::{Change, Entry, LeafLayout, Pending, Written};
use log::Logs;
use router::{Fences, GROUP, Neighbours, Router, Target, Way};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

pub use leaf::{FpLeaf, LbLeaf};
pub(crate) use leaf::{IsleLeaf, NvLeaf, WbLeaf};
pub(crate) use router::AnyRouter;
pub use router::{Olc, Packed};
use structure::{Room, Structure, merge_sparse};
use waypoints::Waypoints;

resident! {
    /// The root block of a tree.
    struct TreeRoot {
        /// Link of the first leaf.
        first: Word,
        /// Link of the first [log](log); 0 until a leaf needs one.
        logs: Word,
        /// Link of the [image]; 0 while the tree is open.
        image: Word,
        /// Link of the [waypoints]; 0 in a tree from before they existed.
        waypoints: Word,
        reserved: [Word; 4],
    }
}

/// See the module documentation.
pub struct Selective<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> {
    pool: Arc<Pool<M>>,
    root: Off<TreeRoot>,
    waypoints: Waypoints,
    latches: Latches<L>,
    logs: Logs,
    router: R,
    keys: Counter,
    leaves: Counter,
    splits: Counter,
    /// See [`Rebuilds::from_leaves`].
    from_leaves: Duration,
    _key: PhantomData<fn(&K, L)>,
}

/// The latch of the leaf whose link is to change; `None` for the link in the root block, which belongs to the thread that has latched the first leaf.
struct Before<'a>(Option<Locked<'a>>);

impl Before<'_> {
    fn release_unchanged(self) {
        if let Some(lock) = self.0 {
            lock.release_unchanged();
        }
    }
}

/// Whether a write acts on a key that is absent, present, or both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Absent,
    Present,
    Always,
}

impl When {
    /// Whether the write acts on a key, given whether the key is there.
    #[inline(always)]
    pub(crate) fn concerns(self, is_there: bool) -> bool {
        match self {
            Self::Absent => !is_there,
            Self::Present => is_there,
            Self::Always => true,
        }
    }
}

impl Write {
    /// The value it sets, and when; `None` for a removal.
    #[inline(always)]
    pub(crate) fn sets(self) -> Option<(NonZeroU64, When)> {
        match self {
            Self::Insert(value) => Some((value, When::Absent)),
            Self::Upsert(value) => Some((value, When::Always)),
            Self::Update(value) => Some((value, When::Present)),
            Self::Remove => None,
        }
    }
}

/// A leaf and the version at which it was found.
struct Reached<'a, L> {
    way: Way<'a>,
    leaf: &'a L,
    latch: &'a Latch,
    version: u64,
}

/// The slot and value of a key in its leaf; and the leaf, latched, if the write acts on it.
type Sought<'a, L> = (Option<(usize, NonZeroU64)>, Option<Held<'a, L>>);

/// A latched leaf.
pub struct Held<'a, L> {
    off: u64,
    leaf: &'a L,
    lock: Locked<'a>,
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// The memory of a leaf that may be out of date, and its latch.
    #[inline(always)]
    fn leaf(&self, off: u64) -> Result<(&L, &Latch), Restart> {
        let latch = self.latches.of(off)?;
        let leaf = self.pool.get(Off::<L>::new(off)).ok_or(Restart)?;
        Ok((leaf, latch))
    }

    /// Finds the leaf of `target`, at a version at which the router knew it. `start` is a way there that was found before, if it has not been used up.
    #[inline(always)]
    fn reach<'a>(&'a self, target: Target<'_, K>, start: &mut Option<Way<'a>>) -> Result<Reached<'a, L>, Restart> {
        let way = match start.take() {
            Some(way) => way,
            None => self.router.way(target)?,
        };
        let (leaf, latch) = self.leaf(way.leaf)?;
        probe::prefetch_lines(leaf);
        let version = latch.read()?;
        way.validate()?;
        Ok(Reached { way, leaf, latch, version })
    }

    /// Reads the leaf of `target` until no other thread has disturbed it. What `read` concludes from a disturbed leaf, errors included, is discarded.
    #[inline(always)]
    fn read<'a, T>(&'a self, target: Target<'_, K>, mut start: Option<Way<'a>>, mut read: impl FnMut(&L, &Way<'_>) -> Result<T, Restart>) -> T {
        let mut attempts = 0;
        until_done(|| {
            let Reached { way, leaf, latch, version } = self.reach(target, &mut start)?;
            attempts += 1;
            if attempts <= OUTRUN {
                let result = read(leaf, &way)?;
                latch.validate(version)?;
                return Ok(result);
            }
            // Writers have been faster again and again.
            let lock = latch.lock_from(version)?;
            let result = read(leaf, &way);
            lock.release_unchanged();
            result
        })
    }

    #[inline(always)]
    fn look_up<'a>(&'a self, key: &K, start: Option<Way<'a>>) -> Result<Option<NonZeroU64>, Error> {
        if start.is_none()
            && let Some(found) = self.router.transaction(|| self.look_up_within(key))
        {
            return found;
        }
        let found = self.read(Target::At(key), start, |leaf, _| Ok(leaf.find(&self.pool, key)))?;
        Ok(found.map(|(_, value)| value))
    }

    /// Looks a key up within a transaction.
    #[inline(always)]
    fn look_up_within(&self, key: &K) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let (leaf, latch) = self.leaf(self.router.find_within(Target::At(key))?.leaf)?;
        latch.try_read()?;
        Ok(leaf.find(&self.pool, key).map(|found| found.map(|(_, value)| value)))
    }

    /// Latches the leaf of `key` within a transaction.
    #[inline(always)]
    fn hold_within(&self, key: &K) -> Result<Held<'_, L>, Restart> {
        let off = self.router.find_within(Target::At(key))?.leaf;
        let (leaf, latch) = self.leaf(off)?;
        Ok(Held { off, leaf, lock: latch.lock_within()? })
    }

    /// Latches the leaf of `key`.
    fn hold(&self, key: &K) -> Held<'_, L> {
        until_done(|| {
            let Reached { way, leaf, latch, version } = self.reach(Target::At(key), &mut None)?;
            Ok(Held { off: way.leaf, leaf, lock: latch.lock_from(version)? })
        })
    }

    /// Finds `key`, and latches its leaf if `concerns` holds for whether the key is there. The leaf is searched first, since what precedes the locked
    /// instruction can overlap with the fence of the previous operation. The result stands, since the latch is taken at the version that was read before.
    #[inline(always)]
    fn seek(&self, key: &K, concerns: impl Fn(bool) -> bool) -> Result<Result<Sought<'_, L>, Error>, Restart> {
        if let Some(held) = self.router.transaction(|| self.hold_within(key)) {
            return Ok(self.seek_within(key, held, concerns));
        }
        let Reached { way, leaf, latch, version } = self.reach(Target::At(key), &mut None)?;
        let found = leaf.find(&self.pool, key);
        if found.as_ref().is_ok_and(|found| concerns(found.is_some())) {
            let held = Held { off: way.leaf, leaf, lock: latch.lock_from(version)? };
            return Ok(found.map(|found| (found, Some(held))));
        }
        latch.validate(version)?;
        Ok(found.map(|found| (found, None)))
    }

    /// The same in a leaf that a transaction has latched.
    #[inline(never)]
    fn seek_within<'a>(&self, key: &K, held: Held<'a, L>, concerns: impl Fn(bool) -> bool) -> Result<Sought<'a, L>, Error> {
        match held.leaf.find(&self.pool, key) {
            Ok(found) if concerns(found.is_some()) => Ok((found, Some(held))),
            found => {
                held.lock.release_unchanged();
                found.map(|found| (found, None))
            }
        }
    }

    /// Finds the ways to several keys, and prefetches all the memory on them. A hint: a way may be missing, or out of date.
    fn approach<'a>(&'a self, keys: &[&K]) -> [Option<Way<'a>>; GROUP] {
        let mut ways = [None; GROUP];
        self.router.find_many(keys, |at, way| {
            if let Ok((leaf, latch)) = self.leaf(way.leaf) {
                probe::prefetch(latch);
                probe::prefetch_lines(leaf);
            }
            ways[at] = Some(way);
        });
        for (key, way) in keys.iter().zip(&ways) {
            if let Some(way) = way
                && let Ok((leaf, _)) = self.leaf(way.leaf)
            {
                leaf.prefetch(&self.pool, key);
            }
        }
        ways
    }

    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        let mut patience = Patience::default();
        loop {
            let (found, held) = until_done(|| self.seek(key, |is_there| when.concerns(is_there)))?;
            let old = found.map(|(_, old)| old);
            let Some(held) = held else { return Ok(old) };
            let (written, change) = match found {
                Some((slot, _)) => (held.leaf.update(&self.pool, slot, value)?, Change::Update(value)),
                None => (held.leaf.insert(&self.pool, key, value)?, Change::Insert(value)),
            };
            if written == Written::Done {
                drop(held.lock);
            } else if !self.make_room(Pending { key, change }, held, &mut patience)? {
                continue;
            }
            if old.is_none() {
                self.keys.add(1);
            }
            return Ok(old);
        }
    }

    /// Makes room for a change. Returns whether the change was made on the way; if not, it must be retried.
    #[cold]
    fn make_room(&self, pending: Pending<'_, K>, held: Held<'_, L>, patience: &mut Patience) -> Result<bool, Error> {
        match L::Structure::make_room(self, pending, held)? {
            Room::Made => Ok(false),
            Room::Applied => Ok(true),
            Room::Prevented => {
                // The holder of the leaf before may be changing it too, or may be suspended.
                patience.wait();
                Ok(false)
            }
        }
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let mut patience = Patience::default();
        loop {
            let (Some((slot, old)), Some(mut held)) = until_done(|| self.seek(key, |is_there| is_there))? else { return Ok(None) };
            let left = held.leaf.count().saturating_sub(1);
            let is_sparse = L::Structure::is_sparse(left, L::CAPACITY);
            if is_sparse {
                // The merge looks at them, behind the fence.
                for (beside, latch) in self.router.approach(key).into_iter().flatten().filter_map(|beside| self.leaf(beside).ok()) {
                    probe::prefetch(latch);
                    probe::prefetch_lines(beside);
                }
            }
            if left == 0 {
                held = match L::Structure::remove_last(self, key, held) {
                    Ok(()) => {
                        self.keys.add(-1);
                        self.compact_if_sparse();
                        return Ok(Some(old));
                    }
                    Err(held) => held,
                };
            }
            let written = held.leaf.remove(&self.pool, slot)?;
            if written == Written::Done {
                drop(held.lock);
            } else if !self.make_room(Pending { key, change: Change::Remove }, held, &mut patience)? {
                continue;
            }
            self.keys.add(-1);
            if is_sparse {
                merge_sparse(left, |side| L::Structure::merge(self, key, side));
                self.compact_if_sparse();
            }
            return Ok(Some(old));
        }
    }

    fn compact_if_sparse(&self) {
        // The thread that has compacted the router merges leaves that have neighbours now, for all.
        if self.router.is_sparse() && self.router.compact() {
            self.merge_empty();
        }
    }

    /// The word that links the leaf whose low fence is `low`, latched. The caller keeps that leaf in its place.
    fn hold_predecessor(&self, low: &K) -> Result<(Before<'_>, &Word), Restart> {
        if *low == *K::LOWEST {
            return Ok((Before(None), &self.root().first));
        }
        let way = self.router.way(Target::Below(low))?;
        let (before, latch) = self.leaf(way.leaf)?;
        // From a version at which the router knew the leaf: an older way may lead to a block that is being made a leaf again, and is not in the list yet.
        let version = latch.try_read()?;
        way.validate()?;
        Ok((Before(Some(latch.lock_from(version)?)), before.next()))
    }

    /// The word that links the leaf behind `before`, latched. The caller keeps `before` in its place.
    fn hold_next_of(&self, before: u64) -> Result<(Before<'_>, &Word), Restart> {
        let (before, latch) = self.leaf(before)?;
        Ok((Before(Some(latch.try_lock()?)), before.next()))
    }

    /// Checks that the list agrees with the router, in which `leaf` is the one that `slot` links.
    fn check_link(&self, slot: &Word, leaf: u64) -> Result<(), Error> {
        if slot.get() == Off::<L>::new(leaf).link() {
            Ok(())
        } else {
            Err(everleaf_pmem::Error::corrupt(leaf, "a leaf that is not linked by the one before").into())
        }
    }

    fn root(&self) -> &TreeRoot {
        self.pool.get(self.root).expect("the root block was checked when the tree was opened")
    }

    /// Finds a separator for the halves of the entries that are, or are to be, in the latched leaf of `key`. `entries` ascend.
    fn halve(&self, key: &K, leaf: &L, entries: Vec<Entry>) -> Result<Halved<K>, Error> {
        if entries.len() < 2 {
            return Err(self.damage(leaf, "a full leaf with fewer entries than it counts"));
        }
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let (fences, separator) = self.separate(key, leaf, &lower[lower.len() - 1], &upper[0])?;
        Ok(Halved { fences, entries, separator })
    }

    /// The range of the leaf of `key`, which is latched, and a separator of two neighbours among its entries.
    fn separate(&self, key: &K, leaf: &L, below: &Entry, above: &Entry) -> Result<(Fences<K>, K::Owned), Error> {
        // The leaf is latched, so its fences stand.
        let fences = self.router.fences_of(key);
        let (below, above) = (leaf::read::<K, M>(&self.pool, below)?, leaf::read::<K, M>(&self.pool, above)?);
        if below >= above {
            return Err(self.damage(leaf, "a leaf with the same key twice"));
        }
        let separator = K::separator(below.borrow(), above.borrow());
        if separator <= fences.low || fences.high.as_ref().is_some_and(|high| separator >= *high) {
            return Err(self.damage(leaf, "a leaf with keys beyond its range"));
        }
        Ok((fences, separator))
    }

    /// Checks a latched leaf that is about to be given up, or divided: otherwise its damage would be copied elsewhere, and never be found. The check is that of
    /// the opening, which reads few records, and stores nothing if nothing is wrong.
    fn examine(&self, leaf: &L) -> Result<(), Error> {
        leaf.recover(&self.pool)?;
        if K::WHOLE || !L::Structure::FENCED {
            return Ok(());
        }
        // The opening does not check the bytes that all heads leave out, and a copy would leave out others.
        let mut entries = Vec::with_capacity(L::CAPACITY);
        leaf.entries(&mut entries);
        match entries.first() {
            Some(Entry { head, value }) if K::rehead(&self.pool, leaf.skip(), *head, *value)? != *head => {
                Err(self.damage(leaf, "a leaf whose heads leave out other bytes than it says"))
            }
            _ => Ok(()),
        }
    }

    fn damage(&self, leaf: &L, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(self.pool.offset_of(leaf).bytes(), what).into()
    }

    /// Latches a leaf, if no other thread is in the way.
    fn try_hold(&self, off: u64) -> Result<Held<'_, L>, Restart> {
        let (leaf, latch) = self.leaf(off)?;
        Ok(Held { off, leaf, lock: latch.try_lock()? })
    }

    /// Latches two neighbours, if no other thread is in the way.
    fn hold_both(&self, leaves: [u64; 2]) -> Result<[Held<'_, L>; 2], Restart> {
        let left = self.try_hold(leaves[0])?;
        match self.try_hold(leaves[1]) {
            Ok(right) => Ok([left, right]),
            Err(Restart) => {
                left.lock.release_unchanged();
                Err(Restart)
            }
        }
    }

    /// The word that links the first of two neighbours, latched.
    fn hold_before(&self, pair: &R::Neighbours<'_>) -> Result<(Before<'_>, &Word), Restart> {
        match pair.before() {
            Some(before) => self.hold_next_of(before),
            None => self.hold_predecessor(pair.fences()[0].low.borrow()),
        }
    }
}

/// The contents of two leaves, split at the median.
struct Halved<K: Key + ?Sized> {
    fences: Fences<K>,
    /// In the order of their keys; the upper half begins in the middle.
    entries: Vec<Entry>,
    separator: K::Owned,
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> OrderedIndex<K> for Selective<K, L, R, M> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.look_up(key, None)
    }

    fn get_many(&self, keys: &[&K], values: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        for keys in keys.chunks(GROUP) {
            for (key, way) in keys.iter().zip(self.approach(keys)) {
                values.push(self.look_up(key, way)?);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        write.sets().map_or_else(|| self.take(key), |(value, when)| self.set(key, value, when))
    }

    fn apply(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        writes.chunks(at_once(self.pool.medium())).try_for_each(|writes| self.write_many(writes, Fencing::Own, returned))
    }

    fn apply_unfenced(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        writes.chunks(STAGED_MAX).try_for_each(|writes| self.write_many(writes, Fencing::Callers, returned))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        self.scan_leaves(from, direction, visit)
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        self.load(entries, fill)
    }

    fn check(&self) -> Result<Stats, Error> {
        self.check_all()
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.visit_blocks(visit)
    }

    fn relocate(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        self.relocate_leaves(from, leaves_max, is_leaving)
    }

    fn close(&self) -> Result<(), Error> {
        self.leave_image()
    }

    fn stats(&self) -> Stats {
        let leaves = self.leaves.get();
        let leaf_bytes = leaves * size_of::<L>() as u64;
        Stats {
            keys: self.keys.get(),
            leaves,
            splits: self.splits.get(),
            leaf_bytes,
            depth: self.router.depth() + 1,
            rebuilds: Rebuilds { from_leaves: self.from_leaves, ..self.router.rebuilds() },
            transactions: self.router.transactions(),
        }
    }
}
