//! Shifts of entries in persistent memory that a crash may interrupt: in a line of Isle-Tree, and in a node of FAST-FAIR.
//!
//! Entries ascend from the first slot on. A shift copies them word by word, so a crash can leave two neighbours of which one is a copy. It must be recognizable
//! *which* one, whatever the user's values are. One of the two words of an entry is unique among its neighbours, its identity: for `u64` keys the head, for
//! byte strings the value (the link of the key's own record, or of a child). The stores are ordered so that **of two neighbours with equal identities the right
//! one counts**:
//!
//! | step of | identity = head | identity = value |
//! |---|---|---|
//! | insert, first copy (into a vacant slot), and appending | head, value | head, value |
//! | insert, later copies, and the new entry itself | value, head | head, value |
//! | remove, each copy to the left; also in recovery | head, value | value, head |
//!
//! The right column is the order of both papers, in which equal values of two live entries look like an interrupted shift; the middle column is ours, for
//! values of any kind.

use crate::Key;
use everleaf_pmem::{Medium, Pm, Word};
use std::sync::atomic::Ordering::Release;

pub(crate) const HEAD: usize = 0;
pub(crate) const VALUE: usize = 1;

/// The order of the two stores of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Head,
    Value,
}

impl First {
    /// For a slot from which entries are shifted to the right, or one at their end.
    #[inline(always)]
    pub(crate) const fn to_the_right<K: Key + ?Sized>(is_vacant: bool) -> Self {
        if K::WHOLE && !is_vacant { Self::Value } else { Self::Head }
    }

    /// For a slot whose entry is removed, or has moved to the left.
    #[inline(always)]
    pub(crate) const fn to_the_left<K: Key + ?Sized>() -> Self {
        if K::WHOLE { Self::Head } else { Self::Value }
    }
}

/// Whether two neighbours have the same identity: then the left one is a copy, or the remains of one.
pub(crate) fn are_one<K: Key + ?Sized>(left: &[Word; 2], right: &[Word; 2]) -> bool {
    let identity = if K::WHOLE { HEAD } else { VALUE };
    left[identity].get() == right[identity].get()
}

/// Stores an entry. The caller flushes the line.
#[inline(always)]
#[track_caller]
pub(crate) fn write<M: Medium>(pm: &Pm<M>, slot: &[Word; 2], head: u64, value: u64, first: First) {
    let stores = [(&slot[HEAD], head), (&slot[VALUE], value)];
    for (word, value) in if first == First::Head {
        stores
    } else {
        let [head, value] = stores;
        [value, head]
    } {
        pm.store(word, value, Release);
    }
}
