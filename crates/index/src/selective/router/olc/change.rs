//! How the nodes of the router change: filled, split on the way down, merged when they get sparse. Every function that changes a node that others can reach
//! holds its lock.

use super::{Entry, Node, Olc, Shape};
use crate::Key;
use crate::latch::{Locked, Restart};
use crate::selective::router::{self, Fences, Target};
use everleaf_pmem::schedule;
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Relaxed;

/// By how many bytes heads must reach further to be worth the comparison that an exposed node takes.
const EXPOSED_GAIN: usize = 4;

impl<K: Key + ?Sized, const FANOUT: usize> Olc<K, FANOUT> {
    /// A node nobody can reach.
    pub(super) fn take(&self) -> (u32, &Node<FANOUT>) {
        let number = {
            let mut free = self.free.lock();
            free.numbers.pop().unwrap_or_else(|| {
                free.next += 1;
                free.next - 1
            })
        };
        let node = self.nodes.get_or_make(number as usize);
        assert!(node.latch.revive(), "a number serves one node at a time");
        (number, node)
    }

    fn give_back(&self, number: u32, lock: Locked<'_>) {
        self.clear(self.node(number));
        lock.release_obsolete();
        schedule::drain();
        self.free.lock().numbers.push(number);
    }

    fn clear(&self, node: &Node<FANOUT>) {
        let shape = node.shape();
        if !K::WHOLE {
            for tail in &node.tails[..shape.count] {
                self.strings.remove(tail.swap(0, Relaxed));
            }
            self.strings.remove(node.high_tail.swap(0, Relaxed));
        }
    }

    /// Fills an empty node, of which the caller holds the lock or knows that nobody can reach it.
    pub(super) fn fill(&self, node: &Node<FANOUT>, level: u8, entries: &[Entry<K>], high: Option<&K>) {
        let low: &K = entries[0].0.borrow();
        // Lows ascend, so what the first and the last one share is shared by all.
        let fenced = high.map_or(0, |high| low.shared(high));
        let shared = if let [_, first, .., last] = entries { first.0.borrow().shared(last.0.borrow()) } else { fenced };
        let exposed = shared >= fenced + EXPOSED_GAIN;
        let shape = Shape { count: entries.len(), level, skip: if exposed { shared } else { fenced }, exposed, bounded: high.is_some() };
        for (slot, (low, child)) in entries.iter().enumerate() {
            self.put(node, shape, slot, low.borrow(), *child);
        }
        if let Some(high) = high {
            node.high_head.store(high.head(shape.skip), Relaxed);
            node.high_tail.store(self.strings.add(high.bytes()), Relaxed);
        }
        node.shape.store(shape.pack(), Relaxed);
    }

    fn put(&self, node: &Node<FANOUT>, shape: Shape, slot: usize, low: &K, child: u64) {
        // The first low need not have the bytes that the others share; it is below them all.
        let head = if shape.exposed && slot == 0 { 0 } else { low.head(shape.skip) };
        node.heads[slot].store(head, Relaxed);
        node.tails[slot].store(self.strings.add(low.bytes()), Relaxed);
        node.children[slot].store(child, Relaxed);
    }

    fn copy_slot(node: &Node<FANOUT>, from: usize, to: usize) {
        node.heads[to].store(node.heads[from].load(Relaxed), Relaxed);
        node.tails[to].store(node.tails[from].load(Relaxed), Relaxed);
        node.children[to].store(node.children[from].load(Relaxed), Relaxed);
    }

    fn set_count(node: &Node<FANOUT>, count: usize) {
        node.shape.store(Shape { count, ..node.shape() }.pack(), Relaxed);
    }

    /// Adds an entry behind `slot` of a locked node that is not full.
    fn insert_behind(&self, node: &Node<FANOUT>, slot: usize, low: &K, child: u64) {
        let shape = node.shape();
        // A low without the bytes that the others share; or, now and then, it is time to see whether they share more than they did.
        let unlike = shape.exposed && self.strings.compare_up_to(low.bytes(), node.tails[1].load(Relaxed), shape.skip).is_ne();
        if unlike || !K::WHOLE && (shape.count + 1).is_power_of_two() {
            let (mut entries, high) = (self.entries(node), self.high(node, shape));
            entries.insert(slot + 1, (low.to_owned(), child));
            self.clear(node);
            self.fill(node, shape.level, &entries, high.as_ref().map(Borrow::borrow));
            return;
        }
        for from in (slot + 1..shape.count).rev() {
            Self::copy_slot(node, from, from + 1);
        }
        self.put(node, shape, slot + 1, low, child);
        Self::set_count(node, shape.count + 1);
    }

    /// Removes the entry at `slot` of a locked node; what was under it belongs to the entry before.
    fn remove_at(&self, node: &Node<FANOUT>, slot: usize) {
        let count = node.shape().count;
        self.strings.remove(node.tails[slot].load(Relaxed));
        for from in slot + 1..count {
            Self::copy_slot(node, from, from - 1);
        }
        // The last slot's tail now belongs to the slot before it.
        node.tails[count - 1].store(0, Relaxed);
        Self::set_count(node, count - 1);
    }

    /// Splits the full node `number`, under `parent` (a node that is not full, and the slot) or under a new root.
    fn split(&self, number: u32, version: u64, parent: Option<(&Node<FANOUT>, u64, usize)>) -> Result<(), Restart> {
        let node = self.node(number);
        let above = match parent {
            Some((parent, version, _)) => parent.latch.lock_from(version)?,
            None => self.root_latch.try_lock()?,
        };
        let _lock = match node.latch.lock_from(version) {
            Ok(lock) if parent.is_some() || self.root.load(Relaxed) == number => lock,
            Ok(lock) => {
                lock.release_unchanged();
                above.release_unchanged();
                return Err(Restart);
            }
            Err(Restart) => {
                above.release_unchanged();
                return Err(Restart);
            }
        };
        let (shape, entries) = (node.shape(), self.entries(node));
        let high = self.high(node, shape);
        let (left, right) = entries.split_at(entries.len() / 2);
        let separator: &K = right[0].0.borrow();
        let (right_number, right_node) = self.take();
        self.fill(right_node, shape.level, right, high.as_ref().map(Borrow::borrow));
        self.clear(node);
        self.fill(node, shape.level, left, Some(separator));
        match parent {
            Some((parent, _, slot)) => self.insert_behind(parent, slot, separator, u64::from(right_number)),
            None => {
                let (root_number, root) = self.take();
                let entries = [(left[0].0.clone(), u64::from(number)), (right[0].0.clone(), u64::from(right_number))];
                self.fill(root, shape.level + 1, &entries, None);
                self.root.store(root_number, Relaxed);
            }
        }
        Ok(())
    }

    /// One attempt of [`Router::split`]: locks the node above the leaf, splitting full nodes on the way.
    pub(super) fn try_insert(&self, old: u64, left: u64, low: &K, separator: &K, right: u64) -> Result<(), Restart> {
        let mut parent = None;
        self.descend(Target::At(low), |step| {
            if step.shape.count == FANOUT {
                step.node.latch.validate(step.version)?;
                self.split(step.number, step.version, parent)?;
                return Err(Restart);
            }
            if step.shape.level == 0 {
                let _lock = step.node.latch.lock_from(step.version)?;
                assert_eq!(step.node.children[step.slot].load(Relaxed), old, "the leaf is latched, so its entry stands");
                step.node.children[step.slot].store(left, Relaxed);
                self.insert_behind(step.node, step.slot, separator, right);
            } else {
                parent = Some((self.node(step.number), step.version, step.slot));
            }
            Ok(())
        })
    }

    /// Merges sparse nodes on the path to `key`. Not owed: whoever is in the way will do so, or a later merge.
    pub(super) fn tidy(&self, key: &K) {
        while matches!(self.try_tidy(key), Ok(true)) {}
    }

    /// Merges one sparse node on the path to `key` with a neighbour, or takes away a root with one child. Whether there was any.
    fn try_tidy(&self, key: &K) -> Result<bool, Restart> {
        let mut parent: Option<(&Node<FANOUT>, u64, usize, usize)> = None;
        let mut changed = false;
        let walked = self.descend(Target::At(key), |step| {
            match parent {
                None if step.shape.level > 0 && step.shape.count == 1 => {
                    changed = self.drop_root(step.number, step.version)?;
                }
                Some((above, version, slot, count)) if step.shape.count <= FANOUT / 4 && count > 1 => {
                    // Nothing depends on the count being right: the merge looks again, under locks.
                    let pairs = [(slot + 1 < count).then_some(slot), slot.checked_sub(1)];
                    for left in pairs.into_iter().flatten() {
                        changed = changed || self.merge_under(above, version, left)?;
                    }
                }
                _ => {}
            }
            // A change makes what was read here out of date; the caller starts again.
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
        let lock = node.latch.lock_from(version)?;
        // Who has the lock of the root may change which node it is; the latch tells readers, and keeps out who is splitting the root.
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
        let above = parent.latch.lock_from(version)?;
        let numbers = [slot, slot + 1].map(|slot| parent.children[slot].load(Relaxed) as u32);
        let [left, right] = numbers.map(|number| self.node(number));
        let locks = left.latch.try_lock().and_then(|left_lock| match right.latch.try_lock() {
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
        let (mut entries, shape, right_shape) = (self.entries(left), left.shape(), right.shape());
        if entries.len() + right_shape.count > (FANOUT * 7 / 8).max(2) {
            right_lock.release_unchanged();
            left_lock.release_unchanged();
            above.release_unchanged();
            return Ok(false);
        }
        entries.extend(self.entries(right));
        let high = self.high(right, right_shape);
        self.clear(left);
        self.fill(left, shape.level, &entries, high.as_ref().map(Borrow::borrow));
        self.give_back(numbers[1], right_lock);
        self.remove_at(parent, slot + 1);
        Ok(true)
    }
}

/// Two neighbouring leaves under one locked node.
pub struct Neighbours<'a, K: Key + ?Sized, const FANOUT: usize> {
    pub(super) router: &'a Olc<K, FANOUT>,
    pub(super) node: &'a Node<FANOUT>,
    pub(super) lock: Locked<'a>,
    pub(super) slot: usize,
}

impl<K: Key + ?Sized, const FANOUT: usize> router::Neighbours<K> for Neighbours<'_, K, FANOUT> {
    fn leaves(&self) -> [u64; 2] {
        [self.slot, self.slot + 1].map(|slot| self.node.children[slot].load(Relaxed))
    }

    fn before(&self) -> Option<u64> {
        Some(self.node.children[self.slot.checked_sub(1)?].load(Relaxed))
    }

    fn fences(&self) -> [Fences<K>; 2] {
        let shape = self.node.shape();
        [self.slot, self.slot + 1].map(|slot| self.router.fences_at(self.node, shape, slot))
    }

    fn join(self, leaf: u64) {
        let low = self.router.low(self.node, self.slot);
        self.node.children[self.slot].store(leaf, Relaxed);
        self.router.remove_at(self.node, self.slot + 1);
        drop(self.lock);
        self.router.tidy(low.borrow());
    }

    fn release(self) {
        self.lock.release_unchanged();
    }
}
