//! Putting low fences elsewhere, so that what is free between blocks becomes whole slabs (`crates/pmem/src/alloc/evacuation.rs`). Extents stay where they are:
//! each has slabs of its own.
//!
//! The leaf is latched, as by whoever else looks at the low fence of one that lives. Its word in the directory changes from a link of one record to a link of
//! another with the same key, which is durable before: one store. A crash leaves the one or the other. Then the old record is retired.

use super::Ever;
use crate::latch::Restart;
use crate::selective::router::{Router, Target};
use crate::{Error, Key, Relocated};
use everleaf_pmem::{Medium, schedule};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Release;

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate).
    pub(super) fn relocate_fences(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| self.relocate_fence(key, is_leaving))
    }

    /// Moves the low fence of the leaf of `key`, if it is to leave; whether it has, and where the next leaf begins.
    fn relocate_fence(&self, key: &K, is_leaving: &dyn Fn(u64) -> bool) -> Result<(bool, Option<K::Owned>), Error> {
        let (number, lock) = loop {
            let locked = self.router.find(Target::At(key)).and_then(|route| {
                let latch = self.leaf(route.leaf)?.1.latch();
                let version = latch.read_idle();
                self.router.validate(&route)?;
                Ok((route.leaf, latch.lock_from(version.map_err(|Restart| self.wake(route.leaf))?)?))
            });
            match locked {
                Ok(locked) => break locked,
                Err(_) => schedule::spin(),
            }
        };
        let high = self.router.fences_of(key).high;
        let word = &self.directory.entry(&self.pool, number).low;
        let moved = K::read_fence(&self.pool, word.get()).and_then(|(low, fence)| match fence.filter(|(fence, _)| is_leaving(fence.bytes())) {
            Some((fence, _)) => {
                let (new, record) = low.borrow().fence(&self.pool)?;
                if let Some(record) = record {
                    self.pool.seal(record).release();
                }
                self.pool.store(word, new, Release);
                // persist-equivalent(fence drop): to one thread, which fences many times before the old record's block is given out again.
                self.pool.persist(word);
                self.pool.retire(fence, &self.pool.pin());
                Ok(true)
            }
            None => Ok(false),
        });
        // What readers look at is as it was.
        lock.release_unchanged();
        Ok((moved?, high))
    }
}
