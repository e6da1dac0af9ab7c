//! Requirements for every figure and page, whatever was measured: well-formed, only finite numbers, inside its frame, and the same each time.

use super::figure::{Chart, Figure, Form};
use super::picture::{NARROW, WIDE, inline, png, svg};
use super::{gather, page, write};
use crate::Spread;
use crate::plan::{self, Experiment, Parameters, Plan, Shape};
use crate::result::{Claim, End, FORMAT, Header, Line, Machine, Measurement, Metric, Results, Skipped, Verdict, metric};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// What an attacker might put into every text of a file.
const HOSTILE: &str = "</svg><script>alert(1)</script>&\"'\u{0}\u{1b}]0;\u{202e} ../../x";

fn measurement(experiment: &str, system: &str, phase: &str, round: u32, metrics: &[(&str, f64, &str)]) -> Measurement {
    Measurement {
        experiment: experiment.into(),
        system: system.into(),
        durability: if system == "volatile" { "none".into() } else { "each write, to memory (adr)".into() },
        leaf_bytes: None,
        workload: "micro".into(),
        phase: phase.into(),
        parameters: Parameters::default(),
        round,
        metrics: metrics.iter().map(|(name, value, unit)| ((*name).into(), Metric { value: *value, unit: (*unit).into() })).collect(),
    }
}

fn experiment(id: &str, shape: Shape, horizontal: &str, vertical: &str) -> Experiment {
    let figures = vec![plan::Figure { shape, horizontal: horizontal.into(), vertical: vertical.into(), phases: Vec::new() }];
    Experiment {
        id: id.into(),
        title: format!("What {id} is about"),
        systems: vec!["isle".into(), "volatile".into()],
        baseline: None,
        cases: Vec::new(),
        figures,
    }
}

fn claim(id: &str, verdict: Verdict) -> Claim {
    let [place, what, paper, ours, why] = ["Fig. 1", "insertion", "11.6 %", "9 %", "DRAM"].map(String::from);
    Claim { id: id.into(), place, what, paper, ours, verdict, why, experiments: vec!["bars".into()] }
}

/// A run with every kind of figure.
fn results() -> Results {
    let experiments = vec![
        experiment("bars", Shape::Bars, "phase", metric::THROUGHPUT),
        experiment("lines", Shape::Lines, "write_latency_ns", metric::MEAN),
        experiment("doubling", Shape::Lines, "keys", metric::THROUGHPUT),
        experiment("latency", Shape::Bars, "phase", metric::P99),
        experiment("counts", Shape::Bars, "phase", metric::FLUSHES),
        experiment("loads", Shape::Bars, "workload", metric::MEAN),
        experiment("never", Shape::Bars, "phase", metric::THROUGHPUT),
    ];
    let mut measurements = Vec::new();
    for round in 0..5 {
        for (number, system) in (1_u32..).zip(["isle", "lb", "lmdb-durable", "volatile"]) {
            let drift = 1.0 + 0.03 * f64::from((round * 7 + number) % 5);
            for phase in ["insert", "lookup", "scan", "update", "delete"] {
                measurements.push(measurement("bars", system, phase, round, &[(metric::THROUGHPUT, 1e6 * drift / f64::from(number), "op/s")]));
            }
            for step in 0..4_u32 {
                let mut at = measurement("lines", system, "insert", round, &[(metric::MEAN, drift * f64::from(500 + 300 * step * number), "ns")]);
                at.parameters.write_latency_ns = u64::from(100 * step);
                measurements.push(at);
                let mut at = measurement("doubling", system, "insert", round, &[(metric::THROUGHPUT, 2e6 * drift / f64::from(step + 1), "op/s")]);
                at.parameters.keys = 10_u64.pow(4 + step);
                measurements.push(at);
            }
            for (workload, mean) in [("70 % full", 700.0), ("ascending", 400.0)] {
                let mut at = measurement("loads", system, "insert", round, &[(metric::MEAN, mean * drift, "ns")]);
                at.workload = workload.into();
                measurements.push(at);
            }
            let latencies = [(metric::P50, 700.0 * drift, "ns"), (metric::P99, 2900.0 * drift, "ns"), (metric::P999, 21_000.0 * drift, "ns")];
            measurements.push(measurement("latency", system, "insert", round, &latencies));
        }
    }
    for (system, lines) in [("isle", 2.16), ("lb", 1.31)] {
        let counts = [(metric::FLUSHES, lines, "1/op"), (metric::LINES_FLUSHED, lines, "1/op"), (metric::FENCES, 2.0, "1/op")];
        measurements.push(measurement("counts", system, "insert", 0, &counts));
    }
    let plan = Plan { experiments, claims: vec!["A1".into()], rounds: 5, seed: 1 };
    let command = ["everleaf", "lab", "reproduce"].map(String::from).to_vec();
    let header = Header { format: FORMAT, version: "0.1.0".into(), command, started: 1_795_294_000, machine: Machine::default(), plan };
    let claims = vec![claim("A1", Verdict::Agree), claim("A2", Verdict::Differ), claim("A3", Verdict::CannotCompare), claim("E8", Verdict::NotYetPossible)];
    Results { header, memory: Vec::new(), measurements, skipped: Vec::new(), claims, end: Some(End { complete: true, seconds: 1234.0 }) }
}

/// `results` with every text and every number made hostile.
fn hostile() -> Results {
    let mut results = results();
    let header = &mut results.header;
    header.command = vec![HOSTILE.into()];
    header.started = u64::MAX;
    header.version = HOSTILE.into();
    header.machine = Machine {
        processor: HOSTILE.into(),
        cores: u32::MAX,
        caches: BTreeMap::from([(HOSTILE.into(), u64::MAX)]),
        memory_bytes: u64::MAX,
        kernel: HOSTILE.into(),
        page_bytes: 0,
        huge_pages: HOSTILE.into(),
        has_transactions: true,
        flush_instruction: HOSTILE.into(),
        raw_ns: BTreeMap::from([(HOSTILE.into(), -1e300)]),
    };
    for experiment in &mut header.plan.experiments {
        experiment.title = HOSTILE.repeat(20);
        experiment.id = format!("{HOSTILE}{}", experiment.id);
        experiment.baseline = Some(HOSTILE.into());
    }
    for (number, measurement) in results.measurements.iter_mut().enumerate() {
        measurement.experiment = format!("{HOSTILE}{}", measurement.experiment);
        for text in [&mut measurement.system, &mut measurement.phase, &mut measurement.durability, &mut measurement.parameters.domain] {
            text.push_str(HOSTILE);
        }
        measurement.parameters.keys = u64::MAX;
        for metric in measurement.metrics.values_mut() {
            metric.value = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, 5e-324, 1e18, 3.0][number % 8];
            metric.unit.push_str(if number % 3 == 0 { HOSTILE } else { "" });
        }
    }
    for claim in &mut results.claims {
        for text in [&mut claim.id, &mut claim.place, &mut claim.what, &mut claim.paper, &mut claim.ours, &mut claim.why] {
            *text = HOSTILE.into();
        }
    }
    results
}

/// Parses a picture, and checks every position in it. Returns its texts.
fn texts_of(picture: &str, width: f64) -> Vec<String> {
    let document = roxmltree::Document::parse(picture).unwrap_or_else(|error| panic!("{error}: {picture}"));
    let root = document.root_element();
    let frame: Vec<f64> = root.attribute("viewBox").unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
    assert!(frame[2] >= width && frame[3] > 20.0 && frame.iter().all(|number| number.is_finite()));
    let mut has = BTreeSet::new();
    for node in root.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        has.insert(name.to_owned());
        assert!(!["script", "image", "a", "foreignObject"].contains(&name), "{name} in a picture");
        for attribute in node.attributes() {
            let limit = match attribute.name() {
                "x" | "x1" | "x2" | "cx" => frame[2],
                "y" | "y1" | "y2" | "cy" => frame[3],
                "width" | "height" | "r" if name != "svg" => frame[2].max(frame[3]),
                "points" => {
                    for number in attribute.value().split([' ', ',']) {
                        let number: f64 = number.parse().unwrap();
                        assert!((-1.0..=frame[2].max(frame[3])).contains(&number), "{name} {attribute:?}");
                    }
                    continue;
                }
                other => {
                    assert!(!other.starts_with("on") && !attribute.value().contains("NaN") && !attribute.value().contains("inf"), "{attribute:?}");
                    continue;
                }
            };
            let number: f64 = attribute.value().parse().unwrap();
            assert!((-1.0..=limit + 1.0).contains(&number), "{name} has {attribute:?}, and the frame is {frame:?}");
        }
    }
    assert!(has.contains("title") && has.contains("desc"));
    document
        .descendants()
        .filter(|node| node.has_tag_name("text") || node.tag_name().name() == "text")
        .filter_map(|node| node.text().map(String::from))
        .collect()
}

/// The inner picture as a separate document.
fn standing(picture: &str) -> String {
    picture.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1)
}

fn find<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
    figures.iter().find(|figure| figure.name == name).unwrap_or_else(|| panic!("no figure {name}"))
}

#[test]
fn every_kind_of_figure_is_drawn_with_its_names_ticks_and_units() {
    let figures = gather::figures(&results());
    let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["bars", "lines", "doubling", "latency", "latency-latency", "counts", "counts-counts", "loads"]);
    let expected: [(&str, &[&str]); 6] = [
        ("loads", &["70 % full", "ascending", "isle", "742", "424"]),
        (
            "bars",
            &[
                "isle",
                "volatile",
                "lookup",
                "Everleaf",
                "other engines",
                "million operations a second (more is better)",
                "0",
                "1.06",
                "1.00\u{d7}",
                "0.51\u{d7}",
            ],
        ),
        (
            "lines",
            &["isle", "insert", "100", "300", "1000", "latency added to each line written back, ns", "mean time, nanoseconds an operation (less is better)"],
        ),
        ("doubling", &["10\u{202f}000", "10 M", "keys"]),
        ("latency-latency", &["median", "99\u{a0}%", "99.9\u{a0}%", "500\u{a0}ns", "2\u{a0}\u{b5}s", "22.3\u{a0}\u{b5}s"]),
        ("counts-counts", &["lines flushed", "fences", "2.16", "4.16"]),
    ];
    for (name, texts) in expected {
        let figure = find(&figures, name);
        let wide = texts_of(&svg(figure), WIDE);
        assert!(wide.contains(&figure.title));
        let narrow = texts_of(&standing(&inline(figure, NARROW, "x")), NARROW);
        for text in texts {
            assert!(wide.iter().any(|found| found == text), "{name} has no {text:?}: {wide:?}");
            assert!(narrow.iter().any(|found| found == text) || text.contains("(less is better)"), "{name} for a phone has no {text:?}: {narrow:?}");
        }
    }
}

#[test]
fn bars_are_as_long_as_their_values() {
    let figures = gather::figures(&results());
    let bars = find(&figures, "bars");
    let Chart::Rows(Form::Bars, rows) = &bars.chart else { panic!("no bars") };
    let picture = standing(&inline(bars, WIDE, "x"));
    let document = roxmltree::Document::parse(&picture).unwrap();
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
    // The first panel begins where its bars do; those of the key are squares.
    let drawn: Vec<(f64, f64)> =
        document.descendants().filter(|node| node.attribute("height") == Some("13")).map(|node| (number(&node, "x"), number(&node, "width"))).collect();
    let values: Vec<f64> = rows.panels.iter().flat_map(|panel| panel.rows.iter().map(|row| row.values[0].median)).collect();
    assert_eq!(drawn.len(), values.len());
    for panel in drawn.chunks(4).zip(values.chunks(4)) {
        for ((start, length), value) in panel.0.iter().zip(panel.1) {
            assert_eq!(*start, panel.0[0].0, "a bar does not begin at zero");
            assert!((length / panel.0[0].1 - value / panel.1[0]).abs() < 0.01, "{length} for {value}");
        }
    }
}

#[test]
fn hostile_text_and_numbers_stay_text_and_stay_inside() {
    let results = hostile();
    let figures = gather::figures(&results);
    assert!(!figures.is_empty());
    for figure in &figures {
        assert!(figure.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{}", figure.name);
        texts_of(&svg(figure), WIDE);
        texts_of(&standing(&inline(figure, NARROW, "x")), NARROW);
        assert!(png(figure).unwrap().starts_with(b"\x89PNG"));
    }
    let page = page::page(&results, &figures);
    assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains('\u{0}'));
    check_page(&page);
}

/// Checks that every element of the page is closed where it should be; HTML would tolerate errors.
fn check_page(page: &str) {
    let void = ["<meta charset=\"utf-8\">", "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"];
    let text = void.iter().fold(page.replacen("<!doctype html>", "", 1), |text, element| text.replacen(element, "", 1));
    let document = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "an id twice");
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        for attribute in node.attributes() {
            assert!(!["src", "onload", "onclick"].contains(&attribute.name()), "{attribute:?}");
            assert!(attribute.name() != "href" || attribute.value().starts_with('#'), "{attribute:?}");
            assert!(attribute.name() != "aria-labelledby" || attribute.value().split(' ').all(|id| ids.contains(&id)), "{attribute:?}");
        }
    }
    let css = document.descendants().find(|node| node.tag_name().name() == "style").and_then(|node| node.text().map(String::from)).unwrap();
    assert!(css.matches("url(").count() == css.matches("url(data:").count() && !css.contains("@import"));
}

#[test]
fn the_page_has_every_figure_every_number_every_claim_and_what_is_missing() {
    let results = results();
    let figures = gather::figures(&results);
    let page = page::page(&results, &figures);
    check_page(&page);
    for figure in &figures {
        assert!(page.contains(&figure.title) && page.matches(&format!("{}.csv", figure.name)).count() >= 1, "{}", figure.name);
    }
    for text in
        ["A1", "E8", "not yet possible", "What never is about", "everleaf lab reproduce", "2026-11-21", "each write, to memory (adr)", "prefers-color-scheme"]
    {
        assert!(page.contains(text), "no {text}");
    }
    assert!(!page.contains("cut short"));
    let skipped = Skipped {
        experiment: "bars".into(),
        system: "redis-memory".into(),
        workload: "scan".into(),
        parameters: Parameters::default(),
        why: "it has no scans".into(),
    };
    let cut = Results { end: None, skipped: vec![skipped], ..results };
    assert!(page::page(&cut, &figures).contains("redis-memory (bars): scan, because it has no scans"));
    assert!(page::page(&cut, &figures).contains("cut short"));
}

#[test]
fn data_beside_a_figure_are_the_medians_and_the_spread() {
    let figures = gather::figures(&results());
    let csv = find(&figures, "counts-counts").csv();
    assert_eq!(
        csv.lines().collect::<Vec<_>>(),
        [
            "what,system,measure,median (1/op),min (1/op),max (1/op),rounds",
            "insert,isle,lines flushed,2.16,2.16,2.16,1",
            "insert,isle,fences,2,2,2,1",
            "insert,lb,lines flushed,1.31,1.31,1.31,1",
            "insert,lb,fences,2,2,2,1",
        ]
    );
    let Chart::Lines(lines) = &find(&figures, "doubling").chart else { panic!("no lines") };
    assert!(lines.is_logarithmic);
    assert_eq!(lines.panels[0].series[0].points[0], (1e4, Spread { median: 2e6 * 1.06 / 1e6, min: 2.0, max: 2e6 * 1.12 / 1e6, rounds: 5 }));
}

#[test]
fn the_same_results_give_the_same_bytes() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let results = results();
    let written = [&one, &other].map(|directory| write(&results, directory.path()).unwrap());
    assert_eq!(written[0].figures, written[1].figures);
    let files = |directory: &tempfile::TempDir| -> BTreeMap<String, Vec<u8>> {
        let entries = [directory.path().to_owned(), directory.path().join("figures")].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        files.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())).collect()
    };
    let (one, other) = (files(&one), files(&other));
    assert_eq!(one.len(), 1 + 3 * written[0].figures);
    assert!(one == other);
}

#[test]
fn a_run_that_was_cut_short_anywhere_gives_a_report() {
    let whole = results();
    let mut text = Vec::new();
    Line::Header(Box::new(whole.header.clone())).write(&mut text).unwrap();
    let header = text.len();
    for measurement in whole.measurements.iter().take(12) {
        Line::Measurement(Box::new(measurement.clone())).write(&mut text).unwrap();
    }
    for length in (header..text.len()).step_by(97) {
        let results = Results::read(&text[..length]).unwrap();
        let figures = gather::figures(&results);
        check_page(&page::page(&results, &figures));
        figures.iter().for_each(|figure| drop(texts_of(&svg(figure), WIDE)));
    }
}
