//! What batches have in common in all structures.

use crate::selective::router::GROUP;
use everleaf_pmem::{Medium, schedule};

/// The most writes whose leaves are held together. Other threads wait for the holders of leaves; in some structures readers do, too.
pub(crate) const STAGED_MAX: usize = 256;

/// Keys that are searched at once. Few in builds that run schedules, whose batches are short, so that some are searched while leaves are held.
pub(crate) const APPROACHED_MAX: usize = if schedule::IS_BUILT_IN { 2 } else { GROUP };

/// Number of writes that share a fence: as many as other threads may well wait for; more if they wait for a device anyway.
pub(crate) fn at_once<M: Medium>(medium: &M) -> usize {
    if medium.awaits_device() { STAGED_MAX } else { GROUP }
}

/// Who fences before the writes of a batch are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fencing {
    /// The batch, before other threads see them.
    Own,
    /// The caller, behind it: see [`OrderedIndex::apply_unfenced`](crate::OrderedIndex::apply_unfenced).
    Callers,
}
