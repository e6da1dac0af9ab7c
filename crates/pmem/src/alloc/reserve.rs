//! The last room of a pool, for work that must not fail for want of it.
//!
//! A sixteenth of what the pool may grow to, at most 4 MiB, is closed to ordinary allocations. Work that undoes what a full pool has stopped halfway may use
//! all of this reserve; removals may use half ([`Reserve`]). A pool of fewer than 32 slabs has none: it is for tests.
//!
//! 1. An ordinary allocation leaves the reserve free for blocks of its own size: in free slabs, in what the pool may grow by, and in free blocks of that size.
//!    So everything that undoing takes may be of one size, whichever it is. (Slabs are counted; whether those of a span or a run are neighbours is not
//!    checked.)
//! 2. While fewer slabs are free than that, no thread takes blocks into its cache, and freed blocks go back to the heap, so caches give no thread more than it
//!    is entitled to. Work that frees a block for each one that it takes, as a tree does when it replaces a leaf, can therefore go on for ever, whatever others
//!    allocate meanwhile.
//! 3. Whatever is freed next replenishes the reserve.
//!
//! These numbers are approximate: threads first look and then take. The room by which a file may grow exists only if the file system has it. After a restart
//! the reserve is what is free, however little.

use super::heap::Heap;
use crate::{Medium, Pool};
use std::cell::Cell;
use std::marker::PhantomData;

/// Share of the pool's slabs: one in this many.
const SHARE: usize = 16;
/// Maximum size of a reserve in bytes.
const SIZE_MAX: usize = 4 << 20;
/// Pools with fewer slabs have none.
const SLABS_LEAST: usize = 32;

/// How much of the reserve a thread may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reserve {
    /// Nothing: an ordinary allocation.
    #[default]
    Kept,
    /// Half of it: for removals, which make room in the end, and for work that gives back as much as it takes.
    Half,
    /// All of it: for undoing.
    All,
}

thread_local! {
    static RESERVE: Cell<Reserve> = const { Cell::new(Reserve::Kept) };
}

/// On drop, restores what the thread may use.
struct Scope {
    before: Reserve,
    _not_send: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        RESERVE.set(self.before);
    }
}

/// Runs `act` with access to `reserve` of a full pool, or to what its caller may use if that is more.
pub fn with_reserve<T>(reserve: Reserve, act: impl FnOnce() -> T) -> T {
    let before = RESERVE.get();
    let _scope = Scope { before, _not_send: PhantomData };
    RESERVE.set(before.max(reserve));
    act()
}

impl<M: Medium> Pool<M> {
    /// Number of slabs that this thread must leave.
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

    /// Number of slabs that the pool may grow by, plus those that are free if that is not `enough`.
    fn slabs_left(&self, enough: usize) -> usize {
        let growth = self.size_max().saturating_sub(self.length()) / self.alloc.slab_size();
        if growth >= enough { growth } else { growth + self.alloc.heap.free_slabs() }
    }

    /// Whether this thread may take `count` slabs, if there are that many.
    pub(super) fn may_take_slabs(&self, count: u32) -> bool {
        let needed = count as usize + self.slabs_to_leave();
        self.slabs_left(needed) >= needed
    }

    /// Number of free blocks of a class that this thread may take now, if there are that many.
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
