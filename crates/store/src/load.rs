//! Bulk loading: the first keys of a namespace, in order, at the speed of memory.
//!
//! 1. Make a new index for the namespace and link it as its root. No reader in this life sees it: the namespace still seems to have no index, and a writer to
//!    it is told that it is being loaded. *Crash: recovery finds a namespace without keys.*
//! 2. Write the records, and make them durable a group at a time. *Crash: nothing reaches them; recovery finds them free.*
//! 3. The index builds its leaves from their links and publishes all of them by one store. **The commit point.** *Crash before: as in 2. After: all keys are
//!    there; this contradicts nothing that was promised, because the call has not returned.*
//! 4. With all stripes held, show the index. From here on every reader sees all keys. They carry no timestamps of their own; the index has one, drawn by the
//!    first reader that sees it, and earlier snapshots do not see the index ([`Space::index_at`](crate::store::Space::index_at)).
//!
//! An error or a panic in 2 or 3 (the caller's iterator may panic) leaves no trace: the root is durably unlinked, and everything is given back.

use crate::group::GROUP;
use crate::namespace::link_word;
use crate::store::{Index, Shared, Space, check_sizes};
use crate::{Error, Namespace};
use everleaf_index::record::{Record, Version};
use everleaf_index::{FILL, Listed};
use everleaf_pmem::{Medium, Off, Pool, Word, schedule};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::vec::IntoIter;

/// Writes records while an index takes their links.
struct Records<'p, I, M: Medium> {
    pool: &'p Pool<M>,
    entries: I,
    /// Durable records that wait to be taken.
    ready: IntoIter<(Vec<u8>, NonZeroU64)>,
    /// Links of all records, to give them back if necessary.
    written: &'p mut Vec<NonZeroU64>,
    /// Number of those that expire.
    expiring: u64,
    last: Option<(Vec<u8>, NonZeroU64)>,
    error: Option<Error>,
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = (K, V, Option<u64>)>, M: Medium> Records<'_, I, M> {
    /// Writes the next records, and makes them durable together.
    fn write_group(&mut self) -> Result<(), Error> {
        let (mut keys, mut records) = (Vec::with_capacity(GROUP), Vec::with_capacity(GROUP));
        for (key, value, expiry_ms) in self.entries.by_ref().take(GROUP) {
            let (key, value) = (key.as_ref(), value.as_ref());
            check_sizes(key, value)?;
            self.expiring += u64::from(expiry_ms.is_some());
            records.push(Record::write(self.pool, key, value, Version { expiry_ms, ..Version::default() })?.flush());
            keys.push(key.to_vec());
        }
        let links: Vec<_> = self.pool.fence_all(records).into_iter().map(|record| link_word(record.release())).collect();
        self.written.extend_from_slice(&links);
        self.ready = keys.into_iter().zip(links).collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = (K, V, Option<u64>)>, M: Medium> Iterator for Records<'_, I, M> {
    type Item = (Vec<u8>, NonZeroU64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.len() == 0 && self.error.is_none() {
            self.error = self.write_group().err();
        }
        if self.error.is_some() {
            // The index must not mistake the records so far for all of them: a repeated key makes it give up. Once only: it may gather all records first.
            return self.last.take();
        }
        self.last = Some(self.ready.next()?);
        self.last.clone()
    }
}

/// A load in progress. If it is dropped before it has ended, it is undone.
struct Loading<'n, M: Listed> {
    namespace: &'n Namespace<M>,
    /// `None` when it has ended.
    index: Option<Index>,
    written: Vec<NonZeroU64>,
}

impl<M: Listed> Loading<'_, M> {
    fn give_up(&mut self) -> Result<(), Error> {
        let Some(index) = self.index.take() else { return Ok(()) };
        let (shared, space) = (&self.namespace.shared, &self.namespace.space);
        let given_up = shared.give_up_load(self.namespace, &index, &self.written);
        if let Err(error) = &given_up
            && space.is_loading.load(Ordering::Acquire)
        {
            shared.halt(|| format!("a load that was interrupted could not be taken back: {error}"));
        }
        given_up
    }
}

impl<M: Listed> Drop for Loading<'_, M> {
    fn drop(&mut self) {
        // An error that does not halt the store leaks blocks, and verification reports it.
        _ = self.give_up();
    }
}

impl<M: Listed> Namespace<M> {
    /// Fills a namespace without keys with `entries`, whose keys ascend; returns their number. When the call returns, all of them are there, for other threads,
    /// snapshots and crashes at once; after an error, none.
    ///
    /// ```
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # let space = store.namespace("space")?;
    /// assert_eq!(space.load([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?, 3);
    /// assert_eq!(space.count(), 3);
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// One namespace is loaded at a time. During the load it seems to have no keys: a delete finds nothing, and a clear has nothing to do; other writes to it
    /// are refused with [`Error::Loading`]; and [`Store::verify`](crate::Store::verify) and [`Store::close`](crate::Store::close) wait. So `entries` must not
    /// write to it, nor call these.
    ///
    /// # Errors
    /// A namespace with keys, even expired ones; keys that do not ascend; a key or value too long; a full pool; a damaged pool; [`Error::Halted`].
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, entries: impl IntoIterator<Item = (K, V)>) -> Result<u64, Error> {
        self.load_until(entries.into_iter().map(|(key, value)| (key, value, None)))
    }

    /// [`Namespace::load`] of entries some of which expire: key, value, and when, in milliseconds since 1970.
    ///
    /// # Errors
    /// See [`Namespace::load`].
    pub fn load_until<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, entries: impl IntoIterator<Item = (K, V, Option<u64>)>) -> Result<u64, Error> {
        let shared = &self.shared;
        let _loading = schedule::lock(&shared.loading);
        shared.remove(&self.space, |count| if count == 0 { Ok(()) } else { Err(Error::Index(everleaf_index::Cause::NotEmpty { keys: count }.into())) })?;
        // The entries can be read only once: make room before.
        shared.make_room(usize::MAX);
        let index = shared.begin_load(&self.space)?;
        let mut loading = Loading { namespace: self, index: Some(index), written: Vec::new() };
        let Loading { index: Some(index), written, .. } = &mut loading else { unreachable!("it has just begun") };
        let mut records =
            Records { pool: &shared.pool, entries: entries.into_iter().fuse(), ready: Vec::new().into_iter(), written, expiring: 0, last: None, error: None };
        let loaded = index.tree.bulk_load(&mut records, FILL).map_err(Error::from);
        let Records { expiring, error, .. } = records;
        let outcome = error.map_or(loaded, Err).and_then(|()| shared.writable());
        if let Err(error) = outcome {
            loading.give_up()?;
            return Err(error);
        }
        let count = loading.written.len() as u64;
        if let Some(index) = loading.index.take() {
            shared.show_loaded(&self.space, index, count, expiring);
        }
        Ok(count)
    }
}

impl<M: Listed> Shared<M> {
    /// Step 4.
    fn show_loaded(&self, space: &Space, index: Index, count: u64, expiring: u64) {
        let _all = self.stripes.lock_all();
        self.note_expiring(space, expiring, 0);
        let index = Arc::new(index);
        schedule::drain();
        space.index.store(Some(index.clone()));
        space.turned.store(index.begun.get(&self.clock), Ordering::Release);
        space.counter().set(count);
        space.is_loading.store(false, Ordering::Release);
    }

    /// Takes back steps 1 and 2.
    fn give_up_load(&self, namespace: &Namespace<M>, index: &Index, written: &[NonZeroU64]) -> Result<(), Error> {
        self.pool.unlink_root(namespace.name())?;
        namespace.space.is_loading.store(false, Ordering::Release);
        let guard = self.pool.pin();
        index.tree.blocks(&mut |off, _| {
            self.pool.retire(Off::<Word>::new(off), &guard);
            Ok(())
        })?;
        written.iter().try_for_each(|link| self.retire(link.get(), &guard))
    }
}
