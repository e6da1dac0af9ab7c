//! Two neighbouring leaves under a node of any router to which nobody else writes.

use super::node::{Node, Separators};
use super::{Fences, Neighbours};
use crate::latch::{Appending, Locked};
use crate::{Direction, Key};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Relaxed;

/// See [`Neighbours`].
pub struct Siblings<'a, K: Key + ?Sized, const FANOUT: usize> {
    router: &'a dyn Join<K>,
    separators: &'a Separators<K>,
    node: &'a Node<FANOUT>,
    hold: Hold<'a>,
    /// The slot of the first leaf.
    slot: usize,
}

/// What keeps others from writing to a node.
pub(super) enum Hold<'a> {
    /// Readers wait.
    Locked(Locked<'a>),
    /// Readers wait only when the leaves join: what comes before takes fences.
    Appending(Appending<'a>),
}

impl<'a> Hold<'a> {
    fn lock(self) -> Locked<'a> {
        match self {
            Self::Locked(lock) => lock,
            Self::Appending(appending) => appending.lock(),
        }
    }

    pub(super) fn release_unchanged(self) {
        match self {
            Self::Locked(lock) => lock.release_unchanged(),
            Self::Appending(appending) => appending.release_unchanged(),
        }
    }
}

/// What a router does when two leaves have become one.
pub(super) trait Join<K: ?Sized> {
    /// The range of the joined leaf begins at `low`. Neither the node nor the leaves are held. `left` is how many entries the node above has.
    fn joined(&self, low: &K, left: usize);
}

/// The first of two slots, of `count`: this one and that on one side of it, if there is one.
pub(super) fn first_of_two(slot: usize, side: Direction, count: usize) -> Option<usize> {
    match side {
        Direction::Forward => Some(slot).filter(|slot| slot + 1 < count),
        Direction::Reverse => slot.checked_sub(1),
    }
}

impl<'a, K: Key + ?Sized, const FANOUT: usize> Siblings<'a, K, FANOUT> {
    /// The leaves of a slot and of the one behind it.
    pub(super) fn new(router: &'a dyn Join<K>, separators: &'a Separators<K>, node: &'a Node<FANOUT>, hold: Hold<'a>, slot: usize) -> Self {
        // The join comes behind a fence.
        node.approach_behind(slot);
        Self { router, separators, node, hold, slot }
    }
}

impl<K: Key + ?Sized, const FANOUT: usize> Neighbours<K> for Siblings<'_, K, FANOUT> {
    fn leaves(&self) -> [u64; 2] {
        [self.slot, self.slot + 1].map(|slot| self.node.children[slot].load(Relaxed))
    }

    fn before(&self) -> Option<u64> {
        Some(self.node.children[self.slot.checked_sub(1)?].load(Relaxed))
    }

    fn fences(&self) -> [Fences<K>; 2] {
        let shape = self.node.shape();
        [self.slot, self.slot + 1].map(|slot| self.separators.fences_at(self.node, shape, slot))
    }

    fn join(self, leaf: u64, release: impl FnOnce()) {
        let lock = self.hold.lock();
        let low = self.separators.low(self.node, self.slot);
        self.node.children[self.slot].store(leaf, Relaxed);
        self.separators.remove_at(self.node, self.slot + 1);
        let left = self.node.shape().count;
        drop(lock);
        release();
        self.router.joined(low.borrow(), left);
    }

    fn release(self) {
        self.hold.release_unchanged();
    }
}
