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

    /// About how many keys expire: those that the last sweep has come by, and one for each write of a key that expires since, be it the same key. After a start
    /// 1 until the first sweep is through, as nobody knows. 0 is exact.
    pub fn count_expiring(&self) -> u64 {
        let (expiring, uncounted) = (self.space.expiring.load(Ordering::Relaxed), self.space.uncounted.load(Ordering::Relaxed));
        match expiring {
            0 => 0,
            _ => expiring.saturating_add_signed(uncounted.saturating_neg()).clamp(1, self.count().max(1)),
        }
    }
}
