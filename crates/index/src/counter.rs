//! A counter that many threads change without contention, and without a locked instruction, which would wait for all write-backs under way, and delay the
//! thread's next search.

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const STRIPES: usize = 32;
/// The stripe of all threads that have none of their own.
const SHARED: usize = STRIPES - 1;
/// The stripe of a thread that has not counted yet.
const UNKNOWN: usize = STRIPES;

/// A counter in which each thread has its own stripe, as long as there are enough.
#[derive(Default)]
pub struct Counter([CachePadded<AtomicI64>; STRIPES]);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static OWNED: Cell<Option<Owned>> = const { Cell::new(None) };
}

/// Stripes that no thread has: those given back, and all from the number on.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// The stripe of this thread alone, in all counters. The lock under which it passes to another thread also passes on what was counted.
struct Owned(usize);

impl Drop for Owned {
    fn drop(&mut self) {
        // Destructors that run later in this thread count elsewhere.
        let _ = STRIPE.try_with(|stripe| stripe.set(SHARED));
        FREE.lock().0.push(self.0);
    }
}

#[cold]
fn find_stripe() -> usize {
    let free = {
        let (free, next) = &mut *FREE.lock();
        free.pop().or_else(|| {
            *next += 1;
            (*next <= SHARED).then_some(*next - 1)
        })
    };
    let stripe = match free {
        Some(stripe) if OWNED.try_with(|owned| owned.set(Some(Owned(stripe)))).is_ok() => stripe,
        _ => SHARED,
    };
    STRIPE.set(stripe);
    stripe
}

impl Counter {
    /// Adds `difference`, which may be negative.
    #[inline(always)]
    pub fn add(&self, difference: i64) {
        let mut stripe = STRIPE.get();
        if stripe == UNKNOWN {
            stripe = find_stripe();
        }
        let count = &self.0[stripe];
        if stripe == SHARED {
            count.fetch_add(difference, Relaxed);
        } else {
            count.store(count.load(Relaxed).wrapping_add(difference), Relaxed);
        }
    }

    /// Sets the counter to `count`, while no thread is counting.
    pub fn set(&self, count: u64) {
        self.add((count as i64).wrapping_sub(self.sum()));
    }

    /// Exact when no thread is counting.
    pub fn get(&self) -> u64 {
        self.sum().max(0) as u64
    }

    /// The initial count may be from a damaged pool, hence any number.
    fn sum(&self) -> i64 {
        self.0.iter().fold(0, |sum, stripe| sum.wrapping_add(stripe.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_no_count_does_not_overflow() {
        let counter = Counter::default();
        counter.add(i64::MAX);
        std::thread::scope(|scope| _ = scope.spawn(|| counter.add(1)));
        assert_eq!(counter.get(), 0);
    }

    /// More threads than there are stripes, at once and one after the other.
    #[test]
    fn nothing_is_lost_between_threads() {
        let counter = Counter::default();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..2 * STRIPES {
                    scope.spawn(|| (0..1000).for_each(|_| counter.add(1)));
                }
            });
        }
        assert_eq!(counter.get(), 3 * 2 * STRIPES as u64 * 1000);
        counter.set(7);
        counter.add(-2);
        assert_eq!(counter.get(), 5);
    }
}
