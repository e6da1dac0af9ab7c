//! What was measured, as the rules of claims ask for it, and what comes of it.
//!
//! A figure is a median, and how far the rounds in the middle lie apart: all but the quarter of them that is least and the quarter that is largest. A ratio of
//! two systems is told with its rounds, too, each of which has measured both. A claim is judged by them as well: if some of them lie where they should and some
//! do not, then it was not measured whether it holds, and nothing is said about it. Of a ratio it is asked on which side of 1 it lies: one that is farther off
//! than the paper's by more or by less, from round to round, is off all the same.

use super::Ranges;
use crate::Samples;
use crate::result::{Measurement, Results, Verdict};
use std::collections::BTreeMap;

/// What a claim is judged by.
pub(super) struct Evidence<'a>(pub(super) &'a Results);

/// A figure: of the rounds the median, and the least and the largest in the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    low: f64,
    high: f64,
}

/// Where a figure should lie: between two limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wanted {
    low: f64,
    high: f64,
    /// Whether it is a ratio, with a side of 1 on which it should be.
    by_side: bool,
}

/// What a part of a claim comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Holds,
    Fails,
    /// Some rounds come to the one, some to the other.
    Noise,
}

/// A part of a claim: what it is about, what was found.
pub(super) struct Part {
    name: String,
    ours: String,
    finding: Finding,
}

/// What came of a claim.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) ours: String,
    pub(super) verdict: Verdict,
    pub(super) why: String,
}

impl Figure {
    /// Of something that has no rounds.
    #[cfg(test)]
    fn new(median: f64, low: f64, high: f64) -> Self {
        Self { median, low, high }
    }

    fn of(median: f64, rounds: impl Iterator<Item = f64>) -> Option<Self> {
        let mut rounds: Vec<f64> = rounds.collect();
        rounds.sort_by(f64::total_cmp);
        let middle = &rounds[rounds.len() / 4..rounds.len() - rounds.len() / 4];
        // The ratio of two medians need not be that of any round.
        let (low, high) = middle.iter().fold((median, median), |(low, high), value| (low.min(*value), high.max(*value)));
        median.is_finite().then_some(Self { median, low, high })
    }

    /// In words, with so many digits; `what` stands between the median and the rounds.
    pub(super) fn show(self, digits: usize, what: &str) -> String {
        let Self { median, low, high } = self;
        let [median, low, high] = [median, low, high].map(|number| format!("{number:.digits$}"));
        if low == high { format!("{median}{what}") } else { format!("{median}{what} ({low} to {high})") }
    }

    /// Whether it lies where it should.
    pub(super) fn judge(self, wanted: Wanted) -> Finding {
        let Self { median, low, high } = self;
        let (all, any) = (wanted.contains(low) && wanted.contains(high), low < wanted.high && high > wanted.low);
        let is_open = any && !all && (!wanted.by_side || low <= 1.0 && high >= 1.0);
        match wanted.contains(median) {
            _ if is_open => Finding::Noise,
            true => Finding::Holds,
            false => Finding::Fails,
        }
    }
}

impl Wanted {
    /// On the upper side of 1.
    pub(super) const ABOVE: Self = Self::between(1.0, f64::INFINITY);
    /// On the lower side of 1.
    pub(super) const BELOW: Self = Self::between(0.0, 1.0);

    pub(super) const fn between(low: f64, high: f64) -> Self {
        Self { low, high, by_side: false }
    }

    /// As far off the paper's range as is tolerated.
    pub(super) fn near(low: f64, high: f64, tolerance: f64) -> Self {
        Self::between(low * (1.0 - tolerance), high * (1.0 + tolerance))
    }

    /// The same for a ratio: and on the same side of 1.
    pub(super) fn ratio(low: f64, high: f64, tolerance: f64) -> Self {
        let near = Self::near(low, high, tolerance);
        let (from, to) = (if low > 1.0 { near.low.max(1.0) } else { near.low }, if high < 1.0 { near.high.min(1.0) } else { near.high });
        // What should lie about 1 has no side that it could be on.
        Self { low: from, high: to, by_side: low > 1.0 || high < 1.0 }
    }

    fn contains(self, value: f64) -> bool {
        self.low < value && value < self.high
    }
}

impl Part {
    pub(super) fn new(name: impl Into<String>, ours: impl Into<String>, finding: Finding) -> Self {
        Self { name: name.into(), ours: ours.into(), finding }
    }

    /// A ratio to `base`, and where it should lie.
    pub(super) fn ratio(name: impl Into<String>, base: &str, figure: Figure, wanted: Wanted) -> Self {
        let name = name.into();
        let ours = format!("{name} {}", figure.show(2, &format!(" x {base}")));
        Self::new(name, ours, figure.judge(wanted))
    }
}

impl Judgement {
    pub(super) fn new(agree: bool, ours: impl Into<String>) -> Self {
        Self { ours: ours.into(), verdict: if agree { Verdict::Agree } else { Verdict::Differ }, why: String::new() }
    }

    /// A claim differs if a part of it does, and agrees if all parts do.
    pub(super) fn of(parts: &[Part]) -> Self {
        let names = |finding: Finding| parts.iter().filter(|part| part.finding == finding).map(|part| part.name.as_str()).collect::<Vec<_>>();
        let (fails, noise) = (names(Finding::Fails), names(Finding::Noise));
        let verdict = match (fails.is_empty(), noise.is_empty()) {
            (false, _) => Verdict::Differ,
            (true, false) => Verdict::CannotCompare,
            (true, true) => Verdict::Agree,
        };
        let mut why = Vec::new();
        if !fails.is_empty() && fails.len() < parts.len() {
            why.push(format!("Off: {}.", fails.join(", ")));
        }
        if !noise.is_empty() {
            why.push(format!("Within the noise: {}.", noise.join(", ")));
        }
        let ours = parts.iter().map(|part| part.ours.as_str()).collect::<Vec<_>>().join(", ");
        Self { ours, verdict, why: why.join(" ") }
    }

    /// Measured, but by something too different to be called one or the other.
    pub(super) fn cannot_compare(self) -> Self {
        Self { verdict: Verdict::CannotCompare, ..self }
    }
}

/// Experiment, workload (any if empty), phase, metric.
pub(super) type What<'w> = [&'w str; 4];

/// A metric, by round.
pub(super) struct Rounds(BTreeMap<u32, f64>);

impl Rounds {
    pub(super) fn figure(&self) -> Option<Figure> {
        self.in_units_of(1.0)
    }

    /// How many times the other one this is: of the medians, as in the figures of the report, and round by round.
    pub(super) fn by(&self, other: &Self) -> Option<Figure> {
        let rounds = self.0.iter().filter_map(|(round, value)| Some(value / other.0.get(round)?));
        Figure::of(self.median() / other.median(), rounds)
    }

    /// In another unit.
    pub(super) fn in_units_of(&self, unit: f64) -> Option<Figure> {
        Figure::of(self.median() / unit, self.0.values().map(|value| value / unit))
    }

    fn median(&self) -> f64 {
        self.0.values().copied().collect::<Samples>().median()
    }
}

impl Evidence<'_> {
    /// A metric of a system, of the measurements that `pick` takes.
    pub(super) fn rounds_of(&self, [experiment, workload, phase, metric]: What<'_>, system: &str, pick: impl Fn(&Measurement) -> bool) -> Option<Rounds> {
        let matches = |found: &&Measurement| {
            found.experiment == experiment
                && (workload.is_empty() || found.workload == workload)
                && found.phase == phase
                && found.system == system
                && pick(found)
        };
        let all = self.0.measurements.iter().filter(matches);
        let rounds: BTreeMap<u32, f64> = all.filter_map(|found| Some((found.round, found.metrics.get(metric)?.value))).collect();
        (!rounds.is_empty()).then_some(Rounds(rounds))
    }

    /// The same of the case with the most keys, and among those with the fewest threads: the one that papers mean if they do not say.
    pub(super) fn rounds(&self, what: What<'_>, system: &str) -> Option<Rounds> {
        let of = self.0.measurements.iter().filter(|found| found.experiment == what[0] && found.system == system);
        let keys = of.clone().map(|found| found.parameters.keys).max()?;
        let threads = of.map(|found| found.parameters.threads).min()?;
        self.rounds_of(what, system, |found| found.parameters.keys == keys && found.parameters.threads == threads)
    }

    /// Its median.
    pub(super) fn median(&self, what: What<'_>, system: &str) -> Option<f64> {
        Some(self.rounds(what, system)?.figure()?.median)
    }

    /// How many times that of `base` it is.
    pub(super) fn ratio(&self, what: What<'_>, system: &str, base: &str) -> Option<Figure> {
        self.rounds(what, system)?.by(&self.rounds(what, base)?)
    }

    /// Ratios to one system: each should lie where the paper has it, and on the same side of 1.
    pub(super) fn ratios(&self, what: What<'_>, base: &str, of: Ranges, tolerance: f64) -> Option<Vec<Part>> {
        let part =
            |(system, low, high): &(&str, f64, f64)| Some(Part::ratio(*system, base, self.ratio(what, system, base)?, Wanted::ratio(*low, *high, tolerance)));
        of.iter().map(part).collect()
    }

    /// Values, each of which should lie where the paper has it.
    pub(super) fn values(&self, what: What<'_>, of: Ranges, tolerance: f64) -> Option<Vec<Part>> {
        let part = |(system, low, high): &(&str, f64, f64)| {
            let figure = self.rounds(what, system)?.figure()?;
            Some(Part::new(*system, format!("{system} {}", figure.show(3, "")), figure.judge(Wanted::near(*low, *high, tolerance))))
        };
        of.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One was called faster than the other for a fortieth of what the rounds lay apart.
    #[test]
    fn what_rounds_do_not_agree_about_is_noise() {
        let faster = Wanted::ratio(1.05, 1.29, 0.25);
        for ((median, low, high), finding) in [
            ((1.002, 0.996, 1.015), Finding::Noise),
            ((0.98, 0.97, 1.2), Finding::Noise),
            ((1.2, 1.1, 1.4), Finding::Holds),
            ((1.2, 1.1, 1.9), Finding::Holds),
            ((0.9, 0.8, 0.99), Finding::Fails),
            ((2.0, 1.1, 2.1), Finding::Fails),
        ] {
            assert_eq!(Figure::new(median, low, high).judge(faster), finding, "{median} ({low} to {high})");
        }
        // Whatever the side, it is not twice as fast.
        assert_eq!(Figure::new(1.01, 0.97, 1.1).judge(Wanted::ratio(2.55, 2.92, 0.25)), Finding::Fails);
        let alike = Wanted::ratio(1.0, 1.0, 0.25);
        for ((median, low, high), finding) in [((1.01, 0.9, 1.2), Finding::Holds), ((0.94, 0.66, 1.38), Finding::Noise), ((1.38, 1.26, 1.43), Finding::Fails)] {
            assert_eq!(Figure::new(median, low, high).judge(alike), finding, "{median} ({low} to {high})");
        }
    }

    #[test]
    fn limits_other_than_one_have_their_noise() {
        let doubled = Wanted::between(1.7, f64::INFINITY);
        for ((median, low, high), finding) in [((1.71, 1.3, 2.1), Finding::Noise), ((1.9, 1.8, 2.1), Finding::Holds), ((1.5, 1.2, 1.6), Finding::Fails)] {
            assert_eq!(Figure::new(median, low, high).judge(doubled), finding, "{median} ({low} to {high})");
        }
    }

    #[test]
    fn a_round_that_is_far_off_decides_nothing() {
        let figure = Figure::of(2.0, [2.1, 2.0, 1.9, 2.0, 0.4].into_iter()).unwrap();
        assert_eq!((figure.low, figure.high), (1.9, 2.0));
        assert_eq!(Figure::of(2.0, [2.0].into_iter()).unwrap(), Figure::new(2.0, 2.0, 2.0));
    }

    #[test]
    fn a_claim_is_as_good_as_its_parts() {
        let judged = |findings: &[Finding]| {
            let parts: Vec<Part> = findings.iter().zip(["a", "b"]).map(|(finding, name)| Part::new(name, name, *finding)).collect();
            let Judgement { verdict, why, .. } = Judgement::of(&parts);
            (verdict, why)
        };
        assert_eq!(judged(&[Finding::Holds, Finding::Holds]), (Verdict::Agree, String::new()));
        assert_eq!(judged(&[Finding::Fails, Finding::Fails]), (Verdict::Differ, String::new()));
        assert_eq!(judged(&[Finding::Holds, Finding::Noise]), (Verdict::CannotCompare, "Within the noise: b.".into()));
        assert_eq!(judged(&[Finding::Fails, Finding::Noise]), (Verdict::Differ, "Off: a. Within the noise: b.".into()));
    }
}
