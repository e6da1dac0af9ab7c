//! What can be under test: something in a pool that behaves like a row of registers.

use super::history::{Operation, Returned};
use crate::crash::index::{IndexChange, starts};
use crate::crash::world::Start;
use crate::{Broken, Change, Class, Subject};
use everleaf_index::{Direction, Entry, registry};
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::Arc;

/// A state to start from.
#[derive(Clone, Debug)]
pub struct World {
    /// For people.
    pub name: &'static str,
    /// The key of each register, ascending.
    pub keys: Vec<u32>,
    /// How to get there from nothing.
    pub setup: Vec<Operation>,
    /// Whether the pool is closed cleanly before.
    pub closed: bool,
    /// What is done when it has been opened again, before the threads start: what is volatile gets into a state of its own.
    pub opening: Vec<Operation>,
}

/// What a thread rather does.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    /// Number of the thread.
    pub thread: usize,
    /// The registers it speaks of: from the first to before the second.
    pub window: (usize, usize),
    /// How many of eight calls read.
    pub reads: u32,
    /// How many of eight writes remove.
    pub removes: u32,
}

impl Mood {
    /// A mood for a thread that speaks of registers in `window`.
    pub(super) fn draw(thread: usize, window: (usize, usize), random: &mut StdRng) -> Self {
        // Threads that fill and threads that empty let leaves split and merge under each other's feet; those that read see it.
        Self { thread, window, reads: [0, 1, 3, 6][random.random_range(0..4usize)], removes: [1, 3, 5, 7][random.random_range(0..4usize)] }
    }

    /// A register of the window.
    pub(super) fn pick(&self, random: &mut StdRng) -> usize {
        random.random_range(self.window.0..self.window.1)
    }

    pub(super) fn reads(&self, random: &mut StdRng) -> bool {
        random.random_ratio(self.reads, 8)
    }

    pub(super) fn removes(&self, random: &mut StdRng) -> bool {
        random.random_ratio(self.removes, 8)
    }
}

/// A kind of thing that can be under test.
pub trait Target: Send + Sync + 'static {
    /// One of them, in its pool.
    type Live: Send + Sync + 'static;

    /// Name by which it is chosen.
    fn name(&self) -> String;

    /// Whether it outlives a crash.
    fn is_persistent(&self) -> bool {
        true
    }

    /// How many schedules of something small take as long as one of this.
    fn weight(&self) -> u64 {
        1
    }

    /// Size of its memory in bytes.
    fn memory(&self) -> usize {
        256 << 10
    }

    /// Where runs start from.
    fn worlds(&self) -> Vec<World>;

    /// Makes one in an empty pool.
    ///
    /// # Errors
    /// Why it cannot be made.
    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken>;

    /// Opens it again, recovering it if need be.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken>;

    /// Makes a call up, of `world`, and with `payload` as what it writes.
    fn draw(&self, world: &World, mood: &Mood, payload: u64, random: &mut StdRng) -> Operation;

    /// Makes a call.
    ///
    /// # Errors
    /// Where there should be none.
    fn apply(&self, live: &Self::Live, world: &World, operation: &Operation) -> Result<Returned, Broken>;

    /// What all registers hold, after every check that it has of its own. No call is under way.
    ///
    /// # Errors
    /// What a check has found.
    fn content(&self, live: &Self::Live, world: &World) -> Result<Vec<u64>, Broken>;

    /// Compares what is reachable with what is allocated. No call is under way.
    ///
    /// # Errors
    /// What is leaked, or used twice.
    fn audit(&self, live: &Self::Live) -> Result<(), Broken>;
}

/// An index of the registry.
pub struct Index<K: Class + ?Sized> {
    entry: Entry<K, Crash>,
}

impl<K: Class + ?Sized> Index<K> {
    /// Every index of the registry.
    pub fn all() -> Vec<Self> {
        registry::<K, Crash>().into_iter().map(|entry| Self { entry }).collect()
    }

    /// Some leaves: full ones, which the next insertion splits, and half full ones, which removals merge.
    fn leaves(&self, name: &'static str, count: u32, is_full: &dyn Fn(u32) -> bool) -> Start<IndexChange> {
        let half = self.entry.leaf_capacity as u32 / 2;
        let keys = 1..=count * half;
        // Ascending, each split leaves half a leaf behind.
        let mut changes: Vec<Change> = keys.clone().map(|number| Change::Put(number * 10, u64::from(number))).collect();
        changes.extend(keys.filter(|number| is_full((number - 1) / half)).map(|number| Change::Put(number * 10 + 2, u64::from(number))));
        Start::new(name, changes.into_iter().map(IndexChange::Key).collect(), [5, 10, 20, 30])
    }

    /// Nodes of the router that the next split of a leaf splits, one above the other. A router of four children that is made anew has three in each node.
    fn full_nodes(&self, name: &'static str, nodes: u32) -> (Start<IndexChange>, Vec<Change>) {
        let half = self.entry.leaf_capacity as u32 / 2;
        let in_the_middle_of = |node: u32| (3 * node + 1) * half + 1;
        (self.leaves(name, 3 * nodes, &|_| true), (0..nodes).map(|node| Change::Put(in_the_middle_of(node) * 10 + 5, u64::from(node) + 1)).collect())
    }

    /// Nodes of the router that the next merger of leaves merges with their neighbours, until the root has one child and goes.
    fn sparse_nodes(&self, name: &'static str, nodes: u32) -> (Start<IndexChange>, Vec<Change>) {
        let half = self.entry.leaf_capacity as u32 / 2;
        let keys = 1..=3 * nodes * half;
        let changes = keys.map(|number| IndexChange::Key(Change::Put(number * 10, u64::from(number)))).collect();
        // Of three leaves that are half full, the first two become one, half full again.
        let first_of = |node: u32| 3 * node * half + 1;
        let removed = (0..nodes).flat_map(|node| (0..half).map(move |number| Change::Delete((first_of(node) + number) * 10)));
        (Start::new(name, changes, [5, 10, 20, 30]), removed.collect())
    }

    fn entries(&self, world: &World, content: crate::Content<K>) -> Result<Vec<(usize, u64)>, Broken> {
        let register = |key: &K::Owned| world.keys.iter().position(|number| K::numbered(*number) == *key);
        let found = content.into_iter().map(|(key, payload)| register(&key).map(|register| (register, payload)).ok_or(key));
        found.collect::<Result<_, _>>().map_err(|key| Broken::new("only keys that were written are there", format_args!("{key:?}")))
    }
}

impl<K: Class + ?Sized> Target for Index<K> {
    type Live = Subject<K, Crash>;

    fn name(&self) -> String {
        if K::WHOLE { self.entry.name.to_owned() } else { format!("{}/{}", self.entry.name, K::NAME) }
    }

    fn is_persistent(&self) -> bool {
        self.entry.persistent
    }

    fn weight(&self) -> u64 {
        // The worlds grow with the leaves, and so does what a check of one reads.
        (self.entry.leaf_capacity as u64).pow(2).div_ceil(16)
    }

    fn memory(&self) -> usize {
        if self.entry.leaf_capacity > 4 { 2 << 20 } else { 256 << 10 }
    }

    /// The starts of the crash suites, and more for small leaves; between any two keys there is room for one more.
    fn worlds(&self) -> Vec<World> {
        let mut starts = starts(self.entry.leaf_capacity);
        starts.retain(|start| !start.equal_payloads && !start.changes.is_empty());
        let mut starts: Vec<(Start<IndexChange>, Vec<Change>)> = starts.into_iter().map(|start| (start, Vec::new())).collect();
        if self.entry.leaf_capacity <= 8 {
            starts.extend(
                [self.leaves("full leaves", 12, &|_| true), self.leaves("mixed leaves", 12, &|leaf| leaf.is_multiple_of(3))].map(|start| (start, Vec::new())),
            );
            starts.extend([
                self.full_nodes("full nodes", 4),
                self.full_nodes("full root", 1),
                self.sparse_nodes("sparse nodes", 4),
                self.sparse_nodes("sparse root", 2),
            ]);
        }
        let world = |(start, opening): (Start<IndexChange>, Vec<Change>)| {
            // The index is there when the setup begins.
            let changes = start.changes.iter().filter_map(|change| if let IndexChange::Key(change) = change { Some(*change) } else { None });
            let number = |change: Change| match change {
                Change::Put(key, _) | Change::Delete(key) => key,
            };
            let mut keys: Vec<u32> = changes.clone().map(number).chain(start.keys).collect();
            keys.extend(keys.clone().into_iter().filter(|key| key.is_multiple_of(10) && *key < u32::MAX).map(|key| key + 5));
            keys.sort_unstable();
            keys.dedup();
            let register = |key: u32| keys.binary_search(&key).expect("every key has a register");
            let operation = |change| match change {
                Change::Put(key, payload) => Operation::Upsert(register(key), payload),
                Change::Delete(key) => Operation::Remove(register(key)),
            };
            let (setup, opening) = (changes.map(operation).collect(), opening.into_iter().map(operation).collect());
            World { name: start.name, setup, keys, closed: start.closed, opening }
        };
        starts.into_iter().map(world).collect()
    }

    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken> {
        Subject::create(&self.entry, pool).map_err(Broken::by("creating succeeds"))
    }

    fn open(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken> {
        Subject::open(&self.entry, pool, 1).map_err(Broken::by("opening after a crash succeeds"))
    }

    fn draw(&self, world: &World, mood: &Mood, payload: u64, random: &mut StdRng) -> Operation {
        let register = mood.pick(random);
        if world.setup.is_empty() && self.entry.persistent && random.random_ratio(1, 16) {
            return Operation::Load(mood.window.0, mood.window.1, payload);
        }
        if mood.reads(random) {
            return match random.random_range(0..8u32) {
                0 => Operation::Scan(Direction::Forward),
                1 => Operation::Scan(Direction::Reverse),
                _ => Operation::Get(register),
            };
        }
        if mood.removes(random) {
            return Operation::Remove(register);
        }
        match random.random_range(0..4u32) {
            0 => Operation::Update(register, payload),
            1 => Operation::Insert(register, payload),
            _ => Operation::Upsert(register, payload),
        }
    }

    fn apply(&self, live: &Self::Live, world: &World, operation: &Operation) -> Result<Returned, Broken> {
        let key = |register: &usize| K::numbered(world.keys[*register]);
        let was = match operation {
            Operation::Get(register) => live.get(key(register).borrow()),
            Operation::Insert(register, to) => live.insert(key(register).borrow(), *to),
            Operation::Upsert(register, to) => live.upsert(key(register).borrow(), *to),
            Operation::Update(register, to) => live.update(key(register).borrow(), *to),
            Operation::Remove(register) => live.remove(key(register).borrow()),
            Operation::Scan(direction) => {
                let found = live.scan(Bound::Unbounded, *direction, usize::MAX).map_err(Broken::by("an operation succeeds"))?;
                let sorted = found.windows(2).all(|pair| if *direction == Direction::Forward { pair[0].0 < pair[1].0 } else { pair[0].0 > pair[1].0 });
                if !sorted {
                    return Err(Broken::new("a scan is in order", format_args!("{found:?}")));
                }
                return Ok(Returned::Entries(self.entries(world, found)?));
            }
            Operation::Load(from, to, payload) => {
                let pairs: Vec<_> = (*from..*to).map(|register| (key(&register), *payload)).collect();
                return live.load(&pairs).map(Returned::Changed).map_err(Broken::by("an operation succeeds"));
            }
            Operation::Swap(..) | Operation::Batch(_) | Operation::Clear => unreachable!("an index has no such operation"),
        };
        Ok(Returned::Was(was.map_err(Broken::by("an operation succeeds"))?.unwrap_or(0)))
    }

    fn content(&self, live: &Self::Live, world: &World) -> Result<Vec<u64>, Broken> {
        let mut registers = vec![0; world.keys.len()];
        for (register, payload) in self.entries(world, live.content(2 * world.keys.len() + 16)?)? {
            registers[register] = payload;
        }
        Ok(registers)
    }

    fn audit(&self, live: &Self::Live) -> Result<(), Broken> {
        live.audit()
    }
}
