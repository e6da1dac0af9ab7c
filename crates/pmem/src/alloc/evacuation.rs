//! Making free slabs out of scattered free blocks, and giving free slabs back to the file system.
//!
//! The allocator cannot move blocks: the owner of a block does, by replacing it. So an evacuation has three steps:
//! 1. [`Pool::evacuate`] chooses slabs that are to become free; none of their blocks is handed out any more.
//! 2. Owners ask of each block whether it [is to leave](Pool::is_leaving), and replace it, by the same steps as for any change, so that a crash finds the one
//!    or the other. The old block is retired.
//! 3. [`Pool::settle`] ends it: slabs that have become free are like any free slabs; what is left in the others stays. A pool that becomes full ends it sooner.
//!
//! [`Pool::give_back`] then gives free slabs back: it punches their space out of the file, and the pool ends after the last slab in use. The content of a free
//! slab means nothing, even to a recovery, so a crash at any point of this is harmless.

use super::heap::Block;
use crate::{Error, Medium, Off, Pool, Word, schedule};

/// Bytes that are given back at once: threads that need free slabs wait meanwhile.
const PUNCHED_AT_ONCE: usize = 16 << 20;
/// A few slabs are this many, in small pools one of so many, in large ones one of so many.
const FEW: u32 = 16;
const FEW_SHARE_SMALL: u32 = 64;
const FEW_SHARE: u32 = 4096;
/// A pool keeps the header and one slab.
const SLABS_LEAST: u32 = 2;

/// Which slabs are to become free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evacuation {
    /// Those that are not needed for the blocks in use.
    Sparse,
    /// All whose blocks share slabs, to show that they can be moved.
    All,
}

impl<M: Medium> Pool<M> {
    /// Begins an evacuation; returns the number of slabs that are to become free. One evacuation at a time.
    pub fn evacuate(&self, what: Evacuation) -> usize {
        self.collect();
        self.empty_cache();
        self.alloc.heap.release_empty();
        self.alloc.heap.evacuate(what == Evacuation::All)
    }

    /// Begins an evacuation of a few slabs that are not needed for the blocks in use, in pieces of `wanted` bytes, rounded up to slabs: those with
    /// the least in use. Returns for each piece the blocks in use there; some may be in the caches of threads. Unlike other evacuations it does not end when
    /// the pool becomes full, since it withholds little.
    pub fn evacuate_few(&self, wanted: usize) -> Vec<Vec<Off<Word>>> {
        self.settle();
        let heap = &self.alloc.heap;
        // So that nobody who finds the pool full meanwhile ends this before it says that it withholds little.
        let _growing = schedule::lock(&heap.growing);
        let all = heap.slab_count();
        let few = (all / FEW_SHARE_SMALL).clamp(1, FEW).max(all / FEW_SHARE);
        let leaving = heap.evacuate_few(heap.slabs_in(wanted.saturating_add(heap.slab_size() - 1)).max(1), few);
        leaving.into_iter().map(|blocks| blocks.into_iter().map(Off::new).collect()).collect()
    }

    /// Says that this block is immovable: [`Pool::evacuate_few`] does not choose its slab again before another block there is freed.
    pub fn keep(&self, block: Off<Word>) {
        self.alloc.heap.keep(block.bytes());
    }

    /// Whether an evacuation wants this block replaced.
    #[inline]
    pub fn is_leaving<T: ?Sized>(&self, block: Off<T>) -> bool {
        matches!(self.alloc.heap.locate(block.bytes()), Some(Block::Shared { leaves: true, .. }))
    }

    /// Ends an evacuation.
    pub fn settle(&self) {
        self.collect();
        self.empty_cache();
        self.alloc.heap.stay();
        self.alloc.heap.release_empty();
    }

    /// Gives free slabs back to the file system; returns the number of bytes. Where it takes none, as memory does, the pool only becomes shorter.
    ///
    /// # Errors
    /// Those of [`Pool::writable`], [`Error::Io`].
    pub fn give_back(&self) -> Result<usize, Error> {
        let heap = &self.alloc.heap;
        // Repeats what was given back before: a file system may keep what it was writing at that moment.
        self.punch(|from| heap.take_bare_run(from), |slab, count| heap.give_bare(slab, count))?;
        let given = self.punch(|from| heap.take_run(from), |slab, count| heap.give_slabs(slab, count))?;
        let _growing = schedule::lock(&heap.growing);
        if let Some(end) = heap.cut(SLABS_LEAST) {
            self.shrink(heap.offset(end) as usize)?;
        }
        Ok(given)
    }

    /// Punches free slabs out of the file; returns the number of bytes. `take` takes the first run from a slab on; `give` gives back those that stay as they
    /// are.
    fn punch(&self, take: impl Fn(u32) -> Option<(u32, u32)>, give: impl Fn(u32, u32)) -> Result<usize, Error> {
        let heap = &self.alloc.heap;
        let at_once = (PUNCHED_AT_ONCE / heap.slab_size()) as u32;
        let (mut from, mut punched) = (0, 0);
        loop {
            // A thread that finds no slab meanwhile waits, and looks again.
            let _growing = schedule::lock(&heap.growing);
            self.writable()?;
            let Some((slab, count)) = take(from) else { return Ok(punched) };
            let part = count.min(at_once);
            if part < count {
                give(slab + part, count - part);
            }
            from = slab + part;
            let length = part as usize * heap.slab_size();
            // Nobody stores there any more. But recovery stores what a journal has; if the space were given back now, a full disk would have none for that.
            self.checkpoint();
            match self.give_up(heap.offset(slab) as usize, length) {
                Ok(true) => {
                    heap.give_bare(slab, part);
                    punched += length;
                }
                kept => {
                    give(slab, part);
                    if !kept? {
                        return Ok(punched);
                    }
                }
            }
        }
    }
}
