//! Commit timestamps.
//!
//! A counter in DRAM, and in the pool an upper bound of it: no timestamp at or above the bound was ever given out. The bound is raised, durably, before the
//! counter reaches it; a store that opens starts at the bound. So no timestamp is used twice, whatever a crash takes, and nothing needs to be searched for the
//! highest one.

use crate::Error;
use everleaf_pmem::{Medium, Pm, Word, schedule};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// By how much the bound is raised: a flush and a fence for so many timestamps, and so many lost by a crash.
const STEP: u64 = 1 << 20;
/// Timestamps stay below this: the bits above serve pending records. At one timestamp per nanosecond it is reached after 146 years.
const END: u64 = 1 << 62;

pub(crate) struct Clock {
    next: AtomicU64,
    /// What the pool's bound is, durably.
    limit: AtomicU64,
    raising: Mutex<()>,
}

impl Clock {
    /// Goes on where the bound is.
    pub(crate) fn open<M: Medium>(pm: &Pm<M>, limit: &Word) -> Result<Self, Error> {
        let start = limit.get();
        if !(1..END).contains(&start) {
            return Err(everleaf_pmem::Error::corrupt(pm.offset_of(limit).bytes(), "a clock out of range").into());
        }
        Ok(Self { next: AtomicU64::new(start), limit: AtomicU64::new(start), raising: Mutex::new(()) })
    }

    /// A timestamp above all before. `limit` is the bound in the pool.
    pub(crate) fn tick<M: Medium>(&self, pm: &Pm<M>, limit: &Word) -> u64 {
        let now = self.next.fetch_add(1, Ordering::Relaxed);
        while now >= self.limit.load(Ordering::Acquire) {
            let _raising = schedule::lock(&self.raising);
            let bound = self.limit.load(Ordering::Relaxed);
            if now >= bound {
                pm.store(limit, bound + STEP, Ordering::Release);
                // persist-equivalent(fence drop): to one thread, which seals a record with its timestamp, and so fences, before it links it. Others get
                // timestamps below the new bound as soon as it shows.
                pm.persist(limit);
                schedule::drain();
                self.limit.store(bound + STEP, Ordering::Release);
            }
        }
        now
    }
}
