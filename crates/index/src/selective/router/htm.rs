//! The default router with transactions of the processor, as LB+-Tree and FPTree have them: a lookup goes down and reads the leaf in one transaction, a writer
//! goes down and latches the leaf in one.
//!
//! In a transaction no version is looked at again: nothing changes on the way, or the transaction does not take place. That a latch is free is looked at, once
//! for each node and for the leaf: so whoever holds one is not disturbed, and whoever takes one later makes the transaction abort. What a transaction stores is
//! the lock of the leaf, nothing else; the leaf is changed, flushed and fenced outside.
//!
//! All else goes by latches, as in the default router, whose nodes these are: what transactions do not get done, where the processor has none, lookups of many
//! keys at once, scans, and changes of the nodes themselves. (LB+-Tree's writers lock the full nodes above the leaf in the same transaction. Here a full node
//! is split on the way down, so that no more than two are ever locked.)

use super::node::Entry;
use super::siblings::Siblings;
use super::{Fences, Olc, Route, Router, Target, Way};
use crate::Key;
use crate::latch::Restart;
use everleaf_pmem::htm::{Statistics, Transactions};

/// See the module documentation.
pub struct Htm<K: ?Sized, const FANOUT: usize> {
    nodes: Olc<K, FANOUT>,
    transactions: Transactions,
}

impl<K: Key + ?Sized, const FANOUT: usize> Htm<K, FANOUT> {
    /// Over leaves in ascending order of their lows; see [`Olc::build`].
    pub fn build(leaves: &[Entry<K>]) -> Self {
        Self { nodes: Olc::build(leaves), transactions: Transactions::default() }
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Router<K> for Htm<K, FANOUT> {
    type Neighbours<'a> = Siblings<'a, K, FANOUT>;

    #[inline(always)]
    #[track_caller]
    fn transaction<T>(&self, act: impl FnMut() -> Result<T, Restart>) -> Option<T> {
        self.transactions.run(act)
    }

    #[inline(always)]
    fn find_within(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        self.nodes.find_within(target)
    }

    fn transactions(&self) -> Statistics {
        self.transactions.statistics()
    }

    #[inline(always)]
    fn way(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart> {
        self.nodes.way(target)
    }

    #[inline(always)]
    fn take_up(&self, route: &Route) -> Result<Way<'_>, Restart> {
        self.nodes.take_up(route)
    }

    fn find_many(&self, keys: &[&K], routes: &mut [Option<Route>]) {
        self.nodes.find_many(keys, routes);
    }

    fn approach(&self, key: &K) -> [Option<u64>; 2] {
        self.nodes.approach(key)
    }

    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart> {
        self.nodes.fences(route)
    }

    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) {
        Router::split(&self.nodes, old, left, low, separator, right);
    }

    fn replace(&self, old: u64, leaf: u64, low: &K) {
        self.nodes.replace(old, leaf, low);
    }

    fn neighbours(&self, key: &K) -> Result<Option<Siblings<'_, K, FANOUT>>, Restart> {
        self.nodes.neighbours(key)
    }

    fn depth(&self) -> u32 {
        self.nodes.depth()
    }

    fn check(&self, visit: &mut dyn FnMut(&Fences<K>, u64)) -> Result<(), &'static str> {
        self.nodes.check(visit)
    }
}
