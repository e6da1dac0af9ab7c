//! What a crash run needs to know of what it examines.

use crate::Broken;
use everleaf_pmem::{Crash, Pool};
use rand::rngs::StdRng;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;

/// Something that lives in a pool: an index, the pool's own directory and allocator, a store.
///
/// A world is a handle; what it examines is rebuilt, recovered and thrown away many times.
pub trait World: Send + Sync + 'static {
    /// It, in an open pool.
    type Live: Send;
    /// What it holds.
    type Content: Clone + PartialEq + Hash + Debug + Send + Sync + 'static;
    /// An operation that changes that.
    type Change: Clone + PartialEq + Display + Send + Sync + 'static;

    /// For people, and to choose it by.
    fn name(&self) -> String;

    /// Size in bytes of the memory that its pools need.
    fn memory(&self) -> usize {
        256 << 10
    }

    /// Where runs start from. The first is empty.
    fn starts(&self) -> Vec<Start<Self::Change>>;

    /// What a new pool holds.
    fn nothing(&self) -> Self::Content;

    /// Opens it, recovers it by so many threads, creates it if that is how it comes to be.
    ///
    /// # Errors
    /// A rule that breaks.
    fn open(&self, pool: Arc<Pool<Crash>>, threads: usize) -> Result<Self::Live, Broken>;

    /// Its pool.
    fn pool<'a>(&self, live: &'a Self::Live) -> &'a Arc<Pool<Crash>>;

    /// Closes it cleanly.
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

    /// What every recovered one must still be able to do.
    fn follow_up(&self, start: &Start<Self::Change>, content: &Self::Content) -> Vec<Self::Change>;

    /// What an operation makes of `content`.
    fn model(&self, content: &mut Self::Content, change: &Self::Change);

    /// What a crash within an operation may leave besides what was before and what comes after it.
    fn between(&self, _before: &Self::Content, _change: &Self::Change) -> Vec<Self::Content> {
        Vec::new()
    }

    /// Does an operation, and compares what it returns with what the model, in which `before` is, says. From when it calls `promise` on, a crash leaves one of
    /// what it hands over, and nothing else.
    ///
    /// # Errors
    /// A rule that breaks.
    fn apply(&self, live: &mut Self::Live, before: &Self::Content, change: &Self::Change, promise: Promise<'_, Self::Content>) -> Result<Applied, Broken>;

    /// What it holds, by all ways of reading, which must agree; more than `limit` entries are too many.
    ///
    /// # Errors
    /// A rule that breaks.
    fn content(&self, live: &Self::Live, limit: usize) -> Result<Self::Content, Broken>;

    /// Compares what is reachable with what is allocated.
    ///
    /// # Errors
    /// A rule that breaks.
    fn audit(&self, live: &Self::Live) -> Result<(), Broken>;

    /// Visits every block it reaches: offset and size in bytes. Without any, states of blocks that were not linked when the crash came are only sampled.
    ///
    /// # Errors
    /// A rule that breaks.
    fn blocks(&self, _live: &Self::Live, _visit: &mut dyn FnMut(usize, usize)) -> Result<(), Broken> {
        Ok(())
    }
}

/// Takes what a crash may leave from now on.
pub type Promise<'a, C> = &'a mut dyn FnMut(Vec<C>);

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It has happened.
    Done,
    /// It was refused, as in a full pool: it has not happened, and never will have.
    Refused,
}

/// A state to start from.
#[derive(Clone, Debug)]
pub struct Start<C> {
    /// For people, and to choose it by.
    pub name: &'static str,
    /// How to get there from nothing.
    pub changes: Vec<C>,
    /// Numbers that the operations then speak of: those of keys, as a rule.
    pub keys: [u32; 4],
    /// Whether all payloads are the same, so that no two entries differ by value.
    pub equal_payloads: bool,
    /// Whether there is a pool at all: else the first opening creates it.
    pub pool: bool,
    /// Size in bytes to which the pool may grow while the start is made; `None`: all memory. A life that needs more lets it grow.
    pub size: Option<usize>,
    /// Whether the pool is closed cleanly, so that the first life starts with the way open after a shutdown.
    pub closed: bool,
    /// Whether the first life is given free blocks in the order in which recovery gives them out, those that lie first before others: so what it was given
    /// first, and no longer has, the next life is given first. Else those that lie last come first.
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
