#![forbid(unsafe_code)]
//! The command line of Everleaf: one file per command in `command/`.
//!
//! Exit codes are part of the interface; `failure.rs` lists them.

mod command;
mod failure;
mod options;
mod output;
mod text;

use clap::Parser;
use std::process::ExitCode;

/// An ordered, crash-consistent key-value store in memory that outlives the process.
#[derive(Parser)]
#[command(name = "everleaf", version, after_help = failure::EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    match Arguments::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
