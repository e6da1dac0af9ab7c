//! The commit slots: who holds them, and what readers learn from them.
//!
//! A record of a batch carries a token in its commit word: bit 63, a generation and the number of the batch's slot.
//!
//! ```text
//!   63   62                  8 7        0
//! +----+----------------------+----------+
//! | 1  | generation           | slot     |
//! +----+----------------------+----------+
//! ```
//!
//! Readers do not look at the slot in the pool, whose commit word may be visible before it is durable, but at its *mirror* in DRAM: generation and one bit, set
//! after the commit word is durable. So no reader returns what a crash could take back. The mirror also has the batch's timestamp, which is drawn after the bit
//! is set, by the first thread that asks for it: so a thread that has drawn a lower timestamp for a snapshot finds the batch not committed yet as of that, and
//! a thread that draws a higher one finds it committed; there is no moment between.
//!
//! A mirror keeps its words until the slot is used again, with a higher generation. A reader that meets that knows that the batch of its token is over, and
//! finds the outcome in the record: a timestamp, or still the token if the batch was undone.
//!
//! Generations are timestamps drawn when the slot is claimed: so none is used twice, in this life or any other, and a token from before the store's birth
//! belongs to a batch that is over. Recovery has undone those that were not committed.

use crate::block::SLOT_COUNT;
use crate::clock::Clock;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::Ordering;

/// Bit that distinguishes a token from a timestamp.
pub(crate) const PENDING: u64 = 1 << 63;
/// The token of no batch, for a draft that is not in a batch yet: no generation is 0.
pub(crate) const DRAFT: u64 = PENDING;
/// Bit that distinguishes a word still to be stamped from a timestamp.
pub(crate) const UNSTAMPED: u64 = 1 << 62;
const SLOT_BITS: u32 = 8;
const COMMITTED: u64 = 1;
const _: () = assert!(SLOT_COUNT <= 1 << SLOT_BITS);

#[derive(Default)]
#[repr(align(64))]
struct Mirror {
    /// The generation, and [`COMMITTED`].
    state: AtomicU64,
    /// [`UNSTAMPED`] with the generation; then the timestamp.
    stamp: AtomicU64,
}

/// The commit slots of an open store.
pub(crate) struct Slots {
    mirrors: [Mirror; SLOT_COUNT],
    free: Mutex<Free>,
    freed: Condvar,
}

struct Free {
    slots: Vec<usize>,
    /// Whether a slot will not come back. Then the store takes no more writes.
    one_is_lost: bool,
}

impl Free {
    /// A slot, or `Some(None)` if waiting is futile.
    fn take(&mut self) -> Option<Option<usize>> {
        match self.slots.pop() {
            None if !self.one_is_lost => None,
            slot => Some(slot),
        }
    }
}

/// The known outcome of the batch that a token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not committed, or undone.
    Undecided,
    /// Committed, durably, at this timestamp.
    Committed(u64),
    /// Its slot serves a later batch: the record's commit word, read again, tells the outcome.
    Over,
}

/// A slot held by a batch, given back when dropped.
pub(crate) struct Claim<'a> {
    slots: &'a Slots,
    pub(crate) slot: usize,
    generation: u64,
}

/// The generation of a token.
pub(crate) fn generation(token: u64) -> u64 {
    (token & !PENDING) >> SLOT_BITS
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            mirrors: std::array::from_fn(|_| Mirror::default()),
            free: Mutex::new(Free { slots: (0..SLOT_COUNT).rev().collect(), one_is_lost: false }),
            freed: Condvar::new(),
        }
    }

    /// Takes a free slot, waiting for one if all are in use, for a `generation` that was never used before. The holder of a slot already holds its stripes and
    /// waits for nothing, so the wait ends. `None` if all are in use and one of them was lost.
    pub(crate) fn claim(&self, generation: u64) -> Option<Claim<'_>> {
        let slot = schedule::acquire(|| self.free.lock().take(), || self.wait_for_slot())?;
        let mirror = &self.mirrors[slot];
        mirror.stamp.store(UNSTAMPED | generation, Ordering::Release);
        mirror.state.store(generation << 1, Ordering::Release);
        Some(Claim { slots: self, slot, generation })
    }

    fn wait_for_slot(&self) -> Option<usize> {
        let mut free = self.free.lock();
        loop {
            match free.take() {
                Some(slot) => return slot,
                None => self.freed.wait(&mut free),
            }
        }
    }

    /// The outcome of a token's batch; `None` if no slot has that number. A committed batch's timestamp is drawn now, unless another thread was faster.
    ///
    /// The caller has read whatever it needs of the record *before*: while the answer is [`Fate::Undecided`], what the record links as previous is in place.
    pub(crate) fn fate(&self, token: u64, clock: &Clock) -> Option<Fate> {
        let (slot, generation) = (token & ((1 << SLOT_BITS) - 1), generation(token));
        let mirror = self.mirrors.get(slot as usize)?;
        let state = mirror.state.load(Ordering::Acquire);
        if state >> 1 != generation {
            return Some(Fate::Over);
        }
        if state & COMMITTED == 0 {
            return Some(Fate::Undecided);
        }
        let unstamped = UNSTAMPED | generation;
        let at = match mirror.stamp.load(Ordering::Acquire) {
            stamp if stamp == unstamped => {
                let now = clock.stamp();
                mirror.stamp.compare_exchange(unstamped, now, Ordering::AcqRel, Ordering::Acquire).map_or_else(|stamp| stamp, |_| now)
            }
            stamp => stamp,
        };
        // The slot may serve a later batch by now. The timestamp of that batch was not set before its state was.
        let is_same = at & UNSTAMPED == 0 && mirror.state.load(Ordering::Acquire) == state;
        Some(if is_same { Fate::Committed(at) } else { Fate::Over })
    }
}

impl Claim<'_> {
    /// The word that the records of the batch carry until it ends.
    pub(crate) fn token(&self) -> u64 {
        PENDING | self.generation << SLOT_BITS | self.slot as u64
    }

    /// Tells readers that the batch is durably committed: from here on they see all of it. Returns its timestamp.
    pub(crate) fn publish(&self, clock: &Clock) -> u64 {
        self.slots.mirrors[self.slot].state.store(self.generation << 1 | COMMITTED, Ordering::Release);
        match self.slots.fate(self.token(), clock) {
            Some(Fate::Committed(at)) => at,
            fate => unreachable!("the slot of a batch that was just committed is {fate:?}"),
        }
    }
}

impl Claim<'_> {
    /// Leaves the slot as it is, for readers and for the next open. The store must have stopped taking writes: threads that wait for a slot are told so.
    pub(crate) fn lose(self) {
        self.slots.free.lock().one_is_lost = true;
        self.slots.freed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        schedule::drain();
        self.slots.free.lock().slots.push(self.slot);
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::StoreBlock;
    use everleaf_pmem::{Hardware, Pool, PoolOptions};

    /// Runs a test with a clock and a function that draws timestamps from it.
    fn with_clock(test: impl FnOnce(&Clock, &dyn Fn() -> u64)) {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 4 << 20, ..PoolOptions::default() }).unwrap();
        let block = StoreBlock::create(&pool).unwrap();
        let limit = &pool.get(block).unwrap().clock_limit;
        let clock = Clock::open(&pool, limit).unwrap();
        test(&clock, &|| clock.tick(&pool, limit).at);
    }

    #[test]
    fn a_reader_learns_the_fate_of_a_token() {
        with_clock(|clock, tick| {
            let slots = Slots::new();
            let claim = slots.claim(tick()).unwrap();
            let token = claim.token();
            assert_eq!(slots.fate(token, clock), Some(Fate::Undecided));
            let before = tick();
            let at = claim.publish(clock);
            let after = tick();
            assert!(before <= at && at < after);
            assert_eq!(slots.fate(token, clock), Some(Fate::Committed(at)));
            drop(claim);
            assert_eq!(slots.fate(token, clock), Some(Fate::Committed(at)), "until the slot is used again");
            let next = slots.claim(tick()).unwrap();
            assert_eq!(next.slot as u64, token & 0xff);
            assert_eq!(slots.fate(token, clock), Some(Fate::Over));
            assert_eq!(slots.fate(next.token(), clock), Some(Fate::Undecided));
            next.publish(clock);
            assert_eq!(slots.fate(token, clock), Some(Fate::Over));
            assert_eq!(slots.fate(PENDING | 0xff, clock), None, "no such slot");
        });
    }

    #[test]
    fn nobody_waits_for_a_slot_that_is_lost() {
        let slots = Slots::new();
        let mut claims: Vec<_> = (0..SLOT_COUNT).map(|_| slots.claim(1).unwrap()).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.claim(2).is_none());
            claims.pop().unwrap().lose();
            assert!(waiting.join().unwrap() && slots.claim(3).is_none());
        });
        drop(claims);
        assert!(slots.claim(4).is_some(), "others come back");
    }

    #[test]
    fn as_many_batches_as_slots_run_at_once() {
        let slots = Slots::new();
        let mut claims: Vec<_> = (0..SLOT_COUNT).map(|_| slots.claim(1).unwrap()).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.claim(2).map(|claim| claim.slot));
            let last = claims.pop().unwrap();
            let slot = last.slot;
            drop(last);
            assert_eq!(waiting.join().unwrap(), Some(slot));
        });
    }
}
