//! What can go wrong with a measurement.

use std::io;
use std::path::Path;

/// Why something was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A system has failed.
    #[error("{system}: {source}")]
    System {
        /// Its name.
        system: String,
        /// What it says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A system has answered wrongly, so its figures mean nothing.
    #[error("{system}: {count} answers of phase {phase} were wrong, so its figures mean nothing")]
    WrongAnswers {
        /// Its name.
        system: String,
        /// What was being done.
        phase: String,
        /// How often.
        count: u64,
    },
    /// A system does not have an operation.
    #[error("{system} has no {operation}")]
    Missing {
        /// Its name.
        system: String,
        /// The operation.
        operation: &'static str,
    },
    /// A line of a result file is not one.
    #[error("line {line}: {message}; is this a file that `everleaf lab run` or `reproduce` has written?")]
    Result {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// Whoever runs it has stopped it.
    #[error("interrupted; what was measured until then stands")]
    Interrupted,
    /// A file, another program, the system.
    #[error("{action}: {source}")]
    Io {
        /// What was tried, and on what.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// The failure of a system.
    pub fn system(name: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::System { system: name.into(), source: source.into() }
    }

    /// Doing `action` with `path` failed.
    pub fn io(action: &str, path: &Path, source: io::Error) -> Self {
        Self::Io { action: format!("{action} {}", path.display()), source }
    }
}
