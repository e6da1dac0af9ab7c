//! The race suite: many threads on one index, and the guarantees that each of them relies on.
//!
//! - *Own keys*: each thread has a stripe of keys that no other thread changes. Every operation on them must return exactly what the thread's model says, and a
//!   scan must show exactly the model's entries, while all other threads split and merge the leaves they share.
//! - *Shared keys*: all threads set and remove these, and never use a payload twice. Each payload written must be returned exactly once, by the operation that
//!   replaced or removed it, or be present at the end: nothing is lost or invented. The writes of another thread that a thread sees at a key never go
//!   backwards.

use crate::subject::{Broken, Model};
use crate::{Class, Subject};
use everleaf_index::{Direction, Entry, Write};
use everleaf_pmem::{Hardware, Pool, PoolOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::Bound;

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of threads.
    pub threads: u32,
    /// Operations per thread.
    pub operations: u32,
    /// Keys per stripe.
    pub own_keys: u32,
    /// Keys shared by all threads; they lie between those of the stripes.
    pub shared_keys: u32,
    /// Seed of every choice. The operating system decides the schedule.
    pub seed: u64,
}

/// Runs the threads, then checks the index as a whole.
///
/// # Panics
/// If a rule does not hold; the message names it.
pub fn race<K: Class + ?Sized>(entry: &Entry<K, Hardware>, options: Options) {
    let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: if cfg!(miri) { 4 << 20 } else { 256 << 20 }, ..PoolOptions::default() })
        .expect("memory");
    let subject = Subject::create(entry, pool).expect("an empty pool");
    let told = |broken: Broken| format!("{}, {} keys, seed {:#x}: {broken}", entry.name, K::NAME, options.seed);
    let workers: Vec<Worker<'_, K>> = std::thread::scope(|scope| {
        let start = |number| {
            let mut worker = Worker::new(&subject, options, number);
            scope.spawn(move || worker.run().map(|()| worker))
        };
        let handles: Vec<_> = (0..options.threads).map(start).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic in a thread").unwrap_or_else(|broken| panic!("{}", told(broken)))).collect()
    });
    finish(&subject, &workers).unwrap_or_else(|broken| panic!("{}", told(broken)));
}

struct Worker<'a, K: Class + ?Sized> {
    subject: &'a Subject<K, Hardware>,
    options: Options,
    number: u32,
    random: StdRng,
    /// The keys that only this thread changes, with their payloads.
    own_keys: BTreeSet<K::Owned>,
    own: Model<K>,
    /// Payloads written to shared keys so far.
    written: u64,
    /// Payloads of shared keys that operations of this thread returned.
    given_back: Vec<u64>,
    /// The latest payload seen from each thread at each shared key.
    seen: HashMap<(u32, u64), u64>,
}

impl<'a, K: Class + ?Sized> Worker<'a, K> {
    fn new(subject: &'a Subject<K, Hardware>, options: Options, number: u32) -> Self {
        let random = StdRng::seed_from_u64(options.seed.wrapping_add(u64::from(number)));
        let mut worker = Self {
            subject,
            options,
            number,
            random,
            own_keys: BTreeSet::new(),
            own: Model::<K>::new(),
            written: 0,
            given_back: Vec::new(),
            seen: HashMap::new(),
        };
        worker.own_keys = (0..options.own_keys).map(|index| K::numbered(worker.own_key(index))).collect();
        worker
    }

    fn run(&mut self) -> Result<(), Broken> {
        for step in 0..self.options.operations {
            // Threads alternate between filling and draining, so that leaves split and merge while other threads use them.
            let growing = (step / self.options.own_keys + self.number).is_multiple_of(2);
            // A scan of many keys takes as long as a hundred changes.
            let scans = if self.options.own_keys < 100 { 4 } else { 1 };
            match self.random.random_range(0..40u32) {
                0..2 => self.many_own(growing)?,
                2..12 => self.change_shared()?,
                chosen if chosen < 12 + scans => self.scan()?,
                _ => self.change_own(growing)?,
            }
        }
        Ok(())
    }

    /// Stripes are interleaved, with a shared key after each round.
    fn own_key(&self, index: u32) -> u32 {
        1 + index * (self.options.threads + 1) + self.number
    }

    fn shared_key(&self, index: u32) -> u32 {
        1 + index * (self.options.threads + 1) + self.options.threads
    }

    fn change_own(&mut self, growing: bool) -> Result<(), Broken> {
        const RULE: &str = "operations on a key that only this thread changes return what it put there";
        let index = self.random.random_range(0..self.options.own_keys);
        let key = K::numbered(self.own_key(index));
        let payload = self.random.random_range(1..u64::MAX);
        let put = self.random.random_ratio(if growing { 4 } else { 1 }, 5);
        let (returned, expected) = match (self.random.random_range(0..4u32), put) {
            (0, _) => (self.subject.get(key.borrow()), self.own.get::<K>(key.borrow()).copied()),
            (_, true) => (self.subject.put(key.borrow(), payload), self.own.insert(key.clone(), payload)),
            (_, false) => (self.subject.remove(key.borrow()), self.own.remove::<K>(key.borrow())),
        };
        let returned = returned.map_err(Broken::by(RULE))?;
        if returned == expected { Ok(()) } else { Err(Broken::new(RULE, format_args!("{key:?}: {returned:?} instead of {expected:?}"))) }
    }

    /// Sets and removes a run of this thread's keys together, or looks them up.
    fn many_own(&mut self, growing: bool) -> Result<(), Broken> {
        const RULE: &str = "operations on keys that only this thread changes return what it put there";
        let first = self.random.random_range(0..self.options.own_keys);
        let count = self.random.random_range(1..=70).min(self.options.own_keys - first);
        let keys: Vec<_> = (first..first + count).map(|index| K::numbered(self.own_key(index))).collect();
        let (returned, expected): (_, Vec<_>) = if self.random.random() {
            let payload = NonZeroU64::new(self.random.random_range(1..u64::MAX)).expect("from 1 on");
            let puts = if growing { 4 } else { 1 };
            let writes: Vec<_> =
                keys.iter().map(|key| (key.clone(), if self.random.random_ratio(puts, 5) { Write::Upsert(payload) } else { Write::Remove })).collect();
            let returned = self.subject.write_many(&writes);
            let own = |(key, write): (K::Owned, Write)| match write {
                Write::Remove => self.own.remove::<K>(key.borrow()),
                _ => self.own.insert(key, payload.get()),
            };
            (returned, writes.into_iter().map(own).collect())
        } else {
            (self.subject.get_many(&keys), keys.iter().map(|key| self.own.get::<K>(key.borrow()).copied()).collect())
        };
        let returned = returned.map_err(Broken::by(RULE))?;
        if returned == expected { Ok(()) } else { Err(Broken::new(RULE, format_args!("{keys:?}: {returned:?} instead of {expected:?}"))) }
    }

    fn change_shared(&mut self) -> Result<(), Broken> {
        const RULE: &str = "operations on shared keys succeed";
        let number = self.random.random_range(0..self.options.shared_keys);
        let key = K::numbered(self.shared_key(number));
        match self.random.random_range(0..4u32) {
            0 | 1 => {
                self.written += 1;
                let payload = u64::from(self.number + 1) << 32 | self.written;
                let before = self.subject.upsert(key.borrow(), payload).map_err(Broken::by(RULE))?;
                self.see(number, Some(payload))?;
                self.given_back.extend(before);
            }
            2 => {
                let before = self.subject.remove(key.borrow()).map_err(Broken::by(RULE))?;
                self.given_back.extend(before);
            }
            _ => {
                let found = self.subject.get(key.borrow()).map_err(Broken::by(RULE))?;
                self.see(number, found)?;
            }
        }
        Ok(())
    }

    /// Notes a payload seen at a shared key.
    fn see(&mut self, key: u32, payload: Option<u64>) -> Result<(), Broken> {
        let Some(payload) = payload else { return Ok(()) };
        let latest = self.seen.entry((key, payload >> 32)).or_default();
        if payload < *latest {
            return Err(Broken::new("what is seen of a thread's writes to a key never goes back", format_args!("{payload:#x} after {latest:#x}")));
        }
        *latest = payload;
        Ok(())
    }

    fn scan(&mut self) -> Result<(), Broken> {
        const RULE: &str = "a scan is in order and shows exactly this thread's keys";
        let from = K::numbered(self.random.random_range(0..=self.own_key(self.options.own_keys)));
        let direction = if self.random.random() { Direction::Forward } else { Direction::Reverse };
        let limit = self.random.random_range(1..=4 * self.options.own_keys as usize);
        let found = self.subject.scan(Bound::Included(from.borrow()), direction, limit).map_err(Broken::by(RULE))?;
        let in_order = |pair: &[(K::Owned, u64)]| if direction == Direction::Forward { pair[0].0 < pair[1].0 } else { pair[0].0 > pair[1].0 };
        if !found.windows(2).all(in_order) {
            return Err(Broken::new(RULE, format_args!("{direction:?}: {found:?}")));
        }
        // The last key that the scan reached, or none if it reached the end.
        let end = if found.len() == limit { found.last().map(|(key, _)| key.clone()) } else { None };
        let within = |key: &K::Owned| match direction {
            Direction::Forward => *key >= from && end.as_ref().is_none_or(|end| key <= end),
            Direction::Reverse => *key <= from && end.as_ref().is_none_or(|end| key >= end),
        };
        let mut expected: Vec<_> = self.own.iter().filter(|(key, _)| within(key)).collect();
        if direction == Direction::Reverse {
            expected.reverse();
        }
        let own = found.iter().filter(|(key, _)| self.own_keys.contains::<K>(key.borrow())).map(|(key, payload)| (key, payload));
        if own.clone().eq(expected.iter().copied()) {
            return Ok(());
        }
        Err(Broken::new(RULE, format_args!("{direction:?} from {from:?}: {:?} instead of {expected:?}", own.collect::<Vec<_>>())))
    }
}

/// Checks the index as a whole, after all threads are done.
fn finish<K: Class + ?Sized>(subject: &Subject<K, Hardware>, workers: &[Worker<'_, K>]) -> Result<(), Broken> {
    let options = workers[0].options;
    let content = subject.content(usize::MAX)?;
    let mut own: Model<K> = workers.iter().flat_map(|worker| worker.own.clone()).collect();
    let mut shared = Vec::new();
    for (key, payload) in content {
        match own.remove::<K>(key.borrow()) {
            Some(expected) if expected == payload => {}
            Some(expected) => return Err(Broken::new("every thread's keys are there", format_args!("{key:?}: {payload} instead of {expected}"))),
            None => shared.push(payload),
        }
    }
    if let Some(missing) = own.first_key_value() {
        return Err(Broken::new("every thread's keys are there", format_args!("{missing:?} is missing")));
    }
    let mut ended: Vec<u64> = workers.iter().flat_map(|worker| worker.given_back.iter().copied()).chain(shared).collect();
    ended.sort_unstable();
    let mut written: Vec<u64> =
        (1..=u64::from(options.threads)).flat_map(|thread| (1..=workers[thread as usize - 1].written).map(move |count| thread << 32 | count)).collect();
    written.sort_unstable();
    if ended != written {
        let differs = ended.iter().zip(&written).find(|(ended, written)| ended != written);
        return Err(Broken::new(
            "each payload written to a shared key is given back once, or is there",
            format_args!("{} written, {} ended; first difference {differs:x?}", written.len(), ended.len()),
        ));
    }
    subject.audit()
}
