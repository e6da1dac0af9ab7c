//! Standard output: locked once, buffered, with failures reported instead of panics. Standard error, whose failures cannot be reported.

use crate::failure::Failure;
use crate::text;
use everleaf::Damage;
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{BufWriter, StdoutLock, Write};

/// Number of damages printed individually, except as JSON.
const DAMAGES_SHOWN_MAX: usize = 64;

/// All damages as JSON.
pub(crate) fn damages_as_json(damages: &[Damage]) -> Value {
    damages.iter().map(|damage| json!({ "namespace": damage.namespace, "what": damage.what })).collect()
}

/// Prints a message of this program to standard error.
pub(crate) fn tell(what: impl Display) {
    say(format_args!("everleaf: {what}"));
}

/// Writes a line to standard error. If that is closed, the line is lost, and the command goes on.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Standard output.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, std::io::stdout().lock()))
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(Failure::Output)
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> Result<(), Failure> {
        self.bytes(line.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a line for each damage, up to a readable number.
    pub(crate) fn damages(&mut self, label: &str, damages: &[Damage]) -> Result<(), Failure> {
        for damage in damages.iter().take(DAMAGES_SHOWN_MAX) {
            let place = damage.namespace.as_ref().map_or_else(String::new, |name| format!("namespace {}: ", text::escape(name.as_bytes())));
            self.line(format!("{label}: {place}{}", damage.what))?;
        }
        match damages.len().saturating_sub(DAMAGES_SHOWN_MAX) {
            0 => Ok(()),
            more => self.line(format!("{label}: and {} more, which --json names", text::count(more as u64))),
        }
    }

    /// Writes a JSON value as a line.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value).map_err(|error| Failure::Output(error.into()))?;
        self.bytes(b"\n")
    }

    /// Flushes the output. To be called before it is dropped: a drop cannot report errors.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(Failure::Output)
    }
}
