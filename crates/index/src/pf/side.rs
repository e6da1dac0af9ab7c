//! What there is in DRAM for an array of records: where each of them begins, a byte of its meta word, and which of them count. It is made anew from the array.
//!
//! ```text
//! small  | live | end and count | head | size | 1 word of fingerprints  | 2 words of positions  |    8 records
//! large  | live | end and count | head | size | 8 words of fingerprints | 16 words of positions |   64 records
//! ```

use crate::arena::Arena;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

const LIVE: usize = 0;
/// Where the next record goes, in words, and the number of records above.
const END: usize = 1;
/// The head of the first record.
const HEAD: usize = 2;
/// Size of the array in words.
const SIZE: usize = 3;
const FINGERPRINTS: usize = 4;

/// Words of a unit.
const UNIT: usize = 8;
/// Units of a large one.
const LARGE: usize = 4;
/// Records of a small one.
const FEW: usize = 8;
const COUNT_SHIFT: u32 = 32;

/// The lowest bit of each byte.
const ONES: u64 = u64::MAX / 0xff;

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Side<'a>(&'a [AtomicU64]);

impl Side<'_> {
    /// The most records that there is room for.
    #[inline(always)]
    pub(super) fn room(self) -> usize {
        if self.0.len() == UNIT { FEW } else { u64::BITS as usize }
    }

    /// Size of the array in words.
    #[inline(always)]
    pub(super) fn size(self) -> usize {
        self.0[SIZE].load(Relaxed) as usize
    }

    /// Those that count, by their bits.
    #[inline(always)]
    pub(super) fn live(self) -> u64 {
        self.0[LIVE].load(Acquire)
    }

    /// Where the next record goes, and how many there are.
    #[inline(always)]
    pub(super) fn end(self) -> (usize, usize) {
        let end = self.0[END].load(Relaxed);
        (end as u32 as usize, (end >> COUNT_SHIFT) as usize)
    }

    /// The head of the first record.
    #[inline(always)]
    pub(super) fn head(self) -> u64 {
        self.0[HEAD].load(Relaxed)
    }

    /// The word at which a record begins.
    #[inline(always)]
    pub(super) fn position(self, record: usize) -> usize {
        let word = self.0[FINGERPRINTS + self.room() / 8 + record / 4].load(Relaxed);
        usize::from((word >> (record % 4 * 16)) as u16)
    }

    /// Those of the live ones that have this fingerprint, by their bits.
    #[inline(always)]
    pub(super) fn candidates(self, fingerprint: u8, live: u64) -> u64 {
        let pattern = ONES * u64::from(fingerprint);
        let mut candidates = 0;
        for (at, word) in self.0[FINGERPRINTS..].iter().take((u64::BITS - live.leading_zeros()).div_ceil(8) as usize).enumerate() {
            let different = word.load(Relaxed) ^ pattern;
            // The highest bit of each byte that is 0, and then one bit for each of them.
            let equal = !(((different & !(ONES << 7)) + !(ONES << 7)) | different) & ONES << 7;
            candidates |= ((equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * at);
        }
        candidates & live
    }

    /// Begins anew, for an array of so many words whose first record has this head.
    pub(super) fn begin(self, size: usize, head: u64) {
        // Who sees any of this sees that the array before is no more.
        fence(Release);
        self.0.iter().for_each(|word| word.store(0, Relaxed));
        self.0[SIZE].store(size as u64, Relaxed);
        self.0[HEAD].store(head, Relaxed);
        self.0[END].store(1, Relaxed);
    }

    /// Adds a record behind the last one, up to the word `end`.
    #[inline(always)]
    pub(super) fn push(self, fingerprint: u8, end: usize, is_live: bool) {
        let (start, count) = self.end();
        let put = |word: usize, shift: usize, bits: u64| {
            let word = &self.0[FINGERPRINTS + word];
            word.store(word.load(Relaxed) | bits << shift, Relaxed);
        };
        put(count / 8, count % 8 * 8, fingerprint.into());
        put(self.room() / 8 + count / 4, count % 4 * 16, start as u64);
        self.0[END].store(end as u64 | (count as u64 + 1) << COUNT_SHIFT, Relaxed);
        // Readers see the bit only with all else.
        self.0[LIVE].store(self.0[LIVE].load(Relaxed) | u64::from(is_live) << count, Release);
    }

    /// Has a record count no longer; what is left.
    #[inline(always)]
    pub(super) fn remove(self, record: usize) -> u64 {
        let live = self.0[LIVE].load(Relaxed) & !(1 << record);
        self.0[LIVE].store(live, Release);
        live
    }
}

/// Which of all: what is kept beside the latch of an array.
#[derive(Clone, Copy)]
pub(super) struct Number {
    pub(super) unit: u32,
    pub(super) is_large: bool,
}

#[derive(Default)]
struct Free {
    /// The first unit that was never used.
    next: usize,
    small: Vec<u32>,
    large: Vec<u32>,
}

/// All of a tree.
pub(super) struct Sides {
    units: Arena<[AtomicU64; UNIT], 64>,
    free: Mutex<Free>,
}

impl Sides {
    pub(super) fn new() -> Self {
        Self { units: Arena::new(), free: Mutex::default() }
    }

    /// One that may be out of date.
    #[inline(always)]
    pub(super) fn get(&self, Number { unit, is_large }: Number) -> Option<Side<'_>> {
        let units = self.units.rest_of_chunk(unit as usize)?.get(..if is_large { LARGE } else { 1 })?;
        Some(Side(units.as_flattened()))
    }

    /// One for an array of up to `records`.
    pub(super) fn take(&self, records: usize) -> (Number, Side<'_>) {
        let is_large = records > FEW;
        let unit = {
            let mut free = schedule::lock(&self.free);
            let Free { next, small, large } = &mut *free;
            match if is_large { large.pop() } else { small.pop() } {
                Some(unit) => unit,
                None => {
                    let count = if is_large { LARGE } else { 1 };
                    while self.units.left_in_chunk(*next) < count {
                        small.push(*next as u32);
                        *next += 1;
                    }
                    *next += count;
                    u32::try_from(*next - count).expect("units for all the arrays that a pool has room for")
                }
            }
        };
        self.units.get_or_make(unit as usize);
        let number = Number { unit, is_large };
        (number, self.get(number).expect("what was just made"))
    }

    /// Gives one back whose array is no more.
    pub(super) fn give(&self, Number { unit, is_large }: Number) {
        let mut free = schedule::lock(&self.free);
        if is_large { free.large.push(unit) } else { free.small.push(unit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_by_their_fingerprints() {
        let sides = Sides::new();
        for (records, units) in [(8, 1), (64, 4), (64, 4)] {
            let (number, side) = sides.take(records);
            assert_eq!((side.room(), side.0.len()), (records, units * UNIT));
            side.begin(4096, 7);
            (0..records).for_each(|record| side.push((record % 5) as u8, 1 + 3 * (record + 1), record % 3 > 0));
            assert_eq!((side.size(), side.head(), side.end()), (4096, 7, (1 + 3 * records, records)));
            for fingerprint in 0..6 {
                let found = side.candidates(fingerprint, side.live());
                let expected = (0..records).filter(|record| record % 5 == usize::from(fingerprint) && record % 3 > 0);
                assert_eq!(found, expected.map(|record| 1 << record).sum::<u64>());
            }
            assert!((0..records).all(|record| side.position(record) == 1 + 3 * record));
            assert_eq!(side.remove(1) & 2, 0);
            sides.give(number);
        }
        assert_eq!(schedule::lock(&sides.free).large.len(), 1, "the second large one was the first again");
    }

    #[test]
    fn a_byte_is_not_taken_for_its_neighbour() {
        let sides = Sides::new();
        let (_, side) = sides.take(8);
        side.begin(64, 0);
        [1, 0, 0x80, 0x81, 0xff, 0x7f, 0, 1].into_iter().for_each(|fingerprint| side.push(fingerprint, 1, true));
        let found = [0, 1, 0x7f, 0x80, 0xff].map(|fingerprint| side.candidates(fingerprint, side.live()));
        assert_eq!(found, [0b0100_0010, 0b1000_0001, 0b10_0000, 0b100, 0b1_0000]);
    }
}
