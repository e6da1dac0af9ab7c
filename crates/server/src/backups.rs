//! Backups that the server makes: SAVE and BGSAVE, one at a time.
//!
//! A backup is a stream of the store (`docs/stream-format.md`) as of the moment at which it begins. SAVE writes a block in each turn of its connection, so that
//! others get theirs; BGSAVE uses a thread of its own, which ends with the server.

use crate::background::Background;
use everleaf::{Passed, Store, StreamError};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The backups of a server.
pub(crate) struct Backups {
    /// The file to which they are written.
    pub(crate) path: PathBuf,
    log: fn(&str),
    state: Mutex<State>,
    /// Whether one is to begin as soon as none is being written.
    is_scheduled: AtomicBool,
    thread: Background,
}

/// What INFO reports about them.
#[derive(Clone)]
pub(crate) struct State {
    /// When the current one began, if one is being written.
    pub(crate) running_since: Option<Instant>,
    /// When the last one completed, in seconds since 1970; before the first of this server, when the file there was written, or 0 if there is none.
    pub(crate) last_s: u64,
    /// How many seconds the last one in the background took, even if it failed.
    pub(crate) last_background_s: Option<u64>,
    /// Why the last one in the background failed, unless one has completed since.
    pub(crate) failure: Option<Arc<str>>,
    /// The contents of the last complete one.
    pub(crate) last_passed: Passed,
    /// A lower bound of the number of changes when that one began.
    pub(crate) last_change_count: u64,
    /// Number of complete ones.
    pub(crate) done_count: u64,
}

/// For whom a backup is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    /// For a client, which is told of errors.
    Fore,
    /// For none.
    Back,
}

/// A backup is being written, and no other begins as long as this lives.
pub(crate) struct Running {
    backups: Arc<Backups>,
    ground: Ground,
    since: Instant,
    change_count: u64,
}

/// A backup that is being written.
pub(crate) struct Saving {
    backup: everleaf::Backup,
    running: Running,
}

impl Backups {
    pub(crate) fn new(path: PathBuf, log: fn(&str)) -> Self {
        let state = State {
            running_since: None,
            last_s: made_s(&path),
            last_background_s: None,
            failure: None,
            last_passed: Passed::default(),
            last_change_count: 0,
            done_count: 0,
        };
        Self { path, log, state: Mutex::new(state), is_scheduled: AtomicBool::new(false), thread: Background::default() }
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Makes one begin as soon as none is being written.
    pub(crate) fn schedule(&self) {
        self.is_scheduled.store(true, Ordering::Release);
    }

    /// Whether one is to begin; if so, the caller begins it.
    pub(crate) fn take_scheduled(&self) -> bool {
        self.is_scheduled.load(Ordering::Relaxed) && self.is_scheduled.swap(false, Ordering::Acquire)
    }

    /// Begins a backup, unless one is being written. It contains at least `change_count` changes: those are done.
    pub(crate) fn begin(self: &Arc<Self>, store: &Store, ground: Ground, change_count: u64) -> Option<Result<Saving, StreamError>> {
        let running = self.run(ground, change_count)?;
        let backup = store.snapshot().map_err(StreamError::from).and_then(|snapshot| snapshot.backup(&self.path));
        Some(match backup {
            Ok(backup) => Ok(Saving { backup, running }),
            Err(error) => {
                running.fail(&error.to_string());
                Err(error)
            }
        })
    }

    fn run(self: &Arc<Self>, ground: Ground, change_count: u64) -> Option<Running> {
        let mut state = self.state.lock();
        if state.running_since.is_some() {
            return None;
        }
        let since = Instant::now();
        state.running_since = Some(since);
        Some(Running { backups: self.clone(), ground, since, change_count })
    }

    /// Writes it in a thread of its own, until `is_stopping` says that the server stops.
    pub(crate) fn continue_in_background(&self, saving: Saving, is_stopping: impl Fn() -> bool + Send + 'static) -> Result<(), StreamError> {
        let work = move || {
            let Saving { backup, running } = saving;
            match write(backup, is_stopping) {
                Ok(passed) => running.end(passed),
                Err(reason) => running.fail(&reason),
            }
        };
        self.thread.start("everleaf-backup", work).map_err(|source| {
            let error = StreamError::Io { action: "start a thread for the backup", source };
            self.state.lock().failure = Some(error.to_string().into());
            error
        })
    }

    /// Waits for the thread, if there is one.
    pub(crate) fn join(&self) {
        self.thread.join();
    }
}

/// Writes a backup to its end. If that fails, its file is gone when this returns: the next backup's file has the same name.
fn write(mut backup: everleaf::Backup, is_stopping: impl Fn() -> bool) -> Result<Passed, String> {
    loop {
        match backup.advance() {
            Ok(true) if is_stopping() => return Err("the server was stopped before it was done".into()),
            Ok(true) => {}
            Ok(false) => return backup.finish().map_err(|error| error.to_string()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

impl Running {
    /// Records success and what was written.
    fn end(self, passed: Passed) {
        let mut state = self.backups.state.lock();
        (state.last_s, state.last_passed, state.last_change_count, state.failure) = (now_s(), passed, self.change_count, None);
        state.done_count += 1;
        self.note_time(&mut state);
    }

    /// Records a failure. In the background it is also logged, without the lock: the callback may do anything.
    fn fail(self, reason: &str) {
        if self.ground == Ground::Fore {
            return;
        }
        {
            let mut state = self.backups.state.lock();
            state.failure = Some(reason.into());
            self.note_time(&mut state);
        }
        (self.backups.log)(&format!("the backup to {} failed: {reason}", self.backups.path.display()));
    }

    fn note_time(&self, state: &mut State) {
        if self.ground == Ground::Back {
            state.last_background_s = Some(self.since.elapsed().as_secs());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.backups.state.lock().running_since = None;
    }
}

impl Saving {
    /// Writes a block; returns whether there is more.
    pub(crate) fn advance(&mut self) -> Result<bool, StreamError> {
        self.backup.advance()
    }

    /// Ends it.
    pub(crate) fn finish(self) -> Result<(), StreamError> {
        let passed = self.backup.finish()?;
        self.running.end(passed);
        Ok(())
    }
}

fn now_s() -> u64 {
    seconds(SystemTime::now())
}

/// When the file at `path` was written last; 0 if there is none.
fn made_s(path: &Path) -> u64 {
    std::fs::metadata(path).and_then(|file| file.modified()).map_or(0, seconds)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
