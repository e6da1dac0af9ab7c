//! Commit timestamps.
//!
//! A counter in DRAM, and an upper bound of it in the pool: no timestamp at or above the bound was ever given out. The bound is durably raised before the
//! counter reaches it; a store that opens starts at the bound. So no timestamp is used twice, whatever a crash takes, and there is no search for the highest
//! one. The timestamp at which a life of the store starts is its *birth*: anything with a later timestamp was written in this life.
//!
//! The bound decides about batches, since their tokens say to which life they belong. It is always a multiple of [`STEP`], so the pool holds the number of
//! steps, encoded as a link encodes its offset ([`Off::link`]): no byte of it can change unnoticed, and a word that was never written is not valid.
//!
//! The same word of DRAM says whether writes keep versions ([`Tick::is_versioned`]): changes of that and queries are in one order, that of the word.

use crate::Error;
use crossbeam_utils::CachePadded;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use everleaf_pmem::{Medium, Off, Pm, Word};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// By how much the bound is raised: one flush and one fence for that many timestamps; a crash loses at most that many.
const STEP: u64 = 1 << 20;
/// The first timestamp: 0 is for records made without a store.
pub(crate) const START: u64 = STEP;
/// Timestamps stay below this: the bits above serve tokens. At ten million a second it is reached after 57 years.
const END: u64 = 1 << 54;
/// Whether writes keep versions.
const VERSIONED: u64 = 1 << 63;

pub(crate) struct Clock {
    /// Every write adds to it; its neighbours are read by all threads.
    next: CachePadded<AtomicU64>,
    /// The pool's bound, as far as it is durable.
    limit: AtomicU64,
    birth: u64,
    raising: Mutex<()>,
}

/// A timestamp that the first thread to ask for it draws.
pub(crate) struct Stamp(AtomicU64);

impl Stamp {
    const UNDRAWN: u64 = u64::MAX;

    pub(crate) fn undrawn() -> Self {
        Self(AtomicU64::new(Self::UNDRAWN))
    }

    /// A stamp that need not be drawn: below all others.
    pub(crate) fn lowest() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn get(&self, clock: &Clock) -> u64 {
        match self.0.load(Ordering::Acquire) {
            Self::UNDRAWN => self.draw(clock),
            at => at,
        }
    }

    #[cold]
    fn draw(&self, clock: &Clock) -> u64 {
        let now = clock.stamp();
        self.0.compare_exchange(Self::UNDRAWN, now, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| now)
    }
}

/// The word that encodes a bound in the pool.
pub(crate) const fn limit_of(bound: u64) -> u64 {
    Off::<()>::new(bound / STEP).link()
}

/// A timestamp drawn by one write only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) at: u64,
    /// Whether a write that has drawn it keeps the version that it replaces.
    pub(crate) is_versioned: bool,
}

impl Clock {
    /// Continues at the bound.
    pub(crate) fn open<M: Medium>(pm: &Pm<M>, limit: &Word) -> Result<Self, Error> {
        let birth = Off::<()>::of_link(limit.get()).map_or(0, |steps| steps.bytes().saturating_mul(STEP));
        if !(START..END).contains(&birth) {
            return Err(everleaf_pmem::Error::corrupt(pm.offset_of(limit).bytes(), "a clock that is out of range, or does not match its check bits").into());
        }
        Ok(Self { next: AtomicU64::new(birth).into(), limit: AtomicU64::new(birth), birth, raising: Mutex::new(()) })
    }

    /// The first timestamp of this life of the store.
    pub(crate) fn birth(&self) -> u64 {
        self.birth
    }

    /// Draws a timestamp above all before. `limit` is the bound in the pool.
    pub(crate) fn tick<M: Medium>(&self, pm: &Pm<M>, limit: &Word) -> Tick {
        let word = self.next.fetch_add(1, Ordering::AcqRel);
        let at = word & !VERSIONED;
        while at >= self.limit.load(Ordering::Acquire) {
            let _raising = schedule::lock(&self.raising);
            let bound = self.limit.load(Ordering::Relaxed);
            if at >= bound {
                pm.store(limit, limit_of(bound + STEP), Ordering::Release);
                // persist-equivalent(fence drop): to one thread, which seals a record with its timestamp, and so fences, before it links it. Other threads get
                // timestamps below the new bound as soon as it is visible.
                pm.persist(limit);
                schedule::drain();
                self.limit.store(bound + STEP, Ordering::Release);
            }
        }
        Tick { at, is_versioned: word & VERSIONED != 0 }
    }

    /// The highest timestamp that was given out, or the one before birth. Timestamps drawn from now on are higher.
    pub(crate) fn now(&self) -> u64 {
        // In this order. A timestamp not below the bound has been drawn but not given out: its thread waits for a higher bound to be durable.
        self.given_out(self.next.load(Ordering::Acquire))
    }

    /// The same, as the timestamp of what this thread has made visible, or has seen. Reading the clock would not do: an earlier store may still be in the store
    /// buffer, so that a thread that draws a higher timestamp meanwhile misses it, and finds it later with a lower one. Adding zero comes after the stores, and
    /// a thread that adds to the clock after it finds them.
    pub(crate) fn stamp(&self) -> u64 {
        self.given_out(self.next.fetch_add(0, Ordering::AcqRel))
    }

    fn given_out(&self, next: u64) -> u64 {
        (next & !VERSIONED).min(self.limit.load(Ordering::Acquire)) - 1
    }

    /// Whether writes keep versions. Writers ask by [`Clock::tick`].
    #[inline]
    pub(crate) fn keeps_versions(&self) -> bool {
        self.next.load(Ordering::Acquire) & VERSIONED != 0
    }

    /// From now on, writes keep versions.
    pub(crate) fn keep_versions(&self) {
        self.next.fetch_or(VERSIONED, Ordering::AcqRel);
    }

    /// From now on, writes keep no versions.
    pub(crate) fn drop_versions(&self) {
        self.next.fetch_and(!VERSIONED, Ordering::AcqRel);
    }
}
