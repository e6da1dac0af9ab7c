//! Creating, opening, filling and checking a tree. The head of the tree's module describes recovery.

use super::node::{Birth, Node, PER_LINE, UNSOUND};
use super::structure::{linked, take_over};
use super::{Fair, LEVEL, LEVELS_MAX, TreeRoot};
use crate::counter::Counter;
use crate::image;
use crate::latch::{Latches, check_apart};
use crate::registry::{Recovery, find_root, in_shares, kind_of};
use crate::selective::leaf::Entry;
use crate::selective::router::Target;
use crate::{Cause, Error, Key, OrderedIndex, Stats};
use everleaf_pmem::{Flushed, Fresh, Medium, Off, Pool, Word};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize> Fair<K, M, N, SENTINELS> {
    /// Creates an empty tree and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub(crate) fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str) -> Result<Self, Error> {
        let (leaf, root) = (pool.alloc::<N>()?, pool.alloc::<TreeRoot>()?);
        leaf.build(pool, &Birth { next: 0, low: 0, level: 0 }, std::iter::empty());
        pool.store(&root.top, leaf.off().link(), Relaxed);
        // persist-equivalent(store late): who opens after a crash takes no image, and makes the word 0.
        pool.store(&root.image, 0, Relaxed);
        // persist-equivalent(store late): nobody reads them yet.
        root.reserved.iter().for_each(|word| pool.store(word, 0, Relaxed));
        let (leaf, root) = pool.fence_all((leaf.flush_first(N::BUILT), root.flush()));
        // Released before the root is linked: a crash in between leaves both unreachable, and so free.
        let leaf = leaf.release();
        let root = pool.link_root(name, kind_of::<K>(kind), root).inspect_err(|_| pool.retire(leaf, &pool.pin()))?;
        Self::assemble(pool, root, &[leaf], 1, 0)
    }

    /// A tree of these nodes.
    fn assemble(pool: &Arc<Pool<M>>, root: Off<TreeRoot>, nodes: &[Off<N>], leaf_count: usize, key_count: u64) -> Result<Self, Error> {
        const { assert!(SENTINELS == 0 || SENTINELS == N::LINES && N::SLOTS == N::LINES * PER_LINE, "one for each line of entries alone") };
        const { assert!(N::CAPACITY >= 4, "a node with a single child must not come of a split, or levels are as wide as those below") };
        let places: Vec<u64> = nodes.iter().map(|node| node.bytes()).collect();
        check_apart(places.iter().map(|place| (*place, size_of::<N>())).chain([(root.bytes(), size_of::<TreeRoot>())]).collect())?;
        let (keys, leaves, latches) = (Counter::default(), Counter::default(), Latches::new());
        keys.add(key_count as i64);
        leaves.add(leaf_count as i64);
        latches.begin(&places)?;
        Ok(Self { pool: pool.clone(), root, latches, keys, leaves, splits: Counter::default(), _key: PhantomData })
    }

    /// See [`OrderedIndex::close`].
    pub(super) fn leave_image(&self) -> Result<(), Error> {
        image::leave(&self.pool, &self.root().image, &[self.keys.get()])
    }

    /// Opens a tree again and repairs what a crash has left. Finished repairs are durable. After a crash within, opening again does the rest.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`]; damage.
    pub(crate) fn open(pool: &Arc<Pool<M>>, name: &str, kind: &'static str, recovery: &Recovery<'_, M>) -> Result<Self, Error> {
        let root = Off::<TreeRoot>::new(find_root::<K, M>(pool, name, kind)?);
        let block = pool.at(root, "the root block of a tree does not lie in the pool")?;
        recovery.reach.map_or(Ok(()), |reach| reach.mark(root, size_of::<TreeRoot>()))?;
        let image = image::take(pool, &block.image, recovery.reach.is_none());
        let keys_left = image.and_then(|content| content.first().copied());

        let top = Off::from_link(block.top.get())?;
        let height = height::<M, N>(pool, top)?;
        // A top of zeroes looks like a leaf without entries, so a top that is a leaf is read.
        let counted = keys_left.filter(|_| height > 0);
        let (mut nodes, mut expected, mut keys) = (Vec::new(), vec![Place { off: top, parent: None }], counted.unwrap_or(0));
        for level in (0..=height).rev() {
            let first = nodes.len();
            if level == 0 && counted.is_some() {
                for leaf in &expected {
                    pool.at(leaf.off, "a node does not lie in the pool")?;
                    nodes.push(leaf.off);
                }
            } else {
                let listed = list::<M, N>(pool, expected[0].off, level)?;
                let orphans = adopt::<K, M, N>(pool, &listed, &expected)?;
                let entries = recover_all::<K, M, N>(pool, &listed, level, recovery)?;
                nodes.extend(rejoin::<K, M, N>(pool, &listed, &orphans)?);
                if level == 0 {
                    keys = entries;
                    if keys_left.is_some_and(|left| left != keys) {
                        return Err(everleaf_pmem::Error::corrupt(top.bytes(), "a tree that has other entries than when it was closed").into());
                    }
                }
            }
            let leaves = nodes.len() - first;
            if let Some(reach) = recovery.reach {
                nodes[first..].iter().try_for_each(|node| mark::<K, M, N>(pool, *node, |off, size| Ok(reach.mark(off, size)?)))?;
            }
            if level == 0 {
                return Self::assemble(pool, root, &nodes, leaves, keys);
            }
            expected = children::<M, N>(pool, &nodes[first..])?;
        }
        unreachable!("the lowest level is 0")
    }

    /// Visits all nodes, level by level from the top, each with the entry above that leads to it. Nobody writes meanwhile.
    fn for_each_node(&self, mut visit: impl FnMut(usize, &Place<N>, &N) -> Result<(), Error>) -> Result<(), Error> {
        let top = Off::from_link(self.root().top.get())?;
        let mut expected = vec![Place { off: top, parent: None }];
        for level in (0..=height::<M, N>(&self.pool, top)?).rev() {
            let listed = list::<M, N>(&self.pool, expected[0].off, level)?;
            if listed.len() != expected.len() || listed.iter().zip(&expected).any(|(node, entry)| *node != entry.off) {
                return Err(everleaf_pmem::Error::corrupt(listed[0].bytes(), "a level that is not what the entries above lead to").into());
            }
            expected.iter().try_for_each(|place| visit(level, place, self.pool.at(place.off, "a node does not lie in the pool")?))?;
            if level > 0 {
                expected = children::<M, N>(&self.pool, &listed)?;
            }
        }
        Ok(())
    }

    pub(super) fn visit_blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<TreeRoot>())?;
        image::block(&self.pool, &self.root().image).map_or(Ok(()), |(off, size)| visit(off, size))?;
        self.for_each_node(|_, place, _| mark::<K, M, N>(&self.pool, place.off, |off, size| visit(off.bytes(), size)))
    }

    pub(super) fn check_all(&self) -> Result<Stats, Error> {
        let (mut keys, mut leaves) = (0, 0);
        self.for_each_node(|level, place, node| {
            node.check_order::<K, M>(&self.pool)?;
            let (low, high) = (self.low(node)?, self.high(node)?);
            if place.parent.is_none() && (*low.borrow() != *K::LOWEST || high.is_some()) {
                return Err(self.damage(node, "a top whose range is not all"));
            }
            let mut previous = None;
            for (rank, entry) in node.entries().enumerate() {
                let key = node.key::<K, M>(&self.pool, &entry)?;
                let at_home = key >= low && high.as_ref().is_none_or(|high| key < *high) && key.borrow().head(0) == entry.head;
                if !at_home || previous.is_some_and(|previous| previous >= key) || level > 0 && rank == 0 && key != low {
                    return Err(self.damage(node, "a node with a key that does not belong there"));
                }
                previous = Some(key);
            }
            if level == 0 {
                keys += node.count() as u64;
                leaves += 1;
            }
            Ok(())
        })?;
        let stats = self.stats();
        if (stats.keys, stats.leaves) != (keys, leaves) {
            return Err(everleaf_pmem::Error::corrupt(0, "counts that differ from what is there").into());
        }
        Ok(stats)
    }

    /// Joins the empty nodes that may be left when all keys were removed.
    fn join_empty(&self) -> Result<(), Error> {
        for _ in 0..LEVELS_MAX {
            if self.keys.get() > 0 || self.stats().depth <= 1 {
                break;
            }
            let mut low = Some(K::LOWEST.to_owned());
            while let Some(key) = low {
                self.join(key.borrow(), 0);
                low = self.read(Target::At(key.borrow()), |leaf| self.high_above(leaf, key.borrow()))?;
            }
        }
        Ok(())
    }

    /// See [`OrderedIndex::bulk_load`].
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        self.join_empty()?;
        let not_empty = || Error::from(Cause::NotEmpty { keys: self.keys.get() });
        let is_only = |leaf: &N| leaf.count() == 0 && leaf.next().get() == 0;
        if !self.read(Target::At(K::LOWEST), |leaf| Ok(is_only(leaf)))? {
            return Err(not_empty());
        }
        // This comes before anything is latched: the iterator may be slow.
        let mut built = Built::<K, M, N>::new(&self.pool);
        let count = built.load(entries, fill)?;
        if count == 0 {
            return Ok(());
        }
        let leaf = self.hold(Target::At(K::LOWEST), 0)?.expect("every tree has leaves");
        if self.keys.get() > 0 || !is_only(leaf.node) || !self.is_top(leaf.off) {
            leaf.lock.release_unchanged();
            return Err(not_empty());
        }
        let leaves = built.leaves;
        let (nodes, fences) = self.pool.fence_all((built.nodes, built.fences));
        let places: Vec<u64> = nodes.iter().map(|node| node.off().bytes()).collect();
        if let Err(error) = self.latches.begin(&places) {
            leaf.lock.release_unchanged();
            return Err(error);
        }
        fences.into_iter().for_each(|fence| _ = fence.release());
        let mut nodes = nodes.into_iter();
        let top = nodes.next_back().expect("a load of some entries");
        nodes.for_each(|node| _ = node.release());
        self.raise(top);
        self.give_up(leaf, None);
        self.keys.add(count as i64);
        self.leaves.add(leaves as i64 - 1);
        Ok(())
    }
}

/// A node, and the rank of the entry above that leads to it; the top has none.
struct Place<N: Node> {
    off: Off<N>,
    parent: Option<(Off<N>, usize)>,
}

/// The level of the top.
fn height<M: Medium, N: Node>(pool: &Pool<M>, top: Off<N>) -> Result<usize, Error> {
    let level = pool.at(top, "the top of a tree does not lie in the pool")?.level();
    level.filter(|level| *level < LEVELS_MAX).ok_or_else(|| everleaf_pmem::Error::corrupt(top.bytes(), LEVEL).into())
}

/// Follows the list of a level.
fn list<M: Medium, N: Node>(pool: &Pool<M>, first: Off<N>, level: usize) -> Result<Vec<Off<N>>, Error> {
    let mut listed = Vec::new();
    let mut next = first;
    while !next.is_null() {
        let node = pool.at(next, "a node does not lie in the pool")?;
        if node.level() != Some(level) {
            return Err(everleaf_pmem::Error::corrupt(next.bytes(), LEVEL).into());
        }
        if listed.len() > pool.length() / size_of::<N>() {
            return Err(everleaf_pmem::Error::corrupt(next.bytes(), "a list of nodes that does not end").into());
        }
        listed.push(next);
        next = Off::from_link(node.next().get())?;
    }
    Ok(listed)
}

/// The places to which the entries of the nodes of a level lead.
fn children<M: Medium, N: Node>(pool: &Pool<M>, nodes: &[Off<N>]) -> Result<Vec<Place<N>>, Error> {
    let mut children = Vec::new();
    for &off in nodes {
        let node = pool.at(off, "a node does not lie in the pool")?;
        if node.entries().next().is_none() {
            return Err(everleaf_pmem::Error::corrupt(off.bytes(), "an inner node without children").into());
        }
        for (rank, entry) in node.entries().enumerate() {
            children.push(Place { off: Off::from_link(entry.value.get())?, parent: Some((off, rank)) });
        }
    }
    Ok(children)
}

/// Compares the nodes of a level with the entries above, and makes these lead to where nodes were moved. Returns for each node whether no entry leads to it.
fn adopt<K: Key + ?Sized, M: Medium, N: Node>(pool: &Pool<M>, listed: &[Off<N>], expected: &[Place<N>]) -> Result<Vec<bool>, Error> {
    let low = |node: Off<N>| Ok::<_, Error>(K::read_fence(pool, pool.at(node, "a node does not lie in the pool")?.low())?.0);
    let mut entries = expected.iter().peekable();
    let mut are_orphans = Vec::with_capacity(listed.len());
    for &node in listed {
        let is_expected = match entries.peek() {
            None => false,
            Some(Place { off, parent: None }) => *off == node,
            Some(Place { off, parent: Some((parent, rank)) }) => {
                let (parent, expected) = (pool.at(*parent, "a node does not lie in the pool")?, low(*off)?);
                // Entries beyond a range are cut off. That must not happen because of a damaged range.
                if parent.entries().nth(*rank).is_none_or(|entry| entry.head != expected.borrow().head(0))
                    || *rank == 0 && K::read_fence(pool, parent.low())?.0 != expected
                {
                    return Err(everleaf_pmem::Error::corrupt(off.bytes(), "a node whose low fence is not what the entry above says").into());
                }
                let has_moved = *off != node && expected == low(node)?;
                if has_moved {
                    if !parent.is_sound() {
                        return Err(everleaf_pmem::Error::corrupt(off.bytes(), UNSOUND).into());
                    }
                    parent.update(pool, *rank, linked(node));
                }
                has_moved || *off == node
            }
        };
        if is_expected {
            entries.next();
        }
        are_orphans.push(!is_expected);
    }
    match entries.next() {
        None => Ok(are_orphans),
        Some(entry) => Err(everleaf_pmem::Error::corrupt(entry.off.bytes(), "an entry that leads to a node which is not in the list").into()),
    }
}

/// Joins each node to which no entry leads to the node before it. Returns the nodes that are left.
fn rejoin<K: Key + ?Sized, M: Medium, N: Node>(pool: &Pool<M>, listed: &[Off<N>], are_orphans: &[bool]) -> Result<Vec<Off<N>>, Error> {
    let mut left: Vec<Off<N>> = Vec::with_capacity(listed.len());
    for (&off, is_orphan) in listed.iter().zip(are_orphans) {
        let node = pool.at(off, "a node does not lie in the pool")?;
        match left.last() {
            Some(&before) if *is_orphan => {
                take_over::<K, M, N>(pool, pool.at(before, "a node does not lie in the pool")?, (off.bytes(), node), || {})?;
            }
            _ => left.push(off),
        }
    }
    Ok(left)
}

/// Recovers all nodes of a level, each thread an equal share of them. Returns the number of their entries.
fn recover_all<K: Key + ?Sized, M: Medium, N: Node>(pool: &Pool<M>, listed: &[Off<N>], level: usize, recovery: &Recovery<'_, M>) -> Result<u64, Error> {
    let recover = |&off: &Off<N>| -> Result<u64, Error> {
        let node = pool.at(off, "a node does not lie in the pool")?;
        let (low, _) = K::read_fence(pool, node.low())?;
        let high = match Off::<N>::from_link(node.next().get())? {
            next if next.is_null() => None,
            next => Some(K::read_fence(pool, pool.at(next, "a node does not lie in the pool")?.low())?.0),
        };
        if high.as_ref().is_some_and(|high| *high <= low) || off == listed[0] && *low.borrow() != *K::LOWEST {
            return Err(everleaf_pmem::Error::corrupt(off.bytes(), "a node whose low fence is not above that before").into());
        }
        node.recover::<K, M>(pool, high.as_ref().map(Borrow::borrow))?;
        if let Some(trace) = recovery.trace.filter(|_| level == 0) {
            node.entries().try_for_each(|entry| trace(entry.value))?;
        }
        Ok(node.count() as u64)
    };
    let entries = in_shares(listed, recovery.threads, |share| share.iter().map(recover).sum::<Result<u64, Error>>())?;
    Ok(entries.into_iter().sum())
}

/// Calls `mark` with the blocks of a node: offset and size in bytes.
fn mark<K: Key + ?Sized, M: Medium, N: Node>(pool: &Pool<M>, off: Off<N>, mut mark: impl FnMut(Off<Word>, usize) -> Result<(), Error>) -> Result<(), Error> {
    mark(off.cast(), size_of::<N>())?;
    let node = pool.at(off, "a node does not lie in the pool")?;
    K::read_fence(pool, node.low())?.1.map_or(Ok(()), |(fence, size)| mark(fence, size))
}

/// Nodes for a bulk load: flushed, linked with each other, the top last, and not reachable yet.
struct Built<'p, K: Key + ?Sized, M: Medium, N: Node> {
    pool: &'p Pool<M>,
    nodes: Vec<Flushed<'p, N, M>>,
    fences: Vec<Flushed<'p, [Word], M>>,
    /// The last node of its level so far, which waits for the next one to be linked.
    last: Option<Fresh<'p, N, M>>,
    /// The low fences of the nodes of a level, and the links of these nodes.
    lows: Vec<(K::Owned, NonZeroU64)>,
    leaves: usize,
}

impl<'p, K: Key + ?Sized, M: Medium, N: Node> Built<'p, K, M, N> {
    fn new(pool: &'p Pool<M>) -> Self {
        Self { pool, nodes: Vec::new(), fences: Vec::new(), last: None, lows: Vec::new(), leaves: 0 }
    }

    /// Builds a tree. Returns the number of entries.
    fn load(&mut self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<u64, Error> {
        let capacity = N::CAPACITY;
        let size = ((capacity as f64 * fill) as usize).clamp(1, capacity);
        let (mut count, mut previous) = (0, None::<K::Owned>);
        loop {
            let chunk: Vec<_> = entries.take(size).collect();
            let Some((first, _)) = chunk.first() else { break };
            let low = previous.as_ref().map_or(K::LOWEST.to_owned(), |previous| K::separator(previous.borrow(), first.borrow()));
            for (key, _) in &chunk {
                if previous.as_ref().is_some_and(|previous| previous >= key) {
                    return Err(Cause::Unsorted { position: count }.into());
                }
                previous = Some(key.clone());
                count += 1;
            }
            self.add(0, low, chunk.iter().map(|(key, value)| Entry { head: key.borrow().head(0), value: *value }))?;
        }
        self.finish(None);
        self.leaves = self.lows.len();
        for level in 1.. {
            if self.lows.len() < 2 {
                break;
            }
            for children in std::mem::take(&mut self.lows).chunks(size.max(2)) {
                self.add(level, children[0].0.clone(), children.iter().map(|(low, child)| Entry { head: low.borrow().head(0), value: *child }))?;
            }
            self.finish(None);
        }
        Ok(count)
    }

    fn add(&mut self, level: usize, low: K::Owned, entries: impl Iterator<Item = Entry>) -> Result<(), Error> {
        let (word, fence) = low.borrow().fence(self.pool)?;
        self.fences.extend(fence.map(|fence| fence.flush()));
        let node = self.pool.alloc::<N>()?;
        node.build(self.pool, &Birth { next: 0, low: word, level }, entries);
        self.lows.push((low, linked(node.off())));
        self.finish(Some(node));
        Ok(())
    }

    /// Links the last node with the next of its level, if there is one, and flushes it.
    fn finish(&mut self, next: Option<Fresh<'p, N, M>>) {
        if let Some(last) = std::mem::replace(&mut self.last, next) {
            self.pool.store(last.next(), self.last.as_ref().map_or(0, |next| next.off().link()), Relaxed);
            self.nodes.push(last.flush_first(N::BUILT));
        }
    }
}
