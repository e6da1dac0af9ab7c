//! Every crash of every index of the registry, in sizes for a test run; `examples/crash.rs` runs more.

use everleaf_conformance::Class;
use everleaf_conformance::crash::{Options, Random, birth, every_crash, sampled_crash};
use everleaf_index::{Entry, registry};
use everleaf_pmem::{Act, Crash, CrashOptions, Fault, Profile, Site};
use std::sync::Arc;

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

/// The canary: a suite that does not miss the flush or the fence of a line proves nothing.
#[test]
fn the_suite_fails_without_a_flush_or_a_fence_of_a_leaf() {
    for entry in persistent::<u64>().filter(|entry| entry.leaf_capacity <= 4) {
        let name = entry.name;
        let with = |life| {
            let entry = persistent::<u64>().find(|entry| entry.name == name).expect("as before");
            every_crash(entry, Options { operations: 2, second_life_every: 4, life, ..Options::default() })
        };
        let profile = Arc::new(Profile::default());
        with(CrashOptions { profile: Some(Arc::clone(&profile)), ..CrashOptions::default() }).assert_clean();
        let in_leaf = |site: &Site| site.place.file().contains("/leaf/");
        let sites: Vec<_> = profile.sites().into_iter().filter(|(site, tally)| in_leaf(site) && tally.acts().any(|act| act == Act::Drop)).collect();
        assert!(sites.len() >= 4, "{name}: {sites:?}");
        for (site, _) in sites {
            let report = with(CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() });
            println!("{name}, without {site}: {report}");
            assert!(report.violation.is_some(), "{name}: {site} is not missed");
        }
    }
}
