//! Checks that the compiler and its lints do not make.
//!
//! 1. Lines of Rust have at most 160 columns: the formatter breaks code at 160, but not comments and strings. No line ends in spaces.
//! 2. Every Rust file begins with a comment that says what it is for.
//! 3. Every crate except `pmem` and the peers, one of which needs unsafe code to be opened, forbids unsafe code. Every crate uses the lints of the workspace,
//!    one of which demands a reason for each unsafe block.
//! 4. No file contains reminders of unfinished work, or a path of a developer's machine.
//! 5. Links in the documents have valid targets.

use crate::process::{Failure, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const WIDTH_MAX: usize = 160;

/// Words that no file may contain, in halves, because this is a file too.
const FORBIDDEN: [[&str; 2]; 10] = [
    ["TO", "DO"],
    ["FIX", "ME"],
    ["XX", "X"],
    ["PROVIS", "IONAL"],
    ["dbg", "!("],
    ["unimpl", "emented!("],
    ["/ho", "me/"],
    ["/wo", "rk/"],
    ["/ro", "ot/"],
    ["/tm", "p/"],
];

/// Checks every file under version control, and prints the violations.
pub(crate) fn run() -> Result<(), Failure> {
    let mut findings = Vec::new();
    for path in files()? {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        // The lab's drawings embed fonts as text, which contains every word by chance.
        if !(path.starts_with("docs/results") && path.extension().is_some_and(|extension| extension == "html" || extension == "svg")) {
            check_text(&path, &text, &mut findings);
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => check_code(&path, &text, &mut findings),
            Some("toml") if path.ends_with("Cargo.toml") => check_manifest(&path, &text, &mut findings),
            Some("md") => check_links(&path, &text, &mut findings),
            _ => {}
        }
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() { Ok(()) } else { Err(Failure(format!("tidy: {} findings", findings.len()))) }
}

/// Every file under version control, and every new one.
fn files() -> Result<Vec<PathBuf>, Failure> {
    let output = Command::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root()).output();
    let output = output.map_err(|error| Failure(format!("git ls-files: {error}")))?;
    if !output.status.success() {
        return Err(Failure(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_terminator('\0').filter(|path| !path.ends_with(".lock") && !path.contains("proptest-regressions")).map(PathBuf::from).collect())
}

fn check_text(path: &Path, text: &str, findings: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        let mut note = |what: String| findings.push(format!("{}:{number}: {what}", path.display()));
        if line.ends_with([' ', '\t']) {
            note("white space at the end of the line".into());
        }
        for word in FORBIDDEN.map(|halves| halves.concat()) {
            if line.contains(&word) {
                note(format!("{word} must not stand here"));
            }
        }
    }
}

fn check_code(path: &Path, text: &str, findings: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        let width = line.chars().count();
        if width > WIDTH_MAX {
            findings.push(format!("{}:{number}: {width} columns, at most {WIDTH_MAX} fit", path.display()));
        }
    }
    let first = text.lines().find(|line| !line.starts_with("#![") && !line.is_empty()).unwrap_or_default();
    if !first.starts_with("//!") {
        findings.push(format!("{}:1: the file does not begin with a comment that says what it is for", path.display()));
    }
    let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|root| path.ends_with(root));
    let may_be_unsafe = path.starts_with("crates/pmem") || path.starts_with("peers");
    if is_root && !may_be_unsafe && !text.contains("#![forbid(unsafe_code)]") {
        findings.push(format!("{}:1: the crate does not forbid unsafe code", path.display()));
    }
}

fn check_manifest(path: &Path, text: &str, findings: &mut Vec<String>) {
    if text.contains("[package]") && path.starts_with("crates") && !text.contains("[lints]\nworkspace = true") {
        findings.push(format!("{}:1: the crate does not take the lints of the workspace", path.display()));
    }
}

fn check_links(path: &Path, text: &str, findings: &mut Vec<String>) {
    let folder = path.parent().unwrap_or(Path::new(""));
    for (number, line) in (1..).zip(text.lines()) {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let file = link.split('#').next().unwrap_or_default();
            if !link.contains("://") && !file.is_empty() && !root().join(folder).join(file).exists() {
                findings.push(format!("{}:{number}: the link to {link} leads nowhere", path.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(check: fn(&Path, &str, &mut Vec<String>), path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(Path::new(path), text, &mut findings);
        findings.len()
    }

    #[test]
    fn what_is_untidy_is_found() {
        assert_eq!(findings_of(check_text, "a.md", &format!("fine\n{}\ntrailing \n\t", FORBIDDEN[0].concat())), 3);
        assert_eq!(findings_of(check_code, "crates/a/src/b.rs", "//! Says what it is for.\nfn main() {}"), 0);
        assert_eq!(findings_of(check_code, "crates/a/src/b.rs", "fn main() {}"), 1);
        assert_eq!(findings_of(check_code, "crates/a/src/lib.rs", "//! Fine."), 1);
        assert_eq!(findings_of(check_code, "crates/a/src/b.rs", &format!("//! {}", "x".repeat(160))), 1);
        assert_eq!(findings_of(check_manifest, "crates/a/Cargo.toml", "[package]"), 1);
        assert_eq!(findings_of(check_links, "README.md", "[here](Cargo.toml#x) [there](https://example.org) [nowhere](nowhere.md)"), 1);
    }
}
