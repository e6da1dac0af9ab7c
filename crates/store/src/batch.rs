//! Several writes as one, for other threads and for crashes.
//!
//! A batch holds one commit slot and the stripes of all its keys. Stripes are taken in ascending order, so that batches cannot deadlock; batches share the
//! stripes of keys that they only depend on. Each record of a batch carries the slot's token in its commit word, which makes it *pending*: a reader that meets
//! it asks the slot's mirror whether the batch is committed, and takes the record if so, else the version that the record links as previous. So one store makes
//! all records of the batch visible. A delete is a tombstone record. `block.rs` describes the bytes of slot and log, `slots.rs` token and mirror, `version.rs`
//! what readers see, `recovery.rs` what happens after a crash. A transaction becomes a batch when it commits (`transaction.rs`); its large values are written
//! before that (`draft.rs`).
//!
//! # Invariants
//!
//! 1. If a record of an undecided batch is in an index, the log of the batch's slot names it. So the slots alone lead recovery to all such records; every other
//!    record that it finds is committed, with a token or without.
//! 2. While a slot is undecided, the versions that its records link as previous stay in place, and are neither retired nor changed.
//! 3. A thread that holds a key's stripe finds no pending record in the key's index entry: batches end before they give back their stripes.
//! 4. The contents of the log matter as long as the slot is undecided. The commit word follows the log's link in the same line, so from the commit on no crash
//!    leaves one without the other.
//!
//! # Protocol
//!
//! 1. Write the records, pending, each with a link to the version that it replaces, or complete those that are drafts; write the log, which names them; flush
//!    all. *Crash: nothing reaches these blocks; recovery finds them free. An error (no space) up to here leaves no trace.*
//! 2. Fence once; store the log's link in the slot; persist. *Crash: recovery undoes the batch: nothing of it is in an index yet.*
//! 3. Publish each record in its index, and flush the entries: readers may meet a record before its entry is durable, since they do not accept it before 5.
//!    *Crash: where the index has the log's record, recovery puts back the previous version or removes the entry; elsewhere the index has what it had.* If an
//!    index is full or damaged, this step fails, and [`Shared::undo`] does the same at once. Some indexes need room for that, too: it may use the pool's
//!    reserve (`crates/pmem/src/alloc/reserve.rs`), which nothing else gets; if the file system is full before the pool is, there may be no room.
//! 4. Fence once for all entries; store the log's link in the slot's commit word, too; persist. **The commit point.** *Crash before: undone as in 3. After: the
//!    records stand; recovery removes the tombstones.*
//! 5. Set the mirror: readers see the batch. Later than 4, so that no reader returns what a crash could take back. Draw the batch's timestamp.
//! 6. Stamp each record with it before the slot serves another batch, because then readers no longer ask the slot. Not flushed: with the token or with the
//!    stamp, the record is committed after a crash. Remove tombstones from their indexes, unless a snapshot wants the versions behind them, and fence once for
//!    all: 8 gives them back, so no index may link them after a crash. *Crash: as after 4.*
//! 7. Clear the slot. Not flushed: cleared or not, it asks for nothing (invariant 4).
//! 8. Retire previous versions, tombstones and log, or hold them back for snapshots. Give back slot and stripes.
//!
//! A batch costs four fences, however many keys it has, and a fifth if it deletes any. Where a fence waits for a device, the two of step 2 are one wait, as are
//! the two of step 4 ([`Pm::publish`](everleaf_pmem::Pm::publish)). Structure changes of its indexes, and the fences that some indexes need for each 256
//! writes, none to three, come on top (`docs/decisions/0070-one-fence-for-the-entries-of-a-batch.md`). A batch that comes down to one write needs none of this,
//! unless its value is a draft: one publish is atomic.

use crate::block::{LogEntry, log_word_count, write_log};
use crate::draft::Draft;
use crate::garbage::{STEPS_PER_TURN, STEPS_PER_WRITE};
use crate::merge::{self, Goal, Merge};
use crate::namespace::{Content, Entry, link_word};
use crate::slots::Claim;
use crate::snapshot::Snapshot;
use crate::store::{Index, Shared, again, check_sizes};
use crate::stripes::Locked;
use crate::transaction::conflict;
use crate::version::Moment;
use crate::wall::HeldTime;
use crate::{Error, Namespace, Store};
use everleaf_index::record::{Record, Version};
use everleaf_index::{Listed, Write};
use everleaf_pmem::{Hardware, Medium, Off, Pool, Reserve, Word, with_reserve};
use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes that are applied together, if their expectations hold. See [`Store::write`].
#[must_use = "nothing of it is written before `Store::write`"]
pub struct Batch<M: Listed = Hardware> {
    changes: Vec<Item<M>>,
    expectations: Vec<Item<M, Option<Vec<u8>>>>,
}

/// A key and its goal; or its expected value, `None` for absent.
pub(crate) struct Item<M: Listed, T = Goal<M>> {
    pub(crate) namespace: Namespace<M>,
    pub(crate) key: Vec<u8>,
    pub(crate) to: T,
}

/// Keys that must not change between the check and the commit, besides those that are written.
pub(crate) enum Quiet<'a> {
    /// These: each with the number of its namespace.
    Keys(Vec<(u32, &'a [u8])>),
    /// All keys.
    Everything,
}

/// One change of a batch in progress.
struct Step<'b, M: Listed> {
    item: &'b Item<M>,
    aim: Aim<'b, M>,
    index: Arc<Index>,
    /// Link of the version that is replaced, 0 = none.
    previous: u64,
    /// Whether the key was there.
    was_present: bool,
    /// Where the record of the batch lies.
    off: Off<[Word]>,
    /// Whether that is a tombstone which has been removed again.
    is_gone: bool,
}

/// What a key is to hold.
enum Aim<'b, M: Listed> {
    /// This; `None`: nothing.
    Entry(Cow<'b, Option<Entry>>),
    /// A value that is in the pool already.
    Draft(&'b Draft<M>),
}

impl<M: Listed> fmt::Debug for Batch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("changes", &self.changes.len()).field("expectations", &self.expectations.len()).finish()
    }
}

impl<M: Listed> Default for Batch<M> {
    fn default() -> Self {
        Self { changes: Vec::new(), expectations: Vec::new() }
    }
}

impl<M: Listed> Batch<M> {
    /// Sets `key` to `value`. Of several changes to one key the last one counts.
    pub fn put(&mut self, namespace: &Namespace<M>, key: &[u8], value: &[u8]) {
        self.put_until(namespace, key, value, None);
    }

    /// Sets `key` to `value`, until `expiry_ms` (`None`: for ever). See [`Namespace::put_until`].
    pub fn put_until(&mut self, namespace: &Namespace<M>, key: &[u8], value: &[u8], expiry_ms: impl Into<Option<u64>>) {
        self.push(namespace, key, Goal::Be(Some(Entry { value: value.to_vec(), expiry_ms: expiry_ms.into() })));
    }

    /// Removes `key`.
    pub fn delete(&mut self, namespace: &Namespace<M>, key: &[u8]) {
        self.push(namespace, key, Goal::Be(None));
    }

    /// Applies `merge` to the value of `key`: to the value that earlier changes of the batch give it, or to the value when the batch is applied.
    pub fn merge(&mut self, namespace: &Namespace<M>, key: &[u8], merge: Merge) {
        self.push(namespace, key, Goal::Become(vec![merge]));
    }

    fn push(&mut self, namespace: &Namespace<M>, key: &[u8], to: Goal<M>) {
        self.changes.push(Item { namespace: namespace.clone(), key: key.to_vec(), to });
    }

    /// Makes the batch conditional: it is applied only if `key` holds `value` at that moment (`None`: is absent). Expectations concern the state before the
    /// batch.
    pub fn expect(&mut self, namespace: &Namespace<M>, key: &[u8], value: Option<&[u8]>) {
        self.expectations.push(Item { namespace: namespace.clone(), key: key.to_vec(), to: value.map(<[u8]>::to_vec) });
    }
}

impl<M: Listed, T> Item<M, T> {
    fn place(&self) -> (u32, &[u8]) {
        (self.namespace.space.number, &self.key)
    }
}

impl<M: Listed> Step<'_, M> {
    fn link(&self) -> NonZeroU64 {
        link_word(self.off)
    }

    fn is_delete(&self) -> bool {
        matches!(&self.aim, Aim::Entry(entry) if entry.is_none())
    }

    fn draft(&self) -> Option<&Draft<M>> {
        match self.aim {
            Aim::Entry(_) => None,
            Aim::Draft(draft) => Some(draft),
        }
    }

    fn has_index_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.index, &other.index)
    }
}

impl<M: Listed> Store<M> {
    /// Applies all of `batch`, or, after an error or a crash, none of it. A snapshot or a transaction sees all of it or none; a thread that reads several keys
    /// without one sees each key as it is when it is read.
    ///
    /// # Errors
    /// [`Error::Conflict`], when an expectation does not hold; [`Error::Merge`]; a key or value too long; a full pool; a damaged pool; [`Error::Halted`].
    ///
    /// # Panics
    /// When a namespace in the batch belongs to another store.
    pub fn write(&self, batch: Batch<M>) -> Result<(), Error> {
        let Batch { changes, expectations } = batch;
        for item in &changes {
            item.namespace.check_belongs_to(&self.shared);
            item.to.check_size(&item.key)?;
        }
        for item in &expectations {
            item.namespace.check_belongs_to(&self.shared);
            check_sizes(&item.key, item.to.as_deref().unwrap_or_default())?;
        }
        let changes = combine(changes)?;
        let check = |time_ms| {
            expectations.iter().try_for_each(|item| match item.namespace.holds(&item.key, item.to.as_deref(), Some(Moment::now(time_ms)))? {
                Some(_) => Ok(()),
                None => Err(conflict(&item.namespace.space, &item.key)),
            })
        };
        self.shared.with_room(|| self.shared.commit(&changes, Quiet::Keys(expectations.iter().map(Item::place).collect()), None, check)).map(drop)
    }
}

impl<M: Listed> Namespace<M> {
    /// Sets all of `pairs`, or, after an error or a crash, none of them, like a batch. Of several values of one key the last one counts.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn put_together(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        pairs.iter().try_for_each(|(key, value)| check_sizes(key, value))?;
        let put = |(key, value): &(&[u8], &[u8])| self.item(key, Some(Entry { value: value.to_vec(), expiry_ms: None }));
        let changes = combine(pairs.iter().map(put).collect())?;
        self.shared.with_room(|| self.commit_together(&changes)).map(drop)
    }

    /// Removes all of `keys`, or, after an error or a crash, none of them, like a batch; returns how many were present. Until it returns, this takes room for
    /// each key and a few dozen bytes, and for one block of 16 bytes per key. Unlike other writes it makes no great efforts to find it, since
    /// [`Namespace::delete_many`] needs none.
    ///
    /// # Errors
    /// See [`Namespace::delete`].
    pub fn delete_together(&self, keys: &[&[u8]]) -> Result<u64, Error> {
        let changes = combine(keys.iter().map(|key| self.item(key, None)).collect())?;
        match self.commit_together(&changes) {
            Err(error) if error.is_no_space() => {
                self.shared.make_room(STEPS_PER_TURN);
                self.commit_together(&changes)
            }
            outcome => outcome,
        }
    }

    fn item(&self, key: &[u8], entry: Option<Entry>) -> Item<M> {
        Item { namespace: self.clone(), key: key.to_vec(), to: Goal::Be(entry) }
    }

    fn commit_together(&self, changes: &[Item<M>]) -> Result<u64, Error> {
        self.shared.commit(changes, Quiet::Keys(Vec::new()), None, |_| Ok(()))
    }
}

impl<M: Listed> Shared<M> {
    /// Applies all of `changes`, or none, provided that `check` then finds no obstacle. They are ordered by place, with no key twice. Returns how many keys its
    /// deletes found.
    ///
    /// `check` gets the time by which it is to judge what has expired; merges and deletes are judged by it, too. Time stands still until the writes are visible
    /// to all; otherwise another thread could find gone what the check relied on, and then find the keys still unwritten.
    ///
    /// Then `snapshot`, which `check` may have needed, ends: the commit needs nothing held back, not even what it replaces itself. If the commit fails, the
    /// snapshot is begun again while no thread can have changed what was checked, so that a later `check` still finds changes made from then on.
    pub(crate) fn commit(
        &self,
        changes: &[Item<M>],
        quiet: Quiet<'_>,
        snapshot: Option<&mut Snapshot<M>>,
        check: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let depends =
            !matches!(&quiet, Quiet::Keys(others) if others.is_empty()) || changes.iter().any(|item| matches!(item.to, Goal::Become(_) | Goal::Be(None)));
        let deleted = {
            let (stripes, _unwritten) = match quiet {
                Quiet::Keys(others) => {
                    let written = changes.iter().map(Item::place).map(|(space, key)| (space, key, true));
                    self.stripes.lock_group(written.chain(others.into_iter().map(|(space, key)| (space, key, false))))
                }
                Quiet::Everything => (self.stripes.lock_all(), Vec::new()),
            };
            self.writable()?;
            let time = (depends && self.may_expire.load(Ordering::Acquire)).then(|| self.wall.hold_for_commit());
            let time_ms = time.as_ref().map_or(0, HeldTime::at_ms);
            check(time_ms)?;
            match snapshot {
                Some(snapshot) => {
                    snapshot.release();
                    self.apply(changes, time_ms, stripes.first()).inspect_err(|_| snapshot.hold())?
                }
                None => self.apply(changes, time_ms, stripes.first())?,
            }
        };
        if !self.garbage.is_empty() {
            self.tidy(STEPS_PER_WRITE * changes.len());
        }
        Ok(deleted)
    }

    /// Applies `changes`; returns how many keys its deletes found. Their stripes are held, one of them `stripe`.
    fn apply(&self, changes: &[Item<M>], time_ms: u64, stripe: Option<&Locked<'_>>) -> Result<u64, Error> {
        let (steps, deleted) = self.plan(changes, time_ms)?;
        match (steps.as_slice(), stripe) {
            ([Step { item, aim: Aim::Entry(entry), .. }], Some(stripe)) => {
                item.namespace.set_locked(stripe, &item.key, entry.as_ref().as_ref().map(Content::of)).map(drop)
            }
            ([], _) => Ok(()),
            // Tombstones make room in the end.
            (deletes, _) if deletes.iter().all(Step::is_delete) => with_reserve(Reserve::Half, || self.run(steps)),
            _ => self.run(steps),
        }
        .map(|()| deleted)
    }

    /// The steps to take, without deletes of absent keys, and how many deletes found their key, expired ones not counted.
    fn plan<'b>(&self, changes: &'b [Item<M>], time_ms: u64) -> Result<(Vec<Step<'b, M>>, u64), Error> {
        let (mut steps, mut deleted) = (Vec::with_capacity(changes.len()), 0);
        for item in changes {
            let aim = match &item.to {
                Goal::Be(entry) => Aim::Entry(Cow::Borrowed(entry)),
                Goal::BeDraft(draft) => Aim::Draft(draft),
                Goal::Become(merges) => Aim::Entry(Cow::Owned(item.namespace.merged(&item.key, merges, Some(Moment::now(time_ms)))?)),
            };
            let index = match &aim {
                Aim::Entry(entry) if entry.is_none() => match item.namespace.space.index.load_full() {
                    Some(index) => index,
                    None => continue,
                },
                _ => self.index_or_create(&item.namespace.space)?,
            };
            steps.push(Step { item, aim, index, previous: 0, was_present: false, off: Off::NULL, is_gone: false });
        }
        for group in steps.chunk_by_mut(Step::has_index_of) {
            let keys: Vec<&[u8]> = group.iter().map(|step| step.item.key.as_slice()).collect();
            let mut previous = Vec::with_capacity(keys.len());
            group[0].index.tree.get_many(&keys, &mut previous)?;
            for (step, previous) in group.iter_mut().zip(previous) {
                step.previous = previous.map_or(0, NonZeroU64::get);
                step.was_present = step.item.namespace.is_present(step.previous)?;
                deleted += u64::from(step.is_delete() && step.item.namespace.is_shown(step.previous, Some(Moment::now(time_ms)))?);
            }
        }
        steps.retain(|step| !step.is_delete() || step.was_present);
        Ok((steps, deleted))
    }

    /// Steps 1 to 8 of the protocol.
    fn run(&self, mut steps: Vec<Step<'_, M>>) -> Result<(), Error> {
        let claim = self.slots.claim(self.tick().at).ok_or_else(|| self.writable().expect_err("a slot is lost when the store takes no writes any more"))?;
        let slot = &self.header.get().slots[claim.slot];
        let log = self.prepare(&mut steps, &claim)?;
        self.pool.publish(|| slot.begin(&self.pool, log.link()));
        steps.iter().filter_map(Step::draft).for_each(Draft::hand_over);
        let mut done = 0;
        let published = steps.chunk_by(Step::has_index_of).try_for_each(|group| {
            let links: Vec<_> = group.iter().map(|step| (step.item.key.as_slice(), Write::Upsert(step.link()))).collect();
            let mut replaced = Vec::with_capacity(links.len());
            let outcome = self.apply_unfenced(&group[0].index, &links, &mut replaced);
            done += replaced.len();
            outcome
        });
        if let Err(error) = published.and_then(|()| self.writable()) {
            self.pool.fence();
            return Err(self.undo(&steps[..done], &steps[done..], log, claim, error));
        }
        self.pool.publish(|| slot.commit(&self.pool, log.link()));
        if let Err(error) = self.writable() {
            // The medium failed: it is unknown whether the commit is durable, so no reader may see it and nothing may build on it.
            claim.lose();
            return Err(error);
        }
        let at = claim.publish(&self.clock);
        self.count(&steps);
        match self.settle(&mut steps, at) {
            Ok(()) => slot.clear(&self.pool),
            Err(error) => {
                // The batch is committed, durably and for all readers. Only the cleanup failed, and the slot must keep telling readers of the commit.
                self.halt(|| format!("the remains of a committed batch could not be cleared away: {error}"));
                claim.lose();
                return Ok(());
            }
        }
        let guard = self.pool.pin();
        for step in steps.iter().filter(|step| step.previous != 0) {
            // The batch is committed all the same. What is damaged leaks.
            let _ = self.replaced(&step.item.namespace.space, step.previous, (!step.is_gone).then(|| step.link()), at, &guard);
        }
        self.pool.retire(log, &guard);
        Ok(())
    }

    /// Step 1: writes and flushes records and log, which are not reachable. Returns the offset of the log.
    fn prepare(&self, steps: &mut [Step<'_, M>], claim: &Claim<'_>) -> Result<Off<[Word]>, Error> {
        let pool = &*self.pool;
        let mut records = Vec::with_capacity(steps.len());
        let mut entries = Vec::with_capacity(steps.len());
        for step in steps.iter_mut() {
            let note = |expiry_ms| self.note_expiry(&step.item.namespace.space, expiry_ms);
            step.off = match &step.aim {
                Aim::Entry(entry) => {
                    let content = entry.as_ref().as_ref().map(Content::of);
                    let expiry_ms = note(content.and_then(|content| content.expiry_ms));
                    let version = Version { is_tombstone: content.is_none(), commit: claim.token(), previous: step.previous, expiry_ms };
                    let record = Record::write(pool, &step.item.key, content.map_or(&[], |content| content.value), version)?.flush();
                    let off = record.off();
                    records.push(record);
                    off
                }
                Aim::Draft(draft) => {
                    let record = draft.record()?;
                    note(record.expiry_ms());
                    record.complete(pool, claim.token(), step.previous);
                    draft.off()
                }
            };
            entries.push(LogEntry { root: step.index.root, link: step.off.link() });
        }
        let log = pool.alloc_words(log_word_count(entries.len()))?;
        write_log(pool, &log, claim.token(), &entries);
        let log = log.flush();
        records.into_iter().for_each(|record| _ = record.release());
        Ok(log.release())
    }

    /// Step 6: makes the records independent of the slot.
    fn settle(&self, steps: &mut [Step<'_, M>], at: u64) -> Result<(), Error> {
        let pool = &*self.pool;
        for step in &*steps {
            // Tombstones, too: a reader may look at one only when the slot serves another batch, and then takes a record without a timestamp for undone.
            let record = Record::read(pool, step.link().get())?;
            // persist-equivalent(store early): the store to this line before wrote the same timestamp to another record.
            pool.store(record.commit(), at, Ordering::Release);
        }
        let is_wanted = self.snapshots.want(&self.clock, 0, at);
        for group in steps.chunk_by_mut(Step::has_index_of) {
            let mut deletes: Vec<_> = group.iter_mut().filter(|step| step.is_delete()).collect();
            let mut removed = Vec::new();
            if let [first, ..] = deletes.as_slice()
                && !is_wanted
            {
                let removals: Vec<_> = deletes.iter().map(|step| (step.item.key.as_slice(), Write::Remove)).collect();
                // An index may need room for a removal, or be damaged: a tombstone that stays does no harm.
                let _ = with_reserve(Reserve::Half, || self.apply_unfenced(&first.index, &removals, &mut removed));
            }
            let (gone, left) = deletes.split_at_mut(removed.len());
            gone.iter_mut().for_each(|step| step.is_gone = true);
            left.iter().for_each(|step| self.left_tombstone(&step.item.namespace.space, step.link().get(), at));
        }
        let mut gone = steps.iter().filter(|step| step.is_gone).peekable();
        if gone.peek().is_some() {
            pool.fence();
            let guard = pool.pin();
            gone.for_each(|step| pool.retire(step.off, &guard));
        }
        Ok(())
    }

    /// Undoes what step 3 did before it failed: `done` was published, `rest` was not, unless an index says otherwise. Returns the error to report.
    fn undo(&self, done: &[Step<'_, M>], rest: &[Step<'_, M>], log: Off<[Word]>, claim: Claim<'_>, error: Error) -> Error {
        let undone = self.check_unpublished(rest).and_then(|()| {
            done.iter().rev().try_for_each(|step| put_back(&self.pool, &step.index, &step.item.key, step.previous).map_err(|error| error.to_string()))
        });
        if let Err(reason) = undone {
            // The slot stays undecided: readers see the previous versions, and the next open undoes the batch.
            self.halt(|| format!("a batch could be neither finished nor undone, for {error}: {reason}"));
            claim.lose();
            return error;
        }
        self.header.get().slots[claim.slot].free(&self.pool);
        let guard = self.pool.pin();
        for step in done.iter().chain(rest) {
            match step.draft() {
                Some(draft) => draft.take_back(),
                None => self.pool.retire(step.off, &guard),
            }
        }
        self.pool.retire(log, &guard);
        error
    }

    /// Checks that the indexes link for these keys what they did before the batch: an index that failed may link the new record. After a failure of the medium
    /// this is unknown.
    fn check_unpublished(&self, steps: &[Step<'_, M>]) -> Result<(), String> {
        self.pool.writable().map_err(|error| error.to_string())?;
        for step in steps {
            match step.index.tree.get(&step.item.key) {
                Ok(linked) if linked.map_or(0, NonZeroU64::get) == step.previous => {}
                Ok(_) => return Err("an index has failed, and links a record of it".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn count(&self, steps: &[Step<'_, M>]) {
        for step in steps {
            let count = step.item.namespace.space.counter();
            match (step.was_present, step.is_delete()) {
                (false, _) => count.add(1),
                (true, true) => count.add(-1),
                (true, false) => {}
            }
        }
    }
}

/// Makes an index link the previous version again, or nothing if that is 0, using whatever room the pool has. The caller is not pinned.
pub(crate) fn put_back<M: Medium>(pool: &Pool<M>, index: &Index, key: &[u8], previous: u64) -> Result<(), Error> {
    let act = || match NonZeroU64::new(previous) {
        Some(previous) => index.tree.update(key, previous),
        None => index.tree.remove(key),
    };
    with_reserve(Reserve::All, || again(pool, act)).map(drop)
}

/// Sorts by namespace and key, and combines all changes to one key.
fn combine<M: Listed>(mut changes: Vec<Item<M>>) -> Result<Vec<Item<M>>, Error> {
    changes.sort_by(|a, b| a.place().cmp(&b.place()));
    let mut combined: Vec<Item<M>> = Vec::with_capacity(changes.len());
    for item in changes {
        match combined.last_mut().filter(|last| last.place() == item.place()) {
            Some(last) => {
                last.to.then(item.to, merge::failed(&item.namespace.space.name, &item.key))?;
                last.to.check_size(&item.key)?;
            }
            None => combined.push(item),
        }
    }
    Ok(combined)
}
