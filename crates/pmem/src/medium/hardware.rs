//! The machine's own memory. The domain is data, fixed when the pool is mapped.
//!
//! | domain | `flush` | `fence` |
//! |---|---|---|
//! | `Adr` | clwb, else clflushopt, else clflush, by cpuid | sfence |
//! | `Eadr` | nothing up to 256 bytes at once; above, clwb without waiting, so that a large block does not push others out of the caches | sfence |
//! | `PageCache` | nothing | keeps the compiler from moving stores |
//! | `Msync` | remembers the lines | writes them to the pool's journal, and waits for the device: see `journal.rs` |
//!
//! In `Msync` what is published ([`Medium::publish`]) is stored when the journal has it.
//!
//! Counters of what passes are data, too: where there are some, each step takes the way, out of line, that it takes in `Msync`. They count what the domain asks
//! for: a flush that does nothing is none, nor is a fence that only the compiler sees.

use super::holding::{self, Holding};
use super::latency::Latency;
use super::{Counters, Domain, LINE, Lines, Medium, WriteBuffer};
use crate::map::Mapping;
use crate::{Word, local, word};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

/// Runs of lines a thread remembers between two fences; with more it fences early, which is always allowed.
const RUNS_MAX: usize = 4096;

/// The machine's memory, with the persistence domain that was found or chosen when the pool was mapped.
pub struct Hardware {
    domain: Domain,
    /// What each step has to do.
    duty: Duty,
    write_back: WriteBack,
    /// Added to every line that is written back.
    latency: Latency,
    /// Tells the lines that threads remember for this medium from those for others.
    id: u64,
    /// The file that lies there, if one does.
    file: Option<Arc<Mapping>>,
    /// What has passed, if that is counted.
    counters: Option<Box<Counters>>,
}

/// What a step has to do: what the domain asks for, or, out of line, more than a processor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// In `Adr`, by clwb, without more latency: a few instructions in each place.
    Clwb,
    /// In `Adr` otherwise.
    Adr,
    Eadr,
    PageCache,
    /// In `Msync`, and where steps are counted.
    Slow,
}

impl Duty {
    fn of(domain: Domain, write_back: WriteBack, latency: Latency) -> Self {
        match domain {
            Domain::Adr if write_back == WriteBack::Clwb && latency.is_none() => Self::Clwb,
            Domain::Adr => Self::Adr,
            Domain::Eadr => Self::Eadr,
            Domain::PageCache => Self::PageCache,
            Domain::Msync => Self::Slow,
        }
    }
}

/// How a line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(miri, expect(dead_code, reason = "miri knows none of these instructions"))]
enum WriteBack {
    /// Keeps the line in the cache; waits for nothing.
    Clwb,
    /// Evicts the line; waits for nothing.
    Clflushopt,
    /// Evicts the line, one after the other.
    Clflush,
}

impl Hardware {
    /// What a flush may cover in [`Domain::Eadr`] without being written back, in lines.
    pub const EADR_LINES_KEPT: usize = 4;

    /// The machine's memory, taken to be in `domain`.
    pub fn new(domain: Domain) -> Self {
        let (write_back, latency) = (WriteBack::of_this_processor(), Latency::default());
        Self { domain, duty: Duty::of(domain, write_back, latency), write_back, latency, id: local::unique(), file: None, counters: None }
    }

    /// The same, with counters of what passes; and a device behind them that gathers lines in `buffer`, if there is one.
    #[must_use]
    pub fn with_counters(self, buffer: Option<WriteBuffer>) -> Self {
        Self { duty: Duty::Slow, counters: Some(Box::new(Counters::new(buffer))), ..self }
    }

    /// What has passed, if that is counted.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_deref()
    }

    /// The same, but that every line that is written back takes so much longer: for measuring what slower memory would cost.
    #[must_use]
    pub fn with_write_latency(self, nanoseconds_per_line: u64) -> Self {
        let latency = Latency::new(nanoseconds_per_line);
        let duty = if self.counters.is_some() { Duty::Slow } else { Duty::of(self.domain, self.write_back, latency) };
        Self { latency, duty, ..self }
    }

    /// The same, where a file lies, whose journal makes it durable in [`Domain::Msync`]. Without one, nothing does.
    pub(crate) fn of_file(self, file: &Arc<Mapping>) -> Self {
        Self { file: Some(Arc::clone(file)), ..self }
    }

    /// Memory that outlives the process but not the machine: nothing to flush.
    pub fn page_cache() -> Self {
        Self::new(Domain::PageCache)
    }

    /// Name of the instruction that writes lines back on this processor.
    pub fn flush_instruction(&self) -> &'static str {
        match self.write_back {
            WriteBack::Clwb => "clwb",
            WriteBack::Clflushopt => "clflushopt",
            WriteBack::Clflush => "clflush",
        }
    }

    /// The persistence domain.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// A store that may be held back, or is counted.
    #[cold]
    fn store_slowly(&self, at: usize, word: &AtomicU64, value: u64, order: Ordering) {
        if let Some(counters) = &self.counters {
            counters.stored(at, 1);
        }
        if self.domain == Domain::Msync && holding::is_held_back(self.id) {
            holding::hold_back(at, value);
        } else {
            word.store(value, order);
        }
    }

    #[cold]
    fn exchange_slowly(&self, at: usize, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        // The processor completes write-backs by itself in a locked operation; a journal knows nothing of it.
        if self.domain == Domain::Msync {
            self.wait();
        }
        let result = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        if let Some(counters) = &self.counters {
            counters.exchanged(at, result.is_ok());
        }
        result
    }

    #[cold]
    fn flush_slowly(&self, lines: Lines<'_>) {
        if self.domain == Domain::PageCache || self.domain == Domain::Eadr && lines.count() <= Self::EADR_LINES_KEPT {
            return;
        }
        if let Some(counters) = &self.counters {
            counters.flushed(&lines);
        }
        match self.domain {
            Domain::Msync => self.remember(lines),
            _ => self.write_back(lines),
        }
    }

    #[inline(always)]
    fn fence_as(&self, duty: Duty) {
        match duty {
            Duty::Clwb => store_fence(),
            Duty::PageCache => compiler_fence(Ordering::SeqCst),
            Duty::Adr | Duty::Eadr => {
                store_fence();
                self.latency.pay();
            }
            Duty::Slow => self.fence_slowly(),
        }
    }

    #[cold]
    fn fence_slowly(&self) {
        if self.domain != Domain::PageCache {
            self.count_fence();
        }
        match self.domain {
            Domain::Msync => self.wait(),
            domain => self.fence_as(Duty::of(domain, self.write_back, self.latency)),
        }
    }

    fn count_fence(&self) {
        if let Some(counters) = &self.counters {
            counters.fenced();
        }
    }

    /// Out of line, as there are many places and one instruction is enough in most of them.
    #[inline(never)]
    fn write_back(&self, lines: Lines<'_>) {
        lines.each().for_each(|line| self.write_back.line(line));
        self.latency.owe(lines.count());
    }

    #[cold]
    fn remember(&self, lines: Lines<'_>) {
        let run = lines.at()..lines.at().saturating_add(lines.count() * LINE);
        let full = PENDING.with_borrow_mut(|pending| {
            let runs = match pending.iter_mut().position(|(id, _)| *id == self.id) {
                Some(at) => &mut pending[at].1,
                None => &mut pending.push_mut((self.id, Vec::new())).1,
            };
            match runs.last_mut() {
                Some(last) if touch(last, &run) => *last = last.start.min(run.start)..last.end.max(run.end),
                _ => runs.push(run),
            }
            runs.len() > RUNS_MAX
        });
        if full {
            self.synchronise(&[]);
        }
    }

    #[cold]
    fn failure_of_journal(&self) -> Option<&str> {
        self.file.as_ref()?.journal()?.failure()
    }

    #[cold]
    fn wait(&self) {
        debug_assert!(!holding::is_held_back(self.id), "what is published waits");
        self.synchronise(&[]);
    }

    /// Makes what this thread has flushed durable, and what it has `held` back.
    #[cold]
    fn synchronise(&self, held: &[(usize, u64)]) {
        let runs = PENDING.with_borrow_mut(|pending| {
            let at = pending.iter().position(|(id, _)| *id == self.id)?;
            let (_, runs) = pending.swap_remove(at);
            if pending.is_empty() {
                **pending = Vec::new();
            }
            Some(runs)
        });
        let mut runs = runs.unwrap_or_default();
        runs.extend(held.iter().map(|(at, _)| at & !(LINE - 1)..(at | (LINE - 1)) + 1));
        if !runs.is_empty()
            && let Some(file) = &self.file
            && let Some(journal) = file.journal()
        {
            // A reference that is none into this pool may be flushed all the same.
            runs.retain(|run| run.end <= file.size());
            runs.sort_unstable_by_key(|run| run.start);
            // Each line once.
            runs.dedup_by(|next, run| {
                let touches = touch(run, next);
                if touches {
                    run.end = run.end.max(next.end);
                }
                touches
            });
            journal.write(file, &runs, held);
        }
    }
}

/// Whether two runs are one.
fn touch(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start <= other.end && other.start <= one.end
}

impl Medium for Hardware {
    #[inline(always)]
    fn store(&self, at: usize, word: &AtomicU64, value: u64, order: Ordering) {
        if self.duty == Duty::Slow {
            self.store_slowly(at, word, value, order);
        } else {
            word.store(value, order);
        }
    }

    #[inline]
    fn stream(&self, at: usize, words: &[Word], bytes: &[u8]) {
        if let Some(counters) = &self.counters {
            counters.stored(at, words.len());
        }
        let stores = words.iter().map(Word::atomic).zip(word::values(bytes));
        match self.domain {
            // What is written back to memory need not be fetched from there first.
            Domain::Adr | Domain::Eadr => {
                // SAFETY: nothing happens in between but that bytes are made words, and the fence follows.
                stores.for_each(|(word, value)| unsafe { stream(word, value) });
                store_fence();
                self.count_fence();
            }
            Domain::PageCache | Domain::Msync => stores.for_each(|(word, value)| word.store(value, Ordering::Relaxed)),
        }
    }

    #[inline(always)]
    fn compare_exchange(&self, at: usize, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        if self.duty == Duty::Slow {
            return self.exchange_slowly(at, word, current, new);
        }
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline(always)]
    fn flush(&self, lines: Lines<'_>) {
        // Whatever it comes to, it is a boundary to the compiler, for what is relaxed.
        compiler_fence(Ordering::SeqCst);
        match self.duty {
            Duty::Clwb => lines.each().for_each(|line| WriteBack::Clwb.line(line)),
            Duty::PageCache => {}
            Duty::Eadr if lines.count() <= Self::EADR_LINES_KEPT => {}
            Duty::Adr | Duty::Eadr => self.write_back(lines),
            Duty::Slow => self.flush_slowly(lines),
        }
    }

    #[inline(always)]
    fn fence(&self) {
        self.fence_as(self.duty);
    }

    fn publish(&self, act: impl FnOnce()) {
        if self.domain != Domain::Msync {
            self.fence();
            act();
            return self.fence();
        }
        // Nothing is durable without a file; one wait is counted, as with one.
        if self.file.as_ref().is_none_or(|file| file.journal().is_none()) {
            act();
            return self.fence();
        }
        let holding = Holding::begin(self.id);
        act();
        let held = holding.end();
        self.count_fence();
        self.synchronise(&held);
    }

    #[inline(always)]
    fn holds_back(&self) -> bool {
        self.domain == Domain::Msync
    }

    #[inline(always)]
    fn awaits_device(&self) -> bool {
        self.domain.awaits_device()
    }

    #[inline(always)]
    fn failure(&self) -> Option<&str> {
        // Asked at every write.
        if self.domain == Domain::Msync { self.failure_of_journal() } else { None }
    }
}

/// The id of a medium, and runs of its bytes.
type Runs = (u64, Vec<Range<usize>>);

thread_local! {
    /// Per medium, the lines this thread has flushed and not fenced: bytes of the pool. Never dropped, so that destructors that run as a thread ends may write:
    /// nothing is left behind a fence.
    static PENDING: RefCell<ManuallyDrop<Vec<Runs>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl WriteBack {
    /// Asked once: a hypervisor takes tens of microseconds to answer.
    fn of_this_processor() -> Self {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        static KNOWN: OnceLock<WriteBack> = OnceLock::new();
        *KNOWN.get_or_init(|| {
            let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
            if features & CLWB != 0 {
                Self::Clwb
            } else if features & CLFLUSHOPT != 0 {
                Self::Clflushopt
            } else {
                Self::Clflush
            }
        })
    }

    /// Starts the write-back of the line at `address`. The assembly blocks do not say `nomem`, so the compiler moves no store across them.
    #[inline(always)]
    fn line(self, address: *const u8) {
        use std::arch::asm;
        match self {
            // SAFETY: write-back changes no memory; the address is mapped (the caller has `Lines`); cpuid has told that the instruction exists.
            Self::Clwb => unsafe { asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags)) },
            // SAFETY: as above.
            Self::Clflushopt => unsafe { asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags)) },
            // SAFETY: as above; every x86-64 processor has this one.
            Self::Clflush => unsafe { asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags)) },
        }
    }
}

/// Stores past the caches, in no order with other stores.
///
/// # Safety
/// Until a [`store_fence`] the thread does nothing that others could see, but for more such stores.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn stream(word: &AtomicU64, value: u64) {
    // SAFETY: the word is valid for writes, as atomics are; the store is whole, as it is aligned to its size. Others see it as a relaxed one: it may come after
    // more such stores, but by the caller's promise before all else that follows.
    unsafe { std::arch::asm!("movnti [{}], {}", in(reg) word.as_ptr(), in(reg) value, options(nostack, preserves_flags)) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn store_fence() {
    // SAFETY: a store fence has no operands; not saying `nomem` keeps the compiler from moving stores across it.
    unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) }
}

#[cfg(miri)]
impl WriteBack {
    fn of_this_processor() -> Self {
        Self::Clflush
    }

    fn line(self, _address: *const u8) {}
}

#[cfg(miri)]
unsafe fn stream(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

#[cfg(miri)]
fn store_fence() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("Everleaf relies on the persistency model of x86-64 and on Linux; see docs/persistency-model.md");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Pm};

    /// Flushes through every domain and every instruction this processor has; that nothing faults is all a test without a power switch can see.
    #[test]
    fn every_domain_flushes_and_fences() {
        for (domain, nanoseconds) in Domain::ALL.into_iter().flat_map(|domain| [(domain, 0), (domain, 1)]) {
            let memory = Memory::new(64 << 10).unwrap();
            // SAFETY: the memory outlives `pm`, which is dropped first, at the end of the iteration.
            let pm = unsafe { Pm::new(Hardware::new(domain).with_write_latency(nanoseconds), memory.base(), memory.size()) };
            for count in [1, 4, 5, 600] {
                let words = pm.words(crate::Off::<u64>::new(4096), count * 8).unwrap();
                pm.store(&words[0], 1, Ordering::Relaxed);
                pm.stream(&words[1..], &[7; 600 * 64][..words.len() * 8 - 11]);
                assert!(words[1].get() == 0x0707_0707_0707_0707 && words[words.len() - 1].get() == 0x07_0707_0707, "all of it");
                pm.persist(words);
            }
            if domain != Domain::Msync {
                assert_eq!(pm.medium().failure(), None);
            }
        }
    }

    /// Flushes and fences were counted that do nothing, and the fence behind stores past the caches was not.
    #[test]
    fn what_is_counted_is_what_the_domain_asks_for() {
        for (domain, flushes, fences) in [(Domain::Adr, [1, 1], 2), (Domain::Eadr, [0, 1], 2), (Domain::PageCache, [0, 0], 0), (Domain::Msync, [1, 1], 1)] {
            let memory = Memory::new(64 << 10).unwrap();
            // SAFETY: the memory outlives `pm`, which is dropped first, at the end of the iteration.
            let pm = unsafe { Pm::new(Hardware::new(domain).with_counters(None), memory.base(), memory.size()) };
            let counts = || pm.medium().counters().unwrap().totals();
            let words = pm.words(crate::Off::<u64>::new(4096), 5 * LINE / 8).unwrap();
            pm.stream(words, &[7; 5 * LINE]);
            pm.flush(&words[..4 * LINE / 8]);
            assert_eq!((counts().flushes, counts().lines_flushed), (flushes[0], 4 * flushes[0]), "{domain}");
            pm.flush(words);
            assert_eq!((counts().flushes, counts().lines_flushed), (flushes[0] + flushes[1], 4 * flushes[0] + 5 * flushes[1]), "{domain}");
            pm.fence();
            assert_eq!((counts().fences, counts().stores), (fences, 5 * LINE as u64 / 8), "{domain}");
        }
    }

    /// Whatever a reference may point to can be flushed: memory of another pool, and what has no bytes and lies nowhere.
    #[test]
    fn a_flush_touches_no_line_but_those_of_its_target() {
        let memory = Memory::new(64 << 10).unwrap();
        let count = |from: usize, to: usize| Lines::of(&memory.words()[from..to], 1 << 40).count();
        assert_eq!([count(0, 8), count(7, 9), count(1, 8), count(3, 3), count(8192, 8192)], [1, 2, 1, 0, 0]);
        for domain in Domain::ALL {
            let hardware = Hardware::new(domain);
            hardware.flush(Lines::of(&[] as &[u64], usize::MAX));
            hardware.flush(Lines::of(&memory.words()[1..100], usize::MAX));
            hardware.fence();
        }
    }

    #[test]
    fn lines_are_remembered_per_medium_and_runs_merge() {
        let memory = Memory::new(4 * RUNS_MAX * 128).unwrap();
        // SAFETY: the memory outlives both, which are dropped first.
        let (pm, other) = unsafe {
            (Pm::new(Hardware::new(Domain::Msync), memory.base(), memory.size()), Pm::new(Hardware::new(Domain::Msync), memory.base(), memory.size()))
        };
        let all = |pm: &Pm<Hardware>| {
            PENDING.with_borrow(|pending| pending.iter().find(|(id, _)| *id == pm.medium().id).map_or(Vec::new(), |(_, runs)| runs.clone()))
        };
        let flush = |pm: &Pm<Hardware>, at: u64, count: usize| pm.flush(pm.words(crate::Off::<u64>::new(at), count).unwrap());
        for at in [4096, 4104, 4160, 40960] {
            flush(&pm, at, 1);
        }
        assert_eq!(all(&pm), [4096..4224, 40960..41024], "whole lines, each once");
        flush(&pm, 41016, 10);
        assert_eq!(all(&pm), [4096..4224, 40960..41152], "to the line of the last word");
        flush(&other, 4096, 1);
        assert_eq!((all(&pm).len(), all(&other).len()), (2, 1));
        pm.fence();
        assert_eq!((all(&pm).len(), all(&other).len()), (0, 1));
        assert_eq!(other.compare_exchange(&other.words(crate::Off::<u64>::new(8192), 1).unwrap()[0], 7, 8), Err(0));
        assert!(all(&other).is_empty(), "an exchange, even one that fails, completes what was flushed before it");
        for line in 1..2 * RUNS_MAX as u64 {
            flush(&pm, line * 128, 1);
            assert!(all(&pm).len() <= RUNS_MAX, "a bounded set");
        }
        assert!(all(&pm).len() < RUNS_MAX, "they were synchronised early");
        pm.fence();
    }
}
