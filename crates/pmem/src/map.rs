//! The memory under a pool: a mapped file, or memory of the process.
//!
//! ```text
//! base                         end of the file                          size_max
//! |-- the pool --|-- unused --|-- mapped, but the file ends before: no access --|
//! ```
//!
//! The file is mapped once, as if it had the largest size that the pool may ever have, and grows under its mapping. So growth moves nothing, references into
//! the pool stay valid, and the bounds check of every access ([`Pm`](crate::Pm)) keeps it from touching pages that the file does not have. Space on the file
//! system is allocated before the pool is told of it, so a full disk is an error of the call that grows, and never a SIGBUS in the middle of a store. (File
//! systems that copy on write, such as btrfs, guarantee that only for the first write to a page.)
//!
//! Pages are allocated when they are touched. Populating them in advance was measured on ext4 and tmpfs: it saved no more than a third of the 1 to 2.5
//! microseconds that the first store to a page takes, and made growth stall. Asking for huge pages is free, and cut the first store to a page after reopening
//! on ext4 from 500 to 80 ns. The mapping begins where a huge page may.
//!
//! A tmpfs has no huge pages unless it is mounted so, but moves content to huge pages when asked to (`MADV_COLLAPSE`, Linux 6.1). It is asked before the pages
//! exist, except for one of each 512, without which it refuses. That takes a quarter of the time of allocating 512 pages, and saves clearing each when it is
//! first touched, which takes longer still.

use crate::huge::HUGE_PAGE;
use crate::journal::Journal;
use crate::{Error, WORD, files};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The page size that layouts rely on; the machine's own may be larger.
pub(crate) const PAGE: usize = 4096;

/// Maximum number of holes of a file that are covered for a reader. Each takes two of the mappings that the system allows a process, usually 65,530.
const HOLES_COVERED_MAX: usize = if cfg!(test) { 2 } else { 1 << 14 };
/// Bytes of a file that are read at once.
const PIECE: usize = 1 << 20;

/// Zeroed memory of this process, which outlives the pools made in it: for tests, for measuring, and for stores that need not last.
///
/// The system provides it page by page on first touch, so a large one costs nothing.
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
    /// [`Error::AddressSpace`] when the system refuses.
    pub fn new(size: usize) -> Result<Arc<Self>, Error> {
        let refused = |source| Error::AddressSpace { wanted: size, source };
        let size = size.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
        Ok(Arc::new(Self { base: take(size).map_err(refused)?, size }))
    }

    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All of it as words, writable past every medium: for code that simulates crashes, damage or the passing of time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `size` bytes from `base` live as long as `self`, are aligned to a page, were zeroed, and are accessed as 64-bit atomics only.
        unsafe { std::slice::from_raw_parts(self.base.cast().as_ptr(), self.size / size_of::<AtomicU64>()) }
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Touches the first `size` bytes.
    pub(crate) fn populate(&self, size: usize) -> io::Result<()> {
        assert!(size <= self.size);
        populate(self.base, size, libc::MADV_POPULATE_WRITE)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken with the same size in `new`; whoever uses the memory holds the `Arc`.
        unsafe { give_back(self.base, self.size) }
    }
}

#[cfg(not(miri))]
pub(crate) fn take(size: usize) -> io::Result<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a new mapping at an address of the system's choice touches no other memory.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
    if size >= HUGE_PAGE {
        // SAFETY: huge pages change the cost of memory, not its content. It is a hint, so a refusal does no harm.
        let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
    }
    Ok(NonNull::new(base.cast()).expect("the system maps nothing at address 0"))
}

/// Whether the system supports what [`populate`] asks for.
#[cfg(test)]
pub(crate) fn can_populate() -> bool {
    let memory = Memory::new(PAGE).unwrap();
    // SAFETY: as there.
    !cfg!(miri) && unsafe { libc::madvise(memory.base.as_ptr().cast(), PAGE, libc::MADV_POPULATE_WRITE) } == 0
}

/// Has the system find pages for `size` bytes of a mapping, as if each were read or written. Systems that cannot (Linux before 5.14) do so on first access.
fn populate(base: NonNull<u8>, size: usize, how: i32) -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: whatever the addresses are, what is there keeps its content, and where nothing is the system says so.
    match unsafe { libc::madvise(base.as_ptr().cast(), size, how) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(not(miri))]
pub(crate) unsafe fn give_back(base: NonNull<u8>, size: usize) {
    // SAFETY: the caller says that `take` gave exactly this, and that nobody uses it any more.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), size) };
    debug_assert!(unmapped.is_ok());
}

#[cfg(miri)]
pub(crate) fn take(size: usize) -> io::Result<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(size, PAGE).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: the size is not 0 (`Memory::new`).
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory.into())
}

#[cfg(miri)]
pub(crate) unsafe fn give_back(base: NonNull<u8>, size: usize) {
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

/// A mapped file.
pub(crate) struct Mapping {
    /// Invariant: `size` bytes from here are mapped, to the file or to zeroes, until the mapping is dropped. Those that the file has may be accessed; if
    /// `is_continued`, all.
    base: NonNull<u8>,
    size: usize,
    /// Whether zeroes follow the end of the file, so that all of the mapping may be accessed.
    is_continued: bool,
    sharing: Sharing,
    file: File,
    path: PathBuf,
    /// Whether huge pages are requested where the file grows.
    huge_pages: bool,
    is_tmpfs: bool,
    detached: OnceLock<()>,
    journal: OnceLock<Journal>,
    /// The process that has it: a forked child does not.
    process: u32,
}

// SAFETY: the mapping only hands out its address; what lies there is accessed as atomic words.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file` as if it had `size` bytes: privately if `private`, otherwise past the page cache if the file lies on persistent memory.
    pub(crate) fn new(file: File, path: &Path, size: usize, private: bool, huge_pages: bool) -> Result<Self, Error> {
        let refused = |source| Error::AddressSpace { wanted: size, source };
        let size = size.checked_next_multiple_of(HUGE_PAGE).ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
        let sharings: &[Sharing] = if private { &[Sharing::Private] } else { &[Sharing::Direct, Sharing::PageCache] };
        let is_tmpfs = rustix::fs::fstatfs(&file).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC);
        let huge_pages = huge_pages && is_tmpfs;
        let mut error = io::Error::from(io::ErrorKind::Unsupported);
        for &sharing in sharings {
            match map(&file, size, sharing) {
                Ok(base) => {
                    let path = path.to_owned();
                    let (detached, journal) = (OnceLock::new(), OnceLock::new());
                    let process = std::process::id();
                    return Ok(Self { base, size, is_continued: false, sharing, file, path, huge_pages, is_tmpfs, detached, journal, process });
                }
                Err(refusal) => error = refusal,
            }
        }
        Err(refused(error))
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Bytes of address space.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Accessible bytes: those of the file, or all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn length(&self) -> Result<u64, Error> {
        if self.is_continued { Ok(self.size as u64) } else { self.file_length() }
    }

    /// Length of the file in bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn file_length(&self) -> Result<u64, Error> {
        Ok(self.file.metadata().map_err(|error| self.error("look at", error))?.len())
    }

    /// Maps zeroes where the file does not reach, for reading what is left of it; its last page ends in some in any case.
    ///
    /// # Errors
    /// [`Error::AddressSpace`], [`Error::Io`].
    pub(crate) fn continue_with_zeroes(&mut self) -> Result<(), Error> {
        let end = self.file_length()?.next_multiple_of(PAGE as u64).min(self.size as u64) as usize;
        self.put_zeroes(end..self.size)?;
        self.is_continued = true;
        Ok(())
    }

    /// Maps zeroes over the holes of the file: reading one allocates space of a tmpfs, and if there is none the system ends the process. Later writes of other
    /// processes there are not seen. If there are more holes than [`HOLES_COVERED_MAX`], or than the system maps, the rest of the file is copied.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::AddressSpace`].
    pub(crate) fn cover_holes(&mut self) -> Result<(), Error> {
        let (length, mut at) = (self.file_length()?.min(self.size as u64), 0);
        for _ in 0..HOLES_COVERED_MAX {
            let Some(hole) = self.next_hole(at, length)? else { return Ok(()) };
            // A tmpfs has holes of whole pages; the last one may include part of the page in which the file ends.
            let end = if hole.end == length { length.next_multiple_of(PAGE as u64) } else { hole.end };
            // A process has a limit of mappings: without this one, everything is as before.
            if self.put_zeroes(hole.start as usize..end as usize).is_err() {
                break;
            }
            at = hole.end;
        }
        if self.next_hole(at, length)?.is_some() { self.copy(at, length) } else { Ok(()) }
    }

    /// Puts a copy of the bytes `at..length`, where the file ends, in the place of what is mapped: reading a hole past the mapping takes no space. `at` is a
    /// multiple of a page.
    fn copy(&mut self, at: u64, length: u64) -> Result<(), Error> {
        self.put_zeroes(at as usize..length.next_multiple_of(PAGE as u64) as usize)?;
        self.visit_data(at..length, |at, bytes| {
            self.words(at as usize, bytes.len().div_ceil(WORD)).iter().zip(bytes.chunks(WORD)).for_each(|(to, from)| {
                let mut word = [0; WORD];
                word[..from.len()].copy_from_slice(from);
                to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            });
            Ok(())
        })
    }

    /// Reads what the file has in these bytes, without its holes: calls `visit` with the place of each piece, which is as long as possible. A file that becomes
    /// shorter meanwhile ends there.
    ///
    /// # Errors
    /// [`Error::Io`], and those of `visit`.
    pub(crate) fn visit_data(&self, within: Range<u64>, mut visit: impl FnMut(u64, &[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut bytes = vec![0; PIECE];
        let Range { start: mut at, end } = within;
        while at < end {
            let hole = self.next_hole(at, end)?.unwrap_or(end..end);
            while at < hole.start {
                let count = bytes.len().min((hole.start - at) as usize);
                match self.file.read_exact_at(&mut bytes[..count], at) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                    read => read.map_err(|error| self.error("read", error))?,
                }
                visit(at, &bytes[..count])?;
                at += count as u64;
            }
            at = hole.end;
        }
        Ok(())
    }

    /// The first hole of the file in the bytes `at..end`. Allocated space to which nothing was written may count as one; where the file system knows of no
    /// holes, there is none.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn next_hole(&self, at: u64, end: u64) -> Result<Option<Range<u64>>, Error> {
        use rustix::fs::{SeekFrom, seek};
        // At the end of every file there is a hole, and nothing else.
        let find = |from| match seek(&self.file, from) {
            Err(rustix::io::Errno::NXIO) => Ok(end),
            found => found.map(|found| found.min(end)).map_err(|error| self.error("look for holes in", error)),
        };
        let start = find(SeekFrom::Hole(at))?;
        Ok(if start < end { Some(start..find(SeekFrom::Data(start))?) } else { None })
    }

    /// Makes whole pages read as zero and be private to this process, whatever the file has there.
    fn put_zeroes(&mut self, bytes: Range<usize>) -> Result<(), Error> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        assert!(self.sharing == Sharing::Private, "a file that others see");
        assert!(bytes.end <= self.size);
        if bytes.is_empty() {
            return Ok(());
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: it takes the place of a part of our own mapping, to which nobody has a reference: it is not shared yet.
        let zeroes = unsafe { mmap_anonymous(self.base.as_ptr().add(bytes.start).cast(), bytes.len(), ProtFlags::READ | ProtFlags::WRITE, flags) };
        zeroes.map(drop).map_err(|error| Error::AddressSpace { wanted: bytes.len(), source: error.into() })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The journal that makes lines durable, from [`Mapping::keep_journal`] on.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// Keeps a journal from now on. The first one stays.
    pub(crate) fn keep_journal(&self, journal: Journal) -> &Journal {
        self.journal.get_or_init(|| journal)
    }

    /// `count` words from `at`, writable past every medium. The file must have them: otherwise the system ends the process.
    ///
    /// # Panics
    /// If they do not lie in the mapping, or `at` is not a multiple of a word.
    pub(crate) fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(WORD) && count.checked_mul(WORD).and_then(|size| at.checked_add(size)).is_some_and(|end| end <= self.size));
        // SAFETY: within our own mapping, which lives as long as `self`, and aligned, as that begins on a page; it is accessed as 64-bit atomics only.
        unsafe { std::slice::from_raw_parts(self.base.add(at).cast().as_ptr(), count) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The device on which the file lies.
    pub(crate) fn device(&self) -> Result<u64, Error> {
        Ok(self.file.metadata().map_err(|error| self.error("look at", error))?.dev())
    }

    /// Waits until the device has the file's content, its length included.
    pub(crate) fn synchronise(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(|error| self.error("synchronise", error))
    }

    /// Like [`Mapping::synchronise`] for the first `size` bytes, where all changes are.
    pub(crate) fn synchronise_head(&self, size: usize) -> Result<(), Error> {
        // SAFETY: msync reads and writes no memory of the process, whatever the addresses are.
        unsafe { rustix::mm::msync(self.base.as_ptr().cast(), size, rustix::mm::MsyncFlags::SYNC) }.map_err(|error| self.error("synchronise", error))
    }

    /// Drops what the page cache has of the file and the device is assumed to have, so that it is read from the device. Pages mapped by another process stay.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn drop_cached(&self) -> Result<(), Error> {
        assert!(self.sharing != Sharing::Private, "what was stored would be lost");
        // The page cache keeps mapped pages, and around each touched page more than that page is mapped.
        // SAFETY: within our own mapping, which stays; all that was stored is the file's, and found there again.
        let unmapped = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.size, rustix::mm::Advice::LinuxDontNeed) };
        // Pages that a process has locked in memory stay.
        let unmapped = unmapped.or_else(|error| if error == rustix::io::Errno::INVAL { Ok(()) } else { Err(error) });
        let dropped = unmapped.and_then(|()| rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed));
        dropped.map_err(|error| self.error("read anew", error))
    }

    /// Whether the file lies on a tmpfs.
    pub(crate) fn is_tmpfs(&self) -> bool {
        self.is_tmpfs
    }

    /// Whether it grows on huge pages, if the system has them: on a tmpfs, which would use none unasked.
    pub(crate) fn has_huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Gives the bytes `from..to` space on the file system, on huge pages if requested. On failure, the file keeps its length.
    ///
    /// # Errors
    /// Those of [`allocate`].
    pub(crate) fn allocate(&self, from: usize, to: usize) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if self.huge_pages {
            // The first may begin with what was there before. The last may end behind `to`, and waits until it is full.
            let (first, end) = (from & !(HUGE_PAGE - 1), to & !(HUGE_PAGE - 1));
            let has_room = |at: &usize| allocate(&self.file, at + HUGE_PAGE - PAGE, at + HUGE_PAGE).is_ok();
            let count = (first..end).step_by(HUGE_PAGE).take_while(has_room).count();
            // Failures do not matter: what then lacks space gets some below, or there is none.
            self.collapse(first, count);
        }
        let allocated = allocate(&self.file, from, to);
        if allocated.is_err() {
            let _ = self.file.set_len(length);
        }
        allocated
    }

    /// Moves the bytes of `count` huge pages from `at` on to huge pages, where some of each have space and the file has all of them. Pages in use in some way
    /// at this moment may be left out. Returns whether the system has done it for all. Users notice nothing but the time.
    pub(crate) fn collapse(&self, at: usize, count: usize) -> bool {
        assert!(at.is_multiple_of(HUGE_PAGE) && count.checked_mul(HUGE_PAGE).is_some_and(|size| size <= self.size - at));
        // SAFETY: it is within our own mapping, and changes the cost of memory, not its content.
        unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), count * HUGE_PAGE, libc::MADV_COLLAPSE) == 0 }
    }

    /// Touches the first `size` bytes, which have space; by reads alone where a device would have to write what seems modified.
    pub(crate) fn populate(&self, size: usize) -> io::Result<()> {
        assert!(size <= self.size);
        let is_written = self.is_tmpfs || self.sharing == Sharing::Direct;
        populate(self.base, size, if is_written { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ })
    }

    /// Keeps all later stores from the file, in private memory of this process; earlier stores may still get there. For when the device has refused to write
    /// something, so that nothing stored after it may be found. Only the first call has an effect: another copy would lack what was stored since.
    ///
    /// A page is a copy from the first store to it. Until then it is read from the page cache, and when that has dropped it, from the device, which may have an
    /// older one. Copying all pages at once might take more memory than there is.
    ///
    /// Ends the process if the system refuses.
    pub(crate) fn detach(&self) {
        self.detached.get_or_init(|| self.exchange_for_copy());
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.get().is_some()
    }

    fn exchange_for_copy(&self) {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // No more than the file has, which no longer grows: the system may count private mappings as memory, and the mapping is as large as a pool may get.
        let size = self.file_length().map_or(self.size, |length| length.next_multiple_of(PAGE as u64).clamp(PAGE as u64, self.size as u64) as usize);
        // SAFETY: it takes the place of our own mapping at once, and every byte in it is what the file has, which is what was stored there, atomically.
        let detached = unsafe { mmap(self.base.as_ptr().cast(), size, ProtFlags::READ | ProtFlags::WRITE, flags, &self.file, 0) };
        if let Err(error) = detached {
            eprintln!("{}: the device does not write, and the system does not let go of the file ({error}): the end", self.path.display());
            std::process::abort();
        }
    }

    pub(crate) fn error(&self, action: &'static str, error: impl Into<io::Error>) -> Error {
        Error::Io { action, path: self.path.clone(), source: error.into() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Something else may lie there.
            return;
        }
        // SAFETY: all of it is ours, and whoever got references from it has been dropped before (`Pool`).
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
        debug_assert!(unmapped.is_ok());
    }
}

fn map(file: &File, size: usize, sharing: Sharing) -> io::Result<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
    let flags = match sharing {
        Sharing::PageCache => MapFlags::SHARED,
        Sharing::Direct => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
    };
    let map_at = |place| {
        // SAFETY: a new mapping at an address of the system's choice touches no other memory. The address asked for is a hint.
        unsafe { mmap(place, size, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) }
    };
    let mut base = map_at(aligned_place(size))?;
    // Another thread was quicker: try again.
    if base.addr() % HUGE_PAGE != 0 {
        let other = map_at(aligned_place(size));
        if let Ok(other) = other {
            // SAFETY: it was just mapped, and nobody knows of it.
            let unmapped = unsafe { rustix::mm::munmap(base, size) };
            debug_assert!(unmapped.is_ok());
            base = other;
        }
    }
    // SAFETY: huge pages change the cost of memory, not its content. It is a hint, so a refusal does no harm.
    let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
    if sharing != Sharing::Private {
        // A forked child has copies of the latches and of the allocator's state, but would store to the same file. So it does not get the mapping: if it
        // touches the pool, it is ended by a signal, or finds memory of its own there; the file stays as it is.
        // SAFETY: this changes nothing in this process. Only unsafe code can make a child, and must not use the pool there.
        let _ = unsafe { madvise(base, size, Advice::LinuxDontFork) };
    }
    Ok(NonNull::new(base.cast()).expect("the system maps nothing at address 0"))
}

/// Where a mapping of `size` bytes would begin on a huge page; null if it need not be tried. It is free, unless another thread has taken it meanwhile.
fn aligned_place(size: usize) -> *mut std::ffi::c_void {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let Some(larger) = size.checked_add(HUGE_PAGE) else { return std::ptr::null_mut() };
    // SAFETY: a new mapping at an address of the system's choice touches no other memory.
    let Ok(place) = (unsafe { mmap_anonymous(std::ptr::null_mut(), larger, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) }) else {
        return std::ptr::null_mut();
    };
    // SAFETY: it was just mapped, and nobody knows of it.
    let unmapped = unsafe { munmap(place, larger) };
    debug_assert!(unmapped.is_ok());
    place.map_addr(|address| address.next_multiple_of(HUGE_PAGE))
}

/// Gives the bytes `from..to` of `file` space on its file system.
///
/// # Errors
/// The kind is [`io::ErrorKind::StorageFull`], whatever limit was met: of the device, the quota, the size of files, or the memory for a tmpfs.
pub(crate) fn allocate(file: &File, from: usize, to: usize) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    let (mut at, mut piece) = (from, to - from);
    let result = loop {
        let size = piece.min(to - at);
        match fallocate(file, FallocateFlags::empty(), at as u64, size as u64) {
            // On a signal, a tmpfs takes all of it back: no large piece might ever be finished before the next signal.
            Err(Errno::INTR) => piece = (size / 2).max(HUGE_PAGE),
            Err(Errno::OPNOTSUPP) => break extend_with_zeroes(file, at as u64, to as u64),
            Ok(()) if at + size < to => at += size,
            result => break result.map_err(io::Error::from),
        }
    };
    result.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM) => io::Error::new(io::ErrorKind::StorageFull, error),
        _ => error,
    })
}

/// Has the kernel write what has changed of a file, `piece` bytes at a time, so that other accesses to the device wait for no more than one piece. The device
/// may still have it in a cache, and may not know where it lies. A failure here may be reported to this file description only; the others are told when they
/// synchronise the file.
pub(crate) fn write_back(file: &File, piece: u64) {
    use std::os::fd::AsRawFd;
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    for at in (0..length).step_by(piece as usize) {
        // SAFETY: the call touches no memory of the process.
        unsafe { libc::sync_file_range(file.as_raw_fd(), at as i64, piece as i64, flags) };
    }
}

/// Gives the space of the bytes `from..to` of `file` back to its file system: they read as zero from then on. Returns whether the file system can do that.
pub(crate) fn punch(file: &File, from: usize, to: usize) -> io::Result<bool> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    loop {
        match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from as u64, (to - from) as u64) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => return Ok(false),
            result => return Ok(result.map(|()| true)?),
        }
    }
}

/// Bytes that the file system of `file` has for users who may not use its reserve; `None` if it does not say, as a tmpfs without a limit.
pub(crate) fn available(file: &File) -> Option<u64> {
    let found = rustix::fs::fstatvfs(file).ok()?;
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// What `fallocate` does, as far as possible on file systems that lack it: existing content of the file stays as it is.
fn extend_with_zeroes(file: &File, from: u64, to: u64) -> io::Result<()> {
    files::write_zeroes(file, from.max(file.metadata()?.len()), to)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Regression: behind so many holes, readers took space of a tmpfs, or were ended where it had none.
    #[test]
    fn a_file_with_more_holes_than_are_covered_is_read_without_taking_space() {
        let shared = Path::new("/dev/shm");
        let directory = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.unwrap();
        let path = directory.path().join("file");
        let file = File::create_new(&path).unwrap();
        // Some of the data behind the holes that are covered is longer than a piece, and the end is within a word.
        let parts = [(1, 9), (3, 4096), (5, 4096), (8, 3 * PIECE / 2), (500, 4096), (600, 4093)];
        let length = 600 * PAGE + 4093;
        let mut expected = vec![0; length.next_multiple_of(PAGE)];
        for (page, size) in parts {
            let bytes: Vec<u8> = (0..size).map(|n| (n % 251) as u8 + 1).collect();
            file.write_all_at(&bytes, (page * PAGE) as u64).unwrap();
            expected[page * PAGE..page * PAGE + size].copy_from_slice(&bytes);
        }
        let space = || std::fs::metadata(&path).unwrap().blocks();
        let before = space();
        let mut mapping = Mapping::new(File::open(&path).unwrap(), &path, length, true, false).unwrap();
        mapping.cover_holes().unwrap();
        let words = mapping.words(0, expected.len() / WORD);
        assert!(words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).eq(expected.iter().copied()));
        assert_eq!(space(), before);
    }
}
