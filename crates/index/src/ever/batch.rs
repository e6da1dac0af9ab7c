//! Several writes under one fence.
//!
//! 1. For each key in turn: find its leaf, and begin to append to it, or latch it if the key is there, unless somebody is in the way. Nothing is stored yet: a
//!    locked instruction waits for all write-backs under way, and here are many of those.
//! 2. Store all entries and values, and flush their lines; then one fence for all of them.
//! 3. Publish the fingerprints, and let go.
//!
//! A crash leaves of each what it leaves of a single write. Who holds leaves waits for nobody: where somebody is in the way, or a leaf is full, what has been
//! staged is settled first, and the write is made alone. That includes the batch itself, which keeps the order of equal keys. Keys that are new to the same
//! leaf share one append.

use super::leaf::{Descriptor, Leaf, Place, Slot};
use super::{Ever, When};
use crate::latch::{Appending, Locked, Restart};
use crate::selective::router::{GROUP, Route, Router};
use crate::{Error, Key};
use everleaf_pmem::Medium;
use std::num::NonZeroU64;

/// A write that has a slot, and a leaf that nobody else writes to.
struct Staged<'a, const LINES: usize> {
    leaf: &'a Leaf<LINES>,
    descriptor: &'a Descriptor,
    slot: usize,
    place: Place,
    value: NonZeroU64,
    hold: Hold<'a>,
}

/// By what right a staged write is made.
enum Hold<'a> {
    /// The key is there.
    Lock(#[expect(dead_code, reason = "held")] Locked<'a>),
    /// The key is new.
    Append(#[expect(dead_code, reason = "held")] Appending<'a>),
    /// The key is new, and an earlier write of the batch appends to the same leaf.
    Shared,
}

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// See [`OrderedIndex::upsert_many`](crate::OrderedIndex::upsert_many), for at most [`GROUP`] keys.
    pub(super) fn set_many(&self, pairs: &[(&K, NonZeroU64)], replaced: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let (mut keys, mut routes) = ([K::LOWEST; GROUP], [const { None }; GROUP]);
        keys.iter_mut().zip(pairs).for_each(|(to, (key, _))| *to = key);
        self.approach(&keys[..pairs.len()], &mut routes[..pairs.len()]);
        let mut staged = Vec::with_capacity(pairs.len());
        for ((key, value), route) in pairs.iter().zip(&mut routes) {
            let place = Place::of::<LINES>(key.token());
            match route.take().ok_or(Restart).and_then(|route| self.stage(key, place, *value, &route, &mut staged)) {
                Ok(old) => replaced.push(old),
                Err(Restart) => {
                    self.settle(&mut staged);
                    replaced.push(self.set(key, *value, When::Always, None)?);
                }
            }
        }
        self.settle(&mut staged);
        Ok(())
    }

    /// Step 1 for one key; the value it has. Damage counts as somebody in the way: the write alone reports it.
    fn stage<'a>(
        &'a self,
        key: &K,
        place: Place,
        value: NonZeroU64,
        route: &Route,
        staged: &mut Vec<Staged<'a, LINES>>,
    ) -> Result<Option<NonZeroU64>, Restart> {
        let (leaf, descriptor) = self.leaf(route.leaf)?;
        let mut own = staged.iter().filter(|other| std::ptr::eq(other.descriptor, descriptor)).peekable();
        let (slot, old, hold) = if own.peek().is_some() {
            // Since the first of them nobody else has changed the leaf, and its range stands.
            let (mut taken, mut is_appended) = (0, true);
            for other in own {
                taken |= 1 << other.slot;
                is_appended &= !matches!(other.hold, Hold::Lock(_)) && other.place.token != place.token;
            }
            self.router.validate(route)?;
            let found = descriptor.find(&self.pool, leaf, key, place).map_err(|_| Restart)?;
            let slot = descriptor.room::<LINES>(place, taken).filter(|_| is_appended && found.is_none()).ok_or(Restart)?;
            (slot, None, Hold::Shared)
        } else {
            let version = descriptor.latch.try_read()?;
            self.router.validate(route)?;
            match descriptor.find(&self.pool, leaf, key, place).map_err(|_| Restart)? {
                Some((slot, old)) => (slot, Some(old), Hold::Lock(descriptor.latch.lock_from(version)?)),
                None => {
                    let slot = descriptor.room::<LINES>(place, 0).ok_or(Restart)?;
                    (slot, None, Hold::Append(descriptor.latch.append_from(version)?))
                }
            }
        };
        staged.push(Staged { leaf, descriptor, slot, place, value, hold });
        Ok(old)
    }

    /// Steps 2 and 3.
    fn settle(&self, staged: &mut Vec<Staged<'_, LINES>>) {
        if staged.is_empty() {
            return;
        }
        let mut added = 0;
        for Staged { leaf, slot, place, value, hold, .. } in &*staged {
            match hold {
                Hold::Lock(_) => leaf.set_value(&self.pool, *slot, Some(*value)),
                Hold::Append(_) | Hold::Shared => {
                    leaf.write(&self.pool, *slot, Slot { token: place.token, value: *value });
                    added += 1;
                }
            }
            self.pool.flush(leaf.line(*slot));
        }
        self.pool.fence();
        for Staged { descriptor, slot, place, .. } in &*staged {
            descriptor.set(*slot, place.fingerprint_at(*slot));
        }
        staged.clear();
        self.keys.add(added);
    }
}
