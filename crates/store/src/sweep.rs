//! The removal of keys that have expired.
//!
//! A key that has expired is absent for every reader from that moment on (`version.rs`); a write replaces it like any other. A sweep removes it. The sweep goes
//! in steps through the keys of all namespaces that have held a key that expires, and begins anew at the end. It remembers one key and these namespaces, so it
//! costs no memory for each key that expires.
//!
//! Readers do not wait for writers, so they remove nothing. But a reader leaves a key that it has found expired to the next sweep, which removes such keys
//! after its own: a key that cannot be removed must not keep the sweep from advancing. At most [`TOUCHED_MAX`] such keys are noted, and none while another
//! thread notes one. The sweep comes to keys that were not noted in its course.
//!
//! The sweep knows before which moment nothing expires: each write of something that expires lowers it, and a round sets it to the earliest expiry that it
//! meets, as follows. When the round begins, the moment is "never", before it waits for the threads that hold stripes (see below): what was written earlier is
//! met by its passes, and what is written later lowers the moment itself. Each pass lowers it by what it has met. So [`Store::keep_house`] does nothing where
//! nothing is due, and a write that a full pool refuses sweeps on until something was removed or nothing is due, and is retried, a few times.
//!
//! A pass through a namespace that finds nothing that expires takes it off the list. Each write of something that expires is counted in its namespace, under
//! the stripe of its key, before it is published ([`Shared::note_expiry`]). A round through all namespaces begins by reading their counts, and then waits,
//! once, for every thread that holds a stripe. So every pass of the round finds what was counted before, however late the pass begins; and if anything was
//! counted since, the namespace stays on the list for the next round.
//!
//! The sweep deletes keys like any other delete: in groups that share their fences (`group.rs`), under the keys' stripes, and only those that have expired even
//! then. *Crash: as for deletes, any of which may be there.*

use crate::group::Update;
use crate::namespace::Namespace;
use crate::store::{Shared, Space};
use crate::version::Age;
use crate::wall::Wall;
use crate::{Error, Store};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::schedule;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sweep of an open store.
#[derive(Default)]
pub(crate) struct Sweeper {
    /// The rest of the current round: passes through namespaces, the next one last.
    round: Mutex<Vec<Pass>>,
    /// Keys that readers have found expired, each with its namespace.
    touched: Mutex<Vec<(Arc<Space>, Vec<u8>)>>,
    /// Number of keys that had expired when the sweep removed them or a write replaced them.
    expired: AtomicU64,
    /// Nothing expires before this time, in milliseconds since 1970, except what the current round has still to meet.
    due_ms: AtomicU64,
}

/// How much later a key is looked at again of which nobody can tell whether it expires.
const UNKNOWN_MS: u64 = 1000;

/// Largest number of keys that readers leave to the next sweep.
const TOUCHED_MAX: usize = 1024;

/// A pass through a namespace.
struct Pass {
    space: Arc<Space>,
    /// The last key looked at.
    after: Option<Vec<u8>>,
    /// What [`Space::expiring`] was when the round began.
    expiring: u64,
    /// Whether it has met anything that expires, or may.
    has_found: bool,
    /// Number of keys met that expire, or may, and have not yet.
    found: u64,
    /// The earliest expiry met.
    earliest_ms: u64,
}

/// What [`Store::sweep`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of keys looked at, in order.
    pub visited: usize,
    /// Number of expired keys that were removed.
    pub removed: usize,
    /// Whether the sweep has come to the end of all keys: the next one begins anew.
    pub is_round: bool,
}

/// Whether and how a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    Lasting,
    /// It expires at this time, or may; it is to be looked at then.
    Limited(u64),
    /// It has expired.
    Over,
}

/// What was found in a part of a namespace.
struct Found {
    visited: usize,
    /// Keys that have expired.
    expired: Vec<Vec<u8>>,
    /// Whether anything expires, or may.
    may_expire: bool,
    /// How many keys will expire, or may.
    limited: u64,
    /// When the first key expires, or has expired.
    earliest_ms: u64,
    /// The last key, unless there are no more, or none that can be read.
    last: Option<Vec<u8>>,
    /// The first damage found.
    damage: Option<Error>,
}

impl Found {
    /// Notes damage. It must not keep the keys after it from being swept, and the namespace stays on the list.
    fn is_damaged(&mut self, error: Error, now_ms: u64) {
        self.may_expire = true;
        // Behind the damage there may be keys that no sweep has met.
        self.earliest_ms = self.earliest_ms.min(now_ms.saturating_add(UNKNOWN_MS));
        self.damage.get_or_insert(error);
    }
}

impl<M: Listed> Store<M> {
    /// Removes keys that have expired: those among the next `visits_max` keys of namespaces with keys that expire (a namespace without any counts as one, and a
    /// few more are looked at where damage is in the way), and those that readers have found expired. Does nothing while another thread sweeps. After an error
    /// the next sweep continues after what could not be read.
    ///
    /// # Errors
    /// A damaged pool; a full one, if a snapshot is open; [`Error::Halted`].
    pub fn sweep(&self, visits_max: usize) -> Result<Swept, Error> {
        self.shared.sweep(visits_max)
    }

    /// Number of keys, since the store was opened, that had already expired when the sweep or a delete removed them, or a write replaced them.
    pub fn expired_count(&self) -> u64 {
        self.shared.sweeper.expired.load(Ordering::Relaxed)
    }
}

impl Sweeper {
    /// A key is about to be visible that expires no earlier than this.
    #[inline]
    pub(crate) fn note_due(&self, earliest_ms: u64) {
        if earliest_ms < self.due_ms.load(Ordering::Relaxed) {
            self.due_ms.fetch_min(earliest_ms, Ordering::Relaxed);
        }
    }

    /// A version with this expiry was replaced or removed.
    #[inline]
    pub(crate) fn note_replaced(&self, expiry_ms: Option<u64>, wall: &Wall) {
        if expiry_ms.is_some_and(|expiry| expiry <= wall.now_ms()) {
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<M: Listed> Shared<M> {
    /// See [`Store::sweep`]. The caller holds no stripe and is not pinned.
    pub(crate) fn sweep(self: &Arc<Self>, visits_max: usize) -> Result<Swept, Error> {
        // One at a time: two would do the same twice.
        self.sweeper.round.try_lock().map_or(Ok(Swept::default()), |mut round| self.sweep_on(&mut round, visits_max))
    }

    /// Whether a sweep may find something: a round is under way, or something has expired.
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.sweeper.round.try_lock().is_none_or(|round| self.may_find(&round))
    }

    fn may_find(&self, round: &[Pass]) -> bool {
        !round.is_empty() || self.sweeper.due_ms.load(Ordering::Relaxed) <= self.wall.now_ms()
    }

    /// [`Shared::sweep`], after waiting for another thread's sweep, again and again until either has removed something, nothing is left to be found, or the
    /// given number of sweeps is used up; returns whether either has.
    pub(crate) fn sweep_for_room(self: &Arc<Self>, visits_max: usize, sweeps: &mut usize) -> bool {
        let before = self.sweeper.expired.load(Ordering::Relaxed);
        let mut round = schedule::lock(&self.sweeper.round);
        while *sweeps > 0 {
            *sweeps -= 1;
            if self.sweeper.expired.load(Ordering::Relaxed) != before {
                return true;
            }
            if !self.may_find(&round) {
                return false;
            }
            match self.sweep_on(&mut round, visits_max) {
                Ok(swept) if swept.removed == 0 => {}
                swept => return swept.is_ok(),
            }
        }
        false
    }

    fn sweep_on(self: &Arc<Self>, round: &mut Vec<Pass>, visits_max: usize) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let namespace = |space| Namespace { shared: self.clone(), space };
        if round.is_empty() {
            *round = self.begin_round();
        }
        // A namespace counts as a step even if it has no keys.
        let mut left = visits_max;
        while left > 0
            && let Some(pass) = round.last_mut()
        {
            let space = pass.space.clone();
            let found = self.find_expired(&space, pass.after.as_deref(), left);
            swept.visited += found.visited;
            left = left.saturating_sub(found.visited.max(1));
            pass.has_found |= found.may_expire;
            pass.found += found.limited;
            pass.earliest_ms = pass.earliest_ms.min(found.earliest_ms);
            pass.after = found.last;
            if pass.after.is_none() {
                // Unless more were counted meanwhile.
                let ends = !pass.has_found && space.expiring.compare_exchange(pass.expiring, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                self.sweeper.note_due(pass.earliest_ms);
                space.uncounted.store(if ends { 0 } else { pass.expiring as i64 - pass.found as i64 }, Ordering::Relaxed);
                round.pop();
            }
            let keys: Vec<&[u8]> = found.expired.iter().map(Vec::as_slice).collect();
            let removed = namespace(space).remove_expired(&keys);
            if !removed.as_ref().is_ok_and(|removed| *removed == keys.len()) {
                // Another sweep is to remove the others.
                self.sweeper.note_due(0);
            }
            swept.removed += removed?;
            found.damage.map_or(Ok(()), Err)?;
        }
        swept.is_round = round.is_empty();
        let touched = self.sweeper.touched.try_lock().map(|mut touched| std::mem::take(&mut *touched)).unwrap_or_default();
        for touched in touched.chunk_by(|(one, _), (other, _)| Arc::ptr_eq(one, other)) {
            // A key was noted each time that it was read.
            let keys: Vec<&[u8]> = touched.iter().map(|(_, key)| key.as_slice()).collect::<BTreeSet<_>>().into_iter().collect();
            swept.removed += namespace(touched[0].0.clone()).remove_expired(&keys)?;
        }
        Ok(swept)
    }

    /// Leaves the key of `link` to the next sweep, if it has expired. The caller is pinned.
    #[cold]
    pub(crate) fn touch(&self, space: &Arc<Space>, key: &[u8], link: u64) {
        // Damage is reported to those who look for it.
        if matches!(self.lifetime(link), Ok(Lifetime::Over))
            && let Some(mut touched) = self.sweeper.touched.try_lock()
            && touched.len() < TOUCHED_MAX
        {
            touched.push((space.clone(), key.to_vec()));
        }
    }

    /// The passes through all namespaces that may have keys that expire, the one with the lowest number last.
    fn begin_round(&self) -> Vec<Pass> {
        // A write counts what expires, then lowers this; so here the order is the other way round.
        self.sweeper.due_ms.swap(u64::MAX, Ordering::SeqCst);
        let pass = |space: &Arc<Space>| {
            let expiring = space.expiring.load(Ordering::Acquire);
            Pass { space: space.clone(), after: None, expiring, has_found: false, found: 0, earliest_ms: u64::MAX }
        };
        let mut round: Vec<_> = self.spaces.read().values().map(pass).filter(|pass| pass.expiring > 0).collect();
        round.sort_unstable_by_key(|pass| Reverse(pass.space.number));
        if !round.is_empty() {
            self.stripes.await_all();
        }
        round
    }

    /// Looks at the next `visits_max` keys after `after`.
    fn find_expired(&self, space: &Space, after: Option<&[u8]>, visits_max: usize) -> Found {
        let _pinned = self.pool.pin();
        let mut found = Found { visited: 0, expired: Vec::new(), may_expire: false, limited: 0, earliest_ms: u64::MAX, last: None, damage: None };
        let index = space.index.load();
        let Some(index) = index.as_deref() else { return found };
        let stepped = self.step(index, after, visits_max, |key, link| {
            found.visited += 1;
            match self.lifetime(link.get()) {
                Ok(Lifetime::Lasting) => {}
                Ok(Lifetime::Limited(expiry_ms)) => {
                    found.may_expire = true;
                    found.limited += 1;
                    found.earliest_ms = found.earliest_ms.min(expiry_ms);
                }
                Ok(Lifetime::Over) => {
                    found.may_expire = true;
                    found.expired.push(key.to_vec());
                }
                Err(error) => found.is_damaged(error, self.wall.now_ms()),
            }
        });
        match stepped {
            Ok(last) => found.last = last,
            Err(error) => found.is_damaged(error, self.wall.now_ms()),
        }
        found
    }

    /// The lifetime of the newest version of a key, or, if that may still be undone, of the one before. The caller is pinned or holds the stripe.
    fn lifetime(&self, link: u64) -> Result<Lifetime, Error> {
        let record = Record::read(&self.pool, link)?;
        let is_committed = matches!(self.age(&record)?, Age::At(_));
        // Most keys do not expire, and a look at the clock takes as long as one at such a key.
        let now_ms = || self.wall.now_ms();
        Ok(match record.expiry_ms() {
            None if is_committed => Lifetime::Lasting,
            Some(expiry) if is_committed && expiry > now_ms() => Lifetime::Limited(expiry),
            // A damaged record is left to verification.
            Some(_) if is_committed && record.is_intact() => Lifetime::Over,
            _ => Lifetime::Limited(now_ms().saturating_add(UNKNOWN_MS)),
        })
    }
}

impl<M: Listed> Namespace<M> {
    /// Removes those of `keys` (all distinct) that have expired even now, in groups; returns how many.
    fn remove_expired(&self, keys: &[&[u8]]) -> Result<usize, Error> {
        keys.chunks(self.group_count_max()).try_fold(0, |removed, keys| Ok(removed + self.remove_group(keys)?))
    }

    fn remove_group(&self, keys: &[&[u8]]) -> Result<usize, Error> {
        match self.remove_together(keys) {
            // Fewer keys may find room, and a damaged one does not hinder the others.
            Err(_) if keys.len() > 1 => {
                let (some, others) = keys.split_at(keys.len() / 2);
                let (some, others) = (self.remove_group(some), self.remove_group(others));
                Ok(some? + others?)
            }
            outcome => outcome,
        }
    }

    fn remove_together(&self, keys: &[&[u8]]) -> Result<usize, Error> {
        let mut shown = Vec::with_capacity(keys.len());
        let way = {
            let (stripes, _) = self.shared.stripes.lock_group(keys.iter().map(|key| (self.space.number, *key, true)));
            let index = self.space.index.load();
            let Some(index) = index.as_deref() else { return Ok(0) };
            let removals: Vec<Update<'_>> = keys.iter().map(|key| (*key, None)).collect();
            let mut due = Vec::with_capacity(removals.len());
            for (removal, link) in removals.iter().zip(self.links_of(index, &removals)?) {
                if let Some(link) = link
                    && self.shared.lifetime(link.get())? == Lifetime::Over
                {
                    due.push(*removal);
                }
            }
            self.write_group(&stripes, &due, None, &mut shown)?
        };
        way.into_iter().for_each(|way| self.tidy(way, shown.len()));
        let removed = shown.len();
        shown.into_iter().try_for_each(|shown| shown.map(drop))?;
        Ok(removed)
    }
}
