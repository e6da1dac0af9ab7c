//! Every crash of every index of the registry, in sizes for a test run; `examples/crash.rs` runs more.

use everleaf_conformance::Class;
use everleaf_conformance::crash::{Options, Random, birth, every_crash, sampled_crash};
use everleaf_index::{Entry, registry};
use everleaf_pmem::{Crash, CrashOptions, Fault};

fn persistent<K: Class + ?Sized>() -> impl Iterator<Item = Entry<K, Crash>> {
    registry::<K, Crash>().into_iter().filter(|entry| entry.persistent)
}

fn every<K: Class + ?Sized>(change: impl Fn(&Entry<K, Crash>, &mut Options)) {
    for entry in persistent::<K>() {
        let mut options = Options::default();
        change(&entry, &mut options);
        let name = entry.name;
        let report = every_crash(entry, options);
        println!("{name}, {} keys: {report}", K::NAME);
        report.assert_clean();
        assert!(report.checked > 100, "{name}: hardly an image");
    }
}

/// Small leaves split and merge within a few operations; large ones take long to look at.
fn operations(capacity: usize) -> usize {
    match capacity {
        ..=4 => 5,
        5..=16 => 2,
        _ => 1,
    }
}

#[test]
fn every_crash_of_every_short_sequence() {
    every::<u64>(|entry, options| options.operations = operations(entry.leaf_capacity));
}

#[test]
fn every_crash_of_every_short_sequence_of_byte_strings() {
    every::<[u8]>(|entry, options| options.operations = operations(entry.leaf_capacity).min(3));
}

#[test]
fn every_crash_in_the_recovery_from_a_crash_in_a_recovery() {
    every::<u64>(|entry, options| {
        options.operations = operations(entry.leaf_capacity).div_ceil(2);
        options.depth = 3;
    });
}

#[test]
fn every_crash_with_a_cache_that_needs_no_flush() {
    every::<u64>(|entry, options| {
        options.operations = operations(entry.leaf_capacity).min(3);
        options.life.stores_are_durable = true;
    });
}

#[test]
fn states_of_unreachable_blocks_change_nothing() {
    for entry in persistent::<u64>().filter(|entry| entry.leaf_capacity <= 4) {
        let with = |hidden_in_full| Options {
            operations: 1,
            life: CrashOptions { hidden_in_full, images_max: 1 << 20, ..CrashOptions::default() },
            ..Options::default()
        };
        let name = entry.name;
        let full = every_crash(entry, with(true));
        let short = every_crash(persistent::<u64>().find(|entry| entry.name == name).expect("as before"), with(false));
        println!("{name}: all states {full}\n{name}: some {short}");
        full.assert_clean();
        short.assert_clean();
        assert!(full.images > short.images, "the shortcut leaves nothing out");
    }
}

fn born<K: Class + ?Sized>() {
    for entry in persistent::<K>() {
        let name = entry.name;
        let report = birth(entry, Options { depth: 2, threads: 1, ..Options::default() });
        println!("{name}, {} keys: {report}", K::NAME);
        report.assert_clean();
    }
}

#[test]
fn every_crash_of_creation_and_bulk_load() {
    born::<u64>();
    born::<[u8]>();
}

#[test]
fn sampled_crashes_of_long_sequences() {
    let random = Random { operations: 120, sequences: 4, keys: 60 };
    let life = CrashOptions { images_max: 32, sample_count: 4, ..CrashOptions::default() };
    let options = Options { random: Some(random), life, depth: 1, follow_up_every: 8, seed: 0x5eed, ..Options::default() };
    for entry in persistent::<u64>() {
        let name = entry.name;
        let report = sampled_crash(entry, options.clone());
        println!("{name}, u64 keys, seed {:#x}: {report}", options.seed);
        report.assert_clean();
    }
    for entry in persistent::<[u8]>() {
        let name = entry.name;
        let report = sampled_crash(entry, Options { random: Some(Random { sequences: 2, ..random }), ..options.clone() });
        println!("{name}, bytes keys, seed {:#x}: {report}", options.seed);
        report.assert_clean();
    }
}

/// The canary: without any one of the flushes or fences of a common insert (2 and 2), the suite must fail.
#[test]
fn the_suite_fails_without_one_flush_or_fence() {
    for fault in [Fault::DropFlush(1), Fault::DropFlush(2), Fault::DropFence(1), Fault::DropFence(2)] {
        must_fail(Options { operations: 2, fault: Some(fault), ..Options::default() });
    }
}

/// The canary for splits: two leaves, their link, then the line and the counter of the entry. (Of their fences, the one between the link and the entry protects
/// other threads, which may write to the new leaves as soon as the router knows them; one thread alone cannot tell.)
#[test]
fn the_suite_fails_without_one_flush_of_a_split() {
    for flush in 1..=5 {
        must_fail(Options { operations: 2, shape: Some("at split".to_owned()), fault: Some(Fault::DropFlush(flush)), ..Options::default() });
    }
}

fn must_fail(options: Options) {
    for entry in persistent::<u64>().filter(|entry| entry.leaf_capacity <= 4) {
        let name = entry.name;
        let report = every_crash(entry, options.clone());
        let violation = report.violation.unwrap_or_else(|| panic!("{name}: {:?} is not noticed", options.fault));
        println!("{name}, {:?}:\n{violation}\n", options.fault);
    }
}
