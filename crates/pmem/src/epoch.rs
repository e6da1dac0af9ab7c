//! Epochs: when a retired block may be reused. PROVISIONAL: never.

use crate::{Medium, Off, Pool};

/// The epochs of a pool.
pub(crate) struct Epochs {}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self {}
    }
}

/// A pinned epoch: blocks retired meanwhile are not reused.
pub struct Guard {}

impl<M: Medium> Pool<M> {
    /// Enters the current epoch: blocks retired from now on are not reused before the guard is dropped.
    pub fn pin(&self) -> Guard {
        let _ = &self.epochs;
        Guard {}
    }

    /// Gives `block` back once every thread has left the current epoch. The caller has unlinked it durably.
    pub fn retire<T: ?Sized>(&self, _block: Off<T>, _guard: &Guard) {}

    /// Gives back as many retired blocks as possible: all, when no thread is pinned.
    pub fn collect(&self) {}
}
