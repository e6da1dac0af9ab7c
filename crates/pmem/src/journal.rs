//! The journal of a pool in [`Domain::Msync`](crate::Domain::Msync): what a fence makes durable goes to the end of a file, in one access of the device, and to
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
//!    has been told of. The checksum covers id and generation as well, so a frame from before is none.
//! 2. A file is retired, and used again, only when the device has in the pool whatever its frames say.
//! 3. The superblock of the pool names the id from before the first fence until the pool is closed, and does not say that the pool is clean meanwhile.
//!
//! Making lines durable ([`Journal::write`]):
//! 1. Under the lock, each line is copied to the frame that is being filled. So of two frames the later has the later copy. A copy is what the line was at one
//!    moment: it is read until it has been the same twice (what has changed and changed back meanwhile, twice over, is taken to be too much of a coincidence).
//! 2. Whoever finds nobody writing takes the frame, writes it behind the last, and waits for the device (`fdatasync`; the file has its blocks already, so there
//!    is nothing else to write). Others fill the next meanwhile, and wait for the first of them to write it: they share a wait. A crash before the device has
//!    it leaves a frame that is whole, which is as good as a fence that came earlier, or one that is not: then its lines are what they were at the fence
//!    before, or what the kernel has written of them since, and nobody has been told more.
//!
//! What is *published* ([`Medium::publish`](crate::Medium::publish)) must not be found without what was flushed before, and the kernel writes what is stored
//! whenever it likes. So it is not stored: its lines are copied to the frame with what they are to have, beside what was flushed before, and stored when the
//! device has the frame, before anything else is written, so before a file turns that has the frame. Whoever copies such a line meanwhile, because of what he
//! has stored there before, copies what it is to have, for his frame may be the later one.
//!
//! When a file is full ([`Journal::turn`], [`Journal::checkpoint`]):
//! 1. The other, which is retired, gets the next generation, and frames go there.
//! 2. Meanwhile the pool is written to the device. A crash before that ends finds two files whose frames follow each other.
//! 3. The file is retired, durably.
//!
//! What is too large for a frame is made durable by a checkpoint alone. Before it turns, whatever others have copied is written: a copy that came after the
//! turn would undo what was stored since.
//!
//! A failure to write is the end: the mapping is exchanged for a private copy, so that nothing that is stored from then on is found, and nothing is written or
//! retired any more that was not under way. Whoever finds out has the copy already. Checkpoints synchronise the pool by a file description of their own: the
//! system tells each of a failure once, and this one is not to miss it because somebody else was told.
//!
//! Recovery ([`Replay`]): frames are read in order, up to the first that is none, and each line is written to the pool as its last frame has it (if a later
//! frame lies behind, by invariant 1 the one that is none was one: the journal is damaged, and the pool is not opened without what it had). That is what
//! it was at a fence, or later, and every line without a frame is what the kernel has written of it: at least what it was at the checkpoint before. So each
//! line is some prefix of its stores that has all that were fenced. A crash during recovery changes nothing: it begins again. At its end, when the device has
//! the pool, a superblock without the journal's id is the commit point. Sectors of the header are written in the order in which they are when a superblock is
//! changed, so that there is one which names the journal at any time.
//!
//! A device may tear what it writes between its sectors of 512 bytes, and not within; of a sector that is written again with more behind what it had, it has
//! either.

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
/// Lines an entry has at most: as many as the low bits of its offset can tell.
const ENTRY_LINES: usize = LINE;
/// What a frame holds before others wait for the next, in words.
const FRAME_WORDS: usize = if cfg!(test) { 1 << 10 } else { 1 << 17 };
/// What is made durable by a checkpoint alone, in bytes: it would have to be written twice.
const LARGE: usize = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// The first size of a file, in bytes; above what a frame with one more fence in it takes.
const SIZE_MIN: u64 = if cfg!(test) { 32 << 10 } else { 4 << 20 };
/// The size to which a file grows, in bytes: a pool whose device is slow, or whose changes are many, is written to it less often.
const SIZE_MAX: u64 = 64 << 20;
/// What is written of the pool at once, in bytes: frames wait behind it.
const PIECE: u64 = 256 << 10;

/// The journal of a pool that is open.
pub(crate) struct Journal {
    files: [Part; 2],
    /// The pool, for checkpoints; and once more for what they write in pieces, of whose failures the former is told, too.
    pool: [File; 2],
    uuid: u128,
    id: u64,
    state: Mutex<State>,
    /// Told of every change of `State` that somebody may wait for.
    changed: Condvar,
    failure: OnceLock<String>,
    /// Whether the next frame is not written.
    #[cfg(test)]
    fails: AtomicBool,
    /// Whether the next checkpoint finds that the pool was not written.
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
    /// Takes it away. It means nothing, so it does no harm if it stays. Somebody else's may be in its place.
    fn remove(&self) {
        if files::has_name(&self.file, &self.path).unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct State {
    /// Of the frame that is being filled, with room for its head.
    filled: Vec<u64>,
    /// A buffer for the next one.
    spare: Vec<u64>,
    /// What is published by that frame: where, and what.
    held: Vec<(usize, u64)>,
    /// All that is published and not stored yet, by where it goes.
    published: BTreeMap<usize, u64>,
    /// The sequence number of the frame that is being filled.
    sequence: u64,
    /// The device has all frames below this one.
    durable: u64,
    /// Somebody writes a frame.
    writes: bool,
    /// The other file is not retired yet.
    checkpoints: bool,
    /// Somebody waits until there is nothing in the frame that is being filled, which stays so for him.
    turns: bool,
    generation: u64,
    /// Where the next frame begins, in bytes, in the file of this generation.
    end: u64,
    /// Sizes of the files.
    sizes: [u64; 2],
    /// Who does the checkpoint, or did the last.
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
    /// The file with an odd one is the second. 0 if there is nothing in it that counts.
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

/// The checksum of a frame: of its length, of all behind its first word, and of where it belongs.
fn frame_checksum(id: u64, generation: u64, frame: &[u64]) -> u32 {
    crate::crc32c(checksum(&[id, generation, frame.len() as u64]), bytemuck::cast_slice(&frame[1..]))
}

/// Where the parts of the journal of the pool at `path` are: beside the file itself, whatever links lead there.
fn paths(path: &Path) -> io::Result<[PathBuf; 2]> {
    let path = std::fs::canonicalize(path)?;
    Ok([0, 1].map(|number| path.with_added_extension(format!("journal{number}"))))
}

impl Journal {
    /// A new journal for the pool `uuid` in `file` at `path`, in the place of one that nobody uses.
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

    /// What the superblock is to name.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Why nothing can be made durable any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Makes the lines at `runs` of `pool`, bytes from its start that neither touch nor lie in disorder, durable as they are now, or later, and with them what
    /// `held` has for words that lie there; that is stored then. If it fails, that is the end: see [`Journal::failure`].
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
            // As whoever goes on takes it to be; nobody finds it. Not before whoever may be about to store it is over.
            while state.writes {
                self.changed.wait(&mut state);
            }
            store(pool, held);
        }
    }

    /// Writes the frame that is being filled, or waits until whoever writes another is done. False after a failure.
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

    /// Writes the frame that is being filled, as the only one who does.
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
            // Without a thread, whoever is here does it.
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
            // Pages that were written to the device meanwhile have to be made writable again: others need not wait for that.
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

    /// Goes on in the other file, as the only one who writes, when that is retired; the generation that is left.
    fn turn(&self, state: &mut State) -> io::Result<u64> {
        let left = state.generation;
        self.begin_generation(left + 1, state.sequence)?;
        state.generation += 1;
        state.end = FIRST;
        state.checkpoints = true;
        Ok(left)
    }

    /// Writes the head of the file that is to have this generation. The device has it with the first frame.
    fn begin_generation(&self, generation: u64, sequence: u64) -> io::Result<()> {
        let head = Head { uuid: self.uuid, id: self.id, generation, sequence };
        self.files[file_of(generation)].file.write_all_at(bytemuck::cast_slice(&head.encode()), 0)
    }

    /// Makes the device have the pool as it is, and retires the file of `generation`, which is larger afterwards if it was full.
    fn checkpoint(&self, pool: &Arc<Mapping>, generation: u64, was_full: bool) {
        #[cfg(test)]
        let _held = self.held.lock();
        let [pool_file, in_pieces] = &self.pool;
        if was_full {
            // There is time, so frames need not wait behind all of it.
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

    /// Says durably that a file has nothing that counts, and makes it larger if it is to be; its size.
    fn retire(&self, number: usize, size: u64, was_full: bool) -> io::Result<u64> {
        let file = &self.files[number].file;
        let head = Head { uuid: self.uuid, id: self.id, generation: 0, sequence: 0 };
        file.write_all_at(bytemuck::cast_slice(&head.encode()), 0)?;
        file.sync_data()?;
        if !was_full || size >= SIZE_MAX {
            return Ok(size);
        }
        if map::allocate(file, size as usize, 2 * size as usize).is_err() || files::write_zeroes(file, size, 2 * size).is_err() {
            // Without more space it stays as it is.
            file.set_len(size)?;
            return Ok(size);
        }
        file.sync_all()?;
        Ok(2 * size)
    }

    /// Makes the device have all that the pool has.
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

    /// Makes the device have all that the pool has, so that recovery stores nothing of what was fenced before. If it fails, that is the end, as in
    /// [`Journal::write`].
    pub(crate) fn empty(&self, pool: &Arc<Mapping>) {
        self.write_pool(pool, self.state.lock());
    }

    /// Remembers the first failure: afterwards the kernel may report success for what it has dropped.
    fn fail(&self, _locked: &mut State, pool: &Mapping, why: String) {
        // Whoever is in the middle of an operation goes on, as if it were durable. What he stores must not be found without it.
        pool.detach();
        let _ = self.failure.set(why);
    }

    /// Makes nothing durable any more, because something else has failed.
    pub(crate) fn give_up(&self, pool: &Mapping, why: String) {
        self.fail(&mut self.state.lock(), pool, why);
        self.changed.notify_all();
    }

    /// Waits until nobody writes the pool to the device.
    pub(crate) fn quiesce(&self) {
        let mut state = self.state.lock();
        while state.checkpoints {
            self.changed.wait(&mut state);
        }
        let worker = state.worker.take();
        drop(state);
        // Who is at its end has the file yet, and so its lock.
        worker.map(JoinHandle::join);
    }

    /// Takes the files away, when no superblock names them any more.
    pub(crate) fn remove(&self) {
        self.quiesce();
        self.files.iter().for_each(Part::remove);
    }

    /// Generation of the file at work, and where its next frame begins.
    #[cfg(test)]
    fn position(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.generation, state.end)
    }

    /// Has the next frame fail.
    #[cfg(test)]
    pub(crate) fn fail_next(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }
}

fn file_of(generation: u64) -> usize {
    (generation % 2) as usize
}

/// Makes one of the two files, which is locked as long as it is open, with blocks and a head on the device. What fails leaves none.
fn create_part(path: &Path, like: &File, head: &Head) -> io::Result<File> {
    remove(path, Some(head.uuid))?;
    // For nobody else, until it is known who may read the pool.
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let fill = || {
        file.try_lock()?;
        let like = like.metadata()?;
        // As beside a file that alone was mounted into a container, or one that an overlay has copied from another file system.
        if file.metadata()?.dev() != like.dev() {
            return Err(io::Error::other(
                "it would not lie in the file system in which the pool lies, so it might be gone when the pool is not; copy the pool",
            ));
        }
        files::keep_access(&file, &like)?;
        // So that a frame finds blocks that need not be made first.
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

/// Takes away a file of a journal of this pool, or of any, that nobody uses, if it is there, or one that nothing has been written to.
fn remove(path: &Path, uuid: Option<u128>) -> io::Result<()> {
    let there = match open_part(path, true) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    match lock(&there) {
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
        return Err(io::Error::other("there is another file of this name, or another pool's journal; move it to where that is"));
    }
    // Its owner may have taken it away meanwhile.
    if files::has_name(&there, path)? { std::fs::remove_file(path) } else { Ok(()) }
}

/// Opens a file that is there; nothing else.
fn open_part(path: &Path, write: bool) -> io::Result<File> {
    let file = File::options().read(true).write(write).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")) }
}

/// Opens the file at `path` once more, with a description of its own.
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

/// The line at `at`, as it was at one moment: while others store to it, each word for itself, it may have to be read again.
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

/// What a journal says of its pool.
pub(crate) struct Replay {
    /// The words of both files.
    words: [Vec<u64>; 2],
    /// Where the last frame with the line at this offset has it: in which file, and from which word on.
    lines: BTreeMap<u64, (usize, usize)>,
}

impl Replay {
    /// Reads the journal `id` of the pool `uuid` in the file at `path`; without an `id`, whichever is there.
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

    /// Takes note of the lines of one file; the sequence number that its next frame would have. `None` if a frame contradicts itself, or lies behind none.
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

    /// Writes the lines that begin at bytes `range` to the pool: to its file, or, where that is only looked at, to this process's own copy of what it has.
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

/// The frame with which `words` begin, if it is the one with this number in the file with this head.
fn frame<'a>(words: &'a [u64], head: &Head, sequence: u64) -> Option<&'a [u64]> {
    let frame = words.get(..*words.first()? as u32 as usize).filter(|frame| frame.len() >= FRAME_HEAD)?;
    (frame[1] == sequence && frame[0] >> 32 == u64::from(frame_checksum(head.id, head.generation, frame))).then_some(frame)
}

/// Whether a later frame lies behind what is not the one with this number: that was whole once, since each is written when the device has the one before.
fn is_followed(words: &[u64], head: &Head, sequence: u64) -> bool {
    // What somebody has made to look like frames all over is not read again for each.
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

/// The whole words of a file that is no larger than one of a journal.
fn read_words(path: &Path) -> io::Result<Vec<u64>> {
    let file = open_part(path, false)?;
    let mut words = vec![0; (file.metadata()?.len().min(SIZE_MAX) / WORD as u64) as usize];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut words), 0)?;
    Ok(words)
}

/// Gives what is left of the journal of the pool at `path`, which cannot be made whole by it, another name: somebody may find the rest.
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

/// Takes away what is left of the journal of the pool `uuid`, or of any, at `path`, which needs none. It means nothing, so it does no harm if it stays.
pub(crate) fn remove_journal(path: &Path, uuid: Option<u128>) {
    paths(path).iter().flatten().for_each(|path| _ = remove(path, uuid));
}
