//! Locks that order the writes to each key. Readers do not take them, except groups and commits that also write other keys: these share the stripes of keys
//! that they only read (`group.rs`, `batch.rs`).
//!
//! A writer that does not keep the version that it replaces announces that in its stripe while it works ([`Stripe::announce`]): the first snapshot must not
//! begin in the middle of that. See `snapshot.rs`.

use everleaf_pmem::schedule::{self, Held};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of locks: far more than threads, so that two writers of different keys rarely meet. A power of two.
const STRIPE_COUNT: usize = 1024;

/// A lock on a line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    lock: RwLock<()>,
    /// Whether the exclusive holder of the lock is in the middle of a plain write.
    is_plain: AtomicBool,
    /// The thread that holds the lock exclusively, as [`this_thread`] names it; 0 if none does. Only a thread that compares it with itself can rely on it.
    holder: AtomicUsize,
}

thread_local! {
    /// How many stripes of any store the thread holds exclusively.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// A number that no other thread has while this one lives, and never 0.
#[inline]
fn this_thread() -> usize {
    HELD.with(|held| ptr::from_ref(held).addr())
}

/// Whether this thread holds a stripe exclusively: if it is not at work itself, a program has called the store within a closure that decides on a write.
pub(crate) fn are_held() -> bool {
    HELD.get() > 0
}

/// One lock for each stripe of keys. A thread that takes several takes them in ascending order.
pub(crate) struct Stripes(Box<[Stripe]>);

/// A stripe held exclusively.
pub(crate) struct Locked<'a> {
    stripe: &'a Stripe,
    _held: Held<RwLockWriteGuard<'a, ()>>,
}

/// A stripe held shared: its keys are not written meanwhile.
pub(crate) struct Unwritten<'a>(#[expect(dead_code, reason = "held until it is dropped")] Held<RwLockReadGuard<'a, ()>>);

/// A stripe whose holder is in the middle of a plain write.
pub(crate) struct Announced<'a>(&'a AtomicBool);

impl Stripe {
    #[inline]
    fn lock(&self) -> Locked<'_> {
        self.check_may_wait();
        let held = schedule::lock_alone(&self.lock);
        self.holder.store(this_thread(), Ordering::Relaxed);
        HELD.set(HELD.get() + 1);
        Locked { stripe: self, _held: held }
    }

    fn share(&self) -> Unwritten<'_> {
        self.check_may_wait();
        Unwritten(schedule::lock_shared(&self.lock))
    }

    /// # Panics
    /// If this thread holds the lock exclusively: a program calls the store within a closure that decides on a write.
    #[inline]
    fn check_may_wait(&self) {
        assert!(
            self.holder.load(Ordering::Relaxed) != this_thread(),
            "a closure that decides on a write, as that of `Namespace::modify` does, called the store, which would have waited for itself for ever"
        );
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        self.stripe.holder.store(0, Ordering::Relaxed);
    }
}

impl Locked<'_> {
    /// Announces a possible plain write. The caller then asks the clock whether it may make one; the clock orders this before a thread that forbids it.
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

    /// Locks the stripes of all keys marked as written exclusively, and those of the other keys shared.
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
                    0 => unwritten.push(stripe.share()),
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

    /// Waits until every stripe that is held now has been given back.
    pub(crate) fn await_all(&self) {
        self.0.iter().for_each(|stripe| drop(stripe.lock()));
    }

    /// Waits for all plain writes that began before they were forbidden. Writes that begin now see that they may not, and soon withdraw their announcement.
    pub(crate) fn await_plain(&self) {
        for stripe in &self.0 {
            while stripe.is_plain.load(Ordering::Acquire) {
                schedule::rest();
            }
        }
    }
}
