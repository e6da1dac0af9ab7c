//! How the leaves of a tree split and merge: which of them change, and what the list looks like in between.

mod divided;
mod replaced;

pub use divided::Divided;
pub use replaced::Replaced;
pub(super) use replaced::flush;
pub(crate) use replaced::{are_worth_merging, is_getting_sparse};

use super::leaf::{LeafLayout, Pending};
use super::router::{Restart, Router};
use super::{Held, Selective};
use crate::counter::Counter;
use crate::latch::Patience;
use crate::{Direction, Error, Key};
use everleaf_pmem::Medium;
use std::borrow::Borrow;

/// How often a merge is tried that nobody will try later. After a fifth of these, whoever is in the way waits for a device, and one try in eight sleeps before
/// the next one: many times as long as a device takes.
const PATIENCE: usize = 1000;

/// One way to split and merge.
pub trait Structure<K: Key + ?Sized, L: LeafLayout<K>> {
    /// Whether a leaf keeps its low fence, and may leave out of its heads the bytes that all keys of its range share. If not, recovery finds the ranges by the
    /// keys that are there, and takes empty leaves out of the list.
    const FENCED: bool;

    /// Makes room for a change of a key, by splitting its leaf or otherwise.
    ///
    /// # Errors
    /// A full or damaged pool; the leaf is then as before.
    fn make_room<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, pending: Pending<'_, K>, held: Held<'_, L>) -> Result<Room, Error>;

    /// Whether a removal that leaves `count` of `capacity` entries in a leaf is a reason to try [`Structure::merge`].
    fn is_sparse(count: usize, capacity: usize) -> bool;

    /// Removes the only entry of the leaf of `key` together with the leaf. Does nothing and returns the leaf if somebody is in the way, or if leaves are not
    /// removed like that.
    fn remove_last<'a, R: Router<K>, M: Medium>(_tree: &'a Selective<K, L, R, M>, _key: &K, held: Held<'a, L>) -> Result<(), Held<'a, L>> {
        Err(held)
    }

    /// Merges the leaf of `key` with the [neighbour](Router::neighbours) on a side, if that is worthwhile and nobody is in the way. Returns whether it did.
    fn merge<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, key: &K, side: Direction) -> Result<bool, Restart>;
}

/// How an attempt to make room for a change has ended.
pub enum Room {
    /// There is room now, for whatever comes first.
    Made,
    /// The change has been made on the way, and is durable.
    Applied,
    /// Somebody was in the way: nothing has changed.
    Prevented,
}

/// Calls `merge` for a leaf in which a removal has left this many entries, with the neighbour behind it and, if they do not merge, with the one before: where
/// keys are removed in ascending order, that is the sparse one. If somebody is in the way, this does not wait, because a later removal tries again. But if
/// nothing is left, there is no later removal.
#[cold]
pub(crate) fn merge_sparse(left: usize, mut merge: impl FnMut(Direction) -> Result<bool, Restart>) {
    let mut attempts = if left == 0 { PATIENCE } else { 1 };
    let mut patience = Patience::default();
    let mut merge_either = || match merge(Direction::Forward) {
        Ok(true) => Ok(true),
        // Whoever is in the way there need not be in the way here.
        ahead => match merge(Direction::Reverse) {
            Ok(true) => Ok(true),
            behind => ahead.and(behind),
        },
    };
    while merge_either().is_err() && attempts > 1 {
        attempts -= 1;
        patience.wait();
    }
}

/// Calls `merge` for the leaf of each key and the one behind it, from the lowest on, and again for what two have become.
pub(crate) fn merge_each<K: Key + ?Sized>(leaves: &Counter, router: &impl Router<K>, mut merge: impl FnMut(&K)) {
    let mut low = Some(K::LOWEST.to_owned());
    while let Some(key) = low {
        let (before, fences) = (leaves.get(), router.fences_of(key.borrow()));
        merge(key.borrow());
        low = if leaves.get() < before { Some(key) } else { fences.high };
    }
}

/// Merges leaves that may be left when all keys were removed. Two of them need not be under one node of the router, so `sweep` goes through all, repeatedly.
pub(crate) fn merge_all(leaves: &Counter, keys: &Counter, mut sweep: impl FnMut()) {
    let mut in_vain = 0;
    while leaves.get() > 1 && keys.get() == 0 && in_vain < 8 {
        let before = leaves.get();
        sweep();
        in_vain = if leaves.get() < before { 0 } else { in_vain + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latch::Locked;
    use crate::selective::router::Target;
    use crate::selective::{AnyRouter, IsleLeaf, LbLeaf};
    use crate::{OrderedIndex, Write};
    use everleaf_pmem::schedule::{self, Scheduler, Step};
    use everleaf_pmem::{Hardware, Pool, PoolOptions};
    use parking_lot::Mutex;
    use std::num::NonZeroU64;
    use std::panic::Location;
    use std::sync::Arc;

    /// Holds a leaf until somebody waits.
    struct InTheWay(Mutex<Option<Locked<'static>>>);

    impl Scheduler for InTheWay {
        fn before(&self, step: Step, _: &'static Location<'static>) {
            if step == Step::Wait {
                drop(self.0.lock().take());
            }
        }
    }

    /// No merge was tried after that of its last removal.
    #[test]
    fn a_leaf_that_was_emptied_beside_one_that_somebody_had_stayed() {
        if schedule::IS_BUILT_IN {
            empty_beside_another::<IsleLeaf<1>>();
            empty_beside_another::<LbLeaf<2, 1>>();
        }
    }

    fn empty_beside_another<L: LeafLayout<u64>>() {
        for (is_last, is_batch) in [(false, false), (false, true), (true, false), (true, true)] {
            let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
            let tree = Selective::<u64, L, _, _>::create(&pool, "tree", "tree", AnyRouter::<u64, 4>::olc).unwrap();
            let tree: &'static _ = Box::leak(Box::new(tree));
            let keys = (0..).take_while(|key| tree.stats().leaves < 2 && tree.insert(key, NonZeroU64::MIN).unwrap().is_none()).count() as u64;
            let leaf_of = |key: &u64| tree.router.find(Target::At(key)).unwrap().leaf;
            let [emptied, other] = if is_last { [keys - 1, 0] } else { [0, keys - 1] }.map(|key| leaf_of(&key));
            let other = tree.latches.of(other).unwrap().try_lock().unwrap();
            let mut mine: Vec<u64> = (0..keys).filter(|key| leaf_of(key) == emptied).collect();
            let last = mine.pop().unwrap();
            mine.iter().for_each(|key| assert!(tree.remove(key).unwrap().is_some()));
            let scheduled = schedule::enter(Arc::new(InTheWay(Mutex::new(Some(other)))));
            match is_batch {
                true => tree.apply(&[(&last, Write::Remove)], &mut Vec::new()).unwrap(),
                false => assert!(tree.remove(&last).unwrap().is_some()),
            }
            drop(scheduled);
            assert_eq!(tree.check().unwrap().leaves, 1, "is_last {is_last}, is_batch {is_batch}");
        }
    }
}
