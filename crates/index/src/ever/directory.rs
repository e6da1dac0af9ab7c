//! Where leaves are, and which of them live.
//!
//! ```text
//! extent   line 0     link of the next extent | not used
//!          then       a directory entry for each of LEAVES leaves: { low fence, state }, four a line
//!          then       the leaves
//! ```
//!
//! A state of 0 says that the leaf is dead; its low fence then means nothing. Any other state is a *generation*, from 1: of leaves with equal lows, the one of
//! the highest generation stands for the range, and the others count as dead. A state is stored with check bits above it, as a link is ([`Off::link`]): no
//! change of one byte makes a state another one, or makes a leaf live or die.
//!
//! The low fence is stored before the state, in one line. So when a leaf comes to life, its state is the commit point of the operation. A leaf is written only
//! when its death is durable.
//!
//! The contents of a dead leaf do not count, but may be *known* to be durable. They are known if the leaf has lived, since all stores to a leaf are flushed and
//! fenced before its latch is free (or by the caller of `apply_unfenced`, behind it); if the opening of the pool has found the leaf; and if its extent had
//! never been stored to when it was made. A line of such a leaf in which every value is already 0 need not be written to be empty. Other leaves are not known
//! before they have been written whole.
//!
//! Extents form a list from the root block on. A new extent becomes the first: durable as a whole, all its leaves dead, then linked by one store. Several are
//! linked with each other before, and become the first by the same store.
//!
//! Dead leaves are reused. If they fill whole extents, those can be given back ([`Directory::gather`]): the first extents of the pool are chosen to hold all
//! live leaves; those in the others are moved (`relocate.rs`). When all leaves of an extent are durably dead, one store to the link to it takes it out of the
//! list: the commit point. Several are flushed and fenced together: a crash leaves a list with some of them. Then they are retired, and their numbers are given
//! to the next extents that are made. A thread that still comes to a leaf of one, by a stale way, finds its latch obsolete, or in another life.

use super::Error;
use super::leaf::{Descriptor, Leaf};
use crate::Cause;
use crate::arena::Arena;
use crossbeam_utils::CachePadded;
use everleaf_pmem::schedule::{self, atomic::AtomicU64};
use everleaf_pmem::{Durable, Flushed, Fresh, HANDLE_BITS, Handles, LINE, Medium, Off, Pm, Pool, Word, probe, resident};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

resident! {
    /// See the module documentation.
    pub(super) struct Extent<const LINES: usize, const LEAVES: usize> {
        pub(super) next: Word,
        reserved: [Word; 7],
        pub(super) directory: [Entry; LEAVES],
        pub(super) leaves: [Leaf<LINES>; LEAVES],
    }
}

resident! {
    /// A low fence, as [`Key::fence`](crate::Key::fence) writes it, and a state: see [`state_of`].
    pub(super) struct Entry {
        pub(super) low: Word,
        pub(super) state: Word,
    }
}

const OUTSIDE: &str = "an extent of leaves does not lie in the pool";

/// One extent in this many is made at a time; in builds that check, as many as there are.
const MADE_SHARE: usize = if schedule::IS_BUILT_IN { 1 } else { 16 };
/// Most extents that are made at a time: of the largest leaves, a megabyte.
const MADE_MAX: usize = 16;
/// Several are made only from so large a share of the free slabs.
const ROOM_SHARE: usize = 4;

/// Extents are emptied only if they are at least one in this many.
const SPARE_SHARE: usize = 8;

/// More generations than there are merges in the life of any index.
const GENERATION_MAX: u64 = (1 << 48) - 1;

/// The state of a leaf of a generation: see the module documentation.
pub(super) const fn state_of(generation: u64) -> u64 {
    Off::<()>::new(generation).link()
}

/// The generation in a state: 0 if the leaf is dead, `None` if the state is damaged.
pub(super) fn generation_of(state: u64) -> Option<u64> {
    Off::<()>::of_link(state).map(Off::bytes)
}

impl Entry {
    /// See [`generation_of`].
    pub(super) fn generation(&self) -> Option<u64> {
        generation_of(self.state.get())
    }

    /// The generation of the leaf that replaces this one; `None` if the state is damaged, or of the last generation, which only damage explains.
    pub(super) fn next_generation(&self) -> Option<u64> {
        self.generation().filter(|generation| *generation < GENERATION_MAX).map(|generation| generation + 1)
    }

    /// Brings a leaf to life, durably: the commit point.
    #[track_caller]
    pub(super) fn commit<M: Medium>(&self, pm: &Pm<M>, low: u64, generation: u64) {
        pm.store(&self.low, low, Release);
        pm.store(&self.state, state_of(generation), Release);
        pm.persist(self);
    }

    /// Makes a live leaf begin further down, where another leaf begins, durably: the commit point. From then on this leaf has the higher generation. The
    /// generation must not be stored later than the low, or neither of the two would stand for the range.
    #[track_caller]
    pub(super) fn reach_down<M: Medium>(&self, pm: &Pm<M>, low: u64, generation: u64) {
        pm.store(&self.state, state_of(generation), Release);
        pm.store(&self.low, low, Release);
        pm.persist(self);
    }

    /// Ends the life of a leaf. The caller fences.
    #[track_caller]
    pub(super) fn kill<M: Medium>(&self, pm: &Pm<M>) {
        pm.store(&self.state, 0, Release);
        pm.flush(&self.state);
    }
}

/// What [`Directory::follow`] calls for each extent, with its directory: low fences and generations.
type Visit<'a, const LINES: usize, const LEAVES: usize> = dyn FnMut(Off<Extent<LINES, LEAVES>>, &[[u64; 2]]) -> Result<(), Error> + 'a;

/// What the router knows of a leaf: the lower bits are its position, in lines; the upper ones the handle of its descriptor, which gives its extent (numbered as
/// found) and its place there. So a search can prefetch leaf and descriptor as soon as it knows this word.
pub(super) type Number = u64;

const LINE_BITS: u32 = u64::BITS - HANDLE_BITS;

/// The descriptors of all leaves.
pub(super) type Descriptors = Handles<Descriptor, 64>;

/// The handle of the descriptor of a leaf.
#[inline(always)]
pub(super) fn handle(leaf: Number) -> u32 {
    (leaf >> LINE_BITS) as u32
}

/// What DRAM knows of the extents.
pub(super) struct Directory<const LINES: usize, const LEAVES: usize> {
    /// The offset of each extent, in bytes.
    extents: Arena<AtomicU64, 64>,
    /// In separate lines, because searches do not read it.
    state: CachePadded<Mutex<State>>,
    /// Held to change the list of extents, even across fences. It is taken before the state, which no thread holds across a fence.
    list: CachePadded<Mutex<()>>,
}

#[derive(Default)]
struct State {
    /// The highest number of extents that existed at once; that many numbers have been in use.
    count: usize,
    /// Numbers that no extent has any more.
    vacant: Vec<usize>,
    /// Dead leaves; the next to be used is last.
    free: Vec<Dead>,
    /// Extents that are to be emptied, and their dead leaves, which are used only when there are no others.
    spare: HashSet<u64>,
    withheld: Vec<Dead>,
}

impl State {
    /// The number of the next extent.
    fn next_number(&self) -> usize {
        self.vacant.last().copied().unwrap_or(self.count)
    }
}

/// A dead leaf.
#[derive(Clone, Copy)]
pub(super) struct Dead {
    pub(super) number: Number,
    /// Whether its contents are durable.
    pub(super) is_known: bool,
}

impl<const LINES: usize, const LEAVES: usize> Directory<LINES, LEAVES> {
    const CHECKED: () = assert!(LEAVES.is_multiple_of(4), "leaves begin with a line");

    pub(super) fn new() -> Self {
        const { Self::CHECKED };
        Self { extents: Arena::new(), state: CachePadded::default(), list: CachePadded::default() }
    }

    /// A leaf by a number that may be out of date.
    #[inline(always)]
    pub(super) fn leaf<M: Medium>(pm: &Pm<M>, leaf: Number) -> Option<&Leaf<LINES>> {
        pm.get(Off::new((leaf & ((1 << LINE_BITS) - 1)) * LINE as u64))
    }

    /// The directory entry of a leaf.
    pub(super) fn entry<'p, M: Medium>(&self, pm: &'p Pm<M>, leaf: Number) -> &'p Entry {
        let number = Descriptors::number(handle(leaf));
        let extent = pm.get(Off::<Extent<LINES, LEAVES>>::new(self.extent_at(leaf)));
        &extent.expect("the number of a leaf in use").directory[number % LEAVES]
    }

    /// The numbers of the leaves of an extent, given its own number and offset, or an error if there can be none.
    fn numbers(number: usize, extent: u64) -> Result<impl DoubleEndedIterator<Item = Number> + ExactSizeIterator, Error> {
        if !extent.is_multiple_of(LINE as u64) {
            return Err(everleaf_pmem::Error::corrupt(extent, "an extent of leaves that does not begin with a line").into());
        }
        let leaf = move |at: usize| {
            let off = extent + (std::mem::offset_of!(Extent<LINES, LEAVES>, leaves) + at * size_of::<Leaf<LINES>>()) as u64;
            let handle = Descriptors::handle(number * LEAVES + at).filter(|_| (off / LINE as u64) >> LINE_BITS == 0);
            handle
                .map(|handle| (u64::from(handle) << LINE_BITS) | (off / LINE as u64))
                .ok_or(Cause::TooLarge { leaves: ((number + 1) * LEAVES) as u64, at: off })
        };
        leaf(LEAVES - 1)?;
        Ok((0..LEAVES).map(move |at| leaf(at).expect("smaller than the last one")))
    }

    /// Takes over an extent that is linked, or about to be, and returns its leaves. None of them is free until it is given back.
    ///
    /// # Errors
    /// [`Cause::TooLarge`].
    pub(super) fn adopt(&self, extent: Off<Extent<LINES, LEAVES>>) -> Result<impl DoubleEndedIterator<Item = Number> + use<LINES, LEAVES>, Error> {
        self.add(&mut schedule::lock(&self.state), extent)
    }

    fn add(&self, state: &mut State, extent: Off<Extent<LINES, LEAVES>>) -> Result<impl DoubleEndedIterator<Item = Number> + use<LINES, LEAVES>, Error> {
        let number = state.next_number();
        let numbers = Self::numbers(number, extent.bytes())?;
        self.extents.get_or_make(number).store(extent.bytes(), Release);
        if state.vacant.pop().is_none() {
            state.count += 1;
        }
        Ok(numbers)
    }

    /// The number of the extent of a leaf.
    fn extent_of(leaf: Number) -> usize {
        Descriptors::number(handle(leaf)) / LEAVES
    }

    /// Takes a dead leaf. If there is none, makes a new extent, or several next to each other: so they leave long runs of slabs between them to records.
    ///
    /// # Errors
    /// A full pool.
    pub(super) fn take<M: Medium>(&self, pool: &Pool<M>, first: &Word) -> Result<Dead, Error> {
        if let Some(leaf) = self.take_dead(pool) {
            return Ok(leaf);
        }
        let _list = schedule::lock(&self.list);
        // Another thread may have made an extent meanwhile.
        if let Some(leaf) = self.take_dead(pool) {
            return Ok(leaf);
        }
        let extents = self.alloc_some(pool)?;
        let are_known: Vec<bool> = extents.iter().map(Fresh::is_untouched).collect();
        let nexts: Vec<u64> = extents.iter().skip(1).map(|extent| extent.off().link()).chain([first.load(Acquire)]).collect();
        extents.iter().zip(nexts).for_each(|(extent, next)| Self::begin(pool, extent, next));
        // The contents of leaves mean nothing before they live.
        let chain = extents.into_iter().map(|extent| extent.flush_first(std::mem::offset_of!(Extent<LINES, LEAVES>, leaves))).collect();
        let leaves = self.publish(pool, first, chain)?;
        let mut state = schedule::lock(&self.state);
        // In reverse, so that leaves are taken in the order of memory.
        let dead = leaves.into_iter().zip(are_known).rev().flat_map(|(leaves, is_known)| leaves.into_iter().rev().map(move |number| Dead { number, is_known }));
        state.free.extend(dead);
        Ok(state.free.pop().expect("leaves were just added"))
    }

    /// Allocates an extent, or several if there are many already, and enough free slabs.
    fn alloc_some<'p, M: Medium>(&self, pool: &'p Pool<M>) -> Result<Vec<Fresh<'p, Extent<LINES, LEAVES>, M>>, Error> {
        let mut extents = vec![pool.alloc::<Extent<LINES, LEAVES>>()?];
        let count = {
            let state = schedule::lock(&self.state);
            state.count - state.vacant.len()
        };
        let room = pool.free_in_slabs() / size_of::<Extent<LINES, LEAVES>>() / ROOM_SHARE;
        let most = (count / MADE_SHARE).min(MADE_MAX).min(room);
        // One is enough, so whatever prevents another is no error.
        extents.extend((1..most).map_while(|_| pool.alloc().ok()));
        Ok(extents)
    }

    /// Links a chain of extents that has been flushed, `first` to the top: the commit point of whatever lives there. The caller holds the list. Returns the
    /// leaves of each.
    fn publish<'p, M: Medium>(&self, pool: &'p Pool<M>, first: &Word, chain: Vec<Flushed<'p, Extent<LINES, LEAVES>, M>>) -> Result<Vec<Vec<Number>>, Error> {
        let count = schedule::lock(&self.state).count;
        for (number, extent) in chain.iter().enumerate() {
            drop(Self::numbers(count + number, extent.off().bytes())?);
        }
        let mut chain = pool.fence_all(chain).into_iter();
        let top = chain.next().expect("a chain has a top");
        let rest: Vec<_> = chain.map(Durable::release).collect();
        let top = pool.link(first, top);
        let mut state = schedule::lock(&self.state);
        std::iter::once(top).chain(rest).map(|extent| Ok(self.add(&mut state, extent)?.collect())).collect()
    }

    /// Takes a dead leaf, if there is one. Prefetches the next.
    fn take_dead<M: Medium>(&self, pm: &Pm<M>) -> Option<Dead> {
        let (leaf, next) = {
            let mut state = schedule::lock(&self.state);
            (state.free.pop().or_else(|| state.withheld.pop()), state.free.last().copied())
        };
        // A thread that sees a store to the leaf also sees that its former life has ended.
        fence(Release);
        next.and_then(|next| Self::leaf(pm, next.number)).into_iter().for_each(probe::prefetch_lines);
        leaf
    }

    /// Writes the first lines of a new extent, whose leaves are all dead.
    pub(super) fn begin<M: Medium>(pm: &Pm<M>, extent: &Fresh<'_, Extent<LINES, LEAVES>, M>, next: u64) {
        pm.store(&extent.next, next, Relaxed);
        // persist-equivalent(store late): nobody reads them yet.
        extent.reserved.iter().for_each(|word| pm.store(word, 0, Relaxed));
        extent.directory.iter().for_each(|entry| pm.store(&entry.state, 0, Relaxed));
    }

    /// Gives back leaves whose death is durable. `is_known`: whether their contents are durable, too.
    pub(super) fn give_back(&self, leaves: impl IntoIterator<Item = Number>, is_known: bool) {
        let mut state = schedule::lock(&self.state);
        for number in leaves {
            let is_spare = !state.spare.is_empty() && state.spare.contains(&self.extent_at(number));
            let dead = if is_spare { &mut state.withheld } else { &mut state.free };
            dead.push(Dead { number, is_known });
        }
    }

    /// Takes a dead leaf of an extent that stays, if there is one.
    pub(super) fn take_staying(&self) -> Option<Dead> {
        let leaf = schedule::lock(&self.state).free.pop();
        // As in `take_dead`.
        fence(Release);
        leaf
    }

    /// Whether the extent at this offset is to be emptied.
    pub(super) fn is_spare(&self, extent: u64) -> bool {
        schedule::lock(&self.state).spare.contains(&extent)
    }

    /// Gives back the extents whose leaves are all dead. Then chooses the extents to be emptied: all but the first ones of the pool, as many as the live leaves
    /// need, unless that makes little difference. Returns their number.
    ///
    /// # Errors
    /// A list that leaves the pool, or does not end.
    pub(super) fn gather<M: Medium>(&self, pool: &Pool<M>, first: &Word) -> Result<usize, Error> {
        let _list = schedule::lock(&self.list);
        let mut state = schedule::lock(&self.state);
        let State { count, vacant, free, spare, withheld } = &mut *state;
        free.append(withheld);
        spare.clear();
        let mut dead = vec![0; *count];
        free.iter().for_each(|leaf| dead[Self::extent_of(leaf.number)] += 1);
        let without: HashSet<usize> = vacant.iter().copied().collect();
        let mut number_of: HashMap<u64, usize> = (0..*count).filter(|number| !without.contains(number)).map(|number| (self.offset(number), number)).collect();
        let (mut stay, mut gone) = (Vec::new(), HashMap::new());
        let walked: Result<(), Error> = (|| {
            let mut link = first;
            loop {
                let off = Off::<Extent<LINES, LEAVES>>::from_link(link.get())?;
                if off.is_null() {
                    return Ok(());
                }
                let extent = pool.at(off, OUTSIDE)?;
                let unknown = || everleaf_pmem::Error::corrupt(off.bytes(), "an extent of leaves that the index did not find when it was opened, nor make");
                let number = number_of.remove(&off.bytes()).ok_or_else(unknown)?;
                if dead[number] < LEAVES {
                    stay.push((off.bytes(), number));
                    link = &extent.next;
                    continue;
                }
                pool.store(link, extent.next.get(), Release);
                pool.flush(link);
                gone.insert(number, off);
            }
        })();
        if !gone.is_empty() {
            free.retain(|leaf| !gone.contains_key(&Self::extent_of(leaf.number)));
            drop(state);
            // Whichever of the links become durable first, the list leads to all live leaves.
            pool.fence();
            let guard = pool.pin();
            gone.values().for_each(|off| pool.retire(*off, &guard));
            state = schedule::lock(&self.state);
            state.vacant.extend(gone.into_keys());
        }
        let State { free, spare, withheld, .. } = &mut *state;
        // The first leaves of the pool are used first.
        free.sort_unstable_by_key(|leaf| std::cmp::Reverse(leaf.number & ((1 << LINE_BITS) - 1)));
        walked?;
        // Leaves may have been taken or given back meanwhile: that makes little difference.
        let live: usize = stay.iter().map(|(_, number)| LEAVES - dead[*number]).sum();
        let needed = live.div_ceil(LEAVES);
        if (stay.len() - needed) * SPARE_SHARE >= stay.len() {
            stay.sort_unstable();
            spare.extend(stay.into_iter().skip(needed).map(|(off, _)| off));
            (*withheld, *free) = std::mem::take(free).into_iter().partition(|leaf| spare.contains(&self.extent_at(leaf.number)));
        }
        Ok(spare.len())
    }

    /// The offset of the extent of a leaf, in bytes.
    pub(super) fn extent_at(&self, leaf: Number) -> u64 {
        self.offset(Self::extent_of(leaf))
    }

    /// The offset of an extent, by its number, in bytes.
    fn offset(&self, number: usize) -> u64 {
        self.extents.get(number).expect("the number of an extent in use").load(Relaxed)
    }

    /// Links a chain of extents that ends in `bottom`, `top` first; all but `bottom` have been flushed. The link is the commit point of all leaves that live
    /// there. Returns the leaves of each extent, from the top on.
    ///
    /// # Errors
    /// [`Cause::TooLarge`]; then nothing is linked.
    pub(super) fn link<'p, M: Medium>(
        &self,
        pool: &'p Pool<M>,
        first: &Word,
        mut chain: Vec<Flushed<'p, Extent<LINES, LEAVES>, M>>,
        bottom: Fresh<'p, Extent<LINES, LEAVES>, M>,
    ) -> Result<Vec<Vec<Number>>, Error> {
        let _list = schedule::lock(&self.list);
        pool.store(&bottom.next, first.load(Acquire), Relaxed);
        chain.push(bottom.flush());
        self.publish(pool, first, chain)
    }

    /// Visits the extents from `first` on.
    ///
    /// # Errors
    /// A list that leaves the pool, or does not end; a state that is damaged.
    pub(super) fn follow<M: Medium>(pool: &Pool<M>, first: u64, visit: &mut Visit<'_, LINES, LEAVES>) -> Result<(), Error> {
        Self::follow_by(pool, first, &|_, state| generation_of(state), visit)
    }

    /// [`Directory::follow`], with `judge` computing the generation of a leaf from its low fence and state.
    pub(super) fn follow_by<M: Medium>(
        pool: &Pool<M>,
        first: u64,
        judge: &dyn Fn(u64, u64) -> Option<u64>,
        visit: &mut Visit<'_, LINES, LEAVES>,
    ) -> Result<(), Error> {
        let mut next = Off::<Extent<LINES, LEAVES>>::from_link(first)?;
        // The lines in front of the leaves.
        let mut words = vec![0; std::mem::offset_of!(Extent<LINES, LEAVES>, leaves) / size_of::<Word>()];
        for _ in 0..=pool.length() / size_of::<Extent<LINES, LEAVES>>() {
            if next.is_null() {
                return Ok(());
            }
            pool.at(next, OUTSIDE)?;
            pool.glimpse(next.bytes(), &mut words, OUTSIDE)?;
            let (line, directory) = words.split_at_mut(LINE / size_of::<Word>());
            let (directory, _) = directory.as_chunks_mut();
            for (at, [low, state]) in directory.iter_mut().enumerate() {
                let place = || next.bytes() + (std::mem::offset_of!(Extent<LINES, LEAVES>, directory) + at * size_of::<Entry>()) as u64;
                *state = judge(*low, *state).ok_or_else(|| everleaf_pmem::Error::corrupt(place(), "a state of a leaf that does not match its check bits"))?;
            }
            visit(next, directory)?;
            next = Off::from_link(line[0])?;
        }
        Err(everleaf_pmem::Error::corrupt(next.bytes(), "a list of extents that does not end").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrderedIndex;
    use crate::ever::Ever;
    use everleaf_pmem::schedule::{Scheduler, Step};
    use everleaf_pmem::{Hardware, PoolOptions};
    use std::num::NonZeroU64;
    use std::panic::Location;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    type Index = Ever<u64, Hardware, 1, 4, 4>;

    /// Checks that no thread holds the lock of dead leaves while this thread fences.
    struct Free(&'static Index, Arc<AtomicUsize>);

    impl Scheduler for Free {
        fn before(&self, step: Step, _: &'static Location<'static>) {
            if step == Step::Fence {
                assert!(self.0.directory.state.try_lock().is_some());
                self.1.fetch_add(1, Relaxed);
            }
        }
    }

    #[test]
    fn leaves_are_not_waited_for_over_a_fence() {
        if !schedule::IS_BUILT_IN {
            return;
        }
        let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 4 << 20, ..PoolOptions::default() }).unwrap();
        let index: &'static Index = Box::leak(Box::new(Index::create(&pool, "index", "ever").unwrap()));
        let fences = Arc::new(AtomicUsize::new(0));
        let scheduled = schedule::enter(Arc::new(Free(index, Arc::clone(&fences))));
        (0..400).for_each(|key| assert!(index.insert(&key, NonZeroU64::MIN).unwrap().is_none()));
        (0..400).for_each(|key| assert!(index.remove(&key).unwrap().is_some()));
        let before = fences.load(Relaxed);
        index.gather().unwrap();
        drop(scheduled);
        assert!(before > 800 && fences.load(Relaxed) > before, "extents were made, and some are given back");
        index.check().unwrap();
    }
}
