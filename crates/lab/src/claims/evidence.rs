//! Measurements as the rules of claims use them, and the resulting judgements.
//!
//! A figure is a median of the rounds, with the interval that contains the true one: [`Samples::interval`]. A ratio of two systems is taken in each round that
//! has measured both, since a disturbance in a round affects both. A claim holds if the interval lies where it should, and fails if it lies beyond a limit.
//! Otherwise the result is within the noise, and not judged. So of two equal systems, at most one run in 16 calls one faster, by chance; more rounds are more
//! conclusive. Times with fewer than five rounds are not judged.

use super::Ranges;
use crate::result::{Measurement, Results, Verdict};
use crate::samples::{Rounds, Samples, Spread};

/// Minimum number of rounds to judge a time.
const ROUNDS_MIN: usize = 5;
/// Maximum deviation of a ratio, as a part of its distance from 1: a quarter of the ratio would exceed a small effect.
const EFFECT_TOLERANCE: f64 = 0.5;

/// The measurements by which a claim is judged.
pub(super) struct Evidence<'a>(pub(super) &'a Results);

/// A figure: the median of the rounds, and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    low: f64,
    high: f64,
    /// Whether it has enough rounds to be judged.
    is_enough: bool,
}

/// The range of a figure, between two limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wanted {
    low: f64,
    high: f64,
}

/// The finding for a part of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Holds,
    Fails,
    /// Inconclusive: the rounds lie on both sides of a limit.
    Noise,
    /// Not enough rounds to decide.
    TooFew,
}

/// A part of a claim: its subject and finding.
pub(super) struct Part {
    name: String,
    ours: String,
    finding: Finding,
}

/// The judgement of a claim.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) ours: String,
    pub(super) verdict: Verdict,
    pub(super) why: String,
}

impl Figure {
    fn of(samples: &Samples, is_timed: bool) -> Option<Self> {
        let Spread { median, rounds, .. } = samples.spread();
        let [low, high] = samples.interval()?;
        median.is_finite().then_some(Self { median, low, high, is_enough: !is_timed || rounds >= ROUNDS_MIN })
    }

    /// In another unit.
    pub(super) fn in_units_of(self, unit: f64) -> Self {
        Self { median: self.median / unit, low: self.low / unit, high: self.high / unit, ..self }
    }

    /// In words, with this many digits; `what` stands between the median and its interval.
    pub(super) fn show(self, digits: usize, what: &str) -> String {
        let Self { median, low, high, .. } = self;
        let [median, low, high] = [median, low, high].map(|number| format!("{number:.digits$}"));
        if low == high { format!("{median}{what}") } else { format!("{median}{what} ({low} to {high})") }
    }

    /// Whether it lies where it should.
    pub(super) fn judge(self, wanted: Wanted) -> Finding {
        let Self { low, high, is_enough, .. } = self;
        match (wanted.contains(low) && wanted.contains(high), high <= wanted.low || low >= wanted.high) {
            _ if !is_enough => Finding::TooFew,
            (true, _) => Finding::Holds,
            (_, true) => Finding::Fails,
            _ => Finding::Noise,
        }
    }
}

impl Wanted {
    /// Above 1.
    pub(super) const ABOVE: Self = Self::between(1.0, f64::INFINITY);
    /// Below 1.
    pub(super) const BELOW: Self = Self::between(0.0, 1.0);

    pub(super) const fn between(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// The paper's range, extended by the tolerance.
    pub(super) fn near(low: f64, high: f64, tolerance: f64) -> Self {
        Self::between(low * (1.0 - tolerance), high * (1.0 + tolerance))
    }

    /// The same for a ratio, but extended by no more than half of its distance from 1, so it stays on the same side of it.
    pub(super) fn ratio(low: f64, high: f64, tolerance: f64) -> Self {
        if (low..=high).contains(&1.0) {
            // A range that includes 1 has no side.
            return Self::near(low, high, tolerance);
        }
        let allowed = |ratio: f64| (ratio * tolerance).min((ratio - 1.0).abs() * EFFECT_TOLERANCE);
        Self::between(low - allowed(low), high + allowed(high))
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
        let (fails, noise, few) = (names(Finding::Fails), names(Finding::Noise), names(Finding::TooFew));
        let verdict = match (fails.is_empty(), noise.is_empty() && few.is_empty()) {
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
        if !few.is_empty() {
            why.push(format!("Too few rounds, {ROUNDS_MIN} are needed: {}.", few.join(", ")));
        }
        let ours = parts.iter().map(|part| part.ours.as_str()).collect::<Vec<_>>().join(", ");
        Self { ours, verdict, why: why.join(" ") }
    }

    /// Measured, but under conditions too different to agree or differ.
    pub(super) fn cannot_compare(self) -> Self {
        Self { verdict: Verdict::CannotCompare, ..self }
    }
}

/// Experiment, workload (any if empty), phase, metric.
pub(super) type What<'w> = [&'w str; 4];

/// A metric of a system.
pub(super) struct Measured {
    rounds: Rounds,
    /// Whether it is a time, which depends on its round; counts hardly vary.
    is_timed: bool,
}

impl Measured {
    pub(super) fn figure(&self) -> Option<Figure> {
        Figure::of(&self.rounds.samples(), self.is_timed)
    }

    /// The ratio to the other one.
    pub(super) fn by(&self, other: &Self) -> Option<Figure> {
        self.ratio(other).figure()
    }

    /// The same, for each round.
    pub(super) fn ratio(&self, other: &Self) -> Self {
        Self { rounds: self.rounds.by(&other.rounds), is_timed: self.is_timed || other.is_timed }
    }

    /// The smallest or largest of several in each round, by `f64::min` or `f64::max`. The extreme of their medians would be the one favoured most by chance,
    /// with the interval of that one alone.
    pub(super) fn extreme(all: impl IntoIterator<Item = Self>, pick: fn(f64, f64) -> f64) -> Option<Figure> {
        let join = |one: Self, other: Self| Self { rounds: one.rounds.joined(&other.rounds, pick), is_timed: one.is_timed || other.is_timed };
        all.into_iter().reduce(join)?.figure()
    }
}

impl Evidence<'_> {
    /// A metric of a system, from the measurements that `pick` accepts.
    pub(super) fn rounds_of(&self, [experiment, workload, phase, metric]: What<'_>, system: &str, pick: impl Fn(&Measurement) -> bool) -> Option<Measured> {
        let matches = |found: &&Measurement| {
            found.experiment == experiment
                && (workload.is_empty() || found.workload == workload)
                && found.phase == phase
                && found.system == system
                && pick(found)
        };
        let all = self.0.measurements.iter().filter(matches);
        let is_timed = all.clone().any(|found| !found.parameters.measure.is_counted());
        let rounds = Rounds::of(all, metric);
        Some(Measured { rounds, is_timed }).filter(|measured| measured.rounds != Rounds::default())
    }

    /// The same for the case with the fewest threads: the one that papers mean if they do not say.
    pub(super) fn rounds(&self, what: What<'_>, system: &str) -> Option<Measured> {
        let of = self.0.measurements.iter().filter(|found| found.experiment == what[0] && found.system == system);
        let threads = of.map(|found| found.parameters.threads).min()?;
        self.rounds_of(what, system, |found| found.parameters.threads == threads)
    }

    /// The planned numbers of keys of an experiment, whether or not the run got that far, in the order of its cases.
    pub(super) fn sizes(&self, experiment: &str) -> Option<Vec<u64>> {
        let planned = self.0.header.plan.experiments.iter().find(|planned| planned.id == experiment)?;
        Some(planned.cases.iter().map(|case| case.parameters.keys).collect())
    }

    /// Whether a system was to be measured. Newer rules may know systems that older files lack.
    pub(super) fn is_planned(&self, experiment: &str, system: &str) -> bool {
        self.planned(experiment).any(|name| name == system)
    }

    /// The systems that were to be measured in an experiment.
    pub(super) fn planned(&self, experiment: &str) -> impl Iterator<Item = &str> {
        let experiment = self.0.header.plan.experiments.iter().find(move |planned| planned.id == experiment);
        experiment.into_iter().flat_map(|planned| planned.systems.iter().map(String::as_str))
    }

    /// Its median.
    pub(super) fn median(&self, what: What<'_>, system: &str) -> Option<f64> {
        Some(self.rounds(what, system)?.figure()?.median)
    }

    /// Its ratio to that of `base`.
    pub(super) fn ratio(&self, what: What<'_>, system: &str, base: &str) -> Option<Figure> {
        self.rounds(what, system)?.by(&self.rounds(what, base)?)
    }

    /// Ratios to `base`, for the planned systems: each should lie where the paper has it, and on the same side of 1.
    pub(super) fn ratios(&self, what: What<'_>, base: &str, of: Ranges<'_>, tolerance: f64) -> Option<Vec<Part>> {
        let part =
            |(system, low, high): &(&str, f64, f64)| Some(Part::ratio(*system, base, self.ratio(what, system, base)?, Wanted::ratio(*low, *high, tolerance)));
        of.iter().filter(|(system, ..)| self.is_planned(what[0], system)).map(part).collect()
    }

    /// Values, each of which should lie where the paper has it.
    pub(super) fn values(&self, what: What<'_>, of: Ranges<'_>, tolerance: f64) -> Option<Vec<Part>> {
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

    fn timed(rounds: [f64; 5]) -> Figure {
        Figure::of(&rounds.into_iter().collect(), true).unwrap()
    }

    /// One was called faster for a fortieth of the distance between rounds, and by four rounds of five, which happens by chance in a third of runs.
    #[test]
    fn what_rounds_do_not_agree_about_is_noise() {
        let faster = Wanted::between(1.0, 1.6);
        for (rounds, finding) in [
            ([1.002, 0.996, 1.015, 1.01, 1.0], Finding::Noise),
            ([1.2, 1.1, 1.4, 1.3, 0.99], Finding::Noise),
            ([0.9, 0.8, 0.99, 0.95, 1.01], Finding::Noise),
            ([1.2, 1.1, 1.4, 1.3, 1.01], Finding::Holds),
            ([0.9, 0.8, 0.99, 0.95, 0.98], Finding::Fails),
            // Whether it is further off than allowed is not known, either.
            ([1.2, 1.1, 1.9, 1.3, 1.4], Finding::Noise),
            ([2.0, 2.1, 2.2, 1.9, 1.5], Finding::Noise),
            ([2.0, 2.1, 2.2, 1.9, 1.7], Finding::Fails),
        ] {
            assert_eq!(timed(rounds).judge(faster), finding, "{rounds:?}");
        }
        let doubled = Wanted::between(1.7, f64::INFINITY);
        assert_eq!(timed([1.71, 1.3, 2.1, 1.8, 1.9]).judge(doubled), Finding::Noise);
        assert_eq!(timed([1.9, 1.8, 2.1, 1.8, 1.9]).judge(doubled), Finding::Holds);
    }

    /// One of nine rounds on the other side prevented a judgement, so more rounds decided less.
    #[test]
    fn more_rounds_decide_more() {
        let judge = |rounds: &[f64]| Figure::of(&rounds.iter().copied().collect(), true).unwrap().judge(Wanted::ABOVE);
        assert_eq!(judge(&[1.1, 1.2, 0.9, 1.1, 1.2]), Finding::Noise);
        assert_eq!(judge(&[1.1, 1.2, 0.9, 1.1, 1.2, 1.1, 1.2, 1.1, 1.2]), Finding::Holds);
        assert_eq!(judge(&[1.1, 1.2, 0.9, 1.1, 1.2, 0.9, 1.2, 1.1, 1.2]), Finding::Noise);
    }

    /// A run stopped in its first round agreed with half of the papers.
    #[test]
    fn few_rounds_judge_no_time() {
        let of = |rounds: usize, is_timed| Figure::of(&[2.0; 5][..rounds].iter().copied().collect(), is_timed).unwrap().judge(Wanted::ABOVE);
        assert_eq!([1, 4, 5].map(|rounds| of(rounds, true)), [Finding::TooFew, Finding::TooFew, Finding::Holds]);
        assert_eq!(of(1, false), Finding::Holds, "what is counted is the same in every round");
        assert!(Figure::of(&Samples::default(), false).is_none());
    }

    /// With a quarter of the ratio as tolerance, 5 % more could be 31 % more, or nothing at all.
    #[test]
    fn a_small_effect_is_not_found_where_there_is_none() {
        let limits = |low, high| {
            let Wanted { low, high } = Wanted::ratio(low, high, 0.25);
            [low, high].map(|limit| (limit * 1e4).round() / 1e4)
        };
        assert_eq!(limits(1.05, 1.05), [1.025, 1.075]);
        assert_eq!(limits(1.2, 1.24), [1.1, 1.36]);
        assert_eq!(limits(0.8, 0.8), [0.7, 0.9]);
        assert_eq!(limits(0.6, 0.9), [0.45, 0.95]);
        assert_eq!(limits(1.0, 1.0), [0.75, 1.25], "where none is said to be there is none to take a part of");
        assert_eq!(limits(2.0, 4.0), [1.5, 5.0]);
        assert_eq!((limits(1.31, 1.31), limits(0.69, 0.69)), ([1.155, 1.465], [0.535, 0.845]), "on the side that it is on");
    }

    /// Limits jumped at 30 %: 29 % more could be 36 %, 30 % more could be 62 %.
    #[test]
    fn limits_grow_with_the_effect() {
        for step in 1..400 {
            let (ratio, next) = (1.0 + f64::from(step) / 100.0, 1.0 + f64::from(step + 1) / 100.0);
            let (one, other) = (Wanted::ratio(ratio, ratio, 0.25), Wanted::ratio(next, next, 0.25));
            assert!((0.0..0.02).contains(&(other.low - one.low)) && (0.0..0.02).contains(&(other.high - one.high)), "{ratio}: {one:?}, {other:?}");
            assert!(one.low > 1.0 && one.contains(ratio));
        }
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
        assert_eq!(judged(&[Finding::Holds, Finding::TooFew]), (Verdict::CannotCompare, "Too few rounds, 5 are needed: b.".into()));
    }
}
