//! Threads that write what another one reads.
//!
//! Each key belongs to one thread, so that of two lines with the same key the later one wins, as in the file.

use crate::entry::Entry;
use crate::failure::Failure;
use everleaf::{Namespace, Store};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

/// Number of entries handed over together.
const BATCH_COUNT: usize = 512;
/// Size in bytes at which a batch is handed over earlier.
const BATCH_SIZE: usize = 1 << 20;
/// Number of batches that wait for a thread; when there are more, the reader waits.
const QUEUE_COUNT: usize = 8;

/// Counts of what the threads have written.
#[derive(Default)]
pub(super) struct Written {
    entries: AtomicU64,
    expired: AtomicU64,
}

impl Written {
    /// Number of entries.
    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Number of entries that had expired.
    pub(super) fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }
}

/// The threads.
pub(super) struct Writers<'scope> {
    store: &'scope Store,
    namespaces: BTreeMap<String, Namespace>,
    /// The namespace of the batches being filled.
    current: Option<String>,
    hasher: RandomState,
    writers: Vec<Writer<'scope>>,
}

struct Writer<'scope> {
    queue: SyncSender<(Namespace, Vec<Entry>)>,
    thread: ScopedJoinHandle<'scope, Result<(), everleaf::Error>>,
    batch: Vec<Entry>,
    /// Size of the batch in bytes.
    size: usize,
}

impl<'scope> Writers<'scope> {
    /// Starts `count` threads, which count in `written` what they write.
    pub(super) fn start(scope: &'scope Scope<'scope, '_>, store: &'scope Store, count: usize, written: &'scope Written) -> Self {
        let start = |_| {
            let (queue, batches) = sync_channel(QUEUE_COUNT);
            Writer { queue, thread: scope.spawn(move || write_all(&batches, store, written)), batch: Vec::new(), size: 0 }
        };
        Self { store, namespaces: BTreeMap::new(), current: None, hasher: RandomState::new(), writers: (0..count).map(start).collect() }
    }

    /// Checks that there can be a namespace with this name.
    pub(super) fn expect_namespace(&mut self, name: &str) -> Result<(), everleaf::Error> {
        if !self.namespaces.contains_key(name) {
            self.namespaces.insert(name.to_owned(), self.store.namespace(name)?);
        }
        Ok(())
    }

    /// Hands over an entry for `namespace`, unless it names its own. It is written by the end of [`Writers::finish`].
    pub(super) fn write(&mut self, entry: Entry, namespace: &str) -> Result<(), Failure> {
        let namespace = entry.namespace.as_deref().unwrap_or(namespace);
        if self.current.as_deref() != Some(namespace) {
            self.hand_over_all()?;
            self.current = Some(namespace.to_owned());
        }
        let at = (self.hasher.hash_one(&entry.key) % self.writers.len() as u64) as usize;
        let writer = &mut self.writers[at];
        writer.size += entry.key.len() + entry.value.len();
        writer.batch.push(entry);
        if writer.batch.len() >= BATCH_COUNT || writer.size >= BATCH_SIZE { self.hand_over(at) } else { Ok(()) }
    }

    /// Waits until everything has been written.
    ///
    /// # Errors
    /// The first failure of a thread.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let handed = self.hand_over_all();
        let mut outcome = Ok(());
        for writer in self.writers {
            // A thread ends when its queue is dropped.
            drop(writer.queue);
            match writer.thread.join() {
                Ok(written) => outcome = outcome.and(written.map_err(Failure::from)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        outcome.and(handed)
    }

    fn hand_over_all(&mut self) -> Result<(), Failure> {
        (0..self.writers.len()).try_for_each(|at| self.hand_over(at))
    }

    fn hand_over(&mut self, at: usize) -> Result<(), Failure> {
        let (Some(name), false) = (self.current.clone(), self.writers[at].batch.is_empty()) else { return Ok(()) };
        self.expect_namespace(&name)?;
        let writer = &mut self.writers[at];
        let batch = std::mem::take(&mut writer.batch);
        writer.size = 0;
        // If the thread has failed, nothing receives the batch: `finish` returns the reason.
        writer.queue.send((self.namespaces[&name].clone(), batch)).map_err(|_| Failure::No)
    }
}

/// Writes all batches until the queue is dropped.
fn write_all(batches: &Receiver<(Namespace, Vec<Entry>)>, store: &Store, written: &Written) -> Result<(), everleaf::Error> {
    while let Ok((namespace, batch)) = batches.recv() {
        let expired = write_batch(&namespace, &batch, store.time_ms())?;
        written.entries.fetch_add(batch.len() as u64, Ordering::Relaxed);
        written.expired.fetch_add(expired, Ordering::Relaxed);
    }
    Ok(())
}

/// Writes entries, those that do not expire together. For expired entries the keys are removed, whatever they held; returns the number of these.
fn write_batch(namespace: &Namespace, batch: &[Entry], now_ms: u64) -> Result<u64, everleaf::Error> {
    let mut expired = 0;
    for group in batch.chunk_by(|one, other| one.expiry_ms.is_none() && other.expiry_ms.is_none()) {
        match group {
            [Entry { key, expiry_ms: Some(expiry_ms), .. }] if *expiry_ms <= now_ms => {
                namespace.delete(key)?;
                expired += 1;
            }
            [Entry { key, value, expiry_ms: Some(expiry_ms), .. }] => namespace.put_until(key, value, *expiry_ms)?,
            lasting => namespace.put_many(&lasting.iter().map(|entry| (entry.key.as_slice(), entry.value.as_slice())).collect::<Vec<_>>())?,
        }
    }
    Ok(expired)
}
