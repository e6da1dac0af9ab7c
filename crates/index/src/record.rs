//! Records: where the bytes of keys and values lie.
//!
//! ```text
//! word  0        1                 2                  3                4 ...
//!      +--------+-----------------+------------------+----------------+-----------+-------------+--------+
//!      | shape  | commit          | previous         | seal           | key bytes | value bytes | expiry |
//!      +--------+-----------------+------------------+----------------+-----------+-------------+--------+
//! shape     bits 0-19 key length, 20-51 value length, 52-63 flags (bit 52: tombstone, bit 53: expires)
//! commit    when the version was committed, or how to find out (defined by the store)
//! previous  link of the version that this one replaced, 0 = none
//! seal      bits 0-31 CRC-32C of the shape, of all bytes and of the expiry; bits 32-63 that of the shape and the key alone
//! key       padded with zeroes to a word; so is the value
//! expiry    only if bit 53 of the shape is set: when the version expires, in milliseconds since 1970
//! ```
//!
//! Shape, seal and bytes are written while the record is [`Fresh`] and never again: they may be read without any lock while an epoch protects the block. Commit
//! and previous belong to the store, which changes them in place and defines what previous means, and when.

use crate::Error;
use everleaf_pmem::{Durable, Fresh, Medium, Off, Pm, Pool, WORD, Word, crc32c, probe};
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 64 << 10;
/// Longest value in bytes.
pub const VALUE_SIZE_MAX: usize = 512 << 20;

/// Values of this size or more bypass the caches, if that makes them durable sooner (decision 31).
const STREAMED_SIZE_MIN: usize = 4 << 10;

const HEADER_WORDS: usize = 4;
const HEADER_SIZE: u64 = (HEADER_WORDS * WORD) as u64;
/// Lines of a record that are prefetched before its size is known: a short key and a value of a hundred bytes.
const PREFETCH_LINES: usize = 3;
const KEY_BITS: u32 = 20;
const VALUE_BITS: u32 = 32;
/// Flag: the version says that the key is absent.
const TOMBSTONE: u64 = 1 << 52;
/// Flag: a word with the expiry follows the value.
const EXPIRES: u64 = 1 << 53;

/// The properties of a record besides key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Whether it says that the key is absent.
    pub is_tombstone: bool,
    /// The first commit word.
    pub commit: u64,
    /// Link of the version that it replaces, 0 = none.
    pub previous: u64,
    /// When it expires, in milliseconds since 1970.
    pub expiry_ms: Option<u64>,
}

/// The checksum of a record's shape and a key. It is the record's own if the record is sound.
#[derive(Clone, Copy)]
pub struct KeySum(u32);

/// A record that was copied as a whole.
#[derive(Clone, Copy)]
pub struct Plain {
    /// Length of its key in bytes.
    pub key_size: usize,
    /// Where its value begins in the buffer to which it was appended.
    pub value_at: usize,
}

/// A record in a pool, checked to lie within it.
#[derive(Clone, Copy)]
pub struct Record<'p> {
    /// Its offset.
    pub off: Off<Word>,
    words: &'p [Word],
    shape: u64,
}

fn word_count(shape: u64) -> usize {
    let (key_size, value_size) = sizes(shape);
    words_of(key_size, value_size, shape & EXPIRES != 0)
}

fn words_of(key_size: usize, value_size: usize, expires: bool) -> usize {
    HEADER_WORDS + key_size.div_ceil(WORD) + value_size.div_ceil(WORD) + usize::from(expires)
}

impl<'p> Record<'p> {
    /// Writes a record into a new block. The caller seals it, and links it by its word.
    ///
    /// # Errors
    /// A full pool.
    ///
    /// # Panics
    /// When the key is longer than [`KEY_SIZE_MAX`] or the value longer than [`VALUE_SIZE_MAX`].
    pub fn write<'q, M: Medium>(pool: &'q Pool<M>, key: &[u8], value: &[u8], version: Version) -> Result<Fresh<'q, [Word], M>, Error> {
        Self::lay_out(pool, key, value, version, value.len() >= STREAMED_SIZE_MIN)
    }

    /// Writes a record for a later thread, which [completes](Record::complete) it. Nothing of it bypasses the caches, so a flush and a fence by any thread make
    /// it durable. The block belongs to the caller, which retires it unless it gets linked.
    ///
    /// # Errors
    /// A full pool.
    ///
    /// # Panics
    /// As [`Record::write`].
    pub fn draft<M: Medium>(pool: &Pool<M>, key: &[u8], value: &[u8], version: Version) -> Result<Off<[Word]>, Error> {
        let block = Self::lay_out(pool, key, value, version, false)?;
        let off = block.off();
        std::mem::forget(block);
        Ok(off)
    }

    /// Gives a draft its commit word and the version that it replaces, and starts the write-back of all of it. A fence makes it durable; then it may be linked.
    #[track_caller]
    pub fn complete<M: Medium>(&self, pm: &Pm<M>, commit: u64, previous: u64) {
        pm.store(self.previous(), previous, Ordering::Release);
        pm.store(self.commit(), commit, Ordering::Release);
        pm.flush(self.words);
    }

    #[inline(always)]
    fn lay_out<'q, M: Medium>(pool: &'q Pool<M>, key: &[u8], value: &[u8], version: Version, streams: bool) -> Result<Fresh<'q, [Word], M>, Error> {
        assert!(key.len() <= KEY_SIZE_MAX && value.len() <= VALUE_SIZE_MAX, "key of {} bytes, value of {} bytes", key.len(), value.len());
        let Version { is_tombstone, commit, previous, expiry_ms } = version;
        let flags = if is_tombstone { TOMBSTONE } else { 0 } | if expiry_ms.is_some() { EXPIRES } else { 0 };
        let shape = key.len() as u64 | (value.len() as u64) << KEY_BITS | flags;
        let block = pool.alloc_words(word_count(shape))?;
        let seal = seal(shape, key, value, expiry_ms);
        for (word, value) in block.iter().zip([shape, commit, previous, seal]) {
            pool.store(word, value, Ordering::Relaxed);
        }
        let value_at = HEADER_WORDS + key.len().div_ceil(WORD);
        let value_end = value_at + value.len().div_ceil(WORD);
        pool.fill(&block[HEADER_WORDS..value_at], key);
        if streams {
            pool.stream(&block[value_at..value_end], value)
        } else {
            pool.fill(&block[value_at..value_end], value)
        }
        if let Some(expiry) = expiry_ms {
            pool.store(&block[value_end], expiry, Ordering::Relaxed);
        }
        Ok(block)
    }

    /// Writes and seals a record that is committed from the start: for indexes used without a store.
    ///
    /// # Errors
    /// A full pool.
    pub fn create<'q, M: Medium>(pool: &'q Pool<M>, key: &[u8], value: &[u8]) -> Result<Durable<'q, [Word], M>, Error> {
        Ok(pool.seal(Self::write(pool, key, value, Version::default())?))
    }

    /// The record that `link` refers to.
    ///
    /// # Errors
    /// A damaged link, or a record that does not lie in the pool, or is larger than any that is written.
    #[inline]
    pub fn read<M>(pm: &'p Pm<M>, link: u64) -> Result<Self, Error>
    where
        M: Medium,
    {
        let off = Off::<Word>::from_link(link)?;
        let damaged = || everleaf_pmem::Error::corrupt(off.bytes(), "a record that does not lie in the pool");
        let shape = pm.get(off).ok_or_else(damaged)?.get();
        let (key_size, value_size) = sizes(shape);
        if key_size > KEY_SIZE_MAX || value_size > VALUE_SIZE_MAX {
            return Err(everleaf_pmem::Error::corrupt(off.bytes(), "a record larger than any that is written").into());
        }
        let words = pm.words(off, word_count(shape)).ok_or_else(damaged)?;
        Ok(Self { off, words, shape })
    }

    /// Prefetches the beginning of the record that `link` refers to. A hint.
    #[inline(always)]
    pub fn prefetch<M: Medium>(pm: &Pm<M>, link: u64) {
        pm.prefetch::<PREFETCH_LINES>(link);
    }

    /// Prefetches what [`Record::head`] reads. A hint.
    #[inline(always)]
    pub(crate) fn prefetch_head<M: Medium>(pm: &Pm<M>, link: u64, skip: usize) {
        pm.prefetch::<1>(link);
        pm.prefetch::<1>(link.wrapping_add(HEADER_SIZE + skip as u64));
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

    /// Size in bytes of a record with a key and a value of these sizes, and with an expiry if it `expires`.
    pub fn size_of(key_size: usize, value_size: usize, expires: bool) -> usize {
        words_of(key_size, value_size, expires) * WORD
    }

    /// Whether it says that the key is absent.
    #[inline]
    pub fn is_tombstone(&self) -> bool {
        self.shape & TOMBSTONE != 0
    }

    /// Whether it says that the key is present, without expiry.
    #[inline]
    pub fn is_lasting(&self) -> bool {
        self.shape & (TOMBSTONE | EXPIRES) == 0
    }

    /// When it expires, in milliseconds since 1970.
    #[inline]
    pub fn expiry_ms(&self) -> Option<u64> {
        (self.shape & EXPIRES != 0).then(|| self.words[self.words.len() - 1].get())
    }

    /// The word that says when the version was committed, or how to find out.
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

    /// [`Record::copy_key`], and the checksum of what was appended, in one pass.
    #[inline(always)]
    pub fn copy_key_summed(&self, out: &mut Vec<u8>) -> KeySum {
        KeySum(probe::copy_out_checked(&self.words[HEADER_WORDS..], self.key_size(), out, shape_crc(self.shape)))
    }

    /// Appends `length` bytes of the value, from `skip` on, to `out`.
    ///
    /// # Panics
    /// When the value is shorter.
    pub fn copy_value(&self, skip: usize, length: usize, out: &mut Vec<u8>) {
        probe::copy_out(&self.words[HEADER_WORDS + self.key_size().div_ceil(WORD)..], skip, length, out);
    }

    /// Appends the value to `out` if the value, the key of `sum` and the expiry are as written. Returns whether they are.
    #[inline(always)]
    #[must_use]
    pub fn copy_matching_value(&self, sum: KeySum, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let words = &self.words[HEADER_WORDS + self.key_size().div_ceil(WORD)..];
        let crc = probe::copy_out_checked(words, self.value_size(), out, sum.0);
        let matches = self.words[3].get() == seal_of(sum.0, append_expiry(crc, self.expiry_ms()));
        if !matches {
            out.truncate(start);
        }
        matches
    }

    /// Appends the key, padded to a word, and the value of the record that `link` refers to, if it is like most records: short enough for
    /// [`probe::copy_out_padded`], of a version that was committed before `end` and is present without expiry, and as written; and if the processor has an
    /// instruction for that. Otherwise arbitrary bytes may follow the previous contents of `out`. The half of the seal for the key alone is not checked:
    /// readers of only the key report damage of it.
    #[inline(always)]
    pub fn copy_plain<M: Medium>(pm: &Pm<M>, link: u64, end: u64, out: &mut Vec<u8>) -> Option<Plain> {
        let start = out.len();
        let off = Off::<[Word; HEADER_WORDS]>::of_link(link)?;
        let [shape, commit, _, seal] = pm.get(off)?;
        let shape = shape.get();
        let (key_size, value_size) = sizes(shape);
        if shape >= TOMBSTONE || commit.load(Ordering::Acquire) >= end {
            return None;
        }
        let words = pm.words(Off::<Word>::new(off.bytes() + HEADER_SIZE), key_size.div_ceil(WORD) + value_size.div_ceil(WORD))?;
        let crc = probe::copy_out_padded(shape, words, [key_size, value_size], out)?;
        // The half for the key alone is for readers that do not read the value.
        (seal.get() as u32 == crc).then_some(Plain { key_size, value_at: start + key_size.next_multiple_of(WORD) })
    }

    /// Compares `key` with the record's key, from byte `skip` on (both are known to agree before it).
    pub(crate) fn compare_key(&self, key: &[u8], skip: usize) -> Order {
        probe::compare(key, &self.words[HEADER_WORDS..], self.key_size(), skip)
    }

    /// Eight bytes of the key from byte `skip` on, big-endian, padded with zeroes: they order as the keys do.
    pub fn head(&self, skip: usize) -> u64 {
        let left = self.key_size().saturating_sub(skip);
        if left == 0 {
            return 0;
        }
        let word = |at: usize| u64::from_be_bytes(self.words[HEADER_WORDS + at].get().to_le_bytes());
        let (at, bits) = (skip / WORD, (skip % WORD * 8) as u32);
        let high = word(at) << bits;
        let head = if bits != 0 && left + skip % WORD > WORD { high | word(at + 1) >> (64 - bits) } else { high };
        // The padding is zero in a sound record; in any other it must not pass for part of the key.
        if left < WORD { head & !(u64::MAX >> (left * 8)) } else { head }
    }

    /// Whether the checksum matches.
    pub fn is_intact(&self) -> bool {
        let (key_size, value_size) = sizes(self.shape);
        let (key, value) = self.words[HEADER_WORDS..].split_at(key_size.div_ceil(WORD));
        let key_crc = append(shape_crc(self.shape), key, key_size);
        let crc = append(key_crc, &value[..value_size.div_ceil(WORD)], value_size);
        self.words[3].get() == seal_of(key_crc, append_expiry(crc, self.expiry_ms()))
    }

    /// The checksum that the record has if `key` is its key.
    #[inline(always)]
    pub fn key_sum(&self, key: &[u8]) -> KeySum {
        KeySum(crc32c(shape_crc(self.shape), key))
    }

    /// Whether the key of `sum` and the sizes are as written; the value is not checked.
    #[inline(always)]
    pub fn matches_key(&self, sum: KeySum) -> bool {
        self.words[3].get() >> 32 == u64::from(sum.0)
    }

    /// Whether it is a record of `key`, judged by the key and the sizes. Any other key may sort anywhere, so it does not show how far a scan has come.
    pub fn proves(&self, key: &[u8]) -> bool {
        self.matches_key(self.key_sum(key))
    }
}

fn sizes(shape: u64) -> (usize, usize) {
    ((shape & ((1 << KEY_BITS) - 1)) as usize, (shape >> KEY_BITS & ((1 << VALUE_BITS) - 1)) as usize)
}

fn shape_crc(shape: u64) -> u32 {
    crc32c(0, &shape.to_le_bytes())
}

/// The word that proves shape, key, value and expiry.
fn seal(shape: u64, key: &[u8], value: &[u8], expiry_ms: Option<u64>) -> u64 {
    let key_crc = crc32c(shape_crc(shape), key);
    seal_of(key_crc, append_expiry(crc32c(key_crc, value), expiry_ms))
}

fn append_expiry(crc: u32, expiry_ms: Option<u64>) -> u32 {
    expiry_ms.map_or(crc, |expiry| crc32c(crc, &expiry.to_le_bytes()))
}

fn seal_of(key_crc: u32, crc: u32) -> u64 {
    u64::from(key_crc) << 32 | u64::from(crc)
}

/// Continues a checksum over the first `size` bytes of `words`, without a copy of all of them.
fn append(mut crc: u32, words: &[Word], size: usize) -> u32 {
    const CHUNK_WORDS: usize = 512;
    let mut part = Vec::new();
    for (chunk, words) in words.chunks(CHUNK_WORDS).enumerate() {
        part.clear();
        crc = probe::copy_out_checked(words, (size - chunk * CHUNK_WORDS * WORD).min(words.len() * WORD), &mut part, crc);
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use everleaf_pmem::{Crash, CrashOptions, Hardware, Memory, PoolOptions, Seen};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn pool() -> Arc<Pool<Hardware>> {
        Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 4 << 20, ..PoolOptions::default() }).unwrap()
    }

    #[test]
    fn a_record_gives_back_what_was_written() {
        let pool = pool();
        for (key_size, value_size) in [(0, 0), (1, 0), (0, 1), (8, 8), (7, 9), (16, 100), (300, 5000), (KEY_SIZE_MAX, 40_000)] {
            let key: Vec<u8> = (0..key_size).map(|i| (i * 7 + 1) as u8).collect();
            let value: Vec<u8> = (0..value_size).map(|i| (i * 11 + 3) as u8).collect();
            let off = Record::create(&pool, &key, &value).unwrap().release();
            let record = Record::read(&pool, off.link()).unwrap();
            assert_eq!((record.key_size(), record.value_size(), record.is_tombstone(), record.expiry_ms()), (key_size, value_size, false, None));
            let (mut key_read, mut value_read) = (Vec::new(), Vec::new());
            record.copy_key(&mut key_read);
            record.copy_value(0, value_size, &mut value_read);
            assert_eq!((&key_read, &value_read), (&key, &value));
            let mut matching = vec![1];
            assert!(record.is_intact() && record.copy_matching_value(record.key_sum(&key), &mut matching) && record.matches_key(record.key_sum(&key)));
            assert_eq!((matching[0], &matching[1..]), (1, &value[..]));
            assert!(!record.copy_matching_value(record.key_sum(b"another key"), &mut matching));
            assert_eq!(matching.len(), 1 + value_size);
            let mut both = vec![1];
            if let Some(plain) = Record::copy_plain(&pool, off.link(), 1, &mut both) {
                assert_eq!((plain.key_size, &both[1..][..key_size], &both[plain.value_at..]), (key_size, &key[..], &value[..]));
            }
            assert!(Record::copy_plain(&pool, off.link(), 0, &mut both).is_none(), "committed too late");
            assert!(Record::copy_plain(&pool, off.link() ^ 1 << 50, 1, &mut both).is_none(), "no link");
            Record::prefetch_head(&pool, u64::MAX, key_size);
            for (word, bit) in record.words.iter().flat_map(|word| [(word, 1), (word, 1 << 63)]) {
                let was = word.get();
                pool.store(word, was ^ bit, Ordering::Relaxed);
                both.clear();
                // Padding does not count, nor do the link of the previous version and the half of the seal for the key alone.
                if let Some(plain) = Record::copy_plain(&pool, off.link(), 1, &mut both) {
                    assert_eq!((&both[..key_size], &both[plain.value_at..]), (&key[..], &value[..]), "a flipped bit that nobody has noticed");
                }
                pool.store(word, was, Ordering::Relaxed);
            }
            assert_eq!(record.compare_key(&key, 0), Order::Equal);
            for skip in (0..=key_size + 2).take(40) {
                assert_eq!(record.head(skip), key.as_slice().head(skip), "key of {key_size} bytes, from byte {skip}");
            }
        }
    }

    /// Only records like most, and only if the processor can.
    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn what_is_short_and_lasting_is_plain() {
        let pool = pool();
        let is_plain = |key_size: usize, value_size: usize, version: Version| {
            let record = pool.seal(Record::write(&pool, &vec![7; key_size], &vec![8; value_size], version).unwrap());
            Record::copy_plain(&pool, record.release().link(), 5, &mut Vec::new()).is_some()
        };
        let lasting = Version { commit: 4, ..Version::default() };
        for sizes in [(0, 0), (1, 1), (16, 100), (13, probe::PADDED_SIZE_END - 14)] {
            assert_eq!(is_plain(sizes.0, sizes.1, lasting), is_x86_feature_detected!("sse4.2"), "{sizes:?}");
        }
        assert!(!is_plain(13, probe::PADDED_SIZE_END - 13, lasting));
        assert!(!is_plain(16, 0, Version { is_tombstone: true, ..lasting }));
        assert!(!is_plain(16, 100, Version { expiry_ms: Some(1), ..lasting }));
        assert!(!is_plain(16, 100, Version { commit: 5, ..lasting }));
    }

    /// A word that bypasses the caches is lost unless a fence follows; the last one, which is padded, is no exception.
    #[test]
    fn a_streamed_value_is_durable_once_its_record_is_sealed() {
        let memory = Memory::new(256 << 10).unwrap();
        let life = Crash::new(&memory).live(CrashOptions::default());
        let pool = Pool::create_in(Arc::clone(&memory), life.medium(), PoolOptions { size_max: memory.size(), ..PoolOptions::default() }).unwrap();
        let value: Vec<u8> = (0..STREAMED_SIZE_MIN + 13).map(|i| (i % 255) as u8 + 1).collect();
        let record = Record::write(&pool, b"key", &value, Version::default()).unwrap();
        let words = record.off().bytes() as usize / WORD..record.off().bytes() as usize / WORD + record.len();
        let count = words.len();
        let lost = move |memory: &Memory| memory.words()[words.clone()].iter().filter(|word| word.load(Ordering::Relaxed) == 0).count();
        // Commit, previous and nothing else.
        assert_eq!(lost(&memory), 2);
        let lost_at_most = || {
            let (most, watched, lost) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&memory), lost.clone());
            let sink = Arc::clone(&most);
            life.observe(move |_| {
                sink.fetch_max(lost(&watched), Ordering::Relaxed);
                Seen::default()
            });
            life.end();
            life.look_away();
            most.load(Ordering::Relaxed)
        };
        assert_eq!(lost_at_most(), count);
        let record = record.flush();
        assert!(lost_at_most() > 2 + STREAMED_SIZE_MIN / WORD, "a flush does not help");
        let record = pool.fence_all(record);
        assert_eq!(lost_at_most(), 2);
        drop(record);
        drop(pool);
    }

    #[test]
    fn a_record_larger_than_any_that_is_written_is_damage() {
        let pool = pool();
        for (key_size, value_size, sound) in [(KEY_SIZE_MAX, 0, true), (KEY_SIZE_MAX + 1, 0, false), (0, VALUE_SIZE_MAX + 1, false)] {
            let words = pool.alloc_words(HEADER_WORDS + KEY_SIZE_MAX).unwrap();
            pool.store(&words[0], key_size as u64 | (value_size as u64) << KEY_BITS, Ordering::Relaxed);
            assert_eq!(Record::read(&pool, words.off().link()).is_ok(), sound, "{key_size} {value_size}");
        }
    }

    #[test]
    fn a_flipped_bit_in_a_record_is_noticed() {
        let pool = pool();
        let (key, value) = (b"seventeen bytes..", b"a value of 26 bytes, quite");
        for expiry_ms in [None, Some(1 << 40 | 5)] {
            let block = Record::write(&pool, key, value, Version { expiry_ms, ..Version::default() }).unwrap();
            flip_every_bit(&pool, pool.seal(block).release(), expiry_ms);
        }
    }

    fn flip_every_bit(pool: &Pool<Hardware>, off: Off<[Word]>, expiry_ms: Option<u64>) {
        let record = Record::read(pool, off.link()).unwrap();
        assert_eq!((record.expiry_ms(), record.is_tombstone(), record.is_intact()), (expiry_ms, false, true));
        for (at, word) in record.words.iter().enumerate() {
            for bit in 0..64 {
                let old = word.get();
                pool.store(word, old ^ 1 << bit, Ordering::Relaxed);
                let intact = Record::read(pool, off.link()).is_ok_and(|record| {
                    let mut key = Vec::new();
                    record.copy_key(&mut key);
                    assert_eq!(record.is_intact(), record.copy_matching_value(record.key_sum(&key), &mut Vec::new()));
                    assert!(record.matches_key(record.key_sum(&key)) || !record.is_intact());
                    record.is_intact()
                });
                // Commit and previous are not sealed, since they change; nor is padding.
                let padding = (at == 6 && bit >= 8) || (at == 10 && bit >= 16);
                assert_eq!(intact, at == 1 || at == 2 || padding, "bit {bit} of word {at}");
                pool.store(word, old, Ordering::Relaxed);
            }
        }
    }
}
