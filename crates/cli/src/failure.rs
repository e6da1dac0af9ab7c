//! How a command can fail, and the exit code of each way.

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
  4  another file, the network, or the system";

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The answer is no. What there is to say has been said.
    No,
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

    /// Standard output does not take what is written to it.
    pub(crate) fn output(source: io::Error) -> Self {
        Self::Io { action: "write to standard output".into(), source }
    }

    /// Says what happened on standard error; the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let code = match self {
            Self::No => return ExitCode::from(1),
            // Whoever reads has seen enough, as `head` does.
            Self::Io { source, .. } | Self::Stream { error: StreamError::Io { source, .. }, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Self::Usage(_) | Self::Lab(everleaf_lab::Error::Usage(_)) => 2,
            Self::Store(_) | Self::Server(everleaf_server::Error::Store(_)) | Self::Stream { error: StreamError::Store(_), .. } => 3,
            Self::Server(_) | Self::Lab(_) | Self::Stream { .. } | Self::Io { .. } => 4,
        };
        match self {
            Self::No => {}
            Self::Usage(message) => eprintln!("everleaf: {message}"),
            Self::Store(error) => eprintln!("everleaf: {error}"),
            Self::Server(error) => eprintln!("everleaf: {error}"),
            Self::Lab(error) => eprintln!("everleaf: {error}"),
            // The store's own errors are not about that file.
            Self::Stream { error: StreamError::Store(error), .. } => eprintln!("everleaf: {error}"),
            Self::Stream { path, error } => eprintln!("everleaf: {}: {error}", path.display()),
            Self::Io { action, source } => eprintln!("everleaf: {action}: {source}"),
        }
        ExitCode::from(code)
    }
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

impl From<everleaf_index::Error> for Failure {
    fn from(error: everleaf_index::Error) -> Self {
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
