//! Store buffers, as x86-TSO has them (Sewell et al., CACM 2010): between a thread and the memory that all threads share.
//!
//! ```text
//!   thread   store --> | store | store | flush | fence | store | --> memory, and the medium's log
//!            load  <-- the latest store to that word in the thread's own buffer, else the memory
//! ```
//!
//! Protocol:
//! 1. A store enters the buffer of its thread at the young end; nobody else sees it.
//! 2. The scheduler of the threads lets the oldest entry of a buffer leave at a moment of its choice ([`Buffers::drain_one`]).
//! 3. A load sees the thread's own latest store to the word, if that is still in the buffer.
//! 4. A flush of a line executes as early as the processor may execute it: at once, or, if stores of the thread to that line, or fences, are in the buffer,
//!    just behind the last of them. A later flush would only make more durable.
//! 5. A fence is an `sfence`: it keeps stores and flushes in order, and does not delay loads. It enters the buffer as a store does, and what it makes durable
//!    is durable when it leaves.
//! 6. Exchanges, locks, the allocator and the end of the thread empty the buffer ([`super::drain`]).
//! 7. A crash loses the content of the buffers: none of it has reached the medium.
//!
//! A store to a pool leaves through its medium, which can reach the word. A store to a word in DRAM ([`super::atomic`]) cannot be made when it leaves, because
//! the word may no longer exist. Instead, the value is recorded here as what the memory holds, and the next thread that accesses the word updates it. A word
//! that is dropped is forgotten.

use crate::LINE;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What is done when an entry leaves.
type Act = Box<dyn FnOnce() + Send>;

struct Entry {
    what: What,
    act: Option<Act>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A store to the word at an address.
    Store(usize, u64),
    /// A flush of a line.
    Flush,
    /// A fence.
    Fence,
    /// An action to perform when everything before it has left.
    Mark,
}

/// The store buffers of the threads of a run.
pub struct Buffers(Mutex<State>);

struct State {
    /// For each thread, the oldest entry first.
    queues: Vec<VecDeque<Entry>>,
    /// Words in DRAM that do not yet hold what they should.
    memory: HashMap<usize, u64>,
}

impl Buffers {
    /// Empty buffers for this many threads.
    pub fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { queues: (0..threads).map(|_| VecDeque::new()).collect(), memory: HashMap::new() })))
    }

    /// The buffer of thread number `thread`.
    pub fn of(self: &Arc<Self>, thread: usize) -> Buffer {
        Buffer { all: Arc::clone(self), thread }
    }

    /// Number of entries in the buffer of `thread`.
    pub fn len(&self, thread: usize) -> usize {
        self.0.lock().queues[thread].len()
    }

    /// Whether nothing is in the buffer of `thread`.
    pub fn is_empty(&self, thread: usize) -> bool {
        self.len(thread) == 0
    }

    /// The latest value that `thread` has stored at `address` and other threads do not see yet.
    pub fn held_back(&self, thread: usize, address: usize) -> Option<u64> {
        self.0.lock().queues[thread].iter().rev().find_map(|entry| match entry.what {
            What::Store(at, value) if at == address => Some(value),
            _ => None,
        })
    }

    /// The address of the store that leaves the buffer of `thread` next, if the next entry is a store.
    pub fn next_store(&self, thread: usize) -> Option<usize> {
        match self.0.lock().queues[thread].front()?.what {
            What::Store(address, _) => Some(address),
            _ => None,
        }
    }

    /// Lets the oldest entry of the buffer of `thread` leave. Returns whether there was one.
    pub fn drain_one(&self, thread: usize) -> bool {
        let act = {
            let mut state = self.0.lock();
            let Some(Entry { what, act }) = state.queues[thread].pop_front() else { return false };
            if let (What::Store(address, value), None) = (what, &act) {
                state.memory.insert(address, value);
            }
            act
        };
        // Not under the lock: it may take others, and for long.
        if let Some(act) = act {
            act();
        }
        true
    }
}

/// The store buffer of one thread.
#[derive(Clone)]
pub struct Buffer {
    all: Arc<Buffers>,
    thread: usize,
}

impl Buffer {
    fn push(&self, what: What, act: Option<Act>) {
        self.all.0.lock().queues[self.thread].push_back(Entry { what, act });
    }

    /// Lets everything leave.
    pub fn drain(&self) {
        while self.all.drain_one(self.thread) {}
    }

    /// Calls `act` when all stores and fences so far have left: now, if they have.
    pub fn after_stores(&self, act: impl FnOnce() + Send + 'static) {
        self.push_or_do(What::Mark, act);
    }

    /// Executes at once what delays nothing if nothing is before it.
    fn push_or_do(&self, what: What, act: impl FnOnce() + Send + 'static) {
        match self.all.is_empty(self.thread) {
            true => act(),
            false => self.push(what, Some(Box::new(act))),
        }
    }

    /// A fence, which `act` executes, enters.
    pub(crate) fn fence_by(&self, act: impl FnOnce() + Send + 'static) {
        self.push_or_do(What::Fence, act);
    }

    pub(super) fn held_back(&self, address: usize) -> Option<u64> {
        self.all.held_back(self.thread, address)
    }

    /// A store to a word in DRAM enters.
    pub(super) fn store(&self, address: usize, value: u64) {
        self.push(What::Store(address, value), None);
    }

    /// A store to a word of a medium, which `act` will make, enters.
    pub(crate) fn store_by(&self, address: usize, value: u64, act: impl FnOnce() + Send + 'static) {
        self.push(What::Store(address, value), Some(Box::new(act)));
    }

    /// A flush of the line at `address`, which `act` executes.
    pub(crate) fn flush_by(&self, address: usize, act: impl FnOnce() + Send + 'static) {
        {
            let queue = &mut self.all.0.lock().queues[self.thread];
            let comes_before = |entry: &Entry| match entry.what {
                What::Store(at, _) => at / LINE == address / LINE,
                What::Fence => true,
                What::Flush | What::Mark => false,
            };
            if let Some(last) = queue.iter().rposition(comes_before) {
                queue.insert(last + 1, Entry { what: What::Flush, act: Some(Box::new(act)) });
                return;
            }
        }
        act();
    }

    /// Whether a store to a pool, or a fence, is still in the buffer.
    pub(super) fn holds_up_the_pool(&self) -> bool {
        let is_of_pool = |entry: &Entry| entry.act.is_some() && matches!(entry.what, What::Store(..) | What::Fence);
        self.all.0.lock().queues[self.thread].iter().any(is_of_pool)
    }

    /// The value for the word in DRAM at `address`, if it does not have it yet. The caller stores it there.
    pub(super) fn settle(&self, address: usize) -> Option<u64> {
        self.all.0.lock().memory.remove(&address)
    }

    /// The word in DRAM at `address` no longer exists.
    #[cfg(debug_assertions)]
    pub(super) fn forget(&self, address: usize) {
        let mut state = self.all.0.lock();
        state.memory.remove(&address);
        for queue in &mut state.queues {
            queue.retain(|entry| !matches!(entry.what, What::Store(at, _) if at == address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{self, Scheduler, Step};
    use crate::{Crash, CrashOptions, Memory, Pool, PoolOptions, Seen, Word};
    use std::panic::Location;
    use std::sync::atomic::Ordering::{Relaxed, Release};

    /// Holds everything back.
    struct Holds(Buffer);

    impl Scheduler for Holds {
        fn before(&self, _step: Step, _at: &'static Location<'static>) {}

        fn buffer(&self) -> Option<Buffer> {
            Some(self.0.clone())
        }
    }

    /// The values of two words, the first of two lines, in all images of this moment.
    fn images(life: &crate::Life, memory: &Arc<Memory>, at: usize) -> Vec<[u64; 2]> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let (seen, memory) = (Arc::clone(&found), Arc::clone(memory));
        life.observe(move |_| {
            let words = &memory.words()[at / 8..];
            seen.lock().push([words[0].load(Relaxed), words[8].load(Relaxed)]);
            Seen::default()
        });
        life.end();
        life.look_away();
        let mut found = std::mem::take(&mut *found.lock());
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Runs `act` with a pool, two words in lines of their own, and the buffer that holds their stores back.
    fn with_words(options: CrashOptions, act: impl FnOnce(&Pool<Crash>, [&Word; 2], &Arc<Buffers>, &dyn Fn() -> Vec<[u64; 2]>)) {
        let memory = Memory::new(256 << 10).unwrap();
        let ground = Crash::new(&memory);
        let size = PoolOptions { size_max: 256 << 10, slab_size: 4 << 10, ..PoolOptions::default() };
        Pool::create_in(Arc::clone(&memory), ground.clone(), size.clone()).unwrap().close().unwrap();
        let life = ground.live(options);
        let pool = Pool::open_in(Arc::clone(&memory), life.medium(), size).unwrap();
        let block = pool.seal(pool.alloc_zeroed::<[Word; 16]>().unwrap()).release();
        let words = pool.get(block).unwrap();
        let buffers = Buffers::new(1);
        let scheduled = schedule::enter(Arc::new(Holds(buffers.of(0))));
        act(&pool, [&words[0], &words[8]], &buffers, &|| images(&life, &memory, block.bytes() as usize));
        drop(scheduled);
    }

    #[test]
    fn what_is_in_a_buffer_is_in_no_image() {
        for stores_are_durable in [false, true] {
            with_words(CrashOptions { stores_are_durable, ..CrashOptions::default() }, |pool, [first, second], buffers, images| {
                pool.store(first, 1, Release);
                pool.store(second, 2, Release);
                assert_eq!([first, second].map(Word::get), [1, 2], "the thread sees its own stores");
                assert_eq!(images(), [[0, 0]]);
                assert!(buffers.drain_one(0));
                let expected: &[[u64; 2]] = if stores_are_durable { &[[1, 0]] } else { &[[0, 0], [1, 0]] };
                assert_eq!(images(), expected);
                pool.fence();
                assert_eq!(buffers.len(0), 2, "the fence waits behind a store");
                schedule::drain();
                let expected: &[[u64; 2]] = if stores_are_durable { &[[1, 2]] } else { &[[0, 0], [0, 2], [1, 0], [1, 2]] };
                assert_eq!(images(), expected);
            });
        }
    }

    /// A flush waits for the stores of its thread to the line, and for nothing else.
    #[test]
    fn a_flush_comes_behind_the_stores_to_its_line() {
        with_words(CrashOptions::default(), |pool, [first, second], buffers, images| {
            pool.store(first, 1, Relaxed);
            pool.store(second, 2, Relaxed);
            pool.flush(first);
            pool.store(first, 3, Relaxed);
            // The store of 1 and the flush; the store of 2; the store of 3.
            assert_eq!(buffers.len(0), 4);
            pool.fence();
            schedule::drain();
            assert_eq!(images(), [[1, 0], [1, 2], [3, 0], [3, 2]]);
            pool.store(second, 4, Relaxed);
            pool.flush(first);
            assert_eq!(buffers.len(0), 1, "nothing in the buffer holds the flush up");
            pool.fence();
            schedule::drain();
            assert_eq!(images(), [[3, 0], [3, 2], [3, 4]]);
        });
    }

    /// What a fence makes durable becomes so when the fence leaves, not when the thread goes on; and a flush behind it stays behind it.
    #[test]
    fn a_fence_counts_when_it_leaves() {
        with_words(CrashOptions::default(), |pool, [first, second], buffers, images| {
            pool.store(first, 1, Relaxed);
            pool.flush(first);
            pool.fence();
            pool.flush(second);
            pool.store(second, 2, Relaxed);
            assert_eq!(buffers.len(0), 5);
            assert!(buffers.drain_one(0) && buffers.drain_one(0));
            assert_eq!(images(), [[0, 0], [1, 0]], "the store and the flush have left");
            assert!(buffers.drain_one(0));
            assert_eq!(images(), [[1, 0]], "the fence, too");
            assert!(buffers.drain_one(0) && buffers.drain_one(0) && buffers.is_empty(0));
            assert_eq!(images(), [[1, 0], [1, 2]], "the flush came before the store");
            pool.store(first, 3, Relaxed);
            pool.fence();
            assert!(pool.compare_exchange(second, 0, 4).is_err());
            assert!(buffers.is_empty(0), "an exchange waits for fences");
        });
    }

    #[test]
    fn a_call_returns_when_its_stores_have_left() {
        with_words(CrashOptions::default(), |pool, [first, _], buffers, _| {
            let done = Arc::new(Mutex::new(0));
            let count = |by: usize| {
                let done = Arc::clone(&done);
                move || *done.lock() += by
            };
            buffers.of(0).after_stores(count(1));
            assert_eq!(*done.lock(), 1);
            pool.store(first, 1, Relaxed);
            buffers.of(0).after_stores(count(10));
            assert_eq!(*done.lock(), 1);
            assert!(buffers.drain_one(0) && buffers.drain_one(0) && !buffers.drain_one(0));
            assert_eq!(*done.lock(), 11);
        });
    }

    /// The memory of a word in DRAM is reused.
    #[test]
    fn a_word_that_is_gone_is_forgotten() {
        use crate::schedule::atomic::AtomicU64;
        with_words(CrashOptions::default(), |_, _, buffers, _| {
            let mut place = Some(AtomicU64::new(0));
            place.as_ref().unwrap().store(7, Relaxed);
            assert!(buffers.drain_one(0));
            place.as_ref().unwrap().store(8, Relaxed);
            place = None;
            assert!(place.is_none() && buffers.is_empty(0));
            place = Some(AtomicU64::new(1));
            assert_eq!(place.as_ref().unwrap().load(Relaxed), 1);
        });
    }
}
