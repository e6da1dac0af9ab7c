//! Pools damaged at random: opening and reading them gives errors, or what was written, and never a panic or an endless loop.

use everleaf::{Batch, Direction, Options, Store};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

const KEYS: u32 = 300;
const ROUNDS: u64 = 600;
/// What comes after this many entries of a scan is a loop.
const ENTRIES_MAX: usize = 10 * KEYS as usize;

fn options(index: &str) -> Options {
    Options { index: index.into(), size_max: 1 << 20, recovery_threads: 2, ..Options::default() }
}

fn key(n: u32) -> Vec<u8> {
    format!("key {:07} {}", n.wrapping_mul(2_654_435_761) % 10_000_000, "x".repeat(n as usize % 20)).into_bytes()
}

/// A pool that holds two namespaces, not closed; what the first holds.
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

/// Opens the damaged pool and reads all of it. Counts as (opened, keys missing, errors of reads).
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
    for (index, seed) in [("isle", 1), ("isle-128", 2)] {
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
                // Mostly where something lies; a bit, a word of another place, or noise.
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
