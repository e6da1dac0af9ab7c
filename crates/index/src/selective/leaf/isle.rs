//! Isle-Tree: sorted within each cache line, unsorted across lines (Wang and Chattopadhyay, "Isle-Tree: A B+-Tree with Intra-Cache Line Sorted Leaves for
//! Non-volatile Memory").
//!
//! ```text
//! line 0   next leaf | counters of lines, one byte each, in five words | skip | low fence
//! line l   4 x { head, value }                                              1 <= l <= LINES; a leaf is 64 (LINES + 1) bytes
//! ```
//!
//! Invariants, when the leaf's latch is free:
//! 1. the entries of a line fill it from its first slot on, in ascending order; the value of every vacant slot is 0, durably;
//! 2. the counter of a line is the number of its entries;
//! 3. next changes only under the latch of this leaf; the rest of line 0, except the counters, never does.
//!
//! # Writing
//!
//! A change shifts entries within one line, word by word, and counts: line, flush, counter, flush, one fence for both. A crash leaves a prefix of the line's
//! stores, so it can leave a copy of an entry beside it, which its identity tells (`shift.rs`).
//!
//! Insert, 2 flushes and 1 fence:
//! 1. shift greater entries to the right and write the new one; flush the line. A crash within: the copy is taken back (or, if the shift
//!    was over, the entry stays).
//! 2. counter + 1, persist: the fence makes line and counter durable; the last store of the line is the commit point. A crash before: each of the two is as
//!    before or as after, the line perhaps in between, and the line decides.
//!
//! Remove, 2 flushes and 1 fence: 1. shift the greater entries to the left, last value := 0; flush the line. A crash within: recovery finishes the shift.
//! 2. counter - 1, persist, as above. Update, 1 flush and 1 fence: one value word.
//!
//! The paper fences between line and counter, because "one less than counted" looks like a finished removal and would lose an insert. That insert would be an
//! acknowledged one, if the counter alone were durable by then; under one fence for both it is one that was not acknowledged.
//!
//! A batch makes all its changes in this way, and fences behind them, or leaves that to its caller. So several changes of a line, by one thread or several, may
//! not be durable yet.
//!
//! # Recovery of a line
//!
//! The line keeps a prefix of the stores of all changes that were not durable yet: each is made, or not begun, except one that may be cut short. The copy tells
//! that, whatever the counter says:
//!
//! 1. if there is a copy, shift left over it, last value := 0, persist. That takes an insert back, and finishes a removal. It is the shift of a removal, so a
//!    crash within leaves a line with a copy again, or without.
//! 2. if the counter is not the number of values, it becomes that, persist. A crash before: the same again.
//!
//! A value behind a vacant slot is damage. For whoever changes a line, so is a counter that is not the number of its values: the tree may be one that was
//! closed, whose lines nobody has counted anew.

use super::{Birth, Change, Entry, LeafLayout, Written};
use crate::record::Record;
use crate::selective::structure::Replaced;
use crate::shift::{First, HEAD, VALUE, are_one, write};
use crate::{Error, Key};
use everleaf_pmem::{Medium, Pm, Word, resident, vector};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Entries of a line.
const SLOTS: usize = 4;

resident! {
    /// An Isle-Tree leaf of `LINES` lines of entries. See the module documentation.
    pub(crate) struct IsleLeaf<const LINES: usize> {
        next: Word,
        counters: [Word; 5],
        skip: Word,
        low: Word,
        lines: [Line; LINES],
    }
}

/// Pairs of head and value.
type Line = [[Word; 2]; SLOTS];

/// Shifts the entries behind `slot` to the left over it; `count` is the number of entries. The caller flushes the line.
#[inline]
#[track_caller]
fn shift_left<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, line: &Line, slot: usize, count: usize) {
    for to in slot..count - 1 {
        write(pm, &line[to], line[to + 1][HEAD].get(), line[to + 1][VALUE].get(), First::to_the_left::<K>());
    }
    pm.store(&line[count - 1][VALUE], 0, Release);
}

/// Number of entries: values from the first slot on.
fn values(line: &Line) -> usize {
    line.iter().take_while(|slot| slot[VALUE].get() != 0).count()
}

impl<const LINES: usize> IsleLeaf<LINES> {
    const CHECKED: () = assert!(LINES >= 1 && LINES <= 40, "a counter is a byte of five words");

    #[inline(always)]
    fn counter(&self, line: usize) -> usize {
        (self.counter_word(line).get() >> (line % 8 * 8) & 0xff) as usize
    }

    #[inline(always)]
    fn counter_word(&self, line: usize) -> &Word {
        &self.counters[line / 8]
    }

    /// Sets the counter of a line. The latch makes reading and writing the word one step. The caller flushes it.
    #[inline]
    #[track_caller]
    fn set_counter<M: Medium>(&self, pm: &Pm<M>, line: usize, count: usize) {
        let (word, shift) = (self.counter_word(line), line % 8 * 8);
        pm.store(word, word.get() & !(0xff << shift) | (count as u64) << shift, Release);
    }

    /// Number of entries of a line that is to be changed: if it were counted wrong, an entry would be overwritten, or lost. All entries are in that line.
    fn counted<M: Medium>(&self, pm: &Pm<M>, number: usize) -> Result<usize, Error> {
        let count = self.counter(number);
        let is_right = |(slot, entry): (usize, &[Word; 2])| (entry[VALUE].get() != 0) == (slot < count);
        match count <= SLOTS && self.lines[number].iter().enumerate().all(is_right) {
            true => Ok(count),
            false => Err(self.damage(pm, number, "a line of a leaf whose counter is wrong")),
        }
    }

    /// An insert without its fence.
    fn add<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error> {
        let Some(number) = (0..LINES).find(|&line| self.counter(line) < SLOTS) else { return Ok(Written::NoRoom) };
        let (line, count) = (&self.lines[number], self.counted(pm, number)?);
        let skip = LeafLayout::<K>::skip(self);
        let mut slot = count;
        while slot > 0 {
            let Some(left) = NonZeroU64::new(line[slot - 1][VALUE].get()) else { return Err(self.damage(pm, number, "a counted entry without a value")) };
            if key.compare(pm, skip, line[slot - 1][HEAD].get(), left)?.is_gt() {
                break;
            }
            slot -= 1;
        }
        let first = |to| First::to_the_right::<K>(to == count);
        for from in (slot..count).rev() {
            write(pm, &line[from + 1], line[from][HEAD].get(), line[from][VALUE].get(), first(from + 1));
        }
        write(pm, &line[slot], key.head(skip), value.get(), first(slot));
        pm.flush(line);
        self.set_counter(pm, number, count + 1);
        pm.flush(self.counter_word(number));
        Ok(Written::Done)
    }

    /// A removal without its fence.
    fn take<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        let number = slot / SLOTS;
        let (line, count) = (&self.lines[number], self.counted(pm, number)?);
        if slot % SLOTS >= count {
            return Err(self.damage(pm, number, "an entry that is not counted"));
        }
        shift_left::<K, M>(pm, line, slot % SLOTS, count);
        pm.flush(line);
        self.set_counter(pm, number, count - 1);
        pm.flush(self.counter_word(number));
        Ok(Written::Done)
    }

    fn value(&self, slot: usize) -> &Word {
        &self.lines[slot / SLOTS][slot % SLOTS][VALUE]
    }

    fn damage<M: Medium>(&self, pm: &Pm<M>, line: usize, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(pm.offset_of(&self.lines[line]).bytes(), what).into()
    }

    fn recover_line<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, number: usize) -> Result<(), Error> {
        let line = &self.lines[number];
        let (counted, count) = (self.counter(number), values(line));
        if line[count..].iter().any(|slot| slot[VALUE].get() != 0) {
            return Err(self.damage(pm, number, "a line of a leaf with a hole"));
        }
        let copy = (1..count).find(|&slot| are_one::<K>(&line[slot - 1], &line[slot]));
        if let Some(right) = copy {
            shift_left::<K, M>(pm, line, right - 1, count);
            pm.persist(line);
        }
        let left = count - usize::from(copy.is_some());
        if counted != left {
            self.set_counter(pm, number, left);
            // Both repairs fence: others change the leaf as soon as the tree is open.
            pm.persist(self.counter_word(number));
        }
        Ok(())
    }
}

impl<K: Key + ?Sized, const LINES: usize> LeafLayout<K> for IsleLeaf<LINES> {
    const CAPACITY: usize = LINES * SLOTS;

    type Structure = Replaced;

    /// None is needed: each change of a line is valid by itself.
    type Plan = ();

    /// All heads are compared at once, which leaves nothing to mispredict. The key itself, if it is more than its head, is compared only if heads are equal. A
    /// vacant slot may still show an old head, so a slot counts only by its value.
    #[inline(always)]
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error> {
        let skip = LeafLayout::<K>::skip(self);
        let head = key.head(skip);
        for (part, lines) in self.lines.chunks(vector::WIDTH / SLOTS).enumerate() {
            let mut equal = vector::equal_heads(lines, head);
            while equal != 0 {
                let slot = part * vector::WIDTH + equal.trailing_zeros() as usize;
                if let Some(value) = NonZeroU64::new(self.lines[slot / SLOTS][slot % SLOTS][VALUE].get())
                    && key.compare(pm, skip, head, value)?.is_eq()
                {
                    return Ok(Some((slot, value)));
                }
                equal &= equal - 1;
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn prefetch<M: Medium>(&self, pm: &Pm<M>, key: &K) {
        if K::WHOLE {
            return;
        }
        let head = key.head(LeafLayout::<K>::skip(self));
        for (part, lines) in self.lines.chunks(vector::WIDTH / SLOTS).enumerate() {
            if let slot @ 0..64 = vector::equal_heads(lines, head).trailing_zeros() as usize {
                let slot = part * vector::WIDTH + slot;
                Record::prefetch(pm, self.lines[slot / SLOTS][slot % SLOTS][VALUE].get());
            }
        }
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error> {
        let written = self.add(pm, key, value)?;
        if written == Written::Done {
            pm.fence();
        }
        Ok(written)
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        super::set_value(pm, self.value(slot), value);
        pm.fence();
        Ok(Written::Done)
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        let written = self.take::<K, M>(pm, slot)?;
        pm.fence();
        Ok(written)
    }

    fn stage<M: Medium>(&self, pm: &Pm<M>, _: &mut Option<()>, key: &K, slot: usize, change: Change) -> Result<Written, Error> {
        match change {
            Change::Insert(value) => self.add(pm, key, value),
            Change::Update(value) => {
                super::set_value(pm, self.value(slot), value);
                Ok(Written::Done)
            }
            Change::Remove => self.take::<K, M>(pm, slot),
        }
    }

    fn count(&self) -> usize {
        (0..LINES).map(|line| self.counter(line)).sum()
    }

    #[inline(always)]
    fn entries(&self, out: &mut Vec<Entry>) {
        for line in &self.lines {
            out.extend(line.iter().map_while(Entry::read));
        }
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        const { Self::CHECKED };
        assert!(entries.len() <= <Self as LeafLayout<K>>::CAPACITY);
        let mut counters = [0; 5];
        for (number, line) in self.lines.iter().enumerate() {
            let filled = entries.chunks(SLOTS).nth(number).unwrap_or(&[]);
            counters[number / 8] |= (filled.len() as u64) << (number % 8 * 8);
            for (at, slot) in line.iter().enumerate() {
                let (head, value) = filled.get(at).map_or((0, 0), |entry| (entry.head, entry.value.get()));
                pm.store(&slot[HEAD], head, Relaxed);
                pm.store(&slot[VALUE], value, Relaxed);
            }
        }
        for (word, counters) in self.counters.iter().zip(counters) {
            pm.store(word, counters, Relaxed);
        }
        pm.store(&self.next, birth.next, Relaxed);
        pm.store(&self.low, birth.low, Relaxed);
        pm.store(&self.skip, birth.skip as u64, Relaxed);
        Ok(())
    }

    fn next(&self) -> &Word {
        &self.next
    }

    fn low(&self) -> u64 {
        self.low.get()
    }

    #[inline(always)]
    fn skip(&self) -> usize {
        if K::WHOLE { 0 } else { self.skip.get() as usize }
    }

    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        (0..LINES).try_for_each(|line| self.recover_line::<K, M>(pm, line))
    }

    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        for (number, line) in self.lines.iter().enumerate() {
            let count = self.counted(pm, number)?;
            let mut keys = [const { None }; 2];
            for slot in &line[..count] {
                let value = NonZeroU64::new(slot[VALUE].get()).expect("counted values are not 0");
                let mut key = K::Owned::default();
                K::read(pm, slot[HEAD].get(), value, &mut key)?;
                keys = [keys[1].take(), Some(key)];
                if keys[0].is_some() && keys[0] >= keys[1] {
                    return Err(self.damage(pm, number, "a line of a leaf out of order"));
                }
            }
        }
        Ok(())
    }
}
