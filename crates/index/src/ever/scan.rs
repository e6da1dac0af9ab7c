//! Scans, see [`crate::scan`].

use super::Ever;
use super::directory::{Descriptors, handle};
use crate::latch::Restart;
use crate::record::Record;
use crate::scan::{AHEAD, next_bound, scan_leaves, scan_target};
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
                Ok((bound, beside)) => {
                    next.set(beside);
                    return bound;
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

    /// Reads a whole leaf in the order of its keys; the [`next_bound`] behind it, and the way to the one beside it.
    #[expect(clippy::type_complexity, reason = "an attempt, and what it has found")]
    fn read_leaf<T: Gathered>(
        &self,
        target: Target<'_, K>,
        start: Option<Route>,
        direction: Direction,
        sorted: &mut Vec<Placed>,
        found: &mut Vec<T>,
    ) -> Result<(Result<Option<Bound<K::Owned>>, Error>, Option<Route>), Restart> {
        let is_first = start.is_none();
        let route = match (start, target) {
            (Some(route), _) => route,
            (None, Target::At(key)) => self.router.seek(Wide::get(), key)?.route(),
            (None, beside) => self.router.find(beside)?,
        };
        let (leaf, descriptor) = self.leaf(route.leaf)?;
        let next = self.router.beside(&route, direction);
        // Most scans go on. Two leaves behind the one that is read are asked for.
        if is_first {
            self.prefetch(&route);
            next.iter().for_each(|next| self.prefetch(next));
        }
        if let Some(after) = next.as_ref().and_then(|next| self.router.beside(next, direction)) {
            self.prefetch(&after);
        }
        let version = descriptor.latch().read();
        let Ok(version) = version else {
            // Not on a way that was out of date when the latch was looked at.
            self.router.validate(&route)?;
            return Err(self.wake(route.leaf));
        };
        found.clear();
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
                let outcome = self.sort(leaf, descriptor.occupied::<LINES>(Wide::get()), &fences, sorted);
                if !K::WHOLE && outcome.is_ok() && descriptor.latch().validate_idle(version).is_ok() {
                    orders.leave(number, version, sorted.iter().map(|placed| placed.slot));
                }
                T::take(sorted, found);
                outcome.map(|()| next_bound(fences, direction))
            }
        };
        descriptor.latch().validate(version)?;
        Ok((bound, next))
    }

    /// Asks for the records with which a scan of a leaf begins, if somebody has left its order and nobody is at it.
    fn prefetch_records(&self, route: &Route, direction: Direction) {
        if let Ok((leaf, descriptor)) = self.leaf(route.leaf)
            && let Ok(version) = descriptor.latch().try_read()
            && let Some(order) = self.known.orders.at(Descriptors::number(handle(route.leaf)), version)
        {
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
