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
use crate::{Error, Key};
use everleaf_pmem::Medium;

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

    /// Removes the only entry of the leaf of `key` together with the leaf; gives that back, and has done nothing, if somebody is in the way, or leaves do not
    /// go like that.
    fn remove_last<'a, R: Router<K>, M: Medium>(_tree: &'a Selective<K, L, R, M>, _key: &K, held: Held<'a, L>) -> Result<(), Held<'a, L>> {
        Err(held)
    }

    /// Merges the leaf of `key` with a neighbour, if that is worth it and nobody is in the way. Nothing is owed: a later removal tries again.
    fn merge<R: Router<K>, M: Medium>(tree: &Selective<K, L, R, M>, key: &K) -> Result<(), Restart>;
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
