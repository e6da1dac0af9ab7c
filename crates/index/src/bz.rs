//! BzTree: a B+-tree without latches, all of whose nodes persist (J. Arulraj, J. Levandoski, U. F. Minhas and P.-A. Larson, "BzTree: A High-Performance
//! Latch-free Range Index for Non-Volatile Memory", PVLDB 11(5), 2018), on multi-word exchanges ([`mwcas`]).
//!
//! ```text
//! root block: top -> node
//! inner node      children, each with its low fence, in order; only words of children change
//! leaf            entries in order, from when it was made, and behind them entries as they came
//! ```
//!
//! The bytes are in [`node`]. Every word that changes when others can reach it is changed by [`mwcas`], but for reservations; so whoever reads it reads what no
//! crash takes back, and helps what is under way.
//!
//! 1. the status of a node changes with every other word of it, and never returns to what it was: what was read between two equal statuses was there at once;
//! 2. a node becomes frozen by the exchange that takes it out of the tree: none that is in it is, and whoever meets one comes by a way that is out of date. The
//!    words of a frozen node change no more;
//! 3. fences of an inner node never change, nor does the range of any node: it is that which the fences on the way say, however old the nodes are;
//! 4. head and value of an entry are written before it is visible, once, by who has reserved it;
//! 5. the record of a fence belongs to the inner node that has it; a copy takes it over.
//!
//! # Changes
//!
//! A crash within an exchange leaves all of it or nothing ([`mwcas`]), and blocks that nobody reaches are free memory. So there is one thing to say of each:
//!
//! - **Insert**: 1. an entry is reserved: status, one exchange of one word, not flushed. A crash forgets it, or leaves an entry that never becomes visible, and
//!   goes with its leaf. 2. Head and value; flush. 3. Status, which counts one more that was made; meta word := visible. If anything else has changed in the
//!   leaf, the key is looked for again.
//! - **Update**: the same, by an exchange that also has the meta word of the old entry := deleted. Values are words of all bits, none of which are left to say
//!   that a descriptor is there instead, so they are not changed in place.
//! - **Removal**: status, which counts one more that was deleted; meta word := deleted.
//! - **A leaf without room**: a copy of what counts; flush, fence. Then the word of the child above, and its status; the leaf's status := frozen.
//! - **If most of it counts**: two leaves, and a copy of the node above with both of them; flush, fence. Then the word above that, and its status; the statuses
//!   of leaf and node := frozen. A node above that has no room is divided first, in the same way. Above the top comes a new one.
//! - **A node of which little is left**: one node for it and one beside it, and a copy of the node above without it; then as before, and three nodes are
//!   frozen. A top with one child goes.
//! - **Relocation**: a copy, as of a leaf without room.
//!
//! Recovery walks the tree, and puts into each word that has a descriptor what that says.
//!
//! # Departures from the paper
//!
//! 1. The paper reserves an entry with its meta word, which says so, and by which life of the index; who adds the same key has to wait for that, or for who
//!    died. Here the entry becomes visible only if nothing else has since the key was looked for, by a status that counts those: nobody waits for a
//!    reservation, and those of a crash need no number of a life, which would have to be raised, durably, by each.
//! 2. The paper freezes a node, then copies it; a crash, or a thread that stops in between, leaves a frozen node that somebody else has to replace. Here a copy
//!    is made first, and the node frozen with what puts the copy in its place, if its status is still the same. The status of an inner node counts children
//!    that were replaced: so a copy misses none.
//! 3. Records are of one size, key and value being words, or the key in the record that the value links, as in all indexes here: a meta word need not say where
//!    one lies.

mod mwcas;
mod node;
mod open;
mod relocate;
mod structure;

use crate::counter::Counter;
use crate::latch::Patience;
use crate::scan::{LeafRead, bound_behind, scan_leaves, scan_target, with_key};
use crate::selective::When;
use crate::selective::leaf::Entry;
use crate::selective::router::Target;
use crate::{Direction, Error, Key, OrderedIndex, Relocated, Stats, Visit, Write};
use everleaf_pmem::{Medium, Off, Pool, WORD, Word, resident};
use mwcas::{Failed, exchange};
use node::{DELETED, Found, MADE, Node, RESERVED, Status, UNMADE, VISIBLE};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

resident! {
    /// The root block of a tree.
    struct TreeRoot {
        /// Leads to the top, as words of children do.
        top: Word,
        reserved: [Word; 7],
    }
}

/// More levels than any tree has.
const LEVELS_MAX: usize = 64;

/// See the module documentation.
pub(crate) struct Bz<K: Key + ?Sized, M: Medium> {
    pool: Arc<Pool<M>>,
    root: Off<TreeRoot>,
    /// Entries of a node.
    capacity: usize,
    keys: Counter,
    leaves: Counter,
    splits: Counter,
    _key: PhantomData<fn(&K)>,
}

/// Why an attempt has ended.
enum Stop {
    /// Somebody was faster.
    Restart,
    /// This node was in the way, which is not in the tree any more.
    Frozen(Off<Word>),
    /// What was read counts, and says so.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A node on the way down, its status before anything else of it was read, and which of its children the way goes on by.
#[derive(Clone, Copy)]
struct Step<'a> {
    node: Node<'a>,
    status: Status,
    at: usize,
}

/// An entry that a thread has for itself.
struct Reserved {
    leaf: Off<Word>,
    at: usize,
}

impl<K: Key + ?Sized, M: Medium> Bz<K, M> {
    fn root(&self) -> &TreeRoot {
        self.pool.get(self.root).expect("the root block was checked when the tree was opened")
    }

    #[inline(always)]
    fn node(&self, off: Off<Word>) -> Result<Node<'_>, Error> {
        Node::read(&self.pool, off, self.capacity)
    }

    #[inline(always)]
    fn top(&self) -> Result<Node<'_>, Error> {
        let top = mwcas::linked(mwcas::read(&self.pool, &self.root().top)?);
        self.node(top.ok_or_else(|| everleaf_pmem::Error::corrupt(self.root.bytes(), "a tree without a top"))?)
    }

    fn too_deep(&self) -> Error {
        everleaf_pmem::Error::corrupt(self.root.bytes(), "a tree of more levels than there can be").into()
    }

    /// The leaf of a key.
    #[inline(always)]
    fn leaf(&self, key: &K) -> Result<Node<'_>, Error> {
        let mut node = self.top()?;
        for _ in 0..LEVELS_MAX {
            if node.is_leaf {
                return Ok(node);
            }
            let at = node.child_of(&self.pool, key, false)?;
            node = self.node(node.child(&self.pool, at)?)?;
        }
        Err(self.too_deep())
    }

    /// The way to a leaf.
    fn trail(&self, target: Target<'_, K>) -> Result<Vec<Step<'_>>, Error> {
        let (mut node, mut trail) = (self.top()?, Vec::with_capacity(8));
        while trail.len() < LEVELS_MAX {
            let status = node.status(&self.pool)?;
            if node.is_leaf {
                trail.push(Step { node, status, at: 0 });
                return Ok(trail);
            }
            let at = match target {
                Target::At(key) => node.child_of(&self.pool, key, false)?,
                Target::Below(key) => node.child_of(&self.pool, key, true)?,
                Target::Last => node.count - 1,
            };
            trail.push(Step { node, status, at });
            node = self.node(node.child(&self.pool, at)?)?;
        }
        Err(self.too_deep())
    }

    /// The lowest key that belongs to the last node of a trail.
    fn low(&self, trail: &[Step<'_>]) -> Result<K::Owned, Error> {
        let above = &trail[..trail.len() - 1];
        above.iter().rev().find(|step| step.at > 0).map_or_else(|| Ok(K::LOWEST.to_owned()), |step| step.node.low::<K, M>(&self.pool, step.at))
    }

    /// The lowest key that no longer does.
    fn high(&self, trail: &[Step<'_>]) -> Result<Option<K::Owned>, Error> {
        let above = &trail[..trail.len() - 1];
        above.iter().rev().find(|step| step.at + 1 < step.node.count).map(|step| step.node.low::<K, M>(&self.pool, step.at + 1)).transpose()
    }

    /// Tries until nobody is faster, pinned all the time: a node that is frozen cannot be in the tree when a way is begun after that was seen.
    #[inline(always)]
    fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, Stop>) -> Result<T, Error> {
        let _guard = self.pool.pin();
        let (mut frozen, mut patience) = (None, Patience::default());
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Restart) => (),
                Err(Stop::Frozen(node)) if frozen == Some(node) => {
                    return Err(everleaf_pmem::Error::corrupt(node.bytes(), "a node of the tree that says that it is none any more").into());
                }
                Err(Stop::Frozen(node)) => frozen = Some(node),
            }
            patience.wait();
        }
    }

    /// What was concluded from a leaf, if its status is still the same.
    #[inline(always)]
    fn validated<T>(&self, leaf: &Node<'_>, status: Status, conclusion: T) -> Result<T, Stop> {
        if leaf.status(&self.pool)? == status { Ok(conclusion) } else { Err(Stop::Restart) }
    }

    #[inline(always)]
    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        let mut reserved: Option<Reserved> = None;
        let old = self.retry(|| {
            let leaf = self.leaf(key)?;
            let status = leaf.status(&self.pool)?;
            let found = leaf.find(&self.pool, key, status)?;
            match found {
                Some(Found { value, .. }) if !when.concerns(true) => return Ok(Some(value)),
                None if !when.concerns(false) => return self.validated(&leaf, status, None),
                _ => (),
            }
            if status.is_frozen() {
                return Err(Stop::Frozen(leaf.off));
            }
            let (at, status) = match &reserved {
                Some(Reserved { leaf: of, at }) if *of == leaf.off => {
                    self.expect_unused(&leaf, *at)?;
                    (*at, status)
                }
                _ => {
                    let at = status.reserved();
                    if at == self.capacity {
                        return self.make_room(key, &leaf);
                    }
                    let with = Status(status.0 + RESERVED);
                    // persist-equivalent(exchange late): it is not flushed. What becomes visible in the leaf does so by the same word.
                    self.pool.compare_exchange(leaf.status_word(), status.0, with.0).map_err(|_| Stop::Restart)?;
                    reserved = Some(Reserved { leaf: leaf.off, at });
                    self.expect_unused(&leaf, at)?;
                    let pair = leaf.pair(at);
                    self.pool.store(&pair[0], key.head(leaf.skip), Relaxed);
                    self.pool.store(&pair[1], value.get(), Relaxed);
                    // Durable before the descriptor is: by its fence.
                    self.pool.flush(pair);
                    (at, with)
                }
            };
            let target = |word, old, new| mwcas::Target { word, old, new };
            let made = target(leaf.word(at), 0, VISIBLE);
            let has_changed = match found {
                None => exchange(&self.pool, &mut [target(leaf.status_word(), status.0, status.0 + MADE), made]),
                Some(found) => {
                    let unmade = target(leaf.word(found.at), VISIBLE, DELETED);
                    exchange(&self.pool, &mut [target(leaf.status_word(), status.0, status.0 + MADE + UNMADE), made, unmade])
                }
            }?;
            if has_changed { Ok(found.map(|found| found.value)) } else { Err(Stop::Restart) }
        })?;
        if old.is_none() && when.concerns(false) {
            self.keys.add(1);
        }
        Ok(old)
    }

    /// An entry that has just been reserved is nobody else's, unless what was counted is damaged.
    fn expect_unused(&self, leaf: &Node<'_>, at: usize) -> Result<(), Stop> {
        match mwcas::read(&self.pool, leaf.word(at))? {
            0 => Ok(()),
            _ => Err(leaf.damage("a leaf that counts fewer entries than it has").into()),
        }
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let taken = self.retry(|| {
            let leaf = self.leaf(key)?;
            let status = leaf.status(&self.pool)?;
            let Some(Found { at, value }) = leaf.find(&self.pool, key, status)? else { return self.validated(&leaf, status, None) };
            if status.is_frozen() {
                return Err(Stop::Frozen(leaf.off));
            }
            let status = mwcas::Target { word: leaf.status_word(), old: status.0, new: status.0 + UNMADE };
            let has_changed = exchange(&self.pool, &mut [status, mwcas::Target { word: leaf.word(at), old: VISIBLE, new: DELETED }])?;
            if has_changed { Ok(Some((value, Status(status.new).live()))) } else { Err(Stop::Restart) }
        })?;
        let Some((value, left)) = taken else { return Ok(None) };
        self.keys.add(-1);
        if structure::is_little(left, self.capacity) {
            // It is harmless where it is, and damage is met again by who reads.
            while let Ok(true) = self.retry(|| self.tidy(key)) {}
        }
        Ok(Some(value))
    }

    /// The entries of the leaf with which a scan begins or goes on, and what is behind it.
    fn read_leaf(&self, from: &Bound<K::Owned>, direction: Direction, entries: &mut Vec<Entry>) -> Result<Option<Bound<K::Owned>>, Error> {
        self.retry(|| {
            let trail = self.trail(scan_target::<K>(from, direction))?;
            let Step { node, status, .. } = trail[trail.len() - 1];
            let sorted = node.entries::<K, M>(&self.pool, status, entries);
            // Of entries that were deleted meanwhile the records may be gone, but not while who reads is pinned: errors count.
            self.validated(&node, status, sorted)??;
            let (low, high) = (self.low(&trail)?, self.high(&trail)?);
            Ok(bound_behind::<K>(direction, || low, || high))
        })
    }

    fn depth(&self) -> u32 {
        let _guard = self.pool.pin();
        self.trail(Target::Last).map_or(0, |trail| trail.len() as u32)
    }
}

impl<K: Key + ?Sized, M: Medium> OrderedIndex<K> for Bz<K, M> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.retry(|| {
            let leaf = self.leaf(key)?;
            let status = leaf.status(&self.pool)?;
            match leaf.find(&self.pool, key, status)? {
                Some(found) => Ok(Some(found.value)),
                None => self.validated(&leaf, status, None),
            }
        })
    }

    #[inline(always)]
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        write.sets().map_or_else(|| self.take(key), |(value, when)| self.set(key, value, when))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let read = |from: &Bound<K::Owned>, entries: &mut Vec<Entry>| self.read_leaf(from, direction, entries).map(LeafRead::from);
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
        self.relocate_nodes(from, leaves_max, is_leaving)
    }

    fn stats(&self) -> Stats {
        let leaves = self.leaves.get();
        Stats {
            keys: self.keys.get(),
            leaves,
            splits: self.splits.get(),
            leaf_bytes: leaves * (node::size(self.capacity) * WORD) as u64,
            depth: self.depth(),
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Hardware, PoolOptions};
    use std::sync::atomic::Ordering::Release;

    fn pool() -> Arc<Pool<Hardware>> {
        Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 16 << 20, ..PoolOptions::default() }).unwrap()
    }

    fn filled(pool: &Arc<Pool<Hardware>>, keys: u64) -> Bz<u64, Hardware> {
        let tree = Bz::create(pool, "tree", "bztree-4", 4).unwrap();
        (0..keys).for_each(|key| assert_eq!(tree.insert(&key, NonZeroU64::MIN).unwrap(), None));
        tree
    }

    /// Levels and leaves come and go, and in the end there is one leaf again.
    #[test]
    fn a_tree_grows_and_shrinks() {
        let pool = pool();
        let tree = filled(&pool, 500);
        let stats = tree.check().unwrap();
        assert!(stats.depth >= 4 && stats.splits == stats.leaves - 1, "{stats:?}");
        for left in (0..500).rev() {
            assert_eq!(tree.remove(&left).unwrap(), Some(NonZeroU64::MIN));
            assert_eq!(tree.check().unwrap().keys, left);
        }
        assert_eq!((tree.stats().leaves, tree.depth()), (1, 1));
    }

    /// Values have all bits; what was there is found under no other.
    #[test]
    fn values_are_words_of_all_bits() {
        let pool = pool();
        let tree = filled(&pool, 10);
        for value in [u64::MAX, 1 << 63, 1 << 62, 7].map(|value| NonZeroU64::new(value).unwrap()) {
            for key in 0..10 {
                assert!(tree.update(&key, value).unwrap().is_some());
                assert_eq!(tree.get(&key).unwrap(), Some(value));
            }
        }
        tree.check().unwrap();
    }

    /// A writer who met such a leaf, and began again, would meet it for ever.
    #[test]
    fn a_leaf_of_the_tree_that_is_frozen_is_damage() {
        let pool = pool();
        let tree = filled(&pool, 3);
        let status = tree.top().unwrap().status_word();
        pool.store(status, status.get() | node::FROZEN, Release);
        for refused in [tree.insert(&7, NonZeroU64::MIN), tree.update(&1, NonZeroU64::MIN), tree.remove(&1)] {
            assert!(refused.unwrap_err().to_string().contains("says that it is none any more"));
        }
        assert_eq!(tree.get(&1).unwrap(), Some(NonZeroU64::MIN));
        assert!(tree.check().is_err());
    }

    /// Each would be helped for ever.
    #[test]
    fn a_word_with_a_descriptor_that_is_none_is_damage() {
        let pool = pool();
        let tree = filled(&pool, 3);
        let leaf = tree.top().unwrap();
        let (word, was) = (leaf.word(0), leaf.word(0).get());
        for forged in [1 << 63, u64::MAX, 1 << 63 | mwcas::link(leaf.off)] {
            pool.store(word, forged, Release);
            assert!(tree.get(&0).is_err() && tree.remove(&0).is_err() && tree.check().is_err(), "{forged:#x}");
        }
        pool.store(word, was, Release);
        tree.check().unwrap();
    }

    #[test]
    fn words_change_together_or_not_at_all() {
        let pool = pool();
        let words = pool.alloc_words(16).unwrap();
        words.iter().for_each(|word| pool.store(word, 1, Relaxed));
        let target = |at: usize, old, new| mwcas::Target { word: &words[at], old, new };
        assert!(exchange(&pool, &mut [target(9, 1, 2), target(0, 1, 3)]).is_ok_and(|changed| changed));
        assert!(exchange(&pool, &mut [target(0, 3, 4), target(9, 1, 5), target(15, 1, 6)]).is_ok_and(|changed| !changed));
        assert_eq!([0, 9, 15].map(|at| words[at].get()), [3, 2, 1]);
    }
}
