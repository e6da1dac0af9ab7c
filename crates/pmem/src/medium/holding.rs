//! Stores that a thread holds back until they are durable: see [`Medium::publish`](super::Medium::publish).

use std::cell::{Cell, RefCell};

thread_local! {
    /// The id of the medium whose stores this thread holds back; 0 if none.
    static HOLDING: Cell<u64> = const { Cell::new(0) };
    /// What is held back: where, and what.
    static HELD: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
}

/// As long as this lives, stores of this thread are held back.
pub(super) struct Holding;

impl Holding {
    /// Begins to hold back stores to the medium with this id, which is not 0.
    pub(super) fn begin(id: u64) -> Self {
        assert!(HOLDING.replace(id) == 0, "what is published publishes");
        Self
    }

    /// What was held back: where in the pool, in bytes, and the value.
    pub(super) fn end(self) -> Vec<(usize, u64)> {
        HELD.take()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        HOLDING.set(0);
        HELD.take();
    }
}

/// Whether this thread holds back its stores to that medium.
#[inline(always)]
pub(super) fn is_held_back(id: u64) -> bool {
    HOLDING.get() == id
}

/// Holds a store back.
pub(super) fn hold_back(at: usize, value: u64) {
    HELD.with_borrow_mut(|held| held.push((at, value)));
}
