//! Results for people: medians, how far they spread, and ratios.

use crate::plan::{Experiment, Parameters};
use crate::raw::{DEPENDENT_READ, FLUSHED_LINE};
use crate::result::{Measurement, Results, metric};
use crate::samples::{Rounds, Samples};
use everleaf_pmem::Domain;
use std::fmt::Write;

/// Columns, by metric: the name above, the factor by which figures are divided, digits behind the point. The first that is there is what ratios are of.
const COLUMNS: [(&str, &str, f64, usize); 25] = [
    (metric::MEAN, "mean ns", 1.0, 1),
    (metric::THROUGHPUT, "Mop/s", 1e6, 3),
    (metric::P50, "p50 ns", 1.0, 0),
    (metric::P99, "p99 ns", 1.0, 0),
    (metric::P999, "p99.9 ns", 1.0, 0),
    (metric::LINES_FLUSHED, "lines", 1.0, 3),
    (metric::FLUSHES, "flushes", 1.0, 3),
    (metric::FENCES, "fences", 1.0, 3),
    (metric::LINES_WRITTEN, "distinct", 1.0, 3),
    (metric::UNITS_WRITTEN, "units", 1.0, 3),
    (metric::MEDIA_UNITS, "media", 1.0, 3),
    (metric::MEDIA_AMPLIFICATION, "media x", 1.0, 2),
    (metric::SPLITS, "splits", 1.0, 4),
    (metric::REBUILDS, "rebuilds", 1.0, 0),
    (metric::ABORTS, "aborts", 1.0, 4),
    (metric::FALLBACKS, "fallbacks", 1.0, 4),
    (metric::INSTRUCTIONS, "instructions", 1.0, 0),
    (metric::DATA_READS, "data reads", 1.0, 1),
    (metric::LAST_LEVEL_MISSES, "LL misses", 1.0, 3),
    (metric::POOL, "pool B/key", 1.0, 1),
    (metric::DRAM, "DRAM B/key", 1.0, 1),
    (metric::RECOVERY, "crash ms", 1e-3, 1),
    (metric::RECOVERY_IN_FULL, "in full ms", 1e-3, 1),
    (metric::REOPENING, "closed ms", 1e-3, 1),
    (metric::REOPENING_IN_FULL, "in full ms", 1e-3, 1),
];

/// Costs of memory that times are told in multiples of, each time of that in its round, and the names above.
const FLOORS: [(&str, &str); 2] = [(FLUSHED_LINE, "flushes"), (DEPENDENT_READ, "reads")];

/// Whether a cost of memory is one of those that an operation has under these parameters. Write-backs were measured in domain adr, and without latency.
fn is_floor(name: &str, parameters: &Parameters) -> bool {
    name != FLUSHED_LINE || parameters.domain == Domain::Adr.name() && parameters.write_latency_ns == 0
}

/// What one row shows: a system in a phase under some parameters.
#[derive(Clone, Copy)]
struct Group<'a> {
    results: &'a Results,
    first: &'a Measurement,
}

impl Group<'_> {
    fn rounds(self, name: &str) -> Rounds {
        Rounds::of(self.results.measurements.iter().filter(|other| is_same(self.first, other)), name)
    }

    fn samples(self, name: &str) -> Samples {
        self.rounds(name).samples()
    }

    /// The same of another system, if it was measured.
    fn of(self, system: &str) -> Option<Self> {
        let first = self.results.measurements.iter().find(|other| other.system == system && is_comparable(self.first, other))?;
        Some(Self { first, ..self })
    }
}

/// Whether two were measured by the same work.
fn is_comparable(one: &Measurement, other: &Measurement) -> bool {
    (&one.experiment, &one.workload, &one.phase, &one.parameters) == (&other.experiment, &other.workload, &other.phase, &other.parameters)
}

/// Whether two differ by their rounds alone.
fn is_same(one: &Measurement, other: &Measurement) -> bool {
    one.system == other.system && is_comparable(one, other)
}

/// All experiments as tables, and all claims.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    let machine = &results.header.machine;
    let raw: Vec<String> = machine.raw_ns.iter().map(|(name, cost)| format!("{name} {cost:.1} ns")).collect();
    let _ = writeln!(text, "{}; {}; {}", machine.summary(), machine.kernel, raw.join(", "));
    for experiment in &results.header.plan.experiments {
        table(results, experiment, &mut text);
    }
    for skipped in &results.skipped {
        let _ = writeln!(text, "not measured: {} in {} ({}): {}", skipped.system, skipped.experiment, skipped.workload, skipped.why);
    }
    if !results.claims.is_empty() {
        let _ = writeln!(text, "\nClaims; what is said of why is of the machine that Everleaf is developed on.");
        for claim in &results.claims {
            let _ = writeln!(text, "{:4} {:16}  {} ({})", claim.id, claim.verdict.name(), claim.what, claim.place);
            let _ = writeln!(text, "{:22} paper: {}", "", claim.paper);
            if !claim.ours.is_empty() {
                let _ = writeln!(text, "{:22} here:  {}", "", claim.ours);
            }
            let _ = writeln!(text, "{:22} {}", "", claim.why);
        }
    }
    if results.end.as_ref().is_none_or(|end| !end.complete) {
        let _ = writeln!(text, "\nThe run was stopped before its end; what stands here was measured.");
    }
    text
}

fn table(results: &Results, experiment: &Experiment, text: &mut String) {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for first in results.measurements.iter().filter(|measurement| measurement.experiment == experiment.id) {
        if !groups.iter().any(|group| is_same(group.first, first)) {
            groups.push(Group { results, first });
        }
    }
    if groups.is_empty() {
        return;
    }
    // What is compared stands together, as it was planned.
    let place = |group: &Group<'_>| {
        let case = experiment.cases.iter().position(|case| case.workload.name == group.first.workload && case.parameters == group.first.parameters);
        let phase = case.and_then(|case| experiment.cases[case].workload.phases.iter().position(|phase| phase.name == group.first.phase));
        (case, phase, experiment.systems.iter().position(|name| *name == group.first.system))
    };
    groups.sort_by_key(place);
    let _ = writeln!(text, "\n{} ({})", experiment.title, experiment.id);
    // What is found out differs in its columns.
    for groups in groups.chunk_by(|one, other| one.first.parameters.measure == other.first.parameters.measure) {
        rows(results, experiment, groups, text);
    }
}

/// The rows of one measure.
fn rows(results: &Results, experiment: &Experiment, groups: &[Group<'_>], text: &mut String) {
    let columns: Vec<_> = COLUMNS.iter().filter(|(name, ..)| groups.iter().any(|group| group.first.metrics.contains_key(*name))).collect();
    let Some((main, ..)) = columns.first() else { return };
    let baseline = experiment.baseline.as_ref().or(experiment.systems.first());
    let names = groups.iter().map(|group| group.first.system.len() + 1).max().unwrap_or(0).max(14);
    let heads: String = columns.iter().map(|(_, head, ..)| format!("{head:>13}")).collect();
    let is_told = |name: &str| *main == metric::MEAN && groups.iter().any(|group| is_floor(name, &group.first.parameters));
    let costs = |name| results.memory_costs(&experiment.id, name);
    let floors: Vec<(&str, &str, Rounds)> =
        FLOORS.iter().filter(|(name, _)| is_told(name)).filter_map(|(name, head)| Some((*name, *head, costs(name)?))).collect();
    let floor_heads: String = floors.iter().map(|(_, head, _)| format!("{head:>9}")).collect();
    for (name, head, costs) in &floors {
        let _ = writeln!(text, "  {head}: one is a {name}, {:.1} ns in the median of the rounds", costs.samples().median());
    }
    let _ = writeln!(text, "{:14}{:names$}{heads}{:>9}{:>9}{floor_heads}", "", "", "spread", "ratio");
    let mut above = None;
    for group in groups {
        let label = describe(&group.first.workload, &group.first.parameters);
        if above.as_ref() != Some(&label) {
            let _ = writeln!(text, "  {label}");
        }
        above = Some(label);
        let cells: String = columns
            .iter()
            .map(|(name, _, unit, digits)| match group.samples(name).median() {
                median if median.is_nan() => format!("{:>13}", ""),
                median => format!("{:13.*}", digits, median / unit),
            })
            .collect();
        let spread = group.samples(main).spread();
        // One round tells nothing of how far others would be from it.
        let width = if spread.rounds > 1 { 100.0 * (spread.max - spread.min) / spread.median } else { f64::NAN };
        let ratio = baseline.and_then(|name| group.of(name)).map_or(f64::NAN, |base| group.rounds(main).by(&base.rounds(main)).samples().median());
        let cell = |number: f64, text: String| if number.is_nan() { String::new() } else { text };
        let (width, ratio) = (cell(width, format!("{width:.0} %")), cell(ratio, format!("{ratio:.2}")));
        let in_floors =
            |name: &str, costs: &Rounds| if is_floor(name, &group.first.parameters) { group.rounds(main).by(costs).samples().median() } else { f64::NAN };
        let floors = floors.iter().map(|(name, _, costs)| in_floors(name, costs));
        let floors: String = floors.map(|times| format!("{:>9}", cell(times, format!("{times:.2}")))).collect();
        let _ = writeln!(text, "    {:10}{:names$}{cells}{width:>9}{ratio:>9}{floors}", group.first.phase, group.first.system);
    }
}

/// A case in a line.
pub fn describe(workload: &str, parameters: &Parameters) -> String {
    let latency = if parameters.write_latency_ns > 0 { format!(", {}", parameters.describe("write_latency_ns")) } else { String::new() };
    let [keys, key, value, threads, domain, memory] = ["keys", "key", "value_bytes", "threads", "domain", "memory"].map(|name| parameters.describe(name));
    // Where lines are not broken, a blank is a blank.
    format!("{workload}: {keys}, {key}, {value}, {threads}, {domain}{latency}, {memory}; {}", parameters.measure.name()).replace('\u{a0}', " ")
}
