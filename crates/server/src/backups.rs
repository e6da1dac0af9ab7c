//! Backups that the server makes: SAVE and BGSAVE, one at a time.
//!
//! A backup is a stream of the store (`docs/stream-format.md`) of the moment at which it begins. SAVE writes a block in each turn of its connection, so that
//! others have theirs; BGSAVE has a thread of its own, which ends with the server.

use crate::background::Background;
use everleaf::{Passed, Store, StreamError};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The backups of a server.
pub(crate) struct Backups {
    /// Where they go.
    pub(crate) path: PathBuf,
    state: Mutex<State>,
    thread: Background,
}

/// What INFO tells of them.
#[derive(Clone, Copy)]
pub(crate) struct State {
    /// Since when one is being written.
    pub(crate) running_since: Option<Instant>,
    /// When the last one was done, in seconds since 1970; before the first one, when the server was started.
    pub(crate) last_s: u64,
    /// How the last one in the background ended: how many seconds it took, and whether it is there.
    pub(crate) last_background: Option<(u64, bool)>,
    /// What the last one that was done holds.
    pub(crate) last_passed: Passed,
}

/// That a backup is being written; no other begins as long as this lives.
pub(crate) struct Running {
    backups: Arc<Backups>,
    since: Instant,
}

/// A backup that is being written.
pub(crate) struct Saving {
    backup: everleaf::Backup,
    running: Running,
}

impl Backups {
    pub(crate) fn new(path: PathBuf) -> Self {
        let state = State { running_since: None, last_s: now_s(), last_background: None, last_passed: Passed::default() };
        Self { path, state: Mutex::new(state), thread: Background::default() }
    }

    pub(crate) fn state(&self) -> State {
        *self.state.lock()
    }

    /// Begins a backup, unless there is one under way.
    pub(crate) fn begin(self: &Arc<Self>, store: &Store) -> Option<Result<Saving, StreamError>> {
        let running = self.run()?;
        Some(store.snapshot().map_err(StreamError::from).and_then(|snapshot| snapshot.backup(&self.path)).map(|backup| Saving { backup, running }))
    }

    fn run(self: &Arc<Self>) -> Option<Running> {
        let mut state = self.state.lock();
        if state.running_since.is_some() {
            return None;
        }
        let since = Instant::now();
        state.running_since = Some(since);
        Some(Running { backups: self.clone(), since })
    }

    /// Writes it in a thread of its own, as long as `is_stopping` does not say that the server ends.
    pub(crate) fn continue_in_background(&self, saving: Saving, is_stopping: impl Fn() -> bool + Send + 'static) -> Result<(), StreamError> {
        let work = move || {
            let Saving { mut backup, running } = saving;
            let written = loop {
                match backup.advance() {
                    Ok(true) if is_stopping() => break None,
                    Ok(true) => {}
                    Ok(false) => break backup.finish().ok(),
                    Err(_) => break None,
                }
            };
            running.end(written, true);
        };
        self.thread.start("everleaf-backup", work).map_err(|source| StreamError::Io { action: "start a thread for the backup", source })
    }

    /// Waits for the thread, if there is one.
    pub(crate) fn join(&self) {
        self.thread.join();
    }
}

impl Running {
    /// Notes what it has become: what it holds, if it is there.
    fn end(self, written: Option<Passed>, in_background: bool) {
        let mut state = self.backups.state.lock();
        if let Some(passed) = written {
            (state.last_s, state.last_passed) = (now_s(), passed);
        }
        if in_background {
            state.last_background = Some((self.since.elapsed().as_secs(), written.is_some()));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.backups.state.lock().running_since = None;
    }
}

impl Saving {
    /// Writes a block; whether there is more.
    pub(crate) fn advance(&mut self) -> Result<bool, StreamError> {
        self.backup.advance()
    }

    /// Ends it.
    pub(crate) fn finish(self) -> Result<(), StreamError> {
        let passed = self.backup.finish()?;
        self.running.end(Some(passed), false);
        Ok(())
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
