//! Samples of one figure, one of each round: what is compared is their median.

use serde::Serialize;

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

#[cfg(test)]
mod tests {
    use super::*;

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
