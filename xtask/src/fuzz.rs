//! Fuzzing with the flags that `cargo fuzz` would set, so that it need not be installed.

use crate::process::{Failure, nightly, root, run};
use std::fs;
use std::process::Command;

/// Coverage and comparison tracing for libFuzzer, and the address sanitizer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing \
                     -Cdebug-assertions -Zsanitizer=address";
/// With an explicit target, build scripts and procedural macros are built without the flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs each target, or one, for `seconds`. Inputs that fail are kept in `fuzz/artifacts`; giving such a file to the target replays it.
pub(crate) fn run_targets(seconds: u64, only: Option<&str>) -> Result<(), Failure> {
    let targets = targets()?;
    let chosen: Vec<_> = targets.iter().filter(|target| only.is_none_or(|only| only == *target)).collect();
    if chosen.is_empty() {
        return Err(Failure(format!("no such fuzz target; there are: {}", targets.join(", "))));
    }
    let directory = root().join("fuzz");
    run(nightly(&["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", TARGET])?.env("RUSTFLAGS", FLAGS))?;
    for target in chosen {
        let (corpus, artifacts) = (directory.join("corpus").join(target), directory.join("artifacts").join(target));
        for path in [&corpus, &artifacts] {
            fs::create_dir_all(path).map_err(|error| Failure(format!("create {}: {error}", path.display())))?;
        }
        let mut command = Command::new(directory.join("target").join(TARGET).join("release").join(target));
        command.arg(&corpus).arg(format!("-artifact_prefix={}/", artifacts.display())).arg(format!("-max_total_time={seconds}"));
        // An input that takes this long is a finding, because endless loops are not allowed. The memory limit allows for the sanitizer. Inputs may be long from
        // the start: by default the fuzzer begins with four bytes, and never gets further in a target that it calls only a few times a second.
        run(command.args(["-timeout=20", "-rss_limit_mb=4096", "-len_control=0", "-print_final_stats=1", "-verbosity=0"]))?;
    }
    Ok(())
}

/// Names of the targets: the files in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, Failure> {
    let directory = root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&directory).map_err(|error| Failure(format!("read {}: {error}", directory.display())))?;
    let mut targets: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned())).collect();
    targets.sort();
    Ok(targets)
}
