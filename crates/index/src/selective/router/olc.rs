//! The default router: a B+-tree in DRAM with optimistic lock coupling (Leis et al., "The ART of Practical Synchronization", DaMoN 2016).
//!
//! Invariants, whenever a node's latch is free:
//! 1. the fences of a child are the lows beside its entry: ranges tile the key space;
//! 2. an inner child (level above 0) is the number of a node one level below; a child at level 0 is whatever the tree above says a leaf is.
//!
//! Readers lock nothing: they read a node between two looks at its latch, and the parent's latch is looked at again after the child's version is known, so a
//! chain of validated steps is a path that existed. Writers lock one node, or parent and children, always from versions that they have seen; who comes too late
//! starts again. Full nodes are split on the way down, so a split never travels up.

mod change;

use super::node::{Entry, Node, Separators, Shape};
use super::siblings::{Join, Siblings};
use super::{Fences, GROUP, Route, Router, Target};
use crate::Key;
use crate::arena::Arena;
use crate::latch::{Latch, Restart};
use everleaf_pmem::schedule::{self, atomic::AtomicU32};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Relaxed;

/// See the module documentation.
pub struct Olc<K: ?Sized, const FANOUT: usize> {
    nodes: Arena<Node<FANOUT>, 4>,
    separators: Separators<K>,
    /// Guarded by `root_latch`.
    root: AtomicU32,
    root_latch: Latch,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Lowest number that was never used.
    next: u32,
    numbers: Vec<u32>,
}

impl<K: Key + ?Sized, const FANOUT: usize> Olc<K, FANOUT> {
    /// A router over leaves in ascending order of their lows. The first low is the lowest key that there is.
    pub fn build(mut entries: Vec<Entry<K>>) -> Self {
        assert!(!entries.is_empty());
        let router = Self { nodes: Arena::new(), separators: Separators::new(), root: AtomicU32::new(0), root_latch: Latch::default(), free: Mutex::default() };
        let fill = (FANOUT * 3 / 4).max(2);
        for level in 0.. {
            let mut above = Vec::with_capacity(entries.len().div_ceil(fill));
            let mut rest = &entries[..];
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(fill.min(rest.len()));
                let (number, node) = router.take();
                router.separators.fill(node, level, chunk, after.first().map(|(low, _)| low.borrow()));
                above.push((chunk[0].0.clone(), u64::from(number)));
                rest = after;
            }
            if let [(_, root)] = above[..] {
                router.root.store(root as u32, Relaxed);
                break;
            }
            entries = above;
        }
        router
    }

    fn node(&self, number: u32) -> &Node<FANOUT> {
        self.nodes.get(number as usize).expect("the number of a node in use")
    }

    /// The node a reader was sent to, by a number that may be out of date.
    #[inline(always)]
    fn child(&self, number: u64) -> Result<&Node<FANOUT>, Restart> {
        self.nodes.get(number as usize).ok_or(Restart)
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
        Ok(Descent { above: &self.root_latch, version, node: self.child(u64::from(number))?, number })
    }

    #[inline(always)]
    fn walk(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        let mut descent = self.begin()?;
        loop {
            if let Some(route) = self.step(&mut descent, target)?.route() {
                return Ok(route);
            }
        }
    }

    /// [`Router::find`] for a key. A descent is much code and the same for all leaves and media: it is compiled once, as are the two behind it.
    #[inline(never)]
    fn find_at(&self, key: &K) -> Result<Route, Restart> {
        self.walk(Target::At(key))
    }

    /// [`Router::find`] for anything else.
    #[inline(never)]
    fn find_beside(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        self.walk(target)
    }

    /// As [`Router::find_within`].
    #[inline(never)]
    pub(super) fn find_within(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        self.root_latch.try_read()?;
        let mut number = self.root.load(Relaxed);
        loop {
            let node = self.child(u64::from(number))?;
            let version = node.latch.try_read()?;
            let shape = node.shape();
            let slot = self.separators.search(node, shape, target);
            if let Some(route) = (Step { node, number, version, slot, shape }).route() {
                return Ok(route);
            }
            number = node.children[slot].load(Relaxed) as u32;
        }
    }

    /// Searches the node that a descent has come to; goes on to its child, whose memory is asked for but not read yet.
    #[inline(always)]
    fn step<'a>(&'a self, descent: &mut Descent<'a, FANOUT>, target: Target<'_, K>) -> Result<Step<'a, FANOUT>, Restart> {
        let Descent { above, version, node, number } = *descent;
        let version = node.latch.read_below(above, version)?;
        let shape = node.shape();
        let slot = self.separators.search(node, shape, target);
        if shape.level > 0 {
            let child = node.children[slot].load(Relaxed);
            let below = self.child(child)?;
            below.prefetch();
            *descent = Descent { above: &node.latch, version, node: below, number: child as u32 };
        }
        Ok(Step { node, number, version, slot, shape })
    }
}

/// Where a descent has come to: a node that is not looked at yet, found by way of what `above` guarded at `version`.
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

impl<const FANOUT: usize> Step<'_, FANOUT> {
    /// The way to the leaf, when the step is the last.
    #[inline(always)]
    fn route(&self) -> Option<Route> {
        let Self { node, number, version, slot, shape } = *self;
        (shape.level == 0).then(|| Route { leaf: node.children[slot].load(Relaxed), node: number, version, slot })
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Router<K> for Olc<K, FANOUT> {
    type Neighbours<'a> = Siblings<'a, K, FANOUT>;

    #[inline(always)]
    fn find(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        match target {
            Target::At(key) => self.find_at(key),
            beside => self.find_beside(beside),
        }
    }

    fn find_many(&self, keys: &[&K], routes: &mut [Option<Route>]) {
        let mut descents = [self.begin().ok(); GROUP];
        let mut under_way = keys.len();
        while under_way > 0 {
            under_way = 0;
            for (descent, key) in descents.iter().zip(keys) {
                if let Some(at) = descent {
                    self.separators.approach(at.node, key);
                }
            }
            for ((descent, key), route) in descents.iter_mut().zip(keys).zip(&mut *routes) {
                let Some(at) = descent else { continue };
                match self.step(at, Target::At(key)).map(|step| step.route()) {
                    Ok(None) => under_way += 1,
                    Ok(found) => (*descent, *route) = (None, found),
                    Err(Restart) => *descent = None,
                }
            }
        }
    }

    #[inline(always)]
    #[track_caller]
    fn validate(&self, route: &Route) -> Result<(), Restart> {
        self.child(u64::from(route.node))?.latch.validate(route.version)
    }

    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart> {
        let node = self.child(u64::from(route.node))?;
        let fences = self.separators.fences_at(node, node.shape(), route.slot.min(FANOUT - 1));
        self.validate(route)?;
        Ok(fences)
    }

    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) {
        while self.try_insert(old, left, low, separator, right).is_err() {
            schedule::spin();
        }
    }

    fn replace(&self, old: u64, leaf: u64, low: &K) {
        let attempt = || {
            let route = self.find(Target::At(low))?;
            let node = self.child(u64::from(route.node))?;
            let _lock = node.latch.lock_from(route.version)?;
            assert_eq!(node.children[route.slot].swap(leaf, Relaxed), old, "the leaf is latched, so its entry stands");
            Ok::<_, Restart>(())
        };
        while attempt().is_err() {
            schedule::spin();
        }
    }

    fn neighbours(&self, key: &K) -> Result<Option<Siblings<'_, K, FANOUT>>, Restart> {
        let route = self.find(Target::At(key))?;
        let node = self.child(u64::from(route.node))?;
        let lock = node.latch.lock_from(route.version)?;
        let count = node.shape().count;
        if count < 2 {
            lock.release_unchanged();
            // A leaf alone under its node has a neighbour once the node has been merged.
            self.tidy(key);
            return Ok(None);
        }
        Ok(Some(Siblings::new(self, &self.separators, node, lock, route.slot.min(count - 2))))
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
    fn joined(&self, low: &K) {
        self.tidy(low);
    }
}
