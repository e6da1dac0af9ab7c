//! The index under test in its pool, with values seen as payloads.

use crate::Class;
use everleaf_index::{Cause, Direction, Entry, Error, FILL, OrderedIndex, Recovery, Trace, Write};
use everleaf_pmem::{Medium, Off, Pool, Word};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Name of the root that the suites use.
pub const ROOT: &str = "index";

/// Keys and payloads in order: the expected or actual content of an index.
pub type Content<K> = Vec<(<K as ToOwned>::Owned, u64)>;

/// A broken rule and the evidence.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The rule.
    pub rule: &'static str,
    /// The evidence.
    pub seen: String,
}

impl Broken {
    pub(crate) fn new(rule: &'static str, seen: impl fmt::Display) -> Self {
        Self { rule, seen: seen.to_string() }
    }

    /// Turns an error where none is allowed into a broken rule.
    pub(crate) fn by<E: fmt::Display>(rule: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::new(rule, error)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.seen)
    }
}

/// A change of an index; its key is given by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Sets the payload of a key, present or not.
    Put(u32, u64),
    /// Removes a key.
    Delete(u32),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(key, payload) => write!(f, "put {key}={payload}"),
            Self::Delete(key) => write!(f, "delete {key}"),
        }
    }
}

/// The model of an index: what it should hold.
pub type Model<K> = BTreeMap<<K as ToOwned>::Owned, u64>;

/// Applies a change to a model and returns the previous payload.
pub(crate) fn apply_to_model<K: Class + ?Sized>(model: &mut Model<K>, change: Change) -> Option<u64> {
    match change {
        Change::Put(key, payload) => model.insert(K::numbered(key), payload),
        Change::Delete(key) => model.remove::<K>(K::numbered(key).borrow()),
    }
}

/// An index and its pool.
pub struct Subject<K: Class + ?Sized, M: Medium> {
    /// The index.
    pub index: Box<dyn OrderedIndex<K>>,
    /// Its pool.
    pub pool: Arc<Pool<M>>,
}

impl<K: Class + ?Sized, M: Medium> Subject<K, M> {
    /// Creates an index in a new pool.
    ///
    /// # Errors
    /// A full pool.
    pub fn create(entry: &Entry<K, M>, pool: Arc<Pool<M>>) -> Result<Self, Error> {
        Ok(Self { index: entry.create(&pool, ROOT)?, pool })
    }

    /// Opens and recovers the index of an opened pool with `threads` threads.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn open(entry: &Entry<K, M>, pool: Arc<Pool<M>>, threads: usize) -> Result<Self, Error> {
        let reach = pool.needs_recovery().then(|| pool.reach());
        let trace = |value: NonZeroU64| reach.as_ref().map_or(Ok(()), |reach| K::mark(&pool, reach, value));
        let trace: Option<&Trace<'_>> = if K::WHOLE { None } else { Some(&trace) };
        let index = entry.open(&pool, ROOT, &Recovery { reach: reach.as_ref(), trace, threads })?;
        if let Some(reach) = reach {
            pool.adopt(reach)?;
        }
        Ok(Self { index, pool })
    }

    /// Closes the index, and then its pool.
    ///
    /// # Errors
    /// See [`Pool::close`] and [`OrderedIndex::close`].
    pub fn close(self) -> Result<(), Error> {
        self.index.close()?;
        drop(self.index);
        Ok(self.pool.close()?)
    }

    /// Adds a key that is absent; returns the payload if the key is present.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn insert(&self, key: &K, payload: u64) -> Result<Option<u64>, Error> {
        let value = K::value(&self.pool, key, payload)?;
        // Without the guard, another thread could change and retire the value before its payload is read.
        let _guard = self.pool.pin();
        match self.index.insert(key, value)? {
            Some(present) => {
                self.retire(value)?;
                Ok(Some(K::payload(&self.pool, present)?))
            }
            None => Ok(None),
        }
    }

    /// Sets the payload of a key, present or not, and returns the previous payload.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn upsert(&self, key: &K, payload: u64) -> Result<Option<u64>, Error> {
        self.give_back(self.index.upsert(key, K::value(&self.pool, key, payload)?)?)
    }

    /// Fills an empty index, and returns whether it was empty.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn load(&self, pairs: &[(K::Owned, u64)]) -> Result<bool, Error> {
        let value = |(key, payload): &(K::Owned, u64)| Ok((key.clone(), K::value(&self.pool, key.borrow(), *payload)?));
        let entries = pairs.iter().map(value).collect::<Result<Vec<_>, Error>>()?;
        match self.index.bulk_load(&mut entries.iter().cloned(), FILL) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.cause(), Cause::NotEmpty { .. }) => {
                entries.into_iter().try_for_each(|(_, value)| self.retire(value))?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The payloads of several keys, looked up together.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn get_many(&self, keys: &[K::Owned]) -> Result<Vec<Option<u64>>, Error> {
        let _guard = self.pool.pin();
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        let mut values = Vec::new();
        self.index.get_many(&keys, &mut values)?;
        values.into_iter().map(|value| value.map(|value| K::payload(&self.pool, value)).transpose()).collect()
    }

    /// Makes several writes that carry payloads together, and returns the previous payloads. Writes of one kind use the call for that kind.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn write_many(&self, writes: &[(K::Owned, Write)]) -> Result<Vec<Option<u64>>, Error> {
        self.make(writes, |linked, returned| self.write_linked(linked, returned))
    }

    /// [`Self::write_many`], followed by `meanwhile` and then by the fence that the index has left to its caller.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn write_many_and_fence(&self, writes: &[(K::Owned, Write)], meanwhile: impl FnOnce() -> Result<(), Error>) -> Result<Vec<Option<u64>>, Error> {
        self.make(writes, |linked, returned| {
            self.index.apply_unfenced(linked, returned)?;
            meanwhile()?;
            self.pool.fence();
            Ok(())
        })
    }

    /// Makes writes with `apply`, which gets values that link their records.
    fn make(
        &self,
        writes: &[(K::Owned, Write)],
        apply: impl FnOnce(&[(&K, Write)], &mut Vec<Option<NonZeroU64>>) -> Result<(), Error>,
    ) -> Result<Vec<Option<u64>>, Error> {
        let value = |key: &K::Owned, payload: NonZeroU64| K::value(&self.pool, key.borrow(), payload.get());
        let mut linked: Vec<(&K, Write)> = Vec::with_capacity(writes.len());
        for (key, write) in writes {
            let write = match *write {
                Write::Insert(payload) => Write::Insert(value(key, payload)?),
                Write::Upsert(payload) => Write::Upsert(value(key, payload)?),
                Write::Update(payload) => Write::Update(value(key, payload)?),
                Write::Remove => Write::Remove,
            };
            linked.push((key.borrow(), write));
        }
        // Without the guard, another thread could change and retire a value before its payload is read.
        let _guard = self.pool.pin();
        let mut returned = Vec::new();
        apply(&linked, &mut returned)?;
        let settle = |((_, write), returned): (&(&K, Write), Option<NonZeroU64>)| match (*write, returned) {
            (Write::Insert(value), Some(present)) => {
                self.retire(value)?;
                Ok(Some(K::payload(&self.pool, present)?))
            }
            (Write::Update(value), None) => self.retire(value).map(|()| None),
            (_, returned) => self.give_back(returned),
        };
        linked.iter().zip(returned).map(settle).collect()
    }

    fn write_linked(&self, writes: &[(&K, Write)], returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let kind = |(_, write): &(&K, Write)| std::mem::discriminant(write);
        let Some((_, first)) = writes.first().filter(|first| writes.iter().all(|write| kind(write) == kind(first))) else {
            return self.index.apply(writes, returned);
        };
        let value = |write| match write {
            Write::Insert(value) | Write::Upsert(value) | Write::Update(value) => Some(value),
            Write::Remove => None,
        };
        let pairs: Vec<_> = writes.iter().filter_map(|&(key, write)| Some((key, value(write)?))).collect();
        match first {
            Write::Insert(_) => self.index.insert_many(&pairs, returned),
            Write::Upsert(_) => self.index.upsert_many(&pairs, returned),
            Write::Update(_) => self.index.update_many(&pairs, returned),
            Write::Remove => self.index.remove_many(&writes.iter().map(|&(key, _)| key).collect::<Vec<_>>(), returned),
        }
    }

    /// Sets the payload of a key that is present, and returns the previous payload.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn update(&self, key: &K, payload: u64) -> Result<Option<u64>, Error> {
        let value = K::value(&self.pool, key, payload)?;
        let before = self.index.update(key, value)?;
        if before.is_none() {
            self.retire(value)?;
        }
        self.give_back(before)
    }

    /// Sets a payload. An even payload is put with `upsert`, an odd one with `insert` and, if the key is present, `update`.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn put(&self, key: &K, payload: u64) -> Result<Option<u64>, Error> {
        if payload.is_multiple_of(2) {
            self.upsert(key, payload)
        } else if self.index.get(key)?.is_some() {
            self.update(key, payload)
        } else {
            self.insert(key, payload)
        }
    }

    /// Removes a key, and returns its payload.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn remove(&self, key: &K) -> Result<Option<u64>, Error> {
        self.give_back(self.index.remove(key)?)
    }

    /// Applies a change, and returns the previous payload.
    ///
    /// # Errors
    /// A full or damaged pool.
    pub fn apply(&self, change: Change) -> Result<Option<u64>, Error> {
        match change {
            Change::Put(key, payload) => self.put(K::numbered(key).borrow(), payload),
            Change::Delete(key) => self.remove(K::numbered(key).borrow()),
        }
    }

    /// Returns the payload of a value that the index gave back, and retires what the value links.
    fn give_back(&self, value: Option<NonZeroU64>) -> Result<Option<u64>, Error> {
        let Some(value) = value else { return Ok(None) };
        let payload = K::payload(&self.pool, value)?;
        self.retire(value)?;
        Ok(Some(payload))
    }

    /// Retires what a value links, when the index no longer holds the value, or never did.
    fn retire(&self, value: NonZeroU64) -> Result<(), Error> {
        if let Some((block, _)) = K::block(&self.pool, value)? {
            self.pool.retire(block, &self.pool.pin());
        }
        Ok(())
    }

    /// The payload of a key.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn get(&self, key: &K) -> Result<Option<u64>, Error> {
        // The guard keeps what the value links from being reused before it is read.
        let _guard = self.pool.pin();
        self.index.get(key)?.map(|value| K::payload(&self.pool, value)).transpose()
    }

    /// At most `limit` entries from a bound, in the order of the scan.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn scan(&self, from: Bound<&K>, direction: Direction, limit: usize) -> Result<Content<K>, Error> {
        let _guard = self.pool.pin();
        let mut found = Vec::new();
        let mut failed = None;
        self.index.scan(from, direction, &mut |key, value| {
            if found.len() == limit {
                return ControlFlow::Break(());
            }
            match K::payload(&self.pool, value) {
                Ok(payload) => found.push((key.to_owned(), payload)),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(found), Err)
    }

    /// The payloads that a scan of values returns. The values that the scan announced must come next.
    fn payloads(&self, from: Bound<K::Owned>, direction: Direction, limit: usize) -> Result<Vec<u64>, Broken> {
        let (mut payloads, mut told, mut is_as_told) = (Vec::new(), Vec::new(), true);
        let guard = self.pool.pin();
        let values = self.index.scan_values(from.as_ref().map(Borrow::borrow), direction, &mut |values, count| {
            is_as_told &= values.starts_with(&told);
            told = values[count..].to_vec();
            payloads.extend(values[..count].iter().map(|value| K::payload(&self.pool, *value)));
            if payloads.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        drop(guard);
        values.map_err(Broken::by("a scan of values"))?;
        if !is_as_told {
            return Err(Broken::new("a scan of values visits what it has told of", format_args!("{payloads:?}")));
        }
        payloads.into_iter().collect::<Result<_, _>>().map_err(Broken::by("a scan of values"))
    }

    /// The index's content by a scan, which must agree with a scan the other way, with a lookup of every key, and with the index's own check.
    ///
    /// # Errors
    /// If they do not agree.
    pub fn content(&self, limit: usize) -> Result<Content<K>, Broken> {
        let content = self.scan(Bound::Unbounded, Direction::Forward, limit).map_err(Broken::by("a scan"))?;
        if content.len() == limit {
            return Err(Broken::new("bounded steps", format_args!("a scan gave {limit} entries and had more")));
        }
        if let Some(pair) = content.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(Broken::new("a scan is in order", format_args!("{:?} then {:?}", pair[0], pair[1])));
        }
        let middle = content.len() / 2;
        let bound = |at: Option<&(K::Owned, u64)>| at.map_or(Bound::Unbounded, |(key, _)| Bound::Included(key.clone()));
        let forward = self.payloads(bound(content.get(middle)), Direction::Forward, limit)?;
        let backward = self.payloads(bound(middle.checked_sub(1).map(|at| &content[at])), Direction::Reverse, limit)?;
        let all = if middle == 0 { forward.clone() } else { backward.iter().rev().chain(&forward).copied().collect() };
        if !all.iter().eq(content.iter().map(|(_, payload)| payload)) {
            return Err(Broken::new("a scan of values is a scan without keys", format_args!("{backward:?} and {forward:?}, with keys {content:?}")));
        }
        let mut reverse = self.scan(Bound::Unbounded, Direction::Reverse, limit).map_err(Broken::by("a reverse scan"))?;
        reverse.reverse();
        if reverse != content {
            return Err(Broken::new("a reverse scan is a scan reversed", format_args!("{reverse:?}, forward {content:?}")));
        }
        for (key, payload) in &content {
            let found = self.get(key.borrow()).map_err(Broken::by("a lookup"))?;
            if found != Some(*payload) {
                return Err(Broken::new("what a scan shows a lookup finds", format_args!("{key:?}: {found:?} instead of {payload}")));
            }
        }
        let stats = self.index.check().map_err(Broken::by("check"))?;
        if stats.keys != content.len() as u64 {
            return Err(Broken::new("check counts the keys", format_args!("{stats:?} for {} keys", content.len())));
        }
        Ok(content)
    }

    /// Compares what the index reaches with what is allocated: nothing is leaked or used twice. No operation may be under way.
    ///
    /// # Errors
    /// If anything was leaked or used twice.
    pub fn audit(&self) -> Result<(), Broken> {
        const RULE: &str = "allocated is what is reachable";
        self.pool.collect();
        let reach = self.pool.reach();
        let mut marked = Ok(());
        self.each_block(&mut |at, size| {
            if marked.is_ok() {
                marked = reach.mark(Off::<Word>::new(at as u64), size);
            }
        })
        .map_err(Broken::by(RULE))?;
        marked.map_err(Broken::by(RULE))?;
        let usage = self.pool.audit(&reach).map_err(Broken::by(RULE))?;
        if usage.leaked != 0 || usage.retired != 0 {
            return Err(Broken::new(RULE, format_args!("{usage:?}")));
        }
        Ok(())
    }

    /// Visits every block that belongs to the index or to its values: offset and size in bytes. No operation may be under way.
    ///
    /// # Errors
    /// A damaged pool.
    pub fn each_block(&self, visit: &mut dyn FnMut(usize, usize)) -> Result<(), Error> {
        self.index.blocks(&mut |at, size| {
            visit(at as usize, size);
            Ok(())
        })?;
        let mut failed = Ok(());
        self.index.scan(Bound::Unbounded, Direction::Forward, &mut |_, value| match K::block(&self.pool, value) {
            Ok(block) => {
                block.into_iter().for_each(|(block, size)| visit(block.bytes() as usize, size));
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        })?;
        failed
    }
}
