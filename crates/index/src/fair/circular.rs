//! Circ-Tree's nodes (C. Wang, G. Brihadiswarn, X. Jiang and S. Chattopadhyay, "Circ-Tree: A B+-Tree Variant with Circular Design for Persistent Memory", IEEE
//! Transactions on Computers 71(2), 2022). Entries may begin at any slot and wrap around from the last slot to the first. So a change moves only the entries on
//! its shorter side: a quarter of a node and not half.
//!
//! The run word of the header has the first slot and the number of entries. At least one slot is vacant, so the slots show the ends of the run, too.
//!
//! # Invariant
//!
//! When no change is in progress, the value of every slot outside the run is durably 0, and that of no slot within.
//!
//! # Writing
//!
//! To *move* an entry from slot s to t, which is vacant: 1. head[t] := head[s], value[t] := value[s]. 2. If s and t lie in two lines, persist that of t. 3.
//! value[s] := 0. A crash leaves the entry in s, in both, or in t, and never in neither. Both copies are the same, so either may be removed. (FAST's shifts,
//! word over word, would not do: an entry half moved to the left looks like one half moved to the right, and the wrong copy would be removed.)
//!
//! Insert at rank i of n: 1. move those before it, from the first on, one slot to the left, or those behind it, from the last on, one slot to the right: the
//! fewer. 2. the new entry, head, then value, into the vacant slot; that is the commit point. 3. the run word. Flush the lines of 2 and 3, fence.
//!
//! Remove rank i of n: 1. value := 0, the commit point. 2. move the entries before it, from the last on, to the right, or those behind it, from the first on,
//! to the left: the fewer. 3. the run word. Flush the line with the vacated slot, and the header, fence.
//!
//! Either costs a flush for each line of slots that it touches and one for the header, and a fence for each line of slots. The slots alone tell what the run
//! is, so it is harmless if a crash keeps the run word of 3 and not the slots, or the slots alone. Update: one value word, persisted.
//!
//! Cut, behind a split: all slots, the run word; one fence. Append, in a join: all slots; fence; the run word, which is durable with the link that lies in its
//! line. All that a crash leaves of either is beyond the range of the node, and recovery removes it.
//!
//! # Recovery
//!
//! 1. Slots that are beyond the node's range become vacant.
//! 2. If the slot before the first one in the header is not vacant, the run begins there: a change of the left end was in progress. The right end cannot reach
//!    this slot, or no slot would be vacant.
//! 3. From there on, all the way round: an entry equal to the one before it is removed; an entry behind a vacant slot moves up.
//! 4. The run word, if it differs. Flush all, fence. A crash within leaves a state from which these steps can begin.

use super::node::{Header, Line, Node, PER_LINE, Run, UNSOUND, header_and_lines};
use crate::Error;
use crate::key::Key;
use crate::selective::leaf::Entry;
use crate::shift::{First, HEAD, VALUE, write};
use everleaf_pmem::{Medium, Pm, resident};
use std::sync::atomic::Ordering::Release;

resident! {
    /// A node with `LINES` lines of slots. See the module documentation.
    pub(crate) struct Circular<const LINES: usize> {
        header: Header,
        lines: [Line; LINES],
    }
}

impl<const LINES: usize> Node for Circular<LINES> {
    header_and_lines!();
    const CAPACITY: usize = LINES * PER_LINE - 1;

    #[inline(always)]
    fn run(&self) -> Run {
        Run::of(self.header.run.get(), Self::CAPACITY)
    }

    fn run_word(count: usize) -> u64 {
        Run { base: 0, count }.word()
    }

    #[inline(always)]
    fn count_from(&self, _least: impl FnOnce() -> usize) -> usize {
        self.run().count
    }

    /// If the run wraps around, a search begins at its first entry or at slot 0: the head in slot 0 tells which.
    #[inline(always)]
    fn begin(&self, head: u64) -> usize {
        let run = self.run();
        let before = Self::SLOTS - run.base;
        if before < run.count && self.slot(0)[HEAD].get() < head { before } else { 0 }
    }

    #[inline(always)]
    fn insert<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, rank: usize, count: usize, entry: Entry) -> Run {
        let old = self.run();
        // Ranks are those after the insertion. If the run gets a new first slot, the old first slot has changed, too.
        let (run, changed) = if rank < count - rank {
            let run = Run { base: Self::slot_of(old, Self::SLOTS - 1), count: count + 1 };
            (0..rank).for_each(|to| self.relocate(pm, run, to + 1, to));
            (run, Run { base: run.base, count: rank.max(1) + 1 })
        } else {
            let run = Run { base: old.base, count: count + 1 };
            (rank..count).rev().for_each(|from| self.relocate(pm, run, from, from + 1));
            (run, Run { base: Self::slot_of(run, rank), count: run.count - rank })
        };
        let slot = Self::slot_of(run, rank);
        write(pm, self.slot(slot), entry.head, entry.value.get(), First::Head);
        pm.flush(self.line(slot));
        self.set_run(pm, run);
        changed
    }

    #[inline(always)]
    fn remove<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, rank: usize, count: usize) -> Run {
        let old = self.run();
        let (last, slot) = (count - 1, Self::slot_of(old, rank));
        self.vacate(pm, slot);
        let (run, vacated, changed) = if rank < last - rank {
            (0..rank).rev().for_each(|from| self.relocate(pm, old, from, from + 1));
            (Run { base: Self::slot_of(old, 1), count: last }, old.base, Run { base: old.base, count: rank.max(1) + 1 })
        } else {
            (rank..last).for_each(|to| self.relocate(pm, old, to + 1, to));
            (Run { base: old.base, count: last }, Self::slot_of(old, last), Run { base: slot, count: count - rank })
        };
        pm.flush(self.line(vacated));
        self.set_run(pm, run);
        changed
    }

    fn cut<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        let run = self.run();
        // persist-equivalent(store early): all of them are beyond the range, and recovery makes them vacant in any order.
        (count..run.count).for_each(|rank| self.vacate(pm, Self::slot_of(run, rank)));
        self.flush_slots(pm, Run { base: Self::slot_of(run, count), count: run.count - count });
        // persist-equivalent(fence drop): what a split does next, above, is made durable, too.
        self.set_run(pm, Run { count, ..run });
    }

    fn append<M: Medium>(&self, pm: &Pm<M>, next: &Self) {
        let run = self.run();
        let added = Run { base: Self::slot_of(run, run.count), count: next.count() };
        for (rank, entry) in next.entries().enumerate() {
            write(pm, self.slot(Self::slot_of(added, rank)), entry.head, entry.value.get(), First::Head);
        }
        self.flush_slots(pm, added);
        pm.fence();
        // This is durable with the link, which lies in the same line and is stored next. Until then recovery removes all of them.
        pm.store(&self.header.run, Run { count: run.count + added.count, ..run }.word(), Release);
    }

    fn recover<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: Option<&K>) -> Result<(), Error> {
        if !self.is_sound() {
            return Err(self.damaged(pm, UNSOUND));
        }
        let mut has_changed = false;
        for slot in 0..Self::SLOTS {
            if let Some(high) = high
                && self.is_beyond(pm, self.slot(slot), high)?
            {
                // persist-equivalent(store early): as in a cut.
                self.vacate(pm, slot);
                has_changed = true;
            }
        }
        let header = self.run();
        let before = Self::slot_of(header, Self::SLOTS - 1);
        let mut run = Run { base: if self.is_vacant(before) { header.base } else { before }, count: 0 };
        for rank in 0..Self::SLOTS {
            let entry = |rank| Entry::read(self.slot(Self::slot_of(run, rank)));
            let Some(this) = entry(rank) else { continue };
            if run.count > 0 && entry(run.count - 1) == Some(this) {
                self.vacate(pm, Self::slot_of(run, rank));
                has_changed = true;
                continue;
            }
            if rank > run.count {
                self.relocate(pm, run, rank, run.count);
                has_changed = true;
            }
            run.count += 1;
        }
        if run.count > Self::CAPACITY {
            return Err(self.damaged(pm, "a node without a vacant slot"));
        }
        if has_changed || run != header {
            pm.flush(&self.lines);
            self.set_run(pm, run);
        }
        Ok(())
    }

    fn is_sound(&self) -> bool {
        self.header.run.get() == self.run().word()
    }

    fn holds(&self, count: usize) -> bool {
        self.is_sound() && count == self.run().count
    }

    fn has_its_run(&self) -> bool {
        let run = self.run();
        self.is_sound() && (0..Self::SLOTS).all(|rank| self.is_vacant(Self::slot_of(run, rank)) == (rank >= run.count))
    }
}

impl<const LINES: usize> Circular<LINES> {
    fn is_vacant(&self, slot: usize) -> bool {
        self.slot(slot)[VALUE].get() == 0
    }

    #[inline(always)]
    #[track_caller]
    fn vacate<M: Medium>(&self, pm: &Pm<M>, slot: usize) {
        pm.store(&self.slot(slot)[VALUE], 0, Release);
    }

    /// Moves an entry to a vacant slot: `from` and `to` are ranks of a run.
    #[inline(always)]
    fn relocate<M: Medium>(&self, pm: &Pm<M>, run: Run, from: usize, to: usize) {
        let [from, to] = [from, to].map(|rank| Self::slot_of(run, rank));
        let [head, value] = self.slot(from);
        write(pm, self.slot(to), head.get(), value.get(), First::Head);
        if from / PER_LINE != to / PER_LINE {
            pm.persist(self.line(to));
        }
        self.vacate(pm, from);
    }

    /// Sets the run word, durably, with everything that was flushed before.
    #[inline(always)]
    #[track_caller]
    fn set_run<M: Medium>(&self, pm: &Pm<M>, run: Run) {
        pm.store(&self.header.run, run.word(), Release);
        pm.persist(&self.header);
    }
}
