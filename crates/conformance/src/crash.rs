//! The crash suites: after a crash at any moment, everything acknowledged is there, the operation under way happened or did not, and life goes on.
//!
//! [`every_crash`] runs *all* sequences of a few operations over four keys, from several shapes of the index, and recovers *every* image that a crash in the
//! last operation can leave (crashes in earlier ones are those of the shorter sequences). [`sampled_crash`] runs long random sequences on larger indexes, and
//! recovers every image of small crash points and a sample of those of large ones.
//!
//! The oracle, for each image:
//! 1. the pool opens, without a panic, in bounded steps;
//! 2. it holds what was acknowledged, with or without the operation under way;
//! 3. scans both ways and lookups agree, and the index's own check passes;
//! 4. what is reachable is what is allocated;
//! 5. a second recovery finds the same, and stores nothing outside of the pool's header;
//! 6. the index works: splits, merges, updates as the model says;
//! 7. a crash at any moment of the recovery leads to all of the above;
//! 8. after some more operations a crash at any moment of those, too.
//!
//! Two images that are equal byte for byte, with the same promises, are examined once.

mod checker;
mod report;
mod shapes;

pub use report::{Report, Violation};
pub use shapes::Shape;

use crate::{Change, Class};
use checker::Checker;
use everleaf_index::Entry;
use everleaf_pmem::{Crash, CrashOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How much to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest sequence of operations for [`every_crash`]. Default 3.
    pub operations: usize,
    /// For [`sampled_crash`]: what to make up.
    pub random: Option<Random>,
    /// How deep recoveries are crashed: 1 crashes the recovery, 2 also the recovery from that. Default 1.
    pub depth: u32,
    /// Every how many images the recovered index is used on. Default 1: always.
    pub follow_up_every: u64,
    /// Every how many images there is a second life. Default 64.
    pub second_life_every: u64,
    /// How the images of a crash point are chosen.
    pub life: CrashOptions,
    /// Only the shape of this name.
    pub shape: Option<String>,
    /// Number of threads, each with a memory of its own. Default 2.
    pub threads: usize,
    /// Size of the memory in bytes. Default 256 KiB.
    pub memory: usize,
    /// Size of a slab in bytes. Default 4 KiB.
    pub slab: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What [`sampled_crash`] makes up.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Operations of a sequence.
    pub operations: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Number of keys they speak of.
    pub keys: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            operations: 3,
            random: None,
            depth: 1,
            follow_up_every: 1,
            second_life_every: 64,
            life: CrashOptions::default(),
            shape: None,
            threads: 2,
            memory: 256 << 10,
            slab: 4 << 10,
            seed: 0,
        }
    }
}

/// A run without progress for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs all sequences of at most `options.operations` operations from every shape, and examines every image of every crash point.
pub fn every_crash<K: Class + ?Sized>(entry: Entry<K, Crash>, options: Options) -> Report {
    let shapes: Vec<Shape> = Shape::all(entry.leaf_capacity).into_iter().filter(|shape| options.shape.as_ref().is_none_or(|name| shape.name == name)).collect();
    // An item of work is a shape and the first operation; that without one crashes the opening.
    let items = shapes.len() * (SYMBOLS + 1);
    distribute(
        entry,
        options,
        items,
        move |item| shapes[item / (SYMBOLS + 1)].clone(),
        |checker, item| match item % (SYMBOLS + 1) {
            SYMBOLS => checker.run(&[]),
            first => explore(checker, &mut vec![first], &mut Vec::new()),
        },
    )
}

/// Creates the index, then fills it by a bulk load of some leaves, and examines every image of every crash point.
pub fn birth<K: Class + ?Sized>(entry: Entry<K, Crash>, options: Options) -> Report {
    let count = entry.leaf_capacity as u32 * 2 + 1;
    distribute(entry, options, 1, |_| Shape::unborn(), move |checker, _| checker.run_birth(count))
}

/// Runs random sequences as `options.random` says, and examines every image of small crash points and a sample of those of large ones.
///
/// # Panics
/// If `options.random` is not set.
pub fn sampled_crash<K: Class + ?Sized>(entry: Entry<K, Crash>, options: Options) -> Report {
    let random = options.random.expect("how much to make up");
    let shape = Shape::all(entry.leaf_capacity).swap_remove(0);
    let seed = options.seed;
    distribute(
        entry,
        options,
        random.sequences,
        move |_| shape.clone(),
        move |checker, item| {
            let mut choice = StdRng::seed_from_u64(seed.wrapping_add(item as u64));
            let mut payload = 1;
            // Long runs of puts alternate with long runs of deletes, so that leaves split and merge.
            checker.run_long(random.operations, |model| {
                payload += 1;
                let key = choice.random_range(0..random.keys);
                let growing = payload / u64::from(random.keys) % 2 == 0;
                if choice.random_ratio(if growing { 4 } else { 1 }, 5) || model.is_empty() { Change::Put(key, payload) } else { Change::Delete(key) }
            });
        },
    )
}

/// Runs one sequence of operations from the shape that `options` name, and examines every image of a crash in the last.
///
/// # Panics
/// If there is no such shape.
pub fn replay<K: Class + ?Sized>(entry: Entry<K, Crash>, mut options: Options, changes: Vec<Change>) -> Report {
    options.threads = 1;
    let named = |shape: &Shape| options.shape.as_ref() == Some(&shape.name.to_owned());
    let shape = Shape::all(entry.leaf_capacity).into_iter().find(named).expect("a shape of that name");
    distribute(entry, options, 1, move |_| shape.clone(), move |checker, _| checker.run(&changes))
}

/// Put and delete of each of the four keys of a shape.
const SYMBOLS: usize = 8;

/// Runs the sequence of `symbols` and all that begin with it.
fn explore<K: Class + ?Sized>(checker: &Arc<Checker<K>>, symbols: &mut Vec<usize>, changes: &mut Vec<Change>) {
    spell(checker, symbols, changes);
    checker.run(changes);
    if symbols.len() < checker.operations() {
        for symbol in 0..SYMBOLS {
            if checker.is_broken() {
                return;
            }
            symbols.push(symbol);
            explore(checker, symbols, changes);
            symbols.pop();
        }
    }
}

/// The operations that `symbols` stand for.
fn spell<K: Class + ?Sized>(checker: &Checker<K>, symbols: &[usize], changes: &mut Vec<Change>) {
    let shape = checker.shape();
    changes.clear();
    for symbol in symbols {
        let key = shape.keys[symbol / 2];
        let last = changes.iter().rev().chain(shape.changes.iter().rev()).find_map(|change| match change {
            Change::Put(other, payload) if *other == key => Some(Some(*payload)),
            Change::Delete(other) if *other == key => Some(None),
            _ => None,
        });
        changes.push(if symbol % 2 == 0 { shape.put(key, last.flatten()) } else { Change::Delete(key) });
    }
}

/// Spreads `items` of work over threads, each with a memory of its own, and collects what they did. The first violation ends the run.
fn distribute<K: Class + ?Sized>(
    entry: Entry<K, Crash>,
    options: Options,
    items: usize,
    shape: impl Fn(usize) -> Shape + Clone + Send + 'static,
    work: impl Fn(&Arc<Checker<K>>, usize) + Clone + Send + 'static,
) -> Report {
    let begun = Instant::now();
    let (entry, options) = (Arc::new(entry), Arc::new(options));
    let (next, steps) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let (sender, receiver) = mpsc::channel();
    let current: Vec<_> = (0..options.threads).map(|_| Arc::new(parking_lot::Mutex::new(None::<Arc<Checker<K>>>))).collect();
    for current in &current {
        let (entry, options, next, steps, sender) = (Arc::clone(&entry), Arc::clone(&options), Arc::clone(&next), Arc::clone(&steps), sender.clone());
        let (current, shape, work) = (Arc::clone(current), shape.clone(), work.clone());
        std::thread::spawn(move || {
            let mut report = Report::default();
            while report.violation.is_none() {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                let wanted = shape(item);
                let kept = current.lock().take().filter(|checker| checker.shape().name == wanted.name);
                let checker = match kept.map_or_else(|| Checker::new(Arc::clone(&entry), Arc::clone(&options), wanted, Arc::clone(&steps)), Ok) {
                    Ok(checker) => checker,
                    Err(broken) => {
                        report.violation = Some(Violation::before_any_crash(&entry, broken));
                        break;
                    }
                };
                *current.lock() = Some(Arc::clone(&checker));
                work(&checker, item);
                report.add(checker.report());
            }
            if report.violation.is_some() {
                next.store(items, Ordering::Relaxed);
            }
            // The receiver is gone only if another thread was found stuck.
            let _ = sender.send(report);
        });
    }
    drop(sender);
    let mut report = Report::default();
    let mut seen_steps = 0;
    loop {
        match receiver.recv_timeout(PATIENCE) {
            Ok(part) => report.add(part),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let now = steps.load(Ordering::Relaxed);
                if now == seen_steps {
                    let stuck = current.iter().find_map(|checker| checker.lock().as_ref().map(|checker| checker.stuck()));
                    report.violation = report.violation.or(stuck);
                    break;
                }
                seen_steps = now;
            }
        }
    }
    report.took = begun.elapsed();
    report
}
