//! Ever: leaves that hold nothing but entries, and everything that finds them in DRAM.
//!
//! ```text
//!             router (DRAM): ranges of keys -> numbers of leaves            descriptors (DRAM): a line a leaf: latch and fingerprints
//! root block -> extent -> extent -> ... (PM): directory of { low fence, state } | leaves of entries { token, value }
//! ```
//!
//! Nothing in a leaf says which of its slots count. What does is its *range*: **a slot counts if its value is not 0 and its key lies from the leaf's low fence
//! to the low fence of the next live leaf.** So an insert writes one line, once; a split writes the new leaf and nothing of the old one, whose entries that
//! have moved no longer count when the new leaf lives. See `leaf.rs` for the bytes of a leaf, and `directory.rs` for which leaves live.
//!
//! # Invariants
//! 1. of live leaves with equal low fences the one of the highest generation counts; the lows of those that count ascend, the first is the lowest key, and
//!    their ranges tile the key space;
//! 2. when the latch of a leaf is free, its fingerprints name exactly the slots that count, and each of those is durable: so what a reader has read between two
//!    equal versions of the latch cannot be taken back by a crash; but for what was written without a fence, which is the caller's (`batch.rs`);
//! 3. a slot that counts for nothing is written value first (0), then key, then value, in one line: whatever prefix of that a crash leaves, an old value never
//!    comes to stand beside a new key;
//! 4. a slot with a key below the range, or, where the key is in a record, beyond it, holds 0 when the latch is free: the range may come to reach down, and the
//!    record may be freed and used again.
//!
//! # Protocol
//! *Insert* into a leaf with room, 1 line and 1 fence. 1. Find the leaf; see in its fingerprints that the key is absent, and choose a slot. 2. Begin to append,
//! if nobody else has changed the leaf since. 3. Write the slot, flush, fence. A crash leaves the slot as it was, or with value 0, or the entry: the commit
//! point is the value. 4. Store the fingerprint, and end the append. Readers have not been kept out, and see the entry only now, when it is durable.
//!
//! *Update* and *remove*, 1 line and 1 fence, under the latch. 1. Store the value, or 0: the commit point. Flush, fence. 2. Clear the fingerprint of what is
//! gone. Where a fence waits for a device, step 1 is an append: what is stored is held back until it is durable ([`Medium::publish`]), so readers, who need not
//! wait then, see the old value, or the new one when no crash takes it back; or 0, which is as good as no fingerprint. Others write to the leaf only after step
//! 2, which they and readers see as a change.
//!
//! *Split* of X, whose upper half from m on goes to N. It begins to append to X, so that nobody else writes there, and readers go on:
//! 1. write N, with the pending entry if that belongs there: all lines that are not known to be empty, flush, fence. N is dead: a crash forgets it.
//! 2. the directory entry of N: low := m, state := that of generation 1, flush, fence: the commit point. Before: X as it was. After: what has moved counts in
//!    N, and no longer in X, where readers still find it: its slots there are as they were, and the same.
//! 3. the router; the fingerprints of X that have moved := 0. Volatile, and under the latch: it is the only part in which readers of X wait, for nothing but
//!    stores to DRAM. Who has found X before, reads again.
//! 4. where keys are in records, the slots of X that have moved := 0, flush, fence. After a crash within, recovery does it. Others may already remove those
//!    keys from N: the records are not freed before this step is over, since the epoch is pinned from before step 3.
//! 5. let go. An entry that belongs in X is inserted now, over what has moved at most after step 2 is durable.
//!
//! *Merge* of X into the next leaf N, under one node of the router (see `are_worth_merging`). It begins to append to both leaves and to the node:
//! 1. write the entries of X into vacant slots of N, flush, fence. Their keys are below the low of N: they count there for nothing. A crash leaves some of
//!    them, which must not be there when N reaches down again, by then with other entries: whoever reads the leaf next clears them (invariant 4).
//! 2. the directory entry of N: state := the generation of N, or that of X + 1 if that is higher; low := that of X; flush, fence: the commit point, which is
//!    the low. Before: X and N as they were. After: N stands for the range of both, since X, with an equal low, has the lower generation.
//! 3. the state of X := 0, flush, fence. X, which was as good as dead before, must be dead before its place is used again, and before N is.
//! 4. fingerprints of N; the router; the latch of X says obsolete for ever, or until the leaf is used again. Volatile, and under the latches.
//!
//! *Leaves are moved*, so that extents become free (`relocate.rs`, `directory.rs`).
//!
//! *Several writes at once* share a fence, or leave it to the caller (`batch.rs`).
//!
//! *Bulk load*: new extents, whose leaves all live, the first with the low and the next generation of the only leaf there was; one link of the topmost extent
//! is the commit point of all of them.
//!
//! *Recovery* reads the directory, decides between leaves with equal lows (the losers die, durably), sorts, and builds the router. Then all leaves are read, by
//! several threads, for their descriptors, and what invariant 4 says is cleared. It repairs by the same stores as above, so a crash within is one of the same
//! states. Where neither keys nor values are in records, the index serves at once, and leaves are read, and cleared, when they are touched, or behind its back
//! (`behind.rs`).

mod batch;
mod behind;
mod directory;
mod image;
mod leaf;
mod open;
mod order;
mod relocate;
mod scan;
mod structure;

use crate::batch::{Fencing, at_once};
use crate::counter::Counter;
use crate::latch::{Change, Locked, Restart, until_done};
use crate::scan::with_key;
use crate::selective::When;
use crate::selective::leaf::Placed;
use crate::selective::router::{GROUP, Olc, Route, Router, Way};
use crate::selective::structure::{are_worth_merging, is_getting_sparse, merge_sparse};
use crate::{Direction, Error, Key, OrderedIndex, Relocated, Stats, Visit, VisitValues, Write};
use behind::Behind;
use directory::{Descriptors, Directory, Number, handle};
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Medium, Off, Pool, Word, probe, resident, schedule};
use leaf::{Descriptor, Leaf, Place, Slot};
use order::Orders;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;

resident! {
    /// The root block.
    struct Root {
        /// Link of the first extent.
        first: Word,
        /// Link of the [image]; 0 while the index is open, and of one with integers always.
        image: Word,
        reserved: [Word; 6],
    }
}

/// See the module documentation. Leaves of `LINES` lines, `LEAVES` of them in an extent.
pub(crate) struct Ever<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> {
    pool: Arc<Pool<M>>,
    root: Off<Root>,
    directory: Directory<LINES, LEAVES>,
    known: Arc<Known>,
    router: Olc<K, FANOUT>,
    leaves: Counter,
    splits: Counter,
    behind: Behind<K>,
}

/// What DRAM knows of what is in the leaves.
#[derive(Default)]
struct Known {
    /// By number of the leaf.
    descriptors: Descriptors,
    /// Number of keys in leaves that have been read.
    keys: Counter,
    /// Orders of leaves, and heads of their keys, where those are in records.
    orders: Orders,
}

/// What a leaf is come to for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    /// To change what is there, or take it away.
    Change,
    /// To add a key, perhaps.
    Add,
}

/// A leaf, and the version at which the router knew it.
struct Reached<'a, const LINES: usize> {
    way: Way<'a>,
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
    version: u64,
}

/// A slot in which an integer is looked for, and the version at which its fingerprint was there; none if no fingerprint is the key's.
struct Aim<'a, const LINES: usize> {
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
    version: u64,
    slot: Option<usize>,
}

impl<const LINES: usize> Aim<'_, LINES> {
    /// Asks for the line of the slot.
    #[inline(always)]
    fn prefetch(&self) {
        if let Some(slot) = self.slot {
            probe::prefetch(self.leaf.line(slot));
        }
    }

    /// The value, if the slot holds the key, and nothing has changed.
    #[inline(always)]
    fn hit(&self, place: Place) -> Result<Option<NonZeroU64>, Restart> {
        let found = self.slot.map(|slot| self.leaf.read(slot).filter(|found| found.token == place.token).ok_or(Restart)).transpose()?;
        self.descriptor.latch().validate(self.version)?;
        Ok(found.map(|found| found.value))
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    fn root(&self) -> &Root {
        self.pool.get(self.root).expect("the root block was checked when the index was opened")
    }

    /// A leaf by a number that may be out of date.
    #[inline(always)]
    fn leaf(&self, number: Number) -> Result<(&Leaf<LINES>, &Descriptor), Restart> {
        let leaf = Directory::<LINES, LEAVES>::leaf(&self.pool, number).ok_or(Restart)?;
        Ok((leaf, self.known.descriptors.get(handle(number))))
    }

    /// Finds the leaf of a key, at a version at which the router knew it. `start` is a way there that was found before, if it has not
    /// been used up.
    #[inline(always)]
    fn reach(&self, wide: Option<Wide>, key: &K, place: Place, purpose: Purpose, start: &mut Option<Route>) -> Result<Reached<'_, LINES>, Restart> {
        let way = match start.take() {
            Some(route) => self.router.along(&route),
            None => self.router.seek(wide, key)?,
        };
        let (leaf, descriptor) = self.leaf(way.leaf)?;
        probe::prefetch(leaf.home(place));
        if !K::WHOLE {
            match purpose {
                Purpose::Add => self.known.orders.prefetch_head(way.leaf, place.home()),
                Purpose::Change => self.known.orders.prefetch_order(way.leaf),
                Purpose::Read => {}
            }
        }
        let version = if purpose == Purpose::Read { descriptor.latch().read() } else { descriptor.latch().read_idle() };
        way.validate()?;
        let version = version.map_err(|Restart| self.wake(way.leaf))?;
        Ok(Reached { way, leaf, descriptor, version })
    }

    /// The slot that an integer is most likely in, where nobody is in the way.
    #[inline(always)]
    fn aim(&self, wide: Option<Wide>, place: Place, way: &Way<'_>) -> Result<Aim<'_, LINES>, Restart> {
        let (leaf, descriptor) = self.leaf(way.leaf)?;
        probe::prefetch(leaf.home(place));
        let version = descriptor.latch().try_read()?;
        way.validate()?;
        Ok(Aim { leaf, descriptor, version, slot: descriptor.likely::<LINES>(wide, place) })
    }

    /// Looks an integer up, where a shortcut leads to it, nobody is in the way, and the likeliest slot holds it. These are so few instructions that the
    /// processor has several lookups of a caller under way at once, each waiting for its own memory.
    #[inline(always)]
    fn look_up(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let wide = Wide::get();
        // Without vectors it gains nothing; a scheduler, which has none, is to see it nonetheless.
        if K::WHOLE
            && (wide.is_some() || schedule::is_scheduled())
            && let Some(way) = self.router.cut_short(wide, key)
            && let place = Place::of::<LINES>(key.token())
            && let Ok(found) = self.aim(wide, place, &way).and_then(|aim| aim.hit(place))
        {
            return Ok(found);
        }
        self.look_up_patiently(key, None)
    }

    #[inline(never)]
    fn look_up_patiently(&self, key: &K, mut start: Option<Route>) -> Result<Option<NonZeroU64>, Error> {
        let (wide, place) = (Wide::get(), Place::of::<LINES>(key.token()));
        until_done(|| self.try_look_up(wide, key, place, &mut start))
    }

    #[inline(always)]
    fn try_look_up(&self, wide: Option<Wide>, key: &K, place: Place, start: &mut Option<Route>) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let Reached { leaf, descriptor, version, .. } = self.reach(wide, key, place, Purpose::Read, start)?;
        let found = descriptor.find(wide, &self.pool, leaf, key, place);
        descriptor.latch().validate(version)?;
        Ok(found.map(|found| found.map(|(_, value)| value)))
    }

    /// Finds the ways to several keys, and asks for all the memory on them. Nothing is promised: a way may be missing, or out of date.
    fn approach(&self, keys: &[&K], routes: &mut [Option<Route>]) {
        self.router.find_many(keys, routes);
        let leaf_of = |route: &Option<Route>| route.as_ref().and_then(|route| self.leaf(route.leaf).ok());
        for (key, route) in keys.iter().zip(&*routes) {
            if let Some((leaf, descriptor)) = leaf_of(route) {
                probe::prefetch(descriptor);
                probe::prefetch(leaf.home(Place::of::<LINES>(key.token())));
            }
        }
        if K::WHOLE {
            return;
        }
        for (key, route) in keys.iter().zip(&*routes) {
            if let Some((leaf, descriptor)) = leaf_of(route) {
                descriptor.prefetch_record(&self.pool, leaf, Place::of::<LINES>(key.token()));
            }
        }
    }

    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        let wide = Wide::get();
        let place = Place::of::<LINES>(key.token());
        until_done(|| self.try_set(wide, key, place, value, when))
    }

    #[inline(always)]
    fn try_set(&self, wide: Option<Wide>, key: &K, place: Place, value: NonZeroU64, when: When) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let purpose = if when == When::Present { Purpose::Change } else { Purpose::Add };
        let reached = self.reach(wide, key, place, purpose, &mut None)?;
        let Reached { leaf, descriptor, version, .. } = reached;
        let found = match descriptor.find(wide, &self.pool, leaf, key, place) {
            Ok(found) => found,
            Err(error) => {
                descriptor.latch().validate(version)?;
                return Ok(Err(error));
            }
        };
        let old = found.map(|(_, old)| old);
        match found {
            Some((slot, _)) if when != When::Absent => {
                let lock = self.replace(leaf, descriptor, version, slot, Some(value))?;
                self.keep(reached.way.leaf, || lock.change());
            }
            None if when != When::Present => {
                let Some(slot) = descriptor.room::<LINES>(wide, place, 0) else {
                    return self.split(key, value, reached);
                };
                if !K::WHOLE {
                    // Where it belongs among the others is not asked for before, as most keys of some callers are there.
                    self.known.orders.prefetch(reached.way.leaf);
                }
                let appending = descriptor.latch().append_from(version)?;
                leaf.write(&self.pool, slot, Slot { token: place.token, value });
                self.pool.persist(leaf.line(slot));
                self.show(reached.way.leaf, descriptor, || appending.change(), slot, key, place);
                self.known.keys.add(1);
            }
            _ => descriptor.latch().validate(version)?,
        }
        Ok(Ok(old))
    }

    /// Lets a key count that has been written to a slot of a leaf to which nobody else writes.
    #[inline(always)]
    fn show(&self, number: Number, descriptor: &Descriptor, change: impl FnOnce() -> Change, slot: usize, key: &K, place: Place) {
        if !K::WHOLE {
            self.known.orders.add(number, change(), slot, key);
        }
        descriptor.set(slot, place.fingerprint_at(slot));
    }

    /// Lets a key count no longer whose value has been made 0, in a leaf that is latched.
    #[inline(always)]
    fn hide(&self, number: Number, descriptor: &Descriptor, change: impl FnOnce() -> Change, slot: usize) {
        if !K::WHOLE {
            self.known.orders.remove(number, change(), slot);
        }
        descriptor.set(slot, 0);
    }

    /// Notes that a change of a leaf, which is latched, is one of a value alone.
    #[inline(always)]
    fn keep(&self, number: Number, change: impl FnOnce() -> Change) {
        if !K::WHOLE {
            self.known.orders.carry(number, change());
        }
    }

    /// Stores another value, or none, in a slot of a leaf that nobody has changed since `version`, durably: step 1 of an update. The latch.
    #[inline(always)]
    fn replace<'a>(&self, leaf: &Leaf<LINES>, descriptor: &'a Descriptor, version: u64, slot: usize, value: Option<NonZeroU64>) -> Result<Locked<'a>, Restart> {
        let store = || {
            leaf.set_value(&self.pool, slot, value);
            self.pool.flush(leaf.line(slot));
        };
        if self.pool.medium().holds_back() {
            let appending = descriptor.latch().append_from(version)?;
            self.pool.publish(store);
            return Ok(appending.lock());
        }
        let lock = descriptor.latch().lock_from(version)?;
        store();
        self.pool.fence();
        Ok(lock)
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let (wide, place) = (Wide::get(), Place::of::<LINES>(key.token()));
        until_done(|| self.try_take(wide, key, place))
    }

    #[inline(always)]
    fn try_take(&self, wide: Option<Wide>, key: &K, place: Place) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let Reached { way, leaf, descriptor, version } = self.reach(wide, key, place, Purpose::Change, &mut None)?;
        let (slot, old) = match descriptor.find(wide, &self.pool, leaf, key, place) {
            Ok(Some(found)) => found,
            absent => {
                descriptor.latch().validate(version)?;
                return Ok(absent.map(|_| None));
            }
        };
        // Counted before the fingerprint is cleared: vectors cannot read a word that has just been stored before the store has left the processor, which is
        // behind the fence.
        let left = (descriptor.occupied::<LINES>(wide).count_ones() as usize).saturating_sub(1);
        let is_sparse = is_getting_sparse(left, Leaf::<LINES>::MERGED);
        let beside = if is_sparse { self.descriptor_beside(&way.route()) } else { None };
        // It is looked at behind the fence.
        beside.into_iter().for_each(probe::prefetch);
        let lock = self.replace(leaf, descriptor, version, slot, None)?;
        self.hide(way.leaf, descriptor, || lock.change(), slot);
        drop(lock);
        self.known.keys.add(-1);
        // Most attempts are not worth it, and need not latch anything to learn that.
        let is_worth_it = |beside: &Descriptor| are_worth_merging(left, beside.occupied::<LINES>(wide).count_ones() as usize, Leaf::<LINES>::MERGED);
        if is_sparse && beside.is_none_or(is_worth_it) {
            merge_sparse(left, || self.merge(key));
        }
        Ok(Ok(Some(old)))
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> OrderedIndex<K> for Ever<K, M, LINES, LEAVES, FANOUT> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.look_up(key)
    }

    fn get_many(&self, keys: &[&K], values: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let wide = Wide::get();
        for keys in keys.chunks(GROUP) {
            let mut routes = [const { None }; GROUP];
            self.approach(keys, &mut routes[..keys.len()]);
            let mut aims = [const { None }; GROUP];
            if K::WHOLE {
                for ((aim, key), route) in aims.iter_mut().zip(keys).zip(&routes) {
                    let place = Place::of::<LINES>(key.token());
                    *aim = route.as_ref().and_then(|route| self.aim(wide, place, &self.router.along(route)).ok());
                    aim.iter().for_each(Aim::prefetch);
                }
            }
            for ((key, route), aim) in keys.iter().zip(routes).zip(&aims) {
                values.push(match aim.as_ref().map(|aim| aim.hit(Place::of::<LINES>(key.token()))) {
                    Some(Ok(found)) => found,
                    _ => self.look_up_patiently(key, route)?,
                });
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

    fn apply_behind(&self, fence: &dyn Fn(), writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        if !self.pool.medium().holds_back() {
            // Leaves are held for one fence, not for two.
            fence();
        }
        self.apply(writes, returned)
    }

    fn apply_unfenced(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        writes.chunks(GROUP).try_for_each(|writes| self.write_many(writes, Fencing::Callers, returned))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        self.scan_entries(from, direction, with_key(&self.pool, |placed: &Placed| placed.entry, visit))
    }

    fn scan_values(&self, from: Bound<&K>, direction: Direction, visit: &mut VisitValues<'_>) -> Result<(), Error> {
        if K::WHOLE {
            // There is nothing to be left out: keys are in the leaves.
            return self.scan(from, direction, &mut |_, value| visit(&[value], 1));
        }
        self.scan_entries(from, direction, |values, count, _| Ok(visit(values, count)))
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        self.load(entries, fill)
    }

    fn check(&self) -> Result<Stats, Error> {
        self.check_all()
    }

    fn close(&self) -> Result<(), Error> {
        self.leave_image()
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.visit_blocks(visit)
    }

    fn relocate(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        self.relocate_leaves(from, leaves_max, is_leaving)
    }

    fn gather(&self) -> Result<usize, Error> {
        self.directory.gather(&self.pool, &self.root().first)
    }

    fn is_spare(&self, block: u64) -> bool {
        self.directory.is_spare(block)
    }

    fn stats(&self) -> Stats {
        self.read_rest();
        let leaves = self.leaves.get();
        Stats {
            keys: self.known.keys.get(),
            leaves,
            splits: self.splits.get(),
            leaf_bytes: leaves * size_of::<Leaf<LINES>>() as u64,
            depth: self.router.depth() + 1,
            ..Stats::default()
        }
    }
}
