//! The two classes of keys.

use crate::Error;
use crate::record::Record;
use everleaf_pmem::{Medium, Pm};
use std::cmp::Ordering;
use std::num::NonZeroU64;

/// A class of keys: `u64`, ordered as integers, or `[u8]`, ordered bytewise.
///
/// An entry of an index is two words: the *head*, eight bytes of the key that order as the keys do, and the value. For a `u64` the head is the key. For a byte string
/// it is the eight bytes after the first `skip`, a prefix that all keys of a node share; the whole key is in the record that the value word links.
pub trait Key: Ord + ToOwned<Owned: Send + Sync + Ord + Clone + Default + std::fmt::Debug> + Send + Sync + 'static {
    /// Whether the head is the whole key.
    const WHOLE: bool;

    /// The head: eight bytes from byte `skip` on, big-endian, padded with zeroes.
    fn head(&self, skip: usize) -> u64;

    /// Number of leading bytes in which two keys agree; every key between them has those bytes too.
    fn shared(&self, other: &Self) -> usize;

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

    /// Bytes that the key takes in a separator of a router.
    fn bytes(&self) -> &[u8];

    /// A key from such bytes.
    fn from_bytes(bytes: &[u8]) -> Self::Owned;
}

impl Key for u64 {
    const WHOLE: bool = true;

    #[inline(always)]
    fn head(&self, _skip: usize) -> u64 {
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

    fn from_bytes(_bytes: &[u8]) -> u64 {
        0
    }
}

impl Key for [u8] {
    const WHOLE: bool = false;

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

    fn shared(&self, other: &Self) -> usize {
        self.iter().zip(other).take_while(|(a, b)| a == b).count()
    }

    #[inline]
    fn compare<M: Medium>(&self, pm: &Pm<M>, skip: usize, head: u64, value: NonZeroU64) -> Result<Ordering, Error> {
        match self.head(skip).cmp(&head) {
            Ordering::Equal => Ok(Record::read(pm, value.get())?.compare_key(self, skip)),
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

    fn from_bytes(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }
}
