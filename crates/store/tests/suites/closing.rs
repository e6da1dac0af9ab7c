//! Stores that are opened again, after a close or without one.

use crate::fixture::keys;
use everleaf::{Batch, Error, Namespace, Options, Store, Swept};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;

fn open(path: &Path, index: &str) -> Store {
    Store::open(path, Options { index: index.into(), size_max: 64 << 20, ..Options::default() }).unwrap()
}

fn key(n: u32) -> [u8; 8] {
    u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// The position of eight bytes in a file.
fn position(bytes: &[u8], wanted: [u8; 8]) -> usize {
    bytes.chunks_exact(8).position(|word| word == wanted).expect("it is there") * 8
}

/// Opening a closed store reads no leaves and records; they are read on access. Opening one that was not closed reads them all.
#[test]
fn a_closed_store_is_opened_without_a_look_at_its_records() {
    for index in ["ever", "ever-64", "isle-128"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let store = open(&path, index);
        let space = store.namespace("space").unwrap();
        for n in 0..1_000 {
            space.put(&key(n), &(u64::from(n) | 0xabcd_u64 << 48).to_le_bytes()).unwrap();
        }
        drop(space);
        store.close().unwrap();
        let sound = std::fs::read(&path).unwrap();
        let mut damaged = sound.clone();
        // The value follows four words of header and one of key. The first word holds the lengths.
        let at = position(&sound, (500 | 0xabcd_u64 << 48).to_le_bytes());
        damaged[at - 40..at - 32].fill(0xff);
        std::fs::write(&path, &damaged).unwrap();

        let store = open(&path, index);
        assert!(!store.pool().needs_recovery());
        let space = store.namespace("space").unwrap();
        assert_eq!((space.count(), keys_but(&space, 500)), (1_000, 999), "{index}");
        assert!(space.get(&key(500)).is_err() && !store.verify().unwrap().is_sound(), "{index}");
        drop((space, store));
        let options = Options { size_max: 64 << 20, ..Options::default() };
        assert!(Store::open(&path, options).is_err(), "{index}: what was not closed is read as a whole");

        std::fs::write(&path, &sound).unwrap();
        let store = open(&path, index);
        assert_eq!(keys(&store.namespace("space").unwrap()).len(), 1_000, "{index}");
        assert!(store.verify().unwrap().is_sound(), "{index}");
    }
}

/// Number of keys that are there, not counting one.
fn keys_but(space: &Namespace, other: u32) -> usize {
    (0..1_000).filter(|n| *n != other && space.get(&key(*n)).unwrap().is_some()).count()
}

/// The data left at a close describe the closed store. After a write and a crash they must not count.
#[test]
fn what_a_closed_store_left_behind_is_not_believed_after_a_write() {
    let seed = 0x5eed;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    for index in ["ever-64", "isle-128", "nv", "fp", "fast-fair-128", "circ-192"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let mut models: [BTreeMap<Vec<u8>, Vec<u8>>; 2] = Default::default();
        let mut closed = false;
        for life in 0..30 {
            let store = open(&path, index);
            assert!(!store.pool().needs_recovery(), "recovery is over");
            let spaces = ["first", "second"].map(|name| store.namespace(name).unwrap());
            for (space, model) in spaces.iter().zip(&models) {
                assert_eq!(space.count(), model.len() as u64, "{index}, life {life}, closed before: {closed}");
                assert!(keys(space).iter().eq(model.keys()));
                assert!(model.iter().all(|(key, value)| space.get(key).unwrap().as_ref() == Some(value)));
            }
            assert!(store.verify().unwrap().is_sound());
            let snapshot = random.random_bool(0.3).then(|| store.snapshot().unwrap());
            for _ in 0..[0, 1, 300][random.random_range(0..3usize)] {
                let (at, key) = (random.random_range(0..2usize), key(random.random_range(0..200)));
                match random.random_range(0..10u32) {
                    0..3 => assert_eq!(spaces[at].delete(&key).unwrap(), models[at].remove(&key[..]).is_some()),
                    3 => {
                        let mut batch = Batch::default();
                        batch.put(&spaces[0], &key, b"both");
                        batch.delete(&spaces[1], &key);
                        store.write(batch).unwrap();
                        models[0].insert(key.to_vec(), b"both".to_vec());
                        models[1].remove(&key[..]);
                    }
                    4 if random.random_ratio(1, 20) => {
                        spaces[at].clear().unwrap();
                        models[at].clear();
                    }
                    _ => {
                        let value = vec![life as u8; random.random_range(0..100)];
                        spaces[at].put(&key, &value).unwrap();
                        models[at].insert(key.to_vec(), value);
                    }
                }
            }
            drop((snapshot, spaces));
            closed = random.random();
            if closed {
                store.close().unwrap();
            }
        }
    }
}

/// A namespace opened from the data left at its close may hold keys that expire. A pass of the sweep finds them.
#[test]
fn keys_of_a_closed_store_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let store = open(&path, "isle-128");
    let [lasting, limited] = ["lasting", "limited"].map(|name| store.namespace(name).unwrap());
    for n in 0..100 {
        lasting.put(&key(n), b"stays").unwrap();
        limited.put_until(&key(n), b"goes", if n % 2 == 0 { 1 } else { u64::MAX }).unwrap();
    }
    drop((lasting, limited));
    store.close().unwrap();
    let store = open(&path, "isle-128");
    let sweep = || store.sweep(1_000).unwrap();
    assert_eq!(sweep(), Swept { visited: 200, removed: 50, is_round: true });
    assert_eq!(sweep(), Swept { visited: 50, removed: 0, is_round: true }, "what was found to hold none is left alone");
    let [lasting, limited] = ["lasting", "limited"].map(|name| store.namespace(name).unwrap());
    assert_eq!((lasting.count(), limited.count()), (100, 50));
    limited.clear().unwrap();
    assert_eq!(sweep(), Swept { visited: 0, removed: 0, is_round: true });
    lasting.put_until(&key(3), b"goes", 1).unwrap();
    assert_eq!(sweep(), Swept { visited: 100, removed: 1, is_round: true });
    assert_eq!((sweep().visited, sweep().visited), (99, 0));
    assert!(store.verify().unwrap().is_sound());
}

/// In a full pool, removing a tombstone may find no room. The tombstone is not a key, neither before nor after.
#[test]
fn tombstones_that_a_full_pool_keeps_are_no_keys() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let open = || Store::open(&path, Options { index: "nv".into(), size_max: 3 << 20, ..Options::default() }).unwrap();
    let store = open();
    let space = store.namespace("space").unwrap();
    let count = 2_000;
    (0..count).for_each(|n| space.put(&key(n), &[1; 20]).unwrap());
    let snapshot = store.snapshot().unwrap();
    (0..count).step_by(2).for_each(|n| assert!(space.delete(&key(n)).unwrap()));
    let is_refused = |outcome: Result<(), Error>| outcome.is_err_and(|error| error.is_no_space());
    let mut more = 0;
    while !is_refused(space.put(&key(count + more), &[2; 20])) {
        more += 1;
    }
    let left = u64::from(count / 2 + more);
    let check = |store: &Store, space: &Namespace| {
        assert_eq!((space.count(), keys(space).len() as u64), (left, left));
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{report:?}");
    };
    check(&store, &space);
    drop(snapshot);
    store.collect(usize::MAX).unwrap();
    println!("{more} more keys, {:?}", store.held_back());
    check(&store, &space);
    drop(space);
    store.close().unwrap();
    for _ in 0..2 {
        let store = open();
        let space = store.namespace("space").unwrap();
        println!("{:?}", store.held_back());
        check(&store, &space);
    }
    let store = open();
    let space = store.namespace("space").unwrap();
    space.clear().unwrap();
    while store.collect(100).unwrap() > 0 {}
    assert_eq!((space.count(), store.held_back().count), (0, 0));
    space.put(b"again", &[0; 1_000]).unwrap();
    assert!(store.verify().unwrap().is_sound());
}
