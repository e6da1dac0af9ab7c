//! On what order of stores to one line the source relies: what [`Dependences`] find in the crash runs.

use super::{Options, Report, Suite};
use everleaf_pmem::{CrashOptions, Dependence, Dependences};
use std::sync::Arc;

/// Runs what `options` say, all short sequences and some long ones, of every suite, until a run finds nothing that was not known. Tells `progress` of each run.
/// A violation in it is one without any liberty taken.
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
    // The worlds' own code is no part of what is examined.
    found.all().into_iter().filter(|pair| !pair.later.file().contains("conformance/")).collect()
}
