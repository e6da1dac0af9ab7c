//! Standard output: locked once, buffered, its failures reported instead of panicked upon.

use crate::failure::Failure;
use serde_json::Value;
use std::io::{BufWriter, StdoutLock, Write};

/// Standard output.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, std::io::stdout().lock()))
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(Failure::output)
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> Result<(), Failure> {
        self.bytes(line.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a JSON value as a line.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value).map_err(|error| Failure::output(error.into()))?;
        self.bytes(b"\n")
    }

    /// Hands everything over to whoever reads. To be called before the output is dropped: a drop cannot report what fails.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(Failure::output)
    }
}
