//! One worker of a crash run: it runs steps, and examines every image that their crash points show.

use super::report::{Report, Violation};
use super::story::Crashed;
use super::world::{Applied, Promise, Start, Step, World};
use super::{Case, Options};
use crate::Broken;
use everleaf_pmem::{Crash, CrashOptions, Deed, Error, Fresh, Image, Life, Medium, Memory, Points, Pool, PoolOptions, Seen, WORD, Word};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The contents that are allowed in a recovered world.
pub(super) struct Expected<C> {
    allowed: Vec<C>,
    hash: u64,
}

impl<C: Hash + PartialEq> Expected<C> {
    fn new(allowed: Vec<C>) -> Arc<Self> {
        let mut hasher = DefaultHasher::new();
        allowed.hash(&mut hasher);
        Arc::new(Self { allowed, hash: hasher.finish() })
    }
}

/// What is examined below an image.
#[derive(Clone, Copy)]
struct Extent {
    /// How deep recoveries are crashed, each within the previous one.
    depth: u32,
    /// How many more lives follow, each with its own operations and crashes.
    lives: u32,
    /// Whether the crash is inside a recovery.
    nested: bool,
    /// Whether the pool was closed, so that recovery must have nothing to do.
    closed: bool,
}

/// Images that had to be repaired are this many times likelier to get another life: only there does a repair that is not durable show.
const REPAIRED: u64 = 8;
/// The rule that is broken when something does not end.
pub(super) const STUCK: &str = "progress in bounded time";
/// One in this many images is also recovered by several threads.
const BY_THREADS_EVERY: u64 = 64;
/// The number of those threads.
pub(crate) const THREADS: usize = 2;
/// Number of images remembered. When it is reached, all are forgotten, and examined again when they recur.
const SEEN_MAX: usize = 1 << 23;
/// One in this many other lives begins with a shutdown, if shutdowns are among the operations.
const CLOSED_EVERY: u64 = 2;
/// Number of operations in another life.
const LIFE_STEPS: usize = 3;
/// Size of a slab: small, so that slabs fill up.
pub(crate) const SLAB: usize = 4 << 10;

/// Size of the part that every opening may store to: magic, switch and superblocks. The root directory follows.
pub(crate) const HEADER: usize = 2 << 10;

/// What the workers of a run share.
#[derive(Default)]
pub(super) struct Run {
    /// Grows as long as there is progress.
    pub(super) steps: AtomicU64,
    /// Whether one of them has seen a broken rule, so that all stop.
    pub(super) is_broken: AtomicBool,
}

/// A worker, its memory, and the state it starts from.
pub(super) struct Checker<W: World> {
    world: Arc<W>,
    options: Arc<Options>,
    start: Start<W::Change>,
    model: W::Content,
    memory: Arc<Memory>,
    ground: Crash,
    run: Arc<Run>,
    points: Arc<Points>,
    notes: Mutex<Notes<W::Change>>,
}

/// What a worker remembers.
struct Notes<C> {
    report: Report,
    /// Hashes of the images examined with their expectations, and the result of each. An equal image with equal expectations is not examined again, because
    /// recovery is a function of the image.
    seen: HashMap<u64, Seen, BuildHasherDefault<Identity>>,
    case: Case,
    taken: Vec<Step<C>>,
    broken: Option<Broken>,
    crashes: Vec<Crashed>,
    end: Vec<Deed>,
}

impl<C> Default for Notes<C> {
    fn default() -> Self {
        Self {
            report: Report::default(),
            seen: HashMap::default(),
            case: Case::default(),
            taken: Vec::new(),
            broken: None,
            crashes: Vec::new(),
            end: Vec::new(),
        }
    }
}

/// Keys of `seen` are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl<W: World> Checker<W> {
    /// Builds the start state in a pool of its own, and takes the steps of `setup` from there.
    ///
    /// # Errors
    /// If a rule breaks before anything has crashed.
    pub(super) fn new(world: Arc<W>, options: Arc<Options>, start: Start<W::Change>, setup: &[Step<W::Change>], run: Arc<Run>) -> Result<Arc<Self>, Broken> {
        const RULE: &str = "building the start";
        let memory = Memory::new(options.memory.unwrap_or(world.memory())).map_err(Broken::by(RULE))?;
        let ground = Crash::new(&memory);
        let model = world.nothing();
        let mut checker = Self { world, options, start, model, memory, ground, run, points: Arc::default(), notes: Mutex::default() };
        if checker.start.pool {
            catch_unwind(AssertUnwindSafe(|| checker.build(setup))).unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        }
        Ok(Arc::new(checker))
    }

    fn build(&mut self, setup: &[Step<W::Change>]) -> Result<(), Broken> {
        const RULE: &str = "building the start";
        let options = PoolOptions { size_max: self.start.size.unwrap_or(self.memory.size()), ..self.pool_options() };
        let pool = Pool::create_in(Arc::clone(&self.memory), self.ground.clone(), options).map_err(Broken::by(RULE))?;
        let mut soiled = soil(&pool, self.options.seed);
        if self.start.lowest_first {
            soiled.reverse();
        }
        drop(soiled);
        // A start without changes is a pool in which nothing has been opened yet.
        if !self.start.changes.is_empty() || !setup.is_empty() {
            let mut live = Some(self.world.open(pool, 1)?);
            let mut model = self.model.clone();
            let made: Vec<_> = self.start.changes.iter().cloned().map(Step::Change).collect();
            for step in made.iter().chain(setup) {
                self.take(&mut live, &self.ground.clone(), &mut model, step, &mut |_| {})?;
            }
            self.model = model;
            if let Some(live) = live.filter(|_| self.start.closed) {
                self.world.close(live)?;
            }
        } else if self.start.closed {
            pool.close().map_err(Broken::by(RULE))?;
        }
        Ok(())
    }

    /// The content of the model at the start.
    pub(super) fn model(&self) -> &W::Content {
        &self.model
    }

    /// The start state.
    pub(super) fn start(&self) -> &Start<W::Change> {
        &self.start
    }

    /// Takes the counts, and the story of the violation if there is one.
    pub(super) fn report(&self) -> Report {
        let mut notes = self.notes.lock();
        let mut report = std::mem::take(&mut notes.report);
        [report.eager_points, report.lazy_points, report.sampled_points] =
            [&self.points.eager, &self.points.lazy, &self.points.sampled].map(|counter| counter.swap(0, Ordering::Relaxed));
        if let Some(broken) = notes.broken.take() {
            report.violation = Some(self.violation(broken, &notes));
        }
        report
    }

    /// The story so far, for a run that does not end.
    pub(super) fn stuck(&self) -> Violation {
        let broken = Broken::new(STUCK, "no progress; the last operation, or the recovery from a crash in it, does not end");
        self.violation(broken, &self.notes.lock())
    }

    fn violation(&self, broken: Broken, notes: &Notes<W::Change>) -> Violation {
        Violation {
            broken,
            subject: self.world.name(),
            start: self.start.name.to_owned(),
            setup: Vec::new(),
            steps: notes.taken.iter().map(Step::to_string).collect(),
            crashes: notes.crashes.clone(),
            end: notes.end.clone(),
            case: notes.case,
            replay: super::replay_command(&self.world.name(), notes.case, &self.options),
        }
    }

    /// Whether a rule is broken already.
    pub(super) fn is_broken(&self) -> bool {
        self.notes.lock().broken.is_some()
    }

    /// Whether this or another worker has seen a broken rule, so that the run is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_broken() || self.run.is_broken.load(Ordering::Relaxed)
    }

    /// Takes `steps` from the start, and crashes the last one at every point. If there are none, crashes the opening of the pool.
    pub(super) fn run(self: &Arc<Self>, case: Case, steps: &[Step<W::Change>]) {
        self.begin(case);
        self.guarded(|| {
            let life = self.ground.live(self.life_options(self.options.seed));
            if steps.is_empty() {
                self.watch(&life, &Expected::new(vec![self.model.clone()]), self.extent());
            }
            let mut live = Some(self.open(&life, 1)?);
            if steps.is_empty() {
                life.end();
            }
            // How the pool was opened is part of the story only if the opening is what crashed.
            self.forget(0);
            let mut model = self.model.clone();
            for (number, step) in steps.iter().enumerate() {
                let extent = (number + 1 == steps.len()).then_some(self.extent());
                self.step(&life, &mut live, &mut model, step, extent)?;
            }
            let content = self.world.content(live.as_ref().expect("open between steps"), self.limit())?;
            if content != model {
                return Err(Broken::new("it is as the model, without any crash", format_args!("{content:?} instead of {model:?}")));
            }
            Ok(())
        });
    }

    /// Takes one long sequence of steps that `next` generates, and crashes every step at every point.
    pub(super) fn run_long(self: &Arc<Self>, case: Case, mut next: impl FnMut(u64, &W::Content) -> Option<Step<W::Change>>) {
        self.begin(case);
        self.guarded(|| {
            let life = self.ground.live(self.life_options(self.options.seed));
            let mut live = Some(self.open(&life, 1)?);
            let mut model = self.model.clone();
            let mut number = 0;
            while let Some(step) = next(number, &model) {
                number += 1;
                self.step(&life, &mut live, &mut model, &step, Some(self.extent()))?;
                if self.is_over() {
                    break;
                }
            }
            Ok(())
        });
    }

    fn begin(&self, case: Case) {
        let mut notes = self.notes.lock();
        notes.case = case;
        notes.taken.clear();
        notes.report.sequences += 1;
    }

    fn extent(&self) -> Extent {
        Extent { depth: self.options.depth, lives: self.options.lives, nested: false, closed: false }
    }

    /// Runs `act`, and notes a broken rule or a panic.
    fn guarded(&self, act: impl FnOnce() -> Result<(), Broken>) {
        let result = catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        let mut notes = self.notes.lock();
        if let Err(broken) = result {
            notes.broken.get_or_insert(broken);
        }
        self.tell(&mut notes, 0);
    }

    /// Adds a line to the story, if one is told.
    fn say(&self, text: impl FnOnce() -> String) {
        if let Some(trace) = &self.options.life.trace {
            trace.say(text());
        }
    }

    /// The length of the story so far.
    fn told(&self) -> usize {
        self.options.life.trace.as_ref().map_or(0, |trace| trace.length())
    }

    /// Removes what the story has told since it had this length.
    fn forget(&self, from: usize) {
        if let Some(trace) = self.options.life.trace.as_ref().filter(|_| !self.is_broken()) {
            trace.take(from);
        }
    }

    /// Ends the life that began when the story had this length. If a rule is broken, its deeds belong to the story, before the crash after which the rule
    /// broke.
    fn tell(&self, notes: &mut Notes<W::Change>, from: usize) {
        let Some(trace) = &self.options.life.trace else { return };
        let did = trace.take(from);
        if notes.broken.is_some() {
            trace.close();
            match notes.crashes.first_mut() {
                Some(crashed) => crashed.did = did,
                None => notes.end = did,
            }
        }
    }

    /// Takes a step in the first life, and notes it. If `extent` is given, examines everything that a crash during the step, or just after it, can leave.
    fn step(
        self: &Arc<Self>,
        life: &Life,
        live: &mut Option<W::Live>,
        model: &mut W::Content,
        step: &Step<W::Change>,
        extent: Option<Extent>,
    ) -> Result<(), Broken> {
        if extent.is_none_or(|extent| extent.lives == self.options.lives) {
            self.notes.lock().taken.push(step.clone());
        }
        let Some(extent) = extent else {
            life.begin();
            return self.take(live, &life.medium(), model, step, &mut |_| {});
        };
        let mut allowed = vec![model.clone()];
        if let Step::Change(change) = step {
            allowed.extend(self.world.between(model, change));
            let mut after = model.clone();
            self.world.model(&mut after, change);
            allowed.push(after);
        }
        let allowed = Expected::new(allowed);
        self.watch(life, &allowed, extent);
        life.begin();
        if *step == Step::Close {
            self.shut_down(life, live, &allowed, extent)?;
            self.watch(life, &allowed, extent);
        }
        let taken = self.take(live, &life.medium(), model, step, &mut |promised| self.watch(life, &Expected::new(promised), extent));
        self.watch(life, &Expected::new(vec![model.clone()]), extent);
        life.end();
        life.look_away();
        taken
    }

    /// Takes a step, in the world and in the model.
    fn take(
        &self,
        live: &mut Option<W::Live>,
        medium: &Crash,
        model: &mut W::Content,
        step: &Step<W::Change>,
        promise: Promise<'_, W::Content>,
    ) -> Result<(), Broken> {
        self.run.steps.fetch_add(1, Ordering::Relaxed);
        self.say(|| step.to_string());
        match step {
            Step::Change(change) => {
                if self.apply(live.as_mut().expect("open between steps"), model, change, promise)? == Applied::Refused {
                    self.notes.lock().report.refused += 1;
                }
                Ok(())
            }
            Step::Close => {
                if live.is_some() {
                    self.close(live)?;
                }
                *live = Some(self.world.open(self.open_pool(medium.clone())?, 1)?);
                Ok(())
            }
        }
    }

    /// Applies an operation to the world and, unless it is refused, to the model.
    fn apply(&self, live: &mut W::Live, model: &mut W::Content, change: &W::Change, promise: Promise<'_, W::Content>) -> Result<Applied, Broken> {
        let applied = self.world.apply(live, model, change, promise)?;
        if applied == Applied::Done {
            self.world.model(model, change);
        }
        Ok(applied)
    }

    fn close(&self, live: &mut Option<W::Live>) -> Result<(), Broken> {
        let live = live.take().expect("open between steps");
        self.world.close(live)
    }

    /// Closes the world, and examines the pool that is left. The next opening must recover nothing, unless the world may need recovery.
    fn shut_down(self: &Arc<Self>, life: &Life, live: &mut Option<W::Live>, allowed: &Arc<Expected<W::Content>>, extent: Extent) -> Result<(), Broken> {
        self.close(live)?;
        let closed = !self.open_pool(life.live(CrashOptions::default()).medium())?.needs_recovery();
        if !closed && !self.world.may_need_recovery() {
            return Err(Broken::new("a pool that was closed needs no recovery", "the next opening would recover it"));
        }
        self.watch(life, allowed, Extent { closed, ..extent });
        life.end();
        Ok(())
    }

    fn watch(self: &Arc<Self>, life: &Life, expected: &Arc<Expected<W::Content>>, extent: Extent) {
        let (checker, expected) = (Arc::clone(self), Arc::clone(expected));
        life.observe(move |image| checker.examine(image, &expected, extent));
    }

    /// Examines one image.
    fn examine(self: &Arc<Self>, image: &Image<'_>, expected: &Arc<Expected<W::Content>>, extent: Extent) -> Seen {
        let hash = image.hash();
        let key = hash ^ expected.hash.rotate_left(extent.depth + 8 * extent.lives + 32 * u32::from(extent.closed));
        {
            let mut notes = self.notes.lock();
            if notes.broken.is_some() {
                return Seen::default();
            }
            notes.report.images += 1;
            if notes.seen.len() >= SEEN_MAX {
                notes.seen.clear();
            }
            let known = match notes.seen.entry(key) {
                Occupied(seen) => Some(*seen.get()),
                Vacant(place) => {
                    place.insert(Seen::default());
                    None
                }
            };
            if let Some(progress) = &self.options.progress {
                progress.count(known.is_none());
            }
            if let Some(seen) = known {
                return seen;
            }
            notes.report.checked += 1;
            notes.report.nested += u64::from(extent.nested);
        }
        image.examined();
        self.run.steps.fetch_add(1, Ordering::Relaxed);
        let told = self.told();
        let result = catch_unwind(AssertUnwindSafe(|| self.recover(image, expected, extent))).unwrap_or_else(|panic| Err(panicked(&*panic)));
        let mut notes = self.notes.lock();
        let seen = match result {
            Ok(seen) => seen,
            Err(broken) => {
                // An image that no crash leaves only shows which orders of stores the source relies on.
                if image.is_in_order {
                    notes.broken.get_or_insert(broken);
                }
                Seen { is_broken: true, ..Seen::default() }
            }
        };
        if image.hash() == hash {
            notes.seen.insert(key, seen);
        } else {
            // The image was decided during recovery. It will come again, to be decided differently.
            notes.seen.remove(&key);
        }
        self.tell(&mut notes, told);
        if notes.broken.is_some() {
            // The innermost crash comes first. Each enclosing one adds itself as the error returns.
            notes.crashes.insert(0, Crashed::of(image));
        }
        seen
    }

    /// The oracle.
    fn recover(self: &Arc<Self>, image: &Image<'_>, expected: &Arc<Expected<W::Content>>, extent: Extent) -> Result<Seen, Broken> {
        let told = self.told();
        let life = image.live(self.life_options(image.hash()));
        // The further fate of an image that no crash leaves says nothing.
        let extent = if image.is_in_order { extent } else { Extent { depth: 0, lives: 0, ..extent } };
        let deeper = Extent { depth: extent.depth.saturating_sub(1), nested: true, closed: false, ..extent };
        if extent.depth > 0 {
            self.watch(&life, expected, deeper);
        } else {
            life.unwatch();
        }
        life.begin();
        self.say(|| "the pool is opened and recovered".to_owned());
        let pool = self.open_pool(life.medium())?;
        if extent.closed && pool.needs_recovery() {
            return Err(Broken::new("a pool that was closed needs no recovery", format_args!("{:?}", pool.info())));
        }
        let mut live = self.world.open(pool, 1)?;
        self.say(|| "it is read".to_owned());
        let content = self.world.content(&live, self.limit())?;
        if !expected.allowed.contains(&content) {
            let allowed = &expected.allowed;
            return Err(Broken::new("what was acknowledged is there, and nothing else", format_args!("{content:?} instead of one of {allowed:?}")));
        }
        if extent.depth > 0 {
            // A value read after recovery must stay, even if the operation that wrote it was never acknowledged.
            self.watch(&life, &Expected::new(vec![content.clone()]), deeper);
            life.end();
            life.unwatch();
        }
        self.world.audit(&live)?;
        let repaired = life.changes().into_iter().any(|at| at >= HEADER);
        let seen = Seen { reached_hidden: image.hides() && self.reaches_hidden(image, &live)?, is_broken: false };
        self.recover_again(&life, &content)?;
        // Only one thread may read an undecided image, and what follows from an image that no crash leaves says nothing.
        let by_threads = image.is_in_order && self.options.life.lazy_runs_max == 0 && image.hash().rotate_left(16).is_multiple_of(BY_THREADS_EVERY);
        let wanted = by_threads.then(|| content.clone());
        if image.hash().is_multiple_of(self.options.follow_up_every) {
            self.use_on(&mut live, content)?;
        }
        drop(live);
        drop(life);
        wanted.map_or(Ok(()), |content| self.recover_by_threads(image, &content))?;
        let every = if repaired { self.options.second_life_every.div_ceil(REPAIRED) } else { self.options.second_life_every };
        if !extent.nested && extent.lives > 0 && image.hash().rotate_left(32).is_multiple_of(every) {
            self.forget(told);
            self.live_on(image, extent.lives - 1)?;
        }
        Ok(seen)
    }

    /// Whether the world reaches a block that was not linked at the crash.
    fn reaches_hidden(&self, image: &Image<'_>, live: &W::Live) -> Result<bool, Broken> {
        let mut reached = false;
        self.world.blocks(live, &mut |at, _| reached |= image.is_hidden(at))?;
        Ok(reached)
    }

    /// Checks that a second recovery finds the same, and has nothing left to repair.
    fn recover_again(&self, below: &Life, content: &W::Content) -> Result<(), Broken> {
        let life = below.live(CrashOptions { trace: self.options.life.trace.clone(), ..CrashOptions::default() });
        life.unwatch();
        self.say(|| "the pool is opened and recovered once more".to_owned());
        let live = self.open(&life, 1)?;
        let again = self.world.content(&live, self.limit())?;
        if again != *content {
            return Err(Broken::new("a second recovery finds the same", format_args!("{again:?} after {content:?}")));
        }
        match life.changes().into_iter().find(|at| *at >= HEADER) {
            Some(at) => Err(Broken::new("a second recovery has nothing to repair", format_args!("it changed the word at {at:#x}"))),
            None => Ok(()),
        }
    }

    /// Checks that several threads find what one found, and leave nothing to repair.
    fn recover_by_threads(&self, image: &Image<'_>, content: &W::Content) -> Result<(), Broken> {
        let life = image.live(self.life_options(image.hash()));
        life.unwatch();
        self.say(|| format!("the pool is opened and recovered by {THREADS} threads"));
        let live = self.open(&life, THREADS)?;
        let found = self.world.content(&live, self.limit())?;
        if found != *content {
            return Err(Broken::new("several threads recover what one does", format_args!("{found:?} instead of {content:?}")));
        }
        self.world.audit(&live)?;
        self.recover_again(&life, content)
    }

    /// Checks that the recovered world works and matches the model.
    fn use_on(&self, live: &mut W::Live, found: W::Content) -> Result<(), Broken> {
        const RULE: &str = "what was recovered works";
        let mut model = found;
        for change in self.world.follow_up(&self.start, &model) {
            self.say(|| format!("it is used: {change}"));
            self.apply(live, &mut model, &change, &mut |_| {}).map_err(|broken| Broken::new(RULE, broken))?;
        }
        let used = self.world.content(live, self.limit()).map_err(|broken| Broken::new(RULE, broken))?;
        if used != model {
            return Err(Broken::new(RULE, format_args!("it holds {used:?} instead of {model:?}")));
        }
        self.world.audit(live)
    }

    /// Recovers, continues, and crashes again. Only this shows repairs that are not durable.
    fn live_on(self: &Arc<Self>, image: &Image<'_>, lives: u32) -> Result<(), Broken> {
        self.notes.lock().report.second_lives += 1;
        let life = image.live(self.life_options(image.hash()));
        self.say(|| "the pool is opened and recovered, for another life".to_owned());
        let medium = life.medium();
        let mut live = Some(self.hand_over(&medium, || self.open(&life, 1))?);
        let mut model = self.world.content(live.as_ref().expect("just opened"), self.limit())?;
        let extent = Extent { depth: 0, lives, nested: false, closed: false };
        // Opening after a shutdown repairs nothing, and words that are written again then become durable. So a shutdown comes first, or not at all.
        if self.options.closes && image.hash().rotate_left(48).is_multiple_of(CLOSED_EVERY) {
            self.say(|| "it is closed".to_owned());
            // What a crash during a shutdown can leave is examined where the shutdown is a step.
            self.shut_down(&life, &mut live, &Expected::new(vec![model.clone()]), Extent { lives: 0, ..extent })?;
            life.look_away();
            live = Some(self.hand_over(&medium, || self.open(&life, 1))?);
        }
        let mut random = image.hash() ^ self.options.seed;
        for _ in 0..LIFE_STEPS {
            random = next_random(random);
            let changes = self.world.changes(&self.start, &model);
            if changes.is_empty() {
                break;
            }
            let change = changes[(random >> 33) as usize % changes.len()].clone();
            self.hand_over(&medium, || self.step(&life, &mut live, &mut model, &Step::Change(change), Some(extent)))?;
        }
        Ok(())
    }

    /// Runs `act`, in a thread of its own if the options say so.
    fn hand_over<T: Send>(&self, medium: &Crash, act: impl FnOnce() -> T + Send) -> T {
        if self.options.hands_over { by_another(medium, act) } else { act() }
    }

    fn open(&self, life: &Life, threads: usize) -> Result<W::Live, Broken> {
        self.world.open(self.open_pool(life.medium())?, threads)
    }

    /// Opens the pool, or creates it if a crash has left none.
    fn open_pool(&self, medium: Crash) -> Result<Arc<Pool<Crash>>, Broken> {
        let opened = match Pool::open_in(Arc::clone(&self.memory), medium.clone(), self.pool_options()) {
            Err(Error::Unfinished { .. }) if !self.start.pool => Pool::create_in(Arc::clone(&self.memory), medium, self.pool_options()),
            opened => opened,
        };
        opened.map_err(Broken::by("opening after a crash succeeds"))
    }

    fn life_options(&self, seed: u64) -> CrashOptions {
        CrashOptions { seed, points: Some(Arc::clone(&self.points)), ..self.options.life.clone() }
    }

    /// More entries than fit in the memory.
    fn limit(&self) -> usize {
        self.memory.words().len()
    }

    fn pool_options(&self) -> PoolOptions {
        PoolOptions { size_max: self.memory.size(), slab_size: SLAB, ..PoolOptions::default() }
    }
}

/// Runs `act` in a thread of its own, with its own flushes and fences. But where caches are durable, whatever another thread can see is durable.
pub(super) fn by_another<T: Send>(medium: &Crash, act: impl FnOnce() -> T + Send) -> T {
    if medium.has_durable_caches() {
        medium.fence();
    }
    std::thread::scope(|scope| scope.spawn(act).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// A key that no operation names, between some that they do.
const KEY_LEFT: u64 = 15;

/// Leaves garbage in a slab of blocks of every size, as far as there is room: code that gets a free block must not rely on its content. Every other block looks
/// as if it held entries: keys, and values or states of directories. Within a size, the block freed last is given out first.
fn soil(pool: &Pool<Crash>, seed: u64) -> Vec<Fresh<'_, [Word], Crash>> {
    let doubled = |from: usize| (0..).map(move |shift| from << shift).take_while(|size| size * WORD < SLAB);
    let sizes = (4..8).flat_map(doubled);
    let blocks: Vec<_> = sizes.flat_map(|size| std::iter::repeat_n(size, SLAB / WORD / size)).map_while(|size| pool.alloc_words(size).ok()).collect();
    let mut left = !seed;
    for (number, block) in blocks.iter().enumerate() {
        for (at, word) in block.iter().enumerate() {
            let entry = if at.is_multiple_of(2) { KEY_LEFT } else { 1 };
            pool.store(word, if number.is_multiple_of(2) { left } else { entry }, Ordering::Relaxed);
            left = next_random(left);
        }
    }
    blocks
}

/// The next number of a linear congruential generator (Knuth's MMIX), whose upper bits are good.
fn next_random(last: u64) -> u64 {
    last.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

pub(super) fn panicked(panic: &(dyn Any + Send)) -> Broken {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Broken::new("no panic", text.unwrap_or("a panic without a message"))
}
