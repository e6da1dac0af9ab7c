//! Creating, opening, filling and checking a tree. A crash leaves nothing to repair; opening reads all of the tree, because what DRAM has of it is made of
//! that.

use super::block::{self, Record, Shape};
use super::seek::Sought;
use super::side::{Number, Sides};
use super::structure::Built;
use super::{Known, Pf, TreeRoot, bits};
use crate::counter::Counter;
use crate::image::Gate;
use crate::latch::{Latches, check_apart};
use crate::registry::{Recovery, find_root, in_shares, kind_of};
use crate::{Direction, Error, Key, OrderedIndex, Stats};
use everleaf_pmem::{Medium, Off, Pool, Word};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A block of a tree, and the word of another that leads to it.
struct Node {
    off: Off<Word>,
    shape: Shape,
    /// Which of the nodes before, and the digit that leads here; none above the top.
    above: Option<(usize, usize)>,
}

/// An array of which all is known.
pub(super) struct Learned<K: Key + ?Sized> {
    pub(super) number: Number,
    live: u64,
    /// The key of the first record.
    sample: K::Owned,
    /// Digits that all keys begin with, or one more where there is one key only, at least.
    shared: usize,
}

impl<K: Key + ?Sized, M: Medium> Pf<K, M> {
    /// Creates an empty tree and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub(crate) fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str, records_max: usize) -> Result<Self, Error> {
        let mut tree = Self::new(pool, records_max);
        let mut built = Built::new(pool, records_max);
        let top = built.inner(0, block::DIGITS, std::iter::empty())?;
        let root = pool.alloc::<TreeRoot>()?;
        // Known before the root is linked: a crash in between leaves both blocks unreachable, which is free.
        tree.publish(built)?;
        pool.store(&root.top, top.link(), Relaxed);
        // persist-equivalent(store late): nobody reads them yet.
        root.reserved.iter().for_each(|word| pool.store(word, 0, Relaxed));
        tree.root = pool.link_root(name, kind_of::<K>(kind), pool.seal(root)).inspect_err(|_| pool.retire(top, &pool.pin()))?;
        Ok(tree)
    }

    /// A tree that has no blocks yet.
    fn new(pool: &Arc<Pool<M>>, records_max: usize) -> Self {
        assert!(records_max <= super::RECORDS, "a bit for each record");
        Self {
            records_max,
            pool: pool.clone(),
            root: Off::NULL,
            latches: Latches::new(),
            sides: Sides::new(),
            keys: Counter::default(),
            arrays: Counter::default(),
            array_words: Counter::default(),
            splits: Counter::default(),
            gate: Gate::default(),
            _key: PhantomData,
        }
    }

    /// Opens a tree again.
    ///
    /// # Errors
    /// [`Error::NoSuchIndex`]; damage.
    pub(crate) fn open(pool: &Arc<Pool<M>>, name: &str, kind: &'static str, recovery: &Recovery<'_, M>, records_max: usize) -> Result<Self, Error> {
        let mut tree = Self::new(pool, records_max);
        tree.root = Off::new(find_root::<K, M>(pool, name, kind)?);
        pool.at(tree.root, "the root block of a tree does not lie in the pool")?;
        let nodes = tree.survey()?;
        let blocks = nodes.iter().map(|node| (node.off.bytes(), node.shape.words() * size_of::<Word>()));
        check_apart(blocks.clone().chain([(tree.root.bytes(), size_of::<TreeRoot>())]).collect())?;
        if let Some(reach) = recovery.reach {
            reach.mark(tree.root, size_of::<TreeRoot>())?;
            blocks.clone().try_for_each(|(off, size)| reach.mark(Off::<Word>::new(off), size))?;
        }
        tree.latches.begin(&blocks.map(|(off, _)| off).collect::<Vec<_>>())?;
        let learned = in_shares(&nodes, recovery.threads, |share| share.iter().map(|node| tree.recover(node, recovery)).collect::<Result<Vec<_>, Error>>())?;
        let learned: Vec<_> = learned.into_iter().flatten().collect();
        check_prefixes(&nodes, &learned)?;
        tree.keys.add(learned.iter().flatten().map(|learned| i64::from(learned.live.count_ones())).sum());
        Ok(tree)
    }

    /// Has a block known; of an array, what was learned.
    fn recover(&self, node: &Node, recovery: &Recovery<'_, M>) -> Result<Option<Learned<K>>, Error> {
        match node.shape {
            Shape::Inner { level, capacity } => {
                self.tell(node.off, Known::Inner { level, capacity })?;
                Ok(None)
            }
            Shape::Array { .. } => {
                let (_, words) = block::read(&self.pool, node.off)?;
                let learned = self.learn(node.off, words)?;
                self.tell(node.off, Known::Array(learned.number))?;
                if let Some(trace) = recovery.trace {
                    let side = self.sides.get(learned.number).expect("what was just made");
                    // Their checksums are right: that has just been seen.
                    bits(learned.live).filter_map(|number| Record::at(words, side.position(number))?.value()).try_for_each(trace)?;
                }
                Ok(Some(learned))
            }
        }
    }

    /// Makes what there is in DRAM for an array.
    pub(super) fn learn(&self, off: Off<Word>, words: &[Word]) -> Result<Learned<K>, Error> {
        let damaged = |what| everleaf_pmem::Error::corrupt(off.bytes(), what);
        let records: Option<Vec<_>> = block::records::<K>(words).collect();
        let records = records.ok_or_else(|| damaged("a record that is not what was written"))?;
        let Some(&(_, _, first)) = records.first().filter(|_| records.len() <= self.records_max) else {
            return Err(damaged("an array with no record, or too many").into());
        };
        let ends = || records.iter().skip(1).map(|(at, ..)| *at).chain([records.last().map_or(1, |(at, _, last)| at + last.words())]);
        let used = ends().last().expect("of the last record") - 1;
        let (number, side) = self.sides.take((records.len() * (words.len() - 1) / used).clamp(records.len(), self.records_max));
        side.begin(words.len(), first.head::<K>());
        for ((_, is_live, record), end) in records.iter().zip(ends()) {
            side.push(record.fingerprint(), end, *is_live);
        }
        let sample = first.key::<K>();
        let shared = records.iter().map(|(_, _, record)| block::shared::<K>(sample.borrow(), record.key::<K>().borrow())).min();
        Ok(Learned { number, live: side.live(), shared: shared.expect("of the first record"), sample })
    }

    /// Has a block known to who finds it, and counted.
    pub(super) fn tell(&self, off: Off<Word>, known: Known) -> Result<(), Error> {
        let place = self.latches.place(off.bytes()).map_err(|_| self.no_node(off))?;
        place.beside.0.store(known.bits(), Relaxed);
        if let Known::Array(number) = known {
            self.arrays.add(1);
            self.array_words.add(self.sides.get(number).map_or(0, |side| side.size() as i64));
        }
        Ok(())
    }

    /// All blocks, each behind that which leads to it, while nobody writes.
    fn survey(&self) -> Result<Vec<Node>, Error> {
        let damaged = |off: Off<Word>| everleaf_pmem::Error::corrupt(off.bytes(), "a node that does not go with the one above");
        let top = Off::<Word>::from_link(self.root().top.get())?;
        let mut nodes = vec![Node { off: top, shape: block::read(&self.pool, top)?.0, above: None }];
        if nodes[0].shape != (Shape::Inner { level: 0, capacity: block::DIGITS }) {
            return Err(damaged(top).into());
        }
        let mut next = 0;
        while let Some(&Node { off, shape, above }) = nodes.get(next) {
            if let Shape::Inner { level, capacity } = shape {
                let words = block::read(&self.pool, off)?.1;
                let mut digits: Vec<usize> = Vec::new();
                for (at, word) in words[1..=capacity].iter().enumerate().filter(|(_, word)| word.get() != 0) {
                    let (digit, child) = block::child_of(word.get()).ok_or_else(|| damaged(off))?;
                    let (shape, _) = block::read(&self.pool, child)?;
                    let descends = !matches!(shape, Shape::Inner { level: below, .. } if below <= level);
                    let is_too_many = nodes.len() > self.pool.length() / size_of::<[Word; block::LINE_WORDS]>();
                    if !descends || is_too_many || capacity == block::DIGITS && digit != at {
                        return Err(damaged(child).into());
                    }
                    digits.push(digit);
                    nodes.push(Node { off: child, shape, above: Some((next, digit)) });
                }
                digits.sort_unstable();
                if digits.windows(2).any(|pair| pair[0] == pair[1]) || digits.len() < 2 && above.is_some() {
                    return Err(damaged(off).into());
                }
            }
            next += 1;
        }
        Ok(nodes)
    }

    pub(super) fn visit_blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<TreeRoot>())?;
        self.survey()?.iter().try_for_each(|node| visit(node.off.bytes(), node.shape.words() * size_of::<Word>()))
    }

    pub(super) fn check_all(&self) -> Result<Stats, Error> {
        let nodes = self.survey()?;
        let (mut keys, mut arrays, mut checked) = (0, 0, Vec::with_capacity(nodes.len()));
        for node in &nodes {
            let Shape::Array { .. } = node.shape else {
                checked.push(None);
                continue;
            };
            let words = block::read(&self.pool, node.off)?.1;
            let learned = self.learn(node.off, words)?;
            self.sides.give(learned.number);
            let mut found = Vec::new();
            for (_, _, record) in block::records::<K>(words).flatten().filter(|(_, is_live, _)| *is_live) {
                let (key, mut linked) = (record.key::<K>(), K::Owned::default());
                if let Some(value) = record.value() {
                    K::read(&self.pool, record.head::<K>(), value, &mut linked)?;
                }
                if key != linked {
                    return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "a record whose key is not that of its value").into());
                }
                found.push(key);
            }
            (keys, arrays) = (keys + found.len() as u64, arrays + 1);
            found.sort_unstable();
            if found.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "an array with the same key twice").into());
            }
            checked.push(Some(learned));
        }
        check_prefixes(&nodes, &checked)?;
        let stats = self.stats();
        if (stats.keys, stats.leaves) != (keys, arrays) {
            return Err(everleaf_pmem::Error::corrupt(0, "counts that differ from what is there").into());
        }
        Ok(stats)
    }

    /// Takes away arrays of which nothing counts, which crashes leave, and who was in a hurry; whether there are no others.
    fn drop_all(&self) -> Result<bool, Error> {
        while let Some((live, sample)) = self.retry(|| {
            let Some(Sought { array, .. }) = self.seek(&Bound::Unbounded, Direction::Forward)? else { return Ok(None) };
            let live = array.side.live();
            Ok(Some((live, array.validated(self.sample(&array))?)))
        })? {
            if live != 0 || !self.drop_array(sample.borrow())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// See [`OrderedIndex::bulk_load`](crate::OrderedIndex::bulk_load).
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        let not_empty = || Error::NotEmpty { keys: self.keys.get() };
        if !self.drop_all()? {
            return Err(not_empty());
        }
        let entries: Vec<_> = entries.collect();
        if let Some(at) = entries.windows(2).position(|pair| pair[0].0 >= pair[1].0) {
            return Err(Error::Unsorted { position: at as u64 + 1 });
        }
        if entries.is_empty() {
            return Ok(());
        }
        let filled = ((self.records_max as f64 * fill) as usize).clamp(1, self.records_max);
        // Before anything is latched: that may take its time.
        let mut loaded = Built::new(&self.pool, self.records_max);
        let off = loaded.tree::<K>(&entries, true, |entries, _| entries.len() <= filled)?;
        self.retry(|| {
            let top = self.top()?;
            self.replace_top(&top, |built| {
                if top.count() > 0 {
                    return Err(not_empty());
                }
                *built = std::mem::replace(&mut loaded, Built::new(&self.pool, self.records_max));
                Ok(off)
            })
        })?;
        self.keys.add(entries.len() as i64);
        Ok(())
    }
}

/// Checks that all keys below a node begin alike, and go on with the digits that lead to them.
fn check_prefixes<K: Key + ?Sized>(nodes: &[Node], learned: &[Option<Learned<K>>]) -> Result<(), Error> {
    // A key below each node, from the lowest on.
    let mut samples: Vec<Option<&K::Owned>> = learned.iter().map(|learned| learned.as_ref().map(|learned| &learned.sample)).collect();
    for (number, node) in nodes.iter().enumerate().rev() {
        let Some((above, digit)) = node.above else { continue };
        let Shape::Inner { level, .. } = nodes[above].shape else { unreachable!("arrays have no children") };
        let sample = samples[number].expect("a node has children, and an array records");
        let is_alike = samples[above].is_none_or(|other| block::shared::<K>(sample.borrow(), other.borrow()) >= level);
        let goes_on = learned[number].as_ref().is_none_or(|learned| learned.shared > level);
        if !is_alike || !goes_on || block::digit::<K>(sample.borrow(), level) != digit {
            return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "a node with keys that do not belong there").into());
        }
        samples[above].get_or_insert(sample);
    }
    Ok(())
}
