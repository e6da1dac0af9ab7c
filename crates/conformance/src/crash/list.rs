//! A sorted linked list in a pool, correct or with a deliberate mistake. It is small enough to know which rule each mistake breaks.
//!
//! ```text
//! root: | first | intent | waypoint | ...        node: | next | head | value | ... |   one line each
//! ```
//!
//! Insert seals a node and links it: the commit point is the link. Remove unlinks and retires. Update stores the value word. With [`REPAIR_NOT_DURABLE`] a node
//! is linked through the intent, which recovery completes. With [`WAYPOINT_DANGLES`] the waypoint is the node added last.

use crate::Class;
use everleaf_index::{Cause, Direction, Entry, Error, OrderedIndex, Recovery, Stats, Visit, Write};
use everleaf_pmem::{Durable, Medium, Off, Pool, Word};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// No mistake.
pub const RIGHT: u8 = 0;
/// The link is stored before the node is durable.
pub const LINK_BEFORE_SEAL: u8 = 1;
/// An update is not flushed.
pub const UPDATE_NOT_FLUSHED: u8 = 2;
/// An update removes and inserts.
pub const UPDATE_IN_TWO_STEPS: u8 = 3;
/// A removed node is not given back.
pub const NEVER_RETIRED: u8 = 4;
/// A node is given back although it is still linked.
pub const RETIRED_WHILE_LINKED: u8 = 5;
/// Recovery unlinks everything temporarily.
pub const RECOVERY_THROUGH_A_BAD_STATE: u8 = 6;
/// Recovery completes an insert but does not make that durable.
pub const REPAIR_NOT_DURABLE: u8 = 7;
/// As above, but right.
pub const REPAIR_DURABLE: u8 = 8;
/// An update inserts and then removes, and a crash in between leaves both.
pub const UPDATE_LEAVES_TWO: u8 = 9;
/// Recovery forgets to mark a node.
pub const NODE_NOT_MARKED: u8 = 10;
/// A new node does not link the next one.
pub const NEXT_NOT_COPIED: u8 = 11;
/// Recovery walks from the head to the node added last, and onward from there, as two threads would. Removing that node does not correct the waypoint.
pub const WAYPOINT_DANGLES: u8 = 12;

everleaf_pmem::resident! {
    struct Line {
        first: Word,
        second: Word,
        third: Word,
        rest: [Word; 5],
    }
}

/// The list with one of the mistakes above.
pub struct List<K: Class + ?Sized, M: Medium, const MISTAKE: u8> {
    pool: Arc<Pool<M>>,
    root: Off<Line>,
    latch: Mutex<()>,
    key: PhantomData<fn(&K)>,
}

type VisitLine<'a> = dyn FnMut(Off<Line>, &Line) -> Result<ControlFlow<()>, Error> + 'a;

/// The list as an entry of a registry.
pub fn entry<K: Class + ?Sized, M: Medium, const MISTAKE: u8>() -> Entry<K, M> {
    Entry {
        name: "list",
        summary: "a sorted linked list",
        persistent: true,
        leaf_capacity: 2,
        creator: |_, pool, name| {
            let root = pool.alloc::<Line>()?;
            [&root.first, &root.second, &root.third].iter().for_each(|word| pool.store(word, 0, Ordering::Relaxed));
            let root = pool.link_root(name, 1, pool.seal(root))?;
            Ok(Box::new(List::<K, M, MISTAKE> { pool: Arc::clone(pool), root, latch: Mutex::new(()), key: PhantomData }))
        },
        opener: |_, pool, name, recovery| Ok(Box::new(List::<K, M, MISTAKE>::open(pool, name, recovery)?)),
    }
}

impl<K: Class + ?Sized, M: Medium, const MISTAKE: u8> List<K, M, MISTAKE> {
    fn open(pool: &Arc<Pool<M>>, name: &str, recovery: &Recovery<'_, M>) -> Result<Self, Error> {
        let root = pool.root(name)?.ok_or(Cause::NoSuchIndex { name: name.to_owned(), kind: "list" })?;
        let list = Self { pool: Arc::clone(pool), root: Off::new(root.off), latch: Mutex::new(()), key: PhantomData };
        list.complete()?;
        if MISTAKE == RECOVERY_THROUGH_A_BAD_STATE && recovery.reach.is_some() {
            let first = &list.line(list.root)?.first;
            let link = first.get();
            list.set(first, 0);
            list.set(first, link);
        }
        if let Some(reach) = recovery.reach {
            reach.mark(list.root, size_of::<Line>())?;
            let mut mark = |off, node: &Line| {
                if MISTAKE != NODE_NOT_MARKED {
                    reach.mark(off, size_of::<Line>())?;
                }
                let value = value(node)?;
                recovery.trace.map_or(Ok(()), |trace| trace(value))?;
                Ok(ControlFlow::Continue(()))
            };
            let root = list.line(list.root)?;
            list.walk_between(&root.first, root.third.get(), &mut mark)?;
            list.walk_between(&root.third, 0, &mut mark)?;
        }
        Ok(list)
    }

    /// Completes the insert that the intent records.
    fn complete(&self) -> Result<(), Error> {
        let root = self.line(self.root)?;
        if root.second.get() == 0 {
            return Ok(());
        }
        let node = Off::<Line>::from_link(root.second.get())?;
        let mut key = K::Owned::default();
        let line = self.line(node)?;
        K::read(&self.pool, line.second.get(), value(line)?, &mut key)?;
        let (slot, found) = self.seek(key.borrow())?;
        if found.is_none() {
            self.pool.store(slot, node.link(), Ordering::Release);
        }
        if MISTAKE != REPAIR_NOT_DURABLE {
            self.pool.persist(slot);
        }
        self.set(&root.second, 0);
        Ok(())
    }

    fn line(&self, off: Off<Line>) -> Result<&Line, Error> {
        Ok(self.pool.at(off, "a line of a list")?)
    }

    fn set(&self, word: &Word, value: u64) {
        self.pool.store(word, value, Ordering::Release);
        self.pool.persist(word);
    }

    fn walk(&self, visit: &mut VisitLine<'_>) -> Result<(), Error> {
        self.walk_between(&self.line(self.root)?.first, 0, visit)
    }

    /// Visits the nodes from `slot` to the one that `end` links, or to the last.
    fn walk_between<'a>(&'a self, mut slot: &'a Word, end: u64, visit: &mut VisitLine<'_>) -> Result<(), Error> {
        for _ in 0..self.pool.length() / size_of::<Line>() {
            if slot.get() == 0 || slot.get() == end {
                return Ok(());
            }
            let off = Off::from_link(slot.get())?;
            let node = self.line(off)?;
            if visit(off, node)?.is_break() {
                return Ok(());
            }
            slot = &node.first;
        }
        Err(everleaf_pmem::Error::corrupt(self.root.bytes(), "a list without an end").into())
    }

    /// The slot that links, or would link, `key`; and the node if it is there.
    fn seek(&self, key: &K) -> Result<(&Word, Option<Off<Line>>), Error> {
        let mut slot = &self.line(self.root)?.first;
        let mut found = None;
        let mut next = Some(slot.get());
        self.walk(&mut |off, node| {
            match key.compare(&self.pool, 0, node.second.get(), value(node)?)? {
                std::cmp::Ordering::Greater => slot = &self.line(off)?.first,
                std::cmp::Ordering::Equal => found = Some(off),
                std::cmp::Ordering::Less => {}
            }
            next = None;
            Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok((slot, found))
    }

    fn add(&self, slot: &Word, key: &K, word: NonZeroU64) -> Result<(), Error> {
        let node = self.pool.alloc::<Line>()?;
        let next = if MISTAKE == NEXT_NOT_COPIED { 0 } else { slot.get() };
        for (field, value) in [(&node.first, next), (&node.second, key.head(0)), (&node.third, word.get())] {
            self.pool.store(field, value, Ordering::Relaxed);
        }
        if MISTAKE == LINK_BEFORE_SEAL {
            self.pool.store(slot, node.off().link(), Ordering::Release);
            self.pool.flush(slot);
            self.pool.seal(node).release();
            return Ok(());
        }
        let node: Durable<'_, Line, M> = self.pool.seal(node);
        if matches!(MISTAKE, REPAIR_NOT_DURABLE | REPAIR_DURABLE) {
            let intent = &self.line(self.root)?.second;
            self.pool.link(intent, node);
            return self.complete();
        }
        let node = self.pool.link(slot, node);
        if MISTAKE == WAYPOINT_DANGLES {
            self.set(&self.line(self.root)?.third, node.link());
        }
        Ok(())
    }

    fn drop_node(&self, slot: &Word, node: Off<Line>) -> Result<NonZeroU64, Error> {
        let line = self.line(node)?;
        self.set(slot, line.first.get());
        let word = value(line)?;
        if MISTAKE != NEVER_RETIRED {
            self.pool.retire(node, &self.pool.pin());
        }
        Ok(word)
    }

    fn change(&self, slot: &Word, node: Off<Line>, key: &K, word: NonZeroU64) -> Result<NonZeroU64, Error> {
        if MISTAKE == UPDATE_IN_TWO_STEPS {
            let old = self.drop_node(slot, node)?;
            self.add(slot, key, word)?;
            return Ok(old);
        }
        if MISTAKE == UPDATE_LEAVES_TWO {
            self.add(slot, key, word)?;
            let fresh = Off::<Line>::from_link(slot.get())?;
            return self.drop_node(&self.line(fresh)?.first, node);
        }
        let line = self.line(node)?;
        let old = value(line)?;
        self.pool.store(&line.third, word.get(), Ordering::Release);
        if MISTAKE != UPDATE_NOT_FLUSHED {
            self.pool.persist(&line.third);
        }
        if MISTAKE == RETIRED_WHILE_LINKED {
            self.pool.retire(node, &self.pool.pin());
        }
        Ok(old)
    }
}

fn value(line: &Line) -> Result<NonZeroU64, Error> {
    NonZeroU64::new(line.third.get()).ok_or_else(|| everleaf_pmem::Error::corrupt(0, "a node without a value").into())
}

impl<K: Class + ?Sized, M: Medium, const MISTAKE: u8> OrderedIndex<K> for List<K, M, MISTAKE> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let _latch = self.latch.lock();
        let (_, node) = self.seek(key)?;
        node.map(|node| value(self.line(node)?)).transpose()
    }

    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        let _latch = self.latch.lock();
        let (slot, node) = self.seek(key)?;
        match (write, node) {
            (Write::Insert(_), Some(node)) => Ok(Some(value(self.line(node)?)?)),
            (Write::Insert(word) | Write::Upsert(word), None) => self.add(slot, key, word).map(|()| None),
            (Write::Upsert(word) | Write::Update(word), Some(node)) => self.change(slot, node, key, word).map(Some),
            (Write::Remove, Some(node)) => self.drop_node(slot, node).map(Some),
            (Write::Update(_) | Write::Remove, None) => Ok(None),
        }
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let _latch = self.latch.lock();
        let mut entries = Vec::new();
        self.walk(&mut |_, node| {
            let mut key = K::Owned::default();
            K::read(&self.pool, node.second.get(), value(node)?, &mut key)?;
            let bounds: (Bound<&K>, Bound<&K>) = match direction {
                Direction::Forward => (from, Bound::Unbounded),
                Direction::Reverse => (Bound::Unbounded, from),
            };
            if std::ops::RangeBounds::<K>::contains(&bounds, key.borrow()) {
                entries.push((key, value(node)?));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if direction == Direction::Reverse {
            entries.reverse();
        }
        let _ = entries.iter().try_for_each(|(key, value)| visit(key.borrow(), *value));
        Ok(())
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, _fill: f64) -> Result<(), Error> {
        // From the last node to the first: each is durable before it is linked, and one store links them all.
        let entries: Vec<_> = entries.collect();
        let (mut next, mut nodes) = (0, Vec::new());
        for (key, value) in entries.iter().rev() {
            let node = self.pool.alloc::<Line>()?;
            for (field, word) in [(&node.first, next), (&node.second, key.borrow().head(0)), (&node.third, value.get())] {
                self.pool.store(field, word, Ordering::Relaxed);
            }
            next = node.off().link();
            nodes.push(self.pool.seal(node));
        }
        self.set(&self.line(self.root)?.first, next);
        for node in nodes {
            node.release();
        }
        Ok(())
    }

    fn check(&self) -> Result<Stats, Error> {
        Ok(self.stats())
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<Line>())?;
        self.walk(&mut |off, _| visit(off.bytes(), size_of::<Line>()).map(ControlFlow::Continue))
    }

    fn stats(&self) -> Stats {
        let mut keys = 0;
        self.walk(&mut |_, _| {
            keys += 1;
            Ok(ControlFlow::Continue(()))
        })
        .expect("a list that has been opened");
        Stats { keys, ..Stats::default() }
    }
}
