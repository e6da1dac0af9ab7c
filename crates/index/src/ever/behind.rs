//! Reading leaves in the background of an index that serves already.
//!
//! An index of integers is opened with descriptors of zeroes: no thread has read those leaves, and the latch says so ([`Latch`](crate::latch::Latch)) to
//! readers and writers alike. So they come here, where the latch begins, locked; the leaf is read, and its fingerprints are stored. What counts follows from
//! the range of the leaf:
//! 1. A leaf that no thread has read keeps its range and its place in the router, since only a holder of its latch changes these. So its low fence is the one
//!    in the directory. The high fence can be taken from the router at any time, or from the list with which the index was opened.
//! 2. A thread that comes here has found the leaf in the router, not merely on a stale way: it validated the way after it looked at the latch, or it found the
//!    leaf under the lock of its node. The latch has not begun, so it had not begun before either, and the leaf is still in the router.
//!
//! Meanwhile, background threads go through the list. Every thread counts the keys of the leaves that it reads, so the count is complete when all leaves are
//! read. A thread that needs the number makes sure of that ([`Ever::read_rest`]).

use super::directory::{Directory, Number, handle};
use super::leaf::{Descriptor, Fingerprints, Leaf, Place, Slot, record_of_another_key};
use super::{Ever, Known};
use crate::latch::{Patience, Restart};
use crate::registry::{SHARE_MIN, Trace};
use crate::selective::router::{Fences, Router};
use crate::{Error, Key};
use everleaf_pmem::{Medium, Pm, Pool, probe};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::thread::{Builder, JoinHandle};

/// How many leaves ahead a thread prefetches.
const AHEAD: usize = 2;

/// The leaves that an index was opened with, in the order of their lows, and how many of them have been read.
pub(super) struct Unread<K: Key + ?Sized> {
    leaves: Vec<(K::Owned, Number)>,
    /// The leaves below are taken.
    next: AtomicUsize,
    /// Number of leaves that have been read.
    read: AtomicUsize,
    /// Set if the rest is no longer needed.
    is_over: AtomicBool,
}

impl<K: Key + ?Sized> Unread<K> {
    pub(super) fn new(leaves: Vec<(K::Owned, Number)>) -> Self {
        Self { leaves, next: AtomicUsize::new(0), read: AtomicUsize::new(0), is_over: AtomicBool::new(false) }
    }

    /// Whether all have been read, and their keys counted.
    fn is_done(&self) -> bool {
        self.read.load(Acquire) >= self.leaves.len()
    }

    /// Reads the leaves that no thread has taken yet.
    ///
    /// # Errors
    /// A damaged leaf, which can occur only if keys or values are in records.
    fn read<M: Medium, const LINES: usize, const LEAVES: usize>(&self, pm: &Pm<M>, known: &Known, trace: Option<&Trace<'_>>) -> Result<(), Error> {
        loop {
            let start = self.next.fetch_add(SHARE_MIN, Relaxed);
            let end = self.leaves.len().min(start + SHARE_MIN);
            if start >= end || self.is_over.load(Relaxed) {
                return Ok(());
            }
            for at in start..end {
                // Reading a leaf takes as long as fetching several.
                if let Some(soon) = self.leaves.get(at + AHEAD).and_then(|(_, number)| Directory::<LINES, LEAVES>::leaf(pm, *number)) {
                    probe::prefetch_lines(soon);
                }
                let (low, number) = &self.leaves[at];
                let descriptor = known.descriptors.get(handle(*number));
                if let Some(_lock) = descriptor.latch().begin_locked() {
                    let leaf = Directory::<LINES, LEAVES>::leaf(pm, *number).expect("a leaf of an extent");
                    let high = self.leaves.get(at + 1).map(|(low, _)| low.borrow());
                    known.read::<K, M, LINES>(pm, leaf, descriptor, low.borrow(), high, trace)?;
                } else {
                    // Another thread was here before. When it unlocks, it has counted the keys.
                    let _ = descriptor.latch().read();
                }
            }
            self.read.fetch_add(end - start, Release);
        }
    }

    /// Reads all leaves with several threads.
    ///
    /// # Errors
    /// A damaged leaf.
    pub(super) fn read_all<M: Medium, const LINES: usize, const LEAVES: usize>(
        &self,
        pm: &Pm<M>,
        known: &Known,
        trace: Option<&Trace<'_>>,
        threads: usize,
    ) -> Result<(), Error> {
        let threads = if self.leaves.len() <= SHARE_MIN { 1 } else { threads };
        std::thread::scope(|scope| {
            // If the system gives no thread, the others do the work.
            let read = || self.read::<M, LINES, LEAVES>(pm, known, trace);
            let others: Vec<_> = (1..threads).map_while(|_| Builder::new().spawn_scoped(scope, read).ok()).collect();
            let own = read();
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).fold(own, Result::and)
        })
    }
}

impl Known {
    /// Reads a leaf whose latch has just begun.
    fn read<K: Key + ?Sized, M: Medium, const LINES: usize>(
        &self,
        pm: &Pm<M>,
        leaf: &Leaf<LINES>,
        descriptor: &Descriptor,
        low: &K,
        high: Option<&K>,
        trace: Option<&Trace<'_>>,
    ) -> Result<(), Error> {
        let mut count = 0;
        let counted = count_leaf::<K, M, LINES>(pm, leaf, low, high, trace.is_some(), &mut |value| {
            count += 1;
            trace.map_or(Ok(()), |trace| trace(value))
        })?;
        // persist-equivalent(store early): each for itself.
        // persist-equivalent(fence drop): who reaches further with this leaf fences before. Others, who may come sooner, do not wait for these flushes.
        super::structure::scrub(pm, leaf, if K::WHOLE { counted.below } else { counted.below | counted.beyond });
        descriptor.fill(&counted.fingerprints);
        self.keys.add(count);
        Ok(())
    }
}

/// Work that an index has left after it was opened.
pub(super) struct Behind<K: Key + ?Sized> {
    /// `None` if there is none, or no longer any.
    unread: Arc<Mutex<Option<Arc<Unread<K>>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<K: Key + ?Sized> Behind<K> {
    /// Nothing to do.
    pub(super) fn nothing() -> Self {
        Self { unread: Arc::default(), threads: Vec::new() }
    }

    /// Begins to read leaves with `threads` threads. If there are none, or the system gives none, leaves are read when they are touched.
    pub(super) fn begin<M: Medium, const LINES: usize, const LEAVES: usize>(
        unread: Unread<K>,
        pool: &Arc<Pool<M>>,
        known: &Arc<Known>,
        threads: usize,
    ) -> Self {
        let unread = Arc::new(unread);
        let threads = if unread.leaves.len() <= SHARE_MIN { 0 } else { threads };
        let place = Arc::new(Mutex::new(Some(unread.clone())));
        let begin = |_| {
            let (place, unread, pool, known) = (place.clone(), unread.clone(), pool.clone(), known.clone());
            let read = move || {
                unread.read::<M, LINES, LEAVES>(&pool, &known, None).expect("integers are in no records");
                if unread.is_done() {
                    *place.lock() = None;
                }
            };
            std::thread::Builder::new().name("recovery".into()).spawn(read).ok()
        };
        let threads = (0..threads).filter_map(begin).collect();
        Self { unread: place, threads }
    }
}

impl<K: Key + ?Sized> Drop for Behind<K> {
    fn drop(&mut self) {
        if let Some(unread) = &*self.unread.lock() {
            unread.is_over.store(true, Relaxed);
        }
        self.threads.drain(..).for_each(|thread| {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread that reads leaves has panicked");
        });
    }
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// Reads a leaf that was found in the router, if no thread has read it.
    #[cold]
    #[inline(never)]
    pub(super) fn wake(&self, number: Number) -> Restart {
        let descriptor = self.known.descriptors.get(handle(number));
        if K::WHOLE
            && let Some(_lock) = descriptor.latch().begin_locked()
        {
            let leaf = Directory::<LINES, LEAVES>::leaf(&self.pool, number).expect("a leaf of the router");
            let low = K::read_fence(&self.pool, self.directory.entry(&self.pool, number).low.get()).expect("a low fence that is an integer").0;
            let Fences { low, high } = self.router.fences_of(low.borrow());
            let read = self.known.read::<K, M, LINES>(&self.pool, leaf, descriptor, low.borrow(), high.as_ref().map(Borrow::borrow), None);
            read.expect("integers are in no records");
        }
        Restart
    }

    /// Reads all leaves that no thread has read since the index was opened.
    pub(super) fn read_rest(&self) {
        let Some(unread) = self.behind.unread.lock().clone() else { return };
        unread.read::<M, LINES, LEAVES>(&self.pool, &self.known, None).expect("integers are in no records");
        let mut patience = Patience::default();
        while !unread.is_done() {
            patience.wait();
        }
        *self.behind.unread.lock() = None;
    }
}

/// What counts in a leaf, according to its range.
pub(super) struct Counted {
    pub(super) fingerprints: Fingerprints,
    /// A bit for each slot with a value whose key is below the range, or beyond it.
    pub(super) below: u64,
    pub(super) beyond: u64,
}

/// Finds what counts in a leaf; calls `visit` with the value of each entry. A record that cannot be read, or is of another key, is an error if the caller
/// `insists`; otherwise the entry counts, so that the next thread that uses it finds the damage.
pub(super) fn count_leaf<K: Key + ?Sized, M: Medium, const LINES: usize>(
    pm: &Pm<M>,
    leaf: &Leaf<LINES>,
    low: &K,
    high: Option<&K>,
    insists: bool,
    visit: &mut dyn FnMut(NonZeroU64) -> Result<(), Error>,
) -> Result<Counted, Error> {
    let mut counted = Counted { fingerprints: Fingerprints::default(), below: 0, beyond: 0 };
    let mut key = K::Owned::default();
    for slot in 0..Leaf::<LINES>::CAPACITY {
        let Some(Slot { token, value }) = leaf.read(slot) else { continue };
        let read = K::read(pm, token, value, &mut key).and_then(|()| if key.borrow().token() == token { Ok(()) } else { Err(record_of_another_key(pm, leaf)) });
        let found: &K = key.borrow();
        match read {
            Err(error) if insists => return Err(error),
            Ok(()) if found < low => counted.below |= 1 << slot,
            Ok(()) if high.is_some_and(|high| found >= high) => counted.beyond |= 1 << slot,
            _ => {
                visit(value)?;
                counted.fingerprints.0[slot] = Place::of::<LINES>(token).fingerprint_at(slot);
            }
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrderedIndex;
    use crate::registry::Recovery;
    use everleaf_pmem::{Hardware, PoolOptions};

    type Index = Ever<u64, Hardware, 14, 68, 112>;

    #[test]
    fn nobody_reads_leaves_behind_the_back_of_an_index_that_has_been_closed() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 16 << 20, ..PoolOptions::default() }).unwrap();
        let index = Index::create(&pool, "index", "ever").unwrap();
        let keys = if cfg!(miri) { 100 } else { 20_000 };
        (0..keys).for_each(|key| _ = index.insert(&key, NonZeroU64::MIN).unwrap());
        drop(index);
        for threads in [1, 3] {
            let index = Index::open(&pool, "index", "ever", &Recovery { reach: None, trace: None, threads }).unwrap();
            index.close().unwrap();
            assert!(index.behind.unread.lock().is_none() && index.known.keys.get() == keys, "all have been read");
        }
    }
}
