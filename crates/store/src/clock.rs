//! Commit timestamps.
//!
//! A counter in DRAM, and in the pool an upper bound of it: no timestamp at or above the bound was ever given out. The bound is raised, durably, before the
//! counter reaches it; a store that opens starts at the bound. So no timestamp is used twice, whatever a crash takes, and nothing needs to be searched for the
//! highest one. Where a life of the store starts is its *birth*: what says of itself that it is younger was written in this life.
//!
//! The bound decides about batches: their tokens say of which life they are. It is always a multiple of [`STEP`], so the pool has the number of steps, as a
//! link has its offset ([`Off::link`]): no byte of it can change unnoticed, and a word that was never written is none.
//!
//! The same word of DRAM says whether writes keep versions ([`Tick::is_versioned`]): who changes that and who asks are in one order, that of the word.

use crate::Error;
use crossbeam_utils::CachePadded;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use everleaf_pmem::{Medium, Off, Pm, Word};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// By how much the bound is raised: a flush and a fence for so many timestamps, and so many lost by a crash.
const STEP: u64 = 1 << 20;
/// The first timestamp: 0 is for records made without a store.
pub(crate) const START: u64 = STEP;
/// Timestamps stay below this: the bits above serve tokens. At ten million a second it is reached after 57 years.
const END: u64 = 1 << 54;
/// Whether writes keep versions.
const VERSIONED: u64 = 1 << 63;

pub(crate) struct Clock {
    /// Every write adds to it. What lies beside is read by everybody.
    next: CachePadded<AtomicU64>,
    /// What the pool's bound is, durably.
    limit: AtomicU64,
    birth: u64,
    raising: Mutex<()>,
}

/// A timestamp that is drawn by the first who asks for it.
pub(crate) struct Stamp(AtomicU64);

impl Stamp {
    const UNDRAWN: u64 = u64::MAX;

    pub(crate) fn undrawn() -> Self {
        Self(AtomicU64::new(Self::UNDRAWN))
    }

    /// One that nobody needs to ask for: before all others.
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

/// What the pool has of a bound.
pub(crate) const fn limit_of(bound: u64) -> u64 {
    Off::<()>::new(bound / STEP).link()
}

/// A timestamp of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) at: u64,
    /// Whether a write that has drawn it keeps the version that it replaces.
    pub(crate) is_versioned: bool,
}

impl Clock {
    /// Goes on where the bound is.
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

    /// Whether writes keep versions now. Who writes asks by [`Clock::tick`].
    pub(crate) fn is_versioned(&self) -> bool {
        self.next.load(Ordering::Relaxed) & VERSIONED != 0
    }

    /// A timestamp above all before. `limit` is the bound in the pool.
    pub(crate) fn tick<M: Medium>(&self, pm: &Pm<M>, limit: &Word) -> Tick {
        let word = self.next.fetch_add(1, Ordering::AcqRel);
        let at = word & !VERSIONED;
        while at >= self.limit.load(Ordering::Acquire) {
            let _raising = schedule::lock(&self.raising);
            let bound = self.limit.load(Ordering::Relaxed);
            if at >= bound {
                pm.store(limit, limit_of(bound + STEP), Ordering::Release);
                // persist-equivalent(fence drop): to one thread, which seals a record with its timestamp, and so fences, before it links it. Others get
                // timestamps below the new bound as soon as it shows.
                pm.persist(limit);
                schedule::drain();
                self.limit.store(bound + STEP, Ordering::Release);
            }
        }
        Tick { at, is_versioned: word & VERSIONED != 0 }
    }

    /// The highest timestamp that was given out, or the one before birth. Whoever draws one from now on gets a higher one.
    pub(crate) fn now(&self) -> u64 {
        // In this order. One that is not below the bound has been drawn and not been given out: whoever drew it waits for a higher bound to be durable.
        self.given_out(self.next.load(Ordering::Acquire))
    }

    /// The same, as the timestamp of what this thread has made visible, or has seen. To read the clock would not do: what was stored before may be in the store
    /// buffer still, so that whoever draws a higher timestamp meanwhile does not find it, and finds it later, below that. An addition of nothing comes after
    /// the stores, and whoever adds to the clock after it finds them.
    pub(crate) fn stamp(&self) -> u64 {
        self.given_out(self.next.fetch_add(0, Ordering::AcqRel))
    }

    fn given_out(&self, next: u64) -> u64 {
        (next & !VERSIONED).min(self.limit.load(Ordering::Acquire)) - 1
    }

    /// Whether writes keep versions.
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
