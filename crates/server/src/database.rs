//! Databases as commands see them: directly, or, within EXEC, through its transaction.
//!
//! Commands do not know which. Directly, each change is one step of the store, atomic and durable when it returns; within a transaction, it is kept until the
//! whole transaction is committed. Every change of a key is counted, as in Redis; within a transaction, when it is committed.

use crate::shared::Counter;
use everleaf::{Batch, Change, Cursor, Direction, Entry, Error, Found, Isolation, Namespace, Snapshot, Store, Transaction};
use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};

/// Number of keys whose values a transaction copies at once.
const COPIED_AT_ONCE: usize = 32;

/// The expiry time of a key that has expired from the start, judged by the one time that its command has read. Neither the sweep nor a transaction, which
/// continues to see what it has written, handles this: the key is removed instead.
pub(crate) const OVER: u64 = 0;

/// All databases.
#[derive(Clone, Copy)]
pub(crate) struct Databases<'a> {
    pub(crate) store: &'a Store,
    pub(crate) namespaces: &'a [Namespace],
    /// The namespace of memcached.
    pub(crate) items: &'a Namespace,
    /// The transaction of EXEC.
    pub(crate) transaction: Option<&'a RefCell<Transaction>>,
    /// Counts changes of keys.
    pub(crate) changes: &'a Counter,
    /// Counts bytes of keys and values that commands have looked at without replying with them.
    pub(crate) looked_at: &'a Counter,
}

/// One database.
#[derive(Clone, Copy)]
pub(crate) struct Database<'a> {
    store: &'a Store,
    namespace: &'a Namespace,
    transaction: Option<&'a RefCell<Transaction>>,
    changes: &'a Counter,
    looked_at: &'a Counter,
}

impl<'a> Databases<'a> {
    /// The database with that number, which is known to exist.
    pub(crate) fn at(&self, number: usize) -> Database<'a> {
        self.database(&self.namespaces[number])
    }

    /// The database of memcached, which has no number.
    pub(crate) fn items(&self) -> Database<'a> {
        self.database(self.items)
    }

    fn database(&self, namespace: &'a Namespace) -> Database<'a> {
        let Self { store, transaction, changes, looked_at, .. } = *self;
        Database { store, namespace, transaction, changes, looked_at }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Database<'a>> + use<'a> {
        let databases = *self;
        (0..self.namespaces.len()).map(move |number| databases.at(number))
    }
}

/// A value that was found.
pub(crate) enum Value<'v> {
    InPlace(Found<'v>),
    Copied(Vec<u8>),
}

impl Value<'_> {
    /// Appends it to `out`; returns its length.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) -> Result<usize, Error> {
        match self {
            Self::InPlace(found) => found.copy_to(out),
            Self::Copied(value) => {
                out.extend_from_slice(value);
                Ok(value.len())
            }
        }
    }
}

impl Database<'_> {
    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = match self.transaction {
            Some(transaction) => transaction.borrow().get(self.namespace, key),
            None => self.namespace.get(key),
        }?;
        self.looked_at.add(value.as_ref().map_or(0, Vec::len) as u64);
        Ok(value)
    }

    /// Appends the value of `key` to `out`; returns its length, if the key is present.
    pub(crate) fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        match self.transaction {
            Some(_) => self.get(key)?.map(|value| Value::Copied(value).copy_to(out)).transpose(),
            None => self.namespace.get_into(key, out),
        }
    }

    /// A snapshot that shows several keys as of one moment, if one is needed. A store that gives no snapshots takes no writes any more, and so does without.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.transaction.is_none().then(|| self.store.snapshot().ok()).flatten()
    }

    /// Calls `visit` for each of `keys`, in order, with what was found for it, in `snapshot` if there is one.
    pub(crate) fn visit_many<E: From<Error>>(
        &self,
        snapshot: Option<&Snapshot>,
        keys: &[&[u8]],
        mut visit: impl FnMut(Option<Value<'_>>) -> Result<(), E>,
    ) -> Result<(), E> {
        match (snapshot, self.transaction) {
            (Some(snapshot), _) => snapshot.visit_many(self.namespace, keys, |found| visit(found.map(Value::InPlace))),
            (None, Some(transaction)) => keys.chunks(COPIED_AT_ONCE).try_for_each(|keys| {
                let values = transaction.borrow().get_many(self.namespace, keys)?;
                self.looked_at.add(values.iter().flatten().map(|value| value.len() as u64).sum());
                values.into_iter().try_for_each(|value| visit(value.map(Value::Copied)))
            }),
            (None, None) => self.namespace.visit_many(keys, |found| visit(found.map(Value::InPlace))),
        }
    }

    /// Length of the value of `key` in bytes, if the key is present.
    pub(crate) fn value_size(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        match self.transaction {
            Some(transaction) => transaction.borrow().value_size(self.namespace, key),
            None => self.namespace.value_size(key),
        }
    }

    /// Bytes that `key` takes in the pool, if it is present; within a transaction that has written it, the bytes that it will take.
    pub(crate) fn footprint(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        match self.transaction {
            Some(_) => Ok(self.entry(key)?.map(|entry| entry.footprint(key))),
            None => self.namespace.footprint(key),
        }
    }

    /// The value of `key` and its expiry time.
    pub(crate) fn entry(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        let entry = match self.transaction {
            Some(transaction) => transaction.borrow().entry(self.namespace, key),
            None => self.namespace.entry(key),
        }?;
        self.looked_at.add(entry.as_ref().map_or(0, |entry| entry.value.len()) as u64);
        Ok(entry)
    }

    /// The expiry time of `key` in milliseconds since 1970, if it has one. The outer `None` means that the key is absent.
    pub(crate) fn expiry_ms(&self, key: &[u8]) -> Result<Option<Option<u64>>, Error> {
        match self.transaction {
            Some(_) => Ok(self.entry(key)?.map(|entry| entry.expiry_ms)),
            None => {
                let expiry_ms = self.namespace.expiry_ms(key)?;
                // The expiry time is checked together with the value.
                if let Some(Some(_)) = expiry_ms
                    && let Ok(Some(size)) = self.namespace.value_size(key)
                {
                    self.looked_at.add(size as u64);
                }
                Ok(expiry_ms)
            }
        }
    }

    /// Number of keys. Within a transaction they are counted one by one, without expired ones.
    pub(crate) fn count(&self) -> Result<u64, Error> {
        if self.transaction.is_none() {
            return Ok(self.namespace.count());
        }
        let mut count = 0;
        self.walk_keys(&mut Cursor::new(Bound::Unbounded, Direction::Forward), |_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Visits the remaining keys and values of a range, until `visit` breaks.
    pub(crate) fn walk(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        match self.transaction {
            Some(transaction) => transaction.borrow().walk(self.namespace, cursor, visit),
            None => self.namespace.walk(cursor, visit),
        }
    }

    /// Visits the remaining keys of a range, until `visit` breaks.
    pub(crate) fn walk_keys(&self, cursor: &mut Cursor, visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        match self.transaction {
            Some(transaction) => transaction.borrow().walk_keys(self.namespace, cursor, visit),
            None => self.namespace.walk_keys(cursor, visit),
        }
    }

    /// Sets `key` to `value`.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self.transaction {
            Some(transaction) => transaction.borrow_mut().put(self.namespace, key, value)?,
            None => self.namespace.put(key, value)?,
        }
        self.changes.add(1);
        Ok(())
    }

    /// Sets `key` to `value`, with an expiry time, if given.
    pub(crate) fn put_until(&self, key: &[u8], value: &[u8], expiry_ms: Option<u64>) -> Result<(), Error> {
        if expiry_ms == Some(OVER) {
            return self.delete(key).map(drop);
        }
        match (self.transaction, expiry_ms) {
            (Some(transaction), _) => transaction.borrow_mut().put_until(self.namespace, key, value, expiry_ms)?,
            (None, Some(expiry_ms)) => self.namespace.put_until(key, value, expiry_ms)?,
            (None, None) => self.namespace.put(key, value)?,
        }
        self.changes.add(1);
        Ok(())
    }

    /// Sets `key` if it is absent; returns whether it was.
    pub(crate) fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        match self.transaction {
            Some(_) => {
                let is_absent = self.value_size(key)?.is_none();
                if is_absent {
                    self.put(key, value)?;
                }
                Ok(is_absent)
            }
            None => {
                let is_inserted = self.namespace.insert(key, value)?;
                self.changes.add(is_inserted.into());
                Ok(is_inserted)
            }
        }
    }

    /// Removes `key`; returns whether it was present.
    pub(crate) fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let is_deleted = match self.transaction {
            Some(transaction) => transaction.borrow_mut().delete(self.namespace, key)?,
            None => self.namespace.delete(key)?,
        };
        self.changes.add(is_deleted.into());
        Ok(is_deleted)
    }

    /// Removes `keys`: all or none, unless the pool has no room for that; then each by itself. Returns how many were present.
    pub(crate) fn delete_all(&self, keys: &[&[u8]]) -> Result<u64, Error> {
        if self.transaction.is_some() {
            return keys.iter().try_fold(0, |count, key| Ok(count + u64::from(self.delete(key)?)));
        }
        let count = match self.namespace.delete_together(keys) {
            Err(error) if error.is_no_space() => self.namespace.delete_many(keys),
            deleted => deleted,
        }?;
        self.changes.add(count);
        Ok(count)
    }

    /// Reads `key` and changes it as `decide` says, atomically. `decide` must not touch the store.
    pub(crate) fn modify(&self, key: &[u8], mut decide: impl FnMut(Option<&[u8]>) -> Change) -> Result<(), Error> {
        self.modify_entry(key, |entry| decide(entry.map(|entry| entry.value.as_slice())))
    }

    /// [`Database::modify`] for callers that need the expiry time.
    pub(crate) fn modify_entry(&self, key: &[u8], mut decide: impl FnMut(Option<&Entry>) -> Change) -> Result<(), Error> {
        if self.transaction.is_none() {
            let mut is_change = false;
            let modified = self.namespace.modify_entry(key, |entry| {
                self.looked_at.add(entry.map_or(0, |entry| entry.value.len()) as u64);
                let change = match decide(entry) {
                    Change::PutUntil(_, Some(OVER)) => Change::Delete,
                    Change::Expire(Some(OVER)) if entry.is_some() => Change::Delete,
                    change => change,
                };
                is_change = match change {
                    Change::Keep => false,
                    Change::Delete | Change::Expire(_) => entry.is_some(),
                    Change::Put(_) | Change::PutUntil(..) => true,
                };
                change
            });
            match modified {
                // No key is that long, and that may be all that the caller needs to know.
                Err(Error::KeyTooLong { .. }) if !matches!(decide(None), Change::Put(_) | Change::PutUntil(..)) => {}
                modified => modified?,
            }
            self.changes.add(is_change.into());
            return Ok(());
        }
        let entry = self.entry(key)?;
        match decide(entry.as_ref()) {
            Change::Keep => Ok(()),
            Change::Put(value) => self.put_until(key, &value, entry.and_then(|entry| entry.expiry_ms)),
            Change::PutUntil(value, expiry_ms) => self.put_until(key, &value, expiry_ms),
            Change::Expire(expiry_ms) => entry.map_or(Ok(()), |entry| self.put_until(key, &entry.value, expiry_ms)),
            Change::Delete => self.delete(key).map(drop),
        }
    }

    /// Sets all of `pairs`.
    pub(crate) fn put_all<'k>(&self, pairs: impl Iterator<Item = (&'k [u8], &'k [u8])>) -> Result<(), Error> {
        if self.transaction.is_some() {
            return pairs.into_iter().try_for_each(|(key, value)| self.put(key, value));
        }
        let pairs: Vec<_> = pairs.collect();
        self.namespace.put_together(&pairs)?;
        self.changes.add(pairs.len() as u64);
        Ok(())
    }

    /// Sets all of `pairs` if all their keys are absent; returns whether they were.
    pub(crate) fn insert_all<'k>(&self, pairs: impl Iterator<Item = (&'k [u8], &'k [u8])> + Clone) -> Result<bool, Error> {
        if self.transaction.is_some() {
            for (key, _) in pairs.clone() {
                if self.value_size(key)?.is_some() {
                    return Ok(false);
                }
            }
            return self.put_all(pairs).map(|()| true);
        }
        let (mut batch, mut count) = (Batch::default(), 0);
        for (key, value) in pairs {
            batch.expect(self.namespace, key, None);
            batch.put(self.namespace, key, value);
            count += 1;
        }
        match self.store.write(batch) {
            Err(Error::Conflict { .. }) => Ok(false),
            written => {
                written?;
                self.changes.add(count);
                Ok(true)
            }
        }
    }

    /// Moves the content of `from` to `to`, unless `to_be_absent` is set and `to` is present; returns whether it was done, or `None` if `from` is absent.
    ///
    /// # Errors
    /// Among others [`Error::Conflict`], when another writer was faster.
    pub(crate) fn rename(&self, from: &[u8], to: &[u8], to_be_absent: bool) -> Result<Option<bool>, Error> {
        let act = |transaction: &mut Transaction| -> Result<_, Error> {
            let Some(entry) = transaction.entry(self.namespace, from)? else { return Ok(None) };
            self.looked_at.add(entry.value.len() as u64);
            if from == to || (to_be_absent && transaction.value_size(self.namespace, to)?.is_some()) {
                return Ok(Some(!to_be_absent));
            }
            // In this order: if one of them is refused, it is the first.
            transaction.put_until(self.namespace, to, &entry.value, entry.expiry_ms)?;
            transaction.delete(self.namespace, from)?;
            Ok(Some(true))
        };
        let renamed = self.in_transaction(act)?;
        self.changes.add((from != to && renamed == Some(true)).into());
        Ok(renamed)
    }

    /// Copies the content of `from` to `to` in `other`, unless `to_be_absent` is set and `to` is present; returns whether it was done.
    ///
    /// # Errors
    /// Among others [`Error::Conflict`], when another writer was faster.
    pub(crate) fn copy(&self, from: &[u8], other: Database<'_>, to: &[u8], to_be_absent: bool) -> Result<bool, Error> {
        let copied = self.in_transaction(|transaction| {
            let Some(entry) = transaction.entry(self.namespace, from)? else { return Ok(false) };
            self.looked_at.add(entry.value.len() as u64);
            if to_be_absent && transaction.value_size(other.namespace, to)?.is_some() {
                return Ok(false);
            }
            transaction.put_until(other.namespace, to, &entry.value, entry.expiry_ms)?;
            Ok(true)
        })?;
        self.changes.add(copied.into());
        Ok(copied)
    }

    /// Runs `act` in the current transaction, or in one of its own. A batch would not do: it expects values, but not expiry times.
    fn in_transaction<T>(&self, act: impl FnOnce(&mut Transaction) -> Result<T, Error>) -> Result<T, Error> {
        if let Some(transaction) = self.transaction {
            return act(&mut transaction.borrow_mut());
        }
        let mut transaction = self.store.begin(Isolation::Serializable)?;
        let done = act(&mut transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Removes every key: at once, by unlinking the index; within a transaction one by one, so that it takes effect together with the rest.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        let count = match self.transaction {
            Some(transaction) => transaction.borrow_mut().delete_range::<[u8]>(self.namespace, ..)?,
            None => {
                let count = self.namespace.count();
                self.namespace.clear()?;
                count
            }
        };
        self.changes.add(count);
        Ok(())
    }
}
