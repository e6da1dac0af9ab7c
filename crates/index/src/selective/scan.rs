//! Scans: leaf by leaf, each read undisturbed as a whole, found through the router by its fences.
//!
//! What is visited next is asked for before: all records of a leaf when it has been read, and the next leaf before those are visited.

use super::leaf::{self, LeafLayout};
use super::router::{Fences, Router, Target};
use super::{Restart, Selective};
use crate::record::Record;
use crate::{Direction, Error, Key, Visit};
use everleaf_pmem::{Medium, probe};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    pub(super) fn scan_leaves(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let mut from: Bound<K::Owned> = from.map(K::to_owned);
        let (mut entries, mut key) = (Vec::with_capacity(L::CAPACITY), K::Owned::default());
        let mut start = None;
        loop {
            // Records that the leaf links stay readable while the guard lives.
            let _guard = self.pool.pin();
            let fences = self.read(scan_target(&from, direction), start.take(), |leaf, route| {
                entries.clear();
                leaf.entries(&mut entries);
                if !K::WHOLE {
                    entries.iter().for_each(|entry| Record::prefetch(&self.pool, entry.value.get()));
                }
                // The sort reads records by heads that are equal; what it says of a disturbed leaf does not count.
                let sorted = leaf::sort::<K, M>(&self.pool, &mut entries);
                let fences = self.router.fences(route)?;
                Ok::<_, Restart>(sorted.map(|()| fences))
            })?;
            if direction == Direction::Reverse {
                entries.reverse();
            }
            let next = next_bound(fences, direction);
            if let Some(next) = &next
                && let Ok(route) = self.router.find(scan_target(next, direction))
            {
                if let Ok((leaf, latch)) = self.leaf(route.leaf) {
                    probe::prefetch(latch);
                    probe::prefetch_lines(leaf);
                }
                start = Some(route);
            }
            for entry in &entries {
                K::read(&self.pool, entry.head, entry.value, &mut key)?;
                if is_beyond(&key, &from, direction) && visit(key.borrow(), entry.value) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            match next {
                Some(bound) => from = bound,
                None => return Ok(()),
            }
        }
    }
}

/// The leaf with which a scan begins, or goes on.
pub(crate) fn scan_target<K: Key + ?Sized>(from: &Bound<K::Owned>, direction: Direction) -> Target<'_, K> {
    match (from, direction) {
        (Bound::Included(key), _) | (Bound::Excluded(key), Direction::Forward) => Target::At(key.borrow()),
        (Bound::Excluded(key), Direction::Reverse) => Target::Below(key.borrow()),
        (Bound::Unbounded, Direction::Forward) => Target::Below(K::LOWEST),
        (Bound::Unbounded, Direction::Reverse) => Target::Last,
    }
}

/// The bound with which a scan goes on behind a leaf, if there is more.
pub(crate) fn next_bound<K: Key + ?Sized>(leaf: Fences<K>, direction: Direction) -> Option<Bound<K::Owned>> {
    match direction {
        Direction::Forward => leaf.high.map(Bound::Included),
        Direction::Reverse => (*leaf.low.borrow() != *K::LOWEST).then_some(Bound::Excluded(leaf.low)),
    }
}

/// Whether the scan, having begun at `from`, visits `key`.
pub(crate) fn is_beyond<T: Ord>(key: &T, from: &Bound<T>, direction: Direction) -> bool {
    match (from, direction) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(bound), Direction::Forward) => key >= bound,
        (Bound::Excluded(bound), Direction::Forward) => key > bound,
        (Bound::Included(bound), Direction::Reverse) => key <= bound,
        (Bound::Excluded(bound), Direction::Reverse) => key < bound,
    }
}
