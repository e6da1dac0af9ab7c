//! Operations on one key at a time.
//!
//! A put is one record write and one index publish, a delete one index removal:
//!
//! 1. Take the key's stripe. Readers do not, so only another writer of the key (or of a key with the same stripe) waits for a writer.
//! 2. Write the record into a fresh block and seal it. *Crash: nothing reaches the block; recovery finds it free.*
//! 3. Publish its link in the index: **the commit point**, durable before any reader can see it. *Crash before: the old version is there; after: the new one.*
//!    Where a device is waited for, the record is only flushed in 2, and durable before the link or with it ([`Pm::publish`](everleaf_pmem::Pm::publish)).
//! 4. Retire the old record. *Crash: nothing reaches it; recovery finds it free.*
//!
//! That is a *plain* write, whose record carries a timestamp drawn beforehand. If there are snapshots, or were lately (`snapshot.rs`), a write keeps the
//! version that it replaces: it looks that up before 2 and links it in its record, which has no timestamp; stamps the record after 3; and leaves the old one to
//! `garbage.rs` in 4. A delete then publishes a tombstone, which hides the versions behind it. *Crash: recovery removes tombstones, and nothing follows links
//! to old versions.*
//!
//! Writers do not pin an epoch while they allocate: a full pool makes room from retired blocks, and a pinned thread would block itself. Readers pin an epoch,
//! look up the link and copy the value out once; the copy is handed out only if its checksum matches.

use crate::Error;
use crate::garbage::STEPS_PER_WRITE;
use crate::merge::{self, Merge};
use crate::store::{Index, Shared, Space, check_sizes};
use crate::stripes::{Announced, Locked};
use crate::version::{Moment, damaged, is_shown};
use crate::view::View;
use everleaf_index::record::{KeySum, Record, Version};
use everleaf_index::{Listed, Write};
use everleaf_pmem::{Fresh, Hardware, Medium, Off, Reserve, Word, with_reserve};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// The action of [`Namespace::modify`] on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leave it as it is.
    Keep,
    /// Set it, and keep its expiry time, if any.
    Put(Vec<u8>),
    /// Set it, and its expiry time in milliseconds since 1970, or `None` for no expiry.
    PutUntil(Vec<u8>, Option<u64>),
    /// Set only its expiry time, likewise, if the key is present. This works in a full pool, unless the old value stays for a snapshot or is larger than the
    /// room kept for removals.
    Expire(Option<u64>),
    /// Remove it.
    Delete,
}

/// A value that was found; it lives only as long as the call that found it. See [`Namespace::visit_many`].
pub struct Found<'a> {
    pub(crate) record: Record<'a>,
    pub(crate) key: &'a [u8],
}

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its value.
    pub value: Vec<u8>,
    /// Its expiry time in milliseconds since 1970, if any.
    pub expiry_ms: Option<u64>,
}

/// What a key is to hold.
#[derive(Clone, Copy)]
pub(crate) struct Content<'v> {
    pub(crate) value: &'v [u8],
    pub(crate) expiry_ms: Option<u64>,
}

impl<'v> Content<'v> {
    fn lasting(value: &'v [u8]) -> Self {
        Self { value, expiry_ms: None }
    }

    pub(crate) fn of(entry: &'v Entry) -> Self {
        Self { value: &entry.value, expiry_ms: entry.expiry_ms }
    }
}

/// How a write treats what it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "after a write that keeps versions, some garbage is to be collected"]
pub(crate) enum Way {
    Plain,
    Versioned,
}

/// [`Way`], with the data that it needs.
pub(crate) enum Course<'a> {
    /// The timestamp; the first snapshot waits until the other value is dropped.
    Plain(u64, Announced<'a>),
    Versioned,
}

impl<'a> Found<'a> {
    /// Checks the key and the sizes, but not the value.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_key(&self.record, self.record.key_sum(self.key))
    }

    /// Length of the value in bytes; the value is not checked.
    pub(crate) fn checked_size(&self) -> Result<usize, Error> {
        self.check().map(|()| self.size())
    }

    /// The value and its expiry time.
    pub(crate) fn entry(&self) -> Result<Entry, Error> {
        let mut value = Vec::new();
        self.copy_to(&mut value)?;
        Ok(Entry { value, expiry_ms: self.expiry_ms() })
    }

    /// Returns the length of the value in bytes.
    pub fn size(&self) -> usize {
        self.record.value_size()
    }

    /// Its expiry time in milliseconds since 1970, if any.
    pub fn expiry_ms(&self) -> Option<u64> {
        self.record.expiry_ms()
    }

    /// Appends the value to `out`, and returns its length.
    ///
    /// # Errors
    /// A damaged record; `out` is then as before.
    pub fn copy_to(&self, out: &mut Vec<u8>) -> Result<usize, Error> {
        copy_value(&self.record, self.key, out)
    }
}

/// A named tree of keys and values.
pub struct Namespace<M: Medium = Hardware> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) space: Arc<Space>,
}

impl<M: Medium> Clone for Namespace<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), space: self.space.clone() }
    }
}

impl<M: Medium> fmt::Debug for Namespace<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace").field("name", &self.space.name).finish_non_exhaustive()
    }
}

/// Largest size of keys and values that become durable together where that waits for a device: more bypasses the journal.
pub(crate) const GROUP_OF_DEVICE_BYTES: usize = 256 << 10;

impl<M: Listed> Namespace<M> {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.space.name
    }

    /// Chooses the index that the namespace gets with its first write. Returns whether the namespace gets or has that index: one that was chosen or created
    /// before stays. If nothing is written, the choice is forgotten with the store.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn prefer_index(&self, name: &str) -> Result<bool, Error> {
        self.shared.prefer_index(&self.space, name)
    }

    /// Makes sure that the namespace exists, even without keys.
    pub(crate) fn create(&self) -> Result<(), Error> {
        self.shared.with_room(|| self.with_stripe(&[], |_| Ok((self.with_index(|_| self.shared.writable())?, Way::Plain))))
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// A damaged pool: never the value of another key, nor a value that was never written. Damage to an index that has been closed and opened again can hide a
    /// key nonetheless; [`Store::verify`](crate::Store::verify) finds that.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.map(|_| value))
    }

    /// Appends the value of `key` to `out`, and returns its length, if the key is present.
    ///
    /// # Errors
    /// See [`Namespace::get`]; `out` is then as before.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        self.view().find(key, |found| found.copy_to(out))
    }

    /// Returns the value of `key` and its expiry time.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn entry(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        self.view().find(key, |found| found.entry())
    }

    /// Returns the expiry time of `key` in milliseconds since 1970, if it has one. The outer `None` means that the key is absent.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn expiry_ms(&self, key: &[u8]) -> Result<Option<Option<u64>>, Error> {
        self.view().find(key, |found| {
            found.check()?;
            // The checksum of the key alone proves whether it expires, not when.
            if !found.record.is_lasting() && !found.record.is_intact() {
                return Err(damaged(&found.record, "a record that does not match its checksum"));
            }
            Ok(found.expiry_ms())
        })
    }

    /// Returns the values of several keys, in their order: faster than one by one. Each is what a get of its key would return meanwhile: of a batch, some
    /// writes may be there and some not. A [`Snapshot`](crate::Snapshot) shows all or none of them.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.view().get_many(keys)
    }

    /// Calls `visit` for each of `keys`, in their order, with the value found for it, if any. Looks the keys up in groups, so that they wait for memory
    /// together. While `visit` runs, the whole store reclaims no replaced or removed data: `visit` should neither wait nor write.
    ///
    /// # Errors
    /// Those of `visit`, which end the call; a damaged pool.
    pub fn visit_many<E: From<Error>>(&self, keys: &[&[u8]], visit: impl FnMut(Option<Found<'_>>) -> Result<(), E>) -> Result<(), E> {
        self.view().visit_many(keys, visit)
    }

    /// Returns whether `key` is present. Its value is not read.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn contains_key(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.value_size(key)?.is_some())
    }

    /// Returns the length of the value of `key` in bytes, if the key is present, without copying it.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn value_size(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        self.view().find(key, |found| found.checked_size())
    }

    /// Returns the number of keys: exact when no write is under way. Expired keys count until [`Store::sweep`](crate::Store::sweep) or a write removes them.
    pub fn count(&self) -> u64 {
        self.space.count()
    }

    /// Sets `key` to `value`, without an expiry time: a former one is removed.
    ///
    /// # Errors
    /// A key or value too long; a full pool (nothing has changed then, except that the namespace may exist, without keys); a damaged pool; [`Error::Halted`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put_until(key, value, None)
    }

    /// Sets `key` to `value`, until `expiry_ms`, in milliseconds since 1970 (`None`: for ever). From then on the key is absent, except in snapshots taken
    /// before. It takes room until it is written again or swept. A sweep is done by [`Store::sweep`](crate::Store::sweep); by
    /// [`Store::keep_house`](crate::Store::keep_house), which a thread of the store calls if [`Options::keeps_house`](crate::Options::keeps_house) is set; or
    /// by a write that a full pool would refuse.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn put_until(&self, key: &[u8], value: &[u8], expiry_ms: impl Into<Option<u64>>) -> Result<(), Error> {
        check_sizes(key, value)?;
        let content = Content { value, expiry_ms: expiry_ms.into() };
        self.shared.with_room(|| self.with_stripe(key, |stripe| self.put_locked(stripe, key, content).map(|way| ((), way))))
    }

    /// Sets `key` if it is absent, and returns whether it was.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        check_sizes(key, value)?;
        let set = |stripe: &Locked<'_>| match self.value_size(key)? {
            Some(_) => Ok((false, Way::Plain)),
            None => Ok((true, self.put_locked(stripe, key, Content::lasting(value))?)),
        };
        self.shared.with_room(|| self.with_stripe(key, set))
    }

    /// Removes `key`, and returns whether it was present.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Halted`]. A full pool does not prevent deletes, unless a snapshot is open, or was lately. Then a delete leaves a tombstone of a
    /// few dozen bytes until no snapshot needs the version behind it. For tombstones, and for indexes that need room to remove a key, deletes may use half of
    /// the pool's reserve. The reserve is a sixteenth of `size_max`, at most 4 MiB; a pool under 2 MiB has none. When that half is used up, deletes are refused
    /// like other writes.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.shared.with_room(|| self.with_stripe(key, |stripe| self.delete_locked(stripe, key)))
    }

    /// Sets `key` to `new` (`None`: removes it) if its value is `expected` (`None`: absent), and returns whether it was. An expiry time stays, as with
    /// [`Change::Put`].
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool, Error> {
        check_sizes(key, new.unwrap_or_default())?;
        let swap = |stripe: &Locked<'_>| match self.holds(key, expected, None)? {
            Some(expiry_ms) => Ok((true, self.set_locked(stripe, key, new.map(|value| Content { value, expiry_ms }))?)),
            None => Ok((false, Way::Plain)),
        };
        self.shared.with_room(|| self.with_stripe(key, swap))
    }

    /// Reads `key` and changes it as `decide` says, atomically: no other write to the key comes between. `decide` must not touch the store, not even by
    /// dropping a snapshot, nor wait for another thread that does: it could wait for ever. It is called again whenever a full pool has to make room for its
    /// answer.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    ///
    /// # Panics
    /// When `decide` writes to `key`, or to another key under the same lock, by whatever call, or calls what waits for all writers, such as
    /// [`Store::verify`](crate::Store::verify).
    pub fn modify(&self, key: &[u8], mut decide: impl FnMut(Option<&[u8]>) -> Change) -> Result<(), Error> {
        self.modify_entry(key, |entry| decide(entry.map(|entry| entry.value.as_slice())))
    }

    /// [`Namespace::modify`] for callers that need the expiry time.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn modify_entry(&self, key: &[u8], mut decide: impl FnMut(Option<&Entry>) -> Change) -> Result<(), Error> {
        check_sizes(key, &[])?;
        let mut change = |stripe: &Locked<'_>| {
            let entry = self.entry(key)?;
            let put = |value: &[u8], expiry_ms| {
                check_sizes(key, value)?;
                self.put_locked(stripe, key, Content { value, expiry_ms })
            };
            let way = match decide(entry.as_ref()) {
                Change::Keep => Way::Plain,
                Change::Put(new) => put(&new, entry.and_then(|entry| entry.expiry_ms))?,
                Change::PutUntil(new, expiry_ms) => put(&new, expiry_ms)?,
                Change::Expire(expiry_ms) => entry.map_or(Ok(Way::Plain), |entry| {
                    // Without versions this gives back as much as it takes.
                    let reserve = if self.shared.clock.keeps_versions() { Reserve::Kept } else { Reserve::Half };
                    with_reserve(reserve, || put(&entry.value, expiry_ms))
                })?,
                Change::Delete => self.delete_locked(stripe, key)?.1,
            };
            Ok(((), way))
        };
        self.shared.with_room(|| self.with_stripe(key, &mut change))
    }

    /// Applies `merge` to the value of `key`, atomically. Returns the new value, or `None` if the key is absent then.
    ///
    /// ```
    /// # use everleaf::{Merge, Options, Store};
    /// # let store = Store::anonymous(Options::default())?;
    /// # let space = store.namespace("space")?;
    /// space.merge(b"visits", &Merge::Add(2))?;
    /// space.merge(b"visits", &Merge::Add(3))?;
    /// assert_eq!(space.get(b"visits")?.as_deref(), Some(&5i64.to_le_bytes()[..]));
    /// space.merge(b"log", &Merge::Append(b"started;".to_vec()))?;
    /// # Ok::<_, everleaf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Merge`], when the value cannot be merged in this way; see [`Namespace::put`].
    pub fn merge(&self, key: &[u8], merge: &Merge) -> Result<Option<Vec<u8>>, Error> {
        check_sizes(key, &[])?;
        let act = |stripe: &Locked<'_>| {
            let merged = self.merged(key, std::slice::from_ref(merge), None)?;
            let way = self.set_locked(stripe, key, merged.as_ref().map(Content::of))?;
            Ok((merged.map(|entry| entry.value), way))
        };
        self.shared.with_room(|| self.with_stripe(key, act))
    }

    /// Applies `merges` to the value of `key`. The caller holds its stripe.
    pub(crate) fn merged(&self, key: &[u8], merges: &[Merge], moment: Option<Moment>) -> Result<Option<Entry>, Error> {
        self.made_of(key, self.view_at(moment).find(key, |found| found.entry())?, merges)
    }

    /// Applies `merges` to `entry`, the content of `key`.
    pub(crate) fn made_of(&self, key: &[u8], entry: Option<Entry>, merges: &[Merge]) -> Result<Option<Entry>, Error> {
        let merged = merge::apply(entry, merges).map_err(merge::failed(self.name(), key))?;
        check_sizes(key, merged.as_ref().map_or(&[], |entry| &entry.value))?;
        Ok(merged)
    }

    /// Removes every key, durably and at once, by unlinking the index from the pool; its blocks are reclaimed in steps after that. This works in a full pool.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Halted`].
    pub fn clear(&self) -> Result<(), Error> {
        self.shared.remove(&self.space, |_| Ok(())).map(drop)
    }

    /// If the value of `key` is `expected` (`None`: absent), its expiry time, if any.
    pub(crate) fn holds(&self, key: &[u8], expected: Option<&[u8]>, moment: Option<Moment>) -> Result<Option<Option<u64>>, Error> {
        let held = self.view_at(moment).find(key, |found| {
            let is_expected = expected.is_some_and(|expected| expected.len() == found.size());
            if is_expected { found.entry().map(Some) } else { found.check().map(|()| None) }
        })?;
        Ok(match (held, expected) {
            (None, None) => Some(None),
            (Some(Some(entry)), Some(expected)) if entry.value == expected => Some(entry.expiry_ms),
            _ => None,
        })
    }

    /// Runs `act` with the stripe of `key` held, and then collects some garbage if it kept a version or there is some.
    #[inline]
    pub(crate) fn with_stripe<T>(&self, key: &[u8], act: impl FnOnce(&Locked<'_>) -> Result<(T, Way), Error>) -> Result<T, Error> {
        let (outcome, way) = {
            let stripe = self.shared.stripes.lock(self.space.number, key);
            act(&stripe)?
        };
        self.tidy(way, 1);
        Ok(outcome)
    }

    #[inline]
    pub(crate) fn tidy(&self, way: Way, writes: usize) {
        if way == Way::Versioned || !self.shared.garbage.is_empty() {
            self.shared.tidy(STEPS_PER_WRITE * writes);
        }
    }

    /// How to write now. The caller holds `stripe`, which may be any.
    #[inline]
    pub(crate) fn course<'a>(&self, stripe: &'a Locked<'_>) -> Course<'a> {
        let announced = stripe.announce();
        let tick = self.shared.tick();
        if tick.is_versioned { Course::Versioned } else { Course::Plain(tick.at, announced) }
    }

    /// Sets `key`, or removes it, with a stripe held.
    pub(crate) fn set_locked(&self, stripe: &Locked<'_>, key: &[u8], content: Option<Content<'_>>) -> Result<Way, Error> {
        match content {
            Some(content) => self.put_locked(stripe, key, content),
            None => self.delete_locked(stripe, key).map(|(_, way)| way),
        }
    }

    /// [`Namespace::put`], with the stripe held.
    pub(crate) fn put_locked(&self, stripe: &Locked<'_>, key: &[u8], content: Content<'_>) -> Result<Way, Error> {
        self.shared.writable()?;
        self.with_index(|index| match self.course(stripe) {
            Course::Plain(at, _announced) => {
                let expiry_ms = self.shared.note_expiry(&self.space, content.expiry_ms);
                let record = Record::write(&self.shared.pool, key, content.value, Version { commit: at, expiry_ms, ..Version::default() })?;
                let (link, replaced, outcome) = self.link(index, key, record);
                settle_one(|damaged| self.settle(&[(key, Write::Upsert(link))], replaced.as_slice(), at, outcome, damaged))?;
                Ok(Way::Plain)
            }
            Course::Versioned => {
                let previous = index.tree.get(key)?.map_or(0, NonZeroU64::get);
                self.put_version(index, key, Some(content), previous)?;
                Ok(Way::Versioned)
            }
        })
    }

    /// Runs `act` with the index, creating it if necessary. The caller holds a stripe. No reference is counted: the count lies beside data that readers use.
    #[inline]
    pub(crate) fn with_index<T>(&self, act: impl FnOnce(&Index) -> Result<T, Error>) -> Result<T, Error> {
        match self.space.index.load().as_deref() {
            Some(index) => act(index),
            None => act(&*self.shared.index_or_create(&self.space)?),
        }
    }

    /// [`Namespace::delete`], with the stripe held.
    pub(crate) fn delete_locked(&self, stripe: &Locked<'_>, key: &[u8]) -> Result<(bool, Way), Error> {
        with_reserve(Reserve::Half, || self.delete_reserved(stripe, key))
    }

    fn delete_reserved(&self, stripe: &Locked<'_>, key: &[u8]) -> Result<(bool, Way), Error> {
        self.shared.writable()?;
        let index = self.space.index.load();
        let Some(index) = index.as_deref() else { return Ok((false, Way::Plain)) };
        match self.course(stripe) {
            Course::Plain(at, _announced) => Ok((self.take(index, key, at)?, Way::Plain)),
            Course::Versioned => {
                let previous = index.tree.get(key)?.map_or(0, NonZeroU64::get);
                let shown = self.is_shown(previous, None)?;
                if self.is_present(previous)? {
                    self.put_version(index, key, None, previous)?;
                }
                Ok((shown, Way::Versioned))
            }
        }
    }

    /// A plain delete: takes the entry out of the index.
    fn take(&self, index: &Index, key: &[u8], at: u64) -> Result<bool, Error> {
        let Some(old) = index.tree.remove(key)? else { return Ok(false) };
        let shown = self.is_shown(old.get(), None)?;
        settle_one(|damaged| self.settle(&[(key, Write::Remove)], &[Some(old)], at, Ok(()), damaged))?;
        Ok(shown)
    }

    /// Whether the version at `link` (0: none) makes the key present and has not expired, now or by the time of a moment. The caller holds its stripe.
    pub(crate) fn is_shown(&self, link: u64, moment: Option<Moment>) -> Result<bool, Error> {
        if link == 0 {
            return Ok(false);
        }
        let record = Record::read(&self.shared.pool, link)?;
        Ok(record.is_lasting() || is_shown(&record, moment.map_or_else(|| self.shared.wall.now_ms(), |moment| moment.time_ms)))
    }

    /// Whether the version at `link` (0: none) makes the key present, expired or not. The caller holds its stripe.
    pub(crate) fn is_present(&self, link: u64) -> Result<bool, Error> {
        Ok(link != 0 && !Record::read(&self.shared.pool, link)?.is_tombstone())
    }

    /// Writes a version or a tombstone in front of the version at `previous` (0: none).
    fn put_version(&self, index: &Index, key: &[u8], content: Option<Content<'_>>, previous: u64) -> Result<(), Error> {
        let Shared { pool, .. } = &*self.shared;
        let expiry_ms = self.shared.note_expiry(&self.space, content.and_then(|content| content.expiry_ms));
        let version = Version { is_tombstone: content.is_none(), commit: self.shared.unstamped(), previous, expiry_ms };
        let value = content.map_or(&[][..], |content| content.value);
        let (link, replaced, outcome) = self.link(index, key, Record::write(pool, key, value, version)?);
        settle_one(|damaged| self.settle_versions(&[(key, Write::Upsert(link))], replaced.as_slice(), outcome, damaged))
    }

    /// Flushes a record and links it in the index once it is durable. Returns its link and, if that was done, the link that it replaced.
    fn link(&self, index: &Index, key: &[u8], record: Fresh<'_, [Word], M>) -> (NonZeroU64, Option<Option<NonZeroU64>>, Result<(), Error>) {
        let pool = &*self.shared.pool;
        if pool.medium().awaits_device() && size_of_val(&*record) <= GROUP_OF_DEVICE_BYTES {
            let (link, mut replaced) = (link_word(record.flush().release()), Vec::with_capacity(1));
            let outcome = self.shared.apply_behind(index, &[(key, Write::Upsert(link))], &mut replaced);
            return (link, replaced.pop(), outcome);
        }
        let (link, mut replaced) = (link_word(pool.seal(record).release()), None);
        let outcome = self.shared.upsert(index, key, link).map(|old| replaced = Some(old));
        (link, replaced, outcome)
    }

    /// Stamps what was published, all of it records, and settles it.
    pub(crate) fn settle_versions(
        &self,
        writes: &[(&[u8], Write)],
        replaced: &[Option<NonZeroU64>],
        outcome: Result<(), Error>,
        damaged: Damaged<'_>,
    ) -> Result<(), Error> {
        let mut at = 0;
        for (number, link) in writes[..replaced.len()].iter().filter_map(linked).enumerate() {
            let record = match Record::read(&self.shared.pool, link.get()) {
                Ok(record) => record,
                Err(error) => {
                    damaged(number, error.into());
                    continue;
                }
            };
            let stamp = self.shared.stamp(&record);
            // Readers may have stamped them in any order; a snapshot begun before the last stamp may want what the first one replaced.
            at = at.max(stamp);
            if record.is_tombstone() {
                self.shared.left_tombstone(&self.space, link.get(), stamp);
            }
        }
        self.settle(writes, replaced, at, outcome, damaged)
    }

    /// Counts what was published, and gives back the records that were replaced, no later than at `at`. `replaced` has one item for each write published. A
    /// write whose replaced record turns out damaged is published all the same; `damaged` is called with its number.
    pub(crate) fn settle(
        &self,
        writes: &[(&[u8], Write)],
        replaced: &[Option<NonZeroU64>],
        at: u64,
        outcome: Result<(), Error>,
        damaged: Damaged<'_>,
    ) -> Result<(), Error> {
        let guard = self.shared.pool.pin();
        let replace = |write, old: Option<NonZeroU64>| {
            let (old, link) = (old.map_or(0, NonZeroU64::get), linked(write));
            match (self.is_present(old)?, self.is_present(link.map_or(0, NonZeroU64::get))?) {
                (false, true) => self.space.counter().add(1),
                (true, false) => self.space.counter().add(-1),
                _ => {}
            }
            if old == 0 { Ok(()) } else { self.shared.replaced(&self.space, old, link, at, &guard) }
        };
        for (number, (write, old)) in writes.iter().zip(replaced).enumerate() {
            replace(write, *old).unwrap_or_else(|error| damaged(number, error));
        }
        // A full pool leaves the index unchanged. After any other error it may link the record: then the record stays, and recovery decides by reachability.
        if outcome.as_ref().is_err_and(Error::is_no_space) {
            for link in writes[replaced.len()..].iter().filter_map(linked) {
                self.shared.retire(link.get(), &guard)?;
            }
        }
        // Only now is it known whether the fences made the writes durable.
        self.shared.writable()?;
        outcome
    }

    pub(crate) fn view(&self) -> View<'_, M> {
        self.view_at(None)
    }

    pub(crate) fn view_at(&self, moment: Option<Moment>) -> View<'_, M> {
        View { shared: &self.shared, space: &self.space, moment }
    }

    /// # Panics
    /// When the namespace belongs to another store.
    pub(crate) fn check_belongs_to(&self, shared: &Arc<Shared<M>>) {
        assert!(Arc::ptr_eq(&self.shared, shared), "namespace {:?} belongs to another store", self.name());
    }
}

/// Called with the number of a published write whose replaced record is damaged, and the error.
pub(crate) type Damaged<'a> = &'a mut dyn FnMut(usize, Error);

/// Settles a single write. An error about the replaced record does not tell that the write itself was published.
fn settle_one(settle: impl FnOnce(Damaged<'_>) -> Result<(), Error>) -> Result<(), Error> {
    let mut outcome = Ok(());
    settle(&mut |_, error| outcome = Err(error))?;
    outcome
}

/// The link that a write stores in the index for its key.
fn linked((_, write): &(&[u8], Write)) -> Option<NonZeroU64> {
    match *write {
        Write::Upsert(link) => Some(link),
        _ => None,
    }
}

/// The word by which an index refers to the block at `off`.
pub(crate) fn link_word(off: Off<[Word]>) -> NonZeroU64 {
    NonZeroU64::new(off.link()).expect("a block never lies at offset 0")
}

/// Appends the value of `record` to `out`, if it and `key` match the checksums.
#[inline]
pub(crate) fn copy_value(record: &Record<'_>, key: &[u8], out: &mut Vec<u8>) -> Result<usize, Error> {
    copy_value_of(record, record.key_sum(key), out)
}

/// [`copy_value`] for a key whose checksum is known.
#[inline(always)]
pub(crate) fn copy_value_of(record: &Record<'_>, key: KeySum, out: &mut Vec<u8>) -> Result<usize, Error> {
    match record.copy_matching_value(key, out) {
        true => Ok(record.value_size()),
        false => Err(damaged(record, "a record that does not match its checksum")),
    }
}

/// Checks that the key with that checksum, and the sizes, are what was written.
#[inline]
pub(crate) fn check_key(record: &Record<'_>, key: KeySum) -> Result<(), Error> {
    match record.matches_key(key) {
        true => Ok(()),
        false => Err(damaged(record, "a record whose key does not match its checksum")),
    }
}
