//! Files that get their names when they are complete: backups, and pools that are written anew.
//!
//! Until then a file has another name, beside its final one, and dropping it removes it. What a crash leaves of one is removed by the next one.
//!
//! The writer of such a file holds its lock, so that a second writer, in this process or another, notices: only the holder of the lock of the file with that
//! name may take the name from it. A pool that is being written is itself locked while it is open. Another program may come by in the moments before and after
//! that, so only the very file that was created is renamed.
//!
//! The file goes where a symbolic link leads, and leaves the link alone. A file that replaces another takes its permissions, too, and its owner where the
//! system permits it; a new file can be read only by those who can read the pool that it comes from.

use crate::stream;
use everleaf_pmem::files;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permissions of a new file, before the process's mask.
const MODE_OF_NEW: u32 = 0o666;
/// Permissions that the owner has in any case, so that the file can be written.
const OWNER_MODE: u32 = 0o600;

/// A file that is not complete.
pub(crate) struct Unfinished {
    path: PathBuf,
    target: PathBuf,
    /// Locked, unless a pool is open in it.
    file: File,
}

impl Unfinished {
    /// Creates the file that is to be at `path`, to hold what is read from the pool at `source`, if that is a pool.
    pub(crate) fn create(path: &Path, source: Option<&Path>) -> io::Result<(Self, File)> {
        // A path at which nothing exists is used as given.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let there = fs::metadata(&target).ok();
        // A device, or a pipe that is being read, would be lost. A directory stays in place: no file replaces it.
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
        // A program that opens the file while it is empty could read what comes later.
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

    /// Unlocks it for the pool that is to be opened in it.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    /// Its path until it is complete.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its final path.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Renames it to its final name, replacing any file there.
    pub(crate) fn replace(self) -> io::Result<()> {
        claim(&self.file, &self.path)?;
        fs::rename(&self.path, &self.target)?;
        files::sync_directory_of(&self.target)
    }

    /// Renames it to its final name, unless something exists there.
    pub(crate) fn appear(self) -> io::Result<()> {
        claim(&self.file, &self.path)?;
        files::rename_to_new(&self.path, &self.target)?;
        files::sync_directory_of(&self.target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the renaming there is nothing to remove; before it, a leftover file does no harm.
        if files::has_name(&self.file, &self.path).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what a crash has left, unless it is being written. If a crash in the middle of the renaming left it with both names, it is `target`: a program that
/// has that locked is using it, and it no longer needs the other name.
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

/// Locks the file, provided that it is the one at `path` and not locked by another.
fn claim(file: &File, path: &Path) -> io::Result<()> {
    // On a file system without locks there are no other holders.
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

/// The name of the file that is to be `path` when it is complete.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    path.with_file_name(name)
}
