//! Moving nodes, so that the free space between blocks becomes whole slabs (`crates/pmem/src/alloc/evacuation.rs`).

use super::{Bz, Stop};
use crate::selective::router::Target;
use crate::{Error, Key, Relocated};
use everleaf_pmem::Medium;
use std::borrow::Borrow;

impl<K: Key + ?Sized, M: Medium> Bz<K, M> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate).
    pub(super) fn relocate_nodes(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| {
            // The nodes above a leaf that begin where it does are moved with it, so each is visited once.
            let (levels, low, high) = self.retry(|| {
                let trail = self.trail(Target::At(key))?;
                let begin = trail.iter().rposition(|step| step.at > 0).map_or(0, |last| last + 1);
                Ok((trail.len() - begin, self.low(&trail)?, self.high(&trail)?))
            })?;
            let mut has_moved = false;
            for height in 0..levels {
                has_moved |= self.retry(|| self.relocate_one(low.borrow(), height, is_leaving))?;
            }
            Ok((has_moved, high))
        })
    }

    /// Moves the node at a height to which a key belongs, if it, or the record of one of its fences, is to leave. Returns whether it was.
    fn relocate_one(&self, key: &K, height: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<bool, Stop> {
        let trail = self.trail(Target::At(key))?;
        let Some(depth) = trail.len().checked_sub(height + 1) else { return Ok(false) };
        let node = &trail[depth].node;
        let mut is_moved = is_leaving(node.off.bytes());
        for at in 1..if node.is_leaf { 0 } else { node.count } {
            is_moved |= K::read_fence(&*self.pool, node.fence(at)?.1.get())?.1.is_some_and(|(block, _)| is_leaving(block.bytes()));
        }
        if is_moved {
            self.rewrite(&trail[..=depth], is_leaving)?;
        }
        Ok(is_moved)
    }
}
