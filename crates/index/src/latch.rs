//! Version latches: writers lock, readers check.
//!
//! A latch is one word: bit 0 begun, bit 1 obsolete, bit 2 appending, then the number of appends, then a version that every change raises; the highest bit says
//! that nobody may read, be it locked or obsolete. A reader takes the version, reads what the latch guards, and checks that the version is still the same; a
//! writer locks from a version that it has seen, so that it knows nothing has changed since. The version never goes back, so a place that was given up and
//! taken into use again is told from its former life.
//!
//! A word of 0 is a latch that never began: what it guards is not there, or not yet. So what may be read is what is positive, which is one comparison.
//!
//! Who *appends* adds something that nobody sees before it is complete, or changes values of which readers may see the old one or the new. Appends keep
//! writers out, and are seen by writers who have come before; to readers they make no difference. Who appends can go on to lock, and from there to append
//! again, and lets no writer in between: so what takes long is done while readers read.

use crate::arena::Arena;
use crate::{Error, Key};
use bytemuck::Zeroable;
use everleaf_pmem::schedule::{self, Slip, atomic::AtomicU64};
use everleaf_pmem::{Medium, Pool};
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

/// Since its first life began. No version is 0.
const BEGUN: u64 = 1;
const OBSOLETE: u64 = 2;
const APPENDING: u64 = 4;
const APPEND: u64 = 8;
/// Where appends overflow into the version, a reader starts again for nothing.
const VERSION: u64 = 1 << 20;
/// Of what is obsolete as well.
const LOCKED: u64 = 1 << 63;
/// What readers do not look at.
const APPENDS: u64 = (VERSION - APPEND) | APPENDING;
const SPINS: u32 = 128;
/// Rounds, with those, until it is a device that is waited for, most likely: longer than any fence takes without one.
const RESTS: u32 = SPINS + 64;
/// Rounds of which one sleeps then. In the others a latch is met free that is taken again at once.
const ROUNDS_PER_SLEEP: u32 = 8;

/// How often a reader is outrun by writers before he keeps them out. In builds that check, so seldom that schedules come to it.
pub(crate) const OUTRUN: u32 = if schedule::IS_BUILT_IN { 2 } else { 32 };

/// What waits for another thread, which may be at a fence, or have no processor: each round takes a moment at first, then lets others run, and then sleeps
/// now and then.
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

/// Tries until nobody is faster.
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

/// The same, or until it fails. Pinned where keys are in records: whoever has been led by one that was replaced or removed meanwhile reads the same key.
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

/// What an optimistic step says when somebody else was faster: start again.
#[derive(Debug)]
pub struct Restart;

/// Why an attempt of optimistic steps has ended.
pub(crate) enum Stop {
    /// Somebody was faster.
    Restart,
    /// What was read counts, and says so.
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

/// All zeroes it has not begun. See the module documentation.
#[derive(Zeroable)]
#[repr(transparent)]
pub(crate) struct Latch(AtomicU64);

/// The version after a change. It starts anew where it would reach the highest bit.
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
    /// One that has begun.
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

    /// The version, once nobody holds the lock or appends: for who means to do so.
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

    /// The version, once nobody holds the lock, of what was found by way of what `above` guards, to which nobody appends. Waits only for what is found there
    /// still: a way that is out of date may lead to something that the caller has locked itself.
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
                // Its replacement is published before it is marked, but let the publisher run if we got here by a stale route.
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

    /// As [`Latch::validate`], and that nothing was being appended, nor has been since.
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

    /// Begins to append if nothing has changed since `version` was read, and nothing was appended.
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

    /// Locks if nobody holds the lock or appends at this moment, within a transaction of the processor: what others see of it, they see together with all else
    /// that is stored there.
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

    /// Begins a new life of what the latch guards; false, and nothing, if it lives already: it must be new, or have been given up.
    #[must_use]
    pub(crate) fn revive(&self) -> bool {
        self.begin_again(0).is_some()
    }

    /// The same, locked, for what is not ready to be read; `None` if it lives already.
    pub(crate) fn revive_locked(&self) -> Option<Locked<'_>> {
        self.begin_again(LOCKED).map(|version| Locked { latch: self, version })
    }

    /// The version with which the new life begins.
    fn begin_again(&self, held: u64) -> Option<u64> {
        let version = self.0.load(Ordering::Relaxed);
        let begun = raised(version & !OBSOLETE | BEGUN);
        let dead = version == 0 || version & OBSOLETE != 0;
        let revived = dead && self.0.compare_exchange(version, begun | held, Ordering::Release, Ordering::Relaxed).is_ok();
        // Nor does anybody see a store of the new life without seeing that the old one has ended.
        fence(Ordering::Release);
        revived.then_some(begun)
    }

    /// Locks what has not begun, and begins; `None` if it has begun.
    #[track_caller]
    pub(crate) fn begin_locked(&self) -> Option<Locked<'_>> {
        self.0.compare_exchange(0, BEGUN | LOCKED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        fence(Ordering::Release);
        Some(Locked { latch: self, version: BEGUN })
    }

    /// Whether what it guards does not live: it has not begun, or was given up.
    pub(crate) fn is_dead(&self) -> bool {
        let version = self.0.load(Ordering::Relaxed);
        version == 0 || version & OBSOLETE != 0
    }

    /// Ends a life that nobody else knows of.
    pub(crate) fn give_up(&self) {
        self.0.fetch_or(OBSOLETE | LOCKED, Ordering::Release);
    }
}

/// From which version to which one a latch goes when what holds it is dropped: for who keeps something else that is of a version. It holds no longer if that is
/// made another right instead, or let go of unchanged, when somebody else will come to the same version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) from: u64,
    /// Nobody reads this version before.
    pub(crate) to: u64,
}

/// The lock, held. Dropping it raises the version.
pub(crate) struct Locked<'a> {
    latch: &'a Latch,
    /// From which it was locked. With [`LOCKED`], it was not: that was left out.
    version: u64,
}

impl<'a> Locked<'a> {
    #[inline(always)]
    fn is_held(&self) -> bool {
        !schedule::IS_BUILT_IN || self.version & LOCKED == 0
    }

    /// Where dropping it leads.
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

    /// Unlocks and marks as given up: whoever comes here starts again.
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

/// The right to append, held. Dropping it tells others that something was.
pub(crate) struct Appending<'a> {
    latch: &'a Latch,
    /// From which it began. With [`APPENDING`], it did not: that was left out.
    version: u64,
}

impl<'a> Appending<'a> {
    #[inline(always)]
    fn is_held(&self) -> bool {
        !schedule::IS_BUILT_IN || self.version & APPENDING == 0
    }

    /// Where dropping it leads.
    #[inline(always)]
    pub(crate) fn change(&self) -> Change {
        Change { from: self.version, to: appended(self.version) }
    }

    /// Lets go of what nothing was appended to.
    pub(crate) fn release_unchanged(self) {
        if self.is_held() {
            self.latch.0.store(self.version, Ordering::Release);
        }
        std::mem::forget(self);
    }

    /// Goes on to lock. Readers who came before may have seen what has been stored so far, or not.
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

/// A latch, and what there is in DRAM beside it for the same place: all zeroes at first, and as the life before has left it later.
#[derive(Zeroable)]
#[repr(C)]
pub(crate) struct Place<B> {
    pub(crate) latch: Latch,
    pub(crate) beside: B,
}

/// One latch for each place where a leaf, or another node that persists, can lie: blocks of equal size that do not overlap have different quotients.
pub(crate) struct Latches<L, B = ()> {
    places: Arena<Place<B>, 64>,
    _leaf: PhantomData<fn(&L)>,
}

impl<L, B: Zeroable> Latches<L, B> {
    pub(crate) fn new() -> Self {
        Self { places: Arena::new(), _leaf: PhantomData }
    }

    /// What there is for a leaf that may be out of date.
    #[inline(always)]
    pub(crate) fn place(&self, leaf: u64) -> Result<&Place<B>, Restart> {
        self.places.get(leaf as usize / size_of::<L>()).ok_or(Restart)
    }

    /// The same, and what there is for the leaves behind it, as far as it lies in the same piece of memory.
    #[inline(always)]
    pub(crate) fn rest_from(&self, leaf: u64) -> Result<&[Place<B>], Restart> {
        self.places.rest_of_chunk(leaf as usize / size_of::<L>()).ok_or(Restart)
    }

    /// What there is for a leaf, all zeroes at first.
    pub(crate) fn make(&self, leaf: u64) -> &Place<B> {
        self.places.get_or_make(leaf as usize / size_of::<L>())
    }

    /// Its latch.
    #[inline(always)]
    pub(crate) fn of(&self, leaf: u64) -> Result<&Latch, Restart> {
        Ok(&self.place(leaf)?.latch)
    }

    /// Makes the latches of new leaves ready, of all or none.
    ///
    /// # Errors
    /// One of them is a leaf already: a pool whose list of free blocks is forged. With one latch for two, they would be waited for without an end.
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

/// Checks that the blocks of a tree, each by offset and size, do not overlap: not each other's entries would be the worst of it, but a latch that two leaves
/// share is waited for without an end.
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

    /// A thread that holds the lock of a node goes down the tree again, comes to that very node by a way that is out of date, and must not wait for itself.
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
