//! Everleaf beside other engines: the lab's commands, with more systems to choose from.
//!
//! ```text
//! everleaf-peers lab list
//! everleaf-peers lab run --systems store,lmdb-durable,redb-durable,btreemap --workload ycsb-a,ycsb-b --output peers.jsonl
//! ```
//!
//! All of them do the same work in the same run, in turns, on one driver, and the lines of JSON are those that `everleaf lab report` draws.

#![deny(unsafe_code)]

mod bf_tree;
mod congee;
mod embedded;
mod fjall;
mod lmdb;
mod maps;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod server;
mod sled;
#[cfg(test)]
mod tests;

use clap::{Parser, Subcommand};
use everleaf_lab::command::Command;
use everleaf_lab::{Error, System};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The command line.
#[derive(Parser)]
#[command(name = "everleaf-peers", version, about = "Measure Everleaf beside other engines")]
struct Arguments {
    #[command(subcommand)]
    top: Top,
}

/// As in `everleaf`, so that its commands can be repeated with this program.
#[derive(Subcommand)]
enum Top {
    /// Measure structures and engines on the same work
    #[command(subcommand)]
    Lab(Command),
}

fn main() -> ExitCode {
    let Arguments { top: Top::Lab(command) } = Arguments::parse();
    let stop = Arc::new(AtomicBool::new(false));
    let mut systems = everleaf_lab::systems();
    systems.extend(peers());
    match listen(&stop).and_then(|()| command.run_with(systems, &stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("everleaf-peers: {error}");
            if matches!(error, Error::Interrupted) { ExitCode::from(130) } else { ExitCode::FAILURE }
        }
    }
}

/// Sets `stop` when the program is asked to end, and ends it when it is asked again.
fn listen(stop: &Arc<AtomicBool>) -> Result<(), Error> {
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .map_err(|source| Error::Io { action: "listen for signals".into(), source })?;
    }
    Ok(())
}

/// Every other engine.
fn peers() -> Vec<Box<dyn System>> {
    let mut systems = Vec::new();
    systems.extend(lmdb::systems());
    systems.extend(redb::systems());
    systems.extend(fjall::systems());
    #[cfg(feature = "rocksdb")]
    systems.extend(rocksdb::systems());
    systems.extend(sled::systems());
    systems.extend(maps::systems());
    systems.extend(congee::systems());
    systems.extend(bf_tree::systems());
    systems.extend(server::systems());
    systems
}
