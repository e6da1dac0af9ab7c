//! FAIR: a B+-tree whose nodes are all persistent, and which is usable after a crash at any store (D. Hwang, W.-H. Kim, Y. Won and B. Nam, "Endurable Transient
//! Inconsistency in Byte-Addressable Persistent B+-Tree", FAST 2018). It is FAST-FAIR with nodes of [`fast`], Circ-Tree with those of [`circular`], LCB+-Tree
//! with those of [`logged`], CDDS with those of [`versioned`].
//!
//! ```text
//! root block: top -> node of the highest level
//! level 1            node ------------------> node            entries: low fence of a child -> child
//! level 0            leaf -> leaf -> leaf --> leaf -> leaf    entries: key -> value
//! ```
//!
//! Within a node, its layout determines how entries lie and are shifted. Between nodes:
//!
//! 1. The nodes of a level form a list, which holds every key of the level once. The low fences of its nodes ascend and never change; the first is the lowest
//!    key. A node has the range from its low fence to that of the next node; entries beyond its range do not count.
//! 2. Every node except that of the highest level is an entry of the level above, if its latch is free and that of the node before it in the list.
//! 3. The first entry of an inner node is that of its low fence. So all nodes are alike: the paper's leftmost child, which has no key, is an entry here.
//! 4. A node changes only under its latch, which is in DRAM. The latch is free only when all of the node is durable, so no crash can take back what a reader
//!    has read between two equal versions (durable linearizability).
//!
//! # Splitting X, which is full, under P
//!
//! P has room, or is split first: so a full pool refuses before X has changed. X, then P are latched, upwards, where waiting is allowed.
//! 1. Y := upper half of X, next := X.next, and its low fence; flush all, fence. Y is unreachable: a crash forgets it. A new top with X and Y, if X is the top.
//! 2. X.next := Y, persist: keys from Y's low fence on are in Y now, and those in X do not count.
//! 3. X ends before the upper half, durably.
//! 4. P gets Y, by an insert. Or top := the new top, which is latched until then, persist.
//!
//! A crash between 2 and 4 leaves a node that no entry leads to, beside a node with room for its entries: recovery joins them, which needs no block. (In the
//! paper, the next thread that comes by adds the entry above; that may need a block, and none can be given out while recovery is finding the blocks in use.)
//!
//! # Joining Y to X, its neighbour to the left, under P
//!
//! All three are latched, the children by trying. It is the reverse:
//! 1. X gets the entries of Y behind its own, durably: they are beyond its range.
//! 2. P loses Y, by a removal.
//! 3. X.next := Y.next, persist: the range of X grows by that of Y, together with its contents. Y may be reused.
//!
//! A crash within 1, or behind it, leaves entries that do not count, perhaps among earlier ones, which recovery cuts off; one between 2 and 3 leaves what
//! recovery joins, as above. Readers wait: a latch is held. The paper's code marks a node deleted, moves its entries one by one, and is not atomic (it comes
//! with that switched off). A top with one entry is replaced by its child: top := child, persist.
//!
//! # Moving X, below P and behind W, elsewhere
//!
//! Y := copy of X, with a low fence of its own; flush, fence. Then W.next := Y, flush; the entry of X in P := Y, flush; one fence for both. A crash may leave
//! one of the two without the other: then an entry leads to a node that is not in the list, and the node in the list with the same low fence has no entry;
//! recovery makes the entry lead there. Both nodes have the same contents. The first node of a level has no W; the top has no P, but the root block.
//!
//! # Recovery
//!
//! From the top down, level by level: 1. Follow the list. 2. Compare it with the entries above: redirect those left behind to where they belong; note nodes
//! without. 3. Recover each node, by several threads: undo or finish its shift, cut off what is beyond its range. 4. Join the nodes without an entry to those
//! before them. All steps can be repeated. The image of a closed tree (`image.rs`) holds the number of keys, and none of the leaves is read.
//!
//! # Readers
//!
//! Readers descend by latches: they read a node, then the latch of a child, then check that the node has not changed. A search never moves to the right, since
//! the node before a new one, and the one above, are latched until the new one has its entry; the paper's readers take no such steps, and look at the low fence
//! of the next node in every node that they pass.

mod circular;
mod fast;
mod logged;
mod node;
mod open;
mod relocate;
mod sentinels;
mod structure;
mod versioned;

use crate::counter::Counter;
use crate::latch::{Latch, Latches, Locked, Place, Restart, until_done};
use crate::record::Record;
use crate::scan::{bound_behind, gets_on_below, scan_leaves, scan_target, with_key};
use crate::selective::When;
use crate::selective::leaf::Entry;
use crate::selective::router::Target;
use crate::selective::structure::is_getting_sparse;
use crate::{Direction, Error, Key, OrderedIndex, Relocated, Stats, Visit, Write};
pub(crate) use circular::Circular;
use everleaf_pmem::{Medium, Off, Pool, Word, probe, resident};
pub(crate) use fast::Fast;
pub(crate) use logged::Logged;
pub(crate) use node::Node;
use sentinels::Sentinels;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::{Bound, Deref};
use std::sync::Arc;
pub(crate) use versioned::Versioned;

resident! {
    /// The root block of a tree.
    struct TreeRoot {
        /// Link of the node of the highest level.
        top: Word,
        /// Link of the [image](crate::image); 0 while the tree is open.
        image: Word,
        reserved: [Word; 6],
    }
}

/// No tree has this many levels: they would take more nodes than any pool holds.
const LEVELS_MAX: usize = 48;

/// See the module documentation.
pub(crate) struct Fair<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize> {
    pool: Arc<Pool<M>>,
    root: Off<TreeRoot>,
    latches: Latches<N, Sentinels<SENTINELS>>,
    keys: Counter,
    leaves: Counter,
    splits: Counter,
    _key: PhantomData<fn(&K)>,
}

/// A node, and its data in DRAM.
struct Found<'a, N: Node, const SENTINELS: usize> {
    off: u64,
    node: &'a N,
    latch: &'a Latch,
    sentinels: &'a Sentinels<SENTINELS>,
}

impl<N: Node, const SENTINELS: usize> Found<'_, N, SENTINELS> {
    /// Number of entries.
    #[inline(always)]
    fn count(&self) -> usize {
        self.node.count_from(|| self.sentinels.start(self.node, u64::MAX))
    }

    /// [`Node::rank`], from the start that the sentinels or the layout give.
    #[inline(always)]
    fn rank<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, key: &K) -> Result<(usize, bool), Error> {
        self.node.rank(pool, key, self.sentinels.start(self.node, key.head(0)))
    }
}

/// A node and the version at which it was found.
struct Reached<'a, N: Node, const SENTINELS: usize> {
    at: Found<'a, N, SENTINELS>,
    version: u64,
}

impl<N: Node, const SENTINELS: usize> Reached<'_, N, SENTINELS> {
    /// Checks that nothing has changed since.
    #[inline(always)]
    #[track_caller]
    fn validate(&self) -> Result<(), Restart> {
        self.at.latch.validate_unappended(self.version)
    }

    /// Learns the sentinels, unless another thread is in the way.
    #[cold]
    fn learn(&self) -> Result<(), Restart> {
        let lock = self.at.latch.lock_from(self.version)?;
        self.at.sentinels.learn(self.at.node);
        // Nothing that readers see, or have seen, changes.
        lock.release_unchanged();
        Ok(())
    }
}

/// A latched node.
struct Held<'a, N: Node, const SENTINELS: usize> {
    at: Found<'a, N, SENTINELS>,
    lock: Locked<'a>,
}

impl<'a, N: Node, const SENTINELS: usize> Deref for Held<'a, N, SENTINELS> {
    type Target = Found<'a, N, SENTINELS>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.at
    }
}

impl<N: Node, const SENTINELS: usize> Held<'_, N, SENTINELS> {
    /// Adds an entry at a rank, durably, to a node of `count` entries with room.
    #[inline(always)]
    fn insert<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, rank: usize, count: usize, entry: Entry) {
        self.sentinels.follow(self.node, count + 1, || self.node.insert::<K, M>(pool, rank, count, entry));
    }

    /// Removes an entry, durably. Returns how many are left.
    #[inline(always)]
    fn remove<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, rank: usize) -> usize {
        let count = self.count();
        self.sentinels.follow(self.node, count - 1, || self.node.remove::<K, M>(pool, rank, count));
        count - 1
    }
}

/// A rank; the value there if it is the key's; and the leaf if it was latched.
type Sought<'a, N, const SENTINELS: usize> = (usize, Option<NonZeroU64>, Option<Held<'a, N, SENTINELS>>);

/// Restart: what was read is invalid. Error: damage that is certain.
type Attempt<T> = Result<Result<T, Error>, Restart>;

impl<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize> Fair<K, M, N, SENTINELS> {
    fn root(&self) -> &TreeRoot {
        self.pool.get(self.root).expect("the root block was checked when the tree was opened")
    }

    fn is_top(&self, node: u64) -> bool {
        self.root().top.get() == Off::<N>::new(node).link()
    }

    /// Finds the node of a level that contains `target`, at a version at which it did; `None` if the tree is not that high.
    #[inline(always)]
    fn reach(&self, target: Target<'_, K>, level: usize) -> Attempt<Option<Reached<'_, N, SENTINELS>>> {
        let top = self.root().top.get();
        let is_still_top = || if self.root().top.get() == top { Ok(()) } else { Err(Restart) };
        let at = match self.place(top) {
            Ok(found) => found,
            Err(error) => return is_still_top().map(|()| Err(error)),
        };
        let Found { node, latch, .. } = at;
        // It had its level before it became the top. The caller may hold the latch of a top that is not high enough.
        let Some(mut height) = node.level() else { return is_still_top().map(|()| Err(self.damage(node, LEVEL))) };
        if height < level {
            return is_still_top().map(|()| Ok(None));
        }
        let Ok(version) = latch.try_read() else {
            let is_dead = latch.is_dead();
            is_still_top()?;
            if is_dead {
                return Ok(Err(self.damage(node, NO_NODE)));
            }
            // Check again whether it is the top before waiting longer.
            return Err(Restart);
        };
        let mut reached = Reached { at, version };
        is_still_top()?;
        if node.level() != Some(height) {
            // It was replaced, reused, and is the top again.
            reached.validate()?;
            return Err(Restart);
        }
        self.touch(&reached)?;
        while height > level {
            let child = self.child(&reached.at, target);
            reached.validate()?;
            let at = match child.and_then(|link| self.place(link)) {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            let Found { node, latch, .. } = at;
            if SENTINELS == 0 && N::ASKED {
                probe::prefetch(node.header());
                node.lines().iter().for_each(probe::prefetch);
            }
            let Ok(version) = latch.read_below(reached.at.latch, reached.version) else {
                let is_dead = latch.is_dead();
                reached.validate()?;
                return if is_dead { Ok(Err(self.damage(node, NO_NODE))) } else { Err(Restart) };
            };
            height -= 1;
            let below = Reached { at, version };
            if node.level() != Some(height) {
                return below.validate().map(|()| Err(self.damage(node, LEVEL)));
            }
            reached = below;
            self.touch(&reached)?;
        }
        Ok(Ok(Some(reached)))
    }

    #[inline(always)]
    fn reach_leaf(&self, target: Target<'_, K>) -> Attempt<Reached<'_, N, SENTINELS>> {
        Ok(self.reach(target, 0)?.map(|leaf| leaf.expect("every tree has leaves")))
    }

    /// Learns the sentinels of a node if they are unknown.
    #[inline(always)]
    fn touch(&self, reached: &Reached<'_, N, SENTINELS>) -> Result<(), Restart> {
        if reached.at.sentinels.are_unknown(reached.at.node) { reached.learn() } else { Ok(()) }
    }

    /// The node of a link.
    #[inline(always)]
    fn place(&self, link: u64) -> Result<Found<'_, N, SENTINELS>, Error> {
        let off = Off::<N>::from_link(link)?;
        let node = self.pool.at(off, "a node does not lie in the pool")?;
        let Place { latch, beside } = self.latches.place(off.bytes()).map_err(|Restart| self.damage(node, NO_NODE))?;
        Ok(Found { off: off.bytes(), node, latch, sentinels: beside })
    }

    /// The link of the child that leads to a target.
    #[inline(always)]
    fn child(&self, parent: &Found<'_, N, SENTINELS>, target: Target<'_, K>) -> Result<u64, Error> {
        let rank = match target {
            Target::At(key) => {
                let (below, is_there) = parent.rank(&self.pool, key)?;
                below + usize::from(is_there)
            }
            Target::Below(key) => parent.rank(&self.pool, key)?.0,
            Target::Last => parent.count(),
        };
        parent.node.value(rank.saturating_sub(1)).map(NonZeroU64::get).ok_or_else(|| self.damage(parent.node, "an inner node without children"))
    }

    /// Reads the leaf of a target until no other thread has disturbed it. What `read` concludes from a disturbed leaf, errors included, is discarded.
    #[inline(always)]
    fn read<T>(&self, target: Target<'_, K>, mut read: impl FnMut(&N) -> Result<T, Error>) -> Result<T, Error> {
        until_done(|| {
            let leaf = match self.reach_leaf(target)? {
                Ok(leaf) => leaf,
                Err(error) => return Ok(Err(error)),
            };
            let result = read(leaf.at.node);
            leaf.validate().map(|()| result)
        })
    }

    /// Latches the node of a level that contains a target; `None` if the tree is not that high.
    fn hold(&self, target: Target<'_, K>, level: usize) -> Result<Option<Held<'_, N, SENTINELS>>, Error> {
        until_done(|| match self.reach(target, level)? {
            Ok(Some(reached)) => Ok(self.lock(reached)?.map(Some)),
            Ok(None) => Ok(Ok(None)),
            Err(error) => Ok(Err(error)),
        })
    }

    /// Latches a node as it was found. An error if a change would hide damage of it.
    #[inline(always)]
    #[track_caller]
    fn lock<'a>(&self, Reached { at, version }: Reached<'a, N, SENTINELS>) -> Attempt<Held<'a, N, SENTINELS>> {
        let lock = at.latch.lock_from(version)?;
        if at.node.is_sound() {
            return Ok(Ok(Held { at, lock }));
        }
        lock.release_unchanged();
        Ok(Err(self.damage(at.node, node::UNSOUND)))
    }

    /// Finds `key` in its leaf, and latches the leaf if `concerns` holds for whether the key is there. Returns its rank, or where it belongs, and its value.
    #[inline(always)]
    fn seek(&self, key: &K, concerns: impl Fn(bool) -> bool) -> Result<Sought<'_, N, SENTINELS>, Error> {
        until_done(|| {
            let leaf = match self.reach_leaf(Target::At(key))? {
                Ok(leaf) => leaf,
                Err(error) => return Ok(Err(error)),
            };
            let found = leaf.at.rank(&self.pool, key).map(|(rank, is_there)| (rank, is_there.then(|| leaf.at.node.value(rank)).flatten()));
            match found {
                Ok((rank, value)) if concerns(value.is_some()) => Ok(self.lock(leaf)?.map(|held| (rank, value, Some(held)))),
                found => leaf.validate().map(|()| found.map(|(rank, value)| (rank, value, None))),
            }
        })
    }

    #[inline(always)]
    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        loop {
            let (rank, old, held) = self.seek(key, |is_there| when.concerns(is_there))?;
            let Some(held) = held else { return Ok(old) };
            if old.is_some() {
                held.node.update(&*self.pool, rank, value);
                return Ok(old);
            }
            let count = held.count();
            if count < N::CAPACITY {
                held.insert::<K, M>(&self.pool, rank, count, Entry { head: key.head(0), value });
                drop(held.lock);
                self.keys.add(1);
                return Ok(None);
            }
            held.lock.release_unchanged();
            self.split(key, 0)?;
        }
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let (rank, old, held) = self.seek(key, |is_there| is_there)?;
        let Some(held) = held else { return Ok(old) };
        let left = held.remove::<K, M>(&self.pool, rank);
        drop(held.lock);
        self.keys.add(-1);
        if is_getting_sparse(left, N::CAPACITY) {
            self.join(key, 0);
        }
        Ok(old)
    }

    /// The end of the range of a node. Its next node is not given up before the node has changed.
    fn high(&self, node: &N) -> Result<Option<K::Owned>, Error> {
        match node.next().get() {
            0 => Ok(None),
            next => Ok(Some(self.low(self.place(next)?.node)?)),
        }
    }

    /// The same, of a node that `key` led to. The end is checked to be above `key`, so a thread that continues from there terminates.
    fn high_above(&self, node: &N, key: &K) -> Result<Option<K::Owned>, Error> {
        let high = self.high(node)?;
        if high.as_ref().is_some_and(|high| high.borrow() <= key) { Err(self.damage(node, ASIDE)) } else { Ok(high) }
    }

    fn low(&self, node: &N) -> Result<K::Owned, Error> {
        Ok(K::read_fence(&*self.pool, node.low())?.0)
    }

    fn damage(&self, node: &N, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(self.pool.offset_of(node).bytes(), what).into()
    }
}

const LEVEL: &str = "a node that is not of the level where it is";
const ASIDE: &str = "a node that what leads to it does not belong to";
const NO_NODE: &str = "a link that does not lead to a node";

impl<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize> OrderedIndex<K> for Fair<K, M, N, SENTINELS> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        Ok(self.seek(key, |_| false)?.1)
    }

    #[inline(always)]
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        write.sets().map_or_else(|| self.take(key), |(value, when)| self.set(key, value, when))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let read = |from: &Bound<K::Owned>, entries: &mut Vec<Entry>| {
            let (low, high) = self.read(scan_target(from, direction), |leaf| {
                entries.clear();
                entries.extend(leaf.entries());
                if !leaf.holds(entries.len()) {
                    return Err(self.damage(leaf, node::UNSOUND));
                }
                if !K::WHOLE {
                    entries.iter().for_each(|entry| Record::prefetch(&self.pool, entry.value.get()));
                }
                let (Bound::Included(bound) | Bound::Excluded(bound)) = from else {
                    return Ok((self.low(leaf)?, self.high(leaf)?));
                };
                match direction {
                    Direction::Forward => Ok((K::Owned::default(), self.high_above(leaf, bound.borrow())?)),
                    Direction::Reverse => match self.low(leaf)? {
                        low if gets_on_below::<K>(from, &low) => Ok((low, None)),
                        _ => Err(self.damage(leaf, ASIDE)),
                    },
                }
            })?;
            Ok(bound_behind::<K>(direction, || low, || high).into())
        };
        scan_leaves(&self.pool, from, direction, |entry| *entry, read, |_| {}, with_key(&self.pool, |entry| *entry, visit))
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
        let top = self.place(self.root().top.get()).ok().and_then(|found| found.node.level());
        Stats {
            keys: self.keys.get(),
            leaves,
            splits: self.splits.get(),
            leaf_bytes: leaves * size_of::<N>() as u64,
            depth: top.map_or(0, |level| level as u32 + 1),
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Crash, CrashOptions, Hardware, Memory, PoolOptions, Seen, WORD};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// However a node got its contents, its sentinels lead to the last line that begins below a key, and to no earlier one.
    #[test]
    fn sentinels_lead_to_the_line() {
        lead_to_the_line::<Fast<3>>();
        lead_to_the_line::<Circular<3>>();
    }

    fn lead_to_the_line<N: Node>() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        let tree = Fair::<u64, _, N, 3>::create(&pool, "tree", "nodes of 256 B").unwrap();
        let (mut led, mut bases) = (0, [false; 12]);
        for step in 0..2000u64 {
            let key = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
            _ = if step % 3 == 0 { tree.remove(&key) } else { tree.insert(&key, NonZeroU64::MIN) }.unwrap();
            for key in (0..256).filter(|key| tree.get(key).unwrap().is_some()) {
                let leaf = until_done(|| tree.reach_leaf(Target::At(&key))).unwrap().at;
                let (rank, base) = (leaf.node.rank(&*tree.pool, &key, 0).unwrap().0, leaf.node.run().base);
                let line = (1..3).map(|line| line * node::PER_LINE - base % node::PER_LINE).take_while(|line| *line < rank).last();
                assert_eq!(leaf.sentinels.start(leaf.node, key), line.unwrap_or(0), "step {step}, key {key}");
                led += usize::from(line.is_some());
                bases[base] = true;
            }
        }
        assert!(led > 10_000, "{led}");
        assert_eq!(bases.iter().filter(|is_met| **is_met).count(), if N::CAPACITY < N::SLOTS { 12 } else { 1 });
    }

    /// The block of a top that was replaced by its child is reused. A crash that left it as the top would lose everything.
    #[test]
    fn a_top_that_has_given_way_is_not_found_again() {
        let memory = Memory::new(256 << 10).unwrap();
        let life = Crash::new(&memory).live(CrashOptions::default());
        let pool = Pool::create_in(Arc::clone(&memory), life.medium(), PoolOptions { size_max: memory.size(), ..PoolOptions::default() }).unwrap();
        let tree = Fair::<u64, _, Fast<1>, 0>::create(&pool, "tree", "fast-fair-128").unwrap();
        (1..=5).for_each(|key| assert_eq!(tree.insert(&key, NonZeroU64::MIN).unwrap(), None));
        assert_eq!(tree.stats().depth, 2);
        (2..=5).for_each(|key| assert!(tree.remove(&key).unwrap().is_some()));
        assert_eq!((tree.stats().depth, tree.check().unwrap().keys), (1, 1));
        let (top, at) = (tree.root().top.get(), tree.root.bytes() as usize / WORD);
        // Number of crash images in which that is the top, and in which another node is.
        let seen = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let (sink, watched) = (Arc::clone(&seen), Arc::clone(&memory));
        life.observe(move |_| {
            sink[usize::from(watched.words()[at].load(Relaxed) != top)].fetch_add(1, Relaxed);
            Seen::default()
        });
        life.end();
        life.look_away();
        assert!(seen[0].load(Relaxed) > 0 && seen[1].load(Relaxed) == 0);
    }
}
