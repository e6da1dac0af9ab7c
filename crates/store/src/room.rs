//! Room in a full pool: what is tried before a write is refused.
//!
//! 1. Garbage that no snapshot wants is given back (`garbage.rs`).
//! 2. Expired keys are swept (`sweep.rs`).
//! 3. *Gaps are filled.* Deletes leave free blocks between blocks in use, which serve records of the same size class only. A leaf, or a record of another
//!    class, needs whole slabs. So the allocator chooses a few slabs that the blocks in use can do without, those with the least in use
//!    ([`Pool::evacuate_few`](everleaf_pmem::Pool::evacuate_few)). Of each block in them, its own bytes tell whether it may be a record, and of which key. If
//!    the index of a namespace links it under that key, it is copied elsewhere as a compaction does (`shrink.rs`, step 1). Slabs that only had such records
//!    become free.
//! 4. *Leaves are gathered.* Where no such slabs are left, indexes move leaves out of blocks that they can do without, and give these back, as in a compaction.
//!
//! Step 3 is done in passes, between which the write is attempted again. A pass looks at a few numbers of each slab, and moves what a few slabs hold; it needs
//! no walk through an index, since records have their keys. Therefore it does not move leaves, nor versions that only snapshots see. A slab in which such
//! blocks stay is not chosen again before something else there is freed. So in a pool that cannot become denser, a refused write finds nothing to move. Step 4
//! walks through the leaves of an index, if it can do without some of its blocks.
//!
//! One thread at a time fills gaps; others that meet the full pool meanwhile wait for the end of the pass, and retry. It moves nothing while the store is
//! compacted or verified.

use crate::Error;
use crate::garbage::STEPS_PER_TURN;
use crate::shrink::{ENTRIES_AT_ONCE, Shrunk};
use crate::store::{Shared, Space};
use crate::stripes;
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::{Off, Word, schedule};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of collection, at first.
const STEPS_FOR_ROOM: usize = if schedule::IS_BUILT_IN { 2 } else { 1024 };
/// Sweeps for a write that a full pool refuses: through half a million keys. A write that needs more room than they make is refused, and the next one
/// continues after them.
const SWEEPS_FOR_ROOM: usize = 512;
/// How often such a write is retried after sweeps that have removed something.
const TRIES_AFTER_SWEEPS: usize = 16;
/// Passes that fill gaps for such a write: through a few slabs each, so through most of a small pool, and a sixty-fourth of a large one.
const PASSES_FOR_ROOM: usize = 64;
/// How often leaves are gathered for such a write.
const GATHERS_FOR_ROOM: usize = 8;
/// Leaves that are moved each time, about.
const LEAVES_PER_GATHER: u64 = 256;
/// How often a pass looks whether readers have left the blocks that it has retired. A reader that stays longer leaves the slabs to a later pass.
const LOOKS_PER_PASS: usize = 64;

/// Who fills gaps.
#[derive(Default)]
pub(crate) struct Gaps {
    /// Held for a pass: before [`Shared::compacting`], of which a pass only takes what is free.
    filling: Mutex<()>,
    /// Number of passes and gatherings.
    passes: AtomicU64,
}

impl<M: Listed> Shared<M> {
    /// Retries an operation that a full pool refuses. Garbage makes room, whichever thread gives it back, and a delete that kept versions may no longer need
    /// to. Each attempt collects twice as much as the one before, starting small so that a small write does not pay for all garbage. When no garbage is left,
    /// expired keys are swept until nothing is due, in at most [`SWEEPS_FOR_ROOM`] sweeps; of these, [`TRIES_AFTER_SWEEPS`] may find some. Then gaps are
    /// filled, in at most [`PASSES_FOR_ROOM`] passes, and leaves gathered, at most [`GATHERS_FOR_ROOM`] times. The next write continues behind that. The caller
    /// is not pinned. If it holds a stripe, which it must not, no room is made, as that would take stripes, too.
    pub(crate) fn with_room<T>(self: &Arc<Self>, mut act: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let (mut steps, mut sweeps, mut tries, mut is_more) = (STEPS_FOR_ROOM, SWEEPS_FOR_ROOM, 0, true);
        let (mut passes, mut gathers) = (PASSES_FOR_ROOM, GATHERS_FOR_ROOM);
        loop {
            let outcome = act();
            let Some(wanted) = outcome.as_ref().err().and_then(Error::wanted).filter(|_| !stripes::are_held()) else { return outcome };
            if is_more {
                let turn = self.make_room(steps);
                if turn.steps >= steps {
                    // Listing makes no room.
                    steps = if turn.listed < steps { steps.saturating_mul(2) } else { steps };
                    continue;
                }
                is_more = tries < TRIES_AFTER_SWEEPS && self.sweep_for_room(STEPS_PER_TURN, &mut sweeps);
                tries += 1;
            } else if passes > 0 && self.in_turn(|| self.fill_gaps(wanted)) {
                passes -= 1;
            } else if gathers > 0 && self.in_turn(|| self.gather_leaves()) {
                gathers -= 1;
            } else {
                return outcome;
            }
        }
    }

    /// Runs `act`, which moves what is in the pool, while no other thread does, and returns what it does: whether another attempt is worth it; or `true`, if
    /// this thread has waited for another one. The caller holds no stripe and is not pinned.
    fn in_turn(&self, act: impl FnOnce() -> bool) -> bool {
        let Gaps { filling, passes } = &self.gaps;
        let before = passes.load(Ordering::Relaxed);
        let _filling = schedule::lock(filling);
        if passes.load(Ordering::Relaxed) != before {
            return true;
        }
        let Some(_compacting) = self.compacting.try_lock() else { return false };
        let is_worth_it = act();
        passes.fetch_add(1, Ordering::Relaxed);
        is_worth_it
    }

    /// Moves records from a few slabs into gaps elsewhere, for a block of `wanted` bytes; returns whether slabs became free, or, if none of those chosen could
    /// be emptied, others may be. Damage is no obstacle: what is damaged stays, and verification reports it.
    fn fill_gaps(&self, wanted: usize) -> bool {
        let is_worth_it = self.empty_few(wanted);
        // An error is one that the caller's next attempt meets, too.
        let _ = self.with_any_stripe(|| self.pool.settle());
        is_worth_it
    }

    /// Lets indexes give back blocks that they can do without, for which they move leaves; returns whether they moved any, or there is more room.
    fn gather_leaves(&self) -> bool {
        let (before, mut shrunk) = (self.pool.used(), Shrunk::default());
        // What it meets besides, the caller's next attempt meets, too.
        let _ = self.evacuate(false, &mut shrunk, &mut |shrunk| match shrunk.leaves {
            LEAVES_PER_GATHER.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        // As in a compaction: writers may be on their way to a leaf that has moved.
        self.stripes.await_all();
        self.with_any_stripe(|| self.pool.settle()).is_ok_and(|()| shrunk.leaves > 0 || self.pool.used() < before)
    }

    /// The same, but leaves an evacuation to be settled.
    fn empty_few(&self, wanted: usize) -> bool {
        let Ok(mut pieces) = self.with_any_stripe(|| self.pool.evacuate_few(wanted)) else { return false };
        if pieces.is_empty() {
            return false;
        }
        let mut spaces: Vec<Arc<Space>> = self.spaces.read().values().cloned().collect();
        pieces.retain(|piece| {
            let mut is_movable = true;
            for block in piece.iter().filter(|block| !self.is_movable(&mut spaces, **block)) {
                self.pool.keep(*block);
                is_movable = false;
            }
            is_movable
        });
        // Where one has no room, the next has none, either.
        let _ = pieces.iter().try_for_each(|piece| self.move_records(&mut spaces, piece));
        let has_left = |piece: &Vec<Off<Word>>| !piece.iter().any(|block| self.pool.is_leaving(*block));
        for _ in 0..LOOKS_PER_PASS {
            if self.with_any_stripe(|| self.pool.collect()).is_err() || pieces.iter().all(has_left) {
                break;
            }
            schedule::rest();
        }
        pieces.is_empty() || pieces.iter().any(has_left)
    }

    /// Moves the records in these blocks.
    fn move_records(&self, spaces: &mut [Arc<Space>], piece: &[Off<Word>]) -> Result<(), Error> {
        for blocks in piece.chunks(ENTRIES_AT_ONCE) {
            let mut found: BTreeMap<u32, (Arc<Space>, Vec<Vec<u8>>)> = BTreeMap::new();
            // Some may have been replaced meanwhile.
            for (space, key) in blocks.iter().filter_map(|block| self.find_key(spaces, *block)) {
                found.entry(space.number).or_insert_with(|| (space, Vec::new())).1.push(key);
            }
            for (space, keys) in found.values() {
                let mut rest = &keys[..];
                while !rest.is_empty() {
                    rest = self.relocate_records(space, rest, &mut 0)?;
                }
            }
        }
        Ok(())
    }

    /// Whether an index links the record in this block, and it is intact.
    fn is_movable(&self, spaces: &mut [Arc<Space>], block: Off<Word>) -> bool {
        let _pinned = self.pool.pin();
        self.find_key(spaces, block).is_some() && Record::read(&self.pool, block.link()).is_ok_and(|record| record.is_intact())
    }

    /// The namespace and the key of the record in this block, if an index links it. Looks first where the one before was found.
    fn find_key(&self, spaces: &mut [Arc<Space>], block: Off<Word>) -> Option<(Arc<Space>, Vec<u8>)> {
        let _pinned = self.pool.pin();
        let record = Record::read(&self.pool, block.link()).ok()?;
        let mut key = Vec::new();
        let sum = record.copy_key_summed(&mut key);
        // The block may hold a leaf, or be free: invariant 3 of `garbage.rs`.
        if !record.matches_key(sum) || record.is_tombstone() {
            return None;
        }
        let at = spaces.iter().position(|space| {
            let index = space.index.load();
            index.as_ref().is_some_and(|index| index.tree.get(&key).is_ok_and(|link| link.is_some_and(|link| link.get() == block.link())))
        })?;
        spaces.swap(0, at);
        Some((spaces[0].clone(), key))
    }
}
