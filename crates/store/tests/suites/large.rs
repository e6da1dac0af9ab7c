//! What takes its time: asked for by name.

use everleaf::{Direction, Isolation, Options, Store};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A number of this process in bytes, by its name in `/proc/self/status`.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// A transaction of a million writes takes what it writes and less than 400 bytes a key besides, at its largest, which is while it commits.
#[test]
#[ignore = "a gigabyte; alone, for it looks at the memory of the process"]
fn a_million_writes_in_one_transaction_take_bounded_memory() {
    const KEYS: u64 = 1_000_000;
    const CONTENT: usize = 8 + 100;
    let store = Store::anonymous(Options { size_max: 1 << 30, ..Options::default() }).unwrap();
    let space = store.namespace("space").unwrap();
    space.put(b"first", b"first").unwrap();
    let before = memory("VmRSS");
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    for n in 0..KEYS {
        transaction.put(&space, &n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[n as u8; 100]).unwrap();
    }
    let written = memory("VmRSS") - before;
    transaction.commit().unwrap();
    let used = store.fill().used;
    let most = memory("VmHWM") - before - used;
    println!(
        "{} MiB of keys and values: {} MiB before the commit, at most {} MiB besides the pool's {} MiB",
        (KEYS as usize * CONTENT) >> 20,
        written >> 20,
        most >> 20,
        used >> 20
    );
    assert_eq!(space.count(), KEYS + 1);
    assert!(most < KEYS as usize * (CONTENT + 400), "{most} bytes");
    assert!(store.verify().unwrap().is_sound());
}

/// A transaction of large values takes no more than that either, whatever their size: they are in the pool from the start.
#[test]
#[ignore = "a gigabyte and a half; alone, for it looks at the memory of the process"]
fn large_values_in_one_transaction_take_bounded_memory() {
    const KEYS: u64 = 100_000;
    const SIZE: usize = 10_000;
    let store = Store::anonymous(Options { size_max: 2 << 30, ..Options::default() }).unwrap();
    let space = store.namespace("space").unwrap();
    space.put(b"first", b"first").unwrap();
    let before = memory("VmRSS");
    let mut transaction = store.begin(Isolation::Serializable).unwrap();
    for n in 0..KEYS {
        transaction.put(&space, &n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[n as u8; SIZE]).unwrap();
    }
    assert!(store.held_back().draft_bytes > KEYS * SIZE as u64);
    transaction.commit().unwrap();
    let used = store.fill().used;
    let most = (memory("VmHWM") - before).saturating_sub(used);
    println!("{} MiB of values: at most {} MiB besides the pool's {} MiB", (KEYS as usize * SIZE) >> 20, most >> 20, used >> 20);
    assert_eq!(space.count(), KEYS + 1);
    assert!(used > KEYS as usize * SIZE && most < KEYS as usize * 700, "{most} bytes");
    assert!(store.verify().unwrap().is_sound());
}

/// Snapshots of ten million keys, taken while two threads write, each scanned while they go on writing: what they show is what a model was at that moment.
#[test]
#[ignore = "two gigabytes, and a minute"]
fn a_scan_of_ten_million_keys_under_writers_is_the_snapshot_of_a_model() {
    const KEYS: u64 = 10_000_000;
    const SNAPSHOTS: usize = 3;
    let store = Store::anonymous(Options { size_max: 16 << 30, ..Options::default() }).unwrap();
    let space = store.namespace("space").unwrap();
    // By key: its value, 0 for absent. Every other key is there.
    let model: Vec<AtomicU64> = (0..2 * KEYS).map(|n| AtomicU64::new(if n % 2 == 0 { n + 1 } else { 0 })).collect();
    let pairs = (0..2 * KEYS).step_by(2).map(|n| (n.to_be_bytes(), (n + 1).to_le_bytes()));
    assert_eq!(space.load(pairs).unwrap(), KEYS);
    // Whoever writes holds it for reading, whoever takes a snapshot of both for writing.
    let moment = parking_lot::RwLock::new(());
    let (done, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (space, model, moment, done, writes) = (&space, &model, &moment, &done, &writes);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                while !done.load(Ordering::Relaxed) {
                    // Each thread has keys of its own, so key and model change alike.
                    let n = random.random_range(0..KEYS) * 2 + thread;
                    let value = if random.random_bool(0.5) { random.random::<u64>() | 1 } else { 0 };
                    let _now = moment.read();
                    match value {
                        0 => _ = space.delete(&n.to_be_bytes()).unwrap(),
                        value => space.put(&n.to_be_bytes(), &value.to_le_bytes()).unwrap(),
                    }
                    model[n as usize].store(value, Ordering::Relaxed);
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..SNAPSHOTS {
            let (snapshot, expected) = {
                let _now = moment.write();
                (store.snapshot().unwrap(), model.iter().map(|value| value.load(Ordering::Relaxed)).collect::<Vec<_>>())
            };
            let before = writes.load(Ordering::Relaxed);
            for direction in [Direction::Forward, Direction::Reverse] {
                let mut present = expected.iter().enumerate().filter(|(_, value)| **value != 0).map(|(n, value)| (n as u64, *value));
                let mut count = 0;
                let scanned = snapshot.scan(&space, Bound::Unbounded, direction, |key, value| {
                    let found = (u64::from_be_bytes(key.try_into().unwrap()), u64::from_le_bytes(value.try_into().unwrap()));
                    let next = if direction == Direction::Forward { present.next() } else { present.next_back() };
                    assert_eq!(Some(found), next, "entry {count}, {direction:?}");
                    count += 1;
                    ControlFlow::Continue(())
                });
                scanned.unwrap();
                assert_eq!(present.next(), None);
                println!("snapshot {number}, {direction:?}: {count} keys, {} writes meanwhile", writes.load(Ordering::Relaxed) - before);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(store.verify().unwrap().is_sound());
}
