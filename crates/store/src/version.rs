//! Versions: which record of a key a reader sees, now or as of a moment.
//!
//! An index links the newest version of a key; each version links the one that it replaced. A reader now takes the newest one; a reader as of timestamp *s*
//! takes the first one that was committed before *s*. A version's commit word says:
//!
//! ```text
//!   63 62  61                   0
//! +---+---+----------------------+
//! | 0 | 0 | timestamp            |   committed then
//! | 0 | 1 | birth                |   unstamped: committed by being linked
//! | 1 | token (slots.rs)         |   of a batch, which knows
//! +---+---+----------------------+
//! ```
//!
//! # Invariants
//!
//! 1. A version's timestamp is drawn when the version can already be seen, by the first thread that looks, writer or reader ([`Shared::age`]). So as of *s* it
//!    is there for all readers or for none: if *s* was drawn before, the version's timestamp is higher, and a thread that draws *s* after the write has
//!    returned, or after anyone has read the version, gets a higher *s*. No thread waits for that. The clock decides which of the two it is, so it is not
//!    merely read ([`Clock::stamp`](crate::clock::Clock::stamp)).
//! 2. Timestamps fall along the versions of a key: writers of a key take turns, and each draws a timestamp from the clock before it writes, and stamps its
//!    version before the next writer begins. Only the first version can be pending. A damaged pool may break both rules; that is reported as an error, so no
//!    chain of versions is followed in a circle.
//! 3. A replaced version stays in place as long as a snapshot may want it (`garbage.rs`): only the holder of a snapshot as of which a version is not committed
//!    yet may follow the link to its previous version. A version P that no snapshot wants, though some want what P itself replaced, is *cut out*: once the
//!    version N that replaced P is committed and stamped, and under the key's stripe, N links what P links, and P is given back. The writer of N does this, or
//!    a later thread, when the snapshots that wanted P have ended; then N is the version that has P's link by then. A snapshot whose timestamp lies between
//!    those of P and N would want P, or a version that was cut out between the two; there is none, and none will come. So a reader that passes N on its way
//!    back would have passed P, too, and what it meets next is in place for it. A reader that has read the link to P before is pinned. So while snapshots stay
//!    open there is at most one version of a key between two of them, however often it is written. A bit in the link says that something was cut out behind it:
//!    a thread that watches an absent key learns from the link of the tombstone that the key was written and removed again (`watch.rs`).
//! 4. No snapshot outlives a crash, so no old version needs to, nor any timestamp. Words are stamped in place and never flushed: the pool has the timestamp, or
//!    the word before it. An unstamped word of another birth, or a token from before birth, belongs to a version that was committed in another life.
//!
//! As long as there are no snapshots, and have been none lately, single writes are *plain*: they do not ask what they replace, and need no stamp; see
//! `snapshot.rs`.

use crate::Error;
use crate::slots::{Fate, PENDING, UNSTAMPED, generation};
use crate::store::Shared;
use everleaf_index::Listed;
use everleaf_index::record::Record;
use std::sync::atomic::Ordering;

/// In the link to the previous version: others between the two were cut out. No link uses this bit, since blocks have even offsets.
pub(crate) const CUT_OUT: u64 = 1;

/// The link of the version that a record has replaced, or of the one before those cut out behind it; 0: none.
fn previous_of(record: &Record<'_>) -> u64 {
    record.previous().load(Ordering::Acquire) & !CUT_OUT
}

/// The moment as of which a snapshot reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// What was committed before this timestamp is visible.
    pub(crate) at: u64,
    /// What has expired by this time, in milliseconds since 1970, is not. 0 if nothing expires.
    pub(crate) time_ms: u64,
}

impl Moment {
    /// Now, with that time to judge what has expired.
    pub(crate) fn now(time_ms: u64) -> Self {
        Self { at: UNSTAMPED, time_ms }
    }
}

/// When a version was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// At a timestamp; 0: before birth.
    At(u64),
    /// Not yet, or never.
    Open,
}

impl<M: Listed> Shared<M> {
    /// The version that a reader sees who finds `link` in an index, now or as of a moment; `None` if the key is absent. The caller is pinned, and a moment is
    /// that of a snapshot that it holds.
    #[inline(always)]
    pub(crate) fn visible(&self, link: u64, moment: Option<Moment>) -> Result<Option<Record<'_>>, Error> {
        let newest = Record::read(&self.pool, link)?;
        if is_plain(&newest, moment) {
            return Ok(Some(newest));
        }
        // The slow paths begin with the link again: if they took the record, every record would go through memory, and wait there (decision 84).
        match moment {
            Some(moment) => self.resolve_at(link, moment),
            None => self.resolve(link),
        }
    }

    /// [`Shared::visible`] for a record that has no timestamp yet, or may make the key absent.
    #[cold]
    fn resolve(&self, link: u64) -> Result<Option<Record<'_>>, Error> {
        let record = Record::read(&self.pool, link)?;
        // Read before the age: if the batch is undecided after that, the previous version was not yet retired when we were pinned.
        let previous = previous_of(&record);
        if matches!(self.age(&record)?, Age::At(_)) {
            return self.shown(record);
        }
        if previous == 0 {
            return Ok(None);
        }
        let previous = Record::read(&self.pool, previous)?;
        match self.age(&previous)? {
            Age::At(_) => self.shown(previous),
            Age::Open => Err(damaged(&previous, "a pending record whose previous version is pending too")),
        }
    }

    /// [`Shared::visible`] as of a moment, if the newest version is not the one visible then, or may make the key absent.
    #[cold]
    fn resolve_at(&self, link: u64, moment: Moment) -> Result<Option<Record<'_>>, Error> {
        let Some((record, _)) = self.version_at(link, moment.at)? else { return Ok(None) };
        Ok(is_surely_shown(&record, moment.time_ms)?.then_some(record))
    }

    /// The version that was the newest as of a timestamp, tombstone or not, and when it was committed. The caller is pinned, and holds a snapshot of that
    /// timestamp.
    pub(crate) fn version_at(&self, link: u64, timestamp: u64) -> Result<Option<(Record<'_>, u64)>, Error> {
        let mut record = Record::read(&self.pool, link)?;
        let mut newer = None;
        loop {
            let previous = previous_of(&record);
            let age = self.age(&record)?;
            match (age, newer) {
                (Age::At(at), _) if at < timestamp => return Ok(Some((record, at))),
                (Age::At(at), None) if at > self.clock.now() => return Err(untimely(&record)),
                (_, None) => {}
                (Age::At(at), Some(Age::At(newer))) if at >= newer => return Err(damaged(&record, "a record that is not older than the one that replaced it")),
                (Age::At(_), _) => {}
                (Age::Open, _) => return Err(damaged(&record, "a pending record that was replaced")),
            }
            if previous == 0 {
                return Ok(None);
            }
            newer = Some(age);
            record = Record::read(&self.pool, previous)?;
        }
    }

    /// A committed version, unless it makes the key absent or has expired.
    #[inline]
    fn shown<'p>(&self, record: Record<'p>) -> Result<Option<Record<'p>>, Error> {
        Ok((record.is_lasting() || is_surely_shown(&record, self.wall.now_ms())?).then_some(record))
    }

    /// When a version was committed. A visible version without a timestamp gets one.
    pub(crate) fn age(&self, record: &Record<'_>) -> Result<Age, Error> {
        let word = record.commit().load(Ordering::Acquire);
        if word & (PENDING | UNSTAMPED) == 0 {
            return Ok(Age::At(word));
        }
        if word & PENDING == 0 {
            return Ok(Age::At(if word == self.unstamped() { self.stamp(record) } else { 0 }));
        }
        if generation(word) < self.clock.birth() {
            return Ok(Age::At(0));
        }
        Ok(match self.slots.fate(word, &self.clock).ok_or_else(|| damaged(record, "a pending record that names no commit slot"))? {
            Fate::Committed(at) => Age::At(at),
            Fate::Undecided => Age::Open,
            // A batch stamps its records before it gives its slot back: a record still pending was undone.
            Fate::Over => match record.commit().load(Ordering::Acquire) {
                word if word & PENDING == 0 => Age::At(word),
                _ => Age::Open,
            },
        })
    }

    /// The commit word of a record that is committed by being linked.
    pub(crate) fn unstamped(&self) -> u64 {
        UNSTAMPED | self.clock.birth()
    }

    /// Stamps a record that was just linked, unless a reader was faster; returns its timestamp.
    pub(crate) fn stamp(&self, record: &Record<'_>) -> u64 {
        let now = self.clock.stamp();
        self.pool.compare_exchange(record.commit(), self.unstamped(), now).map_or_else(|other| other, |_| now)
    }
}

/// Whether a reader, now or as of a moment, surely sees the newest version of a key, as far as the record alone can tell.
#[inline(always)]
pub(crate) fn is_plain(newest: &Record<'_>, moment: Option<Moment>) -> bool {
    newest.commit().load(Ordering::Acquire) < plain_end(moment) && newest.is_lasting()
}

/// Commit words below this are timestamps of what a reader sees, now or as of a moment.
#[inline(always)]
pub(crate) fn plain_end(moment: Option<Moment>) -> u64 {
    // Timestamps are below the bits that mark other words.
    moment.map_or(UNSTAMPED, |moment| moment.at)
}

/// Whether a committed version makes the key present at that time.
pub(crate) fn is_shown(record: &Record<'_>, time_ms: u64) -> bool {
    !record.is_tombstone() && record.expiry_ms().is_none_or(|expiry| expiry > time_ms)
}

/// [`is_shown`] for readers. A reader that gets a record checks it; for an absent key nothing else would be checked.
pub(crate) fn is_surely_shown(record: &Record<'_>, time_ms: u64) -> Result<bool, Error> {
    match is_shown(record, time_ms) {
        false if !record.is_intact() => Err(damaged(record, "a record that says that its key is absent, and does not match its checksum")),
        shown => Ok(shown),
    }
}

pub(crate) fn damaged(record: &Record<'_>, what: &'static str) -> Error {
    everleaf_pmem::Error::corrupt(record.off.bytes(), what).into()
}

/// The error for a record with a timestamp above all that were given out.
pub(crate) fn untimely(record: &Record<'_>) -> Error {
    damaged(record, "a record with a timestamp that the clock has still to give")
}
