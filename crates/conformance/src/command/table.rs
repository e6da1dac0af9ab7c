//! The table at the end, in Markdown, so that documentation can include it unchanged.

use super::watch::rate;
use crate::crash::{Outcome, Report, Score};
use crate::threads;
use indicatif::HumanCount;
use std::collections::BTreeSet;

/// What was run on a world.
#[derive(Default)]
pub(super) struct Row {
    pub(super) world: String,
    /// All sequences of up to this many operations were run.
    pub(super) operations: Option<usize>,
    /// Number of violations.
    pub(super) violations: u64,
    pub(super) report: Report,
}

impl Row {
    pub(super) fn new(world: String) -> Self {
        Self { world, ..Self::default() }
    }

    /// Adds another run of the world.
    pub(super) fn add(&mut self, report: &Report) {
        self.violations += u64::from(report.violation.is_some());
        self.report.took += report.took;
        self.report.add(report.clone());
    }
}

/// Prints `rows` and their sum.
pub(super) fn print(rows: Vec<Row>) {
    println!("\n| world | all sequences of | sequences | images | recovered and checked | in recoveries | second lives | violations | checked a minute |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut all = Row::new("all".to_owned());
    for row in rows {
        line(&row);
        all.report.took += row.report.took;
        all.violations += row.violations;
        all.report.add(row.report);
    }
    line(&all);
}

fn line(Row { world, operations, violations, report }: &Row) {
    let Report { sequences, images, checked, nested, second_lives, took, .. } = report;
    let operations = operations.map_or(String::new(), |count| format!("{count} operations"));
    let figures = [*sequences, *images, *checked, *nested, *second_lives, *violations, rate(*checked, *took)].map(grouped).join(" | ");
    println!("| {world} | {operations} | {figures} |");
}

/// Prints what was run on each index in threads, and the sum.
pub(super) fn print_schedules(rows: &[(String, threads::Report)]) {
    println!(
        "\n| | schedules | calls | steps | switches | images | recovered and checked | reads of what was not durable | suspicious | violations | a minute |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let (mut all, mut violations) = (threads::Report::default(), 0);
    for (name, report) in rows {
        schedules(name, report, report.violation.is_some().into());
        all.counts += report.counts;
        all.took += report.took;
        violations += u64::from(report.violation.is_some());
    }
    schedules("all", &all, violations);
}

fn schedules(name: &str, threads::Report { counts, took, .. }: &threads::Report, violations: u64) {
    let threads::Counts { schedules, operations, steps, switches, images, checked, dirty_reads, suspicions } = *counts;
    let figures = [schedules, operations, steps, switches, images, checked, dirty_reads, suspicions, violations, rate(schedules, *took)];
    println!("| {name} | {} |", figures.map(grouped).join(" | "));
}

/// Prints, for each world, how many of the mistakes that it reaches were found. A mistake found in one world counts as found.
pub(super) fn print_score(score: &Score) {
    println!("\n| world | mistakes that it comes by | found in it first | found | annotated | missed | score | images | checked a minute |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let worlds: BTreeSet<_> = score.mutants.iter().flat_map(|mutant| &mutant.worlds).collect();
    for world in worlds.into_iter().map(Some).chain([None]) {
        let of_world: Vec<_> = score.mutants.iter().filter(|mutant| world.is_none_or(|world| mutant.worlds.contains(world))).collect();
        let count = |wanted: &dyn Fn(&Outcome) -> bool| of_world.iter().filter(|mutant| wanted(&mutant.outcome)).count() as u64;
        let here = count(&|outcome| matches!(outcome, Outcome::Killed { world: first, .. } if world.is_none_or(|world| world == first)));
        let found = count(&|outcome| matches!(outcome, Outcome::Killed { .. }));
        let annotated = count(&|outcome| matches!(outcome, Outcome::Equivalent(_)));
        let total = of_world.len() as u64;
        let (images, took) = (of_world.iter().map(|mutant| mutant.images).sum(), of_world.iter().map(|mutant| mutant.took).sum());
        let [total_said, here, found_said, annotated_said, missed, images_said, rate] =
            [total, here, found, annotated, total - found - annotated, images, rate(images, took)].map(grouped);
        let score = 100.0 * found as f64 / (total - annotated).max(1) as f64;
        let world = world.map_or("all", |world| world);
        println!("| {world} | {total_said} | {here} | {found_said} | {annotated_said} | {missed} | {score:.1} % | {images_said} | {rate} |");
    }
}

/// Formats a number with its digits in groups of three.
fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}
