#![forbid(unsafe_code)]
//! Tasks around the code: `cargo xtask ci` does what CI does, the others are the long runs.

mod fuzz;
mod process;
mod tidy;

use clap::Parser;
use process::{Failure, cargo, nightly, run};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tasks around the code of Everleaf")]
enum Task {
    /// Formatting, tidy, clippy, tests and documentation, as CI does it
    Ci,
    /// What the compiler does not check: width of lines, head comments, forbidden words, links
    Tidy,
    /// Kill the real server under load, again and again, and verify what it acknowledged
    Kill {
        /// How often
        #[arg(long, default_value_t = 5000)]
        rounds: u64,
        /// Seed of every random choice; a random one is taken and printed
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Run every fuzz target, or one; needs a nightly toolchain and a C++ compiler
    Fuzz {
        /// For how long each
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only this one
        target: Option<String>,
    },
    /// Recover every image that a crash can leave; the arguments are those of the example `crash` of the conformance crate, and --help shows them
    #[command(disable_help_flag = true)]
    Crash {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the tests of the crate with the unsafe code under miri; needs a nightly toolchain
    Miri {
        /// How many schedules of threads to try
        #[arg(long, default_value_t = 4)]
        seeds: u32,
        /// What follows --, such as the name of a test
        #[arg(last = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match do_task(Task::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn do_task(task: Task) -> Result<(), Failure> {
    match task {
        Task::Ci => ci(),
        Task::Tidy => tidy::run(),
        Task::Kill { rounds, seed } => {
            let mut command = cargo(&["test", "--package", "everleaf-cli", "--test", "kill", "--", "--nocapture"]);
            command.env("EVERLEAF_KILL_ROUNDS", rounds.to_string());
            if let Some(seed) = seed {
                command.env("EVERLEAF_KILL_SEED", seed.to_string());
            }
            run(&mut command)
        }
        Task::Fuzz { seconds, target } => fuzz::run_targets(seconds, target.as_deref()),
        Task::Crash { arguments } => run(cargo(&["run", "--release", "--package", "everleaf-conformance", "--example", "crash", "--"]).args(arguments)),
        Task::Miri { seeds, arguments } => {
            // The pool's lock and its size come from the system, which miri isolates unless told otherwise.
            let flags = format!("-Zmiri-many-seeds=0..{seeds} -Zmiri-disable-isolation");
            run(nightly(&["miri", "test", "--package", "everleaf-pmem", "--lib", "--"])?.args(arguments).env("MIRIFLAGS", flags))
        }
    }
}

/// What CI does, cheapest first.
fn ci() -> Result<(), Failure> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(&mut cargo(&["test", "--workspace"]))?;
    run(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}
