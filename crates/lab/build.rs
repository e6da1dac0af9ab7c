//! Tells the commit that is built, as `+` and its name, and how, for the results; outside of a repository, no commit.

use std::env;
use std::path::Path;
use std::process::Command;

/// All that what is measured is built from: crates, here and of the other engines, versions of others, profiles, the compiler.
const SOURCES: [&str; 7] =
    ["..", "../../Cargo.toml", "../../Cargo.lock", "../../rust-toolchain.toml", "../../peers/Cargo.toml", "../../peers/Cargo.lock", "../../peers/src"];

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let tracked = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| tracked).map_or_else(String::new, |commit| format!("+{commit}"));
    let status = [["status", "--porcelain", "--"].as_slice(), &SOURCES].concat();
    let changed = git(&status).is_some_and(|changes| !changes.is_empty());
    println!("cargo::rustc-env=EVERLEAF_BUILD={commit}{}{}", if changed && !commit.is_empty() { ".changed" } else { "" }, manner());
    // Whatever moves HEAD, and whatever is built.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    for path in log.iter().map(String::as_str).chain(SOURCES) {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// How it is built, if that is not as a release, fully optimised and without flags: times of another are those of another program.
fn manner() -> String {
    let of = |name| env::var(name).unwrap_or_default();
    let (profile, level, flags) = (of("PROFILE"), of("OPT_LEVEL"), of("CARGO_ENCODED_RUSTFLAGS").replace('\u{1f}', " "));
    let told = [(profile != "release", profile), (level != "3", format!("opt-level {level}")), (!flags.is_empty(), flags)];
    told.into_iter().filter(|(is_other, _)| *is_other).map(|(_, what)| format!(" {what}")).collect()
}
