//! External influences on a store: full pools, damage, bad input, restarts.

use crate::fixture::{self, keys};
use everleaf::{Batch, Change, Cursor, Direction, Error, ErrorKind, KEY_SIZE_MAX, NAMESPACE_SIZE_MAX, Namespace, Options, Store};
use everleaf_pmem::{Found, Medium, Off, Pool, PoolOptions, Word};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

fn options() -> Options {
    Options { size_max: 64 << 20, ..Options::default() }
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn a_store_that_was_not_closed_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    for (round, threads) in [(0u64, 1usize), (1, 2), (2, 5)] {
        let store = Store::open(&path, Options { recovery_threads: threads, ..options() }).unwrap();
        assert_eq!(store.namespaces(), if round == 0 { vec![] } else { vec!["counters".to_owned(), "numbers".to_owned()] });
        let (numbers, counters) = (store.namespace("numbers").unwrap(), store.namespace("counters").unwrap());
        assert_eq!(numbers.count(), round * 5_000);
        for n in 0..round * 5_000 {
            assert_eq!(numbers.get(&key(n)).unwrap().as_deref(), Some(&n.to_le_bytes()[..]));
        }
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{report:?}");
        for n in round * 5_000..(round + 1) * 5_000 {
            let mut batch = Batch::default();
            batch.put(&numbers, &key(n), &n.to_le_bytes());
            batch.put(&counters, b"numbers", &n.to_le_bytes());
            store.write(batch).unwrap();
        }
    }
    let store = Store::open(&path, options()).unwrap();
    store.close().unwrap();
    let store = Store::open(&path, options()).unwrap();
    let numbers = store.namespace("numbers").unwrap();
    assert_eq!((numbers.count(), numbers.get(&key(14_999)).unwrap()), (15_000, Some(14_999u64.to_le_bytes().to_vec())));
    assert!(store.verify().unwrap().is_sound());
}

/// Regression: a wrong path created a new pool there.
#[test]
fn what_is_to_be_there_is_opened_or_the_kind_of_error_tells() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let kind = || Store::open_existing(&path, options()).err().map(|error| error.kind());
    assert_eq!((kind(), path.exists()), (Some(ErrorKind::NoPool), false));
    let store = Store::open(&path, options()).unwrap();
    assert_eq!(kind(), Some(ErrorKind::InUse));
    store.close().unwrap();
    assert_eq!(kind(), None);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[512..1536].fill(7);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(kind(), Some(ErrorKind::Damaged));
    std::fs::write(&path, "something else").unwrap();
    assert_eq!(kind(), Some(ErrorKind::NotAPool));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(kind(), Some(ErrorKind::System));
    let store = Store::anonymous(Options { size_max: 2 << 20, ..options() }).unwrap();
    assert_eq!(store.namespace("space").unwrap().put(b"k", &[1; 2 << 20]).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(store.namespace("").unwrap_err().kind(), ErrorKind::Other);
    let space = store.namespace("space").unwrap();
    let mut batch = Batch::default();
    batch.expect(&space, b"k", Some(b"v"));
    assert_eq!(store.write(batch).unwrap_err().kind(), ErrorKind::Conflict);
    store.close().unwrap();
    assert_eq!(space.put(b"k", b"v").unwrap_err().kind(), ErrorKind::Closed);
}

/// Two stores would divide leaves without each other's knowledge.
#[test]
fn a_pool_has_one_store_at_a_time() {
    let store = Store::anonymous(options()).unwrap();
    let (pool, space) = (store.pool().clone(), store.namespace("space").unwrap());
    let kind = || Store::on(pool.clone(), &options()).err().map(|error| error.kind());
    assert_eq!(kind(), Some(ErrorKind::InUse));
    drop(store);
    assert_eq!(kind(), Some(ErrorKind::InUse), "a handle is left");
    drop(space);
    assert_eq!(kind(), None);
    assert_eq!(kind(), None);
}

#[test]
fn an_index_that_there_is_not_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let wrong = Options { index: "evre".into(), ..options() };
    assert!(matches!(Store::open(&path, wrong), Err(Error::UnknownIndex { .. })));
    assert!(!path.exists());
    let space = Store::anonymous(options()).unwrap().namespace("space").unwrap();
    assert!(matches!(space.prefer_index("evre"), Err(Error::UnknownIndex { .. })));
    assert_eq!(["lb", "isle", "lb"].map(|name| space.prefer_index(name).unwrap()), [true, false, true]);
    assert!(!space.contains_key(b"k").unwrap());
    space.put(b"k", b"v").unwrap();
    assert!(space.contains_key(b"k").unwrap());
}

#[test]
fn a_namespace_keeps_its_index_whatever_the_options_say_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let index_of = |store: &Store, name: &str| store.stats().namespaces.iter().find(|space| space.name == name).map(|space| space.index);
    let store = Store::open(&path, Options { index: "isle-256".into(), ..options() }).unwrap();
    store.namespace("old").unwrap().put(b"k", b"v").unwrap();
    store.close().unwrap();
    let store = Store::open(&path, Options { index: "isle-1k".into(), ..options() }).unwrap();
    store.namespace("new").unwrap().put(b"k", b"v").unwrap();
    assert_eq!((index_of(&store, "old"), index_of(&store, "new")), (Some("isle-256"), Some("isle-1k")));
    let old = store.namespace("old").unwrap();
    assert_eq!(old.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    old.clear().unwrap();
    assert_eq!((index_of(&store, "old"), old.count(), old.get(b"k").unwrap()), (None, 0, None));
    old.put(b"k", b"w").unwrap();
    assert_eq!(index_of(&store, "old"), Some("isle-256"));
    assert!(store.drop_namespace("old").unwrap() && !store.drop_namespace("old").unwrap());
    assert_eq!(store.namespaces(), ["new"]);
    assert!(matches!(Store::open(directory.path().join("other"), Options { index: "volatile".into(), ..options() }), Err(Error::UnknownIndex { .. })));
}

/// Regression: the pool was left as after a crash: refused after a restart of the machine, and `repair` no longer knew which blocks are in use.
#[test]
fn a_pool_that_holds_what_is_not_known_stays_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    for (name, index) in [("a", "ever"), ("b", "isle"), ("z", "ever")] {
        let store = Store::open(&path, Options { index: index.into(), ..options() }).unwrap();
        store.namespace(name).unwrap().put(b"k", name.as_bytes()).unwrap();
        store.close().unwrap();
    }
    let as_pool = |change: &dyn Fn(&Pool)| {
        let pool = Pool::open(&path, &PoolOptions::default()).unwrap();
        change(&pool);
        pool.close().unwrap();
    };
    as_pool(&|pool| _ = pool.link_root("c", 999, pool.seal(pool.alloc_words(8).unwrap())).unwrap());
    for _ in 0..2 {
        assert!(matches!(Store::open_existing(&path, options()), Err(Error::UnknownKind { kind: 999, .. })));
        assert_eq!(Pool::inspect(&path).unwrap().info().found, Found::Clean);
    }
    as_pool(&|pool| {
        let root = pool.unlink_root("c").unwrap();
        pool.retire(Off::<Word>::new(root.off), &pool.pin());
    });
    let store = Store::open_existing(&path, options()).unwrap();
    for name in ["a", "b", "z"] {
        assert_eq!(store.namespace(name).unwrap().get(b"k").unwrap().as_deref(), Some(name.as_bytes()));
    }
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_full_pool_refuses_what_has_no_room_and_keeps_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let open = || Store::open(&path, Options { size_max: 6 << 20, index: "isle-128".into(), ..options() }).unwrap();
    let store = open();
    let (space, other) = (store.namespace("space").unwrap(), store.namespace("other").unwrap());
    other.put(b"there before", b"yes").unwrap();
    let mut model = BTreeMap::new();
    for n in 0.. {
        let value = vec![n as u8; 200 + n as usize % 300];
        match space.put(&key(n), &value) {
            Ok(()) => drop(model.insert(key(n).to_vec(), value)),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                break;
            }
        }
    }
    assert!(model.len() > 1_000);
    let check = |space: &Namespace, model: &BTreeMap<Vec<u8>, Vec<u8>>| {
        assert_eq!(space.count(), model.len() as u64);
        assert!(keys(space).iter().eq(model.keys()));
        assert!(model.iter().all(|(key, value)| space.get(key).unwrap().as_ref() == Some(value)));
    };
    check(&space, &model);

    // A batch that does not fit leaves no trace, wherever it stops.
    for count in [2u64, 10, 100, 3_000] {
        let mut batch = Batch::default();
        batch.put(&other, b"there before", b"no");
        batch.delete(&space, model.keys().next().unwrap());
        (0..count).for_each(|n| batch.put(&other, &key(n), &[0; 3_000]));
        match store.write(batch) {
            Ok(()) => panic!("a full pool took {count} values of 3000 bytes"),
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
        check(&space, &model);
        assert_eq!((other.count(), other.get(b"there before").unwrap().as_deref()), (1, Some(&b"yes"[..])));
    }
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");

    // Deletes need no room, and free some.
    let gone: Vec<_> = model.keys().step_by(2).cloned().collect();
    for key in &gone {
        assert!(space.delete(key).unwrap());
        model.remove(key);
    }
    check(&space, &model);
    for n in 0..gone.len() as u64 / 4 {
        let value = vec![1; 200 + n as usize % 300];
        space.put(&key(n), &value).unwrap();
        model.insert(key(n).to_vec(), value);
    }
    check(&space, &model);
    drop((space, other, store));

    let store = open();
    let space = store.namespace("space").unwrap();
    check(&space, &model);
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{report:?}");
    space.clear().unwrap();
    assert_eq!((space.count(), keys(&space).len()), (0, 0));
    space.put(b"again", &[7; 100_000]).unwrap();
    assert!(store.verify().unwrap().is_sound());
}

/// A pool with room for records, but not for the leaves that an index needs to split: the batch has published some of its records when it fails.
#[test]
fn a_batch_whose_index_is_full_halfway_is_undone() {
    let (store, space) = fixture::store(Options { size_max: 3 << 20, index: "isle-128".into(), ..options() });
    // Takes a slab of blocks as large as the batch's log will be.
    store.namespace("other").unwrap().put(b"k", &[0; 1_900]).unwrap();
    let mut model = BTreeMap::new();
    for n in 0u64.. {
        match space.put(&key(n), &n.to_le_bytes()) {
            Ok(()) => drop(model.insert(key(n), n.to_le_bytes())),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                break;
            }
        }
    }
    let gone: Vec<_> = model.keys().step_by(model.len() / 150).copied().collect();
    for key in &gone {
        assert!(space.delete(key).unwrap());
        model.remove(key);
    }
    let check = || {
        assert!(keys(&space).iter().eq(model.keys()));
        assert!(model.iter().all(|(key, value)| space.get(key).unwrap().as_deref() == Some(value)));
        assert_eq!(space.count(), model.len() as u64);
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{report:?}");
    };
    check();
    // Old keys are overwritten and deleted first. Then new keys, close together, need leaf after leaf.
    let mut batch = Batch::default();
    let (first, second) = (model.keys().next().unwrap(), model.keys().nth(1).unwrap());
    batch.put(&space, first, b"changed!");
    batch.delete(&space, second);
    let last = model.keys().next_back().unwrap();
    (0..120u32).for_each(|n| batch.put(&space, &[&last[..], &n.to_be_bytes()].concat(), b""));
    assert!(store.write(batch).unwrap_err().is_no_space());
    check();
    // The store keeps working.
    let mut batch = Batch::default();
    batch.put(&space, first, b"changed!");
    batch.delete(&space, second);
    store.write(batch).unwrap();
    assert_eq!((space.get(first).unwrap().as_deref(), space.get(second).unwrap()), (Some(&b"changed!"[..]), None));
}

/// Changes one bit of every word of a record's value, key, sizes and seal in turn: each time, an error or the written data.
#[test]
fn damage_is_an_error_and_never_wrong_data() {
    let (store, space) = fixture::store(options());
    let value: Vec<u8> = (0..100).map(|n| n as u8 ^ 0xa5).collect();
    space.put(b"a key of some length", &value).unwrap();
    let pool = store.pool();
    let all = pool.words(Off::<Word>::new(8), pool.length() / 8 - 1).unwrap();
    let first = u64::from_le_bytes(value[..8].try_into().unwrap());
    let at = all.iter().position(|word| word.get() == first).expect("the value lies somewhere");
    // The value follows four words of header and three of key, and takes thirteen.
    let (mut errors, mut unharmed) = (0, 0);
    for (number, word) in all[at - 7..at + 13].iter().enumerate() {
        for bit in 0..64 {
            let sound = word.get();
            pool.store(word, sound ^ 1 << bit, Ordering::Relaxed);
            let got = space.get(b"a key of some length");
            let scanned = space.scan(Bound::Unbounded, Direction::Forward, |key, found| {
                assert_eq!((key, found), (&b"a key of some length"[..], &value[..]));
                ControlFlow::Continue(())
            });
            match got {
                Ok(Some(found)) => {
                    assert_eq!(found, value);
                    unharmed += 1;
                    scanned.unwrap();
                }
                // The damaged key is another key, or its version is missing: `verify` finds that.
                Ok(None) => assert!(!store.verify().unwrap().is_sound(), "bit {bit} of word {number}"),
                // Reading all of the value also checks its checksum.
                Err(_) => {
                    assert!(scanned.is_err() || number == 3 && bit >= 32, "bit {bit} of word {number}");
                    errors += 1;
                }
            }
            pool.store(word, sound, Ordering::Relaxed);
        }
    }
    // The seal does not cover commit, previous, and the padding of key and value.
    assert!(errors > 64 * 14 && unharmed < 64 * 4, "{errors} errors, {unharmed} unharmed");
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn what_cannot_be_stored_is_refused_by_name_and_number() {
    let (store, space) = fixture::store(options());
    let long = vec![b'k'; KEY_SIZE_MAX + 1];
    assert!(matches!(space.put(&long, b""), Err(Error::KeyTooLong { size }) if size == long.len()));
    assert!(matches!(space.modify(&long, |_| Change::Keep), Err(Error::KeyTooLong { .. })));
    let mut batch = Batch::default();
    batch.put(&space, b"short", b"");
    batch.put(&space, &long, b"");
    assert!(matches!(store.write(batch), Err(Error::KeyTooLong { .. })));
    assert_eq!((space.get(&long).unwrap(), space.delete(&long).unwrap(), space.count()), (None, false, 0));
    space.put(&long[1..], b"the longest key").unwrap();
    assert_eq!(space.get(&long[1..]).unwrap().as_deref(), Some(&b"the longest key"[..]));
    for name in ["", "everleaf", &"n".repeat(NAMESPACE_SIZE_MAX + 1)] {
        assert!(matches!(store.namespace(name), Err(Error::BadNamespace { .. })), "{name:?}");
    }
    store.namespace(&"n".repeat(NAMESPACE_SIZE_MAX)).unwrap().put(b"", b"the shortest key").unwrap();
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_large_value_comes_back_whole() {
    let (store, space) = fixture::store(Options { size_max: 256 << 20, ..options() });
    let value: Vec<u8> = (0..50_000_003u32).map(|n| ((n * 31) >> 3) as u8).collect();
    space.put(b"large", &value).unwrap();
    assert_eq!(space.value_size(b"large").unwrap(), Some(value.len()));
    assert!(space.get(b"large").unwrap().is_some_and(|found| found == value));
    space.put(b"large", b"small").unwrap();
    for round in 0..8u8 {
        let mut batch = Batch::default();
        batch.put(&space, b"large", &value[round as usize..]);
        batch.put(&space, b"round", &[round]);
        store.write(batch).unwrap();
    }
    assert!(space.get(b"large").unwrap().is_some_and(|found| found == value[7..]));
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_closed_store_takes_no_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let store = Store::open(&path, options()).unwrap();
    let space = store.namespace("space").unwrap();
    space.put(b"k", b"v").unwrap();
    store.close().unwrap();
    let closed = |outcome: Result<(), Error>| assert!(outcome.unwrap_err().to_string().contains("closed"));
    closed(space.put(b"k", b"w"));
    closed(space.delete(b"k").map(drop));
    closed(space.put_many(&[(b"k", b"w")]));
    closed(space.clear());
    assert_eq!(space.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    drop(space);
    let store = Store::open(&path, options()).unwrap();
    assert!(!store.pool().needs_recovery() && store.pool().medium().failure().is_none());
    assert_eq!(store.namespace("space").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// A pool with content, but without a store, becomes one.
#[test]
fn a_pool_without_a_store_becomes_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    drop(Pool::create(&path, &Default::default()).unwrap());
    let store = Store::open(&path, options()).unwrap();
    store.namespace("space").unwrap().put(b"k", b"v").unwrap();
    drop(store);
    let store = Store::open(&path, options()).unwrap();
    assert_eq!(store.namespace("space").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// Timestamps are not sealed. A forged one makes a snapshot read versions that it should not, and these may form a cycle.
#[test]
fn forged_timestamps_end_in_an_error() {
    let (store, space) = fixture::store(Options { size_max: 4 << 20, ..options() });
    let values: Vec<u64> = (1..=3).map(|n| n << 56 | 0x0055_aa55_aa55_aa55).collect();
    let before = store.snapshot().unwrap();
    // A snapshot needs each version.
    let put = |value: &u64| {
        space.put(b"key", &value.to_le_bytes()).unwrap();
        store.snapshot().unwrap()
    };
    let _between: Vec<_> = values.iter().map(put).collect();
    let pool = store.pool();
    let words = pool.words(Off::<Word>::new(8), pool.length() / 8 - 1).unwrap();
    // The value follows four words of header and one of key. The second word is the timestamp, the third links the previous version.
    let header = |value: &u64| words.iter().position(|word| word.get() == *value).expect("the version is there") - 5;
    let [first, second, third] = [0, 1, 2].map(|at| &words[header(&values[at])..]);
    assert!(third[1].get() > second[1].get() && second[1].get() > first[1].get() && third[2].get() != 0 && first[2].get() == 0);
    let set = |word: &Word, value: u64| pool.store(word, value, Ordering::Relaxed);
    let check = |is_damaged: bool| {
        let found = before.get(&space, b"key");
        assert!(if is_damaged { found.is_err() } else { found.unwrap().is_none() });
        let scanned = before.scan(&space, Bound::Unbounded, Direction::Forward, |_, _| ControlFlow::Continue(()));
        assert_eq!(scanned.is_err(), is_damaged);
        // A scan that ends before the key does not read it, and one that passes it continues after it.
        let mut cursor = Cursor::new(Bound::Unbounded, Direction::Forward).until(Bound::Excluded(b"key"));
        before.walk(&space, &mut cursor, |_, _| ControlFlow::Continue(())).unwrap();
        assert!(cursor.is_over());
        let mut cursor = Cursor::new(Bound::Unbounded, Direction::Forward);
        let walked = before.walk(&space, &mut cursor, |_, _| ControlFlow::Continue(()));
        assert_eq!((walked.is_err(), cursor.position()), (is_damaged, if is_damaged { Bound::Excluded(&b"key"[..]) } else { Bound::Unbounded }));
        assert_eq!(space.get(b"key").unwrap().as_deref(), Some(&values[2].to_le_bytes()[..]));
    };
    check(false);
    // A cycle of two, and of one.
    set(&first[2], third[2].get());
    check(true);
    set(&first[2], second[2].get());
    check(true);
    set(&first[2], 0);
    check(false);
    // A version that claims to be older than the one it has replaced, and one from the future.
    let sound = third[1].get();
    set(&third[1], second[1].get());
    check(true);
    set(&third[1], 1 << 50);
    check(true);
    set(&third[1], sound);
    check(false);
}

/// A record can also say that its key is absent: by a flag, or by an expiry that has passed. Where these are damaged, no reader may be told so.
#[test]
fn damage_does_not_hide_a_key() {
    let (store, space) = fixture::store(Options { size_max: 4 << 20, ..options() });
    let value = 0x0123_4567_89ab_cdef_u64;
    space.put_until(b"key", &value.to_le_bytes(), u64::MAX >> 1).unwrap();
    let snapshot = store.snapshot().unwrap();
    let pool = store.pool();
    let words = pool.words(Off::<Word>::new(8), pool.length() / 8 - 1).unwrap();
    // The value follows four words of header, the first with the flags, and one of key. The expiry follows the value.
    let at = words.iter().position(|word| word.get() == value).expect("the record is there");
    let (shape, expiry) = (&words[at - 5], &words[at + 1]);
    let check = |is_damaged: bool| {
        let found = [
            space.get(b"key").map(drop),
            space.value_size(b"key").map(drop),
            space.expiry_ms(b"key").map(drop),
            space.entry(b"key").map(drop),
            space.get_many(&[b"key"]).map(drop),
            space.insert(b"key", b"2").map(|is_new| assert!(!is_new)),
            space.scan(Bound::Unbounded, Direction::Forward, |_, _| ControlFlow::Continue(())),
            snapshot.get(&space, b"key").map(drop),
        ];
        assert!(found.iter().all(|found| found.is_err() == is_damaged), "{found:?}");
    };
    check(false);
    for (word, damaged) in [(expiry, 1), (shape, shape.get() | 1 << 52)] {
        let sound = word.get();
        pool.store(word, damaged, Ordering::Relaxed);
        check(true);
        pool.store(word, sound, Ordering::Relaxed);
        check(false);
    }
    // A lasting entry gets an expiry.
    pool.store(expiry, u64::MAX >> 2, Ordering::Relaxed);
    assert!(space.expiry_ms(b"key").is_err());
}
