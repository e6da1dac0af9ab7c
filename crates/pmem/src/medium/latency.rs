//! Emulated write latency: what the papers' machines would have taken.
//!
//! The papers emulate slow persistent memory by a delay after every line that is written back. So does [`Hardware`](super::Hardware) if it is asked to: the
//! delay is paid in the flush, per line, on top of what the processor takes. Reads are not slowed. It is data, like the domain, so that the indexes need not be
//! compiled once more for it; who asks for none pays for one comparison in each flush, beside which a write-back takes hundreds of times as long.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A delay per line flushed.
#[derive(Clone, Copy, Default)]
pub(super) struct Latency {
    /// Ticks of the clock below; see [`ticks`].
    ticks_per_line: u64,
}

impl Latency {
    /// So many nanoseconds per line.
    pub(super) fn new(nanoseconds_per_line: u64) -> Self {
        Self { ticks_per_line: (nanoseconds_per_line as f64 * ticks_per_nanosecond()) as u64 }
    }

    /// Waits as long as writing back so many lines takes.
    #[inline(always)]
    pub(super) fn wait(self, line_count: usize) {
        if self.ticks_per_line > 0 {
            let (start, wait) = (ticks(), self.ticks_per_line * line_count as u64);
            while ticks().wrapping_sub(start) < wait {
                std::hint::spin_loop();
            }
        }
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
    use crate::{Domain, Hardware, Memory, Off, Pm};

    /// The clock that calibrates is the clock that checks, so this holds on a busy machine too: a delay may last longer, never shorter.
    #[test]
    fn every_line_takes_its_time() {
        let memory = Memory::new(64 << 10).unwrap();
        // SAFETY: the memory outlives `pm`, which is dropped first.
        let pm = unsafe { Pm::new(Hardware::new(Domain::Adr).with_write_latency(600), memory.base(), memory.size()) };
        let words = pm.words(Off::<u64>::new(4096), 8 * 100).unwrap();
        let start = Instant::now();
        for _ in 0..100 {
            pm.persist(words);
        }
        let least = Duration::from_nanos(600 * 100 * 100).mul_f64(0.9);
        assert!(start.elapsed() >= least, "{:?} for 10,000 lines", start.elapsed());
    }
}
