//! One schedule: threads, crashes, recoveries, and their findings.

use super::baton::{Alone, Baton, Lag, Limits, Order, Seat, Strategy, random_of};
use super::crew::Crew;
use super::history::{History, Operation, Outcomes, Returned};
use super::sleep::Sleep;
use super::story::{Event, Place, Violation};
use super::target::{Mood, Target, World};
use super::{Counts, Options};
use crate::Broken;
use crate::crash::checker::{HEADER, SLAB, THREADS};
use everleaf_pmem::schedule::{self, Step};
use everleaf_pmem::{Crash, CrashOptions, Debt, Image, Life, Medium, Memory, Pool, PoolOptions, Seen};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use std::any::Any;
use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Largest number of threads of a schedule.
pub(super) const THREADS_MAX: usize = 4;
/// Number of the thread that the prelude counts as; no real thread has it.
const PRELUDE: usize = 7;
/// Number of images remembered as examined. When it is reached, all are forgotten.
const SEEN_MAX: usize = 1 << 20;
/// One in this many images is also recovered by several threads.
const BY_THREADS_EVERY: u64 = 8;
/// One in this many schedules closes the structure at the end, and opens it again.
const CLOSED_EVERY: u64 = 8;
/// One in this many repairs by recovery is crashed.
const CRASHED_EVERY: u64 = 2;

/// A worker: its threads, and a memory for each world.
pub(super) struct Worker<T: Target> {
    target: Arc<T>,
    options: Arc<Options>,
    crew: Crew,
    grounds: Vec<Arc<Ground<T>>>,
}

/// A world, built.
struct Ground<T: Target> {
    target: Arc<T>,
    options: Arc<Options>,
    world: World,
    memory: Arc<Memory>,
    crash: Crash,
    initial: Vec<u64>,
    seen: Mutex<HashSet<u64>>,
}

/// A schedule. One seed determines what it does, another the order; the second follows from the first unless the schedule was shrunk.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) order: u64,
    /// Calls that are left out: thread and number.
    pub(super) without: Vec<(usize, usize)>,
}

/// Number of orders tried before a call counts as needed.
const ORDERS_TRIED: u64 = 400;
/// Number of steps spent on shrinking a schedule: some seconds' worth.
const SHRINK_STEPS_MAX: u64 = 1 << 26;

/// The plan of a schedule.
struct Plan {
    ground: usize,
    order: Order,
    /// Runs before the threads start, so that they find nodes of all sizes.
    prelude: Vec<(usize, Operation)>,
    /// The operations of each thread, numbered.
    operations: Vec<Vec<(usize, Operation)>>,
    /// Number of the first fence before which a crash is examined.
    first_crash: u64,
    random: StdRng,
}

impl Plan {
    /// All calls, including the prelude: thread and number.
    fn calls(&self) -> Vec<(usize, usize)> {
        let prelude = self.prelude.iter().map(|(number, _)| (PRELUDE, *number));
        prelude.chain(self.operations.iter().enumerate().flat_map(|(thread, calls)| calls.iter().map(move |(number, _)| (thread, *number)))).collect()
    }
}

/// What the threads of a schedule share.
struct Shared<T: Target> {
    ground: Arc<Ground<T>>,
    live: T::Live,
    life: Arc<Life>,
    baton: Arc<Baton>,
    notes: Arc<Notes>,
    watch: Mutex<Watch>,
    traced: bool,
}

/// When to examine images.
struct Watch {
    /// Number of possible crash points so far.
    moments: u64,
    next_crash: u64,
    observed: bool,
    random: StdRng,
}

/// The findings of a schedule so far.
#[derive(Default)]
struct Notes {
    history: Mutex<History>,
    counts: Mutex<Counts>,
    finding: Mutex<Option<Finding>>,
    /// The outcomes at this moment of the history, with its number of moments.
    outcomes: Mutex<Option<(u64, Arc<Outcomes>)>>,
}

struct Finding {
    broken: Broken,
    image: Option<String>,
}

/// A recovered structure, in a life of its own.
struct Recovered<T: Target> {
    live: T::Live,
    content: Vec<u64>,
    /// Whether there was anything to repair.
    repairs: bool,
    life: Life,
}

/// Checks the content that was found.
type Judge = dyn Fn(&[u64]) -> Result<(), Broken> + Send;

impl<T: Target> Worker<T> {
    /// Builds every world.
    ///
    /// # Errors
    /// What breaks before any thread has run.
    pub(super) fn new(target: Arc<T>, options: Arc<Options>) -> Result<Self, Broken> {
        let ground = |world| Ground::new(Arc::clone(&target), Arc::clone(&options), world).map(Arc::new);
        let grounds = target.worlds().into_iter().map(ground).collect::<Result<_, _>>()?;
        Ok(Self { target, options, crew: Crew::new(THREADS_MAX), grounds })
    }

    /// Runs a schedule, and returns its violation, if any, with as few calls as possible.
    pub(super) fn run(&self, schedule: &Schedule) -> (Counts, Option<Box<Violation>>) {
        let (counts, finding, _) = self.attempt(schedule, false);
        let told = finding.map(|finding| {
            let shorter = if self.options.shrinks { self.shrink(schedule.clone(), finding.broken.rule) } else { schedule.clone() };
            Box::new(self.tell(&shorter, finding))
        });
        (counts, told)
    }

    /// Leaves out calls as long as some order of the steps of the rest breaks the same rule.
    fn shrink(&self, mut schedule: Schedule, rule: &str) -> Schedule {
        let (mut is_shorter, mut steps) = (true, 0);
        while is_shorter && steps < SHRINK_STEPS_MAX {
            is_shorter = false;
            for (thread, number) in self.plan(&schedule).calls() {
                let mut breaks = |schedule: &Schedule| {
                    let (counts, finding, _) = self.attempt(schedule, false);
                    steps += counts.steps;
                    finding.is_some_and(|finding| finding.broken.rule == rule)
                };
                let mut without = schedule.without.clone();
                without.push((thread, number));
                let orders = (0..ORDERS_TRIED).map(|order| Schedule { order: schedule.order.wrapping_add(order), without: without.clone(), ..schedule });
                if let Some(found) = orders.into_iter().find(|schedule| breaks(schedule)) {
                    schedule = found;
                    is_shorter = true;
                }
            }
        }
        schedule
    }

    /// Every event of a schedule.
    #[cfg(test)]
    pub(super) fn trace(&self, schedule: &Schedule) -> Vec<String> {
        self.attempt(schedule, true).2.iter().map(ToString::to_string).collect()
    }

    /// Repeats the schedule, slowly, for the story.
    fn tell(&self, schedule: &Schedule, finding: Finding) -> Violation {
        let (_, again, events) = self.attempt(schedule, true);
        let plan = self.plan(schedule);
        let ground = &self.grounds[plan.ground];
        let mut events: Vec<String> = events.iter().map(ToString::to_string).collect();
        if again.is_none() {
            events.push("this did not happen again when the schedule was run again: something in it is not the scheduler's choice".to_owned());
        }
        let Finding { broken, image } = again.unwrap_or(finding);
        let operations = |calls: &Vec<(usize, Operation)>| calls.iter().map(|(_, call)| call.to_string()).collect::<Vec<_>>().join(", ");
        Violation {
            broken,
            subject: format!("{}, starting from {:?}, seed {:#x}", self.target.name(), ground.world.name, schedule.seed),
            initial: (0..ground.initial.len()).map(|register| (register, ground.initial[register])).filter(|(_, value)| *value != 0).collect(),
            prelude: operations(&plan.prelude),
            plan: plan.operations.iter().map(operations).collect(),
            strategy: plan.order.to_string(),
            events,
            image,
            replay: self.options.replay(&self.target.name(), schedule),
        }
    }

    fn plan(&self, schedule: &Schedule) -> Plan {
        let mut random = random_of(schedule.seed);
        // Half of the schedules focus on something rare, if the target knows of any.
        let is_about_rare: bool = random.random();
        let grounds: Vec<usize> = (0..self.grounds.len()).filter(|ground| is_about_rare != self.grounds[*ground].world.focus.is_empty()).collect();
        let ground = if grounds.is_empty() { random.random_range(0..self.grounds.len()) } else { grounds[random.random_range(0..grounds.len())] };
        let world = &self.grounds[ground].world;
        let threads = match random.random_range(0..8u32) {
            0..5 => 2,
            5..7 => 3,
            _ => THREADS_MAX,
        };
        let each = random.random_range(1..=[12, 8, 6][threads - 2]);
        // Neighbouring keys, so that threads meet.
        let width = random.random_range(2..=8usize).min(world.keys.len());
        let from = random.random_range(0..=world.keys.len() - width);
        let neighbours: Vec<usize> = (from..from + width).collect();
        let registers = if world.focus.is_empty() { &neighbours } else { &world.focus };
        let draw = |thread: usize, count: usize, random: &mut StdRng| {
            let mood = Mood::draw(thread, registers, random);
            let payload = |number: usize| (thread as u64 + 1) << 32 | (number as u64 + 1);
            let calls = (0..count).map(|number| (number, self.target.draw(world, &mood, payload(number), random)));
            // All are drawn first, so that leaving some out does not change the others.
            let mut calls: Vec<_> = calls.collect();
            calls.retain(|(number, _)| !schedule.without.contains(&(thread, *number)));
            calls
        };
        // A world with a focus is one step away from its purpose.
        let prelude = if world.focus.is_empty() { random.random_range(0..=8usize) } else { 0 };
        let prelude = draw(PRELUDE, prelude, &mut random);
        let operations = (0..threads).map(|thread| draw(thread, each, &mut random)).collect();
        let mut random = random_of(schedule.order);
        let strategy = Strategy::draw(&mut random, threads * each);
        let first_crash = random.random_range(1..=2 * (threads * each) as u64);
        let is_held_back = random.random();
        let lag = self.options.store_buffers.unwrap_or(is_held_back).then(|| Lag::draw(&mut random, threads));
        let sleep = Sleep::draw(&mut random, self.options.omission.is_some());
        Plan { ground, order: Order { strategy, lag, sleep }, prelude, operations, first_crash, random }
    }

    /// Runs a schedule. Returns the counts, the finding, and, if it is `traced`, the events.
    fn attempt(&self, schedule: &Schedule, traced: bool) -> (Counts, Option<Finding>, Vec<Event>) {
        let mut plan = self.plan(schedule);
        let ground = Arc::clone(&self.grounds[plan.ground]);
        let Options { steps_max, omission, sites, .. } = &*self.options;
        let limits = Limits { steps_max: *steps_max, omission: omission.clone(), sites: sites.clone(), memory: ground.addresses() };
        let watch = Watch { moments: 0, next_crash: plan.first_crash, observed: false, random: random_of(plan.random.random()) };
        let baton = Baton::new(plan.operations.len(), plan.order.clone(), plan.random.clone(), limits, traced);
        let notes = Arc::new(Notes::default());
        if traced {
            ground.seen.lock().clear();
        }
        let life = Arc::new(ground.crash.live(self.options.life(schedule.order)));
        let opened = ground.open(&life, 1);
        let finding = match opened {
            Err(broken) => Some(Finding { broken, image: None }),
            Ok(live) => {
                let shared = Shared {
                    ground: Arc::clone(&ground),
                    live,
                    life: Arc::clone(&life),
                    baton: Arc::clone(&baton),
                    notes: Arc::clone(&notes),
                    watch: Mutex::new(watch),
                    traced,
                };
                let opening = ground.world.opening.iter().map(|operation| (0, operation.clone()));
                match shared.play(&opening.chain(plan.prelude).collect::<Vec<_>>()) {
                    Ok(()) => self.run_threads(Arc::new(shared), plan.operations, schedule.order.is_multiple_of(CLOSED_EVERY)),
                    Err(broken) => Some(Finding { broken, image: None }),
                }
            }
        };
        life.look_away();
        drop(life);
        let (steps, switches, events) = baton.result();
        let mut counts = std::mem::take(&mut *notes.counts.lock());
        counts.schedules = 1;
        counts.steps += steps;
        counts.switches += switches;
        (counts, finding, events)
    }

    fn run_threads(&self, shared: Arc<Shared<T>>, operations: Vec<Vec<(usize, Operation)>>, closes: bool) -> Option<Finding> {
        let count = operations.len();
        let task = |(thread, operations): (usize, Vec<(usize, Operation)>)| {
            let shared = Arc::clone(&shared);
            Box::new(move || Shared::run_thread(shared, thread, &operations)) as Box<dyn FnOnce() + Send>
        };
        let threads = self.crew.start(operations.into_iter().enumerate().map(task).collect());
        shared.baton.run(threads);
        self.crew.finish(count);
        let found = shared.notes.finding.lock().take();
        found.or(shared.baton.broken().map(|broken| Finding { broken, image: None })).or_else(|| {
            let notes = Arc::clone(&shared.notes);
            let ended = catch_unwind(AssertUnwindSafe(|| shared.at_the_end(closes))).unwrap_or_else(|panic| Err(panicked(&*panic)));
            ended.err().map(|broken| Finding { broken, image: None }).or_else(|| notes.finding.lock().take())
        })
    }
}

impl<T: Target> Shared<T> {
    /// Runs the prelude, before the threads start.
    fn play(&self, operations: &[(usize, Operation)]) -> Result<(), Broken> {
        for (_, operation) in operations {
            let call = self.notes.history.lock().begin(PRELUDE, operation);
            let returned = self.apply(operation)?;
            self.notes.history.lock().end(call, returned);
        }
        Ok(())
    }

    fn apply(&self, operation: &Operation) -> Result<Returned, Broken> {
        let returned = self.ground.target.apply(&self.live, &self.ground.world, operation)?;
        if self.ground.options.late_fence.is_some() {
            schedule::before(Step::Fence);
            self.life.medium().fence();
        }
        Ok(returned)
    }

    /// The life of one thread.
    fn run_thread(shared: Arc<Self>, thread: usize, operations: &[(usize, Operation)]) {
        let baton = Arc::clone(&shared.baton);
        baton.take_seat(thread);
        let debts = Arc::new(Mutex::new(Vec::new()));
        let seat = {
            let (shared, debts) = (Arc::clone(&shared), Arc::clone(&debts));
            Seat { baton: Arc::clone(&baton), thread, watch: move |step, place| shared.watch(thread, step, place, &debts) }
        };
        let scheduled = schedule::enter(Arc::new(seat));
        let calls = || operations.iter().try_for_each(|(_, operation)| shared.call(thread, operation, &debts));
        // The end of a thread empties its store buffer. `rest` lets other threads act before that.
        let result = catch_unwind(AssertUnwindSafe(|| calls().map(|()| schedule::rest())));
        drop(scheduled);
        match result {
            Ok(Ok(())) => {}
            Ok(Err(broken)) => baton.give_up(broken),
            Err(panic) if Baton::is_given_up(&*panic) => {}
            Err(panic) => baton.give_up(panicked(&*panic)),
        }
        drop(shared);
        baton.leave(thread);
    }

    fn call(&self, thread: usize, operation: &Operation, debts: &Mutex<Vec<Debt>>) -> Result<(), Broken> {
        let call = self.notes.history.lock().begin(thread, operation);
        self.baton.note(|| Event::Begin { thread, operation: operation.clone() });
        debts.lock().clear();
        let returned = self.apply(operation)?;
        self.baton.note(|| Event::End { thread, returned: returned.clone() });
        self.notes.counts.lock().operations += 1;
        let mut owed: Vec<Debt> = std::mem::take(&mut *debts.lock());
        owed.retain(|debt| !self.life.is_paid(*debt));
        match &self.baton.buffers {
            Some(buffers) if owed.is_empty() => {
                let notes = Arc::clone(&self.notes);
                buffers.of(thread).after_stores(move || notes.history.lock().end(call, returned));
            }
            _ => {
                schedule::drain();
                self.notes.history.lock().end(call, returned);
            }
        }
        schedule::at_once(|| self.collect(owed));
        Ok(())
    }

    /// A call has returned after reading stores of other threads that were not durable. If one is still not durable, a crash may take back the result: the
    /// image without it decides.
    fn collect(&self, owed: Vec<Debt>) {
        for debt in owed {
            self.notes.counts.lock().suspicions += 1;
            let (ground, notes, traced) = (Arc::clone(&self.ground), Arc::clone(&self.notes), self.traced);
            self.life.lose(debt, move |image| ground.examine(image, &notes, traced));
        }
    }

    /// Called before each step that a thread is certain to take.
    fn watch(&self, thread: usize, step: Step, place: Place, debts: &Mutex<Vec<Debt>>) {
        let addresses = self.ground.addresses();
        let within = |address: usize| addresses.contains(&address).then(|| address - addresses.start);
        if let Step::Load(address) | Step::Exchange(address, _) = step {
            let debt = within(address).filter(|_| self.ground.target.is_persistent()).and_then(|at| self.life.debt(at));
            // If the thread has stored there since, it reads its own store.
            let is_own = || self.baton.buffers.as_ref().is_some_and(|buffers| buffers.held_back(thread, address).is_some());
            if let Some(debt) = debt.filter(|_| !is_own()) {
                let mut debts = debts.lock();
                if !debts.contains(&debt) {
                    debts.push(debt);
                    self.notes.counts.lock().dirty_reads += 1;
                    self.baton.note(|| Event::Dirty { thread, at: debt.at, place });
                }
            }
        }
        match step {
            Step::Store(address, _) | Step::Exchange(address, _) if self.ground.options.durable_cache => {
                if let Some(at) = within(address) {
                    self.baton.note(|| Event::Step { thread, at, step, place });
                    self.may_crash_now();
                }
            }
            Step::Fence => self.before_fence(thread, step, place),
            Step::Exchange(address, _) if within(address).is_some() => self.before_fence(thread, step, place),
            Step::Store(address, _) | Step::Flush(address, _) if self.traced => {
                if let Some(at) = within(address) {
                    self.baton.note(|| Event::Step { thread, at, step, place });
                }
            }
            _ => {}
        }
    }

    /// Whether this moment is a crash point, according to the seed.
    fn is_wanted(&self, watch: &mut Watch) -> bool {
        let options = &self.ground.options;
        if options.crash_every == 0 || !self.ground.target.is_persistent() {
            return false;
        }
        watch.moments += 1;
        let wanted = watch.moments == watch.next_crash && self.notes.finding.lock().is_none();
        if wanted {
            let step = watch.random.random_range(1..=2 * options.crash_every);
            watch.next_crash += step;
            self.baton.note(|| Event::Crash);
        }
        wanted
    }

    /// Where caches are durable, every moment may be a crash point.
    fn may_crash_now(&self) {
        if self.is_wanted(&mut self.watch.lock()) {
            self.observe();
            self.life.end();
            self.life.look_away();
        }
    }

    /// A fence may be a crash point, just before it makes something durable. With store buffers, so may any that leaves its buffer before the next one enters.
    fn before_fence(&self, thread: usize, step: Step, place: Place) {
        self.baton.note(|| Event::Step { thread, at: 0, step, place });
        if self.ground.options.durable_cache {
            return;
        }
        let mut watch = self.watch.lock();
        let wanted = self.is_wanted(&mut watch);
        if wanted {
            self.observe();
        } else if watch.observed {
            self.life.look_away();
        }
        watch.observed = wanted;
    }

    fn observe(&self) {
        let (ground, notes, traced) = (Arc::clone(&self.ground), Arc::clone(&self.notes), self.traced);
        self.life.observe(move |image| schedule::at_once(|| ground.examine(image, &notes, traced)));
    }

    /// All threads have ended. Some schedules then close the structure, and open it again.
    fn at_the_end(self: Arc<Self>, closes: bool) -> Result<(), Broken> {
        let Self { ground, live, .. } = &*self;
        self.life.look_away();
        let outcomes = ground.outcomes(&self.notes);
        if let Some(keys) = outcomes.unexplained() {
            return Err(Broken::new("some order of the calls explains what they returned", format_args!("none does for keys {keys:?}")));
        }
        if ground.target.is_persistent() && ground.options.crash_every != 0 {
            self.baton.note(|| Event::Crash);
            self.observe();
            self.life.end();
            self.life.look_away();
        }
        // The stores that left the buffers last are still beside their words, and a lock that was not released is waited for.
        let _alone = schedule::enter(Alone::after(&self.baton));
        let content = ground.target.content(live, &ground.world)?;
        if let Some(refused) = outcomes.refuse(&content) {
            return Err(Broken::new("some order of the calls explains what is there", refused));
        }
        ground.target.audit(live)?;
        if !closes || !ground.target.is_persistent() {
            return Ok(());
        }
        let Self { ground, live, life, .. } = Arc::into_inner(self).expect("no thread is left");
        ground.target.close(live)?;
        let pool = ground.pool(&life)?;
        if pool.needs_recovery() {
            return Err(Broken::new("a pool that was closed needs no recovery", "the next opening would recover it"));
        }
        let live = ground.target.open(pool, 1)?;
        the_same_as(content)(&ground.target.content(&live, &ground.world)?)?;
        ground.target.audit(&live)
    }
}

impl<T: Target> Ground<T> {
    fn new(target: Arc<T>, options: Arc<Options>, world: World) -> Result<Self, Broken> {
        const RULE: &str = "building the world";
        let memory = Memory::new(target.memory()).map_err(Broken::by(RULE))?;
        let crash = Crash::new(&memory);
        let mut initial = vec![0; world.keys.len()];
        if target.is_persistent() {
            let pool = Pool::create_in(Arc::clone(&memory), crash.clone(), pool_options(&*target)).map_err(Broken::by(RULE))?;
            let live = target.create(pool)?;
            for operation in &world.setup {
                target.apply(&live, &world, operation)?;
            }
            initial = target.content(&live, &world)?;
            if world.closed {
                target.close(live)?;
            }
        } else {
            // It is rebuilt for each schedule.
            for operation in &world.setup {
                match operation {
                    Operation::Upsert(register, payload) => initial[*register] = *payload,
                    Operation::Remove(register) => initial[*register] = 0,
                    _ => return Err(Broken::new(RULE, "a world is made by upserts and removals")),
                }
            }
        }
        Ok(Self { target, options, world, memory, crash, initial, seen: Mutex::default() })
    }

    /// The addresses of the pool.
    fn addresses(&self) -> Range<usize> {
        let words = self.memory.words().as_ptr_range();
        words.start.addr()..words.end.addr()
    }

    fn pool(&self, life: &Life) -> Result<Arc<Pool<Crash>>, Broken> {
        Pool::open_in(Arc::clone(&self.memory), life.medium(), pool_options(&*self.target)).map_err(Broken::by("opening after a crash succeeds"))
    }

    fn open(&self, life: &Life, threads: usize) -> Result<T::Live, Broken> {
        if self.target.is_persistent() {
            return self.target.open(self.pool(life)?, threads);
        }
        let pool = Pool::create_in(Arc::clone(&self.memory), life.medium(), pool_options(&*self.target));
        let live = self.target.create(pool.map_err(Broken::by("building the world"))?)?;
        for operation in &self.world.setup {
            self.target.apply(&live, &self.world, operation)?;
        }
        Ok(live)
    }

    /// What may be left of the calls so far.
    fn outcomes(&self, notes: &Notes) -> Arc<Outcomes> {
        let history = notes.history.lock();
        let mut known = notes.outcomes.lock();
        match &*known {
            Some((at, outcomes)) if *at == history.clock() => Arc::clone(outcomes),
            _ => {
                let outcomes = Arc::new(history.outcomes(&self.initial));
                *known = Some((history.clock(), Arc::clone(&outcomes)));
                outcomes
            }
        }
    }

    /// Examines one image, unless an equal one was examined before. `Seen` says nothing: unreachable blocks are shown in three states only.
    fn examine(self: &Arc<Self>, image: &Image<'_>, notes: &Notes, traced: bool) -> Seen {
        if notes.finding.lock().is_some() {
            return Seen::default();
        }
        let outcomes = self.outcomes(notes);
        let key = image.hash() ^ outcomes.hash();
        {
            let mut counts = notes.counts.lock();
            counts.images += 1;
            let mut seen = self.seen.lock();
            if seen.len() >= SEEN_MAX {
                seen.clear();
            }
            if !seen.insert(key) && !traced {
                return Seen::default();
            }
            counts.checked += 1;
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.recover(image, &outcomes))).unwrap_or_else(|panic| Err(panicked(&*panic)));
        if let Err(broken) = result {
            // Shorter schedules may leave it, too.
            self.seen.lock().remove(&key);
            *notes.finding.lock() = Some(Finding { broken, image: Some(image.to_string()) });
        }
        Seen::default()
    }

    /// The oracle.
    fn recover(self: &Arc<Self>, image: &Image<'_>, outcomes: &Arc<Outcomes>) -> Result<(), Broken> {
        let hash = image.hash();
        let Recovered { live, content, repairs, life } = self.recovered(image, 1, &explained_by(outcomes))?;
        if hash.is_multiple_of(self.options.follow_up_every) {
            self.use_on(&live, content.clone(), hash)?;
        }
        drop(live);
        drop(life);
        if hash.rotate_left(16).is_multiple_of(BY_THREADS_EVERY) {
            self.recovered(image, THREADS, &the_same_as(content))?;
        }
        if repairs && hash.rotate_left(32).is_multiple_of(CRASHED_EVERY) { self.crash_recovery(image, outcomes) } else { Ok(()) }
    }

    /// Recovers an image with `threads` threads. The content must be sound and satisfy `judge`; a second recovery must find the same and have nothing to do.
    fn recovered(&self, image: &Image<'_>, threads: usize, judge: &Judge) -> Result<Recovered<T>, Broken> {
        let life = image.live(self.options.recovery());
        life.unwatch();
        let live = self.open(&life, threads)?;
        let content = self.target.content(&live, &self.world)?;
        // Some structures repair what they read on the first read.
        let repairs = has_changed(&life).is_some();
        judge(&content)?;
        self.target.audit(&live)?;
        let again = life.live(self.options.recovery());
        again.unwatch();
        let second = self.open(&again, 1)?;
        the_same_as(content.clone())(&self.target.content(&second, &self.world)?)?;
        if let Some(at) = has_changed(&again) {
            return Err(Broken::new("a second recovery has nothing to repair", format_args!("it changed the word at {at:#x}")));
        }
        drop(second);
        drop(again);
        Ok(Recovered { live, content, repairs, life })
    }

    /// Crashes the recovery of an image. The same calls explain the images that this leaves; those at its end hold what recovery has found.
    fn crash_recovery(self: &Arc<Self>, image: &Image<'_>, outcomes: &Arc<Outcomes>) -> Result<(), Broken> {
        let life = image.live(CrashOptions { fault: self.options.fault, ..self.options.life(image.hash()) });
        let broken = Arc::new(Mutex::new(None));
        let watch = |judge: Box<Judge>| {
            let (ground, broken) = (Arc::clone(self), Arc::clone(&broken));
            life.observe(move |image| {
                let result = catch_unwind(AssertUnwindSafe(|| ground.recovered(image, 1, &*judge).map(drop))).unwrap_or_else(|panic| Err(panicked(&*panic)));
                if let Err(Broken { rule, seen }) = result {
                    broken.lock().get_or_insert(Broken::new(rule, format_args!("after a crash of the recovery as well, {image}: {seen}")));
                }
                Seen::default()
            });
        };
        watch(Box::new(explained_by(outcomes)));
        let live = self.open(&life, 1)?;
        let content = self.target.content(&live, &self.world)?;
        watch(Box::new(the_same_as(content)));
        life.end();
        life.look_away();
        drop(live);
        broken.lock().take().map_or(Ok(()), Err)
    }

    /// Checks that the recovered structure works.
    fn use_on(&self, live: &T::Live, found: Vec<u64>, seed: u64) -> Result<(), Broken> {
        let mut random = random_of(seed);
        let mut history = History::default();
        let registers: Vec<usize> = (0..self.world.keys.len()).collect();
        for number in 0..12 {
            let payload = 9 << 32 | (number + 1);
            let mood = Mood::draw(number as usize, &registers, &mut random);
            let operation = self.target.draw(&self.world, &mood, payload, &mut random);
            let call = history.begin(PRELUDE, &operation);
            history.end(call, self.target.apply(live, &self.world, &operation)?);
        }
        let content = self.target.content(live, &self.world)?;
        match history.outcomes(&found).refuse(&content) {
            Some(refused) => Err(Broken::new("what was recovered works", refused)),
            None => self.target.audit(live),
        }
    }
}

/// Whether some order of the calls explains it.
fn explained_by(outcomes: &Arc<Outcomes>) -> impl Fn(&[u64]) -> Result<(), Broken> + use<> {
    const RULE: &str = "a crash leaves what some order of the calls explains";
    let outcomes = Arc::clone(outcomes);
    move |found| outcomes.refuse(found).map_or(Ok(()), |refused| Err(Broken::new(RULE, refused)))
}

/// Whether an earlier recovery found the same.
fn the_same_as(content: Vec<u64>) -> impl Fn(&[u64]) -> Result<(), Broken> {
    const RULE: &str = "a second recovery finds the same";
    move |found| if found == content { Ok(()) } else { Err(Broken::new(RULE, format_args!("{found:x?} after {content:x?}"))) }
}

/// A word that a life has changed, outside the pool's header.
fn has_changed(life: &Life) -> Option<usize> {
    life.changes().into_iter().find(|at| *at >= HEADER)
}

fn pool_options<T: Target>(target: &T) -> PoolOptions {
    PoolOptions { size_max: target.memory(), slab_size: SLAB, ..PoolOptions::default() }
}

fn panicked(panic: &(dyn Any + Send)) -> Broken {
    if let Some(broken) = panic.downcast_ref::<Broken>() {
        return broken.clone();
    }
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Broken::new("no panic", text.unwrap_or("a panic without a message"))
}
