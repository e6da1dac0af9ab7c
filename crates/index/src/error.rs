//! What can go wrong in an index.

use std::num::NonZeroU64;

/// An error of an index: one pointer. So the result of a call comes back in registers, whereas one that goes through memory would be copied there behind the
/// fence of a write, and wait for it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Cause>);

const _: () = assert!(size_of::<Result<Option<NonZeroU64>, Error>>() == 2 * size_of::<u64>());

impl Error {
    /// What has happened.
    pub fn cause(&self) -> &Cause {
        &self.0
    }

    /// What has happened to the pool below, if that is the cause.
    pub fn pmem(&self) -> Option<&everleaf_pmem::Error> {
        if let Cause::Pmem(error) = self.cause() { Some(error) } else { None }
    }
}

impl<T: Into<Cause>> From<T> for Error {
    #[cold]
    fn from(cause: T) -> Self {
        Self(Box::new(cause.into()))
    }
}

/// What can go wrong in an index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The persistent memory below: damage, no space, a failed write-back.
    #[error(transparent)]
    Pmem(#[from] everleaf_pmem::Error),
    /// The pool has no root of that name, or a root of another kind.
    #[error("no {kind} index named {name:?} in this pool; `everleaf info` lists what it holds")]
    NoSuchIndex {
        /// Name of the root.
        name: String,
        /// Name of the index kind asked for.
        kind: &'static str,
    },
    /// A bulk load into an index that holds keys.
    #[error("bulk load wants an empty index, this one holds {keys} keys; load into a new namespace, or insert one by one")]
    NotEmpty {
        /// Number of keys it holds.
        keys: u64,
    },
    /// A bulk load whose keys do not ascend strictly.
    #[error("bulk load wants strictly ascending keys, entry {position} is not above its predecessor; sort the input and drop duplicates")]
    Unsorted {
        /// Number of the entry, from 0.
        position: u64,
    },
    /// An index with more leaves than its tables in DRAM can number.
    #[error("an index of {leaves} leaves, with one at byte {at:#x} of its pool, is larger than can be addressed; use several namespaces, or another index")]
    TooLarge {
        /// Number of leaves, including those about to be added.
        leaves: u64,
        /// Offset of the last one in the pool, in bytes.
        at: u64,
    },
    /// A volatile index cannot be found again.
    #[error("the {0} index does not outlive the process; choose another for data that must")]
    Volatile(&'static str),
}
