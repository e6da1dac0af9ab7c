//! Creating, opening, filling and checking a tree.

use super::image::Image;
use super::leaf::{self, Birth, Entry, LeafLayout};
use super::log::{self, Log, Logs};
use super::router::{Build, Router, Target};
use super::structure::{Structure, flush, merge_all, merge_each};
use super::waypoints::{Waypoints, list};
use super::{Selective, TreeRoot};
use crate::counter::Counter;
use crate::image;
use crate::latch::{Latches, check_apart};
use crate::registry::{Recovery, find_root, in_shares, kind_of};
use crate::{Cause, Direction, Error, Key, Stats};
use everleaf_pmem::{Durable, Flushed, Fresh, Medium, Off, Pool, Word, probe};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, Release},
};
use std::time::{Duration, Instant};

/// How many leaves ahead of the one that is being recovered are prefetched.
const AHEAD: usize = 8;

/// A leaf as recovery has found it.
struct Found<K: Key + ?Sized> {
    /// Where its range begins: the low fence, or, until ranges are found, the lowest key.
    low: K::Owned,
    /// The highest key, if ranges are still to be found and there is one.
    highest: Option<K::Owned>,
    off: u64,
    skip: usize,
    count: usize,
}

impl<K: Key + ?Sized, L: LeafLayout<K>, R: Router<K>, M: Medium> Selective<K, L, R, M> {
    /// Creates an empty tree and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str, build: Build<K, R>) -> Result<Self, Error> {
        let leaf = pool.alloc::<L>()?;
        leaf.build(pool, &Birth { next: 0, low: 0, skip: 0 }, &[])?;
        let (root, block) = (pool.alloc::<TreeRoot>()?, Waypoints::alloc::<K, L, M>(pool)?);
        let first = leaf.off();
        pool.store(&root.first, first.link(), Relaxed);
        pool.store(&root.logs, 0, Relaxed);
        // persist-equivalent(store late): who opens after a crash takes no image, and makes the word 0.
        pool.store(&root.image, 0, Relaxed);
        pool.store(&root.waypoints, block.off().link(), Relaxed);
        let waypoints = Waypoints::at::<K, L, M>(pool, &root.waypoints)?;
        // persist-equivalent(store late): nobody reads them yet.
        root.reserved.iter().for_each(|word| pool.store(word, 0, Relaxed));
        let (leaf, root, block) = pool.fence_all((leaf.flush(), root.flush(), block.flush()));
        // Released before the root is linked: a crash in between leaves all of them unreachable, and so free.
        let (leaf, block) = (leaf.release(), block.release());
        // If this fails, nobody reaches them, or their root is there after all, in a pool that allocates no more.
        let root = pool.link_root(name, kind_of::<K>(kind), root).inspect_err(|_| {
            pool.retire(leaf, &pool.pin());
            pool.retire(block, &pool.pin());
        })?;
        let image = Image { keys: 0, leaves: vec![(K::Owned::default(), leaf.bytes())] };
        Ok(Self::assemble(pool, root, waypoints, build, Vec::new(), image, None))
    }

    /// `listed` is how long it took to follow the list of leaves, if that was done.
    fn assemble(
        pool: &Arc<Pool<M>>,
        root: Off<TreeRoot>,
        waypoints: Waypoints,
        build: Build<K, R>,
        logs: Vec<Off<Log>>,
        image: Image<K>,
        listed: Option<Duration>,
    ) -> Self {
        let (keys, leaves, latches) = (Counter::default(), Counter::default(), Latches::new());
        keys.add(image.keys as i64);
        leaves.add(image.leaves.len() as i64);
        let places: Vec<u64> = image.leaves.iter().map(|(_, place)| *place).collect();
        latches.begin(&places).expect("leaves that do not overlap have latches of their own");
        let begun = Instant::now();
        let router = build(&image.leaves);
        let built = begun.elapsed();
        Self {
            pool: pool.clone(),
            root,
            waypoints,
            latches,
            logs: Logs::new(logs),
            router,
            keys,
            leaves,
            splits: Counter::default(),
            from_leaves: listed.map_or(Duration::ZERO, |listed| listed + built),
            _key: PhantomData,
        }
    }

    /// See [`OrderedIndex::close`](crate::OrderedIndex::close).
    pub(super) fn leave_image(&self) -> Result<(), Error> {
        let mut leaves = Vec::new();
        let checked = self.router.check(&mut |fences, leaf| leaves.push((fences.low.clone(), leaf)));
        checked.map_err(|what| everleaf_pmem::Error::corrupt(self.root.bytes(), what))?;
        image::leave(&self.pool, &self.root().image, &Image::<K> { keys: self.keys.get(), leaves }.encode())
    }

    /// Opens a tree again and repairs what a crash has left. Finished repairs are durable. After a crash within, opening again does the rest.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`]; damage.
    pub fn open(pool: &Arc<Pool<M>>, name: &str, kind: &'static str, recovery: &Recovery<'_, M>, build: Build<K, R>) -> Result<Self, Error> {
        let root = Off::<TreeRoot>::new(find_root::<K, M>(pool, name, kind)?);
        let block = pool.at(root, "the root block of a tree does not lie in the pool")?;
        let waypoints = Waypoints::at::<K, L, M>(pool, &block.waypoints)?;
        if let Some(reach) = recovery.reach {
            reach.mark(root, size_of::<TreeRoot>())?;
            waypoints.block().map_or(Ok(()), |(off, size)| reach.mark(off, size))?;
        }
        let mut logs = Vec::new();
        log::follow(pool, block.logs.get(), |off, log| {
            if let Some(reach) = recovery.reach {
                reach.mark(off, size_of::<Log>())?;
            }
            logs.push(off);
            L::replay(pool, log)
        })?;
        if let Some(image) = image::take(pool, &block.image, recovery.reach.is_none()).and_then(|content| Image::<K>::decode(&content))
            && image.leaves.iter().all(|(_, leaf)| pool.get(Off::<L>::new(*leaf)).is_some())
            && block.first.get() == Off::<L>::new(image.leaves[0].1).link()
            && check_all_apart::<L>(root, waypoints, &logs, image.leaves.iter().map(|(_, leaf)| *leaf)).is_ok()
        {
            return Ok(Self::assemble(pool, root, waypoints, build, logs, image, None));
        }
        let begun = Instant::now();
        let leaves = list::<K, L, M>(pool, block.first.get(), waypoints.words(pool))?;
        let listed = begun.elapsed();
        let mut found = recover_all::<K, L, M>(pool, block.first.get(), &leaves, recovery)?;
        check_all_apart::<L>(root, waypoints, &logs, found.iter().map(|leaf| leaf.off))?;
        if !L::Structure::FENCED {
            found = leave_out_empty::<K, L, M>(pool, found)?;
            find_ranges(&mut found)?;
        }
        if *found[0].low.borrow() != *K::LOWEST {
            return Err(everleaf_pmem::Error::corrupt(found[0].off, "a first leaf that is not lowest").into());
        }
        for (at, leaf) in found.iter().enumerate() {
            let shared = match found.get(at + 1) {
                Some(next) if next.low <= leaf.low => {
                    return Err(everleaf_pmem::Error::corrupt(next.off, "a leaf whose low fence is not above the one before").into());
                }
                Some(next) => leaf.low.borrow().shared(next.low.borrow()),
                None => 0,
            };
            if leaf.skip > shared {
                return Err(everleaf_pmem::Error::corrupt(leaf.off, "a leaf that leaves out more bytes than its keys share").into());
            }
        }
        let keys = found.iter().map(|leaf| leaf.count as u64).sum();
        let leaves = found.into_iter().map(|leaf| (leaf.low, leaf.off)).collect();
        Ok(Self::assemble(pool, root, waypoints, build, logs, Image { keys, leaves }, Some(listed)))
    }

    /// Reads the list of leaves in order. Nobody writes meanwhile.
    fn for_each_leaf(&self, mut visit: impl FnMut(Off<L>, &L) -> Result<(), Error>) -> Result<(), Error> {
        let mut next = Off::<L>::from_link(self.root().first.get())?;
        for _ in 0..=self.pool.length() / size_of::<L>() {
            if next.is_null() {
                return Ok(());
            }
            let leaf = self.pool.at(next, "a leaf does not lie in the pool")?;
            visit(next, leaf)?;
            next = Off::from_link(leaf.next().get())?;
        }
        Err(everleaf_pmem::Error::corrupt(next.bytes(), "a list of leaves that does not end").into())
    }

    pub(super) fn visit_blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<TreeRoot>())?;
        image::block(&self.pool, &self.root().image).map_or(Ok(()), |(off, size)| visit(off, size))?;
        self.waypoints.block().map_or(Ok(()), |(off, size)| visit(off.bytes(), size))?;
        log::follow(&self.pool, self.root().logs.get(), |off, _| visit(off.bytes(), size_of::<Log>()))?;
        self.for_each_leaf(|off, leaf| {
            visit(off.bytes(), size_of::<L>())?;
            match K::read_fence(&self.pool, leaf.low())?.1 {
                Some((fence, size)) => visit(fence.bytes(), size),
                None => Ok(()),
            }
        })
    }

    pub(super) fn check_all(&self) -> Result<Stats, Error> {
        let corrupt = |off: u64, what| Error::from(everleaf_pmem::Error::corrupt(off, what));
        let mut routed = Vec::new();
        self.router.check(&mut |fences, leaf| routed.push((fences.low.clone(), fences.high.clone(), leaf))).map_err(|what| corrupt(0, what))?;
        let mut routed = routed.into_iter();
        let (mut keys, mut leaves, mut entries) = (0, 0, Vec::new());
        self.for_each_leaf(|off, leaf| {
            let Some((low, high, known)) = routed.next() else { return Err(corrupt(off.bytes(), "a leaf that the router does not know")) };
            if known != off.bytes() || L::Structure::FENCED && K::read_fence(&self.pool, leaf.low())?.0 != low {
                return Err(corrupt(off.bytes(), "a leaf that is not where the router says"));
            }
            leaf.check(&self.pool)?;
            entries.clear();
            leaf.entries(&mut entries);
            leaf::sort::<K, M>(&self.pool, &mut entries)?;
            let mut previous = None;
            for entry in &entries {
                let mut key = K::Owned::default();
                K::read(&self.pool, entry.head, entry.value, &mut key)?;
                let at_home = key >= low && high.as_ref().is_none_or(|high| key < *high) && key.borrow().head(leaf.skip()) == entry.head;
                if !at_home || previous.is_some_and(|previous| previous >= key) {
                    return Err(corrupt(off.bytes(), "a leaf with a key that does not belong there"));
                }
                previous = Some(key);
            }
            keys += entries.len() as u64;
            leaves += 1;
            Ok(())
        })?;
        log::follow(&self.pool, self.root().logs.get(), |off, log| match log.read::<L, M>(&self.pool)? {
            None => Ok(()),
            Some(_) => Err(corrupt(off.bytes(), "a log of a division that is over")),
        })?;
        if routed.next().is_some() {
            return Err(corrupt(0, "a leaf of the router that is not in the list"));
        }
        let stats = crate::OrderedIndex::<K>::stats(self);
        if (stats.keys, stats.leaves) != (keys, leaves) {
            return Err(corrupt(0, "counts that differ from what is there"));
        }
        Ok(stats)
    }

    /// Merges empty leaves that had no neighbour under their node of the router when their last key was removed. Does not wait for whoever is in the way.
    #[cold]
    pub(super) fn merge_empty(&self) {
        merge_each(&self.leaves, &self.router, |key| {
            if self.read(Target::At(key), None, |leaf, _| Ok(leaf.count() == 0)) {
                let _ = L::Structure::merge(self, key, Direction::Forward);
            }
        });
    }

    /// See [`OrderedIndex::bulk_load`](crate::OrderedIndex::bulk_load).
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        let is_only = |leaf: &L| leaf.count() == 0 && leaf.next().get() == 0;
        let not_empty = || Error::from(Cause::NotEmpty { keys: self.keys.get() });
        merge_all(&self.leaves, &self.keys, || {
            if self.router.is_sparse() {
                self.router.compact();
            }
            self.merge_empty();
        });
        if !self.read(Target::At(K::LOWEST), None, |leaf, _| Ok(is_only(leaf))) {
            return Err(not_empty());
        }
        // This comes before anything is latched: the iterator may be slow.
        let mut chain = Chain::<K, L, M>::build(&self.pool, entries, fill)?;
        if chain.leaves.is_empty() {
            return Ok(());
        }
        let held = self.hold(K::LOWEST);
        let expect_only = || match self.router.fences_of(K::LOWEST).high {
            _ if !is_only(held.leaf) => Err(not_empty()),
            Some(_) => Err(self.damage(held.leaf, "a leaf that says that none comes behind it")),
            // Zeroes look like a leaf without entries.
            None if self.keys.get() > 0 => Err(not_empty()),
            None => Ok(()),
        };
        // In this order, because a damaged count may say that the leaf is empty.
        if let Err(error) = self.examine(held.leaf).and_then(|()| expect_only()) {
            held.lock.release_unchanged();
            return Err(error);
        }
        let (leaves, fences) = self.pool.fence_all((std::mem::take(&mut chain.leaves), std::mem::take(&mut chain.fences)));
        let places: Vec<u64> = leaves.iter().map(|leaf| leaf.off().bytes()).collect();
        if let Err(error) = self.latches.begin(&places) {
            held.lock.release_unchanged();
            return Err(error);
        }
        for fence in fences {
            fence.release();
        }
        let mut leaves = leaves.into_iter();
        let first = leaves.next().expect("a chain that is not empty");
        let rest: Vec<Off<L>> = leaves.map(Durable::release).collect();
        let first = self.pool.link(&self.root().first, first).bytes();
        for leaf in &rest {
            self.leaves.add(1);
            self.pass_by(leaf.bytes());
        }
        let rest = chain.lows.into_iter().zip(rest.into_iter().map(Off::bytes));
        self.router.populate(held.off, std::iter::once((K::LOWEST.to_owned(), first)).chain(rest).collect());
        held.lock.release_obsolete();
        self.keys.add(chain.count as i64);
        self.pool.retire(Off::<L>::new(held.off), &self.pool.pin());
        Ok(())
    }
}

/// Leaves for a bulk load: flushed, linked with each other, and not reachable yet.
struct Chain<'p, K: Key + ?Sized, L: LeafLayout<K>, M: Medium> {
    leaves: Vec<Flushed<'p, L, M>>,
    fences: Vec<Flushed<'p, [Word], M>>,
    /// Low fences of all leaves but the first.
    lows: Vec<K::Owned>,
    count: u64,
}

/// The last leaf of a chain, which waits for the next one to be linked.
struct Pending<'p, K: Key + ?Sized, L: LeafLayout<K>, M: Medium> {
    leaf: Fresh<'p, L, M>,
    low_word: u64,
    low: K::Owned,
    entries: Vec<(K::Owned, NonZeroU64)>,
}

impl<'p, K: Key + ?Sized, L: LeafLayout<K>, M: Medium> Chain<'p, K, L, M> {
    fn build(pool: &'p Pool<M>, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<Self, Error> {
        let size = ((L::CAPACITY as f64 * fill) as usize).clamp(1, L::CAPACITY);
        let mut chain = Self { leaves: Vec::new(), fences: Vec::new(), lows: Vec::new(), count: 0 };
        let mut last: Option<Pending<'p, K, L, M>> = None;
        loop {
            let chunk: Vec<_> = entries.take(size).collect();
            if chunk.is_empty() {
                break;
            }
            let mut previous = last.as_ref().and_then(|last| last.entries.last());
            for entry in &chunk {
                if previous.is_some_and(|previous| previous.0 >= entry.0) {
                    return Err(Cause::Unsorted { position: chain.count }.into());
                }
                previous = Some(entry);
                chain.count += 1;
            }
            let next = chain.begin(pool, last.as_ref(), chunk)?;
            if let Some(before) = last.replace(next) {
                let next = last.as_ref().expect("just put there");
                chain.finish(pool, before, Some(next))?;
            }
        }
        if let Some(last) = last {
            chain.finish(pool, last, None)?;
        }
        Ok(chain)
    }

    fn begin(&mut self, pool: &'p Pool<M>, before: Option<&Pending<'p, K, L, M>>, entries: Vec<(K::Owned, NonZeroU64)>) -> Result<Pending<'p, K, L, M>, Error> {
        let leaf = pool.alloc::<L>()?;
        let Some((below, _)) = before.and_then(|before| before.entries.last()) else {
            return Ok(Pending { leaf, low_word: 0, low: K::LOWEST.to_owned(), entries });
        };
        let low = K::separator(below.borrow(), entries[0].0.borrow());
        let (low_word, fence) = if L::Structure::FENCED { low.borrow().fence(pool)? } else { (0, None) };
        self.fences.extend(fence.map(|fence| fence.flush()));
        self.lows.push(low.clone());
        Ok(Pending { leaf, low_word, low, entries })
    }

    fn finish(&mut self, pool: &Pool<M>, last: Pending<'p, K, L, M>, next: Option<&Pending<'p, K, L, M>>) -> Result<(), Error> {
        let skip = next.filter(|_| L::Structure::FENCED).map_or(0, |next| last.low.borrow().shared(next.low.borrow()));
        let entries: Vec<Entry> = last.entries.iter().map(|(key, value)| Entry { head: key.borrow().head(skip), value: *value }).collect();
        last.leaf.build(pool, &Birth { next: next.map_or(0, |next| next.leaf.off().link()), low: last.low_word, skip }, &entries)?;
        self.leaves.push(flush(last.leaf));
        Ok(())
    }
}

/// Takes empty leaves, which a crash or a prevented merge has left behind, out of the list: no key tells where their ranges begin. The first leaf stays,
/// because its range begins with the lowest key that there is.
fn leave_out_empty<K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(pool: &Pool<M>, found: Vec<Found<K>>) -> Result<Vec<Found<K>>, Error> {
    let mut kept: Vec<Found<K>> = Vec::with_capacity(found.len());
    let leaf = |found: &Found<K>| pool.at(Off::<L>::new(found.off), "a leaf does not lie in the pool");
    for empty in found {
        let Some(before) = kept.last().filter(|_| empty.count == 0) else {
            kept.push(empty);
            continue;
        };
        let slot = leaf(before)?.next();
        pool.store(slot, leaf(&empty)?.next().get(), Release);
        pool.persist(slot);
        pool.retire(Off::<L>::new(empty.off), &pool.pin());
    }
    Ok(kept)
}

/// Replaces the lowest keys of leaves by the keys with which their ranges begin. No leaf but the first may be empty.
fn find_ranges<K: Key + ?Sized>(found: &mut [Found<K>]) -> Result<(), Error> {
    let mut below: Option<K::Owned> = None;
    for (at, leaf) in found.iter_mut().enumerate() {
        if below.as_ref().is_some_and(|below| leaf.low <= *below) {
            return Err(everleaf_pmem::Error::corrupt(leaf.off, "a leaf with keys that are not above those of the one before").into());
        }
        leaf.low = match &below {
            _ if at == 0 => K::LOWEST.to_owned(),
            Some(below) => K::separator(below.borrow(), leaf.low.borrow()),
            None => std::mem::take(&mut leaf.low),
        };
        below = leaf.highest.take();
    }
    Ok(())
}

/// Recovers all leaves of the list, each thread an equal share of them.
fn recover_all<K: Key + ?Sized, L: LeafLayout<K>, M: Medium>(
    pool: &Pool<M>,
    first: u64,
    leaves: &[Off<L>],
    recovery: &Recovery<'_, M>,
) -> Result<Vec<Found<K>>, Error> {
    let fences = AtomicUsize::new(0);
    let recover_share = |share: &[Off<L>]| {
        let mut entries = Vec::with_capacity(L::CAPACITY);
        let recover_at = |(at, &off): (usize, &Off<L>)| {
            share.get(at + AHEAD).and_then(|ahead| pool.get(*ahead)).into_iter().for_each(probe::prefetch_lines);
            recover::<K, L, M>(pool, off, first, recovery, &fences, &mut entries)
        };
        share.iter().enumerate().map(recover_at).collect::<Result<Vec<_>, Error>>()
    };
    Ok(in_shares(leaves, recovery.threads, recover_share)?.into_iter().flatten().collect())
}

/// The blocks of a tree must not overlap.
fn check_all_apart<L>(root: Off<TreeRoot>, waypoints: Waypoints, logs: &[Off<Log>], leaves: impl Iterator<Item = u64>) -> Result<(), Error> {
    let others = logs.iter().map(|log| (log.bytes(), size_of::<Log>())).chain([(root.bytes(), size_of::<TreeRoot>())]);
    let others = others.chain(waypoints.block().map(|(off, size)| (off.bytes(), size)));
    check_apart(leaves.map(|leaf| (leaf, size_of::<L>())).chain(others).collect())
}

/// Recovers one leaf of the list that begins with `first`. `fences` is the size in bytes of all copies of keys so far; `entries` is for those of the leaf.
fn recover<K, L, M>(
    pool: &Pool<M>,
    off: Off<L>,
    first: u64,
    recovery: &Recovery<'_, M>,
    fences: &AtomicUsize,
    entries: &mut Vec<Entry>,
) -> Result<Found<K>, Error>
where
    K: Key + ?Sized,
    L: LeafLayout<K>,
    M: Medium,
{
    let leaf = pool.at(off, "a leaf does not lie in the pool")?;
    let (low, fence) = K::read_fence(pool, leaf.low())?;
    // Copies of fences are kept until the end: a circular list must not fill the memory before it is detected.
    let keep = |size: usize| match size > pool.length().saturating_sub(fences.fetch_add(size, Relaxed)) {
        true => Err(everleaf_pmem::Error::corrupt(off.bytes(), "low fences that take more than the pool")),
        false => Ok(()),
    };
    keep(fence.map_or(0, |(_, size)| size))?;
    // A leaf that will be left out is not marked.
    let is_kept = L::Structure::FENCED || leaf.count() > 0 || off.link() == first;
    if let Some(reach) = recovery.reach.filter(|_| is_kept) {
        reach.mark(off, size_of::<L>())?;
        if let Some((fence, size)) = fence {
            reach.mark(fence, size)?;
        }
    }
    leaf.recover(pool)?;
    entries.clear();
    leaf.entries(entries);
    for entry in &*entries {
        recovery.trace.map_or(Ok(()), |trace| trace(entry.value))?;
    }
    let mut found = Found { low, highest: None, off: off.bytes(), skip: leaf.skip(), count: entries.len() };
    if !L::Structure::FENCED {
        leaf::sort::<K, M>(pool, entries)?;
        if let (Some(lowest), Some(highest)) = (entries.first(), entries.last()) {
            let (lowest, highest) = (leaf::read::<K, M>(pool, lowest)?, leaf::read::<K, M>(pool, highest)?);
            keep(lowest.borrow().bytes().len() + if entries.len() > 1 { highest.borrow().bytes().len() } else { 0 })?;
            (found.low, found.highest) = (lowest, Some(highest));
        }
    }
    Ok(found)
}
