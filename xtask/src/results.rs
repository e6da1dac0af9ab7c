//! The report of `docs/results`: every claim of the papers that can be judged, measured and drawn; and on request other engines beside.

use crate::process::{Failure, cargo, root, run};
use clap::Args;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What to measure, and where it goes.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Size of the work, as `everleaf lab reproduce` takes it
    #[arg(long, default_value = "default")]
    scale: String,
    /// Measure other engines, too; builds them, which needs a C++ compiler and libclang
    #[arg(long)]
    peers: bool,
    /// The same without RocksDB, which takes longest to build
    #[arg(long)]
    peers_without_rocksdb: bool,
    /// Keys with which engines are compared
    #[arg(long, default_value_t = 1_000_000)]
    peers_keys: u64,
    /// Where the report goes, instead of docs/results
    #[arg(long, default_value = "docs/results")]
    out: String,
}

/// The engines that are compared: each way of being durable, and what is lost with the process.
const ENGINES: [&str; 11] =
    ["store", "lmdb-durable", "lmdb-nosync", "redb-durable", "fjall-durable", "fjall-nosync", "sled-nosync", "btreemap", "skipmap", "bf-tree", "volatile"];
const ROCKSDB: [&str; 2] = ["rocksdb-durable", "rocksdb-nosync"];

/// Measures, and draws.
pub(crate) fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let out = root().join(&arguments.out);
    run(&mut cargo(&["build", "--release", "--package", "everleaf-cli"]))?;
    let lines = fresh(&out, "results.jsonl")?;
    run(everleaf().args(["lab", "reproduce", "all", "--scale", &arguments.scale, "--output"]).arg(&lines))?;
    run(everleaf().args(["lab", "report"]).arg(&lines).arg("--out").arg(&out))?;
    if !arguments.peers && !arguments.peers_without_rocksdb {
        return Ok(());
    }
    let out = out.join("peers");
    let lines = fresh(&out, "peers.jsonl")?;
    let (mut engines, mut command) = (ENGINES.to_vec(), cargo(&["run", "--release", "--manifest-path", "peers/Cargo.toml"]));
    if arguments.peers_without_rocksdb {
        command.arg("--no-default-features");
    } else {
        engines.extend(ROCKSDB);
    }
    let keys = arguments.peers_keys.to_string();
    command.args(["--", "lab", "run", "--workload", "micro", "--key", "16", "--value-bytes", "100", "--domains", "page-cache", "--keys", &keys]);
    run(command.args(["--systems", &engines.join(","), "--directory", "/dev/shm", "--output"]).arg(&lines))?;
    run(everleaf().args(["lab", "report"]).arg(&lines).arg("--out").arg(&out))
}

fn everleaf() -> Command {
    let mut command = Command::new(root().join("target/release/everleaf"));
    command.current_dir(root());
    command
}

/// The path of a file in `out` that is not there: `lab` writes nothing over.
fn fresh(out: &Path, name: &str) -> Result<std::path::PathBuf, Failure> {
    let path = out.join(name);
    fs::create_dir_all(out).map_err(|error| Failure(format!("create {}: {error}", out.display())))?;
    if path.exists() {
        return Err(Failure(format!("{} is there already: remove it, or choose another place with --out", path.display())));
    }
    Ok(path)
}
