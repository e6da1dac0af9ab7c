//! Scans, see [`crate::scan`].
//!
//! What is visited next is prefetched: all records of a leaf when it has been read, and the next leaf before those are visited.

use super::leaf::{self, LeafLayout};
use super::router::Router;
use super::{Restart, Selective};
use crate::record::Record;
use crate::scan::{next_bound, scan_leaves, scan_target, with_key};
use crate::{Direction, Error, Key, Visit};
use everleaf_pmem::{Medium, probe};
use std::ops::Bound;

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    pub(super) fn scan_leaves(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let mut start = None;
        let read = |from: &Bound<K::Owned>, entries: &mut Vec<leaf::Entry>| {
            let fences = self.read(scan_target(from, direction), start.take(), |leaf, way| {
                entries.clear();
                leaf.entries(entries);
                if !K::WHOLE {
                    entries.iter().for_each(|entry| Record::prefetch(&self.pool, entry.value.get()));
                }
                // The sort reads records if heads are equal. Its result for a disturbed leaf does not count.
                let sorted = leaf::sort::<K, M>(&self.pool, entries);
                let fences = self.router.fences(&way.route())?;
                Ok::<_, Restart>(sorted.map(|()| fences))
            })?;
            let next = next_bound(fences, direction);
            if let Some(next) = &next
                && let Ok(way) = self.router.way(scan_target(next, direction))
            {
                if let Ok((leaf, latch)) = self.leaf(way.leaf) {
                    probe::prefetch(latch);
                    probe::prefetch_lines(leaf);
                }
                start = Some(way);
            }
            Ok(next.into())
        };
        scan_leaves(&self.pool, from, direction, |entry| *entry, read, |_| {}, with_key(&self.pool, |entry| *entry, visit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrderedIndex;
    use crate::selective::router::Target;
    use crate::selective::{AnyRouter, IsleLeaf};
    use everleaf_pmem::{Hardware, Pool, PoolOptions};
    use std::num::NonZeroU64;

    /// A writer changes the leaf whenever it is read.
    #[test]
    fn who_is_outrun_keeps_writers_out() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        let tree = Selective::<u64, IsleLeaf<1>, _, _>::create(&pool, "tree", "tree", AnyRouter::<u64, 4>::olc).unwrap();
        tree.insert(&7, NonZeroU64::MIN).unwrap();
        let mut attempts = 0;
        let count = tree.read(Target::Last, None, |leaf, way| {
            attempts += 1;
            assert!(attempts < 1000, "outrun for ever");
            drop(tree.latches.of(way.leaf)?.try_lock());
            Ok(LeafLayout::<u64>::count(leaf))
        });
        assert_eq!(count, 1);
        assert!(tree.insert(&8, NonZeroU64::MIN).unwrap().is_none());
    }
}
