//! A node: its bytes, and the order in which they are written. The tree's module documentation has the protocol of nodes among each other.
//!
//! ```text
//! line 0   link of the next node of the level | low fence | level, as a link | five words of zeroes
//! line l   4 x { head, value }                                              1 <= l <= LINES; a node is 64 (LINES + 1) bytes
//! ```
//!
//! Entries ascend from the first slot on and end with the slots, or where a value is 0; what is behind that one counts for nothing and may be anything. In a
//! leaf, an entry is that of a key. In an inner node it is that of a child: the value is its link, the head that of its low fence, and where heads are equal,
//! that fence is looked at itself.
//!
//! # Writing (FAST)
//!
//! A change shifts entries, word by word, from line to line, each of which is made durable before the next is touched. A crash leaves lines as before, lines as
//! after, and at most one with a prefix of its stores: a copy of an entry beside it, perhaps in two lines, by whose identity it is told (`shift.rs`).
//!
//! Insert at slot i of n, for each line that it touches 1 flush and 1 fence:
//! 1. value[n + 1] := 0, unless it is: from the second next store on, it ends the entries. If it is in another line than slot n, persist: a crash that kept
//!    slot n and not this would count what was cut off long ago.
//! 2. for j = n - 1 down to i: slot j + 1 := slot j; if j + 1 is the first of its line, persist that line, for slot j is about to change. A crash within: the
//!    copy is taken back, and what was shifted with it.
//! 3. slot i := the new entry, whose last store is the commit point; persist its line.
//!
//! Remove slot i, the same costs: 1. for j = i to n - 2: slot j := slot j + 1, of which the first store is the commit point; if j is the last of its line,
//! persist that line, for slot j + 1 is about to change. 2. value[n - 1] := 0, which is the commit point if i = n - 1; persist. A crash within: recovery
//! finishes the shift.
//!
//! Update: one value word, persisted.

use crate::Error;
use crate::key::Key;
use crate::selective::leaf::{self, Entry};
use crate::shift::{First, HEAD, VALUE, are_one, write};
use everleaf_pmem::{LINE, Medium, Off, Pm, Word, resident};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Entries of a line.
pub(super) const SLOTS: usize = 4;

resident! {
    /// A node with `LINES` lines of entries. See the module documentation.
    pub struct Node<const LINES: usize> {
        next: Word,
        low: Word,
        level: Word,
        reserved: [Word; 5],
        lines: [Line; LINES],
    }
}

/// Pairs of head and value.
type Line = [[Word; 2]; SLOTS];

/// What a node is told when it is made.
pub(super) struct Birth {
    /// Link of the next node of the level.
    pub(super) next: u64,
    /// The low fence, as [`Key::fence`] writes it.
    pub(super) low: u64,
    /// 0 for a leaf.
    pub(super) level: usize,
}

impl<const LINES: usize> Node<LINES> {
    /// Entries of a node.
    pub(super) const CAPACITY: usize = LINES * SLOTS;

    #[inline(always)]
    fn slot(&self, slot: usize) -> &[Word; 2] {
        &self.lines[slot / SLOTS][slot % SLOTS]
    }

    #[inline(always)]
    fn line(&self, slot: usize) -> &Line {
        &self.lines[slot / SLOTS]
    }

    #[inline(always)]
    pub(super) fn head(&self, slot: usize) -> u64 {
        self.slot(slot)[HEAD].get()
    }

    #[inline(always)]
    fn value_word(&self, slot: usize) -> u64 {
        self.slot(slot)[VALUE].get()
    }

    /// The value of an entry.
    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> Option<NonZeroU64> {
        NonZeroU64::new(self.value_word(slot))
    }

    /// Number of entries, which are not fewer than `from`.
    #[inline]
    pub(super) fn count(&self, from: usize) -> usize {
        (from..Self::CAPACITY).find(|&slot| self.value_word(slot) == 0).unwrap_or(Self::CAPACITY)
    }

    /// The entries, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..Self::CAPACITY).map_while(|slot| Entry::read(self.slot(slot)))
    }

    /// The word that links the next node of the level.
    #[inline(always)]
    pub(super) fn next(&self) -> &Word {
        &self.next
    }

    /// The low fence, as [`Key::fence`] writes it.
    #[inline(always)]
    pub(super) fn low(&self) -> u64 {
        self.low.get()
    }

    /// 0 for a leaf; `None` if it is damaged.
    #[inline(always)]
    pub(super) fn level(&self) -> Option<usize> {
        Off::<()>::of_link(self.level.get()).map(|level| level.bytes() as usize)
    }

    /// Number of entries below `key`, and whether the one behind them is its own. The heads of those before slot `from` are below that of the key.
    #[inline(always)]
    pub(super) fn rank<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K, from: usize) -> Result<(usize, bool), Error> {
        let head = key.head(0);
        let below = (from..Self::CAPACITY).find(|&slot| self.value_word(slot) == 0 || self.head(slot) >= head).unwrap_or(Self::CAPACITY);
        let has_head = |slot: usize| slot < Self::CAPACITY && self.value_word(slot) != 0 && self.head(slot) == head;
        if K::WHOLE {
            return Ok((below, has_head(below)));
        }
        let (mut start, mut end) = (below, below);
        while has_head(end) {
            end += 1;
        }
        while start < end {
            let middle = start + (end - start) / 2;
            match self.compare(pm, key, middle)? {
                Order::Less => end = middle,
                Order::Equal => return Ok((middle, true)),
                Order::Greater => start = middle + 1,
            }
        }
        Ok((start, false))
    }

    /// The key of an entry: in an inner node, the low fence of the child.
    pub(super) fn key<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, entry: &Entry) -> Result<K::Owned, Error> {
        match self.level() {
            Some(0) => leaf::read::<K, M>(pm, entry),
            _ => Ok(K::read_fence(pm, self.child(pm, entry.value)?.low())?.0),
        }
    }

    fn child<'p, M: Medium>(&self, pm: &'p Pm<M>, link: NonZeroU64) -> Result<&'p Self, Error> {
        Ok(pm.at(Off::<Self>::from_link(link.get())?, "a node does not lie in the pool")?)
    }

    /// Compares a key with that of an entry.
    #[inline]
    fn compare<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K, slot: usize) -> Result<Order, Error> {
        let Some(value) = self.value(slot) else { return Ok(Order::Less) };
        let whose = match self.level() {
            Some(0) => value.get(),
            _ => self.child(pm, value)?.low(),
        };
        match NonZeroU64::new(whose) {
            Some(record) => key.compare(pm, 0, self.head(slot), record),
            // The lowest key has no record.
            None => Ok(key.cmp(K::LOWEST)),
        }
    }

    #[inline(always)]
    #[track_caller]
    fn copy<M: Medium>(&self, pm: &Pm<M>, from: usize, to: usize, first: First) {
        write(pm, self.slot(to), self.head(from), self.value_word(from), first);
    }

    /// Adds an entry before that of `slot`, durably, to a node of `count` entries with room. See the module documentation.
    #[inline(always)]
    pub(super) fn insert<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize, count: usize, entry: Entry) {
        let end = count + 1;
        if end < Self::CAPACITY && self.value_word(end) != 0 {
            pm.store(&self.slot(end)[VALUE], 0, Release);
            if end.is_multiple_of(SLOTS) {
                pm.persist(self.line(end));
            }
        }
        let first = |to| First::to_the_right::<K>(to == count);
        for to in (slot + 1..=count).rev() {
            self.copy(pm, to - 1, to, first(to));
            if to.is_multiple_of(SLOTS) {
                pm.persist(self.line(to));
            }
        }
        write(pm, self.slot(slot), entry.head, entry.value.get(), first(slot));
        pm.persist(self.line(slot));
    }

    /// Sets a value, durably.
    #[inline(always)]
    pub(super) fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) {
        let word = &self.slot(slot)[VALUE];
        pm.store(word, value.get(), Release);
        pm.persist(word);
    }

    /// Removes one of `count` entries, durably. See the module documentation.
    #[inline(always)]
    pub(super) fn remove<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize, count: usize) {
        let last = count - 1;
        for left in slot..last {
            self.copy(pm, left + 1, left, First::to_the_left::<K>());
            if (left + 1).is_multiple_of(SLOTS) {
                pm.persist(self.line(left));
            }
        }
        self.cut(pm, last);
    }

    /// Leaves the first `count` entries and no more, durably.
    pub(super) fn cut<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        pm.store(&self.slot(count)[VALUE], 0, Release);
        pm.persist(self.line(count));
    }

    /// Writes the entries of the next node behind those of this one, durably. All are beyond the range of this node till the next node is linked no more: a
    /// crash before that has the first of them cut off, and with it whatever there is behind, which may be what was there before, if lines are torn from each
    /// other.
    pub(super) fn append<M: Medium>(&self, pm: &Pm<M>, next: &Self) {
        let (count, added) = (self.count(0), next.count(0));
        let end = count + added;
        if end < Self::CAPACITY {
            pm.store(&self.slot(end)[VALUE], 0, Relaxed);
        }
        for slot in 0..added {
            write(pm, self.slot(count + slot), next.head(slot), next.value_word(slot), First::Head);
        }
        pm.persist(&self.lines[count.min(Self::CAPACITY - 1) / SLOTS..=end.min(Self::CAPACITY - 1) / SLOTS]);
    }

    /// Writes all of a node that nobody can reach. The caller seals it.
    pub(super) fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: impl Iterator<Item = Entry>) {
        let header = [(&self.next, birth.next), (&self.low, birth.low), (&self.level, Off::<()>::new(birth.level as u64).link())];
        for (word, value) in header.into_iter().chain(self.reserved.iter().map(|word| (word, 0))) {
            pm.store(word, value, Relaxed);
        }
        let entries = entries.map(|entry| [entry.head, entry.value.get()]).chain(std::iter::repeat([0; 2]));
        for (slot, [head, value]) in self.lines.as_flattened().iter().zip(entries) {
            pm.store(&slot[HEAD], head, Relaxed);
            pm.store(&slot[VALUE], value, Relaxed);
        }
    }

    /// Finishes or takes back what a crash has interrupted, durably; stores nothing if there is nothing of that kind. Nobody else has the node. `high` is where
    /// its range ends, if it does.
    pub(super) fn recover<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: Option<&K>) -> Result<(), Error> {
        if let Some(high) = high {
            self.cut_beyond(pm, high)?;
        }
        let count = self.count(0);
        if let Some(right) = (1..count).find(|&slot| are_one::<K>(self.slot(slot - 1), self.slot(slot))) {
            self.remove::<K, M>(pm, right - 1, count);
        }
        Ok(())
    }

    /// Leaves what comes before the first entry that is not below `high`, durably. Entry by entry: of those behind that one nothing is known, since
    /// [`Self::append`] may have been cut short.
    fn cut_beyond<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: &K) -> Result<(), Error> {
        let head = high.head(0);
        for (slot, entry) in self.entries().enumerate() {
            if entry.head < head || entry.head == head && self.compare(pm, high, slot)?.is_gt() {
                continue;
            }
            // A head that is damaged must not have entries cut off that count.
            let key = self.key::<K, M>(pm, &entry)?;
            if key.borrow().head(0) != entry.head || key.borrow() < high {
                return Err(everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), "a node with a head that is not that of its key").into());
            }
            self.cut(pm, slot);
            break;
        }
        Ok(())
    }

    /// Checks that identities and heads of neighbours are in order, as they are when no operation is under way.
    pub(super) fn check_order<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        let are_apart = |slot: usize| match self.head(slot - 1).cmp(&self.head(slot)) {
            Order::Less => true,
            Order::Equal => !K::WHOLE && self.value_word(slot - 1) != self.value_word(slot),
            Order::Greater => false,
        };
        match (1..self.count(0)).all(are_apart) {
            true => Ok(()),
            false => Err(everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), "a node whose entries do not ascend").into()),
        }
    }

    /// Lines that are worth asking for before they are searched: those of a small node.
    pub(super) const ASKED: bool = size_of::<Self>() <= 8 * LINE;
}
