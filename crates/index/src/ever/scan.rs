//! Scans, see [`crate::scan`].

use super::Ever;
use super::directory::{Descriptors, handle};
use super::leaf::Place;
use crate::latch::Restart;
use crate::record::Record;
use crate::scan::{AHEAD, Behind, next_bound, scan_leaves, scan_target};
use crate::selective::leaf::{self, Placed, each};
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
                Ok((behind, beside)) => {
                    next.set(beside);
                    return behind;
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

    /// Reads a whole leaf in the order of its keys; what is behind it, and the way to the one beside it.
    #[expect(clippy::type_complexity, reason = "an attempt, and what it has found")]
    fn read_leaf<T: Gathered>(
        &self,
        target: Target<'_, K>,
        start: Option<Route>,
        direction: Direction,
        sorted: &mut Vec<Placed>,
        found: &mut Vec<T>,
    ) -> Result<(Result<Behind<K>, Error>, Option<Route>), Restart> {
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
        // By its hash: what is in order is searched by reading records. One that is damaged is met there.
        let sought = match target {
            Target::At(key) if is_first && !K::WHOLE => descriptor.find(wide, &self.pool, leaf, key, Place::of::<LINES>(key.token())).ok().flatten(),
            _ => None,
        };
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
        descriptor.latch().validate(version)?;
        Ok((bound.map(|next| Behind { next, sought: sought.map(|(_, value)| value) }), next))
    }

    /// Asks for the records with which a scan of a leaf begins, if nobody is at it; or for what its records are sorted by, if nobody has left their order.
    fn prefetch_records(&self, route: &Route, direction: Direction) {
        if let Ok((leaf, descriptor)) = self.leaf(route.leaf)
            && let Ok(version) = descriptor.latch().try_read()
        {
            let Some(order) = self.known.orders.at(Descriptors::number(handle(route.leaf)), version) else {
                let slots = each(descriptor.occupied::<LINES>(Wide::get()));
                return slots.filter_map(|slot| leaf.value(slot)).for_each(|value| Record::prefetch_head(&self.pool, value.get(), 0));
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
