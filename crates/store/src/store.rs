//! A store: namespaces in one pool, and what they share.

use crate::block::Header;
use crate::clock::{Clock, Stamp, Tick};
use crate::draft::Drafts;
use crate::error::check_namespace_name;
use crate::garbage::{Garbage, STEPS_PER_CLEAR};
use crate::house::Housekeeper;
use crate::recovery::{self, Found};
use crate::room::Gaps;
use crate::slots::Slots;
use crate::snapshot::Snapshots;
use crate::stripes::Stripes;
use crate::sweep::Sweeper;
use crate::version::Moment;
use crate::wall::{Times, Wall};
use crate::{Error, Namespace};
use arc_swap::{ArcSwap, ArcSwapOption, Guard as Loaded};
use everleaf_index::record::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
use everleaf_index::{Counter, Entry, Listed, OrderedIndex, Write, registry};
use everleaf_pmem::schedule::{self, atomic::AtomicU64 as Watched};
use everleaf_pmem::{Claim, Domain, Guard, Hardware, Medium, Off, Pool, PoolOptions, Word};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the index for new namespaces. Default "ever". Existing namespaces keep theirs.
    pub index: String,
    /// Size in bytes to which the pool may grow. Default 1 TiB; set it where the pool must leave room for others. The pool does not remember it: give it every
    /// time. See [`PoolOptions::size_max`].
    pub size_max: usize,
    /// The persistence domain. Default `None`: it is detected, and a pool last opened in [`Domain::Msync`] is opened in it again. Set [`Domain::Msync`] for a
    /// pool on a disk whose writes must survive a power failure: it is never chosen automatically. Set another domain to leave it, or to measure.
    pub domain: Option<Domain>,
    /// Opens a pool even if a machine failure may have torn it, or its journal is missing. Default false; set true only to save what can be saved.
    pub accept_dirty_shutdown: bool,
    /// Minimum size of the pool in bytes, with memory behind all of it: see [`PoolOptions::prefault`]. Default 0.
    pub prefault: usize,
    /// Number of threads that rebuild the store after a crash. Default: one per processor.
    pub recovery_threads: usize,
    /// Whether a thread of the store removes expired keys, and reclaims space left by snapshots and clears, ten times a second until the store is closed or
    /// dropped. Default false: each write reclaims a little, and expired keys go only when [`Store::keep_house`] is called, or when a write has no room. Set it
    /// in programs that write seldom, or have keys that expire, and do not call that themselves, as the server does.
    pub keeps_house: bool,
    /// The clocks by which keys expire. Default: those of the system; others only for tests. Two consecutive readings must agree now and then: a snapshot waits
    /// for that.
    pub times: fn() -> Times,
}

impl Options {
    /// The pool's part of these options.
    pub fn pool(&self) -> PoolOptions {
        let Self { size_max, domain, accept_dirty_shutdown, prefault, .. } = *self;
        PoolOptions { size_max, domain, accept_dirty_shutdown, prefault, ..PoolOptions::default() }
    }
}

/// How many the process may use; finding out takes the system tens of microseconds.
static PROCESSORS: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

impl Default for Options {
    fn default() -> Self {
        Self {
            index: "ever".into(),
            size_max: 1 << 40,
            domain: None,
            accept_dirty_shutdown: false,
            prefault: 0,
            recovery_threads: *PROCESSORS,
            keeps_house: false,
            times: Times::of_system,
        }
    }
}

/// Retries once if there was no room: an index may be pinned while it works, and then cannot use the room that retired blocks make. The caller is not pinned.
pub(crate) fn again<M: Medium, T>(pool: &Pool<M>, mut act: impl FnMut() -> Result<T, everleaf_index::Error>) -> Result<T, Error> {
    match act().map_err(Error::from) {
        Err(error) if error.is_no_space() => {
            pool.collect();
            Ok(act()?)
        }
        outcome => outcome,
    }
}

/// A store: namespaces of keys and values in one pool.
pub struct Store<M: Medium = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) housekeeper: Option<Housekeeper>,
}

impl<M: Medium> fmt::Debug for Store<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shared, housekeeper } = self;
        f.debug_struct("Store").field("path", &shared.pool.path()).field("keeps_house", &housekeeper.is_some()).finish_non_exhaustive()
    }
}

/// A store that [`Store::close`] could not close, and the reason.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Unclosed<M: Medium = Hardware> {
    /// The store.
    pub store: Store<M>,
    /// Why it was not closed.
    pub error: Error,
}

impl<M: Medium> fmt::Debug for Unclosed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unclosed").field("store", &self.store).field("error", &self.error).finish()
    }
}

impl<M: Medium> From<Unclosed<M>> for Error {
    fn from(unclosed: Unclosed<M>) -> Self {
        unclosed.error
    }
}

/// What a store and the handles of its namespaces share.
pub(crate) struct Shared<M: Medium> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) header: Header<M>,
    pub(crate) clock: Clock,
    pub(crate) stripes: Stripes,
    pub(crate) slots: Slots,
    pub(crate) snapshots: Snapshots,
    pub(crate) garbage: Garbage,
    pub(crate) drafts: Drafts,
    pub(crate) wall: Wall,
    pub(crate) sweeper: Sweeper,
    /// Whether any key has been set to expire in this life, or may have been before. Set before such a key can be seen.
    pub(crate) may_expire: AtomicBool,
    pub(crate) spaces: RwLock<BTreeMap<String, Arc<Space>>>,
    /// Held while a namespace is loaded: before all other locks.
    pub(crate) loading: Mutex<()>,
    /// Held while the store is compacted or verified: after `loading`, before all other locks.
    pub(crate) compacting: Mutex<()>,
    pub(crate) gaps: Gaps,
    /// Held while an index is created: after the stripes, if any.
    creating: Mutex<()>,
    index_name: String,
    next_space: AtomicU32,
    halted: OnceLock<String>,
    /// Keeps other stores off the pool until all else is dropped.
    _claim: Claim<M>,
}

/// A namespace of an open store.
pub(crate) struct Space {
    pub(crate) name: String,
    /// Number within this open store, to tell the same key in two namespaces apart.
    pub(crate) number: u32,
    /// `None` until the first write, and after a clear. Set only with a stripe held, removed only with all of them.
    pub(crate) index: ArcSwapOption<Index>,
    /// The kind of its index, once it has had one or one was chosen: it stays while the store is open.
    kind: OnceLock<&'static str>,
    /// Indexes that were cleared but that snapshots still see, in order. Added to before the index is removed.
    former: ArcSwap<Vec<Arc<Former>>>,
    /// The timestamp of the last clear or bulk load in this life, 0 if there was none. Changed with all stripes held.
    pub(crate) turned: Watched,
    /// Whether a bulk load is making its index. Set while no index is created.
    pub(crate) is_loading: AtomicBool,
    /// See [`Space::count`]. It is large, so it is created only when there is something to count.
    counter: OnceLock<Box<Counter>>,
    /// Number of writes of keys that expire, plus 1 if the pool had some, or may have; 0 again when a sweep finds none.
    pub(crate) expiring: AtomicU64,
    /// How many of these stand for no key that expires: what `expiring` was when the last round of sweeps began, less the keys that its pass found.
    pub(crate) uncounted: AtomicI64,
}

/// An index that was cleared.
pub(crate) struct Former {
    pub(crate) index: Arc<Index>,
    /// When it was cleared.
    ended: Stamp,
}

impl Space {
    /// Number of keys, including expired ones that are still there.
    pub(crate) fn count(&self) -> u64 {
        self.counter.get().map_or(0, |counter| counter.get())
    }

    /// Counts the keys. Changed with the key's stripe held, or all of them.
    #[inline]
    pub(crate) fn counter(&self) -> &Counter {
        self.counter.get_or_init(Box::default)
    }

    /// The index that readers see now. The caller is pinned or holds a stripe.
    #[inline]
    pub(crate) fn current(&self, clock: &Clock) -> Loaded<Option<Arc<Index>>> {
        let index = self.index.load();
        // What is seen, or found missing, must be so for later snapshots.
        match index.as_deref() {
            Some(index) => _ = index.begun.get(clock),
            None => self.see_cleared(clock),
        }
        index
    }

    #[cold]
    fn see_cleared(&self, clock: &Clock) {
        if let Some(last) = self.former.load().last() {
            last.ended.get(clock);
        }
    }

    /// The index as of `moment`, that of a snapshot that the caller holds. The caller is pinned.
    #[inline]
    pub(crate) fn index_at(&self, moment: Moment, clock: &Clock) -> Loaded<Option<Arc<Index>>> {
        // In this order: an index that is removed after the first look is seen by the second. While every thread finds it, its end has no timestamp: only a
        // thread that has found it gone may draw that. An index created since has nothing to show, unless it was loaded: then its own stamp says so.
        let index = self.index.load();
        // Nothing was cleared or loaded since, so nothing is hidden. A thread that creates an index after a clear has seen when the clear was.
        if let Some(current) = index.as_deref()
            && self.turned.load(Ordering::Acquire) < moment.at
            && current.begun.get(clock) < moment.at
        {
            return index;
        }
        let former = self.former.load();
        let is_current = |former: &Former| index.as_ref().is_some_and(|index| Arc::ptr_eq(index, &former.index));
        let found = match former.iter().find(|former| is_current(former) || former.ended.get(clock) >= moment.at) {
            Some(former) => Loaded::from_inner(Some(former.index.clone())),
            None => index,
        };
        match found.as_deref().is_none_or(|index| index.begun.get(clock) < moment.at) {
            true => found,
            false => Loaded::from_inner(None),
        }
    }

    /// The indexes that were cleared between two moments of snapshots that the caller holds, and when. The caller is pinned.
    pub(crate) fn cleared_between(&self, from: u64, to: u64, clock: &Clock) -> Vec<(Arc<Index>, u64)> {
        let former = self.former.load();
        former.iter().map(|former| (former.index.clone(), former.ended.get(clock))).filter(|(_, ended)| (from..to).contains(ended)).collect()
    }

    /// No snapshot wants to see `former` any more.
    pub(crate) fn forget(&self, former: &Arc<Former>) {
        schedule::drain();
        self.former.rcu(|all| all.iter().filter(|other| !Arc::ptr_eq(other, former)).cloned().collect::<Vec<_>>());
    }
}

/// The index of a namespace.
pub(crate) struct Index {
    pub(crate) tree: Box<dyn OrderedIndex<[u8]>>,
    pub(crate) kind: &'static str,
    /// Offset of its root block, which names it in the logs of batches.
    pub(crate) root: u64,
    /// When its first records appeared, if they were loaded.
    pub(crate) begun: Stamp,
}

impl Store<Hardware> {
    /// Opens the store in the pool file at `path`. Creates the file if there is none, and recovers the store if it was not closed.
    ///
    /// # Errors
    /// See [`Error::kind`] and [`Store::on`].
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        // Checked before the file is created.
        find_entry::<Hardware>(&options.index)?;
        Self::in_file(Pool::open_or_create(path.as_ref(), &options.pool())?, &options)
    }

    /// Opens the store in the existing pool file at `path`, and recovers it if it was not closed.
    ///
    /// # Errors
    /// See [`Error::kind`] and [`Store::on`]; kind [`ErrorKind::NoPool`](crate::ErrorKind::NoPool) if there is none.
    pub fn open_existing(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        Self::in_file(Pool::open(path.as_ref(), &options.pool())?, &options)
    }

    /// Opens the store in the existing pool file at `path` to read it, which takes no permission to write, and changes nothing: a store that was not closed is
    /// recovered in memory only, each time. Any number of processes may read a pool so, but none may have it open to write meanwhile. Writes are refused.
    ///
    /// Of the options, those about recovery and time count. [`Store::fill`] says that the pool is full, since it cannot grow.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("users.pool");
    /// # let store = everleaf::Store::open(&path, everleaf::Options::default())?;
    /// # store.namespace("users")?.put(b"ada", b"1815")?;
    /// # store.close()?;
    /// let store = everleaf::Store::open_read_only(&path, everleaf::Options::default())?;
    /// let users = store.namespace("users")?;
    /// assert_eq!(users.get(b"ada")?.as_deref(), Some(&b"1815"[..]));
    /// assert!(users.put(b"ada", b"1852").is_err());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Store::open_existing`].
    pub fn open_read_only(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        Self::on(Pool::open_read_only(path.as_ref(), options.accept_dirty_shutdown)?, &options)
    }

    /// [`Store::on`]. If that fails, a pool that was closed is closed again: nothing has happened to it.
    fn in_file(pool: Arc<Pool>, options: &Options) -> Result<Self, Error> {
        let was_closed = pool.info().found == everleaf_pmem::Found::Clean && !pool.needs_recovery();
        Self::on(pool.clone(), options).inspect_err(|_| {
            if was_closed {
                _ = pool.close();
            }
        })
    }

    /// Creates a store in anonymous memory of at most [`Options::size_max`] bytes, for tests and measuring. It ends with the process, whatever its
    /// [`Options::domain`]. Address space for all of it is taken at once: where the system does not let processes ask for more memory than it has, set the size
    /// to what the store may need.
    ///
    /// # Errors
    /// An unknown index; no memory.
    pub fn anonymous(options: Options) -> Result<Self, Error> {
        Self::on(Pool::anonymous(Hardware::page_cache(), options.pool())?, &options)
    }
}

impl<M: Listed> Store<M> {
    /// Opens the store in `pool`, creating or recovering it.
    ///
    /// A pool that stays open after its store was dropped keeps the blocks that the store had still to reclaim ([`Store::held_back`]) until the pool is opened
    /// again. [`Store::collect`] before the drop reclaims them.
    ///
    /// # Errors
    /// A damaged pool, an index or a format that this version does not know, no space; kind [`ErrorKind::InUse`](crate::ErrorKind::InUse) if the pool has a
    /// store, or a handle of one is left.
    pub fn on(pool: Arc<Pool<M>>, options: &Options) -> Result<Self, Error> {
        find_entry::<M>(&options.index)?;
        let claim = pool.claim()?;
        let opened = recovery::open(&pool, options.recovery_threads.max(1))?;
        let clock = Clock::open(&pool, &opened.block(&pool).clock_limit).inspect_err(|_| opened.leave())?;
        let shared = Shared {
            header: Header::new(pool.clone(), opened.off),
            clock,
            stripes: Stripes::new(),
            slots: Slots::new(),
            snapshots: Snapshots::new(),
            garbage: Garbage::new(),
            drafts: Drafts::default(),
            wall: Wall::new(options.times),
            sweeper: Sweeper::default(),
            may_expire: AtomicBool::new(false),
            spaces: RwLock::default(),
            loading: Mutex::new(()),
            compacting: Mutex::new(()),
            gaps: Gaps::default(),
            creating: Mutex::new(()),
            index_name: options.index.clone(),
            next_space: AtomicU32::new(0),
            halted: OnceLock::new(),
            pool,
            _claim: claim,
        };
        for (name, Found { index, may_expire, tombstones }) in opened.indexes {
            let space = shared.add_space(&name, Some(index));
            shared.note_expiring(&space, may_expire.into(), 0);
            space.counter().add(-(tombstones.len() as i64));
            tombstones.into_iter().for_each(|link| shared.left_tombstone(&space, link, 0));
        }
        let shared = Arc::new(shared);
        let is_read_only = shared.pool.is_read_only();
        if is_read_only {
            shared.pool.only_read();
        }
        let housekeeper = (options.keeps_house && !is_read_only).then(|| Housekeeper::start(&shared)).transpose()?;
        Ok(Self { shared, housekeeper })
    }

    /// The pool file.
    pub fn path(&self) -> &Path {
        self.shared.pool.path()
    }

    /// The pool under the store.
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.shared.pool
    }

    /// The time by which keys expire, in milliseconds since 1970. It goes back only if the clock was set back by more than ten seconds, and may be ahead of a
    /// clock that was set back by less.
    pub fn time_ms(&self) -> u64 {
        self.shared.wall.now_ms()
    }

    /// Returns the namespace `name`, of at most [`NAMESPACE_SIZE_MAX`](crate::NAMESPACE_SIZE_MAX) bytes. In the pool it exists from its first write until it is
    /// cleared, and takes at least 64 KiB: use namespaces for kinds of data, not for each user. The handle is cheap to clone and to keep. The store remembers
    /// every requested name until it is dropped, at some two hundred bytes of DRAM each.
    ///
    /// # Errors
    /// [`Error::BadNamespace`].
    pub fn namespace(&self, name: &str) -> Result<Namespace<M>, Error> {
        check_namespace_name(name)?;
        let known = self.shared.spaces.read().get(name).cloned();
        let space = known.unwrap_or_else(|| self.shared.add_space(name, None));
        Ok(Namespace { shared: self.shared.clone(), space })
    }

    /// Names of all namespaces that exist in the pool, in order.
    pub fn namespaces(&self) -> Vec<String> {
        let spaces = self.shared.spaces.read();
        spaces.iter().filter(|(_, space)| space.index.load().is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Removes a namespace and all its keys, durably and at once. Returns whether it existed. Handles to it stay valid: writing to one creates the namespace
    /// again. The space is reclaimed in steps; see [`Store::collect`].
    ///
    /// # Errors
    /// See [`Namespace::clear`].
    pub fn drop_namespace(&self, name: &str) -> Result<bool, Error> {
        let space = self.shared.spaces.read().get(name).cloned();
        space.map_or(Ok(false), |space| self.shared.remove(&space, |_| Ok(())))
    }

    /// Shuts down cleanly. Remaining handles (namespaces, snapshots, transactions) can still read; writes through them fail. Nobody can open the pool while
    /// there are any.
    ///
    /// A store that is dropped without being closed loses nothing, but the next open recovers it and takes longer. The same holds if its process was killed,
    /// with one exception in [`Domain::PageCache`]: the machine must not be restarted before the pool is opened again, because nobody knows then what a disk
    /// has of it.
    ///
    /// Every index records where its leaves are (`docs/decisions/0007-closed-trees.md`), so the next open reads neither leaves nor records: its time depends on
    /// the number of leaves. Damage in records is found when they are read, damage that hides a key from searches by [`Store::verify`]. *Crash before the pool
    /// is closed:* the pool is recovered, and these records are not used.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let store = everleaf::Store::open(&directory.path().join("pool"), everleaf::Options::default())?;
    /// let space = store.namespace("space")?;
    /// space.put(b"k", b"v")?;
    /// let snapshot = store.snapshot()?;
    /// space.delete(b"k")?;
    /// // The snapshot still shows the value, so the store is handed back, open as before.
    /// let store = store.close().unwrap_err().store;
    /// drop(snapshot);
    /// store.close()?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A system error, when the pool file cannot be completed; damage; [`Error::Halted`]; [`Error::SnapshotsOpen`], if open snapshots hold something back. The
    /// store inside the error is then open as before, and can be closed when they are dropped. If it is dropped instead, the next open recovers the pool.
    pub fn close(self) -> Result<(), Unclosed<M>> {
        self.shut_down().map_err(|error| Unclosed { store: self, error })
    }

    fn shut_down(&self) -> Result<(), Error> {
        if self.shared.pool.is_read_only() {
            return Ok(());
        }
        let _loading = schedule::lock(&self.shared.loading);
        loop {
            self.shared.writable()?;
            self.shared.collect(usize::MAX)?;
            let _paused = self.shared.garbage.pause();
            let _all = self.shared.stripes.lock_all();
            // Garbage is reachable by nothing in the pool, and must not seem to be in use at the next open.
            let count = if self.shared.garbage.is_empty() && self.shared.drafts.is_empty() { 0 } else { self.shared.snapshots.count() };
            if count > 0 {
                return Err(Error::SnapshotsOpen { count });
            }
            // Linked garbage is left here only if a full pool has no room for its removal.
            if self.shared.garbage.is_linked() {
                self.shared.writable()?;
                self.shared.leave_images()?;
                return Ok(self.shared.pool.close()?);
            }
        }
    }
}

impl<M: Listed> Shared<M> {
    fn add_space(&self, name: &str, index: Option<Index>) -> Arc<Space> {
        let mut spaces = self.spaces.write();
        let new = || {
            let counter = OnceLock::new();
            if let Some(index) = &index {
                counter.get_or_init(Box::<Counter>::default).set(index.tree.stats().keys);
            }
            let kind = index.as_ref().map_or_else(OnceLock::new, |index| OnceLock::from(index.kind));
            let number = self.next_space.fetch_add(1, Ordering::Relaxed);
            Arc::new(Space {
                name: name.into(),
                number,
                kind,
                index: ArcSwapOption::from_pointee(index),
                former: ArcSwap::default(),
                turned: Watched::new(0),
                is_loading: AtomicBool::new(false),
                counter,
                expiring: AtomicU64::new(0),
                uncounted: AtomicI64::new(0),
            })
        };
        spaces.entry(name.into()).or_insert_with(new).clone()
    }

    /// Chooses the index of a namespace that has had none yet; returns whether it is the one that the namespace has or gets.
    pub(crate) fn prefer_index(&self, space: &Space, name: &str) -> Result<bool, Error> {
        let entry = find_entry::<M>(name)?;
        // One that has had an index keeps it.
        Ok(*space.kind.get_or_init(|| entry.name) == entry.name)
    }

    /// The index of `space`, created now if necessary. The caller holds a stripe, so it is not replaced meanwhile.
    pub(crate) fn index_or_create(&self, space: &Space) -> Result<Arc<Index>, Error> {
        if let Some(index) = space.index.load_full() {
            return Ok(index);
        }
        let _creating = schedule::lock(&self.creating);
        if let Some(index) = space.index.load_full() {
            return Ok(index);
        }
        if space.is_loading.load(Ordering::Acquire) {
            return Err(Error::Loading { namespace: space.name.clone() });
        }
        let index = Arc::new(self.create_index(space, Stamp::lowest())?);
        schedule::drain();
        space.index.store(Some(index.clone()));
        Ok(index)
    }

    /// A new index for `space`, linked as a root of the pool.
    fn create_index(&self, space: &Space, begun: Stamp) -> Result<Index, Error> {
        let entry = find_entry::<M>(space.kind.get().copied().unwrap_or(&self.index_name))?;
        let tree = entry.create(&self.pool, &space.name)?;
        let root = self.pool.root(&space.name)?.map_or(0, |root| root.off);
        Ok(Index { tree, kind: space.kind.get_or_init(|| entry.name), root, begun })
    }

    /// A new index for `space`, visible only to the caller. See `load.rs`.
    pub(crate) fn begin_load(&self, space: &Space) -> Result<Index, Error> {
        let _creating = schedule::lock(&self.creating);
        if space.index.load().is_some() {
            return Err(Error::Index(everleaf_index::Cause::NotEmpty { keys: space.count() }.into()));
        }
        let index = self.create_index(space, Stamp::undrawn())?;
        space.is_loading.store(true, Ordering::Release);
        Ok(index)
    }

    /// Has every index leave an image that makes the next open fast; but not if there are tombstones, which only an open that reads all records finds. The
    /// caller holds all stripes, has paused the collection, and closes the pool next.
    fn leave_images(&self) -> Result<(), Error> {
        if !self.garbage.is_empty() {
            return Ok(());
        }
        let spaces = self.spaces.read();
        let mut indexes = spaces.values().filter_map(|space| space.index.load_full());
        indexes.try_for_each(|index| Ok(index.tree.close()?))
    }

    /// Durably unlinks the index of `space`, and leaves its blocks to the collection (`garbage.rs`), which begins at once, unless a snapshot still sees it.
    /// Returns whether there was one. `check` gets its number of keys, and may refuse.
    ///
    /// The unlinking of the root is the commit point. After a crash recovery does not reach the blocks, so they are free.
    pub(crate) fn remove(&self, space: &Arc<Space>, check: impl FnOnce(u64) -> Result<(), Error>) -> Result<bool, Error> {
        {
            // A writer holds a stripe while it uses the index; a reader is pinned, and what it reads is only retired.
            let _all = self.stripes.lock_all();
            self.writable()?;
            let Some(old) = space.index.load_full() else { return Ok(false) };
            let keys = space.count();
            check(keys)?;
            self.pool.unlink_root(&space.name)?;
            let former = Arc::new(Former { index: old, ended: Stamp::undrawn() });
            schedule::drain();
            space.former.rcu(|all| all.iter().chain([&former]).cloned().collect::<Vec<_>>());
            space.index.store(None);
            let at = former.ended.get(&self.clock);
            space.turned.store(at, Ordering::Release);
            space.counter().set(0);
            // Snapshots that begin from now on are above that, and hold nothing of it back.
            self.tick();
            self.left_index(space, former, keys, at);
        }
        self.tidy(STEPS_PER_CLEAR);
        self.writable()?;
        Ok(true)
    }

    /// Notes that a key is about to be written, which expires if `expiry_ms` is given. The caller holds its stripe.
    #[inline]
    pub(crate) fn note_expiry(&self, space: &Space, expiry_ms: Option<u64>) -> Option<u64> {
        if let Some(expiry_ms) = expiry_ms {
            self.note_expiring(space, 1, expiry_ms);
        }
        expiry_ms
    }

    /// Notes that this many keys that expire, none before `earliest_ms`, are about to become visible.
    pub(crate) fn note_expiring(&self, space: &Space, count: u64, earliest_ms: u64) {
        space.expiring.fetch_add(count, Ordering::Relaxed);
        self.sweeper.note_due(earliest_ms);
        if count > 0 && !self.may_expire.load(Ordering::Relaxed) {
            // An exchange; and a thread that begins a snapshot adds to the clock before it looks: both are locked operations, which nothing passes on x86-64.
            // So a snapshot that does not see this has a timestamp below that of the key.
            self.may_expire.swap(true, Ordering::SeqCst);
        }
    }

    /// Draws a timestamp above all before.
    #[inline]
    pub(crate) fn tick(&self) -> Tick {
        self.clock.tick(&self.pool, &self.header.get().clock_limit)
    }

    /// Links a record in an index; returns the key's previous link. The caller is not pinned, here and below.
    pub(crate) fn upsert(&self, index: &Index, key: &[u8], link: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        again(&self.pool, || index.tree.upsert(key, link))
    }

    /// Several writes. Records that they link were flushed, but not fenced; see [`OrderedIndex::apply_behind`](everleaf_index::OrderedIndex::apply_behind).
    pub(crate) fn apply_behind(&self, index: &Index, writes: &[(&[u8], Write)], replaced: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let start = replaced.len();
        let links_anything = writes.iter().any(|(_, write)| *write != Write::Remove);
        again(&self.pool, || {
            let rest = &writes[replaced.len() - start..];
            if links_anything { index.tree.apply_behind(&|| self.pool.fence(), rest, replaced) } else { index.tree.apply(rest, replaced) }
        })
    }

    /// Several writes, not acknowledged before the caller has fenced; see [`OrderedIndex::apply_unfenced`](everleaf_index::OrderedIndex::apply_unfenced).
    pub(crate) fn apply_unfenced(&self, index: &Index, writes: &[(&[u8], Write)], replaced: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let start = replaced.len();
        again(&self.pool, || index.tree.apply_unfenced(&writes[replaced.len() - start..], replaced))
    }

    /// Gives back the block of the record at `link` once no reader can hold it. It is durably unlinked.
    pub(crate) fn retire(&self, link: u64, guard: &Guard) -> Result<(), Error> {
        self.pool.retire(Off::<Word>::from_link(link)?, guard);
        Ok(())
    }

    /// Whether the store takes writes. Checked before a write, and after its last fence: only then is it known that the fenced data is durable.
    ///
    /// # Errors
    /// [`Error::Halted`], and those of [`Pool::writable`].
    #[inline]
    pub(crate) fn writable(&self) -> Result<(), Error> {
        if let Some(reason) = self.halted.get() {
            return Err(Error::Halted { reason: reason.clone() });
        }
        Ok(self.pool.writable()?)
    }

    /// Runs what changes free space without writing to any key, unless the store takes no writes. The store is not closed, verified or cleared meanwhile. The
    /// caller holds no stripe.
    pub(crate) fn with_any_stripe<T>(&self, act: impl FnOnce() -> T) -> Result<T, Error> {
        let _stripe = self.stripes.lock(0, &[]);
        self.writable()?;
        Ok(act())
    }

    /// Refuses writes from now on.
    #[cold]
    pub(crate) fn halt(&self, reason: impl FnOnce() -> String) {
        self.halted.get_or_init(reason);
    }
}

/// The registry's entry for the index `name`. A store outlives the process, so its indexes must.
fn find_entry<M: Listed>(name: &str) -> Result<Entry<[u8], M>, Error> {
    let mut entries = registry::<[u8], M>();
    entries.retain(|entry| entry.persistent);
    match entries.iter().position(|entry| entry.name == name) {
        Some(at) => Ok(entries.swap_remove(at)),
        None => Err(Error::UnknownIndex { name: name.into(), known: entries.iter().map(|entry| entry.name).collect() }),
    }
}

/// Checks the sizes of a caller's key and value.
pub(crate) fn check_sizes(key: &[u8], value: &[u8]) -> Result<(), Error> {
    if key.len() > KEY_SIZE_MAX {
        return Err(Error::KeyTooLong { size: key.len() });
    }
    if value.len() > VALUE_SIZE_MAX {
        return Err(Error::ValueTooLong { size: value.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each took more than four kilobytes without containing anything.
    #[test]
    fn a_name_is_cheap() {
        assert!(size_of::<Space>() <= 192, "{}", size_of::<Space>());
        let store = Store::anonymous(Options { size_max: 8 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        assert!(space.space.counter.get().is_none() && space.count() == 0);
        space.put(b"k", b"v").unwrap();
        assert_eq!(space.count(), 1);
        store.drop_namespace("space").unwrap();
        assert_eq!(space.count(), 0);
    }
}
