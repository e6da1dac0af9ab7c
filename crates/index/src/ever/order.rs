//! The order of a leaf's keys, in DRAM, once a scan has found it out.
//!
//! Leaves are not sorted. Where keys are in records, to sort a leaf is to read all of them, which is most of what a scan costs. So who has sorted one leaves
//! its order here, with the version of the leaf's latch that it is of; whoever scans the leaf at that version follows it, and reads no record that he does not
//! visit. A line a leaf, touched by scans only: writers do not know of it, and make it old by raising the version.
//!
//! ```text
//! line    version of the latch, 0 = none yet, or that it is being written | numbers of slots + 1 in the order of their keys, a byte each, 0 behind the last
//! ```
//!
//! The version is taken away, with an exchange that one thread wins, before the slots are stored, and stored behind them; who reads looks at it before and
//! behind. Versions of a latch ascend, and those of a line too, for an older order never takes the place of a newer one: so the version that is found behind
//! the slots is that of all of them.

use super::leaf::SLOTS_MAX;
use crate::arena::Arena;
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::AtomicU64;
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
}

/// The slots of a leaf in the order of their keys.
pub(super) struct Sorted {
    bytes: [u8; SLOTS_MAX],
    count: usize,
}

impl Sorted {
    #[inline(always)]
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.bytes[..self.count].iter().map(|&slot| usize::from(slot) - 1)
    }
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
    pub(super) fn at(&self, leaf: usize, version: u64) -> Option<Sorted> {
        let order = self.0.get(leaf).filter(|order| order.version.load(Acquire) == version)?;
        let words = order.slots.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        let full = words.iter().rposition(|&word| word != 0).unwrap_or(0);
        let count = full * WORD + (WORD - words[full].leading_zeros() as usize / 8);
        (order.version.load(Relaxed) == version).then(|| Sorted { bytes: bytemuck::cast(words.map(u64::to_le)), count })
    }

    /// Asks for the order of a leaf. A hint.
    pub(super) fn prefetch(&self, leaf: usize) {
        self.0.get(leaf).into_iter().for_each(probe::prefetch);
    }

    /// Leaves an order for others, unless somebody is just doing so.
    pub(super) fn leave(&self, leaf: usize, version: u64, slots: impl Iterator<Item = usize>) {
        let order = self.0.get_or_make(leaf);
        let old = order.version.load(Relaxed);
        if old >= version || order.version.compare_exchange(old, BEING_WRITTEN, Acquire, Relaxed).is_err() {
            return;
        }
        // Who sees one of the slots sees that the version is gone.
        fence(Release);
        let mut bytes = [0; SLOTS_MAX];
        bytes.iter_mut().zip(slots).for_each(|(byte, slot)| *byte = slot as u8 + 1);
        for (word, bytes) in order.slots.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        order.version.store(version, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_that_of_its_version() {
        let orders = Orders::default();
        let at = |leaf, version| orders.at(leaf, version).map(|order| order.slots().collect::<Vec<_>>());
        assert_eq!(at(3, 9), None);
        let all: Vec<usize> = (0..SLOTS_MAX).rev().collect();
        for (version, slots) in [(9, &[2, 0, 1][..]), (17, &all), (25, &[])] {
            orders.leave(3, version, slots.iter().copied());
            assert_eq!(at(3, version).as_deref(), Some(slots));
            assert!(orders.at(3, version).unwrap().slots().rev().eq(slots.iter().copied().rev()));
            assert_eq!((at(3, version - 8), at(2, version)), (None, None));
        }
        orders.leave(3, 17, std::iter::once(4));
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
                scope.spawn(move || (0..50_000).for_each(|step| orders.leave(0, step * 2 + offset, slots(step * 2 + offset))));
            }
            for version in 1..100_001 {
                if let Some(found) = orders.at(0, version) {
                    assert!(found.slots().eq(slots(version)), "of version {version}");
                }
            }
        });
    }
}
