//! Runs the crash suites for as long as one likes, and replays what they find.
//!
//! ```text
//! cargo run --release -p everleaf-conformance --example crash -- --index isle-128 --operations 5 --depth 2
//! cargo run --release -p everleaf-conformance --example crash -- --index isle --keys bytes --random 2000 --sequences 100 --seed 7
//! cargo run --release -p everleaf-conformance --example crash -- --index isle-128 --shape "at split" --only "put 5=12, delete 10"
//! ```

use clap::Parser;
use everleaf_conformance::crash::{Options, Random, Report, every_crash, replay, sampled_crash};
use everleaf_conformance::{Change, Class};
use everleaf_index::registry;
use everleaf_pmem::{Crash, CrashOptions};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Recovers every image that a crash can leave")]
struct Arguments {
    /// Index of the registry
    #[arg(long, default_value = "isle-128")]
    index: String,
    /// Class of keys: u64 or bytes
    #[arg(long, default_value = "u64")]
    keys: String,
    /// Longest sequence of operations, all of which are run
    #[arg(long, default_value_t = 5)]
    operations: usize,
    /// Only this shape
    #[arg(long)]
    shape: Option<String>,
    /// Only this sequence of operations, as a violation prints it
    #[arg(long, requires = "shape")]
    only: Option<String>,
    /// Random sequences of so many operations instead
    #[arg(long)]
    random: Option<usize>,
    /// Number of random sequences
    #[arg(long, default_value_t = 16)]
    sequences: usize,
    /// Number of keys of random sequences
    #[arg(long, default_value_t = 200)]
    keys_count: u32,
    /// How deep recoveries are crashed
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// Use every n-th recovered index on
    #[arg(long, default_value_t = 1)]
    follow_up_every: u64,
    /// Give every n-th image a second life
    #[arg(long, default_value_t = 64)]
    second_life_every: u64,
    /// Largest number of images of a crash point that are all shown
    #[arg(long, default_value_t = 4096)]
    images_max: u64,
    /// Stores are durable at once, as with a cache in the persistence domain
    #[arg(long)]
    durable_cache: bool,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Memory of a thread in KiB
    #[arg(long, default_value_t = 128)]
    memory_kib: usize,
    /// Seed of every random choice
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let report = match arguments.keys.as_str() {
        "u64" => run::<u64>(&arguments),
        "bytes" => run::<[u8]>(&arguments),
        other => Err(format!("no keys of class {other:?}; there are u64 and bytes")),
    };
    match report {
        Ok(report) => {
            println!("{report}");
            let Some(violation) = report.violation else { return ExitCode::SUCCESS };
            println!("{violation}");
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

fn run<K: Class + ?Sized>(arguments: &Arguments) -> Result<Report, String> {
    let entry = registry::<K, Crash>().into_iter().find(|entry| entry.name == arguments.index && entry.persistent);
    let entry = entry.ok_or_else(|| format!("no persistent index named {:?}", arguments.index))?;
    let options = Options {
        operations: arguments.operations,
        random: arguments.random.map(|operations| Random { operations, sequences: arguments.sequences, keys: arguments.keys_count }),
        depth: arguments.depth,
        follow_up_every: arguments.follow_up_every,
        second_life_every: arguments.second_life_every,
        life: CrashOptions { stores_are_durable: arguments.durable_cache, images_max: arguments.images_max, ..CrashOptions::default() },
        shape: arguments.shape.clone(),
        threads: arguments.threads,
        memory: arguments.memory_kib << 10,
        seed: arguments.seed,
        ..Options::default()
    };
    match &arguments.only {
        Some(text) => {
            let changes = text.split(", ").filter(|text| !text.is_empty()).map(parse).collect::<Option<Vec<Change>>>();
            Ok(replay(entry, options, changes.ok_or("operations are written \"put 5=12, delete 10\"")?))
        }
        None if options.random.is_some() => Ok(sampled_crash(entry, options)),
        None => Ok(every_crash(entry, options)),
    }
}

fn parse(text: &str) -> Option<Change> {
    if let Some(key) = text.strip_prefix("delete ") {
        return Some(Change::Delete(key.parse().ok()?));
    }
    let (key, payload) = text.strip_prefix("put ")?.split_once('=')?;
    Some(Change::Put(key.parse().ok()?, payload.parse().ok()?))
}
