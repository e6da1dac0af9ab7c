//! A counter that many threads raise without meeting.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

const STRIPES: usize = 16;

#[derive(Default)]
pub(crate) struct Counter([CachePadded<AtomicI64>; STRIPES]);

thread_local! {
    static STRIPE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % STRIPES
    };
}

impl Counter {
    #[inline(always)]
    pub(crate) fn add(&self, difference: i64) {
        STRIPE.with(|stripe| self.0[*stripe].fetch_add(difference, Relaxed));
    }

    /// Exact when nobody is counting.
    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.load(Relaxed)).sum::<i64>().max(0) as u64
    }
}
