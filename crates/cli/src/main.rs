#![forbid(unsafe_code)]
//! The command line of Everleaf: one file per command in `command/`.
//!
//! Exit codes are part of the interface; `failure.rs` lists them.

mod command;
mod entry;
mod failure;
mod interrupt;
mod options;
mod output;
mod server;
mod text;
mod transfer;

use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;

/// An ordered, crash-consistent key-value store in memory that outlives the process.
#[derive(Parser)]
#[command(name = "everleaf", version, after_help = failure::EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: command::Command,
}

fn main() -> ExitCode {
    // A pool or an output that reaches the limit of file sizes is an error like a full disk. Without this the signal would end the process; with it the system
    // call fails. Registering cannot fail for this signal, and if it did, nothing else would depend on it.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let command = Arguments::parse().command;
    let only_prints = command.only_prints();
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(only_prints),
    }
}
