//! PROVISIONAL.

use crate::{Direction, Error, Key, OrderedIndex, Stats, Visit};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Bound;

/// PROVISIONAL.
pub(crate) struct Tree<K: Key + ?Sized>(RwLock<BTreeMap<K::Owned, NonZeroU64>>);

impl<K: Key + ?Sized> Tree<K> {
    pub(crate) fn new() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Key + ?Sized> OrderedIndex<K> for Tree<K> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        Ok(self.0.read().get(key).copied())
    }
    fn insert(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        let mut map = self.0.write();
        if let Some(old) = map.get(key) {
            return Ok(Some(*old));
        }
        map.insert(key.to_owned(), value);
        Ok(None)
    }
    fn upsert(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        Ok(self.0.write().insert(key.to_owned(), value))
    }
    fn update(&self, key: &K, value: NonZeroU64) -> Result<Option<NonZeroU64>, Error> {
        Ok(self.0.write().get_mut(key).map(|slot| std::mem::replace(slot, value)))
    }
    fn remove(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        Ok(self.0.write().remove(key))
    }
    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let map = self.0.read();
        let mut go = |(key, value): (&K::Owned, &NonZeroU64)| visit(std::borrow::Borrow::borrow(key), *value).is_break();
        match direction {
            Direction::Forward => map.range::<K, _>((from, Bound::Unbounded)).any(&mut go),
            Direction::Reverse => map.range::<K, _>((Bound::Unbounded, from)).rev().any(&mut go),
        };
        Ok(())
    }
    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>) -> Result<(), Error> {
        self.0.write().extend(entries);
        Ok(())
    }
    fn check(&self) -> Result<Stats, Error> {
        Ok(self.stats())
    }
    fn blocks(&self, _visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        Ok(())
    }
    fn stats(&self) -> Stats {
        Stats { keys: self.0.read().len() as u64, ..Stats::default() }
    }
}
