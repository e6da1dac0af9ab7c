//! What the papers say, and whether it holds here.
//!
//! Every quantitative claim of the papers is a row of `table.rs`, with what it takes to judge it: the systems it speaks of, the experiments, and a rule. A row
//! whose systems are not in the registry is listed as not yet possible, by their names; none is left out.
//!
//! Counts do not depend on the machine: they agree if they are within a tenth. Times do, and the memory here is DRAM: ratios agree if they are off what the
//! paper found by no more than a quarter of it, and no more than half of what that is off 1. Where the rounds of a run do not tell, nothing is said: see
//! `evidence.rs`.

mod evidence;
mod experiments;
mod rules;
mod table;

pub use experiments::{PAPERS, Scale, only, plan};

use crate::Error;
use crate::result::{Claim, Results, Verdict};
use evidence::{Evidence, Judgement, What};

/// How far a count may be off.
const COUNT_TOLERANCE: f64 = 0.1;
/// How far a ratio of times may be off.
const TIME_TOLERANCE: f64 = 0.25;

/// A claim of a paper.
struct Row {
    /// The letter of its paper, and a number.
    id: &'static str,
    /// Where the paper says it.
    place: &'static str,
    /// What it is about.
    what: &'static str,
    /// The paper's figure.
    figure: &'static str,
    /// Systems that it cannot be judged without, by their names in the registry.
    needs: &'static [&'static str],
    rule: Rule,
    /// Why it comes out as it does, or why it cannot be judged.
    why: &'static str,
}

/// How a claim is judged.
enum Rule {
    /// By one metric: its ratio to that of `base`, for each other system, should lie in a range.
    Ratios { what: What<'static>, base: &'static str, of: Ranges<'static>, tolerance: f64 },
    /// By one metric, whose value for each system should lie in a range.
    Values { what: What<'static>, of: Ranges<'static>, tolerance: f64 },
    /// By something of its own.
    By(&'static [&'static str], fn(&Evidence<'_>) -> Option<Judgement>),
    /// It follows from the layouts, whatever the machine.
    Arithmetic(fn() -> Judgement),
    /// It is not judged, for the reason given.
    Not(Verdict),
}

/// Systems, and from where to where the paper has them.
type Ranges<'a> = &'a [(&'a str, f64, f64)];

impl Row {
    /// Its paper, by the name that the command takes.
    fn paper(&self) -> &'static str {
        PAPERS[usize::from(self.id.as_bytes()[0] - b'A')]
    }

    /// The experiments that it is judged by.
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

    /// What it is about that no experiment it is judged by had to measure, as in files from before that was there.
    fn unplanned(&self, evidence: &Evidence<'_>) -> String {
        let experiments = self.experiments();
        // A store or a server on an index has that index measured.
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

    /// What comes of it where all that it needs is there; `None` if it was not measured.
    fn judge_present(&self, evidence: &Evidence<'_>) -> Option<Judgement> {
        let judged = match &self.rule {
            Rule::Ratios { what, base, of, tolerance } => Judgement::of(&evidence.ratios(*what, base, of, *tolerance)?),
            Rule::Values { what, of, tolerance } => Judgement::of(&evidence.values(*what, of, *tolerance)?),
            Rule::By(_, judge) => judge(evidence)?,
            Rule::Arithmetic(judge) => judge(),
            Rule::Not(verdict) => return Some(Judgement { ours: String::new(), verdict: *verdict, why: String::new() }),
        };
        // None of its parts was to be measured.
        Some(judged).filter(|judged| !judged.ours.is_empty())
    }
}

/// Whether there is such a system: by its name, or a store or a server on an index that there is.
fn is_there(name: &str, systems: &[String]) -> bool {
    systems.iter().any(|system| system == index_of(name))
}

/// The index of a store or a server, whose name it stands behind; any other name as it is.
fn index_of(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// Judges the claims that the plan of `results` names, by what was measured; `systems` are the names of those that there are.
///
/// # Errors
/// An id that no claim has.
pub fn judge(results: &Results, systems: &[String]) -> Result<Vec<Claim>, Error> {
    let evidence = Evidence(results);
    results.header.plan.claims.iter().map(|id| Ok(row(id)?.judge(&evidence, systems))).collect()
}

/// Whether there is a claim of each of these ids.
///
/// # Errors
/// [`Error::Usage`], which tells one that no claim has.
pub(crate) fn check(ids: &[String]) -> Result<(), Error> {
    ids.iter().try_for_each(|id| row(id).map(drop))
}

fn row(id: &str) -> Result<&'static Row, Error> {
    table::ROWS.iter().find(|row| row.id == id).ok_or_else(|| Error::Usage(format!("no claim has the id {id:?}")))
}

/// Judges the claims of a file again, by the rules of this version and by all that the file has, whether or not its run came to its end.
///
/// # Errors
/// As [`judge`].
pub fn judge_again(results: &mut Results) -> Result<(), Error> {
    let systems = crate::names(&crate::systems());
    results.claims = judge(results, &systems)?;
    Ok(())
}

/// Ids, papers, and what they are about.
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

    /// Two rows that were judged gave nothing but a definition, and two nothing at all.
    #[test]
    fn what_is_judged_is_explained() {
        for row in table::ROWS {
            let is_judged = !matches!(row.rule, Rule::Not(Verdict::NotYetPossible));
            assert!(!is_judged || row.why.len() >= 40 || row.why.starts_with("As "), "{}: {:?} explains nothing", row.id, row.why);
        }
    }

    /// To judge three claims by counts of many keys, all times of the paper had to be measured with as many.
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
            // By a range of one metric; by nothing but the layout; by one experiment of its paper; not at all, by nature and for want of a machine.
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
