//! The gate in front of every persistent index: it lets writes through as long as the pool takes them and the index has not been closed, and acknowledges them
//! only if their fences have succeeded.

use crate::{Direction, Error, Key, OrderedIndex, Relocated, Stats, Visit, VisitValues, Write};
use everleaf_pmem::{Medium, Pool};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// See the module documentation.
pub(crate) struct Gated<I, M: Medium> {
    index: I,
    pool: Arc<Pool<M>>,
    is_closed: AtomicBool,
}

impl<I, M: Medium> Gated<I, M> {
    pub(crate) fn new(pool: &Arc<Pool<M>>, index: I) -> Self {
        Self { index, pool: pool.clone(), is_closed: AtomicBool::new(false) }
    }

    /// Runs a write unless the pool or the index refuses writes.
    #[inline(always)]
    fn acknowledged<T>(&self, write: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.pool.writable()?;
        if self.is_closed.load(Relaxed) {
            return Err(everleaf_pmem::Error::Closed.into());
        }
        let result = write()?;
        self.pool.writable()?;
        Ok(result)
    }
}

impl<K: Key + ?Sized, I: OrderedIndex<K>, M: Medium> OrderedIndex<K> for Gated<I, M> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.index.get(key)
    }

    fn get_many(&self, keys: &[&K], values: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.index.get_many(keys, values)
    }

    #[inline(always)]
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        self.acknowledged(|| self.index.write(key, write))
    }

    fn apply(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.acknowledged(|| self.index.apply(writes, returned))
    }

    fn apply_unfenced(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.acknowledged(|| self.index.apply_unfenced(writes, returned))
    }

    fn apply_behind(&self, fence: &dyn Fn(), writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        self.acknowledged(|| self.index.apply_behind(fence, writes, returned))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        self.index.scan(from, direction, visit)
    }

    fn scan_values(&self, from: Bound<&K>, direction: Direction, visit: &mut VisitValues<'_>) -> Result<(), Error> {
        self.index.scan_values(from, direction, visit)
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        self.acknowledged(|| self.index.bulk_load(entries, fill))
    }

    fn check(&self) -> Result<Stats, Error> {
        self.index.check()
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.index.blocks(visit)
    }

    fn relocate(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        self.acknowledged(|| self.index.relocate(from, leaves_max, is_leaving))
    }

    fn gather(&self) -> Result<usize, Error> {
        self.acknowledged(|| self.index.gather())
    }

    fn is_spare(&self, block: u64) -> bool {
        self.index.is_spare(block)
    }

    fn close(&self) -> Result<(), Error> {
        self.acknowledged(|| {
            // What the index leaves in the pool would not include a later write.
            self.is_closed.store(true, Relaxed);
            self.index.close().inspect_err(|_| self.is_closed.store(false, Relaxed))
        })
    }

    fn stats(&self) -> Stats {
        self.index.stats()
    }
}
