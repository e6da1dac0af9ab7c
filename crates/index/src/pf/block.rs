//! The bytes of PFtree's blocks. The tree's module documentation has the protocol.
//!
//! ```text
//! block    header word | its words; all of them whole lines
//! header   bits 0-16 level (0 in an array), 17-30 size, 31 array, 32-63 the complement of these
//! inner    `size` words of children, 0 = none, in any order; in the largest kind the word of a digit is the one with its number
//! child    link of the child, its check bits changed by the digit that leads to it: one word is all there is to store
//! array    `size` words in all: consecutive records, then a word of 0, unless the array ends there
//! record   meta | value | key, padded with zeroes to words, at least one
//! meta     bits 0-31 CRC-32C of length and key, 32-48 length of the key in bytes, 49-63 whether it counts: two patterns that differ in each byte
//! ```
//!
//! A *digit* of a key is one of its bytes plus 1, or 0 where the key ends. So no key is a prefix of another.

use super::form::Located;
use crate::{Error, Key};
use everleaf_pmem::{LINE, Medium, Off, Pm, WORD, Word, crc32c, probe};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// A line, in words.
pub(super) const LINE_WORDS: usize = LINE / WORD;
/// The number of different digits: the size of the largest inner node.
pub(super) const DIGITS: usize = 257;
/// The largest array in words. It has one record.
pub(super) const WORDS_MAX: usize = (1 << SIZE_BITS) - LINE_WORDS;
/// The largest array of several records. A search of one reads a word in DRAM for each line.
pub(super) const SHARED_WORDS_MAX: usize = 64 * LINE_WORDS;

const LEVEL_BITS: u32 = 17;
const SIZE_BITS: u32 = 14;
const ARRAY: u32 = 1 << (LEVEL_BITS + SIZE_BITS);

const LENGTH_SHIFT: u32 = 32;
const STATE_SHIFT: u32 = 49;
/// The bits of a meta word that say which key it is.
const IDENTITY: u64 = (1 << STATE_SHIFT) - 1;
const LIVE: u64 = 0b101_0101_0101_0101 << STATE_SHIFT;
const DEAD: u64 = !LIVE & !IDENTITY;

/// The words of a record before its key.
const RECORD: usize = 2;

/// What a header says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A node that distinguishes keys by the digit at a level, with room for this many children.
    Inner { level: usize, capacity: usize },
    /// An array of records, of this many words in all.
    Array { words: usize },
}

impl Shape {
    /// The header word.
    pub(super) fn header(self) -> u64 {
        let low = match self {
            Self::Inner { level, capacity } => level as u32 | (capacity as u32) << LEVEL_BITS,
            Self::Array { words } => ARRAY | (words as u32) << LEVEL_BITS,
        };
        u64::from(low) | u64::from(!low) << 32
    }

    pub(super) fn of(header: u64) -> Option<Self> {
        let low = header as u32;
        let (level, size) = ((low & ((1 << LEVEL_BITS) - 1)) as usize, (low >> LEVEL_BITS) as usize & ((1 << SIZE_BITS) - 1));
        let shape = if low & ARRAY != 0 { Self::Array { words: size } } else { Self::Inner { level, capacity: size } };
        (shape.header() == header && size > 0).then_some(shape)
    }

    /// Size of the block in words.
    pub(super) fn words(self) -> usize {
        match self {
            Self::Inner { capacity, .. } => (1 + capacity).next_multiple_of(LINE_WORDS),
            Self::Array { words } => words,
        }
    }
}

/// A block and what its header says.
pub(super) fn read<M: Medium>(pm: &Pm<M>, off: Off<Word>) -> Result<(Shape, &[Word]), Error> {
    let damaged = || everleaf_pmem::Error::corrupt(off.bytes(), "a node that is none, or does not lie in the pool");
    let header = pm.get(off).filter(|_| off.bytes().is_multiple_of(LINE as u64)).ok_or_else(damaged)?;
    let shape = Shape::of(header.get()).filter(|shape| shape.words().is_multiple_of(LINE_WORDS)).ok_or_else(damaged)?;
    Ok((shape, pm.words(off, shape.words()).ok_or_else(damaged)?))
}

/// The word that leads to a child.
#[inline(always)]
pub(super) fn child_word(child: Off<Word>, digit: usize) -> u64 {
    child.link() ^ (digit as u64) << 48
}

/// The digit and the child of a word, if it leads to one.
#[inline(always)]
pub(super) fn child_of(word: u64) -> Option<(usize, Off<Word>)> {
    let off = Off::new(word & ((1 << 48) - 1));
    let digit = ((word ^ off.link()) >> 48) as usize;
    (digit < DIGITS && !off.is_null()).then_some((digit, off))
}

/// Number of digits of a key, without the one that ends it.
#[inline(always)]
pub(super) fn length<K: Key + ?Sized>(key: &K) -> usize {
    if K::WHOLE { WORD } else { key.bytes().len() }
}

#[inline(always)]
pub(super) fn digit<K: Key + ?Sized>(key: &K, level: usize) -> usize {
    let byte = if K::WHOLE { key.head(0).to_be_bytes().get(level).copied() } else { key.bytes().get(level).copied() };
    byte.map_or(0, |byte| 1 + usize::from(byte))
}

/// Number of leading digits that two keys have in common, including the one that ends both.
#[inline(always)]
pub(super) fn shared<K: Key + ?Sized>(a: &K, b: &K) -> usize {
    let bytes = if K::WHOLE { (a.head(0) ^ b.head(0)).leading_zeros() as usize / 8 } else { a.shared(b) };
    bytes + usize::from(a == b)
}

/// The lowest key that begins with the first `count` digits of `key`.
pub(super) fn prefix<K: Key + ?Sized>(key: &K, count: usize) -> K::Owned {
    let head = key.head(0);
    let dropped = u64::MAX.checked_shr(8 * count.min(WORD) as u32).unwrap_or(0);
    K::restore(head & !dropped, &key.bytes()[..count.min(key.bytes().len())])
}

/// The lowest key above all that begin with the first `count` digits of `key`, none of which ends it. `None` if there is none.
pub(super) fn behind<K: Key + ?Sized>(key: &K, count: usize) -> Option<K::Owned> {
    let digits = if K::WHOLE { key.head(0).to_be_bytes()[..count].to_vec() } else { key.bytes()[..count].to_vec() };
    let last = digits.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut digits = digits[..=last].to_vec();
    digits[last] += 1;
    let mut head = [0; WORD];
    let known = digits.len().min(WORD);
    head[..known].copy_from_slice(&digits[..known]);
    Some(K::restore(u64::from_be_bytes(head), &digits))
}

/// The meta word of a record of `key` while it counts.
#[inline(always)]
pub(super) fn meta<K: Key + ?Sized>(key: &K) -> u64 {
    if K::WHOLE { meta_of(&key.head(0).to_le_bytes()) } else { meta_of(key.bytes()) }
}

#[inline(always)]
fn meta_of(bytes: &[u8]) -> u64 {
    LIVE | (bytes.len() as u64) << LENGTH_SHIFT | u64::from(crc32c(bytes.len() as u32, bytes))
}

/// Size in words of a record whose key has this length.
#[inline(always)]
pub(super) fn size(length: usize) -> usize {
    RECORD + length.div_ceil(WORD).max(1)
}

/// A record in an array. Its meta word was read once: memory that is reused meanwhile may hold anything.
#[derive(Clone, Copy)]
pub(crate) struct Record<'p> {
    meta: u64,
    words: &'p [Word],
}

impl<'p> Record<'p> {
    /// The record that begins at a word of an array; `None` if there cannot be one.
    #[inline(always)]
    pub(super) fn at(array: &'p [Word], at: usize) -> Option<Self> {
        let meta = array.get(at)?.get();
        let length = (meta & IDENTITY) >> LENGTH_SHIFT;
        Some(Self { meta, words: array.get(at..at + size(length as usize))? })
    }

    fn length(self) -> usize {
        ((self.meta & IDENTITY) >> LENGTH_SHIFT) as usize
    }

    /// Whether it is of the key with this meta word. For byte strings this reads the record that the value links, which the caller mostly is about to read.
    #[inline(always)]
    pub(super) fn is_of<K: Key + ?Sized, M: Medium>(self, pm: &Pm<M>, meta: u64, key: &K) -> Result<bool, Error> {
        if (self.meta ^ meta) & IDENTITY != 0 {
            return Ok(false);
        }
        if K::WHOLE {
            return Ok(self.words[RECORD].get() == key.head(0));
        }
        self.value().map_or(Ok(true), |value| Ok(key.compare(pm, 0, key.head(0), value)?.is_eq()))
    }

    #[inline(always)]
    pub(super) fn value(self) -> Option<NonZeroU64> {
        NonZeroU64::new(value_word(self.words, 0).get())
    }

    /// [`Key::head`] of its key.
    pub(super) fn head<K: Key + ?Sized>(self) -> u64 {
        let word = self.words[RECORD].get();
        if K::WHOLE { word } else { word.swap_bytes() }
    }

    pub(super) fn key<K: Key + ?Sized>(self) -> K::Owned {
        if K::WHOLE {
            return K::restore(self.head::<K>(), &[]);
        }
        let mut bytes = Vec::with_capacity(self.length());
        probe::copy_out(&self.words[RECORD..], 0, self.length(), &mut bytes);
        K::restore(self.head::<K>(), &bytes)
    }

    /// Compares the keys of two records.
    pub(super) fn order<K: Key + ?Sized>(self, other: Self) -> Order {
        if K::WHOLE {
            return self.head::<K>().cmp(&other.head::<K>());
        }
        let words = |record: Self| record.words[RECORD..].iter().map(|word| word.get().swap_bytes());
        words(self).cmp(words(other)).then(self.length().cmp(&other.length()))
    }

    /// Its key, and whether it counts. `None` if it is not as it was written.
    pub(super) fn read<K: Key + ?Sized>(self) -> Option<(K::Owned, bool)> {
        let key = self.key::<K>();
        let meta = meta::<K>(key.borrow());
        match self.meta ^ meta {
            0 if self.value().is_some() => Some((key, true)),
            difference if difference == LIVE ^ DEAD => Some((key, false)),
            _ => None,
        }
    }

    /// Makes it no longer count, durably.
    #[track_caller]
    pub(super) fn kill<M: Medium>(self, pm: &Pm<M>) {
        pm.store(&self.words[0], self.meta & IDENTITY | DEAD, Release);
        pm.persist(&self.words[0]);
    }
}

/// The records of an array, as many as are found. The last item is `None` if there is something else behind them.
pub(super) fn records<K: Key + ?Sized>(array: &[Word]) -> impl Iterator<Item = Option<Located<K>>> {
    let mut next = 1;
    std::iter::from_fn(move || {
        let at = next;
        array.get(at).filter(|meta| meta.get() != 0)?;
        next = array.len();
        let record = Record::at(array, at).filter(|record| !K::WHOLE || record.length() == WORD);
        Some(record.and_then(|record| {
            let (key, is_live) = record.read::<K>()?;
            next = at + record.words.len();
            Some(Located { at, key, payload: record.value().filter(|_| is_live) })
        }))
    })
}

/// Writes what must be durable before the meta word: the rest of a record, and the word behind it. Returns where the record ends.
#[inline(always)]
#[track_caller]
pub(super) fn prepare<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word], at: usize, key: &K, value: NonZeroU64) -> usize {
    let end = at + size(length(key));
    pm.store(&array[at + 1], value.get(), Relaxed);
    if K::WHOLE || key.bytes().is_empty() {
        pm.store(&array[at + RECORD], key.head(0), Relaxed);
    } else {
        pm.fill(&array[at + RECORD..end], key.bytes());
    }
    if let Some(behind) = array.get(end) {
        pm.store(behind, 0, Relaxed);
    }
    end
}

/// The value word of the record that begins at a word of an array.
#[inline(always)]
pub(super) fn value_word(array: &[Word], at: usize) -> &Word {
    &array[at + 1]
}

/// Adds a record, durably, where the last one ends. Returns where this one ends.
///
/// 1. Value, key, and 0 behind them. Flush those in other lines than the meta word, fence. After a crash the meta word is 0, and there is no record.
/// 2. The meta word; persist. The words before it in its own line were stored before it, and are durable if it is.
#[inline(always)]
pub(super) fn append<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word], at: usize, meta: u64, key: &K, value: NonZeroU64) -> usize {
    let end = prepare(pm, array, at, key, value);
    let (next_line, written) = ((at + 1).next_multiple_of(LINE_WORDS), (end + 1).min(array.len()));
    if next_line < written {
        pm.flush(&array[next_line..written]);
        pm.fence();
    }
    pm.store(&array[at], meta, Release);
    pm.persist(&array[at]);
    end
}

/// Writes the header and all of an array that nobody can reach. Returns how many words of it count.
pub(super) fn write_array<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word], entries: &[(K::Owned, NonZeroU64)]) -> usize {
    pm.store(&array[0], Shape::Array { words: array.len() }.header(), Relaxed);
    let mut at = 1;
    for (key, value) in entries {
        let key = key.borrow();
        pm.store(&array[at], meta::<K>(key), Relaxed);
        at = prepare::<K, M>(pm, array, at, key, *value);
    }
    (at + 1).min(array.len())
}
