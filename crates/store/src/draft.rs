//! Drafts: values that a transaction has set, in the pool before it commits.
//!
//! A value that is not small is written where it is to stay, as the record that it becomes, when the transaction is given it: so a transaction takes DRAM for
//! keys and small values only, and a pool that is full says so at once. Nobody but the transaction reaches a draft. It has the token of no batch and no
//! previous version, and may be durable or not. When the transaction commits (`batch.rs`), it gets both, is written back and is linked as any other record of
//! a batch; the value is not copied again. Whatever else becomes of it, be it that another value takes its place, that the transaction goes back to a savepoint
//! or ends, its block is given back: when the last one who may want it lets go of the [`Draft`].
//!
//! # Invariants
//!
//! 1. Nothing in the pool links a draft: *after a crash it is free.*
//! 2. The list of [`Drafts`] names every block that is one. It changes together with what it names, under a stripe: so whoever holds all stripes knows what is
//!    reachable by nothing, and yet in use.
//! 3. From the moment when its batch may be linked, a draft is a record of the batch, and is no more on the list; it is a draft again if that is undone. Both
//!    under the stripe of its key.

use crate::Error;
use crate::namespace::{Entry, Namespace, copy_value};
use crate::slots::DRAFT;
use crate::store::Shared;
use everleaf_index::Listed;
use everleaf_index::record::{Record, Version};
use everleaf_pmem::{Off, Word, schedule};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Length in bytes of values from which on they are drafts. A transaction takes some 150 bytes of DRAM for each key that it writes, so a value that is shorter
/// does not multiply that by much; and a single one that is longer has so many lines that the fences of a batch, instead of those of a put, do not matter.
/// Less, where all of it is to be checked.
pub(crate) const SIZE_MIN: usize = if schedule::IS_BUILT_IN { 64 } else { 512 };

/// What the transactions of a store have written to the pool: links, and sizes in bytes.
#[derive(Default)]
pub(crate) struct Drafts(Mutex<BTreeMap<u64, usize>>);

impl Drafts {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Number of bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.lock().values().map(|size| *size as u64).sum()
    }

    /// The links of all of them. The caller holds all stripes.
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

    /// As what it is written.
    pub(crate) fn record(&self) -> Result<Record<'_>, Error> {
        Ok(Record::read(&self.shared.pool, self.off.link())?)
    }

    /// What it holds.
    pub(crate) fn entry(&self) -> Result<Entry, Error> {
        let (record, mut key, mut value) = (self.record()?, Vec::new(), Vec::new());
        record.copy_key(&mut key);
        copy_value(&record, &key, &mut value)?;
        Ok(Entry { value, expiry_ms: record.expiry_ms() })
    }

    /// It may be linked from here on, and is not given back. The caller holds the stripe of the key.
    pub(crate) fn hand_over(&self) {
        // A checker takes it for unreachable until it hears of this.
        self.shared.pool.medium().released(self.off.bytes() as usize, self.size);
        self.shared.drafts.0.lock().remove(&self.off.link());
        self.is_record.store(true, Ordering::Relaxed);
    }

    /// It is durably not linked any more. The caller holds the stripe of the key.
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
        let _stripe = stripes.lock(0, &self.off.link().to_le_bytes());
        drafts.0.lock().remove(&self.off.link());
        pool.retire(self.off, &pool.pin());
    }
}
