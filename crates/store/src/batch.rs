//! Several writes as one: for other threads, and for crashes.
//!
//! A batch holds the stripes of all its keys (taken in ascending order, so batches cannot block each other for ever) and one commit slot. Each of its records
//! carries the slot's token in its commit word, which makes it *pending*: a reader who meets it asks the slot's mirror whether the batch is committed, and
//! takes the record if so, and the version that the record links as previous if not. So all records of the batch change from invisible to visible by one store.
//! A delete is a tombstone record until the batch is over. `block.rs` has the bytes of slot and log, `slots.rs` those of token and mirror, `recovery.rs` what
//! happens after a crash.
//!
//! # Invariants
//!
//! 1. A pending record in an index is named by the log of a slot that is not free. So recovery finds every one of them by the slots alone.
//! 2. While a slot is undecided, whatever its records link as previous is in place, and is neither retired nor changed.
//! 3. Whoever holds a key's stripe finds no pending record in its index entry: batches end before they give their stripes back.
//! 4. What a record links as previous means something only while the record is pending. A timestamp in the commit word overrules it.
//!
//! # Protocol
//!
//! 1. Write the records, pending, each with a link to the version that it replaces; write the log, which names them; flush all, fence once.
//!    *Crash: nobody reaches these blocks; recovery finds them free. An error (no space) up to here leaves no trace.*
//! 2. Store the log's link in the slot; persist. *Crash: recovery undoes the batch: nothing of it is in an index yet.*
//! 3. Publish each record in its index. *Crash: recovery puts the previous version back, or removes the entry, where the index has the record of the log.*
//!    An index that is full fails here: then the same is done at once, in [`Store::undo`], which needs no space.
//! 4. Store the timestamp in the slot's commit word; persist. **The commit point.** *Crash before: undone as in 3. After: recovery goes on at 6.*
//! 5. Set the mirror: readers see the batch. Later than 4, so that no reader returns what a crash could take back.
//! 6. Store the timestamp in each record; flush those that stay; remove tombstones from their indexes; fence. *Crash: the slot tells recovery to do it again.*
//! 7. Free the slot; persist. *Crash before: as in 6. After: there is nothing left to do; previous versions, tombstones and log are unreachable, hence free.*
//! 8. Retire previous versions, tombstones and log. Give slot and stripes back.
//!
//! A batch that comes down to one write needs none of this: one publish is atomic.

use crate::block::{LogEntry, log_word_count, write_log};
use crate::namespace::link_word;
use crate::slots::Claim;
use crate::store::{Index, check_sizes};
use crate::{Error, Namespace, Store};
use everleaf_index::Listed;
use everleaf_index::record::{Record, TOMBSTONE};
use everleaf_pmem::{Hardware, Medium, Off, Word};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes that are applied together, if expectations hold. See [`Store::write`].
pub struct Batch<M: Medium = Hardware> {
    changes: Vec<Item<M>>,
    expectations: Vec<Item<M>>,
}

/// A key and the value it is to have, or is expected to have; `None` is absent.
struct Item<M: Medium> {
    namespace: Namespace<M>,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// One change of a batch that is under way.
struct Step<'b, M: Medium> {
    item: &'b Item<M>,
    index: Arc<Index>,
    /// Link of the version that is replaced, 0 = none.
    previous: u64,
    /// Where the record of the batch lies.
    off: Off<[Word]>,
}

impl<M: Medium> Default for Batch<M> {
    fn default() -> Self {
        Self { changes: Vec::new(), expectations: Vec::new() }
    }
}

impl<M: Medium> Batch<M> {
    /// Sets `key` to `value`. Of several changes to one key the last one counts.
    pub fn put(&mut self, namespace: &Namespace<M>, key: &[u8], value: &[u8]) {
        self.changes.push(Item { namespace: namespace.clone(), key: key.to_vec(), value: Some(value.to_vec()) });
    }

    /// Removes `key`.
    pub fn delete(&mut self, namespace: &Namespace<M>, key: &[u8]) {
        self.changes.push(Item { namespace: namespace.clone(), key: key.to_vec(), value: None });
    }

    /// Makes the batch conditional: it is applied only if, at that moment, `key` holds `value` (`None`: is absent). Expectations are about the state before the
    /// batch.
    pub fn expect(&mut self, namespace: &Namespace<M>, key: &[u8], value: Option<&[u8]>) {
        self.expectations.push(Item { namespace: namespace.clone(), key: key.to_vec(), value: value.map(<[u8]>::to_vec) });
    }
}

impl<M: Medium> Item<M> {
    fn place(&self) -> (u32, &[u8]) {
        (self.namespace.space.number, &self.key)
    }
}

impl<M: Medium> Step<'_, M> {
    fn link(&self) -> NonZeroU64 {
        link_word(self.off)
    }

    fn is_delete(&self) -> bool {
        self.item.value.is_none()
    }
}

impl<M: Listed> Store<M> {
    /// Applies all of `batch`, or, after an error or a crash, none of it; other threads see all of it or none.
    ///
    /// # Errors
    /// [`Error::Conflict`] when an expectation does not hold; a key or value too long; a full pool; a damaged pool; [`Error::Halted`].
    ///
    /// # Panics
    /// When a namespace in the batch belongs to another store.
    pub fn write(&self, batch: Batch<M>) -> Result<(), Error> {
        let Batch { mut changes, expectations } = batch;
        for item in changes.iter().chain(&expectations) {
            assert!(Arc::ptr_eq(&item.namespace.shared, &self.shared), "namespace {:?} belongs to another store", item.namespace.name());
            check_sizes(&item.key, item.value.as_deref().unwrap_or_default())?;
        }
        keep_last(&mut changes);
        let _stripes = self.shared.stripes.lock_many(changes.iter().chain(&expectations).map(Item::place));
        self.shared.writable()?;
        for Item { namespace, key, value } in &expectations {
            if !namespace.holds(key, value.as_deref())? {
                return Err(Error::Conflict);
            }
        }
        let steps = self.plan(&changes)?;
        match steps.as_slice() {
            [] => Ok(()),
            [Step { item, .. }] => match &item.value {
                Some(value) => item.namespace.put_locked(&item.key, value),
                None => item.namespace.delete_locked(&item.key).map(drop),
            },
            _ => self.run(steps),
        }
    }

    /// What there is to do: deletes of absent keys drop out.
    fn plan<'b>(&self, changes: &'b [Item<M>]) -> Result<Vec<Step<'b, M>>, Error> {
        let mut steps = Vec::with_capacity(changes.len());
        for item in changes {
            let index = match item.value {
                Some(_) => self.shared.index_or_create(&item.namespace.space)?,
                None => match item.namespace.space.index.load_full() {
                    Some(index) => index,
                    None => continue,
                },
            };
            let previous = index.tree.get(&item.key)?.map_or(0, NonZeroU64::get);
            if item.value.is_some() || previous != 0 {
                steps.push(Step { item, index, previous, off: Off::NULL });
            }
        }
        Ok(steps)
    }

    /// Steps 1 to 8 of the protocol.
    fn run(&self, mut steps: Vec<Step<'_, M>>) -> Result<(), Error> {
        let claim = self.shared.slots.claim();
        let slot = &self.shared.header.get().slots[claim.slot];
        let at = self.shared.tick();
        let log = self.prepare(&mut steps, &claim)?;
        slot.begin(&self.shared.pool, log.link());
        for (done, step) in steps.iter().enumerate() {
            if let Err(error) = self.shared.upsert(&step.index, &step.item.key, step.link()) {
                return Err(self.undo(&steps[..done], &steps[done..], log, claim, error));
            }
        }
        slot.commit(&self.shared.pool, at);
        if let Err(error) = self.shared.writable() {
            // The medium failed: whether the commit is durable is not known, so nobody may see it and nothing may build on it.
            std::mem::forget(claim);
            return Err(error);
        }
        claim.publish();
        self.count(&steps);
        if let Err(error) = self.settle(&steps, at) {
            // The batch is committed, durably and for all readers; only its remains are left, and a slot that tells the next open about them.
            self.shared.halt(|| format!("the remains of a committed batch could not be cleared away: {error}"));
            std::mem::forget(claim);
            return Ok(());
        }
        slot.free(&self.shared.pool);
        let guard = self.shared.pool.pin();
        for step in &steps {
            if step.previous != 0 {
                self.shared.retire(step.previous, &guard)?;
            }
            if step.is_delete() {
                self.shared.pool.retire(step.off, &guard);
            }
        }
        self.shared.pool.retire(log, &guard);
        Ok(())
    }

    /// Step 1: records and log, durable but not reachable. Returns where the log lies.
    fn prepare(&self, steps: &mut [Step<'_, M>], claim: &Claim<'_>) -> Result<Off<[Word]>, Error> {
        let pool = &*self.shared.pool;
        let mut records = Vec::with_capacity(steps.len());
        let mut entries = Vec::with_capacity(steps.len());
        for step in steps.iter_mut() {
            let (value, flags) = step.item.value.as_ref().map_or((&[][..], TOMBSTONE), |value| (value.as_slice(), 0));
            let record = Record::write(pool, &step.item.key, value, flags, claim.token(), step.previous)?;
            step.off = record.off();
            entries.push(LogEntry { root: step.index.root, link: step.off.link() });
            records.push(record.flush());
        }
        let log = pool.alloc_words(log_word_count(entries.len()))?;
        write_log(pool, &log, claim.token(), &entries);
        let (records, log) = pool.fence_all((records, log.flush()));
        for record in records {
            record.release();
        }
        Ok(log.release())
    }

    /// Step 6: makes the records stand on their own.
    fn settle(&self, steps: &[Step<'_, M>], at: u64) -> Result<(), Error> {
        for step in steps {
            // A tombstone, too: a reader may have found it and look at it only when the slot serves another batch. What has no timestamp then, was undone.
            let record = Record::read(&self.shared.pool, step.link().get())?;
            // persist-equivalent(store early): what was stored to the line before is the same timestamp of another record.
            self.shared.pool.store(record.commit(), at, Ordering::Release);
            if step.is_delete() {
                step.index.tree.remove(&step.item.key)?;
            } else {
                self.shared.pool.flush(record.commit());
            }
        }
        self.shared.pool.fence();
        Ok(())
    }

    /// Takes back what step 3 did before it failed: `done` was published, `rest` was not. Returns the error to report.
    fn undo(&self, done: &[Step<'_, M>], rest: &[Step<'_, M>], log: Off<[Word]>, claim: Claim<'_>, error: Error) -> Error {
        let undone = match error.is_no_space() {
            // After any other error the index may or may not have the record that failed.
            false => Err(format!("an index failed: {error}")),
            true => done.iter().rev().try_for_each(|step| match NonZeroU64::new(step.previous) {
                Some(previous) => step.index.tree.update(&step.item.key, previous).map(drop).map_err(|error| error.to_string()),
                None => step.index.tree.remove(&step.item.key).map(drop).map_err(|error| error.to_string()),
            }),
        };
        if let Err(reason) = undone {
            // The slot stays undecided: readers see the previous versions, and the next open undoes the batch.
            self.shared.halt(|| format!("a batch could be neither finished nor undone: {reason}"));
            std::mem::forget(claim);
            return error;
        }
        self.shared.header.get().slots[claim.slot].free(&self.shared.pool);
        let guard = self.shared.pool.pin();
        for step in done.iter().chain(rest) {
            self.shared.pool.retire(step.off, &guard);
        }
        self.shared.pool.retire(log, &guard);
        error
    }

    fn count(&self, steps: &[Step<'_, M>]) {
        for step in steps {
            let count = &step.item.namespace.space.count;
            match (step.previous != 0, step.is_delete()) {
                (false, _) => drop(count.fetch_add(1, Ordering::Relaxed)),
                (true, true) => drop(count.fetch_sub(1, Ordering::Relaxed)),
                (true, false) => {}
            }
        }
    }
}

/// Sorts by namespace and key, and keeps the last change of each key.
fn keep_last<M: Medium>(changes: &mut Vec<Item<M>>) {
    changes.sort_by(|a, b| a.place().cmp(&b.place()));
    changes.dedup_by(|later, kept| {
        let same = later.place() == kept.place();
        if same {
            std::mem::swap(later, kept);
        }
        same
    });
}
