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

/// How sure it should be that a median is in its interval: as sure as five samples can be, which have it between them but once in 16 times.
const CONFIDENCE: f64 = 15.0 / 16.0;

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

    /// How many times `other` these are, one by one, as both were pushed in the same rounds: what disturbs a round disturbs both, and is not in their ratio.
    pub fn by(&self, other: &Self) -> Self {
        self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect()
    }

    /// The interval that the true median is in with at least [`CONFIDENCE`], whatever the law of the samples: from the k-th least to the k-th largest, with the
    /// largest such k. The median is beyond the k-th if fewer than k of n fall on one side of it, by the binomial law. Of up to eight samples from the least to
    /// the largest, of nine from the second to the eighth. `None` of none.
    pub(crate) fn interval(&self) -> Option<[f64; 2]> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // The chance of a toss of all coins, and of so many heads.
        let mut heads = 0.5_f64.powi(i32::try_from(count).ok()?);
        let (mut beyond, mut outside) = (2.0 * heads, 0);
        for more in 1..=count / 2 {
            heads *= (count - more + 1) as f64 / more as f64;
            beyond += 2.0 * heads;
            if 1.0 - beyond < CONFIDENCE {
                break;
            }
            outside = more;
        }
        Some([*sorted.get(outside)?, *sorted.get(count.checked_sub(outside + 1)?)?])
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
    pub(crate) fn by(&self, other: &Self) -> Self {
        self.joined(other, |one, other| one / other)
    }

    /// What `join` makes of both, such as the larger one, in each round that has both.
    pub(crate) fn joined(&self, other: &Self, join: impl Fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().filter_map(|(round, value)| Some((*round, join(*value, *other.0.get(round)?)))).collect())
    }
}

impl FromIterator<(u32, f64)> for Rounds {
    fn from_iter<I: IntoIterator<Item = (u32, f64)>>(rounds: I) -> Self {
        Self(rounds.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_their_intervals() {
        for (count, outside) in [(1, 0), (5, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (100, 40)] {
            let samples: Samples = (0..count).rev().map(f64::from).collect();
            assert_eq!(samples.interval(), Some([f64::from(outside), f64::from(count - 1 - outside)]), "{count}");
        }
        assert_eq!(Samples::default().interval(), None);
    }

    /// One takes a tenth longer than the other, whatever a round adds to both; the medians of all rounds would tell 1.07.
    #[test]
    fn ratios_are_of_the_same_round() {
        let slow = Rounds([(0, 110.0), (1, 220.0), (2, 165.0), (3, 160.0), (4, 1.0)].into());
        let fast = Rounds([(0, 100.0), (1, 200.0), (2, 150.0), (3, 160.0), (5, 1.0)].into());
        assert_eq!(slow.by(&fast).samples(), Samples(vec![1.1, 1.1, 1.1, 1.0]));
        assert_eq!(slow.by(&fast).samples().median(), 1.1);
        assert!(slow.by(&Rounds::default()).samples().median().is_nan());
        let [slow, fast] = [[110.0, 220.0, 150.0], [100.0, 200.0, 150.0]].map(|rounds| rounds.into_iter().collect::<Samples>());
        assert_eq!(slow.by(&fast), Samples(vec![1.1, 1.1, 1.0]));
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
