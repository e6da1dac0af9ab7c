//! Several keys at a time, each on its own: lookups share their waits for memory, and writes share their waits for a fence.
//!
//! [`Namespace::act_many`] divides its acts into groups. A group with writes behaves as if its acts were done one after the other:
//!
//! 1. Take the stripes of all keys, also of those that are only read, so that no other thread writes any of them before the end of 4. Groups that only read a
//!    key share its stripe; otherwise all groups that read the same key would wait for the device one after the other. A group that only reads takes no stripe,
//!    and finds each key as it is at some moment.
//! 2. Read. A read here finds what it would find between the writes, because a group ends before it would read a key that it has written. Where keys expire,
//!    and a key is read after another that is removed, time stands still from here to the end of 4, and judges all that is found or removed: otherwise one key
//!    could be removed as expired, and one that expires with it be found after it. A group ends, too, when it has read so much that others would wait long.
//! 3. Write records into fresh blocks, with one fence for all of them. *Crash: nothing reaches the blocks; recovery finds them free.*
//! 4. Publish their links in the index and take out the entries of removed keys, with one fence for all of that, before any reader sees it. Where a device is
//!    waited for, this fence is also that of 3. **The commit point**, of each write on its own. *Crash before: any of the writes may be there and others not,
//!    regardless of their order; none was acknowledged, and none is tied to another.*
//! 5. Retire what was replaced. *Crash: nothing reaches it; recovery finds it free.*
//!
//! If there are snapshots, or were lately, versions are kept as `namespace.rs` describes, and removals are tombstones. Readers take no stripe: they may see a
//! later write of a group, but not yet an earlier one.

use crate::Error;
use crate::namespace::{Content, Course, Found, GROUP_OF_DEVICE_BYTES, Namespace, Way, link_word};
use crate::store::{Index, check_sizes};
use crate::stripes::Locked;
use crate::version::Moment;
use everleaf_index::record::{Record, Version};
use everleaf_index::{Listed, Write};
use everleaf_pmem::{Reserve, with_reserve};
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// What [`Namespace::act_many`] is to do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act<'v> {
    /// Look it up.
    Get,
    /// Set it; it does not expire.
    Put(&'v [u8]),
    /// Set it until that time, in milliseconds since 1970.
    PutUntil(&'v [u8], u64),
    /// Remove it.
    Delete,
}

/// A key, and what is to be done with it.
type Task<'a> = (&'a [u8], Act<'a>);
/// What a key is set to; `None`: the key is removed.
pub(crate) type Update<'a> = (&'a [u8], Option<Content<'a>>);

/// Keys that are looked up, or records that are made durable with one fence: enough to share the wait, few enough to hold up few others.
pub(crate) const GROUP: usize = 64;
/// Records that share a fence which waits for a device, as do their links: that wait takes longer than all else.
const GROUP_OF_DEVICE: usize = 256;

impl<'v> Act<'v> {
    fn is_write(self) -> bool {
        self != Self::Get
    }

    fn content(self) -> Option<Content<'v>> {
        match self {
            Self::Put(value) => Some(Content { value, expiry_ms: None }),
            Self::PutUntil(value, expiry_ms) => Some(Content { value, expiry_ms: Some(expiry_ms) }),
            Self::Get | Self::Delete => None,
        }
    }
}

/// Why the reads of a group ended before all keys were visited.
enum End {
    Asked,
    /// The values found are enough for one group.
    Full,
    /// A key cannot be looked up.
    Failed(Error),
    /// `visit` has failed for an entry.
    Refused(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The result of a group, or of its beginning.
struct Outcome {
    /// How the writes were made, if there were any, and how many there were.
    written: Option<(Way, usize)>,
    reads: Result<(), End>,
}

impl<M: Listed> Namespace<M> {
    /// Does `acts`, each on its own (a crash may leave any of them), sharing lookups and the cost of making writes durable. Each act that is done appends to
    /// `found`: whether its key was there; for a key that is set, `false`; an error if the act was done but what it replaced is damaged.
    ///
    /// To the caller it is as if one act was done after the other, except for consecutive lookups with no write among them: each of these finds its key as it
    /// is at some moment of its own, as in [`Namespace::get_many`].
    ///
    /// Calls `visit` for each key that is looked up, with the number of the act and what was found. An error or a break from `visit` ends the call before this
    /// act. `visit` must not touch the store. It is called for an act before earlier acts are done: if one of these fails, the call was for nothing, and if one
    /// is retried, `visit` is called again for the acts after it.
    ///
    /// # Errors
    /// Why the first act that was not done failed: see [`Namespace::get`], [`Namespace::put`] and [`Namespace::delete`].
    pub fn act_many(
        &self,
        acts: &[(&[u8], Act<'_>)],
        found: &mut Vec<Result<bool, Error>>,
        mut visit: impl FnMut(usize, Option<Found<'_>>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let start = found.len();
        let sizes = acts.iter().map(|(key, act)| act.content().map_or(Ok(()), |content| check_sizes(key, content.value)));
        let (count, too_long) = sizes.enumerate().find(|(_, checked)| checked.is_err()).unwrap_or((acts.len(), Ok(())));
        let (mut done, mut len_max) = (0, usize::MAX);
        while done < count {
            let end = done + self.group_len(&acts[done..count]).min(len_max);
            let mut attempt = || {
                // Acts that were done before the pool was full are not repeated: other threads may have written their keys since.
                let at = found.len() - start;
                self.act_group(&acts[at..end], found, &mut |number, met| visit(at + number, met))
            };
            let only_writes = acts[done..end].iter().all(|(_, act)| act.is_write());
            // With reads in the group, each attempt to make room would repeat them.
            let outcome = if only_writes || end - done == 1 { self.shared.with_room(attempt) } else { attempt() };
            done = found.len() - start;
            match outcome {
                Ok(Outcome { written, reads }) => {
                    written.into_iter().for_each(|(way, count)| self.tidy(way, count));
                    match reads {
                        Ok(()) | Err(End::Full) => len_max = len_max.saturating_mul(2),
                        Err(End::Asked) => return Ok(()),
                        Err(End::Failed(error) | End::Refused(error)) => return Err(error),
                    }
                }
                // Try the next act alone: it may succeed, or it is the one that fails. In a full pool try fewer acts, which may find room, since they make some
                // by what they replace.
                Err(error) if end - done > 1 => len_max = if error.is_no_space() && only_writes { (end - done) / 2 } else { 1 },
                Err(error) => return Err(error),
            }
        }
        too_long
    }

    /// Sets several keys, each on its own (a crash or an error may leave some), sharing the cost of making them durable. Later ones win.
    ///
    /// # Errors
    /// See [`Namespace::put`]. Some of the pairs have been set then: [`Namespace::put_first`] tells which.
    pub fn put_many(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Error> {
        self.put_first(pairs).1
    }

    /// [`Namespace::put_many`] up to the first pair that cannot be set: returns how many were set, each once, and why the next one was not. A pair that
    /// replaced something damaged counts as one that cannot be set, but is set, and so may be some pairs after it.
    pub fn put_first(&self, pairs: &[(&[u8], &[u8])]) -> (usize, Result<(), Error>) {
        let acts: Vec<_> = pairs.iter().map(|(key, value)| (*key, Act::Put(value))).collect();
        let mut found = Vec::with_capacity(acts.len());
        let outcome = self.act_many(&acts, &mut found, |_, _| Ok(ControlFlow::Continue(())));
        let damaged = found.iter().position(Result::is_err);
        damaged.map_or((found.len(), outcome), |at| (at, found.swap_remove(at).map(drop)))
    }

    /// Removes several keys, each on its own (a crash or an error may leave any), sharing the cost of making that durable; returns how many were present.
    ///
    /// # Errors
    /// See [`Namespace::delete`]. Keys before the one that failed have been removed, and perhaps some behind it.
    pub fn delete_many(&self, keys: &[&[u8]]) -> Result<u64, Error> {
        if let [key] = keys {
            return self.delete(key).map(u64::from);
        }
        let acts: Vec<_> = keys.iter().map(|key| (*key, Act::Delete)).collect();
        let mut found = Vec::with_capacity(acts.len());
        self.act_many(&acts, &mut found, |_, _| Ok(ControlFlow::Continue(())))?;
        found.into_iter().try_fold(0, |count, found| Ok(count + u64::from(found?)))
    }

    /// Largest number of short writes that share a fence.
    pub(crate) fn group_count_max(&self) -> usize {
        if self.shared.pool.medium().awaits_device() { GROUP_OF_DEVICE } else { GROUP }
    }

    /// How many of `acts` the next group takes.
    fn group_len(&self, acts: &[Task<'_>]) -> usize {
        let (few, mut size) = (acts.len().min(GROUP), 0);
        let most = self.group_count_max();
        let fits = |(key, act): &&Task<'_>| {
            size += key.len() + act.content().map_or(0, |content| content.value.len());
            size <= GROUP_OF_DEVICE_BYTES
        };
        let len = acts.iter().take(most).take_while(fits).count().max(few);
        let group = &acts[..len];
        if group.iter().all(|(_, act)| act.is_write() == group[0].1.is_write()) {
            return len;
        }
        let mut written = HashSet::with_capacity(len);
        for (number, &(key, act)) in group.iter().enumerate() {
            if act.is_write() {
                written.insert(key);
            } else if written.contains(key) {
                return number;
            }
        }
        len
    }

    /// Does a group, or the beginning of it.
    fn act_group(
        &self,
        acts: &[Task<'_>],
        found: &mut Vec<Result<bool, Error>>,
        visit: &mut impl FnMut(usize, Option<Found<'_>>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Outcome, Error> {
        let reads: Vec<usize> = (0..acts.len()).filter(|number| !acts[*number].1.is_write()).collect();
        let (stripes, _unwritten) = match reads.len() == acts.len() {
            true => (Vec::new(), Vec::new()),
            false => self.shared.stripes.lock_group(acts.iter().map(|(key, act)| (self.space.number, *key, act.is_write()))),
        };
        // What a removal treats as expired tells the time to reads after it.
        let tells_time = acts.iter().skip_while(|(_, act)| *act != Act::Delete).any(|(_, act)| !act.is_write());
        let time = (tells_time && self.shared.may_expire.load(Ordering::Acquire)).then(|| self.shared.wall.hold_for_commit());
        // The time by which all acts judge: another commit, which began before, may hold an earlier one, and a key found by that must not expire yet.
        let moment = time.as_ref().map(|_| Moment::now(self.shared.wall.now_ms()));
        let (mut met, mut shown) = (Vec::with_capacity(reads.len()), Vec::new());
        let size_max = if stripes.is_empty() { usize::MAX } else { GROUP_OF_DEVICE_BYTES };
        let end = self.read_group(acts, &reads, moment, size_max, &mut met, visit);
        // The first act that is not done, because of the reads.
        let until = if end.is_ok() { acts.len() } else { reads[met.len()] };
        let changes: Vec<Update<'_>> = acts[..until].iter().filter(|(_, act)| act.is_write()).map(|(key, act)| (*key, act.content())).collect();
        let way = self.write_group(&stripes, &changes, moment, &mut shown);
        let (mut met, mut shown) = (met.into_iter(), shown.into_iter());
        found.extend(acts[..until].iter().map_while(|(_, act)| if act.is_write() { shown.next() } else { met.next().map(Ok) }));
        Ok(Outcome { written: way?.map(|way| (way, changes.len())), reads: end })
    }

    /// Visits the keys of those `acts` whose numbers are in `reads`, until more than `size_max` was found; for each key visited, appends to `met` whether it
    /// was found.
    fn read_group(
        &self,
        acts: &[Task<'_>],
        reads: &[usize],
        moment: Option<Moment>,
        size_max: usize,
        met: &mut Vec<bool>,
        visit: &mut impl FnMut(usize, Option<Found<'_>>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), End> {
        let keys: Vec<&[u8]> = reads.iter().map(|number| acts[*number].0).collect();
        let (mut at_once, mut size) = (keys.len(), 0);
        while met.len() < keys.len() {
            let keys = &keys[met.len()..][..at_once.min(keys.len() - met.len())];
            let outcome = self.view_at(moment).visit_many(keys, |entry| {
                let is_found = entry.is_some();
                size += entry.as_ref().map_or(0, Found::size);
                if size > size_max && !met.is_empty() {
                    return Err(End::Full);
                }
                let flow = visit(reads[met.len()], entry).map_err(End::Refused)?;
                if flow.is_break() {
                    return Err(End::Asked);
                }
                met.push(is_found);
                Ok(())
            });
            at_once = match outcome {
                Ok(()) => usize::MAX,
                // A key cannot be looked up: one at a time finds out which.
                Err(End::Failed(_)) if keys.len() > 1 => 1,
                Err(end) => return Err(end),
            };
        }
        Ok(())
    }

    /// Makes the writes of a group; for each one made, appends to `shown` whether the key was there, if it is removed, or the damage that was met.
    pub(crate) fn write_group(
        &self,
        stripes: &[Locked<'_>],
        changes: &[Update<'_>],
        moment: Option<Moment>,
        shown: &mut Vec<Result<bool, Error>>,
    ) -> Result<Option<Way>, Error> {
        let (Some(stripe), false) = (stripes.first(), changes.is_empty()) else { return Ok(None) };
        self.shared.writable()?;
        if changes.iter().any(|(_, content)| content.is_some()) {
            return self.with_index(|index| self.write_group_to(index, stripe, changes, moment, shown)).map(Some);
        }
        match self.space.index.load().as_deref() {
            Some(index) => with_reserve(Reserve::Half, || self.write_group_to(index, stripe, changes, moment, shown)).map(Some),
            None => {
                shown.extend(changes.iter().map(|_| Ok(false)));
                Ok(None)
            }
        }
    }

    fn write_group_to(
        &self,
        index: &Index,
        stripe: &Locked<'_>,
        changes: &[Update<'_>],
        moment: Option<Moment>,
        shown: &mut Vec<Result<bool, Error>>,
    ) -> Result<Way, Error> {
        match self.course(stripe) {
            Course::Plain(at, _announced) => {
                let version =
                    |content: Content<'_>| Version { commit: at, expiry_ms: self.shared.note_expiry(&self.space, content.expiry_ms), ..Version::default() };
                let writes = self.write_records(changes.iter().map(|(key, content)| (*key, content.map(|content| (content.value, version(content))))))?;
                let mut replaced = Vec::with_capacity(writes.len());
                let outcome = self.shared.apply_behind(index, &writes, &mut replaced);
                let gone = |((_, write), old): (&(_, Write), &Option<NonZeroU64>)| match (write, old) {
                    (Write::Remove, Some(old)) => self.is_shown(old.get(), moment),
                    _ => Ok(false),
                };
                let mut done: Vec<_> = writes.iter().zip(&replaced).map(gone).collect();
                let settled = self.settle(&writes, &replaced, at, outcome, &mut |number, error| done[number] = Err(error));
                self.tell_done(shown, done, settled)?;
                Ok(Way::Plain)
            }
            Course::Versioned => {
                // Versions of a key must follow each other in time, and keys must be written in the caller's order: so a repeated key begins another part.
                let mut rest = changes;
                while !rest.is_empty() {
                    let (part, after) = rest.split_at(count_distinct(rest));
                    self.shared.tick();
                    self.write_versions(index, part, moment, shown)?;
                    rest = after;
                }
                Ok(Way::Versioned)
            }
        }
    }

    /// Writes versions of distinct keys: tombstones for keys that are to be removed and are present.
    fn write_versions(&self, index: &Index, changes: &[Update<'_>], moment: Option<Moment>, shown: &mut Vec<Result<bool, Error>>) -> Result<(), Error> {
        let commit = self.shared.unstamped();
        // For each key, whether it is shown before it is removed; `None`: nothing is written.
        let (mut fates, mut versions) = (Vec::with_capacity(changes.len()), Vec::with_capacity(changes.len()));
        for ((key, content), previous) in changes.iter().zip(self.links_of(index, changes)?) {
            let previous = previous.map_or(0, NonZeroU64::get);
            fates.push(match content {
                Some(_) => Some(false),
                None if self.is_present(previous)? => Some(self.is_shown(previous, moment)?),
                None => None,
            });
            if fates.last().is_some_and(Option::is_some) {
                let expiry_ms = self.shared.note_expiry(&self.space, content.and_then(|content| content.expiry_ms));
                let version = Version { is_tombstone: content.is_none(), commit, previous, expiry_ms };
                versions.push((*key, Some((content.map_or(&[][..], |content| content.value), version))));
            }
        }
        let writes = self.write_records(versions.into_iter())?;
        let mut replaced = Vec::with_capacity(writes.len());
        let outcome = self.shared.apply_behind(index, &writes, &mut replaced);
        let mut published: Vec<_> = replaced.iter().map(|_| Ok(())).collect();
        let settled = self.settle_versions(&writes, &replaced, outcome, &mut |number, error| published[number] = Err(error));
        let mut published = published.into_iter();
        let done = |fate: Option<bool>| fate.map_or(Some(Ok(false)), |was_shown| published.next().map(|published| published.map(|()| was_shown)));
        self.tell_done(shown, fates.into_iter().map_while(done).collect(), settled)
    }

    /// The links in the index for the keys of `changes`, whose stripes are held.
    pub(crate) fn links_of(&self, index: &Index, changes: &[Update<'_>]) -> Result<Vec<Option<NonZeroU64>>, Error> {
        let _pinned = self.shared.pool.pin();
        let keys: Vec<_> = changes.iter().map(|(key, _)| *key).collect();
        let mut links = Vec::with_capacity(keys.len());
        index.tree.get_many(&keys, &mut links)?;
        Ok(links)
    }

    /// Writes and flushes records, which become durable together before or when they are linked ([`Shared::apply_behind`](crate::store::Shared::apply_behind));
    /// returns the writes that link them in the index, or that remove the entry of a key without a record.
    fn write_records<'k, 'v>(&self, versions: impl ExactSizeIterator<Item = (&'k [u8], Option<(&'v [u8], Version)>)>) -> Result<Vec<(&'k [u8], Write)>, Error> {
        let pool = &*self.shared.pool;
        let (mut records, mut size) = (Vec::with_capacity(versions.len()), 0);
        for (key, version) in versions {
            let record = version.map(|(value, version)| {
                size += key.len() + value.len();
                Record::write(pool, key, value, version)
            });
            records.push((key, record.transpose()?.map(|record| record.flush())));
        }
        if pool.medium().awaits_device() && size > GROUP_OF_DEVICE_BYTES {
            // That takes a while, during which no leaf of the index may be held.
            pool.fence();
        }
        Ok(records.into_iter().map(|(key, record)| (key, record.map_or(Write::Remove, |record| Write::Upsert(link_word(record.release()))))).collect())
    }

    /// Reports published writes as done, unless it is unknown whether they are durable.
    fn tell_done(&self, shown: &mut Vec<Result<bool, Error>>, done: Vec<Result<bool, Error>>, settled: Result<(), Error>) -> Result<(), Error> {
        if settled.is_ok() || self.shared.writable().is_ok() {
            shown.extend(done);
        }
        settled
    }
}

/// Number of changes before a key comes again.
fn count_distinct(changes: &[Update<'_>]) -> usize {
    let mut seen = HashSet::with_capacity(changes.len());
    changes.iter().take_while(|(key, _)| seen.insert(*key)).count()
}
