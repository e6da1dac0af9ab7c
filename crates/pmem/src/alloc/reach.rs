//! What is reachable: found by the indexes, adopted after a crash, compared with the allocator's state in an audit.

use super::Header;
use super::class::{Class, FIRST};
use super::heap::Found;
use crate::{Error, Medium, Off, Pool};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of blocks found reachable, marked by any number of threads. It serves recovery ([`Pool::adopt`]) and audit ([`Pool::audit`]).
pub struct Reach<'p, M: Medium> {
    pool: &'p Pool<M>,
    /// Indexed by slab number.
    slabs: Box<[Marks]>,
    /// Whether the blocks of the root directory, which belong to no index, have been marked.
    directory: Mutex<bool>,
}

/// What has been marked in a slab.
#[derive(Default)]
struct Marks {
    /// One of the values below.
    claim: AtomicU64,
    /// One bit per block, once one is marked.
    blocks: OnceLock<Box<[AtomicU64]>>,
}

/// Nothing is marked in the slab.
const UNCLAIMED: u64 = 0;
/// The slab is the second or a later one of a run or of a span.
const INNER: u64 = 1;
/// Plus the class: a block of the class is marked in the slab, or in the span that begins there.
const BLOCKS: u64 = 2;
/// Plus the number of slabs: the slab is the first of a run that is marked.
const RUN: u64 = 1 << 32;

/// How the space of a pool is used, as [`Pool::audit`] found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of blocks that are allocated and reachable.
    pub reachable: usize,
    /// Number of blocks that are allocated but not reachable.
    pub leaked: usize,
    /// Where one of the leaked blocks lies, in bytes from the start of the pool.
    pub leaked_at: Option<u64>,
    /// Number of blocks that are retired: they become free once no thread can hold them.
    pub retired: usize,
}

impl<M: Medium> Pool<M> {
    /// An empty set of reachable blocks.
    pub fn reach(&self) -> Reach<'_, M> {
        Reach { pool: self, slabs: (0..self.alloc.heap.slab_count()).map(|_| Marks::default()).collect(), directory: Mutex::new(false) }
    }

    /// Ends the recovery: the blocks in `reach` are allocated, everything else is free. In a pool that needs no recovery, `reach` is only compared with what is
    /// allocated.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a block of `reach` is free in a pool that needs no recovery.
    ///
    /// # Panics
    /// If `reach` is of another pool, or two threads end the recovery at once.
    pub fn adopt(&self, reach: Reach<'_, M>) -> Result<(), Error> {
        assert!(std::ptr::eq(self, reach.pool), "blocks of another pool");
        if !self.needs_recovery() {
            return self.audit(&reach).map(drop);
        }
        reach.mark_directory()?;
        let heap = &self.alloc.heap;
        let found = reach.slabs.iter().enumerate().filter_map(|(slab, marks)| {
            let found = match marks.claim.load(Ordering::Acquire) {
                UNCLAIMED | INNER => return None,
                claim if claim >= RUN => Found::Run { count: (claim - RUN) as u32 },
                claim => {
                    let class = (claim - BLOCKS) as u8;
                    Found::Blocks { class, used: marks.words(heap.classes.get(class)) }
                }
            };
            Some((slab as u32, found))
        });
        heap.restore(found);
        Ok(())
    }

    /// Visits the offset of every allocated block, in order; returns whether they are known, which they are not in a pool that needs recovery. No other
    /// operation may be under way.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the allocator's state is damaged.
    pub fn visit_blocks(&self, visit: &mut dyn FnMut(u64)) -> Result<bool, Error> {
        if self.needs_recovery() {
            return Ok(false);
        }
        let heap = &self.alloc.heap;
        for (slab, held) in heap.inventory(&self.epochs.retired())? {
            let at = heap.offset(slab);
            match held {
                Found::Run { .. } => visit(at + FIRST as u64),
                Found::Blocks { class, used } => {
                    let shape = heap.classes.get(class);
                    let places = (0..shape.count as usize).filter(|index| used[index / 64] & 1 << (index % 64) != 0);
                    places.for_each(|index| visit(at + shape.within(index) as u64));
                }
            }
        }
        Ok(true)
    }

    /// Compares `reach` with what is allocated. No other operation may be under way.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a reachable block is free or retired, or the allocator's state is damaged.
    pub fn audit(&self, reach: &Reach<'_, M>) -> Result<Usage, Error> {
        self.audit_with(reach, &mut |_| ())
    }

    /// [`Pool::audit`] that also has `visit` see where each allocated but unreachable block lies.
    ///
    /// # Errors
    /// See [`Pool::audit`].
    pub fn audit_with(&self, reach: &Reach<'_, M>, visit: &mut dyn FnMut(u64)) -> Result<Usage, Error> {
        reach.mark_directory()?;
        let heap = &self.alloc.heap;
        let retired = self.epochs.retired();
        let held = heap.inventory(&retired)?;
        let mut usage = Usage { retired: retired.len(), ..Usage::default() };
        let mut leak = |at: u64| {
            usage.leaked += 1;
            usage.leaked_at.get_or_insert(at);
            visit(at);
        };
        for (&slab, held) in &held {
            let (claim, at) = (reach.slabs.get(slab as usize).map_or(UNCLAIMED, |marks| marks.claim.load(Ordering::Acquire)), heap.offset(slab));
            match held {
                Found::Run { count } => match claim {
                    UNCLAIMED => leak(at + FIRST as u64),
                    claim if claim == RUN + u64::from(*count) => usage.reachable += 1,
                    _ => return Err(Error::corrupt(at, "a reachable block where the allocator has another")),
                },
                Found::Blocks { class, used } => {
                    let shape = heap.classes.get(*class);
                    if claim != UNCLAIMED && claim != BLOCKS + u64::from(*class) {
                        return Err(Error::corrupt(at, "a reachable block where the allocator has blocks of another size"));
                    }
                    let marked = reach.slabs.get(slab as usize).map_or_else(|| vec![0; used.len()].into_boxed_slice(), |marks| marks.words(shape));
                    for (word, (used, marked)) in used.iter().zip(&marked).enumerate() {
                        let block = |bits: u64| at + shape.within(word * 64 + bits.trailing_zeros() as usize) as u64;
                        if marked & !used != 0 {
                            return Err(Error::corrupt(block(marked & !used), "a reachable block that is free or retired"));
                        }
                        usage.reachable += marked.count_ones() as usize;
                        let mut leaked = used & !marked;
                        while leaked != 0 {
                            leak(block(leaked));
                            leaked &= leaked - 1;
                        }
                    }
                }
            }
        }
        let free = |(slab, marks): &(usize, &Marks)| marks.claim.load(Ordering::Acquire) > INNER && !held.contains_key(&(*slab as u32));
        match reach.slabs.iter().enumerate().find(free) {
            Some((slab, _)) => Err(Error::corrupt(heap.offset(slab as u32), "a reachable block in a slab that is free, or retired")),
            None => Ok(usage),
        }
    }
}

impl Marks {
    /// The bits of all blocks.
    fn words(&self, class: &Class) -> Box<[u64]> {
        match self.blocks.get() {
            Some(blocks) => blocks.iter().map(|bits| bits.load(Ordering::Acquire)).collect(),
            None => vec![0; class.bitmap_words()].into_boxed_slice(),
        }
    }
}

impl<M: Medium> Reach<'_, M> {
    /// Marks the block of `size` bytes at `off` as reachable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when no block of that size can lie there, or it is marked already.
    pub fn mark<T: ?Sized>(&self, off: Off<T>, size: usize) -> Result<(), Error> {
        let at = off.bytes();
        let heap = &self.pool.alloc.heap;
        let outside = || Error::corrupt(at, "a block outside the pool's slabs");
        let (slab, within) = heap.split(at).filter(|(slab, _)| (1..self.slabs.len()).contains(&(*slab as usize))).ok_or_else(outside)?;
        let classes = heap.classes;
        // A block for which there was no span lies where no block of a span does, or the header of its slab is not that of a span.
        let is_of_class = |number: &u8| {
            let shape = classes.get(*number);
            shape.slabs == 1 || !classes.fits_alone(size, within) || self.pool.expect_header(slab, Header::Blocks(shape.size)).is_ok()
        };
        match classes.of(size).filter(is_of_class).or_else(|| classes.alone(size)) {
            Some(number) => {
                let class = classes.get(number);
                let (before, index) = classes.place(number, within).ok_or_else(|| Error::corrupt(at, "a block that begins inside another"))?;
                let marks = self.claim_blocks(slab.checked_sub(before).filter(|first| *first > 0).ok_or_else(outside)?, number)?;
                let blocks = marks.blocks.get_or_init(|| (0..class.bitmap_words()).map(|_| AtomicU64::new(0)).collect());
                let bit = 1 << (index % 64);
                match blocks[index / 64].fetch_or(bit, Ordering::AcqRel) & bit {
                    0 => Ok(()),
                    _ => Err(Error::corrupt(at, "a block that is reachable twice")),
                }
            }
            None if within == FIRST => self.claim_run(slab, classes.run_of(size).ok_or_else(outside)?),
            None => Err(Error::corrupt(at, "a large block that does not begin a slab")),
        }
    }

    /// Marks the blocks of the root directory, once.
    fn mark_directory(&self) -> Result<(), Error> {
        let mut marked = self.directory.lock();
        if !*marked {
            for (off, size) in self.pool.directory_blocks()? {
                self.mark(off, size)?;
            }
            *marked = true;
        }
        Ok(())
    }

    /// Claims the slabs that blocks of `class` share, from `first` on; returns their marks.
    fn claim_blocks(&self, first: u32, class: u8) -> Result<&Marks, Error> {
        let heap = &self.pool.alloc.heap;
        let (shape, claim, at) = (heap.classes.get(class), BLOCKS + u64::from(class), heap.offset(first));
        let beyond = || Error::corrupt(at, "blocks that reach beyond the pool");
        let shared = self.slabs.get(first as usize..first as usize + shape.slabs as usize).ok_or_else(beyond)?;
        let marks = &shared[0];
        let others = || Error::corrupt(at, "a slab with blocks of two sizes, or of two spans");
        match marks.claim.load(Ordering::Acquire) {
            found if found == claim => return Ok(marks),
            UNCLAIMED => self.pool.expect_header(first, Header::Blocks(shape.size))?,
            // The slabs behind it are left to their possible owners.
            _ => return Err(others()),
        }
        if claim_all(shared, claim, true) { Ok(marks) } else { Err(others()) }
    }

    fn claim_run(&self, slab: u32, count: usize) -> Result<(), Error> {
        let at = self.pool.alloc.heap.offset(slab);
        let run = self.slabs[slab as usize..].get(..count).ok_or_else(|| Error::corrupt(at, "a large block that reaches beyond the pool"))?;
        self.pool.expect_header(slab, Header::Run(count as u32))?;
        match claim_all(run, RUN + count as u64, false) {
            true => Ok(()),
            false => Err(Error::corrupt(at, "a large block that overlaps another block")),
        }
    }
}

/// Claims neighbouring slabs, the first with `claim` and the others as [`INNER`]. False if one of them is claimed otherwise, or, unless the claim `is_shared`,
/// in the same way. The first is claimed last: if that fails, the claims on the others mean nothing, and no block lies there either.
fn claim_all(slabs: &[Marks], claim: u64, is_shared: bool) -> bool {
    slabs.iter().enumerate().rev().all(|(place, marks)| {
        let claim = if place == 0 { claim } else { INNER };
        let was = marks.claim.compare_exchange(UNCLAIMED, claim, Ordering::AcqRel, Ordering::Acquire);
        was.is_ok() || is_shared && was == Err(claim)
    })
}
