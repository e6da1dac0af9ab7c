//! Making, opening, loading and checking a list.
//!
//! Recovery follows the list once, builds towers over it, and has nothing to repair: a crash leaves the list as it was before or after a change. A closed list
//! records how many keys it has (`image.rs`), because a link damaged to 0 would end it. A list with another number of keys is not opened any more.

use super::{DISORDER, FORM, HEAD, LEVELS, ListRoot, MISCOUNTED, NODE, Node, Place, Segment, Skip, Tower, damage};
use crate::arena::{Arena, Numbers};
use crate::counter::Counter;
use crate::image;
use crate::registry::{Recovery, find_root, in_shares, kind_of};
use crate::selective::leaf::Entry;
use crate::{Cause, Error, Key, OrderedIndex, Stats, ascending};
use everleaf_pmem::{Medium, Off, Pool};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, Release};

const OTHERS: &str = "a list that has other entries than when it was closed";

impl<K: Key + ?Sized, M: Medium, const RARE: u32> Skip<K, M, RARE> {
    /// Creates an empty list and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub(crate) fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str) -> Result<Self, Error> {
        let root = pool.alloc_zeroed::<ListRoot>()?;
        pool.store(&root.form, FORM, Relaxed);
        let root = pool.link_root(name, kind_of::<K>(kind), pool.seal(root))?;
        Ok(Self::new(pool, root))
    }

    fn new(pool: &Arc<Pool<M>>, root: Off<ListRoot>) -> Self {
        let towers = Arena::new();
        let head: &Tower = towers.get_or_make(HEAD as usize);
        assert!(head.latch.revive(), "a latch of zeroes has not begun");
        head.set_node(Off::NULL, LEVELS);
        let (numbers, levels) = (Numbers::from(HEAD + 1), AtomicUsize::new(1));
        Self { pool: pool.clone(), root, towers, numbers, levels, keys: Counter::default(), _key: PhantomData }
    }

    /// Opens an existing list.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`]; damage.
    pub(crate) fn open(pool: &Arc<Pool<M>>, name: &str, kind: &'static str, recovery: &Recovery<'_, M>) -> Result<Self, Error> {
        let list = Self::new(pool, Off::new(find_root::<K, M>(pool, name, kind)?));
        let at_root = |what| damage(Off::new(list.root.bytes()), what);
        let form = &pool.at(list.root, "the root block of a list does not lie in the pool")?.form;
        match form.get() {
            FORM => {}
            // Who looks at a pool is to salvage what there is.
            MISCOUNTED if pool.writable().is_err() => {}
            MISCOUNTED => return Err(at_root(OTHERS)),
            _ => return Err(at_root("the root block of a list of another form")),
        }
        let keys_left = image::take(pool, &list.root().image, recovery.reach.is_none());
        let places = list.survey()?;
        if keys_left.is_some_and(|left| left != [places.len() as u64]) {
            // The count is gone with the image, and what the list does not lead to would be free.
            pool.store(form, MISCOUNTED, Relaxed);
            pool.persist(form);
            return Err(at_root(OTHERS));
        }
        // The nodes of a list that ends do not overlap, as they have one size and their offsets are multiples of it.
        let root = list.root.bytes()..list.root.bytes() + size_of::<ListRoot>() as u64;
        if let Some(inside) = places.iter().find(|place| place.off.bytes() < root.end && place.off.bytes() + NODE > root.start) {
            return Err(damage(inside.off, "a node that reaches into the root block of its list"));
        }
        if let Some(reach) = recovery.reach {
            reach.mark(list.root, size_of::<ListRoot>())?;
            places.iter().try_for_each(|place| reach.mark(place.off, size_of::<Node>()))?;
        }
        list.put(places.iter().rev().map(|place| (place.off, place.node.head.get())));
        list.keys.add(places.len() as i64);
        in_shares(&places, recovery.threads, |share| {
            share.iter().try_for_each(|place| {
                let value = place.value()?;
                recovery.trace.map_or(Ok(()), |trace| trace(value))
            })
        })?;
        Ok(list)
    }

    /// Puts towers on all nodes, from the last to the first, with the heads of their keys. No other thread uses the list, or the head is latched and has been
    /// the only tower: each other tower is complete before one leads to it.
    fn put(&self, nodes: impl Iterator<Item = (Off<Node>, u64)>) {
        let mut firsts = [HEAD; LEVELS];
        for (off, head) in nodes {
            let levels = Self::levels_of(off);
            if levels == 0 {
                continue;
            }
            let number = self.numbers.take();
            let tower = self.towers.get_or_make(number as usize);
            let lock = tower.latch.revive_locked().expect("a number serves one tower at a time");
            tower.head.store(head, Relaxed);
            tower.set_node(off, levels);
            for (next, first) in tower.next.iter().zip(&mut firsts).take(levels) {
                next.store(std::mem::replace(first, number), Relaxed);
            }
            drop(lock);
            self.levels.fetch_max(levels, Relaxed);
        }
        for (next, first) in self.tower(HEAD).next.iter().zip(firsts) {
            next.store(first, Release);
        }
    }

    /// All nodes, in the order in which they are linked, while no thread writes. Checks that the heads of their keys ascend, and that the list ends.
    pub(super) fn survey(&self) -> Result<Vec<Place<'_>>, Error> {
        let mut places: Vec<Place<'_>> = Vec::new();
        for place in Segment::new(&self.pool, None, Some(&self.root().first), Off::NULL) {
            let place = place?;
            let is_in_order = places.last().is_none_or(|before| {
                let (before, head) = (before.node.head.get(), place.node.head.get());
                before < head || before == head && !K::WHOLE
            });
            if !is_in_order {
                return Err(damage(place.off, DISORDER));
            }
            places.push(place);
        }
        Ok(places)
    }

    pub(super) fn visit_blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<ListRoot>())?;
        image::block(&self.pool, &self.root().image).map_or(Ok(()), |(off, size)| visit(off, size))?;
        self.survey()?.iter().try_for_each(|place| visit(place.off.bytes(), size_of::<Node>()))
    }

    pub(super) fn check_all(&self) -> Result<Stats, Error> {
        let places = self.survey()?;
        let (mut before, mut key) = (None, K::Owned::default());
        for place in &places {
            let Entry { head, value } = place.entry()?;
            K::read(&self.pool, head, value, &mut key)?;
            if (*key.borrow()).head(0) != head {
                return Err(damage(place.off, "a node whose head is not that of its key"));
            }
            if before.as_ref().is_some_and(|before| *before >= key) {
                return Err(damage(place.off, DISORDER));
            }
            before = Some(key.clone());
        }
        for level in 0..LEVELS {
            let mut next = self.tower(HEAD).next[level].load(Relaxed);
            for place in &places {
                let tower = self.tower(next);
                if next != HEAD && tower.node() == place.off {
                    if tower.latch.is_dead() || tower.levels() <= level || tower.head.load(Relaxed) != place.node.head.get() {
                        return Err(damage(place.off, "a node whose tower is not as it should be"));
                    }
                    next = tower.next[level].load(Relaxed);
                }
            }
            if next != HEAD {
                return Err(damage(self.tower(next).node(), "a tower without a node in the list"));
            }
        }
        let stats = self.stats();
        match stats.keys == places.len() as u64 {
            true => Ok(stats),
            false => Err(damage(Off::NULL, "a count that differs from what is there")),
        }
    }

    /// See [`OrderedIndex::bulk_load`].
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>) -> Result<(), Error> {
        let not_empty = || Error::from(Cause::NotEmpty { keys: self.keys.get() });
        let first = &self.root().first;
        // What another thread is writing there is durable when the latch is free.
        let is_empty = self.retry(|| {
            let lock = self.tower(HEAD).latch.try_lock()?;
            let is_empty = first.get() == 0;
            lock.release_unchanged();
            Ok(is_empty)
        })?;
        if !is_empty {
            return Err(not_empty());
        }
        let entries = ascending::<K>(entries)?;
        let (mut next, mut nodes) = (0, Vec::with_capacity(entries.len()));
        for (key, value) in entries.iter().rev() {
            let node = self.pool.alloc::<Node>()?;
            self.fill(&node, next, Entry { head: (*key).borrow().head(0), value: *value });
            next = node.off().link();
            nodes.push(node.flush());
        }
        let mut nodes = Some(self.pool.fence_all(nodes));
        self.retry(|| {
            let _lock = self.tower(HEAD).latch.try_lock()?;
            if first.get() != 0 || self.keys.get() > 0 {
                return Err(not_empty().into());
            }
            let offs: Vec<_> = nodes.take().into_iter().flatten().map(|node| node.release()).collect();
            self.pool.store(first, next, Release);
            self.pool.persist(first);
            self.put(offs.iter().zip(entries.iter().rev()).map(|(off, (key, _))| (*off, (*key).borrow().head(0))));
            self.keys.add(offs.len() as i64);
            Ok(())
        })
    }
}
