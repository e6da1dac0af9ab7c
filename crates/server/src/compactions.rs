//! MEMORY PURGE: compacts the store while it is in use. One at a time, in a thread that ends with the server.

use crate::background::Background;
use everleaf::{Error, Evacuation, Shrunk, Store};
use parking_lot::Mutex;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The compactions of a server.
pub(crate) struct Compactions {
    log: fn(&str),
    state: Mutex<State>,
    thread: Background,
}

/// What INFO reports about them.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// Whether one is running.
    pub(crate) is_running: bool,
    /// The result of the last one, so far.
    pub(crate) last: Shrunk,
    /// Why it failed, if it did.
    pub(crate) failure: Option<Arc<str>>,
}

impl Compactions {
    pub(crate) fn new(log: fn(&str)) -> Self {
        Self { log, state: Mutex::default(), thread: Background::default() }
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Begins one, unless one is running; returns whether it did. It ends early when `stopping` says that the server stops.
    pub(crate) fn begin(self: &Arc<Self>, store: &Arc<Store>, stopping: &Arc<AtomicBool>) -> io::Result<bool> {
        {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_running, true) {
                return Ok(false);
            }
            state.last = Shrunk::default();
        }
        let (this, store, stopping) = (self.clone(), store.clone(), stopping.clone());
        let work = move || {
            let _ended = Ended(&this);
            let outcome = store.compact(Evacuation::Sparse, |shrunk| {
                this.state.lock().last = *shrunk;
                if stopping.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            // Before its end is reported: the server closes the store when all threads have dropped it.
            drop(store);
            this.end(outcome);
        };
        self.thread.start("everleaf-compact", work).inspect_err(|_| self.state.lock().is_running = false)?;
        Ok(true)
    }

    fn end(&self, outcome: Result<Shrunk, Error>) {
        if let Err(error) = &outcome {
            (self.log)(&format!("the compaction failed: {error}"));
        }
        let mut state = self.state.lock();
        state.is_running = false;
        state.failure = outcome.as_ref().err().map(|error| error.to_string().into());
        if let Ok(shrunk) = outcome {
            state.last = shrunk;
        }
    }

    /// Waits for the thread, if there is one.
    pub(crate) fn join(&self) {
        self.thread.join();
    }
}

/// Marks the compaction as over if its thread panics.
struct Ended<'a>(&'a Compactions);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut state = self.0.state.lock();
            (state.is_running, state.failure) = (false, Some("its thread panicked".into()));
        }
    }
}
