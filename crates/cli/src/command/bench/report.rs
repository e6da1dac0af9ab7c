//! Medians, tables and ratios.

use crate::failure::Failure;
use crate::output::Output;
use serde_json::{Map, Value, json};

/// The samples of one figure, one of each round.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The median; of none, not a number.
    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[count / 2],
            count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
        }
    }

    /// The median, and how far the samples spread, for a program.
    pub(super) fn json(&self) -> Value {
        let (low, high) = (self.0.iter().copied().fold(f64::NAN, f64::min), self.0.iter().copied().fold(f64::NAN, f64::max));
        json!({ "median": self.median(), "min": low, "max": high, "rounds": self.0.len() })
    }
}

/// Something to reach.
pub(super) struct Aim {
    pub(super) what: String,
    pub(super) ratio: f64,
    pub(super) limit: Limit,
}

/// Which way a ratio has to differ from a number.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.ratio <= limit,
            Limit::AtLeast(limit) => self.ratio >= limit,
        }
    }

    pub(super) fn print(&self, out: &mut Output) -> Result<(), Failure> {
        let limit = match self.limit {
            Limit::AtMost(limit) => format!("at most {limit:.2}"),
            Limit::AtLeast(limit) => format!("at least {limit:.2}"),
        };
        out.line(format!("{:7.2}  {limit:14}  {:8}  {}", self.ratio, if self.is_met() { "met" } else { "MISSED" }, self.what))
    }

    pub(super) fn json(&self) -> Value {
        let (name, limit) = match self.limit {
            Limit::AtMost(limit) => ("at_most", limit),
            Limit::AtLeast(limit) => ("at_least", limit),
        };
        let mut object = Map::from_iter([("what".to_owned(), Value::from(self.what.clone())), ("ratio".to_owned(), self.ratio.into())]);
        object.insert(name.into(), limit.into());
        object.insert("met".into(), self.is_met().into());
        object.into()
    }
}

/// The machine, in a line.
pub(super) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim().to_owned()));
    format!("{}, {cores} cores", field("model name").unwrap_or_else(|| std::env::consts::ARCH.into()))
}

/// The file system that holds `path`: the longest mount point above it.
pub(super) fn file_system(path: &std::path::Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let above = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        path.starts_with(point).then_some((point.len(), kind))
    });
    above.max_by_key(|(length, _)| *length).map_or_else(|| "an unknown file system".into(), |(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |samples: &[f64]| Samples(samples.to_vec()).median();
        assert_eq!(of(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(of(&[]).is_nan());
    }
}
