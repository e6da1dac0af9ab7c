//! How the tree of nodes changes: nodes are split on the way down, and merged when they become sparse.

use super::super::node::Node;
use super::{Olc, begin};
use crate::Key;
use crate::latch::{Locked, Restart};
use crate::selective::router::Target;
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Handles, schedule};
use std::borrow::Borrow;
use std::sync::atomic::{
    Ordering::{Relaxed, Release},
    fence,
};

impl<K: Key + ?Sized, const FANOUT: usize> Olc<K, FANOUT> {
    /// A dead node. The caller fills it before it begins to live.
    pub(super) fn take(&self) -> (u32, &Node<FANOUT>) {
        let number = {
            let mut numbers = self.free.numbers.lock();
            numbers.pop().unwrap_or_else(|| {
                let next = self.free.count.load(Relaxed);
                self.free.count.store(next + 1, Relaxed);
                Handles::<Node<FANOUT>, 4>::handle(next as usize).expect("a router of less than 300 GiB")
            })
        };
        // A thread that sees what is stored from here on also sees that the node's former life has ended.
        fence(Release);
        (number, self.nodes.get_or_make(number))
    }

    pub(super) fn give_back(&self, number: u32, lock: Locked<'_>) {
        self.separators.clear(self.node(number));
        lock.release_obsolete();
        schedule::drain();
        self.free.numbers.lock().push(number);
    }

    /// Splits the full node `number`, under `parent` (a node that is not full, and the slot) or under a new root.
    fn split(&self, number: u32, version: u64, parent: Option<(&Node<FANOUT>, u64, usize)>) -> Result<(), Restart> {
        let node = self.node(number);
        // The node first: a thread that merges leaves under it holds it for some fences, and no other should wait for its parent meanwhile.
        let lock = node.latch().lock_from(version)?;
        let above = match parent {
            Some((parent, version, _)) => parent.latch().lock_from(version),
            // The root changes only under the lock of the node that is the root.
            None if self.root.load(Relaxed) == number => self.root_latch.try_lock(),
            None => Err(Restart),
        };
        let Ok(_above) = above else {
            lock.release_unchanged();
            return Err(Restart);
        };
        let (shape, entries) = (node.shape(), self.separators.entries(node));
        let high = self.separators.high(node, shape);
        let (left, right) = entries.split_at(entries.len() / 2);
        let separator: &K = right[0].0.borrow();
        let (right_number, right_node) = self.take();
        self.separators.fill(right_node, shape.level, right, high.as_ref().map(Borrow::borrow));
        begin(right_node);
        self.separators.fill(node, shape.level, left, Some(separator));
        match parent {
            Some((parent, _, slot)) => self.separators.insert_behind(parent, slot, separator, u64::from(right_number)),
            None => {
                let (root_number, root) = self.take();
                let entries = [(left[0].0.clone(), u64::from(number)), (right[0].0.clone(), u64::from(right_number))];
                self.separators.fill(root, shape.level + 1, &entries, None);
                begin(root);
                self.root.store(root_number, Relaxed);
            }
        }
        Ok(())
    }

    /// One attempt of [`Router::split`]: locks the node above the leaf, splitting full nodes on the way.
    pub(super) fn try_insert(&self, begin: &mut dyn FnMut(), old: u64, left: u64, low: &K, separator: &K, right: u64) -> Result<(), Restart> {
        let mut insert = |node: &Node<FANOUT>, version, slot: usize| {
            let _lock = node.latch().lock_from(version)?;
            begin();
            assert_eq!(node.children[slot].load(Relaxed), old, "the leaf is latched, so its entry stands");
            node.children[slot].store(left, Relaxed);
            self.separators.insert_behind(node, slot, separator, right);
            if K::WHOLE {
                self.shortcuts.reach(separator.head(0));
            }
            Ok(())
        };
        if K::WHOLE
            && let Some(way) = self.cut_short(Wide::get(), low)
            && let node = self.node(way.node)
            && node.glance().count < FANOUT
        {
            return insert(node, way.version, way.slot);
        }
        let mut parent = None;
        self.descend(Target::At(low), |step| {
            if step.shape.count == FANOUT {
                self.split(step.number, step.version, parent)?;
                return Err(Restart);
            }
            if step.shape.level == 0 {
                return insert(step.node, step.version, step.slot);
            }
            parent = Some((self.node(step.number), step.version, step.slot));
            Ok(())
        })
    }

    /// Merges sparse nodes on the path to `key`. It may give up: the thread that is in the way, or a later merge, will do so.
    pub(super) fn tidy(&self, key: &K) {
        while matches!(self.try_tidy(key), Ok(true)) {}
    }

    /// Merges one sparse node on the path to `key` with a neighbour, or removes a root with one child. Returns whether there was one.
    fn try_tidy(&self, key: &K) -> Result<bool, Restart> {
        let mut parent: Option<(&Node<FANOUT>, u64, usize, usize)> = None;
        let mut changed = false;
        let walked = self.descend(Target::At(key), |step| {
            match parent {
                None if step.shape.level > 0 && step.shape.count == 1 => {
                    changed = self.drop_root(step.number, step.version)?;
                }
                Some((above, version, slot, count)) if step.shape.count <= Self::SPARSE && count > 1 => {
                    // The count need not be right: the merge looks again, under locks.
                    let pairs = [(slot + 1 < count).then_some(slot), slot.checked_sub(1)];
                    for left in pairs.into_iter().flatten() {
                        changed = changed || self.merge_under(above, version, left)?;
                    }
                }
                _ => {}
            }
            // If the node has changed, what was read here is stale: the caller starts again.
            if changed {
                return Err(Restart);
            }
            parent = Some((self.node(step.number), step.version, step.slot, step.shape.count));
            Ok(())
        });
        if changed { Ok(true) } else { walked.map(|()| false) }
    }

    fn drop_root(&self, number: u32, version: u64) -> Result<bool, Restart> {
        let node = self.node(number);
        let lock = node.latch().lock_from(version)?;
        // Only the holder of the root's lock may replace the root; the latch tells readers, and keeps out a thread that splits the root.
        let is_root = self.root.load(Relaxed) == number;
        let Some(_above) = is_root.then(|| self.root_latch.try_lock()).and_then(Result::ok) else {
            lock.release_unchanged();
            return Err(Restart);
        };
        self.root.store(node.children[0].load(Relaxed) as u32, Relaxed);
        self.give_back(number, lock);
        Ok(true)
    }

    /// Merges the children at `slot` and `slot + 1` of `parent`, if they leave an eighth of a node free.
    fn merge_under(&self, parent: &Node<FANOUT>, version: u64, slot: usize) -> Result<bool, Restart> {
        let above = parent.latch().lock_from(version)?;
        let numbers = [slot, slot + 1].map(|slot| parent.children[slot].load(Relaxed) as u32);
        let [left, right] = numbers.map(|number| self.node(number));
        let locks = left.latch().try_lock().and_then(|left_lock| match right.latch().try_lock() {
            Ok(right_lock) => Ok((left_lock, right_lock)),
            Err(Restart) => {
                left_lock.release_unchanged();
                Err(Restart)
            }
        });
        let Ok((left_lock, right_lock)) = locks else {
            above.release_unchanged();
            return Err(Restart);
        };
        let (mut entries, shape, right_shape) = (self.separators.entries(left), left.shape(), right.shape());
        if entries.len() + right_shape.count > (FANOUT * 7 / 8).max(2) {
            right_lock.release_unchanged();
            left_lock.release_unchanged();
            above.release_unchanged();
            return Ok(false);
        }
        entries.extend(self.separators.entries(right));
        let high = self.separators.high(right, right_shape);
        self.separators.fill(left, shape.level, &entries, high.as_ref().map(Borrow::borrow));
        self.give_back(numbers[1], right_lock);
        self.separators.remove_at(parent, slot + 1);
        Ok(true)
    }
}
