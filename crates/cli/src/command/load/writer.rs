//! Threads that write what another one reads.
//!
//! Each key belongs to one thread, so that of two lines with the same key the later one wins, as in the file.

use crate::failure::Failure;
use everleaf::{Namespace, Store};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

/// Number of pairs that are handed over together.
const BATCH_COUNT: usize = 512;
/// Size in bytes at which fewer are handed over.
const BATCH_SIZE: usize = 1 << 20;
/// Number of batches that wait for a thread; more make the reader wait.
const QUEUE_COUNT: usize = 8;

type Pair = (Vec<u8>, Vec<u8>);

/// The threads.
pub(super) struct Writers<'scope, 'store> {
    store: &'store Store,
    namespaces: BTreeMap<String, Namespace>,
    /// The namespace of the batches that are being filled.
    current: Option<String>,
    hasher: RandomState,
    writers: Vec<Writer<'scope>>,
}

struct Writer<'scope> {
    queue: SyncSender<(Namespace, Vec<Pair>)>,
    thread: ScopedJoinHandle<'scope, Result<(), everleaf::Error>>,
    batch: Vec<Pair>,
    /// Size of the batch in bytes.
    size: usize,
}

impl<'scope, 'store> Writers<'scope, 'store> {
    /// Starts `count` threads, which count in `written` what they have written.
    pub(super) fn start(scope: &'scope Scope<'scope, '_>, store: &'store Store, count: usize, written: &'scope AtomicU64) -> Self {
        let start = |_| {
            let (queue, batches) = sync_channel(QUEUE_COUNT);
            Writer { queue, thread: scope.spawn(move || write_all(&batches, written)), batch: Vec::new(), size: 0 }
        };
        Self { store, namespaces: BTreeMap::new(), current: None, hasher: RandomState::new(), writers: (0..count).map(start).collect() }
    }

    /// Checks that there can be a namespace of that name.
    pub(super) fn expect_namespace(&mut self, name: &str) -> Result<(), everleaf::Error> {
        if !self.namespaces.contains_key(name) {
            self.namespaces.insert(name.to_owned(), self.store.namespace(name)?);
        }
        Ok(())
    }

    /// Hands a pair over. It is written by the end of [`Writers::finish`].
    pub(super) fn write(&mut self, namespace: &str, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        if self.current.as_deref() != Some(namespace) {
            self.hand_over_all()?;
            self.current = Some(namespace.to_owned());
        }
        let at = (self.hasher.hash_one(&key) % self.writers.len() as u64) as usize;
        let writer = &mut self.writers[at];
        writer.size += key.len() + value.len();
        writer.batch.push((key, value));
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
            // A thread ends when nobody can hand it anything any more.
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
        // Nobody takes it when the thread has failed: `finish` says why.
        writer.queue.send((self.namespaces[&name].clone(), batch)).map_err(|_| Failure::No)
    }
}

/// Writes what comes until nothing comes any more.
fn write_all(batches: &Receiver<(Namespace, Vec<Pair>)>, written: &AtomicU64) -> Result<(), everleaf::Error> {
    while let Ok((namespace, batch)) = batches.recv() {
        let pairs: Vec<(&[u8], &[u8])> = batch.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        namespace.put_many(&pairs)?;
        written.fetch_add(pairs.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
