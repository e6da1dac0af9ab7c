//! Every crash of every world, in sizes for a test run; `cargo xtask crash` runs more.

use crate::is_on_another_router;
use everleaf_conformance::crash::{Options, Suite, dependences, more_suites, mutants, suites};
use everleaf_pmem::{Act, CrashOptions, Fault, Profile, Site};
use std::sync::Arc;

/// Enough operations that small leaves split and merge.
fn operations(world: &str) -> usize {
    match world {
        // The store has many operations, and a separate test for longer sequences on its default index.
        "store" => 1,
        // Each exchange is cut short at many places.
        _ if world.starts_with("bztree") => 1,
        // Integers of these have more images than most, and byte strings take five times as long.
        _ if world.ends_with("/bytes") && ["ever", "wb", "nv"].iter().any(|tree| world.starts_with(tree)) => 1,
        // Two operations on integers cover what has lines of its own.
        _ if world.ends_with("/bytes") && ["fp-128", "-tail", "-published", "3x128", "2x192", "-s-256"].iter().any(|variant| world.contains(variant)) => 1,
        _ => 2,
    }
}

/// All worlds, except those whose router differs only in ways that a crash cannot show: hardware transactions store a latch, in DRAM.
fn worlds() -> impl Iterator<Item = Box<dyn Suite>> {
    suites().into_iter().filter(|suite| !suite.name().contains("-htm"))
}

/// Worlds with leaves small enough to be read again for every image, each on one router, because routers are in DRAM. A world that takes as long as all others
/// together runs with one class of keys only; that is enough.
fn small_worlds() -> impl Iterator<Item = Box<dyn Suite>> {
    let small = ["-4/", "skip-2/", "p-art/", "-64", "-128", "-192", "s-256", "x128", "x192", "pool", "store"];
    assert!(small.iter().all(|small| worlds().any(|suite| suite.name().contains(small))), "a world that is called so");
    let is_left_out = |name: &str| is_on_another_router(name) || ["ever-128/bytes", "bztree-4/u64"].contains(&name);
    worlds().filter(move |suite| small.iter().any(|small| suite.name().contains(small)) && !is_left_out(&suite.name()))
}

/// The worlds of these names.
fn named(names: &[&str]) -> Vec<Box<dyn Suite>> {
    let found: Vec<_> = suites().into_iter().chain(more_suites()).filter(|suite| names.contains(&&*suite.name())).collect();
    assert_eq!(found.len(), names.len(), "one of each of {names:?}");
    found
}

/// The store on the index with the smallest leaves, and on its default index with small leaves.
fn stores() -> Vec<Box<dyn Suite>> {
    named(&["store", "store-ever-64"])
}

/// One test each for integers, for byte strings, and for pool and store. Two of them run side by side, so each has one worker, and does not repeat images that
/// another has examined.
macro_rules! every {
    ($name:ident, $change:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn of_integers() {
                every(|name| name.ends_with("/u64"), $change);
            }

            #[test]
            fn of_byte_strings() {
                every(|name| name.ends_with("/bytes"), $change);
            }

            #[test]
            fn of_pool_and_store() {
                every(|name| !name.contains('/'), $change);
            }
        }
    };
}

fn every(is_chosen: impl Fn(&str) -> bool, change: impl Fn(&str, &mut Options)) {
    let mut count = 0;
    for suite in small_worlds().filter(|suite| is_chosen(&suite.name())) {
        // Use after recovery takes longest where keys are in records. For those, and for all in the long run, a sample is enough.
        let follow_up_every = if suite.name() == "store" || suite.name().ends_with("/bytes") { 8 } else { 2 };
        let mut options = Options { operations: operations(&suite.name()), follow_up_every, threads: 1, ..Options::default() };
        // Another test covers its other starts.
        options.start = (suite.name() == "store").then(|| "filled".to_owned());
        change(&suite.name(), &mut options);
        if options.operations == 0 {
            continue;
        }
        let report = suite.every(&options);
        println!("{}: {report}", suite.name());
        report.assert_clean();
        assert!(report.checked > 100 && (report.second_lives > 0 || options.lives == 0), "{}: hardly an image", suite.name());
        count += 1;
    }
    assert!(count > 0, "hardly a world");
}

// The next test includes the worlds of one operation.
every!(every_crash_of_every_short_sequence, |name, options| {
    if operations(name) == 1 {
        options.operations = 0;
    }
});

every!(every_crash_in_the_recovery_from_a_crash_in_a_recovery, |name, options| {
    options.operations = 1;
    options.depth = 3;
    options.closes = true;
    // The test above gives worlds of two operations second lives. Where keys are in records, such a life has hundreds of images.
    options.lives = u32::from(operations(name) == 1);
    options.second_life_every = if name.ends_with("/bytes") { 128 } else { 64 };
});

// The tests above crash recoveries.
every!(every_crash_of_a_third_life, |name, options| {
    options.operations = 1;
    options.depth = 0;
    options.lives = 2;
    options.closes = true;
    // Byte strings take five times as long. The second life of a store has a thousand images, and each image that is used further has as many again.
    options.second_life_every = match name {
        "store" => 2048,
        // These have few images, so a smaller divisor is needed to choose any.
        "roart-4/bytes" | "p-art/bytes" | "skip-2/bytes" => 16,
        name if name.ends_with("/bytes") => 1024,
        _ => 128,
    };
});

every!(every_crash_with_a_cache_that_needs_no_flush, |name, options| {
    options.operations = if ["ever-64/u64", "isle-128/u64"].contains(&name) { 2 } else { 1 };
    options.life.stores_are_durable = true;
    options.life.drops_flushes = true;
});

/// No fence of the next thread makes durable what one thread has flushed and not fenced: neither its operations nor its recovery.
#[test]
fn every_crash_of_another_life_that_threads_hand_over() {
    let worlds = ["ever-64/u64", "isle-128/u64", "isle-128/bytes", "fp-192/u64", "lb-2x128/u64", "nv-128/u64", "wb-128/u64", "fast-fair-128/u64", "pool"];
    for suite in named(&worlds) {
        let options = Options { operations: 1, depth: 0, hands_over: true, threads: 1, ..Options::default() };
        let report = suite.every(&options);
        println!("{}: {report}", suite.name());
        report.assert_clean();
        assert!(report.checked > 500 && report.second_lives > 0, "{}: hardly an image", suite.name());
    }
}

/// A shutdown after an operation, and an operation after a shutdown: from a start that was open, and one that was closed.
#[test]
fn every_crash_of_a_shutdown_beside_an_operation() {
    for suite in named(&["ever-64/u64", "isle-128/u64", "nv-128/u64", "pool"]) {
        for start in if suite.name() == "pool" { ["directory with holes", "closed"] } else { ["at split", "one below split"] } {
            let options = Options { operations: 2, closes: true, lives: 0, follow_up_every: 8, start: Some(start.to_owned()), ..Options::default() };
            let report = suite.every(&options);
            println!("{}, {start}: {report}", suite.name());
            report.assert_clean();
            assert!(report.checked > 1000, "{}: hardly an image", suite.name());
        }
    }
}

/// All operations of a store, from each of its starts; for an empty one, its creation.
#[test]
fn every_crash_of_a_write_to_a_store_from_each_start() {
    for suite in stores() {
        for start in suite.start_names() {
            let operations = usize::from(start != "new");
            let options = Options { operations, start: Some(start.to_owned()), follow_up_every: 8, second_life_every: 1024, ..Options::default() };
            let report = suite.every(&options);
            println!("{}, {start}: {report}", suite.name());
            report.assert_clean();
            assert!(report.checked > if operations == 0 { 20 } else { 1000 }, "{start}: hardly an image");
        }
    }
}

/// What the second write has left, such as a tombstone or a used slot, is there when the third one is cut short. Where there are many images, a sample is
/// shown.
#[test]
fn every_crash_of_three_writes_to_a_store() {
    let store = named(&["store-ever-64"]).remove(0);
    let life = CrashOptions { images_max: 32, sample_count: 4, ..CrashOptions::default() };
    let options = Options { operations: 3, start: Some("filled".to_owned()), depth: 0, lives: 0, follow_up_every: 32, life, ..Options::default() };
    let report = store.every(&options);
    println!("{}, filled: {report}", store.name());
    report.assert_clean();
    assert!(report.checked > 100_000, "hardly an image");
}

/// In a full pool, refused writes have not happened even in part, every image opens, and removals still work, as every second image shows.
#[test]
fn every_crash_of_stores_in_full_pools() {
    for suite in named(&["store-full-ever-64", "store-full-nv-128", "store-full-isle-128"]) {
        let report = suite.every(&Options { operations: 1, closes: true, follow_up_every: 2, second_life_every: 1024, ..Options::default() });
        println!("{}: {report}", suite.name());
        report.assert_clean();
        let options = Options { random: 8, sequences: 1, follow_up_every: 8, second_life_every: 256, closes: true, seed: 0x5eed, ..Options::default() };
        let long = suite.sampled(&options);
        println!("{}, seed {:#x}: {long}", suite.name(), options.seed);
        long.assert_clean();
        assert!(report.checked > 1000 && report.refused > 5 && long.refused > 2, "{}: hardly anything was refused", suite.name());
    }
}

/// In the domain `msync` large values need a flush as all others do, and an entry is published with its record, without a fence in between. Ever publishes
/// stages there.
#[test]
fn every_crash_where_a_device_is_waited_for() {
    let life = CrashOptions { awaits_device: true, ..CrashOptions::default() };
    let run = |suite: &dyn Suite, options: Options| {
        let report = suite.every(&options);
        println!("{}, {:?}: {report}", suite.name(), options.start);
        report.assert_clean();
        assert!(report.checked > 100, "{}: hardly an image", suite.name());
    };
    for suite in stores() {
        for start in ["empty", "expiring"] {
            run(&*suite, Options { operations: 1, start: Some(start.to_owned()), follow_up_every: 8, life: life.clone(), ..Options::default() });
        }
    }
    for ever in named(&["ever-64/u64"]) {
        run(&*ever, Options { operations: 2, threads: 1, life: life.clone(), ..Options::default() });
    }
}

#[test]
fn states_of_unreachable_blocks_change_nothing() {
    for suite in named(&["isle-128/u64", "isle-128/bytes", "lb-2x128/u64", "pool", "store"]) {
        // For a store, a sample of its many states is shown.
        let (start, images_max) = if suite.name() == "store" { (Some("empty".to_owned()), 1 << 7) } else { (None, 1 << 13) };
        let with = |hidden_in_full| {
            let life = CrashOptions { hidden_in_full, images_max, ..CrashOptions::default() };
            suite.every(&Options { operations: 1, life, start: start.clone(), ..Options::default() })
        };
        let (full, short) = (with(true), with(false));
        println!("{}: all states {full}\n{}: some {short}", suite.name(), suite.name());
        full.assert_clean();
        short.assert_clean();
        assert!(full.images > short.images && short.checked > 100, "the shortcut leaves nothing out");
    }
}

#[test]
fn sampled_crashes_of_long_sequences() {
    let life = CrashOptions { images_max: 32, sample_count: 4, ..CrashOptions::default() };
    let options = Options { life, sequences: 1, random: 45, follow_up_every: 8, closes: true, seed: 0x5eed, ..Options::default() };
    for (number, suite) in worlds().enumerate() {
        // A step of a store has as many crash points as a hundred of an index.
        let random = if suite.name() == "store" { options.random / 10 } else { options.random };
        // Each world begins from a different start.
        let seed = options.seed + number as u64;
        let report = suite.sampled(&Options { random, seed, ..options.clone() });
        println!("{}, seed {seed:#x}: {report}", suite.name());
        report.assert_clean();
        assert!(report.checked > 100, "{}: hardly an image", suite.name());
    }
}

/// Where the source relies on the order of stores within a line (`cargo xtask crash lines` lists these places), it uses ordered stores.
#[test]
fn only_ordered_stores_rely_on_earlier_ones_to_their_line() {
    let suites = named(&["isle-128/u64", "lb-2x192/u64", "fp-192/u64", "nv-192/u64", "wb-128/u64"]);
    let options = Options { operations: 1, sequences: 1, ..Options::default() };
    let found = dependences(&suites, &options, &mut |world, report| {
        println!("{world}: {report}");
        report.assert_clean();
    });
    println!("{found:#?}");
    // wB+-Tree counts its entries in a word of their own, with nothing else in its line.
    for file in ["isle.rs", "lb.rs", "fp.rs", "nv.rs"] {
        assert!(found.iter().any(|pair| pair.later.file().ends_with(file)), "{file}: a line of a leaf is written in order");
    }
    assert!(found.iter().all(|pair| pair.is_ordered));
}

/// The canary: a suite that does not notice a missing flush or fence of a line proves nothing. `cargo xtask crash mutate` tries all mistakes.
#[test]
fn the_suite_fails_without_a_flush_or_a_fence_of_a_leaf() {
    // For these two, two operations show that each flush and each fence is needed.
    for suite in named(&["lb-128/u64", "nv-128/u64"]) {
        let with = |life| Options { operations: 2, second_life_every: 4, life, ..Options::default() };
        let profile = Arc::new(Profile::default());
        // This only finds the places; other tests examine more.
        let clean = with(CrashOptions { profile: Some(Arc::clone(&profile)), ..CrashOptions::default() });
        suite.every(&Options { lives: 0, follow_up_every: u64::MAX, ..clean }).assert_clean();
        let in_leaf = |site: &Site| site.place.file().contains("/leaf/");
        let sites: Vec<_> = profile.sites().into_iter().filter(|(site, tally)| in_leaf(site) && tally.acts().any(|act| act == Act::Drop)).collect();
        assert!(sites.len() >= 4, "{sites:?}");
        for (site, _) in sites {
            let report = suite.every(&with(CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() }));
            println!("{}, without {site}: {report}", suite.name());
            let violation = report.violation.unwrap_or_else(|| panic!("{site} is not missed"));
            assert!(violation.steps.len() <= 5, "{violation}");
        }
    }
}

/// Recovery removes the copy that an insert has left. If that comes after its fence, the next recovery repeats it; but after a shutdown there is none.
#[test]
fn a_repair_that_is_not_durable_at_a_shutdown_is_noticed() {
    let source = include_str!("../../../index/src/selective/leaf/isle.rs");
    let line = 1 + source.lines().position(|line| line.contains("right - 1, count)")).expect("recovery shifts") as u32;
    let is_late = |fault: &Fault| fault.act == Act::Late && fault.site.place.file().ends_with("leaf/isle.rs") && fault.site.place.line() == line;
    let score = mutants(&named(&["isle-128/u64"]), &Options::default(), 1, &is_late, &mut |_, _, _| {});
    assert!(score.mutants.len() == 1 && score.is_full(), "{score}");
}
