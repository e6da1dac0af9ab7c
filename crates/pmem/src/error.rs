//! Errors of pools and their environment, with numbers and advice.

use crate::Domain;
use std::io;
use std::path::PathBuf;

/// The end of [`Error::Corrupt`]'s message: what to do, for callers that are not just looking for damage.
pub const DAMAGE_ADVICE: &str = "; find out how much with `everleaf check`, save what can be read with `everleaf repair`, or restore a backup";

/// What keeps a full pool from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The size to which it may grow.
    SizeMax,
    /// Its file system, which is full, or allows no larger file.
    FileSystem,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::SizeMax => {
                "; delete data, end what holds old versions back (snapshots, transactions, WATCH), compact (MEMORY PURGE), or reopen with a larger --size-max"
            }
            Self::FileSystem => ", and its file system has no more; free space there, or delete data",
        })
    }
}

/// An error of the persistent-memory layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes read back from the pool contradict themselves.
    #[error("pool damaged at byte {at:#x}: {what}{DAMAGE_ADVICE}")]
    Corrupt {
        /// Offset in the pool, in bytes.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The active superblock does not match its checksum.
    #[error(
        "pool damaged: the superblock at byte {at:#x} of {path} carries checksum {stored:#010x}, its content has {computed:#010x}; restore a backup, or \
         have `everleaf repair` make a new pool of what can be read",
        path = path.display()
    )]
    Checksum {
        /// The pool file.
        path: PathBuf,
        /// Offset of the superblock, in bytes.
        at: u64,
        /// The checksum it carries.
        stored: u32,
        /// The checksum it should carry.
        computed: u32,
    },
    /// The file is something else.
    #[error(
        "{path} is not a pool: it begins with \"{begins}\", not \"EVERLEAF\"; check the path, choose another for a new pool, or, if it was a pool, have \
         `everleaf repair` make a new one of what can be read",
        path = path.display(), begins = magic.to_le_bytes().escape_ascii()
    )]
    NotAPool {
        /// The file.
        path: PathBuf,
        /// Its first eight bytes, as a number.
        magic: u64,
    },
    /// The pool's creation was interrupted. Nothing can be in it.
    #[error("{path} is the beginning of a pool whose creation did not finish, so it holds nothing; create it anew", path = path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// There is no file.
    #[error("{path} does not exist; check the path, or make a pool with `everleaf create` or `everleaf serve`", path = path.display())]
    NoPool {
        /// The file.
        path: PathBuf,
    },
    /// There is a pool already.
    #[error("{path} is a pool already; open it, or choose another path", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The pool needs a newer Everleaf than this one.
    #[error(
        "{path} has format version {version} and incompatible features {features:#x}; this Everleaf knows version {version_known} and features \
         {features_known:#x}: open it with a newer one; if none has been here, its header is damaged, and `everleaf repair` makes a new pool of what can be \
         read",
        path = path.display()
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u64,
        /// Its feature bits that a library must understand.
        features: u64,
        /// The format version of this library.
        version_known: u64,
        /// The feature bits this library understands.
        features_known: u64,
    },
    /// The file is shorter than the pool it holds.
    #[error(
        "{path} is truncated: the pool has {size} bytes, the file only {length}; restore the whole file from where it was copied, or have \
         `everleaf repair` make a new pool of what is left",
        path = path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Size of the pool, in bytes.
        size: u64,
        /// Size of the file, in bytes.
        length: u64,
    },
    /// The file is a pool whose header is lost; without it, nothing can be located.
    #[error(
        "{path}, of {length} bytes, is a pool that cannot be read, nor repaired: {what}; restore a backup, or the whole file from where it was copied",
        path = path.display()
    )]
    Headless {
        /// The file.
        path: PathBuf,
        /// Size of the file, in bytes.
        length: u64,
        /// What happened to the header.
        what: &'static str,
    },
    /// Another process, or this one, has the pool open.
    #[error("{path} is in use by {user}", path = path.display(), user = user(*owner))]
    Locked {
        /// The file.
        path: PathBuf,
        /// Which process, where the system tells.
        owner: Option<u32>,
    },
    /// The pool was opened to be read, or looked at.
    #[error("{path} was opened only to be read; open it to write", path = path.display())]
    OnlyRead {
        /// The file.
        path: PathBuf,
    },
    /// The pool may not be written.
    #[error("{path} cannot be written; give this process permission to, or only read the pool", path = path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The memory modules under the pool failed to save what was in flight at a power failure.
    #[error(
        "{path} was in use when its persistent memory failed to save data at a power failure (dirty shutdowns: {before} before, {after} now), so acknowledged \
         writes may be lost; restore a backup, or accept the pool as it is with the option to accept a dirty shutdown and then run `everleaf check`",
        path = path.display()
    )]
    DirtyShutdown {
        /// The file.
        path: PathBuf,
        /// The count when the pool was opened last.
        before: u64,
        /// The count now.
        after: u64,
    },
    /// The machine went down while the pool was in a domain that does not survive that, or its device refused to write.
    #[error(
        "{path} was in use in domain {domain} when the machine went down or the device refused to write, which that domain does not survive, so its content \
         may be torn; restore a backup, or accept the pool as it is with the option to accept a dirty shutdown and then run `everleaf check`; domain msync \
         survives this",
        domain = Domain::PageCache, path = path.display()
    )]
    MachineFailed {
        /// The file.
        path: PathBuf,
    },
    /// The pool may be torn, and was opened all the same.
    #[error(
        "{path} may be torn: after a failure it was opened with the option to accept a dirty shutdown; `everleaf repair` saves what is sound in a new pool",
        path = path.display()
    )]
    Accepted {
        /// The file.
        path: PathBuf,
    },
    /// The pool was left in the domain `msync` and needs the journal beside it, which is not as it was left.
    #[error(
        "{path} was in use in domain msync, and cannot be opened without its journal: {journal} {what}; put both back as they were, or accept the pool as it \
         is, which may be torn, with the option to accept a dirty shutdown, and then run `everleaf check`",
        path = path.display(), journal = journal.display()
    )]
    NoJournal {
        /// The file.
        path: PathBuf,
        /// The file of the journal.
        journal: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The pool is full and cannot grow.
    #[error("no space: {wanted} bytes wanted, the pool has {size} of at most {size_max} bytes{limit}")]
    NoSpace {
        /// Size of the allocation that failed, in bytes.
        wanted: usize,
        /// Size of the pool, in bytes.
        size: usize,
        /// Size to which the pool may grow, in bytes.
        size_max: usize,
        /// What keeps it from growing.
        limit: Limit,
    },
    /// An allocation that no pool could hold.
    #[error("too large: {size} bytes wanted, at most {size_max} are possible; take less, or several")]
    TooLarge {
        /// Size wanted, in bytes.
        size: usize,
        /// Largest possible size, in bytes.
        size_max: usize,
    },
    /// Address space or memory was refused.
    #[error(
        "the system does not map {wanted} bytes: {source}; if it is short of address space, raise `ulimit -v`, or, to write, open with a smaller --size-max"
    )]
    AddressSpace {
        /// Size wanted, in bytes.
        wanted: usize,
        /// Why it failed.
        source: io::Error,
    },
    /// The medium has failed to make data durable before.
    #[error(
        "write-back failed ({why}), so what was written since may not be durable; the pool accepts no more writes: see to the device, then reopen the pool"
    )]
    WriteBack {
        /// The first failure.
        why: String,
    },
    /// The pool has been closed.
    #[error("the pool has been closed; open it again")]
    Closed,
    /// A name that is in use.
    #[error("the pool has a root named {name:?} already; open that, or choose another name")]
    RootExists {
        /// The name.
        name: String,
    },
    /// A name that does not exist.
    #[error("the pool has no root named {name:?}; see `everleaf info` for those it has")]
    NoSuchRoot {
        /// The name.
        name: String,
    },
    /// An invalid name.
    #[error("a root's name has 1 to {length_max} bytes, {name:?} has {length}; choose another", length = name.len())]
    RootName {
        /// The name.
        name: String,
        /// Largest possible length, in bytes.
        length_max: usize,
    },
    /// An option out of its range.
    #[error("option {name} is {value}; it must be {expected}")]
    BadOption {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Its range, as text.
        expected: &'static str,
    },
    /// An operating-system call failed.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// [`Error::Corrupt`].
    #[cold]
    pub fn corrupt(at: u64, what: &'static str) -> Self {
        Self::Corrupt { at, what }
    }
}

/// Who has the pool, and what to do about it.
fn user(owner: Option<u32>) -> String {
    if owner == Some(std::process::id()) {
        return "this process itself; drop what is left of its store (namespaces, snapshots and transactions, too) before you open it again".into();
    }
    let owner = owner.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
    format!("{owner}; if that is a server, ask it (BGSAVE makes a backup), else stop that process, or look at the pool with `everleaf info`")
}
