//! The store under test: single writes, swaps, merges, batches, transactions, scans, cursors and snapshots; occasionally a namespace is cleared or loaded, or
//! everything is relocated.

use super::history::{Operation, Returned};
use super::target::{Index, Mood, Target, World};
use crate::crash::times;
use crate::{Broken, Class};
use everleaf::{Act, Batch, Cursor, Error, Evacuation, Isolation, Merge, Namespace, Options, Store as Everleaf, Transaction};
use everleaf_index::Direction;
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The store, on one index.
pub struct Store {
    /// Name of the index.
    pub index: &'static str,
}

/// An open store, and a namespace of it.
pub struct Live {
    store: Everleaf<Crash>,
    space: Namespace<Crash>,
}

impl Store {
    fn on(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Live, Broken> {
        let options = Options { index: self.index.to_owned(), recovery_threads: threads, times, ..Options::default() };
        let open = || {
            let store = Everleaf::on(pool, &options)?;
            let space = store.namespace("space")?;
            Ok::<_, everleaf::Error>(Live { store, space })
        };
        open().map_err(Broken::by("opening after a crash succeeds"))
    }
}

fn key(world: &World, register: usize) -> Vec<u8> {
    <[u8]>::numbered(world.keys[register])
}

fn value(payload: u64) -> Option<Vec<u8>> {
    (payload != 0).then(|| payload.to_le_bytes().to_vec())
}

fn payload(value: &[u8]) -> Result<u64, Broken> {
    let bytes = value.try_into().map_err(|_| Broken::new("a value is what was put", format_args!("{value:?}")))?;
    Ok(u64::from_le_bytes(bytes))
}

const RULE: &str = "an operation succeeds";

/// Entries of a walk between two pauses.
const ENTRIES_AT_ONCE: usize = 3;

impl Live {
    fn entries(&self, world: &World, direction: Direction) -> Result<Vec<(usize, u64)>, Broken> {
        let mut found = Vec::new();
        let visit = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        self.space.scan(Bound::Unbounded, direction, visit).map_err(Broken::by(RULE))?;
        registers_of(world, direction, found)
    }

    /// All entries, a few at a time.
    fn walk(&self, world: &World, direction: Direction) -> Result<Vec<(usize, u64)>, Broken> {
        let mut found = Vec::new();
        let mut cursor = Cursor::new(Bound::Unbounded, direction);
        while !cursor.is_over() {
            let end = found.len() + ENTRIES_AT_ONCE;
            let visit = |key: &[u8], value: &[u8]| {
                found.push((key.to_vec(), value.to_vec()));
                if found.len() == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            self.space.walk(&mut cursor, visit).map_err(Broken::by(RULE))?;
        }
        registers_of(world, direction, found)
    }

    /// Changes a register to a value by a merge, and returns the previous value.
    fn merge(&self, key: &[u8], to: u64) -> Result<u64, Error> {
        let was = Arc::new(AtomicU64::new(0));
        let seen = was.clone();
        let operator = move |old: Option<&[u8]>| {
            let old = old.map_or(Ok(0), |old| payload(old).map_err(|broken| format!("{broken:?}")))?;
            // Only the last call counts.
            seen.store(old, Ordering::Relaxed);
            Ok(value(to))
        };
        self.space.merge(key, &Merge::With(Arc::new(operator)))?;
        Ok(was.load(Ordering::Relaxed))
    }

    /// Sets registers if all are absent, and returns whether it did.
    fn load(&self, world: &World, (from, to): (usize, usize), payload: u64) -> Result<bool, Error> {
        match self.space.load((from..to).map(|register| (key(world, register), payload.to_le_bytes().to_vec()))) {
            Ok(_) => Ok(true),
            Err(Error::Index(error)) if matches!(error.cause(), everleaf_index::Cause::NotEmpty { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All entries of a snapshot. A second reading, key by key, must return the same.
    fn look(&self, world: &World, direction: Direction) -> Result<Vec<(usize, u64)>, Broken> {
        let failed = || Broken::by(RULE);
        let snapshot = self.store.snapshot().map_err(failed())?;
        let mut entries = Vec::new();
        for register in 0..world.keys.len() {
            if let Some(value) = snapshot.get(&self.space, &key(world, register)).map_err(failed())? {
                entries.push((register, payload(&value)?));
            }
        }
        if direction == Direction::Reverse {
            entries.reverse();
        }
        let mut found = Vec::new();
        let visit = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        snapshot.scan(&self.space, Bound::Unbounded, direction, visit).map_err(failed())?;
        let scanned = registers_of(world, direction, found)?;
        match scanned == entries {
            true => Ok(entries),
            false => Err(Broken::new("a snapshot shows the same twice", format_args!("{entries:?}, then {scanned:?}"))),
        }
    }

    /// Reads some registers and sets others in a serializable transaction. Returns what it has read, and whether it was committed. Consecutive registers are
    /// read by a scan. After a savepoint all registers are set to a value that no call writes, and rolled back.
    fn transact(&self, world: &World, reads: &[usize], changes: &[(usize, u64)]) -> Result<(Vec<u64>, bool), Error> {
        let mut transaction = self.store.begin(Isolation::Serializable)?;
        let mut found = Vec::new();
        match reads {
            [first, .., last] if reads.windows(2).all(|pair| pair[0] + 1 == pair[1]) => {
                found.resize(reads.len(), 0);
                let visit = |key_found: &[u8], value: &[u8]| {
                    // A key that was not asked for counts as the first: its value does not fit there.
                    let place = reads.iter().position(|register| key(world, *register) == key_found).unwrap_or(0);
                    found[place] = payload(value).unwrap_or(u64::MAX);
                    ControlFlow::Continue(())
                };
                let (low, high) = (key(world, *first), key(world, *last));
                let mut cursor = Cursor::new(Bound::Included(&low), Direction::Forward).until(Bound::Included(&high));
                transaction.walk(&self.space, &mut cursor, visit)?;
            }
            _ => {
                for register in reads {
                    let value = transaction.get(&self.space, &key(world, *register))?;
                    found.push(value.map_or(0, |value| payload(&value).unwrap_or(u64::MAX)));
                }
            }
        }
        let set = |transaction: &mut Transaction<Crash>, (register, to): (usize, u64)| match value(to) {
            Some(value) => transaction.put(&self.space, &key(world, register), &value),
            None => transaction.delete(&self.space, &key(world, register)).map(drop),
        };
        let (before, after) = changes.split_at(changes.len() / 2);
        before.iter().try_for_each(|change| set(&mut transaction, *change))?;
        let savepoint = transaction.savepoint();
        // No thread may see this.
        changes.iter().try_for_each(|(register, _)| set(&mut transaction, (*register, u64::MAX)))?;
        transaction.rollback_to(&savepoint);
        transaction.release(savepoint);
        after.iter().try_for_each(|change| set(&mut transaction, *change))?;
        match transaction.commit() {
            Ok(()) => Ok((found, true)),
            Err(Error::Conflict { .. }) => Ok((found, false)),
            Err(error) => Err(error),
        }
    }

    /// Removes a key, checks that a watcher learns of it, and returns whether the key was there. If not, it may have come and gone since the snapshot.
    fn remove_watched(&self, key: &[u8]) -> Result<bool, Failure> {
        let before = self.store.snapshot()?;
        let was_there = self.space.delete(key)?;
        if was_there && self.store.begin(Isolation::Serializable)?.is_unchanged_since(&before, &self.space, key)? {
            return Err(Broken::new("who watches a key learns that it has changed", format_args!("{key:?} was removed")).into());
        }
        Ok(was_there)
    }

    /// Reads and sets registers, until another thread loads.
    fn act(&self, world: &World, acts: &[(usize, Option<u64>)]) -> Result<Returned, Failure> {
        let acts: Vec<_> = acts.iter().map(|(register, to)| (key(world, *register), to.map(value))).collect();
        fn act((key, to): &(Vec<u8>, Option<Option<Vec<u8>>>)) -> (&[u8], Act<'_>) {
            match to {
                None => (key.as_slice(), Act::Get),
                Some(to) => (key.as_slice(), to.as_deref().map_or(Act::Delete, Act::Put)),
            }
        }
        let acts: Vec<_> = acts.iter().map(act).collect();
        let (mut found, mut values) = (Vec::new(), vec![Vec::new(); acts.len()]);
        let outcome = self.space.act_many(&acts, &mut found, |number, met| {
            values[number].clear();
            met.map_or(Ok(0), |met| met.copy_to(&mut values[number])).map(|_| ControlFlow::Continue(()))
        });
        if !matches!(outcome, Err(Error::Loading { .. })) {
            outcome?;
        }
        let mut were = Vec::new();
        for ((found, value), (_, act)) in found.into_iter().zip(&values).zip(&acts) {
            let found = found?;
            were.push(if found && *act == Act::Get { payload(value)? } else { found.into() });
        }
        Ok(Returned::Were(were))
    }

    /// Does it.
    fn try_apply(&self, world: &World, operation: &Operation) -> Result<Returned, Failure> {
        Ok(match operation {
            Operation::Get(register) => match self.space.get(&key(world, *register))? {
                Some(value) => Returned::Was(payload(&value)?),
                None => Returned::Was(0),
            },
            Operation::GetMany(registers) => {
                let keys: Vec<_> = registers.iter().map(|register| key(world, *register)).collect();
                let values = self.space.get_many(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
                Returned::Were(values.iter().map(|value| value.as_deref().map_or(Ok(0), payload)).collect::<Result<_, _>>()?)
            }
            Operation::Insert(register, to) => {
                // Like a swap of absent for a value: the value that is present instead is not returned.
                Returned::Changed(self.space.insert(&key(world, *register), &to.to_le_bytes())?)
            }
            Operation::Upsert(register, to) => {
                self.space.put(&key(world, *register), &to.to_le_bytes())?;
                Returned::Done
            }
            Operation::Remove(register) => Returned::Changed(self.space.delete(&key(world, *register))?),
            Operation::RemoveWatched(register) => Returned::Changed(self.remove_watched(&key(world, *register))?),
            Operation::Swap(register, expected, to) => {
                let (expected, to) = (value(*expected), value(*to));
                Returned::Changed(self.space.compare_and_swap(&key(world, *register), expected.as_deref(), to.as_deref())?)
            }
            Operation::Batch(changes) => {
                let mut batch = Batch::default();
                for (register, to) in changes {
                    match value(*to) {
                        Some(value) => batch.put(&self.space, &key(world, *register), &value),
                        None => batch.delete(&self.space, &key(world, *register)),
                    }
                }
                self.store.write(batch)?;
                Returned::Done
            }
            Operation::Acts(acts) => self.act(world, acts)?,
            Operation::Clear => {
                self.space.clear()?;
                Returned::Done
            }
            Operation::Scan(direction) => Returned::Entries(self.entries(world, *direction)?),
            Operation::Look(direction) => Returned::Entries(self.look(world, *direction)?),
            Operation::Transact(reads, changes) => {
                let (found, committed) = self.transact(world, reads, changes)?;
                Returned::Transacted(found, committed)
            }
            Operation::Merge(register, to) => Returned::Was(self.merge(&key(world, *register), *to)?),
            Operation::Load(from, to, payload) => Returned::Changed(self.load(world, (*from, *to), *payload)?),
            Operation::Walk(direction) => Returned::Entries(self.walk(world, *direction)?),
            Operation::Compact => {
                self.store.compact(Evacuation::All, |_| ControlFlow::Continue(()))?;
                Returned::Done
            }
            Operation::Update(..) | Operation::Many(..) => unreachable!("the store has no such operation"),
        })
    }
}

/// Why an operation has not been done.
enum Failure {
    Store(Error),
    Broken(Broken),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

fn registers_of(world: &World, direction: Direction, found: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Vec<(usize, u64)>, Broken> {
    let mut entries = Vec::new();
    for (found, value) in found {
        let register = (0..world.keys.len()).find(|register| key(world, *register) == found);
        let register = register.ok_or_else(|| Broken::new("only keys that were written are there", format_args!("{found:?}")))?;
        entries.push((register, payload(&value)?));
    }
    let sorted = entries.windows(2).all(|pair| if direction == Direction::Forward { pair[0].0 < pair[1].0 } else { pair[0].0 > pair[1].0 });
    if sorted { Ok(entries) } else { Err(Broken::new("a scan is in order", format_args!("{entries:?}"))) }
}

impl Target for Store {
    type Live = Live;

    fn name(&self) -> String {
        format!("store/{}", self.index)
    }

    fn memory(&self) -> usize {
        512 << 10
    }

    fn worlds(&self) -> Vec<World> {
        let world = |name, keys: usize, count: usize, closed, focus: &[usize]| World {
            name,
            keys: (1..=keys as u32).map(|number| number * 10).collect(),
            setup: (0..count).map(|register| Operation::Upsert(register, register as u64 + 1)).collect(),
            closed,
            opening: Vec::new(),
            focus: focus.to_vec(),
        };
        let capacity = Index::<[u8]>::named(self.index).capacity();
        // Batches fill it, and their writes are not durable yet when other threads divide it.
        let filling = world("a leaf with two free slots", capacity + 2, capacity - 2, false, &[0, capacity - 2, capacity - 1, capacity, capacity + 1]);
        vec![world("empty", 8, 0, false, &[]), world("one leaf", 8, 4, true, &[]), world("two leaves", 8, 8, false, &[]), filling]
    }

    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Live, Broken> {
        self.on(pool, 1)
    }

    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Live, Broken> {
        self.on(pool, threads)
    }

    fn close(&self, live: Live) -> Result<(), Broken> {
        live.store.close().map_err(Broken::by("closing succeeds"))
    }

    fn draw(&self, world: &World, mood: &Mood<'_>, payload: u64, random: &mut StdRng) -> Operation {
        let register = mood.pick(random);
        if mood.reads(random) {
            return match random.random_range(0..12u32) {
                0 if random.random() => Operation::Walk(Direction::Forward),
                1 if random.random() => Operation::Walk(Direction::Reverse),
                0 => Operation::Scan(Direction::Forward),
                1 => Operation::Scan(Direction::Reverse),
                2 | 3 => Operation::Look(Direction::Forward),
                4 => Operation::Look(Direction::Reverse),
                5 => Operation::GetMany((0..3).map(|_| mood.pick(random)).collect()),
                _ => Operation::Get(register),
            };
        }
        let to = |random: &mut StdRng| if mood.removes(random) { 0 } else { payload };
        match random.random_range(0..22u32) {
            0 if random.random() => Operation::Clear,
            18 => Operation::Compact,
            19 | 20 => Operation::Merge(register, to(random)),
            21 => match random.random() {
                true => Operation::Load(register, world.keys.len(), payload),
                false => Operation::Clear,
            },
            0..3 => {
                // What others put there is not known here; the initial value is, and absence.
                let expected = if random.random() { 0 } else { initial(world, register) };
                Operation::Swap(register, expected, to(random))
            }
            way @ 3..9 => {
                let mut changes = vec![(register, to(random))];
                for _ in 0..random.random_range(1..5u32) {
                    let other = mood.pick(random);
                    if changes.iter().all(|(register, _)| *register != other) {
                        changes.push((other, to(random)));
                    }
                }
                match way {
                    3..6 => Operation::Batch(changes),
                    // Write skew requires a transaction that reads what it does not write.
                    way if random.random() => {
                        Operation::Transact((0..way - 5).map(|_| mood.pick(random)).collect(), changes.into_iter().take(way as usize - 5).collect())
                    }
                    way => {
                        let from = mood.pick(random).min(world.keys.len() - 3);
                        Operation::Transact((from..from + 3).collect(), changes.into_iter().take(way as usize - 5).collect())
                    }
                }
            }
            9 | 10 => Operation::Insert(register, payload),
            11 | 12 => {
                let act = |random: &mut StdRng| (mood.pick(random), (!mood.reads(random)).then(|| to(random)));
                Operation::Acts((0..random.random_range(2..6u32)).map(|_| act(random)).collect())
            }
            _ => match to(random) {
                0 if random.random_ratio(1, 4) => Operation::RemoveWatched(register),
                0 => Operation::Remove(register),
                payload => Operation::Upsert(register, payload),
            },
        }
    }

    fn apply(&self, live: &Live, world: &World, operation: &Operation) -> Result<Returned, Broken> {
        match live.try_apply(world, operation) {
            // Another thread loads.
            Err(Failure::Store(Error::Loading { .. })) => Ok(Returned::Refused),
            Err(Failure::Store(error)) => Err(Broken::by(RULE)(error)),
            Err(Failure::Broken(broken)) => Err(broken),
            Ok(returned) => Ok(returned),
        }
    }

    fn content(&self, live: &Live, world: &World) -> Result<Vec<u64>, Broken> {
        let mut registers = vec![0; world.keys.len()];
        let forward = live.entries(world, Direction::Forward)?;
        let mut reverse = live.entries(world, Direction::Reverse)?;
        reverse.reverse();
        if forward != reverse || live.space.count() != forward.len() as u64 {
            return Err(Broken::new("scans and the count agree", format_args!("{forward:?}, reverse {reverse:?}, count {}", live.space.count())));
        }
        for (register, payload) in forward {
            registers[register] = payload;
        }
        for (register, held) in registers.iter().enumerate() {
            let found = self.apply(live, world, &Operation::Get(register))?;
            if found != Returned::Was(*held) {
                return Err(Broken::new("what a scan shows a lookup finds", format_args!("key {register}: {found}")));
            }
        }
        Ok(registers)
    }

    fn audit(&self, live: &Live) -> Result<(), Broken> {
        const RULE: &str = "allocated is what is reachable";
        live.store.pool().collect();
        let report = live.store.verify().map_err(Broken::by(RULE))?;
        if report.is_sound() { Ok(()) } else { Err(Broken::new(RULE, format_args!("{report:?}"))) }
    }
}

/// The initial value of a register.
fn initial(world: &World, register: usize) -> u64 {
    let set = |operation: &Operation| match operation {
        Operation::Upsert(other, payload) if *other == register => Some(*payload),
        _ => None,
    };
    world.setup.iter().rev().find_map(set).unwrap_or(0)
}
