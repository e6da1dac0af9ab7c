//! Tests that need much time or memory; most run only when they are named.

use crate::fixture;
use everleaf::{Direction, Isolation, Namespace, Options, Snapshot};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A field of `/proc/self/status` for this process, in bytes.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// A transaction of a million writes takes the size of its writes and less than 400 bytes a key besides, at its peak during the commit.
#[test]
#[ignore = "a gigabyte; alone, for it looks at the memory of the process"]
fn a_million_writes_in_one_transaction_take_bounded_memory() {
    const KEYS: u64 = 1_000_000;
    const CONTENT: usize = 8 + 100;
    let (store, space) = fixture::store(Options { size_max: 1 << 30, ..Options::default() });
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
    let (store, space) = fixture::store(Options { size_max: 2 << 30, ..Options::default() });
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

/// A thread that writes its own keys, one at a time. Each value has the number of its write, so a snapshot shows how far the writer was. The model is a writer
/// that makes the same writes without a store.
/// through the same writes without a store is the model.
struct Writer {
    number: u64,
    key_count: u64,
    random: StdRng,
    done: u64,
}

/// The value of keys that exist from the start.
const FIRST: u64 = 1;

impl Writer {
    fn new(number: u64, key_count: u64) -> Self {
        Self { number, key_count, random: StdRng::seed_from_u64(number), done: 0 }
    }

    /// The next write: a key, and its value, 0 for absent.
    fn next(&mut self) -> (u64, u64) {
        self.done += 1;
        let key = self.random.random_range(0..self.key_count) * 2 + self.number;
        (key, if self.random.random_bool(0.5) { FIRST + self.done } else { 0 })
    }

    /// Applies writes to `model` up to those that `found` shows: past the last put that is there, and the deletes that follow it.
    fn follow(&mut self, model: &mut [u64], found: &[u64]) {
        let own = || found.iter().skip(self.number as usize).step_by(2);
        let last_put = own().max().map_or(0, |value| value.saturating_sub(FIRST));
        while self.done < last_put {
            let (key, value) = self.next();
            model[key as usize] = value;
        }
        loop {
            let ahead = Self { random: self.random.clone(), ..*self };
            match self.next() {
                (key, 0) if found[key as usize] == 0 => model[key as usize] = 0,
                _ => {
                    *self = ahead;
                    return;
                }
            }
        }
    }
}

/// All keys of a snapshot: the value of each, 0 for absent.
fn scan(snapshot: &Snapshot, space: &Namespace, direction: Direction, key_count: u64) -> Vec<u64> {
    let mut found = vec![0; 2 * key_count as usize];
    let mut last = None;
    let visit = |key: &[u8], value: &[u8]| {
        let key = u64::from_be_bytes(key.try_into().unwrap());
        let is_behind = |last| if direction == Direction::Forward { key > last } else { key < last };
        assert!(last.is_none_or(is_behind), "{key} behind {last:?}, {direction:?}");
        last = Some(key);
        found[key as usize] = u64::from_le_bytes(value.try_into().unwrap());
        ControlFlow::Continue(())
    };
    snapshot.scan(space, Bound::Unbounded, direction, visit).unwrap();
    found
}

/// Signals the end of its scope, even after a panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Snapshots that begin while two threads write, and are scanned meanwhile. Each must show what both writers had done at one moment: all of it and nothing
/// else.
fn scan_under_writers(key_count: u64, snapshot_count: usize, size_max: usize) {
    let (store, space) = fixture::store(Options { size_max, ..Options::default() });
    // Every other key exists.
    let mut model: Vec<u64> = (0..2 * key_count).map(|n| if n % 2 == 0 { FIRST } else { 0 }).collect();
    assert_eq!(space.load((0..2 * key_count).step_by(2).map(|n| (n.to_be_bytes(), FIRST.to_le_bytes()))).unwrap(), key_count);
    let (done, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _done = Done(&done);
        let writers = [0, 1].map(|number| {
            let (space, done, writes) = (&space, &done, &writes);
            scope.spawn(move || {
                let mut writer = Writer::new(number, key_count);
                while !done.load(Ordering::Relaxed) {
                    match writer.next() {
                        (key, 0) => _ = space.delete(&key.to_be_bytes()).unwrap(),
                        (key, value) => space.put(&key.to_be_bytes(), &value.to_le_bytes()).unwrap(),
                    }
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let mut followers = [0, 1].map(|number| Writer::new(number, key_count));
        for number in 0..snapshot_count {
            let before = writes.load(Ordering::Relaxed);
            // Waits until both write.
            while writes.load(Ordering::Relaxed) < before + 100 && !writers.iter().any(|writer| writer.is_finished()) {
                std::thread::yield_now();
            }
            let snapshot = store.snapshot().unwrap();
            let found = scan(&snapshot, &space, Direction::Forward, key_count);
            followers.iter_mut().for_each(|follower| follower.follow(&mut model, &found));
            let differs = || (0..2 * key_count as usize).find(|n| model[*n] != found[*n]).map(|n| (n, model[n], found[n]));
            assert!(model == found, "snapshot {number}: key, what it was, what is shown: {:?}", differs());
            assert!(scan(&snapshot, &space, Direction::Reverse, key_count) == found, "snapshot {number} shows another thing the second time");
            println!(
                "snapshot {number}, of {:?} writes: {} more meanwhile",
                followers.each_ref().map(|follower| follower.done),
                writes.load(Ordering::Relaxed) - before
            );
        }
    });
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn a_scan_under_writers_is_the_snapshot_of_a_model() {
    scan_under_writers(10_000, 10, 256 << 20);
}

#[test]
#[ignore = "two gigabytes, and a minute"]
fn a_scan_of_ten_million_keys_under_writers_is_the_snapshot_of_a_model() {
    scan_under_writers(10_000_000, 3, 16 << 30);
}
