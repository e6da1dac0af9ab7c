//! Tests of the crash checker itself: it passes a structure known to be correct and fails each one known to be wrong.

use everleaf_conformance::crash::{
    Applied, Case, Index, OPERATIONS_MAX, Options, Promise, Report, Start, Violation, World, controls, every_crash, list, profile, suites,
};
use everleaf_conformance::{Broken, Class};
use everleaf_pmem::{Act, Crash, CrashOptions, Fault, Pool, Profile, Verb, schedule};
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

fn options() -> Options {
    Options { operations: 2, depth: 2, ..Options::default() }
}

fn run<K: Class + ?Sized, const MISTAKE: u8>() -> Report {
    let report = every_crash(&Arc::new(Index::new(list::entry::<K, _, MISTAKE>())), &options());
    println!("{MISTAKE}: {report}");
    report
}

#[track_caller]
fn broken<const MISTAKE: u8>(rules: &[&str]) {
    let violation = run::<u64, MISTAKE>().violation.expect("the checker misses the mistake");
    println!("{violation}");
    assert!(rules.contains(&violation.broken.rule), "another rule than one of {rules:?}: {violation}");
}

const CONTENT: &str = "what was acknowledged is there, and nothing else";

#[test]
fn a_right_structure_passes() {
    run::<u64, { list::RIGHT }>().assert_clean();
    run::<[u8], { list::RIGHT }>().assert_clean();
    run::<u64, { list::REPAIR_DURABLE }>().assert_clean();
}

#[test]
fn what_papers_print_passes_once_it_is_mended() {
    for (seed, report) in controls(&Options::default()) {
        println!("{seed}: {report}");
        report.assert_clean();
        assert!(report.checked > 5_000, "{seed}: hardly an image");
    }
}

/// A sequence that no case encodes, which a worker reaches after a few steps. A worker that stops early must not count as a clean run.
#[test]
fn a_worker_that_panics_is_noticed() {
    let options = Options { operations: OPERATIONS_MAX + 1, depth: 0, lives: 0, ..Options::default() };
    let report = every_crash(&Arc::new(Index::new(list::entry::<u64, _, { list::RIGHT }>())), &options);
    let violation = report.violation.expect("a worker has panicked");
    assert!(violation.broken.rule == "no panic" && violation.crashes.is_empty(), "{violation}");
    let none = every_crash(&Arc::new(Index::new(list::entry::<u64, _, { list::RIGHT }>())), &Options { threads: 0, ..options });
    assert_eq!(none.violation.map(|violation| violation.broken.rule), Some("every worker reports"));
}

#[test]
fn a_link_before_its_node_is_noticed() {
    broken::<{ list::LINK_BEFORE_SEAL }>(&[CONTENT, "opening after a crash succeeds"]);
}

#[test]
fn an_update_that_is_not_flushed_is_noticed() {
    broken::<{ list::UPDATE_NOT_FLUSHED }>(&[CONTENT]);
}

#[test]
fn an_update_in_two_steps_is_noticed() {
    broken::<{ list::UPDATE_IN_TWO_STEPS }>(&[CONTENT]);
}

#[test]
fn a_leak_is_noticed() {
    broken::<{ list::NEVER_RETIRED }>(&["allocated is what is reachable"]);
}

#[test]
fn a_block_used_twice_is_noticed() {
    broken::<{ list::RETIRED_WHILE_LINKED }>(&["allocated is what is reachable"]);
}

#[test]
fn a_waypoint_that_is_believed_when_its_node_has_gone_is_noticed() {
    broken::<{ list::WAYPOINT_DANGLES }>(&["allocated is what is reachable", "opening after a crash succeeds"]);
}

#[test]
fn a_recovery_through_a_bad_state_is_noticed() {
    broken::<{ list::RECOVERY_THROUGH_A_BAD_STATE }>(&[CONTENT, "a second recovery has nothing to repair"]);
}

#[test]
fn a_repair_that_is_not_durable_is_noticed() {
    broken::<{ list::REPAIR_NOT_DURABLE }>(&[CONTENT]);
}

/// The case that a violation's command names.
fn named(violation: &Violation) -> (&str, Case) {
    let mut words = violation.replay.strip_prefix("cargo xtask crash replay ").expect("a command").split(' ');
    (words.next().expect("a world"), words.next().expect("a case").parse().expect("a number"))
}

#[track_caller]
fn tells(violation: &Violation, parts: &[&str]) {
    let story = violation.to_string();
    for part in parts {
        assert!(story.contains(part), "nothing of {part:?} in\n{story}");
    }
}

#[test]
fn a_story_tells_what_was_done_kept_and_lost_and_what_recovery_did_and_the_life_after_it() {
    let suite = suites().into_iter().find(|suite| suite.name() == "wb-128/u64").expect("a small index");
    let sites = profile(&*suite, &Options::default(), 1).sites();
    // A place in a repair: only another crash shows that it is not durable.
    let lines: Vec<_> = include_str!("../../../index/src/selective/leaf/wb.rs").lines().collect();
    let line = 1 + lines.iter().rposition(|line| line.contains("pm.persist(self.array())")).expect("a repair");
    let is_repair = |site: &everleaf_pmem::Site| site.verb == Verb::Flush && site.place.file().ends_with("leaf/wb.rs") && site.place.line() as usize == line;
    let site = sites.into_iter().map(|(site, _)| site).find(is_repair).expect("a repair flushes");
    let life = CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() };
    let options = Options { operations: 2, life, seed: 0x5eed, ..Options::default() };
    for report in [suite.every(&options), suite.sampled(&options)] {
        let violation = report.violation.expect("a flush is missed");
        println!("{violation}");
        assert!(violation.setup.len() + violation.steps.len() <= 5, "{violation}");
        // The operations, the mistake among them, the source text of the stores, the crash, and the recovery.
        tells(&violation, &violation.steps.iter().map(|step| &**step).collect::<Vec<_>>());
        tells(
            &violation,
            &["what was done:", "    store 0x", "the planted mistake is here: flush drop", "wb.rs:", "pm.persist(self.array())", "the crash: crash point"],
        );
        tells(&violation, &["stores:", "    lost +", "and there the rule is broken:"]);
        tells(&violation, &["what was done after the crash:\n  the pool is opened and recovered", "\n    store 0x"]);
        tells(&violation, &["crash 2, in the life after crash 1: crash point", "what was done after crash 2:\n  the pool is opened and recovered"]);
        tells(&violation, &[&format!("--site {}:{}:{} --verb flush --act drop", site.place.file(), site.place.line(), site.place.column())]);
        // The case number alone reproduces all of it.
        let (world, case) = named(&violation);
        assert_eq!(world, suite.name());
        let again = suite.replay(case, &options).violation.expect("it replays");
        assert_eq!(again.to_string(), violation.to_string());
    }
}

#[test]
fn dropped_flushes_and_fences_are_noticed() {
    let with = |life| every_crash(&Arc::new(Index::new(list::entry::<u64, _, { list::RIGHT }>())), &Options { life, ..options() });
    let profile = Arc::new(Profile::default());
    with(CrashOptions { profile: Some(Arc::clone(&profile)), ..CrashOptions::default() }).assert_clean();
    let sites: Vec<_> = profile.sites().into_iter().filter(|(site, _)| site.place.file().ends_with("list.rs")).collect();
    let mut count = 0;
    for (site, _) in sites.into_iter().filter(|(_, tally)| tally.acts().any(|act| act == Act::Drop)) {
        let report = with(CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() });
        println!("{site}: {report}");
        assert!(report.violation.is_some(), "{site} is not missed: {report}");
        let report = with(undecided(CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() }));
        println!("{site}, undecided: {report}");
        assert!(report.violation.is_some(), "{site} is not missed where images are undecided: {report}");
        count += 1;
    }
    assert!(count >= 8, "seal and link of a node, unlinking, the value of an update: {count}");
}

#[test]
fn states_of_unreachable_blocks_change_nothing() {
    let with = |hidden_in_full| {
        let life = CrashOptions { hidden_in_full, ..CrashOptions::default() };
        every_crash(&Arc::new(Index::new(list::entry::<u64, _, { list::RIGHT }>())), &Options { life, depth: 1, ..options() })
    };
    let (short, full) = (with(false), with(true));
    short.assert_clean();
    full.assert_clean();
    println!("{short}\n{full}");
    assert!(full.checked > short.checked, "the shortcut leaves nothing out");
}

/// Shows every crash point of more than a few images undecided.
fn undecided(life: CrashOptions) -> CrashOptions {
    CrashOptions { images_max: 3, lazy_runs_max: 1 << 20, ..life }
}

/// A world that notes its content at each reading.
struct Noted<W: World> {
    world: W,
    contents: Mutex<BTreeSet<String>>,
}

impl<W: World> World for Noted<W> {
    type Live = W::Live;
    type Content = W::Content;
    type Change = W::Change;

    fn name(&self) -> String {
        self.world.name()
    }
    fn starts(&self) -> Vec<Start<W::Change>> {
        self.world.starts()
    }
    fn nothing(&self) -> W::Content {
        self.world.nothing()
    }
    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<W::Live, Broken> {
        self.world.open(pool, threads)
    }
    fn pool<'a>(&self, live: &'a W::Live) -> &'a Arc<Pool<Crash>> {
        self.world.pool(live)
    }
    fn changes(&self, start: &Start<W::Change>, content: &W::Content) -> Vec<W::Change> {
        self.world.changes(start, content)
    }
    fn random(&self, step: u64, count: u64, content: &W::Content, choice: &mut StdRng) -> W::Change {
        self.world.random(step, count, content, choice)
    }
    fn follow_up(&self, start: &Start<W::Change>, content: &W::Content) -> Vec<W::Change> {
        self.world.follow_up(start, content)
    }
    fn model(&self, content: &mut W::Content, change: &W::Change) {
        self.world.model(content, change);
    }
    fn between(&self, before: &W::Content, change: &W::Change) -> Vec<W::Content> {
        self.world.between(before, change)
    }
    fn apply(&self, live: &mut W::Live, before: &W::Content, change: &W::Change, promise: Promise<'_, W::Content>) -> Result<Applied, Broken> {
        self.world.apply(live, before, change, promise)
    }
    fn content(&self, live: &W::Live, limit: usize) -> Result<W::Content, Broken> {
        let content = self.world.content(live, limit)?;
        self.contents.lock().expect("no panic in here").insert(format!("{content:?}"));
        Ok(content)
    }
    fn audit(&self, live: &W::Live) -> Result<(), Broken> {
        self.world.audit(live)
    }
    fn blocks(&self, live: &W::Live, visit: &mut dyn FnMut(usize, usize)) -> Result<(), Broken> {
        self.world.blocks(live, visit)
    }
}

#[test]
fn undecided_images_lead_to_what_decided_ones_lead_to() {
    fn compare<W: World>(world: impl Fn() -> W) {
        let with = |life| {
            let world = Arc::new(Noted { world: world(), contents: Mutex::default() });
            // Using what was recovered stores to lines that have not been read, and so has to decide all of them.
            let options = Options { operations: 2, depth: 0, lives: 0, follow_up_every: u64::MAX, life, ..Options::default() };
            let report = every_crash(&world, &options);
            println!("{}: {report}", world.name());
            report.assert_clean();
            let contents = std::mem::take(&mut *world.contents.lock().expect("no panic in there"));
            (contents, report)
        };
        // Sets of stores in unreachable blocks have too many states to show them all.
        let in_full = CrashOptions { images_max: 1 << 16, ..CrashOptions::default() };
        let (eager, _) = with(in_full.clone());
        let (lazy, undecided) = with(undecided(in_full));
        assert!(undecided.lazy_points > 0 && undecided.sampled_points == 0, "{undecided}");
        assert_eq!(lazy, eager);
    }
    if !schedule::IS_BUILT_IN {
        return;
    }
    compare(|| Index::new(list::entry::<u64, _, { list::RIGHT }>()));
    compare(|| Index::new(list::entry::<[u8], _, { list::REPAIR_DURABLE }>()));
    compare(|| Index::new(everleaf_index::registry::<u64, Crash>().into_iter().find(|entry| entry.name == "isle-128").expect("a small index")));
    compare(|| everleaf_conformance::crash::Pools);
}
