//! Files that get their names when they are done: backups, and pools that are written anew.
//!
//! Until then a file has another name, beside its own, and is gone when it is dropped. What a crash leaves of one is removed by the next.
//!
//! Whoever writes one has it locked, so that whoever comes second, in this process or another, finds that out: only who has the lock of what has the name takes
//! the name from it. A pool that is written has the lock itself while it is open. Somebody else may come by in the moments before and after that, so the name
//! is given only to the very file that was created.
//!
//! It goes where a symbolic link leads, and leaves the link alone. What takes the place of a file takes its permissions, too, and its owner where that is
//! permitted; what is new can be read by nobody who cannot read the pool that it comes from.

use crate::stream;
use everleaf_pmem::files;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Who may read and write what is new, as far as the process's mask lets them.
const MODE_OF_NEW: u32 = 0o666;
/// What its owner may do in any case, for it is to be written.
const OWNER_MODE: u32 = 0o600;

/// A file that is not done.
pub(crate) struct Unfinished {
    path: PathBuf,
    target: PathBuf,
    /// Locked, unless a pool is open in it.
    file: File,
}

impl Unfinished {
    /// Creates the file that is to be at `path`, and is to hold what is read from the pool at `source`, if that is one.
    pub(crate) fn create(path: &Path, source: Option<&Path>) -> io::Result<(Self, File)> {
        // What is not there has the name that it is given.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let there = fs::metadata(&target).ok();
        // A device, or a pipe that somebody reads, would be gone. A directory stays where it is: no file takes its place.
        if there.as_ref().is_some_and(|there| !there.is_file() && !there.is_dir()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is a pipe or a device, whose place a file would take; name a file", path.display()),
            ));
        }
        let path = beside(&target);
        let replaced = there.filter(Metadata::is_file);
        let pool = source.and_then(|source| fs::metadata(source).ok()).filter(Metadata::is_file);
        remove_remnant(&path, &target)?;
        // Whoever has opened it while it is empty may read what comes.
        let mode = match (&replaced, &pool) {
            (Some(_), _) => OWNER_MODE,
            (None, Some(pool)) => pool.mode() & MODE_OF_NEW | OWNER_MODE,
            (None, None) => MODE_OF_NEW,
        };
        let file = File::options().read(true).write(true).create_new(true).mode(mode).open(&path)?;
        claim(&file, &path)?;
        let this = Self { path, target, file: file.try_clone()? };
        match (&replaced, &pool) {
            (Some(replaced), _) => files::keep_access(&file, replaced)?,
            (None, Some(pool)) => files::set_mode(&file, file.metadata()?.mode(), pool.gid())?,
            (None, None) => {}
        }
        Ok((this, file))
    }

    /// Unlocks it, for the pool that is to be opened in it.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// Where it is as long as it is not done.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is to be.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Gives it its name, and takes that from what has it.
    pub(crate) fn replace(self) -> io::Result<()> {
        claim(&self.file, &self.path)?;
        fs::rename(&self.path, &self.target)?;
        files::sync_directory_of(&self.target)
    }

    /// Gives it its name, unless something has it.
    pub(crate) fn appear(self) -> io::Result<()> {
        claim(&self.file, &self.path)?;
        files::rename_to_new(&self.path, &self.target)?;
        files::sync_directory_of(&self.target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // When it has got its name there is nothing to remove; else it is in nobody's way if that fails.
        if files::has_name(&self.file, &self.path).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what a crash has left, unless somebody is writing it. What it has left with both names, in the middle of giving it its own, is `target`: whoever has
/// that locked is using it, and it needs the other name no more.
fn remove_remnant(path: &Path, target: &Path) -> io::Result<()> {
    if is_same_file(path, target) {
        return fs::remove_file(path);
    }
    let remnant = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    claim(&remnant, path)?;
    let mut begins = [0; stream::MAGIC.len()];
    _ = remnant.read_at(&mut begins, 0)?;
    if begins != [0; stream::MAGIC.len()] && begins != stream::MAGIC && !files::is_pool(path) {
        let what = format!("{} is in the way, and neither a pool nor a backup that somebody has begun; move it away", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    fs::remove_file(path)
}

/// Locks the file that is at `path`, if that is this one, and nobody else has.
fn claim(file: &File, path: &Path) -> io::Result<()> {
    // On a file system without locks nobody has one.
    let is_locked = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    match !is_locked && files::has_name(file, path).unwrap_or(false) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("somebody else is writing {}", path.display()))),
    }
}

/// Whether two names lead to one file.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

/// The name of what is to be `path` when it is done.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    path.with_file_name(name)
}
