//! Creating, opening, filling and checking a tree.

use super::node::{self, DELETED, Node, Part, Status, VISIBLE};
use super::structure::{Built, Gone, fence_block};
use super::{Bz, LEVELS_MAX, Stop, TreeRoot, mwcas};
use crate::counter::Counter;
use crate::latch::check_apart;
use crate::registry::{Recovery, find_root, in_shares, kind_of};
use crate::selective::router::Target;
use crate::{Cause, Error, Key, OrderedIndex, Stats, ascending};
use everleaf_pmem::{Medium, Off, Pool, WORD, Word};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A node of a tree that no other thread uses, and its range.
struct Place<'a, K: Key + ?Sized> {
    node: Node<'a>,
    level: usize,
    low: K::Owned,
    high: Option<K::Owned>,
}

/// What leads to a node that is loaded: its lowest key, the word of that fence, and the word of a child.
struct Loaded<K: Key + ?Sized> {
    low: K::Owned,
    fence: u64,
    child: u64,
}

impl<K: Key + ?Sized, M: Medium> Bz<K, M> {
    /// Creates an empty tree and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub(crate) fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str, capacity: usize) -> Result<Self, Error> {
        let mut built = Built::new(pool, capacity);
        let top = built.node(true, 0, &[])?;
        let root = pool.alloc::<TreeRoot>()?;
        pool.store(&root.top, top, Relaxed);
        // persist-equivalent(store late): nobody reads them yet.
        root.reserved.iter().for_each(|word| pool.store(word, 0, Relaxed));
        let root = root.flush();
        // Released before the root is linked: after a crash in between both are unreachable, hence free.
        let leaves: Vec<_> = built.seal().into_iter().map(|block| block.release()).collect();
        let root = pool.fence_all(root);
        let root = pool.link_root(name, kind_of::<K>(kind), root).inspect_err(|_| leaves.iter().for_each(|leaf| pool.retire(*leaf, &pool.pin())))?;
        let tree = Self::new(pool, root, capacity);
        tree.leaves.add(1);
        Ok(tree)
    }

    fn new(pool: &Arc<Pool<M>>, root: Off<TreeRoot>, capacity: usize) -> Self {
        let (keys, leaves, splits) = (Counter::default(), Counter::default(), Counter::default());
        Self { pool: pool.clone(), root, capacity, keys, leaves, splits, _key: PhantomData }
    }

    /// Opens an existing tree, and completes what a crash has interrupted. This is durable when the call returns; after a crash in between, opening again does
    /// the rest.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`]; damage.
    pub(crate) fn open(pool: &Arc<Pool<M>>, name: &str, kind: &'static str, recovery: &Recovery<'_, M>, capacity: usize) -> Result<Self, Error> {
        let tree = Self::new(pool, Off::new(find_root::<K, M>(pool, name, kind)?), capacity);
        pool.at(tree.root, "the root block of a tree does not lie in the pool")?;
        let places = tree.survey()?;
        let mut blocks = Vec::new();
        tree.each_block(&places, &mut |off, size| {
            blocks.push((off, size));
            Ok(())
        })?;
        check_apart(blocks.clone())?;
        if let Some(reach) = recovery.reach {
            blocks.iter().try_for_each(|(off, size)| reach.mark(Off::<Word>::new(*off), *size))?;
        }
        let leaves: Vec<_> = places.iter().filter(|place| place.node.is_leaf).map(|place| place.node).collect();
        in_shares(&leaves, recovery.threads, |share| {
            for leaf in share {
                let entries = tree.recover_leaf(leaf)?;
                tree.keys.add(entries.len() as i64);
                entries.into_iter().try_for_each(|value| recovery.trace.map_or(Ok(()), |trace| trace(value)))?;
            }
            // This also covers what this thread has flushed of inner nodes. Descriptors are free memory from here on.
            pool.fence();
            Ok::<_, Error>(())
        })?;
        tree.leaves.add(leaves.len() as i64);
        Ok(tree)
    }

    /// All nodes, each after the one that leads to it, as a crash may have left them; no other thread uses the tree.
    fn survey(&self) -> Result<Vec<Place<'_, K>>, Error> {
        let top = mwcas::linked(mwcas::recover(&self.pool, &self.root().top)?);
        let top = self.node(top.ok_or_else(|| everleaf_pmem::Error::corrupt(self.root.bytes(), "a tree without a top"))?)?;
        let mut places: Vec<Place<'_, K>> = vec![Place { node: top, level: 0, low: K::LOWEST.to_owned(), high: None }];
        let mut next = 0;
        while let Some(place) = places.get(next) {
            let Place { node, level, low, high } = place;
            let is_damaged = *level >= LEVELS_MAX || node.skip != (*low).borrow().shared_up_to(high.as_ref().map(Borrow::borrow));
            if is_damaged || places.len() * node::size(self.capacity) * WORD > self.pool.length() {
                return Err(node.damage("a node that does not go with the ones above"));
            }
            if !node.is_leaf {
                let below = self.children(place)?;
                places.extend(below);
            }
            next += 1;
        }
        Ok(places)
    }

    fn children<'a>(&'a self, Place { node, level, low, high }: &Place<'a, K>) -> Result<Vec<Place<'a, K>>, Error> {
        let damaged = || node.damage("a node whose children are not in order");
        if Status(mwcas::recover(&self.pool, node.status_word())?).is_frozen() {
            return Err(damaged());
        }
        let mut children: Vec<Place<'a, K>> = Vec::with_capacity(node.count);
        for at in 0..node.count {
            let child = self.node(mwcas::linked(mwcas::recover(&self.pool, node.word(at))?).ok_or_else(damaged)?)?;
            let low = if at == 0 { low.clone() } else { node.low::<K, M>(&self.pool, at)? };
            if let Some(before) = children.last_mut() {
                let is_in_order = before.low < low && high.as_ref().is_none_or(|high| low < *high);
                if !is_in_order {
                    return Err(damaged());
                }
                before.high = Some(low.clone());
            }
            children.push(Place { node: child, level: level + 1, low, high: high.clone() });
        }
        Ok(children)
    }

    /// The values of the entries of a leaf that count.
    fn recover_leaf(&self, leaf: &Node<'_>) -> Result<Vec<NonZeroU64>, Error> {
        let status = Status(mwcas::recover(&self.pool, leaf.status_word())?);
        leaf.check_status(status)?;
        let (mut values, mut made) = (Vec::new(), 0);
        let mut is_damaged = status.is_frozen();
        for at in 0..self.capacity {
            let meta = mwcas::recover(&self.pool, leaf.word(at))?;
            made += match meta {
                0 => 0,
                DELETED => node::MADE + node::UNMADE,
                _ => node::MADE,
            };
            is_damaged |= at >= status.reserved() && meta != 0 || at < leaf.count && meta == 0;
            values.extend(leaf.entry_of(at, meta)?.map(|entry| entry.value));
            is_damaged |= at > 0 && at < leaf.count && leaf.pair(at - 1)[0].get() > leaf.pair(at)[0].get();
        }
        match is_damaged || status.0 != made + status.reserved() as u64 {
            true => Err(leaf.damage("a leaf that counts other entries than it has")),
            false => Ok(values),
        }
    }

    fn each_block(&self, places: &[Place<'_, K>], visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<TreeRoot>())?;
        for Place { node, .. } in places {
            visit(node.off.bytes(), node::size(self.capacity) * WORD)?;
            for at in 1..if node.is_leaf { 1 } else { node.count } {
                let block = fence_block::<K, M>(&self.pool, node.fence(at)?.1.get())?;
                block.map_or(Ok(()), |(off, size)| visit(off.bytes(), size))?;
            }
        }
        Ok(())
    }

    pub(super) fn visit_blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.each_block(&self.survey()?, visit)
    }

    pub(super) fn check_all(&self) -> Result<Stats, Error> {
        let (mut keys, mut leaves, mut entries) = (0, 0, Vec::new());
        for Place { node, low, high, .. } in self.survey()?.iter().filter(|place| place.node.is_leaf) {
            keys += self.recover_leaf(node)?.len() as u64;
            leaves += 1;
            node.entries::<K, M>(&self.pool, node.status(&self.pool)?, &mut entries)?;
            self.check_range(node, &entries, (*low).borrow(), high.as_ref().map(Borrow::borrow))?;
        }
        let stats = self.stats();
        if (stats.keys, stats.leaves) != (keys, leaves) {
            return Err(everleaf_pmem::Error::corrupt(0, "counts that differ from what is there").into());
        }
        Ok(stats)
    }

    /// Reduces an empty tree to one leaf. Returns whether it is empty.
    fn make_empty(&self) -> Result<bool, Stop> {
        let trail = self.trail(Target::Below(K::LOWEST))?;
        let last = trail[trail.len() - 1];
        if last.status.live() > 0 {
            return Ok(false);
        }
        match trail.len() {
            // This checks whether it hides any entries.
            1 => self.content(&trail).map(|_| true),
            _ if self.tidy(K::LOWEST)? => Err(Stop::Restart),
            _ => Ok(false),
        }
    }

    /// See [`OrderedIndex::bulk_load`](crate::OrderedIndex::bulk_load).
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        let not_empty = || Error::from(Cause::NotEmpty { keys: self.keys.get() });
        if !self.retry(|| self.make_empty())? {
            return Err(not_empty());
        }
        let entries = ascending::<K>(entries)?;
        if entries.is_empty() {
            return Ok(());
        }
        let filled = ((self.capacity as f64 * fill) as usize).clamp(1, self.capacity);
        let leaves = self.retry(|| {
            let trail = self.trail(Target::At(K::LOWEST))?;
            if trail.len() > 1 || trail[0].status.live() > 0 {
                return Err(Stop::Failed(not_empty()));
            }
            let mut built = Built::new(&self.pool, self.capacity);
            let mut level = self.load_leaves(&mut built, &entries, filled)?;
            let leaves = level.len();
            while level.len() > 1 {
                level = self.load_above(&mut built, &level, filled.max(2))?;
            }
            self.install(&trail, built, level[0].child, &Gone { nodes: trail.clone(), fences: Vec::new() })?;
            Ok(leaves)
        })?;
        self.keys.add(entries.len() as i64);
        self.leaves.add(leaves as i64 - 1);
        Ok(())
    }

    /// Builds leaves of `filled` entries each.
    fn load_leaves(&self, built: &mut Built<'_, M>, entries: &[(K::Owned, NonZeroU64)], filled: usize) -> Result<Vec<Loaded<K>>, Error> {
        let lows: Vec<K::Owned> = (0..entries.len())
            .step_by(filled)
            .map(|first| if first == 0 { K::LOWEST.to_owned() } else { K::separator(entries[first - 1].0.borrow(), entries[first].0.borrow()) })
            .collect();
        let mut leaves = Vec::with_capacity(lows.len());
        for (number, entries) in entries.chunks(filled).enumerate() {
            let (low, high): (&K, _) = (lows[number].borrow(), lows.get(number + 1).map(Borrow::borrow));
            let skip = low.shared_up_to(high);
            let part = |(key, value): &(K::Owned, NonZeroU64)| Part { word: VISIBLE, head: (*key).borrow().head(skip), value: value.get() };
            let child = built.node(true, skip, &entries.iter().map(part).collect::<Vec<_>>())?;
            let fence = if number == 0 { 0 } else { built.fence::<K>(low)? };
            leaves.push(Loaded { low: low.to_owned(), fence, child });
        }
        Ok(leaves)
    }

    /// Builds nodes of `filled` children each.
    fn load_above(&self, built: &mut Built<'_, M>, below: &[Loaded<K>], filled: usize) -> Result<Vec<Loaded<K>>, Error> {
        let mut nodes: Vec<Loaded<K>> = Vec::with_capacity(below.len().div_ceil(filled));
        for (number, children) in below.chunks(filled).enumerate() {
            let Loaded { low, fence, .. } = &children[0];
            let skip = (*low).borrow().shared_up_to(below.get((number + 1) * filled).map(|next| next.low.borrow()));
            let part = |Loaded { low, fence, child }: &Loaded<K>| Part { word: *child, head: (*low).borrow().head(skip), value: *fence };
            let mut parts: Vec<_> = children.iter().map(part).collect();
            (parts[0].head, parts[0].value) = (0, 0);
            nodes.push(Loaded { low: low.clone(), fence: *fence, child: built.node(false, skip, &parts)? });
        }
        Ok(nodes)
    }
}
