//! The default router: a B+-tree in DRAM with optimistic lock coupling (Leis et al., "The ART of Practical Synchronization", DaMoN 2016).
//!
//! ```text
//! node   latch | shape: count, level, skip, exposed | high fence | heads[FANOUT] | children[FANOUT] | tails[FANOUT]
//! ```
//!
//! Entry i is a child and the lowest key that belongs under it: `low(i) <= key < low(i + 1)`, and for the last entry `key < high`. Entry 0's low is the low
//! fence of the node. All lows but that one begin with the same `skip` bytes; a *head* is the eight bytes after them, so one word decides nearly every
//! comparison; the *tail* names the whole separator in [`Strings`], for when heads are equal. For `u64` keys the head is everything.
//!
//! Mostly every key between the fences has those `skip` bytes too. At the edges of the tree (the root has no fences but the lowest key) keys may differ in
//! them: there, `exposed` says that a search must compare them first.
//!
//! Invariants, whenever a node's latch is free:
//! 1. lows ascend strictly, and lie between the fences;
//! 2. the fences of a child are the lows beside its entry: ranges tile the key space;
//! 3. an inner child (level above 0) is the number of a node one level below; a child at level 0 is whatever the tree above says a leaf is.
//!
//! Readers lock nothing: they read a node between two looks at its latch, and the parent's latch is looked at again after the child's version is known, so a
//! chain of validated steps is a path that existed. Writers lock one node, or parent and children, always from versions that they have seen; who comes too late
//! starts again. Full nodes are split on the way down, so a split never travels up.

mod change;

pub(super) use change::Neighbours;

use super::{Fences, GROUP, Route, Router, Target};
use crate::Key;
use crate::arena::Arena;
use crate::latch::{Latch, Restart};
use crate::strings::Strings;
use bytemuck::Zeroable;
use everleaf_pmem::schedule::{
    self,
    atomic::{AtomicU32, AtomicU64},
};
use everleaf_pmem::{probe, vector};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

/// See the module documentation.
pub struct Olc<K: ?Sized, const FANOUT: usize> {
    nodes: Arena<Node<FANOUT>>,
    strings: Strings,
    /// Guarded by `root_latch`.
    root: AtomicU32,
    root_latch: Latch,
    free: Mutex<Free>,
    _key: PhantomData<fn(&K)>,
}

#[derive(Default)]
struct Free {
    /// Lowest number that was never used.
    next: u32,
    numbers: Vec<u32>,
}

#[derive(Zeroable)]
#[repr(align(64))]
struct Node<const FANOUT: usize> {
    latch: Latch,
    shape: AtomicU64,
    high_head: AtomicU64,
    high_tail: AtomicU32,
    heads: [AtomicU64; FANOUT],
    children: [AtomicU64; FANOUT],
    tails: [AtomicU32; FANOUT],
}

/// What a search must know of a node, in one word.
#[derive(Clone, Copy)]
struct Shape {
    count: usize,
    level: u8,
    /// Number of bytes that all lows but the first share, and heads leave out.
    skip: usize,
    /// Whether there are keys between the fences that do not begin with those bytes.
    exposed: bool,
    /// Whether there is a high fence.
    bounded: bool,
}

impl Shape {
    #[inline(always)]
    fn unpack(word: u64) -> Self {
        let bit = |bit: u32| word >> bit & 1 == 1;
        Self { count: (word & 0xffff) as usize, level: (word >> 16) as u8, bounded: bit(24), exposed: bit(25), skip: (word >> 32) as usize }
    }

    fn pack(self) -> u64 {
        self.count as u64 | u64::from(self.level) << 16 | u64::from(self.bounded) << 24 | u64::from(self.exposed) << 25 | (self.skip as u64) << 32
    }
}

impl<const FANOUT: usize> Node<FANOUT> {
    #[inline(always)]
    fn shape(&self) -> Shape {
        let mut shape = Shape::unpack(self.shape.load(Relaxed));
        // Numbers may be followed into a node that is being rewritten: whatever is found, slots stay within bounds.
        shape.count = shape.count.clamp(1, FANOUT);
        shape
    }

    /// Brings the lines that a search reads closer.
    #[inline(always)]
    fn prefetch(&self) {
        probe::prefetch(&self.latch);
        for line in self.heads.chunks(8).chain(self.children.chunks(8)) {
            probe::prefetch(&line[0]);
        }
    }
}

/// An entry taken out of its node: low and child.
type Entry<K> = (<K as ToOwned>::Owned, u64);

impl<K: Key + ?Sized, const FANOUT: usize> Olc<K, FANOUT> {
    fn node(&self, number: u32) -> &Node<FANOUT> {
        self.nodes.get(number as usize).expect("the number of a node in use")
    }

    /// The node a reader was sent to, by a number that may be out of date.
    #[inline(always)]
    fn child(&self, number: u64) -> Result<&Node<FANOUT>, Restart> {
        self.nodes.get(number as usize).ok_or(Restart)
    }

    /// The last slot whose low is not above the target.
    #[inline(always)]
    fn search(&self, node: &Node<FANOUT>, shape: Shape, target: Target<'_, K>) -> usize {
        let (key, at_equal) = match target {
            Target::At(key) => (key, true),
            Target::Below(key) => (key, false),
            Target::Last => return shape.count - 1,
        };
        if shape.exposed {
            match self.strings.compare_up_to(key.bytes(), node.tails[1].load(Relaxed), shape.skip) {
                Order::Less => return 0,
                Order::Equal => {}
                Order::Greater => return shape.count - 1,
            }
        }
        let head = key.head(shape.skip);
        let last = vector::first_above(&node.heads, shape.count, head).saturating_sub(1);
        if last == 0 || node.heads[last].load(Relaxed) != head {
            return last;
        }
        if K::WHOLE {
            return if at_equal { last } else { last - 1 };
        }
        // Of the lows with that very head, count those that are not above the target.
        let first = head.checked_sub(1).map_or(1, |lower| vector::first_above(&node.heads, shape.count, lower).max(1));
        let (mut start, mut end) = (first.min(last), last + 1);
        while start < end {
            let middle = usize::midpoint(start, end);
            let order = self.strings.compare_up_to(key.bytes(), node.tails[middle].load(Relaxed), usize::MAX);
            if if at_equal { order.is_ge() } else { order.is_gt() } { start = middle + 1 } else { end = middle }
        }
        start - 1
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

    /// Searches the node that a descent has come to; goes on to its child, whose memory is asked for but not read yet.
    #[inline(always)]
    fn step<'a>(&'a self, descent: &mut Descent<'a, FANOUT>, target: Target<'_, K>) -> Result<Step<'a, FANOUT>, Restart> {
        let Descent { above, version, node, number } = *descent;
        let version = node.latch.read_below(above, version)?;
        let shape = node.shape();
        let slot = self.search(node, shape, target);
        if shape.level > 0 {
            let child = node.children[slot].load(Relaxed);
            let below = self.child(child)?;
            below.prefetch();
            *descent = Descent { above: &node.latch, version, node: below, number: child as u32 };
        }
        Ok(Step { node, number, version, slot, shape })
    }

    fn separator(&self, head: u64, tail: u32) -> K::Owned {
        let mut bytes = Vec::new();
        if !K::WHOLE {
            self.strings.read(tail, &mut bytes);
        }
        K::restore(head, &bytes)
    }

    fn low(&self, node: &Node<FANOUT>, slot: usize) -> K::Owned {
        self.separator(node.heads[slot].load(Relaxed), node.tails[slot].load(Relaxed))
    }

    fn high(&self, node: &Node<FANOUT>, shape: Shape) -> Option<K::Owned> {
        shape.bounded.then(|| self.separator(node.high_head.load(Relaxed), node.high_tail.load(Relaxed)))
    }

    /// The fences of the child at `slot`; to be validated when the node is not locked.
    fn fences_at(&self, node: &Node<FANOUT>, shape: Shape, slot: usize) -> Fences<K> {
        let high = if slot + 1 < shape.count { Some(self.low(node, slot + 1)) } else { self.high(node, shape) };
        Fences { low: self.low(node, slot), high }
    }

    fn entries(&self, node: &Node<FANOUT>) -> Vec<Entry<K>> {
        (0..node.shape().count).map(|slot| (self.low(node, slot), node.children[slot].load(Relaxed))).collect()
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
    type Neighbours<'a> = Neighbours<'a, K, FANOUT>;

    fn build(mut entries: Vec<Entry<K>>) -> Self {
        assert!(!entries.is_empty());
        let router = Self {
            nodes: Arena::new(4),
            strings: Strings::new(),
            root: AtomicU32::new(0),
            root_latch: Latch::default(),
            free: Mutex::default(),
            _key: PhantomData,
        };
        let fill = (FANOUT * 3 / 4).max(2);
        for level in 0.. {
            let mut above = Vec::with_capacity(entries.len().div_ceil(fill));
            let mut rest = &entries[..];
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(fill.min(rest.len()));
                let (number, node) = router.take();
                router.fill(node, level, chunk, after.first().map(|(low, _)| low.borrow()));
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

    #[inline(always)]
    fn find(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        let mut descent = self.begin()?;
        loop {
            if let Some(route) = self.step(&mut descent, target)?.route() {
                return Ok(route);
            }
        }
    }

    fn find_many(&self, keys: &[&K], routes: &mut [Option<Route>]) {
        let mut descents = [self.begin().ok(); GROUP];
        let mut under_way = keys.len();
        while under_way > 0 {
            under_way = 0;
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
        let fences = self.fences_at(node, node.shape(), route.slot.min(FANOUT - 1));
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

    fn neighbours(&self, key: &K) -> Result<Option<Neighbours<'_, K, FANOUT>>, Restart> {
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
        Ok(Some(Neighbours { router: self, node, lock, slot: route.slot.min(count - 2) }))
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
            if self.high(node, shape) != high {
                return Err("a node of the router whose high fence is not the next low");
            }
            let mut below = Vec::new();
            for slot in 0..shape.count {
                let fences = self.fences_at(node, shape, slot);
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

#[cfg(test)]
mod tests {
    use super::super::Neighbours as _;
    use super::*;
    use std::collections::BTreeMap;

    /// Splits and joins ranges at random; a leaf's number stands for the leaf.
    fn against_model<K: Key + ?Sized>(key: impl Fn(u64) -> K::Owned) {
        let router = Olc::<K, 4>::build(vec![(key(0), 1)]);
        let mut model = BTreeMap::from([(key(0), 1u64)]);
        let (mut state, mut next) = (7u64, 2);
        for step in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = key((state >> 33) % 1000);
            let (low, leaf) = model.range::<K::Owned, _>(..=at.clone()).next_back().map(|(low, leaf)| (low.clone(), *leaf)).unwrap();
            let route = router.find(Target::At(at.borrow())).unwrap();
            assert_eq!(route.leaf, leaf);
            if at != low && (step / 1000) % 2 == 0 {
                Router::split(&router, leaf, next, low.borrow(), at.borrow(), next + 1);
                model.insert(low, next);
                model.insert(at, next + 1);
                next += 2;
            } else if let Some(pair) = router.neighbours(at.borrow()).unwrap() {
                let [left, right] = pair.fences();
                assert_eq!(left.high.as_ref(), Some(&right.low));
                assert_eq!(pair.leaves(), [&left.low, &right.low].map(|low| *model.get::<K::Owned>(low).unwrap()));
                pair.join(next);
                model.remove::<K::Owned>(&right.low);
                model.insert(left.low, next);
                next += 1;
            }
            if step % 100 == 0 {
                let mut found = Vec::new();
                router.check(&mut |fences, leaf| found.push((fences.low.clone(), leaf))).unwrap();
                assert_eq!(found, model.clone().into_iter().collect::<Vec<_>>());
                let rebuilt = Olc::<K, 4>::build(found.clone());
                let mut again = Vec::new();
                rebuilt.check(&mut |fences, leaf| again.push((fences.low.clone(), leaf))).unwrap();
                assert_eq!(again, found);
            }
        }
    }

    #[test]
    fn integers_route_like_a_model() {
        against_model::<u64>(|n| n * 3);
    }

    #[test]
    fn byte_strings_route_like_a_model() {
        against_model::<[u8]>(|n| if n == 0 { Vec::new() } else { format!("user:{:05}:{}", n / 10, "x".repeat((n % 10) as usize)).into_bytes() });
    }

    #[test]
    fn byte_strings_of_several_families_route_like_a_model() {
        let families = ["", "media:image:", "media:image:x", "user:profile:"];
        against_model::<[u8]>(|n| if n == 0 { Vec::new() } else { format!("{}{n:04}", families[n as usize % families.len()]).into_bytes() });
    }
}
