//! A router that is chosen when a tree is created or opened. So every leaf runs on every router, and is compiled once.

use super::siblings::Siblings;
use super::{Fences, Olc, Packed, Route, Router, Target, Way};
use crate::latch::Restart;
use crate::{Direction, Key, Rebuilds};
use everleaf_pmem::htm::Statistics;

/// One of the routers.
#[expect(clippy::large_enum_variant, reason = "there is one a tree, and a lookup should not have to follow a pointer to it")]
pub(crate) enum AnyRouter<K: ?Sized, const FANOUT: usize> {
    /// See [`Olc`].
    Olc(Olc<K, FANOUT>),
    /// See [`Packed`].
    Packed(Packed<K, FANOUT>),
}

impl<K: Key + ?Sized, const FANOUT: usize> AnyRouter<K, FANOUT> {
    /// Over leaves in ascending order of their lows; see [`Olc::build`].
    pub(crate) fn olc(leaves: &[(K::Owned, u64)]) -> Self {
        Self::Olc(Olc::build(leaves))
    }

    /// Over leaves in ascending order of their lows; see [`Olc::build`]. Without shortcuts.
    pub(crate) fn plain(leaves: &[(K::Owned, u64)]) -> Self {
        Self::Olc(Olc::build(leaves).without_shortcuts())
    }

    /// Over leaves in ascending order of their lows; see [`Olc::build`]. With transactions.
    pub(crate) fn htm(leaves: &[(K::Owned, u64)]) -> Self {
        Self::Olc(Olc::build(leaves).with_transactions())
    }

    /// Over leaves in ascending order of their lows; see [`Packed::build`].
    pub(crate) fn packed(leaves: &[(K::Owned, u64)]) -> Self {
        Self::Packed(Packed::build(leaves))
    }
}

/// Does the same with either router.
macro_rules! whichever {
    ($any:expr, $router:ident => $act:expr) => {
        match $any {
            AnyRouter::Olc($router) => $act,
            AnyRouter::Packed($router) => $act,
        }
    };
}

impl<K: Key + ?Sized, const FANOUT: usize> Router<K> for AnyRouter<K, FANOUT> {
    type Neighbours<'a> = Siblings<'a, K, FANOUT>;

    #[inline(always)]
    #[track_caller]
    fn transaction<T>(&self, act: impl FnMut() -> Result<T, Restart>) -> Option<T> {
        whichever!(self, router => router.transaction(act))
    }

    #[inline(always)]
    fn find_within(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        whichever!(self, router => router.find_within(target))
    }

    fn transactions(&self) -> Statistics {
        whichever!(self, router => router.transactions())
    }

    #[inline(always)]
    fn way(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart> {
        whichever!(self, router => router.way(target))
    }

    #[inline(always)]
    fn take_up(&self, route: &Route) -> Result<Way<'_>, Restart> {
        whichever!(self, router => router.take_up(route))
    }

    fn find_many<'a>(&'a self, keys: &[&K], found: impl FnMut(usize, Way<'a>)) {
        whichever!(self, router => router.find_many(keys, found));
    }

    fn approach(&self, key: &K) -> [Option<u64>; 2] {
        whichever!(self, router => router.approach(key))
    }

    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart> {
        whichever!(self, router => router.fences(route))
    }

    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) {
        whichever!(self, router => router.split(old, left, low, separator, right));
    }

    fn replace(&self, old: u64, leaf: u64, low: &K) {
        whichever!(self, router => router.replace(old, leaf, low));
    }

    fn populate(&self, old: u64, leaves: Vec<(K::Owned, u64)>) {
        whichever!(self, router => router.populate(old, leaves));
    }

    fn neighbours(&self, key: &K, side: Direction) -> Result<Option<Siblings<'_, K, FANOUT>>, Restart> {
        whichever!(self, router => router.neighbours(key, side))
    }

    fn is_sparse(&self) -> bool {
        whichever!(self, router => router.is_sparse())
    }

    fn compact(&self) -> bool {
        whichever!(self, router => router.compact())
    }

    fn depth(&self) -> u32 {
        whichever!(self, router => router.depth())
    }

    fn rebuilds(&self) -> Rebuilds {
        whichever!(self, router => router.rebuilds())
    }

    fn check(&self, visit: &mut dyn FnMut(&Fences<K>, u64)) -> Result<(), &'static str> {
        whichever!(self, router => router.check(visit))
    }
}
