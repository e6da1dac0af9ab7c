//! LB+-Tree with Algorithm 3 as its paper prints it: a key that stays in the old leaf is inserted before the header is switched. To be found wrong.
//!
//! ```text
//! word   0        1               2 .. 13                 14, 15
//!        header   (not in use)    6 x { head, value }     siblings          see `everleaf_index::selective::LbLeaf`, of which this is the smallest
//! ```

use everleaf_index::selective::leaf::{Birth, Change, Divisible, Division, Entry, LeafLayout, Written};
use everleaf_index::selective::structure::{Divided, Room};
use everleaf_index::selective::{LbLeaf, Olc, Selective};
use everleaf_index::{Entry as Index, Error};
use everleaf_pmem::{Medium, Off, Pm, Word, resident};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Release;

resident! {
    /// A leaf of 128 bytes that splits as printed.
    pub struct Printed {
        leaf: LbLeaf<2, 1>,
    }
}

type Tree<M> = Selective<u64, Printed, Olc<u64, 4>, M>;

const SLOTS: u64 = 6;
const ALL: u64 = (1 << SLOTS) - 1;
/// The slots of the header's line.
const NEAR: u64 = 0b111;
const ALT: u64 = 1 << 15;
const SIBLINGS: usize = 14;

/// An index of such leaves.
pub(super) fn entry<M: Medium>() -> Index<u64, M> {
    Index {
        name: "lb-128-printed",
        summary: "LB+-Tree with Algorithm 3 as printed, which loses entries",
        persistent: true,
        leaf_capacity: SLOTS as usize,
        creator: |entry, pool, root| Ok(Box::new(Tree::<M>::create(pool, root, entry.name)?)),
        opener: |entry, pool, root, recovery| Ok(Box::new(Tree::<M>::open(pool, root, entry.name, recovery)?)),
    }
}

fn fingerprint(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

impl Printed {
    fn words<'p, M: Medium>(&self, pm: &'p Pm<M>) -> &'p [Word] {
        pm.words(pm.offset_of(self), size_of::<Self>() / size_of::<Word>()).expect("a leaf lies in the pool")
    }

    /// LBTreeLeafInsert: inserts by the header `d`, not by the one that is there, and writes `d` back.
    fn insert_by<M: Medium>(&self, pm: &Pm<M>, mut d: u64, key: u64, value: NonZeroU64) {
        let words = self.words(pm);
        let place = |d: &mut u64, slot: u64, head: u64, value: u64| {
            let at = 2 + 2 * slot as usize;
            pm.store(&words[at], head, Release);
            pm.store(&words[at + 1], value, Release);
            *d = *d & !(0xff << (16 + slot * 8)) | fingerprint(head) << (16 + slot * 8) | 1 << slot;
        };
        let slot = u64::from((!d & ALL).trailing_zeros());
        place(&mut d, slot, key, value.get());
        if 1 << slot & NEAR == 0 {
            for (to, from) in (slot + 1..SLOTS).filter(|to| d >> to & 1 == 0).collect::<Vec<_>>().into_iter().zip(0..) {
                let at = 2 + 2 * from;
                place(&mut d, to, words[at].get(), words[at + 1].get());
                d &= !(1 << from);
            }
            pm.persist(&words[8..16]);
        }
        pm.store(&words[0], d, Release);
        pm.persist(&words[..8]);
    }
}

impl LeafLayout<u64> for Printed {
    const CAPACITY: usize = SLOTS as usize;

    type Structure = Divided;

    fn find<M: Medium>(&self, pm: &Pm<M>, key: &u64) -> Result<Option<(usize, NonZeroU64)>, Error> {
        self.leaf.find(pm, key)
    }

    fn insert<M: Medium>(&self, pm: &Pm<M>, key: &u64, value: NonZeroU64) -> Result<Written, Error> {
        self.leaf.insert(pm, key, value)
    }

    fn update<M: Medium>(&self, pm: &Pm<M>, slot: usize, value: NonZeroU64) -> Result<Written, Error> {
        LeafLayout::<u64>::update(&self.leaf, pm, slot, value)
    }

    fn remove<M: Medium>(&self, pm: &Pm<M>, slot: usize) -> Result<Written, Error> {
        LeafLayout::<u64>::remove(&self.leaf, pm, slot)
    }

    fn count(&self) -> usize {
        LeafLayout::<u64>::count(&self.leaf)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        LeafLayout::<u64>::entries(&self.leaf, out);
    }

    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: &[Entry]) -> Result<(), Error> {
        LeafLayout::<u64>::build(&self.leaf, pm, birth, entries)
    }

    fn next(&self) -> &Word {
        LeafLayout::<u64>::next(&self.leaf)
    }

    fn recover<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        LeafLayout::<u64>::recover(&self.leaf, pm)
    }

    fn check<M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        LeafLayout::<u64>::check(&self.leaf, pm)
    }
}

impl Divisible<u64> for Printed {
    fn divide<M: Medium>(&self, division: Division<'_, u64, Self, M>) -> (Off<Self>, Room) {
        let Division { pool, right, moved, pending, goes_right } = division;
        let Change::Insert(value) = pending.change else { unreachable!("only an insert needs room") };
        let words = self.words(pool);
        let mut upper = Vec::new();
        self.entries(&mut upper);
        let mut slots = 0..;
        upper.retain(|_| slots.next().is_some_and(|slot: u32| moved >> slot & 1 == 1));
        if goes_right {
            upper.push(Entry { head: *pending.key, value });
        }
        right.build(pool, &Birth { next: self.next().get(), low: 0, skip: 0 }, &upper).expect("integers are read without an error");
        let header = words[0].get();
        let sibling = &words[SIBLINGS + usize::from(header & ALT == 0)];
        pool.store(sibling, right.off().link(), Release);
        pool.flush(sibling);
        let right = pool.fence_all(right.flush()).release();
        let d = header & !moved ^ ALT;
        if goes_right {
            pool.store(&words[0], d, Release);
            pool.persist(&words[0]);
        } else {
            // Line 23: d says which slots will be free. The header says that they are not.
            self.insert_by(pool, d, *pending.key, value);
        }
        (right, Room::Applied)
    }
}
