//! Randomly damaged pools: opening and reading them gives errors or written data, and never a panic or an endless loop.

use crate::fixture::{OF_NO_BATCH, OF_TOMBSTONE, break_links_to, forge_commit_of, forge_shape_of, store_in_memory};
use everleaf::{Batch, Direction, Options, Store};
use everleaf_pmem::PoolOptions;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::atomic::Ordering;

const KEYS: u32 = 300;
const ROUNDS: u64 = 600;
/// A scan with more entries than this is in a loop.
const ENTRIES_MAX: usize = 10 * KEYS as usize;

fn options(index: &str) -> Options {
    Options { index: index.into(), size_max: 1 << 20, recovery_threads: 2, ..Options::default() }
}

fn pool_options() -> PoolOptions {
    PoolOptions { size_max: 1 << 20, ..PoolOptions::default() }
}

fn key(n: u32) -> Vec<u8> {
    format!("key {:07} {}", n.wrapping_mul(2_654_435_761) % 10_000_000, "x".repeat(n as usize % 20)).into_bytes()
}

/// Builds a pool with two namespaces that is not closed, and returns the content of the first.
fn build(path: &Path, index: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let store = Store::open(path, options(index)).unwrap();
    let (first, second) = (store.namespace("first").unwrap(), store.namespace("second").unwrap());
    let mut model = BTreeMap::new();
    for n in 0..KEYS {
        let value = vec![n as u8; n as usize % 90];
        let mut batch = Batch::default();
        batch.put(&first, &key(n), &value);
        batch.put(&second, b"last", &n.to_le_bytes());
        store.write(batch).unwrap();
        model.insert(key(n), value);
        if n % 7 == 0 {
            first.delete(&key(n / 2)).unwrap();
            model.remove(&key(n / 2));
        }
    }
    model
}

/// Opens the damaged pool and reads all of it. Returns whether it opened, the keys missing, and the errors of reads.
fn read(path: &Path, index: &str, model: &BTreeMap<Vec<u8>, Vec<u8>>) -> (bool, u32, u32) {
    let Ok(store) = Store::open(path, options(index)) else { return (false, 0, 0) };
    let (mut missing, mut errors) = (0, 0);
    let sound = store.verify().is_ok_and(|report| report.is_sound());
    let first = store.namespace("first").unwrap();
    for (key, value) in model {
        match first.get(key) {
            Ok(Some(found)) => assert!(found == *value, "wrong data for {key:?}"),
            Ok(None) => missing += 1,
            Err(_) => errors += 1,
        }
    }
    assert!(!sound || errors == 0, "{errors} errors in a pool that was found sound");
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut entries = 0;
        let scanned = first.scan(Bound::Unbounded, direction, |key, value| {
            entries += 1;
            assert!(entries < ENTRIES_MAX, "a scan that does not end");
            assert!(model.get(key).is_none_or(|known| known == value), "wrong data for {key:?}");
            ControlFlow::Continue(())
        });
        errors += u32::from(scanned.is_err());
    }
    (true, missing, errors)
}

#[test]
fn a_damaged_pool_gives_errors_and_never_wrong_data() {
    for (index, seed) in [("ever", 1), ("isle-128", 2)] {
        println!("{index}, seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let model = build(&path, index);
        let sound = std::fs::read(&path).unwrap();
        assert_eq!(read(&path, index, &model), (true, 0, 0), "{index}");
        let used: Vec<usize> = (0..sound.len() / 8).filter(|word| sound[word * 8..][..8] != [0; 8]).collect();
        let mut opened = 0;
        for round in 0..ROUNDS {
            let mut damaged = sound.clone();
            let mut what = Vec::new();
            for _ in 0..random.random_range(1..4) {
                // Mostly where there is data: flips a bit, copies a word from elsewhere, or writes noise.
                let at = if random.random_bool(0.9) { used[random.random_range(0..used.len())] } else { random.random_range(0..sound.len() / 8) } * 8;
                let old = u64::from_le_bytes(sound[at..][..8].try_into().unwrap());
                let new = match random.random_range(0..4) {
                    0 => old ^ 1 << random.random_range(0..64),
                    1 => u64::from_le_bytes(sound[used[random.random_range(0..used.len())] * 8..][..8].try_into().unwrap()),
                    2 => random.random(),
                    _ => old.wrapping_add(random.random_range(0..32)).wrapping_sub(16),
                };
                damaged[at..][..8].copy_from_slice(&new.to_le_bytes());
                what.push(format!("{at:#x}: {old:#x} -> {new:#x}"));
            }
            std::fs::write(&path, &damaged).unwrap();
            let outcome = std::panic::catch_unwind(|| read(&path, index, &model));
            match outcome {
                Ok((is_open, _, _)) => opened += u32::from(is_open),
                Err(_) => panic!("{index}, seed {seed}, round {round}: {}", what.join(", ")),
            }
        }
        println!("{opened} of {ROUNDS} damaged pools were opened");
        assert!(opened > 0);
    }
}

/// A word of a pool file.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..][..8].try_into().unwrap())
}

fn set_word(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..][..8].copy_from_slice(&value.to_le_bytes());
}

/// Makes a closed pool's snapshot of the allocator declare used blocks free, all or some of them, with matching checksums.
fn forge(bytes: &mut [u8], random: &mut StdRng) {
    let sequence = word(bytes, 8) & ((1 << 48) - 1);
    let superblock = 512 + 512 * (sequence as usize % 2);
    let (start, length) = (word(bytes, superblock + 96) as usize, word(bytes, superblock + 104) as usize);
    assert!(start > 0, "a closed pool has a snapshot");
    let length = if random.random_bool(0.3) { 24 } else { length };
    for at in (start + 24..start + length).step_by(8) {
        // An entry is unlikely to stay valid; of the bitmaps, most cleared bits go undetected.
        if word(bytes, at) >> 40 > 1 << 10 {
            set_word(bytes, at, word(bytes, at) & random.random::<u64>());
        }
    }
    set_word(bytes, superblock + 104, length as u64);
    set_word(bytes, superblock + 112, crc32c::crc32c(&bytes[start..start + length]).into());
    set_word(bytes, superblock + 120, crc32c::crc32c(&bytes[superblock..superblock + 120]).into());
}

/// Uses the store in every way, from several threads; whatever happens, it must end.
fn use_up(store: &Store, seed: u64) -> u32 {
    let spaces: Vec<_> = ["first", "second", "third"].iter().map(|name| store.namespace(name).unwrap()).collect();
    let errors = std::sync::atomic::AtomicU32::new(0);
    let (spaces, note) = (&spaces, &|failed: bool| _ = errors.fetch_add(u32::from(failed), Ordering::Relaxed));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed * 2 + thread);
                for _ in 0..2000 {
                    let (space, key) = (&spaces[random.random_range(0..3)], key(random.random_range(0..2 * KEYS)));
                    let value = vec![7; random.random_range(0..600)];
                    match random.random_range(0..100) {
                        0..50 => note(space.put(&key, &value).is_err()),
                        50..70 => note(space.delete(&key).is_err()),
                        70..85 => note(space.get(&key).is_err()),
                        85..93 => {
                            let mut batch = Batch::default();
                            spaces.iter().for_each(|space| batch.put(space, &key, &value));
                            note(store.write(batch).is_err());
                        }
                        93..98 => {
                            let mut left = ENTRIES_MAX;
                            let scanned = space.scan_keys(Bound::Included(&key), Direction::Reverse, |_| {
                                left -= 1;
                                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                            });
                            note(scanned.is_err());
                        }
                        98 => note(store.verify().is_err()),
                        _ => note(space.clear().is_err()),
                    }
                }
            });
        }
    });
    errors.into_inner()
}

/// A forger can make the allocator hand out blocks that are in use, and so make the store overwrite its own leaves and records. That costs the forger's data,
/// but is no undefined behaviour: a block under construction is words like any other, and two owners store to it atomically. Everything read is checked as if
/// it were forged, which this test enforces.
#[test]
fn a_forged_list_of_free_blocks_gives_errors_and_ends() {
    for (index, seed) in [("ever", 5), ("isle-128", 6)] {
        println!("{index}, seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        build(&path, index);
        Store::open(&path, options(index)).unwrap().close().unwrap();
        let sound = std::fs::read(&path).unwrap();
        let (mut clean, mut errors) = (0, 0);
        for round in 0..40 {
            let mut forged = sound.clone();
            forge(&mut forged, &mut random);
            std::fs::write(&path, &forged).unwrap();
            let Ok(store) = Store::open(&path, Options { size_max: 4 << 20, ..options(index) }) else { continue };
            clean += u32::from(!store.pool().needs_recovery());
            errors += use_up(&store, seed * 1000 + round);
            let _ = store.verify();
            // Refused if the heap is inconsistent; then the next opening recovers, or returns an error.
            let _ = store.close();
            let _ = Store::open(&path, options(index)).map(|store| use_up(&store, round));
        }
        println!("{errors} errors");
        assert!(clean > 10 && errors > 10, "{clean} forgeries were believed, {errors} errors");
    }
}

/// Regression: a leaf with a damaged record cannot be divided. A put that needed this failed alone, but a batch made the store refuse all writes.
#[test]
fn a_batch_that_damage_keeps_from_being_published_is_undone_and_no_other_write_is_refused() {
    let (memory, store) = store_in_memory(pool_options(), &options("ever"));
    let (sound, damaged) = (store.namespace("sound").unwrap(), store.namespace("damaged").unwrap());
    for n in 0..30_u64 {
        sound.put(&n.to_be_bytes(), b"before").unwrap();
        damaged.put(&(n << 8).to_be_bytes(), &[7; 20]).unwrap();
    }
    forge_shape_of(&memory, (15_u64 << 8).to_be_bytes(), 20);
    let mut failures = 0;
    for n in 1..100_u64 {
        let keys = [n % 30, n + 100, (n % 30) << 8 | n, (n % 29) << 8 | (n + 100)].map(u64::to_be_bytes);
        let before = sound.get(&keys[0]).unwrap();
        let mut batch = Batch::default();
        keys[..2].iter().for_each(|key| batch.put(&sound, key, &[n as u8]));
        keys[2..].iter().for_each(|key| batch.put(&damaged, key, &[n as u8]));
        let Err(error) = store.write(batch) else { continue };
        assert!(error.to_string().contains("a record larger than any that is written"), "{error}");
        assert!(sound.get(&keys[0]).unwrap() == before && sound.get(&keys[1]).unwrap().is_none());
        assert!(keys[2..].iter().all(|key| damaged.get(key).unwrap().is_none()));
        failures += 1;
    }
    println!("{failures} batches failed");
    assert!(failures > 10, "{failures}");
    sound.put(b"key", b"value").unwrap();
    assert_eq!(sound.count(), 30 + 99 - failures + 1);
}

/// Regression: when one tombstone could not be removed from its index at the end of a snapshot, the store refused all writes.
#[test]
fn garbage_that_is_damaged_leaks_and_no_write_is_refused() {
    let (memory, store) = store_in_memory(pool_options(), &options("ever"));
    let space = store.namespace("space").unwrap();
    let keys: Vec<_> = (0..10_u64).map(u64::to_be_bytes).collect();
    keys.iter().for_each(|key| space.put(key, &[1; 21]).unwrap());
    let snapshot = store.snapshot().unwrap();
    keys[..5].iter().for_each(|key| assert!(space.delete(key).unwrap()));
    break_links_to(&memory, keys[2], OF_TOMBSTONE);
    drop(snapshot);
    while store.collect(usize::MAX).is_err() {}
    (0..10).for_each(|_| space.put(&keys[0], b"again").unwrap());
    assert_eq!((store.held_back().count, space.count()), (0, 6));
    store.close().unwrap();
}

/// Regression: the batch was committed, and the store refused all writes from then on.
#[test]
fn a_batch_over_a_damaged_version_leaves_it_and_no_write_is_refused() {
    let (memory, store) = store_in_memory(pool_options(), &options("ever"));
    let space = store.namespace("space").unwrap();
    let keys: Vec<_> = (0..4_u64).map(u64::to_be_bytes).collect();
    keys.iter().for_each(|key| space.put(key, &[1; 21]).unwrap());
    // With a snapshot, the replaced version is read when another exists.
    let _snapshot = store.snapshot().unwrap();
    forge_commit_of(&memory, keys[1], 21, OF_NO_BATCH);
    let mut batch = Batch::default();
    keys.iter().for_each(|key| batch.put(&space, key, b"over"));
    store.write(batch).unwrap();
    space.put(b"key", b"value").unwrap();
    assert!(keys.iter().all(|key| space.get(key).unwrap().unwrap() == b"over"));
}

/// Regression: the batch was committed, and the store refused all writes from then on.
#[test]
fn tombstones_that_damage_keeps_in_their_index_are_in_nobodys_way() {
    let (memory, store) = store_in_memory(pool_options(), &options("isle-128"));
    let space = store.namespace("space").unwrap();
    let keys: Vec<_> = (0..3_u64).map(u64::to_be_bytes).collect();
    keys.iter().for_each(|key| space.put(key, &[1; 21]).unwrap());
    // The leaf of three entries is in the line after their counter.
    let word = |at: usize| &memory.words()[at];
    let is_set = |at: usize| word(at).load(Ordering::Relaxed) != 0;
    let is_leaf = |at: &usize| word(at + 1).load(Ordering::Relaxed) == 3 && [9, 11, 13].iter().all(|value| is_set(at + value)) && !is_set(at + 15);
    let leaves: Vec<_> = (0..memory.words().len() - 16).step_by(8).filter(is_leaf).collect();
    assert_eq!(leaves.len(), 1);
    word(leaves[0] + 1).store(2, Ordering::Relaxed);
    let mut batch = Batch::default();
    keys[..2].iter().for_each(|key| batch.delete(&space, key));
    store.write(batch).unwrap();
    space.put(&keys[2], b"over").unwrap();
    assert!(keys[..2].iter().all(|key| space.get(key).unwrap().is_none()));
    assert_eq!((space.count(), store.held_back().count), (1, 0));
    assert!(!store.verify().unwrap().is_sound());
}
