#![forbid(unsafe_code)]
//! Developer tasks: `cargo xtask ci` runs the quick part of CI, the others are long runs.

mod coverage;
mod fuzz;
mod process;
mod results;
mod tidy;

use clap::Parser;
use process::{Failure, cargo, nightly, run};
use std::ffi::OsStr;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Tasks around the code of Everleaf")]
enum Task {
    /// Formatting, tidy, clippy, tests, schedules of threads and documentation: most of what CI does
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
        /// Only on this index, instead of all in turn
        #[arg(long)]
        index: Option<String>,
        /// Transfers only in this domain, instead of page-cache and msync in turn
        #[arg(long)]
        domain: Option<String>,
        /// Only tests with this in their names: write_outlives_kill_9 (single writes, pipelines, MSET), machine (the same, in domain msync, where the machine
        /// fails as well), transfers (transactions), batches (large ones, of MSET and in transactions, in whose middle it is killed) or items (memcached's)
        #[arg(long)]
        only: Option<String>,
    },
    /// Run every fuzz target, or one; needs a nightly toolchain and a C++ compiler
    Fuzz {
        /// For how long each
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only this one
        target: Option<String>,
    },
    /// Recover every image that a crash can leave; the arguments are those of `everleaf lab crash`, and --help shows them
    #[command(disable_help_flag = true)]
    Crash {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Say which lines and branches of recovery, the allocator and the shared tree's changes of structure the crash suites reach; needs a nightly toolchain
    /// with llvm-tools
    Coverage {
        /// For how long they run
        #[arg(long, default_value_t = 10)]
        minutes: u64,
    },
    /// Measure and draw what docs/results shows, on a machine that does nothing else
    Results(results::Arguments),
    /// Run the tests of the crate with the unsafe code under miri, and those of an index's orders; those with threads under many schedules; needs a nightly
    /// toolchain
    Miri {
        /// How many schedules of threads to try
        #[arg(long, default_value_t = 16)]
        seeds: u32,
        /// Run only tests whose names contain one of these, under all schedules
        filters: Vec<String>,
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
        Task::Kill { rounds, seed, index, domain, only } => {
            let mut command = cargo(&["test", "--package", "everleaf-cli", "--test", "kill", "--", "--nocapture"]);
            let settings = [("ROUNDS", Some(rounds.to_string())), ("SEED", seed.map(|seed| seed.to_string())), ("INDEX", index), ("DOMAIN", domain)];
            command.envs(settings.into_iter().filter_map(|(name, value)| Some((format!("EVERLEAF_KILL_{name}"), value?))));
            command.args(only);
            run(&mut command)
        }
        Task::Fuzz { seconds, target } => fuzz::run_targets(seconds, target.as_deref()),
        Task::Crash { arguments } => crash(&arguments),
        Task::Coverage { minutes } => coverage::measure(minutes),
        Task::Results(arguments) => results::measure(&arguments),
        Task::Miri { seeds, filters } => miri(seeds, &filters),
    }
}

/// Options for miri, which looks for data races, reorderings that the memory model allows and no x86-64 does, and invalid memory accesses.
const MIRI_FLAGS: [&str; 4] = [
    // The size of memory and the randomness of tests come from the system.
    "-Zmiri-disable-isolation",
    // The crate crossbeam-epoch frees a thread's record while it is borrowed, which both aliasing models, stacked and tree borrows, reject. In our code they
    // have nothing to find: shared data are atomic words behind shared references.
    "-Zmiri-disable-stacked-borrows",
    // It keeps the records of ended threads for later ones, until the process ends.
    "-Zmiri-ignore-leaks",
    // It also keeps tags in the low bits of pointers, and so casts them to integers.
    "-Zmiri-permissive-provenance",
];
/// The crates whose unit tests miri runs, the tests selected, and words in the names of those with threads. For indexes, these are the readers during writes:
/// all other code uses latches and epochs, which the first crate's tests cover.
const MIRI_TESTS: [(&str, &[&str], &[&str]); 2] = [
    ("everleaf-pmem", &[], &["thread", "pinned"]),
    ("everleaf-index", &["ever::order::"], &["ever::order::tests::nobody_reads", "ever::order::tests::who_holds"]),
];

/// Runs all tests once, and those that depend on the schedule of threads `seeds` times; with filters, only the chosen tests.
fn miri(seeds: u32, filters: &[String]) -> Result<(), Failure> {
    let flags = MIRI_FLAGS.join(" ");
    let many = format!("{flags} -Zmiri-many-seeds=0..{seeds}");
    for (package, all, with_threads) in MIRI_TESTS {
        let test = || nightly(&["miri", "test", "--package", package, "--lib", "--"]);
        if !filters.is_empty() {
            run(test()?.args(filters).env("MIRIFLAGS", &many))?;
            continue;
        }
        run(test()?.args(all).env("MIRIFLAGS", &flags))?;
        run(test()?.args(with_threads).env("MIRIFLAGS", &many))?;
    }
    Ok(())
}

/// Runs the crash checker in the test profile: it shares its build artifacts, and its debug assertions enable the scheduling points for threads.
fn crash<S: AsRef<OsStr>>(arguments: &[S]) -> Result<(), Failure> {
    run(cargo(&["run", "--profile", "test", "--package", "everleaf-conformance", "--example", "crash", "--"]).args(arguments))
}

/// The steps of CI, cheapest first.
fn ci() -> Result<(), Failure> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(&mut cargo(&["test", "--workspace"]))?;
    crash(&["threads", "--schedules", "3000", "--seed", "1"])?;
    run(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}
