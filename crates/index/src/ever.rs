//! Ever: leaves that hold only entries; everything that finds the entries is in DRAM.
//!
//! ```text
//!             router (DRAM): ranges of keys -> numbers of leaves            descriptors (DRAM): a line a leaf: latch and fingerprints
//! root block -> extent -> extent -> ... (PM): directory of { low fence, state } | leaves of entries { token, value }
//! ```
//!
//! Nothing in a leaf says which of its slots count. Its *range* does: **a slot counts if its value is not 0 and its key lies from the leaf's low fence to the
//! low fence of the next live leaf.** So an insert writes one line, once. A split writes the new leaf and nothing of the old one, whose moved entries no longer
//! count when the new leaf lives. `leaf.rs` describes the bytes of a leaf, `directory.rs` which leaves live.
//!
//! # Invariants
//!
//! 1. Of live leaves with equal low fences, the one with the highest generation counts. The lows of the leaves that count ascend, the first is the lowest key,
//!    and their ranges tile the key space.
//! 2. When the latch of a leaf is free, its fingerprints name exactly the slots that count, and each of those is durable. So no crash can take back what a
//!    reader has read between two equal versions of the latch, except what was written without a fence, for which the caller is responsible (`batch.rs`).
//! 3. A slot that does not count is written value first (0), then key, then value, in one line. Whatever prefix of that a crash leaves, an old value never
//!    stands beside a new key.
//! 4. When the latch is free, a slot with a key below the range holds 0, and so does one with a key beyond it if keys are in records: the range may later reach
//!    down, and the record may be freed and reused.
//!
//! # Protocol
//!
//! *Insert* into a leaf with room, 1 line and 1 fence. 1. Find the leaf, see in its fingerprints that the key is absent, and choose a slot. 2. Begin to append,
//! if no other thread has changed the leaf since. 3. Write the slot, flush, fence. A crash leaves the slot as it was, or with value 0, or the entry: the commit
//! point is the value. 4. Store the fingerprint, and end the append. Readers were not kept out, and see the entry only now, when it is durable.
//!
//! *Update* and *remove*, 1 line and 1 fence, under the latch. 1. Store the value, or 0: the commit point. Flush, fence. 2. Clear the fingerprint of a removed
//! key. If a fence waits for a device, step 1 is an append: the store is held back until it is durable ([`Medium::publish`]). So readers need not wait. They
//! see the old value, or the new one when no crash can take it back, or 0, which is equivalent to no fingerprint. Other threads write to the leaf only after
//! step 2, which appears to them and to readers as a change.
//!
//! *Split* of X, whose upper half from m on goes to N. It begins to append to X, so no other thread writes there, and readers continue:
//! 1. Write N, with the pending entry if that belongs there: all lines that are not known to be empty; flush, fence. N is dead: a crash forgets it.
//! 2. The directory entry of N: low := m, state := that of generation 1, flush, fence: the commit point. Before: X as it was. After: the moved entries count in
//!    N and no longer in X, where readers still find them: their slots there are unchanged.
//! 3. The router; the fingerprints of the moved entries of X := 0. Volatile, and under the latch: in this step alone readers of X wait, only for stores to
//!    DRAM. A reader that has found X before reads again.
//! 4. If keys are in records, the moved slots of X := 0, flush, fence. After a crash within this step, recovery does it. Other threads may already remove those
//!    keys from N: the records are not freed before this step is over, since the epoch is pinned from before step 3.
//! 5. Release X. An entry that belongs in X is inserted now. It may overwrite a moved slot, since step 2 is durable.
//!
//! *Merge* of X into the next leaf N, under one node of the router (see `are_worth_merging`). It begins to append to both leaves and to the node:
//! 1. Write the entries of X into vacant slots of N, flush, fence. Their keys are below the low of N, so they do not count there. A crash leaves some of them.
//!    They must be gone before N reaches down again, by then with other entries: the next thread that reads the leaf clears them (invariant 4).
//! 2. The directory entry of N: state := the generation of N, or that of X + 1 if that is higher; low := that of X; flush, fence. The commit point is the low.
//!    Before: X and N as they were. After: N stands for the range of both, since X, with an equal low, has the lower generation.
//! 3. The state of X := 0, flush, fence. X, which did not count any more, must be dead before its place is reused, and before N dies.
//! 4. The fingerprints of N; the router; the latch of X becomes obsolete, until the leaf is reused. Volatile, and under the latches.
//!
//! *Leaves are moved* so that extents become free (`relocate.rs`, `directory.rs`).
//!
//! *Several writes at once* share a fence, or leave it to the caller (`batch.rs`).
//!
//! *Bulk load* makes new extents, whose leaves all live, the first with the low and the next generation of the only existing leaf. One link of the topmost
//! extent is the commit point of all of them.
//!
//! *Recovery* reads the directory, decides between leaves with equal lows (the losers die, durably), sorts, and builds the router. Then several threads read
//! all leaves for their descriptors, and clear what invariant 4 says. Recovery repairs by the same stores as above, so a crash within it leaves one of the same
//! states. If neither keys nor values are in records, the index serves at once; leaves are read, and cleared, when they are touched, or in the background
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
use crate::record::Record;
use crate::scan::with_key;
use crate::selective::When;
use crate::selective::leaf::Placed;
use crate::selective::router::{GROUP, Olc, Router, Way};
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
        /// Link of the [image]; 0 while the index is open, and always 0 with integer keys.
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

/// What DRAM knows of the contents of leaves.
#[derive(Default)]
struct Known {
    /// By leaf number.
    descriptors: Descriptors,
    /// Number of keys in leaves that have been read.
    keys: Counter,
    /// Orders of leaves, and heads of their keys, if keys are in records.
    orders: Orders,
}

/// Why a thread comes to a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    /// To change an entry, or remove it.
    Change,
    /// To add a key, perhaps.
    Add,
}

/// The leaf of a key by a way that nobody has validated.
#[derive(Clone, Copy)]
struct Near<'a, const LINES: usize> {
    place: Place,
    way: Way<'a>,
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
}

/// A leaf, and the version at which the router knew it.
struct Reached<'a, const LINES: usize> {
    way: Way<'a>,
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
    version: u64,
}

/// The slot to search for an integer, and the version at which its fingerprint was there; no slot if no fingerprint is the key's.
struct Aim<'a, const LINES: usize> {
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
    version: u64,
    slot: Option<usize>,
}

impl<const LINES: usize> Aim<'_, LINES> {
    /// Prefetches the line of the slot.
    #[inline(always)]
    fn prefetch(&self) {
        if let Some(slot) = self.slot {
            probe::prefetch(self.leaf.line(slot));
        }
    }

    /// The value, if the slot holds the key and nothing has changed.
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

    /// The leaf at the end of a way.
    #[inline(always)]
    fn near<'a>(&'a self, place: Place, way: Way<'a>) -> Result<Near<'a, LINES>, Restart> {
        let (leaf, descriptor) = self.leaf(way.leaf)?;
        Ok(Near { place, way, leaf, descriptor })
    }

    /// Finds the leaf of a key, at a version at which the router knew it. `start` is the leaf as it was found before, if that has not been used up.
    #[inline(always)]
    fn reach<'a>(
        &'a self,
        wide: Option<Wide>,
        key: &K,
        place: Place,
        purpose: Purpose,
        start: &mut Option<Near<'a, LINES>>,
    ) -> Result<Reached<'a, LINES>, Restart> {
        let Near { way, leaf, descriptor, .. } = match start.take() {
            Some(near) => near,
            None => self.near(place, self.router.seek(wide, key)?)?,
        };
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

    /// What has been found, at its version, if no other thread is in the way.
    #[inline(always)]
    fn reached<'a>(Near { way, leaf, descriptor, .. }: Near<'a, LINES>) -> Result<Reached<'a, LINES>, Restart> {
        let version = descriptor.latch().try_read()?;
        way.validate()?;
        Ok(Reached { way, leaf, descriptor, version })
    }

    /// The slot that an integer is most likely in.
    #[inline(always)]
    fn aim<'a>(wide: Option<Wide>, place: Place, Reached { leaf, descriptor, version, .. }: Reached<'a, LINES>) -> Aim<'a, LINES> {
        Aim { leaf, descriptor, version, slot: descriptor.likely::<LINES>(wide, place) }
    }

    /// The leaf of an integer, if a shortcut leads there and no other thread is in the way. What begins so, and finds what it hopes for, takes so few
    /// instructions that the processor has several operations of a caller under way at once, each waiting for its own memory.
    #[inline(always)]
    fn dash<'a>(&'a self, wide: Option<Wide>, key: &K, place: Place) -> Option<Reached<'a, LINES>> {
        // Without vectors this gains nothing. A scheduler, which has none, must see it nonetheless.
        if !K::WHOLE || wide.is_none() && !schedule::is_scheduled() {
            return None;
        }
        let near = self.near(place, self.router.cut_short(wide, key)?).ok()?;
        probe::prefetch(near.leaf.home(place));
        Self::reached(near).ok()
    }

    /// Looks an integer up where it most likely is, or any key patiently.
    #[inline(always)]
    fn look_up(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let (wide, place) = (Wide::get(), Place::of::<LINES>(key.token()));
        if let Some(reached) = self.dash(wide, key, place) {
            let Reached { way, leaf, descriptor, .. } = reached;
            return match Self::aim(wide, place, reached).hit(place) {
                Ok(found) => Ok(found),
                Err(Restart) => self.look_up_patiently(wide, key, place, Some(Near { place, way, leaf, descriptor })),
            };
        }
        self.look_up_patiently(wide, key, place, None)
    }

    #[inline(never)]
    fn look_up_patiently<'a>(&'a self, wide: Option<Wide>, key: &K, place: Place, mut start: Option<Near<'a, LINES>>) -> Result<Option<NonZeroU64>, Error> {
        until_done(|| self.try_look_up(wide, key, place, &mut start))
    }

    #[inline(always)]
    fn try_look_up<'a>(
        &'a self,
        wide: Option<Wide>,
        key: &K,
        place: Place,
        start: &mut Option<Near<'a, LINES>>,
    ) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let Reached { leaf, descriptor, version, .. } = self.reach(wide, key, place, Purpose::Read, start)?;
        let found = descriptor.find(wide, &self.pool, leaf, key, place);
        descriptor.latch().validate(version)?;
        Ok(found.map(|found| found.map(|(_, value)| value)))
    }

    /// Finds the leaves of several keys, and prefetches the memory on the ways there. A hint: a leaf may be missing, or out of date.
    #[inline(always)]
    fn approach<'a>(&'a self, keys: &[&K]) -> [Option<Near<'a, LINES>>; GROUP] {
        let mut nears = [None; GROUP];
        self.router.find_many(keys, |at, way| {
            nears[at] = self.near(Place::of::<LINES>(keys[at].token()), way).ok().inspect(|near| {
                probe::prefetch(near.descriptor);
                probe::prefetch(near.leaf.home(near.place));
            });
        });
        nears
    }

    /// Prefetches the slots, or records, of several keys whose descriptors are under way.
    #[inline(always)]
    fn approach_entries(&self, nears: &[Option<Near<'_, LINES>>]) {
        if schedule::is_scheduled() {
            // Nothing that a schedule could find.
            return;
        }
        let wide = Wide::get();
        for Near { place, leaf, descriptor, .. } in nears.iter().flatten() {
            let Some(slot) = descriptor.likely::<LINES>(wide, *place) else { continue };
            match K::WHOLE {
                true => probe::prefetch(leaf.line(slot)),
                false => leaf.value(slot).into_iter().for_each(|value| Record::prefetch(&self.pool, value.get())),
            }
        }
    }

    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        let (wide, place) = (Wide::get(), Place::of::<LINES>(key.token()));
        if let Some(reached) = self.dash(wide, key, place)
            && let Ok(found) = reached.descriptor.find(wide, &self.pool, reached.leaf, key, place)
            && let Ok(true) = self.set_in(wide, &reached, found, key, place, (value, when))
        {
            return Ok(found.map(|(_, old)| old));
        }
        self.set_patiently(wide, key, place, value, when)
    }

    #[inline(never)]
    fn set_patiently(&self, wide: Option<Wide>, key: &K, place: Place, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        until_done(|| self.try_set(wide, key, place, value, when))
    }

    #[inline(always)]
    fn try_set(&self, wide: Option<Wide>, key: &K, place: Place, value: NonZeroU64, when: When) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let purpose = if when == When::Present { Purpose::Change } else { Purpose::Add };
        let reached = self.reach(wide, key, place, purpose, &mut None)?;
        let found = match reached.descriptor.find(wide, &self.pool, reached.leaf, key, place) {
            Ok(found) => found,
            Err(error) => {
                reached.descriptor.latch().validate(reached.version)?;
                return Ok(Err(error));
            }
        };
        match self.set_in(wide, &reached, found, key, place, (value, when))? {
            true => Ok(Ok(found.map(|(_, old)| old))),
            false => self.split(key, value, reached),
        }
    }

    /// Sets a key in a leaf, if that has not changed. `found`: its slot, if it is there. Returns false, and has done nothing, if there is no room.
    #[inline(always)]
    fn set_in(
        &self,
        wide: Option<Wide>,
        reached: &Reached<'_, LINES>,
        found: Option<(usize, NonZeroU64)>,
        key: &K,
        place: Place,
        (value, when): (NonZeroU64, When),
    ) -> Result<bool, Restart> {
        let Reached { way, leaf, descriptor, version } = reached;
        match found {
            Some((slot, _)) if when != When::Absent => {
                let lock = self.replace(reached, slot, Some(value))?;
                self.keep(way.leaf, || lock.change());
            }
            None if when != When::Present => {
                let Some(slot) = descriptor.room::<LINES>(wide, place, 0) else { return Ok(false) };
                if !K::WHOLE {
                    // The order of the leaf is not prefetched before, as some callers mostly set keys that are present.
                    self.known.orders.prefetch(way.leaf);
                }
                let appending = descriptor.latch().append_from(*version)?;
                leaf.write(&self.pool, slot, Slot { token: place.token, value });
                self.pool.persist(leaf.line(slot));
                self.show(way.leaf, descriptor, || appending.change(), slot, key, place);
                self.known.keys.add(1);
            }
            _ => descriptor.latch().validate(*version)?,
        }
        Ok(true)
    }

    /// Makes a key count that was written to a slot of a leaf to which no other thread writes.
    #[inline(always)]
    fn show(&self, number: Number, descriptor: &Descriptor, change: impl FnOnce() -> Change, slot: usize, key: &K, place: Place) {
        if !K::WHOLE {
            self.known.orders.add(number, change(), slot, key);
        }
        descriptor.set(slot, place.fingerprint_at(slot));
    }

    /// Makes a key whose value is 0 by now count no longer, in a latched leaf.
    #[inline(always)]
    fn hide(&self, number: Number, descriptor: &Descriptor, change: impl FnOnce() -> Change, slot: usize) {
        if !K::WHOLE {
            self.known.orders.remove(number, change(), slot);
        }
        descriptor.set(slot, 0);
    }

    /// Notes that a change of a latched leaf is one of a value alone.
    #[inline(always)]
    fn keep(&self, number: Number, change: impl FnOnce() -> Change) {
        if !K::WHOLE {
            self.known.orders.carry(number, change());
        }
    }

    /// Durably stores another value, or none, in a slot of a leaf, if that has not changed: step 1 of an update. Returns the latch.
    #[inline(always)]
    fn replace<'a>(&self, reached: &Reached<'a, LINES>, slot: usize, value: Option<NonZeroU64>) -> Result<Locked<'a>, Restart> {
        if self.pool.medium().holds_back() {
            return self.replace_later(reached, slot, value);
        }
        let lock = reached.descriptor.latch().lock_from(reached.version)?;
        self.store(reached.leaf, slot, value);
        self.pool.fence();
        Ok(lock)
    }

    /// The same if the store waits for a device.
    #[cold]
    fn replace_later<'a>(&self, reached: &Reached<'a, LINES>, slot: usize, value: Option<NonZeroU64>) -> Result<Locked<'a>, Restart> {
        let appending = reached.descriptor.latch().append_from(reached.version)?;
        self.pool.publish(|| self.store(reached.leaf, slot, value));
        Ok(appending.lock())
    }

    /// Stores another value, or none, in a slot. The caller fences.
    #[inline(always)]
    fn store(&self, leaf: &Leaf<LINES>, slot: usize, value: Option<NonZeroU64>) {
        leaf.set_value(&self.pool, slot, value);
        self.pool.flush(leaf.line(slot));
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let (wide, place) = (Wide::get(), Place::of::<LINES>(key.token()));
        if let Some(reached) = self.dash(wide, key, place)
            && let Ok(found) = reached.descriptor.find(wide, &self.pool, reached.leaf, key, place)
            && self.take_from(wide, &reached, found, key).is_ok()
        {
            return Ok(found.map(|(_, old)| old));
        }
        self.take_patiently(wide, key, place)
    }

    #[inline(never)]
    fn take_patiently(&self, wide: Option<Wide>, key: &K, place: Place) -> Result<Option<NonZeroU64>, Error> {
        until_done(|| self.try_take(wide, key, place))
    }

    #[inline(always)]
    fn try_take(&self, wide: Option<Wide>, key: &K, place: Place) -> Result<Result<Option<NonZeroU64>, Error>, Restart> {
        let reached = self.reach(wide, key, place, Purpose::Change, &mut None)?;
        let found = reached.descriptor.find(wide, &self.pool, reached.leaf, key, place);
        self.take_from(wide, &reached, found.as_ref().ok().copied().flatten(), key)?;
        Ok(found.map(|found| found.map(|(_, old)| old)))
    }

    /// Removes a key from a leaf, if that has not changed. `found`: its slot, if it is there.
    #[inline(always)]
    fn take_from(&self, wide: Option<Wide>, reached: &Reached<'_, LINES>, found: Option<(usize, NonZeroU64)>, key: &K) -> Result<(), Restart> {
        let Some((slot, _)) = found else { return reached.descriptor.latch().validate(reached.version) };
        // Counted before the fingerprint is cleared: a vector load of a word just stored has to wait until the store has left the processor, which is behind
        // the fence.
        let left = reached.descriptor.count::<LINES>(wide).saturating_sub(1);
        let is_sparse = is_getting_sparse(left, Leaf::<LINES>::MERGED);
        if is_sparse {
            self.approach_beside(reached);
        }
        let lock = self.replace(reached, slot, None)?;
        self.hide(reached.way.leaf, reached.descriptor, || lock.change(), slot);
        drop(lock);
        self.known.keys.add(-1);
        if is_sparse {
            self.merge_if_worth_it(wide, key, reached, left);
        }
        Ok(())
    }

    /// Prefetches what is read behind the fence of a removal, if it leaves few entries. A hint, as all that is found by the way then: it may be out of date.
    #[inline(never)]
    fn approach_beside(&self, reached: &Reached<'_, LINES>) {
        self.descriptors_beside(&reached.way.route()).into_iter().flatten().for_each(probe::prefetch);
    }

    /// Merges a leaf that has this many entries left with one beside it. Most attempts are not worth it, and need not latch anything to find that out. A leaf
    /// alone under its node may get a neighbour by the attempt.
    #[inline(never)]
    fn merge_if_worth_it(&self, wide: Option<Wide>, key: &K, reached: &Reached<'_, LINES>, left: usize) {
        let beside = self.descriptors_beside(&reached.way.route());
        let is_alone = beside.iter().all(Option::is_none);
        let is_worth_it = |beside: &Descriptor| are_worth_merging(left, beside.count::<LINES>(wide), Leaf::<LINES>::MERGED);
        let [ahead, behind] = beside.map(|beside| is_alone || beside.is_some_and(is_worth_it));
        if ahead || behind {
            merge_sparse(left, |side| match side {
                Direction::Forward if !ahead => Ok(false),
                Direction::Reverse if !behind => Ok(false),
                _ => self.merge(key, side),
            });
        }
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> OrderedIndex<K> for Ever<K, M, LINES, LEAVES, FANOUT> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.look_up(key)
    }

    fn get_many(&self, keys: &[&K], values: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let wide = Wide::get();
        for keys in keys.chunks(GROUP) {
            let (nears, mut aims) = (self.approach(keys), [const { None }; GROUP]);
            if K::WHOLE {
                for (aim, near) in aims.iter_mut().zip(&nears) {
                    *aim = near.and_then(|near| Some(Self::aim(wide, near.place, Self::reached(near).ok()?)));
                    aim.iter().for_each(Aim::prefetch);
                }
            } else {
                self.approach_entries(&nears);
            }
            for ((key, near), aim) in keys.iter().zip(&nears).zip(&aims) {
                values.push(match aim.as_ref().map(|aim| aim.hit(Place::of::<LINES>(key.token()))) {
                    Some(Ok(found)) => found,
                    _ => self.look_up_patiently(wide, key, near.map_or_else(|| Place::of::<LINES>(key.token()), |near| near.place), *near)?,
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
            // Nothing can be left out: keys are in the leaves.
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
