//! The commands.

mod backup;
mod bench;
mod check;
mod compact;
mod completion;
mod create;
mod del;
mod dump;
mod export;
mod get;
mod import;
mod info;
mod lab;
mod load;
mod put;
mod repair;
mod restore;
mod scan;
pub(crate) mod serve;
mod stats;

use crate::failure::Failure;
use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a pool to clients of Redis, and of memcached, creating it if there is none
    Serve(serve::Arguments),
    /// Create an empty pool
    Create(create::Arguments),
    /// Show what a pool is and holds, even while it is in use
    Info(info::Arguments),
    /// Read everything in a pool and look for damage, and change nothing
    #[command(visible_alias = "verify")]
    Check(check::Arguments),
    /// Print statistics of a pool, or repeatedly those of a server
    Stats(stats::Arguments),
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
    /// Write all of a pool into a file, as of one moment
    Backup(backup::Arguments),
    /// Make a new pool from a backup
    Restore(restore::Arguments),
    /// Write a pool, or some of its namespaces, as a stream
    Export(export::Arguments),
    /// Import an export or a backup into a pool
    Import(import::Arguments),
    /// Make a pool as small as its contents: written anew, or while a server uses it
    Compact(compact::Arguments),
    /// Make a new pool from what can be read of a damaged one
    Repair(repair::Arguments),
    /// Measure the server beside redis-server
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Measure indexes, check crashes, judge the papers' claims
    #[command(subcommand)]
    Lab(lab::Lab),
    /// Print a completion script for a shell
    Completion(completion::Arguments),
}

impl Command {
    /// Whether it does nothing but print what exists.
    pub(crate) fn only_prints(&self) -> bool {
        matches!(self, Self::Info(_) | Self::Stats(_) | Self::Get(_) | Self::Scan(_) | Self::Dump(_) | Self::Completion(_))
    }

    /// Runs it.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Serve(arguments) => arguments.run(),
            Self::Create(arguments) => arguments.run(),
            Self::Info(arguments) => arguments.run(),
            Self::Check(arguments) => arguments.run(),
            Self::Stats(arguments) => arguments.run(),
            Self::Get(arguments) => arguments.run(),
            Self::Put(arguments) => arguments.run(),
            Self::Del(arguments) => arguments.run(),
            Self::Scan(arguments) => arguments.run(),
            Self::Load(arguments) => arguments.run(),
            Self::Dump(arguments) => arguments.run(),
            Self::Backup(arguments) => arguments.run(),
            Self::Restore(arguments) => arguments.run(),
            Self::Export(arguments) => arguments.run(),
            Self::Import(arguments) => arguments.run(),
            Self::Compact(arguments) => arguments.run(),
            Self::Repair(arguments) => arguments.run(),
            Self::Bench(bench) => bench.run(),
            Self::Lab(lab) => lab.run(),
            Self::Completion(arguments) => arguments.run(),
        }
    }
}
