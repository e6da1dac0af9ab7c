//! The store in a crash run: a write happens completely or not at all, including batches and transactions over several namespaces. A snapshot shows the same
//! content as long as it lives, whatever is written, so the run includes the old versions that it keeps.
//!
//! A store in a full pool ([`Stores::FULL`]) refuses writes that it has no room for. A refused write must not have happened, not even partly, whenever the
//! crash comes. Removals and relocations are never refused, except in a batch; and every image opens. The pool is filled with values of many sizes, in a
//! separate namespace, until not even the smallest fits. It is used full, and also with a value of each size removed again, so that a write finds room for one
//! of its blocks but not for the next. The filling is neither in the model nor compared: a crash may take any of it, if the store is sound.

use super::checker::by_another;
use super::world::{Applied, Promise, Start, World};
use crate::Broken;
use everleaf::{Act, Batch, Change, Direction, Error, Evacuation, Isolation, Merge, Namespace, Options, Snapshot, Store, Times};
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, LazyLock};

/// Stores of two namespaces.
pub struct Stores {
    /// Name of their index.
    pub index: &'static str,
    /// Whether their pools are full.
    pub is_full: bool,
}

impl Stores {
    /// On the index with the smallest leaves.
    pub const SMALLEST: Self = Self::on("isle-128");

    /// On other indexes: each way to split leaves, and to lay them out.
    pub const OTHERS: [Self; 5] = [Self::on("lb-128"), Self::on("fp-192"), Self::on("nv-128"), Self::on("wb-128"), Self::on("ever-64")];

    /// In full pools: on the default index, on one that needs room to remove something, and on one that replaces leaves.
    pub const FULL: [Self; 3] = [Self::full("ever-64"), Self::full("nv-128"), Self::full("isle-128")];

    const fn on(index: &'static str) -> Self {
        Self { index, is_full: false }
    }

    const fn full(index: &'static str) -> Self {
        Self { index, is_full: true }
    }
}

/// What can happen to a store. Namespaces are given by number.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreChange {
    /// Sets a value.
    Put(usize, &'static str, &'static str),
    /// Sets values, some of which expire, or removes keys: separate writes with shared fences.
    Many(usize, &'static [(&'static str, Option<Value>)]),
    /// Sets a value that expires: long ago, or in a long time.
    PutUntil(usize, &'static str, &'static str, Expiry),
    /// Removes what has expired.
    Sweep,
    /// Loads the first values of a namespace at once, if it is empty.
    Load(usize, &'static [(&'static str, &'static str)]),
    /// Appends to a value.
    Append(usize, &'static str, &'static str),
    /// Deletes a key.
    Delete(usize, &'static str),
    /// Deletes the keys of a half-open range, each separately, in order.
    DeleteRange(usize, &'static str, &'static str),
    /// Appends to values, all at once.
    Appends(&'static [(usize, &'static str, &'static str)]),
    /// Sets when a key expires, if it is there.
    Expire(usize, &'static str, Expiry),
    /// Sets and deletes in one batch.
    Write(&'static [(usize, &'static str, Option<&'static str>)]),
    /// Compares and swaps: namespace, key, expected value, new value.
    Swap(usize, &'static str, Option<&'static str>, Option<&'static str>),
    /// Deletes everything in a namespace.
    Clear(usize),
    /// Reads a key in a serializable transaction, writes something else and takes it back, sets and deletes, and commits.
    Transact(usize, &'static str, &'static [(usize, &'static str, Option<&'static str>)]),
    /// Takes a snapshot, or drops the current one.
    Look,
    /// Relocates whatever can be moved, and gives back what is free.
    Compact,
    /// Fills the pool with values that nothing reads.
    Fill,
    /// Removes one of those of each size.
    Relieve,
}

use StoreChange::*;

/// A value, and when it expires.
pub(super) type Value = (&'static str, Option<Expiry>);

/// When a key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Before it was set.
    Past,
    /// Later than any time in a run.
    Future,
}

impl Expiry {
    fn ms(self) -> u64 {
        match self {
            Self::Past => NOW_MS - 1,
            Self::Future => NOW_MS + 1,
        }
    }
}

/// Time stands still in a run.
const NOW_MS: u64 = 1 << 40;

/// See [`NOW_MS`].
pub(crate) fn times() -> Times {
    Times { wall_ms: NOW_MS, passed_ms: 1 }
}

impl StoreChange {
    /// Whether a full pool may have no room for it. Removals and relocations must not fail, except in a batch, which has a log.
    fn may_be_refused(&self) -> bool {
        !matches!(self, Delete(..) | DeleteRange(..) | Clear(_) | Compact | Sweep | Fill | Relieve)
    }
}

impl fmt::Display for StoreChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Put(space, key, value) => write!(f, "put {space}/{key}={value}"),
            Many(space, changes) => write!(f, "many in {space}: {changes:?}"),
            PutUntil(space, key, STREAMED, expiry) => write!(f, "put {space}/{key}, {} bytes, until {expiry:?}", STREAMED.len()),
            PutUntil(space, key, value, expiry) => write!(f, "put {space}/{key}={value} until {expiry:?}"),
            Sweep => write!(f, "sweep"),
            Load(space, pairs) => write!(f, "load {space}: {pairs:?}"),
            Append(space, key, tail) => write!(f, "append {tail} to {space}/{key}"),
            Appends(tails) => write!(f, "append at once {tails:?}"),
            Expire(space, key, expiry) => write!(f, "let {space}/{key} expire: {expiry:?}"),
            Delete(space, key) => write!(f, "delete {space}/{key}"),
            DeleteRange(space, from, to) => write!(f, "delete {space}/{from}..{to}"),
            Write(changes) => write!(f, "write {changes:?}"),
            Swap(space, key, expected, new) => write!(f, "swap {space}/{key} from {expected:?} to {new:?}"),
            Clear(space) => write!(f, "clear {space}"),
            Transact(space, key, changes) => write!(f, "transact, reading {space}/{key}: {changes:?}"),
            Look => write!(f, "take a snapshot, or drop it"),
            Compact => write!(f, "compact"),
            Fill => write!(f, "fill the pool"),
            Relieve => write!(f, "make a little room"),
        }
    }
}

/// A start with its own operations.
const EXPIRING: &str = "expiring";

const SPACES: [&str; 2] = ["first", "second"];
/// The namespace of the values that fill a pool.
const BALLAST: &str = "ballast";
/// Sizes of these values, the larger ones first: in the end no block of any class is free.
const BALLAST_SIZES: [usize; 4] = [2000, 500, 100, 0];

/// With a close, these are as many as a case can encode.
const CHANGES: [StoreChange; 15] = [
    Put(0, "a", "new"),
    Put(1, "a key of more than eight bytes", "and a value that takes more than one line of a cache, so that a crash can tear it in the middle"),
    Many(0, &[("b", Some(("1", Some(Expiry::Past)))), ("c", Some(("2", Some(Expiry::Future)))), ("b", Some(("3", None))), ("a", None)]),
    Append(0, "a", "+"),
    Delete(0, "a"),
    Write(&BATCH),
    Write(&[(0, "a", None), (1, "c", Some("moved")), (0, "d", Some("fresh"))]),
    Write(&[(1, "c", None), (1, "b", None), (0, "a", Some("only one left"))]),
    Swap(0, "a", Some("new"), Some("swapped")),
    Swap(0, "d", None, Some("fresh")),
    Swap(1, "c", Some("5"), None),
    Clear(0),
    Transact(0, "a", &[(0, "a", Some("moved")), (1, "c", None), (1, "d", Some("there"))]),
    Look,
    Compact,
];

/// Into a small full leaf: others see what is published first, while the leaf is divided for the rest.
const BATCH: [(usize, &str, Option<&str>); 4] = [(0, "a", Some("batch")), (0, "ac", Some("batch")), (0, "b", None), (1, "a", Some("batch"))];

/// A value that a transaction writes to the pool before it commits.
const DRAFT: &str = "a value of so many bytes that a transaction does not keep it in memory, at least where it is to be checked";

/// Other changes, for a start with keys that expire.
const OTHERS: [StoreChange; 15] = [
    PutUntil(0, "t", "1", Expiry::Past),
    Expire(0, "a", Expiry::Future),
    PutUntil(0, "t", STREAMED, Expiry::Future),
    PutUntil(0, "u", "a value that has expired already and takes more than one line of a cache, as others do", Expiry::Past),
    Put(0, "u", "for good"),
    Append(0, "t", "+"),
    Sweep,
    Delete(0, "u"),
    DeleteRange(0, "aa", "c"),
    Load(1, &[("b", "1"), ("c", "2"), ("d", "3"), ("e", "4")]),
    Expire(0, "t", Expiry::Past),
    Appends(&[(0, "t", "+"), (1, "c", "+"), (0, "u", "batch"), (0, "t", "+")]),
    Transact(1, "c", &[(0, "t", None), (1, "c", Some(DRAFT)), (0, "u", Some(DRAFT))]),
    Look,
    Compact,
];

/// A value large enough to bypass the caches. Its last word is padded, and its expiry follows in the same line, stored in the ordinary way.
const STREAMED: &str = match std::str::from_utf8(&[b's'; (4 << 10) + 1]) {
    Ok(value) => value,
    Err(_) => panic!("ASCII"),
};

/// Other changes, for full pools: each must happen completely or, if it is refused, not at all.
const TIGHT: [StoreChange; 15] = [
    Put(0, "a", "new"),
    Put(1, "a key of more than eight bytes", LONG),
    Put(0, "ab", ""),
    PutUntil(0, "b", LONG, Expiry::Future),
    Append(0, "a", LONG),
    Delete(0, "a"),
    DeleteRange(0, "a", "b"),
    Write(&[(0, "aa", Some("batch")), (1, "a", Some(LONG)), (0, "b", None), (1, "d", Some("batch"))]),
    Write(&[(1, "c", Some("small")), (1, "b", Some("small"))]),
    Write(&[(0, "a", None), (0, "aa", None), (1, "b", None)]),
    Swap(0, "a", Some("older"), Some("swapped")),
    Transact(0, "a", &[(0, "a", Some(LONG)), (1, "c", None), (1, "d", Some("there"))]),
    Clear(0),
    Compact,
    Relieve,
];

/// A value of more than one line.
const LONG: &str =
    "a value that takes more than one line of a cache, so that it needs another block than the small ones do, and a crash can tear it in the middle";

/// What a recovered store is used for.
const AFTERWARDS: [StoreChange; 4] =
    [Write(&[(0, "a", Some("x")), (1, "c", None), (1, "e", Some("y"))]), Delete(0, "a"), Put(0, "z", "z"), Append(1, "e", "!")];

/// A leaf that is about to split, and one with a few keys.
const FILLED: [StoreChange; 2] = [
    Many(0, &[("a", Some(("old", None))), ("aa", Some(("1", None))), ("ab", Some(("2", None))), ("b", Some(("3", None)))]),
    Write(&[(1, "b", Some("4")), (1, "c", Some("5")), (0, "a", Some("older"))]),
];

/// Every key that an operation uses.
static NAMED: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let all = CHANGES.iter().chain(&OTHERS).chain(&TIGHT).chain(&AFTERWARDS).chain(&FILLED);
    all.flat_map(|change| match *change {
        Put(_, key, _) | PutUntil(_, key, ..) | Append(_, key, _) | Expire(_, key, _) | Delete(_, key) | Swap(_, key, ..) => vec![key],
        Many(_, changes) => changes.iter().map(|(key, _)| *key).collect(),
        Load(_, pairs) => pairs.iter().map(|(key, _)| *key).collect(),
        Appends(tails) => tails.iter().map(|(_, key, _)| *key).collect(),
        Write(changes) | Transact(_, _, changes) => changes.iter().map(|(_, key, _)| *key).collect(),
        Sweep | DeleteRange(..) | Clear(_) | Look | Compact | Fill | Relieve => Vec::new(),
    })
    .collect()
});

/// An open store.
pub struct Live {
    store: Store<Crash>,
    spaces: Vec<Namespace<Crash>>,
    /// A snapshot, and the content that it must show.
    look: Option<(Snapshot<Crash>, Content)>,
}

/// A value, and when it expires.
type Held = (Vec<u8>, Option<u64>);
type Content = BTreeMap<(usize, Vec<u8>), Held>;

impl World for Stores {
    type Live = Live;
    type Content = Content;
    type Change = StoreChange;

    fn name(&self) -> String {
        match self.index {
            index if self.is_full => format!("store-full-{index}"),
            "isle-128" => "store".to_owned(),
            index => format!("store-{index}"),
        }
    }

    fn memory(&self) -> usize {
        // The smallest pool that keeps a reserve is half that size.
        if self.is_full { 256 << 10 } else { 512 << 10 }
    }

    fn starts(&self) -> Vec<Start<StoreChange>> {
        let filled = || FILLED.to_vec();
        if self.is_full {
            let relieved = [filled(), vec![Fill, Relieve]].concat();
            return vec![
                Start::new("full", [filled(), vec![Fill]].concat(), [0; 4]),
                Start::new("relieved", relieved.clone(), [0; 4]),
                Start { closed: true, ..Start::new("closed", relieved, [0; 4]) },
            ];
        }
        vec![
            Start::new("empty", vec![Clear(0)], [0; 4]),
            Start::new("filled", filled(), [0; 4]),
            Start { closed: true, ..Start::new("closed", filled(), [0; 4]) },
            Start::new("looked at", [filled(), vec![Look, Delete(0, "aa"), Put(0, "b", "over")]].concat(), [0; 4]),
            Start::new(EXPIRING, [filled(), vec![Clear(1), PutUntil(0, "t", "0", Expiry::Future), PutUntil(0, "v", "0", Expiry::Past)]].concat(), [0; 4]),
            Start::new("new", Vec::new(), [0; 4]),
        ]
    }

    fn nothing(&self) -> Content {
        Content::new()
    }

    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Live, Broken> {
        const RULE: &str = "opening after a crash succeeds";
        let options = Options { index: self.index.into(), recovery_threads: threads, times, ..Options::default() };
        let store = Store::on(pool, &options).map_err(Broken::by(RULE))?;
        let spaces = SPACES.iter().map(|name| store.namespace(name)).collect::<Result<_, _>>().map_err(Broken::by(RULE))?;
        Ok(Live { store, spaces, look: None })
    }

    fn pool<'a>(&self, live: &'a Live) -> &'a Arc<Pool<Crash>> {
        live.store.pool()
    }

    fn close(&self, live: Live) -> Result<(), Broken> {
        drop(live.look);
        live.store.close().map_err(Broken::by("a store can be closed"))
    }

    fn may_need_recovery(&self) -> bool {
        self.is_full
    }

    fn changes(&self, start: &Start<StoreChange>, _content: &Content) -> Vec<StoreChange> {
        match start.name {
            _ if self.is_full => TIGHT.to_vec(),
            EXPIRING => OTHERS.to_vec(),
            _ => CHANGES.to_vec(),
        }
    }

    fn random(&self, _step: u64, _count: u64, _content: &Content, choice: &mut StdRng) -> StoreChange {
        if self.is_full {
            // Makes up for what was removed, so that the pool stays full.
            return if choice.random_ratio(1, 4) { Fill } else { TIGHT.choose(choice).expect("there are some").clone() };
        }
        if choice.random_ratio(1, 3) { OTHERS.choose(choice) } else { CHANGES.choose(choice) }.expect("there are some").clone()
    }

    fn follow_up(&self, _start: &Start<StoreChange>, _content: &Content) -> Vec<StoreChange> {
        AFTERWARDS.to_vec()
    }

    fn model(&self, content: &mut Content, change: &StoreChange) {
        let is_empty = |space| content.keys().all(|(at, _)| *at != space);
        if let Load(space, pairs) = *change
            && is_empty(space)
        {
            content.extend(pairs.iter().map(|(key, value)| ((space, (*key).into()), ((*value).into(), None))));
        }
        let mut set = |space: usize, key: &str, value: Option<String>| {
            hold(content, space, key.as_bytes(), value.map(|value| (value.into(), None)));
        };
        match *change {
            Put(space, key, value) => set(space, key, Some(value.into())),
            Many(space, changes) => changes.iter().for_each(|(key, value)| {
                hold(content, space, key.as_bytes(), value.and_then(held));
            }),
            PutUntil(space, key, value, expiry) => {
                hold(content, space, key.as_bytes(), held((value, Some(expiry))));
            }
            Appends(tails) => {
                tails.iter().for_each(|(space, key, tail)| content.entry((*space, (*key).into())).or_default().0.extend_from_slice(tail.as_bytes()))
            }
            Expire(space, key, Expiry::Past) => set(space, key, None),
            Expire(space, key, Expiry::Future) => {
                if let Some((_, expiry)) = content.get_mut(&(space, key.into())) {
                    *expiry = Some(Expiry::Future.ms());
                }
            }
            Append(space, key, tail) => content.entry((space, key.into())).or_default().0.extend_from_slice(tail.as_bytes()),
            Delete(space, key) => set(space, key, None),
            Write(changes) => changes.iter().for_each(|(space, key, value)| set(*space, key, value.map(str::to_owned))),
            Swap(space, key, expected, new) => {
                if content.get(&(space, key.into())).map(|(value, _)| value.as_slice()) == expected.map(str::as_bytes) {
                    match new {
                        Some(new) => content.entry((space, key.into())).or_default().0 = new.into(),
                        None => drop(content.remove(&(space, key.into()))),
                    }
                }
            }
            DeleteRange(space, from, to) => content.retain(|(at, key), _| *at != space || !is_within(key, from, to)),
            Clear(space) => content.retain(|(at, _), _| *at != space),
            Transact(_, _, changes) => changes.iter().for_each(|(space, key, value)| set(*space, key, value.map(str::to_owned))),
            Look | Sweep | Load(..) | Compact | Fill | Relieve => {}
        }
    }

    /// Each of many writes is separate, and so is each removal in a range: a crash may leave any subset of them.
    fn between(&self, before: &Content, change: &StoreChange) -> Vec<Content> {
        let writes: Vec<(usize, Vec<u8>, Option<Held>)> = match *change {
            Many(space, changes) => changes.iter().map(|(key, value)| (space, (*key).into(), value.and_then(held))).collect(),
            DeleteRange(space, from, to) => {
                before.keys().filter(|(at, key)| *at == space && is_within(key, from, to)).map(|(_, key)| (space, key.clone(), None)).collect()
            }
            _ => return Vec::new(),
        };
        let subset = |chosen: u32| {
            let mut content = before.clone();
            for (_, (space, key, held)) in writes.iter().enumerate().filter(|(number, _)| chosen >> number & 1 == 1) {
                hold(&mut content, *space, key, held.clone());
            }
            content
        };
        (0..1 << writes.len()).map(subset).collect()
    }

    fn apply(&self, live: &mut Live, before: &Content, change: &StoreChange, _: Promise<'_, Content>) -> Result<Applied, Broken> {
        const RULE: &str = "an operation succeeds";
        let outcome = |error: Error| match self.is_full && change.may_be_refused() && error.is_no_space() {
            true => Ok(Applied::Refused),
            false => Err(Broken::new(RULE, format_args!("{change}: {error}"))),
        };
        match (change, live.look.take()) {
            (Look, None) => live.look = Some((live.store.snapshot().map_err(Broken::by(RULE))?, before.clone())),
            (Look, Some(_)) => {}
            (_, look) => live.look = look,
        }
        if let Load(space, pairs) = *change {
            let loaded = load(live, space, pairs).map_err(Broken::by(RULE))?;
            // Nothing expires where anything is loaded.
            if loaded == before.keys().any(|(at, _)| *at == space) {
                return Err(Broken::new("what is loaded was empty", format_args!("{change}: {loaded}")));
            }
        }
        let returned = match *change {
            Transact(space, key, changes) => match transact(live, space, key, changes) {
                Ok((read, _)) if read.as_ref() != before.get(&(space, key.into())).map(|(value, _)| value) => {
                    return Err(Broken::new("a transaction reads what there is", format_args!("{key}: {read:?}")));
                }
                transacted => transacted.map(|(_, deleted)| deleted),
            },
            _ => apply(live, change),
        };
        match returned {
            Err(error) => outcome(error),
            Ok(returned) if returned == told(before, change) => Ok(Applied::Done),
            Ok(returned) => Err(Broken::new("an operation returns what was there", format_args!("{change}: {returned:?}"))),
        }
    }

    fn content(&self, live: &Live, limit: usize) -> Result<Content, Broken> {
        let mut content = Content::new();
        for (number, space) in live.spaces.iter().enumerate() {
            let forward = scan(space, Direction::Forward, limit)?;
            let mut reverse = scan(space, Direction::Reverse, limit)?;
            reverse.reverse();
            if forward != reverse {
                return Err(Broken::new("a reverse scan is a scan reversed", format_args!("{reverse:?}, forward {forward:?}")));
            }
            // The store's own check verifies the exact number; it sees expired entries, too.
            if space.count() < forward.len() as u64 {
                return Err(Broken::new("counts are right", format_args!("{} instead of {} and more", space.count(), forward.len())));
            }
            let is_shown = |key: &str| forward.binary_search_by(|(shown, _)| (**shown).cmp(key.as_bytes())).is_ok();
            for key in NAMED.iter().filter(|key| !is_shown(key)) {
                let found = space.entry(key.as_bytes()).map_err(Broken::by("a lookup"))?;
                if found.is_some() {
                    return Err(Broken::new("what no scan shows no lookup finds", format_args!("{key:?}: {found:?}")));
                }
            }
            for (key, value) in forward {
                let found = space.entry(&key).map_err(Broken::by("a lookup"))?;
                let Some(found) = found.filter(|found| found.value == value) else {
                    return Err(Broken::new("what a scan shows a lookup finds", format_args!("{key:?}: not {value:?}")));
                };
                content.insert((number, key), (value, found.expiry_ms));
            }
        }
        live.look.as_ref().map_or(Ok(()), |(snapshot, shown)| check_look(live, snapshot, shown, limit))?;
        Ok(content)
    }

    fn audit(&self, live: &Live) -> Result<(), Broken> {
        const RULE: &str = "the store's own check finds nothing";
        let report = live.store.verify().map_err(Broken::by(RULE))?;
        if report.is_sound() { Ok(()) } else { Err(Broken::new(RULE, format_args!("{report:?}"))) }
    }
}

/// What a key holds after it is set to a value, which may expire.
fn held((value, expiry): Value) -> Option<Held> {
    (expiry != Some(Expiry::Past)).then(|| (value.into(), expiry.map(Expiry::ms)))
}

/// Sets or removes a key of the model, and returns whether it was there.
fn hold(content: &mut Content, space: usize, key: &[u8], held: Option<Held>) -> bool {
    let was = match held {
        Some(held) => content.insert((space, key.into()), held),
        None => content.remove(&(space, key.to_vec())),
    };
    was.is_some()
}

/// What an operation returns about its keys: for each, or for all together, whether it was there, or how many were there. Empty if it returns nothing.
fn told(before: &Content, change: &StoreChange) -> Vec<u64> {
    let value = |space, key: &str| before.get(&(space, key.into())).map(|(value, _)| value.as_slice());
    let mut now = before.clone();
    match *change {
        Delete(space, key) => vec![value(space, key).is_some().into()],
        Swap(space, key, expected, _) => vec![(value(space, key) == expected.map(str::as_bytes)).into()],
        DeleteRange(space, from, to) => vec![before.keys().filter(|(at, key)| *at == space && is_within(key, from, to)).count() as u64],
        Many(space, changes) => {
            let act = |(key, value): &(&str, Option<Value>)| u64::from(hold(&mut now, space, key.as_bytes(), value.and_then(held)) && value.is_none());
            changes.iter().map(act).collect()
        }
        Transact(_, _, changes) => {
            let mut set = |(space, key, value): &(usize, &str, Option<&str>)| hold(&mut now, *space, key.as_bytes(), value.map(|value| (value.into(), None)));
            changes.iter().map(|change| (change.2, set(change))).filter_map(|(value, was)| value.is_none().then_some(was.into())).collect()
        }
        _ => Vec::new(),
    }
}

/// Applies the change to the store, and returns what [`told`] says.
fn apply(live: &Live, change: &StoreChange) -> Result<Vec<u64>, Error> {
    let Live { store, spaces, .. } = live;
    let done = match *change {
        Delete(space, key) => return Ok(vec![spaces[space].delete(key.as_bytes())?.into()]),
        Swap(space, key, expected, new) => {
            return Ok(vec![spaces[space].compare_and_swap(key.as_bytes(), expected.map(str::as_bytes), new.map(str::as_bytes))?.into()]);
        }
        DeleteRange(space, from, to) => return Ok(vec![spaces[space].delete_range(from..to)?]),
        Put(space, key, value) => spaces[space].put(key.as_bytes(), value.as_bytes()),
        Many(space, changes) => {
            let act = |(value, expiry): Value| match expiry {
                None => Act::Put(value.as_bytes()),
                Some(expiry) => Act::PutUntil(value.as_bytes(), expiry.ms()),
            };
            let acts: Vec<_> = changes.iter().map(|(key, value)| (key.as_bytes(), value.map_or(Act::Delete, act))).collect();
            let mut found = Vec::new();
            spaces[space].act_many(&acts, &mut found, |_, _| Ok(ControlFlow::Continue(())))?;
            return found.into_iter().map(|found| found.map(u64::from)).collect();
        }
        PutUntil(space, key, value, expiry) => spaces[space].put_until(key.as_bytes(), value.as_bytes(), expiry.ms()),
        Appends(tails) => {
            let mut batch = Batch::default();
            tails.iter().for_each(|(space, key, tail)| batch.merge(&spaces[*space], key.as_bytes(), Merge::Append((*tail).into())));
            store.write(batch)
        }
        Expire(space, key, expiry) => spaces[space].modify_entry(key.as_bytes(), |_| Change::Expire(Some(expiry.ms()))),
        Sweep => store.sweep(1 << 10).map(drop),
        Append(space, key, tail) => spaces[space].merge(key.as_bytes(), &Merge::Append(tail.into())).map(drop),
        Write(changes) => {
            let mut batch = Batch::default();
            for (space, key, value) in changes {
                match value {
                    Some(value) => batch.put(&spaces[*space], key.as_bytes(), value.as_bytes()),
                    None => batch.delete(&spaces[*space], key.as_bytes()),
                }
            }
            store.write(batch)
        }
        Clear(space) => spaces[space].clear(),
        Compact => store.compact(Evacuation::All, |_| ControlFlow::Continue(())).map(drop),
        Fill => fill(store),
        Relieve => BALLAST_SIZES.iter().try_for_each(|size| store.namespace(BALLAST)?.delete(&ballast(*size, 0)).map(drop)),
        Transact(..) | Load(..) | Look => Ok(()),
    };
    done.map(|()| Vec::new())
}

fn ballast(size: usize, number: usize) -> Vec<u8> {
    format!("{size} {number}").into_bytes()
}

/// Puts values of each size until one does not fit.
fn fill(store: &Store<Crash>) -> Result<(), Error> {
    let space = store.namespace(BALLAST)?;
    for size in BALLAST_SIZES {
        let refused = (0..).map(|number| space.put(&ballast(size, number), &vec![b'.'; size])).find_map(Result::err);
        if let Some(error) = refused.filter(|error| !error.is_no_space()) {
            return Err(error);
        }
    }
    Ok(())
}

fn is_within(key: &[u8], from: &str, to: &str) -> bool {
    (from.as_bytes()..to.as_bytes()).contains(&key)
}

/// Loads the namespace if it is empty, and returns whether it was.
fn load(live: &Live, space: usize, pairs: &[(&str, &str)]) -> Result<bool, Error> {
    match live.spaces[space].load(pairs.iter().copied()) {
        Ok(count) => Ok(count == pairs.len() as u64),
        Err(Error::Index(error)) if matches!(error.cause(), everleaf_index::Cause::NotEmpty { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns what the transaction has read, and whether each key that it deleted was there.
fn transact(live: &Live, space: usize, key: &str, changes: &[(usize, &str, Option<&str>)]) -> Result<(Option<Vec<u8>>, Vec<u64>), Error> {
    let Live { store, spaces, .. } = live;
    let mut transaction = store.begin(Isolation::Serializable)?;
    let read = transaction.get(&spaces[space], key.as_bytes())?;
    let savepoint = transaction.savepoint();
    transaction.put(&spaces[space], key.as_bytes(), DRAFT.as_bytes())?;
    transaction.rollback_to(&savepoint);
    let mut deleted = Vec::new();
    for (space, key, value) in changes {
        match value {
            Some(value) => transaction.put(&spaces[*space], key.as_bytes(), value.as_bytes())?,
            None => deleted.push(transaction.delete(&spaces[*space], key.as_bytes())?.into()),
        }
    }
    // The other thread makes durable what this one has written.
    by_another(store.pool().medium(), || transaction.commit())?;
    Ok((read, deleted))
}

/// Checks that a snapshot shows the same content as when it was taken.
fn check_look(live: &Live, snapshot: &Snapshot<Crash>, shown: &Content, limit: usize) -> Result<(), Broken> {
    const RULE: &str = "a snapshot shows the same as long as it lives";
    for (number, space) in live.spaces.iter().enumerate() {
        let wanted: Entries = shown.iter().filter(|((at, _), _)| *at == number).map(|((_, key), (value, _))| (key.clone(), value.clone())).collect();
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found = collect(limit, |visit| snapshot.scan(space, Bound::Unbounded, direction, visit))?;
            if direction == Direction::Reverse {
                found.reverse();
            }
            if found != wanted {
                return Err(Broken::new(RULE, format_args!("namespace {number}: {found:?} instead of {wanted:?}, {direction:?}")));
            }
        }
        for (key, value) in &wanted {
            let found = snapshot.get(space, key).map_err(Broken::by(RULE))?;
            if found.as_ref() != Some(value) {
                return Err(Broken::new(RULE, format_args!("{key:?}: {found:?} instead of {value:?}")));
            }
        }
    }
    Ok(())
}

/// Keys and values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn scan(space: &Namespace<Crash>, direction: Direction, limit: usize) -> Result<Entries, Broken> {
    collect(limit, |visit| space.scan(Bound::Unbounded, direction, visit))
}

/// All entries that `scan` visits; more than `limit` are an error.
fn collect(limit: usize, scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error>) -> Result<Entries, Broken> {
    let mut entries = Vec::new();
    scan(&mut |key: &[u8], value: &[u8]| {
        entries.push((key.to_vec(), value.to_vec()));
        if entries.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .map_err(Broken::by("a scan"))?;
    if entries.len() < limit { Ok(entries) } else { Err(Broken::new("bounded steps", format_args!("a scan gave {limit} entries and had more"))) }
}
