//! What DRAM knows of the order of a leaf's keys, where they are in records. To sort a leaf by those is to read all of them: most of what a scan costs.
//!
//! ```text
//! line 0        version of the latch, 0 = none yet, or being written | numbers of slots + 1 in the order of their keys, a byte each, 0 behind the last
//! lines 1 to 4  frame: base | bytes to skip and bits to shift, 0 = no heads | a head for each slot, 4 bytes
//! ```
//!
//! An *order* is left by who has sorted the leaf, with the version of the leaf's latch that it is of; whoever scans the leaf at that version follows it.
//! Writers do not know of it, and make it old by raising the version. The version is taken away, with an exchange that one thread wins, before the slots are
//! stored, and stored behind them; who reads looks at it before and behind. Versions of a latch ascend, and those of a line too, for an older order never takes
//! the place of a newer one: so the version that is found behind the slots is that of all of them.
//!
//! A *head* is 32 bits of the key in a slot that counts: the eight bytes behind those that all keys of the range share, less the base, which is what the low
//! fence has there, and shifted as far as the range takes. So of two heads that differ the lower one is of the lower key, and the leaf is sorted without a look
//! at a record; if two are equal, their keys are read. Whoever adds a key stores its head before its fingerprint; to replace a value changes none.
//! Readers take heads for right if the version of the latch is the same behind: the head of a slot that counts does not change, and a frame is replaced under
//! the latch alone. (A first frame is also left by who holds the right to append; readers look at heads only if they have seen a frame, which is stored last.)
//!
//! A leaf begins without a frame, and has one when it is divided, or when a scan has had to read its keys. The halves keep that of the whole, and no key is
//! read, until heads tell too little: then both get frames of their own.

use super::directory::{Descriptors, Number, handle};
use super::leaf::SLOTS_MAX;
use crate::Key;
use crate::arena::Arena;
use crate::selective::leaf::each;
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::{AtomicU32, AtomicU64};
use everleaf_pmem::vector::{self, RANKED};
use everleaf_pmem::{WORD, probe};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

/// The orders of all leaves, by their descriptors' numbers.
pub(super) struct Orders(Arena<Order, 64>);

#[derive(Zeroable)]
#[repr(C, align(64))]
struct Order {
    version: AtomicU64,
    slots: [AtomicU64; SLOTS_MAX / WORD],
    base: AtomicU64,
    shape: AtomicU64,
    heads: [AtomicU32; SLOTS_MAX],
}

/// The slots of a leaf in the order of their keys.
pub(super) struct Sorted {
    /// 0 behind the last.
    bytes: [u8; SLOTS_MAX],
    count: usize,
}

impl Sorted {
    pub(super) fn of(slots: impl Iterator<Item = usize>) -> Self {
        let (mut bytes, mut count) = ([0; SLOTS_MAX], 0);
        for (byte, slot) in bytes.iter_mut().zip(slots) {
            *byte = slot as u8 + 1;
            count += 1;
        }
        Self { bytes, count }
    }

    #[inline(always)]
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.bytes[..self.count].iter().map(|&slot| usize::from(slot) - 1)
    }
}

/// Slots in the order of their heads.
pub(super) struct ByHeads {
    /// Of each the head, and the slot in the lowest byte.
    words: [u64; RANKED],
    count: usize,
}

impl ByHeads {
    /// Head and slot of each.
    #[inline(always)]
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, usize)> {
        self.words[..self.count].iter().map(|word| ((word >> 8) as u32, (word & 0xff) as usize))
    }

    /// A bit for each slot whose head another one has, too.
    #[inline(always)]
    pub(super) fn ties(&self) -> u64 {
        let equal = self.words[..self.count].windows(2).filter(|pair| pair[0] >> 8 == pair[1] >> 8);
        equal.fold(0, |ties, pair| ties | 1 << (pair[0] & 0xff) | 1 << (pair[1] & 0xff))
    }

    /// Whether they differ, and by so much that they will when keys are added between them, too.
    pub(super) fn tell_apart(&self) -> bool {
        self.ties() == 0 && self.count > 0 && self.words[self.count - 1] - self.words[0] >= APART << 8
    }
}

/// In a leaf with 56 heads of so many bits two are equal once in seven hundred times.
const APART: u64 = 1 << 20;

/// How heads follow from keys of a range, all of which begin with the same `skip` bytes.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    base: u64,
    skip: usize,
    shift: u32,
}

impl Frame {
    /// That of a range.
    pub(super) fn new<K: Key + ?Sized>(low: &K, high: Option<&K>) -> Self {
        let skip = low.shared_up_to(high);
        let base = low.head(skip);
        let span = high.map_or(u64::MAX, |high| high.head(skip)).wrapping_sub(base);
        Self { base, skip, shift: (u64::BITS - span.leading_zeros()).saturating_sub(u32::BITS) }
    }

    pub(super) fn skip(self) -> usize {
        self.skip
    }

    /// The head of a key, from the eight bytes behind `skip`, as [`Key::head`] has them.
    #[inline(always)]
    pub(super) fn head(self, bytes: u64) -> u32 {
        u32::try_from(bytes.saturating_sub(self.base) >> self.shift).unwrap_or(u32::MAX)
    }

    #[inline(always)]
    pub(super) fn head_of<K: Key + ?Sized>(self, key: &K) -> u32 {
        self.head(key.head(self.skip))
    }
}

/// Where the order of a leaf is.
#[inline(always)]
fn place(leaf: Number) -> usize {
    Descriptors::number(handle(leaf))
}

/// Above all versions of a latch that can be read.
const BEING_WRITTEN: u64 = u64::MAX;

impl Default for Orders {
    fn default() -> Self {
        Self(Arena::new())
    }
}

impl Orders {
    /// The slots of a leaf at this version, in the order of their keys, if anybody has left them.
    #[inline]
    pub(super) fn at(&self, leaf: Number, version: u64) -> Option<Sorted> {
        let order = self.0.get(place(leaf)).filter(|order| order.version.load(Acquire) == version)?;
        let words = order.slots.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        let full = words.iter().rposition(|&word| word != 0).unwrap_or(0);
        let count = full * WORD + (WORD - words[full].leading_zeros() as usize / 8);
        (order.version.load(Relaxed) == version).then(|| Sorted { bytes: bytemuck::cast(words.map(u64::to_le)), count })
    }

    /// Whether somebody has left the order of a leaf at this version.
    pub(super) fn is_at(&self, leaf: Number, version: u64) -> bool {
        self.0.get(place(leaf)).is_some_and(|order| order.version.load(Relaxed) == version)
    }

    /// Asks for the order of a leaf. A hint.
    pub(super) fn prefetch_order(&self, leaf: Number) {
        self.0.get(place(leaf)).into_iter().for_each(probe::prefetch);
    }

    /// Asks for what is known of a leaf. A hint.
    pub(super) fn prefetch(&self, leaf: Number) {
        self.0.get(place(leaf)).into_iter().for_each(probe::prefetch_lines);
    }

    /// Asks for what [`Orders::add`] reads and writes. A hint.
    #[inline(always)]
    pub(super) fn prefetch_head(&self, leaf: Number, slot: usize) {
        if let Some(order) = self.0.get(place(leaf)) {
            probe::prefetch(&order.shape);
            probe::prefetch(&order.heads[slot]);
        }
    }

    /// Leaves an order for others, unless somebody is just doing so.
    pub(super) fn leave(&self, leaf: Number, version: u64, Sorted { bytes, .. }: &Sorted) {
        let order = self.0.get_or_make(place(leaf));
        let old = order.version.load(Relaxed);
        if old >= version || order.version.compare_exchange(old, BEING_WRITTEN, Acquire, Relaxed).is_err() {
            return;
        }
        // Who sees one of the slots sees that the version is gone.
        fence(Release);
        for (word, bytes) in order.slots.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        order.version.store(version, Release);
    }

    /// These slots, which count, by their heads, if there are any. They are those of the keys if the version of the latch is the same behind.
    pub(super) fn by_heads(&self, leaf: Number, slots: u64) -> Option<ByHeads> {
        let order = self.0.get(place(leaf)).filter(|order| order.shape.load(Acquire) != 0)?;
        // With their slots no two are equal.
        let (mut found, mut words, mut count) = ([0; RANKED], [0; RANKED], 0);
        for slot in each(slots) {
            found[count] = u64::from(order.heads[slot].load(Relaxed)) << 8 | slot as u64;
            count += 1;
        }
        let ranks = vector::ranks(&found, count);
        ranks.iter().zip(&found[..count]).for_each(|(rank, word)| words[*rank as usize] = *word);
        Some(ByHeads { words, count })
    }

    /// The frame of a leaf. Which one it is counts if nobody else writes to the leaf.
    pub(super) fn frame(&self, leaf: Number) -> Option<Frame> {
        self.0.get(place(leaf))?.frame()
    }

    /// Notes the head of a key that is about to be in a slot of a leaf that nobody else writes to.
    #[inline(always)]
    pub(super) fn add<K: Key + ?Sized>(&self, leaf: Number, slot: usize, key: &K) {
        if let Some(order) = self.0.get(place(leaf))
            && let Some(frame) = order.frame()
        {
            order.heads[slot].store(frame.head_of(key), Release);
        }
    }

    /// Frames the heads of a leaf that is latched, or that does not live yet; or that has no frame, and nobody else writes to. (Two who read may frame a leaf
    /// one after the other, alike.)
    pub(super) fn set(&self, leaf: Number, frame: Frame, heads: impl Iterator<Item = (usize, u32)>) {
        let order = self.0.get_or_make(place(leaf));
        heads.for_each(|(slot, head)| order.heads[slot].store(head, Release));
        order.base.store(frame.base, Relaxed);
        order.shape.store((frame.skip as u64) << 8 | u64::from(frame.shift) << 1 | 1, Release);
    }

    /// Forgets the heads of a leaf that is latched, or that does not live yet.
    pub(super) fn forget(&self, leaf: Number) {
        self.0.get(place(leaf)).into_iter().for_each(|order| order.shape.store(0, Relaxed));
    }
}

impl Order {
    #[inline(always)]
    fn frame(&self) -> Option<Frame> {
        let shape = self.shape.load(Relaxed);
        (shape != 0).then(|| Frame { base: self.base.load(Relaxed), skip: (shape >> 8) as usize, shift: (shape >> 1) as u32 & 0x7f })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(number: usize) -> Number {
        u64::from(Descriptors::handle(number).unwrap()) << (u64::BITS - everleaf_pmem::HANDLE_BITS)
    }

    #[test]
    fn an_order_is_that_of_its_version() {
        let orders = Orders::default();
        let at = |number, version| orders.at(leaf(number), version).map(|order| order.slots().collect::<Vec<_>>());
        assert_eq!(at(3, 9), None);
        let all: Vec<usize> = (0..SLOTS_MAX).rev().collect();
        for (version, slots) in [(9, &[2, 0, 1][..]), (17, &all), (25, &[])] {
            orders.leave(leaf(3), version, &Sorted::of(slots.iter().copied()));
            assert_eq!(at(3, version).as_deref(), Some(slots));
            assert!(orders.at(leaf(3), version).unwrap().slots().rev().eq(slots.iter().copied().rev()));
            assert_eq!((at(3, version - 8), at(2, version)), (None, None));
        }
        orders.leave(leaf(3), 17, &Sorted::of(std::iter::once(4)));
        assert_eq!((at(3, 17), at(3, 25)), (None, Some(vec![])), "somebody slow has left an older one");
    }

    /// The order at each version is made of that version, so that a torn one shows.
    #[test]
    fn nobody_reads_an_order_that_is_being_written() {
        let orders = Orders::default();
        let slots = |version: u64| (0..SLOTS_MAX).map(move |at| (at + version as usize) % SLOTS_MAX);
        std::thread::scope(|scope| {
            for offset in 1..3 {
                let orders = &orders;
                scope.spawn(move || (0..50_000).for_each(|step| orders.leave(leaf(0), step * 2 + offset, &Sorted::of(slots(step * 2 + offset)))));
            }
            for version in 1..100_001 {
                if let Some(found) = orders.at(leaf(0), version) {
                    assert!(found.slots().eq(slots(version)), "of version {version}");
                }
            }
        });
    }

    /// Of ranges of every width, whose keys share nothing or much, and are of any length.
    #[test]
    fn heads_never_contradict_keys() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut told = [0, 0];
        for round in 0..2_000 {
            let (shared, varied) = (random(12), random(9) + 1);
            let mut keys: Vec<Vec<u8>> = (0..random(60) + 2)
                .map(|_| {
                    let length = shared + random(varied + 1);
                    (0..length).map(|at| if at < shared { 7 } else { [0, 1, 2, 254, 255][random(5)] }).collect()
                })
                .collect();
            keys.sort();
            keys.dedup();
            if keys.len() < 3 {
                continue;
            }
            let high = keys.pop().filter(|_| round % 3 > 0);
            let low = keys.remove(0);
            let frame = Frame::new(&low[..], high.as_deref());
            let heads: Vec<u32> = keys.iter().map(|key| frame.head_of(&key[..])).collect();
            assert!(heads.is_sorted(), "{low:?} {keys:?} {high:?} {heads:?}");
            // In slots of a leaf: half of them there when it was framed, the others added.
            let orders = Orders::default();
            let keys = &keys[..keys.len().min(SLOTS_MAX)];
            let slot = |at: usize| (at * 5 + round) % SLOTS_MAX;
            let slots = (0..keys.len()).fold(0, |slots, at| slots | 1 << slot(at));
            assert!(orders.by_heads(leaf(7), slots).is_none() && orders.frame(leaf(7)).is_none(), "nobody has framed them");
            orders.set(leaf(7), frame, (0..keys.len() / 2).map(|at| (slot(at), heads[at])));
            (keys.len() / 2..keys.len()).for_each(|at| orders.add(leaf(7), slot(at), &keys[at][..]));
            let sorted = orders.by_heads(leaf(7), slots).unwrap();
            let mut expected: Vec<_> = (0..keys.len()).map(|at| (heads[at], slot(at))).collect();
            expected.sort();
            assert!(sorted.slots().eq(expected), "{heads:?}");
            let differ = heads[..keys.len()].windows(2).all(|pair| pair[0] < pair[1]);
            let tied = |at: usize| heads[..keys.len()].iter().filter(|head| **head == heads[at]).count() > 1;
            assert_eq!(sorted.ties(), (0..keys.len()).filter(|at| tied(*at)).fold(0, |ties, at| ties | 1 << slot(at)));
            assert!(differ || !sorted.tell_apart());
            told[usize::from(differ)] += 1;
            let kept = orders.frame(leaf(7)).unwrap();
            assert!((0..keys.len()).all(|at| kept.head_of(&keys[at][..]) == heads[at]));
            orders.forget(leaf(7));
            assert!(orders.by_heads(leaf(7), slots).is_none() && orders.frame(leaf(7)).is_none());
        }
        assert!(told.iter().all(|count| *count > 200), "of both kinds: {told:?}");
    }

    #[test]
    fn what_a_range_shares_or_lacks_costs_no_bit() {
        let keys = |count: u32| (0..count).map(|at| [b"a long prefix".as_slice(), &(1_000_000 + at).to_be_bytes()].concat());
        let (low, high) = (keys(1).next().unwrap(), keys(101).next_back().unwrap());
        let frame = Frame::new(&low[..], Some(&high[..]));
        let heads: Vec<u32> = keys(100).map(|key| frame.head_of(&key[..])).collect();
        assert!(heads.windows(2).all(|pair| pair[1] - pair[0] > 1 << 23), "a hundred keys, as far apart as 32 bits have them: {heads:?}");
    }
}
