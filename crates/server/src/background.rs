//! Tasks that a server runs in threads of their own, one of a kind at a time.

use parking_lot::Mutex;
use std::io;
use std::thread::{self, JoinHandle};

/// A thread that ends with the server.
#[derive(Default)]
pub(crate) struct Background(Mutex<Option<JoinHandle<()>>>);

impl Background {
    /// Starts `work`. The caller ensures that the previous task is over, or as good as over.
    pub(crate) fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut thread = self.0.lock();
        if let Some(before) = thread.take() {
            // The previous task has reported its result itself.
            let _ = before.join();
        }
        *thread = Some(thread::Builder::new().name(name.into()).spawn(work)?);
        Ok(())
    }

    /// Waits for the thread, if there is one.
    pub(crate) fn join(&self) {
        if let Some(thread) = self.0.lock().take() {
            let _ = thread.join();
        }
    }
}
