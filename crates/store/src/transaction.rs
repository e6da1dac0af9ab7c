//! Transactions: reads as of one moment, and writes that take effect together, unless there is a conflict.
//!
//! A transaction reads from a snapshot and keeps its writes private: keys and small values in DRAM, other values in the pool, where nothing else finds them
//! (`draft.rs`).
//!
//! To commit, it
//! 1. takes the stripes of all keys that it writes; in serializable mode also those of the keys that it has read, shared with other transactions that have only
//!    read them, and all stripes if it has scanned;
//! 2. checks whether any of these keys, or a key in a range that it has scanned, has a version that its snapshot does not see, and whether a key that it has
//!    read has expired since, or reappeared because the wall clock was set back. If so, another writer, or time, was faster, and the commit fails, naming the
//!    key: nothing has changed. The snapshot has kept in place what shows this, tombstones above all; a tombstone that replaced a version already expired
//!    before does not count. Keys that it has only merged (`merge.rs`), and not read, are not checked: the merge applies to what is there now;
//! 3. ends its snapshot, and runs its writes as a batch (`batch.rs` has the protocol and the commit point).
//!
//! Until 3 nothing in the pool leads to its writes, so dropping the transaction aborts it, and so does a crash.
//!
//! **Guarantees.** In both modes: no dirty reads or writes, no non-repeatable reads, no phantoms within the transaction, no lost updates, no read skew. With
//! [`Isolation::Snapshot`], write skew is possible: two transactions may each read what the other writes. With [`Isolation::Serializable`] it is not: what a
//! transaction has read still holds when it commits, under the stripes, so all of it might have happened at that moment; a transaction that writes nothing
//! might have happened when it began. These moments lie within the calls, so transactions are linearizable, with each other and with single operations,
//! except for what expires while a write of one key that has read it is under way (`wall.rs`).
//!
//! **Time.** Expiry is judged by the time of the commit, which stands still for all until the writes are visible. A transaction that has read a key that
//! expires before the commit cannot be placed at the moment when it began: unknown to it, other threads may have found that key gone, and then the keys that it
//! has yet to write unwritten. So it fails, and where keys expire all the time, a long transaction fails each time. After repeated failures [`Store::transact`]
//! stops the store's time (`wall.rs`).
//!
//! **Cost.** DRAM for each key that it writes, and in serializable mode for each key that it reads: the key, about 150 bytes, and a value of less than 512
//! bytes. For a key that it has merged but not set, it keeps the merges: 32 bytes each, plus what they append and what their functions capture; consecutive
//! sums, and consecutive appends, become one. Values of 512 bytes and more take their room in the pool when they are set, or are refused then. For savepoints
//! it keeps what has changed since, once for each key. For scans it keeps the bounds, with touching ranges merged (`reads.rs`). [`Transaction::limit_size`]
//! limits all of it.

use crate::batch::{Item, Quiet};
use crate::draft::{self, Draft};
use crate::merge::{self, Goal, Merge};
use crate::namespace::{Entry, Namespace};
use crate::range::cursor_of;
use crate::reads::{At, ENTRY_SIZE, Reads};
use crate::snapshot::Snapshot;
use crate::store::{Shared, Space, check_sizes};
use crate::version::{Age, CUT_OUT, Moment, damaged, is_shown, untimely};
use crate::view::{Met, Reading};
use crate::{Cursor, Direction, Error, Store};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::Hardware;
use everleaf_pmem::schedule;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Keys of a range that are collected before they are removed.
const KEYS_PER_STEP: usize = 4096;
/// Turns of [`Store::transact`] that may fail because of time before time is stopped.
const TURNS: usize = 16;
/// For how long time is stopped in each further turn.
const STANDSTILL: Duration = Duration::from_secs(10);

/// What a transaction may do, and what others may do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Only reads, as of one moment.
    ReadOnly,
    /// Reads as of one moment. The commit fails if another writer has written one of its written keys since. Merges do not conflict, unless the transaction
    /// reads the merged key after the merge; reads before it are not remembered. Write skew is possible: of two transactions that read what the other writes,
    /// both may succeed.
    Snapshot,
    /// The same, and the commit also fails if another writer has written a key that it has read, or one in a range that it has scanned. If it has scanned any,
    /// and written something, its commit scans the ranges once more, while all other writers of the store wait.
    Serializable,
}

/// Keys that a transaction has written, with their goals.
type Own<'t, M> = Box<dyn Iterator<Item = (&'t [u8], &'t Goal<M>)> + 't>;

/// The value that a transaction sees.
enum Shown<'a, 'w> {
    /// The value in a record of its snapshot.
    Stored(Met<'w>),
    /// A key, and the transaction's own value for it.
    Own(&'a [u8], &'a [u8]),
}

type Show<'a> = dyn FnMut(Shown<'_, '_>) -> Result<ControlFlow<()>, Error> + 'a;

/// A point in a transaction to roll back to.
#[derive(Debug)]
pub struct Savepoint {
    /// The timestamp of the transaction, which is unique.
    transaction: u64,
    /// Number of entries in `undo` before it.
    length: usize,
    /// The number of the last of them; if there is none, that of the beginning.
    last: u64,
    /// Whether it was the first savepoint.
    is_first: bool,
}

/// A transaction. Dropping it aborts it.
#[must_use = "a transaction that is dropped writes nothing"]
pub struct Transaction<M: Listed = Hardware> {
    isolation: Isolation,
    writes: BTreeMap<At, Write<M>>,
    /// What `writes` had of a key before its first write after a savepoint. These entries are numbered upward from the first savepoint on; numbers of undone
    /// ones are not used again.
    undo: Vec<(u64, At, Option<Write<M>>)>,
    /// The last of these numbers.
    last: u64,
    /// The number that stands for the beginning, before the first entry: a new one after each release.
    beginning: u64,
    has_savepoint: bool,
    /// The last of these numbers before the latest savepoint.
    saved: u64,
    /// Bytes of DRAM that `writes` and `undo` take, approximately.
    size: usize,
    /// Limit of that, together with `reads`.
    size_max: usize,
    reads: Mutex<Reads>,
    /// Dropped after all that was written to the pool is given back: while there is a snapshot, the store is not closed.
    snapshot: Snapshot<M>,
}

impl<M: Listed> fmt::Debug for Transaction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { isolation, snapshot, writes, .. } = self;
        f.debug_struct("Transaction").field("isolation", isolation).field("snapshot", snapshot).field("writes", &writes.len()).finish_non_exhaustive()
    }
}

/// The goal of a key.
struct Write<M: Listed> {
    namespace: Namespace<M>,
    to: Goal<M>,
    /// The number of the key's latest entry in `undo`; 0 if there is none.
    kept: u64,
}

impl<M: Listed> Clone for Write<M> {
    fn clone(&self) -> Self {
        Self { namespace: self.namespace.clone(), to: self.to.clone(), kept: self.kept }
    }
}

/// A condition on a key: it is as it was at the moment and, if it was read, time has not changed since whether it is shown.
#[derive(Clone, Copy)]
struct Seen<'c> {
    moment: Moment,
    /// The time now; `None`: the key was not read.
    now_ms: Option<u64>,
    /// Whether the snapshot has been held since then, so that what was removed since can be looked at.
    is_held: bool,
    /// Set to whether time has contributed to a conflict.
    is_late: &'c Cell<bool>,
}

impl<M: Listed> Store<M> {
    /// Begins a transaction.
    ///
    /// # Errors
    /// See [`Store::snapshot`].
    pub fn begin(&self, isolation: Isolation) -> Result<Transaction<M>, Error> {
        let snapshot = self.snapshot()?;
        Ok(Transaction {
            isolation,
            writes: BTreeMap::new(),
            undo: Vec::new(),
            last: 0,
            beginning: 0,
            has_savepoint: false,
            saved: 0,
            size: 0,
            size_max: usize::MAX,
            reads: Mutex::default(),
            snapshot,
        })
    }

    /// Runs `act` in a transaction and commits it. On a conflict it starts again from the beginning, as often as needed. Each such turn means that another
    /// write went through, or that something that `act` had read has expired. After some turns of the second kind the store's time stands still, for ten
    /// seconds of each turn at most (see [`Store::hold_time`]), so expiry can keep only an `act` that takes longer from ever finishing. Outside its
    /// transaction, `act` must not write keys that the transaction writes or has read: it would conflict with itself each time, for ever.
    ///
    /// Others do not wait for it. A serializable `act` that reads many keys, of which others change some more often than it takes, may therefore never be done.
    /// Let it read from [`Transaction::snapshot`] what need not be checked, or take less per transaction, or give up: it may count its calls, and return an
    /// error of its own.
    ///
    /// # Errors
    /// Those of `act`, which abort the transaction; those of [`Transaction::commit`] except [`Error::Conflict`].
    pub fn transact<T, E: From<Error>>(&self, isolation: Isolation, mut act: impl FnMut(&mut Transaction<M>) -> Result<T, E>) -> Result<T, E> {
        let mut late = 0;
        loop {
            let _held = if late < TURNS { None } else { self.hold_time(STANDSTILL) };
            let mut transaction = self.begin(isolation)?;
            let outcome = act(&mut transaction)?;
            let is_late = Cell::new(false);
            match transaction.commit_in_time(&is_late) {
                Err(Error::Conflict { .. }) => {
                    late += usize::from(is_late.get());
                    schedule::rest();
                }
                committed => return Ok(committed.map(|()| outcome)?),
            }
        }
    }
}

impl<M: Listed> Transaction<M> {
    /// Returns the snapshot that the transaction reads from, without its own writes. In no mode does the commit check reads through this snapshot.
    pub fn snapshot(&self) -> &Snapshot<M> {
        &self.snapshot
    }

    /// Returns the value of `key`, as the transaction has set it, or as of its beginning.
    ///
    /// # Errors
    /// A damaged pool; [`Error::TransactionTooLarge`], if the transaction must remember that it has read the key.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.written(namespace, key) {
            Some(Write { to: Goal::Be(entry), .. }) => Ok(entry.as_ref().map(|entry| entry.value.clone())),
            Some(_) => Ok(self.entry(namespace, key)?.map(|entry| entry.value)),
            None => {
                self.note_key(namespace, key)?;
                self.snapshot.get(namespace, key)
            }
        }
    }

    /// The transaction's own write to `key`, if any.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    fn written(&self, namespace: &Namespace<M>, key: &[u8]) -> Option<&Write<M>> {
        namespace.check_belongs_to(&self.snapshot.shared);
        if self.writes.is_empty() { None } else { self.writes.get(&place(namespace, key)) }
    }

    /// Returns the value of `key` and its expiry time.
    ///
    /// # Errors
    /// See [`Transaction::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn entry(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<Entry>, Error> {
        match self.written(namespace, key) {
            Some(Write { to: Goal::Be(entry), .. }) => Ok(entry.clone()),
            Some(Write { to: Goal::BeDraft(draft), .. }) => draft.entry().map(Some),
            Some(Write { to: Goal::Become(merges), .. }) => {
                self.rely_on(namespace, key)?;
                namespace.made_of(key, self.snapshot.entry(namespace, key)?, merges)
            }
            None => {
                self.note_key(namespace, key)?;
                self.snapshot.entry(namespace, key)
            }
        }
    }

    /// Returns whether `key` is present.
    ///
    /// # Errors
    /// See [`Transaction::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn contains_key(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<bool, Error> {
        Ok(self.value_size(namespace, key)?.is_some())
    }

    /// Returns the length of the value of `key` in bytes, if the key is present.
    ///
    /// # Errors
    /// See [`Transaction::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn value_size(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<Option<usize>, Error> {
        match self.written(namespace, key) {
            Some(Write { to: Goal::Be(entry), .. }) => Ok(entry.as_ref().map(|entry| entry.value.len())),
            Some(Write { to: Goal::BeDraft(draft), .. }) => Ok(Some(draft.record()?.value_size())),
            Some(_) => Ok(self.get(namespace, key)?.map(|value| value.len())),
            None => {
                self.note_key(namespace, key)?;
                self.snapshot.value_size(namespace, key)
            }
        }
    }

    /// Returns the values of several keys, in their order, as the transaction has set them, or as of its beginning: faster than one by one.
    ///
    /// # Errors
    /// See [`Transaction::get`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn get_many(&self, namespace: &Namespace<M>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        keys.iter().try_for_each(|key| self.note_key(namespace, key))?;
        let mut values = self.snapshot.get_many(namespace, keys)?;
        for (key, value) in keys.iter().zip(&mut values) {
            if self.written(namespace, key).is_some() {
                *value = self.get(namespace, key)?;
            }
        }
        Ok(values)
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// A key or value too long; [`Error::ReadOnly`]; [`Error::TransactionTooLarge`]; for values of 512 bytes and more, which go to the pool at once, a full
    /// pool and [`Error::Halted`]. The key is then unchanged.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn put(&mut self, namespace: &Namespace<M>, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put_until(namespace, key, value, None)
    }

    /// Sets `key` to `value`, until `expiry_ms` (`None`: for ever). See [`Namespace::put_until`]. The transaction itself sees the key even after that.
    ///
    /// # Errors
    /// See [`Transaction::put`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn put_until(&mut self, namespace: &Namespace<M>, key: &[u8], value: &[u8], expiry_ms: impl Into<Option<u64>>) -> Result<(), Error> {
        let expiry_ms = expiry_ms.into();
        check_sizes(key, value)?;
        self.check_may_write(namespace)?;
        let to = match value.len() {
            draft::SIZE_MIN.. => Goal::BeDraft(Draft::write(namespace, key, value, expiry_ms)?),
            _ => Goal::Be(Some(Entry { value: value.to_vec(), expiry_ms })),
        };
        self.write(namespace, key, to)
    }

    /// Applies `merge` to the value of `key`: to the value that the transaction has set, or to the value at commit, even if others have written it meanwhile.
    /// The key must be unchanged only if the transaction also reads it after the merge.
    ///
    /// # Errors
    /// A key too long; [`Error::ReadOnly`]; [`Error::TransactionTooLarge`]; [`Error::Merge`], at commit at the latest; for a value that the transaction has
    /// set, also the errors of [`Transaction::put`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn merge(&mut self, namespace: &Namespace<M>, key: &[u8], merge: Merge) -> Result<(), Error> {
        check_sizes(key, &[])?;
        self.write(namespace, key, Goal::Become(vec![merge]))
    }

    /// Removes `key`, and returns whether it was present.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Merge`], of an earlier merge of the transaction; a damaged pool; [`Error::TransactionTooLarge`]. The key is then
    /// unchanged.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn delete(&mut self, namespace: &Namespace<M>, key: &[u8]) -> Result<bool, Error> {
        let present = self.value_size(namespace, key)?.is_some();
        self.write(namespace, key, Goal::Be(None))?;
        Ok(present)
    }

    /// Removes all keys within `bounds` that the transaction sees, without reading values, and returns their number.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; a damaged pool; [`Error::TransactionTooLarge`]. Some of the keys may then be removed.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn delete_range<'k, K: AsRef<[u8]> + ?Sized + 'k>(&mut self, namespace: &Namespace<M>, bounds: impl RangeBounds<&'k K>) -> Result<u64, Error> {
        let mut cursor = cursor_of(&bounds);
        let mut count = 0;
        while !cursor.is_over() {
            let mut keys = Vec::new();
            self.walk_keys(namespace, &mut cursor, |key| {
                keys.push(key.to_vec());
                if keys.len() < KEYS_PER_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            keys.iter().try_for_each(|key| self.write(namespace, key, Goal::Be(None)))?;
            count += keys.len() as u64;
        }
        Ok(count)
    }

    /// Limits the memory of the transaction: from then on it refuses writes and reads that would take more than about `size_max` bytes of DRAM. It keeps keys,
    /// small values and merges that it has written; if it is serializable, keys that it has read and bounds of ranges that it has scanned; in any mode, keys
    /// that it has merged and then read. A scan is refused if nothing is left when it begins, because its bounds are kept when it ends.
    pub fn limit_size(&mut self, size_max: usize) {
        self.size_max = size_max;
    }

    fn check_may_write(&self, namespace: &Namespace<M>) -> Result<(), Error> {
        namespace.check_belongs_to(&self.snapshot.shared);
        if self.isolation == Isolation::ReadOnly { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn write(&mut self, namespace: &Namespace<M>, key: &[u8], mut to: Goal<M>) -> Result<(), Error> {
        self.check_may_write(namespace)?;
        let at = place(namespace, key);
        let failed = merge::failed(namespace.name(), key);
        if let Goal::Become(_) = to
            && let Some(Write { to: value @ (Goal::Be(_) | Goal::BeDraft(_)), .. }) = self.writes.get(&at)
        {
            to = merged_goal(namespace, key, value.clone(), to)?;
        }
        let added = memory_of(key, Some(&to));
        if self.size.saturating_add(added).saturating_add(self.reads.get_mut().size()) > self.size_max {
            return Err(self.too_large());
        }
        // The key's state at the latest savepoint is kept once, however often the key is written from then on.
        let keeps = self.has_savepoint && self.writes.get(&at).is_none_or(|write| write.kept <= self.saved);
        if keeps {
            let before = self.writes.get(&at).cloned();
            self.last += 1;
            self.size += memory_of(key, before.as_ref().map(|write| &write.to));
            self.undo.push((self.last, at.clone(), before));
        }
        let write = match self.writes.entry(at) {
            Slot::Vacant(slot) => {
                self.size += added;
                slot.insert(Write { namespace: namespace.clone(), to, kept: 0 })
            }
            Slot::Occupied(slot) => {
                let write = slot.into_mut();
                self.size -= write.to.size();
                write.to.then(to, failed)?;
                self.size += write.to.size();
                write
            }
        };
        if keeps {
            write.kept = self.last;
        }
        Ok(())
    }

    /// Visits keys and values in order from a bound on, until `visit` breaks: as the transaction has set them, or as of its beginning. Forward, the bound is a
    /// lower bound; in reverse, an upper one.
    ///
    /// # Errors
    /// A damaged pool.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn scan(
        &self,
        namespace: &Namespace<M>,
        from: Bound<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.walk(namespace, &mut Cursor::new(from, direction), visit)
    }

    /// Visits all keys that begin with `prefix`, and their values, in order, until `visit` breaks.
    ///
    /// # Errors
    /// See [`Transaction::scan`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn prefix(
        &self,
        namespace: &Namespace<M>,
        prefix: &[u8],
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.walk(namespace, &mut Cursor::prefix(prefix, direction), visit)
    }

    /// Visits the remaining keys and values of a range, until `visit` breaks. `cursor` then continues after the last one visited.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Merge`]; [`Error::TransactionTooLarge`], as for [`Transaction::get`]. The cursor may then continue before the last key visited.
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn walk(&self, namespace: &Namespace<M>, cursor: &mut Cursor, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk_shown(namespace, cursor, Reading::Values, &mut |shown| match shown {
            Shown::Own(key, value) => Ok(visit(key, value)),
            Shown::Stored(met) => met.entry().map(|(key, value)| visit(key, value)),
        })
    }

    /// [`Transaction::walk`] without reading values.
    ///
    /// # Errors
    /// See [`Transaction::walk`].
    ///
    /// # Panics
    /// When the namespace belongs to another store.
    pub fn walk_keys(&self, namespace: &Namespace<M>, cursor: &mut Cursor, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        self.walk_shown(namespace, cursor, Reading::Keys, &mut |shown| match shown {
            Shown::Own(key, _) => Ok(visit(key)),
            Shown::Stored(met) => met.checked_key().map(&mut visit),
        })
    }

    /// Walks the snapshot and the transaction's own writes side by side.
    fn walk_shown(&self, namespace: &Namespace<M>, cursor: &mut Cursor, reading: Reading, show: &mut Show<'_>) -> Result<(), Error> {
        let view = self.snapshot.view(namespace);
        self.check_range_size()?;
        let begun = cursor.clone();
        // If `show` panics, it may have seen anything from there on.
        let unwinding = OnUnwind(|| self.note_range(namespace, begun.rest()));
        let mut own = self.own(namespace, &begun).peekable();
        // The own key at which `show` stopped, or that could not be shown.
        let mut last = None;
        let outcome = view.walk(cursor, reading, &mut |met| {
            let key = met.key();
            while let Some((due, to)) = own.next_if(|(own, _)| begun.is_before(own, key)) {
                let shown = self.show_own(namespace, due, to, None, show);
                if !matches!(shown, Ok(ControlFlow::Continue(()))) {
                    last = Some(due);
                    return shown;
                }
            }
            match own.next_if(|(own, _)| *own == key) {
                Some((_, to)) => self.show_own(namespace, key, to, Some(&met), show),
                None => show(Shown::Stored(met)),
            }
        });
        let outcome = outcome.and_then(|()| {
            while last.is_none()
                && let Some((due, to)) = own.next_if(|(own, _)| cursor.has_passed(own))
            {
                let shown = self.show_own(namespace, due, to, None, show);
                if !matches!(shown, Ok(ControlFlow::Continue(()))) {
                    last = Some(due);
                    _ = shown?;
                }
            }
            Ok(())
        });
        if let Some(last) = last {
            *cursor = begun.clone();
            cursor.advance(last.to_vec());
        }
        std::mem::forget(unwinding);
        let seen = match &outcome {
            Ok(()) => begun.passed(cursor),
            Err(_) => begun.rest(),
        };
        self.note_range(namespace, seen);
        outcome
    }

    /// Shows the transaction's own write, applied over the snapshot's record, if any.
    fn show_own(&self, namespace: &Namespace<M>, key: &[u8], to: &Goal<M>, met: Option<&Met<'_>>, show: &mut Show<'_>) -> Result<ControlFlow<()>, Error> {
        let mut show = |value: Option<&[u8]>| value.map_or(Ok(ControlFlow::Continue(())), |value| show(Shown::Own(key, value)));
        match to {
            Goal::Be(entry) => show(entry.as_ref().map(|entry| entry.value.as_slice())),
            Goal::BeDraft(draft) => show(Some(&draft.entry()?.value)),
            Goal::Become(merges) => {
                self.rely_on(namespace, key)?;
                let mut value = Vec::new();
                let size = met.map(|met| met.copy_value(&mut value)).transpose()?;
                // The merged value does not depend on the expiry time.
                let merged = namespace.made_of(key, size.map(|_| Entry { value, expiry_ms: None }), merges)?;
                show(merged.as_ref().map(|entry| entry.value.as_slice()))
            }
        }
    }

    /// The transaction's own writes in the range that is left to `cursor`.
    fn own<'t>(&'t self, namespace: &Namespace<M>, cursor: &'t Cursor) -> Own<'t, M> {
        let space = namespace.space.number;
        let at = cursor.position().map(|key| (space, key.to_vec()));
        // The empty key is the first of all keys.
        let (first, end) = (Bound::Included((space, Vec::new())), Bound::Excluded((space + 1, Vec::new())));
        let entry = |((_, key), write): (&'t At, &'t Write<M>)| (key.as_slice(), &write.to);
        let is_within = |(key, _): &(&[u8], &Goal<M>)| !cursor.is_beyond(key);
        let or = |at, other| if matches!(at, Bound::Unbounded) { other } else { at };
        match cursor.direction() {
            _ if cursor.is_over() => Box::new(std::iter::empty()),
            Direction::Forward => Box::new(self.writes.range((or(at, first), end)).map(entry).take_while(is_within)),
            Direction::Reverse => Box::new(self.writes.range((first, or(at, end))).rev().map(entry).take_while(is_within)),
        }
    }

    /// Returns a point to roll back to with [`Transaction::rollback_to`].
    pub fn savepoint(&mut self) -> Savepoint {
        let (length, is_first) = (self.undo.len(), !self.has_savepoint);
        self.has_savepoint = true;
        self.saved = self.last;
        Savepoint { transaction: self.snapshot.timestamp(), length, last: self.last_before(length), is_first }
    }

    /// The number of the last of the first `length` entries of `undo`; if there is none, that of the beginning.
    fn last_before(&self, length: usize) -> u64 {
        length.checked_sub(1).map_or(self.beginning, |last| self.undo[last].0)
    }

    fn check(&self, &Savepoint { transaction, length, last, .. }: &Savepoint) {
        assert!(transaction == self.snapshot.timestamp(), "a savepoint of another transaction");
        assert!(length <= self.undo.len() && self.last_before(length) == last, "a savepoint of which nothing is left");
    }

    /// Undoes all writes since `savepoint`, which stays valid. Reads since then stay recorded.
    ///
    /// # Panics
    /// When `savepoint` belongs to another transaction; when something that came before it has been undone, even if other writes have followed.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) {
        self.check(savepoint);
        for (_, place, before) in self.undo.drain(savepoint.length..).rev() {
            // The earlier write stays counted if it is put back.
            self.size -= before.as_ref().map_or(memory_of::<M>(&place.1, None), |_| 0);
            let (key, after) = match before {
                Some(write) => (place.1.clone(), self.writes.insert(place, write)),
                None => self.writes.remove_entry(&place).map_or((Vec::new(), None), |((_, key), write)| (key, Some(write))),
            };
            self.size -= after.map_or(0, |write| memory_of(&key, Some(&write.to)));
        }
    }

    /// Releases `savepoint` and all later ones: there is no rolling back to them. Replaced writes since then are kept no longer, unless there is an earlier
    /// savepoint.
    ///
    /// # Panics
    /// See [`Transaction::rollback_to`].
    pub fn release(&mut self, savepoint: Savepoint) {
        self.check(&savepoint);
        if savepoint.is_first {
            self.size -= self.undo.iter().map(|(_, (_, key), before)| memory_of(key, before.as_ref().map(|write| &write.to))).sum::<usize>();
            self.undo.clear();
            self.last += 1;
            self.beginning = self.last;
            self.has_savepoint = false;
        }
    }

    /// Makes all writes durable and visible, at once.
    ///
    /// # Errors
    /// [`Error::Conflict`], when another writer was faster, or something that was read has expired; [`Error::Merge`]; a full pool; a damaged pool;
    /// [`Error::Halted`]. Nothing has changed then.
    pub fn commit(self) -> Result<(), Error> {
        self.commit_in_time(&Cell::new(false))
    }

    /// [`Transaction::commit`], which also sets `is_late` if time contributed to a conflict: something that was read has expired since.
    fn commit_in_time(self, is_late: &Cell<bool>) -> Result<(), Error> {
        let Self { mut snapshot, writes, undo, reads, .. } = self;
        drop(undo);
        if writes.is_empty() {
            return Ok(());
        }
        let (shared, moment) = (snapshot.shared.clone(), snapshot.moment());
        let changes: Vec<_> = writes.into_iter().map(|((_, key), Write { namespace, to, .. })| Item { namespace, key, to }).collect();
        let reads = reads.into_inner();
        let quiet = || match reads.ranges().next() {
            None => Quiet::Keys(reads.keys().map(|(space, key)| (space.number, key)).collect()),
            Some(_) => Quiet::Everything,
        };
        let is_first = Cell::new(true);
        let check = |time_ms| {
            // After a commit that found no room, what the snapshot held back may be gone.
            let is_held = is_first.replace(false);
            let mut set = changes.iter().filter(|item| !matches!(item.to, Goal::Become(_)));
            set.try_for_each(|item| shared.check_unchanged(&item.namespace.space, &item.key, Seen { moment, now_ms: None, is_held, is_late }))?;
            shared.check_reads(&reads, Seen { moment, now_ms: Some(time_ms), is_held, is_late })
        };
        shared.with_room(|| shared.commit(&changes, quiet(), Some(&mut snapshot), check)).map(drop)
    }

    pub(crate) fn note_key(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<(), Error> {
        if self.isolation == Isolation::Serializable { self.rely_on(namespace, key) } else { Ok(()) }
    }

    /// Notes that a key was read, or read and merged, so that the commit must find it unchanged.
    fn rely_on(&self, namespace: &Namespace<M>, key: &[u8]) -> Result<(), Error> {
        let is_noted = self.reads.lock().note_key(&namespace.space, key, self.size_max.saturating_sub(self.size));
        if is_noted { Ok(()) } else { Err(self.too_large()) }
    }

    fn too_large(&self) -> Error {
        Error::TransactionTooLarge { size_max: self.size_max }
    }

    /// Checks that there is room for another range before the scan: its bounds are noted afterwards, whatever they take.
    fn check_range_size(&self) -> Result<(), Error> {
        let is_too_large = || self.size.saturating_add(self.reads.lock().size()) >= self.size_max;
        if self.isolation == Isolation::Serializable && is_too_large() { Err(self.too_large()) } else { Ok(()) }
    }

    /// Notes that a scan went from a lower to an upper bound.
    fn note_range(&self, namespace: &Namespace<M>, (low, high): (Bound<Vec<u8>>, Bound<Vec<u8>>)) {
        if self.isolation == Isolation::Serializable {
            self.reads.lock().note_range(&namespace.space, low, high);
        }
    }
}

/// Calls a function when it is dropped, that is, when the stack unwinds: otherwise it is forgotten.
struct OnUnwind<F: Fn()>(F);

impl<F: Fn()> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<M: Listed> Shared<M> {
    /// Checks that all that was read still holds. The caller holds the stripes.
    fn check_reads(&self, reads: &Reads, seen: Seen<'_>) -> Result<(), Error> {
        reads.keys().try_for_each(|(space, key)| self.check_unchanged(space, key, seen))?;
        reads.ranges().try_for_each(|(space, from, end)| self.check_range(space, from, end, seen))
    }

    /// Checks that `key` is as it was `seen` by a snapshot that is held now. The caller holds its stripe.
    fn check_unchanged(&self, space: &Space, key: &[u8], seen: Seen<'_>) -> Result<(), Error> {
        self.check_not_turned(space, key, seen.moment.at)?;
        let Some(index) = space.index.load_full() else { return Ok(()) };
        match index.tree.get(key)? {
            Some(link) => self.check_version(space, key, link.get(), seen),
            None => Ok(()),
        }
    }

    /// [`Shared::check_unchanged`] for all keys of a range. The caller holds all stripes.
    fn check_range(&self, space: &Space, from: Bound<&[u8]>, end: Option<&[u8]>, seen: Seen<'_>) -> Result<(), Error> {
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        self.check_not_turned(space, first, seen.moment.at)?;
        let Some(index) = space.index.load_full() else { return Ok(()) };
        let mut outcome = Ok(());
        index.tree.scan(from, Direction::Forward, &mut |key, link| {
            // A damaged key may lie anywhere, with keys of the range after it.
            let is_proved = || Record::read(&self.pool, link.get()).is_ok_and(|record| record.proves(key));
            if end.is_some_and(|end| key >= end) && is_proved() {
                return ControlFlow::Break(());
            }
            outcome = self.check_version(space, key, link.get(), seen);
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome
    }

    fn check_not_turned(&self, space: &Space, key: &[u8], moment: u64) -> Result<(), Error> {
        let turned = space.turned.load(Ordering::Acquire);
        if turned < moment { Ok(()) } else { Err(conflict(space, key)) }
    }

    fn check_version(&self, space: &Space, key: &[u8], link: u64, Seen { moment, now_ms, is_held, is_late }: Seen<'_>) -> Result<(), Error> {
        let record = Record::read(&self.pool, link)?;
        let is_overtaken = |record: &Record<'_>| now_ms.is_some_and(|now_ms| is_shown(record, now_ms) != is_shown(record, moment.time_ms));
        let is_late_now = match self.age(&record)? {
            Age::At(at) if at < moment.at && !is_overtaken(&record) => return Ok(()),
            Age::At(at) if at < moment.at => true,
            Age::At(at) if at > self.clock.now() => return Err(untimely(&record)),
            Age::At(at) if is_held && self.is_burial(&record, link, at, moment)? => return Ok(()),
            // What was read has been removed or replaced: after it had expired?
            Age::At(_) => is_held && now_ms.is_some() && self.version_at(link, moment.at)?.is_some_and(|(read, _)| is_overtaken(&read)),
            Age::Open => return Err(damaged(&record, "a pending record, and no batch is under way")),
        };
        is_late.set(is_late_now);
        Err(conflict(space, key))
    }

    /// Whether a version that was committed at `at`, after the moment of a held snapshot, removes a version that the snapshot did not show.
    fn is_burial(&self, record: &Record<'_>, link: u64, at: u64, moment: Moment) -> Result<bool, Error> {
        if !record.is_tombstone() || record.previous().get() & CUT_OUT != 0 {
            return Ok(false);
        }
        let removed = self.version_at(link, at)?;
        Ok(removed.is_some_and(|(removed, at)| at < moment.at && !is_shown(&removed, moment.time_ms)))
    }
}

/// Bytes of DRAM that a key takes, with its goal.
fn memory_of<M: Listed>(key: &[u8], to: Option<&Goal<M>>) -> usize {
    ENTRY_SIZE + key.len() + to.map_or(0, Goal::size)
}

/// Applies a merge to the goal that a transaction has set for a key.
fn merged_goal<M: Listed>(namespace: &Namespace<M>, key: &[u8], mut value: Goal<M>, merge: Goal<M>) -> Result<Goal<M>, Error> {
    value.then(merge, merge::failed(namespace.name(), key))?;
    match value {
        Goal::Be(Some(Entry { value, expiry_ms })) if value.len() >= draft::SIZE_MIN => {
            check_sizes(key, &value)?;
            Draft::write(namespace, key, &value, expiry_ms).map(Goal::BeDraft)
        }
        value => Ok(value),
    }
}

/// The error for a key that is not as expected.
pub(crate) fn conflict(space: &Space, key: &[u8]) -> Error {
    Error::Conflict { namespace: space.name.clone(), key: key.to_vec() }
}

fn place<M: Listed>(namespace: &Namespace<M>, key: &[u8]) -> At {
    (namespace.space.number, key.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use std::sync::Arc;

    /// However many there are, however often they are written, and whatever is kept for savepoints.
    #[test]
    fn no_value_of_any_size_is_kept_in_memory() {
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        let mut transaction = store.begin(Isolation::Snapshot).unwrap();
        for turn in 0..3u8 {
            transaction.savepoint();
            for n in 0..200u8 {
                transaction.put(&space, &[n], &vec![turn; 10_000]).unwrap();
                transaction.merge(&space, &[n], Merge::Append(vec![turn; 20_000])).unwrap();
                transaction.put(&space, &[n, n], &[turn; draft::SIZE_MIN - 1]).unwrap();
            }
        }
        let goals = transaction.writes.values().chain(transaction.undo.iter().filter_map(|(_, _, before)| before.as_ref())).map(|write| &write.to);
        let sizes = goals.map(|goal| match goal {
            Goal::Be(entry) => entry.as_ref().map_or(0, |entry| entry.value.len()),
            Goal::BeDraft(draft) => draft.entry().map_or(usize::MAX, |_| 0),
            Goal::Become(_) => usize::MAX,
        });
        assert_eq!(sizes.max(), Some(draft::SIZE_MIN - 1));
        // Of each key three values, of which savepoints keep two; none of those that were replaced between savepoints.
        assert!((3 * 200 * 30_000..3 * 200 * 31_000).contains(&store.held_back().draft_bytes), "{:?}", store.held_back());
        drop(transaction);
        assert_eq!(store.held_back().draft_bytes, 0);
    }

    /// Each merge after a savepoint kept all merges of the key before it, and functions took no room at all.
    #[test]
    fn merges_without_number_take_the_room_of_each_or_are_refused() {
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        let mut transaction = store.begin(Isolation::Snapshot).unwrap();
        transaction.savepoint();
        for n in 0..10_000u64 {
            transaction.merge(&space, b"sum", Merge::Add(1)).unwrap();
            transaction.merge(&space, b"tail", Merge::Append(vec![n as u8])).unwrap();
        }
        let few = transaction.size;
        assert!((10_000..15_000).contains(&few), "{few}");
        let longer = |n: u64| Merge::With(Arc::new(move |value| Ok(Some([value.unwrap_or_default(), &n.to_le_bytes()[..1]].concat()))));
        transaction.limit_size(1 << 20);
        let mut count = 0;
        let refused = loop {
            match transaction.merge(&space, b"longer", longer(count)) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::TransactionTooLarge { size_max } if size_max == 1 << 20), "{refused}");
        let each = size_of::<Merge>() + size_of::<u64>();
        assert!(((1 << 20) - few - 1_000..=1 << 20).contains(&(count as usize * each)), "{count} of {each} bytes");
        transaction.commit().unwrap();
        let found = [&b"sum"[..], b"tail", b"longer"].map(|key| space.value_size(key).unwrap());
        assert_eq!(found, [Some(8), Some(10_000), Some(count as usize)]);
    }

    /// What a serializable transaction must remember of its reads was without bound, and each step of a scan was remembered by itself.
    #[test]
    fn what_a_transaction_has_read_is_counted_and_limited() {
        const SIZE_MAX: usize = 64 << 10;
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        (0..2_000u32).for_each(|n| space.put(&n.to_be_bytes(), b"v").unwrap());
        let is_refused = |outcome: Result<(), Error>| matches!(outcome, Err(Error::TransactionTooLarge { size_max }) if size_max == SIZE_MAX);
        let get = |transaction: &Transaction, n: u32| transaction.get(&space, &n.to_be_bytes()).map(drop);
        let begin = |isolation| {
            let mut transaction = store.begin(isolation).unwrap();
            transaction.limit_size(SIZE_MAX);
            transaction
        };
        let mut transaction = begin(Isolation::Serializable);
        let count = (0..).find(|n| get(&transaction, *n).is_err()).unwrap();
        assert!((SIZE_MAX as u32 / 200..SIZE_MAX as u32 / 100).contains(&count), "{count}");
        assert!(is_refused(get(&transaction, count)) && is_refused(transaction.get_many(&space, &[b"other"]).map(drop)));
        assert!(is_refused(transaction.entry(&space, b"other").map(drop)) && is_refused(transaction.value_size(&space, b"other").map(drop)));
        assert!(is_refused(transaction.put(&space, b"other", b"w")) && is_refused(transaction.delete(&space, b"other").map(drop)));
        (0..count).for_each(|n| get(&transaction, n).unwrap());
        transaction.limit_size(usize::MAX);
        transaction.put(&space, b"other", b"w").unwrap();
        transaction.commit().unwrap();
        // A scan, in steps of one key each, and what is read there again.
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut transaction = begin(Isolation::Serializable);
            let mut cursor = Cursor::new(Bound::Unbounded, direction);
            while !cursor.is_over() {
                transaction.walk(&space, &mut cursor, |_, _| ControlFlow::Break(())).unwrap();
                assert_eq!(transaction.reads.get_mut().ranges().count(), 1);
            }
            (0..2_000).for_each(|n| get(&transaction, n).unwrap());
            assert!(transaction.reads.get_mut().size() < 2 * ENTRY_SIZE);
        }
        // Scans of many ranges.
        let mut transaction = begin(Isolation::Serializable);
        let scan = |transaction: &Transaction, n: u32| {
            let mut cursor = Cursor::new(Bound::Included(&n.to_be_bytes()), Direction::Forward);
            transaction.walk_keys(&space, &mut cursor, |_| ControlFlow::Break(()))
        };
        let count = (0..1_000).find(|n| scan(&transaction, 2 * n).is_err()).unwrap();
        assert!((SIZE_MAX as u32 / 200..SIZE_MAX as u32 / 100).contains(&count), "{count}");
        assert!(is_refused(scan(&transaction, 0)) && is_refused(transaction.put(&space, b"other", b"w")));
        assert!(transaction.reads.get_mut().size() <= SIZE_MAX + 2 * ENTRY_SIZE);
        // Nothing is remembered of what is not looked at again.
        let mut transaction = begin(Isolation::Snapshot);
        (0..2_000).for_each(|n| scan(&transaction, n).and_then(|()| get(&transaction, n)).unwrap());
        assert_eq!(transaction.reads.get_mut().size(), 0);
        // What was read and merged is, in any mode.
        let merged = (0..).find(|n: &u32| transaction.merge(&space, &n.to_be_bytes(), Merge::Append(vec![1])).is_err()).unwrap();
        transaction.limit_size(transaction.size + 3 * memory_of::<Hardware>(&[0; 4], None));
        assert_eq!((0..merged).find(|n| get(&transaction, *n).is_err()), Some(3));
        assert!(transaction.scan(&space, Bound::Unbounded, Direction::Forward, |_, _| ControlFlow::Continue(())).is_err());
    }

    #[test]
    fn what_a_transaction_keeps_in_memory_is_counted_and_limited() {
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let space = store.namespace("space").unwrap();
        (0..10_000u32).for_each(|n| space.put(&n.to_be_bytes(), b"v").unwrap());
        let mut transaction = store.begin(Isolation::Serializable).unwrap();
        let size = |transaction: &Transaction| {
            let undone = transaction.undo.iter().map(|(_, (_, key), before)| memory_of(key, before.as_ref().map(|write| &write.to)));
            let size = undone.chain(transaction.writes.iter().map(|((_, key), write)| memory_of(key, Some(&write.to)))).sum::<usize>();
            assert_eq!(transaction.size, size);
            size
        };
        let act = |transaction: &mut Transaction, turn: u8| {
            for n in 0..20u8 {
                match (n ^ turn) % 4 {
                    0 => transaction.put(&space, &[n], &vec![turn; usize::from(turn) * 10]).unwrap(),
                    1 if n % 8 < 4 => transaction.merge(&space, &[n], Merge::Append(vec![turn; 5])).unwrap(),
                    1 => transaction.merge(&space, &[n], Merge::With(Arc::new(move |_| Ok(Some(vec![turn; 5]))))).unwrap(),
                    2 => drop(transaction.delete(&space, &[n]).unwrap()),
                    _ => transaction.put(&space, &[n], &[turn; 600]).unwrap(),
                }
            }
        };
        (0..4).for_each(|turn| act(&mut transaction, turn));
        let before = size(&transaction);
        let savepoint = transaction.savepoint();
        (4..9).for_each(|turn| act(&mut transaction, turn));
        assert!(size(&transaction) > before);
        transaction.rollback_to(&savepoint);
        assert_eq!(size(&transaction), before);
        (4..9).for_each(|turn| act(&mut transaction, turn));
        transaction.release(savepoint);
        size(&transaction);
        transaction.limit_size(transaction.size + 1_000 * memory_of::<Hardware>(&[0; 4], None));
        let savepoint = transaction.savepoint();
        let refused = transaction.delete_range::<[u8]>(&space, ..).unwrap_err();
        assert!(matches!(refused, Error::TransactionTooLarge { size_max } if size_max == transaction.size_max), "{refused}");
        assert!(size(&transaction) <= transaction.size_max + memory_of::<Hardware>(&[0; 4], None));
        transaction.rollback_to(&savepoint);
        transaction.limit_size(usize::MAX);
        assert_eq!(transaction.delete_range(&space, &0u32.to_be_bytes()..=&9_999u32.to_be_bytes()).unwrap(), 10_000);
        size(&transaction);
        transaction.commit().unwrap();
        assert!(space.get(&5u32.to_be_bytes()).unwrap().is_none());
    }
}
