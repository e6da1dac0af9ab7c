//! An index of the registry in a crash run.

use super::checker::by_another;
use super::world::{Applied, Promise, Start, World};
use crate::subject::{Model, apply_to_model};
use crate::{Broken, Change, Class, ROOT, Subject};
use everleaf_index::{Entry, Error, FILL, Write};
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use std::borrow::Borrow;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// An index of the registry.
pub struct Index<K: Class + ?Sized> {
    entry: Entry<K, Crash>,
    capacity: usize,
    /// Number of keys that long random runs use.
    keys: u32,
    /// Whether there are leaves, which can be relocated and can take several writes that share a fence. The list makes such writes one after the other: a crash
    /// leaves nothing of them that it does not leave of single ones.
    has_leaves: bool,
    /// Whether it can leave the fence of such writes to its caller.
    leaves_fences: bool,
}

/// What can happen to an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// Creates the index.
    Create,
    /// Fills it by a bulk load of this many keys.
    Load(u32),
    /// Puts or deletes a key.
    Key(Change),
    /// Puts or deletes several different keys together.
    Many([Change; MANY]),
    /// The same for two keys, without a fence. Before the fence comes, another thread puts or deletes another key, or relocates the leaf of the first.
    Beside([Change; 2], Option<Change>),
    /// Relocates the leaf of a key.
    Relocate(u32),
}

/// Number of writes made together: enough that a leaf gets several, but few, because each subset of them may survive a crash.
const MANY: usize = 3;

use Change::{Delete, Put};

/// Keys of a random bulk load: several small leaves, or part of a large one. Every image requires reading all of them again.
const LOADED_MAX: u32 = 40;

impl fmt::Display for IndexChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.pad("create"),
            Self::Load(count) => write!(f, "load {count} keys"),
            Self::Key(change) => change.fmt(f),
            Self::Many([first, second, third]) => write!(f, "together {first}, {second}, {third}"),
            Self::Beside([first, second], Some(other)) => write!(f, "together {first}, {second}, and before the fence, by another thread, {other}"),
            Self::Beside([first, second], None) => write!(f, "together {first}, {second}, and before the fence, by another thread, relocate the leaf"),
            Self::Relocate(key) => write!(f, "relocate the leaf of {key}"),
        }
    }
}

impl<K: Class + ?Sized> Index<K> {
    /// The index of an entry of the registry.
    pub fn new(entry: Entry<K, Crash>) -> Self {
        let (has_leaves, capacity) = (entry.name != "list", capacity_of(&entry));
        let leaves_fences = ["ever", "isle", "lb", "fp", "nv", "wb"].iter().any(|tree| entry.name.starts_with(tree));
        Self { keys: capacity as u32 * 16 + 40, has_leaves, leaves_fences, capacity, entry }
    }

    /// What any subset of `changes` makes of `before`.
    fn subsets(before: &Model<K>, changes: &[Change]) -> Vec<Option<Model<K>>> {
        let subset = |chosen: u32| {
            let mut content = before.clone();
            apply_all::<K>(&mut content, changes.iter().enumerate().filter(|(number, _)| chosen >> number & 1 == 1).map(|(_, change)| change));
            Some(content)
        };
        (0..1 << changes.len()).map(subset).collect()
    }

    /// What a bulk load of `count` keys makes.
    fn loaded(count: u32) -> Model<K> {
        (1..=count).map(|number| (K::numbered(number), u64::from(number) + 1)).collect()
    }
}

/// An open pool, and the index if it exists.
pub struct Live<K: Class + ?Sized> {
    pool: Arc<Pool<Crash>>,
    subject: Option<Subject<K, Crash>>,
}

const BORN: &str = "an index is there once it was created";

impl<K: Class + ?Sized> Live<K> {
    fn subject(&self) -> Result<&Subject<K, Crash>, Broken> {
        self.subject.as_ref().ok_or_else(|| Broken::new(BORN, "no index"))
    }
}

impl<K: Class + ?Sized> World for Index<K> {
    type Live = Live<K>;
    /// No index, or its content.
    type Content = Option<Model<K>>;
    type Change = IndexChange;

    fn name(&self) -> String {
        format!("{}/{}", self.entry.name, K::NAME)
    }

    fn starts(&self) -> Vec<Start<IndexChange>> {
        let capacity = self.capacity;
        let mut starts = starts(capacity);
        // Only Ever has extents. Those of large leaves have too many leaves for this.
        if self.entry.name.starts_with("ever") && capacity <= 8 {
            starts.extend([two_mergers(capacity), extent_behind_others(capacity)]);
        }
        starts.extend(["lb", "fp", "wb"].iter().any(|tree| self.entry.name.starts_with(tree)).then(|| last_of_its_leaf(capacity)));
        starts
    }

    fn nothing(&self) -> Option<Model<K>> {
        None
    }

    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Live<K>, Broken> {
        const RULE: &str = "opening after a crash succeeds";
        if pool.root(ROOT).map_err(Broken::by("the root directory is sound"))?.is_some() {
            return Ok(Live { subject: Some(Subject::open(&self.entry, Arc::clone(&pool), threads).map_err(Broken::by(RULE))?), pool });
        }
        if pool.needs_recovery() {
            pool.adopt(pool.reach()).map_err(Broken::by(RULE))?;
        }
        Ok(Live { pool, subject: None })
    }

    fn pool<'a>(&self, live: &'a Live<K>) -> &'a Arc<Pool<Crash>> {
        &live.pool
    }

    fn close(&self, live: Live<K>) -> Result<(), Broken> {
        if let Some(subject) = &live.subject {
            subject.index.close().map_err(Broken::by("an index can be closed"))?;
        }
        live.pool.close().map_err(Broken::by("a pool can be closed"))
    }

    fn changes(&self, start: &Start<IndexChange>, content: &Option<Model<K>>) -> Vec<IndexChange> {
        match content {
            None => vec![IndexChange::Create],
            // An index that did not exist at the start is loaded, and then left to the follow-up.
            Some(content) if start.changes.is_empty() => match content.is_empty() {
                // Enough keys that Ever's smallest leaves fill two extents and begin a third.
                true => vec![IndexChange::Load(self.capacity as u32 * 6 + 1)],
                false => Vec::new(),
            },
            Some(content) => {
                let put = |key| put(start, key, content.get::<K>(K::numbered(key).borrow()).copied());
                let [first, second, third, _] = start.keys;
                // Also only puts, of which the first may take the last free slot, so that the leaf is divided for the next one.
                let is_other = content.get::<K>(K::numbered(second).borrow()).is_some_and(|present| *present != payload(second));
                let many = [put(first), if is_other { Delete(second) } else { put(second) }, put(third)];
                let other = match content.get::<K>(K::numbered(third).borrow()) {
                    None => Some(many[2]),
                    Some(_) if start.closed => None,
                    Some(_) => Some(Delete(third)),
                };
                start
                    .keys
                    .into_iter()
                    .flat_map(|key| [put(key), Delete(key)])
                    .map(IndexChange::Key)
                    .chain(self.has_leaves.then_some(IndexChange::Many(many)))
                    .chain(self.has_leaves.then_some(IndexChange::Relocate(second)))
                    .chain(self.leaves_fences.then_some(IndexChange::Beside([many[0], many[1]], other)))
                    .collect()
            }
        }
    }

    /// Long runs of puts alternate with long runs of deletes, each at least three long, so that leaves split and merge. An empty index may be loaded.
    fn random(&self, step: u64, count: u64, content: &Option<Model<K>>, choice: &mut StdRng) -> IndexChange {
        let Some(content) = content else { return IndexChange::Create };
        if content.is_empty() && choice.random() {
            return IndexChange::Load(choice.random_range(1..(self.capacity as u32 * 3).min(LOADED_MAX)));
        }
        let key = choice.random_range(0..self.keys);
        if self.has_leaves && choice.random_ratio(1, 32) {
            return IndexChange::Relocate(key);
        }
        let run = u64::from(self.keys).min(count / 3).max(1);
        let growing = (step / run).is_multiple_of(2);
        let mut change = |key| if choice.random_ratio(if growing { 4 } else { 1 }, 5) || content.is_empty() { Put(key, step + 2) } else { Delete(key) };
        let changes = [change(key), change(key + 1), change(key + self.keys / 2)];
        let [first, second, third] = changes;
        match (choice.random_range(0..16u32), first) {
            (0 | 1, _) if self.has_leaves => IndexChange::Many(changes),
            (2, _) if self.leaves_fences => IndexChange::Beside([first, second], choice.random::<bool>().then_some(third)),
            // The next key that is present: where runs are short, few are.
            (_, Delete(key)) => {
                let is_present = |key: &u32| content.contains_key::<K>(K::numbered(*key).borrow());
                IndexChange::Key(Delete((key..self.keys).chain(0..key).find(is_present).unwrap_or(key)))
            }
            _ => IndexChange::Key(first),
        }
    }

    /// Fills a leaf until it splits, updates, and empties it again until it merges.
    fn follow_up(&self, start: &Start<IndexChange>, content: &Option<Model<K>>) -> Vec<IndexChange> {
        let first = start.keys[1];
        let new: Vec<u32> = (1..=self.capacity as u32 + 1).map(|step| first + step % 5 + step / 5 * 10).collect();
        let mut changes: Vec<Change> = new.iter().map(|key| Put(*key, payload(*key))).collect();
        changes.push(Put(first, payload(first) + 2));
        changes.extend(new.iter().map(|key| Delete(*key)));
        changes.extend(start.keys.map(Delete));
        let create = content.is_none().then_some(IndexChange::Create);
        create.into_iter().chain(changes.into_iter().map(IndexChange::Key)).collect()
    }

    fn model(&self, content: &mut Option<Model<K>>, change: &IndexChange) {
        match (change, content) {
            (IndexChange::Key(change), Some(content)) => drop(apply_to_model::<K>(content, *change)),
            (IndexChange::Many(changes), Some(content)) => apply_all::<K>(content, changes),
            (IndexChange::Beside(changes, other), Some(content)) => apply_all::<K>(content, changes.iter().chain(other)),
            (IndexChange::Load(count), Some(content)) => *content = Self::loaded(*count),
            (IndexChange::Create, content) => *content = Some(Model::<K>::new()),
            (IndexChange::Relocate(_), Some(_)) | (_, None) => {}
        }
    }

    /// After a crash, any subset of the writes that were made together may have happened.
    fn between(&self, before: &Option<Model<K>>, change: &IndexChange) -> Vec<Option<Model<K>>> {
        match (change, before) {
            (IndexChange::Many(changes), Some(before)) => Self::subsets(before, changes),
            (IndexChange::Beside([first, second], other), Some(before)) => {
                let all: Vec<_> = [*first, *second].into_iter().chain(*other).collect();
                Self::subsets(before, &all)
            }
            _ => Vec::new(),
        }
    }

    fn apply(&self, live: &mut Live<K>, before: &Option<Model<K>>, change: &IndexChange, promise: Promise<'_, Option<Model<K>>>) -> Result<Applied, Broken> {
        match *change {
            IndexChange::Create => live.subject = Some(Subject::create(&self.entry, Arc::clone(&live.pool)).map_err(Broken::by(RULE))?),
            IndexChange::Load(count) => {
                let subject = live.subject()?;
                let value = |(key, payload): (K::Owned, u64)| Ok((key.clone(), K::value(&subject.pool, key.borrow(), payload)?));
                let values: Vec<_> = Self::loaded(count).into_iter().map(value).collect::<Result<_, everleaf_index::Error>>().map_err(Broken::by(RULE))?;
                subject.index.bulk_load(&mut values.into_iter(), FILL).map_err(Broken::by(RULE))?;
            }
            IndexChange::Many(changes) => {
                let (writes, were) = written::<K>(before, &changes);
                let subject = live.subject()?;
                let returned = if changes.iter().all(|change| matches!(change, Put(..))) {
                    subject.write_many_and_fence(&writes, || Ok(()))
                } else {
                    subject.write_many(&writes)
                };
                agree(change, returned, were)?;
            }
            IndexChange::Beside(changes, other) => {
                let (writes, mut were) = written::<K>(before, &changes);
                let subject = live.subject()?;
                let (Put(first, _) | Delete(first)) = changes[0];
                let mut other_was = None;
                let meanwhile = || {
                    let act = || other.map_or_else(|| relocate(subject, first).map(|()| None), |other| subject.apply(other));
                    other_was = by_another(subject.pool.medium(), act)?;
                    let mut after = before.clone().unwrap_or_default();
                    were.extend(other.map(|other| apply_to_model::<K>(&mut after, other)));
                    promise(Self::subsets(&after, &changes));
                    Ok(())
                };
                let returned = subject.write_many_and_fence(&writes, meanwhile);
                let returned = returned.map(|returned| returned.into_iter().chain(other.map(|_| other_was)).collect());
                agree(change, returned, were)?;
            }
            IndexChange::Relocate(key) => {
                relocate(live.subject()?, key).map_err(|error| Broken::new(RULE, format_args!("{change}: {error}")))?;
                // The next operations reuse the blocks that were given back.
                live.pool.collect();
            }
            IndexChange::Key(change) => {
                let (_, were) = written::<K>(before, &[change]);
                agree(&IndexChange::Key(change), live.subject()?.apply(change).map(|was| vec![was]), were)?;
            }
        }
        Ok(Applied::Done)
    }

    fn content(&self, live: &Live<K>, limit: usize) -> Result<Option<Model<K>>, Broken> {
        live.subject.as_ref().map(|subject| Ok(subject.content(limit)?.into_iter().collect())).transpose()
    }

    fn audit(&self, live: &Live<K>) -> Result<(), Broken> {
        const RULE: &str = "a pool without an index is empty";
        if let Some(subject) = &live.subject {
            return subject.audit();
        }
        let usage = live.pool.audit(&live.pool.reach()).map_err(Broken::by(RULE))?;
        if usage.leaked == 0 { Ok(()) } else { Err(Broken::new(RULE, format_args!("{usage:?}"))) }
    }

    fn blocks(&self, live: &Live<K>, visit: &mut dyn FnMut(usize, usize)) -> Result<(), Broken> {
        let Some(subject) = &live.subject else { return Ok(()) };
        subject.each_block(visit).map_err(Broken::by("the blocks of a recovered index"))
    }
}

const RULE: &str = "an operation succeeds";

fn apply_all<'a, K: Class + ?Sized>(content: &mut Model<K>, changes: impl IntoIterator<Item = &'a Change>) {
    for change in changes {
        apply_to_model::<K>(content, *change);
    }
}

/// Writes with their payloads, and the payloads that they find.
type Written<K> = (Vec<(<K as ToOwned>::Owned, Write)>, Vec<Option<u64>>);

/// The writes that `changes` stand for, after the content `before`.
fn written<K: Class + ?Sized>(before: &Option<Model<K>>, changes: &[Change]) -> Written<K> {
    let mut model = before.clone().unwrap_or_default();
    let write = |change: &Change| match *change {
        Put(key, payload) => (K::numbered(key), NonZeroU64::new(payload).map_or(Write::Remove, Write::Upsert)),
        Delete(key) => (K::numbered(key), Write::Remove),
    };
    changes.iter().map(|change| (write(change), apply_to_model::<K>(&mut model, *change))).unzip()
}

/// Checks that an operation returned the previous payloads.
fn agree(change: &IndexChange, returned: Result<Vec<Option<u64>>, Error>, were: Vec<Option<u64>>) -> Result<(), Broken> {
    let returned = returned.map_err(|error| Broken::new(RULE, format_args!("{change}: {error}")))?;
    if returned == were {
        return Ok(());
    }
    Err(Broken::new("an operation returns what was there", format_args!("{change}: {returned:?} instead of {were:?}")))
}

/// Relocates the leaf of a key.
fn relocate<K: Class + ?Sized>(Subject { index, .. }: &Subject<K, Crash>, key: u32) -> Result<(), Error> {
    index.gather().and_then(|_| index.relocate(K::numbered(key).borrow(), 1, &|_| true)).and_then(|_| index.gather()).map(drop)
}

/// The payload of every key in a start with equal payloads.
const EQUAL: u64 = 8;

/// Entries of a leaf, as the worlds see it. If each entry has its own leaf, a group of neighbouring leaves counts.
pub(crate) fn capacity_of<K: Class + ?Sized>(entry: &Entry<K, Crash>) -> usize {
    const NEIGHBOURS: usize = 4;
    if entry.leaf_capacity == 1 { NEIGHBOURS } else { entry.leaf_capacity }
}

/// All starts, for leaves of `capacity` entries. They are made with keys that are multiples of 10. Operations use some of these keys, and some between.
pub(crate) fn starts(capacity: usize) -> Vec<Start<IndexChange>> {
    let full = capacity as u32;
    let descending = |count: u32| ascending(count).into_iter().rev().collect::<Vec<_>>();
    let equal = (1..=2 * full).map(|number| Put(number * 10, EQUAL));
    let without = |mut changes: Vec<Change>, deleted: &mut dyn Iterator<Item = u32>| {
        changes.extend(deleted.map(|number| Delete(number * 10)));
        changes
    };
    let mut edges = ascending(full - 1);
    edges.extend([Put(u32::MAX, payload(1)), Put(0, payload(2))]);
    let mut starts = vec![
        born("empty", Vec::new(), [10, 20, 30, 40]),
        born("one below split", descending(full - 1), [5, 20, 25, full * 10]),
        born("at split", ascending(full), [5, 10, full * 10 - 5, full * 10 + 5]),
        born("several leaves", ascending(3 * full), [10, full * 10, full * 10 + 5, full * 30]),
        born("one above merge", without(ascending(2 * full), &mut (1..2 * full).step_by(2)), [20, 40, 45, full * 20]),
        born("many leaves", descending(8 * full), [5, full * 10, full * 40 + 5, full * 80 + 5]),
        born("equal values", equal, [5, 20, full * 10, full * 20]),
        born("edge keys", edges, [0, 10, 15, u32::MAX]),
        Start::new("unborn", Vec::new(), [10, 20, 30, 40]),
    ];
    for (number, start) in starts.iter_mut().enumerate() {
        start.equal_payloads = start.name == "equal values";
        start.closed = number % 2 == 1;
    }
    starts
}

/// Puts of this many keys, in order.
fn ascending(count: u32) -> Vec<Change> {
    (1..=count).map(|number| Put(number * 10, payload(number * 10))).collect()
}

/// A start that creates an index and then makes these changes.
fn born(name: &'static str, changes: impl IntoIterator<Item = Change>, keys: [u32; 4]) -> Start<IndexChange> {
    let changes = changes.into_iter().map(IndexChange::Key);
    Start::new(name, std::iter::once(IndexChange::Create).chain(changes).collect(), keys)
}

/// Three neighbouring leaves. One removal merges the second into the third, and another one the first into both. Extents have four leaves and nodes three, so
/// the third leaf is in another extent, and thus in another line of directories. What is stored to the second's entry may therefore be lost although what is
/// stored to the third's survives.
fn two_mergers(capacity: usize) -> Start<IndexChange> {
    let full = capacity as u32;
    let half = full / 2;
    let first_of = |leaf: u32| leaf * full + 1;
    // Ascending inserts leave leaves full. Each leaf keeps enough entries that nothing merges earlier.
    let kept = [(6, 1), (7, half), (8, full * 3 / 4 - (half - 1))];
    let emptied = kept.into_iter().flat_map(|(leaf, kept)| (first_of(leaf) + kept..first_of(leaf + 1)).map(|number| Delete(number * 10)));
    born("two mergers", ascending(9 * full).into_iter().chain(emptied), [first_of(6) * 10, first_of(7) * 10, first_of(7) * 10 + 5, first_of(8) * 10])
}

/// A bulk load whose two extents of four leaves come before the extent that was there already, which holds no live leaf. That extent can be unlinked through
/// the link of the one before it. The last leaf is full, and no other is dead: so the next division gets the block of that extent.
fn extent_behind_others(capacity: usize) -> Start<IndexChange> {
    let full = capacity as u32;
    let in_leaf = (f64::from(full) * FILL) as u32;
    let loaded = 8 * in_leaf;
    let last = loaded + full - in_leaf;
    let puts = (loaded + 1..=last).map(|key| IndexChange::Key(Put(key, payload(key))));
    let changes = [IndexChange::Create, IndexChange::Load(loaded)].into_iter().chain(puts).collect();
    Start { lowest_first: true, ..Start::new("extent behind others", changes, [last + 1, 1, last, 2]) }
}

/// A leaf with one entry, which writes made together remove, so that a crash leaves the leaf in the list without entries. A single removal takes entry and leaf
/// away at once. It is the second leaf, whose block lies before those of all other removed leaves, and the first leaf is full. So if the next life divides or
/// relocates that, it gets the block that recovery has just taken out of the list.
fn last_of_its_leaf(capacity: usize) -> Start<IndexChange> {
    let full = capacity as u32;
    // Leaves filled in ascending order have kept their lower halves.
    let half = full / 2;
    let last = (half + 1) * 10;
    let beside = (11..11 + full - half).map(|key| Put(key, payload(key)));
    let emptied = (half + 2..3 * full).map(|number| Delete(number * 10));
    // The payload with which those writes remove it.
    let changes = ascending(4 * full).into_iter().chain(beside).chain(emptied).chain([Put(last, payload(last) + 1)]);
    Start { lowest_first: true, ..born("last of its leaf", changes, [10, last, full * 40, 5]) }
}

/// A put of `key`, whose current payload is `present`. It changes the payload, unless all payloads are equal.
///
/// Each key alternates between two payloads, so that different histories reach the same state again.
fn put(start: &Start<IndexChange>, key: u32, present: Option<u64>) -> Change {
    let fresh = payload(key);
    let payload = match present {
        _ if start.equal_payloads => EQUAL,
        Some(old) if old == fresh => fresh + 1,
        _ => fresh,
    };
    Put(key, payload)
}

fn payload(key: u32) -> u64 {
    (u64::from(key) + 1) * 2
}
