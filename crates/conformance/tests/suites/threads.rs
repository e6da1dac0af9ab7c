//! Threads under the scheduler: a short run of every target, and defects that must be noticed.

use crate::is_on_another_router;
use everleaf_conformance::Broken;
use everleaf_conformance::threads::{Index, Mood, Omission, Operation, Options, Report, Returned, Store, Table, Target, World, run};
use everleaf_index::Direction;
use everleaf_pmem::schedule::Slip;
use everleaf_pmem::{Crash, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;

/// Small leaves change their structure all the time. Larger ones, and leaves that also exist on another router, need fewer schedules.
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

/// Where caches are durable, a crash loses only what is in the store buffers, and no flush is needed.
#[test]
fn threads_crash_where_caches_are_durable() {
    let options = Options { schedules: 250, seed: 0x5eed, durable_cache: true, store_buffers: Some(true), ..Options::default() };
    run(Index::<u64>::named("isle-128"), options.clone(), |_| {}).assert_clean();
    run(Index::<[u8]>::named("isle-128"), options.clone(), |_| {}).assert_clean();
    run(Store { index: "isle-128" }, Options { schedules: 50, ..options.clone() }, |_| {}).assert_clean();
    run(Table, options, |_| {}).assert_clean();
}

/// Ever publishes stages there, and their fences also cover the store's records.
#[test]
fn threads_crash_where_a_device_is_waited_for() {
    let options = Options { schedules: 300, seed: 0x5eed, awaits_device: true, ..Options::default() };
    run(Index::<u64>::named("ever-64"), options.clone(), |_| {}).assert_clean();
    run(Index::<[u8]>::named("ever-64"), options.clone(), |_| {}).assert_clean();
    run(Store { index: "ever-64" }, Options { schedules: 100, ..options }, |_| {}).assert_clean();
}

/// A target that starts from only one of its worlds, and whose threads make calls of one kind.
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

/// One thread deletes by batches, which use the same commit slot repeatedly; others read.
fn deletions() -> Narrowed<Store> {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| {
        if mood.thread != 0 {
            return Operation::Get([0, 3][random.random_range(0..2usize)]);
        }
        // The batch cleans up the deleted key last: a reader that sees the others may reach it in time.
        Operation::Batch(vec![(0, payload), (1, payload), (2, payload), (3, if random.random() { 0 } else { payload })])
    };
    Narrowed { target: Store { index: "isle-128" }, world: "one leaf", draw }
}

/// A reader found the record by which a batch deletes a key, and slept until the batch was over and its commit slot served the next batch. It then took the
/// batch for undone and returned the old value: unlike records that set a value, this record had no timestamp.
#[test]
fn a_key_that_a_batch_has_deleted_does_not_come_back() {
    run(deletions(), Options { schedules: 6000, seed: 0x5eed, crash_every: 0, ..Options::default() }, |_| {}).assert_clean();
}

/// Runs a store from one of its worlds, without crashes.
fn look_on(world: &'static str, schedules: u64, draw: fn(&Mood<'_>, u64, &mut StdRng) -> Operation) -> Report {
    let options = Options { schedules, seed: 0x5eed, crash_every: 0, ..Options::default() };
    run(Narrowed { target: Store { index: "isle-128" }, world, draw }, options, |_| {})
}

fn look(random: &mut StdRng) -> Operation {
    Operation::Look(if random.random() { Direction::Forward } else { Direction::Reverse })
}

/// A group of puts holds many stripes, and readers give its records their timestamps in any order.
#[test]
fn snapshots_show_the_same_beside_groups_of_puts() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match mood.thread {
        0 => Operation::Acts((0..random.random_range(2..5usize)).map(|register| (register, Some(payload))).collect()),
        _ => look(random),
    };
    look_on("one leaf", 2500, draw).assert_clean();
    look_on("empty", 2500, draw).assert_clean();
}

/// Snapshots from before a clear of the namespace, from after it, and from after the next write see three different indexes.
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

/// An absent key that comes and goes: snapshots that end cut out its versions at any moment, while a watcher looks at them. A watcher that read the link to a
/// removed version twice missed it, as this many schedules show.
#[test]
fn who_watches_a_key_learns_that_it_came_and_went() {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| match mood.thread == 0 || random.random_ratio(1, 4) {
        true => Operation::Upsert(0, payload),
        false => Operation::RemoveWatched(0),
    };
    look_on("empty", 24_000, draw).assert_clean();
}

/// When a router was moved to its place, a value that had been stored in one of its words during construction stayed in the store buffer. The router then
/// counted leaves that it did not find.
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

/// A scan visited a key twice: it saw the key in the first line of an array, then the key was removed and inserted again, and the scan read it in a later line.
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

/// Lookups and changes of values only: the defects below do not concern the shape of a leaf.
fn values() -> Narrowed<Index<u64>> {
    let draw = |mood: &Mood<'_>, payload, random: &mut StdRng| {
        let register = mood.pick(random);
        if random.random() { Operation::Get(register) } else { Operation::Update(register, payload) }
    };
    Narrowed { target: Index::named("isle-128"), world: "several leaves", draw }
}

/// A file of the index crate, and its text.
type File = (&'static str, &'static str);
const TREE: File = ("index/src/selective.rs", include_str!("../../../index/src/selective.rs"));
const STRUCTURE: File = ("index/src/ever/structure.rs", include_str!("../../../index/src/ever/structure.rs"));
const SIBLINGS: File = ("index/src/selective/router/siblings.rs", include_str!("../../../index/src/selective/router/siblings.rs"));

/// Leaves out the code at the first line that contains `code` after `function`.
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

/// A reader that does not check whether the leaf was changed meanwhile returns values that are not durable. No order of calls in memory shows this; only a
/// crash does.
#[test]
fn a_reader_that_sees_what_is_not_durable_is_noticed() {
    assert_noticed(without(Slip::Validate, "fn read<", "latch.validate", 1), &[TAKEN_BACK]);
}

/// The same, detected by its loads alone: the only image made is the one that confirms it.
#[test]
fn a_read_of_what_is_not_durable_is_noticed_without_images() {
    let report = without(Slip::Validate, "fn read<", "latch.validate", 0);
    assert!(report.counts.suspicions > 0 && report.counts.images < 8, "{report}");
    assert_noticed(report, &[TAKEN_BACK]);
}

/// Two writers in one leaf return the same replaced value.
#[test]
fn a_writer_without_the_lock_is_noticed() {
    let rules = [TAKEN_BACK, "some order of the calls explains what they returned", "some order of the calls explains what is there"];
    assert_noticed(without(Slip::Lock, "fn seek(", "lock: latch.lock_from", 1), &rules);
}

/// A reader has found a leaf of Ever. Then a split removes the fingerprints of moved entries, while others may write there; or a merge adds those of keys below
/// its range, or leads others elsewhere.
#[test]
fn what_does_not_lock_for_its_last_step_is_noticed() {
    for (file, function) in [(STRUCTURE, "fn divide("), (STRUCTURE, "fn merge("), (SIBLINGS, "fn lock(")] {
        let omission = omission(Slip::Lock, file, function, "appending.lock()");
        let options = Options { schedules: 20_000, seed: 0x5eed, crash_every: 0, omission, workers: 1, ..Options::default() };
        assert!(run(Index::<u64>::named("ever-64"), options, |_| {}).violation.is_some(), "{}, {function}: the defect is noticed", file.0);
    }
}

/// A test of the checker itself: without a defect, it finds nothing of this kind on the same schedules.
#[test]
fn values_are_safe() {
    run(values(), Options { schedules: 5000, seed: 0x5eed, crash_every: 1, ..Options::default() }, |_| {}).assert_clean();
}
