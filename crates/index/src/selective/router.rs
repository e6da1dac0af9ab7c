//! Routers: from a key to the leaf whose range holds it. Volatile; rebuilt from the leaves.

mod any;
mod node;
mod olc;
mod packed;
mod siblings;

pub(crate) use any::AnyRouter;
pub use olc::Olc;
pub use packed::Packed;
pub use siblings::Siblings;

pub use crate::latch::Restart;
use crate::latch::{Latch, until_done};
use crate::{Direction, Key, Rebuilds};
use everleaf_pmem::htm::Statistics;
use std::borrow::Borrow;

/// Keys that are looked up together: more than a core can have requests to memory in flight, and so few that what came first is still in the nearest cache when
/// the last has come.
pub const GROUP: usize = 32;

/// Children of a node: seven parts, each as many as two vectors compare. See `node.rs`.
pub const FANOUT: usize = 112;

/// What to look for.
pub enum Target<'a, K: ?Sized> {
    /// The leaf that this key belongs to.
    At(&'a K),
    /// The leaf of the keys just below this one.
    Below(&'a K),
    /// The leaf of the largest keys.
    Last,
}

impl<K: ?Sized> Clone for Target<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Target<'_, K> {}

/// Where a search has ended, and by which version of which node. It is valid if `validate` says so when what it leads to has been read.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    pub(crate) leaf: u64,
    latch: &'a Latch,
    version: u64,
    node: u32,
    slot: usize,
}

impl Way<'_> {
    /// Whether nothing has changed on the way since it was found. Nothing has while somebody appends to the node: he merges two leaves, and locks it to say so.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn validate(&self) -> Result<(), Restart> {
        self.latch.validate(self.version)
    }

    /// The way, to be taken up later.
    #[inline(always)]
    pub(crate) fn route(&self) -> Route {
        Route { leaf: self.leaf, node: self.node, version: self.version, slot: self.slot }
    }
}

/// A [`Way`] without a reference, to be taken up later.
#[derive(Clone, Copy, Default)]
pub struct Route {
    /// The leaf.
    pub leaf: u64,
    pub(crate) node: u32,
    pub(crate) version: u64,
    pub(crate) slot: usize,
}

/// The range of a leaf: `low <= key < high`.
#[derive(Debug)]
pub struct Fences<K: Key + ?Sized> {
    /// Lowest key that belongs to the leaf.
    pub low: K::Owned,
    /// Lowest key that no longer does; `None` for the last leaf.
    pub high: Option<K::Owned>,
}

impl<K: Key + ?Sized> Fences<K> {
    /// Number of leading bytes that all keys of the range share.
    pub(crate) fn skip(&self) -> usize {
        self.low.borrow().shared_up_to(self.high.as_ref().map(Borrow::borrow))
    }
}

/// Makes a router over leaves in ascending order of their lows. The first low is the lowest key that there is.
pub type Build<K, R> = fn(&[(<K as ToOwned>::Owned, u64)]) -> R;

/// A map from ranges of keys to leaves, shared by any number of threads.
pub trait Router<K: Key + ?Sized>: Send + Sync + 'static {
    /// See [`Router::neighbours`].
    type Neighbours<'a>: Neighbours<K>
    where
        Self: 'a;

    /// Finds a leaf.
    fn way(&self, target: Target<'_, K>) -> Result<Way<'_>, Restart>;

    /// Takes up a way again.
    fn take_up(&self, route: &Route) -> Result<Way<'_>, Restart>;

    /// Finds a leaf. The result is valid only if [`Router::validate`] says so afterwards.
    #[inline(always)]
    fn find(&self, target: Target<'_, K>) -> Result<Route, Restart> {
        self.way(target).map(|way| way.route())
    }

    /// Runs `act` as one transaction of the processor, in which the router is asked by [`Router::find_within`]. `None` if the transaction has not taken place:
    /// then nothing has happened.
    #[inline(always)]
    #[track_caller]
    fn transaction<T>(&self, _act: impl FnMut() -> Result<T, Restart>) -> Option<T> {
        None
    }

    /// Finds a leaf, within a transaction. Nothing needs to be validated, but somebody may hold the latch of the leaf.
    #[inline(always)]
    fn find_within(&self, _target: Target<'_, K>) -> Result<Route, Restart> {
        Err(Restart)
    }

    /// How transactions have fared.
    fn transactions(&self) -> Statistics {
        Statistics::default()
    }

    /// Finds the leaves of at most [`GROUP`] keys at once, so that they wait for memory together. Calls `found` for each, in any order, but not for a key if
    /// somebody was in its way.
    fn find_many<'a>(&'a self, keys: &[&K], mut found: impl FnMut(usize, Way<'a>)) {
        for (at, key) in keys.iter().enumerate() {
            if let Ok(way) = self.way(Target::At(key)) {
                found(at, way);
            }
        }
    }

    /// Whether nothing has changed on the way since the route was found.
    #[inline(always)]
    #[track_caller]
    fn validate(&self, route: &Route) -> Result<(), Restart> {
        self.take_up(route)?.validate()
    }

    /// Prefetches the memory that changes when the leaf of `key` is split or merged. Returns the leaves beside it that are at hand.
    fn approach(&self, _key: &K) -> [Option<u64>; 2] {
        [None; 2]
    }

    /// The range of the leaf, validated.
    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart>;

    /// The range of the leaf of `key`. The caller has latched that leaf, so the range does not change.
    fn fences_of(&self, key: &K) -> Fences<K> {
        until_done(|| self.fences(&self.find(Target::At(key))?))
    }

    /// Replaces `old`, whose range begins at `low`, by `left`, and gives the part of the range from `separator` on to `right`. The caller has latched `old`.
    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64);

    /// Replaces `old`, whose range begins at `low`, by `leaf`. The caller has latched `old`.
    fn replace(&self, old: u64, leaf: u64, low: &K);

    /// Gives the range of `old`, the only leaf, to leaves in ascending order of their lows, the first of which is the lowest key. The caller has latched `old`.
    fn populate(&self, old: u64, leaves: Vec<(K::Owned, u64)>) {
        // From the last to the first, so that the latched leaf keeps the range that is not given away yet. With the last part, it gives up its place.
        for (number, (low, leaf)) in leaves.iter().enumerate().skip(1).rev() {
            let left = if number == 1 { leaves[0].1 } else { old };
            self.split(old, left, K::LOWEST, low.borrow(), *leaf);
        }
        if leaves.len() == 1 {
            self.replace(old, leaves[0].1, K::LOWEST);
        }
    }

    /// The leaf of `key` and its neighbour on one side, which keep their places until the result is dropped. `None` if it has none there, under the same node.
    fn neighbours(&self, key: &K, side: Direction) -> Result<Option<Self::Neighbours<'_>>, Restart>;

    /// Whether many leaves are alone under their nodes, and would have neighbours if [`Router::compact`] were called.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Gives a sparse router a denser form. Does nothing and returns false if another thread is doing so. Others may use it meanwhile.
    fn compact(&self) -> bool {
        false
    }

    /// Number of levels.
    fn depth(&self) -> u32;

    /// How its nodes were rebuilt, all at once.
    fn rebuilds(&self) -> Rebuilds {
        Rebuilds::default()
    }

    /// Visits all leaves in order and checks the structure. Nobody may write meanwhile.
    fn check(&self, visit: &mut dyn FnMut(&Fences<K>, u64)) -> Result<(), &'static str>;
}

/// Two neighbouring leaves that keep their places. See [`Router::neighbours`].
pub trait Neighbours<K: Key + ?Sized> {
    /// The two leaves.
    fn leaves(&self) -> [u64; 2];
    /// The leaf before the two, if it keeps its place, too; then it must not be looked for in another way.
    fn before(&self) -> Option<u64>;
    /// Their ranges.
    fn fences(&self) -> [Fences<K>; 2];
    /// Replaces both by `leaf`. Whoever looks for it finds it when `release` is called, which releases the latches of both.
    fn join(self, leaf: u64, release: impl FnOnce());
    /// Changes nothing.
    fn release(self);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Splits and joins ranges at random; a leaf's number stands for the leaf.
    fn against_model<K: Key + ?Sized>(key: impl Fn(u64) -> K::Owned) {
        for build in [AnyRouter::<K, 4>::olc, AnyRouter::packed, AnyRouter::htm] {
            router_against_model(build, &key);
        }
        for build in [AnyRouter::<K, FANOUT>::olc, AnyRouter::packed] {
            router_against_model(build, &key);
        }
    }

    fn router_against_model<K: Key + ?Sized, R: Router<K>>(build: Build<K, R>, key: impl Fn(u64) -> K::Owned) {
        let router = build(&[(key(0), 1)]);
        let mut model = BTreeMap::from([(key(0), 1u64)]);
        let (mut state, mut next, sides) = (7u64, 2, [Direction::Forward, Direction::Reverse]);
        for step in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = key((state >> 33) % 1000);
            let (low, leaf) = model.range::<K::Owned, _>(..=at.clone()).next_back().map(|(low, leaf)| (low.clone(), *leaf)).unwrap();
            let route = router.find(Target::At(at.borrow())).unwrap();
            assert_eq!(route.leaf, leaf);
            if at != low && (step / 1000) % 2 == 0 {
                Router::split(&router, leaf, next, low.borrow(), at.borrow(), next + 1);
                model.insert(low, next);
                model.insert(at, next + 1);
                next += 2;
            } else if let Some(pair) = router.neighbours(at.borrow(), sides[step as usize % 2]).unwrap() {
                let [left, right] = pair.fences();
                assert_eq!(left.high.as_ref(), Some(&right.low));
                assert_eq!(pair.leaves(), [&left.low, &right.low].map(|low| *model.get::<K::Owned>(low).unwrap()));
                pair.join(next, || ());
                model.remove::<K::Owned>(&right.low);
                model.insert(left.low, next);
                next += 1;
            }
            if step % 100 == 0 {
                let mut found = Vec::new();
                router.check(&mut |fences, leaf| found.push((fences.low.clone(), leaf))).unwrap();
                assert_eq!(found, model.clone().into_iter().collect::<Vec<_>>());
                let rebuilt = build(&found);
                let mut again = Vec::new();
                rebuilt.check(&mut |fences, leaf| again.push((fences.low.clone(), leaf))).unwrap();
                assert_eq!(again, found);
                let populated = build(&[(key(0), 1)]);
                populated.populate(1, found.clone());
                again.clear();
                populated.check(&mut |fences, leaf| again.push((fences.low.clone(), leaf))).unwrap();
                assert_eq!((again, populated.depth()), (found, rebuilt.depth()));
            }
        }
    }

    #[test]
    fn integers_route_like_a_model() {
        against_model::<u64>(|n| n * 3);
    }

    #[test]
    fn byte_strings_route_like_a_model() {
        against_model::<[u8]>(|n| if n == 0 { Vec::new() } else { format!("user:{:05}:{}", n / 10, "x".repeat((n % 10) as usize)).into_bytes() });
    }

    #[test]
    fn byte_strings_of_several_families_route_like_a_model() {
        let families = ["", "media:image:", "media:image:x", "user:profile:"];
        against_model::<[u8]>(|n| if n == 0 { Vec::new() } else { format!("{}{n:04}", families[n as usize % families.len()]).into_bytes() });
    }
}
