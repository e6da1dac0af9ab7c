//! Allocation. PROVISIONAL bump allocator.

use crate::{Error, Medium, Off, Pm, Pool};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The allocator of a pool: all of it in volatile memory.
pub(crate) struct Allocator {
    next: AtomicUsize,
}

/// What the pool held when it was opened.
#[allow(dead_code, reason = "a pool that is opened, not created, comes with the pool file")]
pub(crate) enum Start {
    /// Nothing: it has just been created.
    Created,
    /// It was shut down cleanly, and the superblock names this snapshot.
    Clean(Snapshot),
    /// It was not shut down cleanly.
    Unclean,
}

/// Where the allocator's state lies after a clean shutdown. The space is free again once the pool is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Where it begins, in bytes.
    pub(crate) off: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// CRC-32C of its bytes.
    pub(crate) crc: u32,
}

/// How the space of a pool is used, as [`Pool::audit`] found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that are allocated and reachable.
    pub reachable: usize,
    /// Blocks that are allocated, yet not reachable.
    pub leaked: usize,
    /// Where one of the leaked blocks lies, in bytes from the start of the pool.
    pub leaked_at: Option<u64>,
    /// Blocks retired, which become free once no thread can hold them.
    pub retired: usize,
}

impl Allocator {
    pub(crate) fn new<M: Medium>(_pm: &Pm<M>, slab_size: usize, _start: Start) -> Self {
        Self { next: AtomicUsize::new(slab_size) }
    }
}

impl<M: Medium> Pool<M> {
    /// Whether the pool was not shut down cleanly, so that nothing can be allocated before [`Pool::adopt`].
    pub fn needs_recovery(&self) -> bool {
        false
    }

    /// An empty set of reachable blocks.
    pub fn reach(&self) -> Reach<'_, M> {
        Reach { _pool: self }
    }

    /// Ends the recovery: what `reach` holds is allocated, everything else is free.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a block of `reach` is free in a pool that needs no recovery.
    pub fn adopt(&self, _reach: Reach<'_, M>) -> Result<(), Error> {
        Ok(())
    }

    /// Compares `reach` with the allocator's state. No other operation may be under way.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a reachable block is free.
    pub fn audit(&self, _reach: &Reach<'_, M>) -> Result<Usage, Error> {
        Ok(Usage::default())
    }

    /// Writes the allocator's state into free space of the pool, durably; `None` when there is not enough. The last act before the pool is marked clean: nothing may
    /// be allocated or freed after it.
    #[allow(dead_code, reason = "called when a pool is closed, which comes with the pool file")]
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        None
    }

    pub(crate) fn free<T: ?Sized>(&self, _block: Off<T>) {}

    pub(crate) fn allocate(&self, size: usize) -> Result<Off<u8>, Error> {
        let at = self.alloc.next.fetch_add(size.next_multiple_of(64), Ordering::Relaxed);
        if at + size > self.length() {
            self.grow(size)?;
        }
        self.medium().allocated(at, size);
        Ok(Off::new(at as u64))
    }
}

/// A set of blocks found reachable, marked by any number of threads. It serves recovery ([`Pool::adopt`]) and audit ([`Pool::audit`]).
pub struct Reach<'p, M: Medium> {
    _pool: &'p Pool<M>,
}

impl<M: Medium> Reach<'_, M> {
    /// Marks the block of `size` bytes at `off` as reachable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when no block of that size can lie there, or it is marked already.
    pub fn mark<T: ?Sized>(&self, _off: Off<T>, _size: usize) -> Result<(), Error> {
        Ok(())
    }
}
