//! Version latches: writers lock, readers check.
//!
//! A latch is one word: bit 0 begun, bit 1 obsolete, bit 2 appending, then the number of appends, then a version that every change raises; the highest bit says
//! that nobody may read, because the latch is locked or obsolete. A reader takes the version, reads what the latch guards, and checks that the version is
//! unchanged. A writer locks from a version that it has seen, so it knows that nothing has changed since. The version never goes back, so the former life of a
//! place that was given up and reused can be told from the present one.
//!
//! A word of 0 is a latch that never began: what it guards is absent, or not there yet. So a latch may be read if its word is positive, which is one
//! comparison.
//!
//! A thread that *appends* adds something that nobody sees before it is complete, or changes values of which readers may see the old one or the new. Appends
//! keep writers out, and invalidate the versions that writers have read before; they do not affect readers. A thread that appends can go on to lock, and from
//! there to append again, with no other writer in between. So readers continue during long steps.

use crate::arena::Arena;
use crate::{Error, Key};
use bytemuck::Zeroable;
use everleaf_pmem::schedule::{self, Slip, atomic::AtomicU64};
use everleaf_pmem::{Medium, Pool};
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

/// Set since its first life began. So no version is 0.
const BEGUN: u64 = 1;
const OBSOLETE: u64 = 2;
const APPENDING: u64 = 4;
const APPEND: u64 = 8;
/// If the appends overflow into the version, a reader starts again needlessly.
const VERSION: u64 = 1 << 20;
/// Also set in an obsolete latch.
const LOCKED: u64 = 1 << 63;
/// Bits that readers ignore.
const APPENDS: u64 = (VERSION - APPEND) | APPENDING;
const SPINS: u32 = 128;
/// After this many rounds, spins included, the wait is most likely for a device: no fence without one takes as long.
const RESTS: u32 = SPINS + 64;
/// Then one round in this many sleeps. The others can catch a latch that is free only for a moment.
const ROUNDS_PER_SLEEP: u32 = 8;

/// How often writers may outrun a reader before it keeps them out. Low in builds that check, so that schedules reach that case.
pub(crate) const OUTRUN: u32 = if schedule::IS_BUILT_IN { 2 } else { 32 };

/// Waits for another thread, which may be at a fence, or have no processor: each round spins briefly at first, then lets other threads run, and then sometimes
/// sleeps.
#[derive(Default)]
pub(crate) struct Patience(u32);

impl Patience {
    #[inline(always)]
    #[track_caller]
    pub(crate) fn wait(&mut self) {
        if self.0 < SPINS {
            self.0 += 1;
            schedule::spin();
        } else if self.0 < RESTS {
            self.0 += 1;
            schedule::rest();
        } else {
            self.0 = RESTS + (self.0 - RESTS + 1) % ROUNDS_PER_SLEEP;
            if self.0 == RESTS { schedule::sleep() } else { schedule::rest() }
        }
    }
}

/// Repeats `attempt` until no other thread is faster.
#[inline(always)]
#[track_caller]
pub(crate) fn until_done<T>(mut attempt: impl FnMut() -> Result<T, Restart>) -> T {
    let mut patience = Patience::default();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(Restart) => patience.wait(),
        }
    }
}

/// The same, but also ends when it fails. Pins the pool if keys are in records: a reader that a replaced or removed record has led still reads the same key.
#[inline(always)]
#[track_caller]
pub(crate) fn retry<K: Key + ?Sized, M: Medium, T>(pool: &Pool<M>, mut attempt: impl FnMut() -> Result<T, Stop>) -> Result<T, Error> {
    let _guard = (!K::WHOLE).then(|| pool.pin());
    until_done(|| match attempt() {
        Ok(done) => Ok(Ok(done)),
        Err(Stop::Failed(error)) => Ok(Err(error)),
        Err(Stop::Restart) => Err(Restart),
    })
}

/// The result of an optimistic step if another thread was faster: start again.
#[derive(Debug)]
pub struct Restart;

/// Why an attempt of optimistic steps has ended.
pub(crate) enum Stop {
    /// Another thread was faster.
    Restart,
    /// What was read is valid, and is an error.
    Failed(Error),
}

impl From<Restart> for Stop {
    fn from(Restart: Restart) -> Self {
        Self::Restart
    }
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// All zeroes: not begun. See the module documentation.
#[derive(Zeroable)]
#[repr(transparent)]
pub(crate) struct Latch(AtomicU64);

/// The version after a change. It wraps around below the highest bit.
#[inline(always)]
fn raised(version: u64) -> u64 {
    (version + VERSION) & !LOCKED
}

/// The version after an append.
#[inline(always)]
fn appended(version: u64) -> u64 {
    (version + APPEND) & !LOCKED
}

impl Latch {
    /// A latch that has begun.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(BEGUN))
    }

    /// The version, once nobody holds the lock.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn read(&self) -> Result<u64, Restart> {
        match self.try_read() {
            Err(Restart) => self.wait(LOCKED),
            free => free,
        }
    }

    /// The version, once nobody holds the lock or appends: for a caller that is about to lock or append.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn read_idle(&self) -> Result<u64, Restart> {
        match self.try_read() {
            Ok(version) if version & APPENDING == 0 => Ok(version),
            _ => self.wait(LOCKED | APPENDING),
        }
    }

    /// The version, if nobody holds the lock at this moment.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn try_read(&self) -> Result<u64, Restart> {
        let version = self.0.load(Ordering::Acquire);
        let is_free = version.cast_signed() > 0 || version & (OBSOLETE | BEGUN) == BEGUN && schedule::slips(Slip::Wait);
        if is_free { Ok(version) } else { Err(Restart) }
    }

    /// The version, once nobody holds the lock. The latch was found through what `above` guards, to which nobody appends. Waits only while it can still be
    /// found there: a stale way may lead to something that the caller itself has locked.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn read_below(&self, above: &Latch, above_version: u64) -> Result<u64, Restart> {
        let version = match self.try_read() {
            Ok(version) => version,
            Err(Restart) => {
                above.validate_unappended(above_version)?;
                self.wait(LOCKED)?
            }
        };
        above.validate_unappended(above_version)?;
        Ok(version)
    }

    /// Waits until none of these bits is set.
    #[cold]
    fn wait(&self, busy: u64) -> Result<u64, Restart> {
        let mut patience = Patience::default();
        loop {
            let version = self.0.load(Ordering::Acquire);
            if version == 0 {
                return Err(Restart);
            }
            if version & OBSOLETE != 0 {
                // The replacement is published before this is marked obsolete, but let the publisher run if we got here by a stale way.
                schedule::spin();
                return Err(Restart);
            }
            if version & busy == 0 {
                return Ok(version);
            }
            patience.wait();
        }
    }

    /// Whether nothing has changed since `version` was read.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn validate(&self, version: u64) -> Result<(), Restart> {
        // The reads before stay before the load of the version.
        fence(Ordering::Acquire);
        if (self.0.load(Ordering::Relaxed) ^ version) & !APPENDS == 0 || schedule::slips(Slip::Validate) { Ok(()) } else { Err(Restart) }
    }

    /// As [`Latch::validate`], where nobody ever appends.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn validate_unappended(&self, version: u64) -> Result<(), Restart> {
        fence(Ordering::Acquire);
        if self.0.load(Ordering::Relaxed) == version || schedule::slips(Slip::Validate) { Ok(()) } else { Err(Restart) }
    }

    /// As [`Latch::validate`], and also checks that nothing was being appended, nor has been since.
    pub(crate) fn validate_idle(&self, version: u64) -> Result<(), Restart> {
        if version & APPENDING == 0 { self.validate_unappended(version) } else { Err(Restart) }
    }

    /// Locks if nothing has changed since `version` was read.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn lock_from(&self, version: u64) -> Result<Locked<'_>, Restart> {
        if schedule::slips(Slip::Lock) {
            return Ok(Locked { latch: self, version: version | LOCKED });
        }
        self.begin(version, LOCKED)?;
        // No store under the lock becomes visible before the lock does.
        fence(Ordering::Release);
        Ok(Locked { latch: self, version })
    }

    /// Begins to append if nothing has been changed or appended since `version` was read.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn append_from(&self, version: u64) -> Result<Appending<'_>, Restart> {
        if schedule::slips(Slip::Lock) {
            return Ok(Appending { latch: self, version: version | APPENDING });
        }
        self.begin(version, APPENDING)?;
        Ok(Appending { latch: self, version })
    }

    #[inline(always)]
    #[track_caller]
    fn begin(&self, version: u64, what: u64) -> Result<(), Restart> {
        let is_idle = version & APPENDING == 0 && self.0.compare_exchange(version, version | what, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_idle { Ok(()) } else { Err(Restart) }
    }

    /// Locks if nobody holds the lock at this moment.
    #[track_caller]
    pub(crate) fn try_lock(&self) -> Result<Locked<'_>, Restart> {
        self.lock_from(self.try_read()?)
    }

    /// Locks if nobody holds the lock or appends at this moment, within a transaction of the processor: other threads see this store together with all others
    /// of the transaction.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn lock_within(&self) -> Result<Locked<'_>, Restart> {
        let version = self.try_read()?;
        if schedule::slips(Slip::Lock) {
            return Ok(Locked { latch: self, version: version | LOCKED });
        }
        if version & APPENDING != 0 {
            return Err(Restart);
        }
        self.0.store(version | LOCKED, Ordering::Relaxed);
        Ok(Locked { latch: self, version })
    }

    /// Begins a new life of what the latch guards, which must be new or given up. Returns false, and does nothing, if it lives already.
    #[must_use]
    pub(crate) fn revive(&self) -> bool {
        self.begin_again(0).is_some()
    }

    /// The same, but locked, for what cannot be read yet; `None` if it lives already.
    pub(crate) fn revive_locked(&self) -> Option<Locked<'_>> {
        self.begin_again(LOCKED).map(|version| Locked { latch: self, version })
    }

    /// The version with which the new life begins.
    fn begin_again(&self, held: u64) -> Option<u64> {
        let version = self.0.load(Ordering::Relaxed);
        let begun = raised(version & !OBSOLETE | BEGUN);
        let dead = version == 0 || version & OBSOLETE != 0;
        let revived = dead && self.0.compare_exchange(version, begun | held, Ordering::Release, Ordering::Relaxed).is_ok();
        // No thread sees a store of the new life without seeing that the old one has ended.
        fence(Ordering::Release);
        revived.then_some(begun)
    }

    /// Locks a latch that has not begun, and begins it; `None` if it has begun.
    #[track_caller]
    pub(crate) fn begin_locked(&self) -> Option<Locked<'_>> {
        self.0.compare_exchange(0, BEGUN | LOCKED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        fence(Ordering::Release);
        Some(Locked { latch: self, version: BEGUN })
    }

    /// Whether what it guards does not live: not begun, or given up.
    pub(crate) fn is_dead(&self) -> bool {
        let version = self.0.load(Ordering::Relaxed);
        version == 0 || version & OBSOLETE != 0
    }

    /// Ends a life that no other thread knows of.
    pub(crate) fn give_up(&self) {
        self.0.fetch_or(OBSOLETE | LOCKED, Ordering::Release);
    }
}

/// The versions of a latch before and after the drop of what holds it, for a caller that keeps data of a version. It is void if the holder is exchanged for the
/// other right, or released unchanged: then another thread will come to the same version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) from: u64,
    /// Nobody reads this version before the drop.
    pub(crate) to: u64,
}

/// The lock, held. Dropping it raises the version.
pub(crate) struct Locked<'a> {
    latch: &'a Latch,
    /// The version from which it was locked. If [`LOCKED`] is set, it was not locked: that was left out.
    version: u64,
}

impl<'a> Locked<'a> {
    #[inline(always)]
    fn is_held(&self) -> bool {
        !schedule::IS_BUILT_IN || self.version & LOCKED == 0
    }

    /// The change that dropping it makes.
    #[inline(always)]
    pub(crate) fn change(&self) -> Change {
        Change { from: self.version, to: raised(self.version) }
    }

    /// Lets readers in, who see that something was changed, and goes on to append.
    pub(crate) fn append(self) -> Appending<'a> {
        let latch = self.latch;
        let mut version = self.version | APPENDING;
        if self.is_held() {
            version = raised(self.version);
            latch.0.store(version | APPENDING, Ordering::Release);
        }
        std::mem::forget(self);
        Appending { latch, version }
    }

    /// Unlocks what has not been changed: readers need not start again.
    pub(crate) fn release_unchanged(self) {
        if self.is_held() {
            self.latch.0.store(self.version, Ordering::Release);
        }
        std::mem::forget(self);
    }

    /// Unlocks and marks as given up: readers and writers start again.
    pub(crate) fn release_obsolete(self) {
        self.latch.0.store(raised(self.version) | OBSOLETE | LOCKED, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_held() {
            self.latch.0.store(raised(self.version), Ordering::Release);
        }
    }
}

/// The right to append, held. Dropping it tells other writers that something was appended.
pub(crate) struct Appending<'a> {
    latch: &'a Latch,
    /// The version from which it began. If [`APPENDING`] is set, it did not begin: that was left out.
    version: u64,
}

impl<'a> Appending<'a> {
    #[inline(always)]
    fn is_held(&self) -> bool {
        !schedule::IS_BUILT_IN || self.version & APPENDING == 0
    }

    /// The change that dropping it makes.
    #[inline(always)]
    pub(crate) fn change(&self) -> Change {
        Change { from: self.version, to: appended(self.version) }
    }

    /// Releases it when nothing was appended.
    pub(crate) fn release_unchanged(self) {
        if self.is_held() {
            self.latch.0.store(self.version, Ordering::Release);
        }
        std::mem::forget(self);
    }

    /// Goes on to lock. Earlier readers may or may not have seen what has been stored so far.
    #[track_caller]
    pub(crate) fn lock(self) -> Locked<'a> {
        let latch = self.latch;
        if schedule::slips(Slip::Lock) || !self.is_held() {
            return Locked { latch, version: self.version | LOCKED };
        }
        let version = self.version;
        std::mem::forget(self);
        latch.0.store(version | LOCKED, Ordering::Relaxed);
        // As in `lock_from`.
        fence(Ordering::Release);
        Locked { latch, version }
    }
}

impl Drop for Appending<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_held() {
            self.latch.0.store(appended(self.version), Ordering::Release);
        }
    }
}

/// A latch, and the data in DRAM beside it for the same place: all zeroes at first, later as the previous life has left it.
#[derive(Zeroable)]
#[repr(C)]
pub(crate) struct Place<B> {
    pub(crate) latch: Latch,
    pub(crate) beside: B,
}

/// One latch for each place where a leaf, or another persistent node, can lie: blocks of equal size that do not overlap have different quotients.
pub(crate) struct Latches<L, B = ()> {
    places: Arena<Place<B>, 64>,
    _leaf: PhantomData<fn(&L)>,
}

impl<L, B: Zeroable> Latches<L, B> {
    pub(crate) fn new() -> Self {
        Self { places: Arena::new(), _leaf: PhantomData }
    }

    /// The place of a leaf that may be out of date.
    #[inline(always)]
    pub(crate) fn place(&self, leaf: u64) -> Result<&Place<B>, Restart> {
        self.places.get(leaf as usize / size_of::<L>()).ok_or(Restart)
    }

    /// The same, and the places of the leaves behind it, as far as they lie in the same piece of memory.
    #[inline(always)]
    pub(crate) fn rest_from(&self, leaf: u64) -> Result<&[Place<B>], Restart> {
        self.places.rest_of_chunk(leaf as usize / size_of::<L>()).ok_or(Restart)
    }

    /// The place of a leaf, all zeroes at first.
    pub(crate) fn make(&self, leaf: u64) -> &Place<B> {
        self.places.get_or_make(leaf as usize / size_of::<L>())
    }

    /// Its latch.
    #[inline(always)]
    pub(crate) fn of(&self, leaf: u64) -> Result<&Latch, Restart> {
        Ok(&self.place(leaf)?.latch)
    }

    /// Makes the latches of new leaves ready, all or none.
    ///
    /// # Errors
    /// One of them is a leaf already: the pool's list of free blocks is forged. If two leaves shared a latch, a thread could wait for it forever.
    pub(crate) fn begin(&self, leaves: &[u64]) -> Result<(), Error> {
        let latch = |leaf: u64| &self.make(leaf).latch;
        match leaves.iter().position(|&leaf| !latch(leaf).revive()) {
            None => Ok(()),
            Some(at) => {
                leaves[..at].iter().for_each(|&leaf| latch(leaf).give_up());
                Err(everleaf_pmem::Error::corrupt(leaves[at], "a leaf that the allocator takes for free").into())
            }
        }
    }
}

/// Checks that the blocks of a tree, each an offset and a size, do not overlap. Overlapping entries would be bad; worse, a thread could wait forever for a
/// latch that two leaves share.
pub(crate) fn check_apart(mut blocks: Vec<(u64, usize)>) -> Result<(), Error> {
    blocks.sort_unstable();
    match blocks.windows(2).find(|pair| pair[0].0 + pair[0].1 as u64 > pair[1].0) {
        Some(pair) => Err(everleaf_pmem::Error::corrupt(pair[1].0, "a block of a tree that reaches into another").into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that holds the lock of a node goes down the tree again, and comes to that node by a stale way. It must not wait for itself.
    #[test]
    fn a_way_that_is_out_of_date_is_not_waited_on() {
        let (above, below) = (Latch::new(), Latch::new());
        let version = above.read().unwrap();
        let held = below.try_lock().unwrap();
        drop(above.try_lock().unwrap());
        assert!(below.read_below(&above, version).is_err());
        drop(held);
        assert!(below.read_below(&above, version).is_err());
        let version = above.read().unwrap();
        assert_eq!(below.read_below(&above, version).unwrap(), below.read().unwrap());
    }

    #[test]
    fn appends_keep_writers_out_and_leave_readers_alone() {
        let latch = Latch::new();
        let before = latch.read_idle().unwrap();
        let appending = latch.append_from(before).unwrap();
        let during = latch.read().unwrap();
        assert!(latch.validate(before).is_ok() && latch.append_from(before).is_err() && latch.try_lock().is_err() && latch.lock_within().is_err());
        drop(appending);
        assert!(latch.validate(before).is_ok() && latch.validate(during).is_ok());
        assert!(latch.lock_from(before).is_err() && latch.append_from(before).is_err() && latch.lock_from(during).is_err(), "something was appended since");
        drop(latch.append_from(latch.read_idle().unwrap()).unwrap());
        drop(latch.try_lock().unwrap());
        assert!(latch.validate(during).is_err());
    }

    #[test]
    fn who_appends_locks_and_appends_again_and_lets_no_writer_in() {
        let latch = Latch::new();
        let before = latch.read_idle().unwrap();
        let lock = latch.append_from(before).unwrap().lock();
        assert!(latch.try_read().is_err() && latch.validate(before).is_err() && latch.append_from(before).is_err());
        let appending = lock.append();
        let during = latch.read().unwrap();
        assert!(latch.validate(before).is_err() && latch.validate(during).is_ok() && latch.try_lock().is_err());
        drop(appending);
        assert!(latch.validate(during).is_ok() && latch.lock_from(during).is_err() && latch.try_lock().is_ok());
    }

    #[test]
    fn what_is_held_says_where_it_leads() {
        let latch = Latch::new();
        let mut versions = vec![latch.read().unwrap()];
        let appending = latch.append_from(versions[0]).unwrap();
        let mut changes = vec![appending.change()];
        drop(appending);
        versions.push(latch.read_idle().unwrap());
        let lock = latch.append_from(versions[1]).unwrap().lock();
        changes.push(lock.change());
        drop(lock);
        versions.push(latch.read_idle().unwrap());
        let appending = latch.try_lock().unwrap().append();
        let between = appending.change().from;
        changes.push(Change { from: versions[2], ..appending.change() });
        drop(appending);
        versions.push(latch.read_idle().unwrap());
        assert!(versions[2] < between && between < versions[3]);
        assert!(versions.windows(2).map(|pair| (pair[0], pair[1])).eq(changes.iter().map(|change| (change.from, change.to))));
    }

    #[test]
    fn a_version_does_not_come_again() {
        let latch = Latch::new();
        let mut versions = vec![latch.read().unwrap()];
        for life in 0..3 {
            drop(latch.try_lock().unwrap());
            versions.push(latch.read().unwrap());
            latch.try_lock().unwrap().release_unchanged();
            assert!(latch.validate(versions[versions.len() - 1]).is_ok());
            latch.try_lock().unwrap().release_obsolete();
            assert!(latch.read().is_err() && latch.try_lock().is_err(), "life {life}");
            assert!(latch.revive() && !latch.revive(), "one life after the other");
            versions.push(latch.read().unwrap());
        }
        assert!(versions.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn what_has_not_begun_cannot_be_read_or_locked_and_begins_once() {
        let latch = <Latch as bytemuck::Zeroable>::zeroed();
        assert!(latch.read().is_err() && latch.read_idle().is_err() && latch.try_lock().is_err());
        let lock = latch.begin_locked().unwrap();
        assert!(latch.begin_locked().is_none() && latch.try_read().is_err() && !latch.revive());
        drop(lock);
        assert!(latch.read().is_ok() && latch.begin_locked().is_none());
    }

    #[test]
    fn the_version_starts_anew_before_it_locks() {
        let latch = Latch(AtomicU64::new(!LOCKED & !(VERSION - 1) | BEGUN));
        let version = latch.read().unwrap();
        drop(latch.lock_from(version).unwrap());
        assert!(latch.read().is_ok() && latch.validate(version).is_err());
        drop(latch.try_lock().unwrap());
    }
}
