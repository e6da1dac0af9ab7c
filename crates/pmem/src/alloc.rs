//! Allocation without flushes, and recovery by reachability.
//!
//! After the pool's header (slab 0), a pool consists of slabs of equal size. A slab in use begins with a header line, followed by blocks of one size. Large
//! blocks share a *span* of a few slabs (`class.rs`), or have a *run* of slabs to themselves: one header, then blocks that reach from slab to slab. Where there
//! are no neighbouring slabs for a span, and the pool cannot grow, a block that belongs in a span gets a run, or shares a slab with larger ones.
//!
//! ```text
//! word  0                1                          2                        3..8
//!      +----------------+--------------------------+------------------------+----------+
//!      | magic | kind   | blocks: size in bytes    | CRC-32C of words 0, 1  | not used |
//!      |               | run: number of slabs     | and the slab's number  |          |
//!      +----------------+--------------------------+------------------------+----------+
//! then, at 64 (or 128 or 256, as the size of the blocks divides): the blocks
//! ```
//!
//! # Invariants
//! 1. A block is allocated if and only if it is reachable from a root of the pool. Nothing in the pool says which blocks are free: `Heap` does, and it is
//!    volatile.
//! 2. The header of the slab, span or run in which a reachable block lies is durable, and gives the size of that block, or the length of the run. Anything
//!    elsewhere that looks like a header means nothing.
//! 3. Blocks in use do not overlap.
//!
//! # Protocol
//! *Allocate.* Pop from the thread's cache; when that is empty, take free blocks from a slab of the class; when there is none:
//! 1. Take a free slab, growing the pool if need be. A crash forgets it.
//! 2. Store its header, flush, fence. A crash still forgets it, since no block in it is reachable.
//! 3. Hand out blocks. The commit point is the caller's link, later than step 2: hence invariant 2.
//!
//! So a slab, a span or a run costs 1 flush and 1 fence before its first block escapes; a block costs nothing.
//!
//! *Free.* Push to the thread's cache. The caller has unlinked the block durably, so that a crash cannot bring back a link to a block that has a new owner, and
//! an epoch has passed (`epoch.rs`). Slabs whose blocks are all free go back to the free runs.
//!
//! *Shut down.* The state is written into free slabs as a checksummed snapshot, which the superblock names before it says "clean" (`snapshot.rs`). The pool
//! says "dirty" durably before the first change after that, and the snapshot's space is free from then on.
//!
//! *Recover.* Without a snapshot, or with a damaged one, the indexes mark what they reach (`reach.rs`); the rest is free. Nothing is stored, so a crash during
//! recovery changes nothing.
//!
//! *Reserve.* The last room of a pool is reserved for threads that undo something and cannot be told that there is no room (`reserve.rs`).
//!
//! # Cost
//! In the pool: 64 bytes per slab, span or run, the waste of rounding up to a class (`class.rs`), and the rest of a run's last slab. In DRAM: about 60 bytes
//! per slab and one bit per block: 0.3 % for blocks of 64 bytes, 0.1 % for those of 1 KiB. Per thread: a cache of 16 KiB, with at most 64 blocks or half a slab
//! of each class, and no blocks of spans.

mod cache;
mod class;
mod evacuation;
mod heap;
mod reach;
mod reserve;
mod runs;
mod snapshot;
mod table;

pub use evacuation::Evacuation;
pub use reach::{Reach, Usage};
pub use reserve::{Reserve, with_reserve};
pub(crate) use snapshot::Snapshot;

use crate::schedule::{self, Step};
use crate::word::WORD;
use crate::{Error, Limit, Medium, Off, Pm, Pool, Word, word};
use class::{Classes, FIRST};
use heap::{Block, Heap};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

crate::resident! {
    /// The first line of a slab in use.
    struct SlabHeader {
        kind: Word,
        extent: Word,
        check: Word,
        unused: [Word; 5],
    }
}
const _: () = assert!(size_of::<SlabHeader>() == FIRST);
/// Bytes of the next block that are prefetched: those of a leaf. A larger block is written one line after the other, which the processor predicts.
const AHEAD: usize = 512;

const MAGIC: u64 = u64::from_be_bytes(*b"everslab") << 8;
const BLOCKS: u64 = MAGIC | 1;
const RUN: u64 = MAGIC | 2;

/// What the header of a slab, or of a group of slabs that begins there, says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Header {
    /// Blocks of this many bytes.
    Blocks(u32),
    /// A run of this many slabs.
    Run(u32),
}

impl Header {
    fn words(self, slab: u32) -> [u64; 3] {
        let (kind, extent) = match self {
            Self::Blocks(size) => (BLOCKS, size),
            Self::Run(count) => (RUN, count),
        };
        let check = word::checksum(&[kind, u64::from(extent), u64::from(slab)]);
        [kind, u64::from(extent), u64::from(check)]
    }
}

/// Number of bytes of a slab in use that determine how many slabs belong to it.
pub(crate) const HEADER_BYTES: usize = 3 * WORD;

/// How many slabs of `slab_size` bytes belong together from `slab` on, if its first bytes are those of a slab in use; else `None`.
pub(crate) fn extent_of(slab: u32, first: &[u8; HEADER_BYTES], slab_size: usize) -> Option<u32> {
    let words: [u64; 3] = std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| first[at * WORD + byte])));
    let extent = u32::try_from(words[1]).ok()?;
    let (header, count) = match words[0] {
        // In a pool without spans there are no blocks of such sizes.
        BLOCKS => {
            let classes = Classes::of_slab(slab_size, true);
            (Header::Blocks(extent), classes.exact(extent as usize).map_or(1, |class| classes.get(class).slabs))
        }
        RUN => (Header::Run(extent), extent),
        _ => return None,
    };
    (header.words(slab) == words && count > 0).then_some(count)
}

/// The allocator of a pool.
pub(crate) struct Allocator {
    heap: Arc<Heap>,
}

/// What the pool held when it was opened.
pub(crate) enum Start {
    /// Nothing: it has just been created.
    Created,
    /// It was shut down cleanly, and the superblock names this snapshot.
    Clean(Snapshot),
    /// It was not shut down cleanly.
    Unclean,
}

impl Allocator {
    /// The allocator of a pool with slabs of `slab_size` bytes (a power of two from 4 KiB to 64 KiB) that may have spans (`has_spans`). Nothing is stored in
    /// the pool. If its file `is_holey`, free slabs may have no space in the file system.
    pub(crate) fn new<M: Medium>(pm: &Pm<M>, slab_size: usize, has_spans: bool, start: Start, is_holey: bool) -> Self {
        let heap = Heap::new(Classes::of_slab(slab_size, has_spans), pm.length(), !matches!(start, Start::Created), is_holey);
        if let Start::Clean(snapshot) = start {
            // A damaged snapshot is ignored, and the heap still needs recovery.
            let _ = snapshot::restore(pm, &heap, &snapshot);
        }
        Self { heap: Arc::new(heap) }
    }

    /// The pool is now `length` bytes long.
    pub(crate) fn extend(&self, length: usize) {
        self.heap.extend(length);
    }

    /// Size of a slab in bytes.
    pub(crate) fn slab_size(&self) -> usize {
        self.heap.slab_size()
    }

    /// Whether `block` is in a span or a run.
    pub(crate) fn is_large<T: ?Sized>(&self, block: Off<T>) -> bool {
        match self.heap.locate(block.bytes()) {
            Some(Block::Shared { class, .. }) => self.heap.classes.get(class).slabs > 1,
            Some(Block::Run { .. }) => true,
            None => false,
        }
    }
}

impl<M: Medium> Pool<M> {
    /// Whether the pool was not shut down cleanly, so that nothing can be allocated before [`Pool::adopt`].
    pub fn needs_recovery(&self) -> bool {
        self.alloc.heap.is_recovering()
    }

    /// Approximate number of bytes that can still be allocated, the reserve (`reserve.rs`) included: what is free, and what the pool may grow by, limited to
    /// what the file system has now. Blocks in threads' caches and retired blocks do not count.
    pub fn room(&self) -> usize {
        let heap = &self.alloc.heap;
        // Bare slabs may need space of the file system, as growth does.
        let bare = heap.bare_slabs() * heap.slab_size();
        let unbacked = (self.size_max() - self.length() + bare).min(self.available());
        heap.free_size().saturating_sub(bare) + unbacked / heap.slab_size() * heap.slab_size()
    }

    /// Approximate number of bytes of the pool that are in use or in threads' caches.
    pub fn used(&self) -> usize {
        self.length().saturating_sub(self.alloc.heap.free_size())
    }

    /// Bytes in free slabs: what large blocks can take before the pool grows, if no more than one slab each.
    pub fn free_in_slabs(&self) -> usize {
        self.alloc.heap.free_slabs() * self.alloc.heap.slab_size()
    }

    /// Writes the allocator's state into free space of the pool, flushed but not fenced; `None` when there is not enough space, or the state is not sound. This
    /// is the last act before the pool is marked clean: nothing may be allocated or freed after it.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        if self.needs_recovery() {
            return None;
        }
        snapshot::write(self, &self.alloc.heap, &self.epochs.retired(), |off, length| self.back(off as usize, length).is_ok())
    }

    /// Makes room for a snapshot: the space of retired blocks, if nobody can be reading them any more, or new space, as after a compaction. If there is none,
    /// the pool is recovered when it is opened next.
    pub(crate) fn make_room_for_snapshot(&self) {
        if self.needs_recovery() || self.writable().is_err() {
            return;
        }
        self.collect();
        let heap = &self.alloc.heap;
        let _growing = schedule::lock(&heap.growing);
        if let Some(missing) = snapshot::missing(heap, &self.epochs.retired()) {
            let _ = self.grow(missing);
        }
    }

    /// A block of `size` bytes, with arbitrary content.
    #[inline]
    pub(crate) fn allocate(&self, size: usize) -> Result<Off<u8>, Error> {
        schedule::before(Step::Allocator);
        let heap = &self.alloc.heap;
        let at_hand = if self.writable().is_ok() { heap.classes.of(size).and_then(|class| cache::pop(heap, class)) } else { None };
        let at = match at_hand {
            Some(at_hand) => {
                // The caller stores to all of the block soon, and allocates one as large before long: then nobody need wait for its lines.
                self.prefetch_bytes(at_hand.next, size.min(AHEAD));
                at_hand.block
            }
            None => self.allocate_elsewhere(size)?,
        };
        self.medium().allocated(at as usize, size);
        // Optimistic readers may still look at what the block was. A reader that sees a store made from here on also sees that the block had been given up.
        fence(Ordering::Release);
        Ok(Off::new(at))
    }

    /// A block of `size` bytes that is not in the thread's cache: from free space, else after growing the pool, else after giving back everything in caches.
    #[cold]
    fn allocate_elsewhere(&self, size: usize) -> Result<u64, Error> {
        self.writable()?;
        assert!(!self.needs_recovery(), "nothing can be allocated before the recovery has ended");
        self.free_ripe();
        match self.allocate_or_grow(size) {
            Err(Error::NoSpace { .. }) => {
                self.give_back_kept();
                self.allocate_or_grow(size)
            }
            outcome => outcome,
        }
    }

    fn allocate_or_grow(&self, size: usize) -> Result<u64, Error> {
        let classes = self.alloc.heap.classes;
        let class = match classes.of(size) {
            Some(class) if classes.get(class).slabs > 1 => {
                // A block of a span that was given up lately is worth more than a slab of its own, so retired blocks are collected first.
                let block = self.refill(class).or_else(|_| {
                    self.collect();
                    self.refill(class)
                });
                match block {
                    // Fewer neighbouring slabs will do, if each block takes more.
                    Err(Error::NoSpace { .. }) => classes.alone(size),
                    outcome => return outcome,
                }
            }
            class => class,
        };
        class.map_or_else(|| self.allocate_run(size), |class| self.refill(class))
    }

    /// Whether nobody but the block's owner has stored to it since the pool was opened. Then whatever the owner has not changed is durable, because opening
    /// makes it so. Known of runs; never of other blocks, nor before the pool is recovered.
    pub fn is_untouched<T: ?Sized>(&self, block: Off<T>) -> bool {
        self.alloc.heap.is_untouched(block.bytes())
    }

    /// Frees `block`, which nobody can reach any more. An offset that cannot be a block, as in a damaged pool, is ignored.
    #[inline]
    pub(crate) fn free<T: ?Sized>(&self, block: Off<T>) {
        schedule::before(Step::Allocator);
        let heap = &self.alloc.heap;
        let at = block.bytes();
        match heap.locate(at) {
            Some(Block::Shared { class, leaves }) => {
                self.medium().released(at as usize, heap.classes.get(class).size as usize);
                if leaves || heap.is_low() { heap.give(class, &[at]) } else { cache::push(heap, class, at) }
            }
            Some(Block::Run { slab, count }) => {
                self.medium().released(at as usize, count as usize * heap.slab_size() - FIRST);
                heap.free_run(slab, count);
            }
            None => {}
        }
    }

    /// Gives the blocks in this thread's cache back to the heap, so that their space can serve other sizes.
    pub(crate) fn empty_cache(&self) {
        cache::empty_own(&self.alloc.heap);
    }

    /// Fills the thread's cache of `class`, and takes one block.
    fn refill(&self, class: u8) -> Result<u64, Error> {
        let heap = &self.alloc.heap;
        let shape = heap.classes.get(class);
        // Blocks may have become free meanwhile.
        if let Some(block) = cache::pop(heap, class).map(|at_hand| at_hand.block).or_else(|| self.take_batch(class)) {
            return Ok(block);
        }
        loop {
            let slab = self.take_slabs(shape.slabs)?;
            // persist-equivalent(fence drop): one thread seals a block, which fences, before it links it. Others, which may take blocks of this slab at once,
            // do not wait for this flush.
            self.write_header(slab, Header::Blocks(shape.size));
            schedule::drain();
            heap.add_slab(class, slab);
            // Other threads may have taken all its blocks.
            if let Some(block) = self.take_batch(class) {
                return Ok(block);
            }
        }
    }

    /// Takes blocks of `class` from the heap, if allowed: one for the caller, the others for the thread's cache.
    fn take_batch(&self, class: u8) -> Option<u64> {
        let heap = &self.alloc.heap;
        let mut batch = heap.take(class, self.blocks_to_take(class));
        let block = batch.pop()?;
        // Popped from its low end, which the cache is to hand out first, too.
        for block in batch.as_slice() {
            cache::push(heap, class, *block);
        }
        Some(block)
    }

    fn allocate_run(&self, size: usize) -> Result<u64, Error> {
        let heap = &self.alloc.heap;
        let too_large = || Error::TooLarge { size, size_max: heap.offset(u32::MAX) as usize - FIRST };
        let count = heap.classes.run_of(size).and_then(|count| u32::try_from(count).ok()).ok_or_else(too_large)?;
        let slab = self.take_slabs(count)?;
        // persist-equivalent(fence drop): the run's one block is sealed, which fences, before it is linked. Runs are rare, and slabs keep one rule.
        self.write_header(slab, Header::Run(count));
        heap.add_run(slab, count);
        Ok(heap.offset(slab) + FIRST as u64)
    }

    /// Gives back to the heap retired blocks that can be free, this thread's cache, and slabs whose blocks are all free, and gives bare slabs space.
    fn give_back_kept(&self) {
        let heap = &self.alloc.heap;
        let _growing = schedule::lock(&heap.growing);
        self.collect();
        heap.stay_if_many();
        self.empty_cache();
        heap.release_empty();
        let mut from = 0;
        while let Some((slab, count)) = heap.take_bare_run(from) {
            from = slab + count;
            if self.back_slabs(slab, count) {
                heap.give_slabs(slab, count);
            }
        }
    }

    /// Takes `count` neighbouring free slabs, if necessary after growing the pool.
    fn take_slabs(&self, count: u32) -> Result<u32, Error> {
        let heap = &self.alloc.heap;
        if self.may_take_slabs(count)
            && let Some(slab) = self.take_free(count)
        {
            return Ok(slab);
        }
        let _growing = schedule::lock(&heap.growing);
        match self.may_take_slabs(count) {
            true => self.take_grown(count),
            false => Err(Error::NoSpace { wanted: count as usize * heap.slab_size(), size: self.length(), size_max: self.size_max(), limit: Limit::SizeMax }),
        }
    }

    /// Takes slabs, growing the pool if need be. The caller holds the lock for growing.
    fn take_grown(&self, count: u32) -> Result<u32, Error> {
        let heap = &self.alloc.heap;
        let bytes = |slabs: u32| slabs as usize * heap.slab_size();
        loop {
            // Meanwhile other threads take slabs, including those by which this thread has grown the pool.
            if let Some(slab) = self.take_free(count) {
                return Ok(slab);
            }
            // The free slabs at the end of the pool, too few alone, become the first part.
            self.grow(bytes(count - heap.tail().min(count - 1))).map_err(|error| match error {
                Error::NoSpace { size, size_max, limit, .. } => Error::NoSpace { wanted: bytes(count), size, size_max, limit },
                other => other,
            })?;
        }
    }

    /// Takes `count` neighbouring free slabs: preferably backed by the file system, else bare ones, if it has space for them.
    fn take_free(&self, count: u32) -> Option<u32> {
        let heap = &self.alloc.heap;
        heap.take_slabs(count).or_else(|| heap.take_bare(count).filter(|slab| self.back_slabs(*slab, count)))
    }

    /// Backs bare slabs that were taken with space in the file system. If there is none, they are bare and free again.
    fn back_slabs(&self, slab: u32, count: u32) -> bool {
        let heap = &self.alloc.heap;
        let is_backed = self.back(heap.offset(slab) as usize, count as usize * heap.slab_size()).is_ok();
        if !is_backed {
            heap.give_bare(slab, count);
        }
        is_backed
    }

    /// Makes the header of a slab durable.
    #[track_caller]
    fn write_header(&self, slab: u32, header: Header) {
        let line = self.get(Off::<SlabHeader>::new(self.alloc.heap.offset(slab))).expect("free slabs lie in the pool");
        for (word, value) in [&line.kind, &line.extent, &line.check].into_iter().zip(header.words(slab)) {
            self.store(word, value, Ordering::Relaxed);
        }
        self.persist(line);
    }

    /// Checks that the header of a slab is `header`.
    fn expect_header(&self, slab: u32, header: Header) -> Result<(), Error> {
        let at = self.alloc.heap.offset(slab);
        let mut words = [0; 3];
        self.glimpse(at, &mut words, "a slab outside the pool")?;
        match words == header.words(slab) {
            true => Ok(()),
            false => Err(Error::corrupt(at, "a slab header that does not fit a block in the slab")),
        }
    }
}

#[cfg(test)]
mod tests;
