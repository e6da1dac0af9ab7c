//! Scans: leaf by leaf, each read undisturbed as a whole, found through the router by its fences.

use super::Ever;
use super::leaf::Leaf;
use super::structure::Placed;
use crate::latch::Restart;
use crate::selective::router::{Fences, Router, Target};
use crate::selective::{is_beyond, next_bound, scan_target};
use crate::{Direction, Error, Key, Visit};
use everleaf_pmem::{Medium, schedule};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    pub(super) fn scan_leaves(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let mut from: Bound<K::Owned> = from.map(K::to_owned);
        let (mut placed, mut key) = (Vec::with_capacity(Leaf::<LINES>::CAPACITY), K::Owned::default());
        loop {
            // Records that the leaf links stay readable while the guard lives.
            let _guard = self.pool.pin();
            let fences = loop {
                match self.read_leaf(scan_target(&from, direction), &mut placed) {
                    Ok(fences) => break fences?,
                    Err(Restart) => schedule::spin(),
                }
            };
            if direction == Direction::Reverse {
                placed.reverse();
            }
            for Placed { entry, .. } in &placed {
                K::read(&self.pool, entry.head, entry.value, &mut key)?;
                if is_beyond(&key, &from, direction) && visit(key.borrow(), entry.value) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            match next_bound(fences, direction) {
                Some(bound) => from = bound,
                None => return Ok(()),
            }
        }
    }

    /// Reads a whole leaf in the order of its keys; its range.
    fn read_leaf(&self, target: Target<'_, K>, placed: &mut Vec<Placed>) -> Result<Result<Fences<K>, Error>, Restart> {
        let route = self.router.find(target)?;
        let (leaf, descriptor) = self.leaf(route.leaf)?;
        everleaf_pmem::probe::prefetch_lines(leaf);
        let version = descriptor.latch.read()?;
        let fences = self.router.fences(&route)?;
        let sorted = self.sort(leaf, descriptor.occupied::<LINES>(), &fences, placed);
        descriptor.latch.validate(version)?;
        Ok(sorted.map(|()| fences))
    }
}
