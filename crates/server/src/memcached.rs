//! The text protocol of memcached: another front end of the store, on a port of its own.
//!
//! ```text
//! set <key> <flags> <exptime> <bytes> [noreply]\r\n<data>\r\n        STORED
//! get <key>*\r\n                                                    VALUE <key> <flags> <bytes>\r\n<data>\r\n ... END
//! ```
//!
//! Items are in a namespace of their own, [`NAMESPACE`], because the flags that clients store beside the data have no place in a value of Redis. What a reply
//! acknowledges is durable, as everywhere; nothing is evicted: a full pool refuses writes.
//!
//! [`request`] parses requests, `execute` runs them, [`meta`] does both for meta commands, and `item` knows how items are stored and shown. Consecutive single
//! `get`s, `set`s and `delete`s are run together, as those of Redis are (`group.rs`).

pub(crate) mod execute;
pub(crate) mod item;
pub mod meta;
pub mod request;

/// The namespace of items.
pub const NAMESPACE: &str = "memcached";

/// The version of memcached whose commands and texts are implemented.
pub const MEMCACHED_VERSION: &str = "1.6.21";
