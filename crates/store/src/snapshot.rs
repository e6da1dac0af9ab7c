//! Snapshots: the store as of a moment, for as long as one likes.
//!
//! A snapshot is a timestamp and a bound. The bound, which is not above the timestamp, is registered as long as the snapshot lives, and keeps in place what the
//! snapshot may want to see. Readers of a snapshot wait for nobody.
//!
//! # Beginning
//!
//! 1. Register the bound; forbid plain writes, if nobody has. From here on whoever replaces a version keeps it.
//! 2. If plain writes may still be under way, wait for them: what they replace they do not keep, and what they write has its timestamp before it can be seen.
//!    There are some only if there was no snapshot lately, and each is a single put or delete, or a group of puts.
//! 3. Draw the timestamp. Everything that was completed before is committed before it.
//!
//! A writer that draws a timestamp above that of a snapshot does so after 3, so after 1, and finds the bound. See `garbage.rs` for what it does then.
//!
//! Plain writes are allowed again when there has been no snapshot for some writes and nothing is left that was held back. Waiting for them would be a burden on
//! a store that takes one transaction after the other.

use crate::clock::Clock;
use crate::namespace::{Entry, Found, GROUP, Namespace, copy_value};
use crate::scan::Place;
use crate::store::{Shared, Space};
use crate::version::Moment;
use crate::{Cursor, Direction, Error, Store};
use everleaf_index::Listed;
use everleaf_pmem::Hardware;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How much garbage is collected when a snapshot ends.
const STEPS_PER_SNAPSHOT: usize = 256;
/// Writes without a snapshot after which writes are plain again.
const IDLE_WRITES: u64 = 16;

/// The snapshots of an open store.
pub(crate) struct Snapshots {
    registry: Mutex<Registry>,
    /// The lowest bound, `u64::MAX` if there is no snapshot. Changed with the registry locked.
    oldest: AtomicU64,
    /// Writes since the last snapshot ended, while versions are kept.
    idle_writes: AtomicU64,
}

#[derive(Default)]
struct Registry {
    /// How many snapshots have each bound.
    bounds: BTreeMap<u64, usize>,
    /// Whether plain writes are forbidden.
    is_versioned: bool,
    /// Whether those that had begun before are over.
    is_settled: bool,
}

impl Snapshots {
    pub(crate) fn new() -> Self {
        Self { registry: Mutex::default(), oldest: AtomicU64::new(u64::MAX), idle_writes: AtomicU64::new(0) }
    }

    /// Whether a snapshot may want to see what was replaced at this timestamp.
    #[inline]
    pub(crate) fn want(&self, replaced_at: u64) -> bool {
        self.oldest.load(Ordering::Acquire) <= replaced_at
    }

    /// The lowest bound, if there is a snapshot.
    pub(crate) fn oldest(&self) -> Option<u64> {
        Some(self.oldest.load(Ordering::Acquire)).filter(|bound| *bound != u64::MAX)
    }

    /// Number of snapshots.
    pub(crate) fn count(&self) -> usize {
        schedule::lock(&self.registry).bounds.values().sum()
    }

    /// Step 1: a bound, and whether plain writes may still be under way.
    fn register(&self, clock: &Clock) -> (u64, bool) {
        let mut registry = schedule::lock(&self.registry);
        let bound = clock.now();
        *registry.bounds.entry(bound).or_default() += 1;
        self.note(&registry);
        if !registry.is_versioned {
            registry.is_versioned = true;
            clock.keep_versions();
        }
        (bound, !registry.is_settled)
    }

    fn unregister(&self, bound: u64) {
        let mut registry = schedule::lock(&self.registry);
        if let Some(count) = registry.bounds.get_mut(&bound) {
            *count -= 1;
            if *count == 0 {
                registry.bounds.remove(&bound);
            }
        }
        self.note(&registry);
        self.idle_writes.store(0, Ordering::Relaxed);
    }

    fn note(&self, registry: &Registry) {
        self.oldest.store(registry.bounds.keys().next().copied().unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Called after a write that kept a version, when nothing is held back.
    pub(crate) fn relax(&self, clock: &Clock) {
        if self.oldest().is_some() || self.idle_writes.fetch_add(1, Ordering::Relaxed) + 1 < IDLE_WRITES {
            return;
        }
        self.allow_plain(clock);
    }

    /// Allows plain writes, unless there is a snapshot; whether they were forbidden.
    pub(crate) fn allow_plain(&self, clock: &Clock) -> bool {
        let mut registry = schedule::lock(&self.registry);
        let allowed = registry.bounds.is_empty() && registry.is_versioned;
        if allowed {
            (registry.is_versioned, registry.is_settled) = (false, false);
            clock.drop_versions();
        }
        allowed
    }
}

/// The store as of a moment. What it shows does not change, whatever is written; what it may want to show stays in the pool until it is dropped.
pub struct Snapshot<M: Listed = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    bound: Option<u64>,
    moment: Moment,
}

impl<M: Listed> Store<M> {
    /// The store as of now: with everything that was completed before, and nothing that begins later.
    ///
    /// # Errors
    /// A store that was closed, or whose memory failed: it can give no timestamp.
    pub fn snapshot(&self) -> Result<Snapshot<M>, Error> {
        self.shared.pool.writable()?;
        Ok(Snapshot::begin(&self.shared))
    }
}

impl<M: Listed> Snapshot<M> {
    fn begin(shared: &Arc<Shared<M>>) -> Self {
        let (bound, is_to_settle) = shared.snapshots.register(&shared.clock);
        if is_to_settle {
            shared.stripes.await_plain();
            schedule::lock(&shared.snapshots.registry).is_settled = true;
        }
        let moment = Moment { at: shared.tick().at, time_ms: shared.wall.now_ms() };
        Self { shared: shared.clone(), bound: Some(bound), moment }
    }

    /// The timestamp: what was committed before it is seen.
    pub fn timestamp(&self) -> u64 {
        self.moment.at
    }

    /// The time, in milliseconds since 1970: what expires later is seen.
    pub fn time_ms(&self) -> u64 {
        self.moment.time_ms
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// A damaged pool: never wrong data.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        let size = self.find(namespace, key, |found| found.copy_to(&mut value))?;
        Ok(size.map(|_| value))
    }

    /// Length of the value of `key` in bytes, if the key is present, without copying it.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn value_size(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<usize>, Error> {
        self.find(namespace, key, |found| found.check().map(|()| found.size()))
    }

    /// The value of `key`, and when it expires.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn entry(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<Entry>, Error> {
        self.find(namespace, key, |found| {
            let mut value = Vec::new();
            found.copy_to(&mut value)?;
            Ok(Entry { value, expiry_ms: found.expiry_ms() })
        })
    }

    /// As of when it shows what there is.
    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }

    fn find<T>(&self, namespace: &Namespace<M>, key: &[u8], read: impl FnOnce(Found<'_>) -> Result<T, Error>) -> Result<Option<T>, Error> {
        namespace.check_belongs_to(&self.shared);
        let _pinned = self.shared.pool.pin();
        let index = namespace.space.index_at(self.moment, &self.shared.clock);
        let Some(index) = index.as_deref() else { return Ok(None) };
        let Some(link) = index.tree.get(key)? else { return Ok(None) };
        let record = self.shared.visible_at(link.get(), self.moment)?;
        record.map(|record| read(Found::new(record, key))).transpose()
    }

    /// The values of several keys, in their order: faster than one by one.
    ///
    /// # Errors
    /// See [`Snapshot::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get_many(&self, namespace: &Namespace<M>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        namespace.check_belongs_to(&self.shared);
        let mut values = Vec::with_capacity(keys.len());
        let mut links = Vec::with_capacity(keys.len().min(GROUP));
        for keys in keys.chunks(GROUP) {
            let _pinned = self.shared.pool.pin();
            let index = namespace.space.index_at(self.moment, &self.shared.clock);
            links.clear();
            match index.as_deref() {
                Some(index) => index.tree.get_many(keys, &mut links)?,
                None => links.resize(keys.len(), None),
            }
            for (key, link) in keys.iter().zip(&links) {
                let record = link.map_or(Ok(None), |link| self.shared.visible_at(link.get(), self.moment))?;
                let mut value = Vec::new();
                let size = record.map(|record| copy_value(&record, key, &mut value)).transpose()?;
                values.push(size.map(|_| value));
            }
        }
        Ok(values)
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

    /// Visits the keys and values that are left of a range, until `visit` breaks; `cursor` goes on behind the last one that was visited.
    ///
    /// # Errors
    /// A damaged pool. The cursor may then go on before what was visited last.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn walk(&self, namespace: &Namespace<M>, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        namespace.check_belongs_to(&self.shared);
        self.place(&namespace.space).walk_values(cursor, visit)
    }

    pub(crate) fn place<'s>(&'s self, space: &'s Space) -> Place<'s, M> {
        Place { shared: &self.shared, space, moment: Some(self.moment) }
    }

    /// Begins again to hold back what is replaced from now on of the keys whose stripes the caller holds. What was replaced since it was released may be gone.
    pub(crate) fn hold(&mut self) {
        // Nobody writes these keys now, so there is no plain write to wait for. Whoever begins the next snapshot does.
        self.bound.get_or_insert_with(|| self.shared.snapshots.register(&self.shared.clock).0);
    }

    /// Ends it without giving back what it has held back: the caller may hold stripes.
    pub(crate) fn release(&mut self) {
        if let Some(bound) = self.bound.take() {
            self.shared.snapshots.unregister(bound);
        }
    }
}

impl<M: Listed> Drop for Snapshot<M> {
    fn drop(&mut self) {
        self.release();
        self.shared.tidy(STEPS_PER_SNAPSHOT);
    }
}
