//! Counters: what an operation costs in lines, independent of the machine, in the domain that it runs in.

mod buffer;

pub use buffer::WriteBuffer;

use super::{LINE, Lines};
use crate::WORD;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The unit in which persistent-memory modules write internally, in bytes.
const UNIT: usize = 256;

/// Number of threads that count without sharing; further threads share.
const SHARDS: usize = 64;

/// Counters of what reaches a [`Hardware`](super::Hardware) that has them.
pub struct Counters {
    shards: Box<[Mutex<Shard>]>,
    buffer: Option<Mutex<WriteBuffer>>,
}

/// Counts since the last [`Counters::reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Words stored, successful exchanges included.
    pub stores: u64,
    /// Flush calls by which something is written back.
    pub flushes: u64,
    /// Lines in those calls, counted each time they are flushed.
    pub lines_flushed: u64,
    /// Fences, including those after stores past the caches; in `Msync`, waits for the journal.
    pub fences: u64,
    /// Locked operations: exchanges, successful or not.
    pub exchanges: u64,
    /// Different lines stored to, by any thread.
    pub lines_written: u64,
    /// Different 256-byte units stored to, by any thread.
    pub units_written: u64,
    /// Units of 256 bytes that the modelled device has written to its medium, including those still in its buffer; 0 without a model.
    pub media_units: u64,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    counts: Counts,
    lines: HashSet<usize>,
    /// The line last stored to: most stores go there again.
    last: Option<usize>,
}

impl Counters {
    /// Zeroes; `buffer`, if there is one, models a device that gathers lines.
    pub(super) fn new(buffer: Option<WriteBuffer>) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), buffer: buffer.map(Mutex::new) }
    }

    /// Lines flushed and fences so far; faster than [`Counters::totals`].
    pub fn flushed_and_fenced(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(lines, fences), shard| {
            let counts = shard.lock().counts;
            (lines + counts.lines_flushed, fences + counts.fences)
        })
    }

    /// The sum over all threads since the last reset.
    pub fn totals(&self) -> Counts {
        let mut totals = Counts::default();
        let mut lines = HashSet::new();
        for shard in &self.shards {
            let shard = shard.lock();
            totals.stores += shard.counts.stores;
            totals.flushes += shard.counts.flushes;
            totals.lines_flushed += shard.counts.lines_flushed;
            totals.fences += shard.counts.fences;
            totals.exchanges += shard.counts.exchanges;
            lines.extend(&shard.lines);
        }
        totals.lines_written = lines.len() as u64;
        totals.units_written = lines.iter().map(|line| line * LINE / UNIT).collect::<HashSet<_>>().len() as u64;
        totals.media_units = self.buffer.as_ref().map_or(0, |buffer| buffer.lock().units_written());
        totals
    }

    /// Restarts from zero.
    pub fn reset(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
        if let Some(buffer) = &self.buffer {
            buffer.lock().reset();
        }
    }

    /// `count` words were stored from `at` on.
    pub(super) fn stored(&self, at: usize, count: usize) {
        self.with_shard(|shard| (0..count).for_each(|number| shard.stored(at + number * WORD)));
    }

    /// An exchange, successful or not.
    pub(super) fn exchanged(&self, at: usize, is_stored: bool) {
        self.with_shard(|shard| {
            shard.counts.exchanges += 1;
            if is_stored {
                shard.stored(at);
            }
        });
    }

    pub(super) fn flushed(&self, lines: &Lines<'_>) {
        self.with_shard(|shard| {
            shard.counts.flushes += 1;
            shard.counts.lines_flushed += lines.count() as u64;
        });
        if let Some(buffer) = &self.buffer {
            let first = lines.at() / LINE;
            let mut buffer = buffer.lock();
            (first..first + lines.count()).for_each(|line| buffer.write(line));
        }
    }

    pub(super) fn fenced(&self) {
        self.with_shard(|shard| shard.counts.fences += 1);
    }

    fn with_shard(&self, count: impl FnOnce(&mut Shard)) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        count(&mut self.shards[MINE.with(|mine| *mine)].lock());
    }
}

impl Shard {
    fn stored(&mut self, at: usize) {
        self.counts.stores += 1;
        let line = at / LINE;
        if self.last != Some(line) {
            self.last = Some(line);
            self.lines.insert(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Hardware, Memory, Off, Pm};

    #[test]
    fn threads_are_summed_and_shared_lines_counted_once() {
        let memory = Memory::new(64 << 10).unwrap();
        // SAFETY: the memory outlives `pm`, which is dropped first.
        let pm = unsafe { Pm::new(Hardware::new(Domain::Adr).with_counters(None), memory.base(), memory.size()) };
        let counters = pm.medium().counters().unwrap();
        let words = pm.words(Off::<u64>::new(4096), 64).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let pm = &pm;
                scope.spawn(move || {
                    // Every thread stores to lines 0 and 1, in one unit; each to a line of its own in the next.
                    for word in [0, 8, 32 + thread * 8] {
                        pm.store(&words[word], 7, Ordering::Relaxed);
                    }
                    pm.flush(&words[4..12]);
                    pm.fence();
                });
            }
        });
        assert_eq!(pm.compare_exchange(&words[0], 7, 8), Ok(7));
        assert_eq!(pm.compare_exchange(&words[0], 7, 9), Err(8));
        let expected = Counts { stores: 13, flushes: 4, lines_flushed: 8, fences: 4, exchanges: 2, lines_written: 6, units_written: 2, media_units: 0 };
        assert_eq!(counters.totals(), expected);
        counters.reset();
        assert_eq!(counters.totals(), Counts::default());
    }
}
