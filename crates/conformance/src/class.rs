//! Keys and values by number, for both classes of keys.

use everleaf_index::record::Record;
use everleaf_index::{Error, Key};
use everleaf_pmem::{Medium, Off, Pm, Pool, Reach, Word};
use proptest::prelude::*;
use std::num::NonZeroU64;

/// A class of keys for which the suites can make keys and values.
///
/// The suites speak of *payloads*: numbers that tell one value from another. A value word holds one (`u64` keys) or links a record that does (byte strings).
pub trait Class: Key<Owned: std::hash::Hash> {
    /// Name shown to users.
    const NAME: &'static str;

    /// The key of a number. A larger number gives a larger key; 0 and [`u32::MAX`] give the smallest and largest possible keys.
    fn numbered(number: u32) -> Self::Owned;

    /// Keys that are likely to collide, and the edge cases of the class.
    fn any() -> BoxedStrategy<Self::Owned>;

    /// A value word for `key`, durable and not yet in any index.
    ///
    /// # Errors
    /// A full pool.
    fn value<M: Medium>(pool: &Pool<M>, key: &Self, payload: u64) -> Result<NonZeroU64, Error>;

    /// The payload of a value word.
    ///
    /// # Errors
    /// A damaged pool.
    fn payload<M: Medium>(pm: &Pm<M>, value: NonZeroU64) -> Result<u64, Error>;

    /// The block that a value word links, with its size in bytes, or `None` if it links no block.
    ///
    /// # Errors
    /// A damaged pool.
    fn block<M: Medium>(pm: &Pm<M>, value: NonZeroU64) -> Result<Option<(Off<Word>, usize)>, Error>;

    /// Marks the block that a value word links.
    ///
    /// # Errors
    /// A damaged pool.
    fn mark<M: Medium>(pm: &Pm<M>, reach: &Reach<'_, M>, value: NonZeroU64) -> Result<(), Error> {
        match Self::block(pm, value)? {
            Some((block, size)) => Ok(reach.mark(block, size)?),
            None => Ok(()),
        }
    }
}

impl Class for u64 {
    const NAME: &'static str = "u64";

    fn numbered(number: u32) -> u64 {
        if number == u32::MAX { u64::MAX } else { u64::from(number) }
    }

    fn any() -> BoxedStrategy<u64> {
        prop_oneof![1 => Just(0), 1 => Just(u64::MAX), 12 => 0..100u64, 2 => any::<u64>(), 2 => (0..64u32).prop_map(|bit| 1 << bit)].boxed()
    }

    fn value<M: Medium>(_pool: &Pool<M>, _key: &u64, payload: u64) -> Result<NonZeroU64, Error> {
        Ok(NonZeroU64::new(payload).expect("payloads are not zero"))
    }

    fn payload<M: Medium>(_pm: &Pm<M>, value: NonZeroU64) -> Result<u64, Error> {
        Ok(value.get())
    }

    fn block<M: Medium>(_pm: &Pm<M>, _value: NonZeroU64) -> Result<Option<(Off<Word>, usize)>, Error> {
        Ok(None)
    }
}

impl Class for [u8] {
    const NAME: &'static str = "bytes";

    fn numbered(number: u32) -> Vec<u8> {
        match number {
            0 => Vec::new(),
            u32::MAX => vec![0xff; 300],
            _ => [b"common/".as_slice(), &number.to_be_bytes()].concat(),
        }
    }

    fn any() -> BoxedStrategy<Vec<u8>> {
        let byte = prop_oneof![Just(0u8), Just(b'a'), Just(0xff)];
        let short = prop::collection::vec(byte.clone(), 0..5);
        let behind = |prefix: &'static [u8]| prop::collection::vec(byte.clone(), 0..10).prop_map(move |rest| [prefix, &rest].concat());
        let numbered = (0..100u32).prop_map(Self::numbered);
        let long = (0..4usize, any::<u8>()).prop_map(|(length, last)| [vec![b'x'; 250 * length], vec![last]].concat());
        prop_oneof![2 => short, 3 => behind(b"shared-prefix/"), 2 => behind(b"shared-p"), 8 => numbered, 1 => long].boxed()
    }

    fn value<M: Medium>(pool: &Pool<M>, key: &[u8], payload: u64) -> Result<NonZeroU64, Error> {
        let record = Record::create(pool, key, &payload.to_le_bytes())?;
        Ok(NonZeroU64::new(record.release().link()).expect("a record does not lie at offset 0"))
    }

    fn payload<M: Medium>(pm: &Pm<M>, value: NonZeroU64) -> Result<u64, Error> {
        let record = Record::read(pm, value.get())?;
        if record.value_size() != 8 || !record.is_intact() {
            return Err(everleaf_pmem::Error::corrupt(record.off.bytes(), "a record with another value than was written").into());
        }
        let mut value = Vec::with_capacity(16);
        record.copy_value(0, 8, &mut value);
        Ok(value.iter().rev().fold(0, |payload, byte| payload << 8 | u64::from(*byte)))
    }

    fn block<M: Medium>(pm: &Pm<M>, value: NonZeroU64) -> Result<Option<(Off<Word>, usize)>, Error> {
        let record = Record::read(pm, value.get())?;
        Ok(Some((record.off, record.size())))
    }
}
