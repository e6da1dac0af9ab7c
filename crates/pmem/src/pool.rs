//! Pools. PROVISIONAL: anonymous only.

use crate::{Durable, Error, Hardware, Medium, Off, Pm, Resident};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How to create or open a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Size in bytes to which the pool may grow.
    pub size_max: usize,
    /// Size of a slab in bytes; a power of two from 4 KiB to 64 KiB. Small slabs are for tests.
    pub slab_size: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { size_max: 1 << 30, slab_size: 64 << 10 }
    }
}

/// A named root of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// What kind of structure it is, as the structure itself numbers its kinds.
    pub kind: u64,
    /// Where its root block lies, in bytes.
    pub off: u64,
}

/// A pinned epoch: blocks retired meanwhile are not reused.
pub struct Guard {}

/// A pool.
pub struct Pool<M: Medium = Hardware> {
    pm: Pm<M>,
    _memory: Box<[Page]>,
    roots: Mutex<HashMap<String, Root>>,
    next: AtomicUsize,
}

#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);

impl<M: Medium> Deref for Pool<M> {
    type Target = Pm<M>;
    fn deref(&self) -> &Pm<M> {
        &self.pm
    }
}

impl<M: Medium> Pool<M> {
    /// A pool in anonymous memory, gone with the process: for tests and for measuring.
    pub fn anonymous(medium: M, options: PoolOptions) -> Result<Arc<Self>, Error> {
        let memory: Box<[Page]> = (0..options.size_max / 4096).map(|_| Page([const { AtomicU64::new(0) }; 512])).collect();
        let base = NonNull::new(memory.as_ptr().cast_mut().cast::<u8>()).expect("a box is not null");
        // SAFETY: the boxed pages live as long as the pool.
        let pm = unsafe { Pm::new(medium, base, memory.len() * 4096) };
        Ok(Arc::new(Self { pm, _memory: memory, roots: Mutex::default(), next: AtomicUsize::new(4096) }))
    }

    /// The root named `name`.
    pub fn root(&self, name: &str) -> Option<Root> {
        self.roots.lock().get(name).copied()
    }

    /// Publishes `block` as the root named `name`.
    pub fn link_root<T: Resident>(&self, name: &str, kind: u64, block: Durable<'_, T, M>) -> Result<Off<T>, Error> {
        let off = block.release();
        self.roots.lock().insert(name.to_owned(), Root { kind, off: off.bytes() });
        Ok(off)
    }

    /// Enters the current epoch: blocks retired from now on are not reused before the guard is dropped.
    pub fn pin(&self) -> Guard {
        Guard {}
    }

    /// Gives `block` back once every thread has left the current epoch. The caller has unlinked it durably.
    pub fn retire<T: ?Sized>(&self, _block: Off<T>, _guard: &Guard) {}

    /// Whether the pool was not shut down cleanly, so that nothing can be allocated before [`Pool::adopt`].
    pub fn needs_recovery(&self) -> bool {
        false
    }

    /// An empty set of reachable blocks.
    pub fn reach(&self) -> Reach<'_, M> {
        Reach { _pool: self }
    }

    /// Ends the recovery: what `reach` holds is allocated, everything else is free.
    pub fn adopt(&self, _reach: Reach<'_, M>) -> Result<(), Error> {
        Ok(())
    }

    pub(crate) fn free<T: ?Sized>(&self, _block: Off<T>) {}

    pub(crate) fn allocate(&self, size: usize, _align: usize) -> Result<Off<u8>, Error> {
        let at = self.next.fetch_add(size.next_multiple_of(64), Ordering::Relaxed);
        if at + size > self.length() {
            return Err(Error::NoSpace { wanted: size, size: self.length(), size_max: self.length() });
        }
        Ok(Off::new(at as u64))
    }
}

/// A set of blocks found reachable, marked by any number of threads. It serves recovery ([`Pool::adopt`]) and audit.
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
