//! The corruption suite: whatever a damaged pool contains, every call ends, with an error or with what the pool now says. It never panics, loops endlessly, or
//! shows undefined behaviour.
//!
//! Some damage goes **unnoticed**: the format has no checksum on entries of eight-byte keys and values. A flipped bit in the value of a `u64` index yields
//! another value. A flipped bit in a head yields another key, if the keys stay in order ([`everleaf_index::OrderedIndex::check`] sees only contradictions).
//! Byte strings are safer: a value word is a link with check bits, a checksum seals a record, and a head must match its record. So a byte string that is found
//! has the value that was written, but a damaged head may hide a key from lookups until `check` runs. A damaged counter of a leaf line may look like a crash.
//! This changes nothing that is found, and a write to a line that was not counted anew is refused. Words that say which entries of a leaf count have check
//! bits, as far as there is room. They detect damage to a byte, but not a word that is 0 or was copied from elsewhere. Media that flip bits need a layer below
//! that corrects or reports errors, as persistent-memory modules and DRAM with ECC have.

use crate::Class;
use crate::subject::{Broken, Content, Subject};
use everleaf_index::{Direction, Entry};
use everleaf_pmem::{Crash, CrashOptions, Memory, Pool, PoolOptions};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use std::borrow::Borrow;
use std::fmt;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How the trials ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Opening failed.
    pub refused: u32,
    /// The pool opened, but an operation or the check failed.
    pub noticed: u32,
    /// Everything passed, and the content is unchanged.
    pub harmless: u32,
    /// Everything passed, but the content differs.
    pub unnoticed: u32,
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, noticed, harmless, unnoticed } = self;
        write!(f, "{refused} refused, {noticed} noticed, {harmless} harmless, {unnoticed} unnoticed")
    }
}

const MEMORY: usize = 256 << 10;
/// A trial that takes longer counts as endless.
const PATIENCE: Duration = Duration::from_secs(60);

/// Damages pools of `keys` keys in `trials` ways, each with its own seed, and uses them.
///
/// # Panics
/// With the seed of the trial that panics, does not end, or finds, for a byte string, a payload that was never written to it.
pub fn corruption<K: Class + ?Sized>(entry: Entry<K, Crash>, keys: u32, trials: u64) -> Outcomes {
    let name = entry.name;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let victim = Victim::new(entry, keys);
        for seed in 0..trials {
            let outcome = catch_unwind(AssertUnwindSafe(|| victim.trial(seed)));
            if sender.send((seed, outcome.unwrap_or_else(|_| Err(Broken::new("no panic", "see above"))))).is_err() {
                return;
            }
        }
    });
    let mut outcomes = Outcomes::default();
    for seed in 0..trials {
        let (seed, outcome) = receiver.recv_timeout(PATIENCE).unwrap_or((seed, Err(Broken::new("bounded steps", "this does not end"))));
        match outcome {
            Ok(outcome) => outcomes.add(outcome),
            Err(broken) => panic!("{name}, {} keys, damage of seed {seed}: {broken}", K::NAME),
        }
    }
    outcomes
}

impl Outcomes {
    fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.noticed += other.noticed;
        self.harmless += other.harmless;
        self.unnoticed += other.unnoticed;
    }
}

/// A closed pool that is damaged repeatedly.
struct Victim<K: Class + ?Sized> {
    entry: Entry<K, Crash>,
    memory: Arc<Memory>,
    ground: Crash,
    content: Content<K>,
    /// Numbers of the words that are not zero. Damage to other words has no effect.
    used: Vec<usize>,
}

fn pool_options() -> PoolOptions {
    PoolOptions { size_max: MEMORY, slab_size: 4 << 10, ..PoolOptions::default() }
}

impl<K: Class + ?Sized> Victim<K> {
    fn new(entry: Entry<K, Crash>, keys: u32) -> Self {
        let memory = Memory::new(MEMORY).expect("memory");
        let ground = Crash::new(&memory);
        let pool = Pool::create_in(Arc::clone(&memory), ground.clone(), pool_options()).expect("zeroed memory");
        let subject = Subject::create(&entry, pool).expect("an empty pool");
        for number in 0..keys {
            subject.upsert(K::numbered(number).borrow(), payload(number)).expect("a pool with room");
        }
        let content = subject.content(usize::MAX).expect("what was just written");
        subject.close().expect("an open pool");
        let used = memory.words().iter().enumerate().filter(|(_, word)| word.load(Ordering::Relaxed) != 0).map(|(at, _)| at).collect();
        Self { entry, memory, ground, content, used }
    }

    fn trial(&self, seed: u64) -> Result<Outcomes, Broken> {
        let mut random = StdRng::seed_from_u64(seed);
        let undamaged: Vec<(usize, u64)> = self.damage(&mut random);
        let outcome = {
            let life = self.ground.live(CrashOptions { stores_max: 1 << 20, ..CrashOptions::default() });
            life.unwatch();
            self.use_it(life.medium(), &mut random)
        };
        for (at, value) in undamaged {
            self.memory.words()[at].store(value, Ordering::Relaxed);
        }
        outcome
    }

    /// Flips a bit, or overwrites a word with another word of the pool, or a line with random data or zeroes. Returns the old content.
    fn damage(&self, random: &mut StdRng) -> Vec<(usize, u64)> {
        let words = self.memory.words();
        let mut undamaged = Vec::new();
        for _ in 0..random.random_range(1..4) {
            let at = *self.used.iter().choose(random).expect("a pool is not empty");
            let other = words[*self.used.iter().choose(random).expect("a pool is not empty")].load(Ordering::Relaxed);
            let range = if random.random_ratio(1, 4) { at & !7..(at & !7) + 8 } else { at..at + 1 };
            let kind = random.random_range(0..4);
            for at in range {
                let old = words[at].load(Ordering::Relaxed);
                undamaged.push((at, old));
                let new = match kind {
                    0 => old ^ 1 << random.random_range(0..64),
                    1 => other,
                    2 => 0,
                    _ => random.random(),
                };
                words[at].store(new, Ordering::Relaxed);
            }
        }
        undamaged.reverse();
        undamaged
    }

    fn use_it(&self, medium: Crash, random: &mut StdRng) -> Result<Outcomes, Broken> {
        let opened = Pool::open_in(Arc::clone(&self.memory), medium, pool_options()).map_err(everleaf_index::Error::from);
        let Ok(subject) = opened.and_then(|pool| Subject::open(&self.entry, pool, 1)) else {
            return Ok(Outcomes { refused: 1, ..Outcomes::default() });
        };
        let limit = MEMORY / 16;
        let mut noticed = false;
        for direction in [Direction::Forward, Direction::Reverse] {
            match subject.scan(Bound::Unbounded, direction, limit) {
                Ok(found) if found.len() == limit => return Err(Broken::new("bounded steps", "a scan without an end")),
                Ok(found) => self.believe(&found)?,
                Err(_) => noticed = true,
            }
        }
        for (key, _) in &self.content {
            match subject.get(key.borrow()) {
                Ok(Some(payload)) => self.believe(&vec![(key.clone(), payload)])?,
                Ok(None) => {}
                Err(_) => noticed = true,
            }
        }
        let content = subject.content(limit);
        noticed |= content.is_err() || subject.audit().is_err();
        let outcome = match content {
            _ if noticed => Outcomes { noticed: 1, ..Outcomes::default() },
            Ok(content) if content == self.content => Outcomes { harmless: 1, ..Outcomes::default() },
            _ => Outcomes { unnoticed: 1, ..Outcomes::default() },
        };
        // Later writes succeed or fail.
        for _ in 0..40 {
            let number = random.random_range(0..self.content.len() as u32 * 2);
            let key = K::numbered(number);
            let _ = if random.random() { subject.put(key.borrow(), payload(number)) } else { subject.remove(key.borrow()) };
        }
        Ok(outcome)
    }

    /// The seal of a byte string that is found holds, so its value must be one that was written.
    fn believe(&self, found: &Content<K>) -> Result<(), Broken> {
        if K::WHOLE {
            return Ok(());
        }
        match found.iter().find(|entry| self.content.binary_search(entry).is_err()) {
            Some(entry) => Err(Broken::new("a record that is found is what was written", format_args!("{entry:?}"))),
            None => Ok(()),
        }
    }
}

fn payload(number: u32) -> u64 {
    u64::from(number) + 1000
}
