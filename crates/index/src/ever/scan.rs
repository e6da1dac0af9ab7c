//! Scans, see [`crate::scan`].

use super::Ever;
use super::directory::{Descriptors, handle};
use super::leaf::Slot;
use crate::latch::Restart;
use crate::record::Record;
use crate::scan::{AHEAD, next_bound, scan_leaves, scan_target};
use crate::selective::leaf::{self, Placed};
use crate::selective::router::{Fences, Route, Router, Target};
use crate::{Direction, Error, Key};
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Medium, probe, schedule};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// Calls `visit` for each entry from a bound on, with room for its key.
    pub(super) fn scan_entries(
        &self,
        from: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(leaf::Entry, &mut K::Owned) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        // The way to the next leaf, while it is under the same node, and that has not changed.
        let next = Cell::new(None);
        let read = |from: &Bound<K::Owned>, placed: &mut Vec<Placed>| loop {
            match self.read_leaf(scan_target(from, direction), next.take(), direction, placed) {
                Ok((fences, beside)) => {
                    next.set(beside);
                    return Ok(next_bound(fences?, direction));
                }
                Err(Restart) => schedule::spin(),
            }
        };
        let ask = || {
            let beside = next.take();
            beside.iter().for_each(|next| self.prefetch_records(next, direction));
            next.set(beside);
        };
        scan_leaves(&self.pool, from, direction, |placed: &Placed| placed.entry, read, ask, visit)
    }

    /// Reads a whole leaf in the order of its keys; its range, and the way to the one beside it.
    #[expect(clippy::type_complexity, reason = "an attempt, and what it has found")]
    fn read_leaf(
        &self,
        target: Target<'_, K>,
        start: Option<Route>,
        direction: Direction,
        placed: &mut Vec<Placed>,
    ) -> Result<(Result<Fences<K>, Error>, Option<Route>), Restart> {
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
        let fences = self.router.fences(&route)?;
        let version = version.map_err(|Restart| self.wake(route.leaf))?;
        // Integers are in the leaf, and sorted sooner than an order is read.
        let (orders, number) = (&self.known.orders, Descriptors::number(handle(route.leaf)));
        let order = if K::WHOLE { None } else { orders.at(number, version) };
        let sorted = match order {
            Some(order) => {
                placed.clear();
                for slot in order.slots() {
                    if let Some(Slot { value, .. }) = leaf.read(slot) {
                        // Of keys that are in records nobody asks for the heads.
                        placed.push(Placed { entry: leaf::Entry { head: 0, value }, slot });
                    }
                }
                Ok(())
            }
            None => {
                let sorted = self.sort(leaf, descriptor.occupied::<LINES>(Wide::get()), &fences, placed);
                if !K::WHOLE && sorted.is_ok() && descriptor.latch().validate_idle(version).is_ok() {
                    orders.leave(number, version, placed.iter().map(|placed| placed.slot));
                }
                sorted
            }
        };
        descriptor.latch().validate(version)?;
        Ok((sorted.map(|()| fences), next))
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
                let found = slot.and_then(|slot| leaf.read(slot));
                found.iter().for_each(|found| Record::prefetch(&self.pool, found.value.get()));
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
