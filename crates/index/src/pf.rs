//! PFtree: a radix tree whose leaves are arrays of whole records (R. Zhang, Y. Wu, S. Sun, L. Chen, Y. Huang, M. Yan and J. Wu, "PFtree: Optimizing Persistent
//! Adaptive Radix Tree for PM Systems on eADR Platform", DASFAA 2023), with inner nodes after those of ROART (S. Ma, K. Chen, S. Chen, M. Liu, J. Zhu, H. Kang
//! and Y. Wu, "ROART: Range-query Optimized Persistent ART", FAST 2021).
//!
//! ```text
//! root block: top -> inner node of level 0, of the largest kind
//! inner node      tells its keys apart by one digit: child words, one for each digit that occurs
//! array           all keys with the same first digits, up to a limit: PFtree's with key, value and a meta word side by side, ROART's with words that lead
//!                 to records
//! ```
//!
//! The two trees differ in the [`form`] of their arrays. The following describes PFtree's, and holds for ROART's except where that module says otherwise. With
//! arrays of one record it is P-ART, see below. The bytes are in [`block`]. Latches are in DRAM ([`crate::latch`]), one for each line. Beside them is what else
//! DRAM knows of a block ([`side`]): its kind, and where an array has which records. So a search that has the word of a child fetches the child and this data
//! at once: a lookup reads one line of each of the largest nodes on its way, and one of PFtree's array.
//!
//! 1. All keys below a node begin with the same `level` digits, and differ in the next, each value of which is a child; those of an array share the digits of
//!    the node above, and the one that leads to the array. Levels ascend on every way down, and never change.
//! 2. A node other than the top has two children or more. An array has a record or more; in PFtree's perhaps none counts. So below each node there is a key to
//!    be read.
//! 3. A node does not store its prefix: a thread that needs it reads a key below. So nothing in a node changes when another is put above it, or taken away; the
//!    two steps of ART's persistent variants, with their intermediate states, are one: the word that leads to the node.
//! 4. An array moves below a node of another level only under its latch: a thread that has found it knows how many digits its keys share. The digits that the
//!    keys of a node share do not depend on where the node is.
//! 5. A block changes only under its latch. The latch is free when all changes are durable, or while the block is only appended to, where readers do not look
//!    yet. So no crash can take back what a reader has read between two equal versions (durable linearizability).
//!
//! # Changes
//!
//! - **Insert into an array with room**: [`block::append`]. Its meta word makes it count; readers see it behind that fence.
//! - **Update**: the value, one word; persist. The paper appends a new record, because its values are of any size.
//! - **Removal**: the meta word; persist. The record stays where it is, and so does its key.
//! - **A key that no child leads to**: an array with its record; flush, fence; then the word in the node; persist. If the node is full, a larger copy with that
//!   word; then the word above it.
//! - **An array without room**: a larger array of the records that count, and the new one; or, if they are too many, a node with the digits in which they first
//!   differ, and an array for each group; flush all, one fence; then the word above; persist.
//! - **A key that differs within a prefix**: a node of the level where it does, over what was there, which stays as it is, and over an array with the record;
//!   flush, fence; then the word above; persist.
//! - **An array in which nothing counts any more**: its word := 0; persist. If one other child is left, the word above leads to that instead; persist. Nodes
//!   with few children are copied to smaller ones.
//!
//! So each change ends with one word that is stored and persisted while the blocks that it removes are latched. A crash before it leaves the old state, and
//! unreachable blocks, which are free memory. A crash in an append leaves words behind the last record; the next append overwrites them, with a new end behind.
//! Recovery has nothing to repair: it walks the tree and builds the data in DRAM.
//!
//! # A leaf for each key
//!
//! P-ART (S. K. Lee, J. Mohan, S. Kashyap, T. Kim and V. Chidambaram, "RECIPE: Converting Concurrent DRAM Indexes to Persistent-Memory Indexes", SOSP 2019) is
//! the adaptive radix tree as it was, persisted in the order of its stores; a child is a leaf of one key. Here that is an array of one record: another key
//! needs a node over both, below which the array stays as it is; and the array disappears with its key, by the word above, as a ROART array does with its last
//! record. So every record that is there counts.
//!
//! # Departures from the paper
//!
//! Values are aligned words, so they can be updated in place. A meta word has eight bytes instead of the paper's two: it contains a checksum, so damage is
//! found, and takes no more room in an aligned record of two words. Prefixes are not stored, see above. Latches and the other data in DRAM need no generation
//! numbers, because they are beside the pool and not in it. Arrays double up to the limit; the paper's have one size.

mod block;
mod form;
mod open;
mod relocate;
mod seek;
mod side;
mod structure;

use crate::counter::Counter;
use crate::latch::{self, Latch, Place, Restart, Stop};
use crate::scan::{LeafRead, scan_leaves, with_key};
use crate::selective::When;
use crate::selective::leaf::Entry;
use crate::{Direction, Error, Key, OrderedIndex, Relocated, Stats, Visit, Write};
use block::Shape;
use everleaf_pmem::{Durable, Medium, Off, Pool, Word, resident};
use form::Brought;
pub(crate) use form::{Direct, Form, Pointers};
use side::{Beside, Known, Lines, Side};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;

resident! {
    /// The root block of a tree.
    struct TreeRoot {
        /// Link of the top.
        top: Word,
        reserved: [Word; 7],
    }
}

/// The most records of an array that may ever count.
pub(crate) const RECORDS: usize = u64::BITS as usize;

/// Lines of a block that are prefetched before its kind is known.
const AHEAD: usize = 4;

/// See the module documentation.
pub(crate) struct Pf<K: Key + ?Sized, M: Medium, F: Form> {
    pool: Arc<Pool<M>>,
    root: Off<TreeRoot>,
    /// The most records of an array that count in this tree.
    records_max: usize,
    lines: Lines,
    keys: Counter,
    arrays: Counter,
    array_words: Counter,
    splits: Counter,
    _of: PhantomData<fn(&K, F)>,
}

/// An inner node, and the version at which it was found.
#[derive(Clone, Copy)]
struct Inner<'a> {
    off: Off<Word>,
    words: &'a [Word],
    level: usize,
    capacity: usize,
    latch: &'a Latch,
    version: u64,
}

/// An array, and the version at which it was found.
#[derive(Clone, Copy)]
pub(crate) struct Array<'a> {
    off: Off<Word>,
    words: &'a [Word],
    side: Side<'a>,
    latch: &'a Latch,
    version: u64,
}

#[derive(Clone, Copy)]
enum Child<'a> {
    Inner(Inner<'a>),
    Array(Array<'a>),
}

/// A word of an inner node that leads to a child.
#[derive(Clone, Copy)]
struct Step {
    /// The index of the word in the node.
    at: usize,
    digit: usize,
    child: Off<Word>,
}

/// The way down to a key, as far as most operations need it.
struct Way<'a> {
    /// The node above the last, and its step to the last; `None` if the last is the top.
    above: Option<(Inner<'a>, Step)>,
    /// The last inner node.
    last: Inner<'a>,
    /// The last step and its array; `None` if no child has the digit.
    end: Option<(Step, Array<'a>)>,
}

/// The way down to a key: all nodes, each with its step, and the array, unless there is no child where the key belongs.
struct Trail<'a> {
    nodes: Vec<(Inner<'a>, Option<Step>)>,
    array: Option<Array<'a>>,
}

/// A record that was found.
pub(crate) struct Found {
    /// The index of the word of the array at which it begins, or that leads to it.
    at: usize,
    /// The array's word for the value.
    payload: NonZeroU64,
    value: NonZeroU64,
}

impl<'a> Inner<'a> {
    /// The words of its children.
    fn children(&self) -> &'a [Word] {
        &self.words[1..=self.capacity]
    }

    /// Returns what was concluded from the node if it has not changed since it was found.
    #[inline(always)]
    #[track_caller]
    fn validated<T>(&self, conclusion: Result<T, Error>) -> Result<T, Stop> {
        self.latch.validate_unappended(self.version)?;
        Ok(conclusion?)
    }

    /// The child of a digit.
    #[inline(always)]
    fn child(&self, digit: usize) -> Result<Option<Step>, Error> {
        if self.capacity == block::DIGITS {
            let word = self.words[1 + digit].get();
            return match block::child_of(word) {
                Some((found, child)) if found == digit => Ok(Some(Step { at: 1 + digit, digit, child })),
                _ if word == 0 => Ok(None),
                _ => Err(self.damage()),
            };
        }
        let mut is_damaged = false;
        for (at, word) in self.children().iter().enumerate() {
            match block::child_of(word.get()) {
                Some((found, child)) if found == digit => return Ok(Some(Step { at: 1 + at, digit, child })),
                Some(_) => (),
                None => is_damaged |= word.get() != 0,
            }
        }
        if is_damaged { Err(self.damage()) } else { Ok(None) }
    }

    /// All children, in no order.
    fn steps(&self) -> impl Iterator<Item = Result<Step, Error>> {
        self.children().iter().enumerate().map(|(at, word)| (at, word.get())).filter(|(_, word)| *word != 0).map(|(at, word)| {
            let found = block::child_of(word).filter(|(digit, _)| self.capacity < block::DIGITS || *digit == at);
            let (digit, child) = found.ok_or_else(|| self.damage())?;
            Ok(Step { at: 1 + at, digit, child })
        })
    }

    /// The nearest child beyond a digit, or from the end of the node.
    fn nearest(&self, beyond: Option<usize>, direction: Direction) -> Result<Option<Step>, Error> {
        let digits = match (beyond, direction) {
            (None, _) => 0..block::DIGITS,
            (Some(digit), Direction::Forward) => digit + 1..block::DIGITS,
            (Some(digit), Direction::Reverse) => 0..digit,
        };
        if self.capacity == block::DIGITS {
            let leads = |digit: &usize| self.words[1 + digit].get() != 0;
            let nearest = if direction == Direction::Forward { digits.into_iter().find(leads) } else { digits.into_iter().rev().find(leads) };
            return Ok(nearest.map(|digit| self.child(digit)).transpose()?.flatten());
        }
        let mut nearest: Option<Step> = None;
        for step in self.steps() {
            let step = step?;
            let is_nearer = |than: Step| if direction == Direction::Forward { step.digit < than.digit } else { step.digit > than.digit };
            if digits.contains(&step.digit) && nearest.is_none_or(is_nearer) {
                nearest = Some(step);
            }
        }
        Ok(nearest)
    }

    /// Number of children.
    fn count(&self) -> usize {
        self.children().iter().filter(|word| word.get() != 0).count()
    }

    fn damage(&self) -> Error {
        everleaf_pmem::Error::corrupt(self.off.bytes(), "a node with a word that does not lead to the child of a digit").into()
    }
}

impl<'a> Array<'a> {
    /// As [`Inner::validated`]; records that were appended meanwhile do not matter.
    #[inline(always)]
    #[track_caller]
    fn validated<T>(&self, conclusion: Result<T, Error>) -> Result<T, Stop> {
        self.latch.validate(self.version)?;
        Ok(conclusion?)
    }

    fn damage(&self, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(self.off.bytes(), what).into()
    }
}

impl<'a> Trail<'a> {
    /// The last inner node.
    fn last(&self) -> &Inner<'a> {
        &self.nodes.last().expect("a way begins with the top").0
    }
}

impl<K: Key + ?Sized, M: Medium, F: Form> Pf<K, M, F> {
    fn root(&self) -> &TreeRoot {
        self.pool.get(self.root).expect("the root block was checked when the tree was opened")
    }

    /// The top.
    #[inline(always)]
    fn top(&self) -> Result<Inner<'_>, Stop> {
        let link = self.root().top.get();
        let top = Off::<Word>::from_link(link).map_err(|error| Stop::Failed(error.into()))?;
        let places = self.lines.rest_from(top.bytes()).map_err(|Restart| Stop::Failed(self.no_node(top)))?;
        let latch = &places[0].latch;
        let is_still_top = || if self.root().top.get() == link { Ok(()) } else { Err(Stop::Restart) };
        let Ok(version) = latch.read() else {
            let is_dead = latch.is_dead();
            is_still_top()?;
            return Err(if is_dead { Stop::Failed(self.no_node(top)) } else { Stop::Restart });
        };
        let known = self.known(top, places, version);
        // In this order: with this version it was the top, and what is known of it belongs to this version.
        is_still_top()?;
        latch.validate_unappended(version)?;
        match known? {
            Child::Inner(top) => Ok(top),
            Child::Array(_) => Err(Stop::Failed(self.no_node(top))),
        }
    }

    /// The child at an offset, with the version at which it was found.
    #[inline(always)]
    fn known<'a>(&'a self, off: Off<Word>, places: &'a [Place<Beside>], version: u64) -> Result<Child<'a>, Error> {
        let nowhere = || self.no_node(off);
        let Place { latch, beside } = &places[0];
        match beside.known() {
            Known::Inner { level, capacity } => {
                let words = self.pool.words(off, Shape::Inner { level, capacity }.words()).ok_or_else(nowhere)?;
                Ok(Child::Inner(Inner { off, words, level, capacity, latch, version }))
            }
            Known::Array { lines } => {
                let words = self.pool.words(off, lines * block::LINE_WORDS).ok_or_else(nowhere)?;
                Ok(Child::Array(Array { off, words, side: Side::of(&self.lines, off.bytes(), places, lines), latch, version }))
            }
        }
    }

    fn no_node(&self, off: Off<Word>) -> Error {
        everleaf_pmem::Error::corrupt(off.bytes(), "a link that does not lead to a node").into()
    }

    /// The child that a step leads to.
    #[inline(always)]
    fn follow(&self, from: &Inner<'_>, Step { child: off, .. }: Step) -> Result<Child<'_>, Stop> {
        // These lines hold an array of a few records, or a small node.
        self.pool.prefetch::<AHEAD>(off.bytes());
        let Ok(places) = self.lines.rest_from(off.bytes()) else { return from.validated(Err(self.no_node(off))) };
        let latch = &places[0].latch;
        let Ok(version) = latch.read_below(from.latch, from.version) else {
            let is_dead = latch.is_dead();
            from.latch.validate_unappended(from.version)?;
            return Err(if is_dead { Stop::Failed(self.no_node(off)) } else { Stop::Restart });
        };
        let known = self.known(off, places, version);
        // Otherwise it may already have been another block when its latch was read.
        from.latch.validate_unappended(from.version)?;
        match known? {
            Child::Inner(inner) if inner.level <= from.level => Err(Stop::Failed(self.no_node(off))),
            child => Ok(child),
        }
    }

    /// Descends to where a key is, or belongs.
    #[inline(always)]
    fn walk(&self, key: &K) -> Result<Way<'_>, Stop> {
        let mut last = self.top()?;
        let mut above = None;
        loop {
            let Some(step) = last.validated(last.child(block::digit(key, last.level)))? else { return Ok(Way { above, last, end: None }) };
            match self.follow(&last, step)? {
                Child::Inner(inner) => (above, last) = (Some((last, step)), inner),
                Child::Array(array) => return Ok(Way { above, last, end: Some((step, array)) }),
            }
        }
    }

    /// The same, with all nodes, down to one where it `stops`.
    fn trail(&self, key: &K, stops: impl Fn(&Inner<'_>) -> bool) -> Result<Trail<'_>, Stop> {
        let (mut node, mut nodes) = (self.top()?, Vec::with_capacity(8));
        loop {
            let step = if stops(&node) { None } else { node.validated(node.child(block::digit(key, node.level)))? };
            nodes.push((node, step));
            match step.map(|step| self.follow(&node, step)).transpose()? {
                Some(Child::Inner(inner)) => node = inner,
                Some(Child::Array(array)) => return Ok(Trail { nodes, array: Some(array) }),
                None => return Ok(Trail { nodes, array: None }),
            }
        }
    }

    /// See [`latch::retry`]. A removal is an append, so it does not disturb a thread that has found the record before.
    #[inline(always)]
    fn retry<T>(&self, attempt: impl FnMut() -> Result<T, Stop>) -> Result<T, Error> {
        latch::retry::<K, _, _>(&self.pool, attempt)
    }

    fn set(&self, key: &K, value: NonZeroU64, when: When) -> Result<Option<NonZeroU64>, Error> {
        self.retry(|| {
            let way = self.walk(key)?;
            let Some((step, array)) = &way.end else {
                return if when.concerns(false) { self.add_array(&way, key, value) } else { Ok(None) };
            };
            if let Some(Found { at, payload, value: old }) = array.validated(F::find(&self.pool, array, key))? {
                if when.concerns(true) {
                    // As it was found, with its value then.
                    self.substitute(array, at, key, payload, value)?;
                }
                return Ok(Some(old));
            }
            if !when.concerns(false) {
                return Ok(None);
            }
            let sample = array.validated(F::sample::<K, M>(&self.pool, array))?;
            if self.records_max == 1 && sample.borrow() == key {
                // Both were read at the same version.
                return array.validated(Err(array.damage(DAMAGED)));
            }
            if self.records_max == 1 || block::shared(sample.borrow(), key) <= way.last.level {
                return self.add_above(key, value);
            }
            // If another thread appends, no record is written in vain.
            array.latch.validate_idle(array.version)?;
            let brought = F::bring(&self.pool, key, value)?;
            let Some(at) = F::room(array, key, self.records_max) else {
                self.make_room(&way.last, *step, array, key, brought)?;
                return Ok(None);
            };
            let Brought { payload, block } = brought;
            let block = block.map(|block| self.pool.seal(block));
            let appending = array.latch.append_from(array.version)?;
            F::append(&*self.pool, array, at, key, payload);
            drop(appending);
            block.map(Durable::release);
            self.keys.add(1);
            Ok(None)
        })
    }

    /// Durably replaces the value of a record, if its array has not changed since the record was found.
    #[inline(always)]
    fn substitute(&self, array: &Array<'_>, at: usize, key: &K, old: NonZeroU64, value: NonZeroU64) -> Result<(), Stop> {
        array.latch.validate_idle(array.version)?;
        let Brought { payload, block } = F::bring(&self.pool, key, value)?;
        let block = block.map(|block| self.pool.seal(block));
        let _lock = array.latch.lock_from(array.version)?;
        F::replace(&*self.pool, array, at, key, payload);
        block.map(Durable::release);
        F::retire::<K, M>(&self.pool, old);
        Ok(())
    }

    fn take(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        let taken = self.retry(|| {
            let Some((_, array)) = self.walk(key)?.end else { return Ok(None) };
            let Some(Found { at, payload, value }) = array.validated(F::find(&self.pool, &array, key))? else { return Ok(None) };
            if !self.drops_last() {
                // Readers find the record until the removal is durable.
                let _appending = array.latch.append_from(array.version)?;
                F::kill(&*self.pool, &array, at)?;
                return Ok(Some((value, F::live(array.side).next().is_some())));
            }
            if F::live(array.side).nth(1).is_none() {
                // The array disappears with it, by the same word.
                let is_last = |array: &Array<'_>| Ok(F::find(&self.pool, array, key)?.filter(|_| F::live(array.side).nth(1).is_none()));
                let Found { payload, value, .. } = self.try_drop(key, is_last)?.ok_or(Stop::Restart)?;
                F::retire::<K, M>(&self.pool, payload);
                // The node is harmless where it is.
                _ = self.shrink(key);
                return Ok(Some((value, true)));
            }
            // A reader of the record must find out that it may have been reused.
            let _lock = array.latch.lock_from(array.version)?;
            F::kill(&*self.pool, &array, at)?;
            F::retire::<K, M>(&self.pool, payload);
            Ok(Some((value, true)))
        })?;
        let Some((value, is_any_left)) = taken else { return Ok(None) };
        self.keys.add(-1);
        if !is_any_left {
            // The array is harmless where it is, and a later reader meets damage again.
            _ = self.drop_array(key);
        }
        Ok(Some(value))
    }

    /// Whether an array disappears with its last record, so that all of its records count.
    fn drops_last(&self) -> bool {
        !F::KEEPS_KEYS || self.records_max == 1
    }
}

const DAMAGED: &str = "a record that is not what was written";

impl<K: Key + ?Sized, M: Medium, F: Form> OrderedIndex<K> for Pf<K, M, F> {
    fn get(&self, key: &K) -> Result<Option<NonZeroU64>, Error> {
        self.retry(|| {
            let Some((_, array)) = self.walk(key)?.end else { return Ok(None) };
            Ok(array.validated(F::find(&self.pool, &array, key))?.map(|found| found.value))
        })
    }

    #[inline(always)]
    fn write(&self, key: &K, write: Write) -> Result<Option<NonZeroU64>, Error> {
        write.sets().map_or_else(|| self.take(key), |(value, when)| self.set(key, value, when))
    }

    fn scan(&self, from: Bound<&K>, direction: Direction, visit: &mut Visit<'_, K>) -> Result<(), Error> {
        let read = |from: &Bound<K::Owned>, entries: &mut Vec<Entry>| self.retry(|| self.gather_arrays(from, direction, entries)).map(LeafRead::from);
        scan_leaves(&self.pool, from, direction, |entry| *entry, read, |_| {}, with_key(&self.pool, |entry| *entry, visit))
    }

    fn bulk_load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        self.load(entries, fill)
    }

    fn check(&self) -> Result<Stats, Error> {
        self.check_all()
    }

    fn blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        self.visit_blocks(visit)
    }

    fn relocate(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        self.relocate_arrays(from, leaves_max, is_leaving)
    }

    fn stats(&self) -> Stats {
        Stats {
            keys: self.keys.get(),
            leaves: self.arrays.get(),
            splits: self.splits.get(),
            leaf_bytes: self.array_words.get() * size_of::<Word>() as u64,
            depth: self.depth(),
            ..Stats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;
    use everleaf_pmem::schedule::{self, Scheduler, Step as Before};
    use everleaf_pmem::{Hardware, PoolOptions};
    use parking_lot::Mutex;
    use std::ops::ControlFlow;
    use std::panic::Location;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    fn pool() -> Arc<Pool<Hardware>> {
        Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 16 << 20, ..PoolOptions::default() }).unwrap()
    }

    /// Number of blocks, with the root block.
    fn blocks<K: Key + ?Sized, F: Form>(tree: &Pf<K, Hardware, F>) -> usize {
        let mut blocks = 0;
        tree.visit_blocks(&mut |_, _| {
            blocks += 1;
            Ok(())
        })
        .unwrap();
        blocks
    }

    /// Every kind of node is copied to the next, and back again; in the end only the top is left.
    #[test]
    fn nodes_grow_and_shrink_and_go() {
        grow_and_shrink::<Direct>(RECORDS, 0);
        grow_and_shrink::<Direct>(1, 0);
        grow_and_shrink::<Pointers>(RECORDS, 1);
    }

    /// Each record has `blocks_each` blocks besides the nodes and arrays.
    fn grow_and_shrink<F: Form>(records_max: usize, blocks_each: usize) {
        let pool = pool();
        let tree = Pf::<u64, _, F>::create(&pool, "tree", "pf", records_max).unwrap();
        let keys: Vec<u64> = (0..4 * 256).map(|number| 0xabcd << 48 | (number % 4) << 40 | (number / 4)).collect();
        let most = keys.iter().map(|key| {
            assert_eq!(tree.insert(key, NonZeroU64::MIN).unwrap(), None);
            tree.check().unwrap().depth
        });
        assert_eq!(most.max(), Some(4), "the top, the digit that differs in four ways, the last, the arrays");
        let all = blocks(&tree);
        for (left, key) in keys.iter().enumerate().rev() {
            assert_eq!(tree.remove(key).unwrap(), Some(NonZeroU64::MIN));
            assert_eq!(tree.check().unwrap().keys, left as u64);
        }
        assert_eq!((tree.stats().leaves, tree.stats().leaf_bytes, blocks(&tree)), (0, 0, 2));
        assert_eq!(all, 1 + 1 + 1 + 4 + keys.len() * (1 + blocks_each), "the root block and three levels of nodes, and an array for each key");
    }

    #[test]
    fn an_array_that_hangs_higher_takes_keys_that_have_less_in_common() {
        hang_higher::<Direct>(0);
        hang_higher::<Pointers>(1);
    }

    fn hang_higher<F: Form>(blocks_each: usize) {
        let pool = pool();
        let tree = Pf::<u64, _, F>::create(&pool, "tree", "pf-4", 4).unwrap();
        let keys: [u64; 5] = [1, 2, 3, 4, 0x10_0000].map(|number| 0xaabb << 48 | number);
        keys.iter().for_each(|key| assert_eq!(tree.insert(key, NonZeroU64::MIN).unwrap(), None));
        assert_eq!((tree.stats().leaves, blocks(&tree)), (2, 5 + 5 * blocks_each));
        keys[2..].iter().for_each(|key| assert!(tree.remove(key).unwrap().is_some()));
        assert_eq!((tree.check().unwrap().leaves, blocks(&tree)), (1, 3 + 2 * blocks_each), "the node has gone with the array");
        // In the middle of the digits that the others share.
        assert_eq!(tree.insert(&0xaa00_0000_0000_0000, NonZeroU64::MIN).unwrap(), None);
        assert_eq!((tree.check().unwrap().leaves, blocks(&tree)), (1, 3 + 3 * blocks_each));
    }

    #[test]
    fn a_key_beside_another_takes_a_node_and_a_leaf_and_leaves_the_other_where_it_is() {
        let pool = pool();
        let tree = Pf::<u64, _, Direct>::create(&pool, "tree", "p-art", 1).unwrap();
        let keys: [u64; 4] = [1, 2, 0x10_0000, 3].map(|number| 0xaabb << 48 | number);
        // The root block, the top; then in turn a leaf, a leaf and a node, the same a level higher, a leaf.
        for (key, expected) in keys.iter().zip([3, 5, 7, 8]) {
            let leaves = || tree.retry(|| Ok(tree.walk(&keys[0])?.end.map(|(step, _)| step.child.bytes()))).unwrap();
            let before = leaves();
            assert_eq!(tree.insert(key, NonZeroU64::MIN).unwrap(), None);
            assert!(before.is_none_or(|leaf| leaves() == Some(leaf)), "the first leaf is a copy");
            tree.check().unwrap();
            assert_eq!(blocks(&tree), expected);
        }
        for (key, expected) in keys.iter().zip([7, 5, 3, 2]) {
            assert_eq!(tree.remove(key).unwrap(), Some(NonZeroU64::MIN));
            tree.check().unwrap();
            assert_eq!(blocks(&tree), expected);
        }
    }

    /// Keys that are prefixes of each other, up to the longest.
    #[test]
    fn keys_of_all_lengths_are_in_order() {
        order_all_lengths::<Direct>(4);
        order_all_lengths::<Direct>(1);
        order_all_lengths::<Pointers>(4);
    }

    fn order_all_lengths<F: Form>(records_max: usize) {
        let pool = pool();
        let tree = Pf::<[u8], _, F>::create(&pool, "tree", "pf-4", records_max).unwrap();
        let mut keys: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 63, 64, 65, 4000, record::KEY_SIZE_MAX - 1, record::KEY_SIZE_MAX]
            .into_iter()
            .flat_map(|size| [vec![0; size], vec![0xff; size], [vec![0xff; size.saturating_sub(1)], vec![7]].concat()])
            .collect();
        keys.sort();
        keys.dedup();
        for key in keys.iter().step_by(2).chain(keys.iter().skip(1).step_by(2)) {
            let value = record::Record::create(&pool, key, &[]).unwrap().release().link();
            assert_eq!(tree.insert(key, NonZeroU64::new(value).unwrap()).unwrap(), None);
        }
        assert_eq!(tree.check().unwrap().keys, keys.len() as u64);
        let visited = |direction, from: Bound<&[u8]>| {
            let mut visited = Vec::new();
            let collect = &mut |key: &[u8], _| {
                visited.push(key.to_vec());
                ControlFlow::Continue(())
            };
            tree.scan(from, direction, collect).unwrap();
            visited
        };
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(visited(Direction::Forward, Bound::Excluded(key)), keys[number + 1..]);
            assert!(visited(Direction::Reverse, Bound::Excluded(key)).iter().rev().eq(&keys[..number]));
        }
        keys.iter().for_each(|key| assert!(tree.remove(key).unwrap().is_some()));
        assert_eq!((tree.stats().keys, blocks(&tree)), (0, 2));
    }

    /// Acts before the load of this number.
    struct Between(AtomicUsize, Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Scheduler for Between {
        fn before(&self, step: Before, _: &'static Location<'static>) {
            if matches!(step, Before::Load(_)) && self.0.fetch_sub(1, Relaxed) == 0 {
                let act = self.1.lock().take().expect("the number comes once");
                act();
            }
        }
    }

    /// A removal appends, which readers do not check: one that had found the record read what had replaced it, and reported damage.
    #[test]
    fn a_record_that_was_removed_and_used_again_was_damage_to_a_reader() {
        if schedule::IS_BUILT_IN {
            (0..).take_while(|load| remove_within_a_lookup::<Direct>(*load)).for_each(drop);
            (0..).take_while(|load| remove_within_a_lookup::<Pointers>(*load)).for_each(drop);
        }
    }

    /// Removes a key, and reuses its record, before the `load`th load of a lookup; false if it makes fewer.
    fn remove_within_a_lookup<F: Form>(load: usize) -> bool {
        let pool = pool();
        let tree = Arc::new(Pf::<[u8], _, F>::create(&pool, "tree", "pf", RECORDS).unwrap());
        let links = [&b"a key"[..], b"another key"].map(|key| {
            let link = record::Record::create(&pool, key, &[]).unwrap().release().link();
            assert_eq!(tree.insert(key, NonZeroU64::new(link).unwrap()).unwrap(), None);
            link
        });
        let removing = Arc::clone(&tree);
        let act = Box::new(move || {
            let pool = &removing.pool;
            assert_eq!(removing.remove(b"a key").unwrap().map(NonZeroU64::get), Some(links[0]));
            pool.retire(Off::<Word>::from_link(links[0]).unwrap(), &pool.pin());
            pool.collect();
            for _ in 0..16 {
                let other = pool.alloc_words(6).unwrap();
                other.iter().for_each(|word| pool.store(word, u64::MAX, Relaxed));
                pool.seal(other).release();
            }
        });
        let between = Arc::new(Between(AtomicUsize::new(load), Mutex::new(Some(act))));
        let scheduled = schedule::enter(Arc::clone(&between) as Arc<dyn Scheduler>);
        let found = tree.get(b"a key").unwrap_or_else(|error| panic!("before load {load}: {error}"));
        drop(scheduled);
        assert!(found.is_none_or(|found| found.get() == links[0]));
        between.1.lock().is_none()
    }
}
