//! An index of the registry by itself, without a store.
//!
//! Integer keys with values of 8 bytes are what the papers measure: key and value are one word each. In all other cases the value word points to a record of
//! key and value. The record is made durable before it is passed to the index, and freed when the index no longer holds it.

use super::medium::{create_pool, durability, flushed_and_fenced, open_pool};
use super::{Capabilities, Entries, Handle, Instance, Marks, Reopened, Setting, Shutdown, Space, System, Visit, append_found};
use crate::Error;
use crate::plan::KeyKind;
use everleaf_index::record::Record;
use everleaf_index::{Direction, Entry, Key, OrderedIndex, Recovery, Trace, registry};
use everleaf_pmem::{Counters, Hardware, Pool, PoolOptions, WORD, htm};
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Name of the root in the pool.
const ROOT: &str = "lab";
/// Size of the smallest memory page.
const SMALLEST_PAGE: usize = 4 << 10;

/// An index of the registry.
struct Index {
    name: &'static str,
    summary: &'static str,
    persistent: bool,
    /// Whether it also accepts strings.
    takes_strings: bool,
    leaf_bytes: Option<u32>,
}

/// Every index of the registry.
pub(super) fn all() -> Vec<Box<dyn System>> {
    let of_strings = registry::<[u8], Hardware>();
    let system = |entry: Entry<u64, Hardware>| {
        let takes_strings = of_strings.iter().any(|other| other.name == entry.name);
        let leaf_bytes = entry.persistent.then(|| leaf_bytes(&entry)).flatten();
        Box::new(Index { name: entry.name, summary: entry.summary, persistent: entry.persistent, takes_strings, leaf_bytes }) as Box<dyn System>
    };
    registry::<u64, Hardware>().into_iter().map(system).collect()
}

/// Size of a leaf: that of an empty index, which has one leaf.
fn leaf_bytes(entry: &Entry<u64, Hardware>) -> Option<u32> {
    let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 4 << 20, ..PoolOptions::default() }).ok()?;
    let stats = entry.create(&pool, ROOT).ok()?.stats();
    (stats.leaf_bytes / stats.leaves.max(1)).try_into().ok()
}

/// A kind of keys, in the lab's form: bytes.
trait Class: Key {
    /// Calls `act` with the key that these bytes encode.
    fn decode<R>(bytes: &[u8], act: impl FnOnce(&Self) -> R) -> R;

    /// Calls `act` with the bytes of a key.
    fn encode<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R;
}

/// Whether the index of this name exists to use the processor's transactions.
fn is_about_transactions(name: &str) -> bool {
    name.ends_with("-htm")
}

/// Whether an index of this name leaves an image for the next opening to start from. Ever does not need one for integers: it serves before it has read its
/// leaves. Trees whose nodes all persist are read as they are.
fn leaves_image<K: Class + ?Sized>(name: &str) -> bool {
    let is_one_of = |families: &[&str]| families.iter().any(|family| name.strip_prefix(family).is_some_and(|size| size.is_empty() || size.starts_with('-')));
    !(K::WHOLE && is_one_of(&["ever"]) || is_one_of(&["fast-fair", "circ", "lcb", "cdds", "pf", "p-art", "roart", "bztree", "skip"]))
}

impl Class for u64 {
    fn decode<R>(bytes: &[u8], act: impl FnOnce(&Self) -> R) -> R {
        act(&bytes.first_chunk().map_or(0, |word| Self::from_be_bytes(*word)))
    }

    fn encode<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R {
        act(&self.to_be_bytes())
    }
}

impl Class for [u8] {
    fn decode<R>(bytes: &[u8], act: impl FnOnce(&Self) -> R) -> R {
        act(bytes)
    }

    fn encode<R>(&self, act: impl FnOnce(&[u8]) -> R) -> R {
        act(self)
    }
}

impl System for Index {
    fn name(&self) -> &str {
        self.name
    }

    fn summary(&self) -> String {
        self.summary.into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scans: true,
            persistent: self.persistent,
            threads: true,
            counts: self.persistent,
            write_latency: self.persistent,
            any_size: self.takes_strings,
            leaf_bytes: self.leaf_bytes,
            alone: true,
            lacks_transactions: is_about_transactions(self.name) && !htm::is_available(),
            ..Capabilities::NONE
        }
    }

    fn durability(&self, setting: &Setting) -> String {
        if self.persistent { durability(setting) } else { "none".into() }
    }

    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error> {
        match setting.key {
            KeyKind::Integer => self.create_in::<u64>(setting),
            KeyKind::Bytes(_) => self.create_in::<[u8]>(setting),
        }
    }
}

impl Index {
    fn create_in<K: Class + ?Sized>(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error> {
        let entry = registry::<K, Hardware>().into_iter().find(|entry| entry.name == self.name);
        let entry = entry.ok_or(Error::Missing { system: self.name.into(), operation: "byte strings in nodes of this size" })?;
        let failed = |error: everleaf_index::Error| Error::system(self.name, error);
        let (pool, path) = create_pool(setting).map_err(|error| failed(error.into()))?;
        let index = entry.create(&pool, ROOT).map_err(failed)?;
        Ok(Box::new(Open { index, pool, entry, path, setting: setting.clone() }))
    }
}

/// An index with its pool. Fields are dropped in this order.
struct Open<K: Class + ?Sized> {
    index: Box<dyn OrderedIndex<K>>,
    pool: Arc<Pool>,
    entry: Entry<K, Hardware>,
    path: Option<PathBuf>,
    setting: Setting,
}

impl<K: Class + ?Sized> Open<K> {
    fn failed(&self) -> impl Fn(everleaf_index::Error) -> Error + '_ {
        |error| Error::system(self.entry.name, error)
    }

    fn present(&self, count: usize) -> Error {
        Error::system(self.entry.name, format!("{count} keys are there that were never inserted"))
    }

    fn absent(&self) -> Error {
        Error::system(self.entry.name, "a key to update is not there")
    }

    /// Whether the value is stored in the value word itself.
    fn is_inline(&self) -> bool {
        K::WHOLE && self.setting.value_bytes == 8
    }

    /// The word for a value. A record that it points to is durable.
    fn word(&self, key: &[u8], value: &[u8]) -> Result<NonZeroU64, everleaf_index::Error> {
        let word = match value.first_chunk() {
            Some(word) if self.is_inline() => u64::from_le_bytes(*word),
            _ => Record::create(&self.pool, key, value)?.release().link(),
        };
        Ok(NonZeroU64::new(word).expect("the lab writes no value that begins with eight zeroes, and no record lies at 0"))
    }

    /// Appends the value of a word. Its record must not be freed meanwhile.
    fn read(&self, word: NonZeroU64, value: &mut Vec<u8>) -> Result<(), everleaf_index::Error> {
        if self.is_inline() {
            value.extend_from_slice(&word.get().to_le_bytes());
        } else {
            let record = Record::read(&self.pool, word.get())?;
            record.copy_value(0, record.value_size(), value);
        }
        Ok(())
    }

    /// Frees the record of a word that the index no longer holds.
    fn retire(&self, word: Option<NonZeroU64>) -> Result<(), everleaf_index::Error> {
        if let Some(word) = word
            && !self.is_inline()
        {
            let record = Record::read(&self.pool, word.get())?;
            self.pool.retire(record.off, &self.pool.pin());
        }
        Ok(())
    }

    /// Reopens the index in a pool. Also returns, for one that was closed, how many entries had to be read for that.
    fn recover(entry: &Entry<K, Hardware>, pool: &Arc<Pool>, inline: bool, threads: u16) -> Result<(Box<dyn OrderedIndex<K>>, u64), everleaf_index::Error> {
        let (reach, read) = (pool.needs_recovery().then(|| pool.reach()), AtomicU64::new(0));
        let mark = |word: NonZeroU64| {
            let record = Record::read(pool, word.get())?;
            Ok(reach.as_ref().map_or(Ok(()), |reach| reach.mark(record.off, record.size()))?)
        };
        let count = |_: NonZeroU64| {
            read.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let trace: Option<&Trace<'_>> = match reach {
            Some(_) => (!inline).then_some(&mark),
            // An index that uses its image makes no call.
            None => leaves_image::<K>(entry.name).then_some(&count),
        };
        let index = entry.open(pool, ROOT, &Recovery { reach: reach.as_ref(), trace, threads: threads.into() })?;
        if let Some(reach) = reach {
            pool.adopt(reach)?;
        }
        Ok((index, read.into_inner()))
    }
}

impl<K: Class + ?Sized> Instance for Open<K> {
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error> {
        Ok(Box::new(Threads { open: self, keys: Vec::new(), words: Vec::new() }))
    }

    fn bulk_load(&self, entries: &mut Entries<'_>, fill: f64) -> Result<(), Error> {
        // The index cannot be told that a record could not be written, so the error is kept, and no more entries follow.
        let mut failed = Ok(());
        let mut words = entries.map_while(|(key, value)| match self.word(&key, &value) {
            Ok(word) => Some((K::decode(&key, K::to_owned), word)),
            Err(error) => {
                failed = Err(error);
                None
            }
        });
        let loaded = self.index.bulk_load(&mut words, fill);
        failed.and(loaded).map_err(self.failed())
    }

    fn space(&self) -> Result<Space, Error> {
        let mut bytes = 0;
        self.index
            .blocks(&mut |_, size| {
                bytes += size as u64;
                Ok(())
            })
            .map_err(self.failed())?;
        if !self.is_inline() {
            let mut failed = Ok(());
            let visited = self.index.scan(Bound::Unbounded, Direction::Forward, &mut |_, word| match Record::read(&self.pool, word.get()) {
                Ok(record) => {
                    bytes += record.size() as u64;
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            });
            visited.and(failed).map_err(self.failed())?;
        }
        Ok(Space { pool_bytes: self.entry.persistent.then_some(bytes), leaves: Some(self.index.stats().leaves) })
    }

    fn counters(&self) -> Option<&Counters> {
        self.pool.medium().counters()
    }

    fn touch_ahead(&self, leaves: u64) -> Result<(), Error> {
        let stats = self.index.stats();
        let size = leaves * stats.leaf_bytes / stats.leaves.max(1);
        // A dropped block is free at once. Its slabs lie before all unused memory, so they are taken first.
        let block = self.pool.alloc_words(size as usize / WORD).map_err(|error| self.failed()(error.into()))?;
        block.iter().step_by(SMALLEST_PAGE / WORD).for_each(|word| self.pool.store(word, 0, Ordering::Relaxed));
        Ok(())
    }

    fn marks(&self) -> Option<Marks> {
        let (lines_flushed, fences) = flushed_and_fenced(&self.pool);
        let everleaf_index::Stats { leaves, splits, rebuilds, transactions, .. } = self.index.stats();
        let transactions = is_about_transactions(self.entry.name).then_some(transactions);
        Some(Marks { lines_flushed, fences, leaves, splits, rebuilds, transactions })
    }

    fn settle(&self) {
        // Counting the keys requires reading all leaves.
        self.index.stats();
    }

    fn reopen(self: Box<Self>, shutdown: Shutdown, threads: u16) -> Result<Reopened, Error> {
        let (inline, name) = (self.is_inline(), self.entry.name);
        let Self { index, pool, entry, path, setting } = *self;
        let failed = |error: everleaf_index::Error| Error::system(name, error);
        let path = path.filter(|_| entry.persistent).ok_or(Error::Missing { system: name.into(), operation: "reopening" })?;
        if shutdown == Shutdown::Close {
            index.close().map_err(failed)?;
            pool.close().map_err(|error| failed(error.into()))?;
        }
        drop(index);
        drop(pool);
        let start = Instant::now();
        let pool = open_pool(&path, &setting).map_err(|error| failed(error.into()))?;
        let (index, read) = Self::recover(&entry, &pool, inline, threads).map_err(failed)?;
        let time = start.elapsed();
        if read > 0 {
            let message = format!("{read} entries were read after a clean shutdown, although it leaves an image behind; the time would be that of a recovery");
            return Err(Error::system(name, message));
        }
        Ok(Reopened { instance: Box::new(Self { index, pool, entry, path: Some(path), setting }), time })
    }
}

/// A thread's access to an index.
struct Threads<'a, K: Class + ?Sized> {
    open: &'a Open<K>,
    /// The keys and words of a batch, reused for every one.
    keys: Vec<K::Owned>,
    words: Vec<Option<NonZeroU64>>,
}

impl<K: Class + ?Sized> Handle for Threads<'_, K> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let open = self.open;
        let insert = || {
            let word = open.word(key, value)?;
            match K::decode(key, |key| open.index.insert(key, word))? {
                None => Ok(true),
                Some(_) => open.retire(Some(word)).map(|()| false),
            }
        };
        match insert().map_err(open.failed())? {
            true => Ok(()),
            false => Err(open.present(1)),
        }
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let open = self.open;
        let mut get = || {
            // Only records can be freed while a reader uses them.
            let _pinned = (!open.is_inline()).then(|| open.pool.pin());
            let word = K::decode(key, |key| open.index.get(key))?;
            word.map(|word| open.read(word, value)).transpose()
        };
        Ok(get().map_err(open.failed())?.is_some())
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let open = self.open;
        let update = || {
            let word = open.word(key, value)?;
            let before = K::decode(key, |key| open.index.update(key, word))?;
            open.retire(if before.is_some() { before } else { Some(word) })?;
            Ok(before.is_some())
        };
        match update().map_err(open.failed())? {
            true => Ok(()),
            false => Err(open.absent()),
        }
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let open = self.open;
        let delete = || {
            let before = K::decode(key, |key| open.index.remove(key))?;
            open.retire(before).map(|()| before.is_some())
        };
        delete().map_err(open.failed())
    }

    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
        let open = self.open;
        let _pinned = (!open.is_inline()).then(|| open.pool.pin());
        let (mut value, mut failed) = (Vec::new(), Ok(()));
        let is_inline = open.is_inline();
        let mut show = |key: &K, word: NonZeroU64| {
            if is_inline {
                return key.encode(|key| visit(key, &word.get().to_le_bytes()));
            }
            value.clear();
            failed = open.read(word, &mut value);
            if failed.is_ok() { key.encode(|key| visit(key, &value)) } else { ControlFlow::Break(()) }
        };
        let visited = K::decode(from, |from| open.index.scan(Bound::Included(from), Direction::Forward, &mut show));
        visited.and(failed).map_err(open.failed())
    }

    /// As a program with integers would write it: as many instructions between two operations.
    fn insert_each(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        let open = self.open;
        if !open.is_inline() {
            return super::insert_one_by_one(self, keys, values);
        }
        for (key, value) in keys.zip(values) {
            let word = open.word(key, value).map_err(open.failed())?;
            match K::decode(key, |key| open.index.insert(key, word)) {
                Ok(None) => {}
                Ok(Some(_)) => return Err(open.present(1)),
                Err(error) => return Err(open.failed()(error)),
            }
        }
        Ok(())
    }

    fn update_each(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        let open = self.open;
        if !open.is_inline() {
            return super::update_one_by_one(self, keys, values);
        }
        for (key, value) in keys.zip(values) {
            let word = open.word(key, value).map_err(open.failed())?;
            match K::decode(key, |key| open.index.update(key, word)) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(open.absent()),
                Err(error) => return Err(open.failed()(error)),
            }
        }
        Ok(())
    }

    fn delete_each(&mut self, keys: ChunksExact<'_, u8>) -> Result<u64, Error> {
        let open = self.open;
        if !open.is_inline() {
            return super::delete_one_by_one(self, keys);
        }
        let mut deleted = 0;
        for key in keys {
            deleted += u64::from(K::decode(key, |key| open.index.remove(key)).map_err(open.failed())?.is_some());
        }
        Ok(deleted)
    }

    fn get_each(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let open = self.open;
        if !open.is_inline() {
            return super::get_one_by_one(self, keys, value_size, values);
        }
        let (start, mut found) = (values.len(), 0);
        values.resize(start + keys.len() * value_size, 0);
        for (key, value) in keys.zip(values[start..].as_chunks_mut().0) {
            match K::decode(key, |key| open.index.get(key)) {
                Ok(Some(word)) => {
                    *value = word.get().to_le_bytes();
                    found += 1;
                }
                Ok(None) => {}
                Err(error) => return Err(open.failed()(error)),
            }
        }
        Ok(found)
    }

    fn get_in_turn(&mut self, mut keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>, mask: usize) -> Result<u64, Error> {
        let open = self.open;
        if !open.is_inline() {
            return super::get_one_in_turn(self, keys, value_size, values, mask);
        }
        let (start, mut found, mut bend) = (values.len(), 0, 0);
        values.resize(start + keys.len() * value_size, 0);
        for value in values[start..].as_chunks_mut().0 {
            let Some(key) = keys.nth(bend) else { break };
            let word = K::decode(key, |key| open.index.get(key)).map_err(open.failed())?.map_or(0, NonZeroU64::get);
            *value = word.to_le_bytes();
            bend = usize::from(word as u8) & mask;
            found += u64::from(word != 0);
        }
        Ok(found)
    }

    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let open = self.open;
        self.keys.clear();
        self.keys.extend(keys.map(|key| K::decode(key, K::to_owned)));
        let keys: Vec<&K> = self.keys.iter().map(std::borrow::Borrow::borrow).collect();
        let _pinned = (!open.is_inline()).then(|| open.pool.pin());
        self.words.clear();
        open.index.get_many(&keys, &mut self.words).map_err(open.failed())?;
        let mut found = 0;
        for word in &self.words {
            let read = |values: &mut Vec<u8>| word.map(|word| open.read(word, values)).transpose().map(|read| read.is_some());
            found += append_found(values, value_size, read).map_err(open.failed())?;
        }
        Ok(found)
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        let open = self.open;
        let words = keys.clone().zip(values).map(|(key, value)| open.word(key, value)).collect::<Result<Vec<_>, _>>().map_err(open.failed())?;
        self.keys.clear();
        self.keys.extend(keys.map(|key| K::decode(key, K::to_owned)));
        let pairs: Vec<(&K, NonZeroU64)> = self.keys.iter().map(std::borrow::Borrow::borrow).zip(words).collect();
        self.words.clear();
        open.index.upsert_many(&pairs, &mut self.words).map_err(open.failed())?;
        match self.words.iter().flatten().count() {
            0 => Ok(()),
            present => Err(open.present(present)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::Domain;

    /// A huge page first touched within 5,000 inserts took four times as long as all of them, in every second round.
    #[test]
    fn memory_that_was_touched_ahead_is_taken_first() {
        const LEAVES: u64 = 200_000;
        let setting = Setting { domain: Domain::PageCache, ..Setting::default() };
        let instance = all().iter().find(|system| system.name() == "lb").unwrap().create(&setting).unwrap();
        let (size, space) = (LEAVES * 256, instance.space().unwrap());
        let growth = || {
            let before = crate::machine::private_bytes().unwrap();
            instance.touch_ahead(LEAVES).unwrap();
            crate::machine::private_bytes().unwrap().saturating_sub(before)
        };
        // Other tests use some megabytes meanwhile.
        let (first, second) = (growth(), growth());
        assert!(first > size * 9 / 10 && second < size / 2, "{first} and then {second} bytes for {size}");
        assert_eq!(instance.space().unwrap(), space, "nothing is kept");
    }
}
