//! The bytes of a node; the protocol is in the tree's module documentation.
//!
//! ```text
//! node     status | shape | a word for each entry | head and word for each entry
//! shape    bits 0-16 number of bytes that all keys of the node share, and that heads leave out; 17-30 number of entries in order; 31 leaf;
//!          32-63 the complement of these
//! status   of a leaf: bits 0-15 entries that were reserved, 16-31 that became visible, 32-47 that were deleted since; of an inner node: how often a child was
//!          replaced; bit 60: frozen
//! leaf     the word of an entry is its meta word: 0, visible or deleted. Head and value of an entry are written once, before it is visible
//! inner    the word of an entry is the link of a child; head and fence are those of the lowest key that belongs to it, 0 for the first
//! ```

use super::mwcas;
use crate::selective::leaf::{self, Entry};
use crate::{Error, Key};
use everleaf_pmem::{LINE, Medium, Off, Pm, Pool, WORD, Word};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Relaxed;

const HEADER: usize = 2;
const SKIP_BITS: u32 = 17;
const COUNT_BITS: u32 = 14;
const LEAF: u32 = 1 << (SKIP_BITS + COUNT_BITS);

/// Meta words. Changing one byte turns none of them into another.
pub(super) const VISIBLE: u64 = 0x5a5a_5a5a_5a5a_5a5a;
pub(super) const DELETED: u64 = 0x25a5_a5a5_a5a5_a5a5;

/// What each of these changes adds to a status; the last one ends all changes.
pub(super) const RESERVED: u64 = 1;
pub(super) const MADE: u64 = 1 << 16;
pub(super) const UNMADE: u64 = 1 << 32;
pub(super) const REPLACED: u64 = 1;
pub(super) const FROZEN: u64 = 1 << 60;

/// Size in words of a node with room for `capacity` entries.
pub(super) fn size(capacity: usize) -> usize {
    (HEADER + 3 * capacity).next_multiple_of(LINE / WORD)
}

/// A status, of a leaf unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(pub(super) u64);

impl Status {
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    pub(super) fn reserved(self) -> usize {
        self.0 as u16 as usize
    }

    fn made(self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    fn unmade(self) -> usize {
        (self.0 >> 32) as u16 as usize
    }

    pub(super) fn live(self) -> usize {
        self.made().saturating_sub(self.unmade())
    }
}

/// A node whose shape was read.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) off: Off<Word>,
    words: &'a [Word],
    capacity: usize,
    pub(super) is_leaf: bool,
    pub(super) skip: usize,
    /// Number of entries in order: in an inner node, all.
    pub(super) count: usize,
}

/// A component of a new node: the word of an entry, and its pair of words.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) word: u64,
    pub(super) head: u64,
    pub(super) value: u64,
}

/// An entry found in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) value: NonZeroU64,
}

/// Writes a node that is not reachable yet. Returns how many words of it count.
pub(super) fn write<M: Medium>(pm: &Pm<M>, words: &[Word], capacity: usize, is_leaf: bool, skip: usize, parts: &[Part]) -> usize {
    let count = parts.len() as u64;
    let status = if is_leaf { count * (RESERVED | MADE) } else { 0 };
    let shape = skip as u32 | (count as u32) << SKIP_BITS | if is_leaf { LEAF } else { 0 };
    let meta = parts.iter().map(|part| part.word).chain(std::iter::repeat_n(0, capacity - parts.len()));
    let values = [status, u64::from(shape) | u64::from(!shape) << 32].into_iter().chain(meta).chain(parts.iter().flat_map(|part| [part.head, part.value]));
    let mut written = 0;
    for (word, value) in words.iter().zip(values) {
        pm.store(word, value, Relaxed);
        written += 1;
    }
    written
}

impl<'a> Node<'a> {
    /// The node at this offset.
    ///
    /// # Errors
    /// There is no node.
    #[inline(always)]
    pub(super) fn read<M: Medium>(pool: &'a Pool<M>, off: Off<Word>, capacity: usize) -> Result<Self, Error> {
        let words = pool.words(off, size(capacity)).ok_or_else(|| no_node(off.bytes()))?;
        let shape = words[1].get();
        let low = shape as u32;
        let count = (low >> SKIP_BITS) as usize & ((1 << COUNT_BITS) - 1);
        let is_leaf = low & LEAF != 0;
        if (shape >> 32) as u32 != !low || count > capacity || count == 0 && !is_leaf {
            return Err(no_node(off.bytes()));
        }
        Ok(Self { off, words, capacity, is_leaf, skip: low as usize & ((1 << SKIP_BITS) - 1), count })
    }

    pub(super) fn status_word(&self) -> &'a Word {
        &self.words[0]
    }

    #[inline(always)]
    pub(super) fn status<M: Medium>(&self, pool: &Pool<M>) -> Result<Status, Error> {
        let status = Status(mwcas::read(pool, self.status_word())?);
        self.check_status(status)?;
        Ok(status)
    }

    #[inline(always)]
    pub(super) fn check_status(&self, status: Status) -> Result<(), Error> {
        let reserved = self.count..=self.capacity;
        match self.is_leaf && (!reserved.contains(&status.reserved()) || status.made() > status.reserved() || status.unmade() > status.made()) {
            true => Err(self.damage("a leaf that counts more entries than it has")),
            false => Ok(()),
        }
    }

    /// The word of an entry that other threads change.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> &'a Word {
        &self.words[HEADER + at]
    }

    /// Head and value, or fence, of an entry.
    #[inline(always)]
    pub(super) fn pair(&self, at: usize) -> &'a [Word] {
        let first = HEADER + self.capacity + 2 * at;
        &self.words[first..first + 2]
    }

    pub(super) fn damage(&self, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(self.off.bytes(), what).into()
    }

    /// An entry of a leaf, if it counts.
    #[inline(always)]
    pub(super) fn entry<M: Medium>(&self, pool: &Pool<M>, at: usize) -> Result<Option<Entry>, Error> {
        self.entry_of(at, mwcas::read(pool, self.word(at))?)
    }

    /// The same, given the meta word.
    #[inline(always)]
    pub(super) fn entry_of(&self, at: usize, meta: u64) -> Result<Option<Entry>, Error> {
        match meta {
            0 | DELETED => Ok(None),
            VISIBLE => {
                let pair = self.pair(at);
                let value = NonZeroU64::new(pair[1].get()).ok_or_else(|| self.damage("an entry without a value"))?;
                Ok(Some(Entry { head: pair[0].get(), value }))
            }
            _ => Err(self.damage("an entry of which it does not say whether it counts")),
        }
    }

    /// Searches a key in a leaf. `None` was true at the moment when the status was read, if the status is unchanged.
    ///
    /// Heads come first: a record that no longer counts may be gone.
    #[inline(always)]
    pub(super) fn find<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, key: &K, status: Status) -> Result<Option<Found>, Error> {
        let head = key.head(self.skip);
        let (mut start, mut end) = (0, self.count);
        while start < end {
            let middle = start + (end - start) / 2;
            if self.pair(middle)[0].get() < head {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        let sorted = (start..self.count).take_while(|at| self.pair(*at)[0].get() == head);
        for at in sorted.chain((self.count..status.reserved()).rev()) {
            // The owner of an entry that does not count yet may be writing it.
            if self.pair(at)[0].get() != head {
                continue;
            }
            let Some(Entry { head, value }) = self.entry(pool, at)? else { continue };
            if key.compare(pool, self.skip, head, value)? == Order::Equal {
                return Ok(Some(Found { at, value }));
            }
        }
        Ok(None)
    }

    /// All entries of a leaf that count, in order, if its status was `status`.
    pub(super) fn entries<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, status: Status, entries: &mut Vec<Entry>) -> Result<(), Error> {
        entries.clear();
        for at in 0..status.reserved() {
            entries.extend(self.entry(pool, at)?);
        }
        leaf::sort::<K, M>(pool, entries)
    }

    /// The last child up to which `is_at_most` holds for all fences, or the first child.
    #[inline(always)]
    fn last_where(&self, mut is_at_most: impl FnMut(u64, NonZeroU64) -> Result<bool, Error>) -> Result<usize, Error> {
        let (mut start, mut end) = (1, self.count);
        while start < end {
            let middle = start + (end - start) / 2;
            let (head, fence) = self.fence(middle)?;
            if is_at_most(head, fence)? {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        Ok(start - 1)
    }

    /// The child to which a key belongs, or if it is `excluded`, to which the keys just below it do.
    #[inline(always)]
    pub(super) fn child_of<K: Key + ?Sized, M: Medium>(&self, pool: &Pool<M>, key: &K, excluded: bool) -> Result<usize, Error> {
        self.last_where(|head, fence| {
            let order = key.compare(pool, self.skip, head, fence)?;
            Ok(order.is_gt() || order.is_eq() && !excluded)
        })
    }

    /// The offset of a child.
    #[inline(always)]
    pub(super) fn child<M: Medium>(&self, pool: &Pool<M>, at: usize) -> Result<Off<Word>, Error> {
        mwcas::linked(mwcas::read(pool, self.word(at))?).ok_or_else(|| self.damage("a node with a word that does not lead to a child"))
    }

    /// Head and word of the low fence of a child other than the first.
    #[inline(always)]
    pub(super) fn fence(&self, at: usize) -> Result<(u64, NonZeroU64), Error> {
        let pair = self.pair(at);
        let (head, fence) = (pair[0].get(), pair[1].get());
        Ok((head, NonZeroU64::new(fence).ok_or_else(|| self.damage("a node with a child without a fence"))?))
    }

    /// The low fence of a child other than the first.
    pub(super) fn low<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, at: usize) -> Result<K::Owned, Error> {
        let (head, fence) = self.fence(at)?;
        let key = K::read_fence(pm, fence.get())?.0;
        // Searches descend by heads: one that continued from a fence with another head would not end.
        if key.borrow().head(self.skip) == head { Ok(key) } else { Err(self.damage("a node with a head that is not that of its fence")) }
    }

    /// All children, as components of a new node.
    pub(super) fn parts<M: Medium>(&self, pool: &Pool<M>) -> Result<Vec<Part>, Error> {
        let part = |at| {
            let (head, value) = if at == 0 { (0, 0) } else { self.fence(at).map(|(head, fence)| (head, fence.get()))? };
            Ok(Part { word: mwcas::link(self.child(pool, at)?), head, value })
        };
        (0..self.count).map(part).collect()
    }
}

fn no_node(at: u64) -> Error {
    everleaf_pmem::Error::corrupt(at, "a node that is none, or does not lie in the pool").into()
}
