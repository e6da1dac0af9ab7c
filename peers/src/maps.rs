//! Maps in memory that take any key: the standard library's behind a lock, and the skip list of crossbeam.
//!
//! Keys and values of 8 bytes are kept as integers, as somebody would who has integers; all others as bytes.

use crate::embedded::{Durability, Embedded, Engine, Result, VOLATILE};
use crossbeam_skiplist::SkipMap;
use everleaf_lab::plan::KeyKind;
use everleaf_lab::{Setting, System, Visit};
use parking_lot::RwLock;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

type Bytes = Box<[u8]>;

/// A key or a value, as it is kept.
trait Cell: Ord + Clone + Send + Sync + Borrow<Self::Lent> + 'static {
    /// As which it can be looked for: bytes are not copied for that.
    type Lent: Ord + ?Sized;

    fn of(bytes: &[u8]) -> Self;
    fn with<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R;
}

impl Cell for u64 {
    type Lent = Self;

    fn of(bytes: &[u8]) -> Self {
        bytes.first_chunk().map_or(0, |bytes| Self::from_be_bytes(*bytes))
    }

    fn with<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R {
        act(&self.to_be_bytes())
    }
}

impl Cell for Bytes {
    type Lent = [u8];

    fn of(bytes: &[u8]) -> Self {
        bytes.into()
    }

    fn with<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R {
        act(self)
    }
}

/// What both maps can do with cells of one kind.
trait Map<C: Cell>: Default + Send + Sync + 'static {
    fn put(&self, key: C, value: C);
    fn get(&self, key: &C::Lent, found: impl FnOnce(&C)) -> bool;
    fn remove(&self, key: &C::Lent) -> bool;
    fn scan(&self, from: &C::Lent, visit: impl FnMut(&C, &C) -> bool);
}

impl<C: Cell> Map<C> for RwLock<BTreeMap<C, C>> {
    fn put(&self, key: C, value: C) {
        self.write().insert(key, value);
    }

    fn get(&self, key: &C::Lent, found: impl FnOnce(&C)) -> bool {
        self.read().get(key).map(found).is_some()
    }

    fn remove(&self, key: &C::Lent) -> bool {
        self.write().remove(key).is_some()
    }

    fn scan(&self, from: &C::Lent, mut visit: impl FnMut(&C, &C) -> bool) {
        let _ = self.read().range::<C::Lent, _>((Bound::Included(from), Bound::Unbounded)).all(|(key, value)| visit(key, value));
    }
}

impl<C: Cell> Map<C> for SkipMap<C, C> {
    fn put(&self, key: C, value: C) {
        self.insert(key, value);
    }

    fn get(&self, key: &C::Lent, found: impl FnOnce(&C)) -> bool {
        self.get(key).map(|entry| found(entry.value())).is_some()
    }

    fn remove(&self, key: &C::Lent) -> bool {
        self.remove(key).is_some()
    }

    fn scan(&self, from: &C::Lent, mut visit: impl FnMut(&C, &C) -> bool) {
        let _ = self.range::<C::Lent, _>((Bound::Included(from), Bound::Unbounded)).all(|entry| visit(entry.key(), entry.value()));
    }
}

/// A map of integers or of bytes.
pub(crate) enum Either<I, B> {
    Integers(I),
    Bytes(B),
}

type Tree = Either<RwLock<BTreeMap<u64, u64>>, RwLock<BTreeMap<Bytes, Bytes>>>;
type Skips = Either<SkipMap<u64, u64>, SkipMap<Bytes, Bytes>>;

/// Both maps.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    vec![
        Box::new(Embedded::<Tree>::new(
            "btreemap",
            "BTreeMap of the standard library, behind a lock for readers and writers",
            "none",
            Durability::Later,
            VOLATILE,
        )),
        Box::new(Embedded::<Skips>::new("skipmap", "SkipMap of crossbeam-skiplist", "none", Durability::Later, VOLATILE)),
    ]
}

impl<I: Map<u64>, B: Map<Bytes>> Engine for Either<I, B> {
    fn open(_directory: &Path, setting: &Setting, _sync: Durability) -> Result<Self> {
        let are_words = setting.key == KeyKind::Integer && setting.value_bytes == 8;
        Ok(if are_words { Self::Integers(I::default()) } else { Self::Bytes(B::default()) })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Self::Integers(map) => map.put(Cell::of(key), Cell::of(value)),
            Self::Bytes(map) => map.put(Cell::of(key), Cell::of(value)),
        }
        Ok(())
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        Ok(match self {
            Self::Integers(map) => map.get(&Cell::of(key), |found| found.with(|bytes| value.extend_from_slice(bytes))),
            Self::Bytes(map) => map.get(key, |found| value.extend_from_slice(found)),
        })
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        Ok(match self {
            Self::Integers(map) => map.remove(&Cell::of(key)),
            Self::Bytes(map) => map.remove(key),
        })
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        match self {
            Self::Integers(map) => map.scan(&Cell::of(from), |key, value| key.with(|key| value.with(|value| visit(key, value).is_continue()))),
            Self::Bytes(map) => map.scan(from, |key, value| visit(key, value).is_continue()),
        }
        Ok(())
    }
}
