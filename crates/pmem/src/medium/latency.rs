//! Emulated write latency: what the papers' machines would have taken.
//!
//! The papers emulate slow persistent memory by a delay after every line that is written back. So does [`Hardware`](super::Hardware) on request. For lines that
//! it has flushed, a thread owes the delay and pays it at its next fence, when the write-backs themselves are over (they proceed while other instructions run,
//! and a concurrent delay would be hidden in them). So n lines that share a fence take n delays plus the full time of the write-backs. Two latencies therefore
//! differ by their delays alone. But any latency takes 100 to 140 ns a fence more than none, because otherwise write-backs overlap with the instructions that
//! follow. Reads are not slowed. Latency is data, like the domain, so the indexes need not be compiled again for it; without it, each flush and each fence pays
//! for one comparison at most, and takes hundreds of times as long as that.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A delay per line flushed.
#[derive(Clone, Copy, Default)]
pub(super) struct Latency {
    /// Ticks of the clock below; see [`ticks`].
    ticks_per_line: u64,
}

impl Latency {
    /// This many nanoseconds per line.
    pub(super) fn new(nanoseconds_per_line: u64) -> Self {
        Self { ticks_per_line: (nanoseconds_per_line as f64 * ticks_per_nanosecond()) as u64 }
    }

    pub(super) fn is_none(self) -> bool {
        self.ticks_per_line == 0
    }

    /// `lines` lines are being written back.
    #[inline(always)]
    pub(super) fn owe(self, line_count: usize) {
        if self.ticks_per_line > 0 {
            OWED.set(OWED.get() + self.ticks_per_line * line_count as u64);
        }
    }

    /// Waits for the write-backs under way, and then for the delay owed for them.
    #[inline(always)]
    pub(super) fn pay(self) {
        if self.ticks_per_line > 0 {
            complete();
            let (start, owed) = (ticks(), OWED.take());
            while ticks().wrapping_sub(start) < owed {
                std::hint::spin_loop();
            }
        }
    }
}

thread_local! {
    /// Ticks that this thread has still to wait.
    static OWED: Cell<u64> = const { Cell::new(0) };
}

/// Waits until everything before is done. A fence for stores would not suffice: the counter is read when the processor gets to it, not in program order.
#[inline(always)]
fn complete() {
    #[cfg(not(miri))]
    // SAFETY: every x86-64 processor has both instructions.
    unsafe {
        std::arch::x86_64::_mm_mfence();
        std::arch::x86_64::_mm_lfence();
    }
}

/// The time-stamp counter: reading it takes some ten nanoseconds, less than a clock call.
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
    use std::sync::atomic::Ordering::Relaxed;

    /// The minimum time of several rounds in which a line is written and written back a thousand times.
    fn least_time(nanoseconds_per_line: u64) -> Duration {
        const LINES: usize = 1000;
        let memory = Memory::new(128 << 10).unwrap();
        // SAFETY: the memory outlives `pm`, which is dropped first.
        let pm = unsafe { Pm::new(Hardware::new(Domain::Adr).with_write_latency(nanoseconds_per_line), memory.base(), memory.size()) };
        let words = pm.words(Off::<u64>::new(4096), 8 * LINES).unwrap();
        let round = || {
            let start = Instant::now();
            for word in words.iter().step_by(8) {
                pm.store(word, 1, Relaxed);
                pm.persist(word);
            }
            start.elapsed() / LINES as u32
        };
        (0..30).map(|_| round()).min().expect("there are rounds")
    }

    /// The clock that calibrates is the clock that checks, and a busy machine makes everything longer, nothing shorter: one of thirty rounds is undisturbed.
    #[test]
    fn every_line_takes_its_time_and_the_delay_besides() {
        let (without, with) = (least_time(0), least_time(600));
        assert!(with >= without + Duration::from_nanos(540), "{without:?} without delay, {with:?} with 600 ns");
    }

    #[test]
    fn lines_that_share_a_fence_take_a_delay_each() {
        let memory = Memory::new(64 << 10).unwrap();
        // SAFETY: the memory outlives `pm`, which is dropped first.
        let pm = unsafe { Pm::new(Hardware::new(Domain::Adr).with_write_latency(1_000_000), memory.base(), memory.size()) };
        let words = pm.words(Off::<u64>::new(4096), 8 * 20).unwrap();
        let start = Instant::now();
        words.iter().step_by(8).for_each(|word| pm.flush(word));
        pm.fence();
        assert!(start.elapsed() >= Duration::from_millis(18), "twenty lines, of a millisecond each, by a clock that was measured in ten");
        assert_eq!(OWED.get(), 0, "a debt is paid once");
    }
}
