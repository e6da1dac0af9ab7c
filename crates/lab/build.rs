//! Tells the commit that is built, as `+` and its name, for the results; outside of a repository, nothing.

use std::path::Path;
use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let tracked = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| tracked).map_or_else(String::new, |commit| format!("+{commit}"));
    let changed = git(&["status", "--porcelain", "--", ".."]).is_some_and(|changes| !changes.is_empty());
    println!("cargo::rustc-env=EVERLEAF_COMMIT={commit}{}", if changed && !commit.is_empty() { ".changed" } else { "" });
    // Whatever moves HEAD, and every crate that is measured.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    for path in log.iter().map(String::as_str).chain(["build.rs", "src", "../index", "../pmem", "../server", "../store"]) {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
