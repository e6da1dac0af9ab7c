//! Rules of their own: claims that are more than one metric of some systems.

use super::evidence::{Evidence, Figure, Finding, Judgement, Measured, Part, Wanted};
use super::experiments::{ENGINE, PAPERS_SIZE, STRETCHES};
use super::{COUNT_TOLERANCE, Ranges, TIME_TOLERANCE};
use crate::raw::{FLUSHED_LINE, STORE};
use crate::result::{Measurement, metric};
use everleaf_index::registry;
use everleaf_pmem::{Domain, Hardware};

/// NV-Tree's sizes of leaves.
pub(super) const NV_SIZES: [&str; 4] = ["nv", "nv-1k", "nv-2k", "nv-4k"];
/// LCB+-Tree's, with which its paper compares it.
const LCB_SIZES: [&str; 4] = ["lcb", "lcb-1k", "lcb-2k", "lcb-4k"];
/// CDDS's, likewise.
const CDDS_SIZES: [&str; 4] = ["cdds", "cdds-1k", "cdds-2k", "cdds-4k"];
/// All of them.
pub(super) const NV_STUDY: &[&str] = [NV_SIZES, LCB_SIZES, CDDS_SIZES].as_flattened();
/// LB+-Tree's sizes of leaves.
const LB_SIZES: [&str; 4] = ["lb", "lb-512", "lb-768", "lb-1k"];
/// Its rivals, each with the LB+-Tree whose leaves are as large.
const LB_RIVALS: [(&str, &str); 5] = [("wb-256", "lb"), ("wb", "lb-512"), ("wb-1k", "lb-1k"), ("fp-256", "lb"), ("fp-1k", "lb-1k")];
/// Those of LB+-Tree's study, and the ways in which leaves are filled.
const LB_STUDY: [&str; 3] = ["lb", "wb-256", "fp-256"];
const LB_FILLS: [&str; 3] = ["70 %", "100 %", "dense"];
/// Isle-Tree's study: what all of its comparisons are about.
const ISLE_RIVALS: [&str; 5] = ["nv", "fp-published", "wb", "fast-fair", "circ"];
/// How much faster two threads must be than one to be called nearly linear.
const NEARLY_LINEAR: f64 = 1.7;
/// Inserts into nodes of 4 KiB of which the paper says how much faster NV-Tree is, in Fig. 6.
const PAPERS_INSERTS: [u64; 3] = [1_000_000, 10_000_000, 100_000_000];
/// Inserts of which the paper says how often they build inner nodes anew.
const PAPERS_REBUILDS: u64 = 100_000_000;
/// What NV-Store is compared with: Redis with a log that is synchronised every second, which the paper calls volatile, and with one that is synchronised at
/// each write. Both are systems of the peers' program alone.
const REDIS: [&str; 2] = ["redis-everysec", "redis-always"];
/// Alike, as times are.
pub(super) const ALIKE: Wanted = Wanted::between(1.0 - TIME_TOLERANCE, 1.0 + TIME_TOLERANCE);

fn latency(nanoseconds: u64) -> impl Fn(&Measurement) -> bool {
    move |found| found.parameters.write_latency_ns == nanoseconds
}

fn keys(count: u64) -> impl Fn(&Measurement) -> bool {
    move |found| found.parameters.keys == count
}

fn of_domain(domain: Domain) -> impl Fn(&Measurement) -> bool {
    move |found| found.parameters.domain == domain.name()
}

fn threads(count: u16) -> impl Fn(&Measurement) -> bool {
    move |found| found.parameters.threads == count
}

/// Those of Isle-Tree's rivals that were to be measured.
fn isle_rivals<'a>(evidence: &Evidence<'a>, experiment: &str) -> impl Iterator<Item = &'static str> {
    ISLE_RIVALS.into_iter().filter(move |rival| evidence.is_planned(experiment, rival))
}

/// How many times as long as into Isle-Tree inserts of so many keys take.
fn inserts(evidence: &Evidence<'_>, rival: &str, keys: u64) -> Option<Figure> {
    let time = |system| evidence.rounds_of(["isle-insert", "", "insert", metric::MEAN], system, self::keys(keys));
    time(rival)?.by(&time("isle")?)
}

pub(super) fn slower_inserts(evidence: &Evidence<'_>) -> Option<Judgement> {
    let keys = *evidence.sizes("isle-insert")?.get(PAPERS_SIZE)?;
    let part = |(rival, paper)| Some(Part::ratio(rival, "isle", inserts(evidence, rival, keys)?, Wanted::ratio(paper, paper, TIME_TOLERANCE)));
    // Older files do not have all of them.
    let papers = ISLE_RIVALS.into_iter().zip([1.116, 1.41, 2.243, 1.55, 1.491]).filter(|(rival, _)| evidence.is_planned("isle-insert", rival));
    Some(Judgement::of(&papers.map(part).collect::<Option<Vec<_>>>()?))
}

pub(super) fn fastest_at_every_size(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for keys in evidence.sizes("isle-insert")? {
        for rival in isle_rivals(evidence, "isle-insert") {
            parts.push(Part::ratio(format!("{keys} keys: {rival}"), "isle", inserts(evidence, rival, keys)?, Wanted::ABOVE));
        }
    }
    Some(Judgement::of(&parts))
}

pub(super) fn split_share(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["isle-splits", "", "insert", metric::SPLIT_SHARE];
    let mut parts = Vec::new();
    for system in ["isle"].into_iter().chain(isle_rivals(evidence, "isle-splits")) {
        let share = evidence.rounds(what, system)?.figure()?.in_units_of(0.01);
        let ours = format!("{system} {}", share.show(0, " %"));
        // More for NV-Tree, without a number.
        parts.push(Part::new(system, ours, share.judge(if system == "nv" { Wanted::between(20.0, 100.0) } else { Wanted::between(15.0, 25.0) })));
    }
    parts.push(Part::ratio("nv's share", "isle's", evidence.ratio(what, "nv", "isle")?, Wanted::ABOVE));
    Some(Judgement::of(&parts))
}

pub(super) fn inserts_for_a_split(evidence: &Evidence<'_>) -> Option<Judgement> {
    let splits = evidence.median(["isle-counts", "", "insert", metric::SPLITS], "isle")?;
    let capacity = registry::<u64, Hardware>().iter().find(|entry| entry.name == "isle")?.leaf_capacity;
    let inserts = 1.0 / splits;
    let is_near = (inserts / 32.0 - 1.0).abs() < COUNT_TOLERANCE;
    Some(Judgement::new(is_near && capacity == 32, format!("{capacity} pairs, a division in {inserts:.1} inserts")))
}

pub(super) fn larger_nodes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let ratio = |phase, system, base| evidence.ratio(["isle-nodes", "", phase, metric::MEAN], system, base);
    let degraded = Wanted::between(1.0 + TIME_TOLERANCE, f64::INFINITY);
    let mut parts = vec![
        Part::ratio("inserts: isle-2k", "isle", ratio("insert", "isle-2k", "isle")?, ALIKE),
        Part::ratio("nv-2k", "nv", ratio("insert", "nv-2k", "nv")?, ALIKE),
        Part::ratio("wb-1k", "wb", ratio("insert", "wb-1k", "wb")?, degraded),
        Part::ratio("searches: isle", "nv", ratio("search", "isle", "nv")?, Wanted::BELOW),
        Part::ratio("isle-1k", "nv-1k", ratio("search", "isle-1k", "nv-1k")?, Wanted::BELOW),
        Part::ratio("isle-2k", "nv-2k", ratio("search", "isle-2k", "nv-2k")?, Wanted::BELOW),
    ];
    // Older files do not have these.
    for (large, small) in [("circ-2k", "circ"), ("fast-fair-2k", "fast-fair")].into_iter().filter(|(large, _)| evidence.is_planned("isle-nodes", large)) {
        parts.insert(3, Part::ratio(large, small, ratio("insert", large, small)?, degraded));
        parts.push(Part::ratio(format!("searches of {large}"), "isle-2k", ratio("search", large, "isle-2k")?, ALIKE));
    }
    let judged = Judgement::of(&parts);
    // Older files do not have it.
    let plain = ratio("search", "isle-plain", "nv").map(|figure| format!("; without shortcuts isle-plain {}", figure.show(2, " x nv")));
    Some(Judgement { ours: judged.ours + &plain.unwrap_or_default(), ..judged })
}

pub(super) fn gap_over_latency(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |system, added| evidence.rounds_of(["isle-latency", "", "insert", metric::MEAN], system, latency(added));
    let gap = |added| time("fast-fair", added)?.by(&time("isle", added)?);
    Some(Judgement::of(&[
        Part::ratio("0 ns: fast-fair", "isle", gap(0)?, Wanted::ratio(1.2, 1.2, TIME_TOLERANCE)),
        Part::ratio("600 ns: fast-fair", "isle", gap(600)?, Wanted::ratio(1.708, 1.708, TIME_TOLERANCE)),
    ]))
}

pub(super) fn tail_latency(evidence: &Evidence<'_>) -> Option<Judgement> {
    let tail = |system| evidence.rounds_of(["isle-clients", "", "insert", metric::P99], system, threads(4));
    let mut parts = Vec::new();
    let rivals = [("server:nv", 0.331), ("server:fp", 0.277), ("server:fast-fair", 0.362), ("server:circ", 0.224)];
    for (rival, below) in rivals.into_iter().filter(|(rival, _)| evidence.is_planned("isle-clients", rival)) {
        let ratio = tail("server:isle")?.by(&tail(rival)?)?;
        let ours = format!("isle {}", ratio.show(2, &format!(" x {rival}")));
        parts.push(Part::new(rival, ours, ratio.judge(Wanted::ratio(1.0 - below, 1.0 - below, TIME_TOLERANCE))));
    }
    Some(Judgement::of(&parts))
}

pub(super) fn mixed_latency(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    let rivals = ["server:nv", "server:fp", "server:fast-fair", "server:circ"].into_iter().filter(|rival| evidence.is_planned("isle-clients", rival));
    for (what, metric) in [("search", metric::SEARCH_P99), ("update", metric::UPDATE_P99)] {
        let tail = |system, count| evidence.rounds_of(["isle-clients", "", "mixed", metric], system, threads(count));
        for rival in rivals.clone() {
            parts.push(Part::ratio(format!("{what}, 4 clients: {rival}"), "isle", tail(rival, 4)?.by(&tail("server:isle", 4)?)?, ALIKE));
        }
        for system in ["server:isle"].into_iter().chain(rivals.clone()) {
            parts.push(Part::ratio(format!("{what}: {system} with 8"), "with 1", tail(system, 8)?.by(&tail(system, 1)?)?, Wanted::ABOVE));
        }
    }
    Some(Judgement::of(&parts))
}

/// A ratio of systems with nodes of 4 KiB that have sentinels to the same ones without.
pub(super) fn led_by_sentinels(evidence: &Evidence<'_>, experiment: &str, phase: &str, metric: &str, [fast_fair, circ]: [(f64, f64); 2]) -> Option<Judgement> {
    let pairs = [("fast-fair-s-4k", "fast-fair-4k", fast_fair), ("circ-s-4k", "circ-4k", circ)];
    let part = |(with, without, (low, high))| {
        Some(Part::ratio(with, without, evidence.ratio([experiment, "", phase, metric], with, without)?, Wanted::ratio(low, high, TIME_TOLERANCE)))
    };
    // Older files do not have the last.
    let planned = pairs.into_iter().filter(|(with, ..)| evidence.is_planned(experiment, with));
    Some(Judgement::of(&planned.map(part).collect::<Option<Vec<_>>>()?))
}

/// How many times as long as PFtree's operations those of others take: alone by their phase, among others by their workload.
pub(super) fn radix_gains(evidence: &Evidence<'_>, rivals: &[(&str, Wanted)], alone: &[&'static str], mixed: &[&'static str]) -> Option<Judgement> {
    Some(Judgement::of(&radix_ratios(evidence, rivals, alone, mixed)?.0))
}

/// What is judged of each of these ratios, and they themselves.
fn radix_ratios(evidence: &Evidence<'_>, rivals: &[(&str, Wanted)], alone: &[&'static str], mixed: &[&'static str]) -> Option<(Vec<Part>, Vec<Measured>)> {
    let alone = alone.iter().map(|phase| (*phase, ["pftree-micro", "micro", *phase, metric::MEAN]));
    let mixed = mixed.iter().map(|workload| (*workload, ["pftree-mixes", *workload, "run", metric::MEAN]));
    let all: Vec<_> = alone.chain(mixed).collect();
    // Older files have the first rival alone.
    let rivals = rivals.iter().filter(|(rival, _)| *rival == FIRST_RIVAL || evidence.is_planned("pftree-micro", rival));
    let of = |(rival, wanted): &(&str, Wanted), (name, what)| {
        let ratio = evidence.rounds(what, rival)?.ratio(&evidence.rounds(what, "pf")?);
        Some((Part::ratio(format!("{name}: {rival}"), "pf", ratio.figure()?, *wanted), ratio))
    };
    rivals.flat_map(|rival| all.iter().map(|compared| of(rival, *compared))).collect()
}

/// Each of the others takes longer, and the slowest twice as long.
pub(super) fn up_to_twice(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (mut parts, ratios) = radix_ratios(evidence, &rivals(Wanted::ABOVE, Wanted::ABOVE), &["insert"], &["50 % inserts"])?;
    parts.push(Part::ratio("at most", "pf", Measured::extreme(ratios, f64::max)?, Wanted::ratio(2.0, 2.0, TIME_TOLERANCE)));
    Some(Judgement::of(&parts))
}

const FIRST_RIVAL: &str = "fast-fair";

/// What is asked for of B+-trees, and of other radix trees.
pub(super) fn rivals(trees: Wanted, radix: Wanted) -> [(&'static str, Wanted); 4] {
    [(FIRST_RIVAL, trees), ("bztree", trees), ("roart", radix), ("p-art", radix)]
}

/// What the abstract says of B+-trees.
pub(super) fn of_trees() -> Wanted {
    Wanted::ratio(1.1, 7.0, TIME_TOLERANCE)
}

pub(super) fn faster_than_others(evidence: &Evidence<'_>) -> Option<Judgement> {
    radix_gains(evidence, &rivals(of_trees(), Wanted::ABOVE), &["insert", "search", "scan", "update", "delete"], &["50 % inserts", "5 % inserts"])
}

pub(super) fn searches_alone(evidence: &Evidence<'_>) -> Option<Judgement> {
    let times = |rival: f64| Wanted::ratio(2.708 / rival, 2.708 / rival, TIME_TOLERANCE);
    radix_gains(evidence, &[(FIRST_RIVAL, of_trees()), ("bztree", of_trees()), ("roart", times(2.118)), ("p-art", times(1.832))], &["search"], &[])
}

pub(super) fn all_steps_from_roart(evidence: &Evidence<'_>) -> Option<Judgement> {
    let part = |(phase, least)| {
        let ratio = evidence.ratio(["pftree-micro", "micro", phase, metric::MEAN], "roart", "pf")?;
        Some(Part::ratio(phase, "pf", ratio, Wanted::between(least, f64::INFINITY)))
    };
    let least = [("search", 1.15), ("delete", 1.11), ("insert", 1.0), ("update", 1.0), ("scan", 1.0)];
    Some(Judgement::of(&least.into_iter().map(part).collect::<Option<Vec<_>>>()?))
}

pub(super) fn lookups_among_inserts(evidence: &Evidence<'_>) -> Option<Judgement> {
    let wanted = Wanted::ratio(1.2, 7.0, TIME_TOLERANCE);
    radix_gains(evidence, &rivals(wanted, wanted), &["search"], &["5 % inserts"])
}

pub(super) fn flushed_store(evidence: &Evidence<'_>) -> Option<Judgement> {
    let cost = |name| evidence.0.header.machine.raw_ns.get(name);
    let (flushed, store) = (cost(FLUSHED_LINE)?, cost(STORE)?);
    Some(
        Judgement::new(true, format!("a store with write-back and fence costs {:.1} times one without: {flushed:.0} and {store:.0} ns", flushed / store))
            .cannot_compare(),
    )
}

pub(super) fn moved_entries(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["lb-counts", "", "insert", "common lines flushed"];
    let mut parts = evidence.values(what, &LB_SIZES.map(|system| (system, 1.31, 1.31)), COUNT_TOLERANCE)?;
    let [with, without] = [true, false].map(lines_until_full);
    let is_near = |lines: f64, paper: f64| if (lines / paper - 1.0).abs() < COUNT_TOLERANCE { Finding::Holds } else { Finding::Fails };
    // 1.35 is exact.
    let reduces = if without / with > 1.35 - 1e-9 { Finding::Holds } else { Finding::Fails };
    parts.push(Part::new("slots alone", format!("slots alone {with:.2} with moving"), is_near(with, 1.31)));
    parts.push(Part::new("without", format!("without {without:.2}"), is_near(without, 1.77)));
    parts.push(Part::new("by", format!("{:.2} times as many", without / with), reduces));
    let judged = Judgement::of(&parts);
    let [wb, fp] = ["wb-256", "fp-256"].map(|system| evidence.median(what, system));
    let ours = format!("{}; beside them wb-256 {:.3}, fp-256 {:.3}", judged.ours, wb?, fp?);
    Some(Judgement { ours, ..judged })
}

/// Lines that an insert writes on average until a leaf of LB+-Tree is full, whose 14 slots are 3 beside the header, 4, 4 and 3 in the other lines: in the mean
/// of the paper's four leaves, after a division, with entries moved or not. A slot beside the header is written with it, any other takes a second line; then,
/// if entries are moved, as many of those beside the header go to that line as it has room for.
fn lines_until_full(is_moving: bool) -> f64 {
    /// Slots of each line that are free: the new leaf is packed from the end if entries are moved, else from the beginning; the old one has its free slots
    /// where they are worst, or best.
    const MOVING: [[u32; 4]; 4] = [[3, 4, 0, 0], [3, 3, 0, 0], [0, 3, 2, 2], [0, 2, 2, 2]];
    const STAYING: [[u32; 4]; 4] = [[0, 0, 4, 3], [0, 0, 3, 3], [3, 4, 0, 0], [3, 3, 0, 0]];
    let mean = |mut free: [u32; 4]| {
        let (mut lines, inserts) = (0, free.iter().sum::<u32>());
        for _ in 0..inserts {
            let line = free.iter().position(|free| *free > 0).unwrap_or(0);
            free[line] -= 1;
            lines += if line == 0 { 1 } else { 2 };
            if line > 0 && is_moving {
                let moved = free[line].min(3);
                free[line] -= moved;
                free[0] += moved;
            }
        }
        f64::from(lines) / f64::from(inserts)
    };
    let leaves = if is_moving { MOVING } else { STAYING };
    leaves.map(mean).iter().sum::<f64>() / 4.0
}

/// One header for leaves of several blocks of 256 B: a bit and a byte for each entry of 16 B, a lock bit and one that says which sibling holds; two siblings of
/// 8 B are at the end of the leaf.
pub(super) fn naive_header() -> Judgement {
    let (mut headers, mut left) = (Vec::new(), Vec::new());
    for blocks in [2.0, 3.0, 4.0_f64] {
        let entries = ((256.0 * blocks - 16.25) / 17.125).floor();
        let header = (0.25 + 1.125 * entries).ceil();
        headers.push(header);
        left.push(((64.0 - header) / 16.0).floor().max(0.0));
    }
    let agree = headers == [32.0, 49.0, 66.0] && left == [2.0, 0.0, 0.0];
    let list = |numbers: &[f64]| numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    Judgement::new(agree, format!("{} B; {} slots", list(&headers), list(&left)))
}

pub(super) fn metadata_share() -> Judgement {
    let capacity = registry::<u64, Hardware>().iter().find(|entry| entry.name == "lb").map_or(0, |entry| entry.leaf_capacity);
    let share = 1.0 - capacity as f64 * 16.0 / 256.0;
    let others = [2.0, 3.0, 4.0_f64].map(|blocks| 100.0 * (blocks - 1.0) * 16.0 / (256.0 * blocks));
    let [two, three, four] = others.map(|share| format!("{share:.1}"));
    Judgement::new((share - 0.125).abs() < 1e-9 && others.iter().all(|share| *share < 6.25), format!("{:.2} %; {two}, {three}, {four} %", share * 100.0))
}

/// Inserts into a loaded tree by so many threads, of each stretch: how much longer others take than LB+-Tree.
pub(super) fn added(evidence: &Evidence<'_>, workload: &str, stretches: &[&str], count: u16, of: Ranges<'_>) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    for phase in stretches {
        let time = |system| evidence.rounds_of(["lb-insert", workload, phase, metric::MEAN], system, threads(count));
        for (rival, low, high) in of {
            parts.push(Part::ratio(format!("{phase}: {rival}"), "lb", time(rival)?.by(&time("lb")?)?, Wanted::ratio(*low, *high, TIME_TOLERANCE)));
        }
    }
    Some(parts)
}

pub(super) fn random_inserts(evidence: &Evidence<'_>) -> Option<Judgement> {
    Some(Judgement::of(&added(evidence, "70 %", &STRETCHES, 1, &[("wb-256", 1.2, 1.24), ("fp-256", 1.12, 1.21)])?))
}

pub(super) fn overall_range(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for (system, low, high) in [("wb-256", 1.20, 2.92), ("fp-256", 1.12, 2.45)] {
        for (bound, pick, paper) in [("least", f64::min as fn(f64, f64) -> f64, low), ("most", f64::max, high)] {
            let time = |(workload, phase), system| evidence.rounds(["lb-insert", workload, phase, metric::MEAN], system);
            let points = LB_FILLS.into_iter().flat_map(|workload| STRETCHES.map(|phase| (workload, phase)));
            let ratios = points.map(|point| Some(time(point, system)?.ratio(&time(point, "lb")?))).collect::<Option<Vec<_>>>()?;
            let figure = Measured::extreme(ratios, pick)?;
            parts.push(Part::ratio(format!("at {bound} {system}"), "lb", figure, Wanted::ratio(paper, paper, TIME_TOLERANCE)));
        }
    }
    Some(Judgement::of(&parts))
}

pub(super) fn two_threads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = added(evidence, "70 %", &STRETCHES[..1], 2, &[("wb-256", 1.17, 1.3), ("fp-256", 1.22, 1.38)])?;
    for system in LB_STUDY {
        let rate = |count| evidence.rounds_of(["lb-insert", "70 %", "insert", metric::THROUGHPUT], system, threads(count));
        let doubled = rate(2)?.by(&rate(1)?)?;
        parts.push(Part::ratio(format!("{system} with two threads"), "one", doubled, Wanted::between(NEARLY_LINEAR, f64::INFINITY)));
    }
    Some(Judgement::of(&parts))
}

pub(super) fn leaf_sizes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for (workload, best) in [("70 %", "lb-512"), ("100 %", "lb"), ("dense", "lb")] {
        let time = |system| evidence.rounds(["lb-nodes", workload, "insert", metric::MEAN], system);
        for size in LB_SIZES.into_iter().filter(|size| *size != best) {
            parts.push(Part::ratio(format!("{workload}: {size}"), best, time(size)?.by(&time(best)?)?, Wanted::ABOVE));
        }
        let rivals = LB_RIVALS.into_iter().map(|(rival, own)| Some(time(rival)?.ratio(&time(own)?))).collect::<Option<Vec<_>>>()?;
        parts.push(Part::ratio(format!("{workload}: nearest rival"), "LB+-Tree", Measured::extreme(rivals, f64::min)?, Wanted::ABOVE));
    }
    Some(Judgement::of(&parts))
}

pub(super) fn similar_reads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for phase in ["search", "search 2", "search 3", "delete"] {
        for system in ["wb-256", "fp-256"] {
            let ratio = evidence.ratio(["lb-reads", "", phase, metric::MEAN], system, "lb")?;
            parts.push(Part::ratio(format!("{phase}: {system}"), "lb", ratio, ALIKE));
        }
    }
    Some(Judgement::of(&parts))
}

pub(super) fn leaf_alone(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["lb-leaf", "", "search", metric::MEAN];
    let times = LB_STUDY.into_iter().map(|system| Some(format!("{system} {:.1}", evidence.median(what, system)?))).collect::<Option<Vec<_>>>()?;
    let judged = Judgement::of(&[
        Part::ratio("wb-256", "lb", evidence.ratio(what, "wb-256", "lb")?, Wanted::ratio(27.0 / 21.0, 27.0 / 21.0, TIME_TOLERANCE)),
        Part::ratio("fp-256", "lb", evidence.ratio(what, "fp-256", "lb")?, ALIKE),
    ]);
    Some(Judgement { ours: format!("{} ns: {}", times.join(", "), judged.ours), ..judged })
}

pub(super) fn rebuild_by_size(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["lb-rebuild", "", "reopen", metric::RECOVERY];
    let times = LB_SIZES.into_iter().map(|system| Some(format!("{:.1}", evidence.median(what, system)? * 1e3))).collect::<Option<Vec<_>>>()?;
    let part = |pair: &[&str]| Some(Part::ratio(pair[1], pair[0], evidence.ratio(what, pair[1], pair[0])?, Wanted::BELOW));
    let judged = Judgement::of(&LB_SIZES.windows(2).map(part).collect::<Option<Vec<_>>>()?);
    Some(Judgement { ours: format!("{} ms; {}", times.join(", "), judged.ours), ..judged })
}

pub(super) fn rebuild_by_threads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |count| evidence.rounds_of(["lb-rebuild", "", "reopen", metric::RECOVERY], "lb", threads(count));
    let ratio = time(2)?.by(&time(1)?)?;
    let ours = format!("{:.1} ms with one thread; with two {}", time(1)?.figure()?.median * 1e3, ratio.show(2, " of that"));
    Some(Judgement::new(true, ours).cannot_compare())
}

/// How many times as long the store takes on a skip list.
pub(super) fn in_an_engine(evidence: &Evidence<'_>, count: u16, ranges: [(f64, f64); 3]) -> Option<Judgement> {
    let part = |((workload, phase), (low, high))| {
        let time = |system| evidence.rounds_of(["lb-engine", workload, phase, metric::MEAN], system, threads(count));
        Some(Part::ratio(format!("{workload}: store:skip"), "store:lb", time("store:skip")?.by(&time("store:lb")?)?, Wanted::ratio(low, high, TIME_TOLERANCE)))
    };
    Some(Judgement::of(&ENGINE.into_iter().zip(ranges).map(part).collect::<Option<Vec<_>>>()?))
}

pub(super) fn served(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for phase in ["insert", "search"] {
        for (system, low, high) in [("server:wb-256", 1.05, 1.29), ("server:fp-256", 1.06, 1.22)] {
            let ratio = evidence.ratio(["lb-server", "", phase, metric::MEAN], system, "server:lb")?;
            parts.push(Part::ratio(format!("{phase}: {system}"), "lb", ratio, Wanted::ratio(low, high, TIME_TOLERANCE)));
        }
    }
    Some(Judgement::of(&parts))
}

/// A metric of one of NV-Tree's rivals beside NV-Tree with nodes as large, for each size. Nothing where that was not to be measured, as in older files.
fn beside_nv(evidence: &Evidence<'_>, rivals: [&str; 4], what: [&str; 4], wanted: Wanted) -> Option<Vec<Part>> {
    let pairs = rivals.into_iter().zip(NV_SIZES).filter(|(rival, _)| evidence.is_planned(what[0], rival));
    pairs.map(|(rival, nv)| Some(Part::ratio(format!("{}: {rival}", what[2]), nv, evidence.ratio(what, rival, nv)?, wanted))).collect()
}

/// The same for both of them.
pub(super) fn beside_both(evidence: &Evidence<'_>, what: [&str; 4], lcb: Wanted, cdds: Wanted) -> Option<Judgement> {
    let mut parts = beside_nv(evidence, LCB_SIZES, what, lcb)?;
    parts.extend(beside_nv(evidence, CDDS_SIZES, what, cdds)?);
    Some(Judgement::of(&parts))
}

/// Times of rivals with the largest nodes beside NV-Tree's, of which the paper gives a number.
pub(super) fn largest_nodes(evidence: &Evidence<'_>, phase: &'static str, papers: Ranges<'_>) -> Option<Vec<Part>> {
    let planned = papers.iter().filter(|(rival, ..)| evidence.is_planned("nv-nodes", rival));
    let part = |&(rival, low, high): &(&str, f64, f64)| {
        let figure = evidence.ratio(["nv-nodes", "", phase, metric::MEAN], rival, "nv-4k")?;
        Some(Part::ratio(format!("{phase}: {rival}"), "nv-4k", figure, Wanted::ratio(low, high, TIME_TOLERANCE)))
    };
    planned.map(part).collect()
}

/// Inserts into the largest nodes beside those into the same without a flush.
pub(super) fn without_flushes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |system, domain: Domain| evidence.rounds_of(["nv-volatile", "", "insert", metric::MEAN], system, of_domain(domain));
    let part = |(system, paper)| {
        let figure = time(system, Domain::Adr)?.by(&time(system, Domain::PageCache)?)?;
        Some(Part::ratio(system, "without flushes", figure, Wanted::ratio(paper, paper, TIME_TOLERANCE)))
    };
    Some(Judgement::of(&[("lcb-4k", 16.0), ("cdds-4k", 20.0)].map(part).into_iter().collect::<Option<Vec<_>>>()?))
}

pub(super) fn fewer_flushes_and_slower(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for (cdds, lcb) in CDDS_SIZES.into_iter().zip(LCB_SIZES) {
        let ratio = |experiment, metric| evidence.ratio([experiment, "", "insert", metric], cdds, lcb);
        parts.push(Part::ratio(cdds, lcb, ratio("nv-nodes", metric::MEAN)?, Wanted::ratio(1.11, 1.32, TIME_TOLERANCE)));
        parts.push(Part::ratio(format!("lines flushed: {cdds}"), lcb, ratio("nv-counts", metric::LINES_FLUSHED)?, Wanted::BELOW));
    }
    Some(Judgement::of(&parts))
}

pub(super) fn fewer_flushes(evidence: &Evidence<'_>) -> Option<Judgement> {
    // 80 and 97 %, 76 and 96 %, which are rounded.
    let (lcb, cdds) = (Wanted::between(1.0 / 0.205, 1.0 / 0.025), Wanted::between(1.0 / 0.245, 1.0 / 0.035));
    beside_both(evidence, ["nv-counts", "", "insert", metric::LINES_FLUSHED], lcb, cdds)
}

/// Inserts of a rival by what the paper has for as many keys; for other numbers of keys it has nothing.
fn by_number_of_keys(evidence: &Evidence<'_>, rival: &str, papers: [f64; 3]) -> Option<Judgement> {
    let count = *evidence.sizes("nv-nodes")?.first()?;
    let paper = PAPERS_INSERTS.into_iter().zip(papers).find(|(keys, _)| *keys == count).map(|(_, paper)| paper);
    let judge = |paper| Some(Judgement::of(&largest_nodes(evidence, "insert", &[(rival, paper, paper)])?));
    match paper {
        Some(paper) => judge(paper),
        None => Some(Judgement { why: format!("The paper has no figure for {count} keys."), ..judge(papers[0])?.cannot_compare() }),
    }
}

pub(super) fn faster_inserts(evidence: &Evidence<'_>) -> Option<Judgement> {
    by_number_of_keys(evidence, "lcb-4k", [15.2, 6.3, 5.3])
}

pub(super) fn faster_inserts_than_cdds(evidence: &Evidence<'_>) -> Option<Judgement> {
    by_number_of_keys(evidence, "cdds-4k", [8.0, 9.7, 8.2])
}

pub(super) fn faster_inserts_without_misses(evidence: &Evidence<'_>) -> Option<Judgement> {
    let judged = Judgement::of(&largest_nodes(evidence, "insert", &[("lcb-4k", 7.0, 7.0), ("cdds-4k", 9.0, 9.0)])?);
    // What else writes lines back takes them from the caches.
    Some(if evidence.0.header.machine.flush_instruction == "clwb" { judged } else { judged.cannot_compare() })
}

pub(super) fn mixes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let part = |(rival, share, wanted): (&str, &'static str, Wanted)| {
        let figure = evidence.ratio(["nv-mixes", share, "run", metric::MEAN], rival, "nv-4k")?;
        Some(Part::ratio(format!("{share}: {rival}"), "nv-4k", figure, wanted))
    };
    let of = [("lcb-4k", 6.6), ("cdds-4k", 10.0)].into_iter().filter(|(rival, _)| evidence.is_planned("nv-mixes", rival));
    let shares = of.flat_map(|(rival, paper)| [(rival, "90 % inserts", Wanted::ratio(paper, paper, TIME_TOLERANCE)), (rival, "10 % inserts", Wanted::ABOVE)]);
    Some(Judgement::of(&shares.map(part).collect::<Option<Vec<_>>>()?))
}

pub(super) fn fewer_misses(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (lcb, cdds) = (Wanted::between(1.0 / 0.76, 1.0 / 0.17), Wanted::between(1.0 / 0.61, 1.0 / 0.1));
    beside_both(evidence, ["nv-reads", "", "insert", metric::LAST_LEVEL_MISSES], lcb, cdds).map(Judgement::cannot_compare)
}

/// Times of NV-Tree by size of its leaves, and whether the largest are the fastest.
fn by_size(evidence: &Evidence<'_>, phases: &[&str], beside: Vec<Part>) -> Option<Judgement> {
    let (mut parts, mut ours) = (beside, Vec::new());
    for phase in phases {
        let what = ["nv-nodes", "", phase, metric::MEAN];
        let times = NV_SIZES.into_iter().map(|system| Some(format!("{:.0}", evidence.median(what, system)?))).collect::<Option<Vec<_>>>()?;
        let part = Part::ratio(format!("{phase}: nv-4k"), "nv", evidence.ratio(what, "nv-4k", "nv")?, Wanted::BELOW);
        ours.push(format!("{phase}: {} ns at 0.5, 1, 2, 4 KiB", times.join(", ")));
        parts.push(part);
    }
    let judged = Judgement::of(&parts);
    Some(Judgement { ours: format!("{}; {}", ours.join("; "), judged.ours), ..judged })
}

pub(super) fn larger_inserts(evidence: &Evidence<'_>) -> Option<Judgement> {
    by_size(evidence, &["insert"], largest_nodes(evidence, "insert", &[("lcb-4k", 8.0, 15.2), ("cdds-4k", 8.0, 16.0)])?)
}

pub(super) fn larger_changes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let falls = |(phase, largest, smallest)| {
        let figure = evidence.ratio(["nv-nodes", "", phase, metric::MEAN], largest, smallest)?;
        Some(Part::ratio(format!("{phase}: {largest}"), smallest, figure, Wanted::ABOVE))
    };
    let of = [("update", "lcb-4k", "lcb"), ("delete", "lcb-4k", "lcb"), ("update", "cdds-4k", "cdds")];
    let beside = of.into_iter().filter(|(_, largest, _)| evidence.is_planned("nv-nodes", largest)).map(falls).collect::<Option<Vec<_>>>()?;
    by_size(evidence, &["update", "delete"], beside)
}

pub(super) fn flat_reads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["nv-reads", "", "insert", metric::DATA_READS];
    let reads = NV_SIZES.into_iter().map(|system| Some(format!("{:.0}", evidence.median(what, system)?))).collect::<Option<Vec<_>>>()?;
    let part = |system: &&str| Some(Part::ratio(*system, "nv", evidence.ratio(what, system, "nv")?, Wanted::near(1.0, 1.0, COUNT_TOLERANCE)));
    let mut parts = NV_SIZES[1..].iter().map(part).collect::<Option<Vec<_>>>()?;
    parts.extend(beside_nv(evidence, LCB_SIZES, what, Wanted::between(1.0 / 0.56, 1.0 / 0.1))?);
    parts.extend(beside_nv(evidence, CDDS_SIZES, what, Wanted::between(1.0 / 0.48, 1.0 / 0.08))?);
    let judged = Judgement::of(&parts);
    Some(Judgement { ours: format!("{} reads an insert at 0.5, 1, 2, 4 KiB; {}", reads.join(", "), judged.ours), ..judged })
}

pub(super) fn rebuild_share(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut parts = Vec::new();
    for count in evidence.sizes("nv-rebuild")? {
        for system in NV_SIZES {
            let share = evidence.rounds_of(["nv-rebuild", "", "insert", metric::REBUILD_SHARE], system, keys(count))?.figure()?.in_units_of(0.01);
            let name = format!("{count} keys: {system}");
            let ours = format!("{name} {}", share.show(2, " %"));
            parts.push(Part::new(name, ours, share.judge(Wanted::between(f64::NEG_INFINITY, 1.0))));
        }
    }
    Some(Judgement::of(&parts))
}

pub(super) fn rebuild_count(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["nv-counts", "", "insert", metric::REBUILDS];
    let all = NV_SIZES.into_iter().map(|system| evidence.median(what, system)).collect::<Option<Vec<f64>>>()?;
    let times: Vec<String> = all.iter().map(|times| format!("{times:.0}")).collect();
    let keys = evidence.0.measurements.iter().find(|found| found.experiment == "nv-counts")?.parameters.keys;
    let judged = Judgement::new(all == [7.0, 4.0, 3.0, 2.0], format!("{} times in {keys} inserts, at 0.5, 1, 2, 4 KiB", times.join(", ")));
    Some(if keys == PAPERS_REBUILDS { judged } else { judged.cannot_compare() })
}

pub(super) fn rebuild_bytes(evidence: &Evidence<'_>) -> Option<Judgement> {
    /// The first time that a node of 4 KiB for 256 leaves has no room, each leaf gets such a node.
    const PAPER: f64 = 257.0 * 4096.0;
    let count = |name| evidence.median(["nv-counts", "", "insert", name], "nv-4k");
    if count(metric::REBUILDS)? == 0.0 {
        return Some(too_few_keys());
    }
    let (first, last, leaves) = (count(metric::FIRST_REBUILD)?, count(metric::LAST_REBUILD)?, count(metric::LEAVES)?);
    let [first_kb, last_kb, paper_kb] = [first, last, PAPER].map(|bytes| bytes / 1e3);
    let ours = format!(
        "{first_kb:.1} kB the first time, {last_kb:.1} kB the last, of {leaves} leaves in the end; nodes as the paper has them: {paper_kb:.0} kB the first time"
    );
    Some(Judgement::new((first / PAPER - 1.0).abs() <= COUNT_TOLERANCE, ours))
}

fn too_few_keys() -> Judgement {
    Judgement::new(true, "inner nodes were not built anew: there were too few keys").cannot_compare()
}

pub(super) fn fewer_splits(evidence: &Evidence<'_>) -> Option<Judgement> {
    let splits = |system| evidence.median(["nv-counts", "", "insert", metric::SPLITS], system);
    let all = NV_SIZES.into_iter().map(splits).collect::<Option<Vec<f64>>>()?;
    let ours: Vec<String> = all.iter().map(|splits| format!("{:.1}", splits * 1e3)).collect();
    Some(Judgement::new(all.windows(2).all(|pair| pair[1] < pair[0]), format!("{} of 1,000 inserts at 0.5, 1, 2, 4 KiB", ours.join(", "))))
}

pub(super) fn rebuild_sources(evidence: &Evidence<'_>) -> Option<Judgement> {
    let of = |name, system| evidence.rounds(["nv-reopen", "", "reopen", name], system);
    let (mut parts, mut ours) = (Vec::new(), Vec::new());
    for system in NV_SIZES {
        let leaves = of(metric::REBUILD_FROM_LEAVES, system)?;
        // Of few keys, larger leaves are too few for that.
        let Some(parents) = of(metric::REBUILD_PER_LEAF, system) else { continue };
        ours.push(format!("{system} {:.0} and {:.0}", parents.figure()?.median, leaves.figure()?.median));
        parts.push(Part::ratio(system, "from leaves", parents.by(&leaves)?, Wanted::ratio(0.53, 0.78, TIME_TOLERANCE)));
    }
    if parts.is_empty() {
        return Some(too_few_keys());
    }
    let judged = Judgement::of(&parts);
    Some(Judgement { ours: format!("ns a leaf, from the lowest inner nodes and from leaves: {}; {}", ours.join(", "), judged.ours), ..judged })
}

pub(super) fn survived(evidence: &Evidence<'_>) -> Option<Judgement> {
    // Whatever was not found afterwards has ended the run.
    let crashes = evidence.0.measurements.iter().filter(|found| found.experiment == "nv-reopen" && found.metrics.contains_key(metric::RECOVERY)).count();
    (crashes > 0).then(|| Judgement::new(true, format!("{crashes} trees left as by a crash of the process, all found again")).cannot_compare())
}

pub(super) fn status_updates(evidence: &Evidence<'_>) -> Option<Judgement> {
    requests(evidence, "status-update", 3.2)
}

pub(super) fn sessions(evidence: &Evidence<'_>) -> Option<Judgement> {
    requests(evidence, "session-store", 4.8)
}

/// How many times as many requests as Redis the server answers, with as many clients as are best for that; without a Redis, how many there are.
fn requests(evidence: &Evidence<'_>, workload: &str, paper: f64) -> Option<Judgement> {
    let rate = |system, count| evidence.rounds_of(["nv-server", workload, "run", metric::THROUGHPUT], system, threads(count));
    let (mut ours, mut parts) = (Vec::new(), Vec::new());
    for count in [1, 2] {
        let figure = rate("server:nv", count)?.figure()?.in_units_of(1000.0);
        ours.push(format!("{} with {count}", figure.show(1, "")));
    }
    for redis in REDIS {
        let ratios = [1, 2].map(|count| Some(rate("server:nv", count)?.ratio(&rate(redis, count)?)));
        if let Some(most) = Measured::extreme(ratios.into_iter().flatten(), f64::max) {
            let ours = format!("server:nv {}", most.show(2, &format!(" x {redis}")));
            parts.push(Part::new(redis, ours, most.judge(Wanted::ratio(paper, paper, TIME_TOLERANCE))));
        }
    }
    let ours = format!("thousands of requests a second, by clients: {}", ours.join(", "));
    if parts.len() < REDIS.len() {
        let why = if evidence.is_planned("nv-server", "redis-memory") {
            "This file has redis-memory, which keeps no log, where the paper's volatile Redis keeps one and synchronises it in a time interval: redis-everysec."
        } else {
            "Without redis-everysec and redis-always, which are systems of everleaf-peers alone: `everleaf-peers lab reproduce nv` compares with them."
        };
        return Some(Judgement { why: why.into(), ..Judgement::new(true, ours).cannot_compare() });
    }
    let judged = Judgement::of(&parts);
    Some(Judgement { ours: format!("{ours}; at the most {}", judged.ours), ..judged })
}

pub(super) fn slower_media(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |system: &str, added| evidence.rounds_of(["nv-media", "", "insert", metric::MEAN], system, latency(added));
    let part = |(system, added, paper): (&str, u64, f64)| {
        let figure = time(system, added)?.by(&time(system, 0)?)?;
        Some(Part::ratio(format!("{added} ns: {system}"), "without", figure, Wanted::ratio(paper, paper, TIME_TOLERANCE)))
    };
    let of = [("nv-4k", 50, 1.05), ("nv-4k", 180, 3.06), ("lcb-4k", 50, 1.51), ("lcb-4k", 180, 3.41), ("cdds-4k", 50, 1.87), ("cdds-4k", 180, 3.81)];
    Some(Judgement::of(&of.into_iter().filter(|(system, ..)| evidence.is_planned("nv-media", system)).map(part).collect::<Option<Vec<_>>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{Scale, plan};
    use crate::plan::Case;
    use crate::result::{FORMAT, Header, Machine, Metric, Results, Verdict};

    /// The plan of a paper, of which nothing was measured yet.
    fn planned(paper: &str) -> Results {
        planned_at(paper, Scale::TINY)
    }

    fn planned_at(paper: &str, scale: Scale) -> Results {
        let systems = crate::names(&crate::systems());
        let plan = plan(paper, scale, &systems, 5, 1).unwrap();
        let header = Header { format: FORMAT, version: String::new(), command: Vec::new(), started: 0, machine: Machine::default(), plan };
        Results::new(header)
    }

    /// Figures of inserts of systems, the same in five rounds, in each case of an experiment that `pick` takes.
    fn add(results: &mut Results, experiment: &str, name: &str, figures: &[(&str, f64)], pick: impl Fn(&Case) -> bool) {
        let planned = results.header.plan.experiments.iter().find(|planned| planned.id == experiment).unwrap();
        for case in planned.cases.iter().filter(|case| pick(case)) {
            for (round, (system, value)) in (0..5).flat_map(|round| figures.iter().map(move |figure| (round, *figure))) {
                results.measurements.push(Measurement {
                    experiment: experiment.into(),
                    system: system.into(),
                    durability: "none".into(),
                    leaf_bytes: None,
                    workload: case.workload.name.clone(),
                    phase: "insert".into(),
                    parameters: case.parameters.clone(),
                    round,
                    metrics: [(name.to_owned(), Metric { value, unit: "ns".into() })].into(),
                });
            }
        }
    }

    /// The same of the mean of another phase, in all cases.
    fn add_means(results: &mut Results, experiment: &str, phase: &str, figures: &[(&str, f64)]) {
        let start = results.measurements.len();
        add(results, experiment, metric::MEAN, figures, |_| true);
        results.measurements[start..].iter_mut().for_each(|found| found.phase = phase.into());
    }

    /// The paper's own lookups, 1.28 and 1.48 times as fast as those of radix trees, would have failed by its abstract, which says: up to 1.2 times.
    #[test]
    fn the_most_that_is_claimed_is_not_asked_of_each() {
        for (slowest, verdict) in [(148.0, Verdict::Agree), (98.0, Verdict::Differ)] {
            let mut results = planned("pftree");
            let figures = [("pf", 100.0), ("fast-fair", 200.0), ("bztree", 300.0), ("roart", 128.0), ("p-art", slowest)];
            for phase in ["insert", "search", "scan", "update", "delete"] {
                add_means(&mut results, "pftree-micro", phase, &figures);
            }
            add_means(&mut results, "pftree-mixes", "run", &figures);
            assert_eq!(faster_than_others(&Evidence(&results)).unwrap().verdict, verdict);
        }
    }

    /// Whatever was more than 1 agreed with up to 2, were it 1.01 or 20.
    #[test]
    fn up_to_twice_is_about_twice_at_the_most() {
        for (slowest, verdict) in [(210.0, Verdict::Agree), (120.0, Verdict::Differ), (400.0, Verdict::Differ)] {
            let mut results = planned("pftree");
            let figures = [("pf", 100.0), ("fast-fair", 110.0), ("bztree", 115.0), ("roart", 105.0), ("p-art", slowest)];
            add_means(&mut results, "pftree-micro", "insert", &figures);
            add_means(&mut results, "pftree-mixes", "run", &figures);
            let judged = up_to_twice(&Evidence(&results)).unwrap();
            assert!(judged.verdict == verdict && judged.ours.contains("at most "), "{judged:?}");
        }
    }

    /// Any number of keys was judged by what the paper has for a million, and one of its figures for that million failed wherever another one held.
    #[test]
    fn inserts_are_judged_by_what_the_paper_has_for_as_many_keys() {
        let judged = |keys: u64, lcb: f64, cdds: f64| {
            let mut results = planned_at("nv", Scale(keys));
            let figures = [("nv", 130.0), ("nv-1k", 120.0), ("nv-2k", 110.0), ("nv-4k", 100.0), ("lcb-4k", 100.0 * lcb), ("cdds-4k", 100.0 * cdds)];
            add_means(&mut results, "nv-nodes", "insert", &figures);
            let evidence = Evidence(&results);
            [faster_inserts(&evidence), faster_inserts_than_cdds(&evidence), larger_inserts(&evidence)].map(|judged| judged.unwrap().verdict)
        };
        for (keys, lcb, cdds) in [(1_000_000, 15.2, 8.0), (10_000_000, 6.3, 9.7), (100_000_000, 5.3, 8.2)] {
            assert_eq!(judged(keys, lcb, cdds)[..2], [Verdict::Agree; 2], "{keys}");
        }
        assert_eq!(judged(10_000_000, 15.2, 16.0)[..2], [Verdict::Differ; 2]);
        assert_eq!(judged(200_000, 15.2, 8.0)[..2], [Verdict::CannotCompare; 2]);
        for (lcb, cdds, verdict) in [(15.2, 8.0, Verdict::Agree), (8.0, 16.0, Verdict::Agree), (3.0, 12.0, Verdict::Differ), (8.0, 30.0, Verdict::Differ)] {
            assert_eq!(judged(1_000_000, lcb, cdds)[2], verdict);
        }
    }

    /// The cache that is simulated holds all of such a tree: nothing is missed in it but what is touched first.
    #[test]
    fn misses_of_a_cache_that_holds_everything_are_told_and_not_judged() {
        let mut results = planned("nv");
        let misses: Vec<_> = NV_STUDY.iter().map(|system| (*system, if system.starts_with("nv") { 100.0 } else { 250.0 })).collect();
        add(&mut results, "nv-reads", metric::LAST_LEVEL_MISSES, &misses, |_| true);
        let judged = fewer_misses(&Evidence(&results)).unwrap();
        assert!(judged.verdict == Verdict::CannotCompare && judged.ours.contains("cdds-4k 2.50 x nv-4k"), "{judged:?}");
    }

    /// Of what servers on indexes had measured it was said that it was not, since their names are not those of the indexes.
    #[test]
    fn what_a_server_is_on_is_measured_with_it() {
        let systems = crate::names(&crate::systems());
        let mut results = planned("isle");
        let figures = ["server:isle", "server:nv", "server:fp", "server:fast-fair", "server:circ"].map(|system| (system, 100.0));
        add(&mut results, "isle-clients", metric::P99, &figures, |_| true);
        let why = |results: &Results| crate::claims::judge(results, &systems).unwrap().into_iter().find(|claim| claim.id == "A10").unwrap().why;
        assert!(!why(&results).contains("Not measured in this run"), "{}", why(&results));
        for planned in &mut results.header.plan.experiments {
            planned.systems.retain(|system| system != "server:circ");
        }
        assert!(why(&results).contains("Not measured in this run: circ."), "{}", why(&results));
    }

    /// wB+-Tree was judged by the figure of the FPTree that an older file does not have.
    #[test]
    fn each_rival_is_judged_by_its_own_figure() {
        let mut results = planned("isle");
        for planned in &mut results.header.plan.experiments {
            planned.systems.retain(|system| system != "fp-published");
        }
        let figures = [("isle", 100.0), ("nv", 111.0), ("wb", 220.0), ("fast-fair", 155.0), ("circ", 149.0)];
        add(&mut results, "isle-insert", metric::MEAN, &figures, |_| true);
        let judged = slower_inserts(&Evidence(&results)).unwrap();
        assert_eq!(judged.verdict, Verdict::Agree, "{judged:?}");
    }

    #[test]
    fn searches_of_larger_nodes_are_compared_with_those_of_sorted_nodes_too() {
        for (circ, verdict) in [(110.0, Verdict::Agree), (160.0, Verdict::Differ)] {
            let mut results = planned("isle");
            let inserts = [("isle", 1.0), ("isle-2k", 1.0), ("nv", 1.0), ("nv-2k", 1.0), ("wb", 1.0), ("wb-1k", 2.0)];
            let degraded = [("fast-fair", 1.0), ("fast-fair-2k", 2.0), ("circ", 1.0), ("circ-2k", 2.0)];
            add_means(&mut results, "isle-nodes", "insert", &[inserts.as_slice(), &degraded].concat());
            let searches = ["isle", "isle-1k", "isle-2k"].map(|system| (system, 100.0));
            let others = [("nv", 130.0), ("nv-1k", 130.0), ("nv-2k", 130.0), ("fast-fair-2k", 90.0), ("circ-2k", circ)];
            add_means(&mut results, "isle-nodes", "search", &[searches.as_slice(), &others].concat());
            let judged = larger_nodes(&Evidence(&results)).unwrap();
            assert_eq!(judged.verdict, verdict, "{judged:?}");
        }
    }

    /// The least and the most were those of the medians, with the interval of the one that chance had favoured.
    #[test]
    fn extremes_are_those_of_each_round() {
        let mut results = planned("lb");
        for phase in STRETCHES {
            add_means(&mut results, "lb-insert", phase, &[("lb", 100.0), ("wb-256", 200.0), ("fp-256", 200.0)]);
        }
        // What is the least, and the most, in one round is not in the next.
        for found in results.measurements.iter_mut().filter(|found| found.system != "lb" && found.phase != "insert 3") {
            let (least, most) = if found.system == "wb-256" { (120.0, 292.0) } else { (112.0, 245.0) };
            let value = match found.workload.as_str() {
                "70 %" => least,
                "100 %" => most,
                _ => continue,
            };
            if (found.round % 2 == 0) == (found.phase == "insert") {
                found.metrics.get_mut(metric::MEAN).unwrap().value = value;
            }
        }
        let judged = overall_range(&Evidence(&results)).unwrap();
        assert_eq!(judged.verdict, Verdict::Agree, "{judged:?}");
        let mut results = planned("lb");
        let figures = [("lb", 100.0), ("lb-512", 95.0), ("lb-768", 105.0), ("lb-1k", 110.0), ("wb-256", 160.0), ("wb", 130.0), ("wb-1k", 200.0)];
        add_means(&mut results, "lb-nodes", "insert", &[figures.as_slice(), &[("fp-256", 150.0), ("fp-1k", 150.0)]].concat());
        // In each round some rival is faster.
        for found in results.measurements.iter_mut().filter(|found| found.system == if found.round % 2 == 0 { "wb-256" } else { "fp-256" }) {
            found.metrics.get_mut(metric::MEAN).unwrap().value = 90.0;
        }
        let judged = leaf_sizes(&Evidence(&results)).unwrap();
        assert!(judged.why.contains("Off: ") && judged.why.contains("100 %: nearest rival"), "{judged:?}");
    }

    /// Of files that lack rivals, what is said about these alone was found to agree.
    #[test]
    fn what_was_not_to_be_measured_is_not_judged() {
        let systems = crate::names(&crate::systems());
        let mut results = planned("nv");
        for experiment in &mut results.header.plan.experiments {
            experiment.systems.retain(|system| !system.starts_with("lcb") && !system.starts_with("cdds"));
        }
        let claims = crate::claims::judge(&results, &systems).unwrap();
        assert!(claims.len() > 25);
        assert!(claims.iter().all(|claim| claim.experiments.is_empty() || claim.verdict == Verdict::CannotCompare), "{claims:?}");
        // With NV-Tree's own figures, what is missing is said.
        add(&mut results, "nv-nodes", metric::MEAN, &NV_SIZES.map(|system| (system, 100.0)), |_| true);
        let claims = crate::claims::judge(&results, &systems).unwrap();
        let larger = claims.iter().find(|claim| claim.id == "D8").unwrap();
        assert!(larger.why.contains("Not measured in this run: lcb, "), "{larger:?}");
    }

    /// A rival with leaves of 1 KiB is faster than LB+-Tree's smallest here, but not than the LB+-Tree that has leaves of 1 KiB, too.
    #[test]
    fn rivals_are_compared_at_equal_sizes_of_leaves() {
        let ours = [("lb", 100.0), ("lb-512", 95.0), ("lb-768", 105.0), ("lb-1k", 80.0)];
        let rivals = [("wb-256", 160.0), ("wb", 130.0), ("wb-1k", 92.0), ("fp-256", 150.0), ("fp-1k", 120.0)];
        let mut results = planned("lb");
        add(&mut results, "lb-nodes", metric::MEAN, &[ours.as_slice(), &rivals].concat(), |_| true);
        let Judgement { ours, verdict, why } = leaf_sizes(&Evidence(&results)).unwrap();
        assert!(ours.contains("100 %: nearest rival 1.15 x LB+-Tree, "), "{ours}");
        assert!(verdict == Verdict::Differ && !why.contains("wb"), "{why}");
    }

    /// It was judged with twice as many keys as stand for the paper's, and one size that was measured was every size.
    #[test]
    fn inserts_are_judged_by_the_sizes_that_were_planned() {
        let (mut results, Scale(n)) = (planned("isle"), Scale::TINY);
        let (papers, others) = (
            [("isle", 100.0), ("nv", 111.0), ("fp-published", 140.0), ("wb", 220.0), ("fast-fair", 155.0), ("circ", 149.0)],
            [("isle", 100.0), ("nv", 150.0), ("fast-fair", 120.0), ("circ", 110.0)],
        );
        add(&mut results, "isle-insert", metric::MEAN, &papers, |case| case.parameters.keys == n);
        assert_eq!(slower_inserts(&Evidence(&results)).unwrap().verdict, Verdict::Agree);
        assert!(fastest_at_every_size(&Evidence(&results)).is_none());
        add(&mut results, "isle-insert", metric::MEAN, &[others.as_slice(), &[("fp-published", 180.0), ("wb", 300.0)]].concat(), |case| {
            case.parameters.keys != n
        });
        assert_eq!(slower_inserts(&Evidence(&results)).unwrap().verdict, Verdict::Agree);
        assert_eq!(fastest_at_every_size(&Evidence(&results)).unwrap().verdict, Verdict::Agree);
    }

    /// No line at all agreed with 1.31 lines.
    #[test]
    fn lines_of_inserts_are_near_the_theorem_from_both_sides() {
        for (lines, verdict) in [(1.27, Verdict::Agree), (1.0, Verdict::Differ), (1.5, Verdict::Differ)] {
            let mut results = planned("lb");
            let systems = LB_SIZES.into_iter().chain(["wb-256", "fp-256"]);
            add(&mut results, "lb-counts", "common lines flushed", &systems.map(|system| (system, lines)).collect::<Vec<_>>(), |_| true);
            let judged = moved_entries(&Evidence(&results)).unwrap();
            assert!(judged.verdict == verdict && judged.ours.contains("1.31 with moving, without 1.77, 1.35 times as many"), "{judged:?}");
        }
    }

    /// It was told, however many keys there were, that it could not be.
    #[test]
    fn rebuilds_of_as_many_inserts_as_the_papers_are_judged() {
        for (keys, counts, verdict) in [
            (PAPERS_REBUILDS, [7.0, 4.0, 3.0, 2.0], Verdict::Agree),
            (PAPERS_REBUILDS, [7.0, 6.0, 5.0, 5.0], Verdict::Differ),
            (1_000_000, [7.0, 4.0, 3.0, 2.0], Verdict::CannotCompare),
        ] {
            let mut results = planned("nv");
            let figures: Vec<_> = NV_SIZES.into_iter().zip(counts).collect();
            add(&mut results, "nv-counts", metric::REBUILDS, &figures, |_| true);
            results.measurements.iter_mut().for_each(|found| found.parameters.keys = keys);
            assert_eq!(rebuild_count(&Evidence(&results)).unwrap().verdict, verdict);
        }
    }

    /// What one size reads more than a tenth more than another is not flat; in the other trees it is in proportion.
    #[test]
    fn reads_are_flat_if_they_are_within_a_tenth_of_those_of_the_smallest_leaves() {
        for (largest, verdict) in [(109.0, Verdict::Agree), (91.0, Verdict::Agree), (112.0, Verdict::Differ), (800.0, Verdict::Differ)] {
            let mut results = planned("nv");
            let figures = [("nv", 100.0), ("nv-1k", 97.0), ("nv-2k", 101.0), ("nv-4k", largest)];
            add(&mut results, "nv-reads", metric::DATA_READS, &figures, |_| true);
            add(
                &mut results,
                "nv-reads",
                metric::DATA_READS,
                &[LCB_SIZES, CDDS_SIZES].as_flattened().iter().map(|system| (*system, 400.0)).collect::<Vec<_>>(),
                |_| true,
            );
            let judged = flat_reads(&Evidence(&results)).unwrap();
            assert!(judged.verdict == verdict && judged.ours.starts_with("100, 97, 101, "), "{judged:?}");
        }
    }

    /// It was compared with all of an opening, in an experiment of its own, and nothing was said.
    #[test]
    fn inner_nodes_from_leaves_are_compared_with_those_from_inner_nodes_of_the_same_tree() {
        for (parents, verdict) in [(65.0, Verdict::Agree), (15.0, Verdict::Differ), (120.0, Verdict::Differ)] {
            let mut results = planned("nv");
            add(&mut results, "nv-reopen", metric::REBUILD_FROM_LEAVES, &NV_SIZES.map(|system| (system, 100.0)), |_| true);
            results.measurements.iter_mut().for_each(|found| found.phase = "reopen".into());
            assert!(rebuild_sources(&Evidence(&results)).unwrap().ours.contains("too few keys"));
            for found in results.measurements.iter_mut().filter(|found| found.system != "nv-4k") {
                found.metrics.insert(metric::REBUILD_PER_LEAF.into(), Metric { value: parents, unit: "ns".into() });
            }
            let judged = rebuild_sources(&Evidence(&results)).unwrap();
            assert!(judged.verdict == verdict && judged.ours.contains(&format!("nv-2k {parents} and 100; nv ")), "{judged:?}");
        }
    }

    /// Redis was no part of the plan, wherever that was made, and nothing was ever compared with it.
    #[test]
    fn requests_are_compared_with_redis_where_it_is_there() {
        let systems = crate::names(&crate::systems());
        let served = |systems: &[String]| {
            let experiments = plan("nv", Scale::TINY, systems, 5, 1).unwrap().experiments;
            experiments.into_iter().find(|experiment| experiment.id == "nv-server").unwrap().systems
        };
        assert_eq!(served(&systems), ["server:nv"]);
        assert_eq!(served(&[systems, REDIS.map(str::to_owned).to_vec()].concat()), ["server:nv", "redis-everysec", "redis-always"]);
        let mut results = planned("nv");
        for (count, rate) in [(1, 15e3), (2, 96e3)] {
            add(&mut results, "nv-server", metric::THROUGHPUT, &[("server:nv", rate)], |case| case.parameters.threads == count);
        }
        results.measurements.iter_mut().for_each(|found| found.phase = "run".into());
        let Judgement { verdict, why, .. } = status_updates(&Evidence(&results)).unwrap();
        assert!(verdict == Verdict::CannotCompare && why.contains("everleaf-peers lab reproduce nv"), "{why}");
        for (count, rate) in [(1, 15e3), (2, 32e3)] {
            add(&mut results, "nv-server", metric::THROUGHPUT, &REDIS.map(|redis| (redis, rate)), |case| case.parameters.threads == count);
        }
        results.measurements.iter_mut().for_each(|found| found.phase = "run".into());
        let Judgement { ours, verdict, .. } = status_updates(&Evidence(&results)).unwrap();
        assert!(verdict == Verdict::Agree && ours.contains("at the most server:nv 3.00 x redis-everysec, server:nv 3.00 x redis-always"), "{ours}");
        assert_eq!(sessions(&Evidence(&results)).unwrap().verdict, Verdict::Differ, "3 instead of 4.8");
        // As many with one client in one round as with two in the next.
        for found in results.measurements.iter_mut() {
            let is_fast = found.system == "server:nv" && (found.round % 2 == 0) == (found.parameters.threads == 2);
            found.metrics.get_mut(metric::THROUGHPUT).unwrap().value = if is_fast { 96e3 } else { 32e3 };
        }
        let judged = status_updates(&Evidence(&results)).unwrap();
        assert_eq!(judged.verdict, Verdict::Agree, "{judged:?}");
    }

    /// A Redis without a log was taken for the volatile one of the paper, whose log is synchronised in a time interval.
    #[test]
    fn redis_without_a_log_is_none_of_the_papers() {
        let mut results = planned("nv");
        let redis = ["redis-memory", "redis-always"];
        results.header.plan.experiments.iter_mut().find(|planned| planned.id == "nv-server").unwrap().systems.extend(redis.map(str::to_owned));
        add(&mut results, "nv-server", metric::THROUGHPUT, &[("server:nv", 96e3), (redis[0], 30e3), (redis[1], 30e3)], |_| true);
        results.measurements.iter_mut().for_each(|found| found.phase = "run".into());
        let Judgement { verdict, why, .. } = status_updates(&Evidence(&results)).unwrap();
        assert!(verdict == Verdict::CannotCompare && why.contains("redis-memory, which keeps no log"), "{why}");
    }

    /// One thread and two were measured in experiments of their own, minutes apart, and compared by their rounds.
    #[test]
    fn threads_are_compared_within_an_experiment() {
        let mut results = planned("lb");
        for (count, rate) in [(1, 1e6), (2, 1.8e6)] {
            let of_count = |case: &Case| case.parameters.threads == count;
            add(&mut results, "lb-insert", metric::THROUGHPUT, &LB_STUDY.map(|system| (system, rate)), of_count);
            add(&mut results, "lb-insert", metric::MEAN, &[("lb", 100.0), ("wb-256", 123.0), ("fp-256", 130.0)], of_count);
        }
        let Judgement { ours, verdict, .. } = two_threads(&Evidence(&results)).unwrap();
        assert!(verdict == Verdict::Agree && ours.contains("lb with two threads 1.80 x one"), "{ours}");
        assert!(random_inserts(&Evidence(&results)).is_none(), "each stretch is part of the claim");
    }
}
