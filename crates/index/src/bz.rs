//! BzTree: a latch-free B+-tree whose nodes are all persistent (J. Arulraj, J. Levandoski, U. F. Minhas and P.-A. Larson, "BzTree: A High-Performance
//! Latch-free Range Index for Non-Volatile Memory", PVLDB 11(5), 2018), built on multi-word exchanges ([`mwcas`]).
//!
//! ```text
//! root block: top -> node
//! inner node      children, each with its low fence, in order; only the words of children change
//! leaf            entries in order, from its creation, and behind them entries as they came
//! ```
//!
//! The bytes are in [`node`]. [`mwcas`] changes every word that changes while it is reachable, except for reservations. So readers read only what no crash can
//! take back, and help exchanges under way.
//!
//! 1. The status of a node changes with every other word of it, and never returns to an earlier value: what was read between two equal statuses was there at
//!    one moment.
//! 2. The exchange that takes a node out of the tree freezes it: no node in the tree is frozen, and a thread that meets one has come by a stale way. The words
//!    of a frozen node no longer change.
//! 3. The fences of an inner node never change, nor does the range of any node: the fences on the way define it, however old the nodes are.
//! 4. Head and value of an entry are written once, before it is visible, by the thread that has reserved it.
//! 5. The record of a fence belongs to the inner node that has it; a copy of the node takes it over.
//!
//! # Changes
//!
//! A crash within an exchange leaves all of it or nothing ([`mwcas`]), and unreachable blocks are free memory. So each change has one commit point:
//!
//! - **Insert**: 1. Reserve an entry: an exchange of one word, the status, not flushed. A crash forgets the reservation, or leaves an entry that never becomes
//!   visible, and goes with its leaf. 2. Head and value; flush. 3. Status, which counts one more entry that became visible; meta word := visible. If anything
//!   else has changed in the leaf, the key is searched again.
//! - **Update**: the same, with an exchange that also sets the meta word of the old entry := deleted. Values use all bits of their words, which leaves none to
//!   mark a descriptor, so they are not changed in place.
//! - **Removal**: status, which counts one more deleted entry; meta word := deleted.
//! - **A leaf without room**: a copy of the entries that count; flush, fence. Then the word of the child above, and its status; the leaf's status := frozen.
//! - **If most entries count**: two leaves, and a copy of the node above with both of them; flush, fence. Then the word above that, and its status; the
//!   statuses of leaf and node := frozen. A node above that has no room is divided first, in the same way. A divided top gets a new one above it.
//! - **A node of which little is left**: one node for it and a neighbour, and a copy of the node above without it; then as before, and three nodes are frozen.
//!   A top with one child is removed.
//! - **Relocation**: a copy, as of a leaf without room.
//!
//! Recovery walks the tree, and replaces each descriptor in a word by the value that the descriptor determines.
//!
//! # Departures from the paper
//!
//! 1. The paper marks a reservation in the entry's meta word, together with the life of the index in which it was made; a thread that adds the same key waits
//!    for the reservation, or for the thread that died. Here an entry becomes visible only if no other has become visible since the key was searched, which the
//!    status shows by counting them. So no thread waits for a reservation, and reservations lost in a crash need no number of a life, which every opening would
//!    have to raise durably.
//! 2. The paper freezes a node, then copies it; a crash, or a thread that stops in between, leaves a frozen node that another thread has to replace. Here the
//!    copy is made first, and the exchange that installs the copy freezes the node, if its status is unchanged. The status of an inner node counts replaced
//!    children, so a copy misses none.
//! 3. Records have one size, since key and value are words, or the key is in the record that the value links, as in all indexes here. So a meta word need not
//!    say where a record lies.

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
        /// Leads to the top, like the word of a child.
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
    /// Another thread was faster.
    Restart,
    /// This node, which is no longer in the tree, was in the way.
    Frozen(Off<Word>),
    /// What was read is valid, and is an error.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A node on the way down, its status before anything else of it was read, and the child by which the way continues.
#[derive(Clone, Copy)]
struct Step<'a> {
    node: Node<'a>,
    status: Status,
    at: usize,
}

/// An entry that only this thread uses.
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

    /// The lowest key that no longer belongs to it.
    fn high(&self, trail: &[Step<'_>]) -> Result<Option<K::Owned>, Error> {
        let above = &trail[..trail.len() - 1];
        above.iter().rev().find(|step| step.at + 1 < step.node.count).map(|step| step.node.low::<K, M>(&self.pool, step.at + 1)).transpose()
    }

    /// Repeats `attempt` until no other thread is faster. Pinned all the time, so a frozen node cannot be in the tree if the search starts after it was seen
    /// frozen.
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

    /// Returns what was concluded from a leaf if its status is unchanged.
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
                    // Durable before the descriptor, by its fence.
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

    /// No other thread uses an entry that has just been reserved, unless the counts are damaged.
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
            // The node is harmless where it is, and a later reader meets damage again.
            while let Ok(true) = self.retry(|| self.tidy(key)) {}
        }
        Ok(Some(value))
    }

    /// The entries of the leaf with which a scan begins or goes on, and the bound behind it.
    fn read_leaf(&self, from: &Bound<K::Owned>, direction: Direction, entries: &mut Vec<Entry>) -> Result<Option<Bound<K::Owned>>, Error> {
        self.retry(|| {
            let trail = self.trail(scan_target::<K>(from, direction))?;
            let Step { node, status, .. } = trail[trail.len() - 1];
            let sorted = node.entries::<K, M>(&self.pool, status, entries);
            // Records of entries that were deleted meanwhile may be gone, but not while the reader is pinned: so errors count.
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

    /// Levels and leaves are added and removed, and in the end there is one leaf again.
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

    /// Values use all bits; each is found as it was stored.
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

    /// A writer that met such a leaf, and started again, would meet it forever.
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

    /// Each would be helped forever.
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
