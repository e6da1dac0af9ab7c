//! Scans: leaf by leaf. Each leaf is found through the router by its fences, or beside the one before, and read while nothing in it moves.

use crate::record::Record;
use crate::selective::leaf::Entry;
use crate::selective::router::{Fences, Target};
use crate::{Direction, Error, Key, Visit};
use everleaf_pmem::{Medium, Pool};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};

/// Number of records that a scan of keys in records fetches ahead. A larger number fetches more in vain at the end of a scan.
pub const AHEAD: usize = 8;
/// Entries of a leaf for which room is reserved from the beginning.
const ENTRIES: usize = 64;
/// Steps of a binary search whose records are prefetched together, whichever way it goes.
const STEPS_AHEAD: usize = 3;

/// What a scan finds behind a leaf.
pub(crate) enum Behind<K: Key + ?Sized> {
    /// Nothing.
    End,
    /// What is beyond the [`next_bound`].
    From(Bound<K::Owned>),
    /// A leaf to which the reader knows the way. If the way is stale when it is taken, the scan continues behind the last visited key, which is in a record. So
    /// the fence between the two leaves, a string far from everything else, need not be looked up.
    Known,
}

impl<K: Key + ?Sized> From<Option<Bound<K::Owned>>> for Behind<K> {
    fn from(next: Option<Bound<K::Owned>>) -> Self {
        next.map_or(Self::End, Self::From)
    }
}

/// What a scan learns of a leaf, besides its entries.
pub(crate) struct LeafRead<K: Key + ?Sized> {
    /// Whether it lies beside the leaf that was read before, and the range of neither has changed since. Then all of it is beyond what was visited, and no key
    /// is read to check that, which might be damaged.
    pub is_beside: bool,
    pub behind: Behind<K>,
    /// The value of the key at the bound from which the scan goes on, if it was found there. The search for the first entry starts with it.
    pub sought: Option<NonZeroU64>,
}

impl<K: Key + ?Sized> From<Option<Bound<K::Owned>>> for LeafRead<K> {
    fn from(next: Option<Bound<K::Owned>>) -> Self {
        Self { is_beside: false, behind: next.into(), sought: None }
    }
}

/// Visits the entries from a bound on. `visit` gets some entries of a leaf, in order, how many of them it is to visit, and room for a key. It is called three
/// times for a leaf, and prefetches the record that is [`AHEAD`] behind each that it visits. `read` collects the leaf with which a scan begins at a bound, or
/// continues: what stands for its entries, ascending, and what is behind it. `ask` is called when twice [`AHEAD`] entries or fewer are left of the leaf read
/// last, to prefetch the next leaf; and when [`AHEAD`] or fewer are left, to prefetch the first records of the next leaf. If a scan ends sooner, nothing was
/// prefetched in vain.
#[inline(always)]
pub(crate) fn scan_leaves<K: Key + ?Sized, M: Medium, T>(
    pool: &Pool<M>,
    from: Bound<&K>,
    direction: Direction,
    entry: impl Fn(&T) -> Entry,
    mut read: impl FnMut(&Bound<K::Owned>, &mut Vec<T>) -> Result<LeafRead<K>, Error>,
    ask: impl Fn(usize),
    mut visit: impl FnMut(&[T], usize, &mut K::Owned) -> Result<ControlFlow<()>, Error>,
) -> Result<(), Error> {
    let mut from: Bound<K::Owned> = from.map(K::to_owned);
    let (mut entries, mut key) = (Vec::with_capacity(ENTRIES), K::Owned::default());
    let mut is_first = true;
    loop {
        // Records that the leaf links stay readable while the guard lives.
        let _guard = (!K::WHOLE).then(|| pool.pin());
        let LeafRead { is_beside, behind, sought } = read(&from, &mut entries)?;
        if direction == Direction::Reverse {
            entries.reverse();
        }
        let prefetch = |at: usize| {
            if let Some(found) = entries.get(at).filter(|_| !K::WHOLE) {
                Record::prefetch(pool, entry(found).value.get());
            }
        };
        // In order, all entries beyond the bound come after all others.
        let is_sought = is_first && from != Bound::Unbounded;
        let known = sought.and_then(|value| entries.iter().position(|one| entry(one).value == value));
        let (mut start, mut end) = (known.unwrap_or(0), if is_beside { 0 } else { entries.len() });
        let mut middle = match known {
            // It is the first, or the next one is.
            Some(at) => (at + usize::from(matches!(from, Bound::Excluded(_)))).min(end - 1),
            None if is_sought => end / 2,
            None => 0,
        };
        let mut steps = 0;
        while start < end {
            if is_sought && known.is_none() && !K::WHOLE && steps % STEPS_AHEAD == 0 {
                each_middle(start, end, STEPS_AHEAD, &prefetch);
            }
            let Entry { head, value } = entry(&entries[middle]);
            K::read(pool, head, value, &mut key)?;
            if is_beyond(&key, &from, direction) {
                end = middle
            } else {
                start = middle + 1
            }
            middle = start + (end - start) / 2;
            steps += 1;
        }
        (start..start + AHEAD).for_each(prefetch);
        let mut found = &entries[start..];
        for left in [2 * AHEAD, AHEAD] {
            let (before, rest) = found.split_at(found.len().saturating_sub(left));
            if visit(found, before.len(), &mut key)?.is_break() {
                return Ok(());
            }
            ask(left);
            found = rest;
        }
        if visit(found, found.len(), &mut key)?.is_break() {
            return Ok(());
        }
        match behind {
            Behind::End => return Ok(()),
            Behind::From(bound) => from = bound,
            Behind::Known => {
                // Without any entry the scan is still where it was.
                if let Some(Entry { head, value }) = entries[start..].last().map(&entry) {
                    K::read(pool, head, value, &mut key)?;
                    from = Bound::Excluded(match from {
                        Bound::Included(before) | Bound::Excluded(before) => std::mem::replace(&mut key, before),
                        Bound::Unbounded => std::mem::take(&mut key),
                    });
                }
            }
        }
        is_first = false;
    }
}

/// A function that calls `visit` with the key of each entry that [`scan_leaves`] visits.
pub(crate) fn with_key<'s, K: Key + ?Sized, M: Medium, T: 's>(
    pool: &'s Pool<M>,
    entry: impl Fn(&T) -> Entry + 's,
    visit: &'s mut Visit<'_, K>,
) -> impl FnMut(&[T], usize, &mut K::Owned) -> Result<ControlFlow<()>, Error> + 's {
    move |found, count, key| {
        for (at, one) in found[..count].iter().enumerate() {
            if let Some(ahead) = found.get(at + AHEAD).filter(|_| !K::WHOLE) {
                Record::prefetch(pool, entry(ahead).value.get());
            }
            let Entry { head, value } = entry(one);
            K::read(pool, head, value, key)?;
            if visit((*key).borrow(), value).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Calls `visit` with each index that a binary search of a range may look at in its first steps.
fn each_middle(start: usize, end: usize, steps: usize, visit: &impl Fn(usize)) {
    if start < end && steps > 0 {
        let middle = start + (end - start) / 2;
        visit(middle);
        each_middle(start, middle, steps - 1, visit);
        each_middle(middle + 1, end, steps - 1, visit);
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

/// The bound with which a scan continues behind a leaf, if there is more.
pub(crate) fn next_bound<K: Key + ?Sized>(leaf: Fences<K>, direction: Direction) -> Option<Bound<K::Owned>> {
    let Fences { low, high } = leaf;
    bound_behind::<K>(direction, || low, || high)
}

/// [`next_bound`], but only the fence that is needed is built.
pub(crate) fn bound_behind<K: Key + ?Sized>(
    direction: Direction,
    low: impl FnOnce() -> K::Owned,
    high: impl FnOnce() -> Option<K::Owned>,
) -> Option<Bound<K::Owned>> {
    match direction {
        Direction::Forward => high().map(Bound::Included),
        Direction::Reverse => Some(low()).filter(|low| *low.borrow() != *K::LOWEST).map(Bound::Excluded),
    }
}

/// Whether a downward scan that continued from `from` advances behind a leaf that begins at `low`: that is below `from`, or nothing is left.
pub(crate) fn gets_on_below<K: Key + ?Sized>(from: &Bound<K::Owned>, low: &K::Owned) -> bool {
    match from {
        Bound::Unbounded => true,
        Bound::Included(bound) => low <= bound,
        Bound::Excluded(bound) => low < bound || low == bound && *low.borrow() == *K::LOWEST,
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
