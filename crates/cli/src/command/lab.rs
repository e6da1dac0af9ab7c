//! `lab`: what researchers of such structures want of them.

use crate::failure::Failure;
use clap::Subcommand;
use everleaf_conformance::command;

/// What to find out.
#[derive(Subcommand)]
pub(crate) enum Lab {
    /// Recover every image that a crash can leave, and check the checker
    #[command(subcommand)]
    Crash(command::Command),
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Self::Crash(crash) = self;
        match crash.run() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::No),
            Err(message) => Err(Failure::Usage(message)),
        }
    }
}
