//! Large values of transactions: stored in the pool when they are set, read from there, and freed unless they are committed.

use crate::fixture;
use everleaf::{Error, HeldBack, Isolation, Merge, Namespace, Options, Store, Transaction};
use everleaf_pmem::{Domain, Hardware, Pool, PoolOptions, Usage};
use std::ops::{Bound, ControlFlow};

const INDEXES: [&str; 2] = ["ever", "nv"];
/// Counts as large in every build.
const LARGE: usize = 2_000;

fn store(index: &str) -> (Store, Namespace) {
    let (store, space) = fixture::store(Options { size_max: 16 << 20, index: index.into(), ..Options::default() });
    space.put(b"a", &[1; LARGE]).unwrap();
    space.put(b"b", b"small").unwrap();
    (store, space)
}

/// The usage of the pool after pending garbage is freed.
fn usage(store: &Store) -> Usage {
    store.collect(usize::MAX).unwrap();
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
    store.pool().collect();
    Usage { retired: 0, ..report.usage }
}

fn shown(transaction: &Transaction, space: &Namespace) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut shown = Vec::new();
    let visit = |key: &[u8], value: &[u8]| {
        shown.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    transaction.scan(space, Bound::Unbounded, everleaf::Direction::Forward, visit).unwrap();
    shown
}

#[test]
fn a_transaction_reads_what_it_has_written_to_the_pool() {
    for index in INDEXES {
        let (store, space) = store(index);
        let mut transaction = store.begin(Isolation::Serializable).unwrap();
        transaction.put_until(&space, b"c", &[3; LARGE], Some(u64::MAX)).unwrap();
        transaction.put(&space, b"b", &[2; LARGE]).unwrap();
        assert!(store.held_back().draft_bytes >= 2 * LARGE as u64, "{:?}", store.held_back());
        assert_eq!(transaction.get(&space, b"b").unwrap(), Some(vec![2; LARGE]));
        assert_eq!(transaction.value_size(&space, b"c").unwrap(), Some(LARGE));
        let entry = transaction.entry(&space, b"c").unwrap().unwrap();
        assert_eq!((entry.value, entry.expiry_ms), (vec![3; LARGE], Some(u64::MAX)));
        let keys: [&[u8]; 3] = [b"c", b"a", b"b"];
        assert_eq!(transaction.get_many(&space, &keys).unwrap(), [3, 1, 2].map(|byte| Some(vec![byte; LARGE])));
        transaction.merge(&space, b"b", Merge::Append(vec![4; LARGE])).unwrap();
        let appended = [vec![2; LARGE], vec![4; LARGE]].concat();
        let wanted = [(b"a", vec![1; LARGE]), (b"b", appended.clone()), (b"c", vec![3; LARGE])].map(|(key, value)| (key.to_vec(), value));
        assert_eq!(shown(&transaction, &space), wanted);
        assert_eq!(space.get(b"b").unwrap().as_deref(), Some(&b"small"[..]), "nobody else does");
        usage(&store);
        transaction.commit().unwrap();
        assert_eq!((space.get(b"b").unwrap(), space.expiry_ms(b"c").unwrap()), (Some(appended), Some(Some(u64::MAX))));
        assert_eq!(store.held_back(), HeldBack::default());
        usage(&store);
    }
}

/// However a transaction ends without a commit, and whatever it has rolled back before, not one block more is in use.
#[test]
fn what_is_not_committed_leaves_not_one_block() {
    type End = fn(&Store, &Namespace, Transaction);
    let ends: [(&str, End); 5] = [
        ("aborted", |_, _, _| ()),
        ("in conflict", |_, space, transaction| {
            space.put(b"b", b"other").unwrap();
            assert!(matches!(transaction.commit(), Err(Error::Conflict { .. })));
        }),
        ("overwritten", |_, space, mut transaction| {
            (0..20u8).for_each(|n| transaction.put(space, b"b", &vec![n; LARGE]).unwrap());
            transaction.delete(space, b"b").unwrap();
        }),
        ("back to a savepoint", |store, space, mut transaction| {
            let before = store.held_back().draft_bytes;
            for _ in 0..3 {
                let savepoint = transaction.savepoint();
                (0..20u8).for_each(|n| transaction.put(space, &[b'b', n % 3], &vec![n; LARGE]).unwrap());
                transaction.merge(space, b"b", Merge::Append(vec![5; LARGE])).unwrap();
                transaction.delete(space, b"c").unwrap();
                transaction.rollback_to(&savepoint);
                assert_eq!(store.held_back().draft_bytes, before);
            }
            assert_eq!(transaction.get(space, b"b").unwrap(), Some(vec![2; LARGE]));
        }),
        ("a merge that fails", |_, space, mut transaction| {
            assert!(matches!(transaction.merge(space, b"b", Merge::Add(1)), Err(Error::Merge { .. })));
            transaction.merge(space, b"a", Merge::Add(1)).unwrap();
            assert!(matches!(transaction.commit(), Err(Error::Merge { .. })));
        }),
    ];
    for index in INDEXES {
        for (name, end) in ends {
            let (store, space) = store(index);
            let before = usage(&store);
            let mut transaction = store.begin(Isolation::Snapshot).unwrap();
            (b'b'..b'z').for_each(|key| transaction.put(&space, &[key], &[2; LARGE]).unwrap());
            let during = usage(&store);
            assert!(during.reachable > before.reachable + 20, "{index}: {name}: {before:?}, {during:?}");
            end(&store, &space, transaction);
            assert_eq!(usage(&store), before, "{index}: {name}");
            assert_eq!(store.held_back(), HeldBack::default(), "{index}: {name}");
        }
    }
}

/// The value is refused when it is set. Earlier values stay, and can be committed if the index finds room. Afterwards, with or without the commit, there is as
/// much room as before.
#[test]
fn a_full_pool_refuses_a_large_value_at_once() {
    for index in INDEXES {
        let (store, space) = store(index);
        let fill = |transaction: &mut Transaction| {
            let mut count = 0u32;
            loop {
                match transaction.put(&space, &count.to_be_bytes(), &[6; 100 << 10]) {
                    Ok(()) => count += 1,
                    Err(error) => {
                        assert!(error.is_no_space(), "{error}");
                        return count;
                    }
                }
            }
        };
        let before = usage(&store);
        let mut aborted = store.begin(Isolation::Snapshot).unwrap();
        let most = fill(&mut aborted);
        assert!(most > 100 && aborted.value_size(&space, &most.to_be_bytes()).unwrap().is_none(), "{index}: {most}");
        assert!(space.put(b"other", &[7; 100 << 10]).is_err_and(|error| error.is_no_space()), "{index}");
        drop(aborted);
        assert_eq!(usage(&store), before, "{index}");
        let mut again = store.begin(Isolation::Snapshot).unwrap();
        assert_eq!(fill(&mut again), most, "{index}");
        drop(again);
        // Six fewer leave ten slabs for the commit's log and the index's leaves, which are allocated only when they are written.
        let most = most - 6;
        let mut committed = store.begin(Isolation::Snapshot).unwrap();
        (0..most).for_each(|n| committed.put(&space, &n.to_be_bytes(), &[6; 100 << 10]).unwrap());
        committed.commit().unwrap();
        assert_eq!(space.count(), 2 + u64::from(most), "{index}");
        assert!((0..most).all(|n| space.value_size(&n.to_be_bytes()).unwrap() == Some(100 << 10)));
        usage(&store);
    }
}

/// A value written in one thread and committed in another: the crash checker tests whose flush makes it durable, this test counts.
#[test]
fn large_values_are_written_back_once_and_share_the_fences() {
    const COUNT: u64 = 33;
    let pool = Pool::anonymous(Hardware::new(Domain::Adr).with_counters(None), PoolOptions { size_max: 64 << 20, ..PoolOptions::default() }).unwrap();
    let store = Store::on(pool.clone(), &Options::default()).unwrap();
    let space = store.namespace("space").unwrap();
    let counts = || {
        let totals = pool.medium().counters().unwrap().totals();
        (totals.lines_flushed, totals.fences)
    };
    let mut cost = (0, 0);
    // The first rounds take slabs, and divide leaves.
    for _ in 0..3 {
        pool.collect();
        let before = counts();
        let mut transaction = store.begin(Isolation::Snapshot).unwrap();
        for n in 0..COUNT {
            transaction.put(&space, &n.to_be_bytes(), &[n as u8; LARGE]).unwrap();
        }
        std::thread::scope(|scope| scope.spawn(|| transaction.commit().unwrap()).join().unwrap());
        let after = counts();
        cost = (after.0 - before.0, after.1 - before.1);
    }
    assert_eq!(cost.1, 4);
    let record = (4 + 1 + LARGE as u64 / 8) / 8 + 2;
    assert!(cost.0 <= COUNT * (record + 1) + 12, "{cost:?}: {record} lines a record, at most");
    assert_eq!(store.held_back(), HeldBack::default());
}

#[test]
fn a_store_is_not_closed_under_a_transaction_that_has_written_to_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let open = || Store::open(&path, Options { size_max: 16 << 20, ..Options::default() }).unwrap();
    let store = open();
    let space = store.namespace("space").unwrap();
    space.put(b"a", b"1").unwrap();
    let mut transaction = store.begin(Isolation::Snapshot).unwrap();
    transaction.put(&space, b"b", &[2; LARGE]).unwrap();
    assert!(matches!(store.close().map_err(Error::from), Err(Error::SnapshotsOpen { count: 1 })));
    drop((transaction, space));
    let store = open();
    assert_eq!(store.namespace("space").unwrap().count(), 1);
    assert_eq!(usage(&store).leaked, 0);
    store.close().unwrap();
}
