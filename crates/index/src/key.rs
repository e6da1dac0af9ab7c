//! The two classes of keys.

use crate::Error;
use crate::record::{Record, Version};
use crate::registry::{Entry, Listed};
use everleaf_pmem::{Fresh, Medium, Off, Pm, Pool, Word};
use std::cmp::Ordering;
use std::num::NonZeroU64;

/// A class of keys: `u64`, ordered as integers, or `[u8]`, ordered bytewise.
///
/// An entry of an index is two words: the *head*, eight bytes of the key that order as the keys do, and the value. For a `u64` the head is the key. For a byte
/// string it is the eight bytes after the first `skip`, a prefix that all keys of a node share; the whole key is in the record that the value word links.
pub trait Key: Ord + ToOwned<Owned: Send + Sync + Ord + Clone + Default + std::fmt::Debug> + Send + Sync + 'static {
    /// Whether the head is the whole key.
    const WHOLE: bool;

    /// The lowest key that there is.
    const LOWEST: &'static Self;

    /// The head: eight bytes from byte `skip` on, big-endian, padded with zeroes.
    fn head(&self, skip: usize) -> u64;

    /// A word that distinguishes the key from others: the key itself if the head is the key, else a hash of it (XXH3). Part of the format of indexes that store
    /// it.
    fn token(&self) -> u64;

    /// Number of leading bytes in which two keys agree; every key between them has those bytes too.
    fn shared(&self, other: &Self) -> usize;

    /// Number of leading bytes that all keys from this one up to `high` share; 0 if there is no end.
    fn shared_up_to(&self, high: Option<&Self>) -> usize {
        high.map_or(0, |high| self.shared(high))
    }

    /// Compares `self` with the key of an entry, given that both begin with the same `skip` bytes.
    ///
    /// # Errors
    /// A damaged record.
    fn compare<M: Medium>(&self, pm: &Pm<M>, skip: usize, head: u64, value: NonZeroU64) -> Result<Ordering, Error>;

    /// Reads the key of an entry into `out`.
    ///
    /// # Errors
    /// A damaged record.
    fn read<M: Medium>(pm: &Pm<M>, head: u64, value: NonZeroU64, out: &mut Self::Owned) -> Result<(), Error>;

    /// The shortest key above `low` and at most `high`.
    fn separator(low: &Self, high: &Self) -> Self::Owned;

    /// The bytes that a separator needs beyond its head: none if the head is the key.
    fn bytes(&self) -> &[u8];

    /// The key of a separator.
    fn restore(head: u64, bytes: &[u8]) -> Self::Owned;

    /// The head of an entry's key at another `skip`.
    ///
    /// # Errors
    /// A damaged record.
    fn rehead<M: Medium>(pm: &Pm<M>, skip: usize, head: u64, value: NonZeroU64) -> Result<u64, Error>;

    /// What a leaf stores of its low fence: the word, and the block that the word links, if any.
    ///
    /// # Errors
    /// A full pool.
    fn fence<'p, M: Medium>(&self, pool: &'p Pool<M>) -> Result<NewFence<'p, M>, Error>;

    /// Reads a low fence back. Also returns the offset and size in bytes of its block, if it has one.
    ///
    /// # Errors
    /// A damaged fence.
    fn read_fence<M: Medium>(pm: &Pm<M>, word: u64) -> Result<(Self::Owned, FenceBlock), Error>;

    /// Every index of such keys: what [`registry`](crate::registry) returns.
    fn indexes<M: Listed>() -> Vec<Entry<Self, M>>;
}

/// The upper bits of a product with it depend on all bits of the other factor: dense keys differ as much as others. Part of the format of indexes that place
/// keys by it.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The word that a leaf stores of its low fence, and the block that the word links, still to be sealed.
pub type NewFence<'p, M> = (u64, Option<Fresh<'p, [Word], M>>);

/// Offset and size in bytes of the block of a fence, if it has one.
pub type FenceBlock = Option<(Off<Word>, usize)>;

impl Key for u64 {
    const WHOLE: bool = true;
    const LOWEST: &'static Self = &0;

    #[inline(always)]
    fn head(&self, _skip: usize) -> u64 {
        *self
    }

    #[inline(always)]
    fn token(&self) -> u64 {
        *self
    }

    fn shared(&self, _other: &Self) -> usize {
        0
    }

    #[inline(always)]
    fn compare<M: Medium>(&self, _pm: &Pm<M>, _skip: usize, head: u64, _value: NonZeroU64) -> Result<Ordering, Error> {
        Ok(self.cmp(&head))
    }

    #[inline(always)]
    fn read<M: Medium>(_pm: &Pm<M>, head: u64, _value: NonZeroU64, out: &mut u64) -> Result<(), Error> {
        *out = head;
        Ok(())
    }

    fn separator(_low: &Self, high: &Self) -> u64 {
        *high
    }

    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn restore(head: u64, _bytes: &[u8]) -> u64 {
        head
    }

    fn rehead<M: Medium>(_pm: &Pm<M>, _skip: usize, head: u64, _value: NonZeroU64) -> Result<u64, Error> {
        Ok(head)
    }

    fn fence<'p, M: Medium>(&self, _pool: &'p Pool<M>) -> Result<NewFence<'p, M>, Error> {
        Ok((*self, None))
    }

    fn read_fence<M: Medium>(_pm: &Pm<M>, word: u64) -> Result<(u64, FenceBlock), Error> {
        Ok((word, None))
    }

    fn indexes<M: Listed>() -> Vec<Entry<u64, M>> {
        M::integers()
    }
}

impl Key for [u8] {
    const WHOLE: bool = false;
    const LOWEST: &'static Self = &[];

    #[inline]
    fn head(&self, skip: usize) -> u64 {
        let rest = self.get(skip..).unwrap_or(&[]);
        match rest.first_chunk() {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => {
                let mut bytes = [0; 8];
                bytes[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(bytes)
            }
        }
    }

    #[inline]
    fn token(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self)
    }

    fn shared(&self, other: &Self) -> usize {
        self.iter().zip(other).take_while(|(a, b)| a == b).count()
    }

    #[inline]
    fn compare<M: Medium>(&self, pm: &Pm<M>, skip: usize, head: u64, value: NonZeroU64) -> Result<Ordering, Error> {
        match self.head(skip).cmp(&head) {
            Ordering::Equal => {
                // After a comparison, most callers read the whole record.
                Record::prefetch(pm, value.get());
                Ok(Record::read(pm, value.get())?.compare_key(self, skip))
            }
            order => Ok(order),
        }
    }

    fn read<M: Medium>(pm: &Pm<M>, _head: u64, value: NonZeroU64, out: &mut Vec<u8>) -> Result<(), Error> {
        out.clear();
        Record::read(pm, value.get())?.copy_key(out);
        Ok(())
    }

    fn separator(low: &Self, high: &Self) -> Vec<u8> {
        high[..(low.shared(high) + 1).min(high.len())].to_vec()
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn restore(_head: u64, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn rehead<M: Medium>(pm: &Pm<M>, skip: usize, _head: u64, value: NonZeroU64) -> Result<u64, Error> {
        Ok(Record::read(pm, value.get())?.head(skip))
    }

    fn fence<'p, M: Medium>(&self, pool: &'p Pool<M>) -> Result<NewFence<'p, M>, Error> {
        if self.is_empty() {
            return Ok((0, None));
        }
        // A tombstone: a thread that finds the record without knowing its owner does not take it for a present key.
        let record = Record::write(pool, self, &[], Version { is_tombstone: true, ..Version::default() })?;
        Ok((record.off().link(), Some(record)))
    }

    fn read_fence<M: Medium>(pm: &Pm<M>, word: u64) -> Result<(Vec<u8>, FenceBlock), Error> {
        if word == 0 {
            return Ok((Vec::new(), None));
        }
        let record = Record::read(pm, word)?;
        if !record.is_intact() {
            return Err(everleaf_pmem::Error::corrupt(record.off.bytes(), "the low fence of a leaf").into());
        }
        let mut key = Vec::with_capacity(record.key_size());
        record.copy_key(&mut key);
        Ok((key, Some((record.off, record.size()))))
    }

    fn indexes<M: Listed>() -> Vec<Entry<[u8], M>> {
        M::strings()
    }
}
