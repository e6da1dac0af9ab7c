//! Every workload, every measure and every claim, end to end, on few keys; and the driver against systems that answer wrongly.

use everleaf_lab::claims::{self, Scale};
use everleaf_lab::driver::{self, Context, memory_directory};
use everleaf_lab::plan::{Access, Case, Distribution, Experiment, KeyKind, Load, Measure, Memory, Order, Parameters, Plan, Workload};
use everleaf_lab::result::{Measurement, Results, Verdict, metric};
use everleaf_lab::run::Run;
use everleaf_lab::{Capabilities, Error, Handle, Instance, Marks, Reopened, Setting, Shutdown, Space, System, Visit, summary, workload};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::slice::ChunksExact;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const KEYS: u64 = 2000;

fn parameters(measure: Measure) -> Parameters {
    Parameters { keys: KEYS, scan_length: 10, measure, ..Parameters::default() }
}

fn plan(systems: &[&str], cases: Vec<Case>) -> Plan {
    let systems = systems.iter().map(|name| (*name).to_owned()).collect();
    let experiment = Experiment { id: "test".into(), title: "Test".into(), systems, baseline: None, cases, figures: Vec::new() };
    Plan { experiments: vec![experiment], claims: Vec::new(), rounds: 1, seed: 5 }
}

/// Runs a plan, and checks that the written lines equal the returned results.
fn run_with(mut systems: Vec<Box<dyn System>>, plan: Plan, stop: bool) -> Result<Results, Error> {
    let (stop, mut lines) = (AtomicBool::new(stop), Vec::new());
    let mut run = Run { systems: &mut systems, command: vec!["test".into()], stop: &stop, child: None, progress: false };
    let planned = run.plan(plan, &mut lines);
    assert!(planned.is_ok() || lines.is_empty(), "what makes no sense is found before anything is written");
    let (results, measured) = planned?;
    assert!(Results::read(lines.as_slice()).unwrap() == results, "the lines tell something else than the results");
    measured.map(|()| results)
}

fn run(plan: Plan) -> Results {
    run_with(everleaf_lab::systems(), plan, false).unwrap()
}

/// The figure of a phase; there must be exactly one.
fn figure(results: &Results, system: &str, phase: &str, name: &str) -> f64 {
    let mut found = results.measurements.iter().filter(|found| found.system == system && found.phase == phase);
    let value = found.next().and_then(|found| found.metrics.get(name)).unwrap_or_else(|| panic!("{system}: no {name} of {phase}")).value;
    assert!(found.next().is_none(), "{system}: {phase} twice");
    value
}

#[test]
fn every_workload_runs_on_an_index() {
    let names = workload::WORKLOADS.iter().map(|(name, _)| workload::find(name).unwrap());
    let cases: Vec<Case> = names.map(|workload| Case { workload, parameters: parameters(Measure::Time) }).collect();
    let phases: usize = cases.iter().map(|case| case.workload.phases.len()).sum();
    let results = run(plan(&["isle", "volatile"], cases));
    assert_eq!(results.measurements.len(), 2 * phases);
    assert!(results.end.as_ref().is_some_and(|end| end.complete) && results.skipped.is_empty());
    for found in &results.measurements {
        assert!(found.metrics[metric::THROUGHPUT].value > 0.0 && found.metrics[metric::MEAN].value > 0.0, "{found:?}");
    }
    assert!(results.header.machine.raw_ns.len() == 3 && results.header.machine.raw_ns.values().all(|cost| *cost > 0.0));
    assert!(summary::text(&results).contains("ycsb-a"));
}

#[test]
fn strings_threads_and_values_of_any_size_on_indexes_the_store_and_the_server() {
    const SYSTEMS: [&str; 4] = ["lb", "store", "store:fp", "server"];
    let of = |name: &str, measure| {
        let parameters = Parameters { key: KeyKind::Bytes(24), value_bytes: 100, threads: 2, keys: 500, ..parameters(measure) };
        Case { workload: workload::find(name).unwrap(), parameters }
    };
    let cases = ["micro", "ycsb-d", "ycsb-e", "ycsb-f"].into_iter().map(|name| of(name, Measure::Latency)).collect();
    let results = run(plan(&SYSTEMS, cases));
    assert_eq!(results.measurements.len(), SYSTEMS.len() * 8);
    for found in &results.measurements {
        let [p50, p99, p999] = [metric::P50, metric::P99, metric::P999].map(|name| found.metrics[name].value);
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{found:?}");
    }
    let short = |value_bytes| {
        let case = of("micro", Measure::Time);
        Case { parameters: Parameters { value_bytes, ..case.parameters }, ..case }
    };
    assert_eq!(run(plan(&SYSTEMS, [1, 7].map(short).into())).measurements.len(), SYSTEMS.len() * 10);
    let results = run(plan(&SYSTEMS, vec![of("readseq", Measure::Time)]));
    assert_eq!(results.measurements.len(), SYSTEMS.len());
    assert!(results.measurements.iter().all(|found| found.metrics.contains_key(metric::ENTRIES)), "all entries are visited, whatever the system");
}

#[test]
fn batches_and_dependent_lookups() {
    let mut insert = workload::find("load").unwrap();
    insert.phases[0].access = Access::Batch(16);
    let cases = [insert, workload::find("search-batch").unwrap(), workload::find("search-dependent").unwrap()];
    let cases = cases.map(|workload| Case { workload, parameters: Parameters { threads: 2, ..parameters(Measure::Time) } });
    let results = run(plan(&["isle", "server"], cases.to_vec()));
    assert_eq!(results.measurements.len(), 6);
    // Each thread has a thousand operations: 62 batches of 16, and one of 8; or three blocks of 256, and one of 232. Loading inserted each key by its own call.
    let [insert, batch, dependent] = cases.map(|case| {
        CALLS.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
        let (stop, system) = (AtomicBool::new(false), Map { lie: Lie::Counts });
        driver::run(&system, &case, Context { seed: 1, stop: &stop, child: None }).unwrap();
        CALLS.each_ref().map(|calls| calls.load(Ordering::Relaxed))
    });
    assert_eq!([insert, batch, dependent], [[0, 0, 0, 126], [KEYS, 0, 126, 0], [KEYS, 8, 0, 0]], "lookups, by blocks, by batches; inserts by batches");
}

/// Ever leaves leaves full when ascending keys divide them, so fewer leaves show that the loaded keys are dense.
#[test]
fn dense_keys_are_searched_changed_and_scanned() {
    let dense = |name| {
        let mut workload = workload::find(name).unwrap();
        workload.load = Some(Load { order: Order::Dense, fill: None });
        workload.phases.iter_mut().for_each(|phase| phase.order = Order::Dense);
        workload
    };
    let names = ["search", "miss", "update", "scan", "delete", "zipfian", "latest", "insert", "ycsb-e"];
    let of = |workload, measure| Case { workload, parameters: Parameters { threads: 2, ..parameters(measure) } };
    let results = run(plan(&["isle", "nv", "lb", "wb", "ever", "store"], names.iter().map(|name| of(dense(name), Measure::Time)).collect()));
    assert_eq!(results.measurements.len(), 6 * names.len());
    let leaves = |workload: Workload| {
        figure(&run(plan(&["ever"], vec![of(Workload { phases: Vec::new(), ..workload }, Measure::Space)])), "ever", "space", metric::LEAVES)
    };
    let (ascending, random) = (leaves(dense("search")), leaves(workload::find("search").unwrap()));
    assert!(ascending < 0.9 * random, "{ascending} leaves of ascending keys, {random} of random ones");
}

/// Threads insert different numbers of keys in a mix; later phases must know which.
#[test]
fn what_a_mix_has_inserted_is_found_afterwards() {
    let mut mixed = workload::find("ycsb-d").unwrap();
    mixed.phases[0].mix = workload::parse_mix("search=1,insert=1").unwrap();
    mixed.phases.extend(workload::find("search").unwrap().phases);
    mixed.phases[1].operations = Some(3 * KEYS);
    let parameters = Parameters { threads: 3, ..parameters(Measure::Time) };
    let results = run(plan(&["isle"], vec![Case { workload: mixed, parameters }]));
    assert_eq!(results.measurements.len(), 2);
}

/// Keys are removed and restored among all other operations, and the driver knows which exist, in the mix and after it.
#[test]
fn what_a_mix_has_removed_is_known() {
    let mut mixed = workload::find("ycsb-a").unwrap();
    mixed.phases[0].mix = workload::parse_mix("search=4,miss=1,insert=2,update=4,delete=3,scan=1,modify=1").unwrap();
    mixed.phases.extend(workload::find("search").unwrap().phases);
    mixed.phases.push(mixed.phases[0].clone());
    for (at, phase) in mixed.phases.iter_mut().enumerate() {
        (phase.name, phase.operations) = (format!("{at}"), Some(4 * KEYS));
    }
    let of = |key, distribution| {
        let mut workload = mixed.clone();
        workload.phases[0].distribution = distribution;
        Case { workload, parameters: Parameters { threads: 3, key, ..parameters(Measure::Time) } }
    };
    let latest = of(KeyKind::Bytes(23), Distribution::Latest(0.99));
    let [uniform, zipfian] = [Distribution::Uniform, Distribution::Zipfian(0.99)].map(|distribution| of(KeyKind::Integer, distribution));
    let results = run(plan(&["isle", "ever", "store", "server"], vec![uniform.clone(), zipfian, latest]));
    assert_eq!(results.measurements.len(), 4 * 3 * 3);
    let lying = run_with(vec![Box::new(Map { lie: Lie::Stays })], plan(&["map"], vec![uniform]), false);
    assert!(matches!(lying, Err(Error::WrongAnswers { count, .. }) if count > 0));
}

/// YCSB's scans have one entry to the maximum with equal probability, others the maximum; 5.5 of ten are expected, fewer near the last key.
#[test]
fn scans_of_ycsb_differ_in_length() {
    for (name, low, high) in [("ycsb-e", 4.7, 5.7), ("scan", 9.8, 10.0)] {
        let results = run(plan(&["isle"], vec![Case { workload: workload::find(name).unwrap(), parameters: parameters(Measure::Time) }]));
        let metrics = &results.measurements[0].metrics;
        let length = metrics[metric::ENTRIES].value / metrics[metric::THROUGHPUT].value;
        assert!((low..=high).contains(&length), "{name}: {length} entries an operation");
    }
}

/// Names include the index, so a file means the same when it is read after the default has changed.
#[test]
fn a_plan_says_what_was_done() {
    let of = |measure, domain: &str| {
        let parameters = Parameters { domain: domain.into(), keys: 100, ..parameters(measure) };
        Case { workload: workload::find("load").unwrap(), parameters }
    };
    let results = run(plan(&["store", "server:fp", "store-snapshots"], vec![of(Measure::Time, "adr")]));
    let index = everleaf::Options::default().index;
    let names = [format!("store:{index}"), "server:fp".into(), format!("store-snapshots:{index}")];
    assert_eq!(results.header.plan.experiments[0].systems, names);
    assert!(results.measurements.iter().all(|found| names.contains(&found.system)));
    let version = &results.header.version;
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")) && version.contains(" debug") == cfg!(debug_assertions), "{version}");
    let counted = run_with(everleaf_lab::systems(), plan(&[], vec![of(Measure::Instructions, "adr"), of(Measure::Instructions, "eadr")]), false).unwrap();
    let cases = &counted.header.plan.experiments[0].cases;
    assert!(cases.len() == 1 && cases[0].parameters.domain == "page-cache", "nothing is written back under valgrind");
    let directory = tempfile::tempdir().unwrap();
    let [anonymous, files] = [Memory::Anonymous, Memory::Directory(directory.path().to_owned())].map(|memory| {
        let case = of(Measure::Time, "adr");
        let results = run(plan(&["isle", "volatile"], vec![Case { parameters: Parameters { memory, ..case.parameters }, ..case }]));
        let said = |system: &str| results.measurements.iter().find(|found| found.system == system).unwrap().durability.clone();
        (results.header.plan.experiments[0].cases[0].parameters.memory.clone(), said("isle"), said("volatile"))
    });
    assert!(anonymous.1.starts_with("nothing, as memory without a file goes with the process") && anonymous.2 == "none", "{anonymous:?}");
    assert!(files.1.contains("elsewhere against kill -9") && files.2 == "none", "{files:?}");
    assert_eq!((anonymous.0, files.0), (Memory::Anonymous, Memory::HugePages(directory.path().to_owned())), "on which pages is written down");
    let slow = [Measure::Counts, Measure::Time]
        .map(|measure| Case { parameters: Parameters { write_latency_ns: 300, ..of(measure, "adr").parameters }, ..of(measure, "adr") });
    let slow = run(plan(&[], slow.into())).header.plan.experiments.remove(0).cases;
    assert_eq!([slow[0].parameters.write_latency_ns, slow[1].parameters.write_latency_ns], [0, 300], "what is counted is not slowed down");
}

/// Each measure of a run has its own columns, and figures of one round have no spread.
#[test]
fn every_measure_of_a_run_has_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let case = |measure| {
        let memory = Memory::Directory(directory.path().to_owned());
        Case { workload: workload::find("insert").unwrap(), parameters: Parameters { memory, ..parameters(measure) } }
    };
    let mut plan = plan(&["isle", "lb"], [Measure::Latency, Measure::Counts, Measure::Space, Measure::Recovery].map(case).into());
    plan.rounds = 2;
    let results = run(plan);
    let text = summary::text(&results);
    assert!(!text.contains("NaN"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| [" isle ", " lb "].iter().any(|name| line.contains(name))).collect();
    assert!(rows.len() == 8 && rows.iter().all(|row| row.ends_with(|last: char| last.is_ascii_digit())), "each has a ratio: {text}");
    assert_eq!(rows.iter().filter(|row| row.contains('%')).count(), 4, "latency and recovery have two rounds: {text}");
    assert!(results.measurements.iter().any(|found| found.metrics.contains_key(metric::P50) && found.metrics[metric::THROUGHPUT].value > 0.0));
    let from_leaves = |found: &Measurement| found.metrics.get(metric::REBUILD_FROM_LEAVES).is_some_and(|time| time.value > 0.0);
    assert_eq!(results.measurements.iter().filter(|found| from_leaves(found)).count(), 4, "each opening after a crash, of two systems in two rounds");
    everleaf_lab::report::write(&results, directory.path()).unwrap();
    for name in ["test-latency", "test-counts", "test-pool", "test-recovery", "test-reopening"] {
        assert!(directory.path().join(format!("figures/{name}.svg")).is_file(), "no figure {name}");
    }
}

/// The cost of a write-back was measured in domain adr, and without latency: it is no unit for other conditions.
#[test]
fn times_are_told_in_write_backs_of_their_own_kind_alone() {
    let case = |domain: &str, write_latency_ns| {
        let parameters = Parameters { domain: domain.into(), write_latency_ns, ..parameters(Measure::Time) };
        Case { workload: workload::find("load").unwrap(), parameters }
    };
    let cells = |cases: Vec<Case>| -> Vec<usize> {
        let text = summary::text(&run(plan(&["isle"], cases)));
        let rows = text.lines().filter(|line| line.contains(" isle ") || line.contains("mean ns"));
        rows.map(|row| row.split(" isle ").last().unwrap().split_whitespace().count()).collect()
    };
    let [head, plain, slow, cached]: [usize; 4] = cells(vec![case("adr", 0), case("adr", 300), case("page-cache", 0)]).try_into().unwrap();
    assert!(slow == plain - 1 && cached == plain - 1, "{head}, {plain}, {slow}, {cached} cells");
    let [without, only]: [usize; 2] = cells(vec![case("adr", 300)]).try_into().unwrap();
    assert!(without == head - 1 && only == plain - 1, "a column of nothing has no name: {without}, {only} cells");
}

/// Medians of different rounds were divided by each other.
#[test]
fn times_are_told_in_what_memory_cost_in_their_rounds() {
    let case = Case { workload: workload::find("load").unwrap(), parameters: parameters(Measure::Time) };
    let mut results = run(Plan { rounds: 3, ..plan(&["isle"], vec![case]) });
    for (found, mean) in results.measurements.iter_mut().zip([100.0, 200.0, 300.0]) {
        found.metrics.get_mut(metric::MEAN).unwrap().value = mean;
    }
    for (costs, cost) in results.memory.iter_mut().zip([20.0, 10.0, 100.0]) {
        costs.raw_ns.values_mut().for_each(|found| *found = cost);
    }
    let text = summary::text(&results);
    let row = text.lines().find(|line| line.contains(" isle ")).unwrap();
    assert!(row.ends_with(" 5.00     5.00") && text.matches("20.0 ns in the median of the rounds").count() == 2, "{text}");
    results.memory.clear();
    results.header.machine.raw_ns.values_mut().for_each(|found| *found = 25.0);
    assert!(summary::text(&results).lines().any(|line| line.ends_with(" 8.00     8.00")), "older files have the costs of the beginning alone");
}

#[test]
fn counts_are_those_of_the_structure() {
    let micro = Case { workload: workload::find("micro").unwrap(), parameters: parameters(Measure::Counts) };
    let results = run(plan(&["isle", "fp", "volatile"], vec![micro]));
    let of = |system, phase, name| figure(&results, system, phase, name);
    // The figures of `docs/papers.md` for an insert that finds room, an update, a lookup.
    assert_eq!(of("isle", "insert", "common lines flushed"), 2.0);
    assert_eq!(of("isle", "insert", "common fences"), 1.0);
    assert_eq!((of("isle", "update", metric::LINES_FLUSHED), of("isle", "update", metric::FENCES)), (1.0, 1.0));
    assert_eq!((of("isle", "search", metric::LINES_FLUSHED), of("isle", "scan", metric::FENCES)), (0.0, 0.0));
    assert_eq!(of("fp", "insert", "common lines flushed"), 2.0);
    let (lines, units) = (of("isle", "insert", metric::LINES_FLUSHED), of("isle", "insert", metric::MEDIA_UNITS));
    assert!(lines > 2.0 && units > lines / 4.0 && units <= lines, "{lines} lines in {units} units");
    assert!((1.0..=4.0).contains(&of("isle", "insert", metric::MEDIA_AMPLIFICATION)));
    let splits = of("isle", "insert", metric::SPLITS);
    assert!((0.03..0.08).contains(&splits), "{splits} divisions an insert into leaves of 28");
    assert!(results.skipped.len() == 1 && results.skipped[0].system == "volatile", "what cannot be done is told");
}

/// Splits were reported for inserts alone, as the increase in leaves: those by updates were not seen, nor those of leaves that merged again.
#[test]
fn divisions_are_told_whatever_divides() {
    let micro = Case { workload: workload::find("micro").unwrap(), parameters: parameters(Measure::Counts) };
    let results = run(plan(&["nv", "isle"], vec![micro]));
    assert!(figure(&results, "nv", "update", metric::SPLITS) > 0.01, "each update is one more element in a leaf");
    assert_eq!(figure(&results, "isle", "update", metric::SPLITS), 0.0);
    let mut shrinking = workload::find("ycsb-a").unwrap();
    shrinking.phases[0].mix = workload::parse_mix("insert=1,delete=2").unwrap();
    shrinking.phases[0].operations = Some(2 * KEYS);
    let results = run(plan(&["store:nv", "nv"], vec![Case { workload: shrinking, parameters: parameters(Measure::Counts) }]));
    for system in ["store:nv", "nv"] {
        assert!(figure(&results, system, "run", metric::SPLITS) > 0.001, "leaves divide while they become fewer");
    }
}

#[test]
fn a_run_can_be_repeated_from_its_results() {
    let insert = Case { workload: workload::find("insert").unwrap(), parameters: parameters(Measure::Counts) };
    let first = run(plan(&["nv", "lb-512"], vec![insert]));
    let again = run(first.header.plan.clone());
    assert_eq!(first.measurements, again.measurements, "counts hang on the plan alone");
}

#[test]
fn recovery_and_space() {
    let directory = tempfile::tempdir().unwrap();
    let at = |measure, key| {
        let parameters = Parameters { key, threads: 2, memory: Memory::Directory(directory.path().to_owned()), ..parameters(measure) };
        Case { workload: Workload { phases: Vec::new(), ..workload::find("search").unwrap() }, parameters }
    };
    for key in [KeyKind::Integer, KeyKind::Bytes(20)] {
        let systems = ["isle", "wb", "ever", "nv", "fast-fair", "circ", "lcb", "cdds", "pf", "p-art", "roart", "bztree", "skip", "store", "volatile"];
        let results = run(plan(&systems, vec![at(Measure::Recovery, key), at(Measure::Space, key)]));
        for system in systems[..13].iter().copied().chain(["store:ever"]) {
            for name in [metric::RECOVERY, metric::RECOVERY_IN_FULL, metric::REOPENING, metric::REOPENING_IN_FULL] {
                assert!(figure(&results, system, "reopen", name) > 0.0, "{system}: {name}");
            }
            assert!(figure(&results, system, "space", metric::POOL) > 16.0, "a key and a value");
        }
        assert!(results.skipped.len() == 1 && results.skipped[0].system == "volatile");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn leaves_are_filled_as_asked_for() {
    let filled = |fill| {
        let load = Some(Load { order: Order::Random, fill: Some(fill) });
        let phases = workload::find("search").unwrap().phases;
        Case { workload: Workload { name: format!("fill {fill}"), load, phases }, parameters: parameters(Measure::Time) }
    };
    for fill in [1.0, 0.75, 0.6] {
        let mut case = filled(fill);
        case.parameters = Parameters { keys: 20_000, ..parameters(Measure::Space) };
        let results = run(plan(&["lb", "wb-256", "fp-256"], vec![case]));
        for system in ["lb", "wb-256", "fp-256"] {
            // Leaves have room for 14 entries, and get a whole number of them.
            let expected = (20_000.0 / (14.0_f64 * fill).floor()).ceil();
            assert_eq!(figure(&results, system, "space", metric::LEAVES), expected, "{system}, {fill}");
        }
    }
    assert_eq!(run(plan(&["lb"], vec![filled(0.7)])).measurements.len(), 1);
    for fill in [0.01, 1.01, f64::NAN] {
        let refused = run_with(everleaf_lab::systems(), plan(&["lb"], vec![filled(fill)]), false);
        assert!(matches!(refused, Err(Error::Usage(_))));
    }
    let skipped = run(plan(&["store", "server"], vec![filled(0.75)]));
    assert!(skipped.skipped.len() == 2 && skipped.measurements.is_empty());
    let strings = Parameters { key: KeyKind::Bytes(20), ..parameters(Measure::Counts) };
    let skipped = run(plan(&["fast-fair-1k", "lb-512"], vec![Case { workload: workload::find("load").unwrap(), parameters: strings }]));
    assert!(skipped.skipped.len() == 1 && skipped.skipped[0].system == "fast-fair-1k" && skipped.measurements.len() == 1);
}

#[test]
fn all_papers_are_reproduced_and_no_claim_is_left_out() {
    let names = everleaf_lab::names(&everleaf_lab::systems());
    let plan = claims::plan("all", Scale::TINY, &names, 1, 1).unwrap();
    let results = run(plan);
    assert_eq!(results.claims.iter().map(|claim| &claim.id).collect::<Vec<_>>(), claims::list().map(|(id, ..)| id).collect::<Vec<_>>());
    let claim = |id: &str| results.claims.iter().find(|claim| claim.id == id).unwrap();
    // One round is too few for times, and enough for counts.
    for id in ["A1", "A2", "A6", "B6", "D20", "D28"] {
        assert!(claim(id).verdict == Verdict::CannotCompare && claim(id).why.contains("Too few rounds"), "{:?}", claim(id));
    }
    for id in ["B4", "D23"] {
        assert_eq!(claim(id).verdict, Verdict::Agree, "{:?}", claim(id));
    }
    assert_eq!(claim("B3").verdict, Verdict::CannotCompare, "it could not fail");
    for found in &results.claims {
        match found.verdict {
            Verdict::NotYetPossible => assert!(found.ours.is_empty() && !found.why.is_empty(), "{found:?}"),
            Verdict::CannotCompare => assert!(!found.why.is_empty(), "{found:?}"),
            Verdict::Agree | Verdict::Differ => assert!(!found.ours.is_empty(), "{found:?}"),
        }
        // With few keys a leaf is reached that was not, but what can be measured was.
        assert!(!found.why.contains("It was not measured"), "{found:?}");
    }
    let text = summary::text(&results);
    assert!(results.claims.iter().all(|claim| text.contains(&format!("{:4} ", claim.id))));
    assert!(matches!(claims::plan("pear", Scale::TINY, &names, 1, 1), Err(Error::Usage(_))));
}

/// Where valgrind was not installed, a claim that needs it would have ended the run of all the others.
#[test]
fn claims_are_judged_without_valgrind_but_for_those_that_need_it() {
    let names = everleaf_lab::names(&everleaf_lab::systems());
    let ids = ["D18", "D23"].map(str::to_owned);
    let plan = claims::only(claims::plan("nv", Scale::TINY, &names, 1, 1).unwrap(), &ids, &names).unwrap();
    let results = run(plan.clone());
    let [reads, splits] = &results.claims[..] else { panic!("{:?}", results.claims) };
    assert!(reads.verdict == Verdict::CannotCompare && reads.why.contains("was not measured: this program cannot count instructions"), "{reads:?}");
    assert_eq!((splits.verdict, results.skipped.len()), (Verdict::Agree, 12));
    let asked_for = run_with(everleaf_lab::systems(), Plan { claims: Vec::new(), ..plan }, false);
    assert!(matches!(asked_for, Err(Error::Usage(_))), "who asks for instructions wants to know why there are none");
}

#[test]
fn a_run_that_is_stopped_leaves_a_good_file() {
    let names = everleaf_lab::names(&everleaf_lab::systems());
    let results = run_with(everleaf_lab::systems(), claims::plan("isle", Scale::TINY, &names, 1, 1).unwrap(), true).unwrap();
    assert!(results.end.as_ref().is_some_and(|end| !end.complete) && results.measurements.is_empty());
    assert!(results.claims.len() == 13 && summary::text(&results).contains("stopped"));
}

/// A map behind a lock, which may answer wrongly.
struct Map {
    lie: Lie,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    None,
    /// Forgets every hundredth key.
    Forgets,
    /// Leaves out the last of several lookups.
    Shortens,
    /// Returns the same value for every key.
    Mixes,
    /// Scans backwards.
    Reverses,
    /// Scans from the key after the requested one.
    Skips,
    /// Ends a scan after one entry.
    Stops,
    /// Leaves every second entry out of a scan.
    Omits,
    /// Keeps the old value of a key.
    Keeps,
    /// Keeps a key that should be removed.
    Stays,
    /// Answers correctly, but takes three milliseconds to say what has happened.
    Dawdles,
    /// The same, but for each insert.
    Waits,
    /// The same for the first lookup after it was opened, which it says took a second, and for the work that opening has deferred.
    Wakes,
    /// Has ended with the lab, by the same signal.
    Ends,
    /// Answers correctly, but can only be created in a directory.
    Files,
    /// Answers correctly, and counts in [`CALLS`].
    Counts,
}

/// Lookups, calls for blocks of lookups and for batches of lookups, and calls for batches of inserts.
static CALLS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Set by [`Lie::Ends`].
static STOP: AtomicBool = AtomicBool::new(false);

type Entry = (Vec<u8>, Vec<u8>);

struct MapInstance {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    lie: Lie,
    /// Lookups since it was opened.
    lookups: AtomicU64,
}

/// Takes at least three milliseconds.
fn pause() {
    std::thread::sleep(Duration::from_millis(3));
}

impl System for Map {
    fn name(&self) -> &str {
        "map"
    }

    fn summary(&self) -> String {
        "a map".into()
    }

    fn capabilities(&self) -> Capabilities {
        let (scans, threads, any_size) = (true, true, true);
        Capabilities {
            scans,
            persistent: self.lie == Lie::Wakes,
            threads,
            any_size,
            alone: true,
            by_requests: self.lie == Lie::Waits,
            needs_files: self.lie == Lie::Files,
            ..Capabilities::NONE
        }
    }

    fn durability(&self, _: &Setting) -> String {
        "none".into()
    }

    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error> {
        if self.lie == Lie::Ends {
            STOP.store(true, Ordering::Relaxed);
            return Err(Error::system("map", "it has ended"));
        }
        let is_in_memory = setting.directory.as_ref().is_some_and(|directory| directory.starts_with(memory_directory()));
        assert!(is_in_memory || self.lie != Lie::Files, "{:?}", setting.directory);
        Ok(Box::new(MapInstance { map: Mutex::default(), lie: self.lie, lookups: AtomicU64::new(0) }))
    }
}

impl Instance for MapInstance {
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error> {
        Ok(Box::new(MapHandle(self)))
    }

    fn space(&self) -> Result<Space, Error> {
        Ok(Space::default())
    }

    fn marks(&self) -> Option<Marks> {
        (self.lie == Lie::Dawdles).then(|| {
            pause();
            Marks::default()
        })
    }

    fn settle(&self) {
        assert_eq!(self.lookups.load(Ordering::Relaxed), 1, "what was left to be done is waited for behind the first operation");
        pause();
    }

    fn reopen(self: Box<Self>, _: Shutdown, _: u16) -> Result<Reopened, Error> {
        let lookups = AtomicU64::new(0);
        Ok(Reopened { instance: Box::new(Self { lookups, ..*self }), time: Duration::from_secs(1) })
    }
}

struct MapHandle<'a>(&'a MapInstance);

impl MapHandle<'_> {
    fn count(&self, which: usize, calls: u64) {
        if self.0.lie == Lie::Counts {
            CALLS[which].fetch_add(calls, Ordering::Relaxed);
        }
    }

    fn get_all(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let (mut found, last) = (0, usize::from(self.0.lie == Lie::Shortens));
        let count = keys.len() - last;
        for key in keys.take(count) {
            found += everleaf_lab::append_found(values, value_size, |values| self.get(key, values))?;
        }
        Ok(found)
    }
}

impl Handle for MapHandle<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if self.0.lie == Lie::Waits {
            pause();
        }
        let mut map = self.0.map.lock().unwrap();
        if self.0.lie != Lie::Forgets || map.len() % 100 != 99 {
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn get_each(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        self.count(1, 1);
        self.get_all(keys, value_size, values)
    }

    fn get_in_turn(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>, _: usize) -> Result<u64, Error> {
        self.count(1, 1);
        self.get_all(keys, value_size, values)
    }

    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        self.count(2, 1);
        self.get_all(keys, value_size, values)
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        self.count(3, 1);
        keys.zip(values).try_for_each(|(key, value)| self.insert(key, value))
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.count(0, 1);
        if self.0.lookups.fetch_add(1, Ordering::Relaxed) == 0 && self.0.lie == Lie::Wakes {
            pause();
        }
        let map = self.0.map.lock().unwrap();
        let found = if self.0.lie == Lie::Mixes { map.values().next() } else { map.get(key) };
        Ok(found.map(|found| value.extend_from_slice(found)).is_some())
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if self.0.lie != Lie::Keeps {
            self.0.map.lock().unwrap().insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        if self.0.lie == Lie::Stays {
            return Ok(self.0.map.lock().unwrap().contains_key(key));
        }
        Ok(self.0.map.lock().unwrap().remove(key).is_some())
    }

    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
        let map = self.0.map.lock().unwrap();
        let from = if self.0.lie == Lie::Skips { Bound::Excluded(from) } else { Bound::Included(from) };
        let entries = map.range::<[u8], _>((from, Bound::Unbounded));
        let mut entries: Vec<Entry> = entries.map(|(key, value)| (key.clone(), value.clone())).collect();
        match self.0.lie {
            Lie::Reverses => entries.reverse(),
            Lie::Stops => entries.truncate(1),
            Lie::Omits => entries = entries.into_iter().step_by(2).collect(),
            _ => {}
        }
        let _ = entries.iter().try_for_each(|(key, value)| match visit(key, value) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(()),
        });
        Ok(())
    }
}

#[test]
fn figures_of_systems_that_answer_wrongly_are_refused() {
    let run = |lie, name| {
        let case = Case { workload: workload::find(name).unwrap(), parameters: Parameters { keys: 1000, ..parameters(Measure::Time) } };
        run_with(vec![Box::new(Map { lie })], plan(&["map"], vec![case]), false)
    };
    assert_eq!(run(Lie::None, "micro").unwrap().measurements.len(), 5);
    let lies = [
        (Lie::Forgets, "search"),
        (Lie::Mixes, "search"),
        (Lie::Reverses, "scan"),
        (Lie::Skips, "scan"),
        (Lie::Stops, "scan"),
        (Lie::Omits, "scan"),
        (Lie::Keeps, "update"),
        (Lie::Stays, "delete"),
    ];
    let of_lookups = ["search-batch", "search-dependent"].into_iter().flat_map(|name| {
        run(Lie::None, name).unwrap();
        [Lie::Forgets, Lie::Mixes, Lie::Shortens].map(|lie| (lie, "search", name))
    });
    for (lie, wrong, name) in lies.map(|(lie, wrong)| (lie, wrong, "micro")).into_iter().chain(of_lookups) {
        match run(lie, name) {
            Err(Error::WrongAnswers { phase, count, .. }) => assert!(phase == wrong && count > 0, "{phase}: {count}"),
            other => panic!("{:?}", other.map(|results| results.measurements.len())),
        }
    }
}

/// A server that Ctrl-C had also ended was reported as a failure, and the end of the file was lost.
#[test]
fn what_ends_with_the_lab_is_no_failure() {
    let load = Case { workload: workload::find("load").unwrap(), parameters: parameters(Measure::Time) };
    let (mut systems, mut lines): (Vec<Box<dyn System>>, _) = (vec![Box::new(Map { lie: Lie::Ends })], Vec::new());
    let mut run = Run { systems: &mut systems, command: Vec::new(), stop: &STOP, child: None, progress: false };
    let (results, measured) = run.plan(plan(&["map"], vec![load]), &mut lines).unwrap();
    assert!(measured.is_ok() && results.end.is_some_and(|end| !end.complete));
}

/// A wrong answer in the last case discarded all measurements, and left a file without an end, whose claims were not judged.
#[test]
fn what_was_measured_before_a_failure_stands() {
    let [load, search] = ["load", "search"].map(|name| Case { workload: workload::find(name).unwrap(), parameters: parameters(Measure::Time) });
    let plan = Plan { claims: vec!["B3".into()], ..plan(&["map"], vec![load, search]) };
    let (mut systems, stop, mut lines): (Vec<Box<dyn System>>, _, _) = (vec![Box::new(Map { lie: Lie::Forgets })], AtomicBool::new(false), Vec::new());
    let mut run = Run { systems: &mut systems, command: Vec::new(), stop: &stop, child: None, progress: false };
    let (results, measured) = run.plan(plan, &mut lines).unwrap();
    assert!(matches!(measured, Err(Error::WrongAnswers { .. })));
    assert!(results.measurements.len() == 1 && results.claims[0].verdict == Verdict::CannotCompare && results.end.as_ref().is_some_and(|end| !end.complete));
    assert!(Results::read(lines.as_slice()).unwrap() == results && summary::text(&results).contains("stopped before its end"));
}

/// Observing each insert twice, for three milliseconds each, would leave 166 inserts a second.
#[test]
fn a_look_at_what_has_happened_takes_no_time_of_an_operation() {
    let load = Case { workload: workload::find("load").unwrap(), parameters: Parameters { keys: 100, ..parameters(Measure::Latency) } };
    let results = run_with(vec![Box::new(Map { lie: Lie::Dawdles })], plan(&["map"], vec![load]), false).unwrap();
    assert!(figure(&results, "map", "insert", metric::THROUGHPUT) > 200.0 && figure(&results, "map", "insert", "common share") == 1.0);
}

/// The clock of a recovery stopped before any operation, so the work of the first one was not counted.
#[test]
fn a_recovery_lasts_until_the_first_operation_was_served() {
    let reopen = Workload { phases: Vec::new(), ..workload::find("search").unwrap() };
    let case = Case { workload: reopen, parameters: Parameters { keys: 100, ..parameters(Measure::Recovery) } };
    let results = run_with(vec![Box::new(Map { lie: Lie::Wakes })], plan(&["map"], vec![case]), false).unwrap();
    let time = |name| figure(&results, "map", "reopen", name);
    for (served, in_full) in [(metric::RECOVERY, metric::RECOVERY_IN_FULL), (metric::REOPENING, metric::REOPENING_IN_FULL)] {
        assert!(time(served) >= 1.003 && time(in_full) >= time(served) + 0.003, "{served} in {} s, in full in {} s", time(served), time(in_full));
    }
}

/// Half of the operations were reported to take a tenth of the time of their batch of ten.
#[test]
fn each_operation_takes_as_long_as_its_batch() {
    let mut load = Case { workload: workload::find("load").unwrap(), parameters: Parameters { keys: 20, ..parameters(Measure::Latency) } };
    load.workload.phases[0].access = Access::Batch(10);
    let results = run_with(vec![Box::new(Map { lie: Lie::Waits })], plan(&["map"], vec![load]), false).unwrap();
    assert!(figure(&results, "map", "insert", metric::P50) >= 30e6);
}

/// Such a run silently had no ratios.
#[test]
fn what_is_compared_with_is_measured() {
    let with = |baseline: &str| {
        let mut plan = plan(&["store", "isle"], vec![Case { workload: workload::find("load").unwrap(), parameters: parameters(Measure::Time) }]);
        plan.experiments[0].baseline = Some(baseline.into());
        run_with(everleaf_lab::systems(), plan, false)
    };
    assert!(matches!(with("lb"), Err(Error::Usage(message)) if message.contains("\"lb\"") && message.contains("isle")));
    assert!(with("store").is_ok() && with("isle").is_ok());
}

#[test]
fn what_makes_no_sense_is_an_error() {
    let case = |change: &dyn Fn(&mut Case)| {
        let mut case = Case { workload: workload::find("micro").unwrap(), parameters: parameters(Measure::Time) };
        change(&mut case);
        run_with(vec![Box::new(Map { lie: Lie::None })], plan(&["map"], vec![case]), false)
    };
    assert!(case(&|_| {}).is_ok());
    let wrong: [&dyn Fn(&mut Case); 15] = [
        // No key is left to look up.
        &|case| {
            case.workload.phases[1].mix = workload::parse_mix("search=1,delete=1").unwrap();
            case.workload.phases[1].operations = Some(3 * KEYS);
        },
        &|case| case.parameters.keys = 0,
        &|case| case.parameters.keys = 1 << 40,
        &|case| case.parameters.value_bytes = 0,
        &|case| case.parameters.threads = 0,
        &|case| case.parameters.threads = 257,
        // Splits per operation of no operations were NaN, and the file could not be read.
        &|case| case.workload.phases[0].operations = Some(0),
        &|case| case.parameters.key = KeyKind::Bytes(7),
        &|case| case.parameters.domain = "pear".into(),
        &|case| case.workload.phases[1].access = Access::Batch(0),
        &|case| case.workload.phases[4].operations = Some(3 * KEYS),
        &|case| case.workload.phases[1].distribution = Distribution::Zipfian(f64::NAN),
        &|case| case.workload.phases[1].distribution = Distribution::Zipfian(f64::INFINITY),
        &|case| case.workload.phases[1].operations = Some(u64::MAX),
        &|case| case.workload.phases[4].distribution = Distribution::Zipfian(0.99),
    ];
    for (number, change) in wrong.into_iter().enumerate() {
        assert!(matches!(case(change), Err(Error::Usage(_))), "number {number}");
    }
    let slow = Parameters { write_latency_ns: 300, domain: "page-cache".into(), ..parameters(Measure::Time) };
    let slow = plan(&["isle"], vec![Case { workload: workload::find("load").unwrap(), parameters: slow }]);
    assert!(matches!(run_with(everleaf_lab::systems(), slow, false), Err(Error::Usage(_))));
    // It would write nothing back, but claim to survive a power failure.
    let at = |memory| {
        let case = Case {
            workload: workload::find("load").unwrap(),
            parameters: Parameters { keys: 10, domain: "msync".into(), memory, ..parameters(Measure::Time) },
        };
        run_with(everleaf_lab::systems(), plan(&["isle"], vec![case]), false)
    };
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(at(Memory::Anonymous), Err(Error::Usage(message)) if message.contains("--directory")));
    assert!(at(Memory::Directory(directory.path().to_owned())).is_ok());
    let unknown = run_with(vec![Box::new(Map { lie: Lie::None })], plan(&["pear"], Vec::new()), false);
    assert!(matches!(unknown, Err(Error::Usage(message)) if message.contains("map")));
}

/// Engines in files were measured in a directory for temporary files, which may be on a disk, beside others in memory; the results said memory for both.
#[test]
fn what_needs_files_has_them_in_memory_if_nothing_else_is_asked_for() {
    for measure in [Measure::Time, Measure::Space] {
        let case = Case { workload: workload::find("load").unwrap(), parameters: parameters(measure) };
        let results = run_with(vec![Box::new(Map { lie: Lie::Files })], plan(&["map"], vec![case]), false).unwrap();
        assert_eq!(results.measurements.len(), 1);
    }
}

/// The warm-up failed the run for a case that the first round would have skipped.
#[test]
fn a_system_that_lacks_what_is_measured_is_left_out_of_the_warm_up_too() {
    let case = Case { workload: workload::find("load").unwrap(), parameters: parameters(Measure::Recovery) };
    let results = run(plan(&["store", "server"], vec![case]));
    assert!(results.measurements.len() == 1 && results.skipped.len() == 1 && results.skipped[0].why.contains("it has no"), "{:?}", results.skipped);
}

/// Of 25 thousand inserts into a million keys in full leaves half divided one, but the claim is about inserts that do.
#[test]
fn inserts_into_full_leaves_divide_them() {
    let names = everleaf_lab::names(&everleaf_lab::systems());
    let mut plan = claims::plan("lb", Scale(20_000), &names, 1, 1).unwrap();
    plan.claims.clear();
    plan.experiments.retain(|experiment| ["lb-insert", "lb-nodes"].contains(&experiment.id.as_str()));
    for experiment in &mut plan.experiments {
        experiment.cases.retain(|case| case.workload.name == "100 %" && case.parameters.threads == 1);
        experiment.cases.iter_mut().for_each(|case| case.parameters.measure = Measure::Counts);
    }
    let results = run(plan);
    assert_eq!(results.measurements.len(), 3 * 3 + 9);
    for found in &results.measurements {
        let (splits, bytes) = (found.metrics[metric::SPLITS].value, found.leaf_bytes.unwrap());
        // A divided leaf has room: with 256 B a few hundredths of the leaves, with 1 KiB four times as many.
        assert!(splits >= if bytes == 256 { 0.93 } else { 0.9 }, "{}, {}: {splits}", found.system, found.phase);
    }
}
