//! The order of a leaf's keys, kept in DRAM if keys are in records. Sorting a leaf by its keys would read all the records: most of the cost of a scan.
//!
//! ```text
//! line 0        version of the latch, or no version: 0, an even number, or all bits set while it is being written
//!               | numbers of slots + 1 in the order of their keys, a byte each, 0 behind the last
//! lines 1 to 4  frame: base | bytes to skip and bits to shift, 0 = no heads | what is skipped | a head for each slot, 4 bytes
//! ```
//!
//! An *order* belongs to one version of the leaf's latch, which stands beside it; a scan of the leaf at that version follows it. Its writers:
//!
//! - A thread that has sorted the leaf *leaves* the order: a reader with the version that it has read, at which no thread appended, and a thread that divides a
//!   leaf, for both halves. It first takes away the version in the line if that is lower than its own, with an exchange that only one thread wins. If the
//!   version is not lower, or is taken away already, it gives up.
//! - A thread that adds or removes a key *follows* the order that it finds at the version from which it holds the leaf: it inserts the slot where its head
//!   belongs, or removes it, and stores the version that the latch will have when the leaf is released.
//! - A thread that replaces a value stores only the new version.
//!
//! Why a reader never takes an order for that of another version:
//!
//! 1. The version is taken away before slots are stored, and stored behind them, and nothing in between can fail; a reader looks at it before and behind.
//! 2. The versions in a line ascend, as those of a latch do, except for those that a holder has stored and no thread has read yet. So the version found behind
//!    the slots is not that of a later order with an equal version. A thread that leaves an order has a higher version than it finds. A thread that holds the
//!    leaf from a version that it finds beside the order is the only one to store there: all that want to leave an order have read the latch before, at that
//!    version or a lower one, and give up. So it needs no exchange.
//! 3. No thread reads the latch at the version that a holder has stored before the leaf is released. The holder stores it only if its hold cannot end at
//!    another version: if it appends first and then locks, only after locking; and never if it may release the leaf unchanged, because the next holder would
//!    come to the same version with other contents ([`Change`]).
//! 4. Of several writes to a leaf that is held once (`batch.rs`), each but the first continues from the version that the one before it has stored, and from no
//!    other: a slow thread may have left the order of the version from which the leaf is held after the first had looked.
//! 5. If a leaf is just being made, its version can be read already. A thread that comes there by a stale way leaves nothing: it checks the way after the
//!    latch, and the way has changed before the leaf began to live again.
//!
//! If two heads are equal, or there are none, the order becomes stale, and the next scan sorts again. An order that earlier writes of a batch have already
//! followed then gets a number that is no version.
//!
//! A *head* is 32 bits of the key in a slot that counts: the eight bytes behind those that all keys of the range share, less those of the low fence (the base),
//! shifted as the range requires. So of two different heads the lower one is of the lower key, and the leaf is sorted without reading a record. If two heads
//! are equal, their keys are read. A thread that adds a key stores its head before its fingerprint; replacing a value changes no head.
//!
//! Keys may share more than their range implies: the last range has no end, and the first begins with nothing. So if the frame of the range tells too little, a
//! leaf has a frame of its keys: it skips all shared bytes except the last two, and has room beside the keys for many times their span. A key that does not
//! begin with the skipped bytes has head 0 if it is below, or the highest head if it is above. The skipped bytes are a string in DRAM, which only threads that
//! may replace a frame read and give back.
//!
//! Readers trust heads if the version of the latch is the same behind: the head of a slot that counts does not change, and a frame is replaced only under the
//! latch. (A thread that holds the right to append may also leave a first frame; readers look at heads only if they have seen a frame, which is stored last.)
//!
//! A leaf begins without a frame, and gets one when it is divided, or when a scan has had to read its keys. The halves keep the frame of the whole, and no key
//! is read, until heads tell too little: then each gets its own frame.

use super::directory::{Descriptors, Number, handle};
use super::leaf::SLOTS_MAX;
use crate::Key;
use crate::arena::Arena;
use crate::latch::Change;
use crate::selective::leaf::each;
use crate::strings::Strings;
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::{AtomicU32, AtomicU64};
use everleaf_pmem::vector::{self, RANKED};
use everleaf_pmem::{WORD, probe};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

/// The orders of all leaves.
pub(super) struct Orders {
    /// By the numbers of their descriptors.
    places: Arena<Order, 64>,
    /// The bytes that frames of keys skip.
    skipped: Strings,
}

#[derive(Zeroable)]
#[repr(C, align(64))]
struct Order {
    version: AtomicU64,
    slots: [AtomicU64; SLOTS_MAX / WORD],
    base: AtomicU64,
    shape: AtomicU64,
    /// The number of a string; 0 if all keys of the range share what is skipped.
    skipped: AtomicU64,
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
    /// For each slot its head, and the slot in the lowest byte.
    words: [u64; RANKED],
    count: usize,
}

impl ByHeads {
    /// The head and slot of each.
    #[inline(always)]
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, usize)> {
        self.words[..self.count].iter().map(|word| ((word >> 8) as u32, (word & 0xff) as usize))
    }

    /// A bit for each slot whose head another one also has.
    #[inline(always)]
    pub(super) fn ties(&self) -> u64 {
        let equal = self.words[..self.count].windows(2).filter(|pair| pair[0] >> 8 == pair[1] >> 8);
        equal.fold(0, |ties, pair| ties | 1 << (pair[0] & 0xff) | 1 << (pair[1] & 0xff))
    }

    /// Whether these are `count` slots whose heads differ, by so much that they still will when keys are added in between. Then they are in order, and of that
    /// many slots, whoever has put them there.
    pub(super) fn tell_apart(&self, count: usize) -> bool {
        self.count == count && tell_apart(self.slots().map(|(head, _)| head))
    }
}

/// Whether heads ascend in this order, and by so much that they will still do so when keys are added in between.
pub(super) fn tell_apart(mut heads: impl Iterator<Item = u32>) -> bool {
    let Some(first) = heads.next() else { return false };
    let mut last = first;
    heads.all(|head| std::mem::replace(&mut last, head) < head) && last - first >= APART
}

/// In a leaf with 56 heads of this many bits, two are equal once in seven hundred times.
const APART: u32 = 1 << 20;

/// How many of the bytes that keys share a frame of them does not skip: the next keys may count on there.
const KEPT: usize = 2;
/// The room on both sides of the keys, in multiples of their span.
const ROOM: u64 = 64;

/// How heads are computed from keys of a range.
#[derive(Clone, Default)]
pub(super) struct Frame {
    scale: Scale,
    /// The bytes to skip, if not all keys of the range begin with them.
    skipped: Vec<u8>,
}

/// How heads are computed from keys that begin with the same `skip` bytes.
#[derive(Clone, Copy, Default)]
struct Scale {
    base: u64,
    skip: usize,
    shift: u32,
}

impl Frame {
    /// The frame of a range.
    pub(super) fn new<K: Key + ?Sized>(low: &K, high: Option<&K>) -> Self {
        let skip = low.shared_up_to(high);
        let base = low.head(skip);
        let span = high.map_or(u64::MAX, |high| high.head(skip)).wrapping_sub(base);
        Self { scale: Scale::new(base, skip, span), skipped: Vec::new() }
    }

    /// A frame for keys of a range from `first` to `last`, and others beside them.
    pub(super) fn around<K: Key + ?Sized>(low: &K, high: Option<&K>, first: &K, last: &K) -> Self {
        let of_all = low.shared_up_to(high);
        // A single key shares with others all but its last two bytes.
        let shared = first.shared(last).min(last.bytes().len().saturating_sub(2));
        let skip = shared.saturating_sub(KEPT).max(of_all);
        // One in the byte in which they differ, if that is among the eight.
        let unit = 1 << ((7 - shared.saturating_sub(skip).min(7)) * 8);
        let [from, to] = [first, last].map(|key| key.head(skip));
        let room = to.saturating_sub(from).max(unit).saturating_mul(ROOM);
        let base = from.saturating_sub(room);
        let skipped = if skip > of_all { last.bytes()[..skip].to_vec() } else { Vec::new() };
        Self { scale: Scale::new(base, skip, to.saturating_add(room).saturating_sub(base)), skipped }
    }

    pub(super) fn skip(&self) -> usize {
        self.scale.skip
    }

    /// The head of a key that begins with the skipped bytes, from the eight bytes behind them, as [`Key::head`] returns them.
    pub(super) fn head(&self, bytes: u64) -> u32 {
        self.scale.head(bytes)
    }

    pub(super) fn head_of<K: Key + ?Sized>(&self, key: &K) -> u32 {
        let bytes = key.bytes();
        let beside = if self.skipped.is_empty() { Equal } else { bytes[..bytes.len().min(self.skipped.len())].cmp(&self.skipped) };
        self.scale.head_of(key, beside)
    }
}

impl Scale {
    /// For values up to `span` above `base`.
    fn new(base: u64, skip: usize, span: u64) -> Self {
        Self { base, skip, shift: (u64::BITS - span.leading_zeros()).saturating_sub(u32::BITS) }
    }

    #[inline(always)]
    fn head(self, bytes: u64) -> u32 {
        u32::try_from(bytes.saturating_sub(self.base) >> self.shift).unwrap_or(u32::MAX)
    }

    /// The head of a key. `beside` is how it compares with keys that begin with the skipped bytes.
    #[inline(always)]
    fn head_of<K: Key + ?Sized>(self, key: &K, beside: std::cmp::Ordering) -> u32 {
        match beside {
            Less => 0,
            Equal => self.head(key.head(self.skip)),
            Greater => u32::MAX,
        }
    }
}

/// The index of the order of a leaf.
#[inline(always)]
fn place(leaf: Number) -> usize {
    Descriptors::number(handle(leaf))
}

/// Above all versions of a latch that can be read.
const BEING_WRITTEN: u64 = u64::MAX;

/// Stands for a version at which no order is known. It is even, as no readable version is; it lies below `version`, and above all before.
pub(super) fn lost(version: u64) -> u64 {
    version - 1
}

/// The bits of word `at` of an order that belong to the first `rank` slots.
#[inline(always)]
fn kept(rank: usize, at: usize) -> u64 {
    match rank.saturating_sub(at * WORD) {
        count @ ..WORD => !(u64::MAX << (count * 8)),
        _ => u64::MAX,
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self { places: Arena::new(), skipped: Strings::new() }
    }
}

impl Orders {
    /// The slots of a leaf at this version, in the order of their keys, if a thread has left them.
    #[inline]
    pub(super) fn at(&self, leaf: Number, version: u64) -> Option<Sorted> {
        let order = self.places.get(place(leaf)).filter(|order| order.version.load(Acquire) == version)?;
        let words = order.slots.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        let full = words.iter().rposition(|&word| word != 0).unwrap_or(0);
        let count = full * WORD + (WORD - words[full].leading_zeros() as usize / 8);
        (order.version.load(Relaxed) == version).then(|| Sorted { bytes: bytemuck::cast(words.map(u64::to_le)), count })
    }

    /// Whether a thread has left the order of a leaf at this version.
    pub(super) fn is_at(&self, leaf: Number, version: u64) -> bool {
        self.places.get(place(leaf)).is_some_and(|order| order.version.load(Relaxed) == version)
    }

    /// Prefetches the order of a leaf. A hint.
    pub(super) fn prefetch_order(&self, leaf: Number) {
        self.places.get(place(leaf)).into_iter().for_each(probe::prefetch);
    }

    /// Prefetches what is known of a leaf. A hint.
    pub(super) fn prefetch(&self, leaf: Number) {
        self.places.get(place(leaf)).into_iter().for_each(probe::prefetch_lines);
    }

    /// Prefetches the order of a leaf, and where the head of a key in a slot will be; [`Orders::add`] reads the others, too. A hint.
    #[inline(always)]
    pub(super) fn prefetch_head(&self, leaf: Number, slot: usize) {
        if let Some(order) = self.places.get(place(leaf)) {
            probe::prefetch(order);
            probe::prefetch(&order.shape);
            probe::prefetch(&order.heads[slot]);
        }
    }

    /// Leaves an order for other threads, unless one is just doing so.
    pub(super) fn leave(&self, leaf: Number, version: u64, sorted: &Sorted) {
        let order = self.places.get_or_make(place(leaf));
        let old = order.version.load(Relaxed);
        if old >= version || order.version.compare_exchange(old, BEING_WRITTEN, Acquire, Relaxed).is_err() {
            return;
        }
        order.store(version, sorted.bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
    }

    /// Notes a key that is about to be in a slot of a leaf to which no other thread writes: its head, and its place in the order.
    #[inline(always)]
    pub(super) fn add<K: Key + ?Sized>(&self, leaf: Number, change: Change, slot: usize, key: &K) {
        let Some(order) = self.places.get(place(leaf)) else { return };
        let head = order.scale().map(|scale| {
            let skipped = order.skipped.load(Relaxed) as u32;
            scale.head_of(key, if skipped == 0 { Equal } else { self.skipped.compare_up_to(key.bytes(), skipped, scale.skip) })
        });
        if let Some(head) = head {
            order.heads[slot].store(head, Release);
        }
        order.follow(
            change,
            || order.rank(head?),
            |rank, words, at| {
                let before = match at.checked_sub(1) {
                    Some(before) if rank < at * WORD => words[before] >> (u64::BITS - 8),
                    _ => 0,
                };
                let put = if rank / WORD == at { (slot as u64 + 1) << (rank % WORD * 8) } else { before };
                words[at] & kept(rank, at) | (words[at] & !kept(rank, at)) << 8 | put
            },
        );
    }

    /// Removes a slot from the order of a leaf to which no other thread writes.
    #[inline(always)]
    pub(super) fn remove(&self, leaf: Number, change: Change, slot: usize) {
        let Some(order) = self.places.get(place(leaf)) else { return };
        let rank = || Some(vector::equal_bytes_of_seven(&order.slots, slot as u8 + 1).trailing_zeros() as usize).filter(|rank| *rank < SLOTS_MAX);
        order.follow(change, rank, |rank, words, at| {
            let behind = words.get(at + 1).map_or(0, |behind| behind << (u64::BITS - 8));
            words[at] & kept(rank, at) | (words[at] >> 8 | behind) & !kept(rank, at)
        });
    }

    /// Keeps the order through a change of a value.
    #[inline(always)]
    pub(super) fn carry(&self, leaf: Number, Change { from, to }: Change) {
        if let Some(order) = self.places.get(place(leaf)).filter(|order| order.version.load(Acquire) == from) {
            order.version.store(to, Release);
        }
    }

    /// These slots, which count, by their heads, if there are any. The heads are those of the keys if the version of the latch is the same behind.
    pub(super) fn by_heads(&self, leaf: Number, slots: u64) -> Option<ByHeads> {
        let order = self.places.get(place(leaf)).filter(|order| order.shape.load(Acquire) != 0)?;
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

    /// The slots of a leaf at this version, with their heads, if it has any, and its order is known.
    pub(super) fn by_order(&self, leaf: Number, version: u64) -> Option<ByHeads> {
        let order = self.places.get(place(leaf)).filter(|order| order.shape.load(Acquire) != 0)?;
        let sorted = self.at(leaf, version)?;
        let mut words = [0; RANKED];
        for (word, slot) in words.iter_mut().zip(sorted.slots()) {
            *word = u64::from(order.heads[slot].load(Relaxed)) << 8 | slot as u64;
        }
        Some(ByHeads { words, count: sorted.count })
    }

    /// Whether a leaf has a frame.
    pub(super) fn is_framed(&self, leaf: Number) -> bool {
        self.places.get(place(leaf)).is_some_and(|order| order.scale().is_some())
    }

    /// The frame of a leaf to which no other thread writes.
    pub(super) fn frame(&self, leaf: Number) -> Option<Frame> {
        let order = self.places.get(place(leaf))?;
        let mut frame = Frame { scale: order.scale()?, skipped: Vec::new() };
        self.skipped.read(order.skipped.load(Relaxed) as u32, &mut frame.skipped);
        Some(frame)
    }

    /// Sets frame and heads of a leaf that is latched, or does not live yet, or that has no frame and to which no other thread writes. (Two readers may set the
    /// same frame of a leaf one after the other.)
    pub(super) fn set(&self, leaf: Number, frame: &Frame, heads: impl Iterator<Item = (usize, u32)>) {
        let order = self.places.get_or_make(place(leaf));
        heads.for_each(|(slot, head)| order.heads[slot].store(head, Release));
        let Scale { base, skip, shift } = frame.scale;
        order.base.store(base, Relaxed);
        self.skipped.remove(order.skipped.swap(self.skipped.add(&frame.skipped).into(), Relaxed) as u32);
        order.shape.store((skip as u64) << 8 | u64::from(shift) << 1 | 1, Release);
    }

    /// Forgets the heads of a leaf that is latched, or does not live yet.
    pub(super) fn forget(&self, leaf: Number) {
        if let Some(order) = self.places.get(place(leaf)) {
            order.shape.store(0, Relaxed);
            self.skipped.remove(order.skipped.swap(0, Relaxed) as u32);
        }
    }
}

impl Order {
    /// Stores slots, and behind them their version. The caller ensures that no other thread does.
    #[inline(always)]
    fn store(&self, version: u64, words: impl Iterator<Item = u64>) {
        // A thread that sees one of the slots sees that the version is gone.
        fence(Release);
        self.slots.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        self.version.store(version, Release);
    }

    /// Makes the order follow a change of the leaf, if it is known: the rank of the slot determines each word. If the rank is unknown, the order is dropped.
    /// (All by whole words: a processor stalls if it reads a word of which parts were just stored.)
    #[inline(always)]
    fn follow(&self, Change { from, to }: Change, rank: impl FnOnce() -> Option<usize>, word: impl Fn(usize, &[u64; SLOTS_MAX / WORD], usize) -> u64) {
        if self.version.load(Acquire) != from {
            return;
        }
        let Some(rank) = rank() else {
            return self.version.store(lost(to), Relaxed);
        };
        let words = self.slots.each_ref().map(|word| word.load(Relaxed));
        self.version.store(BEING_WRITTEN, Relaxed);
        self.store(to, (0..words.len()).map(|at| word(rank, &words, at)));
    }

    /// Number of slots in order whose heads are below `head`; `None` if one of them is equal, or the leaf is full.
    #[inline(always)]
    fn rank(&self, head: u32) -> Option<usize> {
        // What is behind the last slot is above all heads.
        let head_at = |at: usize| match (self.slots[at / WORD].load(Relaxed) >> (at % WORD * 8)) as u8 {
            0 => u64::MAX,
            slot => u64::from(self.heads[usize::from(slot) - 1].load(Relaxed)),
        };
        let (mut rank, mut size) = (0, SLOTS_MAX);
        while size > 1 {
            let half = size / 2;
            // No branch, since it would be unpredictable.
            rank += if head_at(rank + half) < head.into() { half } else { 0 };
            size -= half;
        }
        rank += usize::from(head_at(rank) < head.into());
        (rank < SLOTS_MAX && head_at(rank) != head.into() && head_at(SLOTS_MAX - 1) == u64::MAX).then_some(rank)
    }

    #[inline(always)]
    fn scale(&self) -> Option<Scale> {
        let shape = self.shape.load(Relaxed);
        (shape != 0).then(|| Scale { base: self.base.load(Relaxed), skip: (shape >> 8) as usize, shift: (shape >> 1) as u32 & 0x7f })
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

    /// The order at each version is computed from that version, so that a torn one shows.
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

    /// Compared with the same in a vector; there are so few heads that some are equal.
    #[test]
    fn an_order_follows_what_is_added_and_removed() {
        let orders = Orders::default();
        let key = |head: u32| u64::from(head).to_be_bytes();
        let at = |version| orders.at(leaf(5), version).map(|order| order.slots().collect::<Vec<_>>());
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % below
        };
        orders.set(leaf(5), &Frame::default(), std::iter::empty());
        orders.leave(leaf(5), 1, &Sorted::of(std::iter::empty()));
        let (mut version, mut model) = (1, Vec::<(u32, usize)>::new());
        for round in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let change = Change { from: version, to: version + 8 };
            // It grows for a while, then shrinks, and so on.
            if model.len() < SLOTS_MAX && (model.is_empty() || random(4) < 1 + round / 100 % 2 * 2) {
                let free: Vec<usize> = (0..SLOTS_MAX).filter(|slot| model.iter().all(|(_, other)| other != slot)).collect();
                let (head, slot) = (random(1 << 12) as u32, free[random(free.len())]);
                orders.add(leaf(5), change, slot, &key(head)[..]);
                if model.iter().any(|(other, _)| *other == head) {
                    assert_eq!(at(change.to), None, "heads do not tell");
                    orders.leave(leaf(5), change.to, &Sorted::of(model.iter().map(|(_, slot)| *slot)));
                    orders.remove(leaf(5), Change { from: change.to, to: change.to + 8 }, slot);
                    assert_eq!((at(change.to), at(change.to + 8)), (None, None), "what is not there is not taken out");
                    orders.leave(leaf(5), change.to + 8, &Sorted::of(model.iter().map(|(_, slot)| *slot)));
                    version = change.to + 8;
                    continue;
                }
                model.insert(model.partition_point(|(other, _)| *other < head), (head, slot));
            } else {
                let (_, slot) = model.remove(random(model.len()));
                orders.remove(leaf(5), change, slot);
            }
            assert_eq!(at(change.from), None);
            assert_eq!(at(change.to), Some(model.iter().map(|(_, slot)| *slot).collect()));
            assert!(orders.by_order(leaf(5), change.to).unwrap().slots().eq(model.iter().copied()));
            version = change.to;
        }
    }

    #[test]
    fn an_order_that_does_not_follow_is_that_of_no_version() {
        let orders = Orders::default();
        let at = |version| orders.at(leaf(4), version).map(|order| order.slots().collect::<Vec<_>>());
        let one = || Sorted::of(std::iter::once(3));
        // No thread has left an order, or any head.
        orders.add(leaf(4), Change { from: 1, to: 9 }, 3, &b"key"[..]);
        orders.carry(leaf(4), Change { from: 1, to: 9 });
        assert_eq!((at(1), at(9)), (None, None));
        // An order, and no heads.
        orders.leave(leaf(4), 9, &one());
        orders.add(leaf(4), Change { from: 9, to: 17 }, 5, &b"key"[..]);
        assert_eq!((at(9), at(17)), (None, None));
        // The version is a later one, and a thread that sorts the leaf makes its order known again.
        orders.leave(leaf(4), 9, &one());
        assert_eq!(at(9), None);
        orders.leave(leaf(4), 17, &one());
        orders.carry(leaf(4), Change { from: 9, to: 25 });
        assert_eq!((at(17), at(25)), (Some(vec![3]), None), "a change from another version");
        orders.carry(leaf(4), Change { from: 17, to: 25 });
        assert_eq!((at(17), at(25)), (None, Some(vec![3])));
    }

    /// One leaf, to which one thread writes as writers do, while others leave orders of versions that they have read, and follow those that they find. The
    /// order at each version is computed from that version.
    #[test]
    fn who_holds_a_leaf_and_who_has_sorted_it_agree() {
        let (orders, latch) = (Orders::default(), AtomicU64::new(1));
        orders.set(leaf(0), &Frame::default(), (0..SLOTS_MAX).map(|slot| (slot, slot as u32)));
        // At every other version one slot less.
        let missing = |version: u64| (version / 16) as usize % SLOTS_MAX;
        let slots = |version: u64| (0..SLOTS_MAX).filter(move |slot| (version / 8).is_multiple_of(2) || *slot != missing(version));
        orders.leave(leaf(0), 1, &Sorted::of(slots(1)));
        let last = if cfg!(miri) { 8 * 400 + 1 } else { 8 * 200_000 + 1 };
        let followed = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let version = latch.load(Acquire);
                        match orders.at(leaf(0), version) {
                            Some(found) => assert!(found.slots().eq(slots(version)), "of version {version}"),
                            None => orders.leave(leaf(0), version, &Sorted::of(slots(version))),
                        }
                        if version == last {
                            break;
                        }
                    }
                });
            }
            let mut followed = 0;
            for from in (1..last).step_by(8) {
                let change = Change { from, to: from + 8 };
                if from / 8 % 64 == 63 {
                    // As if heads did not tell: sooner or later, others leave what they have sorted.
                    std::thread::yield_now();
                } else if (change.to / 8).is_multiple_of(2) {
                    orders.add(leaf(0), change, missing(from), &(missing(from) as u64).to_be_bytes()[..]);
                } else {
                    orders.remove(leaf(0), change, missing(change.to));
                }
                followed += usize::from(orders.is_at(leaf(0), change.to));
                latch.store(change.to, Release);
            }
            followed
        });
        assert!(followed > 0);
    }

    /// For ranges of every width, with keys of any length that share nothing or much.
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
            // The frame of the range, or of some of the keys, or of one of them.
            let some = [random(keys.len()), random(keys.len())];
            let [first, last] = [some[0].min(some[1]), some[0].max(some[1])].map(|at| &keys[at][..]);
            let frame = match round % 2 {
                0 => Frame::new(&low[..], high.as_deref()),
                _ => Frame::around(&low[..], high.as_deref(), first, last),
            };
            let heads: Vec<u32> = keys.iter().map(|key| frame.head_of(&key[..])).collect();
            assert!(heads.is_sorted(), "{low:?} {keys:?} {high:?} {heads:?}");
            // In slots of a leaf: half of the keys were there when it was framed, the others were added.
            let orders = Orders::default();
            let keys = &keys[..keys.len().min(SLOTS_MAX)];
            let slot = |at: usize| (at * 5 + round) % SLOTS_MAX;
            let slots = (0..keys.len()).fold(0, |slots, at| slots | 1 << slot(at));
            assert!(orders.by_heads(leaf(7), slots).is_none() && orders.frame(leaf(7)).is_none(), "nobody has framed them");
            orders.set(leaf(7), &frame, (0..keys.len() / 2).map(|at| (slot(at), heads[at])));
            let change = Change { from: 1, to: 9 };
            (keys.len() / 2..keys.len()).for_each(|at| orders.add(leaf(7), change, slot(at), &keys[at][..]));
            let sorted = orders.by_heads(leaf(7), slots).unwrap();
            let mut expected: Vec<_> = (0..keys.len()).map(|at| (heads[at], slot(at))).collect();
            expected.sort();
            assert!(sorted.slots().eq(expected), "{heads:?}");
            let differ = heads[..keys.len()].windows(2).all(|pair| pair[0] < pair[1]);
            let tied = |at: usize| heads[..keys.len()].iter().filter(|head| **head == heads[at]).count() > 1;
            assert_eq!(sorted.ties(), (0..keys.len()).filter(|at| tied(*at)).fold(0, |ties, at| ties | 1 << slot(at)));
            assert!(differ || !sorted.tell_apart(keys.len()));
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

    /// Even if the range implies no shared bytes, heads tell keys apart as well as if it did, and those of keys added later, too.
    #[test]
    fn what_keys_share_costs_no_bit() {
        let key = |at: u32| format!("application:user:{at:010}").into_bytes();
        for (first, last) in [(1, 1), (1, 56), (40, 95), (70, 125), (970, 1025)] {
            let frame = Frame::around(&b""[..], None, &key(first), &key(last));
            let heads: Vec<u32> = (first..=last + 56).map(|at| frame.head_of(&key(at)[..])).collect();
            let told = heads.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!(told + 1 == heads.len(), "{first} to {last}: {heads:?}");
            let others = [&b""[..], b"a", b"application:user9", b"application:user:1", b"b"].map(|key| frame.head_of(key));
            assert_eq!(others, [0, 0, 0, u32::MAX, u32::MAX]);
        }
    }
}
