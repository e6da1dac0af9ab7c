//! The errors of a store.

use everleaf_index::record::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
use everleaf_pmem::DAMAGE_ADVICE;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the index or the pool: damage, no space, a failed system call.
    #[error(transparent)]
    Index(#[from] everleaf_index::Error),
    /// A key longer than [`KEY_SIZE_MAX`].
    #[error("key of {size} bytes, at most {KEY_SIZE_MAX} are possible; hash the long part of it")]
    KeyTooLong {
        /// Its length in bytes.
        size: usize,
    },
    /// A value longer than [`VALUE_SIZE_MAX`].
    #[error("value of {size} bytes, at most {VALUE_SIZE_MAX} are possible; split it over several keys")]
    ValueTooLong {
        /// Its length in bytes.
        size: usize,
    },
    /// A namespace name that is empty, too long, or the store's own.
    #[error("{name:?} cannot name a namespace: 1 to {NAMESPACE_SIZE_MAX} bytes, the last not zero, and {STORE_ROOT:?} is taken; choose another name")]
    BadNamespace {
        /// The name.
        name: String,
    },
    /// An index name that is not in the registry, or names an index that cannot keep data for good.
    #[error("no persistent index named {name:?}; choose one of: {}", known.join(", "))]
    UnknownIndex {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// A root of the pool that no index of this version recognises.
    #[error("namespace {name:?} is kept by an index of kind {kind:#x}, which this version does not know; open the pool with the version that wrote it")]
    UnknownKind {
        /// Name of the namespace.
        name: String,
        /// Kind of its root.
        kind: u64,
    },
    /// The store block has a format that this version does not know.
    #[error("the store in this pool has format {found:#x}, and this version knows {known:#x} alone; open it with the version that wrote it")]
    UnknownFormat {
        /// The format found.
        found: u64,
        /// The format that this version reads and writes.
        known: u64,
    },
    /// A [`Batch::expect`](crate::Batch::expect)ation that does not hold; or a transaction with a key that another writer has changed meanwhile, or that has
    /// expired since it was read. Nothing was changed.
    #[error("key \"{}\" of namespace {namespace:?} has changed since it was read, or is not what was expected; read it again and retry", key.escape_ascii())]
    Conflict {
        /// Where.
        namespace: String,
        /// The first key that is in the way.
        key: Vec<u8>,
    },
    /// A merge that could not be done; nothing was changed.
    #[error("key \"{}\" of namespace {namespace:?} cannot be merged: {reason}; look at its value, and set it", key.escape_ascii())]
    Merge {
        /// Where.
        namespace: String,
        /// The key.
        key: Vec<u8>,
        /// Why.
        reason: String,
    },
    /// A write to a namespace that is being loaded.
    #[error("namespace {namespace:?} is being loaded; write to it when that is done")]
    Loading {
        /// The namespace.
        namespace: String,
    },
    /// A write or a read in a transaction that may take no more memory; see [`Transaction::limit_size`](crate::Transaction::limit_size).
    #[error(
        "the transaction would keep more than {size_max} bytes of keys and small values in memory, with what it has read; commit it, and go on in another one"
    )]
    TransactionTooLarge {
        /// Its memory limit in bytes.
        size_max: usize,
    },
    /// A write in a read-only transaction.
    #[error("the transaction was begun to read only; begin one with `Isolation::Snapshot` or `Isolation::Serializable` to write")]
    ReadOnly,
    /// Closing a store while snapshots or transactions hold something back.
    #[error(
        "{count} snapshots or transactions are open and hold back what they may want to see; drop them before you close the store (the next open recovers it)"
    )]
    SnapshotsOpen {
        /// How many.
        count: usize,
    },
    /// A pool that is to be written anew is damaged, so that something of it might be left out.
    #[error("the pool is damaged, at {count} places or more, and was left as it is{DAMAGE_ADVICE}")]
    Unsound {
        /// How many.
        count: usize,
    },
    /// The system cannot start a thread for [`Options::keeps_house`](crate::Options::keeps_house).
    #[error("no thread to keep house: {source}; open the store without one, and call `keep_house` now and then")]
    Thread {
        /// What the system says.
        source: std::io::Error,
    },
    /// The store refuses further writes.
    #[error(
        "the store refuses writes, because {reason}; what was acknowledged is safe: drop the store (it cannot be closed), or end the process, and open it again"
    )]
    Halted {
        /// What happened.
        reason: String,
    },
}

/// The category of an error, for code that decides how to react. See [`Error::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no pool at that path, or only the beginning of one whose creation did not finish.
    NoPool,
    /// The pool is already open, in another process or in this one.
    InUse,
    /// The file at that path is not a pool.
    NotAPool,
    /// The data read differs from the data written: restore a backup, or [`repair`](crate::repair) the pool.
    Damaged,
    /// A machine failure may have torn the pool: restore a backup, or see [`Options::accept_dirty_shutdown`](crate::Options::accept_dirty_shutdown).
    Torn,
    /// The pool is full: see [`Error::is_no_space`].
    NoSpace,
    /// Another writer, or expiry, has changed something that the write relies on: read it again and retry.
    Conflict,
    /// The store was closed, refuses further writes, or was opened only to be read: open it again.
    Closed,
    /// The system refused a call, or the device did not take a write.
    System,
    /// Anything else: see the variants of [`Error`].
    Other,
}

impl From<everleaf_pmem::Error> for Error {
    fn from(error: everleaf_pmem::Error) -> Self {
        Self::Index(error.into())
    }
}

impl Error {
    /// Returns the category of the error.
    pub fn kind(&self) -> ErrorKind {
        use everleaf_pmem::Error as Pmem;
        match self {
            Self::Index(error) => error.pmem().map_or(ErrorKind::Other, |error| match error {
                Pmem::NoPool { .. } | Pmem::Unfinished { .. } => ErrorKind::NoPool,
                Pmem::Locked { .. } => ErrorKind::InUse,
                Pmem::NotAPool { .. } => ErrorKind::NotAPool,
                Pmem::Corrupt { .. } | Pmem::Checksum { .. } | Pmem::Truncated { .. } | Pmem::Headless { .. } => ErrorKind::Damaged,
                Pmem::DirtyShutdown { .. } | Pmem::MachineFailed { .. } | Pmem::Accepted { .. } | Pmem::NoJournal { .. } => ErrorKind::Torn,
                Pmem::NoSpace { .. } => ErrorKind::NoSpace,
                Pmem::Closed | Pmem::OnlyRead { .. } => ErrorKind::Closed,
                Pmem::ReadOnly { .. } | Pmem::AddressSpace { .. } | Pmem::WriteBack { .. } | Pmem::Io { .. } => ErrorKind::System,
                _ => ErrorKind::Other,
            }),
            Self::Unsound { .. } => ErrorKind::Damaged,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Halted { .. } => ErrorKind::Closed,
            Self::Thread { .. } => ErrorKind::System,
            _ => ErrorKind::Other,
        }
    }

    /// Returns whether the pool was full: a smaller write, or the same one after deletes, may succeed. Nothing was changed, with one exception. Calls that do
    /// several writes, each on its own, have done those before the one that failed: `put_many`, `act_many`, `delete_many` and `delete_range` of a
    /// [`Namespace`](crate::Namespace), and [`Import::advance`](crate::Import::advance).
    pub fn is_no_space(&self) -> bool {
        self.wanted().is_some()
    }

    /// The number of bytes, those of one block, that a full pool did not have.
    pub(crate) fn wanted(&self) -> Option<usize> {
        let Self::Index(error) = self else { return None };
        if let everleaf_pmem::Error::NoSpace { wanted, .. } = error.pmem()? { Some(*wanted) } else { None }
    }
}

/// Longest name of a namespace in bytes, the limit of the pool's root directory.
pub const NAMESPACE_SIZE_MAX: usize = everleaf_pmem::ROOT_NAME_SIZE_MAX;

/// Name of the root of the store itself.
pub const STORE_ROOT: &str = "everleaf";

/// Checks that a namespace can have this name.
///
/// # Errors
/// [`Error::BadNamespace`].
pub fn check_namespace_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > NAMESPACE_SIZE_MAX || name == STORE_ROOT || name.ends_with('\0') {
        return Err(Error::BadNamespace { name: name.into() });
    }
    Ok(())
}
