//! What each thread keeps for each pool it uses.
//!
//! A thread mostly uses one pool, so finding its state is one comparison. States of pools that no longer exist are dropped when the thread meets a new pool;
//! the others, when the thread ends.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of one thread for one pool.
pub(crate) trait Tenant {
    /// Whether the pool still exists.
    fn is_alive(&self) -> bool;
}

/// The states of one thread, by number of the pool; the one used last comes first.
pub(crate) struct PerPool<T>(RefCell<Vec<(u64, T)>>);

/// A number that no other pool of this process has or has ever had.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T: Tenant> PerPool<T> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// Runs `act` on the state for pool `id`, which `open` creates if necessary. Neither may call this function.
    #[inline]
    pub(crate) fn with<R>(&self, id: u64, open: impl FnOnce() -> T, act: impl FnOnce(&T) -> R) -> R {
        if let Some((first, state)) = self.0.borrow().first()
            && *first == id
        {
            return act(state);
        }
        self.bring_forward(id, open);
        act(&self.0.borrow()[0].1)
    }

    #[cold]
    fn bring_forward(&self, id: u64, open: impl FnOnce() -> T) {
        let found = self.0.borrow().iter().position(|(other, _)| *other == id);
        match found {
            Some(place) => self.0.borrow_mut().swap(0, place),
            None => {
                let state = open();
                let gone: Vec<_> = self.0.borrow_mut().extract_if(.., |(_, state)| !state.is_alive()).collect();
                // Dropped while nothing is borrowed.
                drop(gone);
                self.0.borrow_mut().insert(0, (id, state));
            }
        }
    }
}
