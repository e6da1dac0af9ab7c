//! Runs a case on a system, once.
//!
//! ```text
//! create -> load (one thread) -> phase 1 -> phase 2 -> ...      each phase: all threads wait for each other, work, and stop
//! ```
//!
//! Every answer is checked: a value must belong to its key, a key that should be there must be found. Wrong answers are an error, not a figure.

mod worker;

use crate::keys::{KEY_COUNT_MAX, Keys, Population, version_of};
use crate::plan::{Access, Case, Distribution, KeyKind, Load, Measure, Memory, Mix, Parameters, Phase};
use crate::result::{Metric, metric};
use crate::{Capabilities, Error, Instance, Setting, Shutdown, System, child, workload};
use everleaf_index::Rebuilds;
use everleaf_pmem::htm::{Abort, Statistics};
use everleaf_pmem::{Counts, Domain};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker::Worker;

/// Figures of a phase, by name.
pub type Metrics = BTreeMap<String, Metric>;

/// Shares of leaves that can be filled by loading in bulk.
const FILLS: RangeInclusive<f64> = 0.1..=1.0;
/// Exponents of Zipf's law. The larger ones take one key nearly always.
const EXPONENTS: RangeInclusive<f64> = 0.0..=10.0;
/// Most operations of a phase: months of them.
const OPERATIONS_MAX: u64 = 1 << 40;
/// As many operations of a tree take as long as a request through a socket, about: a client that waits for each has one in 70 us, and several, which keep the
/// processors awake, have one in 8 to 30.
const REQUEST: u64 = 64;
/// The same of an operation whose instructions are counted.
const INSTRUMENTED: u64 = 50;
/// Most threads of a phase.
pub(crate) const THREADS_MAX: u16 = 256;
/// Longest latency that is told apart from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What every case of a run shares.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Seed of keys and choices.
    pub seed: u64,
    /// Set to end the run early.
    pub stop: &'a AtomicBool,
    /// How this program measures one case in a process of its own, if it can.
    pub child: Option<&'a child::Program>,
}

impl Context<'_> {
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Why a system cannot do a case; `None` if it can.
pub(crate) fn obstacle(case: &Case, capabilities: &Capabilities) -> Option<&'static str> {
    let Case { workload, parameters } = case;
    let needs_scans = workload.phases.iter().any(|phase| phase.mix.scan > 0.0);
    let odd = parameters.key != KeyKind::Integer || parameters.value_bytes != 8;
    let fill = workload.load.is_some_and(|load| load.fill.is_some());
    [
        (needs_scans && !capabilities.scans, "it has no scans"),
        (parameters.threads > 1 && !capabilities.threads, "it is for one thread"),
        (odd && !capabilities.any_size, "it has keys and values of 8 bytes only"),
        (fill && capabilities.leaf_bytes.is_none(), "it has no leaves that are filled as one asks"),
        (parameters.write_latency_ns > 0 && !capabilities.write_latency, "its writes cannot be slowed down"),
        (parameters.measure == Measure::Counts && !capabilities.counts, "it does not count"),
        (parameters.measure == Measure::Recovery && !capabilities.persistent, "it does not outlive the process"),
        (parameters.measure == Measure::Instructions && !capabilities.alone, "instructions of other threads, which work for it, would be left out"),
        (capabilities.lacks_transactions, "this processor has no transactions (RTM): it would be measured without them"),
    ]
    .into_iter()
    .find_map(|(hinders, why)| hinders.then_some(why))
}

/// Runs a case: names of its measured phases, and their figures. What was stopped in its middle is left out.
///
/// # Errors
/// A case that makes no sense; whatever the system fails by; wrong answers.
pub fn run(system: &dyn System, case: &Case, context: Context<'_>) -> Result<Vec<(String, Metrics)>, Error> {
    check(case)?;
    match case.parameters.measure {
        Measure::Time | Measure::Latency | Measure::Counts => phases(system, case, context),
        Measure::Recovery => recovery(system, case, context),
        Measure::Space => space(system, case, context),
        Measure::Instructions => instructions(system, case, context),
    }
}

/// What `case` will hold at most, and whether its phases go together.
///
/// # Errors
/// [`Error::Usage`], which says why it makes no sense.
pub(crate) fn check(case: &Case) -> Result<(), Error> {
    let Case { workload, parameters } = case;
    let wrong = |message: String| Err(Error::Usage(format!("workload {}: {message}", workload.name)));
    if parameters.keys == 0 || keys_max(case) >= KEY_COUNT_MAX {
        return wrong(format!("{} keys in all; there can be from 1 to {KEY_COUNT_MAX}", keys_max(case)));
    }
    if parameters.value_bytes == 0 {
        return wrong("values of no byte; the least have one, by which it is seen whose they are".into());
    }
    if !(1..=THREADS_MAX).contains(&parameters.threads) {
        return wrong(format!("{} threads; from 1 to {THREADS_MAX} are possible", parameters.threads));
    }
    if parameters.key.bytes() < 8 {
        return wrong(format!("keys of {} bytes; the least are 8, so that enough of them differ", parameters.key.bytes()));
    }
    if let Err(message) = parameters.domain.parse::<Domain>() {
        return wrong(message);
    }
    if parameters.write_latency_ns > 0 && ![Domain::Adr.name(), Domain::Eadr.name()].contains(&parameters.domain.as_str()) {
        return wrong(format!("writes cannot be slowed down in domain {}, where no line is written back", parameters.domain));
    }
    if parameters.domain == Domain::Msync.name() && parameters.memory == Memory::Anonymous {
        return wrong("domain msync needs files: other memory has no device behind it; choose a directory on the device by --directory".into());
    }
    if let Some(fill) = workload.load.and_then(|load| load.fill)
        && !FILLS.contains(&fill)
    {
        return wrong(format!("leaves filled to {fill}; from {} to {} is possible", FILLS.start(), FILLS.end()));
    }
    // As many keys as there can be at most.
    let mut count = if workload.load.is_some() { parameters.keys } else { 0 };
    for (at, phase) in workload.phases.iter().enumerate() {
        let operations = operations(phase, parameters);
        if !(1..=OPERATIONS_MAX).contains(&operations) {
            return wrong(format!("phase {} has {operations} operations; from 1 to {OPERATIONS_MAX} are possible", phase.name));
        }
        if let Some(why) = lack(phase, operations, count) {
            return wrong(why);
        }
        count = if phase.mix.insert > 0.0 { count + operations } else { count };
        if let Distribution::Zipfian(exponent) | Distribution::Latest(exponent) = phase.distribution
            && !EXPONENTS.contains(&exponent)
        {
            return wrong(format!("phase {}: Zipf's law with exponent {exponent}; from {} to {} is possible", phase.name, EXPONENTS.start(), EXPONENTS.end()));
        }
        let are_removed = phase.mix.delete > 0.0 && !is_shared_out(&phase.mix);
        if are_removed && !matches!(phase.distribution, Distribution::Uniform | Distribution::Sequential) {
            return wrong(format!("phase {} only deletes, each key once: its distribution is uniform or sequential, as others take keys again", phase.name));
        }
        // Which are left is known if none are.
        count = if are_removed { 0 } else { count };
        if are_removed && operations < parameters.keys && at + 1 < workload.phases.len() {
            return wrong(format!("phase {} leaves some keys, nobody knows which, and is not the last", phase.name));
        }
        let shares = shares(&phase.mix);
        let (sum, kinds) = (shares.iter().sum::<f64>(), shares.iter().filter(|share| **share > 0.0).count());
        if !sum.is_finite() || sum <= 0.0 || shares.iter().any(|share| *share < 0.0) {
            return wrong(format!("phase {} is a mix of nothing", phase.name));
        }
        let batches = phase.mix.search + phase.mix.insert;
        if matches!(phase.access, Access::Batch(size) if size == 0 || kinds > 1 || batches <= 0.0) {
            return wrong(format!("phase {}: batches are of lookups alone, or of inserts alone", phase.name));
        }
        if phase.access == Access::Dependent && phase.mix.search + phase.mix.modify <= 0.0 {
            return wrong(format!("phase {} looks up nothing that a next operation could depend on", phase.name));
        }
    }
    Ok(())
}

/// Which keys a phase needs that are not there; `None` if `count` are enough.
fn lack(phase: &Phase, operations: u64, count: u64) -> Option<String> {
    let mix = &phase.mix;
    let uses_keys = mix.search + mix.update + mix.delete + mix.scan + mix.modify > 0.0;
    if uses_keys && count == 0 {
        return Some(format!("phase {} needs keys, and there are none", phase.name));
    }
    let is_too_much = mix.delete > 0.0 && !is_shared_out(mix) && operations > count;
    is_too_much.then(|| format!("phase {} deletes {operations} of {count} keys", phase.name))
}

/// Whether each thread works on a share of the keys that is its own: keys go away and come back, and only who does that knows which are there.
fn is_shared_out(mix: &Mix) -> bool {
    mix.delete > 0.0 && *mix != Mix { delete: mix.delete, ..workload::NONE }
}

fn operations(phase: &Phase, parameters: &Parameters) -> u64 {
    let scans = phase.mix.scan > 0.0 && phase.mix.insert == 0.0;
    phase.operations.unwrap_or(if scans { (parameters.keys / u64::from(parameters.scan_length.max(1))).max(100) } else { parameters.keys })
}

/// Keys that a case inserts at most.
fn keys_max(case: &Case) -> u64 {
    let loaded = if case.workload.load.is_some() { case.parameters.keys } else { 0 };
    let inserted = case.workload.phases.iter().filter(|phase| phase.mix.insert > 0.0).map(|phase| operations(phase, &case.parameters));
    loaded.saturating_add(inserted.fold(0, u64::saturating_add))
}

/// How long a case takes, about: as many operations of a tree, loading included.
pub(crate) fn effort(case: &Case, capabilities: &Capabilities) -> u64 {
    let loaded = if case.workload.load.is_some() { case.parameters.keys } else { 0 };
    let operations = loaded + case.workload.phases.iter().map(|phase| operations(phase, &case.parameters)).sum::<u64>();
    let each = match case.parameters.measure {
        Measure::Instructions => INSTRUMENTED,
        _ if capabilities.by_requests => REQUEST,
        _ => 1,
    };
    operations * each
}

/// A directory for an instance, gone when it is dropped.
pub(crate) struct Place(Option<tempfile::TempDir>);

impl Place {
    pub(crate) fn new(memory: &Memory, needs_file: bool) -> Result<Self, Error> {
        let parent = match memory.directory() {
            Some(path) => path.to_owned(),
            None if needs_file => memory_directory(),
            None => return Ok(Self(None)),
        };
        let directory = tempfile::Builder::new().prefix("everleaf-lab").tempdir_in(&parent);
        Ok(Self(Some(directory.map_err(|source| Error::io("create a directory in", &parent, source))?)))
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|directory| directory.path().to_owned())
    }
}

/// Where files lie in memory, if the system has such a place.
pub fn memory_directory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

fn setting(case: &Case, directory: Option<PathBuf>) -> Result<Setting, Error> {
    let parameters = &case.parameters;
    let domain = parameters.domain.parse::<Domain>().map_err(|error| Error::Usage(error.to_string()))?;
    let Parameters { key, value_bytes, threads, write_latency_ns, prefault, measure, .. } = *parameters;
    let huge_pages = parameters.memory.has_huge_pages();
    Ok(Setting { keys_max: keys_max(case), key, value_bytes, threads, domain, write_latency_ns, directory, huge_pages, prefault, measure })
}

/// How one was created, for those who describe it.
pub(crate) fn describe(system: &dyn System, case: &Case) -> Result<String, Error> {
    let Parameters { memory, measure, .. } = &case.parameters;
    let has_file = system.capabilities().needs_files || matches!(measure, Measure::Space | Measure::Recovery);
    let directory = memory.directory().map(Path::to_owned).or_else(|| has_file.then(memory_directory));
    Ok(system.durability(&setting(case, directory)?))
}

/// Creates and loads; what it holds.
fn prepare(system: &dyn System, case: &Case, directory: Option<PathBuf>, keys: Keys, context: Context<'_>) -> Result<(Box<dyn Instance>, Population), Error> {
    let instance = system.create(&setting(case, directory)?)?;
    let mut population = Population::default();
    if let Some(load) = case.workload.load {
        fill(instance.as_ref(), load, &case.parameters, keys, &mut population, context)?;
    }
    Ok((instance, population))
}

/// Loads an instance: in bulk if leaves are to be filled to some share, else by inserting one after the other.
fn fill(instance: &dyn Instance, load: Load, parameters: &Parameters, keys: Keys, population: &mut Population, context: Context<'_>) -> Result<(), Error> {
    let first = population.reserve(load.order, parameters.keys);
    population.add(first, parameters.keys);
    if let Some(fill) = load.fill {
        let mut numbers: Vec<u64> = (first..first + parameters.keys).collect();
        numbers.sort_unstable_by_key(|number| keys.integer(*number));
        return instance.bulk_load(&mut numbers.into_iter().map(|number| keys.entry(number, parameters.value_bytes)), fill);
    }
    let mut handle = instance.handle()?;
    for number in first..first + parameters.keys {
        if context.stopped() {
            return Ok(());
        }
        let (key, value) = keys.entry(number, parameters.value_bytes);
        handle.insert(&key, &value)?;
    }
    Ok(())
}

fn phases(system: &dyn System, case: &Case, context: Context<'_>) -> Result<Vec<(String, Metrics)>, Error> {
    let place = Place::new(&case.parameters.memory, system.capabilities().needs_files)?;
    let keys = Keys { kind: case.parameters.key, seed: context.seed };
    let (instance, mut population) = prepare(system, case, place.path(), keys, context)?;
    let (mut measured, mut done) = (Vec::new(), 0);
    for phase in &case.workload.phases {
        // What is not loaded to the end has not the keys that it should have.
        if context.stopped() {
            break;
        }
        let mut metrics = run_phase(system.name(), instance.as_ref(), phase, &case.parameters, keys, &mut population, context)?;
        if context.stopped() {
            break;
        }
        done += operations(phase, &case.parameters);
        if phase.measured {
            put(&mut metrics, metric::OPERATIONS, done as f64, "");
            measured.push((phase.name.clone(), metrics));
        }
    }
    Ok(measured)
}

/// What a phase's threads share.
struct Work<'a> {
    phase: &'a Phase,
    parameters: &'a Parameters,
    keys: Keys,
    population: &'a Population,
    /// The numbers of all keys, in the order of these, of a phase with scans in which that does not change.
    sorted: Option<Vec<u64>>,
    operations: u64,
    /// The number of the first key that is inserted.
    insert_base: u64,
    /// Whether each operation is to be looked at by itself: there is one thread, and something to see.
    marked: bool,
    context: Context<'a>,
}

fn run_phase(
    name: &str,
    instance: &dyn Instance,
    phase: &Phase,
    parameters: &Parameters,
    keys: Keys,
    population: &mut Population,
    context: Context<'_>,
) -> Result<Metrics, Error> {
    let operations = operations(phase, parameters);
    let mix = &phase.mix;
    // A mix may have inserted fewer than it could.
    if let Some(why) = lack(phase, operations, population.count()) {
        return Err(Error::Usage(why));
    }
    let marked = parameters.threads == 1 && parameters.measure != Measure::Time && mix.insert > 0.0 && phase.access == Access::Independent;
    let insert_base = if mix.insert > 0.0 { population.reserve(phase.order, operations) } else { 0 };
    let sorted = (mix.scan > 0.0 && mix.insert + mix.delete == 0.0).then(|| {
        let mut numbers: Vec<u64> = (0..population.count()).map(|place| population.number(place)).collect();
        numbers.sort_unstable_by_key(|number| keys.integer(*number));
        numbers
    });
    let work = Work { phase, parameters, keys, population, sorted, operations, insert_base, marked, context };
    if phase.touches_ahead {
        instance.touch_ahead(operations)?;
    }
    if let Some(counters) = instance.counters() {
        counters.reset();
    }
    let before = instance.marks();
    let outcome = run_threads(instance, &work)?;
    let mut metrics = Metrics::new();
    if context.stopped() {
        return Ok(metrics);
    }
    if outcome.wrong > 0 {
        return Err(Error::WrongAnswers { system: name.into(), phase: phase.name.clone(), count: outcome.wrong });
    }
    outcome.report(parameters, &mut metrics);
    if let (Measure::Counts, Some(counters)) = (parameters.measure, instance.counters()) {
        report_counts(&counters.totals(), operations, &mut metrics);
    }
    if let (Some(before), Some(after)) = (before, instance.marks()) {
        // An update divides leaves, too, where they keep what was, as NV-Tree's do.
        if mix.insert + mix.update + mix.modify + mix.delete > 0.0 {
            put(&mut metrics, metric::SPLITS, (after.splits - before.splits) as f64 / operations as f64, "1/op");
            put(&mut metrics, metric::LEAVES, after.leaves as f64, "");
            put(&mut metrics, metric::REBUILDS, (after.rebuilds.count - before.rebuilds.count) as f64, "");
            if parameters.measure == Measure::Time {
                put(&mut metrics, metric::REBUILD_SHARE, (after.rebuilds.time - before.rebuilds.time).div_duration_f64(outcome.busy), "x");
            }
            if after.rebuilds.count > before.rebuilds.count {
                let Rebuilds { first, last, .. } = after.rebuilds;
                put(&mut metrics, metric::FIRST_REBUILD, first.bytes as f64, "B");
                put(&mut metrics, metric::LAST_REBUILD, last.bytes as f64, "B");
                // Of counts, nothing is told that another run would not count as well.
                if parameters.measure == Measure::Time {
                    put(&mut metrics, metric::REBUILD_PER_LEAF, last.time.as_nanos() as f64 / last.leaves as f64, "ns");
                }
            }
        }
        if let (Some(before), Some(after)) = (before.transactions, after.transactions) {
            report_transactions(before, after, operations, &mut metrics);
        }
    }
    if is_shared_out(mix) {
        population.replace(outcome.left);
    } else if mix.delete > 0.0 {
        // Which keys are left is known if none are; so nothing that needs keys can follow.
        *population = Population::default();
    } else {
        outcome.inserted.iter().for_each(|(first, count)| population.add(*first, *count));
    }
    Ok(metrics)
}

fn report_transactions(before: Statistics, after: Statistics, operations: u64, metrics: &mut Metrics) {
    let mut rate = |name: &str, count: u64| put(metrics, name, count as f64 / operations as f64, "1/op");
    let aborts = Abort::ALL.map(|reason| (reason, after.aborts[reason as usize] - before.aborts[reason as usize]));
    rate(metric::ABORTS, aborts.iter().map(|(_, count)| count).sum());
    for (reason, count) in aborts {
        rate(&metric::aborts(reason), count);
    }
    rate(metric::FALLBACKS, after.fallbacks - before.fallbacks);
}

/// Runs the threads of a phase; what came of it.
fn run_threads(instance: &dyn Instance, work: &Work<'_>) -> Result<Outcome, Error> {
    let threads = u64::from(work.parameters.threads);
    let barrier = Barrier::new(threads as usize);
    let part = |thread: u64| work.operations * thread / threads..work.operations * (thread + 1) / threads;
    let run = |thread: u64| {
        // Everybody comes to the barrier, or the others would wait for ever.
        let prepared = instance.handle().and_then(|handle| Worker::new(work, thread, part(thread), handle, instance));
        barrier.wait();
        let start = Instant::now();
        let outcome = prepared?.run()?;
        Ok((start, Instant::now(), outcome))
    };
    let outcomes: Vec<Result<_, Error>> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        std::iter::once(first).chain(others.into_iter().map(join)).collect()
    });
    let (mut sum, mut first, mut last) = (Outcome::default(), None, None);
    for outcome in outcomes {
        let (start, end, outcome) = outcome?;
        sum.add(outcome);
        (first, last) = (Some(first.map_or(start, |first: Instant| first.min(start))), last.max(Some(end)));
    }
    // One thread alone, which is looked at operation by operation, waits for that.
    sum.lasted = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first).saturating_sub(sum.aside);
    Ok(sum)
}

/// The kinds of operation, in the order of [`shares`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Search,
    Miss,
    Insert,
    Update,
    Delete,
    Scan,
    Modify,
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::Search, "search"),
    (Kind::Miss, "miss"),
    (Kind::Insert, "insert"),
    (Kind::Update, "update"),
    (Kind::Delete, "delete"),
    (Kind::Scan, "scan"),
    (Kind::Modify, "modify"),
];

fn shares(mix: &Mix) -> [f64; KINDS.len()] {
    [mix.search, mix.miss, mix.insert, mix.update, mix.delete, mix.scan, mix.modify]
}

/// What a thread found out, or all of them.
#[derive(Default)]
struct Outcome {
    operations: u64,
    /// Time in the system, of all threads.
    busy: Duration,
    /// Time in which the system was asked what has happened.
    aside: Duration,
    /// From when the first thread began to when the last one ended, without that.
    lasted: Duration,
    /// Numbers of the keys that were inserted: the first of each thread, and how many.
    inserted: Vec<(u64, u64)>,
    /// Numbers of the keys that are there at the end, of a phase whose threads have shares of their own.
    left: Vec<u64>,
    wrong: u64,
    /// Entries that scans visited.
    visited: u64,
    latencies: BTreeMap<Kind, Histogram<u64>>,
    /// Inserts into a leaf with room, and those that divided one.
    common: Group,
    dividing: Group,
}

/// Operations of one sort, looked at one by one.
#[derive(Clone, Copy, Default)]
struct Group {
    count: u64,
    lines: u64,
    /// Of the one that has the most.
    lines_max: u64,
    fences: u64,
    nanoseconds: u64,
}

impl Group {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.lines += other.lines;
        self.lines_max = self.lines_max.max(other.lines_max);
        self.fences += other.fences;
        self.nanoseconds += other.nanoseconds;
    }
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.busy += other.busy;
        self.aside += other.aside;
        self.inserted.extend(other.inserted);
        self.left.extend(other.left);
        self.wrong += other.wrong;
        self.visited += other.visited;
        self.common.add(other.common);
        self.dividing.add(other.dividing);
        for (kind, histogram) in other.latencies {
            match self.latencies.get_mut(&kind) {
                Some(sum) => sum.add(histogram).expect("all have the same bounds"),
                None => _ = self.latencies.insert(kind, histogram),
            }
        }
    }

    fn record(&mut self, kind: Kind, nanoseconds: u64, times: u64) {
        let new = || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds that a histogram can have");
        self.latencies.entry(kind).or_insert_with(new).saturating_record_n(nanoseconds.max(1), times);
    }

    fn report(&self, parameters: &Parameters, metrics: &mut Metrics) {
        let seconds = self.lasted.as_secs_f64().max(1e-9);
        // Where each operation is timed, looks at the clock are in it; where each is counted, it says nothing.
        if matches!(parameters.measure, Measure::Time | Measure::Latency) {
            put(metrics, metric::THROUGHPUT, self.operations as f64 / seconds, "op/s");
        }
        if parameters.measure == Measure::Time {
            put(metrics, metric::MEAN, self.busy.as_nanos() as f64 / self.operations.max(1) as f64, "ns");
            if self.visited > 0 {
                put(metrics, metric::ENTRIES, self.visited as f64 / seconds, "1/s");
            }
        }
        let mut all: Option<Histogram<u64>> = None;
        for (kind, name) in KINDS {
            let Some(histogram) = self.latencies.get(&kind) else { continue };
            match &mut all {
                Some(all) => all.add(histogram).expect("all have the same bounds"),
                None => all = Some(histogram.clone()),
            }
            if self.latencies.len() > 1 {
                report_histogram(&format!("{name} "), histogram, metrics);
            }
        }
        if let Some(all) = all {
            report_histogram("", &all, metrics);
        }
        for (name, group) in [("common", &self.common), ("split", &self.dividing)] {
            let count = group.count as f64;
            if group.count > 0 && parameters.measure == Measure::Counts {
                put(metrics, &format!("{name} {}", metric::LINES_FLUSHED), group.lines as f64 / count, "1/op");
                put(metrics, &format!("{name} {}", metric::LINES_MAX), group.lines_max as f64, "1/op");
                put(metrics, &format!("{name} {}", metric::FENCES), group.fences as f64 / count, "1/op");
            }
            if group.count > 0 && parameters.measure == Measure::Latency {
                put(metrics, &format!("{name} {}", metric::MEAN), group.nanoseconds as f64 / count, "ns");
                put(metrics, &format!("{name} share"), group.nanoseconds as f64 / (self.common.nanoseconds + self.dividing.nanoseconds) as f64, "x");
            }
        }
    }
}

fn report_histogram(prefix: &str, histogram: &Histogram<u64>, metrics: &mut Metrics) {
    put(metrics, &format!("{prefix}{}", metric::MEAN), histogram.mean(), "ns");
    for (name, quantile) in [(metric::P50, 0.5), (metric::P99, 0.99), (metric::P999, 0.999)] {
        put(metrics, &format!("{prefix}{name}"), histogram.value_at_quantile(quantile) as f64, "ns");
    }
}

fn report_counts(counts: &Counts, operations: u64, metrics: &mut Metrics) {
    let mut each = |name, count: u64| put(metrics, name, count as f64 / operations as f64, "1/op");
    each(metric::FLUSHES, counts.flushes);
    each(metric::LINES_FLUSHED, counts.lines_flushed);
    each(metric::FENCES, counts.fences);
    each(metric::LINES_WRITTEN, counts.lines_written);
    each(metric::UNITS_WRITTEN, counts.units_written);
    each(metric::MEDIA_UNITS, counts.media_units);
    if counts.lines_flushed > 0 {
        put(metrics, metric::MEDIA_AMPLIFICATION, 4.0 * counts.media_units as f64 / counts.lines_flushed as f64, "x");
    }
}

fn put(metrics: &mut Metrics, name: &str, value: f64, unit: &str) {
    metrics.insert(name.into(), Metric { value, unit: unit.into() });
}

/// Fills an instance in a file, and opens it again: after a crash, and after a clean shutdown.
fn recovery(system: &dyn System, case: &Case, context: Context<'_>) -> Result<Vec<(String, Metrics)>, Error> {
    let place = Place::new(&case.parameters.memory, true)?;
    let keys = Keys { kind: case.parameters.key, seed: context.seed };
    let (mut instance, mut population) = prepare(system, case, place.path(), keys, context)?;
    let plain = Parameters { measure: Measure::Time, threads: 1, ..case.parameters.clone() };
    for phase in &case.workload.phases {
        if context.stopped() {
            return Ok(Vec::new());
        }
        run_phase(system.name(), instance.as_ref(), phase, &plain, keys, &mut population, context)?;
    }
    let mut metrics = Metrics::new();
    if let Some(leaves) = instance.space()?.leaves {
        put(&mut metrics, metric::LEAVES, leaves as f64, "");
    }
    if let Some(Rebuilds { count: 1.., last, .. }) = instance.marks().map(|marks| marks.rebuilds) {
        put(&mut metrics, metric::REBUILD_PER_LEAF, last.time.as_nanos() as f64 / last.leaves as f64, "ns");
    }
    let ways = [(Shutdown::Crash, metric::RECOVERY, metric::RECOVERY_IN_FULL), (Shutdown::Close, metric::REOPENING, metric::REOPENING_IN_FULL)];
    for (shutdown, name, in_full) in ways {
        if context.stopped() {
            return Ok(Vec::new());
        }
        // Every thousandth key, and at least one. The first of them is the first operation, which may have to do what opening has left to it.
        let step = (population.count() / 1000).max(1);
        let mut looked_for = (0..population.count()).step_by(step as usize).map(|at| population.number(at)).map(|number| (number, keys.entry(number, 8).0));
        let (first, mut value, mut wrong) = (looked_for.next(), Vec::new(), 0);
        let reopened = instance.reopen(shutdown, case.parameters.threads)?;
        instance = reopened.instance;
        let start = Instant::now();
        let mut handle = instance.handle()?;
        let mut look = |(number, key): (u64, Vec<u8>)| {
            value.clear();
            wrong += u64::from(!(handle.get(&key, &mut value)? && version_of(&value, number).is_some()));
            Ok::<_, Error>(())
        };
        first.map(&mut look).transpose()?;
        put(&mut metrics, name, (reopened.time + start.elapsed()).as_secs_f64(), "s");
        instance.settle();
        put(&mut metrics, in_full, (reopened.time + start.elapsed()).as_secs_f64(), "s");
        if let Some(marks) = instance.marks().filter(|marks| marks.rebuilds.from_leaves > Duration::ZERO) {
            put(&mut metrics, metric::REBUILD_FROM_LEAVES, marks.rebuilds.from_leaves.as_nanos() as f64 / marks.leaves as f64, "ns");
        }
        looked_for.try_for_each(look)?;
        if wrong > 0 {
            return Err(Error::WrongAnswers { system: system.name().into(), phase: name.into(), count: wrong });
        }
    }
    Ok(vec![("reopen".into(), metrics)])
}

/// Loads, and says what is taken: of persistent memory here, of DRAM in a process of its own, which holds nothing else.
fn space(system: &dyn System, case: &Case, context: Context<'_>) -> Result<Vec<(String, Metrics)>, Error> {
    let mut metrics = Metrics::new();
    let used = match context.child {
        Some(program) => program.measure(system.name(), case, context)?,
        None => occupy(system, case, context)?,
    };
    let Some(used) = used else { return Ok(Vec::new()) };
    let keys = used.keys.max(1) as f64;
    if let Some(bytes) = used.pool_bytes {
        put(&mut metrics, metric::POOL, bytes as f64 / keys, "B/key");
    }
    // In this process what others have freed would be taken again, and not be seen.
    if let (Some(bytes), Some(_)) = (used.private_bytes, context.child) {
        put(&mut metrics, metric::DRAM, bytes as f64 / keys, "B/key");
    }
    if let Some(leaves) = used.leaves {
        put(&mut metrics, metric::LEAVES, leaves as f64, "");
    }
    Ok(vec![("space".into(), metrics)])
}

/// Fills an instance by all that the case says, and tells what it takes; `None` if it was stopped.
pub(crate) fn occupy(system: &dyn System, case: &Case, context: Context<'_>) -> Result<Option<child::Used>, Error> {
    check(case)?;
    // Its pages are then no private memory.
    let Capabilities { persistent, needs_files, .. } = system.capabilities();
    let place = Place::new(&case.parameters.memory, persistent || needs_files)?;
    let keys = Keys { kind: case.parameters.key, seed: context.seed };
    let before = crate::machine::private_bytes();
    let (instance, mut population) = prepare(system, case, place.path(), keys, context)?;
    for phase in &case.workload.phases {
        if !context.stopped() {
            run_phase(system.name(), instance.as_ref(), phase, &case.parameters, keys, &mut population, context)?;
        }
    }
    if context.stopped() {
        return Ok(None);
    }
    // The list of the keys is the lab's, not the system's.
    let key_count = population.count();
    drop(population);
    let after = crate::machine::private_bytes();
    let space = instance.space()?;
    let private_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Some(child::Used { keys: key_count, private_bytes, pool_bytes: space.pool_bytes, leaves: space.leaves }))
}

/// Instructions of each phase, what they read and what they miss: in the calls of the system, in the process that does it, less those in one that does all
/// before it.
fn instructions(system: &dyn System, case: &Case, context: Context<'_>) -> Result<Vec<(String, Metrics)>, Error> {
    let program = context.child.ok_or_else(|| Error::Usage("this program cannot count instructions: it cannot start itself".into()))?;
    let mut measured = Vec::new();
    let prefix = |count: usize| {
        let mut case = case.clone();
        case.workload.phases.truncate(count);
        program.instructions(system.name(), &case, context)
    };
    let mut before = BTreeMap::new();
    for (at, phase) in case.workload.phases.iter().enumerate() {
        if context.stopped() {
            break;
        }
        let Some(all) = prefix(at + 1)? else { break };
        let seen = |counts: &BTreeMap<&str, u64>| counts.get(metric::INSTRUCTIONS).copied().unwrap_or(0);
        if seen(&all) == seen(&before) {
            return Err(Error::system(system.name(), "callgrind has seen no instruction of the phase; has this program been stripped of its symbols?"));
        }
        let operations = operations(phase, &case.parameters);
        if phase.measured {
            let mut metrics = Metrics::new();
            for (name, count) in &all {
                put(&mut metrics, name, count.saturating_sub(before.get(name).copied().unwrap_or(0)) as f64 / operations as f64, "1/op");
            }
            measured.push((phase.name.clone(), metrics));
        }
        before = all;
    }
    Ok(measured)
}
