//! The structures that can be under test: anything in a pool that behaves like a row of registers.

use super::history::{Operation, Returned};
use crate::crash::index::{IndexChange, capacity_of, starts};
use crate::crash::world::Start;
use crate::{Broken, Change, Class, Subject};
use everleaf_index::{Direction, Entry, Write, registry};
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;

/// A state to start from.
#[derive(Clone, Debug)]
pub struct World {
    /// The name shown to users.
    pub name: &'static str,
    /// The key of each register, ascending.
    pub keys: Vec<u32>,
    /// The calls that lead there from an empty structure.
    pub setup: Vec<Operation>,
    /// Whether the pool is closed cleanly before.
    pub closed: bool,
    /// Calls made after it is opened again, before the threads start: they bring the volatile parts into a state of their own.
    pub opening: Vec<Operation>,
    /// Registers that the calls use, where these provoke something rare. If empty, each schedule uses some neighbouring registers.
    pub focus: Vec<usize>,
}

/// The preferences of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Mood<'a> {
    /// Number of the thread.
    pub thread: usize,
    /// The registers that it uses, ascending.
    pub registers: &'a [usize],
    /// How many of eight calls read.
    pub reads: u32,
    /// How many of eight writes remove.
    pub removes: u32,
}

impl<'a> Mood<'a> {
    /// Draws a mood for a thread that uses `registers`.
    pub(super) fn draw(thread: usize, registers: &'a [usize], random: &mut StdRng) -> Self {
        // Threads that fill and threads that empty make leaves split and merge while other threads read them.
        Self { thread, registers, reads: [0, 1, 3, 6][random.random_range(0..4usize)], removes: [1, 3, 5, 7][random.random_range(0..4usize)] }
    }

    /// One of the registers.
    pub fn pick(&self, random: &mut StdRng) -> usize {
        self.registers[random.random_range(0..self.registers.len())]
    }

    pub(super) fn reads(&self, random: &mut StdRng) -> bool {
        random.random_ratio(self.reads, 8)
    }

    pub(super) fn removes(&self, random: &mut StdRng) -> bool {
        random.random_ratio(self.removes, 8)
    }
}

/// A kind of structure that can be under test.
pub trait Target: Send + Sync + 'static {
    /// An open structure, in its pool.
    type Live: Send + Sync + 'static;

    /// Name by which it is selected.
    fn name(&self) -> String;

    /// Whether it survives a crash.
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

    /// Creates a structure in an empty pool.
    ///
    /// # Errors
    /// If it cannot be created.
    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken>;

    /// Opens it again, recovering it with `threads` threads if necessary.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Self::Live, Broken>;

    /// Closes it and its pool.
    ///
    /// # Errors
    /// If it cannot be closed.
    fn close(&self, live: Self::Live) -> Result<(), Broken>;

    /// Generates a call of `world` that writes `payload`.
    fn draw(&self, world: &World, mood: &Mood<'_>, payload: u64, random: &mut StdRng) -> Operation;

    /// Makes a call.
    ///
    /// # Errors
    /// If the call fails but must not.
    fn apply(&self, live: &Self::Live, world: &World, operation: &Operation) -> Result<Returned, Broken>;

    /// The values of all registers, after all of its own checks have passed. No call is under way.
    ///
    /// # Errors
    /// If a check fails.
    fn content(&self, live: &Self::Live, world: &World) -> Result<Vec<u64>, Broken>;

    /// Compares what is reachable with what is allocated. No call is under way.
    ///
    /// # Errors
    /// If anything is leaked or used twice.
    fn audit(&self, live: &Self::Live) -> Result<(), Broken>;
}

/// A world of an index: its start, the later changes, and the keys of the calls.
struct Scene {
    start: Start<IndexChange>,
    opening: Vec<Change>,
    /// Keys that the calls use; if empty, any keys.
    focus: Vec<u32>,
    /// More keys, used by some calls.
    others: Vec<u32>,
}

impl Scene {
    fn new(start: Start<IndexChange>, opening: Vec<Change>) -> Self {
        Self { start, opening, focus: Vec::new(), others: Vec::new() }
    }
}

impl From<Start<IndexChange>> for Scene {
    fn from(start: Start<IndexChange>) -> Self {
        Self::new(start, Vec::new())
    }
}

/// The fill of a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// Nothing: it has been merged with a neighbour.
    Gone,
    One,
    Half,
    Full,
}

/// An index of the registry.
pub struct Index<K: Class + ?Sized> {
    pub(super) entry: Entry<K, Crash>,
}

impl<K: Class + ?Sized> Index<K> {
    /// Every index of the registry.
    pub fn all() -> Vec<Self> {
        registry::<K, Crash>().into_iter().map(|entry| Self { entry }).collect()
    }

    /// The index of that name.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|index| index.entry.name == name).expect("an index of the registry")
    }

    pub(super) fn capacity(&self) -> usize {
        capacity_of(&self.entry)
    }

    /// Some leaves: full ones, which the next insertion splits, and half-full ones, which removals merge.
    fn leaves(&self, name: &'static str, count: u32, is_full: &dyn Fn(u32) -> bool) -> Start<IndexChange> {
        let half = self.capacity() as u32 / 2;
        let keys = 1..=count * half;
        // In ascending order, each split leaves half a leaf behind.
        let mut changes: Vec<Change> = keys.clone().map(|number| Change::Put(number * 10, u64::from(number))).collect();
        changes.extend(keys.filter(|number| is_full((number - 1) / half)).map(|number| Change::Put(number * 10 + 2, u64::from(number))));
        Start::new(name, changes.into_iter().map(IndexChange::Key).collect(), [5, 10, 20, 30])
    }

    /// Nodes of the router, one above the other, that the next split of a leaf splits. A router of four children that is rebuilt has three in each node.
    fn full_nodes(&self, name: &'static str, nodes: u32) -> Scene {
        let half = self.capacity() as u32 / 2;
        let in_the_middle_of = |node: u32| (3 * node + 1) * half + 1;
        let opening = (0..nodes).map(|node| Change::Put(in_the_middle_of(node) * 10 + 5, u64::from(node) + 1)).collect();
        Scene::new(self.leaves(name, 3 * nodes, &|_| true), opening)
    }

    /// Nodes of the router that the next merge of leaves merges with their neighbours, until the root has one child and is removed.
    fn sparse_nodes(&self, name: &'static str, nodes: u32) -> Scene {
        let half = self.capacity() as u32 / 2;
        let keys = 1..=3 * nodes * half;
        let changes = keys.map(|number| IndexChange::Key(Change::Put(number * 10, u64::from(number)))).collect();
        // Of three half-full leaves, the first two become one, which is half full again.
        let first_of = |node: u32| 3 * node * half + 1;
        let opening = (0..nodes).flat_map(|node| (0..half).map(move |number| Change::Delete((first_of(node) + number) * 10))).collect();
        Scene::new(Start::new(name, changes, [5, 10, 20, 30]), opening)
    }

    /// Leaves, three to a node of a router of four children. One is a removal away from being merged, with all consequences; each full one is an insertion away
    /// from being split. The calls do just that, and read what is there.
    fn brink(&self, name: &'static str, leaves: &[Fill], removed: u32) -> Scene {
        let (half, count) = (self.capacity() as u32 / 2, leaves.len() as u32);
        let numbers = |leaf: u32| leaf * half + 1..=(leaf + 1) * half;
        let with = |fill: Fill| (0..count).filter(move |leaf| leaves[*leaf as usize] == fill);
        // In ascending order, each split leaves half a leaf behind; the last leaf has one more key. It goes, unless the leaf is to be full: removals need room
        // in some.
        let one_more = count * half + 1;
        let mut changes: Vec<Change> = (1..=one_more).map(|number| Change::Put(number * 10, u64::from(number))).collect();
        let last_is_full = leaves.last() == Some(&Fill::Full);
        changes.extend((!last_is_full).then_some(Change::Delete(one_more * 10)));
        let added = with(Fill::Full).flat_map(numbers).filter(|number| !last_is_full || *number != count * half);
        changes.extend(added.map(|number| Change::Put(number * 10 + 2, u64::from(number))));
        let gone = with(Fill::Gone).rev().flat_map(numbers);
        let others_than_one = with(Fill::One).flat_map(|leaf| numbers(leaf).take(half as usize - 1));
        let opening = gone.chain(others_than_one).map(|number| Change::Delete(number * 10)).collect();
        let of_full = with(Fill::Full).map(|leaf| (leaf * half + 1) * 10).flat_map(|key| [key, key + 5]);
        let focus = std::iter::once((removed + 1) * half * 10).chain(of_full).collect();
        Scene { focus, ..Scene::new(Start::new(name, changes.into_iter().map(IndexChange::Key).collect(), [5, 10, 20, 30]), opening) }
    }

    /// States one or two calls away from events that are otherwise rare.
    fn brinks(&self) -> Vec<Scene> {
        use Fill::{Full, Gone, Half, One};
        // The first node keeps one leaf, and is merged with the second; if there is no other, the root is removed.
        let sparse = [Gone, One, Full, Full, Half, Gone];
        // The last node, alone under its parent, gets a neighbour; the parent and the root go. The next split of the first node takes the root's number.
        let lonely = [Gone, Gone, Full, Full, Half, Gone, Half, Half, Half, Half];
        let mut again = self.brink("a root whose number is used again", &lonely, 9);
        // The first node is full: of its four leaves, the next split of the third splits it. Lookups in its other half, or in the next node, see this.
        let [removed, there, absent, _, split] = again.focus[..] else { unreachable!("two leaves are full") };
        again.opening.push(Change::Put(absent, 1));
        again.focus = vec![removed, there, split, (6 * self.capacity() as u32 / 2 + 1) * 10];
        vec![
            self.brink("a root that goes", &sparse, 1),
            self.brink("two nodes that merge", &[sparse, [Half; 6]].concat()[..9], 1),
            again,
            self.brink("full leaves side by side", &[Full; 6], 5),
            self.brink("leaves that merge behind a full one", &[Full, One, Full], 1),
            self.brink("leaves that merge behind a full one of another node", &[Half, Half, Full, One, Full, Half], 3),
            self.much_to_load("much to load"),
            self.full_parents("full parents of a packed router"),
            self.two_rebuilds("a packed router that is built anew twice"),
        ]
    }

    /// Parents of a packed router, which begin with two leaves each and have room for four. All but the first are full. So are three leaves: one of the second
    /// parent, whose split makes the router rebuild its nodes; the last, whose split adds a parent; and one of the first parent, which has room.
    fn full_parents(&self, name: &'static str) -> Scene {
        let half = self.capacity() as u32 / 2;
        let mut scene = self.brink(name, &[Fill::Full; 6], 5);
        let (first, last) = (|leaf: u32| (leaf * half + 1) * 10, |leaf: u32| (leaf + 1) * half * 10);
        // Above all other keys of their leaves; each half of a split leaf gets half of the entries.
        let splitting = (2..6).map(|leaf| last(leaf) + 5);
        let between = [1, 3, 4, 6];
        let lower = between.iter().take(half as usize).map(|more| first(2) + more);
        let upper = between.iter().take(half as usize - 1).map(|more| last(5) + more);
        let opening: Vec<u32> = splitting.chain(lower).chain(upper).collect();
        scene.opening.extend(opening.iter().map(|key| Change::Put(*key, 1)));
        scene.others = opening;
        scene.focus = vec![first(0) + 9, first(2) + 9, last(5) + 5, last(5) + 9];
        scene
    }

    /// Parents of a packed router, which begin with two leaves each, after they have lost two leaves of ten. Each of the next two merges takes a removal, and
    /// makes the router rebuild its nodes. Then the first array is in use again, with other leaves under its parents; the calls read two of these.
    fn two_rebuilds(&self, name: &'static str) -> Scene {
        use Fill::{Full, Gone, Half, One};
        let half = self.capacity() as u32 / 2;
        let leaves = [One, Full, Full, One, Half, Half, Half, Gone, Half, Gone];
        let (first, last) = (|leaf: u32| (leaf * half + 1) * 10, |leaf: u32| (leaf + 1) * half * 10);
        Scene { focus: vec![last(0), first(2), last(3), first(5)], ..self.brink(name, &leaves, 0) }
    }

    /// Empty, with enough keys for a bulk load that fills a node of four children, and for a split of the last of its leaves. The calls are the load, of all
    /// keys up to the first of the focus, and the inserts that split that leaf.
    fn much_to_load(&self, name: &'static str) -> Scene {
        let (full, loaded) = (self.capacity() as u32, (self.capacity() as u32 * 3 / 4).max(1));
        let keys = |numbers: std::ops::RangeInclusive<u32>| numbers.map(|number| number * 10 + 1).collect::<Vec<_>>();
        let start = Start::new(name, Vec::new(), [11, 21, 31, 41]);
        let (others, focus) = (keys(1..=4 * loaded - 1), keys(4 * loaded..=3 * loaded + full + 2));
        Scene { focus, others, ..Scene::from(start) }
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
        // Larger leaves make larger worlds, and a check reads more.
        (self.capacity() as u64).pow(2).div_ceil(16)
    }

    fn memory(&self) -> usize {
        if self.capacity() > 4 { 2 << 20 } else { 256 << 10 }
    }

    /// The starts of the crash suites, and more for small leaves. Between any two keys there is room for one more.
    fn worlds(&self) -> Vec<World> {
        let mut starts = starts(self.capacity());
        starts.retain(|start| !start.equal_payloads && !start.changes.is_empty());
        let mut scenes: Vec<Scene> = starts.into_iter().map(Scene::from).collect();
        if self.capacity() <= 8 {
            scenes.extend([self.leaves("full leaves", 12, &|_| true), self.leaves("mixed leaves", 12, &|leaf| leaf.is_multiple_of(3))].map(Scene::from));
            scenes.extend([
                self.full_nodes("full nodes", 4),
                self.full_nodes("full root", 1),
                self.sparse_nodes("sparse nodes", 4),
                self.sparse_nodes("sparse root", 2),
            ]);
            scenes.extend(self.brinks());
        }
        let world = |Scene { start, opening, focus, others }: Scene| {
            // The index exists when the setup begins.
            let changes = start.changes.iter().filter_map(|change| if let IndexChange::Key(change) = change { Some(*change) } else { None });
            let number = |change: Change| match change {
                Change::Put(key, _) | Change::Delete(key) => key,
            };
            let mut keys: Vec<u32> = changes.clone().map(number).chain(start.keys).chain(others).chain(focus.iter().copied()).collect();
            keys.extend(keys.clone().into_iter().filter(|key| key.is_multiple_of(10) && *key < u32::MAX).map(|key| key + 5));
            keys.sort_unstable();
            keys.dedup();
            let register = |key: u32| keys.binary_search(&key).expect("every key has a register");
            let operation = |change| match change {
                Change::Put(key, payload) => Operation::Upsert(register(key), payload),
                Change::Delete(key) => Operation::Remove(register(key)),
            };
            let (setup, opening) = (changes.map(operation).collect(), opening.into_iter().map(operation).collect());
            let mut focus: Vec<usize> = focus.into_iter().map(register).collect();
            focus.sort_unstable();
            World { name: start.name, setup, keys, closed: start.closed, opening, focus }
        };
        scenes.into_iter().map(world).collect()
    }

    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken> {
        Subject::create(&self.entry, pool).map_err(Broken::by("creating succeeds"))
    }

    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Self::Live, Broken> {
        Subject::open(&self.entry, pool, threads).map_err(Broken::by("opening after a crash succeeds"))
    }

    fn close(&self, live: Self::Live) -> Result<(), Broken> {
        live.close().map_err(Broken::by("closing succeeds"))
    }

    fn draw(&self, world: &World, mood: &Mood<'_>, payload: u64, random: &mut StdRng) -> Operation {
        let register = mood.pick(random);
        if let ([from, .., last], true) = (mood.registers, world.setup.is_empty() && self.entry.persistent) {
            match (world.focus.is_empty(), mood.thread) {
                (true, _) if random.random_ratio(1, 16) => return Operation::Load(*from, last + 1, payload),
                (false, 0) if random.random() => return Operation::Load(0, from + 1, payload),
                // Additional reads and removals would make no difference.
                (false, _) => return Operation::Upsert(register, payload),
                _ => {}
            }
        }
        if mood.reads(random) {
            return match random.random_range(0..8u32) {
                0 => Operation::Scan(Direction::Forward),
                1 => Operation::Scan(Direction::Reverse),
                2 => Operation::GetMany((0..3).map(|_| mood.pick(random)).collect()),
                _ => Operation::Get(register),
            };
        }
        if random.random_ratio(1, 6) {
            let mut write = || (mood.pick(random), if mood.removes(random) { 0 } else { payload });
            return Operation::Many(vec![write(), write(), write()]);
        }
        if self.entry.persistent && random.random_ratio(1, 16) {
            return Operation::Compact;
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
            Operation::GetMany(registers) => {
                let keys: Vec<_> = registers.iter().map(key).collect();
                let were = live.get_many(&keys).map_err(Broken::by("an operation succeeds"))?;
                return Ok(Returned::Were(were.into_iter().map(Option::unwrap_or_default).collect()));
            }
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
            Operation::Many(changes) => {
                let write = |to| NonZeroU64::new(to).map_or(Write::Remove, Write::Upsert);
                let writes: Vec<_> = changes.iter().map(|(register, to)| (key(register), write(*to))).collect();
                let were = live.write_many(&writes).map_err(Broken::by("an operation succeeds"))?;
                return Ok(Returned::Were(were.into_iter().map(Option::unwrap_or_default).collect()));
            }
            Operation::Compact => {
                let relocated = live.index.gather().and_then(|_| live.index.relocate(K::LOWEST, usize::MAX, &|_| true)).and_then(|_| live.index.gather());
                return relocated.map(|_| Returned::Done).map_err(Broken::by("an operation succeeds"));
            }
            Operation::Swap(..)
            | Operation::Acts(_)
            | Operation::Merge(..)
            | Operation::Batch(_)
            | Operation::Clear
            | Operation::Walk(_)
            | Operation::Look(_)
            | Operation::RemoveWatched(_)
            | Operation::Transact(..) => unreachable!("an index has no such operation"),
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
