//! Pools: a file (or memory) that holds blocks, some of them found by name.
//!
//! ```text
//! 0          slab size                                      size
//! |  header  |  slabs: blocks from the allocator             |  not part of the pool yet
//! ```
//!
//! Life of a pool:
//! - **Create**: see `header.rs`; the magic is the commit point. What a crash leaves before that holds nothing and is created anew.
//! - **Open**: take the lock; read the superblock and check it; refuse a pool that may have been torn when the machine went down; mark it as not clean,
//!   durably, before anything else is stored (so that, whatever happens from here on, the next open knows that the allocator's snapshot is stale). The device
//!   may lack what the page cache shows of the header, because a process died, or because it has refused to write that: so the header is written again,
//!   whatever it says.
//! - **Grow**: see [`Pool::grow`]. **Shrink**: see [`Pool::shrink`].
//! - **Close**: the allocator writes its snapshot, everything is made durable, then the clean flag, by a change of superblock: the commit point. A crash before
//!   that leaves a pool that was not closed.
//!
//! For the next open, dropping a pool without closing it is the same as a crash.

mod backing;
mod header;
mod roots;
#[cfg(test)]
mod tests;

pub use roots::ROOT_NAME_SIZE_MAX;

use crate::alloc::{Allocator, Start};
use crate::epoch::Epochs;
use crate::journal::{Journal, Replay, put_aside, remove_journal};
use crate::map::{Mapping, Memory, Sharing};
use crate::medium::{Sysfs, boot_id};
use crate::{Domain, Error, Hardware, Medium, Off, Pm, Word, schedule};
pub(crate) use backing::lock;
use backing::{Backing, map_file, step_of};
pub(crate) use header::MAGIC;
use header::{ACCEPTED, Header, JOURNAL, SLAB_SIZE_MAX, SLAB_SIZE_MIN, SPANS, Superblock};
use parking_lot::Mutex;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// How to create or open a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Size in bytes to which the pool may grow. Only address space is reserved for it. Default 1 TiB; use less where address space is limited. It is not
    /// stored in the pool, but given at every opening; a pool that is larger already keeps its size.
    pub size_max: usize,
    /// Size of a slab in bytes; a power of two from 4 KiB to 64 KiB. Fixed at creation. Default 64 KiB; small slabs are for tests.
    pub slab_size: usize,
    /// The persistence domain. Default `None`: detected, except that a pool opened in [`Domain::Msync`] last is opened in it again. Set it to choose that
    /// domain, which is never chosen unasked, to leave it, and for measuring.
    pub domain: Option<Domain>,
    /// Opens a pool even if a failure of the machine may have torn it. Default false; true only to save what can be saved.
    pub accept_dirty_shutdown: bool,
    /// Grows the pool on pages of 2 MiB, where the file lies on a tmpfs and the system can (Linux 6.1): accesses miss the TLB less, and growth takes less time.
    /// Existing content keeps its pages, except for the last 2 MiB; content on such pages stays there, however the pool is opened later. Default true; false is
    /// for measuring. Persistent memory, a tmpfs mounted for huge pages, and memory of the process use them in any case.
    pub huge_pages: bool,
    /// Minimum size of the pool in bytes, no more than it may grow to, with memory behind all of it: until more is needed, nobody waits for growth, nor for the
    /// system to find and clear a page on first touch. Creating or opening the pool takes longer in return, some 2 microseconds for each page of 4 KiB on a
    /// tmpfs without huge pages. Default 0: pages are allocated as needed.
    pub prefault: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { size_max: 1 << 40, slab_size: SLAB_SIZE_MAX, domain: None, accept_dirty_shutdown: false, huge_pages: true, prefault: 0 }
    }
}

/// A named root of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Kind of structure, as numbered by the structure itself.
    pub kind: u64,
    /// Offset of its root block in bytes.
    pub off: u64,
}

/// A pool's description of itself. See [`Pool::info`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Distinguishes the pool from every other; nil for pools in memory.
    pub uuid: u128,
    /// Version of its format.
    pub version: u64,
    /// Feature bits that a library may ignore.
    pub features_compatible: u64,
    /// Feature bits that a library must know.
    pub features_incompatible: u64,
    /// Size in bytes.
    pub size: usize,
    /// Size in bytes to which it may grow.
    pub size_max: usize,
    /// Size of a slab in bytes.
    pub slab_size: usize,
    /// The persistence domain; `None` for pools in memory, which end with the process.
    pub domain: Option<Domain>,
    /// How the pool was found when it was opened.
    pub found: Found,
}

/// State of a pool when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It did not exist, and has been created.
    Absent,
    /// It had been closed.
    Clean,
    /// It had not been closed.
    Unclean,
    /// Another process has it open, and this one only looks at it.
    InUse {
        /// That process, if the system tells.
        owner: Option<u32>,
    },
}

/// A pool. Share it by [`Arc`].
pub struct Pool<M: Medium = Hardware> {
    pm: Pm<M>,
    pub(crate) alloc: Allocator,
    pub(crate) epochs: Epochs,
    /// The active superblock. Only a thread that holds the lock may change it.
    superblock: Mutex<Superblock>,
    /// Whether it was shrunk since it was opened. Changed with the superblock locked.
    is_cut: AtomicBool,
    /// Held while the root directory is read or changed.
    roots: Mutex<()>,
    state: AtomicU8,
    /// Whether there is a [`Claim`].
    is_claimed: AtomicBool,
    /// Why `state` is [`FAILED`].
    failure: OnceLock<String>,
    /// The id of the process that opened it.
    process: u32,
    slab_size: usize,
    size_max: usize,
    domain: Option<Domain>,
    found: Found,
    flaws: Vec<Error>,
    /// Invariant: the memory of `pm`. Fields are dropped in order, so `pm` goes first.
    backing: Backing,
}

/// How often [`Pool::inspect`] tries before it believes in damage: the changes that look like it are far apart.
const INSPECT_ATTEMPTS: usize = 3;

/// Writes are accepted.
const OPEN: u8 = 0;
/// The pool is only read.
const READ: u8 = 1;
/// [`Pool::close`] has begun.
const CLOSED: u8 = 2;
/// The file could not be synchronised.
const FAILED: u8 = 3;

/// How to use a file, or memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Create,
    Open,
    OpenOrCreate,
    Inspect,
    /// As [`Mode::Inspect`], even if the pool is damaged.
    Salvage,
    /// To be recovered in this process's own copy, while no other process writes it.
    Read,
}

impl Mode {
    /// Whether stores must not reach the file.
    fn looks(self) -> bool {
        matches!(self, Self::Inspect | Self::Salvage | Self::Read)
    }

    /// Whether there need not be a pool yet.
    fn creates(self) -> bool {
        matches!(self, Self::Create | Self::OpenOrCreate)
    }
}

/// Exclusive use of the pool's content, until it is dropped. See [`Pool::claim`].
pub struct Claim<M: Medium>(Arc<Pool<M>>);

impl<M: Medium> Drop for Claim<M> {
    fn drop(&mut self) {
        self.0.is_claimed.store(false, Ordering::Release);
    }
}

impl<M: Medium> Deref for Pool<M> {
    type Target = Pm<M>;
    fn deref(&self) -> &Pm<M> {
        &self.pm
    }
}

impl<M: Medium> Drop for Pool<M> {
    /// Cuts off the end of a shrunk pool when nobody can look at it any more and no thread is left that writes the file. A pool that was not closed is
    /// recovered at the next opening, but is not torn if the machine restarts before.
    fn drop(&mut self) {
        // A forked child has a single thread and an old copy of the superblock; the file is its parent's. Nor does a file belong to who only reads it.
        if self.process != std::process::id() || self.backing.is_private() {
            return;
        }
        self.backing.journal().iter().for_each(|journal| journal.quiesce());
        if *self.state.get_mut() == OPEN {
            self.let_machine_restart();
        }
        // If something was not written, that may be the superblock which says that the pool is shorter.
        if self.failure().is_none() {
            self.backing.trim(self.superblock.get_mut().size as usize);
        }
    }
}

impl Pool<Hardware> {
    /// Creates a pool in a new file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotAPool`] when the file holds something; [`Error::Locked`], [`Error::ReadOnly`], [`Error::NoSpace`],
    /// [`Error::AddressSpace`], [`Error::BadOption`], [`Error::Io`].
    pub fn create(path: &Path, options: &PoolOptions) -> Result<Arc<Self>, Error> {
        Self::in_file(path, options, Mode::Create, |hardware| hardware)
    }

    /// Opens the pool in the file at `path`. If [`Pool::needs_recovery`], nothing can be allocated before [`Pool::adopt`].
    ///
    /// # Errors
    /// Everything that can be wrong with a pool; see [`Error`].
    pub fn open(path: &Path, options: &PoolOptions) -> Result<Arc<Self>, Error> {
        Self::in_file(path, options, Mode::Open, |hardware| hardware)
    }

    /// Opens the pool, or creates it if there is none.
    ///
    /// # Errors
    /// As [`Pool::open`] and [`Pool::create`].
    pub fn open_or_create(path: &Path, options: &PoolOptions) -> Result<Arc<Self>, Error> {
        Self::in_file(path, options, Mode::OpenOrCreate, |hardware| hardware)
    }

    /// Looks at a pool that may be in use, or on a read-only file system: it does not stay locked, and nothing stored reaches the file. While another process
    /// writes the pool, the view may be inconsistent, which is reported like damage.
    ///
    /// # Errors
    /// Everything that can be wrong with a pool; see [`Error`].
    pub fn inspect(path: &Path) -> Result<Arc<Self>, Error> {
        let mut attempts = INSPECT_ATTEMPTS;
        loop {
            attempts -= 1;
            match Self::look(path, Mode::Inspect) {
                // The pool may have grown since it was mapped, or changed its superblock twice while that was read.
                Err(Error::Truncated { .. } | Error::Checksum { .. } | Error::Corrupt { .. }) if attempts > 0 => {}
                result => return result,
            }
        }
    }

    /// Looks at a pool to save its content, as [`Pool::inspect`] does, even if its header is damaged or its file has lost its end, which then reads as zeroes.
    /// [`Pool::flaws`] tells what is wrong. Meanwhile nobody can open it.
    ///
    /// # Errors
    /// Neither superblock is sound; the pool is of a later version; the system refuses something.
    pub fn inspect_damaged(path: &Path) -> Result<Arc<Self>, Error> {
        Self::look(path, Mode::Salvage)
    }

    fn look(path: &Path, mode: Mode) -> Result<Arc<Self>, Error> {
        Self::read(path, mode, true)
    }

    /// Opens the pool to read it, which takes no permission to write. Other processes may read it, too, but not write it meanwhile. What is stored, as recovery
    /// does, stays in this process's own copy of the pages; [`Pool::only_read`] refuses more of it. The pool cannot grow.
    ///
    /// # Errors
    /// As [`Pool::open`]; for `accept_dirty_shutdown`, see [`PoolOptions`].
    pub fn open_read_only(path: &Path, accept_dirty_shutdown: bool) -> Result<Arc<Self>, Error> {
        Self::read(path, Mode::Read, accept_dirty_shutdown)
    }

    fn read(path: &Path, mode: Mode, accept_dirty_shutdown: bool) -> Result<Arc<Self>, Error> {
        // Nothing here is to be durable.
        let options = PoolOptions { size_max: 0, accept_dirty_shutdown, domain: Some(Domain::PageCache), ..PoolOptions::default() };
        Self::in_file(path, &options, mode, |hardware| hardware)
    }

    /// Removes the journal, unless it is in use, of any pool that was in the file at `path` and is no longer wanted.
    pub fn drop_journal_at(path: &Path) {
        remove_journal(path, None);
    }

    /// Like [`Pool::create`], on the hardware that `equip` returns.
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub fn create_with(path: &Path, options: &PoolOptions, equip: impl FnOnce(Hardware) -> Hardware) -> Result<Arc<Self>, Error> {
        Self::in_file(path, options, Mode::Create, equip)
    }

    /// Like [`Pool::open`], on the hardware that `equip` returns.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_with(path: &Path, options: &PoolOptions, equip: impl FnOnce(Hardware) -> Hardware) -> Result<Arc<Self>, Error> {
        Self::in_file(path, options, Mode::Open, equip)
    }

    fn in_file(path: &Path, options: &PoolOptions, mode: Mode, equip: impl FnOnce(Hardware) -> Hardware) -> Result<Arc<Self>, Error> {
        let mapping = Arc::new(map_file(path, options, mode)?);
        let backing = Backing::File(Arc::clone(&mapping));
        let mut flaws = Vec::new();
        if mode == Mode::Salvage {
            mend(&mapping, &mut flaws)?;
        }
        if mode != Mode::Create {
            recover_journal(&backing, options, mode, &mut flaws)?;
        }
        let domain = match (options.domain, mapping.sharing()) {
            (Some(domain), _) => domain,
            // The user who asked for that relies on it, until another is asked for.
            (None, _) if left_in(&backing) == Some(Domain::Msync) => Domain::Msync,
            (None, Sharing::Direct) => Sysfs::of_this_machine().domain(mapping.device()?),
            (None, Sharing::PageCache | Sharing::Private) => Domain::PageCache,
        };
        let hardware = Hardware::new(domain).of_file(&mapping);
        let pool = Self::start(backing, equip(hardware), options, mode, Some(domain), flaws)?;
        if !mode.looks() && pool.backing.journal().is_none() {
            // Left by a process that died after closing the pool.
            remove_journal(path, Some(pool.info().uuid));
        }
        Ok(pool)
    }
}

impl<M: Medium> Pool<M> {
    /// A pool in memory of `options.size_max` bytes, which ends with the process.
    ///
    /// # Errors
    /// [`Error::AddressSpace`], [`Error::BadOption`].
    pub fn anonymous(medium: M, options: PoolOptions) -> Result<Arc<Self>, Error> {
        Self::create_in(Memory::new(options.size_max)?, medium, options)
    }

    /// Creates a pool in `memory`, which must be zeroed, or contain an interrupted creation.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotAPool`], [`Error::BadOption`].
    pub fn create_in(memory: Arc<Memory>, medium: M, options: PoolOptions) -> Result<Arc<Self>, Error> {
        Self::start(Backing::Memory(memory), medium, &options, Mode::Create, None, Vec::new())
    }

    /// Opens the pool in `memory`. Nothing else may use it. If [`Pool::needs_recovery`], nothing can be allocated before [`Pool::adopt`].
    ///
    /// # Errors
    /// Everything that can be wrong with a pool; see [`Error`].
    pub fn open_in(memory: Arc<Memory>, medium: M, options: PoolOptions) -> Result<Arc<Self>, Error> {
        Self::start(Backing::Memory(memory), medium, &options, Mode::Open, None, Vec::new())
    }

    fn start(backing: Backing, medium: M, options: &PoolOptions, mode: Mode, domain: Option<Domain>, mut flaws: Vec<Error>) -> Result<Arc<Self>, Error> {
        check_options(options)?;
        // SAFETY: every backing has a header's length at least, and lives as long as the pool; memory in use by a pool is accessed as atomics only.
        let pm = unsafe { Pm::new(medium, backing.base(), size_of::<Header>()) };
        let header = pm.head::<Header>();
        let size_max = options.size_max.min(backing.size_max());
        let (superblock, start, found, is_holey) = match (mode, header.read(backing.path(), backing.length()?)) {
            (Mode::Create, Ok(_)) => return Err(Error::Exists { path: backing.path().to_owned() }),
            (_, Ok(superblock)) => {
                let found = match if mode.looks() { backing.user(mode) } else { None } {
                    Some(owner) => Found::InUse { owner },
                    None if superblock.clean => Found::Clean,
                    None => Found::Unclean,
                };
                if found == Found::Unclean {
                    // By the domain in which it was left, whatever domain it is opened in.
                    match check_survival(&superblock, &identify(&superblock, &backing, superblock.left_in())?, backing.path()) {
                        Err(error) if !options.accept_dirty_shutdown => return Err(error),
                        survival => flaws.extend(survival.err()),
                    }
                }
                let (superblock, start, is_holey) = open(&pm, &backing, superblock, mode, domain, &flaws)?;
                let is_known = |flaw: &Error| matches!(flaw, Error::MachineFailed { .. } | Error::DirtyShutdown { .. } | Error::NoJournal { .. });
                if superblock.features_compatible & ACCEPTED != 0 && !flaws.iter().any(is_known) {
                    flaws.push(Error::Accepted { path: backing.path().to_owned() });
                }
                (superblock, start, found, is_holey)
            }
            (Mode::Create | Mode::OpenOrCreate, Err(Error::Unfinished { .. })) => {
                backing.expect_nothing_after_header()?;
                (create(&pm, &backing, options, size_max, domain)?, Start::Created, Found::Absent, false)
            }
            (_, Err(error)) => {
                if matches!(error, Error::Unfinished { .. }) {
                    // Something else may begin with zeroes, too.
                    backing.expect_nothing_after_header()?;
                }
                return Err(error);
            }
        };
        // SAFETY: as above; `Header::read` and `create` have seen to it that the backing has that much.
        unsafe { pm.resize(superblock.size as usize) };
        let pool = Self {
            alloc: Allocator::new(&pm, superblock.slab_size as usize, superblock.features_incompatible & SPANS != 0, start, is_holey),
            pm,
            epochs: Epochs::new(),
            slab_size: superblock.slab_size as usize,
            size_max: size_max.max(superblock.size as usize),
            superblock: Mutex::new(superblock),
            is_cut: AtomicBool::new(false),
            roots: Mutex::new(()),
            state: AtomicU8::new(if matches!(mode, Mode::Inspect | Mode::Salvage) { READ } else { OPEN }),
            is_claimed: AtomicBool::new(false),
            failure: OnceLock::new(),
            process: std::process::id(),
            domain,
            found,
            flaws,
            backing,
        };
        pool.durable()?;
        if !mode.looks()
            && let Err(error) = pool.prefault(options.prefault)
        {
            // An existing pool is closed again, and a new one is not created.
            match found {
                Found::Absent => {
                    // There is no file left to write to when it is dropped.
                    pool.state.store(CLOSED, Ordering::Release);
                    pool.backing.abandon();
                }
                _ => _ = pool.close(),
            }
            return Err(error);
        }
        Ok(Arc::new(pool))
    }

    /// Claims the content of the pool: one claim exists at a time.
    ///
    /// # Errors
    /// [`Error::Locked`], by this process.
    pub fn claim(self: &Arc<Self>) -> Result<Claim<M>, Error> {
        match self.is_claimed.swap(true, Ordering::Acquire) {
            false => Ok(Claim(self.clone())),
            true => Err(Error::Locked { path: self.path().to_owned(), owner: Some(self.process) }),
        }
    }

    /// Shuts the pool down cleanly. No operation on it may be under way or follow; those that allocate, link or commit are refused from here on, even if
    /// closing fails: the snapshot has replaced slabs that hold no block, and a second attempt might report success for pages that the first one lost.
    ///
    /// # Errors
    /// [`Error::Io`] and those of [`Pool::writable`]; then the pool counts as not closed, and the next open recovers it.
    pub fn close(&self) -> Result<(), Error> {
        self.make_room_for_snapshot();
        let mut superblock = schedule::lock(&self.superblock);
        self.writable()?;
        self.state.store(CLOSED, Ordering::Release);
        let snapshot = self.snapshot();
        self.backing.journal().iter().for_each(|journal| journal.quiesce());
        // Everything must be on the device before the flag that says so: in the page cache, the flag alone might outlive the machine.
        self.backing.synchronise().inspect_err(|_| condemn(&self.pm, &self.backing))?;
        self.durable()?;
        let closed = Superblock { sequence: superblock.next(), clean: true, snapshot, ..without_journal(&superblock) };
        commit_to_device(&self.pm, &self.backing, &closed)?;
        *superblock = closed;
        self.durable()?;
        self.drop_journal();
        Ok(())
    }

    /// Has the device take all of a pool that only the page cache keeps and nobody changes any more, and then notes that no restart of the machine matters to
    /// it. *Crash before the last step:* it is as if its process had been killed. On failure, the next opening is told.
    fn let_machine_restart(&mut self) {
        let superblock = self.superblock.get_mut();
        if superblock.left_in() != Some(Domain::PageCache) || self.backing.is_in_memory() || !self.backing.has_name() {
            return;
        }
        let kept = Superblock { sequence: superblock.next(), boot: 0, ..*superblock };
        if self.backing.synchronise().and_then(|()| commit_to_device(&self.pm, &self.backing, &kept)).is_err() {
            condemn(&self.pm, &self.backing);
        } else {
            *superblock = kept;
        }
    }

    /// Whether what has been fenced so far is durable.
    fn durable(&self) -> Result<(), Error> {
        match self.failure() {
            Some(why) => Err(Error::WriteBack { why: why.to_owned() }),
            None => Ok(()),
        }
    }

    /// The first failure to make something durable, of the medium or of the file.
    fn failure(&self) -> Option<&str> {
        self.medium().failure().or_else(|| self.failure.get().map(String::as_str))
    }

    /// Records that the file could not be synchronised: afterwards the kernel may report success for pages it has dropped, to this call and to every other.
    fn latch(&self, synchronised: Result<(), Error>) -> Result<(), Error> {
        synchronised.inspect_err(|error| {
            _ = self.failure.set(error.to_string());
            // First, nothing more may be acknowledged: what is stored from the next line on is lost.
            _ = self.state.compare_exchange(OPEN, FAILED, Ordering::SeqCst, Ordering::Relaxed);
            condemn(&self.pm, &self.backing);
            self.backing.detach(error);
        })
    }

    /// Whether the pool accepts writes. Ask before anything is allocated, linked or committed; and again after the last fence of an operation, before it is
    /// acknowledged, because only then is it known that the fence did its work.
    ///
    /// # Errors
    /// [`Error::WriteBack`] once the medium has failed to make something durable; [`Error::Closed`]; [`Error::OnlyRead`].
    #[inline]
    pub fn writable(&self) -> Result<(), Error> {
        if self.state.load(Ordering::Relaxed) == OPEN && self.medium().failure().is_none() { Ok(()) } else { Err(self.why_not_writable()) }
    }

    /// Refuses all writes from now on, to a pool that was opened to read it.
    ///
    /// # Panics
    /// If the pool was opened to be written.
    pub fn only_read(&self) {
        assert!(self.backing.is_private(), "a pool that is written");
        self.state.store(READ, Ordering::Release);
    }

    /// Whether the pool was opened only to be read.
    pub fn is_read_only(&self) -> bool {
        self.backing.is_private()
    }

    #[cold]
    fn why_not_writable(&self) -> Error {
        match (self.state.load(Ordering::Acquire), self.failure()) {
            (CLOSED, _) => Error::Closed,
            (OPEN | FAILED, Some(why)) => Error::WriteBack { why: why.to_owned() },
            _ => Error::OnlyRead { path: self.path().to_owned() },
        }
    }

    /// The file; for pools in memory a name in parentheses.
    pub fn path(&self) -> &Path {
        self.backing.path()
    }

    /// The pool's description of itself.
    pub fn info(&self) -> Info {
        let superblock = schedule::lock(&self.superblock);
        Info {
            uuid: superblock.uuid,
            version: superblock.version,
            features_compatible: superblock.features_compatible,
            features_incompatible: superblock.features_incompatible,
            size: superblock.size as usize,
            size_max: self.size_max,
            slab_size: self.slab_size,
            domain: self.domain,
            found: self.found,
        }
    }

    /// What would have prevented opening the pool, had an option not accepted it, now or earlier, or were the pool not only looked at. Such a pool may have
    /// lost something.
    pub fn flaws(&self) -> &[Error] {
        &self.flaws
    }

    /// The domain in which it was opened last; for a pool that is only looked at, by whoever used it.
    pub fn left_in(&self) -> Option<Domain> {
        schedule::lock(&self.superblock).left_in()
    }

    /// What acknowledged writes survive, as a phrase after "survive"; `None` if nothing. A file in the page cache survives only what the page cache does,
    /// whatever domain was chosen for measuring; and so does one in memory whose journal is there, too.
    pub fn survives(&self) -> Option<&'static str> {
        let domain = self.left_in()?;
        let is_in_memory = domain == Domain::Msync && self.backing.is_in_memory();
        Some(if is_in_memory { Domain::PageCache } else { domain }.survives())
    }

    /// Size of a slab in bytes; the first is the header.
    pub(crate) fn slab_size(&self) -> usize {
        self.slab_size
    }

    /// Size in bytes to which the pool may grow.
    pub fn size_max(&self) -> usize {
        self.size_max
    }

    /// Copies words from `at` on. For reading a few lines of many pages once, that is faster than touching the pages: each would be mapped with its neighbours,
    /// which takes some 4 microseconds for a file in the page cache.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with `what` if they do not lie in the pool; [`Error::Io`].
    pub fn glimpse(&self, at: u64, words: &mut [u64], what: &'static str) -> Result<(), Error> {
        let mapped = self.words(Off::<Word>::new(at), words.len()).ok_or_else(|| Error::corrupt(at, what))?;
        if !self.backing.read_past(at, words)? {
            words.iter_mut().zip(mapped).for_each(|(to, word)| *to = word.get());
        }
        Ok(())
    }

    fn header(&self) -> &Header {
        self.pm.head()
    }

    /// Removes the journal, if there is one, of a pool whose file nobody will find again.
    pub fn drop_journal(&self) {
        self.backing.journal().iter().for_each(|journal| journal.remove());
    }

    /// With a journal, writes the pool to the device; the journal then has no lines of blocks that were free before.
    pub(crate) fn checkpoint(&self) {
        self.backing.checkpoint();
    }

    /// The journal, if the pool has one.
    #[cfg(test)]
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.backing.journal()
    }

    /// Number of bytes that the file system can still provide.
    pub(crate) fn available(&self) -> usize {
        self.backing.available()
    }

    /// Allocates space on the file system for the bytes from `off` on, if they have none.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Io`].
    pub(crate) fn back(&self, off: usize, length: usize) -> Result<(), Error> {
        self.backing.allocate(off, off + length)
    }

    /// Gives the space of the unused bytes from `off` on back to the file system: they become zero. Returns whether that was possible.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn give_up(&self, off: usize, length: usize) -> Result<bool, Error> {
        self.backing.punch(off, off + length)
    }

    /// Makes the pool end at `size` bytes. Nobody uses what is behind.
    ///
    /// 1. Lower the limit of offsets. A reader that still looks behind it, before it finds out that it must try again, looks at mapped memory.
    /// 2. Commit a superblock with the new size: the commit point. It is on the device before the file can get shorter. A crash leaves a file longer than its
    ///    pool, which is harmless.
    ///
    /// The file keeps its length as long as it is mapped: no access to what was cut off may end the process ([`Backing::trim`]).
    ///
    /// # Errors
    /// Those of [`Pool::writable`], [`Error::Io`].
    pub(crate) fn shrink(&self, size: usize) -> Result<(), Error> {
        let mut superblock = schedule::lock(&self.superblock);
        self.writable()?;
        // SAFETY: the backing has more.
        unsafe { self.pm.resize(size) };
        let shrunk = Superblock { sequence: superblock.next(), size: size as u64, ..*superblock };
        self.latch(commit_to_device(&self.pm, &self.backing, &shrunk))?;
        self.durable()?;
        *superblock = shrunk;
        self.is_cut.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// See [`PoolOptions::prefault`].
    fn prefault(&self, size: usize) -> Result<(), Error> {
        let size = size.min(self.size_max) & !(self.slab_size - 1);
        if size == 0 {
            return Ok(());
        }
        if let missing @ 1.. = size.saturating_sub(self.length()) {
            self.grow(missing)?;
        }
        self.backing.populate(size)
    }

    /// Makes room for at least `wanted` more bytes, whole slabs, at the end of the pool.
    ///
    /// 1. Allocate space on the file system, and, where the domain outlives the machine, make the file's new length durable. A crash leaves a file longer than
    ///    its pool, which is harmless; the other order would leave a pool longer than its file. With a journal, the superblock is written to the device as at
    ///    opening, which writes the new length first: synchronising any part of a file includes it.
    /// 2. Commit a superblock with the new size: the commit point. Nothing is stored in the new space before.
    /// 3. Raise the limit of offsets, and let the allocator hand out the space.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the pool may not grow so far, or the file system is full; and those of [`Pool::writable`].
    pub(crate) fn grow(&self, wanted: usize) -> Result<(), Error> {
        let mut superblock = schedule::lock(&self.superblock);
        self.writable()?;
        let size = superblock.size as usize;
        let step = step_of(size, self.is_cut.load(Ordering::Relaxed));
        let grown_size = self.backing.make_room(size, wanted, step, self.slab_size, self.size_max)?;
        let grown = Superblock { sequence: superblock.next(), size: grown_size as u64, ..*superblock };
        if self.backing.journal().is_some() {
            self.latch(commit_to_device(&self.pm, &self.backing, &grown))?;
        } else {
            if self.domain.is_some_and(Domain::survives_power_failure) {
                self.latch(self.backing.synchronise())?;
            }
            self.header().commit(&self.pm, &grown);
        }
        *superblock = grown;
        schedule::drain();
        // SAFETY: the backing has that much now, and lives longer than `pm`.
        unsafe { self.pm.resize(grown_size) };
        self.alloc.extend(grown_size);
        self.durable()
    }
}

/// Opens the pool that `found` describes; returns its new superblock, what the allocator starts from, and whether free slabs may lack space.
fn open<M: Medium>(
    pm: &Pm<M>,
    backing: &Backing,
    found: Superblock,
    mode: Mode,
    domain: Option<Domain>,
    flaws: &[Error],
) -> Result<(Superblock, Start, bool), Error> {
    let start = match found.snapshot {
        Some(snapshot) if found.clean => Start::Clean(snapshot),
        _ => Start::Unclean,
    };
    if mode.looks() {
        return Ok((found, start, false));
    }
    let mut opened = Superblock { clean: false, snapshot: None, ..identify(&found, backing, domain)? };
    // For whoever opens it later, as it stays what it is.
    opened.features_compatible |= if flaws.is_empty() { 0 } else { ACCEPTED };
    // Space that a process took while growing the pool, before it died, has holes, and is not part of the pool.
    if backing.is_in_memory() {
        backing.trim(found.size as usize);
    }
    let is_holey = backing.fill_holes(found.size as usize, found.slab_size as usize)?;
    let survives = domain.is_some_and(Domain::survives_power_failure);
    // A pool that was closed has everything on the device.
    let synchronised = |done: Result<(), Error>| if found.clean { done } else { done.inspect_err(|_| condemn(pm, backing)) };
    if survives || found.boot == header::NO_BOOT {
        // A process that died may have left stores in the caches, where this one sees them. What is built on them must not outlive them.
        synchronised(backing.synchronise())?;
        // Data that the device has refused to write lies there as if it had been written; only the process that was told knows.
        if !found.clean {
            backing.drop_cached()?;
        }
    }
    // The device may have the previous superblock as the active one; the next write goes there, and it may say that the pool was closed. So this superblock is
    // written again first, which changes nothing if the device has it.
    let has_device = survives || !backing.is_in_memory();
    if has_device {
        synchronised(commit_to_device(pm, backing, &found))?;
    }
    // No superblock on the device names another journal any more.
    let mut opened = with_journal(&opened, backing, domain)?;
    if opened != found || has_device {
        opened.sequence = found.next();
        synchronised(commit_to_device(pm, backing, &opened))?;
    }
    // Not earlier: the device may have said that the pool is longer.
    backing.trim(opened.size as usize);
    Ok((opened, start, is_holey))
}

/// Makes `superblock` the active one on the device, too, whatever the domain. The switch must not get there before what it names: a device may tear a page
/// between its sectors, and in the page cache a fence does not order that.
#[track_caller]
fn commit_to_device<M: Medium>(pm: &Pm<M>, backing: &Backing, superblock: &Superblock) -> Result<(), Error> {
    let header = pm.head::<Header>();
    header.write(pm, superblock);
    backing.synchronise_header()?;
    header.switch(pm, superblock);
    backing.synchronise_header()
}

/// Has the next opening refuse a pool that relies on the page cache, because its device has refused to write: the system says so once, and then counts the
/// unwritten data as written. On the device, the header says that the pool is in use; the page cache's copy must say more.
fn condemn<M: Medium>(pm: &Pm<M>, backing: &Backing) {
    let header = pm.head::<Header>();
    let Ok(found) = backing.length().and_then(|length| header.read(backing.path(), length)) else { return };
    if !backing.is_in_memory() && !found.clean && found.left_in() == Some(Domain::PageCache) {
        header.commit(pm, &Superblock { sequence: found.next(), boot: header::NO_BOOT, ..found });
    }
}

/// Creates a pool; returns its first superblock. A failure leaves no pool.
fn create<M: Medium>(pm: &Pm<M>, backing: &Backing, options: &PoolOptions, size_max: usize, domain: Option<Domain>) -> Result<Superblock, Error> {
    begin(pm, backing, options, size_max, domain).inspect_err(|_| backing.abandon())
}

fn begin<M: Medium>(pm: &Pm<M>, backing: &Backing, options: &PoolOptions, size_max: usize, domain: Option<Domain>) -> Result<Superblock, Error> {
    let size = backing.make_room(0, 2 * options.slab_size, step_of(0, false), options.slab_size, size_max)?;
    backing.synchronise()?;
    let created = Superblock {
        sequence: 1,
        version: header::VERSION,
        features_compatible: 0,
        features_incompatible: SPANS,
        uuid: backing.new_uuid()?,
        size: size as u64,
        slab_size: options.slab_size as u64,
        clean: false,
        domain: 0,
        boot: 0,
        dirty_shutdowns: 0,
        snapshot: None,
    };
    let created = identify(&created, backing, domain)?;
    commit_to_device(pm, backing, &created)?;
    backing.synchronise_directory()?;
    // A journal left by a crash is known to be this pool's.
    let mut journaled = with_journal(&created, backing, domain)?;
    if journaled != created {
        journaled.sequence = created.next();
        commit_to_device(pm, backing, &journaled)?;
    }
    Ok(journaled)
}

/// `superblock` with the current domain, boot, and dirty-shutdown count.
fn identify(superblock: &Superblock, backing: &Backing, domain: Option<Domain>) -> Result<Superblock, Error> {
    let (Backing::File(mapping), Some(domain)) = (backing, domain) else { return Ok(*superblock) };
    let dirty_shutdowns = match domain {
        Domain::Adr | Domain::Eadr => Sysfs::of_this_machine().dirty_shutdowns(mapping.device()?).unwrap_or(0),
        Domain::PageCache | Domain::Msync => 0,
    };
    // A file treated as persistent memory, for measuring, that lies in the page cache after all does not outlive the machine.
    let domain = match domain {
        Domain::Adr | Domain::Eadr if mapping.sharing() != Sharing::Direct => Domain::PageCache,
        domain => domain,
    };
    Ok(Superblock { domain: domain.number(), boot: boot_id(), dirty_shutdowns, ..*superblock })
}

/// `superblock` of a pool that has a journal from here on, if its domain needs one.
fn with_journal(superblock: &Superblock, backing: &Backing, domain: Option<Domain>) -> Result<Superblock, Error> {
    let (Backing::File(mapping), Some(Domain::Msync)) = (backing, domain) else { return Ok(*superblock) };
    let journal = mapping.keep_journal(Journal::create(mapping.path(), mapping.file(), superblock.uuid)?);
    Ok(Superblock { features_incompatible: superblock.features_incompatible | JOURNAL, dirty_shutdowns: journal.id(), ..*superblock })
}

/// `superblock` of a pool that is complete without a journal.
fn without_journal(superblock: &Superblock) -> Superblock {
    let dirty_shutdowns = if superblock.features_incompatible & JOURNAL == 0 { superblock.dirty_shutdowns } else { 0 };
    Superblock { features_incompatible: superblock.features_incompatible & !JOURNAL, dirty_shutdowns, ..*superblock }
}

/// The domain in which the pool was opened last; `None` if there is none yet, or none that can be read.
fn left_in(backing: &Backing) -> Option<Domain> {
    header_at(backing.base()).head::<Header>().read(backing.path(), backing.length().ok()?).ok()?.left_in()
}

/// The header of a pool in the page cache, before there is a pool.
fn header_at(base: NonNull<u8>) -> Pm<Hardware> {
    // SAFETY: as in `Pool::start`: `base` is that of a backing, which the caller has.
    unsafe { Pm::new(Hardware::page_cache(), base, size_of::<Header>()) }
}

/// Makes the header of a damaged pool readable, in this process's own copy; see [`Header::mend`].
fn mend(mapping: &Mapping, flaws: &mut Vec<Error>) -> Result<(), Error> {
    let pm = header_at(mapping.base());
    flaws.extend(pm.head::<Header>().mend(&pm, mapping.path(), mapping.file_length()?, mapping.size() as u64)?);
    Ok(())
}

/// Completes a pool that was left with a journal, and removes the journal; see `journal.rs`. A mode that only looks sees the result, unless the owner is at
/// work.
fn recover_journal(backing: &Backing, options: &PoolOptions, mode: Mode, flaws: &mut Vec<Error>) -> Result<(), Error> {
    let Backing::File(mapping) = backing else { return Ok(()) };
    let looks = mode.looks();
    let pm = header_at(backing.base());
    let header = pm.head::<Header>();
    // Anything else that is wrong with it is reported by `start`.
    let length = backing.length()?;
    let Ok(found) = header.read(mapping.path(), length) else { return Ok(()) };
    let has_journal = found.features_incompatible & JOURNAL != 0;
    // The damaged superblock may have named the existing journal.
    let may_have_one = flaws.iter().any(|flaw| !matches!(flaw, Error::NotAPool { .. } | Error::Truncated { .. }));
    if !has_journal && !may_have_one || looks && backing.user(mode).is_some() {
        return Ok(());
    }
    if !looks {
        // What a process that died may have left in the page cache, and what of it the device has not taken: as in `open`.
        backing.synchronise()?;
        backing.drop_cached()?;
    }
    let replay = Replay::read(mapping.path(), found.uuid, has_journal.then_some(found.dirty_shutdowns));
    let is_given_up = has_journal && replay.is_err();
    match replay {
        Ok(replay) => {
            // The switch comes after what it names.
            let (sector, end) = (512, size_of::<Header>() as u64);
            replay.apply(mapping, sector..end)?;
            if !looks {
                backing.synchronise_header()?;
            }
            replay.apply(mapping, 0..sector)?;
            if mode == Mode::Salvage && header.read(mapping.path(), length).is_err() {
                mend(mapping, flaws)?;
            }
            replay.apply(mapping, end..header.read(mapping.path(), length)?.size)?;
        }
        Err(_) if !has_journal => {}
        Err(error) if options.accept_dirty_shutdown => flaws.push(error),
        Err(error) => return Err(error),
    }
    if looks {
        return Ok(());
    }
    backing.synchronise()?;
    if is_given_up {
        // Before the superblock forgets it: the remains would be in the way of a new one.
        put_aside(mapping.path())?;
    }
    let found = header.read(mapping.path(), length)?;
    if found.features_incompatible & JOURNAL != 0 {
        let accepted = if is_given_up { ACCEPTED } else { 0 };
        let features_compatible = found.features_compatible | accepted;
        commit_to_device(&pm, backing, &Superblock { sequence: found.next(), features_compatible, ..without_journal(&found) })?;
    }
    remove_journal(mapping.path(), Some(found.uuid));
    Ok(())
}

/// Whether the domain in which a pool was left without being closed has survived what happened since.
fn check_survival(found: &Superblock, now: &Superblock, path: &Path) -> Result<(), Error> {
    let was = |domain: Domain| found.domain == domain.number();
    let is_other = found.boot != 0 && now.boot != 0 && found.boot != now.boot;
    if was(Domain::PageCache) && (is_other || found.boot == header::NO_BOOT) {
        return Err(Error::MachineFailed { path: path.to_owned() });
    }
    if (was(Domain::Adr) || was(Domain::Eadr)) && found.dirty_shutdowns != now.dirty_shutdowns {
        return Err(Error::DirtyShutdown { path: path.to_owned(), before: found.dirty_shutdowns, after: now.dirty_shutdowns });
    }
    Ok(())
}

fn check_options(options: &PoolOptions) -> Result<(), Error> {
    if !options.slab_size.is_power_of_two() || !(SLAB_SIZE_MIN..=SLAB_SIZE_MAX).contains(&options.slab_size) {
        return Err(Error::BadOption { name: "slab_size", value: options.slab_size as u64, expected: "a power of two from 4096 to 65536" });
    }
    // Offsets would reach further, but a process has 2^47 addresses, and needs some of them for itself.
    if options.size_max > 1 << 46 {
        return Err(Error::BadOption { name: "size_max", value: options.size_max as u64, expected: "at most 2^46" });
    }
    Ok(())
}
