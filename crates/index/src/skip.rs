//! A divided skip list: its lowest level is a linked list in persistent memory; the levels above are in DRAM (the baseline of J. Liu, S. Chen and L. Wang,
//! "LB+-Trees: Optimizing Persistent Index Performance on 3DXPoint Memory", PVLDB 13(7), 2020; W. Pugh, "Skip Lists: A Probabilistic Alternative to Balanced
//! Trees", CACM 33(6), 1990).
//!
//! ```text
//! level 2    head ------------------------------> tower                        DRAM
//! level 1    head -----------> tower -----------> tower ----------> tower      DRAM
//!              |                 |                  |                 |
//! level 0     root -> n -> n --> n ----> n -------> n -> n -> n ----> n        persistent
//! ```
//!
//! A node has one entry. Every fourth node has a tower above it, and every fourth tower of a level one more level. The root block links the first node; a node
//! is
//!
//! | byte | word |
//! |---|---|
//! | 0 | link of the next node, 0 at the end |
//! | 8 | head of the key |
//! | 16 | value |
//!
//! in a block of 32 bytes, so no node spans two lines. A tower is one line: its latch, its node, the head of that node's key, and the number of the next tower
//! on each of its levels.
//!
//! 1. The list holds every entry once, in the order of the keys; nothing else persists.
//! 2. The *segment* of a tower consists of the nodes from its own to the one before the next tower's; the head's segment begins with the first node. The latch
//!    of a tower guards the words that link its segment, the values in it, and which tower is next on each level.
//! 3. A latch is free only when all that it guards is durable. So no crash can take back what a reader has read between two equal versions (durable
//!    linearizability), and a thread that inserts behind an entry knows that the entry survives a crash.
//! 4. A thread that holds the latch of a tower only tries for latches of towers to the left, and searches for them again if they are taken: it does not wait
//!    for a tower that it found by a stale number.
//!
//! # Changes, in the segment of a latched tower
//!
//! - **Insert**: 1. A node that links the next one; flush, fence. A crash forgets it: it is unreachable. 2. The word that leads there := the node; flush,
//!   fence. 3. If the node is to have a tower, that becomes the next one of the latched tower, which ends the segment there; then, on each level above, the
//!   next one of a tower there, with only that tower's latch and its own held.
//! - **Update**: the value; flush, fence.
//! - **Removal**: the word that leads to the node := the next one; flush, fence. Then the node may be reused. A node with a tower is linked from the segment
//!   before: its tower is latched, and removed on each level from the top down; finally the tower before it is latched, too, whose segment continues with the
//!   rest.
//! - **Relocation**: a copy of a node; flush, fence. The word that leads to the node := the copy; flush, fence.
//! - **Bulk load**: all nodes, one fence; then the root block leads to the first.
//!
//! For a crash, each change is one word: before it is durable all is as before, afterwards nothing is missing. Nodes that are then unreachable are free memory.
//! Whether a node has a tower, and how high, is a hash of its offset, computed when the node is new and when the list is opened: as good as random, and without
//! contention.
//!
//! # Readers
//!
//! Readers take no lock. They trust the way down only at its end, where a tower was alive and not beyond the key, and the next tower was beyond it, at one
//! version of the former's latch: whatever way has led there, the key belongs to that segment. The same holds for the tower that comes before one on a level
//! above.
//!
//! # What is ours
//!
//! The paper says how the list is divided, and no more. Latch-free lists mark links of deleted entries before these are unlinked; their readers flush the link
//! that led to an entry, so that no crash takes back what they return. With latches of segments there are no intermediate states for recovery to repair.

mod open;
mod relocate;

use crate::arena::{Arena, Numbers};
use crate::counter::Counter;
use crate::image;
use crate::latch::{self, Latch, Locked, Stop};
use crate::scan::{LeafRead, bound_behind, gets_on_below, scan_leaves, scan_target, with_key};
use crate::selective::When;
use crate::selective::leaf::Entry;
use crate::selective::router::Target;
use crate::{Direction, Error, Key, OrderedIndex, Relocated, Stats, Visit, Write};
use bytemuck::Zeroable;
use everleaf_pmem::schedule::{
    self,
    atomic::{AtomicU32, AtomicU64},
};
use everleaf_pmem::{Medium, Off, Pool, Word, resident};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

resident! {
    /// The root block of a list.
    struct ListRoot {
        /// Link of the first node.
        first: Word,
        /// Link of the [image](crate::image), which holds the number of keys; 0 while the list is open.
        image: Word,
        /// [`FORM`], or [`MISCOUNTED`]. A root block of zeroes is not an empty list.
        form: Word,
        reserved: [Word; 5],
    }
}

resident! {
    /// See the module documentation.
    struct Node {
        next: Word,
        head: Word,
        value: Word,
    }
}

/// A list of nodes as described above.
const FORM: u64 = 1;
/// A list that was found to have other entries than when it was closed, and must not be opened.
const MISCOUNTED: u64 = 2;
/// Size of the block of a node; its offset is a multiple of this.
const NODE: u64 = 32;
/// Levels of towers: as many as fit in the line. In a list of many times 4^10 nodes, searches begin with more steps on the highest level.
const LEVELS: usize = 10;
/// The tower that leads to the first node, and has no key.
const HEAD: u32 = 0;
/// Entries that a scan collects at once, if there are as many: segments are short.
const GATHERED: usize = 32;
/// Number of nodes followed before checking whether they still belong to the segment.
const STEPS: usize = 64;

/// See the module documentation. All zeroes: it does not live.
#[derive(Zeroable)]
#[repr(C, align(64))]
struct Tower {
    latch: Latch,
    /// The head of the key of its node.
    head: AtomicU64,
    /// The offset of its node in bytes; the low bits, which are 0 in that, hold its number of levels.
    node: AtomicU64,
    /// By level; 0 at the end, since the head is behind no tower.
    next: [AtomicU32; LEVELS],
}

impl Tower {
    fn node(&self) -> Off<Node> {
        Off::new(self.node.load(Relaxed) & !(NODE - 1))
    }

    fn levels(&self) -> usize {
        (self.node.load(Relaxed) % NODE) as usize
    }

    fn set_node(&self, node: Off<Node>, levels: usize) {
        self.node.store(node.bytes() | levels as u64, Relaxed);
    }
}

/// A tower, and the version of its latch at which something was found out about it.
struct Reached<'a> {
    number: u32,
    tower: &'a Tower,
    version: u64,
}

/// A node, and the word of its segment that leads to it; `None` for the first node of a tower.
struct Place<'a> {
    slot: Option<&'a Word>,
    off: Off<Node>,
    node: &'a Node,
}

/// Where a key is, or belongs.
enum Found<'a> {
    Entry(Place<'a>, NonZeroU64),
    Gap(&'a Word),
}

/// See the module documentation. One of 2^`RARE` nodes has a tower.
pub(crate) struct Skip<K: Key + ?Sized, M: Medium, const RARE: u32> {
    pool: Arc<Pool<M>>,
    root: Off<ListRoot>,
    towers: Arena<Tower, 64>,
    numbers: Numbers,
    /// The most levels that any tower has had: searches begin there.
    levels: AtomicUsize,
    keys: Counter,
    _key: PhantomData<fn(&K)>,
}

/// The nodes of a segment, or of a list.
struct Segment<'a, M: Medium> {
    pool: &'a Pool<M>,
    /// Most nodes that may follow; more mean that the list leads to itself.
    left: usize,
    first: Option<Off<Node>>,
    /// The word that leads to the next one.
    slot: Option<&'a Word>,
    end: Off<Node>,
}

impl<'a, M: Medium> Segment<'a, M> {
    fn new(pool: &'a Pool<M>, first: Option<Off<Node>>, slot: Option<&'a Word>, end: Off<Node>) -> Self {
        Self { pool, left: pool.length() / NODE as usize, first, slot, end }
    }
}

impl<'a, M: Medium> Iterator for Segment<'a, M> {
    type Item = Result<Place<'a>, Error>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (slot, off) = match self.first.take() {
            Some(off) => (None, off),
            None => match self.slot?.get() {
                0 => return None,
                link => match Off::from_link(link) {
                    Ok(off) if off == self.end => return None,
                    Ok(off) => (self.slot, off),
                    Err(error) => return Some(Err(error.into())),
                },
            },
        };
        if self.left == 0 {
            return Some(Err(damage(off, DISORDER)));
        }
        self.left -= 1;
        Some(node_at(self.pool, off).map(|node| {
            self.slot = Some(&node.next);
            Place { slot, off, node }
        }))
    }
}

#[inline(always)]
fn node_at<M: Medium>(pool: &Pool<M>, off: Off<Node>) -> Result<&Node, Error> {
    match pool.get(off) {
        Some(node) if off.bytes().is_multiple_of(NODE) => Ok(node),
        _ => Err(damage(off, "a node does not lie in the pool")),
    }
}

fn value_at<M: Medium>(pool: &Pool<M>, off: Off<Node>) -> Result<NonZeroU64, Error> {
    Place { slot: None, off, node: node_at(pool, off)? }.value()
}

const DISORDER: &str = "a node that is not in the order of keys";

fn damage(at: Off<Node>, what: &'static str) -> Error {
    everleaf_pmem::Error::corrupt(at.bytes(), what).into()
}

impl Place<'_> {
    #[inline(always)]
    fn value(&self) -> Result<NonZeroU64, Error> {
        NonZeroU64::new(self.node.value.get()).ok_or_else(|| damage(self.off, "a node without a value"))
    }

    fn entry(&self) -> Result<Entry, Error> {
        Ok(Entry { head: self.node.head.get(), value: self.value()? })
    }
}

impl<K: Key + ?Sized, M: Medium, const RARE: u32> Skip<K, M, RARE> {
    fn root(&self) -> &ListRoot {
        self.pool.get(self.root).expect("the root block was checked when the list was opened")
    }

    /// A tower by a number that was given out.
    #[inline(always)]
    fn tower(&self, number: u32) -> &Tower {
        self.towers.get(number as usize).expect("a number of a tower was handed out with the tower")
    }

    /// The next tower on a level.
    #[inline(always)]
    fn next(&self, tower: &Tower, level: usize) -> Option<(u32, &Tower)> {
        match tower.next[level].load(Acquire) {
            HEAD => None,
            next => Some((next, self.tower(next))),
        }
    }

    /// The nodes of the segment of a tower.
    #[inline(always)]
    fn segment(&self, number: u32, tower: &Tower) -> Segment<'_, M> {
        let end = self.next(tower, 0).map_or(Off::NULL, |(_, next)| next.node());
        match number {
            HEAD => Segment::new(&self.pool, None, Some(&self.root().first), end),
            _ => Segment::new(&self.pool, Some(tower.node()), None, end),
        }
    }

    /// Levels of the tower of a node at this offset: mostly none.
    fn levels_of(off: Off<Node>) -> usize {
        // The finalizer of SplitMix64.
        let mixed = (off.bytes() ^ off.bytes() >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31).trailing_zeros() / RARE).min(LEVELS as u32) as usize
    }

    /// Whether a tower, which may be dead, comes before the target, or begins with it.
    #[inline(always)]
    fn leads(&self, tower: &Tower, target: Target<'_, K>) -> Result<bool, Stop> {
        let (key, or_equal) = match target {
            Target::At(key) => (key, true),
            Target::Below(key) => (key, false),
            Target::Last => return Ok(true),
        };
        let order = match key.head(0).cmp(&tower.head.load(Relaxed)) {
            Order::Equal if !K::WHOLE => self.compare(tower, key)?,
            order => order,
        };
        Ok(order == Order::Greater || or_equal && order == Order::Equal)
    }

    /// Compares a key with that of a tower, which may be dead, by its record. The caller is pinned.
    fn compare(&self, tower: &Tower, key: &K) -> Result<Order, Stop> {
        let (head, off) = (tower.head.load(Relaxed), tower.node());
        match value_at(&self.pool, off).and_then(|value| key.compare(&self.pool, 0, head, value)) {
            Ok(order) => Ok(order),
            Err(error) if !tower.latch.is_dead() && tower.head.load(Relaxed) == head && tower.node() == off => Err(error.into()),
            Err(_) => Err(Stop::Restart),
        }
    }

    /// The last tower of a level that leads to a target, at a version at which it was. Waits for no other thread.
    #[inline(always)]
    fn reach(&self, target: Target<'_, K>, level: usize) -> Result<Reached<'_>, Stop> {
        let (mut number, mut tower, mut beyond) = (HEAD, self.tower(HEAD), HEAD);
        for above in (level + 1..self.levels.load(Relaxed)).rev() {
            while let Some((next, behind)) = self.next(tower, above).filter(|(next, _)| *next != beyond) {
                if !self.leads(behind, target)? {
                    beyond = next;
                    break;
                }
                (number, tower) = (next, behind);
            }
        }
        loop {
            let version = tower.latch.try_read()?;
            if number != HEAD && (tower.levels() <= level || !self.leads(tower, target)?) {
                // Another tower, in another life.
                return Err(Stop::Restart);
            }
            match self.next(tower, level) {
                Some((next, behind)) if self.leads(behind, target)? => (number, tower) = (next, behind),
                _ => {
                    tower.latch.validate_unappended(version)?;
                    return Ok(Reached { number, tower, version });
                }
            }
        }
    }

    /// Returns what was concluded from a segment, if nothing of it has changed since it was reached.
    #[inline(always)]
    fn settled<T>(&self, reached: &Reached<'_>, conclusion: Result<T, Error>) -> Result<T, Stop> {
        reached.tower.latch.validate_unappended(reached.version)?;
        Ok(conclusion?)
    }

    /// Finds a key in its segment.
    #[inline(always)]
    fn find(&self, reached: &Reached<'_>, key: &K) -> Result<Found<'_>, Stop> {
        let mut segment = self.segment(reached.number, reached.tower);
        for step in 1.. {
            let Some(place) = segment.next() else { break };
            let compared = place.and_then(|place| {
                let Entry { head, value } = place.entry()?;
                Ok((key.compare(&self.pool, 0, head, value)?, place, value))
            });
            match compared {
                Ok((Order::Greater, ..)) => (),
                Ok((Order::Equal, place, value)) => return self.settled(reached, Ok(Found::Entry(place, value))),
                Ok((Order::Less, Place { slot: Some(slot), .. }, _)) => return self.settled(reached, Ok(Found::Gap(slot))),
                Ok((Order::Less, Place { off, .. }, _)) => return self.settled(reached, Err(damage(off, "a node whose key is not that of its tower"))),
                Err(error) => return self.settled(reached, Err(error)),
            }
            if step % STEPS == 0 {
                self.settled(reached, Ok(()))?;
            }
        }
        let slot = segment.slot.expect("a segment has a node, or the root block before it");
        self.settled(reached, Ok(Found::Gap(slot)))
    }

    /// See [`latch::retry`].
    #[inline(always)]
    fn retry<T>(&self, attempt: impl FnMut() -> Result<T, Stop>) -> Result<T, Error> {
        latch::retry::<K, _, _>(&self.pool, attempt)
    }

    #[inline(always)]
    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        self.retry(|| {
            let reached = self.reach(Target::At(key), 0)?;
            match self.find(&reached, key)? {
                Found::Entry(_, old) if !when.concerns(true) => Ok(Some(old)),
                Found::Gap(_) if !when.concerns(false) => Ok(None),
                Found::Entry(Place { node, .. }, old) => {
                    let _lock = reached.tower.latch.lock_from(reached.version)?;
                    self.pool.store(&node.value, value.get(), Release);
                    self.pool.persist(&node.value);
                    Ok(Some(old))
                }
                Found::Gap(slot) => {
                    let node = self.pool.alloc::<Node>()?;
                    let lock = reached.tower.latch.lock_from(reached.version)?;
                    self.fill(&node, slot.get(), Entry { head: key.head(0), value });
                    let off = self.pool.link(slot, self.pool.seal(node));
                    self.raise(key, off, &reached, lock);
                    self.keys.add(1);
                    Ok(None)
                }
            }
        })
    }

    /// Writes a node that is not reachable yet.
    fn fill(&self, node: &Node, next: u64, Entry { head, value }: Entry) {
        self.pool.store(&node.next, next, Relaxed);
        self.pool.store(&node.head, head, Relaxed);
        self.pool.store(&node.value, value.get(), Relaxed);
    }

    /// Gives a new node in a latched segment its tower, if it is to have one.
    fn raise(&self, key: &K, off: Off<Node>, before: &Reached<'_>, lock: Locked<'_>) {
        let levels = Self::levels_of(off);
        if levels == 0 {
            return;
        }
        let number = self.numbers.take();
        let tower = self.towers.get_or_make(number as usize);
        let own = tower.latch.revive_locked().expect("a number serves one tower at a time");
        tower.head.store(key.head(0), Relaxed);
        tower.set_node(off, levels);
        tower.next[0].store(before.tower.next[0].load(Relaxed), Relaxed);
        before.tower.next[0].store(number, Release);
        drop(lock);
        self.levels.fetch_max(levels, Relaxed);
        for level in 1..levels {
            // Damage on the way is left for others to report: the insert is as good as done.
            let linked = self.beside(key, level, |left| {
                tower.next[level].store(left.next[level].load(Relaxed), Relaxed);
                left.next[level].store(number, Release);
                Ok(())
            });
            if linked.is_err() {
                tower.set_node(off, level);
                break;
            }
        }
        drop(own);
    }

    /// Changes, under its latch, the last tower of a level below a key. The caller holds the latch of the key's tower.
    fn beside(&self, key: &K, level: usize, change: impl Fn(&Tower) -> Result<(), Error>) -> Result<(), Error> {
        self.retry(|| {
            let Reached { tower, version, .. } = self.reach(Target::Below(key), level)?;
            let _lock = tower.latch.lock_from(version)?;
            Ok(change(tower)?)
        })
    }

    #[inline(always)]
    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.retry(|| {
            let reached = self.reach(Target::At(key), 0)?;
            let Found::Entry(place, value) = self.find(&reached, key)? else { return Ok(None) };
            let lock = reached.tower.latch.lock_from(reached.version)?;
            match place.slot {
                Some(slot) => {
                    self.unlink(slot, &place);
                    drop(lock);
                }
                None => self.take_first(key, &reached, lock, &place)?,
            }
            self.pool.retire(place.off, &self.pool.pin());
            self.keys.add(-1);
            Ok(Some(value))
        })
    }

    /// Unlinks a node to which a word of a latched segment leads.
    fn unlink(&self, slot: &Word, place: &Place<'_>) {
        self.pool.store(slot, place.node.next.get(), Release);
        self.pool.persist(slot);
    }

    /// Removes a latched tower, and its node.
    #[cold]
    fn take_first(&self, key: &K, reached: &Reached<'_>, lock: Locked<'_>, place: &Place<'_>) -> Result<(), Error> {
        let Reached { number, tower, .. } = *reached;
        for level in (1..tower.levels()).rev() {
            self.beside(key, level, |left| {
                if left.next[level].load(Relaxed) != number {
                    return Err(damage(place.off, DISORDER));
                }
                left.next[level].store(tower.next[level].load(Relaxed), Release);
                Ok(())
            })?;
            tower.set_node(place.off, level);
        }
        let (left, left_lock, slot) = self.hold_before(key, reached, place)?;
        self.unlink(slot, place);
        left.next[0].store(tower.next[0].load(Relaxed), Release);
        drop(left_lock);
        lock.release_obsolete();
        schedule::drain();
        self.numbers.give(number);
        Ok(())
    }

    /// Latches the tower before a latched one, and finds the word in its segment that leads to the node of the latter.
    fn hold_before(&self, key: &K, reached: &Reached<'_>, place: &Place<'_>) -> Result<(&Tower, Locked<'_>, &Word), Error> {
        self.retry(|| {
            let left = self.reach(Target::Below(key), 0)?;
            let mut segment = self.segment(left.number, left.tower);
            for (step, place) in segment.by_ref().enumerate() {
                if step % STEPS == STEPS - 1 || place.is_err() {
                    self.settled(&left, place)?;
                }
            }
            let is_before = left.tower.next[0].load(Acquire) == reached.number;
            let slot = segment.slot.filter(|slot| is_before && slot.get() == place.off.link());
            let slot = self.settled(&left, slot.ok_or_else(|| damage(place.off, DISORDER)))?;
            Ok((left.tower, left.tower.latch.lock_from(left.version)?, slot))
        })
    }

    /// The key at which the segment of a tower begins. Its head is the one that searches use.
    fn low(&self, number: u32, tower: &Tower) -> Result<K::Owned, Error> {
        let mut key = K::LOWEST.to_owned();
        if number != HEAD {
            let off = tower.node();
            let head = tower.head.load(Relaxed);
            K::read(&self.pool, head, value_at(&self.pool, off)?, &mut key)?;
            if (*key.borrow()).head(0) != head {
                return Err(damage(off, DISORDER));
            }
        }
        Ok(key)
    }

    /// The end of the segment of a tower. It must be above `key`, the key that has led there, if any.
    fn high(&self, tower: &Tower, key: Option<&K>) -> Result<Option<K::Owned>, Error> {
        let Some((number, next)) = self.next(tower, 0) else { return Ok(None) };
        let high = self.low(number, next)?;
        if key.is_none_or(|key| *high.borrow() > *key) { Ok(Some(high)) } else { Err(damage(next.node(), DISORDER)) }
    }

    /// The bound with which a scan continues behind the segment of a tower. It must be beyond `from`, so that the scan advances.
    fn behind(&self, reached: &Reached<'_>, from: &Bound<K::Owned>, direction: Direction) -> Result<Option<Bound<K::Owned>>, Error> {
        if direction == Direction::Forward {
            let key = match from {
                Bound::Included(key) | Bound::Excluded(key) => Some(key.borrow()),
                Bound::Unbounded => None,
            };
            return Ok(self.high(reached.tower, key)?.map(Bound::Included));
        }
        let low = self.low(reached.number, reached.tower)?;
        match gets_on_below::<K>(from, &low) {
            true => Ok(bound_behind::<K>(direction, || low, || None)),
            false => Err(damage(reached.tower.node(), DISORDER)),
        }
    }

    /// The entries of the segment with which a scan begins or continues; if the scan goes upwards, also of some segments behind it; and the bound for the rest.
    fn read(&self, from: &Bound<K::Owned>, direction: Direction, entries: &mut Vec<Entry>) -> Result<Option<Bound<K::Owned>>, Stop> {
        entries.clear();
        let mut reached = self.reach(scan_target::<K>(from, direction), 0)?;
        loop {
            for (step, place) in self.segment(reached.number, reached.tower).enumerate() {
                match place.and_then(|place| place.entry()) {
                    Ok(entry) => entries.push(entry),
                    Err(error) => return self.settled(&reached, Err(error)),
                }
                if step % STEPS == STEPS - 1 {
                    self.settled(&reached, Ok(()))?;
                }
            }
            match self.next(reached.tower, 0).filter(|_| direction == Direction::Forward && entries.len() < GATHERED) {
                Some((number, tower)) => {
                    let version = tower.latch.read_below(&reached.tower.latch, reached.version)?;
                    reached = Reached { number, tower, version };
                }
                None => return self.settled(&reached, self.behind(&reached, from, direction)),
            }
        }
    }
}

impl<K: Key + ?Sized, M: Medium, const RARE: u32> OrderedIndex<K> for Skip<K, M, RARE> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.retry(|| {
            let reached = self.reach(Target::At(key), 0)?;
            Ok(match self.find(&reached, key)? {
                Found::Entry(_, value) => Some(value),
                Found::Gap(_) => None,
            })
        })
    }

    #[inline(always)]
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        write.sets().map_or_else(|| self.take(key), |(value, when)| self.set(key, value, when))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let read = |from: &Bound<K::Owned>, entries: &mut Vec<Entry>| self.retry(|| self.read(from, direction, entries)).map(LeafRead::from);
        scan_leaves(&self.pool, from, direction, |entry| *entry, read, |_| {}, with_key(&self.pool, |entry| *entry, visit))
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, _fill: f64) -> Result<(), Error> {
        self.load(entries)
    }

    fn check(&self) -> Result<Stats, Error> {
        self.check_all()
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.visit_blocks(visit)
    }

    fn relocate(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        self.relocate_segments(from, leaves_max, is_leaving)
    }

    fn close(&self) -> Result<(), Error> {
        image::leave(&self.pool, &self.root().image, &[self.keys.get()])
    }

    fn stats(&self) -> Stats {
        let keys = self.keys.get();
        Stats { keys, leaves: keys, leaf_bytes: keys * NODE, depth: self.levels.load(Relaxed) as u32 + 1, ..Stats::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recovery;
    use everleaf_pmem::{Hardware, PoolOptions};

    type List = Skip<u64, Hardware, 2>;

    fn filled(keys: u64) -> List {
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 16 << 20, ..PoolOptions::default() }).unwrap();
        let list = List::create(&pool, "list", "skip").unwrap();
        (0..keys).for_each(|key| assert_eq!(list.insert(&(key * 7919 % keys), NonZeroU64::MIN).unwrap(), None));
        list
    }

    fn opened(list: &List) -> Result<List, Error> {
        List::open(&list.pool, "list", "skip", &Recovery { reach: None, trace: None, threads: 2 })
    }

    /// Number of towers on a level.
    fn towers(list: &List, level: usize) -> usize {
        std::iter::successors(list.next(list.tower(HEAD), level), |(_, tower)| list.next(tower, level)).count()
    }

    /// One node in four has a tower, and one in four of these another level. Towers disappear with their nodes, and are the same when the list is opened again.
    #[test]
    fn towers_come_and_go_with_nodes() {
        let list = filled(20_000);
        let heights: Vec<_> = (0..4).map(|level| towers(&list, level)).collect();
        assert!((4_500..5_500).contains(&heights[0]) && (1_000..1_500).contains(&heights[1]), "{heights:?}");
        assert_eq!((0..4).map(|level| towers(&opened(&list).unwrap(), level)).collect::<Vec<_>>(), heights);
        for key in 0..20_000 {
            assert!(list.remove(&key).unwrap().is_some());
            assert!(key % 1000 > 0 || list.check().is_ok());
        }
        assert_eq!((0..LEVELS).map(|level| towers(&list, level)).sum::<usize>(), 0);
        assert_eq!(list.root().first.get(), 0);
    }

    /// A list that returns to one of its nodes, or leads to an impossible one, is not followed forever.
    #[test]
    fn a_list_that_is_none_is_damage() {
        let list = filled(100);
        let node = |key: u64| list.survey().unwrap()[key as usize].off;
        let (fifth, last) = (node(5), node(99));
        for (of, forged) in [(last, fifth), (last, last), (fifth, Off::new(fifth.bytes() + 8)), (fifth, Off::new(1 << 40))] {
            let word = &list.pool.get(of).unwrap().next;
            let was = word.get();
            list.pool.store(word, forged.link(), Release);
            assert!(opened(&list).is_err() && list.check().is_err(), "{of:?} leads to {forged:?}");
            list.pool.store(word, was, Release);
        }
        assert_eq!(opened(&list).unwrap().check().unwrap().keys, 100);
    }

    /// The first opening takes the count away.
    #[test]
    fn a_list_that_has_lost_its_end_was_opened_the_second_time() {
        let list = filled(100);
        list.close().unwrap();
        let word = &list.survey().unwrap()[50].node.next;
        list.pool.store(word, 0, Release);
        for _ in 0..3 {
            assert!(opened(&list).is_err());
        }
    }
}
