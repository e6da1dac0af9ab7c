//! What DRAM has of a tree's blocks, in a word beside each latch: what a block is and, for an array, which records it has. A latch belongs to a line, and the
//! latch of a block to its first line. So each line of an array has a word to tell which records begin there, and no other memory is needed. All of it is
//! rebuilt from the pool.
//!
//! ```text
//! inner node           0-31 the number of children that it has room for | 32-62 level | 63 clear
//! line of an array     0-23 a byte of the meta word of each of up to three records, for searches | 24-32 the words of the line at which they begin
//!                      | 33-35 whether they count | 36-37 their number
//! the first line, too  38-51 the word behind the last record | 52-62 size of the array in lines | 63 set
//! ```
//!
//! A record has at least three words, so no more than three begin in a line. Readers see a record by the bit that says that it counts. This is stored with all
//! else that they need of it, when the record is durable.

use super::block::{LINE_WORDS, WORDS_MAX};
use crate::latch::{Latches, Place, Restart};
use bytemuck::Zeroable;
use everleaf_pmem::schedule::atomic::AtomicU64;
use everleaf_pmem::{LINE, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

/// Latches of all lines of a pool.
pub(crate) type Lines = Latches<[Word; LINE_WORDS], Beside>;

/// The word beside a latch.
#[derive(Zeroable)]
#[repr(transparent)]
pub(crate) struct Beside(AtomicU64);

/// What is known of a block without reading it.
#[derive(Clone, Copy)]
pub(super) enum Known {
    /// An inner node: its level, and the number of children that it has room for.
    Inner { level: usize, capacity: usize },
    /// An array of this many lines.
    Array { lines: usize },
}

/// Records that begin in a line, at most.
const FEW: usize = 3;
/// The lowest bit of the byte of each.
const ONES: u64 = 0x1_0101;
const STARTS: usize = 24;
const START_BITS: usize = 3;
const LIVE: usize = 33;
const BEGUN: usize = 36;
const END: usize = 38;
const LINES: usize = 52;
const ARRAY: u64 = 1 << 63;

const _: () = assert!(WORDS_MAX < 1 << (LINES - END) && WORDS_MAX / LINE_WORDS < 1 << (63 - LINES), "the largest array, and its end, can be told");

/// This many bits of a word, from one on.
#[inline(always)]
fn field(word: u64, from: usize, bits: usize) -> usize {
    (word >> from & ((1 << bits) - 1)) as usize
}

impl Beside {
    /// What is known of the block whose first line this is.
    #[inline(always)]
    pub(super) fn known(&self) -> Known {
        let word = self.0.load(Acquire);
        if word & ARRAY != 0 {
            Known::Array { lines: field(word, LINES, 63 - LINES) }
        } else {
            Known::Inner { level: field(word, 32, 31), capacity: field(word, 0, 32) }
        }
    }

    /// Makes known that an inner node begins here.
    pub(super) fn begin_inner(&self, level: usize, capacity: usize) {
        // Whoever sees this sees that what was there before is gone.
        fence(Release);
        self.0.store((level as u64) << 32 | capacity as u64, Relaxed);
    }
}

/// What DRAM has of an array.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    all: &'a Lines,
    /// Where the array lies.
    off: u64,
    /// The places of its first lines, or of all its lines and some behind it.
    first: &'a [Place<Beside>],
    lines: usize,
}

impl<'a> Side<'a> {
    /// That of the array that begins where `first` does.
    #[inline(always)]
    pub(super) fn of(all: &'a Lines, off: u64, first: &'a [Place<Beside>], lines: usize) -> Self {
        Self { all, off, first, lines }
    }

    /// That of a new array, which has no records yet. `None` if another block begins within it.
    pub(super) fn begin(all: &'a Lines, off: u64, lines: usize) -> Option<Self> {
        // All of them are made, so this must not stop early.
        let within = (0..lines).map(|line| all.make(off + (line * LINE) as u64)).skip(1);
        if within.filter(|place| !place.latch.is_dead()).count() > 0 {
            return None;
        }
        let side = Self::of(all, off, all.rest_from(off).expect("what was just made"), lines);
        fence(Release);
        (0..lines).for_each(|line| side.line(line).store(0, Relaxed));
        side.line(0).store(ARRAY | (lines as u64) << LINES | 1 << END, Relaxed);
        Some(side)
    }

    #[inline(always)]
    fn line(self, line: usize) -> &'a AtomicU64 {
        let place = self.first.get(line).unwrap_or_else(|| self.line_beyond(line));
        &place.beside.0
    }

    /// The place of a line that lies in another piece of memory.
    #[cold]
    fn line_beyond(self, line: usize) -> &'a Place<Beside> {
        self.all.place(self.off + (line * LINE) as u64).unwrap_or_else(|Restart| panic!("line {line} of {} in an array was not made", self.lines))
    }

    /// The word behind the last record, where the next one goes.
    #[inline(always)]
    pub(super) fn end(self) -> usize {
        field(self.line(0).load(Relaxed), END, LINES - END)
    }

    /// The words at which the records that count begin, in ascending order, of those that `choose` finds in a line. Records added meanwhile are left out: a
    /// scan would meet a key twice that is removed and inserted again.
    #[inline(always)]
    fn select(self, choose: impl Fn(u64) -> u64) -> impl Iterator<Item = usize> {
        let mut word = self.line(0).load(Acquire);
        let end = field(word, END, LINES - END);
        let chosen = move |word| choose(word) & field(word, LIVE, FEW) as u64;
        let (mut line, mut left) = (0, chosen(word));
        std::iter::from_fn(move || {
            while left == 0 {
                line += 1;
                if line * LINE_WORDS >= end || line >= self.lines {
                    return None;
                }
                word = self.line(line).load(Acquire);
                left = chosen(word);
            }
            let record = left.trailing_zeros() as usize;
            left &= left - 1;
            Some(line * LINE_WORDS + field(word, STARTS + record * START_BITS, START_BITS)).filter(|at| *at < end)
        })
    }

    /// The words at which the records that count begin.
    #[inline(always)]
    pub(super) fn live(self) -> impl Iterator<Item = usize> {
        self.select(|_| u64::MAX)
    }

    /// The same, only for records with this byte.
    #[inline(always)]
    pub(super) fn candidates(self, fingerprint: u8) -> impl Iterator<Item = usize> {
        let pattern = ONES * u64::from(fingerprint);
        self.select(move |word| {
            let different = (word ^ pattern) & (ONES * 0xff);
            // The highest bit of each byte that is 0, and then one bit for each of them.
            let equal = !(((different & (ONES * 0x7f)) + ONES * 0x7f) | different) & ONES << 7;
            (equal >> 7 | equal >> 14 | equal >> 21) & ((1 << FEW) - 1)
        })
    }

    /// Adds a record behind the last one, up to the word `end`.
    #[inline(always)]
    pub(super) fn push(self, fingerprint: u8, end: usize, is_live: bool) {
        let at = self.end();
        let line = self.line(at / LINE_WORDS);
        let word = line.load(Relaxed);
        let record = field(word, BEGUN, END - BEGUN);
        let start = ((at % LINE_WORDS) as u64) << (STARTS + record * START_BITS);
        let told = u64::from(fingerprint) << (8 * record) | start | u64::from(is_live) << (LIVE + record);
        line.store((word + (1 << BEGUN)) | told, Release);
        let first = self.line(0);
        first.store(first.load(Relaxed) + (((end - at) as u64) << END), Release);
    }

    /// Makes the record at a word no longer count. `None` if there is none.
    #[inline(always)]
    pub(super) fn remove(self, at: usize) -> Option<()> {
        let line = self.line(at / LINE_WORDS);
        let word = line.load(Relaxed);
        let begins = |record: &usize| field(word, LIVE + record, 1) == 1 && field(word, STARTS + record * START_BITS, START_BITS) == at % LINE_WORDS;
        let record = (0..FEW).find(begins)?;
        line.store(word & !(1 << (LIVE + record)), Release);
        Some(())
    }
}

/// In an array of words, a line has these bits instead: one for each of its words, whether what it leads to counts. What the first line has of the array is as
/// above.
const MARKS: u64 = (1 << LINE_WORDS) - 1;

impl Side<'_> {
    /// The words that are marked, in ascending order.
    #[inline(always)]
    pub(super) fn marked(self) -> impl Iterator<Item = usize> {
        self.words(|word| word & MARKS)
    }

    /// The first word behind the header that is not marked.
    #[inline(always)]
    pub(super) fn unmarked(self) -> Option<usize> {
        self.words(|word| !word & MARKS).find(|at| *at > 0)
    }

    /// The words of an array whose bits `choose` finds in the word of their line.
    #[inline(always)]
    fn words(self, choose: impl Fn(u64) -> u64) -> impl Iterator<Item = usize> {
        let (mut line, mut left) = (0, choose(self.line(0).load(Acquire)));
        std::iter::from_fn(move || {
            while left == 0 {
                line += 1;
                if line >= self.lines {
                    return None;
                }
                left = choose(self.line(line).load(Acquire));
            }
            let word = left.trailing_zeros() as usize;
            left &= left - 1;
            Some(line * LINE_WORDS + word)
        })
    }

    /// Marks or unmarks a word.
    #[inline(always)]
    pub(super) fn mark(self, at: usize, is_marked: bool) {
        let (line, bit) = (self.line(at / LINE_WORDS), 1 << (at % LINE_WORDS));
        let word = line.load(Relaxed);
        line.store(if is_marked { word | bit } else { word & !bit }, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_by_their_bytes() {
        let all = Lines::new();
        // At the beginning of a piece of memory, and across pieces.
        for (at, lines) in [(64, 1), (70, 2), (64, 25), (180, 25), (10, WORDS_MAX / LINE_WORDS)] {
            let off = (at * LINE) as u64;
            all.make(off + (lines * LINE) as u64 - 1).beside.0.store(u64::MAX, Relaxed);
            let side = Side::begin(&all, off, lines).unwrap();
            assert!(matches!(all.place(off).unwrap().beside.known(), Known::Array { lines: told } if told == lines));
            // Records of all sizes, as many as there is room for.
            let mut records = Vec::new();
            let mut at = 1;
            while at + 3 + records.len() % 5 <= lines * LINE_WORDS {
                let record = (at, [0, 0x81, 2, 3, 0x84][records.len() % 5], records.len() % 3 != 1);
                at += 3 + records.len() % 5;
                side.push(record.1, at, record.2);
                records.push(record);
                assert_eq!(side.end(), at);
            }
            let expected = |fingerprint: Option<u8>| {
                let is_expected = move |&&(_, of, is_live): &&(usize, u8, bool)| is_live && fingerprint.is_none_or(|fingerprint| fingerprint == of);
                records.iter().filter(is_expected).map(|(at, ..)| *at).collect::<Vec<_>>()
            };
            assert_eq!(side.live().collect::<Vec<_>>(), expected(None));
            for fingerprint in 0..=u8::MAX {
                assert_eq!(side.candidates(fingerprint).collect::<Vec<_>>(), expected(Some(fingerprint)));
            }
            let live = expected(None);
            for (number, at) in live.iter().enumerate() {
                assert!(side.remove(*at).is_some() && side.remove(*at).is_none());
                assert_eq!(side.live().collect::<Vec<_>>(), live[number + 1..]);
            }
        }
    }

    #[test]
    fn words_are_marked_one_by_one() {
        let all = Lines::new();
        let (off, lines) = (63 * LINE as u64, 9);
        let side = Side::begin(&all, off, lines).unwrap();
        for at in 1..lines * LINE_WORDS {
            assert_eq!(side.unmarked(), Some(at));
            side.mark(at, true);
            assert!(side.marked().eq(1..=at));
        }
        assert_eq!(side.unmarked(), None);
        (1..lines * LINE_WORDS).step_by(3).for_each(|at| side.mark(at, false));
        assert!(side.marked().eq((1..lines * LINE_WORDS).filter(|at| at % 3 != 1)) && side.unmarked() == Some(1));
        assert!(matches!(all.place(off).unwrap().beside.known(), Known::Array { lines: 9 }));
    }

    #[test]
    fn a_node_is_told_from_an_array() {
        let beside = Beside::zeroed();
        beside.begin_inner(65_536, 257);
        assert!(matches!(beside.known(), Known::Inner { level: 65_536, capacity: 257 }));
    }
}
