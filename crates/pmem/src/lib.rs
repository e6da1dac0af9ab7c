//! Persistent memory for Everleaf.
//!
//! Start with [`Medium`] (where stores become durable), then [`Pm`] (every verb on persistent memory), then [`Fresh`] (a block's life as types), then [`Pool`]
//! (the file, its roots, its growth).
//!
//! This is the only crate of Everleaf with unsafe code.

mod alloc;
mod block;
mod crc;
mod epoch;
mod error;
pub mod files;
mod handles;
pub mod htm;
pub mod huge;
mod journal;
mod local;
mod map;
mod medium;
mod off;
mod pm;
mod pool;
pub mod probe;
pub mod schedule;
pub mod vector;
mod word;

pub use alloc::{Evacuation, Reach, Reserve, Usage, with_reserve};
pub use block::{Durable, Fence, Fenced, Flushed, Fresh};
pub use crc::crc32c;
pub use epoch::Guard;
pub use error::{DAMAGE_ADVICE, Error, Limit};
pub use handles::{HANDLE_BITS, Handles};
pub use map::Memory;
pub use medium::{
    Act, Balance, Counters, Counts, Crash, CrashOptions, Debt, Deed, Dependence, Dependences, Domain, Done, Event, Fate, Fault, Hardware, Image, LINE, Life,
    Lines, Medium, Moment, Points, Profile, Seen, Site, Store, Tally, Trace, Verb, WriteBuffer,
};
pub use off::Off;
pub use pm::Pm;
pub use pool::{Claim, Found, Info, Pool, PoolOptions, ROOT_NAME_SIZE_MAX, Root};
pub use word::{Resident, WORD, Word};
