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

/// Number of records that [`Namespace::put_many`] makes durable with one fence: enough to share it, few enough to hold up few writers.
const GROUP: usize = 64;

impl<M: Medium> Namespace<M> {
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
        pairs.iter().zip(records).try_for_each(|((key, _), record)| self.publish(&index, key, record))
    }

    /// Links a record in the index and retires the one whose place it takes.
    fn publish(&self, index: &Index, key: &[u8], record: Durable<'_, [Word], M>) -> Result<(), Error> {
        let off = record.release();
        match self.shared.upsert(index, key, link_word(off)) {
            Ok(Some(old)) => self.shared.retire(old.get(), &self.shared.pool.pin())?,
            Ok(None) => drop(self.space.count.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                // A full pool leaves the index as it was. After any other error the index may link the record: then it stays, and recovery by reachability
                // decides.
                if error.is_no_space() {
                    self.shared.pool.retire(off, &self.shared.pool.pin());
                }
                return Err(error);
            }
        }
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
