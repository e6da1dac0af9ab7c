//! Stores that are opened only to be read.

use crate::INDEXES;
use crate::fixture::{Content, FAR_MS, check, content, keys};
use everleaf::{Batch, Change, Domain, Error, ErrorKind, Evacuation, Isolation, Merge, Namespace, Options, Store};
use everleaf_pmem::PoolOptions;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn options(index: &str) -> Options {
    Options { index: index.into(), size_max: 64 << 20, ..Options::default() }
}

/// All files of a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Writes `count` keys so that recovery has something to do: leaves that were divided and merged, versions that a snapshot held, a tombstone, keys that expire.
fn fill(store: &Store, count: u32) -> Content {
    let [first, second] = ["first", "second"].map(|name| store.namespace(name).unwrap());
    for n in 0..count {
        first.put(&n.to_be_bytes(), &vec![n as u8; n as usize % 300]).unwrap();
    }
    for n in (0..count - 2).filter(|n| n % 7 < 5) {
        first.delete(&n.to_be_bytes()).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    first.delete(&(count - 2).to_be_bytes()).unwrap();
    first.put(&(count - 1).to_be_bytes(), b"new").unwrap();
    let mut batch = Batch::default();
    batch.put(&second, b"k", b"v");
    batch.put_until(&second, b"expires", b"later", FAR_MS);
    store.write(batch).unwrap();
    let content = content(store);
    // The versions that it holds back stay, as after a crash.
    drop(snapshot);
    content
}

#[track_caller]
fn expect_refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let error = outcome.expect_err("a write to a store that is only read");
    assert!(error.to_string().contains("opened only to be read") && error.kind() == ErrorKind::Closed, "{error}");
}

fn expect_no_writes(store: &Store) {
    let space = store.namespace("first").unwrap();
    let absent = store.namespace("absent").unwrap();
    for space in [&space, &absent] {
        expect_refusal(space.put(b"k", b"v"));
        expect_refusal(space.insert(b"k", &[7; 5_000]));
        expect_refusal(space.merge(b"k", &Merge::Append(b"v".to_vec())));
        expect_refusal(space.modify(b"k", |_| Change::Put(b"v".to_vec())));
        expect_refusal(store.transact(Isolation::Serializable, |transaction| transaction.put(space, b"k", b"v")));
        expect_refusal(store.transact(Isolation::Snapshot, |transaction| transaction.put(space, b"k", &[7; 5_000])));
        let mut batch = Batch::default();
        batch.put(space, b"k", b"v");
        expect_refusal(store.write(batch));
    }
    let key = &keys(&space)[0];
    expect_refusal(space.delete(key));
    expect_refusal(space.delete_range::<[u8]>(..));
    expect_refusal(space.compare_and_swap(key, space.get(key).unwrap().as_deref(), None));
    expect_refusal(space.clear());
    expect_refusal(store.drop_namespace("first"));
    expect_refusal(store.compact(Evacuation::Sparse, |_| ControlFlow::Continue(())));
}

fn expect_reads(store: &Store, expected: &Content) {
    assert!(content(store) == *expected);
    check(store);
    let snapshot = store.snapshot().unwrap();
    for ((name, key), (value, _)) in expected.iter().step_by(11) {
        let space: Namespace = store.namespace(name).unwrap();
        assert_eq!(snapshot.get(&space, key).unwrap().as_ref(), Some(value));
        let read = store.transact(Isolation::Serializable, |transaction| transaction.get(&space, key)).unwrap();
        assert_eq!(read.as_ref(), Some(value));
    }
    let mut export = snapshot.export(&[], Vec::new()).unwrap();
    while export.advance().unwrap() {}
    assert_eq!(export.finish().unwrap().1.entries, expected.len() as u64);
    _ = store.collect(usize::MAX);
    _ = store.keep_house();
    assert!(content(store) == *expected);
}

/// Whether it was closed or not, and whether its journal is still there: nobody sees that it was read.
#[test]
fn whoever_only_reads_a_pool_changes_nothing() {
    for index in INDEXES {
        let mut cases = vec![(Domain::PageCache, 3_000, true), (Domain::PageCache, 3_000, false)];
        if index == "ever" {
            // Each write waits for the device.
            cases.extend([(Domain::Msync, 50, true), (Domain::Msync, 50, false)]);
        }
        for (domain, count, closes) in cases {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("pool");
            let store = Store::open(&path, Options { domain: Some(domain), ..options(index) }).unwrap();
            let expected = fill(&store, count);
            if closes {
                store.close().unwrap();
            } else {
                drop(store);
            }
            let before = files(directory.path());
            let readers = [false, true].map(|keeps_house| Store::open_read_only(&path, Options { keeps_house, ..options(index) }).unwrap());
            for reader in &readers {
                expect_reads(reader, &expected);
                expect_no_writes(reader);
                expect_reads(reader, &expected);
            }
            assert_eq!(Store::open(&path, options(index)).unwrap_err().kind(), ErrorKind::InUse);
            let [closed, dropped] = readers;
            closed.close().unwrap();
            drop(dropped);
            assert!(files(directory.path()) == before, "{index}, {domain}, closed: {closes}");

            let store = Store::open(&path, options(index)).unwrap();
            assert_eq!(Store::open_read_only(&path, options(index)).unwrap_err().kind(), ErrorKind::InUse);
            assert!(content(&store) == expected);
            check(&store);
            store.close().unwrap();
        }
    }
}

/// A pool that is full, and one without a store: neither has room to grow, and nothing is needed.
#[test]
fn a_pool_without_room_can_be_read() {
    for index in INDEXES {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let store = Store::open(&path, Options { size_max: 4 << 20, ..options(index) }).unwrap();
        let space = store.namespace("space").unwrap();
        let count = (0..).find(|n: &u32| space.put(&n.to_be_bytes(), &[7; 200]).is_err()).unwrap();
        drop((space, store));
        let reader = Store::open_read_only(&path, options(index)).unwrap();
        assert_eq!(keys(&reader.namespace("space").unwrap()).len(), count as usize, "{index}");
        check(&reader);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    everleaf_pmem::Pool::create(&path, &PoolOptions { size_max: 4 << 20, ..PoolOptions::default() }).unwrap().close().unwrap();
    let reader = Store::open_read_only(&path, Options::default()).unwrap();
    assert!(reader.namespaces().is_empty());
    expect_refusal(reader.namespace("space").unwrap().put(b"k", b"v"));
    assert_eq!(Store::open_read_only(directory.path().join("absent"), Options::default()).unwrap_err().kind(), ErrorKind::NoPool);
}
