//! Replacing nodes: by a copy, one by two, two by one.

use super::mwcas::{self, TARGETS_MAX};
use super::node::{self, FROZEN, Node, Part, REPLACED, VISIBLE};
use super::{Bz, Failed, Step, Stop};
use crate::key::FenceBlock;
use crate::selective::leaf::Entry;
use crate::selective::router::Target;
use crate::{Error, Key};
use everleaf_pmem::{Durable, Fresh, Medium, Off, Pool, WORD, Word};
use std::borrow::Borrow;
use std::num::NonZeroU64;

/// Whether a node has so few entries that they should go to a neighbour.
pub(super) fn is_little(entries: usize, capacity: usize) -> bool {
    entries * 4 < capacity || entries == 0
}

/// Nodes, and records of fences, that are not reachable yet.
pub(super) struct Built<'p, M: Medium> {
    pool: &'p Pool<M>,
    capacity: usize,
    /// Each node, and how many words of it count.
    nodes: Vec<(Fresh<'p, [Word], M>, usize)>,
    fences: Vec<Fresh<'p, [Word], M>>,
}

impl<'p, M: Medium> Built<'p, M> {
    pub(super) fn new(pool: &'p Pool<M>, capacity: usize) -> Self {
        Self { pool, capacity, nodes: Vec::new(), fences: Vec::new() }
    }

    /// Builds a node of these parts. Returns the word that leads to it.
    pub(super) fn node(&mut self, is_leaf: bool, skip: usize, parts: &[Part]) -> Result<u64, Error> {
        let block = self.pool.alloc_words(node::size(self.capacity))?;
        let count = node::write(self.pool, &block, self.capacity, is_leaf, skip, parts);
        let word = mwcas::link(block.off().cast());
        self.nodes.push((block, count));
        Ok(word)
    }

    /// The word of a fence.
    pub(super) fn fence<K: Key + ?Sized>(&mut self, key: &K) -> Result<u64, Error> {
        let (word, block) = key.fence(self.pool)?;
        self.fences.extend(block);
        Ok(word)
    }

    /// Makes all of it durable.
    pub(super) fn seal(self) -> Vec<Durable<'p, [Word], M>> {
        let nodes = self.nodes.into_iter().map(|(block, count)| block.flush_first(count * WORD));
        let flushed: Vec<_> = nodes.chain(self.fences.into_iter().map(Fresh::flush)).collect();
        // persist-equivalent(fence drop): the exchange that leads to them is a fence, too.
        self.pool.fence_all(flushed)
    }
}

/// What is no longer used once a node has been replaced.
#[derive(Default)]
pub(super) struct Gone<'a> {
    /// Nodes that are no longer in the tree.
    pub(super) nodes: Vec<Step<'a>>,
    /// Records of fences.
    pub(super) fences: Vec<Off<Word>>,
}

/// The entries of a leaf, or the children of a node, as parts of a new one, and the end of its range.
pub(super) struct Content<K: Key + ?Sized> {
    is_leaf: bool,
    skip: usize,
    parts: Vec<Part>,
    low: K::Owned,
    high: Option<K::Owned>,
}

impl<K: Key + ?Sized, M: Medium> Bz<K, M> {
    /// Makes a word lead to a new node instead of the last one of a trail. That one and others are `gone`.
    pub(super) fn install(&self, trail: &[Step<'_>], built: Built<'_, M>, new: u64, gone: &Gone<'_>) -> Result<(), Stop> {
        let (old, above) = trail.split_last().expect("a trail ends with a node");
        let mut targets = Vec::with_capacity(TARGETS_MAX);
        if let Some(Step { node, .. }) = gone.nodes.iter().chain(above.last()).find(|step| step.status.is_frozen()) {
            return Err(Stop::Frozen(node.off));
        }
        let old_word = mwcas::link(old.node.off);
        match above.last() {
            Some(above) => {
                targets.push(mwcas::Target { word: above.node.word(above.at), old: old_word, new });
                targets.push(mwcas::Target { word: above.node.status_word(), old: above.status.0, new: above.status.0 + REPLACED });
            }
            None => targets.push(mwcas::Target { word: &self.root().top, old: old_word, new }),
        }
        targets.extend(gone.nodes.iter().map(|Step { node, status, .. }| mwcas::Target { word: node.status_word(), old: status.0, new: status.0 | FROZEN }));
        let blocks = built.seal();
        match mwcas::exchange(&self.pool, &mut targets) {
            Ok(true) => {
                blocks.into_iter().for_each(|block| _ = block.release());
                let guard = self.pool.pin();
                let nodes = gone.nodes.iter().map(|step| step.node.off);
                nodes.chain(gone.fences.iter().copied()).for_each(|block| self.pool.retire_twice(block, &guard));
                Ok(())
            }
            Ok(false) => Err(Stop::Restart),
            Err(Failed::Unseen(error)) => Err(error.into()),
            Err(Failed::Seen(error)) => {
                // Other threads may still find them.
                blocks.into_iter().for_each(|block| _ = block.release());
                Err(error.into())
            }
        }
    }

    /// The contents of the last node of a trail.
    pub(super) fn content(&self, trail: &[Step<'_>]) -> Result<Content<K>, Stop> {
        let Step { node, status, .. } = trail[trail.len() - 1];
        let (low, high) = (self.low(trail)?, self.high(trail)?);
        let parts = if node.is_leaf {
            let mut entries = Vec::new();
            node.entries::<K, M>(&self.pool, status, &mut entries)?;
            let hides_some = (status.reserved()..self.capacity).any(|at| node.word(at).get() != 0);
            // If the node changes meanwhile, an entry and its replacement may both have been read.
            self.validated(&node, status, ())?;
            if hides_some || entries.len() != status.live() {
                return Err(node.damage("a leaf that counts other entries than it has").into());
            }
            self.check_range(&node, &entries, low.borrow(), high.as_ref().map(Borrow::borrow))?;
            entries.iter().map(|entry| Part { word: VISIBLE, head: entry.head, value: entry.value.get() }).collect()
        } else {
            node.parts(&self.pool)?
        };
        Ok(Content { is_leaf: node.is_leaf, skip: node.skip, parts, low, high })
    }

    /// Whether the entries of a leaf ascend, and belong there.
    pub(super) fn check_range(&self, leaf: &Node<'_>, entries: &[Entry], low: &K, high: Option<&K>) -> Result<(), Error> {
        let (mut key, mut previous) = (K::Owned::default(), None);
        for entry in entries {
            K::read(&*self.pool, entry.head, entry.value, &mut key)?;
            let found: &K = key.borrow();
            let at_home = found >= low && high.is_none_or(|high| found < high) && found.head(leaf.skip) == entry.head;
            if !at_home || previous.as_ref().is_some_and(|previous| *previous >= key) {
                return Err(leaf.damage("a leaf with a key that does not belong there, or twice"));
            }
            previous = Some(key.clone());
        }
        Ok(())
    }

    /// The key of a part of a leaf, or the low fence of a child other than the first.
    fn key_of(&self, content: &Content<K>, at: usize) -> Result<K::Owned, Error> {
        let Part { head, value, .. } = content.parts[at];
        if !content.is_leaf {
            return Ok(K::read_fence(&*self.pool, value)?.0);
        }
        let mut key = K::Owned::default();
        K::read(&*self.pool, head, NonZeroU64::new(value).expect("that of an entry"), &mut key)?;
        Ok(key)
    }

    /// Builds a node from some of the parts of another, perhaps for another range.
    fn node_of(&self, built: &mut Built<'_, M>, content: &Content<K>, parts: &[Part], low: &K, high: Option<&K>) -> Result<u64, Error> {
        let skip = low.shared_up_to(high);
        let mut parts = parts.to_vec();
        if !content.is_leaf {
            // The lowest of all keys below a node is known from above.
            (parts[0].head, parts[0].value) = (0, 0);
        }
        if skip != content.skip {
            self.rehead(&mut parts, skip)?;
        }
        built.node(content.is_leaf, skip, &parts)
    }

    /// Gives parts the heads that they have when `skip` bytes are left out.
    fn rehead(&self, parts: &mut [Part], skip: usize) -> Result<(), Error> {
        for part in parts {
            if let Some(value) = NonZeroU64::new(part.value) {
                part.head = K::rehead(&*self.pool, skip, part.head, value)?;
            }
        }
        Ok(())
    }

    fn built(&self) -> Built<'_, M> {
        Built::new(&self.pool, self.capacity)
    }

    /// Replaces the last node of a trail by a copy; in a copy of an inner node, records of fences that are to leave are replaced, too.
    pub(super) fn rewrite(&self, trail: &[Step<'_>], is_leaving: &dyn Fn(u64) -> bool) -> Result<(), Stop> {
        let mut content = self.content(trail)?;
        let mut built = self.built();
        let mut gone = Gone { nodes: vec![trail[trail.len() - 1]], fences: Vec::new() };
        for part in content.parts.iter_mut().skip(1).filter(|_| !content.is_leaf) {
            let (key, block) = K::read_fence(&*self.pool, part.value)?;
            if let Some(block) = block.filter(|(block, _)| is_leaving(block.bytes())) {
                part.value = built.fence::<K>(key.borrow())?;
                gone.fences.push(block.0);
            }
        }
        let new = self.node_of(&mut built, &content, &content.parts, content.low.borrow(), content.high.as_ref().map(Borrow::borrow))?;
        self.install(trail, built, new, &gone)
    }

    /// Makes room in the leaf of a key, which was full.
    #[cold]
    pub(super) fn make_room<T>(&self, key: &K, leaf: &Node<'_>) -> Result<T, Stop> {
        let trail = self.trail(Target::At(key))?;
        let Step { node, status, .. } = trail[trail.len() - 1];
        if node.off == leaf.off {
            // A copy that will soon be full again is worth less than two leaves.
            if status.live() * 4 > self.capacity * 3 { self.split(&trail)? } else { self.rewrite(&trail, &|_| false)? }
        }
        Err(Stop::Restart)
    }

    /// Divides the last node of a trail, or the one above, if that has no room for another child.
    fn split(&self, trail: &[Step<'_>]) -> Result<(), Stop> {
        let (last, above) = trail.split_last().expect("a trail ends with a node");
        if above.last().is_some_and(|above| above.node.count == self.capacity) {
            return self.split(above);
        }
        let content = self.content(trail)?;
        if content.parts.len() < 2 {
            return Err(Stop::Restart);
        }
        let (left, right) = content.parts.split_at(content.parts.len() / 2);
        let mut built = self.built();
        let (middle, fence) = if content.is_leaf {
            let middle = K::separator(self.key_of(&content, left.len() - 1)?.borrow(), self.key_of(&content, left.len())?.borrow());
            let fence = built.fence::<K>(middle.borrow())?;
            (middle, fence)
        } else {
            (self.key_of(&content, left.len())?, right[0].value)
        };
        let (low, high) = (content.low.borrow(), content.high.as_ref().map(Borrow::borrow));
        let is_between = low < middle.borrow() && high.is_none_or(|high| middle.borrow() < high);
        if !is_between {
            return Err(last.node.damage("a node whose fences are not in order").into());
        }
        let left = self.node_of(&mut built, &content, left, low, Some(middle.borrow()))?;
        let right = self.node_of(&mut built, &content, right, middle.borrow(), high)?;
        let mut gone = Gone { nodes: vec![*last], fences: Vec::new() };
        let part = |skip| Part { word: right, head: middle.borrow().head(skip), value: fence };
        if let Some(parent) = above.last() {
            let mut parts = parent.node.parts(&self.pool)?;
            parts[parent.at].word = left;
            parts.insert(parent.at + 1, part(parent.node.skip));
            let new = built.node(false, parent.node.skip, &parts)?;
            gone.nodes.push(*parent);
            self.install(above, built, new, &gone)?;
        } else {
            let new = built.node(false, 0, &[Part { word: left, head: 0, value: 0 }, part(0)])?;
            self.install(trail, built, new, &gone)?;
        }
        if content.is_leaf {
            self.leaves.add(1);
            self.splits.add(1);
        }
        Ok(())
    }

    /// Removes one node on the way to a key, if there is one too many. Returns whether it has.
    pub(super) fn tidy(&self, key: &K) -> Result<bool, Stop> {
        let trail = self.trail(Target::At(key))?;
        for depth in (1..trail.len()).rev() {
            let (node, above) = (&trail[depth], &trail[depth - 1]);
            let count = weight(node);
            if above.node.count == 1 || !(is_little(count, self.capacity) || count == 1 && !node.node.is_leaf) {
                continue;
            }
            let beside = if above.at + 1 < above.node.count { above.at + 1 } else { above.at - 1 };
            let sibling = self.beside(above, beside)?;
            // Not so many that the next insert divides the node, unless it would otherwise stay forever.
            let is_room = if count <= usize::from(!node.node.is_leaf) { self.capacity } else { self.capacity * 3 / 4 };
            if count + weight(&sibling) <= is_room {
                self.merge(&trail[..=depth], beside, sibling)?;
                return Ok(true);
            }
        }
        let top = &trail[0];
        if top.node.is_leaf || top.node.count > 1 {
            return Ok(false);
        }
        let child = mwcas::link(top.node.child(&self.pool, 0)?);
        self.install(&trail[..1], self.built(), child, &Gone { nodes: vec![*top], fences: Vec::new() })?;
        Ok(true)
    }

    /// A child of a node, read after the status of the node.
    fn beside<'a>(&'a self, above: &Step<'a>, at: usize) -> Result<Step<'a>, Error> {
        let node = self.node(above.node.child(&self.pool, at)?)?;
        Ok(Step { node, status: node.status(&self.pool)?, at: 0 })
    }

    /// Merges the last node of a trail with the one beside it.
    fn merge<'a>(&'a self, trail: &[Step<'a>], beside: usize, sibling: Step<'a>) -> Result<(), Stop> {
        let (last, above) = trail.split_last().expect("a trail ends with a node");
        let parent = above.last().expect("a node with another beside it is below one");
        let second = parent.at.max(beside);
        let theirs = [&above[..above.len() - 1], &[Step { at: beside, ..*parent }, sibling]].concat();
        let (ours, theirs) = (self.content(trail)?, self.content(&theirs)?);
        if ours.is_leaf != theirs.is_leaf {
            return Err(last.node.damage("a leaf beside a node").into());
        }
        let (left, right) = if parent.at < beside { (ours, theirs) } else { (theirs, ours) };
        let (fence_head, fence) = parent.node.fence(second)?;
        let (is_leaf, skip) = (left.is_leaf, left.low.borrow().shared_up_to(right.high.as_ref().map(Borrow::borrow)));
        let mut parts = [&left.parts[..], &right.parts].concat();
        if !is_leaf {
            let first = &mut parts[left.parts.len()];
            (first.head, first.value) = (fence_head, fence.get());
        }
        // Each part had the heads of its own node, and gets those of the range of both.
        self.rehead(&mut parts, skip)?;
        let mut built = self.built();
        let merged = built.node(is_leaf, skip, &parts)?;
        let fences = if is_leaf { fence_block::<K, M>(&self.pool, fence.get())?.map(|(block, _)| block) } else { None };
        let gone = Gone { nodes: vec![*last, sibling, *parent], fences: fences.into_iter().collect() };
        if parent.node.count == 2 && above.len() == 1 {
            self.install(above, built, merged, &gone)?;
        } else {
            let mut kept = parent.node.parts(&self.pool)?;
            kept[second - 1].word = merged;
            kept.remove(second);
            let new = built.node(false, parent.node.skip, &kept)?;
            self.install(above, built, new, &gone)?;
        }
        self.leaves.add(-i64::from(is_leaf));
        Ok(())
    }
}

/// The size of a node: entries that count, or children.
fn weight(step: &Step<'_>) -> usize {
    if step.node.is_leaf { step.status.live() } else { step.node.count }
}

/// The block of a fence, if it has one.
pub(super) fn fence_block<K: Key + ?Sized, M: Medium>(pool: &Pool<M>, fence: u64) -> Result<FenceBlock, Error> {
    Ok(K::read_fence(pool, fence)?.1)
}
