//! NV-Tree: elements are appended, and what is there never changes (Yang, Wei, Chen, Wang, Yong and He, "NV-Tree: Reducing Consistency Cost for NVM-based
//! Single Level Systems", FAST 2015).
//!
//! ```text
//! unit 0, 1    count | next leaf | skip | low fence             a unit is 16 bytes, a line four units, a leaf LINES lines: 512 B to 4 KiB in the paper
//! unit 2 ..    an element each: { head, value } an entry; { identity, 0 } a *negative*, which takes an entry back
//! ```
//!
//! One of the two words of an entry is unique among those of its leaf that count: its *identity*. For `u64` keys it is the head, for byte strings the value
//! (the link of the key's own record). The paper marks a negative by a flag in the value; here values may have all bits, but are never 0.
//!
//! The last byte of the count repeats it ([`with_check`](super::with_check)), so no byte of it can change unnoticed.
//!
//! Invariants, when the leaf's latch is free:
//! 1. the first `count` elements are durable; what is behind them means nothing, whatever it is;
//! 2. an entry counts unless a negative of its identity is behind it. Each negative takes back one entry, so the leaf has `count` - 2 x negatives entries;
//! 3. next changes only under the latch of this leaf; skip, low fence and the elements that are counted never do.
//!
//! # Writing
//!
//! 1. the elements, behind the last; flush their lines; fence. A crash: nobody reads them.
//! 2. count := that with all of them, in one store; persist: the commit point.
//!
//! Elements of the first line need no flush of their own: the line keeps a prefix of its stores, and they come before the count, whose store is the only one
//! with an order.
//!
//! | change | elements | flushes / fences | in the first line |
//! |---|---|---|---|
//! | insert | entry | 2 / 2 | 1 / 1 |
//! | remove | negative | 2 / 2 | 1 / 1 |
//! | update | negative, entry | 2 / 2; over two lines, 3 / 2 | 1 / 1; both lines, 2 / 2 |
//!
//! If an update counted its elements one by one, a crash in between would lose the key. If negatives were matched with entries as pairs of key and value,
//! wherever they stand, a key that goes from one value to another and back would be lost, too. So what comes later counts, and nothing else.
//!
//! A leaf without room for a change is replaced by two, or by one if few of its entries count. The change is made on the way. See
//! [`Replaced`](crate::selective::structure::Replaced).
//!
//! Recovery has nothing to repair.

use super::{Birth, Change, Entry, LeafLayout, Written};
use crate::record::Record;
use crate::selective::structure::Replaced;
use crate::{Error, Key};
use everleaf_pmem::{Medium, Pm, Word, resident, vector};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

resident! {
    /// An NV-Tree leaf of `LINES` lines. See the module documentation.
    pub(crate) struct NvLeaf<const LINES: usize> {
        lines: [Line; LINES],
    }
}

type Line = [Unit; UNITS];
/// Sixteen bytes: half of the header, or an element.
type Unit = [Word; 2];
/// Units of a line.
const UNITS: usize = 4;
/// Units before the first element.
const HEADER: usize = 2;

const HEAD: usize = 0;
const VALUE: usize = 1;

impl<const LINES: usize> NvLeaf<LINES> {
    const SLOTS: usize = LINES * UNITS - HEADER;
    const CHECKED: () = assert!(Self::SLOTS <= u8::MAX as usize, "a count is a byte");

    fn count_word(&self) -> &Word {
        &self.lines[0][0][0]
    }

    fn skip_word(&self) -> &Word {
        &self.lines[0][1][0]
    }

    /// Number of elements; whatever the word says, no more than there can be.
    #[inline(always)]
    fn elements(&self) -> usize {
        usize::from(self.count_word().get() as u8).min(Self::SLOTS)
    }

    /// A number of elements as it is stored.
    const fn checked(count: usize) -> u64 {
        super::with_check(count as u64, 8, 56)
    }

    #[inline(always)]
    fn element(&self, slot: usize) -> &Unit {
        let unit = slot + HEADER;
        &self.lines[unit / UNITS][unit % UNITS]
    }

    /// The elements whose first word is `word`, from the newest on.
    #[inline(always)]
    fn newest_first(&self, word: u64) -> impl Iterator<Item = usize> {
        let end = HEADER + self.elements();
        let parts = self.lines[..end.div_ceil(UNITS)].chunks(vector::WIDTH / UNITS).enumerate().rev();
        parts.flat_map(move |(part, lines)| {
            let start = part * vector::WIDTH;
            let counted = u64::MAX >> (vector::WIDTH - (end - start).min(vector::WIDTH)) & if part == 0 { u64::MAX << HEADER } else { u64::MAX };
            let mut equal = vector::equal_heads(lines, word) & counted;
            std::iter::from_fn(move || {
                let newest = equal.checked_ilog2()? as usize;
                equal &= !(1 << newest);
                Some(start + newest - HEADER)
            })
        })
    }

    /// The identity of the entry at `slot`.
    #[inline(always)]
    fn identity<K: Key + ?Sized>(&self, slot: usize) -> u64 {
        self.element(slot)[if K::WHOLE { HEAD } else { VALUE }].get()
    }

    /// Whether a negative takes back the entry at `slot`.
    #[inline(always)]
    fn is_taken_back<K: Key + ?Sized>(&self, slot: usize) -> bool {
        self.newest_first(self.identity::<K>(slot)).take_while(|later| *later > slot).any(|later| self.element(later)[VALUE].get() == 0)
    }

    fn negatives(&self) -> usize {
        (0..self.elements()).filter(|slot| self.element(*slot)[VALUE].get() == 0).count()
    }

    /// Step 1 for elements from the slot `first` on, without the fence. Returns their last line, if there is room for them.
    fn put<M: Medium>(&self, pm: &Pm<M>, first: usize, elements: &[[u64; 2]]) -> Option<usize> {
        if first + elements.len() > Self::SLOTS {
            return None;
        }
        for (slot, [head, value]) in (first..).zip(elements) {
            pm.store(&self.element(slot)[HEAD], *head, Relaxed);
            pm.store(&self.element(slot)[VALUE], *value, Relaxed);
        }
        let last = (first + elements.len() - 1 + HEADER) / UNITS;
        for line in self.lines[..=last].iter().skip(((first + HEADER) / UNITS).max(1)) {
            pm.flush(line);
        }
        Some(last)
    }

    /// Step 2, without the fence.
    #[track_caller]
    fn set_count<M: Medium>(&self, pm: &Pm<M>, count: usize) {
        pm.store(self.count_word(), self.count_word().get() ^ Self::checked(self.elements() ^ count), Release);
        pm.flush(self.count_word());
    }

    /// Adds elements, all or none.
    fn append<M: Medium>(&self, pm: &Pm<M>, elements: &[[u64; 2]]) -> Result<Written, Error> {
        let first = self.elements();
        let Some(last) = self.put(pm, first, elements) else { return Ok(Written::NoRoom) };
        if last > 0 {
            pm.fence();
        }
        self.set_count(pm, first + elements.len());
        pm.fence();
        Ok(Written::Done)
    }

    /// What an update appends.
    fn update_of<K: Key + ?Sized>(&self, slot: usize, value: NonZeroU64) -> [[u64; 2]; 2] {
        [[self.identity::<K>(slot), 0], [self.element(slot)[HEAD].get(), value.get()]]
    }

    fn damage<M: Medium>(&self, pm: &Pm<M>, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), what).into()
    }
}

impl<K: Key + ?Sized, const LINES: usize> LeafLayout<K> for NvLeaf<LINES> {
    const CAPACITY: usize = Self::SLOTS;

    type Structure = Replaced;

    /// The new count.
    type Plan = usize;

    #[inline(always)]
    fn find<M: Medium>(&self, pm: &Pm<M>, key: &K) -> Result<Option<(usize, NonZeroU64)>, Error> {
        let skip = LeafLayout::<K>::skip(self);
        let head = key.head(skip);
        for slot in self.newest_first(head) {
            // The newest element of an integer decides. A negative of a byte string is found by its link, which some head may equal.
            let value = NonZeroU64::new(self.element(slot)[VALUE].get());
            match value {
                _ if K::WHOLE => return Ok(value.map(|value| (slot, value))),
                // The record of an entry that was taken back may be another's.
                Some(value) if !self.is_taken_back::<K>(slot) && key.compare(pm, skip, head, value)?.is_eq() => return Ok(Some((slot, value))),
                _ => {}
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn prefetch<M: Medium>(&self, pm: &Pm<M>, key: &K) {
        if K::WHOLE {
            return;
        }
        if let Some(slot) = self.newest_first(key.head(LeafLayout::<K>::skip(self))).next() {
            Record::prefetch(pm, self.element(slot)[VALUE].get());
        }
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &K, value: NonZeroU64) -> Result<Written, Error> {
        self.append(pm, &[[key.head(LeafLayout::<K>::skip(self)), value.get()]])
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        self.append(pm, &self.update_of::<K>(slot, value))
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        self.append(pm, &[[self.identity::<K>(slot), 0]])
    }

    fn stage<M: Medium>(&self, pm: &Pm<M>, plan: &mut Option<usize>, key: &K, slot: usize, change: Change) -> Result<Written, Error> {
        let count = plan.get_or_insert_with(|| self.elements());
        let elements: &[_] = match change {
            Change::Insert(value) => &[[key.head(LeafLayout::<K>::skip(self)), value.get()]],
            Change::Update(value) => &self.update_of::<K>(slot, value),
            Change::Remove => &[[self.identity::<K>(slot), 0]],
        };
        if self.put(pm, *count, elements).is_none() {
            return Ok(Written::NoRoom);
        }
        *count += elements.len();
        Ok(Written::Done)
    }

    fn publish<M: Medium>(&self, pm: &Pm<M>, count: &usize) {
        self.set_count(pm, *count);
    }

    fn count(&self) -> usize {
        self.elements().saturating_sub(2 * self.negatives())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let has_negatives = self.negatives() > 0;
        for slot in 0..self.elements() {
            let Some(entry) = Entry::read(self.element(slot)) else { continue };
            if !has_negatives || !self.is_taken_back::<K>(slot) {
                out.push(entry);
            }
        }
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        const { Self::CHECKED };
        assert!(entries.len() <= Self::SLOTS);
        for (slot, entry) in entries.iter().enumerate() {
            pm.store(&self.element(slot)[HEAD], entry.head, Relaxed);
            pm.store(&self.element(slot)[VALUE], entry.value.get(), Relaxed);
        }
        let header = [Self::checked(entries.len()), birth.next, birth.skip as u64, birth.low];
        for (word, value) in self.lines[0].as_flattened().iter().zip(header) {
            pm.store(word, value, Relaxed);
        }
        Ok(())
    }

    fn used(&self) -> usize {
        (HEADER + self.elements()).next_multiple_of(UNITS) * size_of::<Unit>()
    }

    fn next(&self) -> &Word {
        &self.lines[0][0][1]
    }

    fn low(&self) -> u64 {
        self.lines[0][1][1].get()
    }

    #[inline(always)]
    fn skip(&self) -> usize {
        if K::WHOLE { 0 } else { self.skip_word().get() as usize }
    }

    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        LeafLayout::<K>::check(self, pm)
    }

    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        if self.count_word().get() != Self::checked(self.elements()) {
            return Err(self.damage(pm, "a leaf whose number of elements is damaged"));
        }
        let mut entries = Vec::with_capacity(Self::SLOTS);
        LeafLayout::<K>::entries(self, &mut entries);
        if self.elements() != entries.len() + 2 * self.negatives() {
            return Err(self.damage(pm, "a leaf with a negative that takes back none, or more than one entry"));
        }
        Ok(())
    }
}
