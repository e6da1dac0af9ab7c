//! Runs other programs from the root of the workspace.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a task failed, as a sentence.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// The cargo that runs this.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Cargo of the nightly toolchain, through rustup.
pub(crate) fn nightly(arguments: &[&str]) -> Result<Command, Failure> {
    let mut check = Command::new("rustup");
    let found = check.args(["run", "nightly", "rustc", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(Failure("this needs a nightly toolchain: rustup toolchain install nightly --component miri --component rust-src".into()));
    }
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments).current_dir(root());
    // The outer cargo sets these for its own toolchain.
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    Ok(command)
}

/// Runs `command`, which must succeed.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_string_lossy().into_owned()).collect();
    let line = words.join(" ");
    eprintln!("> {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure(format!("{line}: {status}"))),
        Err(error) => Err(Failure(format!("{line}: {error}"))),
    }
}
