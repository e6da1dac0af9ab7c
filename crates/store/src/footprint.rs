//! The space that a key takes, and the number of keys that expire: for monitoring.

use crate::{Entry, Error, Namespace};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::WORD;
use std::sync::atomic::Ordering;

/// Size of an entry of an index: eight bytes of the key and a link.
const ENTRY_SIZE: usize = 2 * WORD;

impl Entry {
    /// Bytes that it takes, or would take, in the pool as the content of `key`: see [`Namespace::footprint`].
    pub fn footprint(&self, key: &[u8]) -> usize {
        Record::size_of(key.len(), self.value.len(), self.expiry_ms.is_some()) + ENTRY_SIZE
    }
}

impl<M: Listed> Namespace<M> {
    /// Bytes that `key` takes in the pool, if present: its record and its entry in the index, but no older versions and no unused parts of blocks and leaves.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn footprint(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        self.view().find(key, |found| {
            found.check()?;
            Ok(found.record.size() + ENTRY_SIZE)
        })
    }

    /// About how many keys expire: those that the last sweep has met, plus one for each later write of a key that expires, even of the same key. After a start
    /// it is 1 until the first sweep is through, since the number is unknown. 0 is exact.
    pub fn count_expiring(&self) -> u64 {
        let (expiring, uncounted) = (self.space.expiring.load(Ordering::Relaxed), self.space.uncounted.load(Ordering::Relaxed));
        match expiring {
            0 => 0,
            _ => expiring.saturating_add_signed(uncounted.saturating_neg()).clamp(1, self.count().max(1)),
        }
    }
}
