//! Nodes, whatever the order in which their entries lie. FAST ([`super::fast`]), Circ-Tree ([`super::circular`]), LCB+-Tree ([`super::logged`]) and CDDS
//! ([`super::versioned`]) say how a change is written. The tree's module documentation has the protocol between nodes.
//!
//! ```text
//! line 0   link of the next node of the level | low fence | level, as a link | run | four words of zeroes
//! line l   4 x { head, value }, or 2 with a lifetime                                 1 <= l <= LINES; a node is 64 (LINES + 1) bytes, and a log
//! ```
//!
//! Entries ascend. In a leaf, an entry is that of a key. In an inner node it is that of a child: the value is the child's link, the head that of its low fence.
//! If heads are equal, the fences themselves are compared. An entry is identified by its place in that order, its *rank*. The layout decides in which *slot* it
//! lies.

use crate::Error;
use crate::key::Key;
use crate::selective::leaf::{self, Entry};
use crate::shift::{HEAD, VALUE};
use everleaf_pmem::{Medium, Off, Pm, Resident, Word, resident};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Slots of a line.
pub(super) const PER_LINE: usize = 4;

pub(super) const UNSOUND: &str = "a node whose entries do not lie where its header says";

/// Pairs of head and value.
pub(crate) type Line = [[Word; 2]; PER_LINE];

resident! {
    /// The first line of a node.
    pub(crate) struct Header {
        next: Word,
        low: Word,
        level: Word,
        pub(super) run: Word,
        reserved: [Word; 4],
    }
}

/// Consecutive slots; the first slot of a node follows its last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first slot.
    pub(super) base: usize,
    pub(super) count: usize,
}

impl Run {
    /// The word in a header: first slot, 16 bits | number of entries, 16 bits | the complement of both, so that damage shows.
    pub(super) fn word(self) -> u64 {
        let run = (self.count << 16 | self.base) as u64;
        run | !run << 32
    }

    /// What the word in a header says, with neither part above `max`, whatever it says.
    #[inline(always)]
    pub(super) fn of(word: u64, max: usize) -> Self {
        let part = |word: u64| usize::from(word as u16).min(max);
        Self { base: part(word), count: part(word >> 16) }
    }
}

/// The parts of [`Node`] that are the same in all layouts. They use the fields `header` and `lines`, of which there are `LINES`.
macro_rules! header_and_lines {
    () => {
        const LINES: usize = LINES;

        #[inline(always)]
        fn header(&self) -> &Header {
            &self.header
        }

        #[inline(always)]
        fn lines(&self) -> &[Line] {
            &self.lines
        }
    };
}
pub(super) use header_and_lines;

/// What the header of a new node says.
pub(crate) struct Birth {
    /// Link of the next node of the level.
    pub(super) next: u64,
    /// The low fence, as [`Key::fence`] writes it.
    pub(super) low: u64,
    /// 0 for a leaf.
    pub(super) level: usize,
}

/// The bytes of a node and the order in which they are written. A writer has the node's latch; a reader checks afterwards that nothing has changed.
pub(crate) trait Node: Resident + Sized + Send + Sync + 'static {
    /// Lines of slots.
    const LINES: usize;

    /// Largest number of entries.
    const CAPACITY: usize;

    fn header(&self) -> &Header;

    fn lines(&self) -> &[Line];

    /// The other words of a new node that are 0.
    fn zeroes(&self) -> &[Word] {
        &[]
    }

    /// The slots in which entries lie, as far as the header tells: if it does not tell how many there are, the first value of 0 does.
    fn run(&self) -> Run;

    /// The run word of this many entries from the first slot on.
    fn run_word(count: usize) -> u64;

    /// Number of entries. `least` returns a number that it is not below.
    fn count_from(&self, least: impl FnOnce() -> usize) -> usize;

    /// A rank before which no head is as large as this one.
    #[inline(always)]
    fn begin(&self, _head: u64) -> usize {
        0
    }

    /// Adds an entry at a rank, durably, to a node of `count` entries with room. Returns the slots that have changed; if the run gets a new first slot, the old
    /// and the new one are among them.
    fn insert<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, rank: usize, count: usize, entry: Entry) -> Run;

    /// Removes one of `count` entries, durably. Returns the slots as for [`Self::insert`].
    fn remove<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, rank: usize, count: usize) -> Run;

    /// Keeps the first `count` entries and no more, durably.
    fn cut<M: Medium>(&self, pm: &Pm<M>, count: usize);

    /// Writes the entries of the next node behind those of this one, durably. What the header tells of them is durable with the link of this node, which the
    /// caller stores next. Until then all are beyond the range of this node: after a crash [`Self::recover`] removes them, however many there are.
    fn append<M: Medium>(&self, pm: &Pm<M>, next: &Self);

    /// Finishes or takes back what a crash has interrupted, durably. Stores nothing if there is no such change. No other thread has the node. `high` is where
    /// its range ends, if it does.
    fn recover<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, high: Option<&K>) -> Result<(), Error>;

    /// Whether the header can be true. Whoever changes a node has checked this.
    #[inline(always)]
    fn is_sound(&self) -> bool {
        true
    }

    /// Whether the header can be true, and its number of entries, if it has one, is this. Whoever has read all entries asks.
    fn holds(&self, _count: usize) -> bool {
        true
    }

    /// Whether entries lie where the header says, and nowhere else.
    fn has_its_run(&self) -> bool {
        true
    }

    /// Whether the lines are worth prefetching before they are searched: those of a small node are.
    const ASKED: bool = Self::LINES < 8;

    /// Bytes of a new node that [`Self::build`] writes: its first ones.
    const BUILT: usize = size_of::<Self>();

    /// Slots of a node.
    const SLOTS: usize = Self::LINES * PER_LINE;

    /// The slot of a rank in a run.
    #[inline(always)]
    fn slot_of(run: Run, rank: usize) -> usize {
        let slot = run.base + rank;
        if slot < Self::SLOTS { slot } else { slot - Self::SLOTS }
    }

    /// The rank of the entry in a slot, in a run from `base` on.
    #[inline(always)]
    fn rank_of(base: usize, slot: usize) -> usize {
        if slot < base { slot + Self::SLOTS - base } else { slot - base }
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> &[Word; 2] {
        &self.lines()[slot / PER_LINE][slot % PER_LINE]
    }

    /// The line of a slot.
    #[inline(always)]
    fn line(&self, slot: usize) -> &Line {
        &self.lines()[slot / PER_LINE]
    }

    /// The lines in which slots lie.
    #[inline(always)]
    fn lines_of(run: Run) -> impl Iterator<Item = usize> {
        let first = run.base / PER_LINE;
        let lines = if run.count == 0 { 0 } else { (run.base % PER_LINE + run.count).div_ceil(PER_LINE).min(Self::LINES) };
        (first..first + lines).map(|line| if line < Self::LINES { line } else { line - Self::LINES })
    }

    #[track_caller]
    fn flush_slots<M: Medium>(&self, pm: &Pm<M>, slots: Run) {
        Self::lines_of(slots).for_each(|line| pm.flush(&self.lines()[line]));
    }

    #[inline(always)]
    fn at(&self, rank: usize) -> &[Word; 2] {
        self.slot(Self::slot_of(self.run(), rank))
    }

    #[inline(always)]
    fn head(&self, rank: usize) -> u64 {
        self.at(rank)[HEAD].get()
    }

    /// The value of an entry.
    #[inline(always)]
    fn value(&self, rank: usize) -> Option<NonZeroU64> {
        NonZeroU64::new(self.at(rank)[VALUE].get())
    }

    /// Number of entries.
    fn count(&self) -> usize {
        self.count_from(|| 0)
    }

    /// The entries, in order.
    fn entries(&self) -> impl Iterator<Item = Entry> {
        let run = self.run();
        (0..run.count).map_while(move |rank| Entry::read(self.slot(Self::slot_of(run, rank))))
    }

    /// The word that links the next node of the level.
    #[inline(always)]
    fn next(&self) -> &Word {
        &self.header().next
    }

    /// The low fence, as [`Key::fence`] writes it.
    #[inline(always)]
    fn low(&self) -> u64 {
        self.header().low.get()
    }

    /// 0 for a leaf; `None` if it is damaged.
    #[inline(always)]
    fn level(&self) -> Option<usize> {
        Off::<()>::of_link(self.header().level.get()).map(|level| level.bytes() as usize)
    }

    /// Number of entries below `key`, and whether the next one is that of `key`. The heads of those before `from` are below that of the key.
    #[inline(always)]
    fn rank<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K, from: usize) -> Result<(usize, bool), Error> {
        let (run, head) = (self.run(), key.head(0));
        let entry = |rank| self.slot(Self::slot_of(run, rank));
        let is_below = |rank: usize| entry(rank)[VALUE].get() != 0 && entry(rank)[HEAD].get() < head;
        let has_head = |rank: usize| rank < run.count && entry(rank)[VALUE].get() != 0 && entry(rank)[HEAD].get() == head;
        let below = (from..run.count).find(|&rank| !is_below(rank)).unwrap_or(run.count);
        if K::WHOLE {
            return Ok((below, has_head(below)));
        }
        let (mut start, mut end) = (below, below);
        while has_head(end) {
            end += 1;
        }
        while start < end {
            let middle = start + (end - start) / 2;
            match self.compare(pm, key, entry(middle))? {
                Order::Less => end = middle,
                Order::Equal => return Ok((middle, true)),
                Order::Greater => start = middle + 1,
            }
        }
        Ok((start, false))
    }

    /// The key of an entry: in an inner node, the low fence of the child.
    fn key<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, entry: &Entry) -> Result<K::Owned, Error> {
        match self.level() {
            Some(0) => leaf::read::<K, M>(pm, entry),
            _ => Ok(K::read_fence(pm, self.child(pm, entry.value)?.low())?.0),
        }
    }

    fn child<'p, M: Medium>(&self, pm: &'p Pm<M>, link: NonZeroU64) -> Result<&'p Self, Error> {
        Ok(pm.at(Off::<Self>::from_link(link.get())?, "a node does not lie in the pool")?)
    }

    /// Compares a key with that of an entry.
    #[inline]
    fn compare<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, key: &K, [head, value]: &[Word; 2]) -> Result<Order, Error> {
        let Some(value) = NonZeroU64::new(value.get()) else { return Ok(Order::Less) };
        let whose = match self.level() {
            Some(0) => value.get(),
            _ => self.child(pm, value)?.low(),
        };
        match NonZeroU64::new(whose) {
            Some(record) => key.compare(pm, 0, head.get(), record),
            // The lowest key has no record.
            None => Ok(key.cmp(K::LOWEST)),
        }
    }

    /// Whether an entry is beyond a range that ends at `high`. An error if its head is damaged: entries that count must not be cut off for that.
    fn is_beyond<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>, slot: &[Word; 2], high: &K) -> Result<bool, Error> {
        let Some(entry) = Entry::read(slot) else { return Ok(false) };
        let head = high.head(0);
        if entry.head < head || entry.head == head && self.compare(pm, high, slot)?.is_gt() {
            return Ok(false);
        }
        let key = self.key::<K, M>(pm, &entry)?;
        let key: &K = key.borrow();
        if key.head(0) == entry.head && key >= high { Ok(true) } else { Err(self.damaged(pm, "a node with a head that is not that of its key")) }
    }

    /// Sets a value, durably.
    #[inline(always)]
    fn update<M: Medium>(&self, pm: &Pm<M>, rank: usize, value: NonZeroU64) {
        let word = &self.at(rank)[VALUE];
        pm.store(word, value.get(), Release);
        pm.persist(word);
    }

    /// Writes all of a node that nobody can reach. The caller seals it.
    fn build<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, entries: impl Iterator<Item = Entry>) {
        let mut count = 0;
        let entries = entries.inspect(|_| count += 1).map(|entry| [entry.head, entry.value.get()]).chain(std::iter::repeat([0; 2]));
        for (slot, [head, value]) in self.lines().as_flattened().iter().zip(entries) {
            pm.store(&slot[HEAD], head, Relaxed);
            pm.store(&slot[VALUE], value, Relaxed);
        }
        self.write_header(pm, birth, count);
    }

    /// Writes the rest of a node that nobody can reach.
    fn write_header<M: Medium>(&self, pm: &Pm<M>, birth: &Birth, count: usize) {
        let Header { next, low, level, run, reserved } = self.header();
        let words = [(next, birth.next), (low, birth.low), (level, Off::<()>::new(birth.level as u64).link()), (run, Self::run_word(count))];
        for (word, value) in words.into_iter().chain(reserved.iter().chain(self.zeroes()).map(|word| (word, 0))) {
            pm.store(word, value, Relaxed);
        }
    }

    /// Checks that identities and heads of neighbours are in order, as they are when no operation is in progress.
    fn check_order<K: Key + ?Sized, M: Medium>(&self, pm: &Pm<M>) -> Result<(), Error> {
        let are_apart = |(below, above): (Entry, Entry)| match below.head.cmp(&above.head) {
            Order::Less => true,
            Order::Equal => !K::WHOLE && below.value != above.value,
            Order::Greater => false,
        };
        if !self.has_its_run() {
            return Err(self.damaged(pm, UNSOUND));
        }
        if self.entries().zip(self.entries().skip(1)).all(are_apart) { Ok(()) } else { Err(self.damaged(pm, "a node whose entries do not ascend")) }
    }

    fn damaged<M: Medium>(&self, pm: &Pm<M>, what: &'static str) -> Error {
        everleaf_pmem::Error::corrupt(pm.offset_of(self).bytes(), what).into()
    }
}
