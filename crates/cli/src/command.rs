//! The commands.

mod bench;
mod check;
mod completion;
mod create;
mod del;
mod dump;
mod get;
mod info;
mod lab;
mod load;
mod put;
mod scan;
mod serve;

use crate::failure::Failure;
use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a pool over the protocol of Redis, creating the pool if there is none
    Serve(serve::Arguments),
    /// Create an empty pool
    Create(create::Arguments),
    /// Say what a pool is and holds, even while it is in use
    Info(info::Arguments),
    /// Read everything in a pool and look for damage
    Check(check::Arguments),
    /// Print the value of a key
    Get(get::Arguments),
    /// Set a key
    Put(put::Arguments),
    /// Delete keys
    Del(del::Arguments),
    /// Print keys and values in order
    Scan(scan::Arguments),
    /// Load keys and values from a file of TSV, CSV or NDJSON
    Load(load::Arguments),
    /// Print everything as NDJSON that load reads back
    Dump(dump::Arguments),
    /// Measure, in one interleaved run
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Put every index to the proof
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Print a completion script for a shell
    Completion(completion::Arguments),
}

impl Command {
    /// Does it.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Serve(arguments) => arguments.run(),
            Self::Create(arguments) => arguments.run(),
            Self::Info(arguments) => arguments.run(),
            Self::Check(arguments) => arguments.run(),
            Self::Get(arguments) => arguments.run(),
            Self::Put(arguments) => arguments.run(),
            Self::Del(arguments) => arguments.run(),
            Self::Scan(arguments) => arguments.run(),
            Self::Load(arguments) => arguments.run(),
            Self::Dump(arguments) => arguments.run(),
            Self::Bench(bench) => bench.run(),
            Self::Lab(lab) => lab.run(),
            Self::Completion(arguments) => arguments.run(),
        }
    }
}
