//! Garbage that snapshots hold back, and its collection.
//!
//! A write that keeps versions leaves garbage behind: the version that it replaced; after a delete, a tombstone in the index, which hides the older versions of
//! its key; after a clear, the unlinked index. Each piece of garbage is *held* in a list, ordered by the timestamp of its replacement (a tombstone: of its own
//! write), and is given back when every snapshot is above that timestamp. Versions that no snapshot can want are given back at once: those replaced before the
//! oldest snapshot began, and those written after the newest one began, which are cut out of the versions of their key (`version.rs`). When a snapshot ends,
//! the versions that were replaced since it began are examined again, in steps, the newest first, so that few versions remain in front of the one that a step
//! looks for. So while snapshots stay open, a key has no more versions than they see, apart from those still to be examined. Tombstones and cleared indexes are
//! not examined again: they wait until the oldest snapshot that existed then has ended.
//!
//! # Invariants
//!
//! 1. A writer that replaces a version asks for the oldest bound ([`Snapshots::want`]) *after* the replacement has its timestamp. A snapshot that might want
//!    the old version has drawn a timestamp that is not above the replacement's, so it drew before, and registered its bound before that.
//! 2. The list is in DRAM only. After a crash none of its contents is reachable, hence all is free, except tombstones: recovery removes those.
//! 3. The thread that takes a tombstone out of the index gives it back: either [`Shared::bury`], or a writer that replaces it. A replaced tombstone is held as
//!    a replaced version, later in the list, unless it is cut out at once. So [`Shared::bury`] may read a block that was reused (after a clear, too). It trusts
//!    the index only, under the stripe of whatever key it has read: there it finds no tombstone, or another one, which it removes only if no snapshot wants it.
//! 4. A thread that cuts a version out later than at its replacement holds the stripe of its key and keeps others from collecting; and there is a snapshot that
//!    already had its timestamp when the version was replaced ([`Snapshots::have_before`]). Every writer that has replaced a newer version since has found that
//!    snapshot, so that version is held or cut out, and all links from the newest version to the one looked for lead to blocks in place.
//!
//! Garbage is collected in steps, by one thread at a time, never while it holds a stripe: a few steps after each write as long as there is garbage, more when a
//! snapshot ends or a namespace is cleared, and in [`Store::keep_house`], which the server calls, and on request a thread of the store
//! ([`Options::keeps_house`](crate::Options::keeps_house)).
//!
//! A step handles one version, or some newer ones passed on the way to it, or one tombstone. For an index that no reader can see any more, a step lists the
//! records of one leaf, or gives back some records and blocks. Nothing of such an index is given back before all of its records are listed, which takes eight
//! bytes of DRAM each: going on to the next leaf, by the key with which it begins, may read any record on the way.

use crate::clock::Clock;
use crate::snapshot::Snapshots;
use crate::store::{Former, Index, Shared, Space};
use crate::stripes;
use crate::version::{Age, CUT_OUT};
use crate::{Direction, Error, Store, Swept};
use everleaf_index::Listed;
use everleaf_index::record::Record;
use everleaf_pmem::schedule::{self, Held as Locked};
use everleaf_pmem::{Guard, Off, Reserve, Word, with_reserve};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps for each write: more than the garbage that it leaves.
pub(crate) const STEPS_PER_WRITE: usize = 4;
/// Steps when a namespace is cleared: a few thousand keys. Fewer where tests are to meet what is left.
pub(crate) const STEPS_PER_CLEAR: usize = if schedule::IS_BUILT_IN { 2 } else { 64 };
/// Records or blocks of an index that a step gives back.
const BLOCKS_PER_STEP: usize = 64;
/// Keys that are looked at in a sweep, and steps in a turn of [`Store::keep_house`].
pub(crate) const STEPS_PER_TURN: usize = 1000;
/// Sweeps in such a turn: with ten turns a second, a few percent of a processor while something is due.
const SWEEPS_PER_TURN: usize = 10;
/// Newer versions passed on the way to one that is looked at again which count as one step more.
const PASSED_PER_STEP: usize = 64;
/// Removals in a row that find no room: then the next will not find any either, before something else is given back. Each counts as a step, so no write to a
/// full pool tries all of them.
const REFUSALS_MAX: usize = 16;

/// The result of one turn of collection.
pub(crate) struct Turn {
    pub(crate) steps: usize,
    /// Steps that gave something back, or came nearer to it.
    collected: usize,
    /// Those that only came nearer, by listing.
    pub(crate) listed: usize,
    /// The first damage met. What is damaged leaks.
    outcome: Result<(), Error>,
}

impl Turn {
    fn count(&mut self, steps: usize) {
        self.steps += steps;
        self.collected += steps;
    }
}

/// A piece of garbage.
struct Held {
    /// Every snapshot must be above this.
    until: u64,
    size: Size,
    remains: Remains,
}

/// Size of a piece of garbage.
#[derive(Clone, Copy, Default)]
struct Size {
    /// Of records and of the leaves of indexes.
    bytes: u64,
    /// Of indexes whose records were not measured.
    keys: u64,
}

enum Remains {
    /// A replaced version: the namespace of its key, and its link.
    Version(Arc<Space>, u64),
    /// A version that was cut out since.
    Nothing,
    /// A tombstone in the index of a namespace.
    Tombstone(Arc<Space>, u64),
    /// An unlinked index.
    Index(Arc<Space>, Arc<Former>),
    /// A whole index that no reader can see any more; the links of its records below this key, at which a leaf begins.
    Records(Arc<Index>, Vec<u64>, Vec<u8>),
    /// The rest of such an index: links of records; and its own blocks, as offsets and sizes in bytes.
    Blocks(Vec<u64>, Vec<(u64, usize)>),
}

/// All garbage of a store.
pub(crate) struct Garbage {
    held: Mutex<List>,
    count: AtomicU64,
    bytes: AtomicU64,
    keys: AtomicU64,
    /// Versions replaced at this timestamp or later are to be looked at again; [`NONE_DUE`]: none.
    due_from: AtomicU64,
    collecting: Mutex<()>,
}

/// In [`Garbage::due_from`].
const NONE_DUE: u64 = u64::MAX;

/// All garbage, in the order of replacement.
#[derive(Default)]
struct List {
    all: VecDeque<Held>,
    /// The number of the first piece; each further piece has the next number.
    first: u64,
    /// How many of them are [`Remains::Nothing`].
    gone: usize,
    /// Numbers of the pieces still to be looked at again, taken from the end.
    due: Range<u64>,
}

/// A version that is held, to be looked at again.
struct Due {
    number: u64,
    until: u64,
    space: Arc<Space>,
    link: u64,
}

enum Next {
    GiveBack(Held),
    LookAt(Due),
}

impl List {
    fn push(&mut self, held: Held) {
        // A thread may arrive here after one that has drawn a later timestamp.
        let at = self.all.iter().rposition(|other| other.until <= held.until).map_or(0, |before| before + 1);
        self.all.insert(at, held);
        // A piece inserted among those that are due is due, too.
        let number = self.first + at as u64;
        self.due.start += u64::from(number < self.due.start);
        self.due.end += u64::from(number < self.due.end);
    }

    fn push_front(&mut self, held: Held) {
        self.all.push_front(held);
        self.first -= 1;
    }

    fn pop_front(&mut self) -> Option<Held> {
        let held = self.all.pop_front()?;
        self.first += 1;
        Some(held)
    }

    /// The first piece that is not gone.
    fn front(&mut self) -> Option<&Held> {
        while self.all.front()?.is_gone() {
            self.pop_front();
            self.gone -= 1;
        }
        self.all.front()
    }

    fn len(&self) -> u64 {
        (self.all.len() - self.gone) as u64
    }

    /// The next version that is to be looked at again.
    fn next_due(&mut self) -> Option<Due> {
        while self.due.start.max(self.first) < self.due.end {
            self.due.end -= 1;
            let Held { until, remains, .. } = &self.all[(self.due.end - self.first) as usize];
            if let Remains::Version(space, link) = remains {
                return Some(Due { number: self.due.end, until: *until, space: space.clone(), link: *link });
            }
        }
        self.due = 0..0;
        None
    }

    /// Makes all that was replaced at `from` or later due for another look. What was due before is done.
    fn set_due(&mut self, from: u64) {
        if self.gone > self.all.len() / 2 {
            self.all.retain(|held| !held.is_gone());
            self.gone = 0;
        }
        let begin = self.all.partition_point(|held| held.until < from);
        self.due = self.first + begin as u64..self.first + self.all.len() as u64;
    }

    /// Drops a version that was looked at and cut out; returns its size. Other pieces may have come before it meanwhile.
    fn remove(&mut self, Due { number, link, .. }: &Due) -> Size {
        let mut from = self.all.range_mut((number - self.first) as usize..);
        let held = from.find(|held| matches!(held.remains, Remains::Version(_, other) if other == *link)).expect("whoever collects takes versions out");
        held.remains = Remains::Nothing;
        let size = std::mem::take(&mut held.size);
        self.gone += 1;
        while self.all.back().is_some_and(Held::is_gone) {
            self.all.pop_back();
            self.gone -= 1;
        }
        self.due.end = self.due.end.min(self.first + self.all.len() as u64);
        size
    }
}

impl Held {
    fn is_gone(&self) -> bool {
        matches!(self.remains, Remains::Nothing)
    }
}

/// Space that snapshots hold back. See [`Store::held_back`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// Number of snapshots and transactions that are open.
    pub snapshots: usize,
    /// How many timestamps the oldest of them is behind: about as many writes.
    pub age: u64,
    /// Number of versions, tombstones and cleared namespaces that wait to be given back.
    pub count: u64,
    /// Their size in bytes; for cleared namespaces, the size of the leaves of their indexes.
    pub bytes: u64,
    /// Number of keys of cleared namespaces, whose records wait to be given back.
    pub cleared_keys: u64,
    /// Size in bytes of what transactions in progress have written to the pool.
    pub draft_bytes: u64,
}

impl Garbage {
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::default(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            due_from: AtomicU64::new(NONE_DUE),
            collecting: Mutex::new(()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn push(&self, until: u64, size: Size, remains: Remains) {
        schedule::drain();
        let mut held = self.held.lock();
        held.push(Held { until, size, remains });
        self.count.store(held.len(), Ordering::Relaxed);
        self.bytes.fetch_add(size.bytes, Ordering::Relaxed);
        self.keys.fetch_add(size.keys, Ordering::Relaxed);
    }

    /// Subtracts what was given back.
    fn forget(&self, size: Size) {
        self.bytes.fetch_sub(size.bytes, Ordering::Relaxed);
        self.keys.fetch_sub(size.keys, Ordering::Relaxed);
    }

    /// Versions replaced at this timestamp or later may be wanted no more: a snapshot with this bound has ended.
    pub(crate) fn look_again_from(&self, bound: u64) {
        self.due_from.fetch_min(bound, Ordering::AcqRel);
    }

    /// The next piece that no snapshot wants, or that is to be looked at again.
    fn next(&self, snapshots: &Snapshots, clock: &Clock) -> Option<Next> {
        let until = self.held.lock().front()?.until;
        // Only the collecting thread pops.
        let is_wanted = snapshots.want(clock, 0, until);
        let mut held = self.held.lock();
        if is_wanted {
            let due = held.next_due();
            return due.or_else(|| self.begin_to_look_again(&mut held)).map(Next::LookAt);
        }
        let next = held.pop_front();
        self.count.store(held.len(), Ordering::Relaxed);
        next.map(Next::GiveBack)
    }

    fn begin_to_look_again(&self, held: &mut List) -> Option<Due> {
        if self.due_from.load(Ordering::Relaxed) == NONE_DUE {
            return None;
        }
        held.set_due(self.due_from.swap(NONE_DUE, Ordering::AcqRel));
        held.next_due()
    }

    /// Drops a version that was looked at and cut out.
    fn remove(&self, due: &Due) {
        let size = {
            let mut held = self.held.lock();
            let size = held.remove(due);
            self.count.store(held.len(), Ordering::Relaxed);
            size
        };
        self.forget(size);
    }

    /// Whether all garbage is linked in an index: such garbage may stay there when the pool is closed.
    pub(crate) fn is_linked(&self) -> bool {
        self.held.lock().all.iter().all(|held| matches!(held.remains, Remains::Tombstone(..) | Remains::Nothing))
    }

    /// Takes back a piece that was popped but could not be given back now.
    fn unpop(&self, held: Held) {
        let mut all = self.held.lock();
        all.push_front(held);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Keeps other threads from collecting. To be called before taking any stripe.
    pub(crate) fn pause(&self) -> Locked<MutexGuard<'_, ()>> {
        schedule::lock(&self.collecting)
    }
}

impl<M: Listed> Shared<M> {
    /// Gives back, or holds back, the version of a key of `space` that `link` refers to, which was durably replaced at this timestamp. `newer` is the version
    /// that replaced it, if that is in the index. The caller holds the stripe.
    pub(crate) fn replaced(&self, space: &Arc<Space>, link: u64, newer: Option<NonZeroU64>, at: u64, guard: &Guard) -> Result<(), Error> {
        let record = Record::read(&self.pool, link)?;
        self.sweeper.note_replaced(record.expiry_ms(), &self.wall);
        let may_be_wanted = self.snapshots.want(&self.clock, 0, at) || record.is_tombstone();
        if !may_be_wanted || self.cut_out(link, &record, newer, at)? {
            return self.retire(link, guard);
        }
        self.garbage.push(at, Size { bytes: record.size() as u64, keys: 0 }, Remains::Version(space.clone(), link));
        // A snapshot that has ended meanwhile did not find this version in the list.
        if matches!(self.age(&record)?, Age::At(created) if !self.snapshots.want_exactly(&self.clock, created, at)) {
            self.garbage.look_again_from(at);
        }
        Ok(())
    }

    /// Cuts out a replaced version if no snapshot wants it; returns whether it did. See `version.rs`.
    fn cut_out(&self, link: u64, record: &Record<'_>, newer: Option<NonZeroU64>, at: u64) -> Result<bool, Error> {
        let Some(newer) = newer.map(|newer| Record::read(&self.pool, newer.get())).transpose()? else { return Ok(false) };
        match self.age(record)? {
            Age::At(created) if !self.snapshots.want_exactly(&self.clock, created, at) => {}
            _ => return Ok(false),
        }
        let behind = record.previous().load(Ordering::Acquire) | CUT_OUT;
        // persist-equivalent(store early): after a crash no reader follows this link.
        Ok(self.pool.compare_exchange(newer.previous(), link, behind).is_ok())
    }

    /// Gives back a held version if it can be cut out by now; returns how many newer ones were passed on the way to it. The caller has kept others from
    /// collecting and holds no stripe.
    fn look_again(&self, due: &Due) -> Result<usize, Error> {
        let record = Record::read(&self.pool, due.link)?;
        let Age::At(created) = self.age(&record)? else { return Ok(0) };
        if self.snapshots.want_exactly(&self.clock, created, due.until) {
            return Ok(0);
        }
        let mut key = Vec::new();
        record.copy_key(&mut key);
        let (is_cut_out, passed) = {
            let _stripe = self.stripes.lock(due.space.number, &key);
            self.cut_out_late(&key, &record, created, due)?
        };
        if is_cut_out {
            self.garbage.remove(due);
            self.retire(due.link, &self.pool.pin())?;
        }
        Ok(passed)
    }

    /// [`Shared::cut_out`] for a version that was replaced earlier and that no snapshot wants: cuts it out behind the version that is its successor now
    /// (invariant 4). Also returns how many newer versions were passed.
    fn cut_out_late(&self, key: &[u8], record: &Record<'_>, created: u64, due: &Due) -> Result<(bool, usize), Error> {
        let Some(index) = due.space.index.load_full().filter(|_| self.snapshots.have_before(due.until)) else { return Ok((false, 0)) };
        let (mut next, mut last, mut passed) = (index.tree.get(key)?.map_or(0, NonZeroU64::get), u64::MAX, 0);
        while next != 0 {
            let newer = Record::read(&self.pool, next)?;
            // It may belong to an index that was cleared since; or, in a damaged pool, to a chain that runs in a circle.
            last = match self.age(&newer)? {
                Age::At(at) if at > created && at < last => at,
                _ => break,
            };
            passed += 1;
            let word = newer.previous().load(Ordering::Acquire);
            next = word & !CUT_OUT;
            if next == due.link {
                let behind = record.previous().load(Ordering::Acquire) | CUT_OUT;
                // persist-equivalent(store early): after a crash no reader follows this link.
                return Ok((self.pool.compare_exchange(newer.previous(), word, behind).is_ok(), passed));
            }
        }
        Ok((false, passed))
    }

    /// Notes that a tombstone was left in the index of `space`.
    pub(crate) fn left_tombstone(&self, space: &Arc<Space>, link: u64, at: u64) {
        let size = Record::read(&self.pool, link).map_or(0, |record| record.size() as u64);
        self.garbage.push(at, Size { bytes: size, keys: 0 }, Remains::Tombstone(space.clone(), link));
    }

    /// Notes that an index with this many keys was unlinked.
    pub(crate) fn left_index(&self, space: &Arc<Space>, former: Arc<Former>, keys: u64, at: u64) {
        let bytes = former.index.tree.stats().leaf_bytes;
        self.garbage.push(at, Size { bytes, keys }, Remains::Index(space.clone(), former));
    }

    /// After a write, a clear or the end of a snapshot: collects some garbage. The caller holds no stripe and is not pinned.
    pub(crate) fn tidy(&self, steps_max: usize) {
        // The caller's operation is done and stays done, so an error here is not its failure, nor that of any later write. What is damaged leaks, and
        // verification reports it.
        let _ = self.collect(steps_max);
        if self.garbage.is_empty() {
            self.snapshots.relax(&self.clock);
        }
    }

    /// Gives back garbage in at most this many steps, after waiting for another thread that collects; if it took them all, there may be more. The caller holds
    /// no stripe and is not pinned. What is damaged leaks, and verification reports it: it is no reason to refuse another thread's write.
    pub(crate) fn make_room(&self, steps_max: usize) -> Turn {
        let turn = {
            let _collecting = self.garbage.pause();
            self.collect_alone(steps_max)
        };
        if self.garbage.is_empty() {
            self.snapshots.allow_plain(&self.clock);
        }
        let _ = self.with_any_stripe(|| self.pool.collect());
        turn
    }

    /// Gives back garbage in at most this many steps; returns how many it took. Does nothing while another thread collects.
    pub(crate) fn collect(&self, steps_max: usize) -> Result<usize, Error> {
        if self.garbage.is_empty() {
            return Ok(0);
        }
        let Some(_collecting) = self.garbage.collecting.try_lock() else { return Ok(0) };
        let Turn { collected, outcome, .. } = self.collect_alone(steps_max);
        outcome.map(|()| collected.min(steps_max))
    }

    /// [`Shared::collect`] for a thread that keeps others from collecting.
    fn collect_alone(&self, steps_max: usize) -> Turn {
        let mut turn = Turn { steps: 0, collected: 0, listed: 0, outcome: Ok(()) };
        // With a stripe held there is no going on: see `stripes.rs`.
        if self.writable().is_err() || stripes::are_held() {
            return turn;
        }
        let (mut rest, mut waiting) = (None, Vec::new());
        // Removals in a row that found no room.
        let mut refused = 0;
        loop {
            let next = || rest.take().map(Next::GiveBack).or_else(|| self.garbage.next(&self.snapshots, &self.clock));
            let mut held = match (turn.steps < steps_max).then(next).flatten() {
                None => break,
                Some(Next::LookAt(due)) => {
                    // Damage is no obstacle here: the version waits for its turn, and verification reports it.
                    turn.count(1 + self.look_again(&due).unwrap_or(0) / PASSED_PER_STEP);
                    continue;
                }
                Some(Next::GiveBack(held)) => held,
            };
            if refused >= REFUSALS_MAX && matches!(held.remains, Remains::Tombstone(..)) {
                waiting.push(held);
                turn.steps += usize::from(waiting.len().is_multiple_of(PASSED_PER_STEP));
                continue;
            }
            turn.listed += usize::from(matches!(held.remains, Remains::Records(..)));
            match self.give_back(&mut held) {
                Ok(is_over) => {
                    turn.count(1);
                    refused = 0;
                    if is_over {
                        self.garbage.forget(held.size);
                    } else {
                        rest = Some(held);
                    }
                }
                // An index may need room for a removal. The next piece may make some.
                Err(error) if error.is_no_space() => {
                    turn.steps += 1;
                    refused += 1;
                    waiting.push(held);
                }
                Err(error) => {
                    turn.count(1);
                    self.garbage.forget(held.size);
                    turn.outcome = turn.outcome.and(Err(error));
                }
            }
        }
        rest.into_iter().chain(waiting.into_iter().rev()).for_each(|held| self.garbage.unpop(held));
        schedule::drain();
        turn
    }

    /// Does a step; returns whether nothing is left.
    fn give_back(&self, Held { until, size, remains }: &mut Held) -> Result<bool, Error> {
        match remains {
            Remains::Version(_, link) => self.retire(*link, &self.pool.pin()).map(|()| true),
            Remains::Nothing => Ok(true),
            Remains::Tombstone(space, link) => self.bury(space, *link, *until).map(|()| true),
            Remains::Index(space, former) => {
                space.forget(former);
                *remains = Remains::Records(former.index.clone(), Vec::new(), Vec::new());
                Ok(false)
            }
            Remains::Records(index, links, from) => {
                match list_leaf(index, from, links) {
                    Some(next) => *from = next,
                    None => *remains = Remains::Blocks(std::mem::take(links), blocks_of(index)),
                }
                Ok(false)
            }
            Remains::Blocks(links, blocks) => {
                let guard = self.pool.pin();
                if links.is_empty() {
                    let later = blocks.len().saturating_sub(BLOCKS_PER_STEP);
                    blocks.drain(later..).for_each(|(off, _)| self.pool.retire(Off::<Word>::new(off), &guard));
                } else {
                    let later = links.len().saturating_sub(BLOCKS_PER_STEP);
                    let given_back = Size { bytes: 0, keys: ((links.len() - later) as u64).min(size.keys) };
                    links.drain(later..).for_each(|link| _ = self.retire(link, &guard));
                    size.keys -= given_back.keys;
                    self.garbage.forget(given_back);
                }
                Ok(links.is_empty() && blocks.is_empty())
            }
        }
    }

    /// Takes a tombstone out of its index if it is still there. All snapshots, present and future, are above `until`.
    fn bury(&self, space: &Space, link: u64, until: u64) -> Result<(), Error> {
        let mut key = Vec::new();
        {
            let _pinned = self.pool.pin();
            match Record::read(&self.pool, link) {
                Ok(record) => record.copy_key(&mut key),
                // The block was reused for something that is no record: invariant 3.
                Err(_) => return Ok(()),
            }
        }
        let _stripe = self.stripes.lock(space.number, &key);
        let Some(index) = space.index.load_full() else { return Ok(()) };
        if index.tree.get(&key)?.is_none_or(|linked| linked.get() != link) {
            return Ok(());
        }
        let record = Record::read(&self.pool, link)?;
        if record.is_tombstone() && matches!(self.age(&record)?, Age::At(at) if at <= until || !self.snapshots.want(&self.clock, 0, at)) {
            with_reserve(Reserve::Half, || index.tree.remove(&key))?;
            self.retire(link, &self.pool.pin())?;
        }
        Ok(())
    }

    /// Visits the garbage that nothing else reaches: links of records; whole indexes; and blocks, with their sizes. The caller has paused collection and holds
    /// all stripes.
    pub(crate) fn visit_held(&self, mut record: impl FnMut(u64), mut whole: impl FnMut(&Arc<Index>), mut block: impl FnMut(u64, usize)) {
        for Held { remains, .. } in &self.garbage.held.lock().all {
            match remains {
                Remains::Version(_, link) => record(*link),
                Remains::Tombstone(..) | Remains::Nothing => {}
                Remains::Index(_, former) => whole(&former.index),
                Remains::Records(index, ..) => whole(index),
                Remains::Blocks(links, blocks) => {
                    links.iter().for_each(|link| record(*link));
                    blocks.iter().for_each(|(off, size)| block(*off, *size));
                }
            }
        }
    }
}

/// Appends the links of the records in the leaf that begins with `from`, of an index that no reader can see any more; returns the key with which the next leaf
/// begins. What is damaged there leaks, and verification reports it: no reader misses it, and it is no reason to refuse an operation.
fn list_leaf(index: &Index, from: &[u8], links: &mut Vec<u64>) -> Option<Vec<u8>> {
    // No record is to be relocated: the call only tells where the next leaf begins. If damage hides that, this step scans all remaining leaves.
    let next = index.tree.relocate(from, 1, &|_| false).map_or(None, |relocated| relocated.next);
    let _ = index.tree.scan(Bound::Included(from), Direction::Forward, &mut |key, link| {
        if next.as_deref().is_some_and(|next| key >= next) {
            return ControlFlow::Break(());
        }
        links.push(link.get());
        ControlFlow::Continue(())
    });
    next
}

/// The blocks of the index itself, as far as they are found.
fn blocks_of(index: &Index) -> Vec<(u64, usize)> {
    let mut blocks = Vec::new();
    // What damage hides leaks.
    let _ = index.tree.blocks(&mut |off, size| {
        blocks.push((off, size));
        Ok(())
    });
    blocks
}

impl<M: Listed> Store<M> {
    /// What snapshots hold back, and what has not been given back yet.
    pub fn held_back(&self) -> HeldBack {
        let Shared { snapshots, garbage, clock, drafts, .. } = &*self.shared;
        HeldBack {
            snapshots: snapshots.count(),
            age: snapshots.oldest().map_or(0, |bound| clock.now().saturating_sub(bound)),
            count: garbage.count.load(Ordering::Relaxed),
            bytes: garbage.bytes.load(Ordering::Relaxed),
            cleared_keys: garbage.keys.load(Ordering::Relaxed),
            draft_bytes: drafts.bytes(),
        }
    }

    /// Gives back what no snapshot wants any more, in at most `steps_max` steps (a last step that passes many versions of a key may count for more); returns
    /// the number of steps, including those that only looked at something. Does nothing and returns 0 while another thread collects. Each write collects a
    /// little, too: this is for times without writes.
    ///
    /// # Errors
    /// Damage to what is given back.
    pub fn collect(&self, steps_max: usize) -> Result<usize, Error> {
        self.shared.collect(steps_max)
    }

    /// Housekeeping, to be called now and then: looks at the next ten thousand keys, if one may have expired, and removes those that have, and gives back what
    /// no snapshot wants any more, in at most a thousand steps. Returns whether there is more to do at once. Errors are ignored: what failed may succeed later,
    /// and a damaged store reports its damage to writers.
    pub fn keep_house(&self) -> bool {
        let mut swept = Swept { is_round: true, ..Swept::default() };
        if self.shared.is_sweep_due() {
            for _ in 0..SWEEPS_PER_TURN {
                swept = self.sweep(STEPS_PER_TURN).unwrap_or_default();
                if swept.is_round || swept.visited < STEPS_PER_TURN || swept.removed * 4 > swept.visited {
                    break;
                }
            }
        }
        let collected = self.collect(STEPS_PER_TURN).unwrap_or_default();
        // If more than a quarter of these keys had expired, probably more have.
        collected == STEPS_PER_TURN || swept.removed * 4 > swept.visited && !swept.is_round
    }
}

#[cfg(test)]
mod tests;
