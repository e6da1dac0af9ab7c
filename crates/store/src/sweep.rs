//! The removal of keys that have expired.
//!
//! A key that has expired is absent for whoever reads it, from that moment on (`version.rs`); a write replaces it like any other. What nobody touches is
//! removed by a sweep, which goes through the keys of all namespaces that have held a key that expires, in steps, and begins anew when it has come to the end.
//! It remembers one key, so it costs no memory for each key that expires.
//!
//! Removing one is a delete by nobody, under the key's stripe, of what has expired even then. *Crash: as for a delete.*

use crate::namespace::{Namespace, Way};
use crate::store::{Shared, Space};
use crate::version::Age;
use crate::{Direction, Error, Store};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use parking_lot::Mutex;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the sweep of an open store has come to: the number of the namespace, and the last key.
#[derive(Default)]
pub(crate) struct Sweeper(Mutex<(u32, Option<Vec<u8>>)>);

/// What [`Store::sweep`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of keys that were looked at.
    pub visited: usize,
    /// Number of those that had expired, and were removed.
    pub removed: usize,
    /// Whether it has come to the end of all keys: the next sweep begins anew.
    pub is_round: bool,
}

/// What was found in a part of a namespace.
#[derive(Default)]
struct Found {
    visited: usize,
    /// Keys that have expired.
    expired: Vec<Vec<u8>>,
    /// The last key, unless there are no more.
    last: Option<Vec<u8>>,
}

impl<M: Listed> Store<M> {
    /// Looks at the next `visits_max` keys, of namespaces with keys that expire, and removes those that have expired.
    ///
    /// # Errors
    /// A damaged pool; a full one, if a snapshot is open; [`Error::Halted`].
    pub fn sweep(&self, visits_max: usize) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        // One at a time: two would do the same twice.
        let Some(mut position) = self.shared.sweeper.0.try_lock() else {
            return Ok(swept);
        };
        while swept.visited < visits_max {
            let (number, after) = std::mem::take(&mut *position);
            let Some(space) = self.shared.next_to_sweep(number) else {
                swept.is_round = true;
                break;
            };
            let after = after.filter(|_| space.number == number);
            let found = self.shared.find_expired(&space, after, visits_max - swept.visited)?;
            swept.visited += found.visited;
            *position = match found.last {
                Some(last) => (space.number, Some(last)),
                None => (space.number + 1, None),
            };
            let namespace = Namespace { shared: self.shared.clone(), space };
            for key in found.expired {
                swept.removed += usize::from(namespace.remove_expired(&key)?);
            }
        }
        Ok(swept)
    }
}

impl<M: Listed> Shared<M> {
    /// The first namespace from that number on that may have keys that expire.
    fn next_to_sweep(&self, number: u32) -> Option<Arc<Space>> {
        let spaces = self.spaces.read();
        let candidates = spaces.values().filter(|space| space.number >= number && space.may_expire.load(Ordering::Relaxed));
        candidates.min_by_key(|space| space.number).cloned()
    }

    /// Looks at the next `visits_max` keys behind `after`.
    fn find_expired(&self, space: &Space, after: Option<Vec<u8>>, visits_max: usize) -> Result<Found, Error> {
        let _pinned = self.pool.pin();
        let mut found = Found::default();
        let index = space.index.load();
        let Some(index) = index.as_deref() else { return Ok(found) };
        let mut outcome = Ok(());
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        index.tree.scan(from, Direction::Forward, &mut |key, link| {
            found.visited += 1;
            match self.has_expired(link.get()) {
                Ok(true) => found.expired.push(key.to_vec()),
                Ok(false) => {}
                Err(error) => outcome = Err(error),
            }
            let is_full = found.visited == visits_max;
            if is_full {
                found.last = Some(key.to_vec());
            }
            if is_full || outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        outcome.map(|()| found)
    }

    /// Whether the newest version of a key is committed, and has expired. The caller is pinned or holds the stripe.
    fn has_expired(&self, link: u64) -> Result<bool, Error> {
        let record = Record::read(&self.pool, link)?;
        match record.expiry_ms() {
            // A damaged one is left to whoever looks for damage.
            Some(expiry) if expiry <= self.wall.now_ms() => Ok(record.is_intact() && matches!(self.age(&record)?, Age::At(_))),
            _ => Ok(false),
        }
    }
}

impl<M: Listed> Namespace<M> {
    /// Removes `key` if it has expired even now; whether it had.
    fn remove_expired(&self, key: &[u8]) -> Result<bool, Error> {
        self.with_stripe(key, |stripe| {
            let index = self.space.index.load();
            let link = index.as_deref().map_or(Ok(None), |index| index.tree.get(key))?.map_or(0, NonZeroU64::get);
            match link != 0 && self.shared.has_expired(link)? {
                true => Ok((true, self.delete_locked(stripe, key)?.1)),
                false => Ok((false, Way::Plain)),
            }
        })
    }
}
