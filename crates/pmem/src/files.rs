//! Files and their names, and who may read and write what takes the place of a file, or holds some of what it holds.

use crate::journal;
use crate::pool::MAGIC;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// What the group may do.
const GROUP_MODE: u32 = 0o070;

/// Gives a file the owner and the permissions of another, as far as may be.
///
/// # Errors
/// Those of the system, when its permissions cannot be set.
pub fn keep_access(file: &File, like: &Metadata) -> io::Result<()> {
    // First, for it may take permissions away. Only the superuser gives files away; to give one to a group, its owner need only be in it.
    if fchown(file, Some(like.uid()), Some(like.gid())).is_err() {
        let _ = fchown(file, None, Some(like.gid()));
    }
    set_mode(file, like.mode(), like.gid())
}

/// Gives a file permissions; those of a group only if it is that group's.
///
/// # Errors
/// Those of the system.
pub fn set_mode(file: &File, mode: u32, group: u32) -> io::Result<()> {
    let denied = if file.metadata()?.gid() == group { 0 } else { GROUP_MODE };
    file.set_permissions(Permissions::from_mode(mode & !denied))
}

/// Whether the file is still the one that the path names.
///
/// # Errors
/// Those of the system, but for a path that names nothing.
pub fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(named) => Ok(identity(named) == identity(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is a file that begins as pools do, or their journals.
pub fn is_pool(path: &Path) -> bool {
    let mut begins = [0; 8];
    // What is no file may have the reader wait.
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && File::open(path).is_ok_and(|file| file.read_exact_at(&mut begins, 0).is_ok() && [MAGIC, journal::MAGIC].contains(&u64::from_le_bytes(begins)))
}

/// Gives a file another name in its file system, unless something has that.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::AlreadyExists`].
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every system and file system can. Then it has two names for a moment, since to rename it would replace what has come there.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

/// Makes a change of names in the directory of `path` durable.
///
/// # Errors
/// Those of the system.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Writes zeroes to the bytes `from..to`.
pub(crate) fn write_zeroes(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    (from..to).step_by(zeroes.len()).try_for_each(|at| file.write_all_at(&zeroes[..zeroes.len().min((to - at) as usize)], at))
}

/// Bytes that nobody can guess.
pub(crate) fn random<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
