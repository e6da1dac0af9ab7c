//! Finds which orders of stores to one line the source relies on: what [`Dependences`] find in the crash runs.

use super::{Options, Report, Suite};
use everleaf_pmem::{CrashOptions, Dependence, Dependences};
use std::sync::Arc;

/// Runs the options on every suite, all short sequences and some long ones, until a run finds nothing new. Reports each run to `progress`. A violation in a
/// report is a real one: it needs no reordering.
pub fn dependences(suites: &[Box<dyn Suite>], options: &Options, progress: &mut dyn FnMut(&str, &Report)) -> Vec<Dependence> {
    let found = Arc::new(Dependences::default());
    let life = CrashOptions { dependences: Some(Arc::clone(&found)), ..options.life.clone() };
    let options = Options { life, ..options.clone() };
    for suite in suites {
        loop {
            let known = found.all().len();
            let reports = [suite.every(&options), suite.sampled(&options)];
            reports.iter().for_each(|report| progress(&suite.name(), report));
            if found.all().len() == known || reports.iter().any(|report| report.violation.is_some()) {
                break;
            }
        }
    }
    // The worlds' own code is not under examination.
    found.all().into_iter().filter(|pair| !pair.later.file().contains("conformance/")).collect()
}
