//! Where a scheduler may switch threads: before every access to memory that threads share.
//!
//! A test that runs several threads hands each of them a [`Scheduler`]. From then on the thread calls it before each load and store of a pool's words, each
//! flush and fence, each access to the [`atomic`] words of a volatile structure, each lock, and each round of a loop that waits. The scheduler lets one thread
//! go on and holds the others up; so the order of all accesses is its choice, and a run that goes wrong can be run again.
//!
//! Three kinds of code take part:
//! 1. words that threads share without a lock: [`Word`](crate::Word) in a pool, [`atomic`] in DRAM;
//! 2. loops that wait for another thread: [`spin`] in each round, lest the scheduler let the waiting thread go on for ever;
//! 3. locks held across any of this: [`acquire`], since a thread that sleeps in a lock cannot be told to go on. Locks held for a few instructions that touch
//!    nothing of 1 need nothing: nobody is ever held up inside of them.
//!
//! All of it is there in builds with debug assertions, tests among them, and costs a look at one flag of the thread for each access; in other builds it is
//! nothing at all ([`IS_BUILT_IN`]).

pub mod atomic;

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

/// Whether this build calls schedulers.
pub const IS_BUILT_IN: bool = cfg!(debug_assertions);

/// What a thread is about to do. Addresses are those of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Loads the word there.
    Load(usize),
    /// Stores a value in the word there.
    Store(usize, u64),
    /// Exchanges the word there, perhaps in vain, for a value.
    Exchange(usize, u64),
    /// Flushes so many bytes from there on.
    Flush(usize, usize),
    /// Fences.
    Fence,
    /// Takes a block from the allocator, gives one back, or enters an epoch.
    Allocator,
    /// Takes a lock, if it is free.
    Lock,
    /// Has found that it must wait for another thread.
    Wait,
}

/// A part of a latch's protocol that can be left out, to show that a checker would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Slip {
    /// A reader does not look whether the version is still the same.
    Validate,
    /// A reader does not wait until the lock is free.
    Wait,
    /// A writer goes on without the lock.
    Lock,
}

/// Decides which thread goes on.
pub trait Scheduler {
    /// Called before each step of the thread, at this place in the source. The thread goes on when the call returns.
    fn before(&self, step: Step, at: &'static Location<'static>);

    /// Whether the part of a protocol at this place in the source is to be left out.
    fn slips(&self, _slip: Slip, _at: &'static Location<'static>) -> bool {
        false
    }
}

thread_local! {
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
    static SCHEDULER: RefCell<Option<Arc<dyn Scheduler>>> = const { RefCell::new(None) };
}

/// This thread is scheduled until the value is dropped.
#[must_use = "the thread is scheduled until this is dropped"]
pub struct Scheduled(());

/// Puts this thread under `scheduler`.
///
/// # Panics
/// When it is under one already.
pub fn enter(scheduler: Arc<dyn Scheduler>) -> Scheduled {
    let before = SCHEDULER.replace(Some(scheduler));
    assert!(before.is_none(), "a thread has one scheduler");
    IS_SCHEDULED.set(true);
    Scheduled(())
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        IS_SCHEDULED.set(false);
        SCHEDULER.replace(None);
    }
}

/// Runs `act` without asking the scheduler, as if all of it were one step.
pub fn at_once<T>(act: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_SCHEDULED.set(self.0);
        }
    }
    let _restore = Restore(IS_SCHEDULED.replace(false));
    act()
}

/// Whether this thread is under a scheduler.
#[inline(always)]
pub fn is_scheduled() -> bool {
    IS_BUILT_IN && IS_SCHEDULED.get()
}

/// Tells the scheduler, if there is one, what comes next.
#[inline(always)]
#[track_caller]
pub fn before(step: Step) {
    if is_scheduled() {
        ask(step);
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn ask(step: Step) {
    let at = Location::caller();
    SCHEDULER.with_borrow(|scheduler| {
        if let Some(scheduler) = scheduler {
            scheduler.before(step, at);
        }
    });
}

/// Whether the part of a protocol at the caller's place is to be left out.
#[inline(always)]
#[track_caller]
pub fn slips(slip: Slip) -> bool {
    let at = Location::caller();
    is_scheduled() && SCHEDULER.with_borrow(|scheduler| scheduler.as_ref().is_some_and(|scheduler| scheduler.slips(slip, at)))
}

/// A round of a loop that waits for another thread.
#[inline(always)]
#[track_caller]
pub fn spin() {
    before(Step::Wait);
    std::hint::spin_loop();
}

/// A round of a loop that has waited for long: another thread may have the processor.
#[inline(always)]
#[track_caller]
pub fn rest() {
    match is_scheduled() {
        true => ask(Step::Wait),
        false => std::thread::yield_now(),
    }
}

/// Takes a lock that is held across steps: by `lock`, or, under a scheduler, by trying.
#[inline(always)]
#[track_caller]
pub fn acquire<G>(try_lock: impl Fn() -> Option<G>, lock: impl FnOnce() -> G) -> G {
    if !is_scheduled() {
        return lock();
    }
    loop {
        ask(Step::Lock);
        if let Some(guard) = try_lock() {
            return guard;
        }
        ask(Step::Wait);
    }
}
