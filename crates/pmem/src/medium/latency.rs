//! Emulated write latency: what the papers' machines would have taken.
//!
//! The papers emulate slow persistent memory by a delay after every line that is written back. So does [`Latency`]: the delay is paid in the flush, per line,
//! on top of what the medium below takes. Reads are not slowed.

use super::{Lines, Medium};
use crate::Word;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A medium below, and a delay per line flushed.
pub struct Latency<M> {
    below: M,
    /// Ticks of the clock below; see [`ticks`].
    ticks_per_line: u64,
}

impl<M: Medium> Latency<M> {
    /// Adds `nanoseconds_per_line` to every line flushed; the papers use 0 to 600.
    pub fn new(below: M, nanoseconds_per_line: u64) -> Self {
        Self { below, ticks_per_line: (nanoseconds_per_line as f64 * ticks_per_nanosecond()) as u64 }
    }

    /// The medium below.
    pub fn below(&self) -> &M {
        &self.below
    }
}

impl<M: Medium> Medium for Latency<M> {
    #[inline(always)]
    fn store(&self, at: usize, word: &AtomicU64, value: u64, order: Ordering) {
        self.below.store(at, word, value, order);
    }

    #[inline]
    fn stream(&self, at: usize, words: &[Word], values: impl Iterator<Item = u64>) {
        self.below.stream(at, words, values);
    }

    #[inline(always)]
    fn compare_exchange(&self, at: usize, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.below.compare_exchange(at, word, current, new)
    }

    #[inline]
    fn flush(&self, lines: Lines<'_>) {
        self.below.flush(lines);
        if self.ticks_per_line > 0 {
            let start = ticks();
            let wait = self.ticks_per_line * lines.count() as u64;
            while ticks().wrapping_sub(start) < wait {
                std::hint::spin_loop();
            }
        }
    }

    #[inline(always)]
    fn fence(&self) {
        self.below.fence();
    }

    #[inline(always)]
    fn transaction<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        self.below.transaction(act)
    }

    fn failure(&self) -> Option<&str> {
        self.below.failure()
    }

    fn allocated(&self, at: usize, length: usize) {
        self.below.allocated(at, length);
    }

    fn released(&self, at: usize, length: usize) {
        self.below.released(at, length);
    }
}

/// The time-stamp counter: a read takes some ten nanoseconds, fewer than a clock call.
#[cfg(not(miri))]
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(miri)]
fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// How fast [`ticks`] runs, measured once per process.
fn ticks_per_nanosecond() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        ticks().wrapping_sub(first) as f64 / start.elapsed().as_nanos() as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hardware, Memory, Off, Pm};

    /// The clock that calibrates is the clock that checks, so this holds on a busy machine too: a delay may last longer, never shorter.
    #[test]
    fn every_line_takes_its_time() {
        let memory = Memory::new(64 << 10).unwrap();
        // SAFETY: the memory outlives `pm`, which is dropped first.
        let pm = unsafe { Pm::new(Latency::new(Hardware::page_cache(), 600), memory.base(), memory.size()) };
        let words = pm.words(Off::<u64>::new(4096), 8 * 100).unwrap();
        let start = Instant::now();
        for _ in 0..100 {
            pm.persist(words);
        }
        let least = Duration::from_nanos(600 * 100 * 100).mul_f64(0.9);
        assert!(start.elapsed() >= least, "{:?} for 10,000 lines", start.elapsed());
    }
}
