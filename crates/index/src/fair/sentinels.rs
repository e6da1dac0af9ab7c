//! Sentinels: for each line of entries of a node, the head of its first entry. So a search reads these and then one line of entries, or two, and not all lines
//! before (Ye and Wang's sentinels for persistent B+-trees, arXiv 2106.00323).
//!
//! There they are a part of the node. Here they lie in DRAM beside its latch, which readers of a node read anyway. They take no room from entries, are never
//! written back, and a crash leaves no old ones that would have to be told from current ones.
//!
//! # Invariant
//!
//! A sentinel is not below the first head of its line, as seen between two equal versions of the node's latch. If the first slot of a line is vacant, its
//! sentinel is the largest value. Sentinels are stored as complements, so a word of 0 is the largest: an unknown sentinel only makes searches begin in an
//! earlier line. The line in which entries begin needs none, since every search may begin there; its word tells whether the others are known.
//!
//! Insertions and removals keep them up to date, with a store for each line that they shift. A change of more of the node forgets them all, as does the end of
//! its life. The next thread that comes by reads the node once, under its latch, and learns them again.

use super::node::{Node, PER_LINE, Run};
use crate::shift::HEAD;
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// As many as a node has lines of slots, or none. See the module documentation.
#[derive(Zeroable)]
#[repr(transparent)]
pub(super) struct Sentinels<const SENTINELS: usize>([AtomicU64; SENTINELS]);

impl<const SENTINELS: usize> Sentinels<SENTINELS> {
    /// A rank before which no head is as large as this one, at most a line before the first that is.
    #[inline(always)]
    pub(super) fn start<N: Node>(&self, node: &N, head: u64) -> usize {
        if SENTINELS == 0 {
            return node.begin(head);
        }
        let base = node.run().base;
        // Complements descend.
        let before = Self::lines::<N>(base).skip(1).take_while(|&line| self.0[line].load(Relaxed) > !head).count();
        (PER_LINE * before).saturating_sub(base % PER_LINE)
    }

    /// All lines of a node, beginning with that of the slot `base`.
    #[inline(always)]
    fn lines<N: Node>(base: usize) -> impl Iterator<Item = usize> {
        N::lines_of(Run { base, count: N::SLOTS })
    }

    /// Whether they must be learned before they are of use.
    #[inline(always)]
    pub(super) fn are_unknown<N: Node>(&self, node: &N) -> bool {
        SENTINELS > 0 && self.0[node.run().base / PER_LINE].load(Relaxed) == 0
    }

    /// Forgets all of them. The caller has the latch.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|sentinel| sentinel.store(0, Relaxed));
    }

    /// Learns all sentinels of a latched node.
    pub(super) fn learn<N: Node>(&self, node: &N) {
        self.set(node, Run { base: node.run().base, count: N::SLOTS }, node.count());
    }

    /// Makes a change of some slots of a latched node, which has `count` entries then. Updates the sentinels if they are known.
    #[inline(always)]
    pub(super) fn follow<N: Node>(&self, node: &N, count: usize, change: impl FnOnce() -> Run) {
        let is_known = !self.are_unknown(node);
        let changed = change();
        if SENTINELS > 0 && is_known {
            self.set(node, changed, count);
        }
    }

    #[inline(always)]
    fn set<N: Node>(&self, node: &N, changed: Run, count: usize) {
        let base = node.run().base;
        for line in N::lines_of(changed) {
            let first = line * PER_LINE;
            let sentinel = if line == base / PER_LINE {
                1
            } else if N::rank_of(base, first) < count {
                !node.slot(first)[HEAD].get()
            } else {
                0
            };
            self.0[line].store(sentinel, Relaxed);
        }
    }
}
