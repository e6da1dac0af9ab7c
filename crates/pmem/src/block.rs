//! A block's life as types: `Fresh -> Durable -> linked`.
//!
//! A block from the allocator is [`Fresh`]: nobody can reach it, it may be written at leisure, and a crash forgets it. [`Pool::seal`] flushes all of it,
//! fences, and returns it as [`Durable`]; only a durable block can be linked. So linking a block that is not durable does not compile, unless the caller
//! vouches for it ([`Flushed::release`]). Dropping an unlinked block gives it back.

use crate::{Error, Medium, Off, Pool, Resident, Word};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// A block nobody can reach yet. Derefs to its memory, whose content is arbitrary unless it was asked for zeroed.
pub struct Fresh<'p, T: Resident + ?Sized, M: Medium> {
    pool: &'p Pool<M>,
    memory: &'p T,
}

/// A block nobody can reach yet, whose content is durable.
#[must_use = "a durable block that is not linked is given back"]
pub struct Durable<'p, T: Resident + ?Sized, M: Medium>(Fresh<'p, T, M>);

impl<'p, T: Resident + ?Sized, M: Medium> Fresh<'p, T, M> {
    pub(crate) fn new(pool: &'p Pool<M>, memory: &'p T) -> Self {
        Self { pool, memory }
    }

    /// Where the block lies.
    pub fn off(&self) -> Off<T> {
        self.pool.offset_of(self.memory)
    }

    /// Whether nobody had stored to the block between the opening of the pool and its allocation. Then its content is durable, because opening makes it so.
    /// Known of runs of slabs, not of other blocks.
    pub fn is_untouched(&self) -> bool {
        self.pool.is_untouched(self.off())
    }

    /// Starts the write-back of the whole block; [`Pool::fence_all`] makes any number of such blocks durable by one fence.
    #[inline(always)]
    #[track_caller]
    pub fn flush(self) -> Flushed<'p, T, M> {
        self.pool.flush(self.memory);
        Flushed { block: self, of_this_thread: PhantomData }
    }

    /// Starts the write-back of the first `size` bytes only. The rest may be anything after a crash: for blocks that say how much of them counts.
    ///
    /// # Panics
    /// If the block is smaller.
    #[inline(always)]
    #[track_caller]
    pub fn flush_first(self, size: usize) -> Flushed<'p, T, M> {
        assert!(size <= size_of_val(self.memory));
        self.pool.flush(self.pool.words(self.off(), size.div_ceil(crate::WORD)).expect("a block lies in the pool"));
        Flushed { block: self, of_this_thread: PhantomData }
    }
}

/// A block whose write-back has begun. See [`Fresh::flush`].
#[must_use = "a flushed block is not durable before a fence"]
pub struct Flushed<'p, T: Resident + ?Sized, M: Medium> {
    block: Fresh<'p, T, M>,
    /// Keeps it in the thread that flushed it: another thread's fence does not cover it.
    of_this_thread: PhantomData<*const ()>,
}

impl<T: Resident + ?Sized, M: Medium> Flushed<'_, T, M> {
    /// Where the block lies.
    pub fn off(&self) -> Off<T> {
        self.block.off()
    }

    /// [`Durable::release`], for a caller that stores the offset after a later fence, or by [`Pm::publish`](crate::Pm::publish).
    pub fn release(self) -> Off<T> {
        Durable(self.block).release()
    }
}

/// Proof that a fence of this pool has passed; only [`Pool::fence_all`] makes it.
pub struct Fenced(*const ());

mod sealed {
    /// Keeps [`Fence`](super::Fence) from being implemented elsewhere: such code would get a [`Fenced`](super::Fenced) and could use it for blocks flushed
    /// later.
    pub trait Sealed {}
}

/// Flushed blocks that one fence makes durable: one, two, three, a vector, an option.
pub trait Fence: sealed::Sealed {
    /// The same blocks, durable.
    type Durable;

    /// Called by [`Pool::fence_all`] after the fence.
    fn durable(self, fenced: &Fenced) -> Self::Durable;
}

impl<T: Resident + ?Sized, M: Medium> sealed::Sealed for Flushed<'_, T, M> {}
impl<F: Fence> sealed::Sealed for Option<F> {}
impl<F: Fence> sealed::Sealed for Vec<F> {}
impl<F: Fence, G: Fence> sealed::Sealed for (F, G) {}
impl<F: Fence, G: Fence, H: Fence> sealed::Sealed for (F, G, H) {}

impl<'p, T: Resident + ?Sized, M: Medium> Fence for Flushed<'p, T, M> {
    type Durable = Durable<'p, T, M>;
    fn durable(self, fenced: &Fenced) -> Self::Durable {
        assert!(std::ptr::from_ref(self.block.pool).cast() == fenced.0, "a fence of another pool");
        Durable(self.block)
    }
}

impl<F: Fence> Fence for Option<F> {
    type Durable = Option<F::Durable>;
    fn durable(self, fenced: &Fenced) -> Self::Durable {
        self.map(|blocks| blocks.durable(fenced))
    }
}

impl<F: Fence> Fence for Vec<F> {
    type Durable = Vec<F::Durable>;
    fn durable(self, fenced: &Fenced) -> Self::Durable {
        self.into_iter().map(|blocks| blocks.durable(fenced)).collect()
    }
}

impl<F: Fence, G: Fence> Fence for (F, G) {
    type Durable = (F::Durable, G::Durable);
    fn durable(self, fenced: &Fenced) -> Self::Durable {
        (self.0.durable(fenced), self.1.durable(fenced))
    }
}

impl<F: Fence, G: Fence, H: Fence> Fence for (F, G, H) {
    type Durable = (F::Durable, G::Durable, H::Durable);
    fn durable(self, fenced: &Fenced) -> Self::Durable {
        (self.0.durable(fenced), self.1.durable(fenced), self.2.durable(fenced))
    }
}

impl<T: Resident + ?Sized, M: Medium> Durable<'_, T, M> {
    /// Where the block lies.
    pub fn off(&self) -> Off<T> {
        self.0.off()
    }

    pub(crate) fn is_of(&self, pool: &Pool<M>) -> bool {
        std::ptr::eq(pool, self.0.pool)
    }

    /// Hands the block over to the caller, which stores its offset: from here on it is reachable, or lost until the next recovery by reachability.
    pub fn release(self) -> Off<T> {
        let block = ManuallyDrop::new(self);
        let off = block.0.off();
        block.0.pool.medium().released(off.bytes() as usize, size_of_val(block.0.memory));
        off
    }
}

impl<T: Resident + ?Sized, M: Medium> Deref for Fresh<'_, T, M> {
    type Target = T;
    fn deref(&self) -> &T {
        self.memory
    }
}

impl<T: Resident + ?Sized, M: Medium> Deref for Durable<'_, T, M> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.memory
    }
}

impl<T: Resident + ?Sized, M: Medium> Drop for Fresh<'_, T, M> {
    fn drop(&mut self) {
        self.pool.free(self.off());
    }
}

impl<M: Medium> Pool<M> {
    /// A fresh block for a `T`. Its content is arbitrary.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the pool is full and cannot grow.
    pub fn alloc<T: Resident>(&self) -> Result<Fresh<'_, T, M>, Error> {
        let off = self.allocate(size_of::<T>())?;
        let memory = self.get(off.cast::<T>()).expect("the allocator hands out mapped, aligned blocks");
        Ok(Fresh::new(self, memory))
    }

    /// A fresh block for a `T`, all of whose words are 0: durably so once it is sealed, unlike memory that merely reads as 0.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_zeroed<T: Resident>(&self) -> Result<Fresh<'_, T, M>, Error> {
        let block = self.alloc::<T>()?;
        for word in self.words(block.off(), size_of::<T>() / crate::WORD).expect("a block lies in the pool") {
            self.store(word, 0, Ordering::Relaxed);
        }
        Ok(block)
    }

    /// A fresh block of `count` words. Its content is arbitrary.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the pool is full and cannot grow; [`Error::TooLarge`] when no pool could hold it.
    pub fn alloc_words(&self, count: usize) -> Result<Fresh<'_, [Word], M>, Error> {
        let size = count.checked_mul(crate::word::WORD).ok_or(Error::TooLarge { size: usize::MAX, size_max: isize::MAX as usize })?;
        let off = self.allocate(size)?;
        let memory = self.words(off, count).expect("the allocator hands out mapped, aligned blocks");
        Ok(Fresh::new(self, memory))
    }

    /// Makes all of `block` durable: flush and fence.
    ///
    /// # Panics
    /// If it is of another pool.
    #[inline(always)]
    #[track_caller]
    pub fn seal<'p, T: Resident + ?Sized>(&self, block: Fresh<'p, T, M>) -> Durable<'p, T, M> {
        self.fence_all(block.flush())
    }

    /// Fences once for all `blocks`.
    ///
    /// # Panics
    /// If one of them is of another pool.
    #[inline(always)]
    #[track_caller]
    pub fn fence_all<F: Fence>(&self, blocks: F) -> F::Durable {
        self.fence();
        blocks.durable(&Fenced(std::ptr::from_ref(self).cast()))
    }

    /// Publishes `block` by storing its link in `slot`, durably.
    ///
    /// # Panics
    /// If the block is of another pool.
    #[inline(always)]
    #[track_caller]
    pub fn link<T: Resident + ?Sized>(&self, slot: &Word, block: Durable<'_, T, M>) -> Off<T> {
        assert!(block.is_of(self), "a block of another pool");
        let off = block.off();
        self.store(slot, off.link(), Ordering::Release);
        self.persist(slot);
        block.release()
    }
}
