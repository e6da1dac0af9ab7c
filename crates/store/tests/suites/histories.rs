//! Random histories of transactions and batches, checked for serializability and snapshot isolation.
//!
//! A transaction that writes a key appends its number to the key's list. So a list shows which transactions have written the key, in order, and a reader of the
//! list knows which of them come before it and which after it. These are edges of a graph:
//!
//! - *ww*: to the next in the list; *wr*: from the last one that a reader has found; *rw*: from a reader to the first that it has not found;
//! - *time*: from a transaction to those that began after it had returned. (Through a chain of moments, so that their number is linear.)
//!
//! The history is strictly serializable if the graph has no cycle. It satisfies snapshot isolation, in real time, if every cycle has two consecutive rw edges
//! (Adya; Cerone and Gotsman). A cycle without these is a cycle in a graph whose nodes are pairs: a transaction, and whether it was entered by an rw edge. If
//! so, it may not be left by another one.
//!
//! At the same moment, and in another namespace, the writer changes what the key *shows*: sets it, with or without expiry, appends to it, or removes it. So a
//! list determines what is shown, and a reader of both must find that, whatever expires, or is swept away, meanwhile.
//!
//! Batches, and in serializable histories some transactions, append to lists by merging, without reading them. In other histories transactions do not, because
//! merges do not conflict, which snapshot isolation alone would not allow.

use everleaf::{Batch, Direction, Error, Isolation, Merge, Namespace, Options, Store, Times, Transaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const THREADS: u64 = 4;
/// Transactions and batches per thread.
const PER_THREAD: u32 = 250;
const KEYS: u8 = 6;
/// The values that keys from this one on show may expire. Earlier keys are appended to.
const EXPIRING: u8 = 3;
/// The default, the same with small leaves, one that replaces leaves, and one whose leaves keep dead entries.
const INDEXES: [&str; 5] = ["ever", "ever-64", "isle-128", "nv-128", "fast-fair-128"];

/// Each transaction that begins advances the time.
static PASSED_MS: AtomicU64 = AtomicU64::new(0);

fn times() -> Times {
    let passed_ms = PASSED_MS.load(Ordering::SeqCst);
    Times { wall_ms: (1 << 40) + passed_ms, passed_ms }
}

/// A change of what a key shows.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Sets it to the writer's number.
    Put,
    /// The same, until this time.
    PutUntil(u64),
    /// Appends this.
    Append,
    Delete,
}

/// The changes by key.
type Acts = BTreeMap<u8, Act>;
/// The lists of the keys that were read.
type Reads = BTreeMap<u8, Vec<u32>>;

/// The reading of a key and its list.
struct Seen {
    key: u8,
    list: Vec<u32>,
    shown: Option<Vec<u8>>,
    /// The reader's moment is not before this.
    from_ms: u64,
    /// It is not after this.
    to_ms: u64,
}

/// A committed transaction, or a batch.
struct Done {
    id: u32,
    began: usize,
    ended: usize,
    reads: Reads,
    seen: Vec<Seen>,
    writes: Acts,
}

struct Spaces {
    lists: Namespace,
    shown: [Namespace; 2],
}

impl Spaces {
    fn of(store: &Store) -> Self {
        Self { lists: store.namespace("lists").unwrap(), shown: ["even", "odd"].map(|name| store.namespace(name).unwrap()) }
    }

    fn showing(&self, key: u8) -> &Namespace {
        &self.shown[usize::from(key % 2)]
    }
}

fn list(value: &[u8]) -> Vec<u32> {
    value.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect()
}

fn random_act(key: u8, store: &Store, random: &mut StdRng) -> Act {
    match random.random_range(0..4) {
        0 => Act::Delete,
        1 => Act::Put,
        _ if key < EXPIRING => Act::Append,
        _ => Act::PutUntil(store.time_ms() + random.random_range(0..100)),
    }
}

/// A transaction under way, with its readings and changes so far.
struct Actor<'a> {
    store: &'a Store,
    spaces: &'a Spaces,
    transaction: &'a mut Transaction,
    id: u32,
    from_ms: u64,
    reads: Reads,
    seen: Vec<Seen>,
    writes: Acts,
}

impl Actor<'_> {
    /// Reads a key and its list.
    fn read(&mut self, key: u8) -> Result<(), Error> {
        let list = list(&self.transaction.get(&self.spaces.lists, &[key])?.unwrap_or_default());
        let shown = self.transaction.get(self.spaces.showing(key), &[key])?;
        self.note(key, list, shown);
        Ok(())
    }

    /// Reads a range of keys by scans, in either direction, which end with the last key of the range, or with a key after it.
    fn scan(&mut self, random: &mut StdRng) -> Result<(), Error> {
        let (from, direction) = (random.random_range(0..KEYS), if random.random() { Direction::Forward } else { Direction::Reverse });
        let keys = from..=random.random_range(from..KEYS);
        let (first, last) = if direction == Direction::Forward { (keys.start(), keys.end()) } else { (keys.end(), keys.start()) };
        let is_unbounded = *first == if direction == Direction::Forward { 0 } else { KEYS - 1 };
        let scan = |space| {
            let mut found = BTreeMap::new();
            let visit = |key: &[u8], value: &[u8]| {
                if keys.contains(&key[0]) {
                    found.insert(key[0], value.to_vec());
                }
                if keys.contains(&key[0]) && key[0] != *last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let first = [*first];
            let bound = if is_unbounded { Bound::Unbounded } else { Bound::Included(first.as_slice()) };
            self.transaction.scan(space, bound, direction, visit).map(|()| found)
        };
        let lists = scan(&self.spaces.lists)?;
        let [mut shown, odd] = [scan(&self.spaces.shown[0])?, scan(&self.spaces.shown[1])?];
        shown.extend(odd);
        for key in keys.clone() {
            self.note(key, lists.get(&key).map_or_else(Vec::new, |value| list(value)), shown.remove(&key));
        }
        Ok(())
    }

    fn note(&mut self, key: u8, list: Vec<u32>, shown: Option<Vec<u8>>) {
        let before = self.reads.insert(key, list.clone());
        assert!(before.is_none_or(|before| before == list), "a read that differs the second time");
        self.seen.push(Seen { key, list, shown, from_ms: self.from_ms, to_ms: self.store.time_ms() });
    }

    /// Appends to the list, with or without reading it, and changes what is shown.
    fn write(&mut self, key: u8, act: Act, is_blind: bool) -> Result<(), Error> {
        let (id, showing) = (self.id.to_le_bytes(), self.spaces.showing(key));
        if is_blind {
            self.transaction.merge(&self.spaces.lists, &[key], Merge::Append(id.to_vec()))?;
        } else {
            self.read(key)?;
            let appended: Vec<u8> = self.reads[&key].iter().chain([&self.id]).flat_map(|id| id.to_le_bytes()).collect();
            self.transaction.put(&self.spaces.lists, &[key], &appended)?;
            assert_eq!(self.transaction.get(&self.spaces.lists, &[key])?, Some(appended), "its own writes are read");
        }
        match act {
            Act::Put => self.transaction.put(showing, &[key], &id)?,
            Act::PutUntil(expiry_ms) => self.transaction.put_until(showing, &[key], &id, Some(expiry_ms))?,
            Act::Append => self.transaction.merge(showing, &[key], Merge::Append(id.to_vec()))?,
            Act::Delete => drop(self.transaction.delete(showing, &[key])?),
        }
        self.writes.insert(key, act);
        Ok(())
    }

    /// Reads some keys singly, others by scans, and writes some.
    fn act(&mut self, isolation: Isolation, random: &mut StdRng) -> Result<(), Error> {
        if random.random_ratio(1, 4) {
            self.scan(random)?;
        }
        for _ in 0..random.random_range(0..4u32) {
            self.read(random.random_range(0..KEYS))?;
            if random.random_ratio(1, 4) {
                std::thread::yield_now();
            }
        }
        for _ in 0..random.random_range(0..3u32) {
            let key = random.random_range(0..KEYS);
            if !self.writes.contains_key(&key) {
                let is_blind = isolation == Isolation::Serializable && !self.reads.contains_key(&key) && random.random();
                self.write(key, random_act(key, self.store, random), is_blind)?;
            }
        }
        Ok(())
    }
}

/// Writes some keys together, without reading any.
fn write_batch(store: &Store, spaces: &Spaces, id: u32, random: &mut StdRng) -> Result<Acts, Error> {
    let (mut batch, mut writes) = (Batch::default(), Acts::new());
    for _ in 0..random.random_range(1..4u32) {
        let key = random.random_range(0..KEYS);
        writes.entry(key).or_insert_with(|| random_act(key, store, random));
    }
    for (&key, act) in &writes {
        let (id, showing) = (id.to_le_bytes(), spaces.showing(key));
        batch.merge(&spaces.lists, &[key], Merge::Append(id.to_vec()));
        match *act {
            Act::Put => batch.put(showing, &[key], &id),
            Act::PutUntil(expiry_ms) => batch.put_until(showing, &[key], &id, Some(expiry_ms)),
            Act::Append => batch.merge(showing, &[key], Merge::Append(id.to_vec())),
            Act::Delete => batch.delete(showing, &[key]),
        }
    }
    store.write(batch).map(|()| writes)
}

/// Runs a history, and returns it with the final lists.
fn run(index: &str, isolation: Isolation, seed: u64) -> (Vec<Done>, Vec<Vec<u32>>) {
    let store = Store::anonymous(Options { size_max: 64 << 20, index: index.into(), times, ..Options::default() }).unwrap();
    let spaces = Spaces::of(&store);
    let (clock, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let work = |thread: u64| {
        let mut random = StdRng::seed_from_u64(seed << 8 | thread);
        let mut done = Vec::new();
        for number in 0..PER_THREAD {
            let id = thread as u32 * PER_THREAD + number;
            let (began, from_ms) = (tick(), store.time_ms());
            PASSED_MS.fetch_add(1, Ordering::SeqCst);
            if random.random_ratio(1, 5) {
                let writes = write_batch(&store, &spaces, id, &mut random).unwrap();
                done.push(Done { id, began, ended: tick(), reads: Reads::new(), seen: Vec::new(), writes });
                continue;
            }
            let mut transaction = store.begin(isolation).unwrap();
            let (reads, writes) = (Reads::new(), Acts::new());
            let mut actor = Actor { store: &store, spaces: &spaces, transaction: &mut transaction, id, from_ms, reads, seen: Vec::new(), writes };
            actor.act(isolation, &mut random).unwrap();
            let Actor { reads, seen, writes, .. } = actor;
            match transaction.commit() {
                Ok(()) => done.push(Done { id, began, ended: tick(), reads, seen, writes }),
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        done
    };
    let history = std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.sweep(8).unwrap();
                std::thread::yield_now();
            }
        });
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        sweeper.join().unwrap();
        ended.into_iter().flat_map(Result::unwrap).collect()
    });
    let lists = (0..KEYS).map(|key| list(&spaces.lists.get(&[key]).unwrap().unwrap_or_default())).collect();
    assert!(store.verify().unwrap().is_sound());
    (history, lists)
}

/// What a key with this list shows, and when that expires, if at all.
fn shown_after(list: &[u32], key: u8, writers: &BTreeMap<u32, &Done>) -> (Option<Vec<u8>>, Option<u64>) {
    list.iter().fold((None, None), |(shown, expiry), id| match writers[id].writes[&key] {
        Act::Put => (Some(id.to_le_bytes().to_vec()), None),
        Act::PutUntil(expiry_ms) => (Some(id.to_le_bytes().to_vec()), Some(expiry_ms)),
        Act::Append => (Some([shown.unwrap_or_default(), id.to_le_bytes().to_vec()].concat()), expiry),
        Act::Delete => (None, None),
    })
}

/// Compares what was shown with what the lists say, and returns how often a value had expired.
fn check_shown(history: &[Done]) -> u32 {
    let writers = history.iter().map(|done| (done.id, done)).collect();
    let mut expired = 0;
    for Seen { key, list, shown, from_ms, to_ms } in history.iter().flat_map(|done| &done.seen) {
        let (expected, expiry) = shown_after(list, *key, &writers);
        let may_be_shown = expiry.is_none_or(|expiry| expiry > *from_ms);
        let may_be_over = expiry.is_some_and(|expiry| expiry <= *to_ms);
        let is_right = may_be_shown && *shown == expected || may_be_over && shown.is_none();
        assert!(is_right, "key {key} shows {shown:?} behind {list:?}: {expected:?} until {expiry:?}, seen from {from_ms} to {to_ms}");
        expired += u32::from(may_be_over && shown.is_none());
    }
    expired
}

/// Nodes are transactions, then moments.
struct Graph {
    node_count: usize,
    /// Edges other than rw.
    order: Vec<(usize, usize)>,
    /// From a reader to the transaction that has overwritten what it read.
    rw: Vec<(usize, usize)>,
}

impl Graph {
    fn of(history: &[Done], lists: &[Vec<u32>]) -> Self {
        let numbers: BTreeMap<u32, usize> = history.iter().enumerate().map(|(number, done)| (done.id, number)).collect();
        let (mut order, mut rw) = (Vec::new(), Vec::new());
        for list in lists {
            order.extend(list.windows(2).map(|pair| (numbers[&pair[0]], numbers[&pair[1]])));
        }
        for (number, done) in history.iter().enumerate() {
            for (key, found) in &done.reads {
                let list = &lists[usize::from(*key)];
                assert!(list.starts_with(found), "{} has read what was never there: {found:?} of {list:?}", done.id);
                order.extend(found.last().map(|last| (numbers[last], number)));
                rw.extend(list.get(found.len()).map(|next| (number, numbers[next])).filter(|(from, to)| from != to));
            }
        }
        let moments = history.iter().map(|done| done.ended).max().map_or(0, |last| last + 1);
        let moment = |at: usize| history.len() + at;
        order.extend((1..moments).map(|at| (moment(at - 1), moment(at))));
        for (number, done) in history.iter().enumerate() {
            order.extend([(number, moment(done.ended)), (moment(done.began), number)]);
        }
        Self { node_count: history.len() + moments, order, rw }
    }

    fn is_serializable(&self) -> bool {
        is_acyclic(self.node_count, self.order.iter().chain(&self.rw).copied())
    }

    fn is_allowed_by_snapshots(&self) -> bool {
        let by_rw = |node: usize| self.node_count + node;
        let order = self.order.iter().flat_map(|&(from, to)| [(from, to), (by_rw(from), to)]);
        is_acyclic(2 * self.node_count, order.chain(self.rw.iter().map(|&(from, to)| (from, by_rw(to)))))
    }
}

/// Removes nodes without incoming edges until nothing is left, or only cycles.
fn is_acyclic(node_count: usize, edges: impl Iterator<Item = (usize, usize)>) -> bool {
    let (mut successors, mut indegrees) = (vec![Vec::new(); node_count], vec![0; node_count]);
    for (from, to) in edges {
        successors[from].push(to);
        indegrees[to] += 1;
    }
    let mut free: Vec<usize> = (0..node_count).filter(|node| indegrees[*node] == 0).collect();
    let mut taken = 0;
    while let Some(node) = free.pop() {
        taken += 1;
        for &next in &successors[node] {
            indegrees[next] -= 1;
            if indegrees[next] == 0 {
                free.push(next);
            }
        }
    }
    taken == node_count
}

fn check(history: &[Done], lists: &[Vec<u32>]) -> (bool, bool) {
    let written: usize = history.iter().map(|done| done.writes.len()).sum();
    assert_eq!(written, lists.iter().map(Vec::len).sum::<usize>(), "an update was lost, or came from nowhere");
    let graph = Graph::of(history, lists);
    (graph.is_serializable(), graph.is_allowed_by_snapshots())
}

/// Number of transactions that were not committed.
fn conflicts_of(history: &[Done]) -> usize {
    THREADS as usize * PER_THREAD as usize - history.len()
}

#[test]
fn serializable_transactions_are_strictly_serializable() {
    for index in INDEXES {
        let (mut conflicts, mut expired) = (0, 0);
        for seed in 0..12 {
            let (history, lists) = run(index, Isolation::Serializable, seed);
            assert!(history.len() > 50);
            assert_eq!(check(&history, &lists), (true, true), "{index}, seed {seed}");
            conflicts += conflicts_of(&history);
            expired += check_shown(&history);
        }
        println!("{index}: {conflicts} conflicts; {expired} times something had expired");
        assert!(conflicts > 0 && expired > 0);
    }
}

#[test]
fn transactions_with_snapshots_are_isolated_by_them() {
    for index in INDEXES {
        let (mut skewed, mut conflicts, mut expired) = (0, 0, 0);
        for seed in 100..112 {
            let (history, lists) = run(index, Isolation::Snapshot, seed);
            let (is_serializable, is_allowed) = check(&history, &lists);
            assert!(is_allowed, "{index}, seed {seed}");
            skewed += u32::from(!is_serializable);
            conflicts += conflicts_of(&history);
            expired += check_shown(&history);
        }
        println!("{index}: write skew in {skewed} of 12 histories; {conflicts} conflicts; {expired} times something had expired");
        assert!(skewed > 0 && conflicts > 0 && expired > 0);
    }
}

/// A test of the checker itself: histories of known kinds.
#[test]
fn the_checker_tells_known_histories_apart() {
    let done = |id, began, ended, reads: &[(u8, &[u32])], writes: &[u8]| {
        let reads = reads.iter().map(|(key, list)| (*key, list.to_vec())).collect();
        Done { id, began, ended, reads, seen: Vec::new(), writes: writes.iter().map(|key| (*key, Act::Put)).collect() }
    };
    // Write skew.
    let history = [done(1, 0, 2, &[(0, &[]), (1, &[])], &[0]), done(2, 1, 3, &[(0, &[]), (1, &[])], &[1])];
    assert_eq!(check(&history, &[vec![1], vec![2]]), (false, true));
    // Usually a lost update loses its list entry. Here both are in the list, though neither has read the other.
    let history = [done(1, 0, 2, &[(0, &[])], &[0]), done(2, 1, 3, &[(0, &[])], &[0])];
    assert_eq!(check(&history, &[vec![1, 2]]), (false, false));
    // Read skew.
    let history = [done(1, 0, 2, &[(0, &[]), (1, &[])], &[0, 1]), done(2, 1, 3, &[(0, &[]), (1, &[1])], &[])];
    assert_eq!(check(&history, &[vec![1], vec![1]]), (false, false));
    // A long fork: two readers see two writers in different orders.
    let history = [
        done(1, 0, 10, &[(0, &[])], &[0]),
        done(2, 1, 11, &[(1, &[])], &[1]),
        done(3, 2, 12, &[(0, &[1]), (1, &[])], &[]),
        done(4, 3, 13, &[(0, &[]), (1, &[2])], &[]),
    ];
    assert_eq!(check(&history, &[vec![1], vec![2]]), (false, false));
    // A reader does not see a write that had returned before it began.
    let history = [done(1, 0, 1, &[(0, &[])], &[0]), done(2, 2, 3, &[(0, &[])], &[])];
    assert_eq!(check(&history, &[vec![1]]), (false, false));
    let history = [done(1, 0, 2, &[(0, &[])], &[0]), done(2, 1, 3, &[(0, &[])], &[])];
    assert_eq!(check(&history, &[vec![1]]), (true, true));
}
