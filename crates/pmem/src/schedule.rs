//! Where a scheduler may switch threads: before every access to memory shared by threads.
//!
//! A test that runs several threads gives each of them a [`Scheduler`]. From then on the thread calls it before each load and store of a pool's words, each
//! flush and fence, each access to the [`atomic`] words of a volatile structure, each lock, and each round of a waiting loop. The scheduler lets one thread go
//! on and holds the others; so the order of all accesses is its choice, and a failing run can be repeated.
//!
//! Four kinds of code take part:
//! 1. words that threads share without a lock: [`Word`](crate::Word) in a pool, [`atomic`] in DRAM;
//! 2. loops that wait for another thread: [`spin`] in each round, or the scheduler might let the waiting thread go on for ever;
//! 3. locks held across any of this: [`lock`], since a thread that sleeps in a lock cannot be told to go on;
//! 4. whatever else hands something of 1 to other threads, by a lock held for a few instructions (no thread is ever held inside one) or by an atomic of another
//!    kind: [`drain`] before it.
//!
//! **Store buffers.** A [`Scheduler`] may give a thread a [`Buffer`], which holds its stores back as a processor does: other threads see them later, in order.
//! All accesses of kind 1 go through it. These do not:
//! - locks of `parking_lot`, `arc-swap`, and the counts of `Arc`. Each is a locked operation, which empties the buffer of a processor; [`drain`] is called
//!   before those that publish something, and [`Held`] calls it before the end of a lock of kind 3;
//! - `crossbeam-epoch`. Entering an epoch is a locked operation, so the step before it ([`Step::Allocator`]) empties the buffer; leaving one empties it if a
//!   store to the pool, or a fence, is in it. So does a stream ([`Pm::stream`](crate::Pm::stream)), which bypasses it. All other steps of the allocator empty
//!   it, too, which is stricter than the processor: its tables and caches are atomics of their own, and some are stored to without a lock;
//! - statistics: counters that are only added to. Unlike on a processor, they do not empty the buffer here, since no code may rely on that;
//! - stores through other media than [`Crash`](crate::Crash), which are made at once.
//!
//! **Transactions** ([`htm`](crate::htm)) are simulated here: during one, the scheduler is told of its loads and stores, and lets no other thread go on. A
//! scheduler decides for each attempt whether it aborts, before anything has happened in it.
//!
//! A fence is the instruction that [`Hardware`](crate::Hardware) uses, an `sfence`: it waits in the buffer behind the stores before it, the stores and flushes
//! after it wait behind it, and loads wait for neither. So code that relies on a fence between a store and a load of another word is detected; and what the
//! fence makes durable is durable when it leaves the buffer.
//!
//! All of it exists in builds with debug assertions, including tests, and costs a look at one flag of the thread for each access; in other builds it costs
//! nothing ([`IS_BUILT_IN`]).

pub mod atomic;
mod buffer;

pub use buffer::{Buffer, Buffers};

use crate::htm::Abort;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// Exchanges the word there for a value; this may fail.
    Exchange(usize, u64),
    /// Flushes this many bytes from there on.
    Flush(usize, usize),
    /// Fences.
    Fence,
    /// Executes one whole transaction.
    Transaction,
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
    /// A reader does not check whether the version is unchanged.
    Validate,
    /// A reader does not wait until the lock is free.
    Wait,
    /// A writer goes on without the lock, and later releases none.
    Lock,
}

/// Decides which thread goes on.
pub trait Scheduler {
    /// Called before each step of the thread, with its source location. The thread goes on when the call returns.
    fn before(&self, step: Step, at: &'static Location<'static>);

    /// Whether the part of a protocol at this source location is to be left out.
    fn slips(&self, _slip: Slip, _at: &'static Location<'static>) -> bool {
        false
    }

    /// Why the transaction that the thread is about to begin is to abort, if it is.
    fn aborts(&self) -> Option<Abort> {
        None
    }

    /// The buffer that holds back the stores of the thread, if there is one. Asked once, when the thread is put under the scheduler.
    fn buffer(&self) -> Option<Buffer> {
        None
    }
}

/// Number of threads under a scheduler: while there is none, no thread checks its own state.
static SCHEDULED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_SCHEDULED: Cell<bool> = const { Cell::new(false) };
    static SCHEDULER: RefCell<Option<Arc<dyn Scheduler>>> = const { RefCell::new(None) };
    static BUFFER: RefCell<Option<Buffer>> = const { RefCell::new(None) };
    /// Whether the transaction under way, if there is one, has stored anything.
    static TRANSACTION: Cell<Option<bool>> = const { Cell::new(None) };
}

/// This thread is scheduled until the value is dropped.
#[must_use = "the thread is scheduled until this is dropped"]
pub struct Scheduled(());

/// Puts this thread under `scheduler`.
///
/// # Panics
/// If it is under one already.
pub fn enter(scheduler: Arc<dyn Scheduler>) -> Scheduled {
    BUFFER.set(scheduler.buffer());
    let before = SCHEDULER.replace(Some(scheduler));
    assert!(before.is_none(), "a thread has one scheduler");
    SCHEDULED.fetch_add(1, Ordering::Relaxed);
    IS_SCHEDULED.set(true);
    Scheduled(())
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        IS_SCHEDULED.set(false);
        SCHEDULED.fetch_sub(1, Ordering::Relaxed);
        // Only threads that wait for it, in the system, see the end of a thread.
        if let Some(buffer) = BUFFER.take() {
            buffer.drain();
        }
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
    IS_BUILT_IN && SCHEDULED.load(Ordering::Relaxed) > 0 && is_this_scheduled()
}

// The work of each access under a scheduler is compiled once, not inlined everywhere: that took a quarter of the compile time of indexes.
#[inline(never)]
fn is_this_scheduled() -> bool {
    IS_SCHEDULED.get()
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
    match (TRANSACTION.get(), step) {
        (None, _) | (_, Step::Load(_)) => {}
        (_, Step::Store(..)) => TRANSACTION.set(Some(true)),
        (_, step) => panic!("{step:?} in a transaction, which may abort each attempt at it"),
    }
    SCHEDULER.with_borrow(|scheduler| {
        if let Some(scheduler) = scheduler {
            scheduler.before(step, at);
        }
    });
    if matches!(step, Step::Exchange(..) | Step::Transaction | Step::Allocator | Step::Lock) {
        drain();
    }
}

/// Why the scheduler wants the transaction that begins now to abort, if it does.
pub(crate) fn aborts() -> Option<Abort> {
    SCHEDULER.with_borrow(|scheduler| scheduler.as_ref().and_then(|scheduler| scheduler.aborts()))
}

/// Runs `act` as a transaction of this thread. One that ends with an error must not have stored anything: it would not be undone.
pub(crate) fn as_transaction<T, E>(act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            TRANSACTION.set(None);
        }
    }
    assert!(TRANSACTION.replace(Some(false)).is_none(), "a transaction in a transaction");
    let over = Over;
    let result = act();
    assert!(result.is_ok() || TRANSACTION.get() == Some(false), "a transaction that refuses to go on after it has stored something");
    drop(over);
    // For the stores before and in it, a committed transaction is a locked operation.
    drain();
    result
}

/// Whether a transaction of this thread is under way, so that no other thread may go on.
pub fn is_in_transaction() -> bool {
    TRANSACTION.get().is_some()
}

/// The result of `act` with the buffer of the thread, if its stores are held back.
pub(crate) fn with_buffer<T>(act: impl FnOnce(&Buffer) -> T) -> Option<T> {
    if is_scheduled() { BUFFER.with_borrow(|buffer| buffer.as_ref().map(act)) } else { None }
}

/// What this thread has stored at `address` and other threads do not see yet.
pub(crate) fn held_back(address: usize) -> Option<u64> {
    with_buffer(|buffer| buffer.held_back(address)).flatten()
}

/// Call before a locked operation that is not a step: all earlier stores of the thread become visible to all.
#[inline(always)]
pub fn drain() {
    if is_scheduled() {
        drain_mine();
    }
}

#[cold]
#[inline(never)]
fn drain_mine() {
    let buffer = BUFFER.with_borrow(Option::clone);
    if let Some(buffer) = buffer {
        buffer.drain();
    }
}

/// Whether the part of a protocol at the caller's location is to be left out.
#[inline(always)]
#[track_caller]
pub fn slips(slip: Slip) -> bool {
    is_scheduled() && is_left_out(slip)
}

#[cold]
#[inline(never)]
#[track_caller]
fn is_left_out(slip: Slip) -> bool {
    let at = Location::caller();
    SCHEDULER.with_borrow(|scheduler| scheduler.as_ref().is_some_and(|scheduler| scheduler.slips(slip, at)))
}

/// Call before a store of another kind, which bypasses the buffer, but on a processor comes after everything that the thread has done to the pool.
#[inline(always)]
pub(crate) fn let_the_pool_catch_up() {
    if is_scheduled() && with_buffer(Buffer::holds_up_the_pool) == Some(true) {
        drain();
    }
}

/// A round of a loop that waits for another thread.
#[inline(always)]
#[track_caller]
pub fn spin() {
    before(Step::Wait);
    std::hint::spin_loop();
}

/// A round of a loop that has waited for long: another thread may use the processor.
#[inline(always)]
#[track_caller]
pub fn rest() {
    match is_scheduled() {
        true => ask(Step::Wait),
        false => std::thread::yield_now(),
    }
}

/// A round of a loop that has rested for long: the other thread waits for a device, most likely, and nobody else needs the processor.
#[inline(always)]
#[track_caller]
pub fn sleep() {
    match is_scheduled() {
        true => ask(Step::Wait),
        false => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// Takes what another thread may have, by `wait`; under a scheduler, by trying.
#[inline(always)]
#[track_caller]
pub fn acquire<G>(try_now: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
    if !is_scheduled() {
        return wait();
    }
    loop {
        ask(Step::Lock);
        if let Some(guard) = try_now() {
            return guard;
        }
        ask(Step::Wait);
    }
}

/// Takes a lock that is held across steps.
#[inline(always)]
#[track_caller]
pub fn lock<T>(mutex: &Mutex<T>) -> Held<MutexGuard<'_, T>> {
    Held(acquire(|| mutex.try_lock(), || mutex.lock()))
}

/// [`lock`] for a lock that may be shared.
#[inline(always)]
#[track_caller]
pub fn lock_alone<T>(lock: &RwLock<T>) -> Held<RwLockWriteGuard<'_, T>> {
    Held(acquire(|| lock.try_write(), || lock.write()))
}

/// Takes a lock that is held across steps, shared with others that take it so.
#[inline(always)]
#[track_caller]
pub fn lock_shared<T>(lock: &RwLock<T>) -> Held<RwLockReadGuard<'_, T>> {
    Held(acquire(|| lock.try_read(), || lock.read()))
}

/// A lock that is held across steps.
pub struct Held<G>(G);

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;
    #[inline(always)]
    fn deref(&self) -> &G::Target {
        &self.0
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.0
    }
}

impl<G> Drop for Held<G> {
    #[inline(always)]
    fn drop(&mut self) {
        // A lock is released by a locked operation.
        drain();
    }
}
