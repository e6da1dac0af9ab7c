//! Random histories of transactions, checked for serializability and snapshot isolation.
//!
//! Every transaction appends its number to the lists of some keys, so a list tells who has written the key, and in which order; whoever reads it tells after
//! whom he comes and before whom. These are edges of a graph:
//!
//! - *ww*: the next in the list; *wr*: the last one that a reader has found; *rw*: from a reader to the first that he has not found;
//! - *time*: from a transaction to those that began after it had returned. (By way of a chain of moments, so that their number is linear.)
//!
//! The history is strictly serializable if the graph has no circle; it is what snapshots allow, in real time, if every circle has two rw edges in a row (Adya;
//! Cerone and Gotsman). A circle without is one in the graph of pairs of a transaction and whether it was entered by an rw edge, which may not be left by
//! another one.

use everleaf::{Direction, Error, Isolation, Namespace, Options, Store, Transaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicUsize, Ordering};

const THREADS: u64 = 4;
const KEYS: u8 = 6;

/// A transaction that was committed.
struct Done {
    id: u32,
    began: usize,
    ended: usize,
    reads: Reads,
    writes: Vec<u8>,
}

fn list(value: &[u8]) -> Vec<u32> {
    value.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect()
}

fn read(transaction: &Transaction, space: &Namespace, key: u8) -> Result<Vec<u32>, Error> {
    Ok(list(&transaction.get(space, &[key])?.unwrap_or_default()))
}

/// What was found in the keys that were read.
type Reads = BTreeMap<u8, Vec<u32>>;

/// Reads some keys, or all by a scan, and appends to some.
fn act(transaction: &mut Transaction, space: &Namespace, id: u32, random: &mut StdRng) -> Result<(Reads, Vec<u8>), Error> {
    let mut reads = BTreeMap::new();
    if random.random_ratio(1, 4) {
        let visit = |key: &[u8], value: &[u8]| {
            reads.insert(key[0], list(value));
            ControlFlow::Continue(())
        };
        transaction.scan(space, Bound::Unbounded, Direction::Forward, visit)?;
        for key in 0..KEYS {
            reads.entry(key).or_default();
        }
    }
    for _ in 0..random.random_range(1..4u32) {
        let key = random.random_range(0..KEYS);
        let found = read(transaction, space, key)?;
        let before = reads.insert(key, found.clone());
        assert!(before.is_none_or(|before| before == found), "a read that differs the second time");
        if random.random_ratio(1, 4) {
            std::thread::yield_now();
        }
    }
    let mut writes = Vec::new();
    for _ in 0..random.random_range(0..3u32) {
        let key = random.random_range(0..KEYS);
        if !writes.contains(&key) {
            let found = read(transaction, space, key)?;
            let appended: Vec<u8> = found.iter().chain([&id]).flat_map(|id| id.to_le_bytes()).collect();
            transaction.put(space, &[key], &appended)?;
            assert_eq!(read(transaction, space, key)?.last(), Some(&id), "its own writes are read");
            reads.insert(key, found);
            writes.push(key);
        }
    }
    Ok((reads, writes))
}

/// A history, and the lists in the end.
fn run(isolation: Isolation, seed: u64, per_thread: u32) -> (Vec<Done>, Vec<Vec<u32>>) {
    let store = Store::anonymous(Options { size_max: 64 << 20, index: "isle-128".into(), ..Options::default() }).unwrap();
    let space = store.namespace("lists").unwrap();
    let clock = AtomicUsize::new(0);
    let work = |thread: u64| {
        let mut random = StdRng::seed_from_u64(seed << 8 | thread);
        let mut done = Vec::new();
        for number in 0..per_thread {
            let id = thread as u32 * per_thread + number;
            let began = clock.fetch_add(1, Ordering::SeqCst);
            let mut transaction = store.begin(isolation).unwrap();
            let (reads, writes) = act(&mut transaction, &space, id, &mut random).unwrap();
            match transaction.commit() {
                Ok(()) => done.push(Done { id, began, ended: clock.fetch_add(1, Ordering::SeqCst), reads, writes }),
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        done
    };
    let history = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let lists = (0..KEYS).map(|key| list(&space.get(&[key]).unwrap().unwrap_or_default())).collect();
    assert!(store.verify().unwrap().is_sound());
    (history, lists)
}

/// Nodes are transactions, then moments.
struct Graph {
    node_count: usize,
    /// Edges other than rw.
    order: Vec<(usize, usize)>,
    /// From a reader to who has overwritten what he has read.
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

/// Takes away what nothing leads to, until nothing is left, or a circle.
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

#[test]
fn serializable_transactions_are_strictly_serializable() {
    for seed in 0..12 {
        let (history, lists) = run(Isolation::Serializable, seed, 250);
        assert!(history.len() > 50);
        assert_eq!(check(&history, &lists), (true, true), "seed {seed}");
    }
}

#[test]
fn transactions_with_snapshots_are_isolated_by_them() {
    let mut skewed = 0;
    for seed in 100..112 {
        let (history, lists) = run(Isolation::Snapshot, seed, 250);
        let (is_serializable, is_allowed) = check(&history, &lists);
        assert!(is_allowed, "seed {seed}");
        skewed += u32::from(!is_serializable);
    }
    println!("write skew in {skewed} of 12 histories");
}

/// The checker itself: histories that are known to be one thing or the other.
#[test]
fn the_checker_tells_known_histories_apart() {
    let done = |id, began, ended, reads: &[(u8, &[u32])], writes: &[u8]| {
        let reads = reads.iter().map(|(key, list)| (*key, list.to_vec())).collect();
        Done { id, began, ended, reads, writes: writes.to_vec() }
    };
    // Write skew.
    let history = [done(1, 0, 2, &[(0, &[]), (1, &[])], &[0]), done(2, 1, 3, &[(0, &[]), (1, &[])], &[1])];
    assert_eq!(check(&history, &[vec![1], vec![2]]), (false, true));
    // A lost update shows as one that came from nowhere; here both are in the list, though neither has read the other.
    let history = [done(1, 0, 2, &[(0, &[])], &[0]), done(2, 1, 3, &[(0, &[])], &[0])];
    assert_eq!(check(&history, &[vec![1, 2]]), (false, false));
    // Read skew.
    let history = [done(1, 0, 2, &[(0, &[]), (1, &[])], &[0, 1]), done(2, 1, 3, &[(0, &[]), (1, &[1])], &[])];
    assert_eq!(check(&history, &[vec![1], vec![1]]), (false, false));
    // A long fork: two readers who see two writers in different orders.
    let history = [
        done(1, 0, 10, &[(0, &[])], &[0]),
        done(2, 1, 11, &[(1, &[])], &[1]),
        done(3, 2, 12, &[(0, &[1]), (1, &[])], &[]),
        done(4, 3, 13, &[(0, &[]), (1, &[2])], &[]),
    ];
    assert_eq!(check(&history, &[vec![1], vec![2]]), (false, false));
    // A reader who does not see what had returned before he began.
    let history = [done(1, 0, 1, &[(0, &[])], &[0]), done(2, 2, 3, &[(0, &[])], &[])];
    assert_eq!(check(&history, &[vec![1]]), (false, false));
    let history = [done(1, 0, 2, &[(0, &[])], &[0]), done(2, 1, 3, &[(0, &[])], &[])];
    assert_eq!(check(&history, &[vec![1]]), (true, true));
}
