//! Moving blocks, so that free room between blocks becomes whole slabs (`crates/pmem/src/alloc/evacuation.rs`): a copy, and the word that leads to it.

use super::form::Form;
use super::{Child, Pf, Stop};
use crate::{Direction, Error, Key, Relocated};
use everleaf_pmem::Medium;
use std::borrow::Borrow;
use std::ops::{Bound, RangeInclusive};

impl<K: Key + ?Sized, M: Medium, F: Form> Pf<K, M, F> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate).
    pub(super) fn relocate_arrays(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| {
            let from = Bound::Included(key.to_owned());
            let first = self.retry(|| {
                let Some(sought) = self.seek(&from, Direction::Forward)? else { return Ok(None) };
                Ok(Some((sought.array.validated(F::sample::<K, M>(&self.pool, &sought.array))?, sought.depth())))
            })?;
            let Some((sample, depth)) = first else {
                // There may be no array at all, but there is a top.
                return Ok((self.retry(|| self.relocate_one(key, 0, is_leaving))?, None));
            };
            let mut has_moved = false;
            for number in self.retry(|| self.those_that_begin(sample.borrow()))? {
                has_moved |= self.retry(|| self.relocate_one(sample.borrow(), number, is_leaving))?;
            }
            let mut next = F::block_size::<K>().map(|_| 0);
            while let Some(from) = next {
                next = self.retry(|| self.relocate_record(sample.borrow(), from, is_leaving))?;
                has_moved |= next.is_some();
            }
            Ok((has_moved, self.key_behind(sample.borrow(), depth)))
        })
    }

    /// The numbers of the blocks on the way of a key, the top being 0, that have no array before that of the key. An array is taken together with the nodes
    /// that begin with it, so each is met once.
    fn those_that_begin(&self, key: &K) -> Result<RangeInclusive<usize>, Stop> {
        let trail = self.trail(key, |_| false)?;
        let mut first = 0;
        for (number, (node, step)) in trail.nodes.iter().enumerate() {
            if self.nearest_step(node, None, Direction::Forward)?.map(|lowest| lowest.at) != step.map(|step| step.at) {
                first = number + 1;
            }
        }
        Ok(first..=trail.nodes.len())
    }

    /// Moves the first record that is to leave, from a word of the array of a key on. Returns the word behind it, if there was one. If the array is divided
    /// meanwhile, some records wait for the next time.
    fn relocate_record(&self, key: &K, from: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Option<usize>, Stop> {
        let Some((_, array)) = self.walk(key)?.end else { return Ok(None) };
        for at in F::live(array.side).filter(|at| *at >= from) {
            let payload = array.validated(F::payload::<K>(&array, at))?;
            if F::block_of::<K>(payload).is_some_and(|block| is_leaving(block.bytes())) {
                let (key, _) = array.validated(F::entry::<K, M>(&self.pool, &array, at))?;
                let value = array.validated(F::value::<K, M>(&self.pool, payload))?;
                self.substitute(&array, at, key.borrow(), payload, value)?;
                return Ok(Some(at + 1));
            }
        }
        Ok(None)
    }

    /// Moves a block on the way of a key, if it is to leave. Returns whether it was.
    fn relocate_one(&self, key: &K, number: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<bool, Stop> {
        let trail = self.trail(key, |_| false)?;
        let Some(above) = number.checked_sub(1) else {
            let top = &trail.nodes[0].0;
            let is_leaving = is_leaving(top.off.bytes());
            if is_leaving {
                self.replace_top(top, |built| built.copy(top.words))?;
            }
            return Ok(is_leaving);
        };
        let Some((node, Some(step))) = trail.nodes.get(above) else { return Ok(false) };
        if !is_leaving(step.child.bytes()) {
            return Ok(false);
        }
        match self.follow(node, *step)? {
            Child::Inner(inner) => {
                let lock = self.replace((inner.latch, inner.version), (node, *step), |built| built.copy(inner.words))?;
                self.give_up_inner(&inner, lock);
            }
            Child::Array(array) => {
                let lock = self.replace((array.latch, array.version), (node, *step), |built| built.copy(array.words))?;
                self.give_up_array(&array, lock);
            }
        }
        Ok(true)
    }
}
