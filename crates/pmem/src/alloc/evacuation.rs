//! Making free slabs of blocks that are free here and there, and giving free slabs back to the file system.
//!
//! The allocator cannot move blocks: whoever owns one does, by putting another in its place. So an evacuation is
//! 1. [`Pool::evacuate`]: slabs are chosen that are to become free, and no block of them is handed out any more;
//! 2. owners ask of each block whether it [is to leave](Pool::is_leaving), and put another in its place, by the same steps as for any change, so that a crash
//!    finds the one or the other; the old one is retired;
//! 3. [`Pool::settle`]: slabs that have become free are like any free slabs; what is left of the others stays. In a pool that is full it comes to that sooner.
//!
//! [`Pool::give_back`] then gives free slabs back: their space is punched out of the file, and the pool ends with the last slab in use. What a free slab holds
//! means nothing, to a recovery too, so a crash at any point of this is harmless.

use super::heap::Block;
use crate::{Error, Medium, Off, Pool, schedule};

/// Bytes that are given back at once: whoever needs free slabs waits meanwhile.
const PUNCHED_AT_ONCE: usize = 16 << 20;
/// A pool keeps the header and a slab.
const SLABS_LEAST: u32 = 2;

/// Which slabs are to become free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evacuation {
    /// Those that are not needed for the blocks in use.
    Sparse,
    /// All that blocks share, to show that these can be moved.
    All,
}

impl<M: Medium> Pool<M> {
    /// Begins an evacuation; number of slabs that are to become free. One evacuation at a time.
    pub fn evacuate(&self, what: Evacuation) -> usize {
        self.collect();
        self.empty_cache();
        self.alloc.heap.release_empty();
        self.alloc.heap.evacuate(what == Evacuation::All)
    }

    /// Whether an evacuation wants another block in the place of this one.
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

    /// Gives free slabs back to the file system; how many bytes. Where it takes none, as memory does, the pool only becomes shorter.
    ///
    /// # Errors
    /// Those of [`Pool::writable`], [`Error::Io`].
    pub fn give_back(&self) -> Result<usize, Error> {
        let heap = &self.alloc.heap;
        // Once more what was given back before: a file system may keep what it was writing just then.
        self.punch(|from| heap.take_bare_run(from), |slab, count| heap.give_bare(slab, count))?;
        let given = self.punch(|from| heap.take_run(from), |slab, count| heap.give_slabs(slab, count))?;
        let _growing = schedule::lock(&heap.growing);
        if let Some(end) = heap.cut(SLABS_LEAST) {
            self.shrink(heap.offset(end) as usize)?;
        }
        Ok(given)
    }

    /// Punches the free slabs that `take` takes, by the first that it may, out of the file; how many bytes. `give` gives back those that stay as they are.
    fn punch(&self, take: impl Fn(u32) -> Option<(u32, u32)>, give: impl Fn(u32, u32)) -> Result<usize, Error> {
        let heap = &self.alloc.heap;
        let at_once = (PUNCHED_AT_ONCE / heap.slab_size()) as u32;
        let (mut from, mut punched) = (0, 0);
        loop {
            // Whoever finds no slab meanwhile waits, and looks again.
            let _growing = schedule::lock(&heap.growing);
            self.writable()?;
            let Some((slab, count)) = take(from) else { return Ok(punched) };
            let part = count.min(at_once);
            if part < count {
                give(slab + part, count - part);
            }
            from = slab + part;
            let length = part as usize * heap.slab_size();
            // Nobody stores there any more. Recovery stores what a journal has, and a full disk would have no space for that where it is given back now.
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
