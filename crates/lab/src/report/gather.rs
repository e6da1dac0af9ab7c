//! From measurements to figures.
//!
//! 1. An experiment has the figures that its plan asks for; without one, bars of its throughput.
//! 2. Where latencies were measured, it also has their percentiles; where lines and fences were counted, also these; and so with space, times to open, and
//!    instructions.
//! 3. A panel is what its measurements have in common, and a title says in what panels differ. What all panels have in common stands in the note.

use super::figure::{Chart, Figure, Form, Kind, LinePanel, Lines, Panel, Row, Rows, Series, ascending, unique};
use super::scale;
use crate::plan::{self, Experiment, Measure, Shape};
use crate::result::{Measurement, Results, metric};
use crate::samples::{Rounds, Spread};
use std::collections::BTreeSet;

/// Every figure that the results are enough for, in the order of the plan.
pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let mut figures: Vec<Figure> = results.header.plan.experiments.iter().flat_map(|experiment| figures_of(results, experiment)).collect();
    let mut taken = BTreeSet::new();
    for figure in &mut figures {
        let stem = file_stem(&figure.name);
        let free = (1_usize..).map(|number| if number == 1 { stem.clone() } else { format!("{stem}-{number}") }).find(|name| !taken.contains(name));
        figure.name = free.unwrap_or(stem);
        taken.insert(figure.name.clone());
    }
    figures
}

/// Experiments of the plan without any measurement.
pub(super) fn missing(results: &Results) -> Vec<&Experiment> {
    let measured: BTreeSet<&str> = results.measurements.iter().map(|measurement| measurement.experiment.as_str()).collect();
    results.header.plan.experiments.iter().filter(|experiment| !measured.contains(experiment.id.as_str())).collect()
}

fn figures_of(results: &Results, experiment: &Experiment) -> Vec<Figure> {
    let mut all: Vec<&Measurement> = results.measurements.iter().filter(|measurement| measurement.experiment == experiment.id).collect();
    // As the plan has the systems: each round had an order of its own.
    all.sort_by_key(|measurement| experiment.systems.iter().position(|name| *name == measurement.system).unwrap_or(experiment.systems.len()));
    let mut all_planned = experiment.figures.clone();
    if all_planned.is_empty() {
        all_planned.push(plan::Figure { shape: Shape::Bars, horizontal: "phase".into(), vertical: metric::THROUGHPUT.into(), phases: Vec::new() });
    }
    let mut figures = Vec::new();
    for (at, planned) in all_planned.iter().enumerate() {
        let drawn = |measurement: &&&Measurement| planned.phases.is_empty() || planned.phases.contains(&measurement.phase);
        let chosen = with_metrics(&all.iter().filter(drawn).copied().collect::<Vec<_>>(), &[&planned.vertical]);
        if chosen.is_empty() {
            continue;
        }
        let view = View::new(&chosen, &planned.horizontal);
        let chart = if planned.shape == Shape::Lines && view.is_numeric() { view.lines(&planned.vertical) } else { view.bars(&planned.vertical, experiment) };
        let (mut name, mut title) = (experiment.id.clone(), experiment.title.clone());
        if at > 0 {
            name = format!("{name}-{}", planned.vertical);
            title = format!("{title}: {}", metric_name(&planned.vertical));
        }
        figures.push(Figure { name, title, note: view.note(&chart), chart });
    }
    let planned = &all_planned[0];
    let percentiles = [metric::P50, metric::P99, metric::P999];
    let chosen = with_metrics(&all, &percentiles);
    if !chosen.is_empty() {
        let view = View::new(&chosen, "phase");
        let chart = Chart::Rows(Form::Percentiles, view.rows(&percentiles, None, "latency of an operation".into(), "ns", 1.0));
        figures.push(Figure {
            name: format!("{}-latency", experiment.id),
            title: format!("{}: percentiles of latency", experiment.title),
            note: view.note(&chart),
            chart,
        });
    }
    let counted = [metric::LINES_FLUSHED, metric::FENCES];
    let chosen = with_metrics(&all, &counted);
    if !chosen.is_empty() && planned.shape == Shape::Bars {
        let view = View::new(&chosen, "phase");
        let chart = Chart::Rows(Form::Stacks, view.rows(&counted, None, "instructions an operation that make writes durable".into(), "1/op", 1.0));
        figures.push(Figure {
            name: format!("{}-counts", experiment.id),
            title: format!("{}: what makes writes durable", experiment.title),
            note: view.note(&chart),
            chart,
        });
    }
    for (name, what) in OTHERS.into_iter().filter(|(name, _)| all_planned.iter().all(|planned| planned.vertical != *name)) {
        let chosen = with_metrics(&all, &[name]);
        if !chosen.is_empty() && (planned.shape == Shape::Bars || chosen.len() < all.len()) {
            let view = View::new(&chosen, "phase");
            let chart = view.bars(name, experiment);
            let title = format!("{}: {what}", experiment.title);
            figures.push(Figure { name: format!("{}-{name}", experiment.id), title, note: view.note(&chart), chart });
        }
    }
    figures
}

/// What also has a figure of its own, wherever it was found out, and its words.
const OTHERS: [(&str, &str); 7] = [
    (metric::POOL, "persistent memory"),
    (metric::DRAM, "DRAM"),
    (metric::RECOVERY, "opening after a crash"),
    (metric::REOPENING, "opening after a clean shutdown"),
    (metric::INSTRUCTIONS, "instructions"),
    (metric::DATA_READS, "data reads"),
    (metric::LAST_LEVEL_MISSES, "misses of the last cache"),
];

/// Measurements that have all of these; if some were taken for the sake of time alone, throughput and mean come from them.
fn with_metrics<'a>(all: &[&'a Measurement], names: &[&str]) -> Vec<&'a Measurement> {
    let having = |measurement: &&&'a Measurement| names.iter().all(|name| measurement.metrics.contains_key(*name));
    let chosen: Vec<&Measurement> = all.iter().filter(having).copied().collect();
    let is_time = |measurement: &&Measurement| measurement.parameters.measure == Measure::Time;
    let concerns_time = names.iter().all(|name| [metric::THROUGHPUT, metric::MEAN].contains(name));
    if concerns_time && chosen.iter().any(is_time) { chosen.into_iter().filter(is_time).collect() } else { chosen }
}

/// Measurements, and what they differ in.
struct View<'a> {
    measurements: &'a [&'a Measurement],
    horizontal: &'a str,
    /// What measurements differ in, and panels are told apart by; but for the parameter that a line is over.
    varying: Vec<&'static str>,
}

/// Everything that can tell measurements apart but the system, the round, and what was found out.
const DIMENSIONS: [&str; 10] = ["workload", "phase", "keys", "threads", "write_latency_ns", "value_bytes", "key", "domain", "scan_length", "memory"];

impl<'a> View<'a> {
    fn new(measurements: &'a [&'a Measurement], horizontal: &'a str) -> Self {
        let differs = |name: &&str| measurements.windows(2).any(|pair| dimension(pair[0], name) != dimension(pair[1], name));
        Self { measurements, horizontal, varying: DIMENSIONS.into_iter().filter(differs).collect() }
    }

    fn is_numeric(&self) -> bool {
        self.measurements.iter().all(|measurement| parameter(measurement, self.horizontal).is_some())
    }

    /// The panels, by their titles, in the order in which they first appear.
    fn panels(&self, names: &[&'static str]) -> Vec<(String, Vec<&'a Measurement>)> {
        let mut panels: Vec<(String, Vec<&Measurement>)> = Vec::new();
        for measurement in self.measurements {
            let parts: Vec<String> = names.iter().map(|name| dimension(measurement, name)).collect();
            let title = if parts.is_empty() { measurement.phase.clone() } else { parts.join(", ") };
            match panels.iter_mut().find(|(other, _)| *other == title) {
                Some((_, members)) => members.push(measurement),
                None => panels.push((title, vec![measurement])),
            }
        }
        panels
    }

    fn bars(&self, name: &str, experiment: &Experiment) -> Chart {
        let (axis, unit, factor) = self.axis(name);
        let baseline = experiment.baseline.clone().or_else(|| experiment.systems.first().cloned());
        // One alone is compared with nothing.
        let baseline = baseline.filter(|_| systems(self.measurements).len() > 1);
        Chart::Rows(Form::Bars, self.rows(&[name], baseline, axis, &unit, factor))
    }

    fn rows(&self, names: &[&str], baseline: Option<String>, axis: String, unit: &str, factor: f64) -> Rows {
        let panels = self.panels(&self.varying).into_iter().map(|(title, members)| {
            let mut rows = Vec::new();
            let compared = baseline.as_ref().map(|baseline| rounds(&members, baseline, names[0]));
            for system in systems(&members) {
                let values = names.iter().map(|name| Some(spread(&members, system, name)?.per(factor))).collect::<Option<Vec<_>>>();
                let ratio = compared.as_ref().and_then(|base| Spread::drawable([rounds(&members, system, names[0]).by(base).samples().median()]));
                let ratio = ratio.map(|ratio| ratio.median);
                rows.extend(values.map(|values| Row { name: system.into(), kind: kind_of(&members, system), values, ratio }));
            }
            Panel { title, rows }
        });
        let parts = names.iter().map(|name| part_name(name)).collect();
        Rows { axis, unit: unit.into(), parts, panels: panels.collect(), baseline }
    }

    fn lines(&self, name: &str) -> Chart {
        let (vertical, unit, factor) = self.axis(name);
        // Operations grow from phase to phase.
        let is_along = |name: &str| name == self.horizontal || self.horizontal == metric::OPERATIONS && name == "phase";
        let others: Vec<&'static str> = self.varying.iter().copied().filter(|name| !is_along(name)).collect();
        let panels = self.panels(&others).into_iter().map(|(title, members)| {
            let mut series: Vec<Series> = Vec::new();
            for label in unique(members.iter().map(|measurement| self.series_name(measurement))) {
                let own: Vec<&Measurement> = members.iter().filter(|measurement| self.series_name(measurement) == label).copied().collect();
                let parameters = ascending(own.iter().filter_map(|measurement| parameter(measurement, self.horizontal)));
                let at = |at: f64| {
                    let there: Vec<&Measurement> = own.iter().filter(|measurement| parameter(measurement, self.horizontal) == Some(at)).copied().collect();
                    Some((at, Spread::drawable(numbers(&there, name))?.per(factor)))
                };
                let points: Vec<(f64, Spread)> = parameters.into_iter().filter_map(at).collect();
                if !points.is_empty() {
                    series.push(Series { name: label.into(), points });
                }
            }
            LinePanel { title, series }
        });
        let (horizontal, is_logarithmic) = self.parameter_axis();
        Chart::Lines(Lines { horizontal, is_logarithmic, vertical, unit, panels: panels.collect() })
    }

    /// The name of a line: the system, or its family if the size of leaves is what the line is over.
    fn series_name(&self, measurement: &'a Measurement) -> &'a str {
        if self.horizontal == "leaf_bytes" { measurement.system.split('-').next().unwrap_or_default() } else { &measurement.system }
    }

    /// Words for a metric's axis, its unit, and by how much numbers are divided to be in that unit.
    fn axis(&self, name: &str) -> (String, String, f64) {
        let unit = self.measurements.iter().find_map(|measurement| measurement.metrics.get(name)).map_or("", |metric| metric.unit.as_str());
        let largest = numbers(self.measurements, name).filter(|number| number.is_finite()).fold(0.0, f64::max);
        let scaled = |words: [(&str, &str, f64); 3], limits: [f64; 2]| {
            let choice = limits.iter().position(|limit| largest >= *limit).unwrap_or(2);
            let (prefix, unit, factor) = words[choice];
            (prefix.to_owned(), unit.to_owned(), factor)
        };
        match unit {
            "op/s" => {
                let (prefix, unit, factor) = scaled([("million ", "M op/s", 1e6), ("thousand ", "k op/s", 1e3), ("", "op/s", 1.0)], [2e5, 2e3]);
                (format!("{prefix}operations a second (more is better)"), unit, factor)
            }
            "ns" => {
                let (prefix, unit, factor) = scaled([("milliseconds", "ms", 1e6), ("microseconds", "\u{b5}s", 1e3), ("nanoseconds", "ns", 1.0)], [2e7, 2e4]);
                let each = if name.ends_with(metric::MEAN) { format!("{prefix} an operation") } else { unit.clone() };
                (format!("{}, {each} (less is better)", metric_name(name)), unit, factor)
            }
            "s" => {
                let (prefix, unit, factor) = scaled([("seconds", "s", 1.0), ("milliseconds", "ms", 1e-3), ("microseconds", "\u{b5}s", 1e-6)], [2.0, 2e-3]);
                (format!("{}, {prefix} (less is better)", metric_name(name)), unit, factor)
            }
            "1/op" => (format!("{} an operation (less is better)", metric_name(name)), unit.into(), 1.0),
            "B/key" => (format!("{}, bytes a key (less is better)", metric_name(name)), unit.into(), 1.0),
            "x" if name.ends_with("share") => (format!("{}, %", metric_name(name)), "%".into(), 0.01),
            "x" => (format!("{}, times", metric_name(name)), unit.into(), 1.0),
            "" => (metric_name(name), String::new(), 1.0),
            other => (format!("{}, {other}", metric_name(name)), other.into(), 1.0),
        }
    }

    /// Words for the parameter along the axis, and whether it rather doubles than grows.
    fn parameter_axis(&self) -> (String, bool) {
        let words = match self.horizontal {
            "keys" => "keys".into(),
            "threads" => "threads".into(),
            metric::OPERATIONS => "operations so far".into(),
            "write_latency_ns" => "latency added to each line written back, ns".into(),
            "value_bytes" => "size of values, bytes".into(),
            "key" => "size of keys, bytes".into(),
            "scan_length" => "entries of a scan".into(),
            "leaf_bytes" => "size of leaves, bytes".into(),
            other => other.replace('_', " "),
        };
        let values = ascending(self.measurements.iter().filter_map(|measurement| parameter(measurement, self.horizontal)));
        let [first, .., last] = *values else { return (words, false) };
        // Steps that grow with the values: the middle lies far below the mean of the ends.
        let is_logarithmic = first > 0.0 && last / first >= 4.0 && values[values.len() / 2] < 0.6 * f64::midpoint(first, last);
        (words, is_logarithmic)
    }

    /// What all measurements have in common, and how to read the figure.
    fn note(&self, chart: &Chart) -> String {
        let Some(first) = self.measurements.first() else { return String::new() };
        let mut parts: Vec<String> = Vec::new();
        for name in DIMENSIONS {
            let is_said = self.varying.contains(&name) || name == self.horizontal;
            let says_something = match name {
                "workload" | "phase" => false,
                "write_latency_ns" => first.parameters.write_latency_ns > 0,
                "scan_length" => self.measurements.iter().any(|measurement| measurement.phase.contains("scan")),
                _ => true,
            };
            if says_something && !is_said {
                parts.push(dimension(first, name));
            }
        }
        let rounds = self.measurements.iter().map(|measurement| measurement.round).collect::<BTreeSet<_>>().len();
        let mut note = format!("{}.", parts.join("; "));
        if rounds > 1 {
            note.push_str(&format!(" Medians of {rounds} rounds, which alternate between the systems; whiskers go from the smallest to the largest."));
        }
        let rows = match chart {
            Chart::Rows(Form::Bars, rows) => rows,
            Chart::Rows(Form::Percentiles, _) => {
                note.push_str(" The number is the last mark\u{2019}s. The axis is logarithmic.");
                return note;
            }
            Chart::Lines(_) | Chart::Rows(Form::Stacks, _) => return note,
        };
        let has = |baseline: &&String| rows.panels.iter().flat_map(|panel| &panel.rows).any(|row| row.name == **baseline);
        if let Some(baseline) = rows.baseline.as_ref().filter(has) {
            note.push_str(&format!(" \u{d7} is the ratio to {baseline}, at the dashed line: the median of those of the rounds."));
        }
        note
    }
}

/// A dimension of a measurement in words.
fn dimension(measurement: &Measurement, name: &str) -> String {
    match name {
        "workload" => measurement.workload.clone(),
        "phase" => measurement.phase.clone(),
        "keys" => format!("{} keys", scale::plain(measurement.parameters.keys as f64)),
        name => measurement.parameters.describe(name),
    }
}

/// A parameter as a number.
fn parameter(measurement: &Measurement, name: &str) -> Option<f64> {
    let parameters = &measurement.parameters;
    match name {
        "keys" => Some(parameters.keys as f64),
        "threads" => Some(parameters.threads.into()),
        "write_latency_ns" => Some(parameters.write_latency_ns as f64),
        "value_bytes" => Some(parameters.value_bytes.into()),
        "scan_length" => Some(parameters.scan_length.into()),
        "leaf_bytes" => measurement.leaf_bytes.map(f64::from),
        metric::OPERATIONS => measurement.metrics.get(metric::OPERATIONS).map(|metric| metric.value),
        "key" => Some(parameters.key.bytes().into()),
        _ => None,
    }
}

fn systems<'a>(measurements: &[&'a Measurement]) -> Vec<&'a str> {
    unique(measurements.iter().map(|measurement| measurement.system.as_str()))
}

fn spread(measurements: &[&Measurement], system: &str, name: &str) -> Option<Spread> {
    let own: Vec<&Measurement> = measurements.iter().filter(|measurement| measurement.system == system).copied().collect();
    Spread::drawable(numbers(&own, name))
}

fn rounds(measurements: &[&Measurement], system: &str, name: &str) -> Rounds {
    Rounds::of(measurements.iter().copied().filter(|measurement| measurement.system == system), name)
}

fn numbers<'a>(measurements: &'a [&Measurement], name: &'a str) -> impl Iterator<Item = f64> + 'a {
    measurements.iter().filter_map(move |measurement| measurement.metrics.get(name)).map(|metric| metric.value)
}

/// What a system is: what it says of its durability decides whether it is volatile, and the registry whether it is Everleaf's.
fn kind_of(measurements: &[&Measurement], system: &str) -> Kind {
    let durability = measurements.iter().find(|measurement| measurement.system == system).map_or("", |measurement| measurement.durability.as_str());
    // A server's version may stand behind it.
    if durability.split(';').next() == Some("none") {
        Kind::Volatile
    } else if is_everleaf(system) {
        Kind::Everleaf
    } else {
        Kind::Peer
    }
}

fn is_everleaf(system: &str) -> bool {
    let family = system.split(['-', ':', '/', ' ']).next().unwrap_or_default();
    let registered = everleaf_index::registry::<u64, everleaf_pmem::Hardware>();
    ["server", "store"].contains(&family) || registered.iter().any(|entry| entry.name == system || entry.name.split('-').next() == Some(family))
}

fn metric_name(name: &str) -> String {
    match name {
        metric::MEAN => "mean time".into(),
        metric::DRAM => "DRAM".into(),
        metric::POOL => "persistent memory".into(),
        metric::RECOVERY => "time to open after a crash".into(),
        metric::REOPENING => "time to open after a clean shutdown".into(),
        metric::P50 => "latency, median".into(),
        metric::P99 => "latency, 99th percentile".into(),
        metric::P999 => "latency, 99.9th percentile".into(),
        metric::SEARCH_P99 => "latency of lookups, 99th percentile".into(),
        metric::UPDATE_P99 => "latency of updates, 99th percentile".into(),
        metric::SPLIT_SHARE => "time spent in inserts that divide a leaf".into(),
        metric::REBUILD_SHARE => "time spent on building inner nodes anew".into(),
        metric::REBUILD_PER_LEAF => "time of the last of these for each leaf".into(),
        metric::REBUILD_FROM_LEAVES => "time of building them from leaves, for each leaf".into(),
        metric::SPLITS => "divisions of leaves".into(),
        metric::LAST_LEVEL_MISSES => "misses of the last cache, simulated".into(),
        other => other.into(),
    }
}

fn part_name(name: &str) -> String {
    match name {
        metric::P50 => "median".into(),
        metric::P99 => "99\u{a0}%".into(),
        metric::P999 => "99.9\u{a0}%".into(),
        other => other.into(),
    }
}

/// A name that is a good file name everywhere, whatever is in `text`.
fn file_stem(text: &str) -> String {
    let mut stem = String::new();
    for letter in text.chars().take(60) {
        match letter.to_ascii_lowercase() {
            letter if letter.is_ascii_alphanumeric() => stem.push(letter),
            _ if stem.ends_with('-') || stem.is_empty() => {}
            _ => stem.push('-'),
        }
    }
    let stem = stem.trim_end_matches('-');
    if stem.is_empty() { "figure".into() } else { stem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_in_their_directory() {
        for (text, stem) in [("A1 insert", "a1-insert"), ("../../etc/passwd", "etc-passwd"), ("", "figure"), ("//", "figure"), ("b_\u{fc}_c", "b-c")] {
            assert_eq!(file_stem(text), stem);
        }
    }

    /// A measurement by the system `x`.
    fn measurement(durability: &str, metrics: &str) -> Measurement {
        let text = format!(
            r#"{{"experiment":"","system":"x","durability":"{durability}","leaf_bytes":null,"workload":"","phase":"","parameters":{{"keys":1,"key":"integer",
            "value_bytes":8,"threads":1,"write_latency_ns":0,"domain":"adr","memory":"anonymous","scan_length":1,"measure":"time"}},"round":0,
            "metrics":{{{metrics}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn axes_are_in_words() {
        for (name, unit, words) in [
            (metric::P99, "ns", "latency, 99th percentile, ns (less is better)"),
            (metric::MEAN, "ns", "mean time, nanoseconds an operation (less is better)"),
            (metric::SPLIT_SHARE, "x", "time spent in inserts that divide a leaf, %"),
            (metric::MEDIA_AMPLIFICATION, "x", "media amplification, times"),
        ] {
            let of = measurement("", &format!(r#""{name}":{{"value":0.25,"unit":"{unit}"}}"#));
            assert_eq!(View::new(&[&of], "system").axis(name).0, words);
        }
    }

    #[test]
    fn who_promises_nothing_is_volatile_whatever_its_version() {
        let kind = |durability: &str| kind_of(&[&measurement(durability, "")], "x");
        assert!(kind("none") == Kind::Volatile && kind("none; Redis server v=8") == Kind::Volatile);
        assert!(kind("each write; Redis server v=8") == Kind::Peer);
        assert!(kind("nothing, as memory without a file goes with the process") == Kind::Peer, "it does what it takes, and its memory is told beside");
    }

    #[test]
    fn systems_of_the_registry_are_known_as_ours() {
        assert!(["isle", "lb-512", "server:lb", "store:ever", "store-snapshots:isle"].into_iter().all(is_everleaf));
        assert!(!["lmdb", "redb-durable", "btreemap"].into_iter().any(is_everleaf));
    }
}
