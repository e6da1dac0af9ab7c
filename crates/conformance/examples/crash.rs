//! The crash checker as a separate program: `cargo xtask crash`.

use clap::Parser;
use everleaf_conformance::command::Command;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Recovers every image that a crash can leave, and checks the checker")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Arguments::parse().command.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}
