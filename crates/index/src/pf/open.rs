//! Creating, opening, filling and checking a tree. A crash leaves nothing to repair. Opening reads all of the tree, because what DRAM has of it is made from
//! that.

use super::block::{self, Shape};
use super::form::{Form, Located};
use super::seek::Sought;
use super::side::{Lines, Side};
use super::structure::Built;
use super::{Child, DAMAGED, Pf, TreeRoot};
use crate::counter::Counter;
use crate::latch::check_apart;
use crate::registry::{Recovery, find_root, in_shares, kind_of};
use crate::{Cause, Direction, Error, Key, OrderedIndex, Stats, ascending};
use everleaf_pmem::{Medium, Off, Pool, Word};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A block of a tree, and the word of another that leads to it.
struct Node {
    off: Off<Word>,
    shape: Shape,
    /// The number of the node above, which comes before, and the digit that leads here; none for the top.
    above: Option<(usize, usize)>,
}

/// The words of an array, and its records.
type Told<'p, K> = (&'p [Word], Vec<Located<K>>);

/// What the keys of an array have in common.
struct Common<K: Key + ?Sized> {
    /// The key of the first record.
    sample: K::Owned,
    /// The number of digits that all keys have in common, including the one that ends them if there is one key only.
    shared: usize,
}

impl<K: Key + ?Sized> Common<K> {
    /// What the records of an array, at least one, have in common.
    fn of(records: &[Located<K>]) -> Self {
        let sample = records[0].key.clone();
        let shared = records.iter().map(|record| block::shared::<K>(sample.borrow(), record.key.borrow())).min();
        Self { shared: shared.expect("of the first record"), sample }
    }
}

impl<K: Key + ?Sized, M: Medium, F: Form> Pf<K, M, F> {
    /// Creates an empty tree and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub(crate) fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str, records_max: usize) -> Result<Self, Error> {
        let mut tree = Self::new(pool, records_max);
        let mut built = Built::new(pool, records_max);
        let top = built.inner(0, block::DIGITS, std::iter::empty())?;
        let root = pool.alloc::<TreeRoot>()?;
        // Made known before the root is linked: a crash in between leaves both blocks unreachable, and so free.
        tree.publish(built)?;
        pool.store(&root.top, top.link(), Relaxed);
        // persist-equivalent(store late): nobody reads them yet.
        root.reserved.iter().for_each(|word| pool.store(word, 0, Relaxed));
        tree.root = pool.link_root(name, kind_of::<K>(kind), pool.seal(root)).inspect_err(|_| pool.retire(top, &pool.pin()))?;
        Ok(tree)
    }

    /// A tree that has no blocks yet.
    fn new(pool: &Arc<Pool<M>>, records_max: usize) -> Self {
        Self {
            records_max,
            pool: pool.clone(),
            root: Off::NULL,
            lines: Lines::new(),
            keys: Counter::default(),
            arrays: Counter::default(),
            array_words: Counter::default(),
            splits: Counter::default(),
            _of: PhantomData,
        }
    }

    /// Opens a tree again.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`]; damage.
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
        tree.lines.begin(&blocks.clone().map(|(off, _)| off).collect::<Vec<_>>())?;
        let sampled = AtomicUsize::new(0);
        let shares = in_shares(&nodes, recovery.threads, |share| {
            let mut records = Vec::new();
            let recover = |node: &Node| {
                let common = tree.recover(node, recovery, &mut records)?;
                // If samples come from separate records, all of them are no larger than the pool.
                let size = common.as_ref().map_or(0, |common| (*common.sample.borrow()).bytes().len());
                match sampled.fetch_add(size, Relaxed) > pool.length() {
                    true => Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "an array whose records are those of others").into()),
                    false => Ok(common),
                }
            };
            Ok::<_, Error>((share.iter().map(recover).collect::<Result<Vec<_>, Error>>()?, records))
        })?;
        let (common, records): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        check_prefixes(&nodes, &common.into_iter().flatten().collect::<Vec<_>>())?;
        if F::block_size::<K>().is_some() {
            check_apart(blocks.chain(records.into_iter().flatten()).chain([(tree.root.bytes(), size_of::<TreeRoot>())]).collect())?;
        }
        Ok(tree)
    }

    /// Makes a block known, and counts what counts in it. For an array, returns what its keys have in common. Adds the blocks of its records, if they have any.
    fn recover(&self, node: &Node, recovery: &Recovery<'_, M>, blocks: &mut Vec<(u64, usize)>) -> Result<Option<Common<K>>, Error> {
        let Some((words, records)) = self.tell(node.off)? else { return Ok(None) };
        self.count_array(words.len());
        for payload in records.iter().filter_map(|record| record.payload) {
            self.keys.add(1);
            if let (Some(block), Some(size)) = (F::block_of::<K>(payload), F::block_size::<K>()) {
                recovery.reach.map_or(Ok(()), |reach| reach.mark(block, size))?;
                blocks.push((block.bytes(), size));
            }
            let value = F::value::<K, M>(&self.pool, payload)?;
            recovery.trace.map_or(Ok(()), |trace| trace(value))?;
        }
        Ok(Some(Common::of(&records)))
    }

    /// The records of an array, at least one.
    fn records_of(&self, off: Off<Word>, words: &[Word]) -> Result<Vec<Located<K>>, Error> {
        let damaged = |what| everleaf_pmem::Error::corrupt(off.bytes(), what);
        let records = F::records::<K, M>(&self.pool, words).ok_or_else(|| damaged(DAMAGED))?;
        let live = records.iter().filter(|record| record.payload.is_some()).count();
        if records.is_empty() || live > self.records_max || live < records.len() && self.drops_last() {
            return Err(damaged("an array with no record, or too many, or one that does not count where all do").into());
        }
        Ok(records)
    }

    /// Makes a block known in DRAM. For an array, returns its words and its records.
    ///
    /// # Errors
    /// Damage. A line of an array is the first of another block: the pool's list of free blocks is forged.
    pub(super) fn tell(&self, off: Off<Word>) -> Result<Option<Told<'_, K>>, Error> {
        let (shape, words) = block::read(&self.pool, off)?;
        if let Shape::Inner { level, capacity } = shape {
            self.lines.make(off.bytes()).beside.begin_inner(level, capacity);
            return Ok(None);
        }
        let records = self.records_of(off, words)?;
        let side = Side::begin(&self.lines, off.bytes(), words.len() / block::LINE_WORDS);
        let side = side.ok_or_else(|| everleaf_pmem::Error::corrupt(off.bytes(), "an array that the allocator has put over another block"))?;
        records.iter().for_each(|record| F::tell(side, record));
        Ok(Some((words, records)))
    }

    /// Counts an array of this many words.
    pub(super) fn count_array(&self, words: usize) {
        self.arrays.add(1);
        self.array_words.add(words as i64);
    }

    /// All blocks, each behind the one that leads to it. Nobody writes meanwhile.
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
        for Node { off, shape, .. } in self.survey()? {
            visit(off.bytes(), shape.words() * size_of::<Word>())?;
            if let (Some(size), Shape::Array { .. }) = (F::block_size::<K>(), shape) {
                let records = self.records_of(off, block::read(&self.pool, off)?.1)?;
                records.iter().filter_map(|record| F::block_of::<K>(record.payload?)).try_for_each(|block| visit(block.bytes(), size))?;
            }
        }
        Ok(())
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
            let records = self.records_of(node.off, words)?;
            let mut found = Vec::new();
            for Located { key, payload, .. } in &records {
                let Some(payload) = payload else { continue };
                let mut linked = K::Owned::default();
                K::read(&self.pool, (*key).borrow().head(0), F::value::<K, M>(&self.pool, *payload)?, &mut linked)?;
                if *key != linked {
                    return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "a record whose key is not that of its value").into());
                }
                found.push(key);
            }
            // Nobody writes, so no version is checked.
            let places = self.lines.rest_from(node.off.bytes()).ok();
            let Some(Child::Array(known)) = places.map(|places| self.known(node.off, places, 0)).transpose()? else {
                return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "an array that is not known to be one").into());
            };
            let live = records.iter().filter(|record| record.payload.is_some()).map(|record| record.at);
            if known.words.len() != words.len() || !F::live(known.side).eq(live) {
                return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "an array of which other records are known than it has").into());
            }
            (keys, arrays) = (keys + found.len() as u64, arrays + 1);
            found.sort_unstable();
            if found.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "an array with the same key twice").into());
            }
            checked.push(Some(Common::<K>::of(&records)));
        }
        check_prefixes(&nodes, &checked)?;
        let stats = self.stats();
        if (stats.keys, stats.leaves) != (keys, arrays) {
            return Err(everleaf_pmem::Error::corrupt(0, "counts that differ from what is there").into());
        }
        Ok(stats)
    }

    /// Removes arrays in which nothing counts, left by crashes and by removals in a hurry. Returns whether there are no others.
    fn drop_all(&self) -> Result<bool, Error> {
        while let Some((is_any_live, sample)) = self.retry(|| {
            let Some(Sought { array, .. }) = self.seek(&Bound::Unbounded, Direction::Forward)? else { return Ok(None) };
            let is_any_live = F::live(array.side).next().is_some();
            Ok(Some((is_any_live, array.validated(F::sample::<K, M>(&self.pool, &array))?)))
        })? {
            if is_any_live || !self.drop_array(sample.borrow())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// See [`OrderedIndex::bulk_load`](crate::OrderedIndex::bulk_load).
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        let not_empty = || Error::from(Cause::NotEmpty { keys: self.keys.get() });
        if !self.drop_all()? {
            return Err(not_empty());
        }
        let mut entries = ascending::<K>(entries)?;
        if entries.is_empty() {
            return Ok(());
        }
        let filled = ((self.records_max as f64 * fill) as usize).clamp(1, self.records_max);
        // This comes before anything is latched, because it may take long.
        let mut loaded = Built::new(&self.pool, self.records_max);
        for (key, payload) in &mut entries {
            *payload = loaded.take(F::bring(&self.pool, (*key).borrow(), *payload)?);
        }
        let off = loaded.tree::<K, F>(&entries, true, |entries, _| entries.len() <= filled)?;
        self.retry(|| {
            let top = self.top()?;
            self.replace_top(&top, |built| {
                if top.count() > 0 || self.keys.get() > 0 {
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

/// Checks that all keys below a node begin alike, and continue with the digits that lead to them.
fn check_prefixes<K: Key + ?Sized>(nodes: &[Node], common: &[Option<Common<K>>]) -> Result<(), Error> {
    // A key below each node, filled in from the lowest node on.
    let mut samples: Vec<Option<&K::Owned>> = common.iter().map(|common| common.as_ref().map(|common| &common.sample)).collect();
    for (number, node) in nodes.iter().enumerate().rev() {
        let Some((above, digit)) = node.above else { continue };
        let Shape::Inner { level, .. } = nodes[above].shape else { unreachable!("arrays have no children") };
        let sample = samples[number].expect("a node has children, and an array records");
        let is_alike = samples[above].is_none_or(|other| block::shared::<K>(sample.borrow(), other.borrow()) >= level);
        let goes_on = common[number].as_ref().is_none_or(|common| common.shared > level);
        if !is_alike || !goes_on || block::digit::<K>(sample.borrow(), level) != digit {
            return Err(everleaf_pmem::Error::corrupt(node.off.bytes(), "a node with keys that do not belong there").into());
        }
        samples[above].get_or_insert(sample);
    }
    Ok(())
}
