//! Blocks that a thread keeps at hand, so that most allocations and frees touch nothing shared.
//!
//! A cache is one array of words: for each class its number of blocks, then their offsets. The block freed last is handed out first, because it is warm. Only
//! the owning thread changes a cache, by plain relaxed loads and stores. It is an array of atomics nonetheless: an inventory of the pool, taken when no
//! operation is under way, reads the caches of all threads.

use super::class::{CACHED_MAX, Class};
use super::heap::Heap;
use crate::local::{PerPool, Tenant};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Blocks on their way between a cache and the heap.
pub(super) struct Batch {
    blocks: [u64; CACHED_MAX],
    count: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { blocks: [0; CACHED_MAX], count: 0 }
    }

    pub(super) fn push(&mut self, block: u64) {
        self.blocks[self.count] = block;
        self.count += 1;
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        Some(self.blocks[self.count])
    }

    pub(super) fn as_slice(&self) -> &[u64] {
        &self.blocks[..self.count]
    }
}

/// A block from a cache.
pub(super) struct AtHand {
    pub(super) block: u64,
    /// The block that will come next, if nothing is freed before; `block` itself if there is none.
    pub(super) next: u64,
}

/// The blocks that one thread has at hand.
pub(super) struct Cache {
    words: Box<[AtomicU64]>,
    /// The number of the latest evacuation before any of its blocks was taken.
    evacuation: AtomicU64,
}

impl Cache {
    fn new(words: usize, evacuation: u64) -> Self {
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), evacuation: AtomicU64::new(evacuation) }
    }

    #[inline]
    fn pop(&self, class: &Class) -> Option<AtHand> {
        let slots = &self.words[class.slot as usize..];
        let count = slots[0].load(Ordering::Relaxed);
        if count == 0 {
            return None;
        }
        slots[0].store(count - 1, Ordering::Relaxed);
        let block = slots[count as usize].load(Ordering::Relaxed);
        let next = if count > 1 { slots[count as usize - 1].load(Ordering::Relaxed) } else { block };
        Some(AtHand { block, next })
    }

    /// Keeps `block`, unless the cache is full.
    #[inline]
    fn push(&self, class: &Class, block: u64) -> bool {
        let slots = &self.words[class.slot as usize..];
        let count = slots[0].load(Ordering::Relaxed);
        let room = count < u64::from(class.cached);
        if room {
            slots[count as usize + 1].store(block, Ordering::Relaxed);
            slots[0].store(count + 1, Ordering::Relaxed);
        }
        room
    }

    /// Takes out the `count` blocks that have been here longest.
    #[cold]
    fn shed(&self, class: &Class, count: usize) -> Batch {
        let slots = &self.words[class.slot as usize..][..=class.cached as usize];
        let (held, slots) = (&slots[0], &slots[1..]);
        let mut batch = Batch::new();
        for slot in &slots[..count] {
            batch.push(slot.load(Ordering::Relaxed));
        }
        let kept = held.load(Ordering::Relaxed) as usize - count;
        for index in 0..kept {
            slots[index].store(slots[index + count].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        held.store(kept as u64, Ordering::Relaxed);
        batch
    }

    /// The blocks of `class` in this cache.
    pub(super) fn blocks(&self, class: &Class) -> impl Iterator<Item = u64> {
        let slots = &self.words[class.slot as usize..];
        let count = (slots[0].load(Ordering::Relaxed) as usize).min(class.cached as usize);
        slots[1..=count].iter().map(|slot| slot.load(Ordering::Relaxed))
    }
}

/// A thread's hold on its cache. The blocks go back to the heap when the thread ends.
struct Owner {
    heap: Weak<Heap>,
    cache: Arc<Cache>,
}

impl Tenant for Owner {
    fn is_alive(&self) -> bool {
        self.heap.strong_count() > 0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(heap) = self.heap.upgrade() {
            // Under the lock, or an inventory might miss blocks that are moving.
            let mut caches = heap.caches.lock();
            empty(&heap, &self.cache);
            caches.retain(|cache| !Arc::ptr_eq(cache, &self.cache));
        }
    }
}

thread_local! {
    static CACHES: PerPool<Owner> = const { PerPool::new() };
}

/// Runs `act` on this thread's cache; `None` when the thread is ending and its cache is gone.
#[inline]
fn with<R>(heap: &Arc<Heap>, act: impl FnOnce(&Cache) -> R) -> Option<R> {
    let open = || {
        let cache = Arc::new(Cache::new(heap.classes.cache_words, heap.evacuations()));
        heap.caches.lock().push(cache.clone());
        Owner { heap: Arc::downgrade(heap), cache }
    };
    CACHES.try_with(|caches| caches.with(heap.id, open, |owner| act(&owner.cache))).ok()
}

/// A block of `class` from this thread's cache.
#[inline]
pub(super) fn pop(heap: &Arc<Heap>, class: u8) -> Option<AtHand> {
    with(heap, |cache| {
        let evacuation = heap.evacuations();
        if cache.evacuation.load(Ordering::Relaxed) != evacuation {
            empty(heap, cache);
            cache.evacuation.store(evacuation, Ordering::Relaxed);
        }
        cache.pop(heap.classes.get(class))
    })?
}

/// Puts `block` into this thread's cache.
#[inline]
pub(super) fn push(heap: &Arc<Heap>, class: u8, block: u64) {
    if with(heap, |cache| cache.push(heap.classes.get(class), block)) != Some(true) {
        spill(heap, class, block);
    }
}

/// Puts `block` into this thread's cache, whose colder half makes room; into the heap, if the thread's cache is gone.
#[cold]
fn spill(heap: &Arc<Heap>, class: u8, block: u64) {
    let shape = heap.classes.get(class);
    let kept = with(heap, |cache| {
        heap.give(class, cache.shed(shape, shape.cached as usize / 2).as_slice());
        cache.push(shape, block)
    });
    if kept != Some(true) {
        heap.give(class, &[block]);
    }
}

/// Gives everything in this thread's cache back to the heap.
pub(super) fn empty_own(heap: &Arc<Heap>) {
    with(heap, |cache| empty(heap, cache));
}

#[cold]
fn empty(heap: &Heap, cache: &Cache) {
    for number in 0..heap.classes.count() as u8 {
        let class = heap.classes.get(number);
        let count = cache.blocks(class).count();
        heap.give(number, cache.shed(class, count).as_slice());
    }
}
