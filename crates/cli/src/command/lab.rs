//! `lab`: what researchers of such structures want of them.

mod report;

use crate::failure::Failure;
use clap::Subcommand;
use everleaf_conformance::command;

/// What to find out.
#[derive(Subcommand)]
pub(crate) enum Lab {
    /// Recover every image that a crash can leave, and check the checker
    #[command(subcommand)]
    Crash(command::Command),
    /// Draw the figures of a run, and write the page with all of them
    Report(report::Arguments),
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let crash = match self {
            Self::Crash(crash) => crash,
            Self::Report(arguments) => return arguments.run(),
        };
        match crash.run() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::No),
            Err(message) => Err(Failure::Usage(message)),
        }
    }
}
