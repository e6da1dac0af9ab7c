#![forbid(unsafe_code)]
//! Everleaf: an ordered, crash-consistent key-value store in memory that outlives the process.
//!
//! A [`Store`] keeps [`Namespace`]s of keys and values in one pool file. Every write is durable, in the sense of the pool's persistence domain, when its call
//! returns. By default it survives `kill -9`, and on persistent memory also a power failure. To survive a power failure on a disk, set [`Options::domain`] to
//! [`Domain::Msync`]. A [`Batch`] is atomic, across namespaces, for crashes and for readers in a snapshot or a transaction. Any number of threads read and
//! write; readers take no lock. After a fork, only the parent process may use its stores: the child does not have their memory.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("users.pool");
//! let store = everleaf::Store::open(&path, everleaf::Options::default())?;
//! let users = store.namespace("users")?;
//! users.put(b"ada", b"1815")?;
//! assert_eq!(users.get(b"ada")?.as_deref(), Some(&b"1815"[..]));
//!
//! let mut batch = everleaf::Batch::default();
//! batch.put(&users, b"grace", b"1906");
//! batch.delete(&users, b"ada");
//! store.write(batch)?;
//! assert_eq!(users.count(), 1);
//! // A store that was not closed is recovered when it is opened.
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Keys are ordered. [`Namespace::range`], [`Namespace::iter`] and [`Namespace::iter_prefix`] return iterators, here and for snapshots and transactions:
//!
//! ```
//! # fn main() -> Result<(), everleaf::Error> {
//! # let store = everleaf::Store::anonymous(everleaf::Options { size_max: 64 << 20, ..Default::default() })?;
//! # let users = store.namespace("users")?;
//! # users.put(b"ada", b"1815")?;
//! # users.put(b"grace", b"1906")?;
//! # users.put(b"lovelace", b"1815")?;
//! for entry in users.range("a".."h") {
//!     let (name, born) = entry?;
//!     println!("{}: {}", name.escape_ascii(), born.escape_ascii());
//! }
//! let last = users.iter().next_back().transpose()?;
//! assert_eq!(last, Some((b"lovelace".to_vec(), b"1815".to_vec())));
//! # Ok(())
//! # }
//! ```
//!
//! A [`Snapshot`] shows the store as of a moment, unchanged by later writes, until it is dropped. A [`Transaction`] reads from a snapshot, sees its own writes,
//! and commits all of them, or none if there is a conflict:
//!
//! ```
//! # fn main() -> Result<(), everleaf::Error> {
//! # let store = everleaf::Store::anonymous(everleaf::Options { size_max: 64 << 20, ..Default::default() })?;
//! # let users = store.namespace("users")?;
//! # users.put(b"ada", b"1815")?;
//! let before = store.snapshot()?;
//! store.transact(everleaf::Isolation::Serializable, |transaction| {
//!     if let Some(born) = transaction.get(&users, b"ada")? {
//!         transaction.put(&users, b"lovelace", &born)?;
//!         transaction.delete(&users, b"ada")?;
//!     }
//!     Ok::<_, everleaf::Error>(())
//! })?;
//! assert_eq!(users.get(b"lovelace")?.as_deref(), Some(&b"1815"[..]));
//! assert_eq!(before.get(&users, b"lovelace")?, None);
//! # Ok(())
//! # }
//! ```
//!
//! [`pmem`] and [`index`] are the layers below, for programs that build a store on a [`pool`](pmem::Pool) or a [medium](pmem::Medium) of their own.
//!
//! In the source, read next: `store.rs` (opening and closing), `namespace.rs` (one key), `version.rs` (which version a reader sees), `snapshot.rs` and
//! `garbage.rs`, `batch.rs` (several keys at once: the protocol), `transaction.rs`, `merge.rs`, `load.rs`, `recovery.rs`.

mod batch;
mod block;
mod clock;
mod compact;
mod cursor;
mod draft;
mod error;
mod export;
mod footprint;
mod garbage;
mod group;
mod house;
mod import;
mod load;
mod merge;
mod namespace;
mod range;
mod reads;
mod recovery;
mod room;
mod salvage;
mod scan;
mod shrink;
mod slots;
mod snapshot;
mod stats;
mod store;
mod stream;
mod stripes;
mod sweep;
mod transaction;
mod unfinished;
mod verify;
mod version;
mod view;
mod wall;
mod watch;

pub use batch::Batch;
pub use compact::{Compacted, compact, repair};
pub use cursor::Cursor;
pub use error::{Error, ErrorKind, NAMESPACE_SIZE_MAX, STORE_ROOT, check_namespace_name};
pub use everleaf_index as index;
pub use everleaf_index::Direction;
pub use everleaf_index::record::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
pub use everleaf_pmem as pmem;
pub use everleaf_pmem::{Domain, Evacuation, Info, Usage};
pub use export::{Backup, Export};
pub use garbage::HeldBack;
pub use group::Act;
pub use import::{Import, check_stream, restore};
pub use merge::{Merge, Operator};
pub use namespace::{Change, Entry, Found, Namespace};
pub use range::Range;
pub use salvage::{LOST_AND_FOUND, Salvaged};
pub use shrink::Shrunk;
pub use snapshot::Snapshot;
pub use stats::{Fill, NamespaceStats, Stats};
pub use store::{Options, Store, Unclosed};
pub use stream::{Origin, Part, Passed, StreamEntry, StreamError, StreamReader};
pub use sweep::Swept;
pub use transaction::{Isolation, Savepoint, Transaction};
pub use verify::{Damage, NamespaceReport, Report};
pub use wall::{HeldTime, Times};

/// The example of the README, which must stay true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
