//! What the world can do to a pool, with numbers and what to do next.

use std::path::PathBuf;

/// An error of the persistent-memory layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes read back from the pool contradict themselves.
    #[error("pool damaged at byte {at:#x}: {what}; run `everleaf check` on a copy of the pool, or restore a backup")]
    Corrupt {
        /// Offset in the pool, in bytes.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The pool is full and cannot grow.
    #[error(
        "no space: {wanted} bytes wanted, the pool holds {size} of at most {size_max} bytes; delete data, free disk space, or reopen with a larger --size-max"
    )]
    NoSpace {
        /// Size of the allocation that failed, in bytes.
        wanted: usize,
        /// Size of the pool, in bytes.
        size: usize,
        /// Size to which the pool may grow, in bytes.
        size_max: usize,
    },
    /// An allocation that no pool could hold.
    #[error("too large: {size} bytes wanted, at most {size_max} are possible")]
    TooLarge {
        /// Size wanted, in bytes.
        size: usize,
        /// Largest possible size, in bytes.
        size_max: usize,
    },
    /// An operating-system call failed.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl Error {
    /// [`Error::Corrupt`].
    #[cold]
    pub fn corrupt(at: u64, what: &'static str) -> Self {
        Self::Corrupt { at, what }
    }
}
