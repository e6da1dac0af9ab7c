//! Drafts: values that a transaction has set, in the pool before it commits.
//!
//! When a transaction is given a value that is not small, it writes it to its final place, as the record that it becomes: so a transaction takes DRAM for keys
//! and small values only, and a full pool is reported at once. Only the transaction reaches a draft. A draft has the token of no batch and no previous version,
//! and may or may not be durable. When the transaction commits (`batch.rs`), the draft gets both, is flushed and is linked like any other record of a batch;
//! the value is not copied again. Otherwise (another value replaces it, the transaction rolls back to a savepoint, or ends) its block is given back when the
//! last owner of the [`Draft`] drops it.
//!
//! # Invariants
//!
//! 1. Nothing in the pool links a draft: *after a crash it is free.*
//! 2. The list in [`Drafts`] names every block that is a draft. List and blocks change together, under a stripe: so a thread that holds all stripes knows which
//!    blocks are in use though nothing reaches them.
//! 3. From the moment when its batch may be linked, a draft is a record of the batch, and is no longer in the list; if the batch is undone, it is a draft
//!    again. Both changes are made under the stripe of its key.

use crate::Error;
use crate::namespace::{Entry, Namespace, copy_value};
use crate::slots::DRAFT;
use crate::store::Shared;
use crate::stripes;
use everleaf_index::Listed;
use everleaf_index::record::{Record, Version};
use everleaf_pmem::{Off, Word, schedule};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smallest length in bytes of values that become drafts. A transaction takes some 150 bytes of DRAM for each key that it writes, so a shorter value does not
/// multiply that by much; and a single longer one has so many lines that it does not matter that a batch has more fences than a put. Smaller where all of this
/// is to be checked.
pub(crate) const SIZE_MIN: usize = if schedule::IS_BUILT_IN { 64 } else { 512 };

/// What the transactions of a store have written to the pool: links, with sizes in bytes.
#[derive(Default)]
pub(crate) struct Drafts(Mutex<BTreeMap<u64, usize>>);

impl Drafts {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Total size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.lock().values().map(|size| *size as u64).sum()
    }

    /// The links of all drafts. The caller holds all stripes.
    pub(crate) fn links(&self) -> Vec<u64> {
        self.0.lock().keys().copied().collect()
    }
}

/// A draft, given back when dropped. See the module documentation.
pub(crate) struct Draft<M: Listed> {
    shared: Arc<Shared<M>>,
    off: Off<[Word]>,
    size: usize,
    is_record: AtomicBool,
}

impl<M: Listed> Draft<M> {
    /// Writes a value to the pool.
    ///
    /// # Errors
    /// A full pool, [`Error::Halted`].
    pub(crate) fn write(namespace: &Namespace<M>, key: &[u8], value: &[u8], expiry_ms: Option<u64>) -> Result<Arc<Self>, Error> {
        let shared = &namespace.shared;
        shared.with_room(|| {
            let _stripe = shared.stripes.lock(namespace.space.number, key);
            shared.writable()?;
            let off = Record::draft(&shared.pool, key, value, Version { commit: DRAFT, expiry_ms, ..Version::default() })?;
            let size = Record::read(&shared.pool, off.link())?.size();
            shared.drafts.0.lock().insert(off.link(), size);
            Ok(Arc::new(Self { shared: shared.clone(), off, size, is_record: AtomicBool::new(false) }))
        })
    }

    pub(crate) fn off(&self) -> Off<[Word]> {
        self.off
    }

    /// The record as which it is written.
    pub(crate) fn record(&self) -> Result<Record<'_>, Error> {
        Ok(Record::read(&self.shared.pool, self.off.link())?)
    }

    /// Its content.
    pub(crate) fn entry(&self) -> Result<Entry, Error> {
        let (record, mut key, mut value) = (self.record()?, Vec::new(), Vec::new());
        record.copy_key(&mut key);
        copy_value(&record, &key, &mut value)?;
        Ok(Entry { value, expiry_ms: record.expiry_ms() })
    }

    /// From here on it may be linked, and dropping it does not give it back. The caller holds the stripe of the key.
    pub(crate) fn hand_over(&self) {
        // A checker takes the block for unreachable until this call.
        self.shared.pool.medium().released(self.off.bytes() as usize, self.size);
        self.shared.drafts.0.lock().remove(&self.off.link());
        self.is_record.store(true, Ordering::Relaxed);
    }

    /// It is durably unlinked. The caller holds the stripe of the key.
    pub(crate) fn take_back(&self) {
        self.shared.drafts.0.lock().insert(self.off.link(), self.size);
        self.is_record.store(false, Ordering::Relaxed);
    }
}

impl<M: Listed> Drop for Draft<M> {
    fn drop(&mut self) {
        if self.is_record.load(Ordering::Relaxed) {
            return;
        }
        let Shared { pool, stripes, drafts, .. } = &*self.shared;
        // If it is dropped where it should not, in a closure that decides on a write, the stripe that is held serves as well.
        let _stripe = (!stripes::are_held()).then(|| stripes.lock(0, &self.off.link().to_le_bytes()));
        drafts.0.lock().remove(&self.off.link());
        pool.retire(self.off, &pool.pin());
    }
}
