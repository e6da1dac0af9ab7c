//! What a key takes, and whether keys expire: for those who watch over a store.

use crate::{Entry, Error, Namespace};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::WORD;
use std::sync::atomic::Ordering;

/// Size of an entry of an index: eight bytes of the key and a link.
const ENTRY_SIZE: usize = 2 * WORD;

impl Entry {
    /// Bytes that it takes in the pool, or will take, as what `key` holds: see [`Namespace::footprint`].
    pub fn footprint(&self, key: &[u8]) -> usize {
        Record::size_of(key.len(), self.value.len(), self.expiry_ms.is_some()) + ENTRY_SIZE
    }
}

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
