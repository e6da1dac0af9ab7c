//! Nodes of CDDS, the multi-version B-tree that NV-Tree's paper compares with (S. Venkataraman, N. Tolia, P. Ranganathan and R. H. Campbell, "Consistent and
//! Durable Data Structures for Non-Volatile Byte-Addressable Memory", FAST 2011). No live entry is overwritten. An entry says from which version on it lives,
//! and until which; one store of the version commits.
//!
//! ```text
//! header, slots    2 a line: head | value | start | end; the run word of the header is: version | slots used | slots of the dead | check
//! ```
//!
//! At version v an entry lives if start <= v < end. The live entries ascend in the slots used; the dead lie among them, anywhere. The paper has one version for
//! the tree, and one writer. Here each node has its own version, so writers of two nodes do not meet. It lies in the line that the paper flushes for its count.
//! Between nodes, the protocol of all of these trees applies: a split ends the entries that the new node has.
//!
//! A node has one slot more than entries, so that an update always finds a slot for the version that it makes.
//!
//! # Writing
//!
//! A slot is poisoned while it is written: start := never; head; value; end; then its start. It lies in one line, so a crash leaves it as it was, or poisoned,
//! or written. The paper writes its fields one by one, so a crash leaves the key of one entry with the value of another.
//!
//! At version v:
//! 1. Update: end of the old entry := v + 1; flush.
//! 2. Insert, and update: write a slot. To make room, entries shift towards the first slot behind those used; if there is none, towards the nearest slot of an
//!    entry that is dead at v. Each is durable before the next: what is overwritten is dead, or is durable in the slot beside it.
//! 3. Remove, and cut: end of each entry := v + 1; flush, fence.
//! 4. The run word, with v + 1: the commit point. Persist.
//!
//! Append, in a join: the entries go behind the slots used, and count with the run word, which is durable with the link that the caller stores next. If there
//! is no room behind the dead, these are left out first, at the same version, entry by entry: an entry is poisoned in its old slot when it is durable in its
//! new one. The slot behind those used is poisoned before: see below.
//!
//! # Recovery
//!
//! Entries were being shifted if a slot used is poisoned or starts at v + 1, or if two neighbours, or two with only the dead between them, are one entry. Then
//! the slot behind those used is one of them, or poisoned. As many live as the run word says, which is from before the change: else there is damage.
//! 1. end := never, for each live entry that would end later than v.
//! 2. If entries were being shifted: each live entry is kept once, and the dead are left out, as for an append.
//! 3. The entries end before the first that is beyond the node's range. After a crash within, recovery begins again: no step removes what another looks for.

use super::node::{Birth, Header, Line, Node, Run, UNSOUND, header_and_lines};
use crate::Error;
use crate::key::Key;
use crate::selective::leaf::Entry;
use crate::shift::{HEAD, VALUE};
use everleaf_pmem::{Medium, Pm, Word, resident};
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Slots of a line.
const PER_LINE: usize = 2;
const START: usize = 0;
const END: usize = 1;
/// The number of changes after which a node takes no more: some days of nothing else. The changes that recovery makes come on top.
const VERSION_MAX: u64 = (1 << 40) - 16;
/// Later than all versions: the end of a live entry, and the start of a slot that is being written.
const NEVER: u64 = u64::MAX;

resident! {
    /// A node with `LINES` lines of slots. See the module documentation.
    pub(crate) struct Versioned<const LINES: usize> {
        header: Header,
        lines: [Line; LINES],
    }
}

/// What the run word says.
#[derive(Clone, Copy)]
struct State {
    version: u64,
    used: usize,
    dead: usize,
}

impl State {
    /// Version, 40 bits | slots used, 8 bits | dead ones among them, 8 bits | a byte that makes the exclusive or of all bytes 255, so that damage shows.
    fn word(self) -> u64 {
        let word = self.version << 24 | (self.used as u64) << 16 | (self.dead as u64) << 8;
        word | u64::from(!parity(word))
    }

    fn of(word: u64) -> Self {
        Self { version: word >> 24, used: usize::from((word >> 16) as u8), dead: usize::from((word >> 8) as u8) }
    }

    fn lives_at(self, [start, end]: &[Word; 2]) -> bool {
        start.get() <= self.version && self.version < end.get()
    }
}

/// The exclusive or of all bytes of a word.
fn parity(word: u64) -> u8 {
    word.to_le_bytes().into_iter().fold(0, |all, byte| all ^ byte)
}

impl<const LINES: usize> Node for Versioned<LINES> {
    header_and_lines!();
    const SLOTS: usize = LINES * PER_LINE;
    const CAPACITY: usize = Self::SLOTS - 1;

    #[inline(always)]
    fn run(&self) -> Run {
        Run { base: 0, count: self.state().used }
    }

    fn holds(&self, count: usize) -> bool {
        self.is_sound_word() && count == self.count()
    }

    fn run_word(count: usize) -> u64 {
        State { version: 1, used: count, dead: 0 }.word()
    }

    #[inline(always)]
    fn count_from(&self, _least: impl FnOnce() -> usize) -> usize {
        let State { used, dead, .. } = self.state();
        used - dead
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> &[Word; 2] {
        &self.lines[slot / PER_LINE][slot % PER_LINE * 2]
    }

    #[inline(always)]
    fn value(&self, rank: usize) -> Option<NonZeroU64> {
        NonZeroU64::new(self.slot(self.slot_at(rank)?)[VALUE].get())
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        self.living().map_while(|slot| Entry::read(self.slot(slot)))
    }

    #[inline(always)]
    fn rank<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K, _from: usize) -> Result<(usize, bool), Error> {
        let (state, head) = (self.state(), key.head(0));
        let State { used, dead, .. } = state;
        if dead > 0 && !self.holds(self.living().count()) {
            // A dead entry may look as if it lived, and its record as it was.
            return Err(self.damaged(pm, UNSOUND));
        }
        let (mut start, mut end) = (0, if dead == 0 { used } else { 0 });
        while start < end {
            let middle = start + (end - start) / 2;
            if self.slot(middle)[HEAD].get() < head { start = middle + 1 } else { end = middle }
        }
        let mut below = start;
        // If nothing is dead, ranks are slots: see `slot_at`.
        for slot in (start..used).filter(|&slot| dead == 0 || state.lives_at(self.lifetime(slot))) {
            let entry = self.slot(slot);
            match if K::WHOLE || entry[HEAD].get() != head { head.cmp(&entry[HEAD].get()) } else { self.compare(pm, key, entry)? } {
                Order::Less => break,
                Order::Equal => return Ok((below, true)),
                Order::Greater => below += 1,
            }
        }
        Ok((below, false))
    }

    fn insert<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, rank: usize, _count: usize, entry: Entry) -> Run {
        if let Some(state) = self.behind(rank).and_then(|at| self.add(pm, at, entry)) {
            self.commit(pm, state);
        }
        self.run()
    }

    fn remove<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, rank: usize, _count: usize) -> Run {
        if let Some(slot) = self.slot_at(rank) {
            self.end(pm, slot);
            pm.fence();
            let state = self.state();
            self.commit(pm, State { dead: state.dead + 1, ..state });
        }
        self.run()
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, rank: usize, value: NonZeroU64) {
        let Some(slot) = self.slot_at(rank) else { return };
        // This is durable with what is added.
        self.end(pm, slot);
        if let Some(state) = self.add(pm, slot + 1, Entry { head: self.slot(slot)[HEAD].get(), value }) {
            self.commit(pm, State { dead: state.dead + 1, ..state });
        }
    }

    fn cut<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        // Slots behind the last entry that is left are not used any more, so searches find nothing dead there.
        let Some(used) = self.behind(count) else { return };
        // persist-equivalent: nothing but damage has recovery look there; then what it finds is dead.
        self.living().skip(count).for_each(|slot| self.end(pm, slot));
        // persist-equivalent(fence drop): as above.
        pm.fence();
        // persist-equivalent(fence drop): till it is durable, recovery goes by the range, which is smaller already; what comes next fences.
        self.commit(pm, State { used, dead: used - count, ..self.state() });
    }

    fn append<M: Medium>(&self, pm: &Pm<M>, next: &Self) {
        let used = self.state().used;
        if used + next.count() > Self::SLOTS {
            if used < Self::SLOTS {
                self.poison(pm, used);
            }
            self.leave_out_dead(pm, used);
        }
        let state = self.state();
        let mut used = state.used;
        for Entry { head, value } in next.entries().take(Self::SLOTS - used) {
            // persist-equivalent(store early): none of them counts yet.
            self.write(pm, used, [head, value.get(), state.version + 1, NEVER]);
            pm.flush(self.whole(used));
            used += 1;
        }
        pm.fence();
        // This is durable with the link, which lies in the same line and is stored next. Until then recovery removes all of them.
        pm.store(&self.header.run, State { version: state.version + 1, used, ..state }.word(), Release);
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: impl Iterator<Item = Entry>) {
        let mut count = 0;
        for (Entry { head, value }, slot) in entries.zip(0..Self::SLOTS) {
            self.slot(slot).iter().zip([head, value.get()]).for_each(|(word, value)| pm.store(word, value, Relaxed));
            self.lifetime(slot).iter().zip([1, NEVER]).for_each(|(word, value)| pm.store(word, value, Relaxed));
            count += 1;
        }
        if count < Self::SLOTS {
            // persist-equivalent: nothing but damage has recovery look there; then what it finds is no entry.
            pm.store(&self.lifetime(count)[START], NEVER, Relaxed);
        }
        self.write_header(pm, birth, count);
    }

    fn recover<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: Option<&K>) -> Result<(), Error> {
        if !self.is_sound_word() {
            return Err(self.damaged(pm, UNSOUND));
        }
        let (State { used, .. }, is_torn) = (self.state(), self.is_torn());
        let limit = if is_torn { (used + 1).min(Self::SLOTS) } else { used };
        // Whatever a crash has interrupted, as many entries live as did before.
        if !self.holds(self.living_in(0..limit).count() - self.copies(limit)) {
            return Err(self.damaged(pm, UNSOUND));
        }
        for slot in self.living_in(0..limit).filter(|&slot| self.lifetime(slot)[END].get() != NEVER) {
            pm.store(&self.lifetime(slot)[END], NEVER, Relaxed);
            pm.persist(self.lifetime(slot));
        }
        if is_torn {
            self.leave_out_dead(pm, limit);
        }
        self.check_order::<K, M>(pm)?;
        let Some(high) = high else { return Ok(()) };
        for (rank, slot) in self.living().enumerate() {
            if self.is_beyond(pm, self.slot(slot), high)? {
                self.cut(pm, rank);
                break;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn is_sound(&self) -> bool {
        // If a change will look for a slot of a dead entry, there must be one.
        self.is_sound_word() && self.state().version < VERSION_MAX && (self.state().used < Self::SLOTS || self.living().count() < Self::SLOTS)
    }

    fn has_its_run(&self) -> bool {
        let is_over = |slot| {
            let lifetime = self.lifetime(slot);
            lifetime[START].get() <= self.state().version && (lifetime[END].get() <= self.state().version || lifetime[END].get() == NEVER)
        };
        let is_counted = self.holds(self.living().count()) && self.holds(self.entries().count());
        self.is_sound_word() && !self.is_torn() && (0..self.state().used).all(is_over) && is_counted
    }
}

impl<const LINES: usize> Versioned<LINES> {
    /// What the run word says, limited to the slots that there are.
    #[inline(always)]
    fn state(&self) -> State {
        let State { version, used, dead } = State::of(self.header.run.get());
        let used = used.min(Self::SLOTS);
        State { version, used, dead: dead.min(used) }
    }

    fn is_sound_word(&self) -> bool {
        let word = self.header.run.get();
        let State { used, dead, .. } = State::of(word);
        parity(word) == u8::MAX && used <= Self::SLOTS && dead <= used && used - dead <= Self::CAPACITY
    }

    /// Start and end of an entry.
    #[inline(always)]
    fn lifetime(&self, slot: usize) -> &[Word; 2] {
        &self.lines[slot / PER_LINE][slot % PER_LINE * 2 + 1]
    }

    /// All words of a slot.
    fn whole(&self, slot: usize) -> &[[Word; 2]] {
        &self.lines[slot / PER_LINE][slot % PER_LINE * 2..][..2]
    }

    /// The slots that hold live entries.
    #[inline(always)]
    fn living_in(&self, slots: Range<usize>) -> impl Iterator<Item = usize> {
        let state = self.state();
        slots.filter(move |&slot| state.lives_at(self.lifetime(slot)))
    }

    #[inline(always)]
    fn living(&self) -> impl Iterator<Item = usize> {
        self.living_in(0..self.state().used)
    }

    /// The slot of the entry at a rank.
    #[inline(always)]
    fn slot_at(&self, rank: usize) -> Option<usize> {
        let State { used, dead, .. } = self.state();
        if dead == 0 { Some(rank).filter(|rank| *rank < used) } else { self.living().nth(rank) }
    }

    /// The slot behind the entry before a rank.
    fn behind(&self, rank: usize) -> Option<usize> {
        rank.checked_sub(1).map_or(Some(0), |before| Some(self.slot_at(before)? + 1))
    }

    /// Whether a crash interrupted a shift.
    fn is_torn(&self) -> bool {
        let State { version, used, .. } = self.state();
        // Any other start that lies in the future is damage.
        (0..used).any(|slot| [NEVER, version + 1].contains(&self.lifetime(slot)[START].get()))
            || (1..used).any(|slot| self.are_one(slot - 1, slot))
            || self.copies(used) > 0
    }

    /// How many live entries in the first slots repeat the live one before them.
    fn copies(&self, slots: usize) -> usize {
        self.living_in(0..slots).zip(self.living_in(0..slots).skip(1)).filter(|&(one, other)| self.are_one(one, other)).count()
    }

    /// Whether two slots hold the same entry, whatever its end: no two entries of a key have the same start.
    fn are_one(&self, one: usize, other: usize) -> bool {
        let identity = |slot: usize| [&self.slot(slot)[HEAD], &self.slot(slot)[VALUE], &self.lifetime(slot)[START]].map(Word::get);
        identity(one) == identity(other)
    }

    /// Writes a slot so that a crash leaves it as it was, poisoned, or written. The caller flushes it.
    #[track_caller]
    fn write<M: Medium>(&self, pm: &Pm<M>, slot: usize, [head, value, start, end]: [u64; 4]) {
        let ([to_head, to_value], [to_start, to_end]) = (self.slot(slot), self.lifetime(slot));
        for (word, value) in [(to_start, NEVER), (to_head, head), (to_value, value), (to_end, end), (to_start, start)] {
            pm.store(word, value, Release);
        }
    }

    #[track_caller]
    fn copy<M: Medium>(&self, pm: &Pm<M>, from: usize, to: usize) {
        let ([head, value], [start, end]) = (self.slot(from), self.lifetime(from));
        self.write(pm, to, [head, value, start, end].map(Word::get));
        pm.persist(self.whole(to));
    }

    #[track_caller]
    fn poison<M: Medium>(&self, pm: &Pm<M>, slot: usize) {
        pm.store(&self.lifetime(slot)[START], NEVER, Release);
        pm.persist(self.lifetime(slot));
    }

    /// Makes an entry end with the next version. The caller fences.
    #[track_caller]
    fn end<M: Medium>(&self, pm: &Pm<M>, slot: usize) {
        pm.store(&self.lifetime(slot)[END], self.state().version + 1, Release);
        pm.flush(self.lifetime(slot));
    }

    /// Step 2, before a slot. Returns what the run word will say, except the version. `None` if there is no slot; a sound node always has one.
    fn add<M: Medium>(&self, pm: &Pm<M>, at: usize, entry: Entry) -> Option<State> {
        let state = self.state();
        let (at, state) = if state.used < Self::SLOTS {
            (at..state.used).rev().for_each(|slot| self.copy(pm, slot, slot + 1));
            (at, State { used: state.used + 1, ..state })
        } else {
            let is_dead = |slot: &usize| !state.lives_at(self.lifetime(*slot));
            let (behind, before) = ((at..state.used).find(is_dead), (0..at).rev().find(is_dead));
            let at = match (behind, before) {
                (Some(behind), before) if before.is_none_or(|before| behind - at < at - before) => {
                    (at..behind).rev().for_each(|slot| self.copy(pm, slot, slot + 1));
                    at
                }
                (_, Some(before)) => {
                    (before + 1..at).for_each(|slot| self.copy(pm, slot, slot - 1));
                    at - 1
                }
                _ => return None,
            };
            (at, State { dead: state.dead.saturating_sub(1), ..state })
        };
        self.write(pm, at, [entry.head, entry.value.get(), state.version + 1, NEVER]);
        pm.persist(self.whole(at));
        Some(state)
    }

    /// Step 4.
    #[track_caller]
    fn commit<M: Medium>(&self, pm: &Pm<M>, state: State) {
        pm.store(&self.header.run, State { version: state.version + 1, ..state }.word(), Release);
        pm.persist(&self.header);
    }

    /// Keeps each live entry of the first slots once, durably: whoever closes the pool next flushes nothing.
    fn leave_out_dead<M: Medium>(&self, pm: &Pm<M>, slots: usize) {
        let State { version, .. } = self.state();
        let mut count = 0;
        for slot in self.living_in(0..slots) {
            if count > 0 && self.are_one(count - 1, slot) {
                self.poison(pm, slot);
                continue;
            }
            if slot != count {
                self.copy(pm, slot, count);
                self.poison(pm, slot);
            }
            count += 1;
        }
        pm.store(&self.header.run, State { version, used: count, dead: 0 }.word(), Release);
        pm.persist(&self.header);
    }
}
