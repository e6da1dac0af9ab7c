//! The interface between a crash run and the structure under examination.

use crate::Broken;
use everleaf_pmem::{Crash, Pool};
use rand::rngs::StdRng;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;

/// Something that lives in a pool: an index, the pool's own directory and allocator, a store.
///
/// A world is a handle; the structure itself is rebuilt, recovered and discarded many times.
pub trait World: Send + Sync + 'static {
    /// The structure, in an open pool.
    type Live: Send;
    /// Its content.
    type Content: Clone + PartialEq + Hash + Debug + Send + Sync + 'static;
    /// An operation that changes the content.
    type Change: Clone + PartialEq + Display + Send + Sync + 'static;

    /// The name shown to users and used to select it.
    fn name(&self) -> String;

    /// Size in bytes of the memory that its pools need.
    fn memory(&self) -> usize {
        256 << 10
    }

    /// Where runs start from. The first is empty.
    fn starts(&self) -> Vec<Start<Self::Change>>;

    /// The content of a new pool.
    fn nothing(&self) -> Self::Content;

    /// Opens the structure, recovers it with `threads` threads, and creates it if opening does that.
    ///
    /// # Errors
    /// A rule that breaks.
    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Self::Live, Broken>;

    /// Its pool.
    fn pool<'a>(&self, live: &'a Self::Live) -> &'a Arc<Pool<Crash>>;

    /// Closes the structure cleanly.
    ///
    /// # Errors
    /// A rule that breaks.
    fn close(&self, live: Self::Live) -> Result<(), Broken> {
        self.pool(&live).close().map_err(Broken::by("a pool can be closed"))
    }

    /// Whether its pools may have no room for what the next opening would need, so that closing leaves that out.
    fn may_need_recovery(&self) -> bool {
        false
    }

    /// The operations that exhaustive runs choose from, at most 16.
    fn changes(&self, start: &Start<Self::Change>, content: &Self::Content) -> Vec<Self::Change>;

    /// An operation of a long random run, the `step`-th of `count`.
    fn random(&self, step: u64, count: u64, content: &Self::Content, choice: &mut StdRng) -> Self::Change;

    /// Operations that every recovered structure must still support.
    fn follow_up(&self, start: &Start<Self::Change>, content: &Self::Content) -> Vec<Self::Change>;

    /// Applies an operation to `content`.
    fn model(&self, content: &mut Self::Content, change: &Self::Change);

    /// The contents that a crash during an operation may leave, besides those before and after it.
    fn between(&self, _before: &Self::Content, _change: &Self::Change) -> Vec<Self::Content> {
        Vec::new()
    }

    /// Applies an operation, and compares its result with that of the model, whose content is `before`. From the moment that it calls `promise`, a crash must
    /// leave one of the contents handed over.
    ///
    /// # Errors
    /// A rule that breaks.
    fn apply(&self, live: &mut Self::Live, before: &Self::Content, change: &Self::Change, promise: Promise<'_, Self::Content>) -> Result<Applied, Broken>;

    /// The content, read in all ways, which must agree. More than `limit` entries are an error.
    ///
    /// # Errors
    /// A rule that breaks.
    fn content(&self, live: &Self::Live, limit: usize) -> Result<Self::Content, Broken>;

    /// Compares what is reachable with what is allocated.
    ///
    /// # Errors
    /// A rule that breaks.
    fn audit(&self, live: &Self::Live) -> Result<(), Broken>;

    /// Visits every block that it reaches: offset and size in bytes. If it visits none, states of blocks that were not linked at the crash are only sampled.
    ///
    /// # Errors
    /// A rule that breaks.
    fn blocks(&self, _live: &Self::Live, _visit: &mut dyn FnMut(usize, usize)) -> Result<(), Broken> {
        Ok(())
    }
}

/// Receives the contents that a crash may leave from now on.
pub type Promise<'a, C> = &'a mut dyn FnMut(Vec<C>);

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It has happened.
    Done,
    /// It was refused, as in a full pool: it has not happened, and a crash must not show it.
    Refused,
}

/// A state to start from.
#[derive(Clone, Debug)]
pub struct Start<C> {
    /// The name shown to users and used to select it.
    pub name: &'static str,
    /// The changes that lead there from an empty world.
    pub changes: Vec<C>,
    /// Numbers that the operations then use, usually of keys.
    pub keys: [u32; 4],
    /// Whether all payloads are equal, so that no two entries differ by value.
    pub equal_payloads: bool,
    /// Whether there is a pool at all. If not, the first opening creates it.
    pub pool: bool,
    /// Size in bytes to which the pool may grow while the start is made; `None`: all memory. A life that needs more lets it grow.
    pub size: Option<usize>,
    /// Whether the pool is closed cleanly, so that the first life starts with an opening after a shutdown.
    pub closed: bool,
    /// Whether the first life gets free blocks in the order in which recovery hands them out, lowest first. The next life then first gets the blocks that this
    /// one got first and has freed. If not, the highest come first.
    pub lowest_first: bool,
}

impl<C> Start<C> {
    /// A start with an open pool.
    pub fn new(name: &'static str, changes: Vec<C>, keys: [u32; 4]) -> Self {
        Self { name, changes, keys, equal_payloads: false, pool: true, size: None, closed: false, lowest_first: false }
    }
}

/// What a run does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<C> {
    /// An operation.
    Change(C),
    /// Closes the pool and opens it again.
    Close,
}

impl<C: Display> Display for Step<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Change(change) => Display::fmt(change, f),
            Self::Close => f.pad("close and open"),
        }
    }
}
