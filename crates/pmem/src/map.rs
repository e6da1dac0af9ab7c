//! The memory under a pool: a file mapped into reserved address space, or memory of the process.
//!
//! ```text
//! base                    mapped                                       size_max
//! |-- mapped to the file --|-- reserved: no access, no memory, no file --|
//! ```
//!
//! Address space for all the pool may ever be is reserved at the start, and the file is mapped over it in steps, so growth never moves what is mapped: references into
//! the pool stay valid. Space on the file system is allocated before it is mapped, so a full disk is an error of the call that grows, and never a SIGBUS in the middle
//! of a store. (File systems that copy on write, such as btrfs, promise that for the first write to a page only.)

use crate::Error;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The page size that layouts rely on; the machine's own may be larger.
const PAGE: usize = 4096;
/// Where a mapping starts, so that huge pages fit.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory of this process, which outlives the pools made in it: for tests, for measuring, and for stores that need not last.
///
/// It is taken from the system when it is touched first, so a large one costs nothing.
pub struct Memory {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the memory is accessed as atomic words only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `size` bytes, rounded up to pages.
    ///
    /// # Errors
    /// [`Error::AddressSpace`] when the system does not give them.
    pub fn new(size: usize) -> Result<Arc<Self>, Error> {
        let refused = |source| Error::AddressSpace { wanted: size, source };
        let size = size.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
        Ok(Arc::new(Self { base: take(size).map_err(refused)?, size }))
    }

    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All of it as words, writable past every medium: for those who play crash, damage or the passing of time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `size` bytes from `base` live as long as `self`, are aligned to a page, were zeroed, and are accessed as 64-bit atomics only.
        unsafe { std::slice::from_raw_parts(self.base.cast().as_ptr(), self.size / size_of::<AtomicU64>()) }
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken with the same size in `new`; whoever uses the memory holds the `Arc`.
        unsafe { give_back(self.base, self.size) }
    }
}

#[cfg(not(miri))]
fn take(size: usize) -> io::Result<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a new mapping at an address of the system's choice touches no other memory.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
    if size >= HUGE_PAGE {
        // SAFETY: huge pages change the cost of memory, not its content. It is a hint, so a refusal does no harm.
        let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
    }
    Ok(NonNull::new(base.cast()).expect("the system maps nothing at address 0"))
}

#[cfg(not(miri))]
unsafe fn give_back(base: NonNull<u8>, size: usize) {
    // SAFETY: the caller says that `take` gave exactly this, and that nobody uses it any more.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), size) };
    debug_assert!(unmapped.is_ok());
}

#[cfg(miri)]
fn take(size: usize) -> io::Result<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(size, PAGE).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: the size is not 0 (`Memory::new`).
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory.into())
}

#[cfg(miri)]
unsafe fn give_back(base: NonNull<u8>, size: usize) {
    // SAFETY: the caller says that `take` gave exactly this, with this layout.
    unsafe { std::alloc::dealloc(base.as_ptr(), std::alloc::Layout::from_size_align(size, PAGE).expect("checked by `take`")) }
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Stores reach the page cache.
    PageCache,
    /// Stores reach persistent memory itself, and a write fault returns only when the file system can find the block again (`MAP_SYNC`).
    Direct,
    /// Stores stay in this process: for looking at a pool without touching it.
    Private,
}

/// A file mapped into reserved address space.
pub(crate) struct Mapping {
    /// Invariant: `reserved` bytes from here belong to this mapping until it is dropped; aligned to [`HUGE_PAGE`].
    base: NonNull<u8>,
    reserved: usize,
    mapped: Mutex<usize>,
    sharing: Sharing,
    file: File,
    path: PathBuf,
}

// SAFETY: the mapping only hands out its address; what lies there is accessed as atomic words.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapped length changes under a lock.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `size_max` bytes of address space for `file` and maps its first `size` bytes, which the file must have. It is mapped past the page cache if `file` lies
    /// on persistent memory, and privately if `private`.
    pub(crate) fn new(file: File, path: &Path, size: usize, size_max: usize, private: bool) -> Result<Self, Error> {
        let reserved = size_max.max(size).checked_next_multiple_of(HUGE_PAGE).unwrap_or(usize::MAX);
        let base = reserve(reserved).map_err(|source| Error::AddressSpace { wanted: reserved, source })?;
        let mut mapping = Self { base, reserved, mapped: Mutex::new(0), sharing: Sharing::Private, file, path: path.to_owned() };
        if private {
            mapping.map_to(size)?;
            return Ok(mapping);
        }
        mapping.sharing = Sharing::Direct;
        if mapping.map_to(size).is_err() {
            mapping.sharing = Sharing::PageCache;
            mapping.map_to(size)?;
        }
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Bytes of address space.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The device on which the file lies.
    pub(crate) fn device(&self) -> Result<u64, Error> {
        use std::os::unix::fs::MetadataExt;
        Ok(self.file.metadata().map_err(|error| self.error("look at", error))?.dev())
    }

    /// Maps the file as far as `to` bytes, which it must have.
    pub(crate) fn map_to(&self, to: usize) -> Result<(), Error> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
        let mut mapped = self.mapped.lock();
        assert!(to <= self.reserved, "{to} bytes of {} reserved", self.reserved);
        if to <= *mapped {
            return Ok(());
        }
        let flags = match self.sharing {
            Sharing::PageCache => MapFlags::SHARED,
            Sharing::Direct => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let (from, size) = (*mapped, to - *mapped);
        // SAFETY: `from..to` lies in the reservation.
        let address = unsafe { self.base.as_ptr().add(from) };
        // SAFETY: MAP_FIXED replaces pages of our own reservation only, beyond what was mapped before and thus beyond every reference handed out.
        unsafe { mmap(address.cast(), size, ProtFlags::READ | ProtFlags::WRITE, flags | MapFlags::FIXED, &self.file, from as u64) }
            .map_err(|error| self.error("map", error))?;
        // SAFETY: huge pages change the cost of memory, not its content. It is a hint, so a refusal does no harm.
        let _ = unsafe { madvise(address.cast(), size, Advice::LinuxHugepage) };
        *mapped = to;
        Ok(())
    }

    /// Waits until the device has the file's content, its length included.
    pub(crate) fn synchronise(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(|error| self.error("synchronise", error))
    }

    /// Like [`Mapping::synchronise`] for the first `size` bytes, which is all that changed.
    pub(crate) fn synchronise_head(&self, size: usize) -> Result<(), Error> {
        // SAFETY: msync reads and writes no memory of the process, whatever the addresses are.
        unsafe { rustix::mm::msync(self.base.as_ptr().cast(), size, rustix::mm::MsyncFlags::SYNC) }.map_err(|error| self.error("synchronise", error))
    }

    pub(crate) fn error(&self, action: &'static str, error: impl Into<io::Error>) -> Error {
        Error::Io { action, path: self.path.clone(), source: error.into() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: all of the reservation is ours, and whoever got references from it has been dropped before (`Pool`).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reserved) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Address space of `size` bytes, aligned to a huge page, without memory behind it.
fn reserve(size: usize) -> io::Result<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let padded = size.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address of the system's choice touches no other memory.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)? };
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    // SAFETY: `before` is less than the padding.
    let base = unsafe { start.byte_add(before) };
    // SAFETY: both ends lie in the mapping just made, outside of the part that is kept.
    unsafe {
        if before > 0 {
            munmap(start, before)?;
        }
        munmap(base.byte_add(size), HUGE_PAGE - before)?;
    }
    Ok(NonNull::new(base.cast()).expect("the system maps nothing at address 0"))
}

/// Gives the bytes `from..to` of `file` space on its file system.
///
/// # Errors
/// The kind is [`io::ErrorKind::StorageFull`], whatever bound was met: of the device, the quota, or the size of files.
pub(crate) fn allocate(file: &File, from: usize, to: usize) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    let result = loop {
        match fallocate(file, FallocateFlags::empty(), from as u64, (to - from) as u64) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => break fill_with_zeroes(file, from as u64, to as u64),
            result => break result.map_err(io::Error::from),
        }
    };
    result.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => io::Error::new(io::ErrorKind::StorageFull, error),
        _ => error,
    })
}

/// What `fallocate` does, on file systems that have no such call.
fn fill_with_zeroes(file: &File, mut from: u64, to: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let zeroes = vec![0; 1 << 20];
    while from < to {
        let size = zeroes.len().min((to - from) as usize);
        file.write_all_at(&zeroes[..size], from)?;
        from += size as u64;
    }
    Ok(())
}
