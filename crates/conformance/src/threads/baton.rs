//! The scheduler: of all threads of a run, the one that holds the baton runs; the others sleep.
//!
//! Before each step the thread with the baton asks whether to hand it over. The answers are functions of a seed, so a run can be repeated. There are two
//! strategies:
//! - *random*: with some probability at each step, or only at stores, flushes, fences and locks, hand over to any other thread;
//! - *priorities* (PCT: Burckhardt et al., ASPLOS 2010): threads have priorities and the highest runs, until one of d - 1 steps chosen in advance lowers the
//!   priority of the thread that reaches it. For n threads and k steps, this finds a bug that needs d steps in order with probability at least 1 / (n k^(d-1)).
//!
//! In some schedules, with either strategy, threads sleep for long at chosen places (`threads/sleep.rs`).
//!
//! **Store buffers.** In half of the schedules, depending on the seed, each thread's stores go through a buffer ([`everleaf_pmem::schedule::Buffers`]). When
//! the oldest of them leaves is one more choice: before each step of any thread, any buffer may release some of its entries. Each thread has its own
//! probability of being slow ([`Lag`]), so a thread may long see nothing of another. A call counts as returned when all stores before its return have left the
//! buffer: no other thread can learn of it earlier.
//!
//! With either strategy, a thread that waits for another ([`Step::Wait`]) gives the baton away: no schedule is unfair for ever. A schedule with more than
//! [`Limits::steps_max`] steps counts as endless, which is a finding.

use super::sleep::{Sleep, Sleepers};
use super::story::{Event, Place};
use crate::Broken;
use everleaf_pmem::htm::Abort;
use everleaf_pmem::schedule::{self, Buffer, Buffers, Scheduler, Slip, Step};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// How the next thread is chosen.
#[derive(Clone, Debug)]
pub(super) enum Strategy {
    /// At each step, or each step visible to others, with a probability of one in this number.
    Random { one_in: u32, only_writes: bool },
    /// By priorities, which change at these steps.
    Priorities { changes: Vec<u64> },
}

impl Strategy {
    /// A strategy for a run of about this many operations.
    pub(super) fn draw(random: &mut StdRng, operations: usize) -> Self {
        match random.random_range(0..4u32) {
            0 => Self::Random { one_in: 1 << random.random_range(1..8u32), only_writes: false },
            1 => Self::Random { one_in: 1 << random.random_range(0..4u32), only_writes: true },
            _ => {
                // The length of the run is not known. Guesses of different sizes give early steps their share.
                let steps = operations as u64 * (16 << random.random_range(0..5u32));
                let depth = random.random_range(1..=4usize);
                Self::Priorities { changes: (1..depth).map(|_| random.random_range(0..steps)).collect() }
            }
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random { one_in, only_writes: false } => write!(f, "random, one in {one_in} steps"),
            Self::Random { one_in, only_writes: true } => write!(f, "random, one in {one_in} writes"),
            Self::Priorities { changes } => write!(f, "priorities, depth {}, changes at {changes:?}", changes.len() + 1),
        }
    }
}

/// How slowly the stores of each thread become visible.
#[derive(Clone, Debug)]
pub(super) struct Lag {
    /// For each thread: before each step, the oldest entry of its buffer leaves with a probability of one in this number.
    one_in: Vec<u32>,
    /// Number of entries that a buffer can hold.
    capacity: usize,
}

impl Lag {
    /// How slow the threads of a run are.
    pub(super) fn draw(random: &mut StdRng, threads: usize) -> Self {
        // Processors have room for about 40 to 70 stores.
        Self { one_in: (0..threads).map(|_| 1 << random.random_range(0..12u32)).collect(), capacity: 1 << random.random_range(0..7u32) }
    }
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stores held back, up to {}, one leaves in {:?} steps", self.capacity, self.one_in)
    }
}

/// Everything about a schedule that is drawn before it begins, except the calls of its threads.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) strategy: Strategy,
    /// How slow stores are, if they are held back.
    pub(super) lag: Option<Lag>,
    /// Where threads sleep, if they do.
    pub(super) sleep: Option<Sleep>,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.strategy)?;
        self.lag.iter().try_for_each(|lag| write!(f, "; {lag}"))?;
        self.sleep.iter().try_for_each(|sleep| write!(f, "; {sleep}"))
    }
}

/// A part of a protocol that is left out: which, and where, as file and line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Omission {
    /// The part.
    pub slip: Slip,
    /// The end of the path of the source file.
    pub file: String,
    /// The line; 0 for any.
    pub line: u32,
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", format!("{:?}", self.slip).to_lowercase(), self.file, self.line)
    }
}

impl Omission {
    fn matches(&self, slip: Slip, at: &Location<'_>) -> bool {
        slip == self.slip && at.file().ends_with(&self.file) && (self.line == 0 || self.line == at.line())
    }

    /// Whether a place is at most this many lines away.
    pub(super) fn is_near(&self, at: Place, lines: u32) -> bool {
        at.line().abs_diff(self.line) <= lines && at.file().ends_with(&self.file)
    }
}

/// The settings that all schedules of a run share.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    pub(super) steps_max: u64,
    pub(super) omission: Option<Omission>,
    /// Where the parts that could be left out are noted.
    pub(super) sites: Option<Arc<Mutex<BTreeSet<Omission>>>>,
    /// The addresses of the pool in this process.
    pub(super) memory: Range<usize>,
}

/// What the threads of a run share.
pub(super) struct Baton {
    state: Mutex<State>,
    /// Number of the thread that holds the baton; [`NOBODY`] before the first and after the last.
    holder: AtomicUsize,
    threads: OnceLock<Vec<Thread>>,
    owner: Thread,
    limits: Limits,
    /// Where the stores of the threads wait, if they are held back.
    pub(super) buffers: Option<Arc<Buffers>>,
}

const NOBODY: usize = usize::MAX;
/// How many of four transactions abort. Some schedules abort all, so that the other path is taken each time.
const ABORTS: [u32; 4] = [0, 1, 2, 4];

struct State {
    strategy: Strategy,
    lag: Option<Lag>,
    sleepers: Sleepers,
    random: StdRng,
    /// Per thread, and the lowest so far.
    priorities: Vec<i64>,
    lowest: i64,
    finished: Vec<bool>,
    steps: u64,
    switches: u64,
    broken: Option<Broken>,
    trace: Option<Vec<Event>>,
    /// How many of four transactions abort.
    aborts: u32,
}

/// The panic payload that unwinds the threads of a run that was given up.
struct GivenUp;

impl Baton {
    pub(super) fn new(threads: usize, order: Order, mut random: StdRng, limits: Limits, traced: bool) -> Arc<Self> {
        let Order { strategy, lag, sleep } = order;
        let mut priorities: Vec<i64> = (0..threads as i64).collect();
        for place in (1..threads).rev() {
            priorities.swap(place, random.random_range(0..=place));
        }
        // One more buffer than threads: for the thread that examines what they leave.
        let buffers = lag.is_some().then(|| Buffers::new(threads + 1));
        let state = State {
            strategy,
            lag,
            sleepers: Sleepers::new(threads, sleep, limits.omission.clone()),
            priorities,
            lowest: 0,
            finished: vec![false; threads],
            steps: 0,
            switches: 0,
            broken: None,
            trace: traced.then(Vec::new),
            // Drawn from a copy, so that schedules without transactions do not change.
            aborts: ABORTS[random.clone().random_range(0..ABORTS.len())],
            random,
        };
        let (holder, owner) = (AtomicUsize::new(NOBODY), std::thread::current());
        Arc::new(Self { state: Mutex::new(state), holder, threads: OnceLock::new(), owner, limits, buffers })
    }

    /// Lets `threads`, which wait in [`Baton::take_seat`] or will, run to their end.
    pub(super) fn run(&self, threads: Vec<Thread>) {
        self.threads.set(threads).unwrap_or_else(|_| panic!("a baton is run once"));
        let first = self.state.lock().choose(None, true);
        self.hand_to(first.unwrap_or(NOBODY));
        while !self.is_over() {
            std::thread::park();
        }
    }

    fn is_over(&self) -> bool {
        self.holder.load(Ordering::Acquire) == NOBODY && self.state.lock().finished.iter().all(|finished| *finished)
    }

    fn hand_to(&self, thread: usize) {
        self.holder.store(thread, Ordering::Release);
        match self.threads.get().and_then(|threads| threads.get(thread)) {
            Some(next) => next.unpark(),
            None => self.owner.unpark(),
        }
    }

    /// Waits until `thread` has the baton.
    pub(super) fn take_seat(&self, thread: usize) {
        while self.holder.load(Ordering::Acquire) != thread {
            std::thread::park();
        }
    }

    /// `thread`, which holds the baton, is done.
    pub(super) fn leave(&self, thread: usize) {
        let next = {
            let mut state = self.state.lock();
            state.finished[thread] = true;
            state.choose(None, true)
        };
        self.hand_to(next.unwrap_or(NOBODY));
    }

    /// Gives up the run: each thread unwinds at its next step.
    pub(super) fn give_up(&self, broken: Broken) {
        self.state.lock().broken.get_or_insert(broken);
    }

    /// Whether a panic is the end of a run that was given up.
    pub(super) fn is_given_up(panic: &(dyn std::any::Any + Send)) -> bool {
        panic.is::<GivenUp>()
    }

    /// Notes what happened.
    pub(super) fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(trace) = &mut self.state.lock().trace {
            trace.push(event());
        }
    }

    /// Why the run was given up, if it was.
    pub(super) fn broken(&self) -> Option<Broken> {
        self.state.lock().broken.take()
    }

    /// Steps, switches, and the trace.
    pub(super) fn result(&self) -> (u64, u64, Vec<Event>) {
        let mut state = self.state.lock();
        (state.steps, state.switches, state.trace.take().unwrap_or_default())
    }

    /// Lets some entries leave the store buffers.
    fn drain(&self, buffers: &Buffers, step: Step) {
        for thread in 0..self.threads.get().map_or(0, Vec::len) {
            while !buffers.is_empty(thread) && self.state.lock().lets_leave(thread, buffers.len(thread), step) {
                if let Some(address) = buffers.next_store(thread).filter(|address| self.limits.memory.contains(address)) {
                    self.note(|| Event::Leave { thread, at: address - self.limits.memory.start });
                }
                buffers.drain_one(thread);
            }
        }
    }

    /// Before a step of `thread`.
    pub(super) fn before(&self, thread: usize, step: Step, at: Place) {
        // During a transaction no other thread runs, and none of their stores arrive.
        let is_alone = schedule::is_in_transaction();
        if let Some(buffers) = self.buffers.as_ref().filter(|_| !is_alone) {
            self.drain(buffers, step);
        }
        let mut state = self.state.lock();
        if state.steps > self.limits.steps_max && state.broken.is_none() {
            let seen = format!("{} steps, and still not at the end", state.steps);
            state.broken = Some(Broken::new("every schedule comes to an end", seen));
        }
        if state.broken.is_some() {
            drop(state);
            // A thread that is already unwinding runs to its end at once.
            if !std::thread::panicking() {
                std::panic::resume_unwind(Box::new(GivenUp));
            }
            return;
        }
        state.steps += 1;
        if is_alone {
            return;
        }
        let is_write = !matches!(step, Step::Load(_) | Step::Wait);
        let next = match state.choose_at(thread, step, at, is_write) {
            Some(next) if next != thread => next,
            _ => return,
        };
        state.switches += 1;
        if let Some(trace) = &mut state.trace {
            trace.push(Event::Switch { from: thread, to: next });
        }
        drop(state);
        self.hand_to(next);
        self.take_seat(thread);
    }

    fn aborts(&self) -> Option<Abort> {
        let State { aborts, random, .. } = &mut *self.state.lock();
        random.random_ratio(*aborts, 4).then(|| Abort::ALL[random.random_range(0..Abort::ALL.len())])
    }

    fn slips(&self, thread: usize, slip: Slip, at: Place) -> bool {
        if let Some(sites) = &self.limits.sites {
            sites.lock().insert(Omission { slip, file: at.file().to_owned(), line: at.line() });
        }
        let slips = self.limits.omission.as_ref().is_some_and(|omission| omission.matches(slip, at));
        if slips {
            let State { sleepers, random, .. } = &mut *self.state.lock();
            sleepers.has_left_out(thread, random);
        }
        slips
    }
}

impl State {
    fn choose_at(&mut self, thread: usize, step: Step, at: Place, is_write: bool) -> Option<usize> {
        if let Some(woken) = self.sleepers.next_awake(thread, step, at, &mut self.random) {
            self.priorities[woken] = self.priorities.iter().max().map_or(0, |highest| highest + 1);
            return Some(woken);
        }
        // A waiting thread must not sleep too: two threads that wake each other and then run first would lock out the thread that they wait for.
        if step == Step::Wait || self.sleepers.falls_asleep(thread, at, &mut self.random) {
            self.demote(thread);
            return self.choose(Some(thread), true);
        }
        let asks = match &self.strategy {
            Strategy::Random { one_in, only_writes } => (is_write || !only_writes) && self.random.random_ratio(1, *one_in),
            Strategy::Priorities { changes } => changes.contains(&self.steps),
        };
        if !asks {
            return None;
        }
        self.demote(thread);
        self.choose(Some(thread), false)
    }

    /// Whether the oldest of `held` entries leaves the buffer of `thread`.
    fn lets_leave(&mut self, thread: usize, held: usize, step: Step) -> bool {
        let Some(lag) = &self.lag else { return true };
        // A waiting thread may be waiting for just that.
        let one_in = if step == Step::Wait { lag.one_in[thread].min(4) } else { lag.one_in[thread] };
        held > lag.capacity || self.random.random_ratio(1, one_in)
    }

    fn demote(&mut self, thread: usize) {
        self.lowest -= 1;
        self.priorities[thread] = self.lowest;
    }

    /// A thread that is not finished: another than `but`, if there is one and `but` must not go on. A sleeping one only if all sleep.
    fn choose(&mut self, but: Option<usize>, must_change: bool) -> Option<usize> {
        let mut open: Vec<usize> = (0..self.finished.len()).filter(|thread| !self.finished[*thread]).collect();
        if open.iter().any(|thread| !self.sleepers.is_asleep(*thread)) {
            open.retain(|thread| !self.sleepers.is_asleep(*thread));
        }
        if must_change && open.len() > 1 {
            open.retain(|thread| Some(*thread) != but);
        }
        let chosen = match self.strategy {
            _ if open.is_empty() => None,
            Strategy::Random { .. } => Some(open[self.random.random_range(0..open.len())]),
            Strategy::Priorities { .. } => open.into_iter().max_by_key(|thread| self.priorities[*thread]),
        };
        if let Some(thread) = chosen {
            self.sleepers.wake(thread);
        }
        chosen
    }
}

/// What a thread consults before its steps.
pub(super) struct Seat<W> {
    pub(super) baton: Arc<Baton>,
    pub(super) thread: usize,
    /// Called before each step that the thread is certain to take.
    pub(super) watch: W,
}

impl<W: Fn(Step, Place)> Scheduler for Seat<W> {
    fn before(&self, step: Step, at: Place) {
        self.baton.before(self.thread, step, at);
        (self.watch)(step, at);
    }

    fn slips(&self, slip: Slip, at: Place) -> bool {
        self.baton.slips(self.thread, slip, at)
    }

    fn aborts(&self) -> Option<Abort> {
        self.baton.aborts()
    }

    fn buffer(&self) -> Option<Buffer> {
        self.baton.buffers.as_ref().map(|buffers| buffers.of(self.thread))
    }
}

/// For the thread that examines what the others leave: it sees what has left the buffers, holds nothing back, and must come to an end.
pub(super) struct Alone {
    buffer: Option<Buffer>,
    steps_left: AtomicU64,
}

impl Alone {
    /// With the last buffer of `baton`, if it has any.
    pub(super) fn after(baton: &Baton) -> Arc<Self> {
        let threads = baton.threads.get().map_or(0, Vec::len);
        let buffer = baton.buffers.as_ref().map(|buffers| buffers.of(threads));
        Arc::new(Self { buffer, steps_left: AtomicU64::new(baton.limits.steps_max) })
    }
}

impl Scheduler for Alone {
    fn before(&self, _step: Step, _at: Place) {
        if let Some(buffer) = &self.buffer {
            buffer.drain();
        }
        if self.steps_left.fetch_sub(1, Ordering::Relaxed) == 0 && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new(Broken::new("every schedule comes to an end", "who comes after it waits for ever")));
        }
    }

    fn buffer(&self) -> Option<Buffer> {
        self.buffer.clone()
    }
}

/// The random choices of the schedule with this seed.
pub(super) fn random_of(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}
