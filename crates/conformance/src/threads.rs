//! Threads under a deterministic scheduler, with crashes.
//!
//! A schedule is two to four threads, each with a few calls on neighbouring keys, on the crash checker's medium. A step is a load, a store, a flush, a fence or
//! a lock ([`everleaf_pmem::schedule`]). The schedule's seed determines which thread takes each step, and everything else, so a failure can be reproduced from
//! its seed. At some fences, and at the end, images that a crash may leave are recovered, given what *each thread* has flushed and fenced by then. For each
//! image:
//! 1. some order of the calls (`threads/history.rs`) explains its content, so no returned result is taken back: durable linearizability;
//! 2. scans, lookups and the structure's own check agree, and exactly the reachable blocks are allocated;
//! 3. a second recovery finds the same, and has nothing to repair;
//! 4. sometimes it is used further, recovered by several threads, and, if there was something to repair, crashed during the repair.
//!
//! When all threads are done, the same is checked for what they leave without a crash.
//!
//! In half of the schedules a thread's stores become visible to others, and to the medium, only later, as with the store buffers of x86 (`threads/baton.rs`).
//!
//! No images are examined between two crash points, so all loads are watched too. A thread that reads another thread's store that is not durable incurs a debt.
//! If it returns while that store is still not durable, the image that loses just this store is examined. This costs almost nothing while no such read happens,
//! so long runs without images ([`Options::crash_every`] 0) are worthwhile. It reports only what an image confirms.

mod baton;
mod crew;
mod history;
#[cfg(test)]
mod litmus;
mod run;
mod sleep;
mod store;
mod story;
mod table;
mod target;

pub use baton::Omission;
pub use history::{Operation, Returned};
pub use store::Store;
pub use story::Violation;
pub use table::Table;
pub use target::{Index, Mood, Target, World};

use everleaf_pmem::{Act, CrashOptions, Fault, Profile, Site};
use parking_lot::Mutex;
use run::{Schedule, Worker};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How much to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of schedules.
    pub schedules: u64,
    /// Seed of the first; each following one has its own.
    pub seed: u64,
    /// Seed of the order of steps. Default none: it follows from the seed.
    pub order: Option<u64>,
    /// Calls to leave out, by number of thread and of call. Default none.
    pub without: Vec<(usize, usize)>,
    /// Whether a violation is shrunk to as few calls as possible. Default yes.
    pub shrinks: bool,
    /// A crash is examined at about every n-th fence, and at the end; 0: never. Default 2.
    pub crash_every: u64,
    /// Show every image of a crash point that has at most this many, and a sample of the others. Default 8.
    pub images_max: u64,
    /// One in this many recovered images is used further. Default 8.
    pub follow_up_every: u64,
    /// A schedule with more steps counts as endless. Default 1 M.
    pub steps_max: u64,
    /// A part of a protocol to leave out, to show that the checker notices.
    pub omission: Option<Omission>,
    /// A mistake at each place like this, also in recoveries. Default none.
    pub fault: Option<Fault>,
    /// Where to note the places that the run reaches at which a mistake could be made.
    pub profile: Option<Arc<Profile>>,
    /// A fence that is delayed to the end of its call, so that latches are free before what they guarded is durable. Default none.
    pub late_fence: Option<Site>,
    /// Where to note every part of a protocol that the run reaches and that could be left out.
    pub sites: Option<Arc<Mutex<BTreeSet<Omission>>>>,
    /// Whether stores are held back in store buffers. Default: in half of the schedules, depending on their seeds.
    pub store_buffers: Option<bool>,
    /// Whether the cache is in the persistence domain, and flushes do nothing: a crash loses only what is in the store buffers. Default no.
    pub durable_cache: bool,
    /// Whether the medium is one that waits for a device; see [`CrashOptions::awaits_device`]. Default no.
    pub awaits_device: bool,
    /// Number of workers, each of which runs one schedule at a time. Default 2.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedules: 1000,
            seed: 0,
            order: None,
            without: Vec::new(),
            shrinks: true,
            crash_every: 2,
            images_max: 8,
            follow_up_every: 8,
            steps_max: 1 << 20,
            omission: None,
            fault: None,
            profile: None,
            late_fence: None,
            sites: None,
            store_buffers: None,
            durable_cache: false,
            awaits_device: false,
            workers: 2,
        }
    }
}

impl Options {
    fn life(&self, seed: u64) -> CrashOptions {
        let Self { images_max, awaits_device, durable_cache: stores_are_durable, .. } = *self;
        let fault = self.fault.or(self.late_fence.map(|site| Fault { site, act: Act::Drop }));
        CrashOptions {
            seed,
            images_max,
            sample_count: 4,
            stores_are_durable,
            drops_flushes: stores_are_durable,
            awaits_device,
            fault,
            profile: self.profile.clone(),
            ..CrashOptions::default()
        }
    }

    /// The options of the life in which an image is recovered.
    fn recovery(&self) -> CrashOptions {
        CrashOptions { fault: self.fault, ..CrashOptions::default() }
    }

    /// The n-th schedule.
    fn schedule(&self, number: u64) -> Schedule {
        let seed = self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Schedule { seed, order: self.order.unwrap_or(!seed), without: self.without.clone() }
    }

    /// The command that reproduces one schedule.
    fn replay(&self, name: &str, schedule: &Schedule) -> String {
        let Schedule { seed, order, without } = schedule;
        let shorter = match without[..] {
            [] => String::new(),
            _ => format!(" --order {order:#x} --without {}", without.iter().map(|(thread, number)| format!("{thread}.{number}")).collect::<Vec<_>>().join(",")),
        };
        let omission = self.omission.as_ref().map_or_else(String::new, |omission| format!(" --omit {omission}"));
        let cache = if self.durable_cache { " --durable-cache" } else { "" };
        let device = if self.awaits_device { " --awaits-device" } else { "" };
        let buffers = self.store_buffers.map_or_else(String::new, |on| format!(" --store-buffers {on}"));
        let Self { crash_every, images_max, follow_up_every, .. } = self;
        format!(
            "cargo xtask crash threads --index {name} --seed {seed:#x} --schedules 1{shorter} --crash-every {crash_every} --images-max {images_max} \
             --follow-up-every {follow_up_every}{omission}{buffers}{cache}{device}"
        )
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Schedules.
    pub schedules: u64,
    /// Calls that returned.
    pub operations: u64,
    /// Steps at which the scheduler could switch.
    pub steps: u64,
    /// Number of switches that it made.
    pub switches: u64,
    /// Images shown.
    pub images: u64,
    /// Images recovered and checked: those that did not equal an earlier one with the same promises.
    pub checked: u64,
    /// Loads of another thread's store that was not durable.
    pub dirty_reads: u64,
    /// Of these, those that were not durable when the call returned, and for which an image was made.
    pub suspicions: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.operations += other.operations;
        self.steps += other.steps;
        self.switches += other.switches;
        self.images += other.images;
        self.checked += other.checked;
        self.dirty_reads += other.dirty_reads;
        self.suspicions += other.suspicions;
    }
}

/// What a run did, and the first violation.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counts.
    pub counts: Counts,
    /// How long it took.
    pub took: Duration,
    /// The first violation.
    pub violation: Option<Box<Violation>>,
}

impl Report {
    /// Panics with the story if a rule was broken.
    ///
    /// # Panics
    /// If a rule was broken.
    pub fn assert_clean(&self) {
        if let Some(violation) = &self.violation {
            panic!("{violation}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { schedules, operations, steps, switches, images, checked, dirty_reads, suspicions } = self.counts;
        let minutes = self.took.as_secs_f64() / 60.0;
        write!(
            f,
            "{schedules} schedules, {operations} operations, {steps} steps, {switches} switches, {images} images, {checked} checked, {dirty_reads} dirty \
             reads, {suspicions} suspicious, {} violations, {:.1} s; {:.0} schedules a minute",
            u32::from(self.violation.is_some()),
            self.took.as_secs_f64(),
            schedules as f64 / minutes
        )
    }
}

/// Runs schedules on `target`, and occasionally calls `progress` with the number of those done.
///
/// # Panics
/// In a build without debug assertions, which has no scheduling points.
pub fn run<T: Target>(target: T, options: Options, progress: impl Fn(u64) + Sync) -> Report {
    if !everleaf_pmem::schedule::IS_BUILT_IN {
        panic!("threads are scheduled in builds with debug assertions only: cargo run --profile test");
    }
    let begun = Instant::now();
    let (target, options) = (Arc::new(target), Arc::new(options));
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut report = Report::default();
        let worker = match Worker::new(Arc::clone(&target), Arc::clone(&options)) {
            Ok(worker) => worker,
            Err(broken) => {
                report.violation = Some(Box::new(Violation::before_any_thread(target.name(), broken)));
                return report;
            }
        };
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= options.schedules {
                break;
            }
            let (counts, violation) = worker.run(&options.schedule(number));
            report.counts += counts;
            if violation.is_some() {
                stop.store(true, Ordering::Relaxed);
                report.violation = violation;
            }
            if number.is_multiple_of(64) {
                progress(number);
            }
        }
        report
    };
    let mut report = Report::default();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..options.workers.max(1)).map(|_| scope.spawn(work)).collect();
        for handle in handles {
            let part = handle.join().expect("a worker reports what panics");
            report.counts += part.counts;
            report.violation = report.violation.take().or(part.violation);
        }
    });
    report.took = begun.elapsed();
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same seed must give the same schedule, step by step: otherwise failures could not be reproduced.
    #[test]
    fn a_seed_is_a_schedule() {
        fn check<T: Target>(make: impl Fn() -> T) {
            let worker = || Worker::new(Arc::new(make()), Arc::new(Options::default())).expect("worlds are built");
            let (first, second) = (worker(), worker());
            for number in 0..40 {
                let schedule = Options::default().schedule(number);
                let trace = first.trace(&schedule);
                assert!(trace.len() > 4, "{trace:?}");
                assert_eq!(trace, first.trace(&schedule), "{schedule:x?} again");
                assert_eq!(trace, second.trace(&schedule), "{schedule:x?} by another worker");
            }
        }
        check(|| Index::<u64>::named("isle-128"));
        check(|| Index::<[u8]>::named("isle-128"));
        check(|| Store { index: "isle-128" });
        check(|| Table);
    }
}
