//! Scans, see [`crate::scan`].

use super::Ever;
use super::directory::{Descriptors, handle};
use super::leaf::Place;
use crate::latch::Restart;
use crate::record::Record;
use crate::scan::{AHEAD, LeafRead, next_bound, scan_leaves, scan_target};
use crate::selective::leaf::{self, Placed};
use crate::selective::router::{Route, Router, Target};
use crate::{Direction, Error, Key};
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Medium, probe, schedule};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};

/// What a scan gathers of a leaf.
pub(super) trait Gathered: Sized {
    /// That of a slot, of whose key nobody asks for the head, because it is in the record.
    fn of(slot: usize, value: NonZeroU64) -> Self;

    /// Moves what has been sorted to where nothing is.
    fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>);

    fn entry(&self) -> leaf::Entry;
}

impl Gathered for Placed {
    #[inline(always)]
    fn of(slot: usize, value: NonZeroU64) -> Self {
        Self { entry: leaf::Entry { head: 0, value }, slot }
    }

    fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>) {
        std::mem::swap(sorted, to);
    }

    #[inline(always)]
    fn entry(&self) -> leaf::Entry {
        self.entry
    }
}

/// The value alone, for who reads keys himself, where they are in records.
impl Gathered for NonZeroU64 {
    #[inline(always)]
    fn of(_: usize, value: NonZeroU64) -> Self {
        value
    }

    fn take(sorted: &mut Vec<Placed>, to: &mut Vec<Self>) {
        to.extend(sorted.iter().map(|placed| placed.entry.value));
    }

    #[inline(always)]
    fn entry(&self) -> leaf::Entry {
        leaf::Entry { head: 0, value: *self }
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// Calls `visit` for the entries from a bound on, as [`scan_leaves`] does.
    pub(super) fn scan_entries<T: Gathered>(
        &self,
        from: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&[T], usize, &mut K::Owned) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        // The way to the next leaf, while it is under the same node, and that has not changed.
        let next = Cell::new(None);
        let mut sorted = Vec::new();
        let read = |from: &Bound<K::Owned>, found: &mut Vec<T>| loop {
            match self.read_leaf(scan_target(from, direction), next.take(), direction, &mut sorted, found) {
                Ok((leaf, beside)) => {
                    next.set(beside);
                    return leaf;
                }
                Err(Restart) => schedule::spin(),
            }
        };
        let ask = || {
            let beside = next.take();
            beside.iter().for_each(|next| self.prefetch_records(next, direction));
            next.set(beside);
        };
        scan_leaves(&self.pool, from, direction, T::entry, read, ask, visit)
    }

    /// Reads a whole leaf in the order of its keys; what a scan learns of it, and the way to the one beside it.
    #[expect(clippy::type_complexity, reason = "an attempt, and what it has found")]
    fn read_leaf<T: Gathered>(
        &self,
        target: Target<'_, K>,
        start: Option<Route>,
        direction: Direction,
        sorted: &mut Vec<Placed>,
        found: &mut Vec<T>,
    ) -> Result<(Result<LeafRead<K>, Error>, Option<Route>), Restart> {
        let is_first = start.is_none();
        let route = match (start, target) {
            (Some(route), _) => route,
            (None, Target::At(key)) => self.router.seek(Wide::get(), key)?.route(),
            (None, beside) => self.router.find(beside)?,
        };
        let (leaf, descriptor) = self.leaf(route.leaf)?;
        let next = self.router.beside(&route, direction);
        // Most scans go on.
        if is_first {
            self.prefetch(&route);
        }
        next.iter().for_each(|next| self.prefetch(next));
        // A leaf of integers is done sooner than the next one comes.
        if K::WHOLE
            && let Some(after) = next.as_ref().and_then(|next| self.router.beside(next, direction))
        {
            self.prefetch(&after);
        }
        let version = descriptor.latch().read();
        let Ok(version) = version else {
            // Not on a way that was out of date when the latch was looked at.
            self.router.validate(&route)?;
            return Err(self.wake(route.leaf));
        };
        found.clear();
        let wide = Wide::get();
        // Integers are in the leaf, and sorted sooner than an order is read.
        let (orders, number) = (&self.known.orders, Descriptors::number(handle(route.leaf)));
        let order = if K::WHOLE { None } else { orders.at(number, version) };
        let bound = match order {
            Some(order) => {
                found.extend(order.slots().filter_map(|slot| Some(T::of(slot, leaf.value(slot)?))));
                Ok(self.router.bound_behind(&route, direction)?)
            }
            None => {
                let fences = self.router.fences(&route)?;
                let outcome = self.sort(leaf, descriptor.occupied::<LINES>(wide), &fences, sorted);
                if !K::WHOLE && outcome.is_ok() && descriptor.latch().validate_idle(version).is_ok() {
                    orders.leave(number, version, sorted.iter().map(|placed| placed.slot));
                }
                T::take(sorted, found);
                outcome.map(|()| next_bound(fences, direction))
            }
        };
        // By its hash. What is damaged is met in the search by order.
        let sought = match target {
            Target::At(key) | Target::Below(key) if is_first && !K::WHOLE => {
                descriptor.find(wide, &self.pool, leaf, key, Place::of::<LINES>(key.token())).ok().flatten().map(|(_, value)| value)
            }
            _ => None,
        };
        descriptor.latch().validate(version)?;
        Ok((bound.map(|next| LeafRead { next, sought }), next))
    }

    /// Asks for the records with which a scan of a leaf begins, if nobody is at it; or for the beginnings of all, if nobody has left their order.
    fn prefetch_records(&self, route: &Route, direction: Direction) {
        if !K::WHOLE
            && let Ok((leaf, descriptor)) = self.leaf(route.leaf)
            && let Ok(version) = descriptor.latch().try_read()
        {
            let Some(order) = self.known.orders.at(Descriptors::number(handle(route.leaf)), version) else {
                return self.prefetch_heads(leaf, descriptor.occupied::<LINES>(Wide::get()), 0);
            };
            let mut slots = order.slots();
            for _ in 0..AHEAD {
                let slot = if direction == Direction::Forward { slots.next() } else { slots.next_back() };
                slot.and_then(|slot| leaf.value(slot)).iter().for_each(|value| Record::prefetch(&self.pool, value.get()));
            }
        }
    }

    /// Asks for all of a leaf.
    fn prefetch(&self, route: &Route) {
        if let Ok((leaf, descriptor)) = self.leaf(route.leaf) {
            probe::prefetch(descriptor);
            probe::prefetch_lines(leaf);
            if !K::WHOLE {
                self.known.orders.prefetch(Descriptors::number(handle(route.leaf)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrderedIndex;
    use crate::record::Version;
    use everleaf_pmem::{Hardware, Pool, PoolOptions};
    use std::collections::BTreeMap;

    /// Of keys that are there and others, in leaves of whose order nobody knows, and again when it is known.
    #[test]
    fn a_scan_begins_where_its_bound_is() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 8 << 20, ..PoolOptions::default() }).unwrap();
        let index = Ever::<[u8], Hardware, 14, 68, 112>::create(&pool, "index", "ever").unwrap();
        let key = |number: u32| number.to_be_bytes();
        let count = if cfg!(miri) { 70 } else { 1_000 };
        let mut model = BTreeMap::new();
        for number in (0..count).map(|at| at * 619 % count * 2 + 1) {
            let link = pool.seal(Record::write(&pool, &key(number), b"", Version::default()).unwrap()).release().link();
            let value = NonZeroU64::new(link).unwrap();
            assert_eq!(index.insert(&key(number), value).unwrap(), None);
            model.insert(key(number), value);
        }
        let first = |direction, from: Bound<&[u8]>| {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            index.scan(from, direction, &mut |key, _| {
                keys.push(<[u8; 4]>::try_from(key).unwrap());
                if keys.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            index.scan_values(from, direction, &mut |links, count| {
                values.extend_from_slice(&links[..count.min(3 - values.len())]);
                if values.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok::<_, Error>((keys, values))
        };
        for _ in 0..2 {
            for bound in (0..=count * 2).map(key) {
                for from in [Bound::Included(bound), Bound::Excluded(bound)] {
                    let ascending = model.range((from, Bound::Unbounded)).take(3).map(|(key, value)| (*key, *value)).unzip();
                    let descending = model.range((Bound::Unbounded, from)).rev().take(3).map(|(key, value)| (*key, *value)).unzip();
                    let from = from.as_ref().map(|key| &key[..]);
                    assert_eq!(first(Direction::Forward, from).unwrap(), ascending, "{from:?}");
                    assert_eq!(first(Direction::Reverse, from).unwrap(), descending, "{from:?}");
                }
            }
        }
    }
}
