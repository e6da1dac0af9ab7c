//! The model suite: proptest generates and shrinks sequences of all operations and compares the index with `BTreeMap`.

use crate::subject::{Broken, Content, Model};
use crate::{Class, Subject};
use everleaf_index::{Direction, Entry, FILL, Write};
use everleaf_pmem::{Hardware, Memory, Pool, PoolOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of sequences.
    pub sequences: u32,
    /// Longest sequence.
    pub steps: usize,
    /// Seed of every choice.
    pub seed: u64,
}

/// One operation, on a key of any kind.
#[derive(Clone, Debug)]
enum Step<O> {
    Get(O),
    Insert(O, u64),
    Upsert(O, u64),
    Update(O, u64),
    Remove(O),
    Scan(Bound<O>, Direction, usize),
    /// Looks up many neighbouring keys together.
    GetMany(u32, u32),
    /// Makes several writes together.
    Many(Vec<(O, Write)>),
    /// Inserts many keys together, so that nodes split.
    Fill(u32, u32, u64),
    /// Removes them, together or one by one, so that nodes merge.
    Drain(u32, u32, bool),
    Check,
    /// Closes the pool, or only drops it, and opens it again.
    Reopen {
        close: bool,
        threads: usize,
    },
}

/// Writes that carry payloads: of all kinds, or of one.
fn any_writes<K: Class + ?Sized>() -> impl Strategy<Value = Vec<(K::Owned, Write)>> {
    let write = || {
        let payload = || (1..u64::MAX).prop_map(|payload| NonZeroU64::new(payload).expect("from 1 on"));
        prop_oneof![payload().prop_map(Write::Insert), payload().prop_map(Write::Upsert), payload().prop_map(Write::Update), Just(Write::Remove)]
    };
    let mixed = prop::collection::vec((K::any(), write()), 1..80);
    let alike = (prop::collection::vec(K::any(), 1..80), write()).prop_map(|(keys, write)| keys.into_iter().map(|key| (key, write)).collect());
    prop_oneof![mixed, alike]
}

fn any_step<K: Class + ?Sized>() -> impl Strategy<Value = Step<K::Owned>> {
    let payload = || 1..u64::MAX;
    let bound = prop_oneof![1 => Just(Bound::Unbounded), 2 => K::any().prop_map(Bound::Included), 2 => K::any().prop_map(Bound::Excluded)];
    let direction = prop_oneof![Just(Direction::Forward), Just(Direction::Reverse)];
    let range = || (0..2000u32, 1..200u32);
    prop_oneof![
        6 => K::any().prop_map(Step::Get),
        8 => (K::any(), payload()).prop_map(|(key, payload)| Step::Insert(key, payload)),
        8 => (K::any(), payload()).prop_map(|(key, payload)| Step::Upsert(key, payload)),
        6 => (K::any(), payload()).prop_map(|(key, payload)| Step::Update(key, payload)),
        8 => K::any().prop_map(Step::Remove),
        6 => (bound, direction, 0..40usize).prop_map(|(from, direction, limit)| Step::Scan(from, direction, limit)),
        2 => range().prop_map(|(first, count)| Step::GetMany(first, count)),
        2 => (range(), payload()).prop_map(|((first, count), payload)| Step::Fill(first, count, payload)),
        2 => (range(), any::<bool>()).prop_map(|((first, count), together)| Step::Drain(first, count, together)),
        2 => any_writes::<K>().prop_map(Step::Many),
        1 => Just(Step::Check),
        1 => (any::<bool>(), 1..4usize).prop_map(|(close, threads)| Step::Reopen { close, threads }),
    ]
}

/// Runs `options.sequences` sequences on an index, half of which begin with a bulk load.
///
/// # Panics
/// With the seed and the shortest sequence found on which the index and the model differ.
pub fn model<K: Class + ?Sized>(entry: &Entry<K, Hardware>, options: Options) {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&options.seed.to_le_bytes());
    let config = Config { cases: options.sequences, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let loaded = prop_oneof![1 => Just(Vec::new()), 1 => prop::collection::vec((K::any(), 1..u64::MAX), 0..300)];
    let fill = prop_oneof![Just(FILL), Just(1.0), 0.0..1.0];
    let steps = prop::collection::vec(any_step::<K>(), 1..options.steps);
    let result =
        runner.run(&(loaded, fill, steps), |(loaded, fill, steps)| run(entry, loaded, fill, steps).map_err(|broken| TestCaseError::fail(broken.to_string())));
    if let Err(error) = result {
        panic!("{}, {} keys, seed {:#x}: {error}", entry.name, K::NAME, options.seed);
    }
}

struct Run<'a, K: Class + ?Sized> {
    entry: &'a Entry<K, Hardware>,
    memory: Arc<Memory>,
    subject: Option<Subject<K, Hardware>>,
    model: Model<K>,
}

fn pool_options(memory: &Memory) -> PoolOptions {
    PoolOptions { size_max: memory.size(), ..PoolOptions::default() }
}

fn run<K: Class + ?Sized>(entry: &Entry<K, Hardware>, loaded: Vec<(K::Owned, u64)>, fill: f64, steps: Vec<Step<K::Owned>>) -> Result<(), Broken> {
    const RULE: &str = "an operation succeeds";
    let memory = Memory::new(if cfg!(miri) { 4 << 20 } else { 32 << 20 }).map_err(Broken::by(RULE))?;
    let pool = Pool::create_in(Arc::clone(&memory), Hardware::page_cache(), pool_options(&memory)).map_err(Broken::by(RULE))?;
    let subject = Subject::create(entry, pool).map_err(Broken::by(RULE))?;
    let mut run = Run { entry, memory, subject: Some(subject), model: loaded.into_iter().collect() };
    run.load(fill).map_err(Broken::by(RULE))?;
    for step in steps {
        run.step(step)?;
    }
    run.check()
}

/// Applies a write that carries a payload to the model, and returns what the index must return.
fn write_to_model<K: Class + ?Sized>(model: &mut Model<K>, key: K::Owned, write: Write) -> Option<u64> {
    let present = model.get::<K>(key.borrow()).copied();
    match (write, present) {
        (Write::Insert(payload), None) | (Write::Upsert(payload), _) | (Write::Update(payload), Some(_)) => drop(model.insert(key, payload.get())),
        (Write::Remove, _) => drop(model.remove::<K>(key.borrow())),
        (Write::Insert(_), Some(_)) | (Write::Update(_), None) => {}
    }
    present
}

impl<K: Class + ?Sized> Run<'_, K> {
    fn subject(&self) -> &Subject<K, Hardware> {
        self.subject.as_ref().expect("open between steps")
    }

    fn load(&self, fill: f64) -> Result<(), everleaf_index::Error> {
        let subject = self.subject();
        let mut values: Vec<(K::Owned, NonZeroU64)> = Vec::new();
        for (key, payload) in &self.model {
            values.push((key.clone(), K::value(&subject.pool, key.borrow(), *payload)?));
        }
        subject.index.bulk_load(&mut values.into_iter(), fill)
    }

    fn step(&mut self, step: Step<K::Owned>) -> Result<(), Broken> {
        let subject = self.subject.as_ref().expect("open between steps");
        let model = &mut self.model;
        let told = format!("{step:?}");
        let (returned, expected) = match step {
            Step::Get(key) => (subject.get(key.borrow()), model.get::<K>(key.borrow()).copied()),
            Step::Insert(key, payload) => {
                let present = model.get::<K>(key.borrow()).copied();
                let returned = subject.insert(key.borrow(), payload);
                model.entry(key).or_insert(payload);
                (returned, present)
            }
            Step::Upsert(key, payload) => (subject.upsert(key.borrow(), payload), model.insert(key, payload)),
            Step::Update(key, payload) => {
                let returned = subject.update(key.borrow(), payload);
                (returned, model.get_mut::<K>(key.borrow()).map(|present| std::mem::replace(present, payload)))
            }
            Step::Remove(key) => (subject.remove(key.borrow()), model.remove::<K>(key.borrow())),
            Step::Scan(from, direction, limit) => return self.scan(from, direction, limit),
            Step::GetMany(first, count) => {
                let keys: Vec<_> = (first..first + count).map(K::numbered).collect();
                let returned = subject.get_many(&keys).map_err(Broken::by("an operation succeeds"))?;
                let expected: Vec<_> = keys.iter().map(|key| model.get::<K>(key.borrow()).copied()).collect();
                return same(&told, returned, expected);
            }
            Step::Many(writes) => {
                let returned = subject.write_many(&writes).map_err(Broken::by("an operation succeeds"))?;
                let expected: Vec<_> = writes.into_iter().map(|(key, write)| write_to_model::<K>(model, key, write)).collect();
                return same(&told, returned, expected);
            }
            Step::Fill(first, count, payload) => {
                let write = Write::Upsert(NonZeroU64::new(payload).expect("payloads begin with 1"));
                let writes: Vec<_> = (first..first + count).map(|number| (K::numbered(number), write)).collect();
                let returned = subject.write_many(&writes).map_err(Broken::by("an operation succeeds"))?;
                let expected: Vec<_> = writes.into_iter().map(|(key, _)| model.insert(key, payload)).collect();
                return same(&told, returned, expected);
            }
            Step::Drain(first, count, together) => {
                let writes: Vec<_> = (first..first + count).map(|number| (K::numbered(number), Write::Remove)).collect();
                let returned = if together { subject.write_many(&writes) } else { writes.iter().map(|(key, _)| subject.remove(key.borrow())).collect() };
                let expected: Vec<_> = writes.iter().map(|(key, _)| model.remove::<K>(key.borrow())).collect();
                return same(&told, returned.map_err(Broken::by("an operation succeeds"))?, expected);
            }
            Step::Check => return self.check(),
            Step::Reopen { close, threads } => return self.reopen(close, threads),
        };
        same(&told, returned.map_err(Broken::by("an operation succeeds"))?, expected)
    }

    fn scan(&self, from: Bound<K::Owned>, direction: Direction, limit: usize) -> Result<(), Broken> {
        let from = from.as_ref().map(|key| key.borrow());
        let found = self.subject().scan(from, direction, limit).map_err(Broken::by("a scan succeeds"))?;
        let entry = |(key, payload): (&K::Owned, &u64)| (key.clone(), *payload);
        let expected: Content<K> = match direction {
            Direction::Forward => self.model.range::<K, _>((from, Bound::Unbounded)).take(limit).map(entry).collect(),
            Direction::Reverse => self.model.range::<K, _>((Bound::Unbounded, from)).rev().take(limit).map(entry).collect(),
        };
        if found == expected {
            return Ok(());
        }
        let from = from.map(|key| key.to_owned());
        Err(Broken::new("a scan finds what the model holds", format_args!("{direction:?} from {from:?}: {found:?} instead of {expected:?}")))
    }

    fn check(&self) -> Result<(), Broken> {
        let content = self.subject().content(self.model.len() + 1)?;
        if !content.iter().map(|(key, payload)| (key, payload)).eq(&self.model) {
            return Err(Broken::new("the index holds what the model holds", format_args!("{content:?} instead of {:?}", self.model)));
        }
        let stats = self.subject().index.stats();
        if stats.keys != self.model.len() as u64 {
            return Err(Broken::new("stats count the keys", format_args!("{stats:?} for {} keys", self.model.len())));
        }
        self.subject().audit()
    }

    fn reopen(&mut self, close: bool, threads: usize) -> Result<(), Broken> {
        const RULE: &str = "closing and opening succeed";
        if !self.entry.persistent {
            return Ok(());
        }
        let Some(subject) = self.subject.take() else { return Ok(()) };
        if close {
            subject.close().map_err(Broken::by(RULE))?;
        } else {
            drop(subject);
        }
        let pool = Pool::open_in(Arc::clone(&self.memory), Hardware::page_cache(), pool_options(&self.memory)).map_err(Broken::by(RULE))?;
        self.subject = Some(Subject::open(self.entry, pool, threads).map_err(Broken::by(RULE))?);
        self.check()
    }
}

fn same<T: PartialEq + std::fmt::Debug>(step: &str, returned: T, expected: T) -> Result<(), Broken> {
    if returned == expected {
        Ok(())
    } else {
        Err(Broken::new("an operation returns what was there", format_args!("{step}: {returned:?} instead of {expected:?}")))
    }
}
