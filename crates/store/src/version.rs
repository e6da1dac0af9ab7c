//! Versions: which record of a key a reader sees, now or as of a moment.
//!
//! An index links the newest version of a key; each version links the one that it replaced. A reader takes the newest one, or, as of timestamp *s*, the first
//! that was committed before *s*. What a version's commit word says:
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
//! 1. A version's timestamp is drawn when it can be seen already, by the first who looks, be it the writer or a reader ([`Shared::age`]). So as of *s* it is
//!    there for everybody or for nobody: whoever has drawn *s* before draws a higher timestamp for it, and whoever draws *s* after the write has returned, or
//!    after anybody has read the version, gets a higher *s*. Nobody waits for that. The clock says which of the two it is, so it is not merely read
//!    ([`Clock::stamp`](crate::clock::Clock::stamp)).
//! 2. Along the versions of a key timestamps fall, for writers of a key take turns, and each draws a timestamp from the clock before it writes and stamps its
//!    version before the next begins. Only the first of them can be pending. In a damaged pool both may be otherwise, which is an error, and so no chain of
//!    versions runs in a circle.
//! 3. A version that was replaced stays in place as long as a snapshot may want it (`garbage.rs`): the one that a version links as previous may be followed
//!    by whoever holds a snapshot as of which that version is not committed yet, and by nobody else. One that no snapshot wants, though some want what it has
//!    replaced itself, is *cut out*: once the version N that replaced P is committed and stamped, and under the key's stripe, N links what P links, and P is
//!    given back; by the writer of N, or later, when whoever wanted P has ended, and then N is the one that has P's link by then. A snapshot whose timestamp
//!    lies between those of P and N would want P, or one that was cut out between the two; there is none, and none is to come. So whoever passes N on the way
//!    back would have passed P, too, and what he comes to next is in place for him. Who has read the link to P before is pinned. So beside snapshots that stay
//!    there is one version of a key between two of them at most, however often it is written. The link says that something was
//!    cut out behind it: who watches a key that is absent learns from that of its tombstone that somebody has written the key and taken it away again
//!    (`watch.rs`).
//! 4. No snapshot outlives a crash, so neither do old versions, and no timestamp needs to. Words are stamped in place and never flushed: what the pool has is
//!    the timestamp, or the word before. An unstamped word of another birth, and a token from before birth, are of versions that were committed in another
//!    life.
//!
//! As long as there are no snapshots and have not been lately, single writes are *plain*: they do not ask what they replace, and need no stamp; see
//! `snapshot.rs`.

use crate::Error;
use crate::slots::{Fate, PENDING, UNSTAMPED, generation};
use crate::store::Shared;
use everleaf_index::Listed;
use everleaf_index::record::Record;
use std::sync::atomic::Ordering;

/// In the word of a version that links the previous one: others between them were cut out. No link has this bit, since blocks lie at even places.
pub(crate) const CUT_OUT: u64 = 1;

/// The link of the version that a record has replaced, or of the one before those that were cut out behind it; 0: there is none.
fn previous_of(record: &Record<'_>) -> u64 {
    record.previous().load(Ordering::Acquire) & !CUT_OUT
}

/// As of when a snapshot shows what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// What was committed before this timestamp is there.
    pub(crate) at: u64,
    /// What has expired by this time, in milliseconds since 1970, is not. 0 where nothing expires.
    pub(crate) time_ms: u64,
}

impl Moment {
    /// Now, for one who judges by that time what has expired.
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
    /// The version that a reader sees who finds `link` in an index, now or as of a moment; `None` when the key is absent. The caller is pinned, and the moment
    /// is that of a snapshot that it holds.
    #[inline(always)]
    pub(crate) fn visible(&self, link: u64, moment: Option<Moment>) -> Result<Option<Record<'_>>, Error> {
        let newest = Record::read(&self.pool, link)?;
        if is_plain(&newest, moment) {
            return Ok(Some(newest));
        }
        // Who asks on begins with the link again: were the record handed to him, every record would go through memory, and wait there (decision 84).
        match moment {
            Some(moment) => self.resolve_at(link, moment),
            None => self.resolve(link),
        }
    }

    /// [`Shared::visible`] for a record that has no timestamp yet, or may say that the key is absent.
    #[cold]
    fn resolve(&self, link: u64) -> Result<Option<Record<'_>>, Error> {
        let record = Record::read(&self.pool, link)?;
        // Read before the age is: as long as the batch is undecided after that, the previous version was not retired when we were pinned.
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

    /// [`Shared::visible`] as of a moment, for a key whose newest version is not the one, or may say that the key is absent.
    #[cold]
    fn resolve_at(&self, link: u64, moment: Moment) -> Result<Option<Record<'_>>, Error> {
        let Some((record, _)) = self.version_at(link, moment.at)? else { return Ok(None) };
        Ok(is_surely_shown(&record, moment.time_ms)?.then_some(record))
    }

    /// The version that was the newest as of a timestamp, and when it was committed, whatever it says. The caller is pinned, and holds a snapshot of that
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

    /// A committed version, unless it says that the key is absent, or has expired.
    #[inline]
    fn shown<'p>(&self, record: Record<'p>) -> Result<Option<Record<'p>>, Error> {
        Ok((record.is_lasting() || is_surely_shown(&record, self.wall.now_ms())?).then_some(record))
    }

    /// When a version was committed. What can be seen and has no timestamp yet gets one.
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
            // A batch stamps its records before it gives its slot back; what is pending still was undone.
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

    /// Gives a record that was just linked its timestamp, unless a reader was faster; the one that it has.
    pub(crate) fn stamp(&self, record: &Record<'_>) -> u64 {
        let now = self.clock.stamp();
        self.pool.compare_exchange(record.commit(), self.unstamped(), now).map_or_else(|other| other, |_| now)
    }
}

/// Whether a reader, now or as of a moment, sees the newest version of a key, as that alone can tell.
#[inline(always)]
pub(crate) fn is_plain(newest: &Record<'_>, moment: Option<Moment>) -> bool {
    newest.commit().load(Ordering::Acquire) < plain_end(moment) && newest.is_lasting()
}

/// Commit words below this are timestamps of what a reader sees, now or as of a moment.
#[inline(always)]
pub(crate) fn plain_end(moment: Option<Moment>) -> u64 {
    // Timestamps are below the bits that say that there is none.
    moment.map_or(UNSTAMPED, |moment| moment.at)
}

/// Whether a committed version says, at that time, that the key is present.
pub(crate) fn is_shown(record: &Record<'_>, time_ms: u64) -> bool {
    !record.is_tombstone() && record.expiry_ms().is_none_or(|expiry| expiry > time_ms)
}

/// [`is_shown`] for readers. Who is shown a record checks what he reads; that there is nothing to read, nobody else would check.
pub(crate) fn is_surely_shown(record: &Record<'_>, time_ms: u64) -> Result<bool, Error> {
    match is_shown(record, time_ms) {
        false if !record.is_intact() => Err(damaged(record, "a record that says that its key is absent, and does not match its checksum")),
        shown => Ok(shown),
    }
}

pub(crate) fn damaged(record: &Record<'_>, what: &'static str) -> Error {
    everleaf_pmem::Error::corrupt(record.off.bytes(), what).into()
}

/// That a record has a timestamp above all that were given out.
pub(crate) fn untimely(record: &Record<'_>) -> Error {
    damaged(record, "a record with a timestamp that the clock has still to give")
}
