//! A housekeeping thread, for programs that do no housekeeping themselves: see [`Options::keeps_house`](crate::Options::keeps_house).
//!
//! It has its own handle to the store, but ends with the handle that started it, whose drop waits for the turn in progress.

use crate::store::Shared;
use crate::{Error, Store};
use everleaf_index::Listed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Pause between two turns, unless there is more to do at once.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread; dropping this ends it.
pub(crate) struct Housekeeper {
    is_dismissed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// A process that is forked has a copy of the handle, but not the thread.
    process: u32,
}

impl Housekeeper {
    /// Begins the thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(crate) fn start<M: Listed>(shared: &Arc<Shared<M>>) -> Result<Self, Error> {
        let store = Store { shared: shared.clone(), housekeeper: None };
        let is_dismissed = Arc::new(AtomicBool::new(false));
        let dismissed = is_dismissed.clone();
        let keep_house = move || {
            while !dismissed.load(Ordering::Relaxed) {
                if !store.keep_house() {
                    thread::park_timeout(PAUSE);
                }
            }
        };
        let thread = thread::Builder::new().name("everleaf-house".into()).spawn(keep_house).map_err(|source| Error::Thread { source })?;
        Ok(Self { is_dismissed, thread: Some(thread), process: std::process::id() })
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.is_dismissed.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            std::mem::forget(thread);
        } else {
            thread.thread().unpark();
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}
