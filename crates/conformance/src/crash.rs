//! The crash suites: after a crash at any moment, acknowledged writes are there, the operation under way happened or did not, and the structure works.
//!
//! The suites examine a [`World`]: every structure of the registry, for each class of keys; the pool with its directory and allocator; the store.
//! [`every_crash`] runs *all* sequences of a few operations, from several starts, and recovers *every* image that a crash in the last operation can leave.
//! (Crashes in earlier operations belong to the shorter sequences.) [`sampled_crash`] runs long random sequences, and recovers every image of small crash
//! points and a sample of those of large ones. [`mutants`] plants mistakes and counts how many of them these runs find. See `docs/crash-checking.md`.
//!
//! The oracle, for each image:
//! 1. the pool opens, without a panic, in bounded steps;
//! 2. it holds what was acknowledged, with or without the operation under way;
//! 3. scans both ways and lookups agree, and the structure's own check passes;
//! 4. exactly the reachable blocks are allocated;
//! 5. a second recovery finds the same, and stores nothing outside of the pool's header;
//! 6. the structure works: an index splits, merges and updates as the model says;
//! 7. a crash at any moment of the recovery leads to all of the above;
//! 8. so does a crash at any moment of some more operations;
//! 9. for every 64th image, several threads recover the same as one.
//!
//! Two images that are equal byte for byte and have the same promises are examined once.

pub(crate) mod checker;
mod dependence;
mod field;
mod flagged;
pub(crate) mod index;
pub mod list;
pub(crate) mod mutate;
mod pool;
mod printed;
mod progress;
mod published;
mod report;
mod seeded;
mod shrink;
pub(crate) mod source;
mod store;
mod story;
pub(crate) mod world;

pub use dependence::dependences;
pub use field::{FieldBug, field_bugs};
pub use index::{Index, IndexChange};
pub use mutate::{Mutant, Outcome, STAGES, Score, mutants, profile};
pub use pool::{PoolChange, Pools};
pub use progress::Progress;
pub use report::{Report, Violation};
pub use seeded::{Seed, Sown, controls, seeds, sow};
pub(crate) use store::times;
pub use store::{StoreChange, Stores};
pub use story::Crashed;
pub use world::{Applied, Promise, Start, Step, World};

use crate::Broken;
use checker::{Checker, Run, STUCK, panicked};
use everleaf_index::{Key, registry};
use everleaf_pmem::{Crash, CrashOptions};
use progress::WHOLE;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How much to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest sequence of operations for [`every_crash`], at most [`OPERATIONS_MAX`]. Default 3.
    pub operations: usize,
    /// Length of the sequences of [`sampled_crash`]. Default 120.
    pub random: usize,
    /// Number of sequences of [`sampled_crash`]. Default 4.
    pub sequences: usize,
    /// Whether closing and opening the pool is one of the operations. Default false.
    pub closes: bool,
    /// How deep recoveries are crashed: 1 crashes the recovery, 2 also the recovery from that. Default 1.
    pub depth: u32,
    /// How many lives come after the first, each with its own operations and crashes. Default 1.
    pub lives: u32,
    /// One in this many recovered images is used further. Default 1: all.
    pub follow_up_every: u64,
    /// One in this many images gets another life; eight times as many where recovery repaired something. Default 64.
    pub second_life_every: u64,
    /// Whether recovery and each step of later lives run in threads of their own. No fence of another thread then makes durable what a thread has flushed but
    /// not fenced, and it stays in the balance. That makes many images. Default false.
    pub hands_over: bool,
    /// How the images of a crash point are chosen, and which mistake is planted.
    pub life: CrashOptions,
    /// Only the start of this name.
    pub start: Option<String>,
    /// Number of threads, each with a memory of its own. Default 2.
    pub threads: usize,
    /// Size of the memory in bytes. Default: what the world asks for.
    pub memory: Option<usize>,
    /// Seed of every random choice. Default 0.
    pub seed: u64,
    /// Whether a violation is shrunk before it is reported, which takes longer than finding it. Default true.
    pub shrinks: bool,
    /// Receives the progress of the run, and tells it when to end. Default none.
    pub progress: Option<Arc<Progress>>,
}

impl Options {
    /// Adds a share of the work that is done.
    fn advance(&self, share: u64) {
        if let Some(progress) = &self.progress {
            progress.advance(share);
        }
    }

    /// Whether the run is to end, even with work left.
    fn is_over(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.is_over())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            operations: 3,
            random: 120,
            sequences: 4,
            closes: false,
            depth: 1,
            lives: 1,
            follow_up_every: 1,
            second_life_every: 64,
            hands_over: false,
            life: CrashOptions::default(),
            start: None,
            threads: 2,
            memory: None,
            seed: 0,
            shrinks: true,
            progress: None,
        }
    }
}

/// A run without progress for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The steps to take, as a number that [`Suite::replay`] accepts.
///
/// ```text
/// bit   63   55..62   48..51   0..47, four each
///        0   start    count    numbers of the steps among those that the world offers, the first lowest
///        1   start    |        seed of random steps in bits 0..54
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Case(u64);

/// Longest sequence of operations for [`every_crash`]: the most that a case can encode.
pub const OPERATIONS_MAX: usize = 12;
/// Operations that a world may offer to exhaustive runs, and closing.
const SYMBOLS_MAX: usize = 16;

impl Case {
    fn spelled(start: usize, symbols: &[usize]) -> Self {
        assert!(symbols.len() <= OPERATIONS_MAX, "at most {OPERATIONS_MAX} steps can be enumerated");
        let spelled = symbols.iter().rev().fold(0, |spelled, symbol| spelled << 4 | *symbol as u64);
        Self((start as u64) << 55 | (symbols.len() as u64) << 48 | spelled)
    }

    fn random(start: usize, seed: u64) -> Self {
        Self(1 << 63 | (start as u64) << 55 | seed & ((1 << 55) - 1))
    }

    fn start(self) -> usize {
        (self.0 >> 55 & 0xff) as usize
    }

    fn symbols(self) -> Option<Vec<usize>> {
        let count = (self.0 >> 48 & 0xf) as usize;
        (self.0 >> 63 == 0).then(|| (0..count).map(|at| (self.0 >> (4 * at) & 0xf) as usize).collect())
    }

    fn seed(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl FromStr for Case {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").ok_or("a case is written as a violation prints it, 0x and sixteen digits")?;
        u64::from_str_radix(digits, 16).map(Self).map_err(|error| format!("{text}: {error}"))
    }
}

/// A world, ready to be run.
pub trait Suite: Send + Sync {
    /// Its name.
    fn name(&self) -> String;
    /// Names of its starts.
    fn start_names(&self) -> Vec<&'static str>;
    /// See [`every_crash`].
    fn every(&self, options: &Options) -> Report;
    /// See [`sampled_crash`].
    fn sampled(&self, options: &Options) -> Report;
    /// See [`replay`].
    fn replay(&self, case: Case, options: &Options) -> Report;
}

impl<W: World> Suite for Arc<W> {
    fn name(&self) -> String {
        World::name(&**self)
    }
    fn start_names(&self) -> Vec<&'static str> {
        World::starts(&**self).iter().map(|start| start.name).collect()
    }
    fn every(&self, options: &Options) -> Report {
        every_crash(self, options)
    }
    fn sampled(&self, options: &Options) -> Report {
        sampled_crash(self, options)
    }
    fn replay(&self, case: Case, options: &Options) -> Report {
        replay(self, case, options)
    }
}

/// Every world: each persistent structure of the registry, for each class of keys; the pool; the store.
pub fn suites() -> Vec<Box<dyn Suite>> {
    let mut suites: Vec<Box<dyn Suite>> = Vec::new();
    suites.extend(indexes::<u64>());
    suites.extend(indexes::<[u8]>());
    suites.push(Box::new(Arc::new(Pools)));
    suites.push(Box::new(Arc::new(Stores::SMALLEST)));
    suites
}

/// The store on other indexes, where the indexes' own worlds find most defects, and stores in full pools.
pub fn more_suites() -> impl Iterator<Item = Box<dyn Suite>> {
    Stores::OTHERS.into_iter().chain(Stores::FULL).map(|stores| Box::new(Arc::new(stores)) as Box<dyn Suite>)
}

fn indexes<K: crate::Class + Key + ?Sized>() -> impl Iterator<Item = Box<dyn Suite>> {
    let persistent = registry::<K, Crash>().into_iter().filter(|entry| entry.persistent);
    persistent.map(|entry| Box::new(Arc::new(Index::new(entry))) as Box<dyn Suite>)
}

/// Runs all sequences of at most `options.operations` steps from every start, and examines every image of every crash point.
pub fn every_crash<W: World>(world: &Arc<W>, options: &Options) -> Report {
    let numbers = match numbered(&**world, options) {
        Ok(numbers) => numbers,
        Err(report) => return *report,
    };
    // A work item is a start and a first step; the item without a step crashes the opening.
    let items = numbers.len() * (SYMBOLS_MAX + 1);
    let start_of = move |item: usize| numbers[item / (SYMBOLS_MAX + 1)];
    let starts = start_of.clone();
    let report = distribute(world, options, items, start_of, move |checker, world, options, item| {
        let (start, share) = (starts(item), WHOLE / items as u64);
        match item % (SYMBOLS_MAX + 1) {
            SYMBOLS_MAX => {
                checker.run(Case::spelled(start, &[]), &[]);
                options.advance(share);
            }
            first => explore(checker, world, options, start, &mut vec![first], share),
        }
    });
    shrink::shrink_report(world, options, report)
}

/// Runs random sequences as `options` say, equally many from each start if there are enough, and examines every image of small crash points and a sample of
/// those of large ones.
pub fn sampled_crash<W: World>(world: &Arc<W>, options: &Options) -> Report {
    let numbers = match numbered(&**world, options) {
        Ok(numbers) => numbers,
        Err(report) => return *report,
    };
    // A thread keeps what it has built for a start until the start changes. If there are fewer sequences than starts, the seed selects the starts.
    let start_of = {
        let (sequences, first) = (options.sequences.max(1), options.seed as usize % numbers.len());
        move |item: usize| numbers[(first + item * numbers.len() / sequences) % numbers.len()]
    };
    let starts = start_of.clone();
    let report = distribute(world, options, options.sequences, start_of, move |checker, world, options, item| {
        let case = Case::random(starts(item), options.seed.wrapping_add(item as u64));
        let share = WHOLE / (options.sequences * options.random).max(1) as u64;
        let mut next = made_up(world, options, case);
        checker.run_long(case, |number, content| {
            options.advance(share);
            next(number, content).filter(|_| !options.is_over())
        });
    });
    shrink::shrink_report(world, options, report)
}

/// Runs one case, and examines every image of a crash in its last step, or, for a random case, in any step.
pub fn replay<W: World>(world: &Arc<W>, case: Case, options: &Options) -> Report {
    let options = Options { threads: 1, ..options.clone() };
    let report = distribute(
        world,
        &options,
        1,
        move |_| case.start(),
        move |checker, world, options, _| match case.symbols() {
            Some(symbols) => {
                if let Some((steps, _)) = spell(&**world, options, checker.start(), checker.model(), &symbols) {
                    checker.run(case, &steps);
                }
            }
            None => {
                let mut next = made_up(world, options, case);
                checker.run_long(case, move |number, content| next(number, content));
            }
        },
    );
    shrink::shrink_report(world, &options, report)
}

/// The numbers of the starts that `options` choose. It is an error to choose none: a run without work would pass.
fn numbered<W: World>(world: &W, options: &Options) -> Result<Vec<usize>, Box<Report>> {
    let starts = world.starts();
    let Some(wanted) = &options.start else { return Ok((0..starts.len()).collect()) };
    starts.iter().position(|start| start.name == wanted).map(|number| vec![number]).ok_or_else(|| {
        let names: Vec<_> = starts.iter().map(|start| start.name).collect();
        let broken = Broken::new("a world has the start that is asked for", names.join(", "));
        Box::new(Report { violation: Some(Violation::before_any_crash(world.name(), wanted, broken)), ..Report::default() })
    })
}

/// Generates the steps of a random case one by one.
fn made_up<W: World>(world: &Arc<W>, options: &Options, case: Case) -> impl FnMut(u64, &W::Content) -> Option<Step<W::Change>> + use<W> {
    let (world, count, closes) = (Arc::clone(world), options.random as u64, options.closes);
    let mut choice = StdRng::seed_from_u64(case.seed());
    move |number, content| {
        let closing = closes && rand::Rng::random_ratio(&mut choice, 1, 16);
        (number < count).then(|| if closing { Step::Close } else { Step::Change(world.random(number, count, content, &mut choice)) })
    }
}

/// The steps that may come next.
fn symbols<W: World>(world: &W, options: &Options, start: &Start<W::Change>, model: &W::Content) -> Vec<Step<W::Change>> {
    let changes = world.changes(start, model).into_iter().map(Step::Change);
    let steps: Vec<_> = changes.chain(options.closes.then_some(Step::Close)).collect();
    assert!(steps.len() <= SYMBOLS_MAX, "{} offers more than {SYMBOLS_MAX} operations", world.name());
    steps
}

/// Steps, and the model after them.
type Spelled<W> = (Vec<Step<<W as World>::Change>>, <W as World>::Content);

/// The steps that `numbers` stand for, if they are valid, and `model` after them.
fn spell<W: World>(world: &W, options: &Options, start: &Start<W::Change>, model: &W::Content, numbers: &[usize]) -> Option<Spelled<W>> {
    let mut model = model.clone();
    let mut steps = Vec::new();
    for number in numbers {
        let step = symbols(world, options, start, &model).get(*number)?.clone();
        if let Step::Change(change) = &step {
            world.model(&mut model, change);
        }
        steps.push(step);
    }
    Some((steps, model))
}

/// Runs the sequence of `numbers` and all that begin with it: this share of the work.
fn explore<W: World>(checker: &Arc<Checker<W>>, world: &Arc<W>, options: &Options, start: usize, numbers: &mut Vec<usize>, share: u64) {
    let spelled = spell(&**world, options, checker.start(), checker.model(), numbers).filter(|_| numbers.len() <= options.operations);
    let Some((steps, model)) = spelled else { return options.advance(share) };
    checker.run(Case::spelled(start, numbers), &steps);
    let count = if numbers.len() < options.operations { symbols(&**world, options, checker.start(), &model).len() } else { 0 };
    options.advance(share.checked_rem(count as u64).unwrap_or(share));
    for number in 0..count {
        if checker.is_over() || options.is_over() {
            return;
        }
        numbers.push(number);
        explore(checker, world, options, start, numbers, share / count as u64);
        numbers.pop();
    }
}

/// The command that reproduces a violation.
fn replay_command(world: &str, case: Case, options: &Options) -> String {
    let standard = Options::default();
    let mut command = format!("cargo xtask crash replay {world} {case}");
    let mut say = |name: &str, value: String, usual: String| {
        if value != usual {
            command += &format!(" --{name} {value}");
        }
    };
    if case.symbols().is_none() {
        say("random", options.random.to_string(), standard.random.to_string());
    }
    say("depth", options.depth.to_string(), standard.depth.to_string());
    say("lives", options.lives.to_string(), standard.lives.to_string());
    say("follow-up-every", options.follow_up_every.to_string(), standard.follow_up_every.to_string());
    say("second-life-every", options.second_life_every.to_string(), standard.second_life_every.to_string());
    say("sample-count", options.life.sample_count.to_string(), standard.life.sample_count.to_string());
    say("images-max", options.life.images_max.to_string(), standard.life.images_max.to_string());
    say("lazy", options.life.lazy_runs_max.to_string(), standard.life.lazy_runs_max.to_string());
    say("seed", options.seed.to_string(), standard.seed.to_string());
    if options.closes {
        command += " --closes";
    }
    if options.hands_over {
        command += " --hand-over";
    }
    if options.life.stores_are_durable {
        command += " --durable-cache";
    }
    if options.life.awaits_device {
        command += " --awaits-device";
    }
    if options.life.drops_flushes {
        command += " --no-flushes";
    }
    if options.life.hidden_in_full {
        command += " --hidden-in-full";
    }
    if let Some(memory) = options.memory {
        command += &format!(" --memory-kib {}", memory >> 10);
    }
    if let Some(fault) = options.life.fault {
        command += &format!(" --site {} --verb {} --act {}", fault.site.place, fault.site.verb, fault.act);
    }
    command
}

/// Spreads `items` of work over threads, each with its own memory, and merges their reports. The first violation ends the run.
fn distribute<W: World>(
    world: &Arc<W>,
    options: &Options,
    items: usize,
    start_of: impl Fn(usize) -> usize + Clone + Send + 'static,
    work: impl Fn(&Arc<Checker<W>>, &Arc<W>, &Options, usize) + Clone + Send + 'static,
) -> Report {
    let begun = Instant::now();
    let options = Arc::new(options.clone());
    let starts = Arc::new(world.starts());
    let (next, run) = (Arc::new(AtomicUsize::new(0)), Arc::new(Run::default()));
    let (sender, receiver) = mpsc::channel();
    let current: Vec<_> = (0..options.threads).map(|_| Arc::new(parking_lot::Mutex::new(None::<Arc<Checker<W>>>))).collect();
    for current in &current {
        let (world, options, starts, next) = (Arc::clone(world), Arc::clone(&options), Arc::clone(&starts), Arc::clone(&next));
        let (current, run, sender, start_of, work) = (Arc::clone(current), Arc::clone(&run), sender.clone(), start_of.clone(), work.clone());
        std::thread::spawn(move || {
            let mut report = Report::default();
            let mut start = "";
            let labour = || {
                while report.violation.is_none() {
                    let item = next.fetch_add(1, Ordering::Relaxed);
                    if item >= items {
                        break;
                    }
                    if options.is_over() {
                        report.is_cut = true;
                        break;
                    }
                    let wanted = &starts[start_of(item)];
                    start = wanted.name;
                    let kept = current.lock().take().filter(|checker| checker.start().name == wanted.name);
                    let made = || Checker::new(Arc::clone(&world), Arc::clone(&options), wanted.clone(), &[], Arc::clone(&run));
                    let checker = match kept.map_or_else(made, Ok) {
                        Ok(checker) => checker,
                        Err(broken) => {
                            report.violation = Some(Violation::before_any_crash(world.name(), start, broken));
                            break;
                        }
                    };
                    *current.lock() = Some(Arc::clone(&checker));
                    work(&checker, &world, &options, item);
                    report.add(checker.report());
                    report.is_cut |= options.is_over();
                }
            };
            // This guards the checker's own code, so that no worker vanishes silently. Panics in the rest get a fuller report.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(labour)) {
                report.violation = Some(Violation::before_any_crash(world.name(), start, panicked(&*panic)));
            }
            if report.violation.is_some() {
                run.is_broken.store(true, Ordering::Relaxed);
                next.store(items, Ordering::Relaxed);
            }
            // A worker that has finished is not stuck.
            *current.lock() = None;
            // The receiver is gone only if another thread was found stuck.
            let _ = sender.send(report);
        });
    }
    drop(sender);
    let mut report = Report::default();
    let (mut seen_steps, mut parts) = (0, 0);
    loop {
        match receiver.recv_timeout(PATIENCE) {
            Ok(part) => {
                report.add(part);
                parts += 1;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                if parts < options.threads.max(1) {
                    let broken = Broken::new("every worker reports", format_args!("{parts} of {}", options.threads));
                    report.violation.get_or_insert(Violation::before_any_crash(world.name(), "", broken));
                }
                break;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let now = run.steps.load(Ordering::Relaxed);
                if now == seen_steps {
                    let stuck = current.iter().find_map(|checker| checker.lock().as_ref().map(|checker| checker.stuck()));
                    let unbuilt = || Violation::before_any_crash(world.name(), "", Broken::new(STUCK, "a start is being built without an end"));
                    report.violation.get_or_insert_with(|| stuck.unwrap_or_else(unbuilt));
                    break;
                }
                seen_steps = now;
            }
        }
    }
    report.took = begun.elapsed();
    report
}
