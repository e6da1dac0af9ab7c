//! What a key takes, and whether keys expire: for those who watch over a store.

use crate::{Error, Namespace};
use everleaf_index::Listed;
use everleaf_pmem::WORD;
use std::sync::atomic::Ordering;

/// Size of an entry of an index: eight bytes of the key and a link.
const ENTRY_SIZE: usize = 2 * WORD;

impl<M: Listed> Namespace<M> {
    /// Bytes that `key` takes in the pool, if it is present: its record, and its entry in the index. Not what blocks and leaves leave free, nor older versions.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn footprint(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        self.view().find(key, |found| {
            found.check()?;
            Ok(found.record.size() + ENTRY_SIZE)
        })
    }

    /// Whether a key that expires may be there: whether it has held one since the store was opened, or the last sweep that has found none.
    pub fn may_expire(&self) -> bool {
        self.space.expiring.load(Ordering::Relaxed) != 0
    }
}
