//! What one thread owes another: whose stores are not durable yet, and the images in which exactly one such store is lost.
//!
//! A thread that has read a store of another thread, and returns before that store is durable, may have returned what a crash takes back. The image that loses
//! this store and nothing else shows whether it has.

use super::{Crash, Event, Image, Life, Seen, images};
use crate::medium::LINE;

/// A store that was not durable when another thread read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// Offset of the word in bytes.
    pub at: usize,
    /// Number of the store in its life.
    number: u64,
}

impl Crash {
    /// The latest store to the word at `at`, if another thread has made it and it is not durable.
    pub fn debt(&self, at: usize) -> Option<Debt> {
        let number = self.level.state.lock().log.owed(at)?;
        Some(Debt { at, number })
    }

    /// Whether the store is durable by now.
    pub fn is_paid(&self, debt: Debt) -> bool {
        self.level.state.lock().log.find(debt.at, debt.number).is_none()
    }
}

impl Life {
    /// Shows the image that loses only the store of `debt` and those that need it, and the one that loses everything that can be lost.
    pub fn lose(&self, debt: Debt, observer: impl FnMut(&Image<'_>) -> Seen + Send + 'static) {
        let level = &self.crash.level;
        let mut state = level.state.lock();
        if let Some(place) = state.log.find(debt.at, debt.number) {
            state.points += 1;
            let mut observer: super::Observer = Box::new(observer);
            images::without(level, &mut state, (debt.at / LINE) as u32, place, Event::End, &mut observer);
        }
    }
}
