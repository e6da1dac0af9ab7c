//! The tree of the selective-persistence family: a volatile router over persistent leaves.
//!
//! ```text
//!                 router (DRAM): ranges of keys -> leaves               latches (DRAM): one a leaf
//!      root block: first -> leaf -> leaf -> leaf -> ... (PM)            low fences of byte strings: one record a leaf (PM)
//! ```
//!
//! A paper contributes a [`LeafLayout`] (bytes, write order, recovery of one leaf) and perhaps a [`Router`]. The tree owns routing, latching, split and merge
//! order, scans, recovery.
//!
//! Invariants:
//! 1. the persistent list from the root block holds every leaf once; the ranges `[low, next leaf's low)` ascend and tile the key space, the first low is the
//!    lowest key;
//! 2. a leaf in the list is durable as a whole; every leaf that the router knows is in the list, or latched;
//! 3. the range, the low fence and the skip of a leaf never change: a split or merge replaces leaves by new ones, and the old ones' latches say *obsolete* for
//!    ever;
//! 4. a leaf changes only under its latch, and the latch is free only when everything in the leaf is durable: so what a reader has read between two equal
//!    versions of the latch cannot be taken back by a crash (durable linearizability), and nobody depends on it who could be told otherwise.
//!
//! Split of X at the median, with P the leaf before it (or the root block, which has no latch: its link belongs to who has latched the leaf that it leads to):
//! 1. latch X, then P (try: on failure let go and start again; latches are taken leftwards only by trying, so there is no deadlock); check that P is not
//!    obsolete and that P's next is X.
//! 2. build A and B with the halves, A.next = B, B.next = X.next, and the fence of B; flush all, fence. Nobody can reach them: a crash forgets them.
//! 3. P.next := A, persist: the commit point. Before: the list holds X; after: A and B, with the same entries.
//! 4. router: X -> A, and B from the median on; X obsolete. Volatile; recovery builds it from the list. A pending key goes the ordinary way.
//! 5. X is retired: unlinked durably in step 3, it may be used again.
//!
//! Merge of A and B, which have room in one leaf (see `are_worth_merging`), under one node of the router: 1. lock the node, latch P, A and B, all by trying; 2.
//! build C with both, C.next = B.next, flush, fence; 3. P.next := C, persist: the commit point; 4. router: A and B -> C; A and B obsolete; 5. both and B's
//! fence are retired.
//!
//! Recovery walks the list, repairs each leaf on its own, and builds the router from the low fences. All reads of the list are bounded by the number of leaves
//! that the pool could hold, so a cycle ends in an error.

pub mod leaf;
pub mod router;

mod open;
mod scan;

use crate::arena::Arena;
use crate::counter::Counter;
use crate::latch::{Latch, Locked, Restart};
use crate::{Direction, Error, Key, OrderedIndex, Stats, Visit};
use everleaf_pmem::{Durable, Medium, Off, Pm, Pool, Word, probe, resident, schedule};
use leaf::{Birth, Entry, LeafLayout};
use router::{Fences, GROUP, Neighbours, Router, Target};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;

pub use leaf::IsleLeaf;
pub use router::Olc;
pub(crate) use scan::{is_beyond, next_bound, scan_target};

/// Isle-Tree with leaves of 64 (LINES + 1) bytes and the default router.
pub type IsleTree<K, M, const LINES: usize = 7> = Selective<K, IsleLeaf<LINES>, Olc<K, 64>, M>;

resident! {
    /// The root block of a tree.
    struct TreeRoot {
        /// Link of the first leaf.
        first: Word,
        reserved: [Word; 7],
    }
}

/// See the module documentation.
pub struct Selective<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> {
    pool: Arc<Pool<M>>,
    root: Off<TreeRoot>,
    latches: Latches<L>,
    router: R,
    keys: Counter,
    leaves: Counter,
    _key: PhantomData<fn(&K, L)>,
}

/// One latch for each place where a leaf can lie: blocks of equal size that do not overlap have different quotients.
struct Latches<L> {
    latches: Arena<Latch>,
    _leaf: PhantomData<fn(&L)>,
}

impl<L> Latches<L> {
    fn new() -> Self {
        Self { latches: Arena::new(64), _leaf: PhantomData }
    }

    /// The latch of a leaf that may be out of date.
    #[inline(always)]
    fn of(&self, leaf: u64) -> Result<&Latch, Restart> {
        self.latches.get(leaf as usize / size_of::<L>()).ok_or(Restart)
    }

    /// Makes the latches of new leaves ready, of all or none.
    ///
    /// # Errors
    /// One of them is a leaf already: a pool whose list of free blocks is forged. With one latch for two, they would be waited for without an end.
    fn begin(&self, leaves: &[u64]) -> Result<(), Error> {
        let latch = |leaf: u64| self.latches.get_or_make(leaf as usize / size_of::<L>());
        match leaves.iter().position(|&leaf| !latch(leaf).revive()) {
            None => Ok(()),
            Some(at) => {
                leaves[..at].iter().for_each(|&leaf| latch(leaf).give_up());
                Err(everleaf_pmem::Error::corrupt(leaves[at], "a leaf that the allocator takes for free").into())
            }
        }
    }
}

/// The latch of the leaf whose link is to change; none for the link in the root block, which belongs to whoever has latched the first leaf.
struct Before<'a>(Option<Locked<'a>>);

impl Before<'_> {
    fn release_unchanged(self) {
        if let Some(lock) = self.0 {
            lock.release_unchanged();
        }
    }
}

/// What a write is to do about a key that is there, or is not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Absent,
    Present,
    Always,
}

/// A leaf and the version at which it was found.
struct Reached<'a, L> {
    route: router::Route,
    leaf: &'a L,
    latch: &'a Latch,
    version: u64,
}

/// A latched leaf.
struct Held<'a, L> {
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
    fn reach(&self, target: Target<'_, K>, start: &mut Option<router::Route>) -> Result<Reached<'_, L>, Restart> {
        let route = start.take().map_or_else(|| self.router.find(target), Ok)?;
        let (leaf, latch) = self.leaf(route.leaf)?;
        probe::prefetch_lines(leaf);
        let version = latch.read()?;
        self.router.validate(&route)?;
        Ok(Reached { route, leaf, latch, version })
    }

    /// Reads the leaf of `target` until nobody has disturbed. What `read` concludes from a disturbed leaf, errors included, is thrown away.
    #[inline(always)]
    fn read<T>(&self, target: Target<'_, K>, mut start: Option<router::Route>, mut read: impl FnMut(&L, &router::Route) -> Result<T, Restart>) -> T {
        loop {
            let attempt = self.reach(target, &mut start).and_then(|reached| {
                let result = read(reached.leaf, &reached.route)?;
                reached.latch.validate(reached.version)?;
                Ok(result)
            });
            match attempt {
                Ok(result) => return result,
                Err(Restart) => schedule::spin(),
            }
        }
    }

    #[inline(always)]
    fn look_up(&self, key: &K, start: Option<router::Route>) -> Result<Option<NonZeroU64>, Error> {
        let found = self.read(Target::At(key), start, |leaf, _| Ok(leaf.find(&self.pool, key)))?;
        Ok(found.map(|(_, value)| value))
    }

    /// Latches the leaf of `key`.
    #[inline(always)]
    fn hold(&self, key: &K, mut start: Option<router::Route>) -> Held<'_, L> {
        loop {
            let attempt = self
                .reach(Target::At(key), &mut start)
                .and_then(|Reached { route, leaf, latch, version }| Ok(Held { off: route.leaf, leaf, lock: latch.lock_from(version)? }));
            match attempt {
                Ok(held) => return held,
                Err(Restart) => schedule::spin(),
            }
        }
    }

    /// Finds the ways to several keys, and asks for all the memory on them. Nothing is promised: a way may be missing, or out of date.
    fn approach(&self, keys: &[&K], routes: &mut [Option<router::Route>]) {
        self.router.find_many(keys, routes);
        for route in routes.iter().flatten() {
            if let Ok((leaf, latch)) = self.leaf(route.leaf) {
                probe::prefetch(latch);
                probe::prefetch_lines(leaf);
            }
        }
        for (key, route) in keys.iter().zip(routes) {
            if let Some(route) = route
                && let Ok((leaf, _)) = self.leaf(route.leaf)
            {
                leaf.prefetch(&self.pool, key);
            }
        }
    }

    #[inline(always)]
    fn set(&self, key: &K, value: NonZeroU64, when: When, mut start: Option<router::Route>) -> Result<Option<NonZeroU64>, Error> {
        loop {
            let held = self.hold(key, start.take());
            let found = match held.leaf.find(&self.pool, key) {
                Ok(found) => found,
                Err(error) => {
                    held.lock.release_unchanged();
                    return Err(error);
                }
            };
            if let Some((slot, old)) = found {
                if when == When::Absent {
                    held.lock.release_unchanged();
                } else {
                    held.leaf.update(&self.pool, slot, value);
                }
                return Ok(Some(old));
            }
            if when == When::Present {
                held.lock.release_unchanged();
                return Ok(None);
            }
            if held.leaf.count() < L::CAPACITY {
                held.leaf.insert(&self.pool, key, value)?;
                drop(held.lock);
                self.keys.add(1);
                return Ok(None);
            }
            match self.split(key, held)? {
                Ok(()) => {}
                // Who has the leaf before may be splitting it too, or may have been put to sleep.
                Err(Restart) => schedule::rest(),
            }
        }
    }

    /// Runs a write unless the pool refuses writes, and acknowledges it only if its fences have done what they say.
    #[inline(always)]
    fn acknowledged<T>(&self, write: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.pool.writable()?;
        let result = write()?;
        self.pool.writable()?;
        Ok(result)
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let held = self.hold(key, None);
        let (slot, old) = match held.leaf.find(&self.pool, key) {
            Ok(Some(found)) => found,
            absent => {
                held.lock.release_unchanged();
                return absent.map(|_| None);
            }
        };
        held.leaf.remove(&self.pool, slot)?;
        let count = held.leaf.count();
        drop(held.lock);
        self.keys.add(-1);
        // Tried when a leaf gets under half full, and now and then below.
        let half = L::CAPACITY / 2;
        if count + 1 == half || count < half && count.is_multiple_of(4) {
            // Somebody in the way is no reason to wait.
            let _ = self.merge(key);
        }
        Ok(Some(old))
    }

    /// The word that links the leaf whose low fence is `low`, latched. The caller keeps that leaf in its place.
    fn hold_predecessor(&self, low: &K) -> Result<(Before<'_>, &Word), Restart> {
        if *low == *K::LOWEST {
            return Ok((Before(None), &self.root().first));
        }
        let route = self.router.find(Target::Below(low))?;
        let (before, latch) = self.leaf(route.leaf)?;
        // From a version at which the router knew the leaf: an older route may lead to a block that is being made a leaf again, and is not in the list yet.
        let version = latch.try_read()?;
        self.router.validate(&route)?;
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

    fn fences(&self, key: &K) -> Fences<K> {
        loop {
            if let Ok(fences) = self.router.find(Target::At(key)).and_then(|route| self.router.fences(&route)) {
                return fences;
            }
            schedule::spin();
        }
    }

    /// Splits the full leaf of `key`. The inner result says whether somebody was in the way.
    #[cold]
    fn split(&self, key: &K, held: Held<'_, L>) -> Result<Result<(), Restart>, Error> {
        let Held { off, leaf, lock } = held;
        // The leaf is latched, so its fences stand.
        let Fences { low, high } = self.fences(key);
        let low: &K = low.borrow();
        let Ok((before, slot)) = self.hold_predecessor(low) else {
            lock.release_unchanged();
            return Ok(Err(Restart));
        };
        let built = self.check_link(slot, off).and_then(|()| self.build_halves(leaf, low, high.as_ref().map(Borrow::borrow)));
        let Halves { left, right, separator } = match built {
            Ok(halves) => halves,
            Err(error) => {
                before.release_unchanged();
                lock.release_unchanged();
                return Err(error);
            }
        };
        let right = right.bytes();
        // persist-equivalent(fence drop): to one thread, whose insert fences before it returns. Others write to the new leaves as soon as the router knows
        // them.
        let left = self.pool.link(slot, left).bytes();
        drop(before);
        self.router.split(off, left, low, separator.borrow(), right);
        lock.release_obsolete();
        self.leaves.add(1);
        self.pool.retire(Off::<L>::new(off), &self.pool.pin());
        Ok(Ok(()))
    }

    /// Builds both halves of a leaf, durable but not linked; the left one links the right one.
    fn build_halves<'p>(&'p self, leaf: &L, low: &K, high: Option<&K>) -> Result<Halves<'p, K, L, M>, Error> {
        let mut entries = Vec::with_capacity(L::CAPACITY);
        leaf.entries(&mut entries);
        leaf::sort::<K, M>(&self.pool, &mut entries)?;
        let damaged = |what| everleaf_pmem::Error::corrupt(self.pool.offset_of(leaf).bytes(), what);
        if entries.len() != L::CAPACITY {
            return Err(damaged("a full leaf with fewer entries than it counts").into());
        }
        let (lower, upper) = entries.split_at(entries.len() / 2);
        let (mut below, mut above) = (K::Owned::default(), K::Owned::default());
        let (last, first) = (lower[lower.len() - 1], upper[0]);
        K::read(&self.pool, last.head, last.value, &mut below)?;
        K::read(&self.pool, first.head, first.value, &mut above)?;
        let separator = K::separator(below.borrow(), above.borrow());
        if separator.borrow() <= low || high.is_some_and(|high| separator.borrow() >= high) {
            return Err(damaged("a leaf with keys beyond its range").into());
        }
        let (right_low, fence) = separator.borrow().fence(&self.pool)?;
        let (left, right) = (self.pool.alloc::<L>()?, self.pool.alloc::<L>()?);
        self.build(&right, leaf.skip(), upper, right_low, leaf.next().get(), separator.borrow(), high)?;
        self.build(&left, leaf.skip(), lower, leaf.low(), right.off().link(), low, Some(separator.borrow()))?;
        let (left, right, fence) = self.pool.fence_all((left.flush(), right.flush(), fence.map(|fence| fence.flush())));
        // The last that can fail: what is begun is linked.
        self.latches.begin(&[left.off().bytes(), right.off().bytes()])?;
        fence.map(Durable::release);
        Ok(Halves { left, right: right.release(), separator })
    }

    /// Writes a new leaf with entries whose heads leave out `skip` bytes.
    #[expect(clippy::too_many_arguments, reason = "a leaf is born with all of this, once")]
    fn build(&self, leaf: &L, skip: usize, entries: &[Entry], low: u64, next: u64, from: &K, to: Option<&K>) -> Result<(), Error> {
        let shared = to.map_or(0, |to| from.shared(to));
        // A head of eight bytes has some to spare: reading every record again is worth it only when the heads reach much further.
        let new_skip = if shared >= skip + HEAD_GAIN { shared } else { skip };
        let mut entries = entries.to_vec();
        rehead::<K, M>(&self.pool, skip, new_skip, &mut entries)?;
        leaf.build(&self.pool, &Birth { next, low, skip: new_skip }, &entries);
        Ok(())
    }

    /// Merges the leaf of `key` with a neighbour, if that is worth it and nobody is in the way. Nothing is owed: a later removal tries again.
    #[cold]
    fn merge(&self, key: &K) -> Result<(), Restart> {
        let Some(pair) = self.router.neighbours(key)? else { return Ok(()) };
        let leaves = pair.leaves();
        let [left_fences, right_fences] = pair.fences();
        let taken = (|| {
            let (before, slot) = match pair.before() {
                Some(before) => self.hold_next_of(before)?,
                None => self.hold_predecessor(left_fences.low.borrow())?,
            };
            let (left, latch) = self.leaf(leaves[0])?;
            let left_lock = match latch.try_lock() {
                Ok(lock) => lock,
                Err(Restart) => {
                    before.release_unchanged();
                    return Err(Restart);
                }
            };
            let (right, latch) = self.leaf(leaves[1])?;
            match latch.try_lock() {
                Ok(right_lock) => Ok((before, slot, left, left_lock, right, right_lock)),
                Err(Restart) => {
                    left_lock.release_unchanged();
                    before.release_unchanged();
                    Err(Restart)
                }
            }
        })();
        let Ok((before, slot, left, left_lock, right, right_lock)) = taken else {
            pair.release();
            return Err(Restart);
        };
        let high = right_fences.high.as_ref().map(Borrow::borrow);
        let joined = self.check_link(slot, leaves[0]).and_then(|()| self.build_joined(left, right, left_fences.low.borrow(), high));
        let Ok(Some(joined)) = joined else {
            // Not worth it, or no space, or damage that a read will report.
            right_lock.release_unchanged();
            left_lock.release_unchanged();
            before.release_unchanged();
            pair.release();
            return Ok(());
        };
        let fence = K::read_fence(&self.pool, right.low());
        let joined = self.pool.link(slot, joined).bytes();
        drop(before);
        pair.join(joined);
        left_lock.release_obsolete();
        right_lock.release_obsolete();
        self.leaves.add(-1);
        let guard = self.pool.pin();
        for leaf in leaves {
            self.pool.retire(Off::<L>::new(leaf), &guard);
        }
        if let Ok((_, Some((fence, _)))) = fence {
            self.pool.retire(fence, &guard);
        }
        Ok(())
    }

    fn build_joined<'p>(&'p self, left: &L, right: &L, low: &K, high: Option<&K>) -> Result<Option<Durable<'p, L, M>>, Error> {
        if !are_worth_merging(left.count(), right.count(), L::CAPACITY) {
            return Ok(None);
        }
        let skip = left.skip().min(right.skip()).min(high.map_or(0, |high| low.shared(high)));
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
        let joined = self.pool.seal(joined);
        self.latches.begin(&[joined.off().bytes()])?;
        Ok(Some(joined))
    }
}

/// Whether leaves of so many entries become one: with room for a quarter more, so that it is not split at once; or because one is empty, whatever the other
/// holds, lest a queue, which is filled at one end and drained at the other, leave all its leaves behind.
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

/// Both halves of a split leaf. The right one is durable, and linked by the left one.
struct Halves<'p, K: Key + ?Sized, L: LeafLayout<K>, M: Medium> {
    left: Durable<'p, L, M>,
    right: Off<L>,
    separator: K::Owned,
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> OrderedIndex<K> for Selective<K, L, R, M> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.look_up(key, None)
    }

    fn get_many(&self, keys: &[&K], values: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        for keys in keys.chunks(GROUP) {
            let mut routes = [const { None }; GROUP];
            self.approach(keys, &mut routes[..keys.len()]);
            for (key, route) in keys.iter().zip(routes) {
                values.push(self.look_up(key, route)?);
            }
        }
        Ok(())
    }

    fn insert(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        self.acknowledged(|| self.set(key, value, When::Absent, None))
    }

    fn upsert(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        self.acknowledged(|| self.set(key, value, When::Always, None))
    }

    fn upsert_many(&self, pairs: &[(&K, NonZeroU64)], replaced: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        for pairs in pairs.chunks(GROUP) {
            let (mut keys, mut routes) = ([K::LOWEST; GROUP], [const { None }; GROUP]);
            keys.iter_mut().zip(pairs).for_each(|(to, (key, _))| *to = key);
            self.approach(&keys[..pairs.len()], &mut routes[..pairs.len()]);
            for ((key, value), route) in pairs.iter().zip(routes) {
                replaced.push(self.acknowledged(|| self.set(key, *value, When::Always, route))?);
            }
        }
        Ok(())
    }

    fn update(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        self.acknowledged(|| self.set(key, value, When::Present, None))
    }

    fn remove(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.acknowledged(|| self.take(key))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        self.scan_leaves(from, direction, visit)
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>) -> Result<(), Error> {
        self.acknowledged(|| self.load(entries))
    }

    fn check(&self) -> Result<Stats, Error> {
        self.check_all()
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.visit_blocks(visit)
    }

    fn stats(&self) -> Stats {
        let leaves = self.leaves.get();
        Stats { keys: self.keys.get(), leaves, leaf_bytes: leaves * size_of::<L>() as u64, depth: self.router.depth() + 1 }
    }
}
