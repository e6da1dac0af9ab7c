//! Where stores become durable.
//!
//! All of Everleaf writes persistent memory through [`Pm<M>`](crate::Pm), and `M`, the medium, decides what a flush and a fence are. So one source of every
//! index runs on hardware, with emulated latency and counters on request, and under the crash checker. A medium is a type, not a cargo feature: every build
//! compiles all of them.
//!
//! A medium implements the x86 model (`docs/persistency-model.md`): after a crash each 64-byte line holds *some prefix* of the stores made to it, at least up
//! to its last flush that a fence by the same thread followed; lines are independent; an aligned 8-byte store is atomic.

mod count;
mod crash;
mod domain;
mod hardware;
mod holding;
mod latency;

pub use count::{Counters, Counts, WriteBuffer};
pub use crash::{
    Act, Balance, Crash, CrashOptions, Debt, Deed, Dependence, Dependences, Done, Event, Fate, Fault, Image, Life, Moment, Points, Profile, Seen, Site, Store,
    Tally, Trace, Verb,
};
pub use domain::Domain;
pub(crate) use domain::{Sysfs, boot_id};
pub use hardware::Hardware;

use crate::word::{self, WORD, Word};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a cache line in bytes: the unit of write-back, and of what a crash leaves.
pub const LINE: usize = 64;

/// A run of whole, mapped cache lines. Only [`Pm`](crate::Pm) makes them.
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    /// Invariant: aligned to [`LINE`], and `count` lines from here are mapped for `'a`.
    first: *const u8,
    at: usize,
    count: usize,
    mapped: PhantomData<&'a ()>,
}

impl<'a> Lines<'a> {
    /// The lines that `what` touches, the first of them `at` bytes from the start of the pool. They are mapped because `what` is, and no page ends within a
    /// line.
    #[inline(always)]
    pub(crate) fn of<T: ?Sized>(what: &'a T, at: usize) -> Self {
        let size = size_of_val(what);
        let start = std::ptr::from_ref(what).cast::<u8>();
        let skew = start.addr() % LINE;
        let count = match size {
            // An empty slice may lie anywhere, even in memory that is not mapped.
            0 => 0,
            // A word, for one. The compiler knows its size, but not that it ends in the line in which it begins.
            1..=LINE if size <= align_of_val(what) => 1,
            _ => (skew + size).div_ceil(LINE),
        };
        Self { first: start.wrapping_sub(skew), at: at.wrapping_sub(skew), count, mapped: PhantomData }
    }

    /// Addresses of the lines in this process, for the processor and the kernel; not to be accessed.
    #[inline(always)]
    pub(crate) fn each(&self) -> impl Iterator<Item = *const u8> {
        let first = self.first;
        (0..self.count).map(move |line| first.wrapping_add(line * LINE))
    }

    /// Offset of the first line in the pool, in bytes.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Number of lines.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// Where stores become durable. See the module documentation.
///
/// `flush` and `fence` cannot fail. A medium on which making something durable can fail latches the failure and reports it by [`Medium::failure`]; the pool
/// then refuses further writes.
///
/// Whatever stores, flushes and fences is `#[track_caller]`, up to the function whose call is a step of some protocol, so that a medium can tell such steps
/// apart by their source locations. A medium that does not ask pays nothing: the location is a constant argument of inlined functions.
pub trait Medium: Send + Sync + 'static {
    /// Stores `value` in `word`, which lies `at` bytes from the start of the pool.
    #[inline(always)]
    #[track_caller]
    fn store(&self, _at: usize, word: &AtomicU64, value: u64, order: Ordering) {
        word.store(value, order);
    }

    /// Stores `bytes` in `words`, which they fill exactly: little end first, the last word padded with zeroes; past the caches if the medium can. The first
    /// word lies `at` bytes from the start of the pool. The words are durable after a flush and a fence of this thread. Until the fence each of them may or may
    /// not have reached memory, whatever was stored before or after to other words; and no other thread may look at them.
    #[inline]
    #[track_caller]
    fn stream(&self, at: usize, words: &[Word], bytes: &[u8]) {
        for (number, (word, value)) in words.iter().zip(word::values(bytes)).enumerate() {
            self.store(at + number * WORD, word.atomic(), value, Ordering::Relaxed);
        }
    }

    /// Compares and exchanges; a locked operation, so this thread's earlier flushes are complete after it, even if the comparison fails.
    ///
    /// # Errors
    /// The word's value, when it is not `current`.
    #[inline(always)]
    #[track_caller]
    fn compare_exchange(&self, _at: usize, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Starts the write-back of `lines`. Nothing is durable before the next [`Medium::fence`] of the same thread.
    #[track_caller]
    fn flush(&self, lines: Lines<'_>);

    /// Waits until this thread's earlier flushes are durable.
    #[track_caller]
    fn fence(&self);

    /// Runs `act`, which stores and flushes. Everything that this thread has flushed before is durable before a crash can leave anything of what `act` stores,
    /// and that is durable at the end. This takes a `fence` before and after; or, where the medium [holds it back](Medium::holds_back), together with what was
    /// flushed, one wait for a device.
    ///
    /// `act` must do nothing but store and flush. Until the end no other thread may store to the same words.
    #[track_caller]
    fn publish(&self, act: impl FnOnce()) {
        self.fence();
        act();
        self.fence();
    }

    /// Whether what is published is held back until it is durable, so that others meanwhile see the old words, or new ones that no crash takes back.
    #[inline(always)]
    fn holds_back(&self) -> bool {
        false
    }

    /// See [`Domain::awaits_device`].
    #[inline(always)]
    fn awaits_device(&self) -> bool {
        false
    }

    /// Why the medium can no longer make anything durable, if that is so.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// A block has been handed out by the allocator and is not linked yet: `length` bytes at `at`.
    fn allocated(&self, _at: usize, _length: usize) {}

    /// A block has been linked, or given back.
    fn released(&self, _at: usize, _length: usize) {}
}
