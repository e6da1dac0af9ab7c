//! The report of `docs/results`: measures and draws every claim of the papers that can be judged, the usual benchmarks (YCSB, db_bench, space, instructions),
//! and on request other engines for comparison.

use crate::process::{Failure, cargo, root, run};
use clap::Args;
use std::process::Command;

/// What to measure, and where it goes.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Size of the work, as `everleaf lab reproduce` takes it
    #[arg(long, default_value = "default")]
    scale: String,
    /// Measure other engines, too, and judge the claims about Redis; builds them, which needs a C++ compiler and libclang
    #[arg(long)]
    peers: bool,
    /// The same without RocksDB, which takes longest to build
    #[arg(long, conflicts_with = "peers")]
    peers_without_rocksdb: bool,
    /// Keys with which engines are compared; servers, which take longer for each, are with a tenth
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(100..))]
    peers_keys: u64,
    /// Only the engines: the rest has been measured
    #[arg(long)]
    peers_only: bool,
    /// Where the report goes, from the folder of the workspace on
    #[arg(long, default_value = "docs/results")]
    out: String,
}

/// The panels beside the claims: output name, workloads, and arguments. YCSB and db_bench use string keys, whose records an index must also store; instructions
/// are counted at a fiftieth of the speed. The README has tables of `basic-5m` and `recovery`.
const PANELS: [(&str, &str, &[&str]); 7] = [
    ("ycsb", "ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f", &["--systems", "store,ever,isle,lb,fp,wb,nv,volatile", "--keys", "50000"]),
    ("db-bench", "fillseq,fillrandom,readrandom,readseq,overwrite", &["--systems", "store,ever,isle,lb,fp,wb,nv,volatile", "--keys", "100000"]),
    ("space", "load", &["--measure", "space", "--systems", "ever,isle,lb,fp,wb,nv,store,volatile", "--keys", "1000000"]),
    ("instructions", "basic", &["--measure", "instructions", "--systems", "ever,isle,lb,fp,wb,nv,volatile", "--keys", "20000"]),
    (
        "basic-5m",
        "basic",
        &["--systems", "lb,lb-plain,fp,wb,ever", "--keys", "5000000", "--threads", "1,2", "--directory", "/dev/shm", "--prefault", "--small-pages"],
    ),
    ("recovery", "load", &["--measure", "recovery", "--systems", "isle,lb,fp,wb,nv,ever", "--keys", "1000000,4000000", "--threads", "1,2"]),
    ("plain", "basic,search-dependent,miss,update", &["--systems", "lb,lb-plain,ever", "--keys", "5000000"]),
];

/// Claims about trees in which every node is persistent, which are newer than the stored results of all claims, and those about the newest features.
const LATER: [(&str, &str); 3] = [
    ("persistent-nodes", "A1,A2,A3,A4,A5,A6,A7,A8,A9,A10,A11,A13,C1,C2,C3,E1,E8,E9,E10,E12,E13"),
    ("later", "B18,B19,D26,D27,E1,E8,E9,E10,E11,E12,E13,E14"),
    ("versions", "D1,D2,D5,D8,D9,D11,D12,D13,D14,D15,D16,D17,D18,D19,D28,D29"),
];

/// Engines whose writes survive the process, on tmpfs, where write-back calls do nothing; also redb-nosync and maps, which survive nothing. Here and below, the
/// first engine is the baseline.
const PROCESS: [&str; 13] = [
    "store",
    "store-snapshots",
    "lmdb-nosync",
    "lmdb-writemap",
    "redb-durable",
    "redb-nosync",
    "fjall-nosync",
    "rocksdb-nosync",
    "sled-nosync",
    "btreemap",
    "skipmap",
    "bf-tree",
    "volatile",
];
/// The store and similar ordered engines alone, so that their turns are closer together.
const LMDB: [&str; 5] = ["store", "store-snapshots", "lmdb-nosync", "lmdb-writemap", "redb-durable"];
/// Maps of integers: indexes of the registry, and volatile ones.
const INTEGERS: [&str; 7] = ["ever", "lb", "volatile", "congee", "btreemap", "skipmap", "bf-tree"];
/// Engines whose writes survive a power failure, on a disk.
const DISK: [&str; 6] = ["store", "lmdb-durable", "redb-durable", "fjall-durable", "rocksdb-durable", "sled-durable"];
/// Keys of 16 B and values of 100 B, and integers.
const STRINGS: [&str; 2] = ["16", "100"];
const WORDS: [&str; 2] = ["integer", "8"];
/// Files on a tmpfs, where each engine has the pages that it asks for: the store 2 MiB, others the 4 KiB of the tmpfs; or where all have these; and on a disk,
/// durable against power failure or, for servers, not.
const TMPFS: [&str; 4] = ["--domains", "page-cache", "--directory", "/dev/shm"];
const SMALL_PAGES: [&str; 5] = ["--domains", "page-cache", "--directory", "/dev/shm", "--small-pages"];
const DURABLE: [&str; 4] = ["--domains", "msync", "--directory", "."];
const FILE: [&str; 4] = ["--domains", "page-cache", "--directory", "."];
/// Comparisons of engines by `micro`: output name; where the files are; sizes of keys and values; the number of keys as a percentage of that asked for; and the
/// systems. On a disk, which takes a thousand times as long, it is a hundredth; and where much more than the processor's caches hold is to be read, tenfold.
type Panel = (&'static str, &'static [&'static str], [&'static str; 2], u64, &'static [&'static str]);
const ENGINES: [Panel; 6] = [
    ("disk", &DURABLE, STRINGS, 1, &DISK),
    ("peers", &SMALL_PAGES, STRINGS, 100, &PROCESS),
    ("lmdb", &SMALL_PAGES, STRINGS, 100, &LMDB),
    ("lmdb-defaults", &TMPFS, STRINGS, 100, &LMDB),
    ("lmdb-large", &TMPFS, STRINGS, 1000, &LMDB),
    ("integers", &SMALL_PAGES, WORDS, 100, &INTEGERS),
];
/// Output name of the comparison of servers.
const SERVED: &str = "servers";
/// Servers, with the programs that must be installed for them.
const SERVERS: [(&str, Option<&str>); 8] = [
    ("server", None),
    ("redis-memory", Some("redis-server")),
    ("redis-everysec", Some("redis-server")),
    ("redis-always", Some("redis-server")),
    ("valkey-memory", Some("valkey-server")),
    ("valkey-everysec", Some("valkey-server")),
    ("valkey-always", Some("valkey-server")),
    ("memcached", Some("memcached")),
];

/// Measures and draws everything.
pub(crate) fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let has_peers = arguments.peers || arguments.peers_without_rocksdb;
    let program = || if has_peers { peers(arguments.peers) } else { everleaf() };
    run(&mut cargo(&["build", "--release", "--package", "everleaf-cli"]))?;
    if !arguments.peers_only {
        report(&arguments.out, program().args(["lab", "reproduce", "all", "--scale", &arguments.scale]))?;
        for (place, claims) in LATER {
            let reproduce = ["lab", "reproduce", "all", "--rounds", "5", "--claims", claims, "--scale", &arguments.scale];
            report(&format!("{}/{place}", arguments.out), program().args(reproduce))?;
        }
        for (place, workloads, options) in PANELS {
            report(&format!("{}/{place}", arguments.out), everleaf().args(["lab", "run", "--workload", workloads]).args(options))?;
        }
    }
    if !has_peers {
        return Ok(());
    }
    let measure = |place: &str, workload: &[&str], memory: &[&str], [key, value_bytes]: [&str; 2], keys: u64, systems: &[&str]| {
        let mut command = program();
        let systems: Vec<&str> = systems.iter().copied().filter(|name| arguments.peers || !name.starts_with("rocksdb")).collect();
        command.args(["lab", "run", "--key", key, "--value-bytes", value_bytes]).args(memory);
        command.args(["--workload"]).args(workload).args(["--keys", &keys.to_string(), "--systems", &systems.join(",")]);
        report(&format!("{}/{place}", arguments.out), &mut command)
    };
    let keys = arguments.peers_keys;
    for (place, memory, sizes, percent, systems) in ENGINES {
        measure(place, &["micro"], memory, sizes, keys * percent / 100, systems)?;
    }
    let servers: Vec<&str> = SERVERS.iter().filter(|(_, program)| program.is_none_or(is_installed)).map(|(name, _)| *name).collect();
    measure(SERVED, &["basic", "--threads", "1,2"], &FILE, STRINGS, keys / 10, &servers)
}

/// Makes `command` write its results into a new folder and draw them there. Paths are relative to the workspace, so results reveal nothing of a machine.
fn report(out: &str, command: &mut Command) -> Result<(), Failure> {
    let lines = format!("{out}/results.jsonl");
    if root().join(&lines).exists() {
        return Err(Failure(format!("{lines} is there already: remove it, or choose another place with --out")));
    }
    run(command.args(["--report", out]))
}

/// The program, by a path relative to the workspace.
fn everleaf() -> Command {
    let mut command = Command::new("target/release/everleaf");
    command.current_dir(root());
    command
}

/// The same with the other engines.
fn peers(with_rocksdb: bool) -> Command {
    let mut command = cargo(&["run", "--release", "--manifest-path", "peers/Cargo.toml"]);
    if !with_rocksdb {
        command.arg("--no-default-features");
    }
    command.arg("--");
    command
}

fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: two results had been measured by hand, although the page said that this command had made all of them.
    #[test]
    fn whatever_is_kept_can_be_measured_again() {
        let later = LATER.iter().map(|(place, _)| *place);
        let known: Vec<&str> = PANELS.iter().map(|(place, ..)| *place).chain(ENGINES.iter().map(|(place, ..)| *place)).chain([SERVED]).chain(later).collect();
        for entry in std::fs::read_dir(root().join("docs/results")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap();
            assert!(!path.join("results.jsonl").is_file() || known.contains(&name), "nothing here measures {}", path.display());
        }
    }
}
