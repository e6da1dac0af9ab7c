//! The allocator's state, all of it volatile: which slabs and blocks are free.
//!
//! Nothing here touches the pool's memory or knows its medium. Lock order: `growing`, `caches`, one of a class, `bare`, `runs`. The locks of classes and of the
//! runs are held for a few dozen instructions per batch of blocks.
//!
//! Free slabs are of two kinds: those in `runs` have space on the file system; those in `bare` may have none, and get some before they are used.
//!
//! *Evacuation* makes free slabs out of scattered free blocks. In each class, as many slabs stay as the blocks in use would fill, the lowest ones. The others
//! *leave*: none of their blocks is handed out, a block that is freed waits for the rest of its slab, and owners replace the blocks in use. Slabs that have not
//! left when the evacuation ends stay. An evacuation of *a few* slabs lets only some of the others leave: those that cost least to move.

use super::cache::{Batch, Cache};
use super::class::{Class, Classes, FIRST};
use super::runs::{Runs, Taken};
use super::table::{Table, Use};
use crate::{Error, local};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pieces that are looked at for each one that is to leave.
const PIECES_PER_CHOSEN: u32 = 64;
/// The cost of a slab that cannot be emptied.
const IMMOVABLE: u32 = u32::MAX;

/// See the module documentation.
pub(super) struct Heap {
    /// Distinguishes this pool from all others of the process.
    pub(super) id: u64,
    slab_bits: u32,
    pub(super) classes: &'static Classes,
    uses: Table,
    bins: Box<[Mutex<Bin>]>,
    runs: Mutex<Runs>,
    /// Free slabs that may have no space on the file system.
    bare: Mutex<Runs>,
    /// Whether everything found free at the start is bare.
    is_holey: bool,
    /// Number of evacuations. A cache from before the latest one is emptied before it hands out a block.
    evacuations: AtomicU64,
    /// Whether the latest one was of a few slabs.
    is_of_few: AtomicBool,
    /// Held while the pool grows, so that threads which run out of space together grow it once.
    pub(super) growing: Mutex<()>,
    /// The caches of all threads.
    pub(super) caches: Mutex<Vec<Arc<Cache>>>,
    recovering: AtomicBool,
    /// Whether the reserve is not complete (`reserve.rs`): then no thread keeps freed blocks in its cache.
    is_low: AtomicBool,
}

/// The slabs of one class.
struct Bin {
    class: u8,
    shape: &'static Class,
    slabs: Vec<Slab>,
    /// Vacant places of `slabs`.
    vacant: Vec<u32>,
    /// Places of the slabs that have free blocks.
    partial: Vec<u32>,
}

/// A slab of blocks, or a span of slabs that blocks share.
struct Slab {
    /// The first of them; 0 if the place is vacant.
    number: u32,
    /// Number of free blocks that no thread has in its cache.
    free_count: u32,
    /// Place in `partial`, if `free_count` is not 0.
    partial_place: u32,
    /// One bit per such block.
    free: Box<[u64]>,
    /// Whether an evacuation wants it empty, so that its blocks are not handed out.
    leaves: bool,
    /// Whether one of its blocks was found to be immovable, and none was freed since.
    is_stuck: bool,
}

/// What lies at an offset, as far as the table of slabs says.
pub(super) enum Block {
    /// A block of a class. If its slab `leaves`, the block must not be handed out.
    Shared { class: u8, leaves: bool },
    /// A run of slabs.
    Run { slab: u32, count: u32 },
}

/// A slab in use, or a span or a run of them, as a snapshot, a recovery or an inventory found it.
pub(super) enum Found {
    /// Blocks of a class, in as many slabs as the class says; one bit per block in use.
    Blocks { class: u8, used: Box<[u64]> },
    /// A run of slabs.
    Run { count: u32 },
}

impl Heap {
    /// The heap of a pool of `length` bytes: all free, or, while it is `recovering`, not known yet. In a file that `is_holey`, slabs found to be free may have
    /// no space.
    pub(super) fn new(classes: &'static Classes, length: usize, recovering: bool, is_holey: bool) -> Self {
        let heap = Self {
            id: local::unique(),
            slab_bits: classes.slab_size.trailing_zeros(),
            classes,
            uses: Table::new(),
            bins: (0..classes.count() as u8).map(|class| Mutex::new(Bin::new(class, classes.get(class)))).collect(),
            runs: Mutex::new(Runs::new()),
            bare: Mutex::new(Runs::new()),
            is_holey,
            evacuations: AtomicU64::new(0),
            is_of_few: AtomicBool::new(false),
            growing: Mutex::new(()),
            caches: Mutex::default(),
            recovering: AtomicBool::new(recovering),
            is_low: AtomicBool::new(false),
        };
        heap.extend(length);
        heap
    }

    pub(super) fn is_recovering(&self) -> bool {
        self.recovering.load(Ordering::Relaxed)
    }

    pub(super) fn slab_size(&self) -> usize {
        1 << self.slab_bits
    }

    /// Offset of a slab in the pool, in bytes.
    pub(super) fn offset(&self, slab: u32) -> u64 {
        u64::from(slab) << self.slab_bits
    }

    /// Number of slabs, the header's included.
    pub(super) fn slab_count(&self) -> u32 {
        self.runs.lock().end()
    }

    /// Number of free slabs at the end of the pool that have space on the file system.
    pub(super) fn tail(&self) -> u32 {
        self.runs.lock().tail()
    }

    /// Number of slabs in `length` bytes, the header's included.
    pub(super) fn slabs_in(&self, length: usize) -> u32 {
        u32::try_from(length >> self.slab_bits).unwrap_or(u32::MAX)
    }

    /// The slab in which `off` lies, and the distance from the slab's start.
    #[inline]
    pub(super) fn split(&self, off: u64) -> Option<(u32, usize)> {
        Some((u32::try_from(off >> self.slab_bits).ok()?, off as usize & (self.slab_size() - 1)))
    }

    /// What has been handed out at `off`; `None` if nothing can have been.
    #[inline]
    pub(super) fn locate(&self, off: u64) -> Option<Block> {
        let (slab, within) = self.split(off)?;
        match self.uses.get(slab) {
            Use::Blocks { class, leaves, .. } => self.classes.place(class, within).map(|_| Block::Shared { class, leaves }),
            Use::Run { count, .. } => (within == FIRST).then_some(Block::Run { slab, count }),
            Use::None | Use::Untouched => None,
        }
    }

    /// Bytes in free slabs, and in free blocks outside threads' caches. Approximate while other threads allocate and free.
    pub(super) fn free_size(&self) -> usize {
        let blocks = self.bins.iter().enumerate().map(|(class, bin)| {
            let bin = bin.lock();
            let count: usize = bin.partial.iter().map(|place| bin.slabs[*place as usize].free_count as usize).sum();
            count * self.classes.get(class as u8).size as usize
        });
        let blocks: usize = blocks.sum();
        blocks + self.free_slabs() * self.slab_size()
    }

    /// Number of free slabs.
    pub(super) fn free_slabs(&self) -> usize {
        [&self.bare, &self.runs].iter().map(|runs| runs.lock().total() as usize).sum()
    }

    /// Number of free slabs that may have no space on the file system.
    pub(super) fn bare_slabs(&self) -> usize {
        self.bare.lock().total() as usize
    }

    /// Whether at least `count` blocks of `class` are free, outside threads' caches.
    pub(super) fn has_free(&self, class: u8, count: usize) -> bool {
        let bin = self.bins[class as usize].lock();
        let mut found = 0;
        // Each has at least one.
        bin.partial.iter().any(|place| {
            found += bin.slabs[*place as usize].free_count as usize;
            found >= count
        })
    }

    #[inline]
    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    pub(super) fn set_low(&self, is_low: bool) {
        // Usually unchanged, and every thread that frees something reads it.
        if self.is_low() != is_low {
            self.is_low.store(is_low, Ordering::Relaxed);
        }
    }

    /// The pool is now `length` bytes long.
    pub(super) fn extend(&self, length: usize) {
        let (mut runs, end) = (self.runs.lock(), self.slabs_in(length));
        match self.is_recovering() {
            // Recovery finds out what of it is free.
            true => runs.end_at(end),
            false => runs.extend(end),
        }
    }

    /// Takes `count` neighbouring slabs, for [`Heap::add_slab`] or [`Heap::add_run`].
    pub(super) fn take_slabs(&self, count: u32) -> Option<u32> {
        let Taken { start, is_untouched } = self.runs.lock().take(count)?;
        if is_untouched {
            self.uses.set(start, Use::Untouched);
        }
        Some(start)
    }

    /// Takes `count` neighbouring slabs which may have no space on the file system.
    pub(super) fn take_bare(&self, count: u32) -> Option<u32> {
        self.bare.lock().take(count).map(|taken| taken.start)
    }

    /// Takes the first run of bare slabs at or after `from`: its first slab and its length.
    pub(super) fn take_bare_run(&self, from: u32) -> Option<(u32, u32)> {
        self.bare.lock().take_from(from)
    }

    /// Number of slabs of the longest free run, bare or not.
    pub(super) fn longest_run(&self) -> u32 {
        [&self.bare, &self.runs].iter().filter_map(|runs| runs.lock().iter().map(|(_, count)| count).max()).max().unwrap_or(0)
    }

    /// Takes the first run of free slabs with space at or after `from`: its first slab and its length.
    pub(super) fn take_run(&self, from: u32) -> Option<(u32, u32)> {
        self.runs.lock().take_from(from)
    }

    /// Gives back free slabs that may no longer have space.
    pub(super) fn give_bare(&self, slab: u32, count: u32) {
        self.bare.lock().give(slab, count);
    }

    /// Removes the free slabs at the end of the pool; returns how many slabs are left, if that changes anything. The pool keeps `least` slabs.
    pub(super) fn cut(&self, least: u32) -> Option<u32> {
        let (mut bare, mut runs) = (self.bare.lock(), self.runs.lock());
        let before = runs.end();
        let mut end = before;
        while let Some(start) = runs.take_before(end).or_else(|| bare.take_before(end)) {
            end = start;
        }
        if end < least {
            // Whether they have space or not.
            bare.give(end, least.min(before) - end);
            end = least.min(before);
        }
        runs.end_at(end);
        (end < before).then_some(end)
    }

    /// Gives back slabs that were taken and not used.
    pub(super) fn give_slabs(&self, slab: u32, count: u32) {
        self.runs.lock().give(slab, count);
    }

    /// Makes `slab` a run of `count` slabs. Its header is durable.
    pub(super) fn add_run(&self, slab: u32, count: u32) {
        self.uses.set(slab, Use::Run { count, is_untouched: self.uses.get(slab) == Use::Untouched });
    }

    /// Whether nobody had stored to the run of slabs at `off` between the opening of the pool and the moment when it was handed out.
    pub(super) fn is_untouched(&self, off: u64) -> bool {
        self.split(off).is_some_and(|(slab, _)| matches!(self.uses.get(slab), Use::Run { is_untouched: true, .. }))
    }

    /// Frees a run of slabs; one that does not exist, as in a damaged pool, is ignored.
    pub(super) fn free_run(&self, slab: u32, count: u32) {
        if [false, true].into_iter().any(|is_untouched| self.uses.clear(slab, Use::Run { count, is_untouched })) {
            self.runs.lock().give_used(slab, count);
        }
    }

    /// Makes `slab`, and those behind it that belong to the same span of `class`, slabs of free blocks. The header is durable.
    pub(super) fn add_slab(&self, class: u8, slab: u32) {
        self.bins[class as usize].lock().add(&self.uses, slab, self.classes.get(class).all());
    }

    /// Lets slabs leave: those not needed for the blocks in use, or all of them if `all`. Returns their number.
    pub(super) fn evacuate(&self, all: bool) -> usize {
        let mut leaving = 0;
        for bin in &self.bins {
            let mut bin = bin.lock();
            bin.slabs.iter_mut().for_each(|slab| slab.is_stuck = false);
            let stay = if all { 0 } else { bin.needed() };
            for place in bin.in_order().into_iter().skip(stay) {
                bin.leave(&self.uses, place);
                leaving += bin.shape.slabs as usize;
            }
        }
        self.is_of_few.store(false, Ordering::Relaxed);
        self.evacuations.fetch_add(1, Ordering::Release);
        leaving
    }

    /// Lets slabs leave that are not needed for the blocks in use: `few` or more, in pieces of `wanted` neighbouring slabs, those with the least in use.
    /// Returns what is in use in each piece: when all of it has been moved, the piece is free. The caller holds the lock for growing.
    pub(super) fn evacuate_few(&self, wanted: u32, few: u32) -> Vec<Vec<u64>> {
        let few = few.max(wanted);
        let mut spare: Vec<usize> = self.bins.iter().map(|bin| bin.lock().spare()).collect();
        let (mut leaving, mut chosen) = (0, Vec::new());
        for from in self.pieces(wanted, (few * PIECES_PER_CHOSEN / wanted) as usize, &spare) {
            if leaving >= few {
                break;
            }
            let groups: BTreeSet<_> = (from..from + wanted).filter_map(|slab| self.uses.group(slab)).collect();
            let mut left = spare.clone();
            // Pieces may overlap.
            let is_spare = |(class, _, leaves): &(u8, u32, bool)| {
                let left = &mut left[*class as usize];
                !leaves && left.checked_sub(1).map(|less| *left = less).is_some()
            };
            if !groups.iter().all(is_spare) {
                continue;
            }
            spare = left;
            let mut piece = Vec::new();
            for (class, place, _) in groups {
                let mut bin = self.bins[class as usize].lock();
                let Slab { number, .. } = bin.slabs[place as usize];
                // It may have become free meanwhile.
                if number != 0 {
                    piece.extend(bin.in_use(place).map(|index| self.offset(number) + bin.shape.within(index) as u64));
                    bin.leave(&self.uses, place);
                    leaving += bin.shape.slabs;
                }
            }
            chosen.push(piece);
        }
        if leaving > 0 {
            self.is_of_few.store(true, Ordering::Relaxed);
            self.evacuations.fetch_add(1, Ordering::Release);
        }
        chosen
    }

    /// The first slabs of up to `most` pieces of `count` neighbouring slabs that may become free, and are not, in ascending order of the bytes in use in them.
    /// `spare` says for each class how many slabs or spans may leave.
    fn pieces(&self, count: u32, most: usize, spare: &[usize]) -> Vec<u32> {
        if spare.iter().all(|spare| *spare == 0) {
            return Vec::new();
        }
        let mut costs = vec![IMMOVABLE; self.slab_count() as usize];
        let mut enter = |slab: u32, count: u32, cost: u32| costs[slab as usize..][..count as usize].fill(cost);
        for runs in [&self.bare, &self.runs] {
            runs.lock().iter().for_each(|(start, count)| enter(start, count, 0));
        }
        for (bin, _) in self.bins.iter().zip(spare).filter(|(_, spare)| **spare > 0) {
            let bin = bin.lock();
            bin.movable().for_each(|slab| enter(slab.number, bin.shape.slabs, bin.cost(slab)));
        }
        let (mut cost, mut immovable, mut cheapest) = (0u64, 0u32, BinaryHeap::new());
        for slab in 0..costs.len() {
            match costs[slab] {
                IMMOVABLE => immovable += 1,
                of_slab => cost += u64::from(of_slab),
            }
            let Some(from) = (slab + 1).checked_sub(count as usize) else { continue };
            if cost > 0 && immovable == 0 {
                cheapest.push((cost, from as u32));
                if cheapest.len() > most {
                    cheapest.pop();
                }
            }
            match costs[from] {
                IMMOVABLE => immovable -= 1,
                of_slab => cost -= u64::from(of_slab),
            }
        }
        cheapest.into_sorted_vec().into_iter().map(|(_, from)| from).collect()
    }

    /// Notes that a block is immovable, so that its slab is not chosen again before another block there is freed.
    pub(super) fn keep(&self, block: u64) {
        if let Some((class, place, _)) = self.split(block).and_then(|(slab, _)| self.uses.group(slab)) {
            self.bins[class as usize].lock().slabs[place as usize].is_stuck = true;
        }
    }

    /// Ends an evacuation: slabs that have not left stay.
    pub(super) fn stay(&self) {
        self.is_of_few.store(false, Ordering::Relaxed);
        for bin in &self.bins {
            bin.lock().stay(&self.uses);
        }
    }

    /// Ends an evacuation, for the sake of the free blocks in slabs that leave, unless those are few.
    pub(super) fn stay_if_many(&self) {
        if !self.is_of_few.load(Ordering::Relaxed) {
            self.stay();
        }
    }

    /// Number of evacuations begun.
    #[inline]
    pub(super) fn evacuations(&self) -> u64 {
        self.evacuations.load(Ordering::Relaxed)
    }

    /// Takes up to `count` free blocks of `class`, those of one slab next to each other, the lowest to be popped first. None if no slab has any.
    pub(super) fn take(&self, class: u8, count: usize) -> Batch {
        let shape = self.classes.get(class);
        let mut taken = [(0, 0); super::class::CACHED_MAX];
        let mut found = 0;
        let mut bin = self.bins[class as usize].lock();
        while found < count
            && let Some(&place) = bin.partial.last()
        {
            let slab = &mut bin.slabs[place as usize];
            'slab: for (word, bits) in slab.free.iter_mut().enumerate() {
                while *bits != 0 {
                    if found == count {
                        break 'slab;
                    }
                    taken[found] = (slab.number, word * 64 + bits.trailing_zeros() as usize);
                    *bits &= *bits - 1;
                    slab.free_count -= 1;
                    found += 1;
                }
            }
            if slab.free_count == 0 {
                bin.partial.pop();
            }
        }
        drop(bin);
        let mut batch = Batch::new();
        for (slab, index) in taken[..found].iter().rev() {
            batch.push(self.offset(*slab) + shape.within(*index) as u64);
        }
        batch
    }

    /// Gives `blocks` of `class` back. An empty slab is given up, unless it is the only one of its class with free blocks; an empty span always is.
    pub(super) fn give(&self, class: u8, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        let shape = self.classes.get(class);
        let mut bin = self.bins[class as usize].lock();
        for block in blocks {
            let Some((number, _)) = self.split(*block) else { continue };
            // If a damaged pool has a block freed twice, its slab may be gone.
            let Use::Blocks { class: found, place, .. } = self.uses.get(number) else { continue };
            if found != class {
                continue;
            }
            let slab = &mut bin.slabs[place as usize];
            let number = slab.number;
            let Some(index) = block.checked_sub(self.offset(number)).and_then(|within| shape.index(within as usize)) else { continue };
            let (word, bit) = (index / 64, 1 << (index % 64));
            if slab.free[word] & bit != 0 {
                continue;
            }
            slab.free[word] |= bit;
            slab.free_count += 1;
            slab.is_stuck = false;
            let (leaves, is_empty) = (slab.leaves, slab.free_count == shape.count);
            if slab.free_count == 1 && !leaves {
                bin.mark_partial(place);
            }
            // A slab that leaves is neither used nor in the way until it is empty.
            if is_empty && (leaves || shape.slabs > 1 || bin.partial.len() > 1) {
                bin.remove(&self.uses, place);
                self.runs.lock().give_used(number, shape.slabs);
            }
        }
    }

    /// Gives up every slab that has only free blocks.
    pub(super) fn release_empty(&self) {
        for bin in &self.bins {
            let mut bin = bin.lock();
            let empty: Vec<_> = bin.partial.iter().copied().filter(|place| bin.slabs[*place as usize].free_count == bin.shape.count).collect();
            for place in empty {
                let number = bin.slabs[place as usize].number;
                bin.remove(&self.uses, place);
                self.runs.lock().give_used(number, bin.shape.slabs);
            }
        }
    }

    /// Takes over what was found, in ascending order without overlap; all other slabs are free. No other thread allocates or frees meanwhile, so holding the
    /// lock of the free slabs while taking those of the classes delays nobody.
    pub(super) fn restore(&self, found: impl Iterator<Item = (u32, Found)>) {
        assert!(self.is_recovering(), "recovered twice");
        let end = self.slab_count();
        let mut free = if self.is_holey { self.bare.lock() } else { self.runs.lock() };
        let mut next = 1;
        for (slab, found) in found {
            if slab > next {
                free.give(next, slab - next);
            }
            match found {
                Found::Run { count } => {
                    self.uses.set(slab, Use::Run { count, is_untouched: true });
                    next = slab + count;
                }
                Found::Blocks { class, mut used } => {
                    let shape = self.classes.get(class);
                    for (word, bits) in used.iter_mut().enumerate() {
                        *bits = !*bits & shape.all_in(word);
                    }
                    self.bins[class as usize].lock().add(&self.uses, slab, used);
                    next = slab + shape.slabs;
                }
            }
        }
        if end > next {
            free.give(next, end - next);
        }
        drop(free);
        self.recovering.store(false, Ordering::Release);
    }

    /// What is in use, by slab, without `retired` blocks. Exact when no operation is under way.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a block is free twice, or the slabs in use and the free ones do not add up to the pool. Only a damaged pool, or a bug, causes
    /// that.
    pub(super) fn inventory(&self, retired: &[u64]) -> Result<BTreeMap<u32, Found>, Error> {
        let caches = self.caches.lock();
        let mut held = BTreeMap::new();
        for (class, bin) in self.bins.iter().enumerate() {
            let shape = self.classes.get(class as u8);
            for slab in bin.lock().slabs.iter().filter(|slab| slab.number != 0) {
                let used = slab.free.iter().enumerate().map(|(word, free)| !free & shape.all_in(word)).collect();
                held.insert(slab.number, Found::Blocks { class: class as u8, used });
            }
        }
        for cache in caches.iter() {
            for class in 0..self.classes.count() as u8 {
                for block in cache.blocks(self.classes.get(class)) {
                    self.take_out(&mut held, block, Some(class))?;
                }
            }
        }
        self.add_runs(&mut held)?;
        for block in retired {
            self.take_out(&mut held, *block, None)?;
        }
        Ok(held)
    }

    /// Notes in `held` that `block` is not in use: free in a cache of `class`, or retired.
    fn take_out(&self, held: &mut BTreeMap<u32, Found>, block: u64, cached: Option<u8>) -> Result<(), Error> {
        let twice = || Error::corrupt(block, "a block that is free twice");
        let (slab, _) = self.split(block).ok_or_else(twice)?;
        // The slab belongs to the group that begins last before it, if that reaches so far.
        let (&number, found) = held.range_mut(..=slab).next_back().ok_or_else(twice)?;
        let within = (block - self.offset(number)) as usize;
        match found {
            Found::Blocks { class, used } => {
                let index = self.classes.get(*class).index(within).filter(|_| cached.is_none_or(|cached| cached == *class)).ok_or_else(twice)?;
                let (word, bit) = (index / 64, 1 << (index % 64));
                if used[word] & bit == 0 {
                    return Err(twice());
                }
                used[word] &= !bit;
            }
            Found::Run { .. } if within == FIRST && cached.is_none() => {
                held.remove(&number);
            }
            Found::Run { .. } => return Err(twice()),
        }
        Ok(())
    }

    /// Adds the runs in use to the slabs of blocks in `held`, and checks that together with the free runs they cover the whole pool, without overlap.
    fn add_runs(&self, held: &mut BTreeMap<u32, Found>) -> Result<(), Error> {
        let (bare, runs) = (self.bare.lock(), self.runs.lock());
        let free: BTreeMap<u32, u32> = bare.iter().chain(runs.iter()).collect();
        let mut free = free.into_iter().peekable();
        let mut next = 1;
        while next < runs.end() {
            if let Some((_, count)) = free.next_if(|(start, _)| *start == next) {
                if held.range(next..next + count).next().is_some() {
                    return Err(Error::corrupt(self.offset(next), "slabs that are free and in use"));
                }
                next += count;
                continue;
            }
            let (count, was) = match self.uses.get(next) {
                Use::Blocks { class, .. } if held.contains_key(&next) => (self.classes.get(class).slabs, None),
                Use::Run { count, .. } => (count, held.insert(next, Found::Run { count })),
                _ => return Err(Error::corrupt(self.offset(next), "a slab that is neither free nor in use")),
            };
            let end = next + count;
            if was.is_some() || held.range(next + 1..end).next().is_some() || free.peek().is_some_and(|(start, _)| *start < end) || end > runs.end() {
                return Err(Error::corrupt(self.offset(next), "neighbouring slabs that are in use otherwise"));
            }
            next = end;
        }
        Ok(())
    }
}

impl Bin {
    fn new(class: u8, shape: &'static Class) -> Self {
        Self { class, shape, slabs: Vec::new(), vacant: Vec::new(), partial: Vec::new() }
    }

    /// Sets the use of the slabs of one group, from `number` on.
    fn say(&self, uses: &Table, number: u32, place: u32, leaves: bool) {
        uses.set_all(number, self.shape.slabs, Use::Blocks { class: self.class, place, leaves });
    }

    fn add(&mut self, uses: &Table, number: u32, free: Box<[u64]>) {
        let free_count = free.iter().map(|bits| bits.count_ones()).sum();
        let slab = Slab { number, free_count, partial_place: 0, free, leaves: false, is_stuck: false };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.slabs[place as usize] = slab;
                place
            }
            None => {
                self.slabs.push(slab);
                self.slabs.len() as u32 - 1
            }
        };
        self.say(uses, number, place, false);
        if free_count > 0 {
            self.mark_partial(place);
        }
    }

    /// Adds a slab to the list of those with free blocks.
    fn mark_partial(&mut self, place: u32) {
        self.slabs[place as usize].partial_place = self.partial.len() as u32;
        self.partial.push(place);
    }

    /// Removes a slab from the list of those with free blocks.
    fn unmark_partial(&mut self, place: u32) {
        let partial_place = self.slabs[place as usize].partial_place as usize;
        self.partial.swap_remove(partial_place);
        if let Some(moved) = self.partial.get(partial_place) {
            self.slabs[*moved as usize].partial_place = partial_place as u32;
        }
    }

    /// Removes a slab whose blocks are all free.
    fn remove(&mut self, uses: &Table, place: u32) {
        let slab = &mut self.slabs[place as usize];
        uses.set_all(slab.number, self.shape.slabs, Use::None);
        let leaves = std::mem::take(&mut slab.leaves);
        slab.number = 0;
        slab.free = Box::default();
        self.vacant.push(place);
        if !leaves {
            self.unmark_partial(place);
        }
    }

    /// Number of slabs or spans that the blocks in use would fill, plus one to have some at hand.
    fn needed(&self) -> usize {
        let shape = self.shape;
        let used: usize = self.slabs.iter().filter(|slab| slab.number != 0).map(|slab| (shape.count - slab.free_count) as usize).sum();
        used.div_ceil(shape.count as usize) + usize::from(shape.slabs == 1)
    }

    /// All slabs, in ascending order.
    fn in_order(&self) -> Vec<u32> {
        let mut places: Vec<_> = (0..self.slabs.len() as u32).filter(|place| self.slabs[*place as usize].number != 0).collect();
        places.sort_unstable_by_key(|place| self.slabs[*place as usize].number);
        places
    }

    /// Lets a slab leave.
    fn leave(&mut self, uses: &Table, place: u32) {
        let slab = &mut self.slabs[place as usize];
        let (number, free_count) = (slab.number, slab.free_count);
        if !std::mem::replace(&mut slab.leaves, true) {
            self.say(uses, number, place, true);
            if free_count > 0 {
                self.unmark_partial(place);
            }
        }
    }

    /// Number of slabs or spans that the blocks in use can do without, and that may be emptied.
    fn spare(&self) -> usize {
        let in_use = self.slabs.len() - self.vacant.len();
        in_use.saturating_sub(self.needed()).min(self.movable().count())
    }

    fn movable(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.iter().filter(|slab| slab.number != 0 && !slab.is_stuck)
    }

    /// Number of bytes in use in each slab of a group.
    fn cost(&self, slab: &Slab) -> u32 {
        ((self.shape.count - slab.free_count) * self.shape.size).div_ceil(self.shape.slabs)
    }

    /// The numbers of the blocks of a slab that are in use, or in a thread's cache.
    fn in_use(&self, place: u32) -> impl Iterator<Item = usize> {
        let slab = &self.slabs[place as usize];
        (0..self.shape.count as usize).filter(|index| slab.free[index / 64] & 1 << (index % 64) == 0)
    }

    /// Lets every slab stay.
    fn stay(&mut self, uses: &Table) {
        for place in 0..self.slabs.len() as u32 {
            let slab = &mut self.slabs[place as usize];
            let (number, free_count) = (slab.number, slab.free_count);
            if std::mem::take(&mut slab.leaves) {
                self.say(uses, number, place, false);
                if free_count > 0 {
                    self.mark_partial(place);
                }
            }
        }
    }
}
