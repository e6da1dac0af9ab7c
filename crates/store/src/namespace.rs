//! One key at a time.
//!
//! A put is one record write and one index publish, a delete one index removal:
//!
//! 1. Take the key's stripe. Readers do not, so nothing waits for a writer but another writer of the key (or of one that shares its stripe).
//! 2. Write the record into a fresh block and seal it. *Crash: nobody reaches the block; recovery finds it free.*
//! 3. Publish its link in the index: **the commit point**, durable before any reader can see it. *Crash before: the old version is there; after: the new one.*
//!    Where a device is waited for, the record is but flushed in 2, and durable before the link or with it ([`Pm::publish`](everleaf_pmem::Pm::publish)).
//! 4. Retire the old record. *Crash: nobody reaches it; recovery finds it free.*
//!
//! That is a *plain* write, whose record carries the timestamp that it has drawn before. When there are snapshots, or were lately (`snapshot.rs`), a write
//! keeps the version that it replaces: it looks that up before 2 and links it in its record, which has no timestamp; stamps the record after 3; and leaves the
//! old one to `garbage.rs` in 4. A delete then publishes a tombstone, which hides what is behind it. *Crash: recovery removes tombstones, and nothing follows
//! links to old versions.*
//!
//! Writers do not pin an epoch while they allocate: in a full pool, room is made of what was retired, and a pinned thread would stand in its own way.
//! Readers pin an epoch, look the link up and copy the value out: once, and only if its checksum matches is the copy handed out.

use crate::Error;
use crate::garbage::STEPS_PER_WRITE;
use crate::merge::{self, Merge};
use crate::store::{Index, Shared, Space, check_sizes};
use crate::stripes::{Announced, Locked};
use crate::version::{Moment, damaged, is_shown};
use crate::view::View;
use everleaf_index::Listed;
use everleaf_index::record::{KeySum, Record, Version};
use everleaf_pmem::{Fresh, Hardware, Medium, Off, Reserve, Word, with_reserve};
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

/// What [`Namespace::modify`] is to do with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leave it as it is.
    Keep,
    /// Set it; if it expires, it goes on to do so.
    Put(Vec<u8>),
    /// Set it, and when it expires, in milliseconds since 1970, if it does.
    PutUntil(Vec<u8>, Option<u64>),
    /// Remove it.
    Delete,
}

/// A value that was found, for as long as the call that found it goes on. See [`Namespace::visit_many`].
pub struct Found<'a> {
    pub(crate) record: Record<'a>,
    pub(crate) key: &'a [u8],
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its value.
    pub value: Vec<u8>,
    /// When it expires, in milliseconds since 1970, if it does.
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

/// [`Way`], and what goes with it.
enum Course<'a> {
    /// With a timestamp; the first snapshot waits until the value is dropped.
    Plain(u64, Announced<'a>),
    Versioned,
}

impl<'a> Found<'a> {
    /// Checks key and sizes; the value is not looked at.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_key(&self.record, self.record.key_sum(self.key))
    }

    /// Length of the value in bytes, which is not looked at.
    pub(crate) fn checked_size(&self) -> Result<usize, Error> {
        self.check().map(|()| self.size())
    }

    /// The value, and when it expires.
    pub(crate) fn entry(&self) -> Result<Entry, Error> {
        let mut value = Vec::new();
        self.copy_to(&mut value)?;
        Ok(Entry { value, expiry_ms: self.expiry_ms() })
    }

    /// Length of the value in bytes.
    pub fn size(&self) -> usize {
        self.record.value_size()
    }

    /// When it expires, in milliseconds since 1970, if it does.
    pub fn expiry_ms(&self) -> Option<u64> {
        self.record.expiry_ms()
    }

    /// Appends the value to `out`; its length.
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

/// Keys that are looked up, or records that are made durable with one fence: enough to share the wait, few enough to hold up few others.
pub(crate) const GROUP: usize = 64;
/// Records that share a fence which waits for a device, and so do their links: that takes longer than all else.
const GROUP_OF_DEVICE: usize = 256;
/// Of keys and values in such a group, unless it is no larger than others: what is made durable together goes past the journal when there is more of it.
const GROUP_OF_DEVICE_BYTES: usize = 256 << 10;

impl<M: Listed> Namespace<M> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.space.name
    }

    /// Has it get the index `name` when it is written to for the first time, if there is an index of that name.
    pub fn prefer_index(&self, name: &str) {
        self.shared.prefer_index(&self.space, name);
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// A damaged pool: never wrong data.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.map(|_| value))
    }

    /// Appends the value of `key` to `out`; its length, if the key is present.
    ///
    /// # Errors
    /// See [`Namespace::get`]; `out` is then as before.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        self.view().find(key, |found| found.copy_to(out))
    }

    /// The value of `key`, and when it expires.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn entry(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        self.view().find(key, |found| found.entry())
    }

    /// When `key` expires, in milliseconds since 1970, if it does; if it is present.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn expiry_ms(&self, key: &[u8]) -> Result<Option<Option<u64>>, Error> {
        self.view().find(key, |found| {
            found.check()?;
            // The checksum of the key alone says whether it expires, not when.
            if !found.record.is_lasting() && !found.record.is_intact() {
                return Err(damaged(&found.record, "a record that does not match its checksum"));
            }
            Ok(found.expiry_ms())
        })
    }

    /// The values of several keys, in their order: faster than one by one.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.view().get_many(keys)
    }

    /// Calls `visit` for each of `keys`, in their order, with what was found of it. Looks the keys up in groups, so that they wait for memory together.
    ///
    /// # Errors
    /// Those of `visit`, which end the call; a damaged pool.
    pub fn visit_many<E: From<Error>>(&self, keys: &[&[u8]], visit: impl FnMut(Option<Found<'_>>) -> Result<(), E>) -> Result<(), E> {
        self.view().visit_many(keys, visit)
    }

    /// Length of the value of `key` in bytes, if the key is present, without copying it.
    ///
    /// # Errors
    /// See [`Namespace::get`].
    pub fn value_size(&self, key: &[u8]) -> Result<Option<usize>, Error> {
        self.view().find(key, |found| found.checked_size())
    }

    /// Number of keys: exact when no write is under way. Those that have expired count until they are removed, by [`Store::sweep`](crate::Store::sweep) or a
    /// write.
    pub fn count(&self) -> u64 {
        self.space.count.get()
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// A key or value too long; a full pool, in which case nothing has changed; a damaged pool; [`Error::Halted`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_sizes(key, value)?;
        let content = Content::lasting(value);
        self.shared.with_room(|| self.with_stripe(key, |stripe| self.put_locked(stripe, key, content).map(|way| ((), way))))
    }

    /// Sets `key` to `value`, until `expiry_ms`, in milliseconds since 1970. From then on the key is absent, whoever asks, but for snapshots that were taken
    /// before.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn put_until(&self, key: &[u8], value: &[u8], expiry_ms: u64) -> Result<(), Error> {
        check_sizes(key, value)?;
        let content = Content { value, expiry_ms: Some(expiry_ms) };
        self.shared.with_room(|| self.with_stripe(key, |stripe| self.put_locked(stripe, key, content).map(|way| ((), way))))
    }

    /// Sets several keys, each on its own (a crash or an error may leave some), sharing the cost of making them durable. Later ones win.
    ///
    /// # Errors
    /// See [`Namespace::put`]. Some of the pairs have been set then: [`Namespace::put_first`] tells which.
    pub fn put_many(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        self.put_first(pairs).1
    }

    /// [`Namespace::put_many`], up to a pair that cannot be set, if there is one: how many have been, each once, and why the next one has not.
    pub fn put_first(&self, pairs: &[(&[u8], &[u8])]) -> (usize, Result<(), Error>) {
        let (mut done, mut group_max) = (0, usize::MAX);
        let sizes = pairs.iter().map(|(key, value)| check_sizes(key, value)).enumerate().find(|(_, checked)| checked.is_err());
        let (count, too_long) = sizes.unwrap_or((pairs.len(), Ok(())));
        while done < count {
            let (start, end) = (done, done + self.group_len(&pairs[done..count]).min(group_max));
            let outcome = self.shared.with_room(|| {
                // Those that have been set before the pool was full are not set again: somebody else may have set them since.
                let rest = &pairs[done..end];
                let stripes = self.shared.stripes.lock_many(rest.iter().map(|(key, _)| (self.space.number, *key)));
                self.put_group(&stripes, rest, &mut done)
            });
            match outcome {
                Ok(way) => self.tidy(way, end - start),
                // Fewer find room, perhaps: they make it by what they replace.
                Err(error) if error.is_no_space() && end - done > 1 => group_max = (end - done) / 2,
                Err(error) => return (done, Err(error)),
            }
        }
        (done, too_long)
    }

    /// Sets `key` if it is absent; whether it was.
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

    /// Removes `key`; whether it was present.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Halted`]. A full pool is no obstacle, unless a snapshot is open, or was lately: then a delete leaves a tombstone, a few dozen
    /// bytes, until no snapshot wants what is behind it. For these, and for indexes that need room to remove something, there is half of the pool's reserve:
    /// of a sixteenth of what it may grow to, or of 4 MiB. When that is used up, a delete is refused like other writes.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.shared.with_room(|| self.with_stripe(key, |stripe| self.delete_locked(stripe, key)))
    }

    /// Removes several keys, each on its own (a crash or an error may leave any), sharing the cost of making that durable; how many were present.
    ///
    /// # Errors
    /// See [`Namespace::delete`]. Keys before the one that failed, in groups, have been removed.
    pub fn delete_many(&self, keys: &[&[u8]]) -> Result<u64, Error> {
        if let [key] = keys {
            return self.delete(key).map(u64::from);
        }
        let mut shown = 0;
        for group in keys.chunks(self.group_max()) {
            let way = self.shared.with_room(|| {
                let stripes = self.shared.stripes.lock_many(group.iter().map(|key| (self.space.number, *key)));
                with_reserve(Reserve::Half, || self.delete_group(&stripes, group, &mut shown))
            })?;
            self.tidy(way, group.len());
        }
        Ok(shown)
    }

    /// Sets `key` to `new` (`None`: removes it) if its value is `expected` (`None`: absent); whether it was.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn compare_and_swap(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool, Error> {
        check_sizes(key, new.unwrap_or_default())?;
        let swap = |stripe: &Locked<'_>| match self.holds(key, expected, None)? {
            true => Ok((true, self.set_locked(stripe, key, new.map(Content::lasting))?)),
            false => Ok((false, Way::Plain)),
        };
        self.shared.with_room(|| self.with_stripe(key, swap))
    }

    /// Reads `key` and changes it as `decide` says, atomically: no other write to the key comes between. `decide` must not touch the store. It is called
    /// again, as often as a full pool has to make room for what it said.
    ///
    /// # Errors
    /// See [`Namespace::put`].
    pub fn modify(&self, key: &[u8], mut decide: impl FnMut(Option<&[u8]>) -> Change) -> Result<(), Error> {
        self.modify_entry(key, |entry| decide(entry.map(|entry| entry.value.as_slice())))
    }

    /// [`Namespace::modify`] by somebody who wants to know when the key expires.
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
                Change::Delete => self.delete_locked(stripe, key)?.1,
            };
            Ok(((), way))
        };
        self.shared.with_room(|| self.with_stripe(key, &mut change))
    }

    /// Has `merge` done with the value of `key`, atomically; what came of it. See `merge.rs`.
    ///
    /// # Errors
    /// [`Error::Merge`] when the value is not what can be merged so; see [`Namespace::put`].
    pub fn merge(&self, key: &[u8], merge: &Merge) -> Result<Option<Vec<u8>>, Error> {
        check_sizes(key, &[])?;
        let act = |stripe: &Locked<'_>| {
            let merged = self.merged(key, std::slice::from_ref(merge), None)?;
            let way = self.set_locked(stripe, key, merged.as_ref().map(Content::of))?;
            Ok((merged.map(|entry| entry.value), way))
        };
        self.shared.with_room(|| self.with_stripe(key, act))
    }

    /// What `merges` make of `key`, with its stripe held.
    pub(crate) fn merged(&self, key: &[u8], merges: &[Merge], moment: Option<Moment>) -> Result<Option<Entry>, Error> {
        let entry = self.view_at(moment).find(key, |found| found.entry())?;
        let merged = merge::apply(entry, merges).map_err(merge::failed(self.name(), key))?;
        check_sizes(key, merged.as_ref().map_or(&[], |entry| &entry.value))?;
        Ok(merged)
    }

    /// Removes every key, durably and at once, by unlinking the index from the pool; its blocks are given back in steps after that. A full pool is no obstacle.
    ///
    /// # Errors
    /// A damaged pool; [`Error::Halted`].
    pub fn clear(&self) -> Result<(), Error> {
        self.shared.remove(&self.space, |_| Ok(())).map(drop)
    }

    /// Whether the value of `key` is `expected` (`None`: absent).
    pub(crate) fn holds(&self, key: &[u8], expected: Option<&[u8]>, moment: Option<Moment>) -> Result<bool, Error> {
        let held = self.view_at(moment).find(key, |found| {
            let is_expected = expected.is_some_and(|expected| expected.len() == found.size());
            if is_expected { found.entry().map(|entry| Some(entry.value)) } else { found.check().map(|()| None) }
        })?;
        Ok(match (held, expected) {
            (None, None) => true,
            (Some(value), Some(expected)) => value.as_deref() == Some(expected),
            _ => false,
        })
    }

    /// Does something with the stripe of `key` held, and collects some garbage after it if it kept a version, or if there is some.
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
    fn tidy(&self, way: Way, writes: usize) {
        if way == Way::Versioned || !self.shared.garbage.is_empty() {
            self.shared.tidy(STEPS_PER_WRITE * writes);
        }
    }

    /// How to write now. Any stripe that the caller holds will do.
    #[inline]
    fn course<'a>(&self, stripe: &'a Locked<'_>) -> Course<'a> {
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
                self.settle(&[(key, link)], replaced.as_slice(), at, outcome)?;
                Ok(Way::Plain)
            }
            Course::Versioned => {
                let previous = index.tree.get(key)?.map_or(0, NonZeroU64::get);
                self.put_version(index, key, Some(content), previous)?;
                Ok(Way::Versioned)
            }
        })
    }

    /// Does something with the index, which is created now if need be. The caller holds a stripe. No reference is counted: the count lies beside what readers
    /// look at.
    #[inline]
    fn with_index<T>(&self, act: impl FnOnce(&Index) -> Result<T, Error>) -> Result<T, Error> {
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
                let shown = self.is_shown(previous)?;
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
        let shown = self.taken(old, at)?;
        self.shared.writable()?;
        Ok(shown)
    }

    /// Counts what a plain delete has taken out of the index, and gives it back; whether it was shown.
    fn taken(&self, old: NonZeroU64, at: u64) -> Result<bool, Error> {
        let shown = self.is_shown(old.get())?;
        if self.is_present(old.get())? {
            self.space.count.add(-1);
        }
        self.shared.replaced(old.get(), None, at, &self.shared.pool.pin())?;
        Ok(shown)
    }

    /// [`Namespace::delete_reserved`] for several keys. Those that were present are counted in `shown`, if there is an error, too.
    fn delete_group(&self, stripes: &[Locked<'_>], keys: &[&[u8]], shown: &mut u64) -> Result<Way, Error> {
        self.shared.writable()?;
        let index = self.space.index.load();
        let (Some(index), Some(stripe)) = (index.as_deref(), stripes.first()) else { return Ok(Way::Plain) };
        match self.course(stripe) {
            Course::Plain(at, _announced) => {
                let mut removed = Vec::with_capacity(keys.len());
                let outcome = index.tree.remove_many(keys, &mut removed);
                for old in removed.into_iter().flatten() {
                    *shown += u64::from(self.taken(old, at)?);
                }
                outcome?;
                self.shared.writable()?;
                Ok(Way::Plain)
            }
            Course::Versioned => {
                let mut seen = HashSet::with_capacity(keys.len());
                let distinct: Vec<_> = keys.iter().copied().filter(|key| seen.insert(*key)).collect();
                self.delete_versions(index, &distinct, shown)?;
                Ok(Way::Versioned)
            }
        }
    }

    /// Writes tombstones for those of `keys` that are present, none of which comes twice.
    fn delete_versions(&self, index: &Index, keys: &[&[u8]], shown: &mut u64) -> Result<(), Error> {
        let mut present = Vec::with_capacity(keys.len());
        for (key, previous) in keys.iter().zip(self.links_of(index, keys)?) {
            let previous = previous.map_or(0, NonZeroU64::get);
            if self.is_present(previous)? {
                present.push((*key, previous, self.is_shown(previous)?));
            }
        }
        let commit = self.shared.unstamped();
        let tombstone = |previous| Version { is_tombstone: true, commit, previous, expiry_ms: None };
        let links = self.write_group(present.iter().map(|(key, previous, _)| (*key, &[][..], tombstone(*previous))))?;
        let mut replaced = Vec::with_capacity(links.len());
        let outcome = self.shared.upsert_many(index, &links, &mut replaced);
        *shown += present[..replaced.len()].iter().filter(|(.., shown)| *shown).count() as u64;
        self.settle_versions(&links, &replaced, outcome)
    }

    /// What an index links for `keys`, whose stripes are held.
    fn links_of(&self, index: &Index, keys: &[&[u8]]) -> Result<Vec<Option<NonZeroU64>>, Error> {
        let _pinned = self.shared.pool.pin();
        let mut links = Vec::with_capacity(keys.len());
        index.tree.get_many(keys, &mut links)?;
        Ok(links)
    }

    /// Whether the version that `link` refers to, if it is not 0, says that the key is there and has not expired. The caller holds its stripe.
    fn is_shown(&self, link: u64) -> Result<bool, Error> {
        if link == 0 {
            return Ok(false);
        }
        let record = Record::read(&self.shared.pool, link)?;
        Ok(record.is_lasting() || is_shown(&record, self.shared.wall.now_ms()))
    }

    /// Whether the version that `link` refers to, if it is not 0, says that the key is there, expired or not. The caller holds its stripe.
    pub(crate) fn is_present(&self, link: u64) -> Result<bool, Error> {
        Ok(link != 0 && !Record::read(&self.shared.pool, link)?.is_tombstone())
    }

    /// Writes a version, or a tombstone, in front of the version that `previous` refers to, if it is not 0.
    fn put_version(&self, index: &Index, key: &[u8], content: Option<Content<'_>>, previous: u64) -> Result<(), Error> {
        let Shared { pool, .. } = &*self.shared;
        let expiry_ms = self.shared.note_expiry(&self.space, content.and_then(|content| content.expiry_ms));
        let version = Version { is_tombstone: content.is_none(), commit: self.shared.unstamped(), previous, expiry_ms };
        let value = content.map_or(&[][..], |content| content.value);
        let (link, replaced, outcome) = self.link(index, key, Record::write(pool, key, value, version)?);
        self.settle_versions(&[(key, link)], replaced.as_slice(), outcome)
    }

    fn put_group(&self, stripes: &[Locked<'_>], pairs: &[(&[u8], &[u8])], done: &mut usize) -> Result<Way, Error> {
        self.shared.writable()?;
        let Some(stripe) = stripes.first() else { return Ok(Way::Plain) };
        self.with_index(|index| match self.course(stripe) {
            Course::Plain(at, _announced) => {
                let mut replaced = Vec::with_capacity(pairs.len());
                let version = Version { commit: at, ..Version::default() };
                let links = self.write_group(pairs.iter().map(|(key, value)| (*key, *value, version)))?;
                let outcome = self.shared.upsert_many(index, &links, &mut replaced);
                self.count_done(done, replaced.len(), self.settle(&links, &replaced, at, outcome))?;
                Ok(Way::Plain)
            }
            Course::Versioned => {
                // Versions of a key must follow each other in time, and keys one another as the caller has them: so a key that comes again begins another part.
                let mut rest = pairs;
                while !rest.is_empty() {
                    let (part, after) = rest.split_at(count_distinct(rest));
                    self.shared.tick();
                    self.put_versions(index, part, done)?;
                    rest = after;
                }
                Ok(Way::Versioned)
            }
        })
    }

    /// Writes versions of keys, none of which comes twice.
    fn put_versions(&self, index: &Index, pairs: &[(&[u8], &[u8])], done: &mut usize) -> Result<(), Error> {
        let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
        let (previous, mut replaced) = (self.links_of(index, &keys)?, Vec::with_capacity(keys.len()));
        let commit = self.shared.unstamped();
        let versions = pairs
            .iter()
            .zip(&previous)
            .map(|((key, value), link)| (*key, *value, Version { commit, previous: link.map_or(0, NonZeroU64::get), ..Version::default() }));
        let links = self.write_group(versions)?;
        let outcome = self.shared.upsert_many(index, &links, &mut replaced);
        self.count_done(done, replaced.len(), self.settle_versions(&links, &replaced, outcome))
    }

    /// How many writes are made durable together at most.
    fn group_max(&self) -> usize {
        if self.shared.pool.medium().awaits_device() { GROUP_OF_DEVICE } else { GROUP }
    }

    /// With how many of `pairs` to begin.
    fn group_len(&self, pairs: &[(&[u8], &[u8])]) -> usize {
        let (few, mut size) = (pairs.len().min(GROUP), 0);
        let fits = |(key, value): &&(&[u8], &[u8])| {
            size += key.len() + value.len();
            size <= GROUP_OF_DEVICE_BYTES
        };
        pairs.iter().take(self.group_max()).take_while(fits).count().max(few)
    }

    /// Writes records back, which are to be durable together, before or when they are linked: see [`Shared::upsert_many`].
    fn write_group<'k>(&self, versions: impl ExactSizeIterator<Item = (&'k [u8], &'k [u8], Version)>) -> Result<Vec<(&'k [u8], NonZeroU64)>, Error> {
        let pool = &*self.shared.pool;
        let (mut records, mut size) = (Vec::with_capacity(versions.len()), 0);
        for (key, value, version) in versions {
            records.push((key, Record::write(pool, key, value, version)?.flush()));
            size += key.len() + value.len();
        }
        if pool.medium().awaits_device() && size > GROUP_OF_DEVICE_BYTES {
            // That takes a while, in which no leaf of the index is to be held.
            pool.fence();
        }
        Ok(records.into_iter().map(|(key, record)| (key, link_word(record.release()))).collect())
    }

    /// Writes a record back, and links it in the index when it is durable; its link, and what that has replaced, if it was done.
    fn link(&self, index: &Index, key: &[u8], record: Fresh<'_, [Word], M>) -> (NonZeroU64, Option<Option<NonZeroU64>>, Result<(), Error>) {
        let pool = &*self.shared.pool;
        if pool.medium().awaits_device() && size_of_val(&*record) <= GROUP_OF_DEVICE_BYTES {
            let (link, mut replaced) = (link_word(record.flush().release()), Vec::with_capacity(1));
            let outcome = self.shared.upsert_many(index, &[(key, link)], &mut replaced);
            return (link, replaced.pop(), outcome);
        }
        let (link, mut replaced) = (link_word(pool.seal(record).release()), None);
        let outcome = self.shared.upsert(index, key, link).map(|old| replaced = Some(old));
        (link, replaced, outcome)
    }

    /// Stamps what was published, and settles it.
    fn settle_versions(&self, links: &[(&[u8], NonZeroU64)], replaced: &[Option<NonZeroU64>], outcome: Result<(), Error>) -> Result<(), Error> {
        let mut at = 0;
        for (_, link) in &links[..replaced.len()] {
            let record = Record::read(&self.shared.pool, link.get())?;
            let stamp = self.shared.stamp(&record);
            // Readers may have stamped them in any order; what the first one replaced may be wanted by who began before the last one was stamped.
            at = at.max(stamp);
            if record.is_tombstone() {
                self.shared.left_tombstone(&self.space, link.get(), stamp);
            }
        }
        self.settle(links, replaced, at, outcome)
    }

    /// Counts what was published, and gives back the records whose places were taken: no later than `at`. `replaced` is as long as there were links published.
    fn settle(&self, links: &[(&[u8], NonZeroU64)], replaced: &[Option<NonZeroU64>], at: u64, outcome: Result<(), Error>) -> Result<(), Error> {
        let guard = self.shared.pool.pin();
        for ((_, link), old) in links.iter().zip(replaced) {
            let old = old.map_or(0, NonZeroU64::get);
            match (self.is_present(old)?, self.is_present(link.get())?) {
                (false, true) => self.space.count.add(1),
                (true, false) => self.space.count.add(-1),
                _ => {}
            }
            if old != 0 {
                self.shared.replaced(old, Some(*link), at, &guard)?;
            }
        }
        // A full pool leaves the index as it was. After any other error the index may link the record: then it stays, and recovery by reachability decides.
        if outcome.as_ref().is_err_and(Error::is_no_space) {
            for (_, link) in &links[replaced.len()..] {
                self.shared.retire(link.get(), &guard)?;
            }
        }
        // Only now is it known whether what was fenced is durable.
        self.shared.writable()?;
        outcome
    }

    /// Counts what was published as done, unless it is not known whether it is durable.
    fn count_done(&self, done: &mut usize, count: usize, settled: Result<(), Error>) -> Result<(), Error> {
        if settled.is_ok() || self.shared.writable().is_ok() {
            *done += count;
        }
        settled
    }

    pub(crate) fn view(&self) -> View<'_, M> {
        self.view_at(None)
    }

    fn view_at(&self, moment: Option<Moment>) -> View<'_, M> {
        View { shared: &self.shared, space: &self.space, moment }
    }

    /// # Panics
    /// When the namespace belongs to another store.
    pub(crate) fn check_belongs_to(&self, shared: &Arc<Shared<M>>) {
        assert!(Arc::ptr_eq(&self.shared, shared), "namespace {:?} belongs to another store", self.name());
    }
}

/// How many pairs there are before a key comes again.
fn count_distinct(pairs: &[(&[u8], &[u8])]) -> usize {
    let mut seen = HashSet::with_capacity(pairs.len());
    pairs.iter().take_while(|(key, _)| seen.insert(*key)).count()
}

/// The word by which an index refers to the block at `off`.
pub(crate) fn link_word(off: Off<[Word]>) -> NonZeroU64 {
    NonZeroU64::new(off.link()).expect("a block never lies at offset 0")
}

/// Appends the value of `record`, which is that of `key`, to `out`, if both are what was written.
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

/// Checks that the key of that checksum, and the sizes, are what was written.
#[inline]
pub(crate) fn check_key(record: &Record<'_>, key: KeySum) -> Result<(), Error> {
    match record.matches_key(key) {
        true => Ok(()),
        false => Err(damaged(record, "a record whose key does not match its checksum")),
    }
}
