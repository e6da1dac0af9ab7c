//! What was measured, as the rules of claims ask for it.

use super::Ranges;
use crate::Samples;
use crate::result::{Measurement, Results, Verdict};

/// What a claim is judged by.
pub(super) struct Evidence<'a>(pub(super) &'a Results);

/// What came of a claim.
pub(super) struct Judgement {
    pub(super) ours: String,
    pub(super) verdict: Verdict,
    pub(super) why: String,
}

impl Judgement {
    pub(super) fn new(agree: bool, ours: impl Into<String>) -> Self {
        Self { ours: ours.into(), verdict: if agree { Verdict::Agree } else { Verdict::Differ }, why: String::new() }
    }

    /// Measured, but by something too different to be called one or the other.
    pub(super) fn cannot_compare(self) -> Self {
        Self { verdict: Verdict::CannotCompare, ..self }
    }
}

/// Experiment, workload (any if empty), phase, metric.
pub(super) type What<'w> = [&'w str; 4];

impl Evidence<'_> {
    /// The median of a metric of a system, of the measurements that `pick` takes.
    pub(super) fn median_of(&self, what: What<'_>, system: &str, pick: impl Fn(&Measurement) -> bool) -> Option<f64> {
        Some(self.samples(what, system, pick).median()).filter(|median| median.is_finite())
    }

    fn samples(&self, [experiment, workload, phase, metric]: What<'_>, system: &str, pick: impl Fn(&Measurement) -> bool) -> Samples {
        let matches = |found: &&Measurement| {
            found.experiment == experiment
                && (workload.is_empty() || found.workload == workload)
                && found.phase == phase
                && found.system == system
                && pick(found)
        };
        self.0.measurements.iter().filter(matches).filter_map(|found| Some(found.metrics.get(metric)?.value)).collect()
    }

    /// The same of the case with the most keys, and among those with the fewest threads: the one that papers mean if they do not say.
    pub(super) fn median(&self, what: What<'_>, system: &str) -> Option<f64> {
        Some(self.samples(what, system, self.usual(what, system)?).median()).filter(|median| median.is_finite())
    }

    /// How far its rounds lie apart, as a share of the median.
    fn spread(&self, what: What<'_>, system: &str) -> f64 {
        let Some(pick) = self.usual(what, system) else { return 0.0 };
        let spread = self.samples(what, system, pick).spread();
        (spread.max - spread.min) / spread.median
    }

    fn usual(&self, what: What<'_>, system: &str) -> Option<impl Fn(&Measurement) -> bool + use<>> {
        let of = self.0.measurements.iter().filter(|found| found.experiment == what[0] && found.system == system);
        let keys = of.clone().map(|found| found.parameters.keys).max()?;
        let threads = of.map(|found| found.parameters.threads).min()?;
        Some(move |found: &Measurement| found.parameters.keys == keys && found.parameters.threads == threads)
    }

    /// Ratios to one system: each should lie where the paper has it, and on the same side of 1.
    pub(super) fn ratios(&self, what: What<'_>, base: &str, of: Ranges, tolerance: f64) -> Option<Judgement> {
        let base_value = self.median(what, base)?;
        let ratio = |system: &str| Some(self.median(what, system)? / base_value);
        let judged = self.each(of, tolerance, Some(1.0), ratio, |system, ratio| format!("{system} {ratio:.2} x {base}"))?;
        let spread = of.iter().map(|(system, ..)| *system).chain([base]).map(|system| self.spread(what, system)).fold(0.0, f64::max);
        Some(if spread > tolerance {
            Judgement { why: format!("{} Rounds spread by up to {:.0} %.", judged.why, 100.0 * spread).trim().into(), ..judged }
        } else {
            judged
        })
    }

    /// Values, each of which should lie where the paper has it.
    pub(super) fn values(&self, what: What<'_>, of: Ranges, tolerance: f64) -> Option<Judgement> {
        self.each(of, tolerance, None, |system| self.median(what, system), |system, value| format!("{system} {value:.3}"))
    }

    /// Each value should lie in its range, widened by `tolerance`, and not beyond `middle` where the range does not reach there.
    fn each(
        &self,
        of: Ranges,
        tolerance: f64,
        middle: Option<f64>,
        value: impl Fn(&str) -> Option<f64>,
        show: impl Fn(&str, f64) -> String,
    ) -> Option<Judgement> {
        let (mut ours, mut off) = (Vec::new(), Vec::new());
        for (system, low, high) in of {
            let value = value(system)?;
            ours.push(show(system, value));
            let is_beyond = middle.is_some_and(|middle| *low > middle && value <= middle || *high < middle && value >= middle);
            if is_beyond || value < low * (1.0 - tolerance) || value > high * (1.0 + tolerance) {
                off.push(*system);
            }
        }
        let why = if off.is_empty() || off.len() == of.len() { String::new() } else { format!("Off: {}.", off.join(", ")) };
        Some(Judgement { why, ..Judgement::new(off.is_empty(), ours.join(", ")) })
    }
}
