//! The page: one HTML file with everything in it, which needs no other file and no script.
//!
//! It contains every figure twice, laid out for a screen and for a phone; the style sheet shows one of them. Tables hold the same numbers, for readers who do
//! not see the figures or want exact values. A print has a light background and all tables.

use super::figure::Figure;
use super::font::{BOLD, REGULAR};
use super::picture::{NARROW, WIDE, inline};
use super::scale::{plain, short};
use super::style;
use super::svg::escape;
use crate::result::{Claim, Header, Machine, Results, Verdict};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use time::UtcDateTime;

const VERDICTS: [Verdict; 4] = [Verdict::Agree, Verdict::Differ, Verdict::CannotCompare, Verdict::NotYetPossible];

/// The page of all results.
pub(super) fn page(results: &Results, figures: &[Figure]) -> String {
    let mut html = String::with_capacity(1 << 20);
    write_page(&mut html, results, figures).expect("a string takes everything");
    html
}

fn write_page(html: &mut String, results: &Results, figures: &[Figure]) -> std::fmt::Result {
    let header = &results.header;
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Everleaf lab: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
        escape(&date(header.started)),
        css(),
    )?;
    write_head(html, results)?;
    write_contents(html, results, figures)?;
    write_claims(html, &results.claims)?;
    if !figures.is_empty() {
        html.push_str("<h2 id=\"figures\">Figures</h2>\n");
        for (number, figure) in (1..).zip(figures) {
            write_figure(html, number, figure)?;
        }
    }
    write_missing(html, results)?;
    write_systems(html, results)?;
    write_machine(html, &header.machine)?;
    write_run(html, header)?;
    write!(
        html,
        "<footer>Written by everleaf {}, from {} measurements.</footer>\n</main>\n</body>\n</html>\n",
        escape(&header.version),
        results.measurements.len()
    )
}

fn css() -> String {
    let face = |bytes: &[u8], weight: u32| {
        let data = STANDARD.encode(bytes);
        format!("@font-face{{font-family:Inter;font-weight:{weight};src:url(data:font/otf;base64,{data}) format(\"opentype\")}}\n")
    };
    // A print is always light.
    let dark = "--paper:#14171a;--ink:#eceff1;--muted:#a4adb5;--rule:#2b3136;--soft:#1c2024;--accent:#5fd3ac;--differ:#f2a069";
    format!(
        "{}{}{}\n{}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}{}}}\n",
        face(REGULAR, 400),
        face(BOLD, 600),
        include_str!("page.css"),
        style::light(),
        style::dark(),
    )
}

fn write_head(html: &mut String, results: &Results) -> std::fmt::Result {
    let header = &results.header;
    let systems = results.measurements.iter().map(|measurement| &measurement.system).collect::<BTreeSet<_>>().len();
    let lasted = results.end.as_ref().map_or(String::new(), |end| format!(", in {}", duration(end.seconds)));
    writeln!(
        html,
        "<h1>Everleaf lab</h1>\n<p class=\"lead\">{} \u{b7} {} \u{b7} {} measurements of {systems} systems{lasted}</p>",
        escape(&date(header.started)),
        escape(&machine_name(&header.machine)),
        results.measurements.len(),
    )?;
    if !results.end.as_ref().is_some_and(|end| end.complete) {
        html.push_str("<p class=\"notice\">This run was cut short. What stands here was measured; what is missing is listed below.</p>\n");
    }
    Ok(())
}

fn write_contents(html: &mut String, results: &Results, figures: &[Figure]) -> std::fmt::Result {
    if !results.claims.is_empty() {
        html.push_str("<ul class=\"counts\">\n");
        for verdict in VERDICTS {
            let count = results.claims.iter().filter(|claim| claim.verdict == verdict).count();
            writeln!(html, "<li><b class=\"{}\">{count}</b><span>{}</span></li>", class(verdict), verdict_words(verdict, count))?;
        }
        html.push_str("</ul>\n");
    }
    if figures.len() > 1 {
        html.push_str("<nav aria-label=\"Figures\"><ol>\n");
        for (number, figure) in (1..).zip(figures) {
            writeln!(html, "<li><a href=\"#figure-{number}\">{}</a></li>", escape(&figure.title))?;
        }
        html.push_str("</ol></nav>\n");
    }
    Ok(())
}

fn write_claims(html: &mut String, claims: &[Claim]) -> std::fmt::Result {
    if claims.is_empty() {
        return Ok(());
    }
    html.push_str(
        "<h2 id=\"claims\">What the papers say, and what came out here</h2>\n\
         <p>Medians of the rounds; in brackets where the true median is, but for one case in 16 at most: of five rounds from the smallest to the largest, \
         of nine from the second smallest to the second largest. A claim agrees if all of that is where the paper has it, and differs if all of it is \
         beyond. Else the run does not tell, and the claim cannot be compared. Reasons are those of the machine that Everleaf is developed on.</p>\n\
         <div class=\"broad\"><table class=\"claims\">\n<thead><tr>",
    );
    for name in ["Claim", "What", "Paper", "Here", "Why"] {
        write!(html, "<th scope=\"col\">{name}</th>")?;
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for claim in claims {
        let [id, place, what, paper, ours, why] = [&claim.id, &claim.place, &claim.what, &claim.paper, &claim.ours, &claim.why].map(|text| escape(text));
        writeln!(
            html,
            "<tr><th scope=\"row\"><span class=\"id\">{id}</span><span class=\"place\">{place}</span><span class=\"verdict {}\">{} {}</span></th>\
             <td>{what}</td><td data-name=\"Paper\">{paper}</td><td data-name=\"Here\">{ours}</td><td class=\"why\">{why}</td></tr>",
            class(claim.verdict),
            sign(claim.verdict),
            claim.verdict.name(),
        )?;
    }
    html.push_str("</tbody></table></div>\n");
    Ok(())
}

fn write_figure(html: &mut String, number: usize, figure: &Figure) -> std::fmt::Result {
    writeln!(html, "<figure id=\"figure-{number}\">\n<h3>{number}. {}</h3>", escape(&figure.title))?;
    for (name, width) in [("wide", WIDE), ("narrow", NARROW)] {
        let svg = inline(figure, width, &format!("f{number}-{name}"));
        html.push_str(&svg.replacen("<svg ", &format!("<svg class=\"{name}\" "), 1));
    }
    writeln!(html, "<figcaption>{} Files: {name}.svg, {name}.png, {name}.csv.</figcaption>", escape(&figure.note), name = escape(&figure.name))?;
    let table = figure.table();
    let unit = if table.unit.is_empty() { String::new() } else { format!(", {}", escape(&table.unit)) };
    html.push_str("<details><summary>The numbers</summary><div class=\"wrap\"><table>\n<thead><tr>");
    for column in &table.columns {
        write!(html, "<th scope=\"col\">{}</th>", escape(column))?;
    }
    write!(html, "<th scope=\"col\" class=\"number\">median{unit}</th>")?;
    for column in ["min", "max", "rounds"] {
        write!(html, "<th scope=\"col\" class=\"number\">{column}</th>")?;
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for ([what, system, part], spread) in &table.cells {
        write!(html, "<tr><td>{}</td><th scope=\"row\">{}</th><td>{}</td>", escape(what), escape(system), escape(part))?;
        for value in [spread.median, spread.min, spread.max] {
            write!(html, "<td class=\"number\">{}</td>", short(value))?;
        }
        writeln!(html, "<td class=\"number\">{}</td></tr>", spread.rounds)?;
    }
    html.push_str("</tbody></table></div></details>\n</figure>\n");
    Ok(())
}

fn write_missing(html: &mut String, results: &Results) -> std::fmt::Result {
    let missing = super::gather::missing(results);
    let skipped: BTreeSet<[&str; 4]> =
        results.skipped.iter().map(|skipped| [&skipped.experiment, &skipped.system, &skipped.workload, &skipped.why].map(String::as_str)).collect();
    if missing.is_empty() && skipped.is_empty() {
        return Ok(());
    }
    html.push_str("<h2>Not measured</h2>\n<ul>\n");
    for experiment in missing {
        writeln!(html, "<li>{} ({})</li>", escape(&experiment.title), escape(&experiment.id))?;
    }
    for [experiment, system, workload, why] in skipped {
        writeln!(html, "<li>{} ({}): {}, because {}</li>", escape(system), escape(experiment), escape(workload), escape(why))?;
    }
    html.push_str("</ul>\n");
    Ok(())
}

/// When a write of each system counts as done: without that, systems cannot be compared.
fn write_systems(html: &mut String, results: &Results) -> std::fmt::Result {
    let mut systems: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for measurement in &results.measurements {
        systems.entry(&measurement.system).or_default().insert(&measurement.durability);
    }
    if systems.is_empty() {
        return Ok(());
    }
    html.push_str(
        "<h2>When a write counts as done</h2>\n<table>\n<thead><tr><th scope=\"col\">System</th><th scope=\"col\">Durable are</th></tr></thead>\n<tbody>\n",
    );
    for (system, durabilities) in systems {
        let words: Vec<String> = durabilities.into_iter().map(escape).collect();
        writeln!(html, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(system), words.join("; "))?;
    }
    html.push_str("</tbody></table>\n");
    Ok(())
}

fn write_machine(html: &mut String, machine: &Machine) -> std::fmt::Result {
    html.push_str("<h2>The machine</h2>\n<table>\n<tbody>\n");
    let mut row = |name: &str, value: String| writeln!(html, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(&value));
    row("Processor", machine_name(machine))?;
    for (name, size) in &machine.caches {
        row(&format!("Cache {name}"), bytes(*size))?;
    }
    row("Memory", bytes(machine.memory_bytes))?;
    row("Kernel", machine.kernel.clone())?;
    row("Pages", format!("{}; huge pages: {}", bytes(machine.page_bytes), machine.huge_pages))?;
    row("Lines are written back by", machine.flush_instruction.clone())?;
    row("Transactions (RTM)", if machine.has_transactions { "yes" } else { "none" }.into())?;
    for (name, cost) in &machine.raw_ns {
        row(&format!("Cost of: {name}"), format!("{}\u{a0}ns", short(*cost)))?;
    }
    html.push_str("</tbody></table>\n");
    Ok(())
}

fn write_run(html: &mut String, header: &Header) -> std::fmt::Result {
    writeln!(
        html,
        "<h2>The run</h2>\n<p>Everleaf {}, seed {}, {} rounds. The systems of an experiment take turns in every round; \
         only figures of one run are compared.</p>\n\
         <pre>{}</pre>",
        escape(&header.version),
        header.plan.seed,
        header.plan.rounds,
        escape(&header.command.join(" ")),
    )
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Agree => "agree",
        Verdict::Differ => "differ",
        Verdict::CannotCompare => "cannot-compare",
        Verdict::NotYetPossible => "not-yet-possible",
    }
}

/// Distinguishes verdicts without colours.
fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Agree => "=",
        Verdict::Differ => "\u{2260}",
        Verdict::CannotCompare => "~",
        Verdict::NotYetPossible => "\u{2013}",
    }
}

fn verdict_words(verdict: Verdict, count: usize) -> &'static str {
    match (verdict, count) {
        (Verdict::Agree, 1) => "claim agrees",
        (Verdict::Agree, _) => "claims agree",
        (Verdict::Differ, 1) => "differs",
        (Verdict::Differ, _) => "differ",
        (Verdict::CannotCompare, _) => "cannot be compared",
        (Verdict::NotYetPossible, _) => "not yet possible",
    }
}

fn machine_name(machine: &Machine) -> String {
    format!("{}, {} {}", machine.processor, machine.cores, if machine.cores == 1 { "core" } else { "cores" })
}

fn bytes(size: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (size.checked_ilog2().unwrap_or(0) as usize / 10).min(units.len() - 1);
    format!("{}\u{a0}{}", plain(size as f64 / (1_u64 << (10 * step)) as f64), units[step])
}

fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 5400.0 => format!("{:.1} hours", seconds / 3600.0),
        seconds if seconds >= 90.0 => format!("{:.0} minutes", seconds / 60.0),
        seconds => format!("{seconds:.0} seconds"),
    }
}

/// The date, in UTC.
fn date(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| UtcDateTime::from_unix_timestamp(seconds).ok());
    moment.map_or_else(|| "on an unknown day".into(), |moment| moment.date().to_string())
}
