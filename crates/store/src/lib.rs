#![forbid(unsafe_code)]
//! Everleaf: an ordered, crash-consistent key-value store in memory that outlives the process.
//!
//! PROVISIONAL: signatures are what the server and the command line are written against; bodies are an in-memory stand-in.

use everleaf_pmem::{Hardware, Medium};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use everleaf_index::Direction;
pub use everleaf_index::record::{KEY_SIZE_MAX, VALUE_SIZE_MAX};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the index for new namespaces. Default "isle".
    pub index: String,
    /// Size in bytes to which the pool may grow.
    pub size_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { index: "isle".into(), size_max: 1 << 40 }
    }
}

/// An error of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From below.
    #[error(transparent)]
    Index(#[from] everleaf_index::Error),
    /// A key longer than [`KEY_SIZE_MAX`].
    #[error("key of {size} bytes, at most {KEY_SIZE_MAX} are possible; hash the long part of it")]
    KeyTooLong {
        /// Its length in bytes.
        size: usize,
    },
    /// A value longer than [`VALUE_SIZE_MAX`].
    #[error("value of {size} bytes, at most {VALUE_SIZE_MAX} are possible; split it over several keys")]
    ValueTooLong {
        /// Its length in bytes.
        size: usize,
    },
    /// A batch whose [`Batch::expect`]ations do not hold.
    #[error("a key of the batch does not hold the expected value any more; read it again and retry")]
    Conflict,
}

/// A store: namespaces of keys and values in one pool.
pub struct Store<M: Medium = Hardware> {
    namespaces: RwLock<BTreeMap<String, Arc<RwLock<BTreeMap<Vec<u8>, Vec<u8>>>>>>,
    path: PathBuf,
    _medium: PhantomData<M>,
}

impl Store<Hardware> {
    /// Opens the store in the pool file at `path`, creating or recovering it.
    pub fn open(path: &Path, _options: Options) -> Result<Self, Error> {
        Ok(Self { namespaces: RwLock::default(), path: path.into(), _medium: PhantomData })
    }
}

impl<M: Medium> Store<M> {
    /// The pool file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The namespace `name`, created on the first write to it. Cheap to clone, cheap to keep.
    pub fn namespace(&self, name: &str) -> Result<Namespace<M>, Error> {
        Ok(Namespace { map: self.namespaces.write().entry(name.into()).or_default().clone(), _medium: PhantomData })
    }

    /// Names of all namespaces.
    pub fn namespaces(&self) -> Vec<String> {
        self.namespaces.read().keys().cloned().collect()
    }

    /// Applies all of `batch`, or, after a crash, none of it; other threads see all of it or none.
    ///
    /// # Errors
    /// [`Error::Conflict`], and nothing is changed, if a key does not hold what the batch expects of it.
    pub fn write(&self, batch: Batch<M>) -> Result<(), Error> {
        for (namespace, key, value) in &batch.expected {
            if namespace.get(key)? != *value {
                return Err(Error::Conflict);
            }
        }
        for (namespace, key, value) in batch.changes {
            match value {
                Some(value) => namespace.put(&key, &value)?,
                None => drop(namespace.delete(&key)?),
            }
        }
        Ok(())
    }

    /// Shuts down cleanly; what is not closed is recovered at the next open.
    pub fn close(self) -> Result<(), Error> {
        Ok(())
    }
}

/// Writes that are applied together. See [`Store::write`].
pub struct Batch<M: Medium = Hardware> {
    changes: Vec<(Namespace<M>, Vec<u8>, Option<Vec<u8>>)>,
    expected: Vec<(Namespace<M>, Vec<u8>, Option<Vec<u8>>)>,
}

impl<M: Medium> Default for Batch<M> {
    fn default() -> Self {
        Self { changes: Vec::new(), expected: Vec::new() }
    }
}

impl<M: Medium> Batch<M> {
    /// Sets `key` to `value`.
    pub fn put(&mut self, namespace: &Namespace<M>, key: &[u8], value: &[u8]) {
        self.changes.push((namespace.clone(), key.to_vec(), Some(value.to_vec())));
    }
    /// Removes `key`.
    pub fn delete(&mut self, namespace: &Namespace<M>, key: &[u8]) {
        self.changes.push((namespace.clone(), key.to_vec(), None));
    }
    /// Makes the batch conditional: it is applied only if, at that moment, `key` holds `value` (`None`: is absent). Expectations are about the state before the batch.
    pub fn expect(&mut self, namespace: &Namespace<M>, key: &[u8], value: Option<&[u8]>) {
        self.expected.push((namespace.clone(), key.to_vec(), value.map(<[u8]>::to_vec)));
    }
}

/// What [`Namespace::modify`] is to do with a key.
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
    map: Arc<RwLock<BTreeMap<Vec<u8>, Vec<u8>>>>,
    _medium: PhantomData<M>,
}

impl<M: Medium> Clone for Namespace<M> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone(), _medium: PhantomData }
    }
}

impl<M: Medium> Namespace<M> {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.map.read().get(key).cloned())
    }
    /// Appends the value of `key` to `out`; its length, if the key is present.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        Ok(self.map.read().get(key).map(|value| {
            out.extend(value);
            value.len()
        }))
    }
    /// Length of the value of `key` in bytes, if the key is present, without copying it.
    pub fn value_size(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        Ok(self.map.read().get(key).map(Vec::len))
    }
    /// Sets `key` to `value`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.map.write().insert(key.to_vec(), value.to_vec());
        Ok(())
    }
    /// Sets several keys, each on its own (a crash may keep some), sharing the cost of making them durable. Later ones win.
    pub fn put_many(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        pairs.iter().try_for_each(|(key, value)| self.put(key, value))
    }
    /// Sets `key` if it is absent; whether it was.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let mut map = self.map.write();
        let absent = !map.contains_key(key);
        if absent {
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(absent)
    }
    /// Removes `key`; whether it was present.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.map.write().remove(key).is_some())
    }
    /// Sets `key` to `new` (`None`: removes it) if its value is `expected` (`None`: absent); whether it was.
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool, Error> {
        let mut swapped = false;
        self.modify(key, |old| {
            swapped = old == expected;
            match new {
                _ if !swapped => Change::Keep,
                Some(new) => Change::Put(new.to_vec()),
                None => Change::Delete,
            }
        })?;
        Ok(swapped)
    }
    /// Reads `key` and changes it as `decide` says, atomically: no other write to the key comes between. `decide` must not touch the store.
    pub fn modify(&self, key: &[u8], decide: impl FnOnce(Option<&[u8]>) -> Change) -> Result<(), Error> {
        let mut map = self.map.write();
        match decide(map.get(key).map(Vec::as_slice)) {
            Change::Keep => {}
            Change::Put(value) => drop(map.insert(key.to_vec(), value)),
            Change::Delete => drop(map.remove(key)),
        }
        Ok(())
    }
    /// Visits keys and values in order from a bound on, until `visit` breaks. Values come as appended to a buffer.
    pub fn scan(&self, from: Bound<&[u8]>, direction: Direction, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        let map = self.map.read();
        let mut go = |(key, value): (&Vec<u8>, &Vec<u8>)| visit(key, value).is_break();
        match direction {
            Direction::Forward => map.range::<[u8], _>((from, Bound::Unbounded)).any(&mut go),
            Direction::Reverse => map.range::<[u8], _>((Bound::Unbounded, from)).rev().any(&mut go),
        };
        Ok(())
    }
    /// Visits keys in order from a bound on, without reading values.
    pub fn scan_keys(&self, from: Bound<&[u8]>, direction: Direction, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.scan(from, direction, |key, _| visit(key))
    }
    /// Number of keys.
    pub fn count(&self) -> u64 {
        self.map.read().len() as u64
    }
    /// Removes every key, durably and at once.
    pub fn clear(&self) -> Result<(), Error> {
        self.map.write().clear();
        Ok(())
    }
}
