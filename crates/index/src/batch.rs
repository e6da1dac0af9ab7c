//! What batches of all structures have in common.

use crate::selective::router::GROUP;
use everleaf_pmem::{Medium, schedule};

/// Writes of which leaves are held together at most. Others wait for those who hold leaves, readers, too, in some structures.
pub(crate) const STAGED_MAX: usize = 256;

/// Keys that are looked for at once: few where schedules are looked at, whose batches are short, so that some are looked for when leaves are held.
pub(crate) const APPROACHED_MAX: usize = if schedule::IS_BUILT_IN { 2 } else { GROUP };

/// Writes that share a fence: as many as others may well wait for; where they wait for a device anyway, more.
pub(crate) fn at_once<M: Medium>(medium: &M) -> usize {
    if medium.awaits_device() { STAGED_MAX } else { GROUP }
}

/// Who fences before the writes of a batch are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fencing {
    /// The batch, before others see them.
    Own,
    /// The caller, behind it: see [`OrderedIndex::apply_unfenced`](crate::OrderedIndex::apply_unfenced).
    Callers,
}
