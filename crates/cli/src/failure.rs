//! How a command can fail, and the exit code of each way.

use crate::output::tell;
use everleaf::StreamError;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown below the help.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0  done
  1  completed with a negative result: key not found, damage found, lines skipped, ...
  2  wrong usage
  3  the pool or the store: not a pool, in use, full, damaged, ...
  4  another file, the network, or the system
  130  interrupted by a signal: the pool is closed, what was measured is written";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A negative result, which has been reported.
    No,
    /// A signal has asked the command to end.
    Interrupted,
    /// The arguments do not fit together.
    Usage(String),
    /// An error of the store, or the pool under it.
    Store(everleaf::Error),
    /// An error of the server.
    Server(everleaf_server::Error),
    /// An error of a measurement, or its results.
    Lab(everleaf_lab::Error),
    /// An error of a stream, or its file.
    Stream {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: StreamError,
    },
    /// Standard output fails.
    Output(io::Error),
    /// An error of a file that is no pool, the network, or the system.
    Io {
        /// What was tried, and on what.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Failure {
    /// Reading or writing `path` failed.
    pub(crate) fn io(action: &str, path: &Path, source: io::Error) -> Self {
        Self::Io { action: format!("{action} {}", path.display()), source }
    }

    /// Reports the failure on standard error; returns the exit code. If the command only prints and its reader has left, as `head` does, the reader has seen
    /// enough.
    pub(crate) fn report(&self, only_prints: bool) -> ExitCode {
        let code = match self {
            Self::No => return ExitCode::from(1),
            Self::Interrupted | Self::Lab(everleaf_lab::Error::Interrupted) => 130,
            Self::Output(source) if only_prints && source.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Usage(_) | Self::Lab(everleaf_lab::Error::Usage(_)) => 2,
            Self::Store(error) | Self::Server(everleaf_server::Error::Store(error)) | Self::Stream { error: StreamError::Store(error), .. }
                if is_usage(error) =>
            {
                2
            }
            Self::Store(_) | Self::Server(everleaf_server::Error::Store(_)) | Self::Stream { error: StreamError::Store(_), .. } => 3,
            Self::Server(_) | Self::Lab(_) | Self::Stream { .. } | Self::Output(_) | Self::Io { .. } => 4,
        };
        match self {
            Self::No => {}
            Self::Interrupted => tell("interrupted, no pool is left open"),
            Self::Usage(message) => tell(message),
            Self::Store(error) => tell(error),
            Self::Server(error) => tell(error),
            Self::Lab(error) => tell(error),
            // Neither the store's own errors nor this one are about that file.
            Self::Stream { error: error @ StreamError::Exists { .. }, .. } => tell(error),
            Self::Stream { error: StreamError::Store(error), .. } => tell(error),
            Self::Stream { path, error } => tell(format_args!("{}: {error}", path.display())),
            Self::Output(source) => tell(format_args!("write to standard output: {source}")),
            Self::Io { action, source } => tell(format_args!("{action}: {source}")),
        }
        ExitCode::from(code)
    }
}

/// Whether an option is out of its range: nothing is wrong with the store or the pool.
fn is_usage(error: &everleaf::Error) -> bool {
    matches!(error, everleaf::Error::Index(error) if matches!(error.pmem(), Some(everleaf_pmem::Error::BadOption { .. })))
}

impl From<everleaf::Error> for Failure {
    fn from(error: everleaf::Error) -> Self {
        Self::Store(error)
    }
}

impl From<everleaf_pmem::Error> for Failure {
    fn from(error: everleaf_pmem::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<everleaf_server::Error> for Failure {
    fn from(error: everleaf_server::Error) -> Self {
        Self::Server(error)
    }
}

impl From<everleaf_lab::Error> for Failure {
    fn from(error: everleaf_lab::Error) -> Self {
        Self::Lab(error)
    }
}
