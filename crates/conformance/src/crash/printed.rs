//! Leaves that are divided as their papers print it, which must be found wrong, and corrected ones (`RIGHT`), which must pass.
//!
//! LB+-Tree's Algorithm 3: a key that stays in the old leaf is inserted before the header is switched.
//!
//! ```text
//! word   0        1               2 .. 13                 14, 15
//!        header   (not in use)    6 x { head, value }     siblings          see `everleaf_index::selective::LbLeaf`, of which this is the smallest
//! ```
//!
//! FPTree's log, of which the last step clears only the first word: the new leaf of one division is still there when the next one begins.
//!
//! ```text
//! word   0        1 ..            6         8 .. 23                         see `everleaf_index::selective::FpLeaf`, of which this is the smallest
//!        bitmap   fingerprints    next      8 x { head, value }
//! log    (link)   (not in use)    cur | new in words 2 and 3
//! ```

use everleaf_index::selective::leaf::{Birth, Change, Divisible, Division, Entry, LeafLayout, Written};
use everleaf_index::selective::log::Log;
use everleaf_index::selective::structure::{Divided, Room};
use everleaf_index::selective::{FpLeaf, LbLeaf, Olc, Selective};
use everleaf_index::{Entry as Index, Error};
use everleaf_pmem::{Medium, Off, Pm, Resident, Word, resident};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Release;

resident! {
    /// A leaf of 128 bytes that splits as printed.
    pub struct Printed<const MISTAKE: usize> {
        leaf: LbLeaf<2, 1>,
    }
}

type Tree<M, const MISTAKE: usize> = Selective<u64, Printed<MISTAKE>, Olc<u64, 4>, M>;

/// No mistake.
pub(super) const RIGHT: usize = 0;
/// What the paper says.
pub(super) const PRINTED: usize = 1;

const SLOTS: u64 = 6;
const ALL: u64 = (1 << SLOTS) - 1;
/// The slots of the header's line.
const NEAR: u64 = 0b111;
const ALT: u64 = 1 << 15;
const SIBLINGS: usize = 14;

/// Everything in a layout except the division and its recovery.
macro_rules! layout_of_the_leaf_within {
    ($leaf:ty, $slots:expr $(, $replay:item)?) => {
        impl<const MISTAKE: usize> LeafLayout<u64> for $leaf {
            const CAPACITY: usize = $slots;

            type Structure = Divided;

            type Plan = ();

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

            $($replay)?
        }
    };
}

/// LB+-Tree with Algorithm 3 as printed.
pub(super) fn algorithm_3<M: Medium, const MISTAKE: usize>() -> Index<u64, M> {
    Index {
        name: "lb-128-printed",
        summary: "LB+-Tree with Algorithm 3 as printed, which loses entries",
        persistent: true,
        leaf_capacity: SLOTS as usize,
        creator: |entry, pool, root| Ok(Box::new(Tree::<M, MISTAKE>::create(pool, root, entry.name, Olc::build)?)),
        opener: |entry, pool, root, recovery| Ok(Box::new(Tree::<M, MISTAKE>::open(pool, root, entry.name, recovery, Olc::build)?)),
    }
}

fn fingerprint(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

/// The first word of a header, as in leaves.
fn header(d: u64) -> u64 {
    d & !0xffff | u64::from(LbLeaf::<2, 1>::checked((d & (ALL | ALT)) as u16))
}

impl<const MISTAKE: usize> Printed<MISTAKE> {
    fn words<'p, M: Medium>(&self, pm: &'p Pm<M>) -> &'p [Word] {
        pm.words(pm.offset_of(self), size_of::<Self>() / size_of::<Word>()).expect("a leaf lies in the pool")
    }

    /// LBTreeLeafInsert: inserts according to the header `d`, not the current one, and writes `d` back.
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
        pm.store(&words[0], header(d), Release);
        pm.persist(&words[..8]);
    }
}

layout_of_the_leaf_within!(Printed<MISTAKE>, SLOTS as usize);

impl<const MISTAKE: usize> Divisible<u64> for Printed<MISTAKE> {
    fn divide<M: Medium>(&self, division: Division<'_, u64, Self, M>) -> (Off<Self>, Room) {
        let Division { pool, right, moved, pending, goes_right, .. } = division;
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
        let old = words[0].get();
        let sibling = &words[SIBLINGS + usize::from(old & ALT == 0)];
        pool.store(sibling, right.off().link(), Release);
        pool.flush(sibling);
        let right = pool.fence_all(right.flush()).release();
        let d = old & !moved ^ ALT;
        if goes_right || MISTAKE == RIGHT {
            pool.store(&words[0], header(d), Release);
            pool.persist(&words[0]);
        }
        if !goes_right {
            // Line 23: d says which slots will be free. As printed, the header in the leaf says that they are not; as corrected, it equals d already.
            self.insert_by(pool, d, *pending.key, value);
        }
        (right, Room::Applied)
    }
}

resident! {
    /// An FPTree leaf of 192 bytes that is divided as printed.
    pub struct Stale<const MISTAKE: usize> {
        leaf: FpLeaf<3, 4, 0, 2>,
    }
}

const FP_SLOTS: usize = 8;
const FP_ALL: u64 = (1 << FP_SLOTS) - 1;
const FP_NEXT: usize = 6;
const CUR: usize = 2;
const NEW: usize = 3;

/// FPTree with a log of which the last step clears only the first word.
pub(super) fn stale_log<M: Medium, const MISTAKE: usize>() -> Index<u64, M> {
    type Tree<M, const MISTAKE: usize> = Selective<u64, Stale<MISTAKE>, Olc<u64, 4>, M>;
    Index {
        name: "fp-192-stale",
        summary: "FPTree with a log that keeps the new leaf of the division before, which is overwritten",
        persistent: true,
        leaf_capacity: FP_SLOTS,
        creator: |entry, pool, root| Ok(Box::new(Tree::<M, MISTAKE>::create(pool, root, entry.name, Olc::build)?)),
        opener: |entry, pool, root, recovery| Ok(Box::new(Tree::<M, MISTAKE>::open(pool, root, entry.name, recovery, Olc::build)?)),
    }
}

fn words<T: Resident, M: Medium>(pm: &Pm<M>, off: Off<T>) -> Result<&[Word], Error> {
    pm.words(off, size_of::<T>() / size_of::<Word>()).ok_or_else(|| everleaf_pmem::Error::corrupt(off.bytes(), "a block of a log").into())
}

/// Stores one word, durably.
fn set<M: Medium>(pm: &Pm<M>, word: &Word, value: u64) {
    pm.store(word, value, Release);
    pm.persist(word);
}

impl<const MISTAKE: usize> Stale<MISTAKE> {
    /// Steps 3 and 4: copies all of the old leaf to the new one, and the bits of its upper half.
    fn copy<M: Medium>(pm: &Pm<M>, old: &[Word], new: &[Word]) {
        for (to, from) in new.iter().zip(old) {
            pm.store(to, from.get(), Release);
        }
        let mut slots: Vec<usize> = (0..FP_SLOTS).collect();
        slots.sort_by_key(|slot| old[8 + 2 * slot].get());
        pm.store(&new[0], FpLeaf::<3, 4, 0, 2>::checked(slots[FP_SLOTS / 2..].iter().map(|slot| 1 << slot).sum()), Release);
        pm.persist(new);
    }

    /// Steps 5 to 7.
    fn finish<M: Medium>(pm: &Pm<M>, old: &[Word], new: &[Word], log: &[Word]) {
        set(pm, &old[0], FpLeaf::<3, 4, 0, 2>::checked(!new[0].get() & FP_ALL));
        set(pm, &old[FP_NEXT], log[NEW].get());
        // The new leaf should be cleared first.
        if MISTAKE == RIGHT {
            set(pm, &log[NEW], 0);
        }
        set(pm, &log[CUR], 0);
    }

    /// Recovers from a log, given its words.
    fn redo<M: Medium>(pm: &Pm<M>, log: &Log) -> Result<(), Error> {
        let log = words(pm, pm.offset_of(log))?;
        if log[CUR].get() == 0 {
            return Ok(());
        }
        if log[NEW].get() == 0 {
            set(pm, &log[CUR], 0);
            return Ok(());
        }
        let old = words(pm, Off::<Self>::from_link(log[CUR].get())?)?;
        let new = words(pm, Off::<Self>::from_link(log[NEW].get())?)?;
        if old[0].get() == FpLeaf::<3, 4, 0, 2>::checked(FP_ALL) {
            Self::copy(pm, old, new);
        }
        Self::finish(pm, old, new, log);
        Ok(())
    }
}

layout_of_the_leaf_within!(
    Stale<MISTAKE>,
    FP_SLOTS,
    fn replay<M: Medium>(pm: &Pm<M>, log: &Log) -> Result<(), Error> {
        Self::redo(pm, log)
    }
);

impl<const MISTAKE: usize> Divisible<u64> for Stale<MISTAKE> {
    const LOGGED: bool = true;

    fn divide<M: Medium>(&self, division: Division<'_, u64, Self, M>) -> (Off<Self>, Room) {
        let Division { pool, right, log, .. } = division;
        let taken = log.expect("a layout that says so is given a log");
        let within = "a block of an open tree lies in the pool";
        let log = words(pool, pool.offset_of(&*taken)).expect(within);
        let old = words(pool, pool.offset_of(self)).expect(within);
        set(pool, &log[CUR], pool.offset_of(self).link());
        let new = words(pool, right.off()).expect(within);
        // The log makes the new leaf reachable before it is durable; that is its purpose.
        let right = pool.seal(right).release();
        set(pool, &log[NEW], right.link());
        Self::copy(pool, old, new);
        Self::finish(pool, old, new, log);
        (right, Room::Made)
    }
}
