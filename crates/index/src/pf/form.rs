//! The forms in which arrays keep records: whole records, side by side, as PFtree does; or words that lead to records, as ROART does.
//!
//! ROART's leaf array (Ma et al., FAST 2021), from which PFtree's was derived:
//!
//! ```text
//! array    header word | words that lead to records, 0 = none, in any order
//! word     bits 0-47 where the record lies, 48-63 bits of a hash of its key
//! record   of an integer: key | value, a block of its own; of a byte string: what the value links, which has the key
//! ```
//!
//! A record counts with its word, which is stored after it: two fences for an integer, one for a byte string, whose record was there before. An update writes
//! another record, and its word. A removal stores 0. The last record goes with its array, by the word that leads to the array, because an empty array would
//! have no key to identify it (invariant 2 of the tree). Readers use a bit in DRAM for each word, as ROART's use the bitmap of the array, which is not flushed;
//! so they see a word when it is durable. The old record is freed when nobody can be reading it: whoever replaces or removes one holds the latch, so readers
//! notice.
//!
//! *Departures from ROART.* The bitmap is in DRAM and not in the array, which has neither a count nor a lock there, so generation numbers are not needed.
//! Arrays double up to 64 records; ROART's have 64 words from the beginning. A record has no type, and no length for an integer: four of these fill a line,
//! where each of ROART's begins a line.

use super::block::{self, Record};
use super::side::Side;
use super::{Array, DAMAGED, Found, RECORDS};
use crate::key::SPREAD;
use crate::record;
use crate::selective::leaf::{self, Entry};
use crate::{Error, Key};
use everleaf_pmem::{Fresh, Medium, Off, Pm, Pool, Word};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// How arrays keep records. What an array stores for a value is its *payload*: the value itself, or where the record lies.
pub(crate) trait Form: Send + Sync + 'static {
    /// Whether the key of a record can be read when the record does not count any more.
    const KEEPS_KEYS: bool;

    /// What a scan gathers of a record.
    type Gathered<'a>;

    /// The payload for a value.
    fn bring<'p, K: Key + ?Sized, M: Medium>(pool: &'p Pool<M>, key: &K, value: NonZeroU64) -> Result<Brought<'p, M>, Error>;

    /// The value of a payload.
    fn value<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, payload: NonZeroU64) -> Result<NonZeroU64, Error>;

    /// Size in bytes of the block of a payload, if payloads have blocks of their own.
    fn block_size<K: Key + ?Sized>() -> Option<usize>;

    /// The block of a payload, if it has one of its own.
    #[inline(always)]
    fn block_of<K: Key + ?Sized>(payload: NonZeroU64) -> Option<Off<Word>> {
        Self::block_size::<K>().map(|_| Off::new(payload.get()))
    }

    /// Retires the block of a payload that no array has any more.
    fn retire<K: Key + ?Sized, M: Medium>(pool: &Pool<M>, payload: NonZeroU64) {
        if let Some(block) = Self::block_of::<K>(payload) {
            pool.retire(block, &pool.pin());
        }
    }

    /// Words that entries take in an array.
    fn words_of<K: Key + ?Sized>(entries: &[(K::Owned, NonZeroU64)]) -> usize;

    /// Writes the header and all of an array that nobody can reach. Returns how many words of it count.
    fn write<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word], entries: &[(K::Owned, NonZeroU64)]) -> usize;

    /// The words at which the records that count begin.
    fn live(side: Side<'_>) -> impl Iterator<Item = usize>;

    /// The record of a key.
    fn find<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, key: &K) -> Result<Option<Found>, Error>;

    /// The payload of a record that counts.
    fn payload<K: Key + ?Sized>(array: &Array<'_>, at: usize) -> Result<NonZeroU64, Error>;

    /// Key and payload of a record that counts.
    fn entry<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize) -> Result<(K::Owned, NonZeroU64), Error>;

    /// A key of an array: of a record that counts or, if keys are kept, has counted.
    fn sample<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>) -> Result<K::Owned, Error>;

    /// Where a record of a key goes, if there is room.
    fn room<K: Key + ?Sized>(array: &Array<'_>, key: &K, records_max: usize) -> Option<usize>;

    /// Adds a record there, durably. The caller is the only one that appends.
    fn append<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, key: &K, payload: NonZeroU64);

    /// Gives a record another payload, durably, under the latch.
    fn replace<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, key: &K, payload: NonZeroU64);

    /// Makes a record no longer count, durably.
    fn kill<M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize) -> Result<(), Error>;

    /// Prefetches what [`Form::gather`] reads outside of the array, for all records.
    fn ask<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, skip: usize);

    /// What a scan needs of a record that counts, whose key has `skip` bytes in common with the others.
    fn gather<'a, K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'a>, at: usize, skip: usize) -> Result<Self::Gathered<'a>, Error>;

    /// Sorts what was gathered by key.
    fn sort<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, gathered: &mut [Self::Gathered<'_>]) -> Result<(), Error>;

    fn gathered<'g>(gathered: &'g Self::Gathered<'_>) -> &'g Entry;

    /// All records of an array that was found in the pool; `None` if there is something else.
    fn records<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word]) -> Option<Vec<Located<K>>>;

    /// Enters in DRAM a record that was found in the pool.
    fn tell<K: Key + ?Sized>(side: Side<'_>, record: &Located<K>);
}

/// A payload, and its block, if it has one, which nobody can reach yet.
pub(crate) struct Brought<'p, M: Medium> {
    pub(super) payload: NonZeroU64,
    pub(super) block: Option<Fresh<'p, [Word], M>>,
}

/// A record that was found in the pool.
pub(crate) struct Located<K: Key + ?Sized> {
    /// The word at which it begins.
    pub(super) at: usize,
    pub(super) key: K::Owned,
    /// None if it does not count.
    pub(super) payload: Option<NonZeroU64>,
}

/// PFtree's form: whole records, by [`block`].
pub(crate) struct Direct;

impl Direct {
    #[inline(always)]
    fn record<'a>(array: &Array<'a>, at: usize) -> Result<Record<'a>, Error> {
        Record::at(array.words, at).ok_or_else(|| array.damage("a record that does not end in its array"))
    }

    #[inline(always)]
    fn value_of(array: &Array<'_>, record: Record<'_>) -> Result<NonZeroU64, Error> {
        record.value().ok_or_else(|| array.damage("a record with a value of 0"))
    }
}

impl Form for Direct {
    const KEEPS_KEYS: bool = true;

    type Gathered<'a> = (Entry, Record<'a>);

    #[inline(always)]
    fn bring<'p, K: Key + ?Sized, M: Medium>(_: &'p Pool<M>, _: &K, value: NonZeroU64) -> Result<Brought<'p, M>, Error> {
        Ok(Brought { payload: value, block: None })
    }

    fn value<K: Key + ?Sized, M: Medium>(_: &Pm<M>, payload: NonZeroU64) -> Result<NonZeroU64, Error> {
        Ok(payload)
    }

    #[inline(always)]
    fn block_size<K: Key + ?Sized>() -> Option<usize> {
        None
    }

    fn words_of<K: Key + ?Sized>(entries: &[(K::Owned, NonZeroU64)]) -> usize {
        entries.iter().map(|(key, _)| block::size(block::length::<K>(key.borrow()))).sum()
    }

    fn write<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word], entries: &[(K::Owned, NonZeroU64)]) -> usize {
        block::write_array::<K, M>(pm, array, entries)
    }

    #[inline(always)]
    fn live(side: Side<'_>) -> impl Iterator<Item = usize> {
        side.live()
    }

    #[inline(always)]
    fn find<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, key: &K) -> Result<Option<Found>, Error> {
        let meta = block::meta(key);
        for at in array.side.candidates(meta as u8) {
            let record = Self::record(array, at)?;
            if record.is_of(pm, meta, key)? {
                let value = Self::value_of(array, record)?;
                return Ok(Some(Found { at, payload: value, value }));
            }
        }
        Ok(None)
    }

    fn payload<K: Key + ?Sized>(array: &Array<'_>, at: usize) -> Result<NonZeroU64, Error> {
        Self::value_of(array, Self::record(array, at)?)
    }

    fn entry<K: Key + ?Sized, M: Medium>(_: &Pm<M>, array: &Array<'_>, at: usize) -> Result<(K::Owned, NonZeroU64), Error> {
        let record = Self::record(array, at)?;
        let (key, _) = record.read::<K>().ok_or_else(|| array.damage(DAMAGED))?;
        Ok((key, Self::value_of(array, record)?))
    }

    fn sample<K: Key + ?Sized, M: Medium>(_: &Pm<M>, array: &Array<'_>) -> Result<K::Owned, Error> {
        let first = Record::at(array.words, 1).and_then(|first| first.read::<K>());
        Ok(first.ok_or_else(|| array.damage(DAMAGED))?.0)
    }

    #[inline(always)]
    fn room<K: Key + ?Sized>(array: &Array<'_>, key: &K, records_max: usize) -> Option<usize> {
        let end = array.side.end();
        let may_be_full = end > block::size(0) * records_max;
        let has_room = end + block::size(block::length(key)) <= array.words.len() && !(may_be_full && array.side.live().count() >= records_max);
        has_room.then_some(end)
    }

    #[inline(always)]
    fn append<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, key: &K, payload: NonZeroU64) {
        let meta = block::meta(key);
        let end = block::append(pm, array.words, at, meta, key, payload);
        array.side.push(meta as u8, end, true);
    }

    #[inline(always)]
    fn replace<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, _: &K, payload: NonZeroU64) {
        let word = block::value_word(array.words, at);
        pm.store(word, payload.get(), Release);
        pm.persist(word);
    }

    #[inline(always)]
    fn kill<M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize) -> Result<(), Error> {
        Self::record(array, at)?.kill(pm);
        array.side.remove(at).ok_or_else(|| array.damage(DAMAGED))
    }

    #[inline(always)]
    fn ask<K: Key + ?Sized, M: Medium>(_: &Pm<M>, _: &Array<'_>, _: usize) {}

    #[inline(always)]
    fn gather<'a, K: Key + ?Sized, M: Medium>(_: &Pm<M>, array: &Array<'a>, at: usize, _: usize) -> Result<(Entry, Record<'a>), Error> {
        let record = Self::record(array, at)?;
        Ok((Entry { head: record.head::<K>(), value: Self::value_of(array, record)? }, record))
    }

    fn sort<K: Key + ?Sized, M: Medium>(_: &Pm<M>, gathered: &mut [(Entry, Record<'_>)]) -> Result<(), Error> {
        gathered.sort_unstable_by(|(a, a_record), (b, b_record)| if K::WHOLE { a.head.cmp(&b.head) } else { a_record.order::<K>(*b_record) });
        Ok(())
    }

    fn gathered<'g>((entry, _): &'g (Entry, Record<'_>)) -> &'g Entry {
        entry
    }

    fn records<K: Key + ?Sized, M: Medium>(_: &Pm<M>, array: &[Word]) -> Option<Vec<Located<K>>> {
        block::records::<K>(array).collect()
    }

    fn tell<K: Key + ?Sized>(side: Side<'_>, Located { at, key, payload }: &Located<K>) {
        let key = key.borrow();
        side.push(block::meta::<K>(key) as u8, at + block::size(block::length(key)), payload.is_some());
    }
}

/// ROART's form: words that lead to records. See the module documentation.
pub(crate) struct Pointers;

/// The bits of a word that say where the record lies.
const ADDRESS: u64 = (1 << 48) - 1;

/// Words of the record of an integer.
const RECORD: usize = 2;

impl Pointers {
    /// The bits of a word that distinguish keys.
    #[inline(always)]
    fn fingerprint<K: Key + ?Sized>(key: &K) -> u64 {
        key.token().wrapping_mul(SPREAD) & !ADDRESS
    }

    #[inline(always)]
    fn word<K: Key + ?Sized>(key: &K, payload: NonZeroU64) -> u64 {
        Self::fingerprint(key) | payload.get() & ADDRESS
    }

    #[inline(always)]
    fn payload_of<K: Key + ?Sized>(word: u64) -> Option<NonZeroU64> {
        let off = NonZeroU64::new(word & ADDRESS)?;
        if K::WHOLE { Some(off) } else { NonZeroU64::new(Off::<Word>::new(off.get()).link()) }
    }

    /// Key and value of the record of an integer.
    #[inline(always)]
    fn integer<M: Medium>(pm: &Pm<M>, payload: NonZeroU64) -> Option<(u64, NonZeroU64)> {
        let record = pm.words(Off::<Word>::new(payload.get()), RECORD)?;
        Some((record[0].get(), NonZeroU64::new(record[1].get())?))
    }

    fn no_record(payload: NonZeroU64) -> Error {
        everleaf_pmem::Error::corrupt(payload.get() & ADDRESS, "a word of an array that does not lead to a record").into()
    }

    fn key<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, payload: NonZeroU64) -> Result<K::Owned, Error> {
        if K::WHOLE {
            return Ok(K::restore(Self::integer(pm, payload).ok_or_else(|| Self::no_record(payload))?.0, &[]));
        }
        leaf::read::<K, M>(pm, &Entry { head: 0, value: payload })
    }

    /// Stores a word, durably.
    #[inline(always)]
    #[track_caller]
    fn set<M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, word: u64) {
        pm.store(&array.words[at], word, Release);
        pm.persist(&array.words[at]);
    }
}

impl Form for Pointers {
    const KEEPS_KEYS: bool = false;

    type Gathered<'a> = Entry;

    #[inline(always)]
    fn bring<'p, K: Key + ?Sized, M: Medium>(pool: &'p Pool<M>, key: &K, value: NonZeroU64) -> Result<Brought<'p, M>, Error> {
        if !K::WHOLE {
            return Ok(Brought { payload: value, block: None });
        }
        let record = pool.alloc_words(RECORD)?;
        pool.store(&record[0], key.head(0), Relaxed);
        pool.store(&record[1], value.get(), Relaxed);
        Ok(Brought { payload: NonZeroU64::new(record.off().bytes()).expect("a block is not at the beginning of a pool"), block: Some(record) })
    }

    fn value<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, payload: NonZeroU64) -> Result<NonZeroU64, Error> {
        if K::WHOLE { Self::integer(pm, payload).map(|(_, value)| value).ok_or_else(|| Self::no_record(payload)) } else { Ok(payload) }
    }

    #[inline(always)]
    fn block_size<K: Key + ?Sized>() -> Option<usize> {
        K::WHOLE.then_some(RECORD * size_of::<Word>())
    }

    fn words_of<K: Key + ?Sized>(entries: &[(K::Owned, NonZeroU64)]) -> usize {
        entries.len()
    }

    fn write<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word], entries: &[(K::Owned, NonZeroU64)]) -> usize {
        pm.store(&array[0], block::Shape::Array { words: array.len() }.header(), Relaxed);
        let words = entries.iter().map(|(key, payload)| Self::word::<K>(key.borrow(), *payload)).chain(std::iter::repeat(0));
        array[1..].iter().zip(words).for_each(|(to, word)| pm.store(to, word, Relaxed));
        array.len()
    }

    #[inline(always)]
    fn live(side: Side<'_>) -> impl Iterator<Item = usize> {
        side.marked()
    }

    #[inline(always)]
    fn find<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, key: &K) -> Result<Option<Found>, Error> {
        let fingerprint = Self::fingerprint(key);
        for at in array.side.marked() {
            if array.words.get(at).is_none_or(|word| word.get() & !ADDRESS != fingerprint) {
                continue;
            }
            let payload = Self::payload::<K>(array, at)?;
            if K::WHOLE {
                let (found, value) = Self::integer(pm, payload).ok_or_else(|| Self::no_record(payload))?;
                if found == key.head(0) {
                    return Ok(Some(Found { at, payload, value }));
                }
            } else if key.compare(pm, 0, key.head(0), payload)?.is_eq() {
                return Ok(Some(Found { at, payload, value: payload }));
            }
            // The record is that of another key with these bits, or damaged.
            Self::entry::<K, M>(pm, array, at)?;
        }
        Ok(None)
    }

    #[inline(always)]
    fn payload<K: Key + ?Sized>(array: &Array<'_>, at: usize) -> Result<NonZeroU64, Error> {
        let word = array.words.get(at).map_or(0, Word::get);
        Self::payload_of::<K>(word).ok_or_else(|| array.damage("an array without the word of a record that counts"))
    }

    fn entry<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize) -> Result<(K::Owned, NonZeroU64), Error> {
        let payload = Self::payload::<K>(array, at)?;
        let key = Self::key::<K, M>(pm, payload)?;
        match array.words[at].get() == Self::word::<K>(key.borrow(), payload) {
            true => Ok((key, payload)),
            false => Err(array.damage(DAMAGED)),
        }
    }

    fn sample<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>) -> Result<K::Owned, Error> {
        let first = array.side.marked().next().ok_or_else(|| array.damage("an array of which nothing counts"))?;
        Ok(Self::entry::<K, M>(pm, array, first)?.0)
    }

    #[inline(always)]
    fn room<K: Key + ?Sized>(array: &Array<'_>, _: &K, records_max: usize) -> Option<usize> {
        array.side.unmarked().filter(|_| array.side.marked().count() < records_max)
    }

    #[inline(always)]
    fn append<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, key: &K, payload: NonZeroU64) {
        Self::set(pm, array, at, Self::word(key, payload));
        array.side.mark(at, true);
    }

    #[inline(always)]
    fn replace<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize, key: &K, payload: NonZeroU64) {
        Self::set(pm, array, at, Self::word(key, payload));
    }

    #[inline(always)]
    fn kill<M: Medium>(pm: &Pm<M>, array: &Array<'_>, at: usize) -> Result<(), Error> {
        Self::set(pm, array, at, 0);
        array.side.mark(at, false);
        Ok(())
    }

    #[inline(always)]
    fn ask<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'_>, skip: usize) {
        for word in array.side.marked().filter_map(|at| array.words.get(at)) {
            match word.get() & ADDRESS {
                record if K::WHOLE => pm.prefetch::<1>(record),
                record => record::Record::prefetch_head(pm, record, skip),
            }
        }
    }

    #[inline(always)]
    fn gather<'a, K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &Array<'a>, at: usize, skip: usize) -> Result<Entry, Error> {
        let payload = Self::payload::<K>(array, at)?;
        if K::WHOLE {
            let (head, value) = Self::integer(pm, payload).ok_or_else(|| Self::no_record(payload))?;
            return Ok(Entry { head, value });
        }
        Ok(Entry { head: K::rehead(pm, skip, 0, payload)?, value: payload })
    }

    fn sort<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, gathered: &mut [Entry]) -> Result<(), Error> {
        leaf::sort::<K, M>(pm, gathered)
    }

    fn gathered(entry: &Entry) -> &Entry {
        entry
    }

    fn records<K: Key + ?Sized, M: Medium>(pm: &Pm<M>, array: &[Word]) -> Option<Vec<Located<K>>> {
        let words = array.iter().enumerate().skip(1).map(|(at, word)| (at, word.get())).filter(|(_, word)| *word != 0);
        // Checked before keys are copied: all words of a damaged array may lead to one record.
        if words.clone().count() > RECORDS {
            return None;
        }
        let located = |(at, word)| {
            let payload = Self::payload_of::<K>(word)?;
            let key = Self::key::<K, M>(pm, payload).ok()?;
            (Self::word::<K>(key.borrow(), payload) == word).then_some(Located { at, key, payload: Some(payload) })
        };
        words.map(located).collect()
    }

    fn tell<K: Key + ?Sized>(side: Side<'_>, record: &Located<K>) {
        side.mark(record.at, true);
    }
}
