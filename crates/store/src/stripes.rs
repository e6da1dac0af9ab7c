//! Locks that put the writes to one key in an order. Readers never take them.

use everleaf_pmem::schedule::{self, Held};
use parking_lot::Mutex;

/// Number of locks: far more than threads, so that two writers of different keys rarely meet. A power of two.
const STRIPE_COUNT: usize = 1024;

/// A lock on a line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

impl Stripe {
    #[inline]
    fn lock(&self) -> Held<'_, ()> {
        schedule::lock(&self.0)
    }
}

/// One lock for each stripe of keys. Whoever takes several takes them in ascending order.
pub(crate) struct Stripes(Box<[Stripe]>);

/// Locked stripes.
pub(crate) type Locked<'a> = Vec<Held<'a, ()>>;

impl Stripes {
    pub(crate) fn new() -> Self {
        Self((0..STRIPE_COUNT).map(|_| Stripe::default()).collect())
    }

    /// Number of the stripe of `key` in the namespace with number `space`.
    fn number(space: u32, key: &[u8]) -> usize {
        crc32c::crc32c_append(space, key) as usize % STRIPE_COUNT
    }

    /// Locks the stripe of `key`.
    pub(crate) fn lock(&self, space: u32, key: &[u8]) -> Held<'_, ()> {
        self.0[Self::number(space, key)].lock()
    }

    /// Locks the stripes of all `keys`.
    pub(crate) fn lock_many<'k>(&self, keys: impl Iterator<Item = (u32, &'k [u8])>) -> Locked<'_> {
        let mut numbers: Vec<_> = keys.map(|(space, key)| Self::number(space, key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.0[number].lock()).collect()
    }

    /// Locks every stripe: no write is under way until the guards are dropped.
    pub(crate) fn lock_all(&self) -> Locked<'_> {
        self.0.iter().map(Stripe::lock).collect()
    }
}
