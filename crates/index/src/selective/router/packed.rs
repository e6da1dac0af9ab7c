//! NV-Tree's router: nodes without pointers, in arrays, rebuilt when one of them is full (Yang et al., "NV-Tree", FAST 2015).
//!
//! ```text
//! level 2     0                                     inner nodes: child i of node n is node n FANOUT + i of the level below
//! level 1     0         1         2 ...             all of a level but the last have FANOUT children
//! level 0     0 1 2 3 | 4 5 6 7 | 8 ...             parents: leaves, with room for more
//! ```
//!
//! There are two arrays of levels. One of them is in use; the other one was, or will be. A parent takes new leaves until it is full. Then the other array is
//! filled from this one, with parents that are a quarter full, and replaces it. (The paper gives each leaf a parent of its own, which takes as much memory as
//! the leaves.) Nodes have the form that all routers use; inner ones leave their children empty.
//!
//! Invariants:
//! 1. `top` tells which array is in use, and how many parents and levels it has. `top` and the inner nodes of that array change under `latch`, parents under
//!    their own latches;
//! 2. the ranges of parents do not change while their array is in use, except that of the last one, see below; a parent has at least one leaf;
//! 3. while `is_rebuilding`, no parent changes: whoever has locked one checks that, and releases it;
//! 4. unless `is_rebuilding`, no parent of the other array lives: whoever fills it begins a new life of each.
//!
//! # Rebuilding
//!
//! 1. `is_rebuilding`, which one thread at a time can set; lock each parent and release it: now nobody is changing one, and nobody will. Readers go on, and so
//!    do writers of leaves.
//! 2. fill the other array. Nobody is led to it. Whoever was led to it when it was last in use finds the latches of its parents changed.
//! 3. `top` := the other array, under `latch`: readers are led to either array until then, and then to this one. Both say the same.
//! 4. give up the parents of the former array, one after the other: whoever has come by them starts again. Not `is_rebuilding` any more.
//!
//! Keys that ascend fill the last parent, again and again, so that rebuilding each time would take ever longer. When the last parent is full and its last leaf
//! is split, the new leaf gets a parent of its own behind it, in the same array. Elsewhere, keys that come in order have their price.
//!
//! Parents are not merged. When they have lost a quarter of the leaves that they began with, the array is sparse. It is rebuilt, smaller, when the tree says
//! so: leaves that had no neighbour under their parent have one then.

use super::node::{Entry, Node, Separators};
use super::siblings::{Hold, Join, Siblings, first_of_two};
use super::{Fences, Route, Router, Target, Way};
use crate::arena::Arena;
use crate::counter::Counter;
use crate::latch::{Latch, Locked, Restart, until_done};
use crate::{Direction, Key, Rebuild, Rebuilds};
use everleaf_pmem::schedule::{
    self,
    atomic::{AtomicU32, AtomicU64},
};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

/// See the module documentation.
pub struct Packed<K: ?Sized, const FANOUT: usize> {
    separators: Separators<K>,
    /// Levels from the parents up, of each array.
    arrays: [Box<[Arena<Node<FANOUT>, 4>]>; 2],
    top: AtomicU64,
    latch: Latch,
    is_rebuilding: AtomicU32,
    /// Held for a moment, by whoever has rebuilt the array.
    rebuilds: Mutex<Rebuilds>,
    leaves: Counter,
}

/// Which array is in use, and how large it is.
#[derive(Clone, Copy)]
struct Top {
    array: usize,
    levels: usize,
    parents: usize,
}

impl Top {
    #[inline(always)]
    fn unpack(word: u64) -> Self {
        Self { array: (word & 1) as usize, levels: (word >> 1 & 0x7f) as usize, parents: (word >> 8) as usize }
    }

    fn pack(self) -> u64 {
        self.array as u64 | (self.levels as u64) << 1 | (self.parents as u64) << 8
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Packed<K, FANOUT> {
    /// Leaves that a parent begins with.
    const FILL: usize = if FANOUT / 4 > 2 { FANOUT / 4 } else { 2 };
    /// Levels above a number of parents that fits into a route.
    const LEVELS: usize = 1 + (u32::BITS as usize - 1).div_ceil(FANOUT.ilog2() as usize);

    /// A router over leaves in ascending order of their lows. The first low is the lowest key that there is.
    pub fn build(leaves: &[Entry<K>]) -> Self {
        assert!(!leaves.is_empty());
        let levels = || (0..Self::LEVELS).map(|_| Arena::new()).collect();
        let mut router = Self {
            separators: Separators::new(),
            arrays: [levels(), levels()],
            top: AtomicU64::new(0),
            latch: Latch::new(),
            is_rebuilding: AtomicU32::new(0),
            rebuilds: Mutex::default(),
            leaves: Counter::default(),
        };
        let top = router.fill(0, leaves);
        router.top.set(top.pack());
        router.leaves.add(leaves.len() as i64);
        router
    }

    #[inline(always)]
    fn top(&self) -> Top {
        Top::unpack(self.top.load(Relaxed))
    }

    /// The node to which a reader was sent, by a number that may be out of date.
    #[inline(always)]
    fn node(&self, array: usize, level: usize, number: usize) -> Result<&Node<FANOUT>, Restart> {
        self.arrays[array].get(level).and_then(|nodes| nodes.get(number)).ok_or(Restart)
    }

    #[inline(always)]
    fn parent(&self, route: &Route) -> Result<&Node<FANOUT>, Restart> {
        self.node(route.node as usize & 1, 0, route.node as usize >> 1)
    }

    /// Locks the parent at the end of a route, unless parents must not change now.
    fn lock(&self, route: &Route) -> Result<(&Node<FANOUT>, Locked<'_>), Restart> {
        let node = self.parent(route)?;
        let lock = node.latch().lock_from(route.version)?;
        if self.is_rebuilding.load(Acquire) == 0 {
            return Ok((node, lock));
        }
        lock.release_unchanged();
        schedule::rest();
        Err(Restart)
    }

    /// Fills an array that is not in use.
    fn fill(&self, array: usize, leaves: &[Entry<K>]) -> Top {
        let levels = &self.arrays[array];
        // Reviving a latch comes before all later stores, also for those who see only the stores.
        let parents = leaves.len().div_ceil(Self::FILL);
        (0..parents).for_each(|number| assert!(levels[0].get_or_make(number).latch().revive(), "an array is given up before it is filled"));
        let mut entries = leaves.to_vec();
        for level in 0.. {
            let fill = if level == 0 { Self::FILL } else { FANOUT };
            let mut above = Vec::with_capacity(entries.len().div_ceil(fill));
            for (number, chunk) in entries.chunks(fill).enumerate() {
                let next = entries.get((number + 1) * fill).map(|(low, _)| low.borrow());
                self.separators.fill(levels[level].get_or_make(number), level as u8, chunk, next);
                above.push((chunk[0].0.clone(), 0));
            }
            if above.len() == 1 {
                return Top { array, levels: level + 1, parents };
            }
            entries = above;
        }
        unreachable!("a level has fewer nodes than the one below")
    }

    /// Replaces this array by the other one, with what `change` makes of the leaves. Does nothing if another thread is rebuilding.
    fn rebuild(&self, change: impl FnOnce(Vec<Entry<K>>) -> Vec<Entry<K>>) -> Result<(), Restart> {
        if self.is_rebuilding.swap(1, Acquire) == 1 {
            schedule::rest();
            return Err(Restart);
        }
        let begun = Instant::now();
        let (mut leaves, mut number) = (Vec::new(), 0);
        // Until the last parent has been locked, there may be one more.
        while number < self.top().parents {
            let node = self.in_use(self.top(), 0, number);
            // latch-equivalent(lock): where a locked operation comes before the loads behind it, as on x86-64, it is enough to see that nobody holds the latch:
            // whoever takes it from then on sees that the array is built anew, and lets go. On other processors both might see the other too late.
            lock(node).release_unchanged();
            leaves.extend(self.separators.entries(node));
            number += 1;
        }
        let old = self.top();
        let leaves = change(leaves);
        let new = self.fill(1 - old.array, &leaves);
        let above = self.latch.try_lock().expect("whoever locks it has locked a parent");
        self.top.store(new.pack(), Relaxed);
        drop(above);
        for level in 0..old.levels {
            for number in 0..old.nodes(level, FANOUT) {
                let node = self.in_use(old, level, number);
                if level > 0 {
                    self.separators.clear(node);
                    continue;
                }
                // Whoever has locked it to check `is_rebuilding` must not release it, unchanged and alive, after this.
                let lock = lock(node);
                self.separators.clear(node);
                lock.release_obsolete();
            }
        }
        let nodes: usize = (0..new.levels).map(|level| new.nodes(level, FANOUT)).sum();
        let built = Rebuild { leaves: leaves.len() as u64, bytes: (nodes * size_of::<Node<FANOUT>>()) as u64, time: begun.elapsed() };
        let mut rebuilds = self.rebuilds.lock();
        let first = if rebuilds.count == 0 { built } else { rebuilds.first };
        *rebuilds = Rebuilds { count: rebuilds.count + 1, time: rebuilds.time + built.time, first, last: built, ..*rebuilds };
        drop(rebuilds);
        self.is_rebuilding.store(0, Release);
        Ok(())
    }

    /// A node of an array that the caller keeps as it is.
    fn in_use(&self, top: Top, level: usize, number: usize) -> &Node<FANOUT> {
        self.arrays[top.array][level].get(number).expect("the number of a node in use")
    }

    /// Adds a leaf behind the last parent, which is full, and locked by the caller.
    fn append(&self, top: Top, separator: &K, leaf: u64) {
        let above = self.latch.try_lock().expect("whoever locks it has locked the last parent");
        let nodes = &self.arrays[top.array];
        assert!(nodes[0].get_or_make(top.parents).latch().revive(), "a number serves one node at a time");
        let mut levels = top.levels;
        let mut number = top.parents;
        for level in 0.. {
            // The node behind the last of its level.
            let node = nodes[level].get_or_make(number);
            self.separators.fill(node, level as u8, &[(separator.to_owned(), if level == 0 { leaf } else { 0 })], None);
            self.bound(self.in_use(top, level, number - 1), separator);
            if level + 1 == levels {
                levels += 1;
                self.separators.fill(nodes[level + 1].get_or_make(0), level as u8 + 1, &[(K::LOWEST.to_owned(), 0), (separator.to_owned(), 0)], None);
                break;
            }
            let slot = number % FANOUT;
            number /= FANOUT;
            if slot > 0 {
                self.separators.insert_behind(nodes[level + 1].get_or_make(number), slot - 1, separator, 0);
                break;
            }
        }
        self.top.store(Top { levels, parents: top.parents + 1, ..top }.pack(), Relaxed);
        drop(above);
    }

    /// Gives a high fence to a node that had none.
    fn bound(&self, node: &Node<FANOUT>, high: &K) {
        let (level, entries) = (node.shape().level, self.separators.entries(node));
        self.separators.fill(node, level, &entries, Some(high));
    }

    fn try_split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) -> Result<(), Restart> {
        let route = self.find(Target::At(low))?;
        let (node, parent) = self.lock(&route)?;
        assert_eq!(node.children[route.slot].load(Relaxed), old, "the leaf is latched, so its entry stands");
        // There is no rebuilding while the parent is locked.
        let (count, top) = (node.shape().count, self.top());
        if count < FANOUT {
            node.children[route.slot].store(left, Relaxed);
            self.separators.insert_behind(node, route.slot, separator, right);
        } else if route.slot + 1 == count && route.node as usize >> 1 == top.parents - 1 {
            node.children[route.slot].store(left, Relaxed);
            self.append(top, separator, right);
        } else {
            parent.release_unchanged();
            // Whoever has rebuilt it, there is room then.
            let _ = self.rebuild(|leaves| leaves);
            return Err(Restart);
        }
        drop(parent);
        self.leaves.add(1);
        Ok(())
    }
}

impl Top {
    /// Number of nodes of a level.
    fn nodes(self, level: usize, fanout: usize) -> usize {
        (0..level).fold(self.parents, |nodes, _| nodes.div_ceil(fanout))
    }
}

/// Waits for the lock of a node that is in use.
#[track_caller]
fn lock<const FANOUT: usize>(node: &Node<FANOUT>) -> Locked<'_> {
    until_done(|| node.latch().lock_from(node.latch().read()?))
}

impl<K: Key + ?Sized, const FANOUT: usize> Router<K> for Packed<K, FANOUT> {
    type Neighbours<'a> = Siblings<'a, K, FANOUT>;

    fn populate(&self, old: u64, leaves: Vec<Entry<K>>) {
        let mut leaves = Some(leaves);
        let mut take = |before: Vec<Entry<K>>| {
            assert!(before.len() == 1 && before[0].1 == old, "the leaf is latched, and the only one");
            let leaves = leaves.take().expect("a rebuild happens once");
            self.leaves.add(leaves.len() as i64 - 1);
            leaves
        };
        while self.rebuild(&mut take).is_err() {}
    }

    #[inline(never)]
    fn way(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart> {
        let version = self.latch.read()?;
        let top = self.top();
        let mut number = 0;
        for level in (1..top.levels).rev() {
            let node = self.node(top.array, level, number)?;
            number = number * FANOUT + self.separators.search(node, node.shape(), target);
        }
        let node = self.node(top.array, 0, number)?;
        node.prefetch();
        let version = node.latch().read_below(&self.latch, version)?;
        let slot = self.separators.search(node, node.shape(), target);
        Ok(Way { leaf: node.children[slot].load(Relaxed), latch: node.latch(), version, node: (number << 1 | top.array) as u32, slot })
    }

    fn take_up(&self, route: &Route) -> Result<Way<'_>, Restart> {
        let Route { leaf, node, version, slot } = *route;
        Ok(Way { leaf, latch: self.parent(route)?.latch(), version, node, slot })
    }

    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart> {
        let node = self.parent(route)?;
        let fences = self.separators.fences_at(node, node.shape(), route.slot.min(FANOUT - 1));
        self.validate(route)?;
        Ok(fences)
    }

    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) {
        until_done(|| self.try_split(old, left, low, separator, right));
    }

    fn replace(&self, old: u64, leaf: u64, low: &K) {
        until_done(|| {
            let route = self.find(Target::At(low))?;
            let (node, _lock) = self.lock(&route)?;
            assert_eq!(node.children[route.slot].swap(leaf, Relaxed), old, "the leaf is latched, so its entry stands");
            Ok(())
        });
    }

    fn neighbours(&self, key: &K, side: Direction) -> Result<Option<Siblings<'_, K, FANOUT>>, Restart> {
        let route = self.find(Target::At(key))?;
        let (node, lock) = self.lock(&route)?;
        let Some(first) = first_of_two(route.slot, side, node.shape().count) else {
            lock.release_unchanged();
            return Ok(None);
        };
        Ok(Some(Siblings::new(self, &self.separators, node, Hold::Locked(lock), first)))
    }

    fn rebuilds(&self) -> Rebuilds {
        *self.rebuilds.lock()
    }

    fn is_sparse(&self) -> bool {
        let (parents, leaves) = (self.top().parents, self.leaves.get() as usize);
        // And fewer parents must do: of two rebuilt ones, one may be nearly empty.
        leaves * 4 <= parents * Self::FILL * 3 && leaves.div_ceil(Self::FILL) < parents
    }

    fn compact(&self) -> bool {
        self.rebuild(|leaves| leaves).is_ok()
    }

    fn depth(&self) -> u32 {
        self.top().levels as u32
    }

    fn check(&self, visit: &mut dyn FnMut(&Fences<K>, u64)) -> Result<(), &'static str> {
        let top = self.top();
        let mut leaves = 0;
        for level in (0..top.levels).rev() {
            let mut low = K::LOWEST.to_owned();
            for number in 0..top.nodes(level, FANOUT) {
                let node = self.in_use(top, level, number);
                let shape = node.shape();
                if usize::from(shape.level) != level || level > 0 && shape.count != (top.nodes(level - 1, FANOUT) - number * FANOUT).min(FANOUT) {
                    return Err("a node of the router that is not where it should be");
                }
                for slot in 0..shape.count {
                    let fences = self.separators.fences_at(node, shape, slot);
                    if fences.low != low || fences.high.as_ref().is_some_and(|high| *high <= low) {
                        return Err("separators of the router that do not ascend");
                    }
                    if level == 0 {
                        visit(&fences, node.children[slot].load(Relaxed));
                        leaves += 1;
                    } else if self.separators.low(self.in_use(top, level - 1, number * FANOUT + slot), 0) != low {
                        return Err("a node of the router whose low is not that above");
                    }
                    low = fences.high.unwrap_or_default();
                }
            }
        }
        let others = &self.arrays[1 - top.array][0];
        if (0..).map_while(|number| others.get(number)).any(|parent| !parent.latch().is_dead()) {
            return Err("a parent of the router that was given up and lives");
        }
        if leaves == self.leaves.get() { Ok(()) } else { Err("a router that counts its leaves wrong") }
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Join<K> for Packed<K, FANOUT> {
    fn joined(&self, _: &K, _: usize) {
        self.leaves.add(-1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Neighbours as _;
    use super::*;

    fn leaves(router: &Packed<u64, 4>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        router.check(&mut |fences, leaf| found.push((fences.low, leaf))).unwrap();
        found
    }

    /// Leaves are named by their lows.
    #[test]
    fn keys_that_ascend_do_not_build_it_anew_each_time() {
        let router = Packed::<u64, 4>::build(&[(0, 0)]);
        for low in 1..5000 {
            router.split(low - 1, low - 1, &(low - 1), &low, low);
            assert_eq!(router.find(Target::Last).unwrap().leaf, low);
        }
        assert_eq!(router.top().array, 0, "the first array is still in use");
        assert_eq!(leaves(&router), (0..5000).map(|low| (low, low)).collect::<Vec<_>>());
        for low in 1..5000 {
            assert_eq!([Target::At(&low), Target::Below(&low)].map(|target| router.find(target).unwrap().leaf), [low, low - 1]);
        }
    }

    #[test]
    fn a_route_is_given_up_with_its_array() {
        let router = Packed::<u64, 4>::build(&(0..100).map(|low| (low, low)).collect::<Vec<_>>());
        let route = router.find(Target::At(&50)).unwrap();
        assert!(router.validate(&route).is_ok());
        router.rebuild(|leaves| leaves).unwrap();
        assert!(router.validate(&route).is_err());
        router.rebuild(|leaves| leaves).unwrap();
        assert!(router.validate(&route).is_err(), "though it is in use again");
        assert_eq!(leaves(&router).len(), 100);
        let Rebuilds { count, first, last, time, .. } = router.rebuilds();
        let nodes = [50, 13, 4, 1].iter().sum::<u64>();
        let is_all = |built: Rebuild| (built.leaves, built.bytes) == (100, nodes * size_of::<Node<4>>() as u64);
        assert!(count == 2 && is_all(first) && is_all(last) && first.time + last.time == time);
    }

    #[test]
    fn a_parent_that_was_given_up_and_lives_is_noticed() {
        let router = Packed::<u64, 4>::build(&(0..100).map(|low| (low, low)).collect::<Vec<_>>());
        router.rebuild(|leaves| leaves).unwrap();
        assert_eq!(leaves(&router).len(), 100);
        assert!(router.in_use(Top { array: 0, ..router.top() }, 0, 7).latch().revive());
        assert!(router.check(&mut |_, _| {}).is_err());
    }

    /// Readers are led to either array while one replaces the other, and to none that is being filled.
    #[test]
    fn readers_go_on_while_it_is_built_anew() {
        let key = |number: u64| format!("a key of many bytes, number {number:04}").into_bytes();
        let lows = (0..100).map(|number| if number == 0 { Vec::new() } else { key(number * 10) });
        let router = Packed::<[u8], 4>::build(&lows.zip(0..).collect::<Vec<_>>());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (router, is_over) = (&router, &is_over);
                scope.spawn(move || {
                    let mut found = 0;
                    for number in (thread..).step_by(7) {
                        let number = number % 1000;
                        let Ok(route) = router.find(Target::At(&key(number))) else { continue };
                        if let Ok(fences) = router.fences(&route) {
                            assert_eq!(route.leaf, number / 10);
                            assert!(fences.low <= key(number) && fences.high.is_none_or(|high| key(number) < high));
                            found += 1;
                        }
                        if is_over.load(Relaxed) && found > 100 {
                            break;
                        }
                    }
                });
            }
            for _ in 0..if cfg!(miri) { 4 } else { 1000 } {
                router.rebuild(|leaves| leaves).unwrap();
            }
            is_over.store(true, Relaxed);
        });
    }

    /// Each leaf is merged with what is beside it under its parent, until there is no more than one leaf.
    #[test]
    fn emptied_parents_are_built_anew() {
        let router = Packed::<u64, 4>::build(&(0..1000).map(|low| (low, low)).collect::<Vec<_>>());
        for sweep in 0.. {
            for key in 0..1000 {
                if let Some(pair) = router.neighbours(&key, Direction::Forward).unwrap() {
                    let [left, _] = pair.leaves();
                    pair.join(left, || ());
                }
            }
            if leaves(&router).len() == 1 {
                break;
            }
            assert!(router.is_sparse());
            router.compact();
            assert!(sweep < 20);
        }
        assert_eq!((router.top().parents, router.depth()), (1, 1));
    }
}
