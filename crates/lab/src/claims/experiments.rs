//! The experiments behind the claims, at a size that fits the machine.

use super::rules::{NV_SIZES, NV_STUDY};
use super::table::ROWS;
use super::{Row, is_there};
use crate::Error;
use crate::driver::memory_directory;
use crate::plan::{Case, Distribution, Experiment, Figure, KeyKind, Load, Measure, Memory, Order, Parameters, Phase, Plan, Shape, Workload};
use crate::result::metric;
use crate::workload::{DELETE, INSERT, NONE, SCAN, SEARCH, UPDATE, YCSB, phase};
use everleaf_pmem::Domain;
use std::str::FromStr;

/// Names of the papers, in the order of the letters of their claims.
pub const PAPERS: [&str; 5] = ["isle", "lb", "sentinels", "nv", "pftree"];

/// The scale of experiments: the number of keys that stands for ten million of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale(pub u64);

impl Scale {
    /// Takes seconds, for a trial.
    pub const TINY: Self = Self(2_000);
    /// Takes an hour on two cores, with five rounds.
    pub const DEFAULT: Self = Self(1_000_000);
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tiny" => Ok(Self::TINY),
            "small" => Ok(Self(100_000)),
            "default" => Ok(Self::DEFAULT),
            "large" => Ok(Self(10_000_000)),
            number => match number.replace('_', "").parse() {
                Ok(keys @ 2_000..=100_000_000) => Ok(Self(keys)),
                _ => Err(format!("{text:?} is no scale; choose tiny, small, default, large, or a number of keys from 2000 to 100000000")),
            },
        }
    }
}

/// The index of the size in `isle-insert` that stands for the papers' ten million keys.
pub(super) const PAPERS_SIZE: usize = 1;
/// Phases of equally many inserts into a loaded tree: the paper has 50 to 300 thousand.
pub(super) const STRETCHES: [&str; 3] = ["insert", "insert 2", "insert 3"];
/// The workloads of db_bench that LB+-Tree's paper runs in X-Engine, and the phase of each.
pub(super) const ENGINE: [(&str, &str); 3] = [("readrandom", "search"), ("fillseq", "insert"), ("fillrandom", "insert")];
/// Minimum number of keys whose reads are counted: enough for many leaves of 4 KiB.
const READ_KEYS_MIN: u64 = 20_000;
/// Slow memory as Isle-Tree's paper emulates it.
const ISLE_LATENCY_NS: u64 = 300;

/// The plan that judges all claims of a paper, or of all papers, as far as the systems needed exist.
///
/// # Errors
/// [`Error::Usage`] for an unknown paper.
pub fn plan(paper: &str, scale: Scale, systems: &[String], rounds: u32, seed: u64) -> Result<Plan, Error> {
    if paper != "all" && !PAPERS.contains(&paper) {
        return Err(Error::Usage(format!("no paper is called {paper:?}; there are: {}, all", PAPERS.join(", "))));
    }
    let is_asked = |of: &str| paper == "all" || paper == of;
    let claims = ROWS.iter().filter(|row| is_asked(row.paper())).map(|row| row.id.to_owned()).collect();
    let mut experiments = Vec::new();
    for (of, list) in [("isle", isle(scale)), ("lb", lb(scale)), ("sentinels", sentinels(scale)), ("nv", nv(scale)), ("pftree", pftree(scale))] {
        if is_asked(of) {
            experiments.extend(list);
        }
    }
    for experiment in &mut experiments {
        experiment.systems.retain(|name| is_there(name, systems));
    }
    experiments.retain(|experiment| !experiment.systems.is_empty());
    Ok(Plan { experiments, claims, rounds, seed })
}

/// The part of a plan that is needed to judge only these of its claims.
///
/// # Errors
/// [`Error::Usage`] for a claim that is not in the plan.
pub fn only(mut plan: Plan, ids: &[String], systems: &[String]) -> Result<Plan, Error> {
    let others: Vec<&str> = ids.iter().filter(|id| !plan.claims.contains(id)).map(String::as_str).collect();
    if !others.is_empty() {
        return Err(Error::Usage(format!("no claim here has the id {}; there are: {}", others.join(", "), plan.claims.join(", "))));
    }
    plan.claims.retain(|id| ids.contains(id));
    // A claim that lacks a system is not judged, whatever was measured for it.
    let is_judged = |row: &&Row| plan.claims.iter().any(|id| id == row.id) && row.needs.iter().all(|name| is_there(name, systems));
    let needed: Vec<&str> = ROWS.iter().filter(is_judged).flat_map(Row::experiments).collect();
    plan.experiments.retain(|experiment| needed.contains(&experiment.id.as_str()));
    Ok(plan)
}

fn parameters(keys: u64, write_latency_ns: u64, measure: Measure) -> Parameters {
    Parameters { keys, write_latency_ns, measure, ..Parameters::default() }
}

fn workload(name: &str, load: Option<Load>, phases: Vec<Phase>) -> Workload {
    Workload { name: name.into(), load, phases }
}

fn experiment(id: &str, title: &str, systems: &[&str], cases: Vec<Case>, figures: impl IntoIterator<Item = Drawn>) -> Experiment {
    let figure = |(shape, horizontal, vertical): Drawn| Figure { shape, horizontal: horizontal.into(), vertical: vertical.into(), phases: Vec::new() };
    let systems: Vec<String> = systems.iter().map(|name| (*name).to_owned()).collect();
    Experiment { id: id.into(), title: title.into(), baseline: systems.first().cloned(), systems, cases, figures: figures.into_iter().map(figure).collect() }
}

/// Shape, horizontal and vertical axis of a figure.
type Drawn = (Shape, &'static str, &'static str);

/// A phase of fewer operations than keys.
fn some(operations: u64, phase: Phase) -> Phase {
    Phase { operations: Some(operations.max(100)), ..phase }
}

/// Keys that leaves of 256 B have room for, in every layout.
const LEAF_KEYS: u64 = 10;
const RANDOM: Load = Load { order: Order::Random, fill: None };

/// Half lookups, half updates, by YCSB's distribution.
fn mixed() -> Phase {
    Phase { distribution: Distribution::Zipfian(YCSB), ..phase("mixed", crate::plan::Mix { search: 0.5, update: 0.5, ..NONE }) }
}

fn insert_and_search() -> Workload {
    workload("insert and search", None, vec![phase("insert", INSERT), phase("search", SEARCH)])
}

/// Isle-Tree's study: 512 B nodes, 300 ns added to every line written.
fn isle(Scale(n): Scale) -> Vec<Experiment> {
    // FPTree as in its paper, since that is what others have compared themselves with; where the third flush matters, ours is measured beside it.
    let all = ["isle", "nv", "fp-published", "wb", "fast-fair", "circ"];
    let with_ours = ["isle", "nv", "fp-published", "fp", "wb", "fast-fair", "circ"];
    let insert = || workload("insert", None, vec![phase("insert", INSERT)]);
    let case = |workload: Workload, keys: u64, latency: u64, measure: Measure| Case { workload, parameters: parameters(keys, latency, measure) };
    let slow = |workload, keys, measure| case(workload, keys, ISLE_LATENCY_NS, measure);
    let sizes = [n / 10, n, 2 * n].map(|keys| slow(insert(), keys, Measure::Time));
    let latencies = (0..=6).map(|step| case(insert(), n / 4, 100 * step, Measure::Time));
    let clients = [1, 2, 4, 8].map(|threads| {
        let phases = vec![phase("insert", INSERT), mixed()];
        let parameters = Parameters { key: KeyKind::Bytes(24), value_bytes: 100, threads, ..parameters(n / 40, ISLE_LATENCY_NS, Measure::Latency) };
        Case { workload: workload("clients", None, phases), parameters }
    });
    vec![
        experiment("isle-insert", "Inserts of random keys into an empty tree", &with_ours, sizes.into(), Some((Shape::Lines, "keys", metric::MEAN))),
        experiment(
            "isle-counts",
            "Lines flushed by inserts of random keys",
            &with_ours,
            vec![case(insert(), n, 0, Measure::Counts)],
            Some((Shape::Bars, "system", metric::LINES_FLUSHED)),
        ),
        experiment(
            "isle-search",
            "Lookups of random keys",
            &["isle", "nv", "fp-published", "wb", "fast-fair", "circ", "isle-plain"],
            vec![slow(workload("search", Some(RANDOM), vec![phase("search", SEARCH)]), n, Measure::Time)],
            Some((Shape::Bars, "system", metric::MEAN)),
        ),
        experiment(
            "isle-splits",
            "Share of inserts that divide a leaf in the time of all",
            &all,
            vec![slow(insert(), n, Measure::Latency)],
            Some((Shape::Bars, "system", metric::SPLIT_SHARE)),
        ),
        experiment(
            "isle-nodes",
            "Inserts and lookups by size of the nodes",
            &["isle", "isle-1k", "isle-2k", "nv", "nv-1k", "nv-2k", "wb", "wb-1k", "fast-fair", "fast-fair-2k", "circ", "circ-2k", "isle-plain"],
            vec![slow(insert_and_search(), n / 2, Measure::Time)],
            Some((Shape::Bars, "system", metric::MEAN)),
        ),
        experiment("isle-latency", "Inserts by latency of writes", &all, latencies.collect(), Some((Shape::Lines, "write_latency_ns", metric::MEAN))),
        experiment(
            "isle-clients",
            "Clients of a server: inserts of string keys, then half lookups, half updates by Zipf's law",
            &["server:isle", "server:nv", "server:fp", "server:fast-fair", "server:circ"],
            clients.into(),
            [(Shape::Lines, "threads", metric::P99), (Shape::Lines, "threads", metric::SEARCH_P99), (Shape::Lines, "threads", metric::UPDATE_P99)],
        ),
    ]
}

/// LB+-Tree's study: 256 B nodes, a tree loaded in bulk, to which a few keys are added.
fn lb(Scale(n): Scale) -> Vec<Experiment> {
    let all = ["lb", "wb-256", "fp-256"];
    let filled = |fill| Some(Load { order: Order::Random, fill: Some(fill) });
    // The paper adds at most 300 thousand to 2 billion keys, so nearly every insert divides a leaf if leaves are full, and hardly any otherwise. That requires
    // adding few keys to many.
    let (many, few) = (4 * n, n / 200);
    let inserts = |name: &str, fill, order, stretches: &[&str]| {
        let stretch = |name: &&str| some(few, Phase { order, touches_ahead: true, ..phase(name, INSERT) });
        workload(name, filled(fill), stretches.iter().map(stretch).collect())
    };
    let case = |workload: Workload, threads: u16, measure: Measure| Case { workload, parameters: Parameters { threads, ..parameters(n, 0, measure) } };
    let three = |threads, stretches: &[&str]| {
        let fills = [("70 %", 0.7, Order::Random), ("100 %", 1.0, Order::Random), ("dense", 0.7, Order::Dense)];
        fills.map(|(name, fill, order)| {
            let parameters = Parameters { threads, ..parameters(many, 0, Measure::Time) };
            Case { workload: inserts(name, fill, order, stretches), parameters }
        })
    };
    // Drawn anew, so that no stretch finds the keys of the one before in the caches.
    let lookups = |name| some(n / 20, Phase { distribution: Distribution::Random, ..phase(name, SEARCH) });
    let reads = workload("reads", filled(0.7), vec![lookups("search"), lookups("search 2"), lookups("search 3"), some(n / 20, phase("delete", DELETE))]);
    let rebuilt = [1, 2].map(|threads| case(workload("rebuild", filled(0.7), Vec::new()), threads, Measure::Recovery));
    let engine = |name, threads| Case {
        workload: crate::workload::find(name).expect("one of db_bench"),
        parameters: Parameters { key: KeyKind::Bytes(8), value_bytes: 20, threads, ..parameters(n / 4, 0, Measure::Time) },
    };
    let engines = [1, 2].into_iter().flat_map(|threads| ENGINE.map(|(name, _)| engine(name, threads)));
    let served = Case {
        workload: workload("clients", Some(RANDOM), vec![some(n / 80, phase("insert", INSERT)), some(n / 80, phase("search", SEARCH))]),
        parameters: Parameters { key: KeyKind::Bytes(20), threads: 2, ..parameters(n / 40, 0, Measure::Time) },
    };
    // All keys are in one leaf, whatever its layout.
    let leaf = Case {
        workload: workload("leaf", Some(RANDOM), vec![some(n, phase("search", SEARCH))]),
        parameters: Parameters { keys: LEAF_KEYS, ..parameters(n, 0, Measure::Time) },
    };
    // Stable: the number of keys doubles, so leaves are as full as in the long run.
    let stable = workload("stable", Some(RANDOM), vec![phase("insert", INSERT)]);
    vec![
        experiment(
            "lb-insert",
            "Inserts into a loaded tree, by how full its leaves are",
            &all,
            [three(1, &STRETCHES), three(2, &STRETCHES)].concat(),
            [(Shape::Lines, "operations", metric::MEAN), (Shape::Lines, "operations", metric::THROUGHPUT)],
        ),
        experiment(
            "lb-nodes",
            "Inserts into a loaded tree, by size of the leaves",
            &["lb", "lb-512", "lb-768", "lb-1k", "wb-256", "wb", "wb-1k", "fp-256", "fp-1k"],
            three(1, &STRETCHES[..1]).into(),
            Some((Shape::Bars, "system", metric::MEAN)),
        ),
        experiment("lb-reads", "Lookups, and removals", &all, vec![case(reads, 1, Measure::Time)], Some((Shape::Bars, "phase", metric::MEAN))),
        experiment("lb-leaf", "Lookups in a single leaf", &all, vec![leaf], Some((Shape::Bars, "system", metric::MEAN))),
        experiment(
            "lb-counts",
            "Lines flushed by inserts into a tree as it is in the long run",
            &["lb", "lb-512", "lb-768", "lb-1k", "wb-256", "fp-256"],
            vec![case(stable, 1, Measure::Counts)],
            Some((Shape::Bars, "system", "common lines flushed")),
        ),
        experiment(
            "lb-server",
            "Clients of a server: inserts of string keys, then lookups",
            &["server:lb", "server:wb-256", "server:fp-256"],
            vec![served],
            Some((Shape::Bars, "phase", metric::MEAN)),
        ),
        experiment(
            "lb-engine",
            "db_bench in a store, on a tree and on a skip list",
            &["store:lb", "store:skip"],
            engines.collect(),
            Some((Shape::Bars, "workload", metric::MEAN)),
        ),
        experiment(
            "lb-rebuild",
            "Building the inner nodes again, by size of the leaves and by threads",
            &["lb", "lb-512", "lb-768", "lb-1k"],
            rebuilt.into(),
            Some((Shape::Lines, "threads", metric::RECOVERY)),
        ),
    ]
}

/// The study of sentinels: nodes from 512 B to 4 KiB, with and without, and 300 ns for every line written.
fn sentinels(Scale(n): Scale) -> Vec<Experiment> {
    let case = |workload, measure| Case { workload, parameters: parameters(n / 4, ISLE_LATENCY_NS, measure) };
    #[rustfmt::skip]
    let sizes = [
        "fast-fair", "fast-fair-s", "fast-fair-1k", "fast-fair-s-1k", "fast-fair-2k", "fast-fair-s-2k", "fast-fair-4k", "fast-fair-s-4k",
        "circ", "circ-s", "circ-1k", "circ-s-1k", "circ-2k", "circ-s-2k", "circ-4k", "circ-s-4k",
    ];
    vec![
        experiment(
            "sentinels-nodes",
            "Inserts and lookups by size of the nodes, with sentinels and without",
            &sizes,
            vec![case(insert_and_search(), Measure::Time)],
            Some((Shape::Bars, "system", metric::MEAN)),
        ),
        experiment(
            "sentinels-tail",
            "Lookups among updates by Zipf's law, with sentinels and without",
            &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
            vec![case(workload("mixed", Some(RANDOM), vec![mixed()]), Measure::Latency)],
            Some((Shape::Bars, "system", metric::SEARCH_P99)),
        ),
    ]
}

/// PFtree's study: caches that are in the power-fail domain, several threads.
fn pftree(Scale(n): Scale) -> Vec<Experiment> {
    let all = ["pf", "roart", "p-art", "fast-fair", "bztree"];
    let case = |workload| {
        let shared = parameters(n / 2, 0, Measure::Time);
        Case { workload, parameters: Parameters { threads: 2, domain: Domain::Eadr.name().into(), ..shared } }
    };
    let phases = [("insert", INSERT), ("search", SEARCH), ("scan", SCAN), ("update", UPDATE), ("delete", DELETE)];
    let micro = phases.map(|(name, mix)| if name == "scan" { some(n / 20, phase(name, mix)) } else { phase(name, mix) });
    // Its YCSB A and B: half and one in twenty of the operations are inserts. C is the lookups above, D the inserts.
    let mixes = [50, 5].map(|share| {
        let mix = crate::plan::Mix { insert: f64::from(share), search: f64::from(100 - share), ..NONE };
        case(workload(&format!("{share} % inserts"), Some(RANDOM), vec![phase("run", mix)]))
    });
    vec![
        experiment(
            "pftree-micro",
            "Operations of two threads where caches are durable",
            &all,
            vec![case(workload("micro", None, micro.into()))],
            Some((Shape::Bars, "phase", metric::MEAN)),
        ),
        experiment(
            "pftree-mixes",
            "Lookups and inserts of two threads where caches are durable",
            &all,
            mixes.into(),
            Some((Shape::Bars, "workload", metric::MEAN)),
        ),
        experiment(
            "pftree-reopen",
            "Opening radix trees after a crash",
            &["pf", "roart"],
            vec![Case { workload: workload("reopen", Some(RANDOM), Vec::new()), parameters: parameters(2 * n, 0, Measure::Recovery) }],
            Some((Shape::Bars, "system", metric::RECOVERY)),
        ),
    ]
}

/// NV-Tree's study: memory as fast as DRAM, nodes from 512 B to 4 KiB.
fn nv(Scale(n): Scale) -> Vec<Experiment> {
    let case = |workload: Workload, latency: u64, measure: Measure| Case { workload, parameters: parameters(n, latency, measure) };
    let micro = workload("micro", None, vec![phase("insert", INSERT), phase("search", SEARCH), phase("update", UPDATE), phase("delete", DELETE)]);
    let insert = || workload("insert", None, vec![phase("insert", INSERT)]);
    let mixes = [90, 70, 50, 30, 10].map(|share| {
        let mix = crate::plan::Mix { insert: f64::from(share), search: f64::from(100 - share), ..NONE };
        case(workload(&format!("{share} % inserts"), Some(RANDOM), vec![Phase { distribution: Distribution::Uniform, ..phase("run", mix) }]), 0, Measure::Time)
    });
    let rebuilt = [n / 10, n, 4 * n].map(|keys| Case { workload: insert(), parameters: parameters(keys, 0, Measure::Time) });
    let opened = case(workload("reopen", Some(RANDOM), Vec::new()), 0, Measure::Recovery);
    // NV-Store is an index behind a store. It is compared with a server whose log is also in memory.
    let served = ["status-update", "session-store"].map(|name| {
        let workload = crate::workload::find(name).expect("a workload of its study");
        [1, 2].map(|threads| {
            let key = KeyKind::Bytes(24);
            let memory = Memory::Directory(memory_directory());
            Case { workload: workload.clone(), parameters: Parameters { key, value_bytes: 100, threads, memory, ..parameters(n / 40, 0, Measure::Time) } }
        })
    });
    let media = [0, 50, 180].map(|latency| case(insert(), latency, Measure::Time));
    let domains = [Domain::Adr, Domain::PageCache].map(|domain| {
        let Case { workload, parameters } = case(insert(), 0, Measure::Time);
        Case { workload, parameters: Parameters { domain: domain.name().into(), ..parameters } }
    });
    let largest = ["nv-4k", "lcb-4k", "cdds-4k"];
    let read = Case { workload: insert(), parameters: parameters((n / 50).max(READ_KEYS_MIN), 0, Measure::Instructions) };
    vec![
        experiment(
            "nv-nodes",
            "NV-Tree, LCB+-Tree and CDDS by size of their nodes",
            NV_STUDY,
            vec![case(micro, 0, Measure::Time)],
            Some((Shape::Bars, "phase", metric::MEAN)),
        ),
        experiment(
            "nv-counts",
            "What inserts of NV-Tree, LCB+-Tree and CDDS flush, by size of their nodes",
            NV_STUDY,
            vec![case(insert(), 0, Measure::Counts)],
            [(Shape::Bars, "system", metric::LINES_FLUSHED), (Shape::Bars, "system", metric::SPLITS)],
        ),
        experiment(
            "nv-reads",
            "What inserts of NV-Tree, LCB+-Tree and CDDS read, by size of their nodes",
            NV_STUDY,
            vec![read],
            [(Shape::Bars, "system", metric::DATA_READS), (Shape::Bars, "system", metric::LAST_LEVEL_MISSES)],
        ),
        experiment(
            "nv-rebuild",
            "Building inner nodes anew, by number of keys and size of the leaves",
            &NV_SIZES,
            rebuilt.into(),
            [(Shape::Lines, "keys", metric::REBUILD_SHARE), (Shape::Lines, "keys", metric::REBUILD_PER_LEAF)],
        ),
        experiment(
            "nv-mixes",
            "Inserts among lookups",
            &["nv", "nv-4k", "lcb", "lcb-4k", "cdds", "cdds-4k"],
            mixes.into(),
            Some((Shape::Bars, "workload", metric::MEAN)),
        ),
        experiment(
            "nv-reopen",
            "Opening NV-Tree after a crash, by size of its leaves",
            &NV_SIZES,
            vec![opened],
            [(Shape::Bars, "system", metric::RECOVERY), (Shape::Bars, "system", metric::REBUILD_FROM_LEAVES)],
        ),
        experiment(
            "nv-server",
            "Clients of a server: NV-Store's study",
            &["server:nv", "redis-everysec", "redis-always"],
            served.into_iter().flatten().collect(),
            Some((Shape::Bars, "system", metric::THROUGHPUT)),
        ),
        experiment("nv-media", "Inserts on slower media", &largest, media.into(), Some((Shape::Lines, "write_latency_ns", metric::MEAN))),
        experiment("nv-volatile", "Inserts with flushes and without", &largest, domains.into(), Some((Shape::Bars, "domain", metric::MEAN))),
    ]
}
