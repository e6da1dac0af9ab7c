//! Crashes at every moment of every kind of write: what was acknowledged is there, the write under way happened as a whole or not at all, and life goes on.
//!
//! Sequences of operations run on the crash checker's medium. Every image that a crash in the last one can leave is recovered, and so is every image that a
//! crash in that recovery can leave. Each time the store must hold what it held before the operation, or after; its check must find no damage and no leak; and
//! it must work, and now and then survive a crash in that work, too.

use everleaf::{Batch, Change, Direction, Error, Namespace, Options, Store};
use everleaf_pmem::{Act, Crash, CrashOptions, Fault, Image, Life, Memory, Pool, PoolOptions, Profile, Seen, Verb};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const SPACES: [&str; 2] = ["first", "second"];
const INDEX: &str = "isle-128";
const MEMORY_SIZE: usize = 512 << 10;
const SLAB_SIZE: usize = 4 << 10;

type Content = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

#[derive(Clone, Debug)]
enum Operation {
    Put(usize, &'static str, &'static str),
    PutMany(usize, &'static [(&'static str, &'static str)]),
    Append(usize, &'static str, &'static str),
    Delete(usize, &'static str),
    Write(&'static [(usize, &'static str, Option<&'static str>)]),
    /// Compare and swap: namespace, key, what is expected, what is to be.
    Swap(usize, &'static str, Option<&'static str>, Option<&'static str>),
    Clear(usize),
}

use Operation::*;

const OPERATIONS: [Operation; 14] = [
    Put(0, "a", "new"),
    Put(1, "a key of more than eight bytes", "and a value that takes more than one line of a cache, so that a crash can tear it in the middle"),
    PutMany(0, &[("b", "1"), ("c", "2"), ("b", "3")]),
    Append(0, "a", "+"),
    Delete(0, "a"),
    Delete(1, "c"),
    Write(&[(0, "a", Some("batch")), (1, "a", Some("batch"))]),
    Write(&[(0, "a", None), (1, "c", Some("moved")), (0, "d", Some("fresh"))]),
    Write(&[(1, "c", None), (1, "b", None), (0, "a", Some("only one left"))]),
    Swap(0, "a", Some("new"), Some("swapped")),
    Swap(0, "d", None, Some("fresh")),
    Swap(1, "c", Some("5"), None),
    Clear(0),
    Clear(1),
];

/// What a recovered store is used for.
const AFTERWARDS: [Operation; 4] = [Write(&[(0, "a", Some("x")), (1, "c", None), (1, "e", Some("y"))]), Delete(0, "a"), Put(0, "z", "z"), Append(1, "e", "!")];
/// Every how many images crashes in that are examined, too.
const SECOND_LIFE_EVERY: u64 = 16;

fn apply_to_content(content: &mut Content, operation: &Operation) {
    let mut set = |space: usize, key: &str, value: Option<String>| match value {
        Some(value) => drop(content.insert((space, key.into()), value.into())),
        None => drop(content.remove(&(space, key.as_bytes().to_vec()))),
    };
    match *operation {
        Put(space, key, value) => set(space, key, Some(value.into())),
        PutMany(space, pairs) => pairs.iter().for_each(|(key, value)| set(space, key, Some((*value).into()))),
        Append(space, key, tail) => {
            let old = content.entry((space, key.into())).or_default();
            old.extend_from_slice(tail.as_bytes());
        }
        Delete(space, key) => set(space, key, None),
        Write(changes) => changes.iter().for_each(|(space, key, value)| set(*space, key, value.map(str::to_owned))),
        Swap(space, key, expected, new) => {
            if content.get(&(space, key.into())).map(Vec::as_slice) == expected.map(str::as_bytes) {
                match new {
                    Some(new) => drop(content.insert((space, key.into()), new.into())),
                    None => drop(content.remove(&(space, key.into()))),
                }
            }
        }
        Clear(space) => content.retain(|(at, _), _| *at != space),
    }
}

/// What a crash during `operation` may leave.
fn allowed_during(before: &Content, operation: &Operation) -> Vec<Content> {
    let mut states = vec![before.clone()];
    match *operation {
        // Each pair is a write of its own.
        PutMany(space, pairs) => {
            for (key, value) in pairs {
                let mut next = states.last().expect("there is one").clone();
                next.insert((space, (*key).into()), (*value).into());
                states.push(next);
            }
        }
        _ => {
            let mut after = before.clone();
            apply_to_content(&mut after, operation);
            states.push(after);
        }
    }
    states
}

fn apply(store: &Store<Crash>, spaces: &[Namespace<Crash>], operation: &Operation) -> Result<(), Error> {
    match *operation {
        Put(space, key, value) => spaces[space].put(key.as_bytes(), value.as_bytes()),
        PutMany(space, pairs) => {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect();
            spaces[space].put_many(&pairs)
        }
        Append(space, key, tail) => spaces[space].modify(key.as_bytes(), |old| Change::Put([old.unwrap_or_default(), tail.as_bytes()].concat())),
        Delete(space, key) => spaces[space].delete(key.as_bytes()).map(drop),
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
        Swap(space, key, expected, new) => spaces[space].compare_and_swap(key.as_bytes(), expected.map(str::as_bytes), new.map(str::as_bytes)).map(drop),
        Clear(space) => spaces[space].clear(),
    }
}

fn pool_options() -> PoolOptions {
    PoolOptions { size_max: MEMORY_SIZE, slab_size: SLAB_SIZE, ..PoolOptions::default() }
}

fn open(memory: &Arc<Memory>, medium: Crash) -> Result<(Store<Crash>, Vec<Namespace<Crash>>), Error> {
    on(Pool::open_in(memory.clone(), medium, pool_options())?)
}

fn on(pool: Arc<Pool<Crash>>) -> Result<(Store<Crash>, Vec<Namespace<Crash>>), Error> {
    let store = Store::on(pool, &Options { index: INDEX.into(), recovery_threads: 1, ..Options::default() })?;
    let spaces = SPACES.iter().map(|name| store.namespace(name)).collect::<Result<_, _>>()?;
    Ok((store, spaces))
}

/// What the store holds, by scans forward; scans in reverse, gets and counts must agree.
fn content(spaces: &[Namespace<Crash>]) -> Content {
    let mut content = Content::new();
    for (number, space) in spaces.iter().enumerate() {
        let collect = |direction| {
            let mut entries = Vec::new();
            let visit = |key: &[u8], value: &[u8]| {
                entries.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            space.scan(Bound::Unbounded, direction, visit).unwrap();
            entries
        };
        let forward = collect(Direction::Forward);
        let mut reverse = collect(Direction::Reverse);
        reverse.reverse();
        assert_eq!(forward, reverse);
        assert_eq!(space.count(), forward.len() as u64);
        for (key, value) in forward {
            assert_eq!(space.get(&key).unwrap().as_ref(), Some(&value));
            content.insert((number, key), value);
        }
    }
    content
}

/// Runs operations from one starting point and examines images.
struct Checker {
    memory: Arc<Memory>,
    ground: Crash,
    start: Content,
    life: CrashOptions,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    /// Images examined, with what was expected of them.
    seen: HashMap<(u64, u64), ()>,
    images: u64,
    nested: u64,
    failure: Option<String>,
}

impl Checker {
    /// Builds a store that holds `start`, closed or not, or not even created.
    fn new(start: Option<&[Operation]>, closed: bool, life: CrashOptions) -> Arc<Self> {
        let memory = Memory::new(MEMORY_SIZE).unwrap();
        let ground = Crash::new(&memory);
        let pool = Pool::create_in(memory.clone(), ground.clone(), pool_options()).unwrap();
        let mut content = Content::new();
        if let Some(operations) = start {
            let (store, spaces) = on(pool).unwrap();
            for operation in operations {
                apply(&store, &spaces, operation).unwrap();
                apply_to_content(&mut content, operation);
            }
            if closed {
                store.close().unwrap();
            }
        }
        Arc::new(Self { memory, ground, start: content, life, notes: Mutex::default() })
    }

    /// Runs `operations`, and examines every image of a crash in the last one; without any, of a crash while the store is opened.
    fn run(self: &Arc<Self>, operations: &[Operation]) {
        let life = self.ground.live(self.life.clone());
        let mut before = self.start.clone();
        let Some((last, earlier)) = operations.split_last() else {
            self.observe(&life, vec![before.clone()], 1);
            let (store, spaces) = open(&self.memory, life.medium()).unwrap();
            life.end();
            life.look_away();
            assert_eq!(content(&spaces), before);
            return drop((store, spaces));
        };
        let (store, spaces) = open(&self.memory, life.medium()).unwrap();
        for operation in earlier {
            apply(&store, &spaces, operation).unwrap();
            apply_to_content(&mut before, operation);
        }
        self.observe(&life, allowed_during(&before, last), 1);
        life.begin();
        apply(&store, &spaces, last).unwrap();
        apply_to_content(&mut before, last);
        // Acknowledged: from here on only the new state will do.
        self.observe(&life, vec![before.clone()], 1);
        life.end();
        life.look_away();
        assert_eq!(content(&spaces), before);
        let failure = self.notes.lock().failure.take();
        if let Some(failure) = failure {
            panic!("{operations:?}: {failure}");
        }
    }

    fn observe(self: &Arc<Self>, life: &Life, allowed: Vec<Content>, depth: u32) {
        let checker = self.clone();
        let allowed = Arc::new(allowed);
        life.observe(move |image| checker.examine(image, &allowed, depth));
    }

    fn examine(self: &Arc<Self>, image: &Image<'_>, allowed: &Arc<Vec<Content>>, depth: u32) -> Seen {
        let mut hasher = DefaultHasher::new();
        (&**allowed, depth).hash(&mut hasher);
        {
            let mut notes = self.notes.lock();
            if notes.failure.is_some() || notes.seen.insert((image.hash(), hasher.finish()), ()).is_some() {
                return Seen::default();
            }
            *(if depth == 1 { &mut notes.images } else { &mut notes.nested }) += 1;
        }
        let life = image.live(self.life.clone());
        if depth > 0 {
            self.observe(&life, allowed.to_vec(), depth - 1);
        }
        let second_life = depth > 0 && image.hash() % SECOND_LIFE_EVERY == 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.recover(&life, allowed, second_life)));
        let failure = match outcome {
            Ok(Ok(())) => return Seen::default(),
            Ok(Err(failure)) => failure,
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".into()),
        };
        self.notes.lock().failure.get_or_insert_with(|| format!("{failure}\nafter a crash (depth {depth}) at {image}"));
        Seen::default()
    }

    /// Recovers an image and looks at what is there.
    fn recover(self: &Arc<Self>, life: &Life, allowed: &[Content], second_life: bool) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        let (store, spaces) = open(&self.memory, life.medium()).map_err(text)?;
        if second_life {
            life.look_away()
        } else {
            life.unwatch()
        }
        let found = content(&spaces);
        if !allowed.contains(&found) {
            return Err(format!("found {found:?}, expected one of {allowed:?}"));
        }
        let report = store.verify().map_err(text)?;
        if !report.is_sound() {
            return Err(format!("{report:?}"));
        }
        drop((store, spaces));
        let (store, spaces) = open(&self.memory, life.medium()).map_err(text)?;
        let again = content(&spaces);
        if again != found {
            return Err(format!("found {found:?}, then, by a second recovery, {again:?}"));
        }
        let mut model = found;
        for operation in &AFTERWARDS {
            if second_life {
                self.observe(life, allowed_during(&model, operation), 0);
            }
            apply(&store, &spaces, operation).map_err(text)?;
            apply_to_content(&mut model, operation);
        }
        life.look_away();
        let worked = content(&spaces);
        if worked != model {
            return Err(format!("holds {worked:?} after some more operations instead of {model:?}"));
        }
        let report = store.verify().map_err(text)?;
        if !report.is_sound() {
            return Err(format!("after some more operations: {report:?}"));
        }
        Ok(())
    }
}

/// A store with a leaf that is about to split, and one with a few keys.
const FILLED: &[Operation] =
    &[PutMany(0, &[("a", "old"), ("aa", "1"), ("ab", "2"), ("b", "3")]), Write(&[(1, "b", Some("4")), (1, "c", Some("5")), (0, "a", Some("older"))])];

#[test]
fn a_crash_while_a_store_is_created_leaves_an_empty_store() {
    let checker = Checker::new(None, false, CrashOptions::default());
    checker.run(&[]);
    assert!(checker.notes.lock().failure.is_none());
    assert!(checker.notes.lock().images > 4);
}

#[test]
fn a_crash_during_any_write_leaves_all_or_nothing_of_it() {
    let (mut images, mut nested) = (0, 0);
    for (start, closed) in [(&[][..], false), (FILLED, false), (FILLED, true)] {
        let checker = Checker::new(Some(start), closed, CrashOptions::default());
        checker.run(&[]);
        for last in &OPERATIONS {
            checker.run(std::slice::from_ref(last));
            for first in &OPERATIONS {
                checker.run(&[first.clone(), last.clone()]);
            }
        }
        let notes = checker.notes.lock();
        (images, nested) = (images + notes.images, nested + notes.nested);
    }
    println!("{images} images of writes, {nested} of what came after them");
    assert!(images > 1_000 && nested > 1_000, "{images} images, {nested} of what came after them");
}

/// What two writes leave behind (splits, tombstones, slots used before, namespaces gone and back) is where the third one crashes. Of all threes every third:
/// each two of them meet, in every place.
#[test]
fn a_crash_in_the_last_of_three_writes_leaves_all_or_nothing_of_it() {
    let checker = Checker::new(Some(FILLED), false, CrashOptions::default());
    for (first, one) in OPERATIONS.iter().enumerate() {
        for (second, two) in OPERATIONS.iter().enumerate() {
            for (_, three) in OPERATIONS.iter().enumerate().filter(|(third, _)| (first + second + third).is_multiple_of(3)) {
                checker.run(&[one.clone(), two.clone(), three.clone()]);
            }
        }
    }
    let notes = checker.notes.lock();
    println!("{} images of third writes, {} of what came after them", notes.images, notes.nested);
    assert!(notes.images > 3_000 && notes.nested > 3_000, "{} images, {} of what came after them", notes.images, notes.nested);
}

#[test]
fn a_crash_where_caches_are_durable_leaves_all_or_nothing() {
    let checker = Checker::new(Some(FILLED), false, CrashOptions { stores_are_durable: true, ..CrashOptions::default() });
    OPERATIONS.iter().for_each(|operation| checker.run(std::slice::from_ref(operation)));
    assert!(checker.notes.lock().images > 100);
}

#[test]
fn what_nobody_reaches_does_not_matter_to_recovery() {
    let life = CrashOptions { hidden_in_full: true, ..CrashOptions::default() };
    let checker = Checker::new(Some(FILLED), false, life);
    for operation in [&OPERATIONS[0], &OPERATIONS[4], &OPERATIONS[6]] {
        checker.run(std::slice::from_ref(operation));
    }
    assert!(checker.notes.lock().images > 100);
}

/// The canary: a batch that skips one of its flushes or fences must be caught, or this file proves nothing.
///
/// Not each: a flush whose line a recovery repairs, or that stores what is there already, or that keeps a timestamp from being used twice, is missed by nobody
/// here; and a dropped fence only makes a later one do its work, which is harmless unless a commit stands between them.
#[test]
fn a_batch_that_skips_a_flush_or_a_fence_is_caught() {
    let batch = OPERATIONS[7].clone();
    let run = |life: CrashOptions| {
        let checker = Checker::new(Some(FILLED), false, life);
        let outcome = catch_unwind(AssertUnwindSafe(|| checker.run(std::slice::from_ref(&batch))));
        outcome.is_err()
    };
    let profile = Arc::new(Profile::default());
    assert!(!run(CrashOptions { profile: Some(profile.clone()), ..CrashOptions::default() }));
    let drops: Vec<_> = profile.sites().into_iter().filter(|(_, tally)| tally.acts().any(|act| act == Act::Drop)).map(|(site, _)| site).collect();
    for (verb, least) in [(Verb::Flush, 2), (Verb::Fence, 1)] {
        let sites: Vec<_> = drops.iter().filter(|site| site.verb == verb).collect();
        let caught = sites.iter().filter(|site| run(CrashOptions { fault: Some(Fault { site: ***site, act: Act::Drop }), ..CrashOptions::default() })).count();
        println!("caught {caught} of {} places with a {verb}", sites.len());
        assert!(caught * 4 >= sites.len() * least, "{caught} of {} places with a {verb} were caught", sites.len());
    }
}
