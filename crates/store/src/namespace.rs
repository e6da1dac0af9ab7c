//! One key at a time.
//!
//! A put is one record write and one index publish, a delete one index removal:
//!
//! 1. Take the key's stripe. Readers do not, so nothing waits for a writer but another writer of the key (or of one that shares its stripe).
//! 2. Write the record into a fresh block and seal it. *Crash: nobody reaches the block; recovery finds it free.*
//! 3. Publish its link in the index: **the commit point**, durable before any reader can see it. *Crash before: the old version is there; after: the new one.*
//! 4. Retire the old record. *Crash: nobody reaches it; recovery finds it free.*
//!
//! Writers do not pin an epoch while they allocate: in a full pool, room is made of what was retired, and a pinned thread would stand in its own way.
//! Readers pin an epoch, look the link up and copy the value out: once, and only if its checksum matches is the copy handed out.

use crate::Error;
use crate::store::{Index, Shared, Space, check_sizes};
use arc_swap::Guard as Loaded;
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::{Durable, Hardware, Medium, Off, Word};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What [`Namespace::modify`] is to do with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leave it as it is.
    Keep,
    /// Set it.
    Put(Vec<u8>),
    /// Remove it.
    Delete,
}

/// A value that was found, for as long as the call that found it goes on. See [`Namespace::visit_many`].
pub struct Found<'a> {
    record: Record<'a>,
    key: &'a [u8],
}

impl Found<'_> {
    /// Length of the value in bytes.
    pub fn size(&self) -> usize {
        self.record.value_size()
    }

    /// Appends the value to `out`; its length.
    ///
    /// # Errors
    /// A damaged record; `out` is then as before.
    pub fn copy_to(&self, out: &mut Vec<u8>) -> Result<usize, Error> {
        copy_value(&self.record, self.key, out)
    }
}

/// A named tree of keys and values.
pub struct Namespace<M: Medium = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) space: Arc<Space>,
}

impl<M: Medium> Clone for Namespace<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), space: self.space.clone() }
    }
}

/// Keys that are looked up, or records that are made durable with one fence: enough to share the wait, few enough to hold up few others.
const GROUP: usize = 64;

impl<M: Listed> Namespace<M> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.space.name
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// A damaged pool: never wrong data.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.map(|_| value))
    }

    /// Appends the value of `key` to `out`; its length, if the key is present.
    ///
    /// # Errors
    /// See [`Namespace::get`]; `out` is then as before.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        let _pinned = self.shared.pool.pin();
        let index = self.space.index.load();
        let Some(index) = index.as_deref() else { return Ok(None) };
        let Some(record) = self.shared.current(index, key)? else { return Ok(None) };
        copy_value(&record, key, out).map(Some)
    }

    /// The values of several keys, in their order: faster than one by one.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = Vec::with_capacity(keys.len());
        self.visit_many(keys, |found| {
            let mut value = Vec::new();
            let size = found.map(|found| found.copy_to(&mut value)).transpose()?;
            values.push(size.map(|_| value));
            Ok::<_, Error>(())
        })?;
        Ok(values)
    }

    /// Calls `visit` for each of `keys`, in their order, with what was found of it. Looks the keys up in groups, so that they wait for memory together.
    ///
    /// # Errors
    /// Those of `visit`, which end the call; a damaged pool.
    pub fn visit_many<E: From<Error>>(&self, keys: &[&[u8]], mut visit: impl FnMut(Option<Found<'_>>) -> Result<(), E>) -> Result<(), E> {
        let mut links = Vec::with_capacity(keys.len().min(GROUP));
        for keys in keys.chunks(GROUP) {
            let _pinned = self.shared.pool.pin();
            let index = self.space.index.load();
            links.clear();
            match index.as_deref() {
                Some(index) => index.tree.get_many(keys, &mut links).map_err(Error::from)?,
                None => links.resize(keys.len(), None),
            }
            for (&key, link) in keys.iter().zip(&links) {
                let record = link.map_or(Ok(None), |link| self.shared.visible(link.get()))?;
                visit(record.map(|record| Found { record, key }))?;
            }
        }
        Ok(())
    }

    /// Length of the value of `key` in bytes, if the key is present, without copying it.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn value_size(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        let _pinned = self.shared.pool.pin();
        let index = self.space.index.load();
        let Some(index) = index.as_deref() else { return Ok(None) };
        let Some(record) = self.shared.current(index, key)? else { return Ok(None) };
        check_key(&record, key)?;
        Ok(Some(record.value_size()))
    }

    /// Number of keys: exact when no write is under way.
    pub fn count(&self) -> u64 {
        self.space.count.load(Ordering::Relaxed)
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// A key or value too long; a full pool, in which case nothing has changed; a damaged pool; [`Error::Halted`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_sizes(key, value)?;
        let _stripe = self.shared.stripes.lock(self.space.number, key);
        self.put_locked(key, value)
    }

    /// Sets several keys, each on its own (a crash or an error may leave some), sharing the cost of making them durable. Later ones win.
    ///
    /// # Errors
    /// See [`Namespace::put`]. Pairs before the one that failed, in groups, have been set.
    pub fn put_many(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        if let [(key, value)] = pairs {
            return self.put(key, value);
        }
        pairs.iter().try_for_each(|(key, value)| check_sizes(key, value))?;
        pairs.chunks(GROUP).try_for_each(|group| self.put_group(group))
    }

    /// Sets `key` if it is absent; whether it was.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        check_sizes(key, value)?;
        let _stripe = self.shared.stripes.lock(self.space.number, key);
        let absent = self.value_size(key)?.is_none();
        if absent {
            self.put_locked(key, value)?;
        }
        Ok(absent)
    }

    /// Removes `key`; whether it was present.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Halted`]. A full pool is no obstacle.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let _stripe = self.shared.stripes.lock(self.space.number, key);
        self.delete_locked(key)
    }

    /// Sets `key` to `new` (`None`: removes it) if its value is `expected` (`None`: absent); whether it was.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool, Error> {
        check_sizes(key, new.unwrap_or_default())?;
        let _stripe = self.shared.stripes.lock(self.space.number, key);
        let swap = self.holds(key, expected)?;
        match new {
            _ if !swap => {}
            Some(new) => self.put_locked(key, new)?,
            None => drop(self.delete_locked(key)?),
        }
        Ok(swap)
    }

    /// Reads `key` and changes it as `decide` says, atomically: no other write to the key comes between. `decide` must not touch the store.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn modify(&self, key: &[u8], decide: impl FnOnce(Option<&[u8]>) -> Change) -> Result<(), Error> {
        check_sizes(key, &[])?;
        let _stripe = self.shared.stripes.lock(self.space.number, key);
        let mut old = Vec::new();
        let present = self.get_into(key, &mut old)?.is_some();
        match decide(present.then_some(&old)) {
            Change::Keep => Ok(()),
            Change::Put(new) => {
                check_sizes(key, &new)?;
                self.put_locked(key, &new)
            }
            Change::Delete => self.delete_locked(key).map(drop),
        }
    }

    /// Removes every key, durably and at once, by unlinking the index from the pool; its blocks are given back after that. A full pool is no obstacle.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Halted`].
    pub fn clear(&self) -> Result<(), Error> {
        self.shared.remove(&self.space).map(drop)
    }

    /// The index, if the namespace exists in the pool. The caller is pinned or holds a stripe.
    pub(crate) fn index(&self) -> Loaded<Option<Arc<Index>>> {
        self.space.index.load()
    }

    /// Whether the value of `key` is `expected` (`None`: absent).
    pub(crate) fn holds(&self, key: &[u8], expected: Option<&[u8]>) -> Result<bool, Error> {
        match (self.value_size(key)?, expected) {
            (None, None) => Ok(true),
            (Some(size), Some(expected)) if size == expected.len() => Ok(self.get(key)?.as_deref() == Some(expected)),
            _ => Ok(false),
        }
    }

    /// [`Namespace::put`], with the stripe held.
    pub(crate) fn put_locked(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.shared.writable()?;
        let index = self.shared.index_or_create(&self.space)?;
        let record = Record::write(&self.shared.pool, key, value, 0, self.shared.tick(), 0)?;
        self.publish(&index, key, self.shared.pool.seal(record))
    }

    /// [`Namespace::delete`], with the stripe held.
    pub(crate) fn delete_locked(&self, key: &[u8]) -> Result<bool, Error> {
        self.shared.writable()?;
        let index = self.index();
        let Some(index) = index.as_deref() else { return Ok(false) };
        let Some(old) = index.tree.remove(key)? else { return Ok(false) };
        self.space.count.fetch_sub(1, Ordering::Relaxed);
        self.shared.retire(old.get(), &self.shared.pool.pin())?;
        self.shared.writable()?;
        Ok(true)
    }

    fn put_group(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let pool = &*self.shared.pool;
        let _stripes = self.shared.stripes.lock_many(pairs.iter().map(|(key, _)| (self.space.number, *key)));
        self.shared.writable()?;
        let index = self.shared.index_or_create(&self.space)?;
        let mut records = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            records.push(Record::write(pool, key, value, 0, self.shared.tick(), 0)?.flush());
        }
        let records = pool.fence_all(records);
        let links: Vec<_> = pairs.iter().zip(records).map(|((key, _), record)| (*key, link_word(record.release()))).collect();
        let mut replaced = Vec::with_capacity(links.len());
        let outcome = self.shared.upsert_many(&index, &links, &mut replaced);
        self.settle(&links, &replaced, outcome)
    }

    /// Links a record in the index.
    fn publish(&self, index: &Index, key: &[u8], record: Durable<'_, [Word], M>) -> Result<(), Error> {
        let link = link_word(record.release());
        let mut replaced = None;
        let outcome = self.shared.upsert(index, key, link).map(|old| replaced = Some(old));
        self.settle(&[(key, link)], replaced.as_slice(), outcome)
    }

    /// Counts what was published, retires the records whose places were taken. `replaced` is as long as there were links published.
    fn settle(&self, links: &[(&[u8], NonZeroU64)], replaced: &[Option<NonZeroU64>], outcome: Result<(), Error>) -> Result<(), Error> {
        let guard = self.shared.pool.pin();
        let added = replaced.iter().filter(|old| old.is_none()).count();
        self.space.count.fetch_add(added as u64, Ordering::Relaxed);
        for old in replaced.iter().flatten() {
            self.shared.retire(old.get(), &guard)?;
        }
        // A full pool leaves the index as it was. After any other error the index may link the record: then it stays, and recovery by reachability decides.
        if outcome.as_ref().is_err_and(Error::is_no_space) {
            for (_, link) in &links[replaced.len()..] {
                self.shared.retire(link.get(), &guard)?;
            }
        }
        outcome?;
        self.shared.writable()
    }
}

/// The word by which an index refers to the block at `off`.
pub(crate) fn link_word(off: Off<[Word]>) -> NonZeroU64 {
    NonZeroU64::new(off.link()).expect("a block never lies at offset 0")
}

/// Appends the value of `record`, which is that of `key`, to `out`, if both are what was written.
pub(crate) fn copy_value(record: &Record<'_>, key: &[u8], out: &mut Vec<u8>) -> Result<usize, Error> {
    let start = out.len();
    record.copy_value(0, record.value_size(), out);
    if !record.matches(key, &out[start..]) {
        out.truncate(start);
        return Err(everleaf_pmem::Error::corrupt(record.off.bytes(), "a record that does not match its checksum").into());
    }
    Ok(record.value_size())
}

/// Checks that `key` and the sizes are what was written.
pub(crate) fn check_key(record: &Record<'_>, key: &[u8]) -> Result<(), Error> {
    match record.matches_key(key) {
        true => Ok(()),
        false => Err(everleaf_pmem::Error::corrupt(record.off.bytes(), "a record whose key does not match its checksum").into()),
    }
}
