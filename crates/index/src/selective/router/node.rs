//! The nodes of routers, and how their entries change.
//!
//! ```text
//! node   latch | shape: count, level, skip, exposed | hints[6] | heads[FANOUT] | children[FANOUT] | tails[FANOUT] | high fence
//! line   0 --------------------------------------------------- | 1 ...
//! ```
//!
//! Entry i is a child and the lowest key that belongs under it: `low(i) <= key < low(i + 1)`, and for the last entry `key < high`. Entry 0's low is the low
//! fence of the node. All other lows begin with the same `skip` bytes. A *head* is the eight bytes after them, so one word decides nearly every comparison. The
//! *tail* names the whole separator in [`Strings`], for when heads are equal. For `u64` keys the head is everything.
//!
//! Mostly every key between the fences has those `skip` bytes, too. At the edges of the tree (the root has no fences but the lowest key) keys may differ in
//! them: there, `exposed` says that a search must compare them first.
//!
//! A search waits for memory at most twice. Heads are in parts of equal size, and hint i is the first head of part i + 1, so the first line tells which part to
//! search. The lines of that part, heads and children, are then prefetched together. A head that is not there is as large as can be, so a part is compared as a
//! whole, and no branch depends on what is found. The first lines of all nodes are few enough to stay in the caches when the nodes do not.
//!
//! Lows ascend strictly, and lie between the fences. Every function that changes a node that others can reach is called under its lock. Readers look at a node
//! between two looks at a latch, and what they read of a node that changes is some entry of some node.

use super::{Fences, Target};
use crate::Key;
use crate::latch::Latch;
use crate::strings::Strings;
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::{AtomicU32, AtomicU64};
use everleaf_pmem::{probe, vector};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;
use vector::{Parted, Rank, Wide};

/// By how many bytes heads must reach further to be worth the comparison that an exposed node takes.
const EXPOSED_GAIN: usize = 4;

/// See the module documentation.
#[derive(Zeroable)]
#[repr(C)]
pub(super) struct Node<const FANOUT: usize> {
    heads: Parted<Header, FANOUT>,
    pub(super) children: [AtomicU64; FANOUT],
    tails: [AtomicU32; FANOUT],
    high_tail: AtomicU32,
    high_head: AtomicU64,
}

/// What the first line has beside the hints.
#[derive(Zeroable)]
#[repr(C)]
struct Header {
    latch: Latch,
    shape: AtomicU64,
}

/// A head as it is stored: the signed integer with the same order, since vectors compare signed integers. This is its own inverse.
const fn signed(head: u64) -> u64 {
    head ^ 1 << 63
}

/// What a search must know of a node, in one word.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) count: usize,
    pub(super) level: u8,
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
    pub(super) fn latch(&self) -> &Latch {
        &self.heads.header.latch
    }

    /// The shape of a node that may be changing: the count may be anything.
    #[inline(always)]
    pub(super) fn glance(&self) -> Shape {
        Shape::unpack(self.heads.header.shape.load(Relaxed))
    }

    #[inline(always)]
    pub(super) fn shape(&self) -> Shape {
        let mut shape = self.glance();
        // Numbers may be followed into a node that is being rewritten: whatever is found, slots stay within bounds.
        shape.count = shape.count.clamp(1, FANOUT);
        shape
    }

    /// Prefetches the line that a search reads first.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        probe::prefetch(self.latch());
    }

    /// Prefetches what a search for this head reads next.
    #[inline(always)]
    pub(super) fn approach(&self, wide: Option<Wide>, head: u64) {
        self.approach_part(Self::part_of(self.heads.part(wide, signed(head))));
    }

    /// The part that a slot belongs to.
    pub(super) fn part_of(slot: usize) -> usize {
        slot / Parted::<Header, FANOUT>::PART
    }

    /// Prefetches a part, if there is one of that number.
    #[inline(always)]
    pub(super) fn approach_part(&self, part: usize) {
        let start = part * Parted::<Header, FANOUT>::PART;
        for slot in (start..start + Parted::<Header, FANOUT>::PART).step_by(8) {
            probe::prefetch_one(&self.heads.words, slot);
            probe::prefetch_one(&self.children, slot);
        }
    }

    #[inline(always)]
    fn head(&self, slot: usize) -> u64 {
        signed(self.heads.words[slot].load(Relaxed))
    }

    fn set_head(&self, slot: usize, head: u64) {
        self.heads.words[slot].store(signed(head), Relaxed);
        let part = Parted::<Header, FANOUT>::PART;
        if slot > 0 && slot.is_multiple_of(part) {
            self.heads.hints[slot / part - 1].store(signed(head), Relaxed);
        }
    }

    /// Number of heads that are not above this one, or more if there is none larger. Prefetches the children that may be meant.
    #[inline(always)]
    fn not_above(&self, head: u64) -> usize {
        let Rank { part, count } = self.heads.not_above(Wide::get(), signed(head));
        self.prefetch_children(part);
        count
    }

    /// Prefetches the children of a part.
    #[inline(always)]
    fn prefetch_children(&self, part: usize) {
        for slot in (0..Parted::<Header, FANOUT>::PART).step_by(8) {
            probe::prefetch_one(&self.children, part + slot);
        }
    }

    /// For keys that heads hold whole: the slot whose range holds the key, if the node is on the lowest level and there is a head above the key, or no fence.
    #[inline(always)]
    pub(super) fn lowest_slot_of(&self, wide: Option<Wide>, head: u64) -> Option<usize> {
        let shape = self.glance();
        let Rank { part, count } = self.heads.not_above(wide, signed(head));
        self.prefetch_children(part);
        (shape.level == 0 && count > 0 && count < shape.count + usize::from(!shape.bounded)).then(|| count - 1)
    }

    /// Number of heads below this one.
    #[inline(always)]
    fn below(&self, head: u64) -> usize {
        head.checked_sub(1).map_or(0, |before| self.not_above(before))
    }

    /// Prefetches what moves when an entry is added or removed behind `slot`.
    pub(super) fn approach_behind(&self, slot: usize) {
        for slot in (slot..self.shape().count).step_by(8) {
            probe::prefetch_one(&self.heads.words, slot);
            probe::prefetch_one(&self.children, slot);
        }
    }

    fn set_count(&self, count: usize) {
        self.heads.header.shape.store(Shape { count, ..self.shape() }.pack(), Relaxed);
    }
}

/// An entry taken out of its node: low and child.
pub(super) type Entry<K> = (<K as ToOwned>::Owned, u64);

/// The separators of nodes, as far as they are not in the nodes.
pub(super) struct Separators<K: ?Sized> {
    strings: Strings,
    _key: PhantomData<fn(&K)>,
}

impl<K: Key + ?Sized> Separators<K> {
    pub(super) fn new() -> Self {
        Self { strings: Strings::new(), _key: PhantomData }
    }

    /// The last slot whose low is not above the target.
    #[inline(always)]
    pub(super) fn search<const FANOUT: usize>(&self, node: &Node<FANOUT>, shape: Shape, target: Target<'_, K>) -> usize {
        let (key, at_equal) = match target {
            Target::At(key) => (key, true),
            Target::Below(key) => (key, false),
            Target::Last => return shape.count.saturating_sub(1),
        };
        if !K::WHOLE && shape.exposed {
            match self.strings.compare_up_to(key.bytes(), node.tails[1].load(Relaxed), shape.skip) {
                Order::Less => return 0,
                Order::Equal => {}
                Order::Greater => return shape.count.saturating_sub(1),
            }
        }
        let head = key.head(shape.skip);
        if K::WHOLE {
            return if at_equal { node.not_above(head) } else { node.below(head) }.min(shape.count).saturating_sub(1);
        }
        let last = node.not_above(head).min(shape.count).saturating_sub(1);
        if last == 0 || node.head(last) != head {
            return last;
        }
        // Among the lows with exactly that head, count those that are not above the target.
        let first = node.below(head).max(1);
        let (mut start, mut end) = (first.min(last), last + 1);
        while start < end {
            let middle = usize::midpoint(start, end);
            let order = self.strings.compare_up_to(key.bytes(), node.tails[middle].load(Relaxed), usize::MAX);
            if if at_equal { order.is_ge() } else { order.is_gt() } { start = middle + 1 } else { end = middle }
        }
        start - 1
    }

    /// Prefetches what the search for a key reads, in a node whose first line is there.
    #[inline(always)]
    pub(super) fn approach<const FANOUT: usize>(&self, wide: Option<Wide>, node: &Node<FANOUT>, key: &K) {
        node.approach(wide, key.head(node.shape().skip));
    }

    fn separator(&self, head: u64, tail: u32) -> K::Owned {
        let mut bytes = Vec::new();
        if !K::WHOLE {
            self.strings.read(tail, &mut bytes);
        }
        K::restore(head, &bytes)
    }

    pub(super) fn low<const FANOUT: usize>(&self, node: &Node<FANOUT>, slot: usize) -> K::Owned {
        self.separator(node.head(slot), node.tails[slot].load(Relaxed))
    }

    pub(super) fn high<const FANOUT: usize>(&self, node: &Node<FANOUT>, shape: Shape) -> Option<K::Owned> {
        shape.bounded.then(|| self.separator(node.high_head.load(Relaxed), node.high_tail.load(Relaxed)))
    }

    /// The fences of the child at `slot`, to be validated if the node is not locked.
    pub(super) fn fences_at<const FANOUT: usize>(&self, node: &Node<FANOUT>, shape: Shape, slot: usize) -> Fences<K> {
        Fences { low: self.low(node, slot), high: self.high_at(node, shape, slot) }
    }

    /// The high one of them.
    pub(super) fn high_at<const FANOUT: usize>(&self, node: &Node<FANOUT>, shape: Shape, slot: usize) -> Option<K::Owned> {
        if slot + 1 < shape.count { Some(self.low(node, slot + 1)) } else { self.high(node, shape) }
    }

    pub(super) fn entries<const FANOUT: usize>(&self, node: &Node<FANOUT>) -> Vec<Entry<K>> {
        (0..node.shape().count).map(|slot| (self.low(node, slot), node.children[slot].load(Relaxed))).collect()
    }

    pub(super) fn clear<const FANOUT: usize>(&self, node: &Node<FANOUT>) {
        let shape = node.shape();
        if !K::WHOLE {
            for tail in &node.tails[..shape.count] {
                self.strings.remove(tail.swap(0, Relaxed));
            }
            self.strings.remove(node.high_tail.swap(0, Relaxed));
        }
    }

    /// Refills a node that the caller has locked, or that nobody can reach. What may fail, room for strings, comes before it is touched.
    pub(super) fn fill<const FANOUT: usize>(&self, node: &Node<FANOUT>, level: u8, entries: &[Entry<K>], high: Option<&K>) {
        let tails: Vec<u32> = entries.iter().map(|(low, _)| self.strings.add(low.borrow().bytes())).collect();
        let high_tail = high.map_or(0, |high| self.strings.add(high.bytes()));
        self.clear(node);
        let low: &K = entries[0].0.borrow();
        // Lows ascend, so what the first and the last one share is shared by all.
        let fenced = low.shared_up_to(high);
        let shared = if let [_, first, .., last] = entries { first.0.borrow().shared(last.0.borrow()) } else { fenced };
        let exposed = shared >= fenced + EXPOSED_GAIN;
        let shape = Shape { count: entries.len(), level, skip: if exposed { shared } else { fenced }, exposed, bounded: high.is_some() };
        node.heads.hints.iter().for_each(|hint| hint.store(signed(u64::MAX), Relaxed));
        for (slot, ((low, child), tail)) in entries.iter().zip(tails).enumerate() {
            Self::put(node, shape, slot, low.borrow(), tail, *child);
        }
        (entries.len()..FANOUT).for_each(|slot| node.set_head(slot, u64::MAX));
        if let Some(high) = high {
            node.high_head.store(high.head(shape.skip), Relaxed);
            node.high_tail.store(high_tail, Relaxed);
        }
        node.heads.header.shape.store(shape.pack(), Relaxed);
    }

    fn put<const FANOUT: usize>(node: &Node<FANOUT>, shape: Shape, slot: usize, low: &K, tail: u32, child: u64) {
        // The first low need not have the bytes that the others share; it is below them all.
        let head = if shape.exposed && slot == 0 { 0 } else { low.head(shape.skip) };
        node.set_head(slot, head);
        node.tails[slot].store(tail, Relaxed);
        node.children[slot].store(child, Relaxed);
    }

    fn copy_slot<const FANOUT: usize>(&self, node: &Node<FANOUT>, from: usize, to: usize) {
        node.set_head(to, node.head(from));
        if !K::WHOLE {
            node.tails[to].store(node.tails[from].load(Relaxed), Relaxed);
        }
        node.children[to].store(node.children[from].load(Relaxed), Relaxed);
    }

    /// Adds an entry behind `slot` of a locked node that is not full.
    pub(super) fn insert_behind<const FANOUT: usize>(&self, node: &Node<FANOUT>, slot: usize, low: &K, child: u64) {
        let shape = node.shape();
        // The low lacks the bytes that the others share; or, now and then, it is time to see whether they share more than they did.
        let unlike = shape.exposed && self.strings.compare_up_to(low.bytes(), node.tails[1].load(Relaxed), shape.skip).is_ne();
        if unlike || !K::WHOLE && (shape.count + 1).is_power_of_two() {
            let (mut entries, high) = (self.entries(node), self.high(node, shape));
            entries.insert(slot + 1, (low.to_owned(), child));
            self.fill(node, shape.level, &entries, high.as_ref().map(Borrow::borrow));
            return;
        }
        let tail = self.strings.add(low.bytes());
        for from in (slot + 1..shape.count).rev() {
            self.copy_slot(node, from, from + 1);
        }
        Self::put(node, shape, slot + 1, low, tail, child);
        node.set_count(shape.count + 1);
    }

    /// Removes the entry at `slot` of a locked node; what was under it belongs to the entry before.
    pub(super) fn remove_at<const FANOUT: usize>(&self, node: &Node<FANOUT>, slot: usize) {
        let count = node.shape().count;
        self.strings.remove(node.tails[slot].load(Relaxed));
        for from in slot + 1..count {
            self.copy_slot(node, from, from - 1);
        }
        // The last slot's tail now belongs to the slot before it.
        node.tails[count - 1].store(0, Relaxed);
        node.set_head(count - 1, u64::MAX);
        node.set_count(count - 1);
    }
}
