//! Keys and values by number.
//!
//! A key is known by its *number*. Random keys are numbered from 0, dense ones from [`DENSE`]; a number with [`ABSENT`] is never inserted. The number
//! determines the key and the beginning of its value, so every answer can be checked without a table.

use crate::plan::{KeyKind, Order};

/// Numbers of dense keys have this bit: these keys are larger than all random ones, and ascend.
pub(crate) const DENSE: u64 = 1 << 63;
/// Numbers of keys that are never inserted have this bit.
pub(crate) const ABSENT: u64 = 1 << 62;

/// Numbers must be smaller, apart from these bits.
const NUMBER_COUNT_MAX: u64 = 1 << 44;
/// The bits of a value's first word below this identify the key; the version is above them.
const VERSION_SHIFT: u32 = 48;

/// A prime above the maximum number of keys of a run: multiplying by it permutes the numbers.
const PRIME: u64 = 2_654_435_761;
/// Maximum number of keys of a run.
pub(crate) const KEY_COUNT_MAX: u64 = 1 << 31;

/// How keys are derived from numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// Their shape.
    pub(crate) kind: KeyKind,
    /// A different seed gives different random keys.
    pub(crate) seed: u64,
}

impl Keys {
    /// The key of a number, as an integer. Random keys are a bijective mix of 63 bits, so they are unique and look uniformly random.
    pub(crate) fn integer(self, number: u64) -> u64 {
        const MASK: u64 = DENSE - 1;
        if number & DENSE != 0 {
            return number;
        }
        // Invertible steps within 63 bits: addition and multiplication by an odd number modulo 2^63, and right shifts.
        let mut key = number.wrapping_add(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) & MASK;
        key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) & MASK;
        key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) & MASK;
        key ^ key >> 31
    }

    /// Size of every key in bytes.
    pub(crate) fn size(self) -> usize {
        self.kind.bytes().max(8).into()
    }

    /// Appends the key of a number to `keys`. Bytes sort like the integers. Strings of fewer than 20 bytes begin with the integer's bytes, so their first eight
    /// bytes differ. db_bench's keys begin with zero digits, and so cost more to compare.
    pub(crate) fn append(self, number: u64, keys: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let (integer, end) = (self.integer(number), keys.len() + self.size());
        if self.size() >= 23 {
            // As in YCSB: `user` and a number. It is below 10^19, as there are few dense keys.
            let (mut decimals, mut rest) = ([0; 19], integer);
            for decimal in decimals.iter_mut().rev() {
                *decimal = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            keys.extend_from_slice(b"user");
            keys.extend_from_slice(&decimals);
        } else if self.size() >= 20 {
            keys.extend_from_slice(b"user");
            keys.extend((0..16).rev().map(|digit| DIGITS[(integer >> (4 * digit) & 15) as usize]));
        } else {
            keys.extend_from_slice(&integer.to_be_bytes());
        }
        keys.resize(end, b'.');
    }

    /// A key and its initial value.
    pub(crate) fn entry(self, number: u64, value_bytes: u32) -> (Vec<u8>, Vec<u8>) {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.append(number, &mut key);
        append_value(number, 0, value_bytes, &mut value);
        (key, value)
    }
}

/// Appends a value of this size for the key of that number. Consecutive versions differ, and only version 0 looks like version 0.
#[inline]
pub(crate) fn append_value(number: u64, version: u16, size: u32, values: &mut Vec<u8>) {
    let word = if size < 8 { short_word(number, version, size) } else { tag(number) | u64::from(version) << VERSION_SHIFT };
    let (bytes, end) = (word.to_le_bytes(), values.len() + size as usize);
    values.extend_from_slice(&bytes[..bytes.len().min(size as usize)]);
    values.resize(end, bytes[0] | 1);
}

/// The version of a value; `None` if it cannot belong to the key of that number. A short value may match another key, too: in a byte, four bits identify keys.
#[inline]
pub(crate) fn version_of(value: &[u8], number: u64) -> Option<u16> {
    match value.first_chunk() {
        Some(word) => {
            let word = u64::from_le_bytes(*word);
            (word & ((1 << VERSION_SHIFT) - 1) == tag(number)).then_some((word >> VERSION_SHIFT) as u16)
        }
        None => version_of_short(value, number),
    }
}

/// Whether the bytes that follow the first eight of a value are as [`append_value`] writes them. It reads all of them.
#[inline]
pub(crate) fn is_whole(value: &[u8]) -> bool {
    let Some((word, rest)) = value.split_first_chunk::<8>() else { return true };
    let filler = word[0] | 1;
    rest.iter().fold(0, |differing, byte| differing | (byte ^ filler)) == 0
}

/// Bits of a value of less than 8 bytes that identify the key. As many above them identify the version; longer values have 16 for it.
fn short_shift(size: u32) -> u32 {
    8 * size - (4 * size).min(16)
}

fn short_word(number: u64, version: u16, size: u32) -> u64 {
    let (shift, most) = (short_shift(size), u16::MAX >> (16 - (4 * size).min(16)));
    let version = if version == 0 { 0 } else { (version - 1) % most + 1 };
    tag(number) & ((1 << shift) - 1) | u64::from(version) << shift
}

#[cold]
fn version_of_short(value: &[u8], number: u64) -> Option<u16> {
    let mut bytes = [0; 8];
    bytes[..value.len()].copy_from_slice(value);
    let (word, shift) = (u64::from_le_bytes(bytes), short_shift(value.len() as u32));
    let is_its = !value.is_empty() && word & ((1 << shift) - 1) == short_word(number, 0, value.len() as u32);
    is_its.then_some((word >> shift) as u16)
}

/// Not zero, and below 2^48.
fn tag(number: u64) -> u64 {
    let dense = if number & DENSE != 0 { NUMBER_COUNT_MAX } else { 0 };
    ((number % NUMBER_COUNT_MAX) | dense) + 1
}

/// The keys that an instance holds: some as single numbers, then runs of numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Population {
    listed: Vec<u64>,
    /// The first number of each, and its length.
    runs: Vec<(u64, u64)>,
    count: u64,
    /// The next unused number, of random and of dense keys.
    next: [u64; 2],
}

impl Population {
    /// Reserves the next `count` numbers of that order, for keys to be added. Returns the first.
    pub(crate) fn reserve(&mut self, order: Order, count: u64) -> u64 {
        let (base, next) = match order {
            Order::Random => (0, &mut self.next[0]),
            Order::Dense => (DENSE, &mut self.next[1]),
        };
        *next += count;
        base + *next - count
    }

    /// Adds keys whose numbers were reserved.
    pub(crate) fn add(&mut self, first: u64, count: u64) {
        self.runs.push((first, count));
        self.count += count;
    }

    /// Replaces all keys by these.
    pub(crate) fn replace(&mut self, numbers: Vec<u64>) {
        self.count = numbers.len() as u64;
        self.listed = numbers;
        self.runs.clear();
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The number of the key added at position `place`, from 0.
    ///
    /// # Panics
    /// If there are not that many.
    pub(crate) fn number(&self, place: u64) -> u64 {
        if let Some(number) = self.listed.get(place as usize) {
            return *number;
        }
        let mut before = self.listed.len() as u64;
        for (first, count) in &self.runs {
            if place < before + count {
                return first + (place - before);
            }
            before += count;
        }
        panic!("key {place} of {}", self.count);
    }
}

/// A permutation of all places below `count`.
pub(crate) fn shuffled(place: u64, count: u64) -> u64 {
    // Division of more than a word is slow, and every operation of a run comes here.
    match place.checked_mul(PRIME) {
        Some(product) => product % count,
        None => (u128::from(place) * u128::from(PRIME) % u128::from(count)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_and_ordered_as_integers_in_every_shape() {
        for kind in [KeyKind::Integer, KeyKind::Bytes(8), KeyKind::Bytes(13), KeyKind::Bytes(20), KeyKind::Bytes(23), KeyKind::Bytes(32)] {
            let keys = Keys { kind, seed: 3 };
            let mut text = Vec::new();
            let mut pairs: Vec<(u64, Vec<u8>)> = (0..1000)
                .chain(DENSE..DENSE + 1000)
                .chain(ABSENT..ABSENT + 1000)
                .map(|number| {
                    text.clear();
                    keys.append(number, &mut text);
                    (keys.integer(number), text.clone())
                })
                .collect();
            pairs.sort();
            assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{kind:?}");
            assert!(pairs.iter().all(|(_, text)| text.len() == usize::from(kind.bytes())), "{kind:?}");
        }
    }

    #[test]
    fn random_keys_are_spread_evenly() {
        let keys = Keys { kind: KeyKind::Integer, seed: 1 };
        let mut parts = [0_u32; 16];
        (0..16_000).for_each(|number| parts[(keys.integer(number) >> 59) as usize] += 1);
        // 1,000 are expected in each; the standard deviation is 31.
        assert!(parts.iter().all(|count| (850..1150).contains(count)), "{parts:?}");
    }

    #[test]
    fn values_tell_their_keys_and_versions() {
        let mut value = Vec::new();
        for (number, size) in [0, 1, 77_777, DENSE, DENSE + 5].into_iter().flat_map(|number| [8, 21].map(|size| (number, size))) {
            for version in [0, 1, u16::MAX] {
                value.clear();
                append_value(number, version, size, &mut value);
                assert!(value.len() == size as usize && value[..8] != [0; 8] && version_of(&value, number) == Some(version));
                assert!(is_whole(&value));
                for at in 8..value.len() {
                    value[at] ^= 4;
                    assert!(!is_whole(&value));
                    value[at] ^= 4;
                }
                assert!(version_of(&value, number + 1).is_none() && version_of(&value, number ^ DENSE).is_none());
            }
        }
        assert_eq!(version_of(b"", 0), None);
    }

    /// These were refused.
    #[test]
    fn short_values_tell_what_they_have_bits_for() {
        for size in 1..8 {
            let (mut value, mut before) = (Vec::new(), Vec::new());
            for version in 0..=u16::MAX {
                std::mem::swap(&mut value, &mut before);
                value.clear();
                append_value(77, version, size, &mut value);
                let read = version_of(&value, 77);
                assert!(value.len() == size as usize && read.is_some_and(|read| (read == 0) == (version == 0)), "{size} bytes, version {version}: {read:?}");
                assert!(value != before && version_of(&value, 78).is_none(), "{size} bytes, version {version}");
            }
        }
    }

    #[test]
    fn a_population_numbers_its_keys_in_the_order_they_came() {
        let mut population = Population::default();
        assert_eq!(population.reserve(Order::Random, 5), 0);
        // Two threads, each with a part of the reserved numbers, not all of which it needs.
        population.add(0, 2);
        population.add(3, 1);
        assert_eq!(population.reserve(Order::Dense, 2), DENSE);
        population.add(DENSE, 2);
        assert_eq!((population.reserve(Order::Random, 1), population.reserve(Order::Dense, 1)), (5, DENSE + 2));
        let numbers = |population: &Population| (0..population.count()).map(|place| population.number(place)).collect::<Vec<_>>();
        assert_eq!(numbers(&population), [0, 1, 3, DENSE, DENSE + 1]);
        population.replace(vec![DENSE, 3]);
        let next = population.reserve(Order::Random, 2);
        population.add(next, 2);
        assert_eq!(numbers(&population), [DENSE, 3, 6, 7]);
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        for count in [1, 2, 1000, 65_536] {
            assert_eq!((0..count).map(|place| shuffled(place, count)).collect::<BTreeSet<_>>().len() as u64, count);
        }
    }
}
