//! The crash checker, checked: it passes a structure known to be right and fails each one known to be wrong.

use everleaf_conformance::Class;
use everleaf_conformance::crash::{Case, Index, Options, Report, Violation, every_crash, list, profile, replay, suites};
use everleaf_pmem::{Act, CrashOptions, Fault, Profile, Verb};
use std::sync::Arc;

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
fn a_story_tells_what_was_done_kept_and_lost_and_what_recovery_did() {
    let suite = suites().into_iter().find(|suite| suite.name() == "isle-128/u64").expect("a small index");
    let sites = profile(&*suite, &Options::default(), 1).sites();
    let is_flush_of_a_line = |site: &everleaf_pmem::Site| site.verb == Verb::Flush && site.place.file().ends_with("leaf/isle.rs");
    let site = sites.into_iter().map(|(site, _)| site).find(is_flush_of_a_line).expect("a leaf flushes");
    let life = CrashOptions { fault: Some(Fault { site, act: Act::Drop }), ..CrashOptions::default() };
    let options = Options { operations: 2, life, seed: 0x5eed, ..Options::default() };
    for report in [suite.every(&options), suite.sampled(&options)] {
        let violation = report.violation.expect("a flush is missed");
        println!("{violation}");
        assert!(violation.setup.len() + violation.steps.len() <= 5, "{violation}");
        // The operations, the mistake in the middle of them, the names of what was stored to, the crash, recovery.
        tells(&violation, &violation.steps.iter().map(|step| &**step).collect::<Vec<_>>());
        tells(&violation, &["what was done:", "    store 0x", "the planted mistake is here: flush drop", "isle.rs:", "pm.store(", "the crash: crash point"]);
        tells(&violation, &["stores:", "    lost +", "what was done after the crash:", "the pool is opened and recovered", "and there the rule is broken:"]);
        tells(&violation, &[&format!("--site {}:{}:{} --verb flush --act drop", site.place.file(), site.place.line(), site.place.column())]);
        // One number says all of it again.
        let (world, case) = named(&violation);
        assert_eq!(world, suite.name());
        let again = suite.replay(case, &options).violation.expect("it replays");
        assert_eq!(again.to_string(), violation.to_string());
    }
}

#[test]
fn a_story_tells_of_crashes_in_recovery_and_of_second_lives() {
    let broken = run::<u64, { list::RECOVERY_THROUGH_A_BAD_STATE }>().violation.expect("a recovery that a crash breaks");
    println!("{broken}");
    assert!(broken.crashes.len() >= 2 && broken.steps.len() <= 5, "{broken}");
    tells(
        &broken,
        &["the crash: ", "what was done after the crash:\n  the pool is opened and recovered\n    store 0x", "crash 2, in the life after crash 1: "],
    );
    let (_, case) = named(&broken);
    let world = Arc::new(Index::new(list::entry::<u64, _, { list::RECOVERY_THROUGH_A_BAD_STATE }>()));
    assert_eq!(replay(&world, case, &options()).violation.expect("it replays").to_string(), broken.to_string());

    let broken = run::<u64, { list::REPAIR_NOT_DURABLE }>().violation.expect("a repair that a second crash undoes");
    println!("{broken}");
    tells(&broken, &["crash 2, in the life after crash 1: ", "stores:"]);
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
