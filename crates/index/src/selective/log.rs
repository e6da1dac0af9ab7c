//! Logs of divisions: what a leaf that gives entries away will become, for leaves that cannot switch all of it by one word.
//!
//! ```text
//! root block: logs -> log -> log -> ...                                 each a line
//! log         link of the next log | phase | leaf | next | bitmap | -
//! ```
//!
//! A log names a leaf and what its link and its bitmap will be: two words that may lie in two lines. Only together do they keep the entries that another leaf
//! has taken over reachable once.
//!
//! Invariants:
//! 1. a log whose phase is not `REDO` means nothing, whatever else it holds;
//! 2. if the phase is `REDO`, the leaf is in the list and latched by the thread that has taken the log, and what the log's words lead to is durable;
//! 3. the list of logs grows at its head only, and has as many logs as threads have ever divided leaves at the same moment: nobody waits for a log.
//!
//! Protocol, between taking a log and giving it back:
//! 1. leaf, next, bitmap, then the phase: persist, the commit point. All are in one line, which keeps a prefix of its stores, so a crash leaves a phase only
//!    with all of its own record. Before, the log means nothing, and the new leaf is a block that nobody reaches.
//! 2. the words of the leaf, persist. After a crash, recovery stores them (again).
//! 3. phase := 0, persist, before the leaf is unlatched: recovery must not overwrite later changes of the leaf. A crash before: the leaf has not been changed
//!    since, so storing its words again changes nothing.
//!
//! Recovery does 2 and 3 for every log, before it reads a leaf. After a crash within, it begins again.
//!
//! FPTree's own log has no phase. It is in use from the moment that it names the leaf, and the new leaf is entered later. If a crash comes in between, a field
//! that an earlier division has left there is taken for the new leaf: the leaf that it once was is overwritten. And whether the new leaf has been filled is
//! deduced from the old one being full, which holds only as long as no other leaf is ever divided. Here the one phase that is needed is a word of its own.
//! There is none for filling the new leaf: until step 1, recovery finds that leaf because nothing reaches it.

use crate::Error;
use everleaf_pmem::{LINE, Medium, Off, Pm, Pool, Word, resident, schedule};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Relaxed, Release};

resident! {
    /// A log. See the module documentation.
    pub struct Log {
        link: Word,
        phase: Word,
        leaf: Word,
        next: Word,
        bitmap: Word,
        reserved: [Word; 3],
    }
}

const _: () = assert!(size_of::<Log>() == LINE, "what is stored to a log is stored in order");

/// The phase of a division that has been recorded, and is to be finished: far from 0, so that no flipped bit turns 0 into it.
const REDO: u64 = u64::from_le_bytes(*b"redo it!");

/// What a leaf will become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// The leaf.
    pub leaf: Off<T>,
    /// Its link, as it will be.
    pub next: u64,
    /// Its bitmap as the layout stores it, with check bits.
    pub bitmap: u64,
}

impl Log {
    /// Records what a leaf will become: step 1.
    #[track_caller]
    pub fn record<T, M: Medium>(&self, pm: &Pm<M>, Record { leaf, next, bitmap }: Record<T>) {
        for (word, value) in [(&self.leaf, leaf.link()), (&self.next, next), (&self.bitmap, bitmap), (&self.phase, REDO)] {
            pm.store(word, value, Release);
        }
        pm.persist(self);
    }

    /// Records that it has become so: step 3.
    #[track_caller]
    pub fn clear<M: Medium>(&self, pm: &Pm<M>) {
        pm.store(&self.phase, 0, Release);
        pm.persist(self);
    }

    /// What is recorded, if anything is.
    ///
    /// # Errors
    /// Damage.
    pub fn read<T, M: Medium>(&self, pm: &Pm<M>) -> Result<Option<Record<T>>, Error> {
        match self.phase.get() {
            0 => Ok(None),
            REDO => {
                let (leaf, next) = (Off::from_link(self.leaf.get())?, self.next.get());
                // Checked before it is stored over a sound link, and the log is cleared.
                Off::<T>::from_link(next)?;
                Ok(Some(Record { leaf, next, bitmap: self.bitmap.get() }))
            }
            _ => Err(everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), "a log of a tree in a phase that there is not").into()),
        }
    }
}

/// The error that a log is damaged.
pub(super) fn damage<M: Medium>(pm: &Pm<M>, log: &Log) -> Error {
    everleaf_pmem::Error::corrupt(pm.offset_of(log).bytes(), "a log of a tree with a bitmap whose check bits do not match").into()
}

/// The logs of an open tree.
pub(super) struct Logs {
    /// Those that nobody has taken. Locked while another one is made.
    free: Mutex<Vec<Off<Log>>>,
}

impl Logs {
    /// The logs of a tree in which no division is in progress.
    pub(super) fn new(all: Vec<Off<Log>>) -> Self {
        Self { free: Mutex::new(all) }
    }

    /// Takes a log, or makes one if none is free. `first` is the word that links the first log.
    ///
    /// # Errors
    /// A full pool.
    pub(super) fn take<'a, M: Medium>(&'a self, pool: &'a Pool<M>, first: &Word) -> Result<Taken<'a>, Error> {
        let mut free = schedule::lock(&self.free);
        let off = match free.pop() {
            Some(off) => off,
            None => {
                let log = pool.alloc_zeroed::<Log>()?;
                pool.store(&log.link, first.get(), Relaxed);
                let log = pool.seal(log);
                // persist-equivalent(fence drop): to one thread, which fences what it records. Where it finds no room for a leaf, another takes the log next.
                pool.link(first, log)
            }
        };
        Ok(Taken { log: pool.at(off, "a log of a tree does not lie in the pool")?, off, logs: self })
    }
}

/// A log that nobody else has, until it is dropped.
pub struct Taken<'a> {
    log: &'a Log,
    off: Off<Log>,
    logs: &'a Logs,
}

impl Deref for Taken<'_> {
    type Target = Log;
    fn deref(&self) -> &Log {
        self.log
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        schedule::lock(&self.logs.free).push(self.off);
    }
}

/// Calls `visit` with each log of the list from `first`.
pub(super) fn follow<M: Medium>(pool: &Pool<M>, first: u64, mut visit: impl FnMut(Off<Log>, &Log) -> Result<(), Error>) -> Result<(), Error> {
    let mut next = Off::<Log>::from_link(first)?;
    for _ in 0..=pool.length() / size_of::<Log>() {
        if next.is_null() {
            return Ok(());
        }
        let log = pool.at(next, "a log of a tree does not lie in the pool")?;
        visit(next, log)?;
        next = Off::from_link(log.link.get())?;
    }
    Err(everleaf_pmem::Error::corrupt(next.bytes(), "a list of logs that does not end").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Hardware, PoolOptions};

    /// Recovery stored it over the link of the leaf, and cleared the log, before anybody could notice.
    #[test]
    fn a_link_that_is_damaged_in_a_log_was_replayed() {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }).unwrap();
        let off = pool.seal(pool.alloc_zeroed::<Log>().unwrap()).release();
        let log = pool.get(off).unwrap();
        let record = Record { leaf: Off::<u64>::new(off.bytes()), next: off.link(), bitmap: 7 };
        log.record(&pool, record);
        assert_eq!(log.read(&pool).unwrap(), Some(record));
        log.record(&pool, Record { next: 0, ..record });
        assert!(log.read::<u64, _>(&pool).is_ok(), "the last leaf");
        for bit in 0..u64::BITS {
            log.record(&pool, Record { next: off.link() ^ 1 << bit, ..record });
            assert!(log.read::<u64, _>(&pool).is_err(), "bit {bit}");
        }
    }
}
