//! The memory of a pool: a locked and mapped file, or memory of the process.

use super::header::{self, Header};
use super::{Mode, PoolOptions, check_options};
use crate::alloc::{HEADER_BYTES, extent_of};
use crate::journal::Journal;
use crate::map::{self, Mapping, Memory, Sharing};
use crate::{Error, Limit, files};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// The first size of a pool, and its smallest step, in bytes. Also the largest step where huge pages are asked for, unless a larger block is wanted: clearing
/// one takes 0.1 ms, or 2 to 5 where a virtual machine gets memory from its host on first touch, and everyone who needs space waits meanwhile.
const STEP_MIN: usize = 16 << 20;
/// The largest step of growth in bytes, unless a larger block is wanted. Space of a tmpfs without huge pages takes a microsecond per page to allocate.
const STEP_MAX: usize = 64 << 20;

/// By how many bytes a pool of `size` grows; a pool shrunk to its content grows by less.
pub(super) fn step_of(size: usize, is_cut: bool) -> usize {
    if is_cut { (size / 16).min(STEP_MAX) } else { size.clamp(STEP_MIN, STEP_MAX) }
}

/// How often the kernel's list of locks is read before a lock is assumed to have no owner.
const LOOKS_AT_LOCKS: usize = 8;

/// The memory of a pool.
pub(super) enum Backing {
    Memory(Arc<Memory>),
    File(Arc<Mapping>),
}

impl Backing {
    pub(super) fn base(&self) -> NonNull<u8> {
        match self {
            Self::Memory(memory) => memory.base(),
            Self::File(mapping) => mapping.base(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Memory(_) => Path::new("(memory)"),
            Self::File(mapping) => mapping.path(),
        }
    }

    /// Whether stores stay in this process.
    pub(super) fn is_private(&self) -> bool {
        matches!(self, Self::File(mapping) if mapping.sharing() == Sharing::Private)
    }

    /// Copies words past the mapping, if this is a file in the page cache, where both are the same memory.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn read_past(&self, at: u64, words: &mut [u64]) -> Result<bool, Error> {
        match self {
            Self::File(mapping) if mapping.sharing() == Sharing::PageCache && !mapping.is_detached() => {
                let read = mapping.file().read_exact_at(bytemuck::cast_slice_mut(words), at);
                read.map_err(|error| mapping.error("read", error)).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Bytes that exist and are within reach: the file of a pool that is only looked at may have grown since it was mapped.
    pub(super) fn length(&self) -> Result<u64, Error> {
        let length = match self {
            Self::Memory(_) => return Ok(self.size_max() as u64),
            Self::File(mapping) => mapping.length()?,
        };
        Ok(length.min(self.size_max() as u64))
    }

    /// Bytes that the file system has for users who may not use its reserve; the maximum where there is no file system, or it does not say.
    pub(super) fn available(&self) -> usize {
        let Self::File(mapping) = self else { return usize::MAX };
        map::available(mapping.file()).map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Bytes to which a pool may grow here.
    pub(super) fn size_max(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.size(),
            Self::File(mapping) => mapping.size(),
        }
    }

    /// Makes room for at least `wanted` more bytes, in whole slabs, after `size`; returns the new size. It takes a sensible amount: `step` bytes if there is
    /// room for them, and as little as possible if space is scarce.
    pub(super) fn make_room(&self, size: usize, wanted: usize, step: usize, slab_size: usize, size_max: usize) -> Result<usize, Error> {
        let no_space = |limit| Error::NoSpace { wanted, size, size_max, limit };
        let room = size_max.saturating_sub(size) & !(slab_size - 1);
        let least = wanted.checked_next_multiple_of(slab_size).filter(|least| *least <= room).ok_or_else(|| no_space(Limit::SizeMax))?;
        let step = match self {
            Self::File(mapping) if mapping.has_huge_pages() => step.min(STEP_MIN),
            _ => step,
        };
        let mut step = step.max(least).min(room) & !(slab_size - 1);
        let Self::File(mapping) = self else { return Ok(size + step) };
        loop {
            match mapping.allocate(size, size + step) {
                Ok(()) => return Ok(size + step),
                Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(mapping.error("allocate space for", error)),
                Err(_) if step == least => return Err(no_space(Limit::FileSystem)),
                Err(_) => step = (step / 2).max(least) & !(slab_size - 1),
            }
        }
    }

    /// Fills the holes that copying a file may have left in the header and in slabs in use: a store to a hole would need space, and a full disk would end the
    /// process. Returns whether other slabs may have holes: those that were given back to the file system do.
    ///
    /// A slab is in use if it begins like one. Some of these are not in use, after a crash, or because stored data looks like a header: then space that was
    /// given back is taken again, which has no other effect.
    pub(super) fn fill_holes(&self, size: usize, slab_size: usize) -> Result<bool, Error> {
        let Self::File(mapping) = self else { return Ok(false) };
        let metadata = mapping.file().metadata().map_err(|error| mapping.error("look at", error))?;
        let allocated = metadata.blocks().saturating_mul(512);
        // The count is of the whole file: space behind the pool may make up for a hole in the pool. So may space behind the end of the file, or for metadata
        // about its blocks; such hidden holes are few, or the file would take less space. So they are all filled, if that is possible. Where nothing was ever
        // given back, the usual case, the file has at least that much space, and nobody has to read all of a large file.
        let whole = metadata.len().next_multiple_of(crate::map::PAGE as u64);
        if allocated == whole || allocated >= metadata.len() && self.fill_all_holes(size)? {
            return Ok(false);
        }
        // Bounds of the part that needs space, as far as known: a span that no longer exists but whose header does must not hide what begins within it.
        let (mut from, mut end) = (0, slab_size);
        for at in (slab_size..size).step_by(slab_size) {
            // Not through the mapping: reading a hole there may take space.
            let mut first = [0; HEADER_BYTES];
            mapping.file().read_exact_at(&mut first, at as u64).map_err(|error| mapping.error("read", error))?;
            match u32::try_from(at / slab_size).ok().and_then(|slab| extent_of(slab, &first, slab_size)) {
                Some(count) if count as usize <= (size - at) / slab_size => end = end.max(at + count as usize * slab_size),
                _ if at < end => {}
                _ => {
                    self.allocate(from, end)?;
                    (from, end) = (at + slab_size, at + slab_size);
                }
            }
        }
        self.allocate(from, end)?;
        Ok(true)
    }

    /// Fills the holes in the first `size` bytes; returns whether there was space. Allocated but unwritten space does not change.
    fn fill_all_holes(&self, size: usize) -> Result<bool, Error> {
        let Self::File(mapping) = self else { return Ok(true) };
        let mut at = 0;
        while let Some(hole) = mapping.next_hole(at, size as u64)? {
            at = hole.end;
            match self.allocate(hole.start as usize, hole.end as usize) {
                Err(Error::NoSpace { .. }) => return Ok(false),
                filled => filled?,
            }
        }
        Ok(true)
    }

    /// Allocates space on the file system for the bytes `from..to`, if they have none.
    pub(super) fn allocate(&self, from: usize, to: usize) -> Result<(), Error> {
        match self {
            Self::File(mapping) if from < to => match map::allocate(mapping.file(), from, to) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    Err(Error::NoSpace { wanted: to - from, size: to, size_max: to, limit: Limit::FileSystem })
                }
                result => result.map_err(|error| mapping.error("allocate space for", error)),
            },
            _ => Ok(()),
        }
    }

    /// Has the system find memory for the first `size` bytes, which have space.
    pub(super) fn populate(&self, size: usize) -> Result<(), Error> {
        let populated = match self {
            Self::Memory(memory) => memory.populate(size),
            Self::File(mapping) => mapping.populate(size),
        };
        populated.map_err(|source| Error::Io { action: "find memory for", path: self.path().to_owned(), source })
    }

    /// Gives the space of the bytes `from..to` back to the file system; returns whether that is possible.
    pub(super) fn punch(&self, from: usize, to: usize) -> Result<bool, Error> {
        match self {
            Self::Memory(_) => Ok(false),
            Self::File(mapping) => map::punch(mapping.file(), from, to).map_err(|error| mapping.error("give back space of", error)),
        }
    }

    /// Cuts off the file behind a pool of `size` bytes. Only while nobody looks at anything there: it is gone afterwards. On failure, it is left to the next
    /// opening.
    pub(super) fn trim(&self, size: usize) {
        if let Self::File(mapping) = self
            && self.length().is_ok_and(|length| length > size as u64)
        {
            let _ = mapping.file().set_len(size as u64);
        }
    }

    /// After a failed creation, makes the file one in which a pool can be created, without a journal. On failure, the file contains that pool.
    pub(super) fn abandon(&self) {
        if let Self::File(mapping) = self
            && mapping.file().set_len(0).is_ok()
        {
            self.journal().iter().for_each(|journal| journal.remove());
        }
    }

    /// Whether somebody can find it when it is dropped, perhaps by another name than the one by which it was opened.
    pub(super) fn has_name(&self) -> bool {
        matches!(self, Self::File(mapping) if mapping.file().metadata().map_or(true, |metadata| metadata.nlink() > 0))
    }

    /// Whether no device has any of it: then no stale version of it exists.
    pub(super) fn is_in_memory(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::File(mapping) => mapping.is_tmpfs(),
        }
    }

    /// A creation that did not finish has stored nothing after the header, so if there is something, it is foreign: a disk image may well begin with zeroes.
    pub(super) fn expect_nothing_after_header(&self) -> Result<(), Error> {
        let Self::File(mapping) = self else { return Ok(()) };
        // Holes are zeroes, and may be too long to read.
        mapping.visit_data(size_of::<Header>() as u64..mapping.file_length()?, |_, bytes| match bytes.iter().any(|byte| *byte != 0) {
            true => Err(Error::NotAPool { path: mapping.path().to_owned(), magic: 0 }),
            false => Ok(()),
        })
    }

    /// The process that has locked the file, if the system tells; `None` if no process has. Only for a pool that is looked at, whose file is not locked:
    /// finding out takes a shared lock for a moment, and a process that opens the pool then tries again ([`lock`]). Salvaging keeps the lock, so that the pool
    /// does not change meanwhile.
    pub(super) fn user(&self, mode: Mode) -> Option<Option<u32>> {
        match self {
            Self::File(mapping) if mode != Mode::Read => user_of(mapping.file(), mode == Mode::Salvage),
            // It is locked.
            Self::File(_) | Self::Memory(_) => None,
        }
    }

    pub(super) fn synchronise(&self) -> Result<(), Error> {
        #[cfg(test)]
        synchronised::note("file", self)?;
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(mapping) => mapping.synchronise(),
        }
    }

    /// The journal, if the pool has one.
    pub(super) fn journal(&self) -> Option<&Journal> {
        match self {
            Self::Memory(_) => None,
            Self::File(mapping) => mapping.journal(),
        }
    }

    /// See [`Pool::checkpoint`](super::Pool::checkpoint).
    pub(super) fn checkpoint(&self) {
        if let Self::File(mapping) = self
            && let Some(journal) = mapping.journal()
        {
            journal.empty(mapping);
        }
    }

    /// Keeps all later stores from the file, for this reason: see [`Mapping::detach`].
    pub(super) fn detach(&self, why: &Error) {
        if let Self::File(mapping) = self {
            match mapping.journal() {
                Some(journal) => journal.give_up(mapping, why.to_string()),
                None => mapping.detach(),
            }
        }
    }

    /// Drops what the page cache has of the file and the device is assumed to have, so that it is read from the device.
    pub(super) fn drop_cached(&self) -> Result<(), Error> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(mapping) => mapping.drop_cached(),
        }
    }

    pub(super) fn synchronise_header(&self) -> Result<(), Error> {
        #[cfg(test)]
        synchronised::note("header", self)?;
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(mapping) => mapping.synchronise_head(size_of::<Header>()),
        }
    }

    /// Makes the file's name durable.
    pub(super) fn synchronise_directory(&self) -> Result<(), Error> {
        #[cfg(test)]
        synchronised::note("directory", self)?;
        let Self::File(mapping) = self else { return Ok(()) };
        files::sync_directory_of(mapping.path()).map_err(|error| mapping.error("synchronise the directory of", error))
    }

    /// A random UUID (version 4) for files; nil for memory, so that runs there can be repeated exactly.
    pub(super) fn new_uuid(&self) -> Result<u128, Error> {
        let Self::File(mapping) = self else { return Ok(0) };
        let bytes = files::random().map_err(|error| mapping.error("name", error))?;
        Ok(u128::from_be_bytes(bytes) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62)
    }
}

/// Opens, locks and maps the file, which then has room for a header.
pub(super) fn map_file(path: &Path, options: &PoolOptions, mode: Mode) -> Result<Mapping, Error> {
    check_options(options)?;
    let looks = mode.looks();
    // A file that cannot hold a pool is not even begun.
    let is_new = || std::fs::metadata(path).map_or(true, |metadata| metadata.is_file() && metadata.len() == 0);
    if mode.creates() && options.size_max < 2 * options.slab_size && is_new() {
        return Err(Error::BadOption {
            name: "size_max",
            value: options.size_max as u64,
            expected: "at least two slabs for a new pool, of 64 KiB unless chosen otherwise",
        });
    }
    let io_error = |action| move |source| Error::Io { action, path: path.to_owned(), source };
    let mut file = open_file(path, mode)?;
    if !looks || mode == Mode::Read {
        // While this waited for the lock, its owner may have replaced the file by another; nobody would find this one again (`everleaf compact`).
        for attempt in 0.. {
            lock(&file, looks).map_err(|error| match error {
                std::fs::TryLockError::WouldBlock => Error::Locked { path: path.to_owned(), owner: owner_of_lock(&file) },
                std::fs::TryLockError::Error(source) => io_error("lock")(source),
            })?;
            if files::has_name(&file, path).map_err(io_error("look at"))? {
                break;
            }
            if attempt == LOCK_ATTEMPTS {
                return Err(Error::Locked { path: path.to_owned(), owner: None });
            }
            file = open_file(path, mode)?;
        }
    }
    let metadata = file.metadata().map_err(io_error("look at"))?;
    if !metadata.is_file() {
        return Err(io_error("open")(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let length = metadata.len();
    if length == 0 && !mode.creates() {
        return Err(Error::Unfinished { path: path.to_owned() });
    }
    if length > 0 && length < size_of::<Header>() as u64 {
        return Err(too_short(path, &file, length));
    }
    if length == 0 {
        map::allocate(&file, 0, size_of::<Header>()).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => Error::NoSpace { wanted: size_of::<Header>(), size: 0, size_max: options.size_max, limit: Limit::FileSystem },
            _ => io_error("allocate space for")(error),
        })?;
    }
    let missing_max = if mode == Mode::Salvage { length.saturating_mul(MISSING_FACTOR).clamp(MISSING_MIN, MISSING_MAX) } else { 0 };
    let address_space = usize::try_from(length.min(crate::off::SIZE_MAX).max(missing_max)).unwrap_or(usize::MAX).max(options.size_max);
    let mut mapping = Mapping::new(file, path, address_space, looks, options.huge_pages)?;
    if mode == Mode::Salvage {
        mapping.continue_with_zeroes()?;
    }
    // On a disk, reading a hole takes no space. A process that uses the pool fills holes, and that must remain visible.
    if looks && mapping.is_tmpfs() && (mode == Mode::Read || user_of(mapping.file(), false).is_none()) {
        mapping.cover_holes()?;
    }
    Ok(mapping)
}

/// A file that ends too early is continued with zeroes to this multiple of its size, within these bounds. A forged size of the pool must not cost time and
/// memory beyond what the file itself takes.
const MISSING_FACTOR: u64 = 64;
const MISSING_MIN: u64 = 1 << 30;
const MISSING_MAX: u64 = 1 << 40;

fn open_file(path: &Path, mode: Mode) -> Result<File, Error> {
    let looks = mode.looks();
    let mut how = File::options();
    how.read(true).write(!looks).create(mode.creates()).truncate(false);
    // No effect on a regular file; opening a pipe would wait for its other end.
    how.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let is_absent = || std::fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    how.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if !looks && !is_absent() => Error::ReadOnly { path: path.to_owned() },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if !looks && mode != Mode::Open => {
            Error::Io { action: "create", path: path.to_owned(), source }
        }
        io::ErrorKind::NotFound if !mode.creates() => Error::NoPool { path: path.to_owned() },
        _ => Error::Io { action: "open", path: path.to_owned(), source },
    })
}

/// Locks the file for this process, or for all that only read it, or finds it locked. A killed process keeps its lock until the system has freed its memory,
/// and a child between fork and exec holds its parent's, so the lock is retried for a moment before it counts as taken.
pub(crate) fn lock(file: &File, is_shared: bool) -> Result<(), std::fs::TryLockError> {
    let attempt = || if is_shared { file.try_lock_shared() } else { file.try_lock() };
    for _ in 0..LOCK_ATTEMPTS {
        match attempt() {
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// Half a second in total.
const LOCK_ATTEMPTS: usize = 50;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// The error for a file without room for a header.
fn too_short(path: &Path, mut file: &File, length: u64) -> Error {
    let mut bytes = [0; 8];
    let start = &mut bytes[..length.min(8) as usize];
    if let Err(source) = io::Read::read_exact(&mut file, start) {
        return Error::Io { action: "read", path: path.to_owned(), source };
    }
    let magic = u64::from_le_bytes(bytes);
    if magic == header::MAGIC {
        Error::Headless { path: path.to_owned(), length, what: "it ends in its header" }
    } else {
        Error::NotAPool { path: path.to_owned(), magic }
    }
}

/// See [`Backing::user`].
fn user_of(file: &File, keeps_lock: bool) -> Option<Option<u32>> {
    match file.try_lock_shared() {
        Err(std::fs::TryLockError::WouldBlock) => Some(owner_of_lock(file)),
        // On a file system without locks, nobody has one.
        Err(std::fs::TryLockError::Error(_)) => None,
        Ok(()) => {
            if !keeps_lock {
                // It would end with the file in any case.
                let _ = file.unlock();
            }
            None
        }
    }
}

/// The process that holds the lock on `file`, from the kernel's list: `1: FLOCK  ADVISORY  WRITE 3061 fe:00:1835050 0 EOF`.
fn owner_of_lock(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let place = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    // The list is read in parts; between these, other locks that come and go may move a line out of sight.
    (0..LOOKS_AT_LOCKS).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let mut lines = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|line| line.len() > 5 && line[1] == "FLOCK" && line[5] == place)?;
        line[4].parse().ok()
    })
}

/// Records synchronisations, for tests: a test cannot see what gets to the device otherwise.
#[cfg(test)]
pub(super) mod synchronised {
    use super::{Backing, Error, FileExt, Header};
    use std::cell::{Cell, RefCell};

    thread_local! {
        static NOTES: RefCell<Vec<(&'static str, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
        static FAILS: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(super) fn note(what: &'static str, backing: &Backing) -> Result<(), Error> {
        let Backing::File(mapping) = backing else { return Ok(()) };
        let fails = FAILS.take();
        FAILS.set(fails.and_then(|others| others.checked_sub(1)));
        if fails == Some(0) {
            return Err(mapping.error("synchronise", std::io::Error::other("the device does not write")));
        }
        let mut header = vec![0; size_of::<Header>()];
        mapping.file().read_exact_at(&mut header, 0).expect("a pool has a header");
        NOTES.with_borrow_mut(|notes| notes.push((what, header)));
        Ok(())
    }

    /// Makes one attempt of this thread fail, after this many others, as if a device refused to write.
    pub(in crate::pool) fn fail_behind(others: usize) {
        FAILS.set(Some(others));
    }

    /// What this thread has synchronised since the last call, each with the file's header just before.
    pub(in crate::pool) fn take() -> Vec<(&'static str, Vec<u8>)> {
        NOTES.take()
    }
}
