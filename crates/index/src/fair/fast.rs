//! FAST: entries lie from the first slot on. They end with the slots, or at the first value of 0; slots behind that one do not count and may hold anything. The
//! run word of the header is 0.
//!
//! # Writing
//!
//! A change shifts entries, word by word, from line to line. Each line is made durable before the next is touched. A crash leaves lines as before, lines as
//! after, and at most one line with a prefix of its stores: a copy of an entry beside it, perhaps in two lines, which its identity tells (`shift.rs`).
//!
//! Insert at slot i of n, with 1 flush and 1 fence for each line that it touches:
//! 1. value[n + 1] := 0, unless it is 0: from the second next store on, it ends the entries. If it is in another line than slot n, persist: a crash that kept
//!    slot n and not this would count what was cut off long ago.
//! 2. for j = n - 1 down to i: slot j + 1 := slot j. If j + 1 is the first of its line, persist that line, because slot j changes next. After a crash within,
//!    recovery takes back the copy and what was shifted with it.
//! 3. slot i := the new entry, whose last store is the commit point; persist its line.
//!
//! Remove slot i, at the same costs: 1. for j = i to n - 2: slot j := slot j + 1; the first store is the commit point. If j is the last of its line, persist
//! that line, because slot j + 1 changes next. 2. value[n - 1] := 0, which is the commit point if i = n - 1; persist. After a crash within, recovery finishes
//! the shift.
//!
//! Update: one value word, persisted.

use super::node::{Header, Line, Node, PER_LINE, Run, header_and_lines};
use crate::Error;
use crate::key::Key;
use crate::selective::leaf::Entry;
use crate::shift::{First, HEAD, VALUE, are_one, write};
use everleaf_pmem::{Medium, Pm, resident};
use std::sync::atomic::Ordering::{Relaxed, Release};

resident! {
    /// A node with `LINES` lines of slots. See the module documentation.
    pub(crate) struct Fast<const LINES: usize> {
        header: Header,
        lines: [Line; LINES],
    }
}

impl<const LINES: usize> Node for Fast<LINES> {
    header_and_lines!();
    const CAPACITY: usize = LINES * PER_LINE;

    #[inline(always)]
    fn run(&self) -> Run {
        Run { base: 0, count: Self::CAPACITY }
    }

    fn run_word(_count: usize) -> u64 {
        0
    }

    #[inline(always)]
    fn count_from(&self, least: impl FnOnce() -> usize) -> usize {
        (least()..Self::CAPACITY).find(|&slot| self.value_word(slot) == 0).unwrap_or(Self::CAPACITY)
    }

    #[inline(always)]
    fn insert<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize, count: usize, entry: Entry) -> Run {
        let end = count + 1;
        if end < Self::CAPACITY && self.value_word(end) != 0 {
            pm.store(&self.slot(end)[VALUE], 0, Release);
            if end.is_multiple_of(PER_LINE) {
                pm.persist(self.line(end));
            }
        }
        let first = |to| First::to_the_right::<K>(to == count);
        for to in (slot + 1..=count).rev() {
            self.copy(pm, to - 1, to, first(to));
            if to.is_multiple_of(PER_LINE) {
                pm.persist(self.line(to));
            }
        }
        write(pm, self.slot(slot), entry.head, entry.value.get(), first(slot));
        pm.persist(self.line(slot));
        Run { base: slot, count: end - slot }
    }

    #[inline(always)]
    fn remove<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize, count: usize) -> Run {
        let last = count - 1;
        for left in slot..last {
            self.copy(pm, left + 1, left, First::to_the_left::<K>());
            if (left + 1).is_multiple_of(PER_LINE) {
                pm.persist(self.line(left));
            }
        }
        self.cut(pm, last);
        Run { base: slot, count: count - slot }
    }

    fn cut<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        pm.store(&self.slot(count)[VALUE], 0, Release);
        pm.persist(self.line(count));
    }

    /// After a crash, recovery cuts off the first of them and whatever is behind, which may be what was there before if the crash kept only some of the lines.
    fn append<M: Medium>(&self, pm: &Pm<M>, next: &Self) {
        let (count, added) = (self.count(), next.count());
        let end = count + added;
        if end < Self::CAPACITY {
            pm.store(&self.slot(end)[VALUE], 0, Relaxed);
        }
        for slot in 0..added {
            write(pm, self.slot(count + slot), next.head(slot), next.value_word(slot), First::Head);
        }
        pm.persist(&self.lines[count.min(Self::CAPACITY - 1) / PER_LINE..=end.min(Self::CAPACITY - 1) / PER_LINE]);
    }

    fn recover<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: Option<&K>) -> Result<(), Error> {
        if let Some(high) = high {
            // In order: nothing is known of the entries behind the first that is cut off, since a crash may have interrupted an append.
            for slot in 0..self.count() {
                if self.is_beyond(pm, self.slot(slot), high)? {
                    self.cut(pm, slot);
                    break;
                }
            }
        }
        let count = self.count();
        if let Some(right) = (1..count).find(|&slot| are_one::<K>(self.slot(slot - 1), self.slot(slot))) {
            self.remove::<K, M>(pm, right - 1, count);
        }
        Ok(())
    }
}

impl<const LINES: usize> Fast<LINES> {
    #[inline(always)]
    fn value_word(&self, slot: usize) -> u64 {
        self.slot(slot)[VALUE].get()
    }

    #[inline(always)]
    #[track_caller]
    fn copy<M: Medium>(&self, pm: &Pm<M>, from: usize, to: usize, first: First) {
        write(pm, self.slot(to), self.slot(from)[HEAD].get(), self.value_word(from), first);
    }
}
