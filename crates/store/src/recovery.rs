//! Opening a store: creating it, or recovering it after a crash.
//!
//! A crash leaves the roots and what they reach. Recovery
//! 1. marks the store block and, for each undecided slot, the log and the records that it names: they are needed below. Other slots name nothing;
//! 2. opens every index, which marks its own blocks and calls back for each record. A record outside any log is committed (`batch.rs`, invariant 1); it is
//!    marked and done with, unless it is a tombstone, which is noted. A record in a log is marked already; the version before it is reachable only through it,
//!    and is marked now;
//! 3. hands the marks to the allocator: everything else is free, and allocation works again;
//! 4. undoes the undecided batches: wherever an index has the record of the log, the previous version is put back, or the entry is removed if there was none or
//!    it is a tombstone. An index that needs room for that gets it from the pool's reserve, as before the crash;
//! 5. frees their slots, each after its batch, durably;
//! 6. removes the tombstones that it noted; those that a full pool has no room to remove stay for later.
//!
//! A pool that was closed needs none of this. Its indexes are opened from the images that they left then, and call back for no record; so it is unknown whether
//! one of them expires, and a sweep has to find out. There are no tombstones among them, since no images are left where there are tombstones
//! ([`Store::close`]), except those that damage keeps in their index: each of these counts as a key.
//!
//! [`Store::close`]: crate::Store::close
//!
//! *A crash during 1 to 3* finds the same pool: nothing was stored. *During 4:* the slot is as before, and after each change it is still true that the log
//! names every pending record; what was done already is recognised (the index no longer has the record), so doing it again is harmless. *After 5:* the batch is
//! over, and what only its log reached is free. *During 6:* the remaining tombstones are noted again.

use crate::Error;
use crate::batch::put_back;
use crate::block::{LogEntry, StoreBlock, read_log};
use crate::clock::Stamp;
use crate::error::STORE_ROOT;
use crate::slots::PENDING;
use crate::store::Index;
use everleaf_index::record::Record;
use everleaf_index::{Entry, Listed, Recovery, registry};
use everleaf_pmem::{Medium, Off, Pool, Reach, Root, Word};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The store that was found or created.
pub(crate) struct Opened {
    pub(crate) off: Off<StoreBlock>,
    pub(crate) indexes: Vec<(String, Found)>,
}

/// A namespace that was found.
pub(crate) struct Found {
    pub(crate) index: Index,
    /// Whether it has keys that expire, or may have.
    pub(crate) may_expire: bool,
    /// Links of tombstones that are still there.
    pub(crate) tombstones: Vec<u64>,
}

/// A batch that was not committed.
struct Interrupted {
    slot: usize,
    log: Off<Word>,
    entries: Vec<LogEntry>,
}

/// Closes the indexes of a store that is not opened after all. Not if there are tombstones: then the next open must read the records again.
fn leave(indexes: &[(String, Found)]) {
    if indexes.iter().all(|(_, found)| found.tombstones.is_empty()) {
        indexes.iter().for_each(|(_, found)| _ = found.index.tree.close());
    }
}

impl Opened {
    pub(crate) fn leave(&self) {
        leave(&self.indexes);
    }

    pub(crate) fn block<'p, M: Medium>(&self, pool: &'p Pool<M>) -> &'p StoreBlock {
        pool.get(self.off).expect("the store block was found or created")
    }
}

/// Opens the store in `pool`, creating it if there is none.
pub(crate) fn open<M: Listed>(pool: &Arc<Pool<M>>, threads: usize) -> Result<Opened, Error> {
    let reach = pool.needs_recovery().then(|| pool.reach());
    let off = pool.root(STORE_ROOT)?.map(|root| Off::<StoreBlock>::new(root.off));
    let mut interrupted = Vec::new();
    if let Some(off) = off {
        let block = StoreBlock::open(pool, off)?;
        mark(reach.as_ref(), off, size_of::<StoreBlock>())?;
        interrupted = read_slots(pool, block, reach.as_ref())?;
    }
    let logged: HashSet<u64> = interrupted.iter().flat_map(|batch| batch.entries.iter().map(|entry| entry.link)).collect();
    let mut indexes = Vec::new();
    let mut open_all = || {
        for (name, root) in pool.roots()?.into_iter().filter(|(name, _)| name != STORE_ROOT) {
            let traced = Traced::default();
            let trace = |link: NonZeroU64| trace_record(pool, reach.as_ref(), &logged, &traced, link.get());
            let index = open_index(pool, &name, root, &Recovery { reach: reach.as_ref(), trace: Some(&trace), threads })?;
            let is_known = traced.has_seen.into_inner() || index.tree.stats().keys == 0;
            let may_expire = traced.may_expire.into_inner() || !is_known;
            indexes.push((name, Found { index, may_expire, tombstones: traced.tombstones.into_inner() }));
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = open_all() {
        if reach.is_none() {
            leave(&indexes);
        }
        return Err(error);
    }
    if let Some(reach) = reach {
        pool.adopt(reach)?;
    }
    let off = match off {
        Some(off) => off,
        None => StoreBlock::create(pool)?,
    };
    let mut opened = Opened { off, indexes };
    let block = opened.block(pool);
    for batch in interrupted {
        undo(pool, block, &opened.indexes, &batch)?;
    }
    for (_, found) in &mut opened.indexes {
        let mut left = Vec::new();
        for link in std::mem::take(&mut found.tombstones) {
            if !bury(pool, &found.index, link)? {
                left.push(link);
            }
        }
        found.tombstones = left;
    }
    // persist-equivalent(store late): before a batch takes a slot it seals its records, with a fence.
    block.slots.iter().for_each(|slot| slot.clear_remnant(pool));
    Ok(opened)
}

fn mark<M: Medium, T: ?Sized>(reach: Option<&Reach<'_, M>>, off: Off<T>, size: usize) -> Result<(), everleaf_pmem::Error> {
    reach.map_or(Ok(()), |reach| reach.mark(off, size))
}

fn corrupt(record: &Record<'_>, what: &'static str) -> everleaf_index::Error {
    everleaf_pmem::Error::corrupt(record.off.bytes(), what).into()
}

/// Step 1: the batches that were not committed.
fn read_slots<M: Medium>(pool: &Pool<M>, block: &StoreBlock, reach: Option<&Reach<'_, M>>) -> Result<Vec<Interrupted>, Error> {
    let mut interrupted = Vec::new();
    for (slot, words) in block.slots.iter().enumerate() {
        let Some(link) = words.undecided(pool)? else { continue };
        let (log, size, token, entries) = read_log(pool, link)?;
        if token & PENDING == 0 {
            return Err(everleaf_pmem::Error::corrupt(log.bytes(), "the log of a batch without a token").into());
        }
        mark(reach, log, size)?;
        for entry in &entries {
            let record = Record::read(pool, entry.link)?;
            if !record.is_intact() || record.commit().get() != token {
                return Err(corrupt(&record, "the record of a batch that was under way is not as its log says").into());
            }
            mark(reach, record.off, record.size())?;
        }
        interrupted.push(Interrupted { slot, log, entries });
    }
    Ok(interrupted)
}

/// Step 2: opens the index of a namespace.
fn open_index<M: Listed>(pool: &Arc<Pool<M>>, name: &str, root: Root, recovery: &Recovery<'_, M>) -> Result<Index, Error> {
    let entry = entry_of(name, root)?;
    Ok(Index { tree: entry.open(pool, name, recovery)?, kind: entry.name, root: root.off, begun: Stamp::lowest() })
}

/// The registry's entry for the index of a namespace's root.
pub(crate) fn entry_of<M: Listed>(name: &str, root: Root) -> Result<Entry<[u8], M>, Error> {
    let entry = registry::<[u8], M>().into_iter().find(|entry| entry.kind() == root.kind);
    entry.ok_or_else(|| Error::UnknownKind { name: name.into(), kind: root.kind })
}

/// What was noted of the records of an index.
#[derive(Default)]
struct Traced {
    /// Whether there was any record.
    has_seen: AtomicBool,
    tombstones: Mutex<Vec<u64>>,
    may_expire: AtomicBool,
}

/// Step 2: a record in an index.
fn trace_record<M: Medium>(
    pool: &Pool<M>,
    reach: Option<&Reach<'_, M>>,
    logged: &HashSet<u64>,
    traced: &Traced,
    link: u64,
) -> Result<(), everleaf_index::Error> {
    let record = Record::read(pool, link)?;
    traced.has_seen.store(true, Ordering::Relaxed);
    if record.expiry_ms().is_some() {
        traced.may_expire.store(true, Ordering::Relaxed);
    }
    if !logged.contains(&link) {
        if record.is_tombstone() {
            traced.tombstones.lock().push(link);
        }
        mark(reach, record.off, record.size())?;
    } else if record.previous().get() != 0 {
        let previous = Record::read(pool, record.previous().get())?;
        if previous.expiry_ms().is_some() {
            traced.may_expire.store(true, Ordering::Relaxed);
        }
        mark(reach, previous.off, previous.size())?;
    }
    Ok(())
}

/// Steps 4 and 5.
fn undo<M: Medium>(pool: &Pool<M>, block: &StoreBlock, indexes: &[(String, Found)], batch: &Interrupted) -> Result<(), Error> {
    let mut dead = Vec::new();
    for entry in &batch.entries {
        let record = Record::read(pool, entry.link)?;
        let index = indexes.iter().find(|(_, found)| found.index.root == entry.root);
        let index = &index.ok_or_else(|| corrupt(&record, "the record of a batch in a namespace that is not there"))?.1.index;
        let key = key_of(&record);
        dead.push(record.off);
        if index.tree.get(&key)?.is_none_or(|linked| linked.get() != entry.link) {
            continue;
        }
        let mut previous = record.previous().get();
        if previous != 0 {
            let replaced = Record::read(pool, previous)?;
            if replaced.is_tombstone() {
                previous = 0;
                dead.push(replaced.off);
            }
        }
        put_back(pool, index, &key, previous)?;
    }
    block.slots[batch.slot].free(pool);
    let guard = pool.pin();
    dead.into_iter().for_each(|off| pool.retire(off, &guard));
    pool.retire(batch.log, &guard);
    Ok(())
}

/// Step 6; returns whether the tombstone is gone.
fn bury<M: Medium>(pool: &Pool<M>, index: &Index, link: u64) -> Result<bool, Error> {
    let record = Record::read(pool, link)?;
    let key = key_of(&record);
    // An index may have reported it twice, if it was in the middle of a split. And a damaged index may have another record's key.
    if !record.is_intact() || index.tree.get(&key)?.is_none_or(|linked| linked.get() != link) {
        return Ok(true);
    }
    match index.tree.remove(&key).map_err(Error::from) {
        // An index may need room for a removal. A tombstone that stays does no harm.
        Err(error) if error.is_no_space() => Ok(false),
        removed => {
            removed?;
            pool.retire(record.off, &pool.pin());
            Ok(true)
        }
    }
}

fn key_of(record: &Record<'_>) -> Vec<u8> {
    let mut key = Vec::with_capacity(record.key_size());
    record.copy_key(&mut key);
    key
}
