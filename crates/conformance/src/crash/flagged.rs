//! NV-Tree's leaf with negatives that are flagged entries, as in its paper: with one of two mistakes, which must be found, or with none, which must pass.
//!
//! ```text
//! word   0       1           2           3            4 .. 15
//!        count   next leaf   low fence   (not used)   6 x { key, value }, with the top bit of the value set in a negative
//! ```

use everleaf_index::selective::leaf::{Birth, Entry, LeafLayout, Written};
use everleaf_index::selective::structure::Replaced;
use everleaf_index::selective::{Olc, Selective};
use everleaf_index::{Entry as Index, Error};
use everleaf_pmem::{Medium, Pm, Word, resident};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Release;

/// No mistake.
pub(super) const RIGHT: usize = 0;
/// An update counts its negative, and then the new entry: a crash in between loses the key.
pub(super) const COUNTED_ONE_BY_ONE: usize = 1;
/// An entry does not count if there is a negative of the same key and value anywhere: a key that goes from one value to another and back is lost.
pub(super) const MATCHED_BY_VALUE: usize = 2;

resident! {
    /// A leaf of 128 bytes with a mistake.
    pub struct Flagged<const MISTAKE: usize> {
        words: [Word; 16],
    }
}

type Tree<M, const MISTAKE: usize> = Selective<u64, Flagged<MISTAKE>, Olc<u64, 4>, M>;

const SLOTS: usize = 6;
const COUNT: usize = 0;
const NEXT: usize = 1;
const LOW: usize = 2;
const FIRST: usize = 4;
const NEGATIVE: u64 = 1 << 63;

/// An index of such leaves.
pub(super) fn entry<M: Medium, const MISTAKE: usize>() -> Index<u64, M> {
    Index {
        name: "nv-128-flagged",
        summary: "NV-Tree with flagged negatives, which loses keys",
        persistent: true,
        leaf_capacity: SLOTS,
        creator: |entry, pool, root| Ok(Box::new(Tree::<M, MISTAKE>::create(pool, root, entry.name, Olc::build)?)),
        opener: |entry, pool, root, recovery| Ok(Box::new(Tree::<M, MISTAKE>::open(pool, root, entry.name, recovery, Olc::build)?)),
    }
}

impl<const MISTAKE: usize> Flagged<MISTAKE> {
    fn elements(&self) -> Vec<[u64; 2]> {
        let count = (self.words[COUNT].get() as usize).min(SLOTS);
        self.words[FIRST..][..2 * count].chunks(2).map(|element| [element[0].get(), element[1].get()]).collect()
    }

    /// Slots and elements of the entries that count.
    fn counted(&self) -> Vec<(usize, [u64; 2])> {
        let elements = self.elements();
        let is_negative = |element: &[u64; 2]| element[1] & NEGATIVE != 0;
        let counts = |&(slot, element): &(usize, &[u64; 2])| match MISTAKE {
            MATCHED_BY_VALUE => !elements.contains(&[element[0], element[1] | NEGATIVE]),
            _ => elements[slot + 1..].iter().all(|later| later[0] != element[0]),
        };
        elements.iter().enumerate().filter(|(_, element)| !is_negative(element)).filter(counts).map(|(slot, element)| (slot, *element)).collect()
    }

    fn append<M: Medium>(&self, pm: &Pm<M>, elements: &[[u64; 2]]) {
        let count = self.elements().len();
        for (at, element) in (count..).zip(elements) {
            let place = &self.words[FIRST + 2 * at..][..2];
            pm.store(&place[0], element[0], Release);
            pm.store(&place[1], element[1], Release);
            pm.flush(place);
        }
        pm.fence();
        pm.store(&self.words[COUNT], (count + elements.len()) as u64, Release);
        pm.persist(&self.words[COUNT]);
    }

    /// Appends elements, if there is room for all.
    fn write<M: Medium>(&self, pm: &Pm<M>, elements: &[[u64; 2]]) -> Written {
        if self.elements().len() + elements.len() > SLOTS {
            return Written::NoRoom;
        }
        elements.chunks(if MISTAKE == COUNTED_ONE_BY_ONE { 1 } else { elements.len() }).for_each(|part| self.append(pm, part));
        Written::Done
    }

    fn negative(&self, slot: usize) -> [u64; 2] {
        let [key, value] = self.elements()[slot];
        [key, value | NEGATIVE]
    }
}

impl<const MISTAKE: usize> LeafLayout<u64> for Flagged<MISTAKE> {
    const CAPACITY: usize = SLOTS;

    type Structure = Replaced;

    type Plan = ();

    fn find<M: Medium>(&self, _: &Pm<M>, key: &u64) -> Result<Option<(usize, NonZeroU64)>, Error> {
        let found = self.counted().into_iter().rev().find(|(_, element)| element[0] == *key);
        Ok(found.and_then(|(slot, element)| Some((slot, NonZeroU64::new(element[1])?))))
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &u64, value: NonZeroU64) -> Result<Written, Error> {
        Ok(self.write(pm, &[[*key, value.get()]]))
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        let negative = self.negative(slot);
        Ok(self.write(pm, &[negative, [negative[0], value.get()]]))
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        Ok(self.write(pm, &[self.negative(slot)]))
    }

    fn count(&self) -> usize {
        self.counted().len()
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.extend(self.counted().into_iter().filter_map(|(_, [head, value])| Some(Entry { head, value: NonZeroU64::new(value)? })));
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        let header = [entries.len() as u64, birth.next, birth.low, 0];
        let elements = entries.iter().flat_map(|entry| [entry.head, entry.value.get()]);
        self.words.iter().zip(header.into_iter().chain(elements)).for_each(|(word, value)| pm.store(word, value, Release));
        Ok(())
    }

    fn next(&self) -> &Word {
        &self.words[NEXT]
    }

    fn low(&self) -> u64 {
        self.words[LOW].get()
    }

    fn recover<M: Medium>(&self, _: &Pm<M>) -> Result<(), Error> {
        Ok(())
    }

    fn check<M: Medium>(&self, _: &Pm<M>) -> Result<(), Error> {
        Ok(())
    }
}
