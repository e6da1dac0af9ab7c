//! The last of a pool's room, for work that must not fail for want of it.
//!
//! A sixteenth of what the pool may grow to, and no more than 4 MiB, is no room for ordinary allocations. Whoever takes back what a full pool has stopped
//! halfway may use all of it; whoever removes something, half ([`Reserve`]). A pool of fewer than 32 slabs has none: it is for tests.
//!
//! 1. An ordinary allocation leaves the reserve, for blocks of its own size, in free slabs, in what the pool may grow by, and in free blocks of that size. So
//!    what is taken back may be of one size only, whichever it is. (Slabs are counted: that those of a span or a run are neighbours is not seen to.)
//! 2. While there are fewer free slabs than that, nobody takes blocks to keep them at hand, and blocks that are freed go back to the heap: nobody gets by them
//!    what he would not be given. So work that frees a block for each one that it takes, as a tree does that puts one leaf in the place of another, can go on
//!    for ever, whatever others ask for meanwhile.
//! 3. What was used is made up for by whatever is freed next.
//!
//! So many bytes, about: threads look and take one after the other. What a file may grow by is there only if the file system has that much. After a restart
//! the reserve is what is free, however little.

use super::heap::Heap;
use crate::{Medium, Pool};
use std::cell::Cell;
use std::marker::PhantomData;

/// Share of the pool, in slabs: one in so many.
const SHARE: usize = 16;
/// Most bytes of a reserve.
const SIZE_MAX: usize = 4 << 20;
/// Pools of fewer slabs have none.
const SLABS_LEAST: usize = 32;

/// How much of the reserve a thread may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reserve {
    /// Nothing: an ordinary allocation.
    #[default]
    Kept,
    /// Half of it: for removals, which make room in the end, and for what gives back as much as it takes.
    Half,
    /// All of it: for what takes something back.
    All,
}

thread_local! {
    static RESERVE: Cell<Reserve> = const { Cell::new(Reserve::Kept) };
}

/// Sets back, when it is dropped, what the thread may use.
struct Scope {
    before: Reserve,
    _not_send: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        RESERVE.set(self.before);
    }
}

/// Runs `act`, which may use of the reserve of a full pool what it says, or what its caller may if that is more.
pub fn with_reserve<T>(reserve: Reserve, act: impl FnOnce() -> T) -> T {
    let before = RESERVE.get();
    let _scope = Scope { before, _not_send: PhantomData };
    RESERVE.set(before.max(reserve));
    act()
}

impl<M: Medium> Pool<M> {
    /// Number of slabs that this thread has to leave.
    fn slabs_to_leave(&self) -> usize {
        let reserve = self.reserved_slabs();
        match RESERVE.get() {
            Reserve::Kept => reserve,
            Reserve::Half => reserve.div_ceil(2),
            Reserve::All => 0,
        }
    }

    fn reserved_slabs(&self) -> usize {
        let slab_size = self.alloc.slab_size();
        match self.size_max() / slab_size {
            0..SLABS_LEAST => 0,
            slabs => (slabs / SHARE).min(SIZE_MAX / slab_size),
        }
    }

    /// Number of slabs that the pool may grow by, or has free, if it is not more than enough.
    fn slabs_left(&self, enough: usize) -> usize {
        let growth = self.size_max().saturating_sub(self.length()) / self.alloc.slab_size();
        if growth >= enough { growth } else { growth + self.alloc.heap.free_slabs() }
    }

    /// Whether this thread may take so many slabs, if there are any.
    pub(super) fn may_take_slabs(&self, count: u32) -> bool {
        let needed = count as usize + self.slabs_to_leave();
        self.slabs_left(needed) >= needed
    }

    /// How many free blocks of a class this thread may take now, if there are as many.
    pub(super) fn blocks_to_take(&self, class: u8) -> usize {
        let heap: &Heap = &self.alloc.heap;
        let (shape, reserved) = (heap.classes.get(class), self.reserved_slabs());
        let left = self.slabs_left(reserved);
        heap.set_low(left < reserved);
        if left >= reserved {
            return (shape.cached as usize).div_ceil(2).max(1);
        }
        let lacking = (self.slabs_to_leave().saturating_sub(left) * shape.count as usize).div_ceil(shape.slabs as usize);
        usize::from(lacking == 0 || heap.has_free(class, lacking + 1))
    }
}
