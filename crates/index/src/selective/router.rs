//! Routers: from a key to the leaf whose range holds it. Volatile; rebuilt from the leaves.

mod olc;

pub use olc::Olc;

use crate::Key;
pub use crate::latch::Restart;

/// Keys that are looked for together: more than a core can have requests to memory under way, and so few that what came first is still in the nearest cache
/// when the last has come.
pub const GROUP: usize = 32;

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

/// Where a search has ended, and by which version of which node.
#[derive(Default)]
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

/// A map from ranges of keys to leaves, shared by any number of threads.
pub trait Router<K: Key + ?Sized>: Send + Sync + 'static {
    /// See [`Router::neighbours`].
    type Neighbours<'a>: Neighbours<K>
    where
        Self: 'a;

    /// A router over leaves in ascending order of their lows. The first low is the lowest key that there is.
    fn build(leaves: Vec<(K::Owned, u64)>) -> Self;

    /// Finds a leaf. What comes back holds only if [`Router::validate`] says so afterwards.
    fn find(&self, target: Target<'_, K>) -> Result<Route, Restart>;

    /// Finds the leaves of at most [`GROUP`] keys at once, so that they wait for memory together. A key in whose way somebody was gets no route.
    fn find_many(&self, keys: &[&K], routes: &mut [Option<Route>]) {
        for (route, key) in routes.iter_mut().zip(keys) {
            *route = self.find(Target::At(key)).ok();
        }
    }

    /// Whether nothing has changed on the way since the route was found.
    #[track_caller]
    fn validate(&self, route: &Route) -> Result<(), Restart>;

    /// The range of the leaf, validated.
    fn fences(&self, route: &Route) -> Result<Fences<K>, Restart>;

    /// Puts `left` in the place of `old`, whose range begins at `low`, and gives the part of the range from `separator` on to `right`. The caller has latched
    /// `old`.
    fn split(&self, old: u64, left: u64, low: &K, separator: &K, right: u64);

    /// Puts `leaf` in the place of `old`, whose range begins at `low`. The caller has latched `old`.
    fn replace(&self, old: u64, leaf: u64, low: &K);

    /// Two neighbouring leaves, one of them that of `key`, which keep their places until the result is dropped. `None` when there are no two.
    fn neighbours(&self, key: &K) -> Result<Option<Self::Neighbours<'_>>, Restart>;

    /// Levels.
    fn depth(&self) -> u32;

    /// Visits all leaves in order and checks the structure. Nobody may write meanwhile.
    fn check(&self, visit: &mut dyn FnMut(&Fences<K>, u64)) -> Result<(), &'static str>;
}

/// Two neighbouring leaves under a lock. See [`Router::neighbours`].
pub trait Neighbours<K: Key + ?Sized> {
    /// The two leaves.
    fn leaves(&self) -> [u64; 2];
    /// The leaf before the two, if it is under the same lock; it must not be looked for in another way.
    fn before(&self) -> Option<u64>;
    /// Their ranges.
    fn fences(&self) -> [Fences<K>; 2];
    /// Puts `leaf` in the place of both.
    fn join(self, leaf: u64);
    /// Changes nothing.
    fn release(self);
}
