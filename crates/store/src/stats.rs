//! Statistics of a store.

use crate::store::Space;
use crate::{Namespace, Store};
use everleaf_index::Listed;
use everleaf_pmem::Info;

/// Statistics of a store, taken without stopping readers or writers.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Every namespace of the pool, by name.
    pub namespaces: Vec<NamespaceStats>,
    /// The pool's own account: sizes in bytes, persistence domain, how it was found.
    pub pool: Info,
}

/// How full a pool is. See [`Store::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Number of bytes in use, or kept at hand.
    pub used: usize,
    /// Number of bytes to which the pool can grow: [`Options::size_max`](crate::Options::size_max), or less if the file system has less room now.
    pub limit: usize,
}

impl Fill {
    /// Whether less than a tenth is left: time to make room, in the pool or on its disk, or to open the pool with a higher
    /// [`Options::size_max`](crate::Options::size_max). A full pool refuses writes; reads, deletes and clears go on. While a snapshot or a transaction (which
    /// has a snapshot) is open, a delete leaves a tombstone. Tombstones may use half of the reserve (a thirty-second of `size_max`, 2 MiB at most); when that
    /// is used up, deletes are refused, too, until the snapshot ends.
    pub fn is_near_limit(&self) -> bool {
        self.used > self.limit - self.limit / 10
    }
}

/// Statistics of a namespace.
#[derive(Clone, Debug)]
pub struct NamespaceStats {
    /// Its name.
    pub name: String,
    /// Name of its index.
    pub index: &'static str,
    /// Number of keys.
    pub keys: u64,
    /// Number of leaves of the index.
    pub leaves: u64,
    /// Number of times that a leaf was divided since the index was opened or cleared.
    pub splits: u64,
    /// Size of all leaves in bytes.
    pub leaf_bytes: u64,
    /// Levels of the index, leaves included.
    pub depth: u32,
}

impl<M: Listed> Store<M> {
    /// Statistics of the store, taken without stopping readers or writers.
    pub fn stats(&self) -> Stats {
        Stats { namespaces: self.existing().iter().filter_map(|space| numbers(space)).collect(), pool: self.shared.pool.info() }
    }

    /// How full the pool is: in a moment, without reading it.
    pub fn fill(&self) -> Fill {
        let pool = &self.shared.pool;
        let used = pool.used();
        Fill { used, limit: used + pool.room() }
    }
}

impl<M: Listed> Namespace<M> {
    /// Numbers of this namespace alone, so cheap that they can be asked for after each operation; `None` before the first write to it.
    pub fn stats(&self) -> Option<NamespaceStats> {
        numbers(&self.space)
    }
}

fn numbers(space: &Space) -> Option<NamespaceStats> {
    let index = space.index.load_full()?;
    let everleaf_index::Stats { leaves, splits, leaf_bytes, depth, .. } = index.tree.stats();
    Some(NamespaceStats { name: space.name.clone(), index: index.kind, keys: space.count(), leaves, splits, leaf_bytes, depth })
}
