//! Measures which lines and branches of recovery, the allocator and structure changes the crash suites reach, with one thread and with several, and lists those
//! that they never reach, with the reason if it is known.
//!
//! Branch coverage is unstable, so this needs a nightly toolchain and its LLVM tools (`rustup component add llvm-tools`).

use crate::process::{Failure, nightly, root, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts to measure, with their files.
const PARTS: [(&str, &[&str]); 3] = [
    (
        "recovery",
        &[
            "pmem/src/pool.rs",
            "pmem/src/pool/",
            "pmem/src/alloc/reach.rs",
            "pmem/src/alloc/snapshot.rs",
            "index/src/selective/open.rs",
            "index/src/ever/open.rs",
            "index/src/fair/open.rs",
            "index/src/pf/open.rs",
            "index/src/bz/open.rs",
            "index/src/skip/open.rs",
            "index/src/image.rs",
            "store/src/recovery.rs",
        ],
    ),
    ("allocator", &["pmem/src/alloc.rs", "pmem/src/alloc/", "pmem/src/block.rs", "pmem/src/epoch.rs"]),
    (
        "changes of structure",
        &[
            "index/src/selective.rs",
            "index/src/selective/",
            "index/src/ever.rs",
            "index/src/ever/",
            "index/src/fair.rs",
            "index/src/fair/",
            "index/src/pf.rs",
            "index/src/pf/",
            "index/src/bz.rs",
            "index/src/bz/",
            "index/src/skip.rs",
            "index/src/skip/",
            "index/src/arena.rs",
            "index/src/record.rs",
            "index/src/shift.rs",
            "index/src/strings.rs",
        ],
    ),
];

/// What the threads run on, and the number of schedules.
const THREADS: [(&str, u32); 4] = [("isle-128", 3000), ("lb-128", 3000), ("store/isle-128", 200), ("allocator", 1000)];

/// Reasons why the suites do not reach some lines, with words in such lines; the first match counts.
const REASONS: [(&str, &[&str]); 5] = [
    (
        "what is read is damaged (the corruption suites and the fuzz targets show such pools)",
        &["corrupt(", "damage", "Err(\"", "Checksum", "NotAPool", "newer(", "twice()"],
    ),
    ("another thread is in the way, or leaves (the suites of threads)", &["Restart", "release_unchanged", "spin()", "rest()", "retain(", "give_up"]),
    ("files and the system (the tests of the pool, and kill -9)", &["Path", "path", "Sysfs", "Domain::", "mapping", "synchronise", "Mode::", "failure"]),
    (
        "the caller is refused (unit tests)",
        &["BadOption", "RootName", "RootExists", "NotEmpty", "not_empty", "Unsorted", "NoSpace", "missing()", "return Err(error)"],
    ),
    ("several threads recover (the suites of opening again)", &["batch", "worker", "done.", "recovery.threads"]),
];

/// The counts of a file.
#[derive(Default)]
struct File {
    lines: BTreeMap<u32, bool>,
    /// Branches of each line, and whether they were taken.
    branches: BTreeMap<u32, Vec<bool>>,
}

/// Runs every world for this long, and threads, and prints the coverage.
pub(crate) fn measure(minutes: u64) -> Result<(), Failure> {
    let (target, tools) = (root().join("target/coverage"), tools()?);
    let counts = target.join("counts");
    // Counts of earlier runs belong to other code.
    let _ = std::fs::remove_dir_all(&counts);
    let cargo = |arguments: &[&str]| {
        let mut command = nightly(arguments)?;
        command.env("RUSTFLAGS", "-C instrument-coverage -Z coverage-options=branch").env("CARGO_TARGET_DIR", &target);
        // Build scripts and macros are instrumented too, and need a file for their counts.
        command.env("LLVM_PROFILE_FILE", target.join("build.profraw"));
        Ok(command)
    };
    run(&mut cargo(&["build", "--profile", "test", "--package", "everleaf-conformance", "--example", "crash"])?)?;
    let program = target.join("debug/examples/crash");
    let crash = |arguments: &[&str]| run(Command::new(&program).args(arguments).env("LLVM_PROFILE_FILE", counts.join("%p.profraw")).current_dir(root()));
    crash(&["long", "--minutes", &minutes.to_string(), "--closes"])?;
    for (index, schedules) in THREADS {
        crash(&["threads", "--index", index, "--schedules", &schedules.to_string()])?;
    }

    let merged = counts.join("merged.profdata");
    run(Command::new(tools.join("llvm-profdata")).args(["merge", "--sparse", "-o"]).arg(&merged).arg(&counts))?;
    let mut export = Command::new(tools.join("llvm-cov"));
    export.args(["export", "--format=lcov", "--unify-instantiations", "--instr-profile"]).arg(&merged).arg(&program);
    let output = export.output().map_err(|error| Failure(format!("llvm-cov: {error}")))?;
    if !output.status.success() {
        return Err(Failure(format!("llvm-cov: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let files = read(&String::from_utf8_lossy(&output.stdout));
    print(&files);
    all_are_in(|wanted| files.keys().any(|name| is_of(name, wanted))).map_err(Failure)
}

/// Whether a part names this file, or a folder that contains it.
fn is_of(name: &str, wanted: &str) -> bool {
    if wanted.ends_with('/') { name.starts_with(wanted) } else { name == wanted }
}

/// Checks that all files to be measured exist; the error names the missing one.
fn all_are_in(is_there: impl Fn(&str) -> bool) -> Result<(), String> {
    let missing: Vec<_> = PARTS.iter().flat_map(|(_, wanted)| *wanted).filter(|wanted| !is_there(wanted)).copied().collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("PARTS has what is not there: {}", missing.join(", "))) }
}

/// The folder of the toolchain's LLVM tools.
fn tools() -> Result<PathBuf, Failure> {
    let output = Command::new("rustup").args(["run", "nightly", "rustc", "--print", "target-libdir"]).output();
    let folder = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).map(|path| Path::new(path.trim()).with_file_name("bin"));
    folder
        .filter(|folder| folder.join("llvm-cov").exists())
        .ok_or_else(|| Failure("this needs the tools of a nightly toolchain: rustup toolchain install nightly --component llvm-tools".into()))
}

/// Reads an lcov trace: the files of the workspace, by relative path.
fn read(trace: &str) -> BTreeMap<String, File> {
    let prefix = format!("{}/crates/", root().display());
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    let mut current = None;
    for line in trace.lines() {
        let (kind, rest) = line.split_once(':').unwrap_or((line, ""));
        let numbers: Vec<Option<u64>> = rest.split(',').map(|number| number.parse().ok()).collect();
        match (kind, &numbers[..]) {
            ("SF", _) => current = rest.strip_prefix(&prefix).map(str::to_owned),
            ("DA", [Some(number), count, ..]) => {
                if let Some(name) = &current {
                    *files.entry(name.clone()).or_default().lines.entry(*number as u32).or_default() |= count.is_some_and(|count| count > 0);
                }
            }
            // A count of `-` means that the branch was never evaluated.
            ("BRDA", [Some(number), .., count]) => {
                if let Some(name) = &current {
                    files.entry(name.clone()).or_default().branches.entry(*number as u32).or_default().push(count.is_some_and(|count| count > 0));
                }
            }
            _ => {}
        }
    }
    files
}

fn print(files: &BTreeMap<String, File>) {
    println!("\n| part | file | lines | covered | branches | taken |\n|---|---|---|---|---|---|");
    let mut seen = BTreeSet::new();
    let mut missed = Vec::new();
    for (part, wanted) in PARTS {
        let of_part = |name: &str| wanted.iter().any(|wanted| is_of(name, wanted));
        let mut sums = [0; 4];
        for (name, file) in files.iter().filter(|(name, _)| of_part(name)) {
            if !seen.insert(name) {
                continue;
            }
            let branches: Vec<bool> = file.branches.values().flatten().copied().collect();
            let counts = [file.lines.len(), count(file.lines.values()), branches.len(), count(&branches)];
            counts.iter().zip(&mut sums).for_each(|(count, sum)| *sum += count);
            row(part, name, counts);
            missed.push((name, file));
        }
        row(part, "all of it", sums);
    }
    let gaps: Vec<_> =
        missed.into_iter().flat_map(|(name, file)| gaps(name, file, &std::fs::read_to_string(root().join("crates").join(name)).unwrap_or_default())).collect();
    let reasons = REASONS.iter().map(|(reason, _)| Some(*reason)).chain([None]);
    for reason in reasons {
        let of_reason = gaps.iter().filter(|gap| gap.reason() == reason);
        println!("\n{}: {}", reason.unwrap_or("to be looked at"), of_reason.clone().count());
        of_reason.for_each(|gap| println!("  {gap}"));
    }
}

/// Adjacent lines that were never reached, or whose branches went only one way.
struct Gap<'a> {
    file: &'a str,
    lines: RangeInclusive<u32>,
    text: Vec<String>,
}

impl Gap<'_> {
    fn reason(&self) -> Option<&'static str> {
        let fits = |word: &&str| self.text.iter().any(|line| line.contains(word));
        let known = REASONS.iter().find(|(_, words)| words.iter().any(fits));
        known.map(|(reason, _)| *reason)
    }
}

impl fmt::Display for Gap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.lines.start(), self.lines.end());
        write!(f, "{}:{first}", self.file)?;
        if last > first {
            write!(f, "-{last}")?;
        }
        write!(f, ": {}", self.text[0])
    }
}

/// The gaps of a file. A line that only closes a block joins the lines before it.
fn gaps<'a>(name: &'a str, file: &File, text: &str) -> Vec<Gap<'a>> {
    let code: Vec<_> = text.lines().map(str::trim).collect();
    let line = |number: u32| code.get(number as usize - 1).copied().unwrap_or_default();
    let unseen = |number: &u32| file.lines.get(number) == Some(&false);
    let one_way = |number: &u32| file.branches.get(number).is_some_and(|branches| branches.contains(&false));
    let numbers: BTreeSet<u32> = file.lines.keys().chain(file.branches.keys()).copied().filter(|number| unseen(number) || one_way(number)).collect();
    let mut gaps: Vec<Gap<'a>> = Vec::new();
    for number in numbers {
        match gaps.last_mut() {
            Some(gap) if (gap.lines.end() + 1..number).all(|between| !file.lines.contains_key(&between)) => {
                gap.text.extend((gap.lines.end() + 1..=number).map(|number| line(number).to_owned()));
                gap.lines = *gap.lines.start()..=number;
            }
            _ => gaps.push(Gap { file: name, lines: number..=number, text: vec![line(number).to_owned()] }),
        }
    }
    gaps.retain(|gap| gap.text.iter().any(|line| line.chars().any(char::is_alphanumeric)));
    gaps
}

fn count<'a>(seen: impl IntoIterator<Item = &'a bool>) -> usize {
    seen.into_iter().filter(|seen| **seen).count()
}

fn row(part: &str, name: &str, [lines, covered, branches, taken]: [usize; 4]) {
    let share = |some: usize, of: usize| if of == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * some as f64 / of as f64) };
    println!("| {part} | {name} | {lines} | {} | {branches} | {} |", share(covered, lines), share(taken, branches));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read() {
        let root = root();
        let here = root.display();
        let trace = format!("SF:{here}/crates/a.rs\nDA:1,0\nDA:2,7\nDA:1,3\nBRDA:2,0,0,-\nBRDA:2,0,1,4\nend_of_record\nSF:/elsewhere.rs\nDA:1,1\n");
        let files = read(&trace);
        assert_eq!(files.len(), 1);
        assert_eq!(files["a.rs"].lines, BTreeMap::from([(1, true), (2, true)]));
        assert_eq!(files["a.rs"].branches[&2], [false, true]);
    }

    #[test]
    fn what_is_looked_at_is_there() {
        assert_eq!(all_are_in(|wanted| root().join("crates").join(wanted).exists()), Ok(()));
    }

    #[test]
    fn lines_that_stand_together_are_one_gap() {
        let file =
            File { lines: BTreeMap::from([(1, true), (2, false), (4, false), (5, true), (6, false)]), branches: BTreeMap::from([(1, vec![true, false])]) };
        let gaps = gaps("a.rs", &file, "if off > end {\n    return Err(\n        // Why.\n        corrupt(off));\nelse\n}\n");
        let [gap] = &gaps[..] else { panic!("the last line only closes a block") };
        assert_eq!((gap.lines.clone(), gap.reason()), (1..=4, Some(REASONS[0].0)));
        assert_eq!(gap.to_string(), "a.rs:1-4: if off > end {");
    }
}
