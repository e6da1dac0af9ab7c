//! The journal of a pool in [`Domain::Msync`](crate::Domain::Msync): a fence appends what it makes durable to a file, in one access of the device; it reaches
//! its place in the pool later.
//!
//! ```text
//! pool           mapped, shared: the kernel writes its pages whenever it likes
//! pool.journal0  0      4096
//! pool.journal1  | head | frame | frame | ...   |   what is left of frames before   |
//!
//! head   magic, version, UUID of the pool (2), id of the journal, generation (0: retired), sequence of its first frame, checksum
//! frame  length in words, whole | CRC-32C << 32;   sequence;   entries
//! entry  offset of the first line in the pool | lines - 1 (at most 63);   the lines, 8 words each
//! ```
//!
//! The two files are used in turn. Invariants:
//! 1. Frames are written one after the other, each when the device has the one before: whatever the device has behind the last is no frame, or one that nobody
//!    has been told of. The checksum also covers id and generation, so an old frame is not valid.
//! 2. A file is retired, and reused, only when the device has in the pool whatever the file's frames say.
//! 3. The superblock of the pool names the id from before the first fence until the pool is closed, and does not say meanwhile that the pool is clean.
//!
//! Making lines durable ([`Journal::write`]):
//! 1. Under the lock, each line is copied to the frame that is being filled. So of two frames the later has the later copy. A copy is the line at one moment:
//!    it is read until two readings are equal (that a line changes and changes back meanwhile, twice over, is considered too unlikely).
//! 2. A thread that finds nobody writing takes the frame, writes it behind the last, and waits for the device (`fdatasync`; the file's blocks are allocated
//!    already, so there is nothing else to write). Others fill the next frame meanwhile, and wait for the first of them to write it: they share a wait. A crash
//!    before the device has the frame leaves it whole or not. Whole, it is as good as a fence that came earlier. Otherwise its lines are what they were at the
//!    fence before, or what the kernel has written of them since, and nobody has been told more.
//!
//! What is *published* ([`Medium::publish`](crate::Medium::publish)) must not be found without what was flushed before, and the kernel writes what is stored
//! whenever it likes. So it is not stored at first. Its lines are copied to the frame with their new content, beside what was flushed before; they are stored
//! when the device has the frame, before anything else is written, so before the file with the frame can turn. A thread that copies such a line meanwhile,
//! because of its own earlier stores there, copies the new content, as its frame may be the later one.
//!
//! When a file is full ([`Journal::turn`], [`Journal::checkpoint`]):
//! 1. The other file, which is retired, gets the next generation, and frames go there.
//! 2. Meanwhile the pool is written to the device. A crash before that ends finds two files whose frames follow each other.
//! 3. The full file is retired, durably.
//!
//! What is too large for a frame is made durable by a checkpoint alone. Before the files turn for it, whatever other threads have copied is written: a copy
//! written after the turn would undo what was stored since.
//!
//! A failure to write is final: the mapping is replaced by a private copy, so that nothing stored from then on is found, and nothing more is written or retired
//! than what was under way. Threads that see the failure have the copy already. Checkpoints synchronise the pool through a file description of their own: the
//! system reports a failure once to each, and this one must not miss it because another was told.
//!
//! Recovery ([`Replay`]): frames are read in order, up to the first invalid one, and each line is written to the pool as its last frame has it. (If a later
//! frame lies behind the invalid one, that was valid once, by invariant 1: the journal is damaged, and the pool is not opened without its content.) That is the
//! line's state at a fence, or later. Every line without a frame is what the kernel has written of it: at least its state at the checkpoint before. So each
//! line is some prefix of its stores that has all that were fenced. A crash during recovery changes nothing: it begins again. At its end, when the device has
//! the pool, a superblock without the journal's id is the commit point. Sectors of the header are written in the same order as when a superblock is changed, so
//! that at any time there is one which names the journal.
//!
//! A device may tear a write between its sectors of 512 bytes, but not within one; of a sector that is rewritten with more appended, it has either version.

#[cfg(test)]
mod tests;

use crate::map::{self, Mapping, Sharing};
use crate::pool::lock;
use crate::word::checksum;
use crate::{Error, LINE, WORD, files};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// "EVERJRNL".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"EVERJRNL");
const VERSION: u64 = 1;
const HEAD_WORDS: usize = 8;
/// Where the first frame begins, in bytes.
const FIRST: u64 = 4096;
/// Words of a frame before its entries.
const FRAME_HEAD: usize = 2;
const LINE_WORDS: usize = LINE / WORD;
/// Maximum lines of an entry: as many as the low bits of its offset can encode.
const ENTRY_LINES: usize = LINE;
/// Words a frame holds before further threads wait for the next frame.
const FRAME_WORDS: usize = if cfg!(test) { 1 << 10 } else { 1 << 17 };
/// Number of bytes above which a checkpoint alone makes them durable: in a frame they would have to be written twice.
const LARGE: usize = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// Initial size of a file, in bytes; more than a frame takes with one more fence in it.
const SIZE_MIN: u64 = if cfg!(test) { 32 << 10 } else { 4 << 20 };
/// The size to which a file grows, in bytes: a pool with a slow device or many changes is then written less often.
const SIZE_MAX: u64 = 64 << 20;
/// How much of the pool is written at once, in bytes: frames wait behind it.
const PIECE: u64 = 256 << 10;

/// The journal of an open pool.
pub(crate) struct Journal {
    files: [Part; 2],
    /// The pool, for checkpoints; and again, for writing it in pieces: of failures there, the former is told as well.
    pool: [File; 2],
    uuid: u128,
    id: u64,
    state: Mutex<State>,
    /// Notified of every change of `State` that a thread may wait for.
    changed: Condvar,
    failure: OnceLock<String>,
    /// Whether writing the next frame fails.
    #[cfg(test)]
    fails: AtomicBool,
    /// Whether the next checkpoint fails to write the pool.
    #[cfg(test)]
    checkpoint_fails: AtomicBool,
    /// Held while no checkpoint is to begin.
    #[cfg(test)]
    held: Mutex<()>,
}

/// One of the two files.
struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    /// Removes it. It means nothing, so it does no harm if it stays. Another process's file may have taken its place.
    fn remove(&self) {
        if files::has_name(&self.file, &self.path).unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct State {
    /// The frame that is being filled, with room for its head.
    filled: Vec<u64>,
    /// A buffer for the next one.
    spare: Vec<u64>,
    /// What that frame publishes: where, and what.
    held: Vec<(usize, u64)>,
    /// Everything published and not stored yet, by its place.
    published: BTreeMap<usize, u64>,
    /// The sequence number of the frame that is being filled.
    sequence: u64,
    /// The device has all frames below this one.
    durable: u64,
    /// A thread is writing a frame.
    writes: bool,
    /// The other file is not retired yet.
    checkpoints: bool,
    /// A thread waits until the frame being filled is empty; meanwhile nobody else may fill it.
    turns: bool,
    generation: u64,
    /// Where the next frame begins, in bytes, in the file of this generation.
    end: u64,
    /// Sizes of the files.
    sizes: [u64; 2],
    /// The thread that does the checkpoint, or did the last.
    worker: Option<JoinHandle<()>>,
}

impl State {
    /// Copies lines to the frame that is being filled, with what is published there.
    fn fill(&mut self, pool: &Mapping, run: Range<usize>) {
        for at in run.clone().step_by(ENTRY_LINES * LINE) {
            let lines = (run.end - at).div_ceil(LINE).min(ENTRY_LINES);
            self.filled.push(at as u64 | (lines - 1) as u64);
            for at in (at..).step_by(LINE).take(lines) {
                let mut line = copy(pool, at);
                if !self.published.is_empty() {
                    self.published.range(at..at + LINE).for_each(|(word, value)| line[(word - at) / WORD] = *value);
                }
                self.filled.extend(line);
            }
        }
    }
}

/// The first of a file's words.
struct Head {
    uuid: u128,
    id: u64,
    /// Odd in the second file. 0 if the file has nothing valid.
    generation: u64,
    /// Of the first frame.
    sequence: u64,
}

impl Head {
    fn encode(&self) -> [u64; HEAD_WORDS] {
        let mut words = [MAGIC, VERSION, self.uuid as u64, (self.uuid >> 64) as u64, self.id, self.generation, self.sequence, 0];
        words[HEAD_WORDS - 1] = u64::from(checksum(&words[..HEAD_WORDS - 1]));
        words
    }

    fn decode(words: &[u64; HEAD_WORDS]) -> Option<Self> {
        let [magic, version, low, high, id, generation, sequence, crc] = *words;
        let is_head = magic == MAGIC && version == VERSION && crc == u64::from(checksum(&words[..HEAD_WORDS - 1]));
        is_head.then_some(Self { uuid: u128::from(high) << 64 | u128::from(low), id, generation, sequence })
    }
}

/// The checksum of a frame: over its length, everything behind its first word, and the place where it belongs.
fn frame_checksum(id: u64, generation: u64, frame: &[u64]) -> u32 {
    crate::crc32c(checksum(&[id, generation, frame.len() as u64]), bytemuck::cast_slice(&frame[1..]))
}

/// Where the parts of the journal of the pool at `path` are: beside the file itself, whatever links lead to it.
fn paths(path: &Path) -> io::Result<[PathBuf; 2]> {
    let path = std::fs::canonicalize(path)?;
    Ok([0, 1].map(|number| path.with_added_extension(format!("journal{number}"))))
}

impl Journal {
    /// A new journal for the pool `uuid` in `file` at `path`; it replaces one that nobody uses.
    pub(crate) fn create(path: &Path, file: &File, uuid: u128) -> Result<Self, Error> {
        let at = |path: &Path, source| Error::Io { action: "create the journal", path: path.to_owned(), source };
        let [first, second] = paths(path).map_err(|error| at(path, error))?;
        let id = u64::from_le_bytes(files::random().map_err(|error| at(path, error))?) | 1;
        let again = || open_again(path, file).map_err(|error| at(path, error));
        let pool = [again()?, again()?];
        let retired = Head { uuid, id, generation: 0, sequence: 0 };
        let part = |path: PathBuf| match create_part(&path, file, &retired) {
            Ok(file) => Ok(Part { file, path }),
            Err(error) => Err(at(&path, error)),
        };
        let first = part(first)?;
        let files = match part(second) {
            Ok(second) => [first, second],
            Err(error) => {
                first.remove();
                return Err(error);
            }
        };
        let state = State {
            filled: vec![0; FRAME_HEAD],
            spare: Vec::new(),
            held: Vec::new(),
            published: BTreeMap::new(),
            sequence: 1,
            durable: 1,
            writes: false,
            checkpoints: false,
            turns: false,
            generation: 1,
            end: FIRST,
            sizes: [SIZE_MIN; 2],
            worker: None,
        };
        let journal = Self {
            files,
            pool,
            uuid,
            id,
            state: Mutex::new(state),
            changed: Condvar::new(),
            failure: OnceLock::new(),
            #[cfg(test)]
            fails: AtomicBool::new(false),
            #[cfg(test)]
            checkpoint_fails: AtomicBool::new(false),
            #[cfg(test)]
            held: Mutex::new(()),
        };
        let begin = || {
            journal.begin_generation(1, 1)?;
            files::sync_directory_of(&journal.files[0].path)
        };
        match begin() {
            Ok(()) => Ok(journal),
            Err(error) => {
                journal.remove();
                Err(at(path, error))
            }
        }
    }

    /// The id that the superblock is to name.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Why nothing can be made durable any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Makes the lines at `runs` of `pool` durable, as they are now or later. `runs` are bytes from its start, in order and not touching. With them it makes
    /// durable the values that `held` has for words in these lines; those are stored afterwards. A failure is final: see [`Journal::failure`].
    pub(crate) fn write(&self, pool: &Arc<Mapping>, runs: &[Range<usize>], held: &[(usize, u64)]) {
        let mut state = self.state.lock();
        let lines: Vec<_>;
        let mut runs = runs;
        if runs.iter().map(Range::len).sum::<usize>() > LARGE {
            self.write_pool(pool, state);
            // What is published was not stored yet.
            lines = held.iter().map(|(at, _)| at / LINE * LINE).collect::<BTreeSet<_>>().into_iter().map(|at| at..at + LINE).collect();
            runs = &lines;
            if runs.is_empty() {
                return;
            }
            state = self.state.lock();
        }
        while self.failure().is_none() && (state.turns || state.filled.len() > FRAME_WORDS) {
            if state.turns {
                self.changed.wait(&mut state);
            } else {
                self.proceed(pool, &mut state);
            }
        }
        if self.failure().is_none() {
            state.held.extend(held);
            state.published.extend(held.iter().copied());
            runs.iter().for_each(|run| state.fill(pool, run.clone()));
            let frame = state.sequence;
            while state.durable <= frame && self.proceed(pool, &mut state) {}
        }
        if self.failure().is_some() {
            // Later code takes it to be stored, and no crash finds it. First wait for the thread that may be about to store it.
            while state.writes {
                self.changed.wait(&mut state);
            }
            store(pool, held);
        }
    }

    /// Writes the frame that is being filled, or waits until the thread that writes another is done. False after a failure.
    fn proceed(&self, pool: &Arc<Mapping>, state: &mut MutexGuard<'_, State>) -> bool {
        if self.failure().is_some() {
            return false;
        }
        if state.writes {
            self.changed.wait(state);
        } else {
            state.writes = true;
            let written = self.write_frame(pool, state);
            state.writes = false;
            if let Err(error) = written {
                self.fail(state, pool, format!("the journal: {error}"));
            }
            self.changed.notify_all();
        }
        true
    }

    /// Writes the frame that is being filled. No other thread does so now.
    fn write_frame(&self, pool: &Arc<Mapping>, state: &mut MutexGuard<'_, State>) -> io::Result<()> {
        let room = |state: &State| state.end + size_of_val(&*state.filled) as u64 <= state.sizes[file_of(state.generation)];
        if !room(state) {
            while state.checkpoints {
                self.changed.wait(state);
            }
            if let Some(failure) = self.failure() {
                return Err(io::Error::other(failure.to_owned()));
            }
            let full = self.turn(state)?;
            let of_thread = Arc::clone(pool);
            let checkpoint = move || of_thread.journal().iter().for_each(|journal| journal.checkpoint(&of_thread, full, true));
            state.worker = std::thread::Builder::new().name("checkpoint".into()).spawn(checkpoint).ok();
            // Without a worker thread, this one does it.
            if state.worker.is_none() {
                MutexGuard::unlocked(state, || self.checkpoint(pool, full, true));
            }
        }
        let mut frame = std::mem::take(&mut state.spare);
        frame.resize(FRAME_HEAD, 0);
        std::mem::swap(&mut frame, &mut state.filled);
        let held = std::mem::take(&mut state.held);
        let (sequence, generation, end) = (state.sequence, state.generation, state.end);
        state.sequence += 1;
        let written: io::Result<()> = MutexGuard::unlocked(state, || {
            #[cfg(test)]
            if self.fails.swap(false, Ordering::Relaxed) {
                return Err(io::Error::other("a test"));
            }
            frame[1] = sequence;
            frame[0] = frame.len() as u64 | u64::from(frame_checksum(self.id, generation, &frame)) << 32;
            let file = &self.files[file_of(generation)].file;
            file.write_all_at(bytemuck::cast_slice(&frame), end)?;
            file.sync_data()?;
            // Pages written to the device meanwhile must be made writable again: other threads need not wait for that.
            if self.failure().is_none() {
                store(pool, &held);
            }
            Ok(())
        });
        written?;
        for (at, _) in &held {
            state.published.remove(at);
        }
        state.end += size_of_val(&*frame) as u64;
        state.durable = sequence + 1;
        frame.clear();
        frame.shrink_to(FRAME_WORDS);
        state.spare = frame;
        Ok(())
    }

    /// Switches to the other, retired file; returns the generation that is left. No other thread may be writing.
    fn turn(&self, state: &mut State) -> io::Result<u64> {
        let left = state.generation;
        self.begin_generation(left + 1, state.sequence)?;
        state.generation += 1;
        state.end = FIRST;
        state.checkpoints = true;
        Ok(left)
    }

    /// Writes the head of the file that gets this generation. The device has it with the first frame.
    fn begin_generation(&self, generation: u64, sequence: u64) -> io::Result<()> {
        let head = Head { uuid: self.uuid, id: self.id, generation, sequence };
        self.files[file_of(generation)].file.write_all_at(bytemuck::cast_slice(&head.encode()), 0)
    }

    /// Writes the pool to the device, and retires the file of `generation`, which becomes larger if it was full.
    fn checkpoint(&self, pool: &Arc<Mapping>, generation: u64, was_full: bool) {
        #[cfg(test)]
        let _held = self.held.lock();
        let [pool_file, in_pieces] = &self.pool;
        if was_full {
            // This is not urgent, so frames need not wait behind all of it.
            map::write_back(in_pieces, PIECE);
        }
        let written = pool_file.sync_data().map_err(|error| format!("the pool: {error}"));
        #[cfg(test)]
        let written = if self.checkpoint_fails.swap(false, Ordering::Relaxed) { Err("the pool: a test".into()) } else { written };
        let number = file_of(generation);
        let mut state = self.state.lock();
        let size = state.sizes[number];
        let retired = match written {
            Ok(()) if self.failure().is_none() => {
                MutexGuard::unlocked(&mut state, || self.retire(number, size, was_full)).map_err(|error| format!("the journal: {error}"))
            }
            written => written.map(|()| size),
        };
        state.checkpoints = false;
        match retired {
            Ok(size) => state.sizes[number] = size,
            Err(why) => self.fail(&mut state, pool, why),
        }
        self.changed.notify_all();
    }

    /// Marks a file durably as having nothing valid, and enlarges it if it was full; returns its size.
    fn retire(&self, number: usize, size: u64, was_full: bool) -> io::Result<u64> {
        let file = &self.files[number].file;
        let head = Head { uuid: self.uuid, id: self.id, generation: 0, sequence: 0 };
        file.write_all_at(bytemuck::cast_slice(&head.encode()), 0)?;
        file.sync_data()?;
        if !was_full || size >= SIZE_MAX {
            return Ok(size);
        }
        if map::allocate(file, size as usize, 2 * size as usize).is_err() || files::write_zeroes(file, size, 2 * size).is_err() {
            // Without more space it keeps its size.
            file.set_len(size)?;
            return Ok(size);
        }
        file.sync_all()?;
        Ok(2 * size)
    }

    /// Writes everything in the pool to the device.
    fn write_pool(&self, pool: &Arc<Mapping>, mut state: MutexGuard<'_, State>) {
        while (state.turns || state.checkpoints) && self.failure().is_none() {
            self.changed.wait(&mut state);
        }
        state.turns = true;
        // A frame that is written meanwhile may turn, and have a checkpoint.
        while (state.writes || state.checkpoints || state.filled.len() > FRAME_HEAD) && self.failure().is_none() {
            if state.writes || state.filled.len() == FRAME_HEAD {
                self.changed.wait(&mut state);
            } else {
                self.proceed(pool, &mut state);
            }
        }
        let left = if self.failure().is_none() { self.turn(&mut state).map(Some) } else { Ok(None) };
        state.turns = false;
        if let Err(error) = &left {
            self.fail(&mut state, pool, format!("the journal: {error}"));
        }
        self.changed.notify_all();
        drop(state);
        if let Ok(Some(left)) = left {
            self.checkpoint(pool, left, false);
        }
    }

    /// Writes everything in the pool to the device, so that recovery stores nothing that was fenced before. A failure is final, as in [`Journal::write`].
    pub(crate) fn empty(&self, pool: &Arc<Mapping>) {
        self.write_pool(pool, self.state.lock());
    }

    /// Records the first failure: afterwards the kernel may report success for what it has dropped.
    fn fail(&self, _locked: &mut State, pool: &Mapping, why: String) {
        // A thread in the middle of an operation goes on as if it were durable. What it stores must not be found without that.
        pool.detach();
        let _ = self.failure.set(why);
    }

    /// Makes nothing durable any more, because something else has failed.
    pub(crate) fn give_up(&self, pool: &Mapping, why: String) {
        self.fail(&mut self.state.lock(), pool, why);
        self.changed.notify_all();
    }

    /// Waits until nobody is writing the pool to the device.
    pub(crate) fn quiesce(&self) {
        let mut state = self.state.lock();
        while state.checkpoints {
            self.changed.wait(&mut state);
        }
        let worker = state.worker.take();
        drop(state);
        // A worker that is about to end still has the file, and so its lock.
        worker.map(JoinHandle::join);
    }

    /// Removes the files, when no superblock names them any more.
    pub(crate) fn remove(&self) {
        self.quiesce();
        self.files.iter().for_each(Part::remove);
    }

    /// Generation of the file in use, and where its next frame begins.
    #[cfg(test)]
    fn position(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.generation, state.end)
    }

    /// Makes the next frame fail.
    #[cfg(test)]
    pub(crate) fn fail_next(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }
}

fn file_of(generation: u64) -> usize {
    (generation % 2) as usize
}

/// Creates one of the two files, which stays locked as long as it is open, with blocks and a head on the device. A failure leaves no file.
fn create_part(path: &Path, like: &File, head: &Head) -> io::Result<File> {
    remove(path, Some(head.uuid))?;
    // Only for this user, until it is known who may read the pool.
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let fill = || {
        file.try_lock()?;
        let like = like.metadata()?;
        // This happens beside a file that alone was mounted into a container, or that an overlay has copied from another file system.
        if file.metadata()?.dev() != like.dev() {
            return Err(io::Error::other(
                "it would not lie in the file system in which the pool lies, so it might be gone when the pool is not; copy the pool",
            ));
        }
        files::keep_access(&file, &like)?;
        // So that blocks need not be allocated for frames.
        files::write_zeroes(&file, 0, SIZE_MIN)?;
        file.write_all_at(bytemuck::cast_slice(&head.encode()), 0)?;
        file.sync_all()
    };
    match fill() {
        Ok(()) => Ok(file),
        Err(error) => {
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

/// Removes a journal file of this pool, or of any, that nobody uses, or to which nothing has been written.
fn remove(path: &Path, uuid: Option<u128>) -> io::Result<()> {
    let there = match open_part(path, true) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    match lock(&there, false) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(io::Error::other("in use, by a pool that had another name when it was opened")),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut words = [0; HEAD_WORDS];
    let is_empty = there.metadata()?.len() < size_of_val(&words) as u64;
    if !is_empty {
        there.read_exact_at(bytemuck::cast_slice_mut(&mut words), 0)?;
    }
    if words != [0; HEAD_WORDS] && Head::decode(&words).is_none_or(|head| uuid.is_some_and(|uuid| head.uuid != uuid)) {
        return Err(io::Error::other("there is another file of this name, or another pool's journal; move it there, or remove it if that is gone"));
    }
    // Its owner may have removed it meanwhile.
    if files::has_name(&there, path)? { std::fs::remove_file(path) } else { Ok(()) }
}

/// Opens an existing file; creates none.
fn open_part(path: &Path, write: bool) -> io::Result<File> {
    let file = File::options().read(true).write(write).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")) }
}

/// Opens the file at `path` again, with a description of its own.
fn open_again(path: &Path, file: &File) -> io::Result<File> {
    let again = File::options().read(true).write(true).open(path)?;
    if files::has_name(file, path)? { Ok(again) } else { Err(io::Error::other("somebody has put another in its place")) }
}

/// Stores what was published, in order.
fn store(pool: &Mapping, held: &[(usize, u64)]) {
    for (at, value) in held {
        pool.words(*at, 1)[0].store(*value, Ordering::Release);
    }
}

/// The line at `at`, as it was at one moment: while others store to its words, it may have to be read again.
fn copy(pool: &Mapping, at: usize) -> [u64; LINE_WORDS] {
    let words = pool.words(at, LINE_WORDS);
    let read = || std::array::from_fn(|word| words[word].load(Ordering::Acquire));
    let mut line = read();
    loop {
        let again = read();
        if again == line {
            return line;
        }
        line = again;
    }
}

/// The content of a journal.
pub(crate) struct Replay {
    /// The words of both files.
    words: [Vec<u64>; 2],
    /// Where the last frame that has the line at this offset has it: the file, and the first word.
    lines: BTreeMap<u64, (usize, usize)>,
}

impl Replay {
    /// Reads the journal `id` of the pool `uuid` in the file at `path`; without an `id`, whichever exists.
    ///
    /// # Errors
    /// [`Error::NoJournal`], [`Error::Io`].
    pub(crate) fn read(path: &Path, uuid: u128, mut id: Option<u64>) -> Result<Self, Error> {
        let io_error = |path: &Path, source| Error::Io { action: "read the journal", path: path.to_owned(), source };
        let places = paths(path).map_err(|error| io_error(path, error))?;
        let none = |place: &PathBuf, what| Error::NoJournal { path: path.to_owned(), journal: place.clone(), what };
        let mut words = [Vec::new(), Vec::new()];
        let mut heads = Vec::new();
        for (place, words) in places.iter().zip(&mut words) {
            *words = match read_words(place) {
                Ok(words) => words,
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(none(place, "is not there")),
                Err(error) => return Err(io_error(place, error)),
            };
            let head = words.first_chunk().and_then(Head::decode).ok_or_else(|| none(place, "is damaged"))?;
            if head.uuid != uuid || *id.get_or_insert(head.id) != head.id {
                return Err(none(place, "belongs to another pool, or to another time"));
            }
            heads.push(head);
        }
        let mut replay = Self { words, lines: BTreeMap::new() };
        let mut live: Vec<_> = heads.iter().enumerate().filter(|(_, head)| head.generation != 0).collect();
        live.sort_by_key(|(_, head)| head.generation);
        let mut expected = None;
        for (number, head) in live {
            if file_of(head.generation) != number || expected.is_some_and(|expected| expected != (head.generation, head.sequence)) {
                return Err(none(&places[number], "does not go on where the other one ends"));
            }
            let end = replay.read_frames(number, head).ok_or_else(|| none(&places[number], "is damaged"))?;
            expected = Some((head.generation.wrapping_add(1), end));
        }
        Ok(replay)
    }

    /// Records the lines of one file; returns the sequence number of a next frame. `None` if a frame contradicts itself, or lies behind an invalid one.
    fn read_frames(&mut self, number: usize, head: &Head) -> Option<u64> {
        let words = &self.words[number];
        let (mut at, mut sequence) = (FIRST as usize / WORD, head.sequence);
        while let Some(frame) = words.get(at..).and_then(|words| frame(words, head, sequence)) {
            let mut entry = FRAME_HEAD;
            while let Some(word) = frame.get(entry) {
                let (first, lines) = (word & !(LINE as u64 - 1), (word % LINE as u64) as usize + 1);
                frame.get(entry + 1..entry + 1 + lines * LINE_WORDS)?;
                for line in 0..lines {
                    self.lines.insert(first.checked_add((line * LINE) as u64)?, (number, at + entry + 1 + line * LINE_WORDS));
                }
                entry += 1 + lines * LINE_WORDS;
            }
            at += frame.len();
            sequence = sequence.wrapping_add(1);
        }
        (!is_followed(words.get(at..)?, head, sequence)).then_some(sequence)
    }

    /// Writes the lines that begin in bytes `range` to the pool: to its file, or, if the pool is opened only to be looked at, to this process's copy.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn apply(&self, pool: &Mapping, range: Range<u64>) -> Result<(), Error> {
        let length = pool.length()?;
        for (&at, &(number, word)) in self.lines.range(range) {
            let line = &self.words[number][word..word + LINE_WORDS];
            if pool.sharing() != Sharing::Private {
                pool.file().write_all_at(bytemuck::cast_slice(line), at).map_err(|error| pool.error("replay the journal of", error))?;
            } else if at + LINE as u64 <= length {
                pool.words(at as usize, LINE_WORDS).iter().zip(line).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
            }
        }
        Ok(())
    }
}

/// The frame at the beginning of `words`, if it is the one with this number in the file with this head.
fn frame<'a>(words: &'a [u64], head: &Head, sequence: u64) -> Option<&'a [u64]> {
    let frame = words.get(..*words.first()? as u32 as usize).filter(|frame| frame.len() >= FRAME_HEAD)?;
    (frame[1] == sequence && frame[0] >> 32 == u64::from(frame_checksum(head.id, head.generation, frame))).then_some(frame)
}

/// Whether a later frame follows an invalid one with this number. Then that was valid once, since each is written when the device has the one before.
fn is_followed(words: &[u64], head: &Head, sequence: u64) -> bool {
    // Bounds the work: crafted words that look like frames everywhere are not read again for each.
    let mut left = 4 * words.len();
    (1..words.len().saturating_sub(1)).any(|at| {
        let (length, number) = (words[at] as u32 as usize, words[at + 1]);
        if !(1..=at as u64).contains(&number.wrapping_sub(sequence)) || length > left.min(words.len() - at) {
            return false;
        }
        left -= length;
        frame(&words[at..], head, number).is_some()
    })
}

/// The whole words of a file that is no larger than a journal file can be.
fn read_words(path: &Path) -> io::Result<Vec<u64>> {
    let file = open_part(path, false)?;
    let mut words = vec![0; (file.metadata()?.len().min(SIZE_MAX) / WORD as u64) as usize];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut words), 0)?;
    Ok(words)
}

/// Renames what is left of the journal of the pool at `path`, which cannot restore the pool: somebody may find the rest.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn put_aside(path: &Path) -> Result<(), Error> {
    let io_error = |source| Error::Io { action: "put aside the journal of", path: path.to_owned(), source };
    for part in paths(path).map_err(io_error)? {
        for number in 0.. {
            let mut aside = part.clone().into_os_string();
            aside.push(".damaged");
            if number > 0 {
                aside.push(format!("-{number}"));
            }
            match files::rename_to_new(&part, Path::new(&aside)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io_error(error)),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Removes what is left of the journal of the pool `uuid`, or of any, at `path`, which needs none. It means nothing, so it does no harm if it stays.
pub(crate) fn remove_journal(path: &Path, uuid: Option<u128>) {
    paths(path).iter().flatten().for_each(|path| _ = remove(path, uuid));
}
