//! The default router: a B+-tree in DRAM with optimistic lock coupling (Leis et al., "The ART of Practical Synchronization", DaMoN 2016).
//!
//! Invariants, whenever a node's latch is free:
//! 1. the fences of a child are the lows beside its entry: ranges tile the key space;
//! 2. an inner child (level above 0) is the number of a node one level below; a child at level 0 is whatever the tree above says a leaf is.
//!
//! Readers lock nothing. They read a node between two looks at its latch, and look at the parent's latch again when they know the child's version, so a chain
//! of validated steps is a path that existed. Writers lock one node, or parent and children, always from versions that they have seen; whoever comes too late
//! starts again. Full nodes are split on the way down, so a split never travels up.
//!
//! For integers there are shortcuts (`shortcut.rs`) past all nodes but the lowest.
//!
//! # Transactions of the processor
//!
//! A router may be made with them, as LB+-Tree and FPTree have them: a lookup goes down and reads the leaf in one transaction; a writer goes down and latches
//! the leaf in one.
//!
//! In a transaction no version is checked again: nothing changes on the way, or the transaction does not take place. It checks once for each node and for the
//! leaf that the latch is free. So whoever holds one is not disturbed, and whoever takes one later makes the transaction abort. A transaction stores the lock
//! of the leaf, nothing else; the leaf is changed, flushed and fenced outside.
//!
//! Everything else uses latches: transactions that do not succeed, processors without them, lookups of many keys at once, scans, and changes of the nodes
//! themselves. (LB+-Tree's writers lock the full nodes above the leaf in the same transaction. Here a full node is split on the way down, so that a split never
//! locks more than two.)

mod change;
mod shortcut;

use super::node::{Entry, Node, Separators, Shape};
use super::siblings::{Hold, Join, Siblings, first_of_two};
use super::{Fences, GROUP, Route, Router, Target, Way};
use crate::latch::{Latch, Restart, until_done};
use crate::scan::bound_behind;
use crate::selective::leaf::each;
use crate::{Direction, Key};
use crossbeam_utils::CachePadded;
use everleaf_pmem::Handles;
use everleaf_pmem::htm::{Statistics, Transactions};
use everleaf_pmem::schedule::{self, atomic};
use everleaf_pmem::vector::Wide;
use parking_lot::Mutex;
use shortcut::Shortcuts;
use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Keys of a group: a bit for each.
type Missing = u32;
const _: () = assert!(GROUP == Missing::BITS as usize);

/// If shortcuts have led all integers of a group but this many to their nodes, those go down from the root one after the other: together it takes longer. Low
/// in builds that check, whose groups are small.
const ALONE_MAX: u32 = if schedule::IS_BUILT_IN { 1 } else { 3 };

/// The first `count` keys.
fn first(count: usize) -> Missing {
    Missing::MAX.checked_shr(Missing::BITS - count as u32).unwrap_or(0)
}

/// See the module documentation.
pub struct Olc<K: ?Sized, const FANOUT: usize> {
    nodes: Handles<Node<FANOUT>, 4>,
    separators: Separators<K>,
    /// Guarded by `root_latch`.
    root: atomic::AtomicU32,
    root_latch: Latch,
    /// In lines of its own, because searches do not read it.
    free: CachePadded<Free>,
    shortcuts: Shortcuts,
    transactions: Option<Transactions>,
}

/// Numbers of nodes.
#[derive(Default)]
struct Free {
    /// How many have ever been used: the lowest that never was. Read under the lock of the others, which no schedule may interrupt.
    count: AtomicU32,
    /// Those that are free again.
    numbers: Mutex<Vec<u32>>,
}

impl Free {
    /// How many are in use.
    fn in_use(&self) -> u32 {
        let numbers = self.numbers.lock();
        self.count.load(Relaxed) - numbers.len() as u32
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Olc<K, FANOUT> {
    /// A node with this few entries is to be merged with another.
    const SPARSE: usize = FANOUT / 4;

    /// A router over leaves in ascending order of their lows. The first low is the lowest key that there is.
    pub fn build(entries: &[Entry<K>]) -> Self {
        assert!(!entries.is_empty());
        let mut router = Self {
            nodes: Handles::new(),
            separators: Separators::new(),
            root: atomic::AtomicU32::new(0),
            root_latch: Latch::new(),
            free: CachePadded::default(),
            shortcuts: Shortcuts::new(),
            transactions: None,
        };
        let root = router.raise(entries);
        router.root.set(root);
        router
    }

    /// Makes nodes above leaves; nobody knows of them yet. Returns the number of the topmost.
    fn raise(&self, entries: &[Entry<K>]) -> u32 {
        if let Some((low, _)) = entries.last().filter(|_| K::WHOLE) {
            self.shortcuts.reach(low.borrow().head(0));
        }
        let fill = (FANOUT * 3 / 4).max(2);
        let mut below = Vec::new();
        for level in 0.. {
            let mut rest = if level == 0 { entries } else { &below };
            let mut above = Vec::with_capacity(rest.len().div_ceil(fill));
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(fill.min(rest.len()));
                let (number, node) = self.take();
                self.separators.fill(node, level, chunk, after.first().map(|(low, _)| low.borrow()));
                begin(node);
                above.push((chunk[0].0.clone(), u64::from(number)));
                rest = after;
            }
            if let [(_, root)] = above[..] {
                return root as u32;
            }
            below = above;
        }
        unreachable!("a level has fewer nodes than the one below")
    }

    /// The same, in which every search goes down from the root.
    pub(crate) fn without_shortcuts(mut self) -> Self {
        self.shortcuts.refuse();
        self
    }

    /// The same, with transactions.
    pub(crate) fn with_transactions(mut self) -> Self {
        self.transactions = Some(Transactions::default());
        self
    }

    /// [`Router::split`], which calls `begin` when nobody is in the way any more.
    pub(crate) fn split_behind(&self, begin: &mut dyn FnMut(), old: u64, left: u64, low: &K, separator: &K, right: u64) {
        // Whoever merges two leaves holds their node during some fences.
        until_done(|| self.try_insert(begin, old, left, low, separator, right));
    }

    /// A node by a number that may be out of date.
    #[inline(always)]
    fn node(&self, number: u32) -> &Node<FANOUT> {
        self.nodes.get(number)
    }

    /// Goes down to the lowest level, calling `visit` with each node on the way, its number and version, and the slot taken.
    #[inline(always)]
    fn descend(&self, target: Target<'_, K>, mut visit: impl FnMut(Step<'_, FANOUT>) -> Result<(), Restart>) -> Result<(), Restart> {
        let mut descent = self.begin()?;
        loop {
            let step = self.step(&mut descent, target)?;
            let level = step.shape.level;
            visit(step)?;
            if level == 0 {
                return Ok(());
            }
        }
    }

    #[inline(always)]
    fn begin(&self) -> Result<Descent<'_, FANOUT>, Restart> {
        let version = self.root_latch.read()?;
        let number = self.root.load(Relaxed);
        Ok(Descent { above: &self.root_latch, version, node: self.node(number), number })
    }

    /// [`Router::way`] for a key, in few instructions if keys are integers and a shortcut leads to the node.
    #[inline(always)]
    pub(crate) fn seek(&self, wide: Option<Wide>, key: &K) -> Result<Way<'_>, Restart> {
        if !K::WHOLE {
            return self.find_at(key);
        }
        if let Some(way) = self.cut_short(wide, key) {
            return Ok(way);
        }
        // Not in a function of its own with the note: what it returns was copied through memory by vectors, which wait there until the words that were stored
        // have left the processor, behind the fence of the write before.
        let way = self.find_at(key)?;
        self.note(key, way.node, way.slot);
        Ok(way)
    }

    /// Notes where a search for an integer without a shortcut has ended.
    fn note(&self, key: &K, node: u32, slot: usize) {
        self.shortcuts.note(key.head(0), node, Node::<FANOUT>::part_of(slot), || self.free.in_use());
    }

    /// The first steps of a search for integers that wait for memory together: calls `found` for each to which a shortcut leads. Returns a bit for each other.
    #[inline(always)]
    fn cut_short_many<'a>(&'a self, keys: &[&K], found: &mut impl FnMut(usize, Way<'a>)) -> Missing {
        let mut missing = first(keys.len());
        let Some(table) = self.shortcuts.table() else { return missing };
        let mut numbers = [0; GROUP];
        for (number, key) in numbers.iter_mut().zip(keys) {
            *number = table.find(key.head(0)).node;
            self.node(*number).prefetch();
        }
        let wide = Wide::get();
        for (number, key) in numbers.iter().zip(keys) {
            self.node(*number).approach(wide, key.head(0));
        }
        for (at, (number, key)) in numbers.iter().zip(keys).enumerate() {
            if let Some(way) = self.way_under(wide, *number, key.head(0)) {
                found(at, way);
                missing &= !(1 << at);
            }
        }
        missing
    }

    /// The way of an integer by a shortcut, if there is one. No node above is read. A live node of the lowest level that nobody has locked has its range for
    /// itself. A key lies in that range if it lies between two of the node's entries, or behind the last if there is no high fence. As always, checking the
    /// version again shows whether that was so.
    #[inline(always)]
    pub(crate) fn cut_short(&self, wide: Option<Wide>, key: &K) -> Option<Way<'_>> {
        let head = key.head(0);
        let named = self.shortcuts.table()?.find(head);
        if let Some(part) = named.part {
            self.node(named.node).approach_part(part);
        }
        self.way_under(wide, named.node, head)
    }

    /// The way under a node that a shortcut has named.
    #[inline(always)]
    fn way_under(&self, wide: Option<Wide>, number: u32, head: u64) -> Option<Way<'_>> {
        let node = self.node(number);
        let latch = node.latch();
        let version = latch.try_read().ok()?;
        let slot = node.lowest_slot_of(wide, head)?;
        let leaf = node.children.get(slot)?.load(Relaxed);
        Some(Way { leaf, latch, version, node: number, slot })
    }

    /// Goes down from the root for several keys, so that they wait for memory together.
    #[inline(never)]
    fn find_missing<'a>(&'a self, keys: &[&K], missing: Missing, found: &mut dyn FnMut(usize, Way<'a>)) {
        let (wide, mut descents) = (Wide::get(), [None; GROUP]);
        each(missing).for_each(|at| descents[at] = self.begin().ok());
        let mut are_under_way = true;
        while are_under_way {
            are_under_way = false;
            for (descent, key) in descents.iter().zip(keys) {
                if let Some(at) = descent {
                    self.separators.approach(wide, at.node, key);
                }
            }
            for (at, (descent, key)) in descents.iter_mut().zip(keys).enumerate() {
                let Some(under_way) = descent else { continue };
                match self.step(under_way, Target::At(key)).map(|step| step.way()) {
                    Ok(None) => are_under_way = true,
                    Ok(Some(way)) => {
                        if K::WHOLE {
                            self.note(key, way.node, way.slot);
                        }
                        *descent = None;
                        found(at, way);
                    }
                    Err(Restart) => *descent = None,
                }
            }
        }
    }

    #[inline(always)]
    fn walk(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart> {
        let mut above = &self.root_latch;
        let mut above_version = above.read()?;
        let mut number = self.root.load(Relaxed);
        loop {
            let node = self.node(number);
            let latch = node.latch();
            let version = latch.read_below(above, above_version)?;
            let shape = node.glance();
            let slot = self.separators.search(node, shape, target);
            let child = node.children.get(slot).ok_or(Restart)?.load(Relaxed);
            if shape.level == 0 {
                return Ok(Way { leaf: child, latch, version, node: number, slot });
            }
            (above, above_version, number) = (latch, version, child as u32);
        }
    }

    /// [`Router::way`] for a key. A descent is much code, the same for all leaves and media: it is compiled once, like `find_beside` and `find_within`.
    #[inline(never)]
    fn find_at(&self, key: &K) -> Result<Way<'_>, Restart> {
        self.walk(Target::At(key))
    }

    /// [`Router::way`] for any other target.
    #[inline(never)]
    fn find_beside(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart> {
        self.walk(target)
    }

    /// The way to the leaf beside that of a route, if it is under the same node. It holds as long as the route does, but is not validated.
    pub(crate) fn beside(&self, route: &Route, direction: Direction) -> Option<Route> {
        let node = self.node(route.node);
        let slot = match direction {
            Direction::Forward => Some(route.slot + 1).filter(|&next| next < node.shape().count),
            Direction::Reverse => route.slot.checked_sub(1),
        }?;
        Some(Route { leaf: node.children.get(slot)?.load(Relaxed), slot, ..*route })
    }

    /// The [`next_bound`](crate::scan::next_bound) behind the leaf of a route, without its other fence; validated.
    pub(crate) fn bound_behind(&self, route: &Route, direction: Direction) -> Result<Option<Bound<K::Owned>>, Restart> {
        let (node, slot) = (self.node(route.node), route.slot.min(FANOUT - 1));
        let bound = bound_behind::<K>(direction, || self.separators.low(node, slot), || self.separators.high_at(node, node.shape(), slot));
        self.validate(route)?;
        Ok(bound)
    }

    /// Prefetches what changes in the node above when the leaf at the end of a way is split or merged.
    #[inline(always)]
    pub(crate) fn approach_behind(&self, way: &Way<'_>) {
        self.node(way.node).approach_behind(way.slot);
    }

    /// Searches the node that a descent has reached, and goes on to its child, which is prefetched but not read yet.
    #[inline(always)]
    fn step<'a>(&'a self, descent: &mut Descent<'a, FANOUT>, target: Target<'_, K>) -> Result<Step<'a, FANOUT>, Restart> {
        let Descent { above, version, node, number } = *descent;
        let version = node.latch().read_below(above, version)?;
        let shape = node.shape();
        let slot = self.separators.search(node, shape, target);
        if shape.level > 0 {
            let number = node.children[slot].load(Relaxed) as u32;
            let below = self.node(number);
            below.prefetch();
            *descent = Descent { above: node.latch(), version, node: below, number };
        }
        Ok(Step { node, number, version, slot, shape })
    }
}

/// Lets a node live that has been filled. Whoever comes by a shortcut to a former life of it sees all of it, or that it does not live.
fn begin<const FANOUT: usize>(node: &Node<FANOUT>) {
    assert!(node.latch().revive(), "a number serves one node at a time");
}

/// Where a descent has come to: a node that has not been read yet, found through what `above` guarded at `version`.
#[derive(Clone, Copy)]
struct Descent<'a, const FANOUT: usize> {
    above: &'a Latch,
    version: u64,
    node: &'a Node<FANOUT>,
    number: u32,
}

/// A step of a descent, not validated yet.
struct Step<'a, const FANOUT: usize> {
    node: &'a Node<FANOUT>,
    number: u32,
    version: u64,
    slot: usize,
    shape: Shape,
}

impl<'a, const FANOUT: usize> Step<'a, FANOUT> {
    /// The way to the leaf, if the step is the last.
    #[inline(always)]
    fn way(&self) -> Option<Way<'a>> {
        let Self { node, number, version, slot, shape } = *self;
        (shape.level == 0).then(|| Way { leaf: node.children[slot].load(Relaxed), latch: node.latch(), version, node: number, slot })
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Router<K> for Olc<K, FANOUT> {
    type Neighbours<'a> = Siblings<'a, K, FANOUT>;

    #[inline(always)]
    #[track_caller]
    fn transaction<T>(&self, act: impl FnMut() -> Result<T, Restart>) -> Option<T> {
        self.transactions.as_ref()?.run(act)
    }

    #[inline(never)]
    fn find_within(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        self.root_latch.try_read()?;
        let mut number = self.root.load(Relaxed);
        loop {
            let node = self.node(number);
            let version = node.latch().try_read()?;
            let shape = node.shape();
            let slot = self.separators.search(node, shape, target);
            if let Some(way) = (Step { node, number, version, slot, shape }).way() {
                return Ok(way.route());
            }
            number = node.children[slot].load(Relaxed) as u32;
        }
    }

    fn transactions(&self) -> Statistics {
        self.transactions.as_ref().map(Transactions::statistics).unwrap_or_default()
    }

    #[inline(always)]
    fn way(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart> {
        match target {
            Target::At(key) => self.seek(Wide::get(), key),
            beside => self.find_beside(beside),
        }
    }

    #[inline(always)]
    fn take_up(&self, route: &Route) -> Result<Way<'_>, Restart> {
        let Route { leaf, node, version, slot } = *route;
        Ok(Way { leaf, latch: self.node(node).latch(), version, node, slot })
    }

    #[inline(always)]
    fn find_many<'a>(&'a self, keys: &[&K], mut found: impl FnMut(usize, Way<'a>)) {
        if !K::WHOLE {
            return self.find_missing(keys, first(keys.len()), &mut found);
        }
        let missing = self.cut_short_many(keys, &mut found);
        if missing.count_ones() > ALONE_MAX {
            return self.find_missing(keys, missing, &mut found);
        }
        for at in each(missing) {
            if let Ok(way) = self.find_at(keys[at]) {
                self.note(keys[at], way.node, way.slot);
                found(at, way);
            }
        }
    }

    fn approach(&self, key: &K) -> [Option<u64>; 2] {
        let Ok(Way { node, slot, .. }) = self.way(Target::At(key)) else { return [None; 2] };
        let node = self.node(node);
        node.approach_behind(slot);
        let beside = [slot.checked_sub(1), Some(slot + 1).filter(|&next| next < node.shape().count)];
        beside.map(|slot| Some(node.children.get(slot?)?.load(Relaxed)))
    }

    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart> {
        let node = self.node(route.node);
        let fences = self.separators.fences_at(node, node.shape(), route.slot.min(FANOUT - 1));
        self.validate(route)?;
        Ok(fences)
    }

    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) {
        self.split_behind(&mut || (), old, left, low, separator, right);
    }

    fn replace(&self, old: u64, leaf: u64, low: &K) {
        until_done(|| {
            let route = self.find(Target::At(low))?;
            let node = self.node(route.node);
            let _lock = node.latch().lock_from(route.version)?;
            assert_eq!(node.children[route.slot].swap(leaf, Relaxed), old, "the leaf is latched, so its entry stands");
            Ok(())
        });
    }

    fn populate(&self, old: u64, leaves: Vec<Entry<K>>) {
        until_done(|| {
            self.tidy(K::LOWEST);
            let number = self.root.load(Relaxed);
            let node = self.node(number);
            let lock = node.latch().try_lock()?;
            let is_alone = self.root.load(Relaxed) == number && node.shape().level == 0;
            let Some(_above) = is_alone.then(|| self.root_latch.try_lock()).and_then(Result::ok) else {
                lock.release_unchanged();
                return Err(Restart);
            };
            assert!(node.shape().count == 1 && node.children[0].load(Relaxed) == old, "the leaf is latched, and the only one");
            // Under both latches: a shortcut may lead to a new node before the root does, and whoever then goes down from the root has to wait.
            self.root.store(self.raise(&leaves), Relaxed);
            self.give_back(number, lock);
            Ok(())
        });
    }

    fn neighbours(&self, key: &K, side: Direction) -> Result<Option<Siblings<'_, K, FANOUT>>, Restart> {
        // A leaf alone under its node has a neighbour once the node has been merged.
        for is_tidy in [false, true] {
            let route = self.find(Target::At(key))?;
            let node = self.node(route.node);
            let hold = Hold::Appending(node.latch().append_from(route.version)?);
            let count = node.shape().count;
            if let Some(first) = first_of_two(route.slot, side, count) {
                return Ok(Some(Siblings::new(self, &self.separators, node, hold, first)));
            }
            hold.release_unchanged();
            if count > 1 {
                break;
            }
            if !is_tidy {
                self.tidy(key);
            }
        }
        Ok(None)
    }

    fn depth(&self) -> u32 {
        u32::from(self.node(self.root.load(Relaxed)).shape().level) + 1
    }

    fn check(&self, visit: &mut dyn FnMut(&Fences<K>, u64)) -> Result<(), &'static str> {
        let mut pending = vec![(self.root.load(Relaxed), None, None::<K::Owned>)];
        while let Some((number, level, high)) = pending.pop() {
            let node = self.node(number);
            let shape = node.shape();
            if level.is_some_and(|level: u8| level != shape.level) {
                return Err("a node of the router on the wrong level");
            }
            if self.separators.high(node, shape) != high {
                return Err("a node of the router whose high fence is not the next low");
            }
            let mut below = Vec::new();
            for slot in 0..shape.count {
                let fences = self.separators.fences_at(node, shape, slot);
                if fences.high.as_ref().is_some_and(|high| *high <= fences.low) {
                    return Err("separators of the router that do not ascend");
                }
                let child = node.children[slot].load(Relaxed);
                match shape.level.checked_sub(1) {
                    None => visit(&fences, child),
                    Some(level) => below.push((child as u32, Some(level), fences.high)),
                }
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Join<K> for Olc<K, FANOUT> {
    fn joined(&self, low: &K, left: usize) {
        if left <= Self::SPARSE {
            self.tidy(low);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Neighbours as _;
    use super::*;

    /// Leaves are named by their lows; splits and joins at random.
    fn change(router: &Olc<u64, 4>, state: &mut u64) {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (*state >> 33) % 3000;
        if *state >> 32 & 1 == 0 {
            let low = router.find_at(&key).unwrap().leaf;
            if low != key {
                Router::split(router, low, low, &low, &key, key);
            }
        } else if let Ok(Some(pair)) = router.neighbours(&key, Direction::Forward) {
            let [left, _] = pair.leaves();
            pair.join(left, || ());
        }
    }

    #[test]
    fn nodes_that_were_given_back_are_not_counted() {
        let leaves: Vec<_> = (0..1000).map(|low| (low, low)).collect();
        let router = Olc::<u64, 4>::build(&leaves);
        assert!(router.free.in_use() > 300);
        for key in (0..3).flat_map(|_| 0..1000) {
            if let Some(pair) = router.neighbours(&key, Direction::Forward).unwrap() {
                let [left, _] = pair.leaves();
                pair.join(left, || ());
            }
        }
        assert!(router.free.in_use() < 100, "{} of the nodes are left", router.free.in_use());
    }

    #[test]
    fn shortcuts_lead_where_the_nodes_do() {
        let router = Olc::<u64, 4>::build(&[(0, 0)]);
        let (mut state, mut cut) = (1, 0);
        for step in 0..if cfg!(miri) { 300 } else { 30_000 } {
            change(&router, &mut state);
            let key = step * 7919 % 3001;
            let leaf = router.find_at(&key).unwrap().leaf;
            if let Some(way) = router.cut_short(Wide::get(), &key) {
                assert_eq!(way.leaf, leaf, "{key}");
                cut += 1;
            }
            assert_eq!(router.seek(None, &key).unwrap().leaf, leaf);
        }
        assert!(cut > if cfg!(miri) { 10 } else { 3000 }, "{cut} shortcuts");
    }

    #[test]
    fn shortcuts_lead_where_the_nodes_do_while_these_change() {
        let router = Olc::<u64, 4>::build(&[(0, 0)]);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (router, is_over) = (&router, &is_over);
                scope.spawn(move || {
                    let mut cut = 0;
                    for step in (thread..).step_by(7) {
                        let key = step * 7919 % 3001;
                        if let Some(way) = router.cut_short(Wide::get(), &key) {
                            let route = way.route();
                            if let Ok(Fences { low, high }) = router.fences(&route) {
                                assert!(low <= key && high.is_none_or(|high| key < high) && route.leaf == low, "{key} in {low} to {high:?}");
                                cut += 1;
                            }
                        } else {
                            let _ = router.seek(Wide::get(), &key);
                        }
                        if is_over.load(Relaxed) && cut > 100 {
                            break;
                        }
                    }
                });
            }
            let mut state = 1;
            (0..if cfg!(miri) { 100 } else { 100_000 }).for_each(|_| change(&router, &mut state));
            is_over.store(true, Relaxed);
        });
    }
}
