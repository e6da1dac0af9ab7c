//! Creating, opening, filling and checking.

use super::behind::{Behind, Unread, count_leaf};
use super::directory::{Directory, Extent, Number, generation_of, handle, state_of};
use super::leaf::{Descriptor, Fingerprints, Leaf, Slot};
use super::{Ever, Known, Root};
use crate::counter::Counter;
use crate::image;
use crate::latch::{Locked, check_apart, until_done};
use crate::registry::{Recovery, find_root, kind_of};
use crate::selective::leaf;
use crate::selective::leaf::Placed;
use crate::selective::router::{Fences, Olc, Router, Target};
use crate::selective::structure::{merge_all, merge_each};
use crate::{Cause, Direction, Error, Key, Stats};
use everleaf_pmem::vector::Wide;
use everleaf_pmem::{Flushed, Fresh, Medium, Off, Pool, Word};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize, const FANOUT: usize> Ever<K, M, LINES, LEAVES, FANOUT> {
    /// Creates an empty index and links it as a root of the pool.
    ///
    /// # Errors
    /// A full pool, or a root of that name.
    pub(crate) fn create(pool: &Arc<Pool<M>>, name: &str, kind: &str) -> Result<Self, Error> {
        let (extent, root) = (pool.alloc::<Extent<LINES, LEAVES>>()?, pool.alloc::<Root>()?);
        Directory::begin(pool, &extent, 0);
        pool.store(&extent.directory[0].low, 0, Relaxed);
        pool.store(&extent.directory[0].state, state_of(1), Relaxed);
        let is_known = extent.is_untouched();
        extent.leaves[0].build(pool, &[], false);
        pool.store(&root.first, extent.off().link(), Relaxed);
        // persist-equivalent(store late): who opens after a crash takes no image, and makes the word 0.
        pool.store(&root.image, 0, Relaxed);
        // persist-equivalent(store late): nobody reads them yet.
        root.reserved.iter().for_each(|word| pool.store(word, 0, Relaxed));
        let (extent, root) = pool.fence_all((extent.flush_first(Self::size_with_leaves(1)), root.flush()));
        // Released before the root is linked: after a crash in between both are unreachable, hence free.
        let extent = extent.release();
        // If that fails, no thread reaches the extent; or its root is there after all, in a pool that allocates no more.
        let root = pool.link_root(name, kind_of::<K>(kind), root).inspect_err(|_| pool.retire(extent, &pool.pin()))?;
        let directory = Directory::new();
        let mut leaves = directory.adopt(extent)?;
        let first = leaves.next().expect("an extent has leaves");
        directory.give_back(leaves.rev(), is_known);
        let index = Self::assemble(pool, root, directory, Arc::default(), &[(K::LOWEST.to_owned(), first)]);
        index.begin(first)?;
        Ok(index)
    }

    /// Size in bytes of an extent with its first `count` leaves.
    fn size_with_leaves(count: usize) -> usize {
        std::mem::offset_of!(Extent<LINES, LEAVES>, leaves) + count * size_of::<Leaf<LINES>>()
    }

    fn assemble(pool: &Arc<Pool<M>>, root: Off<Root>, directory: Directory<LINES, LEAVES>, known: Arc<Known>, live: &[(K::Owned, Number)]) -> Self {
        let leaves = Counter::default();
        leaves.add(live.len() as i64);
        let (router, splits) = (Olc::build(live), Counter::default());
        Self { pool: pool.clone(), root, directory, known, router, leaves, splits, behind: Behind::nothing() }
    }

    /// The descriptor of a leaf that begins to live.
    ///
    /// # Errors
    /// The leaf lives already, which only damage explains.
    pub(super) fn begin(&self, leaf: Number) -> Result<&Descriptor, Error> {
        let descriptor = self.known.descriptors.get_or_make(handle(leaf));
        match descriptor.latch().revive() {
            true => {
                self.known.orders.forget(leaf);
                Ok(descriptor)
            }
            false => Err(everleaf_pmem::Error::corrupt(self.root.bytes(), "an index that takes a leaf for dead which is not").into()),
        }
    }

    /// Opens an existing index, and repairs what a crash has left. Finished repairs are durable; after a crash in between, opening again does the rest.
    ///
    /// # Errors
    /// [`Cause::NoSuchIndex`]; damage.
    pub(crate) fn open(pool: &Arc<Pool<M>>, name: &str, kind: &'static str, recovery: &Recovery<'_, M>) -> Result<Self, Error> {
        let root = Off::<Root>::new(find_root::<K, M>(pool, name, kind)?);
        let block = pool.at(root, "the root block of an index does not lie in the pool")?;
        let image = image::take(pool, &block.image, recovery.reach.is_none());
        if let Some(reach) = recovery.reach {
            reach.mark(root, size_of::<Root>())?;
        }
        let (directory, known) = (Directory::new(), Arc::<Known>::default());
        let (mut blocks, mut live, mut free, mut unknown) = (vec![(root.bytes(), size_of::<Root>())], Vec::new(), Vec::new(), Vec::new());
        // Copies of fences are kept until the end; damage must not make them exhaust memory.
        let mut kept = 0;
        // A salvage saves more if a damaged state does not cost the index. The damaged state of a dead leaf has only one byte that is not 0; that of a live
        // leaf has several, except for a few generations. If another leaf begins where this one does, that one stands for the range: see `choose`.
        let is_saving = recovery.trace.is_none() && !K::WHOLE;
        let is_likely_live = |low: u64, state: u64| state.to_le_bytes().iter().filter(|byte| **byte != 0).count() > 1 && K::read_fence(pool, low).is_ok();
        let judge = |low, state| generation_of(state).or_else(|| is_saving.then(|| is_likely_live(low, state).into()));
        Directory::<LINES, LEAVES>::follow_by(pool, block.first.get(), &judge, &mut |off, entries| {
            if let Some(reach) = recovery.reach {
                reach.mark(off, size_of::<Extent<LINES, LEAVES>>())?;
            }
            blocks.push((off.bytes(), size_of::<Extent<LINES, LEAVES>>()));
            // If the pool has been open for a while, this may be memory that others have used before.
            let is_known = recovery.reach.is_some() || pool.is_untouched(off);
            for (leaf, [low, generation]) in directory.adopt(off)?.zip(entries) {
                known.descriptors.get_or_make(handle(leaf));
                if *generation == 0 {
                    if is_known {
                        free.push(leaf)
                    } else {
                        unknown.push(leaf)
                    }
                    continue;
                }
                let (low, fence) = K::read_fence(pool, *low)?;
                kept += fence.map_or(0, |(_, size)| size);
                if kept > pool.length() {
                    return Err(everleaf_pmem::Error::corrupt(off.bytes(), "low fences that take more than the pool").into());
                }
                live.push((low, leaf));
            }
            Ok(())
        })?;
        check_apart(blocks)?;
        free.extend(choose::<K, M, LINES, LEAVES>(pool, &directory, &mut live)?);
        // In reverse, so that leaves are taken in the order of memory.
        free.reverse();
        directory.give_back(free, true);
        directory.give_back(unknown, false);
        if let Some(reach) = recovery.reach.filter(|_| !K::WHOLE) {
            for (_, leaf) in &live {
                if let (_, Some((fence, size))) = K::read_fence(pool, directory.entry(pool, *leaf).low.get())? {
                    reach.mark(fence, size)?;
                }
            }
        }
        let mut index = Self::assemble(pool, root, directory, known, &live);
        if let Some(image) = image
            && index.known.recall::<_, M, LINES, LEAVES>(pool, index.root.bytes(), &live, &image)?
        {
            return Ok(index);
        }
        let unread = Unread::new(live);
        if K::WHOLE && recovery.trace.is_none() {
            index.behind = Behind::begin::<M, LINES, LEAVES>(unread, pool, &index.known, recovery.threads.saturating_sub(1));
        } else {
            unread.read_all::<M, LINES, LEAVES>(pool, &index.known, recovery.trace, recovery.threads)?;
        }
        Ok(index)
    }

    pub(super) fn visit_blocks(&self, visit: &mut dyn FnMut(u64, usize) -> Result<(), Error>) -> Result<(), Error> {
        visit(self.root.bytes(), size_of::<Root>())?;
        image::block(&self.pool, &self.root().image).map_or(Ok(()), |(off, size)| visit(off, size))?;
        Directory::<LINES, LEAVES>::follow(&self.pool, self.root().first.get(), &mut |off, entries| {
            visit(off.bytes(), size_of::<Extent<LINES, LEAVES>>())?;
            for [low, _] in entries.iter().filter(|[_, generation]| *generation != 0) {
                if let Some((fence, size)) = K::read_fence(&self.pool, *low)?.1 {
                    visit(fence.bytes(), size)?;
                }
            }
            Ok(())
        })
    }

    pub(super) fn check_all(&self) -> Result<Stats, Error> {
        let corrupt = |off: u64, what| Error::from(everleaf_pmem::Error::corrupt(off, what));
        self.read_rest();
        let mut routed = Vec::new();
        let checked = self.router.check(&mut |Fences { low, high }, leaf| routed.push((Fences { low: low.clone(), high: high.clone() }, leaf)));
        checked.map_err(|what| corrupt(0, what))?;
        let (mut keys, mut placed) = (0, Vec::new());
        for (fences, number) in &routed as &Vec<(Fences<K>, Number)> {
            let number: Number = *number;
            let Ok((leaf, descriptor)) = self.leaf(number) else { return Err(corrupt(0, "a leaf of the router that is in no extent")) };
            let (off, entry) = (self.pool.offset_of(leaf).bytes(), self.directory.entry(&self.pool, number));
            if entry.generation().is_none_or(|generation| generation == 0) || K::read_fence(&self.pool, entry.low.get())?.0 != fences.low {
                return Err(corrupt(off, "a leaf whose directory entry is not what the router says"));
            }
            let occupied = descriptor.occupied::<LINES>(Wide::get());
            let (low, high): (&K, Option<&K>) = (fences.low.borrow(), fences.high.as_ref().map(Borrow::borrow));
            let found = count_leaf::<K, M, LINES>(&self.pool, leaf, low, high, true, &mut |_| Ok(()))?;
            if (0..Leaf::<LINES>::CAPACITY).any(|slot| found.fingerprints.0[slot] != descriptor.fingerprint(slot)) {
                return Err(corrupt(off, "a leaf whose fingerprints are not those of what counts"));
            }
            if found.below != 0 || found.beyond != 0 && !K::WHOLE {
                return Err(corrupt(off, "a leaf with a key that belongs to another, and must not be there"));
            }
            self.sort(leaf, occupied, fences.skip(), &mut placed)?;
            let mut previous = None;
            for Placed { entry, .. } in &placed {
                let key = leaf::read::<K, M>(&self.pool, entry)?;
                if previous.is_some_and(|previous| previous >= key) {
                    return Err(corrupt(off, "a leaf with the same key twice"));
                }
                previous = Some(key);
            }
            let by_heads = if K::WHOLE { None } else { self.sort_by_heads(number, leaf, occupied) };
            if by_heads.is_some_and(|(sorted, _)| !sorted.slots().eq(placed.iter().map(|placed| placed.slot))) {
                return Err(corrupt(off, "a leaf whose heads are in another order than its keys"));
            }
            let known = descriptor.latch().read_idle().ok().and_then(|version| self.known.orders.at(number, version));
            if known.is_some_and(|known| !known.slots().eq(placed.iter().map(|placed| placed.slot))) {
                return Err(corrupt(off, "a leaf whose order, as it is known, is not that of its keys"));
            }
            keys += u64::from(occupied.count_ones());
        }
        let mut live = 0;
        Directory::<LINES, LEAVES>::follow(&self.pool, self.root().first.get(), &mut |_, entries| {
            live += entries.iter().filter(|[_, generation]| *generation != 0).count();
            Ok(())
        })?;
        if live != routed.len() {
            return Err(corrupt(self.root.bytes(), "a live leaf that the router does not know"));
        }
        let stats = crate::OrderedIndex::<K>::stats(self);
        if (stats.keys, stats.leaves) != (keys, routed.len() as u64) {
            return Err(corrupt(self.root.bytes(), "counts that differ from what is there"));
        }
        Ok(stats)
    }

    /// Locks the only leaf of an index without keys; `None` if there are keys or leaves that could not be merged.
    fn lock_only(&self) -> Option<(Number, Locked<'_>)> {
        let (only, lock) = until_done(|| {
            let route = self.router.find(Target::At(K::LOWEST))?;
            let latch = self.leaf(route.leaf)?.1.latch();
            let version = latch.try_read()?;
            // A stale route may lead to a leaf that is just being made, which the router does not know yet.
            self.router.validate(&route)?;
            Ok((route.leaf, latch.lock_from(version)?))
        });
        let is_only = self.router.fences_of(K::LOWEST).high.is_none();
        if is_only && self.leaf(only).is_ok_and(|(_, descriptor)| descriptor.occupied::<LINES>(Wide::get()) == 0) {
            return Some((only, lock));
        }
        lock.release_unchanged();
        None
    }

    /// See [`OrderedIndex::bulk_load`](crate::OrderedIndex::bulk_load).
    pub(super) fn load(&self, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<(), Error> {
        self.read_rest();
        let not_empty = || Error::from(Cause::NotEmpty { keys: self.known.keys.get() });
        merge_all(&self.leaves, &self.known.keys, || merge_each(&self.leaves, &self.router, |key: &K| _ = self.merge(key, Direction::Forward)));
        // Locked and released: what another thread is writing there is durable by then. The number of keys says nothing of that.
        self.lock_only().ok_or_else(not_empty)?.1.release_unchanged();
        // Before anything is latched: the entries may be slow to come.
        let Some(chain) = Chain::<K, M, LINES, LEAVES>::build(&self.pool, entries, fill)? else { return Ok(()) };
        let (only, lock) = self.lock_only().ok_or_else(not_empty)?;
        let Chain { extents, bottom, lows, fences, fingerprints, count } = chain;
        let before = self.directory.entry(&self.pool, only);
        let Some(generation) = before.next_generation() else {
            lock.release_unchanged();
            return Err(everleaf_pmem::Error::corrupt(self.root.bytes(), "an index with a leaf whose generation is the last, or damaged").into());
        };
        // persist-equivalent(fence drop): so does who links the extents.
        let fences = self.pool.fence_all(fences);
        self.pool.store(&bottom.directory[0].state, state_of(generation), Relaxed);
        // The last step that can fail; from here on the low fences are linked.
        let numbers = self.directory.link(&self.pool, &self.root().first, extents, bottom)?;
        fences.into_iter().for_each(|fence| _ = fence.release());
        // persist-equivalent: it is outdone by a leaf of a higher generation, as will be whatever begins there, and what its entry says next comes behind this.
        before.kill(&self.pool);
        // Extents were filled from the bottom on, and are listed from the top on.
        let mut free = Vec::new();
        let numbers: Vec<Number> = numbers.into_iter().rev().flatten().collect();
        let (used, unused) = numbers.split_at(lows.len());
        free.extend(unused.iter().rev().copied());
        for (leaf, fingerprints) in used.iter().zip(&fingerprints) {
            self.begin(*leaf)?.fill(fingerprints);
        }
        self.leaves.add(lows.len() as i64 - 1);
        self.known.keys.add(count as i64);
        self.router.populate(only, lows.into_iter().zip(used.iter().copied()).collect());
        lock.release_obsolete();
        free.push(only);
        self.directory.give_back(free, true);
        Ok(())
    }
}

/// Live leaves: low fences and numbers.
type Live<K> = Vec<(<K as ToOwned>::Owned, Number)>;

/// Sorts leaves. If several have equal lows, the one of the highest generation counts; the others die, and are returned.
fn choose<K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize>(
    pool: &Pool<M>,
    directory: &Directory<LINES, LEAVES>,
    leaves: &mut Live<K>,
) -> Result<Vec<Number>, Error> {
    let corrupt = |leaf: Number, what| Error::from(everleaf_pmem::Error::corrupt(pool.offset_of(directory.entry(pool, leaf)).bytes(), what));
    leaves.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    match leaves.first() {
        Some((low, _)) if *low.borrow() == *K::LOWEST => {}
        Some((_, leaf)) => return Err(corrupt(*leaf, "a first leaf that is not lowest")),
        None => return Err(everleaf_pmem::Error::corrupt(0, "an index without leaves").into()),
    }
    let (mut dead, mut equal) = (Vec::new(), None);
    leaves.dedup_by(|next, chosen| {
        if next.0 != chosen.0 {
            return false;
        }
        let [later, earlier] = [next.1, chosen.1].map(|leaf| directory.entry(pool, leaf).generation());
        match later.cmp(&earlier) {
            Order::Less => {}
            Order::Equal => equal = Some(next.1),
            Order::Greater => std::mem::swap(next, chosen),
        }
        dead.push(next.1);
        true
    });
    if let Some(leaf) = equal {
        return Err(corrupt(leaf, "two leaves of one range and one generation"));
    }
    for leaf in &dead {
        directory.entry(pool, *leaf).kill(pool);
        // persist-equivalent(fence drop): who lets the leaf that stands for its range reach further has fenced a removal. Others, who may come sooner, do not
        // wait for this flush.
        pool.fence();
    }
    Ok(dead)
}

/// Extents for a bulk load, filled from the bottom on, and not reachable yet.
struct Chain<'p, K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize> {
    /// All but the bottom, from the top on, flushed.
    extents: Vec<Flushed<'p, Extent<LINES, LEAVES>, M>>,
    bottom: Fresh<'p, Extent<LINES, LEAVES>, M>,
    /// Low fences and fingerprints of the leaves, in order.
    lows: Vec<K::Owned>,
    fingerprints: Vec<Fingerprints>,
    fences: Vec<Flushed<'p, [Word], M>>,
    count: u64,
}

impl<'p, K: Key + ?Sized, M: Medium, const LINES: usize, const LEAVES: usize> Chain<'p, K, M, LINES, LEAVES> {
    /// `None` if there are no entries.
    fn build(pool: &'p Pool<M>, entries: &mut dyn Iterator<Item = (K::Owned, NonZeroU64)>, fill: f64) -> Result<Option<Self>, Error> {
        let size = ((Leaf::<LINES>::CAPACITY as f64 * fill) as usize).clamp(1, Leaf::<LINES>::CAPACITY);
        let mut extents: Vec<Fresh<'p, Extent<LINES, LEAVES>, M>> = Vec::new();
        let (mut lows, mut fingerprints, mut fences, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut last: Option<K::Owned> = None;
        loop {
            let mut slots = Vec::with_capacity(size);
            let mut first = None;
            for (key, value) in entries.take(size) {
                if last.as_ref().is_some_and(|last| *last >= key) {
                    return Err(Cause::Unsorted { position: count }.into());
                }
                slots.push(Slot { token: key.borrow().token(), value });
                if first.is_none() {
                    first = Some(last.as_ref().map_or_else(|| K::LOWEST.to_owned(), |last| K::separator(last.borrow(), key.borrow())));
                }
                last = Some(key);
                count += 1;
            }
            let Some(low) = first else { break };
            let at = lows.len() % LEAVES;
            if at == 0 {
                let extent = pool.alloc::<Extent<LINES, LEAVES>>()?;
                Directory::begin(pool, &extent, extents.last().map_or(0, |below| below.off().link()));
                extents.push(extent);
            }
            let extent = extents.last().expect("one was just made, or there is room");
            let (word, fence) = low.borrow().fence(pool)?;
            pool.store(&extent.directory[at].low, word, Relaxed);
            pool.store(&extent.directory[at].state, state_of(1), Relaxed);
            fingerprints.push(extent.leaves[at].build(pool, &slots, false).fingerprints);
            fences.extend(fence.map(|fence| fence.flush()));
            lows.push(low);
        }
        let mut extents = extents.into_iter();
        let Some(bottom) = extents.next() else { return Ok(None) };
        let extents = extents.rev().map(|extent| extent.flush()).collect();
        Ok(Some(Self { extents, bottom, lows, fingerprints, fences, count }))
    }
}
