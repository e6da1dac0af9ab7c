//! Snapshots: the store as of a moment, for as long as the caller likes.
//!
//! A snapshot is a timestamp and a bound. The bound, which is not above the timestamp, is registered as long as the snapshot lives, and keeps in place what the
//! snapshot may want to see. Readers of a snapshot wait for no versions. As readers of an index they wait where all readers do: for a writer that overwrites an
//! entry of the very leaf that they read, and is at its fence.
//!
//! # Beginning
//!
//! 1. Register the bound in a *place*, one of some words among which each thread begins its search at another one; or, if those are taken, in the registry.
//! 2. If plain writes are not forbidden, or may still be in progress, forbid them, and wait for those in progress: they do not keep what they replace, and what
//!    they write has its timestamp before it can be seen. There are some only if there was no snapshot lately, and each is a single put or delete, or a group
//!    of puts. From here on a writer that replaces a version keeps it.
//! 3. Draw the timestamp. Everything completed before is committed before it.
//! 4. Store it beside the bound: versions committed later are not wanted by this snapshot ([`Snapshots::want`]). Until then it may want any.
//!
//! So the usual snapshot takes no lock: it exchanges its place, finds that plain writes are over, draws a timestamp, and stores it; when it ends, it stores to
//! its place. For a snapshot that matters to it, a writer finds the bound, or that of a later snapshot in the same place; and beside the bound the snapshot's
//! own timestamp, or that there is none yet, or a later one: a place is marked as having no timestamp before it is freed.
//!
//! A writer that draws a timestamp above that of a snapshot does so after 3, so after 1, and finds the bound. `garbage.rs` says what it does then. As long as
//! writes are plain, the writer need not look: a snapshot between 1 and 3 then draws a timestamp higher than any that the writer has drawn.
//!
//! Plain writes are allowed again when there has been no snapshot for some writes and nothing is held back any more. Waiting for them each time would burden a
//! store that runs one transaction after the other. The thread that allows them first says that they are not over, and then looks at all places; a snapshot
//! that begins first takes a place, and then looks whether they are over. So one of them sees the other.

use crate::clock::Clock;
use crate::namespace::{Entry, Found, Namespace};
use crate::store::Shared;
use crate::version::Moment;
use crate::view::View;
use crate::{Cursor, Direction, Error, Store};
use everleaf_index::Listed;
use everleaf_pmem::Hardware;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Collection steps when a snapshot ends.
const STEPS_PER_SNAPSHOT: usize = 256;
/// Writes without a snapshot after which writes are plain again. One where a scheduler of threads should see that often.
const IDLE_WRITES: u64 = if schedule::IS_BUILT_IN { 1 } else { 16 };

/// Words for bounds: a few for each thread that takes one snapshot after the other, on an ordinary machine. Fewer where a scheduler counts each look.
const PLACES: usize = if schedule::IS_BUILT_IN { 2 } else { 32 };
/// How many of them a snapshot tries: a thread that holds more snapshots at once uses the registry for the others.
const TRIES: usize = 2;
/// In a place: no snapshot.
const NONE: u64 = u64::MAX;
/// The timestamp of a snapshot that is still beginning: above all others.
const UNKNOWN: u64 = u64::MAX;

/// The snapshots of an open store.
pub(crate) struct Snapshots {
    places: [Place; PLACES],
    /// Whether plain writes are forbidden and none is in progress any more. Changed with the registry locked.
    is_settled: AtomicU64,
    registry: Mutex<Registry>,
    /// The lowest bound in the registry, [`NONE`] if there is none. Changed with the registry locked.
    oldest_registered: AtomicU64,
    /// The highest timestamp in the registry, [`UNKNOWN`] if any is unknown. Changed with the registry locked.
    newest_registered: AtomicU64,
    /// Writes since the last snapshot ended, while versions are kept.
    idle_writes: AtomicU64,
}

/// Holds the bound of one snapshot at a time, on a line of its own.
#[repr(align(64))]
struct Place {
    bound: AtomicU64,
    /// The snapshot's timestamp, [`UNKNOWN`] until it is drawn.
    at: AtomicU64,
}

#[derive(Default)]
struct Registry {
    /// Bounds and timestamps of snapshots that found no place, by number. Bounds never fall as numbers rise: the clock does not go back.
    entries: BTreeMap<u64, (u64, u64)>,
    /// The same timestamps in order, each with its number. There may be as many as clients that watch keys, so they are never searched linearly.
    timestamps: BTreeSet<(u64, u64)>,
    /// The next number.
    next: u64,
    /// Whether plain writes are forbidden.
    is_versioned: bool,
}

impl Registry {
    /// Whether one of them may want a version that was committed at `created_at` and replaced at `replaced_at`.
    fn wants(&self, created_at: u64, replaced_at: u64) -> bool {
        let is_between = created_at < replaced_at && self.timestamps.range((created_at + 1, 0)..=(replaced_at, u64::MAX)).next().is_some();
        // A snapshot that is still beginning may have drawn a timestamp without having stored it.
        is_between || self.timestamps.range((UNKNOWN, 0)..).any(|(_, number)| self.entries[number].0 <= replaced_at)
    }
}

/// Where a bound is registered.
#[derive(Clone, Copy)]
enum Held {
    Place(usize),
    Registered(u64),
}

impl Snapshots {
    pub(crate) fn new() -> Self {
        Self {
            places: std::array::from_fn(|_| Place { bound: AtomicU64::new(NONE), at: AtomicU64::new(UNKNOWN) }),
            is_settled: AtomicU64::new(0),
            registry: Mutex::default(),
            oldest_registered: AtomicU64::new(NONE),
            newest_registered: AtomicU64::new(UNKNOWN),
            idle_writes: AtomicU64::new(0),
        }
    }

    /// Whether a snapshot may want a version that was committed at `created_at` (0: unknown) and replaced at `replaced_at`, which has been drawn.
    #[inline]
    pub(crate) fn want(&self, clock: &Clock, created_at: u64, replaced_at: u64) -> bool {
        clock.keeps_versions() && self.bounds().any(|(bound, at)| bound <= replaced_at && created_at < at.load(Ordering::Acquire))
    }

    /// [`Snapshots::want`], with each registered snapshot considered by itself: they do not want versions between two of them for which there is no snapshot.
    pub(crate) fn want_exactly(&self, clock: &Clock, created_at: u64, replaced_at: u64) -> bool {
        self.want(clock, created_at, replaced_at) && {
            let of_place = |place: &Place| place.bound.load(Ordering::SeqCst) <= replaced_at && created_at < place.at.load(Ordering::Acquire);
            self.places.iter().any(of_place) || schedule::lock(&self.registry).wants(created_at, replaced_at)
        }
    }

    /// Whether there is a snapshot now whose timestamp was known, and not above this one, when this one was drawn.
    pub(crate) fn have_before(&self, timestamp: u64) -> bool {
        // A place is marked as having no timestamp before it is freed.
        self.places.iter().any(|place| place.at.load(Ordering::Acquire) <= timestamp)
            || schedule::lock(&self.registry).timestamps.first().is_some_and(|(at, _)| *at <= timestamp)
    }

    /// The lowest bound, if there is a snapshot.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.bounds().map(|(bound, _)| bound).min().filter(|bound| *bound != NONE)
    }

    /// Bounds, each with the word of its timestamp, to be read after it. All registered snapshots count as one.
    fn bounds(&self) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let places = self.places.iter().map(|place| (place.bound.load(Ordering::SeqCst), &place.at));
        places.chain(std::iter::once_with(|| (self.oldest_registered.load(Ordering::Acquire), &self.newest_registered)))
    }

    /// Number of snapshots.
    pub(crate) fn count(&self) -> usize {
        let registered = schedule::lock(&self.registry).entries.len();
        registered + self.places.iter().filter(|place| place.bound.load(Ordering::Acquire) != NONE).count()
    }

    /// Step 1 and the beginning of 2: returns where the bound is, and whether plain writes may still be in progress.
    #[inline]
    fn register(&self, clock: &Clock) -> (Held, bool) {
        let held = self.take_place(clock.now()).unwrap_or_else(|| self.take_entry(clock));
        (held, self.is_settled.load(Ordering::SeqCst) == 0 && self.forbid_plain(clock))
    }

    #[inline]
    fn take_place(&self, bound: u64) -> Option<Held> {
        let first = if schedule::is_scheduled() { 0 } else { first_place() };
        (first..first + TRIES).map(|place| place % PLACES).find_map(|place| {
            let word = &self.places[place].bound;
            let taken = word.load(Ordering::Relaxed) == NONE && word.compare_exchange(NONE, bound, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            taken.then_some(Held::Place(place))
        })
    }

    #[cold]
    fn take_entry(&self, clock: &Clock) -> Held {
        let mut registry = schedule::lock(&self.registry);
        let number = registry.next;
        registry.next += 1;
        registry.entries.insert(number, (clock.now(), UNKNOWN));
        registry.timestamps.insert((UNKNOWN, number));
        self.note(&registry);
        Held::Registered(number)
    }

    /// Step 4.
    #[inline]
    fn set_timestamp(&self, held: Held, timestamp: u64) {
        match held {
            Held::Place(place) => self.places[place].at.store(timestamp, Ordering::Release),
            Held::Registered(number) => self.set_entry_timestamp(number, timestamp),
        }
    }

    #[cold]
    fn set_entry_timestamp(&self, number: u64, timestamp: u64) {
        let mut registry = schedule::lock(&self.registry);
        if let Some((_, at)) = registry.entries.get_mut(&number) {
            let before = std::mem::replace(at, timestamp);
            registry.timestamps.remove(&(before, number));
            registry.timestamps.insert((timestamp, number));
        }
        self.note(&registry);
    }

    /// Forbids plain writes; returns whether some may still be in progress.
    #[cold]
    fn forbid_plain(&self, clock: &Clock) -> bool {
        let mut registry = schedule::lock(&self.registry);
        if !registry.is_versioned {
            registry.is_versioned = true;
            clock.keep_versions();
        }
        self.is_settled.load(Ordering::SeqCst) == 0
    }

    /// The end of 2. With the lock: a thread that allows plain writes could otherwise unset this before, and look after the snapshot has ended.
    #[cold]
    fn settle(&self) {
        let _registry = schedule::lock(&self.registry);
        self.is_settled.store(1, Ordering::SeqCst);
    }

    /// Ends a snapshot; returns its bound.
    #[inline]
    fn unregister(&self, held: Held) -> u64 {
        if self.idle_writes.load(Ordering::Relaxed) != 0 {
            self.idle_writes.store(0, Ordering::Relaxed);
        }
        match held {
            Held::Place(place) => {
                let Place { bound, at } = &self.places[place];
                let ended = bound.load(Ordering::Relaxed);
                at.store(UNKNOWN, Ordering::Release);
                bound.store(NONE, Ordering::Release);
                ended
            }
            Held::Registered(number) => self.give_back_entry(number),
        }
    }

    #[cold]
    fn give_back_entry(&self, number: u64) -> u64 {
        let mut registry = schedule::lock(&self.registry);
        let (ended, at) = registry.entries.remove(&number).expect("a snapshot ends once");
        registry.timestamps.remove(&(at, number));
        self.note(&registry);
        ended
    }

    /// A reader between the two stores gets a valid pair: each word alone is right for all snapshots that exist both before and after.
    fn note(&self, registry: &Registry) {
        self.newest_registered.store(registry.timestamps.last().map_or(UNKNOWN, |(at, _)| *at), Ordering::Release);
        self.oldest_registered.store(registry.entries.values().next().map_or(NONE, |(bound, _)| *bound), Ordering::Release);
    }

    /// Called after a write that kept a version, when nothing is held back.
    pub(crate) fn relax(&self, clock: &Clock) {
        if self.oldest().is_none() && self.idle_writes.fetch_add(1, Ordering::Relaxed) + 1 >= IDLE_WRITES {
            self.allow_plain(clock);
        }
    }

    /// Allows plain writes, unless there is a snapshot.
    pub(crate) fn allow_plain(&self, clock: &Clock) {
        let mut registry = schedule::lock(&self.registry);
        if !registry.is_versioned {
            return;
        }
        let was_settled = self.is_settled.swap(0, Ordering::SeqCst);
        if self.oldest().is_some() {
            self.is_settled.store(was_settled, Ordering::SeqCst);
            return;
        }
        registry.is_versioned = false;
        clock.drop_versions();
    }
}

/// The place at which a thread begins its search.
#[inline]
fn first_place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static FIRST: Cell<Option<usize>> = const { Cell::new(None) });
    FIRST.get().unwrap_or_else(|| {
        let first = NEXT.fetch_add(TRIES, Ordering::Relaxed) % PLACES;
        FIRST.set(Some(first));
        first
    })
}

/// The store as of a moment. Later writes do not change it; every version it may show stays in the pool until it is dropped.
pub struct Snapshot<M: Listed = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    held: Option<Held>,
    moment: Moment,
}

impl<M: Listed> fmt::Debug for Snapshot<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("timestamp", &self.moment.at).finish_non_exhaustive()
    }
}

impl<M: Listed> Store<M> {
    /// Returns a snapshot of the store as of now: with everything that was completed before, and nothing that begins later.
    ///
    /// # Errors
    /// A store that was closed, or whose memory failed: it cannot give a timestamp.
    pub fn snapshot(&self) -> Result<Snapshot<M>, Error> {
        if !self.shared.pool.is_read_only() {
            self.shared.pool.writable()?;
        }
        Ok(Snapshot::begin(&self.shared))
    }
}

impl<M: Listed> Snapshot<M> {
    fn begin(shared: &Arc<Shared<M>>) -> Self {
        let (held, is_to_settle) = shared.snapshots.register(&shared.clock);
        if is_to_settle {
            shared.stripes.await_plain();
            shared.snapshots.settle();
        }
        let time_ms = || if shared.may_expire.load(Ordering::Acquire) { shared.wall.now_ms() } else { 0 };
        let moment = loop {
            let moment = Moment { time_ms: time_ms(), at: shared.tick().at };
            // It was that time when the timestamp was drawn: above those of all commits that held the time till then, and of no commit that holds it later.
            if moment.time_ms == time_ms() {
                break moment;
            }
        };
        shared.snapshots.set_timestamp(held, moment.at);
        Self { shared: shared.clone(), held: Some(held), moment }
    }

    /// Returns the timestamp: everything committed before it is visible.
    pub fn timestamp(&self) -> u64 {
        self.moment.at
    }

    /// Returns the time by which expiry is judged, in milliseconds since 1970: keys that expire later are visible. Where nothing expires, it is now.
    pub fn time_ms(&self) -> u64 {
        if self.moment.time_ms == 0 { self.shared.wall.now_ms() } else { self.moment.time_ms }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// A damaged pool: never wrong data.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(namespace, key, &mut value)?.map(|_| value))
    }

    /// Appends the value of `key` to `out`, and returns its length, if the key is present.
    ///
    /// # Errors
    /// See [`Snapshot::get`]; `out` is then as before.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get_into(&self, namespace: &Namespace<M>, key: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        self.view(namespace).find(key, |found| found.copy_to(out))
    }

    /// Returns whether `key` is present. Its value is not read.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn contains_key(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<bool, Error> {
        Ok(self.value_size(namespace, key)?.is_some())
    }

    /// Returns the length of the value of `key` in bytes, if the key is present, without copying it.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn value_size(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<usize>, Error> {
        self.view(namespace).find(key, |found| found.checked_size())
    }

    /// Returns the value of `key` and its expiry time.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn entry(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<Entry>, Error> {
        self.view(namespace).find(key, |found| found.entry())
    }

    /// The moment as of which it reads.
    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }

    /// Returns the values of several keys, in their order: faster than one by one.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get_many(&self, namespace: &Namespace<M>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.view(namespace).get_many(keys)
    }

    /// Calls `visit` for each of `keys`, in their order, with the value found for it, if any, as [`Namespace::visit_many`] does.
    ///
    /// # Errors
    /// Those of `visit`, which end the call; a damaged pool.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn visit_many<E: From<Error>>(&self, namespace: &Namespace<M>, keys: &[&[u8]], visit: impl FnMut(Option<Found<'_>>) -> Result<(), E>) -> Result<(), E> {
        self.view(namespace).visit_many(keys, visit)
    }

    /// Visits keys and values in order from a bound on, until `visit` breaks. Forward, the bound is a lower bound; in reverse, an upper one.
    ///
    /// # Errors
    /// A damaged pool.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn scan(
        &self,
        namespace: &Namespace<M>,
        from: Bound<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.walk(namespace, &mut Cursor::new(from, direction), visit)
    }

    /// Visits keys in order from a bound on, without reading values.
    ///
    /// ```
    /// use everleaf::{Direction, Options, Store};
    /// use std::ops::{Bound, ControlFlow};
    ///
    /// let store = Store::anonymous(Options::default())?;
    /// let fruit = store.namespace("fruit")?;
    /// fruit.put(b"apple", b"red")?;
    /// fruit.put(b"banana", b"yellow")?;
    /// let snapshot = store.snapshot()?;
    /// fruit.delete(b"apple")?;
    /// let mut keys = Vec::new();
    /// snapshot.scan_keys(&fruit, Bound::Unbounded, Direction::Reverse, |key| {
    ///     keys.push(key.to_vec());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(keys, [&b"banana"[..], b"apple"]);
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Snapshot::scan`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn scan_keys(
        &self,
        namespace: &Namespace<M>,
        from: Bound<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.walk_keys(namespace, &mut Cursor::new(from, direction), visit)
    }

    /// Visits all keys that begin with `prefix`, and their values, in order, until `visit` breaks.
    ///
    /// # Errors
    /// See [`Snapshot::scan`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn prefix(
        &self,
        namespace: &Namespace<M>,
        prefix: &[u8],
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.walk(namespace, &mut Cursor::prefix(prefix, direction), visit)
    }

    /// Visits the remaining keys and values of a range, until `visit` breaks. `cursor` then continues after the last one visited.
    ///
    /// # Errors
    /// A damaged pool. The cursor may then continue before the last key visited.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn walk(&self, namespace: &Namespace<M>, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.view(namespace).walk_values(cursor, visit)
    }

    /// [`Snapshot::walk`], with the expiry time of each entry in milliseconds since 1970, if any.
    ///
    /// # Errors
    /// See [`Snapshot::walk`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn walk_entries(
        &self,
        namespace: &Namespace<M>,
        cursor: &mut Cursor,
        visit: impl FnMut(&[u8], &[u8], Option<u64>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.view(namespace).walk_entries(cursor, visit)
    }

    /// [`Snapshot::walk`] without reading values.
    ///
    /// # Errors
    /// See [`Snapshot::walk`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn walk_keys(&self, namespace: &Namespace<M>, cursor: &mut Cursor, visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.view(namespace).walk_keys(cursor, visit)
    }

    /// # Panics
    /// When the namespace belongs to another store.
    pub(crate) fn view<'s>(&'s self, namespace: &'s Namespace<M>) -> View<'s, M> {
        namespace.check_belongs_to(&self.shared);
        View { shared: &self.shared, space: &namespace.space, moment: Some(self.moment) }
    }

    /// Holds back again what is replaced from now on of the keys whose stripes the caller holds. What was replaced since the release may be gone.
    pub(crate) fn hold(&mut self) {
        // No thread writes these keys now, so there is no plain write to wait for. The next snapshot to begin waits.
        let Self { shared, held, .. } = self;
        held.get_or_insert_with(|| {
            let held = shared.snapshots.register(&shared.clock).0;
            // Not the timestamp of its moment: no thread may assume that what was replaced since then is in place.
            shared.snapshots.set_timestamp(held, shared.tick().at);
            held
        });
    }

    /// Ends it without collecting what it held back: the caller may hold stripes.
    pub(crate) fn release(&mut self) {
        if let Some(held) = self.held.take() {
            self.shared.garbage.look_again_from(self.shared.snapshots.unregister(held));
        }
    }
}

impl<M: Listed> Drop for Snapshot<M> {
    fn drop(&mut self) {
        self.release();
        if !self.shared.garbage.is_empty() {
            self.shared.tidy(STEPS_PER_SNAPSHOT);
        }
    }
}
