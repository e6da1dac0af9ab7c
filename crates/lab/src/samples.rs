//! Samples of one figure, one of each round: what is compared is their median, or that of their ratios.

use crate::result::Measurement;
use serde::Serialize;
use std::collections::BTreeMap;

/// The samples of one figure, one of each round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

/// How samples lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many there are.
    pub rounds: usize,
}

impl Samples {
    /// One more.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The median; of none, not a number.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[count / 2],
            count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
        }
    }

    /// The median, and how far the samples spread.
    pub fn spread(&self) -> Spread {
        let (min, max) = (self.0.iter().copied().fold(f64::NAN, f64::min), self.0.iter().copied().fold(f64::NAN, f64::max));
        Spread { median: self.median(), min, max, rounds: self.0.len() }
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// The samples of one figure, by their rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rounds(BTreeMap<u32, f64>);

impl Rounds {
    /// Those of a metric, of whichever measurements have it.
    pub(crate) fn of<'m>(measurements: impl Iterator<Item = &'m Measurement>, metric: &str) -> Self {
        Self(measurements.filter_map(|found| Some((found.round, found.metrics.get(metric)?.value))).collect())
    }

    /// Without the rounds.
    pub(crate) fn samples(&self) -> Samples {
        self.0.values().copied().collect()
    }

    /// How many times `other` this is, in each round that has both: what disturbs a round disturbs both, and is not in their ratio.
    pub(crate) fn by(&self, other: &Self) -> Samples {
        self.0.iter().filter_map(|(round, value)| Some(value / other.0.get(round)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One takes a tenth longer than the other, whatever a round adds to both; the medians of all rounds would tell 1.07.
    #[test]
    fn ratios_are_of_the_same_round() {
        let slow = Rounds([(0, 110.0), (1, 220.0), (2, 165.0), (3, 160.0), (4, 1.0)].into());
        let fast = Rounds([(0, 100.0), (1, 200.0), (2, 150.0), (3, 160.0), (5, 1.0)].into());
        assert_eq!(slow.by(&fast), Samples(vec![1.1, 1.1, 1.1, 1.0]));
        assert_eq!(slow.by(&fast).median(), 1.1);
        assert!(slow.by(&Rounds::default()).median().is_nan());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |samples: &[f64]| samples.iter().copied().collect::<Samples>().median();
        assert_eq!(of(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(of(&[]).is_nan());
        let spread = [3.0, 1.0, 2.0].into_iter().collect::<Samples>().spread();
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 });
    }
}
