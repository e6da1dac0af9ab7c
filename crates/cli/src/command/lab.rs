//! `lab`: what researchers of such structures want of them.

mod report;

use crate::failure::Failure;
use clap::Subcommand;
use everleaf_conformance::command;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What to find out.
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
                // Whoever stops it gets what was measured until then; whoever does so twice means it.
                let stop = Arc::new(AtomicBool::new(false));
                for signal in [SIGINT, SIGTERM] {
                    let caught = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())
                        .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
                    caught.map_err(|source| Failure::Io { action: "catch signals".into(), source })?;
                }
                Ok(measure.run(&stop)?)
            }
        }
    }
}
