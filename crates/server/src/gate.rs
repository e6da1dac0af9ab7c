//! A way for one event loop to work alone.
//!
//! A transaction that other writers always overtake would be retried for ever. After some attempts its event loop closes the gate, waits until all others are
//! between two slices, and tries again undisturbed. To pass the gate, a loop stores to a flag of its own and reads one shared flag that rarely changes.
//!
//! Either the entering loop sees that the gate is closed, or the closing loop sees the flag: both store first and then look, in one total order (`SeqCst`). A
//! loop that wants to be alone clears its own flag first, so that two of them do not wait for each other.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The gate.
pub(crate) struct Gate {
    is_closed: AtomicBool,
    /// Held by the loop that works alone.
    alone: Mutex<()>,
    loops: Vec<Flag>,
}

/// Whether an event loop is working.
#[derive(Default)]
#[repr(align(128))]
struct Flag(AtomicBool);

/// An event loop works as long as this lives.
pub(crate) struct Working<'g>(&'g Gate, usize);

impl Gate {
    pub(crate) fn new(loop_count: usize) -> Self {
        Self { is_closed: AtomicBool::new(false), alone: Mutex::default(), loops: (0..loop_count).map(|_| Flag::default()).collect() }
    }

    /// Event loop `number` begins to work, as soon as no other works alone.
    pub(crate) fn enter(&self, number: usize) -> Working<'_> {
        self.pass(number);
        Working(self, number)
    }

    fn pass(&self, number: usize) {
        let Flag(works) = &self.loops[number];
        loop {
            works.store(true, Ordering::SeqCst);
            if !self.is_closed.load(Ordering::SeqCst) {
                return;
            }
            works.store(false, Ordering::SeqCst);
            drop(self.alone.lock());
        }
    }

    /// Runs `act` while no other event loop works. Called by a loop that works.
    pub(crate) fn alone<T>(&self, number: usize, act: impl FnOnce() -> T) -> T {
        /// Opens the gate, whatever happens.
        struct Open<'g>(&'g AtomicBool);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::SeqCst);
            }
        }
        self.loops[number].0.store(false, Ordering::SeqCst);
        let outcome = {
            let _alone = self.alone.lock();
            let _open = Open(&self.is_closed);
            self.is_closed.store(true, Ordering::SeqCst);
            while self.loops.iter().any(|Flag(works)| works.load(Ordering::SeqCst)) {
                std::thread::yield_now();
            }
            act()
        };
        self.pass(number);
        outcome
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.loops[self.1].0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn who_is_alone_meets_nobody() {
        const LOOPS: usize = 4;
        let (gate, inside) = (Gate::new(LOOPS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..LOOPS {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let _working = gate.enter(number);
                        inside.fetch_add(1, Ordering::SeqCst);
                        if round % 16 == number {
                            inside.fetch_sub(1, Ordering::SeqCst);
                            gate.alone(number, || {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                                std::thread::yield_now();
                                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                            });
                            inside.fetch_add(1, Ordering::SeqCst);
                        }
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
