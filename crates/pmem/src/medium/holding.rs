//! Stores that a thread holds back until they are durable: see [`Medium::publish`](super::Medium::publish).

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

thread_local! {
    /// The id of the medium whose stores this thread holds back; 0 if none.
    static HOLDING: Cell<u64> = const { Cell::new(0) };
    /// What is held back: where, and what. Never dropped, so that destructors that run as a thread ends may publish: nothing is left when nothing is held back.
    static HELD: RefCell<ManuallyDrop<Vec<(usize, u64)>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
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
        HELD.with_borrow_mut(|held| std::mem::take(&mut **held))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        HOLDING.set(0);
        HELD.with_borrow_mut(|held| drop(std::mem::take(&mut **held)));
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
