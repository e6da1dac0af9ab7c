//! Ratios to reach.

use crate::failure::Failure;
use crate::output::Output;
use serde_json::{Value, json};

/// A ratio to reach.
pub(super) struct Aim {
    pub(super) what: String,
    pub(super) ratio: f64,
    pub(super) at_least: f64,
}

impl Aim {
    fn is_met(&self) -> bool {
        self.ratio >= self.at_least
    }

    pub(super) fn print(&self, out: &mut Output) -> Result<(), Failure> {
        let limit = format!("at least {:.2}", self.at_least);
        out.line(format!("{:7.2}  {limit:14}  {:8}  {}", self.ratio, if self.is_met() { "met" } else { "MISSED" }, self.what))
    }

    pub(super) fn json(&self) -> Value {
        json!({ "what": self.what, "ratio": self.ratio, "at_least": self.at_least, "met": self.is_met() })
    }
}
