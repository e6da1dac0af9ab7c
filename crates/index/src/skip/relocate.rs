//! Moving nodes, so that the free space between blocks becomes whole slabs (`crates/pmem/src/alloc/evacuation.rs`).

use super::{Node, Place, Skip, node_at};
use crate::latch::Stop;
use crate::selective::router::Target;
use crate::{Error, Key, Relocated};
use everleaf_pmem::{Medium, Off, Word};
use std::borrow::Borrow;

impl<K: Key + ?Sized, M: Medium, const RARE: u32> Skip<K, M, RARE> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate): a leaf is a segment here.
    pub(super) fn relocate_segments(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| self.retry(|| self.relocate_segment(key, is_leaving)))
    }

    /// Moves the nodes in the segment of a key that are to leave. Returns whether there were any, and where the next segment begins.
    fn relocate_segment(&self, key: &K, is_leaving: &dyn Fn(u64) -> bool) -> Result<(bool, Option<K::Owned>), Stop> {
        let reached = self.reach(Target::At(key), 0)?;
        let lock = reached.tower.latch.lock_from(reached.version)?;
        let moved = (|| {
            let high = self.high(reached.tower, Some(key))?;
            let (mut segment, mut has_moved) = (self.segment(reached.number, reached.tower), false);
            while let Some(place) = segment.next() {
                let place = place?;
                if !is_leaving(place.off.bytes()) {
                    continue;
                }
                segment.slot = Some(match place.slot {
                    Some(slot) => &self.replace(slot, &place)?.1.next,
                    None => {
                        let low = self.low(reached.number, reached.tower)?;
                        let (_, left_lock, slot) = self.hold_before(low.borrow(), &reached, &place)?;
                        let (off, copy) = self.replace(slot, &place)?;
                        reached.tower.set_node(off, reached.tower.levels());
                        drop(left_lock);
                        &copy.next
                    }
                });
                has_moved = true;
            }
            Ok::<_, Error>((has_moved, high))
        })();
        match moved {
            Ok((false, _)) => lock.release_unchanged(),
            _ => drop(lock),
        }
        Ok(moved?)
    }

    /// Replaces a node, to which a word of a latched segment leads, by a copy.
    fn replace(&self, slot: &Word, place: &Place<'_>) -> Result<(Off<Node>, &Node), Error> {
        let copy = self.pool.alloc::<Node>()?;
        self.fill(&copy, place.node.next.get(), place.entry()?);
        let off = self.pool.link(slot, self.pool.seal(copy));
        self.pool.retire(place.off, &self.pool.pin());
        Ok((off, node_at(&self.pool, off)?))
    }
}
