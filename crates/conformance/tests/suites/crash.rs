//! Every crash of every world, in sizes for a test run; `cargo xtask crash` runs more.

use everleaf_conformance::crash::{Options, Suite, dependences, more_suites, mutants, suites};
use everleaf_pmem::{Act, CrashOptions, Fault, Profile, Site};
use std::sync::Arc;

/// Small leaves split and merge within a few operations.
fn operations(world: &str) -> usize {
    match world {
        // It has many operations, and on its default index a test of its own for longer sequences.
        "store" => 1,
        // Each exchange is cut short in many places.
        _ if world.starts_with("bztree") => 1,
        // Those of integers have more images than most, and those of byte strings take five times as long.
        _ if world.ends_with("/bytes") && ["ever", "wb", "nv"].iter().any(|tree| world.starts_with(tree)) => 1,
        _ => 2,
    }
}

/// All worlds, but for those whose router differs in nothing that a crash could know of: transactions of the processor store a latch, in DRAM.
fn worlds() -> impl Iterator<Item = Box<dyn Suite>> {
    suites().into_iter().filter(|suite| !suite.name().contains("-htm"))
}

/// Those with leaves that are not so large that everything takes long to read again for every image, each on one router: routers are in DRAM. A world that
/// takes as long as all others together shows with one class of keys what it has to show.
fn small_worlds() -> impl Iterator<Item = Box<dyn Suite>> {
    let is_small =
        |name: &str| ["-4/", "skip-2/", "p-art/", "-64", "-128", "-192", "s-256", "x128", "x192", "pool", "store"].iter().any(|small| name.contains(small));
    let is_left_out = |name: &str| name.contains("-packed") || name.contains("-olc") || ["ever-128/bytes", "bztree-4/u64"].contains(&name);
    worlds().filter(move |suite| is_small(&suite.name()) && !is_left_out(&suite.name()))
}

/// The store on the smallest of all leaves, and on those of its default.
fn stores() -> impl Iterator<Item = Box<dyn Suite>> {
    suites().into_iter().chain(more_suites()).filter(|suite| ["store", "store-ever-64"].contains(&&*suite.name()))
}

fn every(change: impl Fn(&dyn Suite, &mut Options)) {
    for suite in small_worlds() {
        // Where keys are in records, what is done after a recovery takes longest: a part of it shows what integers do not.
        let follow_up_every = if suite.name() == "store" || suite.name().ends_with("/bytes") { 8 } else { 1 };
        let mut options = Options { operations: operations(&suite.name()), follow_up_every, ..Options::default() };
        // Its other starts are those of a test below.
        options.start = (suite.name() == "store").then(|| "filled".to_owned());
        change(&*suite, &mut options);
        let report = suite.every(&options);
        println!("{}: {report}", suite.name());
        report.assert_clean();
        assert!(report.checked > 100 && report.second_lives > 0, "{}: hardly an image", suite.name());
    }
}

#[test]
fn every_crash_of_every_short_sequence() {
    every(|_, _| {});
}

#[test]
fn every_crash_in_the_recovery_from_a_crash_in_a_recovery() {
    every(|_, options| {
        options.operations = options.operations.div_ceil(2);
        options.depth = 3;
    });
}

#[test]
fn every_crash_of_a_third_life() {
    every(|suite, options| {
        options.operations = 1;
        options.lives = 2;
        options.closes = true;
        // Byte strings take five times as long. The second life of a store has a thousand images, and each of those of which something comes as many again.
        options.second_life_every = match &*suite.name() {
            "store" => 2048,
            // They have few images, of which few are chosen.
            "roart-4/bytes" | "p-art/bytes" => 16,
            name if name.ends_with("/bytes") => 1024,
            _ => 128,
        };
    });
}

/// What the second write has left behind, such as a tombstone or a slot that served, is there when the third one is cut short. A sample of the images, where
/// there are many.
#[test]
fn every_crash_of_three_writes_to_a_store() {
    let store = stores().find(|suite| suite.name() == "store-ever-64").expect("the store on its default is a world");
    let life = CrashOptions { images_max: 32, sample_count: 4, ..CrashOptions::default() };
    let options = Options { operations: 3, start: Some("filled".to_owned()), depth: 0, lives: 0, follow_up_every: 32, life, ..Options::default() };
    let report = store.every(&options);
    println!("{}, filled: {report}", store.name());
    report.assert_clean();
    assert!(report.checked > 100_000, "hardly an image");
}

/// What a full pool refuses has not happened in part, every image opens, and removals go on, as every second one shows.
#[test]
fn every_crash_of_stores_in_full_pools() {
    for suite in more_suites().filter(|suite| suite.name().starts_with("store-full")) {
        let report = suite.every(&Options { operations: 1, closes: true, follow_up_every: 2, second_life_every: 1024, ..Options::default() });
        println!("{}: {report}", suite.name());
        report.assert_clean();
        let options = Options { random: 8, sequences: 1, follow_up_every: 8, second_life_every: 256, closes: true, seed: 0x5eed, ..Options::default() };
        let long = suite.sampled(&options);
        println!("{}, seed {:#x}: {long}", suite.name(), options.seed);
        long.assert_clean();
        assert!(report.refused > 10 && long.refused > 2, "{}: hardly anything was refused", suite.name());
    }
}

/// In the domain `msync` large values need a flush as all others do, and an entry is published with its record, which is not fenced before.
#[test]
fn every_crash_of_a_store_that_waits_for_a_device() {
    for suite in stores() {
        for start in ["empty", "expiring"] {
            let life = CrashOptions { awaits_device: true, ..CrashOptions::default() };
            let report = suite.every(&Options { operations: 1, start: Some(start.to_owned()), follow_up_every: 8, life, ..Options::default() });
            println!("{}, {start}: {report}", suite.name());
            report.assert_clean();
        }
    }
}

#[test]
fn every_crash_with_a_cache_that_needs_no_flush() {
    every(|suite, options| {
        options.operations = if ["ever-64/u64", "isle-128/u64"].contains(&&*suite.name()) { 2 } else { 1 };
        options.life.stores_are_durable = true;
        options.life.drops_flushes = true;
    });
}

#[test]
fn states_of_unreachable_blocks_change_nothing() {
    for suite in suites().into_iter().filter(|suite| ["isle-128/u64", "isle-128/bytes", "lb-2x128/u64", "pool"].contains(&&*suite.name())) {
        let with = |hidden_in_full| {
            let life = CrashOptions { hidden_in_full, images_max: 1 << 13, ..CrashOptions::default() };
            suite.every(&Options { operations: 1, life, ..Options::default() })
        };
        let (full, short) = (with(true), with(false));
        println!("{}: all states {full}\n{}: some {short}", suite.name(), suite.name());
        full.assert_clean();
        short.assert_clean();
        assert!(full.images > short.images, "the shortcut leaves nothing out");
    }
}

#[test]
fn sampled_crashes_of_long_sequences() {
    let life = CrashOptions { images_max: 32, sample_count: 4, ..CrashOptions::default() };
    let options = Options { life, sequences: 1, random: 80, follow_up_every: 8, closes: true, seed: 0x5eed, ..Options::default() };
    for suite in worlds() {
        // A step of a store takes as many crash points as a hundred of an index.
        let random = if suite.name() == "store" { options.random / 10 } else { options.random };
        let report = suite.sampled(&Options { random, ..options.clone() });
        println!("{}, seed {:#x}: {report}", suite.name(), options.seed);
        report.assert_clean();
    }
}

/// What relies on the order of stores within a line, of which `cargo xtask crash lines` makes a list, are ordered stores.
#[test]
fn only_ordered_stores_rely_on_earlier_ones_to_their_line() {
    let leaves = ["isle-128/u64", "lb-2x192/u64", "fp-192/u64", "nv-192/u64", "wb-128/u64"];
    let suites: Vec<_> = suites().into_iter().filter(|suite| leaves.iter().any(|leaf| suite.name().starts_with(leaf))).collect();
    let options = Options { operations: 2, sequences: 1, ..Options::default() };
    let found = dependences(&suites, &options, &mut |world, report| {
        println!("{world}: {report}");
        report.assert_clean();
    });
    println!("{found:#?}");
    // Entries of wB+-Tree have a word of their own that counts them, and nothing else in its line.
    for file in ["isle.rs", "lb.rs", "fp.rs", "nv.rs"] {
        assert!(found.iter().any(|pair| pair.later.file().ends_with(file)), "{file}: a line of a leaf is written in order");
    }
    assert!(found.iter().all(|pair| pair.is_ordered));
}

/// The canary: a suite that does not miss the flush or the fence of a line proves nothing. `cargo xtask crash mutate` goes through all mistakes.
#[test]
fn the_suite_fails_without_a_flush_or_a_fence_of_a_leaf() {
    // Two of which each flush and each fence shows within two operations.
    for suite in suites().into_iter().filter(|suite| ["lb-128/u64", "nv-128/u64"].contains(&&*suite.name())) {
        let with = |life| suite.every(&Options { operations: 2, second_life_every: 4, life, ..Options::default() });
        let profile = Arc::new(Profile::default());
        with(CrashOptions { profile: Some(Arc::clone(&profile)), ..CrashOptions::default() }).assert_clean();
        let in_leaf = |site: &Site| site.place.file().contains("/leaf/");
        let sites: Vec<_> = profile.sites().into_iter().filter(|(site, tally)| in_leaf(site) && tally.acts().any(|act| act == Act::Drop)).collect();
        assert!(sites.len() >= 4, "{sites:?}");
        for (site, _) in sites {
            let report = with(CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() });
            println!("{}, without {site}: {report}", suite.name());
            let violation = report.violation.unwrap_or_else(|| panic!("{site} is not missed"));
            assert!(violation.steps.len() <= 5, "{violation}");
        }
    }
}

/// Recovery removes the copy that an insert has left. Where that comes after its fence, the next recovery does it again; but behind a shutdown there is none.
#[test]
fn a_repair_that_is_not_durable_at_a_shutdown_is_noticed() {
    let source = include_str!("../../../index/src/selective/leaf/isle.rs");
    let line = 1 + source.lines().position(|line| line.contains("right - 1, count)")).expect("recovery shifts") as u32;
    let is_late = |fault: &Fault| fault.act == Act::Late && fault.site.place.file().ends_with("leaf/isle.rs") && fault.site.place.line() == line;
    let suites: Vec<_> = suites().into_iter().filter(|suite| suite.name() == "isle-128/u64").collect();
    let score = mutants(&suites, &Options::default(), 1, &is_late, &mut |_, _, _| {});
    assert!(score.mutants.len() == 1 && score.is_full(), "{score}");
}
