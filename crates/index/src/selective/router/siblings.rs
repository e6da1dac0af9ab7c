//! Two neighbouring leaves under a locked node of any router.

use super::node::{Node, Separators};
use super::{Fences, Neighbours};
use crate::Key;
use crate::latch::Locked;
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Relaxed;

/// See [`Neighbours`].
pub struct Siblings<'a, K: Key + ?Sized, const FANOUT: usize> {
    router: &'a dyn Join<K>,
    separators: &'a Separators<K>,
    node: &'a Node<FANOUT>,
    lock: Locked<'a>,
    /// Of the first leaf.
    slot: usize,
}

/// What a router does when two leaves have become one.
pub(super) trait Join<K: ?Sized> {
    /// The range of the one begins at `low`. Nothing is locked. `left` is how many entries the node above has.
    fn joined(&self, low: &K, left: usize);
}

impl<'a, K: Key + ?Sized, const FANOUT: usize> Siblings<'a, K, FANOUT> {
    pub(super) fn new(router: &'a dyn Join<K>, separators: &'a Separators<K>, node: &'a Node<FANOUT>, lock: Locked<'a>, slot: usize) -> Self {
        // Joining comes behind a fence.
        node.approach_behind(slot);
        Self { router, separators, node, lock, slot }
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

    fn join(self, leaf: u64) {
        let low = self.separators.low(self.node, self.slot);
        self.node.children[self.slot].store(leaf, Relaxed);
        self.separators.remove_at(self.node, self.slot + 1);
        let left = self.node.shape().count;
        drop(self.lock);
        self.router.joined(low.borrow(), left);
    }

    fn release(self) {
        self.lock.release_unchanged();
    }
}
