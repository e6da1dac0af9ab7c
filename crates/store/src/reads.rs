//! The keys and ranges that must not change until a transaction commits: what it has read, if it is serializable, and what it has read and merged, in any mode.
//!
//! Ranges that overlap or touch are merged: for a scan in small steps, each of which continues where the last one stopped, one is kept. A range begins with a
//! key and ends before another one. A range that begins behind a key begins with the next possible key: the same with a zero byte appended.

use crate::store::Space;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of DRAM for each key or range that a transaction keeps, besides the bytes of keys and values.
pub(crate) const ENTRY_SIZE: usize = 128;

/// The number of a namespace, and a key.
pub(crate) type At = (u32, Vec<u8>);

/// Keys and ranges that were read.
#[derive(Default)]
pub(crate) struct Reads {
    spaces: BTreeMap<u32, Arc<Space>>,
    keys: BTreeSet<At>,
    ranges: Ranges,
    /// Bytes of DRAM that the keys take, approximately.
    size_of_keys: usize,
}

/// Ranges that neither overlap nor touch: where each begins, and the key before which it ends; `None`: no end.
#[derive(Default)]
struct Ranges {
    ends: BTreeMap<At, Option<Vec<u8>>>,
    /// Bytes of DRAM that they take, approximately.
    size: usize,
}

impl Reads {
    /// Notes a key, unless all noted would then take more than `size_max` bytes; returns whether it is noted.
    pub(crate) fn note_key(&mut self, space: &Arc<Space>, key: &[u8], size_max: usize) -> bool {
        let at = (space.number, key.to_vec());
        if self.keys.contains(&at) || self.ranges.have(&at) {
            return true;
        }
        let added = ENTRY_SIZE + key.len();
        if self.size().saturating_add(added) > size_max {
            return false;
        }
        self.size_of_keys += added;
        self.keys.insert(at);
        self.note_space(space);
        true
    }

    /// Notes all keys between a lower and an upper bound.
    pub(crate) fn note_range(&mut self, space: &Arc<Space>, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) {
        self.ranges.add(space.number, low, high);
        self.note_space(space);
    }

    fn note_space(&mut self, space: &Arc<Space>) {
        self.spaces.entry(space.number).or_insert_with(|| space.clone());
    }

    /// Bytes of DRAM that all of it takes, approximately.
    pub(crate) fn size(&self) -> usize {
        self.size_of_keys + self.ranges.size
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Space, &[u8])> {
        self.keys.iter().map(|(space, key)| (&*self.spaces[space], key.as_slice()))
    }

    /// Ranges: a lower bound, and the key before which the range ends, if any.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (&Space, Bound<&[u8]>, Option<&[u8]>)> {
        self.ranges.ends.iter().map(|((space, begin), end)| (&*self.spaces[space], bound_of(begin), end.as_deref()))
    }
}

impl Ranges {
    fn have(&self, at: &At) -> bool {
        let before = self.ends.range(..=at).next_back();
        before.is_some_and(|((space, _), end)| *space == at.0 && end.as_ref().is_none_or(|end| at.1 < *end))
    }

    fn add(&mut self, space: u32, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) {
        let mut begin = match low {
            Bound::Included(key) => key,
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => Vec::new(),
        };
        let mut end = match high {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        if end.as_ref().is_some_and(|end| *end <= begin) {
            return;
        }
        // Merge it with the range that begins before it, if that reaches it, and with those that begin within it or at its end.
        let before = self.ends.range(..=(space, begin.clone())).next_back().filter(|((other, _), _)| *other == space);
        if let Some(((_, other), other_end)) = before
            && other_end.as_ref().is_none_or(|other_end| *other_end >= begin)
        {
            begin.clone_from(other);
        }
        while let Some((at, _)) = self.ends.range((space, begin.clone())..).next()
            && at.0 == space
            && end.as_ref().is_none_or(|end| at.1 <= *end)
        {
            let at = at.clone();
            let other_end = self.ends.remove(&at).flatten();
            self.size -= size_of_range(&at.1, other_end.as_deref());
            end = end.zip(other_end).map(|(end, other)| end.max(other));
        }
        self.size += size_of_range(&begin, end.as_deref());
        self.ends.insert((space, begin), end);
    }
}

fn size_of_range(begin: &[u8], end: Option<&[u8]>) -> usize {
    ENTRY_SIZE + begin.len() + end.map_or(0, <[u8]>::len)
}

/// The next possible key after `key`.
fn behind(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// The lower bound of a range that begins with `begin`, which may be longer than the longest key.
fn bound_of(begin: &[u8]) -> Bound<&[u8]> {
    match begin.split_last() {
        Some((0, key)) => Bound::Excluded(key),
        _ => Bound::Included(begin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// All keys of up to three bytes, each one of three values.
    fn keys() -> Vec<Vec<u8>> {
        let longer = |keys: &[Vec<u8>]| keys.iter().flat_map(|key| [0, 1, 255].map(|byte| [key.as_slice(), &[byte]].concat())).collect::<Vec<_>>();
        let none = vec![Vec::new()];
        let (one, two) = (longer(&none), longer(&longer(&none)));
        let three = longer(&two);
        [none, one, two, three].concat()
    }

    #[test]
    fn ranges_have_what_was_added_and_are_as_few_as_can_be() {
        let keys = keys();
        let mut random = StdRng::seed_from_u64(0x5eed);
        for round in 0..300 {
            let (mut ranges, mut added) = (Ranges::default(), Vec::new());
            for _ in 0..random.random_range(1..8) {
                let mut bound = || {
                    let key = keys[random.random_range(0..keys.len())].clone();
                    match random.random_range(0..9) {
                        0 => Bound::Unbounded,
                        1..5 => Bound::Included(key),
                        _ => Bound::Excluded(key),
                    }
                };
                let (low, high) = (bound(), bound());
                let space = u32::from(random.random_bool(0.3));
                ranges.add(space, low.clone(), high.clone());
                added.push((space, low, high));
            }
            let is_in = |(space, low, high): &(u32, Bound<Vec<u8>>, Bound<Vec<u8>>), at: &At| {
                let is_above = match low {
                    Bound::Included(low) => at.1 >= *low,
                    Bound::Excluded(low) => at.1 > *low,
                    Bound::Unbounded => true,
                };
                let is_below = match high {
                    Bound::Included(high) => at.1 <= *high,
                    Bound::Excluded(high) => at.1 < *high,
                    Bound::Unbounded => true,
                };
                *space == at.0 && is_above && is_below
            };
            for at in keys.iter().flat_map(|key| [0, 1, 2].map(|space| (space, key.clone()))) {
                assert_eq!(ranges.have(&at), added.iter().any(|range| is_in(range, &at)), "round {round}: {at:?} in {:?}, of {added:?}", ranges.ends);
            }
            let all: Vec<_> = ranges.ends.iter().collect();
            let are_apart = |pair: &[(&At, &Option<Vec<u8>>)]| pair[0].0.0 != pair[1].0.0 || pair[0].1.as_ref().is_some_and(|end| *end < pair[1].0.1);
            assert!(all.windows(2).all(are_apart), "round {round}: {all:?}");
            assert_eq!(ranges.size, all.iter().map(|((_, begin), end)| size_of_range(begin, end.as_deref())).sum::<usize>());
        }
    }
}
