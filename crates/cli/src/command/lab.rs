//! `lab`: tools for researchers of such structures.

mod report;

use crate::failure::Failure;
use crate::interrupt;
use clap::Subcommand;
use everleaf_conformance::command;

/// The tools.
#[derive(Subcommand)]
pub(crate) enum Lab {
    /// Recover every image that a crash can leave, and check the checker
    #[command(subcommand)]
    Crash(command::Command),
    /// Draw the figures of a run, and write the page with all of them
    Report(report::Arguments),
    #[command(flatten)]
    Measure(everleaf_lab::command::Command),
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Crash(crash) => match crash.run() {
                Ok(true) => Ok(()),
                Ok(false) => Err(Failure::No),
                Err(message) => Err(Failure::Usage(message)),
            },
            Self::Report(arguments) => arguments.run(),
            Self::Measure(measure) => {
                // A run that is stopped returns what was measured until then.
                Ok(measure.run(&interrupt::catch()?)?)
            }
        }
    }
}
