//! Nodes of LCB+-Tree, the plain B+-tree with a log that NV-Tree's paper compares with (J. Yang, Q. Wei, C. Chen, C. Wang, K. L. Yong and B. He, "NV-Tree:
//! Reducing Consistency Cost for NVM-based Single Level Systems", FAST 2015). Before a node changes, an image of it is logged. Nothing is combined or left out:
//! this is what consistency costs without optimisation.
//!
//! ```text
//! header, lines    entries from the first slot on; their number is in the run word of the header, which is as Circ-Tree's
//! log              the run word, as it was, or 0: no change is in progress | seven words that nobody reads
//! image            the lines, as they were
//! ```
//!
//! The paper does not say where the log lies. Here it lies behind its node: whoever has the node's latch has its log, changes of two nodes do not meet, and
//! recovery has nothing to look for.
//!
//! # Writing
//!
//! Every change has these steps:
//! 1. image := lines, all of them; flush, fence. A crash leaves an image that does not count.
//! 2. log := the run word of the header; persist. After a crash from here on, recovery takes the change back.
//! 3. entries shift, in any order; the run word of the header. Flush each line that has changed; fence.
//! 4. log := 0, the commit point; persist.
//!
//! Insert, remove, cut and update do this, so the cost of an update grows with the node. Append, in a join, needs no log: the entries that it adds do not count
//! before the link that the caller stores next, whatever a crash leaves of them. Nor do the links between nodes and the words above need one, as in all of
//! these trees: they are single words, whose order is that of the tree's protocol.
//!
//! # Recovery
//!
//! 1. Unless the log is 0: lines := image, run word := log; flush, fence; log := 0, persist. 2. The entries end before the first that is beyond the node's
//!    range. After a crash within, recovery begins again.

use super::node::{Header, Line, Node, PER_LINE, Run, UNSOUND, header_and_lines};
use crate::Error;
use crate::key::Key;
use crate::selective::leaf::Entry;
use crate::shift::{First, VALUE, write};
use everleaf_pmem::{Medium, Pm, Word, resident};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

resident! {
    /// The log of a node, without the image.
    pub(crate) struct Log {
        run: Word,
        reserved: [Word; 7],
    }
}

resident! {
    /// A node with `LINES` lines of slots, and its log. See the module documentation.
    pub(crate) struct Logged<const LINES: usize> {
        header: Header,
        lines: [Line; LINES],
        log: Log,
        image: [Line; LINES],
    }
}

impl<const LINES: usize> Node for Logged<LINES> {
    header_and_lines!();
    const CAPACITY: usize = LINES * PER_LINE;
    const BUILT: usize = std::mem::offset_of!(Self, image);

    fn zeroes(&self) -> &[Word] {
        std::slice::from_ref(&self.log.run)
    }

    #[inline(always)]
    fn run(&self) -> Run {
        Run { base: 0, ..Run::of(self.header.run.get(), Self::CAPACITY) }
    }

    fn run_word(count: usize) -> u64 {
        Run { base: 0, count }.word()
    }

    #[inline(always)]
    fn count_from(&self, _least: impl FnOnce() -> usize) -> usize {
        self.run().count
    }

    fn insert<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize, count: usize, entry: Entry) -> Run {
        let changed = Run { base: slot, count: count + 1 - slot };
        self.change(pm, || {
            // persist-equivalent(store early): the log has all of it taken back.
            (slot..count).rev().for_each(|from| self.copy(pm, from, from + 1));
            // persist-equivalent(store early): as above.
            write(pm, self.slot(slot), entry.head, entry.value.get(), First::Head);
            self.flush_slots(pm, changed);
            self.set_count(pm, count + 1);
        });
        changed
    }

    fn remove<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize, count: usize) -> Run {
        let last = count - 1;
        self.change(pm, || {
            // persist-equivalent(store early): as in an insert.
            (slot..last).for_each(|to| self.copy(pm, to + 1, to));
            self.flush_slots(pm, Run { base: slot, count: last - slot });
            self.set_count(pm, last);
        });
        Run { base: slot, count: count - slot }
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) {
        self.change(pm, || {
            pm.store(&self.slot(slot)[VALUE], value.get(), Release);
            pm.flush(self.line(slot));
        });
    }

    fn cut<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        self.change(pm, || self.set_count(pm, count));
    }

    fn append<M: Medium>(&self, pm: &Pm<M>, next: &Self) {
        let added = Run { base: self.run().count, count: next.run().count };
        for (slot, entry) in (added.base..).zip(next.entries()) {
            // persist-equivalent(store early): none of them counts yet.
            write(pm, self.slot(slot), entry.head, entry.value.get(), First::Head);
        }
        self.flush_slots(pm, added);
        pm.fence();
        // This is durable with the link, which lies in the same line and is stored next. Until then recovery removes all of them.
        pm.store(&self.header.run, Self::run_word(added.base + added.count), Release);
    }

    fn recover<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: Option<&K>) -> Result<(), Error> {
        match self.log.run.get() {
            0 => {}
            run if Self::is_count(run) => self.take_back(pm, run),
            _ => return Err(self.damaged(pm, "a node whose log says neither that it changes nor that it does not")),
        }
        if !self.has_its_run() {
            return Err(self.damaged(pm, UNSOUND));
        }
        let Some(high) = high else { return Ok(()) };
        for slot in 0..self.run().count {
            if self.is_beyond(pm, self.slot(slot), high)? {
                self.set_count(pm, slot);
                pm.fence();
                break;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn is_sound(&self) -> bool {
        Self::is_count(self.header.run.get())
    }

    fn holds(&self, count: usize) -> bool {
        self.is_sound() && count == self.run().count
    }

    fn has_its_run(&self) -> bool {
        self.is_sound() && self.log.run.get() == 0 && (0..self.run().count).all(|slot| self.slot(slot)[VALUE].get() != 0)
    }
}

impl<const LINES: usize> Logged<LINES> {
    fn is_count(word: u64) -> bool {
        word == Self::run_word(Run::of(word, Self::CAPACITY).count)
    }

    /// Steps 1, 2 and 4 around step 3, which is `act` and flushes what it changes.
    #[track_caller]
    fn change<M: Medium>(&self, pm: &Pm<M>, act: impl FnOnce()) {
        Self::copy_lines(pm, &self.lines, &self.image);
        pm.persist(&self.image);
        self.set_log(pm, self.header.run.get());
        act();
        pm.fence();
        self.set_log(pm, 0);
    }

    /// Step 1 of recovery.
    fn take_back<M: Medium>(&self, pm: &Pm<M>, run: u64) {
        Self::copy_lines(pm, &self.image, &self.lines);
        pm.flush(&self.lines);
        pm.store(&self.header.run, run, Relaxed);
        pm.persist(&self.header);
        self.set_log(pm, 0);
    }

    /// Stores in any order: the copy does not count before the caller has made it durable.
    #[track_caller]
    fn copy_lines<M: Medium>(pm: &Pm<M>, from: &[Line], to: &[Line]) {
        for (from, to) in from.as_flattened().as_flattened().iter().zip(to.as_flattened().as_flattened()) {
            pm.store(to, from.get(), Relaxed);
        }
    }

    #[track_caller]
    fn set_log<M: Medium>(&self, pm: &Pm<M>, run: u64) {
        pm.store(&self.log.run, run, Release);
        pm.persist(&self.log);
    }

    #[track_caller]
    fn copy<M: Medium>(&self, pm: &Pm<M>, from: usize, to: usize) {
        let [head, value] = self.slot(from);
        write(pm, self.slot(to), head.get(), value.get(), First::Head);
    }

    #[track_caller]
    fn set_count<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        pm.store(&self.header.run, Self::run_word(count), Release);
        pm.flush(&self.header);
    }
}
