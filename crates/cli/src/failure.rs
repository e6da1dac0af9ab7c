//! How a command can fail, and the exit code of each way.

use crate::output::tell;
use everleaf::StreamError;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown below the help.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0  done
  1  the answer is no: key not found, damage found, lines that could not be loaded
  2  wrong usage
  3  the pool or the store: not a pool, in use, full, damaged, ...
  4  another file, the network, or the system
  130  interrupted by a signal: the pool is closed, what was measured is written";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The answer is no. What there is to say has been said.
    No,
    /// A signal has asked it to end.
    Interrupted,
    /// The arguments do not fit together.
    Usage(String),
    /// The store, or the pool under it.
    Store(everleaf::Error),
    /// The server.
    Server(everleaf_server::Error),
    /// A measurement, or its results.
    Lab(everleaf_lab::Error),
    /// A stream, or the file that has it.
    Stream {
        /// That file.
        path: PathBuf,
        /// What is wrong.
        error: StreamError,
    },
    /// Standard output does not take what is written to it.
    Output(io::Error),
    /// A file that is no pool, the network, the system.
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

    /// Says what happened on standard error; the exit code. Whoever reads what a command prints that does nothing else, and leaves, as `head` does, has seen
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

/// Whether an option is out of its range: nothing is wrong with the store, or the pool.
fn is_usage(error: &everleaf::Error) -> bool {
    matches!(error, everleaf::Error::Index(everleaf_index::Error::Pmem(everleaf_pmem::Error::BadOption { .. })))
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
