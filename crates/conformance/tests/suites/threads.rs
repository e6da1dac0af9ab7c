//! Threads under the scheduler: a short run of everything that there is, and defects that must be noticed.

use crate::is_on_another_router;
use everleaf_conformance::Broken;
use everleaf_conformance::threads::{Index, Mood, Omission, Operation, Options, Report, Returned, Store, Table, Target, World, run};
use everleaf_index::Direction;
use everleaf_pmem::schedule::Slip;
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;

/// Small leaves change their structure all the time; the larger ones have to prove less, and so have leaves that are there on another router, too.
fn every<K: everleaf_conformance::Class + ?Sized>(schedules: u64) {
    for index in Index::<K>::all() {
        let share = if is_on_another_router(&index.name()) { 4 } else { 1 };
        let schedules = (schedules / index.weight() / share).max(10);
        run(index, Options { schedules, seed: 0x5eed, ..Options::default() }, |_| {}).assert_clean();
    }
}

#[test]
fn threads_crash_on_every_index_of_integers() {
    every::<u64>(280);
}

#[test]
fn threads_crash_on_every_index_of_byte_strings() {
    every::<[u8]>(110);
}

#[test]
fn threads_crash_on_the_store() {
    for (index, schedules) in [
        ("ever-64", 100),
        ("isle-128", 60),
        ("lb-2x128", 30),
        ("fp-192", 30),
        ("nv-128", 30),
        ("wb-128", 30),
        ("fast-fair-128", 30),
        ("pf-4", 10),
        ("p-art", 10),
        ("roart-4", 10),
        ("bztree-4", 10),
        ("skip-2", 10),
    ] {
        run(Store { index }, Options { schedules, seed: 0x5eed, ..Options::default() }, |_| {}).assert_clean();
    }
}

#[test]
fn threads_crash_on_the_allocator() {
    run(Table, Options { schedules: 2000, seed: 0x5eed, ..Options::default() }, |_| {}).assert_clean();
}

/// Where caches are durable, a crash takes what is in the store buffers and nothing else, and no flush is needed.
#[test]
fn threads_crash_where_caches_are_durable() {
    let options = Options { schedules: 250, seed: 0x5eed, durable_cache: true, store_buffers: Some(true), ..Options::default() };
    run(Index::<u64>::named("isle-128"), options.clone(), |_| {}).assert_clean();
    run(Index::<[u8]>::named("isle-128"), options.clone(), |_| {}).assert_clean();
    run(Store { index: "isle-128" }, Options { schedules: 50, ..options.clone() }, |_| {}).assert_clean();
    run(Table, options, |_| {}).assert_clean();
}

/// Ever's stages publish there, and the store's records are fenced by them.
#[test]
fn threads_crash_where_a_device_is_waited_for() {
    let options = Options { schedules: 300, seed: 0x5eed, awaits_device: true, ..Options::default() };
    run(Index::<u64>::named("ever-64"), options.clone(), |_| {}).assert_clean();
    run(Index::<[u8]>::named("ever-64"), options.clone(), |_| {}).assert_clean();
    run(Store { index: "ever-64" }, Options { schedules: 100, ..options }, |_| {}).assert_clean();
}

/// Something that starts from one of its worlds only, and whose threads make calls of one kind.
struct Narrowed<T> {
    target: T,
    world: &'static str,
    draw: fn(&Mood<'_>, u64, &mut StdRng) -> Operation,
}

impl<T: Target> Target for Narrowed<T> {
    type Live = T::Live;

    fn name(&self) -> String {
        self.target.name()
    }

    fn memory(&self) -> usize {
        self.target.memory()
    }

    fn worlds(&self) -> Vec<World> {
        let mut worlds = self.target.worlds();
        worlds.retain(|world| world.name == self.world);
        worlds
    }

    fn create(&self, pool: Arc<Pool<Crash>>) -> Result<Self::Live, Broken> {
        self.target.create(pool)
    }

    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Self::Live, Broken> {
        self.target.open(pool, threads)
    }

    fn close(&self, live: Self::Live) -> Result<(), Broken> {
        self.target.close(live)
    }

    fn draw(&self, _world: &World, mood: &Mood<'_>, payload: u64, random: &mut StdRng) -> Operation {
        (self.draw)(mood, payload, random)
    }

    fn apply(&self, live: &Self::Live, world: &World, operation: &Operation) -> Result<Returned, Broken> {
        self.target.apply(live, world, operation)
    }

    fn content(&self, live: &Self::Live, world: &World) -> Result<Vec<u64>, Broken> {
        self.target.content(live, world)
    }

    fn audit(&self, live: &Self::Live) -> Result<(), Broken> {
        self.target.audit(live)
    }
}

/// One thread deletes by batches, which use the same commit slot again and again; others look.
fn deletions() -> Narrowed<Store> {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| {
        if mood.thread != 0 {
            return Operation::Get([0, 3][random.random_range(0..2usize)]);
        }
        // The key that is deleted is the last that the batch clears up after itself: who sees the others may come in time for it.
        Operation::Batch(vec![(0, payload), (1, payload), (2, payload), (3, if random.random() { 0 } else { payload })])
    };
    Narrowed { target: Store { index: "isle-128" }, world: "one leaf", draw }
}

/// A reader that had found the record by which a batch deletes a key, and then slept until the batch was over and its commit slot served the next one, took the
/// batch for undone and returned the value from before: the record had no timestamp, as those that set a value have.
#[test]
fn a_key_that_a_batch_has_deleted_does_not_come_back() {
    run(deletions(), Options { schedules: 6000, seed: 0x5eed, crash_every: 0, ..Options::default() }, |_| {}).assert_clean();
}

/// Calls of a store that starts from one of its worlds, without crashes.
fn look_on(world: &'static str, schedules: u64, draw: fn(&Mood<'_>, u64, &mut StdRng) -> Operation) -> Report {
    let options = Options { schedules, seed: 0x5eed, crash_every: 0, ..Options::default() };
    run(Narrowed { target: Store { index: "isle-128" }, world, draw }, options, |_| {})
}

fn look(random: &mut StdRng) -> Operation {
    Operation::Look(if random.random() { Direction::Forward } else { Direction::Reverse })
}

/// A group of puts holds many stripes, and its records get their timestamps from readers in any order.
#[test]
fn snapshots_show_the_same_beside_groups_of_puts() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match mood.thread {
        0 => Operation::Acts((0..random.random_range(2..5usize)).map(|register| (register, Some(payload))).collect()),
        _ => look(random),
    };
    look_on("one leaf", 2500, draw).assert_clean();
    look_on("empty", 2500, draw).assert_clean();
}

/// Snapshots from before a namespace was cleared, from after, and from after the next write see three different indexes.
#[test]
fn snapshots_show_the_same_beside_namespaces_that_are_cleared() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match mood.thread {
        0 if random.random() => Operation::Clear,
        0 => Operation::Upsert(random.random_range(0..3usize), payload),
        _ => look(random),
    };
    look_on("one leaf", 4000, draw).assert_clean();
    look_on("empty", 4000, draw).assert_clean();
}

/// A key that is not there, comes and goes: versions of it are cut out when snapshots end, at any moment of a watcher's look at them. One who read the link to
/// what was removed twice missed it, which so many schedules find.
#[test]
fn who_watches_a_key_learns_that_it_came_and_went() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match mood.thread == 0 || random.random_ratio(1, 4) {
        true => Operation::Upsert(0, payload),
        false => Operation::RemoveWatched(0),
    };
    look_on("empty", 24_000, draw).assert_clean();
}

/// What a router stored in a word of its own while it was made stayed behind in the store buffer when the router was moved to its place: it then counted
/// leaves that it did not find.
#[test]
fn indexes_that_are_made_under_the_scheduler_are_whole() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match random.random() {
        true => Operation::Clear,
        false => Operation::Upsert(mood.pick(random), payload),
    };
    for index in ["nv-128", "isle-128", "ever-64"] {
        let options = Options { schedules: 200, seed: 0x5eed, crash_every: 0, store_buffers: Some(true), ..Options::default() };
        run(Narrowed { target: Store { index }, world: "two leaves", draw }, options, |_| {}).assert_clean();
    }
}

/// A scan that had seen a key in the first line of an array, and read the lines behind it when the key had been removed and was there again, visited it twice.
#[test]
fn a_key_that_comes_back_is_scanned_once() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match mood.thread {
        0 if random.random() => Operation::Remove(1),
        0 => Operation::Insert(1, payload),
        _ => Operation::Scan(if random.random() { Direction::Forward } else { Direction::Reverse }),
    };
    let target = || Narrowed { target: Index::<u64>::named("pf-4"), world: "one below split", draw };
    run(target(), Options { schedules: 4000, seed: 0x5eed, crash_every: 0, ..Options::default() }, |_| {}).assert_clean();
}

/// Lookups and changes of values only: what goes wrong here is not the shape of a leaf.
fn values() -> Narrowed<Index<u64>> {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| {
        let register = mood.pick(random);
        if random.random() { Operation::Get(register) } else { Operation::Update(register, payload) }
    };
    Narrowed { target: Index::named("isle-128"), world: "several leaves", draw }
}

/// A file of the crate of indexes, and what is in it.
type File = (&'static str, &'static str);
const TREE: File = ("index/src/selective.rs", include_str!("../../../index/src/selective.rs"));
const STRUCTURE: File = ("index/src/ever/structure.rs", include_str!("../../../index/src/ever/structure.rs"));
const SIBLINGS: File = ("index/src/selective/router/siblings.rs", include_str!("../../../index/src/selective/router/siblings.rs"));

/// Leaves out what stands in the line that holds `code`, the first after `function`.
fn omission(slip: Slip, (file, source): File, function: &str, code: &str) -> Option<Omission> {
    let start = source.find(function).expect("the function is in the file");
    let at = start + source[start..].find(code).expect("the code is in the function");
    Some(Omission { slip, file: file.into(), line: source[..at].lines().count() as u32 })
}

fn without(slip: Slip, function: &str, code: &str, crash_every: u64) -> Report {
    let omission = omission(slip, TREE, function, code);
    let options = Options { schedules: 5000, seed: 0x5eed, crash_every, omission, workers: 1, ..Options::default() };
    run(values(), options, |_| {})
}

fn assert_noticed(report: Report, rules: &[&str]) {
    let violation = report.violation.expect("the defect is noticed");
    assert!(rules.contains(&violation.broken.rule), "{violation}");
    let story = violation.to_string();
    assert!(story.contains("again: cargo xtask crash threads --index isle-128 --seed 0x") && story.contains("goes on"), "{story}");
    assert!(!story.contains("did not happen again"), "{story}");
}

const TAKEN_BACK: &str = "a crash leaves what some order of the calls explains";

/// A reader that does not look whether the leaf was changed meanwhile returns values which are not durable. No order of calls in memory shows it, only a crash
/// does.
#[test]
fn a_reader_that_sees_what_is_not_durable_is_noticed() {
    assert_noticed(without(Slip::Validate, "fn read<", "reached.latch.validate", 1), &[TAKEN_BACK]);
}

/// The same by its loads alone: no image is made but the one that proves it.
#[test]
fn a_read_of_what_is_not_durable_is_noticed_without_images() {
    let report = without(Slip::Validate, "fn read<", "reached.latch.validate", 0);
    assert!(report.counts.suspicions > 0 && report.counts.images < 8, "{report}");
    assert_noticed(report, &[TAKEN_BACK]);
}

/// Two writers in one leaf: each says what it has replaced, and both say the same.
#[test]
fn a_writer_without_the_lock_is_noticed() {
    let rules = [TAKEN_BACK, "some order of the calls explains what they returned", "some order of the calls explains what is there"];
    assert_noticed(without(Slip::Lock, "fn seek(", "lock: latch.lock_from", 1), &rules);
}

/// A reader has found a leaf of Ever, and its split takes away the fingerprints of what has moved, while others may write there; or its merge adds those of
/// keys that lie below its range, or leads others elsewhere.
#[test]
fn what_does_not_lock_for_its_last_step_is_noticed() {
    for (file, function) in [(STRUCTURE, "fn divide("), (STRUCTURE, "fn merge("), (SIBLINGS, "fn lock(")] {
        let omission = omission(Slip::Lock, file, function, "appending.lock()");
        let options = Options { schedules: 20_000, seed: 0x5eed, crash_every: 0, omission, workers: 1, ..Options::default() };
        assert!(run(Index::<u64>::named("ever-64"), options, |_| {}).violation.is_some(), "{}, {function}: the defect is noticed", file.0);
    }
}

/// The checker itself: without a defect, nothing of this kind is found on the same schedules.
#[test]
fn values_are_safe() {
    run(values(), Options { schedules: 5000, seed: 0x5eed, crash_every: 1, ..Options::default() }, |_| {}).assert_clean();
}
