//! A counter that many threads change without meeting, and without an instruction that is locked: one would wait for all write-backs under way, and the
//! thread's next search with it.

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const STRIPES: usize = 32;
/// The stripe of all threads that have none of their own.
const SHARED: usize = STRIPES - 1;
/// Of a thread that has not counted yet.
const UNKNOWN: usize = STRIPES;

/// A counter in which each thread has a place of its own, as long as there are some.
#[derive(Default)]
pub struct Counter([CachePadded<AtomicI64>; STRIPES]);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static OWNED: Cell<Option<Owned>> = const { Cell::new(None) };
}

/// Stripes that no thread has: those below the number were had before.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// A stripe of this thread alone, of all counters. The lock under which it passes to another thread passes on what was counted.
struct Owned(usize);

impl Drop for Owned {
    fn drop(&mut self) {
        // What ends after this in the same thread counts elsewhere.
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
    /// Adds, or takes away.
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

    /// Starts anew from `count`, while nobody is counting.
    pub fn set(&self, count: u64) {
        self.add((count as i64).wrapping_sub(self.sum()));
    }

    /// Exact when nobody is counting.
    pub fn get(&self) -> u64 {
        self.sum().max(0) as u64
    }

    /// What was begun with may be from a pool, and anything.
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
