//! What snapshots hold back, and how it is given back.
//!
//! A write that keeps versions leaves behind, besides what it wrote: the version that it replaced; after a delete, a tombstone in the index, which hides the
//! versions behind it; after a clear, the index that was unlinked. Each is *held* with the timestamp at which it was replaced (the tombstone: at which it was
//! written), in the order in which that happened, and given back when every snapshot is above that timestamp. Versions that nobody can want are given back at
//! once: what was replaced before the oldest snapshot began, and what was written after the newest one had, which is cut out of the versions of its key
//! (`version.rs`). That is asked again when a snapshot ends, of the versions that were replaced since it began, in steps: the newest ones first, so that few
//! are left in front of one that is looked for. So beside snapshots that stay there are no more versions of a key than these see, but for those that have still
//! to be looked at. The other things that are held wait for their turn: a tombstone, and a cleared index, until the oldest snapshot has ended that was there.
//!
//! # Invariants
//!
//! 1. Whoever replaces a version asks for the oldest bound ([`Snapshots::want`]) *after* the replacement has its timestamp. A snapshot that might want the old
//!    version has drawn a timestamp that is not above that one, so before it, and has registered its bound before that.
//! 2. The list is in DRAM alone. After a crash none of it is reachable, hence free, but the tombstones: recovery removes those.
//! 3. A tombstone is given back by whoever takes it out of the index: by [`Shared::bury`], or, when it was replaced by something else, as a version that was
//!    replaced, which comes later in the list, unless it is cut out at once. So [`Shared::bury`] may read a block that was reused, as after a clear, too. It
//!    believes the index, under the stripe of whatever key it has read: there it finds nothing of the kind, or another tombstone, which it takes away only if
//!    nobody wants it.
//! 4. Whoever cuts a version out later than its replacement holds the stripe of its key, and keeps others from collecting; and there is a snapshot that had its
//!    timestamp when the version was replaced ([`Snapshots::have_before`]). So whoever has replaced a newer one since has found that snapshot: the version is
//!    held, or cut out, and all links from the newest one to the one that is looked for lead to what is in place.
//!
//! Garbage is collected in steps, a few after each write as long as there is any, more when a snapshot ends or a namespace is cleared, never while a stripe is
//! held, by one thread at a time; and by whoever calls [`Store::keep_house`], as the server does and a thread of the store's may
//! ([`Options::keeps_house`](crate::Options::keeps_house)).
//!
//! A step is one version, some newer ones that are passed on the way to it, one tombstone, or of an index that nobody sees any more a look at the records of
//! one leaf, or some of its records and blocks. Nothing of it is given back before all of its records are listed, which takes eight bytes of DRAM for each:
//! whoever goes on to the next leaf, by the key with which it begins, may read any record on the way there.

use crate::clock::Clock;
use crate::snapshot::Snapshots;
use crate::store::{Former, Index, Shared, Space};
use crate::version::{Age, CUT_OUT};
use crate::{Direction, Error, Store};
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

/// Steps for each write: more than it leaves behind.
pub(crate) const STEPS_PER_WRITE: usize = 4;
/// Steps when a namespace is cleared: a few thousand keys. Less, where what is left is to be met.
pub(crate) const STEPS_PER_CLEAR: usize = if schedule::IS_BUILT_IN { 2 } else { 64 };
/// Steps, at first, when a pool is full.
const STEPS_FOR_ROOM: usize = if schedule::IS_BUILT_IN { 2 } else { 1024 };
/// Sweeps for a write that a full pool refuses: one that would need more room than they make is refused, and the next one goes on behind them.
const SWEEPS_FOR_ROOM: usize = 16;
/// Records or blocks of an index that are given back in a step.
const BLOCKS_PER_STEP: usize = 64;
/// Keys that are looked at, and steps, in a turn of [`Store::keep_house`].
const STEPS_PER_TURN: usize = 1000;
/// Newer versions of its key that are passed on the way to one that is looked at again, for a step more.
const PASSED_PER_STEP: usize = 64;
/// Removals that find no room, one after the other: then the next will not, either, before something else has been given back. Each counts as a step, so that
/// no write of a full pool tries all that there are.
const REFUSALS_MAX: usize = 16;

/// What a turn of giving back has come to.
pub(crate) struct Turn {
    steps: usize,
    /// Steps that have given something back, or have come nearer to it.
    collected: usize,
    /// Those that have only come nearer, by what they have listed.
    listed: usize,
    /// The first damage, which leaks.
    outcome: Result<(), Error>,
}

impl Turn {
    fn count(&mut self, steps: usize) {
        self.steps += steps;
        self.collected += steps;
    }
}

/// What is held back.
struct Held {
    /// Every snapshot must be above this.
    until: u64,
    size: Size,
    remains: Remains,
}

/// How much is held back.
#[derive(Clone, Copy, Default)]
struct Size {
    /// Of records, and of the leaves of indexes.
    bytes: u64,
    /// Of indexes, whose records nobody has measured.
    keys: u64,
}

enum Remains {
    /// A version that was replaced: the namespace of its key, and its link.
    Version(Arc<Space>, u64),
    /// A version that was cut out since.
    Nothing,
    /// A tombstone in the index of a namespace.
    Tombstone(Arc<Space>, u64),
    /// An index that was unlinked.
    Index(Arc<Space>, Arc<Former>),
    /// An index that nobody sees any more, which is whole: the links of its records before this key, at which a leaf begins.
    Records(Arc<Index>, Vec<u64>, Vec<u8>),
    /// What is left of such an index: links of records; and its own blocks, places and sizes in bytes.
    Blocks(Vec<u64>, Vec<(u64, usize)>),
}

/// What is held back.
pub(crate) struct Garbage {
    held: Mutex<List>,
    count: AtomicU64,
    bytes: AtomicU64,
    keys: AtomicU64,
    /// Versions that were replaced at this timestamp or later are to be looked at again; [`NONE_DUE`]: none.
    due_from: AtomicU64,
    collecting: Mutex<()>,
}

/// In [`Garbage::due_from`].
const NONE_DUE: u64 = u64::MAX;

/// What is held back, in the order in which it was replaced.
#[derive(Default)]
struct List {
    all: VecDeque<Held>,
    /// The number of the first of them; each of the others has the next one.
    first: u64,
    /// How many of them are [`Remains::Nothing`].
    gone: usize,
    /// Numbers of those that are still to be looked at again, from the end on.
    due: Range<u64>,
}

/// A version that is held, to be looked at again.
struct Due {
    number: u64,
    until: u64,
    space: Arc<Space>,
    link: u64,
}

/// What is to be done next.
enum Next {
    GiveBack(Held),
    LookAt(Due),
}

impl List {
    fn push(&mut self, held: Held) {
        // Whoever has drawn a timestamp before somebody else may come after him.
        let at = self.all.iter().rposition(|other| other.until <= held.until).map_or(0, |before| before + 1);
        self.all.insert(at, held);
        // What comes among those that are due is one of them.
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

    /// The first of those that are not gone.
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

    /// All that was replaced at `from` or later is to be looked at again. The others are over.
    fn set_due(&mut self, from: u64) {
        if self.gone > self.all.len() / 2 {
            self.all.retain(|held| !held.is_gone());
            self.gone = 0;
        }
        let begin = self.all.partition_point(|held| held.until < from);
        self.due = self.first + begin as u64..self.first + self.all.len() as u64;
    }

    /// A version that was looked at is gone; its size. Others may have come before it meanwhile.
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

/// What snapshots hold back. See [`Store::held_back`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// Number of snapshots and transactions that are open.
    pub snapshots: usize,
    /// How many timestamps the oldest of them is behind: about as many writes.
    pub age: u64,
    /// Number of versions, tombstones and cleared namespaces that wait to be given back.
    pub count: u64,
    /// Their size in bytes; of cleared namespaces, that of the leaves of their indexes.
    pub bytes: u64,
    /// Number of keys of cleared namespaces, whose records wait to be given back.
    pub cleared_keys: u64,
    /// Size in bytes of what transactions that are under way have written to the pool.
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

    /// Something was given back.
    fn forget(&self, size: Size) {
        self.bytes.fetch_sub(size.bytes, Ordering::Relaxed);
        self.keys.fetch_sub(size.keys, Ordering::Relaxed);
    }

    /// Versions that were replaced at this timestamp or later may be wanted no more: a snapshot that had this bound has ended.
    pub(crate) fn look_again_from(&self, bound: u64) {
        self.due_from.fetch_min(bound, Ordering::AcqRel);
    }

    /// The next that no snapshot wants, or that is to be looked at again.
    fn next(&self, snapshots: &Snapshots, clock: &Clock) -> Option<Next> {
        let until = self.held.lock().front()?.until;
        // Only the one who collects pops.
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

    /// A version that was looked at was cut out.
    fn remove(&self, due: &Due) {
        let size = {
            let mut held = self.held.lock();
            let size = held.remove(due);
            self.count.store(held.len(), Ordering::Relaxed);
            size
        };
        self.forget(size);
    }

    /// Whether all that is held stands in an index: it may stay there when the pool is closed.
    pub(crate) fn is_linked(&self) -> bool {
        self.held.lock().all.iter().all(|held| matches!(held.remains, Remains::Tombstone(..) | Remains::Nothing))
    }

    /// Takes back what was popped, and could not be given back now.
    fn unpop(&self, held: Held) {
        let mut all = self.held.lock();
        all.push_front(held);
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Keeps others from collecting. Before any stripe.
    pub(crate) fn pause(&self) -> Locked<MutexGuard<'_, ()>> {
        schedule::lock(&self.collecting)
    }
}

impl<M: Listed> Shared<M> {
    /// Gives back the version of a key of `space` that `link` refers to, which was replaced at this timestamp, durably, or holds it back. `newer` is what has
    /// replaced it, if that is in the index; the caller holds the stripe.
    pub(crate) fn replaced(&self, space: &Arc<Space>, link: u64, newer: Option<NonZeroU64>, at: u64, guard: &Guard) -> Result<(), Error> {
        let record = Record::read(&self.pool, link)?;
        self.sweeper.note_replaced(record.expiry_ms(), &self.wall);
        let may_be_wanted = self.snapshots.want(&self.clock, 0, at) || record.is_tombstone();
        if !may_be_wanted || self.cut_out(link, &record, newer, at)? {
            return self.retire(link, guard);
        }
        self.garbage.push(at, Size { bytes: record.size() as u64, keys: 0 }, Remains::Version(space.clone(), link));
        // A snapshot that has ended meanwhile has not found it there.
        if matches!(self.age(&record)?, Age::At(created) if !self.snapshots.want_exactly(&self.clock, created, at)) {
            self.garbage.look_again_from(at);
        }
        Ok(())
    }

    /// Cuts a version out that was replaced, if no snapshot wants it; whether it has. See `version.rs`.
    fn cut_out(&self, link: u64, record: &Record<'_>, newer: Option<NonZeroU64>, at: u64) -> Result<bool, Error> {
        let Some(newer) = newer.map(|newer| Record::read(&self.pool, newer.get())).transpose()? else { return Ok(false) };
        match self.age(record)? {
            Age::At(created) if !self.snapshots.want_exactly(&self.clock, created, at) => {}
            _ => return Ok(false),
        }
        let behind = record.previous().load(Ordering::Acquire) | CUT_OUT;
        // persist-equivalent(store early): after a crash nobody follows it.
        Ok(self.pool.compare_exchange(newer.previous(), link, behind).is_ok())
    }

    /// Gives a version that is held back if it can be cut out by now; how many newer ones were passed on the way to it. The caller has kept others from
    /// collecting, and holds no stripe.
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

    /// [`Shared::cut_out`] for a version that was replaced before, and that no snapshot wants: from behind whichever is newer now, invariant 4; and how many of
    /// those there are.
    fn cut_out_late(&self, key: &[u8], record: &Record<'_>, created: u64, due: &Due) -> Result<(bool, usize), Error> {
        let Some(index) = due.space.index.load_full().filter(|_| self.snapshots.have_before(due.until)) else { return Ok((false, 0)) };
        let (mut next, mut last, mut passed) = (index.tree.get(key)?.map_or(0, NonZeroU64::get), u64::MAX, 0);
        while next != 0 {
            let newer = Record::read(&self.pool, next)?;
            // It may be one of an index that was cleared since; or, in a damaged pool, one that leads round in a circle.
            last = match self.age(&newer)? {
                Age::At(at) if at > created && at < last => at,
                _ => break,
            };
            passed += 1;
            let word = newer.previous().load(Ordering::Acquire);
            next = word & !CUT_OUT;
            if next == due.link {
                let behind = record.previous().load(Ordering::Acquire) | CUT_OUT;
                // persist-equivalent(store early): after a crash nobody follows it.
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

    /// Notes that an index of so many keys was unlinked.
    pub(crate) fn left_index(&self, space: &Arc<Space>, former: Arc<Former>, keys: u64, at: u64) {
        let bytes = former.index.tree.stats().leaf_bytes;
        self.garbage.push(at, Size { bytes, keys }, Remains::Index(space.clone(), former));
    }

    /// After a write, a clear or the end of a snapshot: collects some garbage. The caller holds no stripe and is not pinned.
    pub(crate) fn tidy(&self, steps_max: usize) {
        // What was asked for is done, and stays done; so what fails here is not its failure, nor that of any write to come. What is damaged leaks, and whoever
        // verifies the store is told.
        let _ = self.collect(steps_max);
        if self.garbage.is_empty() {
            self.snapshots.relax(&self.clock);
        }
    }

    /// Tries again what a full pool has refused: garbage makes room, whoever gives it back, and a delete that kept versions may need keep them no longer. Some
    /// of it, for what is small is not to pay for all of it; each time twice as much as before, until there is no more; and then keys that have expired, until
    /// none of those that are swept has, or [`SWEEPS_FOR_ROOM`] have found some. The caller holds no stripe and is not pinned.
    pub(crate) fn with_room<T>(self: &Arc<Self>, mut act: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let (mut steps, mut sweeps, mut is_more) = (STEPS_FOR_ROOM, 0, true);
        loop {
            match act() {
                Err(error) if is_more && error.is_no_space() => {
                    let turn = self.make_room(steps);
                    if turn.steps >= steps {
                        // What has only been listed has made none.
                        steps = if turn.listed < steps { steps.saturating_mul(2) } else { steps };
                    } else {
                        is_more = sweeps < SWEEPS_FOR_ROOM && self.sweep_for_room(STEPS_PER_TURN);
                        sweeps += 1;
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Gives back at most so much of what no snapshot wants any more, and waits for another thread that does; there may be more if it was that much. The caller
    /// holds no stripe and is not pinned. What is damaged leaks, and whoever verifies the store is told: it is no reason to refuse somebody else's write.
    pub(crate) fn make_room(&self, steps_max: usize) -> Turn {
        let turn = {
            let _collecting = self.garbage.pause();
            self.collect_alone(steps_max)
        };
        if self.garbage.is_empty() {
            self.snapshots.allow_plain(&self.clock);
        }
        self.pool.collect();
        turn
    }

    /// Gives back at most so much of what no snapshot wants any more; how much it was. Nothing while another thread does.
    pub(crate) fn collect(&self, steps_max: usize) -> Result<usize, Error> {
        if self.garbage.is_empty() {
            return Ok(0);
        }
        let Some(_collecting) = self.garbage.collecting.try_lock() else { return Ok(0) };
        let Turn { collected, outcome, .. } = self.collect_alone(steps_max);
        outcome.map(|()| collected.min(steps_max))
    }

    /// [`Shared::collect`] for the one who keeps others from it.
    fn collect_alone(&self, steps_max: usize) -> Turn {
        let mut turn = Turn { steps: 0, collected: 0, listed: 0, outcome: Ok(()) };
        if self.writable().is_err() {
            return turn;
        }
        let (mut rest, mut waiting) = (None, Vec::new());
        // How many removals in a row have found no room.
        let mut refused = 0;
        loop {
            let next = || rest.take().map(Next::GiveBack).or_else(|| self.garbage.next(&self.snapshots, &self.clock));
            let mut held = match (turn.steps < steps_max).then(next).flatten() {
                None => break,
                Some(Next::LookAt(due)) => {
                    // Damage hinders nobody here: the version waits for its turn, and whoever verifies the store is told.
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
                // An index may need room for a removal. What comes next may make some.
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

    /// Does a step; whether nothing is left.
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

    /// Takes a tombstone out of its index, if it is still there. All snapshots that are to come are above `until`, as those are that were there.
    fn bury(&self, space: &Space, link: u64, until: u64) -> Result<(), Error> {
        let mut key = Vec::new();
        {
            let _pinned = self.pool.pin();
            match Record::read(&self.pool, link) {
                Ok(record) => record.copy_key(&mut key),
                // Reused, for something that is no record: invariant 3.
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

    /// Visits what is held back and reachable by nothing else: links of records; indexes that are whole; and blocks, with their sizes. The caller has paused
    /// the collection and holds all stripes.
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

/// Appends the links of the records of the leaf that begins with `from`, of an index that nobody sees any more; with what the next leaf begins. What is damaged
/// there leaks, and whoever verifies the store is told: nobody misses it, and nobody else is to be refused anything for it.
fn list_leaf(index: &Index, from: &[u8], links: &mut Vec<u64>) -> Option<Vec<u8>> {
    // Nothing is to leave: it tells where the next leaf begins. If damage hides that, this step goes on through all leaves that are left.
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

/// The blocks that belong to an index itself, all that are found.
fn blocks_of(index: &Index) -> Vec<(u64, usize)> {
    let mut blocks = Vec::new();
    // What damage hides leaks, too.
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

    /// Gives back what no snapshot wants any more, in at most `steps_max` steps, but for the end of one that looks at what is behind many versions of a key;
    /// how many it were, those that have only looked at something included; none while another thread is at it. Writes do so, too, a little each: this is for
    /// times without any.
    ///
    /// # Errors
    /// Damage to what is given back.
    pub fn collect(&self, steps_max: usize) -> Result<usize, Error> {
        self.shared.collect(steps_max)
    }

    /// What is to be done now and then, whatever else is: looks at the next thousand keys and removes those that have expired, and gives back what no snapshot
    /// wants any more, in a thousand steps at most. Whether there is more to do at once. What cannot be done now may be later; a damaged store says so to
    /// whoever writes.
    pub fn keep_house(&self) -> bool {
        let swept = self.sweep(STEPS_PER_TURN).unwrap_or_default();
        let collected = self.collect(STEPS_PER_TURN).unwrap_or_default();
        // Where more than a quarter of the keys have expired, more have.
        collected == STEPS_PER_TURN || swept.removed * 4 > swept.visited && !swept.is_round
    }
}

#[cfg(test)]
mod tests;
