//! Who holds which commit slot, and what readers are told about it.
//!
//! A record of a batch that is under way carries a token in its commit word: bit 63, a generation and the number of the batch's slot.
//!
//! ```text
//!   63   62                  8 7        0
//! +----+----------------------+----------+
//! | 1  | generation           | slot     |
//! +----+----------------------+----------+
//! ```
//!
//! Readers do not look at the slot in the pool, whose commit word may be visible before it is durable, but at its *mirror* in DRAM: generation and one bit, set
//! after the commit word is durable. So no reader returns what a crash could take back. A mirror keeps its last word until the slot is used again, for a higher
//! generation; a reader who meets that knows that the batch of its token is over, and finds the outcome in the record: stamped with a timestamp, or still
//! pending if the batch was undone. Generations are volatile: recovery leaves no pending record behind, so every open starts with new ones.

use crate::block::SLOT_COUNT;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::Ordering;

/// Bit that tells a token from a timestamp.
pub(crate) const PENDING: u64 = 1 << 63;
const SLOT_BITS: u32 = 8;
const COMMITTED: u64 = 1;
const _: () = assert!(SLOT_COUNT <= 1 << SLOT_BITS);

#[derive(Default)]
#[repr(align(64))]
struct Mirror(AtomicU64);

/// The commit slots of an open store.
pub(crate) struct Slots {
    mirrors: [Mirror; SLOT_COUNT],
    free: Mutex<Vec<usize>>,
    freed: Condvar,
}

/// What is known of the batch that a token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not committed, or undone.
    Undecided,
    /// Committed, durably.
    Committed,
    /// Its slot serves a later batch: the record's commit word, read again, tells the outcome.
    Over,
}

/// A slot held by a batch, given back when dropped.
pub(crate) struct Claim<'a> {
    slots: &'a Slots,
    pub(crate) slot: usize,
    generation: u64,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self { mirrors: std::array::from_fn(|_| Mirror::default()), free: Mutex::new((0..SLOT_COUNT).rev().collect()), freed: Condvar::new() }
    }

    /// Takes a free slot, waiting for one if all are in use. Whoever holds a slot holds its stripes already and waits for nobody, so the wait ends.
    pub(crate) fn claim(&self) -> Claim<'_> {
        let slot = schedule::acquire(|| self.free.lock().pop(), || self.wait_for_slot());
        let mirror = &self.mirrors[slot].0;
        let generation = (mirror.load(Ordering::Relaxed) >> 1) + 1;
        mirror.store(generation << 1, Ordering::Release);
        Claim { slots: self, slot, generation }
    }

    fn wait_for_slot(&self) -> usize {
        let mut free = self.free.lock();
        loop {
            match free.pop() {
                Some(slot) => return slot,
                None => self.freed.wait(&mut free),
            }
        }
    }

    /// What became of the batch of `token`; `None` when no slot has that number.
    ///
    /// The caller has read whatever it needs of the record *before*: while the answer is [`Fate::Undecided`], what the record links as previous is in place.
    pub(crate) fn fate(&self, token: u64) -> Option<Fate> {
        let (slot, generation) = (token & ((1 << SLOT_BITS) - 1), (token & !PENDING) >> SLOT_BITS);
        let mirror = self.mirrors.get(slot as usize)?.0.load(Ordering::Acquire);
        Some(match mirror >> 1 == generation {
            false => Fate::Over,
            true if mirror & COMMITTED != 0 => Fate::Committed,
            true => Fate::Undecided,
        })
    }
}

impl Claim<'_> {
    /// The word that the records of the batch carry while it is under way.
    pub(crate) fn token(&self) -> u64 {
        PENDING | self.generation << SLOT_BITS | self.slot as u64
    }

    /// Tells readers that the batch is committed, durably: from here on they see all of it.
    pub(crate) fn publish(&self) {
        self.slots.mirrors[self.slot].0.store(self.generation << 1 | COMMITTED, Ordering::Release);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        schedule::drain();
        self.slots.free.lock().push(self.slot);
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_learns_the_fate_of_a_token() {
        let slots = Slots::new();
        let claim = slots.claim();
        let token = claim.token();
        assert_eq!(slots.fate(token), Some(Fate::Undecided));
        claim.publish();
        assert_eq!(slots.fate(token), Some(Fate::Committed));
        drop(claim);
        assert_eq!(slots.fate(token), Some(Fate::Committed), "until the slot is used again");
        let next = slots.claim();
        assert_eq!(next.slot as u64, token & 0xff);
        assert_eq!(slots.fate(token), Some(Fate::Over));
        assert_eq!(slots.fate(next.token()), Some(Fate::Undecided));
        assert_eq!(slots.fate(PENDING | 0xff), None, "no such slot");
    }

    #[test]
    fn as_many_batches_as_slots_run_at_once() {
        let slots = Slots::new();
        let mut claims: Vec<_> = (0..SLOT_COUNT).map(|_| slots.claim()).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.claim().slot);
            let last = claims.pop().unwrap();
            let slot = last.slot;
            drop(last);
            assert_eq!(waiting.join().unwrap(), slot);
        });
    }
}
