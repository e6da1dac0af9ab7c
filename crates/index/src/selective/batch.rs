//! Several writes under few fences.
//!
//! 1. For each write in turn: find the leaf of its key, and latch it, unless the write before did. Existing values are set, and new entries are stored where
//!    nobody looks ([`LeafLayout::stage`]); all of it is flushed. Fence. *A crash: each value is the old one or the new one; all else of the leaf is as
//!    before.*
//! 2. If the layout wants that: what is not valid yet ([`LeafLayout::arrange`]); fence. *A crash: recovery makes it.*
//! 3. For each leaf, the one store, or the few, by which new entries appear and others are removed ([`LeafLayout::publish`]); fence, unless the caller does. *A
//!    crash: each write is made or not.*
//! 4. Release all leaves. Merge those that have become sparse.
//!
//! Steps 1 and 2 have no fence if everything was done in step 1: values that are set in place, and all changes of Isle-Tree.
//!
//! A thread that holds leaves waits for nobody who may wait for a leaf. If somebody is in the way, or a leaf has no room, what has been staged is settled
//! first, by steps 2 to 4; then the write begins the next stage, or is made alone. The batch may be in its own way, if keys do not ascend within a leaf: so a
//! key that comes again finds what was written before. Holders of the router's nodes wait for no leaf.
//!
//! # Without the last fence
//!
//! A caller who fences himself ([`OrderedIndex::apply_unfenced`](crate::OrderedIndex::apply_unfenced)) finds leaves unlatched whose last stores are flushed and
//! not durable. New entries are durable where they lie; a crash can only take back that they count. Each invariant of a layout holds nonetheless:
//!
//! - *What others store to the leaf* comes later, in the same line; to another line they may store what a crash keeps without the stores before. They fill only
//!   slots that are free in both states: the writes that free a slot are removals, and a stage with a removal fences before it releases. In Isle-Tree, whose
//!   lines are independent of each other and counted anew in recovery, any prefix of the stores to a line is a state of it.
//! - *A split, a merge, a relocation* copies what it sees to a leaf that is durable before it replaces this one, or a part of it. What the caller has flushed
//!   here is then no longer needed. What stays here, and will be switched by another line or by a log, is made durable before that counts: entries near
//!   LB+-Tree's headers (`leaf/lb.rs`), fingerprints of FPTree's (`leaf/fp.rs`).
//! - *What is replaced* may be back after a crash before the fence: what it links must be in place until then, and so must what is linked instead.

use super::leaf::{Change, LeafLayout, Written};
use super::router::{GROUP, Restart, Router, Target, Way};
use super::structure::{Structure, merge_sparse};
use super::{Held, Selective, When};
use crate::batch::{APPROACHED_MAX, Fencing};
use crate::{Error, Key, Write};
use everleaf_pmem::Medium;
use std::num::NonZeroU64;

/// A leaf that is held, and its changes that have been staged.
struct Group<'a, K: Key + ?Sized, L: LeafLayout<K>> {
    held: Held<'a, L>,
    plan: Option<L::Plan>,
    /// The key of the last change.
    last: &'a K,
    added: usize,
    removed: usize,
}

/// Writes that have been staged: leaves in the order in which they were latched.
type Stage<'a, K, L> = Vec<Group<'a, K, L>>;

/// Where a key is in its leaf, and its value, if it is there.
type Found = Option<(usize, NonZeroU64)>;

fn old(found: Found) -> Option<NonZeroU64> {
    found.map(|(_, old)| old)
}

/// What a write changes, if anything.
fn change(found: Found, write: Write) -> Option<Change> {
    match (found, write.sets()) {
        (None, Some((value, When::Absent | When::Always))) => Some(Change::Insert(value)),
        (Some(_), Some((value, When::Present | When::Always))) => Some(Change::Update(value)),
        (Some(_), None) => Some(Change::Remove),
        _ => None,
    }
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// See [`OrderedIndex::apply`](crate::OrderedIndex::apply), for at most [`STAGED_MAX`](crate::batch::STAGED_MAX) writes.
    pub(super) fn write_many(&self, writes: &[(&K, Write)], fencing: Fencing, returned: &mut Vec<Option<NonZeroU64>>) -> Result<(), Error> {
        let mut staged = Stage::new();
        for writes in writes.chunks(APPROACHED_MAX) {
            let mut keys = [K::LOWEST; GROUP];
            keys.iter_mut().zip(writes).for_each(|(to, (key, _))| *to = key);
            for ((key, write), way) in writes.iter().zip(self.approach(&keys[..writes.len()])) {
                // A way may be out of date because of a split, and then the batch may be in its own way.
                let mut outcome = way.ok_or(Restart).and_then(|way| self.stage(key, *write, way, &mut staged));
                for is_in_the_way in [false, true] {
                    if outcome.is_err() {
                        if is_in_the_way {
                            self.settle(&mut staged, fencing);
                        }
                        outcome = self.router.way(Target::At(*key)).and_then(|way| self.stage(key, *write, way, &mut staged));
                    }
                }
                returned.push(match (outcome, write.sets()) {
                    (Ok(old), _) => old,
                    (Err(Restart), Some((value, when))) => self.set(key, value, when)?,
                    (Err(Restart), None) => self.take(key)?,
                });
            }
        }
        self.settle(&mut staged, fencing);
        Ok(())
    }

    /// Step 1 for one write. Returns the value that the key has. Damage counts as somebody in the way: the write made alone reports it.
    fn stage<'a>(&'a self, key: &'a K, write: Write, way: Way<'a>, staged: &mut Stage<'a, K, L>) -> Result<Option<NonZeroU64>, Restart> {
        if let Some(group) = staged.last_mut().filter(|group| group.held.off == way.leaf) {
            way.validate()?;
            if *group.last >= *key {
                return Err(Restart);
            }
            let found = group.held.leaf.find(&self.pool, key).map_err(|_| Restart)?;
            if let Some(change) = change(found, write) {
                self.stage_within(key, found, change, group)?;
            }
            return Ok(old(found));
        }
        let (leaf, latch) = self.leaf(way.leaf)?;
        let version = latch.try_read()?;
        let found = leaf.find(&self.pool, key).map_err(|_| Restart)?;
        way.validate()?;
        let Some(change) = change(found, write) else {
            latch.validate(version)?;
            return Ok(old(found));
        };
        let held = Held { off: way.leaf, leaf, lock: latch.lock_from(version)? };
        let mut group = Group { held, plan: None, last: key, added: 0, removed: 0 };
        let staging = self.stage_within(key, found, change, &mut group);
        if staging.is_ok() {
            staged.push(group);
        } else {
            group.held.lock.release_unchanged();
        }
        staging.map(|()| old(found))
    }

    /// Step 1 for one change of a held leaf, in which the batch has not written this key yet.
    fn stage_within<'a>(&self, key: &'a K, found: Found, change: Change, group: &mut Group<'a, K, L>) -> Result<(), Restart> {
        let slot = found.map_or(0, |(slot, _)| slot);
        let Ok(Written::Done) = group.held.leaf.stage(&self.pool, &mut group.plan, key, slot, change) else { return Err(Restart) };
        group.added += usize::from(matches!(change, Change::Insert(_)));
        group.removed += usize::from(matches!(change, Change::Remove));
        group.last = key;
        Ok(())
    }

    /// Steps 2 to 4.
    fn settle(&self, staged: &mut Stage<'_, K, L>, fencing: Fencing) {
        let planned = || staged.iter().filter_map(|group| Some((group.held.leaf, group.plan.as_ref()?)));
        if planned().next().is_some() {
            self.pool.fence();
            if L::ARRANGES {
                planned().for_each(|(leaf, plan)| leaf.arrange(&self.pool, plan));
                self.pool.fence();
            }
            planned().for_each(|(leaf, plan)| leaf.publish(&self.pool, plan));
        }
        if !staged.is_empty() && (fencing == Fencing::Own || staged.iter().any(|group| group.removed > 0)) {
            self.pool.fence();
        }
        let mut sparse = Vec::new();
        for Group { held, last, added, removed, .. } in staged.drain(..) {
            self.keys.add(added as i64 - removed as i64);
            let left = if removed > 0 { held.leaf.count() } else { 0 };
            if (left..left + removed).any(|left| L::Structure::is_sparse(left, L::CAPACITY)) {
                sparse.push((last, left));
            }
            drop(held.lock);
        }
        for (key, left) in sparse {
            merge_sparse(left, |side| L::Structure::merge(self, key, side));
            self.compact_if_sparse();
        }
    }
}
