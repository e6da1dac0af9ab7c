//! Locks that put the writes to one key in an order. Readers do not take them, but for those who read and write other keys as one: they take those of what
//! they only read together with each other (`group.rs`, `batch.rs`).
//!
//! A writer that keeps no version of what it replaces says so in its stripe while it works ([`Stripe::announce`]): the first snapshot must not begin in the
//! middle of that. See `snapshot.rs`.

use everleaf_pmem::schedule::{self, Held};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of locks: far more than threads, so that two writers of different keys rarely meet. A power of two.
const STRIPE_COUNT: usize = 1024;

/// A lock on a line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    lock: RwLock<()>,
    /// Whether whoever holds the lock alone is in the middle of a plain write.
    is_plain: AtomicBool,
}

/// One lock for each stripe of keys. Whoever takes several takes them in ascending order.
pub(crate) struct Stripes(Box<[Stripe]>);

/// A stripe of which nobody else holds anything.
pub(crate) struct Locked<'a> {
    stripe: &'a Stripe,
    _held: Held<RwLockWriteGuard<'a, ()>>,
}

/// A stripe to whose keys nobody writes.
pub(crate) struct Unwritten<'a>(#[expect(dead_code, reason = "held until it is dropped")] Held<RwLockReadGuard<'a, ()>>);

/// A stripe whose holder is in the middle of a plain write.
pub(crate) struct Announced<'a>(&'a AtomicBool);

impl Stripe {
    #[inline]
    fn lock(&self) -> Locked<'_> {
        Locked { stripe: self, _held: schedule::lock_alone(&self.lock) }
    }
}

impl Locked<'_> {
    /// Tells that a plain write begins, perhaps. The caller has still to find out whether it may, from the clock; that orders this before whoever forbids it.
    #[inline]
    pub(crate) fn announce(&self) -> Announced<'_> {
        self.stripe.is_plain.store(true, Ordering::Release);
        Announced(&self.stripe.is_plain)
    }
}

impl Drop for Announced<'_> {
    #[inline]
    fn drop(&mut self) {
        schedule::drain();
        self.0.store(false, Ordering::Release);
    }
}

impl Stripes {
    pub(crate) fn new() -> Self {
        Self((0..STRIPE_COUNT).map(|_| Stripe::default()).collect())
    }

    /// Number of the stripe of `key` in the namespace with number `space`.
    fn number(space: u32, key: &[u8]) -> usize {
        everleaf_pmem::crc32c(space, key) as usize % STRIPE_COUNT
    }

    /// Locks the stripe of `key`.
    #[inline]
    pub(crate) fn lock(&self, space: u32, key: &[u8]) -> Locked<'_> {
        self.0[Self::number(space, key)].lock()
    }

    /// Locks the stripes of all keys that are told to be written, and sees to it that nobody writes to the others.
    pub(crate) fn lock_group<'k>(&self, keys: impl Iterator<Item = (u32, &'k [u8], bool)>) -> (Vec<Locked<'_>>, Vec<Unwritten<'_>>) {
        let (mut written, mut wanted) = ([0u64; STRIPE_COUNT / 64], [0u64; STRIPE_COUNT / 64]);
        for (space, key, is_written) in keys {
            let number = Self::number(space, key);
            wanted[number / 64] |= 1 << (number % 64);
            written[number / 64] |= u64::from(is_written) << (number % 64);
        }
        let count = |bits: &[u64]| bits.iter().map(|bits| bits.count_ones() as usize).sum::<usize>();
        let (mut locked, mut unwritten) = (Vec::with_capacity(count(&written)), Vec::with_capacity(count(&wanted) - count(&written)));
        for ((stripes, mut bits), written) in self.0.chunks_exact(64).zip(wanted).zip(written) {
            while bits != 0 {
                let stripe = &stripes[bits.trailing_zeros() as usize];
                match written & bits & bits.wrapping_neg() {
                    0 => unwritten.push(Unwritten(schedule::lock_shared(&stripe.lock))),
                    _ => locked.push(stripe.lock()),
                }
                bits &= bits - 1;
            }
        }
        (locked, unwritten)
    }

    /// Locks every stripe: no write is under way until the guards are dropped.
    pub(crate) fn lock_all(&self) -> Vec<Locked<'_>> {
        self.0.iter().map(Stripe::lock).collect()
    }

    /// Waits until whoever holds a stripe now has given it back.
    pub(crate) fn await_all(&self) {
        self.0.iter().for_each(|stripe| drop(stripe.lock()));
    }

    /// Waits until no plain write is under way that has begun before it was forbidden. Those that begin now see that they may not, and are soon out of the way.
    pub(crate) fn await_plain(&self) {
        for stripe in &self.0 {
            while stripe.is_plain.load(Ordering::Acquire) {
                schedule::rest();
            }
        }
    }
}
