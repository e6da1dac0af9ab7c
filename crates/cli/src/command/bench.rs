//! `everleaf bench`: figures from one interleaved run.
//!
//! Machines drift, and neighbours come and go, so figures are only compared within a run, in which rounds of all candidates alternate; medians of the rounds
//! are printed, and the ratios that the figures are judged by.

mod index;
mod raw;
mod recovery;
mod report;
mod server;

use crate::failure::Failure;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Indexes on random keys of 8 bytes, beside the raw costs of memory and the volatile baseline
    Index(index::Arguments),
    /// How long it takes to open an index again after a crash, by the number of keys and of threads
    Recovery(recovery::Arguments),
    /// The server beside redis-server, by redis-benchmark, each on one core; needs redis-server, redis-benchmark and taskset
    Server(server::Arguments),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Index(arguments) => arguments.run(),
            Self::Recovery(arguments) => arguments.run(),
            Self::Server(arguments) => arguments.run(),
        }
    }
}
