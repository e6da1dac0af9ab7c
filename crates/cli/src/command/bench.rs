//! `everleaf bench`: the server compared with others, in one interleaved run. `everleaf lab run` measures indexes and the store.
//!
//! Machines drift, and other load comes and goes, so figures are only compared within a run, in which rounds of all candidates alternate; the medians of the
//! rounds are printed, with the ratios by which the figures are judged.

mod aim;
mod server;

use crate::failure::Failure;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The server compared with redis-server, by redis-benchmark, each on one core; needs redis-server, redis-benchmark and taskset
    Server(server::Arguments),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Self::Server(arguments) = self;
        arguments.run()
    }
}
