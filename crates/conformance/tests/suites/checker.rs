//! The crash checker, checked: it passes a structure known to be right and fails each one known to be wrong.

use everleaf_conformance::Class;
use everleaf_conformance::crash::{Index, Options, Report, every_crash, list};
use everleaf_pmem::{Act, CrashOptions, Fault, Profile};
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
