//! `everleaf bench`: the server beside others, from one interleaved run. Indexes and the store are measured by `everleaf lab run`.
//!
//! Machines drift, and neighbours come and go, so figures are only compared within a run, in which rounds of all candidates alternate; medians of the rounds
//! are printed, and the ratios that the figures are judged by.

mod aim;
mod server;

use crate::failure::Failure;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The server beside redis-server, by redis-benchmark, each on one core; needs redis-server, redis-benchmark and taskset
    Server(server::Arguments),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Self::Server(arguments) = self;
        arguments.run()
    }
}
