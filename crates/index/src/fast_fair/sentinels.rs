//! Sentinels: for each line of entries of a node, the head of its first one, so that a search reads these and then one line of entries, or two, and not all
//! lines before (Ye and Wang's sentinels for persistent B+-trees, arXiv 2106.00323).
//!
//! There they are a part of the node. Here they lie beside its latch, in DRAM, which who reads a node reads anyway: they take no room from entries, nothing of
//! them is ever written back, and a crash leaves none that would have to be told from those of today.
//!
//! # Invariant
//!
//! A sentinel is not below the first head of its line, as seen between two equal versions of the node's latch; that of a line without entries is as large as
//! can be. They are stored as complements, so a word of 0 is the largest: a sentinel of which nothing is known has searches begin in a line before, and no more
//! than that. The first line needs none, since every search may begin there; its word tells whether the others are known.
//!
//! Insertions and removals keep them up to date, by a store for each line that they shift. What changes more of a node forgets them all, as does the end of
//! its life; who comes by next reads the node once, under its latch, and knows them again.

use super::node::{Node, SLOTS};
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::AtomicU64;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

/// As many as a node has lines of entries, or none at all. See the module documentation.
#[derive(Zeroable)]
#[repr(transparent)]
pub(super) struct Sentinels<const SENTINELS: usize>([AtomicU64; SENTINELS]);

impl<const SENTINELS: usize> Sentinels<SENTINELS> {
    /// The slot from which on the first entry is found whose head is not below this one: none before it is.
    #[inline(always)]
    pub(super) fn start(&self, head: u64) -> usize {
        // The first is not looked at. Complements descend.
        SLOTS * self.0.iter().skip(1).take_while(|sentinel| sentinel.load(Relaxed) > !head).count()
    }

    /// A slot that is not behind the end of the entries, as near as is known.
    #[inline(always)]
    pub(super) fn last(&self) -> usize {
        self.start(u64::MAX)
    }

    /// Whether they are to be learned before they are of use.
    #[inline(always)]
    pub(super) fn are_unknown(&self) -> bool {
        SENTINELS > 0 && self.0[0].load(Relaxed) == 0
    }

    /// Nothing is known any more. The caller has the latch.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|sentinel| sentinel.store(0, Relaxed));
    }

    /// Learns all of a latched node.
    pub(super) fn learn<const LINES: usize>(&self, node: &Node<LINES>) {
        self.set(node, 1..=LINES - 1, node.count(0));
        self.0[0].store(1, Relaxed);
    }

    /// Has them follow a change of some slots of a latched node, which has `count` entries now.
    #[inline(always)]
    pub(super) fn follow<const LINES: usize>(&self, node: &Node<LINES>, changed: RangeInclusive<usize>, count: usize) {
        if SENTINELS > 0 && !self.are_unknown() {
            self.set(node, (changed.start() / SLOTS).max(1)..=changed.end() / SLOTS, count);
        }
    }

    #[inline(always)]
    fn set<const LINES: usize>(&self, node: &Node<LINES>, lines: RangeInclusive<usize>, count: usize) {
        for line in lines {
            let first = line * SLOTS;
            self.0[line].store(if first < count { !node.head(first) } else { 0 }, Relaxed);
        }
    }
}
