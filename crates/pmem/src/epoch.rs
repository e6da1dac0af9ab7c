//! Epochs: when a retired block may be reused.
//!
//! A reader pins the epoch and may follow links to any block that was reachable at that moment or later. A block that has been unlinked is *retired*, and freed
//! when every thread has left the epoch in which it was retired. The epochs are those of `crossbeam-epoch`, with one collector per pool.
//!
//! Retired blocks gather in a bag per thread. A full bag becomes a batch; one deferred call of the collector announces that its wait is over, and only notes
//! the batch as ripe. The next thread that allocates or retires frees it. So the collector holds nothing but numbers, never the pool: a pool can be closed at
//! any time, and everything that is still waiting is then free.

use crate::local::{PerPool, Tenant};
use crate::schedule::{self, Step};
use crate::{Medium, Off, Pool, local};
use crossbeam_epoch::{Collector, LocalHandle};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A thread defers its bag when it holds one block for each so many bytes of a slab.
const BAG_SHARE: usize = 1 << 10;

/// Set in the offset of a block, a multiple of a line: the block waits a second time.
const AGAIN: u64 = 1;

/// The epochs of a pool.
pub(crate) struct Epochs {
    id: u64,
    collector: OnceLock<Collector>,
    limbo: Arc<Limbo>,
}

/// Retired blocks that are not free yet.
#[derive(Default)]
struct Limbo {
    /// The bags of all threads.
    bags: Mutex<Vec<Arc<Bag>>>,
    batches: Mutex<Batches>,
    /// Whether `batches.ripe` may hold something.
    any_ripe: AtomicBool,
}

#[derive(Default)]
struct Batches {
    next: u64,
    /// Deferred, by number.
    waiting: HashMap<u64, Vec<u64>>,
    /// No thread can hold these any more.
    ripe: Vec<Vec<u64>>,
}

/// What one thread has retired and not deferred yet.
type Bag = Mutex<Vec<u64>>;

/// What a thread keeps for a pool.
struct Participant {
    handle: LocalHandle,
    limbo: Weak<Limbo>,
    bag: Arc<Bag>,
}

impl Tenant for Participant {
    fn is_alive(&self) -> bool {
        self.limbo.strong_count() > 0
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        if let Some(limbo) = self.limbo.upgrade() {
            // Under the lock, or moving blocks might be missed or seen twice.
            let mut bags = limbo.bags.lock();
            bags.retain(|bag| !Arc::ptr_eq(bag, &self.bag));
            let bag = std::mem::take(&mut *self.bag.lock());
            limbo.defer(bag, &self.handle.pin());
        }
    }
}

thread_local! {
    static PARTICIPANTS: PerPool<Participant> = const { PerPool::new() };
}

/// A pinned epoch: blocks retired meanwhile are not reused.
pub struct Guard(crossbeam_epoch::Guard);

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        schedule::let_the_pool_catch_up();
    }
}

impl Limbo {
    /// Lets `bag` ripen once every thread has left the current epoch.
    fn defer(self: &Arc<Self>, bag: Vec<u64>, guard: &crossbeam_epoch::Guard) {
        if bag.is_empty() {
            return;
        }
        let number = {
            let mut batches = self.batches.lock();
            let number = batches.next;
            batches.next += 1;
            batches.waiting.insert(number, bag);
            number
        };
        // The collector may outlive the pool, as long as a thread that used the pool meets no other; the list does not.
        let limbo = Arc::downgrade(self);
        guard.defer(move || {
            if let Some(limbo) = limbo.upgrade() {
                limbo.ripen(number);
            }
        });
        guard.flush();
    }

    fn ripen(&self, number: u64) {
        let mut batches = self.batches.lock();
        if let Some(batch) = batches.waiting.remove(&number) {
            batches.ripe.push(batch);
            self.any_ripe.store(true, Ordering::Release);
        }
    }
}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self { id: local::unique(), collector: OnceLock::new(), limbo: Arc::default() }
    }

    fn collector(&self) -> &Collector {
        self.collector.get_or_init(Collector::new)
    }

    /// Runs `act` on this thread's participant; `None` when the thread is ending and its participant is gone.
    #[inline]
    fn with<R>(&self, act: impl FnOnce(&Participant) -> R) -> Option<R> {
        let open = || {
            let bag = Arc::<Bag>::default();
            self.limbo.bags.lock().push(bag.clone());
            Participant { handle: self.collector().register(), limbo: Arc::downgrade(&self.limbo), bag }
        };
        PARTICIPANTS.try_with(|participants| participants.with(self.id, open, act)).ok()
    }

    /// To observe when it ends.
    #[cfg(test)]
    pub(crate) fn weak(&self) -> Weak<impl Sized + use<>> {
        Arc::downgrade(&self.limbo)
    }

    /// Every block that is retired and not free yet. Exact when no operation is under way.
    pub(crate) fn retired(&self) -> Vec<u64> {
        let bags = self.limbo.bags.lock();
        let mut retired: Vec<u64> = bags.iter().flat_map(|bag| bag.lock().clone()).collect();
        let batches = self.limbo.batches.lock();
        retired.extend(batches.waiting.values().flatten());
        retired.extend(batches.ripe.iter().flatten());
        retired.iter().map(|block| block & !AGAIN).collect()
    }
}

impl<M: Medium> Pool<M> {
    /// Enters the current epoch: blocks retired from now on are not reused before the guard is dropped.
    #[inline]
    pub fn pin(&self) -> Guard {
        schedule::before(Step::Allocator);
        self.enter()
    }

    fn enter(&self) -> Guard {
        Guard(self.epochs.with(|participant| participant.handle.pin()).unwrap_or_else(|| self.epochs.collector().register().pin()))
    }

    /// Frees `block` once every thread has left the current epoch. The caller has unlinked it durably.
    ///
    /// # Panics
    /// If `guard` is of another pool.
    pub fn retire<T: ?Sized>(&self, block: Off<T>, guard: &Guard) {
        self.retire_marked(block, 0, guard);
    }

    /// [`Pool::retire`] for a block to which threads pinned now may still lead others: it waits for them, and then for those pinned by that time.
    ///
    /// # Panics
    /// If `guard` is of another pool.
    pub fn retire_twice<T: ?Sized>(&self, block: Off<T>, guard: &Guard) {
        self.retire_marked(block, AGAIN, guard);
    }

    fn retire_marked<T: ?Sized>(&self, block: Off<T>, mark: u64, guard: &Guard) {
        assert!(guard.0.collector() == self.epochs.collector.get(), "a guard of another pool");
        schedule::before(Step::Allocator);
        if self.needs_recovery() {
            // Whatever is unreachable when the recovery ends will be free anyway.
            return;
        }
        // A large block does not wait for others to fill the bag.
        let bag_max = if self.alloc.is_large(block) { 1 } else { self.alloc.slab_size() / BAG_SHARE };
        let full = self.epochs.with(|participant| {
            let mut bag = participant.bag.lock();
            bag.push(block.bytes() | mark);
            (bag.len() >= bag_max).then(|| std::mem::take(&mut *bag))
        });
        if let Some(bag) = full.unwrap_or_else(|| Some(vec![block.bytes() | mark])) {
            self.epochs.limbo.defer(bag, &guard.0);
            self.free_ripe();
        }
    }

    /// Frees as many retired blocks as possible: all, when no thread is pinned.
    pub fn collect(&self) {
        let limbo = &self.epochs.limbo;
        let bags: Vec<u64> = limbo.bags.lock().iter().flat_map(|bag| std::mem::take(&mut *bag.lock())).collect();
        limbo.defer(bags, &self.pin().0);
        // Blocks that wait twice do so in the second pass.
        for _ in 0..2 {
            // Each round advances the epoch by one, unless a thread is pinned to an earlier one, and ends the wait of a few batches.
            let mut stuck = 0;
            while stuck < 4 {
                let before = limbo.batches.lock().waiting.len();
                if before == 0 {
                    break;
                }
                self.pin().0.flush();
                stuck = if limbo.batches.lock().waiting.len() < before { 0 } else { stuck + 1 };
            }
            self.free_ripe();
        }
    }

    /// Frees the blocks that no thread can hold any more.
    pub(crate) fn free_ripe(&self) {
        let limbo = &self.epochs.limbo;
        if !limbo.any_ripe.load(Ordering::Acquire) {
            return;
        }
        let ripe = {
            let mut batches = limbo.batches.lock();
            limbo.any_ripe.store(false, Ordering::Relaxed);
            std::mem::take(&mut batches.ripe)
        };
        let mut again = Vec::new();
        for block in ripe.into_iter().flatten() {
            match block & AGAIN {
                0 => self.free(Off::<u8>::new(block)),
                _ => again.push(block & !AGAIN),
            }
        }
        if !again.is_empty() {
            limbo.defer(again, &self.enter().0);
        }
    }
}
