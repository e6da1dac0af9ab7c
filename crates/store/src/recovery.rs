//! Opening a store: creating it, or bringing it back after a crash.
//!
//! What a crash leaves is the roots and what they reach. Recovery
//! 1. marks the store block, and for each slot that is not free the log and the records it names: they are needed below;
//! 2. opens every index, which marks its own blocks and calls back for each record. A record outside any log is marked and done with. A record of a log is
//!    marked already; while its batch is undecided, the version before it is reachable only through it, and marked now;
//! 3. hands the marks to the allocator: everything else is free, and allocation works again;
//! 4. settles each slot. Undecided: wherever an index has the record of the log, the previous version is put back, or the entry removed. Committed: records are
//!    stamped with the slot's timestamp, tombstones removed;
//! 5. frees the slot.
//!
//! *A crash during 1 to 3* finds the same pool: nothing was stored. *During 4:* the slot is as before, and each change made it no less true that the log names
//! every pending record; what is done already is recognised (the index no longer has the record; the record has its timestamp) and done once more, harmlessly.
//! *After 5:* the batch is over, and what only its log reached is free.

use crate::Error;
use crate::block::{LogEntry, SlotState, StoreBlock, read_log};
use crate::error::STORE_ROOT;
use crate::slots::PENDING;
use crate::store::Index;
use everleaf_index::record::{Record, TOMBSTONE};
use everleaf_index::{Listed, Recovery, registry};
use everleaf_pmem::{Medium, Off, Pool, Reach, Root, Word};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What was found.
pub(crate) struct Opened {
    pub(crate) off: Off<StoreBlock>,
    pub(crate) indexes: Vec<(String, Index)>,
}

/// A batch that was under way.
struct Interrupted {
    slot: usize,
    /// When it was committed; `None`: it was not.
    committed: Option<u64>,
    token: u64,
    log: Off<Word>,
    entries: Vec<LogEntry>,
}

impl Opened {
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
    let logged: HashMap<u64, bool> = interrupted.iter().flat_map(|batch| batch.entries.iter().map(|entry| (entry.link, batch.committed.is_some()))).collect();
    let trace = |link: NonZeroU64| trace_record(pool, reach.as_ref(), &logged, link.get());
    let recovery = Recovery { reach: reach.as_ref(), trace: &trace, threads };
    let mut indexes = Vec::new();
    for (name, root) in pool.roots()?.into_iter().filter(|(name, _)| name != STORE_ROOT) {
        let index = open_index(pool, &name, root, &recovery)?;
        indexes.push((name, index));
    }
    if let Some(reach) = reach {
        pool.adopt(reach)?;
    }
    let off = match off {
        Some(off) => off,
        None => StoreBlock::create(pool)?,
    };
    let opened = Opened { off, indexes };
    let block = opened.block(pool);
    for batch in interrupted {
        settle(pool, block, &opened.indexes, &batch)?;
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

/// Step 1: the batches that were under way.
fn read_slots<M: Medium>(pool: &Pool<M>, block: &StoreBlock, reach: Option<&Reach<'_, M>>) -> Result<Vec<Interrupted>, Error> {
    let mut interrupted = Vec::new();
    for (slot, words) in block.slots.iter().enumerate() {
        let (link, committed) = match words.state() {
            SlotState::Free => continue,
            SlotState::Undecided(log) => (log, None),
            SlotState::Committed(log, at) => (log, Some(at)),
        };
        let (log, size, token, entries) = read_log(pool, link)?;
        if token & PENDING == 0 || committed.is_some_and(|at| at & PENDING != 0) {
            return Err(everleaf_pmem::Error::corrupt(log.bytes(), "the log of a batch without a token, or a commit without a timestamp").into());
        }
        mark(reach, log, size)?;
        for entry in &entries {
            let record = Record::read(pool, entry.link)?;
            let commit = record.commit().get();
            if !record.is_intact() || (commit != token && Some(commit) != committed) {
                return Err(corrupt(&record, "the record of a batch that was under way is not as its log says").into());
            }
            mark(reach, record.off, record.size())?;
        }
        interrupted.push(Interrupted { slot, committed, token, log, entries });
    }
    Ok(interrupted)
}

/// Step 2: opens the index of a namespace.
fn open_index<M: Listed>(pool: &Arc<Pool<M>>, name: &str, root: Root, recovery: &Recovery<'_, M>) -> Result<Index, Error> {
    let entry = registry::<[u8], M>().into_iter().find(|entry| entry.kind() == root.kind);
    let entry = entry.ok_or_else(|| Error::UnknownKind { name: name.into(), kind: root.kind })?;
    Ok(Index { tree: entry.open(pool, name, recovery)?, kind: entry.name, root: root.off })
}

/// Step 2: a record that an index has.
fn trace_record<M: Medium>(pool: &Pool<M>, reach: Option<&Reach<'_, M>>, logged: &HashMap<u64, bool>, link: u64) -> Result<(), everleaf_index::Error> {
    let record = Record::read(pool, link)?;
    let previous = record.previous().get();
    match logged.get(&link) {
        None if record.commit().get() & PENDING != 0 => return Err(corrupt(&record, "a pending record that no batch names")),
        None => mark(reach, record.off, record.size())?,
        Some(false) if previous != 0 => {
            let previous = Record::read(pool, previous)?;
            mark(reach, previous.off, previous.size())?;
        }
        Some(_) => {}
    }
    Ok(())
}

/// Steps 4 and 5.
fn settle<M: Medium>(pool: &Pool<M>, block: &StoreBlock, indexes: &[(String, Index)], batch: &Interrupted) -> Result<(), Error> {
    let guard = pool.pin();
    let mut key = Vec::new();
    let mut dead = Vec::new();
    for entry in &batch.entries {
        let record = Record::read(pool, entry.link)?;
        let index = indexes.iter().find(|(_, index)| index.root == entry.root);
        let index = &index.ok_or_else(|| corrupt(&record, "the record of a batch in a namespace that is not there"))?.1.tree;
        key.clear();
        record.copy_key(&mut key);
        let linked = index.get(&key)?.map_or(0, NonZeroU64::get) == entry.link;
        let is_tombstone = record.flags() & TOMBSTONE != 0;
        match batch.committed {
            None if linked => match NonZeroU64::new(record.previous().get()) {
                Some(previous) => drop(index.update(&key, previous)?),
                None => drop(index.remove(&key)?),
            },
            Some(_) if is_tombstone && linked => drop(index.remove(&key)?),
            Some(_) if !is_tombstone && !linked => return Err(corrupt(&record, "a committed record that its index does not have").into()),
            Some(at) if !is_tombstone && record.commit().get() == batch.token => {
                pool.store(record.commit(), at, Ordering::Release);
                pool.flush(record.commit());
            }
            _ => {}
        }
        if batch.committed.is_none() || is_tombstone {
            dead.push(record.off);
        }
    }
    pool.fence();
    block.slots[batch.slot].free(pool);
    dead.into_iter().for_each(|off| pool.retire(off, &guard));
    pool.retire(batch.log, &guard);
    Ok(())
}
