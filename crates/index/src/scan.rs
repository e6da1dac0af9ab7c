//! Scans: leaf by leaf, each read undisturbed as a whole, found through the router by its fences.

use crate::record::Record;
use crate::selective::leaf::Entry;
use crate::selective::router::{Fences, Target};
use crate::{Direction, Error, Key, Visit};
use everleaf_pmem::{Medium, Pool};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

/// Number of records that are under way, where keys are in records.
const AHEAD: usize = 8;

/// Visits the keys from a bound on. `read` gathers the leaf with which a scan begins at a bound, or goes on: what stands for its entries, ascending, and the
/// [`next_bound`] behind it.
#[inline(always)]
pub(crate) fn scan_leaves<K: Key + ?Sized, M: Medium, T>(
    pool: &Pool<M>,
    from: Bound<&K>,
    direction: Direction,
    entry: impl Fn(&T) -> Entry,
    mut read: impl FnMut(&Bound<K::Owned>, &mut Vec<T>) -> Result<Option<Bound<K::Owned>>, Error>,
    visit: &mut Visit<'_, K>,
) -> Result<(), Error> {
    let mut from: Bound<K::Owned> = from.map(K::to_owned);
    let (mut entries, mut key) = (Vec::new(), K::Owned::default());
    loop {
        // Records that the leaf links stay readable while the guard lives.
        let _guard = (!K::WHOLE).then(|| pool.pin());
        let next = read(&from, &mut entries)?;
        if direction == Direction::Reverse {
            entries.reverse();
        }
        let read = |at: usize, key: &mut K::Owned| {
            let Entry { head, value } = entry(&entries[at]);
            K::read(pool, head, value, key).map(|()| value)
        };
        // In order, all that is beyond the bound is behind all that is not; in most leaves it is everything.
        let (mut start, mut end, mut middle) = (0, entries.len(), 0);
        while start < end {
            read(middle, &mut key)?;
            if is_beyond(&key, &from, direction) {
                end = middle
            } else {
                start = middle + 1
            }
            middle = start + (end - start) / 2;
        }
        let prefetch = |at: usize| {
            if !K::WHOLE
                && let Some(found) = entries.get(at)
            {
                Record::prefetch(pool, entry(found).value.get());
            }
        };
        (start..start + AHEAD).for_each(prefetch);
        for at in start..entries.len() {
            prefetch(at + AHEAD);
            let value = read(at, &mut key)?;
            if visit(key.borrow(), value) == ControlFlow::Break(()) {
                return Ok(());
            }
        }
        match next {
            Some(bound) => from = bound,
            None => return Ok(()),
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
fn is_beyond<T: Ord>(key: &T, from: &Bound<T>, direction: Direction) -> bool {
    match (from, direction) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(bound), Direction::Forward) => key >= bound,
        (Bound::Excluded(bound), Direction::Forward) => key > bound,
        (Bound::Included(bound), Direction::Reverse) => key <= bound,
        (Bound::Excluded(bound), Direction::Reverse) => key < bound,
    }
}
