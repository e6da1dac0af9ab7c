//! Changes words of a store's pool, then opens, reads, verifies and uses the result, or repairs it.
//!
//! The first byte chooses between these, the index, whether the pool was closed or its process killed, and whether the target corrects the checksums of the
//! superblocks and of the allocator's snapshot, which random changes rarely hit. Each following 11 bytes change one of the nonzero words, or the one after it:
//! how, which, and a number. The result must be an error or an answer, without a panic, an endless loop, or more memory than the pool justifies. A pool that
//! `verify` finds sound must be readable, forward and backward alike, and `repair` must produce a sound pool.
//!
//! Run it with `cargo +nightly fuzz run open_store`.

#![no_main]

use everleaf::{Batch, Direction, Error, Namespace, Options, Store, repair};
use everleaf_pmem::{Hardware, Memory, Pool, PoolOptions};
use libfuzzer_sys::fuzz_target;
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

const SIZE: usize = 128 << 10;
const INDEXES: [&str; 15] = [
    "ever-64",
    "isle-128",
    "lb-128",
    "fp-192",
    "wb-128",
    "nv-128",
    "fast-fair-128",
    "circ-192",
    "lcb-128",
    "cdds-256",
    "pf-4",
    "p-art",
    "roart-4",
    "bztree-4",
    "skip-2",
];
/// A scan with more entries than fit in the pool is a loop.
const ENTRIES_MAX: usize = SIZE / 8;

fn options(index: &str) -> Options {
    Options { index: index.into(), size_max: SIZE, recovery_threads: 1, ..Options::default() }
}

fn pool_options() -> PoolOptions {
    PoolOptions { size_max: SIZE, slab_size: 4096, ..PoolOptions::default() }
}

/// A pool.
struct Seed {
    words: Vec<u64>,
    /// Numbers of the words that are not zero.
    used: Vec<usize>,
}

/// For each index, a pool that was closed, and one whose process was killed.
static SEEDS: LazyLock<Vec<Seed>> = LazyLock::new(|| INDEXES.iter().flat_map(|index| [build(index, true), build(index, false)]).collect());

/// Two namespaces, batches, deletes, keys that expire, and versions that a snapshot holds back.
fn build(index: &str, is_closed: bool) -> Seed {
    let memory = Memory::new(SIZE).expect("128 KiB");
    let pool = Pool::create_in(memory.clone(), Hardware::page_cache(), pool_options()).expect("new memory");
    let store = Store::on(pool, &options(index)).expect("an empty pool");
    let fill = || {
        let (one, other) = (store.namespace("one")?, store.namespace("other")?);
        for number in 0..40_u8 {
            one.put(&[number], &vec![number; usize::from(number)])?;
            let mut batch = Batch::default();
            batch.put_until(&other, format!("a longer key {number}").as_bytes(), b"value", (number % 2 == 0).then_some(u64::MAX >> 4));
            batch.delete(&one, &[number / 2]);
            store.write(batch)?;
        }
        let snapshot = store.snapshot()?;
        (20..30).try_for_each(|number| one.put(&[number], b"over"))?;
        other.delete(b"a longer key 7")?;
        Ok::<_, Error>(snapshot)
    };
    let snapshot = fill().expect("a pool with room");
    let words = || memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let words: Vec<u64> = if is_closed {
        drop(snapshot);
        store.close().expect("nothing fails in memory");
        words()
    } else {
        words()
    };
    let used = (0..words.len()).filter(|at| words[*at] != 0).collect();
    Seed { words, used }
}

fn change(words: &mut [u64], used: &[usize], change: &[u8]) {
    let at = used[usize::from(u16::from_le_bytes([change[1], change[2]])) % used.len()];
    let number = u64::from_le_bytes(change[3..].try_into().expect("8 of 11 bytes"));
    match change[0] % 5 {
        0 => words[at] = number,
        1 => words[at] ^= number,
        2 => words[at] = words[at].wrapping_add(number as i8 as u64),
        3 => words[at] = words[used[number as usize % used.len()]],
        _ => words[(at + 1) % (SIZE / 8)] = number,
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Corrects both superblocks, each with the snapshot that it names.
fn mend(words: &mut [u64]) {
    for slot in [64, 128] {
        let (start, size) = (words[slot + 12] as usize / 8, words[slot + 13] as usize / 8);
        if let Some(snapshot) = start.checked_add(size).and_then(|end| words.get(start..end)) {
            words[slot + 14] = crc32c::crc32c(&bytes_of(snapshot)).into();
        }
        words[slot + 15] = crc32c::crc32c(&bytes_of(&words[slot..slot + 15])).into();
    }
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The visible content of a namespace.
struct Shown {
    forward: Entries,
    reverse: Entries,
    /// The results of lookups of all keys of `forward`.
    found: Vec<Option<Vec<u8>>>,
}

impl Shown {
    /// Checks that scans and lookups agree, as they must in a sound pool.
    fn check(mut self) {
        self.reverse.reverse();
        assert_eq!(self.forward, self.reverse);
        for ((key, value), found) in self.forward.iter().zip(&self.found) {
            assert_eq!(found.as_ref(), Some(value), "a lookup of {key:?} does not find what a scan shows");
        }
    }
}

/// All entries of a scan.
fn read(namespace: &Namespace, direction: Direction) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    namespace.scan(Bound::Unbounded, direction, |key, value| {
        entries.push((key.to_vec(), value.to_vec()));
        assert!(entries.len() < ENTRIES_MAX, "a scan without an end");
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

/// The visible content of all namespaces.
fn read_all(store: &Store) -> Result<Vec<Shown>, Error> {
    let mut all = Vec::new();
    for name in store.namespaces() {
        let namespace = store.namespace(&name)?;
        let (forward, reverse) = (read(&namespace, Direction::Forward)?, read(&namespace, Direction::Reverse)?);
        let found = forward.iter().map(|(key, _)| namespace.get(key)).collect::<Result<_, _>>()?;
        all.push(Shown { forward, reverse, found });
    }
    Ok(all)
}

fn write(store: &Store) -> Result<(), Error> {
    let (one, other) = (store.namespace("one")?, store.namespace("other")?);
    for number in 0..20_u8 {
        one.put(&[2 * number], &[7; 100])?;
        other.delete(format!("a longer key {number}").as_bytes())?;
        let mut batch = Batch::default();
        batch.put(&one, &[number], b"both");
        batch.put(&other, &[number], b"both");
        store.write(batch)?;
    }
    store.sweep(1000)?;
    other.clear()
}

fn open(words: &[u64], index: &str) -> Result<Store, Error> {
    let memory = Memory::new(SIZE).expect("128 KiB");
    memory.words().iter().zip(words).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    Store::on(Pool::open_in(memory, Hardware::page_cache(), pool_options())?, &options(index))
}

/// A file in memory, because `repair` waits for the disk.
fn file(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/everleaf-fuzz-{}.{name}", std::process::id()))
}

/// Reads, verifies and uses the store.
fn live(words: &[u64], index: &str) {
    let Ok(store) = open(words, index) else { return };
    let read = read_all(&store);
    if store.verify().is_ok_and(|report| report.is_sound()) {
        read.expect("what is sound can be read").into_iter().for_each(Shown::check);
    }
    let _ = (write(&store), store.verify(), store.close());
}

/// Salvages the readable content to another pool, which must be sound.
fn salvage(words: &[u64]) {
    let (damaged, repaired) = (file("pool"), file("repaired"));
    std::fs::write(&damaged, bytes_of(words)).expect("room in memory");
    let roomy = || Options { size_max: 8 << 20, ..options("ever") };
    if repair(&damaged, &repaired, roomy(), |_| ControlFlow::Continue(())).is_ok() {
        let store = Store::open(&repaired, roomy()).expect("a repaired pool opens");
        assert!(store.verify().expect("a report").is_sound());
        read_all(&store).expect("a repaired pool can be read").into_iter().for_each(Shown::check);
        drop(store);
        std::fs::remove_file(&repaired).expect("it is there");
    }
    std::fs::remove_file(&damaged).expect("it is there");
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, changes)) = bytes.split_first() else { return };
    let number = usize::from(mode >> 1) % SEEDS.len();
    let (seed, index) = (&SEEDS[number], INDEXES[number / 2]);
    let mut words = seed.words.clone();
    changes.chunks_exact(11).for_each(|bytes| change(&mut words, &seed.used, bytes));
    if mode & 1 == 1 {
        mend(&mut words);
    }
    if mode < 128 { live(&words, index) } else { salvage(&words) }
});
