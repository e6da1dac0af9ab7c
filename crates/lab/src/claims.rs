//! The claims of the papers, and whether they hold here.
//!
//! Every quantitative claim of the papers is a row of `table.rs`, with what is needed to judge it: the systems it is about, the experiments, and a rule. A row
//! whose systems are not in the registry is listed as not yet possible, with their names; none is left out.
//!
//! Counts do not depend on the machine: they agree if they are within a tenth. Times do, and the memory here is DRAM: ratios agree if they differ from the
//! paper's by at most a quarter of it, and by at most half of its distance from 1. Where the rounds of a run are inconclusive, the claim is not judged: see
//! `evidence.rs`.

mod evidence;
mod experiments;
mod rules;
mod table;

pub use experiments::{PAPERS, Scale, only, plan};

use crate::Error;
use crate::result::{Claim, Results, Verdict};
use evidence::{Evidence, Judgement, What};

/// Tolerance of a count.
const COUNT_TOLERANCE: f64 = 0.1;
/// Tolerance of a ratio of times.
const TIME_TOLERANCE: f64 = 0.25;

/// A claim of a paper.
struct Row {
    /// The letter of its paper, and a number.
    id: &'static str,
    /// Place in the paper.
    place: &'static str,
    /// Its subject.
    what: &'static str,
    /// The paper's figure.
    figure: &'static str,
    /// Systems that are needed to judge it, by their names in the registry.
    needs: &'static [&'static str],
    rule: Rule,
    /// Explains the result, or why it cannot be judged.
    why: &'static str,
}

/// How a claim is judged.
enum Rule {
    /// By one metric: its ratio to that of `base` should lie in a range, for each other system.
    Ratios { what: What<'static>, base: &'static str, of: Ranges<'static>, tolerance: f64 },
    /// By one metric: its value should lie in a range, for each system.
    Values { what: What<'static>, of: Ranges<'static>, tolerance: f64 },
    /// By a rule of its own.
    By(&'static [&'static str], fn(&Evidence<'_>) -> Option<Judgement>),
    /// It follows from the layouts, on any machine.
    Arithmetic(fn() -> Judgement),
    /// It is not judged, for the reason given.
    Not(Verdict),
}

/// Systems, each with the paper's range.
type Ranges<'a> = &'a [(&'a str, f64, f64)];

impl Row {
    /// Its paper, by the name used on the command line.
    fn paper(&self) -> &'static str {
        PAPERS[usize::from(self.id.as_bytes()[0] - b'A')]
    }

    /// The experiments by which it is judged.
    fn experiments(&self) -> Vec<&'static str> {
        match self.rule {
            Rule::Ratios { what: [experiment, ..], .. } | Rule::Values { what: [experiment, ..], .. } => vec![experiment],
            Rule::By(experiments, _) => experiments.to_vec(),
            Rule::Arithmetic(_) | Rule::Not(_) => Vec::new(),
        }
    }

    fn judge(&self, evidence: &Evidence<'_>, systems: &[String]) -> Claim {
        let missing: Vec<&str> = self.needs.iter().copied().filter(|name| !is_there(name, systems)).collect();
        let (ours, verdict, why) = if missing.is_empty() {
            match self.judge_present(evidence) {
                Some(Judgement { ours, verdict, why }) => (ours, verdict, format!("{} {why}{}", self.why, self.unplanned(evidence)).trim().to_owned()),
                None => (String::new(), Verdict::CannotCompare, self.unmeasured(evidence)),
            }
        } else {
            (String::new(), Verdict::NotYetPossible, format!("missing: {}. {}", missing.join(", "), self.why).trim().to_owned())
        };
        let experiments = self.experiments().into_iter().map(Into::into).collect();
        let (id, place, what, paper) = (self.id.into(), self.place.into(), self.what.into(), self.figure.into());
        Claim { id, place, what, paper, ours, verdict, why, experiments }
    }

    /// The needed systems that none of its experiments had to measure, as in files from before they existed.
    fn unplanned(&self, evidence: &Evidence<'_>) -> String {
        let experiments = self.experiments();
        // A store or a server on an index counts as that index.
        let is_planned =
            |name: &str| experiments.is_empty() || experiments.iter().any(|id| evidence.planned(id).any(|planned| index_of(planned) == index_of(name)));
        let unplanned: Vec<&str> = self.needs.iter().copied().filter(|name| !is_planned(name)).collect();
        if unplanned.is_empty() { String::new() } else { format!(" Not measured in this run: {}.", unplanned.join(", ")) }
    }

    /// Why it was not measured.
    fn unmeasured(&self, evidence: &Evidence<'_>) -> String {
        match evidence.0.skipped.iter().find(|skipped| self.experiments().contains(&skipped.experiment.as_str())) {
            Some(skipped) => format!("{} was not measured: {}.", skipped.system, skipped.why),
            None => "It was not measured: the run was stopped before, or asked for something else.".into(),
        }
    }

    /// The judgement if all systems needed are present; `None` if it was not measured.
    fn judge_present(&self, evidence: &Evidence<'_>) -> Option<Judgement> {
        let judged = match &self.rule {
            Rule::Ratios { what, base, of, tolerance } => Judgement::of(&evidence.ratios(*what, base, of, *tolerance)?),
            Rule::Values { what, of, tolerance } => Judgement::of(&evidence.values(*what, of, *tolerance)?),
            Rule::By(_, judge) => judge(evidence)?,
            Rule::Arithmetic(judge) => judge(),
            Rule::Not(verdict) => return Some(Judgement { ours: String::new(), verdict: *verdict, why: String::new() }),
        };
        // None of its parts was planned.
        Some(judged).filter(|judged| !judged.ours.is_empty())
    }
}

/// Whether a system exists: by its name, or as a store or a server on an existing index.
fn is_there(name: &str, systems: &[String]) -> bool {
    systems.iter().any(|system| system == index_of(name))
}

/// The index in the name of a store or a server; any other name unchanged.
fn index_of(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// Judges the claims in the plan of `results` by the measurements; `systems` are the names of the existing systems.
///
/// # Errors
/// An unknown claim id.
pub fn judge(results: &Results, systems: &[String]) -> Result<Vec<Claim>, Error> {
    let evidence = Evidence(results);
    results.header.plan.claims.iter().map(|id| Ok(row(id)?.judge(&evidence, systems))).collect()
}

/// Checks that all these claim ids exist.
///
/// # Errors
/// [`Error::Usage`], which names an unknown one.
pub(crate) fn check(ids: &[String]) -> Result<(), Error> {
    ids.iter().try_for_each(|id| row(id).map(drop))
}

fn row(id: &str) -> Result<&'static Row, Error> {
    table::ROWS.iter().find(|row| row.id == id).ok_or_else(|| Error::Usage(format!("no claim has the id {id:?}")))
}

/// Judges the claims of a file again, by the rules of this version and by all measurements in the file, whether or not its run was complete.
///
/// # Errors
/// As [`judge`].
pub fn judge_again(results: &mut Results) -> Result<(), Error> {
    let systems = crate::names(&crate::systems());
    results.claims = judge(results, &systems)?;
    Ok(())
}

/// Ids, papers, and subjects.
pub fn list() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    table::ROWS.iter().map(|row| (row.id, row.paper(), row.what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use std::collections::BTreeSet;

    #[test]
    fn every_claim_stands_in_the_table_once() {
        let ids: Vec<&str> = list().map(|(id, ..)| id).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an id twice");
        for (letter, count) in [("A", 13), ("B", 21), ("C", 6), ("D", 30), ("E", 15)] {
            for number in 1..=count {
                assert!(ids.contains(&format!("{letter}{number}").as_str()), "{letter}{number} is missing");
            }
        }
        assert_eq!(ids.len(), 13 + 21 + 6 + 30 + 15);
    }

    /// Two judged rows explained nothing but a definition, and two nothing at all.
    #[test]
    fn what_is_judged_is_explained() {
        for row in table::ROWS {
            let is_judged = !matches!(row.rule, Rule::Not(Verdict::NotYetPossible));
            assert!(!is_judged || row.why.len() >= 40 || row.why.starts_with("As "), "{}: {:?} explains nothing", row.id, row.why);
        }
    }

    /// To judge three claims by counts of many keys, all times of the paper had to be measured with as many keys.
    #[test]
    fn claims_that_are_asked_for_alone_are_measured_alone() {
        let systems = crate::names(&crate::systems());
        let of = |paper: &str, ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            let Plan { experiments, claims, .. } = only(plan(paper, Scale::TINY, &systems, 1, 1)?, &ids, &systems)?;
            Ok::<_, Error>((experiments.into_iter().map(|experiment| experiment.id).collect::<Vec<_>>(), claims))
        };
        for (paper, ids, experiments) in [
            ("nv", ["D21", "D22", "D23"].as_slice(), ["nv-counts"].as_slice()),
            ("nv", &["D24"], &["nv-reopen"]),
            // By a range of one metric; by the layout alone; by one experiment of its paper; not at all, by nature and for want of a machine.
            ("all", &["A4", "B3"], &["isle-counts"]),
            ("all", &["E14"], &["pftree-reopen"]),
            ("all", &["D10", "D30", "E15"], &[]),
        ] {
            let (found, claims) = of(paper, ids).unwrap();
            assert!(found == experiments && claims == ids, "{ids:?}: {found:?}, {claims:?}");
        }
        for (paper, id) in [("nv", "A1"), ("nv", "D31"), ("all", "")] {
            let refused = of(paper, &["D1", id]).unwrap_err().to_string();
            assert!(refused.contains(&format!("the id {id};")) && refused.contains("D1, D2, D3"), "{refused}");
        }
    }

    #[test]
    fn every_claim_has_its_experiments_in_the_plan_of_its_paper() {
        let systems = crate::names(&crate::systems());
        for row in table::ROWS {
            assert!(
                !row.figure.is_empty() && !row.place.is_empty() && (!row.why.is_empty() || !row.needs.is_empty() || !row.experiments().is_empty()),
                "{}",
                row.id
            );
            let plan = plan(row.paper(), Scale::TINY, &systems, 1, 1).unwrap();
            assert!(plan.claims.iter().any(|id| id == row.id));
            if row.needs.iter().all(|name| is_there(name, &systems)) {
                for id in row.experiments() {
                    assert!(plan.experiments.iter().any(|experiment| experiment.id == id), "{} needs {id}", row.id);
                }
            }
        }
    }
}
