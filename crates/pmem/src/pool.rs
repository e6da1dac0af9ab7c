//! Pools. PROVISIONAL: anonymous only.

use crate::alloc::{Allocator, Start};
use crate::epoch::Epochs;
use crate::{Durable, Error, Hardware, Medium, Off, Pm, Resident};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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

/// A pool.
pub struct Pool<M: Medium = Hardware> {
    pm: Pm<M>,
    _memory: Box<[Page]>,
    roots: Mutex<HashMap<String, Root>>,
    pub(crate) alloc: Allocator,
    pub(crate) epochs: Epochs,
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
        let alloc = Allocator::new(&pm, options.slab_size, Start::Created);
        Ok(Arc::new(Self { pm, _memory: memory, roots: Mutex::default(), alloc, epochs: Epochs::new() }))
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

    /// Makes room for at least `wanted` more bytes.
    pub(crate) fn grow(&self, wanted: usize) -> Result<(), Error> {
        Err(Error::NoSpace { wanted, size: self.length(), size_max: self.length() })
    }
}
