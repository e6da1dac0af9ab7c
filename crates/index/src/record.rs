//! Records: where the bytes of keys and values live.
//!
//! ```text
//! word  0        1                 2                  3                4 ...
//!      +--------+-----------------+------------------+----------------+-----------+-------------+
//!      | shape  | commit          | previous         | seal           | key bytes | value bytes |
//!      +--------+-----------------+------------------+----------------+-----------+-------------+
//! shape     bits 0-19 key length, 20-51 value length, 52-63 flags (bit 52: tombstone)
//! commit    when the version was committed; bit 63 set: while its transaction is under way (the store's business)
//! previous  link of the version before, 0 = none
//! seal      bits 0-31 CRC-32C of the shape and of all bytes; bits 32-63 reserved, 0
//! key       padded with zeroes to a word; so is the value
//! ```
//!
//! Shape, seal and bytes are written while the record is [`Fresh`] and never again: they may be read without any lock for as long as an epoch protects the block.
//! Commit and previous are words that the store changes in place.

use crate::Error;
use everleaf_pmem::{Durable, Fresh, Medium, Off, Pm, Pool, WORD, Word, probe};
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 64 << 10;
/// Longest value in bytes.
pub const VALUE_SIZE_MAX: usize = 512 << 20;

const HEADER_WORDS: usize = 4;
const KEY_BITS: u32 = 20;
const VALUE_BITS: u32 = 32;
/// Flag: the version says that the key is absent.
pub const TOMBSTONE: u64 = 1 << 52;

/// A record in a pool, found to lie within it.
#[derive(Clone, Copy)]
pub struct Record<'p> {
    /// Where it lies.
    pub off: Off<Word>,
    words: &'p [Word],
    shape: u64,
}

fn word_count(key_size: usize, value_size: usize) -> usize {
    HEADER_WORDS + key_size.div_ceil(WORD) + value_size.div_ceil(WORD)
}

impl<'p> Record<'p> {
    /// Writes a record into a new block. The caller seals it, and links it by its word.
    ///
    /// # Errors
    /// A full pool.
    ///
    /// # Panics
    /// When the key is longer than [`KEY_SIZE_MAX`] or the value longer than [`VALUE_SIZE_MAX`].
    pub fn write<'q, M: Medium>(pool: &'q Pool<M>, key: &[u8], value: &[u8], flags: u64, commit: u64, previous: u64) -> Result<Fresh<'q, [Word], M>, Error> {
        assert!(key.len() <= KEY_SIZE_MAX && value.len() <= VALUE_SIZE_MAX, "key of {} bytes, value of {} bytes", key.len(), value.len());
        let block = pool.alloc_words(word_count(key.len(), value.len()))?;
        let shape = key.len() as u64 | (value.len() as u64) << KEY_BITS | flags;
        let seal = u64::from(checksum(shape, key, value));
        for (word, value) in block.iter().zip([shape, commit, previous, seal]) {
            pool.store(word, value, Ordering::Relaxed);
        }
        let value_at = HEADER_WORDS + key.len().div_ceil(WORD);
        pool.fill(&block[HEADER_WORDS..value_at], key);
        pool.fill(&block[value_at..], value);
        Ok(block)
    }

    /// Writes and seals a record that is committed from the start: for indexes used without a store.
    ///
    /// # Errors
    /// A full pool.
    pub fn create<'q, M: Medium>(pool: &'q Pool<M>, key: &[u8], value: &[u8]) -> Result<Durable<'q, [Word], M>, Error> {
        Ok(pool.seal(Self::write(pool, key, value, 0, 0, 0)?))
    }

    /// The record that `link` refers to.
    ///
    /// # Errors
    /// A damaged link, or a record that does not lie in the pool.
    #[inline]
    pub fn read<M>(pm: &'p Pm<M>, link: u64) -> Result<Self, Error>
    where
        M: Medium,
    {
        let off = Off::<Word>::from_link(link)?;
        let damaged = || everleaf_pmem::Error::corrupt(off.bytes(), "a record that does not lie in the pool");
        let shape = pm.get(off).ok_or_else(damaged)?.get();
        let (key_size, value_size) = sizes(shape);
        let words = pm.words(off, word_count(key_size, value_size)).ok_or_else(damaged)?;
        Ok(Self { off, words, shape })
    }

    /// Length of the key in bytes.
    pub fn key_size(&self) -> usize {
        sizes(self.shape).0
    }

    /// Length of the value in bytes.
    pub fn value_size(&self) -> usize {
        sizes(self.shape).1
    }

    /// Size of the whole record in bytes: what was allocated for it.
    pub fn size(&self) -> usize {
        size_of_val(self.words)
    }

    /// The flags, in the places of the constants of this module.
    pub fn flags(&self) -> u64 {
        self.shape >> (KEY_BITS + VALUE_BITS) << (KEY_BITS + VALUE_BITS)
    }

    /// The word that says when the version was committed.
    pub fn commit(&self) -> &'p Word {
        &self.words[1]
    }

    /// The word that links the version before.
    pub fn previous(&self) -> &'p Word {
        &self.words[2]
    }

    /// Appends the key to `out`.
    pub fn copy_key(&self, out: &mut Vec<u8>) {
        probe::copy_out(&self.words[HEADER_WORDS..], 0, self.key_size(), out);
    }

    /// Appends `length` bytes of the value, from `skip` on, to `out`.
    ///
    /// # Panics
    /// When the value is shorter.
    pub fn copy_value(&self, skip: usize, length: usize, out: &mut Vec<u8>) {
        probe::copy_out(&self.words[HEADER_WORDS + self.key_size().div_ceil(WORD)..], skip, length, out);
    }

    /// Compares `key` with the record's key, from byte `skip` on (both are known to agree before it).
    pub fn compare_key(&self, key: &[u8], skip: usize) -> Order {
        probe::compare(key, &self.words[HEADER_WORDS..], self.key_size(), skip)
    }

    /// Eight bytes of the key from byte `skip` on, big-endian, padded with zeroes: they order as the keys do.
    pub fn head(&self, skip: usize) -> u64 {
        let mut bytes = [0u8; 8];
        let length = self.key_size().saturating_sub(skip).min(8);
        let mut part = Vec::with_capacity(8);
        probe::copy_out(&self.words[HEADER_WORDS..], skip.min(self.key_size()), length, &mut part);
        bytes[..length].copy_from_slice(&part);
        u64::from_be_bytes(bytes)
    }

    /// Whether the checksum matches.
    pub fn is_intact(&self) -> bool {
        let mut crc = crc32c::crc32c(&shape_bytes(self.shape));
        let (key_size, value_size) = sizes(self.shape);
        let value_at = key_size.div_ceil(WORD);
        let body = &self.words[HEADER_WORDS..];
        let mut part = Vec::new();
        for (words, size) in [(&body[..value_at], key_size), (&body[value_at..], value_size)] {
            for (chunk, words) in words.chunks(512).enumerate() {
                part.clear();
                probe::copy_out(words, 0, (size - chunk * 512 * WORD).min(words.len() * WORD), &mut part);
                crc = crc32c::crc32c_append(crc, &part);
            }
        }
        self.words[3].get() == u64::from(crc)
    }

    /// Whether `key` and `value`, copied out before, are what was written.
    pub fn matches(&self, key: &[u8], value: &[u8]) -> bool {
        self.words[3].get() == u64::from(checksum(self.shape, key, value))
    }
}

fn sizes(shape: u64) -> (usize, usize) {
    ((shape & ((1 << KEY_BITS) - 1)) as usize, (shape >> KEY_BITS & ((1 << VALUE_BITS) - 1)) as usize)
}

fn shape_bytes(shape: u64) -> [u8; 8] {
    shape.to_le_bytes()
}

fn checksum(shape: u64, key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&shape_bytes(shape)), key), value)
}
